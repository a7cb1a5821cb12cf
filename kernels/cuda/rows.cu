/*
 * Rows by number: embedding and its gradient, gather, scatter, sums of rows. Each row that is
 * written has one thread a group of columns, which adds in the order that the contract says.
 */
#include "kernels/cuda/map.h"

struct embedding {
    struct cuda_mat table, y;
    const int32_t *ids;
    float scale;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float x[N];
        const int32_t id = ids[row];
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = 0;
        if (id >= 0)
            cuda_load(x, table, id, col);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] *= scale;
        cuda_store(y, row, col, x);
    }
};

void cuda_embedding(struct s2s_queue *queue, const struct s2s_k_embedding *args)
{
    const struct embedding map = {cuda_mat(&args->table), cuda_mat(&args->y), args->ids,
                                  args->scale};
    cuda_map(queue, map, args->n, args->cols,
             cuda_is_wide(&args->table, args->cols) && cuda_is_wide(&args->y, args->cols));
}

struct embedding_backward {
    struct cuda_mat dtable, dy;
    const int32_t *rows, *starts, *order;
    float scale;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float sum[N], x[N];
        cuda_load(sum, dtable, rows[row], col);
        for (int32_t t = starts[row]; t < starts[row + 1]; t++) {
            cuda_load(x, dy, order[t], col);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += scale * x[i];
        }
        cuda_store(dtable, rows[row], col, sum);
    }
};

void cuda_embedding_backward(struct s2s_queue *queue, const struct s2s_k_embedding_backward *args)
{
    const struct embedding_backward map = {cuda_mat(&args->dtable),
                                           cuda_mat(&args->dy),
                                           args->rows,
                                           args->starts,
                                           args->order,
                                           args->scale};
    cuda_map(queue, map, args->n_ids, args->cols,
             cuda_is_wide(&args->dtable, args->cols) && cuda_is_wide(&args->dy, args->cols));
}

struct gather {
    struct cuda_mat dst, src;
    const int32_t *idx;
    bool accumulate;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float x[N];
        const int32_t from = idx[row];
        if (from < 0 && accumulate)
            return;
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = 0;
        if (from >= 0)
            cuda_load(x, src, from, col);
        cuda_update(dst, row, col, x, accumulate);
    }
};

struct scatter {
    struct cuda_mat dst, src;
    const int32_t *idx;
    bool accumulate;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float x[N];
        if (idx[row] < 0)
            return;
        cuda_load(x, src, row, col);
        cuda_update(dst, idx[row], col, x, accumulate);
    }
};

static bool rows_are_wide(const struct s2s_k_rows *args)
{
    return cuda_is_wide(&args->dst, args->cols) && cuda_is_wide(&args->src, args->cols);
}

void cuda_gather_rows(struct s2s_queue *queue, const struct s2s_k_rows *args)
{
    const struct gather map = {cuda_mat(&args->dst), cuda_mat(&args->src), args->idx,
                               args->accumulate};
    cuda_map(queue, map, args->n, args->cols, rows_are_wide(args));
}

void cuda_scatter_rows(struct s2s_queue *queue, const struct s2s_k_rows *args)
{
    const struct scatter map = {cuda_mat(&args->dst), cuda_mat(&args->src), args->idx,
                                args->accumulate};
    cuda_map(queue, map, args->n, args->cols, rows_are_wide(args));
}

struct rows_sum {
    struct cuda_mat dst, src;
    const int32_t *idx;
    const float *weights;
    int64_t n_sources;
    bool accumulate;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float sum[N], x[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            sum[i] = 0;
        if (accumulate)
            cuda_load(sum, dst, row, col);
        for (int64_t j = row * n_sources; j < (row + 1) * n_sources; j++) {
            if (idx[j] < 0)
                continue;
            const float weight = weights ? weights[j] : 1.0f;
            cuda_load(x, src, idx[j], col);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += weight * x[i];
        }
        cuda_store(dst, row, col, sum);
    }
};

void cuda_rows_sum(struct s2s_queue *queue, const struct s2s_k_rows_sum *args)
{
    const struct rows_sum map = {cuda_mat(&args->dst), cuda_mat(&args->src), args->idx,
                                 args->weights,        args->n_sources,      args->accumulate};
    cuda_map(queue, map, args->n, args->cols,
             cuda_is_wide(&args->dst, args->cols) && cuda_is_wide(&args->src, args->cols));
}

struct rows_sum_backward {
    struct cuda_mat src, ddst, dsrc;
    const int32_t *idx;
    const float *weights;
    float *dweights;
    int64_t n_sources, cols;
};

/* A block a choice: row i / n_sources of ddst, and the row of src that idx[i] names. */
template <int N>
__global__ void __launch_bounds__(CUDA_BLOCK)
    rows_sum_backward_kernel(const struct rows_sum_backward a)
{
    SHARED(float, room);
    const int64_t i = blockIdx.x, row = i / a.n_sources;
    const int32_t at = a.idx[i];
    const float weight = a.weights ? a.weights[i] : 1.0f;
    float sum = 0, dy[N], x[N];
    for (int64_t col = threadIdx.x * N; at >= 0 && col < a.cols; col += CUDA_BLOCK * N) {
        cuda_load(dy, a.ddst, row, col);
        if (a.dweights) {
            cuda_load(x, a.src, at, col);
#pragma unroll
            for (int j = 0; j < N; j++)
                sum += dy[j] * x[j];
        }
#pragma unroll
        for (int j = 0; j < N; j++)
            dy[j] *= weight;
        if (a.dsrc.data)
            cuda_store(a.dsrc, at, col, dy);
    }
    sum = cuda_block_sum(sum, room);
    if (a.dweights && threadIdx.x == 0)
        a.dweights[i] = sum;
}

void cuda_rows_sum_backward(struct s2s_queue *queue, const struct s2s_k_rows_sum_backward *args)
{
    const struct rows_sum_backward a = {
        cuda_mat(&args->src), cuda_mat(&args->ddst), cuda_mat(&args->dsrc), args->idx,
        args->weights,        args->dweights,        args->n_sources,       args->cols};
    const bool wide = cuda_is_wide(&args->src, args->cols) &&
                      cuda_is_wide(&args->ddst, args->cols) &&
                      cuda_is_wide(&args->dsrc, args->cols);
    const unsigned grid = (unsigned)(args->n * args->n_sources);
    if (wide)
        LAUNCH(queue, rows_sum_backward_kernel<CUDA_WIDE>, grid, CUDA_BLOCK, 32 * sizeof(float), a);
    else
        LAUNCH(queue, rows_sum_backward_kernel<1>, grid, CUDA_BLOCK, 32 * sizeof(float), a);
}

struct rows_max {
    struct cuda_mat dst, src;
    const int32_t *idx;
    int64_t n_sources;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float most[N], x[N];
        bool first = true;
#pragma unroll
        for (int i = 0; i < N; i++)
            most[i] = 0;
        for (int64_t j = row * n_sources; j < (row + 1) * n_sources; j++) {
            if (idx[j] < 0)
                continue;
            cuda_load(x, src, idx[j], col);
#pragma unroll
            for (int i = 0; i < N; i++)
                most[i] = first || x[i] > most[i] ? x[i] : most[i];
            first = false;
        }
        cuda_store(dst, row, col, most);
    }
};

void cuda_rows_max(struct s2s_queue *queue, const struct s2s_k_rows_max *args)
{
    const struct rows_max map = {cuda_mat(&args->dst), cuda_mat(&args->src), args->idx,
                                 args->n_sources};
    cuda_map(queue, map, args->n, args->cols,
             cuda_is_wide(&args->dst, args->cols) && cuda_is_wide(&args->src, args->cols));
}

struct rows_max_backward {
    struct cuda_mat src, ddst, dsrc;
    const int32_t *idx;
    int64_t n_sources;
    bool accumulate;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        float most[N], x[N], dy[N];
        int64_t which[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            which[i] = -1;
        cuda_load(dy, ddst, row, col);
        for (int64_t j = row * n_sources; j < (row + 1) * n_sources; j++) {
            if (idx[j] < 0)
                continue;
            cuda_load(x, src, idx[j], col);
#pragma unroll
            for (int i = 0; i < N; i++)
                if (which[i] < 0 || x[i] > most[i]) {
                    which[i] = j;
                    most[i] = x[i];
                }
        }
        for (int64_t j = row * n_sources; j < (row + 1) * n_sources; j++) {
            if (idx[j] < 0)
                continue;
#pragma unroll
            for (int i = 0; i < N; i++)
                x[i] = which[i] == j ? dy[i] : 0;
            cuda_update(dsrc, idx[j], col, x, accumulate);
        }
    }
};

void cuda_rows_max_backward(struct s2s_queue *queue, const struct s2s_k_rows_max_backward *args)
{
    const struct s2s_k_rows_max *f = &args->forward;
    const struct rows_max_backward map = {cuda_mat(&f->src),     cuda_mat(&args->ddst),
                                          cuda_mat(&args->dsrc), f->idx,
                                          f->n_sources,          args->accumulate};
    cuda_map(queue, map, f->n, f->cols,
             cuda_is_wide(&f->src, f->cols) && cuda_is_wide(&args->ddst, f->cols) &&
                 cuda_is_wide(&args->dsrc, f->cols));
}
