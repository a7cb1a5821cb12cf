/* Which branches of a launch script are taken, as far as its own text says. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/rules/shell/shell_internal.h"

/* [ A = B ], [[ A != B ]], [ -z A ], [ -n A ] and tests of integers, all words known: 1 or 0;
 * -1 for any other test. */
static int test_holds(const char *const *words, size_t n)
{
    const char *parts[8] = {"if"};
    bool not = n > 2 && !strcmp(words[1], "!");
    if (n - not < 3 || n - not > 7)
        return -1;
    for (size_t i = 0, k = 1; i < n; i++) {
        if (not &&i == 1)
            continue;
        if (strstr(words[i], RULES_SHELL_UNKNOWN) || (k > 1 && strpbrk(words[i], "*?[")))
            return -1;
        parts[k++] = words[i];
    }
    n += 1 - (size_t) not ;
    int holds = rules_test_holds(parts, n);
    bool bracket = !strcmp(parts[1], "[") || !strcmp(parts[1], "[[");
    bool equal = n == 6 && (!strcmp(parts[3], "=") || !strcmp(parts[3], "=="));
    bool differ = n == 6 && !strcmp(parts[3], "!=");
    if (holds < 0 && bracket && n == 5 && (!strcmp(parts[2], "-z") || !strcmp(parts[2], "-n")))
        holds = (*parts[3] == 0) == (parts[2][1] == 'z');
    else if (holds < 0 && bracket && (equal || differ))
        holds = (strcmp(parts[2], parts[4]) == 0) == equal;
    return holds < 0 ? -1 : holds != not ;
}

int rules_shell_status(const struct rules_words *words)
{
    static const char *const openers[] = {"if", "elif", "while", "until", NULL};
    static const char *const good[] = {"true", ":", "echo", "export", "cd", "mkdir", NULL};
    const char *parts[16];
    size_t n = words->n < 16 ? words->n : 0, at = 0;
    bool not = false;
    for (size_t i = 0; i < n; i++)
        parts[i] = words->items[i].text;
    at += n && rules_is_any_of(parts[0], openers);
    for (; at < n && !strcmp(parts[at], "!"); at++)
        not = !not ;
    if (at == n)
        return words->n ? -1 : 1;
    int status = rules_is_any_of(parts[at], good) ? 1
                 : !strcmp(parts[at], "false")    ? 0
                                                  : test_holds(parts + at, n - at);
    return status < 0 ? -1 : status != not ;
}

static void set_taken(struct rules_shell *sh, struct rules_branch *b, enum rules_taken taken)
{
    int dead = (taken == RULES_DEAD) - (b->taken == RULES_DEAD);
    sh->conditional += (taken == RULES_MAYBE) - (b->taken == RULES_MAYBE);
    sh->dead += dead;
    sh->dead_lists += b->list ? dead : 0;
    b->taken = taken;
}

static enum rules_taken taken_if(int holds)
{
    return holds < 0 ? RULES_MAYBE : holds ? RULES_LIVE : RULES_DEAD;
}

/* The innermost branch; NULL if there is none, or it is too deep to be followed. */
static struct rules_branch *innermost(struct rules_shell *sh)
{
    bool followed = sh->n_branches > 0 && sh->n_branches <= RULES_SHELL_BRANCHES;
    return followed ? &sh->branches[sh->n_branches - 1] : NULL;
}

static void open_branch(struct rules_shell *sh, struct rules_branch branch, int holds)
{
    if (sh->n_branches >= RULES_SHELL_BRANCHES) {
        sh->n_branches++; /* MAYBE as the last that has a place, if that one is */
        return;
    }
    struct rules_branch *b = &sh->branches[sh->n_branches++];
    *b = branch;
    b->taken = RULES_LIVE;
    b->scope = branch.subshell && sh->next_scope != RULES_SCOPE_DEFINITION ? RULES_SCOPE_SUBSHELL
                                                                           : sh->next_scope;
    b->function = sh->next_function;
    sh->next_scope = RULES_SCOPE_NONE;
    sh->next_function = 0;
    if (b->scope) {
        b->outer_scope = sh->scope;
        b->outer_kept = sh->outer_kept;
        b->outer_conditional = sh->conditional;
        sh->scope = b->scope;
        sh->outer_kept = sh->n_kept;
        sh->n_definitions += b->scope == RULES_SCOPE_DEFINITION;
    }
    set_taken(sh, b, taken_if(holds));
}

static void close_branch(struct rules_shell *sh)
{
    struct rules_branch *b = innermost(sh);
    if (b)
        set_taken(sh, b, RULES_LIVE);
    if (b && b->scope) {
        rules_shell_leave(sh, b->outer_scope ? b->outer_kept : SIZE_MAX);
        sh->scope = b->outer_scope;
        sh->outer_kept = b->outer_kept;
        sh->n_definitions -= b->scope == RULES_SCOPE_DEFINITION;
    }
    if (b && b->function)
        sh->functions[b->function - 1].end = sh->at;
    if (b)
        free(b->subject);
    sh->n_branches -= sh->n_branches > 0;
}

void rules_shell_unwind(struct rules_shell *sh, int n)
{
    while (sh->n_branches > n)
        close_branch(sh);
}

void rules_shell_return(struct rules_shell *sh)
{
    int i = sh->n_branches - 1;
    if (sh->dead || i >= RULES_SHELL_BRANCHES)
        return;
    while (i >= 0 && (!sh->branches[i].scope || sh->branches[i].scope == RULES_SCOPE_SUBSHELL))
        i--;
    struct rules_branch *b = i < 0 ? NULL : &sh->branches[i];
    if (b)
        set_taken(sh, b,
                  sh->conditional > b->outer_conditional + (b->taken == RULES_MAYBE) ? RULES_MAYBE
                                                                                     : RULES_DEAD);
}

/* What stands behind the condition, or behind `else` (holds: 1). */
static void choose(struct rules_shell *sh, struct rules_branch *b, int holds)
{
    holds = b->maybe ? -1 : holds; /* then nobody knows about the others either */
    set_taken(sh, b, b->done ? RULES_DEAD : taken_if(holds));
    b->done |= holds == 1;
    b->maybe |= !b->done && holds < 0;
    b->condition = false;
}

void rules_shell_then(struct rules_shell *sh)
{
    struct rules_branch *b = innermost(sh);
    if (b && b->condition)
        choose(sh, b, b->status);
}

void rules_shell_join(struct rules_shell *sh, int status, char op)
{
    struct rules_branch *b = innermost(sh);
    struct rules_branch *list = b && b->list ? b : NULL;
    if (status == RULES_NO_COMMAND && !list)
        return;
    if (list) /* a command that did not run leaves the status as it was */
        status = status == RULES_NO_COMMAND  ? list->status
                 : list->taken == RULES_LIVE ? status
                 : list->taken == RULES_DEAD ? list->status
                                             : -1;
    int runs = status < 0 ? -1 : (status == 1) == (op == '&');
    if (op && list)
        set_taken(sh, list, taken_if(runs));
    else if (op && sh->n_branches < RULES_SHELL_BRANCHES)
        open_branch(sh, (struct rules_branch){.list = true}, runs);
    else if (list)
        close_branch(sh);
    if ((b = innermost(sh)) && (b->list || b->condition))
        b->status = status;
}

void rules_shell_open(struct rules_shell *sh)
{
    open_branch(sh, (struct rules_branch){.subshell = true}, 1);
}

void rules_shell_close(struct rules_shell *sh)
{
    const struct rules_branch *b = innermost(sh);
    if (b && b->subshell)
        close_branch(sh);
}

/* ---- case ---- */

/* What is true when a loop is read may not be so the next time. */
static bool in_loop(const struct rules_shell *sh)
{
    for (int i = 0; i < sh->n_branches && i < RULES_SHELL_BRANCHES; i++)
        if (sh->branches[i].loop)
            return true;
    return false;
}

static void open_case(struct rules_shell *sh, const struct rules_words *words)
{
    const bool one = words->n == 3 && !strcmp(words->items[2].text, "in");
    open_branch(sh, (struct rules_branch){0}, -1);
    struct rules_branch *b = innermost(sh);
    if (!b)
        return;
    b->is_case = true;
    b->pattern = !strcmp(words->items[words->n - 1].text, "in");
    b->maybe = !b->pattern;
    if (one && !in_loop(sh) && !strstr(words->items[1].text, RULES_SHELL_UNKNOWN))
        b->subject = s2s_xstrdup(words->items[1].text);
}

bool rules_shell_at_pattern(struct rules_shell *sh)
{
    const struct rules_branch *b = innermost(sh);
    return b && b->is_case && b->pattern;
}

int rules_shell_matches(struct rules_shell *sh, const char *s, const char *end)
{
    const char *subject = innermost(sh)->subject;
    struct s2s_buf text = S2S_BUF_INIT;
    bool quoted = false;
    for (const char *at = s; at < end; at++)
        quoted |= strchr("'\"\\", *at) != NULL;
    s2s_buf_puts(&text, "");
    rules_shell_expand(sh, &text, s, end);
    const bool glob = strpbrk(text.data, "*?[\\") != NULL;
    int holds = -1;
    if (!strcmp(text.data, "*") && !quoted)
        holds = 1;
    else if (subject && !strstr(text.data, RULES_SHELL_UNKNOWN) && !(quoted && glob))
        holds = glob ? fnmatch(text.data, subject, 0) == 0 : strcmp(text.data, subject) == 0;
    s2s_buf_release(&text);
    return holds;
}

void rules_shell_matched(struct rules_shell *sh, int holds)
{
    struct rules_branch *b = innermost(sh);
    b->pattern = false;
    choose(sh, b, holds);
}

void rules_shell_next_case(struct rules_shell *sh, bool falls)
{
    struct rules_branch *b = innermost(sh);
    if (!b || !b->is_case)
        return;
    b->pattern = true;
    b->maybe |= falls;
    b->done &= !falls;
}

void rules_shell_follow(struct rules_shell *sh, const struct rules_words *words)
{
    static const char *const openers[] = {"for", "while", "until", NULL};
    static const char *const closers[] = {"fi", "esac", "done", NULL};
    const char *first = words->n ? words->items[0].text : "";
    struct rules_branch *b = innermost(sh);
    if (!strcmp(first, "if")) {
        open_branch(sh, (struct rules_branch){.condition = true, .status = -1}, -1);
    } else if (!strcmp(first, "elif") && b) {
        set_taken(sh, b, b->done ? RULES_DEAD : RULES_MAYBE);
        b->condition = true;
        b->status = -1;
    } else if (!strcmp(first, "else") && b) {
        choose(sh, b, 1);
    } else if (!strcmp(first, "{")) {
        open_branch(sh, (struct rules_branch){.brace = true}, 1);
    } else if (!strcmp(first, "case")) {
        open_case(sh, words);
    } else if (rules_is_any_of(first, openers)) {
        open_branch(sh, (struct rules_branch){.loop = true}, -1);
    } else if (rules_is_any_of(first, closers) || (!strcmp(first, "}") && b && b->brace)) {
        close_branch(sh);
    }
}
