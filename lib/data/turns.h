/* Conversations of cuts whose supervisions are turns. Inside lib/data. */
#ifndef S2S_DATA_TURNS_H
#define S2S_DATA_TURNS_H

#include <jansson.h>

#include "lib/data/cut.h"
#include "lib/data/lines.h"
#include "lib/data/manifest.h"
#include "lib/data/source.h"

/* Makes a cut of json, which it may change. Gives *cut; a negative code. */
struct data_cut_maker {
    int (*make)(struct s2s_cut **cut, json_t *json, void *ctx, struct s2s_error *err);
    void *ctx;
};

/*
 * The sound of each supervision whose speaker is one of rules->input_roles, the text of each whose
 * speaker is one of output_roles. Fills the sample, which is empty (release it, also after an
 * error). Returns 1; 0, with a warning, for a cut with another speaker. UNSUPPORTED: a MixedCut;
 * FORMAT. Source: s2s_cut_to_conversation of NeMo.
 */
int data_turns_of_cut(struct s2s_sample *sample, const json_t *cut,
                      const struct s2s_turn_rules *rules, const struct data_cut_maker *maker,
                      struct s2s_error *err);

/* The same of a line of a CutSet; the sample holds nothing where it returns no 1. */
int data_parse_turns(struct s2s_sample *sample, const struct s2s_line *line,
                     const struct s2s_manifest_options *opt, const struct s2s_turn_rules *rules,
                     struct s2s_error *err);

#endif
