/*
 * What the kernels of attention on Hopper are made of: tiles that a warp brings by TMA, products of
 * a warpgroup with them, and what a block of queries sees.
 *
 * A tile of rows of D elements is D / 64 blocks of lines of 128 bytes, one below the other, as
 * boxes that are copied come.
 */
#ifndef S2S_KERNELS_CUDA_ATTENTION_TILE_SM90_H
#define S2S_KERNELS_CUDA_ATTENTION_TILE_SM90_H

#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/ptx_sm90.h"

enum { SM90_LINE = 128, SM90_COLS = SM90_LINE / 2, SM90_EIGHT = 8 * SM90_LINE /* lines */ };

/* ---- the warp that copies ---- */

/* By one lane: copies a tile of `rows` rows of a head from `row` on, whose bytes bar expects. */
template <int D>
static __device__ __forceinline__ void sm90_copy(const char *to, const tensor_map *map, int rows,
                                                 int head, int row, const uint64_t *bar)
{
    for (int c = 0; c < D / SM90_COLS; c++)
        tma_load(shared_addr(to) + (uint32_t)(c * rows * SM90_LINE), map, c * SM90_COLS, head, row,
                 shared_addr(bar));
}

/* By a warp: rows from `there` on of a tile become 0. A fence_async comes after it. */
template <int D> static __device__ __forceinline__ void sm90_clear(char *tile, int rows, int there)
{
    for (int c = 0; c < D / SM90_COLS; c++) {
        uint4 *const from = (uint4 *)(tile + (c * rows + there) * SM90_LINE);
        for (int i = (int)threadIdx.x % 32; i < (rows - there) * (SM90_LINE / 16); i += 32)
            from[i] = make_uint4(0, 0, 0, 0);
    }
}

/* Of this warp: what `empty` is about may be filled again. */
static __device__ __forceinline__ void sm90_release(const uint64_t *empty)
{
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(shared_addr(empty));
}

/* ---- products of a warpgroup, between a wgmma_fence and a wgmma_commit of the caller ---- */

/* Begins s = A B^T: 64 rows of a tile of `rows` rows, from `first` on, and a tile of 8 N8 rows. */
template <int D, int N8>
static __device__ __forceinline__ void sm90_times_rows(float (&s)[N8][4], const char *a, int rows,
                                                       int first, const char *b)
{
    const uint32_t a_at = shared_addr(a) + (uint32_t)(first * SM90_LINE), b_at = shared_addr(b);
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        const uint32_t block = (uint32_t)(c * 16 / SM90_COLS), at = (uint32_t)(c % 4 * 32);
        wgmma<false, false>(
            s,
            wgmma_operand<SM90_LINE>(a_at + block * (uint32_t)(rows * SM90_LINE) + at, 16,
                                     SM90_EIGHT),
            wgmma_operand<SM90_LINE>(b_at + block * (N8 * 8 * SM90_LINE) + at, 16, SM90_EIGHT),
            c > 0);
    }
}

/* Begins o += P B: P in registers, a tile of 16 N16 rows. */
template <int N8, int N16>
static __device__ __forceinline__ void sm90_times_columns(float (&o)[N8][4], uint32_t (&p)[N16][4],
                                                          const char *b)
{
#pragma unroll
    for (int c = 0; c < N16; c++)
        wgmma<true>(o, p[c],
                    wgmma_operand<SM90_LINE>(shared_addr(b) + (uint32_t)(c * 16 * SM90_LINE),
                                             N16 * 16 * SM90_LINE, SM90_EIGHT),
                    true);
}

/* Accumulators as the operand of a product. */
template <int N>
static __device__ __forceinline__ void sm90_round(uint32_t (&p)[N / 2][4], const float (&s)[N][4])
{
#pragma unroll
    for (int c = 0; c < N / 2; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[c][i] = pack_bf16(s[2 * c + i / 2][i % 2 * 2], s[2 * c + i / 2][i % 2 * 2 + 1]);
}

/* ---- blocks of queries ---- */

/* What a block is about: queries from `at` on of the span, in tiles of keys from `begin` on, of
 * which step 0 takes the last one. */
struct sm90_work {
    s2s_span span;
    int head, at, begin, n_tiles;
};

static __device__ __forceinline__ sm90_work sm90_work_of(const att_problem &p, att_work work,
                                                         int head, int queries, int keys)
{
    sm90_work w = {p.spans[work.of], head, work.at, 0, 0};
    int end;
    att_seen_keys(p, w.span, w.at, min(queries, w.span.nq - w.at), w.begin, end);
    w.n_tiles = end > w.begin ? (end - w.begin + keys - 1) / keys : 0;
    return w;
}

/* What a thread of a warpgroup knows of its two rows: the first one, a query of the span's. Steps
 * whose tile has keys that some row of the warp does not see are those before `whole` and from
 * `far` on. */
struct sm90_sight {
    int first, whole, far;
};

static __device__ __forceinline__ sm90_sight sm90_sight_of(const att_problem &p, const sm90_work &w,
                                                           int keys)
{
    const int lane = (int)threadIdx.x % 32, warp = w.at + (int)threadIdx.x / 32 * 16;
    const att_range first = att_keys(p, w.span, warp), last = att_keys(p, w.span, warp + 15);
    return {warp + lane / 4, w.n_tiles - max(first.end - w.begin, 0) / keys,
            w.n_tiles - (max(last.begin - w.begin, 0) + keys - 1) / keys};
}

/* Scores of step i's keys that their query does not see become -inf. */
template <int N>
static __device__ __forceinline__ void sm90_mask(float (&s)[N][4], const att_problem &p,
                                                 const sm90_work &w, const sm90_sight &sight, int i)
{
    if (i < sight.whole || i >= sight.far)
        att_mask(s, p, w.span, sight.first,
                 w.begin + (w.n_tiles - 1 - i) * N * 8 + (int)threadIdx.x % 4 * 2);
}

/* ---- on the host ---- */

/* The map of q, k, v or dO by tiles of so many rows. */
static inline int sm90_map(struct tensor_map *map, const struct att_source *from, int rows,
                           int heads, int dim, int box_rows)
{
    const struct tensor_shape shape = {from->data,          rows,     heads,     dim,
                                       from->row_bytes / 2, box_rows, SM90_COLS, SM90_LINE};
    return rt_tensor_map(map, &shape);
}

#endif
