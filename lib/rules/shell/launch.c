/* The launchers of a script, and what their options say: how many ranks, and in what environment.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/rules/rules_internal.h"
#include "lib/rules/shell/shell_internal.h"

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
static void add_torchrun(struct s2s_conf *const *roots, const struct rules_shell *sh,
                         size_t program)
{
    const struct rules_words *command = &sh->command;
    static const struct {
        const char *flag, *name;
    } flags[] = {{"nproc_per_node", "GPUS_PER_NODE"}, {"nnodes", "NUM_NODES"}};
    struct s2s_conf *root = roots[0];
    s2s_conf_set_text(root, "LAUNCH", "{}", S2S_CONF_FROM_DERIVED, "derived", NULL);
    rules_shell_flags(roots, "LAUNCH", command->items, command->items + program);
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

static void set_count(struct s2s_conf *root, const char *path, int64_t value, int line)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    if (value > 0)
        s2s_conf_set_scalar(root, path, text, line > 0 ? line : 1, 1, NULL);
}

void rules_shell_batch(struct rules_shell *sh, struct s2s_conf *root, size_t program)
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

enum launcher {
    LAUNCHER_NONE,
    LAUNCHER_MPI,
    LAUNCHER_SRUN,
    LAUNCHER_DEEPSPEED,
    LAUNCHER_ACCELERATE
};

/* The command's name without its folder. */
static const char *base_name(const char *word)
{
    const char *slash = strrchr(word, '/');
    return slash ? slash + 1 : word;
}

static enum launcher launcher_of(const char *word)
{
    static const struct {
        const char *name;
        enum launcher launcher;
    } names[] = {
        {"mpirun", LAUNCHER_MPI},          {"mpiexec", LAUNCHER_MPI},
        {"mpiexec.hydra", LAUNCHER_MPI},   {"orterun", LAUNCHER_MPI},
        {"prterun", LAUNCHER_MPI},         {"srun", LAUNCHER_SRUN},
        {"deepspeed", LAUNCHER_DEEPSPEED}, {"accelerate", LAUNCHER_ACCELERATE},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(base_name(word), names[i].name))
            return names[i].launcher;
    return LAUNCHER_NONE;
}

/* What an option of a launcher says. A rank is a process. */
enum says {
    SAYS_RANKS,
    SAYS_RANKS_PER_NODE,
    SAYS_NODES,
    SAYS_VARIABLE,
    SAYS_PAIR,
    SAYS_EXPORT,
    SAYS_MAP
};

static const struct {
    enum launcher launcher;
    const char *option;
    enum says says;
} options[] = {
    {LAUNCHER_MPI, "-np", SAYS_RANKS},
    {LAUNCHER_MPI, "--np", SAYS_RANKS},
    {LAUNCHER_MPI, "-n", SAYS_RANKS},
    {LAUNCHER_MPI, "--n", SAYS_RANKS},
    {LAUNCHER_MPI, "-c", SAYS_RANKS},
    {LAUNCHER_MPI, "-N", SAYS_RANKS_PER_NODE},
    {LAUNCHER_MPI, "-npernode", SAYS_RANKS_PER_NODE},
    {LAUNCHER_MPI, "--npernode", SAYS_RANKS_PER_NODE},
    {LAUNCHER_MPI, "-ppn", SAYS_RANKS_PER_NODE},
    {LAUNCHER_MPI, "-x", SAYS_VARIABLE}, /* Open MPI: NAME=VALUE, or NAME of the script */
    {LAUNCHER_MPI, "-genv", SAYS_PAIR},  /* MPICH: NAME VALUE */
    {LAUNCHER_MPI, "-env", SAYS_PAIR},
    {LAUNCHER_MPI, "--map-by", SAYS_MAP}, /* ppr:8:node */
    {LAUNCHER_MPI, "-map-by", SAYS_MAP},
    {LAUNCHER_SRUN, "--export", SAYS_EXPORT}, /* ALL,NAME=VALUE,.. */
    {LAUNCHER_DEEPSPEED, "--num_gpus", SAYS_RANKS_PER_NODE},
    {LAUNCHER_DEEPSPEED, "--num_nodes", SAYS_NODES},
    {LAUNCHER_ACCELERATE, "--num_processes", SAYS_RANKS},
    {LAUNCHER_ACCELERATE, "--num-processes", SAYS_RANKS},
    {LAUNCHER_ACCELERATE, "--num_machines", SAYS_NODES},
    {LAUNCHER_ACCELERATE, "--num-machines", SAYS_NODES},
};

/* Where a launcher's own words end: at the command that it starts. */
static bool is_started(const char *word)
{
    static const char *const programs[] = {"python",  "torchrun",    "numactl",   "nsys",
                                           "ncu",     "bash",        "sh",        "env",
                                           "taskset", "singularity", "apptainer", NULL};
    const char *name = base_name(word);
    for (int i = 0; programs[i]; i++)
        if (!strncmp(name, programs[i], strlen(programs[i])) &&
            !isalpha((unsigned char)name[strlen(programs[i])]))
            return true;
    return launcher_of(word) != LAUNCHER_NONE;
}

struct launch {
    const struct rules_shell *sh;
    struct s2s_conf *const *roots;
    int64_t ranks, per_node, nodes;
    int line;
};

/* NAME=VALUE, or NAME with the value that the script gave it. */
static void set_variable(const struct launch *l, const char *text, size_t len,
                         const struct rules_word *at)
{
    const char *equals = memchr(text, '=', len);
    size_t name_len = equals ? (size_t)(equals - text) : len;
    if (!name_len || rules_name_len(text, text + len) != name_len)
        return;
    const struct rules_variable *v = equals ? NULL : rules_shell_variable(l->sh, text, name_len);
    char *path = s2s_xasprintf("ENV_VARS.%.*s", (int)name_len, text);
    char *value = equals ? s2s_xstrndup(equals + 1, (size_t)(text + len - equals - 1)) : NULL;
    if (equals)
        rules_shell_set(l->roots, path, value, at);
    else if (v && v->words.n == 1)
        rules_shell_set(l->roots, path, v->words.items[0].text, &v->words.items[0]);
    free(value);
    free(path);
}

static void set_export(const struct launch *l, const char *text, const struct rules_word *at)
{
    for (size_t len; *text; text += len + (text[len] == ',')) {
        len = strcspn(text, ",");
        if (memchr(text, '=', len))
            set_variable(l, text, len, at);
    }
}

static void take_option(struct launch *l, enum says says, const char *value, const char *second,
                        const struct rules_word *at)
{
    char *pair;
    l->line = at->line;
    switch (says) {
    case SAYS_RANKS:
        l->ranks = rules_count_of(value);
        break;
    case SAYS_RANKS_PER_NODE:
        l->per_node = rules_count_of(value);
        break;
    case SAYS_NODES:
        l->nodes = rules_count_of(value);
        break;
    case SAYS_VARIABLE:
        set_variable(l, value, strlen(value), at);
        break;
    case SAYS_PAIR:
        pair = s2s_xasprintf("%s=%s", value, second);
        set_variable(l, pair, strlen(pair), at);
        free(pair);
        break;
    case SAYS_EXPORT:
        set_export(l, value, at);
        break;
    case SAYS_MAP:
        if (!strncmp(value, "ppr:", 4) && strstr(value, ":node")) {
            pair = s2s_xstrndup(value + 4, strcspn(value + 4, ":"));
            l->per_node = rules_count_of(pair);
            free(pair);
        }
        break;
    }
}

/* The options of the launcher at `begin`; returns where the next launcher may stand. */
static size_t read_launcher(struct launch *l, enum launcher launcher, size_t begin, size_t program)
{
    const struct rules_word *words = l->sh->command.items;
    size_t i = begin + 1;
    for (; i < program && !is_started(words[i].text); i++) {
        const char *equals = strchr(words[i].text, '=');
        size_t len = equals ? (size_t)(equals - words[i].text) : strlen(words[i].text);
        for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
            if (options[k].launcher != launcher || strlen(options[k].option) != len ||
                memcmp(options[k].option, words[i].text, len) != 0)
                continue;
            const char *value = equals ? equals + 1 : i + 1 < program ? words[i + 1].text : "";
            const char *second = i + 2 < program ? words[i + 2].text : "";
            take_option(l, options[k].says, value, second, &words[i]);
        }
    }
    return i;
}

/* deepspeed without hosts starts on this machine alone. */
static bool names_hosts(const struct rules_shell *sh, size_t program)
{
    for (size_t i = 0; i < program; i++) {
        const char *word = sh->command.items[i].text;
        if (strstr(word, RULES_SHELL_UNKNOWN) || strstr(word, "hostfile") ||
            strstr(word, "--include") || !strcmp(word, "-H"))
            return true;
    }
    return false;
}

/* Launchers that are not torchrun, unless it stands after them and starts the ranks. */
static void add_others(struct s2s_conf *const *roots, const struct rules_shell *sh, size_t program)
{
    struct launch l = {.sh = sh, .roots = roots};
    bool torchrun = false;
    for (size_t i = 0; i < program; i++)
        torchrun |= is_torchrun(sh->command.items[i].text);
    for (size_t i = 0; i < program;) {
        enum launcher launcher = launcher_of(sh->command.items[i].text);
        i = launcher ? read_launcher(&l, launcher, i, program) : i + 1;
        if (launcher == LAUNCHER_DEEPSPEED && !l.nodes && l.per_node && !names_hosts(sh, program))
            l.nodes = 1;
    }
    if (torchrun || sh->command_maybe)
        return;
    if (!l.ranks)
        l.ranks = l.nodes * l.per_node;
    set_count(roots[0], "BATCH.world", l.ranks, l.line);
    set_count(roots[0], "BATCH.tasks_per_node",
              l.per_node                          ? l.per_node
              : l.nodes && l.ranks % l.nodes == 0 ? l.ranks / l.nodes
                                                  : 0,
              l.line);
}

void rules_shell_launcher(const struct rules_shell *sh, struct s2s_conf *const *roots,
                          size_t program)
{
    add_torchrun(roots, sh, program);
    add_others(roots, sh, program);
}
