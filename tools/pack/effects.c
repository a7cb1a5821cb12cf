/* Which options of s2s-pack act on what: those that would change nothing are refused. */
#include "tools/pack/options.h"
#include "tools/pack/pack.h"

/* What a command line is: its kind of input as a bit, and these. */
enum {
    IDS = 1u << PACK_INPUT_IDS,
    MANIFEST = 1u << PACK_INPUT_MANIFEST,
    CUTS = 1u << PACK_INPUT_CUTS,
    CONVERSATIONS = 1u << PACK_INPUT_CONVERSATIONS,
    SHARE_GPT = 1u << PACK_INPUT_SHARE_GPT,
    SFT = 1u << PACK_INPUT_SFT,
    TEXT = 1u << PACK_INPUT_TEXT,
    TEXT_JSONL = 1u << PACK_INPUT_TEXT_JSONL,
    SHAR = 1u << PACK_INPUT_SHAR,
    WEBDATASET = 1u << PACK_INPUT_WEBDATASET,
    CFG = 1u << PACK_INPUT_CFG,
    WITH_TARS = 1u << 16,
    WITH_PLAN = 1u << 17,
    WITH_TOKENS = 1u << 18,
    BY_ALGORITHM = 1u << 19, /* not by --lookahead */
    AS_PCM = 1u << 20,
    AS_PACKS = 1u << 21,
    AS_DUPLEX = 1u << 22,
    BY_LOOKAHEAD = 1u << 23,
    WITH_PACKS = 1u << 24,
    WITH_AN_END = 1u << 25,

    SOUNDS = MANIFEST | CUTS | CONVERSATIONS | SHARE_GPT | SFT | SHAR | WEBDATASET | CFG,
    TEXTS = IDS | CONVERSATIONS | SHARE_GPT | SFT | TEXT | TEXT_JSONL | CFG,
    SHARDED = (SOUNDS & ~CUTS) | TEXT | TEXT_JSONL
};

/* Where an option acts: the command line has one of `on`. Several lines of a key must all hold. */
static const struct {
    int key;
    unsigned on;
    const char *with;
} effects[] = {
    {KEY_TARS, MANIFEST | CONVERSATIONS | SHARE_GPT, "--manifest, --conversations or --share-gpt"},
    {KEY_SKIP_MISSING, WITH_TARS | CFG, "--tars or --input-cfg"},
    {KEY_RUN_PIPES, CFG, "--input-cfg"},
    {KEY_AUDIO_FIELD, CUTS | SHAR | CFG, "--cuts, --shar or --input-cfg"},
    {KEY_TEXT_FIELD, MANIFEST | TEXT_JSONL | WEBDATASET | CFG,
     "--manifest, --text-jsonl, --tar or --input-cfg"},
    {KEY_LANG_FIELD, MANIFEST | WEBDATASET | CFG, "--manifest, --tar or --input-cfg"},
    {KEY_SHUFFLE_SHARDS, SHARDED, "samples in files or shards, not --ids or --cuts"},
    {KEY_MIN_DURATION, SOUNDS, "samples that have sound"},
    {KEY_MAX_DURATION, SOUNDS, "samples that have sound"},
    {KEY_MIN_TPS, SOUNDS, "samples that have sound"},
    {KEY_MAX_TPS, SOUNDS, "samples that have sound"},
    {KEY_DURATION_TOLERANCE, SOUNDS, "samples that have sound"},
    {KEY_PAD_DURATION, SOUNDS, "samples that have sound"},
    {KEY_PAD_DURATION, AS_PACKS, "layouts of packs"},
    {KEY_WINDOWS, MANIFEST | CUTS | SHAR | CFG, "--manifest, --cuts, --shar or --input-cfg"},
    {KEY_WINDOWS, AS_PACKS, "layouts of packs"},
    {KEY_MIN_TPT, TEXTS, "samples of text alone"},
    {KEY_MAX_TPT, TEXTS, "samples of text alone"},
    {KEY_MIN_TPT, AS_PACKS, "layouts of packs"},
    {KEY_MAX_TPT, AS_PACKS, "layouts of packs"},
    {KEY_KEEP_STATUS, MANIFEST | CUTS | SHAR | CONVERSATIONS | WEBDATASET | CFG,
     "samples that have a validation_status"},
    {KEY_TRUST_DURATIONS, WITH_PLAN, "--plan"},
    {KEY_PCM, AS_PCM, "--audio pcm"},
    {KEY_TOO_LONG, WITH_TOKENS, "--tokens"},
    {KEY_LOOKAHEAD, WITH_TOKENS, "--tokens"},
    {KEY_MIN_BINS, WITH_TOKENS, "--tokens"},
    {KEY_ALGORITHM, WITH_TOKENS, "--tokens"},
    {KEY_ALGORITHM, BY_ALGORITHM, "--tokens alone: --lookahead takes its place"},
    {KEY_PACKS, BY_LOOKAHEAD, "--lookahead"},
    {KEY_CONTINUE, WITH_PACKS, "--packs"},
    {KEY_SAMPLES, WITH_AN_END, "samples that end, without --packs"},
    {KEY_SHUFFLE, WITH_AN_END, "samples that end, without --packs"},
    {KEY_EPOCHS, WITH_AN_END, "samples that end, without --packs"},
    {KEY_MIN_BINS, WITH_AN_END, "samples that end, without --packs"},
    {KEY_BINS_MULTIPLE, WITH_AN_END, "samples that end, without --packs"},
    {KEY_TOKENS, AS_PACKS, "layouts of packs"},
    {KEY_BATCH_TOKENS, AS_PACKS, "layouts of packs"},
    {PACK_KEY_BATCH_SIZE, AS_PACKS, "layouts of packs"},
    {PACK_KEY_BATCH_DURATION, AS_PACKS, "layouts of packs"},
    {PACK_KEY_BUCKETS, AS_PACKS, "layouts of packs"},
    {KEY_BINS_MULTIPLE, AS_PACKS, "layouts of packs"},
    {KEY_PROMPT, AS_PACKS, "layouts of packs"},
    {KEY_ENCODER_FRAMES, AS_PACKS, "layouts of packs"},
    {KEY_CP, AS_PACKS, "layouts of packs"},
    {KEY_TP, AS_PACKS, "layouts of packs"},
    {KEY_STRICT_SP, AS_PACKS, "layouts of packs"},
    {KEY_MIN_SEQ_LEN, AS_PACKS, "layouts of packs"},
    {KEY_MULTIPLE, AS_PACKS, "layouts of packs"},
    {KEY_PACK_MULTIPLE, AS_PACKS, "layouts of packs"},
    {KEY_PACK_TO, AS_PACKS, "layouts of packs"},
    {KEY_PAD_LABELS, AS_PACKS, "layouts of packs"},
    {KEY_SPEED, AS_PACKS, "layouts of packs, as it moves what is said in time"},
    {KEY_TEMPO, AS_PACKS, "layouts of packs, as it moves what is said in time"},
    {KEY_TARGET_FIELD, AS_DUPLEX, "--layout duplex"},
    {KEY_TARGET_RATE, AS_DUPLEX, "--layout duplex"},
    {KEY_FRAME_LENGTH, AS_DUPLEX, "--layout duplex"},
    {KEY_INPUT_ROLES, AS_DUPLEX, "--layout duplex"},
    {KEY_OUTPUT_ROLES, AS_DUPLEX, "--layout duplex"},
    {KEY_OVERRUN, AS_DUPLEX, "--layout duplex"},
};

static unsigned traits_of(const struct pack_options *opt)
{
    const bool is_pcm =
        opt->audio == S2S_AUDIO_PCM || (opt->audio < 0 && opt->kind != PACK_INPUT_IDS);
    return 1u << opt->kind | (opt->n_tars > 0 ? WITH_TARS : 0) | (opt->plan ? WITH_PLAN : 0) |
           (opt->max_tokens > 0 ? WITH_TOKENS : 0) |
           (opt->lookahead == 0 ? BY_ALGORITHM : BY_LOOKAHEAD) |
           (opt->n_packs > 0 ? WITH_PACKS : WITH_AN_END) | (is_pcm ? AS_PCM : 0) |
           (opt->duplex.on ? AS_DUPLEX : AS_PACKS);
}

static const char *name_of(int key)
{
    const struct argp_option *o = pack_option_table;
    while (o->key != key)
        o++;
    return o->name;
}

void pack_check_effects(const struct pack_options *opt, struct argp_state *state)
{
    const unsigned traits = traits_of(opt);
    for (size_t i = 0; i < sizeof effects / sizeof *effects; i++)
        if (opt->given[effects[i].key - PACK_FIRST_KEY] && !(effects[i].on & traits))
            argp_error(state, "--%s goes with %s", name_of(effects[i].key), effects[i].with);
}
