/*
 * The members of one JSON object, a part of its text at a time: as a tree, or as text, those of a
 * hundred thousand tensors take more than all else.
 */
#ifndef CKPT_ENTRIES_H
#define CKPT_ENTRIES_H

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/io/json_place.h"

/* What it returns below 0 ends the reading; key and value are lent for the call. */
typedef int ckpt_entry_visit(void *ctx, const char *key, const json_t *value,
                             struct s2s_error *err);

/* The first four are set by who begins; the JSON library reads each part as an object of its own.
 */
struct ckpt_entries {
    ckpt_entry_visit *visit;
    void *ctx;
    const char *name;    /* of the file, for errors */
    size_t line;         /* lines before the next byte */
    struct s2s_buf part; /* the members since the last cut */
    size_t part_line;
    struct s2s_json_place place;
    bool was_cut;  /* there was a part before */
    bool not_json; /* this is what the error says */
};

/* Takes the next byte of the text, whose first is the object's brace. 1: it was its last; FORMAT,
 * or what visit returns below 0. A key that comes again in another part is not noticed. */
int ckpt_entries_take(struct ckpt_entries *entries, char byte, struct s2s_error *err);
/* The text ends before the object: FORMAT says how. */
int ckpt_entries_end_early(struct ckpt_entries *entries, struct s2s_error *err);
void ckpt_entries_release(struct ckpt_entries *entries);

#endif
