/* Dropout against Philox of lib/base, element by element; its share, and that cuts do not show. */
#include "tests/unit/kernels/kernel_test.h"

static const uint64_t KEY = 0x123456789abcdef0U;

static void call(float *x, float *y, int64_t rows, int64_t cols, int64_t stride, int64_t first,
                 float rate, bool accumulate)
{
    k->dropout(&queue, &(struct s2s_k_dropout){mat(x, stride), mat(y, stride), rows, cols, first,
                                               draw_of(rows, KEY, rate), accumulate});
    done();
}

static void one(int64_t rows, int64_t cols, int64_t first, float rate, bool accumulate, bool same)
{
    const int64_t stride = cols + cols % 2;
    float *x = values(rows, cols, stride, 1), *y = same ? x : values(rows, cols, stride, 2);
    double *want = s2s_xmalloc((size_t)(rows * cols + 1) * sizeof *want);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            const double v = x[r * stride + c], to = accumulate ? y[r * stride + c] : 0;
            want[r * cols + c] = to + (stays(r, first + c, 0, KEY, rate) ? v / (1 - rate) : 0);
        }
    call(x, y, rows, cols, stride, first, rate, accumulate);
    close_to("y", y, want, rows, cols, stride, 1e-6);
    free(x);
    if (!same)
        free(y);
    free(want);
}

static void what_philox_says_is_left_out(void **state)
{
    const int64_t sizes[][3] = {{1, 1, 0},  {3, 7, 2},    {5, 33, 5}, {2, 256, 0},
                                {2, 64, 8}, {3, 530, 13}, {0, 8, 0},  {4, 0, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int how = 0; how < 3; how++)
            one(sizes[i][0], sizes[i][1], sizes[i][2], i % 2 ? 0.1f : 0.75f, how == 1, how == 2);
}

/* The share of a binomial within five of its deviations, rows and columns apart. */
static void the_rate_is_that_share_and_the_mean_stays(void **state)
{
    enum { ROWS = 64, COLS = 1024 };
    const float rates[] = {0.1f, 0.5f};
    for (int i = 0; i < 2; i++) {
        const double p = rates[i];
        float *x = values(ROWS, COLS, COLS, 1), *y = values(ROWS, COLS, COLS, 2);
        static double col[COLS];
        double all = 0, sum = 0, squares = 0;
        for (int64_t j = 0; j < ROWS * COLS; j++)
            x[j] = 1;
        memset(col, 0, sizeof col);
        call(x, y, ROWS, COLS, COLS, 0, rates[i], false);
        for (int64_t r = 0; r < ROWS; r++) {
            double row = 0;
            for (int64_t c = 0; c < COLS; c++) {
                const double v = y[r * COLS + c];
                row += v == 0;
                col[c] += v == 0;
                sum += v;
                squares += v * v;
            }
            assert_true(fabs(row - p * COLS) < 5 * sqrt(COLS * p * (1 - p)));
            all += row;
        }
        for (int64_t c = 0; c < COLS; c++)
            assert_true(fabs(col[c] - p * ROWS) < 5 * sqrt(ROWS * p * (1 - p)) + 1);
        const double n = (double)ROWS * COLS, mean = sum / n, var = squares / n - mean * mean;
        assert_true(fabs(all - p * n) < 5 * sqrt(n * p * (1 - p)));
        /* of a mean of n elements, each of variance p / (1 - p) */
        assert_true(fabs(mean - 1) < 5 * sqrt(p / (1 - p) / n) + (is_bf16 ? 4e-3 : 0));
        assert_true(fabs(var - p / (1 - p)) < 0.05 * p / (1 - p));
        free(x);
        free(y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_philox_says_is_left_out),
        cmocka_unit_test(the_rate_is_that_share_and_the_mean_stays),
    };
    return run_on_tables_and_types(tests);
}
