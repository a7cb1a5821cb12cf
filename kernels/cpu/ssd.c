/*
 * The scan of Mamba2, a chunk of rows at a time (ssd.h), or row by row where sequences are as short
 * as those of generation. The states of a part's heads stay in the second-level cache, transposed
 * to [state, dim]: so no product has a transposed right side.
 */
#include <omp.h>

#include "kernels/cpu/ssd.h"

/* Sequences up to this go row by row. */
enum { SHORT = 4 };

/* A thread's: c and b of a chunk, their products, the mixing matrix, x and y, states of heads. */
struct room {
    float *c, *b, *products, *mix, *x, *y, *states;
};

static int64_t room_floats(const struct s2s_k_ssd *a)
{
    return 2 * SSD_CHUNK * (a->state + SSD_CHUNK + a->dim) + ssd_heads(a) * ssd_state(a);
}

static struct room room_at(const struct s2s_k_ssd *a, float *at)
{
    struct room room = {.c = at};
    room.b = room.c + SSD_CHUNK * a->state;
    room.products = room.b + SSD_CHUNK * a->state;
    room.mix = room.products + SSD_CHUNK * SSD_CHUNK;
    room.x = room.mix + SSD_CHUNK * SSD_CHUNK;
    room.y = room.x + SSD_CHUNK * a->dim;
    room.states = room.y + SSD_CHUNK * a->dim;
    return room;
}

size_t cpu_ssd_workspace(const struct s2s_queue *queue, const struct s2s_k_ssd *args)
{
    return args->n_groups > 0 ? (size_t)(queue->lanes * room_floats(args)) * sizeof(float) : 0;
}

/* ---- row by row ---- */

/* S = decay S + step x b^T, y = S c + skip x, S [dim, state] */
static void step_row(const struct s2s_k_ssd *a, const struct ssd_times *w, int64_t t, int64_t head,
                     float *s, const struct room *room)
{
    const float decay = cpu_exp(w->step[0] * w->rate), skip = a->skip ? a->skip[head] : 0;
    const float *restrict b = room->b, *restrict c = room->c;
    ssd_rows(room->x, &a->x, t, 1, head * a->dim, a->dim);
    for (int64_t p = 0; p < a->dim; p++) {
        float *restrict row = s + p * a->state, sum = 0;
        const float v = w->step[0] * room->x[p];
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < a->state; i++) {
            row[i] = decay * row[i] + v * b[i];
            sum += row[i] * c[i];
        }
        room->y[p] = sum + skip * room->x[p];
    }
    cpu_narrow(&a->y, t, head * a->dim, 1, a->dim, room->y, a->dim, false);
}

static void short_part(const struct s2s_k_ssd *a, const struct ssd_part *part,
                       const struct room *room)
{
    const size_t bytes = (size_t)ssd_state(a) * sizeof(float);
    struct ssd_times w;
    for (int64_t h = 0; h < part->n_heads; h++) {
        const int64_t head = part->head + h, at = ssd_state_at(a, part->seq, head);
        float *s = a->final ? a->final + at : room->states;
        if (!a->initial)
            memset(s, 0, bytes);
        else if (s != a->initial + at)
            memcpy(s, a->initial + at, bytes);
        for (int64_t t = part->begin; t < part->begin + part->len; t++) {
            ssd_times(&w, a, head, t, 1);
            ssd_rows(room->b, &a->b, t, 1, part->group * a->state, a->state);
            ssd_rows(room->c, &a->c, t, 1, part->group * a->state, a->state);
            step_row(a, &w, t, head, s, room);
        }
    }
}

/* ---- by chunks ---- */

/* mix[t, u] = exp(s_t - s_u) (c_t . b_u) step_u for u <= t, else 0 */
static void make_mix(float *mix, const float *products, const struct ssd_times *w, int64_t n)
{
    for (int64_t t = 0; t < n; t++) {
        const float high = w->high[t], low = w->low[t];
        const float *restrict from = products + t * SSD_CHUNK;
        float *restrict to = mix + t * SSD_CHUNK;
        const int64_t end = (t | 15) + 1;
#pragma omp simd
        for (int64_t u = 0; u < end; u++) {
            const float e = cpu_exp((high - w->high[u]) + (low - w->low[u]));
            to[u] = u <= t ? e * from[u] * w->step[u] : 0;
        }
        memset(to + end, 0, (size_t)(SSD_CHUNK - end) * sizeof *to);
    }
}

/* first: the state is zeros; last: nobody wants what it becomes */
static void head_chunk(const struct s2s_k_ssd *a, int64_t head, int64_t row, int64_t n, bool first,
                       bool last, float *state, const struct room *room)
{
    const int64_t dim = a->dim;
    const float skip = a->skip ? a->skip[head] : 0;
    struct ssd_times w;
    ssd_times(&w, a, head, row, n);
    ssd_rows(room->x, &a->x, row, n, head * dim, dim);
    make_mix(room->mix, room->products, &w, n);
    if (!first)
        cpu_sgemm(false, false, n, dim, a->state, 1, room->c, a->state, state, dim, 0, room->y,
                  dim);
    for (int64_t t = 0; t < n; t++) {
        float *restrict y = room->y + t * dim;
        const float *restrict x = room->x + t * dim;
#pragma omp simd
        for (int64_t p = 0; p < dim; p++)
            y[p] = (first ? 0 : w.rise[t] * y[p]) + skip * x[p];
    }
    cpu_sgemm(false, false, n, dim, n, 1, room->mix, SSD_CHUNK, room->x, dim, 1, room->y, dim);
    cpu_narrow(&a->y, row, head * dim, n, dim, room->y, dim, false);
    if (last)
        return;
    ssd_scale(room->x, room->x, w.left, w.step, n, dim);
    cpu_sgemm(true, false, a->state, dim, n, 1, room->b, a->state, room->x, dim,
              first ? 0 : w.decay, state, dim);
}

/* to [cols, rows] = the transpose of from [rows, cols] */
static void transpose(float *to, const float *from, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            to[c * rows + r] = from[r * cols + c];
}

static void long_part(const struct s2s_k_ssd *a, const struct ssd_part *part,
                      const struct room *room)
{
    const int64_t state = a->state, at = part->group * state, size = ssd_state(a);
    for (int64_t h = 0; a->initial && h < part->n_heads; h++)
        transpose(room->states + h * size, a->initial + ssd_state_at(a, part->seq, part->head + h),
                  a->dim, state);
    for (int64_t i = 0; i < part->len; i += SSD_CHUNK) {
        const int64_t row = part->begin + i, left = part->len - i;
        const int64_t n = left < SSD_CHUNK ? left : SSD_CHUNK;
        ssd_rows(room->b, &a->b, row, n, at, state);
        ssd_rows(room->c, &a->c, row, n, at, state);
        cpu_sgemm(false, true, n, n, state, 1, room->c, state, room->b, state, 0, room->products,
                  SSD_CHUNK);
        for (int64_t h = 0; h < part->n_heads; h++)
            head_chunk(a, part->head + h, row, n, i == 0 && !a->initial, n == left && !a->final,
                       room->states + h * size, room);
    }
    for (int64_t h = 0; a->final && h < part->n_heads; h++)
        transpose(a->final + ssd_state_at(a, part->seq, part->head + h), room->states + h * size,
                  state, a->dim);
}

void cpu_ssd(struct s2s_queue *queue, const struct s2s_k_ssd *args)
{
    const int64_t n_parts = ssd_n_parts(args), each = n_parts ? room_floats(args) : 0;
    ssd_zero_others(args, &args->y, args->n_heads * args->dim);
#pragma omp parallel num_threads(queue->lanes) if (args->n * ssd_state(args) > CPU_PARALLEL_MIN)
    {
        const struct room room =
            room_at(args, (float *)args->workspace + omp_get_thread_num() * each);
        omp_set_num_threads(1); /* see gemm.c */
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n_parts; i++) {
            const struct ssd_part part = ssd_part(args, i);
            if (part.len <= SHORT)
                short_part(args, &part, &room);
            else
                long_part(args, &part, &room);
        }
    }
}
