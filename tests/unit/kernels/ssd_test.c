/* The scan of Mamba2 and its gradients, against its recurrence in double; that one's gradients
 * against differences; sequences that are cut in two; the same bytes from any number of threads. */
#include "tests/unit/kernels/kernel_test.h"

struct shape {
    int64_t lens[6], n_seqs, tail, heads, groups, dim, state;
};

/* tail: rows behind the last sequence. From LARGE on not all ways are tried: products are slow in
 * the emulator. */
enum { LARGE = 4 };
static const struct shape shapes[] = {{{0}, 0, 0, 2, 1, 3, 4},
                                      {{1}, 1, 0, 1, 1, 1, 1},
                                      {{0, 0}, 2, 3, 2, 2, 5, 3},
                                      {{3, 0, 5}, 3, 0, 2, 1, 8, 16},
                                      {{64, 63, 1, 66}, 4, 2, 2, 1, 16, 24},
                                      {{20, 0, 130, 2}, 4, 1, 4, 2, 7, 10},
                                      {{70}, 1, 0, 2, 1, 72, 128},
                                      {{65, 3, 66}, 3, 0, 2, 2, 33, 65}};

enum { X, DT, B, C, A_LOG, DT_BIAS, SKIP, INITIAL, N_INPUTS };

struct how {
    bool with_states, clamp, has_bias; /* has_bias: dt_bias and skip are there */
    bool has_dy, has_dfinal, accumulate;
};

struct array {
    int64_t rows, cols, stride;
    float *data, *grad;
    double *value, *dvalue; /* of the reference, without gaps */
};

struct data {
    struct shape s;
    struct how how;
    int64_t n, size; /* rows; a state's elements */
    int32_t *cu;
    struct array in[N_INPUTS];
    float *y, *final, *dy, *dfinal;
    int64_t stride; /* of y and dy */
    double *want_y, *want_final;
};

static float dt_min(const struct how *how)
{
    return how->clamp ? 0.7f : 0;
}

static double *doubles(int64_t n)
{
    return s2s_xcalloc((size_t)n + 1, sizeof(double));
}

static void add_input(struct data *d, int which, int64_t rows, int64_t cols, bool is_float)
{
    struct array *a = &d->in[which];
    const bool bf16 = is_bf16;
    is_bf16 = bf16 && !is_float;
    *a = (struct array){.rows = rows, .cols = cols, .stride = is_float ? cols : cols + 3};
    a->data = values(rows, cols, a->stride, 100 + (uint64_t)which);
    a->grad = values(rows, cols, a->stride, 200 + (uint64_t)which);
    a->value = doubles(rows * cols);
    a->dvalue = doubles(rows * cols);
    is_bf16 = bf16;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++) {
            a->value[r * cols + i] = a->data[r * a->stride + i];
            a->dvalue[r * cols + i] = d->how.accumulate || (is_float && which != INITIAL)
                                          ? a->grad[r * a->stride + i]
                                          : 0;
        }
}

/* Rows behind the last sequence are read by nobody. */
static void spoil_tail(float *x, int64_t begin, int64_t n, int64_t cols, int64_t stride)
{
    for (int64_t t = begin; t < n; t++)
        for (int64_t i = 0; i < cols; i++)
            x[t * stride + i] = NAN;
}

static void fill(struct data *d, const struct shape *s, struct how how)
{
    *d = (struct data){.s = *s, .how = how, .size = s->dim * s->state};
    d->cu = s2s_xcalloc((size_t)s->n_seqs + 1, sizeof *d->cu);
    for (int64_t i = 0; i < s->n_seqs; i++)
        d->cu[i + 1] = d->cu[i] + (int32_t)s->lens[i];
    d->n = d->cu[s->n_seqs] + s->tail;
    add_input(d, X, d->n, s->heads * s->dim, false);
    add_input(d, DT, d->n, s->heads, false);
    add_input(d, B, d->n, s->groups * s->state, false);
    add_input(d, C, d->n, s->groups * s->state, false);
    add_input(d, A_LOG, 1, s->heads, true);
    add_input(d, DT_BIAS, 1, s->heads, true);
    add_input(d, SKIP, 1, s->heads, true);
    add_input(d, INITIAL, s->n_seqs * s->heads, d->size, true);
    d->stride = s->heads * s->dim + 5;
    d->y = values(d->n, s->heads * s->dim, d->stride, 300);
    d->dy = values(d->n, s->heads * s->dim, d->stride, 301);
    const bool bf16 = is_bf16;
    is_bf16 = false;
    d->final = values(s->n_seqs * s->heads, d->size, d->size, 302);
    d->dfinal = values(s->n_seqs * s->heads, d->size, d->size, 303);
    is_bf16 = bf16;
    for (int i = X; i <= C; i++)
        spoil_tail(d->in[i].data, d->cu[s->n_seqs], d->n, d->in[i].cols, d->in[i].stride);
    spoil_tail(d->dy, d->cu[s->n_seqs], d->n, s->heads * s->dim, d->stride);
    d->want_y = doubles(d->n * s->heads * s->dim);
    d->want_final = doubles(s->n_seqs * s->heads * d->size);
}

static void release(struct data *d)
{
    for (int i = 0; i < N_INPUTS; i++) {
        free(d->in[i].data);
        free(d->in[i].grad);
        free(d->in[i].value);
        free(d->in[i].dvalue);
    }
    float *all[] = {d->y, d->final, d->dy, d->dfinal};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(d->cu);
    free(d->want_y);
    free(d->want_final);
}

/* ---- the recurrence in double ---- */

/* The step of a row and head, and its derivative by dt. */
static double step_of(const struct data *d, int64_t t, int64_t head, double *derivative)
{
    const double z =
        d->in[DT].value[t * d->s.heads + head] + (d->how.has_bias ? d->in[DT_BIAS].value[head] : 0);
    const double step = log1p(exp(z)), least = dt_min(&d->how);
    *derivative = step < least ? 0 : 1 / (1 + exp(-z));
    return step < least ? least : step;
}

/* Of a sequence and head: all states, [len + 1, dim, state], and y. Gives the states. */
static double *reference_forward(struct data *d, int64_t seq, int64_t head)
{
    const struct shape *s = &d->s;
    const int64_t n = s->state, group = head / (s->heads / s->groups), width = s->groups * n;
    const int64_t len = d->cu[seq + 1] - d->cu[seq], at = (seq * s->heads + head) * d->size;
    const double rate = -exp(d->in[A_LOG].value[head]);
    const double skip = d->how.has_bias ? d->in[SKIP].value[head] : 0;
    double *states = doubles((len + 1) * d->size), derivative;
    for (int64_t i = 0; d->how.with_states && i < d->size; i++)
        states[i] = d->in[INITIAL].value[at + i];
    for (int64_t i = 0; i < len; i++) {
        const int64_t t = d->cu[seq] + i;
        const double step = step_of(d, t, head, &derivative), decay = exp(rate * step);
        const double *before = states + i * d->size,
                     *x = d->in[X].value + (t * s->heads + head) * s->dim;
        const double *b = d->in[B].value + t * width + group * n;
        const double *c = d->in[C].value + t * width + group * n;
        double *after = states + (i + 1) * d->size;
        for (int64_t p = 0; p < s->dim; p++) {
            double y = skip * x[p];
            for (int64_t j = 0; j < n; j++) {
                after[p * n + j] = decay * before[p * n + j] + step * x[p] * b[j];
                y += after[p * n + j] * c[j];
            }
            d->want_y[(t * s->heads + head) * s->dim + p] = y;
        }
    }
    memcpy(d->want_final + at, states + len * d->size, (size_t)d->size * sizeof *states);
    return states;
}

static void reference_backward(struct data *d, int64_t seq, int64_t head, const double *states)
{
    const struct shape *s = &d->s;
    const int64_t n = s->state, group = head / (s->heads / s->groups), width = s->groups * n;
    const int64_t len = d->cu[seq + 1] - d->cu[seq], at = (seq * s->heads + head) * d->size;
    const double rate = -exp(d->in[A_LOG].value[head]);
    const double skip = d->how.has_bias ? d->in[SKIP].value[head] : 0;
    double *r = doubles(d->size);
    for (int64_t i = 0; d->how.has_dfinal && i < d->size; i++)
        r[i] = d->dfinal[at + i];
    for (int64_t i = len - 1; i >= 0; i--) {
        const int64_t t = d->cu[seq] + i, x_at = (t * s->heads + head) * s->dim;
        double derivative, step = step_of(d, t, head, &derivative), decay = exp(rate * step);
        const double *before = states + i * d->size, *after = before + d->size;
        const double *x = d->in[X].value + x_at;
        double *db = d->in[B].dvalue + t * width + group * n, kept = 0, xu = 0;
        double *dc = d->in[C].dvalue + t * width + group * n;
        const double *b = d->in[B].value + t * width + group * n;
        const double *c = d->in[C].value + t * width + group * n;
        for (int64_t p = 0; p < s->dim; p++) {
            const double dy = d->how.has_dy ? d->dy[t * d->stride + head * s->dim + p] : 0;
            double u = 0;
            for (int64_t j = 0; j < n; j++) {
                double *rp = r + p * n + j;
                *rp += dy * c[j];
                dc[j] += after[p * n + j] * dy;
                db[j] += step * *rp * x[p];
                u += *rp * b[j];
                kept += *rp * before[p * n + j];
                *rp *= decay;
            }
            d->in[X].dvalue[x_at + p] += step * u + skip * dy;
            d->in[SKIP].dvalue[head] += dy * x[p];
            xu += x[p] * u;
        }
        const double ddt = (rate * decay * kept + xu) * derivative;
        d->in[DT].dvalue[t * s->heads + head] += ddt;
        d->in[DT_BIAS].dvalue[head] += ddt;
        d->in[A_LOG].dvalue[head] += rate * step * decay * kept;
    }
    for (int64_t i = 0; i < d->size; i++)
        d->in[INITIAL].dvalue[at + i] += r[i];
    free(r);
}

static void reference(struct data *d, bool backward)
{
    for (int64_t seq = 0; seq < d->s.n_seqs; seq++)
        for (int64_t head = 0; head < d->s.heads; head++) {
            double *states = reference_forward(d, seq, head);
            if (backward)
                reference_backward(d, seq, head, states);
            free(states);
        }
}

/* ---- the kernels ---- */

static struct s2s_k_ssd arguments(struct data *d)
{
    int64_t max_seqlen = 0;
    for (int64_t i = 0; i < d->s.n_seqs; i++)
        max_seqlen = d->s.lens[i] > max_seqlen ? d->s.lens[i] : max_seqlen;
    struct s2s_k_ssd args = {.x = mat(d->in[X].data, d->in[X].stride),
                             .y = mat(d->y, d->stride),
                             .dt = mat(d->in[DT].data, d->in[DT].stride),
                             .b = mat(d->in[B].data, d->in[B].stride),
                             .c = mat(d->in[C].data, d->in[C].stride),
                             .a_log = vec(d->in[A_LOG].data),
                             .dt_bias = d->how.has_bias ? vec(d->in[DT_BIAS].data) : NULL,
                             .skip = d->how.has_bias ? vec(d->in[SKIP].data) : NULL,
                             .initial = d->how.with_states ? vec(d->in[INITIAL].data) : NULL,
                             .final = d->how.with_states ? vec(d->final) : NULL,
                             .cu = in(d->cu, ((size_t)d->s.n_seqs + 1) * sizeof *d->cu),
                             .n_seqs = d->s.n_seqs,
                             .n = d->n,
                             .n_heads = d->s.heads,
                             .n_groups = d->s.groups,
                             .dim = d->s.dim,
                             .state = d->s.state,
                             .max_seqlen = max_seqlen,
                             .dt_min = dt_min(&d->how)};
    args.workspace = work(k->ssd_workspace(&queue, &args));
    return args;
}

static struct s2s_k_ssd_backward backward_arguments(struct data *d)
{
    const struct s2s_mat none = {0};
    const bool add = d->how.accumulate;
    struct s2s_k_ssd_backward args = {.forward = arguments(d),
                                      .dy = d->how.has_dy ? mat(d->dy, d->stride) : none,
                                      .dx = mat(d->in[X].grad, d->in[X].stride),
                                      .ddt = mat(d->in[DT].grad, d->in[DT].stride),
                                      .db = mat(d->in[B].grad, d->in[B].stride),
                                      .dc = mat(d->in[C].grad, d->in[C].stride),
                                      .dfinal = d->how.has_dfinal ? vec(d->dfinal) : NULL,
                                      .dinitial = vec(d->in[INITIAL].grad),
                                      .da_log = vec(d->in[A_LOG].grad),
                                      .ddt_bias = vec(d->in[DT_BIAS].grad),
                                      .dskip = vec(d->in[SKIP].grad),
                                      .accumulate_dx = add,
                                      .accumulate_ddt = add,
                                      .accumulate_db = add,
                                      .accumulate_dc = add,
                                      .accumulate_dinitial = add};
    args.workspace = work(k->ssd_backward_workspace(&queue, &args));
    return args;
}

/* Of an array of a reference, whose sizes grow with the sequences; of bf16 as far as roundings of
 * factors go, each of 2^-9. */
static double room_of(const double *x, int64_t n, double tolerance)
{
    double most = 1;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    return most * (is_bf16 ? BF16_TOLERANCE : tolerance);
}

static void one(const struct shape *s, struct how how)
{
    static const char *const names[] = {"dx",     "ddt",      "db",    "dc",
                                        "da_log", "ddt_bias", "dskip", "dinitial"};
    struct data d;
    fill(&d, s, how);
    reference(&d, true);
    struct s2s_k_ssd args = arguments(&d);
    k->ssd(&queue, &args);
    done();
    const int64_t width = s->heads * s->dim;
    close_to("y", d.y, d.want_y, d.n, width, d.stride, room_of(d.want_y, d.n * width, 4e-6));
    if (how.with_states)
        close_to("final", d.final, d.want_final, s->n_seqs * s->heads, d.size, d.size,
                 room_of(d.want_final, s->n_seqs * s->heads * d.size, 4e-6));
    struct s2s_k_ssd_backward back = backward_arguments(&d);
    k->ssd_backward(&queue, &back);
    done();
    for (int i = 0; i < N_INPUTS; i++) {
        const struct array *a = &d.in[i];
        close_to(names[i], a->grad, a->dvalue, a->rows, a->cols, a->stride,
                 room_of(a->dvalue, a->rows * a->cols, 6e-6));
    }
    release(&d);
}

static void values_and_gradients_agree_with_the_recurrence(void **state)
{
    needs("ssd");
    needs("ssd_backward");
    static const struct how hows[] = {
        {false, false, true, true, false, false}, {true, false, true, true, true, true},
        {true, true, true, true, false, false},   {true, true, false, false, true, true},
        {false, false, false, true, false, true}, {true, false, true, false, false, false}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t h = i < LARGE ? 0 : 1; h < sizeof hows / sizeof *hows; h += i < LARGE ? 1 : 2)
            if (i < LARGE || !is_left_out(i + h / 2, 3))
                one(&shapes[i], hows[h]);
}

/* sum(y dy) + sum(final dfinal) */
static double loss_of(struct data *d)
{
    double sum = 0;
    reference(d, false);
    const int64_t width = d->s.heads * d->s.dim;
    for (int64_t t = 0; t < d->n; t++)
        for (int64_t i = 0; i < width; i++)
            sum += d->want_y[t * width + i] * d->dy[t * d->stride + i];
    for (int64_t i = 0; i < d->s.n_seqs * d->s.heads * d->size; i++)
        sum += d->want_final[i] * d->dfinal[i];
    return sum;
}

static void the_references_gradients_are_differences(void **state)
{
    const double h = 1e-5;
    struct data d;
    fill(&d, &shapes[3], (struct how){true, true, true, true, true, false});
    for (int i = A_LOG; i < INITIAL; i++)
        memset(d.in[i].dvalue, 0, (size_t)d.s.heads * sizeof(double));
    reference(&d, true);
    for (int i = 0; i < N_INPUTS; i++)
        for (int64_t e = 0; e < d.in[i].rows * d.in[i].cols; e += 3) {
            double *v = &d.in[i].value[e], was = *v;
            *v = was + h;
            const double up = loss_of(&d);
            *v = was - h;
            const double down = loss_of(&d);
            *v = was;
            const double want = d.in[i].dvalue[e], got = (up - down) / (2 * h);
            if (!(fabs(got - want) <= 1e-6 * (1 + fabs(want))))
                fail_msg("input %d, element %d: %g is not %g", i, (int)e, want, got);
        }
    release(&d);
}

/* One sequence in a call, and in two, or token by token, each of which has the final state of the
 * one before, in its own place. */
static void a_sequence_goes_on_where_its_state_ends(void **state)
{
    needs("ssd");
    enum { N = 150 };
    const struct shape s = {{N}, 1, 0, 4, 2, 8, 12};
    const struct how how = {true, false, true, true, false, false};
    for (int64_t each = 1; each < N; each += each < 3 ? 1 : 44) {
        struct data d;
        fill(&d, &s, how);
        reference(&d, false);
        for (int64_t at = 0; at < N; at += each) {
            const int64_t end = at + each < N ? at + each : N;
            d.cu[0] = 0;
            d.cu[1] = (int32_t)(end - at);
            struct s2s_k_ssd args = arguments(&d);
            struct s2s_mat *mats[] = {&args.x, &args.y, &args.dt, &args.b, &args.c};
            for (size_t i = 0; i < sizeof mats / sizeof *mats; i++)
                mats[i]->data = (char *)mats[i]->data +
                                at * mats[i]->stride * (int64_t)s2s_dtype_size(mats[i]->dtype);
            args.n = args.max_seqlen = end - at;
            args.final = (float *)args.initial;
            k->ssd(&queue, &args);
            done();
        }
        close_to("y", d.y, d.want_y, N, 32, d.stride, room_of(d.want_y, N * 32, 4e-6));
        close_to("state", d.in[INITIAL].data, d.want_final, 4, d.size, d.size,
                 room_of(d.want_final, 4 * d.size, 4e-6));
        release(&d);
    }
}

static void any_number_of_threads_gives_the_same_bytes(void **state)
{
    needs("ssd");
    needs("ssd_backward");
    const struct how how = {true, true, true, true, true, false};
    const int lanes = queue.lanes;
    for (size_t i = LARGE; i < 6; i++) {
        struct data d[2];
        if (is_left_out(i - LARGE + 1, 3)) /* where there are none but those of blocks */
            continue;
        for (int j = 0; j < 2; j++) {
            fill(&d[j], &shapes[i], how);
            queue.lanes = j + 1;
            struct s2s_k_ssd args = arguments(&d[j]);
            k->ssd(&queue, &args);
            done();
            struct s2s_k_ssd_backward back = backward_arguments(&d[j]);
            k->ssd_backward(&queue, &back);
            done();
        }
        queue.lanes = lanes;
        assert_memory_equal(d[0].y, d[1].y, (size_t)(d[0].n * d[0].stride) * sizeof(float));
        for (int a = 0; a < N_INPUTS; a++)
            assert_memory_equal(d[0].in[a].grad, d[1].in[a].grad,
                                (size_t)(d[0].in[a].rows * d[0].in[a].stride) * sizeof(float));
        release(&d[0]);
        release(&d[1]);
    }
}

/* Steps so long that nothing is left of a state, of rows that bring nothing, and behind them usual
 * ones: what these keep of each other does not suffer from the sums before them. */
static void long_steps_do_not_blur_those_behind_them(void **state)
{
    needs("ssd");
    needs("ssd_backward");
    struct data d;
    fill(&d, &shapes[4], (struct how){true, false, true, true, true, false});
    for (int64_t t = 0; t < d.n; t++) {
        const bool is_long = t % 9 < 2, is_none = t % 9 == 2;
        float *x = d.in[X].data + t * d.in[X].stride, *dt = d.in[DT].data + t * d.in[DT].stride;
        for (int64_t i = 0; is_long && i < d.in[X].cols; i++)
            x[i] = 0, d.in[X].value[t * d.in[X].cols + i] = 0;
        for (int64_t h = 0; h < d.s.heads; h++) {
            dt[h] = is_long ? 512 : is_none ? -90 : dt[h];
            d.in[DT].value[t * d.s.heads + h] = dt[h];
        }
    }
    reference(&d, true);
    struct s2s_k_ssd args = arguments(&d);
    k->ssd(&queue, &args);
    done();
    const int64_t width = d.s.heads * d.s.dim;
    close_to("y", d.y, d.want_y, d.n, width, d.stride, room_of(d.want_y, d.n * width, 4e-6));
    struct s2s_k_ssd_backward back = backward_arguments(&d);
    k->ssd_backward(&queue, &back);
    done();
    for (int i = 0; i < N_INPUTS; i++) {
        const struct array *a = &d.in[i];
        close_to("a gradient", a->grad, a->dvalue, a->rows, a->cols, a->stride,
                 room_of(a->dvalue, a->rows * a->cols, 6e-6));
    }
    release(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_gradients_agree_with_the_recurrence),
        cmocka_unit_test(the_references_gradients_are_differences),
        cmocka_unit_test(a_sequence_goes_on_where_its_state_ends),
        cmocka_unit_test(long_steps_do_not_blur_those_behind_them),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bytes)};
    return run_on_tables_and_types(tests);
}
