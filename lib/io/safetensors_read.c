/* Opens safetensors files and finds tensors in them. */
#include "lib/io/safetensors.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/base/utf8.h"
#include "lib/io/safetensors_internal.h"

/* ---- order ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct s2s_st_tensor *)a)->name, ((const struct s2s_st_tensor *)b)->name);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct s2s_st_meta *)a)->key, ((const struct s2s_st_meta *)b)->key);
}

/* Canonical files are sorted already, and have nothing twice, which one pass shows. False: it was
 * sorted only now. */
static bool sort_if_needed(void *array, size_t n, size_t size,
                           int (*compare)(const void *, const void *))
{
    for (size_t i = 1; i < n; i++)
        if (compare((char *)array + (i - 1) * size, (char *)array + i * size) >= 0) {
            qsort(array, n, size, compare);
            return false;
        }
    return true;
}

static int order_names(struct s2s_safetensors *st, struct s2s_error *err)
{
    if (sort_if_needed(st->tensors, st->n_tensors, sizeof *st->tensors, by_name))
        return 0;
    for (size_t i = 1; i < st->n_tensors; i++)
        if (!strcmp(st->tensors[i].name, st->tensors[i - 1].name))
            return s2s_error_set(err, S2S_E_FORMAT, "tensor '%.200s' twice", st->tensors[i].name);
    return 0;
}

int io_order_meta(struct s2s_safetensors *st, struct s2s_error *err)
{
    if (sort_if_needed(st->meta, st->n_meta, sizeof *st->meta, by_key))
        return 0;
    for (size_t i = 1; i < st->n_meta; i++)
        if (!strcmp(st->meta[i].key, st->meta[i - 1].key))
            return s2s_error_set(err, S2S_E_FORMAT, "metadata key '%.200s' twice", st->meta[i].key);
    return 0;
}

int io_header_length(size_t *header_len, const void *head, uint64_t len, struct s2s_error *err)
{
    uint64_t told;
    memcpy(&told, head, sizeof told);
    if (told > S2S_SAFETENSORS_MAX_HEADER)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "a safetensors header of %llu bytes (at most %d are allowed)",
                             (unsigned long long)told, S2S_SAFETENSORS_MAX_HEADER);
    if (told > len - 8)
        return s2s_error_set(err, S2S_E_TRUNCATED,
                             "the safetensors header has %llu bytes, the file %llu",
                             (unsigned long long)told, (unsigned long long)len);
    *header_len = (size_t)told;
    return 0;
}

int io_too_short(uint64_t len, struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_TRUNCATED, "%llu bytes are no safetensors file",
                         (unsigned long long)len);
}

int io_not_utf8(struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT, "the safetensors header is not UTF-8");
}

struct tables {
    struct s2s_safetensors *st;
    size_t cap_tensors, cap_meta;
    struct io_extents extents;
};

static int add_member(void *ctx, const struct io_member *member, struct s2s_error *err)
{
    struct tables *tables = ctx;
    struct s2s_safetensors *st = tables->st;
    (void)err;
    if (!member->tensor.name) {
        s2s_grow(&st->meta, st->n_meta, &tables->cap_meta, sizeof *st->meta);
        st->meta[st->n_meta++] = member->meta;
        return 0;
    }
    io_extents_add(&tables->extents, member->begin, member->tensor.len_bytes);
    s2s_grow(&st->tensors, st->n_tensors, &tables->cap_tensors, sizeof *st->tensors);
    st->tensors[st->n_tensors] = member->tensor;
    /* an offset until the whole header is read */
    st->tensors[st->n_tensors++].data = (const void *)(uintptr_t)member->begin;
    return 0;
}

/* Checks that tensors cover the data exactly. To be called before they are sorted. */
static int check_places(struct tables *tables, struct s2s_error *err)
{
    struct io_extents *extents = &tables->extents;
    const struct s2s_st_tensor *tensors = tables->st->tensors;
    int rc = io_extents_end(extents, err);
    if (rc > 0) {
        for (size_t i = 0; i < tables->st->n_tensors; i++)
            io_extents_add(extents, (uintptr_t)tensors[i].data, tensors[i].len_bytes);
        rc = io_extents_end(extents, err);
    }
    return extents->is_bad ? io_misplaced(extents, tensors[extents->bad.idx].name, err) : rc;
}

/* Makes the tables from a header that is followed by data_len bytes of data. */
static int parse_header(struct s2s_safetensors *st, const char *json, size_t header_len,
                        size_t data_len, struct s2s_error *err)
{
    if (!s2s_utf8_valid(json, header_len))
        return io_not_utf8(err);
    struct io_internal *internal = s2s_xcalloc(1, sizeof *internal);
    internal->strings = s2s_xmalloc(header_len + 1);
    st->internal = internal;
    struct tables tables = {.st = st, .extents = {.data_len = data_len}};
    struct io_scan s = {.p = json,
                        .begin = json,
                        .end = json + header_len,
                        .out = internal->strings,
                        .member = add_member,
                        .ctx = &tables,
                        .err = err};
    int rc = io_scan_part(&s, IO_AT_END);
    if (rc == 0)
        rc = check_places(&tables, err);
    else
        io_extents_end(&tables.extents, NULL);
    if (rc == 0)
        rc = order_names(st, err);
    if (rc == 0)
        rc = io_order_meta(st, err);
    for (size_t i = 0; rc == 0 && i < st->n_tensors; i++)
        st->tensors[i].data = json + header_len + (uintptr_t)st->tensors[i].data;
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
        return io_too_short(len, err);
    int rc = io_header_length(&header_len, bytes, len, err);
    if (rc < 0)
        return rc;
    return parse_header(st, (const char *)bytes + 8, header_len, len - 8 - header_len, err);
}

static int map_file(struct s2s_safetensors *st, int fd, struct s2s_error *err)
{
    struct stat info;
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
    struct io_internal *internal = st->internal;
    internal->map = map;
    internal->map_len = len;
    return 0;
}

int s2s_safetensors_open(struct s2s_safetensors *st, const char *path, struct s2s_error *err)
{
    *st = (struct s2s_safetensors){0};
    /* O_NONBLOCK: do not wait for the other end of a pipe, which is rejected */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", path);
    int rc = map_file(st, fd, err);
    close(fd);
    return rc < 0 ? s2s_error_add(err, rc, "%s", path) : 0;
}

void s2s_safetensors_release(struct s2s_safetensors *st)
{
    if (!st)
        return;
    struct io_internal *internal = st->internal;
    if (internal) {
        if (internal->map)
            munmap(internal->map, internal->map_len);
        free(internal->strings);
        s2s_blocks_release(&internal->texts);
        free(internal);
    }
    free(st->tensors);
    free(st->meta);
    *st = (struct s2s_safetensors){0};
}

/* ---- looking up ---- */

const struct s2s_st_tensor *s2s_safetensors_find(const struct s2s_safetensors *st, const char *name)
{
    size_t low = 0, high = st->n_tensors;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const char *here = st->tensors[mid].name;
        int order = (unsigned char)name[0] - (unsigned char)here[0];
        if (order == 0 && (order = strcmp(name, here)) == 0)
            return &st->tensors[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
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
