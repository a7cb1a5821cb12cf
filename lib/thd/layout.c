/* Lays packs out as NeMo-RL, Megatron-core and packed SFT files have them. */
#include "lib/thd/layout.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/thd/bins.h"

const char *const s2s_thd_layouts[] = {"salm", "rl", "mcore", "sft", NULL};

/* ---- lengths ---- */

/* What context parallelism demands of a sequence. */
static int64_t cp_multiple(const struct s2s_salm_options *opt)
{
    return opt->cp_size > 1 ? 2 * (int64_t)opt->cp_size : 1;
}

/* What the ranks that divide a sequence demand of it: with sequence parallelism tp too. */
static int64_t least_multiple(const struct s2s_salm_options *opt)
{
    return cp_multiple(opt) * (opt->strict_sp ? opt->tp_size : 1);
}

static int64_t multiple_of(const struct s2s_layout *layout, const struct s2s_salm_options *opt)
{
    if (layout->kind != S2S_THD_MCORE)
        return cp_multiple(opt);
    return layout->multiple > 0 ? layout->multiple : least_multiple(opt);
}

/* Real slots that are no input: the last id of a packed SFT sample is a label alone. */
static int64_t label_only(const struct s2s_layout *layout)
{
    return layout->kind == S2S_THD_SFT;
}

int s2s_layout_check(const struct s2s_layout *layout, const struct s2s_salm_options *opt,
                     struct s2s_error *err)
{
    const bool is_mcore = layout->kind == S2S_THD_MCORE;
    if (layout->min_seq_len > 0 && layout->kind != S2S_THD_RL)
        return s2s_error_set(err, S2S_E_ARG, "--min-seq-len goes with --layout rl");
    if ((layout->multiple > 0 || layout->pack_multiple > 0) && !is_mcore)
        return s2s_error_set(err, S2S_E_ARG,
                             "--multiple and --pack-multiple go with --layout mcore");
    if (layout->pack_to > 0 && !is_mcore && layout->kind != S2S_THD_SFT)
        return s2s_error_set(err, S2S_E_ARG, "--pack-to goes with --layout mcore or sft");
    if (is_mcore && multiple_of(layout, opt) % least_multiple(opt) != 0)
        return s2s_error_set(err, S2S_E_ARG,
                             "--multiple %lld is no multiple of %lld, which --cp %d%s needs",
                             (long long)layout->multiple, (long long)least_multiple(opt),
                             opt->cp_size, opt->strict_sp ? " with --strict-sp" : "");
    const int64_t of_pack = layout->pack_multiple > 0 ? layout->pack_multiple : 1;
    if (layout->pack_to % of_pack != 0 || layout->pack_to % least_multiple(opt) != 0)
        return s2s_error_set(err, S2S_E_ARG,
                             "--pack-to %lld is no multiple of %lld (--pack-multiple) and %lld "
                             "(--cp)",
                             (long long)layout->pack_to, (long long)of_pack,
                             (long long)least_multiple(opt));
    if (of_pack % least_multiple(opt) != 0 && layout->pack_multiple > 0)
        return s2s_error_set(err, S2S_E_ARG,
                             "--pack-multiple %lld is no multiple of %lld, which --cp %d needs",
                             (long long)of_pack, (long long)least_multiple(opt), opt->cp_size);
    if (layout->min_seq_len % cp_multiple(opt) != 0)
        return s2s_error_set(err, S2S_E_ARG,
                             "E_ALIGN: --min-seq-len %lld is no multiple of 2 * cp = %lld",
                             (long long)layout->min_seq_len, (long long)cp_multiple(opt));
    return 0;
}

static int check_last(const struct s2s_thd_row *row, struct s2s_error *err)
{
    const size_t k = row->n_clips;
    if (k == 0 || row->clips[k - 1].pos != (int64_t)row->n_ids - 1)
        return 0;
    return s2s_error_set(err, S2S_E_SHAPE,
                         "E_AUDIO_LAST: utterance '%s' ends in a clip, but its last slot is to be "
                         "a label alone",
                         row->id ? row->id : "");
}

int s2s_layout_measure(struct s2s_salm_shape *shape, const struct s2s_thd_row *row,
                       const struct s2s_layout *layout, const struct s2s_salm_options *opt,
                       struct s2s_error *err)
{
    int rc = s2s_salm_measure(shape, row, opt, err);
    if (rc < 0 || layout->kind == S2S_THD_SALM)
        return rc;
    if (label_only(layout) && (rc = check_last(row, err)) < 0)
        return rc;
    shape->len -= label_only(layout);
    if (shape->len == 0)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "E_EMPTY_UTT: utterance '%s' has one id, which is a label alone",
                             row->id ? row->id : "");
    shape->len_padded = s2s_thd_round_up(shape->len, multiple_of(layout, opt));
    if (shape->len_padded > INT32_MAX)
        return s2s_error_set(err, S2S_E_RANGE, "%lld slots do not fit a cu_seqlens of 32 bits",
                             (long long)shape->len_padded);
    return 0;
}

void s2s_layout_truncate(size_t *n_ids, size_t *n_clips, const struct s2s_thd_row *row,
                         const struct s2s_layout *layout, const struct s2s_salm_options *opt,
                         int64_t max_len)
{
    struct s2s_salm_options whole = *opt;
    if (layout->kind != S2S_THD_SALM) {
        whole.cp_size = 1;
        max_len -= max_len % multiple_of(layout, opt);
        max_len += label_only(layout);
    }
    s2s_salm_truncate(n_ids, n_clips, row, &whole, max_len);
}

int64_t s2s_layout_capacity(int64_t max_tokens, const struct s2s_layout *layout,
                            const struct s2s_salm_options *opt)
{
    const int64_t of_pack = layout->pack_multiple > 0 ? layout->pack_multiple : 1;
    if (layout->kind == S2S_THD_SALM)
        return s2s_salm_capacity(max_tokens, opt);
    if (layout->pack_to > 0)
        return layout->pack_to <= max_tokens ? layout->pack_to : 0;
    if (layout->min_seq_len > max_tokens)
        return 0; /* else rows would be longer than they may be */
    max_tokens -= max_tokens % s2s_layout_bin_multiple(layout, opt);
    return max_tokens - max_tokens % of_pack;
}

int64_t s2s_layout_bin_multiple(const struct s2s_layout *layout, const struct s2s_salm_options *opt)
{
    return layout->kind == S2S_THD_RL ? cp_multiple(opt) * opt->tp_size : 1;
}

int64_t s2s_layout_slots(int64_t n_slots, const struct s2s_layout *layout,
                         const struct s2s_salm_options *opt)
{
    switch (layout->kind) {
    case S2S_THD_SALM:
        return n_slots + s2s_salm_raise(n_slots, opt);
    case S2S_THD_RL:
        return n_slots > layout->min_seq_len ? n_slots : layout->min_seq_len;
    case S2S_THD_MCORE:
        if (layout->pack_to == 0 && layout->pack_multiple > 0)
            return s2s_thd_round_up(n_slots, layout->pack_multiple);
        break;
    case S2S_THD_SFT:
        break;
    }
    return layout->pack_to > 0 ? layout->pack_to : n_slots;
}

/* ---- the pack ---- */

static int32_t *bounds_of(const int32_t *lens, size_t n)
{
    int32_t *bounds = s2s_xcalloc(n + 1, sizeof *bounds);
    for (size_t i = 0; i < n; i++)
        bounds[i + 1] = bounds[i] + lens[i];
    return bounds;
}

/* Where nothing but the end of the row is fill, Automodel counts it as tokens of the last
 * sequence, so that attention needs one vector of bounds. */
static void absorb(struct s2s_salm_pack *pack)
{
    const size_t n = pack->n_seqs;
    if (memcmp(pack->cu_seqlens, pack->cu_seqlens_padded, n * sizeof *pack->cu_seqlens) == 0)
        pack->cu_seqlens[n] = pack->cu_seqlens_padded[n];
}

static int plan(struct s2s_salm_pack *pack, struct s2s_salm_shape *shapes,
                const struct s2s_thd_row *rows, size_t n_rows, const struct s2s_layout *layout,
                const struct s2s_salm_options *opt, struct s2s_error *err)
{
    int64_t n_slots = 0, longest = 0;
    for (size_t i = 0; i < n_rows; i++) {
        int rc = s2s_layout_measure(&shapes[i], &rows[i], layout, opt, err);
        if (rc < 0)
            return rc;
        n_slots += shapes[i].len_padded;
        longest = shapes[i].len > longest ? shapes[i].len : longest;
        pack->n_clips += rows[i].n_clips;
        pack->num_tokens += shapes[i].len;
        pack->counts.pad_stripped += shapes[i].pad_stripped;
    }
    const int64_t all = s2s_layout_slots(n_slots, layout, opt);
    if (all < n_slots)
        return s2s_error_set(err, S2S_E_RANGE, "E_TOO_SHORT: a pack of %lld slots cannot hold %lld",
                             (long long)all, (long long)n_slots);
    if (all > INT32_MAX)
        return s2s_error_set(err, S2S_E_RANGE, "%lld slots do not fit a cu_seqlens of 32 bits",
                             (long long)all);
    shapes[n_rows - 1].len_padded += all - n_slots;
    pack->n_slots = (size_t)all;
    pack->n_seqs = n_rows;
    pack->seq_lens = s2s_xcalloc(n_rows, sizeof(int32_t));
    pack->seq_lens_padded = s2s_xcalloc(n_rows, sizeof(int32_t));
    for (size_t i = 0; i < n_rows; i++) {
        pack->seq_lens[i] = (int32_t)shapes[i].len;
        pack->seq_lens_padded[i] = (int32_t)shapes[i].len_padded;
        if (pack->seq_lens_padded[i] > pack->max_seqlen)
            pack->max_seqlen = pack->seq_lens_padded[i];
        pack->counts.first_supervised += shapes[i].first_supervised && shapes[i].len < longest;
    }
    pack->cu_seqlens = bounds_of(pack->seq_lens, n_rows);
    pack->cu_seqlens_padded = bounds_of(pack->seq_lens_padded, n_rows);
    if (layout->kind == S2S_THD_RL)
        absorb(pack);
    pack->counts.sp_misaligned = opt->tp_size > 1 && all / opt->cp_size % opt->tp_size != 0;
    return 0;
}

/* The ids of a row with each placeholder as often as its clip has frames, and which of them may be
 * predicted; clip k of the pack comes next, at slot begin of it. */
static void splice(int32_t *ids, uint8_t *mask, struct s2s_salm_pack *pack, size_t begin,
                   size_t *clip, size_t skip, const struct s2s_thd_row *row)
{
    size_t at = 0, k = 0;
    for (size_t t = skip; t < row->n_ids; t++) {
        int32_t n = 1;
        const bool is_clip = k < row->n_clips && row->clips[k].pos == (int64_t)t;
        if (is_clip) {
            n = row->clips[k++].frames;
            pack->audio_slot[*clip] = (int32_t)(begin + at);
            pack->audio_frames[(*clip)++] = n;
        }
        for (int32_t f = 0; f < n; f++) {
            ids[at] = row->ids[t];
            mask[at++] = !is_clip && (!row->loss_mask || row->loss_mask[t]);
        }
    }
}

/* Labels of one utterance of n slots, from its n ids (one more in sft) and what may be predicted.
 */
static void label(struct s2s_salm_pack *pack, size_t begin, size_t n, const int32_t *ids,
                  const uint8_t *mask, enum s2s_thd_layout kind)
{
    int32_t *labels = pack->labels + begin;
    const size_t ahead = kind == S2S_THD_RL ? 0 : 1;
    for (size_t t = 0; t < n; t++) {
        const bool in_row = t + ahead < n + (kind == S2S_THD_SFT);
        const bool counts = in_row && mask[t + ahead];
        if (pack->loss_mask)
            pack->loss_mask[begin + t] = counts;
        if (in_row && (counts || kind == S2S_THD_SFT))
            labels[t] = ids[t + ahead];
    }
}

/* Fills the slots of utterance i. */
static void fill(struct s2s_salm_pack *pack, size_t i, size_t *clip, size_t skip,
                 const struct s2s_thd_row *row, enum s2s_thd_layout kind, int32_t pad_id)
{
    const size_t begin = (size_t)pack->cu_seqlens_padded[i], len = (size_t)pack->seq_lens[i];
    const size_t len_padded = (size_t)pack->seq_lens_padded[i];
    const size_t n = len + (kind == S2S_THD_SFT);
    int32_t *ids = s2s_xmalloc((n + 1) * sizeof *ids);
    uint8_t *mask = s2s_xmalloc(n + 1);
    splice(ids, mask, pack, begin, clip, skip, row);
    memcpy(pack->input_ids + begin, ids, len * sizeof *ids);
    for (size_t t = len; t < len_padded; t++)
        pack->input_ids[begin + t] = kind == S2S_THD_MCORE ? 0 : pad_id;
    for (size_t t = 0; t < len_padded; t++)
        pack->labels[begin + t] = S2S_IGNORE;
    label(pack, begin, len, ids, mask, kind);
    free(ids);
    free(mask);
}

/* n_own: slots of the utterances before the row was filled up, where positions still count. */
static void set_positions(struct s2s_salm_pack *pack, enum s2s_thd_layout kind, size_t n_own)
{
    pack->position_ids = s2s_xcalloc(pack->n_slots, sizeof(int32_t));
    for (size_t i = 0; i < pack->n_seqs; i++) {
        const size_t begin = (size_t)pack->cu_seqlens_padded[i];
        const size_t end = (size_t)pack->cu_seqlens_padded[i + 1];
        for (size_t t = begin; t < end && (kind != S2S_THD_RL || t < n_own); t++)
            pack->position_ids[t] = (int32_t)(t - begin);
    }
}

int s2s_layout_pack(struct s2s_salm_pack *pack, const struct s2s_thd_row *rows, size_t n_rows,
                    const struct s2s_layout *layout, const struct s2s_salm_options *opt,
                    struct s2s_error *err)
{
    if (layout->kind == S2S_THD_SALM)
        return s2s_salm_pack(pack, rows, n_rows, opt, err);
    *pack = (struct s2s_salm_pack)S2S_SALM_PACK_INIT;
    if (n_rows == 0)
        return s2s_error_set(err, S2S_E_SHAPE, "E_EMPTY_BATCH: there is no utterance");
    struct s2s_salm_shape *shapes = s2s_xcalloc(n_rows, sizeof *shapes);
    int rc = plan(pack, shapes, rows, n_rows, layout, opt, err);
    if (rc < 0) {
        s2s_salm_pack_release(pack);
        goto out;
    }
    size_t n_own = (size_t)pack->cu_seqlens_padded[n_rows - 1], clip = 0;
    n_own += (size_t)s2s_thd_round_up(shapes[n_rows - 1].len, multiple_of(layout, opt));
    pack->input_ids = s2s_xcalloc(pack->n_slots, sizeof(int32_t));
    pack->labels = s2s_xcalloc(pack->n_slots, sizeof(int32_t));
    pack->audio_slot = s2s_xcalloc(pack->n_clips + 1, sizeof(int32_t));
    pack->audio_frames = s2s_xcalloc(pack->n_clips + 1, sizeof(int32_t));
    if (layout->kind != S2S_THD_MCORE) {
        pack->loss_mask = s2s_xcalloc(pack->n_slots, 1);
        set_positions(pack, layout->kind, n_own);
    }
    for (size_t i = 0; i < n_rows; i++)
        fill(pack, i, &clip, shapes[i].skip, &rows[i], layout->kind, opt->pad_id);
out:
    free(shapes);
    return rc;
}
