/* How evenly a router loads its experts: counts and sums of probabilities, losses of them, what
 * these pass back, and biases that counts move. */
#include "kernels/cpu/cpu.h"

/* What the losses see of one row. */
struct row {
    float p[S2S_MAX_EXPERTS]; /* scores by their sum */
    float s[S2S_MAX_EXPERTS];
    float sum;      /* of the scores */
    float log_sum;  /* log sum exp of the logits */
    float max, exp; /* the largest logit, the sum of exp(l - max) */
};

static void look_at_row(struct row *row, const float *l, int64_t n, enum s2s_score score)
{
    row->max = l[0];
    row->exp = row->sum = 0;
    for (int64_t e = 1; e < n; e++)
        row->max = l[e] > row->max ? l[e] : row->max;
    for (int64_t e = 0; e < n; e++)
        row->exp += row->p[e] = cpu_exp(l[e] - row->max);
    row->log_sum = row->max + logf(row->exp);
    if (score == S2S_SCORE_SOFTMAX) {
        row->sum = 1;
        for (int64_t e = 0; e < n; e++)
            row->s[e] = row->p[e] /= row->exp;
        return;
    }
    for (int64_t e = 0; e < n; e++)
        row->sum += row->s[e] = cpu_sigmoid(l[e]);
    row->sum += 1e-20f;
    for (int64_t e = 0; e < n; e++)
        row->p[e] = row->s[e] / row->sum;
}

/* ---- counts and sums ---- */

static int64_t segment_of(const struct s2s_k_router_load *args, int64_t r)
{
    return args->segments ? args->segments[r] : 0;
}

/* Of each row its probabilities, one more than 1 where the expert is chosen, and its square. */
size_t cpu_router_load_workspace(const struct s2s_queue *queue,
                                 const struct s2s_k_router_load *args)
{
    return (size_t)(args->n * (args->n_experts + 1)) * sizeof(float);
}

/* p is at most 1: what is chosen is told by a sign, and -0.0 has one. */
static void mark_chosen(float *p, int64_t n, int64_t n_chosen)
{
    for (int64_t j = 0; j < n_chosen; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < n; e++)
            if (!signbit(p[e]) && (best < 0 || p[e] > p[best]))
                best = e;
        if (best >= 0)
            p[best] = -p[best];
    }
}

static void sum_expert(const struct s2s_k_router_load *args, const float *p, int64_t e)
{
    const int64_t n = args->n_experts;
    for (int64_t s = 0; s < args->n_segments; s++)
        args->counts[s * n + e] = args->probs[s * n + e] = 0;
    for (int64_t r = 0; r < args->n; r++) {
        const int64_t s = segment_of(args, r);
        if (s < 0)
            continue;
        args->counts[s * n + e] += signbit(p[r * n + e]) ? 1 : 0;
        args->probs[s * n + e] += fabsf(p[r * n + e]);
    }
}

void cpu_router_load(struct s2s_queue *queue, const struct s2s_k_router_load *args)
{
    const int64_t n = args->n_experts;
    const bool parallel = args->n * n > CPU_PARALLEL_MIN;
    float *p = args->workspace, *squares = p + args->n * n;
    double square = 0, rows = 0;
#pragma omp parallel for num_threads(queue->lanes) schedule(static) if (parallel)
    for (int64_t r = 0; r < args->n; r++) {
        struct row row;
        look_at_row(&row, cpu_row(&args->logits, r), n, args->score);
        memcpy(p + r * n, row.p, (size_t)n * sizeof *p);
        mark_chosen(p + r * n, n, args->n_chosen);
        squares[r] = segment_of(args, r) < 0 ? 0 : row.log_sum * row.log_sum;
    }
#pragma omp parallel for num_threads(queue->lanes) schedule(static) if (parallel)
    for (int64_t e = 0; e < n; e++)
        sum_expert(args, p, e);
    for (int64_t r = 0; r < args->n; r++) {
        square += squares[r];
        rows += segment_of(args, r) >= 0;
    }
    args->totals[0] = (float)square;
    args->totals[1] = (float)rows;
}

/* ---- losses ---- */

void cpu_router_balance(struct s2s_queue *queue, const struct s2s_k_router_balance *args)
{
    const int64_t n = args->n_experts;
    const double k = (double)args->n_chosen;
    double all = 0, used = 0, loss = 0;
    for (int64_t s = 0; s < args->n_segments; s++) {
        double chosen = 0;
        for (int64_t e = 0; e < n; e++)
            chosen += args->counts[s * n + e];
        all += chosen / k;
        used += chosen > 0;
    }
    for (int64_t s = 0; s < args->n_segments; s++) {
        double rows = 0;
        for (int64_t e = 0; e < n; e++)
            rows += args->counts[s * n + e] / k;
        if (rows > 0 && args->n_rows > 0)
            rows = args->n_rows;
        const double factor = rows > 0 ? all * (double)n / (k * rows * rows * used) : 0;
        for (int64_t e = 0; e < n; e++) {
            args->factors[s * n + e] = (float)(factor * args->counts[s * n + e]);
            loss += factor * args->counts[s * n + e] * args->probs[s * n + e];
        }
    }
    if (!args->losses)
        return;
    args->losses[0] += loss;
    args->losses[1] += args->totals[0];
    args->losses[2] += args->totals[1];
}

static void balance_backward_row(const struct s2s_k_router_balance_backward *args, int64_t r)
{
    const struct s2s_k_router_load *f = &args->forward;
    const int64_t n = f->n_experts, s = segment_of(f, r);
    float *dl = cpu_row(&args->dlogits, r), inner = 0;
    struct row row;
    if (s < 0) {
        if (!args->accumulate)
            memset(dl, 0, (size_t)n * sizeof *dl);
        return;
    }
    look_at_row(&row, cpu_row(&f->logits, r), n, f->score);
    const float *factors = args->factors + s * n, *l = cpu_row(&f->logits, r);
    const float square = args->square_scale * 2 * row.log_sum;
    for (int64_t e = 0; e < n; e++)
        inner += factors[e] * row.p[e];
    for (int64_t e = 0; e < n; e++) {
        const float dp = args->balance_scale * (factors[e] - inner);
        float d = f->score == S2S_SCORE_SOFTMAX ? row.p[e] * dp
                                                : row.s[e] * (1 - row.s[e]) * dp / row.sum;
        d += square * cpu_exp(l[e] - row.max) / row.exp;
        dl[e] = args->accumulate ? dl[e] + d : d;
    }
}

void cpu_router_balance_backward(struct s2s_queue *queue,
                                 const struct s2s_k_router_balance_backward *args)
{
    const struct s2s_k_router_load *f = &args->forward;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (f->n * f->n_experts > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < f->n; r++)
        balance_backward_row(args, r);
}

/* ---- biases of the choice ---- */

void cpu_expert_counts(struct s2s_queue *queue, const struct s2s_k_expert_counts *args)
{
    for (int64_t i = 0; i < args->n * args->n_chosen; i++)
        if (!args->segments || args->segments[i / args->n_chosen] >= 0)
            args->counts[args->experts[i]]++;
}

void cpu_router_bias(struct s2s_queue *queue, const struct s2s_k_router_bias *args)
{
    double sum = 0;
    for (int64_t e = 0; e < args->n_experts; e++)
        sum += args->counts[e];
    const double mean = sum / (double)args->n_experts;
    for (int64_t e = 0; e < args->n_experts; e++) {
        if (args->counts[e] < mean)
            args->bias[e] += args->rate;
        else if (args->counts[e] > mean)
            args->bias[e] -= args->rate;
    }
}
