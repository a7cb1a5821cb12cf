#include "lib/io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/base/utf8.h"
#include "lib/io/pread.h"

/* What the safetensors library takes at most. */
#define MAX_HEADER_BYTES ((uint64_t)100000000)

/* What a parsed file owns beside its two arrays. */
struct st_internal {
    void *map; /* NULL: the bytes are the caller's */
    size_t map_len;
    char *strings; /* every name, key and value, unescaped */
};

/*
 * The header's JSON is a small fixed shape, so it is read in one pass straight into the tables: a
 * stream has one for every record, and a general tree would cost more than the digest of the data.
 */
struct scan {
    const char *p, *end, *begin;
    char *out; /* where the next unescaped string goes; never outruns p */
    struct s2s_safetensors *st;
    size_t cap_tensors, cap_meta;
    bool has_meta;
    struct s2s_error *err;
};

static int refuse(struct scan *s, const char *what)
{
    return s2s_error_set(s->err, S2S_E_FORMAT, "safetensors header: %s at byte %zu", what,
                         (size_t)(s->p - s->begin) + 8);
}

static void skip_space(struct scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t'))
        s->p++;
}

/* Takes c, after white space, if it is there. */
static bool take(struct scan *s, char c)
{
    skip_space(s);
    if (s->p < s->end && *s->p == c) {
        s->p++;
        return true;
    }
    return false;
}

static int scan_hex4(struct scan *s, uint32_t *value)
{
    if (s->end - s->p < 4)
        return refuse(s, "a cut escape");
    if (s2s_parse_hex(value, s->p, 4) < 0)
        return refuse(s, "a bad escape");
    s->p += 4;
    return 0;
}

static int scan_escape(struct scan *s)
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

static int scan_string(struct scan *s, const char **text)
{
    if (!take(s, '"'))
        return refuse(s, "expected a string");
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
    if (s->p == s->end)
        return refuse(s, "a string without end");
    s->p++;
    *s->out++ = 0;
    *text = begin;
    return 0;
}

static int scan_u64(struct scan *s, uint64_t *value)
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

/* [a, b, ...] of at most max numbers */
static int scan_numbers(struct scan *s, uint64_t *values, int max, int *n)
{
    *n = 0;
    if (!take(s, '['))
        return refuse(s, "expected [");
    if (take(s, ']'))
        return 0;
    do {
        if (*n == max)
            return refuse(s, "a list that is too long");
        int rc = scan_u64(s, &values[(*n)++]);
        if (rc < 0)
            return rc;
    } while (take(s, ','));
    return take(s, ']') ? 0 : refuse(s, "expected ]");
}

static int scan_meta(struct scan *s)
{
    if (s->has_meta)
        return refuse(s, "__metadata__ twice");
    s->has_meta = true;
    if (!take(s, '{'))
        return refuse(s, "expected {");
    if (take(s, '}'))
        return 0;
    do {
        struct s2s_st_meta m = {NULL, NULL};
        int rc = scan_string(s, &m.key);
        if (rc == 0 && !take(s, ':'))
            rc = refuse(s, "expected :");
        if (rc == 0)
            rc = scan_string(s, &m.value);
        if (rc < 0)
            return rc;
        s2s_grow(&s->st->meta, s->st->n_meta, &s->cap_meta, sizeof m);
        s->st->meta[s->st->n_meta++] = m;
    } while (take(s, ','));
    return take(s, '}') ? 0 : refuse(s, "expected }");
}

/* Shape and offsets of one tensor; data is an offset until the header is through. */
static int scan_tensor(struct scan *s, const char *name)
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
        if (!strcmp(key, "dtype")) {
            field = DTYPE;
            rc = scan_string(s, &dtype);
            if (rc == 0 && (t.dtype = s2s_dtype_parse(dtype)) == S2S_DTYPE_NONE)
                rc = s2s_error_set(s->err, S2S_E_DTYPE, "tensor '%.200s' has unknown dtype '%.40s'",
                                   name, dtype);
        } else if (!strcmp(key, "shape")) {
            field = SHAPE;
            rc = scan_numbers(s, shape, S2S_MAX_DIMS, &t.n_dims);
        } else if (!strcmp(key, "data_offsets")) {
            field = OFFSETS;
            rc = scan_numbers(s, offsets, 2, &n_offsets);
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
    t.data = (const void *)(uintptr_t)offsets[0];
    t.len_bytes = need;
    s2s_grow(&s->st->tensors, s->st->n_tensors, &s->cap_tensors, sizeof t);
    s->st->tensors[s->st->n_tensors++] = t;
    return 0;
}

static int scan_header(struct scan *s)
{
    if (s->p == s->end || *s->p != '{')
        return refuse(s, "expected {");
    s->p++;
    if (!take(s, '}')) {
        do {
            const char *name;
            int rc = scan_string(s, &name);
            if (rc == 0 && !take(s, ':'))
                rc = refuse(s, "expected :");
            if (rc == 0)
                rc = strcmp(name, "__metadata__") ? scan_tensor(s, name) : scan_meta(s);
            if (rc < 0)
                return rc;
        } while (take(s, ','));
        if (!take(s, '}'))
            return refuse(s, "expected }");
    }
    skip_space(s);
    return s->p == s->end ? 0 : refuse(s, "something after the object");
}

/* ---- order and place ---- */

static uintptr_t begin_of(const struct s2s_st_tensor *tensor)
{
    return (uintptr_t)tensor->data;
}

static int by_offset(const void *a, const void *b)
{
    const struct s2s_st_tensor *x = *(struct s2s_st_tensor *const *)a,
                               *y = *(struct s2s_st_tensor *const *)b;
    uintptr_t i = begin_of(x), j = begin_of(y);
    if (i != j)
        return i < j ? -1 : 1;
    /* tensors without elements share an offset with the one that follows */
    return (x->len_bytes > y->len_bytes) - (x->len_bytes < y->len_bytes);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct s2s_st_tensor *)a)->name, ((const struct s2s_st_tensor *)b)->name);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct s2s_st_meta *)a)->key, ((const struct s2s_st_meta *)b)->key);
}

/* Canonical files are in order already: one pass shows it, and no sort is needed. */
static void sort_if_needed(void *array, size_t n, size_t size,
                           int (*compare)(const void *, const void *))
{
    for (size_t i = 1; i < n; i++)
        if (compare((char *)array + (i - 1) * size, (char *)array + i * size) > 0) {
            qsort(array, n, size, compare);
            return;
        }
}

/* Every byte of the data belongs to exactly one tensor. */
static int check_data(struct s2s_safetensors *st, size_t data_len, struct s2s_error *err)
{
    struct s2s_st_tensor **order = s2s_xcalloc(st->n_tensors, sizeof *order);
    uint64_t at = 0;
    int rc = 0;
    for (size_t i = 0; i < st->n_tensors; i++)
        order[i] = &st->tensors[i];
    sort_if_needed(order, st->n_tensors, sizeof(struct s2s_st_tensor *), by_offset);
    for (size_t i = 0; i < st->n_tensors && rc == 0; i++) {
        uint64_t begin = begin_of(order[i]), len = order[i]->len_bytes;
        if (begin != at)
            rc =
                s2s_error_set(err, S2S_E_FORMAT,
                              "tensor '%.200s' begins at byte %llu of the data, %llu expected (%s)",
                              order[i]->name, (unsigned long long)begin, (unsigned long long)at,
                              begin < at ? "overlap" : "hole");
        else if (len > data_len - at)
            rc = s2s_error_set(
                err, S2S_E_TRUNCATED, "tensor '%.200s' needs %llu bytes at %llu, the data has %zu",
                order[i]->name, (unsigned long long)len, (unsigned long long)at, data_len);
        at += len;
    }
    free(order);
    if (rc == 0 && at != data_len)
        rc =
            s2s_error_set(err, S2S_E_FORMAT, "the tensors end at byte %llu of the data, it has %zu",
                          (unsigned long long)at, data_len);
    return rc;
}

static int order_names(struct s2s_safetensors *st, struct s2s_error *err)
{
    sort_if_needed(st->tensors, st->n_tensors, sizeof *st->tensors, by_name);
    for (size_t i = 1; i < st->n_tensors; i++)
        if (!strcmp(st->tensors[i].name, st->tensors[i - 1].name))
            return s2s_error_set(err, S2S_E_FORMAT, "tensor '%.200s' twice", st->tensors[i].name);
    sort_if_needed(st->meta, st->n_meta, sizeof *st->meta, by_key);
    for (size_t i = 1; i < st->n_meta; i++)
        if (!strcmp(st->meta[i].key, st->meta[i - 1].key))
            return s2s_error_set(err, S2S_E_FORMAT, "metadata key '%.200s' twice", st->meta[i].key);
    return 0;
}

/* The length that the 8 bytes at head tell, of a file of len bytes. */
static int header_length(size_t *header_len, const void *head, uint64_t len, struct s2s_error *err)
{
    uint64_t told;
    memcpy(&told, head, sizeof told);
    if (told > MAX_HEADER_BYTES)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "a safetensors header of %llu bytes (at most %llu are allowed)",
                             (unsigned long long)told, (unsigned long long)MAX_HEADER_BYTES);
    if (told > len - 8)
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "the safetensors header has %llu bytes, the file %llu",
                             (unsigned long long)told, (unsigned long long)len);
    *header_len = (size_t)told;
    return 0;
}

static int too_short(uint64_t len, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_TRUNCATED, "%llu bytes are no safetensors file",
                         (unsigned long long)len);
}

/* The tables of a header before data_len bytes of data. */
static int parse_header(struct s2s_safetensors *st, const char *json, size_t header_len,
                        size_t data_len, struct s2s_error *err)
{
    if (!s2s_utf8_valid(json, header_len))
        return s2s_error_set(err, S2S_E_FORMAT, "the safetensors header is not UTF-8");
    struct st_internal *internal = s2s_xcalloc(1, sizeof *internal);
    internal->strings = s2s_xmalloc(header_len + 1);
    st->internal = internal;
    struct scan s = {.p = json,
                     .begin = json,
                     .end = json + header_len,
                     .out = internal->strings,
                     .st = st,
                     .err = err};
    int rc = scan_header(&s);
    if (rc == 0)
        rc = check_data(st, data_len, err);
    if (rc == 0)
        rc = order_names(st, err);
    if (rc < 0)
        s2s_safetensors_release(st);
    return rc;
}

int s2s_safetensors_parse(struct s2s_safetensors *st, const void *bytes, size_t len,
                          struct s2s_error *err)
{
    size_t header_len = 0;
    *st = (struct s2s_safetensors){0};
    if (len < 8)
        return too_short(len, err);
    int rc = header_length(&header_len, bytes, len, err);
    if (rc < 0)
        return rc;
    const char *json = (const char *)bytes + 8, *data = json + header_len;
    rc = parse_header(st, json, header_len, len - 8 - header_len, err);
    for (size_t i = 0; rc == 0 && i < st->n_tensors; i++)
        st->tensors[i].data = data + begin_of(&st->tensors[i]);
    return rc;
}

int s2s_safetensors_read_header(struct s2s_safetensors *st, int fd, int64_t *data_pos,
                                struct s2s_error *err)
{
    struct stat info;
    char head[9]; /* the length, and the first byte of the JSON */
    size_t header_len = 0;
    *st = (struct s2s_safetensors){0};
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode))
        return s2s_error_set(err, S2S_E_OPEN, "is not a regular file");
    const uint64_t len = (uint64_t)info.st_size;
    if (len < 8)
        return too_short(len, err);
    int rc = s2s_pread(fd, head, len < sizeof head ? 8 : sizeof head, 0, err);
    if (rc == 0)
        rc = header_length(&header_len, head, len, err);
    if (rc == 0 && header_len && head[8] != '{')
        rc = s2s_error_set(err, S2S_E_FORMAT, "safetensors header: expected { at byte 8");
    char *json = rc == 0 ? s2s_try_calloc(header_len + 1, 1, "a safetensors header", err) : NULL;
    if (rc == 0)
        rc = json ? s2s_pread(fd, json, header_len, 8, err) : S2S_E_NOMEM;
    if (rc == 0)
        rc = parse_header(st, json, header_len, (size_t)(len - 8 - header_len), err);
    free(json);
    if (rc < 0)
        return rc;
    *data_pos = 8 + (int64_t)header_len;
    st->begins = s2s_xmalloc((st->n_tensors + 1) * sizeof *st->begins);
    for (size_t i = 0; i < st->n_tensors; i++) {
        st->begins[i] = begin_of(&st->tensors[i]);
        st->tensors[i].data = NULL;
    }
    return 0;
}

int s2s_safetensors_map(struct s2s_safetensors *st, int fd, struct s2s_error *err)
{
    struct stat info;
    *st = (struct s2s_safetensors){0};
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode))
        return s2s_error_set(err, S2S_E_OPEN, "is not a regular file");
    size_t len = (size_t)info.st_size;
    void *map = len ? mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    if (map == MAP_FAILED)
        return s2s_error_errno(err, S2S_E_IO, "cannot map");
    int rc = s2s_safetensors_parse(st, map, len, err);
    if (rc < 0) {
        if (map)
            munmap(map, len);
        return rc;
    }
    struct st_internal *internal = st->internal;
    internal->map = map;
    internal->map_len = len;
    return 0;
}

int s2s_safetensors_open(struct s2s_safetensors *st, const char *path, struct s2s_error *err)
{
    *st = (struct s2s_safetensors){0};
    /* not to wait for the other end of a pipe, which is refused */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", path);
    int rc = s2s_safetensors_map(st, fd, err);
    close(fd);
    return rc < 0 ? s2s_error_add(err, rc, "%s", path) : 0;
}

void s2s_safetensors_release(struct s2s_safetensors *st)
{
    if (!st)
        return;
    struct st_internal *internal = st->internal;
    if (internal) {
        if (internal->map)
            munmap(internal->map, internal->map_len);
        free(internal->strings);
        free(internal);
    }
    free(st->tensors);
    free(st->meta);
    free(st->begins);
    *st = (struct s2s_safetensors){0};
}

/* ---- looking up ---- */

const struct s2s_st_tensor *s2s_safetensors_find(const struct s2s_safetensors *st, const char *name)
{
    struct s2s_st_tensor key = {.name = name};
    return st->n_tensors ? bsearch(&key, st->tensors, st->n_tensors, sizeof key, by_name) : NULL;
}

const char *s2s_safetensors_meta(const struct s2s_safetensors *st, const char *key)
{
    struct s2s_st_meta wanted = {.key = key};
    const struct s2s_st_meta *found =
        st->n_meta ? bsearch(&wanted, st->meta, st->n_meta, sizeof wanted, by_key) : NULL;
    return found ? found->value : NULL;
}

int64_t s2s_st_numel(const struct s2s_st_tensor *tensor)
{
    int64_t n = 1;
    for (int d = 0; d < tensor->n_dims; d++)
        n *= tensor->shape[d];
    return n;
}
