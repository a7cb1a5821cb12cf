/* Rows of a table by number, and their gradient: added in the order of the tokens. */
#include "kernels/cpu/cpu.h"

CPU_INLINE void look_up(const struct s2s_k_embedding *args, int64_t t, bool bf16)
{
    const void *row = cpu_any_row(&args->table, args->ids[t]);
    void *y = cpu_any_row(&args->y, t);
#pragma omp simd
    for (int64_t i = 0; i < args->cols; i++)
        cpu_store(y, i, args->scale * cpu_load(row, i, bf16), bf16);
}

void cpu_embedding(struct s2s_queue *queue, const struct s2s_k_embedding *args)
{
    const int64_t cols = args->cols;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * cols > CPU_PARALLEL_MIN)
    for (int64_t t = 0; t < args->n; t++)
        if (args->ids[t] < 0)
            cpu_zero_part(&args->y, t, 0, 1, cols);
        else if (cpu_is_bf16(&args->y))
            look_up(args, t, true);
        else
            look_up(args, t, false);
}

/* row += scale dy */
CPU_INLINE void add_row(float *row, const void *dy, float scale, int64_t cols, bool bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < cols; i++)
        row[i] += scale * cpu_load(dy, i, bf16);
}

void cpu_embedding_backward(struct s2s_queue *queue, const struct s2s_k_embedding_backward *args)
{
    const int64_t cols = args->cols;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(dynamic, 8) if (args->n_ids * cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->n_ids; r++) {
        float *row = cpu_row(&args->dtable, args->rows[r]);
        for (int32_t t = args->starts[r]; t < args->starts[r + 1]; t++) {
            const void *dy = cpu_any_row(&args->dy, args->order[t]);
            if (cpu_is_bf16(&args->dy))
                add_row(row, dy, args->scale, cols, true);
            else
                add_row(row, dy, args->scale, cols, false);
        }
    }
}
