/*
 * Losses of rows. Cross entropy by parts of the vocabulary: the maximum and the sum of exponentials
 * of a row that stays in the second-level cache; the exponentials stay in place of the logits where
 * a gradient follows, so that it is a scaling.
 */
#include "kernels/cpu/cpu.h"

/* exp(z - max) into z when keep is set; gives their sum */
static float exp_row(float *z, int64_t cols, float max, bool keep)
{
    float sum = 0;
    if (keep)
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < cols; i++) {
            float e = cpu_exp(z[i] - max);
            z[i] = e;
            sum += e;
        }
    else
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < cols; i++)
            sum += cpu_exp(z[i] - max);
    return sum;
}

void cpu_xent_stats(struct s2s_queue *queue, const struct s2s_k_xent_stats *args)
{
    const int64_t cols = args->cols, first = args->first_col;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++) {
        float *z = cpu_row(&args->logits, r), max = cols > 0 ? z[0] : -INFINITY;
        const int64_t label = args->labels[r];
        struct s2s_xent *out = &args->stats[r];
        *out = (struct s2s_xent){.best = -1};
        if (label < 0)
            continue;
#pragma omp simd reduction(max : max)
        for (int64_t i = 0; i < cols; i++)
            max = z[i] > max ? z[i] : max;
        out->max = max;
        if (label >= first && label < first + cols)
            out->target = z[label - first];
        for (int64_t i = 0; args->want_best && i < cols; i++)
            if (z[i] == max) {
                out->best = (int32_t)(first + i);
                break;
            }
        out->sum = exp_row(z, cols, max, args->keep);
    }
}

static struct s2s_xent add_parts(const struct s2s_k_xent_finish *args, int64_t r)
{
    struct s2s_xent total = args->parts[r];
    for (int64_t p = 1; p < args->n_parts; p++) {
        const struct s2s_xent *part = &args->parts[p * args->rows + r];
        if (part->max > total.max) {
            total.best = part->best;
            total.max = part->max;
        }
        total.target += part->target;
    }
    float sum = 0;
    for (int64_t p = 0; p < args->n_parts; p++) {
        const struct s2s_xent *part = &args->parts[p * args->rows + r];
        if (part->sum != 0)
            sum += part->sum * cpu_exp(part->max - total.max);
    }
    total.sum = sum;
    return total;
}

void cpu_xent_finish(struct s2s_queue *queue, const struct s2s_k_xent_finish *args)
{
    for (int64_t r = 0; r < args->rows; r++) {
        const bool counts = args->labels[r] >= 0;
        const struct s2s_xent total = add_parts(args, r);
        const float loss = counts ? logf(total.sum) - (total.target - total.max) : 0;
        args->total[r] = total;
        if (args->loss)
            args->loss[r] = args->weights && counts ? args->weights[r] * loss : loss;
        if (args->logprob)
            args->logprob[r] = -loss;
        if (args->hits)
            args->hits[r] = counts && total.best == args->labels[r];
    }
}

void cpu_xent_gradient(struct s2s_queue *queue, const struct s2s_k_xent_gradient *args)
{
    const int64_t cols = args->cols, first = args->first_col;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++) {
        const float *z = cpu_row(&args->logits, r);
        float *dz = cpu_row(&args->dlogits, r);
        const int64_t label = args->labels[r];
        if (label < 0) {
            memset(dz, 0, (size_t)args->width * sizeof *dz);
            continue;
        }
        const float weight = args->grad_scale * (args->weights ? args->weights[r] : 1.0f);
        const float scale =
            weight / args->total[r].sum * cpu_exp(args->part[r].max - args->total[r].max);
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            dz[i] = z[i] * scale;
        if (label >= first && label < first + cols)
            dz[label - first] -= weight;
        memset(dz + cols, 0, (size_t)(args->width - cols) * sizeof *dz);
    }
}

void cpu_sqdist(struct s2s_queue *queue, const struct s2s_k_sqdist *args)
{
    const int64_t cols = args->cols;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++) {
        const float *x = cpu_row(&args->x, r), *target = cpu_row(&args->target, r);
        double sum = 0;
        for (int64_t i = 0; i < cols; i++)
            sum += (double)(x[i] - target[i]) * (x[i] - target[i]);
        args->loss[r] = (float)(0.5 * sum);
        if (!args->dx.data)
            continue;
        float *dx = cpu_row(&args->dx, r);
        for (int64_t i = 0; i < cols; i++)
            dx[i] = (args->accumulate ? dx[i] : 0) + args->grad_scale * (x[i] - target[i]);
    }
}
