/* s2s-ckpt ls: the tensors of a checkpoint. */
#include "lib/io/behind.h"
#include "lib/io/sha256.h"
#include "tools/ckpt/ckpt_tool.h"

struct options {
    struct s2s_common common;
    bool sha256;
    const char *path;
};

enum { KEY_SHA256 = 0x100 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct options *opt = state->input;
    if (key != KEY_SHA256)
        return ckpt_parse_path(&opt->path, key, arg, state);
    opt->sha256 = true;
    return 0;
}

static const struct argp_option options[] = {
    {"sha256", KEY_SHA256, NULL, 0,
     "Add the SHA-256 of each tensor's row-major little-endian bytes at its global shape", 1},
    {0},
};

static const struct argp argp = {options,
                                 parse,
                                 "PATH",
                                 "List every tensor and byte object of a checkpoint. PATH is a "
                                 "file, a checkpoint's folder, or the folder above it.\vExamples:\n"
                                 "  s2s-ckpt ls checkpoints/\n"
                                 "  s2s-ckpt ls --json --sha256 model.safetensors\n\n"
                                 "See also: s2s-ckpt(1)",
                                 NULL,
                                 NULL,
                                 NULL};

enum { LARGE_BYTES = 4 << 20 }; /* smaller tensors are hashed without a thread */

struct listing {
    const struct options *opt;
    struct s2s_ckpt *ckpt;
    struct s2s_sha256 *sha;    /* NULL: not asked for */
    struct s2s_behind *behind; /* feeds it on a thread, for large tensors */
    bool is_large;
    struct s2s_progress progress;
    bool first;
};

static int sha_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    s2s_sha256_update(ctx, bytes, len);
    return 0;
}

static int data_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    struct listing *l = ctx;
    s2s_progress_add(&l->progress, (int64_t)len);
    return l->is_large ? s2s_behind_add(l->behind, bytes, len, err)
                       : sha_sink(l->sha, bytes, len, err);
}

/* rc: what the stream returned */
static int end_digest(struct listing *l, int rc, char hex[65], struct s2s_error *err)
{
    if (rc == 0)
        rc = s2s_behind_flush(l->behind, err);
    if (rc == 0)
        s2s_sha256_hex(l->sha, hex);
    return rc;
}

static int digest_tensor(struct listing *l, const struct s2s_ckpt_tensor *t, char hex[65],
                         struct s2s_error *err)
{
    l->is_large = s2s_ckpt_bytes(t) >= LARGE_BYTES;
    return end_digest(l, s2s_ckpt_stream(l->ckpt, t, NULL, NULL, data_sink, l, err), hex, err);
}

static int digest_object(struct listing *l, const struct s2s_ckpt_object *o, char hex[65],
                         struct s2s_error *err)
{
    l->is_large = o->len_bytes >= LARGE_BYTES;
    return end_digest(l, s2s_ckpt_stream_object(l->ckpt, o, data_sink, l, err), hex, err);
}

static void begin_entry(struct listing *l)
{
    printf(l->first ? "\n    " : ",\n    ");
    l->first = false;
}

static int list_tensor(struct listing *l, const struct s2s_ckpt_tensor *t, struct s2s_error *err)
{
    char hex[65] = "", orig[65] = "";
    const int64_t *orig_shape = s2s_ckpt_orig_shape(t);
    int rc = l->opt->sha256 ? digest_tensor(l, t, hex, err) : 0;
    if (rc == 0 && l->opt->sha256 && orig_shape)
        rc = digest_tensor(l, s2s_ckpt_unflattened(l->ckpt, t), orig, err);
    if (rc < 0)
        return rc;
    ckpt_make_way(&l->progress);
    if (!l->opt->common.json) {
        ckpt_print_tensor(t, "", false);
        printf("%s%s\n", *hex ? "\t" : "", hex);
        return 0;
    }
    begin_entry(l);
    ckpt_print_tensor(t, "", true);
    printf(", \"n_chunks\": %u", t->n_chunks);
    if (*hex)
        printf(", \"sha256\": \"%s\"", hex);
    if (orig_shape) {
        printf(", \"orig_shape\": ");
        ckpt_print_shape(orig_shape, t->n_dims - 1);
    }
    if (*orig)
        printf(", \"orig_sha256\": \"%s\"", orig);
    putchar('}');
    return 0;
}

static int list_object(struct listing *l, const struct s2s_ckpt_object *o, struct s2s_error *err)
{
    char hex[65] = "";
    int rc = l->opt->sha256 && o->file ? digest_object(l, o, hex, err) : 0;
    if (rc < 0)
        return rc;
    ckpt_make_way(&l->progress);
    if (!l->opt->common.json) {
        ckpt_print_name(o->name);
        printf("\tobject\t-\t%lld%s%s\n", (long long)(o->len_bytes < 0 ? 0 : o->len_bytes),
               *hex ? "\t" : "", hex);
        return 0;
    }
    begin_entry(l);
    printf("{\"name\": ");
    ckpt_print_json_text(o->name);
    if (o->len_bytes >= 0)
        printf(", \"bytes\": %lld", (long long)o->len_bytes);
    if (*hex)
        printf(", \"sha256\": \"%s\"", hex);
    if (o->value) {
        char *value = json_dumps(o->value, JSON_ENCODE_ANY | JSON_COMPACT);
        printf(", \"value\": %s", value ? value : "null");
        free(value);
    }
    putchar('}');
    return 0;
}

static void begin_json(const struct listing *l)
{
    printf("{\n  \"format\": \"%s\",\n  \"path\": ", s2s_ckpt_format(l->ckpt));
    ckpt_print_json_text(s2s_ckpt_path(l->ckpt));
    if (s2s_ckpt_iteration(l->ckpt) >= 0)
        printf(",\n  \"iteration\": %lld", (long long)s2s_ckpt_iteration(l->ckpt));
    printf(",\n  \"tensors\": [");
}

static int list(struct listing *l, struct s2s_error *err)
{
    size_t n_tensors, n_objects;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(l->ckpt, &n_tensors);
    const struct s2s_ckpt_object *objects = s2s_ckpt_objects(l->ckpt, &n_objects);
    bool json = l->opt->common.json;
    const int64_t bytes = ckpt_tensor_bytes(l->ckpt);
    char text[32];
    int rc = 0;
    if (json)
        begin_json(l);
    s2s_progress_begin(&l->progress, "hashing", "bytes", bytes);
    l->first = true;
    for (size_t i = 0; i < n_tensors && rc == 0; i++)
        rc = list_tensor(l, &tensors[i], err);
    if (json)
        printf("%s],\n  \"objects\": [", l->first ? "" : "\n  ");
    l->first = true;
    for (size_t i = 0; i < n_objects && rc == 0; i++)
        rc = list_object(l, &objects[i], err);
    s2s_progress_end(&l->progress);
    if (json && rc == 0) {
        printf("%s],\n  ", l->first ? "" : "\n  ");
        ckpt_print_warnings();
        puts("\n}");
    }
    if (rc == 0)
        s2s_info("ls", "%s: %s, %zu tensor%s of %s, %zu object%s", s2s_ckpt_path(l->ckpt),
                 s2s_ckpt_format(l->ckpt), n_tensors, s2s_plural(n_tensors),
                 ckpt_bytes_text(text, bytes), n_objects, s2s_plural(n_objects));
    return rc;
}

static int list_path(const struct options *opt, struct s2s_error *err)
{
    struct listing l = {.opt = opt, .sha = opt->sha256 ? s2s_sha256_new() : NULL};
    struct s2s_printout to = {.out = NULL};
    l.behind = s2s_behind_new(sha_sink, l.sha, true);
    int rc = s2s_ckpt_open(&l.ckpt, opt->path, err);
    if (rc == 0)
        rc = ckpt_report_begin(&to, &opt->common, l.ckpt, err);
    if (rc == 0)
        rc = list(&l, err);
    rc = s2s_printout_end(&to, rc, err);
    s2s_ckpt_close(l.ckpt);
    s2s_behind_free(l.behind);
    s2s_sha256_free(l.sha);
    return rc;
}

int ckpt_ls(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT};
    s2s_tool_parse(&argp, argc, argv, &opt);
    int rc = ckpt_launch(&opt.common, err);
    return rc < 0 ? rc : ckpt_agree(ckpt_is_first() ? list_path(&opt, err) : 0, err);
}
