/* Rows of a table by number, and their gradient: added in the order of the tokens. */
#include "kernels/cpu/cpu.h"

void cpu_embedding(struct s2s_queue *queue, const struct s2s_k_embedding *args)
{
    const int64_t cols = args->cols;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * cols > CPU_PARALLEL_MIN)
    for (int64_t t = 0; t < args->n; t++) {
        float *y = cpu_row(&args->y, t);
        if (args->ids[t] < 0) {
            memset(y, 0, (size_t)cols * sizeof *y);
            continue;
        }
        const float *row = cpu_row(&args->table, args->ids[t]);
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            y[i] = args->scale * row[i];
    }
}

void cpu_embedding_backward(struct s2s_queue *queue, const struct s2s_k_embedding_backward *args)
{
    const int64_t cols = args->cols;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(dynamic, 8) if (args->n_ids * cols > CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < args->n_ids; r++) {
        float *row = cpu_row(&args->dtable, args->rows[r]);
        for (int32_t t = args->starts[r]; t < args->starts[r + 1]; t++) {
            const float *dy = cpu_row(&args->dy, args->order[t]);
#pragma omp simd
            for (int64_t i = 0; i < cols; i++)
                row[i] += args->scale * dy[i];
        }
    }
}
