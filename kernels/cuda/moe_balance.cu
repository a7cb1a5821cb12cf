/* How evenly a router loads its experts: counts and sums of probabilities, losses of them, and what
 * these pass back. */
#include "kernels/cuda/moe_row.h"
#include "kernels/cuda/sum.h"

struct load {
    struct cuda_mat logits;
    const int32_t *segments;
    int64_t rows;
    int n, k; /* experts, those that count as chosen */
    enum s2s_score score;
};

static struct load load_of(const struct s2s_k_router_load *args)
{
    const struct load a = {cuda_mat(&args->logits), args->segments,      args->n,
                           (int)args->n_experts,    (int)args->n_chosen, args->score};
    return a;
}

static __device__ __forceinline__ int segment_of(const struct load &a, int64_t r)
{
    return a.segments ? a.segments[r] : 0;
}

/* What the losses see of a row, as in kernels/cpu/moe_balance.c: s[n] are its scores, which divided
 * by the sum are p. */
static __device__ __forceinline__ moe_row look_at_row(const struct load &a, float *s, int64_t r)
{
    moe_row row = moe_look(s, a.logits, r, a.n, a.score);
    if (a.score == S2S_SCORE_SIGMOID)
        row.sum += 1e-20f;
    return row;
}

/* ---- counts and sums ---- */

/* A block of sums has 32 experts of a segment, and lines that each take every 8th row of a part. */
enum { LINES = 8, PART_ROWS = 64, MOST_PARTS = 1024 };

/* Parts of the rows: fewer where there are many segments, as each takes what is its own of all. */
static int64_t n_parts(const struct s2s_k_router_load *args)
{
    const int64_t parts = cuda_ceil_div(args->n, PART_ROWS);
    const int64_t most = args->n_segments < MOST_PARTS ? MOST_PARTS / args->n_segments : 1;
    return parts < most ? parts : most;
}

/* Of each row its probabilities, with a sign where the expert is chosen, and its square; then, of
 * each part, sums of probabilities and counts. */
size_t cuda_router_load_workspace(const struct s2s_queue *queue,
                                  const struct s2s_k_router_load *args)
{
    const int64_t sums = 2 * n_parts(args) * args->n_segments * args->n_experts;
    return (size_t)(args->n * (args->n_experts + 1) + sums) * sizeof(float);
}

__global__ void __launch_bounds__(MOE_THREADS)
    load_rows_kernel(const struct load a, float *p, float *squares)
{
    SHARED(float, sh);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t r = moe_row_of_warp();
    if (r >= a.rows)
        return;
    float *const x = sh + warp * a.n;
    const moe_row row = look_at_row(a, x, r);
    for (int e = lane; e < a.n; e += 32)
        x[e] = moe_comparable(x[e] / row.sum);
    __syncwarp();
    moe_best last = moe_before_all();
    for (int j = 0; j < a.k; j++)
        last = moe_next_of_row(x, a.n, last, 0);
    for (int e = lane; e < a.n; e += 32)
        p[r * a.n + e] = moe_is_before(last, {x[e], e}) ? x[e] : -x[e];
    if (lane == 0) {
        const float log_sum = row.max + logf(row.exp);
        squares[r] = segment_of(a, r) < 0 ? 0 : log_sum * log_sum;
    }
}

__global__ void __launch_bounds__(32 * LINES)
    load_sums_kernel(const struct load a, const float *p, float *probs, float *counts,
                     int n_segments, int64_t part_rows)
{
    SHARED(float, sh); /* [2, LINES, 32] */
    const int lane = (int)threadIdx.x % 32, line = (int)threadIdx.x / 32;
    const int groups = (a.n + 31) / 32;
    const int segment = (int)(blockIdx.x / (unsigned)groups),
              e = (int)(blockIdx.x % (unsigned)groups) * 32 + lane;
    const int64_t begin = blockIdx.y * part_rows;
    const int64_t end = begin + part_rows < a.rows ? begin + part_rows : a.rows;
    float prob = 0, count = 0;
    for (int64_t r = begin + line; r < end && e < a.n; r += LINES) {
        if (segment_of(a, r) != segment)
            continue;
        const float x = p[r * a.n + e];
        prob += fabsf(x);
        count += (float)(cuda_bits(x) >> 31);
    }
    sh[threadIdx.x] = prob;
    sh[32 * LINES + threadIdx.x] = count;
    __syncthreads();
    if (line > 0 || e >= a.n)
        return;
    for (int i = 1; i < LINES; i++) {
        prob += sh[i * 32 + lane];
        count += sh[(LINES + i) * 32 + lane];
    }
    const int64_t to = ((int64_t)blockIdx.y * n_segments + segment) * a.n + e;
    probs[to] = prob;
    counts[to] = count;
}

__global__ void __launch_bounds__(CUDA_BLOCK)
    load_totals_kernel(const struct load a, const float *squares, float *totals)
{
    SHARED(double, room);
    double square = 0, rows = 0;
    for (int64_t r = threadIdx.x; r < a.rows; r += CUDA_BLOCK) {
        square += squares[r];
        rows += segment_of(a, r) >= 0;
    }
    square = cuda_block_sum(square, room);
    rows = cuda_block_sum(rows, room);
    if (threadIdx.x == 0) {
        totals[0] = (float)square;
        totals[1] = (float)rows;
    }
}

void cuda_router_load(struct s2s_queue *queue, const struct s2s_k_router_load *args)
{
    const struct load a = load_of(args);
    const int64_t parts = n_parts(args), sums = args->n_segments * args->n_experts;
    float *const p = (float *)args->workspace, *const squares = p + args->n * args->n_experts;
    float *const probs = squares + args->n, *const counts = probs + parts * sums;
    const dim3 grid((unsigned)(args->n_segments * cuda_ceil_div(args->n_experts, 32)),
                    (unsigned)parts);
    LAUNCH(queue, load_rows_kernel, moe_grid(args->n), MOE_THREADS,
           (size_t)(MOE_WARPS * a.n) * sizeof(float), a, p, squares);
    LAUNCH(queue, load_sums_kernel, grid, 32 * LINES, 2 * 32 * LINES * sizeof(float), a, p, probs,
           counts, (int)args->n_segments, parts ? cuda_ceil_div(args->n, parts) : 0);
    cuda_add_parts(queue, args->probs, probs, parts, sums, sums, false);
    cuda_add_parts(queue, args->counts, counts, parts, sums, sums, false);
    LAUNCH(queue, load_totals_kernel, 1, CUDA_BLOCK, 32 * sizeof(double), a, squares, args->totals);
}

/* ---- losses ---- */

struct balance {
    const float *counts, *probs, *totals;
    float *factors;
    double *losses;
    int n, n_segments;
    double k;
    float n_rows;
};

/* How many rows a segment has: its counts over the experts that a row chose. By a warp. */
static __device__ __forceinline__ double rows_of(const struct balance &a, int segment)
{
    double sum = 0;
    for (int e = (int)threadIdx.x % 32; e < a.n; e += 32)
        sum += a.counts[(int64_t)segment * a.n + e];
    return cuda_warp_sum(sum) / a.k;
}

/* One block, of whose warps each takes every 8th segment. */
__global__ void __launch_bounds__(CUDA_BLOCK) balance_kernel(const struct balance a)
{
    SHARED(double, room);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    double all = 0, used = 0, loss = 0;
    for (int s = warp; s < a.n_segments; s += CUDA_BLOCK / 32) {
        const double rows = rows_of(a, s);
        all += lane == 0 ? rows : 0;
        used += lane == 0 && rows > 0;
    }
    all = cuda_block_sum(all, room);
    used = cuda_block_sum(used, room);
    for (int s = warp; s < a.n_segments; s += CUDA_BLOCK / 32) {
        double rows = rows_of(a, s);
        if (rows > 0 && a.n_rows > 0)
            rows = a.n_rows;
        const double factor = rows > 0 ? all * a.n / (a.k * rows * rows * used) : 0;
        for (int64_t i = (int64_t)s * a.n + lane; i < (int64_t)(s + 1) * a.n; i += 32) {
            a.factors[i] = (float)(factor * a.counts[i]);
            loss += factor * a.counts[i] * a.probs[i];
        }
    }
    loss = cuda_block_sum(loss, room);
    if (threadIdx.x == 0 && a.losses) {
        a.losses[0] += loss;
        a.losses[1] += a.totals[0];
        a.losses[2] += a.totals[1];
    }
}

void cuda_router_balance(struct s2s_queue *queue, const struct s2s_k_router_balance *args)
{
    const struct balance a = {
        args->counts, args->probs,          args->totals,          args->factors,
        args->losses, (int)args->n_experts, (int)args->n_segments, (double)args->n_chosen,
        args->n_rows};
    LAUNCH(queue, balance_kernel, 1, CUDA_BLOCK, 32 * sizeof(double), a);
}

/* ---- backward ---- */

__global__ void __launch_bounds__(MOE_THREADS)
    balance_backward_kernel(const struct load a, const float *all_factors, float balance_scale,
                            float square_scale, struct cuda_mat dlogits, bool accumulate)
{
    SHARED(float, sh);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t r = moe_row_of_warp();
    if (r >= a.rows)
        return;
    const int segment = segment_of(a, r);
    if (segment < 0) {
        for (int e = lane; e < a.n && !accumulate; e += 32)
            cuda_put(dlogits, r, e, 0);
        return;
    }
    float *const s = sh + warp * a.n;
    const float *const factors = all_factors + (int64_t)segment * a.n;
    float inner = 0;
    const moe_row row = look_at_row(a, s, r);
    const float square = square_scale * 2 * (row.max + logf(row.exp));
    for (int e = lane; e < a.n; e += 32)
        inner += factors[e] * (s[e] / row.sum);
    inner = cuda_warp_sum(inner);
    for (int e = lane; e < a.n; e += 32) {
        const float dp = balance_scale * (factors[e] - inner);
        const float ds = a.score == S2S_SCORE_SOFTMAX ? dp : (1 - s[e]) * dp / row.sum;
        const float d[1] = {s[e] * ds +
                            square * expf(cuda_get(a.logits, r, e) - row.max) / row.exp};
        cuda_update(dlogits, r, e, d, accumulate);
    }
}

void cuda_router_balance_backward(struct s2s_queue *queue,
                                  const struct s2s_k_router_balance_backward *args)
{
    const struct load a = load_of(&args->forward);
    LAUNCH(queue, balance_backward_kernel, moe_grid(a.rows), MOE_THREADS,
           (size_t)(MOE_WARPS * a.n) * sizeof(float), a, args->factors, args->balance_scale,
           args->square_scale, cuda_mat(&args->dlogits), args->accumulate);
}
