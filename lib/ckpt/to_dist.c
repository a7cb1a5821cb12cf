#include "lib/ckpt/to_dist.h"

#include <fcntl.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/dist.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/to_hf.h"

enum { MAX_COMMON = 1 << 30 };

static int data_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    return s2s_dist_data(ctx, bytes, len, err);
}

static int write_target(struct s2s_ckpt_plan *plan, const struct s2s_ckpt_target *target,
                        struct s2s_dist_writer *writer, const struct s2s_ckpt_write *how,
                        struct s2s_error *err)
{
    struct s2s_dist_chunk chunk = {.name = target->name,
                                   .dtype = target->dtype,
                                   .n_dims = target->n_dims,
                                   .shape = target->shape};
    const struct s2s_ckpt_tensor *source = target->n_pieces == 1 ? target->pieces[0].source : NULL;
    if (source && source->orig_shape && source->n_dims == target->n_dims) {
        chunk.orig_shape = source->orig_shape;
        chunk.n_orig_dims = source->n_orig_dims;
    }
    int rc = s2s_dist_begin_tensor(writer, &chunk, err);
    if (rc == 0)
        rc = s2s_ckpt_target_stream(plan, target, how, data_sink, writer, err);
    return rc < 0 ? rc : s2s_dist_end(writer, err);
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

/* files of at most max_shard_bytes (a tensor is never cut), each with its own list of items */
static int write_files(struct s2s_ckpt_plan *plan, const char *dir, int64_t iteration,
                       const struct s2s_ckpt_write *how, struct s2s_buf *items,
                       struct s2s_error *err)
{
    struct s2s_dist_writer *writer = NULL;
    int rank = 0, rc = s2s_dist_open(&writer, dir, iteration, rank, err);
    if (rc == 0)
        rc = write_objects(plan->source, writer, how, err);
    for (size_t i = 0; i < plan->n_targets && rc == 0; i++) {
        const struct s2s_ckpt_target *target = &plan->targets[i];
        int64_t written = s2s_dist_written(writer);
        if (how->max_shard_bytes > 0 && written > 0 &&
            written + s2s_ckpt_target_bytes(target) > how->max_shard_bytes) {
            rc = s2s_dist_close(writer, items, err);
            writer = NULL;
            if (rc == 0)
                rc = s2s_dist_open(&writer, dir, iteration, ++rank, err);
        }
        if (rc == 0)
            rc = write_target(plan, target, writer, how, err);
    }
    if (rc == 0)
        return s2s_dist_close(writer, items, err);
    s2s_dist_discard(writer);
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
    int rc = s2s_dist_begin(dir, iteration, err);
    if (rc == 0)
        rc = write_files(plan, dir, iteration, how, &items, err);
    if (rc == 0)
        rc = s2s_ckpt_plan_verify(plan, err);
    if (rc == 0)
        rc = commit(plan, dir, iteration, how, &items, err);
    s2s_buf_release(&items);
    return rc;
}
