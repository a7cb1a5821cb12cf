/* What the files of lib/rules share. */
#ifndef S2S_RULES_INTERNAL_H
#define S2S_RULES_INTERNAL_H

#include "lib/rules/rules.h"

/* ---- values and names (facts.c) ---- */

enum rules_type {
    RULES_UNKNOWN, /* cannot be known from here */
    RULES_NULL,    /* not given and without a default, or given as null */
    RULES_BOOL,
    RULES_INT,
    RULES_FLOAT,
    RULES_TEXT,
    RULES_LIST,
};

struct rules_value {
    enum rules_type type;
    union {
        bool b;
        int64_t i;
        double f;
        const char *s;
        const struct s2s_conf *list;
    };
};

/* A common name in one config. */
struct rules_fact {
    const char *name;
    struct rules_value value;
    const struct s2s_conf *node; /* where it was given; NULL: default or derived */
    const char *key;             /* the dialect's key, or NULL */
    enum s2s_conf_origin origin;
    bool of_model; /* its key is one of the language model's config.json */
};

struct rules_facts {
    struct rules_fact *items;
    size_t n, cap;
    uint32_t *index;
    size_t index_size;
    char **strings; /* strings that values point to, freed with this */
    size_t n_strings, cap_strings;
    const char *const *env;
};

void rules_facts_release(struct rules_facts *facts);
struct rules_fact *rules_fact_find(const struct rules_facts *facts, const char *name);
/* The fact of that name, made if new (then UNKNOWN). name is kept. */
struct rules_fact *rules_fact_make(struct rules_facts *facts, const char *name);
/* Derived values: of default origin, without a place. */
void rules_fact_set(struct rules_facts *facts, const char *name, struct rules_value value);
char *rules_keep(struct rules_facts *facts, char *taken);

static inline struct rules_value rules_int(int64_t i)
{
    return (struct rules_value){RULES_INT, {.i = i}};
}
static inline struct rules_value rules_bool(bool b)
{
    return (struct rules_value){RULES_BOOL, {.b = b}};
}
static inline struct rules_value rules_text(const char *s)
{
    return (struct rules_value){RULES_TEXT, {.s = s}};
}
static inline struct rules_value rules_null(void)
{
    return (struct rules_value){RULES_NULL, {0}};
}
static inline struct rules_value rules_unknown(void)
{
    return (struct rules_value){RULES_UNKNOWN, {0}};
}
/* The entry of that key if it is a map (its items have keys), else NULL. */
static inline const struct s2s_conf *rules_section(const struct s2s_conf *conf, const char *key)
{
    const struct s2s_conf *node = conf ? s2s_conf_key(conf, key) : NULL;
    return node && node->kind == S2S_CONF_MAP ? node : NULL;
}
/* The value of a node: unresolved interpolations, ??? and maps are UNKNOWN. */
struct rules_value rules_value_of(const struct s2s_conf *node);
void rules_value_add(struct s2s_buf *buf, struct rules_value value); /* as text for messages */

/* ---- expressions (expr.c) ---- */

/*
 * Evaluates `text` over the facts with three-valued logic. *unknown (may be NULL) is left at the
 * first name whose value was needed and unknown. An expression that does not parse, or uses a name
 * that no fact has, is our bug.
 */
struct rules_value rules_eval(const struct rules_facts *facts, const char *text,
                              const char **unknown);
/* Fills a template; see struct s2s_rule. */
void rules_format(struct s2s_buf *buf, const struct rules_facts *facts, const char *text);
/* The next name used in an expression, copied to name[64]; NULL at the end. For checks of the
 * table. */
const char *rules_next_name(const char *text, char *name);

/* The trainer whose config it is, if s2s-check judges none of its configs; NULL: not known
 * (detect.c). */
const char *rules_foreign(const struct s2s_conf *conf);

/* ---- lowering ---- */

/* How one common name is found in a dialect. */
struct rules_map {
    const char *name;
    const char *keys;  /* dialect keys, blank-separated; the first that is set counts */
    const char *type;  /* size, int, number, bool, text, any: a wrong one is S2S-CFG-004 */
    const char *other; /* value if unset, as YAML; "?" unknown, "" null */
};

/* A name computed from others. */
struct rules_derived {
    const char *name, *expression;
};

/* A name that is a variable of the launch's environment. */
struct rules_env {
    const char *fact, *name;
};

/* A value that --set took the place of; text NULL: a key that was not there. */
struct rules_replaced {
    char *key, *text;
    struct s2s_conf_place place;
};

/* A config on its way through the rules. */
struct rules_check {
    const struct s2s_rules_options *opt;
    struct s2s_conf *conf;
    struct s2s_conf *model; /* config.json of the language model, empty if there is none */
    struct rules_facts facts;
    struct s2s_report *report;
    struct s2s_error *err;
    const struct s2s_conf *env_vars; /* the file's own environment block, or NULL */
    const char *section;             /* what '@' stands for in the keys of a map */
    bool incomplete;                 /* a parent is missing: what is not set is not known */
    struct rules_replaced *replaced;
    size_t n_replaced, cap_replaced;
};

void rules_lower_map(struct rules_check *check, const struct rules_map *map);
void rules_lower_model(struct rules_check *check); /* sizes of the language model */
/* nemotron_h: whether the model of that name, or its config.json, is of the Nemotron-H family */
void rules_lower_nemotron_h(struct rules_check *check, struct rules_value name);
void rules_lower_derived(struct rules_check *check, const struct rules_derived *derived);
void rules_lower_env(struct rules_check *check, const struct rules_env *names);
int rules_lower_s2s(struct rules_check *check);
/* Of a recipe in which no rule has found an error: whether s2s-train takes it all the same. */
void rules_check_fit(struct rules_check *check);
int rules_lower_slm(struct rules_check *check);
int rules_lower_rl(struct rules_check *check);
void rules_lower_rl_run(struct rules_check *check); /* what is not its parallelism */
int rules_lower_am(struct rules_check *check);
int rules_lower_mlm(struct rules_check *check);
int rules_lower_het(struct rules_check *check);
/* The parts of Megatron's arguments that heterogeneous training has too. */
void rules_lower_mlm_arguments(struct rules_check *check);
void rules_lower_mlm_derived(struct rules_check *check);
/* The rest of them, once dp is known. */
void rules_lower_mlm_sequence(struct rules_check *check);
void rules_lower_pattern(struct rules_check *check);
/* Options of the run: optimizer, recomputation, offload, graphs, checkpoints, environment. */
void rules_lower_mlm_run(struct rules_check *check);
/* Replaces check->conf by the arguments of a MODEL_ARGS file, as lower/mlm.c wants them. */
int rules_args_of_yaml(struct rules_check *check);
/* Replaces check->conf by itself with its parents (`defaults`); path is where it was read from.
 * FORMAT for a parent that cannot be parsed or a circle. */
int rules_inherit(struct rules_check *check, const char *path);
/* What a rank needs of its GPU's memory, once everything else is lowered. */
void rules_lower_memory(struct rules_check *check);
/* Names that every dialect has: world_size and device facts of the options. */
void rules_lower_common(struct rules_check *check);
/* sm as 10*major+minor and what follows from the device; unknown without --device or --sm */
void rules_lower_device(struct rules_check *check);

/* A finding made while reading; node may be NULL; at_key shows the key instead of the value. */
void rules_find(struct rules_check *check, const char *id, const struct s2s_conf *node, bool at_key,
                const char *fix, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* Findings about the text of the config, behind all others. */
void rules_find_text(struct rules_check *check);

/* Flags of Megatron-LM and its programs, '_' for '-', sorted. */
extern const char *const rules_mlm_flags[];
extern const size_t rules_n_mlm_flags;
bool rules_is_mlm_flag(const char *name);
/* Is a common name found at this key of the dialect? */
bool rules_is_mapped(const struct rules_check *check, const char *name);

/* ---- tables ---- */

#define RULES_END \
    { \
        .id = NULL \
    }
extern const struct s2s_rule rules_wld[], rules_bat[], rules_tp[], rules_cp[], rules_thd[],
    rules_pp[], rules_model[], rules_run[], rules_slm[], rules_rl[], rules_am[], rules_mlm[],
    rules_mlm_run[], rules_mlm_args[], rules_mlm_model[], rules_mlm_train[], rules_het[],
    rules_trn[], rules_trn_schedule[], rules_memory[], rules_cfg[], rules_sequence[],
    rules_mlm_sequence[];

#endif
