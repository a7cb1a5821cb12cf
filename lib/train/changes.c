/* Compares the streams of a run with those that a checkpoint was made of. */
#include "lib/train/changes.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"

enum { MOST_NAMED = 10 }; /* streams; a message is a line */
static const json_int_t MOST_PACKS = (json_int_t)1 << 40;

static const char *text(const json_t *stream, const char *key)
{
    const char *value = json_string_value(json_object_get(stream, key));
    return value ? value : "";
}

static int64_t n_packs(const json_t *stream)
{
    const json_int_t n = json_integer_value(json_object_get(stream, "packs"));
    return n < 0 || n > MOST_PACKS ? 0 : n; /* a file may say anything */
}

static bool same(const json_t *a, const json_t *b, const char *key)
{
    return strcmp(text(a, key), text(b, key)) == 0;
}

/* The first stream of the list that agrees in key and is not taken; -1: none. */
static int64_t find(const json_t *list, const bool *taken, const json_t *stream, const char *key)
{
    const json_t *other;
    size_t i;
    json_array_foreach((json_t *)list, i,
                       other) if (!taken[i] && same(other, stream, key)) return (int64_t)i;
    return -1;
}

struct change {
    struct s2s_buf says;
    size_t n;
};

static void add(struct change *c, const json_t *stream, const char *what)
{
    if (c->n++ < MOST_NAMED)
        s2s_buf_printf(&c->says, "%s%s (%lld packs) %s", c->says.len ? ", " : "",
                       text(stream, "path"), (long long)n_packs(stream), what);
}

/* Streams of which only one list has the digest: changed if the path is in both, else gone or new.
 */
static void compare_rest(struct change *c, const json_t *before, bool *old_taken, const json_t *now,
                         bool *new_taken)
{
    const json_t *stream;
    size_t i;
    json_array_foreach((json_t *)now, i, stream)
    {
        const int64_t old = new_taken[i] ? -1 : find(before, old_taken, stream, "path");
        if (old < 0)
            continue;
        old_taken[old] = new_taken[i] = true;
        add(c, stream, "has other packs");
    }
    json_array_foreach((json_t *)now, i, stream) if (!new_taken[i]) add(c, stream, "was added");
    json_array_foreach((json_t *)before, i, stream) if (!old_taken[i])
        add(c, stream, "was removed");
}

char *s2s_data_changes(const json_t *before, const json_t *now)
{
    struct change c = {.says = S2S_BUF_INIT};
    bool *old_taken = s2s_xcalloc(json_array_size(before) + 1, sizeof *old_taken);
    bool *new_taken = s2s_xcalloc(json_array_size(now) + 1, sizeof *new_taken);
    const json_t *stream;
    size_t i;
    int64_t last = -1;
    bool moved = false;
    json_array_foreach((json_t *)now, i, stream)
    {
        const int64_t old = find(before, old_taken, stream, "digest");
        if (old < 0)
            continue;
        old_taken[old] = new_taken[i] = true;
        moved |= old < last;
        last = old;
    }
    compare_rest(&c, before, old_taken, now, new_taken);
    if (c.n > MOST_NAMED)
        s2s_buf_printf(&c.says, " and %zu more", c.n - MOST_NAMED);
    if (moved)
        s2s_buf_printf(&c.says, "%sstreams are in another order", c.says.len ? ", " : "");
    free(old_taken);
    free(new_taken);
    if (!c.says.len) {
        s2s_buf_release(&c.says);
        return NULL;
    }
    return c.says.data;
}

static int64_t total(const json_t *list)
{
    const json_t *stream;
    int64_t n = 0;
    size_t i;
    json_array_foreach((json_t *)list, i, stream) n += n_packs(stream);
    return n;
}

/* Whether the streams that hold the first n packs are the same ones. */
static bool begins_alike(const json_t *before, const json_t *now, int64_t n)
{
    for (size_t i = 0; n > 0; i++) {
        const json_t *a = json_array_get(before, i), *b = json_array_get(now, i);
        if (!a || !b || !same(a, b, "digest"))
            return false;
        n -= n_packs(a);
    }
    return true;
}

bool s2s_data_breaks_epoch(const json_t *before, bool shuffled_before, const json_t *now,
                           bool shuffled_now, int64_t position)
{
    const int64_t n_old = total(before), n_new = total(now);
    if (n_old <= 0 || n_new <= 0)
        return true;
    const int64_t at = position % n_old;
    if (at != position % n_new)
        return true;
    return at > 0 && (shuffled_before || shuffled_now || !begins_alike(before, now, at));
}
