/*
 * Times of attention on a GPU with several sizes of tiles, of which kernels/cuda/attention_*.cu
 * have the best: attention_bench [SCALE], where SCALE divides the lengths (for a try without a
 * GPU). A line a variant: what, ms, TFLOP/s of what the causal sequences need, and the greatest
 * difference of its result from that of the first.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/attention_dkv.h"
#include "kernels/cuda/attention_dq.h"
#include "kernels/cuda/attention_fwd.h"

extern "C" void s2s_bug(const char *file, int line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, fmt, args);
    va_end(args);
    abort();
}

static struct rt_stream *stream;
static struct s2s_queue queue;
static int scale = 1;

struct rt_stream *rt_stream_of(const struct s2s_queue *)
{
    return stream;
}

static void must(int status)
{
    if (status == 0)
        return;
    fprintf(stderr, "attention_bench: %s\n", rt_status_text(status));
    exit(1);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- one case: packed causal sequences ---- */

enum { MAX_SEQS = 32 };

static struct problem {
    int n, n_seqs, heads, kv_heads, dim;
    double flop; /* of the forward */
    struct s2s_k_attention_backward args;
    struct att_backward b;
    struct att_forward f;
    char *out, *first; /* of the kernel under test, on the host */
} now;

static void *fresh(size_t bytes, uint64_t seed)
{
    uint16_t *host = (uint16_t *)malloc(bytes + 2);
    for (size_t i = 0; i < bytes / 2; i++) {
        float sum = 0, x;
        for (int j = 0; j < 4; j++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            sum += (float)(seed >> 40) / 16777216.0f - 0.5f;
        }
        x = sum * 1.7f;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        host[i] = (uint16_t)(bits >> 16);
    }
    void *ptr = rt_alloc(bytes);
    must(ptr ? rt_copy(stream, ptr, host, bytes) : 2);
    must(rt_stream_wait(stream));
    free(host);
    return ptr;
}

static struct s2s_mat matrix(int heads, uint64_t seed)
{
    const int64_t cols = heads * now.dim;
    return {fresh((size_t)(now.n * cols) * 2, seed), cols, S2S_BF16};
}

static void set_up(int n, int length, int heads, int kv_heads, int dim)
{
    static struct s2s_span spans[MAX_SEQS];
    static int32_t groups[MAX_SEQS + 1];
    n /= scale;
    length /= scale;
    memset(&now, 0, sizeof now);
    now.n = n;
    now.heads = heads;
    now.kv_heads = kv_heads;
    now.dim = dim;
    for (int at = 0; at < n; now.n_seqs++) {
        /* lengths around the mean, the same each time */
        const int size = length == n ? n : length * (2 + now.n_seqs % 5) / 4;
        const int len = size < n - at ? size : n - at;
        spans[now.n_seqs] = {at, len, at, len, 0};
        groups[now.n_seqs] = now.n_seqs;
        now.flop += 4.0 * dim * heads * ((double)len * (len + 1) / 2);
        at += len;
    }
    groups[now.n_seqs] = now.n_seqs;
    struct s2s_k_attention &f = now.args.forward;
    f.q = matrix(heads, 1);
    f.k = matrix(kv_heads, 2);
    f.v = matrix(kv_heads, 3);
    f.o = matrix(heads, 4);
    now.args.d_o = matrix(heads, 5);
    now.args.dq = matrix(heads, 6);
    now.args.dk = matrix(kv_heads, 7);
    now.args.dv = matrix(kv_heads, 8);
    f.lse = (float *)rt_alloc(sizeof(float) * (size_t)(n * heads));
    f.spans = (struct s2s_span *)rt_alloc(sizeof spans);
    f.groups = (int32_t *)rt_alloc(sizeof groups);
    must(rt_copy(stream, (void *)f.spans, spans, sizeof spans));
    must(rt_copy(stream, (void *)f.groups, groups, sizeof groups));
    must(rt_stream_wait(stream));
    f.n_spans = f.n_groups = now.n_seqs;
    f.n_q = f.n_k = f.max_q = f.max_k = n;
    f.n_heads = heads;
    f.n_kv_heads = kv_heads;
    f.dim = dim;
    f.scale = 1 / sqrtf((float)dim);
    char *work = (char *)rt_alloc((size_t)64 << 20);
    struct att_backward &b = now.b;
    b.p = att_problem_of(&f);
    b.queries = att_list_take(&work, n, now.n_seqs);
    b.keys = att_list_take(&work, n, now.n_seqs);
    b.q = att_source_of(&f.q, dim);
    b.k = att_source_of(&f.k, dim);
    b.v = att_source_of(&f.v, dim);
    b.d_o = att_source_of(&now.args.d_o, dim);
    b.dq = att_target_of(&now.args.dq, dim, false);
    b.dk = att_target_of(&now.args.dk, dim, false);
    b.dv = att_target_of(&now.args.dv, dim, false);
    b.lse = (float *)work;
    b.delta = b.lse + n * heads;
    now.f = {b.p, b.queries, b.q, b.k, b.v, att_target_of(&f.o, dim, false), f.lse};
    now.out = (char *)malloc((size_t)(n * heads * dim) * 2);
    now.first = (char *)malloc((size_t)(n * heads * dim) * 2);
    printf("\n%d tokens in %d sequences, %d/%d heads of %d\n", n, now.n_seqs, heads, kv_heads, dim);
}

static void tear_down(void)
{
    struct s2s_k_attention &f = now.args.forward;
    void *const all[] = {f.q.data,         f.k.data,          f.v.data,
                         f.o.data,         now.args.d_o.data, now.args.dq.data,
                         now.args.dk.data, now.args.dv.data,  f.lse,
                         (void *)f.spans,  (void *)f.groups,  now.b.queries.n};
    for (void *ptr : all)
        rt_free(ptr);
    free(now.out);
    free(now.first);
}

/* ---- variants ---- */

static double difference(const struct s2s_mat *result, bool is_first)
{
    const size_t n = (size_t)(now.n * result->stride);
    uint16_t *x = (uint16_t *)now.out, *y = (uint16_t *)now.first;
    double most = 0;
    must(rt_copy(stream, x, result->data, n * 2));
    must(rt_stream_wait(stream));
    if (is_first)
        memcpy(y, x, n * 2);
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits[2] = {(uint32_t)x[i] << 16, (uint32_t)y[i] << 16};
        float f[2];
        memcpy(f, bits, sizeof f);
        const double by = fabs((double)f[0] - (double)f[1]);
        most = by <= most ? most : by; /* NaN goes through */
    }
    return most;
}

static void measure(const char *name, void (*call)(void), double flop, const struct s2s_mat *result,
                    bool is_first)
{
    call();
    must(rt_stream_wait(stream));
    const double off = difference(result, is_first), begin = now_s();
    call();
    must(rt_stream_wait(stream));
    const double once = now_s() - begin;
    const int n = scale > 1 ? 1 : once < 1e-3 ? 20 : 5;
    double best = INFINITY;
    for (int round = 0; round < 3 && scale == 1; round++) {
        const double from = now_s();
        for (int i = 0; i < n; i++)
            call();
        must(rt_stream_wait(stream));
        const double each = (now_s() - from) / n;
        best = each < best ? each : best;
    }
    best = scale > 1 ? once : best;
    printf("%-34s %9.3f ms %8.1f TFLOP/s  off %.3g%s\n", name, best * 1e3, flop / best * 1e-12, off,
           queue.status ? rt_status_text(queue.status) : "");
    queue.status = 0;
    fflush(stdout);
}

#define FORWARD(is_first, ...) \
    measure( \
        "forward " #__VA_ARGS__, [] { att_forward_run<att_bf16, __VA_ARGS__>(&queue, &now.f); }, \
        now.flop, &now.args.forward.o, is_first)
/* three products of seven, in terms of the five that a backward is counted as */
#define QUERIES(is_first, ...) \
    measure( \
        "dq      " #__VA_ARGS__, [] { att_queries_run<att_bf16, __VA_ARGS__>(&queue, &now.b); }, \
        now.flop * 1.5, &now.args.dq, is_first)
#define KEYS(is_first, ...) \
    measure( \
        "dk, dv  " #__VA_ARGS__, [] { att_keys_run<att_bf16, __VA_ARGS__>(&queue, &now.b); }, \
        now.flop * 2, &now.args.dk, is_first)

static void prepare_backward(void)
{
    /* lse and delta as cuda_attention_backward makes them, but for the order: all alike here */
    const size_t n = (size_t)(now.n * now.heads);
    float *lse = (float *)malloc(2 * n * sizeof *lse), *host = (float *)malloc(n * sizeof *host);
    must(rt_copy(stream, host, now.args.forward.lse, n * sizeof *host));
    must(rt_stream_wait(stream));
    for (int h = 0; h < now.heads; h++)
        for (int t = 0; t < now.n; t++) {
            lse[h * now.n + t] = host[t * now.heads + h] * att_log2e;
            lse[n + (size_t)(h * now.n + t)] = 0.1f;
        }
    must(rt_copy(stream, now.b.lse, lse, 2 * n * sizeof *lse));
    must(rt_stream_wait(stream));
    free(lse);
    free(host);
}

static void narrow_heads(void)
{
    FORWARD(true, 64, 4, 2, 64, 3);
    FORWARD(false, 64, 4, 2, 64, 2);
    FORWARD(false, 64, 4, 2, 128, 2);
    FORWARD(false, 64, 4, 2, 32, 3);
    FORWARD(false, 64, 4, 1, 64, 4);
    prepare_backward();
    QUERIES(true, 64, 4, 2, 64, 32, 3);
    QUERIES(false, 64, 4, 2, 64, 32, 2);
    QUERIES(false, 64, 4, 2, 64, 64, 2);
    QUERIES(false, 64, 4, 2, 32, 32, 3);
    QUERIES(false, 64, 4, 1, 64, 64, 3);
    KEYS(true, 64, 4, 2, 64, 32, true);
    KEYS(false, 64, 4, 2, 32, 32, true);
    KEYS(false, 64, 4, 2, 64, 64, true);
    KEYS(false, 64, 4, 1, 64, 64, true);
    KEYS(false, 64, 4, 1, 128, 64, true);
    KEYS(false, 64, 8, 1, 64, 64, true);
}

static void wide_heads(void)
{
    FORWARD(true, 128, 4, 2, 64, 2);
    FORWARD(false, 128, 4, 2, 32, 2);
    FORWARD(false, 128, 4, 2, 48, 2);
    FORWARD(false, 128, 4, 1, 64, 3);
    prepare_backward();
    QUERIES(true, 128, 4, 2, 32, 32, 2);
    QUERIES(false, 128, 4, 2, 32, 16, 2);
    QUERIES(false, 128, 4, 1, 64, 64, 2);
    QUERIES(false, 128, 4, 1, 64, 32, 2);
    KEYS(true, 128, 4, 1, 64, 64, true);
    KEYS(false, 128, 4, 1, 64, 32, true);
    KEYS(false, 128, 4, 1, 32, 32, true);
    KEYS(false, 128, 4, 1, 64, 64, false);
    KEYS(false, 128, 8, 1, 32, 32, true);
}

int main(int argc, char **argv)
{
    struct rt_device device;
    scale = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 1;
    must(rt_open(0, &device));
    must(rt_stream_new(&stream));
    printf("%s\n", device.name);
    set_up(8192, 8192, 16, 16, 128);
    wide_heads();
    tear_down();
    set_up(8192, 600, 16, 16, 128);
    wide_heads();
    tear_down();
    set_up(8192, 8192, 32, 8, 64);
    narrow_heads();
    tear_down();
    set_up(8192, 600, 32, 8, 64);
    narrow_heads();
    tear_down();
    rt_stream_free(stream);
    return 0;
}
