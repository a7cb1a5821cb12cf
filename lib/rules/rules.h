/*
 * Rules over training configs: what would fail, turn into NaN, hang or waste GPUs once launched,
 * found without launching. A config of one of several dialects is lowered to common names (tp, cp,
 * packed, ..); each rule is one entry of a table with a condition over those names. Values may be
 * unknown (an unset environment variable, ???, a size only the launcher knows): a rule fires only
 * when its condition is definitely true, otherwise it is counted as not evaluated.
 */
#ifndef S2S_RULES_RULES_H
#define S2S_RULES_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/mem.h"
#include "lib/conf/conf.h"

struct s2s_error;

enum s2s_severity { S2S_SEVERITY_INFO, S2S_SEVERITY_WARNING, S2S_SEVERITY_ERROR };
const char *s2s_severity_name(enum s2s_severity severity); /* "info", "warning", "error" */

enum s2s_dialect {
    S2S_DIALECT_NONE = 0,
    S2S_DIALECT_S2S = 1 << 0, /* recipes of s2s-train */
    S2S_DIALECT_SLM = 1 << 1, /* NeMo speechlm2 YAML */
    S2S_DIALECT_RL = 1 << 2,  /* NeMo-RL YAML */
    S2S_DIALECT_AM = 1 << 3,  /* Automodel recipes */
    S2S_DIALECT_MLM = 1 << 4, /* Megatron-LM arguments: YAML, launch scripts, command lines */
    S2S_DIALECT_HET = 1 << 5, /* heterogeneous MIMO training of Megatron-LM */
    S2S_DIALECT_ALL = (1 << 6) - 1,
};
const char *s2s_dialect_name(enum s2s_dialect dialect); /* "slm"; NULL if none */
enum s2s_dialect s2s_dialect_by_name(const char *name); /* NONE if unknown */
/* By the keys of a config. NONE: no known dialect. */
enum s2s_dialect s2s_dialect_detect(const struct s2s_conf *conf);

/* One rule: everything that --explain, --list and the manual say about it. */
struct s2s_rule {
    const char *id;
    unsigned dialects; /* bits of enum s2s_dialect */
    enum s2s_severity severity;
    const char *when;       /* condition over common names; NULL: found while reading */
    const char *error_when; /* the severity is error if this holds too; or NULL */
    const char *at;         /* names whose place a finding may show, the first that has one; NAME>1
                             * only while it is above 1 */
    const char *message;    /* a template: {expression}, {@name} is the dialect's key */
    const char *fix;        /* a template */
    const char *why;
    const char *source;
    const char *after; /* if one of these ids, or an error of one of these families, fired */
};

/* All rules, ordered as in the manual. */
const struct s2s_rule *const *s2s_rules(size_t *n);
/* By id or by an alias of it, in any case and with or without "S2S-"; NULL. */
const struct s2s_rule *s2s_rule_by_id(const char *id);
/* Whether the rule's condition looks at a common name. */
bool s2s_rule_uses(const struct s2s_rule *rule, const char *name);

struct s2s_memory;

struct s2s_rules_options {
    enum s2s_dialect dialect; /* NONE: detect */
    int64_t world_size;       /* 0: not known */
    int64_t gpus_per_node;    /* 0: not known */
    const char *device;       /* "h100", ..; NULL */
    int sm_major, sm_minor;   /* 0: by device, or unknown */
    int cudnn;                /* 91801 for 9.18.1; 0: not known */
    const char *const *env;   /* "NAME=VALUE", NULL-ended; or NULL */
    const char *const *sets;  /* "key=value": common names or the dialect's keys; or NULL */
    const struct s2s_conf *model_config; /* HF config.json of the language model; or NULL */
    const char *upstream;                /* version of the trainer; or NULL */
    const struct s2s_conf *previous;     /* `resolved` of the run that is resumed; or NULL */
    bool launch;                         /* what must be known at launch and is not, is an error */
    bool resolve;                        /* fill report->resolved */
    const char *select, *ignore; /* "S2S-CP,S2S-WLD-001": ids or their beginnings; or NULL */
    bool memory;                 /* S2S-MEM-003: say what a rank needs */
    /* NULL, or says what a rank of a recipe of s2s-train needs, of world_size ranks (0: not known),
     * as s2s-train plan does; called where `memory`. err says why that cannot be told. */
    int (*plan)(struct s2s_memory *memory, const struct s2s_conf *recipe, int64_t world_size,
                struct s2s_error *err);
    /* NULL, or whether s2s-train takes the values of a recipe and its mesh, and cuts its model for
     * that, asked where no rule has found an error. RANGE: err says what is refused; other failures
     * are of what need not be here, such as a model. */
    int (*fits)(const struct s2s_conf *recipe, int64_t world_size, struct s2s_error *err);
};

/*
 * A launch script, read and never run, or a command line, as a config of the Megatron dialect (no
 * MODEL_ARGS if no command carries Megatron's flags). Gives: s2s_conf_free.
 */
struct s2s_conf *s2s_rules_read_shell(const char *text, size_t len_bytes, const char *name);
struct s2s_conf *s2s_rules_read_argv(char *const *argv, size_t n);
/* Whether a file is a shell script: by its name's end, or by "#!". */
bool s2s_rules_is_shell(const char *path);
/* s2s_conf_read, or the reader of scripts where the file is one; then `also` (or NULL) is the
 * script that it hands its variables over to. */
int s2s_rules_read(struct s2s_conf **out, const char *path, const char *also,
                   struct s2s_error *err);

/* What a rank of one pipeline stage needs, bytes; NaN: not known. A lower bound. */
struct s2s_memory_stage {
    const char *name; /* "every" without a pipeline, else "first", "middle", "last" */
    double parameters;
    double weights, gradients, optimizer, activations;
    double logits; /* of a plan: scratch, which slices of the logits are a part of */
};

struct s2s_memory {
    double parameters;  /* of the language model; NaN: not known */
    bool no_vocabulary; /* its size is not known: no embedding and no logits are counted */
    size_t n_stages;    /* 0: not counted for this kind of config */
    bool planned;       /* counted by the code that trains, not by formulas */
    struct s2s_memory_stage stages[3];
};
double s2s_memory_states(const struct s2s_memory_stage *stage); /* weights, gradients, optimizer */
double s2s_memory_total(const struct s2s_memory_stage *stage);

struct s2s_finding {
    const struct s2s_rule *rule;
    enum s2s_severity severity;
    char *message, *fix;         /* fix may be "" */
    char *key;                   /* the dialect's key; "" if none */
    struct s2s_conf_place place; /* source NULL: the file as a whole */
};

struct s2s_skipped {
    const struct s2s_rule *rule;
    char *unknown; /* the name whose value is not known */
};

/* What was found in one config. The places point into the config, which must live as long. */
struct s2s_report {
    char *path;
    enum s2s_dialect dialect;
    int64_t world_size;           /* 0: not known */
    int64_t dp, n_microbatches;   /* 0: not known, or not whole */
    struct s2s_finding *findings; /* by file, line, column, id */
    size_t n_findings, cap_findings;
    struct s2s_skipped *skipped;
    size_t n_skipped, cap_skipped;
    size_t n_errors, n_warnings, n_infos, n_suppressed;
    struct s2s_memory memory;
    char *no_plan;                   /* why a recipe cannot be planned; or NULL */
    bool broken;                     /* no reader of it could come to an end: circles, bombs */
    struct s2s_conf *resolved;       /* what --resolve shows: common names with their origins */
    struct s2s_conf *conf;           /* the config after interpolation and overrides, owned */
    struct s2s_conf *model;          /* a copy of the language model's config.json */
    struct s2s_conf *raw;            /* the config as it was read, if it has parents */
    struct s2s_conf_source *sources; /* of a slim report: names without texts */
    size_t n_sources;
};

#define S2S_REPORT_INIT \
    { \
        0 \
    }

/*
 * Checks a config; opt may be NULL. Takes conf (the report owns it from here on, also on failure).
 * Returns 0 whatever was found, or ARG (an override, an option), UNSUPPORTED (no dialect fits).
 */
int s2s_rules_check(struct s2s_report *report, struct s2s_conf *conf, const char *path,
                    const struct s2s_rules_options *opt, struct s2s_error *err);
void s2s_report_release(struct s2s_report *report);
/* Frees the config and its text; findings keep their places, but have no line to show any more. */
void s2s_report_slim(struct s2s_report *report);

/*
 * For s2s-train: the recipe (borrowed) as it will run on world_size ranks (0: not known yet). RULE
 * if a rule of severity error fired that is not in `ignore` (as in the options): err names the
 * first with its place and says how many more. The report (may be NULL) gets everything.
 */
int s2s_rules_check_recipe(const struct s2s_conf *conf, int64_t world_size, const char *ignore,
                           struct s2s_report *report, struct s2s_error *err);

/* ---- writing ---- */

/* As a compiler would: "file:line:column: severity: message [ID]", the line with a caret, the fix.
 */
void s2s_report_text(struct s2s_buf *buf, const struct s2s_report *report, bool color,
                     bool show_skipped);
/* What a rank of each pipeline stage needs, in GiB, and how many parameters it has. */
void s2s_report_memory(struct s2s_buf *buf, const struct s2s_report *report);

#endif
