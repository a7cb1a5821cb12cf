/* Reads the header of a safetensors file in parts, as it can be very long. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/base.h"
#include "lib/base/utf8.h"
#include "lib/io/json_place.h"
#include "lib/io/pread.h"
#include "lib/io/safetensors_internal.h"

/* Sanitizer builds use a small window, so that short headers are split, too. */
#ifndef HEADER_WINDOW
#define HEADER_WINDOW (4 << 10)
#endif
enum {
    FIRST_WINDOW = HEADER_WINDOW,
    LONG_TEXT = 16 * HEADER_WINDOW,
    LONGEST_ESCAPE = 12 /* a surrogate pair */
};

/* The part of the header in memory, from the start of a member or from inside of a metadata value.
 */
struct window {
    int fd;
    size_t header_len;
    char *bytes, *texts; /* [cap + 1] each */
    size_t pos, len, cap;
    size_t skipped;   /* white space dropped after len */
    size_t seen, cut; /* bytes examined so far; end of a part that can be scanned, 0: none yet */
    enum io_part_end end;
    struct s2s_json_place place;
    size_t text_at; /* start of the last string */
    size_t name_at; /* with has_name: start of the name of the member after the cut */
    bool has_name;
    bool in_meta;  /* the current member is the metadata */
    bool in_value; /* the next string in it is a value, not a key */
};

/* Is the current member the metadata? If its name is written with escapes it is not recognised, and
 * read as a whole. */
static bool begins_metadata(const struct window *w)
{
    static const char name[] = "\"__metadata__\"";
    return w->has_name && w->seen - w->name_at >= sizeof name &&
           memcmp(w->bytes + w->name_at, name, sizeof name - 1) == 0;
}

/* Examines a byte outside of strings. */
static void look_at(struct window *w, char byte)
{
    if (byte == '"') {
        w->text_at = w->seen;
        if (w->place.depth == 1 && !w->has_name)
            w->name_at = w->seen;
        w->has_name |= w->place.depth == 1;
    } else if (w->place.depth == 1 && byte == ',') {
        w->cut = w->seen;
        w->end = IO_AT_COMMA;
        w->has_name = false;
    } else if (w->place.depth == 1 && byte == '{') {
        w->in_meta = begins_metadata(w);
        w->in_value = false;
    } else if (w->place.depth == 2 && (byte == ':' || byte == ',')) {
        w->in_value = byte == ':';
    }
}

/* Splits a long metadata value between two characters, away from escapes. */
static void cut_text(struct window *w)
{
    const bool is_long = w->len >= LONG_TEXT && w->in_meta && w->in_value && w->place.in_text;
    for (size_t at = w->len - 1; is_long && !w->cut && at > w->text_at; at--) {
        const size_t n = at - w->text_at < LONGEST_ESCAPE ? at - w->text_at : LONGEST_ESCAPE;
        if (((unsigned char)w->bytes[at] & 0xc0) == 0x80 || memchr(w->bytes + at - n, '\\', n))
            continue;
        w->cut = at;
        w->end = IO_IN_TEXT;
    }
}

/* Looks for the end of a part in the new bytes. */
static void look(struct window *w)
{
    for (; w->seen < w->len; w->seen++) {
        if (!w->place.in_text)
            look_at(w, w->bytes[w->seen]);
        s2s_json_pass(&w->place, w->bytes[w->seen]);
    }
    if (!w->cut)
        cut_text(w);
}

/* Reduces a long run of white space to one byte. Offsets in messages about later bytes of the same
 * part are too small then. */
static void drop_space(struct window *w)
{
    size_t n = 0;
    while (n < w->len && strchr(" \t\r\n", w->bytes[w->len - 1 - n]) && w->bytes[w->len - 1 - n])
        n++;
    if (w->place.in_text || n < LONG_TEXT)
        return;
    w->skipped += n - 1;
    w->len -= n - 1;
    w->seen = w->len;
}

static void widen(struct window *w, size_t cap)
{
    w->cap = cap < w->header_len ? cap : w->header_len;
    w->bytes = s2s_xrealloc(w->bytes, w->cap + 1, 1);
    w->texts = s2s_xrealloc(w->texts, w->cap + 1, 1);
}

/* Number of bytes of the header read so far. */
static size_t n_read(const struct window *w)
{
    return w->pos + w->skipped + w->len;
}

/* Reads until there is a complete member or a long piece of a value, or the header ends. */
static int fill(struct window *w, struct s2s_error *err)
{
    while (!w->cut && n_read(w) < w->header_len) {
        if (w->len == w->cap)
            widen(w, 2 * w->cap);
        const size_t left = w->header_len - n_read(w), room = w->cap - w->len,
                     now = left < room ? left : room;
        int rc = s2s_pread(w->fd, w->bytes + w->len, now, 8 + (int64_t)n_read(w), err);
        if (rc < 0)
            return rc;
        w->len += now;
        look(w);
        drop_space(w);
    }
    return 0;
}

/* Drops the scanned part, and the comma after it. */
static void drop(struct window *w)
{
    const size_t done = w->cut + (w->end == IO_AT_COMMA);
    memmove(w->bytes, w->bytes + done, w->len - done);
    w->pos += done + w->skipped;
    w->skipped = 0;
    w->len -= done;
    w->seen -= done;
    w->text_at = w->text_at > done ? w->text_at - done : 0;
    w->has_name = w->has_name && w->name_at >= done;
    w->name_at = w->has_name ? w->name_at - done : 0;
    w->cut = 0;
}

struct reader {
    struct s2s_safetensors *st;
    size_t cap_meta;
    struct io_extents extents;
    s2s_st_visit *visit;
    s2s_st_text *text;
    void *ctx;
};

static int take_text(struct reader *r, const struct s2s_st_meta *meta, struct s2s_error *err)
{
    struct s2s_safetensors *st = r->st;
    struct io_internal *internal = st->internal;
    if (meta->key) {
        s2s_grow(&st->meta, st->n_meta, &r->cap_meta, sizeof *st->meta);
        st->meta[st->n_meta++] = (struct s2s_st_meta){
            s2s_blocks_text(&internal->texts, meta->key, strlen(meta->key)),
            s2s_blocks_text(&internal->texts, meta->value, strlen(meta->value))};
    }
    return r->text ? r->text(r->ctx, meta->key, meta->value, err) : 0;
}

static int take_member(void *ctx, const struct io_member *member, struct s2s_error *err)
{
    struct reader *r = ctx;
    if (!member->tensor.name)
        return take_text(r, &member->meta, err);
    io_extents_add(&r->extents, member->begin, member->tensor.len_bytes);
    return r->visit ? r->visit(r->ctx, &member->tensor, member->begin, err) : 0;
}

static int scan_all(struct window *w, struct reader *r, struct s2s_error *err)
{
    struct io_scan s = {.member = take_member, .ctx = r, .err = err};
    bool last = false;
    int rc = 0;
    while (rc == 0 && !last) {
        if ((rc = fill(w, err)) < 0)
            break;
        last = n_read(w) == w->header_len;
        const size_t len = last ? w->len : w->cut;
        s.begin = s.p = w->bytes;
        s.end = s.p + len;
        s.out = w->texts;
        s.pos = w->pos;
        rc = s2s_utf8_valid(w->bytes, len) ? io_scan_part(&s, last ? IO_AT_END : w->end)
                                           : io_not_utf8(err);
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

/* ---- second pass ---- */

/* Reads the header again, for the extents of its tensors or for visit. */
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

/* Checks that tensors cover the data exactly. Releases the extents. */
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
    struct io_extents none = {.is_bad = true}; /* add nothing */
    rc = read_again(&none, find_name, &wanted, fd, header_len, err);
    return rc < 0 ? rc : s2s_error_set(err, S2S_E_FORMAT, "the file changes while it is read");
}

/* ---- the file ---- */

static int read_length(size_t *header_len, uint64_t *len, int fd, struct s2s_error *err)
{
    struct stat info;
    char head[9]; /* the length, and the first byte of the JSON */
    if (fstat(fd, &info) < 0)
        return s2s_error_errno(err, S2S_E_IO, "state of the file");
    if (!S_ISREG(info.st_mode))
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

/* r: the callbacks. */
static int read_header(struct reader *r, int fd, int64_t *data_pos, struct s2s_error *err)
{
    struct s2s_safetensors *st = r->st;
    size_t header_len = 0;
    uint64_t len = 0;
    *st = (struct s2s_safetensors){0};
    int rc = read_length(&header_len, &len, fd, err);
    if (rc < 0)
        return rc;
    *data_pos = 8 + (int64_t)header_len;
    st->internal = s2s_xcalloc(1, sizeof(struct io_internal));
    r->extents.data_len = len - (uint64_t)*data_pos;
    rc = read_members(r, fd, header_len, err);
    if (rc == 0)
        rc = check_places(&r->extents, fd, header_len, err);
    else
        io_extents_end(&r->extents, NULL);
    if (rc == 0)
        rc = io_order_meta(st, err);
    if (rc < 0)
        s2s_safetensors_release(st);
    return rc;
}

int s2s_safetensors_read_header(struct s2s_safetensors *st, int fd, int64_t *data_pos,
                                s2s_st_visit *visit, void *ctx, struct s2s_error *err)
{
    struct reader r = {.st = st, .visit = visit, .ctx = ctx};
    return read_header(&r, fd, data_pos, err);
}

int s2s_safetensors_read_texts(int fd, s2s_st_text *text, void *ctx, struct s2s_error *err)
{
    struct s2s_safetensors st;
    int64_t data_pos;
    struct reader r = {.st = &st, .text = text, .ctx = ctx};
    int rc = read_header(&r, fd, &data_pos, err);
    if (rc == 0)
        s2s_safetensors_release(&st);
    return rc;
}
