/* s2s-check: rules over training configs. */
#include "tools/validate/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/num.h"

enum {
    KEY_DIALECT = 0x100,
    KEY_SET,
    KEY_WORLD,
    KEY_GPUS,
    KEY_ENV,
    KEY_DEVICE,
    KEY_SM,
    KEY_CUDNN,
    KEY_MODEL,
    KEY_STRICT,
    KEY_SKIPPED,
    KEY_LAUNCH,
    KEY_FORMAT,
    KEY_EXPLAIN,
    KEY_LIST,
    KEY_RESOLVE,
    KEY_ARGV,
    KEY_ALSO,
    KEY_UPSTREAM,
    KEY_REPORT,
    KEY_SELECT,
    KEY_SKIP_OTHERS,
    KEY_IGNORE,
    KEY_PREVIOUS,
};

static const struct argp_option options[] = {
    {"dialect", KEY_DIALECT, "s2s|slm|rl|am|mlm|het", 0,
     "The config is s2s (s2s-train recipe), slm (NeMo speechlm2), rl (NeMo-RL), am (Automodel), "
     "mlm (Megatron-LM arguments) or het (its heterogeneous MIMO training); default: by its keys",
     1},
    {"set", KEY_SET, "KEY=VALUE", 0,
     "Check as if this were set: a key of the config, or a common name such as tp; also "
     "+KEY=VALUE, "
     "++KEY=VALUE and ~KEY as in Hydra (repeatable)",
     1},
    {"argv", KEY_ARGV, NULL, 0, "What follows `--` is a Megatron-LM command line, not files", 1},
    {"model-config", KEY_MODEL, "FILE", 0,
     "config.json of the language model: heads, experts, hidden size", 1},
    {"also", KEY_ALSO, "FILE", 0,
     "The script that a launch script hands its variables over to; read as if it were run by it",
     1},
    {"previous", KEY_PREVIOUS, "FILE", 0,
     "Config of the run whose checkpoint this one resumes: sizes that may not change", 1},
    {"upstream", KEY_UPSTREAM, "rl-main|rl-pr2242|mimo|mimo-hetero|core-0.16", 0,
     "Version of the trainer: rl-main, rl-pr2242, mimo (Megatron-LM examples), mimo-hetero "
     "(the earlier train_hetero.py), core-0.16 (letters of hybrid patterns)",
     1},
    {"world-size", KEY_WORLD, "N", 0,
     "Ranks of the launch; 8,16,24 or 8..1024 prints a table of which are legal", 2},
    {"gpus-per-node", KEY_GPUS, "N", 0, "GPUs of a node", 2},
    {"env", KEY_ENV, "NAME=VALUE", 0, "Environment of the launch (repeatable)", 2},
    {"device", KEY_DEVICE, "NAME", 0, "h100, h200, a100, b200, gb200, rtx5090, ..", 2},
    {"sm", KEY_SM, "X.Y", 0, "Compute capability of the GPU, such as 9.0", 2},
    {"cudnn", KEY_CUDNN, "X.Y.Z", 0, "Version of cuDNN, such as 9.18.1", 2},
    {"launch", KEY_LAUNCH, NULL, 0, "What must be known at launch and is not, is an error", 2},
    {"select", KEY_SELECT, "IDS", 0,
     "Only these rules: ids or their beginnings, with commas between them, such as "
     "S2S-WLD,S2S-CP-002",
     3},
    {"ignore", KEY_IGNORE, "IDS", 0, "All but these rules", 3},
    {"report", KEY_REPORT, NULL, 0,
     "Print what a rank needs of its device's memory: weights, gradients, optimizer states, "
     "activations, logits; of recipes of s2s-train what s2s-train plan says",
     3},
    {"skip-others", KEY_SKIP_OTHERS, NULL, 0,
     "Pass over files that are no config of a known kind, as in folders, instead of failing", 3},
    {"strict", KEY_STRICT, NULL, 0, "Warnings fail too (exit status 1)", 3},
    {"show-skipped", KEY_SKIPPED, NULL, 0, "List rules that could not be evaluated, and why", 3},
    {"format", KEY_FORMAT, "text|json|sarif|github|junit", 0,
     "text (default), json, sarif, github or junit; markdown with --explain or --list", 3},
    {"explain", KEY_EXPLAIN, "ID", 0, "Print what a rule means and how to fix it", 4},
    {"list", KEY_LIST, NULL, 0, "Print all rules", 4},
    {"resolve", KEY_RESOLVE, NULL, 0,
     "Print the config in common names, each with where it came from", 4},
    {0},
};

static const char doc[] =
    "Find what would fail, turn into NaN, hang or waste GPUs before a training config is launched."
    "\v"
    "Examples:\n"
    "  s2s-check recipe.yaml\n"
    "  s2s-check --world-size 16 --device h100 --env NVTE_FUSED_ATTN=0 conf/\n"
    "  s2s-check --set cp=2 --format github salm.yaml\n"
    "  s2s-check --argv -- pretrain_gpt.py --num-layers 8 --context-parallel-size 3\n"
    "\n"
    "A comment `# s2s-check: ignore S2S-CP-001 reason` on or above a line silences a rule there.\n"
    "Exit status: 0 no errors, 1 a rule of severity error fired, 2 a file could not be read.\n"
    "See also: s2s-train(1)";

static void add(const char ***list, size_t *n, size_t *cap, const char *text)
{
    s2s_grow(list, *n + 1, cap, sizeof **list);
    (*list)[(*n)++] = text;
    (*list)[*n] = NULL;
}

/* "9.0" */
static void parse_sm(struct argp_state *state, struct check_options *opt, const char *arg)
{
    int major = 0, minor = 0, used = 0;
    if (sscanf(arg, "%2d.%1d%n", &major, &minor, &used) != 2 || arg[used] || major < 1 || minor < 0)
        argp_error(state, "--sm: '%s' is no compute capability such as 9.0", arg);
    opt->rules.sm_major = major;
    opt->rules.sm_minor = minor;
}

/* "9.18.1" becomes 91801 */
static void parse_cudnn(struct argp_state *state, struct check_options *opt, const char *arg)
{
    int v[3] = {0}, used = 0;
    if (sscanf(arg, "%2d.%2d%n.%2d%n", &v[0], &v[1], &used, &v[2], &used) < 2 || arg[used])
        argp_error(state, "--cudnn: '%s' is no version such as 9.18.1", arg);
    opt->rules.cudnn = 10000 * v[0] + 100 * v[1] + v[2];
}

static void check_assignment(struct argp_state *state, const char *option, const char *arg)
{
    if (!strchr(arg, '=') || arg[0] == '=')
        argp_error(state, "--%s: '%s' is not NAME=VALUE", option, arg);
}

/* each part is a rule, or the beginning of some */
static void check_ids(struct argp_state *state, const char *option, const char *arg)
{
    size_t n = 0;
    const struct s2s_rule *const *rules = s2s_rules(&n);
    for (const char *at = arg; *at; at += strcspn(at, ","), at += *at == ',') {
        char *id = s2s_xstrndup(at, strcspn(at, ","));
        bool known = s2s_rule_by_id(id) != NULL;
        for (size_t i = 0; i < n && *id && !known; i++)
            known = !strncmp(rules[i]->id, id, strlen(id));
        if (!known)
            argp_error(state, "--%s: no rule begins with '%s'; --list names them all", option, id);
        free(id);
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    static const char *const formats[] = {"text",  "json",     "sarif", "github",
                                          "junit", "markdown", NULL};
    static const char *const profiles[] = {"rl-main",     "rl-pr2242", "mimo",
                                           "mimo-hetero", "core-0.16", NULL};
    struct check_options *opt = state->input;
    switch (key) {
    case KEY_DIALECT:
        opt->rules.dialect = s2s_dialect_by_name(arg);
        if (!opt->rules.dialect)
            argp_error(state, "--dialect: '%s' is none of s2s, slm, rl, am, mlm, het", arg);
        return 0;
    case KEY_SET:
        if (arg[0] != '~')
            check_assignment(state, "set", arg);
        add(&opt->sets, &opt->n_sets, &opt->cap_sets, arg);
        return 0;
    case KEY_ENV:
        check_assignment(state, "env", arg);
        add(&opt->env, &opt->n_env, &opt->cap_env, arg);
        return 0;
    case KEY_WORLD:
        check_parse_worlds(state, opt, arg);
        return 0;
    case KEY_GPUS:
        opt->rules.gpus_per_node = s2s_arg_i64(state, "gpus-per-node", arg, 1, 1 << 20);
        return 0;
    case KEY_DEVICE:
        opt->rules.device = arg;
        return 0;
    case KEY_SM:
        parse_sm(state, opt, arg);
        return 0;
    case KEY_CUDNN:
        parse_cudnn(state, opt, arg);
        return 0;
    case KEY_MODEL:
        opt->model_config = arg;
        return 0;
    case KEY_SELECT:
        check_ids(state, "select", arg);
        opt->rules.select = arg;
        return 0;
    case KEY_IGNORE:
        check_ids(state, "ignore", arg);
        opt->rules.ignore = arg;
        return 0;
    case KEY_REPORT:
        opt->rules.memory = true;
        opt->rules.plan = check_plan;
        return 0;
    case KEY_SKIP_OTHERS:
        opt->skip_others = true;
        return 0;
    case KEY_STRICT:
        opt->strict = true;
        return 0;
    case KEY_SKIPPED:
        opt->show_skipped = true;
        return 0;
    case KEY_LAUNCH:
        opt->rules.launch = true;
        return 0;
    case KEY_FORMAT:
        opt->format = (enum check_format)s2s_arg_choice(state, "format", arg, formats);
        return 0;
    case KEY_EXPLAIN:
        opt->explain = arg;
        return 0;
    case KEY_ALSO:
        opt->also = arg;
        return 0;
    case KEY_PREVIOUS:
        opt->previous = arg;
        return 0;
    case KEY_UPSTREAM:
        opt->rules.upstream = profiles[s2s_arg_choice(state, "upstream", arg, profiles)];
        return 0;
    case KEY_ARGV:
        opt->argv = true;
        return 0;
    case KEY_LIST:
        opt->list = true;
        return 0;
    case KEY_RESOLVE:
        opt->rules.resolve = true;
        return 0;
    case ARGP_KEY_ARG:
        add(&opt->inputs, &opt->n_inputs, &opt->cap_inputs, arg);
        return 0;
    case ARGP_KEY_END:
        if (opt->format == CHECK_MARKDOWN && !opt->list && !opt->explain)
            argp_error(state, "--format markdown is for --explain and --list");
        if ((opt->list || opt->explain) && opt->format != CHECK_TEXT && opt->format != CHECK_JSON &&
            opt->format != CHECK_MARKDOWN)
            argp_error(state, "--explain and --list have --format text, json and markdown");
        if (!opt->n_inputs && !opt->list && !opt->explain)
            argp_error(state, "no input: name files or folders, or - for stdin");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse, "FILE...", doc, NULL, NULL, NULL};
    struct check_options opt = {.common = S2S_COMMON_DEFAULT};
    struct s2s_error err = S2S_ERROR_INIT;
    s2s_tool_begin("s2s-check", argc, argv);
    s2s_tool_parse(&argp, argc, argv, &opt);
    if (opt.common.json)
        opt.format = CHECK_JSON;
    opt.rules.sets = opt.sets;
    opt.rules.env = opt.env;
    opt.rules.fits = check_fits;
    int rc = check_run(&opt, &err);
    free(opt.sets);
    free(opt.env);
    free(opt.inputs);
    free(opt.worlds);
    return s2s_tool_end(rc, &err);
}
