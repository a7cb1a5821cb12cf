/*
 * Half-split rotary embedding: y_i = x_i cos - x_{i+d/2} sin, y_{i+d/2} = x_{i+d/2} cos + x_i sin.
 * The table of cosines and sines is made once a batch and serves every layer and head.
 */
#include "kernels/cpu/cpu.h"

void cpu_rope_table(struct s2s_queue *queue, const struct s2s_k_rope_table *args)
{
    const int64_t half = args->dim / 2;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * half > CPU_PARALLEL_MIN / 16)
    for (int64_t t = 0; t < args->n; t++) {
        float *row = args->table + t * args->dim;
        for (int64_t i = 0; i < half; i++) {
            double angle = args->positions[t] * args->inv_freq[i];
            row[i] = (float)(args->factor * cos(angle));
            row[half + i] = (float)(args->factor * sin(angle));
        }
    }
}

void cpu_rope(struct s2s_queue *queue, const struct s2s_k_rope *args)
{
    const int64_t dim = args->dim, rotary = args->rotary_dim, half = rotary / 2;
    const float sign = args->transposed ? -1.0f : 1.0f, keep = args->accumulate ? 1.0f : 0.0f;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * args->n_heads * half > CPU_PARALLEL_MIN)
    for (int64_t t = 0; t < args->n; t++) {
        const float *c = args->table + t * rotary, *s = c + half;
        for (int64_t h = 0; h < args->n_heads; h++) {
            const float *x = cpu_row(&args->x, t) + h * dim;
            float *y = cpu_row(&args->y, t) + h * dim;
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                float a = x[i], b = x[half + i], sin_i = sign * s[i];
                float old_a = keep != 0 ? y[i] : 0.0f, old_b = keep != 0 ? y[half + i] : 0.0f;
                y[i] = old_a + (a * c[i] - b * sin_i);
                y[half + i] = old_b + (b * c[i] + a * sin_i);
            }
            if (y != x || keep != 0)
                for (int64_t i = rotary; i < dim; i++)
                    y[i] = (keep != 0 ? y[i] : 0.0f) + x[i];
        }
    }
}
