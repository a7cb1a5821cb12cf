/*
 * What the metadata of safetensors files says: how torchao quantised the tensors, what a model was
 * trained with. Some programs write it into one file, others repeat it in each.
 */
#include "lib/base/base.h"
#include "lib/ckpt/read/read_internal.h"
#include "lib/io/safetensors.h"

/* More is left out, as all of it is in memory; ENTRY_BYTES: what one takes beside its value. At
 * most so many of those that are left out have names. */
enum { MAX_BYTES = 8 << 20, ENTRY_BYTES = 128, MAX_LOST = 1000 };

struct texts {
    struct s2s_ckpt *ckpt;
    char *key; /* of the value in progress; NULL: none */
    struct s2s_buf value;
};

/* Is it said by every writer, or of the layout of its own files? */
static bool is_own(const char *key)
{
    return strcmp(key, "format") == 0 || s2s_starts_with(key, "DCP_");
}

static void leave_out(struct s2s_ckpt *ckpt, const char *key)
{
    if (!ckpt->lost_texts)
        ckpt->lost_texts = json_object();
    json_object_del(ckpt->texts, key);
    if (json_object_size(ckpt->lost_texts) < MAX_LOST)
        json_object_set_new(ckpt->lost_texts, key, json_null());
}

/* Adds the value in progress, unless another file says otherwise. */
static void end_value(struct texts *t)
{
    struct s2s_ckpt *ckpt = t->ckpt;
    if (!t->key)
        return;
    const char *value = t->value.data ? t->value.data : "";
    const json_t *known = json_object_get(ckpt->texts, t->key);
    const size_t len = t->value.len + strlen(t->key) + ENTRY_BYTES;
    const bool fits = len < MAX_BYTES - ckpt->len_texts;
    if (known ? strcmp(json_string_value(known), value) != 0 : !fits) {
        leave_out(ckpt, t->key);
    } else if (!known && !json_object_get(ckpt->lost_texts, t->key)) {
        if (!ckpt->texts)
            ckpt->texts = json_object();
        json_object_set_new(ckpt->texts, t->key, json_string(value));
        ckpt->len_texts += len;
    }
    free(t->key);
    t->key = NULL;
    s2s_buf_clear(&t->value);
}

static int take_piece(void *ctx, const char *key, const char *piece, struct s2s_error *err)
{
    struct texts *t = ctx;
    if (key) {
        end_value(t);
        t->key = is_own(key) ? NULL : s2s_xstrdup(key);
    }
    if (t->key && t->value.len < MAX_BYTES)
        s2s_buf_puts(&t->value, piece);
    return 0;
}

int ckpt_keep_texts(struct s2s_ckpt *ckpt, const struct s2s_safetensors *st, int fd,
                    const char *prefix, struct s2s_error *err)
{
    struct texts t = {.ckpt = ckpt, .value = S2S_BUF_INIT};
    bool more = false;
    for (size_t i = 0; i < st->n_meta; i++) {
        const bool own = is_own(st->meta[i].key);
        more |= !own;
        if (!own && *prefix)
            leave_out(ckpt, st->meta[i].key);
    }
    if (!more || *prefix)
        return 0;
    int rc = s2s_safetensors_read_texts(fd, take_piece, &t, err); /* st has the beginnings alone */
    if (rc == 0)
        end_value(&t);
    free(t.key);
    s2s_buf_release(&t.value);
    return rc;
}

const json_t *s2s_ckpt_texts(const struct s2s_ckpt *ckpt)
{
    return ckpt->texts;
}

char *s2s_ckpt_lost_texts(const struct s2s_ckpt *ckpt, bool kept)
{
    enum { SHOWN = 1000 }; /* bytes of names */
    const json_t *const of[] = {ckpt->lost_texts, kept ? NULL : ckpt->texts};
    struct s2s_buf list = S2S_BUF_INIT;
    const char *key;
    json_t *value;
    size_t n_more = 0;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        json_object_foreach((json_t *)of[i], key, value)
        {
            if (list.len < SHOWN)
                s2s_buf_printf(&list, "%s%s", list.len ? ", " : "", key);
            else
                n_more++;
        }
    if (n_more)
        s2s_buf_printf(&list, " and %zu more", n_more);
    return list.data; /* NULL: none */
}
