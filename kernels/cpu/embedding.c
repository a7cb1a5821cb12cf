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

void cpu_embedding_backward(struct s2s_queue *queue, const struct s2s_k_embedding *args)
{
    /* ids repeat, so threads divide the columns: each element is added to in token order */
    enum { COLUMNS = 128 };
    const int64_t n_parts = cpu_ceil_div(args->cols, COLUMNS);
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * args->cols > CPU_PARALLEL_MIN)
    for (int64_t part = 0; part < n_parts; part++) {
        int64_t begin = part * COLUMNS;
        int64_t end = begin + COLUMNS < args->cols ? begin + COLUMNS : args->cols;
        for (int64_t t = 0; t < args->n; t++) {
            if (args->ids[t] < 0 || args->ids[t] == args->skip_id)
                continue;
            float *row = cpu_row(&args->table, args->ids[t]);
            const float *dy = cpu_row(&args->y, t);
#pragma omp simd
            for (int64_t i = begin; i < end; i++)
                row[i] += args->scale * dy[i];
        }
    }
}
