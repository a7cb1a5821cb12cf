/* s2s-ckpt cat: the bytes or numbers of one tensor. */
#include <math.h>

#include "lib/ckpt/number.h"
#include "lib/io/outfile.h"
#include "tools/ckpt/ckpt_tool.h"

struct options {
    struct s2s_common common;
    const char *path, *name;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct options *opt = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        if (opt->name)
            argp_error(state, "unexpected argument '%s': give one PATH and one TENSOR", arg);
        *(opt->path ? &opt->name : &opt->path) = arg;
        return 0;
    case ARGP_KEY_END:
        if (!opt->name)
            argp_error(state, "PATH and TENSOR are needed");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {NULL,
                                 parse,
                                 "PATH TENSOR",
                                 "Write the bytes of one tensor, row-major and little-endian, at "
                                 "its global shape; with --json its "
                                 "numbers.\vExamples:\n"
                                 "  s2s-ckpt cat model/ lm_head.weight -o lm_head.raw\n"
                                 "  s2s-ckpt cat --json checkpoints/ proj.bias\n\n"
                                 "See also: s2s-ckpt(1)",
                                 NULL,
                                 NULL,
                                 NULL};

struct json_sink {
    struct s2s_outfile *out;
    enum s2s_dtype dtype;
    bool first;
};

static int raw_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    return s2s_outfile_write(ctx, bytes, len, err);
}

/* Prints 64-bit integers exactly; a double would round beyond 2^53. */
static void print_64(char *text, size_t size, const void *bytes, enum s2s_dtype dtype, size_t i)
{
    uint64_t bits;
    memcpy(&bits, (const char *)bytes + 8 * i, sizeof bits);
    if (dtype == S2S_I64)
        snprintf(text, size, "%lld", (long long)bits);
    else
        snprintf(text, size, "%llu", (unsigned long long)bits);
}

static int number_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    struct json_sink *sink = ctx;
    size_t n = len / s2s_dtype_size(sink->dtype);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        char text[48];
        double value = s2s_ckpt_number(bytes, sink->dtype, i);
        /* JSON has no infinities */
        int at = snprintf(text, sizeof text, "%s", sink->first ? "" : ", ");
        if (sink->dtype == S2S_I64 || sink->dtype == S2S_U64)
            print_64(text + at, sizeof text - (size_t)at, bytes, sink->dtype, i);
        else if (isfinite(value))
            /* JSON readers parse -0 as an integer, without sign */
            snprintf(text + at, sizeof text - (size_t)at,
                     value == 0 && signbit(value) ? "%.1f" : "%.17g", value);
        else
            snprintf(text + at, sizeof text - (size_t)at, "%s",
                     isnan(value) ? "\"nan\""
                     : value > 0  ? "\"inf\""
                                  : "\"-inf\"");
        sink->first = false;
        rc = s2s_outfile_write(sink->out, text, strlen(text), err);
    }
    return rc;
}

static int write_json(struct s2s_outfile *out, struct s2s_ckpt *ckpt,
                      const struct s2s_ckpt_tensor *t, struct s2s_error *err)
{
    struct s2s_buf text = S2S_BUF_INIT;
    struct json_sink sink = {.out = out, .dtype = t->dtype, .first = true};
    char *quoted = ckpt_json_text(t->name);
    s2s_buf_printf(&text, "{\"name\": %s, \"dtype\": \"%s\", \"shape\": [", quoted,
                   s2s_dtype_name(t->dtype));
    for (int d = 0; d < t->n_dims; d++)
        s2s_buf_printf(&text, "%s%lld", d ? ", " : "", (long long)t->shape[d]);
    s2s_buf_puts(&text, "], \"data\": [");
    int rc = s2s_outfile_write(out, text.data, text.len, err);
    if (rc == 0)
        rc = s2s_ckpt_stream(ckpt, t, NULL, NULL, number_sink, &sink, err);
    char *warnings = ckpt_warnings_json();
    s2s_buf_clear(&text);
    s2s_buf_printf(&text, "], \"warnings\": %s}\n", warnings);
    free(warnings);
    if (rc == 0)
        rc = s2s_outfile_write(out, text.data, text.len, err);
    s2s_buf_release(&text);
    free(quoted);
    return rc;
}

/* Reports a name that is an object's, or does not exist. */
static int refuse_name(struct s2s_ckpt *ckpt, const char *name, struct s2s_error *err)
{
    size_t n;
    const struct s2s_ckpt_object *objects = s2s_ckpt_objects(ckpt, &n);
    struct s2s_ckpt_want want = {.name = name, .n_dims = -1};
    for (size_t i = 0; i < n; i++)
        if (strcmp(objects[i].name, name) == 0) {
            int rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s: %s is an object, not a tensor",
                                   s2s_ckpt_path(ckpt), name);
            return s2s_error_hint(err, rc, "s2s-ckpt ls --json shows its %s",
                                  objects[i].value ? "value" : "size");
        }
    return s2s_ckpt_check(ckpt, &want, 1, err);
}

static int write_tensor(const struct options *opt, struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    struct s2s_outfile *out = NULL;
    const struct s2s_ckpt_tensor *t = s2s_ckpt_find(ckpt, opt->name);
    if (!t)
        return refuse_name(ckpt, opt->name, err);
    if (opt->common.json && !s2s_ckpt_is_number(t->dtype))
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s is %s: its numbers are not printed",
                             t->name, s2s_dtype_name(t->dtype));
    int rc = opt->common.out || opt->common.json ? 0 : s2s_tool_check_stdout(err);
    if (rc == 0)
        rc = ckpt_check_out(opt->common.out, ckpt, err);
    if (rc == 0)
        rc = s2s_outfile_open_behind(&out, opt->common.out, err);
    if (rc < 0)
        return rc;
    rc = opt->common.json ? write_json(out, ckpt, t, err)
                          : s2s_ckpt_stream(ckpt, t, NULL, NULL, raw_sink, out, err);
    if (rc == 0)
        rc = s2s_ckpt_verify_tensor(ckpt, t, err);
    if (rc == 0)
        return s2s_outfile_commit(out, err);
    s2s_outfile_abort(out);
    return rc;
}

static int write_from(const struct options *opt, struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = NULL;
    int rc = s2s_ckpt_open(&ckpt, opt->path, err);
    if (rc == 0)
        rc = write_tensor(opt, ckpt, err);
    s2s_ckpt_close(ckpt);
    return rc;
}

int ckpt_cat(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT};
    s2s_tool_parse(&argp, argc, argv, &opt);
    int rc = ckpt_launch(&opt.common, err);
    return rc < 0 ? rc : ckpt_agree(ckpt_is_first() ? write_from(&opt, err) : 0, err);
}
