/* Reads and writes the tables of seekable zstd files. */
#include "lib/io/zstdseek.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>

#include "lib/base/base.h"
#include "lib/io/digest.h"

#define FRAME_MAGIC 0xFD2FB528u
#define DIGESTS_MAGIC 0x184D2A50u
#define TABLE_MAGIC 0x184D2A5Eu
#define SEEKABLE_MAGIC 0x8F92EAB1u

enum { SKIP_HEADER = 8, ENTRY = 8, FOOTER = 9 };

static void put(struct s2s_buf *buf, uint64_t value, int n_bytes)
{
    s2s_buf_add(buf, &value, (size_t)n_bytes);
}

static uint64_t number(const unsigned char *p, int n_bytes)
{
    uint64_t value = 0;
    memcpy(&value, p, (size_t)n_bytes);
    return value;
}

int s2s_zstd_is_frame(const void *bytes)
{
    return number(bytes, 4) == FRAME_MAGIC;
}

void s2s_zstd_table_add(struct s2s_zstd_table *table, uint32_t size, uint32_t len, uint64_t xxh3)
{
    s2s_grow(&table->frames, table->n, &table->cap, sizeof *table->frames);
    struct s2s_zstd_frame *f = &table->frames[table->n++];
    *f = (struct s2s_zstd_frame){.size = size, .len = len, .xxh3 = xxh3};
    if (f > table->frames) {
        f->begin = f[-1].begin + f[-1].size;
        f->at = f[-1].at + f[-1].len;
    }
}

void s2s_zstd_table_release(struct s2s_zstd_table *table)
{
    free(table->frames);
    *table = (struct s2s_zstd_table){NULL, 0, 0};
}

void s2s_zstd_table_tail(const struct s2s_zstd_table *table, struct s2s_buf *out)
{
    put(out, DIGESTS_MAGIC, 4);
    put(out, 8 * table->n, 4);
    for (size_t i = 0; i < table->n; i++)
        put(out, table->frames[i].xxh3, 8);
    put(out, TABLE_MAGIC, 4);
    put(out, ENTRY * table->n + FOOTER, 4);
    for (size_t i = 0; i < table->n; i++) {
        put(out, table->frames[i].len, 4);
        put(out, table->frames[i].size, 4);
    }
    put(out, table->n, 4);
    put(out, 0, 1); /* no checksums of the content, as there are digests */
    put(out, SEEKABLE_MAGIC, 4);
}

int s2s_zstd_table_parse(struct s2s_zstd_table *table, const void *bytes, size_t len,
                         struct s2s_error *err)
{
    const unsigned char *begin = bytes;
    *table = (struct s2s_zstd_table){NULL, 0, 0};
    if (len < FOOTER || number(begin + len - 4, 4) != SEEKABLE_MAGIC)
        return s2s_error_set(err, S2S_E_FORMAT, "no zstd seek table");
    size_t n = number(begin + len - FOOTER, 4);
    size_t tail_len = 2 * SKIP_HEADER + (8 + ENTRY) * n + FOOTER;
    if (tail_len > len)
        return s2s_error_set(err, S2S_E_FORMAT, "a zstd seek table of %zu frames does not fit", n);
    const unsigned char *tail = begin + len - tail_len, *digests = tail + SKIP_HEADER;
    const unsigned char *entries = digests + 8 * n + SKIP_HEADER;
    for (size_t i = 0; i < n; i++)
        s2s_zstd_table_add(table, (uint32_t)number(entries + ENTRY * i + 4, 4),
                           (uint32_t)number(entries + ENTRY * i, 4), number(digests + 8 * i, 8));
    /* compose it again from what was read, so that any deviation shows */
    struct s2s_buf again = S2S_BUF_INIT;
    s2s_zstd_table_tail(table, &again);
    size_t frames_len = n ? table->frames[n - 1].at + table->frames[n - 1].len : 0;
    bool good = memcmp(again.data, tail, tail_len) == 0 && frames_len == len - tail_len;
    for (size_t i = 0; i < n; i++)
        good = good && table->frames[i].size > 0; /* an empty frame would never be decoded */
    s2s_buf_release(&again);
    if (good)
        return 0;
    s2s_zstd_table_release(table);
    return s2s_error_set(err, S2S_E_FORMAT, "the zstd seek table disagrees with the file");
}

int s2s_zstd_decode(void *out, const struct s2s_zstd_frame *frame, const void *bytes,
                    struct s2s_error *err)
{
    uint64_t xxh3 = s2s_xxh3_64(bytes, frame->len);
    if (xxh3 != frame->xxh3)
        return s2s_error_set(err, S2S_E_DIGEST,
                             "the zstd frame at compressed offset %llu has digest %016llx, the "
                             "table says %016llx",
                             (unsigned long long)frame->at, (unsigned long long)xxh3,
                             (unsigned long long)frame->xxh3);
    size_t whole = ZSTD_findFrameCompressedSize(bytes, frame->len);
    size_t size = ZSTD_decompress(out, frame->size, bytes, frame->len);
    if (!ZSTD_isError(size) && size == frame->size && whole == frame->len)
        return 0;
    return s2s_error_set(
        err, S2S_E_FORMAT,
        "the zstd frame at compressed offset %llu cannot be decoded to %u bytes%s%s",
        (unsigned long long)frame->at, frame->size, ZSTD_isError(size) ? ": " : "",
        ZSTD_isError(size) ? ZSTD_getErrorName(size) : "");
}
