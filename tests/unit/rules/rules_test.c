/* The rule table: every name it uses exists, every rule fires on one config and not on another, and
 * the truth table of packed sequences and context parallelism holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/rules/rules.h"

#define FOLDER "tests/oracle/rules/"

enum { MAX_OPTIONS = 16 };

/* A config of the folder with the options of a case; report is released by the caller. */
struct given {
    char *text;
    const char *sets[MAX_OPTIONS], *env[MAX_OPTIONS];
    size_t n_sets, n_env;
    const char *file; /* another than the dialect's base */
    const char *previous;
    struct s2s_rules_options opt;
    struct s2s_conf *model;
};

static bool option(struct given *g, const char *token, const char *name, const char **value)
{
    size_t len = strlen(name);
    (void)g;
    if (token[0] != '@' || strncmp(token + 1, name, len) != 0 || token[1 + len] != '=')
        return false;
    *value = token + 2 + len;
    return true;
}

static void read_token(struct given *g, char *token)
{
    struct s2s_error err = S2S_ERROR_INIT;
    const char *value = NULL;
    if (!strcmp(token, "@"))
        return;
    if (option(g, token, "world", &value))
        g->opt.world_size = strtol(value, NULL, 10);
    else if (option(g, token, "gpus", &value))
        g->opt.gpus_per_node = strtol(value, NULL, 10);
    else if (option(g, token, "cudnn", &value))
        g->opt.cudnn = (int)strtol(value, NULL, 10);
    else if (option(g, token, "device", &value))
        g->opt.device = value;
    else if (option(g, token, "env", &value))
        g->env[g->n_env++] = value;
    else if (option(g, token, "report", &value))
        g->opt.memory = !strcmp(value, "1");
    else if (option(g, token, "upstream", &value))
        g->opt.upstream = value;
    else if (option(g, token, "path", &value))
        g->file = value;
    else if (option(g, token, "previous", &value))
        g->previous = value;
    else if (option(g, token, "sm", &value))
        g->opt.sm_major = (int)strtol(value, NULL, 10);
    else if (option(g, token, "model", &value)) {
        char *path = s2s_xasprintf(FOLDER "%s", value);
        if (s2s_conf_read(&g->model, path, S2S_CONF_JSON, &err) < 0)
            fail_msg("%s", err.text);
        free(path);
        g->opt.model_config = g->model;
    } else if (token[0] == '@')
        fail_msg("no such option: %s", token);
    else
        g->sets[g->n_sets++] = token;
}

/* What --previous reads. */
static void resolve(struct s2s_report *report, const char *name)
{
    struct s2s_rules_options opt = {.resolve = true};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_conf *conf = NULL;
    char *path = s2s_xasprintf(FOLDER "%s.yaml", name);
    if (s2s_conf_read(&conf, path, S2S_CONF_AUTO, &err) < 0 ||
        s2s_rules_check(report, conf, path, &opt, &err) < 0)
        fail_msg("%s", err.text);
    free(path);
}

static void check(struct s2s_report *report, const char *dialect, const char *options)
{
    struct given g = {.text = s2s_xstrdup(options)};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_conf *conf = NULL;
    char *rest = g.text;
    for (char *token; (token = strsep(&rest, " \n")) != NULL;)
        if (*token)
            read_token(&g, token);
    g.opt.sets = g.sets;
    g.opt.env = g.env;
    struct s2s_report previous = S2S_REPORT_INIT;
    if (g.previous)
        resolve(&previous, g.previous);
    g.opt.previous = previous.resolved;
    char *path = s2s_xasprintf(FOLDER "%s.yaml", g.file ? g.file : dialect);
    if (s2s_conf_read(&conf, path, S2S_CONF_AUTO, &err) < 0 ||
        s2s_rules_check(report, conf, path, &g.opt, &err) < 0)
        fail_msg("%s: %s", options, err.text);
    assert_string_equal(s2s_dialect_name(report->dialect), dialect);
    free(path);
    free(g.text);
    s2s_report_release(&previous);
    s2s_conf_free(g.model);
}

static bool fired_as(const struct s2s_report *report, const char *id, bool error)
{
    for (size_t i = 0; i < report->n_findings; i++)
        if (!strcmp(report->findings[i].rule->id, id) &&
            (!error || report->findings[i].severity == S2S_SEVERITY_ERROR))
            return true;
    return false;
}

static bool fired(const struct s2s_report *report, const char *id)
{
    return fired_as(report, id, false);
}

static void say(const struct s2s_report *report)
{
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_report_text(&text, report, false, true);
    printf("%s", text.data ? text.data : "nothing found\n");
    s2s_buf_release(&text);
}

static void the_bases_fire_nothing(void **state)
{
    static const char *const dialects[] = {"s2s", "slm", "rl", "am", "mlm", "het"};
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
        struct s2s_report report = S2S_REPORT_INIT;
        check(&report, dialects[i], "@");
        if (report.n_findings) {
            say(&report);
            fail_msg("%s.yaml is not clean", dialects[i]);
        }
        s2s_report_release(&report);
    }
}

/* which entries of the table fired in some case */
static bool seen[1024];

static void note(const struct s2s_report *report)
{
    size_t n = 0;
    const struct s2s_rule *const *rules = s2s_rules(&n);
    for (size_t i = 0; i < report->n_findings; i++)
        for (size_t k = 0; k < n; k++)
            seen[k] |= rules[k] == report->findings[i].rule;
}

/* A line, or at least the key that is not there. */
static void must_say_where(const struct s2s_report *report)
{
    for (size_t i = 0; i < report->n_findings; i++) {
        const struct s2s_finding *f = report->findings + i;
        if (!f->place.source && !*f->key && f->rule->at && *f->rule->at)
            fail_msg("%s has no place of %s", f->rule->id, f->rule->at);
    }
}

/* What stands before the next " | "; *rest goes behind it, or to NULL. */
static char *field(char **rest)
{
    char *start = *rest, *bar = start ? strstr(start, " | ") : NULL;
    if (bar)
        *bar = 0;
    *rest = bar ? bar + 3 : NULL;
    return start;
}

static void run_case(char *line)
{
    char *rest = line;
    const char *id = field(&rest), *dialect = field(&rest), *bad = field(&rest),
               *good = field(&rest);
    char name[32], kind[16], severity[16] = "";
    assert_non_null(good);
    assert_true(sscanf(id, "%31s %15s", name, severity) >= 1);
    const bool error = strcmp(severity, "error") == 0;
    assert_true(error || !*severity);
    assert_int_equal(sscanf(dialect, "%15s", kind), 1);
    for (int k = 0; k < 2; k++) {
        struct s2s_report report = S2S_REPORT_INIT;
        check(&report, kind, k ? good : bad);
        if (fired_as(&report, name, error) != (k == 0)) {
            say(&report);
            fail_msg("%s of %s: %s on: %s", name, kind, k ? "fired" : "did not fire",
                     k ? good : bad);
        }
        note(&report);
        must_say_where(&report);
        s2s_report_release(&report);
    }
}

static void every_rule_fires_on_its_case_and_not_on_the_other(void **state)
{
    FILE *cases = fopen(FOLDER "cases.txt", "r");
    char line[1000];
    size_t n = 0;
    assert_non_null(cases);
    while (fgets(line, sizeof line, cases))
        if (line[0] != '#')
            run_case(line);
    fclose(cases);
    const struct s2s_rule *const *rules = s2s_rules(&n);
    for (size_t i = 0; i < n; i++)
        if (!seen[i] && rules[i]->when)
            fail_msg("no case fires %s: %s", rules[i]->id, rules[i]->when);
}

static void every_rule_says_why_and_how_to_mend_it(void **state)
{
    size_t n = 0;
    const struct s2s_rule *const *rules = s2s_rules(&n);
    assert_true(n > 90);
    for (size_t i = 0; i < n; i++) {
        const struct s2s_rule *r = rules[i];
        if (strncmp(r->id, "S2S-", 4) != 0 || strlen(r->id) > 12 || !r->dialects || !r->message ||
            !r->fix || !r->why || !r->source)
            fail_msg("%s is not whole", r->id);
        if (r->when && !r->at)
            fail_msg("%s does not say where", r->id);
        assert_non_null(s2s_rule_by_id(r->id));
    }
    assert_ptr_equal(s2s_rule_by_id("S2S-PP-014"), s2s_rule_by_id("S2S-SLM-008"));
    assert_null(s2s_rule_by_id("S2S-XYZ-001"));
}

/* packed, cp, attn, NVTE_FUSED_ATTN, sm -> the rule of the four that fires, or none */
static void packing_and_cp_have_the_truth_table(void **state)
{
    static const struct {
        const char *options, *rule;
    } rows[] = {
        {"cp=1 attn=te", NULL},
        {"cp=1 attn=sdpa @sm=12.0", NULL},
        {"cp=1 attn=flex @env=NVTE_FUSED_ATTN=1 @sm=9.0", NULL},
        {"cp=2 attn=te", "S2S-CP-002"},
        {"cp=4 attn=sdpa @env=NVTE_FUSED_ATTN=0", "S2S-CP-002"},
        {"cp=8 attn=flex @sm=12.0", "S2S-CP-002"},
        {"packed=true cp=1 attn=te @env=NVTE_FUSED_ATTN=0", NULL},
        {"packed=true cp=2 attn=te @env=NVTE_FUSED_ATTN=0 @sm=12.0", NULL},
        {"packed=true cp=2 attn=te @env=NVTE_FUSED_ATTN=0 @sm=9.0", NULL},
        {"packed=true cp=1 attn=sdpa", "S2S-THD-001"},
        {"packed=true cp=2 attn=flex @env=NVTE_FUSED_ATTN=0", "S2S-THD-001"},
        {"packed=true cp=1 attn=sdpa @sm=12.0", "S2S-THD-001"},
        {"packed=true cp=1 @sm=12.0", "S2S-THD-002"},
        {"packed=true cp=1 attn=te @sm=12.0 @env=NVTE_FUSED_ATTN=", "S2S-THD-002"},
        {"packed=true cp=2 attn=te @sm=12.0 @env=NVTE_FUSED_ATTN=1", "S2S-THD-002"},
        {"packed=true cp=1 attn=te @device=rtx5090 @env=NVTE_FUSED_ATTN=true", "S2S-THD-002"},
        {"packed=true cp=1 attn=te @sm=9.0", "S2S-THD-003"},
        {"packed=true cp=1 attn=te @sm=9.0 @env=NVTE_FUSED_ATTN=", "S2S-THD-003"},
        {"packed=true cp=2 attn=te @device=h100 @env=NVTE_FUSED_ATTN=1", "S2S-THD-003"},
        {"packed=true cp=1 attn=te @env=NVTE_FUSED_ATTN=true", "S2S-THD-003"},
        {"packed=true cp=1 attn=te @env=NVTE_FUSED_ATTN=00", "S2S-THD-003"},
    };
    static const char *const four[] = {"S2S-CP-002", "S2S-THD-001", "S2S-THD-002", "S2S-THD-003"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct s2s_report report = S2S_REPORT_INIT;
        check(&report, "slm", rows[i].options);
        for (size_t k = 0; k < 4; k++) {
            bool wanted = rows[i].rule && !strcmp(four[k], rows[i].rule);
            if (fired(&report, four[k]) != wanted)
                fail_msg("%s: %s %s", rows[i].options, four[k], wanted ? "did not fire" : "fired");
        }
        s2s_report_release(&report);
    }
}

static void unknown_values_fire_nothing_and_are_told(void **state)
{
    struct s2s_report report = S2S_REPORT_INIT;
    bool told = false;
    check(&report, "slm", "trainer.devices=-1 tp=3 ep=5");
    assert_false(fired(&report, "S2S-WLD-001"));
    assert_false(fired(&report, "S2S-WLD-004"));
    for (size_t i = 0; i < report.n_skipped; i++)
        told |= !strcmp(report.skipped[i].rule->id, "S2S-WLD-001");
    assert_true(told);
    assert_int_equal(report.world_size, 0);
    s2s_report_release(&report);
    check(&report, "slm", "trainer.devices=-1 tp=3 @gpus=8");
    assert_true(fired(&report, "S2S-WLD-001"));
    s2s_report_release(&report);
}

/* rl.yaml takes most from its parent; a place names the file that set the value */
static void inherited_values_keep_their_places(void **state)
{
    struct s2s_report report = S2S_REPORT_INIT;
    bool found = false;
    check(&report, "rl", "lbs=8 tp=4 policy.generation.vllm_cfg.pipeline_parallel_size=2");
    s2s_report_release(&report);
    check(&report, "rl", "gbs=384 policy.make_sequence_length_divisible_by=1 dynamic=true");
    for (size_t i = 0; i < report.n_findings; i++) {
        const struct s2s_finding *f = &report.findings[i];
        if (!strcmp(f->rule->id, "S2S-RL-003")) {
            found = true;
            assert_string_equal(f->place.source->name, FOLDER "rl_parent.yaml");
            assert_int_equal(f->place.line, 19);
        }
    }
    assert_true(found);
    assert_int_equal(report.world_size, 16);
    s2s_report_release(&report);
}

static void a_cause_silences_its_consequences(void **state)
{
    struct s2s_report report = S2S_REPORT_INIT;
    check(&report, "s2s", "mesh.cp=2 @world=7");
    assert_true(fired(&report, "S2S-WLD-001"));
    assert_false(fired(&report, "S2S-BAT-001"));
    s2s_report_release(&report);
}

static void a_recipe_is_refused_with_place_and_count(void **state)
{
    static const char text[] = "model: {path: m}\n"
                               "data: {train: [a.s2s]}\n"
                               "optimizer: {name: adamw, lr: 1e-3}\n"
                               "train: {steps: 10, packs_per_step: 5, packs_per_microbatch: 2}\n"
                               "checkpoint: {keep: 0}\n";
    struct s2s_conf *conf = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_report report = S2S_REPORT_INIT;
    assert_int_equal(s2s_conf_parse(&conf, text, strlen(text), "r.yaml", S2S_CONF_YAML, &err), 0);
    assert_int_equal(s2s_rules_check_recipe(conf, 2, NULL, &report, &err), S2S_E_RULE);
    assert_string_equal(err.text, "r.yaml:4:36: train.packs_per_step 5 is not a multiple of "
                                  "train.packs_per_microbatch * dp = 2 * 2: 5 % 4 = 1 "
                                  "[S2S-BAT-001]");
    assert_non_null(strstr(err.hint, "use 4 or 8 (and 1 more"));
    assert_int_equal(report.n_errors, 2);
    s2s_report_release(&report);
    s2s_conf_override(conf, "train.packs_per_step=4", &err);
    s2s_conf_override(conf, "checkpoint.keep=1", &err);
    assert_int_equal(s2s_rules_check_recipe(conf, 2, NULL, NULL, &err), 0);
    s2s_conf_free(conf);
}

static void comments_silence_rules_and_useless_ones_are_told(void **state)
{
    static const char text[] =
        "model: {path: m}\n"
        "data: {train: [a.s2s]}\n"
        "optimizer: {name: adam, lr: 1e-3} # s2s-check: ignore S2S-TRN-011 x\n"
        "# s2s-check: ignore=S2S-BAT,S2S-WLD because\n"
        "train: {steps: 10, packs_per_step: 0}\n"
        "# s2s-check: ignore S2S-CP-002\n";
    struct s2s_conf *conf = NULL;
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_report report = S2S_REPORT_INIT;
    assert_int_equal(s2s_conf_parse(&conf, text, strlen(text), "r.yaml", S2S_CONF_YAML, &err), 0);
    assert_int_equal(s2s_rules_check(&report, conf, "r.yaml", NULL, &err), 0);
    if (report.n_errors || report.n_suppressed != 2 || !fired(&report, "S2S-CFG-015")) {
        say(&report);
        fail_msg("%zu errors, %zu suppressed", report.n_errors, report.n_suppressed);
    }
    s2s_report_release(&report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bases_fire_nothing),
        cmocka_unit_test(every_rule_fires_on_its_case_and_not_on_the_other),
        cmocka_unit_test(every_rule_says_why_and_how_to_mend_it),
        cmocka_unit_test(packing_and_cp_have_the_truth_table),
        cmocka_unit_test(unknown_values_fire_nothing_and_are_told),
        cmocka_unit_test(inherited_values_keep_their_places),
        cmocka_unit_test(a_cause_silences_its_consequences),
        cmocka_unit_test(a_recipe_is_refused_with_place_and_count),
        cmocka_unit_test(comments_silence_rules_and_useless_ones_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
