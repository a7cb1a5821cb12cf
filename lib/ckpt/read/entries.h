/*
 * Reads a JSON object that may be very large (with a member for each of a hundred thousand tensors)
 * without ever having all of it in memory: its text is taken byte by byte, and cut between members
 * into parts, each of which is parsed as an object of its own.
 */
#ifndef CKPT_ENTRIES_H
#define CKPT_ENTRIES_H

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/io/json_place.h"

/* Is called for each member of the object; key and value are lent for the call. What it returns
 * below 0 ends the reading. */
typedef int ckpt_entry_visit(void *ctx, const char *key, const json_t *value,
                             struct s2s_error *err);

/* The caller sets the first four, and zeros the rest. */
struct ckpt_entries {
    ckpt_entry_visit *visit;
    void *ctx;                   /* of visit */
    const char *name;            /* what errors call the file */
    size_t line;                 /* how many lines end before the next byte */
    struct s2s_buf part;         /* the text since the last cut */
    size_t part_line;            /* `line` where it begins */
    struct s2s_json_place place; /* of the next byte */
    bool was_cut;                /* there was a part before */
    bool not_json;               /* an error came of text that is no JSON, not of visit */
};

/* Takes the next byte of the text, the first of which is the object's brace. 0; 1: this was the
 * object's last byte; FORMAT, or what visit returned. If a key comes twice, and in different parts,
 * nobody notices. */
int ckpt_entries_take(struct ckpt_entries *entries, char byte, struct s2s_error *err);
/* To be called if the text ends before the object does: returns FORMAT, which says what is missing.
 */
int ckpt_entries_end_early(struct ckpt_entries *entries, struct s2s_error *err);
void ckpt_entries_release(struct ckpt_entries *entries);

#endif
