/* Shared by the files that read safetensors: scanning the JSON of a header. */
#ifndef SAFETENSORS_INTERNAL_H
#define SAFETENSORS_INTERNAL_H

#include <stdbool.h>

#include "lib/base/blocks.h"
#include "lib/io/safetensors.h"

/* What a parsed file owns besides its two arrays. */
struct io_internal {
    void *map; /* NULL: the bytes are the caller's */
    size_t map_len;
    char *strings;           /* all names, keys and values, unescaped; or */
    struct s2s_blocks texts; /* keys and values of the metadata only */
};

/* A tensor of a header (data is NULL), at byte `begin` of the file's data; or, if tensor.name is
 * NULL, a piece of a value of __metadata__, with key NULL if it continues the last one. Lent for
 * the call. */
struct io_member {
    struct s2s_st_tensor tensor;
    uint64_t begin;
    struct s2s_st_meta meta;
};

struct io_scan {
    const char *p, *end;
    char *out; /* for the next unescaped string; never passes p */
    const char *begin;
    uint64_t pos; /* offset of `begin` in the header, for messages */
    bool has_meta;
    bool in_text; /* the last part ended inside of a value of the metadata */
    int (*member)(void *ctx, const struct io_member *member, struct s2s_error *err);
    void *ctx;
    struct s2s_error *err;
};

/* Scans the part [p, end) of a header; parts are passed in order. A part ends before a comma
 * between two members (which is in no part), inside of a value of the metadata (between two
 * characters), or at the end of the header. */
enum io_part_end { IO_AT_COMMA, IO_IN_TEXT, IO_AT_END };
int io_scan_part(struct io_scan *s, enum io_part_end end);

/* Checks which bytes of the data belong to which tensor. Tensors that follow each other from byte 0
 * on are only summed up, so that files in order, as most are, need no memory here. */
struct io_extents {
    uint64_t data_len, at; /* at: end of the sum */
    struct io_extent {
        uint64_t begin, len;
        size_t idx; /* of the tensor, in order of the calls */
    } * list, bad;  /* list: tensors out of order; bad: the first misplaced one */
    size_t n, cap, n_seen;
    bool is_bad, all_listed;
};
void io_extents_add(struct io_extents *extents, uint64_t begin, uint64_t len);
/* Checks that every byte of the data belongs to exactly one tensor. FORMAT: the tensors do not end
 * with the data; if `is_bad` is set, io_misplaced makes the message. 1: an empty tensor lies within
 * the sum, whose single extents are needed to check it: add all tensors again, and call this again.
 * Releases extents. */
int io_extents_end(struct io_extents *extents, struct s2s_error *err);
int io_misplaced(const struct io_extents *extents, const char *name, struct s2s_error *err);

/* Reads the header's length from its first 8 bytes, of a file of len bytes. FORMAT, TRUNCATED. */
int io_header_length(size_t *header_len, const void *head, uint64_t len, struct s2s_error *err);
int io_too_short(uint64_t len, struct s2s_error *err);
int io_not_utf8(struct s2s_error *err);
/* Sorts the metadata by key. FORMAT: a duplicate key. */
int io_order_meta(struct s2s_safetensors *st, struct s2s_error *err);

#endif
