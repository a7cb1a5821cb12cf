/*
 * The instructions that CUDA C++ has no word for, and how kernels get shared memory. No other file
 * has assembler but ptx_sm90.h, whose instructions Hopper alone has. Each is here as inline PTX for
 * nvcc, and in emu/ptx_emu.h as what it means, for g++; tests/gpu/isa_test.cu compares the two on a
 * device.
 *
 * An operand "of 32 lanes" lies in fragments, as the PTX manual draws them (group = lane / 4, pair
 * = lane % 4):
 *   accumulator [16, 8]: d[0..1] of row group, columns 2 pair + 0..1; d[2..3] of row group + 8
 *   a of m16n8k16: a[0] row group, k 2 pair + 0..1; a[1] row + 8; a[2] k + 8; a[3] row + 8, k + 8
 *   b of m16n8k16: b[0] column group, k 2 pair + 0..1; b[1] k + 8
 *   a of m16n8k8:  a[0] row group, k pair; a[1] row + 8; a[2] k + 4; a[3] row + 8, k + 4
 *   b of m16n8k8:  b[0] column group, k pair; b[1] k + 4
 */
#ifndef S2S_KERNELS_CUDA_PTX_H
#define S2S_KERNELS_CUDA_PTX_H

#include <stdint.h>

#ifndef __CUDACC__
#include "kernels/cuda/emu/emu.h"
#else

#include <cuda_runtime.h>

/* `name` is a pointer to the block's shared memory, of at least sizeof(type). */
#define SHARED(type, name) \
    extern __shared__ __align__(1024) unsigned char cuda_shared_memory[]; \
    type *const name = (type *)cuda_shared_memory

#define PTX static __device__ __forceinline__

/* ---- shared memory ---- */

/* The address of shared memory as instructions take it. */
PTX uint32_t shared_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/*
 * 8x8 matrices of 16-bit elements, N of them: lanes 8 i .. 8 i + 7 give the addresses of the rows
 * (16 bytes, aligned) of matrix i; lane l gets elements 2 (l % 4) + 0..1 of row l / 4 of each.
 * TRANS: of column l / 4.
 */
template <bool TRANS> PTX void ldmatrix_x1(uint32_t (&r)[1], uint32_t row)
{
    if (TRANS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                     : "=r"(r[0])
                     : "r"(row)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                     : "=r"(r[0])
                     : "r"(row)
                     : "memory");
}

template <bool TRANS> PTX void ldmatrix_x2(uint32_t (&r)[2], uint32_t row)
{
    if (TRANS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1])
                     : "r"(row)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1])
                     : "r"(row)
                     : "memory");
}

template <bool TRANS> PTX void ldmatrix_x4(uint32_t (&r)[4], uint32_t row)
{
    if (TRANS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(row)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(row)
                     : "memory");
}

/* Copies SIZE bytes (4, 8 or 16, both sides aligned to it), of which the first `from` come from
 * src and the rest are zero. There after the group's wait for this thread, and after a barrier for
 * others. */
template <int SIZE> PTX void cp_async(uint32_t dst, const void *src, int from)
{
    if (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src),
                     "n"(SIZE), "r"(from)
                     : "memory");
}

/* Ends a group of copies, maybe an empty one. */
PTX void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until no more than the last PENDING groups are under way. */
template <int PENDING> PTX void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* count threads (a multiple of 32) meet at barrier id (1..15); arrive does not wait. */
PTX void barrier_sync(int id, int count)
{
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}

PTX void barrier_arrive(int id, int count)
{
    asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
}

/* ---- products: d += a b, of 32 lanes ---- */

/* [16, 8] += [16, 16] [16, 8], bf16 */
PTX void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* [16, 8] += [16, 8] [8, 8], tf32: fp32 numbers whose low 13 bits are not read */
PTX void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* ---- element types ---- */

/* The nearest tf32, ties away from zero. */
PTX uint32_t float_tf32(float x)
{
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

/* The nearest bf16, ties to even; a NaN is 0x7fff. */
PTX uint16_t float_bf16(float x)
{
    uint16_t r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}

/* Two of them in one word. */
PTX uint32_t pack_bf16(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

PTX float bf16_float(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}

/* ---- approximate functions, of 2 ulp or so; what is denormal is 0 ---- */

PTX float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

PTX float log2_fast(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

PTX float rcp_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

PTX float rsqrt_fast(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* x, of which the compiler knows nothing: what is made of it is made again each time. */
PTX uint32_t opaque(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

PTX const char *opaque(const char *x)
{
    asm volatile("" : "+l"(x));
    return x;
}

#undef PTX
#endif /* __CUDACC__ */

/* What the lane whose number differs by the bits of `lanes` has; all lanes of the warp. */
template <class T> static __device__ __forceinline__ T shfl_xor(T x, int lanes)
{
    return __shfl_xor_sync(~0u, x, lanes);
}

#endif
