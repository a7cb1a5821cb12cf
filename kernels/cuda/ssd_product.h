/*
 * Products of chunks on the tensor cores. The scan is a few of them, whose operands are made of
 * what lies in memory while they go to shared memory: an operation says where its tiles come from
 * and where its results go, and one kernel does the rest.
 *
 * A block of four warps has 64 x 64 results; the sum goes over tiles of 64. An operand's tile has
 * the rows of memory: those of results with the sum along them (ROWS), or those of the sum with
 * results along them (COLUMNS), so that neighbouring threads read neighbouring elements always.
 */
#ifndef S2S_KERNELS_CUDA_SSD_PRODUCT_H
#define S2S_KERNELS_CUDA_SSD_PRODUCT_H

#include "kernels/cuda/attention_tile.h"

enum { SSD_TILE = 64, SSD_THREADS = 128 };

#define SSD static __device__ __forceinline__

/* ---- fragments of tiles whose rows are those of the sum ---- */

/* Columns 16 m .. as operand a, step k of the rows. */
SSD void ssd_columns(att_bf16::frag_a &a, const char *tile, int m, int k)
{
    typedef att_shape<att_bf16, SSD_TILE> S;
    uint32_t r[4];
    ldmatrix_x4<true>(r, att_step<S>(att_lane_wide<S>(shared_addr(tile)), m) +
                             (uint32_t)(k * 16 * S::ROW));
    att_set(a, r);
}

/* Columns 16 n .. as two operands b. */
SSD void ssd_columns(att_bf16::frag_b (&b)[2], const char *tile, int n, int k)
{
    typedef att_shape<att_bf16, SSD_TILE> S;
    att_columns<SSD_TILE>(b, att_lane_tall<S>(shared_addr(tile)), n, k);
}

SSD uint32_t ssd_word(const char *tile, int row, int col)
{
    typedef att_shape<att_f32, SSD_TILE> S;
    return *(const uint32_t *)(tile + S::at((uint32_t)row, (uint32_t)col / 4) + col % 4 * 4);
}

SSD void ssd_columns(att_f32::frag_a &a, const char *tile, int m, int k)
{
    const int lane = (int)threadIdx.x % 32, row = k * 8 + lane % 4, col = m * 16 + lane / 4;
    const uint32_t r[4] = {ssd_word(tile, row, col), ssd_word(tile, row, col + 8),
                           ssd_word(tile, row + 4, col), ssd_word(tile, row + 4, col + 8)};
    att_set(a, r);
}

SSD void ssd_columns(att_f32::frag_b (&b)[2], const char *tile, int n, int k)
{
    const int lane = (int)threadIdx.x % 32, row = k * 8 + lane % 4, col = n * 16 + lane / 4;
    att_set(b[0], ssd_word(tile, row, col), ssd_word(tile, row + 4, col));
    att_set(b[1], ssd_word(tile, row, col + 8), ssd_word(tile, row + 4, col + 8));
}

/* ---- tiles ---- */

SSD void ssd_keep(char *tile, int row, int col, const float (&x)[8], att_bf16)
{
    struct cuda_words v;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v.w[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
    *(struct cuda_words *)(tile + att_shape<att_bf16, SSD_TILE>::at(row, col / 8)) = v;
}

SSD void ssd_keep(char *tile, int row, int col, const float (&x)[8], att_f32)
{
    struct cuda_words v;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v.w[i] = cuda_bits(x[half * 4 + i]);
        *(struct cuda_words *)(tile + att_shape<att_f32, SSD_TILE>::at(row, col / 4 + half)) = v;
    }
}

/* A matrix that tiles come from. Elements from row `rows` or column `cols` on are zeros. */
struct ssd_source {
    struct cuda_mat mat;
    bool is_wide; /* 8 elements at a multiple of 8 from a part's first may be read at once */
};

static inline struct ssd_source ssd_source_of(const struct s2s_mat *mat, int64_t part)
{
    const struct ssd_source from = {cuda_mat(mat), cuda_is_wide(mat, part)};
    return from;
}

/* One of two by its fields: one of two by its address makes the compiler keep all of an operation
 * in local memory. */
SSD struct ssd_source ssd_either(bool first, const struct ssd_source &a, const struct ssd_source &b)
{
    const struct ssd_source one = {{first ? a.mat.data : b.mat.data,
                                    first ? a.mat.stride : b.mat.stride,
                                    first ? a.mat.bf16 : b.mat.bf16},
                                   first ? a.is_wide : b.is_wide};
    return one;
}

/* 8 elements of a row from `col` of a part of `cols` columns, which begins at column `first`; of a
 * matrix that is absent zeros. */
SSD void ssd_read(float (&x)[8], const struct ssd_source &from, int64_t row, int64_t first, int col,
                  int cols)
{
    if (from.is_wide && from.mat.data && col + 8 <= cols) {
        cuda_load(x, from.mat, row, first + col);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = col + i < cols && from.mat.data ? cuda_get(from.mat, row, first + col + i) : 0;
}

/* The same of floats without gaps. */
SSD void ssd_read(float (&x)[8], const float *from, int64_t row, int col, int cols)
{
    const struct ssd_source source = {{(char *)from, cols, false}, cols % 8 == 0};
    ssd_read(x, source, row, 0, col, cols);
}

SSD void ssd_zeros(float (&x)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = 0;
}

SSD void ssd_scale(float (&x)[8], float factor)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] *= factor;
}

/*
 * An operation has
 *   bool begin(batch, m, n)          results from row m and column n on; false: there are none
 *   int tiles()                      of the sum
 *   bool a_rows(tile), b_rows(tile)  which kind they are
 *   void a_(x, tile, row, col), b_(..) 8 elements of an operand's tile
 *   void put(row, col, x, y)         two results side by side
 */
template <class P, class Op>
__global__ void __launch_bounds__(SSD_THREADS) ssd_product_kernel(Op op)
{
    typedef att_shape<P, SSD_TILE> S;
    SHARED(char, sh);
    char *const a_tile = sh, *const b_tile = sh + SSD_TILE * S::ROW;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float d[SSD_TILE / 8][4] = {};
    if (!op.begin(blockIdx.x, (int)blockIdx.y * SSD_TILE, (int)blockIdx.z * SSD_TILE))
        return;
    const int tiles = op.tiles();
    for (int tile = 0; tile < tiles; tile++) {
        const bool a_rows = op.a_rows(tile), b_rows = op.b_rows(tile);
        float x[8];
        __syncthreads();
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < SSD_TILE * SSD_TILE / 8; i += SSD_THREADS) {
            const int row = i / 8, col = i % 8 * 8;
            op.a_(x, tile, row, col);
            ssd_keep(a_tile, row, col, x, P());
            op.b_(x, tile, row, col);
            ssd_keep(b_tile, row, col, x, P());
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < SSD_TILE / P::STEP; k++) {
            typename P::frag_a a;
            if (a_rows)
                att_rows<P, SSD_TILE>(a, att_lane_tall<S>(shared_addr(a_tile)), warp, k);
            else
                ssd_columns(a, a_tile, warp, k);
#pragma unroll
            for (int n = 0; n < SSD_TILE / 16; n++) {
                typename P::frag_b b[2];
                if (b_rows)
                    att_rows<P, SSD_TILE>(b, att_lane_wide<S>(shared_addr(b_tile)), n, k);
                else
                    ssd_columns(b, b_tile, n, k);
                att_mma(d[2 * n], a, b[0]);
                att_mma(d[2 * n + 1], a, b[1]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < SSD_TILE / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            op.put(warp * 16 + h * 8 + lane / 4, n * 8 + lane % 4 * 2, d[n][2 * h],
                   d[n][2 * h + 1]);
}

/* batches x m x n results */
template <class Op>
static void ssd_product(struct s2s_queue *queue, const Op &op, bool bf16, int64_t batches,
                        int64_t m, int64_t n)
{
    const dim3 grid((unsigned)batches, (unsigned)cuda_ceil_div(m, SSD_TILE),
                    (unsigned)cuda_ceil_div(n, SSD_TILE));
    const size_t shared = 2 * SSD_TILE * SSD_TILE * (bf16 ? 2 : 4);
    if (bf16)
        LAUNCH(queue, (ssd_product_kernel<att_bf16, Op>), grid, SSD_THREADS, shared, op);
    else
        LAUNCH(queue, (ssd_product_kernel<att_f32, Op>), grid, SSD_THREADS, shared, op);
}

#undef SSD
#endif
