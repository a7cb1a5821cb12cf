/* `s2s-pack bins`: the bin packers alone on a list of lengths. */
#include "tools/pack/lengths.h"
#include "tools/pack/pack.h"

struct options {
    struct s2s_common common;
    struct s2s_bins_options bins;
    const char *input;
};

enum {
    KEY_ALGORITHM = 0x100,
    KEY_LOOKAHEAD,
    KEY_TOKENS,
    KEY_MULTIPLE,
    KEY_MIN_BINS,
    KEY_BINS_MULTIPLE
};

static const struct argp_option option_table[] = {
    {"tokens", KEY_TOKENS, "N", 0, "Capacity of a bin", 1},
    {"algorithm", KEY_ALGORITHM, "NAME", 0, "concatenative, ffd (default), ff_shuffle, mffd or bfd",
     1},
    {"lookahead", KEY_LOOKAHEAD, "N", 0, "Instead: in order, holding N lengths at most", 1},
    {"multiple", KEY_MULTIPLE, "N", 0, "Round each length up to a multiple of N (default 1)", 1},
    {"min-bins", KEY_MIN_BINS, "N", 0, "At least N bins", 1},
    {"bins-multiple", KEY_BINS_MULTIPLE, "N", 0, "A multiple of N bins (default 1)", 1},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *opt = state->input;
    switch (key) {
    case KEY_ALGORITHM:
        opt->bins.algorithm =
            (enum s2s_bin_algorithm)s2s_arg_choice(state, "algorithm", arg, s2s_thd_bin_algorithms);
        return 0;
    case KEY_LOOKAHEAD:
        opt->bins.lookahead = s2s_arg_i64(state, "lookahead", arg, 1, S2S_LOOKAHEAD_MAX_WINDOW);
        return 0;
    case KEY_TOKENS:
        opt->bins.capacity = s2s_arg_i64(state, "tokens", arg, 1, INT32_MAX);
        return 0;
    case KEY_MULTIPLE:
        opt->bins.multiple = s2s_arg_i64(state, "multiple", arg, 1, INT32_MAX);
        return 0;
    case KEY_MIN_BINS:
        opt->bins.min_bins = s2s_arg_i64(state, "min-bins", arg, 0, INT32_MAX);
        return 0;
    case KEY_BINS_MULTIPLE:
        opt->bins.bins_multiple = s2s_arg_i64(state, "bins-multiple", arg, 1, INT32_MAX);
        return 0;
    case ARGP_KEY_ARG:
        pack_lengths_take(state, &opt->input, arg);
        return 0;
    case ARGP_KEY_END:
        if (opt->bins.capacity == 0)
            argp_error(state, "--tokens is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp bins_argp = {
    .options = option_table,
    .parser = parse_option,
    .args_doc = "--tokens N [LENGTHS.txt]",
    .doc =
        "Pack lengths, one a line, into bins of a capacity."
        "\vWithout a file, or with -, lengths are read from stdin. A line of output is a bin: "
        "the indices of its lengths, from 0. With --json: {\"bins\": [[0,3],..], "
        "\"fill\": ..,\n\"bound\": ..}; bound: bins that no way of packing falls below.\n\n"
        "Examples:\n"
        "  printf '%s\\n' 4 1 3 2 1 3 4 5 | s2s-pack bins --tokens 5\n"
        "  s2s-pack bins --algorithm mffd --tokens 4096 --multiple 4 --json lengths.txt\n\n"
        "Exit status: 0 done, 1 a length is bad or a write failed, 2 bad command line or an input "
        "that cannot be opened.\n"
        "See also: s2s-pack(1)",
};

static void print_bins(const struct s2s_bins *bins, double fill, int64_t bound, bool json)
{
    struct s2s_buf line = S2S_BUF_INIT;
    if (json)
        fputs("{\"bins\": [", stdout);
    for (size_t b = 0; b < bins->n_bins; b++) {
        s2s_buf_clear(&line);
        if (json)
            s2s_buf_puts(&line, b ? ",[" : "[");
        for (size_t i = bins->begin[b]; i < bins->begin[b + 1]; i++)
            s2s_buf_printf(&line, "%s%u",
                           i == bins->begin[b] ? ""
                           : json              ? ","
                                               : " ",
                           bins->items[i]);
        s2s_buf_putc(&line, json ? ']' : '\n');
        fwrite(line.data, 1, line.len, stdout);
    }
    if (json)
        printf("], \"fill\": %.12g, \"bound\": %lld}\n", fill, (long long)bound);
    s2s_buf_release(&line);
}

struct result {
    const struct options *opt;
    struct s2s_bins bins;
    double fill;
    int64_t bound;
};

static int work(void *ctx, const struct pack_lengths *lengths, struct s2s_error *err)
{
    struct result *r = ctx;
    int rc = s2s_thd_bins(&r->bins, lengths->lens, lengths->n, &r->opt->bins, err);
    if (rc < 0)
        return rc;
    r->fill = s2s_thd_bins_fill(&r->bins, lengths->lens, &r->opt->bins);
    r->bound = s2s_thd_bins_bound(&r->bins, lengths->lens, &r->opt->bins);
    return 0;
}

static void print(const void *ctx, const struct pack_lengths *lengths)
{
    const struct result *r = ctx;
    print_bins(&r->bins, r->fill, r->bound, r->opt->common.json);
    s2s_info("pack", "%zu lengths in %zu bins (at least %lld), fill %.4f", lengths->n,
             r->bins.n_bins, (long long)r->bound, r->fill);
}

int pack_bins(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT, .bins = S2S_BINS_OPTIONS_DEFAULT};
    struct result result = {.opt = &opt, .bins = S2S_BINS_INIT};
    const struct pack_lengths_command command = {.work = work, .print = print, .ctx = &result};
    s2s_tool_parse(&bins_argp, argc, argv, &opt);
    opt.bins.seed = (uint64_t)opt.common.seed;
    int rc = pack_lengths_run(&command, opt.input, opt.common.out, err);
    s2s_bins_release(&result.bins);
    return rc;
}
