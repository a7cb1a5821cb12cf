/* Rotary positions: the definition, its transpose, in place and added, of a part of each head. */
#include "tests/unit/kernels/kernel_test.h"

enum { N = 6, HEADS = 3, DIM = 10, WIDTH = HEADS * DIM, STRIDE = WIDTH + 4 };

static const int32_t positions[N] = {0, 1, 2, 7, 4000, 131071};

/* want = x or y rotated by angles or, transposed, back; then times factor */
static void rotate(double *want, const float *x, int rotary, double factor, bool transposed)
{
    for (int i = 0; i < N * HEADS; i++) {
        const float *from = x + i / HEADS * STRIDE + i % HEADS * DIM;
        double *to = want + i * DIM;
        for (int c = 0; c < DIM; c++)
            to[c] = from[c];
        for (int c = 0; c < rotary / 2; c++) {
            double angle = positions[i / HEADS] * pow(10000, -2.0 * c / rotary);
            double a = from[c], b = from[c + rotary / 2];
            double sine = factor * sin(transposed ? -angle : angle), cosine = factor * cos(angle);
            to[c] = a * cosine - b * sine;
            to[c + rotary / 2] = b * cosine + a * sine;
        }
    }
}

static void run(float *x, float *y, const float *table, int rotary, bool transposed,
                bool accumulate)
{
    struct s2s_k_rope args = {.x = mat(x, STRIDE),
                              .y = mat(y, STRIDE),
                              .table = in(table, sizeof(float) * (size_t)(N * rotary)),
                              .n = N,
                              .n_heads = HEADS,
                              .dim = DIM,
                              .rotary_dim = rotary,
                              .transposed = transposed,
                              .accumulate = accumulate};
    k->rope(&queue, &args);
    done();
}

static void check(int rotary, double factor)
{
    double freq[DIM / 2] = {0};
    static double want[N * WIDTH], again[N * WIDTH];
    float table[N * DIM] = {0}, *x = values(N, WIDTH, STRIDE, 1), *y = values(N, WIDTH, STRIDE, 2);
    for (int i = 0; i < rotary / 2; i++)
        freq[i] = pow(10000, -2.0 * i / rotary);
    k->rope_table(&queue,
                  &(struct s2s_k_rope_table){in(positions, sizeof positions), in(freq, sizeof freq),
                                             on(table, sizeof table), N, rotary, factor});
    done();
    rotate(want, x, rotary, factor, false);
    run(x, y, table, rotary, false, false);
    close_to("y", y, want, N, WIDTH, STRIDE, 1e-6);
    /* by the transpose in place, then added */
    rotate(want, y, rotary, factor, true);
    run(y, y, table, rotary, true, false);
    close_to("in place", y, want, N, WIDTH, STRIDE, 2e-6);
    rotate(again, x, rotary, factor, false);
    for (int i = 0; i < N * WIDTH; i++)
        want[i] = again[i] + y[i / WIDTH * STRIDE + i % WIDTH];
    run(x, y, table, rotary, false, true);
    close_to("sum", y, want, N, WIDTH, STRIDE, 2e-6);
    free(x);
    free(y);
}

static void rotation_agrees_with_the_definition(void **state)
{
    check(DIM, 1);
    check(DIM, 1.25);
    check(6, 1);
    check(2, 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rotation_agrees_with_the_definition)};
    return run_on_tables_and_types(tests);
}
