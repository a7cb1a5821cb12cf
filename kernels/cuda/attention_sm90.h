/* Attention with wgmma and TMA, where the device and a call are such. */
#ifndef S2S_KERNELS_CUDA_ATTENTION_SM90_H
#define S2S_KERNELS_CUDA_ATTENTION_SM90_H

#include "kernels/cuda/attention_fwd.h"

/* The forward of bf16, unless it is not for this device or these matrices: false, and nothing was
 * issued. */
bool att_forward_sm90(struct s2s_queue *queue, const struct att_forward *f);

#endif
