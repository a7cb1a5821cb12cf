/* What the files of s2s-check share. */
#ifndef S2S_TOOLS_CHECK_H
#define S2S_TOOLS_CHECK_H

#include "lib/base/tool.h"
#include "lib/rules/rules.h"

enum check_format {
    CHECK_TEXT,
    CHECK_JSON,
    CHECK_SARIF,
    CHECK_GITHUB,
    CHECK_JUNIT,
    CHECK_MARKDOWN
};

struct check_options {
    struct s2s_common common;
    struct s2s_rules_options rules;
    enum check_format format;
    bool strict, show_skipped, skip_others, list, argv;
    const char *explain, *model_config, *also, *previous;
    const char **inputs, **sets, **env; /* NULL-ended, or NULL */
    size_t n_inputs, cap_inputs, n_sets, cap_sets, n_env, cap_env;
    int64_t *worlds; /* --world-size; more than one is a table */
    size_t n_worlds, cap_worlds;
};

/* A file with what was found in it, or why it could not be read. */
struct check_file {
    char *path;
    bool of_folder;                  /* found there, not named */
    bool foreign;                    /* a good file, but no config of a dialect can be like it */
    bool closed;                     /* it cannot be opened */
    struct s2s_report report;        /* slim */
    struct s2s_buf text;             /* what was found, for people (--format text) */
    char *failure;                   /* NULL: it was checked */
    struct s2s_conf_place failed_at; /* line 0 if unknown */
};

/* "64", "8,16,24" or "8..1024", ends the program on anything else */
void check_parse_worlds(struct argp_state *state, struct check_options *opt, const char *arg);
/* struct s2s_rules_options.plan */
int check_plan(struct s2s_memory *memory, const struct s2s_conf *recipe, int64_t world_size,
               struct s2s_error *err);
/* struct s2s_rules_options.fits */
int check_fits(const struct s2s_conf *recipe, int64_t world_size, struct s2s_error *err);
/* Returns the exit status, or a negative code with err filled. */
int check_run(const struct check_options *opt, struct s2s_error *err);

/* One document about all files (JSON, SARIF, JUnit) or lines (GitHub). */
/* memory: with what a rank needs */
void check_format_json(struct s2s_buf *buf, const struct check_file *files, size_t n, bool memory);
void check_format_sarif(struct s2s_buf *buf, const struct check_file *files, size_t n);
void check_format_github(struct s2s_buf *buf, const struct check_file *files, size_t n);
void check_format_junit(struct s2s_buf *buf, const struct check_file *files, size_t n);

/* Documentation out of the rule table. */
void check_explain(struct s2s_buf *buf, const struct s2s_rule *rule);
/* id NULL: all rules */
void check_list(struct s2s_buf *buf, bool json, const char *id);
/* A page about one rule, or (rule NULL) the index of all pages. */
void check_page(struct s2s_buf *buf, const struct s2s_rule *rule);

void check_add_json(struct s2s_buf *buf, const char *text); /* quoted and escaped */

#endif
