/* Parses the lines of ids that `s2s-pack --ids` takes. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/data/ids_scan.h"
#include "lib/data/manifest.h"

void s2s_ids_row_release(struct s2s_ids_row *row)
{
    free(row->id);
    free(row->text);
    free(row->ids);
    free(row->loss_mask);
    free(row->clips);
    *row = (struct s2s_ids_row)S2S_IDS_ROW_INIT;
}

static int parse_input_ids(struct s2s_ids_row *row, const json_t *object, struct s2s_error *err)
{
    const json_t *list = json_object_get(object, "input_ids");
    if (!json_is_array(list))
        return s2s_error_set(err, S2S_E_FORMAT, "'input_ids' is missing or no list");
    row->n_ids = json_array_size(list);
    row->ids = s2s_xcalloc(row->n_ids + 1, sizeof *row->ids);
    for (size_t i = 0; i < row->n_ids; i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id))
            return s2s_error_set(err, S2S_E_FORMAT, "input_ids[%zu] is no whole number", i);
        json_int_t value = json_integer_value(id);
        if (value < 0 || value > INT32_MAX)
            return s2s_error_set(err, S2S_E_RANGE, "input_ids[%zu] = %lld, 0 to %d expected", i,
                                 (long long)value, INT32_MAX);
        row->ids[i] = (int32_t)value;
    }
    return 0;
}

static int parse_loss_mask(struct s2s_ids_row *row, const json_t *object, struct s2s_error *err)
{
    const json_t *list = json_object_get(object, "loss_mask");
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return s2s_error_set(err, S2S_E_FORMAT, "'loss_mask' is no list");
    if (json_array_size(list) != row->n_ids)
        return s2s_error_set(err, S2S_E_SHAPE, "loss_mask has %zu entries, input_ids %zu",
                             json_array_size(list), row->n_ids);
    row->loss_mask = s2s_xcalloc(row->n_ids + 1, 1);
    for (size_t i = 0; i < row->n_ids; i++) {
        const json_t *bit = json_array_get(list, i);
        if (!json_is_boolean(bit) &&
            !(json_is_integer(bit) &&
              (json_int_t)(json_integer_value(bit) & 1) == json_integer_value(bit)))
            return s2s_error_set(err, S2S_E_FORMAT, "loss_mask[%zu] is not 0 or 1", i);
        row->loss_mask[i] = json_is_true(bit) || json_integer_value(bit) == 1;
    }
    return 0;
}

/* The list of a key that goes along with the ids; NULL: there is none, *rc says whether it is bad.
 */
static const json_t *beside_ids(int *rc, const struct s2s_ids_row *row, const json_t *object,
                                const char *key, struct s2s_error *err)
{
    const json_t *list = json_object_get(object, key);
    if (!json_is_array(list))
        return NULL;
    if (json_array_size(list) == row->n_ids)
        return list;
    *rc = s2s_error_set(err, S2S_E_SHAPE, "%s has %zu entries, input_ids %zu", key,
                        json_array_size(list), row->n_ids);
    return NULL;
}

/* Rows of Hugging Face data sets say with these which ids count and which are predicted: to pass
 * over them would train on padding and on prompts. */
static int check_attention_mask(const struct s2s_ids_row *row, const json_t *object, int32_t pad_id,
                                size_t *n_hidden, struct s2s_error *err)
{
    int rc = 0;
    const json_t *list = beside_ids(&rc, row, object, "attention_mask", err);
    for (size_t i = 0; list && i < row->n_ids; i++) {
        const json_t *bit = json_array_get(list, i);
        if (json_is_true(bit) || json_number_value(bit) == 1)
            continue;
        if (i > *n_hidden) {
            rc = s2s_error_set(err, S2S_E_FORMAT, "attention_mask[%zu] leaves out an id", i);
            return s2s_error_hint(err, rc, "leave padding on the right out of input_ids");
        }
        if (row->ids[i] != pad_id) {
            rc = s2s_error_set(err, S2S_E_FORMAT, "attention_mask[%zu] leaves out id %d", i,
                               row->ids[i]);
            return s2s_error_hint(err, rc, "if it is padding, say so with --pad-id");
        }
        ++*n_hidden;
    }
    return rc;
}

static int by_pos(const void *a, const void *b)
{
    const struct s2s_thd_clip *x = a, *y = b;
    return x->pos < y->pos ? -1 : x->pos > y->pos;
}

static bool is_clip(const struct s2s_ids_row *row, size_t at)
{
    const struct s2s_thd_clip clip = {.pos = (int64_t)at};
    return row->n_clips && bsearch(&clip, row->clips, row->n_clips, sizeof clip, by_pos);
}

/* Whoever masks labels by the padding's id means it. */
static void take_loss(struct s2s_ids_row *row, size_t at)
{
    if (!row->loss_mask) {
        row->loss_mask = s2s_xmalloc(row->n_ids + 1);
        memset(row->loss_mask, 1, row->n_ids);
    }
    row->loss_mask[at] = 0;
}

static int check_labels(struct s2s_ids_row *row, const json_t *object, int32_t pad_id,
                        size_t n_hidden, struct s2s_error *err)
{
    enum { NO_LABEL = -100 };
    int rc = 0;
    const bool has_mask = row->loss_mask;
    size_t first = 0; /* id behind the padding: nothing predicts it */
    const json_t *list = beside_ids(&rc, row, object, "labels", err);
    while (first < row->n_ids && row->ids[first] == pad_id && !is_clip(row, first))
        first++;
    for (size_t i = n_hidden; list && i < row->n_ids; i++) {
        const json_int_t label = json_integer_value(json_array_get(list, i));
        const int32_t want = !row->loss_mask || row->loss_mask[i] ? row->ids[i] : NO_LABEL;
        if (label == want)
            continue;
        if (label == NO_LABEL && (i <= first || is_clip(row, i)))
            continue;
        if (label == NO_LABEL && row->ids[i] == pad_id) {
            take_loss(row, i);
            continue;
        }
        rc = s2s_error_set(err, S2S_E_FORMAT, "labels[%zu] = %lld, where %s says %d", i,
                           (long long)label, has_mask ? "loss_mask" : "no loss_mask", want);
        return s2s_error_hint(err, rc, "give loss_mask: 0 where the label is -100");
    }
    return rc;
}

static int parse_clip(struct s2s_thd_clip *clip, const json_t *entry, size_t k,
                      struct s2s_error *err)
{
    const json_t *pos = json_object_get(entry, "pos"), *frames = json_object_get(entry, "frames");
    if (!json_is_integer(pos) || !json_is_integer(frames))
        return s2s_error_set(err, S2S_E_FORMAT, "audio[%zu] lacks a whole number 'pos' or 'frames'",
                             k);
    if (json_integer_value(frames) < 0 || json_integer_value(frames) > INT32_MAX)
        return s2s_error_set(err, S2S_E_RANGE, "audio[%zu].frames = %lld, 0 to %d expected", k,
                             (long long)json_integer_value(frames), INT32_MAX);
    clip->pos = json_integer_value(pos);
    clip->frames = (int32_t)json_integer_value(frames);
    return 0;
}

static int parse_audio(struct s2s_ids_row *row, const json_t *object, struct s2s_error *err)
{
    const json_t *list = json_object_get(object, "audio");
    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return s2s_error_set(err, S2S_E_FORMAT, "'audio' is no list");
    row->n_clips = json_array_size(list);
    row->clips = s2s_xcalloc(row->n_clips + 1, sizeof *row->clips);
    for (size_t k = 0; k < row->n_clips; k++) {
        int rc = parse_clip(&row->clips[k], json_array_get(list, k), k, err);
        if (rc < 0)
            return rc;
    }
    qsort(row->clips, row->n_clips, sizeof *row->clips, by_pos);
    return 0;
}

static int parse_texts(struct s2s_ids_row *row, const json_t *object, int64_t number,
                       struct s2s_error *err)
{
    const json_t *id = json_object_get(object, "id"), *text = json_object_get(object, "text");
    if (id && !json_is_string(id) && !json_is_integer(id) && !json_is_null(id))
        return s2s_error_set(err, S2S_E_FORMAT, "'id' is no string");
    if (text && !json_is_string(text) && !json_is_null(text))
        return s2s_error_set(err, S2S_E_FORMAT, "'text' is no string");
    if (json_is_string(id))
        row->id = s2s_xstrdup(json_string_value(id));
    else
        row->id = s2s_xasprintf("%lld", json_is_integer(id) ? (long long)json_integer_value(id)
                                                            : (long long)number);
    row->text = json_is_string(text) ? s2s_xstrdup(json_string_value(text)) : NULL;
    return 0;
}

int s2s_data_parse_ids(struct s2s_ids_row *row, const struct s2s_line *line, int32_t pad_id,
                       struct s2s_error *err)
{
    json_error_t at;
    size_t n_hidden = 0; /* ids that attention_mask leaves out, all in front */
    if (data_scan_ids(row, line))
        return 0;
    *row = (struct s2s_ids_row)S2S_IDS_ROW_INIT;
    json_t *object = json_loadb(line->text, line->len, JSON_REJECT_DUPLICATES, &at);
    int rc = 0;
    if (!object)
        return s2s_error_set(err, S2S_E_FORMAT, "column %d: %s", at.column, at.text);
    if (!json_is_object(object))
        rc = s2s_error_set(err, S2S_E_FORMAT, "not a JSON object");
    if (rc == 0)
        rc = parse_texts(row, object, line->number, err);
    if (rc == 0)
        rc = parse_input_ids(row, object, err);
    if (rc == 0)
        rc = parse_loss_mask(row, object, err);
    if (rc == 0)
        rc = check_attention_mask(row, object, pad_id, &n_hidden, err);
    if (rc == 0)
        rc = parse_audio(row, object, err);
    if (rc == 0)
        rc = check_labels(row, object, pad_id, n_hidden, err);
    if (rc < 0)
        s2s_ids_row_release(row);
    json_decref(object);
    return rc;
}
