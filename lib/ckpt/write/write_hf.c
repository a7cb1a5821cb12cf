/* Writes Hugging Face folders: safetensors files, shards, index. */
#include "lib/ckpt/write/write_hf.h"

#include "lib/base/base.h"
#include "lib/ckpt/file.h"
#include "lib/ckpt/write/journal.h"
#include "lib/ckpt/write/manifest.h"
#include "lib/ckpt/write/share.h"
#include "lib/io/digest.h"
#include "lib/io/outfile.h"
#include "lib/io/safetensors.h"

/* Does JSON have these characters as they are? */
static bool is_plain(const char *text)
{
    while (*text >= ' ' && *text < 0x7f && *text != '"' && *text != '\\')
        text++;
    return !*text;
}

static void add_json_text(struct s2s_buf *out, const char *text)
{
    if (is_plain(text)) { /* as nearly all names are */
        s2s_buf_putc(out, '"');
        s2s_buf_puts(out, text);
        s2s_buf_putc(out, '"');
        return;
    }
    json_t *string = json_string(text);
    char *dumped = json_dumps(string, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!dumped)
        S2S_BUG("a name that is not UTF-8 came this far");
    s2s_buf_puts(out, dumped);
    free(dumped);
    json_decref(string);
}

static int put_type(struct s2s_buf *out, const struct s2s_ckpt_target *target,
                    struct s2s_error *err)
{
    int rc =
        s2s_st_put_type(out, target->dtype, s2s_ckpt_target_shape(target), target->n_dims, err);
    return rc < 0 ? s2s_error_add(err, rc, "%s", s2s_ckpt_target_name(target)) : 0;
}

int s2s_ckpt_plan_for_safetensors(const struct s2s_ckpt_plan *plan, struct s2s_error *err)
{
    for (size_t i = 0; i < plan->n_targets; i++)
        if (plan->targets[i].dtype == S2S_C128) {
            int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%s is C128, which safetensors lacks",
                                   s2s_ckpt_target_name(&plan->targets[i]));
            return s2s_error_hint(err, rc, "--to torch_dist keeps it");
        } else if (plan->targets[i].dtype == S2S_F4_E2M1FN_X2) {
            struct s2s_buf unused = S2S_BUF_INIT;
            int rc = put_type(&unused, &plan->targets[i], err);
            s2s_buf_release(&unused);
            if (rc < 0)
                return s2s_error_hint(err, rc, "--to torch_dist keeps it");
        } else if (strcmp(s2s_ckpt_target_name(&plan->targets[i]), "__metadata__") == 0) {
            int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                                   "a tensor is called __metadata__, which safetensors has for "
                                   "texts about the file");
            return s2s_error_hint(err, rc, "--to torch_dist keeps it");
        }
    return 0;
}

static int by_width(const void *a, const void *b)
{
    const struct s2s_ckpt_target *x = *(struct s2s_ckpt_target *const *)a;
    const struct s2s_ckpt_target *y = *(struct s2s_ckpt_target *const *)b;
    size_t x_size = s2s_dtype_size(x->dtype), y_size = s2s_dtype_size(y->dtype);
    if (x_size != y_size)
        return x_size > y_size ? -1 : 1;
    return x < y ? -1 : x > y; /* same width: order of the plan */
}

/* Appends a target's header entry, and moves *at to the end of its data. */
static int add_entry(struct s2s_buf *out, const struct s2s_ckpt_target *target, int64_t *at,
                     struct s2s_error *err)
{
    const int64_t begin = *at;
    *at += s2s_ckpt_target_bytes(target);
    s2s_buf_putc(out, ',');
    add_json_text(out, s2s_ckpt_target_name(target));
    s2s_buf_puts(out, ":{");
    int rc = put_type(out, target, err);
    s2s_buf_printf(out, ",\"data_offsets\":[%lld,%lld]}", (long long)begin, (long long)*at);
    return rc;
}

struct sink {
    struct s2s_outfile *out;
    struct s2s_digest *digest; /* NULL: not needed */
};

static int put(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    const struct sink *sink = ctx;
    if (sink->digest)
        s2s_digest_update(sink->digest, bytes, len);
    return s2s_outfile_write(sink->out, bytes, len, err);
}

/* The metadata, in JSON. Gives: free. */
static char *metadata_of(const struct s2s_ckpt_plan *plan)
{
    json_t *texts = json_object();
    if (plan->with_texts)
        json_object_update(texts, (json_t *)s2s_ckpt_texts(plan->source));
    json_object_set_new(texts, "format", json_string("pt"));
    char *text = json_dumps(texts, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(texts);
    return text;
}

/* The header: its length (8 bytes), then JSON padded to 8 bytes. */
static int write_header(const char *metadata, struct s2s_ckpt_target *const *targets, size_t n,
                        struct sink *sink, struct s2s_error *err)
{
    enum { HEAD = 8 };
    struct s2s_buf out = S2S_BUF_INIT;
    int64_t at = 0;
    int rc = 0;
    s2s_buf_printf(&out, "%*s{\"__metadata__\":%s", HEAD, "", metadata);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = add_entry(&out, targets[i], &at, err);
    s2s_buf_putc(&out, '}');
    while (out.len % 8)
        s2s_buf_putc(&out, ' ');
    const size_t len = out.len - HEAD;
    for (int i = 0; i < HEAD; i++)
        out.data[i] = (char)((uint64_t)len >> 8 * i & 0xFF);
    if (rc == 0 && len > S2S_SAFETENSORS_MAX_HEADER) {
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "a safetensors header of %zu bytes, of which no reader takes more than "
                           "%d",
                           len, S2S_SAFETENSORS_MAX_HEADER);
        s2s_error_hint(err, rc, "--to hf with a smaller --max-shard-size, or --to torch_dist");
    }
    if (rc == 0)
        rc = put(sink, out.data, out.len, err);
    s2s_buf_release(&out);
    return rc;
}

static int write_targets(struct s2s_ckpt_plan *plan, size_t begin, size_t end, struct sink *sink,
                         const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    size_t n = end - begin;
    struct s2s_ckpt_target **order = s2s_xmalloc(n * sizeof *order);
    for (size_t i = 0; i < n; i++)
        order[i] = &plan->targets[begin + i];
    if (n)
        s2s_sort(order, n, sizeof *order, by_width);
    char *metadata = metadata_of(plan);
    int rc = write_header(metadata, order, n, sink, err);
    free(metadata);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = s2s_ckpt_target_stream(plan, order[i], how, put, sink, err);
    free(order);
    return rc;
}

int s2s_ckpt_write_safetensors(struct s2s_ckpt_plan *plan, size_t begin, size_t end,
                               struct s2s_outfile *out, const struct s2s_ckpt_write *how,
                               char digest[33], struct s2s_error *err)
{
    struct sink sink = {.out = out, .digest = digest ? s2s_digest_new(128) : NULL};
    int rc = write_targets(plan, begin, end, &sink, how, err);
    if (digest)
        s2s_digest_hex(sink.digest, digest);
    s2s_digest_free(sink.digest);
    return rc;
}

/* Writes a file, with its digest for manifest and journal. */
static int write_new(struct s2s_ckpt_plan *plan, const struct ckpt_shard *shard, const char *path,
                     const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    const bool noted = how->manifest || how->journal;
    struct s2s_outfile *out;
    char digest[33];
    int rc = s2s_outfile_open_behind(&out, path, err);
    if (rc < 0)
        return rc;
    rc = s2s_ckpt_write_safetensors(plan, shard->begin, shard->end, out, how, noted ? digest : NULL,
                                    err);
    int64_t len = s2s_outfile_offset(out);
    if (rc == 0)
        rc = s2s_outfile_commit_in(out, err); /* whoever writes the folder syncs it */
    else
        s2s_outfile_abort(out);
    if (rc == 0 && how->manifest)
        ckpt_manifest_add(how->manifest, shard->name, len, digest);
    return rc == 0 && noted ? ckpt_journal_add(how->journal, path, len, digest, err) : rc;
}

int ckpt_write_shard(struct s2s_ckpt_plan *plan, const struct ckpt_shard *shard, const char *dir,
                     const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    const size_t n_ranks = (size_t)ckpt_share_size(how);
    if ((shard->number + (size_t)how->turn) % n_ranks != (size_t)ckpt_share_rank(how))
        return 0;
    char *path = s2s_xasprintf("%s/%s", dir, shard->name), digest[33];
    int64_t len;
    int rc = 0;
    if (!ckpt_journal_has(how->journal, path, &len, digest)) {
        rc = write_new(plan, shard, path, how, err);
    } else {
        if (how->manifest)
            ckpt_manifest_add(how->manifest, shard->name, len, digest);
        if (how->progress)
            how->progress(how->ctx, len);
    }
    free(path);
    return rc;
}

/* The end of the shard that begins at target `begin`. */
static size_t shard_end(const struct s2s_ckpt_plan *plan, size_t begin, int64_t max_bytes)
{
    int64_t bytes = 0;
    size_t end = begin;
    while (end < plan->n_targets) {
        bytes += s2s_ckpt_target_bytes(&plan->targets[end]);
        if (end > begin && max_bytes > 0 && bytes > max_bytes)
            break;
        end++;
    }
    return end;
}

struct shards {
    const struct s2s_ckpt_plan *plan;
    int64_t max_bytes;
    size_t n;
};

enum { SHARD_NAME = 64 };

static void shard_name(char name[SHARD_NAME], size_t shard, size_t n)
{
    snprintf(name, SHARD_NAME, "model-%05zu-of-%05zu.safetensors", shard + 1, n);
}

/* Writes the index, which maps tensors to shards. */
static int fill_index(struct ckpt_file *file, const void *ctx, struct s2s_error *err)
{
    const struct shards *shards = ctx;
    const struct s2s_ckpt_plan *plan = shards->plan;
    struct s2s_buf text = S2S_BUF_INIT;
    int64_t total = 0;
    size_t shard = 0, end;
    for (size_t i = 0; i < plan->n_targets; i++)
        total += s2s_ckpt_target_bytes(&plan->targets[i]);
    s2s_buf_printf(&text,
                   "{\n  \"metadata\": {\n    \"total_size\": %lld\n  },\n  \"weight_map\": {",
                   (long long)total);
    for (size_t begin = 0; begin < plan->n_targets; begin = end) {
        char name[SHARD_NAME];
        end = shard_end(plan, begin, shards->max_bytes);
        shard_name(name, shard++, shards->n);
        for (size_t i = begin; i < end; i++) {
            s2s_buf_puts(&text, i ? ",\n    " : "\n    ");
            add_json_text(&text, s2s_ckpt_target_name(&plan->targets[i]));
            s2s_buf_printf(&text, ": \"%s\"", name);
        }
    }
    s2s_buf_puts(&text, "\n  }\n}\n");
    int rc = ckpt_file_write(file, text.data, text.len, err);
    s2s_buf_release(&text);
    return rc;
}

int s2s_ckpt_write_hf(struct s2s_ckpt_plan *plan, const char *dir, const struct s2s_ckpt_write *how,
                      struct s2s_error *err)
{
    struct shards shards = {.plan = plan, .max_bytes = how->max_shard_bytes};
    size_t shard = 0, end;
    int rc = 0;
    for (size_t i = 0; i < plan->n_targets; shards.n++)
        i = shard_end(plan, i, shards.max_bytes);
    if (shards.n <= 1)
        return ckpt_write_shard(
            plan, &(struct ckpt_shard){"model.safetensors", 0, plan->n_targets, 0}, dir, how, err);
    for (size_t begin = 0; begin < plan->n_targets && rc == 0; begin = end) {
        char name[SHARD_NAME];
        end = shard_end(plan, begin, shards.max_bytes);
        shard_name(name, shard, shards.n);
        rc = ckpt_write_shard(plan, &(struct ckpt_shard){name, begin, end, shard++}, dir, how, err);
    }
    if (rc == 0 && ckpt_share_rank(how) == 0)
        rc = ckpt_file_make(dir, "model.safetensors.index.json", fill_index, &shards, how->manifest,
                            err);
    return rc;
}
