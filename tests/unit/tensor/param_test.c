/* Parameters: the same values on any cut, what is frozen has no gradient, buffers are flat; arenas
 * and pools reuse their memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/tensor/ops.h"
#include "lib/tensor/param.h"

static struct s2s_device *device;

static struct s2s_params *one_param(struct s2s_param **param, const struct s2s_group *group,
                                    int cut_dim, enum s2s_init_kind kind)
{
    struct s2s_params *params = s2s_params_new(device);
    *param = s2s_params_add(params, &(struct s2s_param_spec){.name = "w.weight",
                                                             .n_dims = 3,
                                                             .shape = {4, 6, 5},
                                                             .cut_axis = S2S_AXIS_TP,
                                                             .cut_dim = cut_dim,
                                                             .cut_group = group,
                                                             .init = {kind, 0.5}});
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    s2s_params_init(params, 3);
    return params;
}

static void initial_values_do_not_depend_on_the_cut(void **state)
{
    for (int kind = S2S_INIT_ZERO; kind <= S2S_INIT_UNIFORM; kind++)
        for (int dim = 0; dim < 2; dim++) {
            struct s2s_param *whole, *part;
            float all[120], some[120];
            struct s2s_params *one = one_param(&whole, NULL, dim, (enum s2s_init_kind)kind);
            s2s_param_get(whole, all);
            for (int rank = 0; rank < 2; rank++) {
                struct s2s_group group = {.axis = "tp", .size = 2, .rank = rank};
                struct s2s_params *cut = one_param(&part, &group, dim, (enum s2s_init_kind)kind);
                assert_int_equal(part->numel, 60);
                /* as initialised, and as cut out of the whole tensor */
                for (int from_whole = 0; from_whole < 2; from_whole++) {
                    if (from_whole)
                        s2s_param_set(part, all, S2S_F32);
                    s2s_param_get(part, some);
                    int n = 0;
                    for (int i = 0; i < 4; i++)
                        for (int j = 0; j < 6; j++)
                            for (int k = 0; k < 5; k++)
                                if ((dim == 0 ? i / 2 : j / 3) == rank)
                                    assert_true(some[n++] == all[(i * 6 + j) * 5 + k]);
                    assert_int_equal(n, 60);
                }
                s2s_params_free(cut);
            }
            s2s_params_free(one);
        }
}

static void initial_values_have_the_spread_that_was_asked(void **state)
{
    struct s2s_params *params = s2s_params_new(device);
    struct s2s_param *normal = s2s_params_add(
        params, &(struct s2s_param_spec){
                    .name = "a", .n_dims = 1, .shape = {100000}, .init = {S2S_INIT_NORMAL, 0.02}});
    struct s2s_param *other = s2s_params_add(
        params, &(struct s2s_param_spec){
                    .name = "b", .n_dims = 1, .shape = {100000}, .init = {S2S_INIT_NORMAL, 0.02}});
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    s2s_params_init(params, 1);
    float *x = s2s_xcalloc(100000, sizeof *x), *y = s2s_xcalloc(100000, sizeof *y);
    s2s_param_get(normal, x);
    s2s_param_get(other, y);
    double mean = 0, square = 0, cross = 0;
    for (int i = 0; i < 100000; i++) {
        mean += x[i] / 1e5;
        square += (double)x[i] * x[i] / 1e5;
        cross += (double)x[i] * y[i] / 1e5;
    }
    assert_true(fabs(mean) < 4 * 0.02 / sqrt(1e5));
    assert_true(fabs(sqrt(square) / 0.02 - 1) < 0.01);
    assert_true(fabs(cross) < 4 * 0.02 * 0.02 / sqrt(1e5)); /* another name, other numbers */
    free(x);
    free(y);
    s2s_params_free(params);
}

static void trained_and_fixed_stand_apart(void **state)
{
    struct s2s_params *params = s2s_params_new(device);
    static const char *const names[] = {"a.weight", "a.bias", "norm.weight", "b.weight"};
    struct s2s_param *p[4];
    for (int i = 0; i < 4; i++)
        p[i] = s2s_params_add(params,
                              &(struct s2s_param_spec){.name = names[i],
                                                       .n_dims = i == 0 || i == 3 ? 2 : 1,
                                                       .shape = {3, 7},
                                                       .flags = i == 2 ? S2S_PARAM_BUFFER : 0});
    s2s_params_freeze(params, "b.");
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    assert_true(p[0]->trained && p[1]->trained && !p[2]->trained && !p[3]->trained);
    assert_int_equal(p[0]->offset, 0);
    assert_int_equal(p[1]->offset, 32); /* 21 elements, rounded up to 16s */
    assert_int_equal(params->n_trained, 48);
    assert_int_equal(params->n_fixed, 48);
    assert_null(p[3]->tensor->grad);
    assert_true(s2s_param_decays(p[0]) && !s2s_param_decays(p[1]) && !s2s_param_decays(p[2]));
    assert_ptr_equal(s2s_params_find(params, "a.bias"), p[1]);
    assert_null(s2s_params_find(params, "a"));
    const uint16_t halves[] = {s2s_f32_to_bf16(1.5f), s2s_f32_to_bf16(-2), s2s_f32_to_bf16(0.25f)};
    float got[3];
    s2s_param_set(p[1], halves, S2S_BF16);
    s2s_param_get(p[1], got);
    assert_true(got[0] == 1.5f && got[1] == -2 && got[2] == 0.25f);
    s2s_params_free(params);
}

static void a_second_step_needs_no_new_memory(void **state)
{
    struct s2s_tape *tape = s2s_tape_new(device, true);
    float x[64 * 32] = {1};
    size_t reserved = 0, pool = 0;
    for (int step = 0; step < 4; step++) {
        s2s_tape_reset(tape);
        struct s2s_tensor *t = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){64, 32}, x);
        struct s2s_tensor *target = t;
        s2s_tape_want_grad(t);
        for (int i = 0; i < 50; i++)
            t = s2s_op_glu(tape, t, NULL, S2S_ACT_SILU);
        s2s_op_sqdist(tape, t, target, 1);
        s2s_tape_backward(tape);
        if (step == 1) {
            reserved = tape->arena.reserved_bytes;
            pool = device->pool.peak_bytes;
        }
    }
    assert_int_equal(tape->arena.reserved_bytes, reserved);
    assert_int_equal(device->pool.peak_bytes, pool);
    /* 50 activations, but their gradients take turns */
    assert_true(pool < 5 * sizeof x);
    s2s_tape_free(tape);
}

static int set_up(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    return s2s_device_open(&device, "cpu", &err);
}

static int tear_down(void **state)
{
    s2s_device_close(device);
    return 0;
}

static void unknown_devices_are_refused(void **state)
{
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_device *other;
    assert_int_equal(s2s_device_open(&other, "abacus", &err), S2S_E_UNSUPPORTED);
    assert_null(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(initial_values_do_not_depend_on_the_cut),
        cmocka_unit_test(initial_values_have_the_spread_that_was_asked),
        cmocka_unit_test(trained_and_fixed_stand_apart),
        cmocka_unit_test(a_second_step_needs_no_new_memory),
        cmocka_unit_test(unknown_devices_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
