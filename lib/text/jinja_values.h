/* Operations on the values of a chat template. */
#ifndef S2S_TEXT_JINJA_VALUES_H
#define S2S_TEXT_JINJA_VALUES_H

#include "lib/text/jinja.h"

enum { JINJA_MAX_ARGUMENTS = 16 };

struct jinja_arguments {
    json_t *list[JINJA_MAX_ARGUMENTS]; /* NULL: undefined */
    size_t n;
    json_t *named; /* an object */
};

/* A template at work. */
struct jinja_run {
    struct s2s_buf *out;
    struct text_spans *learned; /* NULL: not asked for */
    json_t **scopes;            /* objects, the innermost last */
    size_t n_scopes, scopes_cap;
    const struct jinja_node **macros;
    size_t n_macros, macros_cap;
    json_t *undefined;     /* stands for NULL where JSON needs a value */
    enum jinja_kind leave; /* JINJA_BREAK or JINJA_CONTINUE: up to the loop */
    struct s2s_error *err;
    bool failed;
    int line, depth;
    size_t n_steps;
};

void text_jinja_fail(struct jinja_run *run, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool text_jinja_truth(const json_t *value);
/* Appends a value as a template prints it. */
void text_jinja_add_text(struct jinja_run *run, struct s2s_buf *out, const json_t *value);

/* Each gives a new reference, or NULL for what is undefined; arguments are borrowed. */
json_t *text_jinja_iterable(struct jinja_run *run, json_t *of); /* the list that a loop goes over */
json_t *text_jinja_item(struct jinja_run *run, json_t *of, const json_t *key);
json_t *text_jinja_slice(struct jinja_run *run, json_t *of, json_t *const bounds[3]);
json_t *text_jinja_binary(struct jinja_run *run, const char *sign, json_t *left, json_t *right);
json_t *text_jinja_filter(struct jinja_run *run, json_t *of, const char *name,
                          const struct jinja_arguments *arguments);
json_t *text_jinja_test(struct jinja_run *run, json_t *of, const char *name,
                        const struct jinja_arguments *arguments);
json_t *text_jinja_method(struct jinja_run *run, json_t *of, const char *name,
                          const struct jinja_arguments *arguments);

#endif
