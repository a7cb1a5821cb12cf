/*
 * v = x silu(z);  rstd = 1/sqrt(mean of a group(v^2) + eps);  y = gain v rstd
 * dv = rstd (u - v rstd^2 mean of the group(u v)),  u = gain dy;  dx = dv silu(z),
 * dz = dv x silu'(z);  dgain = sum_rows dy v rstd
 *
 * A group of a row stays in the first-level cache between its loops, and what is made of its gates
 * with it.
 */
#include "kernels/cpu/cpu.h"

/* So many columns of a group have their gates kept between its loops. */
enum { CHUNK = 1024 };

/* v = x silu(z); gives the sum of its squares. */
CPU_INLINE float gated(float *restrict v, const void *x, const void *z, int64_t n, bool bf16)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        const float zi = cpu_load(z, i, bf16);
        v[i] = cpu_load(x, i, bf16) * (zi * cpu_sigmoid(zi));
        sum += v[i] * v[i];
    }
    return sum;
}

CPU_INLINE void forward_group(const struct s2s_k_gatednorm *args, int64_t r, int64_t g, bool bf16)
{
    const int64_t n = args->cols / args->n_groups;
    const void *x = cpu_from(cpu_any_row(&args->x, r), g * n, bf16);
    const void *z = cpu_from(cpu_any_row(&args->z, r), g * n, bf16);
    void *y = cpu_from(cpu_any_row(&args->y, r), g * n, bf16);
    const float *gain = args->gain + g * n;
    float v[CHUNK], sum = 0;
    for (int64_t at = 0; at < n; at += CHUNK)
        sum += gated(v, cpu_from(x, at, bf16), cpu_from(z, at, bf16),
                     n - at < CHUNK ? n - at : CHUNK, bf16);
    const float rstd = 1.0f / sqrtf(sum / (float)n + args->eps);
    if (args->rstd)
        args->rstd[r * args->n_groups + g] = rstd;
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t m = n - at < CHUNK ? n - at : CHUNK;
        void *to = cpu_from(y, at, bf16);
        if (n > CHUNK)
            gated(v, cpu_from(x, at, bf16), cpu_from(z, at, bf16), m, bf16);
#pragma omp simd
        for (int64_t i = 0; i < m; i++)
            cpu_store(to, i, gain[at + i] * (v[i] * rstd), bf16);
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

/* What the gates z [n] let through: silu, and its derivative. */
CPU_INLINE void open_gates(float *restrict gate, float *restrict slope, const void *z, int64_t n,
                           bool bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float zi = cpu_load(z, i, bf16), sg = cpu_sigmoid(zi);
        gate[i] = zi * sg;
        slope[i] = sg * (1 + zi * (1 - sg));
    }
}

/* to (+)= from */
CPU_INLINE void put(void *to, const float *restrict from, int64_t n, bool accumulate, bool bf16)
{
    if (accumulate)
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            cpu_store(to, i, cpu_load(to, i, bf16) + from[i], bf16);
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            cpu_store(to, i, from[i], bf16);
}

/* A part of a group, from column `at` of row r on. */
struct part {
    const void *x, *z, *dy;
    void *dx, *dz;
    const float *gain;
    float *dgain;
    int64_t n;
};

CPU_INLINE struct part part_at(const struct s2s_k_gatednorm_backward *args, int64_t r, int64_t at,
                               int64_t n, float *dgain, bool bf16)
{
    return (struct part){.x = cpu_from(cpu_any_row(&args->x, r), at, bf16),
                         .z = cpu_from(cpu_any_row(&args->z, r), at, bf16),
                         .dy = cpu_from(cpu_any_row(&args->dy, r), at, bf16),
                         .dx = args->dx.data ? cpu_from(cpu_any_row(&args->dx, r), at, bf16) : NULL,
                         .dz = args->dz.data ? cpu_from(cpu_any_row(&args->dz, r), at, bf16) : NULL,
                         .gain = args->gain + at,
                         .dgain = dgain ? dgain + at : NULL,
                         .n = n};
}

CPU_INLINE float product_sum(const struct part *p, const float *restrict gate, bool bf16)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < p->n; i++)
        sum += p->gain[i] * cpu_load(p->dy, i, bf16) * (cpu_load(p->x, i, bf16) * gate[i]);
    return sum;
}

/* scale: rstd^3 times the mean of u v */
CPU_INLINE void part_gradients(const struct s2s_k_gatednorm_backward *args, const struct part *p,
                               const float *restrict gate, const float *restrict slope, float rstd,
                               float scale, bool bf16)
{
    float dv[CHUNK], out[CHUNK], *restrict dgain = p->dgain;
    if (dgain)
#pragma omp simd
        for (int64_t i = 0; i < p->n; i++)
            dgain[i] += cpu_load(p->dy, i, bf16) * (cpu_load(p->x, i, bf16) * gate[i] * rstd);
#pragma omp simd
    for (int64_t i = 0; i < p->n; i++)
        dv[i] = p->gain[i] * cpu_load(p->dy, i, bf16) * rstd -
                cpu_load(p->x, i, bf16) * gate[i] * scale;
    if (p->dz) {
#pragma omp simd
        for (int64_t i = 0; i < p->n; i++)
            out[i] = dv[i] * cpu_load(p->x, i, bf16) * slope[i];
        put(p->dz, out, p->n, args->accumulate_dz, bf16);
    }
    if (p->dx) {
#pragma omp simd
        for (int64_t i = 0; i < p->n; i++)
            out[i] = dv[i] * gate[i];
        put(p->dx, out, p->n, args->accumulate_dx, bf16);
    }
}

/* Group g of row r; adds to dgain [cols] where not NULL. */
CPU_INLINE void backward_group(const struct s2s_k_gatednorm_backward *args, int64_t r, int64_t g,
                               float *dgain, bool bf16)
{
    const int64_t n = args->cols / args->n_groups, end = (g + 1) * n;
    const float rstd = args->rstd[r * args->n_groups + g];
    float gate[CHUNK], slope[CHUNK], dot = 0;
    for (int64_t at = g * n; at < end; at += CHUNK) {
        const struct part p =
            part_at(args, r, at, end - at < CHUNK ? end - at : CHUNK, dgain, bf16);
        open_gates(gate, slope, p.z, p.n, bf16);
        dot += product_sum(&p, gate, bf16);
    }
    const float scale = dot / (float)n * rstd * rstd * rstd;
    for (int64_t at = g * n; at < end; at += CHUNK) {
        const struct part p =
            part_at(args, r, at, end - at < CHUNK ? end - at : CHUNK, dgain, bf16);
        if (n > CHUNK)
            open_gates(gate, slope, p.z, p.n, bf16);
        part_gradients(args, &p, gate, slope, rstd, scale, bf16);
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
