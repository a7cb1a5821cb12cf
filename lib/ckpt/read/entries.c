/* Cuts the text of a very large JSON object between members, and parses the parts. */
#include "lib/ckpt/read/entries.h"

enum { PART_BYTES = 64 << 10 };

static int visit_all(const struct ckpt_entries *e, const json_t *entries, struct s2s_error *err)
{
    const char *key;
    json_t *value;
    int rc = 0;
    json_object_foreach((json_t *)entries, key, value)
    {
        if ((rc = e->visit(e->ctx, key, value, err)) < 0)
            break;
    }
    return rc;
}

static void begin_part(struct ckpt_entries *e)
{
    e->part_line = e->line;
    s2s_buf_clear(&e->part);
    s2s_buf_putc(&e->part, '{');
}

/* Parses and visits the members since the last cut. at_comma: the text was cut at a comma, so
 * members must follow. */
static int take_part(struct ckpt_entries *e, bool at_comma, struct s2s_error *err)
{
    json_error_t at;
    json_t *entries = json_loadb(e->part.data, e->part.len, JSON_REJECT_DUPLICATES, &at);
    e->not_json = !entries || ((e->was_cut || at_comma) && json_object_size(entries) == 0);
    int rc = 0;
    if (!entries)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s:%zu: %s", e->name, e->part_line + (size_t)at.line,
                           at.text);
    else if (e->not_json)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s:%zu: a comma without an entry beside it", e->name,
                           e->line + 1);
    else
        rc = visit_all(e, entries, err);
    json_decref(entries);
    e->was_cut = true;
    begin_part(e);
    return rc;
}

int ckpt_entries_take(struct ckpt_entries *e, char byte, struct s2s_error *err)
{
    const struct s2s_json_place at = e->place;
    s2s_json_pass(&e->place, byte);
    e->line += byte == '\n';
    if (at.depth == 0) {
        begin_part(e);
        e->was_cut = false;
        return 0;
    }
    if (s2s_json_cuts(&at, byte, 1) && e->part.len > PART_BYTES) {
        s2s_buf_putc(&e->part, '}');
        return take_part(e, true, err);
    }
    s2s_buf_putc(&e->part, byte);
    if (e->place.depth)
        return 0;
    int rc = take_part(e, false, err);
    return rc < 0 ? rc : 1;
}

int ckpt_entries_end_early(struct ckpt_entries *e, struct s2s_error *err)
{
    return take_part(e, false, err);
}

void ckpt_entries_release(struct ckpt_entries *e)
{
    s2s_buf_release(&e->part);
}
