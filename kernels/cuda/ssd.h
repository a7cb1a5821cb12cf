/*
 * What the scan and its gradients share on the GPU: chunks, what their steps make of a state, the
 * states between them (kernels/cpu/ssd.h has the formulas).
 *
 * A chunk is up to SSD_CHUNK rows of a sequence. Bounds of sequences are on the device alone, so
 * chunks have slots, of which some stay empty: those of sequence s are cu[s] / SSD_CHUNK + s and
 * the following. States of slots lie [slots, heads, state, dim].
 */
#ifndef S2S_KERNELS_CUDA_SSD_H
#define S2S_KERNELS_CUDA_SSD_H

#include "kernels/cuda/seq.h"
#include "kernels/cuda/ssd_product.h"

enum { SSD_CHUNK = SSD_TILE, SSD_SQUARE = SSD_CHUNK * SSD_CHUNK };

/* What all kernels of a call need. Arrays are of the workspace. */
struct ssd_problem {
    const int32_t *cu;
    int64_t n_seqs, n, slots;
    int n_heads, n_groups, per; /* per: heads of a group */
    int64_t all_heads;          /* that states outside have a sequence, where these are a part */
    int dim, state;
    struct ssd_source x, b, c;
    const float *skip;
    /* [n, n_heads]: the step, its derivative by dt, sums s_t as two floats, exp(s_t), exp(s_last -
     * s_t); [slots, n_heads]: exp(s_last) */
    float *step, *slope, *high, *low, *rise, *left, *decay;
    float *products; /* [slots, n_groups, SSD_CHUNK, SSD_CHUNK] of c and b */
    float *states;   /* before each chunk */
};

/* Takes those arrays from the workspace (NULL: none yet), the last two or not; gives their floats.
 */
int64_t ssd_problem_of(struct ssd_problem *p, const struct s2s_k_ssd *args, bool with_states,
                       float *workspace);

static inline int64_t ssd_slots(const struct s2s_k_ssd *args)
{
    return args->n / SSD_CHUNK + args->n_seqs;
}

static inline int64_t ssd_state_floats(const struct s2s_k_ssd *args)
{
    return ssd_slots(args) * args->n_heads * args->dim * args->state;
}

/* Floats of an array of n, behind which another one may begin that is read 16 bytes at a time. */
static inline int64_t ssd_padded(int64_t n)
{
    return (n + 63) / 64 * 64;
}

struct ssd_array {
    float **at;
    int64_t n;
};

/* Lays arrays out one behind the other; gives the floats. memory NULL: counts alone. */
static inline int64_t ssd_lay_out(const struct ssd_array *arrays, int n, float *memory)
{
    int64_t at = 0;
    for (int i = 0; i < n; at += ssd_padded(arrays[i++].n))
        *arrays[i].at = memory ? memory + at : NULL;
    return at;
}

/* Computes the arrays of [n, n_heads] and decay. */
void ssd_make_times(struct s2s_queue *queue, const struct s2s_k_ssd *args,
                    const struct ssd_problem *p);
/* Computes the products and the states, and final states where wanted. */
void ssd_make_states(struct s2s_queue *queue, const struct s2s_k_ssd *args,
                     const struct ssd_problem *p);
/* Does the scan in one pass (ssd_scan.cu), after ssd_make_times; takes: it can. */
bool ssd_scan_takes(const struct s2s_k_ssd *args);
void ssd_scan(struct s2s_queue *queue, const struct s2s_k_ssd *args, const struct ssd_problem *p);
/* Zeros in rows of no sequence. */
void ssd_zero_others(struct s2s_queue *queue, const struct s2s_k_ssd *args,
                     const struct s2s_mat *mat, int64_t cols);

#define SSD static __device__ __forceinline__

struct ssd_chunk {
    int64_t seq, row; /* its first row */
    int n;            /* 0: the slot is empty */
};

SSD struct ssd_chunk ssd_chunk_of(const struct ssd_problem &p, int64_t slot)
{
    int64_t low = 0, high = p.n_seqs - 1;
    while (low < high) {
        const int64_t mid = (low + high + 1) / 2;
        if (p.cu[mid] / SSD_CHUNK + mid <= slot)
            low = mid;
        else
            high = mid - 1;
    }
    const int64_t begin = p.cu[low], len = p.cu[low + 1] - begin;
    const int64_t at = (slot - (begin / SSD_CHUNK + low)) * SSD_CHUNK, left = len - at;
    struct ssd_chunk k = {low, begin + at, 0};
    if (at >= 0 && left > 0)
        k.n = left < SSD_CHUNK ? (int)left : (int)SSD_CHUNK;
    return k;
}

/* Of a sequence. */
SSD int64_t ssd_first_slot(const struct ssd_problem &p, int64_t seq)
{
    return p.cu[seq] / SSD_CHUNK + seq;
}

/* exp(s_t - s_u), of rows of the whole. */
SSD float ssd_kept(const struct ssd_problem &p, int64_t t, int64_t u, int head)
{
    const int64_t a = t * p.n_heads + head, b = u * p.n_heads + head;
    return expf((p.high[a] - p.high[b]) + (p.low[a] - p.low[b]));
}

/* Two results of a row of floats [.., cols]. */
SSD void ssd_put(float *to, int64_t row, int col, int cols, float x, float y)
{
    if (col < cols)
        to[row * cols + col] = x;
    if (col + 1 < cols)
        to[row * cols + col + 1] = y;
}

/* What the chunk brings to a state: [state, dim] = sum over its rows of weight_t side_t v_t^T, side
 * b or c, v rows of x or dy, weight left step or rise. Batches are slots and heads. */
struct ssd_brought {
    struct ssd_problem p;
    struct ssd_source side, v;
    const float *first, *second; /* [n, n_heads] factors of the weight; second NULL: 1 */
    float *to;                   /* [slots, n_heads, state, dim] */
    int64_t batch;
    int head, m, n;
    struct ssd_chunk k;

    __device__ bool begin(int64_t batch_, int m_, int n_)
    {
        batch = batch_;
        head = (int)(batch % p.n_heads);
        m = m_;
        n = n_;
        k = ssd_chunk_of(p, batch / p.n_heads);
        return k.n > 0;
    }
    __device__ int tiles() const
    {
        return 1;
    }
    __device__ bool a_rows(int) const
    {
        return false;
    }
    __device__ bool b_rows(int) const
    {
        return false;
    }
    __device__ void a_(float (&x)[8], int, int row, int col) const
    {
        ssd_zeros(x);
        if (row < k.n)
            ssd_read(x, side, k.row + row, (int64_t)(head / p.per) * p.state, m + col, p.state);
    }
    __device__ void b_(float (&x)[8], int, int row, int col) const
    {
        ssd_zeros(x);
        if (row >= k.n)
            return;
        const int64_t at = (k.row + row) * p.n_heads + head;
        ssd_read(x, v, k.row + row, (int64_t)head * p.dim, n + col, p.dim);
        ssd_scale(x, first[at] * (second ? second[at] : 1.0f));
    }
    __device__ void put(int row, int col, float x, float y) const
    {
        if (m + row < p.state)
            ssd_put(to + batch * p.state * p.dim, m + row, n + col, p.dim, x, y);
    }
};

#undef SSD
#endif
