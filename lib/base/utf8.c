/* Validates, measures, shows and mends UTF-8. */
#include "lib/base/utf8.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"

int s2s_utf8_len(const char *at, const char *end)
{
    const unsigned char *s = (const unsigned char *)at;
    int len = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (len == 0 || s[0] > 0xf4 || end - at < len)
        return 0;
    for (int i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return len;
}

bool s2s_utf8_valid(const char *text, size_t len)
{
    const char *p = text, *end = text + len;
    while (p < end) {
        uint64_t word;
        if (end - p >= 8 && (memcpy(&word, p, 8), (word & 0x8080808080808080u) == 0)) {
            p += 8;
            continue;
        }
        int n = s2s_utf8_len(p, end);
        if (n == 0)
            return false;
        p += n;
    }
    return true;
}

size_t s2s_utf8_put(char *out, uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char)(lead[n] | cp);
    return n;
}

static uint32_t code_of(const char *at, int len)
{
    static const unsigned char lead[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t code = (unsigned char)at[0] & lead[len];
    for (int i = 1; i < len; i++)
        code = code << 6 | ((unsigned char)at[i] & 0x3f);
    return code;
}

int s2s_utf8_columns(const char *at, int len)
{
    /* the relevant blocks of EastAsianWidth.txt (W and F), and combining marks */
    static const struct {
        uint32_t first, last;
        int columns;
    } blocks[] = {
        {0x0300, 0x036f, 0},   {0x1100, 0x115f, 2},   {0x200b, 0x200f, 0},   {0x20d0, 0x20ff, 0},
        {0x2e80, 0x303e, 2},   {0x3041, 0xa4cf, 2},   {0xa960, 0xa97f, 2},   {0xac00, 0xd7a3, 2},
        {0xf900, 0xfaff, 2},   {0xfe00, 0xfe0f, 0},   {0xfe20, 0xfe2f, 0},   {0xfe30, 0xfe6f, 2},
        {0xff01, 0xff60, 2},   {0xffe0, 0xffe6, 2},   {0x1f300, 0x1f64f, 2}, {0x1f680, 0x1f6ff, 2},
        {0x1f900, 0x1faff, 2}, {0x20000, 0x3fffd, 2},
    };
    uint32_t code = code_of(at, len);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (code >= blocks[i].first && code <= blocks[i].last)
            return blocks[i].columns;
    return 1;
}

/* Characters that are never shown unchanged: C0, DEL and C1 controls, line and paragraph
 * separators, and those that embed, override or isolate a text direction. */
static bool is_control(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069);
}

int s2s_utf8_show(char out[S2S_UTF8_SHOWN], const char *at, const char *end)
{
    static const char named[] = "\n\r\t", letters[] = "nrt";
    int len = s2s_utf8_len(at, end);
    const bool valid = len > 0;
    len = valid ? len : 1;
    const char *name = *at ? strchr(named, *at) : NULL;
    if (name) {
        snprintf(out, S2S_UTF8_SHOWN, "\\%c", letters[name - named]);
    } else if (valid && !is_control(code_of(at, len))) {
        memcpy(out, at, (size_t)len);
        out[len] = 0;
    } else {
        for (int i = 0; i < len; i++)
            snprintf(out + 4 * i, 5, "\\x%02x", (unsigned char)at[i]);
    }
    return len;
}

void s2s_utf8_show_text(char *out, size_t cap, const char *text)
{
    char shown[S2S_UTF8_SHOWN];
    size_t used = 0;
    for (const char *end = text + strlen(text); text < end;) {
        text += s2s_utf8_show(shown, text, end);
        const size_t len = strlen(shown);
        if (used + len >= cap)
            break;
        memcpy(out + used, shown, len);
        used += len;
    }
    out[used] = 0;
}

char *s2s_utf8_mend(const char *text)
{
    const char *end = text + strlen(text);
    char *mended = s2s_xmalloc(3 * (size_t)(end - text) + 1), *to = mended;
    while (text < end) {
        int len = s2s_utf8_len(text, end);
        if (len)
            memcpy(to, text, (size_t)len);
        to += len ? (size_t)len : s2s_utf8_put(to, 0xFFFD);
        text += len ? len : 1;
    }
    *to = '\0';
    return mended;
}
