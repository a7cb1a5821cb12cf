/* Builds the rows of the salm layout from ids, masks and frames. */
#include "lib/thd/salm.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/thd/bins.h"

static int row_error(const struct s2s_thd_row *row, int rc, struct s2s_error *err)
{
    return row->id ? s2s_error_add(err, rc, "utterance '%s'", row->id) : rc;
}

/* ---- one row ---- */

static bool may_predict(const struct s2s_thd_row *row, size_t t)
{
    return !row->loss_mask || row->loss_mask[t];
}

static bool has_label(const struct s2s_thd_row *row, size_t t, const struct s2s_salm_options *opt)
{
    return may_predict(row, t) && (opt->keep_pad_labels || row->ids[t] != opt->pad_id);
}

/* A row of nothing but padding keeps its last slot; a placeholder is none, whatever its id. */
static size_t left_padding(const struct s2s_thd_row *row, const struct s2s_salm_options *opt)
{
    const int64_t first_clip = row->n_clips > 0 ? row->clips[0].pos : -1;
    size_t skip = 0;
    if (opt->no_left_padding)
        return 0;
    while (skip + 1 < row->n_ids && row->ids[skip] == opt->pad_id && (int64_t)skip != first_clip)
        skip++;
    return skip;
}

/* Placeholders and clips must be the same slots. */
static int check_clips(const struct s2s_thd_row *row, size_t skip,
                       const struct s2s_salm_options *opt, struct s2s_error *err)
{
    int64_t last = (int64_t)skip - 1;
    size_t n_placeholders = 0;
    for (size_t k = 0; k < row->n_clips; k++) {
        const struct s2s_thd_clip *clip = &row->clips[k];
        if (clip->frames < 0)
            return s2s_error_set(err, S2S_E_RANGE, "clip %zu has %d frames", k, clip->frames);
        if (clip->pos <= last || clip->pos >= (int64_t)row->n_ids)
            return s2s_error_set(err, S2S_E_SHAPE,
                                 "E_AUDIO_COUNT: clip %zu at %lld has no placeholder of its own "
                                 "among the ids %zu .. %zu",
                                 k, (long long)clip->pos, skip, row->n_ids - 1);
        last = clip->pos;
    }
    if (opt->audio_id < 0)
        return 0;
    for (size_t t = skip; t < row->n_ids; t++)
        n_placeholders += row->ids[t] == opt->audio_id;
    if (n_placeholders != row->n_clips)
        return s2s_error_set(err, S2S_E_SHAPE, "E_AUDIO_COUNT: %zu placeholders, %zu clips",
                             n_placeholders, row->n_clips);
    for (size_t k = 0; k < row->n_clips; k++)
        if (row->ids[row->clips[k].pos] != opt->audio_id)
            return s2s_error_set(err, S2S_E_SHAPE,
                                 "E_AUDIO_COUNT: clip %zu is at %lld, where no placeholder is", k,
                                 (long long)row->clips[k].pos);
    return 0;
}

/* Whether the row's first slot, clips without frames left out, is a text token to be predicted. */
static bool starts_supervised(const struct s2s_thd_row *row, size_t skip,
                              const struct s2s_salm_options *opt)
{
    size_t t = skip, k = 0;
    while (k < row->n_clips && row->clips[k].pos == (int64_t)t && row->clips[k].frames == 0) {
        t++;
        k++;
    }
    if (t == row->n_ids || (k < row->n_clips && row->clips[k].pos == (int64_t)t))
        return false;
    return has_label(row, t, opt);
}

/* Labels of text behind the first slot, which nothing predicts; those that pad_id costs. */
static void count_labels(struct s2s_salm_shape *shape, const struct s2s_thd_row *row,
                         const struct s2s_salm_options *opt)
{
    shape->n_labels = shape->pad_labels = shape->pad_stripped = 0;
    for (size_t t = 0; t < shape->skip; t++)
        shape->pad_stripped += row->loss_mask && row->loss_mask[t];
    for (size_t t = shape->skip, k = 0; t < row->n_ids; t++) {
        if (k < row->n_clips && row->clips[k].pos == (int64_t)t) {
            k++;
            continue;
        }
        shape->n_labels += has_label(row, t, opt);
        shape->pad_labels += may_predict(row, t) && !has_label(row, t, opt);
    }
    if (row->n_ids - shape->skip == 1)
        shape->pad_labels = 0; /* nothing predicts a lone id */
    shape->n_labels -= shape->first_supervised;
}

static int measure(struct s2s_salm_shape *shape, const struct s2s_thd_row *row,
                   const struct s2s_salm_options *opt, struct s2s_error *err)
{
    if (row->n_ids == 0)
        return s2s_error_set(err, S2S_E_SHAPE, "E_EMPTY_ROW: there is no id");
    shape->skip = left_padding(row, opt);
    int rc = check_clips(row, shape->skip, opt, err);
    if (rc < 0)
        return rc;
    shape->len = (int64_t)(row->n_ids - shape->skip - row->n_clips);
    for (size_t k = 0; k < row->n_clips; k++)
        shape->len += row->clips[k].frames;
    if (shape->len == 0)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "E_EMPTY_UTT: its clips have no frames and it has no text");
    shape->len_padded =
        opt->cp_size > 1 ? s2s_thd_round_up(shape->len, 2 * opt->cp_size) : shape->len;
    if (shape->len_padded > INT32_MAX)
        return s2s_error_set(err, S2S_E_RANGE, "%lld slots do not fit a cu_seqlens of 32 bits",
                             (long long)shape->len_padded);
    shape->first_supervised = starts_supervised(row, shape->skip, opt);
    count_labels(shape, row, opt);
    return 0;
}

int s2s_salm_measure(struct s2s_salm_shape *shape, const struct s2s_thd_row *row,
                     const struct s2s_salm_options *opt, struct s2s_error *err)
{
    int rc = measure(shape, row, opt, err);
    return rc < 0 ? row_error(row, rc, err) : 0;
}

void s2s_salm_truncate(size_t *n_ids, size_t *n_clips, const struct s2s_thd_row *row,
                       const struct s2s_salm_options *opt, int64_t max_len)
{
    size_t t = left_padding(row, opt), k = 0;
    int64_t len = 0;
    if (opt->cp_size > 1)
        max_len -= max_len % (2 * opt->cp_size);
    for (; t < row->n_ids; t++) {
        bool is_clip = k < row->n_clips && row->clips[k].pos == (int64_t)t;
        int64_t more = is_clip ? row->clips[k].frames : 1;
        if (len + more > max_len)
            break;
        len += more;
        k += is_clip;
    }
    *n_ids = len > 0 ? t : 0;
    *n_clips = len > 0 ? k : 0;
}

/* ---- lengths of a pack ---- */

int64_t s2s_salm_step(const struct s2s_salm_options *opt)
{
    return opt->cp_size > 1 ? 2 * (int64_t)opt->cp_size : 1;
}

int64_t s2s_salm_unit(const struct s2s_salm_options *opt)
{
    return opt->strict_sp ? (int64_t)opt->cp_size * opt->tp_size : opt->tp_size;
}

int64_t s2s_salm_capacity(int64_t max_tokens, const struct s2s_salm_options *opt)
{
    if (opt->tp_size == 1)
        return max_tokens;
    const int64_t step = s2s_salm_step(opt), unit = s2s_salm_unit(opt);
    int64_t a = step, b = unit;
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return max_tokens - max_tokens % (step / a * unit);
}

int64_t s2s_salm_raise(int64_t n_slots, const struct s2s_salm_options *opt)
{
    const int64_t step = s2s_salm_step(opt), unit = s2s_salm_unit(opt);
    int64_t more = 0;
    if (opt->tp_size > 1)
        while ((n_slots + more) % unit != 0)
            more += step;
    return more;
}

/* ---- the pack ---- */

void s2s_salm_pack_release(struct s2s_salm_pack *pack)
{
    free(pack->input_ids);
    free(pack->labels);
    free(pack->position_ids);
    free(pack->seq_lens);
    free(pack->seq_lens_padded);
    free(pack->cu_seqlens);
    free(pack->cu_seqlens_padded);
    free(pack->loss_mask);
    free(pack->audio_slot);
    free(pack->audio_frames);
    *pack = (struct s2s_salm_pack)S2S_SALM_PACK_INIT;
}

void s2s_salm_counts_add(struct s2s_salm_counts *sum, const struct s2s_salm_counts *counts)
{
    sum->first_supervised += counts->first_supervised;
    sum->pad_labels += counts->pad_labels;
    sum->pad_stripped += counts->pad_stripped;
    sum->sp_misaligned += counts->sp_misaligned;
}

/* Lengths, bounds and counts; *shapes [n_rows] is given. */
static int plan(struct s2s_salm_pack *pack, struct s2s_salm_shape *shapes,
                const struct s2s_thd_row *rows, size_t n_rows, const struct s2s_salm_options *opt,
                struct s2s_error *err)
{
    int64_t n_slots = 0, longest = 0;
    for (size_t i = 0; i < n_rows; i++) {
        int rc = s2s_salm_measure(&shapes[i], &rows[i], opt, err);
        if (rc < 0)
            return rc;
        n_slots += shapes[i].len_padded;
        longest = shapes[i].len > longest ? shapes[i].len : longest;
        pack->n_clips += rows[i].n_clips;
        pack->num_tokens += shapes[i].len;
    }
    const int64_t more = s2s_salm_raise(n_slots, opt);
    shapes[n_rows - 1].len_padded += more;
    if ((n_slots += more) > INT32_MAX)
        return s2s_error_set(err, S2S_E_RANGE, "%lld slots do not fit a cu_seqlens of 32 bits",
                             (long long)n_slots);
    pack->n_slots = (size_t)n_slots;
    pack->seq_lens = s2s_xcalloc(n_rows, sizeof(int32_t));
    pack->seq_lens_padded = s2s_xcalloc(n_rows, sizeof(int32_t));
    pack->cu_seqlens = s2s_xcalloc(n_rows + 1, sizeof(int32_t));
    for (size_t i = 0; i < n_rows; i++) {
        pack->seq_lens[i] = (int32_t)shapes[i].len;
        pack->seq_lens_padded[i] = (int32_t)shapes[i].len_padded;
        pack->cu_seqlens[i + 1] = pack->cu_seqlens[i] + pack->seq_lens_padded[i];
        if (pack->seq_lens_padded[i] > pack->max_seqlen)
            pack->max_seqlen = pack->seq_lens_padded[i];
        pack->counts.first_supervised += shapes[i].first_supervised && shapes[i].len < longest;
        pack->counts.pad_labels += shapes[i].pad_labels;
        pack->counts.pad_stripped += shapes[i].pad_stripped;
    }
    pack->counts.sp_misaligned = opt->tp_size > 1 && n_slots / opt->cp_size % opt->tp_size != 0;
    return 0;
}

/* Fills the slots of utterance i. ids and labels are those of its real slots, labels not yet
 * shifted; clip k of the pack comes next. */
static void fill_row(struct s2s_salm_pack *pack, size_t i, size_t *clip, size_t skip,
                     const struct s2s_thd_row *row, const struct s2s_salm_options *opt)
{
    const size_t begin = (size_t)pack->cu_seqlens[i], len = (size_t)pack->seq_lens[i];
    const size_t len_padded = (size_t)pack->seq_lens_padded[i];
    int32_t *ids = pack->input_ids + begin, *labels = pack->labels + begin;
    size_t at = 0, k = 0;
    for (size_t t = skip; t < row->n_ids; t++) {
        if (k < row->n_clips && row->clips[k].pos == (int64_t)t) {
            const int32_t frames = row->clips[k++].frames;
            pack->audio_slot[*clip] = (int32_t)(begin + at);
            pack->audio_frames[(*clip)++] = frames;
            for (int32_t f = 0; f < frames; f++, at++) {
                ids[at] = row->ids[t];
                labels[at] = S2S_IGNORE;
            }
            continue;
        }
        const bool predict = has_label(row, t, opt);
        ids[at] = row->ids[t];
        labels[at++] = predict ? row->ids[t] : S2S_IGNORE;
    }
    /* each slot predicts the one behind it in its own utterance */
    memmove(labels, labels + 1, (len - 1) * sizeof *labels);
    for (size_t t = len - 1; t < len_padded; t++)
        labels[t] = S2S_IGNORE;
    for (size_t t = len; t < len_padded; t++)
        ids[t] = opt->pad_id;
    for (size_t t = 0; t < len_padded; t++)
        pack->position_ids[begin + t] = (int32_t)t;
}

int s2s_salm_pack(struct s2s_salm_pack *pack, const struct s2s_thd_row *rows, size_t n_rows,
                  const struct s2s_salm_options *opt, struct s2s_error *err)
{
    *pack = (struct s2s_salm_pack)S2S_SALM_PACK_INIT;
    if (n_rows == 0)
        return s2s_error_set(err, S2S_E_SHAPE, "E_EMPTY_BATCH: there is no utterance");
    struct s2s_salm_shape *shapes = s2s_xcalloc(n_rows, sizeof *shapes);
    int rc = plan(pack, shapes, rows, n_rows, opt, err);
    if (rc < 0) {
        s2s_salm_pack_release(pack);
        goto out;
    }
    pack->n_seqs = n_rows;
    pack->input_ids = s2s_xcalloc(pack->n_slots, sizeof(int32_t));
    pack->labels = s2s_xcalloc(pack->n_slots, sizeof(int32_t));
    pack->position_ids = s2s_xcalloc(pack->n_slots, sizeof(int32_t));
    pack->audio_slot = s2s_xcalloc(pack->n_clips + 1, sizeof(int32_t));
    pack->audio_frames = s2s_xcalloc(pack->n_clips + 1, sizeof(int32_t));
    size_t clip = 0;
    for (size_t i = 0; i < n_rows; i++)
        fill_row(pack, i, &clip, shapes[i].skip, &rows[i], opt);
out:
    free(shapes);
    return rc;
}
