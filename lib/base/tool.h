/*
 * What every program does alike: its name in messages, the shared options, subcommands, exit
 * status, provenance.
 *
 *     int main(int argc, char **argv)
 *     {
 *         struct shard_options opt = SHARD_OPTIONS_DEFAULT;
 *         struct s2s_error err = S2S_ERROR_INIT;
 *         s2s_tool_begin("s2s-cpshard", argc, argv);
 *         s2s_tool_parse(&shard_argp, argc, argv, &opt);
 *         return s2s_tool_end(shard_run(&opt, &err), &err);
 *     }
 *
 * The struct handed to s2s_tool_parse starts with a struct s2s_common; the tool's own argp parser
 * sees only the tool's own options (plus ARGP_KEY_ARG and so on), with state->input pointing at
 * that struct.
 */
#ifndef S2S_BASE_TOOL_H
#define S2S_BASE_TOOL_H

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s2s_error;

/* The options that all programs share: -v -q --json -j --seed -o, beside -h/--help and --version.
 */
struct s2s_common {
    int verbosity; /* number of -v; -1 with -q */
    bool json;
    int jobs; /* -j, at least 1; default: cores this process may use over the ranks on the node */
    int64_t seed;    /* --seed, default 0 */
    const char *out; /* -o; NULL: not given; "-": stdout */
    bool seed_given; /* 0 may be */
};

#define S2S_COMMON_DEFAULT \
    { \
        0, false, 0, 0, NULL, false \
    }

#define S2S_VERSION "0.1.0"

/* First thing in main: message prefix, S2S_LOG, SIGPIPE at its default, argp's exit status 2. argv
 * is kept. */
void s2s_tool_begin(const char *name, int argc, char **argv);

/*
 * Before s2s_tool_begin, for programs whose kernels run on OpenMP threads. Idle threads of libgomp
 * spin for milliseconds before they sleep: with other work on the machine that is a fifth of the
 * speed, and alone it gains nothing that can be measured. The library reads how long from its
 * environment before main, so the program starts once more with GOMP_SPINCOUNT set; never when that
 * or OMP_WAIT_POLICY is set already.
 */
void s2s_tool_share_cores(char **argv);

/*
 * Parses argv into input. Unknown or bad options: two lines on stderr, exit 2. argp->doc is
 * "purpose\vexamples, exit status, see also". For a tool with subcommands call it with the argv of
 * the subcommand (argv[0] = its name).
 */
void s2s_tool_parse(const struct argp *argp, int argc, char **argv, void *input);

/* A table of subcommands, ended by a NULL name. run parses its own argv (argv[0] is the
 * subcommand's name) and does the work. */
struct s2s_command {
    const char *name;
    int (*run)(int argc, char **argv, struct s2s_error *err);
    const char *purpose; /* one line for the tool's --help */
};

/*
 * Finds argv[1] in the table and runs it. --help lists the table between `purpose` and `epilogue`;
 * an unknown name suggests the nearest, exit 2. Returns the command's result.
 */
int s2s_tool_run(const struct s2s_command *commands, const char *purpose, const char *epilogue,
                 int argc, char **argv, struct s2s_error *err);

/* In a parser: parse the option's number or end as a bad command line (exit 2), naming the option.
 */
int64_t s2s_arg_i64(struct argp_state *state, const char *option, const char *text, int64_t min,
                    int64_t max);
double s2s_arg_f64(struct argp_state *state, const char *option, const char *text, double min,
                   double max);
/* Index of text in a NULL-ended list, or exit 2 naming what is allowed. */
int s2s_arg_choice(struct argp_state *state, const char *option, const char *text,
                   const char *const *choices);

/*
 * The message of a failure, flush and close of stdout, exit status. rc >= 0 is success, with the
 * status rc. Writes that fail only at the close (full disk) are a failure too.
 */
int s2s_tool_end(int rc, struct s2s_error *err);

/*
 * How one option stands in the provenance chain (stream.md 2): options that cannot change a byte
 * are dropped, file names lose their folder. -j -v -q -o --json and positional arguments are always
 * dropped. The list ends with a NULL option.
 */
struct s2s_args_rule {
    const char *option; /* long name without dashes */
    enum { S2S_ARGS_DROP = 1, S2S_ARGS_FILE } action;
};

/*
 * The arguments parsed by the last s2s_tool_parse as they go into provenance: "--name" or
 * "--name=value" under long names, sorted by name, repeated ones in the order given. Gives: free
 * each string and the list; *n is their number.
 */
char **s2s_tool_args(const struct s2s_args_rule *rules, size_t *n);

/* Refuses to write binary data to a terminal (ARG). */
int s2s_tool_check_stdout(struct s2s_error *err);

#endif
