/*
 * Products of BF16, cut into blocks of which one thread computes each with the whole of k. A matrix
 * that many rows are multiplied by is first brought into the library's own order, once for all:
 * measured on Zen 4, a core then has 215 of the 230 GFLOP/s that its instruction allows, where
 * blocks that copy have 185 to 205. Where the library has no such products (an older machine, or a
 * CBLAS), tiles are widened and multiplied in fp32.
 */
#include <omp.h>

#include "kernels/cpu/cpu.h"

enum {
    HEIGHT = 256,
    MIN_HEIGHT = 128,
    WIDTH = 512,
    MIN_WIDTH = 128,
    STEP = 16,
    MANY = 16,
    FEW = 4
};

/* Rows of a block: about `most`. The library copies b for each block, so the last one is not left
 * with a few. */
static int64_t even_height(const struct s2s_k_gemm *g, int64_t most)
{
    return cpu_ceil_div(cpu_ceil_div(g->m, cpu_ceil_div(g->m, most)), STEP) * STEP;
}

/*
 * Rows and columns of a block: fewer where there are few blocks. Where a is transposed, which its
 * copy costs most of, blocks are rather lower than narrower: measured on Zen 4, 128 x 512 of sums
 * over 2,003 rows has .95 of 256 x 512, 256 x 128 has .90, 128 x 128 has .85.
 */
static void block_size(const struct s2s_k_gemm *g, int64_t *height, int64_t *width)
{
    int64_t most = HEIGHT;
    *width = WIDTH;
    while (g->trans_a && most > MIN_HEIGHT &&
           cpu_ceil_div(g->m, most) * cpu_ceil_div(g->n, *width) < MANY)
        most /= 2;
    while (*width > MIN_WIDTH &&
           cpu_ceil_div(g->m, most) * cpu_ceil_div(g->n, *width) < (g->trans_a ? FEW : MANY))
        *width /= 2;
    *height = even_height(g, most);
}

void cpu_bf16_blocks(const struct s2s_k_gemm *g, int64_t *n_m, int64_t *n_n)
{
    int64_t height, width;
    block_size(g, &height, &width);
    *n_m = cpu_ceil_div(g->m, height);
    *n_n = cpu_ceil_div(g->n, width);
}

/* ---- without the library ---- */

enum { TILE_M = 64, TILE_N = 128, TILE_K = 256 };

/* sum [m, n] += op(a) op(b) of a tile and k .. k + n_k */
static void add_tile(const struct s2s_k_gemm *g, int64_t i, int64_t j, int64_t k, int64_t m,
                     int64_t n, int64_t n_k, float *sum)
{
    float room_a[TILE_M * TILE_K], room_b[TILE_K * TILE_N];
    int64_t lda, ldb;
    const float *a = g->trans_a ? cpu_widen(&g->a, k, i, n_k, m, room_a, &lda)
                                : cpu_widen(&g->a, i, k, m, n_k, room_a, &lda);
    const float *b = g->trans_b ? cpu_widen(&g->b, j, k, n, n_k, room_b, &ldb)
                                : cpu_widen(&g->b, k, j, n_k, n, room_b, &ldb);
    cpu_sgemm(g->trans_a, g->trans_b, m, n, n_k, g->alpha, a, lda, b, ldb, 1, sum, n);
}

static void widened_product(const struct s2s_k_gemm *g)
{
    float sum[TILE_M * TILE_N];
    const float *bias = g->bias.data;
    for (int64_t i = 0; i < g->m; i += TILE_M)
        for (int64_t j = 0; j < g->n; j += TILE_N) {
            const int64_t m = g->m - i < TILE_M ? g->m - i : TILE_M;
            const int64_t n = g->n - j < TILE_N ? g->n - j : TILE_N;
            for (int64_t r = 0; r < m; r++)
                for (int64_t c = 0; c < n; c++)
                    sum[r * n + c] = bias ? bias[j + c] : 0;
            for (int64_t k = 0; k < g->k; k += TILE_K)
                add_tile(g, i, j, k, m, n, g->k - k < TILE_K ? g->k - k : TILE_K, sum);
            cpu_narrow(&g->c, i, j, m, n, sum, n, g->accumulate);
        }
}

/* ---- a block ---- */

void cpu_bf16_block(const struct s2s_k_gemm *g, int64_t i, int64_t j)
{
    int64_t height, width;
    block_size(g, &height, &width);
    const int64_t m0 = i * height, n0 = j * width;
    struct s2s_k_gemm one = *g;
    one.m = g->m - m0 < height ? g->m - m0 : height;
    one.n = g->n - n0 < width ? g->n - n0 : width;
    if (g->k == 0) {
        cpu_gemm_start(g, m0, m0 + one.m, n0, n0 + one.n);
        return;
    }
    one.a = cpu_moved(g->a, g->trans_a ? m0 : m0 * g->a.stride);
    one.b = cpu_moved(g->b, g->trans_b ? n0 * g->b.stride : n0);
    one.c = cpu_moved(g->c, m0 * g->c.stride + n0);
    if (one.bias.data)
        one.bias = cpu_moved(one.bias, n0);
    if (!cpu_has_bgemm() || g->alpha != 1)
        widened_product(&one);
    else
        cpu_bgemm(&one);
}

/* ---- many rows ---- */

/* A product in pieces of ROWS rows, then the multiple of STEP that is left, then what is left of
 * that: few sizes, however long the packs of a run are. */
enum { MANY_ROWS = 512, ROWS = 64, COLUMNS = 128, MIN_WIDE = 64, MOST_ORDERED = 1 << 25 };

static int64_t n_pieces(int64_t m)
{
    return m / ROWS + (m % ROWS >= STEP) + (m % STEP > 0);
}

/* Piece i of m rows: where it begins, and its height. */
static int64_t piece(int64_t m, int64_t i, int64_t *height)
{
    const int64_t whole = m / ROWS, rest = m % ROWS / STEP * STEP;
    if (i < whole) {
        *height = ROWS;
        return i * ROWS;
    }
    if (i == whole && rest > 0) {
        *height = rest;
        return whole * ROWS;
    }
    *height = m % STEP;
    return m - m % STEP;
}

static struct s2s_k_gemm take_piece(const struct s2s_k_gemm *g, int64_t i)
{
    struct s2s_k_gemm one = *g;
    const int64_t m0 = piece(g->m, i, &one.m);
    one.a = cpu_moved(g->a, m0 * g->a.stride);
    one.c = cpu_moved(g->c, m0 * g->c.stride);
    return one;
}

bool cpu_bf16_of_many_rows(struct s2s_queue *queue, const struct s2s_k_gemm *g)
{
    if (!cpu_is_bf16(&g->a) || g->n_batch > 1 || g->m < MANY_ROWS || g->n < MIN_WIDE ||
        g->k < MIN_WIDE || g->n * g->k > MOST_ORDERED || g->trans_a || g->a.stride != g->k ||
        g->c.stride != g->n || g->alpha != 1 || !cpu_has_bgemm())
        return false;
    const struct s2s_k_gemm first = take_piece(g, 0);
    struct cpu_room *room = cpu_bgemm_room(&first);
    if (!room)
        return false;
#pragma omp parallel num_threads(queue->lanes)
    {
        omp_set_num_threads(1); /* see gemm.c */
#pragma omp for schedule(dynamic, 1)
        for (int64_t j = 0; j < g->n; j += COLUMNS)
            cpu_bgemm_order(g, room, j, g->n - j < COLUMNS ? g->n - j : COLUMNS);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n_pieces(g->m); i++) {
            const struct s2s_k_gemm one = take_piece(g, i);
            cpu_bgemm_ordered(&one, room);
        }
    }
    return true;
}
