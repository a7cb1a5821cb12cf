/* Reads a chat template into a tree. */
#include <ctype.h>

#include "lib/text/jinja.h"

enum token_kind { TOKEN_END, TOKEN_NAME, TOKEN_STRING, TOKEN_NUMBER, TOKEN_SIGN };

/* Where the reading of a template stands: in a text, or inside the braces of a tag. */
struct parser {
    struct text_jinja *jinja;
    const char *at, *end;
    int line, depth;
    bool line_begins; /* what is next stands at the start of a line */
    /* the token that is next inside a tag */
    enum token_kind kind;
    struct s2s_buf token;
    const char *close; /* "%}" or "}}" */
    struct s2s_error *err;
    bool failed;
    int nesting; /* of expressions */
};

enum { MAX_DEPTH = 100 };

static void fail(struct parser *p, int code, const char *what, const char *which)
{
    if (!p->failed)
        s2s_error_set(p->err, code, "line %d: %s%s%s", p->line, what, which ? " " : "",
                      which ? which : "");
    p->failed = true;
}

static struct jinja_node *new_node(struct parser *p, enum jinja_kind kind)
{
    struct text_jinja *jinja = p->jinja;
    struct jinja_node *node = s2s_xcalloc(1, sizeof *node);
    node->kind = kind;
    node->line = p->line;
    s2s_grow(&jinja->all, jinja->n_all, &jinja->all_cap, sizeof *jinja->all);
    jinja->all[jinja->n_all++] = node;
    return node;
}

static struct jinja_node *node_of(struct parser *p, enum jinja_kind kind, struct jinja_node *a,
                                  struct jinja_node *b, const char *name)
{
    struct jinja_node *node = new_node(p, kind);
    node->a = a;
    node->b = b;
    node->name = name ? s2s_xstrdup(name) : NULL;
    return node;
}

static struct jinja_node *value_of(struct parser *p, json_t *value)
{
    struct jinja_node *node = new_node(p, JINJA_VALUE);
    node->value = value;
    return node;
}

/* ---- tokens inside a tag ---- */

static bool starts(const struct parser *p, const char *what)
{
    size_t len = strlen(what);
    return (size_t)(p->end - p->at) >= len && !memcmp(p->at, what, len);
}

static void read_string(struct parser *p)
{
    const char quote = *p->at++;
    while (p->at < p->end && *p->at != quote) {
        char c = *p->at++;
        if (c == '\n')
            p->line++;
        if (c == '\\' && p->at < p->end) {
            static const char from[] = "nrtbfav0", to[] = "\n\r\t\b\f\a\v";
            const char *known = strchr(from, *p->at);
            c = *p->at++;
            if (known && c)
                s2s_buf_putc(&p->token, to[known - from]);
            else if (c == 'u' || c == 'x') {
                uint32_t cp = 0;
                for (int i = c == 'u' ? 4 : 2;
                     i > 0 && p->at < p->end && isxdigit((unsigned char)*p->at); i--, p->at++)
                    cp = cp * 16 + (uint32_t)(isdigit((unsigned char)*p->at)
                                                  ? *p->at - '0'
                                                  : (*p->at | 32) - 'a' + 10);
                text_utf8_add(&p->token, cp >= 0xd800 && cp < 0xe000 ? 0xfffd : cp);
            } else {
                if (c != '\\' && c != '\'' && c != '"')
                    s2s_buf_putc(&p->token, '\\');
                s2s_buf_putc(&p->token, c);
            }
            continue;
        }
        s2s_buf_putc(&p->token, c);
    }
    if (p->at == p->end)
        fail(p, S2S_E_FORMAT, "a string does not end", NULL);
    else
        p->at++;
}

/* Reads the next token; at the end of the tag that is TOKEN_END. */
static void advance(struct parser *p)
{
    static const char *const signs[] = {"**", "//", "==", "!=", "<=", ">="};
    s2s_buf_clear(&p->token);
    s2s_buf_puts(&p->token, "");
    for (; p->at < p->end && isspace((unsigned char)*p->at); p->at++)
        p->line += *p->at == '\n';
    p->kind = TOKEN_END;
    if (p->at == p->end) {
        fail(p, S2S_E_FORMAT, "a tag does not end with", p->close);
        return;
    }
    if (p->depth == 0 &&
        (starts(p, p->close) || ((*p->at == '-' || *p->at == '+') && p->end - p->at > 2 &&
                                 !memcmp(p->at + 1, p->close, 2))))
        return;
    unsigned char c = (unsigned char)*p->at;
    if (isalpha(c) || c == '_' || c >= 0x80) {
        p->kind = TOKEN_NAME;
        while (p->at < p->end &&
               (isalnum((unsigned char)*p->at) || *p->at == '_' || (unsigned char)*p->at >= 0x80))
            s2s_buf_putc(&p->token, *p->at++);
    } else if (isdigit(c)) {
        p->kind = TOKEN_NUMBER;
        while (p->at < p->end &&
               (isalnum((unsigned char)*p->at) || *p->at == '_' ||
                (*p->at == '.' && p->at + 1 < p->end && isdigit((unsigned char)p->at[1]))))
            s2s_buf_putc(&p->token, *p->at++);
    } else if (c == '\'' || c == '"') {
        p->kind = TOKEN_STRING;
        read_string(p);
    } else {
        p->kind = TOKEN_SIGN;
        for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
            if (starts(p, signs[i])) {
                s2s_buf_puts(&p->token, signs[i]);
                p->at += 2;
                return;
            }
        p->depth += c == '(' || c == '[' || c == '{';
        p->depth -= c == ')' || c == ']' || c == '}';
        s2s_buf_putc(&p->token, *p->at++);
    }
}

static bool is(const struct parser *p, enum token_kind kind, const char *what)
{
    return p->kind == kind && !strcmp(p->token.data, what);
}

static bool take(struct parser *p, enum token_kind kind, const char *what)
{
    if (p->failed || !is(p, kind, what))
        return false;
    advance(p);
    return true;
}

static void want(struct parser *p, const char *sign)
{
    if (!take(p, TOKEN_SIGN, sign))
        fail(p, S2S_E_FORMAT, "missing", sign);
}

static char *take_name(struct parser *p)
{
    if (p->failed || p->kind != TOKEN_NAME) {
        fail(p, S2S_E_FORMAT, "a name is missing", NULL);
        return s2s_xstrdup("?");
    }
    char *name = s2s_xstrdup(p->token.data);
    advance(p);
    return name;
}

/* ---- expressions ---- */

static struct jinja_node *expression(struct parser *p);
static struct jinja_node *unary(struct parser *p);

/* Arguments up to `close`. */
static struct jinja_node *arguments(struct parser *p, const char *close)
{
    struct jinja_node *first = NULL, **last = &first;
    while (!p->failed && !take(p, TOKEN_SIGN, close)) {
        struct jinja_node *argument = expression(p);
        if (take(p, TOKEN_SIGN, "=")) {
            struct jinja_node *value = expression(p);
            struct jinja_node *named = node_of(p, JINJA_CHOICE, value, NULL, NULL);
            named->b = value_of(p, json_true());
            named->name2 = s2s_xstrdup(argument->name ? argument->name : "?");
            argument = named;
        } else if (argument->next) {
            argument = node_of(p, JINJA_CHOICE, argument, value_of(p, json_true()), NULL);
        }
        *last = argument;
        last = &argument->next;
        if (!is(p, TOKEN_SIGN, close))
            want(p, ",");
    }
    return first;
}

static struct jinja_node *dictionary(struct parser *p)
{
    struct jinja_node *dict = new_node(p, JINJA_DICT), **last = &dict->a;
    while (!p->failed && !take(p, TOKEN_SIGN, "}")) {
        struct jinja_node *pair = new_node(p, JINJA_LIST);
        pair->a = expression(p);
        want(p, ":");
        pair->b = expression(p);
        *last = pair;
        last = &pair->next;
        if (!is(p, TOKEN_SIGN, "}"))
            want(p, ",");
    }
    return dict;
}

static struct jinja_node *number(struct parser *p)
{
    char *end;
    const char *text = p->token.data;
    json_t *value = strchr(text, '.') ? json_real(strtod(text, &end))
                                      : json_integer((json_int_t)strtoll(text, &end, 10));
    if (*end)
        fail(p, S2S_E_FORMAT, "not a number:", text);
    advance(p);
    return value_of(p, value);
}

static struct jinja_node *word(struct parser *p)
{
    static const struct {
        const char *name;
        int value;
    } constants[] = {{"true", 1},  {"True", 1}, {"false", 0},
                     {"False", 0}, {"none", 2}, {"None", 2}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (take(p, TOKEN_NAME, constants[i].name))
            return value_of(p, constants[i].value == 2 ? json_null()
                                                       : json_boolean(constants[i].value));
    struct jinja_node *node = new_node(p, JINJA_NAME);
    node->name = take_name(p);
    return node;
}

static struct jinja_node *primary(struct parser *p)
{
    if (p->failed || p->kind == TOKEN_END) {
        fail(p, S2S_E_FORMAT, "a value is missing", NULL);
        return value_of(p, json_null());
    }
    if (p->kind == TOKEN_NAME)
        return word(p);
    if (p->kind == TOKEN_NUMBER)
        return number(p);
    if (p->kind == TOKEN_STRING) {
        struct s2s_buf text = S2S_BUF_INIT;
        while (p->kind == TOKEN_STRING && !p->failed) { /* strings in a row are one */
            s2s_buf_add(&text, p->token.data, p->token.len);
            advance(p);
        }
        struct jinja_node *node =
            value_of(p, json_stringn_nocheck(text.data ? text.data : "", text.len));
        s2s_buf_release(&text);
        return node;
    }
    if (take(p, TOKEN_SIGN, "(")) {
        struct jinja_node *inside = expression(p);
        if (!is(p, TOKEN_SIGN, ",")) {
            want(p, ")");
            return inside;
        }
        advance(p);
        struct jinja_node *tuple = node_of(p, JINJA_LIST, inside, NULL, NULL);
        inside->next = arguments(p, ")");
        return tuple;
    }
    if (take(p, TOKEN_SIGN, "["))
        return node_of(p, JINJA_LIST, arguments(p, "]"), NULL, NULL);
    if (take(p, TOKEN_SIGN, "{"))
        return dictionary(p);
    fail(p, S2S_E_FORMAT, "unexpected", p->token.data);
    return value_of(p, json_null());
}

/* [item] or [begin:end:step] behind a value */
static struct jinja_node *subscript(struct parser *p, struct jinja_node *of)
{
    struct jinja_node *part[3] = {NULL, NULL, NULL};
    int n = 0;
    bool is_slice = false;
    while (!p->failed && !take(p, TOKEN_SIGN, "]")) {
        if (take(p, TOKEN_SIGN, ":")) {
            is_slice = true;
            if (++n > 2)
                fail(p, S2S_E_FORMAT, "a slice of too many parts", NULL);
            continue;
        }
        if (part[n])
            fail(p, S2S_E_FORMAT, "missing", "]");
        part[n] = expression(p);
    }
    if (!is_slice && !part[0])
        fail(p, S2S_E_FORMAT, "an empty subscript", NULL);
    struct jinja_node *node = node_of(p, is_slice ? JINJA_SLICE : JINJA_ITEM, of, part[0], NULL);
    node->c = part[1];
    node->d = part[2];
    return node;
}

static struct jinja_node *test(struct parser *p, struct jinja_node *of)
{
    static const char *const no_argument[] = {"and", "or", "else", "if", "is", "in", "not"};
    bool negated = take(p, TOKEN_NAME, "not"), has_argument = p->kind != TOKEN_END;
    struct jinja_node *node = node_of(p, JINJA_TEST, of, NULL, NULL);
    node->name = take_name(p);
    has_argument = p->kind == TOKEN_NAME || p->kind == TOKEN_STRING || p->kind == TOKEN_NUMBER;
    for (size_t i = 0; i < sizeof no_argument / sizeof *no_argument; i++)
        has_argument &= !is(p, TOKEN_NAME, no_argument[i]);
    if (take(p, TOKEN_SIGN, "("))
        node->b = arguments(p, ")");
    else if (has_argument && !p->failed)
        node->b = primary(p);
    return negated ? node_of(p, JINJA_NOT, node, NULL, NULL) : node;
}

static struct jinja_node *postfix(struct parser *p, struct jinja_node *of)
{
    while (!p->failed) {
        if (take(p, TOKEN_SIGN, ".")) {
            of = node_of(p, JINJA_MEMBER, of, NULL, NULL);
            if (p->kind == TOKEN_NUMBER) {
                of->kind = JINJA_ITEM;
                of->b = number(p);
            } else {
                of->name = take_name(p);
            }
        } else if (take(p, TOKEN_SIGN, "[")) {
            of = subscript(p, of);
        } else if (take(p, TOKEN_SIGN, "(")) {
            of = node_of(p, JINJA_CALL, of, arguments(p, ")"), NULL);
        } else if (take(p, TOKEN_SIGN, "|")) {
            of = node_of(p, JINJA_FILTER, of, NULL, NULL);
            of->name = take_name(p);
            if (take(p, TOKEN_SIGN, "("))
                of->b = arguments(p, ")");
        } else if (take(p, TOKEN_NAME, "is")) {
            of = test(p, of);
        } else {
            break;
        }
    }
    return of;
}

static struct jinja_node *unary(struct parser *p)
{
    bool negative = false, any = false;
    for (bool minus; (minus = take(p, TOKEN_SIGN, "-")) || take(p, TOKEN_SIGN, "+"); any = true)
        negative ^= minus;
    struct jinja_node *node = postfix(p, primary(p));
    return any && negative ? node_of(p, JINJA_MINUS, node, NULL, NULL) : node;
}

static struct jinja_node *left_to_right(struct parser *p, const char *const *signs, size_t n,
                                        struct jinja_node *(*part)(struct parser *))
{
    struct jinja_node *left = part(p);
    for (size_t i = 0; i < n && !p->failed;) {
        if (take(p, TOKEN_SIGN, signs[i])) {
            left = node_of(p, JINJA_BINARY, left, part(p), signs[i]);
            i = 0;
        } else {
            i++;
        }
    }
    return left;
}

static struct jinja_node *product(struct parser *p)
{
    static const char *const signs[] = {"*", "/", "//", "%"};
    return left_to_right(p, signs, 4, unary);
}

static struct jinja_node *joined(struct parser *p)
{
    static const char *const signs[] = {"~"};
    return left_to_right(p, signs, 1, product);
}

static struct jinja_node *sum(struct parser *p)
{
    static const char *const signs[] = {"+", "-"};
    return left_to_right(p, signs, 2, joined);
}

static struct jinja_node *comparison(struct parser *p)
{
    static const char *const signs[] = {"==", "!=", "<=", ">=", "<", ">"};
    struct jinja_node *left = left_to_right(p, signs, 6, sum);
    while (!p->failed) {
        if (take(p, TOKEN_NAME, "in")) {
            left = node_of(p, JINJA_BINARY, left, sum(p), "in");
        } else if (is(p, TOKEN_NAME, "not")) {
            advance(p);
            if (!take(p, TOKEN_NAME, "in"))
                fail(p, S2S_E_FORMAT, "missing", "in");
            left = node_of(p, JINJA_BINARY, left, sum(p), "in");
            left = node_of(p, JINJA_NOT, left, NULL, NULL);
        } else {
            break;
        }
    }
    return left;
}

static struct jinja_node *negation(struct parser *p)
{
    int n = 0;
    while (take(p, TOKEN_NAME, "not"))
        n++;
    struct jinja_node *node = comparison(p);
    for (int i = 0; i < (n > 1 ? 2 - n % 2 : n); i++)
        node = node_of(p, JINJA_NOT, node, NULL, NULL);
    return node;
}

static struct jinja_node *conjunction(struct parser *p)
{
    struct jinja_node *left = negation(p);
    while (take(p, TOKEN_NAME, "and"))
        left = node_of(p, JINJA_AND, left, negation(p), NULL);
    return left;
}

static struct jinja_node *disjunction(struct parser *p)
{
    struct jinja_node *left = conjunction(p);
    while (take(p, TOKEN_NAME, "or"))
        left = node_of(p, JINJA_OR, left, conjunction(p), NULL);
    return left;
}

static struct jinja_node *expression(struct parser *p)
{
    struct jinja_node *node = NULL;
    if (++p->nesting > MAX_DEPTH)
        fail(p, S2S_E_FORMAT, "expressions in expressions, too deep", NULL);
    node = p->failed ? value_of(p, json_null()) : disjunction(p);
    while (take(p, TOKEN_NAME, "if")) {
        struct jinja_node *choice = node_of(p, JINJA_CHOICE, node, disjunction(p), NULL);
        if (take(p, TOKEN_NAME, "else"))
            choice->c = expression(p);
        node = choice;
    }
    p->nesting--;
    return node;
}

/* ---- statements ---- */

static struct jinja_node *body(struct parser *p, const char *const *ends, char **end, int depth);

/* Behind a tag: its closing braces, and the white space that goes with them. */
static void close_tag(struct parser *p)
{
    if (p->failed)
        return;
    if (p->kind != TOKEN_END) {
        fail(p, S2S_E_FORMAT, "unexpected", p->token.data);
        return;
    }
    bool strip = *p->at == '-', keep = *p->at == '+';
    p->at += strip || keep ? 3 : 2;
    p->line_begins = false;
    if (strip) {
        for (; p->at < p->end && isspace((unsigned char)*p->at); p->at++) {
            p->line_begins = *p->at == '\n';
            p->line += *p->at == '\n';
        }
    } else if (*p->close == '%' && !keep && p->at < p->end && *p->at == '\n') {
        p->at++;
        p->line++;
        p->line_begins = true;
    }
}

static struct jinja_node *if_statement(struct parser *p, int depth)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jinja_node *node = new_node(p, JINJA_IF);
    char *end = NULL;
    node->a = expression(p);
    close_tag(p);
    node->b = body(p, ends, &end, depth);
    if (end && !strcmp(end, "elif")) {
        node->c = if_statement(p, depth + 1);
    } else if (end && !strcmp(end, "else")) {
        free(end);
        end = NULL;
        close_tag(p);
        node->c = body(p, ends + 2, &end, depth);
        close_tag(p);
    } else {
        close_tag(p);
    }
    free(end);
    return node;
}

static struct jinja_node *for_statement(struct parser *p, int depth)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct jinja_node *node = new_node(p, JINJA_FOR);
    char *end = NULL;
    node->name = take_name(p);
    if (take(p, TOKEN_SIGN, ","))
        node->name2 = take_name(p);
    if (!take(p, TOKEN_NAME, "in"))
        fail(p, S2S_E_FORMAT, "missing", "in");
    node->a = p->failed ? NULL : disjunction(p);
    if (take(p, TOKEN_NAME, "if"))
        node->d = expression(p);
    close_tag(p);
    node->b = body(p, ends, &end, depth);
    if (end && !strcmp(end, "else")) {
        free(end);
        end = NULL;
        close_tag(p);
        node->c = body(p, ends + 1, &end, depth);
    }
    free(end);
    close_tag(p);
    return node;
}

static struct jinja_node *set_statement(struct parser *p, int depth)
{
    static const char *const ends[] = {"endset", NULL};
    struct jinja_node *node = new_node(p, JINJA_SET);
    char *end = NULL;
    node->a = postfix(p, word(p));
    if (node->a->kind != JINJA_NAME && node->a->kind != JINJA_MEMBER)
        fail(p, S2S_E_UNSUPPORTED, "a target of set that is neither a name nor a member", NULL);
    if (take(p, TOKEN_SIGN, "=")) {
        node->b = expression(p);
        close_tag(p);
        return node;
    }
    close_tag(p);
    node->c = body(p, ends, &end, depth);
    free(end);
    close_tag(p);
    return node;
}

static struct jinja_node *macro_statement(struct parser *p, int depth)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct jinja_node *node = new_node(p, JINJA_MACRO), **last = &node->a;
    char *end = NULL;
    node->name = take_name(p);
    want(p, "(");
    while (!p->failed && !take(p, TOKEN_SIGN, ")")) {
        struct jinja_node *parameter = new_node(p, JINJA_NAME);
        parameter->name = take_name(p);
        if (take(p, TOKEN_SIGN, "="))
            parameter->b = expression(p);
        *last = parameter;
        last = &parameter->next;
        if (!is(p, TOKEN_SIGN, ")"))
            want(p, ",");
    }
    close_tag(p);
    node->b = body(p, ends, &end, depth);
    free(end);
    close_tag(p);
    return node;
}

static struct jinja_node *generation_statement(struct parser *p, int depth)
{
    static const char *const ends[] = {"endgeneration", NULL};
    struct jinja_node *node = new_node(p, JINJA_GENERATION);
    char *end = NULL;
    close_tag(p);
    node->b = body(p, ends, &end, depth);
    free(end);
    close_tag(p);
    return node;
}

static struct jinja_node *statement(struct parser *p, int depth)
{
    if (take(p, TOKEN_NAME, "if"))
        return if_statement(p, depth);
    if (take(p, TOKEN_NAME, "for"))
        return for_statement(p, depth);
    if (take(p, TOKEN_NAME, "set"))
        return set_statement(p, depth);
    if (take(p, TOKEN_NAME, "macro"))
        return macro_statement(p, depth);
    if (take(p, TOKEN_NAME, "generation"))
        return generation_statement(p, depth);
    for (int i = 0; i < 2; i++)
        if (take(p, TOKEN_NAME, i ? "continue" : "break")) {
            struct jinja_node *node = new_node(p, i ? JINJA_CONTINUE : JINJA_BREAK);
            close_tag(p);
            return node;
        }
    fail(p, p->kind == TOKEN_NAME ? S2S_E_UNSUPPORTED : S2S_E_FORMAT,
         "statement not supported:", p->token.data);
    return NULL;
}

/* Text [begin, end) before a tag, of which white space goes as the tag says. */
static struct jinja_node *text_before(struct parser *p, const char *begin, const char *end,
                                      bool line_begins, char mark, bool is_output)
{
    if (mark == '-') {
        while (end > begin && isspace((unsigned char)end[-1]))
            end--;
    } else if (mark != '+' && !is_output) {
        const char *line = end;
        while (line > begin && (line[-1] == ' ' || line[-1] == '\t'))
            line--;
        if (line > begin ? line[-1] == '\n' : line_begins)
            end = line;
    }
    if (begin == end)
        return NULL;
    return value_of(p, json_stringn_nocheck(begin, (size_t)(end - begin)));
}

/* Behind "{#": up to the end of the comment. */
static void skip_comment(struct parser *p)
{
    while (p->at < p->end && !starts(p, "#}"))
        p->line += *p->at++ == '\n';
    if (p->at == p->end) {
        fail(p, S2S_E_FORMAT, "a comment does not end", NULL);
        return;
    }
    p->close = "%}"; /* white space behind it goes as behind a statement */
    if (p->at[-1] == '-')
        p->at--;
    p->kind = TOKEN_END;
    close_tag(p);
}

static void append(struct jinja_node ***last, struct jinja_node *node)
{
    if (!node)
        return;
    **last = node;
    *last = &node->next;
}

/* Statements and text up to one of the tags `ends`, whose name is given (free); to the end of the
 * template where ends is NULL. */
static struct jinja_node *body(struct parser *p, const char *const *ends, char **end, int depth)
{
    struct jinja_node *first = NULL, **last = &first;
    if (depth > MAX_DEPTH)
        fail(p, S2S_E_FORMAT, "statements in statements, too deep", NULL);
    while (!p->failed) {
        const char *begin = p->at;
        bool line_begins = p->line_begins;
        while (p->at < p->end &&
               !(*p->at == '{' && p->at + 1 < p->end && p->at[1] && strchr("{%#", p->at[1])))
            p->line += *p->at++ == '\n';
        if (p->at == p->end) {
            append(&last, text_before(p, begin, p->at, line_begins, '+', true));
            if (ends)
                fail(p, S2S_E_FORMAT, "the template ends before", ends[0]);
            return first;
        }
        const char *tag = p->at, kind = p->at[1];
        p->at += 2;
        char mark = p->at < p->end ? *p->at : 0;
        append(&last, text_before(p, begin, tag, line_begins, mark, kind == '{'));
        if (kind == '#') {
            skip_comment(p);
            continue;
        }
        p->at += mark == '-' || mark == '+';
        p->close = kind == '{' ? "}}" : "%}";
        p->depth = 0;
        advance(p);
        if (kind == '{') {
            struct jinja_node *value = expression(p);
            append(&last, node_of(p, JINJA_OUTPUT, value, NULL, NULL));
            close_tag(p);
            continue;
        }
        for (size_t i = 0; ends && ends[i]; i++)
            if (take(p, TOKEN_NAME, ends[i])) {
                *end = s2s_xstrdup(ends[i]);
                return first;
            }
        append(&last, statement(p, depth + 1));
    }
    return first;
}

/* ---- the whole ---- */

void text_jinja_free(struct text_jinja *jinja)
{
    if (!jinja)
        return;
    for (size_t i = 0; i < jinja->n_all; i++) {
        free(jinja->all[i]->name);
        free(jinja->all[i]->name2);
        json_decref(jinja->all[i]->value);
        free(jinja->all[i]);
    }
    free(jinja->all);
    free(jinja);
}

int text_jinja_parse(struct text_jinja **out, const char *source, size_t len, struct s2s_error *err)
{
    struct s2s_error own = S2S_ERROR_INIT;
    size_t bad = text_utf8_check(source, len);
    if (bad < len)
        return s2s_error_set(err, S2S_E_FORMAT, "byte %zu is not UTF-8", bad);
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_buf_puts(&text, "");
    for (size_t i = 0; i < len; i++) /* all ends of lines are one */
        if (source[i] != '\r' || i + 1 == len || source[i + 1] != '\n')
            s2s_buf_putc(&text, source[i] == '\r' ? '\n' : source[i]);
    if (text.len > 0 && text.data[text.len - 1] == '\n')
        text.len--;
    struct parser p = {.jinja = s2s_xcalloc(1, sizeof(struct text_jinja)),
                       .at = text.data,
                       .end = text.data + text.len,
                       .line = 1,
                       .line_begins = true,
                       .err = &own};
    p.jinja->body = body(&p, NULL, NULL, 0);
    s2s_buf_release(&p.token);
    s2s_buf_release(&text);
    if (p.failed) {
        text_jinja_free(p.jinja);
        return s2s_error_set(err, own.code, "%s", own.text);
    }
    *out = p.jinja;
    return 0;
}
