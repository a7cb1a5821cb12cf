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

/* Rows row .. end of one sequence. */
struct seq_tile {
    int seq, row, end;
};

/* The tile-th of all sequences' tiles of so many rows, of which none has rows of two; false: there
 * are not so many. By whole warps. */
static __device__ __forceinline__ bool seq_find_tile(const int32_t *cu, int n_seqs, int tile,
                                                     int rows, seq_tile *out)
{
    const int lane = (int)threadIdx.x % 32;
    for (int first = 0; first < n_seqs; first += 32) {
        const int seq = first + lane;
        const int begin = seq < n_seqs ? cu[seq] : 0, end = seq < n_seqs ? cu[seq + 1] : 0;
        const int tiles = (end - begin + rows - 1) / rows;
        int sum = tiles;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int below = __shfl_up_sync(~0u, sum, (unsigned)step);
            sum += lane >= step ? below : 0;
        }
        const unsigned past = __ballot_sync(~0u, sum > tile);
        if (past) {
            const int who = __ffs((int)past) - 1;
            const int before = __shfl_sync(~0u, sum - tiles, who);
            out->seq = first + who;
            out->row = __shfl_sync(~0u, begin, who) + (tile - before) * rows;
            out->end = min(out->row + rows, __shfl_sync(~0u, end, who));
            return true;
        }
        tile -= __shfl_sync(~0u, sum, 31);
    }
    return false;
}

/* Is it one of them? */
static __device__ __forceinline__ bool in_a_seq(const int32_t *cu, int64_t n_seqs, int64_t row)
{
    return n_seqs > 0 && row >= cu[0] && row < cu[n_seqs];
}

#endif
