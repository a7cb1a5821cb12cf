/* One stream to a stream a rank. A record is held at a time, whatever the length of the stream. */
#include "tools/shard/cpshard.h"

#include "lib/io/digest.h"
#include "lib/io/outfile.h"

struct splitter {
    const struct cpshard_options *opt;
    struct s2s_stream *in;
    struct s2s_stream_writer **out; /* [cp_size]; NULL for ranks that are not wanted */
    struct cpshard_bounds bounds;
    struct s2s_st_tensor *tensors; /* of a rank's record */
    struct s2s_st_meta *meta;
    size_t cap_tensors, cap_meta;
    struct s2s_buf data; /* of the tensors that are cut */
    int64_t n_misaligned;
};

/* ---- headers ---- */

/*
 * The parent's schema. Sizes T of tensors that are cut are the rank's own; a tensor that is copied
 * and bound to T (none of ours is) keeps the parent's under another letter.
 */
static json_t *schema_of(const json_t *header)
{
    json_t *schema = json_deep_copy(json_object_get(header, "schema"));
    const char *name;
    json_t *entry;
    json_object_foreach(schema, name, entry)
    {
        json_t *shape = json_object_get(entry, "shape");
        for (size_t d = 0; d < json_array_size(shape); d++) {
            const char *size = json_string_value(json_array_get(shape, d));
            if (size && !strcmp(size, "T") && cpshard_share_of(name) == CPSHARD_COPY)
                json_array_set_new(shape, d, json_string("Tparent"));
        }
    }
    return schema;
}

static json_t *header_of(const struct splitter *s, int rank)
{
    static const char *const own[] = {"format", "version", "provenance", NULL};
    json_t *header = json_copy((json_t *)s2s_stream_header(s->in));
    for (size_t i = 0; own[i]; i++)
        json_object_del(header, own[i]);
    json_object_set_new(header, "kind", json_string("cpshard"));
    json_object_set_new(header, "schema", schema_of(s2s_stream_header(s->in)));
    json_object_set_new(header, "cp",
                        json_pack("{s:i, s:i}", "size", s->opt->cp_size, "rank", rank));
    json_object_set_new(header, "parent", json_string(s2s_stream_header_digest(s->in)));
    return header;
}

/* The output's name for a rank: %r becomes its number. */
static char *name_of(const char *pattern, int rank)
{
    struct s2s_buf name = S2S_BUF_INIT;
    for (const char *p = pattern; *p; p++)
        if (p[0] == '%' && p[1] == 'r') {
            s2s_buf_printf(&name, "%d", rank);
            p++;
        } else {
            s2s_buf_putc(&name, *p);
        }
    return name.data;
}

static int create_outputs(struct splitter *s, struct s2s_error *err)
{
    static const struct s2s_args_rule rules[] = {
        {"rank", S2S_ARGS_DROP}, {"tp", S2S_ARGS_DROP}, {NULL, S2S_ARGS_DROP}};
    const struct s2s_stream_options how = {.jobs = s->opt->common.jobs};
    size_t n_args = 0;
    char **args = s2s_tool_args(rules, &n_args);
    int rc = 0;
    for (int rank = 0; rc == 0 && rank < s->opt->cp_size; rank++) {
        if (s->opt->cp_rank >= 0 && rank != s->opt->cp_rank)
            continue;
        json_t *header = header_of(s, rank);
        char *name = name_of(s->opt->common.out ? s->opt->common.out : "-", rank);
        if ((rc = s2s_outfile_spares_each(name, s->opt->inputs, s->opt->n_inputs, err)) == 0)
            rc = s2s_stream_create(&s->out[rank], name, header, s2s_stream_header(s->in), args,
                                   n_args, &how, err);
        free(name);
        json_decref(header);
    }
    for (size_t i = 0; i < n_args; i++)
        free(args[i]);
    free(args);
    return rc;
}

/* ---- records ---- */

/* A tensor as a rank has it; cut ones lie in data, which has room. */
static void cut(struct splitter *s, struct s2s_st_tensor *t, int rank)
{
    const enum cpshard_share share = cpshard_share_of(t->name);
    const struct cpshard_bounds *b = &s->bounds;
    const int cp_size = s->opt->cp_size;
    if (share == CPSHARD_COPY)
        return;
    const size_t stride = cpshard_stride(t);
    char *to = s->data.data + s->data.len;
    if (share == CPSHARD_SLOTS) {
        s2s_thd_cp_split(to, t->data, stride, b->cu_seqlens, b->n_seqs, cp_size, rank);
        t->shape[0] = b->n_slots / cp_size;
    } else {
        s2s_thd_cp_split_rows(to, t->data, stride, &b->clips, b->cu_seqlens, b->n_seqs, cp_size,
                              rank);
        t->shape[0] = s2s_thd_cp_rows(&b->clips, b->cu_seqlens, b->n_seqs, cp_size, rank);
    }
    t->data = to;
    t->len_bytes = (size_t)t->shape[0] * stride;
    s->data.len += (t->len_bytes + 63) & ~(size_t)63;
}

static int write_rank(struct splitter *s, const struct s2s_record *rec, const char *parent,
                      int rank, struct s2s_error *err)
{
    const struct s2s_safetensors *st = &rec->st;
    size_t n_meta = 0;
    s->data.len = 0;
    for (size_t i = 0; i < st->n_tensors; i++) {
        s->tensors[i] = st->tensors[i];
        cut(s, &s->tensors[i], rank);
    }
    for (size_t i = 0; i < st->n_meta; i++)
        if (strcmp(st->meta[i].key, "parent") != 0)
            s->meta[n_meta++] = st->meta[i];
    s->meta[n_meta++] = (struct s2s_st_meta){"parent", parent};
    return s2s_stream_write(s->out[rank], s->tensors, st->n_tensors, s->meta, n_meta, err);
}

static int split_record(struct splitter *s, const struct s2s_record *rec, struct s2s_error *err)
{
    const struct s2s_safetensors *st = &rec->st;
    const int cp_size = s->opt->cp_size;
    char parent[17];
    cpshard_bounds_read(&s->bounds, st);
    int rc = s2s_thd_cp_check(s->bounds.cu_seqlens, s->bounds.n_seqs, s->bounds.n_slots, cp_size, 0,
                              err);
    if (rc < 0)
        return rc;
    s->n_misaligned += s->bounds.n_slots / cp_size % s->opt->tp_size != 0;
    s2s_u64_hex(parent, rec->xxh3);
    if (st->n_tensors > s->cap_tensors) {
        s->cap_tensors = st->n_tensors;
        s->tensors = s2s_xrealloc(s->tensors, s->cap_tensors, sizeof *s->tensors);
    }
    if (st->n_meta + 1 > s->cap_meta) {
        s->cap_meta = st->n_meta + 1;
        s->meta = s2s_xrealloc(s->meta, s->cap_meta, sizeof *s->meta);
    }
    size_t room = 0;
    for (size_t i = 0; i < st->n_tensors; i++)
        if (cpshard_share_of(st->tensors[i].name) != CPSHARD_COPY)
            room += st->tensors[i].len_bytes + 64;
    s->data.len = 0;
    s2s_buf_reserve(&s->data, room);
    for (int rank = 0; rc == 0 && rank < cp_size; rank++)
        if (s->out[rank])
            rc = write_rank(s, rec, parent, rank, err);
    return rc;
}

/* ---- the stream ---- */

static int commit_outputs(struct splitter *s, struct s2s_error *err)
{
    char digest[33], *list[] = {digest};
    int rc = s2s_stream_end_digest(s->in, digest, err);
    for (int rank = 0; rc == 0 && rank < s->opt->cp_size; rank++)
        if (s->out[rank]) {
            rc = s2s_stream_commit(s->out[rank], s2s_stream_inputs(s->in), list, 1, err);
            s->out[rank] = NULL;
        }
    return rc;
}

static int check_kind(const struct splitter *s, const char *path, struct s2s_error *err)
{
    enum s2s_kind kind = s2s_stream_kind(s->in);
    if (kind == S2S_KIND_PACK || kind == S2S_KIND_EMBED)
        return 0;
    return s2s_error_set(err, S2S_E_FORMAT, "%s: a stream of kind %s; expected pack or embed", path,
                         s2s_kind_name(kind));
}

int cpshard_split(const struct cpshard_options *opt, struct s2s_error *err)
{
    const char *path = opt->n_inputs ? opt->inputs[0] : "-";
    struct splitter s = {.opt = opt};
    struct s2s_record rec;
    int64_t n_records = 0;
    int rc;
    s.out = s2s_xcalloc((size_t)opt->cp_size, sizeof(struct s2s_stream_writer *));
    if ((rc = s2s_stream_open(&s.in, path, err)) < 0 || (rc = check_kind(&s, path, err)) < 0 ||
        (rc = create_outputs(&s, err)) < 0)
        goto out;
    while ((rc = s2s_stream_next(s.in, &rec, err)) > 0) {
        if ((rc = split_record(&s, &rec, err)) < 0) {
            s2s_error_add(err, rc, "%s: record %lld", path, (long long)rec.idx);
            goto out;
        }
        n_records++;
    }
    if (rc == 0)
        rc = commit_outputs(&s, err);
    if (rc == 0 && s.n_misaligned)
        s2s_warn("cpshard",
                 "%lld of %lld records have T / cp that is no multiple of tp = %d, which sequence "
                 "parallelism needs (s2s-pack --strict-sp)",
                 (long long)s.n_misaligned, (long long)n_records, opt->tp_size);
    if (rc == 0)
        s2s_info("cpshard", "%lld records, cp %d", (long long)n_records, opt->cp_size);
out:
    for (int rank = 0; rank < opt->cp_size; rank++)
        s2s_stream_abort(s.out[rank]);
    free(s.out);
    free(s.tensors);
    free(s.meta);
    cpshard_bounds_release(&s.bounds);
    s2s_buf_release(&s.data);
    s2s_stream_close(s.in);
    return rc;
}
