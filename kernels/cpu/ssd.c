/*
 * The scan of Mamba2 by its recurrence, a head of a sequence at a time:
 *   step = max(softplus(dt + dt_bias), dt_min),  a = exp(A step),  A = -exp(a_log)
 *   S = a S + step x b^T,  y = S c + skip x
 * backward, with R the gradient of S, from the last row to the first:
 *   R += dy c^T;  dc += S^T dy;  db += step R^T x;  u = R b;  dx = step u + skip dy
 *   dstep = A a <R, S before> + x.u;  dA += step a <R, S before>;  R = a R
 * The states in front of every CHUNK rows are kept in the workspace; those in between come again.
 */
#include <omp.h>

#include "kernels/cpu/cpu.h"

enum { CHUNK = 64 };

/* softplus, its derivative, and the clamp. */
static float step_of(const struct s2s_k_ssd *a, int64_t t, int64_t head, float *derivative)
{
    const bool bf16 = cpu_is_bf16(&a->dt);
    const float z =
        cpu_load(cpu_any_row(&a->dt, t), head, bf16) + (a->dt_bias ? a->dt_bias[head] : 0);
    const float e = expf(-fabsf(z));
    const float step = (z > 0 ? z : 0) + log1pf(e);
    const bool clamped = step < a->dt_min;
    *derivative = clamped ? 0 : (z > 0 ? 1 : e) / (1 + e);
    return clamped ? a->dt_min : step;
}

static int64_t state_floats(const struct s2s_k_ssd *a)
{
    return a->dim * a->state;
}

/* Elements [begin, begin + n) of a row as floats. */
static void row_of(float *to, const struct s2s_mat *mat, int64_t t, int64_t begin, int64_t n)
{
    const bool bf16 = cpu_is_bf16(mat);
    const void *from = cpu_from(cpu_any_row(mat, t), begin, bf16);
    for (int64_t i = 0; i < n; i++)
        to[i] = cpu_load(from, i, bf16);
}

/* S = a S + step x b^T */
static void advance(float *s, const struct s2s_k_ssd *a, float decay, float step, const float *x,
                    const float *b)
{
    for (int64_t p = 0; p < a->dim; p++) {
        float *restrict row = s + p * a->state;
        const float xs = step * x[p];
#pragma omp simd
        for (int64_t i = 0; i < a->state; i++)
            row[i] = decay * row[i] + xs * b[i];
    }
}

static int64_t group_of(const struct s2s_k_ssd *a, int64_t head)
{
    return head / (a->n_heads / a->n_groups);
}

/* A thread's rows of x, b, c. */
static int64_t row_floats(const struct s2s_k_ssd *a)
{
    return a->dim + 2 * a->state;
}

size_t cpu_ssd_workspace(const struct s2s_queue *queue, const struct s2s_k_ssd *args)
{
    return (size_t)(queue->lanes * (state_floats(args) + row_floats(args))) * sizeof(float);
}

static void start(float *s, const struct s2s_k_ssd *a, const float *from, int64_t seq, int64_t head)
{
    const size_t bytes = (size_t)state_floats(a) * sizeof *s;
    if (from)
        memcpy(s, from + (seq * a->n_heads + head) * state_floats(a), bytes);
    else
        memset(s, 0, bytes);
}

static void forward_head(const struct s2s_k_ssd *a, int64_t seq, int64_t head, float *s)
{
    float *x = s + state_floats(a), *b = x + a->dim, *c = b + a->state, unused;
    const int64_t group = group_of(a, head);
    const bool bf16 = cpu_is_bf16(&a->y);
    const float rate = -expf(a->a_log[head]), skip = a->skip ? a->skip[head] : 0;
    start(s, a, a->initial, seq, head);
    for (int64_t t = a->cu[seq]; t < a->cu[seq + 1]; t++) {
        const float step = step_of(a, t, head, &unused);
        row_of(x, &a->x, t, head * a->dim, a->dim);
        row_of(b, &a->b, t, group * a->state, a->state);
        row_of(c, &a->c, t, group * a->state, a->state);
        advance(s, a, expf(rate * step), step, x, b);
        void *y = cpu_from(cpu_any_row(&a->y, t), head * a->dim, bf16);
        for (int64_t p = 0; p < a->dim; p++) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < a->state; i++)
                sum += s[p * a->state + i] * c[i];
            cpu_store(y, p, sum + skip * x[p], bf16);
        }
    }
    if (a->final)
        memcpy(a->final + (seq * a->n_heads + head) * state_floats(a), s,
               (size_t)state_floats(a) * sizeof *s);
}

/* Rows outside of all sequences. */
static void zero_others(const struct s2s_k_ssd *a, const struct s2s_mat *mat, int64_t cols)
{
    const int64_t begin = a->n_seqs ? a->cu[0] : 0, end = a->n_seqs ? a->cu[a->n_seqs] : 0;
    cpu_zero_part(mat, 0, 0, begin, cols);
    cpu_zero_part(mat, end, 0, a->n - end, cols);
}

void cpu_ssd(struct s2s_queue *queue, const struct s2s_k_ssd *args)
{
    const int64_t each = state_floats(args) + row_floats(args);
    zero_others(args, &args->y, args->n_heads * args->dim);
#pragma omp parallel for collapse(2) num_threads(queue->lanes) schedule(dynamic, 1)
    for (int64_t seq = 0; seq < args->n_seqs; seq++)
        for (int64_t head = 0; head < args->n_heads; head++)
            forward_head(args, seq, head, (float *)args->workspace + omp_get_thread_num() * each);
}

/* ---- backward ---- */

/* A thread's: R, the states of a chunk and one before, those before each chunk, rows. */
static int64_t backward_floats(const struct s2s_k_ssd *a)
{
    return (1 + CHUNK + 1 + cpu_ceil_div(a->max_seqlen, CHUNK) + 1) * state_floats(a) +
           row_floats(a) + 2 * a->dim + 2 * a->state;
}

/* ddt, db, dc as sums; then parts of da_log, ddt_bias, dskip of each sequence and head. */
size_t cpu_ssd_backward_workspace(const struct s2s_queue *queue,
                                  const struct s2s_k_ssd_backward *args)
{
    const struct s2s_k_ssd *a = &args->forward;
    return (size_t)(queue->lanes * backward_floats(a) + 2 * a->n * a->n_groups * a->state +
                    3 * a->n_seqs * a->n_heads) *
           sizeof(float);
}

struct sums {
    float *db, *dc; /* [n, n_groups * state] */
    float *heads;   /* [n_seqs, n_heads, 3] */
};

static void backward_head(const struct s2s_k_ssd_backward *args, int64_t seq, int64_t head,
                          float *room, const struct sums *sums)
{
    const struct s2s_k_ssd *a = &args->forward;
    const int64_t size = state_floats(a), n = a->state, group = group_of(a, head);
    const int64_t begin = a->cu[seq], len = a->cu[seq + 1] - begin;
    const int64_t width = a->n_groups * n;
    const float rate = -expf(a->a_log[head]), skip = a->skip ? a->skip[head] : 0;
    float *r = room, *inner = r + size, *chunks = inner + (CHUNK + 1) * size;
    float *x = chunks + (cpu_ceil_div(a->max_seqlen, CHUNK) + 1) * size, *b = x + a->dim;
    float *c = b + n, *dy = c + n, *dx = dy + a->dim, derivative;
    float da = 0, ddt_bias = 0, dskip = 0;
    start(r, a, args->dfinal, seq, head);
    start(chunks, a, a->initial, seq, head);
    for (int64_t i = 0; i < len; i++) {
        float *s = chunks + i / CHUNK * size;
        const int64_t t = begin + i;
        const float step = step_of(a, t, head, &derivative);
        if (i % CHUNK == 0)
            memcpy(s + size, s, (size_t)size * sizeof *s);
        row_of(x, &a->x, t, head * a->dim, a->dim);
        row_of(b, &a->b, t, group * n, n);
        advance(s + size, a, expf(rate * step), step, x, b);
    }
    for (int64_t last = len - 1; last >= 0; last = last / CHUNK * CHUNK - 1) {
        const int64_t first = last / CHUNK * CHUNK;
        memcpy(inner, chunks + first / CHUNK * size, (size_t)size * sizeof *inner);
        for (int64_t i = first; i <= last; i++) {
            float *s = inner + (i - first) * size;
            const float step = step_of(a, begin + i, head, &derivative);
            memcpy(s + size, s, (size_t)size * sizeof *s);
            row_of(x, &a->x, begin + i, head * a->dim, a->dim);
            row_of(b, &a->b, begin + i, group * n, n);
            advance(s + size, a, expf(rate * step), step, x, b);
        }
        for (int64_t i = last; i >= first; i--) {
            const int64_t t = begin + i;
            const float *s0 = inner + (i - first) * size, *s1 = s0 + size;
            const float step = step_of(a, t, head, &derivative), decay = expf(rate * step);
            float *db = sums->db + t * width + group * n, *dc = sums->dc + t * width + group * n;
            float kept = 0, xu = 0;
            row_of(x, &a->x, t, head * a->dim, a->dim);
            row_of(b, &a->b, t, group * n, n);
            row_of(c, &a->c, t, group * n, n);
            memset(dy, 0, (size_t)a->dim * sizeof *dy);
            if (args->dy.data)
                row_of(dy, &args->dy, t, head * a->dim, a->dim);
            for (int64_t p = 0; p < a->dim; p++) {
                float *restrict rp = r + p * n, u = 0;
                for (int64_t j = 0; j < n; j++) {
                    rp[j] += dy[p] * c[j];
                    dc[j] += s1[p * n + j] * dy[p];
                    db[j] += step * rp[j] * x[p];
                    u += rp[j] * b[j];
                    kept += rp[j] * s0[p * n + j];
                    rp[j] *= decay;
                }
                dx[p] = step * u + skip * dy[p];
                xu += x[p] * u;
                dskip += dy[p] * x[p];
            }
            const float ddt = (rate * decay * kept + xu) * derivative;
            da += step * decay * kept;
            ddt_bias += ddt;
            if (args->dx.data)
                cpu_narrow(&args->dx, t, head * a->dim, 1, a->dim, dx, a->dim, args->accumulate_dx);
            if (args->ddt.data)
                cpu_narrow(&args->ddt, t, head, 1, 1, &ddt, 1, args->accumulate_ddt);
        }
    }
    if (args->dinitial)
        for (int64_t i = 0; i < size; i++) {
            float *to = args->dinitial + (seq * a->n_heads + head) * size + i;
            *to = (args->accumulate_dinitial ? *to : 0) + r[i];
        }
    float *parts = sums->heads + 3 * (seq * a->n_heads + head);
    parts[0] = rate * da;
    parts[1] = ddt_bias;
    parts[2] = dskip;
}

void cpu_ssd_backward(struct s2s_queue *queue, const struct s2s_k_ssd_backward *args)
{
    const struct s2s_k_ssd *a = &args->forward;
    const int64_t per = a->n_groups ? a->n_heads / a->n_groups : 0, each = backward_floats(a);
    const int64_t width = a->n_groups * a->state;
    float *rooms = args->workspace;
    struct sums sums = {.db = rooms + queue->lanes * each};
    sums.dc = sums.db + a->n * width;
    sums.heads = sums.dc + a->n * width;
    memset(sums.db, 0, (size_t)(2 * a->n * width) * sizeof *sums.db);
    if (!args->accumulate_dx)
        zero_others(a, &args->dx, a->n_heads * a->dim);
    if (!args->accumulate_ddt)
        zero_others(a, &args->ddt, a->n_heads);
#pragma omp parallel for collapse(2) num_threads(queue->lanes) schedule(dynamic, 1)
    for (int64_t seq = 0; seq < a->n_seqs; seq++)
        for (int64_t g = 0; g < a->n_groups; g++)
            for (int64_t head = g * per; head < (g + 1) * per; head++)
                backward_head(args, seq, head, rooms + omp_get_thread_num() * each, &sums);
    if (args->db.data)
        cpu_narrow(&args->db, 0, 0, a->n, width, sums.db, width, args->accumulate_db);
    if (args->dc.data)
        cpu_narrow(&args->dc, 0, 0, a->n, width, sums.dc, width, args->accumulate_dc);
    for (int64_t seq = 0; seq < a->n_seqs; seq++)
        for (int64_t head = 0; head < a->n_heads; head++) {
            const float *parts = sums.heads + 3 * (seq * a->n_heads + head);
            if (args->da_log)
                args->da_log[head] += parts[0];
            if (args->ddt_bias)
                args->ddt_bias[head] += parts[1];
            if (args->dskip)
                args->dskip[head] += parts[2];
        }
}
