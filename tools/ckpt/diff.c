/* s2s-ckpt diff: which tensors of two checkpoints differ, and by how much. */
#include <math.h>

#include "lib/ckpt/number.h"
#include "tools/ckpt/ckpt_tool.h"

struct options {
    struct s2s_common common;
    const char *a, *b;
    double tolerance;
};

enum { KEY_TOLERANCE = 0x100 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct options *opt = state->input;
    switch (key) {
    case KEY_TOLERANCE:
        opt->tolerance = s2s_arg_f64(state, "tolerance", arg, 0, INFINITY);
        return 0;
    case ARGP_KEY_ARG:
        if (opt->b)
            argp_error(state, "unexpected argument '%s': give two checkpoints", arg);
        *(opt->a ? &opt->b : &opt->a) = arg;
        return 0;
    case ARGP_KEY_END:
        if (!opt->b)
            argp_error(state, "two checkpoints are needed");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"tolerance", KEY_TOLERANCE, "X", 0,
     "Take values that differ by at most X as equal, whatever the dtypes (default 0: same dtype, "
     "same bits)",
     1},
    {0},
};

static const struct argp argp = {
    options,
    parse,
    "A B",
    "Compare two checkpoints, of any formats, tensor by tensor: names, shapes, dtypes, values. "
    "Prints "
    "nothing and exits with 0 if they are equal, with 1 if they differ.\vExamples:\n"
    "  s2s-ckpt diff before/ after/\n"
    "  s2s-ckpt diff --tolerance 1e-6 checkpoints/ model/\n\n"
    "See also: s2s-ckpt(1)",
    NULL,
    NULL,
    NULL};

struct report {
    const struct options *opt;
    struct s2s_progress progress; /* of A's bytes */
    size_t n_same, n_differ;
    bool first;
};

/* One side of the comparison: a piece of a tensor of a checkpoint. */
struct side {
    struct s2s_ckpt *ckpt;
    const struct s2s_ckpt_tensor *tensor; /* being compared */
    char *bytes;                          /* S2S_CKPT_PIECE bytes */
};

struct difference {
    int64_t n_past; /* elements beyond the tolerance, including NaN against a number */
    double max_abs; /* NaN if a number is compared with NaN */
};

static bool is_complex(enum s2s_dtype dtype)
{
    return dtype == S2S_C64 || dtype == S2S_C128;
}

/* Can a double hold all values? It rounds integers beyond 2^53. */
static bool fits_double(enum s2s_dtype dtype)
{
    return dtype != S2S_I64 && dtype != S2S_U64 && s2s_ckpt_is_number(dtype);
}

/* Exact where long double holds 64-bit integers, as on x86-64 and AArch64. */
static void number(long double *re, long double *im, const char *bytes, enum s2s_dtype dtype,
                   size_t i)
{
    int64_t whole;
    *im = 0;
    if (dtype == S2S_F4_E2M1FN_X2) {
        *re = s2s_f4_to_f32((uint8_t)bytes[i]);
        *im = s2s_f4_to_f32((uint8_t)bytes[i] >> 4);
    } else if (is_complex(dtype)) {
        const enum s2s_dtype part = dtype == S2S_C64 ? S2S_F32 : S2S_F64;
        *re = s2s_ckpt_number(bytes, part, 2 * i);
        *im = s2s_ckpt_number(bytes, part, 2 * i + 1);
    } else if (fits_double(dtype)) {
        *re = s2s_ckpt_number(bytes, dtype, i);
    } else {
        memcpy(&whole, bytes + i * sizeof whole, sizeof whole);
        *re = dtype == S2S_U64 ? (long double)(uint64_t)whole : (long double)whole;
    }
}

/* |x - y|; NaN and infinities equal themselves. */
static long double apart(long double x, long double y)
{
    return x == y || (isnan(x) && isnan(y)) ? 0 : fabsl(x - y);
}

/* |a - b|, of two pairs the larger one; *past: beyond the tolerance, or a number against NaN. A
 * pair is no number: NaN. */
static double distance(bool *past, const struct side *a, const struct side *b, size_t i,
                       double tolerance)
{
    long double x, x_im, y, y_im;
    const bool a_pair = a->tensor->dtype == S2S_F4_E2M1FN_X2,
               b_pair = b->tensor->dtype == S2S_F4_E2M1FN_X2;
    number(&x, &x_im, a->bytes, a->tensor->dtype, i);
    number(&y, &y_im, b->bytes, b->tensor->dtype, i);
    const long double re = apart(x, y), im = apart(x_im, y_im),
                      by = a_pair != b_pair ? NAN
                           : a_pair         ? fmaxl(re, im)
                           : im == 0        ? re
                                            : hypotl(re, im);
    *past = !(by <= tolerance);
    return (double)by;
}

static size_t count_unlike(const char *a, const char *b, size_t size, size_t n)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        found += memcmp(a + i * size, b + i * size, size) != 0;
    return found;
}

enum { BLOCK = 1024 /* numbers: both sides fit in the L1 cache */ };

/* Written to be vectorised. *max_bits: the largest distance as bits, which for nonnegative numbers
 * sort like the numbers, with NaN above all. Returns the number beyond the tolerance. */
static size_t compare_block(uint64_t *max_bits, const double *x, const double *y, size_t n,
                            double tolerance)
{
    size_t past = 0;
    uint64_t most = *max_bits;
    for (size_t i = 0; i < n; i++) {
        const bool alike = x[i] == y[i] || (x[i] != x[i] && y[i] != y[i]);
        const double by = alike ? 0 : fabs(x[i] - y[i]);
        uint64_t bits;
        memcpy(&bits, &by, sizeof bits);
        most = bits > most ? bits : most;
        past += !(by <= tolerance);
    }
    *max_bits = most;
    return past;
}

static void compare_doubles(struct difference *d, const struct side *a, const struct side *b,
                            size_t n, double tolerance)
{
    double x[BLOCK], y[BLOCK];
    uint64_t max_bits;
    const size_t a_size = s2s_dtype_size(a->tensor->dtype),
                 b_size = s2s_dtype_size(b->tensor->dtype);
    const bool by_bits = a->tensor->dtype == b->tensor->dtype && tolerance == 0;
    memcpy(&max_bits, &d->max_abs, sizeof max_bits);
    max_bits &= INT64_MAX; /* a NaN may have a sign */
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t now = n - i < BLOCK ? n - i : BLOCK;
        const char *in_a = a->bytes + i * a_size, *in_b = b->bytes + i * b_size;
        s2s_ckpt_numbers(x, in_a, a->tensor->dtype, now);
        s2s_ckpt_numbers(y, in_b, b->tensor->dtype, now);
        const size_t past = compare_block(&max_bits, x, y, now, tolerance);
        d->n_past += (int64_t)(by_bits ? count_unlike(in_a, in_b, a_size, now) : past);
    }
    memcpy(&d->max_abs, &max_bits, sizeof max_bits);
}

static void compare_numbers(struct difference *d, const struct side *a, const struct side *b,
                            size_t n, double tolerance)
{
    const size_t size = s2s_dtype_size(a->tensor->dtype);
    const bool same_type = a->tensor->dtype == b->tensor->dtype;
    if (same_type && memcmp(a->bytes, b->bytes, n * size) == 0)
        return;
    if (fits_double(a->tensor->dtype) && fits_double(b->tensor->dtype)) {
        compare_doubles(d, a, b, n, tolerance);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (same_type && memcmp(a->bytes + i * size, b->bytes + i * size, size) == 0)
            continue;
        bool past;
        double by = distance(&past, a, b, i, tolerance);
        d->max_abs = by > d->max_abs || isnan(by) ? by : d->max_abs;
        d->n_past += past || (same_type && tolerance == 0); /* bits differ */
    }
}

static int read_piece(const struct side *side, const struct s2s_ckpt_walk *walk,
                      struct s2s_error *err)
{
    return s2s_ckpt_read(side->ckpt, side->tensor, walk->begin, walk->box, side->bytes, err);
}

static int compare_values(struct report *r, struct difference *d, const struct side *a,
                          const struct side *b, struct s2s_error *err)
{
    const int n_dims = a->tensor->n_dims;
    const size_t a_size = s2s_dtype_size(a->tensor->dtype),
                 b_size = s2s_dtype_size(b->tensor->dtype);
    struct s2s_ckpt_walk walk;
    int rc = 0;
    s2s_ckpt_walk_begin(&walk, a->tensor->shape, n_dims, a_size > b_size ? a_size : b_size);
    while (rc == 0 && s2s_ckpt_walk_next(&walk)) {
        size_t n = 1;
        for (int k = 0; k < n_dims; k++)
            n *= (size_t)walk.box[k];
        rc = read_piece(a, &walk, err);
        if (rc == 0)
            rc = read_piece(b, &walk, err);
        if (rc == 0)
            compare_numbers(d, a, b, n, r->opt->tolerance);
        s2s_progress_add(&r->progress, (int64_t)(n * a_size));
    }
    return rc;
}

static void begin_line(struct report *r, const char *name, const char *what)
{
    r->n_differ++;
    ckpt_make_way(&r->progress);
    if (!r->opt->common.json) {
        ckpt_print_name(name);
        printf("\t%s", what);
        return;
    }
    printf("%s{\"name\": ", r->first ? "\n    " : ",\n    ");
    ckpt_print_json_text(name);
    printf(", \"difference\": \"%s\"", what);
    r->first = false;
}

static void end_line(const struct report *r)
{
    fputs(r->opt->common.json ? "}" : "\n", stdout);
}

static void report_shapes(struct report *r, const struct s2s_ckpt_tensor *x,
                          const struct s2s_ckpt_tensor *y)
{
    begin_line(r, x->name, "shape");
    fputs(r->opt->common.json ? ", \"a\": " : "\t", stdout);
    ckpt_print_shape(x->shape, x->n_dims);
    fputs(r->opt->common.json ? ", \"b\": " : "\t", stdout);
    ckpt_print_shape(y->shape, y->n_dims);
    end_line(r);
}

static void report_values(struct report *r, const struct s2s_ckpt_tensor *x,
                          const struct s2s_ckpt_tensor *y, const struct difference *d)
{
    bool types = x->dtype != y->dtype;
    const char *quote = isfinite(d->max_abs) ? "" : "\""; /* not a number in JSON */
    begin_line(r, x->name, d->n_past ? "values" : "dtype");
    if (r->opt->common.json)
        printf(", \"dtype_a\": \"%s\", \"dtype_b\": \"%s\", \"elements\": %lld, \"of\": %lld, "
               "\"max_abs\": %s%.17g%s",
               s2s_dtype_name(x->dtype), s2s_dtype_name(y->dtype), (long long)d->n_past,
               (long long)s2s_ckpt_numel(x), quote, d->max_abs, quote);
    else
        printf("\t%s%s%s\t%lld of %lld\tmax %.6g", s2s_dtype_name(x->dtype), types ? " and " : "",
               types ? s2s_dtype_name(y->dtype) : "", (long long)d->n_past,
               (long long)s2s_ckpt_numel(x), d->max_abs);
    end_line(r);
}

static bool same_shape(const struct s2s_ckpt_tensor *x, const struct s2s_ckpt_tensor *y)
{
    return x->n_dims == y->n_dims &&
           (x->n_dims == 0 ||
            memcmp(x->shape, y->shape, (size_t)x->n_dims * sizeof *x->shape) == 0);
}

/* Compares two tensors of one name. Flattened tensors of different parallelism have different
 * shapes; then both are compared in the shape of the parameter. */
static int compare_tensors(struct report *r, struct side *a, struct side *b, struct s2s_error *err)
{
    struct difference d = {.n_past = 0};
    if (!same_shape(a->tensor, b->tensor)) {
        a->tensor = s2s_ckpt_unflattened(a->ckpt, a->tensor);
        b->tensor = s2s_ckpt_unflattened(b->ckpt, b->tensor);
    }
    if (!same_shape(a->tensor, b->tensor)) {
        report_shapes(r, a->tensor, b->tensor);
        return 0;
    }
    int rc = compare_values(r, &d, a, b, err);
    if (rc == 0 && (d.n_past || (a->tensor->dtype != b->tensor->dtype && r->opt->tolerance == 0)))
        report_values(r, a->tensor, b->tensor, &d);
    else
        r->n_same++;
    return rc;
}

static int compare_all(struct report *r, struct side *a, struct side *b, struct s2s_error *err)
{
    size_t n, m;
    const struct s2s_ckpt_tensor *x = s2s_ckpt_tensors(a->ckpt, &n), *x_end = x + n;
    const struct s2s_ckpt_tensor *y = s2s_ckpt_tensors(b->ckpt, &m), *y_end = y + m;
    int rc = 0;
    s2s_progress_begin(&r->progress, "comparing", "bytes", ckpt_tensor_bytes(a->ckpt));
    while (rc == 0 && (x < x_end || y < y_end)) {
        const int order = x == x_end ? 1 : y == y_end ? -1 : strcmp(x->name, y->name);
        if (order) {
            begin_line(r, order < 0 ? x->name : y->name, order < 0 ? "only in A" : "only in B");
            end_line(r);
        } else {
            a->tensor = x;
            b->tensor = y;
            rc = compare_tensors(r, a, b, err);
        }
        x += order <= 0;
        y += order >= 0;
    }
    s2s_progress_end(&r->progress);
    return rc;
}

/* Sets *differ if they differ. */
static int diff_paths(const struct options *opt, bool *differ, struct s2s_error *err)
{
    struct side a = {.ckpt = NULL}, b = {.ckpt = NULL};
    struct report r = {.opt = opt, .first = true};
    struct s2s_printout to = {.out = NULL};
    int rc = s2s_ckpt_open(&a.ckpt, opt->a, err);
    if (rc == 0)
        rc = s2s_ckpt_open(&b.ckpt, opt->b, err);
    if (rc == 0)
        rc = ckpt_check_out(opt->common.out, b.ckpt, err);
    if (rc == 0)
        rc = ckpt_report_begin(&to, &opt->common, a.ckpt, err);
    if (rc == 0 && opt->common.json)
        printf("{\"differences\": [");
    a.bytes = s2s_xalloc_aligned(S2S_CKPT_PIECE);
    b.bytes = s2s_xalloc_aligned(S2S_CKPT_PIECE);
    if (rc == 0)
        rc = compare_all(&r, &a, &b, err);
    if (rc == 0 && opt->common.json) {
        printf("%s], \"same\": %zu, \"different\": %zu, ", r.first ? "" : "\n  ", r.n_same,
               r.n_differ);
        ckpt_print_warnings();
        puts("}");
    }
    rc = s2s_printout_end(&to, rc, err);
    if (rc == 0)
        s2s_info("diff", "%zu tensor%s equal, %zu different", r.n_same, s2s_plural(r.n_same),
                 r.n_differ);
    s2s_ckpt_close(b.ckpt);
    s2s_ckpt_close(a.ckpt);
    free(a.bytes);
    free(b.bytes);
    *differ = r.n_differ > 0;
    return rc;
}

int ckpt_diff(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT};
    bool differ = false;
    s2s_tool_parse(&argp, argc, argv, &opt);
    int rc = ckpt_launch(&opt.common, err);
    if (rc == 0)
        rc = ckpt_agree(ckpt_is_first() ? diff_paths(&opt, &differ, err) : 0, err);
    return rc < 0 ? rc : differ;
}
