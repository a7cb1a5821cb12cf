#include "lib/ckpt/to_dist.h"

#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/dist.h"
#include "lib/ckpt/items.h"
#include "lib/ckpt/journal.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/to_hf.h"

enum { MAX_COMMON = 1 << 30 };

/* The files of a checkpoint that is being written, one after the other. */
struct output {
    struct s2s_ckpt_plan *plan;
    const struct s2s_ckpt_write *how;
    const char *dir;
    int64_t iteration;
    struct s2s_dist_writer *writer;
    int rank;
    struct s2s_buf *items;
    /* of n_files: what all tensors have, what is written, and the chunk that is open now */
    int64_t total, done;
    struct s2s_dist_chunk chunk;
    int64_t row_bytes, n_rows, offset[S2S_MAX_DIMS], size[S2S_MAX_DIMS], left;
    size_t target; /* of the plan, that is being written */
    /* the first of them, from which row on, where files of an earlier run are kept */
    int64_t first_row, skip;
};

/* ---- an earlier run's files ---- */

static char *file_path(const struct output *out, int rank)
{
    return s2s_xasprintf("%s/iter_%07" PRId64 ".tmp/__%d_0.distcp", out->dir, out->iteration, rank);
}

/* State of the journal: the target and its row that come next, then the packed items in hex. */
static int note_file(struct output *out, size_t items_at, int64_t next_row, struct s2s_error *err)
{
    struct s2s_buf packed = S2S_BUF_INIT, state = S2S_BUF_INIT;
    struct ckpt_items items = {.n = 0};
    if (!out->how->journal || out->items->len == items_at)
        return 0;
    s2s_buf_add(&packed, out->items->data + items_at, out->items->len - items_at);
    int rc = ckpt_items_unpack(&items, &packed, err);
    s2s_buf_printf(&state, "%zu %lld ", out->target, (long long)next_row);
    for (size_t i = 0; i < packed.len; i++)
        s2s_buf_printf(&state, "%02x", (unsigned char)packed.data[i]);
    if (rc == 0 && items.n > 0) { /* else it was empty, and is not there */
        const struct ckpt_item *last = &items.v[items.n - 1];
        char *path = file_path(out, out->rank - 1);
        rc = ckpt_journal_add(out->how->journal, path, last->len,
                              last->name + strlen(CKPT_ITEM_DIGEST), state.data, err);
        free(path);
    }
    ckpt_items_release(&items);
    s2s_buf_release(&packed);
    s2s_buf_release(&state);
    return rc;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool take_state(struct output *out, const char *state)
{
    char *at;
    unsigned long long target = strtoull(state, &at, 10);
    long long row = strtoll(at, &at, 10);
    size_t had = out->items->len;
    if (*at++ != ' ' || target > out->plan->n_targets || row < 0)
        return false;
    for (; hex_digit(at[0]) >= 0 && hex_digit(at[1]) >= 0; at += 2)
        s2s_buf_putc(out->items, (char)(hex_digit(at[0]) << 4 | hex_digit(at[1])));
    if (*at) {
        out->items->len = had;
        return false;
    }
    out->target = target;
    out->first_row = row;
    return true;
}

/* Files are written in order: those from the first on that are whole are kept. */
static void keep_files(struct output *out)
{
    const char *state;
    char digest[33];
    int64_t len;
    for (bool kept = true; kept; out->rank += kept) {
        char *path = file_path(out, out->rank);
        kept = ckpt_journal_has(out->how->journal, path, &state, &len, digest) &&
               take_state(out, state);
        free(path);
    }
    for (size_t i = 0; i < out->target; i++)
        out->done += s2s_ckpt_target_bytes(&out->plan->targets[i]);
}

/* ---- writing ---- */

static int data_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    return s2s_dist_data(ctx, bytes, len, err);
}

/* next_row: of the target that is being written, not in this file any more */
static int close_file(struct output *out, int64_t next_row, struct s2s_error *err)
{
    size_t had = out->items->len;
    if (!out->writer)
        return 0;
    int rc = s2s_dist_close(out->writer, out->items, err);
    out->writer = NULL;
    return rc < 0 ? rc : note_file(out, had, next_row, err);
}

static int next_file(struct output *out, int64_t next_row, struct s2s_error *err)
{
    int rc = close_file(out, next_row, err);
    return rc < 0 ? rc : s2s_dist_open(&out->writer, out->dir, out->iteration, out->rank++, err);
}

/* where the current file ends, in bytes of tensors from the start of the checkpoint */
static int64_t file_end(const struct output *out)
{
    return (int64_t)((__int128)out->total * out->rank / out->how->n_files);
}

/* Begins the tensor's next chunk: as many rows as the current file still takes, at least one. */
static int begin_chunk(struct output *out, struct s2s_error *err)
{
    int64_t first = out->offset[0] + out->size[0];
    int rc = 0;
    while (rc == 0 && out->how->n_files && out->rank < out->how->n_files &&
           out->done >= file_end(out))
        rc = next_file(out, first, err);
    int64_t rows = out->n_rows - first;
    if (out->how->n_files && out->row_bytes > 0 && out->rank < out->how->n_files) {
        int64_t room = (file_end(out) - out->done + out->row_bytes - 1) / out->row_bytes;
        rows = rows < room ? rows : room;
    }
    out->offset[0] = first;
    out->size[0] = rows;
    out->left = rows * out->row_bytes;
    return rc < 0 ? rc : s2s_dist_begin_tensor(out->writer, &out->chunk, err);
}

/* data of a tensor that may go on in the next file */
static int cut_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    struct output *out = ctx;
    size_t skipped = (int64_t)len < out->skip ? len : (size_t)out->skip;
    const char *from = (const char *)bytes + skipped;
    int rc = 0;
    out->skip -= (int64_t)skipped;
    len -= skipped;
    while (len > 0 && rc == 0) {
        size_t now = (int64_t)len < out->left ? len : (size_t)out->left;
        rc = s2s_dist_data(out->writer, from, now, err);
        from += now;
        len -= now;
        out->left -= (int64_t)now;
        out->done += (int64_t)now;
        if (rc == 0 && out->left == 0 && out->offset[0] + out->size[0] < out->n_rows) {
            rc = s2s_dist_end(out->writer, err);
            if (rc == 0)
                rc = begin_chunk(out, err);
        }
    }
    return rc;
}

static int write_target(struct output *out, const struct s2s_ckpt_target *target,
                        struct s2s_error *err)
{
    const struct s2s_ckpt_tensor *source = target->n_pieces == 1 ? target->pieces[0].source : NULL;
    bool flattened = source && source->orig_shape && source->n_dims == target->n_dims;
    /* scalars, empty tensors and flattened ones are never cut */
    bool cut = out->how->n_files && target->n_dims && !flattened && target->shape[0] > 0;
    out->chunk = (struct s2s_dist_chunk){.name = target->name,
                                         .dtype = target->dtype,
                                         .n_dims = target->n_dims,
                                         .shape = target->shape,
                                         .orig_shape = flattened ? source->orig_shape : NULL,
                                         .n_orig_dims = flattened ? source->n_orig_dims : 0};
    out->n_rows = cut ? target->shape[0] : 1;
    out->row_bytes = s2s_ckpt_target_bytes(target) / out->n_rows;
    for (int d = 0; d < target->n_dims; d++) {
        out->offset[d] = 0;
        out->size[d] = d ? target->shape[d] : 0;
    }
    if (target->n_dims == 0 || !cut)
        out->offset[0] = out->size[0] = 0;
    if (cut) {
        out->chunk.offset = out->offset;
        out->chunk.size = out->size;
        out->offset[0] = out->first_row;
        out->skip = out->first_row * out->row_bytes;
        out->done += out->skip;
    }
    out->first_row = 0;
    int rc = begin_chunk(out, err);
    if (rc == 0)
        rc = s2s_ckpt_target_stream(out->plan, target, out->how, cut_sink, out, err);
    return rc < 0 ? rc : s2s_dist_end(out->writer, err);
}

/* stored objects come along as they are; plain values of a torch.save file have no bytes */
static int write_objects(struct s2s_ckpt *ckpt, struct s2s_dist_writer *writer,
                         const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < ckpt->n_objects && rc == 0; i++) {
        const struct s2s_ckpt_object *object = &ckpt->objects[i];
        if (how->keep_object && !how->keep_object(object->name))
            continue;
        if (!object->file) {
            rc = s2s_dist_write_object(writer, object->name, object->value, err);
            continue;
        }
        s2s_dist_begin_bytes(writer, object->name);
        rc = s2s_ckpt_stream_object(ckpt, object, data_sink, writer, err);
        if (rc == 0)
            rc = s2s_dist_end(writer, err);
    }
    return rc;
}

/* n_files of equal size, or files of at most max_shard_bytes in which no tensor is cut */
static int write_files(struct output *out, struct s2s_error *err)
{
    int64_t most = out->how->n_files ? 0 : out->how->max_shard_bytes;
    bool begun = out->rank > 0;
    if (begun && out->target == out->plan->n_targets)
        return 0; /* all files are there */
    int rc = next_file(out, 0, err);
    if (rc == 0 && !begun)
        rc = write_objects(out->plan->source, out->writer, out->how, err);
    for (; out->target < out->plan->n_targets && rc == 0; out->target += rc == 0) {
        const struct s2s_ckpt_target *target = &out->plan->targets[out->target];
        int64_t written = s2s_dist_written(out->writer);
        if (most > 0 && written > 0 && written + s2s_ckpt_target_bytes(target) > most)
            rc = next_file(out, 0, err);
        if (rc == 0)
            rc = write_target(out, target, err);
    }
    if (rc == 0)
        return close_file(out, 0, err);
    s2s_dist_discard(out->writer);
    return rc;
}

static int commit(struct s2s_ckpt_plan *plan, const char *dir, int64_t iteration,
                  const struct s2s_ckpt_write *how, const struct s2s_buf *items,
                  struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = plan->source;
    struct s2s_buf bytes = S2S_BUF_INIT;
    json_t *common = NULL;
    char *text;
    size_t len;
    int rc;
    if (how->common)
        return s2s_dist_commit(dir, iteration, items, 1, how->common, err);
    if (strcmp(ckpt->format, "torch_dist") == 0 &&
        faccessat(ckpt->dir_fd, "common.pt", F_OK, 0) == 0) {
        rc = ckpt_slurp(ckpt->dir_fd, "common.pt", MAX_COMMON, &text, &len, err);
        if (rc < 0)
            return rc;
        s2s_buf_add(&bytes, text, len);
        free(text);
        rc = ckpt_dist_commit(dir, iteration, items, 1, &bytes, err);
        s2s_buf_release(&bytes);
        return rc;
    }
    rc = ckpt->common ? 0 : s2s_hf_common(&common, ckpt, err);
    if (rc == 0)
        rc = s2s_dist_commit(dir, iteration, items, 1, ckpt->common ? ckpt->common : common, err);
    json_decref(common);
    return rc;
}

int s2s_ckpt_write_dist(struct s2s_ckpt_plan *plan, const char *dir,
                        const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    struct s2s_buf items = S2S_BUF_INIT;
    int64_t iteration = plan->source->iteration < 0 ? 0 : plan->source->iteration;
    struct output out = {
        .plan = plan, .how = how, .dir = dir, .iteration = iteration, .items = &items};
    for (size_t i = 0; i < plan->n_targets; i++)
        out.total += s2s_ckpt_target_bytes(&plan->targets[i]);
    keep_files(&out);
    int rc = out.rank ? 0 : s2s_dist_begin(dir, iteration, err);
    if (rc == 0 && how->progress)
        how->progress(how->ctx, out.done);
    if (rc == 0)
        rc = write_files(&out, err);
    if (rc == 0)
        rc = s2s_ckpt_plan_verify(plan, err);
    if (rc == 0)
        rc = commit(plan, dir, iteration, how, &items, err);
    s2s_buf_release(&items);
    return rc;
}
