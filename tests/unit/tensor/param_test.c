/* Parameters: each value is set once, what is frozen has no gradient, buffers are flat and stand by
 * class; arenas and pools reuse their memory. param_boxes_test.c has the cuts. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/tensor/ops.h"
#include "lib/tensor/param.h"
#include "tests/unit/tensor/bug.h"

static struct s2s_device *device;

static struct s2s_param *add(struct s2s_params *params, const char *name, int64_t n, unsigned flags)
{
    return s2s_params_add(
        params, &(struct s2s_param_spec){.name = name, .n_dims = 1, .shape = {n}, .flags = flags});
}

static void what_was_set_is_not_initialised(void **state)
{
    struct s2s_params *params = s2s_params_new(device);
    struct s2s_param *loaded = add(params, "loaded", 3, 0), *local = add(params, "local", 2, 0);
    struct s2s_param *rest = add(params, "rest", 7, S2S_PARAM_BUFFER);
    float got[7];
    loaded->init = rest->init = (struct s2s_init){S2S_INIT_CONSTANT, 5};
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    s2s_param_set(loaded, (const float[]){1, 2, 3}, S2S_F32);
    s2s_param_set_local(local, (const float[]){4, 5});
    assert_int_equal(s2s_params_init(params, 1), 7);
    s2s_param_get(loaded, got);
    assert_true(got[0] == 1 && got[1] == 2 && got[2] == 3);
    s2s_param_get(rest, got);
    assert_true(got[0] == 5 && got[6] == 5);
    assert_int_equal(s2s_params_init(params, 2), 0);
    s2s_params_zero_grads(params); /* no bug */
    s2s_params_free(params);
}

static void zero_grads(void *params)
{
    s2s_params_zero_grads(params);
}

static void a_step_with_a_value_never_set_is_a_bug(void **state)
{
    struct s2s_params *params = s2s_params_new(device);
    struct s2s_param *a = add(params, "a", 3, 0);
    add(params, "b", 3, S2S_PARAM_FROZEN);
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    s2s_param_init(a, 1);
    assert_bug(zero_grads, params, "b was neither loaded nor initialised");
    s2s_params_free(params);
}

static void each_class_is_one_range(void **state)
{
    struct s2s_group tp = {.size = 2};
    struct s2s_params *params = s2s_params_new(device);
    struct s2s_param_spec cut = {
        .name = "cut", .n_dims = 1, .shape = {64}, .cuts = {{S2S_AXIS_TP, 0, &tp}}};
    struct s2s_param *p[] = {add(params, "expert", 16, S2S_PARAM_EXPERT),
                             s2s_params_add(params, &cut), add(params, "sum", 3, S2S_PARAM_SP_SUM),
                             add(params, "same", 48, 0), add(params, "same2", 1, 0)};
    static const int order[] = {3, 4, 2, 1, 0};
    int64_t begin, end, at = 0;
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(p[order[i]]->offset, at);
        s2s_params_range(params, p[order[i]]->class, &begin, &end);
        assert_in_range(at, begin, end - 1);
        at += (p[order[i]]->numel + 15) / 16 * 16;
    }
    assert_int_equal(params->n_trained, at);
    static const int64_t ends[S2S_CLASSES] = {64, 80, 112, 112, 128};
    for (int c = 0; c < S2S_CLASSES; c++) {
        s2s_params_range(params, (enum s2s_param_class)c, &begin, &end);
        assert_int_equal(begin, c ? ends[c - 1] : 0);
        assert_int_equal(end, ends[c]);
    }
    s2s_params_free(params);
}

/* The order decides in which order the norm adds, and so its bits. */
static void one_process_keeps_the_order_of_adding(void **state)
{
    struct s2s_group alone = {.size = 1};
    struct s2s_params *params = s2s_params_new(device);
    int64_t at = 0, begin, end;
    for (int i = 0; i < 6; i++) {
        char name[] = {(char)('f' - i), 0};
        struct s2s_param_spec spec = {.name = name,
                                      .n_dims = 1,
                                      .shape = {16 * (i + 1)},
                                      .cuts = {{S2S_AXIS_TP, 0, i % 2 ? &alone : NULL}}};
        s2s_params_add(params, &spec);
    }
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    for (size_t i = 0; i < params->n; at += params->list[i++]->numel)
        assert_int_equal(params->list[i]->offset, at);
    s2s_params_range(params, S2S_CLASS_REPLICATED, &begin, &end);
    assert_true(begin == 0 && end == params->n_trained);
    s2s_params_free(params);
}

static void tied_names_share_one_tensor(void **state)
{
    struct s2s_params *params = s2s_params_new(device);
    struct s2s_param *embed = add(params, "embed", 32, 0);
    struct s2s_param *head = s2s_params_add(
        params,
        &(struct s2s_param_spec){.name = "head", .n_dims = 1, .shape = {32}, .tie = "embed"});
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    assert_ptr_equal(head->tensor, embed->tensor);
    assert_ptr_equal(head->tensor->param, embed);
    assert_ptr_equal(s2s_params_find(params, "head"), head);
    assert_false(s2s_param_is_here(head));
    assert_int_equal(params->n_trained, 32);
    assert_int_equal(s2s_params_init(params, 1), 32);
    s2s_params_zero_grads(params);
    s2s_params_free(params);
}

/* Two stages have it: the one that has the copy does not count it. */
static void shared_ones_are_counted_by_one_stage(void **state)
{
    for (int copy = 0; copy < 2; copy++) {
        struct s2s_params *params = s2s_params_new(device);
        struct s2s_param *shared = add(params, "embed", 32, 0);
        struct s2s_param *gone = add(params, "elsewhere", 1000, 0);
        add(params, "here", 16, 0);
        s2s_param_share(shared, copy);
        s2s_param_remove(gone);
        assert_int_equal(s2s_params_finish(params, NULL), 0);
        assert_int_equal(params->n_trained, 48);
        assert_true(shared->trained && s2s_param_is_here(shared));
        assert_false(gone->trained || s2s_param_is_here(gone));
        int64_t begin, end;
        s2s_params_range(params, S2S_CLASS_COPY, &begin, &end);
        assert_int_equal(end - begin, copy ? 32 : 0);
        s2s_params_free(params);
    }
}

static void absent_ones_have_shapes_and_no_memory(void **state)
{
    struct s2s_params *params = s2s_params_new(device);
    struct s2s_param *there = add(params, "elsewhere", 1000, S2S_PARAM_ABSENT);
    struct s2s_param *buffer = add(params, "mean", 1000, S2S_PARAM_ABSENT | S2S_PARAM_BUFFER);
    add(params, "here", 16, 0);
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    assert_int_equal(params->n_trained, 16);
    assert_int_equal(params->n_fixed, 0);
    assert_true(!there->trained && there->numel == 0 && buffer->numel == 0);
    assert_int_equal(there->shape[0], 1000);
    assert_int_equal(s2s_tensor_numel(there->tensor), 1000);
    assert_null(there->tensor->data);
    assert_int_equal(s2s_params_init(params, 1), 16);
    s2s_params_zero_grads(params);
    assert_null(s2s_params_find_nonfinite(params, false));
    assert_null(s2s_params_find_nonfinite(params, true));
    /* set and get find nothing to do */
    float none = 7;
    s2s_param_set(there, NULL, S2S_BF16);
    s2s_param_get(there, &none);
    s2s_param_get_grad(there, &none);
    assert_true(none == 7);
    s2s_params_free(params);
}

static void patterns_freeze_and_scale(void **state)
{
    struct s2s_params *params = s2s_params_new(device);
    struct s2s_param *a = add(params, "llm.layers.0.norm.weight", 4, 0);
    struct s2s_param *b = add(params, "llm.layers.1.mlp.weight", 4, 0);
    struct s2s_param *c = add(params, "encoder.norm.weight", 4, 0);
    assert_int_equal(s2s_params_freeze_match(params, "llm.*.norm.weight"), 1);
    assert_int_equal(s2s_params_freeze_match(params, "norm"), 0);
    assert_int_equal(s2s_params_freeze_match(params, "encoder.*"), 1);
    assert_int_equal(s2s_params_unfreeze_match(params, "encoder.norm.*"), 1);
    assert_int_equal(s2s_params_scale_match(params, "*.weight", 0.5, 1, -1), 3);
    assert_int_equal(s2s_params_scale_match(params, "llm.*.1.*", 0.5, 0, 1e-6), 1);
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    assert_true(!a->trained && b->trained && c->trained);
    assert_true(b->lr_mult == 0.25 && b->decay_mult == 0);
    assert_true(c->lr_mult == 0.5 && c->decay_mult == 1);
    assert_true(a->min_lr < 0 && b->min_lr == 1e-6);
    s2s_params_free(params);
}

static void many_names_are_found(void **state)
{
    struct s2s_params *params = s2s_params_new(device);
    enum { MANY = 3000 };
    struct s2s_param *p[MANY];
    char name[40];
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "layers.%d.experts.%d.weight", i / 100, i % 100);
        p[i] = add(params, name, 1, 0);
    }
    for (int i = 0; i < MANY; i++)
        assert_ptr_equal(s2s_params_find(params, p[i]->name), p[i]);
    assert_null(s2s_params_find(params, "layers.30.experts.0.weight"));
    s2s_params_free(params);
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

/* A matrix, one that kernels take as floats, a vector, and a frozen matrix. */
static void on_bf16_matrices_have_masters_and_work_as_their_roundings(void **state)
{
    struct s2s_device *own;
    struct s2s_error err = S2S_ERROR_INIT;
    assert_int_equal(s2s_device_open(&own, "cpu", &err), 0);
    assert_int_equal(s2s_device_work_in(own, S2S_BF16, &err), 0);
    assert_int_equal(s2s_device_work_in(own, S2S_F16, &err), S2S_E_UNSUPPORTED);
    struct s2s_params *params = s2s_params_new(own);
    static const struct s2s_param_spec specs[] = {
        {.name = "a.weight", .n_dims = 2, .shape = {3, 7}},
        {.name = "conv.weight", .n_dims = 2, .shape = {3, 7}, .flags = S2S_PARAM_F32},
        {.name = "a.bias", .n_dims = 1, .shape = {21}},
        {.name = "b.weight", .n_dims = 2, .shape = {3, 7}, .flags = S2S_PARAM_FROZEN}};
    struct s2s_param *p[4];
    float given[21], got[21];
    uint16_t working[21];
    for (int i = 0; i < 4; i++)
        p[i] = s2s_params_add(params, &specs[i]);
    assert_int_equal(s2s_params_finish(params, NULL), 0);
    for (int i = 0; i < 21; i++)
        given[i] = 1 + (float)i / 1024; /* more bits than BF16 has */
    for (int i = 0; i < 4; i++) {
        const bool matrix = i == 0 || i == 3;
        assert_int_equal(p[i]->tensor->dtype, matrix ? S2S_BF16 : S2S_F32);
        s2s_param_set(p[i], given, S2S_F32);
        s2s_param_get(p[i], got);
        s2s_tensor_read(p[i]->tensor, matrix ? (void *)working : (void *)got);
        for (int k = 0; k < 21; k++) {
            const uint16_t half = s2s_f32_to_bf16(given[k]);
            assert_true(!matrix || working[k] == half);
            assert_true(got[k] == (i == 3 ? s2s_bf16_to_f32(half) : given[k]));
        }
        assert_true(!p[i]->trained || p[i]->tensor->grad->dtype == S2S_F32);
    }
    /* 4 and 2 bytes of 3 x 32 trained ones with their gaps, 2 of the 32 frozen */
    assert_int_equal(s2s_params_bytes(params), 96 * 6 + 32 * 2);
    given[0] = 3.14159f;
    own->kernels->copy_in(&own->queue, p[0]->master, given, sizeof given);
    s2s_params_round(params, p[0]->offset, p[0]->numel);
    s2s_tensor_read(p[0]->tensor, working);
    assert_int_equal(working[0], s2s_f32_to_bf16(given[0]));
    s2s_params_free(params);
    s2s_device_close(own);
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
        cmocka_unit_test(what_was_set_is_not_initialised),
        cmocka_unit_test(a_step_with_a_value_never_set_is_a_bug),
        cmocka_unit_test(each_class_is_one_range),
        cmocka_unit_test(one_process_keeps_the_order_of_adding),
        cmocka_unit_test(tied_names_share_one_tensor),
        cmocka_unit_test(shared_ones_are_counted_by_one_stage),
        cmocka_unit_test(absent_ones_have_shapes_and_no_memory),
        cmocka_unit_test(patterns_freeze_and_scale),
        cmocka_unit_test(many_names_are_found),
        cmocka_unit_test(initial_values_have_the_spread_that_was_asked),
        cmocka_unit_test(trained_and_fixed_stand_apart),
        cmocka_unit_test(on_bf16_matrices_have_masters_and_work_as_their_roundings),
        cmocka_unit_test(a_second_step_needs_no_new_memory),
        cmocka_unit_test(unknown_devices_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
