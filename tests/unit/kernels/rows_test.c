/* Rows by number: embeddings (ids repeat), gather and scatter (they do not), plain sums. */
#include "tests/unit/kernels/kernel_test.h"

enum { ROWS = 7, COLS = 131, STRIDE = 133, N = 9 };

static const int32_t ids[N] = {3, 0, 3, -1, 6, 2, 3, 0, -5};
static const int32_t unique[N] = {3, 0, -1, 5, 6, 2, -1, 1, -7};

/* The same ids sorted, without negative ones and 0, of which no gradient is wanted. */
static const int32_t used[] = {2, 3, 6}, starts[] = {0, 1, 4, 5}, order[] = {5, 0, 2, 6, 4};

static void embeddings_and_their_gradient(void **state)
{
    float *table = values(ROWS, COLS, STRIDE, 1), *y = values(N, COLS, STRIDE, 2);
    static double want[N * COLS], want_table[ROWS * COLS];
    for (int i = 0; i < N; i++)
        for (int c = 0; c < COLS; c++)
            want[i * COLS + c] = ids[i] < 0 ? 0 : 2.5 * table[ids[i] * STRIDE + c];
    k->embedding(&queue, &(struct s2s_k_embedding){mat(table, STRIDE), mat(y, STRIDE),
                                                   in(ids, sizeof ids), N, COLS, 2.5f});
    done();
    close_to("y", y, want, N, COLS, STRIDE, 1e-7);
    /* added to what is there, row 0 skipped */
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++) {
            want_table[r * COLS + c] = table[r * STRIDE + c];
            for (int i = 0; i < N; i++)
                if (ids[i] == r && r != 0)
                    want_table[r * COLS + c] += 2.5 * y[i * STRIDE + c];
        }
    k->embedding_backward(&queue,
                          &(struct s2s_k_embedding_backward){.dtable = wide_mat(table, STRIDE),
                                                             .dy = mat(y, STRIDE),
                                                             .rows = in(used, sizeof used),
                                                             .starts = in(starts, sizeof starts),
                                                             .order = in(order, sizeof order),
                                                             .n_ids = 3,
                                                             .cols = COLS,
                                                             .scale = 2.5f});
    done();
    close_to("dtable", table, want_table, ROWS, COLS, STRIDE, 1e-6);
    free(table);
    free(y);
}

/* Two sources a row, which repeat, with and without weights. */
static void sums_of_rows(void **state)
{
    static const int32_t sources[N * 2] = {3,  0, 3, 3, -1, 6, 2, -1, -1,
                                           -1, 0, 1, 6, 5,  4, 4, 2,  0};
    for (int how = 0; how < 4; how++) {
        const bool weighted = how & 1, accumulate = how & 2;
        float *x = values(ROWS, COLS, STRIDE, 1), *y = values(N, COLS, STRIDE, 2);
        float *w = values(1, N * 2, N * 2, 3);
        static double want[N * COLS];
        for (int i = 0; i < N; i++)
            for (int c = 0; c < COLS; c++) {
                want[i * COLS + c] = accumulate ? y[i * STRIDE + c] : 0;
                for (int j = 2 * i; j < 2 * i + 2; j++)
                    if (sources[j] >= 0)
                        want[i * COLS + c] += (weighted ? w[j] : 1.0) * x[sources[j] * STRIDE + c];
            }
        k->rows_sum(&queue, &(struct s2s_k_rows_sum){.dst = mat(y, STRIDE),
                                                     .src = mat(x, STRIDE),
                                                     .idx = in(sources, sizeof sources),
                                                     .weights = weighted ? vec(w) : NULL,
                                                     .n = N,
                                                     .n_sources = 2,
                                                     .cols = COLS,
                                                     .accumulate = accumulate});
        done();
        close_to("sums", y, want, N, COLS, STRIDE, 1e-6);
        free(x);
        free(y);
        free(w);
    }
}

/* Two sources a row, all different; two are left out, and one row of x is nobody's. Rows begin
 * anywhere, or where a GPU takes many elements at a time. */
static void sums_of_rows_pass_back(void **state)
{
    enum { WIDE = 2056 };
    static const int32_t sources[6] = {3, 0, -1, 6, 2, -1};
    for (int how = 0; how < 8; how++) {
        const bool weighted = how & 1, dots = how & 2;
        const int64_t cols = how & 4 ? WIDE : COLS, stride = how & 4 ? WIDE + 8 : STRIDE;
        float *x = values(ROWS, cols, stride, 1), *dy = values(3, cols, stride, 2);
        float *dx = values(ROWS, cols, stride, 3), *w = values(1, 6, 6, 4),
              *dw = values(1, 6, 6, 5);
        static double want[ROWS * WIDE];
        double want_dw[6] = {0};
        for (int i = 0; i < ROWS * cols; i++)
            want[i] = dx[i / cols * stride + i % cols];
        for (int j = 0; j < 6; j++)
            for (int c = 0; c < cols && sources[j] >= 0; c++) {
                want[sources[j] * cols + c] = (weighted ? w[j] : 1.0) * dy[j / 2 * stride + c];
                want_dw[j] += (double)dy[j / 2 * stride + c] * x[sources[j] * stride + c];
            }
        k->rows_sum_backward(&queue,
                             &(struct s2s_k_rows_sum_backward){.src = mat(x, stride),
                                                               .ddst = mat(dy, stride),
                                                               .dsrc = mat(dx, stride),
                                                               .idx = in(sources, sizeof sources),
                                                               .weights = weighted ? vec(w) : NULL,
                                                               .dweights = dots ? vec(dw) : NULL,
                                                               .n = 3,
                                                               .n_sources = 2,
                                                               .cols = cols});
        done();
        close_to("dsrc", dx, want, ROWS, cols, stride, 1e-7);
        if (dots)
            close_to("dweights", dw, want_dw, 1, 6, 6, 1e-5);
        free(x);
        free(dy);
        free(dx);
        free(w);
        free(dw);
    }
}

/* Of three sources a row, of which some are left out, two are equal, and one row has none. */
static void largest_of_rows_and_their_gradient(void **state)
{
    enum { ROWS_OF = 12, MAXIMA = 4, SOURCES = 3 };
    static const int32_t sources[MAXIMA * SOURCES] = {3, 0, 9, -1, 6, 2, -1, -1, -1, 5, 11, -1};
    for (int how = 0; how < 4; how++) {
        const bool accumulate = how & 1;
        const int64_t cols = how & 2 ? 264 : COLS, stride = how & 2 ? 272 : STRIDE;
        float *x = values(ROWS_OF, cols, stride, 1), *y = values(MAXIMA, cols, stride, 2);
        float *dy = values(MAXIMA, cols, stride, 3), *dx = values(ROWS_OF, cols, stride, 4);
        memcpy(x + 9 * stride, x + 0 * stride, (size_t)cols / 2 * sizeof *x);
        x[5 * stride] = x[11 * stride] = -INFINITY;
        static double want[MAXIMA * 264], want_dx[ROWS_OF * 264];
        for (int64_t i = 0; i < ROWS_OF * cols; i++)
            want_dx[i] = dx[i / cols * stride + i % cols];
        for (int64_t i = 0; i < MAXIMA * cols; i++) {
            const int32_t *of = sources + i / cols * SOURCES;
            const int64_t c = i % cols;
            int first = -1;
            for (int j = 0; j < SOURCES; j++)
                if (of[j] >= 0 && (first < 0 || x[of[j] * stride + c] > x[of[first] * stride + c]))
                    first = j;
            want[i] = first < 0 ? 0 : x[of[first] * stride + c];
            for (int j = 0; j < SOURCES; j++)
                if (of[j] >= 0)
                    want_dx[of[j] * cols + c] = (accumulate ? want_dx[of[j] * cols + c] : 0) +
                                                (j == first ? dy[i / cols * stride + c] : 0);
        }
        const struct s2s_k_rows_max args = {.dst = mat(y, stride),
                                            .src = mat(x, stride),
                                            .idx = in(sources, sizeof sources),
                                            .n = MAXIMA,
                                            .n_sources = SOURCES,
                                            .cols = cols};
        k->rows_max(&queue, &args);
        k->rows_max_backward(&queue, &(struct s2s_k_rows_max_backward){.forward = args,
                                                                       .ddst = mat(dy, stride),
                                                                       .dsrc = mat(dx, stride),
                                                                       .accumulate = accumulate});
        done();
        assert_true(y[3 * stride] == -INFINITY && want[3 * cols] == -INFINITY);
        y[3 * stride] = 0;
        want[3 * cols] = 0;
        close_to("largest", y, want, MAXIMA, cols, stride, 1e-7);
        close_to("dsrc", dx, want_dx, ROWS_OF, cols, stride, 1e-6);
        free(x);
        free(y);
        free(dy);
        free(dx);
    }
}

static void gather_and_scatter(void **state)
{
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        float *x = values(ROWS, COLS, STRIDE, 1), *y = values(N, COLS, STRIDE, 2);
        static double want_y[N * COLS], want_x[ROWS * COLS];
        for (int i = 0; i < N; i++)
            for (int c = 0; c < COLS; c++)
                want_y[i * COLS + c] = (accumulate ? (double)y[i * STRIDE + c] : 0) +
                                       (unique[i] < 0 ? 0 : x[unique[i] * STRIDE + c]);
        k->gather_rows(&queue,
                       &(struct s2s_k_rows){mat(y, STRIDE), mat(x, STRIDE),
                                            in(unique, sizeof unique), N, COLS, accumulate});
        done();
        close_to("gathered", y, want_y, N, COLS, STRIDE, 1e-6);
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++) {
                want_x[r * COLS + c] = x[r * STRIDE + c];
                for (int i = 0; i < N; i++)
                    if (unique[i] == r)
                        want_x[r * COLS + c] =
                            (accumulate ? want_x[r * COLS + c] : 0) + y[i * STRIDE + c];
            }
        k->scatter_rows(&queue,
                        &(struct s2s_k_rows){mat(x, STRIDE), mat(y, STRIDE),
                                             in(unique, sizeof unique), N, COLS, accumulate});
        done();
        close_to("scattered", x, want_x, ROWS, COLS, STRIDE, 1e-6);
        free(x);
        free(y);
    }
}

static void scaled_sums(void **state)
{
    /* 0: alpha x; 1: a z of its own; 2: z is y */
    for (int how = 0; how < 3; how++) {
        float *x = values(ROWS, COLS, STRIDE, 1), *y = values(ROWS, COLS, COLS, 2);
        float *z = values(ROWS, COLS, STRIDE, 3);
        static double want[ROWS * COLS];
        for (int i = 0; i < ROWS * COLS; i++) {
            const int at = i / COLS * STRIDE + i % COLS;
            want[i] = -1.5 * x[at] + (how == 0 ? 0 : 2.0 * (how == 1 ? z[at] : y[i]));
            y[i] = how == 2 ? y[i] : NAN; /* old values do not matter */
        }
        struct s2s_k_axpby args = {.x = mat(x, STRIDE),
                                   .y = mat(y, COLS),
                                   .rows = ROWS,
                                   .cols = COLS,
                                   .alpha = -1.5f,
                                   .beta = 2};
        if (how > 0)
            args.z = how == 1 ? mat(z, STRIDE) : args.y;
        k->axpby(&queue, &args);
        done();
        close_to("y", y, want, ROWS, COLS, COLS, 1e-6);
        free(x);
        free(y);
        free(z);
    }
}

/* ---- copies ---- */

static const enum s2s_dtype types[] = {S2S_F32, S2S_BF16, S2S_F64, S2S_I32};

static void put(void *to, enum s2s_dtype dtype, int64_t i, double x)
{
    if (dtype == S2S_F32)
        ((float *)to)[i] = (float)x;
    else if (dtype == S2S_BF16)
        ((uint16_t *)to)[i] = s2s_f32_to_bf16((float)x);
    else if (dtype == S2S_F64)
        ((double *)to)[i] = x;
    else
        ((int32_t *)to)[i] = (int32_t)x;
}

static double at(const void *from, enum s2s_dtype dtype, int64_t i)
{
    return dtype == S2S_F32    ? ((const float *)from)[i]
           : dtype == S2S_BF16 ? s2s_bf16_to_f32(((const uint16_t *)from)[i])
           : dtype == S2S_F64  ? ((const double *)from)[i]
                               : ((const int32_t *)from)[i];
}

/* Values that round: what is stored is what the element type has. */
static void copies_convert_and_fills_repeat(void **state)
{
    enum { LONG = 20001, GAP = 3 };
    static const int64_t sizes[][2] = {{0, 5}, {ROWS, COLS}, {2, LONG}};
    for (int c = 0; c < 3 * 16; c++) {
        const enum s2s_dtype from = types[c % 4], to = types[c / 4 % 4];
        const int64_t rows = sizes[c / 16][0], cols = sizes[c / 16][1], stride = cols + GAP;
        char *src = s2s_xcalloc((size_t)(rows * stride + 1), 8);
        char *dst = s2s_xcalloc((size_t)(rows * stride + 1), 8);
        char *want = s2s_xcalloc((size_t)(rows * stride + 1), 8);
        for (int64_t i = 0; i < rows * stride; i++) {
            put(src, from, i, (double)(i * 7919 % 20011 - 10007) * 0.8713);
            put(dst, to, i, 5);
            put(want, to, i, i % stride < cols ? at(src, from, i) : 5);
        }
        const size_t bytes = (size_t)(rows * stride) * s2s_dtype_size(to);
        k->copy(&queue,
                &(struct s2s_k_copy){{vec(src), stride, from}, {vec(dst), stride, to}, rows, cols});
        done();
        assert_memory_equal(dst, want, bytes);
        for (int64_t i = 0; i < rows * stride; i++)
            put(want, to, i, i % stride < cols ? -3.3 : 5);
        k->fill(&queue, &(struct s2s_k_fill){{vec(dst), stride, to}, rows, cols, -3.3});
        done();
        assert_memory_equal(dst, want, bytes);
        free(src);
        free(dst);
        free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_and_their_gradient),
        cmocka_unit_test(gather_and_scatter),
        cmocka_unit_test(sums_of_rows),
        cmocka_unit_test(sums_of_rows_pass_back),
        cmocka_unit_test(largest_of_rows_and_their_gradient),
        cmocka_unit_test(scaled_sums),
        cmocka_unit_test(copies_convert_and_fills_repeat),
    };
    return run_on_tables_and_types(tests);
}
