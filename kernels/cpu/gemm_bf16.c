/*
 * Products of BF16, whose library makes code for each combination of sizes: so a product is cut
 * into blocks of few heights, however long the packs of a run are. Heights are 256, then the
 * multiple of 16 that is left, then what is left of that; sums over rows of packs (gradients of
 * weights, of fp32) are cut likewise. Where the library has no such products (an older machine, or
 * a CBLAS), tiles are widened and multiplied in fp32.
 */
#include "kernels/cpu/cpu.h"

enum { HEIGHT = 256, STEP = 16, WIDTH = 512, MIN_WIDTH = 128, MANY = 16 };

static int64_t n_pieces(int64_t n)
{
    return n / HEIGHT + (n % HEIGHT >= STEP) + (n % STEP > 0);
}

/* Piece i of n: where it begins, and its height. */
static int64_t piece(int64_t n, int64_t i, int64_t *height)
{
    const int64_t whole = n / HEIGHT, rest = n % HEIGHT / STEP * STEP;
    if (i < whole) {
        *height = HEIGHT;
        return i * HEIGHT;
    }
    if (i == whole && rest > 0) {
        *height = rest;
        return whole * HEIGHT;
    }
    *height = n % STEP;
    return n - n % STEP;
}

/* Columns of a block: fewer where there are few blocks. */
static int64_t block_width(const struct s2s_k_gemm *g)
{
    int64_t width = WIDTH;
    while (width > MIN_WIDTH && n_pieces(g->m) * cpu_ceil_div(g->n, width) < MANY)
        width /= 2;
    return width;
}

void cpu_bf16_blocks(const struct s2s_k_gemm *g, int64_t *n_m, int64_t *n_n)
{
    *n_m = n_pieces(g->m);
    *n_n = cpu_ceil_div(g->n, block_width(g));
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

/* Its sums over rows in pieces: only where they are kept in fp32 from one to the next. */
static void in_pieces(struct s2s_k_gemm one)
{
    const int64_t k = one.k;
    const struct s2s_mat a = one.a, b = one.b;
    for (int64_t i = 0; i < n_pieces(k); i++) {
        const int64_t at = piece(k, i, &one.k);
        one.a = cpu_moved(a, at * a.stride);
        one.b = cpu_moved(b, at * b.stride);
        cpu_bgemm(&one);
        one.accumulate = true;
        one.bias.data = NULL;
    }
}

void cpu_bf16_block(const struct s2s_k_gemm *g, int64_t i, int64_t j)
{
    const int64_t width = block_width(g), n0 = j * width;
    struct s2s_k_gemm one = *g;
    const int64_t m0 = piece(g->m, i, &one.m);
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
    else if (g->trans_a && !g->trans_b && !cpu_is_bf16(&g->c))
        in_pieces(one);
    else
        cpu_bgemm(&one);
}
