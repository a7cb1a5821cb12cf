/* Sums with a fixed order, and the optimizer's pass. */
#include "tests/unit/kernels/kernel_test.h"

static double reduce(float *x, int64_t n, enum s2s_reduce what, double start)
{
    double out = start;
    struct s2s_k_reduce args = {.x = mat(x, n),
                                .out = on(&out, sizeof out),
                                .rows = 1,
                                .cols = n,
                                .what = what,
                                .accumulate = start != 0};
    args.workspace = work(k->reduce_workspace(&queue, &args));
    k->reduce(&queue, &args);
    done();
    return out;
}

static void sums_of_vectors(void **state)
{
    static const int64_t sizes[] = {0, 1, 17, 32768, 32769, 100003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i];
        float *x = values(1, n, n, i);
        double sum = 0, square = 0;
        for (int64_t j = 0; j < n; j++) {
            sum += x[j];
            square += (double)x[j] * x[j];
        }
        assert_true(fabs(reduce(x, n, S2S_REDUCE_SUM, 0) - sum) < 1e-9);
        assert_true(fabs(reduce(x, n, S2S_REDUCE_SUM, 2.5) - sum - 2.5) < 1e-9);
        assert_true(fabs(reduce(x, n, S2S_REDUCE_SUMSQ, 0) - square) < 1e-8);
        assert_true(reduce(x, n, S2S_REDUCE_NONFINITE, 0) == 0);
        if (n > 2) {
            x[1] = NAN;
            x[n - 1] = -INFINITY;
            assert_true(reduce(x, n, S2S_REDUCE_NONFINITE, 0) == 2);
        }
        free(x);
    }
}

static void gaps_between_rows_are_not_summed(void **state)
{
    enum { ROWS = 3, COLS = 40000, STRIDE = COLS + 5 };
    float *x = values(ROWS, COLS, STRIDE, 1);
    double sum = 0, out = NAN;
    for (int64_t i = 0; i < ROWS * COLS; i++)
        sum += x[i / COLS * STRIDE + i % COLS];
    struct s2s_k_reduce args = {.x = mat(x, STRIDE),
                                .out = on(&out, sizeof out),
                                .rows = ROWS,
                                .cols = COLS,
                                .what = S2S_REDUCE_SUM};
    args.workspace = work(k->reduce_workspace(&queue, &args));
    k->reduce(&queue, &args);
    done();
    assert_true(fabs(out - sum) < 1e-9);
    free(x);
}

/* Integers: any order gives the same sum, so it must be exact. */
static void sums_of_columns_are_exact_on_integers(void **state)
{
    enum { ROWS = 1000, COLS = 37, STRIDE = 40 };
    static float x[ROWS * STRIDE];
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        float out[COLS], want[COLS];
        for (int c = 0; c < COLS; c++) {
            out[c] = accumulate ? 3 : NAN;
            want[c] = accumulate ? 3 : 0;
            for (int r = 0; r < ROWS; r++)
                want[c] += x[r * STRIDE + c] = (float)((r * 31 + c * 7) % 201 - 100);
        }
        struct s2s_k_colsum args = {
            {in(x, sizeof x), STRIDE, S2S_F32}, on(out, sizeof out), ROWS, COLS, accumulate, NULL};
        args.workspace = work(k->colsum_workspace(&queue, &args));
        k->colsum(&queue, &args);
        done();
        assert_memory_equal(out, want, sizeof out);
    }
}

enum { N_ADAMW = 60000 };

struct adamw {
    float *p, *m, *v, *g;
    void *working;
    double *want;
};

/* Ranges with a gap between them and multipliers of their own, one of them empty. */
static const struct s2s_adamw_range ranges[] = {
    {7, 40001, 1, 1, 0}, {40008, 0, 3, 3, 0}, {40010, 3, 2, 0, 1e-3}, {40013, 19000, 0, 0.5, 2e-2}};
enum { N_RANGES = sizeof ranges / sizeof *ranges };

static const double lr = 1e-2, b1 = 0.9, b2 = 0.95, eps = 1e-6, wd = 0.1, scale = 0.3;

static void set_up_adamw(struct adamw *a, double factor)
{
    const int n = N_ADAMW;
    *a = (struct adamw){values(1, n, n, 1), values(1, n, n, 2),        values(1, n, n, 3),
                        values(1, n, n, 4), s2s_xcalloc((size_t)n, 4), NULL};
    a->want = s2s_xcalloc(3 * (size_t)n, sizeof *a->want);
    for (int i = 0; i < n; i++) {
        a->v[i] = fabsf(a->v[i]);
        a->want[i] = a->p[i];
        a->want[n + i] = a->m[i];
        a->want[2 * n + i] = a->v[i];
    }
    for (const struct s2s_adamw_range *r = ranges; r < ranges + N_RANGES && !isnan(factor); r++)
        for (int64_t i = r->begin; i < r->begin + r->n; i++) {
            double gi = a->g[i] * scale * factor, mi = b1 * a->m[i] + (1 - b1) * gi;
            double vi = b2 * a->v[i] + (1 - b2) * gi * gi, rate = lr * r->lr_mult + r->own_lr;
            a->want[i] = a->p[i] * (1 - rate * wd * r->decay_mult) -
                         rate / (1 - pow(b1, 3)) * mi / (sqrt(vi) / sqrt(1 - pow(b2, 3)) + eps);
            a->want[n + i] = mi;
            a->want[2 * n + i] = vi;
        }
}

static void run_adamw(struct adamw *a, double factor, enum s2s_dtype working)
{
    struct s2s_k_adamw args = {.p = vec(a->p),
                               .m = vec(a->m),
                               .v = vec(a->v),
                               .grad = vec(a->g),
                               .grad_factor = factor == 1 ? NULL : in(&factor, sizeof factor),
                               .ranges = in(ranges, sizeof ranges),
                               .n_ranges = N_RANGES,
                               .n = N_ADAMW,
                               .t = 3,
                               .lr = lr,
                               .beta1 = b1,
                               .beta2 = b2,
                               .eps = eps,
                               .weight_decay = wd,
                               .grad_scale = scale};
    if (working != S2S_DTYPE_NONE)
        args.working = (struct s2s_mat){vec(a->working), N_ADAMW, working};
    k->adamw(&queue, &args);
    done();
}

/* The working copy holds what the ranges' parameters are now, and 0 where it was not written. */
static void check_working(const struct adamw *a, enum s2s_dtype dtype, bool written)
{
    for (const struct s2s_adamw_range *r = ranges; r < ranges + N_RANGES; r++)
        for (int64_t i = r->begin - 1; i < r->begin + r->n; i++) {
            const float p = written && i >= r->begin ? a->p[i] : 0;
            if (dtype == S2S_BF16 && (i >= r->begin || i == 6))
                assert_int_equal(((uint16_t *)a->working)[i], s2s_f32_to_bf16(p));
            if (dtype == S2S_F32 && (i >= r->begin || i == 6))
                assert_true(((float *)a->working)[i] == p);
        }
}

static void adamw_agrees_with_the_formula(void **state)
{
    static const double factors[] = {1, 0.5, NAN};
    static const enum s2s_dtype workings[] = {S2S_DTYPE_NONE, S2S_BF16, S2S_F32};
    const int n = N_ADAMW;
    for (int c = 0; c < 9; c++) {
        const double factor = factors[c % 3];
        struct adamw a;
        set_up_adamw(&a, factor);
        run_adamw(&a, factor, workings[c / 3]);
        close_to("p", a.p, a.want, 1, n, n, 1e-6);
        close_to("m", a.m, a.want + n, 1, n, n, 1e-6);
        close_to("v", a.v, a.want + 2 * n, 1, n, n, 1e-6);
        check_working(&a, workings[c / 3], !isnan(factor));
        void *all[] = {a.p, a.m, a.v, a.g, a.working, a.want};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            free(all[i]);
    }
}

static double clip_factor(double a, double b, double norm_scale, double max_norm)
{
    double sums[2] = {a, b}, factor = 7;
    k->clip_factor(&queue,
                   &(struct s2s_k_clip_factor){in(sums, sizeof sums), on(&factor, sizeof factor), 2,
                                               norm_scale, max_norm});
    done();
    return factor;
}

static void gradients_are_clipped_to_a_norm(void **state)
{
    assert_true(clip_factor(9, 16, 1, 0) == 1);
    assert_true(clip_factor(9, 16, 1, 10) == 1);
    assert_true(clip_factor(9, 16, 1, 2) == 2 / (5 + 1e-6));
    assert_true(clip_factor(9, 16, 0.5, 2) == 2 / (2.5 + 1e-6));
    assert_true(isnan(clip_factor(9, NAN, 1, 2)));
    assert_true(isnan(clip_factor(INFINITY, 1, 1, 0)));
}

static void threads_do_not_change_a_byte(void **state)
{
    const int64_t n = 200001;
    float *x = values(1, n, n, 9);
    double sums[2];
    for (int i = 0; i < 2; i++) {
        queue.lanes = i ? 3 : 1;
        sums[i] = reduce(x, n, S2S_REDUCE_SUMSQ, 0);
    }
    assert_true(sums[0] == sums[1]);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_vectors),
        cmocka_unit_test(gaps_between_rows_are_not_summed),
        cmocka_unit_test(sums_of_columns_are_exact_on_integers),
        cmocka_unit_test(adamw_agrees_with_the_formula),
        cmocka_unit_test(gradients_are_clipped_to_a_norm),
        cmocka_unit_test(threads_do_not_change_a_byte),
    };
    return run_on_tables_and_types(tests);
}
