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
 * DROPS: with dropout, whose draws need registers, too. */
template <class P_, int D_, int WARPS_, int M_, int N_, int BLOCKS_, bool DROPS_>
struct forward_shape {
    typedef P_ P;
    static const bool DROPS = DROPS_;
    enum { D = D_, WARPS = WARPS_, M = M_, N = N_, BLOCKS = BLOCKS_ };
    enum { THREADS = WARPS * 32, QUERIES = WARPS * M * 16 };
    enum { ROW = att_shape<P, D>::ROW, STEPS = att_shape<P, D>::STEPS };
    /* where accumulators leave no registers for the numbers of rows, these stand in shared memory:
     * those of o, and, as GPUs after Hopper are compiled for, those of scores, too */
    enum { OF_O = M * D >= 192, OF_SCORES = M * N >= 256, NUMBERS = 4 * M };
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    enum { STAGES_ROWS = OF_O || OF_SCORES };
#else
    enum { STAGES_ROWS = OF_O };
#endif
    enum { ROWS_AT = (QUERIES + 2 * N) * ROW + 128 };
    enum { ROWS_BYTES = OF_O || OF_SCORES ? THREADS * NUMBERS * (int)sizeof(float) : 0 };
    enum { SHARED_BYTES = ROWS_AT + ROWS_BYTES };
    static_assert(WARPS <= 4, "room for what is of each warp");
    static_assert(SHARED_BYTES <= 99 << 10, "the shared memory of a block");
};

/* Row h of the lane: its maximum with these scores; what came before shrinks by `keep`. */
template <int N>
static __device__ __forceinline__ void raise(const float (&s)[N][4], int h, float c, float &max,
                                             float &off, float &keep)
{
    float top = max;
#pragma unroll
    for (int n = 0; n < N; n++)
        top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    top = fmaxf(top, shfl_xor(top, 1));
    top = fmaxf(top, shfl_xor(top, 2));
    off = top == -INFINITY ? 0 : top * c;
    keep = exp2_fast(max * c - off);
    max = top;
}

/* Row h of the lane: scores become exp2(c s - off), sum and output shrink. */
template <int N, int ND>
static __device__ __forceinline__ void soften(float (&s)[N][4], float (&o)[ND][4], int h, float c,
                                              float off, float keep, float &sum)
{
    float more = 0;
#pragma unroll
    for (int n = 0; n < ND; n++) {
        o[n][2 * h] *= keep;
        o[n][2 * h + 1] *= keep;
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++) {
            s[n][e] = exp2_fast(s[n][e] * c - off);
            more += s[n][e];
        }
    sum = sum * keep + more;
}

/* What a block is about. It stands in shared memory, as accumulators fill the registers. */
struct forward_block {
    s2s_span span;
    int head;          /* of the queries */
    int at, begin;     /* its first query and the first key that they see, of the span's */
    const char *k, *v; /* rows of that key */
    /* Of each warp: tiles of keys from `whole` on or before `far` have keys that some row of it
     * does not see, those from `none` on only such. */
    struct {
        int whole, far, none;
    } warps[4];
};

/* The maximum and the sum of each row of this lane. */
template <class S> struct forward_rows {
    float numbers[S::STAGES_ROWS ? 1 : (int)S::NUMBERS], *room;

    __device__ __forceinline__ forward_rows(char *sh) : room((float *)(sh + S::ROWS_AT))
    {
#pragma unroll
        for (int i = 0; i < S::NUMBERS; i++)
            at(i) = i % 2 ? 0 : -INFINITY;
    }
    __device__ __forceinline__ float &at(int i)
    {
        return S::STAGES_ROWS ? room[i * S::THREADS + threadIdx.x] : numbers[i];
    }
    __device__ __forceinline__ float &max(int m, int h)
    {
        return at(4 * m + 2 * h);
    }
    __device__ __forceinline__ float &sum(int m, int h)
    {
        return at(4 * m + 2 * h + 1);
    }
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

/* Begins to copy tile `tile` of the keys that the block sees, or of their values. */
template <class S>
static __device__ __forceinline__ void load_keys(char *to, const att_source &from,
                                                 const char *first, const forward_block *own,
                                                 int tile)
{
    const int at = tile * S::N;
    att_load<typename S::P, S::D, S::N, S::THREADS>(to, from, first + (int64_t)at * from.row_bytes,
                                                    own->span.nk - own->begin - at);
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
    const int n_tiles = end > begin ? (end - begin + S::N - 1) / S::N : 0;
    if (threadIdx.x % 32 == 0) {
        const int warp = (int)threadIdx.x / 32;
        const att_range first = att_keys(f.p, span, work.at + row),
                        last = att_keys(f.p, span, work.at + row + M * 16 - 1);
        if (warp == 0) {
            own->span = span;
            own->at = work.at;
            own->begin = begin;
            own->head = head;
            own->k = att_row(f.k, span.k0 + begin, head / f.p.n_rep);
            own->v = att_row(f.v, span.k0 + begin, head / f.p.n_rep);
        }
        own->warps[warp].whole = max(first.end - begin, 0) / S::N;
        own->warps[warp].far = (max(last.begin - begin, 0) + S::N - 1) / S::N;
        own->warps[warp].none = (max(last.end - begin, 0) + S::N - 1) / S::N;
    }
    att_load<P, S::D, S::QUERIES, S::THREADS>(q_tile, f.q, att_row(f.q, span.q0 + work.at, head),
                                              span.nq - work.at);
    __syncthreads();        /* for `own` */
    int tile = n_tiles - 1; /* from the last one to the first */
    if (tile >= 0)
        load_keys<S>(k_tile, f.k, own->k, own, tile);
    cp_async_commit();

    const att_lane q_lane = att_lane_tall<Shape>(shared_addr(q_tile + row * S::ROW));
    const att_lane k_lane = att_lane_wide<Shape>(shared_addr(k_tile));
    const typename att_across<P, S::D>::type v_lane = att_across<P, S::D>::of(v_tile);
    float o[M][S::D / 8][4] = {};
    forward_rows<S> rows(sh);
    for (; tile >= 0; tile--) {
        cp_async_wait<0>();
        __syncthreads(); /* K is there, and nobody reads the last V any more */
        load_keys<S>(v_tile, f.v, own->v, own, tile);
        cp_async_commit();
        const int id = (int)opaque(threadIdx.x), warp = id / 32; /* not kept from tile to tile */
        float s[M][S::N / 8][4] = {};
        if (tile < own->warps[warp].none)
            att_times_rows<P, S::D>(s, att_anew(q_lane), att_anew(k_lane));
        if (tile >= own->warps[warp].whole || tile < own->warps[warp].far) {
            const int first = own->at + warp * M * 16 + id % 32 / 4;
#pragma unroll
            for (int m = 0; m < M; m++)
                att_mask(s[m], f.p, own->span, first + m * 16,
                         own->begin + tile * S::N + id % 4 * 2);
        }
        cp_async_wait<0>();
        __syncthreads(); /* V is there, and nobody reads K any more */
        if (tile > 0)
            load_keys<S>(k_tile, f.k, own->k, own, tile - 1);
        cp_async_commit();
        if (tile >= own->warps[warp].none)
            continue;
        float off[M][2], keep[M][2];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                raise(s[m], h, f.p.scale_log2, rows.max(m, h), off[m][h], keep[m][h]);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                soften(s[m], o[m], h, f.p.scale_log2, off[m][h], keep[m][h], rows.sum(m, h));
        if constexpr (S::DROPS)
#pragma unroll
            for (int m = 0; m < M; m++)
                att_drop(s[m], f.p, own->span, own->head,
                         own->at + (warp * M + m) * 16 + id % 32 / 4,
                         own->begin + tile * S::N + id % 4 * 2);
        att_times_columns<P, S::D>(o, s, att_anew(v_lane));
    }
    cp_async_wait<0>(); /* of Q, where there were no keys */
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            finish<S>(f, own, own->head, m, h, o[m], rows.max(m, h), rows.sum(m, h));
}

/* That with dropout (attention_drop_fwd.cu). */
void att_forward_dropped(struct s2s_queue *queue, const struct att_forward *f, bool bf16);

/* In the queue, with the list of tiles. */
template <class P, int D, int WARPS, int M, int N, int BLOCKS = 2, bool DROPS = false>
static void att_forward_run(struct s2s_queue *queue, const struct att_forward *f)
{
    typedef forward_shape<P, D, WARPS, M, N, BLOCKS, DROPS> S;
    const int64_t tiles = att_most_tiles(f->p.n_q, f->p.n_spans, S::QUERIES);
    att_plan_queries(queue, &f->p, &f->list, S::QUERIES, &f->o, f->lse);
    LAUNCH(queue, forward_kernel<S>, (unsigned)(tiles * f->p.n_heads), S::THREADS, S::SHARED_BYTES,
           *f);
}

#endif
