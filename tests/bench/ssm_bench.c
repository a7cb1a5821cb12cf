/*
 * The kernels of Mamba2 layers: millions of tokens a second of one core's time, forward and
 * backward, and the share of this machine's limit measured in the same run: its product speed for
 * the scan (the products of its chunks, the triangles half), for the others the speed of adding two
 * matrices to a third.
 *
 *   ssm_bench [SHAPE]     hybrid53 (default) or wide: heads, groups and sizes of a layer
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/count/cost.h"
#include "lib/base/error.h"
#include "tests/bench/product.h"

enum { TOKENS = 2048, CHUNK = 64, WIDTH = 4, ROUNDS = 15 };

static const struct shape {
    const char *name;
    int64_t heads, groups, dim, state;
} shapes[] = {{"hybrid53", 16, 2, 64, 64}, {"wide", 64, 8, 64, 128}};

/* Lengths of sequences that are packed. */
static const int32_t cu[] = {0, 70, 190, 520, 1100, 1148, 1500, TOKENS};
enum { SEQS = sizeof cu / sizeof *cu - 1 };

static struct s2s_device *device;

/* Values [rows, cols], of the device's working type where it is a matrix. */
static struct s2s_mat values(int64_t rows, int64_t cols, uint64_t key, enum s2s_dtype dtype)
{
    const size_t n = (size_t)(rows * cols);
    float *wide = s2s_xalloc_aligned(n * sizeof *wide);
    s2s_rng_fill_normal(wide, n, key, 0, 0, 1);
    for (size_t i = 0; dtype == S2S_BF16 && i < n; i++)
        ((uint16_t *)wide)[i] = s2s_f32_to_bf16(wide[i]);
    return (struct s2s_mat){wide, cols, dtype};
}

static struct s2s_mat mat(int64_t rows, int64_t cols, uint64_t key)
{
    return values(rows, cols, key, device->dtype);
}

static float *vec(int64_t n, uint64_t key)
{
    return values(1, n, key, S2S_F32).data;
}

static void *work(size_t bytes)
{
    return s2s_xalloc_aligned(bytes + 1);
}

/* ---- limits ---- */

static double sum_speed(void) /* GB/s */
{
    const int64_t rows = TOKENS, cols = 4096;
    const struct s2s_k_axpby args = {.x = mat(rows, cols, 1),
                                     .z = mat(rows, cols, 2),
                                     .y = mat(rows, cols, 3),
                                     .rows = rows,
                                     .cols = cols,
                                     .alpha = 1,
                                     .beta = 1};
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        const double start = cpu_s();
        device->kernels->axpby(&device->queue, &args);
        best = fmin(best, cpu_s() - start);
    }
    free(args.x.data);
    free(args.z.data);
    free(args.y.data);
    return 3e-9 * (double)(rows * cols) * (double)s2s_dtype_size(device->dtype) / best;
}

/* Products of the chunks of the batch: `states` with a state, `triangles` of half a square each by
 * dim; one more triangle a group by its state, and two where there are gradients. */
static double scan_flops(const struct shape *s, int states, int triangles, int of_group)
{
    double flops = 0;
    for (int i = 0; i < SEQS; i++)
        for (int32_t at = cu[i]; at < cu[i + 1]; at += CHUNK) {
            const double n = fmin(CHUNK, cu[i + 1] - at), triangle = n * (n + 1) / 2;
            flops += (double)s->heads * 2 * (double)s->dim *
                     (states * n * (double)s->state + triangles * triangle);
            flops += of_group * (double)(s->groups * s->state) * 2 * triangle;
        }
    return flops;
}

/* ---- the kernels ---- */

static double limit_gflops, limit_gbs;

#define BENCH(name, args, flops) \
    do { \
        double best_ = 1e30; \
        for (int i_ = 0; i_ < ROUNDS; i_++) { \
            const double start_ = cpu_s(); \
            device->kernels->name(&device->queue, args); \
            best_ = fmin(best_, cpu_s() - start_); \
        } \
        report(#name, best_, s2s_cost_##name(args, NULL), flops); \
    } while (0)

/* flops 0: bytes are what counts */
static void report(const char *name, double s, struct s2s_cost cost, double flops)
{
    const double bytes = cost.read_bytes + cost.written_bytes;
    printf("  %-18s %6.2f Mtok/s %6.2f us/tok", name, TOKENS * 1e-6 / s, s * 1e6 / TOKENS);
    if (flops > 0)
        printf("  %6.1f GFLOP/s, share of products %.2f\n", 1e-9 * flops / s,
               1e-9 * flops / s / limit_gflops);
    else
        printf("  %6.1f GB/s, share of sums %.2f\n", 1e-9 * bytes / s,
               1e-9 * bytes / s / limit_gbs);
}

static void bench_conv1d(const struct shape *s)
{
    const int64_t channels = s->heads * s->dim + 2 * s->groups * s->state;
    struct s2s_k_conv1d args = {.x = mat(TOKENS, channels, 1),
                                .y = mat(TOKENS, channels, 2),
                                .w = vec(channels * WIDTH, 3),
                                .bias = vec(channels, 4),
                                .cu = cu,
                                .n_seqs = SEQS,
                                .n = TOKENS,
                                .channels = channels,
                                .width = WIDTH,
                                .silu = true};
    args.workspace = work(device->kernels->conv1d_workspace(&device->queue, &args));
    BENCH(conv1d, &args, 0);
    struct s2s_k_conv1d_backward back = {.forward = args,
                                         .dy = mat(TOKENS, channels, 5),
                                         .dx = mat(TOKENS, channels, 6),
                                         .dw = vec(channels * WIDTH, 7),
                                         .dbias = vec(channels, 8)};
    back.workspace = work(device->kernels->conv1d_backward_workspace(&device->queue, &back));
    BENCH(conv1d_backward, &back, 0);
}

static void bench_ssd(const struct shape *s)
{
    const int64_t inner = s->heads * s->dim, width = s->groups * s->state;
    struct s2s_k_ssd args = {.x = mat(TOKENS, inner, 1),
                             .y = mat(TOKENS, inner, 2),
                             .dt = mat(TOKENS, s->heads, 3),
                             .b = mat(TOKENS, width, 4),
                             .c = mat(TOKENS, width, 5),
                             .a_log = vec(s->heads, 6),
                             .dt_bias = vec(s->heads, 7),
                             .skip = vec(s->heads, 8),
                             .cu = cu,
                             .n_seqs = SEQS,
                             .n = TOKENS,
                             .n_heads = s->heads,
                             .n_groups = s->groups,
                             .dim = s->dim,
                             .state = s->state};
    for (int i = 0; i < SEQS; i++)
        args.max_seqlen = cu[i + 1] - cu[i] > args.max_seqlen ? cu[i + 1] - cu[i] : args.max_seqlen;
    args.workspace = work(device->kernels->ssd_workspace(&device->queue, &args));
    BENCH(ssd, &args, scan_flops(s, 2, 1, 1));
    struct s2s_k_ssd_backward back = {.forward = args,
                                      .dy = mat(TOKENS, inner, 9),
                                      .dx = mat(TOKENS, inner, 10),
                                      .ddt = mat(TOKENS, s->heads, 11),
                                      .db = mat(TOKENS, width, 12),
                                      .dc = mat(TOKENS, width, 13),
                                      .da_log = vec(s->heads, 14),
                                      .ddt_bias = vec(s->heads, 15),
                                      .dskip = vec(s->heads, 16)};
    const size_t bytes = device->kernels->ssd_backward_workspace(&device->queue, &back);
    back.workspace = work(bytes);
    BENCH(ssd_backward, &back, scan_flops(s, 5, 2, 3));
    printf("  %-18s %.1f MiB of workspace\n", "", (double)bytes / 1048576);
}

static void bench_gatednorm(const struct shape *s)
{
    const int64_t inner = s->heads * s->dim;
    struct s2s_k_gatednorm args = {.x = mat(TOKENS, inner, 1),
                                   .z = mat(TOKENS, inner, 2),
                                   .y = mat(TOKENS, inner, 3),
                                   .gain = vec(inner, 4),
                                   .rstd = vec(TOKENS * s->groups, 5),
                                   .rows = TOKENS,
                                   .cols = inner,
                                   .n_groups = s->groups,
                                   .eps = 1e-5f};
    BENCH(gatednorm, &args, 0);
    struct s2s_k_gatednorm_backward back = {.x = args.x,
                                            .z = args.z,
                                            .dy = mat(TOKENS, inner, 6),
                                            .dx = mat(TOKENS, inner, 7),
                                            .dz = mat(TOKENS, inner, 8),
                                            .gain = args.gain,
                                            .rstd = args.rstd,
                                            .dgain = vec(inner, 9),
                                            .rows = TOKENS,
                                            .cols = inner,
                                            .n_groups = s->groups};
    back.workspace = work(device->kernels->gatednorm_backward_workspace(&device->queue, &back));
    BENCH(gatednorm_backward, &back, 0);
}

int main(int argc, char **argv)
{
    struct s2s_error err = S2S_ERROR_INIT;
    const char *name = argc > 1 ? argv[1] : shapes[0].name;
    const struct shape *shape = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(shapes[i].name, name) == 0)
            shape = &shapes[i];
    if (!shape) {
        fprintf(stderr, "ssm_bench: no shape %s\n", name);
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        if (s2s_device_open(&device, "cpu", &err) < 0 ||
            s2s_device_work_in(device, i ? S2S_BF16 : S2S_F32, &err) < 0) {
            fprintf(stderr, "ssm_bench: %s\n", err.text);
            return 1;
        }
        limit_gbs = sum_speed();
        /* the scan's products are of F32 whatever the matrices are */
        const enum s2s_dtype dtype = device->dtype;
        device->dtype = S2S_F32;
        limit_gflops = product_speed(device).core;
        device->dtype = dtype;
        printf("%s %s: %d threads, products %.0f GFLOP/s, sums %.1f GB/s\n", shape->name,
               i ? "bf16" : "fp32", device->queue.lanes, limit_gflops, limit_gbs);
        bench_conv1d(shape);
        bench_ssd(shape);
        bench_gatednorm(shape);
        s2s_device_close(device);
    }
    return 0;
}
