/*
 * Attention, gradient of queries, with what Hopper has beside its threads (ptx_sm90.h): a block has
 * a tile of queries of one head, a half of them each of two warpgroups, and their dq. A warp brings
 * Q and dO once, and tiles of K and V in stages, from the last one to the first.
 *   P = exp2(scale' Q K^T - lse'),  dS = P (dO V^T - delta),  dQ = scale dS K
 *
 * A box that is copied may reach past the keys of its span. Scores there are masked; keys and
 * values there are made 0, as 0 times what is no number would be none.
 */
#ifndef S2S_KERNELS_CUDA_ATTENTION_DQ_SM90_H
#define S2S_KERNELS_CUDA_ATTENTION_DQ_SM90_H

#include "kernels/cuda/attention_bwd.h"
#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/attention_tile_sm90.h"

/* Heads of up to D, tiles of N keys. */
template <int D_, int N_, int STAGES_> struct dq_sm90_shape {
    enum { D = D_, N = N_, STAGES = STAGES_ };
    enum { GROUPS = 2, QUERIES = 64 * GROUPS, THREADS = 128 * (GROUPS + 1) };
    enum { Q_BYTES = QUERIES * D * 2, TILE_BYTES = N * D * 2 };
};

template <class S> struct dq_sm90_shared {
    char q[S::Q_BYTES], d_o[S::Q_BYTES], k[S::STAGES][S::TILE_BYTES], v[S::STAGES][S::TILE_BYTES];
    uint64_t q_full, tail, full[S::STAGES], empty[S::STAGES];
};

struct dq_sm90 {
    struct att_backward b;
    struct tensor_map q, k, v, d_o;
};

template <class S> static __device__ __forceinline__ void dq_sm90_start(dq_sm90_shared<S> *sh)
{
    if (shared_addr(sh) % SM90_EIGHT)
        __trap(); /* swizzles count from there */
    mbarrier_init(shared_addr(&sh->q_full), 1);
    mbarrier_init(shared_addr(&sh->tail), 1);
    for (int s = 0; s < S::STAGES; s++) {
        mbarrier_init(shared_addr(&sh->full[s]), 1);
        mbarrier_init(shared_addr(&sh->empty[s]), S::GROUPS * 4);
    }
    mbarrier_fence();
}

/* ---- the warp that copies ---- */

/* By one lane: step i's keys and values. */
template <class S>
static __device__ __forceinline__ void dq_sm90_copy(const dq_sm90 &a, dq_sm90_shared<S> *sh,
                                                    const sm90_work &w, int i, const uint64_t *bar)
{
    const int kv = w.head / a.b.p.n_rep, stage = i % S::STAGES;
    const int row = w.span.k0 + w.begin + (w.n_tiles - 1 - i) * S::N;
    mbarrier_expect(shared_addr(bar), 2 * S::TILE_BYTES);
    sm90_copy<S::D>(sh->k[stage], &a.k, S::N, kv, row, bar);
    sm90_copy<S::D>(sh->v[stage], &a.v, S::N, kv, row, bar);
}

/* By the warp; after the first step by one lane, alone, as one that is two phases late would take a
 * wait for one to come. */
template <class S>
static __device__ __forceinline__ void dq_sm90_produce(const dq_sm90 &a, dq_sm90_shared<S> *sh,
                                                       const sm90_work &w)
{
    const int lane = (int)threadIdx.x % 32;
    const int there = w.span.nk - w.begin - (w.n_tiles - 1) * S::N;
    if (w.n_tiles == 0)
        return;
    if (lane == 0) {
        mbarrier_expect(shared_addr(&sh->q_full), 2 * S::Q_BYTES);
        sm90_copy<S::D>(sh->q, &a.q, S::QUERIES, w.head, w.span.q0 + w.at, &sh->q_full);
        sm90_copy<S::D>(sh->d_o, &a.d_o, S::QUERIES, w.head, w.span.q0 + w.at, &sh->q_full);
        dq_sm90_copy(a, sh, w, 0, there < S::N ? &sh->tail : &sh->full[0]);
    }
    if (there < S::N) {
        mbarrier_wait(shared_addr(&sh->tail), 0);
        sm90_clear<S::D>(sh->k[0], S::N, there);
        sm90_clear<S::D>(sh->v[0], S::N, there);
        fence_async();
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(shared_addr(&sh->full[0]));
    }
    for (int i = 1; lane == 0 && i < w.n_tiles; i++) {
        if (i >= S::STAGES)
            mbarrier_wait(shared_addr(&sh->empty[i % S::STAGES]),
                          (uint32_t)(i / S::STAGES + 1) & 1);
        dq_sm90_copy(a, sh, w, i, &sh->full[i % S::STAGES]);
    }
}

/* ---- the warpgroups that multiply ---- */

/* What a thread knows of its two rows. */
struct dq_sm90_rows {
    float lse[2], delta[2];
    sm90_sight sight;
};

static __device__ __forceinline__ dq_sm90_rows dq_sm90_rows_of(const att_backward &b,
                                                               const sm90_work &w, int keys)
{
    dq_sm90_rows rows = {{}, {}, sm90_sight_of(b.p, w, keys)};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = rows.sight.first + 8 * h;
        const int64_t at = (int64_t)w.head * b.p.n_q + w.span.q0 + i;
        rows.lse[h] = i < w.span.nq ? b.lse[at] : INFINITY;
        rows.delta[h] = i < w.span.nq ? b.delta[at] : 0;
    }
    return rows;
}

template <class S>
static __device__ __forceinline__ void dq_sm90_consume(const att_problem &p, dq_sm90_shared<S> *sh,
                                                       const sm90_work &w, const dq_sm90_rows &rows,
                                                       float (&dq)[S::D / 8][4])
{
    const int first = (int)threadIdx.x / 128 * 64;
    float s[S::N / 8][4], dp[S::N / 8][4];
    uint32_t slopes[S::N / 16][4];
    mbarrier_wait(shared_addr(&sh->q_full), 0);
    for (int i = 0; i < w.n_tiles; i++) {
        const int stage = i % S::STAGES;
        mbarrier_wait(shared_addr(&sh->full[stage]), (uint32_t)(i / S::STAGES) & 1);
        wgmma_fence(s);
        sm90_times_rows<S::D>(s, sh->q, S::QUERIES, first, sh->k[stage]);
        wgmma_commit();
        wgmma_fence(dp);
        sm90_times_rows<S::D>(dp, sh->d_o, S::QUERIES, first, sh->v[stage]);
        wgmma_commit();
        wgmma_wait<1>(s);
        sm90_mask(s, p, w, rows.sight, i);
#pragma unroll
        for (int n = 0; n < S::N / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = exp2_fast(s[n][e] * p.scale_log2 - rows.lse[e / 2]);
        wgmma_wait<0>(dp);
#pragma unroll
        for (int n = 0; n < S::N / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] *= dp[n][e] - rows.delta[e / 2];
        sm90_round(slopes, s);
        wgmma_fence(dq, slopes);
        sm90_times_columns(dq, slopes, sh->k[stage]);
        wgmma_commit();
        wgmma_wait<0>(dq, slopes);
        sm90_release(&sh->empty[stage]);
    }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    dq_sm90_kernel(const __grid_constant__ struct dq_sm90 a)
{
    typedef dq_sm90_shared<S> room;
    SHARED(room, sh);
    const att_problem &p = a.b.p;
    const int rank = (int)(blockIdx.x / (unsigned)p.n_heads);
    if (rank >= *a.b.queries.n)
        return;
    const sm90_work w = sm90_work_of(p, a.b.queries.work[rank],
                                     (int)(blockIdx.x % (unsigned)p.n_heads), S::QUERIES, S::N);
    if (threadIdx.x == 0)
        dq_sm90_start(sh);
    __syncthreads();
    if ((int)threadIdx.x / 128 == S::GROUPS) {
        registers_less<24>();
        if (threadIdx.x / 32 % 4 == 0)
            dq_sm90_produce(a, sh, w);
        return;
    }
    registers_more<240>();
    const dq_sm90_rows rows = dq_sm90_rows_of(a.b, w, S::N);
    float dq[S::D / 8][4] = {};
    if (w.n_tiles > 0)
        dq_sm90_consume<S>(p, sh, w, rows, dq);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = rows.sight.first + 8 * h;
        if (i >= w.span.nq)
            continue;
#pragma unroll
        for (int n = 0; n < S::D / 8; n++)
            att_put(a.b.dq, w.span.q0 + i, w.head, p.dim, n * 8 + (int)threadIdx.x % 4 * 2,
                    dq[n][2 * h] * p.scale, dq[n][2 * h + 1] * p.scale);
    }
}

/* In the queue, with the list of tiles. False: there are no such maps here. */
template <class S> static bool dq_sm90_run(struct s2s_queue *queue, const struct att_backward *b)
{
    struct dq_sm90 a = {*b, {}, {}, {}, {}};
    const int kv_heads = b->p.n_heads / b->p.n_rep;
    if (sm90_map(&a.q, &b->q, b->p.n_q, b->p.n_heads, b->p.dim, S::QUERIES) != 0 ||
        sm90_map(&a.d_o, &b->d_o, b->p.n_q, b->p.n_heads, b->p.dim, S::QUERIES) != 0 ||
        sm90_map(&a.k, &b->k, b->p.n_k, kv_heads, b->p.dim, S::N) != 0 ||
        sm90_map(&a.v, &b->v, b->p.n_k, kv_heads, b->p.dim, S::N) != 0)
        return false;
    const int64_t tiles = att_most_tiles(b->p.n_q, b->p.n_spans, S::QUERIES);
    att_plan_queries(queue, &b->p, &b->queries, S::QUERIES, &b->dq, NULL);
    LAUNCH(queue, dq_sm90_kernel<S>, (unsigned)(tiles * b->p.n_heads), S::THREADS,
           sizeof(dq_sm90_shared<S>), a);
    return true;
}

#endif
