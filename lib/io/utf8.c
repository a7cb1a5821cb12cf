#include "lib/io/utf8.h"

#include <string.h>

/* Length of the sequence that starts with these bytes, 0 if it is none. */
static size_t sequence_len(const unsigned char *p, size_t left)
{
    unsigned char a = p[0];
    size_t len = a < 0x80                ? 1
                 : a >= 0xc2 && a < 0xe0 ? 2
                 : a >= 0xe0 && a < 0xf0 ? 3
                 : a >= 0xf0 && a < 0xf5 ? 4
                                         : 0;
    if (len == 0 || len > left)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((a == 0xe0 && p[1] < 0xa0) || (a == 0xed && p[1] > 0x9f) || (a == 0xf0 && p[1] < 0x90) ||
        (a == 0xf4 && p[1] > 0x8f))
        return 0; /* not the shortest form, a surrogate, past the last code point */
    return len;
}

bool s2s_utf8_valid(const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + len;
    while (p < end) {
        uint64_t word;
        if (end - p >= 8 && (memcpy(&word, p, 8), (word & 0x8080808080808080u) == 0)) {
            p += 8;
            continue;
        }
        size_t n = sequence_len(p, (size_t)(end - p));
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
