/* s2s-train generate --model DIR --audio F.wav [--prompt T] */
#include <fcntl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "lib/audio/audio.h"
#include "lib/base/base.h"
#include "lib/ckpt/ckpt.h"
#include "lib/io/outfile.h"
#include "lib/io/printout.h"
#include "lib/io/there.h"
#include "lib/model/generate.h"
#include "lib/text/prompt.h"
#include "lib/text/tokenizer.h"
#include "lib/train/feed_internal.h"
#include "lib/train/trainer.h"
#include "tools/train/commands.h"

enum {
    KEY_MODEL = 0x100,
    KEY_CHECKPOINT,
    KEY_AUDIO,
    KEY_PROMPT,
    KEY_FORMAT,
    KEY_TOKENIZER,
    KEY_FEATURES,
    KEY_MAX_NEW
};

struct generate_args {
    struct s2s_common common;
    const char *model, *checkpoint, *audio, *prompt, *format, *tokenizer, *features;
    int64_t max_new_tokens;
};

static const struct argp_option options[] = {
    {"model", KEY_MODEL, "DIR", 0, "Hugging Face or composite directory", 1},
    {"checkpoint", KEY_CHECKPOINT, "DIR", 0, "A checkpoint of s2s-train, in place of --model", 1},
    {"audio", KEY_AUDIO, "FILE", 0, "Sound that the model hears (any rate, any number of channels)",
     2},
    {"prompt", KEY_PROMPT, "TEXT", 0, "Text before the sound, or alone", 2},
    {"format", KEY_FORMAT, "NAME", 0,
     "Prompt format: a name or a file, as of s2s-pack --prompt "
     "(default plain)",
     2},
    {"tokenizer", KEY_TOKENIZER, "FILE", 0,
     "tokenizer.json (default: the one of the model or in the checkpoint)", 3},
    {"features", KEY_FEATURES, "FILE", 0,
     "preprocessor_config.json (default: 16 kHz and the encoder's mel bins)", 3},
    {"max-new-tokens", KEY_MAX_NEW, "N", 0, "Longest text (default 256)", 3},
    {0},
};

static const char doc[] =
    "Print the text that a model makes of a sound and a prompt, taking the likeliest token each "
    "time."
    "\v"
    "Examples:\n"
    "  s2s-train generate --model model/ --audio hello.wav\n"
    "  s2s-train generate --checkpoint runs/a/checkpoints --audio hello.wav\n"
    "  s2s-train generate --model model/ --audio hello.wav --prompt 'Transcribe:'\n"
    "\n"
    "Exit status: 0 done, 1 the model or the sound is bad, 2 the command line is bad or an input "
    "cannot be opened.\n"
    "See also: s2s-train(1)";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct generate_args *args = state->input;
    switch (key) {
    case KEY_MODEL:
        args->model = arg;
        return 0;
    case KEY_CHECKPOINT:
        args->checkpoint = arg;
        return 0;
    case KEY_AUDIO:
        args->audio = arg;
        return 0;
    case KEY_PROMPT:
        args->prompt = arg;
        return 0;
    case KEY_FORMAT:
        args->format = arg;
        return 0;
    case KEY_TOKENIZER:
        args->tokenizer = arg;
        return 0;
    case KEY_FEATURES:
        args->features = arg;
        return 0;
    case KEY_MAX_NEW:
        args->max_new_tokens = s2s_arg_i64(state, "max-new-tokens", arg, 1, 1 << 20);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "no input expected, found '%s'", arg);
        return 0;
    case ARGP_KEY_END:
        if (!args->model == !args->checkpoint)
            argp_error(state, "give --model DIR or --checkpoint DIR");
        if (!args->audio && !args->prompt)
            argp_error(state, "give --audio FILE, --prompt TEXT, or both");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- tokenizer ---- */

static int stored_tokenizer(struct s2s_tokenizer **tok, const char *path, struct s2s_error *err)
{
    struct s2s_ckpt *ckpt = NULL;
    int rc = s2s_ckpt_open(&ckpt, path, err);
    if (rc < 0)
        return rc;
    const json_t *common = s2s_ckpt_common(ckpt);
    const json_t *text = json_object_get(common, "file/llm/tokenizer.json");
    if (!text)
        text = json_object_get(common, "file/tokenizer.json");
    if (text) {
        rc = s2s_tokenizer_parse(tok, json_string_value(text), json_string_length(text), err);
    } else {
        rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s holds no tokenizer", s2s_ckpt_path(ckpt));
        s2s_error_hint(err, rc, "give --tokenizer FILE");
    }
    s2s_ckpt_close(ckpt);
    return rc;
}

static int open_tokenizer(struct s2s_tokenizer **tok, const struct generate_args *args,
                          struct s2s_error *err)
{
    if (args->tokenizer)
        return s2s_tokenizer_open(tok, args->tokenizer, err);
    if (args->checkpoint)
        return stored_tokenizer(tok, args->checkpoint, err);
    char *path = s2s_xasprintf("%s/llm/tokenizer.json", args->model);
    if (!s2s_is_there(AT_FDCWD, path)) {
        free(path);
        path = s2s_xasprintf("%s/tokenizer.json", args->model);
    }
    int rc = s2s_tokenizer_open(tok, path, err);
    if (rc < 0)
        s2s_error_hint(err, rc, "give --tokenizer FILE");
    free(path);
    return rc;
}

/* ---- prompt ---- */

struct prompt {
    struct s2s_batch batch;
    int32_t *ids, *positions, *slots, bounds[3], frames;
    float *mel;
    int64_t cu_mel[2];
};

static void prompt_release(struct prompt *p)
{
    free(p->ids);
    free(p->positions);
    free(p->slots);
    free(p->mel);
}

static int hear(struct prompt *p, const struct generate_args *args, const struct s2s_model *model,
                struct s2s_error *err)
{
    struct s2s_audio audio = S2S_AUDIO_INIT;
    struct s2s_audio_options opt = S2S_AUDIO_OPTIONS_DEFAULT;
    struct s2s_pack_reader reader;
    if (model->n_mels == 0)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "the model takes no sound");
    int rc = train_reader_open(&reader, args->features, (int)model->n_mels, err);
    if (rc < 0)
        return rc;
    opt.rate_hz = s2s_mel_config(reader.mel)->rate_hz;
    if ((rc = s2s_audio_decode_file(&audio, args->audio, &opt, err)) == 0) {
        p->cu_mel[1] = s2s_mel_frames(reader.mel, audio.n_samples);
        p->mel = s2s_xcalloc((size_t)(p->cu_mel[1] * model->n_mels) + 1, sizeof *p->mel);
        s2s_mel_compute(reader.mel, reader.work, p->mel, audio.data, audio.n_samples);
        p->frames = (int32_t)s2s_model_frames(model, p->cu_mel[1]);
        if (p->frames < 1)
            rc = s2s_error_set(err, S2S_E_RANGE, "%s: too short for a single frame", args->audio);
    }
    s2s_audio_release(&audio);
    train_reader_close(&reader);
    return rc;
}

static int render(struct s2s_rendered *out, const struct generate_args *args,
                  struct s2s_tokenizer *tok, struct s2s_error *err)
{
    struct s2s_prompt *format = NULL;
    int rc = s2s_prompt_open(&format, args->format, tok, NULL, err);
    if (rc < 0)
        return rc;
    if (args->audio) {
        rc = s2s_prompt_render_asr(format, out, NULL, args->prompt, NULL, err);
    } else {
        struct s2s_part part = {args->prompt, strlen(args->prompt)};
        struct s2s_turn turn = {"user", &part, 1};
        rc = s2s_prompt_render(format, out, &turn, 1, true, err);
    }
    s2s_prompt_free(format);
    return rc;
}

/* The clip's one placeholder becomes as many slots as it has frames. */
static void fill(struct prompt *p, const struct s2s_rendered *r, const struct s2s_model *model)
{
    const int64_t n = (int64_t)r->ids.len + (p->mel ? p->frames - 1 : 0);
    p->ids = s2s_xcalloc((size_t)n, sizeof *p->ids);
    p->positions = s2s_xcalloc((size_t)n, sizeof *p->positions);
    int64_t at = 0;
    for (size_t i = 0; i < r->ids.len; i++) {
        if (p->mel && (int32_t)i == r->audio_pos[0])
            at += p->frames;
        else
            p->ids[at++] = r->ids.data[i];
    }
    for (int64_t i = 0; i < n; i++)
        p->positions[i] = (int32_t)i;
    p->bounds[1] = p->bounds[2] = (int32_t)n;
    p->batch = (struct s2s_batch){.n_tokens = n,
                                  .n_seqs = 1,
                                  .input_ids = p->ids,
                                  .position_ids = p->positions,
                                  .cu_seqlens = p->bounds,
                                  .seq_lens = p->bounds + 2,
                                  .max_seqlen = n};
    if (!p->mel)
        return;
    p->slots = s2s_xcalloc((size_t)p->frames, sizeof *p->slots);
    s2s_media_slots(p->slots, &r->audio_pos[0], &p->frames, 1);
    p->batch.n_media = 1;
    p->batch.media[0] = (struct s2s_media){.kind = S2S_MEDIA_AUDIO,
                                           .n = 1,
                                           .rows = &p->frames,
                                           .slot_of_row = p->slots,
                                           .data = p->mel,
                                           .cu = p->cu_mel,
                                           .width = model->n_mels};
}

/* ---- the command ---- */

static int say(const struct generate_args *args, const struct s2s_tokenizer *tok,
               const int32_t *ids, size_t n, struct s2s_error *err)
{
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_buf_puts(&text, "");
    struct s2s_printout to = {.out = NULL};
    int rc = s2s_tokenizer_decode(tok, &text, ids, n, true, err);
    if (rc == 0)
        rc = s2s_printout_begin(&to, args->common.out, err);
    if (rc == 0 && args->common.json) {
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(list, json_integer(ids[i]));
        json_t *report = json_pack("{s:s%, s:o}", "text", text.data, text.len, "ids", list);
        json_dumpf(report, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(report);
    } else if (rc == 0) {
        fwrite(text.data, 1, text.len, stdout);
        putchar('\n');
    }
    rc = s2s_printout_end(&to, rc, err);
    s2s_buf_release(&text);
    return rc;
}

static int generate_run(const struct generate_args *args, struct s2s_error *err)
{
    struct s2s_bundle bundle = {.model = NULL};
    struct s2s_tokenizer *tok = NULL;
    struct s2s_rendered rendered = S2S_RENDERED_INIT;
    struct prompt prompt = {.ids = NULL};
    int32_t *ids = NULL, stop;
    size_t n = 0;
    int rc = s2s_outfile_spares(args->common.out, args->audio, err);
    if (rc == 0)
        rc = open_tokenizer(&tok, args, err);
    if (rc == 0)
        rc = s2s_bundle_open_dir(&bundle, args->model, args->checkpoint, err);
    if (rc == 0 && args->audio)
        rc = hear(&prompt, args, bundle.model, err);
    if (rc == 0)
        rc = render(&rendered, args, tok, err);
    if (rc == 0) {
        fill(&prompt, &rendered, bundle.model);
        stop = s2s_tokenizer_eos(tok);
        struct s2s_generate_options opt = {
            .max_new_tokens = args->max_new_tokens, .stop_ids = &stop, .n_stop_ids = 1};
        rc = s2s_generate(&ids, &n, bundle.model, &prompt.batch, &opt, err);
    }
    if (rc == 0)
        rc = say(args, tok, ids, n, err);
    free(ids);
    prompt_release(&prompt);
    s2s_rendered_release(&rendered);
    s2s_tokenizer_free(tok);
    s2s_bundle_free(&bundle);
    return rc;
}

int train_generate(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp argp = {
        options, parse, "--model DIR [--audio FILE] [--prompt TEXT]", doc, NULL, NULL, NULL};
    struct generate_args args = {
        .common = S2S_COMMON_DEFAULT, .format = "plain", .max_new_tokens = 256};
    s2s_tool_parse(&argp, argc, argv, &args);
    omp_set_num_threads(args.common.jobs);
    return generate_run(&args, err);
}
