/* Scans the JSON header of a safetensors file, and checks that tensors tile its data. */
#include "lib/io/safetensors_internal.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/base/utf8.h"

/*
 * The header's JSON has a small fixed structure and is scanned in one pass without a tree: every
 * record of a stream has one, and a tree would cost more than the digest of the data.
 */

static int refuse(struct io_scan *s, const char *what)
{
    return s2s_error_set(s->err, S2S_E_FORMAT, "safetensors header: %s at byte %zu", what,
                         (size_t)(s->p - s->begin) + (size_t)s->pos + 8);
}

static void skip_space(struct io_scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t'))
        s->p++;
}

/* Consumes white space, then c if it follows. */
static bool take(struct io_scan *s, char c)
{
    skip_space(s);
    if (s->p < s->end && *s->p == c) {
        s->p++;
        return true;
    }
    return false;
}

static int scan_hex4(struct io_scan *s, uint32_t *value)
{
    if (s->end - s->p < 4)
        return refuse(s, "a cut escape");
    if (s2s_parse_hex(value, s->p, 4) < 0)
        return refuse(s, "a bad escape");
    s->p += 4;
    return 0;
}

static int scan_escape(struct io_scan *s)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->p == s->end)
        return refuse(s, "a cut escape");
    char c = *s->p++;
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        *s->out++ = to[at - from];
        return 0;
    }
    uint32_t cp, low;
    if (c != 'u')
        return refuse(s, "a bad escape");
    int rc = scan_hex4(s, &cp);
    if (rc == 0 && cp >= 0xd800 && cp < 0xdc00) {
        if (s->end - s->p < 6 || s->p[0] != '\\' || s->p[1] != 'u')
            return refuse(s, "half of a surrogate pair");
        s->p += 2;
        rc = scan_hex4(s, &low);
        if (rc == 0 && (low < 0xdc00 || low > 0xdfff))
            return refuse(s, "half of a surrogate pair");
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    }
    if (rc < 0)
        return rc;
    if (cp == 0 || (cp >= 0xdc00 && cp < 0xe000))
        return refuse(s, cp ? "half of a surrogate pair" : "a NUL in a text");
    s->out += s2s_utf8_put(s->out, cp);
    return 0;
}

/* Scans up to the closing quote or the end of the part. */
static int scan_characters(struct io_scan *s, const char **text)
{
    char *begin = s->out;
    while (s->p < s->end && *s->p != '"') {
        if (*s->p == '\\') {
            s->p++;
            int rc = scan_escape(s);
            if (rc < 0)
                return rc;
        } else if ((unsigned char)*s->p < 0x20) {
            return refuse(s, "a control character in a string");
        } else {
            *s->out++ = *s->p++;
        }
    }
    *s->out++ = 0;
    *text = begin;
    return 0;
}

static int scan_quote(struct io_scan *s)
{
    if (s->p == s->end)
        return refuse(s, "a string without end");
    s->p++;
    return 0;
}

static int scan_string(struct io_scan *s, const char **text)
{
    if (!take(s, '"'))
        return refuse(s, "expected a string");
    int rc = scan_characters(s, text);
    return rc < 0 ? rc : scan_quote(s);
}

static int scan_u64(struct io_scan *s, uint64_t *value)
{
    skip_space(s);
    const char *begin = s->p;
    *value = 0;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9') {
        if (__builtin_mul_overflow(*value, (uint64_t)10, value) ||
            __builtin_add_overflow(*value, (uint64_t)(*s->p - '0'), value))
            return refuse(s, "a number past 64 bits");
        s->p++;
    }
    if (s->p == begin || (*begin == '0' && s->p - begin > 1))
        return refuse(s, "expected a whole number");
    return 0;
}

/* Scans [a, b, ...] of at most max numbers; too_many: the message if there are more. */
static int scan_numbers(struct io_scan *s, uint64_t *values, int max, int *n, const char *too_many)
{
    *n = 0;
    if (!take(s, '['))
        return refuse(s, "expected [");
    if (take(s, ']'))
        return 0;
    do {
        if (*n == max)
            return refuse(s, too_many);
        int rc = scan_u64(s, &values[(*n)++]);
        if (rc < 0)
            return rc;
    } while (take(s, ','));
    return take(s, ']') ? 0 : refuse(s, "expected ]");
}

/* Scans a key and the opening quote of its value. */
static int scan_key(struct io_scan *s, const char **key)
{
    int rc = scan_string(s, key);
    if (rc == 0 && !take(s, ':'))
        rc = refuse(s, "expected :");
    if (rc == 0 && !take(s, '"'))
        rc = refuse(s, "expected a string");
    return rc;
}

/* Scans members of the metadata, from the first one or from inside of a value. */
static int scan_texts(struct io_scan *s, enum io_part_end end)
{
    do {
        struct io_member member = {.meta = {NULL, NULL}};
        int rc = s->in_text ? 0 : scan_key(s, &member.meta.key);
        if (rc == 0)
            rc = scan_characters(s, &member.meta.value);
        if (rc == 0)
            rc = s->member(s->ctx, &member, s->err);
        s->in_text = s->p == s->end && end == IO_IN_TEXT;
        if (rc < 0 || s->in_text)
            return rc;
        if ((rc = scan_quote(s)) < 0)
            return rc;
    } while (take(s, ','));
    return take(s, '}') ? 0 : refuse(s, "expected }");
}

static int scan_meta(struct io_scan *s, enum io_part_end end)
{
    if (s->has_meta)
        return refuse(s, "__metadata__ twice");
    s->has_meta = true;
    skip_space(s);
    if (s->end - s->p >= 4 && memcmp(s->p, "null", 4) == 0) { /* Rust's None */
        s->p += 4;
        return 0;
    }
    if (!take(s, '{'))
        return refuse(s, "expected {");
    return take(s, '}') ? 0 : scan_texts(s, end);
}

/* Are they the same? Their first letters nearly always tell, and cost no call. */
static inline bool is(const char *text, const char *known)
{
    return text[0] == known[0] && text[1] == known[1] && !strcmp(text, known);
}

/* The dtype of a name in a header. */
static enum s2s_dtype dtype_of(const char *name)
{
    const enum s2s_dtype dtype = s2s_dtype_parse(name);
    if (is(name, "F4"))
        return S2S_F4_E2M1FN_X2;
    return dtype == S2S_F4_E2M1FN_X2 ? S2S_DTYPE_NONE : dtype;
}

static int scan_tensor(struct io_scan *s, const char *name)
{
    struct s2s_st_tensor t = {.name = name};
    uint64_t shape[S2S_MAX_DIMS], offsets[2] = {0, 0};
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    int seen = 0, n_offsets = 0;
    if (!take(s, '{'))
        return refuse(s, "expected {");
    do {
        const char *key, *dtype;
        int rc = scan_string(s, &key), field = 0;
        if (rc < 0)
            return rc;
        if (!take(s, ':'))
            return refuse(s, "expected :");
        if (is(key, "dtype")) {
            field = DTYPE;
            rc = scan_string(s, &dtype);
            if (rc == 0 && (t.dtype = dtype_of(dtype)) == S2S_DTYPE_NONE)
                rc = s2s_error_set(s->err, S2S_E_DTYPE, "tensor '%.200s' has unknown dtype '%.40s'",
                                   name, dtype);
        } else if (is(key, "shape")) {
            field = SHAPE;
            rc = scan_numbers(s, shape, S2S_MAX_DIMS, &t.n_dims,
                              "more axes than the 8 that are read");
        } else if (is(key, "data_offsets")) {
            field = OFFSETS;
            rc = scan_numbers(s, offsets, 2, &n_offsets, "more than two data_offsets");
        }
        if (rc < 0)
            return rc;
        if (field == 0 || seen & field)
            return refuse(s, "an unknown or repeated key of a tensor");
        seen |= field;
    } while (take(s, ','));
    if (!take(s, '}') || seen != (DTYPE | SHAPE | OFFSETS) || n_offsets != 2)
        return refuse(s, "a tensor without dtype, shape or two data_offsets");
    uint64_t need = s2s_dtype_size(t.dtype);
    if (t.dtype == S2S_F4_E2M1FN_X2) {
        uint64_t *last = t.n_dims ? &shape[t.n_dims - 1] : NULL;
        if (!last || *last % 2)
            return s2s_error_set(s->err, S2S_E_SHAPE,
                                 "tensor '%.200s' is F4, two elements a byte, and has no last axis "
                                 "of an even length",
                                 name);
        *last /= 2;
    }
    for (int d = 0; d < t.n_dims; d++) {
        if (shape[d] > INT64_MAX || __builtin_mul_overflow(need, shape[d], &need))
            return s2s_error_set(s->err, S2S_E_SHAPE, "the shape of tensor '%.200s' overflows",
                                 name);
        t.shape[d] = (int64_t)shape[d];
    }
    if (offsets[1] < offsets[0] || offsets[1] - offsets[0] != need)
        return s2s_error_set(s->err, S2S_E_SHAPE,
                             "tensor '%.200s' has data_offsets [%llu,%llu], its shape needs %llu "
                             "bytes",
                             name, (unsigned long long)offsets[0], (unsigned long long)offsets[1],
                             (unsigned long long)need);
    t.len_bytes = need;
    const struct io_member member = {.tensor = t, .begin = offsets[0]};
    return s->member(s->ctx, &member, s->err);
}

static int scan_member(struct io_scan *s, enum io_part_end end)
{
    const char *name;
    if (s->in_text)
        return scan_texts(s, end);
    int rc = scan_string(s, &name);
    if (rc == 0 && !take(s, ':'))
        rc = refuse(s, "expected :");
    if (rc == 0)
        rc = is(name, "__metadata__") ? scan_meta(s, end) : scan_tensor(s, name);
    return rc;
}

int io_scan_part(struct io_scan *s, enum io_part_end end)
{
    const bool last = end == IO_AT_END;
    bool empty = false;
    if (s->pos == 0) {
        if (s->p == s->end || *s->p != '{')
            return refuse(s, "expected {");
        s->p++;
        empty = last && take(s, '}');
    }
    int rc = 0;
    if (!empty)
        do {
            rc = scan_member(s, end);
        } while (rc >= 0 && !s->in_text && take(s, ','));
    if (rc < 0 || s->in_text)
        return rc;
    if (last && !empty && !take(s, '}'))
        return refuse(s, "expected }");
    skip_space(s);
    return s->p == s->end ? 0 : refuse(s, last ? "something after the object" : "expected }");
}

/* ---- extents ---- */

void io_extents_add(struct io_extents *x, uint64_t begin, uint64_t len)
{
    const struct io_extent extent = {begin, len, x->n_seen++};
    if (x->is_bad)
        return;
    if (x->n || begin != x->at || x->all_listed) {
        s2s_grow(&x->list, x->n, &x->cap, sizeof *x->list);
        x->list[x->n++] = extent;
    } else if (len > x->data_len - x->at) {
        x->bad = extent;
        x->is_bad = true;
    } else {
        x->at += len;
    }
}

static int by_begin(const void *a, const void *b)
{
    const struct io_extent *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    /* empty tensors have the offset of the next one */
    return (x->len > y->len) - (x->len < y->len);
}

int io_extents_end(struct io_extents *x, struct s2s_error *err)
{
    if (x->n)
        qsort(x->list, x->n, sizeof *x->list, by_begin);
    for (size_t i = 0; i < x->n && !x->is_bad; i++) {
        x->is_bad = x->list[i].begin != x->at || x->list[i].len > x->data_len - x->at;
        if (x->is_bad)
            x->bad = x->list[i];
        else
            x->at += x->list[i].len;
    }
    free(x->list);
    x->list = NULL;
    x->n = x->cap = 0;
    if (x->is_bad && x->bad.len == 0 && x->bad.begin < x->at && !x->all_listed) {
        *x = (struct io_extents){.data_len = x->data_len, .all_listed = true};
        return 1;
    }
    if (x->is_bad)
        return S2S_E_FORMAT;
    return x->at == x->data_len
               ? 0
               : s2s_error_set(err, S2S_E_FORMAT,
                               "the tensors end at byte %llu of the data, it has %llu",
                               (unsigned long long)x->at, (unsigned long long)x->data_len);
}

int io_misplaced(const struct io_extents *x, const char *name, struct s2s_error *err)
{
    const unsigned long long begin = x->bad.begin, len = x->bad.len, at = x->at;
    if (begin != at)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "tensor '%.200s' begins at byte %llu of the data, %llu expected (%s)",
                             name, begin, at, begin < at ? "overlap" : "hole");
    return s2s_error_set(err, S2S_E_TRUNCATED,
                         "tensor '%.200s' needs %llu bytes at %llu, the data has %llu", name, len,
                         at, (unsigned long long)x->data_len);
}
