/* The work of s2s-pack: plan (lengths, order, bins), then pack after pack to the stream. */
#ifndef TOOLS_PACK_PACK_H
#define TOOLS_PACK_PACK_H

#include "lib/audio/perturb.h"
#include "lib/base/base.h"
#include "lib/base/tool.h"
#include "lib/data/window.h"
#include "lib/stream/schema.h"
#include "lib/thd/thd.h"
#include "tools/pack/batching.h"
#include "tools/pack/filter.h"

enum pack_input {
    PACK_INPUT_NONE,
    PACK_INPUT_MANIFEST,
    PACK_INPUT_CUTS,
    PACK_INPUT_IDS,
    PACK_INPUT_CONVERSATIONS,
    PACK_INPUT_SHARE_GPT,
    PACK_INPUT_SFT,
    PACK_INPUT_TEXT,
    PACK_INPUT_TEXT_JSONL,
    PACK_INPUT_SHAR,
    PACK_INPUT_WEBDATASET,
    PACK_INPUT_CFG
};
/* What is wrong with a sample. */
enum pack_fault {
    PACK_FAULT_OTHER, /* its line, its text; sound that cannot be read */
    PACK_FAULT_ABSENT,
    PACK_FAULT_SHORT,
    PACK_FAULT_NONFINITE,
    PACK_FAULT_EMPTY,
    PACK_FAULT_SILENT,
    PACK_N_FAULTS
};
enum pack_policy { PACK_FAIL, PACK_SKIP, PACK_KEEP };
extern const char *const pack_fault_names[PACK_N_FAULTS];
/* The fault that an error code is about. */
enum pack_fault pack_fault_of(int code);

enum pack_too_long { PACK_TOO_LONG_FAIL, PACK_TOO_LONG_TRUNCATE, PACK_TOO_LONG_SKIP };

/* Of --layout duplex. */
struct pack_duplex {
    bool on;
    const char *target_field; /* the recording of cuts that the agent says */
    int target_rate_hz;
    double frame_s;
    const char *input_roles, *output_roles; /* speakers, with commas */
    bool drop_overrun;
};

/* Options have keys from here on, and less than so many. */
enum { PACK_FIRST_KEY = 0x100, PACK_N_KEYS = 0x120 };

struct pack_options {
    struct s2s_common common;
    bool given[PACK_N_KEYS]; /* by key - PACK_FIRST_KEY */
    enum pack_input kind;
    const char **inputs; /* [n_inputs] */
    size_t n_inputs, cap_inputs;
    const char **tars; /* [n_tars] */
    size_t n_tars, cap_tars;
    const char *text_field, *lang_field;
    bool shuffle_shards, skip_missing, run_pipes;
    int64_t n_samples; /* 0: all, once */
    struct pack_filter filter;
    const char *tokenizer, *prompt;
    int64_t max_tokens; /* 0: batching */
    struct pack_batching batching;
    bool batch_by_slots; /* the lengths of batches are slots, else seconds of sound */
    enum pack_too_long too_long;
    enum pack_policy bad[PACK_N_FAULTS]; /* what becomes of a sample that has the fault */
    bool plan, strict_sp;
    bool drop_pad_labels; /* ids equal to the padding's get no label, as in NeMo */
    const char *report;
    enum s2s_bin_algorithm algorithm;
    int cp_size, tp_size;
    struct s2s_layout layout;
    struct pack_duplex duplex;
    int64_t n_packs;   /* of endless sources; 0: they end */
    const char *go_on; /* the stream of packs before these; NULL: these are the first */
    int64_t lookahead; /* 0, or samples that are held, in the place of the algorithm */
    int64_t min_bins, bins_multiple;
    int64_t pad_id; /* -1: the tokenizer's */
    enum pack_pcm { PACK_PCM_AUTO, PACK_PCM_I16, PACK_PCM_F32 } pcm;
    int audio;                  /* enum s2s_audio_form, -1: pcm, none with ids */
    const char *encoder_frames; /* HOP,FACTOR or a folder or file; NULL: 160,8 */
    int64_t split_idx, split_n; /* every split_n-th sample, from split_idx */
    int64_t shuffle, epochs;
    bool trust_durations;
    double tolerance_s; /* what may be missing of a declared duration */
    struct s2s_window window;
    double pad_to_s; /* shorter sound gets silence behind it */
    struct s2s_audio_perturb perturb;
    const char *audio_field; /* of cuts; NULL: their recording */
};

#define PACK_OPTIONS_DEFAULT \
    { \
        .common = S2S_COMMON_DEFAULT, .filter = PACK_FILTER_DEFAULT, .algorithm = S2S_BINS_FFD, \
        .cp_size = 1, .tp_size = 1, .bins_multiple = 1, .pad_id = -1, .audio = -1, .split_n = 1, \
        .epochs = 1, .tolerance_s = 0.5, \
        .duplex = {.target_field = "target_audio", \
                   .target_rate_hz = 22050, \
                   .frame_s = 0.08, \
                   .input_roles = "user,User", \
                   .output_roles = "agent,Assistant"}, \
        .bad = { \
            [PACK_FAULT_SILENT] = PACK_KEEP \
        } \
    }

/* "fail", "skip" (all but silence), or "FAULT=fail|skip" with commas; silence may also be kept,
 * which is the default. ARG. */
int pack_policy_parse(enum pack_policy policy[PACK_N_FAULTS], const char *text,
                      struct s2s_error *err);

int pack_run(const struct pack_options *opt, struct s2s_error *err);

/* `s2s-pack bins` and `s2s-pack report`, with their own command lines. */
int pack_bins(int argc, char **argv, struct s2s_error *err);
int pack_merge(int argc, char **argv, struct s2s_error *err);
/* `s2s-pack npy` and `s2s-pack batches`, with theirs. */
int pack_npy(int argc, char **argv, struct s2s_error *err);
int pack_batches(int argc, char **argv, struct s2s_error *err);
/* `s2s-pack buckets`. */
int pack_buckets(int argc, char **argv, struct s2s_error *err);

#endif
