/* RMS norm with and without a sum in front, against the formula in double. */
#include "tests/unit/kernels/kernel_test.h"

struct shape {
    int64_t rows, cols;
};

static const struct shape shapes[] = {{1, 1}, {0, 4}, {3, 7}, {130, 33}, {65, 256}};

static void one(struct shape s, bool residual, bool accumulate)
{
    const int64_t n = s.rows, c = s.cols, stride = c + 3;
    const double eps = 1e-3f, offset = residual ? 0 : 1;
    float *x = values(n, c, stride, 1), *res = values(n, c, c, 2), *sum = values(n, c, stride, 3);
    float *y = values(n, c, stride, 4), *gain = values(1, c, c, 5), *rstd = values(1, n, n, 6);
    float *dy = values(n, c, stride, 7), *dsum = values(n, c, c, 8), *dx = values(n, c, stride, 9);
    float *dres = values(n, c, stride, 10), *dgain = values(1, c, c, 11);
    double *want_y = s2s_xcalloc((size_t)(n * c + 1), 8),
           *want_h = s2s_xcalloc((size_t)(n * c + 1), 8);
    double *want_dx = s2s_xcalloc((size_t)(n * c + 1), 8);
    double *want_dres = s2s_xcalloc((size_t)(n * c + 1), 8);
    double *want_dg = s2s_xcalloc((size_t)(c + 1), 8);
    for (int64_t j = 0; j < c; j++)
        want_dg[j] = dgain[j];
    for (int64_t r = 0; r < n; r++) {
        double square = 0, dot = 0;
        for (int64_t j = 0; j < c; j++) {
            double h = want_h[r * c + j] = x[r * stride + j] + (residual ? res[r * c + j] : 0.0f);
            square += h * h;
        }
        double rs = 1 / sqrt(square / (double)c + eps);
        for (int64_t j = 0; j < c; j++) {
            double h = want_h[r * c + j];
            want_y[r * c + j] = (gain[j] + offset) * h * rs;
            dot += (gain[j] + offset) * dy[r * stride + j] * h;
            want_dg[j] += dy[r * stride + j] * h * rs;
        }
        for (int64_t j = 0; j < c; j++) {
            double d = rs * ((gain[j] + offset) * dy[r * stride + j] -
                             want_h[r * c + j] * rs * rs * dot / (double)c);
            d += residual ? dsum[r * c + j] : 0;
            want_dx[r * c + j] = d + (accumulate ? dx[r * stride + j] : 0);
            want_dres[r * c + j] = d + (accumulate ? dres[r * stride + j] : 0);
        }
    }
    struct s2s_mat none = {0};
    k->rmsnorm(&queue, &(struct s2s_k_rmsnorm){mat(x, stride), residual ? mat(res, c) : none,
                                               mat(sum, stride), mat(y, stride), vec(gain),
                                               vec(rstd), n, c, (float)eps, (float)offset});
    done();
    close_to("y", y, want_y, n, c, stride, 2e-6);
    if (residual)
        close_to("sum", sum, want_h, n, c, stride, 1e-6);
    struct s2s_k_rmsnorm_backward args = {.h = residual ? mat(sum, stride) : mat(x, stride),
                                          .dy = mat(dy, stride),
                                          .dsum = residual ? mat(dsum, c) : none,
                                          .dx = mat(dx, stride),
                                          .dresidual = residual ? mat(dres, stride) : none,
                                          .gain = vec(gain),
                                          .rstd = vec(rstd),
                                          .dgain = vec(dgain),
                                          .rows = n,
                                          .cols = c,
                                          .gain_offset = (float)offset,
                                          .accumulate_dx = accumulate,
                                          .accumulate_dresidual = accumulate};
    args.workspace = work(k->rmsnorm_backward_workspace(&queue, &args));
    k->rmsnorm_backward(&queue, &args);
    done();
    close_to("dx", dx, want_dx, n, c, stride, 1e-5);
    if (residual)
        close_to("dresidual", dres, want_dres, n, c, stride, 1e-5);
    /* of rows that were rounded when they were stored */
    close_to("dgain", dgain, want_dg, 1, c, c, is_bf16 ? 1.0 / 32 : 1e-5);
    float *all[] = {x, res, sum, y, gain, rstd, dy, dsum, dx, dres, dgain};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    double *wants[] = {want_y, want_h, want_dx, want_dres, want_dg};
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++)
        free(wants[i]);
}

static void norm_and_backward_agree_with_the_formula(void **state)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int how = 0; how < 4; how++)
            one(shapes[i], how & 1, how & 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(norm_and_backward_agree_with_the_formula)};
    return run_on_tables_and_types(tests);
}
