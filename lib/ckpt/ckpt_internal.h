/* What the files of this room share. */
#ifndef CKPT_INTERNAL_H
#define CKPT_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt_files.h"

/* ---- files ---- */

/* An output file of a folder that is not visible yet: plain buffered appends. */
struct ckpt_file {
    char *path;
    int fd;
    int64_t pos, written, started; /* appended; handed to the system; of that, begun to store */
    struct s2s_buf buf;
    struct s2s_digest *digest; /* XXH3-128 of what was written */
};

int ckpt_file_create(struct ckpt_file *file, const char *path, struct s2s_error *err);
int ckpt_file_write(struct ckpt_file *file, const void *bytes, size_t len, struct s2s_error *err);
int ckpt_file_flush(struct ckpt_file *file, struct s2s_error *err);
/* Flush, fsync, close; digest (may be NULL) gets the XXH3-128. Releases file, also on failure. */
int ckpt_file_close(struct ckpt_file *file, char digest[33], struct s2s_error *err);
void ckpt_file_discard(struct ckpt_file *file);
/* A whole small file; noted in manifest unless that is NULL. */
int ckpt_file_put_noted(const char *dir, const char *name, const void *bytes, size_t len,
                        json_t *manifest, struct s2s_error *err);
int ckpt_file_put(const char *dir, const char *name, const void *bytes, size_t len,
                  struct s2s_error *err);

int ckpt_pread(int fd, void *out, size_t len, int64_t pos, const char *path, struct s2s_error *err);
/* A whole file of at most max_len bytes. Gives: free *bytes; a zero byte follows. */
int ckpt_slurp(int dir_fd, const char *name, int64_t max_len, char **bytes, size_t *len,
               struct s2s_error *err);
int ckpt_sync_dir(const char *dir, struct s2s_error *err);
enum { CKPT_MAX_LAYERS = 10000 };
/* "decoder.layers.7.mlp.linear_fc2.weight": the prefix "decoder.layers." is 15 long, the layer 7
 * (-1: no number stands there) and the rest "mlp..". False where nothing is called layers, or its
 * number is absurd. */
bool ckpt_name_layer(const char *name, size_t *prefix_len, int64_t *layer, const char **rest);
/* One plain component: not empty, ".", "..", no slash, backslash or control character. */
bool ckpt_name_is_plain(const char *name, size_t len);
/* A link may take what is secret along into a folder that is published. Those of the hub's cache
 * (../../blobs/NAME) and those within the folder are what they seem. */
bool ckpt_is_strange_link(int dir_fd, const char *name);

/* ---- pickles, written (protocol 2) ---- */

/* Remembers globals and shared objects so that they are written once. */
struct ckpt_emitter {
    struct s2s_buf buf;
    char **memo;
    size_t n_memo, cap_memo;
};

void ckpt_emit_begin(struct ckpt_emitter *out);
void ckpt_emit_end(struct ckpt_emitter *out); /* STOP; buf holds the pickle */
void ckpt_emit_release(struct ckpt_emitter *out);
void ckpt_emit_op(struct ckpt_emitter *out, const char *ops); /* opcodes as they are */
void ckpt_emit_int(struct ckpt_emitter *out, int64_t value);
void ckpt_emit_str(struct ckpt_emitter *out, const char *s);
/* "module name", written once, then fetched from the memo */
void ckpt_emit_global(struct ckpt_emitter *out, const char *module, const char *name);
/* true: the object with this key was fetched from the memo; false: the caller writes it now and
 * then calls ckpt_emit_remember with the same key. */
bool ckpt_emit_recall(struct ckpt_emitter *out, const char *key);
void ckpt_emit_remember(struct ckpt_emitter *out, const char *key);
void ckpt_emit_ints(struct ckpt_emitter *out, const int64_t *v, int n); /* a tuple */
void ckpt_emit_json(struct ckpt_emitter *out, const json_t *value);
/* a contiguous tensor over the whole storage data/KEY of the archive */
void ckpt_emit_tensor(struct ckpt_emitter *out, const char *key, enum s2s_dtype dtype, int n_dims,
                      const int64_t *size);
/* key of a dict as argparse.Namespace */
void ckpt_emit_namespace(struct ckpt_emitter *out, const json_t *value);

struct ckpt_common_change {
    bool listed;         /* the dict is the only entry of a list, as in a byte object */
    const char *key;     /* NULL, or what is set in it */
    const json_t *value; /* borrowed */
};
/* Adds a common.pt to out that is made of the bytes of one or of such an object: all else stays as
 * it was. FORMAT; UNSUPPORTED: no pickle of torch.save's. */
int ckpt_common_change(struct s2s_buf *out, const char *bytes, size_t len,
                       const struct ckpt_common_change *how, struct s2s_error *err);
/* Adds the bytes of a common.pt. */
void ckpt_common_make(struct s2s_buf *out, const json_t *common);
/* s2s_dist_commit with the bytes of common.pt as they are. paths: NULL, or of the names. */
int ckpt_dist_commit(const char *root, int64_t iteration, const struct s2s_buf *items,
                     size_t n_ranks, const struct s2s_buf *common, const json_t *paths,
                     struct s2s_error *err);

/* One safetensors file of a folder, by the rank whose turn it is, noted in its how->manifest. */
struct s2s_ckpt_plan;
struct s2s_ckpt_write;
int ckpt_write_file(struct s2s_ckpt_plan *plan, size_t begin, size_t end, size_t number,
                    const char *dir, const char *name, const struct s2s_ckpt_write *how,
                    struct s2s_error *err);

/* ---- dtypes as torch spells them ---- */

const char *ckpt_torch_dtype(enum s2s_dtype dtype);   /* "bfloat16" */
const char *ckpt_torch_storage(enum s2s_dtype dtype); /* "BFloat16Storage", NULL: only untyped */
enum s2s_dtype ckpt_dtype_of_torch(const char *name, size_t len);   /* NONE when unknown */
enum s2s_dtype ckpt_dtype_of_storage(const char *name, size_t len); /* NONE when unknown */

/* Levenshtein distance of two names of at most 256 bytes; above `most`: most + 1. */
int ckpt_name_distance(const char *a, const char *b, int most);

/* ---- boxes ---- */

/* Elements of a box; -1 on overflow or a negative size. */
int64_t ckpt_box_numel(const int64_t *size, int n_dims);

struct ckpt_box {
    const int64_t *offset, *size;
};
/* 0 when the boxes tile `shape` exactly; else SHAPE naming the hole, overlap or box outside. */
int ckpt_boxes_tile(const char *name, const int64_t *shape, int n_dims, struct ckpt_box *boxes,
                    size_t n, struct s2s_error *err);
/* "[2, 3]" into text; returns text */
const char *ckpt_shape_text(char text[200], const int64_t *shape, int n_dims);

#endif
