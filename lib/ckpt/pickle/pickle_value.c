/* Opcodes that carry their value (numbers, strings), and reading of arguments, from a window of the
 * file if the pickle is large. */
#include "lib/ckpt/pickle/pickle_internal.h"

#include <sys/mman.h>

#include "lib/base/base.h"
#include "lib/base/utf8.h"
#include "lib/ckpt/file.h"

/* Sanitizer builds make it small, so that small pickles exercise this. */
#ifndef PICKLE_WINDOW
#define PICKLE_WINDOW (1 << 20)
#endif

/* A tokenizer is a string of some ten megabytes, of which three copies are made later. */
enum { WINDOW = PICKLE_WINDOW, MAX_TEXTS = 12 << 20 };

/* ---- bytes ---- */

/* Drops windows before the current opcode from memory. */
static void give_back(struct pickle_machine *m)
{
    const size_t end = m->op_at / WINDOW * WINDOW;
    if (end > m->given_back)
        (void)madvise((char *)m->bytes + m->given_back, end - m->given_back, MADV_DONTNEED);
    m->given_back = end;
}

int ckpt_pickle_fill(struct pickle_machine *m, size_t end)
{
    while (m->filled < end && m->filled < m->len) {
        size_t n = m->len - m->filled < WINDOW ? m->len - m->filled : WINDOW;
        m->io_rc = ckpt_pread(m->fd, (char *)m->bytes + m->filled, n, m->pos + (int64_t)m->filled,
                              "pickle", m->err);
        if (m->io_rc < 0)
            return m->io_rc;
        m->filled += n;
        give_back(m);
    }
    return 0;
}

/* Skips n bytes without reading them. */
static void skip(struct pickle_machine *m, size_t n)
{
    m->at += n;
    if (m->filled < m->at)
        m->filled = m->at;
}

/* ---- large strings ---- */

bool ckpt_pickle_is_large(size_t len)
{
    return len > WINDOW / 16;
}

/* Sets *n to the length that the next len bytes, UTF-8, have in Latin-1; UINT32_MAX: not Latin-1.
 */
static int count_latin1(struct pickle_machine *m, size_t len, uint32_t *n)
{
    unsigned char piece[16 << 10];
    bool half = false, odd = false;
    *n = 0;
    for (size_t done = 0; done < len && !odd;) {
        const size_t now = len - done < sizeof piece ? len - done : sizeof piece;
        m->io_rc =
            ckpt_pread(m->fd, piece, now, m->pos + (int64_t)(m->at + done), "pickle", m->err);
        if (m->io_rc < 0)
            return m->io_rc;
        for (size_t i = 0; i < now; i++) {
            *n += !half;
            odd |= !half && piece[i] >= 0x80 && piece[i] != 0xC2 && piece[i] != 0xC3;
            half = !half && piece[i] >= 0x80;
        }
        done += now;
    }
    *n = odd || half ? UINT32_MAX : *n;
    return 0;
}

int ckpt_pickle_push_long(struct pickle_machine *m, enum ckpt_kind kind, size_t len)
{
    if (len > UINT32_MAX)
        return ckpt_pickle_refuse(m, S2S_E_UNSUPPORTED, "text of more than 4 GiB");
    const bool is_text = kind == CKPT_STR;
    const bool kept = is_text && m->mode != CKPT_CHECK && len <= MAX_TEXTS - m->texts_bytes &&
                      !ckpt_pickle_encodes(ckpt_pickle_top(m));
    struct ckpt_node *node = ckpt_pickle_new_node(m, is_text && !kept ? CKPT_LONG : kind);
    node->len = (uint32_t)len;
    if (kept) {
        char *text = ckpt_pickle_alloc(m->out, len + 1);
        m->io_rc = ckpt_pread(m->fd, text, len, m->pos + (int64_t)m->at, "pickle", m->err);
        node->text = text;
        m->texts_bytes += len;
    } else if (is_text) {
        m->io_rc = count_latin1(m, len, &node->n);
    }
    if (m->io_rc < 0)
        return m->io_rc;
    skip(m, len);
    return ckpt_pickle_push(m, node);
}

/* ---- values ---- */

static int push_int(struct pickle_machine *m, int64_t value)
{
    if (value >= PICKLE_FIRST_INT && value < PICKLE_FIRST_INT + PICKLE_INTS)
        return ckpt_pickle_push(
            m, ckpt_pickle_known(m, &m->known.ints[value - PICKLE_FIRST_INT], CKPT_INT, value));
    struct ckpt_node *node = ckpt_pickle_new_node(m, CKPT_INT);
    node->i = value;
    return ckpt_pickle_push(m, node);
}

static int push_bool(struct pickle_machine *m, bool value)
{
    return ckpt_pickle_push(m, ckpt_pickle_known(m, &m->known.truth[value], CKPT_BOOL, value));
}

/* The cache slot of a short string. */
static struct ckpt_node **known_text(struct pickle_machine *m, const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;
    return &m->known.texts[(p[0] * 7u + p[len / 2] * 5u + p[len - 1] + len) % PICKLE_TEXTS];
}

static int push_text(struct pickle_machine *m, enum ckpt_kind kind, const char *text, size_t len)
{
    enum { MAX_KNOWN = 24 };
    struct ckpt_node **known =
        kind == CKPT_STR && len && len <= MAX_KNOWN ? known_text(m, text, len) : NULL;
    if (known && *known && (*known)->len == len && memcmp((*known)->text, text, len) == 0)
        return ckpt_pickle_push(m, *known);
    if (len > UINT32_MAX)
        return ckpt_pickle_refuse(m, S2S_E_UNSUPPORTED, "text of more than 4 GiB");
    struct ckpt_node *node = ckpt_pickle_new_node(m, kind);
    node->text = m->windowed ? memcpy(ckpt_pickle_alloc(m->out, len + 1), text, len) : text;
    node->len = (uint32_t)len;
    if (known)
        *known = node;
    return ckpt_pickle_push(m, node);
}

const unsigned char *ckpt_pickle_take(struct pickle_machine *m, size_t n)
{
    if (n > m->len - m->at || ckpt_pickle_fill(m, m->at + n) < 0)
        return NULL;
    m->at += n;
    return m->bytes + m->at - n;
}

uint64_t ckpt_pickle_le(const unsigned char *p, int n)
{
    uint64_t value = 0;
    for (int i = 0; i < n; i++)
        value |= (uint64_t)p[i] << 8 * i;
    return value;
}

/* A string preceded by its length in size_bytes bytes. */
static int op_counted(struct pickle_machine *m, enum ckpt_kind kind, int size_bytes)
{
    const unsigned char *p = ckpt_pickle_take(m, (size_t)size_bytes);
    if (!p)
        return ckpt_pickle_truncated(m);
    uint64_t len = ckpt_pickle_le(p, size_bytes);
    if (len > m->len - m->at)
        return s2s_error_set(m->err, S2S_E_TRUNCATED,
                             "pickle: string of %llu bytes at byte %zu, %zu are left",
                             (unsigned long long)len, m->op_at, m->len - m->at);
    if (m->windowed && ckpt_pickle_is_large(len))
        return ckpt_pickle_push_long(m, kind, len);
    const char *text = (const char *)ckpt_pickle_take(m, len);
    return text ? push_text(m, kind, text, len) : ckpt_pickle_truncated(m);
}

/* Consumes the newline, too. */
int ckpt_pickle_take_line(struct pickle_machine *m, const char **line, size_t *len)
{
    enum { LONG_LINE = 4096, MAX_LINE = 4 << 20 };
    const unsigned char *p = m->bytes + m->at, *end = NULL;
    for (size_t room = LONG_LINE; !end && room <= MAX_LINE; room *= 32) {
        if (ckpt_pickle_fill(m, m->at + room) < 0)
            return m->io_rc;
        end = memchr(p, '\n', m->filled - m->at);
    }
    if (!end && m->filled < m->len)
        return ckpt_pickle_refuse(m, S2S_E_UNSUPPORTED, "line of more than 4 MiB");
    if (!end)
        return ckpt_pickle_truncated(m);
    *line = (const char *)p;
    *len = (size_t)(end - p);
    m->at += *len + 1;
    return 0;
}

static int op_long(struct pickle_machine *m, uint64_t len)
{
    if (m->windowed && len <= m->len - m->at && ckpt_pickle_is_large(len))
        return ckpt_pickle_push_long(m, CKPT_BIGINT, len);
    const unsigned char *p = len <= m->len - m->at ? ckpt_pickle_take(m, len) : NULL;
    if (!p)
        return ckpt_pickle_truncated(m);
    if (len > 8)
        return push_text(m, CKPT_BIGINT, (const char *)p, len);
    uint64_t value = ckpt_pickle_le(p, (int)len);
    if (len && len < 8 && p[len - 1] & 0x80)
        value |= ~(uint64_t)0 << 8 * len;
    return push_int(m, (int64_t)value);
}

/* An integer of more than 64 bits, converted to the bytes of LONG1. */
static int push_decimal(struct pickle_machine *m, const char *text)
{
    enum { N = 32, IN_64_BITS = 8 }; /* for 63 digits and a sign */
    unsigned char *bytes = ckpt_pickle_alloc(m->out, N);
    const bool negative = *text == '-';
    size_t n = N;
    text += negative;
    if (strspn(text, "0123456789") != strlen(text) || !*text)
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "not an integer");
    for (; *text; text++) {
        unsigned carry = (unsigned)(*text - '0');
        for (size_t i = 0; i < N; i++, carry >>= 8) {
            carry += 10u * bytes[i];
            bytes[i] = (unsigned char)carry;
        }
    }
    for (size_t i = 0, carry = 1; negative && i < N; i++, carry >>= 8) {
        carry += (unsigned char)~bytes[i];
        bytes[i] = (unsigned char)carry;
    }
    const unsigned char sign = negative ? 0xff : 0;
    while (n > IN_64_BITS + 1 && bytes[n - 1] == sign && (bytes[n - 2] & 0x80) == (sign & 0x80))
        n--;
    return push_text(m, CKPT_BIGINT, (const char *)bytes, n);
}

/* INT, LONG, FLOAT: decimal text */
static int op_number_line(struct pickle_machine *m, char op)
{
    const char *line = NULL;
    size_t len = 0;
    char text[64];
    int rc = ckpt_pickle_take_line(m, &line, &len);
    if (rc < 0)
        return rc;
    if (op == OP_LONG && len && line[len - 1] == 'L')
        len--;
    if (len >= sizeof text)
        return ckpt_pickle_refuse(m, S2S_E_UNSUPPORTED, "number of more than 63 digits");
    memcpy(text, line, len);
    text[len] = 0;
    if (op == OP_INT && (strcmp(text, "00") == 0 || strcmp(text, "01") == 0))
        return push_bool(m, text[1] == '1');
    if (op == OP_FLOAT) {
        char *end;
        struct ckpt_node *node = ckpt_pickle_new_node(m, CKPT_FLOAT);
        node->f = strtod(text, &end);
        return *text && !*end ? ckpt_pickle_push(m, node)
                              : ckpt_pickle_refuse(m, S2S_E_FORMAT, "not a number");
    }
    int64_t value;
    return s2s_parse_i64(&value, text, INT64_MIN, INT64_MAX, NULL) < 0 ? push_decimal(m, text)
                                                                       : push_int(m, value);
}

/* UNICODE: raw-unicode-escape, in which only \u and \U are escapes; bytes are Latin-1. */
static int op_unicode_line(struct pickle_machine *m)
{
    const char *line = NULL;
    size_t len = 0, n = 0;
    int rc = ckpt_pickle_take_line(m, &line, &len);
    if (rc < 0)
        return rc;
    char *text = ckpt_pickle_alloc(m->out, 2 * len + 4);
    for (size_t i = 0; i < len;) {
        uint32_t c = (unsigned char)line[i];
        size_t used = 1;
        if (c == '\\' && i + 1 < len && (line[i + 1] == 'u' || line[i + 1] == 'U')) {
            int digits = line[i + 1] == 'u' ? 4 : 8;
            if (len - i - 2 < (size_t)digits ||
                s2s_parse_hex(&c, line + i + 2, (size_t)digits) < 0 || c > 0x10FFFF ||
                (c >= 0xD800 && c < 0xE000))
                return ckpt_pickle_refuse(m, S2S_E_FORMAT, "bad \\u escape");
            used = 2 + (size_t)digits;
        }
        n += s2s_utf8_put(text + n, c);
        i += used;
        if (c == '\\' && used == 1 && i < len && line[i] == '\\')
            text[n++] = line[i++]; /* an escaped backslash: no escape starts here */
    }
    return push_text(m, CKPT_STR, text, n);
}

/* STRING: a quoted Python literal */
static int op_string_line(struct pickle_machine *m)
{
    const char *line = NULL;
    size_t len = 0, n = 0;
    int rc = ckpt_pickle_take_line(m, &line, &len);
    if (rc < 0)
        return rc;
    if (len < 2 || (line[0] != '\'' && line[0] != '"') || line[len - 1] != line[0])
        return ckpt_pickle_refuse(m, S2S_E_FORMAT, "string without quotes");
    char *text = ckpt_pickle_alloc(m->out, len);
    for (size_t i = 1; i < len - 1;) {
        uint32_t c;
        if (line[i] != '\\') {
            text[n++] = line[i++];
            continue;
        }
        if (i + 2 >= len)
            return ckpt_pickle_refuse(m, S2S_E_FORMAT, "bad escape in a string");
        static const char plain[] = "\\\\''\"\"n\nt\tr\r";
        const char *found = NULL;
        for (const char *p = plain; *p && !found; p += 2)
            found = *p == line[i + 1] ? p : NULL;
        if (found) {
            text[n++] = found[1];
            i += 2;
        } else if (line[i + 1] == 'x' && len - 3 - i >= 2 &&
                   s2s_parse_hex(&c, line + i + 2, 2) == 0) {
            text[n++] = (char)c;
            i += 4;
        } else {
            return ckpt_pickle_refuse(m, S2S_E_FORMAT, "bad escape in a string");
        }
    }
    return push_text(m, CKPT_STR, text, n);
}

static int op_binfloat(struct pickle_machine *m)
{
    const unsigned char *p = ckpt_pickle_take(m, 8);
    if (!p)
        return ckpt_pickle_truncated(m);
    uint64_t bits = __builtin_bswap64(ckpt_pickle_le(p, 8));
    struct ckpt_node *node = ckpt_pickle_new_node(m, CKPT_FLOAT);
    memcpy(&node->f, &bits, 8);
    return ckpt_pickle_push(m, node);
}

/* An unsigned or, if 4 bytes, signed little-endian number. */
static int op_binint(struct pickle_machine *m, int n_bytes)
{
    const unsigned char *p = ckpt_pickle_take(m, (size_t)n_bytes);
    if (!p)
        return ckpt_pickle_truncated(m);
    return push_int(m, n_bytes == 4 ? (int32_t)ckpt_pickle_le(p, 4)
                                    : (int64_t)ckpt_pickle_le(p, n_bytes));
}

/* Strings and numbers. */
int ckpt_pickle_run_value(struct pickle_machine *m, unsigned char op)
{
    switch (op) {
    case OP_NONE:
        return ckpt_pickle_push(m, ckpt_pickle_known(m, &m->known.none, CKPT_NONE, 0));
    case OP_NEWTRUE:
        return push_bool(m, true);
    case OP_NEWFALSE:
        return push_bool(m, false);
    case OP_INT:
    case OP_LONG:
    case OP_FLOAT:
        return op_number_line(m, (char)op);
    case OP_BININT:
        return op_binint(m, 4);
    case OP_BININT1:
        return op_binint(m, 1);
    case OP_BININT2:
        return op_binint(m, 2);
    case OP_LONG1:
        return ckpt_pickle_sized(m, 1, op_long);
    case OP_LONG4:
        return ckpt_pickle_sized(m, 4, op_long);
    case OP_BINFLOAT:
        return op_binfloat(m);
    case OP_STRING:
        return op_string_line(m);
    case OP_UNICODE:
        return op_unicode_line(m);
    case OP_BINSTRING:
    case OP_BINUNICODE:
        return op_counted(m, CKPT_STR, 4);
    case OP_SHORT_BINSTRING:
    case OP_SHORT_BINUNICODE:
        return op_counted(m, CKPT_STR, 1);
    case OP_BINUNICODE8:
        return op_counted(m, CKPT_STR, 8);
    case OP_BINBYTES:
        return op_counted(m, CKPT_BYTES, 4);
    case OP_SHORT_BINBYTES:
        return op_counted(m, CKPT_BYTES, 1);
    case OP_BINBYTES8:
        return op_counted(m, CKPT_BYTES, 8);
    case OP_BYTEARRAY8: {
        int rc = op_counted(m, CKPT_BYTES, 8);
        if (rc == 0)
            ckpt_pickle_top(m)->n = 1;
        return rc;
    }
    default:
        return ckpt_pickle_refuse(m, S2S_E_UNSUPPORTED, "opcode that no checkpoint needs");
    }
}
