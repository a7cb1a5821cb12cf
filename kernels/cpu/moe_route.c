/* Which experts each row goes to, what their weights pass back, and the order by expert. */
#include "kernels/cpu/cpu.h"

/* Scores of one row; their sum over all experts, which is 1 for a softmax. */
static float score_row(float *s, const float *l, int64_t n, enum s2s_score score)
{
    float max = l[0], sum = 0;
    if (score == S2S_SCORE_SIGMOID) {
        for (int64_t e = 0; e < n; e++)
            sum += s[e] = cpu_sigmoid(l[e]);
        return sum;
    }
    for (int64_t e = 1; e < n; e++)
        max = l[e] > max ? l[e] : max;
    for (int64_t e = 0; e < n; e++)
        sum += s[e] = cpu_exp(l[e] - max);
    for (int64_t e = 0; e < n; e++)
        s[e] /= sum;
    return 1;
}

/* The largest of those that are not taken, of equals the first; there is one. NaN is never larger.
 */
static int64_t find_best(const float *x, const bool *taken, int64_t n)
{
    int64_t best = -1;
    for (int64_t e = 0; e < n; e++)
        if (!taken[e] && (best < 0 || x[e] > x[best]))
            best = e;
    return best;
}

/* taken becomes true for experts outside of the chosen groups. */
static void close_groups(bool *taken, const float *b, const struct s2s_k_route *args)
{
    const int64_t width = args->n_experts / args->n_groups;
    float score[S2S_MAX_EXPERTS];
    bool chosen[S2S_MAX_EXPERTS] = {false};
    for (int64_t g = 0; g < args->n_groups; g++) {
        bool counted[S2S_MAX_EXPERTS] = {false};
        score[g] = 0;
        for (int64_t i = 0; i < args->n_group_best; i++) {
            const int64_t best = find_best(b + g * width, counted, width);
            counted[best] = true;
            score[g] += b[g * width + best];
        }
    }
    for (int64_t i = 0; i < args->n_chosen_groups; i++)
        chosen[find_best(score, chosen, args->n_groups)] = true;
    for (int64_t e = 0; e < args->n_experts; e++)
        taken[e] = !chosen[e / width];
}

static void route_row(const struct s2s_k_route *args, int64_t r)
{
    const int64_t n = args->n_experts, k = args->n_chosen;
    float s[S2S_MAX_EXPERTS], b[S2S_MAX_EXPERTS], sum = 0;
    bool taken[S2S_MAX_EXPERTS] = {false};
    int32_t *experts = args->experts + r * k;
    score_row(s, cpu_row(&args->logits, r), n, args->score);
    for (int64_t e = 0; e < n; e++)
        b[e] = s[e] + (args->bias ? args->bias[e] : 0);
    if (args->n_groups > 0)
        close_groups(taken, b, args);
    for (int64_t j = 0; j < k; j++) {
        experts[j] = (int32_t)find_best(b, taken, n);
        taken[experts[j]] = true;
        sum += s[experts[j]];
    }
    const float factor = args->normalise ? args->scale / (sum + 1e-20f) : args->scale;
    for (int64_t j = 0; j < k; j++)
        args->weights[r * k + j] = factor * s[experts[j]];
}

void cpu_route(struct s2s_queue *queue, const struct s2s_k_route *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * args->n_experts > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->n; r++)
        route_row(args, r);
}

/* ds of the chosen experts, from the gradients of their weights */
static void weights_backward(float *ds, const float *s, const struct s2s_k_route *f,
                             const int32_t *experts, const float *dw)
{
    float sum = 0, dot = 0;
    for (int64_t j = 0; j < f->n_chosen; j++) {
        sum += s[experts[j]];
        dot += dw[j] * s[experts[j]];
    }
    sum += 1e-20f;
    for (int64_t j = 0; j < f->n_chosen; j++)
        ds[experts[j]] = f->normalise ? f->scale * (dw[j] - dot / sum) / sum : f->scale * dw[j];
}

static void route_backward_row(const struct s2s_k_route_backward *args, int64_t r)
{
    const struct s2s_k_route *f = &args->forward;
    const int64_t n = f->n_experts, k = f->n_chosen;
    float s[S2S_MAX_EXPERTS], ds[S2S_MAX_EXPERTS] = {0}, inner = 0;
    float *dl = cpu_row(&args->dlogits, r);
    score_row(s, cpu_row(&f->logits, r), n, f->score);
    weights_backward(ds, s, f, f->experts + r * k, args->dweights + r * k);
    if (f->score == S2S_SCORE_SOFTMAX)
        for (int64_t e = 0; e < n; e++)
            inner += s[e] * ds[e];
    for (int64_t e = 0; e < n; e++) {
        const float d =
            f->score == S2S_SCORE_SOFTMAX ? s[e] * (ds[e] - inner) : s[e] * (1 - s[e]) * ds[e];
        dl[e] = args->accumulate ? dl[e] + d : d;
    }
}

void cpu_route_backward(struct s2s_queue *queue, const struct s2s_k_route_backward *args)
{
    const struct s2s_k_route *f = &args->forward;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (f->n * f->n_experts > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < f->n; r++)
        route_backward_row(args, r);
}

size_t cpu_expert_order_workspace(const struct s2s_queue *queue,
                                  const struct s2s_k_expert_order *args)
{
    return 0;
}

/* Counting sort. One thread: a choice costs a few cycles, its row's products thousands. */
void cpu_expert_order(struct s2s_queue *queue, const struct s2s_k_expert_order *args)
{
    int32_t *offsets = args->offsets;
    memset(offsets, 0, (size_t)(args->n_experts + 1) * sizeof *offsets);
    for (int64_t i = 0; i < args->n; i++)
        offsets[args->experts[i] + 1]++;
    for (int64_t e = 0; e < args->n_experts; e++)
        offsets[e + 1] += offsets[e];
    /* offsets[e] counts up to where the next expert begins, then all move back by one */
    for (int64_t i = 0; i < args->n; i++) {
        const int32_t place = offsets[args->experts[i]]++;
        args->places[i] = place;
        args->rows[place] = (int32_t)(i / args->n_chosen);
    }
    memmove(offsets + 1, offsets, (size_t)args->n_experts * sizeof *offsets);
    offsets[0] = 0;
}
