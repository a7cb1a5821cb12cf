/*
 * loss = logsumexp(z) - z[label];  dz = scale (softmax(z) - onehot), in place. Three passes over a
 * row that stays in the second-level cache: maximum, exponentials and their sum, gradient.
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

/* Is the label the likeliest class, the lowest id among equals? */
static float is_hit(const float *z, int32_t label, float max)
{
    if (z[label] != max)
        return 0;
    for (int32_t i = 0; i < label; i++)
        if (z[i] == max)
            return 0;
    return 1;
}

void cpu_cross_entropy(struct s2s_queue *queue, const struct s2s_k_cross_entropy *args)
{
    const int64_t cols = args->cols;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++) {
        float *z = cpu_row(&args->logits, r);
        int32_t label = args->labels[r];
        if (label < 0) {
            args->loss[r] = 0;
            if (args->hits)
                args->hits[r] = 0;
            if (args->gradient)
                memset(z, 0, (size_t)cols * sizeof *z);
            continue;
        }
        float max = z[0];
#pragma omp simd reduction(max : max)
        for (int64_t i = 0; i < cols; i++)
            max = z[i] > max ? z[i] : max;
        float target = z[label] - max;
        if (args->hits)
            args->hits[r] = is_hit(z, label, max);
        float sum = exp_row(z, cols, max, args->gradient);
        args->loss[r] = logf(sum) - target;
        if (!args->gradient)
            continue;
        float scale = args->grad_scale / sum;
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            z[i] *= scale;
        z[label] -= args->grad_scale;
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
