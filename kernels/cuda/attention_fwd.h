/*
 * Attention, forward: a block has a tile of queries of one head and goes over the keys that they
 * see, with a running maximum and sum (Milakov & Gimelshein 2018; Dao et al. 2022). K and V have
 * one tile each in shared memory: the next K comes while P V is computed, the next V during Q K^T.
 * A warp has 16 M rows of queries, so each fragment of K and V is read once for M products.
 */
#ifndef S2S_KERNELS_CUDA_ATTENTION_FWD_H
#define S2S_KERNELS_CUDA_ATTENTION_FWD_H

#include "kernels/cuda/attention_tile.h"

struct att_forward {
    struct att_problem p;
    struct att_list list;
    struct att_source q, k, v;
    struct att_target o;
    float *lse; /* NULL: not wanted */
};

/* WARPS of 16 M queries each, tiles of N keys; BLOCKS of a multiprocessor, as far as registers go.
 */
template <class P_, int D_, int WARPS_, int M_, int N_, int BLOCKS_> struct forward_shape {
    typedef P_ P;
    enum { D = D_, WARPS = WARPS_, M = M_, N = N_, BLOCKS = BLOCKS_ };
    enum { THREADS = WARPS * 32, QUERIES = WARPS * M * 16 };
    enum { ROW = att_shape<P, D>::ROW, STEPS = att_shape<P, D>::STEPS };
    enum { SHARED_BYTES = (QUERIES + 2 * N) * ROW + 64 };
    static_assert(SHARED_BYTES <= 99 << 10, "the shared memory of a block");
};

/* Row h of the lane: scores become exp2(c (s - max)), sum and output shrink with the maximum. */
template <int N, int ND>
static __device__ __forceinline__ void soften(float (&s)[N][4], float (&o)[ND][4], int h, float c,
                                              float &max, float &sum)
{
    float top = max;
#pragma unroll
    for (int n = 0; n < N; n++)
        top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    top = fmaxf(top, shfl_xor(top, 1));
    top = fmaxf(top, shfl_xor(top, 2));
    const float off = top == -INFINITY ? 0 : top * c, keep = exp2_fast(max * c - off);
    float more = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++) {
            s[n][e] = exp2_fast(s[n][e] * c - off);
            more += s[n][e];
        }
    sum = sum * keep + more;
    max = top;
#pragma unroll
    for (int n = 0; n < ND; n++) {
        o[n][2 * h] *= keep;
        o[n][2 * h + 1] *= keep;
    }
}

/* What a block is about. It stands in shared memory, as accumulators fill the registers. */
struct forward_block {
    s2s_span span;
    int at, begin; /* its first query and the first key that they see, of the span's */
};

/* Row h of the lane in tile m: its part of o and lse. */
template <class S>
static __device__ __forceinline__ void finish(const att_forward &f, const forward_block *own,
                                              int head, int m, int h, const float (&o)[S::D / 8][4],
                                              float max, float sum)
{
    const int lane = (int)threadIdx.x % 32;
    sum += shfl_xor(sum, 1);
    sum += shfl_xor(sum, 2);
    const int i = own->at + (int)threadIdx.x / 32 * S::M * 16 + m * 16 + h * 8 + lane / 4;
    if (i >= own->span.nq)
        return;
    const float inverse = sum > 0 ? 1 / sum : 0;
    const int64_t row = own->span.q0 + i;
#pragma unroll
    for (int n = 0; n < S::D / 8; n++)
        att_put(f.o, row, head, f.p.dim, n * 8 + lane % 4 * 2, o[n][2 * h] * inverse,
                o[n][2 * h + 1] * inverse);
    if (f.lse && lane % 4 == 0)
        f.lse[row * f.p.n_heads + head] = sum > 0 ? max * f.p.scale + logf(sum) : -INFINITY;
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) forward_kernel(const att_forward f)
{
    typedef typename S::P P;
    typedef att_shape<P, S::D> Shape;
    enum { M = S::M };
    SHARED(char, sh);
    char *const q_tile = sh, *const k_tile = sh + S::QUERIES * S::ROW;
    char *const v_tile = k_tile + S::N * S::ROW;
    forward_block *const own = (forward_block *)(v_tile + S::N * S::ROW);
    const int head = (int)(blockIdx.x % (unsigned)f.p.n_heads);
    const int rank = (int)(blockIdx.x / (unsigned)f.p.n_heads);
    if (rank >= *f.list.n)
        return;
    const int row = (int)threadIdx.x / 32 * M * 16; /* of the warp */
    const att_work work = f.list.work[rank];
    const s2s_span span = f.p.spans[work.of];
    int begin, end;
    att_seen_keys(f.p, span, work.at, min((int)S::QUERIES, span.nq - work.at), begin, end);
    /* from the last tile of keys to the first; those from `whole` on or before `far` have keys that
     * some row of the warp does not see, those from `none` on only such */
    int tile = end > begin ? (end - begin + S::N - 1) / S::N - 1 : -1;
    const int whole = max(att_keys(f.p, span, work.at + row).end - begin, 0) / S::N;
    const int far =
        (max(att_keys(f.p, span, work.at + row + M * 16 - 1).begin - begin, 0) + S::N - 1) / S::N;
    const int none =
        (max(att_keys(f.p, span, work.at + row + M * 16 - 1).end - begin, 0) + S::N - 1) / S::N;
    int n_rows = span.nk - begin - tile * S::N; /* of the tile, or more */
    const char *k_at = att_row(f.k, span.k0 + begin + tile * S::N, head / f.p.n_rep);
    const char *v_at = att_row(f.v, span.k0 + begin + tile * S::N, head / f.p.n_rep);
    if (threadIdx.x == 0)
        *own = {span, work.at, begin};
    att_load<P, S::D, S::QUERIES, S::THREADS>(q_tile, f.q, att_row(f.q, span.q0 + work.at, head),
                                              span.nq - work.at);
    if (tile >= 0)
        att_load<P, S::D, S::N, S::THREADS>(k_tile, f.k, k_at, n_rows);
    cp_async_commit();

    const att_lane q_lane = att_lane_tall<Shape>(shared_addr(q_tile + row * S::ROW));
    const att_lane k_lane = att_lane_wide<Shape>(shared_addr(k_tile));
    const typename att_across<P, S::D>::type v_lane = att_across<P, S::D>::of(v_tile);
    float o[M][S::D / 8][4] = {}, max[M][2], sum[M][2] = {};
    const float c = f.p.scale * att_log2e;
#pragma unroll
    for (int m = 0; m < M; m++)
        max[m][0] = max[m][1] = -INFINITY;
    cp_async_wait<0>();
    __syncthreads(); /* for `own` too, where there are no keys */

    for (; tile >= 0; tile--) {
        cp_async_wait<0>();
        __syncthreads(); /* K is there, and nobody reads the last V any more */
        att_load<P, S::D, S::N, S::THREADS>(v_tile, f.v, v_at, n_rows);
        cp_async_commit();
        float s[M][S::N / 8][4] = {};
        if (tile < none)
            att_times_rows<P, S::D>(s, q_lane, k_lane);
        if (tile >= whole || tile < far) {
            const int lane = (int)threadIdx.x % 32;
#pragma unroll
            for (int m = 0; m < M; m++)
                att_mask(s[m], f.p, own->span, own->at + row + m * 16 + lane / 4,
                         own->begin + tile * S::N + lane % 4 * 2);
        }
        cp_async_wait<0>();
        __syncthreads(); /* V is there, and nobody reads K any more */
        n_rows = S::N;
        k_at -= S::N * f.k.row_bytes;
        v_at -= S::N * f.v.row_bytes;
        if (tile > 0)
            att_load<P, S::D, S::N, S::THREADS>(k_tile, f.k, k_at, n_rows);
        cp_async_commit();
        if (tile >= none)
            continue;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                soften(s[m], o[m], h, c, max[m][h], sum[m][h]);
        att_times_columns<P, S::D>(o, s, v_lane);
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            finish<S>(f, own, head, m, h, o[m], max[m][h], sum[m][h]);
}

/* In the queue, with the list of tiles. */
template <class P, int D, int WARPS, int M, int N, int BLOCKS = 2>
static void att_forward_run(struct s2s_queue *queue, const struct att_forward *f)
{
    typedef forward_shape<P, D, WARPS, M, N, BLOCKS> S;
    const int64_t tiles = att_most_tiles(f->p.n_q, f->p.n_spans, S::QUERIES);
    att_plan_queries(queue, &f->p, &f->list, S::QUERIES, &f->o, f->lse);
    LAUNCH(queue, forward_kernel<S>, (unsigned)(tiles * f->p.n_heads), S::THREADS, S::SHARED_BYTES,
           *f);
}

#endif
