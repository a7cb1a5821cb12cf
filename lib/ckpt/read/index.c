/* The index of a Hugging Face folder, a part at a time: as a tree, or as text, that of a hundred
 * thousand tensors takes more than all else. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/model.h"
#include "lib/io/json_place.h"

enum { MAX_INDEX = 256 << 20, PART_BYTES = 64 << 10 };

/*
 * The text is cut where commas stand between the entries of weight_map, and the JSON library reads
 * each part as an object of its own; what stands around them, with the map empty, is the rest.
 */
struct cutter {
    const char *name;
    struct s2s_buf rest, part;
    struct s2s_json_place place;
    size_t lines, part_line;   /* before; before the part */
    size_t key_begin, key_end; /* the last text on the first level, in the rest */
    bool in_map, was_cut;
    ckpt_index_visit *visit;
    void *ctx;
    size_t n; /* entries */
};

static int bad_json(const struct cutter *c, size_t line, const json_error_t *at,
                    struct s2s_error *err)
{
    return s2s_error_set(err, S2S_E_FORMAT, "%s:%zu: %s", c->name, line + (size_t)at->line,
                         at->text);
}

static int visit_entries(struct cutter *c, const json_t *entries, struct s2s_error *err)
{
    const char *key;
    json_t *file;
    int rc = 0;
    json_object_foreach((json_t *)entries, key, file)
    {
        if (!json_is_string(file) ||
            !ckpt_name_is_plain(json_string_value(file), json_string_length(file)))
            return s2s_error_set(err, S2S_E_FORMAT,
                                 "%s: %s is said to be in what is no plain file name: refused",
                                 c->name, key);
        c->n++;
        if ((rc = c->visit(c->ctx, key, json_string_value(file), err)) < 0)
            return rc;
    }
    return 0;
}

/* The entries since the last cut; at_comma: up to the next. */
static int take_part(struct cutter *c, bool at_comma, struct s2s_error *err)
{
    json_error_t at;
    json_t *entries = json_loadb(c->part.data, c->part.len, JSON_REJECT_DUPLICATES, &at);
    if (!entries)
        return bad_json(c, c->part_line, &at, err);
    int rc = (c->was_cut || at_comma) && json_object_size(entries) == 0
                 ? s2s_error_set(err, S2S_E_FORMAT, "%s:%zu: a comma without an entry beside it",
                                 c->name, c->lines + 1)
                 : visit_entries(c, entries, err);
    json_decref(entries);
    c->was_cut = true;
    c->part_line = c->lines;
    s2s_buf_clear(&c->part);
    s2s_buf_putc(&c->part, '{');
    return rc;
}

/* A byte of what stands around the entries, at that place. */
static void take_outside(struct cutter *c, const struct s2s_json_place *at, char byte)
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
    if (c->in_map) {
        s2s_buf_clear(&c->part);
        s2s_buf_putc(&c->part, '{');
        c->part_line = c->lines;
        c->was_cut = false;
    }
}

/* A byte of the entries, of which the last is the map's end. */
static int take_inside(struct cutter *c, const struct s2s_json_place *at, char byte,
                       struct s2s_error *err)
{
    if (s2s_json_cuts(at, byte, 2) && c->part.len > PART_BYTES) {
        s2s_buf_putc(&c->part, '}');
        return take_part(c, true, err);
    }
    s2s_buf_putc(&c->part, byte);
    if (byte == '\n') /* so that lines of the rest are those of the file */
        s2s_buf_putc(&c->rest, byte);
    if (c->place.depth > 1)
        return 0;
    s2s_buf_putc(&c->rest, '}');
    c->in_map = false;
    c->key_begin = c->key_end;
    return take_part(c, false, err);
}

static int take_byte(struct cutter *c, char byte, struct s2s_error *err)
{
    const struct s2s_json_place at = c->place;
    s2s_json_pass(&c->place, byte);
    c->lines += byte == '\n';
    if (c->in_map)
        return take_inside(c, &at, byte, err);
    take_outside(c, &at, byte);
    return 0;
}

static int take_rest(struct cutter *c, struct s2s_error *err)
{
    json_error_t at;
    if (c->in_map) /* the text ends there */
        return take_part(c, false, err);
    json_t *root =
        json_loadb(c->rest.len ? c->rest.data : "", c->rest.len, JSON_REJECT_DUPLICATES, &at);
    if (!root)
        return bad_json(c, 0, &at, err);
    const json_t *map = json_object_get(root, "weight_map");
    int rc = json_is_object(map)
                 ? visit_entries(c, map, err) /* where the key was written with escapes */
                 : s2s_error_set(err, S2S_E_FORMAT, "%s: no object weight_map", c->name);
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
    char *bytes = s2s_xmalloc(PART_BYTES);
    int rc = 0;
    for (int64_t pos = 0; pos < st.st_size && rc == 0; pos += PART_BYTES) {
        const int64_t left = st.st_size - pos;
        const size_t now = left < PART_BYTES ? (size_t)left : PART_BYTES;
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
    if (faccessat(ckpt->dir_fd, name, F_OK, 0) < 0)
        return 0;
    /* not to wait for the other end of a pipe */
    int fd = openat(ckpt->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_IO, "%s", name);
    int rc = cut_file(&c, fd, err);
    close(fd);
    s2s_buf_release(&c.rest);
    s2s_buf_release(&c.part);
    return rc < 0 ? rc : 1;
}
