/* Attention of packed sequences against loops in double, and its backward against finite
 * differences of those loops. */
#include "tests/unit/kernels/kernel_test.h"

struct problem {
    int64_t n_heads, n_kv_heads, dim, n_seqs;
    int32_t cu_q[8], cu_k[8];
    bool causal;
};

static const struct problem problems[] = {
    {4, 2, 8, 3, {0, 5, 6, 17}, {0, 5, 6, 17}, true},       /* a length of 1 */
    {3, 3, 5, 4, {0, 0, 9, 9, 12}, {0, 0, 9, 9, 12}, true}, /* empty sequences, odd width */
    {6, 1, 4, 2, {0, 70, 203}, {0, 70, 203}, true}, /* blocks of queries; by keys in backward */
    {2, 1, 4, 1, {0, 300}, {0, 300}, true},         /* blocks of keys */
    {2, 2, 4, 1, {0, 150}, {0, 270}, false},        /* the same, all seen */
    {4, 4, 4, 4, {0, 150, 151, 151, 160}, {0, 150, 151, 151, 160}, true}, /* heads enough */
    {2, 2, 16, 2, {0, 1, 4}, {0, 9, 15}, true},    /* more keys than queries: a cache */
    {4, 2, 8, 2, {0, 67, 80}, {0, 67, 80}, false}, /* every key is seen */
};

static int64_t max_len(const int32_t *cu, int64_t n)
{
    int64_t max = 0;
    for (int64_t i = 0; i < n; i++)
        max = cu[i + 1] - cu[i] > max ? cu[i + 1] - cu[i] : max;
    return max;
}

/* o [n_q, n_heads dim] and lse [n_q, n_heads] in double */
static void reference(const struct problem *p, const double *q, const double *key, const double *v,
                      double scale, double *o, double *lse)
{
    const int64_t d = p->dim, wq = p->n_heads * d, wk = p->n_kv_heads * d;
    double s[512];
    for (int64_t b = 0; b < p->n_seqs; b++)
        for (int64_t i = p->cu_q[b]; i < p->cu_q[b + 1]; i++)
            for (int64_t h = 0; h < p->n_heads; h++) {
                int64_t kv = h / (p->n_heads / p->n_kv_heads), end = p->cu_k[b + 1];
                if (p->causal)
                    end -= p->cu_q[b + 1] - 1 - i;
                double max = -INFINITY, sum = 0;
                for (int64_t j = p->cu_k[b]; j < end; j++) {
                    double dot = 0;
                    for (int64_t c = 0; c < d; c++)
                        dot += q[i * wq + h * d + c] * key[j * wk + kv * d + c];
                    s[j - p->cu_k[b]] = dot * scale;
                    max = fmax(max, dot * scale);
                }
                for (int64_t j = p->cu_k[b]; j < end; j++)
                    sum += exp(s[j - p->cu_k[b]] - max);
                for (int64_t c = 0; c < d; c++) {
                    double out = 0;
                    for (int64_t j = p->cu_k[b]; j < end; j++)
                        out += exp(s[j - p->cu_k[b]] - max) / sum * v[j * wk + kv * d + c];
                    o[i * wq + h * d + c] = out;
                }
                if (lse)
                    lse[i * p->n_heads + h] = max + log(sum);
            }
}

static double *widen(const float *x, int64_t n)
{
    double *y = s2s_xcalloc((size_t)n + 1, sizeof *y);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i];
    return y;
}

/* Buffers of one problem: x[0..2] q k v, x[3] o, x[4] dO, x[5] lse; g gradients of q k v. */
struct run {
    const struct problem *p;
    int64_t n[3], width[3];
    float *x[6], *g[3];
};

static void set_up(struct run *r, const struct problem *p)
{
    const int64_t n_q = p->cu_q[p->n_seqs], n_k = p->cu_k[p->n_seqs];
    *r = (struct run){
        .p = p,
        .n = {n_q, n_k, n_k},
        .width = {p->n_heads * p->dim, p->n_kv_heads * p->dim, p->n_kv_heads * p->dim}};
    for (int i = 0; i < 3; i++) {
        r->x[i] = values(r->n[i], r->width[i], r->width[i], (uint64_t)i + 1);
        r->g[i] = values(r->n[i], r->width[i], r->width[i], (uint64_t)i + 11);
    }
    r->x[3] = values(n_q, r->width[0], r->width[0], 4);
    r->x[4] = values(n_q, r->width[0], r->width[0], 5);
    r->x[5] = values(n_q, p->n_heads, p->n_heads, 6);
}

/* Arguments over copies on the device, good for one call. */
static struct s2s_k_attention arguments(struct run *r)
{
    const struct problem *p = r->p;
    return (struct s2s_k_attention){.q = mat(r->x[0], r->width[0]),
                                    .k = mat(r->x[1], r->width[1]),
                                    .v = mat(r->x[2], r->width[2]),
                                    .o = mat(r->x[3], r->width[0]),
                                    .lse = vec(r->x[5]),
                                    .cu_q = in(p->cu_q, sizeof p->cu_q),
                                    .cu_k = in(p->cu_k, sizeof p->cu_k),
                                    .n_seqs = p->n_seqs,
                                    .n_heads = p->n_heads,
                                    .n_kv_heads = p->n_kv_heads,
                                    .dim = p->dim,
                                    .max_q = max_len(p->cu_q, p->n_seqs),
                                    .max_k = max_len(p->cu_k, p->n_seqs),
                                    .scale = 0.4f,
                                    .causal = p->causal};
}

static void forward(struct run *r)
{
    struct s2s_k_attention args = arguments(r);
    args.workspace = work(k->attention_workspace(&queue, &args));
    k->attention(&queue, &args);
    done();
}

static void backward(struct run *r, bool accumulate)
{
    struct s2s_k_attention_backward args = {.forward = arguments(r),
                                            .d_o = mat(r->x[4], r->width[0]),
                                            .dq = mat(r->g[0], r->width[0]),
                                            .dk = mat(r->g[1], r->width[1]),
                                            .dv = mat(r->g[2], r->width[2]),
                                            .accumulate_dq = accumulate,
                                            .accumulate_dk = accumulate,
                                            .accumulate_dv = accumulate};
    args.workspace = work(k->attention_backward_workspace(&queue, &args));
    k->attention_backward(&queue, &args);
    done();
}

static void tear_down(struct run *r)
{
    for (int i = 0; i < 6; i++)
        free(r->x[i]);
    for (int i = 0; i < 3; i++)
        free(r->g[i]);
}

static void forward_agrees_with_the_definition(void **state)
{
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        struct run r;
        set_up(&r, &problems[i]);
        double *x[3];
        for (int j = 0; j < 3; j++)
            x[j] = widen(r.x[j], r.n[j] * r.width[j]);
        double *o = widen(r.x[3], r.n[0] * r.width[0]);
        double *lse = widen(r.x[5], r.n[0] * r.p->n_heads);
        reference(r.p, x[0], x[1], x[2], 0.4f, o, lse);
        forward(&r);
        close_to("o", r.x[3], o, r.n[0], r.width[0], r.width[0], 3e-6);
        close_to("lse", r.x[5], lse, r.n[0], r.p->n_heads, r.p->n_heads, 3e-6);
        for (int j = 0; j < 3; j++)
            free(x[j]);
        free(o);
        free(lse);
        tear_down(&r);
    }
}

/* sum(dO . o) with one input moved along a direction */
static double moved(const struct run *r, int which, double step, const double *direction)
{
    double *x[3], *o = widen(r->x[3], r->n[0] * r->width[0]), sum = 0;
    for (int j = 0; j < 3; j++)
        x[j] = widen(r->x[j], r->n[j] * r->width[j]);
    for (int64_t i = 0; i < r->n[which] * r->width[which]; i++)
        x[which][i] += step * direction[i];
    reference(r->p, x[0], x[1], x[2], 0.4f, o, NULL);
    for (int64_t i = 0; i < r->n[0] * r->width[0]; i++)
        sum += o[i] * r->x[4][i];
    for (int j = 0; j < 3; j++)
        free(x[j]);
    free(o);
    return sum;
}

static void backward_agrees_with_differences(void **state)
{
    const double h = 1e-5;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        struct run r;
        set_up(&r, &problems[i]);
        forward(&r);
        float *before[3];
        for (int j = 0; j < 3; j++)
            before[j] = values(r.n[j], r.width[j], r.width[j], (uint64_t)j + 11);
        backward(&r, i % 2);
        for (int j = 0; j < 3; j++)
            for (uint64_t dir = 0; dir < 3; dir++) {
                int64_t n = r.n[j] * r.width[j];
                float *d = values(1, n, n, 20 + dir);
                double *direction = widen(d, n), got = 0, size = 0;
                for (int64_t e = 0; e < n; e++) {
                    double g = r.g[j][e] - (i % 2 ? before[j][e] : 0);
                    got += g * d[e];
                    size += g * g;
                }
                double want = (moved(&r, j, h, direction) - moved(&r, j, -h, direction)) / (2 * h);
                if (!(fabs(got - want) < 1e-5 * (1 + sqrt(size))))
                    fail_msg("problem %zu, input %d: %.9g, expected %.9g", i, j, got, want);
                free(d);
                free(direction);
            }
        for (int j = 0; j < 3; j++)
            free(before[j]);
        tear_down(&r);
    }
}

static void threads_do_not_change_a_byte(void **state)
{
    struct run r[2];
    for (int i = 0; i < 2; i++) {
        queue.lanes = i ? 3 : 1;
        set_up(&r[i], &problems[2]);
        forward(&r[i]);
        backward(&r[i], false);
    }
    assert_memory_equal(r[0].x[3], r[1].x[3], (size_t)(r[0].n[0] * r[0].width[0]) * sizeof(float));
    for (int j = 0; j < 3; j++)
        assert_memory_equal(r[0].g[j], r[1].g[j],
                            (size_t)(r[0].n[j] * r[0].width[j]) * sizeof(float));
    tear_down(&r[0]);
    tear_down(&r[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_agrees_with_the_definition),
        cmocka_unit_test(backward_agrees_with_differences),
        cmocka_unit_test(threads_do_not_change_a_byte),
    };
    return run_on_tables(tests);
}
