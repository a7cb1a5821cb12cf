/* The end member: offset, size and digest of every record, and what only the end of a pipe knows.
 */
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/io/digest.h"
#include "lib/io/safetensors.h"
#include "lib/stream/stream_internal.h"

void stream_end_release(struct stream_end *end)
{
    free(end->offset);
    free(end->size);
    free(end->xxh3);
    json_decref(end->inputs);
    *end = (struct stream_end){0};
}

void stream_end_add(struct stream_end *end, uint64_t offset, uint64_t size, uint64_t xxh3)
{
    size_t n = (size_t)end->n_records;
    if (n == end->cap) {
        end->cap = end->cap ? end->cap * 2 : 64;
        end->offset = s2s_xrealloc(end->offset, end->cap, sizeof *end->offset);
        end->size = s2s_xrealloc(end->size, end->cap, sizeof *end->size);
        end->xxh3 = s2s_xrealloc(end->xxh3, end->cap, sizeof *end->xxh3);
    }
    end->offset[n] = offset;
    end->size[n] = size;
    end->xxh3[n] = xxh3;
    end->n_records++;
}

/* XXH3-64 of the member with the field at self_at taken as 0. */
static uint64_t self_digest(const char *bytes, size_t len, size_t self_at)
{
    struct s2s_digest *digest = s2s_digest_new(64);
    static const char zero[8];
    s2s_digest_update(digest, bytes, self_at);
    s2s_digest_update(digest, zero, 8);
    s2s_digest_update(digest, bytes + self_at + 8, len - self_at - 8);
    uint64_t value = s2s_digest_value(digest);
    s2s_digest_free(digest);
    return value;
}

static bool is_hex32(const char *text)
{
    return text && strlen(text) == 32 && strspn(text, "0123456789abcdef") == 32;
}

static const struct s2s_st_tensor *u64_list(const struct s2s_safetensors *st, const char *name,
                                            int64_t n, struct s2s_error *err)
{
    const struct s2s_st_tensor *t = s2s_safetensors_find(st, name);
    if (t && t->dtype == S2S_U64 && t->n_dims == 1 && (n < 0 || t->shape[0] == n))
        return t;
    s2s_error_set(err, S2S_E_FORMAT, "tensor '%s' is missing or not U64 [N]", name);
    return NULL;
}

static int parse_inputs(struct stream_end *end, const char *text, struct s2s_error *err)
{
    json_error_t at;
    end->inputs = text ? json_loads(text, JSON_REJECT_DUPLICATES, &at) : NULL;
    size_t i, j;
    json_t *step, *input;
    bool good = json_is_array(end->inputs);
    json_array_foreach(end->inputs, i, step)
    {
        good = good && json_is_array(step);
        json_array_foreach(step, j, input) good = good && is_hex32(json_string_value(input));
    }
    return good ? 0
                : s2s_error_set(err, S2S_E_FORMAT,
                                "metadata 'inputs' is no JSON list of lists of digests");
}

static int parse_lists(struct stream_end *end, const struct s2s_safetensors *st, const char *bytes,
                       size_t len, struct s2s_error *err)
{
    const struct s2s_st_tensor *offset = u64_list(st, "offset", -1, err), *size, *xxh3, *self;
    int64_t n = offset ? offset->shape[0] : 0, n_meta = -1;
    if (!offset || !(size = u64_list(st, "size", n, err)) ||
        !(xxh3 = u64_list(st, "xxh3", n, err)) || !(self = u64_list(st, "self", 1, err)))
        return S2S_E_FORMAT;
    uint64_t stored, found = self_digest(bytes, len, (size_t)((const char *)self->data - bytes));
    memcpy(&stored, self->data, 8);
    if (stored != found)
        return s2s_error_set(err, S2S_E_DIGEST, "'self' is %016llx, its bytes give %016llx",
                             (unsigned long long)stored, (unsigned long long)found);
    const char *records = s2s_safetensors_meta(st, "records");
    if (!records || s2s_parse_i64(&n_meta, records, 0, INT64_MAX, NULL) < 0 || n_meta != n)
        return s2s_error_set(err, S2S_E_FORMAT,
                             "metadata 'records' is '%.20s', the lists have "
                             "%lld entries",
                             records ? records : "", (long long)n);
    end->n_records = n;
    end->cap = (size_t)n;
    end->offset = s2s_xmalloc(8 * (size_t)n);
    end->size = s2s_xmalloc(8 * (size_t)n);
    end->xxh3 = s2s_xmalloc(8 * (size_t)n);
    memcpy(end->offset, offset->data, 8 * (size_t)n);
    memcpy(end->size, size->data, 8 * (size_t)n);
    memcpy(end->xxh3, xxh3->data, 8 * (size_t)n);
    return 0;
}

int stream_end_parse(struct stream_end *end, const void *bytes, size_t len, struct s2s_error *err)
{
    struct s2s_safetensors st;
    *end = (struct stream_end){0};
    int rc = s2s_safetensors_parse(&st, bytes, len, err);
    if (rc < 0)
        return rc;
    rc = parse_lists(end, &st, bytes, len, err);
    const char *header = s2s_safetensors_meta(&st, "header");
    if (rc == 0 && !is_hex32(header))
        rc = s2s_error_set(err, S2S_E_FORMAT, "metadata 'header' is not 32 hex digits");
    if (rc == 0)
        rc = parse_inputs(end, s2s_safetensors_meta(&st, "inputs"), err);
    if (rc == 0) {
        memcpy(end->header_digest, header, 33);
        s2s_xxh3_128_hex(end->digest, bytes, len);
    }
    s2s_safetensors_release(&st);
    if (rc < 0)
        stream_end_release(end);
    return rc;
}

int stream_end_build(char **bytes, size_t *len, struct stream_end *end, struct s2s_error *err)
{
    char records[24], *header = NULL;
    uint64_t self = 0;
    size_t n = (size_t)end->n_records, header_len = 0;
    char *inputs = json_dumps(end->inputs, JSON_COMPACT);
    snprintf(records, sizeof records, "%zu", n);
    struct s2s_st_meta meta[] = {
        {"header", end->header_digest}, {"inputs", inputs}, {"records", records}};
    struct s2s_st_tensor tensors[] = {
        {.name = "offset", .dtype = S2S_U64, .n_dims = 1, .data = end->offset, .len_bytes = 8 * n},
        {.name = "self", .dtype = S2S_U64, .n_dims = 1, .data = &self, .len_bytes = 8},
        {.name = "size", .dtype = S2S_U64, .n_dims = 1, .data = end->size, .len_bytes = 8 * n},
        {.name = "xxh3", .dtype = S2S_U64, .n_dims = 1, .data = end->xxh3, .len_bytes = 8 * n}};
    for (int i = 0; i < 4; i++)
        tensors[i].shape[0] = i == 1 ? 1 : (int64_t)n;
    int rc = s2s_safetensors_header(&header, &header_len, tensors, 4, meta, 3, err);
    free(inputs);
    if (rc < 0)
        return rc;
    struct s2s_buf buf = {header, header_len, header_len + 1};
    s2s_buf_reserve(&buf, 24 * n + 8);
    for (int i = 0; i < 4; i++)
        s2s_buf_add(&buf, tensors[i].data, tensors[i].len_bytes);
    size_t self_at = header_len + 8 * n;
    self = self_digest(buf.data, buf.len, self_at);
    memcpy(buf.data + self_at, &self, 8);
    s2s_xxh3_128_hex(end->digest, buf.data, buf.len);
    *bytes = buf.data;
    *len = buf.len;
    return 0;
}
