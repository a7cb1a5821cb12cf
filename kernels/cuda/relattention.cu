/*
 * Attention with relative positions inside each clip:
 *   S_ij = scale ((q_i + u) k_j + (q_i + v) p_{i-j}),  P = softmax(S),  o = P value
 * A block a query and head; the backward keeps P and dS of all pairs in the workspace, and each
 * output then is a sum of its own, in the order of its clips and rows:
 *   dq_i = sum_j dS_ij (k_j + p_{i-j}),  dk_j = sum_i dS_ij (q_i + u),  dvalue_j = sum_i P_ij dO_i,
 *   dp_r = sum_{i-j=r} dS_ij (q_i + v);  du, dv: the two parts of dq, summed over rows
 */
#include "kernels/cuda/map.h"
#include "kernels/cuda/sum.h"

enum { THREADS = 128 };

struct problem {
    struct cuda_mat q, k, value, o, p, d_o;
    const float *u, *v;
    float *lse;
    const int32_t *cu;
    int64_t n_seqs, n_heads, dim, max_seqlen;
    float scale;
};

static struct problem problem_of(const struct s2s_k_relattention *f)
{
    struct problem a = {};
    a.q = cuda_mat(&f->q);
    a.k = cuda_mat(&f->k);
    a.value = cuda_mat(&f->value);
    a.o = cuda_mat(&f->o);
    a.p = cuda_mat(&f->p);
    a.u = f->u;
    a.v = f->v;
    a.lse = f->lse;
    a.cu = f->cu;
    a.n_seqs = f->n_seqs;
    a.n_heads = f->n_heads;
    a.dim = f->dim;
    a.max_seqlen = f->max_seqlen;
    a.scale = f->scale;
    return a;
}

/* What a row of the grid is: rows are counted clip by clip, max_seqlen each. */
struct place {
    int64_t begin, n, i; /* its first row and number of rows; the row inside of it */
};

static __device__ __forceinline__ struct place place_of(const struct problem &a, int64_t at)
{
    const int64_t seq = at / a.max_seqlen;
    const struct place here = {a.cu[seq], a.cu[seq + 1] - a.cu[seq], at - seq * a.max_seqlen};
    return here;
}

/* scale ((q_i + u) k_j + (q_i + v) p_{i-j}); qu and qv are scaled already */
template <int N>
static __device__ __forceinline__ float score_of(const struct problem &a, const struct place &at,
                                                 int64_t col, int64_t j, const float *qu,
                                                 const float *qv)
{
    const int64_t row_p = a.max_seqlen - 1 - at.i + j;
    float sum = 0, k[N], p[N];
    for (int64_t d = 0; d < a.dim; d += N) {
        cuda_load(k, a.k, at.begin + j, col + d);
        cuda_load(p, a.p, row_p, col + d);
#pragma unroll
        for (int e = 0; e < N; e++)
            sum += qu[d + e] * k[e] + qv[d + e] * p[e];
    }
    return sum;
}

static __device__ __forceinline__ void load_query(const struct problem &a, const struct place &at,
                                                  int64_t col, float *qu, float *qv)
{
    for (int64_t d = threadIdx.x; d < a.dim; d += THREADS) {
        const float q = cuda_get(a.q, at.begin + at.i, col + d);
        qu[d] = a.scale * (q + a.u[col + d]);
        qv[d] = a.scale * (q + a.v[col + d]);
    }
    __syncthreads();
}

static __device__ __forceinline__ float block_max(float x, float *room)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, shfl_xor(x, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    x = room[0];
    for (int i = 1; i < THREADS / 32; i++)
        x = fmaxf(x, room[i]);
    return x;
}

/* ---- forward ---- */

template <int N> __global__ void relattention_kernel(struct problem a)
{
    SHARED(float, room); /* [32], then q + u, q + v, scores, parts of o */
    float *qu = room + 32, *qv = qu + a.dim, *s = qv + a.dim;
    const struct place at = place_of(a, blockIdx.x);
    const int64_t head = blockIdx.y, col = head * a.dim;
    if (at.i >= at.n)
        return;
    load_query(a, at, col, qu, qv);
    float max = -INFINITY, sum = 0;
    for (int64_t j = threadIdx.x; j < at.n; j += THREADS) {
        s[j] = score_of<N>(a, at, col, j, qu, qv);
        max = fmaxf(max, s[j]);
    }
    max = block_max(max, room);
    for (int64_t j = threadIdx.x; j < at.n; j += THREADS) {
        s[j] = expf(s[j] - max);
        sum += s[j];
    }
    sum = cuda_block_sum(sum, room);
    __syncthreads();
    for (int64_t d = threadIdx.x; d < a.dim; d += THREADS) {
        float o = 0;
        for (int64_t j = 0; j < at.n; j++)
            o += s[j] * cuda_get(a.value, at.begin + j, col + d);
        cuda_put(a.o, at.begin + at.i, col + d, o / sum);
    }
    if (a.lse && threadIdx.x == 0)
        a.lse[(at.begin + at.i) * a.n_heads + head] = max + logf(sum);
}

static bool is_wide(const struct s2s_k_relattention *f)
{
    return cuda_is_wide(&f->k, f->dim) && cuda_is_wide(&f->p, f->dim) &&
           cuda_is_wide(&f->value, f->dim);
}

static size_t shared_bytes(const struct s2s_k_relattention *f, int rows)
{
    return (size_t)(32 + 2 * f->dim + rows * f->max_seqlen) * sizeof(float);
}

size_t cuda_relattention_workspace(const struct s2s_queue *queue,
                                   const struct s2s_k_relattention *args)
{
    return 0;
}

void cuda_relattention(struct s2s_queue *queue, const struct s2s_k_relattention *args)
{
    const struct problem a = problem_of(args);
    const dim3 grid((unsigned)(a.n_seqs * a.max_seqlen), (unsigned)a.n_heads);
    if (is_wide(args))
        LAUNCH(queue, relattention_kernel<CUDA_WIDE>, grid, THREADS, shared_bytes(args, 1), a);
    else
        LAUNCH(queue, relattention_kernel<1>, grid, THREADS, shared_bytes(args, 1), a);
}

/* ---- backward ---- */

/* P and dS of a query are max_seqlen numbers each; [rows, n_heads]. */
struct pairs {
    float *p, *ds;
};

static __device__ __forceinline__ const float *pair_row(const float *pairs, const struct problem &a,
                                                        int64_t row, int64_t head)
{
    return pairs + (row * a.n_heads + head) * a.max_seqlen;
}

template <int N> __global__ void relattention_pairs(struct problem a, struct pairs out)
{
    SHARED(float, room); /* [32], then q + u, q + v, dO */
    float *qu = room + 32, *qv = qu + a.dim, *d_o = qv + a.dim;
    const struct place at = place_of(a, blockIdx.x);
    const int64_t head = blockIdx.y, col = head * a.dim, row = at.begin + at.i;
    if (at.i >= at.n)
        return;
    for (int64_t d = threadIdx.x; d < a.dim; d += THREADS)
        d_o[d] = cuda_get(a.d_o, row, col + d);
    load_query(a, at, col, qu, qv);
    float *p = (float *)pair_row(out.p, a, row, head),
          *ds = (float *)pair_row(out.ds, a, row, head);
    const float lse = a.lse[row * a.n_heads + head];
    float sum = 0, delta = 0, value[N];
    for (int64_t j = threadIdx.x; j < at.n; j += THREADS) {
        float dp = 0;
        for (int64_t d = 0; d < a.dim; d += N) {
            cuda_load(value, a.value, at.begin + j, col + d);
#pragma unroll
            for (int e = 0; e < N; e++)
                dp += d_o[d + e] * value[e];
        }
        p[j] = expf(score_of<N>(a, at, col, j, qu, qv) - lse);
        ds[j] = dp;
        sum += p[j];
        delta += p[j] * dp;
    }
    /* the row's own sums, so that roundings of lse and dP do not stay in dS */
    sum = cuda_block_sum(sum, room);
    delta = cuda_block_sum(delta, room) / sum;
    for (int64_t j = threadIdx.x; j < at.n; j += THREADS) {
        p[j] /= sum;
        ds[j] = p[j] * (ds[j] - delta);
    }
}

/* dq, and its two parts: through the keys, through the positions. Rows of the grid, of which those
 * past a clip's end are zero. */
struct query_gradients {
    struct problem a;
    const float *ds;
    struct cuda_mat dq;
    float *by_key, *by_position; /* [n_seqs * max_seqlen, n_heads * dim] */
    bool accumulate;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        const struct place here = place_of(a, row);
        const int64_t out = row * a.n_heads * a.dim + col;
        float keys = 0, positions = 0;
        if (here.i < here.n) {
            const float *s = pair_row(ds, a, here.begin + here.i, col / a.dim);
            const int64_t first = a.max_seqlen - 1 - here.i;
            for (int64_t j = 0; j < here.n; j++) {
                keys += s[j] * cuda_get(a.k, here.begin + j, col);
                positions += s[j] * cuda_get(a.p, first + j, col);
            }
            const float sum[1] = {a.scale * (keys + positions)};
            if (dq.data)
                cuda_update(dq, here.begin + here.i, col, sum, accumulate);
        }
        by_key[out] = a.scale * keys;
        by_position[out] = a.scale * positions;
    }
};

struct key_gradients {
    struct problem a;
    struct pairs pairs;
    struct cuda_mat dk, dvalue;
    bool accumulate_dk, accumulate_dvalue;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        const struct place here = place_of(a, row);
        const int64_t head = col / a.dim, j = here.i;
        float key[1] = {0}, value[1] = {0};
        if (j >= here.n)
            return;
        for (int64_t i = here.begin; i < here.begin + here.n; i++) {
            key[0] += pair_row(pairs.ds, a, i, head)[j] * (cuda_get(a.q, i, col) + a.u[col]);
            value[0] += pair_row(pairs.p, a, i, head)[j] * cuda_get(a.d_o, i, col);
        }
        key[0] *= a.scale;
        if (dk.data)
            cuda_update(dk, here.begin + j, col, key, accumulate_dk);
        if (dvalue.data)
            cuda_update(dvalue, here.begin + j, col, value, accumulate_dvalue);
    }
};

/* Clips are shared out among parts, which are added in order. */
enum { MAX_PARTS = 16 };

struct position_gradients {
    struct problem a;
    const float *ds;
    float *parts; /* [n_parts, 2 max_seqlen - 1, n_heads * dim] */
    int64_t n_parts;
    /* row: part, then row of the table */
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        const int64_t rows = 2 * a.max_seqlen - 1, part = row / rows;
        const int64_t apart = row - part * rows - (a.max_seqlen - 1),
                      head = col / a.dim; /* j - i */
        float sum = 0;
        for (int64_t s = part * a.n_seqs / n_parts; s < (part + 1) * a.n_seqs / n_parts; s++) {
            const int64_t begin = a.cu[s], n = a.cu[s + 1] - begin;
            const int64_t first = apart < 0 ? -apart : 0, last = apart > 0 ? n - apart : n;
            for (int64_t i = first; i < last; i++)
                sum += pair_row(ds, a, begin + i, head)[i + apart] *
                       (cuda_get(a.q, begin + i, col) + a.v[col]);
        }
        parts[row * a.n_heads * a.dim + col] = a.scale * sum;
    }
};

struct store_sum {
    const float *sum;
    struct cuda_mat to;
    int64_t cols;
    bool accumulate;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        const float x[1] = {sum[row * cols + col]};
        cuda_update(to, row, col, x, accumulate);
    }
};

struct float_rows {
    enum { SUMS = 1 };
    const float *x;
    int64_t cols;
    template <int N> __device__ void at(int64_t row, int64_t col, float (&out)[1][N]) const
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            out[0][i] = x[row * cols + col + i];
    }
};

/* The workspace: P, dS, the parts of dq, parts of sums over rows, parts of dp and their sum. */
struct room {
    int64_t pairs, queries, rows, positions; /* floats of one of each */
    int64_t n_parts;
};

static int64_t most_rows(const struct s2s_k_relattention *f)
{
    return f->n_seqs * f->max_seqlen;
}

static struct room room_of(const struct s2s_k_relattention *f)
{
    const int64_t width = f->n_heads * f->dim, n = most_rows(f);
    const struct room r = {n * f->n_heads * f->max_seqlen, n * width, cuda_column_parts(n) * width,
                           (2 * f->max_seqlen - 1) * width,
                           f->n_seqs < MAX_PARTS ? f->n_seqs : (int64_t)MAX_PARTS};
    return r;
}

size_t cuda_relattention_backward_workspace(const struct s2s_queue *queue,
                                            const struct s2s_k_relattention_backward *args)
{
    const struct room r = room_of(&args->forward);
    if (args->forward.max_seqlen == 0)
        return 0;
    return (size_t)(2 * r.pairs + 2 * r.queries + r.rows + (r.n_parts + 1) * r.positions) *
           sizeof(float);
}

static void sum_rows(struct s2s_queue *queue, const float *x, int64_t rows, int64_t cols,
                     float *parts, float *out)
{
    const struct float_rows map = {x, cols};
    cuda_columns(queue, map, parts, rows, cols, false);
    cuda_add_parts(queue, out, parts, cuda_column_parts(rows), cols, cols, true);
}

void cuda_relattention_backward(struct s2s_queue *queue,
                                const struct s2s_k_relattention_backward *args)
{
    const struct s2s_k_relattention *f = &args->forward;
    const int64_t width = f->n_heads * f->dim, n = most_rows(f);
    struct problem a = problem_of(f);
    if (n == 0)
        return;
    const struct room r = room_of(f);
    float *at = (float *)args->workspace;
    const struct pairs pairs = {at, at + r.pairs};
    float *by_key = at + 2 * r.pairs, *by_position = by_key + r.queries;
    float *rows = by_position + r.queries, *positions = rows + r.rows;
    a.d_o = cuda_mat(&args->d_o);
    const dim3 grid((unsigned)most_rows(f), (unsigned)a.n_heads);
    const size_t bytes = (size_t)(32 + 3 * f->dim) * sizeof(float);
    if (is_wide(f))
        LAUNCH(queue, relattention_pairs<CUDA_WIDE>, grid, THREADS, bytes, a, pairs);
    else
        LAUNCH(queue, relattention_pairs<1>, grid, THREADS, bytes, a, pairs);
    const struct query_gradients queries = {a,      pairs.ds,    cuda_mat(&args->dq),
                                            by_key, by_position, args->accumulate_dq};
    cuda_map(queue, queries, n, width, false);
    if (args->du)
        sum_rows(queue, by_key, n, width, rows, args->du);
    if (args->dv)
        sum_rows(queue, by_position, n, width, rows, args->dv);
    const struct key_gradients keys = {a,
                                       pairs,
                                       cuda_mat(&args->dk),
                                       cuda_mat(&args->dvalue),
                                       args->accumulate_dk,
                                       args->accumulate_dvalue};
    if (args->dk.data || args->dvalue.data)
        cuda_map(queue, keys, n, width, false);
    if (!args->dp.data)
        return;
    const struct position_gradients dp = {a, pairs.ds, positions + r.positions, r.n_parts};
    const struct store_sum to = {positions, cuda_mat(&args->dp), width, args->accumulate_dp};
    cuda_map(queue, dp, r.n_parts * (2 * f->max_seqlen - 1), width, false);
    cuda_add_parts(queue, positions, positions + r.positions, r.n_parts, r.positions, r.positions,
                   false);
    cuda_map(queue, to, 2 * f->max_seqlen - 1, width, false);
}
