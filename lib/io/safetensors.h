/*
 * safetensors files and byte strings (Hugging Face): u64 header length, JSON, data without gaps.
 * The reader maps the file (or only reads its header) and refuses what the library refuses (offsets
 * that overlap, leave holes, leave the file, products that overflow, duplicate names). The writer
 * is canonical: tensors in the order of their names, metadata keys sorted, JSON padded with spaces
 * to 8 bytes, no gaps: equal content is equal bytes.
 */
#ifndef S2S_IO_SAFETENSORS_H
#define S2S_IO_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/dtype.h"

struct s2s_error;
struct s2s_outfile;

enum { S2S_MAX_DIMS = 8 };
/* What the library takes at most of a header, in bytes. */
enum { S2S_SAFETENSORS_MAX_HEADER = 100000000 };

/* One named tensor: row-major, little-endian. */
struct s2s_st_tensor {
    const char *name;
    enum s2s_dtype dtype;
    int n_dims;
    int64_t shape[S2S_MAX_DIMS];
    const void *data; /* len_bytes bytes; may be unaligned */
    size_t len_bytes;
};

struct s2s_st_meta {
    const char *key, *value;
};

/* A parsed file. tensors are in the order of their names, meta in the order of their keys; all lent
 * until _close/_release. */
struct s2s_safetensors {
    struct s2s_st_tensor *tensors;
    size_t n_tensors;
    struct s2s_st_meta *meta;
    size_t n_meta;
    void *internal;
};

/* Parses bytes (borrowed until _release) or maps a file. FORMAT, TRUNCATED, OPEN; nothing to
 * release on failure. */
int s2s_safetensors_parse(struct s2s_safetensors *st, const void *bytes, size_t len,
                          struct s2s_error *err);
int s2s_safetensors_open(struct s2s_safetensors *st, const char *path, struct s2s_error *err);
/*
 * The header alone, a part at a time: memory does not grow with it, and nothing depends on what
 * becomes of the file. st gets the metadata, of a text of 64 KiB and more perhaps only the
 * beginning; visit (NULL: nobody) each tensor in the header's order, lent for the call: its data is
 * NULL and lies at *data_pos + begin of the file. That is known from the first call on; whether a
 * name comes twice, or the tensors after it are sound, is not. fd stays the caller's; errors do not
 * name it. FORMAT, TRUNCATED, OPEN, IO, or what visit returns below 0; nothing to release then.
 */
typedef int s2s_st_visit(void *ctx, const struct s2s_st_tensor *tensor, size_t begin,
                         struct s2s_error *err);
int s2s_safetensors_read_header(struct s2s_safetensors *st, int fd, int64_t *data_pos,
                                s2s_st_visit *visit, void *ctx, struct s2s_error *err);
/* The texts of its metadata, in the header's order and in pieces that are lent for the call; key
 * NULL: the last one goes on. Errors as above. */
typedef int s2s_st_text(void *ctx, const char *key, const char *piece, struct s2s_error *err);
int s2s_safetensors_read_texts(int fd, s2s_st_text *text, void *ctx, struct s2s_error *err);
void s2s_safetensors_release(struct s2s_safetensors *st); /* also unmaps */

/* By name, or NULL. */
const struct s2s_st_tensor *s2s_safetensors_find(const struct s2s_safetensors *st,
                                                 const char *name);
const char *s2s_safetensors_meta(const struct s2s_safetensors *st, const char *key);

int64_t s2s_st_numel(const struct s2s_st_tensor *tensor);

/*
 * The header (u64 and JSON) of a canonical file holding these tensors, which are sorted in place by
 * name; data follows in that order. Gives: free *header. SHAPE when len_bytes does not fit the
 * shape; FORMAT for a name twice.
 */
int s2s_safetensors_header(char **header, size_t *header_len, struct s2s_st_tensor *tensors,
                           size_t n_tensors, struct s2s_st_meta *meta, size_t n_meta,
                           struct s2s_error *err);
/* Writes a whole canonical file. tensors and meta are sorted in place. */
int s2s_safetensors_save(const char *path, struct s2s_st_tensor *tensors, size_t n_tensors,
                         struct s2s_st_meta *meta, size_t n_meta, struct s2s_error *err);

#endif
