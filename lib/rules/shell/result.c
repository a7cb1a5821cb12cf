/* What a launch script comes to: its flags, its environment, its ranks, as one config. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/rules/rules_internal.h"
#include "lib/rules/shell/shell_internal.h"

void rules_shell_set(struct s2s_conf *const *roots, const char *path, const char *text,
                     const struct rules_word *at)
{
    s2s_conf_set_scalar(roots[at->script], path, text, at->line, at->column, NULL);
    if (at->script)
        s2s_conf_set(roots[0], path, s2s_conf_find(roots[at->script], path), NULL);
}

/* A flag that stands there already with another value is kept under REPEATED. */
static void note_repeated(struct s2s_conf *const *roots, const char *path, const char *flag,
                          size_t len, const char *value)
{
    const struct s2s_conf *first = s2s_conf_find(roots[0], path);
    if (!first || !first->text || !strcmp(first->text, value) || strchr(first->text, '$'))
        return;
    char *to = s2s_xasprintf("REPEATED.%.*s", (int)len, flag);
    s2s_conf_set(roots[0], to, first, NULL);
    free(to);
}

void rules_shell_flags(struct s2s_conf *const *roots, const char *prefix,
                       const struct rules_word *begin, const struct rules_word *end)
{
    for (const struct rules_word *w = begin; w < end; w++) {
        const char *equals = strchr(w->text, '=');
        size_t len = equals ? (size_t)(equals - w->text) : strlen(w->text);
        if (strncmp(w->text, "--", 2) != 0 || len < 3 || memchr(w->text, '{', len))
            continue;
        struct s2s_buf path = S2S_BUF_INIT, value = S2S_BUF_INIT;
        const struct rules_word *place = w;
        if (memchr(w->text, '.', len) || memchr(w->text, '[', len))
            continue;
        s2s_buf_printf(&path, "%s.%.*s", prefix, (int)len, w->text);
        s2s_buf_puts(&value, equals ? equals + 1 : "");
        for (const struct rules_word *v = w + 1;
             !equals && v < end && strncmp(v->text, "--", 2) != 0; v++) {
            /* an unknown word behind a value is rather more flags than more of the value */
            if (value.len && !strcmp(v->text, RULES_SHELL_UNKNOWN))
                continue;
            s2s_buf_printf(&value, "%s%s", value.len ? " " : "", v->text);
            place = place == w ? v : place;
        }
        note_repeated(roots, path.data, w->text, len, value.len || equals ? value.data : "true");
        rules_shell_set(roots, path.data, value.len || equals ? value.data : "true", place);
        s2s_buf_release(&path);
        s2s_buf_release(&value);
    }
}

/* The word behind which the program's own flags begin: its .py file or module, or the first flag */
static size_t program_of(const struct rules_words *command)
{
    for (size_t i = 0; i < command->n; i++) {
        size_t len = strlen(command->items[i].text);
        if (len > 3 && !strcmp(command->items[i].text + len - 3, ".py"))
            return i;
        /* the module of torchrun itself is a launcher */
        if (i > 0 && !strcmp(command->items[i - 1].text, "-m") &&
            !strstr(command->items[i].text, "torch."))
            return i;
    }
    return 0;
}

static bool hands_over(const struct rules_shell *sh)
{
    return rules_shell_variable(sh, "LLM_TP", 6) && rules_shell_variable(sh, "ENCODER_DP", 10);
}

/* Variables that a second script turns into flags: a batch script says no more itself. */
static void add_handed_over(struct rules_shell *sh, struct s2s_conf *const *roots)
{
    static const char *const names[][2] = {
        {"ENCODER_TP", "--encoder-tp"},
        {"ENCODER_CP", "--encoder-cp"},
        {"ENCODER_PP", "--encoder-pp"},
        {"ENCODER_DP", "--encoder-dp"},
        {"ENCODER_OFFSET", "--encoder-offset"},
        {"LLM_TP", "--llm-tp"},
        {"LLM_CP", "--llm-cp"},
        {"LLM_PP", "--llm-pp"},
        {"LLM_DP", "--llm-dp"},
        {"LLM_EP", "--llm-ep"},
        {"LLM_EXPT_TP", "--llm-expt-tp"},
        {"LLM_EXPT_DP", "--llm-expt-dp"},
        {"LLM_OFFSET", "--llm-offset"},
        {"MICRO_BATCH_SIZE", "--micro-batch-size"},
        {"MBS", "--micro-batch-size"},
        {"GLOBAL_BATCH_SIZE", "--global-batch-size"},
        {"GBS", "--global-batch-size"},
        {"NUM_MICROBATCHES", "--num-microbatches"},
        {"NUM_EXPERTS", "--num-experts"},
        {"PACKING_BUFFER_SIZE", "--packing-buffer-size"},
        {"NUM_WORKERS", "--num-workers"},
    };
    if (!hands_over(sh))
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct rules_variable *v = rules_shell_variable(sh, names[i][0], strlen(names[i][0]));
        char *path = s2s_xasprintf("MODEL_ARGS.%s", names[i][1]);
        if (v && v->words.n == 1)
            rules_shell_set(roots, path, v->words.items[0].text, &v->words.items[0]);
        free(path);
    }
    s2s_conf_set_text(roots[0], "HANDED_OVER", "true", S2S_CONF_FROM_DERIVED, "derived", NULL);
}

/* Flags of `text` as words behind those of the command. */
static void add_parts(struct rules_words *out, const struct rules_word *word)
{
    char *copy = s2s_xstrdup(word->text), *rest = copy;
    for (char *part; (part = strsep(&rest, " \t\n")) != NULL;)
        if (*part)
            rules_words_add(out, s2s_xstrdup(part), word->line, word->column, word->script);
    free(copy);
}

static void add_all_parts(struct rules_words *out, const struct rules_words *words)
{
    for (size_t i = 0; i < words->n; i++)
        add_parts(out, &words->items[i]);
}

/* what a variable holds of a command: 0 nothing, 1 some of the flags, 2 program and flags */
static int held_by(const struct rules_variable *v)
{
    struct rules_words parts = {0};
    bool marked = false, flags = false, program = false;
    add_all_parts(&parts, &v->words);
    for (size_t i = 0; i < parts.n; i++) {
        size_t len = strlen(parts.items[i].text);
        marked |= rules_is_marker(parts.items[i].text);
        flags |= !strncmp(parts.items[i].text, "--", 2);
        program |= len > 3 && !strcmp(parts.items[i].text + len - 3, ".py");
    }
    rules_words_release(&parts);
    return marked && program ? 2 : flags;
}

/*
 * No command of the script carries the flags. One variable may hold the whole command, for a batch
 * system or a function to run; or the script is a part for others to read, and its variables hold
 * some of the flags: true, and what is not among them is not known.
 */
static bool take_variables(struct rules_shell *sh)
{
    bool marked = false;
    for (size_t i = 0; i < sh->n_variables && !sh->command.n; i++)
        if (held_by(&sh->variables[i]) == 2)
            add_all_parts(&sh->command, &sh->variables[i].words);
    if (sh->command.n)
        return false;
    for (size_t i = 0; i < sh->n_variables; i++)
        if (held_by(&sh->variables[i]))
            add_all_parts(&sh->command, &sh->variables[i].words);
    for (size_t i = 0; i < sh->command.n; i++)
        marked |= rules_is_marker(sh->command.items[i].text);
    if (!marked)
        rules_words_release(&sh->command);
    return marked;
}

/* Whether words of unknown number stand among the flags: "$@", an array that is not known here. */
static bool is_open(const struct rules_words *command, size_t program)
{
    for (size_t i = program + 1; i < command->n; i++)
        if (command->items[i].text[0] == '$' && strncmp(command->items[i - 1].text, "--", 2) != 0)
            return true;
    return false;
}

/* The script's own variables out of which the number of ranks is made. */
static void add_ranks_from(struct rules_shell *sh, struct s2s_conf *const *roots)
{
    static const char *const names[] = {"NUM_NODES",      "NNODES",   "N_NODES", "GPUS_PER_NODE",
                                        "NPROC_PER_NODE", "NUM_GPUS", NULL};
    for (int i = 0; names[i]; i++) {
        const struct rules_variable *v = rules_shell_variable(sh, names[i], strlen(names[i]));
        bool number = v && v->words.n == 1 && *v->words.items[0].text &&
                      !v->words.items[0].text[strspn(v->words.items[0].text, "0123456789")];
        char *path = s2s_xasprintf("RANKS_FROM.%s", names[i]);
        if (number)
            rules_shell_set(roots, path, v->words.items[0].text, &v->words.items[0]);
        free(path);
    }
}

static void add_command(struct rules_shell *sh, struct s2s_conf *const *roots)
{
    bool part = !sh->command.n && !hands_over(sh) && take_variables(sh);
    size_t program = program_of(&sh->command);
    if (part)
        s2s_conf_set_text(roots[0], "PART", "true", S2S_CONF_FROM_DERIVED, "derived", NULL);
    rules_shell_batch(sh, roots[0], program);
    if (sh->command.n) {
        rules_shell_launcher(sh, roots, program);
        rules_shell_flags(roots, "MODEL_ARGS", sh->command.items + program,
                          sh->command.items + sh->command.n);
        rules_shell_set(roots, "PROGRAM", sh->command.items[program].text,
                        &sh->command.items[program]);
        if (is_open(&sh->command, program))
            s2s_conf_set_text(roots[0], "OPEN", "true", S2S_CONF_FROM_DERIVED, "derived", NULL);
    } else {
        add_handed_over(sh, roots);
    }
    add_ranks_from(sh, roots);
    if (sh->failed.text)
        rules_shell_set(roots, "GUARD", sh->failed.text, &sh->failed.at);
}

struct s2s_conf *rules_shell_result(struct rules_shell *sh, struct s2s_conf *const *roots)
{
    for (size_t i = 0; i < sh->n_variables; i++) {
        const struct rules_variable *v = &sh->variables[i];
        char *path = s2s_xasprintf("ENV_VARS.%s", v->name);
        if (v->exported && v->words.n == 1)
            rules_shell_set(roots, path, v->words.items[0].text, &v->words.items[0]);
        free(path);
    }
    add_command(sh, roots);
    return roots[0];
}

struct s2s_conf *s2s_rules_read_argv(char *const *argv, size_t n)
{
    struct s2s_buf line = S2S_BUF_INIT;
    struct rules_words words = {0};
    for (size_t i = 0; i < n; i++) {
        s2s_buf_puts(&line, i ? " " : "");
        rules_words_add(&words, s2s_xstrdup(argv[i]), 1, (int)line.len + 1, 0);
        s2s_buf_puts(&line, argv[i]);
    }
    struct s2s_conf *root =
        s2s_conf_new_text(S2S_CONF_FROM_CLI, "command line", line.data ? line.data : "", line.len);
    struct rules_shell sh = {.command = words};
    s2s_conf_set_text(root, "MODEL_ARGS", "{}", S2S_CONF_FROM_DERIVED, "derived", NULL);
    add_command(&sh, &root);
    rules_words_release(&words);
    s2s_buf_release(&line);
    return root;
}
