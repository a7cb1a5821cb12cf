/* `s2s-pack bins`: the bin packers alone on a list of lengths. */
#include "lib/data/lines.h"
#include "lib/io/outfile.h"
#include "lib/io/printout.h"
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
        if (opt->input)
            argp_error(state, "one input at most, found '%s' behind '%s'", arg, opt->input);
        opt->input = arg;
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

int pack_read_lens(int32_t **lens, size_t *n, const struct s2s_lines *lines, struct s2s_error *err)
{
    struct s2s_line line = {.number = 0};
    size_t cap = 0;
    int rc = 0;
    while (s2s_lines_next(lines, &line)) {
        char text[32];
        int64_t value;
        size_t begin = 0, end = line.len;
        while (end > begin && (line.text[end - 1] == ' ' || line.text[end - 1] == '\t'))
            end--;
        while (begin < end && (line.text[begin] == ' ' || line.text[begin] == '\t'))
            begin++;
        if (end - begin >= sizeof text || memchr(line.text + begin, 0, end - begin)) {
            rc = s2s_error_set(err, S2S_E_FORMAT, "not a length");
        } else {
            memcpy(text, line.text + begin, end - begin);
            text[end - begin] = 0;
            rc = s2s_parse_i64(&value, text, 0, INT32_MAX, err);
        }
        if (rc < 0)
            return s2s_error_add(err, S2S_E_FORMAT, "%s:%lld", lines->path, (long long)line.number);
        s2s_grow(lens, *n, &cap, sizeof **lens);
        (*lens)[(*n)++] = (int32_t)value;
    }
    return 0;
}

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

int pack_bins(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT, .bins = S2S_BINS_OPTIONS_DEFAULT};
    struct s2s_lines lines = S2S_LINES_INIT;
    struct s2s_bins bins = S2S_BINS_INIT;
    int32_t *lens = NULL;
    size_t n = 0;
    struct s2s_printout to = {.out = NULL};
    s2s_tool_parse(&bins_argp, argc, argv, &opt);
    opt.bins.seed = (uint64_t)opt.common.seed;
    int rc = s2s_lines_open(&lines, opt.input ? opt.input : "-", err);
    if (rc == 0)
        rc = pack_read_lens(&lens, &n, &lines, err);
    if (rc == 0)
        rc = s2s_thd_bins(&bins, lens, n, &opt.bins, err);
    if (rc == 0)
        rc = s2s_outfile_spares(opt.common.out, opt.input, err);
    if (rc == 0)
        rc = s2s_printout_begin(&to, opt.common.out, err);
    if (rc == 0) {
        double fill = s2s_thd_bins_fill(&bins, lens, &opt.bins);
        int64_t bound = s2s_thd_bins_bound(&bins, lens, &opt.bins);
        print_bins(&bins, fill, bound, opt.common.json);
        s2s_info("pack", "%zu lengths in %zu bins (at least %lld), fill %.4f", n, bins.n_bins,
                 (long long)bound, fill);
    }
    rc = s2s_printout_end(&to, rc, err);
    s2s_bins_release(&bins);
    s2s_lines_close(&lines);
    free(lens);
    return rc;
}
