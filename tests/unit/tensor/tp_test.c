/* What tensor parallelism asks of operations: ranks that have parts give what one process gives. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/rng.h"
#include "lib/tensor/ops.h"
#include "lib/tensor/param.h"
#include "team.h"

enum { RANKS = 4, ROWS = 7, WIDTH = 5, VOCAB = 11 };

static float x0[ROWS * WIDTH], head0[VOCAB * WIDTH], target0[ROWS * VOCAB];
/* of each rank's part of the classes, and of none */
static int32_t labels[ROWS] = {0, 10, -100, 3, 7, 4, 2};

static struct s2s_tensor *leaf(struct s2s_tape *tape, int64_t rows, int64_t cols, const float *x)
{
    struct s2s_tensor *t = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){rows, cols}, x);
    s2s_tape_want_grad(t);
    return t;
}

static void close_to(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= 1e-6f * (1 + fabsf(b[i]))))
            fail_msg("element %lld is %g, not %g", (long long)i, (double)a[i], (double)b[i]);
}

/* The classes of a rank: [*begin, *end). */
static void part_of(const struct s2s_group *g, int64_t *begin, int64_t *end)
{
    const int size = s2s_group_size(g), rank = s2s_group_rank(g);
    *begin = s2s_cut_begin(VOCAB, rank, size);
    *end = s2s_cut_begin(VOCAB, rank + 1, size);
}

/* ---- cross entropy over parts of the classes ---- */

/* One row whose label is the likeliest class. */
static void make_a_hit(void)
{
    float best = -INFINITY;
    for (int c = 0; c < VOCAB; c++) {
        float logit = 0;
        for (int i = 0; i < WIDTH; i++)
            logit += x0[5 * WIDTH + i] * head0[c * WIDTH + i];
        if (logit > best) {
            best = logit;
            labels[5] = c;
        }
    }
}

struct outcome {
    float dx[ROWS * WIDTH], dw[VOCAB * WIDTH];
    float rows[ROWS]; /* losses */
    double loss, hits;
};

static void run_xent(const struct s2s_group *g, struct outcome *o)
{
    struct s2s_device *device;
    struct s2s_tape *tape = open_tape(&device, true);
    const struct s2s_classes classes = {g, VOCAB};
    int64_t begin, end;
    part_of(g, &begin, &end);
    struct s2s_tensor *x = leaf(tape, ROWS, WIDTH, x0), *hits, *rows;
    struct s2s_tensor *w = leaf(tape, end - begin, WIDTH, head0 + begin * WIDTH);
    struct s2s_tensor *h = s2s_op_copy_to_group(tape, s2s_op_scale(tape, 1, x), g);
    struct s2s_tensor *loss =
        s2s_op_linear_xent_of(tape, h, w, &classes, labels, 0.5, &hits, &rows);
    s2s_tape_backward(tape);
    o->loss = s2s_tensor_scalar(loss);
    o->hits = s2s_tensor_scalar(hits);
    s2s_tensor_read(rows, o->rows);
    s2s_tensor_read(x->grad, o->dx);
    s2s_tensor_read(w->grad, o->dw + begin * WIDTH);
    close_tape(tape, device);
}

static struct outcome outcomes[RANKS];

static void xent_of_a_rank(const struct s2s_group *g, void *ctx)
{
    run_xent(g, &outcomes[g->rank]);
}

/* Each row has its own loss, and one without a label none. */
static void check_rows(const struct outcome *o)
{
    double sum = 0;
    for (int i = 0; i < ROWS; i++) {
        assert_true(labels[i] < 0 ? o->rows[i] == 0 : o->rows[i] > 0);
        sum += (double)o->rows[i];
    }
    assert_true(fabs(sum - o->loss) < 1e-6);
}

/* Loss, hits and the gradient of the input are everybody's, that of the matrix is a rank's own. */
static void parts_of_the_classes_give_the_loss_of_all(void **state)
{
    struct outcome whole;
    struct team team;
    run_xent(NULL, &whole);
    assert_true(whole.hits >= 1); /* else the likeliest class is nobody's */
    team_run(&team, RANKS, xent_of_a_rank, NULL);
    for (int r = 0; r < RANKS; r++) {
        int64_t begin, end;
        part_of(&team.group[r], &begin, &end);
        assert_true(fabs(outcomes[r].loss - whole.loss) < 1e-6);
        assert_true(outcomes[r].loss == outcomes[0].loss);
        assert_true(outcomes[r].hits == whole.hits);
        check_rows(&outcomes[r]);
        close_to(outcomes[r].dx, whole.dx, ROWS * WIDTH);
        close_to(outcomes[r].dw + begin * WIDTH, whole.dw + begin * WIDTH, (end - begin) * WIDTH);
    }
}

/* ---- columns of neighbours ---- */

/* Each rank has its columns of target0, times (1 + its rank); 0 and 1, and 2 and 3 put theirs
 * together. */
static float gathered[RANKS][ROWS * VOCAB], dcolumns[RANKS][ROWS * VOCAB];

static void gather_some(const struct s2s_group *g, void *ctx)
{
    struct s2s_device *device;
    struct s2s_tape *tape = open_tape(&device, true);
    int64_t begin, end, widths[RANKS];
    for (int r = 0; r < RANKS; r++)
        widths[r] = s2s_cut_begin(VOCAB, r + 1, RANKS) - s2s_cut_begin(VOCAB, r, RANKS);
    part_of(g, &begin, &end);
    const int64_t width = end - begin;
    float mine[ROWS * VOCAB], zeros[ROWS * VOCAB] = {0};
    for (int i = 0; i < ROWS * width; i++)
        mine[i] = target0[i / width * VOCAB + begin + i % width];
    struct s2s_tensor *x = leaf(tape, ROWS, width, mine);
    struct s2s_tensor *h = s2s_op_scale(tape, (float)(1 + g->rank), x);
    const int first = g->rank / 2 * 2;
    const struct s2s_columns_of some = {g, first, 2, widths + first};
    h = s2s_op_gather_columns(tape, h, &some);
    s2s_tensor_read(h, gathered[g->rank]);
    struct s2s_tensor *nothing = s2s_tape_upload(tape, S2S_F32, 2, h->shape, zeros);
    /* ranks weigh what they see by 10 ^ rank: the gradient is the sum of all of them */
    s2s_op_sqdist(tape, h, nothing, pow(10, g->rank));
    s2s_tape_backward(tape);
    s2s_tensor_read(x->grad, dcolumns[g->rank]);
    close_tape(tape, device);
}

static void columns_come_together_and_their_gradients_add(void **state)
{
    struct team team;
    alarm(30);
    team_run(&team, RANKS, gather_some, NULL);
    alarm(0);
    for (int r = 0; r < RANKS; r++) {
        const int64_t begin = s2s_cut_begin(VOCAB, r, RANKS),
                      width = s2s_cut_begin(VOCAB, r + 1, RANKS) - begin,
                      first = s2s_cut_begin(VOCAB, r / 2 * 2, RANKS),
                      all = s2s_cut_begin(VOCAB, r / 2 * 2 + 2, RANKS) - first;
        assert_int_equal(team.calls[r], 2);
        for (int64_t i = 0; i < ROWS * all; i++) {
            const int64_t col = first + i % all;
            const bool second = col >= s2s_cut_begin(VOCAB, r / 2 * 2 + 1, RANKS);
            assert_true(gathered[r][i] ==
                        target0[i / all * VOCAB + col] * (float)(1 + r / 2 * 2 + second));
        }
        const float scale = (float)((1 + r) * (1 + r)) * (r < 2 ? 11 : 1100);
        for (int64_t i = 0; i < ROWS * width; i++) {
            const float x = target0[i / width * VOCAB + begin + i % width];
            assert_true(fabsf(dcolumns[r][i] - scale * x) <= 1e-5f * scale * (1 + fabsf(x)));
        }
    }
}

/* ---- rows that are cut outside of two maps ---- */

enum { SP_ROWS = 8, INNER = 12 };

static float rows0[SP_ROWS * WIDTH], in0[2 * INNER * WIDTH], bias0[INNER], out0[WIDTH * INNER];

/* out(in_0(x) + in_1(x)), of which a rank has INNER / size columns between the maps. */
struct mapped {
    float y[SP_ROWS * WIDTH], dx[SP_ROWS * WIDTH], din[2][INNER * WIDTH], dbias[INNER],
        dout[WIDTH * INNER];
};

static void run_maps(const struct s2s_group *g, struct mapped *m)
{
    struct s2s_device *device;
    struct s2s_tape *tape = open_tape(&device, true);
    const int size = s2s_group_size(g), n = INNER / size, first = s2s_group_rank(g) * n;
    const int64_t rows = SP_ROWS / size, begin = s2s_group_rank(g) * rows * WIDTH;
    float zeros[SP_ROWS * WIDTH] = {0}, columns[WIDTH * INNER];
    for (int i = 0; i < WIDTH * n; i++)
        columns[i] = out0[i / n * INNER + first + i % n];
    struct s2s_tensor *x = leaf(tape, rows, WIDTH, rows0 + begin), *h[2],
                      *in[] = {leaf(tape, n, WIDTH, in0 + first * WIDTH),
                               leaf(tape, n, WIDTH, in0 + (INNER + first) * WIDTH)},
                      *b[] = {NULL, leaf(tape, 1, n, bias0 + first)},
                      *out = leaf(tape, WIDTH, n, columns), *y;
    if (size > 1)
        s2s_op_gather_linear(tape, x, g, 2, in, b, h);
    for (int i = 0; size == 1 && i < 2; i++)
        h[i] = s2s_op_linear(tape, x, in[i], b[i]);
    struct s2s_tensor *sum = s2s_op_add(tape, h[0], h[1]);
    y = size > 1 ? s2s_op_linear_scatter(tape, sum, out, g) : s2s_op_linear(tape, sum, out, NULL);
    s2s_op_sqdist(tape, y, s2s_tape_upload(tape, S2S_F32, 2, y->shape, zeros), 1);
    s2s_tape_backward(tape);
    s2s_tensor_read(y, m->y + begin);
    s2s_tensor_read(x->grad, m->dx + begin);
    for (int i = 0; i < 2; i++)
        s2s_tensor_read(in[i]->grad, m->din[i] + first * WIDTH);
    s2s_tensor_read(b[1]->grad, m->dbias + first);
    s2s_tensor_read(out->grad, columns);
    for (int i = 0; i < WIDTH * n; i++)
        m->dout[i / n * INNER + first + i % n] = columns[i];
    close_tape(tape, device);
}

static struct mapped parts; /* each rank writes its own */

static void maps_of_a_rank(const struct s2s_group *g, void *ctx)
{
    run_maps(g, &parts);
}

static void maps_of_rows_that_are_cut_give_what_whole_ones_give(void **state)
{
    struct mapped whole;
    struct team team;
    run_maps(NULL, &whole);
    alarm(30);
    team_run(&team, RANKS, maps_of_a_rank, NULL);
    alarm(0);
    for (int r = 0; r < RANKS; r++) /* rows in, out and back: gathered again for the gradients */
        assert_int_equal(team.calls[r], 5);
    const struct {
        const float *part, *whole;
        int64_t n;
    } all[] = {
        {parts.y, whole.y, SP_ROWS * WIDTH},         {parts.dx, whole.dx, SP_ROWS * WIDTH},
        {parts.din[0], whole.din[0], INNER * WIDTH}, {parts.din[1], whole.din[1], INNER * WIDTH},
        {parts.dbias, whole.dbias, INNER},           {parts.dout, whole.dout, WIDTH * INNER}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        for (int64_t i = 0; i < all[k].n; i++)
            if (!(fabsf(all[k].part[i] - all[k].whole[i]) <= 3e-6f * (10 + fabsf(all[k].whole[i]))))
                fail_msg("%zu: element %lld is %g, not %g", k, (long long)i, (double)all[k].part[i],
                         (double)all[k].whole[i]);
}

/* ---- a bias after a sum ---- */

/* Value and gradients are those of a bias in the product, whether its input is trained or not. */
static void a_bias_after_the_sum_is_that_of_the_product(void **state)
{
    float y[2][ROWS * VOCAB], db[2][VOCAB], dx[2][ROWS * WIDTH];
    for (int after = 0; after < 2; after++)
        for (int trained = 0; trained < 2; trained++) {
            struct s2s_device *device;
            struct s2s_tape *tape = open_tape(&device, true);
            struct s2s_tensor *x = leaf(tape, ROWS, WIDTH, x0);
            x->needs_grad = trained;
            struct s2s_tensor *b = leaf(tape, 1, VOCAB, target0);
            struct s2s_tensor *w =
                s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){VOCAB, WIDTH}, head0);
            struct s2s_tensor *h = s2s_op_linear(tape, x, w, after ? NULL : b);
            if (after)
                h = s2s_op_add_bias(tape, h, b);
            struct s2s_tensor *target = s2s_tape_upload(tape, S2S_F32, 2, h->shape, target0);
            s2s_tensor_read(h, y[after]);
            s2s_op_sqdist(tape, h, target, 1);
            s2s_tape_backward(tape);
            s2s_tensor_read(b->grad, db[after]);
            assert_int_equal(x->grad != NULL, trained);
            if (trained)
                s2s_tensor_read(x->grad, dx[after]);
            close_tape(tape, device);
        }
    close_to(y[1], y[0], ROWS * VOCAB);
    for (int i = 0; i < VOCAB; i++)
        assert_true(fabsf(db[1][i] - db[0][i]) < 1e-4f);
    for (int i = 0; i < ROWS * WIDTH; i++)
        assert_true(fabsf(dx[1][i] - dx[0][i]) < 1e-4f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_the_classes_give_the_loss_of_all),
        cmocka_unit_test(columns_come_together_and_their_gradients_add),
        cmocka_unit_test(maps_of_rows_that_are_cut_give_what_whole_ones_give),
        cmocka_unit_test(a_bias_after_the_sum_is_that_of_the_product),
    };
    s2s_rng_fill_normal(x0, ROWS * WIDTH, 1, 0, 0, 1);
    s2s_rng_fill_normal(head0, VOCAB * WIDTH, 2, 0, 0, 1);
    s2s_rng_fill_normal(target0, ROWS * VOCAB, 4, 0, 0, 1);
    s2s_rng_fill_normal(rows0, SP_ROWS * WIDTH, 5, 0, 0, 1);
    s2s_rng_fill_normal(in0, 2 * INNER * WIDTH, 6, 0, 0, 1);
    s2s_rng_fill_normal(bias0, INNER, 7, 0, 0, 1);
    s2s_rng_fill_normal(out0, WIDTH * INNER, 8, 0, 0, 1);
    make_a_hit();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
