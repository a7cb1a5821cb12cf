/*
 * Gradients of the scan, the chunks of a sequence from the last to the first (ssd.h). With L_tu =
 * exp(s_t - s_u) for u <= t, R the gradient of the state behind the chunk and S the one before it,
 * G = C B^T, W = dY X^T, l_u = exp(s_last - s_u):
 *   dC = sum over the heads (L W step) B + exp(s) (dY S),  dB = (..)^T C + l (V R)
 *   dV = (L G)^T dY + l (B R^T),  dX = step dV + skip dY
 *   Z = L G W step,  e_u = l_u step_u x_u . (R b_u),  i_t = exp(s_t) (dY S)_t . c_t
 *   f_t = sum_{v >= t > u} Z_vu + sum_{u < t} e_u + sum_{u >= t} i_u + exp(s_last) <R, S>
 *   dstep_t = A f_t + x_t . dV_t,  dA = sum_t step_t f_t
 *   R of the chunk before = exp(s_last) R + (exp(s) dY)^T C
 *
 * f_t is what depends on the decay of row t: summed as it stands, nothing cancels that need not.
 * The states between chunks are computed again: they would be as much memory for every layer as x
 * and y together, and cost a tenth of the gradients' time.
 */
#include <omp.h>

#include "kernels/cpu/ssd.h"

/* A thread's. All but the last two are of a chunk: of the heads together c .. dc, else of a head.
 */
struct room {
    float *b, *c, *products, *weights, *db, *dc;
    float *w, *mix, *x, *dy, *scaled, *dv, *u, *ds;
    float *r, *states; /* of the heads: gradients; states before each chunk */
};

static int64_t max_chunks(const struct s2s_k_ssd *a)
{
    return cpu_ceil_div(a->max_seqlen, SSD_CHUNK);
}

static int64_t room_floats(const struct s2s_k_ssd *a)
{
    return SSD_CHUNK * (5 * a->state + 4 * SSD_CHUNK + 5 * a->dim) +
           ssd_heads(a) * (1 + max_chunks(a)) * ssd_state(a);
}

static struct room room_at(const struct s2s_k_ssd *a, float *at)
{
    struct room room;
    float **const wide[] = {&room.b, &room.c, &room.db, &room.dc, &room.ds};
    float **const square[] = {&room.products, &room.weights, &room.w, &room.mix};
    float **const narrow[] = {&room.x, &room.dy, &room.scaled, &room.dv, &room.u};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++, at += SSD_CHUNK * a->state)
        *wide[i] = at;
    for (size_t i = 0; i < sizeof square / sizeof *square; i++, at += SSD_CHUNK * SSD_CHUNK)
        *square[i] = at;
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++, at += SSD_CHUNK * a->dim)
        *narrow[i] = at;
    room.r = at;
    room.states = at + ssd_heads(a) * ssd_state(a);
    return room;
}

/* Sums of the parts: db, dc [blocks, n, n_groups * state], and da_log, ddt_bias, dskip
 * [n_seqs, n_heads]. */
struct sums {
    float *db, *dc, *heads;
};

static int64_t sum_floats(const struct s2s_k_ssd *a)
{
    return ssd_blocks(a) * a->n * a->n_groups * a->state;
}

size_t cpu_ssd_backward_workspace(const struct s2s_queue *queue,
                                  const struct s2s_k_ssd_backward *args)
{
    const struct s2s_k_ssd *a = &args->forward;
    if (a->n_groups == 0)
        return 0;
    return (size_t)(queue->lanes * room_floats(a) + 2 * sum_floats(a) +
                    3 * a->n_seqs * a->n_heads) *
           sizeof(float);
}

/* ---- states ---- */

static float *state_of(const struct s2s_k_ssd *a, const struct room *room, int64_t h, int64_t chunk)
{
    return room->states + (h * max_chunks(a) + chunk) * ssd_state(a);
}

static void start(float *s, const struct s2s_k_ssd *a, const float *from, int64_t seq, int64_t head)
{
    const size_t bytes = (size_t)ssd_state(a) * sizeof *s;
    if (from)
        memcpy(s, from + ssd_state_at(a, seq, head), bytes);
    else
        memset(s, 0, bytes);
}

/* The states before each chunk. */
static void make_states(const struct s2s_k_ssd *a, const struct ssd_part *part,
                        const struct room *room)
{
    const int64_t size = ssd_state(a);
    struct ssd_times w;
    for (int64_t h = 0; h < part->n_heads; h++)
        start(state_of(a, room, h, 0), a, a->initial, part->seq, part->head + h);
    for (int64_t i = 0; i + SSD_CHUNK < part->len; i += SSD_CHUNK) {
        const int64_t row = part->begin + i;
        ssd_rows(room->b, &a->b, row, SSD_CHUNK, part->group * a->state, a->state);
        for (int64_t h = 0; h < part->n_heads; h++) {
            const int64_t head = part->head + h;
            const float *s = state_of(a, room, h, i / SSD_CHUNK);
            float *next = state_of(a, room, h, i / SSD_CHUNK + 1);
            ssd_times(&w, a, head, row, SSD_CHUNK);
            ssd_rows(room->x, &a->x, row, SSD_CHUNK, head * a->dim, a->dim);
            ssd_scale(room->x, room->x, w.left, w.step, SSD_CHUNK, a->dim);
            const bool zero = i == 0 && !a->initial;
            if (!zero)
                memcpy(next, s, (size_t)size * sizeof *next);
            cpu_sgemm(true, false, a->dim, a->state, SSD_CHUNK, 1, room->x, a->dim, room->b,
                      a->state, zero ? 0 : w.decay, next, a->state);
        }
    }
}

/* ---- a chunk of a head ---- */

struct chunk {
    const struct s2s_k_ssd_backward *args;
    int64_t head, row, n;
    bool no_state;    /* S is 0 */
    bool no_gradient; /* R is 0 */
    bool is_first;    /* nobody wants the R before it but dinitial */
    const float *s;
    float *r;
};

static double dot(const float *restrict x, const float *restrict y, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* What depends on the decays of the rows: f_t = pairs_t + sum_{u < t} behind_u + sum_{u >= t}
 * before_u + all. */
struct flow {
    float pairs[SSD_CHUNK], behind[SSD_CHUNK], before[SSD_CHUNK];
    double all;
};

/* mix = L G; weights += L W step; pairs. The rows go upwards: columns [u] is sum_{v >= t} Z_vu. */
static void pair_gradients(const struct ssd_times *w, const struct room *room, int64_t n,
                           struct flow *flow)
{
    float columns[SSD_CHUNK] = {0};
    for (int64_t t = n - 1; t >= 0; t--) {
        const float high = w->high[t], low = w->low[t];
        const float *restrict g = room->products + t * SSD_CHUNK;
        const float *restrict of_t = room->w + t * SSD_CHUNK;
        float *restrict mix = room->mix + t * SSD_CHUNK;
        float *restrict weights = room->weights + t * SSD_CHUNK, sum = 0;
        const int64_t end = (t | 15) + 1;
#pragma omp simd reduction(+ : sum)
        for (int64_t u = 0; u < end; u++) {
            const float e = cpu_exp((high - w->high[u]) + (low - w->low[u]));
            const float lg = u <= t ? e * g[u] : 0, lw = u <= t ? e * of_t[u] * w->step[u] : 0;
            mix[u] = lg;
            weights[u] += lw;
            columns[u] = u < t ? columns[u] + lw * g[u] : 0;
            sum += columns[u];
        }
        memset(mix + end, 0, (size_t)(SSD_CHUNK - end) * sizeof *mix);
        flow->pairs[t] = sum;
    }
}

/* What goes through the state before the chunk: dC; R becomes that of the chunk before. */
static void before_chunk(const struct chunk *k, const struct ssd_times *w, const struct room *room,
                         struct flow *flow)
{
    const struct s2s_k_ssd *a = &k->args->forward;
    const int64_t n = k->n, dim = a->dim, state = a->state;
    ssd_scale(room->scaled, room->dy, w->rise, NULL, n, dim);
    if (!k->no_state) {
        cpu_sgemm(false, false, n, state, dim, 1, room->scaled, dim, k->s, state, 0, room->ds,
                  state);
        for (int64_t t = 0; t < n; t++) {
            float *restrict dc = room->dc + t * state, sum = 0;
            const float *restrict from = room->ds + t * state, *restrict c = room->c + t * state;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < state; i++) {
                dc[i] += from[i];
                sum += from[i] * c[i];
            }
            flow->before[t] = sum;
        }
    }
    if (!k->is_first || k->args->dinitial)
        cpu_sgemm(true, false, dim, state, n, 1, room->scaled, dim, room->c, state,
                  k->no_gradient ? 0 : w->decay, k->r, state);
}

/* What goes through the state behind the chunk: dB, and dV += l (B R^T). */
static void behind_chunk(const struct chunk *k, const struct ssd_times *w, const struct room *room,
                         struct flow *flow)
{
    const struct s2s_k_ssd *a = &k->args->forward;
    const int64_t n = k->n, dim = a->dim, state = a->state;
    if (k->no_gradient)
        return;
    flow->all = k->no_state ? 0 : w->decay * dot(k->r, k->s, ssd_state(a));
    ssd_scale(room->scaled, room->x, w->left, w->step, n, dim);
    cpu_sgemm(false, false, n, state, dim, 1, room->scaled, dim, k->r, state, 1, room->db, state);
    cpu_sgemm(false, true, n, dim, state, 1, room->b, state, k->r, state, 0, room->u, dim);
    for (int64_t t = 0; t < n; t++) {
        float *restrict dv = room->dv + t * dim, e = 0;
        const float *restrict u = room->u + t * dim, *restrict x = room->x + t * dim;
#pragma omp simd reduction(+ : e)
        for (int64_t p = 0; p < dim; p++) {
            dv[p] += w->left[t] * u[p];
            e += x[p] * u[p];
        }
        flow->behind[t] = e * w->left[t] * w->step[t];
    }
}

/* dx and ddt of dV and the flow; adds to what the head's parameters get [3]. */
static void finish_chunk(const struct chunk *k, const struct ssd_times *w, const struct room *room,
                         const struct flow *flow, double *heads)
{
    const struct s2s_k_ssd *a = &k->args->forward;
    const int64_t dim = a->dim;
    const float skip = a->skip ? a->skip[k->head] : 0;
    double sum = flow->all;
    for (int64_t t = 0; t < k->n; t++)
        sum += flow->behind[t];
    for (int64_t t = k->n - 1; t >= 0; t--) {
        float *restrict dv = room->dv + t * dim, xv = 0, xy = 0;
        const float *restrict x = room->x + t * dim, *restrict dy = room->dy + t * dim;
#pragma omp simd reduction(+ : xv, xy)
        for (int64_t p = 0; p < dim; p++) {
            xv += x[p] * dv[p];
            xy += x[p] * dy[p];
            dv[p] = w->step[t] * dv[p] + skip * dy[p];
        }
        sum += flow->before[t];
        sum -= flow->behind[t];
        const double f = sum + flow->pairs[t];
        const float ddt = (float)(w->rate * f + xv) * w->slope[t];
        heads[0] += w->rate * w->step[t] * f;
        heads[1] += ddt;
        heads[2] += xy;
        if (k->args->ddt.data)
            cpu_narrow(&k->args->ddt, k->row + t, k->head, 1, 1, &ddt, 1, k->args->accumulate_ddt);
    }
    if (k->args->dx.data)
        cpu_narrow(&k->args->dx, k->row, k->head * dim, k->n, dim, room->dv, dim,
                   k->args->accumulate_dx);
}

static void head_chunk(const struct chunk *k, const struct room *room, double *heads)
{
    const struct s2s_k_ssd *a = &k->args->forward;
    const int64_t n = k->n, dim = a->dim;
    struct ssd_times w;
    struct flow flow = {.all = 0};
    ssd_times(&w, a, k->head, k->row, n);
    ssd_rows(room->x, &a->x, k->row, n, k->head * dim, dim);
    ssd_rows(room->dy, &k->args->dy, k->row, n, k->head * dim, dim);
    cpu_sgemm(false, true, n, n, dim, 1, room->dy, dim, room->x, dim, 0, room->w, SSD_CHUNK);
    pair_gradients(&w, room, n, &flow);
    cpu_sgemm(true, false, n, dim, n, 1, room->mix, SSD_CHUNK, room->dy, dim, 0, room->dv, dim);
    behind_chunk(k, &w, room, &flow);
    before_chunk(k, &w, room, &flow);
    finish_chunk(k, &w, room, &flow, heads);
}

/* ---- parts ---- */

/* The products of b and c of a chunk, and zeros where the heads add. */
static void start_chunk(const struct s2s_k_ssd *a, const struct ssd_part *part, int64_t row,
                        int64_t n, const struct room *room)
{
    const int64_t state = a->state, at = part->group * state;
    ssd_rows(room->b, &a->b, row, n, at, state);
    ssd_rows(room->c, &a->c, row, n, at, state);
    cpu_sgemm(false, true, n, n, state, 1, room->c, state, room->b, state, 0, room->products,
              SSD_CHUNK);
    memset(room->weights, 0, SSD_CHUNK * SSD_CHUNK * sizeof *room->weights);
    memset(room->db, 0, (size_t)(n * state) * sizeof *room->db);
    memset(room->dc, 0, (size_t)(n * state) * sizeof *room->dc);
}

/* The heads' part of dB and dC goes to the sums. */
static void end_chunk(const struct s2s_k_ssd *a, const struct ssd_part *part, int64_t row,
                      int64_t n, const struct room *room, const struct sums *sums)
{
    const int64_t state = a->state, width = a->n_groups * state;
    const int64_t at = (part->block * a->n + row) * width + part->group * state;
    cpu_sgemm(false, false, n, state, n, 1, room->weights, SSD_CHUNK, room->b, state, 1, room->dc,
              state);
    cpu_sgemm(true, false, n, state, n, 1, room->weights, SSD_CHUNK, room->c, state, 1, room->db,
              state);
    for (int64_t t = 0; t < n; t++) {
        memcpy(sums->db + at + t * width, room->db + t * state, (size_t)state * sizeof(float));
        memcpy(sums->dc + at + t * width, room->dc + t * state, (size_t)state * sizeof(float));
    }
}

static void end_heads(const struct s2s_k_ssd_backward *args, const struct ssd_part *part,
                      const struct room *room, double (*heads)[3], const struct sums *sums)
{
    const struct s2s_k_ssd *a = &args->forward;
    const int64_t size = ssd_state(a);
    for (int64_t h = 0; h < part->n_heads; h++) {
        const int64_t head = part->head + h;
        float *to = args->dinitial ? args->dinitial + ssd_state_at(a, part->seq, head) : NULL;
        const float *r = room->r + h * size;
        for (int64_t i = 0; to && i < size; i++)
            to[i] = (args->accumulate_dinitial ? to[i] : 0) + r[i];
        for (int i = 0; i < 3; i++)
            sums->heads[3 * (part->seq * a->n_heads + head) + i] = (float)heads[h][i];
    }
}

static void backward_part(const struct s2s_k_ssd_backward *args, const struct ssd_part *part,
                          const struct room *room, const struct sums *sums)
{
    const struct s2s_k_ssd *a = &args->forward;
    double heads[SSD_HEADS][3] = {{0}};
    if (part->len > 0)
        make_states(a, part, room);
    for (int64_t h = 0; h < part->n_heads; h++)
        start(room->r + h * ssd_state(a), a, args->dfinal, part->seq, part->head + h);
    const int64_t n_chunks = cpu_ceil_div(part->len, SSD_CHUNK);
    for (int64_t i = n_chunks - 1; i >= 0; i--) {
        const int64_t row = part->begin + i * SSD_CHUNK, left = part->len - i * SSD_CHUNK;
        const int64_t n = left < SSD_CHUNK ? left : SSD_CHUNK;
        start_chunk(a, part, row, n, room);
        for (int64_t h = 0; h < part->n_heads; h++) {
            const struct chunk k = {.args = args,
                                    .head = part->head + h,
                                    .row = row,
                                    .n = n,
                                    .no_state = i == 0 && !a->initial,
                                    .no_gradient = i == n_chunks - 1 && !args->dfinal,
                                    .is_first = i == 0,
                                    .s = state_of(a, room, h, i),
                                    .r = room->r + h * ssd_state(a)};
            head_chunk(&k, room, heads[h]);
        }
        end_chunk(a, part, row, n, room, sums);
    }
    end_heads(args, part, room, heads, sums);
}

/* ---- sums of the parts ---- */

/* Row t of db or dc (+)= that of the blocks, in order; their sum is made in the first one. */
static void add_blocks(const struct s2s_k_ssd *a, const struct s2s_mat *to, float *sum, int64_t t,
                       bool accumulate)
{
    const int64_t width = a->n_groups * a->state, blocks = ssd_blocks(a);
    float *restrict first = sum + t * width;
    if (!to->data || t < a->cu[0] || t >= a->cu[a->n_seqs]) {
        if (!accumulate)
            cpu_zero_part(to, t, 0, 1, width);
        return;
    }
    for (int64_t b = 1; b < blocks; b++) {
        const float *restrict other = sum + (b * a->n + t) * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            first[i] += other[i];
    }
    cpu_narrow(to, t, 0, 1, width, first, width, accumulate);
}

/* out[head] (+)= of the sequences, in order */
static void add_heads(const struct s2s_k_ssd *a, float *out, const float *of_seqs)
{
    for (int64_t head = 0; out && head < a->n_heads; head++)
        for (int64_t seq = 0; seq < a->n_seqs; seq++)
            out[head] += of_seqs[3 * (seq * a->n_heads + head)];
}

void cpu_ssd_backward(struct s2s_queue *queue, const struct s2s_k_ssd_backward *args)
{
    const struct s2s_k_ssd *a = &args->forward;
    if (a->n_groups == 0)
        return;
    const int64_t n_parts = ssd_n_parts(a), each = room_floats(a);
    struct sums sums = {.db = (float *)args->workspace + queue->lanes * each};
    sums.dc = sums.db + sum_floats(a);
    sums.heads = sums.dc + sum_floats(a);
    if (!args->accumulate_dx)
        ssd_zero_others(a, &args->dx, a->n_heads * a->dim);
    if (!args->accumulate_ddt)
        ssd_zero_others(a, &args->ddt, a->n_heads);
#pragma omp parallel num_threads(queue->lanes) if (a->n * ssd_state(a) > CPU_PARALLEL_MIN)
    {
        const struct room room = room_at(a, (float *)args->workspace + omp_get_thread_num() * each);
        omp_set_num_threads(1); /* see gemm.c */
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n_parts; i++) {
            const struct ssd_part part = ssd_part(a, i);
            backward_part(args, &part, &room, &sums);
        }
#pragma omp for schedule(static)
        for (int64_t t = 0; t < a->n; t++) {
            add_blocks(a, &args->db, sums.db, t, args->accumulate_db);
            add_blocks(a, &args->dc, sums.dc, t, args->accumulate_dc);
        }
    }
    add_heads(a, args->da_log, sums.heads);
    add_heads(a, args->ddt_bias, sums.heads + 1);
    add_heads(a, args->dskip, sums.heads + 2);
}
