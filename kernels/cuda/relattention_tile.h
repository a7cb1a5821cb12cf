/*
 * What the kernels of attention with relative positions share:
 *   S_ij = scale (q_i k_j + u k_j + q_i p_{i-j} + v p_{i-j})
 * The products are of tiles; those of a bias are numbers of a key or of a position, made before. A
 * warp has 16 queries m and W columns. Where the columns are keys, x, their positions are the band
 * of 16 + W rows of p that the warp can meet, of which (m, x) takes 15 - m + x; where they are
 * positions, their keys are a band of which it takes m + x. Bands go through shared memory, where
 * taking them so is an address.
 */
#ifndef S2S_KERNELS_CUDA_RELATTENTION_TILE_H
#define S2S_KERNELS_CUDA_RELATTENTION_TILE_H

#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/draw.h"

struct rel_problem {
    struct att_source q, k, value, p, d_o;
    /* [n_heads, most_rows], [n_heads, 2 max_seqlen - 1]: u k_j and v p_r */
    const float *by_key, *by_position;
    const int32_t *cu;
    int64_t most_rows; /* n_seqs max_seqlen */
    int n_seqs, n_heads, dim, max_seqlen;
    float scale, scale_log2;
    struct {
        int chunk, before, after; /* struct s2s_reach, none longer than a clip; chunk 0: all */
    } reach;
    struct cuda_draw draw; /* its plane is that of head 0 */
};

/* A clip. */
struct rel_clip {
    int64_t begin;
    int n;
};

static __device__ __forceinline__ rel_clip rel_clip_of(const rel_problem &a, int seq)
{
    return {a.cu[seq], a.cu[seq + 1] - a.cu[seq]};
}

/* The keys begin .. end of a clip of n that query i of it sees. */
static __device__ __forceinline__ int rel_begin(const rel_problem &a, int i)
{
    return a.reach.chunk ? max(i / a.reach.chunk * a.reach.chunk - a.reach.before, 0) : 0;
}

static __device__ __forceinline__ int rel_end(const rel_problem &a, int i, int n)
{
    return a.reach.chunk ? min((i / a.reach.chunk + 1) * a.reach.chunk + a.reach.after, n) : n;
}

/* Does one of the queries i .. i + n_i of a clip of n see one of the keys j .. j + n_j? */
static __device__ __forceinline__ bool rel_meet(const rel_problem &a, int n, int i, int n_i, int j,
                                                int n_j)
{
    return rel_begin(a, i) < j + n_j && rel_end(a, min(i + n_i, n) - 1, n) > j;
}

/* Row 0 of a head of what begins at packed row `row`. */
static __device__ __forceinline__ const char *rel_head(const att_source &from, int64_t row,
                                                       int head)
{
    return from.data + row * from.row_bytes + (int64_t)head * from.head_bytes;
}

/* Begins to copy ROWS rows of a head, from `first` on, of which those outside 0 .. n are zeros. */
template <class P, int D, int ROWS, int THREADS>
static __device__ __forceinline__ void rel_load(char *tile, const att_source &from,
                                                const char *head, int first, int n)
{
    typedef att_shape<P, D> S;
    typedef typename P::elem E;
    const int t = (int)opaque(threadIdx.x);
    if (!from.is_wide) {
#pragma unroll 1
        for (int i = t; i < ROWS * D; i += THREADS) {
            const int row = i / D, byte = i % D * (int)sizeof(E), at = first + row;
            E *to = (E *)(tile + S::at((uint32_t)row, (uint32_t)byte / 16) + byte % 16);
            *to = at >= 0 && at < n && byte < from.head_bytes
                      ? *(const E *)(head + (int64_t)at * from.row_bytes + byte)
                      : (E)0;
        }
        return;
    }
    const uint32_t to = shared_addr(tile);
#pragma unroll 4
    for (int i = t; i < ROWS * S::CHUNKS; i += THREADS) {
        const int row = i / S::CHUNKS, chunk = i % S::CHUNKS, at = first + row;
        const bool is_there = at >= 0 && at < n && chunk * 16 < from.head_bytes;
        cp_async<16>(to + S::at((uint32_t)row, (uint32_t)chunk),
                     is_there ? head + (int64_t)at * from.row_bytes + chunk * 16 : head,
                     is_there ? 16 : 0);
    }
}

/* ---- bands: [16, W + 16] of a warp, in rows of REL_BAND(W) floats ---- */

#define REL_BAND(W) ((W) + 24)

/* How columns and the band belong together. */
enum rel_columns { REL_KEYS, REL_POSITIONS };

template <rel_columns OF> static __device__ __forceinline__ int rel_shift(int m)
{
    return OF == REL_KEYS ? 15 - m : m;
}

/* numbers: what column c of the band gets besides, 0 outside 0 .. n; NULL: nothing. */
template <int W>
static __device__ __forceinline__ void rel_put_band(float *band, const float (&s)[W / 8 + 2][4],
                                                    const float *numbers, int first, int n)
{
    const int lane = (int)threadIdx.x % 32;
    __syncwarp(); /* nobody reads what was there */
#pragma unroll
    for (int t = 0; t < W / 8 + 2; t++) {
        const int col = t * 8 + lane % 4 * 2, at = first + col;
        const float x = numbers && at >= 0 && at < n ? numbers[at] : 0;
        const float y = numbers && at + 1 >= 0 && at + 1 < n ? numbers[at + 1] : 0;
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(band + (lane / 4 + h * 8) * REL_BAND(W) + col) =
                make_float2(s[t][2 * h] + x, s[t][2 * h + 1] + y);
    }
    __syncwarp();
}

/* s += what each element takes of the band */
template <int W, rel_columns OF>
static __device__ __forceinline__ void rel_add_band(float (&s)[W / 8][4], const float *band)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int m = lane / 4 + h * 8;
        const float *row = band + m * REL_BAND(W) + rel_shift<OF>(m) + lane % 4 * 2;
#pragma unroll
        for (int t = 0; t < W / 8; t++) {
            s[t][2 * h] += row[t * 8];
            s[t][2 * h + 1] += row[t * 8 + 1];
        }
    }
}

/* The way back: a band with s where it was taken from, and zeros. Of keys. */
template <int W>
static __device__ __forceinline__ void rel_spread(float (&band_of)[W / 8 + 2][4], float *band,
                                                  const float (&s)[W / 8][4])
{
    const int lane = (int)threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; i++) { /* 15 - m before, m + 1 behind */
        const int m = (i * 32 + lane) / 16, z = lane % 16;
        band[m * REL_BAND(W) + (z < 15 - m ? z : W + z)] = 0;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int m = lane / 4 + h * 8;
        float *row = band + m * REL_BAND(W) + 15 - m + lane % 4 * 2;
#pragma unroll
        for (int t = 0; t < W / 8; t++) {
            row[t * 8] = s[t][2 * h];
            row[t * 8 + 1] = s[t][2 * h + 1];
        }
    }
    __syncwarp();
#pragma unroll
    for (int t = 0; t < W / 8 + 2; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 x =
                *(const float2 *)(band + (lane / 4 + h * 8) * REL_BAND(W) + t * 8 + lane % 4 * 2);
            band_of[t][2 * h] = x.x;
            band_of[t][2 * h + 1] = x.y;
        }
}

/* s += numbers[first + column], and -inf in columns outside 0 .. n */
template <int N>
static __device__ __forceinline__ void rel_add_columns(float (&s)[N][4], const float *numbers,
                                                       int first, int n)
{
#pragma unroll
    for (int t = 0; t < N; t++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int at = first + t * 8 + (int)threadIdx.x % 4 * 2 + e;
            const float x = at >= 0 && at < n ? numbers[at] : -INFINITY;
            s[t][e] += x;
            s[t][2 + e] += x;
        }
}

/* The key of the lane's first column of row h, where j is that of the warp's first row and column.
 */
template <rel_columns OF> static __device__ __forceinline__ int rel_key(int j, int h)
{
    const int lane = (int)opaque(threadIdx.x) % 32;
    return j + lane % 4 * 2 + (OF == REL_KEYS ? 0 : lane / 4 + h * 8);
}

/* Scores of keys that their query does not see become -inf. i: the warp's first query, j: its first
 * key. */
template <rel_columns OF, int N>
static __device__ __forceinline__ void rel_mask(float (&s)[N][4], const rel_problem &a, int n,
                                                int i, int j)
{
    if (a.reach.chunk == 0)
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = i + (int)opaque(threadIdx.x) % 32 / 4 + h * 8, key = rel_key<OF>(j, h);
        const int begin = rel_begin(a, query) - key, end = rel_end(a, query, n) - key;
#pragma unroll
        for (int t = 0; t < N; t++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (t * 8 + e < begin || t * 8 + e >= end)
                    s[t][2 * h + e] = -INFINITY;
    }
}

/* What elements t of rows h are multiplied with, in pairs of keys; of a head and its clip's rows.
 * What stands in no clip gets something. */
template <rel_columns OF>
static __device__ __forceinline__ float2 rel_kept(const rel_problem &a, const rel_clip &clip,
                                                  int head, int i, int j, int t, int h)
{
    const int query = min(i + (int)opaque(threadIdx.x) % 32 / 4 + h * 8, clip.n - 1);
    const int key = rel_key<OF>(j, h) + t * 8;
    return cuda_kept_two(a.draw, clip.begin + query, (uint32_t)key, (uint32_t)key + 1,
                         (uint32_t)head);
}

/* ---- on the host ---- */

struct rel_problem rel_problem_of(const struct s2s_k_relattention *args);
/* Bytes of u k_j and v p_r, and their kernel; the workspace goes on behind them. */
size_t rel_bias_bytes(const struct s2s_k_relattention *args);
void rel_bias(struct s2s_queue *queue, const struct s2s_k_relattention *args, struct rel_problem *a,
              char **workspace);
/* out[n_heads, rows] = the products of rows of x and y, head by head; y is one row where its stride
 * is 0. Rows from cu's last on are left alone (NULL: there are none). */
void rel_dots(struct s2s_queue *queue, const struct rel_problem *a, const struct cuda_mat &x,
              const struct cuda_mat &y, int64_t rows, const int32_t *cu, float *out);
/* The width of tiles for heads of `dim`: 64, 128 or 256. */
int rel_width(int64_t dim);
bool rel_is_bf16(const struct s2s_k_relattention *args, enum s2s_dtype more);

#endif
