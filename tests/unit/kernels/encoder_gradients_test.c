/*
 * Gradients of what speech encoders are made of, against loops in double that read like the
 * formulas: convolutions of images and of time, norms of rows and of columns. Odd sizes, clips
 * without a row and of one, rows with a stride, gradients that add to others.
 */
#include "tests/unit/kernels/kernel_test.h"

/* clips of 9, 0, 1, 70 and 0 rows, and of half as many */
enum { N_SEQS = 5, N = 80, N_HALF = 41, ACCUMULATE = 1, SECOND = 2 };
static const int32_t cu[] = {0, 9, 9, 10, 80, 80}, half[] = {0, 5, 5, 6, 41, 41};

/* A matrix of values, in double without its gaps. */
struct array {
    int64_t rows, cols, stride;
    float *data;
    double *value;
};

static struct array array_of(int64_t rows, int64_t cols, int64_t gap, uint64_t key)
{
    struct array a = {rows, cols, cols + gap, NULL, NULL};
    a.data = values(rows, cols, a.stride, key);
    a.value = s2s_xcalloc((size_t)(rows * cols) + 1, sizeof *a.value);
    for (int64_t i = 0; i < rows * cols; i++)
        a.value[i] = a.data[i / cols * a.stride + i % cols];
    return a;
}

/* One of F32 whatever the type under test: gains, weights, and their gradients. */
static struct array floats_of(int64_t n, uint64_t key)
{
    const bool bf16 = is_bf16;
    is_bf16 = false;
    const struct array a = array_of(1, n, 0, key);
    is_bf16 = bf16;
    return a;
}

static struct s2s_mat mat_of(const struct array *a)
{
    return mat(a->data, a->stride);
}

static void free_all(struct array *a, int n)
{
    for (int i = 0; i < n; i++) {
        free(a[i].data);
        free(a[i].value);
    }
}

/* What was there does not matter where the kernel stores. */
static void begin_at(struct array *a, bool accumulate)
{
    for (int64_t i = 0; !accumulate && i < a->rows * a->cols; i++)
        a->value[i] = 0;
}

static void compare(const char *what, const struct array *a)
{
    close_to(what, a->data, a->value, a->rows, a->cols, a->stride, 1e-5);
}

static int64_t seq_of(const int32_t *bounds, int64_t row)
{
    int64_t s = 0;
    while (row >= bounds[s + 1])
        s++;
    return s;
}

/* ---- convolution of images ---- */

enum { X, W, BIAS, Y, DY, DX, DW, DBIAS, N_ARRAYS };

struct images {
    int64_t width, channels;
    bool one_input, relu;
};

/* Output (t, f, c): gives it to y, or passes what dy has for it back. */
static void image_pixel(const struct images *s, struct array *a, int64_t t, int64_t f, int64_t c,
                        bool backward)
{
    const int64_t in_channels = s->one_input ? 1 : s->channels, seq = seq_of(half, t);
    const int64_t out = t * a[Y].cols + f * s->channels + c;
    const bool passes = !s->relu || a[Y].value[out] > 0;
    const double dy = backward && passes ? a[DY].value[out] : 0;
    double sum = a[BIAS].value[c];
    for (int64_t i = 0; i < 3; i++)
        for (int64_t j = 0; j < 3; j++) {
            const int64_t row = cu[seq] + 2 * (t - half[seq]) - 1 + i, col = 2 * f - 1 + j;
            if (row < cu[seq] || row >= cu[seq + 1] || col < 0 || col >= s->width)
                continue;
            const int64_t from = row * a[X].cols + col * in_channels + (s->one_input ? 0 : c);
            const int64_t tap = c * 9 + i * 3 + j;
            sum += a[W].value[tap] * a[X].value[from];
            a[DX].value[from] += a[W].value[tap] * dy;
            a[DW].value[tap] += a[X].value[from] * dy;
        }
    a[DBIAS].value[c] += dy;
    if (!backward)
        a[Y].value[out] = s->relu && sum < 0 ? 0 : sum;
}

static void images_reference(const struct images *s, struct array *a)
{
    for (int backward = 0; backward < 2; backward++)
        for (int64_t t = 0; t < N_HALF; t++)
            for (int64_t f = 0; f < (s->width + 1) / 2; f++)
                for (int64_t c = 0; c < s->channels; c++)
                    image_pixel(s, a, t, f, c, backward);
}

static void check_images(struct images s, int how)
{
    const int64_t in_cols = s.width * (s.one_input ? 1 : s.channels);
    const int64_t out_cols = (s.width + 1) / 2 * s.channels;
    struct array a[N_ARRAYS] = {array_of(N, in_cols, 2, 1),       floats_of(s.channels * 9, 2),
                                floats_of(s.channels, 3),         array_of(N_HALF, out_cols, 1, 4),
                                array_of(N_HALF, out_cols, 3, 5), array_of(N, in_cols, 0, 6),
                                floats_of(s.channels * 9, 7),     floats_of(s.channels, 8)};
    begin_at(&a[DX], how & ACCUMULATE);
    images_reference(&s, a);
    struct s2s_k_conv2d_backward back = {.forward = {.x = mat_of(&a[X]),
                                                     .y = mat_of(&a[Y]),
                                                     .w = vec(a[W].data),
                                                     .bias = vec(a[BIAS].data),
                                                     .cu_in = in(cu, sizeof cu),
                                                     .cu_out = in(half, sizeof half),
                                                     .n_seqs = N_SEQS,
                                                     .n_in = N,
                                                     .n_out = N_HALF,
                                                     .in_width = s.width,
                                                     .channels = s.channels,
                                                     .one_input = s.one_input,
                                                     .relu = s.relu},
                                         .dy = mat_of(&a[DY]),
                                         .dx = mat_of(&a[DX]),
                                         .dw = vec(a[DW].data),
                                         .dbias = vec(a[DBIAS].data),
                                         .accumulate_dx = how & ACCUMULATE};
    back.forward.workspace = work(k->conv2d_workspace(&queue, &back.forward));
    k->conv2d(&queue, &back.forward);
    back.workspace = work(k->conv2d_backward_workspace(&queue, &back));
    k->conv2d_backward(&queue, &back);
    done();
    static const char *const names[] = {[Y] = "y", [DX] = "dx", [DW] = "dw", [DBIAS] = "dbias"};
    for (int i = 0; i < N_ARRAYS; i++)
        if (names[i])
            compare(names[i], &a[i]);
    free_all(a, N_ARRAYS);
}

static void images_pass_back_through_their_filters(void **state)
{
    static const struct images cases[] = {
        {8, 19, true, true}, {7, 19, false, false}, {1, 1, true, false}, {5, 8, false, true}};
    for (int i = 0; i < 4; i++)
        check_images(cases[i], i);
}

/* ---- convolution of time ---- */

static void time_reference(struct array *a, int64_t channels, int64_t width)
{
    for (int64_t t = 0; t < N; t++)
        for (int64_t c = 0; c < channels; c++) {
            const int64_t seq = seq_of(cu, t), at = t * channels + c;
            a[Y].value[at] = a[BIAS].value[c];
            a[DBIAS].value[c] += a[DY].value[at];
            for (int64_t i = 0; i < width; i++) {
                const int64_t from = t - width / 2 + i, source = from * channels + c;
                if (from < cu[seq] || from >= cu[seq + 1])
                    continue;
                a[Y].value[at] += a[W].value[c * width + i] * a[X].value[source];
                a[DX].value[source] += a[W].value[c * width + i] * a[DY].value[at];
                a[DW].value[c * width + i] += a[X].value[source] * a[DY].value[at];
            }
        }
}

static void check_time(int64_t channels, int64_t width, int how)
{
    struct array a[N_ARRAYS] = {array_of(N, channels, 2, 1),    floats_of(channels * width, 2),
                                floats_of(channels, 3),         array_of(N, channels, 0, 4),
                                array_of(N, channels, 1, 5),    array_of(N, channels, 3, 6),
                                floats_of(channels * width, 7), floats_of(channels, 8)};
    begin_at(&a[DX], how & ACCUMULATE);
    time_reference(a, channels, width);
    struct s2s_k_dwconv_backward back = {.forward = {.x = mat_of(&a[X]),
                                                     .y = mat_of(&a[Y]),
                                                     .w = vec(a[W].data),
                                                     .bias = vec(a[BIAS].data),
                                                     .cu = in(cu, sizeof cu),
                                                     .n_seqs = N_SEQS,
                                                     .n = N,
                                                     .channels = channels,
                                                     .width = width},
                                         .dy = mat_of(&a[DY]),
                                         .dx = mat_of(&a[DX]),
                                         .dw = vec(a[DW].data),
                                         .dbias = vec(a[DBIAS].data),
                                         .accumulate_dx = how & ACCUMULATE};
    back.forward.workspace = work(k->dwconv_workspace(&queue, &back.forward));
    k->dwconv(&queue, &back.forward);
    back.workspace = work(k->dwconv_backward_workspace(&queue, &back));
    k->dwconv_backward(&queue, &back);
    done();
    compare("y", &a[Y]);
    compare("dx", &a[DX]);
    compare("dw", &a[DW]);
    compare("dbias", &a[DBIAS]);
    free_all(a, N_ARRAYS);
}

static void time_passes_back_through_its_filters(void **state)
{
    check_time(21, 9, 0);
    check_time(16, 31, ACCUMULATE);
    check_time(1, 1, 0);
}

/* ---- norms ---- */

enum { H, GAIN, DY_N, DSUM, DX_N, DRES, DGAIN, DBIAS_N, STATS, N_NORM };

static const double eps = 1e-3f;

/* Mean and 1 / sqrt(variance + eps) of n values `step` apart. */
static void moments(const double *x, int64_t n, int64_t step, double *mean, double *rstd)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i * step];
    *mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += pow(x[i * step] - *mean, 2);
    *rstd = 1 / sqrt(squares / (double)n + eps);
}

/* A row; its mean and rstd go to STATS. */
static void norm_row(struct array *a, int64_t row, double alpha, bool has_dsum)
{
    const int64_t cols = a[H].cols;
    const double *h = a[H].value + row * cols, *dy = a[DY_N].value + row * cols;
    double mean, rstd, sum = 0, dot = 0;
    moments(h, cols, 1, &mean, &rstd);
    a[STATS].data[2 * row] = (float)mean;
    a[STATS].data[2 * row + 1] = (float)rstd;
    for (int64_t i = 0; i < cols; i++) {
        sum += a[GAIN].value[i] * dy[i] / (double)cols;
        dot += a[GAIN].value[i] * dy[i] * (h[i] - mean) * rstd / (double)cols;
    }
    for (int64_t i = 0; i < cols; i++) {
        const double xhat = (h[i] - mean) * rstd, u = a[GAIN].value[i] * dy[i];
        const double dh =
            rstd * (u - sum - xhat * dot) + (has_dsum ? a[DSUM].value[row * cols + i] : 0);
        a[DX_N].value[row * cols + i] += alpha * dh;
        a[DRES].value[row * cols + i] += dh;
        a[DGAIN].value[i] += dy[i] * xhat;
        a[DBIAS_N].value[i] += dy[i];
    }
}

static void check_rows(int64_t rows, int64_t cols, int how)
{
    const float alpha = how & SECOND ? 0.5f : 1;
    struct array a[N_NORM] = {
        array_of(rows, cols, 3, 1), floats_of(cols, 2),         array_of(rows, cols, 1, 3),
        array_of(rows, cols, 0, 4), array_of(rows, cols, 2, 5), array_of(rows, cols, 0, 6),
        floats_of(cols, 7),         floats_of(cols, 8),         floats_of(2 * rows, 9)};
    begin_at(&a[DX_N], how & ACCUMULATE);
    begin_at(&a[DRES], how & ACCUMULATE);
    for (int64_t row = 0; row < rows; row++)
        norm_row(a, row, (double)alpha, how & SECOND);
    const struct s2s_mat none = {0};
    struct s2s_k_layernorm_backward back = {.h = mat_of(&a[H]),
                                            .dy = mat_of(&a[DY_N]),
                                            .dsum = how & SECOND ? mat_of(&a[DSUM]) : none,
                                            .dx = mat_of(&a[DX_N]),
                                            .dresidual = mat_of(&a[DRES]),
                                            .gain = vec(a[GAIN].data),
                                            .stats = vec(a[STATS].data),
                                            .dgain = vec(a[DGAIN].data),
                                            .dbias = vec(a[DBIAS_N].data),
                                            .rows = rows,
                                            .cols = cols,
                                            .alpha = alpha,
                                            .accumulate_dx = how & ACCUMULATE,
                                            .accumulate_dresidual = how & ACCUMULATE};
    back.workspace = work(k->layernorm_backward_workspace(&queue, &back));
    k->layernorm_backward(&queue, &back);
    done();
    compare("dx", &a[DX_N]);
    compare("dresidual", &a[DRES]);
    compare("dgain", &a[DGAIN]);
    compare("dbias", &a[DBIAS_N]);
    free_all(a, N_NORM);
}

static void norms_of_rows_pass_back(void **state)
{
    static const int64_t shapes[][2] = {{1, 1}, {0, 4}, {3, 7}, {130, 33}, {65, 256}, {5, 1030}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int how = 0; how < 4; how++)
            check_rows(shapes[i][0], shapes[i][1], how);
}

/* Column `col`, of which STATS has the mean, variance and bias. */
static void norm_column(struct array *a, int64_t rows, int64_t col, bool silu, bool from_batch)
{
    const int64_t cols = a[H].cols;
    const double gain = a[GAIN].value[col], bias = a[STATS].value[2 * cols + col];
    double mean, rstd, sum = 0, dot = 0;
    moments(a[H].value + col, rows, cols, &mean, &rstd);
    a[STATS].data[col] = (float)mean;
    a[STATS].data[cols + col] = (float)(1 / (rstd * rstd) - eps);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t t = 0; t < rows; t++) {
            const double xhat = (a[H].value[t * cols + col] - mean) * rstd, z = gain * xhat + bias;
            const double s = 1 / (1 + exp(-z)), slope = silu ? s * (1 + z * (1 - s)) : 1;
            const double dz = a[DY_N].value[t * cols + col] * slope;
            if (pass == 0) {
                sum += dz;
                dot += dz * xhat;
            } else {
                const double less = from_batch ? (sum + xhat * dot) / (double)rows : 0;
                a[DX_N].value[t * cols + col] += gain * rstd * (dz - less);
            }
        }
    a[DBIAS_N].value[col] += sum;
    a[DGAIN].value[col] += dot;
}

static void check_columns(int64_t rows, int64_t cols, int how, bool silu)
{
    struct array a[N_NORM] = {
        array_of(rows, cols, 3, 1), floats_of(cols, 2),         array_of(rows, cols, 1, 3),
        array_of(0, cols, 0, 4),    array_of(rows, cols, 2, 5), array_of(0, cols, 0, 6),
        floats_of(cols, 7),         floats_of(cols, 8),         floats_of(3 * cols, 9)};
    begin_at(&a[DX_N], how & ACCUMULATE);
    for (int64_t col = 0; col < cols; col++)
        norm_column(a, rows, col, silu, how & SECOND);
    const float *const stats = vec(a[STATS].data);
    struct s2s_k_batchnorm_backward back = {.forward = {.x = mat_of(&a[H]),
                                                        .mean = stats,
                                                        .var = stats + cols,
                                                        .gain = vec(a[GAIN].data),
                                                        .bias = stats + 2 * cols,
                                                        .rows = rows,
                                                        .cols = cols,
                                                        .eps = (float)eps,
                                                        .silu = silu},
                                            .dy = mat_of(&a[DY_N]),
                                            .dx = mat_of(&a[DX_N]),
                                            .dgain = vec(a[DGAIN].data),
                                            .dbias = vec(a[DBIAS_N].data),
                                            .from_batch = how & SECOND,
                                            .accumulate_dx = how & ACCUMULATE};
    back.workspace = work(k->batchnorm_backward_workspace(&queue, &back));
    k->batchnorm_backward(&queue, &back);
    done();
    compare("dx", &a[DX_N]);
    compare("dgain", &a[DGAIN]);
    compare("dbias", &a[DBIAS_N]);
    free_all(a, N_NORM);
}

static void norms_of_columns_pass_back(void **state)
{
    for (int how = 0; how < 4; how++) {
        check_columns(200, 37, how, how & 1);
        check_columns(65, 40, how, !(how & 1));
        check_columns(2, 1, how, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_pass_back_through_their_filters),
        cmocka_unit_test(time_passes_back_through_its_filters),
        cmocka_unit_test(norms_of_rows_pass_back),
        cmocka_unit_test(norms_of_columns_pass_back),
    };
    return run_on_tables_and_types(tests);
}
