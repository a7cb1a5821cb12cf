/*
 * The instructions of sm_90a alone: barriers in shared memory that count arrivals and bytes, copies
 * of boxes of a tensor (TMA), and products of a warpgroup (wgmma), whose 128 threads are four warps
 * from a multiple of four on. For files that are compiled for that architecture; for g++ they are
 * in emu/ptx_sm90_emu.h.
 *
 * Two proxies reach shared memory: plain accesses, and those of copies and products. What was
 * written plainly is seen by products after a fence_async of the writer, and a barrier.
 *
 * Accumulators [64, 8 N] of a warpgroup lie in its warps as those of mma.sync (ptx.h): warp w has
 * rows 16 w .. 16 w + 15, d[n] their columns 8 n .. 8 n + 7. An operand a in registers, too.
 */
#ifndef S2S_KERNELS_CUDA_PTX_SM90_H
#define S2S_KERNELS_CUDA_PTX_SM90_H

#include "kernels/cuda/rt.h"

/*
 * An operand of wgmma in shared memory: [rows, 16], rows of the product, and 16 of what it sums
 * over. Its tile stands in blocks of SWIZZLE bytes a line, as a copy with that swizzle leaves it.
 * Along lines (not TRANS): a line a row, and eight rows `stride` bytes after the last eight; 16
 * elements further are 32 bytes further. TRANS: a line one of the 16, of SWIZZLE / 2 rows; further
 * rows are `leading` bytes after these, and the second eight of the 16 `stride` bytes.
 */
template <int SWIZZLE>
static __device__ __forceinline__ uint64_t wgmma_operand(uint32_t addr, uint32_t leading,
                                                         uint32_t stride)
{
    static_assert(SWIZZLE == 128 || SWIZZLE == 64, "lines of 128 or 64 bytes");
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | (uint64_t)(SWIZZLE == 128 ? 1 : 2) << 62;
}

#ifndef __CUDACC__
#include "kernels/cuda/emu/ptx_sm90_emu.h"
#else

#define PTX static __device__ __forceinline__

/* ---- barriers in shared memory: 8 bytes, aligned; a phase is over when `count` have arrived and
 * all expected bytes have ---- */

PTX void mbarrier_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

/* After this thread's inits, before a barrier. */
PTX void mbarrier_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

PTX void mbarrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives, and so many bytes are to come in this phase. */
PTX void mbarrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* Waits until the phase of this parity is over: 0 the first. That of the other parity is taken for
 * over as long as this one goes on. */
PTX void mbarrier_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
}

/* ---- copies ---- */

PTX void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* By one thread: brings the box at column x, plane y, row z of the map's tensor, which expects its
 * bytes at bar whole; zeros are what lies outside the tensor. map: an argument of the kernel. */
PTX void tma_load(uint32_t dst, const struct tensor_map *map, int x, int y, int z, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(dst),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar)
                 : "memory");
}

PTX void tma_prefetch(const struct tensor_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* ---- registers of a warpgroup: all its threads ---- */

template <int N> PTX void registers_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> PTX void registers_less()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- products: begun by all threads of a warpgroup, done at a wait ---- */

/* The compiler may not move what is done with these registers across this place. */
template <int N> PTX void wgmma_hold(float (&d)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}

template <int N> PTX void wgmma_hold(uint32_t (&a)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}

/* Before the first of a group of products, of all registers that they take. */
template <class... R> PTX void wgmma_fence(R &...registers)
{
    (wgmma_hold(registers), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Ends a group. */
PTX void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until no more than the last PENDING groups are under way, of which none may touch the
 * accumulators given, which may be read then. The warp's own reads of operands are over, others'
 * maybe not. */
template <int PENDING, class... R> PTX void wgmma_wait(R &...registers)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    (wgmma_hold(registers), ...);
}

#define WGMMA_4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define WGMMA_16(i) WGMMA_4(i), WGMMA_4(i + 1), WGMMA_4(i + 2), WGMMA_4(i + 3)
#define WGMMA_32(i) WGMMA_16(i), WGMMA_16(i + 4)
#define WGMMA_64(i) WGMMA_32(i), WGMMA_32(i + 8)
#define WGMMA_128(i) WGMMA_64(i), WGMMA_64(i + 16)
#define WGMMA_TEXT_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_TEXT_64 \
    WGMMA_TEXT_32 \
    ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_TEXT_128 \
    WGMMA_TEXT_64 \
    ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, " \
    "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, " \
    "%123, %124, %125, %126, %127"

/* d (+)= a b^T, bf16: d [64, N], a [64, 16] and b [N, 16] as their operands say. Without
 * `accumulate` what d holds is not read. Operands p0 .. stand after the accumulators. */
#define WGMMA_OF(N, registers, operands, p0, p1, p2, p3, p4, p5, p6) \
    template <bool TRANS_A, bool TRANS_B> \
    PTX void wgmma(float(&d)[N / 8][4], uint64_t a, uint64_t b, bool accumulate) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p2 ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" registers \
                     "}, " p0 ", " p1 ", p, 1, 1, " p3 ", " p4 ";\n}" \
                     : operands \
                     : "l"(a), "l"(b), "r"((int)accumulate), "n"((int)TRANS_A), "n"((int)TRANS_B) \
                     : "memory"); \
    } \
    /* the same, with a in registers */ \
    template <bool TRANS_B> \
    PTX void wgmma(float(&d)[N / 8][4], const uint32_t(&a)[4], uint64_t b, bool accumulate) \
    { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p5 ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" registers \
                     "}, {" p0 ", " p1 ", " p2 ", " p3 "}, " p4 ", p, 1, 1, " p6 ";\n}" \
                     : operands \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)accumulate), \
                       "n"((int)TRANS_B) \
                     : "memory"); \
    }
WGMMA_OF(64, WGMMA_TEXT_32, WGMMA_32(0), "%32", "%33", "%34", "%35", "%36", "%37", "%38")
WGMMA_OF(128, WGMMA_TEXT_64, WGMMA_64(0), "%64", "%65", "%66", "%67", "%68", "%69", "%70")
WGMMA_OF(256, WGMMA_TEXT_128, WGMMA_128(0), "%128", "%129", "%130", "%131", "%132", "%133", "%134")

#undef WGMMA_OF
#undef WGMMA_4
#undef WGMMA_16
#undef WGMMA_32
#undef WGMMA_64
#undef WGMMA_128
#undef WGMMA_TEXT_32
#undef WGMMA_TEXT_64
#undef WGMMA_TEXT_128
#undef PTX
#endif /* __CUDACC__ */

#endif
