/*
 * v = x silu(z);  rstd = 1/sqrt(mean of a group(v^2) + eps);  y = gain v rstd
 * dv = rstd (u - v rstd^2 mean of the group(u v)),  u = gain dy;  dx = dv silu(z),
 * dz = dv x silu'(z);  dgain = sum_rows dy v rstd
 *
 * A group of a row stays in the first-level cache between its loops, and its v with it.
 */
#include "kernels/cpu/cpu.h"

/* A group is taken in parts, whose v and silu(z) are kept here between the loops. */
enum { CHUNK = 1024 };

CPU_INLINE void forward_group(const struct s2s_k_gatednorm *args, int64_t r, int64_t g, bool bf16)
{
    const int64_t n = args->cols / args->n_groups;
    const void *x = cpu_from(cpu_any_row(&args->x, r), g * n, bf16);
    const void *z = cpu_from(cpu_any_row(&args->z, r), g * n, bf16);
    void *y = cpu_from(cpu_any_row(&args->y, r), g * n, bf16);
    const float *gain = args->gain + g * n;
    float v[CHUNK], sum = 0;
    const bool kept = n <= CHUNK;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        const float zi = cpu_load(z, i, bf16);
        const float vi = cpu_load(x, i, bf16) * (zi * cpu_sigmoid(zi));
        if (kept)
            v[i] = vi;
        sum += vi * vi;
    }
    const float rstd = 1.0f / sqrtf(sum / (float)n + args->eps);
    if (args->rstd)
        args->rstd[r * args->n_groups + g] = rstd;
    if (kept) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            cpu_store(y, i, gain[i] * (v[i] * rstd), bf16);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float zi = cpu_load(z, i, bf16);
        const float vi = cpu_load(x, i, bf16) * (zi * cpu_sigmoid(zi));
        cpu_store(y, i, gain[i] * (vi * rstd), bf16);
    }
}

void cpu_gatednorm(struct s2s_queue *queue, const struct s2s_k_gatednorm *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->rows; r++)
        for (int64_t g = 0; g < args->n_groups; g++)
            if (cpu_is_bf16(&args->x))
                forward_group(args, r, g, true);
            else
                forward_group(args, r, g, false);
}

size_t cpu_gatednorm_backward_workspace(const struct s2s_queue *queue,
                                        const struct s2s_k_gatednorm_backward *args)
{
    return (size_t)(cpu_ceil_div(args->rows, CPU_ROW_BLOCK) * args->cols) * sizeof(float);
}

/* Group g of row r; adds to dgain [cols] where not NULL. */
CPU_INLINE void backward_group(const struct s2s_k_gatednorm_backward *args, int64_t r, int64_t g,
                               float *dgain, bool bf16)
{
    const int64_t n = args->cols / args->n_groups, at = g * n;
    const void *x = cpu_from(cpu_any_row(&args->x, r), at, bf16);
    const void *z = cpu_from(cpu_any_row(&args->z, r), at, bf16);
    const void *dy = cpu_from(cpu_any_row(&args->dy, r), at, bf16);
    void *dx = args->dx.data ? cpu_from(cpu_any_row(&args->dx, r), at, bf16) : NULL;
    void *dz = args->dz.data ? cpu_from(cpu_any_row(&args->dz, r), at, bf16) : NULL;
    const float *gain = args->gain + at, rstd = args->rstd[r * args->n_groups + g];
    const float add_x = args->accumulate_dx, add_z = args->accumulate_dz;
    float dot = 0, *sum = dgain ? dgain + at : NULL;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < n; i++) {
        const float zi = cpu_load(z, i, bf16);
        dot += gain[i] * cpu_load(dy, i, bf16) * (cpu_load(x, i, bf16) * (zi * cpu_sigmoid(zi)));
    }
    const float scale = dot / (float)n * rstd * rstd * rstd;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float zi = cpu_load(z, i, bf16), xi = cpu_load(x, i, bf16);
        const float dyi = cpu_load(dy, i, bf16), sg = cpu_sigmoid(zi), gate = zi * sg;
        const float dv = gain[i] * dyi * rstd - xi * gate * scale;
        if (sum)
            sum[i] += dyi * (xi * gate * rstd);
        if (dx)
            cpu_store(dx, i, (add_x != 0 ? cpu_load(dx, i, bf16) : 0.0f) + dv * gate, bf16);
        if (dz)
            cpu_store(dz, i,
                      (add_z != 0 ? cpu_load(dz, i, bf16) : 0.0f) +
                          dv * xi * (sg * (1 + zi * (1 - sg))),
                      bf16);
    }
}

void cpu_gatednorm_backward(struct s2s_queue *queue, const struct s2s_k_gatednorm_backward *args)
{
    const int64_t cols = args->cols, n_blocks = cpu_ceil_div(args->rows, CPU_ROW_BLOCK);
    float *partial = args->dgain ? args->workspace : NULL;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * cols > CPU_PARALLEL_MIN)
    for (int64_t b = 0; b < n_blocks; b++) {
        float *dgain = partial ? partial + b * cols : NULL;
        const int64_t end = (b + 1) * CPU_ROW_BLOCK;
        if (dgain)
            memset(dgain, 0, (size_t)cols * sizeof *dgain);
        for (int64_t r = b * CPU_ROW_BLOCK; r < args->rows && r < end; r++)
            for (int64_t g = 0; g < args->n_groups; g++)
                if (cpu_is_bf16(&args->x))
                    backward_group(args, r, g, dgain, true);
                else
                    backward_group(args, r, g, dgain, false);
    }
    if (partial)
        cpu_add_partials(args->dgain, partial, n_blocks, cols, true);
}
