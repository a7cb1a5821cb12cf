/*
 * Products of groups of rows: a block has a tile of c of one group, and goes over the sum with
 * tiles of a and b, of which the next ones come while these are multiplied. All groups are one
 * launch: where they begin is known on the device alone, so blocks find their own, and as many are
 * launched as there may be tiles.
 */
#ifndef S2S_KERNELS_CUDA_GEMM_GROUPED_H
#define S2S_KERNELS_CUDA_GEMM_GROUPED_H

#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/seq.h"

/* ---- element types: those of attention, and fp32 rounded to one tf32 ---- */

struct grouped_tf32 {
    typedef float elem;
    enum { STEP = 8 };
    struct frag_a {
        uint32_t r[4];
    };
    struct frag_b {
        uint32_t r[2];
    };
};

static __device__ __forceinline__ void att_mma(float (&d)[4], const grouped_tf32::frag_a &a,
                                               const grouped_tf32::frag_b &b)
{
    mma_tf32(d, a.r, b.r);
}

static __device__ __forceinline__ void att_set(grouped_tf32::frag_a &a, const uint32_t (&r)[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        a.r[i] = float_tf32(cuda_of_bits(r[i]));
}

static __device__ __forceinline__ void att_set(grouped_tf32::frag_b &b, uint32_t r0, uint32_t r1)
{
    b.r[0] = float_tf32(cuda_of_bits(r0));
    b.r[1] = float_tf32(cuda_of_bits(r1));
}

/* ---- what a call is about ---- */

/* Which of op(a) and op(b) are the transposes of what is stored. */
enum grouped_form { GROUPED_NT, GROUPED_NN, GROUPED_TN };

struct grouped {
    const char *a, *b;
    int64_t a_bytes, b_bytes; /* between rows */
    struct cuda_mat c;
    const int32_t *offsets;
    int64_t step; /* elements between the groups' matrices: b, or c of weights */
    int n_groups, n, k;
    bool is_wide_a, is_wide_b; /* rows begin at multiples of 16 bytes */
    bool in_pairs;             /* and those of c at multiples of two elements */
    bool accumulate;
};

/* M x N warps with MT x NT tiles [16, 8] of c each; tiles of a and b are DEPTH long in the sum. */
template <class P_, grouped_form FORM_, int M_, int N_, int MT_, int NT_> struct grouped_shape {
    typedef P_ P;
    typedef typename P::elem E;
    static const grouped_form FORM = FORM_;
    enum { M = M_, N = N_, MT = MT_, NT = NT_, THREADS = M * N * 32, STAGES = 4 };
    enum { ROWS = M * MT * 16, COLS = N * NT * 8, DEPTH = 64 / (int)sizeof(E) };
    enum { TRANS_A = FORM == GROUPED_TN, TRANS_B = FORM == GROUPED_NT };
    /* the rows of tiles as they are stored, and their elements */
    enum { A_ROWS = TRANS_A ? DEPTH : ROWS, A_D = TRANS_A ? ROWS : DEPTH };
    enum { B_ROWS = TRANS_B ? COLS : DEPTH, B_D = TRANS_B ? DEPTH : COLS };
    enum { A_BYTES = ROWS * DEPTH * (int)sizeof(E), B_BYTES = COLS * DEPTH * (int)sizeof(E) };
    enum { STAGE = A_BYTES + B_BYTES, SHARED_BYTES = STAGES * STAGE };
    static_assert(SHARED_BYTES <= 99 << 10, "the shared memory of a block");
};

/* ---- tiles ---- */

/* Begins to copy ROWS rows of D elements, of which those from n_rows on, and bytes of a row from
 * n_bytes on, are zeros (they may be less than none). By all threads. */
template <class P, int D, int ROWS, int THREADS>
static __device__ __forceinline__ void grouped_load(char *tile, const char *src, int64_t row_bytes,
                                                    int n_rows, int64_t n_bytes, bool is_wide)
{
    typedef att_shape<P, D> S;
    typedef typename P::elem E;
    const int t = (int)threadIdx.x;
    if (!is_wide) {
#pragma unroll 1
        for (int i = t; i < ROWS * D; i += THREADS) {
            const int row = i / D, byte = i % D * (int)sizeof(E);
            E *to = (E *)(tile + S::at((uint32_t)row, (uint32_t)byte / 16) + byte % 16);
            *to =
                row < n_rows && byte < n_bytes ? *(const E *)(src + row * row_bytes + byte) : (E)0;
        }
        return;
    }
    enum { STEP = THREADS / S::CHUNKS };
    static_assert(THREADS % S::CHUNKS == 0 && ROWS % STEP == 0, "a thread has one chunk of rows");
    const uint32_t to = shared_addr(tile);
    const int row = t / S::CHUNKS, chunk = t % S::CHUNKS;
    const int64_t left = n_bytes - chunk * 16;
    const int bytes = left <= 0 ? 0 : left < 16 ? (int)left : 16;
    const char *at = opaque(src + row * row_bytes + chunk * 16);
#pragma unroll
    for (int r = 0; r < ROWS; r += STEP)
        cp_async<16>(to + S::at((uint32_t)(r + row), (uint32_t)chunk), at + r * row_bytes,
                     row + r < n_rows ? bytes : 0);
}

/* 32 bits at a row and column of a tile of fp32, which no ldmatrix transposes. */
template <class S>
static __device__ __forceinline__ uint32_t grouped_word(const char *tile, int row, int col)
{
    return *(const uint32_t *)(tile + S::at((uint32_t)row, (uint32_t)col / 4) + col % 4 * 4);
}

/* Rows m .. m + 16 of op(a), step k of the tile. */
template <class S>
static __device__ __forceinline__ void grouped_a(typename S::P::frag_a &a, const char *tile, int m,
                                                 int k)
{
    typedef typename S::P P;
    typedef att_shape<P, S::A_D> Shape;
    const int lane = (int)threadIdx.x % 32;
    uint32_t r[4];
    if constexpr (!S::TRANS_A) {
        att_rows<P, S::A_D>(a, att_lane_tall<Shape>(shared_addr(tile + m * Shape::ROW)), 0, k);
    } else if constexpr (sizeof(typename P::elem) == 2) {
        const att_lane wide = att_lane_wide<Shape>(shared_addr(tile + k * 16 * Shape::ROW));
        ldmatrix_x4<true>(r, att_step<Shape>(wide, m / 16));
        att_set(a, r);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            r[i] =
                grouped_word<Shape>(tile, k * 8 + lane % 4 + i / 2 * 4, m + lane / 4 + i % 2 * 8);
        att_set(a, r);
    }
}

/* Columns n .. n + 16 of op(b), step k of the tile. */
template <class S>
static __device__ __forceinline__ void grouped_b(typename S::P::frag_b (&b)[2], const char *tile,
                                                 int n, int k)
{
    typedef typename S::P P;
    typedef att_shape<P, S::B_D> Shape;
    const int lane = (int)threadIdx.x % 32;
    if constexpr (S::TRANS_B) {
        att_rows<P, S::B_D>(b, att_lane_wide<Shape>(shared_addr(tile + n * Shape::ROW)), 0, k);
    } else if constexpr (sizeof(typename P::elem) == 2) {
        att_columns<S::B_D>(b, att_lane_tall<Shape>(shared_addr(tile)), n / 16, k);
    } else {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = k * 8 + lane % 4, col = n + h * 8 + lane / 4;
            att_set(b[h], grouped_word<Shape>(tile, row, col),
                    grouped_word<Shape>(tile, row + 4, col));
        }
    }
}

template <class S>
static __device__ __forceinline__ void grouped_multiply(float (&c)[S::MT][S::NT][4],
                                                        const char *a_tile, const char *b_tile)
{
    typedef typename S::P P;
    const int warp = (int)threadIdx.x / 32;
    const int m0 = warp / S::N * S::MT * 16, n0 = warp % S::N * S::NT * 8;
#pragma unroll
    for (int k = 0; k < S::DEPTH / P::STEP; k++) {
        typename P::frag_a a[S::MT];
#pragma unroll
        for (int m = 0; m < S::MT; m++)
            grouped_a<S>(a[m], a_tile, m0 + m * 16, k);
#pragma unroll
        for (int n = 0; n < S::NT / 2; n++) {
            typename P::frag_b b[2];
            grouped_b<S>(b, b_tile, n0 + n * 16, k);
#pragma unroll
            for (int m = 0; m < S::MT; m++) {
                att_mma(c[m][2 * n], a[m], b[0]);
                att_mma(c[m][2 * n + 1], a[m], b[1]);
            }
        }
    }
}

/* ---- blocks ---- */

/* What a block multiplies: rows `row` .. end of a, with what the group has. */
struct grouped_tile {
    int group, row, end;
    int m, n; /* of weights, its first row of c; its first column */
};

/* Step s of the sum: a's and b's tiles. */
template <class S>
static __device__ __forceinline__ void grouped_load_step(const grouped &g, const grouped_tile &at,
                                                         const char *b, int s, char *stage)
{
    typedef typename S::P P;
    const int64_t size = sizeof(typename S::E), l = (int64_t)s * S::DEPTH;
    const int left = (S::TRANS_A ? at.end - at.row : g.k) - (int)l; /* of the sum */
    if constexpr (S::TRANS_A)
        grouped_load<P, S::A_D, S::A_ROWS, S::THREADS>(
            stage, g.a + (at.row + l) * g.a_bytes + at.m * size, g.a_bytes, left,
            (g.k - at.m) * size, g.is_wide_a);
    else
        grouped_load<P, S::A_D, S::A_ROWS, S::THREADS>(stage, g.a + at.row * g.a_bytes + l * size,
                                                       g.a_bytes, at.end - at.row, left * size,
                                                       g.is_wide_a);
    if constexpr (S::TRANS_B)
        grouped_load<P, S::B_D, S::B_ROWS, S::THREADS>(stage + S::A_BYTES,
                                                       b + at.n * g.b_bytes + l * size, g.b_bytes,
                                                       g.n - at.n, left * size, g.is_wide_b);
    else
        grouped_load<P, S::B_D, S::B_ROWS, S::THREADS>(stage + S::A_BYTES,
                                                       b + l * g.b_bytes + at.n * size, g.b_bytes,
                                                       left, (g.n - at.n) * size, g.is_wide_b);
}

/* Two results side by side; there may be one. */
static __device__ __forceinline__ void grouped_put(const grouped &g, const struct cuda_mat &c,
                                                   int64_t row, int col, float x, float y)
{
    const int64_t at = row * c.stride + col;
    if (col >= g.n)
        return;
    if (!g.in_pairs || col + 1 == g.n) {
        cuda_put(c, row, col, x + (g.accumulate ? cuda_get(c, row, col) : 0));
        if (col + 1 < g.n)
            cuda_put(c, row, col + 1, y + (g.accumulate ? cuda_get(c, row, col + 1) : 0));
    } else if (c.bf16) {
        uint32_t *const to = (uint32_t *)((uint16_t *)c.data + at);
        const uint32_t was = g.accumulate ? *to : 0;
        *to = pack_bf16(x + cuda_of_bits(was << 16), y + cuda_of_bits(was & 0xffff0000u));
    } else {
        float2 *const to = (float2 *)((float *)c.data + at);
        const float2 was = g.accumulate ? *to : make_float2(0, 0);
        *to = make_float2(x + was.x, y + was.y);
    }
}

/* The block's part of c, of which `rows` rows from `row` on are there. */
template <class S>
static __device__ __forceinline__ void grouped_store(const grouped &g, const struct cuda_mat &to,
                                                     int row, int rows, int n,
                                                     const float (&c)[S::MT][S::NT][4])
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int m0 = warp / S::N * S::MT * 16 + lane / 4, n0 = n + warp % S::N * S::NT * 8;
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = m0 + m * 16 + h * 8;
            if (i >= rows)
                continue;
#pragma unroll
            for (int j = 0; j < S::NT; j++)
                grouped_put(g, to, row + i, n0 + j * 8 + lane % 4 * 2, c[m][j][2 * h],
                            c[m][j][2 * h + 1]);
        }
}

template <class S> __global__ void __launch_bounds__(S::THREADS, 2) grouped_kernel(const grouped g)
{
    SHARED(char, sh);
    const int n_cols = (g.n + S::COLS - 1) / S::COLS;
    const int tile = (int)(blockIdx.x / (unsigned)n_cols);
    grouped_tile at = {0, 0, 0, 0, (int)(blockIdx.x % (unsigned)n_cols) * S::COLS};
    struct cuda_mat to = g.c;
    const char *b = g.b;
    if constexpr (S::TRANS_A) {
        const int n_rows = (g.k + S::ROWS - 1) / S::ROWS;
        at.group = tile / n_rows;
        at.m = tile % n_rows * S::ROWS;
        at.row = g.offsets[at.group];
        at.end = g.offsets[at.group + 1];
        b += at.row * g.b_bytes;
        to.data += at.group * g.step * (to.bf16 ? 2 : 4);
    } else {
        seq_tile found;
        if (!seq_find_tile(g.offsets, g.n_groups, tile, S::ROWS, &found))
            return;
        at.group = found.seq;
        at.row = found.row;
        at.end = found.end;
        b += at.group * g.step * (int64_t)sizeof(typename S::E);
    }
    const int length = S::TRANS_A ? at.end - at.row : g.k;
    const int steps = (length + S::DEPTH - 1) / S::DEPTH;
    float c[S::MT][S::NT][4] = {};
#pragma unroll
    for (int s = 0; s < S::STAGES - 1; s++) {
        if (s < steps)
            grouped_load_step<S>(g, at, b, s, sh + s * S::STAGE);
        cp_async_commit();
    }
    for (int s = 0; s < steps; s++) {
        const int next = s + S::STAGES - 1;
        const char *const stage = sh + s % S::STAGES * S::STAGE;
        cp_async_wait<S::STAGES - 2>();
        __syncthreads(); /* this step is there, and nobody reads the one before any more */
        if (next < steps)
            grouped_load_step<S>(g, at, b, next, sh + next % S::STAGES * S::STAGE);
        cp_async_commit();
        grouped_multiply<S>(c, stage, stage + S::A_BYTES);
    }
    if constexpr (S::TRANS_A)
        grouped_store<S>(g, to, at.m, g.k - at.m, at.n, c);
    else
        grouped_store<S>(g, to, at.row, at.end - at.row, at.n, c);
}

#endif
