/* The streams of all ranks to the stream they were cut from, bit for bit. */
#include "tools/shard/cpshard.h"

#include "lib/io/digest.h"
#include "lib/io/outfile.h"

struct joiner {
    const struct cpshard_options *opt;
    int cp_size;
    struct s2s_stream **in; /* [cp_size], by rank */
    const char **path;      /* [cp_size] */
    struct s2s_record *rec; /* [cp_size], the current one of each */
    struct s2s_stream_writer *out;
    struct cpshard_bounds bounds;
    struct s2s_st_tensor *tensors;
    struct s2s_st_meta *meta;
    struct s2s_buf data;
};

/* ---- which files belong together ---- */

static int cp_value(const struct s2s_stream *in, const char *key)
{
    const json_t *cp = json_object_get(s2s_stream_header(in), "cp");
    return (int)json_integer_value(json_object_get(cp, key));
}

/* Headers are equal but for the rank. */
static bool same_header(const struct s2s_stream *a, const struct s2s_stream *b)
{
    json_t *x = json_copy((json_t *)s2s_stream_header(a));
    json_t *y = json_copy((json_t *)s2s_stream_header(b));
    json_object_del(x, "cp");
    json_object_del(y, "cp");
    bool same = json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

/* Takes a stream (also on failure) as the one of its rank. */
static int add_input(struct joiner *j, struct s2s_stream *in, const char *path,
                     struct s2s_error *err)
{
    int rc = 0, rank = 0;
    if (s2s_stream_kind(in) != S2S_KIND_CPSHARD) {
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: a stream of kind %s; expected cpshard", path,
                           s2s_kind_name(s2s_stream_kind(in)));
    } else if (cp_value(in, "size") != j->cp_size && j->in) {
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: of cp %d, %s is of cp %d", path,
                           cp_value(in, "size"), j->opt->inputs[0], j->cp_size);
    } else {
        if (!j->in) {
            j->cp_size = cp_value(in, "size");
            j->in = s2s_xcalloc((size_t)j->cp_size, sizeof(struct s2s_stream *));
            j->path = s2s_xcalloc((size_t)j->cp_size, sizeof *j->path);
            j->rec = s2s_xcalloc((size_t)j->cp_size, sizeof *j->rec);
        }
        rank = cp_value(in, "rank");
        if (j->in[rank])
            rc = s2s_error_set(err, S2S_E_FORMAT, "%s: rank %d again, %s has it already", path,
                               rank, j->path[rank]);
    }
    if (rc < 0) {
        s2s_stream_close(in);
        return rc;
    }
    j->in[rank] = in;
    j->path[rank] = path;
    return 0;
}

static int check_inputs(const struct joiner *j, struct s2s_error *err)
{
    for (int rank = 0; rank < j->cp_size; rank++)
        if (!j->in[rank])
            return s2s_error_set(err, S2S_E_NOTFOUND, "rank %d of cp %d is missing", rank,
                                 j->cp_size);
    for (int rank = 1; rank < j->cp_size; rank++) {
        const char *parents[2];
        for (int i = 0; i < 2; i++)
            parents[i] = json_string_value(
                json_object_get(s2s_stream_header(j->in[i ? rank : 0]), "parent"));
        if (strcmp(parents[0], parents[1]) != 0)
            return s2s_error_set(err, S2S_E_FORMAT,
                                 "%s: cut from another stream than %s (parent %s, %s)",
                                 j->path[rank], j->path[0], parents[1], parents[0]);
        if (!same_header(j->in[0], j->in[rank]))
            return s2s_error_set(err, S2S_E_FORMAT, "%s: its header is not that of %s",
                                 j->path[rank], j->path[0]);
    }
    return 0;
}

static int open_inputs(struct joiner *j, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < j->opt->n_inputs; i++) {
        struct s2s_stream *in = NULL;
        rc = s2s_stream_open(&in, j->opt->inputs[i], err);
        if (rc == 0)
            rc = add_input(j, in, j->opt->inputs[i], err);
    }
    return rc < 0 ? rc : check_inputs(j, err);
}

/* ---- the parent's header ---- */

static json_t *parent_header(const struct joiner *j)
{
    json_t *header = json_deep_copy(s2s_stream_header(j->in[0]));
    json_t *schema = json_object_get(header, "schema"), *entry;
    json_t *provenance = json_object_get(header, "provenance");
    const char *name;
    json_object_foreach(schema, name, entry)
    {
        json_t *shape = json_object_get(entry, "shape");
        for (size_t d = 0; d < json_array_size(shape); d++) {
            const char *size = json_string_value(json_array_get(shape, d));
            if (size && !strcmp(size, "Tparent"))
                json_array_set_new(shape, d, json_string("T"));
        }
    }
    json_object_del(header, "cp");
    json_object_del(header, "parent");
    json_object_set_new(header, "kind",
                        json_string(json_object_get(header, "embed") ? "embed" : "pack"));
    json_array_remove(provenance, json_array_size(provenance) - 1);
    return header;
}

static int create_output(struct joiner *j, struct s2s_error *err)
{
    const struct s2s_stream_options how = {.jobs = j->opt->common.jobs};
    const char *wanted = json_string_value(json_object_get(s2s_stream_header(j->in[0]), "parent"));
    if (json_array_size(json_object_get(s2s_stream_header(j->in[0]), "provenance")) < 2)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: its provenance has no parent", j->path[0]);
    int rc = s2s_outfile_spares_each(j->opt->common.out, j->opt->inputs, j->opt->n_inputs, err);
    if (rc < 0)
        return rc;
    json_t *header = parent_header(j);
    rc = s2s_stream_create_exact(&j->out, j->opt->common.out, header, &how, err);
    json_decref(header);
    if (rc == 0 && strcmp(s2s_stream_writer_header_digest(j->out), wanted) != 0)
        return s2s_error_set(err, S2S_E_DIGEST,
                             "%s: its parent's header has the digest %s, the one made from it %s",
                             j->path[0], wanted, s2s_stream_writer_header_digest(j->out));
    return rc;
}

/* ---- records ---- */

/* The next record of every rank; all end together. 1, 0 at the end, or negative. */
static int next_records(struct joiner *j, struct s2s_error *err)
{
    int first = 0;
    for (int rank = 0; rank < j->cp_size; rank++) {
        int rc = s2s_stream_next(j->in[rank], &j->rec[rank], err);
        if (rc < 0)
            return rc;
        if (rank == 0)
            first = rc;
        else if (rc != first)
            return s2s_error_set(err, S2S_E_FORMAT, "%s ends before record %lld of %s",
                                 j->path[rc ? 0 : rank], (long long)j->rec[rc ? rank : 0].idx,
                                 j->path[rc ? rank : 0]);
    }
    return first;
}

static int differ(const struct joiner *j, int rank, const char *what, const char *name,
                  struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT, "%s: record %lld: %s '%s' is not that of %s",
                         j->path[rank], (long long)j->rec[rank].idx, what, name, j->path[0]);
}

/* Copies and metadata, `parent` among them, agree in all ranks. */
static int check_rank(const struct joiner *j, int rank, struct s2s_error *err)
{
    const struct s2s_safetensors *a = &j->rec[0].st, *b = &j->rec[rank].st;
    if (a->n_meta != b->n_meta || a->n_tensors != b->n_tensors)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: record %lld: its tensors are not those of %s",
                             j->path[rank], (long long)j->rec[rank].idx, j->path[0]);
    for (size_t i = 0; i < a->n_meta; i++)
        if (strcmp(a->meta[i].key, b->meta[i].key) || strcmp(a->meta[i].value, b->meta[i].value))
            return differ(j, rank, "metadata", b->meta[i].key, err);
    for (size_t i = 0; i < a->n_tensors; i++) {
        const struct s2s_st_tensor *x = &a->tensors[i], *y = &b->tensors[i];
        const bool copied = cpshard_share_of(x->name) == CPSHARD_COPY;
        if (strcmp(x->name, y->name) || x->dtype != y->dtype || x->n_dims != y->n_dims)
            return differ(j, rank, "tensor", y->name, err);
        for (int d = copied ? 0 : 1; d < x->n_dims; d++)
            if (x->shape[d] != y->shape[d])
                return differ(j, rank, "tensor", y->name, err);
        if (copied && x->len_bytes && memcmp(x->data, y->data, x->len_bytes) != 0)
            return differ(j, rank, "tensor", y->name, err);
    }
    return 0;
}

/* Tensor i of the joined record, in data, which has room. */
static void join_tensor(struct joiner *j, size_t i)
{
    struct s2s_st_tensor *t = &j->tensors[i];
    const struct cpshard_bounds *b = &j->bounds;
    const enum cpshard_share share = cpshard_share_of(t->name);
    if (share == CPSHARD_COPY)
        return;
    const size_t stride = cpshard_stride(t);
    char *to = j->data.data + j->data.len;
    t->shape[0] = 0;
    for (int rank = 0; rank < j->cp_size; rank++) {
        const struct s2s_st_tensor *from = &j->rec[rank].st.tensors[i];
        t->shape[0] += from->shape[0];
        if (share == CPSHARD_SLOTS)
            s2s_thd_cp_join(to, from->data, stride, b->cu_seqlens, b->n_seqs, j->cp_size, rank);
        else
            s2s_thd_cp_join_rows(to, from->data, stride, &b->clips, b->cu_seqlens, b->n_seqs,
                                 j->cp_size, rank);
    }
    t->data = to;
    t->len_bytes = (size_t)t->shape[0] * stride;
    j->data.len += (t->len_bytes + 63) & ~(size_t)63;
}

static int join_records(struct joiner *j, struct s2s_error *err)
{
    const struct s2s_safetensors *st = &j->rec[0].st;
    const char *parent = s2s_safetensors_meta(st, "parent");
    size_t n_meta = 0, room = 0;
    char digest[17];
    int rc = 0;
    for (int rank = 1; rc == 0 && rank < j->cp_size; rank++)
        rc = check_rank(j, rank, err);
    if (rc < 0)
        return rc;
    cpshard_bounds_read(&j->bounds, st);
    rc = s2s_thd_cp_check(j->bounds.cu_seqlens, j->bounds.n_seqs, j->bounds.n_slots, j->cp_size, 0,
                          err);
    if (rc < 0)
        return s2s_error_add(err, rc, "%s: record %lld", j->path[0], (long long)j->rec[0].idx);
    j->tensors = s2s_xrealloc(j->tensors, st->n_tensors + 1, sizeof *j->tensors);
    j->meta = s2s_xrealloc(j->meta, st->n_meta + 1, sizeof *j->meta);
    for (int rank = 0; rank < j->cp_size; rank++)
        for (size_t i = 0; i < st->n_tensors; i++)
            if (cpshard_share_of(st->tensors[i].name) != CPSHARD_COPY)
                room += j->rec[rank].st.tensors[i].len_bytes + 64;
    j->data.len = 0;
    s2s_buf_reserve(&j->data, room);
    for (size_t i = 0; i < st->n_tensors; i++) {
        j->tensors[i] = st->tensors[i];
        join_tensor(j, i);
    }
    for (size_t i = 0; i < st->n_meta; i++)
        if (strcmp(st->meta[i].key, "parent") != 0)
            j->meta[n_meta++] = st->meta[i];
    rc = s2s_stream_write(j->out, j->tensors, st->n_tensors, j->meta, n_meta, err);
    s2s_u64_hex(digest, rc < 0 ? 0 : s2s_stream_last_digest(j->out));
    if (rc == 0 && strcmp(digest, parent) != 0)
        rc = s2s_error_set(err, S2S_E_DIGEST,
                           "record %lld: joined it has the digest %s, it was cut from one with %s",
                           (long long)j->rec[0].idx, digest, parent);
    return rc;
}

/* ---- the stream ---- */

/* Ranks were cut from the same stream to its end, so their lists of inputs are equal; without this
 * step's entry it is the parent's. */
static int commit_output(struct joiner *j, struct s2s_error *err)
{
    json_t *inputs = json_deep_copy(s2s_stream_inputs(j->in[0]));
    int rc = 0;
    for (int rank = 1; rc == 0 && rank < j->cp_size; rank++)
        if (!json_equal(inputs, s2s_stream_inputs(j->in[rank])))
            rc = s2s_error_set(err, S2S_E_FORMAT, "%s: the inputs in its end are not those of %s",
                               j->path[rank], j->path[0]);
    json_array_remove(inputs, json_array_size(inputs) - 1);
    if (rc == 0) {
        rc = s2s_stream_commit_exact(j->out, inputs, err);
        j->out = NULL;
    }
    json_decref(inputs);
    return rc;
}

int cpshard_join(const struct cpshard_options *opt, struct s2s_error *err)
{
    struct joiner j = {.opt = opt};
    int64_t n_records = 0;
    int rc;
    if ((rc = open_inputs(&j, err)) < 0 || (rc = create_output(&j, err)) < 0)
        goto out;
    while ((rc = next_records(&j, err)) > 0) {
        if ((rc = join_records(&j, err)) < 0)
            goto out;
        n_records++;
    }
    if (rc == 0)
        rc = commit_output(&j, err);
    if (rc == 0)
        s2s_info("cpshard", "%lld records joined from cp %d", (long long)n_records, j.cp_size);
out:
    s2s_stream_abort(j.out);
    for (int rank = 0; rank < j.cp_size && j.in; rank++)
        s2s_stream_close(j.in[rank]);
    free(j.in);
    free(j.path);
    free(j.rec);
    free(j.tensors);
    free(j.meta);
    cpshard_bounds_release(&j.bounds);
    s2s_buf_release(&j.data);
    return rc;
}
