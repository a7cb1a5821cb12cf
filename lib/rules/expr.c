/*
 * The language of rule conditions: comparisons and arithmetic over common names with Kleene's
 * three-valued logic. It is evaluated straight from its text; a condition is a line.
 *
 *   or     := and ("or" and)*             and  := not ("and" not)*       not := "not" not | test
 *   test   := sum [ ("=="|"!="|"<"|"<="|">"|">=") sum | ["not"] "in" "(" or ("," or)* ")"
 *                  | ["not"] "divides" sum ]
 *   sum    := term (("+"|"-") term)*      term := atom (("*"|"/"|"//"|"%") atom)*
 *   atom   := 12 | 0.5 | 'text' | true | false | null | unknown | name | function "(" args ")" |
 * "(" or ")"
 *
 * a/b of integers is exact or unknown; // rounds down. Arithmetic and order with null are unknown,
 * equality with null is not. A null counts as false in and/or/not.
 */
#include "lib/rules/rules_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"

struct reader {
    const struct rules_facts *facts;
    const char *text, *at;
    const char *unknown; /* first name that was needed and unknown */
    struct s2s_buf *scratch;
};

enum { MAX_ARGS = 6, MAX_NAME = 64 };

static struct rules_value read_or(struct reader *r);

static void skip_blanks(struct reader *r)
{
    while (*r->at == ' ' || *r->at == '\n')
        r->at++;
}

static bool take(struct reader *r, const char *symbol)
{
    skip_blanks(r);
    size_t len = strlen(symbol);
    if (strncmp(r->at, symbol, len))
        return false;
    if (isalpha((unsigned char)symbol[0]) &&
        (isalnum((unsigned char)r->at[len]) || r->at[len] == '_'))
        return false;
    r->at += len;
    return true;
}

static void expect(struct reader *r, const char *symbol)
{
    if (!take(r, symbol))
        S2S_BUG("rule expression '%s': expected '%s' at '%s'", r->text, symbol, r->at);
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.';
}

static void read_name(struct reader *r, char name[MAX_NAME])
{
    size_t len = 0;
    while (is_name(r->at[len]))
        len++;
    if (len == 0 || len >= MAX_NAME)
        S2S_BUG("rule expression '%s': expected a name at '%s'", r->text, r->at);
    memcpy(name, r->at, len);
    name[len] = 0;
    r->at += len;
}

static struct rules_value note_unknown(struct reader *r, const char *name)
{
    if (!r->unknown)
        r->unknown = name;
    return rules_unknown();
}

static struct rules_value value_of_name(struct reader *r, const char *name)
{
    const struct rules_fact *fact = rules_fact_find(r->facts, name);
    if (!fact)
        S2S_BUG("rule expression '%s': no such name as '%s'", r->text, name);
    return fact->value.type == RULES_UNKNOWN ? note_unknown(r, fact->name) : fact->value;
}

/* ---- arithmetic ---- */

static bool as_float(struct rules_value v, double *out)
{
    if (v.type == RULES_INT)
        *out = (double)v.i;
    else if (v.type == RULES_FLOAT)
        *out = v.f;
    return v.type == RULES_INT || v.type == RULES_FLOAT;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}

static struct rules_value int_arithmetic(char op, int64_t a, int64_t b)
{
    int64_t out = 0;
    bool bad = op == '+'   ? __builtin_add_overflow(a, b, &out)
               : op == '-' ? __builtin_sub_overflow(a, b, &out)
               : op == '*' ? __builtin_mul_overflow(a, b, &out)
                           : b == 0 || (b == -1 && a == INT64_MIN);
    if (bad)
        return rules_unknown();
    if (op == '%')
        out = a % b + ((a % b != 0) && ((a < 0) != (b < 0)) ? b : 0);
    else if (op == 'f')
        out = floor_div(a, b);
    else if (op == '/')
        return a % b ? rules_unknown() : rules_int(a / b);
    return rules_int(out);
}

static struct rules_value arithmetic(char op, struct rules_value a, struct rules_value b)
{
    double x = 0, y = 0;
    if (a.type == RULES_INT && b.type == RULES_INT)
        return int_arithmetic(op, a.i, b.i);
    if (!as_float(a, &x) || !as_float(b, &y) || op == '%' || op == 'f')
        return rules_unknown();
    if (op == '/' && y == 0)
        return rules_unknown();
    double out = op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : x / y;
    return (struct rules_value){RULES_FLOAT, {.f = out}};
}

/* ---- functions ---- */

static const char *keep_text(struct reader *r)
{
    struct rules_facts *facts = (struct rules_facts *)r->facts;
    return rules_keep(facts, s2s_xstrdup(r->scratch->data ? r->scratch->data : ""));
}

/* "56 or 64": the multiples of unit next to x, at least one unit */
static struct rules_value nearest_multiples(struct reader *r, int64_t x, int64_t unit)
{
    if (unit < 1)
        return rules_unknown();
    int64_t below = x > 0 ? x - x % unit : 0;
    s2s_buf_clear(r->scratch);
    if (below >= unit)
        s2s_buf_printf(r->scratch, "%lld", (long long)below);
    if ((below != x || below < unit) && below <= INT64_MAX - unit)
        s2s_buf_printf(r->scratch, "%s%lld", below >= unit ? " or " : "",
                       (long long)(below >= unit ? below + unit : unit));
    return rules_text(keep_text(r));
}

/* "1, 2, 4, 8": what divides n, up to a bound */
static struct rules_value divisors(struct reader *r, int64_t n)
{
    int shown = 0;
    s2s_buf_clear(r->scratch);
    for (int64_t d = 1; d <= n && d <= 4096 && shown < 12; d++)
        if (n % d == 0)
            s2s_buf_printf(r->scratch, "%s%lld", shown++ ? ", " : "", (long long)d);
    return rules_text(keep_text(r));
}

static struct rules_value env_value(struct reader *r, const char *name)
{
    size_t len = strlen(name);
    const char *found = NULL;
    for (const char *const *e = r->facts->env; e && *e; e++)
        if (!strncmp(*e, name, len) && (*e)[len] == '=')
            found = *e + len + 1; /* the last one counts */
    return found ? rules_text(found) : rules_null();
}

static struct rules_value list_product(const struct s2s_conf *list)
{
    int64_t product = 1;
    for (size_t i = 0; i < list->n_items; i++) {
        struct rules_value v = rules_value_of(list->items[i]);
        if (v.type != RULES_INT || __builtin_mul_overflow(product, v.i, &product))
            return rules_unknown();
    }
    return rules_int(product);
}

static struct rules_value texts(const char *function, struct rules_value a, struct rules_value b)
{
    if (a.type == RULES_NULL)
        return rules_bool(false);
    if (a.type != RULES_TEXT || b.type != RULES_TEXT)
        return rules_unknown();
    size_t len_a = strlen(a.s), len_b = strlen(b.s);
    if (!strcmp(function, "contains"))
        return rules_bool(strstr(a.s, b.s) != NULL);
    if (!strcmp(function, "starts"))
        return rules_bool(!strncmp(a.s, b.s, len_b));
    return rules_bool(len_a >= len_b && !strcmp(a.s + len_a - len_b, b.s));
}

/* ---- words: a list, or text with blanks or commas between them ---- */

static bool is_one_of(const char *words, const char *word, size_t len)
{
    for (; *words; words += strcspn(words, " "), words += strspn(words, " "))
        if (strcspn(words, " ") == len && !memcmp(words, word, len))
            return true;
    return false;
}

/* has(a, words): whether a word of `a` is among `words` (stranger: the first that is not). Unknown
 * if that depends on a word that holds a variable. */
static struct rules_value words_of(struct reader *r, struct rules_value a, const char *words,
                                   bool stranger)
{
    bool open = false;
    size_t n_items = a.type == RULES_LIST ? a.list->n_items : 1;
    if (a.type == RULES_NULL || a.type == RULES_BOOL)
        return stranger ? rules_null() : rules_bool(false);
    if (a.type != RULES_LIST && a.type != RULES_TEXT)
        return rules_unknown();
    for (size_t i = 0; i < n_items; i++) {
        const char *s = a.type == RULES_TEXT ? a.s : a.list->items[i]->text;
        for (s = s ? s : "$"; *s;) {
            size_t len = strcspn(s, " ,[]\"'");
            if (memchr(s, '$', len))
                open = true;
            else if (len && is_one_of(words, s, len) != stranger)
                return stranger ? rules_text(rules_keep((struct rules_facts *)r->facts,
                                                        s2s_xstrndup(s, len)))
                                : rules_bool(true);
            s += len;
            s += strspn(s, " ,[]\"'");
        }
    }
    return open ? rules_unknown() : stranger ? rules_null() : rules_bool(false);
}

/* older('2.9', '2.11'): by the numbers between the dots */
static struct rules_value older(struct rules_value a, struct rules_value b)
{
    if (a.type != RULES_TEXT || !isdigit((unsigned char)*a.s))
        return rules_unknown();
    for (const char *s = a.s, *t = b.s;;) {
        char *s_end, *t_end;
        long x = strtol(s, &s_end, 10), y = strtol(t, &t_end, 10);
        if (x != y)
            return rules_bool(x < y);
        if (*t_end != '.')
            return rules_bool(false);
        s = *s_end == '.' ? s_end + 1 : "0";
        t = t_end + 1;
    }
}

static struct rules_value two_numbers(struct reader *r, const char *function, struct rules_value a,
                                      struct rules_value b)
{
    double x = 0, y = 0;
    if (!strcmp(function, "near") && a.type == RULES_INT && b.type == RULES_INT)
        return nearest_multiples(r, a.i, b.i);
    if (!strcmp(function, "up") && a.type == RULES_INT && b.type == RULES_INT && b.i > 0)
        return int_arithmetic('*', floor_div(a.i, b.i) + (a.i % b.i != 0), b.i);
    if (!as_float(a, &x) || !as_float(b, &y))
        return rules_unknown();
    if (!strcmp(function, "max"))
        return x >= y ? a : b;
    return !strcmp(function, "min") ? (x <= y ? a : b) : rules_unknown();
}

static struct rules_value call(struct reader *r, const char *function,
                               const struct rules_value *args, int n_args)
{
    static const struct {
        const char *name;
        int n_args;
    } known[] = {{"env", 1},    {"len", 1},  {"product", 1}, {"divisors", 1}, {"contains", 2},
                 {"starts", 2}, {"ends", 2}, {"near", 2},    {"up", 2},       {"max", 2},
                 {"min", 2},    {"if", 3},   {"has", 2},     {"stranger", 2}, {"older", 2}};
    size_t k = 0;
    while (k < sizeof known / sizeof *known && strcmp(known[k].name, function))
        k++;
    if (k == sizeof known / sizeof *known || known[k].n_args != n_args)
        S2S_BUG("rule expression '%s': no function %s of %d arguments", r->text, function, n_args);
    const struct rules_value a = args[0];
    if (!strcmp(function, "env"))
        return env_value(r, a.s);
    if (!strcmp(function, "len"))
        return a.type == RULES_LIST   ? rules_int((int64_t)a.list->n_items)
               : a.type == RULES_TEXT ? rules_int((int64_t)strlen(a.s))
               : a.type == RULES_NULL ? rules_int(0)
                                      : rules_unknown();
    if (!strcmp(function, "product"))
        return a.type == RULES_LIST ? list_product(a.list) : a;
    if (!strcmp(function, "divisors"))
        return a.type == RULES_INT ? divisors(r, a.i) : rules_unknown();
    if (!strcmp(function, "if"))
        return a.type == RULES_UNKNOWN ? a : a.type == RULES_BOOL && a.b ? args[1] : args[2];
    if (!strcmp(function, "contains") || !strcmp(function, "starts") || !strcmp(function, "ends"))
        return texts(function, a, args[1]);
    if (!strcmp(function, "older"))
        return older(a, args[1]);
    if (!strcmp(function, "has") || !strcmp(function, "stranger"))
        return words_of(r, a, args[1].s, function[0] == 's');
    return two_numbers(r, function, a, args[1]);
}

/* ---- the grammar ---- */

/* set(name): somebody wrote it; known(name): its value is not unknown */
static struct rules_value about_name(struct reader *r, const char *function)
{
    char name[MAX_NAME];
    skip_blanks(r);
    read_name(r, name);
    expect(r, ")");
    const struct rules_fact *fact = rules_fact_find(r->facts, name);
    if (!fact)
        S2S_BUG("rule expression '%s': no such name as '%s'", r->text, name);
    if (!strcmp(function, "known"))
        return rules_bool(fact->value.type != RULES_UNKNOWN);
    return rules_bool(fact->node && fact->value.type != RULES_NULL);
}

static struct rules_value read_call(struct reader *r, const char *function)
{
    struct rules_value args[MAX_ARGS];
    int n_args = 0;
    if (!strcmp(function, "set") || !strcmp(function, "known"))
        return about_name(r, function);
    while (!take(r, ")")) {
        if (n_args)
            expect(r, ",");
        if (n_args == MAX_ARGS)
            S2S_BUG("rule expression '%s': too many arguments", r->text);
        args[n_args++] = read_or(r);
    }
    return call(r, function, args, n_args);
}

static struct rules_value read_number(struct reader *r)
{
    char *end;
    double f = strtod(r->at, &end);
    bool whole =
        !memchr(r->at, '.', (size_t)(end - r->at)) && !memchr(r->at, 'e', (size_t)(end - r->at));
    int64_t i = whole ? strtoll(r->at, NULL, 10) : 0;
    r->at = end;
    return whole ? rules_int(i) : (struct rules_value){RULES_FLOAT, {.f = f}};
}

static struct rules_value read_quoted(struct reader *r)
{
    const char *end = strchr(++r->at, '\'');
    if (!end)
        S2S_BUG("rule expression '%s': a quote is open", r->text);
    char *text = s2s_xstrndup(r->at, (size_t)(end - r->at));
    r->at = end + 1;
    return rules_text(rules_keep((struct rules_facts *)r->facts, text));
}

static struct rules_value read_atom(struct reader *r)
{
    char name[MAX_NAME];
    skip_blanks(r);
    if (isdigit((unsigned char)*r->at))
        return read_number(r);
    if (*r->at == '\'')
        return read_quoted(r);
    if (take(r, "(")) {
        struct rules_value v = read_or(r);
        expect(r, ")");
        return v;
    }
    if (take(r, "-"))
        return arithmetic('-', rules_int(0), read_atom(r));
    read_name(r, name);
    if (!strcmp(name, "true") || !strcmp(name, "false"))
        return rules_bool(name[0] == 't');
    if (!strcmp(name, "null"))
        return rules_null();
    if (!strcmp(name, "unknown"))
        return rules_unknown();
    if (*r->at == '(') {
        r->at++;
        return read_call(r, name);
    }
    return value_of_name(r, name);
}

static struct rules_value read_term(struct reader *r)
{
    struct rules_value v = read_atom(r);
    for (;;) {
        if (take(r, "//"))
            v = arithmetic('f', v, read_atom(r));
        else if (take(r, "*"))
            v = arithmetic('*', v, read_atom(r));
        else if (take(r, "/"))
            v = arithmetic('/', v, read_atom(r));
        else if (take(r, "%"))
            v = arithmetic('%', v, read_atom(r));
        else
            return v;
    }
}

static struct rules_value read_sum(struct reader *r)
{
    struct rules_value v = read_term(r);
    for (;;) {
        if (take(r, "+"))
            v = arithmetic('+', v, read_term(r));
        else if (take(r, "-"))
            v = arithmetic('-', v, read_term(r));
        else
            return v;
    }
}

static struct rules_value equal(struct rules_value a, struct rules_value b)
{
    double x = 0, y = 0;
    if (a.type == RULES_UNKNOWN || b.type == RULES_UNKNOWN)
        return rules_unknown();
    if (as_float(a, &x) && as_float(b, &y))
        return rules_bool(x == y);
    if (a.type != b.type)
        return rules_bool(false);
    if (a.type == RULES_BOOL)
        return rules_bool(a.b == b.b);
    if (a.type == RULES_TEXT)
        return rules_bool(!strcmp(a.s, b.s));
    return a.type == RULES_NULL ? rules_bool(true) : rules_unknown();
}

static struct rules_value opposite(struct rules_value v)
{
    if (v.type == RULES_BOOL)
        return rules_bool(!v.b);
    return v.type == RULES_NULL ? rules_bool(true) : rules_unknown();
}

static struct rules_value order(const char *op, struct rules_value a, struct rules_value b)
{
    double x = 0, y = 0;
    if (!as_float(a, &x) || !as_float(b, &y))
        return rules_unknown();
    if (op[0] == '<')
        return rules_bool(op[1] ? x <= y : x < y);
    return rules_bool(op[1] ? x >= y : x > y);
}

/* Kleene's or over the members */
static struct rules_value is_in(struct reader *r, struct rules_value v)
{
    struct rules_value found = rules_bool(false);
    expect(r, "(");
    do {
        struct rules_value same = equal(v, read_or(r));
        if (same.type == RULES_UNKNOWN && !(found.type == RULES_BOOL && found.b))
            found = rules_unknown();
        else if (same.type == RULES_BOOL && same.b)
            found = same;
    } while (take(r, ","));
    expect(r, ")");
    return found;
}

static struct rules_value divides(struct rules_value a, struct rules_value b)
{
    if (a.type != RULES_INT || b.type != RULES_INT || a.i == 0)
        return rules_unknown();
    return rules_bool(b.i % a.i == 0);
}

static struct rules_value read_test(struct reader *r)
{
    static const char *const orders[] = {"<=", ">=", "<", ">", NULL};
    struct rules_value v = read_sum(r);
    const char *back;
    if (take(r, "=="))
        return equal(v, read_sum(r));
    if (take(r, "!="))
        return opposite(equal(v, read_sum(r)));
    for (int i = 0; orders[i]; i++)
        if (take(r, orders[i]))
            return order(orders[i], v, read_sum(r));
    if (take(r, "in"))
        return is_in(r, v);
    if (take(r, "divides"))
        return divides(v, read_sum(r));
    back = r->at;
    if (take(r, "not")) {
        if (take(r, "in"))
            return opposite(is_in(r, v));
        if (take(r, "divides"))
            return opposite(divides(v, read_sum(r)));
        r->at = back;
    }
    return v;
}

static struct rules_value read_not(struct reader *r)
{
    return take(r, "not") ? opposite(read_not(r)) : read_test(r);
}

static bool is_false(struct rules_value v)
{
    return v.type == RULES_NULL || (v.type == RULES_BOOL && !v.b);
}

static bool is_true(struct rules_value v)
{
    return v.type == RULES_BOOL && v.b;
}

static struct rules_value read_and(struct reader *r)
{
    struct rules_value v = read_not(r);
    while (take(r, "and")) {
        struct rules_value w = read_not(r);
        v = is_false(v) || is_false(w) ? rules_bool(false)
            : is_true(v) && is_true(w) ? rules_bool(true)
                                       : rules_unknown();
    }
    return v;
}

static struct rules_value read_or(struct reader *r)
{
    struct rules_value v = read_and(r);
    while (take(r, "or")) {
        struct rules_value w = read_and(r);
        v = is_true(v) || is_true(w)     ? rules_bool(true)
            : is_false(v) && is_false(w) ? rules_bool(false)
                                         : rules_unknown();
    }
    return v;
}

struct rules_value rules_eval(const struct rules_facts *facts, const char *text,
                              const char **unknown)
{
    struct s2s_buf scratch = S2S_BUF_INIT;
    struct reader r = {.facts = facts, .text = text, .at = text, .scratch = &scratch};
    struct rules_value v = read_or(&r);
    skip_blanks(&r);
    if (*r.at)
        S2S_BUG("rule expression '%s': cannot read '%s'", text, r.at);
    if (unknown)
        *unknown = r.unknown;
    s2s_buf_release(&scratch);
    return v;
}

void rules_format(struct s2s_buf *buf, const struct rules_facts *facts, const char *text)
{
    for (const char *open; (open = strchr(text, '{')) != NULL;) {
        const char *close = strchr(open, '}');
        if (!close)
            S2S_BUG("rule message '%s': a brace is open", text);
        s2s_buf_add(buf, text, (size_t)(open - text));
        if (close == open + 1 || (open > text && open[-1] == '$')) { /* {} and ${..} of a config */
            s2s_buf_add(buf, open, (size_t)(close + 1 - open));
            text = close + 1;
            continue;
        }
        bool key = open[1] == '@';
        char *inside = s2s_xstrndup(open + 1 + key, (size_t)(close - open) - 1 - key);
        const struct rules_fact *fact = key ? rules_fact_find(facts, inside) : NULL;
        if (key)
            s2s_buf_puts(buf, fact && fact->key ? fact->key : inside);
        else
            rules_value_add(buf, rules_eval(facts, inside, NULL));
        free(inside);
        text = close + 1;
    }
    s2s_buf_puts(buf, text);
}

const char *rules_next_name(const char *text, char *name)
{
    static const char *const words[] = {"and",  "or",    "not",  "in",      "divides",
                                        "true", "false", "null", "unknown", NULL};
    while (*text) {
        if (*text == '\'') {
            const char *end = strchr(text + 1, '\'');
            text = end ? end + 1 : text + strlen(text);
            continue;
        }
        if (!isalpha((unsigned char)*text)) {
            text += isdigit((unsigned char)*text) ? strspn(text, "0123456789.e") : 1;
            continue;
        }
        size_t len = 0;
        while (is_name(text[len]))
            len++;
        bool word = text[len] == '(' || len >= MAX_NAME;
        snprintf(name, MAX_NAME, "%.*s", (int)len, text);
        text += len;
        for (int i = 0; words[i]; i++)
            word |= !strcmp(words[i], name);
        if (!word)
            return text;
    }
    return NULL;
}
