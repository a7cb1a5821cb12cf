/* What a word of a launch script comes to: quotes, variables, sums. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/rules/shell/shell_internal.h"

#define UNKNOWN RULES_SHELL_UNKNOWN

enum { MAX_DEPTH = 20 };

size_t rules_name_len(const char *s, const char *end)
{
    size_t n = 0;
    if (s >= end || (!isalpha((unsigned char)*s) && *s != '_'))
        return 0;
    while (s + n < end && (isalnum((unsigned char)s[n]) || s[n] == '_'))
        n++;
    return n;
}

const char *rules_past_close(const char *s, const char *end, char open, char close)
{
    int depth = 1;
    for (; s < end; s++) {
        if (*s == '\\' && s + 1 < end)
            s++;
        else if (*s == open)
            depth++;
        else if (*s == close && --depth == 0)
            return s + 1;
    }
    return end;
}

/* the value as one text, of an array the first word or all; unknown past a limit; NULL if it is not
 * set */
static char *value_of(struct rules_shell *sh, const char *name, size_t len, bool all)
{
    const struct rules_variable *v = rules_shell_variable(sh, name, len);
    struct s2s_buf text = S2S_BUF_INIT;
    if (!v)
        return NULL;
    s2s_buf_puts(&text, "");
    for (size_t i = 0;
         i < (v->array && !all ? v->words.n > 0 : v->words.n) && sh->n_spent <= RULES_SHELL_SPENT;
         i++) {
        s2s_buf_puts(&text, i ? " " : "");
        s2s_buf_puts(&text, v->words.items[i].text);
    }
    sh->n_spent += text.len + 1;
    if (text.len > RULES_SHELL_VALUE || sh->n_spent > RULES_SHELL_SPENT) {
        s2s_buf_clear(&text);
        s2s_buf_puts(&text, UNKNOWN);
    }
    return text.data ? text.data : s2s_xstrdup("");
}

/* ${..}: s is behind the brace, end at the closing one */
static void expand_braces(struct rules_shell *sh, struct s2s_buf *out, const char *s,
                          const char *end)
{
    size_t len = rules_name_len(s, end);
    const char *op = s + len;
    if (!len) {
        s2s_buf_puts(out, UNKNOWN);
        return;
    }
    const bool all =
        end - op >= 3 && op[0] == '[' && (op[1] == '@' || op[1] == '*') && op[2] == ']';
    op += all ? 3 : 0;
    char *value = value_of(sh, s, len, all);
    bool colon = op < end && *op == ':';
    const char *kind = op + colon;
    bool empty = !value || (colon && !*value);
    if (op == end) {
        s2s_buf_puts(out, value ? value : UNKNOWN);
    } else if (kind < end && (*kind == '-' || *kind == '=')) {
        size_t before = out->len;
        if (empty)
            rules_shell_expand(sh, out, kind + 1, end);
        else
            s2s_buf_puts(out, value);
        if (empty && *kind == '=')
            rules_shell_assign(sh, s, len, out->data ? out->data + before : "");
    } else if (kind < end && *kind == '+') {
        if (value && strstr(value, UNKNOWN))
            s2s_buf_puts(out, UNKNOWN);
        else if (!empty)
            rules_shell_expand(sh, out, kind + 1, end);
    } else if (kind < end && *kind == '?' && value) {
        s2s_buf_puts(out, value);
    } else {
        s2s_buf_puts(out, UNKNOWN);
    }
    free(value);
}

/* $((..)) with + - * / % and brackets over integers; false if it is anything else */
struct sum {
    const char *at, *end;
    bool bad;
};

static int64_t read_sum(struct sum *s, int depth);

static int64_t read_factor(struct sum *s, int depth)
{
    while (s->at < s->end && isspace((unsigned char)*s->at))
        s->at++;
    if (s->at < s->end && *s->at == '(' && depth < MAX_DEPTH) {
        s->at++;
        int64_t v = read_sum(s, depth + 1);
        while (s->at < s->end && isspace((unsigned char)*s->at))
            s->at++;
        s->bad |= s->at >= s->end || *s->at != ')';
        s->at += s->at < s->end;
        return v;
    }
    int64_t v = 0;
    s->bad |= s->at >= s->end || !isdigit((unsigned char)*s->at);
    s->bad |= s->end - s->at > 1 && *s->at == '0' && isdigit((unsigned char)s->at[1]); /* octal */
    for (; s->at < s->end && isdigit((unsigned char)*s->at); s->at++)
        s->bad |= __builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *s->at - '0', &v);
    return v;
}

static char next_operator(struct sum *s, const char *set)
{
    while (s->at < s->end && isspace((unsigned char)*s->at))
        s->at++;
    if (s->bad || s->at >= s->end || !strchr(set, *s->at))
        return 0;
    return *s->at++;
}

static int64_t read_product(struct sum *s, int depth)
{
    int64_t v = read_factor(s, depth);
    for (char op; (op = next_operator(s, "*/%")) != 0;) {
        int64_t w = read_factor(s, depth);
        if (op == '*')
            s->bad |= __builtin_mul_overflow(v, w, &v);
        else if (w == 0)
            s->bad = true;
        else
            v = op == '/' ? v / w : v % w;
    }
    return v;
}

static int64_t read_sum(struct sum *s, int depth)
{
    int64_t v = read_product(s, depth);
    for (char op; (op = next_operator(s, "+-")) != 0;) {
        int64_t w = read_product(s, depth);
        s->bad |= op == '+' ? __builtin_add_overflow(v, w, &v) : __builtin_sub_overflow(v, w, &v);
    }
    return v;
}

void rules_shell_sum(struct rules_shell *sh, struct s2s_buf *out, const char *s, const char *end)
{
    struct s2s_buf text = S2S_BUF_INIT;
    /* names stand without a $ here too */
    while (s < end) {
        size_t len = rules_name_len(s, end);
        if (len) {
            /* its value is a sum of its own, that of $NAME is text */
            char *value = value_of(sh, s, len, false);
            s2s_buf_printf(&text, "(%s)", value ? value : UNKNOWN);
            free(value);
            s += len;
        } else if (*s == '$') {
            const char *stop = s + 1 < end && s[1] == '{' ? rules_past_close(s + 2, end, '{', '}')
                                                          : s + 1 + rules_name_len(s + 1, end);
            rules_shell_expand(sh, &text, s, stop > s + 1 ? stop : s + 1);
            s = stop > s + 1 ? stop : s + 1;
        } else {
            s2s_buf_putc(&text, *s++);
        }
    }
    struct sum sum = {text.data ? text.data : "", (text.data ? text.data : "") + text.len, false};
    int64_t value = read_sum(&sum, 0);
    while (sum.at < sum.end && isspace((unsigned char)*sum.at))
        sum.at++;
    if (sum.bad || sum.at < sum.end)
        s2s_buf_puts(out, UNKNOWN);
    else
        s2s_buf_printf(out, "%lld", (long long)value);
    s2s_buf_release(&text);
}

/* one '$' of a word: returns where it ends */
static const char *expand_dollar(struct rules_shell *sh, struct s2s_buf *out, const char *s,
                                 const char *end)
{
    if (s + 2 < end && s[1] == '(' && s[2] == '(') {
        const char *stop = rules_past_close(s + 2, end, '(', ')');
        if (stop - s > 6 || (stop - s > 5 && stop[-1] == ')'))
            rules_shell_sum(sh, out, s + 3, stop - 1 - (stop[-1] == ')' && stop[-2] == ')'));
        return stop;
    }
    if (s + 1 < end && (s[1] == '(' || s[1] == '{')) {
        bool brace = s[1] == '{';
        const char *stop = rules_past_close(s + 2, end, s[1], brace ? '}' : ')');
        if (brace && stop > s + 2)
            expand_braces(sh, out, s + 2, stop - 1);
        else
            s2s_buf_puts(out, UNKNOWN);
        return stop;
    }
    size_t len = rules_name_len(s + 1, end);
    if (!len) {
        bool special = s + 1 < end && (isdigit((unsigned char)s[1]) || strchr("@*#?$!", s[1]));
        s2s_buf_puts(out, special ? UNKNOWN : "$");
        return s + 1 + special;
    }
    char *value = value_of(sh, s + 1, len, false);
    s2s_buf_puts(out, value ? value : UNKNOWN);
    free(value);
    return s + 1 + len;
}

void rules_shell_expand(struct rules_shell *sh, struct s2s_buf *out, const char *s, const char *end)
{
    bool single = false, quoted = false;
    if (++sh->depth > MAX_DEPTH || out->len > 100000) {
        s2s_buf_puts(out, UNKNOWN);
        sh->depth--;
        return;
    }
    while (s < end) {
        if (single) {
            single = *s != '\'';
            if (single)
                s2s_buf_putc(out, *s);
            s++;
        } else if (*s == '\'' && !quoted) {
            single = true;
            s++;
        } else if (*s == '"') {
            quoted = !quoted;
            s++;
        } else if (*s == '\\' && s + 1 < end) {
            if (s[1] != '\n')
                s2s_buf_putc(out, s[1]);
            s += 2;
        } else if (*s == '`') {
            const char *stop = memchr(s + 1, '`', (size_t)(end - s) - 1);
            s2s_buf_puts(out, UNKNOWN);
            s = stop ? stop + 1 : end;
        } else if (*s == '$') {
            s = expand_dollar(sh, out, s, end);
        } else {
            s2s_buf_putc(out, *s++);
        }
    }
    sh->depth--;
}
