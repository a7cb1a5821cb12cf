/*
 * The salm layout: rows of ids in which each clip of audio is one placeholder become one THD row.
 * Step by step what NeMo's SALM does with packed sequences: strip the left padding, put the clips'
 * frames into the place of their placeholders, shift labels inside the utterance, round lengths up
 * for context parallelism, raise the last one for tensor parallelism. tests/oracle/packing pins it.
 *
 * Errors carry the names E_EMPTY_BATCH (no row), E_EMPTY_ROW (a row without ids), E_EMPTY_UTT
 * (nothing left, because its clips have no frames), E_AUDIO_COUNT (placeholders and clips
 * disagree).
 */
#ifndef S2S_THD_SALM_H
#define S2S_THD_SALM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s2s_error;

/* The label of a slot where nothing is predicted. */
enum { S2S_IGNORE = -100 };

/* A clip: the index of its placeholder in the row as given, and its number of encoder frames. */
struct s2s_thd_clip {
    int64_t pos;
    int32_t frames;
};

/* One utterance, borrowed. */
struct s2s_thd_row {
    const char *id;           /* for messages; may be NULL */
    const int32_t *ids;       /* [n_ids], perhaps padded on the left with pad_id */
    const uint8_t *loss_mask; /* [n_ids], 1: may be predicted; NULL: all ones */
    size_t n_ids;
    const struct s2s_thd_clip *clips; /* [n_clips], pos ascending */
    size_t n_clips;
};

struct s2s_salm_options {
    int32_t pad_id;
    /* If not negative: placeholders must hold this id and no other slot may, else E_AUDIO_COUNT. If
     * negative a placeholder is known by its pos alone. */
    int32_t audio_id;
    int cp_size, tp_size; /* at least 1 */
    /* Ids equal to pad_id keep their labels: lengths are known here, so pad_id may well be that of
     * the end of text. Without it they get none, as in NeMo, whose rows are padded batches. */
    bool keep_pad_labels;
    bool no_left_padding; /* rows have none, so an id in front that is pad_id is text */
    /* Raise the last utterance until every context-parallel rank's share divides by tp_size, as
     * sequence parallelism needs; upstream only sees to T % tp_size. */
    bool strict_sp;
};

#define S2S_SALM_OPTIONS_DEFAULT \
    { \
        .audio_id = -1, .cp_size = 1, .tp_size = 1 \
    }

/* What a row becomes. */
struct s2s_salm_shape {
    size_t skip;           /* ids of the left padding */
    int64_t len;           /* slots: kept ids - placeholders + frames */
    int64_t len_padded;    /* rounded up to 2*cp_size, before the last utterance is raised */
    bool first_supervised; /* the first slot is a text token that may be predicted (see below) */
    int64_t n_labels;      /* slots that have something to predict */
    int64_t pad_labels, pad_stripped; /* as in s2s_salm_counts */
};

int s2s_salm_measure(struct s2s_salm_shape *shape, const struct s2s_thd_row *row,
                     const struct s2s_salm_options *opt, struct s2s_error *err);

/*
 * The longest prefix of a row that needs at most max_len slots and cuts no clip: ids to keep in
 * *n_ids, clips in *n_clips; 0 ids when nothing fits. row must measure without error.
 */
void s2s_salm_truncate(size_t *n_ids, size_t *n_clips, const struct s2s_thd_row *row,
                       const struct s2s_salm_options *opt, int64_t max_len);

/* Slots are added in this step to the last utterance until T divides by s2s_salm_unit. */
int64_t s2s_salm_step(const struct s2s_salm_options *opt);
/* What T must be a multiple of: tp_size, or with strict_sp and context parallelism cp * tp. */
int64_t s2s_salm_unit(const struct s2s_salm_options *opt);
/* How far the last utterance of n_slots slots is raised. */
int64_t s2s_salm_raise(int64_t n_slots, const struct s2s_salm_options *opt);
/*
 * The largest T that is at most max_tokens and that raising the last utterance can always stay
 * within: a multiple of lcm(step, unit) when tp_size > 1, else max_tokens itself. 0: none.
 */
int64_t s2s_salm_capacity(int64_t max_tokens, const struct s2s_salm_options *opt);

/* Places where this differs from what users may expect; added up over packs. */
struct s2s_salm_counts {
    /* utterances shorter than the longest of their pack whose first slot is a text token to be
     * predicted: a padded batch trains "padding predicts it", a packed one cannot */
    int64_t first_supervised;
    /* ids equal to pad_id that may be predicted (pad equal to eos or unk) but get no label without
     * keep_pad_labels, and such ids lost with the left padding */
    int64_t pad_labels, pad_stripped;
    /* packs whose share of a context-parallel rank does not divide by tp_size */
    int64_t sp_misaligned;
};

/* One THD row: T slots, B utterances, K clips. Names and meanings are those of the stream's pack.
 */
struct s2s_salm_pack {
    size_t n_slots, n_seqs, n_clips;
    int32_t *input_ids, *labels, *position_ids; /* [T]; no positions in mcore */
    uint8_t *loss_mask;                         /* [T]; rl and sft, else NULL */
    int32_t *seq_lens, *seq_lens_padded;        /* [B] */
    int32_t *cu_seqlens;        /* [B + 1], sums of seq_lens_padded; of seq_lens in other layouts */
    int32_t *cu_seqlens_padded; /* [B + 1], sums of seq_lens_padded; NULL in salm */
    int32_t *audio_slot, *audio_frames; /* [K] */
    int32_t max_seqlen;
    int64_t num_tokens;
    struct s2s_salm_counts counts;
};

#define S2S_SALM_PACK_INIT \
    { \
        .n_slots = 0 \
    }

/* Lays out rows [n_rows]. Errors name the utterance. Gives: s2s_salm_pack_release. */
int s2s_salm_pack(struct s2s_salm_pack *pack, const struct s2s_thd_row *rows, size_t n_rows,
                  const struct s2s_salm_options *opt, struct s2s_error *err);
void s2s_salm_pack_release(struct s2s_salm_pack *pack);
void s2s_salm_counts_add(struct s2s_salm_counts *sum, const struct s2s_salm_counts *counts);

#endif
