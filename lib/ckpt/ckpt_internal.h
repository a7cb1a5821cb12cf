/* What the files of this room share. */
#ifndef CKPT_INTERNAL_H
#define CKPT_INTERNAL_H

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt_files.h"
#include "lib/io/safetensors.h"

/* ---- files ---- */

/* An output file of a folder that is not visible yet: plain buffered appends. */
struct ckpt_file {
    char *path;
    int fd;
    int64_t pos, written, started; /* appended; handed to the system; of that, begun to store */
    struct s2s_buf buf;
    struct s2s_digest *digest; /* XXH3-128 of what was written */
    bool is_summed_apart;      /* it has what is written now, from elsewhere */
};

int ckpt_file_create(struct ckpt_file *file, const char *path, struct s2s_error *err);
int ckpt_file_write(struct ckpt_file *file, const void *bytes, size_t len, struct s2s_error *err);
/* Flush, fsync, close; digest (may be NULL) gets the XXH3-128. Releases file, also on failure. */
int ckpt_file_close(struct ckpt_file *file, char digest[33], struct s2s_error *err);
void ckpt_file_discard(struct ckpt_file *file);

int ckpt_pread(int fd, void *out, size_t len, int64_t pos, const char *path, struct s2s_error *err);
/* A whole file of at most max_len bytes. Gives: free *bytes; a zero byte follows. */
int ckpt_slurp(int dir_fd, const char *name, int64_t max_len, char **bytes, size_t *len,
               struct s2s_error *err);
int ckpt_sync_dir(const char *dir, struct s2s_error *err);
/* Is it there? What the system cannot tell counts as there: who opens it is told why, and nothing
 * is left out because a disk failed. A link to nothing is not there. */
bool ckpt_is_there(int at, const char *name);
/* The folder at/name, to list its entries; NULL: it is not there, or cannot be listed. Gives:
 * closedir. */
DIR *ckpt_open_dir(int at, const char *name);
enum { CKPT_MAX_LAYERS = 10000 };
/* "decoder.layers.7.mlp.linear_fc2.weight": the prefix "decoder.layers." is 15 long, the layer 7
 * (-1: no number stands there) and the rest "mlp..". False where nothing is called layers, or its
 * number is absurd. */
bool ckpt_name_layer(const char *name, size_t *prefix_len, int64_t *layer, const char **rest);
/* One plain component: not empty, ".", "..", no slash, backslash or control character. */
bool ckpt_name_is_plain(const char *name, size_t len);
/* Of char *, for qsort and bsearch. */
int ckpt_by_text(const void *a, const void *b);
/* Is it one of the words between blanks? */
bool ckpt_has_word(const char *words, const char *word);
/* A link may take what is secret along into a folder that is published. Those of the hub's cache
 * (../../blobs/NAME) and those within the folder are what they seem. */
bool ckpt_is_strange_link(int dir_fd, const char *name);
/* What to open without following links: where a link of the hub's cache leads, else the name.
 * Lends one of them. */
const char *ckpt_in_hub(int dir_fd, const char *name, char to[PATH_MAX]);

/* One safetensors file of a folder, by the rank whose turn it is, noted in its how->manifest. */
struct s2s_ckpt_plan;
struct s2s_ckpt_write;
int ckpt_write_file(struct s2s_ckpt_plan *plan, size_t begin, size_t end, size_t number,
                    const char *dir, const char *name, const struct s2s_ckpt_write *how,
                    struct s2s_error *err);

/* Levenshtein distance of two names of at most 256 bytes; above `most`: most + 1. */
int ckpt_name_distance(const char *a, const char *b, int most);

/* What is wrong with each of perhaps many tensors. An error's text is short: the first are lines of
 * it, the others go to the log. */
enum { CKPT_SHORT_LIST = 8 };
struct ckpt_list {
    char *lines[CKPT_SHORT_LIST];
    size_t n; /* of all */
};
/* Takes line; what: stands before it in the log. */
void ckpt_list_add(struct ckpt_list *list, const char *what, char *line);
/* Puts the lines behind the error that stands for rc, if there are any, and frees them. Returns rc.
 */
int ckpt_list_end(struct ckpt_list *list, int rc, struct s2s_error *err);

/* ---- boxes ---- */

/* Where every tensor begins. */
extern const int64_t ckpt_origin[S2S_MAX_DIMS];
bool ckpt_same_shape(const int64_t *a, int a_dims, const int64_t *b, int b_dims);
/* Elements of a box; -1 on overflow or a negative size. */
int64_t ckpt_box_numel(const int64_t *size, int n_dims);
/* Strides of a box of a sound shape whose elements follow each other, row-major, as torch has
 * them. */
void ckpt_box_strides(int64_t *stride, const int64_t *size, int n_dims);

struct ckpt_box {
    const int64_t *offset, *size;
};
/* 0 when the boxes tile `shape` exactly; else SHAPE naming the hole, overlap or box outside. */
int ckpt_boxes_tile(const char *name, const int64_t *shape, int n_dims, struct ckpt_box *boxes,
                    size_t n, struct s2s_error *err);
/* "[2, 3]" into text; returns text */
const char *ckpt_shape_text(char text[200], const int64_t *shape, int n_dims);

#endif
