/* Sums over parts that blocks left, in an order that depends on their number alone. */
#ifndef S2S_KERNELS_CUDA_SUM_H
#define S2S_KERNELS_CUDA_SUM_H

#include "kernels/cuda/cuda.h"

/* out[cols] (+)= the sum of n_parts vectors, which stand `stride` floats apart. */
void cuda_add_parts(struct s2s_queue *queue, float *out, const float *parts, int64_t n_parts,
                    int64_t cols, int64_t stride, bool accumulate);

#endif
