/*
 * CUDA blocks on the CPU, for tests: what the kernels of kernels/cuda use of CUDA C++, for g++.
 *
 * A thread is a fibre. The fibres of a block run one at a time in a random order that S2S_EMU_SEED
 * fixes, and change places at barriers and where lanes of a warp meet; blocks run one after the
 * other, in a random order too. emu.cc is the runtime, ptx_emu.h the instructions. What is found:
 * - ASan: accesses out of bounds, of global memory (each block of alloc is a malloc) and past the
 *   end of shared memory. Shared memory begins as NaN, and cp.async writes at a random time before
 *   its wait, so what is read too early is NaN without a sanitizer.
 * - TSan: races. Each fibre is a thread to it, and only what orders memory on a GPU orders fibres:
 *   barriers, not shuffles. Blocks are not ordered.
 * - By itself: lanes that meet in different operations, threads that meet in different barriers,
 *   threads that wait for ever, shuffles from lanes outside the mask, wrong alignment. The program
 *   ends with the kernel, the block, and where its threads stand.
 *
 * What sm_90a has beside that (ptx_sm90_emu.h): copies of boxes and products of warpgroups are done
 * at a random time after their issue, each warp's part of a product by itself, and to TSan by
 * threads of their own, which barriers that count bytes, and waits, order. Accumulators are NaN
 * till the wait. Products read a second copy of shared memory, to which a fence of the async proxy
 * brings what was written plainly: what differs there was not fenced, and ends the program, as do
 * warps of a warpgroup in different products, and what nobody waits for.
 *
 * Limits: nothing has a time, and conflicts of banks are counted for ldmatrix alone. Blocks cannot
 * wait for each other. Sums inside one mma are fp32 in order of k, where a GPU aligns and cuts them
 * (last bits differ). The approximate functions are the exact ones. Lanes of a warp that are not
 * made to meet may be anywhere, as the model of Volta and later says. Compiled for x86-64 only.
 * A launch is done when it returns. Shared memory is of SHARED alone; there is no printf,
 * no __constant__, no cooperative group. A fence of the async proxy serves all threads, and what
 * the compiler may do with registers of a product under way (wgmma_hold) is not seen.
 */
#ifndef S2S_KERNELS_CUDA_EMU_H
#define S2S_KERNELS_CUDA_EMU_H

#include <cmath>
#include <cstddef>
#include <cstdint>

/* Reads what other fibres keep on their stacks, under the eyes of no sanitizer. */
#define EMU_QUIET __attribute__((noinline, no_sanitize("thread")))

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

#define EMU_VECTORS(type, name) \
    struct alignas(2 * sizeof(type)) name##2 \
    { \
        type x, y; \
    }; \
    struct alignas(sizeof(type) == 8 ? 16 : 4 * sizeof(type)) name##4 \
    { \
        type x, y, z, w; \
    }; \
    static inline name##2 make_##name##2(type x, type y) \
    { \
        return {x, y}; \
    } \
    static inline name##4 make_##name##4(type x, type y, type z, type w) \
    { \
        return {x, y, z, w}; \
    }
EMU_VECTORS(float, float)
EMU_VECTORS(double, double)
EMU_VECTORS(int, int)
EMU_VECTORS(unsigned, uint)
EMU_VECTORS(unsigned short, ushort)
#undef EMU_VECTORS

namespace emu
{

/* Where the running thread is. */
struct place {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    unsigned lane;
};
extern place here;

/* What was done since the program began. */
struct counts {
    uint64_t launches, blocks, mma, ldmatrix;
    uint64_t conflicts; /* times that eight rows of an ldmatrix met in one bank, less one */
    uint64_t products;  /* of warps, with wgmma */
};
extern counts done;

/* What a lane brings to a meeting and where its result goes. */
struct lane_io {
    const void *in;
    void *out;
};

/* Ends the program with `text`, the kernel, the block and where its threads stand. */
[[noreturn]] void fail(const char *text);
uint64_t random(); /* of the seed */
char *shared();    /* memory of the block */
size_t shared_size();

/* bar.sync, bar.arrive: count threads meet at barrier id; 0: all that have not ended. Orders
 * memory. where: file and line, the same for all of a __syncthreads (nullptr: not compared). */
void sync_block(int id, unsigned count, bool waits, const char *where);
/* All lanes of mask meet in the operation `what`; the last to come runs fn for all of them. Orders
 * no memory. */
void meet(uint32_t mask, const void *in, void *out, const char *what,
          void (*fn)(const lane_io *lanes, uint32_t mask));
void sync_warp(uint32_t mask, const char *where); /* __syncwarp: orders memory */

/* cp.async: a copy that is done at its issue or as late as the wait. */
struct copy {
    void *dst;
    const void *src;
    int bytes, from; /* written; of these read, the rest is zero */
};
bool copy_later(const copy &c); /* false: do it now */
void copy_commit();
bool copy_due(copy *c, int pending); /* the next one of groups older than the last `pending` */

/* ---- of sm_90a (ptx_sm90_emu.h): what goes on beside the threads ---- */

/* Shared memory as copies and products see it: what a thread wrote is there after a fence. */
void async_fence();
void async_write(uint32_t at, uint16_t x);
uint16_t async_read(uint32_t at);

/* Barriers by their offset in shared memory. */
void mbarrier_new(uint32_t bar, int count);
void mbarrier_fenced();
void mbarrier_add(uint32_t bar, int arrivals, int expected); /* bytes, less those that came */
void mbarrier_sleep(uint32_t bar, uint32_t parity);

/* What is done at a random time after its issue, as if by a thread of its own. */
struct job {
    void (*run)(job *);
    job *next;
    uint64_t group; /* of products */
    char issued;    /* for TSan */
};
void job_issue(job *j); /* takes it, from malloc */

/* What one warp does of a product. Accumulators in flight are kept here; those of the lanes are
 * NaN till they wait. */
struct accumulators;
struct product : job {
    int n, warp; /* columns; rows 16 warp % 4 .. */
    bool trans_a, trans_b, accumulate, from_registers;
    uint64_t a_desc, b_desc;
    float a[16][16], b[16 * 256]; /* b [16, n] */
    accumulators *to;
};
struct product_in {
    const uint32_t *a; /* nullptr: in shared memory */
    uint64_t a_desc, b_desc;
    bool accumulate;
    float *d;
};
void product_mark(); /* by each lane, before the warp meets to issue a product */
void product_issue(const lane_io *lanes, int n, bool trans_a, bool trans_b, void (*run)(job *));
void product_multiply(product *p);
void product_fence();
void product_commit(); /* by each lane */
void product_wait(int pending);

void run(const char *kernel, dim3 grid, dim3 block, size_t shared, void (*entry)(void *),
         void *arg);

/* name: of the kernel, for reports */
template <class K, class... A>
void launch(const char *name, K kernel, dim3 grid, dim3 block, size_t shared, A... args)
{
    auto call = [=] { kernel(args...); };
    run(
        name, grid, block, shared, [](void *p) { (*(decltype(call) *)p)(); }, &call);
}

/* ---- what shuffles and votes are made of ---- */

struct shuffle_in {
    uint64_t bits;
    unsigned from;
};

EMU_QUIET inline void shuffle_all(const lane_io *lanes, uint32_t mask)
{
    for (unsigned l = 0; l < 32; l++) {
        if (!(mask >> l & 1))
            continue;
        const unsigned from = ((const shuffle_in *)lanes[l].in)->from;
        if (!(mask >> from & 1))
            fail("a shuffle from a lane outside the mask");
        *(uint64_t *)lanes[l].out = ((const shuffle_in *)lanes[from].in)->bits;
    }
}

template <class T> inline T shuffle(uint32_t mask, T x, unsigned from, const char *what)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    shuffle_in in = {0, from};
    uint64_t out;
    T y;
    __builtin_memcpy(&in.bits, &x, sizeof x);
    meet(mask, &in, &out, what, shuffle_all);
    __builtin_memcpy(&y, &out, sizeof y);
    return y;
}

EMU_QUIET inline void ballot_all(const lane_io *lanes, uint32_t mask)
{
    uint32_t votes = 0;
    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1)
            votes |= (uint32_t)(*(const int *)lanes[l].in != 0) << l;
    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1)
            *(uint32_t *)lanes[l].out = votes;
}

/* redux.sync: OP is a functor over two T */
template <class T, class OP> EMU_QUIET inline void redux_all(const lane_io *lanes, uint32_t mask)
{
    T all = T();
    bool any = false;
    for (unsigned l = 0; l < 32; l++) {
        if (!(mask >> l & 1))
            continue;
        const T x = *(const T *)lanes[l].in;
        all = any ? OP()(all, x) : x;
        any = true;
    }
    for (unsigned l = 0; l < 32; l++)
        if (mask >> l & 1)
            *(T *)lanes[l].out = all;
}

} // namespace emu

#define threadIdx (emu::here.thread)
#define blockIdx (emu::here.block)
#define blockDim (emu::here.block_dim)
#define gridDim (emu::here.grid_dim)
#define warpSize 32

#define EMU_TEXT2(x) #x
#define EMU_TEXT(x) EMU_TEXT2(x)
#define EMU_HERE __FILE__ ":" EMU_TEXT(__LINE__)
#define __syncthreads() emu::sync_block(0, 0, true, EMU_HERE)
#define EMU_FIRST(a, ...) a
#define __syncwarp(...) emu::sync_warp(EMU_FIRST(__VA_ARGS__ __VA_OPT__(, ) ~0u), EMU_HERE)

template <class T> inline T __shfl_sync(unsigned mask, T x, int lane, int width = 32)
{
    const unsigned own = emu::here.lane, base = own & ~(unsigned)(width - 1);
    return emu::shuffle(mask, x, base + ((unsigned)lane & (unsigned)(width - 1)), "shfl");
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T x, int lanes, int width = 32)
{
    const unsigned own = emu::here.lane, from = own ^ (unsigned)lanes;
    const unsigned end = (own & ~(unsigned)(width - 1)) + (unsigned)width;
    return emu::shuffle(mask, x, from < end ? from : own, "shfl.bfly");
}
template <class T> inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    const unsigned own = emu::here.lane, at = own & (unsigned)(width - 1);
    return emu::shuffle(mask, x, at >= by ? own - by : own, "shfl.up");
}
template <class T> inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    const unsigned own = emu::here.lane, at = own & (unsigned)(width - 1);
    return emu::shuffle(mask, x, at + by < (unsigned)width ? own + by : own, "shfl.down");
}

inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    uint32_t votes;
    emu::meet(mask, &predicate, &votes, "vote", emu::ballot_all);
    return votes;
}
inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}

#define EMU_REDUX(name, type, expression) \
    inline type __reduce_##name##_sync(unsigned mask, type x) \
    { \
        struct op { \
            type operator()(type a, type b) \
            { \
                return expression; \
            } \
        }; \
        type y; \
        emu::meet(mask, &x, &y, "redux." #name, emu::redux_all<type, op>); \
        return y; \
    }
EMU_REDUX(add, unsigned, a + b)
EMU_REDUX(add, int, (int)((unsigned)a + (unsigned)b))
EMU_REDUX(min, unsigned, a < b ? a : b)
EMU_REDUX(min, int, a < b ? a : b)
EMU_REDUX(max, unsigned, a > b ? a : b)
EMU_REDUX(max, int, a > b ? a : b)
EMU_REDUX(and, unsigned, a &b)
EMU_REDUX(or, unsigned, a | b)
EMU_REDUX(xor, unsigned, a ^ b)
#undef EMU_REDUX

/* ---- atomics: of one location, and no order for others ---- */

template <class T, class F> inline T emu_atomic(T *at, F next)
{
    T old, now;
    __atomic_load(at, &old, __ATOMIC_RELAXED);
    do
        now = next(old);
    while (!__atomic_compare_exchange(at, &old, &now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
#define EMU_ATOMIC(name, expression) \
    template <class T> inline T name(T *at, decltype(T() + T()) by_) \
    { \
        const T b = (T)by_; \
        return emu_atomic(at, [b](T a) { return (T)(expression); }); \
    }
EMU_ATOMIC(atomicAdd, a + b)
EMU_ATOMIC(atomicSub, a - b)
EMU_ATOMIC(atomicMin, a < b ? a : b)
EMU_ATOMIC(atomicMax, a > b ? a : b)
EMU_ATOMIC(atomicAnd, a &b)
EMU_ATOMIC(atomicOr, a | b)
EMU_ATOMIC(atomicExch, b)
#undef EMU_ATOMIC
template <class T> inline T atomicCAS(T *at, T expected, T wanted)
{
    __atomic_compare_exchange(at, &expected, &wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
[[noreturn]] inline void __trap()
{
    emu::fail("trap");
}

/* ---- memory with hints, bits and functions of CUDA's headers ---- */

template <class T> inline T __ldg(const T *at)
{
    return *at;
}
template <class T> inline T __ldcs(const T *at)
{
    return *at;
}
template <class T> inline T __ldcg(const T *at)
{
    return *at;
}
template <class T> inline void __stcs(T *at, T x)
{
    *at = x;
}
template <class T> inline void __stcg(T *at, T x)
{
    *at = x;
}

template <class A, class B> inline A emu_bits(B x)
{
    A y;
    static_assert(sizeof x == sizeof y, "the same size");
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}
inline unsigned __float_as_uint(float x)
{
    return emu_bits<unsigned>(x);
}
inline int __float_as_int(float x)
{
    return emu_bits<int>(x);
}
inline float __uint_as_float(unsigned x)
{
    return emu_bits<float>(x);
}
inline float __int_as_float(int x)
{
    return emu_bits<float>(x);
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

#define EMU_MIN_MAX(type) \
    inline type min(type a, type b) \
    { \
        return a < b ? a : b; \
    } \
    inline type max(type a, type b) \
    { \
        return a > b ? a : b; \
    }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX

inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __logf(float x)
{
    return logf(x);
}
inline float __fdividef(float x, float y)
{
    return x / y;
}
inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
inline float __saturatef(float x)
{
    return x > 0 ? (x < 1 ? x : 1) : 0;
}
/* products and sums that are not contracted */
__attribute__((noinline)) inline float __fmul_rn(float x, float y)
{
    return x * y;
}
__attribute__((noinline)) inline float __fadd_rn(float x, float y)
{
    return x + y;
}
inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}

/* `name` is a pointer to the block's shared memory, of at least sizeof(type). */
#define SHARED(type, name) type *const name = (type *)emu::shared()

#include "kernels/cuda/emu/ptx_emu.h"

#endif
