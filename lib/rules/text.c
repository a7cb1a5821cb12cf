/* What is wrong with the text of a config rather than with its values: S2S-CFG-007 and on. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/distance.h"
#include "lib/rules/rules_internal.h"

enum { MEGATRON = S2S_DIALECT_MLM | S2S_DIALECT_HET };

/* ---- unknown flags ---- */

bool rules_is_mapped(const struct rules_check *check, const char *name)
{
    for (size_t i = 0; i < check->facts.n; i++)
        if (check->facts.items[i].key && !strcmp(check->facts.items[i].key, name))
            return true;
    return false;
}

static int by_name(const void *key, const void *item)
{
    return strcmp(*(const char *const *)key, *(const char *const *)item);
}

bool rules_is_mlm_flag(const char *name)
{
    return bsearch(&name, rules_mlm_flags, rules_n_mlm_flags, sizeof *rules_mlm_flags, by_name);
}

/* The flag that an unknown one stands for: one that it begins, or within two letters of it. */
static const char *meant_flag(const char *name)
{
    const size_t len = strlen(name);
    int best = 3;
    const char *nearest = NULL;
    for (size_t i = 0; i < rules_n_mlm_flags; i++) {
        const char *flag = rules_mlm_flags[i];
        if (len >= 4 && !strncmp(flag, name, len))
            return flag;
        const int d = s2s_name_distance(name, flag, best - 1);
        if (d < best) {
            best = d;
            nearest = flag;
        }
    }
    return nearest;
}

static void dash(char *text)
{
    for (; *text; text++)
        *text = *text == '_' ? '-' : *text;
}

enum { MOST_STRANGE = 500 }; /* a file of more strange keys is not written by hand */

/* Short names are near to too many others to say more. */
static bool is_strange(const struct rules_check *check, const struct s2s_conf *arg)
{
    const char *name = arg->key;
    return arg->kind != S2S_CONF_MAP && strlen(name) >= 6 && isalpha((unsigned char)*name) &&
           !strpbrk(name, "./ ${}+~") && !rules_is_mlm_flag(name) && !rules_is_mapped(check, name);
}

/* A program of another name that takes what Megatron's do not even nearly take has a parser of its
 * own. */
static bool has_own_parser(const struct rules_check *check)
{
    const struct s2s_conf *raw = check->report->raw, *args = check->conf;
    const struct s2s_conf *program = raw ? s2s_conf_key(raw, "PROGRAM") : NULL;
    const char *name = program && program->text ? program->text : "pretrain_";
    const char *base = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
    size_t n_strange = 0;
    if (!strncmp(base, "pretrain_", 9))
        return false;
    for (size_t i = 0; i < args->n_items && n_strange < MOST_STRANGE; i++) {
        bool strange = is_strange(check, args->items[i]);
        n_strange += strange;
        if (strange && !meant_flag(args->items[i]->key))
            return true;
    }
    return false;
}

/* argparse takes whole names only. */
static void find_unknown_flags(struct rules_check *check)
{
    const struct s2s_conf *args = check->conf;
    size_t n_strange = 0;
    if (has_own_parser(check))
        return;
    for (size_t i = 0; i < args->n_items && n_strange < MOST_STRANGE; i++) {
        const char *name = args->items[i]->key;
        if (!is_strange(check, args->items[i]))
            continue;
        const char *meant = meant_flag(name);
        n_strange++;
        if (!meant)
            continue;
        char *fix = s2s_xasprintf("did you mean --%s?", meant), *flag = s2s_xstrdup(name);
        dash(fix);
        dash(flag);
        rules_find(check, "S2S-CFG-007", args->items[i], false, fix,
                   "Megatron-LM has no argument --%s", flag);
        free(fix);
        free(flag);
    }
}

/* ---- numbers that stay text ---- */

/* "1e-5": PyYAML wants a dot and a signed exponent */
static bool is_bare_exponent(const char *text)
{
    const char *s = text + (*text == '-' || *text == '+');
    size_t digits = strspn(s, "0123456789");
    const char *dot = s + digits, *e = dot + (*dot == '.' ? 1 + strspn(dot + 1, "0123456789") : 0);
    const char *exponent = e + 1;
    if (!digits || (*e != 'e' && *e != 'E'))
        return false;
    bool sign = *exponent == '-' || *exponent == '+';
    exponent += sign;
    return *exponent && !exponent[strspn(exponent, "0123456789")] && (*dot != '.' || !sign);
}

/* plain: what stands without quotes stays text too, as in files that PyYAML reads */
static void find_kept_text(struct rules_check *check, const struct s2s_conf *node, bool plain)
{
    bool scalar = node->text && (plain || (node->kind == S2S_CONF_STRING && node->quoted));
    if (scalar && is_bare_exponent(node->text))
        rules_find(check, "S2S-CFG-009", node, false, "write it as a float: 1.0e-5, without quotes",
                   "'%s' stays text where it is read, and is no number", node->text);
    for (size_t i = 0; i < node->n_items; i++)
        find_kept_text(check, node->items[i], plain);
}

/* ---- values that another replaces ---- */

/* --set KEY=.. of a key that the config has not: a "+" says that it is meant. */
static void find_added(struct rules_check *check, const char *key)
{
    char *fix = s2s_xasprintf("++%s= adds it", key);
    if (!check->incomplete && check->report->dialect & (S2S_DIALECT_SLM | S2S_DIALECT_RL))
        rules_find(check, "S2S-CFG-010", s2s_conf_find(check->conf, key), false, fix,
                   "the config has no key %s to override", key);
    free(fix);
}

static void find_replaced(struct rules_check *check)
{
    for (size_t i = 0; i < check->n_replaced; i++) {
        const struct rules_replaced *r = &check->replaced[i];
        const struct s2s_conf *now = s2s_conf_find(check->conf, r->key);
        if (!r->text) {
            find_added(check, r->key);
            continue;
        }
        struct s2s_conf at = {.place = r->place};
        struct s2s_buf place = S2S_BUF_INIT;
        const char *text = now && now->text ? now->text : "null";
        s2s_conf_add_place(&place, &r->place);
        if (strcmp(text, r->text) != 0)
            rules_find(check, "S2S-CFG-011", &at, false, "",
                       "%s is %s from the command line; %s says %s", r->key, text,
                       place.len ? place.data : "the file", r->text);
        s2s_buf_release(&place);
    }
}

/* A flag that a script gives twice: argparse takes the last. */
static void find_repeated(struct rules_check *check)
{
    const struct s2s_conf *repeated = rules_section(check->report->raw, "REPEATED");
    for (size_t i = 0; repeated && i < repeated->n_items; i++) {
        const struct s2s_conf *first = repeated->items[i];
        const struct s2s_conf *args = rules_section(check->report->raw, "MODEL_ARGS");
        const struct s2s_conf *now = args ? s2s_conf_key(args, first->key) : NULL;
        if (!now || !now->text || strchr(now->text, '$') || !first->text ||
            !strcmp(now->text, first->text))
            continue;
        rules_find(check, "S2S-CFG-011", now, false, "leave one of them out",
                   "%s is %s here and %s in line %d: the later one counts", first->key, now->text,
                   first->text, first->place.line);
    }
}

/* A variable of the file's own block that --env replaces. */
static void find_replaced_env(struct rules_check *check)
{
    for (size_t i = 0; check->env_vars && i < check->env_vars->n_items; i++) {
        const struct s2s_conf *own = check->env_vars->items[i];
        size_t len = strlen(own->key);
        for (const char *const *e = check->opt->env; e && *e && own->text; e++)
            if (!strncmp(*e, own->key, len) && (*e)[len] == '=' &&
                strcmp(*e + len + 1, own->text) != 0)
                rules_find(check, "S2S-CFG-011", own, false, "",
                           "%s is %s from the command line; the file says %s", own->key,
                           *e + len + 1, own->text);
    }
}

/* ---- ranks of a part or of a template ---- */

/* MODEL_ENV_VARS: GPUs of the single runs of a test */
static void find_sections(struct rules_check *check)
{
    const struct s2s_conf *sections = rules_section(check->report->raw, "MODEL_ENV_VARS");
    for (size_t i = 0; sections && i < sections->n_items; i++) {
        const struct s2s_conf *gpus = s2s_conf_key(sections->items[i], "GPUS_PER_NODE");
        if (gpus && gpus->text)
            rules_find(check, "S2S-CFG-012", gpus, false, "",
                       "section %s runs on %s GPUs a node, whatever the others have",
                       sections->items[i]->key, gpus->text);
    }
}

static bool has_found(const struct s2s_report *report, const char *id)
{
    for (size_t i = 0; i < report->n_findings; i++)
        if (!strcmp(report->findings[i].rule->id, id))
            return true;
    return false;
}

/* The variable of a script that says how many ranks there are, where they are too few. */
static void find_template(struct rules_check *check)
{
    const struct s2s_conf *edit = rules_section(check->report->raw, "RANKS_FROM");
    if (!edit ||
        !(has_found(check->report, "S2S-WLD-001") || has_found(check->report, "S2S-WLD-002") ||
          has_found(check->report, "S2S-WLD-003")))
        return;
    for (size_t i = 0; i < edit->n_items; i++)
        rules_find(check, "S2S-CFG-014", edit->items[i], false,
                   "set it to what the parallel sizes need",
                   "%s=%s decides how many ranks there are", edit->items[i]->key,
                   edit->items[i]->text ? edit->items[i]->text : "");
}

void rules_find_text(struct rules_check *check)
{
    bool yaml_cfg = check->report->raw && s2s_conf_key(check->report->raw, "language_model");
    if (check->report->dialect & MEGATRON) {
        find_unknown_flags(check);
        find_repeated(check);
        find_replaced_env(check);
        find_sections(check);
        find_template(check);
        if (yaml_cfg)
            find_kept_text(check, check->report->raw, true);
    }
    if (check->report->dialect == S2S_DIALECT_SLM)
        find_kept_text(check, check->conf, false);
    find_replaced(check);
}
