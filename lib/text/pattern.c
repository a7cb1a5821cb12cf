/* Compiles and matches the regular expressions of tokenizers, by PCRE2. */
#include "lib/text/text_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/*
 * HF tokenizers match with Oniguruma in Ruby syntax. What differs from PCRE2 in the patterns of
 * tokenizers is translated, what would silently differ is refused:
 *   \s \S  White_Space (PCRE2 counts U+180E too); \w \W  Alphabetic, marks, Nd, Pc, and outside of
 *          a class the numbers of Latin-1, too
 *   ^ $    match at every line; \uHHHH; {,N}; the rest as in PCRE2 with UTF and UCP
 *   \p{Han}  and other scripts: Script, where PCRE2 has Script_Extensions
 *   \p{L} \d \w  with the characters that are new to PCRE2 (of scripts, Han alone has its new
 *          ones). They make the pattern slow and are rare, so it is compiled twice, and the text is
 *          looked at first.
 */
#define SPACE \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"
#define NOT_SPACE \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{" \
    "1fff}" \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{" \
    "10ffff}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define LATIN_1_NUMBERS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

struct text_pattern {
    pcre2_code *code, *with_new; /* for text without and with new characters */
};

struct text_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static int refuse(struct s2s_error *err, const char *regex, size_t len, size_t at, const char *what)
{
    return s2s_error_set(err, S2S_E_UNSUPPORTED, "pattern %.*s: %s at character %zu",
                         (int)(len < 200 ? len : 200), regex, what, at + 1);
}

/* What is new in a category or in Han, as items of a class. */
static void add_new_characters(struct s2s_buf *out, const char *name, size_t name_len)
{
    const bool is_han = name_len == 3 && !strncasecmp(name, "Han", 3);
    for (size_t k = 0; k < text_n_new_characters; k++) {
        const struct text_range *range = &text_new_characters[k];
        if (is_han ? range->first >= 0x20000 && !strcmp(range->category, "Lo")
                   : name_len <= 2 && !strncmp(range->category, name, name_len))
            s2s_buf_printf(out, "\\x{%x}-\\x{%x}", range->first, range->last);
    }
}

/* \w or \d, which also need what is new in their categories. */
static void add_shorthand(struct s2s_buf *out, const char *items, const char *const *categories,
                          bool negated, bool in_class, bool with_new)
{
    if (!in_class)
        s2s_buf_puts(out, negated ? "[^" : "[");
    s2s_buf_puts(out, items);
    for (; with_new && *categories; categories++)
        add_new_characters(out, *categories, strlen(*categories));
    if (!in_class)
        s2s_buf_putc(out, ']');
}

static bool is_script(const char *name, size_t len)
{
    char *property = s2s_xasprintf("\\p{sc:%.*s}", (int)len, name);
    int failed = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *code = len > 2 ? pcre2_compile((PCRE2_SPTR)property, PCRE2_ZERO_TERMINATED,
                                               PCRE2_UTF, &failed, &at, NULL)
                               : NULL;
    free(property);
    pcre2_code_free(code);
    return code != NULL;
}

/* \p{NAME} or \P{NAME} at regex[i]; returns the bytes it takes, 0 when it is not supported. */
static size_t translate_property(struct s2s_buf *out, const char *regex, size_t len, size_t i,
                                 bool in_class, bool with_new)
{
    const char *open = regex + i + 2, *close;
    bool negated = regex[i + 1] == 'P';
    if (i + 3 >= len || *open != '{' || open[1] == '^' || (negated && in_class))
        return 0;
    close = memchr(open, '}', len - i - 2);
    if (!close)
        return 0;
    if (!in_class)
        s2s_buf_puts(out, negated ? "[^" : "[");
    s2s_buf_puts(out, is_script(open + 1, (size_t)(close - open) - 1) ? "\\p{sc:" : "\\p{");
    s2s_buf_add(out, open + 1, (size_t)(close - open));
    if (with_new)
        add_new_characters(out, open + 1, (size_t)(close - open) - 1);
    if (!in_class)
        s2s_buf_putc(out, ']');
    return (size_t)(close - regex) - i + 1;
}

/* One escape at regex[i]; returns the bytes it takes, 0 when it is not supported. */
static size_t translate_escape(struct s2s_buf *out, const char *regex, size_t len, size_t i,
                               bool in_class, bool with_new)
{
    static const char *const word[] = {"L", "M", "Nd", "Pc", NULL}, *const digit[] = {"Nd", NULL};
    char c = i + 1 < len ? regex[i + 1] : 0;
    if (in_class && (c == 'W' || c == 'D'))
        return 0;
    switch (c) {
    case 's':
        s2s_buf_puts(out, in_class ? SPACE : "[" SPACE "]");
        return 2;
    case 'S':
        s2s_buf_puts(out, in_class ? NOT_SPACE : "[" NOT_SPACE "]");
        return 2;
    case 'w':
    case 'W':
        add_shorthand(out, in_class ? WORD : WORD LATIN_1_NUMBERS, word, c == 'W', in_class,
                      with_new);
        return 2;
    case 'd':
    case 'D':
        add_shorthand(out, "\\p{Nd}", digit, c == 'D', in_class, with_new);
        return 2;
    case 'u': {
        for (size_t k = 2; k < 6; k++)
            if (i + k >= len || !strchr("0123456789abcdefABCDEF", regex[i + k]) || !regex[i + k])
                return 0;
        s2s_buf_printf(out, "\\x{%.4s}", regex + i + 2);
        return 6;
    }
    case 'p':
    case 'P':
        return translate_property(out, regex, len, i, in_class, with_new);
    case 'x': {
        const char *close =
            i + 2 < len && regex[i + 2] == '{' ? memchr(regex + i, '}', len - i) : NULL;
        size_t n = close ? (size_t)(close - regex) - i + 1 : 0;
        s2s_buf_add(out, regex + i, n);
        return n;
    }
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'v':
        if (c == 'v') /* a vertical tab there, all vertical space in PCRE2 */
            s2s_buf_puts(out, "\\x{b}");
        else
            s2s_buf_add(out, regex + i, 2);
        return 2;
    default:
        /* an escaped sign stands for itself; other letters and digits differ or have no use here */
        if ((unsigned char)c >= 0x80 || c <= ' ' || (c >= '0' && c <= '9') ||
            ((c | 32) >= 'a' && (c | 32) <= 'z'))
            return c == ' ' ? (s2s_buf_puts(out, "\\ "), 2) : 0;
        s2s_buf_add(out, regex + i, 2);
        return 2;
    }
}

/* A group's opening "(?..." that means the same in both; others are refused. */
static bool group_is_known(const char *regex, size_t len, size_t i)
{
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (i + 1 >= len || regex[i + 1] != '?')
        return true;
    /* behind something it takes the alternatives that follow with it, there */
    if (i == 0 && len >= 4 && !memcmp(regex, "(?i)", 4))
        return true;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (len - i >= strlen(known[k]) && !memcmp(regex + i, known[k], strlen(known[k])))
            return true;
    return false;
}

static int translate(struct s2s_buf *out, const char *regex, size_t len, bool with_new,
                     struct s2s_error *err)
{
    bool in_class = false, is_exact = false; /* is_exact: in {N} */
    for (size_t i = 0; i < len;) {
        char c = regex[i];
        if (c == '\\') {
            size_t n = translate_escape(out, regex, len, i, in_class, with_new);
            if (n == 0)
                return refuse(err, regex, len, i, "escape not supported");
            i += n;
            continue;
        }
        if (in_class && (c == '[' || (c == '&' && i + 1 < len && regex[i + 1] == '&')))
            return refuse(err, regex, len, i, "class in a class not supported");
        if (!in_class && c == '(' && !group_is_known(regex, len, i))
            return refuse(err, regex, len, i, "kind of group not supported");
        if (!in_class && c == '}' && i + 1 < len && regex[i + 1] == '+')
            return refuse(err, regex, len, i, "'+' behind a counted repeat not supported");
        if (!in_class && c == '}' && i + 1 < len && regex[i + 1] == '?' && is_exact)
            return refuse(err, regex, len, i, "'?' behind an exact repeat not supported");
        s2s_buf_putc(out, c);
        i++;
        if (!in_class && c == '{') {
            is_exact = i < len && regex[i] >= '0' && regex[i] <= '9';
            if (i + 1 < len && regex[i] == ',' && regex[i + 1] >= '0' && regex[i + 1] <= '9')
                s2s_buf_putc(out, '0'); /* {,N} */
        } else if (!in_class && c == ',') {
            is_exact = false;
        }
        if (!in_class && c == '[') {
            in_class = true;
            if (i < len && regex[i] == '^')
                s2s_buf_putc(out, regex[i++]);
            if (i < len && regex[i] == ']')
                return refuse(err, regex, len, i, "']' at the start of a class not supported");
        } else if (in_class && c == ']') {
            in_class = false;
        }
    }
    return 0;
}

static int compile(pcre2_code **code, const char *regex, size_t len, bool with_new,
                   struct s2s_error *err)
{
    struct s2s_buf translated = S2S_BUF_INIT;
    int failed = 0;
    PCRE2_SIZE at = 0;
    int rc = translate(&translated, regex, len, with_new, err);
    if (rc == 0) {
        pcre2_compile_context *context = pcre2_compile_context_create(NULL);
        if (!context)
            s2s_no_memory();
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        *code = pcre2_compile((PCRE2_SPTR)(translated.data ? translated.data : ""), translated.len,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &failed, &at, context);
        pcre2_compile_context_free(context);
        if (*code) {
            pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* without it, matching is slower */
        } else {
            char message[200] = "";
            pcre2_get_error_message(failed, (PCRE2_UCHAR *)message, sizeof message);
            rc = s2s_error_set(err, S2S_E_FORMAT, "pattern %.*s: %s", (int)(len < 200 ? len : 200),
                               regex, message);
        }
    }
    s2s_buf_release(&translated);
    return rc;
}

int text_pattern_compile(struct text_pattern **out, const char *regex, size_t len,
                         struct s2s_error *err)
{
    struct text_pattern *pattern = s2s_xcalloc(1, sizeof *pattern);
    int rc = compile(&pattern->code, regex, len, false, err);
    if (rc == 0)
        rc = compile(&pattern->with_new, regex, len, true, err);
    if (rc < 0)
        text_pattern_free(pattern);
    else
        *out = pattern;
    return rc;
}

void text_pattern_free(struct text_pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    pcre2_code_free(pattern->with_new);
    free(pattern);
}

struct text_matcher *text_matcher_new(void)
{
    struct text_matcher *matcher = s2s_xcalloc(1, sizeof *matcher);
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    matcher->stack = pcre2_jit_stack_create(32 << 10, 16 << 20, NULL);
    if (!matcher->data || !matcher->context || !matcher->stack)
        s2s_no_memory();
    pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return matcher;
}

void text_matcher_free(struct text_matcher *matcher)
{
    if (!matcher)
        return;
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    free(matcher);
}

int text_pattern_find(const struct text_pattern *pattern, struct text_matcher *matcher,
                      struct text_span *match, const char *text, size_t len, size_t from,
                      bool has_new, struct s2s_error *err)
{
    const pcre2_code *code = has_new ? pattern->with_new : pattern->code;
    int rc = pcre2_match(code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, matcher->data,
                         matcher->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        char message[200] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
        return s2s_error_set(err, S2S_E_RANGE, "text of %zu bytes: %s", len, message);
    }
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(matcher->data);
    *match = (struct text_span){at[0], at[1]};
    return 1;
}
