/* Rotary positions: the definition, its inverse, in place and added. */
#include "tests/unit/kernels/kernel_test.h"

enum { N = 6, HEADS = 3, DIM = 10, WIDTH = HEADS * DIM, STRIDE = WIDTH + 4 };

static const int32_t positions[N] = {0, 1, 2, 7, 4000, 131071};

static void rotation_agrees_with_the_definition(void **state)
{
    double freq[DIM / 2];
    for (int i = 0; i < DIM / 2; i++)
        freq[i] = pow(10000, -2.0 * i / DIM);
    float table[N * DIM];
    float *x = values(N, WIDTH, STRIDE, 1), *y = values(N, WIDTH, STRIDE, 2);
    static double want[N * WIDTH], back[N * WIDTH];
    for (int i = 0; i < N; i++)
        for (int h = 0; h < HEADS; h++)
            for (int c = 0; c < DIM / 2; c++) {
                double angle = positions[i] * freq[c];
                double a = x[i * STRIDE + h * DIM + c];
                double b = x[i * STRIDE + h * DIM + c + DIM / 2];
                int at = i * WIDTH + h * DIM + c;
                want[at] = a * cos(angle) - b * sin(angle);
                want[at + DIM / 2] = b * cos(angle) + a * sin(angle);
                back[at] = a;
                back[at + DIM / 2] = b;
            }
    k->rope_table(&queue,
                  &(struct s2s_k_rope_table){in(positions, sizeof positions), in(freq, sizeof freq),
                                             on(table, sizeof table), N, DIM});
    done();
    struct s2s_k_rope args = {
        mat(x, STRIDE), mat(y, STRIDE), in(table, sizeof table), N, HEADS, DIM, false, false};
    k->rope(&queue, &args);
    done();
    close_to("y", y, want, N, WIDTH, STRIDE, 5e-7);
    /* back in place, then once more added */
    args = (struct s2s_k_rope){
        mat(y, STRIDE), mat(y, STRIDE), in(table, sizeof table), N, HEADS, DIM, true, false};
    k->rope(&queue, &args);
    done();
    close_to("back", y, back, N, WIDTH, STRIDE, 1e-6);
    args = (struct s2s_k_rope){
        mat(x, STRIDE), mat(y, STRIDE), in(table, sizeof table), N, HEADS, DIM, false, true};
    k->rope(&queue, &args);
    done();
    for (int i = 0; i < N * WIDTH; i++)
        want[i] += back[i];
    close_to("sum", y, want, N, WIDTH, STRIDE, 1e-6);
    free(x);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rotation_agrees_with_the_definition)};
    return run_on_tables(tests);
}
