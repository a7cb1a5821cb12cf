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
    const bool with_bias = mode & 2, accumulate = mode & 1;
    reference(want, a, lda, ta, b, ldb, tb, accumulate ? c : NULL, ldc, 0.5, s);
    for (int64_t i = 0; with_bias && i < s.m * s.n; i++)
        want[i] += bias[i % s.n];
    for (int64_t i = 0; !accumulate && i < s.m * ldc; i++)
        c[i] = NAN; /* old values do not matter */
    k->gemm(&queue,
            &(struct s2s_k_gemm){.a = mat(a, lda),
                                 .b = mat(b, ldb),
                                 .c = mat(c, ldc),
                                 .bias = with_bias ? wide_mat(bias, 0) : (struct s2s_mat){0},
                                 .m = s.m,
                                 .n = s.n,
                                 .k = s.k,
                                 .trans_a = ta,
                                 .trans_b = tb,
                                 .accumulate = accumulate,
                                 .alpha = 0.5f});
    done();
    /* fp32 sums of k normal products: a few sqrt(k) roundings */
    close_to("c", c, want, s.m, s.n, ldc, is_bf16 ? 1.0 / 32 : 1e-6 * sqrt((double)s.k + 1));
    free(a);
    free(b);
    free(c);
    free(bias);
    free(want);
}

static void products_agree_with_the_definition(void **state)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int how = 0; how < 16; how++)
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
    k->gemm(&queue, &(struct s2s_k_gemm){.a = {in(a, sizeof a), N, S2S_F32},
                                         .b = {in(b, sizeof b), N, S2S_F32},
                                         .c = {on(c, sizeof c), N, S2S_F32},
                                         .m = N,
                                         .n = N,
                                         .k = N,
                                         .trans_b = true,
                                         .alpha = 1});
    done();
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int p = 0; p < N; p++)
                sum += a[i * N + p] * b[j * N + p];
            assert_true(c[i * N + j] == sum);
        }
}

/* 257 and 259 are no numbers of BF16: whoever rounds them before the bias comes gets 256 and 264.
 */
static void a_product_is_rounded_once_with_its_bias(void **state)
{
    enum { M = 300, N = 40, K = 257 };
    float *a = values(M, K, K, 1), *b = values(N, K, K, 2), *c = values(M, N, N, 3);
    float *bias = values(1, N, N, 4);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        for (int i = 0; i < M * K; i++)
            a[i] = 1;
        for (int i = 0; i < N * K; i++)
            b[i] = 1;
        for (int i = 0; i < M * N; i++)
            c[i] = accumulate ? 2 : NAN;
        for (int i = 0; i < N; i++)
            bias[i] = accumulate ? 3 : 1;
        k->gemm(&queue, &(struct s2s_k_gemm){.a = mat(a, K),
                                             .b = mat(b, K),
                                             .c = mat(c, N),
                                             .bias = wide_mat(bias, 0),
                                             .m = M,
                                             .n = N,
                                             .k = K,
                                             .trans_b = true,
                                             .accumulate = accumulate,
                                             .alpha = 1});
        done();
        for (int i = 0; i < M * N; i++)
            assert_true(c[i] == (accumulate ? 262 : 258));
    }
    free(a);
    free(b);
    free(c);
    free(bias);
}

/* Five products over one b: matrices of a and c stand apart by more than their size. */
static void products_of_a_batch(void **state)
{
    enum { M = 40, N = 33, K = 21, BATCH = 5, STEP_A = M * K + 7, STEP_C = M * N + 3 };
    float *a = values(1, BATCH * STEP_A, BATCH * STEP_A, 1), *b = values(N, K, K, 2);
    float *c = values(1, BATCH * STEP_C, BATCH * STEP_C, 3), *bias = values(1, N, N, 4);
    double *want = s2s_xcalloc(BATCH * STEP_C, sizeof *want);
    for (int64_t i = 0; i < BATCH * STEP_C; i++)
        want[i] = c[i];
    for (int q = 0; q < BATCH; q++) {
        reference(want + q * STEP_C, a + q * STEP_A, K, false, b, K, true, NULL, 0, 1,
                  (struct shape){M, N, K});
        for (int64_t i = 0; i < M * N; i++)
            want[q * STEP_C + i] += bias[i % N];
    }
    k->gemm(&queue, &(struct s2s_k_gemm){.a = mat(a, K),
                                         .b = mat(b, K),
                                         .c = mat(c, N),
                                         .bias = wide_mat(bias, 0),
                                         .m = M,
                                         .n = N,
                                         .k = K,
                                         .trans_b = true,
                                         .alpha = 1,
                                         .n_batch = BATCH,
                                         .step_a = STEP_A,
                                         .step_c = STEP_C});
    done();
    close_to("c", c, want, 1, BATCH * STEP_C, BATCH * STEP_C, 5e-6);
    free(a);
    free(b);
    free(c);
    free(bias);
    free(want);
}

/* ---- groups of rows ---- */

enum { MAX_GROUPS = 40 };

/* Rows of each group; the first begins at row `before`, and so many are after the last. */
struct groups {
    int64_t before, after, inner, width, pad, n; /* pad: elements between rows, and matrices */
    int32_t rows[MAX_GROUPS];
};

static const struct groups groupings[] = {
    /* an empty group first, between and last */
    {2, 9, 29, 37, 3, 6, {0, 7, 0, 291, 1, 0}},
    /* rows that are aligned; tiles of 128 and ends of them, along each dimension */
    {0, 5, 72, 136, 8, 3, {300, 0, 390}},
    {8, 0, 16, 24, 0, 40, {0, 3, 1, [20] = 2, 17, 0, 5, [38] = 1}},
    {1, 1, 40, 8, 0, 2, {0, 0}},
    {0, 1, 0, 5, 1, 2, {3, 0}},
};
enum { N_GROUPINGS = sizeof groupings / sizeof *groupings };

static int64_t bounds_of(const struct groups *c, int32_t *offsets)
{
    offsets[0] = (int32_t)c->before;
    for (int64_t g = 0; g < c->n; g++)
        offsets[g + 1] = offsets[g] + c->rows[g];
    return offsets[c->n] + c->after;
}

/* Values of rows, those outside of all groups NaN: nobody may read them. */
static float *values_of_groups(const struct groups *c, int64_t rows, int64_t cols, uint64_t key)
{
    const int64_t stride = cols + c->pad;
    float *x = values(rows, cols, stride, key);
    for (int64_t i = 0; i < rows * stride; i++)
        if (i / stride < c->before || i / stride >= rows - c->after)
            x[i] = NAN;
    return x;
}

enum { TRANS_B = 1, ACCUMULATE = 2, C_IS_F32 = 4, HOWS = 8 };

static struct s2s_mat mat_of_c(float *c, int64_t stride, int how)
{
    return how & C_IS_F32 ? wide_mat(c, stride) : mat(c, stride);
}

/* c [rows, width] (+)= a [rows, inner] by the group's matrix */
static void check_rows_of_groups(const struct groups *c, int how)
{
    int32_t offsets[MAX_GROUPS + 1];
    const bool trans_b = how & TRANS_B, accumulate = how & ACCUMULATE;
    const int64_t rows = bounds_of(c, offsets), step = c->inner * c->width + c->pad;
    const int64_t lda = c->inner + c->pad, ldb = trans_b ? c->inner : c->width,
                  ldc = c->width + c->pad;
    float *a = values_of_groups(c, rows, c->inner, 1), *b = values(1, c->n * step, c->n * step, 2);
    float *out = values(rows, c->width, ldc, 3);
    double *want = s2s_xcalloc((size_t)(rows * c->width) + 1, sizeof *want);
    for (int64_t i = 0; i < rows * c->width; i++)
        want[i] = out[i / c->width * ldc + i % c->width];
    for (int64_t g = 0; g < c->n; g++)
        for (int64_t r = offsets[g]; r < offsets[g + 1]; r++)
            reference(want + r * c->width, a + r * lda, 0, false, b + g * step, ldb, trans_b,
                      accumulate ? out + r * ldc : NULL, 0, 1,
                      (struct shape){1, c->width, c->inner});
    k->gemm_grouped(&queue, &(struct s2s_k_gemm_grouped){.a = mat(a, lda),
                                                         .b = mat(b, ldb),
                                                         .c = mat_of_c(out, ldc, how),
                                                         .offsets = in(offsets, sizeof offsets),
                                                         .n_groups = c->n,
                                                         .rows = rows,
                                                         .n = c->width,
                                                         .k = c->inner,
                                                         .step = step,
                                                         .trans_b = trans_b,
                                                         .accumulate = accumulate});
    done();
    close_to("c", out, want, rows, c->width, ldc, 5e-6);
    free(a);
    free(b);
    free(out);
    free(want);
}

/* c_g [inner, width] (+)= sum over the rows of g of a [rows, inner]^T b [rows, width] */
static void check_weights_of_groups(const struct groups *c, int how)
{
    int32_t offsets[MAX_GROUPS + 1];
    const int64_t rows = bounds_of(c, offsets), step = c->inner * c->width + c->pad;
    const int64_t lda = c->inner + c->pad, ldb = c->width + c->pad, all = c->n * step;
    float *a = values_of_groups(c, rows, c->inner, 1), *b = values_of_groups(c, rows, c->width, 2);
    float *out = values(1, all, all, 3);
    double *want = s2s_xcalloc((size_t)all, sizeof *want);
    for (int64_t i = 0; i < all; i++)
        want[i] = out[i];
    for (int64_t g = 0; g < c->n; g++)
        reference(want + g * step, a + offsets[g] * lda, lda, true, b + offsets[g] * ldb, ldb,
                  false, how & ACCUMULATE ? out + g * step : NULL, c->width, 1,
                  (struct shape){c->inner, c->width, c->rows[g]});
    k->gemm_grouped(&queue, &(struct s2s_k_gemm_grouped){.a = mat(a, lda),
                                                         .b = mat(b, ldb),
                                                         .c = mat_of_c(out, c->width, how),
                                                         .offsets = in(offsets, sizeof offsets),
                                                         .n_groups = c->n,
                                                         .rows = rows,
                                                         .n = c->width,
                                                         .k = c->inner,
                                                         .step = step,
                                                         .of_weights = true,
                                                         .accumulate = how & ACCUMULATE});
    done();
    close_to("dw", out, want, 1, all, all, 2e-5);
    free(a);
    free(b);
    free(out);
    free(want);
}

static void groups_of_rows_have_matrices_of_their_own(void **state)
{
    for (int i = 0; i < N_GROUPINGS; i++)
        for (int how = 0; how < (is_bf16 ? HOWS : C_IS_F32); how++)
            check_rows_of_groups(&groupings[i], how);
}

static void weights_of_groups_are_sums_over_their_rows(void **state)
{
    for (int i = 0; i < N_GROUPINGS; i++)
        for (int how = 0; how < (is_bf16 ? HOWS : C_IS_F32); how += 2)
            check_weights_of_groups(&groupings[i], how);
}

static void threads_do_not_change_a_byte(void **state)
{
    const int64_t m = 300, n = 700, inner = 257;
    float *a = values(m, inner, inner, 1), *b = values(n, inner, inner, 2);
    float *c[2] = {values(m, n, n, 3), values(m, n, n, 3)};
    for (int i = 0; i < 2; i++) {
        queue.lanes = i ? 3 : 1;
        k->gemm(&queue, &(struct s2s_k_gemm){.a = mat(a, inner),
                                             .b = mat(b, inner),
                                             .c = mat(c[i], n),
                                             .m = m,
                                             .n = n,
                                             .k = inner,
                                             .trans_b = true,
                                             .alpha = 1});
        done();
    }
    assert_memory_equal(c[0], c[1], (size_t)(m * n) * sizeof **c);
    free(a);
    free(b);
    free(c[0]);
    free(c[1]);
}

/* ---- BF16 ---- */

/* Values of BF16 [n], and what they are. */
static uint16_t *halves(int64_t n, uint64_t key, float **values_out)
{
    float *x = values(1, n, n, key);
    uint16_t *y = s2s_xmalloc((size_t)(n + 1) * sizeof *y);
    for (int64_t i = 0; i < n; i++) {
        y[i] = s2s_f32_to_bf16(x[i]);
        x[i] = s2s_bf16_to_f32(y[i]);
    }
    *values_out = x;
    return y;
}

/* c of F32 or BF16 from a and b of BF16, once with any factor but 1, which the library has not */
static void check_halves(struct shape s, bool ta, bool tb, bool wide, float alpha, bool with_bias)
{
    const int64_t n_c = s.m * s.n, lda = ta ? s.m : s.k, ldb = tb ? s.k : s.n;
    float *a, *b, *c, *bias = values(1, s.n, s.n, 4);
    uint16_t *half_a = halves(s.m * s.k, 1, &a), *half_b = halves(s.k * s.n, 2, &b);
    uint16_t *half_c = halves(n_c, 3, &c);
    double *want = s2s_xcalloc((size_t)n_c + 1, sizeof *want);
    reference(want, a, lda, ta, b, ldb, tb, c, s.n, alpha, s);
    for (int64_t i = 0; with_bias && i < n_c; i++)
        want[i] += bias[i % s.n];
    const struct s2s_mat mat_c =
        wide ? wide_mat(c, s.n) : (struct s2s_mat){vec(half_c), s.n, S2S_BF16};
    k->gemm(&queue,
            &(struct s2s_k_gemm){.a = {vec(half_a), lda, S2S_BF16},
                                 .b = {vec(half_b), ldb, S2S_BF16},
                                 .c = mat_c,
                                 .bias = with_bias ? wide_mat(bias, 0) : (struct s2s_mat){0},
                                 .m = s.m,
                                 .n = s.n,
                                 .k = s.k,
                                 .trans_a = ta,
                                 .trans_b = tb,
                                 .accumulate = true,
                                 .alpha = alpha});
    done();
    for (int64_t i = 0; !wide && i < n_c; i++)
        c[i] = s2s_bf16_to_f32(half_c[i]);
    /* the sum is of fp32, what is stored is rounded; a table may add the bias to that */
    const double sum = 1e-6 * sqrt((double)s.k + 1);
    close_to("c", c, want, s.m, s.n, s.n, wide ? sum : sum + 1.0 / 64);
    free(a);
    free(b);
    free(c);
    free(bias);
    free(half_a);
    free(half_b);
    free(half_c);
    free(want);
}

/* Blocks of rows and columns, whole ones and others; and many rows, whose b is put in order. */
static void halves_multiply_to_floats_and_to_halves(void **state)
{
    static const struct shape sizes[] = {{1, 5, 7},     {7, 1, 1},      {16, 33, 40},
                                         {3, 4, 0},     {256, 130, 17}, {289, 600, 300},
                                         {40, 33, 565}, {659, 200, 97}};
    if (is_bf16)
        return; /* the types are these whatever others a table has */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int how = 0; how < 32; how++)
            if (sizes[i].m * sizes[i].n < 100000 || !is_short() ||
                how % 3 == 0) /* each way to be transposed */
                check_halves(sizes[i], how & 1, how & 2, how & 4, how & 8 ? 1 : 0.5f, how & 16);
}

/* The same bytes with any number of threads, which take whole blocks: sums over rows, and many rows
 * that meet one matrix. */
static void halves_do_not_depend_on_threads(void **state)
{
    if (is_bf16)
        return;
    enum { M = 600, N = 700, K = 530 };
    float *a, *b, *c[2] = {values(M, N, N, 3), values(M, N, N, 3)};
    uint16_t *half_a = halves(M * K, 1, &a), *half_b = halves(K * N, 2, &b);
    const int lanes = queue.lanes;
    for (int i = 0; i < 4; i++) {
        const bool of_weights = i < 2;
        queue.lanes = i % 2 ? 3 : 1;
        k->gemm(&queue, &(struct s2s_k_gemm){.a = {vec(half_a), of_weights ? M : K, S2S_BF16},
                                             .b = {vec(half_b), N, S2S_BF16},
                                             .c = wide_mat(c[i % 2], N),
                                             .m = M,
                                             .n = N,
                                             .k = K,
                                             .trans_a = of_weights,
                                             .alpha = 1,
                                             .accumulate = true});
        done();
        if (i % 2)
            assert_memory_equal(c[0], c[1], M * N * sizeof **c);
    }
    queue.lanes = lanes;
    for (int i = 0; i < 2; i++)
        free(c[i]);
    free(a);
    free(b);
    free(half_a);
    free(half_b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_agree_with_the_definition),
        cmocka_unit_test(small_integers_are_exact),
        cmocka_unit_test(a_product_is_rounded_once_with_its_bias),
        cmocka_unit_test(halves_multiply_to_floats_and_to_halves),
        cmocka_unit_test(halves_do_not_depend_on_threads),
        cmocka_unit_test(products_of_a_batch),
        cmocka_unit_test(groups_of_rows_have_matrices_of_their_own),
        cmocka_unit_test(weights_of_groups_are_sums_over_their_rows),
        cmocka_unit_test(threads_do_not_change_a_byte),
    };
    return run_on_tables_and_types(tests);
}
