/* Attention with wgmma and TMA, where the device and a call are such. */
#ifndef S2S_KERNELS_CUDA_ATTENTION_SM90_H
#define S2S_KERNELS_CUDA_ATTENTION_SM90_H

#include "kernels/cuda/attention_bwd.h"
#include "kernels/cuda/attention_fwd.h"

/* The forward of bf16, and its gradients, unless it is not for this device or these matrices:
 * false, and nothing was issued. */
bool att_forward_sm90(struct s2s_queue *queue, const struct att_forward *f);
bool att_backward_queries_sm90(struct s2s_queue *queue, const struct att_backward *b);
bool att_backward_keys_sm90(struct s2s_queue *queue, const struct att_backward *b);

/* Heads wider than 128 are not: the registers do not hold their dk and dv. */
static inline bool att_is_for_sm90(const struct s2s_queue *queue, const struct att_backward *b)
{
    return cuda_queue_of(queue)->wgmma && b->p.n_q > 0 && b->p.n_k > 0 && b->p.dim <= 128 &&
           b->q.is_wide && b->k.is_wide && b->v.is_wide && b->d_o.is_wide;
}

#endif
