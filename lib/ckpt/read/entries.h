/*
 * Parses a JSON object that may be very large (one member for each of a hundred thousand tensors)
 * in little memory: the text is fed byte by byte and cut between members into parts of some 64 KiB,
 * each of which is parsed as an object of its own.
 */
#ifndef CKPT_ENTRIES_H
#define CKPT_ENTRIES_H

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/io/json_place.h"

/* Called for each member of the object; key and value are lent for the call. A negative result
 * stops parsing and is returned. */
typedef int ckpt_entry_visit(void *ctx, const char *key, const json_t *value,
                             struct s2s_error *err);

/* The caller sets the first four members and zeroes the rest. */
struct ckpt_entries {
    ckpt_entry_visit *visit;
    void *ctx;                   /* of visit */
    const char *name;            /* of the file, for errors */
    size_t line;                 /* newlines before the next byte */
    struct s2s_buf part;         /* text since the last cut */
    size_t part_line;            /* `line` at its start */
    struct s2s_json_place place; /* of the next byte */
    bool was_cut;                /* a part was parsed already */
    bool not_json;               /* the error is about JSON syntax, not from visit */
};

/* Feeds the next byte of the text; the first is the object's opening brace. Returns 0; 1 if this
 * was the object's last byte; FORMAT, or what visit returned. A duplicate key is found only within
 * one part. */
int ckpt_entries_take(struct ckpt_entries *entries, char byte, struct s2s_error *err);
/* To be called if the text ends before the object does: returns FORMAT with a message that says
 * what is missing. */
int ckpt_entries_end_early(struct ckpt_entries *entries, struct s2s_error *err);
void ckpt_entries_release(struct ckpt_entries *entries);

#endif
