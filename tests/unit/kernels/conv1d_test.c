/* The causal convolution of packed sequences and its gradients, against loops in double; sequences
 * that are cut in two give what they give as one. */
#include "tests/unit/kernels/kernel_test.h"

struct shape {
    int64_t lens[6], n_seqs, tail, channels, width;
};

/* tail: rows behind the last sequence */
static const struct shape shapes[] = {{{0}, 0, 0, 3, 4},
                                      {{1}, 1, 0, 1, 4},
                                      {{0, 0}, 2, 3, 5, 4},
                                      {{3, 0, 5, 1, 2}, 5, 0, 7, 4},
                                      {{63, 1, 2, 70}, 4, 2, 300, 4},
                                      {{20, 0, 130}, 3, 0, 33, 2},
                                      {{9, 4}, 2, 1, 20, 1},
                                      {{5, 100, 3}, 3, 0, 9, 5}};

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

struct data {
    struct shape s;
    int64_t n, ends, stride, before;
    int32_t *cu;
    bool with_states, silu;
    float *x, *w, *bias, *initial, *final, *y;
    float *dy, *dfinal, *dx, *dinitial, *dw, *dbias;
    double *pre; /* sums before silu, of the reference */
};

static void fill(struct data *d, const struct shape *s, bool with_states, bool silu)
{
    *d = (struct data){.s = *s, .before = s->width - 1, .with_states = with_states, .silu = silu};
    d->cu = s2s_xcalloc((size_t)s->n_seqs + 1, sizeof *d->cu);
    for (int64_t i = 0; i < s->n_seqs; i++)
        d->cu[i + 1] = d->cu[i] + (int32_t)s->lens[i];
    const int64_t c = s->channels;
    d->n = d->cu[s->n_seqs] + s->tail;
    d->ends = s->n_seqs * d->before;
    d->stride = c + 3;
    d->x = values(d->n, c, d->stride, 1);
    d->w = values(c, s->width, s->width, 2);
    d->bias = values(1, c, c, 3);
    d->initial = values(d->ends, c, c, 4);
    d->final = values(d->ends, c, d->stride, 5);
    d->y = values(d->n, c, c, 6);
    d->dy = values(d->n, c, d->stride, 7);
    d->dfinal = values(d->ends, c, c, 8);
    d->dx = values(d->n, c, d->stride, 9);
    for (int64_t i = d->cu[s->n_seqs] * d->stride; i < d->n * d->stride; i++)
        d->x[i] = d->dy[i] = NAN; /* nobody reads the tail */
    d->dinitial = values(d->ends, c, d->stride, 10);
    d->dw = values(c, s->width, s->width, 11);
    d->dbias = values(1, c, c, 12);
    d->pre = s2s_xcalloc((size_t)(d->n * c + 1), sizeof *d->pre);
}

static void release(struct data *d)
{
    float *all[] = {d->x,  d->w,      d->bias, d->initial,  d->final, d->y,
                    d->dy, d->dfinal, d->dx,   d->dinitial, d->dw,    d->dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(d->cu);
    free(d->pre);
}

static struct s2s_k_conv1d arguments(struct data *d)
{
    const struct s2s_mat none = {0};
    struct s2s_k_conv1d args = {.x = mat(d->x, d->stride),
                                .y = mat(d->y, d->s.channels),
                                .initial = d->with_states ? mat(d->initial, d->s.channels) : none,
                                .final = d->with_states ? mat(d->final, d->stride) : none,
                                .w = vec(d->w),
                                .bias = d->silu ? vec(d->bias) : NULL,
                                .cu = in(d->cu, ((size_t)d->s.n_seqs + 1) * sizeof *d->cu),
                                .n_seqs = d->s.n_seqs,
                                .n = d->n,
                                .channels = d->s.channels,
                                .width = d->s.width,
                                .silu = d->silu};
    args.workspace = work(k->conv1d_workspace(&queue, &args));
    return args;
}

/* Where input t of a sequence stands, t negative before its first: in x, in initial, or nowhere. */
static float *input(const struct data *d, float *x, int64_t x_stride, float *initial,
                    int64_t initial_stride, int64_t seq, int64_t t)
{
    if (t >= 0)
        return x + (d->cu[seq] + t) * x_stride;
    return d->with_states ? initial + (seq * d->before + d->before + t) * initial_stride : NULL;
}

static void forward_is_right(struct data *d)
{
    const int64_t c = d->s.channels, width = d->s.width;
    double *y = s2s_xcalloc((size_t)(d->n * c + 1), sizeof *y);
    double *final = s2s_xcalloc((size_t)(d->ends * c + 1), sizeof *final);
    for (int64_t s = 0; s < d->s.n_seqs; s++) {
        const int64_t len = d->cu[s + 1] - d->cu[s];
        for (int64_t t = 0; t < len; t++)
            for (int64_t i = 0; i < c; i++) {
                const int64_t at = (d->cu[s] + t) * c + i;
                double sum = d->silu ? d->bias[i] : 0;
                for (int64_t j = 0; j < width; j++) {
                    const float *x =
                        input(d, d->x, d->stride, d->initial, c, s, t - (width - 1) + j);
                    sum += x ? (double)d->w[i * width + j] * x[i] : 0;
                }
                d->pre[at] = sum;
                y[at] = d->silu ? sum * sigmoid(sum) : sum;
            }
        for (int64_t j = 0; j < d->before; j++) {
            const float *x = input(d, d->x, d->stride, d->initial, c, s, len - d->before + j);
            for (int64_t i = 0; i < c; i++)
                final[(s * d->before + j) * c + i] = x ? x[i] : 0;
        }
    }
    struct s2s_k_conv1d args = arguments(d);
    k->conv1d(&queue, &args);
    done();
    close_to("y", d->y, y, d->n, c, c, 2e-6);
    if (d->with_states)
        close_to("final", d->final, final, d->ends, c, d->stride, 0);
    free(y);
    free(final);
}

static double *copied(const float *from, int64_t rows, int64_t cols, int64_t stride, bool zero)
{
    double *to = s2s_xcalloc((size_t)(rows * cols + 1), sizeof *to);
    for (int64_t r = 0; !zero && r < rows; r++)
        for (int64_t i = 0; i < cols; i++)
            to[r * cols + i] = from[r * stride + i];
    return to;
}

/* which: bit 0 dy, bit 1 dfinal are there */
static void backward_is_right(struct data *d, int which, bool accumulate)
{
    const int64_t c = d->s.channels, width = d->s.width;
    const struct s2s_mat none = {0};
    const bool has_dy = which & 1, has_final = (which & 2) && d->with_states;
    double *dx = copied(d->dx, d->n, c, d->stride, !accumulate);
    double *dinitial = copied(d->dinitial, d->ends, c, d->stride, !accumulate);
    double *dw = copied(d->dw, c, width, width, false), *db = copied(d->dbias, 1, c, c, false);
    for (int64_t s = 0; s < d->s.n_seqs; s++) {
        const int64_t len = d->cu[s + 1] - d->cu[s];
        for (int64_t t = 0; t < len + d->before; t++)
            for (int64_t i = 0; i < c; i++) {
                const int64_t at = (d->cu[s] + t) * c + i;
                if (t >= len) { /* the last inputs go to final */
                    const int64_t j = t - len, of = len - d->before + j;
                    const double g = has_final ? d->dfinal[(s * d->before + j) * c + i] : 0;
                    if (of >= 0)
                        dx[(d->cu[s] + of) * c + i] += g;
                    else
                        dinitial[(s * d->before + d->before + of) * c + i] += g;
                    continue;
                }
                const double z = d->pre[at], sg = sigmoid(z);
                double ds = has_dy ? d->dy[(d->cu[s] + t) * d->stride + i] : 0;
                ds *= d->silu ? sg * (1 + z * (1 - sg)) : 1;
                db[i] += ds;
                for (int64_t j = 0; j < width; j++) {
                    const int64_t of = t - d->before + j;
                    const float *x = input(d, d->x, d->stride, d->initial, c, s, of);
                    dw[i * width + j] += x ? ds * x[i] : 0;
                    if (of >= 0)
                        dx[(d->cu[s] + of) * c + i] += ds * d->w[i * width + j];
                    else
                        dinitial[(s * d->before + d->before + of) * c + i] +=
                            ds * d->w[i * width + j];
                }
            }
    }
    struct s2s_k_conv1d_backward args = {.forward = arguments(d),
                                         .dy = has_dy ? mat(d->dy, d->stride) : none,
                                         .dfinal = has_final ? mat(d->dfinal, c) : none,
                                         .dx = mat(d->dx, d->stride),
                                         .dinitial =
                                             d->with_states ? mat(d->dinitial, d->stride) : none,
                                         .dw = vec(d->dw),
                                         .dbias = vec(d->dbias),
                                         .accumulate_dx = accumulate,
                                         .accumulate_dinitial = accumulate};
    args.workspace = work(k->conv1d_backward_workspace(&queue, &args));
    k->conv1d_backward(&queue, &args);
    done();
    close_to("dx", d->dx, dx, d->n, c, d->stride, 1e-5);
    if (d->with_states)
        close_to("dinitial", d->dinitial, dinitial, d->ends, c, d->stride, 1e-5);
    close_to("dw", d->dw, dw, c, width, width, 2e-5);
    close_to("dbias", d->dbias, db, 1, c, c, 2e-5);
    free(dx);
    free(dinitial);
    free(dw);
    free(db);
}

static void values_and_gradients_agree_with_the_formula(void **state)
{
    needs("conv1d");
    needs("conv1d_backward");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int how = 0; how < 32; how++) {
            struct data d;
            fill(&d, &shapes[i], how & 1, how & 2);
            forward_is_right(&d);
            backward_is_right(&d, how >> 2 & 3, how & 16);
            release(&d);
        }
}

/* One sequence in a call, and in two calls of which the second has the final rows of the first, in
 * their own place. */
static void a_sequence_goes_on_where_its_state_ends(void **state)
{
    needs("conv1d");
    enum { N = 70, C = 40 };
    for (int64_t cut = 0; cut <= N; cut += cut < 6 ? 1 : 16) {
        struct data whole, part;
        fill(&whole, &(struct shape){{N}, 1, 0, C, 4}, true, true);
        fill(&part, &(struct shape){{N}, 1, 0, C, 4}, true, true);
        part.cu[1] = (int32_t)cut;
        struct s2s_k_conv1d args = arguments(&whole);
        k->conv1d(&queue, &args);
        done();
        args = arguments(&part);
        args.n = cut;
        args.final = args.initial;
        k->conv1d(&queue, &args);
        done();
        part.cu[1] = N;
        part.cu[0] = (int32_t)cut;
        args = arguments(&part);
        args.n = N;
        args.final = args.initial;
        float *first = s2s_xmalloc((N * C + 1) * sizeof *first);
        memcpy(first, part.y, (size_t)(cut * C) * sizeof *first);
        k->conv1d(&queue, &args);
        done();
        memcpy(part.y, first, (size_t)(cut * C) * sizeof *first);
        assert_memory_equal(part.y, whole.y, N * C * sizeof *first);
        for (int64_t r = 0; r < whole.ends; r++)
            assert_memory_equal(part.initial + r * C, whole.final + r * whole.stride,
                                C * sizeof *first);
        free(first);
        release(&whole);
        release(&part);
    }
}

static void run_with(struct data *d, int lanes)
{
    const int before = queue.lanes;
    queue.lanes = lanes;
    struct s2s_k_conv1d args = arguments(d);
    k->conv1d(&queue, &args);
    done();
    struct s2s_k_conv1d_backward back = {.forward = arguments(d),
                                         .dy = mat(d->dy, d->stride),
                                         .dx = mat(d->dx, d->stride),
                                         .dw = vec(d->dw),
                                         .dbias = vec(d->dbias)};
    back.workspace = work(k->conv1d_backward_workspace(&queue, &back));
    k->conv1d_backward(&queue, &back);
    done();
    queue.lanes = before;
}

static void any_number_of_threads_gives_the_same_bytes(void **state)
{
    needs("conv1d");
    needs("conv1d_backward");
    struct data one, two;
    fill(&one, &shapes[4], true, true);
    fill(&two, &shapes[4], true, true);
    run_with(&one, 1);
    run_with(&two, 2);
    const size_t bytes = (size_t)one.s.channels * sizeof(float);
    assert_memory_equal(one.y, two.y, (size_t)one.n * bytes);
    assert_memory_equal(one.dw, two.dw, 4 * bytes);
    assert_memory_equal(one.dbias, two.dbias, bytes);
    assert_memory_equal(one.dx, two.dx, (size_t)(one.n * one.stride) * sizeof(float));
    release(&one);
    release(&two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_gradients_agree_with_the_formula),
        cmocka_unit_test(a_sequence_goes_on_where_its_state_ends),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bytes)};
    return run_on_tables_and_types(tests);
}
