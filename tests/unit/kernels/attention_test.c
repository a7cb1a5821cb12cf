/* Attention by spans and its gradients against loops in double, whose gradients are differences of
 * their values; parts of sequences against the whole. */
#include "kernels/spans.h"
#include "tests/unit/kernels/kernel_test.h"

enum { MAX_SPANS = 16 };

/* Packed sequences by their bounds, or the spans themselves (cu_q[0] is n_q then, cu_k[0] n_k). */
struct problem {
    int64_t n_heads, n_kv_heads, dim, n_seqs;
    int32_t cu_q[8], cu_k[8];
    bool causal;
    int64_t window, n_spans;
    struct s2s_span spans[MAX_SPANS];
};

/* clang-format off */
static const struct problem problems[] = {
    {.n_heads = 4, .n_kv_heads = 2, .dim = 8, .n_seqs = 3, .cu_q = {0, 5, 6, 17}, .cu_k = {0, 5, 6, 17}, .causal = true}, /* a length of 1 */
    {.n_heads = 3, .n_kv_heads = 3, .dim = 5, .n_seqs = 4, .cu_q = {0, 0, 9, 9, 12}, .cu_k = {0, 0, 9, 9, 12}, .causal = true}, /* empty sequences, odd width */
    {.n_heads = 6, .n_kv_heads = 1, .dim = 4, .n_seqs = 2, .cu_q = {0, 70, 203}, .cu_k = {0, 70, 203}, .causal = true}, /* blocks of queries; by keys in backward */
    {.n_heads = 2, .n_kv_heads = 1, .dim = 4, .n_seqs = 1, .cu_q = {0, 300}, .cu_k = {0, 300}, .causal = true}, /* blocks of keys */
    {.n_heads = 2, .n_kv_heads = 2, .dim = 4, .n_seqs = 1, .cu_q = {0, 150}, .cu_k = {0, 270}, .causal = false}, /* the same, all seen */
    {.n_heads = 4, .n_kv_heads = 4, .dim = 4, .n_seqs = 4, .cu_q = {0, 150, 151, 151, 160}, .cu_k = {0, 150, 151, 151, 160}, .causal = true}, /* heads enough */
    {.n_heads = 2, .n_kv_heads = 2, .dim = 16, .n_seqs = 2, .cu_q = {0, 1, 4}, .cu_k = {0, 9, 15}, .causal = true}, /* more keys than queries: a cache */
    {.n_heads = 4, .n_kv_heads = 2, .dim = 8, .n_seqs = 2, .cu_q = {0, 67, 80}, .cu_k = {0, 67, 80}, .causal = false}, /* every key is seen */
    {.n_heads = 2, .n_kv_heads = 1, .dim = 4, .n_seqs = 2, .cu_q = {0, 300, 320}, .cu_k = {0, 300, 320}, .causal = true, .window = 37}, /* a window; blocks of keys */
    {.n_heads = 16, .n_kv_heads = 16, .dim = 4, .n_seqs = 2, .cu_q = {0, 90, 94}, .cu_k = {0, 90, 94}, .causal = true, .window = 1}, /* itself alone; heads enough */
    {.n_heads = 2, .n_kv_heads = 1, .dim = 4, .n_seqs = 1, .cu_q = {0, 130}, .cu_k = {0, 130}, .causal = true, .window = 1000}, /* wider than all */
    {.n_heads = 2, .n_kv_heads = 2, .dim = 4, .n_seqs = 1, .cu_q = {0, 20}, .cu_k = {0, 20}, .causal = false, .window = 5}, /* all seen in spite of it */
    /* rows in no span, queries that see nothing, a span without keys, one without queries */
    {.n_heads = 2, .n_kv_heads = 1, .dim = 4, .cu_q = {40}, .cu_k = {50}, .n_spans = 5,
     .spans = {{3, 10, 5, 8, -4}, {20, 6, 30, 9, 2}, {27, 2, 0, 0, 0}, {30, 0, 45, 3, 0}, {31, 4, 16, 6, S2S_SPAN_ALL}}}, /* overlapping keys: two groups of two; short and many heads, long and few */
    {.n_heads = 16, .n_kv_heads = 8, .dim = 4, .cu_q = {40}, .cu_k = {40}, .n_spans = 4,
     .spans = {{10, 10, 0, 20, 10}, {0, 10, 0, 10, 0}, {20, 10, 20, 10, 0}, {30, 10, 25, 15, 5}}}, {.n_heads = 2, .n_kv_heads = 1, .dim = 4, .cu_q = {330}, .cu_k = {460}, .n_spans = 3,
     .spans = {{130, 150, 100, 300, 150}, {0, 130, 0, 280, 150}, {290, 40, 410, 45, 5}}},
    /* widths of heads: a whole tile, parts of one, those that a GPU takes in two launches */
    {.n_heads = 2, .n_kv_heads = 1, .dim = 64, .n_seqs = 3, .cu_q = {0, 37, 37, 45}, .cu_k = {0, 37, 37, 45}, .causal = true},
    {.n_heads = 2, .n_kv_heads = 2, .dim = 72, .n_seqs = 2, .cu_q = {0, 11, 30}, .cu_k = {0, 20, 41}, .causal = true},
    {.n_heads = 1, .n_kv_heads = 1, .dim = 128, .n_seqs = 1, .cu_q = {0, 75}, .cu_k = {0, 75}, .causal = true},
    {.n_heads = 1, .n_kv_heads = 1, .dim = 150, .n_seqs = 1, .cu_q = {0, 9}, .cu_k = {0, 30}, .causal = false},
    {.n_heads = 2, .n_kv_heads = 1, .dim = 256, .n_seqs = 1, .cu_q = {0, 20}, .cu_k = {0, 20}, .causal = true, .window = 7},
    /* widths that are multiplied in BF16: blocks and last keys of any length, a window, what sees nothing */
    {.n_heads = 4, .n_kv_heads = 2, .dim = 32, .n_seqs = 4, .cu_q = {0, 70, 101, 101, 110}, .cu_k = {0, 70, 101, 101, 110}, .causal = true, .window = 37},
    {.n_heads = 2, .n_kv_heads = 1, .dim = 16, .cu_q = {70}, .cu_k = {150}, .n_spans = 4,
     .spans = {{20, 25, 30, 80, 50}, {0, 20, 0, 60, -9}, {45, 18, 110, 35, 5}, {64, 5, 0, 0, 0}}},
    /* many keys, which a GPU takes in other tiles than few */
    {.n_heads = 1, .n_kv_heads = 1, .dim = 64, .n_seqs = 1, .cu_q = {0, 140}, .cu_k = {0, 2100}, .causal = true},
    {.n_heads = 1, .n_kv_heads = 1, .dim = 128, .n_seqs = 1, .cu_q = {0, 40}, .cu_k = {0, 2050}, .causal = true},
};
/* clang-format on */
enum { N_PROBLEMS = sizeof problems / sizeof *problems };

/* The spans of a problem in the order of their groups; gives the number of groups. */
static int64_t find_spans(struct s2s_span *spans, int32_t *groups, const struct problem *p)
{
    if (p->n_spans == 0)
        s2s_spans_packed(spans, p->cu_q, p->cu_k, p->n_seqs, p->causal);
    else
        memcpy(spans, p->spans, sizeof p->spans);
    return s2s_spans_group(groups, spans, p->n_spans ? p->n_spans : p->n_seqs);
}

/* What is left out of what queries see, in these cases: a share, and where keys stand. */
static float share;
static const uint64_t KEY = 0x123456789abcdef0U;
enum { FIRST_HEAD = 3, N_PLACES = 4096 };

static int32_t place(int64_t key)
{
    return (int32_t)(key < 37 ? key + 501 : key - 36);
}

static double kept(int64_t row, int64_t head, int64_t key)
{
    if (share == 0)
        return 1;
    return stays(row, place(key), 1 + FIRST_HEAD + head, KEY, (double)share)
               ? 1 / (1 - (double)share)
               : 0;
}

static float scale_of(const struct problem *p)
{
    return p->dim < 64 ? 0.4f : 1 / sqrtf((float)p->dim);
}

static bool sees(const struct s2s_span *span, int64_t window, int64_t i, int64_t j)
{
    if (span->shift == S2S_SPAN_ALL)
        return true;
    return j <= i + span->shift && (window == 0 || j > i + span->shift - window);
}

/* What is taken and given, in double: q k v, their gradients, o, lse and dO. */
struct doubles {
    double *x[3], *g[3], *o, *lse, *d_o;
    double scale;
};

/* Query i of a span and head h: probabilities of its keys, to z, of `nk` there. */
static double probabilities(const struct problem *p, const struct doubles *d,
                            const struct s2s_span *s, int64_t i, int64_t h, double *z)
{
    const int64_t kv = h / (p->n_heads / p->n_kv_heads), width = p->n_kv_heads * p->dim;
    const double *q = d->x[0] + ((s->q0 + i) * p->n_heads + h) * p->dim;
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < s->nk; j++) {
        const double *key = d->x[1] + (s->k0 + j) * width + kv * p->dim;
        z[j] = sees(s, p->window, i, j) ? 0 : -INFINITY;
        for (int64_t c = 0; c < p->dim; c++)
            z[j] += d->scale * q[c] * key[c];
        max = fmax(max, z[j]);
    }
    if (max == -INFINITY)
        return max;
    for (int64_t j = 0; j < s->nk; j++)
        sum += z[j] = exp(z[j] - max);
    for (int64_t j = 0; j < s->nk; j++)
        z[j] /= sum;
    return max + log(sum);
}

/* The same query, with its probabilities: o, and what its dO gives to the gradients. */
static void reference_query(const struct problem *p, struct doubles *d, const struct s2s_span *s,
                            int64_t i, int64_t h, const double *z)
{
    const int64_t kv = h / (p->n_heads / p->n_kv_heads), width = p->n_kv_heads * p->dim;
    const int64_t at = ((s->q0 + i) * p->n_heads + h) * p->dim;
    double dp[4096], delta = 0;
    for (int64_t j = 0; j < s->nk; j++) {
        const int64_t key = (s->k0 + j) * width + kv * p->dim;
        const double keeps = kept(s->q0 + i, h, s->k0 + j);
        dp[j] = 0;
        for (int64_t c = 0; c < p->dim; c++) {
            d->o[at + c] += z[j] * keeps * d->x[2][key + c];
            dp[j] += keeps * d->d_o[at + c] * d->x[2][key + c];
            d->g[2][key + c] += z[j] * keeps * d->d_o[at + c];
        }
        delta += z[j] * dp[j];
    }
    for (int64_t j = 0; j < s->nk; j++) {
        const int64_t key = (s->k0 + j) * width + kv * p->dim;
        const double ds = d->scale * z[j] * (dp[j] - delta);
        for (int64_t c = 0; c < p->dim; c++) {
            d->g[0][at + c] += ds * d->x[1][key + c];
            d->g[1][key + c] += ds * d->x[0][at + c];
        }
    }
}

/* o and lse, and adds to the gradients. */
static void reference(const struct problem *p, struct doubles *d)
{
    const int64_t n_q = p->cu_q[p->n_seqs], n_spans = p->n_spans ? p->n_spans : p->n_seqs;
    struct s2s_span spans[MAX_SPANS];
    int32_t groups[MAX_SPANS + 1];
    double z[4096];
    find_spans(spans, groups, p);
    for (int64_t i = 0; i < n_q * p->n_heads * p->dim; i++)
        d->o[i] = 0;
    for (int64_t i = 0; i < n_q * p->n_heads; i++)
        d->lse[i] = -INFINITY;
    for (const struct s2s_span *s = spans; s < spans + n_spans; s++)
        for (int64_t i = 0; i < s->nq * p->n_heads; i++) {
            const int64_t row = i / p->n_heads, h = i % p->n_heads;
            const double lse = probabilities(p, d, s, row, h, z);
            if (lse == -INFINITY)
                continue;
            d->lse[(s->q0 + row) * p->n_heads + h] = lse;
            reference_query(p, d, s, row, h, z);
        }
}

static double *widen(const float *x, int64_t n)
{
    double *y = s2s_xcalloc((size_t)n + 1, sizeof *y);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i];
    return y;
}

/* Buffers of one problem: x[0..2] q k v, x[3] o, x[4] dO, x[5] lse; g gradients of q k v. */
struct run {
    const struct problem *p;
    int64_t n[3], width[3];
    float *x[6], *g[3];
    struct s2s_span spans[MAX_SPANS];
    int32_t groups[MAX_SPANS + 1];
    bool partial; /* of the backward */
};

static void set_up(struct run *r, const struct problem *p)
{
    const int64_t n_q = p->cu_q[p->n_seqs], n_k = p->cu_k[p->n_seqs];
    *r = (struct run){
        .p = p,
        .n = {n_q, n_k, n_k},
        .width = {p->n_heads * p->dim, p->n_kv_heads * p->dim, p->n_kv_heads * p->dim}};
    for (int i = 0; i < 3; i++) {
        r->x[i] = values(r->n[i], r->width[i], r->width[i], (uint64_t)i + 1);
        r->g[i] = values(r->n[i], r->width[i], r->width[i], (uint64_t)i + 11);
    }
    r->x[3] = values(n_q, r->width[0], r->width[0], 4);
    r->x[4] = values(n_q, r->width[0], r->width[0], 5);
    r->x[5] = values(n_q, p->n_heads, p->n_heads, 6);
}

/* Arguments over copies on the device, good for one call. */
static struct s2s_k_attention arguments(struct run *r)
{
    const struct problem *p = r->p;
    struct s2s_k_attention args = {.q = mat(r->x[0], r->width[0]),
                                   .k = mat(r->x[1], r->width[1]),
                                   .v = mat(r->x[2], r->width[2]),
                                   .o = mat(r->x[3], r->width[0]),
                                   .lse = vec(r->x[5]),
                                   .n_spans = p->n_spans ? p->n_spans : p->n_seqs,
                                   .n_groups = find_spans(r->spans, r->groups, p),
                                   .n_q = r->n[0],
                                   .n_k = r->n[1],
                                   .n_heads = p->n_heads,
                                   .n_kv_heads = p->n_kv_heads,
                                   .dim = p->dim,
                                   .window = p->window,
                                   .scale = scale_of(p)};
    for (int64_t i = 0; i < args.n_spans; i++) {
        args.max_q = r->spans[i].nq > args.max_q ? r->spans[i].nq : args.max_q;
        args.max_k = r->spans[i].nk > args.max_k ? r->spans[i].nk : args.max_k;
    }
    args.spans = in(r->spans, sizeof r->spans);
    args.groups = in(r->groups, sizeof r->groups);
    if (share > 0) {
        static int32_t places[N_PLACES];
        for (int64_t i = 0; i < args.n_k; i++)
            places[i] = place(i);
        args.draw = draw_of(args.n_q, KEY, share);
        args.k_at = in(places, (size_t)args.n_k * sizeof *places);
        args.first_head = FIRST_HEAD;
    }
    return args;
}

static void forward(struct run *r)
{
    struct s2s_k_attention args = arguments(r);
    args.workspace = work(k->attention_workspace(&queue, &args));
    k->attention(&queue, &args);
    done();
}

static void backward(struct run *r, bool accumulate)
{
    struct s2s_k_attention_backward args = {.forward = arguments(r),
                                            .d_o = mat(r->x[4], r->width[0]),
                                            .dq = mat(r->g[0], r->width[0]),
                                            .dk = mat(r->g[1], r->width[1]),
                                            .dv = mat(r->g[2], r->width[2]),
                                            .accumulate_dq = accumulate,
                                            .accumulate_dk = accumulate,
                                            .accumulate_dv = accumulate,
                                            .partial = r->partial};
    args.workspace = work(k->attention_backward_workspace(&queue, &args));
    k->attention_backward(&queue, &args);
    done();
}

static void tear_down(struct run *r)
{
    for (int i = 0; i < 6; i++)
        free(r->x[i]);
    for (int i = 0; i < 3; i++)
        free(r->g[i]);
}

static struct doubles doubles_of(const struct run *r, bool accumulate)
{
    const int64_t n_o = r->n[0] * r->width[0];
    struct doubles d = {.o = widen(r->x[3], n_o),
                        .lse = widen(r->x[5], r->n[0] * r->p->n_heads),
                        .d_o = widen(r->x[4], n_o),
                        .scale = (double)scale_of(r->p)};
    for (int j = 0; j < 3; j++) {
        const int64_t n = r->n[j] * r->width[j];
        d.x[j] = widen(r->x[j], n);
        d.g[j] = widen(r->g[j], n);
        for (int64_t i = 0; !accumulate && i < n; i++)
            d.g[j][i] = 0;
    }
    return d;
}

static void free_doubles(struct doubles *d)
{
    for (int j = 0; j < 3; j++) {
        free(d->x[j]);
        free(d->g[j]);
    }
    free(d->o);
    free(d->lse);
    free(d->d_o);
}

static void compare_with_definition(struct run *r, struct doubles *d)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    /* o is rounded before rowsum(dO o); GPUs multiply with P and dS as BF16, too */
    const bool on_gpu = strcmp(k->name, "emu") == 0 || strcmp(k->name, "cuda") == 0;
    const double most = (on_gpu ? 2.5 : 2) * BF16_TOLERANCE;
    reference(r->p, d);
    close_to("o", r->x[3], d->o, r->n[0], r->width[0], r->width[0], 3e-6);
    close_to("lse", r->x[5], d->lse, r->n[0], r->p->n_heads, r->p->n_heads, 3e-6);
    for (int j = 0; j < 3; j++)
        close_to(names[j], r->g[j], d->g[j], r->n[j], r->width[j], r->width[j],
                 is_bf16 ? most : 5e-6);
}

static void forward_and_gradients_agree_with_the_definition(void **state)
{
    for (size_t i = 0; i < N_PROBLEMS; i++) {
        if (is_left_out(i, 3))
            continue;
        struct run r;
        set_up(&r, &problems[i]);
        struct doubles d = doubles_of(&r, i % 2);
        forward(&r);
        backward(&r, i % 2);
        compare_with_definition(&r, &d);
        free_doubles(&d);
        tear_down(&r);
    }
}

/* sum(dO . o) */
static double loss_of(const struct run *r, struct doubles *d)
{
    double sum = 0;
    reference(r->p, d);
    for (int64_t i = 0; i < r->n[0] * r->width[0]; i++)
        sum += d->o[i] * d->d_o[i];
    return sum;
}

static void the_references_gradients_are_differences(void **state)
{
    static const int some[] = {0, 6, 11, 12};
    const double h = 1e-5;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        struct run r;
        set_up(&r, &problems[some[i]]);
        struct doubles d = doubles_of(&r, false), moved = doubles_of(&r, false);
        reference(r.p, &d);
        for (int j = 0; j < 3; j++)
            for (int64_t e = 0; e < r.n[j] * r.width[j]; e += 5) {
                const double was = moved.x[j][e];
                moved.x[j][e] = was + h;
                const double up = loss_of(&r, &moved);
                moved.x[j][e] = was - h;
                const double got = (up - loss_of(&r, &moved)) / (2 * h);
                moved.x[j][e] = was;
                if (!(fabs(got - d.g[j][e]) <= 1e-6 * (1 + fabs(got))))
                    fail_msg("problem %d, input %d, element %d: %g is not %g", some[i], j, (int)e,
                             d.g[j][e], got);
            }
        free_doubles(&d);
        free_doubles(&moved);
        tear_down(&r);
    }
}

static void what_is_left_out_is_left_out_of_gradients_too(void **state)
{
    share = 0.3f;
    forward_and_gradients_agree_with_the_definition(state);
    the_references_gradients_are_differences(state);
    share = 0;
}

/* The other bytes of gradients without accumulation: what was there does not matter. */
static void rows_in_no_span_get_nothing(void **state)
{
    const struct problem *p = &problems[12];
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        struct run r;
        set_up(&r, p);
        forward(&r);
        for (int j = 0; j < 3; j++)
            for (int64_t i = 0; i < r.n[j] * r.width[j]; i++)
                r.g[j][i] = accumulate ? 7 : NAN;
        backward(&r, accumulate);
        static const int rows[3][4] = {{0, 19, 26, 39}, {4, 13, 22, 48}, {4, 13, 22, 48}};
        for (int j = 0; j < 3; j++)
            for (int i = 0; i < 4; i++)
                assert_true(r.g[j][rows[j][i] * r.width[j]] == (accumulate ? 7 : 0));
        tear_down(&r);
    }
}

/* Sequences that are packed, empty ones at the end, and a tail that belongs to none. */
static const struct problem padded[] = {
    {.n_heads = 2,
     .n_kv_heads = 1,
     .dim = 64,
     .cu_q = {60},
     .cu_k = {70},
     .n_spans = 4,
     .spans = {{0, 37, 0, 37, 0}, {37, 8, 37, 8, 0}, {45, 0, 45, 0, 0}, {45, 0, 45, 0, 0}}},
    {.n_heads = 1,
     .n_kv_heads = 1,
     .dim = 20,
     .cu_q = {30},
     .cu_k = {50},
     .n_spans = 2,
     .spans = {{0, 21, 0, 30, S2S_SPAN_ALL}, {21, 0, 30, 0, 0}}},
};

/* All that a call gives is the same where the tail of what it takes is NaN. */
static void the_tail_of_a_pack_is_not_read(void **state)
{
    for (size_t i = 0; i < sizeof padded / sizeof *padded; i++) {
        const struct problem *p = &padded[i];
        const struct s2s_span *last = &p->spans[p->n_spans - 1];
        const int64_t ends[3] = {last->q0, last->k0, last->k0};
        struct run r[2];
        for (int dirty = 0; dirty < 2; dirty++) {
            set_up(&r[dirty], p);
            for (int j = 0; j < 5 && dirty; j++) { /* q, k, v and dO */
                const int of = j < 3 ? j : 0;
                for (int64_t at = ends[of] * r->width[of]; at < r->n[of] * r->width[of]; at++)
                    r[dirty].x[j][at] = NAN;
            }
            forward(&r[dirty]);
            backward(&r[dirty], false);
        }
        assert_memory_equal(r[0].x[3], r[1].x[3], (size_t)(r->n[0] * r->width[0]) * sizeof(float));
        for (int j = 0; j < 3; j++)
            assert_memory_equal(r[0].g[j], r[1].g[j],
                                (size_t)(r->n[j] * r->width[j]) * sizeof(float));
        tear_down(&r[0]);
        tear_down(&r[1]);
    }
}

/* Rank `rank` of `cp` holds chunks rank and 2 cp - 1 - rank of each sequence, and all keys. */
static void take_chunks(struct problem *part, const struct problem *whole, int cp, int rank,
                        int32_t *rows)
{
    int32_t n = 0;
    *part = *whole;
    part->n_seqs = part->n_spans = 0;
    for (int64_t s = 0; s < whole->n_seqs; s++) {
        const int32_t size = (whole->cu_q[s + 1] - whole->cu_q[s]) / (2 * cp);
        for (int half = 0; half < 2; half++) {
            const int32_t chunk = half ? 2 * cp - 1 - rank : rank;
            part->spans[part->n_spans++] =
                (struct s2s_span){n, size, whole->cu_k[s], (chunk + 1) * size, chunk * size};
            for (int32_t i = 0; i < size; i++)
                rows[n++] = whole->cu_q[s] + chunk * size + i;
        }
    }
    part->cu_q[0] = n;
    part->cu_k[0] = whole->cu_k[whole->n_seqs];
}

static void gather(float *dst, const float *src, const int32_t *rows, int64_t n, int64_t width)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(dst + i * width, src + rows[i] * width, (size_t)width * sizeof *dst);
}

static void compare_rows(const char *what, const float *part, const float *whole,
                         const int32_t *rows, int64_t n, int64_t width)
{
    float *host = s2s_xmalloc((size_t)(n * width) * sizeof *host);
    gather(host, whole, rows, n, width);
    double *want = widen(host, n * width);
    close_to(what, part, want, n, width, width, 2e-6);
    free(want);
    free(host);
}

/* One rank against the whole; adds its gradients of keys and values. */
static void check_rank(struct run *whole, int cp, int rank, double *dk, double *dv)
{
    struct problem p;
    struct run r;
    int32_t rows[512];
    take_chunks(&p, whole->p, cp, rank, rows);
    set_up(&r, &p);
    gather(r.x[0], whole->x[0], rows, r.n[0], r.width[0]);
    gather(r.x[4], whole->x[4], rows, r.n[0], r.width[0]);
    forward(&r);
    backward(&r, false);
    compare_rows("o", r.x[3], whole->x[3], rows, r.n[0], r.width[0]);
    compare_rows("lse", r.x[5], whole->x[5], rows, r.n[0], p.n_heads);
    compare_rows("dq", r.g[0], whole->g[0], rows, r.n[0], r.width[0]);
    for (int64_t i = 0; i < r.n[1] * r.width[1]; i++) {
        dk[i] += r.g[1][i];
        dv[i] += r.g[2][i];
    }
    tear_down(&r);
}

/* Few heads, so that backward goes by blocks of keys, and enough, so that it goes by groups; the
 * last one is little work for the emulator. */
static void chunks_of_ranks_make_up_the_whole(void **state)
{
    static const struct problem wholes[] = {{.n_heads = 4,
                                             .n_kv_heads = 2,
                                             .dim = 8,
                                             .n_seqs = 3,
                                             .cu_q = {0, 320, 344, 352},
                                             .cu_k = {0, 320, 344, 352},
                                             .causal = true},
                                            {.n_heads = 16,
                                             .n_kv_heads = 8,
                                             .dim = 4,
                                             .n_seqs = 2,
                                             .cu_q = {0, 160, 184},
                                             .cu_k = {0, 160, 184},
                                             .causal = true},
                                            {.n_heads = 2,
                                             .n_kv_heads = 1,
                                             .dim = 8,
                                             .n_seqs = 2,
                                             .cu_q = {0, 96, 112},
                                             .cu_k = {0, 96, 112},
                                             .causal = true}};
    for (int w = 0; w < 3; w++)
        for (int cp = 2; cp <= 4; cp *= 2) {
            if (is_left_out(w == 2 ? 0 : 1, 2))
                continue;
            struct run r;
            set_up(&r, &wholes[w]);
            forward(&r);
            backward(&r, false);
            const int64_t n = r.n[1] * r.width[1];
            double *dk = s2s_xcalloc((size_t)n, sizeof *dk), *dv = s2s_xcalloc((size_t)n, 8);
            for (int rank = 0; rank < cp; rank++)
                check_rank(&r, cp, rank, dk, dv);
            close_to("dk", r.g[1], dk, r.n[1], r.width[1], r.width[1], 3e-6);
            close_to("dv", r.g[2], dv, r.n[2], r.width[2], r.width[2], 3e-6);
            free(dk);
            free(dv);
            tear_down(&r);
        }
}

/* What r[0] saw, and r[1], as one, in r[0]. */
static void merge(struct run *r)
{
    const struct problem *p = r[0].p;
    const struct s2s_k_attention_merge args = {.o = mat(r[0].x[3], r[0].width[0]),
                                               .part = mat(r[1].x[3], r[0].width[0]),
                                               .lse = vec(r[0].x[5]),
                                               .part_lse = vec(r[1].x[5]),
                                               .n_q = r[0].n[0],
                                               .n_heads = p->n_heads,
                                               .dim = p->dim};
    k->attention_merge(&queue, &args);
    done();
}

/* Gradients of both parts, from what the whole gave, are those of the whole. */
static void compare_backward(struct run *parts, const struct run *whole)
{
    for (int i = 0; i < 2; i++) {
        for (int j = 3; j < 6; j += 2)
            memcpy(parts[i].x[j], whole->x[j],
                   (size_t)(whole->n[0] * (j == 3 ? whole->width[0] : whole->p->n_heads)) * 4);
        parts[i].partial = true;
        backward(&parts[i], false);
    }
    for (int j = 0; j < 3; j++) {
        const int64_t n = whole->n[j], width = whole->width[j];
        double *want = widen(whole->g[j], n * width);
        for (int64_t i = 0; i < n * width; i++)
            parts[0].g[j][i] += parts[1].g[j][i];
        close_to("gradient", parts[0].g[j], want, n, width, width, 3e-6);
        free(want);
    }
}

/* Few heads and many: backward by blocks of keys, and by groups. The first 70 of the queries see
 * none of the second keys, whichever comes first. */
static void keys_in_two_parts_merge_to_the_whole(void **state)
{
    for (int i = 0; i < 4; i++) {
        if (is_left_out((size_t)i, 4))
            continue;
        const struct problem whole = {.n_heads = i / 2 ? 32 : 4,
                                      .n_kv_heads = i / 2 ? 16 : 2,
                                      .dim = 4,
                                      .cu_q = {150},
                                      .cu_k = {150},
                                      .n_spans = 1,
                                      .spans = {{0, 150, 0, 150, 0}}};
        struct problem halves[2] = {whole, whole};
        halves[i % 2].spans[0] = (struct s2s_span){0, 150, 0, 70, 0};
        halves[1 - i % 2].spans[0] = (struct s2s_span){0, 150, 70, 80, -70};
        struct run all, parts[2];
        set_up(&all, &whole);
        forward(&all);
        backward(&all, false);
        for (int h = 0; h < 2; h++) {
            set_up(&parts[h], &halves[h]);
            forward(&parts[h]);
        }
        merge(parts);
        double *o = widen(all.x[3], all.n[0] * all.width[0]);
        double *lse = widen(all.x[5], all.n[0] * whole.n_heads);
        close_to("o", parts[0].x[3], o, all.n[0], all.width[0], all.width[0], 2e-6);
        close_to("lse", parts[0].x[5], lse, all.n[0], whole.n_heads, whole.n_heads, 2e-6);
        compare_backward(parts, &all);
        free(o);
        free(lse);
        tear_down(&parts[0]);
        tear_down(&parts[1]);
        tear_down(&all);
    }
}

static void spans_with_common_keys_are_a_group(void **state)
{
    struct s2s_span spans[] = {{0, 1, 40, 5, 0},  {1, 1, 0, 10, 0}, {2, 1, 20, 0, 0},
                               {3, 1, 5, 10, 0},  {4, 1, 15, 5, 0}, {5, 1, 0, 2, 0},
                               {6, 1, 44, 10, 0}, {7, 1, 9, 1, 0}};
    static const int32_t order[] = {1, 5, 3, 7, 4, 2, 0, 6}, starts[] = {0, 4, 5, 6, 8};
    int32_t groups[9];
    assert_int_equal(s2s_spans_group(groups, spans, 8), 4);
    for (int i = 0; i < 8; i++)
        assert_int_equal(spans[i].q0, order[i]);
    assert_memory_equal(groups, starts, sizeof starts);
    assert_int_equal(s2s_spans_group(groups, spans, 0), 0);
    assert_int_equal(groups[0], 0);
}

static void threads_do_not_change_a_byte(void **state)
{
    struct run r[2];
    for (int i = 0; i < 2; i++) {
        queue.lanes = i ? 3 : 1;
        set_up(&r[i], &problems[is_left_out(1, 2) ? 0 : 2]);
        forward(&r[i]);
        backward(&r[i], false);
    }
    assert_memory_equal(r[0].x[3], r[1].x[3], (size_t)(r[0].n[0] * r[0].width[0]) * sizeof(float));
    for (int j = 0; j < 3; j++)
        assert_memory_equal(r[0].g[j], r[1].g[j],
                            (size_t)(r[0].n[j] * r[0].width[j]) * sizeof(float));
    tear_down(&r[0]);
    tear_down(&r[1]);
}

/* ---- Hopper's products and copies ---- */

/* clang-format off */
static const struct problem of_hopper[] = {
    /* a length of 1, an empty one, several tiles, an empty one at the end; of all three widths */
    {.n_heads = 2, .n_kv_heads = 1, .dim = 64, .n_seqs = 5, .cu_q = {0, 270, 271, 271, 410, 410}, .cu_k = {0, 270, 271, 271, 410, 410}, .causal = true},
    {.n_heads = 2, .n_kv_heads = 2, .dim = 128, .n_seqs = 2, .cu_q = {0, 130, 140}, .cu_k = {0, 400, 500}, .causal = false},
    {.n_heads = 2, .n_kv_heads = 1, .dim = 256, .n_seqs = 2, .cu_q = {0, 150, 160}, .cu_k = {0, 150, 160}, .causal = true},
    /* rows in no span, whose numbers are none, before, between and after; windows; widths of parts of a tile */
    {.n_heads = 3, .n_kv_heads = 1, .dim = 72, .window = 150, .cu_q = {345}, .cu_k = {480}, .n_spans = 3,
     .spans = {{5, 131, 10, 300, 160}, {140, 1, 320, 0, 0}, {143, 200, 325, 129, -60}}},
    {.n_heads = 2, .n_kv_heads = 1, .dim = 24, .cu_q = {150}, .cu_k = {600}, .n_spans = 2, .spans = {{3, 129, 300, 257, S2S_SPAN_ALL}, {140, 9, 20, 137, 128}}},
    {.n_heads = 1, .n_kv_heads = 1, .dim = 200, .cu_q = {140}, .cu_k = {300}, .n_spans = 1, .spans = {{1, 130, 7, 270, 100}}},
};
/* clang-format on */

/* Rows of q, k, v and dO that stand in no span become NaN. */
static void poison(struct run *r)
{
    const struct problem *p = r->p;
    for (int j = 0; j < 5; j++)
        for (int64_t row = 0; p->n_spans && j != 3 && row < r->n[j % 4]; row++) {
            bool stands = false;
            for (const struct s2s_span *s = p->spans; s < p->spans + p->n_spans; s++)
                stands |= j % 4 == 0 ? row >= s->q0 && row < s->q0 + s->nq
                                     : row >= s->k0 && row < s->k0 + s->nk;
            for (int64_t c = 0; !stands && c < r->width[j % 4]; c++)
                r->x[j][row * r->width[j % 4] + c] = NAN;
        }
}

/* On the emulator products are counted; a GPU is believed. */
static uint64_t products_so_far(void)
{
    static uint64_t believed;
    void *lib = dlopen("libs2s-emu.so", RTLD_NOW | RTLD_NOLOAD);
    uint64_t (*count)(void);
    if (!lib)
        return believed++;
    *(void **)&count = dlsym(lib, "emu_products_so_far");
    dlclose(lib);
    return count();
}

/* Forward and backward with Hopper's products, and nothing but them for heads of up to 128. */
static void run_on_hopper(struct run *r, const struct problem *p, bool accumulate)
{
    const uint64_t before = products_so_far();
    set_up(r, p);
    poison(r);
    forward(r);
    const uint64_t between = products_so_far();
    assert_true(between > before);
    backward(r, accumulate);
    assert_true(p->dim > 128 || products_so_far() > between);
}

/* Another order of threads, copies and products gives the same bytes. */
static void hopper_multiplies_as_the_definition_says(void **state)
{
    for (size_t i = 0; i < sizeof of_hopper / sizeof *of_hopper; i++) {
        struct run r[2];
        const int times = is_left_out(i, 3) ? 1 : 2;
        struct doubles d;
        set_up(&r[0], &of_hopper[i]);
        d = doubles_of(&r[0], i % 2);
        tear_down(&r[0]);
        for (int again = 0; again < times; again++) {
            setenv("S2S_EMU_SEED", again ? "7" : "3", 1);
            run_on_hopper(&r[again], &of_hopper[i], i % 2);
        }
        unsetenv("S2S_EMU_SEED");
        compare_with_definition(&r[0], &d);
        free_doubles(&d);
        for (int again = 0; again < times; again++) {
            const size_t bytes = (size_t)(r[0].n[0] * r[0].width[0]) * sizeof(float);
            assert_memory_equal(r[0].x[3], r[again].x[3], bytes);
            for (int j = 0; j < 3; j++)
                assert_memory_equal(r[0].g[j], r[again].g[j],
                                    (size_t)(r[0].n[j] * r[0].width[j]) * sizeof(float));
        }
        for (int again = 0; again < times; again++)
            tear_down(&r[again]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_and_gradients_agree_with_the_definition),
        cmocka_unit_test(the_references_gradients_are_differences),
        cmocka_unit_test(what_is_left_out_is_left_out_of_gradients_too),
        cmocka_unit_test(rows_in_no_span_get_nothing),
        cmocka_unit_test(the_tail_of_a_pack_is_not_read),
        cmocka_unit_test(chunks_of_ranks_make_up_the_whole),
        cmocka_unit_test(keys_in_two_parts_merge_to_the_whole),
        cmocka_unit_test(spans_with_common_keys_are_a_group),
        cmocka_unit_test(threads_do_not_change_a_byte),
    };
    const struct CMUnitTest on_hopper[] = {
        cmocka_unit_test(hopper_multiplies_as_the_definition_says),
        cmocka_unit_test(forward_and_gradients_agree_with_the_definition),
        cmocka_unit_test(rows_in_no_span_get_nothing),
        cmocka_unit_test(the_tail_of_a_pack_is_not_read),
        cmocka_unit_test(spans_with_common_keys_are_a_group),
    };
    return run_on_tables_and_types(tests) + run_emulated("90", on_hopper);
}
