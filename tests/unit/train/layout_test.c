/* The groups of a rank: who has the same parameters, the same packs, other experts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/base.h"
#include "lib/model/model.h"
#include "lib/tensor/device.h"
#include "lib/train/buckets.h"
#include "lib/train/layout.h"
#include "tests/unit/tensor/bug.h"

struct bench {
    struct s2s_device *device;
    struct s2s_mesh *mesh;
    struct s2s_layout layout;
};

/* As rank `rank` of n, nothing is started. */
static int open_bench(struct bench *b, int n, int rank, const struct s2s_layout_spec *spec,
                      struct s2s_error *err)
{
    assert_int_equal(s2s_device_open(&b->device, "cpu", err), 0);
    assert_int_equal(s2s_mesh_open_count(&b->mesh, n, rank, err), 0);
    return s2s_layout_init(&b->layout, b->mesh, spec, b->device, err);
}

static void close_bench(struct bench *b)
{
    s2s_mesh_close(b->mesh);
    s2s_device_close(b->device);
}

static void is_group(const struct s2s_group *group, int size, int rank)
{
    assert_non_null(group);
    assert_int_equal(group->size, size);
    assert_int_equal(group->rank, rank);
}

/* Coordinates are counted with tp fastest and pp slowest. */
static void gradients_are_of_ranks_with_the_same_parameters(void **state)
{
    struct bench b;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_layout_spec spec = S2S_LAYOUT_SPEC_INIT;
    spec.size[S2S_AXIS_TP] = spec.size[S2S_AXIS_CP] = spec.size[S2S_AXIS_PP] = spec.etp = 2;
    spec.size[S2S_AXIS_DP] = 3;
    spec.sequence_parallel = true;
    assert_int_equal(s2s_layout_peers(&spec), 8);
    /* tp 1, cp 1, dp 2, pp 1 */
    assert_int_equal(open_bench(&b, 24, 1 + 2 * 1 + 4 * 2 + 12 * 1, &spec, &err), 0);
    const struct s2s_layout *l = &b.layout;
    is_group(l->axes[S2S_AXIS_TP], 2, 1);
    is_group(l->axes[S2S_AXIS_CP], 2, 1);
    is_group(l->axes[S2S_AXIS_DP], 3, 2);
    is_group(l->axes[S2S_AXIS_PP], 2, 1);
    is_group(l->axes[S2S_AXIS_EP], 1, 0);
    is_group(l->gradients, 6, 1 + 2 * 2);
    assert_int_equal(s2s_comm_size(l->data), 6);
    assert_null(l->experts);
    assert_ptr_equal(l->expert_gradients, l->gradients);
    assert_int_equal(s2s_comm_size(l->expert_cuts), 2);
    is_group(l->par.tp, 2, 1);
    is_group(l->par.cp, 2, 1);
    is_group(l->par.etp, 2, 1);
    assert_true(l->par.sp);
    close_bench(&b);
}

static void experts_lay_out_the_ranks_of_a_stage_another_way(void **state)
{
    struct bench b;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_layout_spec spec = S2S_LAYOUT_SPEC_INIT;
    spec.size[S2S_AXIS_TP] = spec.size[S2S_AXIS_PP] = 2;
    spec.size[S2S_AXIS_DP] = spec.size[S2S_AXIS_EP] = 4;
    /* rank 5 of the second stage: tp 1, dp 2; without etp ep 1 of the second copy */
    assert_int_equal(open_bench(&b, 16, 8 + 5, &spec, &err), 0);
    const struct s2s_layout *l = &b.layout;
    is_group(l->axes[S2S_AXIS_TP], 2, 1);
    is_group(l->axes[S2S_AXIS_EP], 4, 1);
    is_group(l->par.ep, 4, 1);
    is_group(l->par.etp, 1, 0);
    is_group(l->gradients, 4, 2);
    is_group(l->expert_gradients, 2, 1);
    assert_int_equal(s2s_comm_size(l->expert_cuts), 4);
    close_bench(&b);
}

static void experts_that_do_not_fit_the_ranks_are_refused(void **state)
{
    struct bench b;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_layout_spec spec = S2S_LAYOUT_SPEC_INIT;
    spec.size[S2S_AXIS_DP] = 4;
    spec.size[S2S_AXIS_EP] = 3;
    assert_int_equal(open_bench(&b, 4, 0, &spec, &err), S2S_E_RANGE);
    assert_non_null(strstr(err.text, "etp 1 x ep 3 do not divide the 4 ranks of the mesh"));
    close_bench(&b);
}

/* One process is the layout whose groups have one rank; sequences are not cut then. */
static void one_process_is_the_layout_of_ones(void **state)
{
    struct bench b;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_layout_spec spec = S2S_LAYOUT_SPEC_INIT;
    spec.sequence_parallel = true;
    assert_int_equal(open_bench(&b, 1, 0, &spec, &err), 0);
    for (int axis = 0; axis < S2S_AXES; axis++)
        is_group(b.layout.axes[axis], 1, 0);
    is_group(b.layout.gradients, 1, 0);
    assert_false(b.layout.par.sp);
    close_bench(&b);
}

/* An expert's vector, beside a matrix that is cut; ctx: the bench. */
static void lay_out_a_vector(void *ctx)
{
    struct bench *b = ctx;
    struct s2s_model model = {.params = s2s_params_new(b->device)};
    struct s2s_param_spec spec = {.name = "up",
                                  .n_dims = 2,
                                  .shape = {4, 2},
                                  .cuts = {{S2S_AXIS_TP, 0, b->layout.par.etp}},
                                  .flags = S2S_PARAM_EXPERT};
    s2s_params_add(model.params, &spec);
    spec = (struct s2s_param_spec){
        .name = "down.bias", .n_dims = 1, .shape = {2}, .flags = S2S_PARAM_EXPERT};
    s2s_params_add(model.params, &spec);
    s2s_buckets_lay_out(&model, &b->layout, S2S_NO_SHARD);
    s2s_params_free(model.params);
}

static void a_copy_of_an_experts_parameter_would_be_counted_twice(void **state)
{
    struct bench b;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_layout_spec spec = S2S_LAYOUT_SPEC_INIT;
    spec.size[S2S_AXIS_TP] = spec.etp = 2;
    assert_int_equal(open_bench(&b, 2, 0, &spec, &err), 0);
    assert_bug(lay_out_a_vector, &b,
               "parameter down.bias: an expert's that ranks of etp do not cut");
    close_bench(&b);
    spec.etp = 1;
    assert_int_equal(open_bench(&b, 2, 0, &spec, &err), 0);
    lay_out_a_vector(&b);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_of_ranks_with_the_same_parameters),
        cmocka_unit_test(experts_lay_out_the_ranks_of_a_stage_another_way),
        cmocka_unit_test(experts_that_do_not_fit_the_ranks_are_refused),
        cmocka_unit_test(one_process_is_the_layout_of_ones),
        cmocka_unit_test(a_copy_of_an_experts_parameter_would_be_counted_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
