/*
 * The scan of bf16 in one pass: a block has 64 of a head's dim in one sequence and goes over its
 * chunks with the state, fp32, in the registers of its warps, [64, STATE], and a rounded copy of it
 * in shared memory for the products. So no state goes to memory but the last one. Of b and x the
 * next chunk's tiles come while this one's are used.
 */
#include "kernels/cuda/ssd.h"

#define SCAN static __device__ __forceinline__

enum { DIM = 64, THREADS = 128 };

struct ssd_scan_args {
    struct ssd_problem p;
    struct att_source x, b, c;
    struct cuda_mat y;
    bool in_pairs; /* of y two elements lie at a multiple of their size */
    const float *initial;
    float *last;
};

/* What the steps of a chunk do: behind the tiles. */
struct ssd_chunk_times {
    float step[SSD_CHUNK], high[SSD_CHUNK], low[SSD_CHUNK], rise[SSD_CHUNK];
    float brings[SSD_CHUNK]; /* left step */
    float decay;
};

template <int STATE> struct scan_shape {
    typedef att_shape<att_bf16, STATE> Wide;
    typedef att_shape<att_bf16, DIM> Narrow;
    enum { WIDE = SSD_CHUNK * Wide::ROW, NARROW = SSD_CHUNK * Narrow::ROW };
    /* c, the state, two of b, two of x */
    enum { SHARED_BYTES = 4 * WIDE + 2 * NARROW + (int)sizeof(struct ssd_chunk_times) };
    static_assert(SHARED_BYTES <= 99 << 10, "the shared memory of a block");
};

/* Begins to load the b and x of a chunk. */
template <int STATE>
SCAN void load_chunk(char *b_tile, char *x_tile, const struct ssd_scan_args &a, int64_t row,
                     int group, int head, int first, int n)
{
    const char *x = att_row(a.x, row, head) + first * 2;
    att_source part = a.x;
    part.head_bytes = min((int)DIM * 2, a.x.head_bytes - first * 2);
    att_load<att_bf16, STATE, SSD_CHUNK, THREADS>(b_tile, a.b, att_row(a.b, row, group), n);
    att_load<att_bf16, DIM, SSD_CHUNK, THREADS>(x_tile, part, x, n);
}

SCAN void load_times(struct ssd_chunk_times *w, const struct ssd_problem &p, int64_t row,
                     int64_t slot, int head, int n)
{
    for (int t = (int)threadIdx.x; t < SSD_CHUNK; t += THREADS) {
        const int64_t at = (row + (t < n ? t : n - 1)) * p.n_heads + head;
        w->step[t] = t < n ? p.step[at] : 0;
        w->high[t] = p.high[at];
        w->low[t] = p.low[at];
        w->rise[t] = p.rise[at];
        w->brings[t] = t < n ? p.left[at] * p.step[at] : 0;
    }
    if (threadIdx.x == 0)
        w->decay = p.decay[slot * p.n_heads + head];
}

/* Products of c and b become what mixes the rows of x: L (c b^T) step. */
SCAN void make_mix(float (&s)[SSD_CHUNK / 8][4], const struct ssd_chunk_times *w)
{
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < SSD_CHUNK / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int t = row + e / 2 * 8, u = n * 8 + lane % 4 * 2 + e % 2;
            const float d = (w->high[t] - w->high[u]) + (w->low[t] - w->low[u]);
            s[n][e] = u <= t ? s[n][e] * w->step[u] * exp2_fast(d * att_log2e) : 0;
        }
}

/* Two rows t of x, of a column, each by what it brings. */
SCAN uint32_t weighed(uint32_t x, float low, float high)
{
    return pack_bf16(cuda_of_bits(x << 16) * low, cuda_of_bits(x & 0xffff0000u) * high);
}

/* state = decay state + (brings x)^T b: this warp's 16 rows */
template <int STATE>
SCAN void bring(float (&state)[STATE / 8][4], const char *x_tile, const char *b_tile,
                const struct ssd_chunk_times *w)
{
    typedef att_shape<att_bf16, STATE> Wide;
    const int warp = (int)threadIdx.x / 32, pair = (int)threadIdx.x % 4 * 2;
    const att_lane across = att_lane_tall<Wide>(shared_addr(b_tile));
    const float decay = w->decay;
#pragma unroll
    for (int n = 0; n < STATE / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            state[n][e] *= decay;
#pragma unroll
    for (int k = 0; k < SSD_CHUNK / 16; k++) {
        att_bf16::frag_a a;
        ssd_columns(a, x_tile, warp, k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *brings = w->brings + k * 16 + i / 2 * 8 + pair;
            a.r[i] = weighed(a.r[i], brings[0], brings[1]);
        }
#pragma unroll
        for (int n = 0; n < STATE / 16; n++) {
            att_bf16::frag_b b[2];
            att_columns<STATE>(b, across, n, k);
            att_mma(state[2 * n], a, b[0]);
            att_mma(state[2 * n + 1], a, b[1]);
        }
    }
}

/* The rounded copy. */
template <int STATE> SCAN void copy_state(char *tile, const float (&state)[STATE / 8][4])
{
    typedef att_shape<att_bf16, STATE> Wide;
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < STATE / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(uint32_t *)(tile + Wide::at((uint32_t)(row + h * 8), (uint32_t)n) + lane % 4 * 4) =
                pack_bf16(state[n][2 * h], state[n][2 * h + 1]);
}

/* This lane's elements of the state of a sequence and head outside, [dim, state]. */
template <int STATE, bool STORE, class T>
SCAN void outside(float (&state)[STATE / 8][4], T *memory, const struct ssd_problem &p, int first)
{
    const int lane = (int)threadIdx.x % 32;
    const int row = first + (int)threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < STATE / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = row + e / 2 * 8, j = n * 8 + lane % 4 * 2 + e % 2;
            if (i >= p.dim || j >= p.state)
                continue;
            T *at = memory + ((int64_t)blockIdx.x * p.dim + i) * p.state + j;
            if constexpr (STORE)
                *at = state[n][e];
            else
                state[n][e] = *at;
        }
}

/* y + skip x of this warp's rows */
SCAN void finish(const struct ssd_scan_args &a, const float (&y)[DIM / 8][4], const char *x_tile,
                 int64_t row0, int head, int first, int n_rows)
{
    typedef att_shape<att_bf16, DIM> Narrow;
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
    const float skip = a.p.skip ? a.p.skip[head] : 0;
    const att_target to = {a.y, false, a.in_pairs};
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int t = row + h * 8;
            const uint32_t x =
                *(const uint32_t *)(x_tile + Narrow::at((uint32_t)t, (uint32_t)n) + lane % 4 * 4);
            if (t < n_rows)
                att_put(to, row0 + t, head, a.p.dim, first + n * 8 + lane % 4 * 2,
                        y[n][2 * h] + skip * cuda_of_bits(x << 16),
                        y[n][2 * h + 1] + skip * cuda_of_bits(x & 0xffff0000u));
        }
}

/* Blocks in x are sequences and heads, in y parts of the dim. */
template <int STATE>
__global__ void __launch_bounds__(THREADS, 2) scan_kernel(const struct ssd_scan_args a)
{
    typedef scan_shape<STATE> S;
    typedef typename S::Wide Wide;
    SHARED(char, sh);
    char *const c_tile = sh, *const s_tile = sh + S::WIDE, *const b_tiles = sh + 2 * S::WIDE;
    char *const x_tiles = sh + 4 * S::WIDE;
    struct ssd_chunk_times *const w = (struct ssd_chunk_times *)(x_tiles + 2 * S::NARROW);
    const int head = (int)(blockIdx.x % a.p.n_heads), group = head / a.p.per;
    const int first = (int)blockIdx.y * DIM, warp = (int)threadIdx.x / 32;
    const int64_t seq = blockIdx.x / a.p.n_heads;
    int64_t row = a.p.cu[seq], slot = ssd_first_slot(a.p, seq);
    int left = (int)(a.p.cu[seq + 1] - row);
    bool has_state = a.initial != NULL;
    float state[STATE / 8][4] = {};
    if (has_state)
        outside<STATE, false>(state, a.initial, a.p, first);
    if (left > 0) {
        att_load<att_bf16, STATE, SSD_CHUNK, THREADS>(c_tile, a.c, att_row(a.c, row, group), left);
        load_chunk<STATE>(b_tiles, x_tiles, a, row, group, head, first, left);
        load_times(w, a.p, row, slot, head, left);
        copy_state<STATE>(s_tile, state);
    }
    cp_async_commit();
    const att_lane c_lane = att_lane_tall<Wide>(shared_addr(c_tile + warp * 16 * Wide::ROW));
    const att_lane s_lane = att_lane_wide<Wide>(shared_addr(s_tile));
    for (int turn = 0; left > 0; turn ^= 1) {
        char *const b_tile = b_tiles + turn * S::WIDE, *const x_tile = x_tiles + turn * S::NARROW;
        float s[1][SSD_CHUNK / 8][4] = {}, y[1][DIM / 8][4] = {};
        const int lane = (int)threadIdx.x % 32;
        cp_async_wait<0>();
        __syncthreads(); /* all of this chunk is there, and nobody reads the other tiles any more */
        if (left > SSD_CHUNK)
            load_chunk<STATE>(b_tiles + (turn ^ 1) * S::WIDE, x_tiles + (turn ^ 1) * S::NARROW, a,
                              row + SSD_CHUNK, group, head, first, left - SSD_CHUNK);
        cp_async_commit();
        if (has_state)
            att_times_rows<att_bf16, STATE>(y, c_lane, s_lane);
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                y[0][n][e] *= w->rise[warp * 16 + lane / 4 + e / 2 * 8];
        att_times_rows<att_bf16, STATE>(s, c_lane, att_lane_wide<Wide>(shared_addr(b_tile)));
        make_mix(s[0], w);
        att_times_columns<att_bf16, DIM>(y, s, att_across<att_bf16, DIM>::of(x_tile));
        finish(a, y[0], x_tile, row, head, first, left);
        bring<STATE>(state, x_tile, b_tile, w);
        __syncthreads(); /* nobody reads c, the state or the times any more */
        copy_state<STATE>(s_tile, state);
        has_state = true;
        row += SSD_CHUNK;
        left -= SSD_CHUNK;
        slot++;
        if (left > 0) {
            att_load<att_bf16, STATE, SSD_CHUNK, THREADS>(c_tile, a.c, att_row(a.c, row, group),
                                                          left);
            load_times(w, a.p, row, slot, head, left);
        }
        cp_async_commit();
    }
    if (a.last)
        outside<STATE, true>(state, a.last, a.p, first);
}

bool ssd_scan_takes(const struct s2s_k_ssd *args)
{
    return args->x.dtype == S2S_BF16 && args->state <= 128;
}

void ssd_scan(struct s2s_queue *queue, const struct s2s_k_ssd *args, const struct ssd_problem *p)
{
    const struct ssd_scan_args a = {*p,
                                    att_source_of(&args->x, args->dim),
                                    att_source_of(&args->b, args->state),
                                    att_source_of(&args->c, args->state),
                                    cuda_mat(&args->y),
                                    att_target_of(&args->y, args->dim, false).in_pairs,
                                    args->initial,
                                    args->final};
    const dim3 grid((unsigned)(args->n_seqs * args->n_heads),
                    (unsigned)cuda_ceil_div(args->dim, DIM));
    if (args->state <= 64)
        LAUNCH(queue, scan_kernel<64>, grid, THREADS, scan_shape<64>::SHARED_BYTES, a);
    else
        LAUNCH(queue, scan_kernel<128>, grid, THREADS, scan_shape<128>::SHARED_BYTES, a);
}
