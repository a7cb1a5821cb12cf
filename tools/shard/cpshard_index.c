/* `s2s-cpshard index`: the index map alone. */
#include "lib/io/printout.h"
#include "tools/shard/cpshard.h"

struct options {
    struct s2s_common common;
    int cp_size, cp_rank;
    int32_t *cu_seqlens;
    size_t n, cap;
};

enum { KEY_CP = 0x100, KEY_RANK, KEY_CU };

static const struct argp_option option_table[] = {
    {"cp", KEY_CP, "N", 0, "Context-parallel ranks", 1},
    {"rank", KEY_RANK, "R", 0, "This rank only", 1},
    {"cu-seqlens", KEY_CU, "0,A,B..", 0, "Bounds of the utterances (padded)", 1},
    {0},
};

static void parse_bounds(struct argp_state *state, const char *text)
{
    struct options *opt = state->input;
    opt->n = 0;
    while (*text) {
        size_t len = strcspn(text, ",");
        char *number = s2s_xstrndup(text, len);
        s2s_grow(&opt->cu_seqlens, opt->n, &opt->cap, sizeof *opt->cu_seqlens);
        opt->cu_seqlens[opt->n++] =
            (int32_t)s2s_arg_i64(state, "cu-seqlens", number, INT32_MIN, INT32_MAX);
        free(number);
        if (text[len] == ',' && !text[len + 1])
            argp_error(state, "--cu-seqlens ends in a comma");
        text += len + (text[len] == ',');
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *opt = state->input;
    switch (key) {
    case KEY_CP:
        opt->cp_size = (int)s2s_arg_i64(state, "cp", arg, 1, 1 << 20);
        return 0;
    case KEY_RANK:
        opt->cp_rank = (int)s2s_arg_i64(state, "rank", arg, 0, (1 << 20) - 1);
        return 0;
    case KEY_CU:
        parse_bounds(state, arg);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "no input expected, found '%s'", arg);
        return 0;
    case ARGP_KEY_END:
        if (opt->cp_size == 0 || opt->n == 0)
            argp_error(state, "--cp and --cu-seqlens are needed");
        if (opt->cp_rank >= opt->cp_size)
            argp_error(state, "--rank %d is not within --cp %d", opt->cp_rank, opt->cp_size);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp index_argp = {
    .options = option_table,
    .parser = parse_option,
    .args_doc = "--cp N --cu-seqlens 0,A,B..",
    .doc = "Print the slots of each context-parallel rank, one rank per line."
           "\vWith --json: {\"index\": [[rank 0], ..]}.\n\n"
           "Examples:\n"
           "  s2s-cpshard index --cp 2 --cu-seqlens 0,8,12\n"
           "  s2s-cpshard index --cp 4 --cu-seqlens 0,16 --rank 3 --json\n\n"
           "Exit status: 0 done, 1 bounds that cannot be split, 2 bad command line.\n"
           "See also: s2s-cpshard(1)",
};

static void print_index(const int32_t *index, size_t n, bool json)
{
    struct s2s_buf line = S2S_BUF_INIT;
    s2s_buf_puts(&line, json ? "[" : "");
    for (size_t i = 0; i < n; i++)
        s2s_buf_printf(&line, "%s%d", i == 0 ? "" : json ? "," : " ", index[i]);
    s2s_buf_putc(&line, json ? ']' : '\n');
    fwrite(line.data, 1, line.len, stdout);
    s2s_buf_release(&line);
}

int cpshard_index(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT, .cp_rank = -1};
    s2s_tool_parse(&index_argp, argc, argv, &opt);
    const int32_t n_slots = opt.cu_seqlens[opt.n - 1];
    struct s2s_printout to = {.out = NULL};
    int rc = s2s_thd_cp_check(opt.cu_seqlens, opt.n - 1, n_slots, opt.cp_size, 0, err);
    if (rc == 0)
        rc = s2s_printout_begin(&to, opt.common.out, err);
    if (rc == 0) {
        const size_t n = (size_t)(n_slots / opt.cp_size);
        int32_t *index = s2s_xmalloc((n + 1) * sizeof *index);
        bool first = true;
        fputs(opt.common.json ? "{\"index\": [" : "", stdout);
        for (int rank = 0; rank < opt.cp_size; rank++) {
            if (opt.cp_rank >= 0 && rank != opt.cp_rank)
                continue;
            fputs(opt.common.json && !first ? "," : "", stdout);
            s2s_thd_cp_index(index, opt.cu_seqlens, opt.n - 1, opt.cp_size, rank);
            print_index(index, n, opt.common.json);
            first = false;
        }
        fputs(opt.common.json ? "]}\n" : "", stdout);
        free(index);
    }
    rc = s2s_printout_end(&to, rc, err);
    free(opt.cu_seqlens);
    return rc;
}
