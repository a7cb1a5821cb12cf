/* Runs the rules over a config's facts, and keeps what they find. */
#include "lib/rules/rules_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lib/base/error.h"

/* written as arguments of a command */
enum { MEGATRON = S2S_DIALECT_MLM | S2S_DIALECT_HET };

static const struct s2s_rule *const tables[] = {
    rules_wld,          rules_bat,    rules_tp,       rules_cp,           rules_thd,
    rules_pp,           rules_model,  rules_run,      rules_slm,          rules_rl,
    rules_am,           rules_mlm,    rules_mlm_run,  rules_mlm_args,     rules_mlm_model,
    rules_mlm_train,    rules_het,    rules_sequence, rules_mlm_sequence, rules_trn,
    rules_trn_schedule, rules_memory, rules_cfg,
};

/* The second name of a pair is the one that is reported. */
static const char *const aliases[][2] = {
    {"S2S-WLD-011", "S2S-AM-006"},  {"S2S-PP-014", "S2S-SLM-008"}, {"S2S-TP-011", "S2S-RL-009"},
    {"S2S-CP-024", "S2S-RL-007"},   {"S2S-THD-008", "S2S-RL-008"}, {"S2S-THD-014", "S2S-RL-025"},
    {"S2S-THD-015", "S2S-RL-026"},  {"S2S-OPT-022", "S2S-RL-016"}, {"S2S-REC-010", "S2S-AM-012"},
    {"S2S-HET-020", "S2S-MOE-001"},
};

const struct s2s_rule *const *s2s_rules(size_t *n)
{
    static const struct s2s_rule *all[1024];
    static size_t n_all;
    if (!n_all)
        for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
            for (const struct s2s_rule *rule = tables[t]; rule->id; rule++) {
                if (n_all == sizeof all / sizeof *all)
                    S2S_BUG("more than %zu rules", n_all);
                all[n_all++] = rule;
            }
    *n = n_all;
    return all;
}

const struct s2s_rule *s2s_rule_by_id(const char *id)
{
    size_t n = 0;
    const struct s2s_rule *const *all = s2s_rules(&n);
    enum { PREFIX = sizeof "S2S-" - 1 };
    id += strncasecmp(id, "S2S-", PREFIX) ? 0 : PREFIX;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (!strcasecmp(aliases[i][0] + PREFIX, id))
            id = aliases[i][1] + PREFIX;
    for (size_t i = 0; i < n; i++)
        if (!strcasecmp(all[i]->id + PREFIX, id))
            return all[i];
    return NULL;
}

const char *s2s_severity_name(enum s2s_severity severity)
{
    static const char *const names[] = {"info", "warning", "error"};
    return names[severity];
}

bool s2s_rule_uses(const struct s2s_rule *rule, const char *name)
{
    char used[64];
    for (const char *at = rule->when; at && (at = rules_next_name(at, used));)
        if (!strcmp(used, name))
            return true;
    return false;
}

/* ---- reading ---- */

static void find_duplicates(struct rules_check *check)
{
    size_t n = 0;
    const struct s2s_conf_duplicate *d = s2s_conf_duplicates(check->conf, &n);
    const bool refused = check->report->dialect == S2S_DIALECT_S2S;
    for (size_t i = 0; i < n; i++) {
        struct s2s_conf at = {.place = d[i].second};
        rules_find(check, "S2S-CFG-003", &at, false, "remove one of them",
                   "'%s' stands here again; it was set in line %d%s", d[i].key, d[i].first.line,
                   refused ? "" : ", and the later one counts");
        if (refused)
            check->report->findings[check->report->n_findings - 1].severity = S2S_SEVERITY_ERROR;
    }
}

static void find_faults(struct rules_check *check)
{
    struct s2s_conf_faults faults = {0};
    bool automodel = check->report->dialect == S2S_DIALECT_AM;
    s2s_conf_resolve(check->conf, automodel ? S2S_CONF_ENVIRONMENT : S2S_CONF_OMEGACONF,
                     check->opt->env, &faults);
    for (size_t i = 0; i < faults.n; i++) {
        const struct s2s_conf_fault *f = &faults.items[i];
        bool env = f->kind == S2S_CONF_FAULT_ENV;
        check->report->broken |= f->kind == S2S_CONF_FAULT_CYCLE || f->kind == S2S_CONF_FAULT_SIZE;
        rules_find(check, env ? "S2S-CFG-013" : "S2S-CFG-002", f->node, false,
                   env ? "give a default, or say its value with --env" : "mend the reference", "%s",
                   f->text);
        if (env && check->opt->launch)
            check->report->findings[check->report->n_findings - 1].severity = S2S_SEVERITY_ERROR;
    }
    free(faults.items);
}

/* ??? anywhere, once the launch is near; 1e-5 where PyYAML would keep text */
static void find_markers(struct rules_check *check, const struct s2s_conf *node)
{
    if (node->kind == S2S_CONF_STRING && !strcmp(node->text, "???") && check->opt->launch) {
        rules_find(check, "S2S-CFG-005", node, false, "set it", "??? must be replaced by a value");
        check->report->findings[check->report->n_findings - 1].severity = S2S_SEVERITY_ERROR;
    }
    for (size_t i = 0; i < node->n_items; i++)
        find_markers(check, node->items[i]);
}

/* ??? in a name that rules use */
static void find_needed_markers(struct rules_check *check)
{
    for (size_t i = 0; i < check->facts.n && !check->opt->launch; i++) {
        const struct s2s_conf *node = check->facts.items[i].node;
        if (node && node->kind == S2S_CONF_STRING && !strcmp(node->text, "???"))
            rules_find(check, "S2S-CFG-005", node, false, "set it",
                       "??? must be replaced by a value");
    }
}

/* "~key" or "~key=value" of Hydra: the key goes away. */
static int apply_removal(struct rules_check *check, const char *set)
{
    char *path = s2s_xstrndup(set + 1, strcspn(set + 1, "="));
    bool gone = s2s_conf_remove(check->conf, path);
    int rc =
        gone ? 0 : s2s_error_set(check->err, S2S_E_ARG, "--set: no key '%s' to take away", path);
    free(path);
    return rc;
}

/* "+key=value" adds what is not there yet, or has no value; a map or list is put beside. */
static int refuse_present(struct rules_check *check, const char *set)
{
    char *path = s2s_xstrndup(set, strcspn(set, "="));
    const struct s2s_conf *node = s2s_conf_find(check->conf, path);
    bool holds = node && node->kind != S2S_CONF_NULL && !(node->text && !strcmp(node->text, "???"));
    int rc = 0;
    if (holds && !strchr("{[", set[strlen(path) + 1])) {
        s2s_error_set(check->err, S2S_E_ARG, "--set: '%s' is there already", path);
        rc = s2s_error_hint(check->err, S2S_E_ARG, "++%s adds or replaces", path);
    }
    free(path);
    return rc;
}

/* Remembers what a key holds before --set puts another value there. */
static void note_replaced(struct rules_check *check, const char *key)
{
    const struct s2s_conf *node = s2s_conf_find(check->conf, key);
    bool of_file = node && node->text && node->place.source &&
                   node->place.source->origin == S2S_CONF_FROM_FILE;
    if (!of_file)
        return;
    s2s_grow(&check->replaced, check->n_replaced, &check->cap_replaced, sizeof *check->replaced);
    check->replaced[check->n_replaced++] = (struct rules_replaced){
        .key = s2s_xstrdup(key), .text = s2s_xstrdup(node->text), .place = node->place};
}

/* Remembers a key of the config's own kind that --set adds. */
static void note_added(struct rules_check *check, const char *key)
{
    s2s_grow(&check->replaced, check->n_replaced, &check->cap_replaced, sizeof *check->replaced);
    check->replaced[check->n_replaced++] = (struct rules_replaced){.key = s2s_xstrdup(key)};
}

/* Does a rule of any kind of config read this name? */
static bool is_read(const char *name)
{
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const struct s2s_rule *rule = tables[t]; rule->id; rule++)
            if (s2s_rule_uses(rule, name))
                return true;
    return false;
}

/*
 * A word without a dot that is no key of the config and no name of a fact changes nothing, and is
 * most often a misspelt common name. Hydra refuses it; where configs are open it is refused if a
 * common name is near. A recipe of s2s-train has its own rule for unknown keys.
 */
static int refuse_unread(struct rules_check *check, const char *name)
{
    if (strchr(name, '.') || check->report->dialect == S2S_DIALECT_S2S || check->incomplete ||
        (check->report->dialect & MEGATRON && rules_is_mlm_flag(name)) ||
        s2s_conf_find(check->conf, name) || rules_fact_find(&check->facts, name) ||
        rules_is_mapped(check, name) || is_read(name))
        return 0;
    const char **names = s2s_xcalloc(check->facts.n + 1, sizeof *names);
    for (size_t i = 0; i < check->facts.n; i++)
        names[i] = check->facts.items[i].name;
    const char *meant = s2s_conf_nearest(name, names);
    free(names);
    if (!meant && !(check->report->dialect & (S2S_DIALECT_SLM | S2S_DIALECT_RL)))
        return 0;
    s2s_error_set(check->err, S2S_E_ARG,
                  "--set: '%s' is neither a key of the config nor a common name", name);
    return meant ? s2s_error_hint(check->err, S2S_E_ARG, "did you mean %s?", meant)
                 : s2s_error_hint(check->err, S2S_E_ARG, "++%s adds it", name);
}

/* Hydra puts a map on the command line over the one that is there, key by key. */
static int override(struct rules_check *check, struct s2s_conf *conf, const char *assignment)
{
    char *path = s2s_xstrndup(assignment, strcspn(assignment, "="));
    const struct s2s_conf *there = s2s_conf_find(conf, path), *over = NULL;
    struct s2s_conf *alone = NULL;
    int rc = 0;
    if (check->report->dialect & (S2S_DIALECT_SLM | S2S_DIALECT_RL) && there &&
        there->kind == S2S_CONF_MAP) {
        alone = s2s_conf_new(S2S_CONF_FROM_CLI, "command line");
        rc = s2s_conf_override(alone, assignment, check->err);
        over = s2s_conf_find(alone, path);
    }
    if (rc == 0)
        rc = over && over->kind == S2S_CONF_MAP ? s2s_conf_merge(conf, alone, check->err)
                                                : s2s_conf_override(conf, assignment, check->err);
    s2s_conf_free(alone);
    free(path);
    return rc;
}

/* "key=value": a common name goes to the dialect's key for it, anything else is a key itself.
 * Names are resolved after a first lowering told what they are. "+", "++" and "~" are Hydra's. */
static int apply_set(struct rules_check *check, const char *set)
{
    const char *equals = strchr(set, '=');
    if (set[0] == '~')
        return apply_removal(check, set);
    int n_plus = set[0] != '+' ? 0 : set[1] != '+' ? 1 : 2;
    set += n_plus;
    if (!equals || equals == set) {
        s2s_error_set(check->err, S2S_E_ARG, "--set: '%s' is not key=value", set);
        return s2s_error_hint(check->err, S2S_E_ARG, "as in --set tp=4");
    }
    int rc = n_plus == 1 ? refuse_present(check, set) : 0;
    if (rc < 0)
        return rc;
    char *name = s2s_xstrndup(set, (size_t)(equals - set));
    if (check->report->dialect & MEGATRON) /* --tensor-model-parallel-size is fine too */
        for (char *s = name + strspn(name, "-"); *s; s++)
            *s = *s == '-' ? '_' : *s;
    if (n_plus == 0 && (rc = refuse_unread(check, name + strspn(name, "-"))) < 0) {
        free(name);
        return rc;
    }
    const struct rules_fact *fact = rules_fact_find(&check->facts, name);
    if (n_plus == 0 && !fact && strchr(name, '.') && !s2s_conf_find(check->conf, name))
        note_added(check, name);
    note_replaced(check, fact && fact->key && !s2s_conf_find(check->conf, name)
                             ? fact->key
                             : name + strspn(name, "-"));
    char *assignment = fact && fact->key && !s2s_conf_find(check->conf, name)
                           ? s2s_xasprintf("%s%s", fact->key, equals)
                           : s2s_xasprintf("%s%s", name + strspn(name, "-"), equals);
    free(name);
    rc = override(check, fact && fact->of_model ? check->model : check->conf, assignment);
    free(assignment);
    return rc < 0 ? s2s_error_add(check->err, rc, "--set") : 0;
}

static int lower_dialect(struct rules_check *check)
{
    switch (check->report->dialect) {
    case S2S_DIALECT_SLM:
        return rules_lower_slm(check);
    case S2S_DIALECT_RL:
        return rules_lower_rl(check);
    case S2S_DIALECT_AM:
        return rules_lower_am(check);
    case S2S_DIALECT_MLM:
        return rules_lower_mlm(check);
    case S2S_DIALECT_HET:
        return rules_lower_het(check);
    default:
        return rules_lower_s2s(check);
    }
}

static int lower(struct rules_check *check)
{
    rules_lower_common(check);
    int rc = lower_dialect(check);
    if (rc >= 0)
        rules_lower_memory(check);
    return rc;
}

static void forget_findings(struct s2s_report *report, size_t from)
{
    for (size_t i = from; i < report->n_findings; i++) {
        free(report->findings[i].message);
        free(report->findings[i].fix);
        free(report->findings[i].key);
    }
    report->n_findings = from;
}

static int apply_sets(struct rules_check *check)
{
    if (!check->opt->sets || !*check->opt->sets)
        return 0;
    size_t n_before = check->report->n_findings;
    int rc = lower(check); /* for the keys of common names */
    for (const char *const *set = check->opt->sets; rc >= 0 && *set; set++)
        rc = apply_set(check, *set);
    forget_findings(check->report, n_before);
    rules_facts_release(&check->facts);
    return rc;
}

/* ---- evaluating ---- */

/* A rule by its id, or an error of a family: a warning about the world size leaves dp as it is. */
static bool fired(const struct s2s_report *report, const char *prefix, size_t len)
{
    for (size_t i = 0; i < report->n_findings; i++) {
        const struct s2s_finding *found = &report->findings[i];
        bool whole = strlen(found->rule->id) == len;
        if (!strncmp(found->rule->id, prefix, len) &&
            (whole || found->severity == S2S_SEVERITY_ERROR))
            return true;
    }
    return false;
}

static bool is_consequence(const struct s2s_report *report, const char *after)
{
    while (after && *after) {
        size_t len = strcspn(after, " ");
        if (fired(report, after, len))
            return true;
        after += len;
        after += strspn(after, " ");
    }
    return false;
}

/* The first of the names that was written in a file; else one given on the command line. */
static const struct rules_fact *place_of(const struct rules_facts *facts, const char *at)
{
    const struct rules_fact *other = NULL;
    while (at && *at) {
        char name[64];
        size_t len = strcspn(at, " "), name_len = strcspn(at, " >");
        snprintf(name, sizeof name, "%.*s", (int)name_len, at);
        const struct rules_fact *fact = rules_fact_find(facts, name);
        bool one = name_len < len && fact && fact->value.type == RULES_INT && fact->value.i <= 1;
        if (fact && fact->node && !one)
            return fact;
        if (fact && fact->key && !other)
            other = fact;
        at += len;
        at += strspn(at, " ");
    }
    return other;
}

static void report_rule(struct rules_check *check, const struct s2s_rule *rule)
{
    struct s2s_report *report = check->report;
    const struct rules_fact *fact = place_of(&check->facts, rule->at);
    struct s2s_finding found = {.rule = rule, .severity = rule->severity};
    struct s2s_buf message = S2S_BUF_INIT, fix = S2S_BUF_INIT;
    rules_format(&message, &check->facts, rule->message);
    rules_format(&fix, &check->facts, rule->fix);
    struct rules_value worse =
        rule->error_when ? rules_eval(&check->facts, rule->error_when, NULL) : rules_bool(false);
    if (worse.type == RULES_BOOL && worse.b)
        found.severity = S2S_SEVERITY_ERROR;
    found.message = message.data ? message.data : s2s_xstrdup("");
    found.fix = fix.data ? fix.data : s2s_xstrdup("");
    found.key = s2s_xstrdup(fact && fact->key ? fact->key : "");
    if (fact && fact->node)
        found.place = fact->node->place;
    s2s_grow(&report->findings, report->n_findings, &report->cap_findings,
             sizeof *report->findings);
    report->findings[report->n_findings++] = found;
}

static void evaluate(struct rules_check *check, const struct s2s_rule *rule)
{
    struct s2s_report *report = check->report;
    const char *unknown = NULL;
    struct rules_value v = rules_eval(&check->facts, rule->when, &unknown);
    if (v.type == RULES_UNKNOWN && !unknown)
        return; /* computed from what is not given: the rule is about something else */
    if (v.type == RULES_UNKNOWN) {
        s2s_grow(&report->skipped, report->n_skipped, &report->cap_skipped,
                 sizeof *report->skipped);
        report->skipped[report->n_skipped++] = (struct s2s_skipped){rule, s2s_xstrdup(unknown)};
        return;
    }
    if (v.type == RULES_BOOL && v.b && !is_consequence(report, rule->after))
        report_rule(check, rule);
}

static void evaluate_all(struct rules_check *check)
{
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const struct s2s_rule *rule = tables[t]; rule->id; rule++)
            if (rule->when && (rule->dialects & check->report->dialect))
                evaluate(check, rule);
}

/* ---- suppression ---- */

struct suppression {
    const struct s2s_conf_source *source;
    int line, column;       /* of the comment */
    bool whole_file, alone; /* alone: nothing but the comment in its line */
    const char *ids;
    size_t ids_len;
    bool used;
};

/* "S2S-CP-001,S2S-WLD": ids or prefixes */
static bool names_rule(const char *ids, size_t len_ids, const char *id)
{
    const char *at = ids, *end = ids + len_ids;
    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        size_t len = (size_t)((comma ? comma : end) - at);
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)len, at);
        const struct s2s_rule *rule = s2s_rule_by_id(name);
        if (len && (rule ? !strcmp(rule->id, id) : !strncmp(id, name, len)))
            return true;
        at += len + 1;
    }
    return false;
}

/* A comment "# s2s-check: ignore[-file][ =]IDS [reason]" in a line; false if there is none. */
static bool read_suppression(struct suppression *out, const char *line, size_t len)
{
    static const char mark[] = "s2s-check:", word[] = "ignore";
    const char *end = line + len, *hash = line, *at = NULL;
    while (!at && (hash = memchr(hash, '#', (size_t)(end - hash)))) {
        const char *s = ++hash;
        while (s < end && *s == ' ')
            s++;
        if ((size_t)(end - s) > sizeof mark && !memcmp(s, mark, sizeof mark - 1))
            at = s + sizeof mark - 1;
    }
    while (at && at < end && *at == ' ')
        at++;
    if (!at || (size_t)(end - at) < sizeof word || memcmp(at, word, sizeof word - 1))
        return false;
    at += sizeof word - 1;
    out->whole_file = end - at > 5 && !memcmp(at, "-file", 5);
    at += out->whole_file ? 5 : 0;
    while (at < end && (*at == ' ' || *at == '='))
        at++;
    out->ids = at;
    while (at < end && *at != ' ' && *at != '\t')
        at++;
    out->ids_len = (size_t)(at - out->ids);
    out->column = (int)(hash - line);
    out->alone = strspn(line, " \t") + 1 == (size_t)(hash - line);
    return out->ids_len > 0;
}

static bool silences(const struct suppression *s, const struct s2s_finding *f,
                     const struct s2s_conf_source *config)
{
    int line = f->place.line;
    bool here =
        f->place.source == s->source && (s->line == line || (s->alone && s->line == line - 1));
    bool whole = s->whole_file && (s->source == config || s->source == f->place.source);
    return (whole || here) && names_rule(s->ids, s->ids_len, f->rule->id);
}

static void drop_silenced(struct s2s_report *report, struct suppression *list, size_t n,
                          const struct s2s_conf_source *config)
{
    size_t kept = 0;
    for (size_t i = 0; i < report->n_findings; i++) {
        bool silenced = false;
        for (size_t k = 0; k < n; k++)
            if (silences(&list[k], &report->findings[i], config))
                silenced = list[k].used = true;
        if (!silenced) {
            report->findings[kept++] = report->findings[i];
            continue;
        }
        report->n_suppressed++;
        free(report->findings[i].message);
        free(report->findings[i].fix);
        free(report->findings[i].key);
    }
    report->n_findings = kept;
}

struct suppressions {
    struct suppression *items;
    size_t n, cap;
};

/* The comments of a file, unless they were read before. */
static void read_suppressions(struct suppressions *list, const struct s2s_conf_source *source,
                              bool own)
{
    if (!source || source->origin != S2S_CONF_FROM_FILE || !source->text ||
        !strstr(source->text, "s2s-check:"))
        return;
    for (size_t i = 0; i < list->n; i++)
        if (list->items[i].source == source)
            return;
    const char *at = source->text, *end = at + source->len_bytes;
    for (int line = 1; at < end; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((stop ? stop : end) - at);
        struct suppression s = {.source = source, .line = line, .used = !own};
        if (read_suppression(&s, at, len)) {
            s2s_grow(&list->items, list->n, &list->cap, sizeof *list->items);
            list->items[list->n++] = s;
        }
        at += len + 1;
    }
}

/* A comment silences what stands in its own file, be it the config or a parent of it; one for the
 * whole config silences what has no line, too. Useless ones are told, but those of a parent may be
 * meant for other children. */
static void suppress(struct rules_check *check)
{
    const struct s2s_conf_source *source = check->conf->place.source;
    struct suppressions list = {0};
    read_suppressions(&list, source, true);
    for (size_t i = 0; i < check->report->n_findings; i++)
        read_suppressions(&list, check->report->findings[i].place.source, false);
    drop_silenced(check->report, list.items, list.n, source);
    for (size_t i = 0; i < list.n; i++)
        if (!list.items[i].used) {
            const struct suppression *s = &list.items[i];
            struct s2s_conf node = {.place = {source, s->line, s->column}};
            rules_find(check, "S2S-CFG-015", &node, false, "remove the comment",
                       "no finding of %.*s here to silence", (int)s->ids_len, s->ids);
        }
    free(list.items);
}

/* Drops what --select does not name and what --ignore does. */
static void choose(struct s2s_report *report, const struct s2s_rules_options *opt)
{
    size_t kept = 0;
    for (size_t i = 0; i < report->n_findings; i++) {
        struct s2s_finding *f = &report->findings[i];
        bool wanted = !opt->select || names_rule(opt->select, strlen(opt->select), f->rule->id);
        if (wanted && !(opt->ignore && names_rule(opt->ignore, strlen(opt->ignore), f->rule->id))) {
            report->findings[kept++] = *f;
            continue;
        }
        free(f->message);
        free(f->fix);
        free(f->key);
    }
    report->n_findings = kept;
}

/* ---- the whole ---- */

static int by_place(const void *a, const void *b)
{
    const struct s2s_finding *x = a, *y = b;
    const char *name_x = x->place.source ? x->place.source->name : "";
    const char *name_y = y->place.source ? y->place.source->name : "";
    int order = strcmp(name_x, name_y);
    order = order ? order : (x->place.line > y->place.line) - (x->place.line < y->place.line);
    order =
        order ? order : (x->place.column > y->place.column) - (x->place.column < y->place.column);
    return order ? order : strcmp(x->rule->id, y->rule->id);
}

static bool same_finding(const struct s2s_finding *a, const struct s2s_finding *b)
{
    return by_place(a, b) == 0 && a->place.line && !strcmp(a->message, b->message);
}

static void finish(struct s2s_report *report)
{
    size_t kept = 0;
    if (report->n_findings)
        qsort(report->findings, report->n_findings, sizeof *report->findings, by_place);
    for (size_t i = 0; i < report->n_findings; i++) {
        struct s2s_finding *f = &report->findings[i];
        if (kept && same_finding(f, &report->findings[kept - 1])) {
            free(f->message);
            free(f->fix);
            free(f->key);
            continue;
        }
        report->findings[kept++] = *f;
        report->n_errors += f->severity == S2S_SEVERITY_ERROR;
        report->n_warnings += f->severity == S2S_SEVERITY_WARNING;
        report->n_infos += f->severity == S2S_SEVERITY_INFO;
    }
    report->n_findings = kept;
}

/* Common names as a tree that --resolve can print: value, dialect key and origin. */
static void keep_resolved(struct rules_check *check)
{
    struct s2s_conf *out = s2s_conf_new(S2S_CONF_FROM_DERIVED, "derived");
    for (size_t i = 0; i < check->facts.n; i++) {
        const struct rules_fact *fact = &check->facts.items[i];
        struct s2s_buf text = S2S_BUF_INIT;
        bool other = fact->origin == S2S_CONF_FROM_DEFAULT;
        if (fact->node && fact->node->kind == S2S_CONF_MAP)
            continue;
        if (fact->node) {
            s2s_conf_set(out, fact->name, fact->node, NULL);
        } else if (fact->value.type != RULES_LIST) {
            const char *quote = fact->value.type == RULES_TEXT ? "'" : "";
            s2s_buf_puts(&text, quote);
            if (fact->value.type == RULES_UNKNOWN)
                s2s_buf_puts(&text, "'?'");
            else if (fact->value.type != RULES_NULL)
                rules_value_add(&text, fact->value);
            s2s_buf_puts(&text, quote);
            s2s_conf_set_text(out, fact->name, text.data ? text.data : "",
                              other ? S2S_CONF_FROM_DEFAULT : S2S_CONF_FROM_DERIVED,
                              other ? "default" : "derived", NULL);
        }
        s2s_buf_release(&text);
    }
    check->report->resolved = out;
}

static int check_dialect(struct s2s_report *report, const struct s2s_rules_options *opt,
                         struct s2s_error *err)
{
    const struct s2s_conf *root = report->conf;
    if (root->kind != S2S_CONF_MAP)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: a config is a map of keys, found %s",
                             report->path, s2s_conf_kind_name(root->kind));
    const struct s2s_conf_source *source = root->place.source;
    bool blank = !source || !source->text || !source->text[strspn(source->text, " \t\r\n")];
    if (!root->n_items && blank && !opt->dialect)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: nothing is in it", report->path);
    enum s2s_dialect found = opt->dialect ? opt->dialect : s2s_dialect_detect(report->conf);
    report->dialect = found;
    if (found)
        return 0;
    const char *foreign = rules_foreign(report->conf);
    if (foreign)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "%s: a config of %s, which is not judged; --dialect judges it as one "
                             "of another kind",
                             report->path, foreign);
    s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: not a config of a known kind", report->path);
    return s2s_error_hint(err, S2S_E_UNSUPPORTED, "say which one it is with --dialect");
}

/* `defaults` is NeMo-RL's unless another dialect was asked for */
static bool has_parents(const struct s2s_conf *conf, const struct s2s_rules_options *opt)
{
    return s2s_conf_key(conf, "defaults") &&
           (opt->dialect == S2S_DIALECT_RL ||
            (!opt->dialect && s2s_dialect_detect(conf) != S2S_DIALECT_SLM));
}

/* 0 if it is not there, not known or no whole number */
static int64_t whole_fact(const struct rules_check *check, const char *name)
{
    const struct rules_fact *f = rules_fact_find(&check->facts, name);
    return f && f->value.type == RULES_INT ? f->value.i : 0;
}

int s2s_rules_check(struct s2s_report *report, struct s2s_conf *conf, const char *path,
                    const struct s2s_rules_options *opt, struct s2s_error *err)
{
    static const struct s2s_rules_options none = {0};
    opt = opt ? opt : &none;
    *report = (struct s2s_report)S2S_REPORT_INIT;
    report->path = s2s_xstrdup(path);
    report->conf = conf;
    report->model = opt->model_config ? s2s_conf_copy(opt->model_config)
                                      : s2s_conf_new(S2S_CONF_FROM_DEFAULT, "default");
    struct rules_check check = {
        .opt = opt, .conf = conf, .model = report->model, .report = report, .err = err};
    /* the keys that tell a dialect may stand in a parent */
    int rc = conf->kind == S2S_CONF_MAP && has_parents(conf, opt) ? rules_inherit(&check, path) : 0;
    if (rc >= 0)
        rc = check_dialect(report, opt, err);
    if (rc >= 0 && (report->dialect & MEGATRON))
        rc = rules_args_of_yaml(&check);
    if (rc >= 0)
        rc = apply_sets(&check);
    if (rc >= 0) {
        find_duplicates(&check);
        if (!(report->dialect & (S2S_DIALECT_S2S | MEGATRON)))
            find_faults(&check);
        rc = lower(&check);
    }
    if (rc >= 0) {
        find_markers(&check, check.conf);
        find_needed_markers(&check);
        evaluate_all(&check);
        rules_find_text(&check);
        rules_check_fit(&check);
        suppress(&check);
        choose(report, opt);
        finish(report);
        const struct rules_fact *world = rules_fact_find(&check.facts, "world");
        report->world_size = world->value.type == RULES_INT ? world->value.i : 0;
        report->dp = whole_fact(&check, "dp");
        report->n_microbatches = whole_fact(&check, "nmb");
        if (opt->resolve)
            keep_resolved(&check);
    }
    rules_facts_release(&check.facts);
    for (size_t i = 0; i < check.n_replaced; i++) {
        free(check.replaced[i].key);
        free(check.replaced[i].text);
    }
    free(check.replaced);
    return rc;
}

/* the slim source of that name and origin */
static const struct s2s_conf_source *slim_source(struct s2s_report *report,
                                                 const struct s2s_conf_source *source)
{
    for (size_t i = 0; i < report->n_sources; i++)
        if (report->sources[i].origin == source->origin &&
            !strcmp(report->sources[i].name, source->name))
            return &report->sources[i];
    struct s2s_conf_source *slim = &report->sources[report->n_sources++];
    *slim = (struct s2s_conf_source){.origin = source->origin, .name = s2s_xstrdup(source->name)};
    return slim;
}

void s2s_report_slim(struct s2s_report *report)
{
    if (report->sources)
        return;
    report->sources = s2s_xcalloc(report->n_findings + 1, sizeof *report->sources);
    for (size_t i = 0; i < report->n_findings; i++)
        if (report->findings[i].place.source)
            report->findings[i].place.source =
                slim_source(report, report->findings[i].place.source);
    s2s_conf_free(report->resolved);
    s2s_conf_free(report->model);
    s2s_conf_free(report->raw);
    s2s_conf_free(report->conf);
    report->resolved = report->model = report->raw = report->conf = NULL;
}

void s2s_report_release(struct s2s_report *report)
{
    if (!report)
        return;
    for (size_t i = 0; i < report->n_sources; i++)
        free(report->sources[i].name);
    free(report->sources);
    forget_findings(report, 0);
    for (size_t i = 0; i < report->n_skipped; i++)
        free(report->skipped[i].unknown);
    free(report->findings);
    free(report->skipped);
    free(report->path);
    free(report->no_plan);
    s2s_conf_free(report->resolved);
    s2s_conf_free(report->model);
    s2s_conf_free(report->raw);
    s2s_conf_free(report->conf);
    *report = (struct s2s_report)S2S_REPORT_INIT;
}

/* err names the first error and how many more there are */
static int refuse(const struct s2s_report *report, struct s2s_error *err)
{
    const struct s2s_finding *first = NULL;
    for (size_t i = 0; i < report->n_findings && !first; i++)
        if (report->findings[i].severity == S2S_SEVERITY_ERROR)
            first = &report->findings[i];
    if (!first)
        return 0;
    struct s2s_buf place = S2S_BUF_INIT;
    s2s_conf_add_place(&place, &first->place);
    s2s_error_set(err, S2S_E_RULE, "%s: %s [%s]", place.len ? place.data : report->path,
                  first->message, first->rule->id);
    s2s_buf_release(&place);
    if (report->n_errors > 1)
        return s2s_error_hint(err, S2S_E_RULE, "%s (and %zu more: s2s-check shows all)", first->fix,
                              report->n_errors - 1);
    return s2s_error_hint(err, S2S_E_RULE, "%s", first->fix);
}

int s2s_rules_check_recipe(const struct s2s_conf *conf, int64_t world_size, const char *ignore,
                           struct s2s_report *report, struct s2s_error *err)
{
    struct s2s_rules_options opt = {
        .dialect = S2S_DIALECT_S2S, .world_size = world_size, .ignore = ignore};
    struct s2s_report own = S2S_REPORT_INIT;
    struct s2s_report *r = report ? report : &own;
    struct s2s_conf *copy = s2s_conf_copy(conf);
    const char *path = conf->place.source ? conf->place.source->name : "recipe";
    int rc = s2s_rules_check(r, copy, path, &opt, err);
    if (rc >= 0)
        rc = refuse(r, err);
    s2s_report_release(&own);
    return rc;
}
