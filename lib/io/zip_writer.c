/* Writes archives of stored members in one pass. */
#include "lib/io/zip.h"

#include "lib/base/base.h"
#include "lib/io/crc32.h"

/* sizes and CRC follow the data in a descriptor (bit 3); names are UTF-8 (bit 11) */
enum { FLAGS = 0x0808, VERSION = 20, VERSION64 = 45, DOS_DATE = 0x21 };

struct written {
    char *name;
    int64_t header, len_bytes;
    uint32_t crc;
    bool has_crc; /* given by s2s_zip_give_crc */
};

struct s2s_zip_writer {
    s2s_zip_sink *sink;
    void *ctx;
    int64_t pos;
    struct written *members;
    size_t n_members, cap;
    struct s2s_buf buf;
};

struct s2s_zip_writer *s2s_zip_writer_new(s2s_zip_sink *sink, void *ctx)
{
    struct s2s_zip_writer *zip = s2s_xcalloc(1, sizeof *zip);
    zip->sink = sink;
    zip->ctx = ctx;
    return zip;
}

static int emit(struct s2s_zip_writer *zip, const void *bytes, size_t len, struct s2s_error *err)
{
    int rc = zip->sink(zip->ctx, bytes, len, err);
    zip->pos += (int64_t)len;
    return rc;
}

static int emit_buf(struct s2s_zip_writer *zip, struct s2s_error *err)
{
    int rc = emit(zip, zip->buf.data, zip->buf.len, err);
    s2s_buf_clear(&zip->buf);
    return rc;
}

int s2s_zip_begin(struct s2s_zip_writer *zip, const char *name, int align, struct s2s_error *err)
{
    size_t name_len = strlen(name);
    s2s_grow(&zip->members, zip->n_members, &zip->cap, sizeof *zip->members);
    zip->members[zip->n_members++] =
        (struct written){.name = s2s_xstrdup(name), .header = zip->pos};
    struct s2s_buf *buf = &zip->buf;
    s2s_buf_add(buf, "PK\3\4", 4);
    s2s_buf_put_le(buf, VERSION, 2);
    s2s_buf_put_le(buf, FLAGS, 2);
    s2s_buf_put_le(buf, 0, 2); /* stored */
    s2s_buf_put_le(buf, 0, 2); /* time */
    s2s_buf_put_le(buf, DOS_DATE, 2);
    s2s_buf_put_le(buf, 0, 4); /* crc, sizes: in the descriptor */
    s2s_buf_put_le(buf, 0, 8);
    s2s_buf_put_le(buf, name_len, 2);
    int64_t data = zip->pos + 30 + (int64_t)name_len;
    /* torch's padding: an extra field with id "FB", filled with Z */
    int64_t pad = align > 1 ? (align - (data + 4) % align) % align : -4;
    s2s_buf_put_le(buf, (uint64_t)(pad + 4), 2);
    s2s_buf_puts(buf, name);
    if (align > 1) {
        s2s_buf_puts(buf, "FB");
        s2s_buf_put_le(buf, (uint64_t)pad, 2);
        for (int64_t i = 0; i < pad; i++)
            s2s_buf_putc(buf, 'Z');
    }
    return emit_buf(zip, err);
}

int s2s_zip_write(struct s2s_zip_writer *zip, const void *bytes, size_t len, struct s2s_error *err)
{
    struct written *member = &zip->members[zip->n_members - 1];
    if (!member->has_crc)
        member->crc = s2s_crc32(member->crc, bytes, len);
    member->len_bytes += (int64_t)len;
    return emit(zip, bytes, len, err);
}

void s2s_zip_give_crc(struct s2s_zip_writer *zip, uint32_t crc)
{
    struct written *member = &zip->members[zip->n_members - 1];
    member->crc = crc;
    member->has_crc = true;
}

void s2s_zip_skip(struct s2s_zip_writer *zip, int64_t len)
{
    zip->members[zip->n_members - 1].len_bytes += len;
    zip->pos += len;
}

int s2s_zip_end(struct s2s_zip_writer *zip, struct s2s_error *err)
{
    const struct written *member = &zip->members[zip->n_members - 1];
    int size_bytes = member->len_bytes > UINT32_MAX ? 8 : 4;
    s2s_buf_add(&zip->buf, "PK\7\10", 4);
    s2s_buf_put_le(&zip->buf, member->crc, 4);
    s2s_buf_put_le(&zip->buf, (uint64_t)member->len_bytes, size_bytes);
    s2s_buf_put_le(&zip->buf, (uint64_t)member->len_bytes, size_bytes);
    return emit_buf(zip, err);
}

int s2s_zip_add(struct s2s_zip_writer *zip, const char *name, int align, const void *bytes,
                size_t len, struct s2s_error *err)
{
    int rc = s2s_zip_begin(zip, name, align, err);
    if (rc == 0)
        rc = s2s_zip_write(zip, bytes, len, err);
    return rc < 0 ? rc : s2s_zip_end(zip, err);
}

static void put_entry(struct s2s_buf *buf, const struct written *member)
{
    size_t name_len = strlen(member->name);
    bool big = member->len_bytes >= UINT32_MAX, far = member->header >= UINT32_MAX;
    s2s_buf_add(buf, "PK\1\2", 4);
    s2s_buf_put_le(buf, big || far ? VERSION64 : VERSION, 2);
    s2s_buf_put_le(buf, big || far ? VERSION64 : VERSION, 2);
    s2s_buf_put_le(buf, FLAGS, 2);
    s2s_buf_put_le(buf, 0, 4);
    s2s_buf_put_le(buf, DOS_DATE, 2);
    s2s_buf_put_le(buf, member->crc, 4);
    s2s_buf_put_le(buf, big ? UINT32_MAX : (uint64_t)member->len_bytes, 4);
    s2s_buf_put_le(buf, big ? UINT32_MAX : (uint64_t)member->len_bytes, 4);
    s2s_buf_put_le(buf, name_len, 2);
    s2s_buf_put_le(buf, big || far ? (uint64_t)(4 + 16 * big + 8 * far) : 0, 2);
    s2s_buf_put_le(buf, 0, 2); /* comment */
    s2s_buf_put_le(buf, 0, 2); /* disk */
    s2s_buf_put_le(buf, 0, 2); /* attributes */
    s2s_buf_put_le(buf, 0, 4);
    s2s_buf_put_le(buf, far ? UINT32_MAX : (uint64_t)member->header, 4);
    s2s_buf_puts(buf, member->name);
    if (!big && !far)
        return;
    s2s_buf_put_le(buf, 1, 2);
    s2s_buf_put_le(buf, (uint64_t)(16 * big + 8 * far), 2);
    if (big) {
        s2s_buf_put_le(buf, (uint64_t)member->len_bytes, 8);
        s2s_buf_put_le(buf, (uint64_t)member->len_bytes, 8);
    }
    if (far)
        s2s_buf_put_le(buf, (uint64_t)member->header, 8);
}

int s2s_zip_finish(struct s2s_zip_writer *zip, int64_t *len_bytes, struct s2s_error *err)
{
    struct s2s_buf *buf = &zip->buf;
    uint64_t begin = (uint64_t)zip->pos, n = zip->n_members;
    for (size_t i = 0; i < n; i++)
        put_entry(buf, &zip->members[i]);
    uint64_t len = buf->len;
    if (begin + len >= UINT32_MAX || n >= UINT16_MAX) {
        s2s_buf_add(buf, "PK\6\6", 4);
        s2s_buf_put_le(buf, 44, 8);
        s2s_buf_put_le(buf, VERSION64, 2);
        s2s_buf_put_le(buf, VERSION64, 2);
        s2s_buf_put_le(buf, 0, 8); /* disks */
        s2s_buf_put_le(buf, n, 8);
        s2s_buf_put_le(buf, n, 8);
        s2s_buf_put_le(buf, len, 8);
        s2s_buf_put_le(buf, begin, 8);
        s2s_buf_add(buf, "PK\6\7", 4);
        s2s_buf_put_le(buf, 0, 4);
        s2s_buf_put_le(buf, begin + len, 8);
        s2s_buf_put_le(buf, 1, 4);
    }
    s2s_buf_add(buf, "PK\5\6", 4);
    s2s_buf_put_le(buf, 0, 4);
    s2s_buf_put_le(buf, n < UINT16_MAX ? n : UINT16_MAX, 2);
    s2s_buf_put_le(buf, n < UINT16_MAX ? n : UINT16_MAX, 2);
    s2s_buf_put_le(buf, len < UINT32_MAX ? len : UINT32_MAX, 4);
    s2s_buf_put_le(buf, begin < UINT32_MAX ? begin : UINT32_MAX, 4);
    s2s_buf_put_le(buf, 0, 2);
    int rc = emit_buf(zip, err);
    *len_bytes = zip->pos;
    return rc;
}

void s2s_zip_writer_free(struct s2s_zip_writer *zip)
{
    if (!zip)
        return;
    for (size_t i = 0; i < zip->n_members; i++)
        free(zip->members[i].name);
    free(zip->members);
    s2s_buf_release(&zip->buf);
    free(zip);
}
