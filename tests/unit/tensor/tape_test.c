/* The tape itself: where a backward begins, what runs again, what is shared and what is given back.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/rng.h"
#include "lib/tensor/ops.h"
#include "lib/tensor/param.h"

enum { ROWS = 8, WIDTH = 4, VOCAB = 16 };

static struct s2s_device *device;
static struct s2s_params *params;
static struct s2s_param *head, *square;
static const int32_t labels[ROWS] = {1, 2, 3, -100, 5, 6, 7, 0};

static struct s2s_tensor *leaf(struct s2s_tape *tape, int64_t rows, int64_t cols, uint64_t key)
{
    float *x = malloc((size_t)(rows * cols) * sizeof *x);
    s2s_rng_fill_normal(x, (size_t)(rows * cols), key, 0, 0, 1);
    struct s2s_tensor *t = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){rows, cols}, x);
    free(x);
    s2s_tape_want_grad(t);
    return t;
}

static void read_grad(float *out, struct s2s_tensor *t)
{
    assert_non_null(t->grad);
    s2s_tensor_read(t->grad, out);
}

static void head_loss(struct s2s_tape *tape, void *ctx, struct s2s_tensor *const *in,
                      struct s2s_tensor **out)
{
    struct s2s_tensor *h = s2s_op_linear(tape, in[0], square->tensor, NULL);
    out[0] = s2s_op_linear_xent(tape, h, head->tensor, labels, 0.25, out + 1);
}

/* ---- segments ---- */

struct outcome {
    double loss, hits;
    float dx[ROWS * WIDTH], dhead[VOCAB * WIDTH], dsquare[WIDTH * WIDTH];
};

static void run_head(struct outcome *o, int depth)
{
    struct s2s_tape *tape = s2s_tape_new(device, true);
    struct s2s_tensor *x = leaf(tape, ROWS, WIDTH, 5), *out[2];
    s2s_params_zero_grads(params);
    if (depth == 0)
        head_loss(tape, NULL, &x, out);
    else
        s2s_tape_segment(tape, head_loss, NULL, 1, &x, 2, out, true);
    s2s_tape_backward(tape);
    o->loss = s2s_tensor_scalar(out[0]);
    o->hits = s2s_tensor_scalar(out[1]);
    read_grad(o->dx, x);
    s2s_param_get_grad(head, o->dhead);
    s2s_param_get_grad(square, o->dsquare);
    s2s_tape_free(tape);
}

static void a_loss_inside_a_recomputed_segment_is_the_loss(void **state)
{
    struct outcome plain, again;
    run_head(&plain, 0);
    run_head(&again, 1);
    assert_true(plain.loss > 1);
    assert_memory_equal(&plain, &again, sizeof plain);
}

static void two_outputs(struct s2s_tape *tape, void *ctx, struct s2s_tensor *const *in,
                        struct s2s_tensor **out)
{
    out[0] = s2s_op_linear(tape, in[0], square->tensor, NULL);
    out[1] = s2s_op_glu(tape, out[0], NULL, S2S_ACT_SILU);
}

/* out[1] is used twice, out[0] once or (used false) not at all */
static void run_two(float *dx, bool segment, bool used)
{
    struct s2s_tape *tape = s2s_tape_new(device, true);
    struct s2s_tensor *x = leaf(tape, ROWS, WIDTH, 6), *out[2];
    struct s2s_tensor *target = leaf(tape, ROWS, WIDTH, 7);
    if (segment)
        s2s_tape_segment(tape, two_outputs, NULL, 1, &x, 2, out, true);
    else
        two_outputs(tape, NULL, &x, out);
    struct s2s_tensor *y = s2s_op_add(tape, out[1], out[1]);
    if (used)
        y = s2s_op_add(tape, y, out[0]);
    s2s_op_sqdist(tape, y, target, 1);
    s2s_tape_backward(tape);
    read_grad(dx, x);
    s2s_tape_free(tape);
}

static void a_segment_may_have_several_outputs(void **state)
{
    float plain[ROWS * WIDTH], again[ROWS * WIDTH];
    for (int used = 0; used < 2; used++) {
        run_two(plain, false, used);
        run_two(again, true, used);
        assert_memory_equal(plain, again, sizeof plain);
    }
}

/* ---- columns ---- */

static void parts_of_a_split_tensor_share_one_gradient(void **state)
{
    /* the same by three products and by one that is split; a part that nobody reads counts as 0 */
    enum { A = 3, B = 2, C = 4, ALL = A + B + C };
    float together[ROWS * ALL], dx[ROWS * ALL];
    for (int whole = 0; whole < 2; whole++) {
        struct s2s_tape *tape = s2s_tape_new(device, true);
        struct s2s_tensor *x = leaf(tape, ROWS, ALL, 8), *part[3];
        struct s2s_tensor *y = s2s_op_scale(tape, 0.5f, x);
        s2s_tape_split(tape, y, 3, (int64_t[]){A, B, C}, part);
        assert_int_equal(part[1]->row_stride, ALL);
        s2s_op_sqdist(tape, s2s_op_scale(tape, 2, part[0]), leaf(tape, ROWS, A, 9), 1);
        s2s_op_sqdist(tape, s2s_op_scale(tape, 3, part[2]), leaf(tape, ROWS, C, 10), 1);
        if (whole) /* and the whole is read too, before and after its parts */
            s2s_op_sqdist(tape, s2s_op_scale(tape, 1, y), leaf(tape, ROWS, ALL, 11), 1);
        s2s_tape_backward(tape);
        read_grad(dx, x);
        float xs[ROWS * ALL], a[ROWS * A], c[ROWS * C], all[ROWS * ALL];
        s2s_rng_fill_normal(xs, ROWS * ALL, 8, 0, 0, 1);
        s2s_rng_fill_normal(a, ROWS * A, 9, 0, 0, 1);
        s2s_rng_fill_normal(c, ROWS * C, 10, 0, 0, 1);
        s2s_rng_fill_normal(all, ROWS * ALL, 11, 0, 0, 1);
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < ALL; j++) {
                double yy = 0.5 * xs[r * ALL + j], d = 0;
                if (j < A)
                    d += 2 * (2 * yy - a[r * A + j]);
                if (j >= A + B)
                    d += 3 * (3 * yy - c[r * C + j - A - B]);
                if (whole)
                    d += yy - all[r * ALL + j];
                together[r * ALL + j] = (float)(0.5 * d);
            }
        for (int i = 0; i < ROWS * ALL; i++)
            assert_true(fabsf(dx[i] - together[i]) < 1e-5f);
        s2s_tape_free(tape);
    }
}

static void split_in_segment(struct s2s_tape *tape, void *ctx, struct s2s_tensor *const *in,
                             struct s2s_tensor **out)
{
    struct s2s_tensor *part[2];
    s2s_tape_split(tape, in[0], 2, (int64_t[]){2, 2}, part);
    out[0] = s2s_op_glu(tape, part[0], part[1], S2S_ACT_SILU);
}

static void the_input_of_a_segment_may_be_split_in_it(void **state)
{
    float dx[2][ROWS * WIDTH];
    for (int segment = 0; segment < 2; segment++) {
        struct s2s_tape *tape = s2s_tape_new(device, true);
        struct s2s_tensor *x = leaf(tape, ROWS, WIDTH, 12), *y = s2s_op_scale(tape, 0.5f, x), *z;
        if (segment)
            s2s_tape_segment(tape, split_in_segment, NULL, 1, &y, 1, &z, false);
        else
            split_in_segment(tape, NULL, &y, &z);
        s2s_op_sqdist(tape, z, leaf(tape, ROWS, 2, 13), 1);
        s2s_op_sqdist(tape, y, leaf(tape, ROWS, WIDTH, 14), 1);
        s2s_tape_backward(tape);
        read_grad(dx[segment], x);
        s2s_tape_free(tape);
    }
    assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
}

static void a_tensor_that_is_split_may_be_split_again_in_a_segment(void **state)
{
    float dx[2][ROWS * WIDTH];
    for (int segment = 0; segment < 2; segment++) {
        struct s2s_tape *tape = s2s_tape_new(device, true);
        struct s2s_tensor *x = leaf(tape, ROWS, WIDTH, 12), *y = s2s_op_scale(tape, 0.5f, x), *z;
        struct s2s_tensor *part[2], *same = s2s_op_scale(tape, 0.5f, x);
        s2s_tape_split(tape, y, 2, (int64_t[]){1, 3}, part);
        if (segment)
            s2s_tape_segment(tape, split_in_segment, NULL, 1, &y, 1, &z, false);
        else
            split_in_segment(tape, NULL, &same, &z);
        s2s_op_sqdist(tape, z, leaf(tape, ROWS, 2, 13), 1);
        s2s_op_sqdist(tape, s2s_op_scale(tape, 1, part[1]), leaf(tape, ROWS, 3, 14), 1);
        s2s_tape_backward(tape);
        read_grad(dx[segment], x);
        s2s_tape_free(tape);
    }
    for (int i = 0; i < ROWS * WIDTH; i++)
        assert_true(fabsf(dx[0][i] - dx[1][i]) < 1e-6f);
}

/* ---- memory that is taken over ---- */

static void memory_that_a_backward_reads_is_not_taken_over(void **state)
{
    float dx[2][ROWS * WIDTH];
    for (int taken = 0; taken < 2; taken++) {
        struct s2s_tape *tape = s2s_tape_new(device, true);
        struct s2s_tensor *x = leaf(tape, ROWS, WIDTH, 12), *y = s2s_op_scale(tape, 0.5f, x);
        struct s2s_tensor *z = s2s_op_glu(tape, y, y, S2S_ACT_SILU); /* reads y in its backward */
        y = taken ? s2s_op_add_to(tape, y, z) : s2s_op_add(tape, z, y);
        s2s_op_sqdist(tape, y, leaf(tape, ROWS, WIDTH, 14), 1);
        s2s_tape_backward(tape);
        read_grad(dx[taken], x);
        s2s_tape_free(tape);
    }
    assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
}

static void rows_of_a_part_leave_its_neighbours_gradient_alone(void **state)
{
    struct s2s_tape *tape = s2s_tape_new(device, true);
    struct s2s_tensor *x = leaf(tape, ROWS, WIDTH, 12), *part[2];
    const int32_t rows[] = {3, 5};
    float dx[ROWS * WIDTH], x0[ROWS * WIDTH];
    s2s_tape_split(tape, s2s_op_scale(tape, 1, x), 2, (int64_t[]){2, 2}, part);
    struct s2s_tensor *some = s2s_op_gather_rows(tape, part[0], s2s_tape_upload_i32(tape, rows, 2));
    float zeros[ROWS * 2] = {0};
    s2s_op_sqdist(tape, s2s_op_scale(tape, 1, part[1]),
                  s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){ROWS, 2}, zeros), 1);
    s2s_op_sqdist(tape, some, s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){2, 2}, zeros), 1);
    s2s_tape_backward(tape);
    read_grad(dx, x);
    s2s_rng_fill_normal(x0, ROWS * WIDTH, 12, 0, 0, 1);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < WIDTH; c++) {
            const bool counts = c >= 2 || r == 3 || r == 5;
            assert_true(dx[r * WIDTH + c] == (counts ? x0[r * WIDTH + c] : 0));
        }
    s2s_tape_free(tape);
}

/* ---- stages ---- */

static void two_tapes_with_the_gradient_handed_over_equal_one(void **state)
{
    float whole[ROWS * WIDTH], handed[ROWS * WIDTH];
    float dhead[2][VOCAB * WIDTH];
    for (int stages = 1; stages <= 2; stages++) {
        struct s2s_tape *first = s2s_tape_new(device, true), *second = first;
        s2s_params_zero_grads(params);
        struct s2s_tensor *x = leaf(first, ROWS, WIDTH, 5), *out[2];
        struct s2s_tensor *h = s2s_op_glu(first, x, NULL, S2S_ACT_SILU), *in = h;
        if (stages == 2) {
            float values[ROWS * WIDTH];
            s2s_tensor_read(h, values);
            second = s2s_tape_new(device, true);
            in = s2s_tape_upload(second, S2S_F32, 2, h->shape, values);
            s2s_tape_want_grad(in);
        }
        head_loss(second, NULL, &in, out);
        s2s_tape_backward(second);
        if (stages == 2) {
            s2s_tape_seed_grad(first, h, s2s_tape_take_grad(second, in));
            s2s_tape_backward(first);
        }
        read_grad(stages == 1 ? whole : handed, x);
        s2s_param_get_grad(head, dhead[stages - 1]);
        if (stages == 2)
            s2s_tape_free(second);
        s2s_tape_free(first);
    }
    assert_memory_equal(whole, handed, sizeof whole);
    assert_memory_equal(dhead[0], dhead[1], sizeof dhead[0]);
}

static void a_leaf_that_nothing_reached_has_a_gradient_of_zeros(void **state)
{
    struct s2s_tape *tape = s2s_tape_new(device, true);
    struct s2s_tensor *x = leaf(tape, ROWS, WIDTH, 5);
    float dx[ROWS * WIDTH];
    s2s_op_scale(tape, 2, x);
    s2s_tape_backward(tape);
    s2s_tensor_read(s2s_tape_take_grad(tape, x), dx);
    for (int i = 0; i < ROWS * WIDTH; i++)
        assert_true(dx[i] == 0);
    s2s_tape_free(tape);
}

/* ---- memory ---- */

static void steps_of_any_length_take_the_memory_of_the_longest(void **state)
{
    enum { LAYERS = 6, COLS = 64, LONGEST = 4096 };
    struct s2s_device *own;
    assert_int_equal(s2s_device_open(&own, "cpu", NULL), 0);
    struct s2s_tape *tape = s2s_tape_new(own, true);
    float *x = calloc(LONGEST * COLS, sizeof *x), *w = calloc(COLS * COLS, sizeof *w);
    size_t longest_alone = 0;
    for (uint64_t step = 0; step < 200; step++) {
        int64_t rows = step == 0 ? LONGEST : 256 + (int64_t)s2s_rng_below(9, step, LONGEST - 256);
        s2s_tape_reset(tape);
        struct s2s_tensor *y = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){rows, COLS}, x);
        struct s2s_tensor *target = y;
        struct s2s_tensor *m = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){COLS, COLS}, w);
        s2s_tape_want_grad(y);
        for (int i = 0; i < LAYERS; i++)
            y = s2s_op_add(tape, y,
                           s2s_op_glu(tape, s2s_op_linear(tape, y, m, NULL), NULL, S2S_ACT_SILU));
        s2s_op_sqdist(tape, y, target, 1);
        s2s_tape_backward(tape);
        if (step == 0)
            longest_alone = own->pool.reserved_bytes;
    }
    assert_true(own->pool.reserved_bytes <= longest_alone + longest_alone / 4);
    /* one chunk, without room that is lost at the ends of those it grew by */
    s2s_tape_reset(tape);
    assert_int_equal(tape->arena.n_chunks, 1);
    assert_int_equal(tape->arena.reserved_bytes, tape->arena.peak_bytes);
    s2s_tape_free(tape);
    assert_int_equal(own->pool.used_bytes, 0);
    s2s_device_close(own);
    free(x);
    free(w);
}

static void t6_scratch_that_is_held_is_not_handed_out_again(void **state)
{
    struct s2s_tape *tape = s2s_tape_new(device, true);
    char *mine = s2s_tape_scratch(tape, 1000);
    struct s2s_arena_mark before = s2s_tape_scratch_hold(tape);
    char *other = s2s_tape_scratch(tape, 1000);
    s2s_tape_scratch_end(tape); /* of an operation in between */
    assert_ptr_equal(s2s_tape_scratch(tape, 1000), other);
    assert_true(other >= mine + 1000);
    s2s_tape_scratch_release(tape, before);
    assert_ptr_equal(s2s_tape_scratch(tape, 1000), mine);
    s2s_tape_scratch_end(tape);
    s2s_tape_free(tape);
}

static void say_and_exit(void *ctx, const struct s2s_error *err)
{
    _exit(strstr(err->text, "layers.7") && err->code == S2S_E_NOMEM ? 42 : 43);
}

static void scratch_of_any_size_takes_the_memory_of_the_largest(void **state)
{
    struct s2s_device *own;
    assert_int_equal(s2s_device_open(&own, "cpu", NULL), 0);
    struct s2s_tape *tape = s2s_tape_new(own, true);
    for (size_t i = 1; i <= 20; i++) {
        s2s_tape_scratch(tape, (size_t)(1 << 20) + (i << 16));
        s2s_tape_scratch_end(tape);
        assert_int_equal(own->scratch.n_chunks, 1);
    }
    assert_int_equal(own->scratch.reserved_bytes, (1 << 20) + (20 << 16));
    s2s_tape_free(tape);
    s2s_device_close(own);
}

/* A device with little memory. */
static void *little(struct s2s_queue *queue, size_t bytes)
{
    return bytes > 16 << 20 ? NULL : s2s_kernels_cpu.alloc(queue, bytes);
}

static void memory_that_is_out_is_an_error_with_the_layer(void **state)
{
    struct s2s_kernels poor = s2s_kernels_cpu;
    poor.alloc = little;
    pid_t child = fork();
    if (child == 0) {
        struct s2s_device *own;
        if (s2s_device_new(&own, &poor, NULL) < 0)
            _exit(44);
        own->fail = say_and_exit;
        struct s2s_tape *tape = s2s_tape_new(own, true);
        s2s_tape_layer(tape, "layers.7");
        s2s_op_scale(tape, 1, leaf(tape, 1, 1, 1));
        s2s_tape_matrix(tape, 1 << 12, 1 << 12);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
}

static int set_up(void **state)
{
    if (s2s_device_open(&device, "cpu", NULL) < 0)
        return -1;
    params = s2s_params_new(device);
    head = s2s_params_add(params, &(struct s2s_param_spec){.name = "head",
                                                           .n_dims = 2,
                                                           .shape = {VOCAB, WIDTH},
                                                           .init = {S2S_INIT_NORMAL, 1}});
    square = s2s_params_add(params, &(struct s2s_param_spec){.name = "square",
                                                             .n_dims = 2,
                                                             .shape = {WIDTH, WIDTH},
                                                             .init = {S2S_INIT_NORMAL, 1}});
    if (s2s_params_finish(params, NULL) < 0)
        return -1;
    s2s_params_init(params, 1);
    return 0;
}

static int tear_down(void **state)
{
    s2s_params_free(params);
    s2s_device_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loss_inside_a_recomputed_segment_is_the_loss),
        cmocka_unit_test(a_segment_may_have_several_outputs),
        cmocka_unit_test(parts_of_a_split_tensor_share_one_gradient),
        cmocka_unit_test(the_input_of_a_segment_may_be_split_in_it),
        cmocka_unit_test(a_tensor_that_is_split_may_be_split_again_in_a_segment),
        cmocka_unit_test(memory_that_a_backward_reads_is_not_taken_over),
        cmocka_unit_test(rows_of_a_part_leave_its_neighbours_gradient_alone),
        cmocka_unit_test(two_tapes_with_the_gradient_handed_over_equal_one),
        cmocka_unit_test(a_leaf_that_nothing_reached_has_a_gradient_of_zeros),
        cmocka_unit_test(steps_of_any_length_take_the_memory_of_the_longest),
        cmocka_unit_test(t6_scratch_that_is_held_is_not_handed_out_again),
        cmocka_unit_test(scratch_of_any_size_takes_the_memory_of_the_largest),
        cmocka_unit_test(memory_that_is_out_is_an_error_with_the_layer),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
