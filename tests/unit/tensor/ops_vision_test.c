/* Every operation of image encoders against finite differences (gradient.h), and mixed rows against
 * their formula. */
#include "tests/unit/tensor/gradient.h"

/* seven rows of a table of five: one of nothing, one that names a row twice */
static const int32_t idx[] = {0, 1, 1, 3, -1, -1, 4, -1, 2, 2, 0, 3, 3, 1};
static const float weights[] = {0.5f,  0.25f, 1,    -2,    3,    1,    0.125f,
                                -1.5f, 0.75f, 0.5f, 1.25f, 0.5f, 0.5f, -1};
static const struct s2s_row_mix mix = {7, 2, idx, weights};

static struct s2s_tensor *loss_mixed(struct s2s_tape *tape, struct s2s_tensor **in)
{
    struct s2s_tensor *y =
        s2s_op_add_mixed_rows(tape, s2s_op_scale(tape, 0.5f, in[0]), in[1], &mix);
    return to_target(tape, s2s_op_add_mixed_rows(tape, y, in[1], &mix));
}

static struct s2s_tensor *loss_scaled(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return to_target(tape, s2s_op_scale_columns(tape, in[0], in[1]));
}

static struct s2s_tensor *loss_scaled_twice(struct s2s_tape *tape, struct s2s_tensor **in)
{
    struct s2s_tensor *y = s2s_op_scale_columns(tape, in[0], in[1]);
    return to_target(tape, s2s_op_add(tape, s2s_op_scale_columns(tape, y, in[1]), in[0]));
}

static struct s2s_tensor *leaf(struct s2s_tape *tape, int64_t rows, int64_t cols, uint64_t key,
                               float *host)
{
    fill(host, rows * cols, key);
    return s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){rows, cols}, host);
}

static void mixes_rows_as_the_formula(void **state)
{
    enum { COLS = 300, ROWS = 5 }; /* past a block of columns */
    static float x[7 * COLS], table[ROWS * COLS], y[7 * COLS];
    struct s2s_tape *tape = s2s_tape_new(device, false);
    struct s2s_tensor *from = leaf(tape, 7, COLS, 1, x), *t = leaf(tape, ROWS, COLS, 2, table);
    s2s_tensor_read(s2s_op_add_mixed_rows(tape, from, t, &mix), y);
    for (int i = 0; i < 7; i++)
        for (int c = 0; c < COLS; c++) {
            double want = (double)x[i * COLS + c];
            for (int j = 2 * i; j < 2 * i + 2; j++)
                want += idx[j] < 0 ? 0 : (double)weights[j] * (double)table[idx[j] * COLS + c];
            assert_true(fabs((double)y[i * COLS + c] - want) < 1e-5);
        }
    s2s_tape_free(tape);
}

/* No image at all: the gradients are zeros. */
static void takes_no_rows(void **state)
{
    static float table[20], gain[4];
    struct s2s_tape *tape = s2s_tape_new(device, true);
    struct s2s_tensor *x = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){0, 4}, NULL),
                      *t = leaf(tape, 5, 4, 2, table), *g = leaf(tape, 1, 4, 3, gain);
    s2s_tape_want_grad(t);
    s2s_tape_want_grad(g);
    const struct s2s_row_mix none = {.n_sources = 4, .idx = idx, .weights = weights};
    struct s2s_tensor *y = s2s_op_add_mixed_rows(tape, x, t, &none);
    to_target(tape, s2s_op_scale_columns(tape, y, g));
    s2s_tape_backward(tape);
    s2s_tensor_read(s2s_tape_take_grad(tape, t), table);
    s2s_tensor_read(s2s_tape_take_grad(tape, g), gain);
    for (int i = 0; i < 20; i++)
        assert_true(table[i] == 0 && gain[i % 4] == 0);
    s2s_tape_free(tape);
}

/* A gain that is not trained costs no memory: what it scales is not kept. */
static void scales_in_place_where_the_gain_is_fixed(void **state)
{
    static float host[12], gain[4];
    struct s2s_tape *tape = s2s_tape_new(device, true);
    for (int trained = 0; trained < 2; trained++) {
        struct s2s_tensor *x = leaf(tape, 3, 4, 1, host), *g = leaf(tape, 1, 4, 2, gain);
        s2s_tape_want_grad(x);
        if (trained)
            s2s_tape_want_grad(g);
        struct s2s_tensor *doubled = s2s_op_scale(tape, 2, x),
                          *y = s2s_op_scale_columns(tape, doubled, g);
        assert_int_equal(doubled->data == y->data, !trained);
    }
    s2s_tape_free(tape);
}

static struct check checks[] = {
    {"mixed rows", 2, {{2, {7, 9}}, {3, {1, 5, 9}}}, loss_mixed},
    {"scaled columns", 2, {{2, {70, 9}}, {1, {9}}}, loss_scaled},
    {"scaled columns twice", 2, {{2, {5, 9}}, {1, {9}}}, loss_scaled_twice},
};

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixes_rows_as_the_formula),
        cmocka_unit_test(takes_no_rows),
        cmocka_unit_test(scales_in_place_where_the_gain_is_fixed),
    };
    int rc = cmocka_run_group_tests(tests, open_device, close_device);
    return rc ? rc : run_checks(checks, sizeof checks / sizeof *checks);
}
