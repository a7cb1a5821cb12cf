/* act(gate) up against libm in double, its backward against differences, and exp itself. */
#include "kernels/cpu/cpu.h"
#include "tests/unit/kernels/kernel_test.h"

static double act(enum s2s_act a, double z)
{
    switch (a) {
    case S2S_ACT_SILU:
        return z / (1 + exp(-z));
    case S2S_ACT_GELU_TANH:
        return 0.5 * z * (1 + tanh(sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
    case S2S_ACT_GELU:
        return 0.5 * z * (1 + erf(z / sqrt(2)));
    case S2S_ACT_RELU:
        return z > 0 ? z : 0;
    case S2S_ACT_RELU2:
        return z > 0 ? z * z : 0;
    case S2S_ACT_SIGMOID:
        return 1 / (1 + exp(-z));
    }
    return 0;
}

static void one(enum s2s_act a, bool with_up, bool accumulate)
{
    enum { ROWS = 5, COLS = 37, STRIDE = 40 };
    const double h = 1e-6;
    float *gate = values(ROWS, COLS, STRIDE, 1), *up = values(ROWS, COLS, COLS, 2);
    float *dy = values(ROWS, COLS, STRIDE, 3), *y = values(ROWS, COLS, STRIDE, 4);
    float *dgate = values(ROWS, COLS, STRIDE, 5), *dup = values(ROWS, COLS, STRIDE, 6);
    static double want_y[ROWS * COLS], want_dg[ROWS * COLS], want_du[ROWS * COLS];
    const float extremes[] = {-200, 200, -20, 20, 0, -0.0f, 1e-20f, -88, 88};
    memcpy(gate, extremes, sizeof extremes);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++) {
            double z = gate[r * STRIDE + c], u = with_up ? up[r * COLS + c] : 1;
            double d = dy[r * STRIDE + c];
            int i = r * COLS + c;
            want_y[i] = act(a, z) * u;
            want_dg[i] = (act(a, z + h) - act(a, z - h)) / (2 * h) * u * d +
                         (accumulate ? dgate[r * STRIDE + c] : 0);
            want_du[i] = act(a, z) * d + (accumulate ? dup[r * STRIDE + c] : 0);
        }
    struct s2s_mat none = {0}, up_mat = with_up ? mat(up, COLS) : none;
    k->glu(&queue, &(struct s2s_k_glu){mat(gate, STRIDE), up_mat, mat(y, STRIDE), ROWS, COLS, a});
    done();
    up_mat = with_up ? mat(up, COLS) : none;
    close_to("y", y, want_y, ROWS, COLS, STRIDE, 2e-6);
    k->glu_backward(&queue, &(struct s2s_k_glu_backward){mat(gate, STRIDE), up_mat, mat(dy, STRIDE),
                                                         mat(dgate, STRIDE),
                                                         with_up ? mat(dup, STRIDE) : none, ROWS,
                                                         COLS, a, accumulate, accumulate});
    done();
    /* differences of a second derivative that jumps (relu) are off by h */
    close_to("dgate", dgate, want_dg, ROWS, COLS, STRIDE, 1e-5);
    if (with_up)
        close_to("dup", dup, want_du, ROWS, COLS, STRIDE, 3e-6);
    float *all[] = {gate, up, dy, y, dgate, dup};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void activations_agree_with_libm(void **state)
{
    for (int a = S2S_ACT_SILU; a <= S2S_ACT_SIGMOID; a++)
        for (int how = 0; how < 4; how++)
            if (a != S2S_ACT_RELU) /* its slope at exactly 0 is a convention */
                one((enum s2s_act)a, how & 1, how & 2);
}

static void exp_is_within_2_ulp_and_keeps_its_limits(void **state)
{
    double worst = 0;
    for (float x = -87; x < 88; x += 0.00173f) {
        double want = exp((double)x), err = fabs((double)cpu_exp(x) - want) / want;
        worst = err > worst ? err : worst;
    }
    if (!(worst < 2.4e-7))
        fail_msg("worst relative error %g", worst);
    assert_true(cpu_exp(0) == 1);
    assert_true(cpu_exp(-INFINITY) == 0);
    assert_true(cpu_exp(-1000) == 0);
    assert_true(cpu_exp(1000) > 1e38f);
    assert_true(isnan(cpu_exp(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_agree_with_libm),
        cmocka_unit_test(exp_is_within_2_ulp_and_keeps_its_limits),
    };
    return run_on_tables_and_types(tests);
}
