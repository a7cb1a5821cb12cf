/* Options, subcommands, help and provenance of all programs. */
#include "lib/base/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/base/bus_error.h"
#include "lib/base/distance.h"
#include "lib/base/error.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/num.h"
#include "lib/base/threads.h"

enum { KEY_VERSION = 0x7f00, KEY_JSON, KEY_SEED, KEY_USAGE };

/* options of the last parse, for provenance */
static struct {
    char *name, *value; /* long name; value or NULL */
} * parsed_args;
static size_t n_parsed, cap_parsed;

static const struct argp *tool_argp;
static const char *tool_name = "s2s";

/* If a parent closed stdout or stderr, opens /dev/null as fd, read-only so that every write fails:
 * otherwise the next file opened would get that number and receive what is printed. */
static void occupy(int fd)
{
    if (fcntl(fd, F_GETFD) >= 0)
        return;
    int null = open("/dev/null", O_RDONLY);
    if (null < 0 || null == fd)
        return;
    dup2(null, fd);
    close(null);
}

/* Raises the limit of open files, which is 1,024 by default: each of many inputs and outputs is an
 * open file. */
static void allow_open_files(void)
{
    enum { PLENTY = 1 << 16 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= PLENTY)
        return;
    limit.rlim_cur = limit.rlim_max < PLENTY ? limit.rlim_max : PLENTY;
    (void)setrlimit(RLIMIT_NOFILE, &limit); /* otherwise fewer files can be open */
}

/* Exits after --help or --version, with an error if the text could not be written. */
static _Noreturn void end_of_text(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        exit(0);
    fprintf(stderr, "%s: cannot write to stdout: %s\n", tool_name, strerror(errno));
    exit(1);
}

void s2s_tool_share_cores(char **argv)
{
    char path[PATH_MAX]; /* not /proc/self/exe itself, so that the process keeps its name */
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY") ||
        setenv("GOMP_SPINCOUNT", "1000", 0) < 0)
        return;
    ssize_t len = readlink("/proc/self/exe", path, sizeof path);
    if (len <= 0 || (size_t)len >= sizeof path)
        return; /* without /proc idle threads just keep spinning */
    path[len] = 0;
    execv(path, argv);
}

void s2s_tool_begin(const char *name, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    tool_name = name;
    occupy(STDOUT_FILENO);
    occupy(STDERR_FILENO);
    allow_open_files();
    argp_err_exit_status = 2;
    signal(SIGPIPE,
           SIG_DFL); /* a parent may ignore it; a reader that exits early ends us quietly */
    s2s_catch_bus_errors(name);
    signal(SIGXFSZ, SIG_IGN); /* a file beyond the limit is a write error, and is cleaned up */
    s2s_log_init(name, 0);
    /* Reuses a record's memory for the next record: fresh pages from the kernel cost more than most
     * of the work on them. 32 MiB is the maximum for M_MMAP_THRESHOLD. */
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    /* jansson says that memory is out by a NULL or -1 from each of the many calls that build a
     * tree; one that is not looked at would lose a member of a header in silence */
    json_set_alloc_funcs(s2s_xmalloc, free);
}

static const struct argp_option *find_option(const struct argp_option *options, int key)
{
    for (const struct argp_option *o = options; o && (o->name || o->key || o->doc); o++)
        if (o->key == key && o->name && !(o->flags & OPTION_ALIAS))
            return o;
    return NULL;
}

static void record(const char *name, const char *value)
{
    s2s_grow(&parsed_args, n_parsed, &cap_parsed, sizeof *parsed_args);
    parsed_args[n_parsed].name = s2s_xstrdup(name);
    parsed_args[n_parsed++].value = value ? s2s_xstrdup(value) : NULL;
}

static void forget_parsed(void)
{
    for (size_t i = 0; i < n_parsed; i++) {
        free(parsed_args[i].name);
        free(parsed_args[i].value);
    }
    n_parsed = 0;
}

static const struct argp_option common_options[] = {
    {NULL, 0, NULL, 0, "Shared options:", 90},
    {"output", 'o', "OUT", 0, "Write to OUT (- is stdout)", 90},
    {"jobs", 'j', "N", 0, "Threads (default: available cores / ranks on the node)", 90},
    {"seed", KEY_SEED, "N", 0, "Random seed (default 0)", 90},
    {"json", KEY_JSON, NULL, 0, "Print the result as JSON", 90},
    {"verbose", 'v', NULL, 0, "More messages; repeat for still more", 90},
    {"quiet", 'q', NULL, 0, "Errors only", 90},
    {"help", 'h', NULL, 0, "Show this help and exit", 91},
    {"version", KEY_VERSION, NULL, 0, "Show the version and exit", 91},
    /* the option that argp's message about an invalid option names */
    {"usage", KEY_USAGE, NULL, OPTION_HIDDEN, NULL, 91},
    {0},
};

/* Number of ranks of this launch on this node, from Open MPI, MPICH, Intel MPI or Slurm; 1 without
 * a launcher. */
static int ranks_on_node(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "SLURM_STEP_TASKS_PER_NODE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        int n = text ? (int)strtol(text, NULL, 10) : 0;
        if (n > 0)
            return n;
    }
    return 1;
}

/* Sets the layout of argp's next output, unless the user has set one. */
static void set_layout(const char *layout)
{
    static bool asked, ours;
    if (!asked)
        ours = getenv("ARGP_HELP_FMT") == NULL;
    asked = true;
    if (ours)
        setenv("ARGP_HELP_FMT", layout, 1);
}

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
    struct s2s_common *common = state->input;
    switch (key) {
    case 'o':
        common->out = arg;
        return 0;
    case 'j':
        common->jobs = (int)s2s_arg_i64(state, "jobs", arg, 1, 4096);
        return 0;
    case KEY_SEED:
        common->seed = s2s_arg_i64(state, "seed", arg, 0, INT64_MAX);
        common->seed_given = true;
        record("seed", arg);
        return 0;
    case KEY_JSON:
        common->json = true;
        return 0;
    case 'v':
        common->verbosity++;
        s2s_log_set_verbosity(common->verbosity);
        return 0;
    case 'q':
        common->verbosity = -1;
        s2s_log_set_verbosity(-1);
        return 0;
    case 'h':
        set_layout("no-dup-args-note");
        argp_state_help(state, stdout, ARGP_HELP_LONG | ARGP_HELP_DOC | ARGP_HELP_SHORT_USAGE);
        end_of_text();
    case KEY_USAGE:
        set_layout("");
        argp_state_help(state, stdout, ARGP_HELP_USAGE);
        end_of_text();
    case KEY_VERSION:
        printf("%s " S2S_VERSION "\n", tool_name);
        end_of_text();
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp common_argp = {.options = common_options, .parser = parse_common};

/* Records options before the tool's own parser handles them. */
static error_t parse_noting(int key, char *arg, struct argp_state *state)
{
    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = state->input;
        if (!tool_argp->children && !tool_argp->parser)
            return 0;
    }
    error_t rc = tool_argp->parser ? tool_argp->parser(key, arg, state) : ARGP_ERR_UNKNOWN;
    const struct argp_option *option = rc == 0 ? find_option(tool_argp->options, key) : NULL;
    if (option)
        record(option->name, arg);
    return key == ARGP_KEY_INIT && rc == ARGP_ERR_UNKNOWN ? 0 : rc;
}

/* The known name nearest to an unknown one: at most three edits, and at most half of its length. */
struct meant {
    const char *name; /* NULL: none is near */
    int changes;
};

static void consider(struct meant *meant, const char *given, const char *name)
{
    const int changes = s2s_name_distance(given, name, 3);
    if (changes <= 3 && 2 * changes <= (int)strlen(name) &&
        (!meant->name || changes < meant->changes))
        *meant = (struct meant){name, changes};
}

/* Finds an option by key or, with key 0, by the start of its name. Otherwise returns NULL, and
 * updates meant. */
static const struct argp_option *look_up(const char *begin, int key, struct meant *meant)
{
    const struct argp_option *const tables[] = {tool_argp->options, common_options};
    for (size_t i = 0; i < 2; i++)
        for (const struct argp_option *o = tables[i]; o && (o->name || o->key || o->doc); o++)
            if (o->name && (key ? o->key == key : !strncmp(o->name, begin, strlen(begin))))
                return o;
            else if (o->name && !key)
                consider(meant, begin, o->name);
    return NULL;
}

/* Suggests the nearest option for an unknown one, and exits: getopt reports it without a
 * suggestion. Otherwise leaves all errors to argp. */
static void say_what_was_meant(const struct argp *whole, int argc, char **argv, char *title)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *text = argv[i], *letter = text + 1;
        const struct argp_option *option = NULL;
        struct meant meant = {NULL, 0};
        if (text[0] == '-' && text[1] == '-') {
            char *name = s2s_xstrndup(text + 2, strcspn(text + 2, "="));
            option = look_up(name, 0, &meant);
            if (!option && meant.name) {
                fprintf(stderr, "%s: unrecognized option '--%s'; did you mean '--%s'?\n", title,
                        name, meant.name);
                argp_help(whole, stderr, ARGP_HELP_SEE, title);
                exit(2);
            }
            free(name);
            i += option && option->arg && !strchr(text, '=');
        } else if (text[0] == '-' && *letter) {
            for (; *letter && (option = look_up("", *letter, &meant)) && !option->arg; letter++)
                ;
            i += *letter && option && !letter[1]; /* skip its argument, the next word */
        }
        if (text[0] == '-' && text[1] && (!option || option->key == 'h'))
            return; /* argp reports it, or shows the help */
    }
}

void s2s_tool_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    struct s2s_common *common = input;
    const struct argp_child children[] = {{&common_argp, 0, NULL, 90}, {0}};
    struct argp whole = *argp;
    whole.parser = parse_noting;
    whole.children = children;
    tool_argp = argp;
    forget_parsed();
    /* argp prints argv[0] as the program's name: use the tool's name and the subcommand */
    char *saved = argv[0];
    const char *base = strrchr(saved, '/');
    base = base ? base + 1 : saved;
    char *title = strncmp(base, tool_name, strlen(tool_name)) == 0 || !strncmp(base, "lt-", 3)
                      ? s2s_xstrdup(tool_name)
                      : s2s_xasprintf("%s %s", tool_name, base);
    argv[0] = title;
    program_invocation_short_name = program_invocation_name = title;
    set_layout("rmargin=250"); /* keeps the hint below an error on one line */
    say_what_was_meant(&whole, argc, argv, title);
    error_t failed = argp_parse(&whole, argc, argv, ARGP_NO_HELP, NULL, input);
    if (failed) { /* invalid options have exited already */
        fprintf(stderr, "%s: cannot read the command line: %s\n", tool_name, strerror(failed));
        exit(1);
    }
    argv[0] = saved;
    program_invocation_short_name = program_invocation_name = (char *)tool_name;
    free(title);
    if (common->jobs == 0) {
        common->jobs = s2s_n_cores() / ranks_on_node();
        common->jobs = common->jobs > 0 ? common->jobs : 1;
    }
}

/* Number of words of the shared option that argv[0] begins: 1, or 2 with its argument; 0: it is
 * none. */
static int words_of_shared_option(char **argv)
{
    const char *text = argv[0];
    for (const struct argp_option *o = common_options; o->key || o->doc; o++) {
        if (!o->name)
            continue;
        const size_t length = strlen(o->name);
        const bool is_long = !strncmp(text, "--", 2) && !strncmp(text + 2, o->name, length);
        if (is_long && text[2 + length] == '=')
            return 1;
        if (is_long ? !text[2 + length] : *text == '-' && text[1] == o->key && !text[2])
            return o->arg && argv[1] ? 2 : 1;
        if (!is_long && *text == '-' && text[1] == o->key &&
            (o->arg || strspn(text + 1, "vq") == strlen(text + 1)))
            return 1;
    }
    return 0;
}

const struct s2s_command *s2s_tool_command(const struct s2s_command *commands, char **argv)
{
    int at = 1, words = 0;
    while (argv[0] && argv[at] && (words = words_of_shared_option(argv + at)))
        at += words;
    for (const struct s2s_command *c = commands; argv[0] && argv[at] && c->name; c++) {
        if (strcmp(argv[at], c->name) != 0)
            continue;
        char *name = argv[at];
        memmove(argv + 2, argv + 1, (size_t)(at - 1) * sizeof *argv);
        argv[1] = name;
        return c;
    }
    return NULL;
}

static int usage_error(const char *given, const struct s2s_command *commands)
{
    struct meant meant = {NULL, 0};
    for (const struct s2s_command *c = commands; given && c->name; c++)
        consider(&meant, given, c->name);
    if (!given)
        fprintf(stderr, "%s: a command is missing\n", tool_name);
    else if (*given == '-')
        fprintf(stderr, "%s: a command is missing before '%s'; options follow it\n", tool_name,
                given);
    else if (meant.name)
        fprintf(stderr, "%s: unknown command '%s'; did you mean '%s'?\n", tool_name, given,
                meant.name);
    else
        fprintf(stderr, "%s: unknown command '%s'\n", tool_name, given);
    fprintf(stderr, "Try '%s --help' for the list of commands.\n", tool_name);
    exit(2);
}

int s2s_tool_run(const struct s2s_command *commands, const char *purpose, const char *epilogue,
                 int argc, char **argv, struct s2s_error *err)
{
    const char *given = argc > 1 ? argv[1] : NULL;
    if (given && (!strcmp(given, "-h") || !strcmp(given, "--help"))) {
        printf("Usage: %s COMMAND [OPTION...] [INPUT...]\n%s\n\n", tool_name, purpose);
        for (const struct s2s_command *c = commands; c->name; c++)
            printf("  %-12s %s\n", c->name, c->purpose);
        printf("\n'%s COMMAND --help' shows the options of a command.\n%s%s\n", tool_name,
               *epilogue ? "\n" : "", epilogue);
        end_of_text();
    }
    if (given && !strcmp(given, "--version")) {
        printf("%s " S2S_VERSION "\n", tool_name);
        end_of_text();
    }
    const struct s2s_command *command = s2s_tool_command(commands, argv);
    return command ? command->run(argc - 1, argv + 1, err) : usage_error(given, commands);
}

int64_t s2s_arg_i64(struct argp_state *state, const char *option, const char *text, int64_t min,
                    int64_t max)
{
    struct s2s_error err = S2S_ERROR_INIT;
    int64_t value = 0;
    if (s2s_parse_i64(&value, text, min, max, &err) < 0)
        argp_error(state, "--%s: %s", option, err.text);
    return value;
}

double s2s_arg_f64(struct argp_state *state, const char *option, const char *text, double min,
                   double max)
{
    struct s2s_error err = S2S_ERROR_INIT;
    double value = 0;
    if (s2s_parse_f64(&value, text, min, max, &err) < 0)
        argp_error(state, "--%s: %s", option, err.text);
    return value;
}

int s2s_arg_choice(struct argp_state *state, const char *option, const char *text,
                   const char *const *choices)
{
    struct s2s_buf all = S2S_BUF_INIT;
    for (int i = 0; choices[i]; i++) {
        if (!strcmp(choices[i], text)) {
            s2s_buf_release(&all);
            return i;
        }
        s2s_buf_printf(&all, "%s%s", i ? ", " : "", choices[i]);
    }
    argp_error(state, "--%s: '%s' is not one of %s", option, text, all.data);
    s2s_buf_release(&all);
    return 0;
}

int s2s_tool_end(int rc, struct s2s_error *err)
{
    int status = rc < 0 ? s2s_errc_exit_status(rc) : rc;
    if (rc < 0) {
        /* not by the log: an error is shown whatever the level */
        if (err && err->text[0])
            fprintf(stderr, "%s: %s%s%s\n", tool_name, err->text, err->hint[0] ? "; " : "",
                    err->hint);
        else
            fprintf(stderr, "%s: %s\n", tool_name, s2s_errc_text(rc));
    }
    int bad = ferror(stdout);
    if (fclose(stdout) != 0)
        bad = 1;
    if (bad) {
        fprintf(stderr, "%s: cannot write to stdout: %s\n", tool_name, strerror(errno));
        status = status ? status : 1;
    }
    forget_parsed();
    free(parsed_args);
    parsed_args = NULL;
    cap_parsed = 0;
    return status;
}

static int by_name(const void *a, const void *b)
{
    const size_t i = *(const size_t *)a, j = *(const size_t *)b;
    int order = strcmp(parsed_args[i].name, parsed_args[j].name);
    return order ? order : (i > j) - (i < j);
}

static int action_of(const struct s2s_args_rule *rules, const char *name)
{
    for (; rules && rules->option; rules++)
        if (!strcmp(rules->option, name))
            return (int)rules->action;
    return 0;
}

char **s2s_tool_args(const struct s2s_args_rule *rules, size_t *n)
{
    size_t *order = s2s_xcalloc(n_parsed, sizeof *order), n_args = 0;
    char **args = s2s_xcalloc(n_parsed + 1, sizeof *args);
    for (size_t i = 0; i < n_parsed; i++)
        order[i] = i;
    qsort(order, n_parsed, sizeof *order, by_name);
    for (size_t i = 0; i < n_parsed; i++) {
        const char *name = parsed_args[order[i]].name, *value = parsed_args[order[i]].value;
        int action = action_of(rules, name);
        if (action == S2S_ARGS_DROP)
            continue;
        const char *slash = value && action == S2S_ARGS_FILE ? strrchr(value, '/') : NULL;
        args[n_args++] = value ? s2s_xasprintf("--%s=%s", name, slash ? slash + 1 : value)
                               : s2s_xasprintf("--%s", name);
    }
    free(order);
    *n = n_args;
    return args;
}

int s2s_tool_check_stdout(struct s2s_error *err)
{
    /* under mpirun stdout is a pseudoterminal, wherever mpirun's own output goes */
    if (!isatty(STDOUT_FILENO) || getenv("OMPI_COMM_WORLD_SIZE"))
        return 0;
    s2s_error_set(err, S2S_E_ARG, "binary output would go to the terminal");
    return s2s_error_hint(err, S2S_E_ARG, "name a file with -o, or pipe it");
}
