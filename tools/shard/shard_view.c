/* view: what is stored, as text or JSON; nothing is computed. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/shard/shard.h"

/* Text shows so many values of a large tensor at either end. */
enum { TEXT_ALL = 200, TEXT_EDGE = 8 };

/* ---- values ---- */

/* Any value with the digits that bring it back; JSON has no NaN and no infinities: strings. */
static void put_float(double x, int digits)
{
    if (isnan(x))
        fputs("\"NaN\"", stdout);
    else if (isinf(x))
        fputs(x > 0 ? "\"Infinity\"" : "\"-Infinity\"", stdout);
    else if (x == 0 && signbit(x))
        fputs("-0.0", stdout); /* JSON readers take -0 for an integer and lose the sign */
    else
        printf("%.*g", digits, x);
}

static void put_real(const char *p, enum s2s_dtype dtype)
{
    uint16_t half = 0;
    float f32;
    double f64;
    switch (dtype) {
    case S2S_F64:
    case S2S_C128:
        memcpy(&f64, p, 8);
        put_float(f64, 17);
        break;
    case S2S_F32:
    case S2S_C64:
        memcpy(&f32, p, 4);
        put_float((double)f32, 9);
        break;
    case S2S_F8_E5M2:
    case S2S_F8_E4M3:
    case S2S_F8_E8M0:
    case S2S_F8_E4M3FNUZ:
    case S2S_F8_E5M2FNUZ:
        put_float((double)s2s_f8_to_f32((uint8_t)*p, dtype), 9);
        break;
    default:
        memcpy(&half, p, 2);
        /* few bits: their exact value is mostly shorter than a number rounded to nine digits */
        put_float((double)(dtype == S2S_F16 ? s2s_f16_to_f32(half) : s2s_bf16_to_f32(half)), 17);
    }
}

static void put_element(const char *p, enum s2s_dtype dtype)
{
    int64_t i = 0;
    uint64_t u = 0;
    size_t size = s2s_dtype_size(dtype);
    switch (dtype) {
    case S2S_BOOL:
        fputs(*p ? "true" : "false", stdout);
        break;
    case S2S_I8:
        printf("%d", *(const signed char *)p);
        break;
    case S2S_I16:
    case S2S_I32:
    case S2S_I64:
        memcpy(&i, p, size);
        i = (int64_t)((uint64_t)i << (64 - 8 * size)) >> (64 - 8 * size); /* extends the sign */
        printf("%" PRId64, i);
        break;
    case S2S_U8:
    case S2S_U16:
    case S2S_U32:
    case S2S_U64:
        memcpy(&u, p, size);
        printf("%" PRIu64, u);
        break;
    case S2S_C64:
    case S2S_C128: /* two entries: real, imaginary */
        put_real(p, dtype);
        fputs(", ", stdout);
        put_real(p + size / 2, dtype);
        break;
    case S2S_F4_E2M1FN_X2: /* two entries: the low four bits are the first */
        put_float((double)s2s_f4_to_f32((uint8_t)*p), 9);
        fputs(", ", stdout);
        put_float((double)s2s_f4_to_f32((uint8_t)*p >> 4), 9);
        break;
    default:
        put_real(p, dtype);
    }
}

static void put_elements(const struct s2s_st_tensor *t, int64_t begin, int64_t end)
{
    size_t size = s2s_dtype_size(t->dtype);
    for (int64_t i = begin; i < end; i++) {
        if (i > begin)
            fputs(", ", stdout);
        put_element((const char *)t->data + (size_t)i * size, t->dtype);
    }
}

static void put_shape(const struct s2s_st_tensor *t)
{
    putchar('[');
    for (int d = 0; d < t->n_dims; d++)
        printf("%s%" PRId64, d ? ", " : "", t->shape[d]);
    putchar(']');
}

/* ---- records ---- */

static bool is_wanted(const struct shard_options *opt, const char *name)
{
    return !opt->tensor || !strcmp(opt->tensor, name);
}

static void put_json_record(const struct shard_options *opt, const struct s2s_record *rec)
{
    const struct s2s_safetensors *st = &rec->st;
    printf("{\"index\": %" PRId64 ", \"metadata\": {", rec->idx);
    for (size_t i = 0; i < st->n_meta; i++) {
        fputs(i ? ", " : "", stdout);
        shard_put_json(st->meta[i].key);
        fputs(": ", stdout);
        shard_put_json(st->meta[i].value);
    }
    fputs("}, \"tensors\": {", stdout);
    for (size_t i = 0, n = 0; i < st->n_tensors; i++) {
        const struct s2s_st_tensor *t = &st->tensors[i];
        if (!is_wanted(opt, t->name))
            continue;
        fputs(n++ ? ", " : "", stdout);
        shard_put_json(t->name);
        printf(": {\"dtype\": \"%s\", \"shape\": ", s2s_dtype_name(t->dtype));
        put_shape(t);
        fputs(", \"data\": [", stdout);
        put_elements(t, 0, s2s_st_numel(t));
        fputs("]}", stdout);
    }
    fputs("}}", stdout);
}

static void put_text_record(const struct shard_options *opt, const struct s2s_record *rec)
{
    const struct s2s_safetensors *st = &rec->st;
    printf("record %" PRId64 "\n", rec->idx);
    for (size_t i = 0; i < st->n_meta && !opt->tensor; i++)
        printf("  %s = %s\n", st->meta[i].key, st->meta[i].value);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct s2s_st_tensor *t = &st->tensors[i];
        int64_t n = s2s_st_numel(t);
        if (!is_wanted(opt, t->name))
            continue;
        printf("  %s %s ", t->name, s2s_dtype_name(t->dtype));
        put_shape(t);
        fputs(": ", stdout);
        if (n <= TEXT_ALL || opt->common.verbosity > 0) {
            put_elements(t, 0, n);
        } else {
            put_elements(t, 0, TEXT_EDGE);
            fputs(", ..., ", stdout);
            put_elements(t, n - TEXT_EDGE, n);
        }
        putchar('\n');
    }
}

static int put_one(const struct shard_options *opt, const struct s2s_record *rec, bool first,
                   struct s2s_error *err)
{
    if (opt->tensor && !s2s_safetensors_find(&rec->st, opt->tensor))
        return s2s_error_set(err, S2S_E_NOTFOUND, "%s: record %" PRId64 ": no tensor '%s'",
                             opt->inputs[0], rec->idx, opt->tensor);
    if (opt->common.json) {
        fputs(first ? "" : ", ", stdout);
        put_json_record(opt, rec);
    } else {
        put_text_record(opt, rec);
    }
    return 0;
}

static int view_records(const struct shard_options *opt, struct s2s_stream *in,
                        struct s2s_error *err)
{
    struct s2s_record rec;
    int rc;
    bool any = false;
    if (opt->record >= 0) {
        rc = s2s_stream_read_at(in, opt->record, &rec, err);
        if (rc != S2S_E_UNSUPPORTED)
            return rc < 0 ? rc : put_one(opt, &rec, true, err);
    }
    /* a pipe is read to its end whatever is wanted of it: only then it is known to be good */
    while ((rc = s2s_stream_next(in, &rec, err)) > 0) {
        if (opt->record >= 0 && rec.idx != opt->record)
            continue;
        if ((rc = put_one(opt, &rec, !any, err)) < 0)
            return rc;
        any = true;
    }
    if (rc == 0 && opt->record >= 0 && !any)
        rc = s2s_error_set(err, S2S_E_RANGE, "%s: no record %" PRId64, opt->inputs[0], opt->record);
    return rc;
}

int shard_view(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp_option options[] = {
        {"record", SHARD_KEY_RECORD, "I", 0, "Only record number I, from 0", 0},
        {"tensor", SHARD_KEY_TENSOR, "NAME", 0, "Only this tensor", 0},
        {0}};
    struct shard_options opt = SHARD_OPTIONS_DEFAULT;
    struct s2s_printout to = {.out = NULL};
    struct s2s_stream *in = NULL;
    shard_parse(&opt, options,
                "Tensors and metadata as they are stored. Text shows the ends of long tensors (-v: "
                "all of them), JSON everything."
                "\vExample: s2s-shard view --record 0 --tensor labels --json packs.s2s\n"
                "See also: s2s-shard(1)",
                1, argc, argv);
    int rc = shard_report_begin(&to, &opt, err);
    if (rc == 0)
        rc = s2s_stream_open(&in, opt.inputs[0], err);
    if (rc == 0) {
        if (opt.common.json)
            printf("{\"kind\": \"%s\", \"records\": [", s2s_kind_name(s2s_stream_kind(in)));
        rc = view_records(&opt, in, err);
        if (opt.common.json && rc == 0)
            fputs("]}\n", stdout);
    }
    s2s_stream_close(in);
    rc = s2s_printout_end(&to, rc, err);
    shard_options_release(&opt);
    return rc;
}
