/*
 * What a call of a kernel costs: floating-point operations, and bytes that it reads and writes.
 * From arguments alone, in plain C: good for a plan of a device that is not there, and for a
 * profile.
 *
 * Operations are those of the formula in the entry's header; exp, tanh, a division or a root is
 * one. Bytes count each operand once, as if nothing had to be read again: what caches can save at
 * most.
 */
#ifndef S2S_COUNT_COST_H
#define S2S_COUNT_COST_H

#include "kernels/count/uploads.h"
#include "kernels/kernels.h"

/* One number an entry of the list, then the table's own functions. */
enum s2s_entry {
#define X(name, suffix, kind, mats) S2S_ENTRY_##name,
    S2S_KERNELS(X)
#undef X
        S2S_ENTRY_zero,
    S2S_ENTRY_copy_in,
    S2S_ENTRY_copy_out,
    S2S_ENTRY_copy_out_async, /* waits for nothing */
    S2S_ENTRY_sync,
    S2S_ENTRIES
};

const char *s2s_entry_name(enum s2s_entry entry); /* "gemm" */

struct s2s_cost {
    double flops, read_bytes, written_bytes;
};

/* uploads: what went to the device before, for the bounds of sequences; where they are not among
 * it, work that depends on them is a guess from the longest one. */
#define X(name, suffix, kind, mats) \
    struct s2s_cost s2s_cost_##name(const struct s2s_k_##suffix *args, \
                                    const struct s2s_uploads *uploads);
S2S_KERNELS(X)
#undef X

#endif
