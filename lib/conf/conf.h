/*
 * Configs: YAML, JSON and key=value overrides in one kind of tree, in which every value knows the
 * file, line and column it came from. Recipes, the HF config.json of a model and everything
 * s2s-check reads are such trees.
 *
 * A tree owns its nodes: whatever the functions below hand out is lent until s2s_conf_free of the
 * root, and values that are set or merged into a tree are copied. A path is keys joined by dots;
 * a step into a list is its index: "data.train.0", "mesh[1].tp". "" is the node itself.
 *
 * Messages read "recipe.yaml:12:7: optimizer.lr: expected a number, found 'abc'".
 */
#ifndef S2S_CONF_CONF_H
#define S2S_CONF_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/mem.h"

struct s2s_error;

enum s2s_conf_kind {
    S2S_CONF_NULL,
    S2S_CONF_BOOL,
    S2S_CONF_INT,
    S2S_CONF_FLOAT,
    S2S_CONF_STRING,
    S2S_CONF_LIST,
    S2S_CONF_MAP,
};

enum s2s_conf_origin {
    S2S_CONF_FROM_FILE,    /* name is the path as given; text is the whole file */
    S2S_CONF_FROM_CLI,     /* name is "command line"; text is the argument, column counts in it */
    S2S_CONF_FROM_ENV,     /* name is the variable */
    S2S_CONF_FROM_DEFAULT, /* a default of the program that reads this config */
    S2S_CONF_FROM_DERIVED, /* computed from other values */
};

/* Where text came from; kept by the trees that use it. */
struct s2s_conf_source {
    enum s2s_conf_origin origin;
    char *name;
    char *text; /* NULL when there is none */
    size_t len_bytes;
    int n_users; /* private to lib/conf */
};

/* Lines and columns count from 1, columns in characters; 0 where there is none. */
struct s2s_conf_place {
    const struct s2s_conf_source *source;
    int line, column;
};

struct s2s_conf {
    enum s2s_conf_kind kind;
    bool quoted;      /* a quoted or block scalar: always a string */
    bool bare_float;  /* such as 1e-5: a number for OmegaConf and here, a string for PyYAML */
    const char *key;  /* name in the parent map; NULL in a list and at the root */
    const char *tag;  /* an explicit tag such as "!include", not YAML's own; or NULL */
    const char *text; /* of a scalar as written, without quotes and with escapes undone */
    union {
        bool as_bool;
        int64_t as_int;
        double as_float;
    };
    struct s2s_conf **items; /* [n], of a map or a list, in order of the file */
    size_t n_items;
    struct s2s_conf *parent;
    struct s2s_conf_place place; /* of the value */
    int key_line, key_column;    /* of the key, in the same source; 0 without a key */
    /* private to lib/conf */
    struct conf_arena *arena;
    size_t cap_items;
    uint32_t *index;
    size_t index_size;
    int mark;
};

/* A duplicate key in a map: the later one counts, as in PyYAML. */
struct s2s_conf_duplicate {
    const char *key;
    struct s2s_conf_place first, second;
};

/* ---- reading ---- */

enum s2s_conf_format { S2S_CONF_AUTO, S2S_CONF_YAML, S2S_CONF_JSON };

/*
 * Reads a file ("-": stdin) or bytes. AUTO takes JSON for names that end in .json. An empty YAML
 * document is an empty map. Limits: 8 MiB and 200,000 values for YAML (after aliases, which are
 * copied), 64 MiB and 2,000,000 values for JSON, nesting of 100.
 *
 * YAML: scalars are typed as PyYAML and OmegaConf (YAML 1.1) do: yes/no/on/off, 0o and 1:30 forms
 * and 1_000 included; timestamps stay strings; an integer beyond 64 bits is a FLOAT. Merge keys are
 * expanded: their entries come first and lose against the map's own. JSON: RFC 8259.
 *
 * Returns 0, OPEN, IO, or FORMAT with "name:line:column: what". Gives *out: s2s_conf_free.
 */
int s2s_conf_read(struct s2s_conf **out, const char *path, enum s2s_conf_format format,
                  struct s2s_error *err);
int s2s_conf_parse(struct s2s_conf **out, const char *text, size_t len_bytes, const char *name,
                   enum s2s_conf_format format, struct s2s_error *err);
void s2s_conf_free(struct s2s_conf *root);
/* A copy, with the places of the original. Gives: s2s_conf_free. */
struct s2s_conf *s2s_conf_copy(const struct s2s_conf *conf);

/* An empty map, for trees that a program builds; origin and name as in struct s2s_conf_source. */
struct s2s_conf *s2s_conf_new(enum s2s_conf_origin origin, const char *name);

/*
 * For text that is neither YAML nor JSON, such as a launch script: an empty map whose source is the
 * text (FROM_FILE or FROM_CLI), and a scalar in it, typed as plain YAML, with its place in the
 * text.
 */
struct s2s_conf *s2s_conf_new_text(enum s2s_conf_origin origin, const char *name, const char *text,
                                   size_t len_bytes);
int s2s_conf_set_scalar(struct s2s_conf *root, const char *path, const char *text, int line,
                        int column, struct s2s_error *err);

/* Duplicate keys of the whole tree; lent. */
const struct s2s_conf_duplicate *s2s_conf_duplicates(const struct s2s_conf *root, size_t *n);

/* FORMAT with the place of the first key that stands twice in a map, for files of which only one
 * reading may be right; 0: there is none. */
int s2s_conf_check_duplicates(const struct s2s_conf *root, struct s2s_error *err);

/* ---- looking ---- */

/* The node at path, or NULL. A null value is a node. */
const struct s2s_conf *s2s_conf_find(const struct s2s_conf *conf, const char *path);
/* The entry of a map; the key may contain any characters. NULL: absent, or conf is not a map. */
const struct s2s_conf *s2s_conf_key(const struct s2s_conf *conf, const char *key);
/* Is it absent or null, the two ways to say "not given"? */
bool s2s_conf_is_unset(const struct s2s_conf *conf, const char *path);
const char *s2s_conf_kind_name(enum s2s_conf_kind kind); /* "a map", "a number", .. */

/* Appends the node's path from the root to buf: "data.train[0]". */
void s2s_conf_add_path(struct s2s_buf *buf, const struct s2s_conf *node);
/* Appends "recipe.yaml:12:7" (or "command line", "default", ..) to buf. */
void s2s_conf_add_place(struct s2s_buf *buf, const struct s2s_conf_place *place);

/*
 * Fills err with "place: path: " and the message; returns code. For checks of the caller's own:
 *     return s2s_conf_error(err, S2S_E_RANGE, node, "expected at least 1, found %s", node->text);
 */
int s2s_conf_error(struct s2s_error *err, int code, const struct s2s_conf *node, const char *fmt,
                   ...) __attribute__((format(printf, 4, 5)));

/*
 * The line of a place's text (without its end) for an excerpt; NULL: no text. Lent.
 */
const char *s2s_conf_line(const struct s2s_conf_place *place, size_t *len_bytes);

/* ---- typed values ---- */

/*
 * get: the value at path; NOTFOUND (names the map and the path) if unset, FORMAT if of another
 * type. get_or: `other` if unset. as: the value of the node itself. Integers: an INT, or a FLOAT
 * that is a whole number (4.0); RANGE beyond [min, max]. Numbers: INT or FLOAT, finite or not.
 * Booleans: BOOL only. Strings: STRING, or any other scalar's text if it was not null (a path or a
 * name that looks like a number); lent. choice: index of the string in a NULL-ended list; RANGE
 * names what is allowed and the nearest.
 */
int s2s_conf_get_i64(int64_t *out, const struct s2s_conf *conf, const char *path, int64_t min,
                     int64_t max, struct s2s_error *err);
int s2s_conf_get_f64(double *out, const struct s2s_conf *conf, const char *path,
                     struct s2s_error *err);
int s2s_conf_get_bool(bool *out, const struct s2s_conf *conf, const char *path,
                      struct s2s_error *err);
int s2s_conf_get_str(const char **out, const struct s2s_conf *conf, const char *path,
                     struct s2s_error *err);
int s2s_conf_get_choice(int *out, const struct s2s_conf *conf, const char *path,
                        const char *const *choices, struct s2s_error *err);

int s2s_conf_get_i64_or(int64_t *out, const struct s2s_conf *conf, const char *path, int64_t min,
                        int64_t max, int64_t other, struct s2s_error *err);
int s2s_conf_get_f64_or(double *out, const struct s2s_conf *conf, const char *path, double other,
                        struct s2s_error *err);
int s2s_conf_get_bool_or(bool *out, const struct s2s_conf *conf, const char *path, bool other,
                         struct s2s_error *err);
int s2s_conf_get_str_or(const char **out, const struct s2s_conf *conf, const char *path,
                        const char *other, struct s2s_error *err);
int s2s_conf_get_choice_or(int *out, const struct s2s_conf *conf, const char *path,
                           const char *const *choices, int other, struct s2s_error *err);

int s2s_conf_as_i64(int64_t *out, const struct s2s_conf *node, int64_t min, int64_t max,
                    struct s2s_error *err);
int s2s_conf_as_f64(double *out, const struct s2s_conf *node, struct s2s_error *err);
int s2s_conf_as_bool(bool *out, const struct s2s_conf *node, struct s2s_error *err);
int s2s_conf_as_str(const char **out, const struct s2s_conf *node, struct s2s_error *err);
int s2s_conf_as_choice(int *out, const struct s2s_conf *node, const char *const *choices,
                       struct s2s_error *err);

/* The map or list at path; *out is NULL (and 0 returned) if unset; FORMAT if of another kind. */
int s2s_conf_get_map(const struct s2s_conf **out, const struct s2s_conf *conf, const char *path,
                     struct s2s_error *err);
int s2s_conf_get_list(const struct s2s_conf **out, const struct s2s_conf *conf, const char *path,
                      struct s2s_error *err);

/*
 * Checks that every key of the map at path is in the NULL-terminated list: FORMAT "unknown key
 * 'optimzer'; did you mean 'optimizer'?" for the first that is not. 0 if path is unset.
 */
int s2s_conf_check_keys(const struct s2s_conf *conf, const char *path, const char *const *known,
                        struct s2s_error *err);
/* The name nearest to text in a NULL-terminated list (s2s_name_distance of at most a third of its
 * length, and at most 3), or NULL. */
const char *s2s_conf_nearest(const char *text, const char *const *names);

/* ---- changing ---- */

/*
 * Sets path to a copy of value (with its places), creating maps on the way; replaces an existing
 * scalar, map or list. FORMAT: the path leads through a scalar or past a list's end.
 */
int s2s_conf_set(struct s2s_conf *root, const char *path, const struct s2s_conf *value,
                 struct s2s_error *err);
/* Sets path to a value written as YAML ("8", "true", "[0.9, 0.95]"), with origin DEFAULT, DERIVED,
 * .. */
int s2s_conf_set_text(struct s2s_conf *root, const char *path, const char *yaml,
                      enum s2s_conf_origin origin, const char *name, struct s2s_error *err);
/* "a.b=value" from the command line; the value is YAML, empty is null. ARG without '='. */
int s2s_conf_override(struct s2s_conf *root, const char *assignment, struct s2s_error *err);
/* Types the text of a string (quoted or not) as a plain YAML scalar, as on a command line. */
void s2s_conf_retype(struct s2s_conf *node);
/* Removes the value at path; false: there was none. */
bool s2s_conf_remove(struct s2s_conf *root, const char *path);
/* Merges maps recursively; all other values of `over` replace root's. */
int s2s_conf_merge(struct s2s_conf *root, const struct s2s_conf *over, struct s2s_error *err);

/* ---- interpolation ---- */

enum s2s_conf_fault_kind {
    S2S_CONF_FAULT_MISSING,  /* ${a.b} names nothing */
    S2S_CONF_FAULT_CYCLE,    /* it refers to itself */
    S2S_CONF_FAULT_SIZE,     /* nested references exceed the size limit of a config */
    S2S_CONF_FAULT_RESOLVER, /* ${name:..} with an unknown resolver */
    S2S_CONF_FAULT_SYNTAX,
    S2S_CONF_FAULT_ENV,   /* an environment variable that is not set and has no default */
    S2S_CONF_FAULT_VALUE, /* invalid arguments of a resolver */
};

struct s2s_conf_fault {
    enum s2s_conf_fault_kind kind;
    const struct s2s_conf *node;
    char text[160]; /* "'a.b' names nothing" */
};

struct s2s_conf_faults {
    struct s2s_conf_fault *items; /* free() */
    size_t n, cap;
};

enum s2s_conf_interpolation {
    S2S_CONF_OMEGACONF,   /* ${a.b}, ${.x}, ${..x}, ${a.${b}}, ${mul:a,b}, ${oc.env:VAR,default} */
    S2S_CONF_ENVIRONMENT, /* ${VAR}, ${VAR,default}, $VAR, ${oc.env:VAR}: Automodel */
};

/*
 * Replaces the interpolations in all strings: if it is the whole string, by the target's value
 * (maps and lists are copied), otherwise by its text. Resolvers: oc.env, env, add, sum, mul,
 * multiply, div, max. What cannot be resolved is left, with a fault for each reason; values that
 * only the running program could compute (${now:..}, ${hydra:..}, oc.select, ..) are left without a
 * fault, and so is what refers to them or to ???. env: "NAME=VALUE", NULL-terminated, or NULL. The
 * process's own environment is not used.
 */
void s2s_conf_resolve(struct s2s_conf *root, enum s2s_conf_interpolation how,
                      const char *const *env, struct s2s_conf_faults *faults);

/* ---- writing ---- */

/*
 * Appends YAML that parses to the same values: block style, strings quoted where needed. With
 * `places` a comment after each scalar gives its origin.
 */
void s2s_conf_dump(struct s2s_buf *buf, const struct s2s_conf *conf, bool places);
/* One line of JSON; FLOATs that JSON lacks (inf, nan) are strings. */
void s2s_conf_dump_json(struct s2s_buf *buf, const struct s2s_conf *conf);

#endif
