/*
 * The scan of Mamba2 on the GPU: what the steps of each chunk do, what each chunk brings to the
 * state, then the states in order, one thread an element, and the chunks' results as one product
 * each, all chunks at a time; or in one pass (ssd_scan.cu). Sequences as short as those of
 * generation go row by row.
 */
#include "kernels/cuda/ssd.h"

/* Sequences up to this go row by row. */
enum { SHORT = 4 };

/* ---- the workspace ---- */

int64_t ssd_problem_of(struct ssd_problem *p, const struct s2s_k_ssd *args, bool with_states,
                       float *workspace)
{
    const int64_t rows = args->n * args->n_heads, slots = ssd_slots(args);
    const struct ssd_problem zero = {};
    *p = zero;
    p->cu = args->cu;
    p->n_seqs = args->n_seqs;
    p->n = args->n;
    p->slots = slots;
    p->n_heads = (int)args->n_heads;
    p->n_groups = (int)args->n_groups;
    p->per = (int)(args->n_heads / args->n_groups);
    p->all_heads = args->n_heads;
    p->dim = (int)args->dim;
    p->state = (int)args->state;
    p->x = ssd_source_of(&args->x, args->dim);
    p->b = ssd_source_of(&args->b, args->state);
    p->c = ssd_source_of(&args->c, args->state);
    p->skip = args->skip;
    const struct ssd_array arrays[] = {{&p->step, rows},
                                       {&p->slope, rows},
                                       {&p->high, rows},
                                       {&p->low, rows},
                                       {&p->rise, rows},
                                       {&p->left, rows},
                                       {&p->decay, slots * args->n_heads},
                                       {&p->products, slots * args->n_groups * SSD_SQUARE},
                                       {&p->states, ssd_state_floats(args)}};
    const int n = sizeof arrays / sizeof *arrays;
    return ssd_lay_out(arrays, with_states ? n : n - 2, workspace);
}

/* ---- the times ---- */

struct ssd_times {
    struct ssd_problem p;
    struct cuda_mat dt;
    const float *a_log, *dt_bias;
    float dt_min;
};

/* softplus of dt, and its derivative */
static __device__ __forceinline__ float step_of(const struct cuda_mat &dt, const float *dt_bias,
                                                float dt_min, int64_t row, int64_t head,
                                                float &slope)
{
    const float z = cuda_get(dt, row, head) + (dt_bias ? dt_bias[head] : 0);
    const float e = expf(-fabsf(z)), step = (z > 0 ? z : 0) + log1pf(e);
    slope = step < dt_min ? 0 : (z > 0 ? 1.0f : e) / (1 + e);
    return step < dt_min ? dt_min : step;
}

/* A thread a head; a block a chunk. */
__global__ void times_kernel(struct ssd_times a)
{
    const struct ssd_problem &p = a.p;
    const int head = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const struct ssd_chunk k = ssd_chunk_of(p, blockIdx.x);
    if (head >= p.n_heads || k.n == 0)
        return;
    const float rate = -expf(a.a_log[head]);
    double sum = 0;
    for (int t = 0; t < k.n; t++) {
        const int64_t at = (k.row + t) * p.n_heads + head;
        p.step[at] = step_of(a.dt, a.dt_bias, a.dt_min, k.row + t, head, p.slope[at]);
        sum += (double)(p.step[at] * rate);
        p.high[at] = (float)sum;
        p.low[at] = (float)(sum - (double)(float)sum);
        p.rise[at] = expf((float)sum);
    }
    for (int t = 0; t < k.n; t++) {
        const int64_t at = (k.row + t) * p.n_heads + head;
        p.left[at] = expf((float)(sum - p.high[at] - p.low[at]));
    }
    p.decay[(int64_t)blockIdx.x * p.n_heads + head] = expf((float)sum);
}

/* ---- the products of b and c: batches are slots and groups ---- */

struct ssd_pairs_product {
    struct ssd_problem p;
    int64_t batch, first;
    struct ssd_chunk k;

    __device__ bool begin(int64_t batch_, int, int)
    {
        batch = batch_;
        first = batch % p.n_groups * p.state;
        k = ssd_chunk_of(p, batch / p.n_groups);
        return k.n > 0;
    }
    __device__ int tiles() const
    {
        return (p.state + SSD_TILE - 1) / SSD_TILE;
    }
    __device__ bool a_rows(int) const
    {
        return true;
    }
    __device__ bool b_rows(int) const
    {
        return true;
    }
    __device__ void a_(float (&x)[8], int tile, int row, int col) const
    {
        ssd_zeros(x);
        if (row < k.n)
            ssd_read(x, p.c, k.row + row, first, tile * SSD_TILE + col, p.state);
    }
    __device__ void b_(float (&x)[8], int tile, int row, int col) const
    {
        ssd_zeros(x);
        if (row < k.n)
            ssd_read(x, p.b, k.row + row, first, tile * SSD_TILE + col, p.state);
    }
    __device__ void put(int row, int col, float x, float y) const
    {
        ssd_put(p.products + batch * SSD_SQUARE, row, col, SSD_CHUNK, x, y);
    }
};

/* ---- the states ---- */

struct ssd_pass {
    struct ssd_problem p;
    const float *initial;
    float *last;
};

/* What a chunk brought becomes the state before it. A thread has an element of a sequence and head
 * in all chunks. */
__global__ void pass_kernel(struct ssd_pass a)
{
    const struct ssd_problem &p = a.p;
    const int size = p.state * p.dim, i = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const int64_t seq = blockIdx.x / p.n_heads;
    const int head = (int)(blockIdx.x % p.n_heads);
    if (i >= size)
        return;
    /* [dim, state] outside */
    const int64_t outside = (seq * p.all_heads + head) * size + i % p.dim * p.state + i / p.dim;
    const int64_t first = ssd_first_slot(p, seq);
    const int64_t chunks = (p.cu[seq + 1] - p.cu[seq] + SSD_CHUNK - 1) / SSD_CHUNK;
    float s = a.initial ? a.initial[outside] : 0;
    for (int64_t slot = first; slot < first + chunks; slot++) {
        float *at = p.states + (slot * p.n_heads + head) * size + i;
        const float brought = *at;
        *at = s;
        s = p.decay[slot * p.n_heads + head] * s + brought;
    }
    if (a.last)
        a.last[outside] = s;
}

void ssd_make_times(struct s2s_queue *queue, const struct s2s_k_ssd *args,
                    const struct ssd_problem *p)
{
    const unsigned heads = (unsigned)(p->n_heads < 64 ? p->n_heads : 64);
    const struct ssd_times times = {*p, cuda_mat(&args->dt), args->a_log, args->dt_bias,
                                    args->dt_min};
    LAUNCH(queue, times_kernel,
           dim3((unsigned)p->slots, (unsigned)cuda_ceil_div(p->n_heads, heads)), heads, 0, times);
}

void ssd_make_states(struct s2s_queue *queue, const struct s2s_k_ssd *args,
                     const struct ssd_problem *p)
{
    const bool bf16 = args->x.dtype == S2S_BF16;
    const int64_t size = args->state * args->dim;
    struct ssd_pairs_product products = {};
    products.p = *p;
    ssd_product(queue, products, bf16, p->slots * p->n_groups, SSD_CHUNK, SSD_CHUNK);
    struct ssd_brought brought = {};
    brought.p = *p;
    brought.side = p->b;
    brought.v = p->x;
    brought.first = p->left;
    brought.second = p->step;
    brought.to = p->states;
    ssd_product(queue, brought, bf16, p->slots * p->n_heads, args->state, args->dim);
    const struct ssd_pass pass = {*p, args->initial, args->final};
    LAUNCH(queue, pass_kernel,
           dim3((unsigned)(p->n_seqs * p->n_heads), (unsigned)cuda_ceil_div(size, CUDA_BLOCK)),
           CUDA_BLOCK, 0, pass);
}

/* ---- the results: batches are slots and heads ---- */

/* y = [L (c b^T) step | exp(s) c] [x ; S] + skip x */
struct ssd_results {
    struct ssd_problem p;
    struct cuda_mat y;
    int64_t batch;
    int head, n;
    struct ssd_chunk k;

    __device__ bool begin(int64_t batch_, int, int n_)
    {
        batch = batch_;
        head = (int)(batch % p.n_heads);
        n = n_;
        k = ssd_chunk_of(p, batch / p.n_heads);
        return k.n > 0;
    }
    __device__ int tiles() const
    {
        return 1 + (p.state + SSD_TILE - 1) / SSD_TILE;
    }
    __device__ bool a_rows(int) const
    {
        return true;
    }
    __device__ bool b_rows(int) const
    {
        return false;
    }
    __device__ void a_(float (&x)[8], int tile, int row, int col) const
    {
        const int64_t t = k.row + row, at = t * p.n_heads + head;
        ssd_zeros(x);
        if (row >= k.n)
            return;
        if (tile > 0) {
            ssd_read(x, p.c, t, (int64_t)(head / p.per) * p.state, (tile - 1) * SSD_TILE + col,
                     p.state);
            ssd_scale(x, p.rise[at]);
            return;
        }
        if (col > row)
            return;
        const int64_t pair = batch / p.n_heads * p.n_groups + head / p.per;
        ssd_read(x, p.products + pair * SSD_SQUARE, row, col, SSD_CHUNK);
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = col + i <= row ? x[i] * ssd_kept(p, t, k.row + col + i, head) *
                                        p.step[(k.row + col + i) * p.n_heads + head]
                                  : 0;
    }
    __device__ void b_(float (&x)[8], int tile, int row, int col) const
    {
        ssd_zeros(x);
        if (tile == 0 && row < k.n)
            ssd_read(x, p.x, k.row + row, (int64_t)head * p.dim, n + col, p.dim);
        const int of_state = (tile - 1) * SSD_TILE + row;
        if (tile > 0 && of_state < p.state)
            ssd_read(x, p.states + batch * p.state * p.dim, of_state, n + col, p.dim);
    }
    __device__ void put(int row, int col, float x, float y_) const
    {
        const float both[2] = {x, y_};
        const int64_t t = k.row + row;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t at = (int64_t)head * p.dim + n + col + i;
            if (row >= k.n || n + col + i >= p.dim)
                continue;
            const float skip = p.skip ? p.skip[head] * cuda_get(p.x.mat, t, at) : 0;
            cuda_put(y, t, at, both[i] + skip);
        }
    }
};

/* ---- row by row ---- */

struct ssd_short_scan {
    struct cuda_mat x, y, dt, b, c;
    const float *a_log, *dt_bias, *skip, *initial;
    float *last;
    const int32_t *cu;
    int n_heads, per, dim, state;
    float dt_min;
};

/* A warp has a row of the state of a sequence and head, in shared memory. */
__global__ void short_kernel(struct ssd_short_scan a)
{
    SHARED(float, sh);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t seq = blockIdx.x / a.n_heads;
    const int head = (int)(blockIdx.x % a.n_heads);
    const int i = (int)(blockIdx.y * (blockDim.x / 32)) + warp;
    if (i >= a.dim)
        return;
    float *s = sh + warp * a.state, slope;
    const int64_t outside = ((int64_t)blockIdx.x * a.dim + i) * a.state;
    const int64_t first = (int64_t)(head / a.per) * a.state;
    const float rate = -expf(a.a_log[head]), skip = a.skip ? a.skip[head] : 0;
    for (int n = lane; n < a.state; n += 32)
        s[n] = a.initial ? a.initial[outside + n] : 0;
    for (int64_t t = a.cu[seq]; t < a.cu[seq + 1]; t++) {
        const float step = step_of(a.dt, a.dt_bias, a.dt_min, t, head, slope);
        const float decay = expf(rate * step), x = cuda_get(a.x, t, (int64_t)head * a.dim + i);
        float sum = 0;
        for (int n = lane; n < a.state; n += 32) {
            s[n] = decay * s[n] + step * x * cuda_get(a.b, t, first + n);
            sum += s[n] * cuda_get(a.c, t, first + n);
        }
        sum = cuda_warp_sum(sum);
        if (lane == 0)
            cuda_put(a.y, t, (int64_t)head * a.dim + i, sum + skip * x);
    }
    for (int n = lane; a.last && n < a.state; n += 32)
        a.last[outside + n] = s[n];
}

static void run_short(struct s2s_queue *queue, const struct s2s_k_ssd *args)
{
    enum { WARPS = 4 };
    const struct ssd_short_scan a = {cuda_mat(&args->x),
                                     cuda_mat(&args->y),
                                     cuda_mat(&args->dt),
                                     cuda_mat(&args->b),
                                     cuda_mat(&args->c),
                                     args->a_log,
                                     args->dt_bias,
                                     args->skip,
                                     args->initial,
                                     args->final,
                                     args->cu,
                                     (int)args->n_heads,
                                     (int)(args->n_heads / args->n_groups),
                                     (int)args->dim,
                                     (int)args->state,
                                     args->dt_min};
    LAUNCH(
        queue, short_kernel,
        dim3((unsigned)(args->n_seqs * args->n_heads), (unsigned)cuda_ceil_div(args->dim, WARPS)),
        WARPS * 32, (size_t)(WARPS * args->state) * sizeof(float), a);
}

/* ---- the entry ---- */

/* rows of no sequence = 0; a block a row */
__global__ void others_kernel(struct cuda_mat mat, const int32_t *cu, int64_t n_seqs, int64_t cols)
{
    if (in_a_seq(cu, n_seqs, blockIdx.x))
        return;
    for (int64_t col = threadIdx.x; col < cols; col += blockDim.x)
        cuda_put(mat, blockIdx.x, col, 0);
}

void ssd_zero_others(struct s2s_queue *queue, const struct s2s_k_ssd *args,
                     const struct s2s_mat *mat, int64_t cols)
{
    if (mat->data)
        LAUNCH(queue, others_kernel, (unsigned)args->n, 128, 0, cuda_mat(mat), args->cu,
               args->n_seqs, cols);
}

size_t cuda_ssd_workspace(const struct s2s_queue *queue, const struct s2s_k_ssd *args)
{
    struct ssd_problem p;
    if (args->n_groups == 0 || args->max_seqlen <= SHORT)
        return 0;
    return (size_t)ssd_problem_of(&p, args, !ssd_scan_takes(args), NULL) * sizeof(float);
}

void cuda_ssd(struct s2s_queue *queue, const struct s2s_k_ssd *args)
{
    if (args->n_groups == 0)
        return;
    ssd_zero_others(queue, args, &args->y, args->n_heads * args->dim);
    if (args->n_seqs == 0)
        return;
    if (args->max_seqlen <= SHORT) {
        run_short(queue, args);
        return;
    }
    struct ssd_results results = {};
    ssd_problem_of(&results.p, args, !ssd_scan_takes(args), (float *)args->workspace);
    results.y = cuda_mat(&args->y);
    ssd_make_times(queue, args, &results.p);
    if (ssd_scan_takes(args)) {
        ssd_scan(queue, args, &results.p);
        return;
    }
    ssd_make_states(queue, args, &results.p);
    ssd_product(queue, results, args->x.dtype == S2S_BF16, results.p.slots * args->n_heads,
                SSD_CHUNK, args->dim);
}
