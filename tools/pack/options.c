/* Reads the command line of s2s-pack. */
#include "tools/pack/options.h"

#include <stdlib.h>
#include <string.h>

#include "tools/pack/pack.h"

const struct argp_option pack_option_table[] = {
    {NULL, 0, NULL, 0,
     "Samples (one kind; - is stdin, pipe:COMMAND what it writes, x_{0..9} and x_OP_0..9_CL_ ten "
     "files; more may follow):",
     1},
    {"manifest", KEY_MANIFEST, "F", 0,
     "NeMo JSONL manifest: audio_filepath, duration, text, offset", 1},
    {"cuts", KEY_CUTS, "F", 0, "Lhotse cuts (JSONL) of any kind", 1},
    {"shar", KEY_SHAR, "DIR|FIELD=F", 0,
     "Lhotse Shar: a folder, or each field's shards (cuts=F.., recording=F..)", 1},
    {"tar", KEY_TAR, "F|DIR", 0, "WebDataset tars, or a folder of Energon's", 1},
    {"ids", KEY_IDS, "F", 0,
     "Tokenized rows (JSONL): id, input_ids, loss_mask, audio [{pos, frames}]", 1},
    {"conversations", KEY_CONVERSATIONS, "F", 0,
     "NeMo multimodal conversations (JSONL): turns of text and audio", 1},
    {"share-gpt", KEY_SHARE_GPT, "F", 0, "The same as ShareGPT has them, with <sound> in the text",
     1},
    {"sft", KEY_SFT, "F", 0,
     "Conversations of text (JSONL): conversations, messages, or input and output", 1},
    {"text", KEY_TEXT, "F", 0, "Text to be predicted, a line each", 1},
    {"text-jsonl", KEY_TEXT_JSONL, "F", 0, "The same in JSONL, under --text-field", 1},
    {"input-cfg", KEY_INPUT_CFG, "F.yaml", 0, "A blend: NeMo's input_cfg", 1},
    {"tars", KEY_TARS, "F", 0,
     "Tars with the sound of --manifest, --conversations or --share-gpt, shard by shard", 1},
    {"text-field", KEY_TEXT_FIELD, "KEY", 0, "Key of the text (default text)", 1},
    {"lang-field", KEY_LANG_FIELD, "KEY", 0, "Key of the language (default lang)", 1},
    {"shuffle-shards", KEY_SHUFFLE_SHARDS, NULL, 0,
     "Shuffle files and shards by --seed, in the order of NeMo", 1},
    {"samples", KEY_SAMPLES, "N", 0, "N samples of sources that are repeated, instead of all once",
     1},
    {"skip-missing", KEY_SKIP_MISSING, NULL, 0, "Leave out members of tars that no line names", 1},
    {"run-pipes", KEY_RUN_PIPES, NULL, 0, "Run the pipe: commands of --input-cfg", 1},
    {"split", KEY_SPLIT, "R/N", 0, "Every N-th sample only, from sample R (0 to N-1) on", 1},
    {"shuffle", KEY_SHUFFLE, "N", 0, "Shuffle through a buffer of N samples", 1},
    {"epochs", KEY_EPOCHS, "N", 0,
     "All samples N times, each time in an order and packs of its own "
     "(default 1)",
     1},
    {"bad", KEY_BAD, "[FAULT=]fail|skip", 0,
     "What to do with a bad sample (default fail); FAULT: absent, short, not_finite, empty, silent "
     "(default silent=keep), other",
     1},
    {"duration-tolerance", KEY_DURATION_TOLERANCE, "S", 0,
     "Seconds that sound may lack of what is declared before it is bad (default 0.5)", 1},
    {"windows", KEY_WINDOWS, "S[,HOP]|S,first|S,last", 0,
     "Sound of more than S seconds becomes windows of S, each a sample; or its first or last S "
     "alone",
     1},
    {"pad-duration", KEY_PAD_DURATION, "S", 0, "Silence after sound of less than S seconds", 1},
    {NULL, 0, NULL, 0, "Samples that are left out (bounds are inclusive):", 2},
    {"min-duration", KEY_MIN_DURATION, "S", 0, "With less than S seconds of sound", 2},
    {"max-duration", KEY_MAX_DURATION, "S", 0, "With more", 2},
    {"min-tokens", KEY_MIN_TOKENS, "N", 0, "Of less than N slots", 2},
    {"max-tokens", KEY_MAX_TOKENS, "N", 0, "Of more", 2},
    {"min-tps", KEY_MIN_TPS, "X", 0, "With less than X ids a second of sound", 2},
    {"max-tps", KEY_MAX_TPS, "X", 0, "With more", 2},
    {"min-tpt", KEY_MIN_TPT, "X", 0, "Text with less than X predicted ids for each other one", 2},
    {"max-tpt", KEY_MAX_TPT, "X", 0, "With more", 2},
    {"keep-status", KEY_KEEP_STATUS, "WORD", 0, "With a validation_status other than WORD", 2},
    {NULL, 0, NULL, 0, "Text and audio:", 3},
    {"tokenizer", KEY_TOKENIZER, "F", 0, "tokenizer.json", 3},
    {"prompt", KEY_PROMPT, "NAME|F", 0,
     "Prompt format: plain (default), llama3, qwen, ... or a JSON file", 3},
    {"pcm", KEY_PCM, "auto|i16|f32", 0,
     "Type of waveforms (default auto); parts of a corpus that are to be joined say it", 3},
    {"audio", KEY_AUDIO, "FORM", 0,
     "none, path, pcm, flac or mel (default pcm; none with --ids). pcm is I16 where that says all, "
     "else "
     "F32",
     3},
    {"encoder-frames", KEY_ENCODER_FRAMES, "HOP,FACTOR|DIR", 0,
     "Samples a mel frame at 16 kHz, mel frames an encoder frame (default 160,8), or an encoder's "
     "folder or config",
     3},
    {"audio-field", KEY_AUDIO_FIELD, "NAME", 0,
     "Of cuts: recording (default), or a custom field such as target_audio", 3},
    {"speed", KEY_SPEED, "A,B..|A..B", 0,
     "Factor drawn for each sample and epoch: 0.9,1,1.1 (each once in three epochs) or 0.9..1.1; "
     "changes length and pitch",
     3},
    {"tempo", KEY_TEMPO, "A,B..|A..B", 0, "The same, but pitch stays", 3},
    {"pitch", KEY_PITCH, "A,B..|A..B", 0, "Semitones drawn; length stays", 3},
    {"volume", KEY_VOLUME, "A,B..|A..B", 0, "Factor of the samples drawn", 3},
    {"pad-id", KEY_PAD_ID, "ID", 0,
     "Id of pad slots (default: the tokenizer's pad, else unk, else 0)", 3},
    {"pad-labels", KEY_PAD_LABELS, "keep|drop", 0,
     "Whether a token to be predicted keeps its label where its id is the padding's (default keep; "
     "NeMo drops it)",
     3},
    {NULL, 0, NULL, 0, "Packs:", 4},
    {"tokens", KEY_TOKENS, "N", 0, "Slots of a pack", 4},
    {"batch-size", PACK_KEY_BATCH_SIZE, "N", 0, "Every N samples in order are a pack, instead", 4},
    {"batch-duration", PACK_KEY_BATCH_DURATION, "S", 0,
     "Samples whose longest sound times their number is about S seconds are a pack, instead", 4},
    {"batch-tokens", KEY_BATCH_TOKENS, "N", 0, "The same by slots", 4},
    PACK_BATCHING_OPTIONS(4),
    {"too-long", KEY_TOO_LONG, "fail|truncate|skip", 0,
     "What to do with a sample longer than a pack (default fail)", 4},
    {"algorithm", KEY_ALGORITHM, "NAME", 0, "concatenative, ffd (default), ff_shuffle, mffd or bfd",
     4},
    {"lookahead", KEY_LOOKAHEAD, "N", 0,
     "Instead: keep the order of samples but for the N that are held to fill packs up with", 4},
    {"packs", KEY_PACKS, "N", 0, "With --lookahead: N packs of sources that are repeated for ever",
     4},
    {"continue", KEY_CONTINUE, "F.s2s", 0, "With --packs: go on where the packs of F.s2s end", 4},
    {"layout", KEY_LAYOUT, "NAME", 0,
     "salm (default), rl (NeMo-RL), mcore (Megatron-core), sft (packed SFT files of NeMo), or "
     "duplex: both sides of conversations on frames, a record each",
     4},
    {"min-seq-len", KEY_MIN_SEQ_LEN, "N", 0, "rl: at least N slots a pack", 4},
    {"multiple", KEY_MULTIPLE, "N", 0,
     "mcore: each sequence is a multiple of N slots (default: what --cp and --strict-sp need)", 4},
    {"pack-multiple", KEY_PACK_MULTIPLE, "N", 0, "mcore: each pack is a multiple of N slots", 4},
    {"pack-to", KEY_PACK_TO, "N", 0, "mcore, sft: each pack has N slots", 4},
    {"cp", KEY_CP, "N", 0, "Context-parallel ranks: lengths are multiples of 2 N (default 1)", 4},
    {"tp", KEY_TP, "N", 0, "Tensor-parallel ranks: T is a multiple of N (default 1)", 4},
    {"strict-sp", KEY_STRICT_SP, NULL, 0,
     "T / cp is a multiple of tp too, as sequence parallelism needs", 4},
    {"target-field", KEY_TARGET_FIELD, "NAME", 0,
     "duplex: custom field of cuts that the agent says (default target_audio)", 4},
    {"target-rate", KEY_TARGET_RATE, "HZ", 0, "duplex: rate of that sound (default 22050)", 4},
    {"frame-length", KEY_FRAME_LENGTH, "S", 0, "duplex: seconds a frame (default 0.08)", 4},
    {"input-roles", KEY_INPUT_ROLES, "A,B", 0, "duplex: speakers who are heard (default user,User)",
     4},
    {"output-roles", KEY_OUTPUT_ROLES, "A,B", 0,
     "duplex: speakers whose part is learned (default agent,Assistant)", 4},
    {"overrun", KEY_OVERRUN, "keep|drop", 0,
     "duplex: what to do with turns whose text has more ids than frames (default keep)", 4},
    {"min-bins", KEY_MIN_BINS, "N", 0, "At least N packs an epoch", 4},
    {"bins-multiple", KEY_BINS_MULTIPLE, "N", 0, "A multiple of N packs an epoch", 4},
    {"plan", KEY_PLAN, NULL, 0, "Do all but decode and write; print the efficiency", 4},
    {"trust-durations", KEY_TRUST_DURATIONS, NULL, 0,
     "With --plan: take lengths from the manifest, and open no file whose duration it says", 4},
    {"report", KEY_REPORT, "F.json", 0, "Write what was done, skipped and warned of", 4},
    {0},
};

static void set_input(struct argp_state *state, enum pack_input kind, const char *path)
{
    struct pack_options *opt = state->input;
    if (opt->kind != PACK_INPUT_NONE && opt->kind != kind)
        argp_error(state, "inputs of one kind only: --input-cfg blends several");
    opt->kind = kind;
    s2s_grow(&opt->inputs, opt->n_inputs, &opt->cap_inputs, sizeof *opt->inputs);
    opt->inputs[opt->n_inputs++] = path;
}

static void parse_split(struct argp_state *state, const char *arg)
{
    struct pack_options *opt = state->input;
    long long idx, n;
    int end = 0;
    if (sscanf(arg, "%lld/%lld%n", &idx, &n, &end) != 2 || arg[end] || n < 1 || idx < 0 || idx >= n)
        argp_error(state, "--split %s: R/N with 0 <= R < N expected", arg);
    opt->split_idx = idx;
    opt->split_n = n;
}

static int parse_audio(struct argp_state *state, const char *arg)
{
    static const char *const names[] = {"none", "path", "pcm", "flac", "mel", NULL};
    static const int forms[] = {S2S_AUDIO_NONE, S2S_AUDIO_PATH, S2S_AUDIO_PCM, S2S_AUDIO_FLAC,
                                S2S_AUDIO_MEL};
    return forms[s2s_arg_choice(state, "audio", arg, names)];
}

static void parse_perturb(struct argp_state *state, const char *name,
                          struct s2s_audio_choice *choice, const char *arg, double min, double max)
{
    struct s2s_error err = S2S_ERROR_INIT;
    if (s2s_audio_choice_parse(choice, arg, min, max, &err) < 0)
        argp_error(state, "--%s %s", name, err.text);
}

static void check_duplex(struct argp_state *state)
{
    const struct pack_options *opt = state->input;
    if (!opt->duplex.on)
        return;
    if (opt->kind != PACK_INPUT_CUTS && opt->kind != PACK_INPUT_SHAR && opt->kind != PACK_INPUT_CFG)
        argp_error(state, "--layout duplex goes with --cuts, --shar or --input-cfg");
    if (opt->audio >= 0 && opt->audio != S2S_AUDIO_PCM)
        argp_error(state, "--layout duplex stores sound as --audio pcm");
}

/* Nothing is between a bound and a smaller one. */
static void check_bounds(struct argp_state *state)
{
    const struct pack_filter *f = &((struct pack_options *)state->input)->filter;
    const struct {
        const char *what;
        double min, max;
    } bounds[] = {{"duration", f->min_s, f->max_s},
                  {"tokens", (double)f->min_len, (double)f->max_len},
                  {"tps", f->min_tps, f->max_tps},
                  {"tpt", f->min_tpt, f->max_tpt}};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].min > bounds[i].max)
            argp_error(state, "--min-%s %.10g is above --max-%s %.10g", bounds[i].what,
                       bounds[i].min, bounds[i].what, bounds[i].max);
}

static void check_options(struct argp_state *state)
{
    const struct pack_options *opt = state->input;
    if (opt->kind == PACK_INPUT_NONE)
        argp_error(state, "an input is needed: --manifest, --cuts, --ids, --input-cfg, ..");
    if (opt->kind != PACK_INPUT_IDS && !opt->tokenizer)
        argp_error(state, "--tokenizer is missing");
    if (opt->kind == PACK_INPUT_IDS &&
        (opt->tokenizer || opt->prompt || opt->encoder_frames || opt->audio > S2S_AUDIO_NONE))
        argp_error(state, "--ids takes no --tokenizer, --prompt, --encoder-frames or --audio");
    if (s2s_audio_perturbs(&opt->perturb) &&
        (opt->kind == PACK_INPUT_IDS || opt->audio == S2S_AUDIO_PATH))
        argp_error(state, "--speed, --tempo, --pitch and --volume take sound that is stored");
    if (opt->kind == PACK_INPUT_CFG && opt->n_inputs > 1)
        argp_error(state, "one --input-cfg only: it may have groups");
    pack_check_effects(opt, state);
    const bool is_batched = pack_batching_is_on(&opt->batching);
    if (!opt->max_tokens && !is_batched && !opt->duplex.on)
        argp_error(state, "--tokens or --batch-size is needed, or another bound of a batch");
    if (opt->max_tokens && is_batched)
        argp_error(state, "--tokens or --batch-size, not both");
    pack_batching_check(&opt->batching, state);
    if (opt->drop_pad_labels && opt->layout.kind != S2S_THD_SALM)
        argp_error(state, "--pad-labels goes with --layout salm");
    check_duplex(state);
    check_bounds(state);
}

static void parse_bad(struct argp_state *state, const char *arg)
{
    struct s2s_error err = S2S_ERROR_INIT;
    if (pack_policy_parse(((struct pack_options *)state->input)->bad, arg, &err) < 0)
        argp_error(state, "--bad %s", err.text);
}

/* The layouts of packs, and duplex, whose records are none. */
static void parse_layout(struct pack_options *opt, const char *arg, struct argp_state *state)
{
    static const char *const names[] = {"salm", "rl", "mcore", "sft", "duplex", NULL};
    const int kind = s2s_arg_choice(state, "layout", arg, names);
    opt->duplex.on = !strcmp(names[kind], "duplex");
    opt->layout.kind = opt->duplex.on ? S2S_THD_SALM : (enum s2s_thd_layout)kind;
}

/* Options that take a word of a list. */
static error_t parse_choice(int key, char *arg, struct argp_state *state)
{
    static const char *const pcm[] = {"auto", "i16", "f32", NULL};
    static const char *const pad_labels[] = {"keep", "drop", NULL};
    static const char *const overrun[] = {"keep", "drop", NULL};
    static const char *const too_long[] = {"fail", "truncate", "skip", NULL};
    struct pack_options *opt = state->input;
    switch (key) {
    case KEY_LAYOUT:
        parse_layout(opt, arg, state);
        return 0;
    case KEY_OVERRUN:
        opt->duplex.drop_overrun = s2s_arg_choice(state, "overrun", arg, overrun) == 1;
        return 0;
    case KEY_BAD:
        parse_bad(state, arg);
        return 0;
    case KEY_PAD_LABELS:
        opt->drop_pad_labels = s2s_arg_choice(state, "pad-labels", arg, pad_labels) == 1;
        return 0;
    case KEY_TOO_LONG:
        opt->too_long = (enum pack_too_long)s2s_arg_choice(state, "too-long", arg, too_long);
        return 0;
    case KEY_ALGORITHM:
        opt->algorithm =
            (enum s2s_bin_algorithm)s2s_arg_choice(state, "algorithm", arg, s2s_thd_bin_algorithms);
        return 0;
    case KEY_PCM:
        opt->pcm = (enum pack_pcm)s2s_arg_choice(state, "pcm", arg, pcm);
        return 0;
    case KEY_AUDIO:
        opt->audio = parse_audio(state, arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* S, S,HOP, S,first or S,last. */
static void parse_windows(struct argp_state *state, struct s2s_window *window, const char *arg)
{
    char *copy = s2s_xstrdup(arg), *comma = strchr(copy, ',');
    const char *how = comma ? comma + 1 : "";
    if (comma)
        *comma = 0;
    window->length_s = window->hop_s = s2s_arg_f64(state, "windows", copy, 0.001, 1e6);
    if (!strcmp(how, "first"))
        window->which = S2S_WINDOW_FIRST;
    else if (!strcmp(how, "last"))
        window->which = S2S_WINDOW_LAST;
    else if (comma)
        window->hop_s = s2s_arg_f64(state, "windows", how, 0.001, 1e6);
    free(copy);
}

/* Options of what is drawn for a sample. */
static error_t parse_drawn(int key, char *arg, struct argp_state *state)
{
    struct s2s_audio_perturb *perturb = &((struct pack_options *)state->input)->perturb;
    switch (key) {
    case KEY_WINDOWS:
        parse_windows(state, &((struct pack_options *)state->input)->window, arg);
        return 0;
    case KEY_SPEED:
        parse_perturb(state, "speed", &perturb->speed, arg, 0.1, 10);
        return 0;
    case KEY_TEMPO:
        parse_perturb(state, "tempo", &perturb->tempo, arg, 0.1, 10);
        return 0;
    case KEY_PITCH:
        parse_perturb(state, "pitch", &perturb->pitch, arg, -24, 24);
        return 0;
    case KEY_VOLUME:
        parse_perturb(state, "volume", &perturb->volume, arg, 1e-6, 1e6);
        return 0;
    default:
        return parse_choice(key, arg, state);
    }
}

/* Options that take a number. */
static error_t parse_number(int key, char *arg, struct argp_state *state)
{
    struct pack_options *opt = state->input;
    switch (key) {
    case KEY_TOKENS:
        opt->max_tokens = s2s_arg_i64(state, "tokens", arg, 1, INT32_MAX);
        return 0;
    case KEY_BATCH_TOKENS:
        opt->batching.duration = (double)s2s_arg_i64(state, "batch-tokens", arg, 1, INT32_MAX);
        opt->batch_by_slots = true;
        return 0;
    case KEY_SAMPLES:
        opt->n_samples = s2s_arg_i64(state, "samples", arg, 1, INT32_MAX);
        return 0;
    case KEY_CP:
        opt->cp_size = (int)s2s_arg_i64(state, "cp", arg, 1, 1 << 20);
        return 0;
    case KEY_TP:
        opt->tp_size = (int)s2s_arg_i64(state, "tp", arg, 1, 1 << 20);
        return 0;
    case KEY_MIN_SEQ_LEN:
        opt->layout.min_seq_len = s2s_arg_i64(state, "min-seq-len", arg, 0, INT32_MAX);
        return 0;
    case KEY_MULTIPLE:
        opt->layout.multiple = s2s_arg_i64(state, "multiple", arg, 1, INT32_MAX);
        return 0;
    case KEY_PACK_MULTIPLE:
        opt->layout.pack_multiple = s2s_arg_i64(state, "pack-multiple", arg, 1, INT32_MAX);
        return 0;
    case KEY_PACK_TO:
        opt->layout.pack_to = s2s_arg_i64(state, "pack-to", arg, 1, INT32_MAX);
        return 0;
    case KEY_LOOKAHEAD:
        opt->lookahead = s2s_arg_i64(state, "lookahead", arg, 1, S2S_LOOKAHEAD_MAX_WINDOW);
        return 0;
    case KEY_PACKS:
        opt->n_packs = s2s_arg_i64(state, "packs", arg, 1, INT32_MAX);
        return 0;
    case KEY_MIN_BINS:
        opt->min_bins = s2s_arg_i64(state, "min-bins", arg, 0, INT32_MAX);
        return 0;
    case KEY_BINS_MULTIPLE:
        opt->bins_multiple = s2s_arg_i64(state, "bins-multiple", arg, 1, INT32_MAX);
        return 0;
    case KEY_PAD_ID:
        opt->pad_id = s2s_arg_i64(state, "pad-id", arg, 0, INT32_MAX);
        return 0;
    case KEY_SHUFFLE:
        opt->shuffle = s2s_arg_i64(state, "shuffle", arg, 0, INT32_MAX);
        return 0;
    case KEY_DURATION_TOLERANCE:
        opt->tolerance_s = s2s_arg_f64(state, "duration-tolerance", arg, 0, 1e6);
        return 0;
    case KEY_PAD_DURATION:
        opt->pad_to_s = s2s_arg_f64(state, "pad-duration", arg, 0, 1e6);
        return 0;
    case KEY_TARGET_RATE:
        opt->duplex.target_rate_hz = (int)s2s_arg_i64(state, "target-rate", arg, 1000, 1 << 20);
        return 0;
    case KEY_FRAME_LENGTH:
        opt->duplex.frame_s = s2s_arg_f64(state, "frame-length", arg, 0.001, 1000);
        return 0;
    case KEY_EPOCHS:
        opt->epochs = s2s_arg_i64(state, "epochs", arg, 1, 1 << 20);
        return 0;
    default:
        return parse_drawn(key, arg, state);
    }
}

/* Options that leave samples out. */
static bool parse_filter(int key, char *arg, struct argp_state *state)
{
    struct pack_filter *f = &((struct pack_options *)state->input)->filter;
    const struct {
        int key;
        const char *name;
        double *bound;
    } bounds[] = {{KEY_MIN_DURATION, "min-duration", &f->min_s},
                  {KEY_MAX_DURATION, "max-duration", &f->max_s},
                  {KEY_MIN_TPS, "min-tps", &f->min_tps},
                  {KEY_MAX_TPS, "max-tps", &f->max_tps},
                  {KEY_MIN_TPT, "min-tpt", &f->min_tpt},
                  {KEY_MAX_TPT, "max-tpt", &f->max_tpt}};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (key == bounds[i].key) {
            *bounds[i].bound = s2s_arg_f64(state, bounds[i].name, arg, 0, 1e300);
            return true;
        }
    if (key == KEY_MIN_TOKENS)
        f->min_len = s2s_arg_i64(state, "min-tokens", arg, 0, INT64_MAX);
    else if (key == KEY_MAX_TOKENS)
        f->max_len = s2s_arg_i64(state, "max-tokens", arg, 0, INT64_MAX);
    else if (key == KEY_KEEP_STATUS)
        f->status = arg;
    else
        return false;
    return true;
}

/* Options that name inputs. */
static bool parse_input(int key, char *arg, struct argp_state *state)
{
    static const struct {
        int key;
        enum pack_input kind;
    } kinds[] = {{KEY_MANIFEST, PACK_INPUT_MANIFEST},
                 {KEY_CUTS, PACK_INPUT_CUTS},
                 {KEY_SHAR, PACK_INPUT_SHAR},
                 {KEY_TAR, PACK_INPUT_WEBDATASET},
                 {KEY_IDS, PACK_INPUT_IDS},
                 {KEY_CONVERSATIONS, PACK_INPUT_CONVERSATIONS},
                 {KEY_SHARE_GPT, PACK_INPUT_SHARE_GPT},
                 {KEY_SFT, PACK_INPUT_SFT},
                 {KEY_TEXT, PACK_INPUT_TEXT},
                 {KEY_TEXT_JSONL, PACK_INPUT_TEXT_JSONL},
                 {KEY_INPUT_CFG, PACK_INPUT_CFG}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (key == kinds[i].key) {
            set_input(state, kinds[i].kind, arg);
            return true;
        }
    return false;
}

error_t pack_parse_option(int key, char *arg, struct argp_state *state)
{
    struct pack_options *opt = state->input;
    if (key >= PACK_FIRST_KEY && key < PACK_FIRST_KEY + PACK_N_KEYS)
        opt->given[key - PACK_FIRST_KEY] = true;
    if (parse_input(key, arg, state) || parse_filter(key, arg, state) ||
        pack_batching_parse(&opt->batching, key, arg, state))
        return 0;
    switch (key) {
    case KEY_TARS:
        s2s_grow(&opt->tars, opt->n_tars, &opt->cap_tars, sizeof *opt->tars);
        opt->tars[opt->n_tars++] = arg;
        return 0;
    case KEY_TEXT_FIELD:
        opt->text_field = arg;
        return 0;
    case KEY_LANG_FIELD:
        opt->lang_field = arg;
        return 0;
    case KEY_SHUFFLE_SHARDS:
        opt->shuffle_shards = true;
        return 0;
    case KEY_SKIP_MISSING:
        opt->skip_missing = true;
        return 0;
    case KEY_RUN_PIPES:
        opt->run_pipes = true;
        return 0;
    case KEY_TOKENIZER:
        opt->tokenizer = arg;
        return 0;
    case KEY_PROMPT:
        opt->prompt = arg;
        return 0;
    case KEY_AUDIO_FIELD:
        opt->audio_field = arg;
        return 0;
    case KEY_CONTINUE:
        opt->go_on = arg;
        return 0;
    case KEY_TARGET_FIELD:
        opt->duplex.target_field = arg;
        return 0;
    case KEY_INPUT_ROLES:
        opt->duplex.input_roles = arg;
        return 0;
    case KEY_OUTPUT_ROLES:
        opt->duplex.output_roles = arg;
        return 0;
    case KEY_REPORT:
        opt->report = arg;
        return 0;
    case KEY_PLAN:
        opt->plan = true;
        return 0;
    case KEY_TRUST_DURATIONS:
        opt->trust_durations = true;
        return 0;
    case KEY_STRICT_SP:
        opt->strict_sp = true;
        return 0;
    case KEY_ENCODER_FRAMES:
        opt->encoder_frames = arg;
        return 0;
    case KEY_SPLIT:
        parse_split(state, arg);
        return 0;
    case ARGP_KEY_ARG:
        if (opt->kind == PACK_INPUT_NONE)
            argp_error(state, "'%s': name inputs with --manifest, --cuts, --ids, ..", arg);
        set_input(state, opt->kind, arg);
        return 0;
    case ARGP_KEY_END:
        check_options(state);
        return 0;
    default:
        return parse_number(key, arg, state);
    }
}
