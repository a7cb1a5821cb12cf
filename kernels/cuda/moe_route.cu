/* Which experts each row goes to, what their weights pass back, and the order by expert. */
#include "kernels/cuda/moe_row.h"

/* ---- route ---- */

struct route {
    struct cuda_mat logits;
    const float *bias;
    int32_t *experts;
    float *weights;
    int64_t rows;
    int n, k; /* experts, those that are chosen */
    int n_groups, n_chosen_groups, n_group_best;
    enum s2s_score score;
    bool normalise;
    float scale;
};

static struct route route_of(const struct s2s_k_route *args)
{
    const struct route a = {cuda_mat(&args->logits),
                            args->bias,
                            args->experts,
                            args->weights,
                            args->n,
                            (int)args->n_experts,
                            (int)args->n_chosen,
                            (int)args->n_groups,
                            (int)args->n_chosen_groups,
                            (int)args->n_group_best,
                            args->score,
                            args->normalise,
                            args->scale};
    return a;
}

/* Bits of this lane's experts that are outside of the chosen groups. */
static __device__ uint32_t close_groups(const struct route &a, const float *b, float *groups)
{
    const int lane = (int)threadIdx.x % 32, width = a.n / a.n_groups;
    uint32_t closed = 0;
    for (int g = lane; g < a.n_groups; g += 32) {
        moe_best best = moe_before_all();
        float sum = 0;
        for (int i = 0; i < a.n_group_best; i++) {
            best = moe_next(b, g * width, (g + 1) * width, 1, best, 0);
            sum += best.x;
        }
        groups[g] = moe_comparable(sum);
    }
    __syncwarp();
    moe_best last = moe_before_all();
    for (int i = 0; i < a.n_chosen_groups; i++)
        last = moe_next_of_row(groups, a.n_groups, last, 0);
    for (int i = 0; lane + 32 * i < a.n; i++) {
        const int g = (lane + 32 * i) / width;
        if (moe_is_before(last, {groups[g], g}))
            closed |= 1u << i;
    }
    return closed;
}

static size_t route_room(const struct route *a)
{
    return (size_t)(2 * a->n + a->n_groups) * sizeof(float);
}

__global__ void __launch_bounds__(MOE_THREADS) route_kernel(const struct route a)
{
    SHARED(float, sh);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t r = moe_row_of_warp();
    if (r >= a.rows)
        return;
    float *const s = sh + warp * (2 * a.n + a.n_groups), *const b = s + a.n;
    int32_t *const experts = a.experts + r * a.k;
    moe_look(s, a.logits, r, a.n, a.score);
    for (int e = lane; e < a.n; e += 32)
        b[e] = moe_comparable(s[e] + (a.bias ? a.bias[e] : 0));
    __syncwarp();
    const uint32_t closed = a.n_groups > 0 ? close_groups(a, b, b + a.n) : 0;
    moe_best best = moe_before_all();
    float sum = 0;
    for (int j = 0; j < a.k; j++) {
        best = moe_next_of_row(b, a.n, best, closed);
        sum += s[best.e];
        if (lane == 0)
            experts[j] = best.e;
    }
    __syncwarp();
    const float factor = a.normalise ? a.scale / (sum + 1e-20f) : a.scale;
    for (int j = lane; j < a.k; j += 32)
        a.weights[r * a.k + j] = factor * s[experts[j]];
}

void cuda_route(struct s2s_queue *queue, const struct s2s_k_route *args)
{
    const struct route a = route_of(args);
    LAUNCH(queue, route_kernel, moe_grid(args->n), MOE_THREADS, MOE_WARPS * route_room(&a), a);
}

/* ---- route backward ---- */

__global__ void __launch_bounds__(MOE_THREADS)
    route_backward_kernel(const struct route a, const float *dweights, struct cuda_mat dlogits,
                          bool accumulate)
{
    SHARED(float, sh);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t r = moe_row_of_warp();
    if (r >= a.rows)
        return;
    float *const s = sh + warp * 2 * a.n, *const ds = s + a.n;
    const int32_t *const experts = a.experts + r * a.k;
    const float *const dw = dweights + r * a.k;
    const bool softmax = a.score == S2S_SCORE_SOFTMAX;
    float sum = 0, dot = 0, inner = 0;
    moe_look(s, a.logits, r, a.n, a.score);
    for (int e = lane; e < a.n; e += 32)
        ds[e] = 0;
    __syncwarp();
    for (int j = lane; j < a.k; j += 32) {
        sum += s[experts[j]];
        dot += dw[j] * s[experts[j]];
    }
    sum = cuda_warp_sum(sum) + 1e-20f;
    dot = cuda_warp_sum(dot);
    for (int j = lane; j < a.k; j += 32) {
        const float d = a.scale * (a.normalise ? (dw[j] - dot / sum) / sum : dw[j]);
        ds[experts[j]] = d;
        inner += s[experts[j]] * d;
    }
    inner = cuda_warp_sum(inner);
    __syncwarp();
    for (int e = lane; e < a.n; e += 32) {
        const float d[1] = {s[e] * (softmax ? ds[e] - inner : (1 - s[e]) * ds[e])};
        cuda_update(dlogits, r, e, d, accumulate);
    }
}

void cuda_route_backward(struct s2s_queue *queue, const struct s2s_k_route_backward *args)
{
    const struct route a = route_of(&args->forward);
    LAUNCH(queue, route_backward_kernel, moe_grid(a.rows), MOE_THREADS,
           (size_t)(MOE_WARPS * 2 * a.n) * sizeof(float), a, args->dweights,
           cuda_mat(&args->dlogits), args->accumulate);
}

/* ---- order by expert: a counting sort of chunks, a warp each ---- */

enum { CHUNK = 256, SCAN_THREADS = 1024 };

static int64_t n_chunks(const struct s2s_k_expert_order *args)
{
    return cuda_ceil_div(args->n, CHUNK);
}

/* starts [n_experts, chunks]: choices of each chunk for each expert, then those of all chunks
 * before it. */
size_t cuda_expert_order_workspace(const struct s2s_queue *queue,
                                   const struct s2s_k_expert_order *args)
{
    return (size_t)(n_chunks(args) * args->n_experts) * sizeof(int32_t);
}

/* The lanes of the warp that have the same expert as this one, which is below 2^11. */
static __device__ __forceinline__ uint32_t same_expert(int expert)
{
    uint32_t same = ~0u;
#pragma unroll
    for (int bit = 0; bit < 11; bit++) {
        const uint32_t set = __ballot_sync(~0u, expert >> bit & 1);
        same &= expert >> bit & 1 ? set : ~set;
    }
    return same;
}

static_assert((int)S2S_MAX_EXPERTS < 1 << 11, "experts, and one more number, have 11 bits");

/*
 * PLACES: every choice gets its place, of those of its chunk by the lanes' order; or the choices of
 * the chunk are counted.
 */
template <bool PLACES>
__global__ void __launch_bounds__(32)
    chunk_kernel(const int32_t *experts, int32_t *starts, const int32_t *offsets, int32_t *places,
                 int32_t *rows, int64_t n, int n_experts, int n_chosen)
{
    SHARED(int32_t, counts);
    const int lane = (int)threadIdx.x;
    const int64_t chunk = blockIdx.x, chunks = gridDim.x, begin = chunk * CHUNK;
    for (int e = lane; e < n_experts; e += 32)
        counts[e] = PLACES ? offsets[e] + starts[e * chunks + chunk] : 0;
    __syncwarp();
    for (int64_t first = begin; first < begin + CHUNK && first < n; first += 32) {
        const int64_t i = first + lane;
        const int expert = i < n ? experts[i] : n_experts;
        const uint32_t same = same_expert(expert);
        const int before = __popc(same & ((1u << lane) - 1));
        const int at = i < n ? counts[expert] : 0;
        if (PLACES && i < n) {
            places[i] = at + before;
            rows[at + before] = (int32_t)(i / n_chosen);
        }
        __syncwarp();
        if (i < n && before == 0)
            counts[expert] = at + __popc(same);
        __syncwarp();
    }
    for (int e = lane; e < n_experts && !PLACES; e += 32)
        starts[e * chunks + chunk] = counts[e];
}

/* The sum over lanes up to this one. */
static __device__ __forceinline__ int32_t sum_up_to(int32_t x)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int32_t below = __shfl_up_sync(~0u, x, (unsigned)step);
        x += lane >= step ? below : 0;
    }
    return x;
}

/* One block: starts become sums over the chunks before, and offsets those over the experts. */
__global__ void __launch_bounds__(SCAN_THREADS)
    scan_kernel(int32_t *starts, int32_t *offsets, int64_t chunks, int n_experts)
{
    SHARED(int32_t, totals); /* [S2S_MAX_EXPERTS], then [32] of warps */
    int32_t *const warps = totals + S2S_MAX_EXPERTS;
    const int t = (int)threadIdx.x, lane = t % 32, warp = t / 32;
    totals[t] = 0;
    __syncthreads();
    for (int e = warp; e < n_experts; e += SCAN_THREADS / 32) {
        int32_t total = 0, *const of = starts + e * chunks;
        for (int64_t first = 0; first < chunks; first += 32) {
            const int64_t c = first + lane;
            const int32_t x = c < chunks ? of[c] : 0, sum = sum_up_to(x);
            if (c < chunks)
                of[c] = total + sum - x;
            total += __shfl_sync(~0u, sum, 31);
        }
        if (lane == 0)
            totals[e] = total;
    }
    __syncthreads();
    const int32_t sum = sum_up_to(totals[t]);
    if (lane == 31)
        warps[warp] = sum;
    __syncthreads();
    const int32_t all = sum_up_to(warps[lane]);
    const int32_t before = __shfl_sync(~0u, all, warp > 0 ? warp - 1 : 0);
    if (t < n_experts)
        offsets[t + 1] = sum + (warp > 0 ? before : 0);
    if (t == 0)
        offsets[0] = 0;
}

static_assert((int)S2S_MAX_EXPERTS == (int)SCAN_THREADS, "a thread an expert");

void cuda_expert_order(struct s2s_queue *queue, const struct s2s_k_expert_order *args)
{
    int32_t *const starts = (int32_t *)args->workspace;
    const int64_t chunks = n_chunks(args);
    const size_t room = (size_t)args->n_experts * sizeof(int32_t);
    LAUNCH(queue, chunk_kernel<false>, (unsigned)chunks, 32, room, args->experts, starts,
           args->offsets, args->places, args->rows, args->n, (int)args->n_experts,
           (int)args->n_chosen);
    LAUNCH(queue, scan_kernel, 1, SCAN_THREADS, (S2S_MAX_EXPERTS + 32) * sizeof(int32_t), starts,
           args->offsets, chunks, (int)args->n_experts);
    LAUNCH(queue, chunk_kernel<true>, (unsigned)chunks, 32, room, args->experts, starts,
           args->offsets, args->places, args->rows, args->n, (int)args->n_experts,
           (int)args->n_chosen);
}
