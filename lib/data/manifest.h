/*
 * Parses a line of a manifest to a sample. Errors say what is wrong with the line; the caller adds
 * file and line number.
 */
#ifndef S2S_DATA_MANIFEST_H
#define S2S_DATA_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/data/lines.h"
#include "lib/data/sample.h"
#include "lib/data/window.h"

struct s2s_error;

struct s2s_manifest_options {
    const char *path;       /* of the manifest, whose folder is first searched for relative names */
    const char *text_field; /* NULL: "text" */
    const char *lang_field; /* NULL: "lang" */
    const char *audio_field;  /* of cuts: NULL: "recording"; else of `custom` */
    const char *said_field;   /* as in s2s_source_options */
    struct s2s_window window; /* of lines of manifests and of cuts that are no duplex speech */
};

/*
 * A line of a NeMo manifest, as a turn of sound and one of text (if it has a text): audio_filepath,
 * duration, offset, channel (a number, from 0: that one alone), text, lang, sampling_rate, _skipme,
 * alt_text; other keys go to `custom`.
 * Variants are the line itself, then the entries of its alt_text in their order, whose text and
 * lang replace the line's; and of each its windows, which have all of its text.
 *
 * Returns the number of variants (1 + entries of alt_text, times the windows), or 0 when the line
 * is to be skipped; then sample holds nothing. FORMAT names the key; RANGE for a variant that is
 * not there.
 *
 * The id is the file's name without folders and suffix; where the line has an offset,
 * "-OOOOOO-DDDDDD" follows: offset and duration in hundredths of a second, as NeMo names its cuts.
 */
int s2s_data_parse_nemo(struct s2s_sample *sample, const struct s2s_line *line, int variant,
                        const struct s2s_manifest_options *opt, struct s2s_error *err);

/*
 * A line of a Lhotse CutSet (lib/data/cut.h). Its text is that of its supervisions. Variants are
 * its windows. Returns how many there are; errors of data_window_cut, s2s_cut_parse and
 * s2s_cut_words.
 */
int s2s_data_parse_cut(struct s2s_sample *sample, const struct s2s_line *line, int variant,
                       const struct s2s_manifest_options *opt, struct s2s_error *err);

/* {"id": "a", "input_ids": [..], "loss_mask": [0,1,..], "audio": [{"pos": 3, "frames": 17}]}.
 * What other programs write beside them, attention_mask and labels, must say the same, but for ids
 * without loss: the first one, placeholders, and those of pad_id, whose loss_mask becomes 0 then.
 * FORMAT, RANGE (an id that does not fit 32 bits), SHAPE (lengths differ). Whether pos is right is
 * for the layout to say. */
int s2s_data_parse_ids(struct s2s_ids_row *row, const struct s2s_line *line, int32_t pad_id,
                       struct s2s_error *err);

#endif
