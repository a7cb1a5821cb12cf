/*
 * Attention, gradients of keys and values: a block has a tile of keys of one kv head with their dk
 * and dv, and goes over all queries of its heads and spans that see them, of which the next tile
 * comes while this one is computed. Everything is transposed, so that P and dS stay in registers:
 *   P^T = exp2(scale' K Q^T - lse'),  dV += D P^T dO,  dS^T = P^T (D (V dO^T) - delta),
 *   dK += dS^T Q
 * with D what dropout multiplies P with, or 1.
 */
#ifndef S2S_KERNELS_CUDA_ATTENTION_DKV_H
#define S2S_KERNELS_CUDA_ATTENTION_DKV_H

#include "kernels/cuda/attention_bwd.h"
#include "kernels/cuda/attention_pairs.h"

enum { WANTS_DK = 1, WANTS_DV = 2, WANTS_BOTH = 3 };

/* WARPS of 16 M keys each, tiles of N queries, of which C at a time. Wide heads get dk and dv in
 * two launches, as the registers do not hold both; and all do with dropout (DROPS). */
template <class P_, int D_, int WARPS_, int M_, int N_, int C_, int WANTS_, bool DROPS_>
struct keys_shape {
    typedef P_ P;
    static const bool DROPS = DROPS_;
    static_assert(!DROPS || WANTS_ != WANTS_BOTH, "P is needed with dropout, or without");
    enum { D = D_, WARPS = WARPS_, M = M_, N = N_, C = C_, WANTS = WANTS_ };
    enum { BLOCKS = WARPS > 4 ? 1 : 2 }; /* of a multiprocessor, as far as registers go */
    enum { THREADS = WARPS * 32, KEYS = WARPS * M * 16, ROW = att_shape<P, D>::ROW };
    enum { STAGE = 2 * N * ROW, NUMBERS = 2 * N * (int)sizeof(float) };
    enum { SHARED_BYTES = 2 * KEYS * ROW + 2 * STAGE + 2 * NUMBERS + 512 };
    static_assert(SHARED_BYTES <= 99 << 10, "the shared memory of a block");
};

/* The way of a block over heads, spans and queries. One thread walks, two steps ahead of the rest;
 * all of it stands in shared memory, as accumulators fill the registers. */
struct keys_walk {
    keys_step steps[4];
    const s2s_span *spans;
    s2s_span span;
    int kv, head, last_head, s, first_s, end_s; /* spans of the group */
    int at, end, i, end_i;                      /* of the keys; of the span's queries */
    int window, keys, queries;                  /* in a tile */
};

static __device__ __noinline__ void walk_into_span(keys_walk *w)
{
    w->span = w->spans[w->s];
    att_seeing_queries(w->window, w->span, w->at - w->span.k0, w->keys, w->i, w->end_i);
}

/* Writes the next tile of queries to `to`. */
static __device__ __noinline__ void walk_on(keys_walk *w, keys_step *to)
{
    while (w->i >= w->end_i) {
        if (++w->s >= w->end_s) {
            if (w->head >= w->last_head) {
                w->s = w->end_s; /* here it stays */
                to->n_rows = 0;
                return;
            }
            w->head++;
            w->s = w->first_s;
        }
        walk_into_span(w);
    }
    *to = {w->span.q0 + w->i,  w->end_i - w->i, w->head,      w->i,
           w->at - w->span.k0, w->span.nk,      w->span.shift};
    w->i += w->queries;
}

/* Two steps of the way of a block with so many keys and queries in its tiles. */
static __device__ __forceinline__ void start_walk(const att_backward &b, keys_walk *w,
                                                  att_work work, int kv, int keys, int queries)
{
    w->spans = b.p.spans;
    w->window = b.p.window;
    w->keys = keys;
    w->queries = queries;
    w->at = work.at;
    w->end = 0;
    w->first_s = w->s = b.p.groups[work.of];
    w->end_s = b.p.groups[work.of + 1];
    for (int s = w->first_s; s < w->end_s; s++)
        if (b.p.spans[s].nk > 0)
            w->end = max(w->end, b.p.spans[s].k0 + b.p.spans[s].nk);
    w->kv = kv;
    w->head = kv * b.p.n_rep;
    w->last_head = w->head + b.p.n_rep - 1;
    walk_into_span(w);
    walk_on(w, &w->steps[0]);
    walk_on(w, &w->steps[1]);
}

/* Begins to copy queries, their dO, lse and delta. */
template <class S>
static __device__ __forceinline__ void load_step(const att_backward &b, const keys_step *step,
                                                 char *stage, char *numbers)
{
    typedef typename S::P P;
    const int n_rows = step->n_rows, t = (int)threadIdx.x;
    att_load<P, S::D, S::N, S::THREADS>(stage, b.q, att_row(b.q, step->row, step->head), n_rows);
    att_load<P, S::D, S::N, S::THREADS>(stage + S::N * S::ROW, b.d_o,
                                        att_row(b.d_o, step->row, step->head), n_rows);
    /* zeros past the end are harmless, as dO is zero too */
#pragma unroll
    for (int first = 0; first < 2 * S::N; first += S::THREADS) {
        const int n = first + t, i = n % S::N;
        const float *from = n < S::N ? b.lse : b.delta;
        if (n < 2 * S::N)
            cp_async<4>(shared_addr(numbers) + (uint32_t)n * 4,
                        i < n_rows ? from + (int64_t)step->head * b.p.n_q + step->row + i : from,
                        i < n_rows ? 4 : 0);
    }
}

/* Scores [16 keys, 8 N queries] of pairs that do not see each other become -inf. i: this lane's
 * first query, j: its first key. */
template <int N>
static __device__ __forceinline__ void mask_pairs(float (&s)[N][4], const att_problem &p,
                                                  const keys_step *step, int i, int j)
{
    const int nk = step->nk, shift = step->shift;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int key = j + e / 2 * 8, last = i + n * 8 + e % 2 + shift;
            const bool seen =
                shift == S2S_SPAN_ALL || (key <= last && (!p.window || key > last - p.window));
            if (key < 0 || key >= nk || !seen)
                s[n][e] = -INFINITY;
        }
}

/* Multiplies what belongs to pairs [16 keys, 8 N queries] of a step with what dropout leaves of
 * their P. i: this lane's first query of the step, key: its first row of k, of which `last` is the
 * last. */
template <int N>
static __device__ __forceinline__ void drop_pairs(float (&s)[N][4], const att_problem &p,
                                                  const keys_step *step, int i, int key, int last)
{
    const int head = step->head, row = step->row, n_rows = step->n_rows;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t at = (uint32_t)p.k_at[min(key + h * 8, last)];
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                s[n][2 * h + e] *=
                    cuda_kept(p.draw, row + min(i + n * 8 + e, n_rows - 1), at, (uint32_t)head);
    }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) keys_kernel(const att_backward b)
{
    typedef typename S::P P;
    typedef att_shape<P, S::D> Shape;
    typedef att_across<P, S::D> Across;
    enum { M = S::M, C = S::C };
    SHARED(char, sh);
    char *const k_tile = sh, *const v_tile = sh + S::KEYS * S::ROW;
    char *const stages = v_tile + S::KEYS * S::ROW, *const numbers = stages + 2 * S::STAGE;
    keys_walk *const walk = (keys_walk *)(numbers + 2 * S::NUMBERS);
    static_assert(sizeof(keys_walk) <= 512, "room for the walk");
    const int n_kv = b.p.n_heads / b.p.n_rep, kv = (int)(blockIdx.x % (unsigned)n_kv);
    const int rank = (int)(blockIdx.x / (unsigned)n_kv);
    if (rank >= *b.keys.n)
        return;
    if (threadIdx.x == 0)
        start_walk(b, walk, b.keys.work[rank], kv, S::KEYS, S::N);
    __syncthreads();
    att_load<P, S::D, S::KEYS, S::THREADS>(k_tile, b.k, att_row(b.k, walk->at, kv),
                                           walk->end - walk->at);
    if (S::WANTS & WANTS_DK)
        att_load<P, S::D, S::KEYS, S::THREADS>(v_tile, b.v, att_row(b.v, walk->at, kv),
                                               walk->end - walk->at);
    if (walk->steps[0].n_rows > 0)
        load_step<S>(b, &walk->steps[0], stages, numbers);
    cp_async_commit();

    float dk[S::WANTS & WANTS_DK ? M : 1][S::D / 8][4] = {};
    float dv[S::WANTS & WANTS_DV ? M : 1][S::D / 8][4] = {};
    const int first = (int)threadIdx.x / 32 * M * 16; /* row of the warp */
    const att_lane k_lane = att_lane_tall<Shape>(shared_addr(k_tile + first * S::ROW));
    const att_lane v_lane = att_lane_tall<Shape>(shared_addr(v_tile + first * S::ROW));
    for (int t = 0;; t++) {
        const keys_step *const step = &walk->steps[t % 4], *const next = &walk->steps[(t + 1) % 4];
        char *const q_tile = stages + t % 2 * S::STAGE, *const o_tile = q_tile + S::N * S::ROW;
        const float *const lse = (const float *)(numbers + t % 2 * S::NUMBERS);
        const float *const delta = lse + S::N;
        cp_async_wait<0>();
        __syncthreads(); /* this tile is there, and nobody reads the one before any more */
        if (step->n_rows == 0)
            break;
        if (next->n_rows > 0)
            load_step<S>(b, next, stages + (t + 1) % 2 * S::STAGE,
                         numbers + (t + 1) % 2 * S::NUMBERS);
        cp_async_commit();
        if (threadIdx.x == 0)
            walk_on(walk, &walk->steps[(t + 2) % 4]);
        __syncwarp();
        const int id = (int)opaque(threadIdx.x); /* not kept from tile to tile */
        const int lane = id % 32, row = id / 32 * M * 16;
        const att_lane q_lane = att_lane_wide<Shape>(shared_addr(q_tile));
        const att_lane o_lane = att_lane_wide<Shape>(shared_addr(o_tile));
#pragma unroll 1
        for (int part = 0; part < S::N; part += C) {
            const int seen = sees(b.p, step, step->i + part, C, step->j + row, M * 16);
            if (seen == 0)
                continue;
            float s[M][C / 8][4] = {};
            att_times_rows<P, S::D>(s, att_anew(k_lane), att_below<Shape>(q_lane, part));
            if (seen == 1)
#pragma unroll
                for (int m = 0; m < M; m++)
                    mask_pairs(s[m], b.p, step, step->i + part + lane % 4 * 2,
                               step->j + row + m * 16 + lane / 4);
#pragma unroll
            for (int n = 0; n < C / 8; n++) {
                const float2 l = *(const float2 *)(lse + part + n * 8 + lane % 4 * 2);
#pragma unroll
                for (int m = 0; m < M; m++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[m][n][e] = exp2_fast(s[m][n][e] * b.p.scale_log2 - (e % 2 ? l.y : l.x));
            }
            if constexpr (S::DROPS && (S::WANTS & WANTS_DV) != 0)
#pragma unroll
                for (int m = 0; m < M; m++)
                    drop_pairs(s[m], b.p, step, part + lane % 4 * 2,
                               walk->at + row + m * 16 + lane / 4, walk->end - 1);
            if constexpr ((S::WANTS & WANTS_DV) != 0)
                att_times_columns<P, S::D>(dv, s, att_below<Shape>(Across::of(o_tile), part));
            if constexpr ((S::WANTS & WANTS_DK) != 0) {
                float dp[M][C / 8][4] = {};
                att_times_rows<P, S::D>(dp, att_anew(v_lane), att_below<Shape>(o_lane, part));
                if constexpr (S::DROPS)
#pragma unroll
                    for (int m = 0; m < M; m++)
                        drop_pairs(dp[m], b.p, step, part + lane % 4 * 2,
                                   walk->at + row + m * 16 + lane / 4, walk->end - 1);
#pragma unroll
                for (int n = 0; n < C / 8; n++) {
                    const float2 d = *(const float2 *)(delta + part + n * 8 + lane % 4 * 2);
#pragma unroll
                    for (int m = 0; m < M; m++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            s[m][n][e] *= dp[m][n][e] - (e % 2 ? d.y : d.x);
                }
                att_times_columns<P, S::D>(dk, s, att_below<Shape>(Across::of(q_tile), part));
            }
        }
    }
    const int id = (int)opaque(threadIdx.x), lane = id % 32;
    const int key = walk->at + id / 32 * M * 16 + lane / 4, end = walk->end, to_kv = walk->kv;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = key + m * 16 + h * 8;
            if (at >= end)
                continue;
#pragma unroll
            for (int n = 0; n < S::D / 8; n++) {
                const int col = n * 8 + lane % 4 * 2;
                if constexpr ((S::WANTS & WANTS_DK) != 0)
                    if (b.dk.mat.data)
                        att_put(b.dk, at, to_kv, b.p.dim, col, dk[m][n][2 * h] * b.p.scale,
                                dk[m][n][2 * h + 1] * b.p.scale);
                if constexpr ((S::WANTS & WANTS_DV) != 0)
                    if (b.dv.mat.data)
                        att_put(b.dv, at, to_kv, b.p.dim, col, dv[m][n][2 * h],
                                dv[m][n][2 * h + 1]);
            }
        }
}

template <class P, int D, int WARPS, int M, int N, int C, int WANTS, bool DROPS>
static void keys_launch(struct s2s_queue *queue, const struct att_backward *b)
{
    typedef keys_shape<P, D, WARPS, M, N, C, WANTS, DROPS> S;
    const int64_t tiles = att_most_tiles(b->p.n_k, b->p.n_groups, S::KEYS);
    LAUNCH(queue, keys_kernel<S>, (unsigned)(tiles * (b->p.n_heads / b->p.n_rep)), S::THREADS,
           S::SHARED_BYTES, *b);
}

template <class P, int D, int WARPS, int M, int N, int C, bool AT_ONCE, bool DROPS = false>
static void att_keys_run(struct s2s_queue *queue, const struct att_backward *b)
{
    att_plan_keys(queue, &b->p, &b->keys, WARPS * M * 16, &b->dk, &b->dv);
    if constexpr (AT_ONCE) {
        keys_launch<P, D, WARPS, M, N, C, WANTS_BOTH, DROPS>(queue, b);
        return;
    }
    if constexpr (!AT_ONCE) {
        if (b->dk.mat.data)
            keys_launch<P, D, WARPS, M, N, C, WANTS_DK, DROPS>(queue, b);
        if (b->dv.mat.data)
            keys_launch<P, D, WARPS, M, N, C, WANTS_DV, DROPS>(queue, b);
    }
}

#endif
