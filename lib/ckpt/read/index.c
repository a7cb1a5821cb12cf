/* Reads the index of a Hugging Face folder in little memory, a part at a time. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/read/entries.h"
#include "lib/ckpt/read/read_internal.h"

enum { MAX_INDEX = 256 << 20, READ_BYTES = 64 << 10 };

/* Members of weight_map are visited as they are read; the surrounding text, with an empty map, is
 * collected in `rest` and parsed at the end. */
struct cutter {
    const char *name;
    struct s2s_buf rest;
    struct s2s_json_place place;
    size_t line;
    size_t key_begin, key_end; /* in rest: the last string at depth 1 */
    bool in_map;
    struct ckpt_entries map;
    ckpt_index_visit *visit;
    void *ctx;
    size_t n; /* entries */
};

static int visit_entry(void *ctx, const char *key, const json_t *file, struct s2s_error *err)
{
    struct cutter *c = ctx;
    if (!json_is_string(file) ||
        !ckpt_name_is_plain(json_string_value(file), json_string_length(file)))
        return s2s_error_set(err, S2S_E_FORMAT,
                             "%s: %s is said to be in what is not a plain file name: refused",
                             c->name, key);
    c->n++;
    return c->visit(c->ctx, key, json_string_value(file), err);
}

/* Takes a byte outside of the map; `at` is its place. */
static int take_outside(struct cutter *c, const struct s2s_json_place *at, char byte,
                        struct s2s_error *err)
{
    static const char map[] = "\"weight_map\"";
    const size_t key_len = c->key_end - c->key_begin;
    const bool is_first_level = at->depth == 1 && !at->in_text;
    c->in_map = is_first_level && byte == '{' && key_len == sizeof map - 1 &&
                memcmp(c->rest.data + c->key_begin, map, key_len) == 0;
    s2s_buf_putc(&c->rest, byte);
    if (is_first_level && byte == '"')
        c->key_begin = c->rest.len - 1;
    else if (at->depth == 1 && at->in_text && !c->place.in_text)
        c->key_end = c->rest.len;
    c->map.line = c->line;
    return c->in_map ? ckpt_entries_take(&c->map, byte, err) : 0;
}

static int take_inside(struct cutter *c, char byte, struct s2s_error *err)
{
    int rc = ckpt_entries_take(&c->map, byte, err);
    if (byte == '\n') /* so that line numbers in the rest are the file's */
        s2s_buf_putc(&c->rest, byte);
    if (rc <= 0)
        return rc;
    s2s_buf_putc(&c->rest, '}');
    c->in_map = false;
    c->key_begin = c->key_end;
    return 0;
}

static int take_byte(struct cutter *c, char byte, struct s2s_error *err)
{
    const struct s2s_json_place at = c->place;
    s2s_json_pass(&c->place, byte);
    c->line += byte == '\n';
    return c->in_map ? take_inside(c, byte, err) : take_outside(c, &at, byte, err);
}

static int take_rest(struct cutter *c, struct s2s_error *err)
{
    json_error_t at;
    const char *key;
    json_t *file;
    if (c->in_map)
        return ckpt_entries_end_early(&c->map, err);
    json_t *root =
        json_loadb(c->rest.len ? c->rest.data : "", c->rest.len, JSON_REJECT_DUPLICATES, &at);
    if (!root)
        return s2s_error_set(err, S2S_E_FORMAT, "%s:%d: %s", c->name, at.line, at.text);
    json_t *map = json_object_get(root, "weight_map");
    int rc = json_is_object(map)
                 ? 0
                 : s2s_error_set(err, S2S_E_FORMAT, "%s: no object weight_map", c->name);
    json_object_foreach(map, key, file) /* not empty if the key itself was written with escapes */
    {
        if (rc == 0)
            rc = visit_entry(c, key, file, err);
    }
    if (rc == 0 && c->n == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: weight_map is empty", c->name);
    json_decref(root);
    return rc;
}

static int cut_file(struct cutter *c, int fd, struct s2s_error *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return s2s_error_set(err, S2S_E_FORMAT, "%s: not a plain file", c->name);
    if (st.st_size > MAX_INDEX)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: has %lld bytes, at most %d are expected",
                             c->name, (long long)st.st_size, MAX_INDEX);
    char *bytes = s2s_xmalloc(READ_BYTES);
    int rc = 0;
    for (int64_t pos = 0; pos < st.st_size && rc == 0; pos += READ_BYTES) {
        const int64_t left = st.st_size - pos;
        const size_t now = left < READ_BYTES ? (size_t)left : READ_BYTES;
        rc = ckpt_pread(fd, bytes, now, pos, c->name, err);
        for (size_t i = 0; i < now && rc == 0; i++)
            rc = take_byte(c, bytes[i], err);
    }
    free(bytes);
    return rc < 0 ? rc : take_rest(c, err);
}

int ckpt_index_each(struct s2s_ckpt *ckpt, const char *name, ckpt_index_visit *visit, void *ctx,
                    struct s2s_error *err)
{
    struct cutter c = {.name = name, .visit = visit, .ctx = ctx};
    c.map = (struct ckpt_entries){.visit = visit_entry, .ctx = &c, .name = name};
    if (!s2s_is_there(ckpt->dir_fd, name))
        return 0;
    /* O_NONBLOCK: do not wait for the other end of a pipe */
    int fd = openat(ckpt->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s", name);
    int rc = cut_file(&c, fd, err);
    close(fd);
    s2s_buf_release(&c.rest);
    ckpt_entries_release(&c.map);
    return rc < 0 ? rc : 1;
}
