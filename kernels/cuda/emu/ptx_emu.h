/* What the instructions of ptx.h mean, for g++ (emu.h). Included by emu.h alone. */
#ifndef S2S_KERNELS_CUDA_EMU_PTX_EMU_H
#define S2S_KERNELS_CUDA_EMU_PTX_EMU_H

/* ---- shared memory ---- */

/* An offset in the block's memory, as a GPU has it. */
inline uint32_t shared_addr(const void *p)
{
    const size_t at = (size_t)((const char *)p - emu::shared());
    if (at > emu::shared_size())
        emu::fail("shared_addr of memory that is not shared");
    return (uint32_t)at;
}

namespace emu
{

struct row16 {
    uint16_t v[8];
};

/* Eight rows at a time: those in the same four banks (16 bytes of 128) wait for each other. */
EMU_QUIET inline void count_conflicts(const lane_io *lanes, int n)
{
    for (int i = 0; i < n; i++) {
        int at[8] = {}, most = 0;
        for (int row = 0; row < 8; row++) {
            const uint32_t addr = *(const uint32_t *)lanes[i * 8 + row].out;
            const int used = ++at[addr / 16 % 8];
            most = used > most ? used : most;
        }
        done.conflicts += (uint64_t)(most - 1);
    }
    done.ldmatrix++;
}

/* Each lane read its row itself, so that the sanitizers see who read what; out holds its address
 * until it gets the result. */
template <int N, bool TRANS> EMU_QUIET inline void ldmatrix_all(const lane_io *lanes, uint32_t)
{
    count_conflicts(lanes, N);
    for (int l = 0; l < 32; l++)
        for (int j = 0; j < N; j++) {
            uint32_t x = 0;
            for (int h = 0; h < 2; h++) {
                const int row = TRANS ? l % 4 * 2 + h : l / 4;
                const int col = TRANS ? l / 4 : l % 4 * 2 + h;
                x |= (uint32_t)((const row16 *)lanes[j * 8 + row].in)->v[col] << 16 * h;
            }
            ((uint32_t *)lanes[l].out)[j] = x;
        }
}

template <int N, bool TRANS> inline void ldmatrix(uint32_t *r, uint32_t addr)
{
    row16 own = {};
    if (addr % 16)
        fail("ldmatrix: the address of a row is no multiple of 16");
    if (here.lane < 8 * N) {
        if (addr > shared_size())
            fail("ldmatrix: an address outside shared memory");
        for (int i = 0; i < 8; i++)
            own.v[i] = ((const uint16_t *)(shared() + addr))[i];
    }
    r[0] = addr;
    meet(~0u, &own, r, TRANS ? "ldmatrix.trans" : "ldmatrix", ldmatrix_all<N, TRANS>);
}

} // namespace emu

template <bool TRANS> inline void ldmatrix_x1(uint32_t (&r)[1], uint32_t row)
{
    emu::ldmatrix<1, TRANS>(r, row);
}

template <bool TRANS> inline void ldmatrix_x2(uint32_t (&r)[2], uint32_t row)
{
    emu::ldmatrix<2, TRANS>(r, row);
}

template <bool TRANS> inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t row)
{
    emu::ldmatrix<4, TRANS>(r, row);
}

namespace emu
{

/* The bytes one by one, in the fibre of the thread that issued the copy. */
inline void copy_now(const copy &c)
{
    volatile char *dst = (volatile char *)c.dst;
    for (int i = 0; i < c.bytes; i++)
        dst[i] = i < c.from ? ((const char *)c.src)[i] : (char)0;
}

} // namespace emu

template <int SIZE> inline void cp_async(uint32_t dst, const void *src, int from)
{
    static_assert(SIZE == 4 || SIZE == 8 || SIZE == 16, "cp.async copies 4, 8 or 16 bytes");
    if (dst % SIZE || (uintptr_t)src % SIZE)
        emu::fail("cp.async: an address is no multiple of the size");
    if (from < 0 || from > SIZE)
        emu::fail("cp.async: reads more than it writes");
    const emu::copy c = {emu::shared() + dst, src, SIZE, from};
    if (!emu::copy_later(c))
        emu::copy_now(c);
}

inline void cp_async_commit()
{
    emu::copy_commit();
}

template <int PENDING> inline void cp_async_wait()
{
    for (emu::copy c; emu::copy_due(&c, PENDING);)
        emu::copy_now(c);
}

inline void barrier_sync(int id, int count)
{
    emu::sync_block(id, (unsigned)count, true, nullptr);
}

inline void barrier_arrive(int id, int count)
{
    emu::sync_block(id, (unsigned)count, false, nullptr);
}

/* ---- element types ---- */

/* What is infinite or no number is cut, as an H100 does. */
inline uint32_t float_tf32(float x)
{
    const uint32_t u = __float_as_uint(x);
    return ((u & 0x7f800000) == 0x7f800000 ? u : u + 0x1000) & ~0x1fffu;
}

inline uint16_t float_bf16(float x)
{
    const uint32_t u = __float_as_uint(x);
    return x != x ? 0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

inline uint32_t pack_bf16(float low, float high)
{
    return float_bf16(low) | (uint32_t)float_bf16(high) << 16;
}

inline float bf16_float(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}

/* ---- products ---- */

namespace emu
{

struct mma_in {
    const uint32_t *a, *b;
};

/* Adds [16, K] [K, 8] to the accumulators of the lanes. */
template <int K>
EMU_QUIET inline void multiply(const lane_io *lanes, const float (&a)[16][K],
                               const float (&b)[8][K])
{
    for (int l = 0; l < 32; l++) {
        float *d = (float *)lanes[l].out;
        for (int i = 0; i < 4; i++) {
            const float *x = a[l / 4 + i / 2 * 8], *y = b[l % 4 * 2 + i % 2];
            float sum = 0;
            for (int k = 0; k < K; k++)
                sum += x[k] * y[k];
            d[i] += sum;
        }
    }
    done.mma++;
}

EMU_QUIET inline void mma_bf16_all(const lane_io *lanes, uint32_t)
{
    float a[16][16], b[8][16];
    for (int l = 0; l < 32; l++) {
        const mma_in *in = (const mma_in *)lanes[l].in;
        for (int i = 0; i < 8; i++) {
            const int k = l % 4 * 2 + i / 4 * 8 + i % 2;
            const uint32_t x = in->a[i / 2] >> 16 * (i % 2);
            a[l / 4 + i / 2 % 2 * 8][k] = __uint_as_float(x << 16);
            if (i < 4)
                b[l / 4][l % 4 * 2 + i / 2 * 8 + i % 2] =
                    __uint_as_float(in->b[i / 2] >> 16 * (i % 2) << 16);
        }
    }
    multiply(lanes, a, b);
}

EMU_QUIET inline void mma_tf32_all(const lane_io *lanes, uint32_t)
{
    float a[16][8], b[8][8];
    for (int l = 0; l < 32; l++) {
        const mma_in *in = (const mma_in *)lanes[l].in;
        for (int i = 0; i < 4; i++)
            a[l / 4 + i % 2 * 8][l % 4 + i / 2 * 4] = __uint_as_float(in->a[i] & ~0x1fffu);
        for (int i = 0; i < 2; i++)
            b[l / 4][l % 4 + i * 4] = __uint_as_float(in->b[i] & ~0x1fffu);
    }
    multiply(lanes, a, b);
}

} // namespace emu

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    const emu::mma_in in = {a, b};
    emu::meet(~0u, &in, d, "mma.bf16", emu::mma_bf16_all);
}

inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    const emu::mma_in in = {a, b};
    emu::meet(~0u, &in, d, "mma.tf32", emu::mma_tf32_all);
}

inline uint32_t opaque(uint32_t x)
{
    return x;
}

inline const char *opaque(const char *x)
{
    return x;
}

/* ---- approximate functions ---- */

namespace emu
{

inline float flush(float x)
{
    return fabsf(x) < 1.17549435e-38f ? copysignf(0, x) : x;
}

} // namespace emu

inline float exp2_fast(float x)
{
    return emu::flush(exp2f(emu::flush(x)));
}

inline float log2_fast(float x)
{
    return log2f(emu::flush(x));
}

inline float rcp_fast(float x)
{
    return emu::flush(1 / emu::flush(x));
}

inline float rsqrt_fast(float x)
{
    return emu::flush(1 / sqrtf(emu::flush(x)));
}

#endif
