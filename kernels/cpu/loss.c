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

CPU_INLINE void gradient_row(const struct s2s_k_xent_gradient *args, int64_t r, bool bf16)
{
    const int64_t cols = args->cols, first = args->first_col, label = args->labels[r];
    const float *z = cpu_row(&args->logits, r);
    void *dz = cpu_any_row(&args->dlogits, r);
    if (label < 0) {
        cpu_zero_part(&args->dlogits, r, 0, 1, args->width);
        return;
    }
    const float weight = args->grad_scale * (args->weights ? args->weights[r] : 1.0f);
    const float scale =
        weight / args->total[r].sum * cpu_exp(args->part[r].max - args->total[r].max);
    const int64_t at = label - first;
#pragma omp simd
    for (int64_t i = 0; i < cols; i++)
        cpu_store(dz, i, z[i] * scale, bf16);
    /* what is nearly weight - weight is rounded after the difference; BF16 does not stand in z */
    if (at >= 0 && at < cols)
        cpu_store(dz, at, (bf16 ? z[at] * scale : cpu_load(dz, at, false)) - weight, bf16);
    cpu_zero_part(&args->dlogits, r, cols, 1, args->width - cols);
}

void cpu_xent_gradient(struct s2s_queue *queue, const struct s2s_k_xent_gradient *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        if (cpu_is_bf16(&args->dlogits))
            gradient_row(args, r, true);
        else
            gradient_row(args, r, false);
}

CPU_INLINE void sqdist_row(const struct s2s_k_sqdist *args, int64_t r, bool bf16)
{
    const int64_t cols = args->cols;
    const void *x = cpu_any_row(&args->x, r), *target = cpu_any_row(&args->target, r);
    double sum = 0;
    for (int64_t i = 0; i < cols; i++) {
        const float d = cpu_load(x, i, bf16) - cpu_load(target, i, bf16);
        sum += (double)d * d;
    }
    args->loss[r] = (float)(0.5 * sum);
    if (!args->dx.data)
        return;
    void *dx = cpu_any_row(&args->dx, r);
    for (int64_t i = 0; i < cols; i++)
        cpu_store(dx, i,
                  (args->accumulate ? cpu_load(dx, i, bf16) : 0) +
                      args->grad_scale * (cpu_load(x, i, bf16) - cpu_load(target, i, bf16)),
                  bf16);
}

void cpu_sqdist(struct s2s_queue *queue, const struct s2s_k_sqdist *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        if (cpu_is_bf16(&args->x))
            sqdist_row(args, r, true);
        else
            sqdist_row(args, r, false);
}
