/* Attention over two sets of keys out of that over each, by their log-sum-exps. */
#include "kernels/cpu/cpu.h"

CPU_INLINE void merge_head(const struct s2s_k_attention_merge *args, int64_t row, int64_t head,
                           bool bf16)
{
    float *lse = args->lse + row * args->n_heads + head;
    const float a = *lse, b = args->part_lse[row * args->n_heads + head];
    if (b == -INFINITY)
        return;
    const float both = a > b ? a + log1pf(expf(b - a)) : b + log1pf(expf(a - b));
    const float keep = expf(a - both), take = expf(b - both);
    void *o = cpu_from(cpu_any_row(&args->o, row), head * args->dim, bf16);
    const void *part = cpu_from(cpu_any_row(&args->part, row), head * args->dim, bf16);
#pragma omp simd
    for (int64_t d = 0; d < args->dim; d++)
        cpu_store(o, d, keep * cpu_load(o, d, bf16) + take * cpu_load(part, d, bf16), bf16);
    *lse = both;
}

void cpu_attention_merge(struct s2s_queue *queue, const struct s2s_k_attention_merge *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n_q * args->n_heads * args->dim > CPU_PARALLEL_MIN)
    for (int64_t row = 0; row < args->n_q; row++)
        for (int64_t head = 0; head < args->n_heads; head++)
            if (cpu_is_bf16(&args->o))
                merge_head(args, row, head, true);
            else
                merge_head(args, row, head, false);
}
