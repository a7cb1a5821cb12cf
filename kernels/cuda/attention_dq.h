/*
 * Attention, gradient of queries: a block has a tile of queries of one head, their dO and dq, and
 * goes over the keys that they see, of which the next tile comes while this one is computed.
 *   P = exp2(scale' Q K^T - lse'),  dS = P (D (dO V^T) - delta),  dQ = scale dS K
 * with D what dropout multiplies P with, or 1.
 */
#ifndef S2S_KERNELS_CUDA_ATTENTION_DQ_H
#define S2S_KERNELS_CUDA_ATTENTION_DQ_H

#include "kernels/cuda/attention_bwd.h"

/* WARPS of 16 M queries each, tiles of N keys, of which C at a time; BLOCKS of a multiprocessor, as
 * far as registers go. */
template <class P_, int D_, int WARPS_, int M_, int N_, int C_, int BLOCKS_, bool DROPS_>
struct queries_shape {
    typedef P_ P;
    static const bool DROPS = DROPS_;
    enum { D = D_, WARPS = WARPS_, M = M_, N = N_, C = C_, BLOCKS = BLOCKS_ };
    enum { THREADS = WARPS * 32, QUERIES = WARPS * M * 16, ROW = att_shape<P, D>::ROW };
    enum { STAGE = 2 * N * ROW, NUMBERS = QUERIES * (int)sizeof(float2) };
    enum { SHARED_BYTES = 2 * QUERIES * ROW + 2 * STAGE + NUMBERS + 128 };
    static_assert(WARPS <= 4, "room for what is of each warp");
    static_assert(SHARED_BYTES <= 99 << 10, "the shared memory of a block");
};

/* Stands in shared memory, as accumulators fill the registers. */
struct queries_block {
    s2s_span span;
    int at, begin;     /* its first query and the first key that they see, of the span's */
    int n_tiles, head; /* tiles of keys that they see */
    const char *k, *v; /* rows of that key */
    /* Of each warp: tiles of keys from `whole` on or before `far` have keys that some row of it
     * does not see, keys from `none` on are seen by no row of it. */
    struct {
        int whole, far, none;
    } warps[4];
};

/* Begins to copy tile `tile` of the keys that the block sees, and of their values. */
template <class S>
static __device__ __forceinline__ void load_keys(char *stage, const att_backward &b,
                                                 const queries_block *own, int tile)
{
    typedef typename S::P P;
    const int at = tile * S::N, left = own->span.nk - own->begin - at;
    att_load<P, S::D, S::N, S::THREADS>(stage, b.k, own->k + (int64_t)at * b.k.row_bytes, left);
    att_load<P, S::D, S::N, S::THREADS>(stage + S::N * S::ROW, b.v,
                                        own->v + (int64_t)at * b.v.row_bytes, left);
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) queries_kernel(const att_backward b)
{
    typedef typename S::P P;
    typedef att_shape<P, S::D> Shape;
    enum { M = S::M, C = S::C };
    SHARED(char, sh);
    char *const q_tile = sh, *const o_tile = sh + S::QUERIES * S::ROW;
    char *const stages = o_tile + S::QUERIES * S::ROW;
    float2 *const numbers = (float2 *)(stages + 2 * S::STAGE); /* lse and delta of each query */
    queries_block *const own = (queries_block *)((char *)numbers + S::NUMBERS);
    const int head = (int)(blockIdx.x % (unsigned)b.p.n_heads);
    const int rank = (int)(blockIdx.x / (unsigned)b.p.n_heads);
    if (rank >= *b.queries.n)
        return;
    const int row = (int)threadIdx.x / 32 * M * 16;
    const att_work work = b.queries.work[rank];
    const s2s_span span = b.p.spans[work.of];
    int begin, end;
    att_seen_keys(b.p, span, work.at, min((int)S::QUERIES, span.nq - work.at), begin, end);
    const int n_tiles = end > begin ? (end - begin + S::N - 1) / S::N : 0;
    if (threadIdx.x % 32 == 0) {
        const int warp = (int)threadIdx.x / 32;
        const att_range first = att_keys(b.p, span, work.at + row),
                        last = att_keys(b.p, span, work.at + row + M * 16 - 1);
        if (warp == 0) {
            own->span = span;
            own->at = work.at;
            own->begin = begin;
            own->n_tiles = n_tiles;
            own->head = head;
            own->k = att_row(b.k, span.k0 + begin, head / b.p.n_rep);
            own->v = att_row(b.v, span.k0 + begin, head / b.p.n_rep);
        }
        own->warps[warp].whole = max(first.end - begin, 0) / S::N;
        own->warps[warp].far = (max(last.begin - begin, 0) + S::N - 1) / S::N;
        own->warps[warp].none = last.end - begin;
    }
    att_load<P, S::D, S::QUERIES, S::THREADS>(q_tile, b.q, att_row(b.q, span.q0 + work.at, head),
                                              span.nq - work.at);
    att_load<P, S::D, S::QUERIES, S::THREADS>(
        o_tile, b.d_o, att_row(b.d_o, span.q0 + work.at, head), span.nq - work.at);
    __syncthreads(); /* for `own` */
    if (n_tiles > 0)
        load_keys<S>(stages, b, own, 0);
    cp_async_commit();

    for (int t = (int)threadIdx.x; t < S::QUERIES; t += S::THREADS) {
        const int64_t at = (int64_t)head * b.p.n_q + span.q0 + work.at + t;
        const bool in = work.at + t < span.nq;
        numbers[t] = make_float2(in ? b.lse[at] : INFINITY, in ? b.delta[at] : 0);
    }
    float dq[M][S::D / 8][4] = {};
    const att_lane q_lane = att_lane_tall<Shape>(shared_addr(q_tile + row * S::ROW));
    const att_lane o_lane = att_lane_tall<Shape>(shared_addr(o_tile + row * S::ROW));
    for (int tile = 0; tile < own->n_tiles; tile++) {
        char *const k_tile = stages + tile % 2 * S::STAGE, *const v_tile = k_tile + S::N * S::ROW;
        cp_async_wait<0>();
        __syncthreads(); /* this tile is there, and nobody reads the one before any more */
        if (tile + 1 < own->n_tiles)
            load_keys<S>(stages + (tile + 1) % 2 * S::STAGE, b, own, tile + 1);
        cp_async_commit();
        const int t = (int)opaque(threadIdx.x), warp = t / 32; /* not kept from tile to tile */
        const int i = warp * M * 16 + t % 32 / 4;
        const att_lane k_lane = att_lane_wide<Shape>(shared_addr(k_tile));
        const att_lane v_lane = att_lane_wide<Shape>(shared_addr(v_tile));
#pragma unroll 1
        for (int part = 0; part < S::N; part += C) {
            if (tile * S::N + part >= own->warps[warp].none)
                break;
            float s[M][C / 8][4] = {}, dp[M][C / 8][4] = {};
            att_times_rows<P, S::D>(s, att_anew(q_lane), att_below<Shape>(k_lane, part));
            att_times_rows<P, S::D>(dp, att_anew(o_lane), att_below<Shape>(v_lane, part));
            if constexpr (S::DROPS)
#pragma unroll
                for (int m = 0; m < M; m++)
                    att_drop(dp[m], b.p, own->span, own->head, own->at + i + m * 16,
                             own->begin + tile * S::N + part + t % 4 * 2);
            if (tile >= own->warps[warp].whole || tile < own->warps[warp].far)
#pragma unroll
                for (int m = 0; m < M; m++)
                    att_mask(s[m], b.p, own->span, own->at + i + m * 16,
                             own->begin + tile * S::N + part + t % 4 * 2);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float2 of = numbers[i + m * 16 + h * 8];
#pragma unroll
                    for (int n = 0; n < C / 8; n++)
#pragma unroll
                        for (int e = 2 * h; e < 2 * h + 2; e++)
                            s[m][n][e] = exp2_fast(s[m][n][e] * b.p.scale_log2 - of.x) *
                                         (dp[m][n][e] - of.y);
                }
            att_times_columns<P, S::D>(dq, s,
                                       att_below<Shape>(att_across<P, S::D>::of(k_tile), part));
        }
    }
    cp_async_wait<0>(); /* of Q, where there were no keys */
    const int t = (int)opaque(threadIdx.x), first = own->at + t / 32 * M * 16 + t % 32 / 4;
    const int n_rows = own->span.nq, q0 = own->span.q0, to_head = own->head;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = first + m * 16 + h * 8;
            if (i >= n_rows)
                continue;
#pragma unroll
            for (int n = 0; n < S::D / 8; n++)
                att_put(b.dq, q0 + i, to_head, b.p.dim, n * 8 + t % 4 * 2,
                        dq[m][n][2 * h] * b.p.scale, dq[m][n][2 * h + 1] * b.p.scale);
        }
}

template <class P, int D, int WARPS, int M, int N, int C, int BLOCKS = 2, bool DROPS = false>
static void att_queries_run(struct s2s_queue *queue, const struct att_backward *b)
{
    typedef queries_shape<P, D, WARPS, M, N, C, BLOCKS, DROPS> S;
    const int64_t tiles = att_most_tiles(b->p.n_q, b->p.n_spans, S::QUERIES);
    att_plan_queries(queue, &b->p, &b->queries, S::QUERIES, &b->dq, NULL);
    LAUNCH(queue, queries_kernel<S>, (unsigned)(tiles * b->p.n_heads), S::THREADS, S::SHARED_BYTES,
           *b);
}

#endif
