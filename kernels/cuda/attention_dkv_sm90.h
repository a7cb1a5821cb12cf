/*
 * Attention, gradients of keys and values, with what Hopper has beside its threads (ptx_sm90.h). A
 * block has a tile of keys of one kv head, a half of them each of two warpgroups, with their dk and
 * dv. A warp goes over all queries of its heads and spans that see them, and brings their tiles in
 * stages. Everything is transposed, so that P and dS go from product to product in registers:
 *   P^T = exp2(scale' K Q^T - lse'),  dV += P^T dO,  dS^T = P^T (V dO^T - delta),  dK += dS^T Q
 *
 * A box that is copied may reach past the queries of its span. Their rows are made 0, as 0 times
 * what is no number would be none.
 */
#ifndef S2S_KERNELS_CUDA_ATTENTION_DKV_SM90_H
#define S2S_KERNELS_CUDA_ATTENTION_DKV_SM90_H

#include "kernels/cuda/attention_bwd.h"
#include "kernels/cuda/attention_pairs.h"
#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/attention_tile_sm90.h"

/* Heads of up to D, tiles of N queries. */
template <int D_, int N_, int STAGES_> struct dkv_sm90_shape {
    enum { D = D_, N = N_, STAGES = STAGES_ };
    enum { GROUPS = 2, KEYS = 64 * GROUPS, THREADS = 128 * (GROUPS + 1) };
    enum { KEY_BYTES = KEYS * D * 2, TILE_BYTES = N * D * 2 };
};

template <class S> struct dkv_sm90_shared {
    char k[S::KEY_BYTES], v[S::KEY_BYTES], q[S::STAGES][S::TILE_BYTES];
    char d_o[S::STAGES][S::TILE_BYTES];
    float lse[S::STAGES][S::N], delta[S::STAGES][S::N];
    keys_step steps[S::STAGES];
    uint64_t keys_full, tail, full[S::STAGES], empty[S::STAGES];
};

struct dkv_sm90 {
    struct att_backward b;
    struct tensor_map q, k, v, d_o;
    unsigned n_kv; /* heads */
};

template <class S> static __device__ __forceinline__ void dkv_sm90_start(dkv_sm90_shared<S> *sh)
{
    if (shared_addr(sh) % SM90_EIGHT)
        __trap(); /* swizzles count from there */
    mbarrier_init(shared_addr(&sh->keys_full), 1);
    mbarrier_init(shared_addr(&sh->tail), 1);
    for (int s = 0; s < S::STAGES; s++) {
        mbarrier_init(shared_addr(&sh->full[s]), 1);
        mbarrier_init(shared_addr(&sh->empty[s]), S::GROUPS * 4);
    }
    mbarrier_fence();
}

/* ---- the warp that copies ---- */

/* Its way: queries i .. end of span s are to come, for the head. */
struct dkv_sm90_way {
    int s, head, i, end;
};

/* Where the next tile of queries is; without rows at the end. All lanes go the same way. */
template <class S>
static __device__ __forceinline__ keys_step dkv_sm90_next(const att_backward &b, att_work work,
                                                          int kv, dkv_sm90_way &way)
{
    const int first = b.p.groups[work.of], last = b.p.groups[work.of + 1];
    while (way.i >= way.end) {
        if (++way.s == last) {
            way.s = first;
            way.head++;
        }
        if (way.head == (kv + 1) * b.p.n_rep)
            return {};
        const s2s_span span = b.p.spans[way.s];
        att_seeing_queries(b.p.window, span, work.at - span.k0, S::KEYS, way.i, way.end);
    }
    const s2s_span span = b.p.spans[way.s];
    const keys_step step = {span.q0 + way.i,   way.end - way.i, way.head,  way.i,
                            work.at - span.k0, span.nk,         span.shift};
    way.i += S::N;
    return step;
}

/* By one lane: copies Q and dO of a step, which bar expects. */
template <class S>
static __device__ __forceinline__ void dkv_sm90_copy(const dkv_sm90 &a, dkv_sm90_shared<S> *sh,
                                                     int stage, int head, int row,
                                                     const uint64_t *bar)
{
    mbarrier_expect(shared_addr(bar), 2 * S::TILE_BYTES);
    sm90_copy<S::D>(sh->q[stage], &a.q, S::N, head, row, bar);
    sm90_copy<S::D>(sh->d_o[stage], &a.d_o, S::N, head, row, bar);
}

/* By one lane. */
template <class S>
static __device__ __forceinline__ void dkv_sm90_copy_keys(const dkv_sm90 &a, dkv_sm90_shared<S> *sh,
                                                          int kv, int row)
{
    mbarrier_expect(shared_addr(&sh->keys_full), 2 * S::KEY_BYTES);
    sm90_copy<S::D>(sh->k, &a.k, S::KEYS, kv, row, &sh->keys_full);
    sm90_copy<S::D>(sh->v, &a.v, S::KEYS, kv, row, &sh->keys_full);
}

/* By the warp. A step's numbers come while its stage is still in use. */
template <class S>
static __device__ __forceinline__ void dkv_sm90_produce(const dkv_sm90 &a, dkv_sm90_shared<S> *sh,
                                                        att_work work, int kv)
{
    const int lane = (int)threadIdx.x % 32;
    dkv_sm90_way way = {a.b.p.groups[work.of] - 1, kv * a.b.p.n_rep, 0, 0};
    uint32_t tails = 0;
    int stage = 0;
    for (uint32_t round = 0;; stage = stage + 1 < S::STAGES ? stage + 1 : 0, round += stage == 0) {
        const keys_step step = dkv_sm90_next<S>(a.b, work, kv, way);
        float lse[S::N / 32], delta[S::N / 32];
        const int64_t at = (int64_t)step.head * a.b.p.n_q + step.row + lane;
        /* zeros past the end are harmless, as dO is zero too */
#pragma unroll
        for (int i = 0; i < S::N / 32; i++) {
            const bool in = i * 32 + lane < step.n_rows;
            lse[i] = in ? a.b.lse[at + i * 32] : 0;
            delta[i] = in ? a.b.delta[at + i * 32] : 0;
        }
        if (round > 0)
            mbarrier_wait(shared_addr(&sh->empty[stage]), (round + 1) & 1);
        else if (stage == 0 && lane == 0)
            dkv_sm90_copy_keys(a, sh, kv, work.at);
#pragma unroll
        for (int i = 0; i < S::N / 32; i++) {
            sh->lse[stage][i * 32 + lane] = lse[i];
            sh->delta[stage][i * 32 + lane] = delta[i];
        }
        if (lane == 0)
            sh->steps[stage] = step;
        if (step.n_rows > 0 && step.n_rows < S::N) {
            if (lane == 0)
                dkv_sm90_copy(a, sh, stage, step.head, step.row, &sh->tail);
            mbarrier_wait(shared_addr(&sh->tail), tails++ & 1);
            sm90_clear<S::D>(sh->q[stage], S::N, step.n_rows);
            sm90_clear<S::D>(sh->d_o[stage], S::N, step.n_rows);
            fence_async();
        }
        __syncwarp();
        if (lane == 0 && step.n_rows >= S::N)
            dkv_sm90_copy(a, sh, stage, step.head, step.row, &sh->full[stage]);
        else if (lane == 0)
            mbarrier_arrive(shared_addr(&sh->full[stage]));
        if (step.n_rows == 0)
            return;
    }
}

/* ---- the warpgroups that multiply ---- */

/* The queries of a step's span that see its key j. */
static __device__ __forceinline__ att_range dkv_sm90_sight(const att_problem &p,
                                                           const keys_step *step, int j)
{
    if (j < 0 || j >= step->nk)
        return {0, 0};
    if (step->shift == S2S_SPAN_ALL)
        return {0, INT32_MAX};
    return {j - step->shift, p.window ? j - step->shift + p.window : INT32_MAX};
}

/* Scores of pairs that do not see each other become -inf. i: this lane's first query, j: its first
 * key. */
template <int N8>
static __device__ __forceinline__ void dkv_sm90_mask(float (&s)[N8][4], const att_problem &p,
                                                     const keys_step *step, int i, int j)
{
    const att_range r[2] = {dkv_sm90_sight(p, step, j), dkv_sm90_sight(p, step, j + 8)};
#pragma unroll
    for (int n = 0; n < N8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int query = i + n * 8 + e % 2;
            if (query < r[e / 2].begin || query >= r[e / 2].end)
                s[n][e] = -INFINITY;
        }
}

/* Scores of a step become P: exp2(c s - lse). */
template <int N8>
static __device__ __forceinline__ void dkv_sm90_soften(float (&s)[N8][4], const att_problem &p,
                                                       const keys_step *step, const float *lse)
{
    const int lane = (int)threadIdx.x % 32, key = step->j + (int)threadIdx.x / 32 * 16;
    if (sees(p, step, step->i, N8 * 8, key, 16) != 2)
        dkv_sm90_mask(s, p, step, step->i + lane % 4 * 2, key + lane / 4);
#pragma unroll
    for (int n = 0; n < N8; n++) {
        const float2 l = *(const float2 *)(lse + n * 8 + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = exp2_fast(s[n][e] * p.scale_log2 - (e % 2 ? l.y : l.x));
    }
}

/* P becomes dS = P (dP - delta). */
template <int N8>
static __device__ __forceinline__ void dkv_sm90_slope(float (&s)[N8][4], const float (&dp)[N8][4],
                                                      const float *delta)
{
#pragma unroll
    for (int n = 0; n < N8; n++) {
        const float2 d = *(const float2 *)(delta + n * 8 + (int)threadIdx.x % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] *= dp[n][e] - (e % 2 ? d.y : d.x);
    }
}

/* One tile of queries. */
template <class S>
static __device__ __forceinline__ void dkv_sm90_multiply(const att_problem &p,
                                                         dkv_sm90_shared<S> *sh, int stage,
                                                         float (&dk)[S::D / 8][4],
                                                         float (&dv)[S::D / 8][4])
{
    const int first = (int)threadIdx.x / 128 * 64;
    float s[S::N / 8][4], dp[S::N / 8][4];
    uint32_t probs[S::N / 16][4], slopes[S::N / 16][4];
    wgmma_fence(s);
    sm90_times_rows<S::D>(s, sh->k, S::KEYS, first, sh->q[stage]);
    wgmma_commit();
    wgmma_fence(dp);
    sm90_times_rows<S::D>(dp, sh->v, S::KEYS, first, sh->d_o[stage]);
    wgmma_commit();
    wgmma_wait<1>(s);
    dkv_sm90_soften(s, p, &sh->steps[stage], sh->lse[stage]);
    sm90_round(probs, s);
    wgmma_fence(dv, probs);
    sm90_times_columns(dv, probs, sh->d_o[stage]);
    wgmma_commit();
    wgmma_wait<1>(dp);
    dkv_sm90_slope(s, dp, sh->delta[stage]);
    sm90_round(slopes, s);
    wgmma_fence(dk, slopes);
    sm90_times_columns(dk, slopes, sh->q[stage]);
    wgmma_commit();
    wgmma_wait<0>(dk, dv, probs, slopes);
}

template <class S>
static __device__ __forceinline__ void dkv_sm90_consume(const att_problem &p,
                                                        dkv_sm90_shared<S> *sh,
                                                        float (&dk)[S::D / 8][4],
                                                        float (&dv)[S::D / 8][4])
{
    const int first = (int)threadIdx.x / 128 * 64;
    int stage = 0;
    mbarrier_wait(shared_addr(&sh->keys_full), 0);
    for (uint32_t round = 0;; stage = stage + 1 < S::STAGES ? stage + 1 : 0, round += stage == 0) {
        mbarrier_wait(shared_addr(&sh->full[stage]), round & 1);
        const keys_step *const step = &sh->steps[stage];
        if (step->n_rows == 0)
            return;
        if (sees(p, step, step->i, S::N, step->j + first, 64))
            dkv_sm90_multiply<S>(p, sh, stage, dk, dv);
        __syncwarp(); /* all lanes have read the step and its numbers */
        sm90_release(&sh->empty[stage]);
    }
}

/* The rows of one lane, keys before `end`. */
template <int N8>
static __device__ __forceinline__ void dkv_sm90_put(const att_target &to, int dim, int kv, int key,
                                                    int end, const float (&x)[N8][4], float scale)
{
    if (!to.mat.data)
        return;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int n = 0; n < N8; n++)
            if (key + 8 * h < end)
                att_put(to, key + 8 * h, kv, dim, n * 8 + (int)threadIdx.x % 4 * 2,
                        x[n][2 * h] * scale, x[n][2 * h + 1] * scale);
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    dkv_sm90_kernel(const __grid_constant__ struct dkv_sm90 a)
{
    typedef dkv_sm90_shared<S> room;
    SHARED(room, sh);
    const att_problem &p = a.b.p;
    if ((int)(blockIdx.x / a.n_kv) >= *a.b.keys.n)
        return;
    if (threadIdx.x == 0)
        dkv_sm90_start(sh);
    __syncthreads();
    if ((int)threadIdx.x / 128 == S::GROUPS) {
        registers_less<40>();
        if (threadIdx.x / 32 % 4 == 0)
            dkv_sm90_produce(a, sh, a.b.keys.work[blockIdx.x / a.n_kv], (int)(blockIdx.x % a.n_kv));
        return;
    }
    registers_more<232>();
    float dk[S::D / 8][4] = {}, dv[S::D / 8][4] = {};
    dkv_sm90_consume<S>(p, sh, dk, dv);
    const unsigned block = opaque(blockIdx.x); /* not kept meanwhile */
    const att_work work = a.b.keys.work[block / a.n_kv];
    const int kv = (int)(block % a.n_kv);
    int end = 0;
    for (int s = p.groups[work.of]; s < p.groups[work.of + 1]; s++)
        if (p.spans[s].nk > 0)
            end = max(end, p.spans[s].k0 + p.spans[s].nk);
    const int key = work.at + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    dkv_sm90_put(a.b.dk, p.dim, kv, key, end, dk, p.scale);
    dkv_sm90_put(a.b.dv, p.dim, kv, key, end, dv, 1);
}

/* In the queue, with the list of tiles. False: there are no such maps here. */
template <class S> static bool dkv_sm90_run(struct s2s_queue *queue, const struct att_backward *b)
{
    struct dkv_sm90 a = {*b, {}, {}, {}, {}, (unsigned)(b->p.n_heads / b->p.n_rep)};
    const int kv_heads = (int)a.n_kv;
    if (sm90_map(&a.q, &b->q, b->p.n_q, b->p.n_heads, b->p.dim, S::N) != 0 ||
        sm90_map(&a.d_o, &b->d_o, b->p.n_q, b->p.n_heads, b->p.dim, S::N) != 0 ||
        sm90_map(&a.k, &b->k, b->p.n_k, kv_heads, b->p.dim, S::KEYS) != 0 ||
        sm90_map(&a.v, &b->v, b->p.n_k, kv_heads, b->p.dim, S::KEYS) != 0)
        return false;
    const int64_t tiles = att_most_tiles(b->p.n_k, b->p.n_groups, S::KEYS);
    att_plan_keys(queue, &b->p, &b->keys, S::KEYS, &b->dk, &b->dv);
    LAUNCH(queue, dkv_sm90_kernel<S>, (unsigned)(tiles * kv_heads), S::THREADS,
           sizeof(dkv_sm90_shared<S>), a);
    return true;
}

#endif
