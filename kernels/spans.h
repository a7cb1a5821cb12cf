/* Tables of spans for attention (kernels/attention.h), made on the host in plain C. */
#ifndef S2S_KERNELS_SPANS_H
#define S2S_KERNELS_SPANS_H

#include "kernels/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * One span a packed sequence: queries cu_q[s]..cu_q[s+1], keys cu_k[s]..cu_k[s+1] (both [n_seqs +
 * 1], maybe the same). causal: the last query sees the last key, so a cache has more keys than
 * queries; else every query sees all.
 */
void s2s_spans_packed(struct s2s_span *spans, const int32_t *cu_q, const int32_t *cu_k,
                      int64_t n_seqs, bool causal);

/*
 * Sorts spans by their first key, and finds the groups whose keys overlap: groups [at most n_spans
 * + 1] gets where each begins, and the end. Gives their number.
 */
int64_t s2s_spans_group(int32_t *groups, struct s2s_span *spans, int64_t n_spans);

#ifdef __cplusplus
}
#endif

#endif
