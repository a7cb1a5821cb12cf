/*
 * Attention, gradient of queries: a block has a tile of queries of one head, their dO and dq, and
 * goes over the keys that they see, of which the next tile comes while this one is computed:
 *   P = exp2(scale' Q K^T - lse'),  dS = P (dO V^T - delta),  dQ = scale dS K
 */
#ifndef S2S_KERNELS_CUDA_ATTENTION_DQ_H
#define S2S_KERNELS_CUDA_ATTENTION_DQ_H

#include "kernels/cuda/attention_bwd.h"

/* WARPS of 16 M queries each, tiles of N keys, of which C at a time; BLOCKS of a multiprocessor, as
 * far as registers go. */
template <class P_, int D_, int WARPS_, int M_, int N_, int C_, int BLOCKS_> struct queries_shape {
    typedef P_ P;
    enum { D = D_, WARPS = WARPS_, M = M_, N = N_, C = C_, BLOCKS = BLOCKS_ };
    enum { THREADS = WARPS * 32, QUERIES = WARPS * M * 16, ROW = att_shape<P, D>::ROW };
    enum { STAGE = 2 * N * ROW, SHARED_BYTES = 2 * QUERIES * ROW + 2 * STAGE + 64 };
    static_assert(SHARED_BYTES <= 99 << 10, "the shared memory of a block");
};

/* Stands in shared memory, as accumulators fill the registers. */
struct queries_block {
    s2s_span span;
    int at, begin; /* its first query and the first key that they see, of the span's */
};

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) queries_kernel(const att_backward b)
{
    typedef typename S::P P;
    typedef att_shape<P, S::D> Shape;
    enum { M = S::M, C = S::C };
    SHARED(char, sh);
    char *const q_tile = sh, *const o_tile = sh + S::QUERIES * S::ROW;
    char *const stages = o_tile + S::QUERIES * S::ROW;
    queries_block *const own = (queries_block *)(stages + 2 * S::STAGE);
    const int head = (int)(blockIdx.x % (unsigned)b.p.n_heads);
    const int rank = (int)(blockIdx.x / (unsigned)b.p.n_heads);
    if (rank >= *b.queries.n)
        return;
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * M * 16;
    const att_work work = b.queries.work[rank];
    const s2s_span span = b.p.spans[work.of];
    int begin, end;
    att_seen_keys(b.p, span, work.at, min((int)S::QUERIES, span.nq - work.at), begin, end);
    const int n_tiles = end > begin ? (end - begin + S::N - 1) / S::N : 0;
    /* tiles from `whole` on or before `far` have keys that some row of the warp does not see; keys
     * from `none` on are seen by no row of it */
    const int whole = max(att_keys(b.p, span, work.at + row).end - begin, 0) / S::N;
    const int far =
        (max(att_keys(b.p, span, work.at + row + M * 16 - 1).begin - begin, 0) + S::N - 1) / S::N;
    const int none = att_keys(b.p, span, work.at + row + M * 16 - 1).end - begin;
    int left = span.nk - begin; /* keys from the next tile on */
    const char *k_at = att_row(b.k, span.k0 + begin, head / b.p.n_rep);
    const char *v_at = att_row(b.v, span.k0 + begin, head / b.p.n_rep);
    if (threadIdx.x == 0)
        *own = {span, work.at, begin};
    att_load<P, S::D, S::QUERIES, S::THREADS>(q_tile, b.q, att_row(b.q, span.q0 + work.at, head),
                                              span.nq - work.at);
    att_load<P, S::D, S::QUERIES, S::THREADS>(
        o_tile, b.d_o, att_row(b.d_o, span.q0 + work.at, head), span.nq - work.at);
    if (n_tiles > 0) {
        att_load<P, S::D, S::N, S::THREADS>(stages, b.k, k_at, left);
        att_load<P, S::D, S::N, S::THREADS>(stages + S::N * S::ROW, b.v, v_at, left);
    }
    cp_async_commit();

    float lse[M][2], delta[M][2], dq[M][S::D / 8][4] = {};
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = work.at + row + m * 16 + h * 8 + lane / 4;
            const int64_t at = (int64_t)head * b.p.n_q + span.q0 + i;
            lse[m][h] = i < span.nq ? b.lse[at] : INFINITY;
            delta[m][h] = i < span.nq ? b.delta[at] : 0;
        }
    const float c = b.p.scale * att_log2e;
    const att_lane q_lane = att_lane_tall<Shape>(shared_addr(q_tile + row * S::ROW));
    const att_lane o_lane = att_lane_tall<Shape>(shared_addr(o_tile + row * S::ROW));
    for (int tile = 0; tile < n_tiles; tile++) {
        char *const k_tile = stages + tile % 2 * S::STAGE, *const v_tile = k_tile + S::N * S::ROW;
        cp_async_wait<0>();
        __syncthreads(); /* this tile is there, and nobody reads the one before any more */
        left -= S::N;
        k_at += S::N * b.k.row_bytes;
        v_at += S::N * b.v.row_bytes;
        if (tile + 1 < n_tiles) {
            char *const next = stages + (tile + 1) % 2 * S::STAGE;
            att_load<P, S::D, S::N, S::THREADS>(next, b.k, k_at, left);
            att_load<P, S::D, S::N, S::THREADS>(next + S::N * S::ROW, b.v, v_at, left);
        }
        cp_async_commit();
        const att_lane k_lane = att_lane_wide<Shape>(shared_addr(k_tile));
        const att_lane v_lane = att_lane_wide<Shape>(shared_addr(v_tile));
#pragma unroll
        for (int part = 0; part < S::N; part += C) {
            if (tile * S::N + part >= none)
                break;
            float s[M][C / 8][4] = {}, dp[M][C / 8][4] = {};
            att_times_rows<P, S::D>(s, q_lane, att_below<Shape>(k_lane, part));
            att_times_rows<P, S::D>(dp, o_lane, att_below<Shape>(v_lane, part));
            if (tile >= whole || tile < far)
#pragma unroll
                for (int m = 0; m < M; m++)
                    att_mask(s[m], b.p, own->span, own->at + row + m * 16 + lane / 4,
                             own->begin + tile * S::N + part + lane % 4 * 2);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < C / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[m][n][e] = exp2_fast(s[m][n][e] * c - lse[m][e / 2]) *
                                     (dp[m][n][e] - delta[m][e / 2]);
            att_times_columns<P, S::D>(dq, s,
                                       att_below<Shape>(att_across<P, S::D>::of(k_tile), part));
        }
    }
    if (n_tiles == 0)
        __syncthreads(); /* for `own` */
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = own->at + row + m * 16 + h * 8 + lane / 4;
            if (i >= own->span.nq)
                continue;
#pragma unroll
            for (int n = 0; n < S::D / 8; n++)
                att_put(b.dq, own->span.q0 + i, head, b.p.dim, n * 8 + lane % 4 * 2,
                        dq[m][n][2 * h] * b.p.scale, dq[m][n][2 * h + 1] * b.p.scale);
        }
}

template <class P, int D, int WARPS, int M, int N, int C, int BLOCKS = 2>
static void att_queries_run(struct s2s_queue *queue, const struct att_backward *b)
{
    typedef queries_shape<P, D, WARPS, M, N, C, BLOCKS> S;
    const int64_t tiles = att_most_tiles(b->p.n_q, b->p.n_spans, S::QUERIES);
    att_plan_queries(queue, &b->p, &b->queries, S::QUERIES, &b->dq, NULL);
    LAUNCH(queue, queries_kernel<S>, (unsigned)(tiles * b->p.n_heads), S::THREADS, S::SHARED_BYTES,
           *b);
}

#endif
