/*
 * Chat templates: the part of the Jinja language that they are written in. Statements: if, for
 * (with an else, a condition, break and continue), set (of a name, of a namespace's member, of a
 * block), macro, generation. Expressions: all operators, slices, tests, the filters and methods of
 * text and lists. White space goes as transformers has it (trim_blocks, lstrip_blocks). What is not
 * known is refused with its name and line. Source: the texts are those of jinja2 as transformers
 * sets it up (tests/oracle/text/check_chat.py).
 */
#ifndef S2S_TEXT_JINJA_H
#define S2S_TEXT_JINJA_H

#include <stddef.h>

#include <jansson.h>

#include "lib/text/text_internal.h"

struct text_jinja;

/* FORMAT (what is no template: names the line), UNSUPPORTED. */
int text_jinja_parse(struct text_jinja **jinja, const char *source, size_t len,
                     struct s2s_error *err);
void text_jinja_free(struct text_jinja *jinja);

/*
 * Appends the text of the template with these variables (borrowed, an object). `learned` gets the
 * stretches of the text that came out of {% generation %} blocks. UNSUPPORTED; FORMAT: an
 * operation on values that do not have it, or an exception that the template raises.
 */
int text_jinja_render(const struct text_jinja *jinja, struct s2s_buf *out,
                      struct text_spans *learned, json_t *variables, struct s2s_error *err);

/* ---- between jinja_parse.c and jinja.c ---- */

enum jinja_kind {
    JINJA_TEXT,
    JINJA_OUTPUT,
    JINJA_IF,    /* a: condition, b: body, c: what else */
    JINJA_FOR,   /* name[,name2], a: of what, d: condition, b: body, c: what else */
    JINJA_SET,   /* a: target, b: value, or c: body */
    JINJA_MACRO, /* name, a: parameters (with defaults in b), b: body */
    JINJA_GENERATION,
    JINJA_BREAK,
    JINJA_CONTINUE,
    JINJA_VALUE, /* value; the others are expressions, too */
    JINJA_NAME,
    JINJA_MEMBER, /* a.name */
    JINJA_ITEM,   /* a[b] */
    JINJA_SLICE,  /* a[b:c:d] */
    JINJA_CALL,   /* a(b..) */
    JINJA_FILTER, /* a|name(b..) */
    JINJA_TEST,   /* a is name(b..) */
    JINJA_NOT,
    JINJA_MINUS,
    JINJA_AND,
    JINJA_OR,
    JINJA_BINARY, /* a name b, name being the operator */
    JINJA_CHOICE, /* a if b else c */
    JINJA_LIST,
    JINJA_DICT, /* keys in a, values in b of each */
};

struct jinja_node {
    enum jinja_kind kind;
    int line;
    char *name, *name2;
    json_t *value; /* of JINJA_VALUE; a text's string */
    struct jinja_node *a, *b, *c, *d;
    struct jinja_node *next; /* in a body or a list of arguments; named arguments have a name2 */
};

struct text_jinja {
    struct jinja_node *body;
    struct jinja_node **all; /* every node, for freeing */
    size_t n_all, all_cap;
};

#endif
