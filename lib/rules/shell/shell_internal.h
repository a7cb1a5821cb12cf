/* What the reader of launch scripts knows about batch systems and tests. */
#ifndef S2S_RULES_SHELL_INTERNAL_H
#define S2S_RULES_SHELL_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s2s_buf;
struct s2s_conf;

/* text that stands for an unknown part: rules take any "${" for unknown */
#define RULES_SHELL_UNKNOWN "${?}"

/* Numbers that #SBATCH lines or the flags of srun give; 0: not given. */
struct rules_sbatch {
    int64_t nodes, ntasks, ntasks_per_node, gpus_per_node;
    int line; /* of the last one */
};

/* The words of "#SBATCH WORDS" or behind "srun": -N 4, --nodes=4, --gres=gpu:8, .. Stops at the
 * first word that is no flag and no value of one. */
void rules_sbatch_words(struct rules_sbatch *batch, const char *const *words, size_t n, int line);
/* A whole positive number of at most nine digits; 0 otherwise. */
int64_t rules_count_of(const char *text);
/* One comment line; nothing happens if it is not "#SBATCH". */
void rules_sbatch_line(struct rules_sbatch *batch, const char *text, size_t len, int line);

/*
 * A test over integers, its words expanded: "[[ 72 -eq 264 ]]", "[ 72 != 264 ]", "test 1 -lt 2",
 * "(( 72 == 264 ))". 1 it holds, 0 it does not, -1 it is another test or not known.
 */
int rules_test_holds(const char *const *words, size_t n);
/* The position of its left side among the words, or 0 if it is not such a test. */
size_t rules_test_left(const char *const *words, size_t n);

/* Scripts that run one after another in one environment: the second is handed the variables of the
 * first. Gives: s2s_conf_free; places in the second keep its name. */
struct rules_script {
    const char *text;
    size_t len_bytes;
    const char *name;
};
struct s2s_conf *rules_read_scripts(const struct rules_script *scripts, size_t n);

/* ---- the state of the reader (shell.c) ---- */

struct rules_word {
    char *text;
    int line, column;
    int script; /* which of the scripts it stands in */
};

struct rules_words {
    struct rules_word *items;
    size_t n, cap;
};

struct rules_variable {
    char *name;
    size_t len;               /* of the name */
    struct rules_words words; /* one for a scalar */
    bool exported, array;     /* $NAME of an array is its first word */
};

/* A scope: what it assigns to is as before behind it, but for a call's variables that are not
 * local. A definition runs nothing, its command counts only if there is no other. */
enum rules_scope {
    RULES_SCOPE_NONE,
    RULES_SCOPE_DEFINITION,
    RULES_SCOPE_CALL,
    RULES_SCOPE_SUBSHELL
};

/* What a scope assigned to, as it was before. */
struct rules_kept {
    char *name;
    struct rules_words before;
    bool existed, local, array, exported;
};

/* NAME() with its body, which is read again where it is called. */
struct rules_function {
    char *name;
    const char *begin, *end, *line_start; /* end: NULL until the body has been read */
    int line, n_inner_bytes, script;
    bool maybe, running; /* maybe: defined under a condition */
};

/* `TEST || exit`, `TEST && exit`, `if TEST; then exit`. */
struct rules_guard {
    char *text; /* the test as it came out; NULL: none */
    int holds;  /* 1, 0, -1: not known */
    bool exits_if, is_if, brace;
    struct rules_word at;
};

/* A branch of the script: taken, not taken, or unknown. */
enum rules_taken { RULES_MAYBE, RULES_LIVE, RULES_DEAD };

/* Of `if` and its kin, of a group in braces, and of what stands behind `&&` or `||`. */
struct rules_branch {
    enum rules_taken taken;
    bool done;                           /* an earlier branch of the same `if` is taken */
    bool maybe;                          /* an earlier branch of the same `if` may be taken */
    bool condition;                      /* between `if` and `then` */
    bool list;                           /* behind `&&` or `||`: ends with the list */
    bool brace;                          /* { .. } */
    bool subshell;                       /* ( .. ) */
    bool loop;                           /* for, while, until */
    bool is_case, pattern;               /* pattern: one of its patterns is next */
    char *subject;                       /* what they are held against; NULL: not known */
    int status;                          /* of the condition or list so far: 1, 0, -1 not known */
    enum rules_scope scope, outer_scope; /* that it begins, and the one around it */
    size_t outer_kept;
    int outer_conditional;
    size_t function; /* which one's body it is, from 1 */
};

enum { RULES_SHELL_BRANCHES = 64, RULES_SHELL_PREFIX = 16 };
/* bytes of one value, and of all values put in: variables made of variables double at each step */
enum { RULES_SHELL_VALUE = 100000, RULES_SHELL_SPENT = 32 << 20 };

struct rules_shell {
    const char *text, *at, *end, *line_start;
    size_t n_spent; /* bytes of variables that were put in so far */
    int line;
    int n_inner_bytes; /* of this line: bytes that are not the first of a character */
    struct rules_variable *variables;
    size_t n_variables, cap_variables;
    /* open if, case, for and while; what is deeper counts as MAYBE */
    struct rules_branch branches[RULES_SHELL_BRANCHES];
    int n_branches;
    int conditional; /* how many of them are MAYBE */
    int dead;        /* how many are DEAD */
    int dead_lists;  /* and of these behind `&&` or `||` */
    bool assigned;   /* the command that is read now began with an assignment */
    struct rules_kept prefix[RULES_SHELL_PREFIX]; /* what it assigned to for a command alone */
    size_t n_prefix, outer_prefix;                /* the first outer_prefix are those around it */
    enum rules_scope next_scope; /* of the branch that opens next: NAME() was read, or is called */
    size_t next_function;        /* the body of which it is */
    int n_definitions;           /* how many of the open scopes are one */
    struct rules_function *functions;
    size_t n_functions, cap_functions;
    int n_calls, call_depth;
    bool local; /* `local` was read, before what is assigned now */
    enum rules_scope scope;
    struct rules_kept *kept; /* of all scopes; those of the innermost begin at outer_kept */
    size_t n_kept, cap_kept, outer_kept;
    struct rules_words spare;   /* a command with the flags in a branch that is not taken */
    int depth;                  /* of nested expansions */
    int script;                 /* which one is read */
    struct rules_words command; /* the one with the flags */
    bool command_maybe;         /* it is in a branch that may not be taken */
    struct rules_sbatch batch;
    struct rules_guard guard;  /* the test that stands before what is read now */
    struct rules_guard failed; /* the first one that ends the script */
};

/* ---- words (shell/expand.c) ---- */

/* The length of the name at s; 0 if there is none. */
size_t rules_name_len(const char *s, const char *end);
/* behind an opening bracket of `open`: just past the one that closes it, or end */
const char *rules_past_close(const char *s, const char *end, char open, char close);
/* A word without its quotes, its variables put in. */
void rules_shell_expand(struct rules_shell *sh, struct s2s_buf *out, const char *s,
                        const char *end);
/* What stands in $((..)). */
void rules_shell_sum(struct rules_shell *sh, struct s2s_buf *out, const char *s, const char *end);

/* ---- commands ---- */

/* NAME=(WORDS) or, append, NAME+=, as far as the branch that is read now is taken; takes the words
 * (shell/variable.c). */
void rules_shell_assign_words(struct rules_shell *sh, const char *name, size_t len,
                              struct rules_words *words, bool append);
/* A number of more than 0 that a scheduler sets, whatever the branch. */
void rules_shell_assign_number(struct rules_shell *sh, const char *name, int64_t value);
/* NAME=TEXT likewise (shell.c). */
void rules_shell_assign(struct rules_shell *sh, const char *name, size_t len, const char *text);
/* The innermost scope ends; in the one around it `outer` is the first that is kept, SIZE_MAX: there
 * is none (shell/function.c). */
void rules_shell_leave(struct rules_shell *sh, size_t outer);
/* Closes branches until n are open. */
void rules_shell_unwind(struct rules_shell *sh, int n);
/* `return`: the rest of the function is not run, or may not be. */
void rules_shell_return(struct rules_shell *sh);
/* Runs the function that words call, if they do (shell/function.c). */
void rules_shell_call(struct rules_shell *sh, const struct rules_words *words);
/* At what follows NAME or `function NAME`: true if it defines a function; its body is next. */
bool rules_shell_define(struct rules_shell *sh, const struct rules_words *words);
/* Reads commands up to the end of the text (shell.c). */
void rules_shell_read(struct rules_shell *sh);
/* blanks, continued lines and comments; stops at a newline unless `over` */
void rules_shell_skip(struct rules_shell *sh, bool over);
/* What ends the command that is read now; a newline at the end of the text. */
char rules_shell_terminator(const struct rules_shell *sh);
/* NAME as it is now, to be put back (or released) once. */
struct rules_kept rules_shell_kept(struct rules_shell *sh, const char *name, size_t len);
/* The variable is as it was, or is no more. */
void rules_shell_put_back(struct rules_shell *sh, struct rules_kept *k);
/* Keeps NAME as it is for the end of the scope. */
void rules_shell_keep(struct rules_shell *sh, const char *name, size_t len, bool local);
/* at "(" where a command may begin, and at ")" */
void rules_shell_open(struct rules_shell *sh);
void rules_shell_close(struct rules_shell *sh);
/* A simple command that ended: opens, changes or closes a branch if it is such a word. */
void rules_shell_follow(struct rules_shell *sh, const struct rules_words *words);
/* How a simple command ends, as far as its words say: 1 well, 0 not, -1 not known. */
int rules_shell_status(const struct rules_words *words);
/* A command of that status ended at `&&` ('&'), at `||` ('|') or with its list (0). */
enum { RULES_NO_COMMAND = -2 };
void rules_shell_join(struct rules_shell *sh, int status, char op);
/* `then`: the condition is read. */
void rules_shell_then(struct rules_shell *sh);
/* Is a pattern of `case` next? Does the word at s match: 1, 0, -1 not known? The list of patterns
 * is read, with that outcome. */
bool rules_shell_at_pattern(struct rules_shell *sh);
int rules_shell_matches(struct rules_shell *sh, const char *s, const char *end);
void rules_shell_matched(struct rules_shell *sh, int holds);
/* `;;`, or (falls) `;&` and `;;&`, behind which the next commands may run too. */
void rules_shell_next_case(struct rules_shell *sh, bool falls);
/* Takes `taken`, which is freed if there are too many already. */
void rules_words_add(struct rules_words *w, char *taken, int line, int column, int script);
void rules_words_copy(struct rules_words *to, const struct rules_words *from);
void rules_words_release(struct rules_words *w);
bool rules_is_any_of(const char *word, const char *const *names); /* names ends with NULL */
/* A flag by which a command of Megatron is known. */
bool rules_is_marker(const char *word);
/* The last one of that name, or NULL. */
struct rules_variable *rules_shell_variable(const struct rules_shell *sh, const char *name,
                                            size_t len);
/* The config that the scripts make (shell/result.c); roots[i] is empty and has script i as its
 * source. Returns roots[0]. */
struct s2s_conf *rules_shell_result(struct rules_shell *sh, struct s2s_conf *const *roots);

/* ---- the config that comes out (shell/result.c, shell/launch.c) ---- */

/* A value with its place, which may be in another script than the root's. */
void rules_shell_set(struct s2s_conf *const *roots, const char *path, const char *text,
                     const struct rules_word *at);
/* "--flag value.." pairs of [begin, end) into the map at `prefix`. */
void rules_shell_flags(struct s2s_conf *const *roots, const char *prefix,
                       const struct rules_word *begin, const struct rules_word *end);
/* What torchrun, mpirun, srun, deepspeed and accelerate say before the program, which is that word
 * of the command: ranks into ENV_VARS and BATCH, variables into ENV_VARS. */
void rules_shell_launcher(const struct rules_shell *sh, struct s2s_conf *const *roots,
                          size_t program);
/* Ranks as the batch system starts them: one per task, unless torchrun starts them from there. */
void rules_shell_batch(struct rules_shell *sh, struct s2s_conf *root, size_t program);

#endif
