/* The header of a safetensors file, read a part at a time: it may be as large as all else. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/base.h"
#include "lib/base/utf8.h"
#include "lib/io/json_place.h"
#include "lib/io/pread.h"
#include "lib/io/safetensors_internal.h"

enum { FIRST_WINDOW = 4 << 10 };

/* What of the header is in memory, from a member on. */
struct window {
    int fd;
    size_t header_len;
    char *bytes, *texts; /* cap bytes each, and one more */
    size_t pos, len, cap;
    size_t seen, cut; /* looked at so far; the last comma between members there, 0: none */
    struct s2s_json_place place;
};

static void look_for_commas(struct window *w)
{
    for (; w->seen < w->len; w->seen++) {
        if (s2s_json_cuts(&w->place, w->bytes[w->seen], 1))
            w->cut = w->seen;
        s2s_json_pass(&w->place, w->bytes[w->seen]);
    }
}

static void widen(struct window *w, size_t cap)
{
    w->cap = cap < w->header_len ? cap : w->header_len;
    w->bytes = s2s_xrealloc(w->bytes, w->cap + 1, 1);
    w->texts = s2s_xrealloc(w->texts, w->cap + 1, 1);
}

/* Reads on until a whole member is there or the header ends. */
static int fill(struct window *w, struct s2s_error *err)
{
    while (!w->cut && w->pos + w->len < w->header_len) {
        if (w->len == w->cap)
            widen(w, 2 * w->cap);
        const size_t left = w->header_len - w->pos - w->len, room = w->cap - w->len,
                     now = left < room ? left : room;
        int rc = s2s_pread(w->fd, w->bytes + w->len, now, 8 + (int64_t)(w->pos + w->len), err);
        if (rc < 0)
            return rc;
        w->len += now;
        look_for_commas(w);
    }
    return 0;
}

/* Drops what was scanned, and the comma. */
static void drop(struct window *w)
{
    const size_t done = w->cut + 1;
    memmove(w->bytes, w->bytes + done, w->len - done);
    w->pos += done;
    w->len -= done;
    w->seen -= done;
    w->cut = 0;
}

struct reader {
    struct s2s_safetensors *st;
    size_t cap_meta;
    struct io_extents extents;
    s2s_st_visit *visit;
    void *ctx;
};

static int take_member(void *ctx, const struct io_member *member, struct s2s_error *err)
{
    struct reader *r = ctx;
    struct s2s_safetensors *st = r->st;
    if (member->tensor.name) {
        io_extents_add(&r->extents, member->begin, member->tensor.len_bytes);
        return r->visit ? r->visit(r->ctx, &member->tensor, member->begin, err) : 0;
    }
    struct io_internal *internal = st->internal;
    const char *key = member->meta.key, *value = member->meta.value;
    s2s_grow(&st->meta, st->n_meta, &r->cap_meta, sizeof *st->meta);
    st->meta[st->n_meta++] =
        (struct s2s_st_meta){s2s_blocks_text(&internal->texts, key, strlen(key)),
                             s2s_blocks_text(&internal->texts, value, strlen(value))};
    return 0;
}

static int scan_all(struct window *w, struct reader *r, struct s2s_error *err)
{
    struct io_scan s = {.member = take_member, .ctx = r, .err = err};
    bool last = false;
    int rc = 0;
    while (rc == 0 && !last) {
        if ((rc = fill(w, err)) < 0)
            break;
        last = w->pos + w->len == w->header_len;
        const size_t len = last ? w->len : w->cut;
        s.begin = s.p = w->bytes;
        s.end = s.p + len;
        s.out = w->texts;
        s.pos = w->pos;
        rc = s2s_utf8_valid(w->bytes, len) ? io_scan_part(&s, last) : io_not_utf8(err);
        if (!last)
            drop(w);
    }
    return rc;
}

static int read_members(struct reader *r, int fd, size_t header_len, struct s2s_error *err)
{
    struct window w = {.fd = fd, .header_len = header_len};
    widen(&w, FIRST_WINDOW);
    int rc = scan_all(&w, r, err);
    free(w.bytes);
    free(w.texts);
    return rc;
}

/* ---- what was not kept ---- */

/* Reads the header again, for the places of its tensors or for the visit. */
static int read_again(struct io_extents *extents, s2s_st_visit *visit, void *ctx, int fd,
                      size_t header_len, struct s2s_error *err)
{
    struct io_internal internal = {.map = NULL};
    struct s2s_safetensors st = {.internal = &internal};
    struct reader again = {.st = &st, .extents = *extents, .visit = visit, .ctx = ctx};
    int rc = read_members(&again, fd, header_len, err);
    *extents = again.extents;
    s2s_blocks_release(&internal.texts);
    free(st.meta);
    return rc;
}

struct wanted {
    size_t idx, n_seen;
    const struct io_extents *extents;
};

static int find_name(void *ctx, const struct s2s_st_tensor *tensor, size_t begin,
                     struct s2s_error *err)
{
    struct wanted *wanted = ctx;
    (void)begin;
    return wanted->n_seen++ == wanted->idx ? io_misplaced(wanted->extents, tensor->name, err) : 0;
}

/* Is every tensor where it should be? Releases the extents. */
static int check_places(struct io_extents *extents, int fd, size_t header_len,
                        struct s2s_error *err)
{
    int rc = io_extents_end(extents, err);
    if (rc > 0) {
        if ((rc = read_again(extents, NULL, NULL, fd, header_len, err)) < 0) {
            io_extents_end(extents, NULL);
            return rc;
        }
        rc = io_extents_end(extents, err);
    }
    if (!extents->is_bad)
        return rc;
    struct wanted wanted = {.idx = extents->bad.idx, .extents = extents};
    struct io_extents none = {.is_bad = true}; /* nothing is to be added */
    rc = read_again(&none, find_name, &wanted, fd, header_len, err);
    return rc < 0 ? rc : s2s_error_set(err, S2S_E_FORMAT, "the file changes while it is read");
}

/* ---- the file ---- */

static int read_length(size_t *header_len, uint64_t *len, int fd, struct s2s_error *err)
{
    struct stat info;
    char head[9]; /* the length, and the first byte of the JSON */
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode))
        return s2s_error_set(err, S2S_E_OPEN, "is not a regular file");
    *len = (uint64_t)info.st_size;
    if (*len < 8)
        return io_too_short(*len, err);
    int rc = s2s_pread(fd, head, *len < sizeof head ? 8 : sizeof head, 0, err);
    if (rc == 0)
        rc = io_header_length(header_len, head, *len, err);
    if (rc == 0 && *header_len && head[8] != '{')
        rc = s2s_error_set(err, S2S_E_FORMAT, "safetensors header: expected { at byte 8");
    return rc;
}

int s2s_safetensors_read_header(struct s2s_safetensors *st, int fd, int64_t *data_pos,
                                s2s_st_visit *visit, void *ctx, struct s2s_error *err)
{
    size_t header_len = 0;
    uint64_t len = 0;
    *st = (struct s2s_safetensors){0};
    int rc = read_length(&header_len, &len, fd, err);
    if (rc < 0)
        return rc;
    *data_pos = 8 + (int64_t)header_len;
    st->internal = s2s_xcalloc(1, sizeof(struct io_internal));
    struct reader r = {
        .st = st, .extents = {.data_len = len - (uint64_t)*data_pos}, .visit = visit, .ctx = ctx};
    rc = read_members(&r, fd, header_len, err);
    if (rc == 0)
        rc = check_places(&r.extents, fd, header_len, err);
    else
        io_extents_end(&r.extents, NULL);
    if (rc == 0)
        rc = io_order_meta(st, err);
    if (rc < 0)
        s2s_safetensors_release(st);
    return rc;
}
