/* Plans and writes torch_dist checkpoints. */
#include "lib/ckpt/write/to_dist.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/common.h"
#include "lib/ckpt/write/dist.h"
#include "lib/ckpt/write/dist_internal.h"
#include "lib/ckpt/write/items.h"
#include "lib/ckpt/write/journal.h"
#include "lib/ckpt/write/manifest.h"
#include "lib/ckpt/write/share.h"
#include "lib/ckpt/write/to_hf.h"
#include "lib/io/digest.h"
#include "lib/io/zip.h"
#include "lib/mesh/mesh.h"

/* ---- layout ---- */

/* Tensors, or rows of them, are assigned to .distcp files before any byte is written, so that any
 * rank can write any file. */

/* A position in the sequence of all rows of all targets. */
struct place {
    size_t target; /* index in the plan; n_targets: the end */
    int64_t row;   /* on the target's first axis */
};

struct layout {
    /* [n_files + 1]: file i has the rows from start[i] to before start[i + 1] */
    struct place *start;
    size_t n_files;
};

/* upper bound of the overhead of an archive */
enum { ARCHIVE_BYTES = 2 << 10 };

/* Is the target a flattened tensor (s2s_ckpt_orig_shape) exactly as stored? It is then written in
 * one piece, with its original shape in the metadata. */
static bool is_flattened(const struct s2s_ckpt_target *target)
{
    const struct s2s_ckpt_tensor *source = s2s_ckpt_target_source(target);
    return source && s2s_ckpt_orig_shape(source) && source->n_dims == target->n_dims;
}

/* The number of rows that a target may be split into; 1: it is never split. */
static int64_t count_rows(const struct s2s_ckpt_target *target, const struct s2s_ckpt_write *how)
{
    /* scalars, empty and flattened tensors are never split */
    bool cut = how->n_files && target->n_dims && s2s_ckpt_target_shape(target)[0] > 0 &&
               !is_flattened(target);
    return cut ? s2s_ckpt_target_shape(target)[0] : 1;
}

/* Is the place this row of this target? */
static bool place_is(const struct place *place, size_t target, int64_t row)
{
    return place->target == target && place->row == row;
}

static void begin_file(struct layout *layout, size_t *cap, size_t target, int64_t row)
{
    s2s_grow(&layout->start, layout->n_files, cap, sizeof *layout->start);
    layout->start[layout->n_files++] = (struct place){target, row};
}

/* Is the byte object of this name written? The one with the common state is not: it becomes
 * common.pt, which all releases of Megatron-Core read, and a second copy could contradict it. */
static bool keeps_object(const struct s2s_ckpt_write *how, const char *name)
{
    return strcmp(name, CKPT_COMMON_OBJECT) != 0 && (!how->keep_object || how->keep_object(name));
}

static int64_t object_bytes(const struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < ckpt->n_objects; i++)
        if (keeps_object(how, ckpt->objects[i].name))
            bytes += (ckpt->objects[i].len_bytes > 0 ? ckpt->objects[i].len_bytes
                                                     : (int64_t)ckpt->objects[i].pickle_len) +
                     ARCHIVE_BYTES;
    return bytes;
}

static void whole_tensors(struct layout *layout, size_t *cap, const struct s2s_ckpt_plan *plan,
                          const struct s2s_ckpt_write *how)
{
    int64_t held = object_bytes(plan->source, how), most = how->max_shard_bytes;
    for (size_t i = 0; i < plan->n_targets; i++) {
        int64_t bytes = s2s_ckpt_target_bytes(&plan->targets[i]) + ARCHIVE_BYTES;
        if (most > 0 && held > 0 && held + bytes > most) {
            begin_file(layout, cap, i, 0);
            held = 0;
        }
        held += bytes;
    }
}

static void equal_files(struct layout *layout, size_t *cap, const struct s2s_ckpt_plan *plan,
                        const struct s2s_ckpt_write *how)
{
    const int64_t n_files = how->n_files;
    int64_t total = 0, done = 0;
    for (size_t i = 0; i < plan->n_targets; i++)
        total += s2s_ckpt_target_bytes(&plan->targets[i]);
    for (size_t i = 0; i < plan->n_targets; i++) {
        int64_t n_rows = count_rows(&plan->targets[i], how), rows;
        int64_t row_bytes = s2s_ckpt_target_bytes(&plan->targets[i]) / n_rows;
        for (int64_t row = 0; row < n_rows; row += rows, done += rows * row_bytes) {
            /* file n ends at n / n_files of all bytes, or with the row that crosses it */
            __int128 all = total;
            while ((int64_t)layout->n_files < n_files &&
                   done >= (int64_t)(all * (int64_t)layout->n_files / n_files))
                begin_file(layout, cap, i, row);
            int64_t room = (int64_t)(all * (int64_t)layout->n_files / n_files) - done;
            rows = n_rows - row;
            if (row_bytes > 0 && (int64_t)layout->n_files < n_files &&
                (room + row_bytes - 1) / row_bytes < rows)
                rows = (room + row_bytes - 1) / row_bytes;
        }
    }
}

/* If how->n_files is set: that many files of equal size, with tensors split between rows where
 * needed. Otherwise files of at most how->max_shard_bytes (or with a single larger tensor), in
 * which no tensor is split. Gives: layout_release. */
static void layout_make(struct layout *layout, const struct s2s_ckpt_plan *plan,
                        const struct s2s_ckpt_write *how)
{
    size_t cap = 0;
    *layout = (struct layout){.n_files = 0};
    begin_file(layout, &cap, 0, 0);
    if (how->n_files)
        equal_files(layout, &cap, plan, how);
    else
        whole_tensors(layout, &cap, plan, how);
    begin_file(layout, &cap, plan->n_targets, 0);
    layout->n_files--;
}

static void layout_release(struct layout *layout)
{
    free(layout->start);
    *layout = (struct layout){.n_files = 0};
}

/* This rank's files of a checkpoint, written one after the other. */
struct output {
    struct s2s_ckpt_plan *plan;
    const struct s2s_ckpt_write *how;
    const char *dir;
    int64_t iteration;
    struct layout layout;
    struct s2s_buf *items;
    struct s2s_dist_writer *writer; /* of `file`; files before `end` are to be written */
    size_t file, end;
    /* the current tensor, its rows until `last_row`, and the open chunk of it */
    size_t target;
    int64_t row_bytes, last_row, offset[S2S_MAX_DIMS], size[S2S_MAX_DIMS];
    int64_t skip, left; /* bytes to skip before the first row; bytes left of the chunk */
    struct s2s_dist_chunk chunk;
    uint32_t crc; /* of the chunk's data, if the source stores it */
};

/* ---- files of an earlier run ---- */

static char *file_path(const struct output *out, size_t file, const char *suffix)
{
    char *dir = ckpt_dist_tmp_dir(out->dir, out->iteration);
    char *path = s2s_xasprintf("%s/__%zu_0%s", dir, file, suffix);
    free(dir);
    return path;
}

/* Suffix of a file's list of items, stored beside it until all files are complete. */
static const char ITEMS[] = ".items";

/* Adds the current file and its list of items to the journal. */
static int note_file(struct output *out, size_t items_at, struct s2s_error *err)
{
    const size_t len = out->items->len - items_at;
    char digest[33];
    if (!out->how->journal || len == 0) /* 0: the file was empty, and was removed */
        return 0;
    const struct s2s_buf list = {.data = out->items->data + items_at, .len = len};
    struct ckpt_items listed = {.n = 0};
    int rc = ckpt_items_add(&listed, &list, err);
    char *folder = ckpt_dist_tmp_dir(out->dir, out->iteration),
         *path = file_path(out, out->file, ".distcp");
    char *items = file_path(out, out->file, ITEMS);
    if (rc == 0)
        rc = ckpt_file_put(folder, strrchr(items, '/') + 1, list.data, list.len, err);
    s2s_xxh3_128_hex(digest, list.data, list.len);
    if (rc == 0) {
        const struct ckpt_item *last = listed.v[listed.n - 1];
        rc = ckpt_journal_add(out->how->journal, path, last->len,
                              ckpt_item_name(last) + strlen(CKPT_ITEM_DIGEST), err);
    }
    if (rc == 0)
        rc = ckpt_journal_add(out->how->journal, items, (int64_t)list.len, digest, err);
    ckpt_items_release(&listed);
    free(folder);
    free(path);
    free(items);
    return rc;
}

/* Reads the items of a file; false: damaged, or of another version. */
static bool take_items(struct output *out, const char *path)
{
    enum { MAX_ITEMS = 1 << 30 };
    struct ckpt_items known = {.n = 0};
    struct s2s_buf list = S2S_BUF_INIT;
    struct s2s_error err = S2S_ERROR_INIT;
    int rc = ckpt_slurp(AT_FDCWD, path, MAX_ITEMS, &list.data, &list.len, &err);
    if (rc == 0)
        rc = ckpt_items_add(&known, &list, &err);
    if (rc == 0)
        s2s_buf_add(out->items, list.data, list.len);
    ckpt_items_release(&known);
    free(list.data);
    return rc == 0;
}

static bool keep_file(struct output *out, size_t file)
{
    char digest[33], *path = file_path(out, file, ".distcp"), *items = file_path(out, file, ITEMS);
    int64_t len, items_len;
    bool kept = ckpt_journal_has(out->how->journal, items, &items_len, digest) &&
                ckpt_journal_has(out->how->journal, path, &len, digest) && take_items(out, items);
    free(path);
    free(items);
    if (kept && out->how->progress)
        out->how->progress(out->how->ctx, len);
    return kept;
}

/* Removes the lists of items, when all files are complete. */
static int drop_items(const struct output *out, struct s2s_error *err)
{
    int rc = 0;
    for (size_t file = 0; rc == 0 && out->how->journal && file < out->layout.n_files; file++) {
        char *items = file_path(out, file, ITEMS);
        if (unlink(items) < 0 && errno != ENOENT) /* an empty file has none */
            rc = s2s_error_errno(err, S2S_E_IO, "%s: remove", items);
        free(items);
    }
    return rc;
}

/* ---- writing ---- */

static int data_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    return s2s_dist_data(ctx, bytes, len, err);
}

/* Writes the source's byte objects: stored ones are copied; those of a torch.save file, which have
 * no bytes, are pickled anew. */
static int write_objects(struct s2s_ckpt *ckpt, struct s2s_dist_writer *writer,
                         const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < ckpt->n_objects && rc == 0; i++) {
        const struct s2s_ckpt_object *object = &ckpt->objects[i];
        if (!keeps_object(how, object->name))
            continue;
        if (!object->file) {
            rc = object->pickle ? s2s_dist_write_pickle(writer, object->name, object->pickle,
                                                        object->pickle_len, err)
                                : s2s_dist_write_object(writer, object->name, object->value, err);
            continue;
        }
        /* loading the output runs the pickle: refuse damage and attacks here */
        rc = s2s_ckpt_verify_object(ckpt, object, err);
        if (rc < 0)
            return rc;
        s2s_dist_begin_bytes(writer, object->name);
        rc = s2s_ckpt_stream_object(ckpt, object, data_sink, writer, err);
        if (rc == 0)
            rc = s2s_dist_end(writer, err);
    }
    return rc;
}

static int open_file(struct output *out, struct s2s_error *err)
{
    int rc = s2s_dist_open(&out->writer, out->dir, out->iteration, (int)out->file, err);
    return rc < 0 || out->file ? rc : write_objects(out->plan->source, out->writer, out->how, err);
}

static int close_file(struct output *out, struct s2s_error *err)
{
    size_t had = out->items->len;
    int rc = s2s_dist_close(out->writer, out->items, err);
    out->writer = NULL;
    return rc < 0 ? rc : note_file(out, had, err);
}

/* Continues with the file that contains this row. */
static int reach(struct output *out, size_t target, int64_t row, struct s2s_error *err)
{
    int rc = 0;
    while (rc == 0 && out->file + 1 < out->end &&
           place_is(&out->layout.start[out->file + 1], target, row)) {
        rc = close_file(out, err);
        out->file++;
        if (rc == 0)
            rc = open_file(out, err);
    }
    return rc;
}

/* Does the chunk consist of one whole source tensor, unchanged, whose CRC-32 is stored? It is
 * verified when the tensor is read, and need not be computed again. */
static bool has_stored_crc(struct output *out)
{
    struct s2s_ckpt_plan *plan = out->plan;
    const struct s2s_ckpt_target *target = &plan->targets[out->target];
    const struct s2s_ckpt_tensor *source = s2s_ckpt_target_source(target);
    return source && source->dtype == target->dtype && plan->n_others == 0 &&
           out->left == s2s_ckpt_bytes(source) &&
           s2s_ckpt_stored_crc(plan->source, source, &out->crc);
}

/* Begins the file's chunk of the tensor, from this row on. */
static int begin_chunk(struct output *out, int64_t row, struct s2s_error *err)
{
    int rc = reach(out, out->target, row, err);
    const struct place *next = &out->layout.start[out->file + 1];
    int64_t end = next->target == out->target ? next->row : out->last_row;
    out->offset[0] = row;
    out->size[0] = end - row;
    out->left = (end - row) * out->row_bytes;
    if (rc < 0)
        return rc;
    out->chunk.crc = has_stored_crc(out) ? &out->crc : NULL;
    return s2s_dist_begin_tensor(out->writer, &out->chunk, err);
}

/* Writes data of a tensor, which may continue in the next file; data outside of this rank's rows is
 * dropped. */
static int cut_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    struct output *out = ctx;
    size_t skipped = (int64_t)len < out->skip ? len : (size_t)out->skip;
    const char *from = (const char *)bytes + skipped;
    int rc = 0;
    out->skip -= (int64_t)skipped;
    len -= skipped;
    while (len > 0 && rc == 0) {
        int64_t end = out->offset[0] + out->size[0];
        if (out->left == 0 && end == out->last_row)
            return 0;
        if (out->left == 0) {
            rc = s2s_dist_end(out->writer, err);
            if (rc == 0)
                rc = begin_chunk(out, end, err);
            continue;
        }
        size_t now = (int64_t)len < out->left ? len : (size_t)out->left;
        rc = s2s_dist_data(out->writer, from, now, err);
        from += now;
        len -= now;
        out->left -= (int64_t)now;
    }
    return rc;
}

/* Writes the rows of a tensor between the current position and the start of file `end`. */
static int write_target(struct output *out, size_t index, struct s2s_error *err)
{
    const struct s2s_ckpt_target *target = &out->plan->targets[index];
    const struct place *start = &out->layout.start[out->file];
    const struct place *end = &out->layout.start[out->end];
    const int64_t *orig_shape =
        is_flattened(target) ? s2s_ckpt_orig_shape(s2s_ckpt_target_source(target)) : NULL;
    const int64_t n_rows = count_rows(target, out->how);
    const int64_t first = start->target == index ? start->row : 0;
    const bool cut =
        out->how->n_files && target->n_dims && n_rows == s2s_ckpt_target_shape(target)[0];
    out->target = index;
    out->row_bytes = s2s_ckpt_target_bytes(target) / n_rows;
    out->last_row = end->target == index ? end->row : n_rows;
    out->chunk = (struct s2s_dist_chunk){.name = s2s_ckpt_target_name(target),
                                         .dtype = target->dtype,
                                         .n_dims = target->n_dims,
                                         .shape = s2s_ckpt_target_shape(target),
                                         .offset = cut ? out->offset : NULL,
                                         .size = cut ? out->size : NULL,
                                         .orig_shape = orig_shape};
    for (int d = 0; d < target->n_dims; d++) {
        out->offset[d] = 0;
        out->size[d] = s2s_ckpt_target_shape(target)[d];
    }
    struct s2s_ckpt_target part;
    out->skip =
        s2s_ckpt_target_part(&part, target, first * out->row_bytes, out->last_row * out->row_bytes);
    int rc = begin_chunk(out, first, err);
    if (rc == 0)
        rc = s2s_ckpt_target_stream(out->plan, &part, out->how, cut_sink, out, err);
    free(part.pieces);
    return rc < 0 ? rc : s2s_dist_end(out->writer, err);
}

/* Writes files [first, end); a tensor that continues from one to the next is read once. */
static int write_range(struct output *out, size_t first, size_t end, struct s2s_error *err)
{
    const struct place *start = &out->layout.start[first], *last = &out->layout.start[end];
    const bool empty = place_is(start, last->target, last->row);
    out->file = first;
    out->end = end;
    int rc = open_file(out, err);
    for (size_t i = start->target;
         rc == 0 && !empty && (i < last->target || (i == last->target && last->row > 0)); i++) {
        rc = reach(out, i, 0, err);
        if (rc == 0)
            rc = write_target(out, i, err);
    }
    if (rc == 0)
        return close_file(out, err);
    s2s_dist_discard(out->writer);
    out->writer = NULL;
    return rc;
}

/* Writes this rank's files, which are consecutive, except for those that an earlier run completed.
 */
static int write_mine(struct output *out, struct s2s_error *err)
{
    const size_t n = out->layout.n_files, n_ranks = (size_t)ckpt_share_size(out->how);
    const size_t rank = (size_t)ckpt_share_rank(out->how);
    size_t file = n * rank / n_ranks, mine = n * (rank + 1) / n_ranks;
    int rc = 0;
    while (file < mine && rc == 0) {
        size_t end = file;
        bool kept = false;
        while (end < mine && !(kept = keep_file(out, end)))
            end++;
        if (end > file)
            rc = write_range(out, file, end, err);
        file = end + kept;
    }
    return rc;
}

/* ---- common.pt ---- */

struct common {
    struct s2s_buf made;
    /* or the source's, as its keys and values may be of types that JSON lacks */
    struct s2s_ckpt *ckpt; /* NULL: it has none */
    struct ckpt_span span;
    struct ckpt_common_change change;
};

static int file_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    return ckpt_file_write(ctx, bytes, len, err);
}

static int fill_common(struct ckpt_file *file, const void *ctx, struct s2s_error *err)
{
    const struct common *c = ctx;
    if (!c->ckpt)
        return ckpt_file_write(file, c->made.data, c->made.len, err);
    const int64_t begin = c->span.begin, len = c->span.len_bytes;
    const char *name = c->ckpt->files[c->span.file].name;
    const int fd = ckpt_file_fd(c->ckpt, c->span.file, err);
    const struct s2s_zip_source source = {.fd = fd, .begin = begin, .len_bytes = len};
    if (fd < 0)
        return fd;
    if (c->change.listed || c->change.key)
        return ckpt_common_change(file_sink, file, &source, &c->change, err);
    char *piece = ckpt_piece(c->ckpt);
    int rc = 0;
    for (int64_t done = 0; rc == 0 && done < len;) {
        const size_t n = len - done < CKPT_SCRATCH ? (size_t)(len - done) : CKPT_SCRATCH;
        rc = ckpt_pread(fd, piece, n, begin + done, name, err);
        if (rc == 0)
            rc = ckpt_file_write(file, piece, n, err);
        done += (int64_t)n;
    }
    return rc;
}

/* Looks for a common state to copy. */
static int find_common(struct common *c, struct s2s_ckpt *ckpt, const json_t *metadata,
                       struct s2s_error *err)
{
    const struct s2s_ckpt_object *object = ckpt_find_object(ckpt, CKPT_COMMON_OBJECT);
    const bool has_file = s2s_is_there(ckpt->dir_fd, "common.pt");
    if (strcmp(ckpt->format, "torch_dist") != 0 || (!has_file && !object))
        return 0;
    int rc =
        has_file ? ckpt_verify_common_file(ckpt, err) : s2s_ckpt_verify_object(ckpt, object, err);
    const int file = rc < 0 ? rc : ckpt_add_file(ckpt, has_file ? "common.pt" : object->file, err);
    if (file < 0)
        return file;
    c->ckpt = ckpt;
    c->span = has_file ? (struct ckpt_span){file, 0, ckpt->files[file].len_bytes}
                       : (struct ckpt_span){file, object->pos, object->len_bytes};
    c->change = (struct ckpt_common_change){
        .listed = !has_file, .key = metadata ? "content_metadata" : NULL, .value = metadata};
    return 0;
}

/* Checks that what was unwrapped had been a list of one dict. */
static int check_common(const char *dir, struct s2s_error *err)
{
    char *path = s2s_xasprintf("%s/common.pt", dir);
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd < 0 || fstat(fd, &st) < 0 ? s2s_error_errno(err, S2S_E_OPEN, "%s", path) : 0;
    const struct s2s_zip_source source = {.fd = fd, .len_bytes = rc == 0 ? st.st_size : 0};
    if (rc == 0)
        rc = ckpt_common_check(&source, err);
    if (fd >= 0)
        close(fd);
    free(path);
    return rc;
}

static int make_common(struct s2s_buf *out, struct s2s_ckpt *ckpt, const struct s2s_ckpt_write *how,
                       struct s2s_error *err)
{
    json_t *common = NULL;
    int rc = 0;
    if (!how->common && !ckpt->common && strcmp(ckpt->format, "torch_dist") == 0)
        s2s_warn("ckpt",
                 "%s: common.pt is missing: the one written holds none of the run's arguments",
                 ckpt->path);
    if (how->common || ckpt->common)
        common = json_copy((json_t *)(how->common ? how->common : ckpt->common));
    else
        rc = s2s_hf_common(&common, ckpt, true, err);
    if (rc < 0)
        return rc;
    if (how->metadata)
        json_object_set(common, "content_metadata", (json_t *)how->metadata);
    ckpt_common_make(out, common);
    json_decref(common);
    return 0;
}

static int commit(const struct output *out, const struct s2s_buf *items, size_t n_ranks,
                  struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = out->plan->source;
    struct common common = {.made = S2S_BUF_INIT};
    const struct ckpt_dist_common filled = {fill_common, &common};
    struct ckpt_side_files beside = {.n = 0};
    char *tmp = ckpt_dist_tmp_dir(out->dir, out->iteration);
    const bool has_common = !out->how->dcp;
    int rc = out->how->common ? 0 : find_common(&common, ckpt, out->how->metadata, err);
    if (rc == 0 && has_common && !common.ckpt)
        rc = make_common(&common.made, ckpt, out->how, err);
    if (rc == 0 && !out->how->common) /* they refer to the source's names */
        rc = ckpt_dist_take_beside(&beside, ckpt, err);
    if (rc == 0)
        rc = ckpt_dist_finish(tmp, items, n_ranks, has_common ? &filled : NULL, &beside, ckpt, err);
    if (rc == 0 && common.change.listed)
        rc = check_common(tmp, err);
    if (rc == 0) /* last, so that a run that resumes after a full disk still has all files */
        rc = drop_items(out, err);
    if (rc == 0)
        rc = ckpt_dist_publish(out->dir, out->iteration, err);
    ckpt_side_release(&beside);
    s2s_buf_release(&common.made);
    free(tmp);
    return rc;
}

/* Makes the folder of the weights, unless an earlier run did. */
static int begin(const struct output *out, struct s2s_error *err)
{
    char *tmp = ckpt_dist_tmp_dir(out->dir, out->iteration);
    bool there = out->how->journal && access(tmp, F_OK) == 0;
    free(tmp);
    return there ? 0 : s2s_dist_begin(out->dir, out->iteration, err);
}

/* Gathers all items on rank 0, which completes the checkpoint. */
static int finish(const struct output *out, struct s2s_error *err)
{
    const size_t n = (size_t)ckpt_share_size(out->how);
    struct s2s_buf *all =
        n > 1 ? s2s_comm_gather_bufs(s2s_mesh_world(out->how->mesh), out->items) : out->items;
    int rc = ckpt_share_rank(out->how) == 0 ? commit(out, all, n, err) : 0;
    for (size_t r = 0; n > 1 && r < n; r++)
        s2s_buf_release(&all[r]);
    if (n > 1)
        free(all);
    return ckpt_share_agree(out->how, rc, err);
}

static int64_t iteration_for(const struct s2s_ckpt *source)
{
    if (source->release)
        return S2S_DIST_RELEASE;
    return source->iteration < 0 ? S2S_DIST_UNKNOWN : source->iteration;
}

int s2s_ckpt_write_dist(struct s2s_ckpt_plan *plan, const char *dir,
                        const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    struct s2s_buf items = S2S_BUF_INIT;
    struct output out = {.plan = plan,
                         .how = how,
                         .dir = dir,
                         .iteration = iteration_for(plan->source),
                         .items = &items};
    layout_make(&out.layout, plan, how);
    int rc = ckpt_share_agree(how, ckpt_share_rank(how) ? 0 : begin(&out, err), err);
    if (rc == 0)
        rc = ckpt_share_agree(how, write_mine(&out, err), err);
    if (rc == 0)
        rc = ckpt_share_verify(plan, how, err);
    if (rc == 0)
        rc = finish(&out, err);
    layout_release(&out.layout);
    s2s_buf_release(&items);
    return rc;
}
