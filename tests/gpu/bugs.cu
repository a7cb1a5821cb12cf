/*
 * A product by tiles as kernels have it, with one of several bugs: what the emulator and the
 * sanitizers find is what they are for.
 *
 *   bugs NUMBER    0: none. Prints the largest error; exit 1 when it is not small.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/rt.h"

enum { SIZE = 64, STEP = 32, N_STEPS = 4, LENGTH = STEP * N_STEPS, THREADS = 128 };
enum bug {
    NONE,
    NO_LAST_BARRIER,
    NO_FIRST_BARRIER,
    LATE_WAIT,
    BARRIER_IN_A_BRANCH,
    MMA_IN_A_BRANCH,
    STORE_PAST_THE_END,
    SWAPPED_ROWS,
    SHUFFLE_FROM_OUTSIDE,
    SHARED_PAST_THE_END,
    MISALIGNED_COPY
};

struct tiles {
    uint16_t a[2][SIZE * STEP], b[2][SIZE * STEP];
};

static __device__ void load(uint16_t *tile, const uint16_t *src)
{
    for (int i = (int)threadIdx.x; i < SIZE * STEP / 8; i += THREADS)
        cp_async<16>(shared_addr(tile + i * 8), src + i / (STEP / 8) * LENGTH + i % (STEP / 8) * 8,
                     16);
}

/* c [SIZE, SIZE] = a [SIZE, LENGTH] b [SIZE, LENGTH]^T */
__global__ void product(const uint16_t *a, const uint16_t *b, float *c, int bug)
{
    SHARED(struct tiles, sh);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    float acc[SIZE / 8][4] = {};
    load(sh->a[0], a);
    load(sh->b[0], b + (bug == MISALIGNED_COPY ? 1 : 0));
    cp_async_commit();
    for (int s = 0; s < N_STEPS; s++) {
        if (s + 1 < N_STEPS) {
            load(sh->a[(s + 1) % 2], a + (s + 1) * STEP);
            load(sh->b[(s + 1) % 2], b + (s + 1) * STEP);
        }
        cp_async_commit();
        if (bug == LATE_WAIT)
            cp_async_wait<2>();
        else
            cp_async_wait<1>();
        if (bug == BARRIER_IN_A_BRANCH && warp == 2)
            __syncthreads();
        else if (bug != NO_FIRST_BARRIER)
            __syncthreads();
        for (int k = 0; k < STEP / 16; k++) {
            uint32_t ra[4];
            ldmatrix_x4<false>(ra, shared_addr(sh->a[s % 2] + (warp * 16 + lane % 16) * STEP +
                                               k * 16 + lane / 16 * 8));
            for (int n = 0; n < SIZE / 8; n++) {
                uint32_t rb[2];
                ldmatrix_x2<false>(rb, shared_addr(sh->b[s % 2] + (n * 8 + lane % 8) * STEP +
                                                   k * 16 + lane / 8 % 2 * 8));
                if (bug == MMA_IN_A_BRANCH && lane == 0)
                    continue;
                mma_bf16(acc[n], ra, rb);
            }
        }
        if (bug != NO_LAST_BARRIER)
            __syncthreads();
    }
    if (bug == SHUFFLE_FROM_OUTSIDE && lane < 16)
        acc[0][0] = __shfl_xor_sync(0xffffu, acc[0][0], 16);
    if (bug == SHARED_PAST_THE_END && threadIdx.x == 0)
        ((uint16_t *)(sh + 1))[0] = 0;
    for (int n = 0; n < SIZE / 8; n++)
        for (int i = 0; i < 4; i++) {
            int row = warp * 16 + lane / 4 + i / 2 * 8;
            if (bug == SWAPPED_ROWS)
                row ^= 8;
            if (bug == STORE_PAST_THE_END)
                row++;
            c[row * SIZE + n * 8 + lane % 4 * 2 + i % 2] = acc[n][i];
        }
}

static struct rt_stream *stream;

struct rt_stream *rt_stream_of(const struct s2s_queue *)
{
    return stream;
}

int main(int argc, char **argv)
{
    static uint16_t a[SIZE * LENGTH], b[SIZE * LENGTH];
    static float c[SIZE * SIZE];
    const int bug = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0;
    struct s2s_queue queue = {};
    for (int i = 0; i < SIZE * LENGTH; i++) {
        a[i] = float_bf16((float)(i * 7919 % 1009) / 504.5f - 1);
        b[i] = float_bf16((float)(i * 6007 % 1013) / 506.5f - 1);
    }
    uint16_t *da = (uint16_t *)rt_alloc(sizeof a), *db = (uint16_t *)rt_alloc(sizeof b);
    float *dc = (float *)rt_alloc(sizeof c);
    rt_stream_new(&stream);
    rt_copy(stream, da, a, sizeof a);
    rt_copy(stream, db, b, sizeof b);
    LAUNCH(&queue, product, 1, THREADS, sizeof(struct tiles), da, db, dc, bug);
    rt_copy(stream, c, dc, sizeof c);
    double most = 0;
    for (int i = 0; i < SIZE; i++)
        for (int j = 0; j < SIZE; j++) {
            double want = 0;
            for (int k = 0; k < LENGTH; k++)
                want += (double)bf16_float(a[i * LENGTH + k]) * bf16_float(b[j * LENGTH + k]);
            const double off = fabs(c[i * SIZE + j] - want);
            most = off <= most ? most : off; /* NaN goes through */
        }
    printf("error %g\n", most);
    rt_free(da);
    rt_free(db);
    rt_free(dc);
    rt_stream_free(stream);
    return !(most < 1e-4);
}
