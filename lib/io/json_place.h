/*
 * Position of a byte in JSON text, to split a long text between two members: inside of a string, or
 * the nesting depth. Brackets are counted, not matched: errors are found when the parts are parsed.
 */
#ifndef IO_JSON_PLACE_H
#define IO_JSON_PLACE_H

#include <stdbool.h>
#include <stddef.h>

struct s2s_json_place {
    size_t depth;
    bool in_text, escaped;
};

/* Advances the position past a byte. */
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
        place->depth--; /* wraps around if there is one too many */
    }
}

#endif
