/* Operations of Mamba2 layers against finite differences, and against what transformers' NemotronH
 * computes (tests/oracle/models/mamba2_units). */
#include <jansson.h>
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/io/safetensors.h"
#include "tests/unit/tensor/gradient.h"

/* ---- differences ---- */

/* Three sequences of five rows, one of them empty; and what goes on with each. */
static const int32_t first_cu[] = {0, 3, 3, 5}, next_cu[] = {0, 1, 3, 4};
enum { SEQS = 3, ROWS = 5, NEXT_ROWS = 4 };

/* x [5, 6], w [6, 1, 4], b [6], initial [9, 6], x of the second call [4, 6] */
static struct s2s_tensor *loss_conv1d(struct s2s_tape *tape, struct s2s_tensor **in)
{
    const struct s2s_seqs first = s2s_op_seqs(tape, first_cu, SEQS);
    const struct s2s_seqs next = s2s_op_seqs(tape, next_cu, SEQS);
    struct s2s_tensor *state = NULL;
    s2s_op_conv1d(tape, in[0], in[1], in[2], &first, true, in[3], &state);
    return to_target(tape, s2s_op_conv1d(tape, in[4], in[1], in[2], &next, true, state, NULL));
}

static struct s2s_tensor *loss_conv1d_alone(struct s2s_tape *tape, struct s2s_tensor **in)
{
    const struct s2s_seqs seqs = s2s_op_seqs(tape, first_cu, SEQS);
    return to_target(tape, s2s_op_conv1d(tape, in[0], in[1], NULL, &seqs, false, NULL, NULL));
}

enum { HEADS = 4, GROUPS = 2, DIM = 3, STATE = 2, INNER = HEADS * DIM, WIDTH = GROUPS * STATE };
static const struct s2s_ssd_shape shape = {HEADS, GROUPS, DIM, STATE, 0};

/* Columns of one tensor: x, b, c, dt. */
static void split(struct s2s_tape *tape, struct s2s_tensor *all, struct s2s_ssd_inputs *in)
{
    struct s2s_tensor *parts[4];
    s2s_tape_split(tape, all, 4, (int64_t[]){INNER, WIDTH, WIDTH, HEADS}, parts);
    in->x = parts[0];
    in->b = parts[1];
    in->c = parts[2];
    in->dt = parts[3];
}

/* all [5, 24], a_log, dt_bias, skip [4], initial [3, 4, 3, 2], all of the second call [4, 24] */
static struct s2s_tensor *loss_ssd(struct s2s_tape *tape, struct s2s_tensor **in)
{
    const struct s2s_seqs first = s2s_op_seqs(tape, first_cu, SEQS);
    const struct s2s_seqs next = s2s_op_seqs(tape, next_cu, SEQS);
    struct s2s_ssd_inputs with = {
        .a_log = in[1], .dt_bias = in[2], .skip = in[3], .initial = in[4]};
    struct s2s_tensor *state = NULL;
    split(tape, s2s_op_scale(tape, 0.5f, in[0]), &with);
    s2s_op_ssd(tape, &with, &shape, &first, &state);
    split(tape, s2s_op_scale(tape, 0.5f, in[5]), &with);
    with.initial = state;
    return to_target(tape, s2s_op_ssd(tape, &with, &shape, &next, NULL));
}

/* x of the scan also goes into the loss: gradients add. */
static struct s2s_tensor *loss_ssd_alone(struct s2s_tape *tape, struct s2s_tensor **in)
{
    const struct s2s_seqs seqs = s2s_op_seqs(tape, first_cu, SEQS);
    const struct s2s_ssd_inputs with = {
        .x = in[0], .b = in[1], .c = in[1], .dt = in[2], .a_log = in[3]};
    struct s2s_tensor *y = s2s_op_ssd(tape, &with, &shape, &seqs, NULL);
    return to_target(tape, s2s_op_add(tape, y, in[0]));
}

static struct s2s_tensor *loss_gatednorm(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return to_target(tape, s2s_op_gatednorm(tape, in[0], in[1], in[2], 2, 1e-3f));
}

static struct s2s_tensor *loss_gatednorm_of_one(struct s2s_tape *tape, struct s2s_tensor **in)
{
    return to_target(tape, s2s_op_gatednorm(tape, in[0], in[0], in[1], 3, 1e-3f));
}

static struct check checks[] = {
    {"convolutions that go on",
     5,
     {{2, {ROWS, 6}}, {3, {6, 1, 4}}, {1, {6}}, {2, {SEQS * 3, 6}}, {2, {NEXT_ROWS, 6}}},
     loss_conv1d},
    {"a convolution", 2, {{2, {ROWS, 6}}, {3, {6, 1, 4}}}, loss_conv1d_alone},
    {"scans that go on",
     6,
     {{2, {ROWS, 24}},
      {1, {HEADS}},
      {1, {HEADS}},
      {1, {HEADS}},
      {4, {SEQS, HEADS, DIM, STATE}},
      {2, {NEXT_ROWS, 24}}},
     loss_ssd},
    {"a scan",
     4,
     {{2, {ROWS, INNER}}, {2, {ROWS, WIDTH}}, {2, {ROWS, HEADS}}, {1, {HEADS}}},
     loss_ssd_alone},
    {"gated norm", 3, {{2, {5, 8}}, {2, {5, 8}}, {1, {8}}}, loss_gatednorm},
    {"gated norm of one", 2, {{2, {5, 9}}, {1, {9}}}, loss_gatednorm_of_one},
};

/* ---- transformers ---- */

#define FOLDER "tests/oracle/models/mamba2_units/"

static struct s2s_safetensors inputs, expected;
static json_t *told;

static const struct s2s_st_tensor *look(const struct s2s_safetensors *st, const char *prefix,
                                        const char *name)
{
    char full[100];
    snprintf(full, sizeof full, "%s/%s", prefix, name);
    const struct s2s_st_tensor *t = s2s_safetensors_find(st, full);
    if (!t)
        fail_msg("%s is not there", full);
    return t;
}

/* [rows, cols] with a gradient wanted */
static struct s2s_tensor *upload(struct s2s_tape *tape, const char *prefix, const char *name,
                                 int64_t rows, int64_t cols)
{
    const struct s2s_st_tensor *t = look(&inputs, prefix, name);
    assert_int_equal(s2s_st_numel(t), rows * cols);
    float *host = s2s_xmalloc(t->len_bytes);
    memcpy(host, t->data, t->len_bytes);
    struct s2s_tensor *on = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){rows, cols}, host);
    free(host);
    s2s_tape_want_grad(on);
    return on;
}

static void alike(const struct s2s_tensor *got, const char *prefix, const char *name)
{
    const struct s2s_st_tensor *want = look(&expected, prefix, name);
    char full[100];
    snprintf(full, sizeof full, "%s/%s", prefix, name);
    const double atol = json_number_value(
        json_object_get(json_object_get(json_object_get(told, "tolerance"), full), "atol"));
    const int64_t n = s2s_tensor_numel(got);
    float *values = s2s_xcalloc((size_t)n + 1, sizeof *values), y;
    assert_true(atol > 0);
    assert_int_equal(s2s_st_numel(want), n);
    s2s_tensor_read(got, values);
    for (int64_t i = 0; i < n; i++) {
        memcpy(&y, (const char *)want->data + (size_t)i * sizeof y, sizeof y);
        if (!(fabs((double)values[i] - y) <= atol))
            fail_msg("%s[%d] is %.9g, not %.9g", full, (int)i, (double)values[i], (double)y);
    }
    free(values);
}

/* B rows of T as packed sequences. */
static struct s2s_seqs sequences(struct s2s_tape *tape, int64_t b, int64_t t)
{
    int32_t cu[16] = {0};
    assert_true(b < 16);
    for (int64_t i = 0; i < b; i++)
        cu[i + 1] = cu[i] + (int32_t)t;
    return s2s_op_seqs(tape, cu, b);
}

static int64_t size_of(const json_t *one, const char *name)
{
    return json_integer_value(json_object_get(one, name));
}

static void scan_of(const json_t *one)
{
    const char *name = json_string_value(json_object_get(one, "name"));
    const int64_t b = size_of(one, "B"), n = b * size_of(one, "T");
    const struct s2s_ssd_shape sizes = {size_of(one, "H"), size_of(one, "G"), size_of(one, "P"),
                                        size_of(one, "N"),
                                        (float)json_number_value(json_object_get(one, "lo"))};
    const int64_t h = sizes.n_heads, width = sizes.n_groups * sizes.state, inner = h * sizes.dim;
    const bool init = json_is_true(json_object_get(one, "init"));
    struct s2s_tape *tape = s2s_tape_new(device, true);
    const struct s2s_seqs seqs = sequences(tape, b, size_of(one, "T"));
    struct s2s_ssd_inputs in = {.x = upload(tape, name, "x", n, inner),
                                .dt = upload(tape, name, "dt", n, h),
                                .b = upload(tape, name, "B", n, width),
                                .c = upload(tape, name, "C", n, width),
                                .a_log = upload(tape, name, "A_log", 1, h),
                                .dt_bias = upload(tape, name, "dt_bias", 1, h),
                                .skip = upload(tape, name, "D", 1, h)};
    if (init)
        in.initial = upload(tape, name, "initial_state", b * inner, sizes.state);
    struct s2s_tensor *final = NULL, *y = s2s_op_ssd(tape, &in, &sizes, &seqs, &final);
    final = s2s_tape_view(tape, final, 2, (int64_t[]){b * inner, sizes.state});
    alike(y, name, "y");
    alike(final, name, "final_state");
    s2s_tape_seed_grad(tape, y, upload(tape, name, "cotangent_y", n, inner));
    s2s_tape_seed_grad(tape, final,
                       upload(tape, name, "cotangent_final_state", b * inner, sizes.state));
    s2s_tape_backward(tape);
    alike(in.x->grad, name, "grad/x");
    alike(in.dt->grad, name, "grad/dt");
    alike(in.b->grad, name, "grad/B");
    alike(in.c->grad, name, "grad/C");
    alike(in.a_log->grad, name, "grad/A_log");
    alike(in.dt_bias->grad, name, "grad/dt_bias");
    alike(in.skip->grad, name, "grad/D");
    if (init)
        alike(in.initial->grad, name, "grad/initial_state");
    s2s_tape_free(tape);
}

static void scans_are_those_of_transformers(void **state)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(told, "cases"), i, one) scan_of(one);
    assert_int_equal(i, 5);
}

static void convolution_is_that_of_transformers(void **state)
{
    struct s2s_tape *tape = s2s_tape_new(device, true);
    const int64_t *sizes = look(&inputs, "conv", "x")->shape, n = sizes[0] * sizes[1];
    const struct s2s_seqs seqs = sequences(tape, sizes[0], sizes[1]);
    struct s2s_tensor *x = upload(tape, "conv", "x", n, sizes[2]);
    struct s2s_tensor *w = upload(tape, "conv", "weight", sizes[2], 4);
    struct s2s_tensor *b = upload(tape, "conv", "bias", 1, sizes[2]);
    struct s2s_tensor *y = s2s_op_conv1d(tape, x, w, b, &seqs, true, NULL, NULL);
    alike(y, "conv", "y");
    s2s_tape_seed_grad(tape, y, upload(tape, "conv", "cotangent", n, sizes[2]));
    s2s_tape_backward(tape);
    alike(x->grad, "conv", "grad/x");
    alike(w->grad, "conv", "grad/weight");
    alike(b->grad, "conv", "grad/bias");
    s2s_tape_free(tape);
}

static void gated_norm_is_that_of_transformers(void **state)
{
    struct s2s_tape *tape = s2s_tape_new(device, true);
    const int64_t *sizes = look(&inputs, "gated_norm", "x")->shape, n = sizes[0] * sizes[1];
    const json_t *how = json_object_get(told, "gated_norm");
    struct s2s_tensor *x = upload(tape, "gated_norm", "x", n, sizes[2]);
    struct s2s_tensor *z = upload(tape, "gated_norm", "gate", n, sizes[2]);
    struct s2s_tensor *gain = upload(tape, "gated_norm", "weight", 1, sizes[2]);
    struct s2s_tensor *y = s2s_op_gatednorm(tape, x, z, gain, sizes[2] / size_of(how, "group_size"),
                                            (float)json_number_value(json_object_get(how, "eps")));
    alike(y, "gated_norm", "y");
    s2s_tape_seed_grad(tape, y, upload(tape, "gated_norm", "cotangent", n, sizes[2]));
    s2s_tape_backward(tape);
    alike(x->grad, "gated_norm", "grad/x");
    alike(z->grad, "gated_norm", "grad/gate");
    alike(gain->grad, "gated_norm", "grad/weight");
    s2s_tape_free(tape);
}

static int open_fixture(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    json_error_t place;
    told = json_load_file(FOLDER "expected.json", 0, &place);
    if (!told || s2s_safetensors_open(&inputs, FOLDER "inputs.safetensors", &err) < 0 ||
        s2s_safetensors_open(&expected, FOLDER "expected.safetensors", &err) < 0)
        return 1;
    return open_device(state);
}

static int close_fixture(void **state)
{
    json_decref(told);
    s2s_safetensors_release(&inputs);
    s2s_safetensors_release(&expected);
    return close_device(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scans_are_those_of_transformers),
                                       cmocka_unit_test(convolution_is_that_of_transformers),
                                       cmocka_unit_test(gated_norm_is_that_of_transformers)};
    return run_checks(checks, sizeof checks / sizeof *checks) +
           cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
