/* What a script's variables are: words, and what of them is in doubt. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/rules/rules_internal.h"
#include "lib/rules/shell/shell_internal.h"

#define UNKNOWN RULES_SHELL_UNKNOWN

enum { MAX_VARIABLES = 4000, MAX_WORDS = 20000 };

void rules_words_release(struct rules_words *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->items[i].text);
    free(w->items);
    *w = (struct rules_words){0};
}

void rules_words_add(struct rules_words *w, char *taken, int line, int column, int script)
{
    if (w->n >= MAX_WORDS) {
        free(taken);
        return;
    }
    s2s_grow(&w->items, w->n, &w->cap, sizeof *w->items);
    w->items[w->n++] = (struct rules_word){taken, line, column, script};
}

void rules_words_copy(struct rules_words *to, const struct rules_words *from)
{
    for (size_t i = 0; i < from->n; i++) {
        const struct rules_word *w = &from->items[i];
        rules_words_add(to, s2s_xstrdup(w->text), w->line, w->column, w->script);
    }
}

struct rules_variable *rules_shell_variable(const struct rules_shell *sh, const char *name,
                                            size_t len)
{
    for (size_t i = sh->n_variables; i-- > 0;)
        if (sh->variables[i].len == len && !memcmp(sh->variables[i].name, name, len))
            return &sh->variables[i];
    return NULL;
}

static struct rules_variable *make_variable(struct rules_shell *sh, const char *name, size_t len)
{
    struct rules_variable *v = rules_shell_variable(sh, name, len);
    for (size_t i = 0; !v && i < sh->n_variables; i++)
        if (!sh->variables[i].len) { /* gone with its scope */
            v = &sh->variables[i];
            free(v->name);
            *v = (struct rules_variable){.name = s2s_xstrndup(name, len), .len = len};
        }
    if (v || sh->n_variables >= MAX_VARIABLES)
        return v;
    s2s_grow(&sh->variables, sh->n_variables, &sh->cap_variables, sizeof *sh->variables);
    sh->variables[sh->n_variables] =
        (struct rules_variable){.name = s2s_xstrndup(name, len), .len = len};
    return &sh->variables[sh->n_variables++];
}

/* The flags of a text that may be there or not: they keep their names and lose their values. */
static bool add_doubted(struct s2s_buf *out, const char *text)
{
    bool any = false;
    char *copy = s2s_xstrdup(text), *rest = copy;
    for (char *part; (part = strsep(&rest, " \t\n")) != NULL;) {
        size_t len = strcspn(part, "=");
        if (strncmp(part, "--", 2) != 0 || !part[2] || memchr(part, '{', len))
            continue;
        s2s_buf_printf(out, "%s%.*s=" UNKNOWN, out->len ? " " : "", (int)len, part);
        any = true;
    }
    free(copy);
    return any;
}

/* A text assigned under a condition, nobody knows whether: what it has in common with the text
 * before it stays, the flags of both are in doubt, the rest is unknown. */
static char *doubted(struct rules_shell *sh, const char *text, const char *before)
{
    size_t same = before && !strncmp(text, before, strlen(before)) ? strlen(before) : 0;
    struct s2s_buf out = S2S_BUF_INIT;
    if (same && !text[same])
        return s2s_xstrdup(text);
    if (same && !isspace((unsigned char)text[same]) && !isspace((unsigned char)text[same - 1]))
        same = 0; /* 16 has nothing of 1 */
    sh->n_spent += strlen(text) + (before ? strlen(before) : 0);
    s2s_buf_add(&out, text, same);
    bool any = !same && before && add_doubted(&out, before);
    any |= add_doubted(&out, text + same);
    if (out.len > RULES_SHELL_VALUE) {
        s2s_buf_clear(&out);
        any = false;
    }
    if (!any)
        s2s_buf_printf(&out, "%s" UNKNOWN, out.len ? " " : "");
    return out.data;
}

/* Takes the words that a variable has now; `before`: those that it had. */
static void doubt(struct rules_shell *sh, struct rules_words *words,
                  const struct rules_words *before)
{
    bool one = words->n == 1 && before->n <= 1;
    size_t same = 0, n = words->n;
    sh->n_spent += (n + before->n) * sizeof *words->items;
    if (sh->n_spent > RULES_SHELL_SPENT) {
        rules_words_release(words);
        rules_words_add(words, s2s_xstrdup(UNKNOWN), sh->line, 1, sh->script);
        return;
    }
    while (same < n && same < before->n &&
           !strcmp(words->items[same].text, before->items[same].text))
        same++;
    for (size_t i = same; i < n; i++) {
        struct rules_word *w = &words->items[i];
        char *text = doubted(sh, w->text, one && before->n ? before->items[0].text : NULL);
        free(w->text);
        w->text = text;
    }
    for (size_t i = same; i < before->n && !one; i++) {
        const struct rules_word *w = &before->items[i];
        rules_words_add(words, doubted(sh, w->text, NULL), w->line, w->column, w->script);
    }
}

void rules_shell_assign_words(struct rules_shell *sh, const char *name, size_t len,
                              struct rules_words *words, bool append)
{
    static const struct rules_words none = {0};
    rules_shell_keep(sh, name, len, sh->local);
    struct rules_variable *v = sh->dead ? NULL : make_variable(sh, name, len);
    if (v && sh->conditional)
        doubt(sh, words, append ? &none : &v->words);
    if (v && !append)
        rules_words_release(&v->words);
    if (v)
        rules_words_copy(&v->words, words);
    rules_words_release(words);
}

void rules_shell_assign_number(struct rules_shell *sh, const char *name, int64_t value)
{
    struct rules_variable *v = value > 0 ? make_variable(sh, name, strlen(name)) : NULL;
    if (!v)
        return;
    rules_words_release(&v->words);
    rules_words_add(&v->words, s2s_xasprintf("%lld", (long long)value), sh->line, 1, sh->script);
}
