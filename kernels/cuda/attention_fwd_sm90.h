/*
 * Attention, forward, with what Hopper has beside its threads (ptx_sm90.h; Shah et al. 2024,
 * FlashAttention-3): a block has a tile of queries of one head. One warp brings Q once and tiles of
 * K and V in stages; two warpgroups have half of the queries each, multiply, and take turns, so
 * that one multiplies while the other is at its softmax. Each begins Q K^T of the next tile
 * before P V of this one. Tiles go from the last one to the first.
 *
 * A box that is copied may reach past the keys of its span. Scores there are masked; values there
 * are made 0, as 0 times what is no number would be none.
 */
#ifndef S2S_KERNELS_CUDA_ATTENTION_FWD_SM90_H
#define S2S_KERNELS_CUDA_ATTENTION_FWD_SM90_H

#include "kernels/cuda/attention_fwd.h"
#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/attention_tile_sm90.h"

/* Heads of up to D, tiles of N keys. */
template <int D_, int N_, int STAGES_> struct forward_sm90_shape {
    enum { D = D_, N = N_, STAGES = STAGES_ };
    enum { GROUPS = 2, QUERIES = 64 * GROUPS, THREADS = 128 * (GROUPS + 1) };
    enum { Q_BYTES = QUERIES * D * 2, TILE_BYTES = N * D * 2 };
};

template <class S> struct forward_sm90_shared {
    char q[S::Q_BYTES], k[S::STAGES][S::TILE_BYTES], v[S::STAGES][S::TILE_BYTES];
    uint64_t q_full, k_full[S::STAGES], v_full[S::STAGES], k_empty[S::STAGES], v_empty[S::STAGES];
    uint64_t tail;
};

struct forward_sm90 {
    struct att_forward f;
    struct tensor_map q, k, v;
};

template <class S> static __device__ __forceinline__ void sm90_start(forward_sm90_shared<S> *sh)
{
    if (shared_addr(sh) % SM90_EIGHT)
        __trap(); /* swizzles count from there */
    mbarrier_init(shared_addr(&sh->q_full), 1);
    mbarrier_init(shared_addr(&sh->tail), 1);
    for (int s = 0; s < S::STAGES; s++) {
        mbarrier_init(shared_addr(&sh->k_full[s]), 1);
        mbarrier_init(shared_addr(&sh->v_full[s]), 1);
        mbarrier_init(shared_addr(&sh->k_empty[s]), S::GROUPS * 4);
        mbarrier_init(shared_addr(&sh->v_empty[s]), S::GROUPS * 4);
    }
    mbarrier_fence();
}

/* ---- the warp that copies ---- */

/* By one lane: expects and brings a tile of `rows` rows. */
template <class S>
static __device__ __forceinline__ void sm90_bring(const char *to, const tensor_map *map, int rows,
                                                  int head, int row, const uint64_t *bar)
{
    mbarrier_expect(shared_addr(bar), (uint32_t)(rows * S::D * 2));
    sm90_copy<S::D>(to, map, rows, head, row, bar);
}

/* By the warp: the first tile of values, whose rows from `there` on are made 0. */
template <class S>
static __device__ __forceinline__ void sm90_bring_tail(const forward_sm90 &a,
                                                       forward_sm90_shared<S> *sh, int kv, int row,
                                                       int there)
{
    const int lane = (int)threadIdx.x % 32;
    if (lane == 0)
        sm90_bring<S>(sh->v[0], &a.v, S::N, kv, row, &sh->tail);
    mbarrier_wait(shared_addr(&sh->tail), 0);
    sm90_clear<S::D>(sh->v[0], S::N, there);
    fence_async();
    __syncwarp();
    if (lane == 0)
        mbarrier_arrive(shared_addr(&sh->v_full[0]));
}

/* By one lane, alone, as one that is two phases late would take a wait for one to come: step i of
 * the way, which brings K of tile i, as they are gone over, and V of the one before. */
template <class S>
static __device__ __forceinline__ void sm90_step(const forward_sm90 &a, forward_sm90_shared<S> *sh,
                                                 const sm90_work &w, int i, bool with_v)
{
    const int kv = w.head / a.f.p.n_rep, row = w.span.k0 + w.begin + (w.n_tiles - i) * S::N;
    const int k_at = i % S::STAGES, v_at = (i + S::STAGES - 1) % S::STAGES;
    if (i < w.n_tiles) {
        if (i >= S::STAGES)
            mbarrier_wait(shared_addr(&sh->k_empty[k_at]), (uint32_t)(i / S::STAGES + 1) & 1);
        sm90_bring<S>(sh->k[k_at], &a.k, S::N, kv, row - S::N, &sh->k_full[k_at]);
    }
    if (!with_v)
        return;
    if (i > S::STAGES)
        mbarrier_wait(shared_addr(&sh->v_empty[v_at]), (uint32_t)((i - 1) / S::STAGES + 1) & 1);
    sm90_bring<S>(sh->v[v_at], &a.v, S::N, kv, row, &sh->v_full[v_at]);
}

/* By the warp. */
template <class S>
static __device__ __forceinline__ void sm90_produce(const forward_sm90 &a,
                                                    forward_sm90_shared<S> *sh, const sm90_work &w)
{
    const int lane = (int)threadIdx.x % 32, last = (w.n_tiles - 1) * S::N; /* of the keys seen */
    const int there = w.span.nk - w.begin - last;
    if (w.n_tiles == 0)
        return;
    if (lane == 0) {
        sm90_bring<S>(sh->q, &a.q, S::QUERIES, w.head, w.span.q0 + w.at, &sh->q_full);
        sm90_step(a, sh, w, 0, false);
        sm90_step(a, sh, w, 1, there >= S::N);
    }
    if (there < S::N)
        sm90_bring_tail(a, sh, w.head / a.f.p.n_rep, w.span.k0 + w.begin + last, there);
    for (int i = 2; lane == 0 && i <= w.n_tiles; i++)
        sm90_step(a, sh, w, i, true);
}

/* ---- the warpgroups that multiply ---- */

/* Begins s = Q K^T with step i's keys, when they are there. */
template <class S>
static __device__ __forceinline__ void sm90_scores(float (&s)[S::N / 8][4],
                                                   forward_sm90_shared<S> *sh, int group, int i)
{
    mbarrier_wait(shared_addr(&sh->k_full[i % S::STAGES]), (uint32_t)(i / S::STAGES) & 1);
    wgmma_fence(s);
    sm90_times_rows<S::D>(s, sh->q, S::QUERIES, group * 64, sh->k[i % S::STAGES]);
    wgmma_commit();
}

/* Begins o += P V with step i's values, when they are there. */
template <class S>
static __device__ __forceinline__ void sm90_values(float (&o)[S::D / 8][4],
                                                   uint32_t (&p)[S::N / 16][4],
                                                   forward_sm90_shared<S> *sh, int i)
{
    mbarrier_wait(shared_addr(&sh->v_full[i % S::STAGES]), (uint32_t)(i / S::STAGES) & 1);
    wgmma_fence(o, p);
    sm90_times_columns(o, p, sh->v[i % S::STAGES]);
    wgmma_commit();
}

/* What a thread knows of its two rows. */
struct sm90_rows {
    float max[2], sum[2];
    sm90_sight sight;
};

/* Scores of step i become exp2(c s - max); what came before is to shrink by `keep`. */
template <class S>
static __device__ __forceinline__ void sm90_soften(float (&s)[S::N / 8][4], const att_problem &p,
                                                   const sm90_work &w, sm90_rows &rows,
                                                   float (&keep)[2], int i)
{
    sm90_mask(s, p, w, rows.sight, i);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float off, more = 0;
        raise(s, h, p.scale_log2, rows.max[h], off, keep[h]);
#pragma unroll
        for (int n = 0; n < S::N / 8; n++)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) {
                s[n][e] = exp2_fast(s[n][e] * p.scale_log2 - off);
                more += s[n][e];
            }
        rows.sum[h] = rows.sum[h] * keep[h] + more;
    }
}

/* Of the two warpgroups, the one whose turn it is multiplies: 0 begins. */
static __device__ __forceinline__ void sm90_await_turn(int group)
{
    barrier_sync(1 + group, 256);
}

static __device__ __forceinline__ void sm90_give_turn(int group)
{
    barrier_arrive(2 - group, 256);
}

template <class S>
static __device__ __forceinline__ void sm90_consume(const att_problem &p,
                                                    forward_sm90_shared<S> *sh, const sm90_work &w,
                                                    sm90_rows &rows, float (&o)[S::D / 8][4])
{
    const int group = (int)threadIdx.x / 128;
    float s[S::N / 8][4] = {}, keep[2];
    uint32_t probs[S::N / 16][4];
    mbarrier_wait(shared_addr(&sh->q_full), 0);
    sm90_scores<S>(s, sh, group, 0);
    wgmma_wait<0>(s);
    sm90_release(&sh->k_empty[0]);
    sm90_soften<S>(s, p, w, rows, keep, 0);
    sm90_round(probs, s);
    if (group == 1 && w.n_tiles > 1)
        sm90_give_turn(group);
    for (int i = 1; i < w.n_tiles; i++) {
        sm90_await_turn(group);
        sm90_scores<S>(s, sh, group, i);
        sm90_values<S>(o, probs, sh, i - 1);
        if (group == 0 || i + 1 < w.n_tiles)
            sm90_give_turn(group);
        wgmma_wait<1>(s);
        sm90_release(&sh->k_empty[i % S::STAGES]);
        sm90_soften<S>(s, p, w, rows, keep, i);
        wgmma_wait<0>(o, probs);
        sm90_release(&sh->v_empty[(i - 1) % S::STAGES]);
#pragma unroll
        for (int n = 0; n < S::D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[n][e] *= keep[e / 2];
        sm90_round(probs, s);
    }
    sm90_values<S>(o, probs, sh, w.n_tiles - 1);
    wgmma_wait<0>(o);
}

/* Row h of the lane: its part of o and lse. */
template <class S>
static __device__ __forceinline__ void sm90_finish(const att_forward &f, const sm90_work &w,
                                                   const sm90_rows &rows, int h,
                                                   const float (&o)[S::D / 8][4])
{
    const int lane = (int)threadIdx.x % 32, i = rows.sight.first + h * 8;
    float sum = rows.sum[h];
    sum += shfl_xor(sum, 1);
    sum += shfl_xor(sum, 2);
    if (i >= w.span.nq)
        return;
    const float inverse = sum > 0 ? 1 / sum : 0;
    const int64_t row = w.span.q0 + i;
#pragma unroll
    for (int n = 0; n < S::D / 8; n++)
        att_put(f.o, row, w.head, f.p.dim, n * 8 + lane % 4 * 2, o[n][2 * h] * inverse,
                o[n][2 * h + 1] * inverse);
    if (f.lse && lane % 4 == 0)
        f.lse[row * f.p.n_heads + w.head] =
            sum > 0 ? rows.max[h] * f.p.scale + logf(sum) : -INFINITY;
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 1)
    forward_sm90_kernel(const __grid_constant__ struct forward_sm90 a)
{
    typedef forward_sm90_shared<S> room;
    SHARED(room, sh);
    const att_problem &p = a.f.p;
    const int rank = (int)(blockIdx.x / (unsigned)p.n_heads);
    if (rank >= *a.f.list.n)
        return;
    const sm90_work w = sm90_work_of(p, a.f.list.work[rank],
                                     (int)(blockIdx.x % (unsigned)p.n_heads), S::QUERIES, S::N);
    if (threadIdx.x == 0)
        sm90_start(sh);
    __syncthreads();
    if ((int)threadIdx.x / 128 == S::GROUPS) {
        registers_less<24>();
        if (threadIdx.x / 32 % 4 == 0)
            sm90_produce(a, sh, w);
        return;
    }
    registers_more<240>();
    sm90_rows rows = {{-INFINITY, -INFINITY}, {0, 0}, sm90_sight_of(p, w, S::N)};
    float o[S::D / 8][4] = {};
    if (w.n_tiles > 0)
        sm90_consume<S>(p, sh, w, rows, o);
#pragma unroll
    for (int h = 0; h < 2; h++)
        sm90_finish<S>(a.f, w, rows, h, o);
}

/* In the queue, with the list of tiles. False: there are no such maps here. */
template <class S>
static bool forward_sm90_run(struct s2s_queue *queue, const struct att_forward *f)
{
    struct forward_sm90 a = {*f, {}, {}, {}};
    const int kv_heads = f->p.n_heads / f->p.n_rep;
    if (sm90_map(&a.q, &f->q, f->p.n_q, f->p.n_heads, f->p.dim, S::QUERIES) != 0 ||
        sm90_map(&a.k, &f->k, f->p.n_k, kv_heads, f->p.dim, S::N) != 0 ||
        sm90_map(&a.v, &f->v, f->p.n_k, kv_heads, f->p.dim, S::N) != 0)
        return false;
    const int64_t tiles = att_most_tiles(f->p.n_q, f->p.n_spans, S::QUERIES);
    att_plan_queries(queue, &f->p, &f->list, S::QUERIES, &f->o, f->lse);
    LAUNCH(queue, forward_sm90_kernel<S>, (unsigned)(tiles * f->p.n_heads), S::THREADS,
           sizeof(forward_sm90_shared<S>), a);
    return true;
}

#endif
