/* blas.h on the CPU: plain loops that sum in fp32 in the order of k. */
#include <stdlib.h>

#include "kernels/cuda/blas.h"
#include "lib/base/half.h"

struct blas {
    char unused;
};

int blas_new(struct blas **blas, struct rt_stream *stream)
{
    *blas = (struct blas *)calloc(1, sizeof **blas);
    return *blas ? 0 : 1;
}

void blas_free(struct blas *blas)
{
    free(blas);
}

const char *blas_status_text(int status)
{
    return NULL;
}

static float get(const struct s2s_mat *mat, int64_t at)
{
    if (mat->dtype == S2S_BF16)
        return s2s_f32_of_bits(s2s_bits_bf16_to_f32(((const uint16_t *)mat->data)[at]));
    return ((const float *)mat->data)[at];
}

static void put(const struct s2s_mat *mat, int64_t at, float x)
{
    if (mat->dtype == S2S_BF16)
        ((uint16_t *)mat->data)[at] = s2s_bits_f32_to_bf16(s2s_bits_of_f32(x));
    else
        ((float *)mat->data)[at] = x;
}

/* One row of c; sums stands for all its columns, so that the inner loop is over columns. */
static void one_row(const struct s2s_k_gemm *g, float beta, int64_t batch, int64_t i, float *sums)
{
    for (int64_t j = 0; j < g->n; j++)
        sums[j] = 0;
    for (int64_t l = 0; l < g->k; l++) {
        const float a = get(&g->a, batch * g->step_a +
                                       (g->trans_a ? l * g->a.stride + i : i * g->a.stride + l));
        const int64_t b = batch * g->step_b + (g->trans_b ? l : l * g->b.stride);
        const int64_t step = g->trans_b ? g->b.stride : 1;
        for (int64_t j = 0; j < g->n; j++)
            sums[j] += a * get(&g->b, b + j * step);
    }
    for (int64_t j = 0; j < g->n; j++) {
        const int64_t at = batch * g->step_c + i * g->c.stride + j;
        put(&g->c, at, g->alpha * sums[j] + (beta != 0 ? beta * get(&g->c, at) : 0));
    }
}

int blas_gemm(struct blas *blas, const struct s2s_k_gemm *g, float beta, bool tf32)
{
    const int64_t n_batch = g->n_batch > 0 ? g->n_batch : 1;
    float *sums = (float *)malloc((size_t)(g->n + 1) * sizeof *sums);
    if (!sums)
        return 1;
    for (int64_t batch = 0; batch < n_batch; batch++)
        for (int64_t i = 0; i < g->m; i++)
            one_row(g, beta, batch, i, sums);
    free(sums);
    return 0;
}
