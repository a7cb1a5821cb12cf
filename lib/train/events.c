/* Writes TensorBoard event files. */
#include "lib/train/events.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/base.h"

struct s2s_events {
    FILE *file;
    char *path;
};

uint32_t s2s_crc32c(const void *bytes, size_t len)
{
    static uint32_t table[256];
    static int made;
    if (!made) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++)
                c = c & 1 ? (c >> 1) ^ 0x82f63b78u : c >> 1;
            table[i] = c;
        }
        made = 1;
    }
    uint32_t crc = 0xffffffffu;
    for (const unsigned char *at = bytes; len > 0; len--)
        crc = table[(crc ^ *at++) & 255] ^ (crc >> 8);
    return crc ^ 0xffffffffu;
}

/* The CRC of a string that holds CRCs would be weak; this one is not. */
static uint32_t masked(const void *bytes, size_t len)
{
    uint32_t crc = s2s_crc32c(bytes, len);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* ---- protobuf ---- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(struct s2s_buf *buf, uint64_t x)
{
    while (x >= 128) {
        s2s_buf_putc(buf, (char)(x | 128));
        x >>= 7;
    }
    s2s_buf_putc(buf, (char)x);
}

static void put_key(struct s2s_buf *buf, int field, int type)
{
    put_varint(buf, (uint64_t)(field << 3 | type));
}

static void put_bytes(struct s2s_buf *buf, int field, const void *bytes, size_t len)
{
    put_key(buf, field, BYTES);
    put_varint(buf, len);
    s2s_buf_add(buf, bytes, len);
}

/* Event: wall_time = 1 (double), step = 2. */
static void put_event_head(struct s2s_buf *buf, int64_t step)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double wall = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    put_key(buf, 1, FIXED64);
    s2s_buf_add(buf, &wall, sizeof wall);
    put_key(buf, 2, VARINT);
    put_varint(buf, (uint64_t)step);
}

static int write_record(struct s2s_events *e, const struct s2s_buf *event, struct s2s_error *err)
{
    uint64_t len = event->len;
    uint32_t len_crc = masked(&len, sizeof len), crc = masked(event->data, event->len);
    struct s2s_buf record = S2S_BUF_INIT;
    s2s_buf_add(&record, &len, sizeof len);
    s2s_buf_add(&record, &len_crc, sizeof len_crc);
    s2s_buf_add(&record, event->data, event->len);
    s2s_buf_add(&record, &crc, sizeof crc);
    int bad = fwrite(record.data, 1, record.len, e->file) != record.len || fflush(e->file) != 0;
    s2s_buf_release(&record);
    return bad ? s2s_error_errno(err, S2S_E_IO, "%s", e->path) : 0;
}

/* ---- the door ---- */

/* The first event names the version; the second starts a session (session_log = 7, status START =
 * 1), at which TensorBoard forgets points of that step and later. */
static int write_head(struct s2s_events *e, int64_t first_step, struct s2s_error *err)
{
    struct s2s_buf event = S2S_BUF_INIT;
    put_event_head(&event, 0);
    put_bytes(&event, 3, "brain.Event:2", 13);
    int rc = write_record(e, &event, err);
    if (rc == 0) {
        static const char start[] = {1 << 3, 1};
        s2s_buf_clear(&event);
        put_event_head(&event, first_step);
        put_bytes(&event, 7, start, sizeof start);
        rc = write_record(e, &event, err);
    }
    s2s_buf_release(&event);
    return rc;
}

int s2s_events_open(struct s2s_events **out, const char *dir, int64_t first_step,
                    struct s2s_error *err)
{
    char host[200] = "host";
    if (gethostname(host, sizeof host - 1) < 0)
        host[0] = 0;
    struct s2s_events *e = s2s_xcalloc(1, sizeof *e);
    e->path = s2s_xasprintf("%s/events.out.tfevents.%lld.%s.%d", dir, (long long)time(NULL), host,
                            (int)getpid());
    e->file = fopen(e->path, "abe");
    int rc =
        e->file ? write_head(e, first_step, err) : s2s_error_errno(err, S2S_E_OPEN, "%s", e->path);
    if (rc < 0) {
        s2s_events_close(e, NULL);
        return rc;
    }
    *out = e;
    return 0;
}

int s2s_events_add(struct s2s_events *e, int64_t step, const char *const *tags, const float *values,
                   size_t n, struct s2s_error *err)
{
    struct s2s_buf event = S2S_BUF_INIT, summary = S2S_BUF_INIT, value = S2S_BUF_INIT;
    for (size_t i = 0; i < n; i++) {
        s2s_buf_clear(&value);
        put_bytes(&value, 1, tags[i], strlen(tags[i])); /* Value: tag = 1, simple_value = 2 */
        put_key(&value, 2, FIXED32);
        s2s_buf_add(&value, &values[i], sizeof values[i]);
        put_bytes(&summary, 1, value.data, value.len);
    }
    put_event_head(&event, step);
    put_bytes(&event, 5, summary.data, summary.len);
    int rc = write_record(e, &event, err);
    s2s_buf_release(&event);
    s2s_buf_release(&summary);
    s2s_buf_release(&value);
    return rc;
}

int s2s_events_close(struct s2s_events *e, struct s2s_error *err)
{
    if (!e)
        return 0;
    int rc = 0;
    if (e->file && fclose(e->file) != 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s", e->path);
    free(e->path);
    free(e);
    return rc;
}
