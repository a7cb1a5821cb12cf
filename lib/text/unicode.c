/* UTF-8, normal forms, and classes of characters. */
#include <utf8proc.h>

#include "lib/text/text_internal.h"

uint32_t text_utf8_get(const char *text, size_t *n_bytes)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) {
        *n_bytes = 1;
        return s[0];
    }
    if (s[0] < 0xe0) {
        *n_bytes = 2;
        return (uint32_t)(s[0] & 0x1f) << 6 | (s[1] & 0x3f);
    }
    if (s[0] < 0xf0) {
        *n_bytes = 3;
        return (uint32_t)(s[0] & 0x0f) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
    }
    *n_bytes = 4;
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3f) << 12 |
           (uint32_t)(s[2] & 0x3f) << 6 | (s[3] & 0x3f);
}

/* Bytes of the sequence at s that are right so far; *whole when they are a whole character. The
 * ranges of the second byte keep out long forms, surrogates and what is past U+10FFFF. */
static size_t valid_prefix(const unsigned char *s, size_t len, bool *whole)
{
    unsigned char c = s[0];
    size_t want = c < 0x80                ? 1
                  : c >= 0xc2 && c < 0xe0 ? 2
                  : (c & 0xf0) == 0xe0    ? 3
                  : c >= 0xf0 && c < 0xf5 ? 4
                                          : 0;
    size_t n = 1;
    *whole = want == 1;
    if (want < 2)
        return 1;
    unsigned char low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    unsigned char high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    for (; n < want; n++) {
        if (n >= len || s[n] < low || s[n] > high)
            return n;
        low = 0x80;
        high = 0xbf;
    }
    *whole = true;
    return n;
}

/* Bytes of ASCII at the start, in steps of eight. */
static size_t ascii_run(const char *text, size_t len)
{
    size_t n = 0;
    for (uint64_t word; n + 8 <= len; n += 8) {
        memcpy(&word, text + n, 8);
        if (word & UINT64_C(0x8080808080808080))
            break;
    }
    while (n < len && (unsigned char)text[n] < 0x80)
        n++;
    return n;
}

size_t text_utf8_check(const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        i += ascii_run(text + i, len - i);
        if (i == len)
            break;
        bool whole;
        size_t n = valid_prefix((const unsigned char *)text + i, len - i, &whole);
        if (!whole)
            return i;
        i += n;
    }
    return len;
}

void text_utf8_add_lossy(struct s2s_buf *out, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t good = text_utf8_check(bytes + i, len - i);
        s2s_buf_add(out, bytes + i, good);
        i += good;
        if (i == len)
            break;
        bool whole;
        i += valid_prefix((const unsigned char *)bytes + i, len - i, &whole);
        s2s_buf_puts(out, "\xef\xbf\xbd");
    }
}

bool text_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

void text_utf8_add(struct s2s_buf *out, uint32_t cp)
{
    char bytes[4];
    size_t n = 0;
    if (cp < 0x80) {
        s2s_buf_putc(out, (char)cp);
        return;
    }
    if (cp < 0x800) {
        bytes[n++] = (char)(0xc0 | cp >> 6);
    } else if (cp < 0x10000) {
        bytes[n++] = (char)(0xe0 | cp >> 12);
        bytes[n++] = (char)(0x80 | (cp >> 6 & 0x3f));
    } else {
        bytes[n++] = (char)(0xf0 | cp >> 18);
        bytes[n++] = (char)(0x80 | (cp >> 12 & 0x3f));
        bytes[n++] = (char)(0x80 | (cp >> 6 & 0x3f));
    }
    bytes[n++] = (char)(0x80 | (cp & 0x3f));
    s2s_buf_add(out, bytes, n);
}

static bool in_spans(uint32_t cp, const struct text_span32 *spans, size_t n)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (cp > spans[middle].last)
            low = middle + 1;
        else if (cp < spans[middle].first)
            high = middle;
        else
            return true;
    }
    return false;
}

bool text_is_word(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z') || cp == '_';
    return in_spans(cp, text_words, text_n_words);
}

bool text_is_punctuation(uint32_t cp)
{
    if (cp < 0x80)
        return cp > ' ' && cp != 0x7f && (cp == '_' || !text_is_word(cp));
    return in_spans(cp, text_punctuation, text_n_punctuation);
}

bool text_is_number(uint32_t cp)
{
    return cp < 0x80 ? cp >= '0' && cp <= '9' : in_spans(cp, text_numbers, text_n_numbers);
}

bool text_is_mark(uint32_t cp)
{
    return cp >= 0x300 && in_spans(cp, text_marks, text_n_marks);
}

bool text_is_nonspacing(uint32_t cp)
{
    return cp >= 0x300 && in_spans(cp, text_nonspacing, text_n_nonspacing);
}

bool text_is_other(uint32_t cp)
{
    if (cp < 0x7f)
        return cp < ' ' && cp != '\t' && cp != '\n' && cp != '\r';
    return in_spans(cp, text_others, text_n_others);
}

bool text_has_new_characters(const char *text, size_t len)
{
    for (size_t i = 0, n; i < len; i += n) {
        i += ascii_run(text + i, len - i);
        if (i == len)
            break;
        uint32_t cp = text_utf8_get(text + i, &n);
        size_t low = 0, high = cp < text_new_characters[0].first ? 0 : text_n_new_characters;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (cp > text_new_characters[middle].last)
                low = middle + 1;
            else if (cp < text_new_characters[middle].first)
                high = middle;
            else
                return true;
        }
    }
    return false;
}

void text_add_lower(struct s2s_buf *out, uint32_t cp)
{
    if (cp < 0x80) {
        s2s_buf_putc(out, (char)(cp >= 'A' && cp <= 'Z' ? cp + 32 : cp));
        return;
    }
    for (size_t i = 0; i < text_n_lower_cases; i++) {
        const struct text_lower *lower = &text_lower_cases[i];
        if (lower->cp != cp)
            continue;
        text_utf8_add(out, lower->to[0]);
        if (lower->to[1])
            text_utf8_add(out, lower->to[1]);
        return;
    }
    text_utf8_add(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
}

/* ---- normal forms ---- */

static int add_mapped(struct s2s_buf *out, enum text_form form, const char *text, size_t len,
                      struct s2s_error *err)
{
    static const utf8proc_option_t options[] = {
        [TEXT_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [TEXT_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [TEXT_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [TEXT_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    utf8proc_uint8_t *mapped = NULL;
    utf8proc_ssize_t n =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)len, &mapped, options[form]);
    if (n < 0)
        return s2s_error_set(err, n == UTF8PROC_ERROR_NOMEM ? S2S_E_NOMEM : S2S_E_FORMAT,
                             "normal form: %s", utf8proc_errmsg(n));
    s2s_buf_add(out, (const char *)mapped, (size_t)n);
    free(mapped);
    return 0;
}

/* Bytes from which on a stretch is its own form, whatever stands before: of ASCII, and in NFC of
 * all below U+0300; the last character of it may combine with what follows. */
static size_t plain_run(enum text_form form, const char *text, size_t len)
{
    size_t n = ascii_run(text, len);
    while (form == TEXT_NFC && n < len && (unsigned char)text[n] < 0xcc)
        n++;
    return n;
}

/* End of the stretch that begins at i and has to be mapped: where something plain or unknown is. */
static size_t mapped_end(enum text_form form, const char *text, size_t len, size_t i)
{
    const unsigned char plain = form == TEXT_NFC ? 0xcc : 0x80;
    while (i < len && (unsigned char)text[i] >= plain) {
        size_t n;
        uint32_t cp = text_utf8_get(text + i, &n);
        if (in_spans(cp, text_not_in_forms, text_n_not_in_forms))
            break;
        i += n;
    }
    return i;
}

int text_add_form(struct s2s_buf *out, enum text_form form, const char *text, size_t len,
                  struct s2s_error *err)
{
    for (size_t i = 0; i < len;) {
        size_t begin = i + plain_run(form, text + i, len - i);
        size_t end = mapped_end(form, text, len, begin), n;
        /* the plain character in front may combine with the stretch */
        while (begin > i && end > begin && begin > 0) {
            begin--;
            if ((text[begin] & 0xc0) != 0x80)
                break;
        }
        s2s_buf_add(out, text + i, begin - i);
        int rc = end > begin ? add_mapped(out, form, text + begin, end - begin, err) : 0;
        if (rc < 0)
            return rc;
        i = end;
        if (i < len && (unsigned char)text[i] >= 0x80) {
            uint32_t cp = text_utf8_get(text + i, &n);
            if (in_spans(cp, text_not_in_forms, text_n_not_in_forms)) {
                s2s_buf_add(out, text + i, n);
                i += n;
            }
        }
    }
    return 0;
}

/* Printable bytes stand for themselves, the others for U+0100 and up in their order (GPT-2). */
static bool stands_for_itself(unsigned byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

uint32_t text_byte_char(unsigned char byte)
{
    if (stands_for_itself(byte))
        return byte;
    uint32_t cp = 256;
    for (unsigned b = 0; b < byte; b++)
        cp += !stands_for_itself(b);
    return cp;
}

/* The byte of a character of the alphabet, -1 for others. */
static int byte_of_char(uint32_t cp)
{
    if (cp < 256)
        return stands_for_itself(cp) ? (int)cp : -1;
    /* the others in order: 0-32, 127-160, 173 */
    uint32_t k = cp - 256;
    return k <= 32 ? (int)k : k <= 66 ? (int)(k - 33 + 127) : k == 67 ? 173 : -1;
}

size_t text_bytes_of_token(char *bytes, const char *token, size_t len)
{
    size_t n_bytes = 0;
    for (size_t i = 0, n; i < len; i += n) {
        int byte = byte_of_char(text_utf8_get(token + i, &n));
        if (byte < 0)
            return 0;
        bytes[n_bytes++] = (char)byte;
    }
    return n_bytes;
}
