/* Tables of spans: packed sequences, and groups of spans that share keys. */
#include "kernels/spans.h"

#include <stdlib.h>

void s2s_spans_packed(struct s2s_span *spans, const int32_t *cu_q, const int32_t *cu_k,
                      int64_t n_seqs, bool causal)
{
    for (int64_t s = 0; s < n_seqs; s++) {
        const int32_t nq = cu_q[s + 1] - cu_q[s], nk = cu_k[s + 1] - cu_k[s];
        spans[s] = (struct s2s_span){cu_q[s], nq, cu_k[s], nk, causal ? nk - nq : S2S_SPAN_ALL};
    }
}

static int compare(const void *a, const void *b)
{
    const struct s2s_span *x = a, *y = b;
    if (x->k0 != y->k0)
        return x->k0 < y->k0 ? -1 : 1;
    return (x->q0 > y->q0) - (x->q0 < y->q0);
}

int64_t s2s_spans_group(int32_t *groups, struct s2s_span *spans, int64_t n_spans)
{
    int64_t n = 0, end = 0;
    qsort(spans, (size_t)n_spans, sizeof *spans, compare);
    for (int64_t s = 0; s < n_spans; s++) {
        if (n == 0 || spans[s].k0 >= end)
            groups[n++] = (int32_t)s;
        if (spans[s].k0 + spans[s].nk > end)
            end = spans[s].k0 + spans[s].nk;
    }
    groups[n] = (int32_t)n_spans;
    return n;
}
