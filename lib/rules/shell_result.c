/* What a launch script comes to: its flags, its environment, its ranks, as one config. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/rules/rules_internal.h"
#include "lib/rules/shell_internal.h"

/* A value with its place, which may be in another script than the root's. */
static void set_word(struct s2s_conf *const *roots, const char *path, const char *text,
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

/* "--flag value.." pairs of [begin, end) into the map at `prefix` */
static void add_flags(struct s2s_conf *const *roots, const char *prefix,
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
        set_word(roots, path.data, value.len || equals ? value.data : "true", place);
        s2s_buf_release(&path);
        s2s_buf_release(&value);
    }
}

static bool is_torchrun(const char *word)
{
    return strstr(word, "torchrun") || strstr(word, "torch.distributed");
}

/* Whether torchrun's flags are all known and name no number of nodes: it takes 1 then, where its
 * variable names none either. */
static bool one_node(const struct rules_shell *sh, size_t program)
{
    static const char variable[] = "PET_NNODES";
    const struct rules_words *command = &sh->command;
    bool torchrun = false, counted = false;
    if (rules_shell_variable(sh, variable, strlen(variable)))
        return false;
    for (size_t i = 0; i < program; i++) {
        const char *word = command->items[i].text;
        if (strstr(word, RULES_SHELL_UNKNOWN) || strcasestr(word, "nnodes"))
            return false;
        torchrun |= is_torchrun(word);
        counted |= !strncmp(word, "--nproc", 7);
    }
    return torchrun && counted;
}

/* torchrun's own flags stand before the program: they say how many ranks there are */
static void add_launcher(struct s2s_conf *const *roots, const struct rules_shell *sh,
                         size_t program)
{
    const struct rules_words *command = &sh->command;
    static const struct {
        const char *flag, *name;
    } flags[] = {{"nproc_per_node", "GPUS_PER_NODE"}, {"nnodes", "NUM_NODES"}};
    struct s2s_conf *root = roots[0];
    s2s_conf_set_text(root, "LAUNCH", "{}", S2S_CONF_FROM_DERIVED, "derived", NULL);
    add_flags(roots, "LAUNCH", command->items, command->items + program);
    if (!sh->command_maybe && one_node(sh, program))
        s2s_conf_set_text(root, "ENV_VARS.NUM_NODES", "1", S2S_CONF_FROM_DERIVED, "derived", NULL);
    const struct s2s_conf *launch = s2s_conf_key(root, "LAUNCH");
    for (size_t i = 0; launch && i < launch->n_items; i++) {
        char name[64];
        size_t n = 0;
        for (const char *s = launch->items[i]->key + 2; *s && n + 1 < sizeof name; s++)
            name[n++] = *s == '-' ? '_' : *s;
        name[n] = 0;
        if (!strcmp(name, "standalone"))
            s2s_conf_set_text(root, "ENV_VARS.NUM_NODES", "1", S2S_CONF_FROM_DERIVED, "derived",
                              NULL);
        for (size_t k = 0; k < 2; k++)
            if (!strcmp(flags[k].flag, name) && launch->items[i]->text) {
                char *path = s2s_xasprintf("ENV_VARS.%s", flags[k].name);
                s2s_conf_set(root, path, launch->items[i], NULL);
                free(path);
            }
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

static void set_count(struct s2s_conf *root, const char *path, int64_t value, int line)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    if (value > 0)
        s2s_conf_set_scalar(root, path, text, line > 0 ? line : 1, 1, NULL);
}

/* Ranks as the batch system starts them: one per task, unless torchrun starts them from there. */
static void add_batch(struct rules_shell *sh, struct s2s_conf *root, size_t program)
{
    struct rules_sbatch b = sh->batch;
    bool torchrun = false;
    const char *words[64];
    for (size_t i = 0; i < program; i++) {
        const char *word = sh->command.items[i].text;
        torchrun |= is_torchrun(word) || strstr(word, "nproc");
        size_t n = 0;
        for (size_t k = i + 1; !strcmp(word, "srun") && k < program && n < 64; k++)
            words[n++] = sh->command.items[k].text;
        rules_sbatch_words(&b, words, n, b.line);
    }
    set_count(root, "BATCH.nodes", b.nodes, b.line);
    set_count(root, "BATCH.gpus_per_node", b.gpus_per_node, b.line);
    if (torchrun)
        return;
    set_count(root, "BATCH.tasks_per_node", b.ntasks_per_node, b.line);
    set_count(root, "BATCH.world", b.ntasks > 0 ? b.ntasks : b.nodes * b.ntasks_per_node, b.line);
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
            set_word(roots, path, v->words.items[0].text, &v->words.items[0]);
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
            set_word(roots, path, v->words.items[0].text, &v->words.items[0]);
        free(path);
    }
}

static void add_command(struct rules_shell *sh, struct s2s_conf *const *roots)
{
    bool part = !sh->command.n && !hands_over(sh) && take_variables(sh);
    size_t program = program_of(&sh->command);
    if (part)
        s2s_conf_set_text(roots[0], "PART", "true", S2S_CONF_FROM_DERIVED, "derived", NULL);
    if (sh->command.n) {
        add_launcher(roots, sh, program);
        add_flags(roots, "MODEL_ARGS", sh->command.items + program,
                  sh->command.items + sh->command.n);
        set_word(roots, "PROGRAM", sh->command.items[program].text, &sh->command.items[program]);
        if (is_open(&sh->command, program))
            s2s_conf_set_text(roots[0], "OPEN", "true", S2S_CONF_FROM_DERIVED, "derived", NULL);
    } else {
        add_handed_over(sh, roots);
    }
    add_batch(sh, roots[0], program);
    add_ranks_from(sh, roots);
    if (sh->failed.text)
        set_word(roots, "GUARD", sh->failed.text, &sh->failed.at);
}

struct s2s_conf *rules_shell_result(struct rules_shell *sh, struct s2s_conf *const *roots)
{
    for (size_t i = 0; i < sh->n_variables; i++) {
        const struct rules_variable *v = &sh->variables[i];
        char *path = s2s_xasprintf("ENV_VARS.%s", v->name);
        if (v->exported && v->words.n == 1)
            set_word(roots, path, v->words.items[0].text, &v->words.items[0]);
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
