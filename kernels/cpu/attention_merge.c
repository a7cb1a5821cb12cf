/* Attention over two sets of keys out of that over each, by their log-sum-exps. */
#include "kernels/cpu/cpu.h"

static void merge_head(const struct s2s_k_attention_merge *args, int64_t row, int64_t head)
{
    float *lse = args->lse + row * args->n_heads + head;
    const float a = *lse, b = args->part_lse[row * args->n_heads + head];
    if (b == -INFINITY)
        return;
    const float both = a > b ? a + log1pf(expf(b - a)) : b + log1pf(expf(a - b));
    const float keep = expf(a - both), take = expf(b - both);
    float *o = cpu_row(&args->o, row) + head * args->dim;
    const float *part = cpu_row(&args->part, row) + head * args->dim;
#pragma omp simd
    for (int64_t d = 0; d < args->dim; d++)
        o[d] = keep * o[d] + take * part[d];
    *lse = both;
}

void cpu_attention_merge(struct s2s_queue *queue, const struct s2s_k_attention_merge *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n_q * args->n_heads * args->dim > CPU_PARALLEL_MIN)
    for (int64_t row = 0; row < args->n_q; row++)
        for (int64_t head = 0; head < args->n_heads; head++)
            merge_head(args, row, head);
}
