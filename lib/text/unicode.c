/* UTF-8, normal form C, and classes of characters. */
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

bool text_in_ranges(uint32_t cp, const struct text_range *ranges, size_t n)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (cp > ranges[middle].last)
            low = middle + 1;
        else if (cp < ranges[middle].first)
            high = middle;
        else
            return true;
    }
    return false;
}

size_t text_find_in_ranges(const char *text, size_t len, const struct text_range *ranges, size_t n)
{
    for (size_t i = 0, n_bytes; i < len; i += n_bytes) {
        i += ascii_run(text + i, len - i);
        if (i == len)
            break;
        if (text_in_ranges(text_utf8_get(text + i, &n_bytes), ranges, n))
            return i;
    }
    return len;
}

static int add_composed(struct s2s_buf *out, const char *text, size_t len, struct s2s_error *err)
{
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)len,
                                      &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0)
        return s2s_error_set(err, n == UTF8PROC_ERROR_NOMEM ? S2S_E_NOMEM : S2S_E_FORMAT,
                             "composing (NFC): %s", utf8proc_errmsg(n));
    s2s_buf_add(out, (const char *)composed, (size_t)n);
    free(composed);
    return 0;
}

int text_add_nfc(struct s2s_buf *out, const char *text, size_t len, struct s2s_error *err)
{
    /* below U+0300 nothing combines: such text is its own NFC */
    size_t i = 0;
    while (i < len && (unsigned char)text[i] < 0xcc)
        i++;
    if (i == len) {
        s2s_buf_add(out, text, len);
        return 0;
    }
    /* what is too new for the library's NFC is a wall between the parts before and behind */
    for (i = 0; i < len;) {
        size_t n = text_find_in_ranges(text + i, len - i, text_not_in_nfc, text_n_not_in_nfc);
        int rc = n > 0 ? add_composed(out, text + i, n, err) : 0;
        if (rc < 0)
            return rc;
        i += n;
        if (i < len) {
            text_utf8_get(text + i, &n);
            s2s_buf_add(out, text + i, n);
            i += n;
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

bool text_is_alphanumeric(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        for (size_t i = 0; i < text_n_new_characters; i++)
            if (cp >= text_new_characters[i].first && cp <= text_new_characters[i].last)
                return strchr("LM", text_new_characters[i].category[0]) ||
                       !strcmp(text_new_characters[i].category, "Nd");
        /* Other_Alphabetic outside letters and marks: circled and squared Latin letters */
        return (cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) ||
               (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189);
    }
}
