/*
 * Attention with relative positions, backward, with P and dS of tiles that are computed again by
 * each of three kernels and nothing added by atomics:
 *   P = exp(S - lse),  dS = P (K (dO V^T) - rowsum(dO O)),  K: what dropout multiplies P with, or 1
 *   dq_i = scale sum_j dS_ij (k_j + p_{i-j})                 by tiles of queries
 *   dk_j = scale (sum_i dS_ij q_i + c_j u),  c_j = sum_i dS_ij,  dvalue_j = sum_i K_ij P_ij dO_i
 *   dp_r = scale (sum_{i-j=r} dS_ij q_i + c_r v),  c_r = sum_{i-j=r} dS_ij
 *   du = scale sum_j c_j k_j,  dv = scale sum_r c_r p_r
 * Keys and positions are rows of one kernel, whose columns of dS are the one or the other; clips
 * share positions, so parts of them add up apart, and then in order.
 */
#include "kernels/cuda/map.h"
#include "kernels/cuda/relattention_tile.h"
#include "kernels/cuda/sum.h"

struct rel_backward {
    struct rel_problem a;
    const float *lse, *delta; /* [n_heads, most_rows]: lse in powers of 2, rowsum(dO O) */
    struct att_target dq, dk, dvalue;
    float *by_key;      /* c_j [n_heads, most_rows] */
    float *by_position; /* c_r [n_parts, n_heads, 2 max_seqlen - 1] */
    float *dp;          /* [n_parts, 2 max_seqlen - 1, n_heads * dim] */
    int n_parts;
};

/* lse and delta of this lane's two queries; P of one that is not there is 0. */
struct rel_numbers {
    float lse[2], delta[2];
};

static __device__ __forceinline__ rel_numbers numbers_of(const rel_backward &b,
                                                         const rel_clip &clip, int head, int first)
{
    rel_numbers own;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = first + h * 8 + (int)threadIdx.x % 32 / 4;
        const int64_t at = head * b.a.most_rows + clip.begin + i;
        own.lse[h] = i < clip.n ? b.lse[at] : INFINITY;
        own.delta[h] = i < clip.n ? b.delta[at] : 0;
    }
    return own;
}

/* Scores become P, as dropout leaves it, and what came from dO V^T becomes dS. i, j: the warp's
 * first query and its key in the first column. */
template <rel_columns OF, int N>
static __device__ __forceinline__ void soften_back(float (&s)[N][4], float (&ds)[N][4],
                                                   const rel_problem &a, const rel_numbers &own,
                                                   const rel_clip &clip, int head, int i, int j)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 kept = make_float2(1, 1);
            if (a.draw.rows)
                kept = rel_kept<OF>(a, clip, head, i, j, n, h);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float p = exp2_fast(s[n][2 * h + e] * a.scale_log2 - own.lse[h]);
                const float keep = e ? kept.y : kept.x;
                ds[n][2 * h + e] = p * (keep * ds[n][2 * h + e] - own.delta[h]);
                s[n][2 * h + e] = keep * p;
            }
        }
}

/* ---- dq ---- */

template <class P_, int D_, int WARPS_, int N_> struct rel_queries_shape {
    typedef P_ P;
    enum { D = D_, WARPS = WARPS_, N = N_, THREADS = WARPS * 32, M = WARPS * 16 };
    enum { ROW = att_shape<P, D>::ROW, BAND = 16 * REL_BAND(N) };
    enum { BANDS_AT = (2 * M + 2 * N + M + N) * ROW };
    enum { SHARED_BYTES = BANDS_AT + WARPS * BAND * (int)sizeof(float) };
    static_assert(SHARED_BYTES <= 99 << 10, "the shared memory of a block");
};

template <class S>
__global__ void __launch_bounds__(S::THREADS, 2) rel_queries_kernel(const rel_backward b)
{
    typedef typename S::P P;
    typedef att_shape<P, S::D> Shape;
    enum { N = S::N };
    const rel_problem &a = b.a;
    SHARED(char, sh);
    char *const q_tile = sh, *const o_tile = q_tile + S::M * S::ROW;
    char *const k_tile = o_tile + S::M * S::ROW, *const v_tile = k_tile + N * S::ROW;
    char *const p_tile = v_tile + N * S::ROW;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *const band = (float *)(sh + S::BANDS_AT) + warp * S::BAND;
    const int head = (int)blockIdx.y, tiles = (a.max_seqlen + S::M - 1) / S::M;
    const rel_clip clip = rel_clip_of(a, (int)(blockIdx.x / (unsigned)tiles));
    const int at = (int)(blockIdx.x % (unsigned)tiles) * S::M, n_positions = 2 * a.max_seqlen - 1;
    if (at >= clip.n)
        return;
    const int skip = S::M - 16 - warp * 16; /* rows of the tile of p before the warp's band */
    const int end = rel_end(a, min(at + S::M, clip.n) - 1, clip.n);
    const rel_numbers own = numbers_of(b, clip, head, at + warp * 16);
    rel_load<P, S::D, S::M, S::THREADS>(q_tile, a.q, rel_head(a.q, clip.begin, head), at, clip.n);
    rel_load<P, S::D, S::M, S::THREADS>(o_tile, a.d_o, rel_head(a.d_o, clip.begin, head), at,
                                        clip.n);
    const att_lane q_lane = att_lane_tall<Shape>(shared_addr(q_tile + warp * 16 * S::ROW));
    const att_lane o_lane = att_lane_tall<Shape>(shared_addr(o_tile + warp * 16 * S::ROW));
    const att_lane k_lane = att_lane_wide<Shape>(shared_addr(k_tile));
    const att_lane v_lane = att_lane_wide<Shape>(shared_addr(v_tile));
    const att_lane p_lane = att_lane_wide<Shape>(shared_addr(p_tile + skip * S::ROW));
    float dq[1][S::D / 8][4] = {};
#pragma unroll 1
    for (int j = rel_begin(a, at) / N * N; j < end; j += N) {
        const int first = a.max_seqlen - at - S::M + j; /* row of p */
        __syncthreads();                                /* nobody reads the last tiles any more */
        rel_load<P, S::D, N, S::THREADS>(k_tile, a.k, rel_head(a.k, clip.begin, head), j, clip.n);
        rel_load<P, S::D, N, S::THREADS>(v_tile, a.value, rel_head(a.value, clip.begin, head), j,
                                         clip.n);
        rel_load<P, S::D, S::M + N, S::THREADS>(p_tile, a.p, rel_head(a.p, 0, head), first,
                                                n_positions);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        float s[1][N / 8][4] = {}, ds[1][N / 8][4] = {}, positions[1][N / 8 + 2][4] = {};
        att_times_rows<P, S::D>(positions, att_anew(q_lane), att_anew(p_lane));
        rel_put_band<N>(band, positions[0], a.by_position + (int64_t)head * n_positions,
                        first + skip, n_positions);
        att_times_rows<P, S::D>(s, att_anew(q_lane), att_anew(k_lane));
        rel_add_band<N, REL_KEYS>(s[0], band);
        rel_add_columns(s[0], a.by_key + head * a.most_rows + clip.begin, j, clip.n);
        rel_mask<REL_KEYS>(s[0], a, clip.n, at + warp * 16, j);
        att_times_rows<P, S::D>(ds, att_anew(o_lane), att_anew(v_lane));
        soften_back<REL_KEYS>(s[0], ds[0], a, own, clip, head, at + warp * 16, j);
        rel_spread<N>(positions[0], band, ds[0]);
        att_times_columns<P, S::D>(dq, ds, att_across<P, S::D>::of(k_tile));
        att_times_columns<P, S::D>(dq, positions, att_across<P, S::D>::of(p_tile + skip * S::ROW));
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = at + warp * 16 + h * 8 + lane / 4;
        if (i >= clip.n)
            continue;
#pragma unroll
        for (int n = 0; n < S::D / 8; n++)
            att_put(b.dq, clip.begin + i, head, a.dim, n * 8 + lane % 4 * 2,
                    dq[0][n][2 * h] * a.scale, dq[0][n][2 * h + 1] * a.scale);
    }
}

/* ---- dk and dvalue, or dp ---- */

/* Tiles of M rows of dS, as many keys or positions as queries: WARPS of 16. */
template <class P_, int D_, int WARPS_, rel_columns OF_> struct rel_rows_shape {
    typedef P_ P;
    static const rel_columns OF = OF_;
    enum { D = D_, WARPS = WARPS_, THREADS = WARPS * 32, M = WARPS * 16 };
    enum { ROW = att_shape<P, D>::ROW, SIZE = (int)sizeof(typename P::elem) };
    /* P and dS turned: M rows of queries */
    enum { TURNED = M * SIZE < 64 ? 64 / SIZE : M, TURNED_BYTES = M * TURNED * SIZE };
    enum { BANDS = WARPS * 16 * REL_BAND(M) * (int)sizeof(float) };
    /* keys: those of the rows, their values, queries, dO, positions; positions: those of the rows,
     * queries, dO, and twice as many keys, whose place their values take */
    enum { TILES = OF == REL_KEYS ? 6 : 5, ROOM_AT = TILES * M * ROW };
    enum { SHARED_BYTES = ROOM_AT + (BANDS > 2 * TURNED_BYTES ? BANDS : 2 * TURNED_BYTES) };
    static_assert(SHARED_BYTES <= 99 << 10, "the shared memory of a block");
    /* steps of products whose fragments are loaded ahead: those of all steps of a wide head, or in
     * F32, would fill the registers, and be spilled (make cuda-lint) */
    enum { AT_ONCE = D > 64 || SIZE == 4 ? 4 : att_shape<P, D>::STEPS };
    /* of a multiprocessor, 0: as the compiler likes, which spills no registers so */
    enum { KEYS_BLOCKS = SIZE == 4 && D == 64 ? 0 : 2 };
};

/* Where query m stands in a turned row: as att_columns takes rows. */
template <class P> static __device__ __forceinline__ int turned_column(int m)
{
    return sizeof(typename P::elem) == 4 ? (m & ~7) | m % 2 * 4 | m % 8 / 2 : m;
}

/* The warp's 16 queries of s [16, M] into tile [M, queries]. */
template <class S>
static __device__ __forceinline__ void put_turned(char *tile, const float (&s)[S::M / 8][4])
{
    typedef typename S::P P;
    typedef att_shape<P, S::TURNED> Shape;
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int col = turned_column<P>((int)threadIdx.x / 32 * 16 + lane / 4 + h * 8);
#pragma unroll
        for (int t = 0; t < S::M / 8; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int row = t * 8 + lane % 4 * 2 + e, byte = col * S::SIZE;
                char *to = tile + Shape::at((uint32_t)row, (uint32_t)byte / 16) + byte % 16;
                if constexpr (S::SIZE == 2)
                    *(uint16_t *)to = cuda_to_bf16(s[t][2 * h + e]);
                else
                    *(float *)to = s[t][2 * h + e];
            }
    }
}

/* What a lane holds of rows lane / 4 and lane / 4 + 8. */
static __device__ __forceinline__ void add_rows(float (&sum)[2], const att_bf16::frag_a &a)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        sum[i % 2] += cuda_of_bits(a.r[i] << 16) + cuda_of_bits(a.r[i] & 0xffff0000u);
}

static __device__ __forceinline__ void add_rows(float (&sum)[2], const att_f32::frag_a &a)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        sum[i % 2] += cuda_of_bits(a.high[i]) + cuda_of_bits(a.low[i]);
}

/* to += 16 rows of a turned tile times its queries' rows of another; sums of these rows */
template <class S>
static __device__ __forceinline__ void times_queries(float (&to)[S::D / 8][4], float (&sum)[2],
                                                     const char *turned, const char *rows)
{
    typedef typename S::P P;
    typedef att_shape<P, S::TURNED> Shape;
    const int warp = (int)threadIdx.x / 32;
    const att_lane lane = att_lane_tall<Shape>(shared_addr(turned + warp * 16 * Shape::ROW));
    const typename att_across<P, S::D>::type across = att_across<P, S::D>::of(rows);
#pragma unroll
    for (int k = 0; k < S::M / P::STEP; k++) {
        typename P::frag_a a;
        att_rows<P, S::TURNED>(a, lane, 0, k);
        add_rows(sum, a);
#pragma unroll
        for (int n = 0; n < S::D / 16; n++) {
            typename P::frag_b f[2];
            att_columns<S::D>(f, across, n, k);
            att_mma(to[2 * n], a, f[0]);
            att_mma(to[2 * n + 1], a, f[1]);
        }
    }
}

/* What a block holds: rows `at` .. of dS turned, and tiles in shared memory. */
struct rel_tiles {
    char *rows, *values, *q, *d_o, *band; /* band: of p, or of keys and then values */
    char *room;
    int at, head;
};

/* dk and the sums of rows, dvalue, or both: of wide heads the registers hold one. */
enum { WANTS_DK = 1, WANTS_DV = 2, WANTS_BOTH = 3 };

/* P (for dvalue) and dS (for dk, dp) of the queries from i on of a clip, turned, into t.room. */
template <class S, int WANTS>
static __device__ __forceinline__ void make_scores(const rel_backward &b, const rel_clip &clip,
                                                   const rel_tiles &t, int i)
{
    typedef typename S::P P;
    typedef att_shape<P, S::D> Shape;
    enum { M = S::M, OF_KEYS = S::OF == REL_KEYS };
    const rel_problem &a = b.a;
    const int warp = (int)threadIdx.x / 32, n_positions = 2 * a.max_seqlen - 1;
    /* of the tile of the band: its first row, and the warp's first in it */
    const int first = OF_KEYS ? a.max_seqlen - i - M + t.at : t.at - (a.max_seqlen - 1) + i;
    const int skip = OF_KEYS ? M - 16 - warp * 16 : warp * 16;
    const int key = OF_KEYS ? t.at : first + skip; /* of the warp's first query and column */
    const float *const by_key = a.by_key + t.head * a.most_rows + clip.begin;
    const float *const by_position = a.by_position + (int64_t)t.head * n_positions;
    float *const band = (float *)t.room + warp * 16 * REL_BAND(M);
    const rel_numbers own = numbers_of(b, clip, t.head, i + warp * 16);
    rel_load<P, S::D, M, S::THREADS>(t.q, a.q, rel_head(a.q, clip.begin, t.head), i, clip.n);
    rel_load<P, S::D, M, S::THREADS>(t.d_o, a.d_o, rel_head(a.d_o, clip.begin, t.head), i, clip.n);
    if constexpr (OF_KEYS)
        rel_load<P, S::D, 2 * M, S::THREADS>(t.band, a.p, rel_head(a.p, 0, t.head), first,
                                             n_positions);
    else
        rel_load<P, S::D, 2 * M, S::THREADS>(t.band, a.k, rel_head(a.k, clip.begin, t.head), first,
                                             clip.n);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    const att_lane q_lane = att_lane_tall<Shape>(shared_addr(t.q + warp * 16 * S::ROW));
    const att_lane o_lane = att_lane_tall<Shape>(shared_addr(t.d_o + warp * 16 * S::ROW));
    const att_lane b_lane = att_lane_wide<Shape>(shared_addr(t.band + skip * S::ROW));
    float s[1][M / 8][4] = {}, ds[1][M / 8][4] = {};
    {
        float other[1][M / 8 + 2][4] = {};
        att_times_rows<P, S::D, S::AT_ONCE>(other, q_lane, b_lane);
        if constexpr (OF_KEYS) {
            rel_put_band<M>(band, other[0], by_position, first + skip, n_positions);
        } else {
            rel_add_columns(other[0], by_key, first + skip, clip.n);
            rel_put_band<M>(band, other[0], NULL, 0, 0);
        }
    }
    att_times_rows<P, S::D, S::AT_ONCE>(s, q_lane, att_lane_wide<Shape>(shared_addr(t.rows)));
    rel_add_band<M, S::OF>(s[0], band);
    rel_add_columns(s[0], OF_KEYS ? by_key : by_position, t.at, OF_KEYS ? clip.n : n_positions);
    rel_mask<S::OF>(s[0], a, clip.n, i + warp * 16, key);
    if constexpr (!(WANTS & WANTS_DK)) {
    } else if constexpr (OF_KEYS) {
        att_times_rows<P, S::D, S::AT_ONCE>(ds, o_lane,
                                            att_lane_wide<Shape>(shared_addr(t.values)));
    } else {
        __syncthreads(); /* nobody reads keys any more */
        rel_load<P, S::D, 2 * M, S::THREADS>(t.band, a.value, rel_head(a.value, clip.begin, t.head),
                                             first, clip.n);
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        float other[1][M / 8 + 2][4] = {};
        att_times_rows<P, S::D, S::AT_ONCE>(other, o_lane, b_lane);
        rel_put_band<M>(band, other[0], NULL, 0, 0);
        rel_add_band<M, S::OF>(ds[0], band);
    }
    soften_back<S::OF>(s[0], ds[0], a, own, clip, t.head, i + warp * 16, key);
    __syncthreads(); /* nobody reads bands any more */
    if constexpr ((WANTS & WANTS_DV) != 0)
        put_turned<S>(t.room + S::TURNED_BYTES, s[0]);
    if constexpr ((WANTS & WANTS_DK) != 0)
        put_turned<S>(t.room, ds[0]);
    __syncthreads();
}

template <class S> static __device__ __forceinline__ rel_tiles tiles_of(char *sh, int at, int head)
{
    enum { TILE = S::M * S::ROW };
    if (S::OF == REL_KEYS)
        return {sh, sh + TILE, sh + 2 * TILE, sh + 3 * TILE, sh + 4 * TILE, sh + S::ROOM_AT,
                at, head};
    return {sh, NULL, sh + TILE, sh + 2 * TILE, sh + 3 * TILE, sh + S::ROOM_AT, at, head};
}

template <class S, int WANTS>
__global__ void __launch_bounds__(S::THREADS, S::KEYS_BLOCKS)
    rel_keys_kernel(const rel_backward b, const float *u)
{
    typedef typename S::P P;
    const rel_problem &a = b.a;
    SHARED(char, sh);
    const int tiles = (a.max_seqlen + S::M - 1) / S::M, head = (int)blockIdx.y;
    const rel_clip clip = rel_clip_of(a, (int)(blockIdx.x / (unsigned)tiles));
    const rel_tiles t = tiles_of<S>(sh, (int)(blockIdx.x % (unsigned)tiles) * S::M, head);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    if (t.at >= clip.n)
        return;
    rel_load<P, S::D, S::M, S::THREADS>(t.rows, a.k, rel_head(a.k, clip.begin, head), t.at, clip.n);
    rel_load<P, S::D, S::M, S::THREADS>(t.values, a.value, rel_head(a.value, clip.begin, head),
                                        t.at, clip.n);
    float dk[S::D / 8][4] = {}, dv[S::D / 8][4] = {}, sum[2] = {}, unused[2] = {};
#pragma unroll 1
    for (int i = 0; i < clip.n; i += S::M) {
        if (!rel_meet(a, clip.n, i, S::M, t.at, S::M))
            continue;
        make_scores<S, WANTS>(b, clip, t, i);
        if constexpr ((WANTS & WANTS_DV) != 0)
            times_queries<S>(dv, unused, t.room + S::TURNED_BYTES, t.d_o);
        if constexpr ((WANTS & WANTS_DK) != 0)
            times_queries<S>(dk, sum, t.room, t.q);
        __syncthreads(); /* nobody reads these tiles any more */
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int j = t.at + warp * 16 + h * 8 + lane / 4;
        sum[h] += shfl_xor(sum[h], 1);
        sum[h] += shfl_xor(sum[h], 2);
        if (j >= clip.n)
            continue;
        if ((WANTS & WANTS_DK) && lane % 4 == 0)
            b.by_key[head * a.most_rows + clip.begin + j] = sum[h];
#pragma unroll
        for (int n = 0; n < S::D / 8; n++) {
            const int col = n * 8 + lane % 4 * 2;
            const float *const bias = u + (int64_t)head * a.dim;
            const float x = col < a.dim ? bias[col] : 0, y = col + 1 < a.dim ? bias[col + 1] : 0;
            if ((WANTS & WANTS_DK) && b.dk.mat.data)
                att_put(b.dk, clip.begin + j, head, a.dim, col,
                        a.scale * (dk[n][2 * h] + sum[h] * x),
                        a.scale * (dk[n][2 * h + 1] + sum[h] * y));
            if ((WANTS & WANTS_DV) && b.dvalue.mat.data)
                att_put(b.dvalue, clip.begin + j, head, a.dim, col, dv[n][2 * h], dv[n][2 * h + 1]);
        }
    }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, 2)
    rel_positions_kernel(const rel_backward b, const float *v)
{
    typedef typename S::P P;
    const rel_problem &a = b.a;
    SHARED(char, sh);
    const int n_positions = 2 * a.max_seqlen - 1, head = (int)blockIdx.y, part = (int)blockIdx.z;
    const rel_tiles t = tiles_of<S>(sh, (int)blockIdx.x * S::M, head);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int last = (int)((int64_t)(part + 1) * a.n_seqs / b.n_parts);
    rel_load<P, S::D, S::M, S::THREADS>(t.rows, a.p, rel_head(a.p, 0, head), t.at, n_positions);
    float dp[S::D / 8][4] = {}, sum[2] = {};
    for (int seq = (int)((int64_t)part * a.n_seqs / b.n_parts); seq < last; seq++) {
        /* key i + apart of query i, of which the rows have apart .. apart + M */
        const rel_clip clip = rel_clip_of(a, seq);
        const int apart = t.at - (a.max_seqlen - 1), end = min(clip.n, clip.n - apart);
#pragma unroll 1
        for (int i = max(0, -(apart + S::M - 1)); i < end; i += S::M) {
            if (!rel_meet(a, clip.n, i, S::M, i + apart, 2 * S::M))
                continue;
            make_scores<S, WANTS_DK>(b, clip, t, i);
            times_queries<S>(dp, sum, t.room, t.q);
            __syncthreads(); /* nobody reads these tiles any more */
        }
    }
    cp_async_wait<0>(); /* of the rows, where there were no queries */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = t.at + warp * 16 + h * 8 + lane / 4;
        sum[h] += shfl_xor(sum[h], 1);
        sum[h] += shfl_xor(sum[h], 2);
        if (r >= n_positions)
            continue;
        if (lane % 4 == 0)
            b.by_position[((int64_t)part * a.n_heads + head) * n_positions + r] = sum[h];
#pragma unroll
        for (int n = 0; n < S::D / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int col = n * 8 + lane % 4 * 2 + e;
                const int64_t width = (int64_t)a.n_heads * a.dim, to = (int64_t)head * a.dim + col;
                if (col < a.dim)
                    b.dp[((int64_t)part * n_positions + r) * width + to] =
                        a.scale * (dp[n][2 * h + e] + sum[h] * v[to]);
            }
    }
}

template <class P, int D, int WARPS, int N>
static void queries_run(struct s2s_queue *queue, const struct rel_backward &b)
{
    typedef rel_queries_shape<P, D, WARPS, N> S;
    const int64_t tiles = cuda_ceil_div(b.a.max_seqlen, S::M);
    const dim3 grid((unsigned)(b.a.n_seqs * tiles), (unsigned)b.a.n_heads);
    LAUNCH(queue, rel_queries_kernel<S>, grid, S::THREADS, S::SHARED_BYTES, b);
}

template <class P, int D, int WARPS>
static void rows_run(struct s2s_queue *queue, const struct rel_backward &b,
                     const struct s2s_k_relattention_backward *args)
{
    typedef rel_rows_shape<P, D, WARPS, REL_KEYS> Keys;
    typedef rel_rows_shape<P, D, WARPS, REL_POSITIONS> Positions;
    const struct s2s_k_relattention *f = &args->forward;
    const int64_t tiles = cuda_ceil_div(b.a.max_seqlen, Keys::M);
    const dim3 keys((unsigned)(b.a.n_seqs * tiles), (unsigned)b.a.n_heads);
    const dim3 positions((unsigned)cuda_ceil_div(2 * b.a.max_seqlen - 1, Positions::M),
                         (unsigned)b.a.n_heads, (unsigned)b.n_parts);
    if constexpr (D <= 64) {
        if (args->dk.data || args->dvalue.data || args->du)
            LAUNCH(queue, (rel_keys_kernel<Keys, WANTS_BOTH>), keys, Keys::THREADS,
                   Keys::SHARED_BYTES, b, f->u);
    } else {
        if (args->dk.data || args->du)
            LAUNCH(queue, (rel_keys_kernel<Keys, WANTS_DK>), keys, Keys::THREADS,
                   Keys::SHARED_BYTES, b, f->u);
        if (args->dvalue.data)
            LAUNCH(queue, (rel_keys_kernel<Keys, WANTS_DV>), keys, Keys::THREADS,
                   Keys::SHARED_BYTES, b, f->u);
    }
    if (args->dp.data || args->dv)
        LAUNCH(queue, rel_positions_kernel<Positions>, positions, Positions::THREADS,
               Positions::SHARED_BYTES, b, f->v);
}

/* ---- what is summed over rows ---- */

/* x = scale c_row y_row, of a head: rows of keys, or of the positions of each part */
struct scaled_rows {
    enum { SUMS = 1 };
    struct cuda_mat y;
    const float *c;
    const int32_t *end; /* NULL: `rows` again and again, c goes on */
    int64_t rows;
    int n_heads, dim;
    float scale;
    template <int N> __device__ void at(int64_t row, int64_t col, float (&out)[1][N]) const
    {
        const int64_t part = row / rows, of = row - part * rows;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float factor = c[(part * n_heads + (col + i) / dim) * rows + of];
            out[0][i] = end && of >= *end ? 0 : scale * factor * cuda_get(y, of, col + i);
        }
    }
};

struct lse_rows {
    const float *lse;
    float *out;
    const int32_t *end;
    int64_t rows, n_heads;
    template <int N> __device__ void at(int64_t row, int64_t head) const
    {
        if (row < *end)
            out[head * rows + row] = lse[row * n_heads + head] * att_log2e;
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

/* Clips are shared out among parts, which are added in order. */
enum { MAX_PARTS = 8 };

/* Floats of the workspace behind what the forward has there. */
struct room {
    int64_t rows;      /* of each head and row: lse, delta and c_j */
    int64_t positions; /* of each part, head and position: c_r */
    int64_t dp;        /* of a part; there is one more, their sum */
    int64_t sums;      /* parts of sums over rows */
    int n_parts;
};

static struct room room_of(const struct s2s_k_relattention *f)
{
    const int64_t n = f->n_seqs * f->max_seqlen, width = f->n_heads * f->dim;
    const int64_t n_positions = 2 * f->max_seqlen - 1;
    const int n_parts = (int)(f->n_seqs < MAX_PARTS ? f->n_seqs : (int64_t)MAX_PARTS);
    const int64_t most = n > n_parts * n_positions ? n : n_parts * n_positions;
    const struct room r = {n * f->n_heads, n_parts * f->n_heads * n_positions, n_positions * width,
                           cuda_column_parts(most) * width, n_parts};
    return r;
}

size_t cuda_relattention_backward_workspace(const struct s2s_queue *queue,
                                            const struct s2s_k_relattention_backward *args)
{
    const struct s2s_k_relattention *f = &args->forward;
    if (f->n_seqs * f->max_seqlen == 0)
        return 0;
    const struct room r = room_of(f);
    return rel_bias_bytes(f) +
           (size_t)(3 * r.rows + r.positions + (r.n_parts + 1) * r.dp + r.sums) * sizeof(float);
}

static void sum_rows(struct s2s_queue *queue, const struct scaled_rows &map, int64_t rows,
                     float *parts, float *out)
{
    const int64_t cols = (int64_t)map.n_heads * map.dim;
    cuda_columns(queue, map, parts, rows, cols, false);
    cuda_add_parts(queue, out, parts, cuda_column_parts(rows), cols, cols, true);
}

static void run(struct s2s_queue *queue, const struct rel_backward &b,
                const struct s2s_k_relattention_backward *args)
{
    const bool bf16 = rel_is_bf16(&args->forward, args->d_o.dtype), dq = args->dq.data != NULL;
    switch (rel_width(args->forward.dim)) {
    case 64:
        if (dq && bf16)
            queries_run<att_bf16, 64, 4, 32>(queue, b);
        else if (dq)
            queries_run<att_f32, 64, 4, 32>(queue, b);
        return bf16 ? rows_run<att_bf16, 64, 4>(queue, b, args)
                    : rows_run<att_f32, 64, 2>(queue, b, args);
    case 128:
        if (dq && bf16)
            queries_run<att_bf16, 128, 4, 32>(queue, b);
        else if (dq)
            queries_run<att_f32, 128, 2, 16>(queue, b);
        return bf16 ? rows_run<att_bf16, 128, 2>(queue, b, args)
                    : rows_run<att_f32, 128, 1>(queue, b, args);
    case 256:
        if (dq && bf16)
            queries_run<att_bf16, 256, 2, 16>(queue, b);
        else if (dq)
            queries_run<att_f32, 256, 1, 16>(queue, b);
        return bf16 ? rows_run<att_bf16, 256, 1>(queue, b, args)
                    : rows_run<att_f32, 256, 1>(queue, b, args);
    }
}

void cuda_relattention_backward(struct s2s_queue *queue,
                                const struct s2s_k_relattention_backward *args)
{
    const struct s2s_k_relattention *f = &args->forward;
    const int64_t width = f->n_heads * f->dim, n_positions = 2 * f->max_seqlen - 1;
    char *workspace = (char *)args->workspace;
    if (f->n_seqs * f->max_seqlen == 0 || width == 0)
        return;
    const struct room r = room_of(f);
    struct rel_backward b = {};
    b.a = rel_problem_of(f);
    b.a.d_o = att_source_of(&args->d_o, f->dim);
    rel_bias(queue, f, &b.a, &workspace);
    float *const lse = (float *)workspace, *const delta = lse + r.rows;
    b.by_key = delta + r.rows;
    b.by_position = b.by_key + r.rows;
    float *const sum = b.by_position + r.positions;
    b.dp = sum + r.dp;
    float *const sums = b.dp + r.n_parts * r.dp;
    b.lse = lse;
    b.delta = delta;
    b.dq = att_target_of(&args->dq, f->dim, args->accumulate_dq);
    b.dk = att_target_of(&args->dk, f->dim, args->accumulate_dk);
    b.dvalue = att_target_of(&args->dvalue, f->dim, args->accumulate_dvalue);
    b.n_parts = r.n_parts;
    const struct lse_rows lse_map = {f->lse, lse, f->cu + f->n_seqs, b.a.most_rows, f->n_heads};
    cuda_map(queue, lse_map, b.a.most_rows, f->n_heads, false);
    rel_dots(queue, &b.a, cuda_mat(&f->o), cuda_mat(&args->d_o), b.a.most_rows, f->cu, delta);
    run(queue, b, args);
    const struct scaled_rows keys = {cuda_mat(&f->k), b.by_key, f->cu + f->n_seqs, b.a.most_rows,
                                     b.a.n_heads,     b.a.dim,  f->scale};
    const struct scaled_rows positions = {cuda_mat(&f->p), b.by_position, NULL,    n_positions,
                                          b.a.n_heads,     b.a.dim,       f->scale};
    if (args->du)
        sum_rows(queue, keys, b.a.most_rows, sums, args->du);
    if (args->dv)
        sum_rows(queue, positions, r.n_parts * n_positions, sums, args->dv);
    if (!args->dp.data)
        return;
    const struct store_sum to = {sum, cuda_mat(&args->dp), width, args->accumulate_dp};
    cuda_add_parts(queue, sum, b.dp, r.n_parts, r.dp, r.dp, false);
    cuda_map(queue, to, n_positions, width, false);
}
