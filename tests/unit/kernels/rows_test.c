/* Rows by number: embeddings (ids repeat), gather and scatter (they do not), plain sums. */
#include "tests/unit/kernels/kernel_test.h"

enum { ROWS = 7, COLS = 131, STRIDE = 133, N = 9 };

static const int32_t ids[N] = {3, 0, 3, -1, 6, 2, 3, 0, -5};
static const int32_t unique[N] = {3, 0, -1, 5, 6, 2, -1, 1, -7};

static void embeddings_and_their_gradient(void **state)
{
    float *table = values(ROWS, COLS, STRIDE, 1), *y = values(N, COLS, STRIDE, 2);
    static double want[N * COLS], want_table[ROWS * COLS];
    struct s2s_k_embedding args = {
        mat(table, STRIDE), mat(y, STRIDE), in(ids, sizeof ids), N, COLS, 0, 2.5f};
    for (int i = 0; i < N; i++)
        for (int c = 0; c < COLS; c++)
            want[i * COLS + c] = ids[i] < 0 ? 0 : 2.5 * table[ids[i] * STRIDE + c];
    k->embedding(&queue, &args);
    done();
    close_to("y", y, want, N, COLS, STRIDE, 1e-7);
    /* added to what is there, row 0 skipped */
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++) {
            want_table[r * COLS + c] = table[r * STRIDE + c];
            for (int i = 0; i < N; i++)
                if (ids[i] == r && r != 0)
                    want_table[r * COLS + c] += 2.5 * y[i * STRIDE + c];
        }
    args = (struct s2s_k_embedding){
        mat(table, STRIDE), mat(y, STRIDE), in(ids, sizeof ids), N, COLS, 0, 2.5f};
    k->embedding_backward(&queue, &args);
    done();
    close_to("dtable", table, want_table, ROWS, COLS, STRIDE, 1e-6);
    free(table);
    free(y);
}

static void gather_and_scatter(void **state)
{
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        float *x = values(ROWS, COLS, STRIDE, 1), *y = values(N, COLS, STRIDE, 2);
        static double want_y[N * COLS], want_x[ROWS * COLS];
        for (int i = 0; i < N; i++)
            for (int c = 0; c < COLS; c++)
                want_y[i * COLS + c] = (accumulate ? (double)y[i * STRIDE + c] : 0) +
                                       (unique[i] < 0 ? 0 : x[unique[i] * STRIDE + c]);
        k->gather_rows(&queue,
                       &(struct s2s_k_rows){mat(y, STRIDE), mat(x, STRIDE),
                                            in(unique, sizeof unique), N, COLS, accumulate});
        done();
        close_to("gathered", y, want_y, N, COLS, STRIDE, 1e-6);
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++) {
                want_x[r * COLS + c] = x[r * STRIDE + c];
                for (int i = 0; i < N; i++)
                    if (unique[i] == r)
                        want_x[r * COLS + c] =
                            (accumulate ? want_x[r * COLS + c] : 0) + y[i * STRIDE + c];
            }
        k->scatter_rows(&queue,
                        &(struct s2s_k_rows){mat(x, STRIDE), mat(y, STRIDE),
                                             in(unique, sizeof unique), N, COLS, accumulate});
        done();
        close_to("scattered", x, want_x, ROWS, COLS, STRIDE, 1e-6);
        free(x);
        free(y);
    }
}

static void scaled_sums(void **state)
{
    for (int beta = 0; beta < 2; beta++) {
        float *x = values(ROWS, COLS, STRIDE, 1), *y = values(ROWS, COLS, COLS, 2);
        static double want[ROWS * COLS];
        for (int i = 0; i < ROWS * COLS; i++) {
            want[i] = -1.5 * x[i / COLS * STRIDE + i % COLS] + beta * 2.0 * y[i];
            y[i] = beta ? y[i] : NAN; /* without beta old values do not matter */
        }
        k->axpby(&queue, &(struct s2s_k_axpby){mat(x, STRIDE), mat(y, COLS), ROWS, COLS, -1.5f,
                                               beta * 2.0f});
        done();
        close_to("y", y, want, ROWS, COLS, COLS, 1e-6);
        free(x);
        free(y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_and_their_gradient),
        cmocka_unit_test(gather_and_scatter),
        cmocka_unit_test(scaled_sums),
    };
    return run_on_tables(tests);
}
