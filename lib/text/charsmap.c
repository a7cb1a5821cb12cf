/* Applies the table of replacements that sentencepiece's models carry (Precompiled). */
#include <utf8proc.h>

#include "lib/base/le.h"
#include "lib/text/text_internal.h"

/*
 * The table is a double array (as darts-clone writes it) of little-endian words, whose values are
 * places in a block of strings that end with NUL. A unit holds: bits 0-7 its label, bit 8 whether a
 * value hangs on it, bits 10-30 the way to its children (bit 9: times 256), or, behind a label of
 * 0, a value with bit 31 set.
 *
 * As HF tokenizers apply it: a grapheme cluster of less than 6 bytes is replaced by what the
 * shortest key that it begins with stands for, as a whole; where none fits, or in longer clusters,
 * each character is looked up alone.
 */
struct text_charsmap {
    uint32_t *units;
    size_t n_units;
    char *strings;
    size_t len;
};

int text_charsmap_new(struct text_charsmap **out, const char *bytes, size_t len,
                      struct s2s_error *err)
{
    size_t size = len >= 4 ? s2s_le32((const unsigned char *)bytes) : 0;
    if (len < 4 || size > len - 4 || size % 4)
        return s2s_error_set(err, S2S_E_FORMAT, "a charsmap of %zu bytes with a table of %zu", len,
                             size);
    size_t n_strings = len - 4 - size;
    if (text_utf8_check(bytes + 4 + size, n_strings) < n_strings)
        return s2s_error_set(err, S2S_E_FORMAT, "its strings are not UTF-8");
    struct text_charsmap *map = s2s_xcalloc(1, sizeof *map);
    map->n_units = size / 4;
    map->units = s2s_xmalloc(size + 1);
    for (size_t i = 0; i < map->n_units; i++)
        map->units[i] = s2s_le32((const unsigned char *)bytes + 4 + 4 * i);
    map->strings = s2s_xstrndup("", 0);
    map->strings = s2s_xrealloc(map->strings, n_strings + 1, 1);
    memcpy(map->strings, bytes + 4 + size, n_strings);
    map->strings[n_strings] = 0;
    map->len = n_strings;
    *out = map;
    return 0;
}

void text_charsmap_free(struct text_charsmap *map)
{
    if (!map)
        return;
    free(map->units);
    free(map->strings);
    free(map);
}

static size_t children_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & (1U << 9)) >> 6);
}

/* What the shortest key at the start of text stands for; NULL when there is none. */
static const char *replacement(const struct text_charsmap *map, const char *text, size_t len)
{
    if (map->n_units == 0)
        return NULL;
    size_t at = children_of(map->units[0]);
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte == 0)
            return NULL;
        at ^= byte;
        if (at >= map->n_units)
            return NULL;
        uint32_t unit = map->units[at];
        if ((unit & (1U << 31 | 0xff)) != byte)
            return NULL;
        at ^= children_of(unit);
        if ((unit >> 8 & 1) == 0)
            continue;
        size_t value = at < map->n_units ? map->units[at] & (UINT32_MAX >> 1) : map->len;
        return value < map->len ? map->strings + value : NULL;
    }
    return NULL;
}

static size_t count_characters(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += (text[i] & 0xc0) != 0x80;
    return n;
}

/* End of the grapheme cluster that begins at i. */
static size_t cluster_end(const char *text, size_t len, size_t i)
{
    size_t n;
    utf8proc_int32_t state = 0;
    uint32_t cp = text_utf8_get(text + i, &n);
    for (i += n; i < len; i += n) {
        uint32_t next = text_utf8_get(text + i, &n);
        if (cp < 0x300 && next < 0x300 && cp != '\r' && cp != 0xad && next != 0xad)
            return i;
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next, &state))
            return i;
        cp = next;
    }
    return i;
}

/* The origins of what is written, in characters. */
struct origins {
    size_t n_first; /* characters that are the first one's */
    size_t at;      /* the next character of the input */
    size_t first;   /* bytes of the output that are the first one's */
};

/* Writes what replaces old [old_len]. The k-th new character stems from the k-th old one, or from
 * the last. */
static void write(struct s2s_buf *out, struct origins *origins, const char *old, size_t old_len,
                  const char *text)
{
    size_t n_old = count_characters(old, old_len), begin = out->len, k = 0;
    for (size_t i = 0, n; text[i]; i += n, k++) {
        text_utf8_get(text + i, &n);
        s2s_buf_add(out, text + i, n);
        if (origins->at + (k < n_old ? k : n_old - 1) < origins->n_first)
            origins->first = out->len;
    }
    /* what vanishes before anything was written leaves its origin to what follows */
    if (k > 0 || begin > 0)
        origins->at += n_old;
}

size_t text_charsmap_add(const struct text_charsmap *map, struct s2s_buf *out, const char *text,
                         size_t len, size_t first)
{
    struct origins origins = {count_characters(text, first), 0, 0};
    for (size_t i = 0, end; i < len; i = end) {
        end = cluster_end(text, len, i);
        const char *whole = end - i < 6 ? replacement(map, text + i, end - i) : NULL;
        if (whole) {
            write(out, &origins, text + i, end - i, whole);
            continue;
        }
        for (size_t n; i < end; i += n) {
            char self[5] = "";
            text_utf8_get(text + i, &n);
            const char *one = replacement(map, text + i, n);
            memcpy(self, text + i, n);
            if (one || text[i]) {
                write(out, &origins, text + i, n, one ? one : self);
            } else { /* NUL, which ends no string here */
                s2s_buf_putc(out, 0);
                if (origins.at++ < origins.n_first)
                    origins.first = out->len;
            }
        }
    }
    return origins.first;
}
