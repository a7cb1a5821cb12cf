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

/* One head of one row. */
CPU_INLINE void rotate(const struct s2s_k_rope *args, const float *c, const void *x, void *y,
                       bool bf16)
{
    const int64_t dim = args->dim, rotary = args->rotary_dim, half = rotary / 2;
    const float sign = args->transposed ? -1.0f : 1.0f, keep = args->accumulate ? 1.0f : 0.0f;
    const float *s = c + half;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float a = cpu_load(x, i, bf16), b = cpu_load(x, half + i, bf16), sin_i = sign * s[i];
        float old_a = keep != 0 ? cpu_load(y, i, bf16) : 0.0f;
        float old_b = keep != 0 ? cpu_load(y, half + i, bf16) : 0.0f;
        cpu_store(y, i, old_a + (a * c[i] - b * sin_i), bf16);
        cpu_store(y, half + i, old_b + (b * c[i] + a * sin_i), bf16);
    }
    if (y == x && keep == 0)
        return;
    for (int64_t i = rotary; i < dim; i++)
        cpu_store(y, i, (keep != 0 ? cpu_load(y, i, bf16) : 0.0f) + cpu_load(x, i, bf16), bf16);
}

void cpu_rope(struct s2s_queue *queue, const struct s2s_k_rope *args)
{
    const int64_t dim = args->dim, rotary = args->rotary_dim, half = rotary / 2;
    const bool bf16 = cpu_is_bf16(&args->x);
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * args->n_heads * half > CPU_PARALLEL_MIN)
    for (int64_t t = 0; t < args->n; t++)
        for (int64_t h = 0; h < args->n_heads; h++) {
            const void *x = cpu_from(cpu_any_row(&args->x, t), h * dim, bf16);
            void *y = cpu_from(cpu_any_row(&args->y, t), h * dim, bf16);
            if (bf16)
                rotate(args, args->table + t * rotary, x, y, true);
            else
                rotate(args, args->table + t * rotary, x, y, false);
        }
}
