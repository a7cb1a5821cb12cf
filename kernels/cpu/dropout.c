/* y = x with some elements left out. Bound by the generator: ten rounds for four elements. */
#include "kernels/cpu/draw.h"

CPU_INLINE void some_of_row(const struct s2s_k_dropout *args, int64_t r, bool bf16)
{
    const struct cpu_draw draw = cpu_draw(&args->draw, r, 0);
    const void *x = cpu_any_row(&args->x, r);
    void *y = cpu_any_row(&args->y, r);
    uint32_t words[CPU_DRAW_WORDS];
    for (int64_t i = 0; i < args->cols;) {
        const int64_t e = args->first + i, skip = e % 4, room = CPU_DRAW_WORDS - skip;
        const int64_t n = args->cols - i < room ? args->cols - i : room;
        const uint32_t *word = words + skip;
        cpu_draw_words(words, &draw, (uint32_t)(e / 4));
        if (args->accumulate)
#pragma omp simd
            for (int64_t c = 0; c < n; c++)
                cpu_store(y, i + c,
                          cpu_load(y, i + c, bf16) +
                              (word[c] < draw.limit ? 0.0f : draw.scale * cpu_load(x, i + c, bf16)),
                          bf16);
        else
#pragma omp simd
            for (int64_t c = 0; c < n; c++)
                cpu_store(y, i + c,
                          word[c] < draw.limit ? 0.0f : draw.scale * cpu_load(x, i + c, bf16),
                          bf16);
        i += n;
    }
}

void cpu_dropout(struct s2s_queue *queue, const struct s2s_k_dropout *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->rows * args->cols > CPU_PARALLEL_MIN / 4)
    for (int64_t r = 0; r < args->rows; r++)
        if (cpu_is_bf16(&args->x))
            some_of_row(args, r, true);
        else
            some_of_row(args, r, false);
}
