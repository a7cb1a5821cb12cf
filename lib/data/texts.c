/* Finds lines of text files, and gives them to samples. */
#include "lib/data/texts.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/base/pyrandom.h"
#include "lib/io/digest.h"

/* ---- white space ---- */

/* Length of the white space that stands at `text` in UTF-8, or 0. */
static size_t space_at(const unsigned char *text, size_t len)
{
    if (len >= 1 &&
        (text[0] == ' ' || (text[0] >= 9 && text[0] <= 13) || (text[0] >= 0x1c && text[0] <= 0x1f)))
        return 1;
    if (len >= 2 && text[0] == 0xc2 && (text[1] == 0x85 || text[1] == 0xa0))
        return 2;
    if (len < 3)
        return 0;
    const uint32_t three = (uint32_t)text[0] << 16 | (uint32_t)text[1] << 8 | text[2];
    const bool is_space = three == 0xe19a80 || (three >= 0xe28080 && three <= 0xe2808a) ||
                          three == 0xe280a8 || three == 0xe280a9 || three == 0xe280af ||
                          three == 0xe2819f || three == 0xe38080;
    return is_space ? 3 : 0;
}

void data_strip(const char **text, size_t *len)
{
    const unsigned char *at = (const unsigned char *)*text;
    size_t left = *len, n;
    while ((n = space_at(at, left)) > 0) {
        at += n;
        left -= n;
    }
    for (n = 1; n <= 3 && n <= left; n++)
        if (space_at(at + left - n, n) == n) {
            left -= n;
            n = 0;
        }
    *text = (const char *)at;
    *len = left;
}

/* ---- lines ---- */

const char *data_texts_at(const struct data_texts *texts, size_t k, size_t *len)
{
    const struct s2s_line line = s2s_lines_at(&texts->file, texts->at[k], (int64_t)k + 1);
    const char *text = line.text;
    *len = line.len;
    data_strip(&text, len);
    return text;
}

static int check_texts(const struct data_texts *texts, struct s2s_error *err)
{
    if (texts->n == 0)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: has no lines", texts->file.path);
    for (size_t k = 0; k < texts->n; k++) {
        size_t len;
        const char *text = data_texts_at(texts, k, &len);
        json_t *string = json_stringn(text, len);
        if (!string || memchr(text, 0, len)) {
            json_decref(string);
            return s2s_error_set(err, S2S_E_FORMAT, "%s:%zu: is not UTF-8, or has a NUL",
                                 texts->file.path, k + 1);
        }
        json_decref(string);
    }
    return 0;
}

int data_texts_open(struct data_texts *texts, const char *path, struct s2s_error *err)
{
    *texts = (struct data_texts)DATA_TEXTS_INIT;
    int rc = s2s_lines_open(&texts->file, path, err);
    if (rc < 0)
        return rc;
    struct s2s_line line = {.number = 0};
    size_t cap = 0;
    while (s2s_lines_next_any(&texts->file, &line)) {
        s2s_grow(&texts->at, texts->n, &cap, sizeof *texts->at);
        texts->at[texts->n++] = line.begin;
    }
    rc = check_texts(texts, err);
    if (rc < 0)
        data_texts_close(texts);
    return rc;
}

void data_texts_close(struct data_texts *texts)
{
    s2s_lines_close(&texts->file);
    free(texts->at);
    *texts = (struct data_texts)DATA_TEXTS_INIT;
}

/* ---- fields ---- */

struct field {
    char *name;
    bool is_drawn, has_seed;
    uint64_t seed;
    struct data_texts texts;
};

struct data_fields {
    struct field *items; /* [n] */
    size_t n;
};

struct data_fields_walk {
    const struct data_fields *fields;
    struct s2s_pyrandom *random; /* [n] of those that are drawn */
    uint64_t n_given;
};

int data_fields_open(struct data_fields **out, const struct s2s_field *specs, size_t n,
                     struct s2s_error *err)
{
    int rc = 0;
    uint64_t n_combinations = 1;
    *out = NULL;
    if (n == 0)
        return 0;
    struct data_fields *fields = s2s_xcalloc(1, sizeof *fields);
    fields->items = s2s_xcalloc(n, sizeof *fields->items);
    while (rc == 0 && fields->n < n) {
        const struct s2s_field *spec = &specs[fields->n];
        struct field *field = &fields->items[fields->n];
        rc = data_texts_open(&field->texts, spec->path, err);
        if (rc < 0)
            break;
        field->name = s2s_xstrdup(spec->name);
        field->is_drawn = spec->is_drawn;
        field->has_seed = spec->has_seed;
        field->seed = spec->seed;
        fields->n++;
        if (field->texts.n > UINT32_MAX ||
            __builtin_mul_overflow(n_combinations, field->texts.n, &n_combinations))
            rc = s2s_error_set(err, S2S_E_RANGE, "%s: too many lines beside those of other fields",
                               spec->path);
    }
    if (rc < 0)
        data_fields_close(fields);
    else
        *out = fields;
    return rc;
}

void data_fields_close(struct data_fields *fields)
{
    if (!fields)
        return;
    for (size_t i = 0; i < fields->n; i++) {
        free(fields->items[i].name);
        data_texts_close(&fields->items[i].texts);
    }
    free(fields->items);
    free(fields);
}

struct data_fields_walk *data_fields_begin(const struct data_fields *fields, uint64_t seed)
{
    if (!fields)
        return NULL;
    struct data_fields_walk *walk = s2s_xcalloc(1, sizeof *walk);
    walk->fields = fields;
    walk->random = s2s_xcalloc(fields->n, sizeof *walk->random);
    for (size_t i = 0; i < fields->n; i++) {
        const struct field *field = &fields->items[i];
        if (field->is_drawn)
            s2s_pyrandom_seed(&walk->random[i], field->has_seed ? field->seed : seed);
    }
    return walk;
}

void data_fields_end(struct data_fields_walk *walk)
{
    if (!walk)
        return;
    free(walk->random);
    free(walk);
}

int data_fields_next(struct data_fields_walk *walk, uint64_t *which, struct s2s_error *err)
{
    uint64_t sum = 0;
    if (!walk)
        return 0;
    for (size_t i = 0; i < walk->fields->n; i++) {
        const struct field *field = &walk->fields->items[i];
        const size_t n = field->texts.n;
        if (!field->is_drawn && walk->n_given >= n)
            return s2s_error_set(err, S2S_E_SHAPE,
                                 "%s: has %zu lines for '%s', fewer than there are samples",
                                 field->texts.file.path, n, field->name);
        sum = sum * n +
              (field->is_drawn ? s2s_pyrandom_below(&walk->random[i], (uint32_t)n) : walk->n_given);
    }
    walk->n_given++;
    *which = sum;
    return 0;
}

void data_fields_give(const struct data_fields *fields, struct s2s_sample *sample, uint64_t which)
{
    if (!fields)
        return;
    sample->custom = sample->custom ? sample->custom : json_object();
    for (size_t i = fields->n; i-- > 0;) {
        const struct field *field = &fields->items[i];
        size_t len;
        const char *text = data_texts_at(&field->texts, which % field->texts.n, &len);
        json_object_set_new(sample->custom, field->name, json_stringn(text, len));
        which /= field->texts.n;
    }
}

bool data_fields_digest(const struct data_fields *fields, size_t k, char hex[33])
{
    if (!fields || k >= fields->n)
        return false;
    const struct s2s_lines *file = &fields->items[k].texts.file;
    s2s_xxh3_128_hex(hex, file->data, file->len);
    return true;
}
