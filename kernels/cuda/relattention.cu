/*
 * Attention with relative positions inside each clip, forward: a block has a tile of queries of one
 * head and goes over the keys of its clip, as that without positions does (attention_fwd.h).
 */
#include "kernels/cuda/relattention_tile.h"

#include "kernels/cuda/attention_fwd.h"

extern "C" [[noreturn]] void s2s_bug(const char *file, int line, const char *fmt, ...);
#define S2S_BUG(...) s2s_bug(__FILE__, __LINE__, __VA_ARGS__)

/* WARPS of 16 queries each, tiles of N keys; BLOCKS of a multiprocessor, as far as registers go. */
template <class P_, int D_, int WARPS_, int N_, int BLOCKS_> struct rel_forward_shape {
    typedef P_ P;
    enum { D = D_, WARPS = WARPS_, N = N_, BLOCKS = BLOCKS_, THREADS = WARPS * 32, M = WARPS * 16 };
    enum { ROW = att_shape<P, D>::ROW, BAND = 16 * REL_BAND(N) };
    enum { BANDS_AT = (M + 2 * N + M + N) * ROW };
    enum { SHARED_BYTES = BANDS_AT + WARPS * BAND * (int)sizeof(float) };
    static_assert(SHARED_BYTES <= 99 << 10, "the shared memory of a block");
    /* steps of products whose fragments are loaded ahead: as many as registers are left for */
    enum { AT_ONCE = sizeof(typename P::elem) == 4 && D == 64 ? 4 : att_shape<P, D>::STEPS };
};

/* Keys from j on, and the rows of p between them and queries at .. */
template <class S>
static __device__ __forceinline__ void load_keys(char *k_tile, char *p_tile, const rel_problem &a,
                                                 const rel_clip &clip, int head, int at, int j)
{
    typedef typename S::P P;
    rel_load<P, S::D, S::N, S::THREADS>(k_tile, a.k, rel_head(a.k, clip.begin, head), j, clip.n);
    rel_load<P, S::D, S::M + S::N, S::THREADS>(p_tile, a.p, rel_head(a.p, 0, head),
                                               a.max_seqlen - at - S::M + j, 2 * a.max_seqlen - 1);
}

template <int N>
static __device__ __forceinline__ void drop(float (&s)[N][4], const rel_problem &a,
                                            const rel_clip &clip, int head, int i, int j)
{
#pragma unroll
    for (int t = 0; t < N; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 kept = rel_kept<REL_KEYS>(a, clip, head, i, j, t, h);
            s[t][2 * h] *= kept.x;
            s[t][2 * h + 1] *= kept.y;
        }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    rel_forward_kernel(const rel_problem a, const att_target to, float *lse)
{
    typedef typename S::P P;
    typedef att_shape<P, S::D> Shape;
    enum { N = S::N };
    SHARED(char, sh);
    char *const q_tile = sh, *const k_tile = q_tile + S::M * S::ROW;
    char *const v_tile = k_tile + N * S::ROW, *const p_tile = v_tile + N * S::ROW;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *const band = (float *)(sh + S::BANDS_AT) + warp * S::BAND;
    const int head = (int)blockIdx.y, tiles = (a.max_seqlen + S::M - 1) / S::M;
    const rel_clip clip = rel_clip_of(a, (int)(blockIdx.x / (unsigned)tiles));
    const int at = (int)(blockIdx.x % (unsigned)tiles) * S::M;
    if (at >= clip.n)
        return;
    const char *const values = rel_head(a.value, clip.begin, head);
    const float *const by_key = a.by_key + head * a.most_rows + clip.begin;
    const float *const by_position = a.by_position + (int64_t)head * (2 * a.max_seqlen - 1);
    const int end = rel_end(a, min(at + S::M, clip.n) - 1, clip.n);
    int j = rel_begin(a, at) / N * N;
    rel_load<P, S::D, S::M, S::THREADS>(q_tile, a.q, rel_head(a.q, clip.begin, head), at, clip.n);
    load_keys<S>(k_tile, p_tile, a, clip, head, at, j);
    cp_async_commit();

    const int skip = S::M - 16 - warp * 16; /* rows of the tile of p before the warp's band */
    const att_lane q_lane = att_lane_tall<Shape>(shared_addr(q_tile + warp * 16 * S::ROW));
    const att_lane k_lane = att_lane_wide<Shape>(shared_addr(k_tile));
    const att_lane p_lane = att_lane_wide<Shape>(shared_addr(p_tile + skip * S::ROW));
    const typename att_across<P, S::D>::type v_lane = att_across<P, S::D>::of(v_tile);
    float o[1][S::D / 8][4] = {}, max[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll 1
    for (; j < end; j += N) {
        cp_async_wait<0>();
        __syncthreads(); /* keys and positions are there, and nobody reads the last values */
        rel_load<P, S::D, N, S::THREADS>(v_tile, a.value, values, j, clip.n);
        cp_async_commit();
        float s[1][N / 8][4] = {};
        {
            float positions[1][N / 8 + 2][4] = {};
            att_times_rows<P, S::D, S::AT_ONCE>(positions, att_anew(q_lane), att_anew(p_lane));
            rel_put_band<N>(band, positions[0], by_position, a.max_seqlen - at - S::M + j + skip,
                            2 * a.max_seqlen - 1);
        }
        att_times_rows<P, S::D, S::AT_ONCE>(s, att_anew(q_lane), att_anew(k_lane));
        rel_add_band<N, REL_KEYS>(s[0], band);
        rel_add_columns(s[0], by_key, j, clip.n);
        rel_mask<REL_KEYS>(s[0], a, clip.n, at + warp * 16, j);
        cp_async_wait<0>();
        __syncthreads(); /* values are there, and nobody reads keys any more */
        if (j + N < end)
            load_keys<S>(k_tile, p_tile, a, clip, head, at, j + N);
        cp_async_commit();
        float off[2], keep[2];
#pragma unroll
        for (int h = 0; h < 2; h++)
            raise(s[0], h, a.scale_log2, max[h], off[h], keep[h]);
#pragma unroll
        for (int h = 0; h < 2; h++)
            soften(s[0], o[0], h, a.scale_log2, off[h], keep[h], sum[h]);
        if (a.draw.rows)
            drop(s[0], a, clip, head, at + warp * 16, j);
        att_times_columns<P, S::D>(o, s, att_anew(v_lane));
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += shfl_xor(sum[h], 1);
        sum[h] += shfl_xor(sum[h], 2);
        const int i = at + warp * 16 + h * 8 + lane / 4;
        if (i >= clip.n)
            continue;
#pragma unroll
        for (int n = 0; n < S::D / 8; n++)
            att_put(to, clip.begin + i, head, a.dim, n * 8 + lane % 4 * 2, o[0][n][2 * h] / sum[h],
                    o[0][n][2 * h + 1] / sum[h]);
        if (lse && lane % 4 == 0)
            lse[(clip.begin + i) * a.n_heads + head] = max[h] * a.scale + logf(sum[h]);
    }
}

template <class P, int D, int WARPS, int N, int BLOCKS = 2>
static void forward_run(struct s2s_queue *queue, const struct rel_problem &a,
                        const struct att_target &o, float *lse)
{
    typedef rel_forward_shape<P, D, WARPS, N, BLOCKS> S;
    const int64_t tiles = cuda_ceil_div(a.max_seqlen, S::M);
    const dim3 grid((unsigned)(a.n_seqs * tiles), (unsigned)a.n_heads);
    LAUNCH(queue, rel_forward_kernel<S>, grid, S::THREADS, S::SHARED_BYTES, a, o, lse);
}

/* ---- products with a bias ---- */

enum { DOT_THREADS = 256, DOT_LANES = 8 };

struct dots {
    struct cuda_mat x, y;
    const int32_t *end; /* rows there are; NULL: all */
    float *out;
    int64_t rows;
    int n_heads, dim;
};

__global__ void __launch_bounds__(DOT_THREADS) dots_kernel(const dots a)
{
    const int64_t i = (int64_t)blockIdx.x * (DOT_THREADS / DOT_LANES) + threadIdx.x / DOT_LANES;
    const int64_t row = i / a.n_heads, rows = a.end && *a.end < a.rows ? *a.end : a.rows;
    const int head = (int)(i - row * a.n_heads), lane = (int)threadIdx.x % DOT_LANES;
    float sum = 0;
    for (int c = lane; row < rows && c < a.dim; c += DOT_LANES)
        sum += cuda_get(a.x, row, (int64_t)head * a.dim + c) *
               cuda_get(a.y, row, (int64_t)head * a.dim + c);
#pragma unroll
    for (int by = DOT_LANES / 2; by > 0; by /= 2)
        sum += shfl_xor(sum, by);
    if (row < rows && lane == 0)
        a.out[head * a.rows + row] = sum;
}

void rel_dots(struct s2s_queue *queue, const struct rel_problem *a, const struct cuda_mat &x,
              const struct cuda_mat &y, int64_t rows, const int32_t *cu, float *out)
{
    const struct dots d = {x, y, cu ? cu + a->n_seqs : NULL, out, rows, a->n_heads, a->dim};
    const int64_t blocks = cuda_ceil_div(rows * a->n_heads, DOT_THREADS / DOT_LANES);
    LAUNCH(queue, dots_kernel, (unsigned)blocks, DOT_THREADS, 0, d);
}

static int64_t bias_floats(const struct s2s_k_relattention *f)
{
    return f->n_heads * (f->n_seqs * f->max_seqlen + 2 * f->max_seqlen);
}

size_t rel_bias_bytes(const struct s2s_k_relattention *args)
{
    return (size_t)cuda_ceil_div(bias_floats(args), 4) * 16;
}

void rel_bias(struct s2s_queue *queue, const struct s2s_k_relattention *args, struct rel_problem *a,
              char **workspace)
{
    float *const by_key = (float *)*workspace, *const by_position =
                                                   by_key + a->n_heads * a->most_rows;
    const struct cuda_mat u = {(char *)args->u, 0, false}, v = {(char *)args->v, 0, false};
    rel_dots(queue, a, cuda_mat(&args->k), u, a->most_rows, args->cu, by_key);
    rel_dots(queue, a, cuda_mat(&args->p), v, 2 * args->max_seqlen - 1, NULL, by_position);
    a->by_key = by_key;
    a->by_position = by_position;
    *workspace += rel_bias_bytes(args);
}

/* ---- the entry ---- */

static int at_most(int64_t n, int most)
{
    return n < most ? (int)n : most;
}

struct rel_problem rel_problem_of(const struct s2s_k_relattention *args)
{
    struct rel_problem a = {};
    if (!(args->scale > 0))
        S2S_BUG("attention with positions: a scale of %g", (double)args->scale);
    a.q = att_source_of(&args->q, args->dim);
    a.k = att_source_of(&args->k, args->dim);
    a.value = att_source_of(&args->value, args->dim);
    a.p = att_source_of(&args->p, args->dim);
    a.cu = args->cu;
    a.most_rows = args->n_seqs * args->max_seqlen;
    a.n_seqs = (int)args->n_seqs;
    a.n_heads = (int)args->n_heads;
    a.dim = (int)args->dim;
    a.max_seqlen = (int)args->max_seqlen;
    a.scale = args->scale;
    a.scale_log2 = args->scale * att_log2e;
    a.reach.chunk = at_most(args->reach.chunk, a.max_seqlen);
    a.reach.before = at_most(args->reach.before, a.max_seqlen);
    a.reach.after = at_most(args->reach.after, a.max_seqlen);
    a.draw = cuda_draw_of(&args->draw, 1 + args->first_head);
    return a;
}

int rel_width(int64_t dim)
{
    if (dim > 256)
        S2S_BUG("attention with positions: heads of %lld are wider than 256", (long long)dim);
    return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

bool rel_is_bf16(const struct s2s_k_relattention *args, enum s2s_dtype more)
{
    const enum s2s_dtype type = args->q.dtype;
    if (args->k.dtype != type || args->value.dtype != type || args->p.dtype != type || more != type)
        S2S_BUG("attention with positions: q, k, value, p and dO are of several element types");
    return type == S2S_BF16;
}

size_t cuda_relattention_workspace(const struct s2s_queue *queue,
                                   const struct s2s_k_relattention *args)
{
    return rel_bias_bytes(args);
}

void cuda_relattention(struct s2s_queue *queue, const struct s2s_k_relattention *args)
{
    struct rel_problem a = rel_problem_of(args);
    const struct att_target o = att_target_of(&args->o, args->dim, false);
    const bool bf16 = rel_is_bf16(args, args->q.dtype);
    char *workspace = (char *)args->workspace;
    if (a.most_rows == 0 || a.n_heads == 0)
        return;
    rel_bias(queue, args, &a, &workspace);
    switch (rel_width(args->dim)) {
    case 64:
        return bf16 ? forward_run<att_bf16, 64, 4, 64>(queue, a, o, args->lse)
                    : forward_run<att_f32, 64, 4, 32>(queue, a, o, args->lse);
    case 128:
        return bf16 ? forward_run<att_bf16, 128, 4, 32>(queue, a, o, args->lse)
                    : forward_run<att_f32, 128, 2, 16, 5>(queue, a, o, args->lse);
    case 256:
        return bf16 ? forward_run<att_bf16, 256, 2, 16>(queue, a, o, args->lse)
                    : forward_run<att_f32, 256, 1, 16>(queue, a, o, args->lse);
    }
}
