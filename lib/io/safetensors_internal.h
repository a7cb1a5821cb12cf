/* What the files that read safetensors share: the JSON of a header, member by member. */
#ifndef SAFETENSORS_INTERNAL_H
#define SAFETENSORS_INTERNAL_H

#include <stdbool.h>

#include "lib/base/blocks.h"
#include "lib/io/safetensors.h"

/* What a parsed file owns beside its two arrays. */
struct io_internal {
    void *map; /* NULL: the bytes are the caller's */
    size_t map_len;
    char *strings;           /* every name, key and value, unescaped; or */
    struct s2s_blocks texts; /* those of the metadata */
};

/* A tensor of a header (its data is NULL), which begins at byte `begin` of the file's data; or,
 * tensor.name NULL, a text of its __metadata__, whose key is NULL where the last call's text goes
 * on. All is lent for the call. */
struct io_member {
    struct s2s_st_tensor tensor;
    uint64_t begin;
    struct s2s_st_meta meta;
};

struct io_scan {
    const char *p, *end;
    char *out; /* where the next unescaped text goes; never outruns p */
    const char *begin;
    uint64_t pos; /* of `begin` in the header, for messages */
    bool has_meta;
    bool in_text; /* the last part ended within a text of the metadata */
    int (*member)(void *ctx, const struct io_member *member, struct s2s_error *err);
    void *ctx;
    struct s2s_error *err;
};

/* The bytes from p to end are those of a header from pos on: its beginning, or what follows the
 * part before. They end before a comma between two members, which belongs to no part, within a text
 * of the metadata, between two of its characters, or where the header ends. */
enum io_part_end { IO_AT_COMMA, IO_IN_TEXT, IO_AT_END };
int io_scan_part(struct io_scan *s, enum io_part_end end);

/* Which bytes of the data belong to a tensor. What lies end to end from byte 0 on is a sum, so that
 * files in order, which most are, take no memory here. */
struct io_extents {
    uint64_t data_len, at; /* where the sum ends */
    struct io_extent {
        uint64_t begin, len;
        size_t idx; /* of the tensor, in the order of the calls */
    } * list, bad;  /* the rest, until it is sorted; the tensor that was not expected */
    size_t n, cap, n_seen;
    bool is_bad, all_listed;
};
void io_extents_add(struct io_extents *extents, uint64_t begin, uint64_t len);
/* Does every byte of the data belong to exactly one tensor? FORMAT: the tensors end elsewhere than
 * the data; where `is_bad` is set, io_misplaced says the rest. 1: a tensor without elements begins
 * within the sum, and between which of its tensors only their places say; add all of them again,
 * and ask again. Releases extents. */
int io_extents_end(struct io_extents *extents, struct s2s_error *err);
int io_misplaced(const struct io_extents *extents, const char *name, struct s2s_error *err);

/* The length that the 8 bytes at head tell, of a file of len bytes. FORMAT, TRUNCATED. */
int io_header_length(size_t *header_len, const void *head, uint64_t len, struct s2s_error *err);
int io_too_short(uint64_t len, struct s2s_error *err);
int io_not_utf8(struct s2s_error *err);
/* Texts of the metadata, into the order of their keys. FORMAT: one is there twice. */
int io_order_meta(struct s2s_safetensors *st, struct s2s_error *err);

#endif
