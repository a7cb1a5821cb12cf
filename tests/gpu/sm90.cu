/*
 * Products as kernels of sm_90a have them, a warp that copies and a warpgroup that multiplies, with
 * one of several bugs: what the emulator and TSan find is what they are for. On a GPU, without a
 * bug: do these instructions mean there what the emulator says?
 *
 *   sm90 NUMBER    0: none. Prints the largest error; exit 1 when it is not small.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/ptx_sm90.h"

enum { M = 64, N = 128, LENGTH = 256, STEP = 64, N_STEPS = LENGTH / STEP, STAGES = 2 };
enum { A_ROWS = 60 /* of the tensor: zeros come below */, THREADS = 160, LINE = 128 };
enum bug {
    NONE,
    NO_WAIT_FOR_COPIES,
    NO_WAIT_FOR_ROOM,
    WRONG_PARITY,
    FEWER_BYTES,
    NO_FENCE_OF_BARRIERS,
    NO_FENCE_OF_WRITES,
    NO_FENCE_OF_REGISTERS,
    READ_BEFORE_THE_WAIT,
    WRITTEN_BEFORE_THE_WAIT,
    ROOM_BEFORE_THE_WAIT,
    ROOM_BY_ONE_WARP,
    WRONG_SWIZZLE,
    ONE_WARP_APART,
    NO_LAST_WAIT
};

struct tiles {
    uint16_t a[STAGES][M * STEP], b[STAGES][N * STEP];
    uint16_t v[2][N * 64], p[2][M * 64]; /* by halves of their columns */
    uint64_t full[STAGES], empty[STAGES], all;
};

struct maps {
    struct tensor_map a, b, v;
};

template <int BUG> static __device__ void copy_all(const struct maps *maps, struct tiles *sh)
{
    const uint32_t all = shared_addr(&sh->all);
    mbarrier_expect(all, sizeof sh->v);
    for (int half = 0; half < 2; half++)
        tma_load(shared_addr(sh->v[half]), &maps->v, half * 64, 0, 0, all);
    for (int s = 0; s < N_STEPS; s++) {
        const uint32_t full = shared_addr(&sh->full[s % STAGES]);
        if (s >= STAGES && BUG != NO_WAIT_FOR_ROOM)
            mbarrier_wait(shared_addr(&sh->empty[s % STAGES]), (uint32_t)(s / STAGES - 1) & 1);
        mbarrier_expect(full, (M + N) * STEP * 2 - (BUG == FEWER_BYTES ? N * STEP * 2 : 0));
        tma_load(shared_addr(sh->a[s % STAGES]), &maps->a, s % 2 * STEP, s / 2, 0, full);
        tma_load(shared_addr(sh->b[s % STAGES]), &maps->b, s % 2 * STEP, s / 2, 0, full);
    }
}

/* acc = a b^T over the steps */
template <int BUG> static __device__ void multiply_all(float (&acc)[N / 8][4], struct tiles *sh)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int s = 0; s < N_STEPS; s++) {
        const uint32_t a = shared_addr(sh->a[s % STAGES]), b = shared_addr(sh->b[s % STAGES]);
        const uint32_t parity = (uint32_t)(s / STAGES + (BUG == WRONG_PARITY)) & 1;
        if (BUG != NO_WAIT_FOR_COPIES)
            mbarrier_wait(shared_addr(&sh->full[s % STAGES]), parity);
        if (BUG != NO_FENCE_OF_REGISTERS)
            wgmma_fence(acc);
        for (int k = 0; k < STEP / 16; k++) {
            const int apart = BUG == ONE_WARP_APART && warp == 2;
            const uint64_t from = wgmma_operand<LINE>(a + (uint32_t)k * 32, 16, 8 * LINE);
            if (BUG == WRONG_SWIZZLE)
                wgmma<false, false>(acc, from,
                                    wgmma_operand<64>(b + (uint32_t)k * 32, 16, 8 * LINE), true);
            else
                wgmma<false, false>(
                    acc, from,
                    wgmma_operand<LINE>(b + (uint32_t)(k + apart) % 4 * 32, 16, 8 * LINE), true);
        }
        wgmma_commit();
        if (BUG == WRITTEN_BEFORE_THE_WAIT)
            acc[0][0] = 0;
        if (BUG == ROOM_BEFORE_THE_WAIT && lane == 0)
            mbarrier_arrive(shared_addr(&sh->empty[s % STAGES]));
        if (BUG != READ_BEFORE_THE_WAIT)
            wgmma_wait<0>(acc);
        if (BUG != ROOM_BEFORE_THE_WAIT && lane == 0 && (BUG != ROOM_BY_ONE_WARP || warp == 0))
            for (int i = 0; i < (BUG == ROOM_BY_ONE_WARP ? 4 : 1); i++)
                mbarrier_arrive(shared_addr(&sh->empty[s % STAGES]));
    }
}

/* Row `row`, columns col and col + 1 of p in shared memory, as copies leave a tile there. */
static __device__ void put_pair(struct tiles *sh, int row, int col, uint32_t pair)
{
    const int at = row * 64 + (((col % 64 / 8) ^ (row % 8)) * 8 + col % 8);
    *(uint32_t *)&sh->p[col / 64][at] = pair;
}

/* out [M, N] = p v + p v + p[, 0..63]^T v[0..63, ], where p = a b^T is rounded: from shared memory,
 * from registers, and across. */
template <int BUG>
__global__ void __launch_bounds__(THREADS)
    products(const __grid_constant__ struct maps maps, float *out)
{
    SHARED(struct tiles, sh);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(shared_addr(&sh->full[s]), 1);
            mbarrier_init(shared_addr(&sh->empty[s]), 4);
        }
        mbarrier_init(shared_addr(&sh->all), 1);
        if (BUG != NO_FENCE_OF_BARRIERS)
            mbarrier_fence();
    }
    __syncthreads();
    if (warp == 4) {
        if (lane == 0)
            copy_all<BUG>(&maps, sh);
        return;
    }
    float acc[N / 8][4] = {}, d[N / 8][4] = {};
    multiply_all<BUG>(acc, sh);
    uint32_t p[N / 16][4];
    for (int k = 0; k < N / 16; k++)
        for (int i = 0; i < 4; i++) {
            const float *x = acc[2 * k + i / 2];
            p[k][i] = pack_bf16(x[i % 2 * 2], x[i % 2 * 2 + 1]);
            put_pair(sh, warp * 16 + lane / 4 + i % 2 * 8, k * 16 + i / 2 * 8 + lane % 4 * 2,
                     p[k][i]);
        }
    if (BUG != NO_FENCE_OF_WRITES)
        fence_async();
    barrier_sync(1, 128);
    mbarrier_wait(shared_addr(&sh->all), 0);
    const uint32_t v = shared_addr(sh->v), own = shared_addr(sh->p);
    wgmma_fence(d, p);
    for (int k = 0; k < N / 16; k++) {
        const uint64_t b = wgmma_operand<LINE>(v + (uint32_t)k * 16 * LINE, N * LINE, 8 * LINE);
        const uint32_t at = own + (uint32_t)(k / 4) * M * LINE + (uint32_t)(k % 4) * 32;
        wgmma<false, true>(d, wgmma_operand<LINE>(at, 16, 8 * LINE), b, k > 0);
        wgmma<true>(d, p[k], b, true);
    }
    for (int k = 0; k < M / 16; k++) {
        const uint32_t rows = (uint32_t)k * 16 * LINE;
        wgmma<true, true>(d, wgmma_operand<LINE>(own + rows, M * LINE, 8 * LINE),
                          wgmma_operand<LINE>(v + rows, N * LINE, 8 * LINE), true);
    }
    wgmma_commit();
    if (BUG != NO_LAST_WAIT)
        wgmma_wait<0>(d);
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 4; i++)
            out[(warp * 16 + lane / 4 + i / 2 * 8) * N + n * 8 + lane % 4 * 2 + i % 2] = d[n][i];
}

/* A GPU runs what has no bug. */
template <int BUG>
static void launch(struct s2s_queue *queue, const struct maps *maps, float *to, int bug)
{
    if (bug == BUG)
        LAUNCH(queue, products<BUG>, 1, THREADS, sizeof(struct tiles), *maps, to);
#ifndef __CUDACC__
    else if constexpr (BUG < NO_LAST_WAIT)
        launch<BUG + 1>(queue, maps, to, bug);
#endif
}

static struct rt_stream *stream;

struct rt_stream *rt_stream_of(const struct s2s_queue *queue)
{
    return stream;
}

static uint16_t a[A_ROWS * LENGTH], b[N * LENGTH], v[N * N];
static float out[M * N];

static void fill(uint16_t *x, int n, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (uint16_t)((0x3c00 + (seed >> 9 & 0x3ff)) | (seed >> 31 << 15)); /* .008 to 4 */
    }
}

static double value(uint16_t bits)
{
    union {
        uint32_t u;
        float f;
    } x;
    x.u = (uint32_t)bits << 16;
    return x.f;
}

static double rounded(double y)
{
    union {
        uint32_t u;
        float f;
    } x;
    x.f = (float)y;
    x.u = (x.u + 0x7fff + (x.u >> 16 & 1)) & 0xffff0000u;
    return x.f;
}

/* The largest difference from the definition, in parts of the largest number. */
static double largest_error(void)
{
    static double p[M][N];
    double most = 0, size = 0;
    for (int i = 0; i < A_ROWS; i++)
        for (int j = 0; j < N; j++) {
            for (int k = 0; k < LENGTH; k++)
                p[i][j] += value(a[i * LENGTH + k]) * value(b[j * LENGTH + k]);
            p[i][j] = rounded(p[i][j]);
        }
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double want = 0;
            for (int k = 0; k < N; k++)
                want += 2 * p[i][k] * value(v[k * N + j]);
            for (int k = 0; k < M; k++)
                want += p[k][i] * value(v[k * N + j]);
            const double off = fabs(out[i * N + j] - want);
            most = off <= most ? most : off; /* NaN goes through */
            size = fmax(size, fabs(want));
        }
    return most / size;
}

static void *to_device(const void *x, size_t bytes)
{
    void *ptr = rt_alloc(bytes);
    rt_copy(stream, ptr, x, bytes);
    return ptr;
}

static int must(int status)
{
    if (status == 0)
        return 0;
    fprintf(stderr, "sm90: %s\n", rt_status_text(status));
    exit(2);
}

int main(int argc, char **argv)
{
    struct rt_device device;
    struct s2s_queue queue = {};
    struct maps maps;
    const int bug = argc > 1 ? atoi(argv[1]) : 0;
    must(rt_open(0, &device));
    must(rt_stream_new(&stream));
    fill(a, A_ROWS * LENGTH, 1);
    fill(b, N * LENGTH, 2);
    fill(v, N * N, 3);
    void *da = to_device(a, sizeof a), *db = to_device(b, sizeof b), *dv = to_device(v, sizeof v);
    float *to = (float *)rt_alloc(sizeof out);
    const struct tensor_shape of_a = {da, A_ROWS, 2, LENGTH / 2, LENGTH, M, STEP, LINE},
                              of_b = {db, N, 2, LENGTH / 2, LENGTH, N, STEP, LINE},
                              of_v = {dv, N, 1, N, N, N, 64, LINE};
    must(rt_tensor_map(&maps.a, &of_a));
    must(rt_tensor_map(&maps.b, &of_b));
    must(rt_tensor_map(&maps.v, &of_v));
    launch<NONE>(&queue, &maps, to, bug);
    must(queue.status);
    must(rt_copy(stream, out, to, sizeof out));
    must(rt_stream_wait(stream));
    const double error = largest_error();
    printf("error %g (%s)\n", error, device.name);
    rt_free(da);
    rt_free(db);
    rt_free(dv);
    rt_free(to);
    rt_stream_free(stream);
    return !(error < 5e-3);
}
