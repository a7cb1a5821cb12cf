/* Attention of sequences that are cut over ranks: every way equals one device, there and back. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/rng.h"
#include "lib/tensor/ops.h"
#include "lib/thd/cp.h"
#include "team.h"

enum { DIM = 4, MAX_SEQS = 8, MAX_ROWS = 256, MAX_WIDTH = 12 * DIM };

/* What is computed: `seqs` real lengths, each padded for the ranks. */
struct problem {
    int n_ranks;
    enum s2s_cp_comm comm;
    struct s2s_attention_shape shape;
    int64_t n_seqs;
    int32_t lens[MAX_SEQS];
    bool segment;  /* run again in the backward */
    bool no_label; /* nothing flows into what rank 0 has */
    bool is_text;  /* nothing flows into keys and values */
    int n_behind;  /* rows of each rank behind its sequences */
};

/* Rows of the padded whole; q k v, what flows into o, and what comes out: o dq dk dv. */
enum { Q, K, V, DO, O = 0, DQ, DK, DV, N_ARRAYS = 4 };
typedef float arrays[N_ARRAYS][MAX_ROWS * MAX_WIDTH];
static arrays given, want, got;
static int32_t cu[MAX_SEQS + 1]; /* of the padded whole */
static struct problem problem;

static int64_t width_of(int which)
{
    return DIM * (which == Q || which == DO ? problem.shape.n_heads : problem.shape.n_kv_heads);
}

/* Of a result: O and DQ are as wide as queries. */
static int64_t result_width(int which)
{
    return width_of(which < DK ? Q : K);
}

static int32_t n_rows(void)
{
    return cu[problem.n_seqs];
}

static void make_up(const struct problem *p)
{
    const int32_t multiple = p->n_ranks > 1 ? 2 * p->n_ranks : 1;
    problem = *p;
    for (int64_t s = 0; s < p->n_seqs; s++)
        cu[s + 1] = cu[s] + (p->lens[s] + multiple - 1) / multiple * multiple;
    assert_true(n_rows() <= MAX_ROWS);
    for (int i = 0; i < N_ARRAYS; i++) {
        s2s_rng_fill_normal(given[i], MAX_ROWS * MAX_WIDTH, (uint64_t)i, 0, 0, 1);
        memset(got[i], 0xff, sizeof got[i]);
        memset(want[i], 0, sizeof want[i]);
    }
    /* nothing flows into padding */
    for (int64_t s = 0; s < p->n_seqs; s++)
        for (int32_t r = cu[s] + p->lens[s]; r < cu[s + 1]; r++)
            memset(given[DO] + r * width_of(DO), 0, (size_t)width_of(DO) * sizeof(float));
    if (p->no_label) {
        int32_t mine[MAX_ROWS];
        s2s_thd_cp_index(mine, cu, (size_t)p->n_seqs, p->n_ranks, 0);
        for (int32_t i = 0; i < n_rows() / p->n_ranks; i++)
            memset(given[DO] + mine[i] * width_of(DO), 0, (size_t)width_of(DO) * sizeof(float));
    }
}

/* ---- one device, without padding ---- */

static struct s2s_tensor *upload(struct s2s_tape *tape, int which, const float *x, int64_t rows)
{
    struct s2s_tensor *t = s2s_tape_upload(tape, S2S_F32, 2, (int64_t[]){rows, width_of(which)}, x);
    if (which != DO && !(problem.is_text && which != Q))
        s2s_tape_want_grad(t);
    return t;
}

static void read_grad(float *out, struct s2s_tape *tape, struct s2s_tensor *t)
{
    if (t->needs_grad)
        s2s_tensor_read(s2s_tape_take_grad(tape, t), out);
    else
        memset(out, 0, (size_t)s2s_tensor_numel(t) * sizeof *out);
}

/* Real rows between the padded whole and what has none, one behind the other. */
static void move_real(float *packed, float *whole, int64_t width, bool pack)
{
    for (int64_t s = 0; s < problem.n_seqs; s++) {
        const size_t n = (size_t)(problem.lens[s] * width);
        float *from = whole + cu[s] * width;
        memcpy(pack ? packed : from, pack ? from : packed, n * sizeof *packed);
        packed += n;
    }
}

static void run_whole(void)
{
    struct s2s_device *device;
    struct s2s_tape *tape = open_tape(&device, true);
    int32_t real[MAX_SEQS + 1] = {0};
    for (int64_t s = 0; s < problem.n_seqs; s++)
        real[s + 1] = real[s] + problem.lens[s];
    struct s2s_spans spans = s2s_op_spans(tape, real, real, problem.n_seqs, true);
    static float buf[MAX_ROWS * MAX_WIDTH];
    struct s2s_tensor *in[N_ARRAYS];
    for (int i = 0; i < N_ARRAYS; i++) {
        move_real(buf, given[i], width_of(i), true);
        in[i] = upload(tape, i, buf, real[problem.n_seqs]);
    }
    struct s2s_tensor *o = s2s_op_attention(tape, in[Q], in[K], in[V], &spans, &problem.shape);
    struct s2s_tensor *again = s2s_op_attention(tape, in[Q], in[K], in[V], &spans, &problem.shape);
    s2s_tape_seed_grad(tape, o, in[DO]);
    s2s_tape_seed_grad(tape, again, in[DO]);
    s2s_tensor_read(o, buf);
    move_real(buf, want[O], result_width(O), false);
    s2s_tape_backward(tape);
    for (int i = 0; i < 3; i++) {
        read_grad(buf, tape, in[i]);
        move_real(buf, want[DQ + i], result_width(DQ + i), false);
    }
    s2s_tape_free(tape);
    s2s_device_close(device);
}

/* ---- ranks ---- */

struct pass {
    struct s2s_spans_cp spans;
};

static void attend(struct s2s_tape *tape, void *ctx, struct s2s_tensor *const *in,
                   struct s2s_tensor **out)
{
    const struct pass *pass = ctx;
    out[0] = s2s_op_attention_cp(tape, in[Q], in[K], in[V], &pass->spans, &problem.shape);
}

static struct s2s_tensor *attention(struct s2s_tape *tape, struct pass *pass,
                                    struct s2s_tensor *const *in)
{
    struct s2s_tensor *o;
    if (problem.segment)
        s2s_tape_segment(tape, attend, pass, 3, in, 1, &o, false);
    else
        attend(tape, pass, in, &o);
    return o;
}

/* Rows behind the sequences neither see nor are seen. */
static void expect_zeros(const float *x, int64_t rows, int which)
{
    for (int64_t i = 0; i < problem.n_behind * result_width(which); i++)
        assert_true(x[rows * result_width(which) + i] == 0);
}

static void run_rank(const struct s2s_group *g, void *ctx)
{
    struct s2s_device *device;
    struct s2s_tape *tape = open_tape(&device, ctx != NULL);
    const int size = s2s_group_size(g), rank = s2s_group_rank(g);
    const int64_t rows = n_rows() / size;
    const size_t n_seqs = (size_t)problem.n_seqs;
    int32_t own[MAX_SEQS + 1], order[MAX_ROWS];
    for (size_t s = 0; s <= n_seqs; s++)
        own[s] = cu[s] / size;
    s2s_thd_cp_inverse(order, cu, n_seqs, size);
    const int32_t behind = problem.n_behind;
    for (int64_t i = 0; i < n_rows(); i++)
        order[i] += order[i] / (int32_t)rows * behind;
    for (int32_t i = 0; i < size * behind; i++)
        order[n_rows() + i] = (i / behind + 1) * (int32_t)rows + i;
    struct pass pass = {s2s_op_spans_cp(tape, own, problem.n_seqs, rows + behind,
                                        problem.comm == S2S_CP_P2P ? NULL : order, g,
                                        problem.comm)};
    if (problem.shape.window > 0)
        s2s_op_spans_cp_window(tape, &pass.spans, own, problem.n_seqs, problem.shape.window);
    float *buf = s2s_xcalloc(MAX_ROWS * MAX_WIDTH, sizeof *buf);
    struct s2s_tensor *in[N_ARRAYS];
    for (int i = 0; i < N_ARRAYS; i++) {
        s2s_thd_cp_split(buf, given[i], (size_t)width_of(i) * sizeof *buf, cu, n_seqs, size, rank);
        for (int64_t e = rows * width_of(i); e < (rows + problem.n_behind) * width_of(i); e++)
            buf[e] = 1e3f;
        in[i] = upload(tape, i, buf, rows + problem.n_behind);
    }
    struct s2s_tensor *o = attention(tape, &pass, in);
    s2s_tensor_read(o, buf);
    expect_zeros(buf, rows, O);
    s2s_thd_cp_join(got[O], buf, (size_t)result_width(O) * sizeof *buf, cu, n_seqs, size, rank);
    if (ctx) {
        struct s2s_tensor *again = attention(tape, &pass, in); /* gradients add up */
        if (!(problem.no_label && rank == 0)) {
            s2s_tape_seed_grad(tape, o, in[DO]);
            s2s_tape_seed_grad(tape, again, in[DO]);
        }
        s2s_tape_backward(tape);
        for (int i = 0; i < 3; i++) {
            read_grad(buf, tape, in[i]);
            expect_zeros(buf, rows, DQ + i);
            s2s_thd_cp_join(got[DQ + i], buf, (size_t)result_width(DQ + i) * sizeof *buf, cu,
                            n_seqs, size, rank);
        }
    }
    free(buf);
    s2s_tape_free(tape);
    s2s_device_close(device);
}

/* Of real rows; those of padding get no gradient. */
static void compare(int which)
{
    static const char *const names[] = {"o", "dq", "dk", "dv"};
    const int64_t width = result_width(which);
    for (int64_t s = 0; s < problem.n_seqs; s++)
        for (int64_t i = cu[s] * width; i < cu[s + 1] * width; i++) {
            const float a = got[which][i], b = want[which][i];
            if (which == O && i >= (cu[s] + problem.lens[s]) * width)
                continue;
            if (!(fabsf(a - b) <= 4e-6f * (1 + fabsf(b))))
                fail_msg("%d ranks, way %d: %s of sequence %lld, element %lld is %.8g, not %.8g",
                         problem.n_ranks, problem.comm, names[which], (long long)s,
                         (long long)(i - cu[s] * width), (double)a, (double)b);
        }
}

static void hold_against_whole(const struct problem *p)
{
    struct team team;
    int back = 1;
    make_up(p);
    run_whole();
    team_run(&team, p->n_ranks, run_rank, &back);
    for (int i = O; i <= DV; i++)
        compare(i);
    for (int r = 1; r < p->n_ranks; r++)
        assert_int_equal(team.calls[r], team.calls[0]);
    memset(got, 0xff, sizeof got);
    team_run(&team, p->n_ranks, run_rank, NULL); /* a tape that does not record */
    compare(O);
}

/* ---- what it is held against ---- */

/* Heads that 1 to 4 ranks divide; lengths around 2 R, of 1 and of none. */
static struct problem packs(int n_ranks, enum s2s_cp_comm comm)
{
    const int32_t r = n_ranks;
    struct problem p = {.n_ranks = n_ranks,
                        .comm = comm,
                        .shape = {.n_heads = 12, .n_kv_heads = n_ranks == 3 ? 3 : 4, .dim = DIM},
                        .n_seqs = 8,
                        .lens = {2 * r + 1, 1, 0, 2 * r, 2 * r - 1, 37, 0, 3}};
    return p;
}

static void every_way_equals_one_device(void **state)
{
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++)
        for (int comm = S2S_CP_ALL_GATHER; comm <= S2S_CP_P2P; comm++) {
            struct problem p = packs(n_ranks, (enum s2s_cp_comm)comm);
            hold_against_whole(&p);
            p.shape.scale = 0.3f;
            p.shape.n_kv_heads = 12;
            hold_against_whole(&p);
        }
}

static void windows_are_of_the_whole_sequence(void **state)
{
    static const int windows[] = {1, 5, 16, 100};
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++)
        for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
            for (int comm = S2S_CP_ALL_GATHER; comm <= S2S_CP_P2P; comm++) {
                struct problem p = packs(n_ranks, (enum s2s_cp_comm)comm);
                p.shape.window = windows[i];
                hold_against_whole(&p);
                p.n_behind = 3;
                p.no_label = i % 2;
                hold_against_whole(&p);
            }
}

/* Ranks wait for each other in the backward: one whose rows have no label takes part in it. */
static void a_rank_without_a_label_takes_part(void **state)
{
    for (int n_ranks = 2; n_ranks <= 4; n_ranks++)
        for (int comm = S2S_CP_ALL_GATHER; comm <= S2S_CP_P2P; comm++) {
            struct problem p = packs(n_ranks, (enum s2s_cp_comm)comm);
            p.no_label = true;
            hold_against_whole(&p);
            p.segment = true;
            hold_against_whole(&p);
        }
}

static void a_batch_without_a_token_goes_the_same_way(void **state)
{
    for (int comm = S2S_CP_ALL_GATHER; comm <= S2S_CP_P2P; comm++) {
        struct problem p = packs(2, (enum s2s_cp_comm)comm);
        p.n_seqs = 0;
        hold_against_whole(&p);
        p.n_seqs = 1;
        p.lens[0] = 0;
        hold_against_whole(&p);
    }
}

static void rows_behind_the_sequences_get_nothing(void **state)
{
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++)
        for (int comm = S2S_CP_ALL_GATHER; comm <= S2S_CP_P2P; comm++) {
            struct problem p = packs(n_ranks, (enum s2s_cp_comm)comm);
            p.n_behind = 3;
            hold_against_whole(&p);
        }
}

static void keys_that_want_no_gradient_get_none(void **state)
{
    for (int comm = S2S_CP_ALL_GATHER; comm <= S2S_CP_P2P; comm++) {
        struct problem p = packs(3, (enum s2s_cp_comm)comm);
        p.is_text = true;
        hold_against_whole(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_equals_one_device),
        cmocka_unit_test(windows_are_of_the_whole_sequence),
        cmocka_unit_test(a_rank_without_a_label_takes_part),
        cmocka_unit_test(a_batch_without_a_token_goes_the_same_way),
        cmocka_unit_test(rows_behind_the_sequences_get_nothing),
        cmocka_unit_test(keys_that_want_no_gradient_get_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
