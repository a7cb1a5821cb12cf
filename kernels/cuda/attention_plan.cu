/*
 * Lists of work for attention, made on the device out of its spans, and what rows get that stand in
 * no span. A list is sorted by 256 sizes of work; the order inside a size is not fixed, and no
 * result depends on it.
 */
#include "kernels/cuda/attention_tile.h"

extern "C" [[noreturn]] void s2s_bug(const char *file, int line, const char *fmt, ...);
#define S2S_BUG(...) s2s_bug(__FILE__, __LINE__, __VA_ARGS__)

enum { SHORT_KEYS = 2048 };
enum { SIZES = 256, PLAN_THREADS = 256, FILL_BLOCKS = 64 };

struct plan {
    struct att_problem p;
    struct att_list list;
    int tile, rows, cols;
    int64_t most; /* work of a tile */
    bool of_keys;
    struct att_target targets[2];
    float *lse; /* of queries */
};

struct plan_shared {
    int count[SIZES], start[SIZES];
    int64_t room[32];
};

/* The rows that tiles of one span or group cover. */
static __device__ void plan_range(const struct plan &plan, int of, int &begin, int &end)
{
    if (!plan.of_keys) {
        begin = 0;
        end = plan.p.spans[of].nq;
        return;
    }
    begin = INT32_MAX;
    end = 0;
    for (int s = plan.p.groups[of]; s < plan.p.groups[of + 1]; s++) {
        const struct s2s_span span = plan.p.spans[s];
        if (span.nk == 0)
            continue;
        begin = min(begin, span.k0);
        end = max(end, span.k0 + span.nk);
    }
    begin = min(begin, end);
}

static __device__ int plan_size(const struct plan &plan, int of, int at)
{
    int lo, hi;
    int64_t work = 0;
    if (!plan.of_keys) {
        const struct s2s_span span = plan.p.spans[of];
        att_seen_keys(plan.p, span, at, min(plan.tile, span.nq - at), lo, hi);
        work = hi - lo;
    }
    for (int s = plan.p.groups[of]; plan.of_keys && s < plan.p.groups[of + 1]; s++) {
        const struct s2s_span span = plan.p.spans[s];
        att_seeing_queries(plan.p.window, span, at - span.k0, plan.tile, lo, hi);
        work += max(hi - lo, 0);
    }
    const int64_t size = work * SIZES / (plan.most + 1);
    return size < 0 ? 0 : size < SIZES ? (int)size : SIZES - 1;
}

/* Counts the tiles of each size, or puts each where its size begins. */
static __device__ void plan_walk(const struct plan &plan, struct plan_shared *sh, bool puts)
{
    const int lane = (int)threadIdx.x % 32, n_of = plan.of_keys ? plan.p.n_groups : plan.p.n_spans;
    for (int of = (int)threadIdx.x / 32; of < n_of; of += PLAN_THREADS / 32) {
        int begin, end;
        plan_range(plan, of, begin, end);
        for (int at = begin + lane * plan.tile; at < end; at += 32 * plan.tile) {
            const int size = plan_size(plan, of, at);
            if (!puts)
                atomicAdd(&sh->count[size], 1);
            else
                plan.list.work[atomicAdd(&sh->start[size], 1)] = {of, at};
        }
    }
}

static __device__ void plan_list(const struct plan &plan, struct plan_shared *sh)
{
    static_assert(SIZES == PLAN_THREADS, "a thread a size");
    const int t = (int)threadIdx.x;
    sh->count[t] = 0;
    __syncthreads();
    plan_walk(plan, sh, false);
    __syncthreads();
    /* what begins behind all greater sizes: sums from the end, over 1, 2, 4 .. of them */
    const int own = sh->count[t];
    int sum = own;
    for (int by = 1; by < SIZES; by *= 2) {
        sh->start[t] = sum;
        __syncthreads();
        sum += t + by < SIZES ? sh->start[t + by] : 0;
        __syncthreads();
    }
    if (t == 0)
        *plan.list.n = sum;
    sh->start[t] = sum - own;
    __syncthreads();
    plan_walk(plan, sh, true);
}

static __device__ void plan_fill(const struct plan &plan, struct plan_shared *sh)
{
    const int n_of = plan.of_keys ? plan.p.n_groups : plan.p.n_spans;
    int64_t covered = 0;
    for (int of = (int)threadIdx.x; of < n_of; of += PLAN_THREADS) {
        int begin, end;
        plan_range(plan, of, begin, end);
        covered += end - begin;
    }
    if (cuda_block_sum(covered, sh->room) == plan.rows)
        return;
    const int64_t first = ((int64_t)blockIdx.x - 1) * PLAN_THREADS + threadIdx.x;
    const int64_t step = (int64_t)(gridDim.x - 1) * PLAN_THREADS;
    for (int t = 0; t < 2; t++) {
        const struct att_target &to = plan.targets[t];
        for (int64_t i = first; to.mat.data && !to.accumulate && i < (int64_t)plan.rows * plan.cols;
             i += step)
            cuda_put(to.mat, i / plan.cols, i % plan.cols, 0);
    }
    for (int64_t i = first; plan.lse && i < (int64_t)plan.rows * plan.p.n_heads; i += step)
        plan.lse[i] = -INFINITY;
}

__global__ void __launch_bounds__(PLAN_THREADS) plan_kernel(const struct plan plan)
{
    SHARED(struct plan_shared, sh);
    if (blockIdx.x == 0)
        plan_list(plan, sh);
    else
        plan_fill(plan, sh);
}

/* ---- on the host ---- */

struct att_problem att_problem_of(const struct s2s_k_attention *args)
{
    if (!(args->scale > 0))
        S2S_BUG("attention: a scale of %g", (double)args->scale);
    const bool window = args->window > 0 && args->window < 1 << 30;
    struct att_problem p = {args->spans,
                            args->groups,
                            (int)args->n_spans,
                            (int)args->n_groups,
                            (int)args->n_heads,
                            (int)(args->n_heads / args->n_kv_heads),
                            (int)args->n_q,
                            (int)args->n_k,
                            (int)args->dim,
                            window ? (int)args->window : 0,
                            args->scale,
                            args->scale * att_log2e,
                            args->n_k < args->n_spans * SHORT_KEYS,
                            cuda_draw_of(&args->draw, 1 + args->first_head),
                            args->k_at};
    return p;
}

size_t att_list_bytes(int64_t rows, int64_t n_of)
{
    const int64_t most = att_most_tiles(rows, n_of, ATT_LEAST_TILE);
    return (size_t)(16 + cuda_ceil_div(most * (int64_t)sizeof(struct att_work), 16) * 16);
}

struct att_list att_list_take(char **workspace, int64_t rows, int64_t n_of)
{
    struct att_list list = {(int32_t *)*workspace, (struct att_work *)(*workspace + 16)};
    *workspace += att_list_bytes(rows, n_of);
    return list;
}

void att_plan_queries(struct s2s_queue *queue, const struct att_problem *p,
                      const struct att_list *list, int tile, const struct att_target *target,
                      float *lse)
{
    const struct plan plan = {*p,     *list, tile,      p->n_q, p->n_heads * p->dim,
                              p->n_k, false, {*target}, lse};
    LAUNCH(queue, plan_kernel, 1 + FILL_BLOCKS, PLAN_THREADS, sizeof(struct plan_shared), plan);
}

void att_plan_keys(struct s2s_queue *queue, const struct att_problem *p,
                   const struct att_list *list, int tile, const struct att_target *dk,
                   const struct att_target *dv)
{
    const struct plan plan = {*p,     *list, tile,       p->n_k, p->n_heads / p->n_rep * p->dim,
                              p->n_q, true,  {*dk, *dv}, NULL};
    LAUNCH(queue, plan_kernel, 1 + FILL_BLOCKS, PLAN_THREADS, sizeof(struct plan_shared), plan);
}

bool att_is_bf16(const struct s2s_k_attention *args, enum s2s_dtype more)
{
    if (args->q.dtype != args->k.dtype || args->q.dtype != args->v.dtype || args->q.dtype != more)
        S2S_BUG("attention: q, k, v and dO are of several element types");
    return args->q.dtype == S2S_BF16;
}

int att_width(int dim)
{
    static const int widths[] = {64, 96, 128, 192, 256};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (dim <= widths[i])
            return widths[i];
    S2S_BUG("attention: heads of %d are wider than 256", dim);
}

struct att_source att_source_of(const struct s2s_mat *mat, int64_t dim)
{
    const int64_t size = mat->dtype == S2S_BF16 ? 2 : 4;
    struct att_source from = {(const char *)mat->data, (int)(mat->stride * size), (int)(dim * size),
                              false};
    if (mat->stride * size > INT32_MAX)
        S2S_BUG("attention: rows %lld elements apart", (long long)mat->stride);
    from.is_wide =
        (uintptr_t)mat->data % 16 == 0 && from.row_bytes % 16 == 0 && from.head_bytes % 16 == 0;
    return from;
}

struct att_target att_target_of(const struct s2s_mat *mat, int64_t dim, bool accumulate)
{
    const uintptr_t pair = mat->dtype == S2S_BF16 ? 4 : 8;
    struct att_target to = {cuda_mat(mat), accumulate,
                            (uintptr_t)mat->data % pair == 0 && mat->stride % 2 == 0 &&
                                dim % 2 == 0};
    return to;
}
