/*
 * Depthwise convolution of packed clips over time, channels last. A block has a tile of rows of one
 * clip and of channels, with the rows around it, in shared memory; a thread has V channels of EACH
 * rows, and reads each row of the tile once for all taps and rows that it is in. Taps come TAPS at
 * a time. Gradients of weights are parts of a tile each, added in order.
 */
#include "kernels/cuda/map.h"
#include "kernels/cuda/seq.h"
#include "kernels/cuda/sum.h"

enum { WARPS = 8, EACH = 8, ROWS = WARPS * EACH, THREADS = WARPS * 32 };

/* There may be so many tiles. */
static int64_t n_tiles(const struct s2s_k_dwconv *f)
{
    return cuda_ceil_div(f->n, ROWS) + f->n_seqs;
}

struct dwconv {
    struct cuda_mat x, y;
    const float *w, *bias;
    const int32_t *cu;
    int n_seqs, width, channels, before;
    bool turned, accumulate; /* turned: the last tap first, for the gradient of the input */
};

template <int V, int TAPS> struct dw_shape {
    enum { COLS = 32 * V, TILE = ROWS + TAPS - 1 };
};

/* The rows from `first` on that stand between begin and end, else zeros, of the block's channels.
 */
template <int V, int N>
static __device__ __forceinline__ void load_rows(float (*tile)[32 * V], const struct cuda_mat &x,
                                                 int channels, int first, int begin, int end)
{
    const int lane = (int)threadIdx.x % 32, col = ((int)blockIdx.y * 32 + lane) * V;
    for (int r = (int)threadIdx.x / 32; r < N; r += WARPS) {
        const int row = first + r;
        float v[V] = {};
        if (row >= begin && row < end && col < channels)
            cuda_load(v, x, row, col);
#pragma unroll
        for (int i = 0; i < V; i++)
            tile[r][lane * V + i] = v[i];
    }
}

template <int V, int TAPS> struct forward_shared {
    float x[dw_shape<V, TAPS>::TILE][32 * V], w[TAPS][32 * V];
};

template <int V, int TAPS>
static __device__ __forceinline__ void load_taps(float (*w)[32 * V], const dwconv &a, int first)
{
    for (int i = (int)threadIdx.x; i < TAPS * 32 * V; i += THREADS) {
        const int k = i % TAPS, c = i / TAPS, tap = first + k;
        const int64_t channel = (int64_t)blockIdx.y * 32 * V + c;
        w[k][c] = tap < a.width && channel < a.channels
                      ? a.w[channel * a.width + (a.turned ? a.width - 1 - tap : tap)]
                      : 0;
    }
}

/* sum[r] += the tile's rows r .. r + TAPS, each times its tap */
template <int V, int TAPS>
static __device__ __forceinline__ void add_taps(float (&sum)[EACH][V],
                                                const forward_shared<V, TAPS> *sh)
{
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * EACH;
    float w[TAPS][V];
#pragma unroll
    for (int k = 0; k < TAPS; k++)
#pragma unroll
        for (int i = 0; i < V; i++)
            w[k][i] = sh->w[k][lane * V + i];
#pragma unroll
    for (int s = 0; s < EACH + TAPS - 1; s++) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float x = sh->x[row + s][lane * V + i];
#pragma unroll
            for (int r = 0; r < EACH; r++)
                if (s - r >= 0 && s - r < TAPS)
                    sum[r][i] += w[s - r][i] * x;
        }
    }
}

template <int V, int TAPS> __global__ void __launch_bounds__(THREADS, 2) dwconv_kernel(const dwconv a)
{
    typedef forward_shared<V, TAPS> Shared;
    SHARED(Shared, sh);
    const int lane = (int)threadIdx.x % 32, col = ((int)blockIdx.y * 32 + lane) * V;
    seq_tile at;
    if (!seq_find_tile(a.cu, a.n_seqs, (int)blockIdx.x, ROWS, &at))
        return;
    float sum[EACH][V];
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int i = 0; i < V; i++)
            sum[r][i] = a.bias && col < a.channels ? a.bias[col + i] : 0;
    for (int first = 0; first < a.width; first += TAPS) {
        __syncthreads(); /* nobody reads the last taps any more */
        load_rows<V, dw_shape<V, TAPS>::TILE>(sh->x, a.x, a.channels, at.row - a.before + first,
                                              a.cu[at.seq], a.cu[at.seq + 1]);
        load_taps<V, TAPS>(sh->w, a, first);
        __syncthreads();
        add_taps<V, TAPS>(sum, sh);
    }
    const int row = at.row + (int)threadIdx.x / 32 * EACH;
#pragma unroll
    for (int r = 0; r < EACH; r++)
        if (row + r < at.end && col < a.channels)
            cuda_update(a.y, row + r, col, sum[r], a.accumulate);
}

template <int V, int TAPS>
static void dwconv_launch(struct s2s_queue *queue, const dwconv &a, int64_t tiles)
{
    const dim3 grid((unsigned)tiles, (unsigned)cuda_ceil_div(a.channels, 32 * V));
    LAUNCH(queue, (dwconv_kernel<V, TAPS>), grid, THREADS, sizeof(forward_shared<V, TAPS>), a);
}

/* Conformers' width of 9 has tiles of its own. */
static bool is_narrow(int width)
{
    return width <= 9;
}

static void dwconv_run(struct s2s_queue *queue, const dwconv &a, int64_t tiles, bool pairs)
{
    if (pairs && is_narrow(a.width))
        dwconv_launch<2, 9>(queue, a, tiles);
    else if (pairs)
        dwconv_launch<2, 16>(queue, a, tiles);
    else if (is_narrow(a.width))
        dwconv_launch<1, 9>(queue, a, tiles);
    else
        dwconv_launch<1, 16>(queue, a, tiles);
}

static int before_of(const struct s2s_k_dwconv *f)
{
    return (int)((f->width - 1) / 2 + f->shift);
}

static dwconv forward_of(const struct s2s_k_dwconv *f)
{
    const dwconv a = {cuda_mat(&f->x), cuda_mat(&f->y), f->w,          f->bias,
                      f->cu,           (int)f->n_seqs,  (int)f->width, (int)f->channels,
                      before_of(f),    false,           false};
    return a;
}

size_t cuda_dwconv_workspace(const struct s2s_queue *queue, const struct s2s_k_dwconv *args)
{
    return 0;
}

void cuda_dwconv(struct s2s_queue *queue, const struct s2s_k_dwconv *args)
{
    dwconv_run(queue, forward_of(args), n_tiles(args),
               cuda_is_paired(&args->x, args->channels) &&
                   cuda_is_paired(&args->y, args->channels));
}

/* ---- backward ---- */

struct dw_weights {
    struct dwconv f;
    struct cuda_mat dy;
    float *parts; /* [tiles, width + 1, channels]: of the taps, then of the bias */
};

template <int V, int TAPS> struct weights_shared {
    union {
        struct {
            float x[dw_shape<V, TAPS>::TILE][32 * V], dy[ROWS][32 * V];
        };
        float sum[WARPS][TAPS + 1][32 * V];
    };
};

/* sum[k] += dy of the warp's rows times what tap k meets there; the last sum is of dy */
template <int V, int TAPS>
static __device__ __forceinline__ void add_products(float (&sum)[TAPS + 1][V],
                                                    const weights_shared<V, TAPS> *sh)
{
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * EACH;
    float dy[EACH][V];
#pragma unroll
    for (int r = 0; r < EACH; r++)
#pragma unroll
        for (int i = 0; i < V; i++) {
            dy[r][i] = sh->dy[row + r][lane * V + i];
            sum[TAPS][i] += dy[r][i];
        }
#pragma unroll
    for (int s = 0; s < EACH + TAPS - 1; s++) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float x = sh->x[row + s][lane * V + i];
#pragma unroll
            for (int r = 0; r < EACH; r++)
                if (s - r >= 0 && s - r < TAPS)
                    sum[s - r][i] += dy[r][i] * x;
        }
    }
}

template <int V, int TAPS>
__global__ void __launch_bounds__(THREADS, 2) dw_weights_kernel(const dw_weights a)
{
    typedef weights_shared<V, TAPS> Shared;
    enum { COLS = 32 * V };
    SHARED(Shared, sh);
    const dwconv &f = a.f;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    seq_tile at = {0, 0, 0};
    const bool is_there = seq_find_tile(f.cu, f.n_seqs, (int)blockIdx.x, ROWS, &at);
    float *const part = a.parts + (int64_t)blockIdx.x * (f.width + 1) * f.channels;
    for (int first = 0; first < f.width; first += TAPS) {
        float sum[TAPS + 1][V] = {};
        if (is_there) { /* the same for the block */
            load_rows<V, dw_shape<V, TAPS>::TILE>(sh->x, f.x, f.channels, at.row - f.before + first,
                                                  f.cu[at.seq], f.cu[at.seq + 1]);
            load_rows<V, ROWS>(sh->dy, a.dy, f.channels, at.row, at.row, at.end);
        }
        __syncthreads();
        if (is_there)
            add_products<V, TAPS>(sum, sh);
        __syncthreads(); /* nobody reads rows any more */
#pragma unroll
        for (int k = 0; k <= TAPS; k++)
#pragma unroll
            for (int i = 0; i < V; i++)
                sh->sum[warp][k][lane * V + i] = sum[k][i];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < (TAPS + 1) * COLS; i += THREADS) {
            const int k = i / COLS, col = (int)blockIdx.y * COLS + i % COLS;
            const int to = k == TAPS ? f.width : first + k;
            float total = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                total += sh->sum[w][k][i % COLS];
            if (col < f.channels && (k == TAPS ? first == 0 : to < f.width))
                part[(int64_t)to * f.channels + col] = total;
        }
        __syncthreads(); /* nobody reads sums any more */
    }
}

template <int V, int TAPS>
static void weights_launch(struct s2s_queue *queue, const dw_weights &a, int64_t tiles)
{
    const dim3 grid((unsigned)tiles, (unsigned)cuda_ceil_div(a.f.channels, 32 * V));
    LAUNCH(queue, (dw_weights_kernel<V, TAPS>), grid, THREADS, sizeof(weights_shared<V, TAPS>), a);
}

size_t cuda_dwconv_backward_workspace(const struct s2s_queue *queue,
                                      const struct s2s_k_dwconv_backward *args)
{
    const struct s2s_k_dwconv *f = &args->forward;
    return (size_t)((n_tiles(f) + 1) * (f->width + 1) * f->channels) * sizeof(float);
}

void cuda_dwconv_backward(struct s2s_queue *queue, const struct s2s_k_dwconv_backward *args)
{
    const struct s2s_k_dwconv *f = &args->forward;
    const int64_t channels = f->channels, each = (f->width + 1) * channels, tiles = n_tiles(f);
    const bool dy_pairs = cuda_is_paired(&args->dy, channels);
    dwconv input = forward_of(f);
    input.x = cuda_mat(&args->dy);
    input.y = cuda_mat(&args->dx);
    input.bias = NULL;
    input.before = (int)f->width - 1 - input.before;
    input.turned = true;
    input.accumulate = args->accumulate_dx;
    if (args->dx.data)
        dwconv_run(queue, input, tiles, dy_pairs && cuda_is_paired(&args->dx, channels));
    if (!args->dw && !args->dbias)
        return;
    float *total = (float *)args->workspace, *partial = total + each;
    const dw_weights weights = {forward_of(f), cuda_mat(&args->dy), partial};
    const bool pairs = dy_pairs && cuda_is_paired(&f->x, channels);
    if (pairs && is_narrow((int)f->width))
        weights_launch<2, 9>(queue, weights, tiles);
    else if (pairs)
        weights_launch<2, 16>(queue, weights, tiles);
    else if (is_narrow((int)f->width))
        weights_launch<1, 9>(queue, weights, tiles);
    else
        weights_launch<1, 16>(queue, weights, tiles);
    cuda_add_parts(queue, total, partial, tiles, each, each, false);
    const struct cuda_add_turned taps = {args->dw, total, f->width, channels};
    const struct cuda_add_turned bias = {args->dbias, total + f->width * channels, 1, channels};
    if (args->dw)
        cuda_map(queue, taps, f->width, channels, false);
    if (args->dbias)
        cuda_map(queue, bias, 1, channels, false);
}
