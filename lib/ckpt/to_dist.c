#include "lib/ckpt/to_dist.h"

#include <fcntl.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/dist.h"
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
};

static int data_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    return s2s_dist_data(ctx, bytes, len, err);
}

static int next_file(struct output *out, struct s2s_error *err)
{
    int rc = 0;
    if (out->writer)
        rc = s2s_dist_close(out->writer, out->items, err);
    out->writer = NULL;
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
    int rc = 0;
    while (rc == 0 && out->how->n_files && out->rank < out->how->n_files &&
           out->done >= file_end(out))
        rc = next_file(out, err);
    int64_t first = out->offset[0] + out->size[0], rows = out->n_rows - first;
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
    const char *from = bytes;
    int rc = 0;
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
    }
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
    int rc = next_file(out, err);
    if (rc == 0)
        rc = write_objects(out->plan->source, out->writer, out->how, err);
    for (size_t i = 0; i < out->plan->n_targets && rc == 0; i++) {
        const struct s2s_ckpt_target *target = &out->plan->targets[i];
        int64_t written = s2s_dist_written(out->writer);
        if (most > 0 && written > 0 && written + s2s_ckpt_target_bytes(target) > most)
            rc = next_file(out, err);
        if (rc == 0)
            rc = write_target(out, target, err);
    }
    if (rc == 0)
        return s2s_dist_close(out->writer, out->items, err);
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
    int rc = s2s_dist_begin(dir, iteration, err);
    if (rc == 0)
        rc = write_files(&out, err);
    if (rc == 0)
        rc = s2s_ckpt_plan_verify(plan, err);
    if (rc == 0)
        rc = commit(plan, dir, iteration, how, &items, err);
    s2s_buf_release(&items);
    return rc;
}
