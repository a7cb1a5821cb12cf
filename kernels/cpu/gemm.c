/*
 * c = alpha op(a) op(b) + bias + c, cut into blocks of c whose size depends on the shape alone,
 * each computed by one thread with the whole of k. So every element is summed in one order whatever
 * the number of threads.
 * Products of BF16 are cut in gemm_bf16.c.
 */
#include <omp.h>

#include "kernels/cpu/cpu.h"

/*
 * How many pieces m and n are cut into. The library packs its operands block by block, so blocks
 * should be wide (n up to 1024) and, where b is transposed while packing, high; measured on Zen 4:
 * 64 x 512 reaches .80 of 2048 x 512 with b transposed and .95 without, 256 x 512 .95 and 1.0.
 */
static void choose_pieces(const struct s2s_k_gemm *g, int64_t *pieces_m, int64_t *pieces_n)
{
    enum { MAX_M = 512, MAX_N = 1024, MIN_N = 256, FEW = 4 };
    const int64_t many = g->trans_b ? 8 : 16;
    const int64_t min_m = g->trans_b ? 192 : g->k > 8192 ? 64 : 128;
    int64_t pm = cpu_ceil_div(g->m, MAX_M), pn = cpu_ceil_div(g->n, MAX_N);
    while (pm * pn < many && g->m / (2 * pm) >= min_m)
        pm *= 2;
    /* a low matrix: rather narrow blocks than idle cores */
    while (pm * pn < FEW && g->n / (2 * pn) >= MIN_N)
        pn *= 2;
    *pieces_m = pm;
    *pieces_n = pn;
}

/* c of rows m0 .. m1, columns n0 .. n1 before the product adds to it. */
CPU_INLINE void start_row(const struct s2s_k_gemm *g, int64_t i, int64_t n0, int64_t n1, bool bf16)
{
    const float *bias = g->bias.data;
    void *c = cpu_any_row(&g->c, i);
    for (int64_t j = n0; j < n1; j++)
        cpu_store(c, j, (bias ? bias[j] : 0) + (g->accumulate ? cpu_load(c, j, bf16) : 0), bf16);
}

void cpu_gemm_start(const struct s2s_k_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1)
{
    for (int64_t i = m0; i < m1; i++)
        if (cpu_is_bf16(&g->c))
            start_row(g, i, n0, n1, true);
        else
            start_row(g, i, n0, n1, false);
}

static void one_block(const struct s2s_k_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1)
{
    const float *a = g->a.data, *b = g->b.data;
    float *c = cpu_row(&g->c, m0) + n0;
    if (g->bias.data || (g->k == 0 && !g->accumulate))
        cpu_gemm_start(g, m0, m1, n0, n1);
    if (g->k == 0)
        return;
    a += g->trans_a ? m0 : m0 * g->a.stride;
    b += g->trans_b ? n0 * g->b.stride : n0;
    float beta = g->accumulate || g->bias.data ? 1.0f : 0.0f;
    cpu_sgemm(g->trans_a, g->trans_b, m1 - m0, n1 - n0, g->k, g->alpha, a, g->a.stride, b,
              g->b.stride, beta, c, g->c.stride);
}

/* Blocks of a product: how many each way, and their sizes. */
struct blocks {
    int64_t n_m, n_n, m, n;
};

static struct blocks find_blocks(const struct s2s_k_gemm *g)
{
    struct blocks blk = {0};
    if (g->m == 0 || g->n == 0)
        return blk;
    if (cpu_is_bf16(&g->a)) {
        cpu_bf16_blocks(g, &blk.n_m, &blk.n_n);
        return blk;
    }
    choose_pieces(g, &blk.n_m, &blk.n_n);
    /* whole vectors and register tiles */
    blk.m = cpu_ceil_div(cpu_ceil_div(g->m, blk.n_m), 16) * 16;
    blk.n = cpu_ceil_div(cpu_ceil_div(g->n, blk.n_n), 16) * 16;
    blk.n_m = cpu_ceil_div(g->m, blk.m);
    blk.n_n = cpu_ceil_div(g->n, blk.n);
    return blk;
}

static void run_block(const struct s2s_k_gemm *g, const struct blocks *blk, int64_t i, int64_t j)
{
    if (cpu_is_bf16(&g->a)) {
        cpu_bf16_block(g, i, j);
        return;
    }
    int64_t m1 = (i + 1) * blk->m < g->m ? (i + 1) * blk->m : g->m;
    int64_t n1 = (j + 1) * blk->n < g->n ? (j + 1) * blk->n : g->n;
    one_block(g, i * blk->m, m1, j * blk->n, n1);
}

void cpu_gemm(struct s2s_queue *queue, const struct s2s_k_gemm *args)
{
    const struct s2s_k_gemm *g = args;
    const int64_t n_batch = g->n_batch > 0 ? g->n_batch : 1;
    if (cpu_bf16_of_many_rows(queue, g))
        return;
    const struct blocks blk = find_blocks(g);
    const bool parallel =
        n_batch * blk.n_m * blk.n_n > 1 && n_batch * g->m * g->n * g->k > 64 * 64 * 64;
#pragma omp parallel num_threads(queue->lanes) if (parallel)
    {
        /* also for a team of one: otherwise the library starts threads of its own, and sums in an
         * order that depends on their number */
        omp_set_num_threads(1);
#pragma omp for collapse(3) schedule(dynamic, 1)
        for (int64_t q = 0; q < n_batch; q++)
            for (int64_t i = 0; i < blk.n_m; i++)
                for (int64_t j = 0; j < blk.n_n; j++) {
                    struct s2s_k_gemm one = *g;
                    one.a = cpu_moved(g->a, q * g->step_a);
                    one.b = cpu_moved(g->b, q * g->step_b);
                    one.c = cpu_moved(g->c, q * g->step_c);
                    run_block(&one, &blk, i, j);
                }
    }
}

/* ---- groups of rows ---- */

static struct s2s_k_gemm product_of(const struct s2s_k_gemm_grouped *g, int64_t group)
{
    const int64_t begin = g->offsets[group], rows = g->offsets[group + 1] - begin;
    struct s2s_k_gemm one = {.a = cpu_moved(g->a, begin * g->a.stride),
                             .b = g->b,
                             .c = g->c,
                             .n = g->n,
                             .accumulate = g->accumulate,
                             .alpha = 1};
    if (g->of_weights) {
        one.b = cpu_moved(g->b, begin * g->b.stride);
        one.c = cpu_moved(g->c, group * g->step);
        one.m = g->k;
        one.k = rows;
        one.trans_a = true;
    } else {
        one.b = cpu_moved(g->b, group * g->step);
        one.c = cpu_moved(g->c, begin * g->c.stride);
        one.m = rows;
        one.k = g->k;
        one.trans_b = g->trans_b;
    }
    return one;
}

void cpu_gemm_grouped(struct s2s_queue *queue, const struct s2s_k_gemm_grouped *args)
{
    const bool parallel = args->rows * args->n * args->k > 64 * 64 * 64;
#pragma omp parallel num_threads(queue->lanes) if (parallel)
    {
        omp_set_num_threads(1); /* see above */
        for (int64_t group = 0; group < args->n_groups; group++) {
            const struct s2s_k_gemm one = product_of(args, group);
            const struct blocks blk = find_blocks(&one);
#pragma omp for collapse(2) schedule(dynamic, 1) nowait
            for (int64_t i = 0; i < blk.n_m; i++)
                for (int64_t j = 0; j < blk.n_n; j++)
                    run_block(&one, &blk, i, j);
        }
    }
}
