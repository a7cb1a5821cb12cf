/* The command line of s2s-pack itself. */
#ifndef TOOLS_PACK_OPTIONS_H
#define TOOLS_PACK_OPTIONS_H

#include <argp.h>

#include "tools/pack/pack.h"

enum pack_key {
    KEY_MANIFEST = PACK_FIRST_KEY,
    KEY_CUTS,
    KEY_SHAR,
    KEY_TAR,
    KEY_IDS,
    KEY_CONVERSATIONS,
    KEY_SHARE_GPT,
    KEY_SFT,
    KEY_TEXT,
    KEY_TEXT_JSONL,
    KEY_INPUT_CFG,
    KEY_TARS,
    KEY_TEXT_FIELD,
    KEY_LANG_FIELD,
    KEY_SHUFFLE_SHARDS,
    KEY_SAMPLES,
    KEY_SKIP_MISSING,
    KEY_RUN_PIPES,
    KEY_MIN_DURATION,
    KEY_MAX_DURATION,
    KEY_MIN_TOKENS,
    KEY_MAX_TOKENS,
    KEY_MIN_TPS,
    KEY_MAX_TPS,
    KEY_MIN_TPT,
    KEY_MAX_TPT,
    KEY_KEEP_STATUS,
    KEY_TOKENIZER,
    KEY_PROMPT,
    KEY_LAYOUT,
    KEY_MIN_SEQ_LEN,
    KEY_MULTIPLE,
    KEY_PACK_MULTIPLE,
    KEY_PACK_TO,
    KEY_TOKENS,
    KEY_BATCH_TOKENS,
    KEY_TOO_LONG,
    KEY_BAD,
    KEY_REPORT,
    KEY_PLAN,
    KEY_TRUST_DURATIONS,
    KEY_ALGORITHM,
    KEY_LOOKAHEAD,
    KEY_CP,
    KEY_TP,
    KEY_STRICT_SP,
    KEY_MIN_BINS,
    KEY_BINS_MULTIPLE,
    KEY_PAD_ID,
    KEY_PAD_LABELS,
    KEY_AUDIO,
    KEY_PCM,
    KEY_ENCODER_FRAMES,
    KEY_SPLIT,
    KEY_SHUFFLE,
    KEY_EPOCHS,
    KEY_DURATION_TOLERANCE,
    KEY_WINDOWS,
    KEY_PAD_DURATION,
    KEY_AUDIO_FIELD,
    KEY_SPEED,
    KEY_TEMPO,
    KEY_PITCH,
    KEY_VOLUME,
    KEY_PACKS,
    KEY_CONTINUE,
    KEY_TARGET_FIELD,
    KEY_TARGET_RATE,
    KEY_FRAME_LENGTH,
    KEY_INPUT_ROLES,
    KEY_OUTPUT_ROLES,
    KEY_OVERRUN
};

extern const struct argp_option pack_option_table[];
/* Parses into a struct pack_options. */
error_t pack_parse_option(int key, char *arg, struct argp_state *state);

/* Ends the program where an option was given that would be without effect, and names what it goes
 * with. */
void pack_check_effects(const struct pack_options *opt, struct argp_state *state);

#endif
