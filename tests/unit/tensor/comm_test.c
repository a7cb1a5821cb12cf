/* Collectives on the tape: parts of a layer on several ranks give what the whole gives on one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/rng.h"
#include "lib/tensor/ops.h"
#include "team.h"

enum { RANKS = 2, ROWS = 6, WIDTH = 4, INNER = 8, VOCAB = 8 };

static float x0[ROWS * WIDTH], up0[INNER * WIDTH], down0[WIDTH * INNER], head0[VOCAB * WIDTH];
static const int32_t labels[ROWS] = {1, 2, 3, 4, 5, 6};

static struct s2s_tensor *leaf(struct s2s_tape *tape, int64_t rows, int64_t cols, const float *x)
{
    struct s2s_tensor *t = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){rows, cols}, x);
    s2s_tape_want_grad(t);
    return t;
}

/* Rows [rank * INNER / size ..) of up, and those columns of down. */
static void cut(const struct s2s_group *g, float *up, float *down)
{
    const int size = s2s_group_size(g), rank = s2s_group_rank(g), n = INNER / size;
    memcpy(up, up0 + rank * n * WIDTH, (size_t)(n * WIDTH) * sizeof *up);
    for (int r = 0; r < WIDTH; r++)
        for (int c = 0; c < n; c++)
            down[r * n + c] = down0[r * INNER + rank * n + c];
}

/* What a run leaves: gradients of the input and of this rank's parts, and the loss. */
struct outcome {
    float dx[ROWS * WIDTH], dup[INNER * WIDTH], ddown[WIDTH * INNER];
    double loss;
};

static void read_grad(float *out, struct s2s_tensor *t)
{
    if (t->grad)
        s2s_tensor_read(t->grad, out);
    else
        memset(out, 0xff, 4);
}

/* An MLP cut by columns and rows; with sp the rows of its input and output are cut too. */
static void run_mlp(const struct s2s_group *g, struct outcome *o, bool sp)
{
    struct s2s_device *device;
    struct s2s_tape *tape = open_tape(&device, true);
    const int size = s2s_group_size(g), rank = s2s_group_rank(g), n = INNER / size;
    const int64_t rows = sp ? ROWS / size : ROWS;
    float up[INNER * WIDTH], down[WIDTH * INNER];
    cut(g, up, down);
    struct s2s_tensor *x = leaf(tape, rows, WIDTH, x0 + (sp ? rank * rows * WIDTH : 0));
    struct s2s_tensor *w1 = leaf(tape, n, WIDTH, up), *w2 = leaf(tape, WIDTH, n, down);
    struct s2s_tensor *head = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){VOCAB, WIDTH}, head0);
    struct s2s_tensor *h = s2s_op_scale(tape, 1, x);
    h = sp ? s2s_op_all_gather(tape, h, g, false) : s2s_op_copy_to_group(tape, h, g);
    h = s2s_op_glu(tape, s2s_op_linear(tape, h, w1, NULL), NULL, S2S_ACT_SILU);
    h = s2s_op_linear(tape, h, w2, NULL);
    h = sp ? s2s_op_reduce_scatter(tape, h, g) : s2s_op_all_reduce(tape, h, g);
    struct s2s_tensor *loss =
        s2s_op_linear_xent(tape, h, head, labels + (sp ? rank * rows : 0), 1, NULL);
    s2s_tape_backward(tape);
    o->loss = s2s_tensor_scalar(loss);
    read_grad(o->dx, x);
    read_grad(o->dup, w1);
    read_grad(o->ddown, w2);
    close_tape(tape, device);
}

static void close_to(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= 1e-5f * (1 + fabsf(b[i]))))
            fail_msg("element %lld is %g, not %g", (long long)i, (double)a[i], (double)b[i]);
}

static struct outcome outcomes[RANKS];

static void mlp_tp(const struct s2s_group *g, void *ctx)
{
    run_mlp(g, &outcomes[g->rank], false);
}

static void mlp_sp(const struct s2s_group *g, void *ctx)
{
    run_mlp(g, &outcomes[g->rank], true);
}

static void columns_and_rows_over_two_ranks_equal_one_process(void **state)
{
    struct outcome whole;
    struct team team;
    run_mlp(NULL, &whole, false);
    for (int sp = 0; sp < 2; sp++) {
        double loss = 0;
        team_run(&team, RANKS, sp ? mlp_sp : mlp_tp, NULL);
        for (int r = 0; r < RANKS; r++) {
            const int n = INNER / RANKS;
            const int64_t rows = sp ? ROWS / RANKS : ROWS;
            close_to(outcomes[r].dx, whole.dx + (sp ? r * rows * WIDTH : 0), rows * WIDTH);
            close_to(outcomes[r].dup, whole.dup + r * n * WIDTH, n * WIDTH);
            for (int i = 0; i < WIDTH; i++)
                close_to(outcomes[r].ddown + i * n, whole.ddown + i * INNER + r * n, n);
            loss += sp ? outcomes[r].loss : outcomes[r].loss / RANKS;
        }
        assert_true(fabs(loss - whole.loss) < 1e-5);
    }
}

/* ---- rows that travel ---- */

static float travelled[RANKS][ROWS * WIDTH], came[RANKS][2 * ROWS * WIDTH];

static void send_rows(const struct s2s_group *g, void *ctx)
{
    struct s2s_device *device;
    struct s2s_tape *tape = open_tape(&device, true);
    /* rank 0 keeps one row and sends five; rank 1 sends none and keeps six */
    static const int64_t send[RANKS][RANKS] = {{1, 5}, {0, 6}},
                         recv[RANKS][RANKS] = {{1, 0}, {5, 6}};
    struct s2s_tensor *x = leaf(tape, ROWS, WIDTH, x0);
    struct s2s_tensor *h = s2s_op_scale(tape, (float)(g->rank + 1), x);
    h = s2s_op_all_to_all(tape, h, g, send[g->rank], recv[g->rank]);
    s2s_tensor_read(h, came[g->rank]);
    float *zeros = s2s_xcalloc(2 * ROWS * WIDTH, sizeof *zeros);
    struct s2s_tensor *target = s2s_tape_upload(tape, S2S_F32, 2, h->shape, zeros);
    s2s_op_sqdist(tape, h, target, 1);
    s2s_tape_backward(tape);
    read_grad(travelled[g->rank], x);
    free(zeros);
    close_tape(tape, device);
}

static void gradients_of_rows_go_back_where_they_came_from(void **state)
{
    struct team team;
    team_run(&team, RANKS, send_rows, NULL);
    for (int i = 0; i < ROWS * WIDTH; i++) {
        assert_true(fabsf(travelled[0][i] - x0[i]) < 1e-6f); /* d/dx of (s x)^2 / 2 = s^2 x */
        assert_true(fabsf(travelled[1][i] - 4 * x0[i]) < 1e-5f);
    }
    close_to(came[0], x0, WIDTH);
    close_to(came[1], x0 + WIDTH, 5 * WIDTH);
    for (int i = 0; i < ROWS * WIDTH; i++)
        assert_true(came[1][5 * WIDTH + i] == 2 * x0[i]);
}

/* ---- nothing hangs ---- */

/* What is run again where layers are recomputed. */
static void gathered_layer(struct s2s_tape *tape, void *ctx, struct s2s_tensor *const *in,
                           struct s2s_tensor **out)
{
    const struct s2s_group *g = ctx;
    struct s2s_tensor *h = s2s_op_all_gather(tape, in[0], g, false);
    h = s2s_op_glu(tape, h, NULL, S2S_ACT_SILU);
    out[0] = s2s_op_copy_to_group(tape, h, g);
}

static bool recomputed;

static void half_labelled(const struct s2s_group *g, void *ctx)
{
    static const int32_t none[RANKS * ROWS] = {-100, -100, -100, -100, -100, -100,
                                               -100, -100, -100, -100, -100, -100};
    static const int32_t all[RANKS * ROWS] = {1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4};
    struct s2s_device *device;
    struct s2s_tape *tape = open_tape(&device, true);
    struct s2s_tensor *x = leaf(tape, ROWS, WIDTH, x0);
    struct s2s_tensor *head = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){VOCAB, WIDTH}, head0);
    struct s2s_tensor *h = s2s_op_scale(tape, 1, x);
    if (recomputed)
        s2s_tape_segment(tape, gathered_layer, (void *)g, 1, &h, 1, &h, false);
    else
        gathered_layer(tape, (void *)g, &h, &h);
    s2s_op_linear_xent(tape, h, head, g->rank == 0 ? all : none, 1, NULL);
    s2s_tape_backward(tape);
    read_grad(outcomes[g->rank].dx, x);
    close_tape(tape, device);
}

/* T1. A rank whose chunk is all audio has no label, and no gradient of its own: skipping what it
 * does not need would leave the other rank alone in the collective. */
static void t1_a_rank_without_labels_runs_every_collective_of_the_backward(void **state)
{
    struct team team;
    for (int again = 0; again < 2; again++) {
        recomputed = again;
        alarm(30);
        team_run(&team, RANKS, half_labelled, NULL);
        alarm(0);
        /* gather, and once more where it runs again; sum and scatter of the backward */
        for (int r = 0; r < RANKS; r++)
            assert_int_equal(team.calls[r], 3 + again);
        float largest = 0;
        for (int i = 0; i < ROWS * WIDTH; i++)
            largest = fmaxf(largest, fabsf(outcomes[1].dx[i]));
        assert_true(largest > 1e-3f); /* what rank 0 saw of rank 1's rows */
    }
}

static void alone_a_collective_is_nothing(void **state)
{
    struct s2s_device *device;
    struct s2s_tape *tape = open_tape(&device, true);
    const struct s2s_group one = {.axis = "tp", .size = 1};
    const int64_t rows[] = {ROWS};
    struct s2s_tensor *x = leaf(tape, ROWS, WIDTH, x0);
    const struct s2s_group *groups[] = {NULL, &one};
    for (int i = 0; i < 2; i++) {
        const struct s2s_group *g = groups[i];
        assert_ptr_equal(s2s_op_copy_to_group(tape, x, g), x);
        assert_ptr_equal(s2s_op_all_reduce(tape, x, g), x);
        assert_ptr_equal(s2s_op_all_gather(tape, x, g, false), x);
        assert_ptr_equal(s2s_op_reduce_scatter(tape, x, g), x);
        assert_ptr_equal(s2s_op_all_to_all(tape, x, g, rows, rows), x);
    }
    assert_null(tape->last);
    close_tape(tape, device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_and_rows_over_two_ranks_equal_one_process),
        cmocka_unit_test(gradients_of_rows_go_back_where_they_came_from),
        cmocka_unit_test(t1_a_rank_without_labels_runs_every_collective_of_the_backward),
        cmocka_unit_test(alone_a_collective_is_nothing),
    };
    s2s_rng_fill_normal(x0, ROWS * WIDTH, 1, 0, 0, 1);
    s2s_rng_fill_normal(up0, INNER * WIDTH, 2, 0, 0, 1);
    s2s_rng_fill_normal(down0, WIDTH * INNER, 3, 0, 0, 1);
    s2s_rng_fill_normal(head0, VOCAB * WIDTH, 4, 0, 0, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
