/*
 * Where a byte of JSON stands, for who cuts a long text between two members: in a text, or so many
 * lists and objects down. They are counted, not understood: damage is found by who reads the parts.
 */
#ifndef IO_JSON_PLACE_H
#define IO_JSON_PLACE_H

#include <stdbool.h>
#include <stddef.h>

struct s2s_json_place {
    size_t depth;
    bool in_text, escaped;
};

/* Where the byte behind this one stands. */
static inline void s2s_json_pass(struct s2s_json_place *place, char byte)
{
    if (place->in_text) {
        place->in_text = place->escaped || byte != '"';
        place->escaped = !place->escaped && byte == '\\';
    } else if (byte == '"') {
        place->in_text = true;
    } else if (byte == '{' || byte == '[') {
        place->depth++;
    } else if (byte == '}' || byte == ']') {
        place->depth--; /* wraps where there is one too many */
    }
}

/* Does this byte end a member of what is so deep? */
static inline bool s2s_json_cuts(const struct s2s_json_place *place, char byte, size_t depth)
{
    return byte == ',' && !place->in_text && place->depth == depth;
}

#endif
