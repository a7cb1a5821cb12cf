/*
 * c = alpha op(a) op(b) + bias | + c, cut into blocks of c whose size depends on the shape alone,
 * each computed by one thread with the whole of k. So every element is summed in one order whatever
 * the number of threads.
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

static void start_rows(const struct s2s_k_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1)
{
    const float *bias = g->bias;
    for (int64_t i = m0; i < m1; i++) {
        float *c = cpu_row(&g->c, i);
        if (bias)
            memcpy(c + n0, bias + n0, (size_t)(n1 - n0) * sizeof *c);
        else
            memset(c + n0, 0, (size_t)(n1 - n0) * sizeof *c);
    }
}

static void one_block(const struct s2s_k_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1)
{
    const float *a = g->a.data, *b = g->b.data;
    float *c = cpu_row(&g->c, m0) + n0;
    if (g->k == 0 || g->bias) {
        if (!g->accumulate)
            start_rows(g, m0, m1, n0, n1);
        if (g->k == 0)
            return;
    }
    a += g->trans_a ? m0 : m0 * g->a.stride;
    b += g->trans_b ? n0 * g->b.stride : n0;
    float beta = g->accumulate || g->bias ? 1.0f : 0.0f;
    cpu_sgemm(g->trans_a, g->trans_b, m1 - m0, n1 - n0, g->k, g->alpha, a, g->a.stride, b,
              g->b.stride, beta, c, g->c.stride);
}

void cpu_gemm(struct s2s_queue *queue, const struct s2s_k_gemm *args)
{
    const struct s2s_k_gemm *g = args;
    if (g->m == 0 || g->n == 0)
        return;
    int64_t n_m, n_n;
    choose_pieces(g, &n_m, &n_n);
    /* whole vectors and register tiles */
    const int64_t mb = cpu_ceil_div(cpu_ceil_div(g->m, n_m), 16) * 16;
    const int64_t nb = cpu_ceil_div(cpu_ceil_div(g->n, n_n), 16) * 16;
    n_m = cpu_ceil_div(g->m, mb);
    n_n = cpu_ceil_div(g->n, nb);
    bool parallel = n_m * n_n > 1 && g->m * g->n * g->k > 64 * 64 * 64;
#pragma omp parallel num_threads(queue->lanes) if (parallel)
    {
        /* also for a team of one: otherwise the library starts threads of its own, and sums in an
         * order that depends on their number */
        omp_set_num_threads(1);
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t i = 0; i < n_m; i++)
            for (int64_t j = 0; j < n_n; j++) {
                int64_t m1 = (i + 1) * mb < g->m ? (i + 1) * mb : g->m;
                int64_t n1 = (j + 1) * nb < g->n ? (j + 1) * nb : g->n;
                one_block(g, i * mb, m1, j * nb, n1);
            }
    }
}
