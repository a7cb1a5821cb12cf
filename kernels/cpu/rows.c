/* Gather and scatter of whole rows, whose indices differ from each other, so that any order is the
 * same; and sums of rows, each in its own order. */
#include "kernels/cpu/cpu.h"

/* Row d of dst (+)= row s of src. */
static void put_row(const struct s2s_k_rows *args, int64_t d, int64_t s)
{
    const int64_t cols = args->cols;
    void *dst = cpu_any_row(&args->dst, d);
    const void *src = cpu_any_row(&args->src, s);
    if (!args->accumulate)
        memcpy(dst, src, (size_t)cols * s2s_dtype_size(args->dst.dtype));
    else if (cpu_is_bf16(&args->dst))
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            cpu_store(dst, i, cpu_load(dst, i, true) + cpu_load(src, i, true), true);
    else
#pragma omp simd
        for (int64_t i = 0; i < cols; i++)
            cpu_store(dst, i, cpu_load(dst, i, false) + cpu_load(src, i, false), false);
}

void cpu_gather_rows(struct s2s_queue *queue, const struct s2s_k_rows *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * args->cols > CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < args->n; i++)
        if (args->idx[i] >= 0)
            put_row(args, i, args->idx[i]);
        else if (!args->accumulate)
            cpu_zero_part(&args->dst, i, 0, 1, args->cols);
}

void cpu_scatter_rows(struct s2s_queue *queue, const struct s2s_k_rows *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * args->cols > CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < args->n; i++)
        if (args->idx[i] >= 0)
            put_row(args, args->idx[i], i);
}

/* Sums stand here while their sources come, so that they are rounded once. */
enum { CHUNK = 256 };

/* Columns [begin, begin + cols) of row i, at most CHUNK. */
CPU_INLINE void sum_chunk(const struct s2s_k_rows_sum *args, int64_t i, int64_t begin, int64_t cols,
                          bool bf16)
{
    float sum[CHUNK];
    void *dst = cpu_from(cpu_any_row(&args->dst, i), begin, bf16);
    for (int64_t c = 0; c < cols; c++)
        sum[c] = args->accumulate ? cpu_load(dst, c, bf16) : 0;
    for (int64_t j = i * args->n_sources; j < (i + 1) * args->n_sources; j++) {
        if (args->idx[j] < 0)
            continue;
        const void *src = cpu_from(cpu_any_row(&args->src, args->idx[j]), begin, bf16);
        const float weight = args->weights ? args->weights[j] : 1.0f;
#pragma omp simd
        for (int64_t c = 0; c < cols; c++)
            sum[c] += weight * cpu_load(src, c, bf16);
    }
    for (int64_t c = 0; c < cols; c++)
        cpu_store(dst, c, sum[c], bf16);
}

void cpu_rows_sum(struct s2s_queue *queue, const struct s2s_k_rows_sum *args)
{
    const int64_t cols = args->cols;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * args->n_sources * cols > CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < args->n; i++)
        for (int64_t begin = 0; begin < cols; begin += CHUNK) {
            const int64_t n = cols - begin < CHUNK ? cols - begin : CHUNK;
            if (cpu_is_bf16(&args->dst))
                sum_chunk(args, i, begin, n, true);
            else
                sum_chunk(args, i, begin, n, false);
        }
}

/* What source i of a row gave. */
CPU_INLINE void source_backward(const struct s2s_k_rows_sum_backward *args, int64_t i, bool bf16)
{
    const int64_t cols = args->cols;
    const void *dy = cpu_any_row(&args->ddst, i / args->n_sources);
    const float weight = args->weights ? args->weights[i] : 1.0f;
    const int32_t at = args->idx[i];
    if (args->dsrc.data && at >= 0) {
        void *dx = cpu_any_row(&args->dsrc, at);
#pragma omp simd
        for (int64_t c = 0; c < cols; c++)
            cpu_store(dx, c, weight * cpu_load(dy, c, bf16), bf16);
    }
    if (!args->dweights)
        return;
    float sum = 0;
    const void *x = at >= 0 ? cpu_any_row(&args->src, at) : NULL;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < (x ? cols : 0); c++)
        sum += cpu_load(x, c, bf16) * cpu_load(dy, c, bf16);
    args->dweights[i] = sum;
}

void cpu_rows_sum_backward(struct s2s_queue *queue, const struct s2s_k_rows_sum_backward *args)
{
    const int64_t n = args->n * args->n_sources;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (n * args->cols > CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < n; i++)
        if (cpu_is_bf16(&args->ddst))
            source_backward(args, i, true);
        else
            source_backward(args, i, false);
}

/* dst = max (dst, src), or src where it is the first */
CPU_INLINE void raise_row(void *dst, const void *src, int64_t cols, bool first, bool bf16)
{
#pragma omp simd
    for (int64_t c = 0; c < cols; c++) {
        const float x = cpu_load(src, c, bf16), y = first ? x : cpu_load(dst, c, bf16);
        cpu_store(dst, c, x > y ? x : y, bf16);
    }
}

CPU_INLINE void max_row(const struct s2s_k_rows_max *args, int64_t i, bool bf16)
{
    void *dst = cpu_any_row(&args->dst, i);
    bool first = true;
    for (int64_t j = i * args->n_sources; j < (i + 1) * args->n_sources; j++)
        if (args->idx[j] >= 0) {
            raise_row(dst, cpu_any_row(&args->src, args->idx[j]), args->cols, first, bf16);
            first = false;
        }
    for (int64_t c = 0; first && c < args->cols; c++)
        cpu_store(dst, c, 0, bf16);
}

void cpu_rows_max(struct s2s_queue *queue, const struct s2s_k_rows_max *args)
{
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->n * args->n_sources * args->cols > CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < args->n; i++)
        if (cpu_is_bf16(&args->dst))
            max_row(args, i, true);
        else
            max_row(args, i, false);
}

/* Which source of row i is the first of the largest in n columns from `begin` on. */
CPU_INLINE void find_largest(const struct s2s_k_rows_max *args, int64_t i, int64_t begin, int64_t n,
                             int32_t *which, bool bf16)
{
    float most[CHUNK];
    for (int64_t c = 0; c < n; c++) {
        which[c] = -1;
        most[c] = -INFINITY;
    }
    for (int32_t j = 0; j < args->n_sources; j++) {
        const int32_t at = args->idx[i * args->n_sources + j];
        const void *src = at < 0 ? NULL : cpu_from(cpu_any_row(&args->src, at), begin, bf16);
        for (int64_t c = 0; src && c < n; c++) {
            const float x = cpu_load(src, c, bf16);
            if (which[c] < 0 || x > most[c]) {
                which[c] = j;
                most[c] = x;
            }
        }
    }
}

CPU_INLINE void max_chunk_backward(const struct s2s_k_rows_max_backward *args, int64_t i,
                                   int64_t begin, int64_t n, bool bf16)
{
    const struct s2s_k_rows_max *f = &args->forward;
    const void *dy = cpu_from(cpu_any_row(&args->ddst, i), begin, bf16);
    int32_t which[CHUNK];
    find_largest(f, i, begin, n, which, bf16);
    for (int32_t j = 0; j < f->n_sources; j++) {
        const int32_t at = f->idx[i * f->n_sources + j];
        void *dx = at < 0 ? NULL : cpu_from(cpu_any_row(&args->dsrc, at), begin, bf16);
        for (int64_t c = 0; dx && c < n; c++)
            cpu_store(dx, c,
                      (args->accumulate ? cpu_load(dx, c, bf16) : 0) +
                          (which[c] == j ? cpu_load(dy, c, bf16) : 0),
                      bf16);
    }
}

void cpu_rows_max_backward(struct s2s_queue *queue, const struct s2s_k_rows_max_backward *args)
{
    const int64_t cols = args->forward.cols;
#pragma omp parallel for num_threads(queue->lanes) \
    schedule(static) if (args->forward.n * args->forward.n_sources * cols > CPU_PARALLEL_MIN)
    for (int64_t i = 0; i < args->forward.n; i++)
        for (int64_t begin = 0; begin < cols; begin += CHUNK) {
            const int64_t n = cols - begin < CHUNK ? cols - begin : CHUNK;
            if (cpu_is_bf16(&args->ddst))
                max_chunk_backward(args, i, begin, n, true);
            else
                max_chunk_backward(args, i, begin, n, false);
        }
}
