/* Clips spread over ranks that are threads: everybody gets the rows of all, in their order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lib/nn/spread.h"
#include "tests/unit/tensor/team.h"

enum { COLS = 3, MAX_CLIPS = 8, MAX_ROWS = 64 };

struct problem {
    int n_ranks;
    int64_t n;
    int32_t rows[MAX_CLIPS];
};

static struct problem problem;
static float gathered[TEAM_MAX][MAX_ROWS * COLS], gradient[MAX_ROWS * COLS];

static int64_t rows_before(int64_t clip)
{
    int64_t n = 0;
    for (int64_t k = 0; k < clip; k++)
        n += problem.rows[k];
    return n;
}

/* A rank's rows hold their numbers; what flows into row r of its copy is (rank + 1) r. */
static void run_rank(const struct s2s_group *g, void *ctx)
{
    struct s2s_device *device;
    int64_t begin, end;
    if (s2s_device_open(&device, "cpu", NULL) < 0)
        S2S_BUG("no device");
    device->queue.lanes = 1;
    struct s2s_tape *tape = s2s_tape_new(device, true);
    const int rank = s2s_group_rank(g);
    s2s_nn_spread(&begin, &end, problem.n, g);
    const int64_t first = rows_before(begin), n = rows_before(end) - first,
                  all = rows_before(problem.n);
    float buf[MAX_ROWS * COLS];
    for (int64_t i = 0; i < n * COLS; i++)
        buf[i] = (float)(first * COLS + i);
    struct s2s_tensor *x = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){n, COLS}, buf);
    s2s_tape_want_grad(x);
    struct s2s_tensor *y = s2s_nn_spread_gather(tape, x, problem.rows, problem.n, g);
    assert_int_equal(s2s_tensor_rows(y), all);
    s2s_tensor_read(y, gathered[rank]);
    for (int64_t i = 0; i < all * COLS; i++)
        buf[i] = (float)((rank + 1) * i);
    if (all > 0 && (rank > 0 || problem.n_ranks == 1)) /* nothing flows in on rank 0 */
        s2s_tape_seed_grad(tape, y, s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){all, COLS}, buf));
    s2s_tape_backward(tape);
    s2s_tensor_read(s2s_tape_take_grad(tape, x), gradient + first * COLS);
    s2s_tape_free(tape);
    s2s_device_close(device);
}

static void check(const struct problem *p)
{
    struct team team;
    problem = *p;
    team_run(&team, p->n_ranks, run_rank, NULL);
    /* 1 + 2 + .. without rank 0 where there are others */
    const int n = p->n_ranks, sum = n == 1 ? 1 : n * (n + 1) / 2 - 1;
    for (int64_t i = 0; i < rows_before(p->n) * COLS; i++) {
        for (int r = 0; r < n; r++)
            assert_true(gathered[r][i] == (float)i);
        assert_true(gradient[i] == (float)(sum * i));
    }
    for (int r = 1; r < n; r++)
        assert_int_equal(team.calls[r], team.calls[0]);
}

static void rows_come_in_the_order_of_the_clips_and_gradients_add_up(void **state)
{
    static const struct problem problems[] = {
        {.n = 5, .rows = {9, 4, 7, 3, 8}}, /* as the encoder's plan has it: 3 and 2 of 2 ranks */
        {.n = 1, .rows = {6}},             /* ranks without a clip */
        {.n = 0},                          /* none at all */
        {.n = 3, .rows = {0, 5, 0}},       /* clips without a row */
        {.n = 8, .rows = {1, 2, 3, 4, 5, 6, 7, 8}},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int n_ranks = 1; n_ranks <= TEAM_MAX; n_ranks++) {
            struct problem p = problems[i];
            p.n_ranks = n_ranks;
            check(&p);
        }
}

static void each_clip_is_one_ranks(void **state)
{
    static const int64_t begins[] = {0, 3, 5}, of_two[] = {0, 1, 2, 2, 2};
    for (int r = 0; r < 4; r++) {
        int64_t begin, end;
        struct s2s_group g = {.size = 2, .rank = r % 2};
        s2s_nn_spread(&begin, &end, 5, &g);
        assert_int_equal(begin, begins[r % 2]);
        assert_int_equal(end, begins[r % 2 + 1]);
        g = (struct s2s_group){.size = 4, .rank = r};
        s2s_nn_spread(&begin, &end, 2, &g);
        assert_int_equal(begin, of_two[r]);
        assert_int_equal(end, of_two[r + 1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_in_the_order_of_the_clips_and_gradients_add_up),
        cmocka_unit_test(each_clip_is_one_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
