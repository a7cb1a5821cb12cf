/* What the files of this room share. */
#ifndef CKPT_INTERNAL_H
#define CKPT_INTERNAL_H

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt_files.h"
#include "lib/io/safetensors.h"
#include "lib/io/there.h"

/* ---- files ---- */

/* A file that is written from begin to end, in a folder that has no final name yet: so the file can
 * have its own at once. */
struct ckpt_file {
    char *path;
    int fd;
    /* bytes so far: appended; handed to the system; of those, asked to be stored on the disk */
    int64_t pos, written, started;
    struct s2s_buf buf;
    struct s2s_digest *digest; /* XXH3-128 of what was appended */
    /* ckpt_file_write leaves the digest alone: whoever set this updates it with the same bytes */
    bool is_summed_apart;
};

/* Makes the file, or empties it. IO: then neither _close nor _discard is needed. */
int ckpt_file_create(struct ckpt_file *file, const char *path, struct s2s_error *err);
/* Appends len bytes. IO. */
int ckpt_file_write(struct ckpt_file *file, const void *bytes, size_t len, struct s2s_error *err);
/* Writes out what is buffered, syncs and closes. digest: NULL, or where the XXH3-128 of the file
 * goes, 32 hex digits. Releases file, also on failure. IO. */
int ckpt_file_close(struct ckpt_file *file, char digest[33], struct s2s_error *err);
/* Closes without all that; what was written so far remains on the disk. */
void ckpt_file_discard(struct ckpt_file *file);

/* s2s_pread (lib/io/pread.h) whose errors name the file: len bytes from pos on. IO, TRUNCATED. */
int ckpt_pread(int fd, void *out, size_t len, int64_t pos, const char *path, struct s2s_error *err);
/* Reads the whole file dir_fd/name; *len is its length, and a zero byte follows. Gives: free
 * *bytes. FORMAT: it is no plain file, or longer than max_len bytes; OPEN: it must not be read; IO,
 * NOMEM. */
int ckpt_slurp(int dir_fd, const char *name, int64_t max_len, char **bytes, size_t *len,
               struct s2s_error *err);
/* fsync of a folder: then the names in it are on the disk. IO. */
int ckpt_sync_dir(const char *dir, struct s2s_error *err);
/* Opens the folder at/name, to list its entries. Gives: closedir. NULL: it is not there, or cannot
 * be listed. */
DIR *ckpt_open_dir(int at, const char *name);
enum { CKPT_MAX_LAYERS = 10000 };
/* Takes "decoder.layers.7.mlp.linear_fc2.weight" apart: *prefix_len is 15, the length of
 * "decoder.layers."; *layer is 7, or -1 where no number stands there; *rest, a pointer into name,
 * is "mlp..". false: no component of the name is "layers", or the number is CKPT_MAX_LAYERS or
 * more. */
bool ckpt_name_layer(const char *name, size_t *prefix_len, int64_t *layer, const char **rest);
/* May the name out of a foreign file be used as that of one file in a folder? Not if it is empty,
 * longer than 255 bytes, "." or "..", or has a slash, backslash or control character. */
bool ckpt_name_is_plain(const char *name, size_t len);
/* Compares two elements of an array of char *, for qsort and bsearch. */
int ckpt_by_text(const void *a, const void *b);
void ckpt_free_list(char **names, size_t n);
/* For "%.*s" in messages: how much is shown of a foreign text. */
static inline int ckpt_shown_len(size_t len, int most)
{
    return len < (size_t)most ? (int)len : most;
}
/* Is word one of words, which are separated by single spaces? */
bool ckpt_has_word(const char *words, const char *word);
/* Is dir_fd/name a link to somewhere else, whose target should not be copied into a folder that may
 * be published? Links in the same folder are not, nor those of the Hugging Face hub's cache
 * (../../blobs/NAME). */
bool ckpt_is_strange_link(int dir_fd, const char *name);
/* For who opens files without following links, but trusts the hub's cache: the path to open instead
 * of name. It is in `to` when dir_fd/name is a link of that cache, else it is name. */
const char *ckpt_in_hub(int dir_fd, const char *name, char to[PATH_MAX]);

/* Levenshtein distance of two names; most + 1 if it is larger than `most`, or a name longer than
 * 256 bytes. */
int ckpt_name_distance(const char *a, const char *b, int most);

/* A list of what is wrong with each of perhaps many tensors. The text of an error has room for the
 * first lines; the others go to the log. All zero to begin with. */
enum { CKPT_SHORT_LIST = 8 };
struct ckpt_list {
    char *lines[CKPT_SHORT_LIST];
    size_t n;                 /* of all lines, those in the log too */
    enum s2s_log_level level; /* of those in the log: all zero is an error */
};
/* Adds a line (takes it). what: stands before it if it goes to the log. */
void ckpt_list_add(struct ckpt_list *list, const char *what, char *line);
/* Adds the lines to err, which rc belongs to, and frees them. Returns rc. */
int ckpt_list_end(struct ckpt_list *list, int rc, struct s2s_error *err);

/* ---- boxes ---- */

/* Zeros: the offset of a box that begins where its tensor does. */
extern const int64_t ckpt_origin[S2S_MAX_DIMS];
/* Are the shapes a [a_dims] and b [b_dims] the same? */
bool ckpt_same_shape(const int64_t *a, int a_dims, const int64_t *b, int b_dims);
/* Elements of a box; -1 on overflow or a negative size. */
int64_t ckpt_box_numel(const int64_t *size, int n_dims);
/* Sets stride [n_dims] to the strides, in elements, of a row-major box without gaps. */
void ckpt_box_strides(int64_t *stride, const int64_t *size, int n_dims);

/* A part of a tensor; both [n_dims] of it. */
struct ckpt_box {
    const int64_t *offset, *size;
};
/* Do the n boxes cover a tensor of that shape, each element once? SHAPE names the hole, the overlap
 * or the box that leaves it, or says that the shape itself is impossible; UNSUPPORTED: so many
 * boxes in no order cannot be compared. Sorts boxes. name is for messages. */
int ckpt_boxes_tile(const char *name, const int64_t *shape, int n_dims, struct ckpt_box *boxes,
                    size_t n, struct s2s_error *err);
/* Writes "[2, 3]" into text, and returns text. */
const char *ckpt_shape_text(char text[200], const int64_t *shape, int n_dims);

#endif
