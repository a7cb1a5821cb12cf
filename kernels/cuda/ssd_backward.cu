/*
 * Gradients of the scan on the GPU, all chunks at a time (kernels/cpu/ssd_backward.c has the
 * formulas and the names): the states before the chunks again, the gradients of those behind them
 * in reverse order, one thread an element, and all else as products of a chunk and sums over its
 * rows. Sums over heads are sums of products, or of a fixed order.
 *
 * States and weights of all heads are some 200 KiB a token where these are 64 x 128 x 128. Groups
 * of heads have nothing in common, so that they come one after the other, as few at a time as fill
 * the device: the workspace is of these, and no result depends on how many they are.
 */
#include "kernels/cuda/map.h"
#include "kernels/cuda/ssd.h"
#include "kernels/cuda/sum.h"

struct ssd_gradients {
    struct ssd_problem p;
    struct ssd_source dy;
    struct cuda_mat dx, ddt;
    float *r;       /* gradients of the states behind the chunks, as the states */
    float *weights; /* [slots, n_heads, SSD_CHUNK, SSD_CHUNK] L W step */
    float *summed;  /* [slots, n_groups, ..] of the heads of a group */
    float *through; /* [n, n_heads * dim] exp(s) (S c) */
    float *dv;      /* the same of dV */
    float *pairs, *behind, *before, *xdv, *xdy; /* [n, n_heads] */
    float *all;                                 /* [slots, n_heads] */
    float *parts;                               /* [slots, 3, n_heads] */
    const float *a_log;
    bool accumulate_dx, accumulate_ddt;
};

/* Takes the arrays from the workspace (NULL: none yet); gives their floats. */
static int64_t gradients_of(struct ssd_gradients *a, const struct s2s_k_ssd_backward *args,
                            float *workspace)
{
    const struct s2s_k_ssd *f = &args->forward;
    const int64_t rows = f->n * f->n_heads, heads = ssd_slots(f) * f->n_heads;
    const struct ssd_gradients zero = {};
    *a = zero;
    a->dy = ssd_source_of(&args->dy, f->dim);
    a->dx = cuda_mat(&args->dx);
    a->ddt = cuda_mat(&args->ddt);
    a->a_log = f->a_log;
    a->accumulate_dx = args->accumulate_dx;
    a->accumulate_ddt = args->accumulate_ddt;
    const int64_t first = ssd_problem_of(&a->p, f, true, workspace);
    const struct ssd_array arrays[] = {{&a->r, ssd_state_floats(f)},
                                       {&a->weights, heads * SSD_SQUARE},
                                       {&a->summed, ssd_slots(f) * f->n_groups * SSD_SQUARE},
                                       {&a->through, rows * f->dim},
                                       {&a->dv, rows * f->dim},
                                       {&a->pairs, rows},
                                       {&a->behind, rows},
                                       {&a->before, rows},
                                       {&a->xdv, rows},
                                       {&a->xdy, rows},
                                       {&a->all, heads},
                                       {&a->parts, 3 * heads}};
    return first + ssd_lay_out(arrays, sizeof arrays / sizeof *arrays,
                               workspace ? workspace + first : NULL);
}

enum { BLOCKS = 8 }; /* of a product of all chunks, that keep a multiprocessor busy */

/* Groups of heads that are computed at a time. */
static int64_t groups_at_a_time(const struct s2s_queue *queue, const struct s2s_k_ssd *f)
{
    const int64_t wanted = (int64_t)BLOCKS * cuda_queue_of(queue)->device.multiprocessors;
    const int64_t blocks = ssd_slots(f) * (f->n_heads / f->n_groups);
    const int64_t groups = blocks > 0 ? cuda_ceil_div(wanted, blocks) : f->n_groups;
    return groups < f->n_groups ? groups : f->n_groups;
}

static struct s2s_mat columns_from(const struct s2s_mat *mat, int64_t col)
{
    struct s2s_mat part = *mat;
    if (part.data)
        part.data = (char *)part.data + col * (part.dtype == S2S_BF16 ? 2 : 4);
    return part;
}

static float *from(const float *all, int64_t at)
{
    return all ? (float *)all + at : NULL;
}

/* The same for n groups of heads, from `first` on. */
static struct s2s_k_ssd_backward part_of(const struct s2s_k_ssd_backward *args, int64_t first,
                                         int64_t n)
{
    struct s2s_k_ssd_backward part = *args;
    struct s2s_k_ssd *f = &part.forward;
    const int64_t per = f->n_heads / f->n_groups, head = first * per, size = f->dim * f->state;
    f->n_heads = n * per;
    f->n_groups = n;
    f->x = columns_from(&f->x, head * f->dim);
    f->dt = columns_from(&f->dt, head);
    f->b = columns_from(&f->b, first * f->state);
    f->c = columns_from(&f->c, first * f->state);
    f->a_log += head;
    f->dt_bias = from(f->dt_bias, head);
    f->skip = from(f->skip, head);
    f->initial = from(f->initial, head * size);
    f->final = NULL;
    part.dy = columns_from(&part.dy, head * f->dim);
    part.dx = columns_from(&part.dx, head * f->dim);
    part.ddt = columns_from(&part.ddt, head);
    part.db = columns_from(&part.db, first * f->state);
    part.dc = columns_from(&part.dc, first * f->state);
    part.dfinal = from(part.dfinal, head * size);
    part.dinitial = from(part.dinitial, head * size);
    part.da_log = from(part.da_log, head);
    part.ddt_bias = from(part.ddt_bias, head);
    part.dskip = from(part.dskip, head);
    return part;
}

size_t cuda_ssd_backward_workspace(const struct s2s_queue *queue,
                                   const struct s2s_k_ssd_backward *args)
{
    struct ssd_gradients a;
    if (args->forward.n_groups == 0)
        return 0;
    const struct s2s_k_ssd_backward part =
        part_of(args, 0, groups_at_a_time(queue, &args->forward));
    return (size_t)gradients_of(&a, &part, NULL) * sizeof(float);
}

/* ---- states ---- */

struct ssd_pass_back {
    struct ssd_problem p;
    float *r;
    const float *dlast;
    float *dinitial;
    bool accumulate;
};

/* What a chunk brought to the gradient becomes that of the state behind it. */
__global__ void pass_back_kernel(struct ssd_pass_back a)
{
    const struct ssd_problem &p = a.p;
    const int size = p.state * p.dim, i = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const int64_t seq = blockIdx.x / p.n_heads;
    const int head = (int)(blockIdx.x % p.n_heads);
    if (i >= size)
        return;
    const int64_t outside = (seq * p.all_heads + head) * size + i % p.dim * p.state + i / p.dim;
    const int64_t first = ssd_first_slot(p, seq);
    const int64_t chunks = (p.cu[seq + 1] - p.cu[seq] + SSD_CHUNK - 1) / SSD_CHUNK;
    float r = a.dlast ? a.dlast[outside] : 0;
    for (int64_t slot = first + chunks - 1; slot >= first; slot--) {
        float *at = a.r + (slot * p.n_heads + head) * size + i;
        const float brought = *at;
        *at = r;
        r = p.decay[slot * p.n_heads + head] * r + brought;
    }
    if (a.dinitial)
        a.dinitial[outside] = (a.accumulate ? a.dinitial[outside] : 0) + r;
}

/* all = exp(s_last) <R, S>; a block a slot and head */
__global__ void all_kernel(struct ssd_gradients a)
{
    SHARED(float, room);
    const struct ssd_problem &p = a.p;
    const int64_t size = (int64_t)p.state * p.dim, at = blockIdx.x * size;
    float sum = 0;
    if (ssd_chunk_of(p, blockIdx.x / p.n_heads).n == 0)
        return;
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x)
        sum += a.r[at + i] * p.states[at + i];
    sum = cuda_block_sum(sum, room);
    if (threadIdx.x == 0)
        a.all[blockIdx.x] = p.decay[blockIdx.x] * sum;
}

/* ---- products: batches are slots and heads ---- */

/* What they have in common: SSD_CHUNK rows of one chunk and head. */
struct ssd_of_head {
    struct ssd_gradients a;
    int64_t batch;
    int head, n;
    struct ssd_chunk k;

    __device__ bool begin(int64_t batch_, int, int n_)
    {
        batch = batch_;
        head = (int)(batch % a.p.n_heads);
        n = n_;
        k = ssd_chunk_of(a.p, batch / a.p.n_heads);
        return k.n > 0;
    }
    __device__ int64_t at(int row) const
    {
        return (k.row + row) * a.p.n_heads + head;
    }
    __device__ const float *products() const
    {
        const int64_t pair = batch / a.p.n_heads * a.p.n_groups + head / a.p.per;
        return a.p.products + pair * SSD_SQUARE;
    }
    /* 8 elements of a row of b or c, of x or dy */
    __device__ void of_group(float (&x)[8], const struct ssd_source &from, int row, int col) const
    {
        ssd_zeros(x);
        if (row < k.n)
            ssd_read(x, from, k.row + row, (int64_t)(head / a.p.per) * a.p.state, col, a.p.state);
    }
    __device__ void of_dim(float (&x)[8], const struct ssd_source &from, int row, int col) const
    {
        ssd_zeros(x);
        if (row < k.n)
            ssd_read(x, from, k.row + row, (int64_t)head * a.p.dim, col, a.p.dim);
    }
};

/* weights = L (dy x^T) step */
struct ssd_weights_product : ssd_of_head {
    __device__ int tiles() const
    {
        return (a.p.dim + SSD_TILE - 1) / SSD_TILE;
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
        of_dim(x, ssd_of_head::a.dy, row, tile * SSD_TILE + col);
    }
    __device__ void b_(float (&x)[8], int tile, int row, int col) const
    {
        of_dim(x, ssd_of_head::a.p.x, row, tile * SSD_TILE + col);
    }
    __device__ float of_pair(int t, int u, float w) const
    {
        if (u > t || t >= k.n)
            return 0;
        return ssd_kept(a.p, k.row + t, k.row + u, head) * w * a.p.step[at(u)];
    }
    __device__ void put(int row, int col, float x, float y) const
    {
        ssd_put(a.weights + batch * SSD_SQUARE, row, col, SSD_CHUNK, of_pair(row, col, x),
                of_pair(row, col + 1, y));
    }
};

/* side [rows] times states [state, dim]: through = exp(s) (S c), or dv = left (R b) */
struct ssd_states_product : ssd_of_head {
    bool is_dv;
    __device__ int tiles() const
    {
        return (a.p.state + SSD_TILE - 1) / SSD_TILE;
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
        const struct ssd_problem &p = ssd_of_head::a.p;
        of_group(x, ssd_either(is_dv, p.b, p.c), row, tile * SSD_TILE + col);
        if (row < k.n)
            ssd_scale(x, is_dv ? p.left[at(row)] : p.rise[at(row)]);
    }
    __device__ void b_(float (&x)[8], int tile, int row, int col) const
    {
        const struct ssd_problem &p = ssd_of_head::a.p;
        const float *states = is_dv ? ssd_of_head::a.r : p.states;
        ssd_zeros(x);
        if (tile * SSD_TILE + row < p.state)
            ssd_read(x, states + batch * p.state * p.dim, tile * SSD_TILE + row, n + col, p.dim);
    }
    __device__ void put(int row, int col, float x, float y) const
    {
        if (row < k.n)
            ssd_put((is_dv ? a.dv : a.through) + at(row) * a.p.dim, 0, n + col, a.p.dim, x, y);
    }
};

/* dv += (L (c b^T))^T dy */
struct ssd_dv_product : ssd_of_head {
    __device__ int tiles() const
    {
        return 1;
    }
    __device__ bool a_rows(int) const
    {
        return false;
    }
    __device__ bool b_rows(int) const
    {
        return false;
    }
    __device__ void a_(float (&x)[8], int, int t, int u) const
    {
        ssd_zeros(x);
        if (t >= k.n || u > t)
            return;
        ssd_read(x, products(), t, u, SSD_CHUNK);
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] *= u + i <= t ? ssd_kept(ssd_of_head::a.p, k.row + t, k.row + u + i, head) : 0;
    }
    __device__ void b_(float (&x)[8], int, int row, int col) const
    {
        of_dim(x, ssd_of_head::a.dy, row, n + col);
    }
    __device__ void put(int row, int col, float x, float y) const
    {
        if (row >= k.n)
            return;
        float *to = a.dv + at(row) * a.p.dim;
        if (n + col < a.p.dim)
            to[n + col] += x;
        if (n + col + 1 < a.p.dim)
            to[n + col + 1] += y;
    }
};

/* ---- db, dc: batches are slots and groups, sums over the heads ---- */

/* dc = [exp(s) dy | weights] [S ; b], or db = [left step x | weights^T] [R ; c] */
struct ssd_side_product {
    struct ssd_gradients a;
    struct cuda_mat to;
    bool is_b, accumulate;
    int64_t batch, slot;
    int group, n, of_dim;
    struct ssd_chunk k;

    __device__ bool begin(int64_t batch_, int, int n_)
    {
        batch = batch_;
        slot = batch / a.p.n_groups;
        group = (int)(batch % a.p.n_groups);
        n = n_;
        of_dim = (a.p.dim + SSD_TILE - 1) / SSD_TILE;
        k = ssd_chunk_of(a.p, slot);
        return k.n > 0;
    }
    __device__ int tiles() const
    {
        return a.p.per * of_dim + 1;
    }
    __device__ bool is_last(int tile) const
    {
        return tile == a.p.per * of_dim;
    }
    __device__ bool a_rows(int tile) const
    {
        return !is_b || !is_last(tile);
    }
    __device__ bool b_rows(int tile) const
    {
        return !is_last(tile);
    }
    __device__ void a_(float (&x)[8], int tile, int row, int col) const
    {
        const struct ssd_problem &p = a.p;
        ssd_zeros(x);
        if (is_last(tile)) {
            ssd_read(x, a.summed + batch * SSD_SQUARE, row, col, SSD_CHUNK);
            return;
        }
        const int head = group * p.per + tile / of_dim;
        const int64_t at = (k.row + row) * p.n_heads + head;
        if (row >= k.n)
            return;
        ssd_read(x, ssd_either(is_b, p.x, a.dy), k.row + row, (int64_t)head * p.dim,
                 tile % of_dim * SSD_TILE + col, p.dim);
        ssd_scale(x, is_b ? p.left[at] * p.step[at] : p.rise[at]);
    }
    __device__ void b_(float (&x)[8], int tile, int row, int col) const
    {
        const struct ssd_problem &p = a.p;
        ssd_zeros(x);
        if (is_last(tile)) {
            if (row < k.n)
                ssd_read(x, ssd_either(is_b, p.c, p.b), k.row + row, (int64_t)group * p.state,
                         n + col, p.state);
        } else if (n + row < p.state) {
            const int64_t head = slot * p.n_heads + group * p.per + tile / of_dim;
            ssd_read(x, (is_b ? a.r : p.states) + head * p.state * p.dim, n + row,
                     tile % of_dim * SSD_TILE + col, p.dim);
        }
    }
    __device__ void put(int row, int col, float x, float y) const
    {
        const float both[2] = {x, y};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t at = (int64_t)group * a.p.state + n + col + i;
            if (row < k.n && n + col + i < a.p.state)
                cuda_put(to, k.row + row, at,
                         both[i] + (accumulate ? cuda_get(to, k.row + row, at) : 0));
        }
    }
};

/* summed = the weights of the heads of a group, in order */
struct ssd_sum_heads {
    struct ssd_gradients a;
    template <int N> __device__ void at(int64_t row, int64_t col) const
    {
        const int64_t slot = row / a.p.n_groups, group = row % a.p.n_groups;
        const struct cuda_mat from = {(char *)a.weights, SSD_SQUARE, false};
        const struct cuda_mat to = {(char *)a.summed, SSD_SQUARE, false};
        float x[N], sum[N] = {};
        if (ssd_chunk_of(a.p, slot).n == 0)
            return;
        for (int h = 0; h < a.p.per; h++) {
            cuda_load(x, from, slot * a.p.n_heads + group * a.p.per + h, col);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += x[i];
        }
        cuda_store(to, row, col, sum);
    }
};

/* ---- sums of a chunk ---- */

/* pairs_t = sum over v >= t > u of weights_vu (c_v . b_u); a block a slot and head, a thread first
 * a column u, then a row t */
__global__ void pairs_kernel(struct ssd_gradients a)
{
    enum { LINE = SSD_CHUNK + 1 };
    SHARED(float, columns); /* [SSD_CHUNK, LINE] sums over v */
    const struct ssd_problem &p = a.p;
    const int head = (int)(blockIdx.x % p.n_heads), i = (int)threadIdx.x;
    const int64_t slot = blockIdx.x / p.n_heads;
    const struct ssd_chunk k = ssd_chunk_of(p, slot);
    const float *weights = a.weights + (int64_t)blockIdx.x * SSD_SQUARE;
    const float *products = p.products + (slot * p.n_groups + head / p.per) * SSD_SQUARE;
    float sum = 0;
    if (k.n == 0)
        return;
    for (int t = k.n - 1; t >= 0; t--) {
        if (i < t)
            sum += weights[t * SSD_CHUNK + i] * products[t * SSD_CHUNK + i];
        columns[t * LINE + i] = sum;
    }
    __syncthreads();
    if (i >= k.n)
        return;
    sum = 0;
    for (int u = 0; u < i; u++)
        sum += columns[i * LINE + u];
    a.pairs[(k.row + i) * p.n_heads + head] = sum;
}

/* Sums over the dim of a row and head, a warp each. First before = dy . through and behind = step x
 * . dv, while dv is of R alone; then, of all of dv, x . dv and x . dy, and dx. */
template <bool LAST> __global__ void rows_kernel(struct ssd_gradients a)
{
    const struct ssd_problem &p = a.p;
    const int lane = (int)threadIdx.x % 32;
    const int64_t at = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int64_t row = at / p.n_heads, head = at % p.n_heads;
    float first = 0, second = 0;
    if (row >= p.n || !in_a_seq(p.cu, p.n_seqs, row))
        return;
    const float step = p.step[at], skip = p.skip ? p.skip[head] : 0;
    for (int i = lane; i < p.dim; i += 32) {
        const int64_t col = head * p.dim + i;
        const float dv = a.dv[at * p.dim + i], x = cuda_get(p.x.mat, row, col);
        const float dy = a.dy.mat.data ? cuda_get(a.dy.mat, row, col) : 0;
        first += x * dv;
        second += LAST ? x * dy : dy * a.through[at * p.dim + i];
        const float dx[1] = {step * dv + skip * dy};
        if (LAST && a.dx.data)
            cuda_update(a.dx, row, col, dx, a.accumulate_dx);
    }
    first = cuda_warp_sum(first);
    second = cuda_warp_sum(second);
    if (lane == 0) {
        (LAST ? a.xdv : a.behind)[at] = LAST ? first : first * step;
        (LAST ? a.xdy : a.before)[at] = second;
    }
}

/* ddt, and what the parameters of a head get from a chunk; a block a slot, a thread a head */
__global__ void finish_kernel(struct ssd_gradients a)
{
    const struct ssd_problem &p = a.p;
    const int head = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const struct ssd_chunk k = ssd_chunk_of(p, blockIdx.x);
    if (head >= p.n_heads)
        return;
    const float rate = -expf(a.a_log[head]);
    double sum = 0, da_log = 0, bias = 0, dskip = 0;
    if (k.n > 0)
        sum = a.all[(int64_t)blockIdx.x * p.n_heads + head];
    for (int t = 0; t < k.n; t++)
        sum += a.behind[(k.row + t) * p.n_heads + head];
    for (int t = k.n - 1; t >= 0; t--) {
        const int64_t at = (k.row + t) * p.n_heads + head;
        sum += a.before[at];
        sum -= a.behind[at];
        const double f = sum + a.pairs[at];
        const float ddt[1] = {((float)(rate * f) + a.xdv[at]) * p.slope[at]};
        da_log += rate * p.step[at] * f;
        bias += ddt[0];
        dskip += a.xdy[at];
        if (a.ddt.data)
            cuda_update(a.ddt, k.row + t, head, ddt, a.accumulate_ddt);
    }
    float *parts = a.parts + (int64_t)blockIdx.x * 3 * p.n_heads + head;
    parts[0] = (float)da_log;
    parts[p.n_heads] = (float)bias;
    parts[2 * p.n_heads] = (float)dskip;
}

/* ---- the entry ---- */

/* R, and what it gives. */
static void states(struct s2s_queue *queue, const struct s2s_k_ssd_backward *args,
                   const struct ssd_gradients *a)
{
    const struct s2s_k_ssd *f = &args->forward;
    const struct ssd_problem *p = &a->p;
    const bool bf16 = f->x.dtype == S2S_BF16;
    struct ssd_brought brought = {};
    brought.p = *p;
    brought.side = p->c;
    brought.v = a->dy;
    brought.first = p->rise;
    brought.to = a->r;
    ssd_product(queue, brought, bf16, p->slots * p->n_heads, f->state, f->dim);
    const struct ssd_pass_back back = {*p, a->r, args->dfinal, args->dinitial,
                                       args->accumulate_dinitial};
    LAUNCH(queue, pass_back_kernel,
           dim3((unsigned)(p->n_seqs * p->n_heads),
                (unsigned)cuda_ceil_div(f->state * f->dim, CUDA_BLOCK)),
           CUDA_BLOCK, 0, back);
    LAUNCH(queue, all_kernel, (unsigned)(p->slots * p->n_heads), 128, 32 * sizeof(float), *a);
}

static void of_heads(struct s2s_queue *queue, const struct s2s_k_ssd *f,
                     const struct ssd_gradients *a)
{
    enum { WARPS = 4 };
    const bool bf16 = f->x.dtype == S2S_BF16;
    const int64_t batches = a->p.slots * a->p.n_heads, rows = f->n * f->n_heads;
    struct ssd_weights_product weights = {};
    struct ssd_states_product of_states = {};
    struct ssd_dv_product dv = {};
    weights.a = of_states.a = dv.a = *a;
    ssd_product(queue, weights, bf16, batches, SSD_CHUNK, SSD_CHUNK);
    LAUNCH(queue, pairs_kernel, (unsigned)batches, SSD_CHUNK,
           SSD_CHUNK * (SSD_CHUNK + 1) * sizeof(float), *a);
    ssd_product(queue, of_states, bf16, batches, SSD_CHUNK, f->dim);
    of_states.is_dv = true;
    ssd_product(queue, of_states, bf16, batches, SSD_CHUNK, f->dim);
    LAUNCH(queue, rows_kernel<false>, (unsigned)cuda_ceil_div(rows, WARPS), WARPS * 32, 0, *a);
    ssd_product(queue, dv, bf16, batches, SSD_CHUNK, f->dim);
    LAUNCH(queue, rows_kernel<true>, (unsigned)cuda_ceil_div(rows, WARPS), WARPS * 32, 0, *a);
}

static void of_groups(struct s2s_queue *queue, const struct s2s_k_ssd_backward *args,
                      const struct ssd_gradients *a)
{
    const struct s2s_k_ssd *f = &args->forward;
    const bool bf16 = f->x.dtype == S2S_BF16;
    const int64_t batches = a->p.slots * a->p.n_groups;
    const struct ssd_sum_heads sum = {*a};
    cuda_map(queue, sum, batches, SSD_SQUARE, true);
    struct ssd_side_product side = {};
    side.a = *a;
    for (int is_b = 0; is_b < 2; is_b++) {
        const struct s2s_mat *to = is_b ? &args->db : &args->dc;
        side.to = cuda_mat(to);
        side.is_b = is_b;
        side.accumulate = is_b ? args->accumulate_db : args->accumulate_dc;
        if (!side.accumulate)
            ssd_zero_others(queue, f, to, f->n_groups * f->state);
        if (to->data)
            ssd_product(queue, side, bf16, batches, SSD_CHUNK, f->state);
    }
}

/* all_heads: those of which these are a part */
static void backward_part(struct s2s_queue *queue, const struct s2s_k_ssd_backward *args,
                          int64_t all_heads)
{
    const struct s2s_k_ssd *f = &args->forward;
    const int64_t heads = f->n_heads;
    if (!args->accumulate_dx)
        ssd_zero_others(queue, f, &args->dx, heads * f->dim);
    if (!args->accumulate_ddt)
        ssd_zero_others(queue, f, &args->ddt, heads);
    if (f->n_seqs == 0) {
        const struct s2s_mat *sides[] = {args->accumulate_db ? NULL : &args->db,
                                         args->accumulate_dc ? NULL : &args->dc};
        for (int i = 0; i < 2; i++)
            if (sides[i])
                ssd_zero_others(queue, f, sides[i], f->n_groups * f->state);
        return;
    }
    struct ssd_gradients a;
    gradients_of(&a, args, (float *)args->workspace);
    a.p.all_heads = all_heads;
    ssd_make_times(queue, f, &a.p);
    ssd_make_states(queue, f, &a.p);
    states(queue, args, &a);
    of_heads(queue, f, &a);
    of_groups(queue, args, &a);
    const unsigned block = (unsigned)(heads < 64 ? heads : 64);
    LAUNCH(queue, finish_kernel, dim3((unsigned)a.p.slots, (unsigned)cuda_ceil_div(heads, block)),
           block, 0, a);
    float *const outs[] = {args->da_log, args->ddt_bias, args->dskip};
    for (int i = 0; i < 3; i++)
        if (outs[i])
            cuda_add_parts(queue, outs[i], a.parts + i * heads, a.p.slots, heads, 3 * heads, true);
}

void cuda_ssd_backward(struct s2s_queue *queue, const struct s2s_k_ssd_backward *args)
{
    const struct s2s_k_ssd *f = &args->forward;
    const int64_t each = f->n_groups ? groups_at_a_time(queue, f) : 1;
    for (int64_t first = 0; first < f->n_groups; first += each) {
        const int64_t left = f->n_groups - first;
        const struct s2s_k_ssd_backward part = part_of(args, first, each < left ? each : left);
        backward_part(queue, &part, f->n_heads);
    }
}
