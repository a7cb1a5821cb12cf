/*
 * What the kernels of attention are made of: element types as the tensor cores take them, tiles in
 * shared memory, and the lists of work.
 *
 * A tile has rows of D elements. Its 16-byte chunks stand permuted by the row's number, so that the
 * eight rows of an ldmatrix meet in different banks. Heads narrower than D are padded with zeros.
 */
#ifndef S2S_KERNELS_CUDA_ATTENTION_TILE_H
#define S2S_KERNELS_CUDA_ATTENTION_TILE_H

#include "kernels/cuda/draw.h"

#define ATT static __device__ __forceinline__
#define ATT_HOST static inline

enum { ATT_LANES = 32 };
static const float att_log2e = 1.44269504f;

/* ---- element types: fragments of an operand of 16 rows (a) or 8 columns (b), STEP long ---- */

/* bf16: m16n8k16 */
struct att_bf16 {
    typedef uint16_t elem;
    enum { STEP = 16 };
    struct frag_a {
        uint32_t r[4];
    };
    struct frag_b {
        uint32_t r[2];
    };
};

/* fp32 as a sum of two tf32, three products of m16n8k8 each: all but the last bits of fp32 */
struct att_f32 {
    typedef float elem;
    enum { STEP = 8 };
    struct frag_a {
        uint32_t high[4], low[4];
    };
    struct frag_b {
        uint32_t high[2], low[2];
    };
};

ATT void att_split(uint32_t &high, uint32_t &low, uint32_t bits)
{
    const float x = cuda_of_bits(bits);
    high = float_tf32(x);
    low = float_tf32(x - cuda_of_bits(high));
}

ATT void att_mma(float (&d)[4], const att_bf16::frag_a &a, const att_bf16::frag_b &b)
{
    mma_bf16(d, a.r, b.r);
}

ATT void att_mma(float (&d)[4], const att_f32::frag_a &a, const att_f32::frag_b &b)
{
    mma_tf32(d, a.low, b.high);
    mma_tf32(d, a.high, b.low);
    mma_tf32(d, a.high, b.high);
}

ATT void att_set(att_bf16::frag_a &a, const uint32_t (&r)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        a.r[i] = r[i];
}

ATT void att_set(att_f32::frag_a &a, const uint32_t (&r)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        att_split(a.high[i], a.low[i], r[i]);
}

ATT void att_set(att_bf16::frag_b &b, uint32_t r0, uint32_t r1)
{
    b.r[0] = r0;
    b.r[1] = r1;
}

ATT void att_set(att_f32::frag_b &b, uint32_t r0, uint32_t r1)
{
    att_split(b.high[0], b.low[0], r0);
    att_split(b.high[1], b.low[1], r1);
}

/* Step `k` of an accumulator [16, 8 N] as operand a of the next product. In fp32 its columns come
 * as 0 2 4 6 1 3 5 7: att_columns takes the other operand in the same order. */
template <int N> ATT void att_operand(att_bf16::frag_a &a, const float (&acc)[N][4], int k)
{
    a.r[0] = pack_bf16(acc[2 * k][0], acc[2 * k][1]);
    a.r[1] = pack_bf16(acc[2 * k][2], acc[2 * k][3]);
    a.r[2] = pack_bf16(acc[2 * k + 1][0], acc[2 * k + 1][1]);
    a.r[3] = pack_bf16(acc[2 * k + 1][2], acc[2 * k + 1][3]);
}

template <int N> ATT void att_operand(att_f32::frag_a &a, const float (&acc)[N][4], int k)
{
    att_split(a.high[0], a.low[0], cuda_bits(acc[k][0]));
    att_split(a.high[1], a.low[1], cuda_bits(acc[k][2]));
    att_split(a.high[2], a.low[2], cuda_bits(acc[k][1]));
    att_split(a.high[3], a.low[3], cuda_bits(acc[k][3]));
}

/* ---- tiles ---- */

template <class P, int D> struct att_shape {
    enum {
        ROW = D * (int)sizeof(typename P::elem), /* bytes */
        CHUNKS = ROW / 16,
        STEPS = D / P::STEP, /* 32 bytes each */
        IS_POWER = (ROW & (ROW - 1)) == 0
    };
    static_assert(CHUNKS % 4 == 0, "rows of whole groups of chunks");

    /* by which bits the chunks of a row are moved */
    ATT uint32_t swizzle(uint32_t row)
    {
        return CHUNKS % 8 == 0 ? row & 7 : row >> 1 & 3;
    }
    ATT uint32_t at(uint32_t row, uint32_t chunk)
    {
        return row * ROW + (chunk ^ swizzle(row)) * 16;
    }
};

/* Where this lane finds its row of the first 16 for ldmatrix, and by which bits its chunks are
 * moved (in `row` where rows are powers of two); steps are 32 bytes along the row. */
struct att_lane {
    uint32_t row, x;
};

template <class S> ATT att_lane att_lane_of(uint32_t tile, uint32_t row, uint32_t chunk)
{
    const uint32_t at = tile + row * S::ROW, x = (chunk ^ S::swizzle(row)) * 16;
    if (S::IS_POWER)
        return {at | x, 0};
    return {at, x};
}

/* Operand a, and operand b across the rows: rows 0..15, chunk 0, then chunk 1. */
template <class S> ATT att_lane att_lane_tall(uint32_t tile)
{
    const uint32_t lane = threadIdx.x % ATT_LANES;
    return att_lane_of<S>(tile, lane % 16, lane / 16);
}

/* Operand b along the rows: rows 0..7 with chunks 0 and 1, then rows 8..15. */
template <class S> ATT att_lane att_lane_wide(uint32_t tile)
{
    const uint32_t lane = threadIdx.x % ATT_LANES;
    return att_lane_of<S>(tile, lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

template <class S> ATT uint32_t att_step(const att_lane &lane, int step)
{
    if (S::IS_POWER)
        return lane.row ^ (uint32_t)(step * 32);
    return lane.row + (lane.x ^ (uint32_t)(step * 32));
}

/* Rows 16 m .. of the tile, step k: operand a. */
template <class P, int D>
ATT void att_rows(typename P::frag_a &a, const att_lane &tall, int m, int k)
{
    typedef att_shape<P, D> S;
    uint32_t r[4];
    ldmatrix_x4<false>(r, att_step<S>(tall, k) + (uint32_t)(m * 16 * S::ROW));
    att_set(a, r);
}

/* The same rows as two operands b, rows are columns: a product with the tile's transpose. */
template <class P, int D>
ATT void att_rows(typename P::frag_b (&b)[2], const att_lane &wide, int n, int k)
{
    typedef att_shape<P, D> S;
    uint32_t r[4];
    ldmatrix_x4<false>(r, att_step<S>(wide, k) + (uint32_t)(n * 16 * S::ROW));
    att_set(b[0], r[0], r[1]);
    att_set(b[1], r[2], r[3]);
}

/* Columns 16 n .. of the tile as two operands b, step k of its rows: a product with the tile. */
template <int D> ATT void att_columns(att_bf16::frag_b (&b)[2], const att_lane &tall, int n, int k)
{
    typedef att_shape<att_bf16, D> S;
    uint32_t r[4];
    ldmatrix_x4<true>(r, att_step<S>(tall, n) + (uint32_t)(k * 16 * S::ROW));
    att_set(b[0], r[0], r[1]);
    att_set(b[1], r[2], r[3]);
}

/* There is no ldmatrix that transposes 32-bit elements. Rows are two neighbours of eight, so that
 * of all that moves chunks only `x` depends on the lane, and few addresses serve all n and k. */
template <int D> ATT void att_columns(att_f32::frag_b (&b)[2], const char *tile, int n, int k)
{
    typedef att_shape<att_f32, D> S;
    static_assert(S::CHUNKS % 8 == 0, "chunks are moved by three bits of the row");
    const uint32_t lane = threadIdx.x % ATT_LANES, x = lane / 16 ^ lane % 4 * 2;
    const char *const at = tile + (lane % 4 * 2) * S::ROW + lane / 4 % 4 * 4 + k * 8 * S::ROW;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t chunk = (uint32_t)(n * 4 + h * 2);
        const char *const group = at + chunk / 8 * 128;
        att_set(b[h], *(const uint32_t *)(group + (x ^ chunk % 8) * 16),
                *(const uint32_t *)(group + S::ROW + (x ^ 1 ^ chunk % 8) * 16));
    }
}

/* What att_columns needs of a tile. */
template <class P, int D> struct att_across;
template <int D> struct att_across<att_bf16, D> {
    typedef att_lane type;
    ATT att_lane of(const char *tile)
    {
        return att_lane_tall<att_shape<att_bf16, D>>(shared_addr(tile));
    }
};
template <int D> struct att_across<att_f32, D> {
    typedef const char *type;
    ATT const char *of(const char *tile)
    {
        return tile;
    }
};

/* The same lane's row `rows` (a multiple of 16) further down. */
template <class S> ATT att_lane att_below(const att_lane &lane, int rows)
{
    return {lane.row + (uint32_t)(rows * S::ROW), lane.x};
}

template <class S> ATT const char *att_below(const char *tile, int rows)
{
    return tile + rows * S::ROW;
}

/* The same lane, whose addresses of steps are made anew each time: a loop that keeps those of all
 * steps has no registers left. */
ATT att_lane att_anew(const att_lane &lane)
{
    return {opaque(lane.row), lane.x};
}

ATT const char *att_anew(const char *tile)
{
    return tile; /* what is opaque would not be known to be of shared memory */
}

/* s += A B^T: 16 M rows of a tile (att_lane_tall) times 8 N8 rows of another (att_lane_wide). The
 * compiler loads fragments of AT_ONCE steps ahead, as many as registers are left for. */
template <class P, int D, int AT_ONCE = att_shape<P, D>::STEPS, int M, int N8>
ATT void att_times_rows(float (&s)[M][N8][4], const att_lane &a_lane, const att_lane &b_lane)
{
#pragma unroll AT_ONCE
    for (int k = 0; k < att_shape<P, D>::STEPS; k++) {
        typename P::frag_a a[M];
#pragma unroll
        for (int m = 0; m < M; m++)
            att_rows<P, D>(a[m], a_lane, m, k);
#pragma unroll
        for (int n = 0; n < N8 / 2; n++) {
            typename P::frag_b b[2];
            att_rows<P, D>(b, b_lane, n, k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                att_mma(s[m][2 * n], a[m], b[0]);
                att_mma(s[m][2 * n + 1], a[m], b[1]);
            }
        }
    }
}

/* o += S B: an accumulator of 8 N8 columns times so many rows of a tile (att_across) */
template <class P, int D, int M, int N8>
ATT void att_times_columns(float (&o)[M][D / 8][4], const float (&s)[M][N8][4],
                           const typename att_across<P, D>::type &across)
{
#pragma unroll
    for (int k = 0; k < N8 * 8 / P::STEP; k++) {
        typename P::frag_a a[M];
#pragma unroll
        for (int m = 0; m < M; m++)
            att_operand(a[m], s[m], k);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            typename P::frag_b b[2];
            att_columns<D>(b, across, n, k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                att_mma(o[m][2 * n], a[m], b[0]);
                att_mma(o[m][2 * n + 1], a[m], b[1]);
            }
        }
    }
}

/* Rows of one head as they lie in memory. */
struct att_source {
    const char *data;
    int row_bytes, head_bytes; /* between rows; dim elements */
    /* every row of every head begins at a multiple of 16 bytes, and is so long; no bool, which
     * would be kept in a register */
    int is_wide;
};

/* att_load without demands on the places of rows. */
template <class P, int D, int ROWS, int THREADS>
ATT void att_load_narrow(char *tile, const char *src, int row_bytes, int head_bytes, int n_rows)
{
    typedef att_shape<P, D> S;
    typedef typename P::elem E;
#pragma unroll 1
    for (int i = (int)opaque(threadIdx.x); i < ROWS * D; i += THREADS) {
        const int row = i / D, byte = i % D * (int)sizeof(E);
        E *to = (E *)(tile + S::at((uint32_t)row, (uint32_t)byte / 16) + byte % 16);
        *to = row < n_rows && byte < head_bytes
                  ? *(const E *)(src + (int64_t)row * row_bytes + byte)
                  : (E)0;
    }
}

/* Where row `row` of a head begins. */
ATT const char *att_row(const att_source &from, int row, int head)
{
    return from.data + (int64_t)row * from.row_bytes + (int64_t)head * from.head_bytes;
}

/*
 * Begins to copy ROWS rows of a head, of which src is the first, to a tile; rows from n_rows on are
 * zeros. By all THREADS of the block; the caller commits.
 */
template <class P, int D, int ROWS, int THREADS>
ATT void att_load(char *tile, const att_source &from, const char *src, int n_rows)
{
    typedef att_shape<P, D> S;
    if (!from.is_wide) {
        att_load_narrow<P, D, ROWS, THREADS>(tile, src, from.row_bytes, from.head_bytes, n_rows);
        return;
    }
    const uint32_t to = shared_addr(tile);
    const int t = (int)opaque(threadIdx.x);
    if constexpr (THREADS % S::CHUNKS == 0) {
        /* A thread has one chunk of some rows. Addresses are made anew in each call: a caller's
         * loop has no registers for them. */
        enum { STEP = THREADS / S::CHUNKS };
        const int row = t / S::CHUNKS, chunk = t % S::CHUNKS;
        const int left = chunk * 16 < from.head_bytes ? n_rows - row : 0;
        const char *at = opaque(src + (int64_t)row * from.row_bytes + chunk * 16);
#pragma unroll
        for (int r = 0; r < ROWS; r += STEP)
            if (ROWS % STEP == 0 || row + r < ROWS)
                cp_async<16>(to + S::at((uint32_t)(r + row), (uint32_t)chunk),
                             at + (int64_t)r * from.row_bytes, r < left ? 16 : 0);
    } else {
#pragma unroll
        for (int i = t; i < ROWS * S::CHUNKS; i += THREADS) {
            const int row = i / S::CHUNKS, chunk = i % S::CHUNKS;
            cp_async<16>(to + S::at((uint32_t)row, (uint32_t)chunk),
                         src + (int64_t)row * from.row_bytes + chunk * 16,
                         row < n_rows && chunk * 16 < from.head_bytes ? 16 : 0);
        }
    }
}

/* Where a kernel leaves its results. */
struct att_target {
    struct cuda_mat mat; /* data NULL: not wanted */
    bool accumulate;
    bool in_pairs; /* two elements lie at a multiple of their size */
};

/* Two results side by side; the head has `dim` columns. */
ATT void att_put(const att_target &to, int64_t row, int head, int dim, int col, float x, float y)
{
    const int64_t at = (int64_t)head * dim + col;
    if (col >= dim)
        return;
    if (to.in_pairs && !to.accumulate) {
        if (to.mat.bf16)
            *(uint32_t *)((uint16_t *)to.mat.data + row * to.mat.stride + at) = pack_bf16(x, y);
        else
            *(float2 *)((float *)to.mat.data + row * to.mat.stride + at) = make_float2(x, y);
        return;
    }
    cuda_put(to.mat, row, at, x + (to.accumulate ? cuda_get(to.mat, row, at) : 0));
    if (col + 1 < dim)
        cuda_put(to.mat, row, at + 1, y + (to.accumulate ? cuda_get(to.mat, row, at + 1) : 0));
}

/* ---- lists of work (attention_plan.cu) ---- */

/* Queries at .. of span `of`, or rows `at` .. of k in group `of`. */
struct att_work {
    int32_t of, at;
};

/* A list in the workspace, longest work first. */
struct att_list {
    int32_t *n;
    struct att_work *work;
};

/* What all kernels of a call need. */
struct att_problem {
    const struct s2s_span *spans;
    const int32_t *groups;
    int n_spans, n_groups, n_heads, n_rep; /* query heads that use one kv head */
    int n_q, n_k, dim, window;             /* window 0: none */
    float scale, scale_log2;               /* and times log2(e): what exp2 takes */
    /* Spans have few keys on average: then more and smaller blocks are faster, as measured on an
     * H100 (tests/gpu/attention_bench.cu). */
    bool is_short;
    struct cuda_draw draw; /* its plane is that of head 0 */
    const int32_t *k_at;
};

/* The keys lo .. hi of the span that queries at .. at + n of it see, at least one of them each. */
ATT void att_seen_keys(const att_problem &p, const struct s2s_span &span, int at, int n, int &lo,
                       int &hi)
{
    lo = 0;
    hi = span.nk;
    if (span.shift == S2S_SPAN_ALL)
        return;
    hi = min(hi, at + n + span.shift);
    if (p.window)
        lo = max(lo, at + span.shift + 1 - p.window);
}

/* The keys that query i of a span sees: begin .. end of its own. */
struct att_range {
    int begin, end;
};

ATT att_range att_keys(const att_problem &p, const s2s_span &span, int i)
{
    att_range r = {0, span.nk};
    if (span.shift != S2S_SPAN_ALL) {
        r.end = min(r.end, i + span.shift + 1);
        r.begin = p.window ? i + span.shift + 1 - p.window : 0;
    }
    return r;
}

/* Scores [16, 8 N] of keys that their query does not see become -inf. i: this lane's first row, j:
 * its first column. */
template <int N>
ATT void att_mask(float (&s)[N][4], const att_problem &p, const s2s_span &span, int i, int j)
{
    const att_range r[2] = {att_keys(p, span, i), att_keys(p, span, i + 8)};
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int col = j + n * 8 + e % 2;
            if (col < r[e / 2].begin || col >= r[e / 2].end)
                s[n][e] = -INFINITY;
        }
}

/* Multiplies what belongs to pairs [16, 8 N] with what dropout leaves of their P. i: this lane's
 * first query, j: its first key. */
template <int N>
ATT void att_drop(float (&s)[N][4], const att_problem &p, const s2s_span &span, int head, int i,
                  int j)
{
    const int32_t *const at = p.k_at + span.k0;
    const int last = span.nk - 1;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const uint32_t e = (uint32_t)at[min(j + n * 8, last)];
        const uint32_t f = (uint32_t)at[min(j + n * 8 + 1, last)];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = span.q0 + min(i + h * 8, span.nq - 1);
            const float2 kept = cuda_kept_two(p.draw, row, e, f, (uint32_t)head);
            s[n][2 * h] *= kept.x;
            s[n][2 * h + 1] *= kept.y;
        }
    }
}

/* The queries lo .. hi of the span that see one of its keys at .. at + n (at may be negative). */
ATT void att_seeing_queries(int window, const struct s2s_span &span, int at, int n, int &lo,
                            int &hi)
{
    const int first = max(at, 0), end = min(at + n, span.nk);
    lo = 0;
    hi = first < end ? span.nq : 0;
    if (span.shift == S2S_SPAN_ALL)
        return;
    lo = max(lo, first - span.shift);
    if (window)
        hi = min(hi, end - 1 + window - span.shift);
}

struct att_problem att_problem_of(const struct s2s_k_attention *args);

/* Tiles there may be in so many rows in n_of spans or groups. */
ATT_HOST int64_t att_most_tiles(int64_t rows, int64_t n_of, int tile)
{
    return rows / tile + n_of;
}

/* Bytes of a list of tiles of ATT_LEAST_TILE rows or more; and takes them from a workspace. */
enum { ATT_LEAST_TILE = 16 };
size_t att_list_bytes(int64_t rows, int64_t n_of);
struct att_list att_list_take(char **workspace, int64_t rows, int64_t n_of);

/* Makes the list of tiles of queries of spans, or of keys of groups, and gives rows that stand in
 * none what they get: 0 in targets, -inf in lse. */
void att_plan_queries(struct s2s_queue *queue, const struct att_problem *p,
                      const struct att_list *list, int tile, const struct att_target *target,
                      float *lse);
void att_plan_keys(struct s2s_queue *queue, const struct att_problem *p,
                   const struct att_list *list, int tile, const struct att_target *dk,
                   const struct att_target *dv);

/* Are q, k, v and one more of bf16? They are of one type. */
bool att_is_bf16(const struct s2s_k_attention *args, enum s2s_dtype more);
/* The width of the tiles for heads of `dim`. */
int att_width(int dim);
struct att_source att_source_of(const struct s2s_mat *mat, int64_t dim);
struct att_target att_target_of(const struct s2s_mat *mat, int64_t dim, bool accumulate);

#undef ATT
#undef ATT_HOST
#endif
