/* s2s-cpshard: packs to one stream per context-parallel rank, and back. */
#include "tools/shard/cpshard.h"

enum { KEY_CP = 0x100, KEY_TP, KEY_RANK, KEY_JOIN };

static const struct argp_option option_table[] = {
    {"cp", KEY_CP, "N", 0, "Context-parallel ranks to split for", 1},
    {"rank", KEY_RANK, "R", 0, "Write only the stream of rank R (0 to N-1), by default to stdout",
     1},
    {"tp", KEY_TP, "N", 0,
     "Warn if a rank's share is not a multiple of N, as sequence parallelism needs (default 1)", 1},
    {"join", KEY_JOIN, NULL, 0, "Join the streams of all ranks, in any order", 1},
    {0},
};

static void check_options(struct argp_state *state)
{
    const struct cpshard_options *opt = state->input;
    const char *out = opt->common.out;
    if (opt->join) {
        if (opt->cp_size || opt->cp_rank >= 0 || opt->tp_size > 1)
            argp_error(state, "--join takes no --cp, --rank or --tp: the streams say it");
        if (opt->n_inputs == 0)
            argp_error(state, "--join needs the streams of all ranks");
        return;
    }
    if (opt->cp_size == 0)
        argp_error(state, "--cp is missing");
    if (opt->n_inputs > 1)
        argp_error(state, "one input at most, found '%s'", opt->inputs[1]);
    if (opt->cp_rank >= opt->cp_size)
        argp_error(state, "--rank %d is not within --cp %d", opt->cp_rank, opt->cp_size);
    if (opt->cp_rank < 0 && opt->cp_size > 1 && (!out || !strstr(out, "%r")))
        argp_error(state, "-o needs %%r, the rank, in its name (or choose one with --rank)");
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct cpshard_options *opt = state->input;
    switch (key) {
    case KEY_CP:
        opt->cp_size = (int)s2s_arg_i64(state, "cp", arg, 1, 4096);
        return 0;
    case KEY_TP:
        opt->tp_size = (int)s2s_arg_i64(state, "tp", arg, 1, 1 << 20);
        return 0;
    case KEY_RANK:
        opt->cp_rank = (int)s2s_arg_i64(state, "rank", arg, 0, 4095);
        return 0;
    case KEY_JOIN:
        opt->join = true;
        return 0;
    case ARGP_KEY_ARG:
        s2s_grow(&opt->inputs, opt->n_inputs, &opt->cap_inputs, sizeof *opt->inputs);
        opt->inputs[opt->n_inputs++] = arg;
        return 0;
    case ARGP_KEY_END:
        check_options(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp cpshard_argp = {
    .options = option_table,
    .parser = parse_option,
    .args_doc = "--cp N [IN.s2s]\n--join RANK0.s2s RANK1.s2s ...\n"
                "index --cp N --cu-seqlens 0,A,B.. [--rank R]",
    .doc =
        "Split packs over context-parallel ranks: each utterance is cut into 2 N chunks, of which "
        "rank r gets chunks r and 2 N - 1 - r. --join is the exact inverse."
        "\vExamples:\n"
        "  s2s-cpshard --cp 2 -o 'cp%r.s2s' packs.s2s\n"
        "  s2s-shard cat packs.s2s | s2s-cpshard --cp 2 --rank 1 | s2s-shard ls\n"
        "  s2s-cpshard --join -o packs.s2s cp0.s2s cp1.s2s\n\n"
        "index prints only the map; it has its own --help.\n\n"
        "Exit status: 0 done, 1 a stream is bad or a write failed, 2 bad command line or an input "
        "that cannot be opened.\n"
        "See also: s2s-pack(1), s2s-shard(1)",
};

static int run(const struct cpshard_options *opt, struct s2s_error *err)
{
    if (!opt->common.out || !strcmp(opt->common.out, "-")) {
        int rc = s2s_tool_check_stdout(err);
        if (rc < 0)
            return rc;
    }
    return opt->join ? cpshard_join(opt, err) : cpshard_split(opt, err);
}

static const struct s2s_command commands[] = {
    {.name = "index", .run = cpshard_index},
    {0},
};

int main(int argc, char **argv)
{
    struct cpshard_options opt = CPSHARD_OPTIONS_DEFAULT;
    struct s2s_error err = S2S_ERROR_INIT;

    s2s_tool_begin("s2s-cpshard", argc, argv);
    const struct s2s_command *command = s2s_tool_command(commands, argv);
    if (command)
        return s2s_tool_end(command->run(argc - 1, argv + 1, &err), &err);
    s2s_tool_parse(&cpshard_argp, argc, argv, &opt);
    int rc = run(&opt, &err);
    free(opt.inputs);
    return s2s_tool_end(rc, &err);
}
