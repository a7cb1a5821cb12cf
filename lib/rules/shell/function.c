/*
 * Functions of a launch script, and the scopes that they and subshells are. A body is read where
 * it is defined, for the command that it may hold, and again at each call, with the variables of
 * that place.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/rules/shell/shell_internal.h"

/* of one reader: calls in calls double at each step */
enum { MAX_CALLS = 1000, MAX_DEPTH = 20 };

/* ---- scopes ---- */

struct rules_kept rules_shell_kept(struct rules_shell *sh, const char *name, size_t len)
{
    const struct rules_variable *v = rules_shell_variable(sh, name, len);
    struct rules_kept k = {.name = s2s_xstrndup(name, len),
                           .existed = v != NULL,
                           .array = v && v->array,
                           .exported = v && v->exported};
    for (size_t i = 0; v && i < v->words.n; i++)
        sh->n_spent += strlen(v->words.items[i].text);
    if (v && sh->n_spent <= RULES_SHELL_SPENT)
        rules_words_copy(&k.before, &v->words);
    return k;
}

void rules_shell_keep(struct rules_shell *sh, const char *name, size_t len, bool local)
{
    if (sh->scope == RULES_SCOPE_NONE || sh->dead)
        return;
    for (size_t i = sh->outer_kept; i < sh->n_kept; i++)
        if (strlen(sh->kept[i].name) == len && !memcmp(sh->kept[i].name, name, len)) {
            sh->kept[i].local |= local;
            return;
        }
    s2s_grow(&sh->kept, sh->n_kept, &sh->cap_kept, sizeof *sh->kept);
    sh->kept[sh->n_kept] = rules_shell_kept(sh, name, len);
    sh->kept[sh->n_kept++].local = local;
}

void rules_shell_put_back(struct rules_shell *sh, struct rules_kept *k)
{
    struct rules_variable *v = rules_shell_variable(sh, k->name, strlen(k->name));
    if (!v)
        return;
    rules_words_release(&v->words);
    v->words = k->before;
    v->array = k->array;
    v->exported = k->exported;
    k->before = (struct rules_words){0};
    if (!k->existed)
        v->len = 0; /* no name is as short */
}

/* What stays changed behind a call is the business of the scope around it: true if it takes k. */
static bool hand_out(struct rules_shell *sh, size_t outer, const struct rules_kept *k)
{
    for (size_t i = outer; i < sh->outer_kept; i++)
        if (!strcmp(sh->kept[i].name, k->name))
            return false;
    return true;
}

void rules_shell_leave(struct rules_shell *sh, size_t outer)
{
    size_t n = sh->outer_kept;
    for (size_t i = sh->outer_kept; i < sh->n_kept; i++) {
        struct rules_kept *k = &sh->kept[i];
        bool back = sh->scope != RULES_SCOPE_CALL || k->local;
        if (back)
            rules_shell_put_back(sh, k);
        if (!back && outer < SIZE_MAX && hand_out(sh, outer, k)) {
            sh->kept[n++] = *k;
            continue;
        }
        rules_words_release(&k->before);
        free(k->name);
    }
    sh->n_kept = n;
}

/* ---- functions ---- */

static struct rules_function *find(const struct rules_shell *sh, const char *name)
{
    for (size_t i = sh->n_functions; i-- > 0;)
        if (!strcmp(sh->functions[i].name, name))
            return &sh->functions[i];
    return NULL;
}

bool rules_shell_define(struct rules_shell *sh, const struct rules_words *words)
{
    const bool named = words->n == 2 && !strcmp(words->items[0].text, "function");
    const bool brackets = *sh->at == '(' && sh->end - sh->at > 1 && sh->at[1] == ')';
    const bool body = named && (*sh->at == '{' || *sh->at == '\n');
    if (!body && !(brackets && (named || words->n == 1)))
        return false;
    sh->at += brackets ? 2 : 0;
    rules_shell_skip(sh, true);
    sh->next_scope = RULES_SCOPE_DEFINITION;
    if (sh->dead || sh->n_definitions)
        return true;
    const char *name = words->items[words->n - 1].text;
    struct rules_function *f = find(sh, name);
    if (!f) {
        s2s_grow(&sh->functions, sh->n_functions, &sh->cap_functions, sizeof *sh->functions);
        f = &sh->functions[sh->n_functions++];
        *f = (struct rules_function){.name = s2s_xstrdup(name)};
    }
    f->begin = sh->at;
    f->end = NULL;
    f->line_start = sh->line_start;
    f->line = sh->line;
    f->n_inner_bytes = sh->n_inner_bytes;
    f->script = sh->script;
    f->maybe = sh->conditional;
    sh->next_function = (size_t)(f - sh->functions) + 1;
    return true;
}

static void run(struct rules_shell *sh, struct rules_function *f, bool apart)
{
    const size_t which = (size_t)(f - sh->functions);
    const char *at = sh->at, *end = sh->end, *line_start = sh->line_start;
    const int line = sh->line, n_inner_bytes = sh->n_inner_bytes, script = sh->script;
    const int n_branches = sh->n_branches;
    if (sh->n_calls >= MAX_CALLS || sh->call_depth >= MAX_DEPTH)
        return;
    sh->n_calls++;
    sh->call_depth++;
    f->running = true;
    sh->at = f->begin;
    sh->end = f->end;
    sh->line_start = f->line_start;
    sh->line = f->line;
    sh->n_inner_bytes = f->n_inner_bytes;
    sh->script = f->script;
    sh->next_scope = apart ? RULES_SCOPE_SUBSHELL : RULES_SCOPE_CALL;
    rules_shell_read(sh);
    rules_shell_unwind(sh, n_branches);
    sh->next_scope = RULES_SCOPE_NONE;
    sh->at = at;
    sh->end = end;
    sh->line_start = line_start;
    sh->line = line;
    sh->n_inner_bytes = n_inner_bytes;
    sh->script = script;
    sh->call_depth--;
    sh->functions[which].running = false;
}

void rules_shell_call(struct rules_shell *sh, const struct rules_words *words)
{
    static const char *const before[] = {"if", "elif", "while", "until", "!", "time", NULL};
    static const char *const texts[] = {"echo", "printf", "for", "case", "select", NULL};
    const char c = rules_shell_terminator(sh);
    const bool apart = (c == '|' || c == '&') && !(sh->end - sh->at > 1 && sh->at[1] == c);
    bool sure = true;
    if (sh->dead || sh->n_definitions || (words->n && rules_is_any_of(words->items[0].text, texts)))
        return;
    for (size_t i = 0; i < words->n; i++) {
        const char *word = words->items[i].text;
        struct rules_function *f = find(sh, word);
        if (f && f->end && !f->running) {
            /* another command may run it, or may not: trap, timeout, .. */
            const bool doubted = !sure || f->maybe;
            sh->conditional += doubted;
            run(sh, f, apart);
            sh->conditional -= doubted;
            return;
        }
        sure = sure && rules_is_any_of(word, before);
    }
}
