/*
 * Routers: choice, weights, order by expert, losses of balance, and their gradients, against plain
 * sums in double and central differences of them.
 */
#include "tests/unit/kernels/kernel_test.h"

enum { MAX_E = 360, MAX_K = 8, MAX_SEGMENTS = 3 };

struct routing {
    int64_t n, e, k, groups, chosen_groups, group_best;
    enum s2s_score score;
    bool bias, normalise;
    float scale;
};

static const struct routing routings[] = {
    {9, 8, 2, 0, 0, 0, S2S_SCORE_SOFTMAX, false, true, 1},
    {9, 8, 2, 0, 0, 0, S2S_SCORE_SOFTMAX, false, false, 1},
    {130, 64, 8, 0, 0, 0, S2S_SCORE_SOFTMAX, true, true, 1},
    {300, 64, 6, 8, 4, 2, S2S_SCORE_SIGMOID, true, true, 2.5f},
    {7, 12, 4, 3, 1, 4, S2S_SCORE_SIGMOID, true, true, 1},
    {5, 8, 1, 0, 0, 0, S2S_SCORE_SIGMOID, false, false, 1},
    {3, 1, 1, 0, 0, 0, S2S_SCORE_SOFTMAX, false, true, 1},
    {1, 5, 5, 0, 0, 0, S2S_SCORE_SIGMOID, true, true, 1},
    {0, 8, 2, 0, 0, 0, S2S_SCORE_SOFTMAX, false, true, 1},
    {2, 360, 8, 45, 40, 3, S2S_SCORE_SIGMOID, true, true, 1},
};
enum { N_ROUTINGS = sizeof routings / sizeof *routings };

/* ---- in double ---- */

static void ref_scores(double *s, const double *l, int64_t n, enum s2s_score score)
{
    double sum = 0;
    for (int64_t e = 0; e < n; e++)
        sum += exp(l[e]);
    for (int64_t e = 0; e < n; e++)
        s[e] = score == S2S_SCORE_SOFTMAX ? exp(l[e]) / sum : 1 / (1 + exp(-l[e]));
}

/* How many of x[0..n) stand before x[i]: larger ones, and equal ones with a lower index. */
static int64_t ref_rank(const double *x, int64_t n, int64_t i)
{
    int64_t before = 0;
    for (int64_t j = 0; j < n; j++)
        before += x[j] > x[i] || (x[j] == x[i] && j < i);
    return before;
}

static void ref_choose(int32_t *experts, const double *s, const float *bias,
                       const struct routing *c)
{
    const int64_t width = c->groups ? c->e / c->groups : c->e;
    double b[MAX_E], group[MAX_E] = {0};
    for (int64_t e = 0; e < c->e; e++)
        b[e] = s[e] + (c->bias ? bias[e] : 0);
    for (int64_t e = 0; e < c->e && c->groups; e++)
        if (ref_rank(b + e / width * width, width, e % width) < c->group_best)
            group[e / width] += b[e];
    for (int64_t e = 0; e < c->e && c->groups; e++)
        if (ref_rank(group, c->groups, e / width) >= c->chosen_groups)
            b[e] = -INFINITY;
    for (int64_t e = 0; e < c->e; e++)
        if (ref_rank(b, c->e, e) < c->k)
            experts[ref_rank(b, c->e, e)] = (int32_t)e;
}

static void ref_weights(double *w, const double *l, const int32_t *experts, const struct routing *c)
{
    double s[MAX_E], sum = 0;
    ref_scores(s, l, c->e, c->score);
    for (int64_t j = 0; j < c->k; j++)
        sum += s[experts[j]];
    for (int64_t j = 0; j < c->k; j++)
        w[j] = c->scale * s[experts[j]] / (c->normalise ? sum : 1);
}

/* ---- route ---- */

static struct s2s_k_route route_args(const struct routing *c, float *logits, int64_t stride,
                                     float *bias, int32_t *experts, float *weights)
{
    return (struct s2s_k_route){.logits = mat(logits, stride),
                                .bias = c->bias ? vec(bias) : NULL,
                                .experts = vec(experts),
                                .weights = vec(weights),
                                .n = c->n,
                                .n_experts = c->e,
                                .n_chosen = c->k,
                                .n_groups = c->groups,
                                .n_chosen_groups = c->chosen_groups,
                                .n_group_best = c->group_best,
                                .score = c->score,
                                .normalise = c->normalise,
                                .scale = c->scale};
}

static void the_best_scores_choose_and_weigh(void **state)
{
    for (int i = 0; i < N_ROUTINGS; i++) {
        const struct routing *c = &routings[i];
        const int64_t stride = c->e + 3;
        float *logits = values(c->n, c->e, stride, 1), *bias = values(1, c->e, c->e, 2);
        float *weights = values(c->n, c->k, c->k, 3);
        int32_t *experts = s2s_xcalloc((size_t)(c->n * c->k) + 1, sizeof *experts);
        double *want = s2s_xcalloc((size_t)(c->n * c->k) + 1, sizeof *want);
        const struct s2s_k_route args = route_args(c, logits, stride, bias, experts, weights);
        k->route(&queue, &args);
        done();
        for (int64_t r = 0; r < c->n; r++) {
            double l[MAX_E], s[MAX_E];
            int32_t chosen[MAX_K];
            for (int64_t e = 0; e < c->e; e++)
                l[e] = logits[r * stride + e];
            ref_scores(s, l, c->e, c->score);
            ref_choose(chosen, s, bias, c);
            assert_memory_equal(experts + r * c->k, chosen, (size_t)c->k * sizeof *chosen);
            ref_weights(want + r * c->k, l, chosen, c);
        }
        close_to("weights", weights, want, c->n, c->k, c->k, 1e-6);
        free(logits);
        free(bias);
        free(weights);
        free(experts);
        free(want);
    }
}

static void of_equal_scores_the_first_experts_are_taken(void **state)
{
    const struct routing c = {2, 6, 3, 3, 2, 2, S2S_SCORE_SIGMOID, false, true, 1};
    float *logits = s2s_xcalloc(12, sizeof *logits), *weights = values(2, 3, 3, 1);
    int32_t *experts = s2s_xcalloc(6, sizeof *experts);
    static const int32_t want[] = {0, 1, 2, 5, 0, 1};
    logits[6 + 5] = 1; /* the second row: group 2, then group 0 of the two that are equal */
    const struct s2s_k_route args = route_args(&c, logits, 6, NULL, experts, weights);
    k->route(&queue, &args);
    done();
    assert_memory_equal(experts, want, sizeof want);
    free(logits);
    free(weights);
    free(experts);
}

/* d(sum of dw w)/dl by differences, the choice held */
static double ref_route_slope(const double *l0, int64_t at, const int32_t *experts, const float *dw,
                              const struct routing *c)
{
    const double h = 1e-5;
    double l[MAX_E], w[MAX_K], slope = 0;
    memcpy(l, l0, sizeof l);
    for (int side = -1; side <= 1; side += 2) {
        l[at] = l0[at] + side * h;
        ref_weights(w, l, experts, c);
        for (int64_t j = 0; j < c->k; j++)
            slope += side * dw[j] * w[j] / (2 * h);
    }
    return slope;
}

static void weights_pass_back_to_logits(void **state)
{
    for (int i = 0; i < 2 * N_ROUTINGS; i++) {
        const struct routing *c = &routings[i / 2];
        const bool accumulate = i % 2;
        const int64_t stride = c->e + 3;
        float *logits = values(c->n, c->e, stride, 1), *bias = values(1, c->e, c->e, 2);
        float *weights = values(c->n, c->k, c->k, 3), *dw = values(c->n, c->k, c->k, 4);
        float *dl = values(c->n, c->e, stride, 5);
        int32_t *experts = s2s_xcalloc((size_t)(c->n * c->k) + 1, sizeof *experts);
        double *want = s2s_xcalloc((size_t)(c->n * c->e) + 1, sizeof *want);
        struct s2s_k_route_backward args = {
            .forward = route_args(c, logits, stride, bias, experts, weights)};
        k->route(&queue, &args.forward);
        done();
        for (int64_t r = 0; r < c->n; r++) {
            double l[MAX_E];
            for (int64_t e = 0; e < c->e; e++)
                l[e] = logits[r * stride + e];
            for (int64_t e = 0; e < c->e; e++)
                want[r * c->e + e] = (accumulate ? dl[r * stride + e] : 0) +
                                     ref_route_slope(l, e, experts + r * c->k, dw + r * c->k, c);
        }
        args.forward = route_args(c, logits, stride, bias, experts, weights);
        args.dweights = vec(dw);
        args.dlogits = mat(dl, stride);
        args.accumulate = accumulate;
        k->route_backward(&queue, &args);
        done();
        close_to("dlogits", dl, want, c->n, c->e, stride, 2e-6);
        free(logits);
        free(bias);
        free(weights);
        free(dw);
        free(dl);
        free(experts);
        free(want);
    }
}

/* ---- order ---- */

static void check_order(int64_t rows, int64_t n_experts, int64_t n_chosen)
{
    const int64_t n = rows * n_chosen;
    int32_t *experts = s2s_xcalloc((size_t)n + 1, sizeof *experts);
    int32_t *places = s2s_xcalloc((size_t)n + 1, sizeof *places);
    int32_t *from = s2s_xcalloc((size_t)n + 1, sizeof *from);
    int32_t *offsets = s2s_xcalloc((size_t)n_experts + 1, sizeof *offsets), at = 0;
    for (int64_t i = 0; i < n; i++) { /* the last one, the first one, and every third between */
        const int64_t r = (int64_t)s2s_rng_below(9, (uint64_t)i, (uint64_t)n_experts);
        experts[i] = (int32_t)(i % 3 == 0 ? n_experts - 1 : r / 3 * 3);
    }
    struct s2s_k_expert_order args = {.experts = vec(experts),
                                      .places = vec(places),
                                      .rows = vec(from),
                                      .offsets = vec(offsets),
                                      .n = n,
                                      .n_experts = n_experts,
                                      .n_chosen = n_chosen};
    args.workspace = work(k->expert_order_workspace(&queue, &args));
    k->expert_order(&queue, &args);
    done();
    for (int32_t e = 0; e < n_experts; e++) {
        assert_int_equal(offsets[e], at);
        for (int64_t i = 0; i < n; i++)
            if (experts[i] == e) {
                assert_int_equal(places[i], at);
                assert_int_equal(from[at], i / n_chosen);
                at++;
            }
    }
    assert_int_equal(offsets[n_experts], n);
    free(experts);
    free(places);
    free(from);
    free(offsets);
}

static void choices_are_sorted_by_expert_and_stay_in_order(void **state)
{
    for (int64_t rows = 0; rows < 40; rows += 13)
        check_order(rows, 5, 2);
    check_order(1031, 40, 3);
    check_order(70, S2S_MAX_EXPERTS, 8);
    check_order(40, 1, 1);
}

/* ---- balance ---- */

struct balance {
    int64_t n, e, k, segments;
    enum s2s_score score;
    float n_rows;
};

static const struct balance balances[] = {
    {24, 8, 2, 1, S2S_SCORE_SIGMOID, 0},   {24, 8, 2, 3, S2S_SCORE_SIGMOID, 0},
    {150, 32, 6, 2, S2S_SCORE_SOFTMAX, 0}, {21, 8, 2, 3, S2S_SCORE_SIGMOID, 5},
    {5, 3, 3, 2, S2S_SCORE_SOFTMAX, 0},    {0, 8, 2, 2, S2S_SCORE_SOFTMAX, 0},
};
enum { N_BALANCES = sizeof balances / sizeof *balances };

/* Segment 1 has no rows at all, where there are three; some rows count nowhere. */
static int32_t segment_of(const struct balance *c, int64_t r)
{
    if (c->segments == 1)
        return 0;
    return r % 5 == 4 ? -1 : c->segments == 3 ? (r % 3 ? 2 : 0) : (int32_t)(r % 2);
}

/* Of rows [first, end); counts: NULL where they are not wanted, as they take long. */
static void ref_load(double *counts, double *probs, double *square, const double *l,
                     const struct balance *c, int64_t first, int64_t end)
{
    if (counts)
        memset(counts, 0, (size_t)(c->segments * c->e) * sizeof *counts);
    memset(probs, 0, (size_t)(c->segments * c->e) * sizeof *probs);
    *square = 0;
    for (int64_t r = first; r < end; r++) {
        double s[MAX_E], sum = 0, exps = 0;
        const int64_t segment = segment_of(c, r);
        if (segment < 0)
            continue;
        ref_scores(s, l + r * c->e, c->e, c->score);
        for (int64_t e = 0; e < c->e; e++) {
            sum += s[e];
            exps += exp(l[r * c->e + e]);
        }
        for (int64_t e = 0; e < c->e; e++) {
            if (counts)
                counts[segment * c->e + e] += ref_rank(s, c->e, e) < c->k;
            probs[segment * c->e + e] += s[e] / sum;
        }
        *square += log(exps) * log(exps);
    }
}

/* What rows [first, end) add to the two losses, of given counts. */
static void ref_losses(double *losses, const double *l, const double *counts,
                       const struct balance *c, int64_t first, int64_t end)
{
    double probs[MAX_SEGMENTS * MAX_E], square, all = 0, used = 0;
    double rows[MAX_SEGMENTS] = {0};
    ref_load(NULL, probs, &square, l, c, first, end);
    for (int64_t i = 0; i < c->segments * c->e; i++)
        rows[i / c->e] += counts[i] / (double)c->k;
    for (int64_t s = 0; s < c->segments; s++) {
        all += rows[s];
        used += rows[s] > 0;
    }
    losses[0] = 0;
    losses[1] = square;
    for (int64_t i = 0; i < c->segments * c->e; i++) {
        const double n = c->n_rows > 0 ? c->n_rows : rows[i / c->e];
        if (rows[i / c->e] > 0)
            losses[0] += all * (double)c->e * counts[i] * probs[i] / ((double)c->k * n * n) / used;
    }
}

static int32_t *segments_of(const struct balance *c)
{
    int32_t *segments = s2s_xcalloc((size_t)c->n + 1, sizeof *segments);
    for (int64_t r = 0; r < c->n; r++)
        segments[r] = segment_of(c, r);
    return segments;
}

static struct s2s_k_router_load load_args(const struct balance *c, float *logits, int64_t stride,
                                          int32_t *segments)
{
    return (struct s2s_k_router_load){.logits = mat(logits, stride),
                                      .segments = c->segments > 1 ? vec(segments) : NULL,
                                      .n = c->n,
                                      .n_experts = c->e,
                                      .n_chosen = c->k,
                                      .n_segments = c->segments,
                                      .score = c->score};
}

static void balance_case(const struct balance *c, bool accumulate)
{
    const int64_t stride = c->e + 2, sums = c->segments * c->e;
    float *logits = values(c->n, c->e, stride, 1), *dl = values(c->n, c->e, stride, 2);
    float *counts = values(1, sums, sums, 3), *probs = values(1, sums, sums, 4);
    float *totals = values(1, 2, 2, 5), *factors = values(1, sums, sums, 6);
    int32_t *segments = segments_of(c);
    double losses[3] = {10, 20, 30}, want[2], want_totals[2] = {0};
    double want_counts[MAX_SEGMENTS * MAX_E], want_probs[MAX_SEGMENTS * MAX_E];
    double *l = s2s_xcalloc((size_t)(c->n * c->e) + 1, sizeof *l);
    double *want_dl = s2s_xcalloc((size_t)(c->n * c->e) + 1, sizeof *want_dl);
    struct s2s_k_router_load args = load_args(c, logits, stride, segments);
    args.counts = vec(counts);
    args.probs = vec(probs);
    args.totals = vec(totals);
    args.workspace = work(k->router_load_workspace(&queue, &args));
    k->router_load(&queue, &args);
    done();
    for (int64_t i = 0; i < c->n * c->e; i++)
        l[i] = logits[i / c->e * stride + i % c->e];
    ref_load(want_counts, want_probs, &want_totals[0], l, c, 0, c->n);
    for (int64_t r = 0; r < c->n; r++)
        want_totals[1] += segment_of(c, r) >= 0;
    close_to("counts", counts, want_counts, 1, sums, sums, 0);
    close_to("probs", probs, want_probs, 1, sums, sums, 1e-5);
    close_to("totals", totals, want_totals, 1, 2, 2, 1e-6);
    k->router_balance(&queue, &(struct s2s_k_router_balance){
                                  vec(counts), vec(probs), vec(totals), vec(factors),
                                  on(losses, sizeof losses), c->e, c->k, c->segments, c->n_rows});
    done();
    ref_losses(want, l, want_counts, c, 0, c->n);
    const float got[] = {(float)losses[0] - 10, (float)losses[1] - 20};
    close_to("losses", got, want, 1, 2, 2, 1e-5);
    assert_true(losses[2] - 30 == want_totals[1]);
    for (int64_t i = 0; i < c->n * c->e; i++) {
        const double h = 1e-5, x = l[i];
        const int64_t row = i / c->e; /* alone feels it */
        double up[2], down[2];
        l[i] = x + h;
        ref_losses(up, l, want_counts, c, row, row + 1);
        l[i] = x - h;
        ref_losses(down, l, want_counts, c, row, row + 1);
        l[i] = x;
        want_dl[i] = (accumulate ? dl[i / c->e * stride + i % c->e] : 0) +
                     (3 * (up[0] - down[0]) + 0.5 * (up[1] - down[1])) / (2 * h);
    }
    k->router_balance_backward(&queue, &(struct s2s_k_router_balance_backward){
                                           .forward = load_args(c, logits, stride, segments),
                                           .factors = vec(factors),
                                           .balance_scale = 3,
                                           .square_scale = 0.5f,
                                           .dlogits = mat(dl, stride),
                                           .accumulate = accumulate});
    done();
    close_to("dlogits", dl, want_dl, c->n, c->e, stride, 2e-6);
    free(logits);
    free(dl);
    free(counts);
    free(probs);
    free(totals);
    free(factors);
    free(segments);
    free(l);
    free(want_dl);
}

static void losses_of_balance_and_their_gradients(void **state)
{
    for (int i = 0; i < N_BALANCES; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            balance_case(&balances[i], accumulate);
}

/* Two choices of each of n rows, into counts. */
static void count(float *counts, const int32_t *segments, int64_t n)
{
    static const int32_t experts[] = {0, 2, 2, 4, 1, 2, 0, 2};
    k->expert_counts(&queue, &(struct s2s_k_expert_counts){
                                 .experts = in(experts, sizeof experts),
                                 .segments = segments ? in(segments, 4 * sizeof *segments) : NULL,
                                 .counts = vec(counts),
                                 .n = n,
                                 .n_chosen = 2,
                                 .n_experts = 5});
    done();
}

/* Each of 5 biases moves by this many times the rate. */
static void expect_moves(float *counts, const int moves[5])
{
    const float rate = 0.25f;
    float *bias = values(1, 5, 5, 7), before[5];
    memcpy(before, bias, sizeof before);
    k->router_bias(&queue,
                   &(struct s2s_k_router_bias){
                       .counts = vec(counts), .bias = vec(bias), .n_experts = 5, .rate = rate});
    done();
    for (int e = 0; e < 5; e++)
        assert_true(bias[e] == before[e] + (float)moves[e] * rate);
    free(bias);
}

static void choices_of_rows_that_count_are_counted_and_move_the_bias(void **state)
{
    needs("expert_counts");
    needs("router_bias");
    static const int32_t segments[] = {0, 3, -1, 0};
    static const float all[] = {2, 1, 4, 0, 1}, some[] = {2, 0, 3, 0, 1};
    float *counts = s2s_xcalloc(5, sizeof *counts);
    count(counts, NULL, 4);
    assert_memory_equal(counts, all, sizeof all);
    memset(counts, 0, sizeof all);
    count(counts, segments, 4);
    count(counts, segments, 0);
    assert_memory_equal(counts, some, sizeof some);
    /* the mean is 6 / 5: what is above it goes down */
    expect_moves(counts, (const int[]){-1, 1, -1, 1, 1});
    for (int e = 0; e < 5; e++)
        counts[e] = e == 1 ? 7 : e == 2 ? 1 : 4;
    expect_moves(counts, (const int[]){0, -1, 1, 0, 0});
    free(counts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_scores_choose_and_weigh),
        cmocka_unit_test(of_equal_scores_the_first_experts_are_taken),
        cmocka_unit_test(weights_pass_back_to_logits),
        cmocka_unit_test(choices_are_sorted_by_expert_and_stay_in_order),
        cmocka_unit_test(losses_of_balance_and_their_gradients),
        cmocka_unit_test(choices_of_rows_that_count_are_counted_and_move_the_bias),
    };
    return run_on_tables(tests);
}
