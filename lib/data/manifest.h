/*
 * Parses a line of a manifest to a sample. Errors say what is wrong with the line; the caller adds
 * file and line number (s2s_data_line_error).
 */
#ifndef S2S_DATA_MANIFEST_H
#define S2S_DATA_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lib/data/lines.h"
#include "lib/thd/salm.h"

struct s2s_error;

/* A recorded utterance. Unknown strings are NULL. Release with s2s_sample_release. */
struct s2s_sample {
    char *id;
    char *source; /* file name as in the manifest */
    char *path;   /* where it is */
    /* The part of the file: with has_range `duration_s` seconds from offset_s, otherwise the whole
     * file */
    bool has_range;
    double offset_s;
    double duration_s; /* according to the manifest; 0: unknown */
    int rate_hz;       /* according to the manifest; 0: unknown */
    int channel;       /* -1: all of them, mixed */
    char *text, *lang, *speaker;
    json_t *custom; /* object with the unknown keys; NULL: none */
};

#define S2S_SAMPLE_INIT \
    { \
        .channel = -1 \
    }

void s2s_sample_release(struct s2s_sample *sample);

struct s2s_manifest_options {
    const char *path;       /* of the manifest, whose folder is first searched for relative names */
    const char *text_field; /* NULL: "text" */
    const char *lang_field; /* NULL: "lang" */
};

/*
 * A line of a NeMo manifest: audio_filepath, duration, offset, text, lang, sampling_rate, _skipme,
 * alt_text; other keys go to `custom`. `variant` 0 is the line itself, 1 .. n the entries of its
 * alt_text in their order, whose text and lang replace the line's.
 *
 * Returns the number of variants (1 + entries of alt_text), or 0 when the line is to be skipped;
 * then sample holds nothing. FORMAT names the key; RANGE for a variant that is not there.
 *
 * The id is the file's name without folders and suffix; where the line has an offset,
 * "-OOOOOO-DDDDDD" follows: offset and duration in hundredths of a second, as NeMo names its cuts.
 */
int s2s_data_parse_nemo(struct s2s_sample *sample, const struct s2s_line *line, int variant,
                        const struct s2s_manifest_options *opt, struct s2s_error *err);

/*
 * A line of a Lhotse CutSet: a MonoCut with one recording of one file source. Its text, language
 * and speaker are those of its supervision. Returns 1; FORMAT, UNSUPPORTED (other cuts and sources;
 * several supervisions).
 */
int s2s_data_parse_cut(struct s2s_sample *sample, const struct s2s_line *line,
                       const struct s2s_manifest_options *opt, struct s2s_error *err);

/* A row that is tokenized already. */
struct s2s_ids_row {
    char *id;           /* the line's number if there is none */
    char *text;         /* NULL: unknown */
    int32_t *ids;       /* [n_ids] */
    uint8_t *loss_mask; /* [n_ids]; NULL: all ones */
    size_t n_ids;
    struct s2s_thd_clip *clips; /* [n_clips], pos ascending */
    size_t n_clips;
};

#define S2S_IDS_ROW_INIT \
    { \
        .id = NULL \
    }

/* {"id": "a", "input_ids": [..], "loss_mask": [0,1,..], "audio": [{"pos": 3, "frames": 17}]}.
 * What other programs write beside them, attention_mask and labels, must say the same, but for ids
 * without loss: the first one, placeholders, and those of pad_id, whose loss_mask becomes 0 then.
 * FORMAT, RANGE (an id that does not fit 32 bits), SHAPE (lengths differ). Whether pos is right is
 * for the layout to say. */
int s2s_data_parse_ids(struct s2s_ids_row *row, const struct s2s_line *line, int32_t pad_id,
                       struct s2s_error *err);
void s2s_ids_row_release(struct s2s_ids_row *row);

/* Prepends "file:line" to the error of a line; returns rc. */
int s2s_data_line_error(int rc, const struct s2s_lines *lines, const struct s2s_line *line,
                        struct s2s_error *err);

#endif
