/* What the kernels of attention's backward share: arguments, and who runs them. */
#ifndef S2S_KERNELS_CUDA_ATTENTION_BWD_H
#define S2S_KERNELS_CUDA_ATTENTION_BWD_H

#include "kernels/cuda/attention_tile.h"

struct att_backward {
    struct att_problem p;
    struct att_list queries, keys;
    struct att_source q, k, v, d_o;
    struct att_target dq, dk, dv;
    /* [n_heads, n_q]: lse in powers of 2, and rowsum(dO O) */
    float *lse, *delta;
};

/* dq, and dk and dv, with the lists that they need. */
void att_backward_queries(struct s2s_queue *queue, const struct att_backward *b, bool bf16);
void att_backward_keys(struct s2s_queue *queue, const struct att_backward *b, bool bf16);
/* Those with dropout (attention_drop_bwd.cu). */
void att_backward_queries_dropped(struct s2s_queue *queue, const struct att_backward *b, bool bf16);
void att_backward_keys_dropped(struct s2s_queue *queue, const struct att_backward *b, bool bf16);

#endif
