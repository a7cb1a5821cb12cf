/* What the files of the CPU table share. Every function is one entry of struct s2s_kernels. */
#ifndef S2S_KERNELS_CPU_H
#define S2S_KERNELS_CPU_H

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

/* Below this many elements a parallel region costs more than it gains. */
enum { CPU_PARALLEL_MIN = 16384 };
/* Rows that one partial sum covers: a reduction over rows is blocks of this, then their sum. */
enum { CPU_ROW_BLOCK = 64 };

static inline float *cpu_row(const struct s2s_mat *mat, int64_t row)
{
    return (float *)mat->data + row * mat->stride;
}

static inline int64_t cpu_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/*
 * exp in fp32, at most 0.71 ulp and 0.25 on average (an exact rounding has 0.5 and 0.25), written
 * so that a loop over it becomes vector code. Range reduction by ln 2 in two parts, a polynomial of
 * degree 6 (Cephes' coefficients) whose 1 + r is summed in two parts too, the exponent added to
 * the bits. Underflows to 0 below -87.3, saturates at 88.
 */
static inline float cpu_exp(float x)
{
    /* written so that a NaN is clamped too: it has no integer part */
    float clamped = x > -87.3f ? (x < 88.0f ? x : 88.0f) : -87.3f;
    float shifted = clamped * 1.44269504f + 12582912.0f; /* rounds to an integer in the low bits */
    float n = shifted - 12582912.0f;
    float high = clamped - n * 0.693359375f, low = n * 2.12194440e-4f; /* high is exact */
    float r = high + low;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float sum = 1.0f + high, lost = high - (sum - 1.0f);
    p = sum + (p * (r * r) + low + lost);
    int32_t bits = (int32_t)n * (1 << 23);
    union {
        float f;
        int32_t i;
    } u = {.f = p};
    u.i += bits;
    float y = x < -87.3f ? 0.0f : u.f;
    return x != x ? x : y;
}

static inline float cpu_sigmoid(float x)
{
    return 1.0f / (1.0f + cpu_exp(-x));
}

static inline float cpu_tanh(float x)
{
    return 1.0f - 2.0f / (1.0f + cpu_exp(2.0f * x));
}

/*
 * One thread's product, row-major, no parallelism of its own inside an OpenMP region:
 * c[m,n] = alpha op(a) op(b) + beta c. From gemm_dnnl.c or gemm_openblas.c.
 */
void cpu_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
               int64_t ldc);

/* The sequence that holds packed row `row`, which must be one of them. */
static inline int64_t cpu_find_seq(const int32_t *cu, int64_t n_seqs, int64_t row)
{
    int64_t lo = 0, hi = n_seqs - 1;
    while (lo < hi) {
        int64_t mid = (lo + hi + 1) / 2;
        if (cu[mid] <= row)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* out[cols] (+)= the sum of n_partials vectors, in order */
void cpu_add_partials(float *out, const float *partial, int64_t n_partials, int64_t cols,
                      bool accumulate);

void cpu_gemm(struct s2s_queue *queue, const struct s2s_k_gemm *args);
void cpu_axpby(struct s2s_queue *queue, const struct s2s_k_axpby *args);
void cpu_colsum(struct s2s_queue *queue, const struct s2s_k_colsum *args);
void cpu_embedding(struct s2s_queue *queue, const struct s2s_k_embedding *args);
void cpu_embedding_backward(struct s2s_queue *queue, const struct s2s_k_embedding *args);
void cpu_gather_rows(struct s2s_queue *queue, const struct s2s_k_rows *args);
void cpu_scatter_rows(struct s2s_queue *queue, const struct s2s_k_rows *args);
void cpu_rmsnorm(struct s2s_queue *queue, const struct s2s_k_rmsnorm *args);
void cpu_rmsnorm_backward(struct s2s_queue *queue, const struct s2s_k_rmsnorm_backward *args);
void cpu_rope_table(struct s2s_queue *queue, const struct s2s_k_rope_table *args);
void cpu_rope(struct s2s_queue *queue, const struct s2s_k_rope *args);
void cpu_attention(struct s2s_queue *queue, const struct s2s_k_attention *args);
void cpu_attention_backward(struct s2s_queue *queue, const struct s2s_k_attention_backward *args);
void cpu_glu(struct s2s_queue *queue, const struct s2s_k_glu *args);
void cpu_glu_backward(struct s2s_queue *queue, const struct s2s_k_glu_backward *args);
void cpu_conv2d(struct s2s_queue *queue, const struct s2s_k_conv2d *args);
void cpu_conv2d_backward(struct s2s_queue *queue, const struct s2s_k_conv2d_backward *args);
void cpu_dwconv(struct s2s_queue *queue, const struct s2s_k_dwconv *args);
void cpu_dwconv_backward(struct s2s_queue *queue, const struct s2s_k_dwconv_backward *args);
void cpu_layernorm(struct s2s_queue *queue, const struct s2s_k_layernorm *args);
void cpu_layernorm_backward(struct s2s_queue *queue, const struct s2s_k_layernorm_backward *args);
void cpu_column_stats(struct s2s_queue *queue, const struct s2s_k_column_stats *args);
void cpu_batchnorm(struct s2s_queue *queue, const struct s2s_k_batchnorm *args);
void cpu_batchnorm_backward(struct s2s_queue *queue, const struct s2s_k_batchnorm_backward *args);
void cpu_relpos_table(struct s2s_queue *queue, const struct s2s_k_relpos_table *args);
void cpu_relattention(struct s2s_queue *queue, const struct s2s_k_relattention *args);
void cpu_relattention_backward(struct s2s_queue *queue,
                               const struct s2s_k_relattention_backward *args);
void cpu_transpose(struct s2s_queue *queue, const struct s2s_k_transpose *args);
void cpu_cross_entropy(struct s2s_queue *queue, const struct s2s_k_cross_entropy *args);
void cpu_sqdist(struct s2s_queue *queue, const struct s2s_k_sqdist *args);
void cpu_reduce(struct s2s_queue *queue, const struct s2s_k_reduce *args);
void cpu_adamw(struct s2s_queue *queue, const struct s2s_k_adamw *args);

size_t cpu_colsum_workspace(const struct s2s_k_colsum *args);
size_t cpu_rmsnorm_backward_workspace(const struct s2s_k_rmsnorm_backward *args);
size_t cpu_attention_workspace(const struct s2s_k_attention *args);
size_t cpu_attention_backward_workspace(const struct s2s_k_attention_backward *args);
size_t cpu_conv2d_workspace(const struct s2s_k_conv2d *args);
size_t cpu_conv2d_backward_workspace(const struct s2s_k_conv2d_backward *args);
size_t cpu_dwconv_workspace(const struct s2s_k_dwconv *args);
size_t cpu_dwconv_backward_workspace(const struct s2s_k_dwconv_backward *args);
size_t cpu_layernorm_backward_workspace(const struct s2s_k_layernorm_backward *args);
size_t cpu_column_stats_workspace(const struct s2s_k_column_stats *args);
size_t cpu_batchnorm_backward_workspace(const struct s2s_k_batchnorm_backward *args);
size_t cpu_relattention_workspace(const struct s2s_k_relattention *args);
size_t cpu_relattention_backward_workspace(const struct s2s_k_relattention_backward *args);
size_t cpu_reduce_workspace(const struct s2s_k_reduce *args);

#endif
