/*
 * Attention with relative positions and its gradients against loops in double that read like the
 * formulas: heads of odd and of whole widths, clips of no row, of one, at the end too, and longer
 * than any tile, queries that look far to either side, a tail that nobody may read; queries that
 * see some keys alone, fewer and more than a block has; dropout.
 */
#include "tests/unit/kernels/kernel_test.h"

enum { MAX_SEQS = 6, HEADS = 2, TAIL = 3 }; /* rows behind the last clip, full of NaN */

struct problem {
    int64_t dim, n_seqs, max_seqlen;
    int32_t cu[MAX_SEQS + 1];
    int64_t gap; /* between the end of a row and the next: rows that begin at odd places */
    struct s2s_reach reach;
    float share; /* of P that dropout leaves out */
};

static const struct problem problems[] = {
    {7, 5, 70, {0, 66, 66, 67, 79, 79}, 2, {0, 0, 0}, 0},
    {64, 3, 77, {0, 77, 80, 113}, 0, {0, 0, 0}, 0},
    {40, 2, 40, {0, 33, 40}, 8, {0, 0, 0}, 0},
    {72, 3, 37, {0, 1, 36, 69}, 0, {0, 0, 0}, 0},
    {130, 2, 21, {0, 19, 34}, 1, {0, 0, 0}, 0},
};

static const struct problem limited[] = {
    {7, 5, 150, {0, 146, 146, 147, 159, 159}, 2, {1, 5, 3}, 0},
    {8, 2, 200, {0, 200, 203}, 0, {1, 90, 0}, 0},
    {7, 2, 140, {0, 133, 140}, 1, {7, 14, 0}, 0},
    {16, 2, 70, {0, 70, 73}, 0, {3, S2S_REACH_ALL, 0}, 0},
    {7, 2, 70, {0, 33, 70}, 0, {1, S2S_REACH_ALL, 2}, 0},
    {7, 1, 70, {0, 70}, 0, {1, 0, S2S_REACH_ALL}, 0},
};

static const struct problem dropped[] = {
    {7, 5, 70, {0, 66, 66, 67, 79, 79}, 2, {0, 0, 0}, 0.4f},
    {72, 3, 37, {0, 1, 36, 69}, 0, {0, 0, 0}, 0.1f},
    {130, 2, 21, {0, 19, 34}, 1, {1, 3, 5}, 0.5f},
};
enum { FIRST_HEAD = 5 };
static const uint64_t KEY = 99;

/* Whether query i sees key j, as NeMo makes its mask. */
static bool sees(const struct s2s_reach *reach, int64_t i, int64_t j)
{
    if (reach->chunk == 0)
        return true;
    if (reach->chunk == 1)
        return j >= i - reach->before && j <= i + reach->after;
    const int64_t chunks = i / reach->chunk - j / reach->chunk;
    return chunks >= 0 && chunks <= reach->before / reach->chunk;
}

/* Numbers of the inputs, and of what the forward and the backward give. */
struct numbers {
    float *q, *k, *value, *p, *u, *v, *d_o;
    float *o, *lse, *dq, *dk, *dvalue, *dp, *du, *dv;
};

static int64_t n_of(const struct problem *p)
{
    return p->cu[p->n_seqs];
}

static int64_t width_of(const struct problem *p)
{
    return HEADS * p->dim;
}

static int64_t stride_of(const struct problem *p)
{
    return width_of(p) + p->gap;
}

/* ---- the reference: outputs [rows, width], without gaps ---- */

struct reference {
    double *o, *lse, *dq, *dk, *dvalue, *dp, *du, *dv;
};

/* Of query i of a clip that begins at row `begin`, and one head: adds what it gives. */
static void reference_query(const struct problem *p, const struct numbers *x, float scale,
                            int64_t begin, int64_t n, int64_t i, int64_t h, struct reference *r)
{
    const int64_t s = stride_of(p), w = width_of(p), c = h * p->dim, row = begin + i;
    double *prob = s2s_xcalloc((size_t)n, sizeof *prob),
           *dprob = s2s_xcalloc((size_t)n, sizeof *dprob),
           *keep = s2s_xcalloc((size_t)n, sizeof *keep);
    double total = 0, delta = 0;
    for (int64_t j = 0; j < n; j++) {
        const float *pos = x->p + (p->max_seqlen - 1 - i + j) * s + c;
        for (int64_t d = 0; d < p->dim; d++) {
            const double q = x->q[row * s + c + d];
            prob[j] +=
                (q + x->u[c + d]) * x->k[(begin + j) * s + c + d] + (q + x->v[c + d]) * pos[d];
            dprob[j] += (double)x->d_o[row * s + c + d] * x->value[(begin + j) * s + c + d];
        }
        prob[j] = sees(&p->reach, i, j) ? exp(scale * prob[j]) : 0;
        total += prob[j];
    }
    r->lse[row * HEADS + h] = log(total);
    for (int64_t j = 0; j < n; j++) {
        prob[j] /= total;
        keep[j] = p->share > 0 && !stays(row, j, 1 + FIRST_HEAD + h, KEY, (double)p->share)
                      ? 0
                      : 1 / (1 - (double)p->share);
        delta += prob[j] * keep[j] * dprob[j];
    }
    for (int64_t j = 0; j < n; j++) {
        const int64_t at = p->max_seqlen - 1 - i + j, key = begin + j;
        const double ds = scale * prob[j] * (keep[j] * dprob[j] - delta);
        for (int64_t d = 0; d < p->dim; d++) {
            const int64_t col = c + d;
            const double q = x->q[row * s + col], k_j = x->k[key * s + col],
                         p_r = x->p[at * s + col];
            r->o[row * w + col] += keep[j] * prob[j] * x->value[key * s + col];
            r->dvalue[key * w + col] += keep[j] * prob[j] * x->d_o[row * s + col];
            r->dq[row * w + col] += ds * (k_j + p_r);
            r->dk[key * w + col] += ds * (q + x->u[col]);
            r->dp[at * w + col] += ds * (q + x->v[col]);
            r->du[col] += ds * k_j;
            r->dv[col] += ds * p_r;
        }
    }
    free(prob);
    free(dprob);
    free(keep);
}

/* ---- cases ---- */

static void to_double(double *to, const float *from, int64_t rows, int64_t cols, int64_t stride)
{
    for (int64_t i = 0; i < rows * cols; i++)
        to[i] = from[i / cols * stride + i % cols];
}

static double *sum_of(int64_t rows, int64_t cols)
{
    return s2s_xcalloc((size_t)(rows * cols + 1), sizeof(double));
}

/* Values of the rows of clips, NaN behind them. */
static float *of_clips(const struct problem *p, uint64_t key)
{
    const int64_t n = n_of(p), s = stride_of(p);
    float *x = values(n + TAIL, width_of(p), s, key);
    for (int64_t i = n * s; i < (n + TAIL) * s; i++)
        x[i] = NAN;
    return x;
}

static void check(const struct problem *p, bool accumulate)
{
    const int64_t n = n_of(p), w = width_of(p), s = stride_of(p), n_pos = 2 * p->max_seqlen - 1;
    const float scale = 0.7f / sqrtf((float)p->dim);
    const size_t cu_bytes = (size_t)(p->n_seqs + 1) * sizeof *p->cu;
    struct numbers x = {of_clips(p, 1),          of_clips(p, 2),      of_clips(p, 3),
                        values(n_pos, w, s, 4),  values(1, w, w, 5),  values(1, w, w, 6),
                        of_clips(p, 7),          of_clips(p, 8),      values(n, HEADS, HEADS, 9),
                        of_clips(p, 10),         of_clips(p, 11),     of_clips(p, 12),
                        values(n_pos, w, s, 13), values(1, w, w, 14), values(1, w, w, 15)};
    struct reference r = {sum_of(n, w), sum_of(n, HEADS), sum_of(n, w), sum_of(n, w),
                          sum_of(n, w), sum_of(n_pos, w), sum_of(1, w), sum_of(1, w)};
    if (accumulate) {
        to_double(r.dq, x.dq, n, w, s);
        to_double(r.dk, x.dk, n, w, s);
        to_double(r.dvalue, x.dvalue, n, w, s);
        to_double(r.dp, x.dp, n_pos, w, s);
    }
    to_double(r.du, x.du, 1, w, w);
    to_double(r.dv, x.dv, 1, w, w);
    for (int64_t seq = 0; seq < p->n_seqs; seq++)
        for (int64_t i = 0; i < p->cu[seq + 1] - p->cu[seq]; i++)
            for (int64_t h = 0; h < HEADS; h++)
                reference_query(p, &x, scale, p->cu[seq], p->cu[seq + 1] - p->cu[seq], i, h, &r);
    struct s2s_k_relattention args = {.q = mat(x.q, s),
                                      .k = mat(x.k, s),
                                      .value = mat(x.value, s),
                                      .o = mat(x.o, s),
                                      .p = mat(x.p, s),
                                      .u = vec(x.u),
                                      .v = vec(x.v),
                                      .lse = vec(x.lse),
                                      .cu = in(p->cu, cu_bytes),
                                      .n_seqs = p->n_seqs,
                                      .n_heads = HEADS,
                                      .dim = p->dim,
                                      .max_seqlen = p->max_seqlen,
                                      .scale = scale,
                                      .first_head = FIRST_HEAD,
                                      .reach = p->reach};
    if (p->share > 0)
        args.draw = draw_of(n, KEY, p->share);
    args.workspace = work(k->relattention_workspace(&queue, &args));
    k->relattention(&queue, &args);
    struct s2s_k_relattention_backward back = {.forward = args,
                                               .d_o = mat(x.d_o, s),
                                               .dq = mat(x.dq, s),
                                               .dk = mat(x.dk, s),
                                               .dvalue = mat(x.dvalue, s),
                                               .dp = mat(x.dp, s),
                                               .du = vec(x.du),
                                               .dv = vec(x.dv),
                                               .accumulate_dq = accumulate,
                                               .accumulate_dk = accumulate,
                                               .accumulate_dvalue = accumulate,
                                               .accumulate_dp = accumulate};
    back.workspace = work(k->relattention_backward_workspace(&queue, &back));
    k->relattention_backward(&queue, &back);
    done();
    close_to("o", x.o, r.o, n, w, s, 2e-6);
    close_to("lse", x.lse, r.lse, n, HEADS, HEADS, 2e-6);
    close_to("dq", x.dq, r.dq, n, w, s, 4e-6);
    close_to("dk", x.dk, r.dk, n, w, s, 4e-6);
    close_to("dvalue", x.dvalue, r.dvalue, n, w, s, 4e-6);
    close_to("dp", x.dp, r.dp, n_pos, w, s, 1e-5);
    /* GPUs add up dS as BF16, of as many pairs as see each other */
    const bool on_gpu = strcmp(k->name, "emu") == 0 || strcmp(k->name, "cuda") == 0;
    const double most = is_bf16 && on_gpu && (p->reach.chunk || p->share > 0) ? 2e-2 : 1e-5;
    close_to("du", x.du, r.du, 1, w, w, most);
    close_to("dv", x.dv, r.dv, 1, w, w, most);
    float *const all[] = {x.q,   x.k,  x.value, x.p,  x.u,      x.v,  x.d_o, x.o,
                          x.lse, x.dq, x.dk,    x.dp, x.dvalue, x.du, x.dv};
    double *const sums[] = {r.o, r.lse, r.dq, r.dk, r.dvalue, r.dp, r.du, r.dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        free(sums[i]);
}

static void clips_attend_by_place_and_pass_back(void **state)
{
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        check(&problems[i], i % 2);
}

static void queries_see_the_keys_of_their_reach_alone(void **state)
{
    for (size_t i = 0; i < sizeof limited / sizeof *limited; i++)
        check(&limited[i], i % 2);
}

static void dropout_leaves_out_the_same_pairs_backward(void **state)
{
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        check(&dropped[i], i % 2);
}

/* A batch without a row launches nothing, and adds nothing to the gradients of the biases. */
static void no_clip_is_no_work(void **state)
{
    static const int32_t cu[] = {0, 0};
    float du[] = {1, 2};
    struct s2s_k_relattention_backward back = {
        .forward = {.cu = in(cu, sizeof cu), .n_seqs = 1, .n_heads = 1, .dim = 2, .scale = 1}};
    back.forward.workspace = work(k->relattention_workspace(&queue, &back.forward));
    k->relattention(&queue, &back.forward);
    back.du = on(du, sizeof du);
    back.workspace = work(k->relattention_backward_workspace(&queue, &back));
    k->relattention_backward(&queue, &back);
    done();
    assert_true(du[0] == 1 && du[1] == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clips_attend_by_place_and_pass_back),
        cmocka_unit_test(queries_see_the_keys_of_their_reach_alone),
        cmocka_unit_test(dropout_leaves_out_the_same_pairs_backward),
        cmocka_unit_test(no_clip_is_no_work),
    };
    return run_on_tables_and_types(tests);
}
