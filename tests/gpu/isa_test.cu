/*
 * Do the instructions of ptx.h, and those of CUDA that the emulator has, mean on a GPU what they
 * mean in the emulator?
 *
 *   isa_test write FILE    results of this build: of g++ over the emulator, or of nvcc on a GPU
 *   isa_test check FILE    this build's results against those of the file
 *
 * Inputs come from fixed seeds. What computes in floating point is compared within bounds, all else
 * bit by bit. Exit 0: all agree; a line a case.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/rt.h"

enum { WORDS = 4096 }; /* of inputs and of outputs, at most */

/* ---- kernels: in and out are words; each block has what its case says ---- */

static __device__ float word_float(uint32_t bits)
{
    union {
        uint32_t u;
        float f;
    } x;
    x.u = bits;
    return x.f;
}

static __device__ uint32_t float_word(float value)
{
    union {
        uint32_t u;
        float f;
    } x;
    x.f = value;
    return x.u;
}

/* 32 rows of 16 bytes in shared memory, which lanes take in an order of the inputs */
template <int N, bool TRANS> __global__ void ldmatrix_kernel(const uint32_t *in, uint32_t *out)
{
    SHARED(uint32_t, sh);
    const int lane = (int)threadIdx.x;
    uint32_t r[N];
    for (int i = 0; i < 4; i++)
        sh[lane * 4 + i] = in[lane * 4 + i];
    __syncthreads();
    const uint32_t row = shared_addr(sh + (in[128 + lane] % 32) * 4);
    if constexpr (N == 1)
        ldmatrix_x1<TRANS>(r, row);
    else if constexpr (N == 2)
        ldmatrix_x2<TRANS>(r, row);
    else
        ldmatrix_x4<TRANS>(r, row);
    for (int i = 0; i < N; i++)
        out[lane * N + i] = r[i];
}

/* Thread t copies SIZE bytes, of which in[t] % (SIZE + 1) count, in two groups. */
template <int SIZE> __global__ void cp_async_kernel(const uint32_t *in, uint32_t *out)
{
    SHARED(char, sh);
    const int t = (int)threadIdx.x;
    const char *const src = (const char *)(in + 64);
    for (int i = 0; i < 2; i++) {
        const int at = (i * 64 + t) * SIZE;
        cp_async<SIZE>(shared_addr(sh + at), src + at, (int)((in[t] >> 8 * i) % (SIZE + 1)));
        cp_async_commit();
    }
    cp_async_wait<1>();
    __syncthreads();
    for (int i = 0; i < SIZE; i += 4)
        out[t * SIZE / 4 + i / 4] = ((const uint32_t *)sh)[(63 - t) * SIZE / 4 + i / 4];
    cp_async_wait<0>();
    __syncthreads();
    for (int i = 0; i < SIZE; i += 4)
        out[(64 + t) * SIZE / 4 + i / 4] = ((const uint32_t *)sh)[(64 + 63 - t) * SIZE / 4 + i / 4];
}

/* The first warp gives, the second takes, and gives back. */
__global__ void barrier_kernel(const uint32_t *in, uint32_t *out)
{
    SHARED(uint32_t, sh);
    const int t = (int)threadIdx.x, lane = t % 32;
    if (t < 32) {
        sh[lane] = in[lane];
        barrier_arrive(1, 64);
        barrier_sync(2, 64);
        out[lane] = sh[32 + lane];
    } else {
        barrier_sync(1, 64);
        sh[32 + lane] = sh[31 - lane] * 3;
        barrier_arrive(2, 64);
    }
}

template <bool BF16> __global__ void mma_kernel(const uint32_t *in, uint32_t *out)
{
    const int lane = (int)threadIdx.x;
    uint32_t a[4], b[2];
    float d[4];
    for (int i = 0; i < 4; i++) {
        a[i] = in[lane * 4 + i];
        d[i] = word_float(in[192 + lane * 4 + i]);
    }
    for (int i = 0; i < 2; i++)
        b[i] = in[128 + lane * 2 + i];
    for (int twice = 0; twice < 2; twice++)
        if constexpr (BF16)
            mma_bf16(d, a, b);
        else
            mma_tf32(d, a, b);
    for (int i = 0; i < 4; i++)
        out[lane * 4 + i] = float_word(d[i]);
}

__global__ void convert_kernel(const uint32_t *in, uint32_t *out)
{
    for (int i = (int)threadIdx.x; i < 1024; i += 32) {
        const float x = word_float(in[i]), y = word_float(in[1023 - i]);
        out[i] = float_tf32(x);
        out[1024 + i] = float_bf16(x);
        out[2048 + i] = pack_bf16(x, y);
        out[3072 + i] = float_word(bf16_float((uint16_t)in[i]));
    }
}

template <int WHICH> __global__ void function_kernel(const uint32_t *in, uint32_t *out)
{
    for (int i = (int)threadIdx.x; i < 1024; i += 32) {
        const float x = word_float(in[i]);
        out[i] = float_word(WHICH == 0   ? exp2_fast(x)
                            : WHICH == 1 ? log2_fast(x)
                            : WHICH == 2 ? rcp_fast(x)
                                         : rsqrt_fast(x));
    }
}

__global__ void shuffle_kernel(const uint32_t *in, uint32_t *out)
{
    const int lane = (int)threadIdx.x;
    const uint32_t x = in[lane];
    const int64_t wide = (int64_t)x << 32 | in[32 + lane];
    uint32_t *to = out + lane;
    *to = __shfl_sync(~0u, x, (int)(x % 40));
    *(to += 32) = __shfl_sync(~0u, x, (int)(x % 16), 8);
    *(to += 32) = __shfl_xor_sync(~0u, x, 5);
    *(to += 32) = __shfl_xor_sync(~0u, x, 6, 4);
    *(to += 32) = __shfl_xor_sync(~0u, x, 3, 16);
    *(to += 32) = __shfl_up_sync(~0u, x, 3);
    *(to += 32) = __shfl_up_sync(~0u, x, 3, 8);
    *(to += 32) = __shfl_down_sync(~0u, x, 5);
    *(to += 32) = __shfl_down_sync(~0u, x, 5, 16);
    *(to += 32) = (uint32_t)(shfl_xor(wide, 9) >> 16);
    *(to += 32) = float_word(shfl_xor(word_float(x & 0x3fffffff), 17));
    if (lane >= 8 && lane < 24)
        to[32] = __shfl_xor_sync(0x00ffff00u, x, 1);
    else
        to[32] = 0;
    to += 32;
    *(to += 32) = __ballot_sync(~0u, (int)(x & 1));
    *(to += 32) = (uint32_t)__any_sync(~0u, x == in[7]) * 2 + (uint32_t)__all_sync(~0u, x != 1);
    *(to += 32) = __reduce_add_sync(~0u, x);
    *(to += 32) = (uint32_t)__reduce_add_sync(~0u, (int)x);
    *(to += 32) = __reduce_min_sync(~0u, x);
    *(to += 32) = (uint32_t)__reduce_min_sync(~0u, (int)x);
    *(to += 32) = __reduce_max_sync(~0u, x);
    *(to += 32) = (uint32_t)__reduce_max_sync(~0u, (int)x);
    *(to += 32) = __reduce_and_sync(~0u, x | 0xff);
    *(to += 32) = __reduce_or_sync(~0u, x & 0xff00);
    *(to += 32) = __reduce_xor_sync(~0u, x);
}

__global__ void atomic_kernel(const uint32_t *in, uint32_t *out)
{
    const uint32_t x = in[threadIdx.x];
    atomicAdd(&out[0], x);
    atomicAdd((int *)&out[1], (int)x);
    atomicMin(&out[2], x);
    atomicMax((int *)&out[3], (int)x);
    atomicAnd(&out[4], x | 0xf0f0);
    atomicOr(&out[5], x & 0x0f0f);
    atomicCAS(&out[6], 0u, 5u);
    if (threadIdx.x == 3)
        out[7] = atomicExch(&out[8], x);
    atomicAdd((float *)&out[9], (float)(x % 1000));
}

/* ---- cases ---- */

enum fill { BITS, BF16_PAIRS, FLOATS, ALL_FLOATS };

struct isa_case {
    const char *name;
    void (*kernel)(const uint32_t *in, uint32_t *out);
    int threads, shared, n_out;
    enum fill fill;
    double absolute, relative; /* bounds of floats; both 0: the same bits */
};

static const struct isa_case cases[] = {
    {"ldmatrix x1", ldmatrix_kernel<1, false>, 32, 512, 32, BITS, 0, 0},
    {"ldmatrix x1 trans", ldmatrix_kernel<1, true>, 32, 512, 32, BITS, 0, 0},
    {"ldmatrix x2", ldmatrix_kernel<2, false>, 32, 512, 64, BITS, 0, 0},
    {"ldmatrix x2 trans", ldmatrix_kernel<2, true>, 32, 512, 64, BITS, 0, 0},
    {"ldmatrix x4", ldmatrix_kernel<4, false>, 32, 512, 128, BITS, 0, 0},
    {"ldmatrix x4 trans", ldmatrix_kernel<4, true>, 32, 512, 128, BITS, 0, 0},
    {"cp.async 4", cp_async_kernel<4>, 64, 512, 128, BITS, 0, 0},
    {"cp.async 8", cp_async_kernel<8>, 64, 1024, 256, BITS, 0, 0},
    {"cp.async 16", cp_async_kernel<16>, 64, 2048, 512, BITS, 0, 0},
    {"barrier sync, arrive", barrier_kernel, 64, 256, 32, BITS, 0, 0},
    {"mma bf16 m16n8k16", mma_kernel<true>, 32, 0, 128, BF16_PAIRS, 1e-4, 1e-6},
    {"mma tf32 m16n8k8", mma_kernel<false>, 32, 0, 128, FLOATS, 1e-4, 1e-6},
    {"conversions", convert_kernel, 32, 0, 4096, ALL_FLOATS, 0, 0},
    {"exp2", function_kernel<0>, 32, 0, 1024, ALL_FLOATS, 1e-37, 4e-7},
    {"log2", function_kernel<1>, 32, 0, 1024, ALL_FLOATS, 5e-7, 5e-7},
    {"rcp", function_kernel<2>, 32, 0, 1024, ALL_FLOATS, 1e-37, 4e-7},
    {"rsqrt", function_kernel<3>, 32, 0, 1024, ALL_FLOATS, 1e-37, 4e-7},
    {"shuffles, votes, redux", shuffle_kernel, 32, 0, 736, BITS, 0, 0},
    {"atomics", atomic_kernel, 64, 0, 10, BITS, 0, 0},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static uint64_t state;

static uint32_t next_word(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static float next_float(void)
{
    return (float)((double)next_word() / 2147483648.0 - 1) * 3;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static void fill(uint32_t *in, const struct isa_case *c, int number)
{
    static const uint32_t special[] = {
        0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0x00000001,
        0x007fffff, 0x00800000, 0x80000001, 0x7f7fffff, 0xff7fffff, 0x3f808000, 0x3f818000,
        0x3f807fff, 0x3f808001, 0x3f801000, 0x3f803000, 0x3f800fff, 0x3f801001, 0x3f800000,
        0xbf800000, 0x42fe0000, 0x43000000, 0xc2fc0000, 0xc3150000, 0x7f7f8000, 0x7f7fefff};
    state = (uint64_t)number * 977 + 3;
    for (int i = 0; i < WORDS; i++)
        in[i] = c->fill == BITS ? next_word() : bits_of(next_float());
    for (int i = 0; c->fill == BF16_PAIRS && i < 192; i++)
        in[i] = (bits_of(next_float()) & 0xffff0000) | bits_of(next_float()) >> 16;
    for (int i = 0; c->fill == ALL_FLOATS && i < 512; i++)
        in[i] = i < (int)(sizeof special / sizeof *special) ? special[i] : next_word();
}

static struct rt_stream *stream;

struct rt_stream *rt_stream_of(const struct s2s_queue *queue)
{
    return stream;
}

static void must(int status)
{
    if (status == 0)
        return;
    fprintf(stderr, "isa_test: %s\n", rt_status_text(status));
    exit(2);
}

static void run(uint32_t *out, const struct isa_case *c, int number)
{
    static uint32_t host[WORDS];
    struct s2s_queue queue = {};
    uint32_t *in = (uint32_t *)rt_alloc(sizeof host), *to = (uint32_t *)rt_alloc(sizeof host);
    fill(host, c, number);
    must(rt_copy(stream, in, host, sizeof host));
    must(rt_zero(stream, to, sizeof host));
    LAUNCH(&queue, c->kernel, 1, (unsigned)c->threads, (size_t)c->shared, in, to);
    must(queue.status);
    must(rt_copy(stream, out, to, sizeof host));
    must(rt_stream_wait(stream));
    rt_free(in);
    rt_free(to);
}

static bool agree(uint32_t x, uint32_t y, const struct isa_case *c)
{
    float a, b;
    memcpy(&a, &x, sizeof a);
    memcpy(&b, &y, sizeof b);
    if (x == y || (c->relative > 0 && isnan(a) && isnan(b)))
        return true;
    return fabs((double)a - (double)b) < c->absolute + c->relative * fabs((double)b);
}

static int check(const struct isa_case *c, const uint32_t *got, const uint32_t *want)
{
    int n_bad = 0;
    for (int i = 0; i < c->n_out; i++)
        if (!agree(got[i], want[i], c) && n_bad++ < 5)
            printf("    [%d] %08x, expected %08x\n", i, got[i], want[i]);
    printf("%s - %s\n", n_bad ? "not ok" : "ok", c->name);
    return n_bad != 0;
}

int main(int argc, char **argv)
{
    static uint32_t got[WORDS], want[WORDS];
    struct rt_device device;
    const bool writes = argc == 3 && strcmp(argv[1], "write") == 0;
    if (!writes && (argc != 3 || strcmp(argv[1], "check") != 0)) {
        fprintf(stderr, "usage: isa_test write|check FILE\n");
        return 2;
    }
    FILE *file = fopen(argv[2], writes ? "wb" : "rb");
    if (!file) {
        perror(argv[2]);
        return 2;
    }
    must(rt_open(0, &device));
    must(rt_stream_new(&stream));
    int n_bad = 0;
    for (int i = 0; i < N_CASES; i++) {
        run(got, &cases[i], i);
        if (writes) {
            fwrite(got, sizeof got, 1, file);
        } else if (fread(want, sizeof want, 1, file) != 1) {
            fprintf(stderr, "%s: too short\n", argv[2]);
            return 2;
        } else {
            n_bad += check(&cases[i], got, want);
        }
    }
    rt_stream_free(stream);
    if (fclose(file) != 0) {
        perror(argv[2]);
        return 2;
    }
    if (!writes)
        printf("%d of %d cases differ (%s)\n", n_bad, N_CASES, device.name);
    return n_bad != 0;
}
