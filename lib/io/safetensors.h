/*
 * safetensors files and byte strings (Hugging Face): u64 header length, JSON, data without gaps.
 * The reader maps the file (or only reads its header) and rejects what the Rust library rejects:
 * offsets that overlap, leave holes or exceed the file, products that overflow, duplicate names.
 * The writer's form is canonical, so equal content gives equal bytes: tensors sorted by name,
 * metadata sorted by key, JSON padded with spaces to 8 bytes, no gaps.
 */
#ifndef S2S_IO_SAFETENSORS_H
#define S2S_IO_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

struct s2s_buf;
struct s2s_error;
struct s2s_outfile;

enum { S2S_MAX_DIMS = 8 };
/* The library's limit for the length of a header. */
enum { S2S_SAFETENSORS_MAX_HEADER = 100000000 };

/* A tensor: row-major, little-endian. */
struct s2s_st_tensor {
    const char *name;
    enum s2s_dtype dtype;
    int n_dims;
    int64_t shape[S2S_MAX_DIMS];
    const void *data; /* [len_bytes]; may be unaligned */
    size_t len_bytes;
};

struct s2s_st_meta {
    const char *key, *value;
};

/* A parsed file: tensors sorted by name, meta sorted by key, all lent until _close/_release. */
struct s2s_safetensors {
    struct s2s_st_tensor *tensors;
    size_t n_tensors;
    struct s2s_st_meta *meta;
    size_t n_meta;
    void *internal;
};

/* Parses bytes (borrowed until _release) or maps a file. FORMAT, TRUNCATED, OPEN; after a failure
 * there is nothing to release. */
int s2s_safetensors_parse(struct s2s_safetensors *st, const void *bytes, size_t len,
                          struct s2s_error *err);
int s2s_safetensors_open(struct s2s_safetensors *st, const char *path, struct s2s_error *err);
/*
 * Reads only the header, in parts, so that memory does not grow with its length and later changes
 * of the file have no effect. st gets the metadata, of values of 64 KiB or more possibly only the
 * beginning. visit (NULL: none) gets each tensor in the header's order, lent for the call: its data
 * is NULL, and is in the file at *data_pos + begin, where *data_pos is set before the first call.
 * Duplicate names and errors in later tensors are not known yet during a call. fd stays the
 * caller's; messages do not name it. FORMAT, TRUNCATED, OPEN, IO, or a negative result of visit;
 * after a failure there is nothing to release.
 */
typedef int s2s_st_visit(void *ctx, const struct s2s_st_tensor *tensor, size_t begin,
                         struct s2s_error *err);
int s2s_safetensors_read_header(struct s2s_safetensors *st, int fd, int64_t *data_pos,
                                s2s_st_visit *visit, void *ctx, struct s2s_error *err);
/* Reads the values of the metadata in the header's order, in pieces that are lent for the call; key
 * NULL: the last value continues. Errors as above. */
typedef int s2s_st_text(void *ctx, const char *key, const char *piece, struct s2s_error *err);
int s2s_safetensors_read_texts(int fd, s2s_st_text *text, void *ctx, struct s2s_error *err);
void s2s_safetensors_release(struct s2s_safetensors *st); /* also unmaps */

/* Find a tensor by name, and the value of a metadata key; NULL: none. */
const struct s2s_st_tensor *s2s_safetensors_find(const struct s2s_safetensors *st,
                                                 const char *name);
const char *s2s_safetensors_meta(const struct s2s_safetensors *st, const char *key);

int64_t s2s_st_numel(const struct s2s_st_tensor *tensor);

/* Appends to a header's JSON: "dtype":"F32","shape":[2,3]. SHAPE: F4, which is counted by pairs
 * here and by single elements in a header, without an axis or with one too long. */
int s2s_st_put_type(struct s2s_buf *json, enum s2s_dtype dtype, const int64_t *shape, int n_dims,
                    struct s2s_error *err);

/*
 * Makes the header (u64 and JSON) of a canonical file of these tensors, which are sorted in place
 * by name; the data follows in that order. Gives: free *header. SHAPE: len_bytes does not match the
 * shape; FORMAT: a duplicate name.
 */
int s2s_safetensors_header(char **header, size_t *header_len, struct s2s_st_tensor *tensors,
                           size_t n_tensors, struct s2s_st_meta *meta, size_t n_meta,
                           struct s2s_error *err);
/* Writes a whole canonical file. tensors and meta are sorted in place. */
int s2s_safetensors_save(const char *path, struct s2s_st_tensor *tensors, size_t n_tensors,
                         struct s2s_st_meta *meta, size_t n_meta, struct s2s_error *err);

#endif
