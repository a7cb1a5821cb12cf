/* Packed sequences as kernels see them. */
#ifndef S2S_KERNELS_CUDA_SEQ_H
#define S2S_KERNELS_CUDA_SEQ_H

#include "kernels/cuda/cuda.h"

/* The sequence that holds packed row `row`, which must be one of them. */
static __device__ __forceinline__ int64_t find_seq(const int32_t *cu, int64_t n_seqs, int64_t row)
{
    int64_t low = 0, high = n_seqs - 1;
    while (low < high) {
        const int64_t mid = (low + high + 1) / 2;
        if (cu[mid] <= row)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* Is it one of them? */
static __device__ __forceinline__ bool in_a_seq(const int32_t *cu, int64_t n_seqs, int64_t row)
{
    return n_seqs > 0 && row >= cu[0] && row < cu[n_seqs];
}

#endif
