#include "lib/text/text_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/*
 * HF tokenizers match with Oniguruma in Ruby syntax. What differs from PCRE2 in the patterns of
 * tokenizers is translated, what would silently differ is refused:
 *   \s \S  White_Space (PCRE2 counts U+180E too); \w \W  Alphabetic, marks, Nd, Pc
 *   ^ $    match at every line; \uHHHH; the rest as in PCRE2 with UTF and UCP
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

struct text_pattern {
    pcre2_code *code;
    bool jit;
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

/* One escape at regex[i]; returns the bytes it takes, 0 when it is not supported. */
static size_t translate_escape(struct s2s_buf *out, const char *regex, size_t len, size_t i,
                               bool in_class)
{
    char c = i + 1 < len ? regex[i + 1] : 0;
    switch (c) {
    case 's':
        s2s_buf_puts(out, in_class ? SPACE : "[" SPACE "]");
        return 2;
    case 'S':
        s2s_buf_puts(out, in_class ? NOT_SPACE : "[" NOT_SPACE "]");
        return 2;
    case 'w':
        s2s_buf_puts(out, in_class ? WORD : "[" WORD "]");
        return 2;
    case 'W':
        if (in_class)
            return 0;
        s2s_buf_puts(out, "[^" WORD "]");
        return 2;
    case 'u': {
        for (size_t k = 2; k < 6; k++)
            if (i + k >= len || !strchr("0123456789abcdefABCDEF", regex[i + k]) || !regex[i + k])
                return 0;
        s2s_buf_printf(out, "\\x{%.4s}", regex + i + 2);
        return 6;
    }
    case 'p':
    case 'P': {
        const char *close =
            i + 2 < len && regex[i + 2] == '{' ? memchr(regex + i, '}', len - i) : NULL;
        size_t n = close ? (size_t)(close - regex) - i + 1 : 0;
        s2s_buf_add(out, regex + i, n);
        return n;
    }
    case 'd':
    case 'D':
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
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i)"};
    if (i + 1 >= len || regex[i + 1] != '?')
        return true;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (len - i >= strlen(known[k]) && !memcmp(regex + i, known[k], strlen(known[k])))
            return true;
    return false;
}

static int translate(struct s2s_buf *out, const char *regex, size_t len, struct s2s_error *err)
{
    bool in_class = false;
    for (size_t i = 0; i < len;) {
        char c = regex[i];
        if (c == '\\') {
            size_t n = translate_escape(out, regex, len, i, in_class);
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
        s2s_buf_putc(out, c);
        i++;
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

int text_pattern_compile(struct text_pattern **pattern, const char *regex, size_t len,
                         struct s2s_error *err)
{
    struct s2s_buf translated = S2S_BUF_INIT;
    int code = 0;
    PCRE2_SIZE at = 0;
    int rc = translate(&translated, regex, len, err);
    if (rc < 0)
        goto out;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_code *compiled = pcre2_compile(
        (PCRE2_SPTR)(translated.data ? translated.data : ""), translated.len,
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!compiled) {
        char message[200] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        rc = s2s_error_set(err, S2S_E_FORMAT, "pattern %.*s: %s", (int)(len < 200 ? len : 200),
                           regex, message);
        goto out;
    }
    *pattern = s2s_xcalloc(1, sizeof **pattern);
    (*pattern)->code = compiled;
    (*pattern)->jit = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
out:
    s2s_buf_release(&translated);
    return rc < 0 ? rc : 0;
}

void text_pattern_free(struct text_pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    free(pattern);
}

struct text_matcher *text_matcher_new(void)
{
    struct text_matcher *matcher = s2s_xcalloc(1, sizeof *matcher);
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    matcher->stack = pcre2_jit_stack_create(32 << 10, 16 << 20, NULL);
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
                      struct s2s_error *err)
{
    int rc = pattern->jit ? pcre2_jit_match(pattern->code, (PCRE2_SPTR)text, len, from, 0,
                                            matcher->data, matcher->context)
                          : pcre2_match(pattern->code, (PCRE2_SPTR)text, len, from,
                                        PCRE2_NO_UTF_CHECK, matcher->data, matcher->context);
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
