/* Options of all commands; ls, head and verify. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/utf8.h"
#include "lib/io/outfile.h"
#include "tools/shard/shard.h"

/* ---- options ---- */

static size_t most_inputs;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    static const char *const kinds[] = {"shar", "webdataset", NULL};
    struct shard_options *opt = state->input;
    switch (key) {
    case SHARD_KEY_RECORD:
        opt->record = s2s_arg_i64(state, "record", arg, 0, INT64_MAX);
        return 0;
    case SHARD_KEY_TENSOR:
        opt->tensor = arg;
        return 0;
    case 'k':
        opt->keep_going = true;
        return 0;
    case SHARD_KEY_QUICK:
        opt->quick = true;
        return 0;
    case SHARD_KEY_PLOT:
        opt->plot = arg;
        return 0;
    case SHARD_KEY_PARTS:
        opt->parts = s2s_arg_i64(state, "parts", arg, 1, 4000);
        return 0;
    case SHARD_KEY_RECORDS:
        opt->records = s2s_arg_i64(state, "records", arg, 1, INT64_MAX);
        return 0;
    case SHARD_KEY_ZSTD:
        opt->zstd_level = (int)s2s_arg_i64(state, "zstd", arg, 1, 19);
        return 0;
    case SHARD_KEY_TO:
        opt->webdataset = s2s_arg_choice(state, "to", arg, kinds) == 1;
        return 0;
    case SHARD_KEY_SHARD_SIZE:
        opt->shard_size = s2s_arg_i64(state, "shard-size", arg, 1, INT32_MAX);
        return 0;
    case ARGP_KEY_ARG:
        if (most_inputs && opt->n_inputs == most_inputs)
            argp_error(state, "one input too many: '%s'", arg);
        s2s_grow(&opt->inputs, opt->n_inputs, &opt->cap_inputs, sizeof *opt->inputs);
        opt->inputs[opt->n_inputs++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (opt->n_inputs > 0)
            return 0;
        if (isatty(STDIN_FILENO))
            argp_error(state, "an input is missing (- is stdin)");
        s2s_grow(&opt->inputs, 0, &opt->cap_inputs, sizeof *opt->inputs);
        opt->inputs[opt->n_inputs++] = (char *)"-";
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

void shard_parse(struct shard_options *opt, const struct argp_option *options, const char *doc,
                 size_t max_inputs, int argc, char **argv)
{
    const struct argp argp = {.options = options,
                              .parser = parse,
                              .args_doc = max_inputs == 1 ? "[F]" : "[F...]",
                              .doc = doc};
    most_inputs = max_inputs;
    s2s_tool_parse(&argp, argc, argv, opt);
}

void shard_options_release(struct shard_options *opt)
{
    free(opt->inputs);
}

/* ---- shared by the commands ---- */

int shard_report_begin(struct s2s_printout *to, const struct shard_options *opt,
                       struct s2s_error *err)
{
    int rc = s2s_outfile_spares_each(opt->common.out, (const char *const *)opt->inputs,
                                     opt->n_inputs, err);
    return rc < 0 ? rc : s2s_printout_begin(to, opt->common.out, err);
}

int64_t shard_int(const struct s2s_st_tensor *tensor, int64_t i)
{
    if (!tensor || i < 0 || i >= s2s_st_numel(tensor))
        return 0;
    if (tensor->dtype == S2S_I32) {
        int32_t value;
        memcpy(&value, (const char *)tensor->data + 4 * i, 4);
        return value;
    }
    int64_t value = 0;
    if (tensor->dtype == S2S_I64)
        memcpy(&value, (const char *)tensor->data + 8 * i, 8);
    return value;
}

const struct s2s_st_tensor *shard_bounds(const struct s2s_safetensors *st)
{
    const struct s2s_st_tensor *padded = s2s_safetensors_find(st, "cu_seqlens_padded");
    return padded ? padded : s2s_safetensors_find(st, "cu_seqlens");
}

static json_t *mended_string(const char *text)
{
    char *mended = s2s_utf8_mend(text);
    json_t *string = json_string(mended);
    free(mended);
    return string;
}

void shard_put_json(const char *text)
{
    json_t *string = mended_string(text);
    json_dumpf(string, stdout, JSON_ENCODE_ANY);
    json_decref(string);
}

/* ---- ls ---- */

/* "key=value" pairs or JSON members that say what a record holds. */
static void put_counts(const struct s2s_record *rec, bool json)
{
    const struct s2s_st_tensor *bounds = shard_bounds(&rec->st);
    const char *form = json ? ", \"%s\": %" PRId64 : "  %s %" PRId64;
    if (bounds) {
        printf(form, "slots", shard_int(bounds, s2s_st_numel(bounds) - 1));
        printf(form, "tokens", shard_int(s2s_safetensors_find(&rec->st, "num_tokens"), 0));
        printf(form, "utterances", shard_int(s2s_safetensors_find(&rec->st, "num_examples"), 0));
        const struct s2s_st_tensor *slot = s2s_safetensors_find(&rec->st, "audio_slot");
        printf(form, "clips", slot ? s2s_st_numel(slot) : 0);
        return;
    }
    static const char *const names[] = {"pcm", "bytes", "mel", "embeds", "source_pcm"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct s2s_st_tensor *t = s2s_safetensors_find(&rec->st, names[i]);
        if (t && t->n_dims > 0)
            printf(form, names[i], t->shape[0]);
    }
}

static void put_record(const struct s2s_record *rec, const char *path, bool json)
{
    if (json)
        printf("{\"index\": %" PRId64 ", \"offset\": %" PRId64
               ", \"size\": %zu, \"xxh3\": \"%016" PRIx64 "\"",
               rec->idx, rec->offset, rec->len_bytes, rec->xxh3);
    else
        printf("%s%s%8" PRId64 "  offset %12" PRId64 "  size %10zu  xxh3 %016" PRIx64,
               path ? path : "", path ? ": " : "", rec->idx, rec->offset, rec->len_bytes,
               rec->xxh3);
    put_counts(rec, json);
    if (!json) {
        const char *id = s2s_safetensors_meta(&rec->st, "id");
        printf("%s%s", id ? "  " : "", id ? id : "");
    }
    fputs(json ? "}" : "\n", stdout);
}

static int ls_one(const struct shard_options *opt, const char *path, struct s2s_error *err)
{
    struct s2s_stream *in = NULL;
    struct s2s_record rec;
    bool json = opt->common.json;
    int rc = s2s_stream_open(&in, path, err);
    if (rc < 0)
        return rc;
    if (json) {
        fputs("{\"path\": ", stdout);
        shard_put_json(path);
        printf(", \"kind\": \"%s\", \"records\": [", s2s_kind_name(s2s_stream_kind(in)));
    }
    for (bool first = true; (rc = s2s_stream_next(in, &rec, err)) > 0; first = false) {
        if (json && !first)
            fputs(", ", stdout);
        put_record(&rec, opt->n_inputs > 1 ? path : NULL, json);
    }
    if (json && rc == 0)
        fputs("]}", stdout);
    s2s_stream_close(in);
    return rc;
}

int shard_ls(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp_option options[] = {{0}};
    struct shard_options opt = SHARD_OPTIONS_DEFAULT;
    struct s2s_printout to = {.out = NULL};
    shard_parse(&opt, options,
                "One line a record: number, offset, bytes, digest, and what it holds."
                "\vExample: s2s-shard ls packs.s2s\nSee also: s2s-shard(1)",
                0, argc, argv);
    int rc = shard_report_begin(&to, &opt, err);
    if (opt.common.json && rc == 0)
        fputs("{\"files\": [", stdout);
    for (size_t i = 0; i < opt.n_inputs && rc == 0; i++) {
        if (opt.common.json && i)
            fputs(", ", stdout);
        rc = ls_one(&opt, opt.inputs[i], err);
    }
    if (opt.common.json && rc == 0)
        fputs("]}\n", stdout);
    rc = s2s_printout_end(&to, rc, err);
    shard_options_release(&opt);
    return rc;
}

/* ---- head ---- */

static void put_value(const char *key, const json_t *value)
{
    if (!value)
        return;
    printf("%-11s ", key);
    json_dumpf(value, stdout, JSON_ENCODE_ANY | JSON_SORT_KEYS | JSON_COMPACT);
    putchar('\n');
}

static void put_schema(const json_t *schema)
{
    const char *name, *prefix = "schema";
    json_t *entry;
    json_object_foreach((json_t *)schema, name, entry)
    {
        printf("%-11s %-18s %-5s ", prefix, name,
               json_string_value(json_object_get(entry, "dtype")));
        json_dumpf(json_object_get(entry, "shape"), stdout, JSON_COMPACT);
        putchar('\n');
        prefix = "";
    }
}

static void put_provenance(const json_t *chain, const json_t *inputs)
{
    size_t i, j;
    json_t *step, *arg;
    json_array_foreach((json_t *)chain, i, step)
    {
        printf("%-11s %s %s", i ? "" : "provenance",
               json_string_value(json_object_get(step, "program")),
               json_string_value(json_object_get(step, "version")));
        json_array_foreach(json_object_get(step, "args"), j, arg)
            printf(" %s", json_string_value(arg));
        putchar('\n');
        json_array_foreach(json_array_get(inputs, i), j, arg)
            printf("%-11s   input %s\n", "", json_string_value(arg));
    }
}

static void head_text(struct s2s_stream *in, int64_t n_records)
{
    static const char *const keys[] = {"kind", "layout", "audio", "embed",
                                       "cp",   "parent", "config"};
    const json_t *header = s2s_stream_header(in);
    printf("format      s2s version %" JSON_INTEGER_FORMAT "\n",
           json_integer_value(json_object_get(header, "version")));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        put_value(keys[i], json_object_get(header, keys[i]));
    put_schema(json_object_get(header, "schema"));
    put_provenance(json_object_get(header, "provenance"), s2s_stream_inputs(in));
    printf("digest      %s\n", s2s_stream_header_digest(in));
    if (n_records >= 0)
        printf("records     %" PRId64 "\n", n_records);
}

/* The header as it is, and what a file's end adds to it. */
static void head_json(struct s2s_stream *in, int64_t n_records)
{
    json_t *all = json_deep_copy(s2s_stream_header(in));
    if (n_records >= 0) {
        json_object_set_new(all, "records", json_integer(n_records));
        json_object_set_new(all, "inputs", json_deep_copy(s2s_stream_inputs(in)));
    }
    json_object_set_new(all, "digest", json_string(s2s_stream_header_digest(in)));
    json_dumpf(all, stdout, JSON_INDENT(2) | JSON_SORT_KEYS);
    putchar('\n');
    json_decref(all);
}

int shard_head(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp_option options[] = {{0}};
    struct shard_options opt = SHARD_OPTIONS_DEFAULT;
    struct s2s_printout to = {.out = NULL};
    struct s2s_stream *in = NULL;
    shard_parse(&opt, options,
                "Header and provenance; of a file also the number of records and the inputs' "
                "digests.\vExample: s2s-shard head packs.s2s\nSee also: s2s-shard(1)",
                1, argc, argv);
    int rc = shard_report_begin(&to, &opt, err);
    if (rc == 0)
        rc = s2s_stream_open(&in, opt.inputs[0], err);
    if (rc == 0) {
        int64_t n_records = s2s_stream_n_records(in, err);
        if (opt.common.json)
            head_json(in, n_records);
        else
            head_text(in, n_records);
        /* a pipe's end comes last, and is not waited for; a damaged file's header is shown, and
         * then what is wrong with the rest */
        rc = n_records < 0 && n_records != S2S_E_UNSUPPORTED ? (int)n_records : 0;
    }
    s2s_stream_close(in);
    rc = s2s_printout_end(&to, rc, err);
    shard_options_release(&opt);
    return rc;
}

/* ---- verify ---- */

struct verdict {
    int64_t n_records, n_bytes, n_faults;
    json_t *faults;
};

static void note_fault(struct verdict *v, const struct s2s_error *err, bool json)
{
    v->n_faults++;
    if (json)
        json_array_append_new(v->faults, mended_string(err->text));
    else
        printf("%s\n", err->text);
}

/* Reads all; with keep_going on behind each fault. The first fault's code. */
static int verify_records(struct verdict *v, struct s2s_stream *in, bool keep_going, bool json,
                          struct s2s_error *err)
{
    struct s2s_record rec;
    int first = 0, rc;
    while ((rc = s2s_stream_next(in, &rec, err)) != 0) {
        if (rc > 0) {
            v->n_records++;
            v->n_bytes += (int64_t)rec.len_bytes;
            continue;
        }
        first = first ? first : rc;
        if (!keep_going)
            break;
        note_fault(v, err, json);
        if (s2s_stream_is_broken(in))
            break;
    }
    return first;
}

static int verify_one(struct verdict *v, const struct shard_options *opt, const char *path,
                      struct s2s_error *err)
{
    struct s2s_stream *in = NULL;
    int rc = s2s_stream_open(&in, path, err);
    if (rc < 0 && opt->keep_going)
        note_fault(v, err, opt->common.json);
    if (rc == 0 && opt->quick) {
        v->n_records = s2s_stream_n_records(in, err);
        rc = v->n_records < 0 ? (int)v->n_records : 0;
        if (rc < 0 && opt->keep_going)
            note_fault(v, err, opt->common.json);
    } else if (rc == 0) {
        rc = verify_records(v, in, opt->keep_going, opt->common.json, err);
    }
    s2s_stream_close(in);
    return rc;
}

static void put_verdict(const struct verdict *v, const struct shard_options *opt, const char *path,
                        bool good)
{
    if (opt->common.json) {
        fputs("{\"path\": ", stdout);
        shard_put_json(path);
        printf(", \"ok\": %s, \"records\": %" PRId64 ", \"faults\": ", good ? "true" : "false",
               v->n_records > 0 ? v->n_records : 0);
        json_dumpf(v->faults, stdout, 0);
        fputs("}", stdout);
    } else if (good && opt->common.verbosity >= 0) {
        printf("%s: good: %" PRId64 " records", path, v->n_records);
        if (!opt->quick)
            printf(", %" PRId64 " bytes", v->n_bytes);
        fputs(opt->quick ? " (header and end only)\n" : "\n", stdout);
    }
}

int shard_verify(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp_option options[] = {
        {"keep-going", 'k', NULL, 0, "Report every fault, not only the first", 0},
        {"quick", SHARD_KEY_QUICK, NULL, 0,
         "Header and end only: finds every cut in milliseconds, but no flipped byte in between", 0},
        {0}};
    struct shard_options opt = SHARD_OPTIONS_DEFAULT;
    struct s2s_printout to = {.out = NULL};
    struct s2s_error not_written = S2S_ERROR_INIT;
    int first = 0;
    int64_t n_faults = 0;
    size_t n_bad = 0;
    shard_parse(
        &opt, options,
        "Checks digests, counts, schema and end of every record; exit status 1 at the first "
        "fault.\vExample: s2s-shard verify -k *.s2s\nSee also: s2s-shard(1)",
        0, argc, argv);
    int rc = shard_report_begin(&to, &opt, err);
    if (rc < 0) {
        shard_options_release(&opt);
        return rc;
    }
    if (opt.common.json)
        fputs("{\"files\": [", stdout);
    for (size_t i = 0; i < opt.n_inputs && (first == 0 || opt.keep_going); i++) {
        struct verdict v = {.faults = json_array()};
        struct s2s_error one = S2S_ERROR_INIT;
        rc = verify_one(&v, &opt, opt.inputs[i], &one);
        if (rc < 0 && first == 0) {
            first = rc;
            *err = one;
        }
        n_faults += v.n_faults;
        n_bad += rc < 0;
        if (rc < 0 && !opt.keep_going && opt.common.json)
            json_array_append_new(v.faults, mended_string(one.text));
        if (opt.common.json && i)
            fputs(", ", stdout);
        put_verdict(&v, &opt, opt.inputs[i], rc == 0);
        json_decref(v.faults);
    }
    if (opt.common.json)
        fputs("]}\n", stdout);
    if (first < 0 && opt.keep_going)
        s2s_error_set(err, first, "%" PRId64 " faults in %zu of %zu streams", n_faults, n_bad,
                      opt.n_inputs);
    /* what is said of a bad stream is a whole report too */
    rc = s2s_printout_end(&to, 0, &not_written);
    if (rc < 0 && first == 0) {
        first = rc;
        *err = not_written;
    }
    shard_options_release(&opt);
    return first;
}
