/* The dense product: every transposition, odd sizes, strides, bias, accumulation. */
#include "tests/unit/kernels/kernel_test.h"

struct shape {
    int64_t m, n, k;
};

/* one, vectors, nothing to sum, sizes around the blocks' edges */
static const struct shape shapes[] = {{1, 1, 1},     {7, 5, 3},    {1, 33, 17},   {65, 1, 40},
                                      {3, 4, 0},     {0, 5, 5},    {129, 67, 31}, {257, 130, 96},
                                      {48, 600, 70}, {600, 48, 70}};

static void reference(double *c, const float *a, int64_t lda, bool ta, const float *b, int64_t ldb,
                      bool tb, const float *start, int64_t start_stride, double alpha,
                      struct shape s)
{
    for (int64_t i = 0; i < s.m; i++)
        for (int64_t j = 0; j < s.n; j++) {
            double sum = 0;
            for (int64_t p = 0; p < s.k; p++)
                sum += (double)(ta ? a[p * lda + i] : a[i * lda + p]) *
                       (tb ? b[j * ldb + p] : b[p * ldb + j]);
            c[i * s.n + j] = alpha * sum + (start ? start[i * start_stride + j] : 0);
        }
}

static void one(struct shape s, bool ta, bool tb, int mode)
{
    int64_t lda = (ta ? s.m : s.k) + 3, ldb = (tb ? s.k : s.n) + 1, ldc = s.n + 2;
    float *a = values(ta ? s.k : s.m, ta ? s.m : s.k, lda, 1);
    float *b = values(tb ? s.n : s.k, tb ? s.k : s.n, ldb, 2);
    float *c = values(s.m, s.n, ldc, 3), *bias = values(1, s.n, s.n, 4);
    double *want = s2s_xcalloc((size_t)(s.m * s.n + 1), sizeof *want);
    /* mode 0: plain over old NaN; 1: accumulate; 2: bias */
    reference(want, a, lda, ta, b, ldb, tb,
              mode == 1   ? c
              : mode == 2 ? bias
                          : NULL,
              mode == 1 ? ldc : 0, 0.5, s);
    for (int64_t i = 0; mode != 1 && i < s.m * ldc; i++)
        c[i] = NAN;
    k->gemm(&queue, &(struct s2s_k_gemm){mat(a, lda), mat(b, ldb), mat(c, ldc),
                                         mode == 2 ? vec(bias) : NULL, s.m, s.n, s.k, ta, tb,
                                         mode == 1, 0.5f});
    done();
    /* fp32 sums of k normal products: a few sqrt(k) roundings */
    close_to("c", c, want, s.m, s.n, ldc, 1e-6 * sqrt((double)s.k + 1));
    free(a);
    free(b);
    free(c);
    free(bias);
    free(want);
}

static void products_agree_with_the_definition(void **state)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int how = 0; how < 12; how++)
            one(shapes[i], how & 1, how & 2, how / 4);
}

static void small_integers_are_exact(void **state)
{
    enum { N = 150 };
    static float a[N * N], b[N * N], c[N * N];
    for (int i = 0; i < N * N; i++) {
        a[i] = (float)(i % 7 - 3);
        b[i] = (float)(i % 5 - 2);
    }
    k->gemm(&queue, &(struct s2s_k_gemm){{in(a, sizeof a), N, S2S_F32},
                                         {in(b, sizeof b), N, S2S_F32},
                                         {on(c, sizeof c), N, S2S_F32},
                                         NULL,
                                         N,
                                         N,
                                         N,
                                         false,
                                         true,
                                         false,
                                         1});
    done();
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < N; p++)
                sum += a[i * N + p] * b[j * N + p];
            assert_true(c[i * N + j] == sum);
        }
}

static void threads_do_not_change_a_byte(void **state)
{
    const int64_t m = 300, n = 700, inner = 257;
    float *a = values(m, inner, inner, 1), *b = values(n, inner, inner, 2);
    float *c[2] = {values(m, n, n, 3), values(m, n, n, 3)};
    for (int i = 0; i < 2; i++) {
        queue.lanes = i ? 3 : 1;
        k->gemm(&queue, &(struct s2s_k_gemm){mat(a, inner), mat(b, inner), mat(c[i], n), NULL, m, n,
                                             inner, false, true, false, 1});
        done();
    }
    assert_memory_equal(c[0], c[1], (size_t)(m * n) * sizeof **c);
    free(a);
    free(b);
    free(c[0]);
    free(c[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_agree_with_the_definition),
        cmocka_unit_test(small_integers_are_exact),
        cmocka_unit_test(threads_do_not_change_a_byte),
    };
    return run_on_tables(tests);
}
