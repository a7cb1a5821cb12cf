/*
 * Kernels of speech encoders against loops in double that read like the formulas: odd sizes, an
 * empty clip, a clip of one row, rows with a stride. fp32 sums of at most a few hundred terms of
 * order one: 1e-5 is some twenty times their rounding. And the same bytes on one thread and on
 * three.
 */
#include "tests/unit/kernels/kernel_test.h"

/* clips of 129, 0, 1 and 70 rows */
enum { N_SEQS = 4, N = 200, MAX_LEN = 129 };
static const int32_t cu[] = {0, 129, 129, 130, 200}, half[] = {0, 65, 65, 66, 101},
                     causal_half[] = {0, 65, 65, 66, 102};

static float rounded(float x)
{
    return is_bf16 ? s2s_bf16_to_f32(s2s_f32_to_bf16(x)) : x;
}

static float *random_values(int64_t n, uint64_t key)
{
    float *x = s2s_xmalloc((size_t)(n + 1) * sizeof *x);
    s2s_rng_fill_normal(x, (size_t)n + 1, key, 0, 0, 1);
    for (int64_t i = 0; i <= n; i++)
        x[i] = rounded(x[i]);
    return x;
}

static float *blank(int64_t n)
{
    float *x = s2s_xmalloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i <= n; i++)
        x[i] = NAN;
    return x;
}

static void near(double expected, float got, double scale)
{
    const double unit = is_bf16 ? 1.0 / 128 : 1e-5;
    if (!(fabs(expected - (double)got) <= unit * (scale + fabs(expected))))
        fail_msg("expected %.9g, got %.9g", expected, (double)got);
}

/* Runs on one thread and on three into fresh buffers; the bytes are equal. Gives the first. */
static float *twice(void (*run)(float *out, void *args, int64_t n), void *args, int64_t n)
{
    float *one = blank(n), *three = blank(n);
    queue.lanes = 1;
    run(one, args, n);
    queue.lanes = 3;
    run(three, args, n);
    queue.lanes = 1;
    assert_memory_equal(one, three, (size_t)n * sizeof *one);
    free(three);
    return one;
}

static int64_t seq_of(const int32_t *bounds, int64_t row)
{
    int64_t s = 0;
    while (row >= bounds[s + 1])
        s++;
    return s;
}

/* ---- conv2d ---- */

static void run_conv2d(float *out, void *args, int64_t n)
{
    struct s2s_k_conv2d a = *(struct s2s_k_conv2d *)args;
    a.x = mat(a.x.data, a.x.stride);
    a.w = vec((float *)a.w);
    a.bias = vec((float *)a.bias);
    a.cu_in = in(cu, sizeof cu);
    a.cu_out = in(a.cu_out, sizeof half);
    a.y = mat(out, s2s_conv2d_half(a.in_width, a.causal) * a.channels);
    a.workspace = work(k->conv2d_workspace(&queue, &a));
    k->conv2d(&queue, &a);
    done();
}

static void check_conv2d(int64_t width, int64_t channels, bool one_input, bool relu, bool causal)
{
    const int32_t *to = causal ? causal_half : half;
    int64_t in_channels = one_input ? 1 : channels, n_out = to[4], pad = causal ? 2 : 1;
    const int64_t out_width = causal ? width / 2 + 1 : (width + 1) / 2;
    const int64_t stride = width * in_channels + 2;
    float *x = values(N, stride - 2, stride, 1), *w = random_values(channels * 9, 2);
    float *bias = random_values(channels, 3);
    struct s2s_k_conv2d args = {.x = {x, stride, S2S_F32},
                                .w = w,
                                .bias = bias,
                                .cu_in = cu,
                                .cu_out = to,
                                .n_seqs = N_SEQS,
                                .n_in = N,
                                .n_out = n_out,
                                .in_width = width,
                                .channels = channels,
                                .one_input = one_input,
                                .relu = relu,
                                .causal = causal};
    float *y = twice(run_conv2d, &args, n_out * out_width * channels);
    for (int64_t t = 0; t < n_out; t++)
        for (int64_t f = 0; f < out_width; f++)
            for (int64_t c = 0; c < channels; c++) {
                int64_t s = seq_of(to, t);
                double sum = bias[c];
                for (int i = 0; i < 3; i++)
                    for (int j = 0; j < 3; j++) {
                        int64_t row = cu[s] + 2 * (t - to[s]) - pad + i, col = 2 * f - pad + j;
                        if (row < cu[s] || row >= cu[s + 1] || col < 0 || col >= width)
                            continue;
                        sum += (double)w[c * 9 + i * 3 + j] *
                               x[row * stride + col * in_channels + (one_input ? 0 : c)];
                    }
                near(relu && sum < 0 ? 0 : sum, y[(t * out_width + f) * channels + c], 10);
            }
    free(x);
    free(w);
    free(bias);
    free(y);
}

static void conv2d_is_its_formula(void **state)
{
    check_conv2d(8, 19, true, true, false);
    check_conv2d(7, 19, false, false, false);
    check_conv2d(1, 1, true, false, false);
    check_conv2d(8, 19, true, false, true);
    check_conv2d(7, 19, false, true, true);
    check_conv2d(1, 1, true, false, true);
}

/* ---- dwconv ---- */

static void run_dwconv(float *out, void *args, int64_t n)
{
    struct s2s_k_dwconv a = *(struct s2s_k_dwconv *)args;
    a.x = mat(a.x.data, a.x.stride);
    a.w = vec((float *)a.w);
    a.cu = in(cu, sizeof cu);
    a.y = mat(out, a.channels);
    a.workspace = work(k->dwconv_workspace(&queue, &a));
    k->dwconv(&queue, &a);
    done();
}

static void check_dwconv(int64_t shift)
{
    enum { C = 21, STRIDE = 23, WIDTH = 9 };
    float *x = random_values(N * STRIDE, 1), *w = random_values(C * WIDTH, 2);
    struct s2s_k_dwconv args = {.x = {x, STRIDE, S2S_F32},
                                .w = w,
                                .cu = cu,
                                .n_seqs = N_SEQS,
                                .n = N,
                                .channels = C,
                                .width = WIDTH,
                                .shift = shift};
    float *y = twice(run_dwconv, &args, N * C);
    for (int64_t t = 0; t < N; t++)
        for (int64_t c = 0; c < C; c++) {
            int64_t s = seq_of(cu, t);
            double sum = 0;
            for (int64_t i = 0; i < WIDTH; i++) {
                int64_t from = t - WIDTH / 2 - shift + i;
                if (from >= cu[s] && from < cu[s + 1])
                    sum += (double)w[c * WIDTH + i] * x[from * STRIDE + c];
            }
            near(sum, y[t * C + c], 10);
        }
    free(x);
    free(w);
    free(y);
}

/* both sides alike, the past alone, something of the future, the future alone */
static void dwconv_is_its_formula(void **state)
{
    check_dwconv(0);
    check_dwconv(4);
    check_dwconv(3);
    check_dwconv(-4);
}

/* ---- norms ---- */

struct norm {
    float *x, *gain, *bias;
    int64_t cols, stride;
};

static void run_layernorm(float *out, void *ptr, int64_t n)
{
    struct norm *a = ptr;
    k->layernorm(&queue, &(struct s2s_k_layernorm){.x = mat(a->x, a->stride),
                                                   .y = mat(out, a->cols),
                                                   .gain = vec(a->gain),
                                                   .bias = vec(a->bias),
                                                   .rows = n / a->cols,
                                                   .cols = a->cols,
                                                   .alpha = 1,
                                                   .eps = 1e-5f});
    done();
}

/* statistics, then the norm by them */
static void run_batchnorm(float *out, void *ptr, int64_t n)
{
    struct norm *a = ptr;
    float *stats = blank(2 * a->cols);
    struct s2s_k_column_stats args = {.x = mat(a->x, a->stride),
                                      .mean = vec(stats),
                                      .var = (float *)vec(stats) + a->cols,
                                      .rows = n / a->cols,
                                      .cols = a->cols};
    args.workspace = work(k->column_stats_workspace(&queue, &args));
    k->column_stats(&queue, &args);
    k->batchnorm(&queue, &(struct s2s_k_batchnorm){.x = args.x,
                                                   .y = mat(out, a->cols),
                                                   .mean = args.mean,
                                                   .var = args.var,
                                                   .gain = vec(a->gain),
                                                   .bias = vec(a->bias),
                                                   .rows = args.rows,
                                                   .cols = a->cols,
                                                   .eps = 1e-5f,
                                                   .silu = true});
    done();
    free(stats);
}

/* gain (x - mean) / sqrt(var + eps) + bias over n values `step` apart */
static void moments(const float *x, int64_t n, int64_t step, double *mean, double *rstd)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i * step];
    *mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += (x[i * step] - *mean) * (x[i * step] - *mean);
    *rstd = 1 / sqrt(squares / (double)n + 1e-5);
}

static void norms_are_their_formulas(void **state)
{
    enum { C = 37, STRIDE = 41 };
    struct norm a = {random_values(N * STRIDE, 1), random_values(C, 2), random_values(C, 3), C,
                     STRIDE};
    for (int64_t i = 0; i < N * STRIDE; i++)
        a.x[i] = rounded(a.x[i] + 3); /* a mean that must cancel */
    float *rows = twice(run_layernorm, &a, N * C), *columns = twice(run_batchnorm, &a, N * C);
    double mean, rstd;
    for (int64_t t = 0; t < N; t++)
        for (int64_t c = 0; c < C; c++) {
            moments(a.x + t * STRIDE, C, 1, &mean, &rstd);
            near(a.gain[c] * (a.x[t * STRIDE + c] - mean) * rstd + a.bias[c], rows[t * C + c], 3);
            moments(a.x + c, N, STRIDE, &mean, &rstd);
            double z = a.gain[c] * (a.x[t * STRIDE + c] - mean) * rstd + a.bias[c];
            near(z / (1 + exp(-z)), columns[t * C + c], 3);
        }
    free(a.x);
    free(a.gain);
    free(a.bias);
    free(rows);
    free(columns);
}

/* ---- attention with relative positions ---- */

enum { HEADS = 3, DIM = 7, WIDTH = HEADS * DIM };

static const uint64_t KEY = 99;

static void run_relattention(float *out, void *args, int64_t n)
{
    struct s2s_k_relattention a = *(struct s2s_k_relattention *)args;
    a.q = mat(a.q.data, a.q.stride);
    a.k = mat(a.k.data, a.k.stride);
    a.value = mat(a.value.data, a.value.stride);
    a.p = mat(a.p.data, a.p.stride);
    a.u = vec((float *)a.u);
    a.v = vec((float *)a.v);
    a.cu = in(cu, sizeof cu);
    a.o = mat(out, WIDTH);
    if (a.draw.rate > 0)
        a.draw = draw_of(N, KEY, a.draw.rate);
    a.workspace = work(k->relattention_workspace(&queue, &a));
    k->relattention(&queue, &a);
    done();
}

/* o of query i, head h, component d by the definition */
static double attended(const struct s2s_k_relattention *a, const float *table, int64_t i, int64_t h,
                       int64_t d)
{
    int64_t s = seq_of(cu, i);
    double total = 0, sum = 0;
    for (int64_t j = cu[s]; j < cu[s + 1]; j++) {
        const float *q = (float *)a->q.data + i * WIDTH + h * DIM;
        const float *key = (float *)a->k.data + j * WIDTH + h * DIM;
        const float *p = table + (MAX_LEN - 1 - (i - j)) * WIDTH + h * DIM;
        double score = 0;
        for (int64_t e = 0; e < DIM; e++)
            score += (q[e] + (double)a->u[h * DIM + e]) * key[e] +
                     (q[e] + (double)a->v[h * DIM + e]) * p[e];
        double weight = exp(score * (double)a->scale);
        total += weight;
        if (a->draw.rate > 0)
            weight *= stays(i, j - cu[s], 1 + a->first_head + h, KEY, (double)a->draw.rate)
                          ? 1 / (1 - (double)a->draw.rate)
                          : 0;
        sum += weight * ((float *)a->value.data)[j * WIDTH + h * DIM + d];
    }
    return sum / total;
}

static void relattention_of(float share)
{
    float *q = random_values(N * WIDTH, 1), *key = random_values(N * WIDTH, 2);
    float *value = random_values(N * WIDTH, 3), *p = random_values((2 * MAX_LEN - 1) * WIDTH, 4);
    float *u = random_values(WIDTH, 5), *v = random_values(WIDTH, 6);
    struct s2s_k_relattention args = {.q = {q, WIDTH, S2S_F32},
                                      .k = {key, WIDTH, S2S_F32},
                                      .value = {value, WIDTH, S2S_F32},
                                      .p = {p, WIDTH, S2S_F32},
                                      .u = u,
                                      .v = v,
                                      .cu = cu,
                                      .n_seqs = N_SEQS,
                                      .n_heads = HEADS,
                                      .dim = DIM,
                                      .max_seqlen = MAX_LEN,
                                      .scale = 0.35f,
                                      .draw.rate = share,
                                      .first_head = 5};
    float *o = twice(run_relattention, &args, N * WIDTH);
    for (int64_t i = 0; i < N; i++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t d = 0; d < DIM; d++)
                near(attended(&args, p, i, h, d), o[i * WIDTH + h * DIM + d], 2);
    free(q);
    free(key);
    free(value);
    free(p);
    free(u);
    free(v);
    free(o);
}

static void relattention_is_its_formula(void **state)
{
    relattention_of(0);
    relattention_of(0.4f);
}

static void relpos_table_is_sines(void **state)
{
    enum { ROWS = 700, D = 10 };
    float *table = blank((2 * ROWS - 1) * D);
    k->relpos_table(&queue, &(struct s2s_k_relpos_table){.table = vec(table), .n = ROWS, .dim = D});
    done();
    for (int64_t i = 0; i < 2 * ROWS - 1; i++)
        for (int64_t m = 0; m < D / 2; m++) {
            double angle = (double)(ROWS - 1 - i) * pow(10000, -2.0 * (double)m / D);
            near(sin(angle), table[i * D + 2 * m], 0.01);
            near(cos(angle), table[i * D + 2 * m + 1], 0.01);
        }
    free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv2d_is_its_formula),    cmocka_unit_test(dwconv_is_its_formula),
        cmocka_unit_test(norms_are_their_formulas), cmocka_unit_test(relattention_is_its_formula),
        cmocka_unit_test(relpos_table_is_sines),
    };
    return run_on_tables_and_types(tests);
}
