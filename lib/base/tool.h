/*
 * What all programs have in common: the name in messages, shared options, subcommands, exit status,
 * provenance.
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
 * The struct passed to s2s_tool_parse starts with a struct s2s_common; the tool's own argp parser
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

/* Options that all programs share: -v -q --json -j --seed -o, besides -h/--help and --version. */
struct s2s_common {
    int verbosity; /* number of -v; -1 with -q */
    bool json;
    int jobs;        /* -j, at least 1; default: cores of this process / ranks on the node */
    int64_t seed;    /* --seed, default 0 */
    const char *out; /* -o; NULL: not given; "-": stdout */
    bool seed_given; /* --seed was given; it may be 0 */
};

#define S2S_COMMON_DEFAULT \
    { \
        0, false, 0, 0, NULL, false \
    }

#define S2S_VERSION "0.1.0"

/* To be called first in main: message prefix, S2S_LOG, SIGPIPE at its default, argp's exit status
 * 2. argv is kept. */
void s2s_tool_begin(const char *name, int argc, char **argv);

/*
 * To be called before s2s_tool_begin by programs whose kernels run on OpenMP threads. Idle threads
 * of libgomp spin for milliseconds before they sleep: next to other work on the machine that costs
 * a fifth of the speed, and alone it gains nothing measurable. libgomp reads the spin count from
 * its environment before main, so this executes the program again with GOMP_SPINCOUNT set, unless
 * that or OMP_WAIT_POLICY is set already.
 */
void s2s_tool_share_cores(char **argv);

/*
 * Parses argv into input. Unknown or invalid options: two lines on stderr, exit 2. argp->doc is
 * "purpose\vexamples, exit status, see also". In a tool with subcommands it is called with the argv
 * of the subcommand (argv[0] = its name).
 */
void s2s_tool_parse(const struct argp *argp, int argc, char **argv, void *input);

/* An entry of a table of subcommands, which ends with a NULL name. run parses its own argv (argv[0]
 * is the subcommand's name) and does the work. */
struct s2s_command {
    const char *name;
    int (*run)(int argc, char **argv, struct s2s_error *err);
    const char *purpose; /* one line for the tool's --help */
};

/*
 * The command that the first word of the NULL-terminated argv names, which then is argv[1]: shared
 * options before it (-q, -j N) come after it. NULL, and argv as it was, if that word is no command.
 */
const struct s2s_command *s2s_tool_command(const struct s2s_command *commands, char **argv);

/*
 * Finds the command in the table and runs it. --help lists the table between `purpose` and
 * `epilogue`; for an unknown name the nearest is suggested, exit 2. Returns the command's result.
 */
int s2s_tool_run(const struct s2s_command *commands, const char *purpose, const char *epilogue,
                 int argc, char **argv, struct s2s_error *err);

/* For parsers: parses an option's number; exits with 2 and names the option if it is invalid. */
int64_t s2s_arg_i64(struct argp_state *state, const char *option, const char *text, int64_t min,
                    int64_t max);
double s2s_arg_f64(struct argp_state *state, const char *option, const char *text, double min,
                   double max);
/* Index of text in a NULL-terminated list; exits with 2 and lists the choices if it is not in it.
 */
int s2s_arg_choice(struct argp_state *state, const char *option, const char *text,
                   const char *const *choices);

/*
 * Prints the message of a failure, flushes and closes stdout, and returns the exit status. rc >= 0
 * is success, and the status. A write error that shows only on closing (full disk) is a failure,
 * too.
 */
int s2s_tool_end(int rc, struct s2s_error *err);

/*
 * How an option appears in the provenance chain (doc/FORMAT.md): options that cannot change a byte
 * of the output are dropped, file names are reduced to their last component. -j -v -q -o --json and
 * positional arguments are always dropped. The list ends with a NULL option.
 */
struct s2s_args_rule {
    const char *option; /* long name without dashes */
    enum { S2S_ARGS_DROP = 1, S2S_ARGS_FILE } action;
};

/*
 * Arguments of the last s2s_tool_parse for provenance: "--name" or "--name=value" with long names,
 * sorted by name, repeated ones in the given order. Gives: free each string and the list; *n is
 * their number.
 */
char **s2s_tool_args(const struct s2s_args_rule *rules, size_t *n);

/* Refuses to write binary data to a terminal (ARG). */
int s2s_tool_check_stdout(struct s2s_error *err);

#endif
