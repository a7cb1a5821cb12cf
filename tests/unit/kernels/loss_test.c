/* Cross entropy and its gradient by parts of the vocabulary; squared distance. */
#include "tests/unit/kernels/kernel_test.h"

enum { MAX_PARTS = 4 };

/* Parts have cols[p] classes of their own, and pad columns behind them. */
struct shape {
    int64_t rows, n_parts, cols[MAX_PARTS], pad;
    bool weighted, in_place;
};

static const struct shape shapes[] = {
    {1, 1, {1}, 0, false, true},           {2, 1, {3}, 0, false, true},
    {7, 1, {131}, 5, true, false},         {40, 1, {1000}, 0, false, true},
    {40, 2, {500, 500}, 0, false, true},   {30, 3, {1, 64, 20}, 7, true, true},
    {9, 4, {30, 1, 9, 0}, 3, true, false}, /* the last part is pad alone */
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static int64_t n_classes(const struct shape *s)
{
    int64_t n = 0;
    for (int64_t p = 0; p < s->n_parts; p++)
        n += s->cols[p];
    return n;
}

struct problem {
    const struct shape *shape;
    int64_t cols;
    float *z, *weights;
    int32_t *labels;
    double *loss, *logprob, *hits, *dz; /* wanted */
};

static void set_up(struct problem *p, const struct shape *shape)
{
    const int64_t rows = shape->rows, cols = n_classes(shape);
    *p = (struct problem){shape, cols, values(rows, cols, cols, 1), NULL, NULL, NULL, NULL,
                          NULL,  NULL};
    p->weights = values(1, rows, rows, 5);
    p->labels = s2s_xcalloc((size_t)rows, sizeof *p->labels);
    p->loss = s2s_xcalloc((size_t)rows, sizeof *p->loss);
    p->logprob = s2s_xcalloc((size_t)rows, sizeof *p->logprob);
    p->hits = s2s_xcalloc((size_t)rows, sizeof *p->hits);
    p->dz = s2s_xcalloc((size_t)(rows * cols), sizeof *p->dz);
    for (int64_t r = 0; r < rows; r++) {
        float *z = p->z + r * cols;
        const int32_t label = p->labels[r] = r % 3 == 2 ? -100 : (int32_t)((r * 37) % cols);
        z[r % cols] += r % 2 ? 90 : -300; /* far from the others: no overflow */
        if (label > 0 && r % 4 == 3)
            z[0] = z[label] = 95; /* a tie, of two parts where there are several */
        if (label > 0 && r % 4 == 0)
            z[label] = 95;
        if (label < 0)
            continue;
        double max = -INFINITY, sum = 0, weight = shape->weighted ? p->weights[r] : 1;
        int64_t best = -1;
        for (int64_t c = 0; c < cols; c++)
            if (z[c] > max) {
                max = z[c];
                best = c;
            }
        for (int64_t c = 0; c < cols; c++)
            sum += exp(z[c] - max);
        p->hits[r] = label == best;
        p->logprob[r] = z[label] - max - log(sum);
        p->loss[r] = -weight * p->logprob[r];
        for (int64_t c = 0; c < cols; c++)
            p->dz[r * cols + c] = 0.25 * weight * (exp(z[c] - max) / sum - (c == label));
    }
}

static void tear_down(struct problem *p)
{
    void *all[] = {p->z, p->weights, p->labels, p->loss, p->logprob, p->hits, p->dz};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* The logits of one part, NaN in its pad columns and gaps. */
static float *part_of(const struct problem *p, int64_t first, int64_t cols)
{
    const int64_t stride = cols + p->shape->pad + 2;
    float *z = values(p->shape->rows, 0, stride, 0);
    for (int64_t r = 0; r < p->shape->rows; r++)
        memcpy(z + r * stride, p->z + r * p->cols + first, (size_t)cols * sizeof *z);
    return z;
}

static void take_stats(const struct problem *p, float *z, int64_t first, int64_t cols,
                       struct s2s_xent *stats, bool keep)
{
    const int64_t rows = p->shape->rows;
    k->xent_stats(&queue,
                  &(struct s2s_k_xent_stats){.logits = wide_mat(z, cols + p->shape->pad + 2),
                                             .labels = vec(p->labels),
                                             .stats = on(stats, (size_t)rows * sizeof *stats),
                                             .rows = rows,
                                             .cols = cols,
                                             .first_col = first,
                                             .want_best = true,
                                             .keep = keep});
    done();
}

/* The same gradient in BF16, where a probability near 1 loses nothing of its distance from it. */
static void check_halves(const struct problem *p, float *z, int64_t stride,
                         const struct s2s_xent *part, const struct s2s_xent *total, int64_t first,
                         int64_t cols, int64_t width, const double *want)
{
    const int64_t rows = p->shape->rows, n = rows * width;
    uint16_t *halves = s2s_xcalloc((size_t)n + 1, sizeof *halves);
    k->xent_gradient(&queue, &(struct s2s_k_xent_gradient){
                                 .logits = wide_mat(z, stride),
                                 .dlogits = {vec(halves), width, S2S_BF16},
                                 .labels = vec(p->labels),
                                 .weights = p->shape->weighted ? vec(p->weights) : NULL,
                                 .part = in(part, (size_t)rows * sizeof *part),
                                 .total = in(total, (size_t)rows * sizeof *total),
                                 .rows = rows,
                                 .cols = cols,
                                 .width = width,
                                 .first_col = first,
                                 .grad_scale = 0.25f});
    done();
    for (int64_t i = 0; i < n; i++) {
        const double got = s2s_bf16_to_f32(halves[i]);
        keep_error("dz stored in bf16", fabs(got - want[i]) / (1 + fabs(want[i])), 1.0 / 256);
        if (!(fabs(got - want[i]) <= fabs(want[i]) / 256 + 1e-7))
            fail_msg("element %lld: %.9g, expected %.9g", (long long)i, got, want[i]);
    }
    free(halves);
}

static void check_gradient(const struct problem *p, float *z, int64_t first, int64_t cols,
                           struct s2s_xent *part, struct s2s_xent *total)
{
    const int64_t rows = p->shape->rows, stride = cols + p->shape->pad + 2, width = stride - 2;
    const size_t bytes = (size_t)rows * sizeof *part;
    float *dz = p->shape->in_place ? z : values(rows, width, stride, 9);
    double *want = s2s_xcalloc((size_t)(rows * width + 1), sizeof *want);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            want[r * width + c] = p->dz[r * p->cols + first + c];
    k->xent_gradient(&queue, &(struct s2s_k_xent_gradient){
                                 .logits = wide_mat(z, stride),
                                 .dlogits = wide_mat(dz, stride),
                                 .labels = vec(p->labels),
                                 .weights = p->shape->weighted ? vec(p->weights) : NULL,
                                 .part = in(part, bytes),
                                 .total = in(total, bytes),
                                 .rows = rows,
                                 .cols = cols,
                                 .width = width,
                                 .first_col = first,
                                 .grad_scale = 0.25f});
    done();
    close_to("dz", dz, want, rows, width, stride, 1e-6);
    if (dz != z)
        check_halves(p, z, stride, part, total, first, cols, width, want);
    if (dz != z)
        free(dz);
    free(want);
}

static void parts_of_a_vocabulary_agree_with_the_formula(void **state)
{
    for (int i = 0; i < N_SHAPES; i++) {
        const struct shape *s = &shapes[i];
        struct problem p;
        float *z[MAX_PARTS];
        set_up(&p, s);
        const int64_t rows = s->rows;
        struct s2s_xent *parts = s2s_xcalloc((size_t)(s->n_parts * rows), sizeof *parts);
        struct s2s_xent *total = s2s_xcalloc((size_t)rows, sizeof *total);
        float *loss = values(1, rows, rows, 2), *logprob = values(1, rows, rows, 3);
        float *hits = values(1, rows, rows, 4);
        for (int64_t q = 0, first = 0; q < s->n_parts; first += s->cols[q++]) {
            z[q] = part_of(&p, first, s->cols[q]);
            take_stats(&p, z[q], first, s->cols[q], parts + q * rows, true);
        }
        k->xent_finish(&queue,
                       &(struct s2s_k_xent_finish){.parts = vec(parts),
                                                   .labels = vec(p.labels),
                                                   .weights = s->weighted ? vec(p.weights) : NULL,
                                                   .total = vec(total),
                                                   .loss = vec(loss),
                                                   .logprob = vec(logprob),
                                                   .hits = vec(hits),
                                                   .rows = rows,
                                                   .n_parts = s->n_parts});
        done();
        close_to("loss", loss, p.loss, 1, rows, rows, 2e-6);
        close_to("logprob", logprob, p.logprob, 1, rows, rows, 2e-6);
        close_to("hits", hits, p.hits, 1, rows, rows, 0);
        for (int64_t q = 0, first = 0; q < s->n_parts; first += s->cols[q++]) {
            check_gradient(&p, z[q], first, s->cols[q], parts + q * rows, total);
            free(z[q]);
        }
        free(parts);
        free(total);
        free(loss);
        free(logprob);
        free(hits);
        tear_down(&p);
    }
}

static void logits_stay_where_no_gradient_follows(void **state)
{
    struct problem p;
    set_up(&p, &shapes[3]);
    float *z = part_of(&p, 0, p.cols), *before = part_of(&p, 0, p.cols);
    struct s2s_xent stats[2][40];
    take_stats(&p, z, 0, p.cols, stats[0], false);
    const size_t bytes = (size_t)(p.shape->rows * (p.cols + 2)) * sizeof *z;
    assert_memory_equal(z, before, bytes);
    /* and the statistics are the same */
    take_stats(&p, z, 0, p.cols, stats[1], true);
    for (int r = 0; r < 40; r++) {
        assert_true(stats[0][r].max == stats[1][r].max);
        assert_true(fabsf(stats[0][r].sum - stats[1][r].sum) <= 1e-6f * stats[0][r].sum);
        assert_int_equal(stats[0][r].best, stats[1][r].best);
    }
    free(z);
    free(before);
    tear_down(&p);
}

static void squared_distance_and_its_gradient(void **state)
{
    enum { ROWS = 9, COLS = 13, STRIDE = 15 };
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        float *x = values(ROWS, COLS, STRIDE, 1), *y = values(ROWS, COLS, COLS, 2);
        float *dx = values(ROWS, COLS, STRIDE, 3), loss[ROWS];
        double want[ROWS * COLS], want_loss[ROWS] = {0};
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++) {
                double d = (double)x[r * STRIDE + c] - y[r * COLS + c];
                want_loss[r] += 0.5 * d * d;
                want[r * COLS + c] = 0.5 * d + (accumulate ? dx[r * STRIDE + c] : 0);
            }
        k->sqdist(&queue,
                  &(struct s2s_k_sqdist){mat(x, STRIDE), mat(y, COLS), mat(dx, STRIDE),
                                         on(loss, sizeof loss), ROWS, COLS, 0.5f, accumulate});
        done();
        close_to("loss", loss, want_loss, 1, ROWS, ROWS, 1e-6);
        close_to("dx", dx, want, ROWS, COLS, STRIDE, 1e-6);
        free(x);
        free(y);
        free(dx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_vocabulary_agree_with_the_formula),
        cmocka_unit_test(logits_stay_where_no_gradient_follows),
        cmocka_unit_test(squared_distance_and_its_gradient),
    };
    return run_on_tables_and_types(tests);
}
