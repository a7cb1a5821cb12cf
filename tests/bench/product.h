/* The machine's own speed of products, which benches of models are held against. */
#ifndef BENCH_PRODUCT_H
#define BENCH_PRODUCT_H

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "lib/base/base.h"
#include "lib/base/rng.h"
#include "lib/tensor/device.h"

static inline double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* GFLOP/s, and GFLOP a second of one core, of the best of some products whose operands fit the
 * cache. The second is what counts where other work shares the machine. */
struct speed {
    double wall, core;
};

/* Of the device's working dtype. */
static inline struct speed product_speed(struct s2s_device *device)
{
    const int64_t m = 1024, n = 1024, k = 512;
    float *a = s2s_xalloc_aligned((size_t)(m * k) * 4),
          *b = s2s_xalloc_aligned((size_t)(n * k) * 4);
    float *c = s2s_xalloc_aligned((size_t)(m * n) * 4);
    s2s_rng_fill_normal(a, (size_t)(m * k), 1, 0, 0, 1);
    s2s_rng_fill_normal(b, (size_t)(n * k), 2, 0, 0, 1);
    uint16_t *halves = s2s_xalloc_aligned((size_t)(m * k + n * k) * sizeof *halves);
    for (int64_t i = 0; i < m * k; i++)
        halves[i] = s2s_f32_to_bf16(a[i]);
    for (int64_t i = 0; i < n * k; i++)
        halves[m * k + i] = s2s_f32_to_bf16(b[i]);
    const bool bf16 = device->dtype == S2S_BF16;
    struct s2s_k_gemm args = {.a = {bf16 ? (void *)halves : a, k, device->dtype},
                              .b = {bf16 ? (void *)(halves + m * k) : b, k, device->dtype},
                              .c = {c, n, S2S_F32},
                              .m = m,
                              .n = n,
                              .k = k,
                              .trans_b = true,
                              .alpha = 1};
    double best = 1e30, best_cpu = 1e30;
    for (int i = 0; i < 30; i++) {
        double start = s2s_now_s(), start_cpu = cpu_s();
        device->kernels->gemm(&device->queue, &args);
        best = fmin(best, s2s_now_s() - start);
        best_cpu = fmin(best_cpu, cpu_s() - start_cpu);
    }
    free(halves);
    free(a);
    free(b);
    free(c);
    double gflop = 2e-9 * (double)(m * n * k);
    return (struct speed){gflop / best, gflop / best_cpu};
}

#endif
