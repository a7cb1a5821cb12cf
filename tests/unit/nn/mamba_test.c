/*
 * The Mamba2 layer: of sequences that are cut over ranks, which are threads here, and of some that
 * go on row by row. That it computes what others compute is held by s2s-train probe.
 */
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
#include "lib/base/rng.h"
#include "lib/nn/mamba.h"
#include "lib/thd/cp.h"
#include "tests/unit/tensor/team.h"

/* Three sequences in chunks for up to four ranks, one of them empty; each rank has two rows more,
 * which stand in none. */
enum { WIDTH = 10, SLOTS = 24, BEHIND = 2, N_SEQS = 3, N_PARAMS = 8 };
static const int32_t bounds[N_SEQS + 1] = {0, 8, 8, SLOTS};
static float x0[SLOTS * WIDTH], dy0[SLOTS * WIDTH];

struct outcome {
    float y[SLOTS * WIDTH], dx[SLOTS * WIDTH]; /* of this rank's slots */
    float *grads[N_PARAMS];
};

struct layer_run {
    struct s2s_device *device;
    struct s2s_tape *tape;
    struct s2s_params *params;
    struct s2s_par par;
    struct s2s_nn_mamba layer;
};

static struct layer_run *open_layer(int n_groups, const struct s2s_group *cp)
{
    const struct s2s_nn_mamba_options options = {
        .shape = {.n_heads = 8, .dim = 3, .n_groups = n_groups, .state = 5, .kernel = 4},
        .width = WIDTH,
        .conv_bias = true,
        .eps = 1e-5,
        .first_step_max = 0.5};
    struct layer_run *run = s2s_xcalloc(1, sizeof *run);
    struct s2s_error err = S2S_ERROR_INIT;
    run->tape = open_tape(&run->device, true);
    run->params = s2s_params_new(run->device);
    run->par.cp = cp;
    const struct s2s_nn_ctx ctx = {
        .params = run->params, .par = &run->par, .place = "mixer", .init_std = 0.5};
    if (s2s_nn_mamba_check(&options.shape, &run->par, &err) < 0)
        S2S_BUG("%s", err.text);
    s2s_nn_mamba_init(&run->layer, &ctx, &options);
    if (s2s_params_finish(run->params, &err) < 0)
        S2S_BUG("%s", err.text);
    s2s_params_init(run->params, 3);
    s2s_params_zero_grads(run->params);
    return run;
}

static void close_layer(struct layer_run *run)
{
    s2s_params_free(run->params);
    close_tape(run->tape, run->device);
    free(run);
}

static struct s2s_tensor *leaf(struct s2s_tape *tape, int64_t rows, const float *x)
{
    struct s2s_tensor *t = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){rows, WIDTH}, x);
    s2s_tape_want_grad(t);
    return t;
}

/* Slots of all, as each rank's rows lie one behind the other; then the rows that stand in no
 * sequence. */
static void order_rows(int32_t *order, int size)
{
    const int n = SLOTS / size, rows = n + BEHIND;
    s2s_thd_cp_inverse(order, bounds, N_SEQS, size);
    for (int i = 0; i < SLOTS; i++)
        order[i] = order[i] / n * rows + order[i] % n;
    for (int i = 0; i < BEHIND * size; i++)
        order[SLOTS + i] = i / BEHIND * rows + n + i % BEHIND;
}

static void run_slots(struct outcome *o, int n_groups, const struct s2s_group *cp)
{
    struct layer_run *run = open_layer(n_groups, cp);
    struct s2s_tape *tape = run->tape;
    const int size = s2s_group_size(cp), n = SLOTS / size;
    const int rows = size > 1 ? n + BEHIND : n;
    float x[(SLOTS + BEHIND) * WIDTH] = {0}, dy[(SLOTS + BEHIND) * WIDTH] = {0};
    int32_t order[SLOTS + BEHIND * TEAM_MAX];
    struct s2s_nn_mamba_batch batch = {.seqs = s2s_op_seqs(tape, bounds, N_SEQS)};
    s2s_thd_cp_split(x, x0, WIDTH * sizeof *x, bounds, N_SEQS, size, s2s_group_rank(cp));
    s2s_thd_cp_split(dy, dy0, WIDTH * sizeof *x, bounds, N_SEQS, size, s2s_group_rank(cp));
    order_rows(order, size);
    const struct s2s_trade trade = {
        cp, rows, size > 1 ? s2s_tape_upload_i32(tape, order, rows * size) : NULL};
    batch.trade = size > 1 ? &trade : NULL;
    struct s2s_tensor *in = leaf(tape, rows, x);
    struct s2s_tensor *y = s2s_nn_mamba(tape, &run->layer, in, &batch, NULL);
    float *all = s2s_xcalloc((size_t)rows * WIDTH, sizeof *all);
    s2s_tensor_read(y, all);
    memcpy(o->y, all, (size_t)n * WIDTH * sizeof *all);
    s2s_tape_seed_grad(tape, y, leaf(tape, rows, dy));
    s2s_tape_backward(tape);
    s2s_tensor_read(s2s_tape_take_grad(tape, in), all);
    memcpy(o->dx, all, (size_t)n * WIDTH * sizeof *all);
    for (size_t i = 0; i < run->params->n; i++) {
        o->grads[i] = s2s_xcalloc((size_t)run->params->list[i]->numel, sizeof(float));
        s2s_param_get_grad(run->params->list[i], o->grads[i]);
    }
    free(all);
    close_layer(run);
}

static struct outcome parts[TEAM_MAX];
static int groups_of_test;

static void run_rank(const struct s2s_group *g, void *ctx)
{
    run_slots(&parts[g->rank], groups_of_test, g);
}

static void close_to(const char *what, const float *got, const float *want, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)want[i]));
    assert_true(largest > 0);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= 2e-6 * largest))
            fail_msg("%s[%lld] is %.9g, not %.9g", what, (long long)i, (double)got[i],
                     (double)want[i]);
}

/* Rows of the ranks, joined, and sums of their gradients. */
static void expect_whole(const struct outcome *whole, int size)
{
    float y[SLOTS * WIDTH], local[SLOTS * WIDTH];
    for (int what = 0; what < 2; what++) {
        for (int r = 0; r < size; r++) {
            memcpy(local, what ? parts[r].dx : parts[r].y, sizeof local);
            s2s_thd_cp_join(y, local, WIDTH * sizeof *y, bounds, N_SEQS, size, r);
        }
        close_to(what ? "dx" : "y", y, what ? whole->dx : whole->y, SLOTS * WIDTH);
    }
    struct layer_run *run = open_layer(groups_of_test, NULL);
    assert_int_equal(run->params->n, N_PARAMS);
    for (size_t i = 0; i < run->params->n; i++) {
        const struct s2s_param *p = run->params->list[i];
        for (int r = 1; r < size; r++)
            for (int64_t j = 0; j < p->numel; j++)
                parts[0].grads[i][j] += parts[r].grads[i][j];
        close_to(p->name, parts[0].grads[i], whole->grads[i], p->numel);
    }
    close_layer(run);
}

static void free_grads(struct outcome *o)
{
    for (int i = 0; i < N_PARAMS; i++)
        free(o->grads[i]);
}

static void ranks_that_trade_rows_for_heads_equal_one_process(void **state)
{
    static const int groups[] = {1, 2, 4};
    for (int g = 0; g < 3; g++) {
        struct outcome whole = {.y = {0}};
        groups_of_test = groups[g];
        run_slots(&whole, groups_of_test, NULL);
        for (int size = 2; size <= 4; size += 2) {
            struct team team;
            team_run(&team, size, run_rank, NULL);
            expect_whole(&whole, size);
            for (int r = 0; r < size; r++)
                free_grads(&parts[r]);
        }
        free_grads(&whole);
    }
}

/* ---- sequences that go on ---- */

static void *zeros(struct s2s_device *device, size_t bytes)
{
    void *memory = device->kernels->alloc(&device->queue, bytes);
    device->kernels->zero(&device->queue, memory, bytes);
    return memory;
}

/* Two, which have other steps. */
static void sequences_that_go_on_give_what_they_give_at_once(void **state)
{
    enum { STEPS = 4 };
    static const int32_t steps[2][STEPS + 1] = {{0, 1, 3, 4, 8}, {0, 5, 6, 15, 16}};
    static const int32_t begin[] = {0, 8};
    struct layer_run *run = open_layer(2, NULL);
    struct s2s_device *device = run->device;
    void *memory[2];
    for (int part = 0; part < 2; part++)
        memory[part] = zeros(device, 2 * s2s_nn_mamba_state_bytes(&run->layer, part));
    float whole[SLOTS * WIDTH], got[SLOTS * WIDTH];
    run->tape->recording = false;
    const struct s2s_nn_mamba_batch all = {.seqs = s2s_op_seqs(run->tape, bounds, N_SEQS)};
    s2s_tensor_read(s2s_nn_mamba(run->tape, &run->layer, leaf(run->tape, SLOTS, x0), &all, NULL),
                    whole);
    for (int i = 0; i < STEPS; i++) {
        float x[SLOTS * WIDTH], y[SLOTS * WIDTH];
        int32_t cu[3] = {0};
        for (int s = 0; s < 2; s++) {
            const int n = steps[s][i + 1] - steps[s][i];
            memcpy(x + cu[s] * WIDTH, x0 + (begin[s] + steps[s][i]) * WIDTH,
                   (size_t)n * WIDTH * sizeof *x);
            cu[s + 1] = cu[s] + n;
        }
        const struct s2s_nn_mamba_batch some = {.seqs = s2s_op_seqs(run->tape, cu, 2)};
        s2s_tensor_read(
            s2s_nn_mamba(run->tape, &run->layer, leaf(run->tape, cu[2], x), &some, memory), y);
        for (int s = 0; s < 2; s++)
            memcpy(got + (begin[s] + steps[s][i]) * WIDTH, y + cu[s] * WIDTH,
                   (size_t)(cu[s + 1] - cu[s]) * WIDTH * sizeof *x);
    }
    close_to("y", got, whole, SLOTS * WIDTH);
    for (int part = 0; part < 2; part++)
        device->kernels->free(&device->queue, memory[part]);
    close_layer(run);
}

static void heads_and_groups_that_ranks_cannot_share_are_refused(void **state)
{
    static const struct {
        int tp, cp, heads, groups;
        bool fits;
    } cases[] = {{2, 1, 6, 2, true},  {4, 1, 6, 2, false}, {2, 1, 6, 1, false}, {1, 3, 6, 3, true},
                 {1, 3, 6, 2, false}, {1, 4, 8, 2, true},  {1, 4, 6, 2, false}, {2, 2, 8, 2, true},
                 {2, 4, 8, 2, true},  {2, 8, 8, 2, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct s2s_group tp = {.size = cases[i].tp}, cp = {.size = cases[i].cp};
        struct s2s_error err = S2S_ERROR_INIT;
        const struct s2s_nn_mamba_shape shape = {.n_heads = cases[i].heads,
                                                 .n_groups = cases[i].groups};
        const int rc = s2s_nn_mamba_check(&shape, &(struct s2s_par){.tp = &tp, .cp = &cp}, &err);
        assert_int_equal(rc, cases[i].fits ? 0 : S2S_E_RANGE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_trade_rows_for_heads_equal_one_process),
        cmocka_unit_test(sequences_that_go_on_give_what_they_give_at_once),
        cmocka_unit_test(heads_and_groups_that_ranks_cannot_share_are_refused),
    };
    s2s_rng_fill_normal(x0, SLOTS * WIDTH, 1, 0, 0, 1);
    s2s_rng_fill_normal(dy0, SLOTS * WIDTH, 2, 0, 0, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
