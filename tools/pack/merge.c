/* `s2s-pack report`: the reports of the parts of a corpus as one, and the padding they spared. */
#include "lib/io/gnuplot.h"
#include "lib/io/outfile.h"
#include "lib/io/printout.h"
#include "tools/pack/lengths.h"
#include "tools/pack/pack.h"

struct options {
    struct s2s_common common;
    const char **inputs;
    size_t n_inputs, cap_inputs;
    const char *plot;
};

enum { KEY_PLOT = 0x100 };

static const struct argp_option option_table[] = {
    {"plot", KEY_PLOT, "F.svg|F.png", 0, "Draw the padding that packing spares", 1},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *opt = state->input;
    switch (key) {
    case KEY_PLOT:
        opt->plot = arg;
        if (!s2s_ends_with(arg, ".svg") && !s2s_ends_with(arg, ".png"))
            argp_error(state, "--plot %s: the name must end in .svg or .png", arg);
        return 0;
    case ARGP_KEY_ARG:
        s2s_grow(&opt->inputs, opt->n_inputs, &opt->cap_inputs, sizeof *opt->inputs);
        opt->inputs[opt->n_inputs++] = arg;
        return 0;
    case ARGP_KEY_END:
        if (opt->n_inputs == 0)
            argp_error(state, "name the reports of the parts");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp report_argp = {
    .options = option_table,
    .parser = parse_option,
    .args_doc = "REPORT.json...",
    .doc = "Add up the reports of runs over the parts of a corpus (s2s-pack --split R/N --report)."
           "\vThe result is the report of one run, as JSON.\n\n"
           "Examples:\n"
           "  s2s-pack --ids rows.jsonl --tokens 64 --split 0/2 --report 0.json -o 0.s2s\n"
           "  s2s-pack --ids rows.jsonl --tokens 64 --split 1/2 --report 1.json -o 1.s2s\n"
           "  s2s-pack report --plot padding.svg -o all.json 0.json 1.json\n\n"
           "Exit status: 0 done, 1 a report is bad or a write failed, 2 bad command line or a "
           "report that cannot be opened.\n"
           "See also: s2s-pack(1)",
};

/* ---- sums ---- */

static int add_objects(json_t *sum, const json_t *more, const char *path, struct s2s_error *err);

/* Adds a value to the one of the same key: numbers are added, lists joined, objects gone into. */
static int add_value(json_t *sum, const char *key, json_t *value, const char *path,
                     struct s2s_error *err)
{
    json_t *have = json_object_get(sum, key);
    if (!have)
        return json_object_set_new(sum, key, json_deep_copy(value));
    if (json_is_integer(have) && json_is_integer(value))
        return json_integer_set(have, json_integer_value(have) + json_integer_value(value));
    if (json_is_number(have) && json_is_number(value))
        return json_object_set_new(sum, key,
                                   json_real(json_number_value(have) + json_number_value(value)));
    if (json_is_array(have) && json_is_array(value))
        return json_array_extend(have, value);
    if (json_is_object(have) && json_is_object(value))
        return add_objects(have, value, path, err);
    return s2s_error_set(err, S2S_E_FORMAT, "%s: '%s' is not what it is in other reports", path,
                         key);
}

static int add_objects(json_t *sum, const json_t *more, const char *path, struct s2s_error *err)
{
    const char *key;
    json_t *value;
    int rc = 0;
    json_object_foreach((json_t *)more, key, value)
    {
        if (rc == 0)
            rc = add_value(sum, key, value, path, err);
    }
    return rc;
}

static json_int_t number(const json_t *report, const char *key)
{
    return json_integer_value(json_object_get(report, key));
}

static int load(json_t **report, const char *path, struct s2s_error *err)
{
    static const char *const needed[] = {"samples",     "packs",          "tokens",
                                         "real_tokens", "padding_tokens", "padded_batch_tokens"};
    FILE *file = fopen(path, "r");
    json_error_t at;
    *report = NULL;
    if (!file)
        return s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", path);
    *report = json_loadf(file, JSON_REJECT_DUPLICATES, &at);
    fclose(file);
    if (!*report)
        return s2s_error_set(err, S2S_E_FORMAT, "%s:%d: %s", path, at.line, at.text);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!json_is_integer(json_object_get(*report, needed[i])))
            return s2s_error_set(err, S2S_E_FORMAT, "%s: no report of s2s-pack, it has no '%s'",
                                 path, needed[i]);
    return 0;
}

/* Slots of a pack are those of all packs, and fill is of the sum. */
static void set_ratios(json_t *sum, json_int_t tokens)
{
    const json_int_t real = number(sum, "real_tokens");
    const json_int_t slots =
        tokens > 0 ? number(sum, "packs") * tokens : real + number(sum, "padding_tokens");
    json_object_set_new(sum, "tokens", json_integer(tokens));
    json_object_set_new(sum, "fill", json_real(slots > 0 ? (double)real / (double)slots : 0));
}

static int merge(json_t *sum, const struct options *opt, struct s2s_error *err)
{
    json_int_t tokens = 0;
    for (size_t i = 0; i < opt->n_inputs; i++) {
        json_t *part = NULL;
        int rc = load(&part, opt->inputs[i], err);
        const json_int_t own = rc == 0 ? number(part, "tokens") : 0;
        if (rc == 0 && i > 0 && own != tokens)
            rc = s2s_error_set(err, S2S_E_FORMAT, "%s: of packs of %lld slots, %s of %lld",
                               opt->inputs[i], (long long)own, opt->inputs[0], (long long)tokens);
        tokens = own;
        if (rc == 0)
            rc = add_objects(sum, part, opt->inputs[i], err);
        json_decref(part);
        if (rc < 0)
            return rc;
    }
    set_ratios(sum, tokens);
    return 0;
}

/* ---- the picture ---- */

/* Two bars: slots of padded batches of the same samples, and of the packs. */
static void put_script(FILE *script, bool is_svg, const void *what)
{
    const json_t *report = what;
    const double real = (double)number(report, "real_tokens");
    const double batches = (double)number(report, "padded_batch_tokens") - real;
    const double packs = (double)number(report, "padding_tokens");
    fprintf(script, "set terminal %s size 900,300 background 'white'\n",
            is_svg ? "svg dynamic" : "pngcairo");
    fprintf(script,
            "set title 'padding %.1f %% -> %.1f %%'\nset xlabel 'slots'\nset xrange [0:*]\n"
            "set yrange [-0.6:1.6]\nset ytics ('padded batches' 1, 'packs' 0)\n"
            "set style fill solid noborder\nset key outside\n"
            "plot '-' using 1:2:3:4:5:6 with boxxyerror lc rgb '#3366aa' title 'tokens', "
            "'-' using 1:2:3:4:5:6 with boxxyerror lc rgb '#bbbbbb' title 'padding'\n",
            100 * batches / (real + batches > 0 ? real + batches : 1),
            100 * packs / (real + packs > 0 ? real + packs : 1));
    for (int y = 0; y < 2; y++)
        fprintf(script, "%.9g %d 0 %.9g %g %g\n", real / 2, y, real, y - 0.35, y + 0.35);
    fputs("e\n", script);
    fprintf(script, "%.9g 0 %.9g %.9g -0.35 0.35\n", real, real, real + packs);
    fprintf(script, "%.9g 1 %.9g %.9g 0.65 1.35\ne\n", real, real, real + batches);
}

int pack_merge(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT};
    struct s2s_printout to = {.out = NULL};
    json_t *sum = json_object();
    s2s_tool_parse(&report_argp, argc, argv, &opt);
    int rc = pack_refuse_seed(&opt.common, err);
    if (rc == 0)
        rc = s2s_outfile_spares_each(opt.common.out, opt.inputs, opt.n_inputs, err);
    if (rc == 0)
        rc = merge(sum, &opt, err);
    if (rc == 0 && opt.plot)
        rc = s2s_gnuplot(opt.plot, put_script, sum, err);
    if (rc == 0)
        rc = s2s_printout_begin(&to, opt.common.out, err);
    if (rc == 0) {
        char *text = json_dumps(sum, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
        puts(text);
        free(text);
    }
    rc = s2s_printout_end(&to, rc, err);
    json_decref(sum);
    free(opt.inputs);
    return rc;
}
