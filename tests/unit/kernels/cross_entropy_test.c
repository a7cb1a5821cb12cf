/* Cross entropy and its gradient in place; squared distance. */
#include "tests/unit/kernels/kernel_test.h"

static void one(int64_t rows, int64_t cols, bool gradient)
{
    const int64_t stride = cols + 5;
    float *z = values(rows, cols, stride, 1), *loss = values(1, rows, rows, 2);
    float *hits = values(1, rows, rows, 3);
    double *want_hits = s2s_xcalloc((size_t)rows, 8);
    double *want = s2s_xcalloc((size_t)(rows * cols), 8), *want_loss = s2s_xcalloc((size_t)rows, 8);
    int32_t *labels = s2s_xcalloc((size_t)rows, sizeof *labels);
    for (int64_t r = 0; r < rows; r++) {
        labels[r] = r % 3 == 2 ? -100 : (int32_t)((r * 7) % cols);
        z[r * stride + r % cols] += r % 2 ? 90 : -300; /* far from the others: no overflow */
        if (labels[r] > 0 && r % 4 == 3)
            z[r * stride] = z[r * stride + labels[r]] = 95; /* a tie */
        double max = -INFINITY, sum = 0;
        for (int64_t c = 0; c < cols; c++)
            max = fmax(max, z[r * stride + c]);
        for (int64_t c = 0; c < cols; c++)
            sum += exp(z[r * stride + c] - max);
        for (int64_t c = cols; c-- > 0;)
            if (z[r * stride + c] == max)
                want_hits[r] = labels[r] == c;
        want_loss[r] = labels[r] < 0 ? 0 : max + log(sum) - z[r * stride + labels[r]];
        for (int64_t c = 0; c < cols; c++) {
            double p = exp(z[r * stride + c] - max) / sum;
            want[r * cols + c] = !gradient       ? z[r * stride + c]
                                 : labels[r] < 0 ? 0
                                                 : 0.25 * (p - (c == labels[r]));
        }
    }
    k->cross_entropy(&queue, &(struct s2s_k_cross_entropy){.logits = mat(z, stride),
                                                           .labels = vec(labels),
                                                           .loss = vec(loss),
                                                           .hits = vec(hits),
                                                           .rows = rows,
                                                           .cols = cols,
                                                           .grad_scale = 0.25f,
                                                           .gradient = gradient});
    done();
    close_to("loss", loss, want_loss, 1, rows, rows, 2e-6);
    close_to("hits", hits, want_hits, 1, rows, rows, 0);
    free(hits);
    free(want_hits);
    close_to("dz", z, want, rows, cols, stride, 1e-6);
    free(z);
    free(loss);
    free(want);
    free(want_loss);
    free(labels);
}

static void losses_and_gradients_agree_with_the_formula(void **state)
{
    static const int64_t shapes[][2] = {{1, 1}, {2, 3}, {7, 131}, {40, 1000}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int gradient = 0; gradient < 2; gradient++)
            one(shapes[i][0], shapes[i][1], gradient);
}

static void squared_distance_and_its_gradient(void **state)
{
    enum { ROWS = 9, COLS = 13, STRIDE = 15 };
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        float *x = values(ROWS, COLS, STRIDE, 1), *y = values(ROWS, COLS, COLS, 2);
        float *dx = values(ROWS, COLS, STRIDE, 3), loss[ROWS];
        double want[ROWS * COLS], want_loss[ROWS] = {0};
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++) {
                double d = (double)x[r * STRIDE + c] - y[r * COLS + c];
                want_loss[r] += 0.5 * d * d;
                want[r * COLS + c] = 0.5 * d + (accumulate ? dx[r * STRIDE + c] : 0);
            }
        k->sqdist(&queue,
                  &(struct s2s_k_sqdist){mat(x, STRIDE), mat(y, COLS), mat(dx, STRIDE),
                                         on(loss, sizeof loss), ROWS, COLS, 0.5f, accumulate});
        done();
        close_to("loss", loss, want_loss, 1, ROWS, ROWS, 1e-6);
        close_to("dx", dx, want, ROWS, COLS, STRIDE, 1e-6);
        free(x);
        free(y);
        free(dx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_gradients_agree_with_the_formula),
        cmocka_unit_test(squared_distance_and_its_gradient),
    };
    return run_on_tables(tests);
}
