/* Sums with a fixed order, and the optimizer's pass. */
#include "tests/unit/kernels/kernel_test.h"

static double reduce(float *x, int64_t n, enum s2s_reduce what, double start)
{
    double out = start;
    struct s2s_k_reduce args = {vec(x), on(&out, sizeof out), n, what, start != 0, NULL};
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

static void adamw_agrees_with_the_formula(void **state)
{
    enum { N = 40001 };
    float *p = values(1, N, N, 1), *m = values(1, N, N, 2), *v = values(1, N, N, 3);
    float *g = values(1, N, N, 4), factor = 0.5f;
    double *want = s2s_xcalloc(3 * N, sizeof *want);
    const double lr = 1e-2, b1 = 0.9, b2 = 0.95, eps = 1e-6, wd = 0.1, scale = 0.3;
    for (int i = 0; i < N; i++) {
        v[i] = fabsf(v[i]);
        double gi = g[i] * scale * factor, mi = b1 * m[i] + (1 - b1) * gi;
        double vi = b2 * v[i] + (1 - b2) * gi * gi;
        want[i] = p[i] * (1 - lr * wd) -
                  lr / (1 - pow(b1, 3)) * mi / (sqrt(vi) / sqrt(1 - pow(b2, 3)) + eps);
        want[N + i] = mi;
        want[2 * N + i] = vi;
    }
    k->adamw(&queue,
             &(struct s2s_k_adamw){vec(p), vec(m), vec(v), vec(g), in(&factor, sizeof factor), N, 3,
                                   lr, b1, b2, eps, wd, scale});
    done();
    close_to("p", p, want, 1, N, N, 1e-6);
    close_to("m", m, want + N, 1, N, N, 1e-6);
    close_to("v", v, want + 2 * N, 1, N, N, 1e-6);
    free(p);
    free(m);
    free(v);
    free(g);
    free(want);
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
        cmocka_unit_test(sums_of_columns_are_exact_on_integers),
        cmocka_unit_test(adamw_agrees_with_the_formula),
        cmocka_unit_test(threads_do_not_change_a_byte),
    };
    return run_on_tables(tests);
}
