/* Writes safetensors headers and files. */
#include "lib/io/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/io/outfile.h"
#include "lib/base/utf8.h"

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct s2s_st_tensor *)a)->name, ((const struct s2s_st_tensor *)b)->name);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct s2s_st_meta *)a)->key, ((const struct s2s_st_meta *)b)->key);
}

/* Escapes like Python's json.dumps(ensure_ascii=False), so that other programs can make the same
 * bytes. */
static int put_string(struct s2s_buf *json, const char *text, struct s2s_error *err)
{
    size_t len = strlen(text);
    if (!s2s_utf8_valid(text, len))
        return s2s_error_set(err, S2S_E_FORMAT, "a name or metadata text is not UTF-8: '%.60s'",
                             text);
    s2s_buf_putc(json, '"');
    for (const char *p = text; *p; p++) {
        static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
        const char *at = strchr(from, *p);
        if (at) {
            s2s_buf_putc(json, '\\');
            s2s_buf_putc(json, to[at - from]);
        } else if ((unsigned char)*p < 0x20) {
            s2s_buf_printf(json, "\\u%04x", (unsigned char)*p);
        } else {
            s2s_buf_putc(json, *p);
        }
    }
    s2s_buf_putc(json, '"');
    return 0;
}

static int put_meta(struct s2s_buf *json, struct s2s_st_meta *meta, size_t n_meta,
                    struct s2s_error *err)
{
    if (n_meta)
        qsort(meta, n_meta, sizeof *meta, by_key);
    s2s_buf_puts(json, "\"__metadata__\":{");
    for (size_t i = 0; i < n_meta; i++) {
        if (i && !strcmp(meta[i].key, meta[i - 1].key))
            return s2s_error_set(err, S2S_E_FORMAT, "metadata key '%s' twice", meta[i].key);
        if (i)
            s2s_buf_putc(json, ',');
        int rc = put_string(json, meta[i].key, err);
        if (rc < 0)
            return rc;
        s2s_buf_putc(json, ':');
        if ((rc = put_string(json, meta[i].value, err)) < 0)
            return s2s_error_add(err, rc, "metadata '%s'", meta[i].key);
    }
    s2s_buf_putc(json, '}');
    return 0;
}

int s2s_st_put_type(struct s2s_buf *json, enum s2s_dtype dtype, const int64_t *shape, int n_dims,
                    struct s2s_error *err)
{
    const bool by_pairs = dtype == S2S_F4_E2M1FN_X2;
    if (by_pairs && (n_dims == 0 || shape[n_dims - 1] > INT64_MAX / 2))
        return s2s_error_set(err, S2S_E_SHAPE,
                             "F4 of safetensors needs a last axis that takes both elements of a "
                             "byte");
    s2s_buf_printf(json, "\"dtype\":\"%s\",\"shape\":[", by_pairs ? "F4" : s2s_dtype_name(dtype));
    for (int d = 0; d < n_dims; d++)
        s2s_buf_printf(json, "%s%lld", d ? "," : "",
                       (long long)shape[d] * (by_pairs && d == n_dims - 1 ? 2 : 1));
    s2s_buf_putc(json, ']');
    return 0;
}

static int put_tensor(struct s2s_buf *json, const struct s2s_st_tensor *t, size_t *offset,
                      struct s2s_error *err)
{
    size_t need = s2s_dtype_size(t->dtype);
    if (t->n_dims < 0 || t->n_dims > S2S_MAX_DIMS || need == 0)
        return s2s_error_set(err, S2S_E_SHAPE, "tensor '%s' has %d dimensions of dtype %s", t->name,
                             t->n_dims, s2s_dtype_name(t->dtype));
    int rc = put_string(json, t->name, err);
    if (rc < 0)
        return rc;
    s2s_buf_puts(json, ":{");
    for (int d = 0; d < t->n_dims; d++)
        if (t->shape[d] < 0 || __builtin_mul_overflow(need, (size_t)t->shape[d], &need))
            return s2s_error_set(err, S2S_E_SHAPE, "the shape of tensor '%s' overflows", t->name);
    if ((rc = s2s_st_put_type(json, t->dtype, t->shape, t->n_dims, err)) < 0)
        return s2s_error_add(err, rc, "tensor '%s'", t->name);
    if (need != t->len_bytes)
        return s2s_error_set(err, S2S_E_SHAPE, "tensor '%s' has %zu bytes, its shape needs %zu",
                             t->name, t->len_bytes, need);
    s2s_buf_printf(json, ",\"data_offsets\":[%zu,%zu]}", *offset, *offset + need);
    *offset += need;
    return 0;
}

int s2s_safetensors_header(char **header, size_t *header_len, struct s2s_st_tensor *tensors,
                           size_t n_tensors, struct s2s_st_meta *meta, size_t n_meta,
                           struct s2s_error *err)
{
    struct s2s_buf json = S2S_BUF_INIT;
    size_t offset = 0;
    int rc = 0;
    if (n_tensors)
        qsort(tensors, n_tensors, sizeof *tensors, by_name);
    s2s_buf_add(&json, "\0\0\0\0\0\0\0\0{", 9);
    if (n_meta && (rc = put_meta(&json, meta, n_meta, err)) < 0)
        goto out;
    for (size_t i = 0; i < n_tensors; i++) {
        if ((i && !strcmp(tensors[i].name, tensors[i - 1].name)) ||
            !strcmp(tensors[i].name, "__metadata__")) {
            rc = s2s_error_set(err, S2S_E_FORMAT, "tensor name '%s' is taken", tensors[i].name);
            goto out;
        }
        if (i || n_meta)
            s2s_buf_putc(&json, ',');
        if ((rc = put_tensor(&json, &tensors[i], &offset, err)) < 0)
            goto out;
    }
    s2s_buf_putc(&json, '}');
    while (json.len % 8)
        s2s_buf_putc(&json, ' ');
    uint64_t json_len = json.len - 8;
    memcpy(json.data, &json_len, 8);
    *header = json.data;
    *header_len = json.len;
    return 0;
out:
    s2s_buf_release(&json);
    return rc;
}

static int write_all(struct s2s_outfile *out, struct s2s_st_tensor *tensors, size_t n_tensors,
                     struct s2s_st_meta *meta, size_t n_meta, struct s2s_error *err)
{
    char *header = NULL;
    size_t header_len = 0;
    int rc = s2s_safetensors_header(&header, &header_len, tensors, n_tensors, meta, n_meta, err);
    if (rc == 0)
        rc = s2s_outfile_write(out, header, header_len, err);
    for (size_t i = 0; rc == 0 && i < n_tensors; i++)
        rc = s2s_outfile_write(out, tensors[i].data, tensors[i].len_bytes, err);
    free(header);
    return rc;
}

int s2s_safetensors_save(const char *path, struct s2s_st_tensor *tensors, size_t n_tensors,
                         struct s2s_st_meta *meta, size_t n_meta, struct s2s_error *err)
{
    struct s2s_outfile *out = NULL;
    int rc = s2s_outfile_open(&out, path, err);
    if (rc < 0)
        return rc;
    if ((rc = write_all(out, tensors, n_tensors, meta, n_meta, err)) < 0) {
        s2s_outfile_abort(out);
        return s2s_error_add(err, rc, "%s", path ? path : "stdout");
    }
    return s2s_outfile_commit(out, err);
}
