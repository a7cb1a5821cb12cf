/* s2s-train generate --model DIR --audio F.wav.. [--prompt T] [--list F.jsonl] */
#include <fcntl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt.h"
#include "lib/conf/conf.h"
#include "lib/io/outfile.h"
#include "lib/io/printout.h"
#include "lib/io/there.h"
#include "lib/model/generate.h"
#include "lib/train/trainer.h"
#include "tools/train/commands.h"
#include "tools/train/generate_inputs.h"

enum {
    KEY_MODEL = 0x100,
    KEY_CHECKPOINT,
    KEY_AUDIO,
    KEY_PROMPT,
    KEY_LIST,
    KEY_FORMAT,
    KEY_TOKENIZER,
    KEY_FEATURES,
    KEY_MAX_NEW,
    KEY_STOP,
    KEY_BATCH,
    KEY_TEMPERATURE,
    KEY_TOP_K,
    KEY_TOP_P,
    KEY_SEED,
    KEY_BEAMS,
    KEY_LENGTH_PENALTY,
    KEY_EARLY_STOPPING
};

enum { MAX_STOPS = 16 };

struct generate_args {
    struct s2s_common common;
    const char *model, *checkpoint, *prompt, *list, *format, *tokenizer, *features;
    const char **audio;
    size_t n_audio, cap_audio;
    int64_t batch;
    int32_t stops[MAX_STOPS];
    struct s2s_generate_options options;
};

static const struct argp_option options[] = {
    {"model", KEY_MODEL, "DIR", 0, "Hugging Face or composite directory", 1},
    {"checkpoint", KEY_CHECKPOINT, "DIR", 0, "A checkpoint of s2s-train, in place of --model", 1},
    {"audio", KEY_AUDIO, "FILE", 0,
     "Sound that the model hears (any rate, any number of channels); may be given many times", 2},
    {"prompt", KEY_PROMPT, "TEXT", 0, "Text before each sound, or alone", 2},
    {"list", KEY_LIST, "FILE", 0,
     "JSON lines with audio, prompt, or both, or with input_ids: a text of each", 2},
    {"format", KEY_FORMAT, "NAME", 0,
     "Prompt format: a name or a file, as of s2s-pack --prompt "
     "(default plain)",
     2},
    {"tokenizer", KEY_TOKENIZER, "FILE", 0,
     "tokenizer.json (default: the one of the model or in the checkpoint)", 3},
    {"features", KEY_FEATURES, "FILE", 0,
     "preprocessor_config.json (default: 16 kHz and the encoder's mel bins)", 3},
    {"max-new-tokens", KEY_MAX_NEW, "N", 0, "Longest text (default 256)", 3},
    {"stop", KEY_STOP, "ID", 0,
     "Id that ends a text; may be given many times (default: the tokenizer's end of sequence)", 3},
    {"batch", KEY_BATCH, "N", 0, "Texts that are made at once (default 8)", 3},
    {"temperature", KEY_TEMPERATURE, "X", 0,
     "Draw tokens from softmax(logits / X) (default 0: take the likeliest)", 4},
    {"top-k", KEY_TOP_K, "N", 0, "Draw from the N likeliest (default 0: all)", 4},
    {"top-p", KEY_TOP_P, "X", 0, "Draw from the likeliest that have the share X (default 1)", 4},
    {"seed", KEY_SEED, "N", 0, "Draw other tokens (default 0)", 4},
    {"beams", KEY_BEAMS, "N", 0, "Search with N beams (default 1: none)", 5},
    {"length-penalty", KEY_LENGTH_PENALTY, "X", 0,
     "Beams: a text's score is over its length to the power of X (default 1)", 5},
    {"early-stopping", KEY_EARLY_STOPPING, NULL, 0,
     "Beams: end when N texts have, better ones or not", 5},
    {0},
};

static const char doc[] =
    "Print the texts that a model makes of sounds and prompts, a line each: of the likeliest "
    "tokens, "
    "of drawn ones, or by a search with beams. What is drawn depends on the seed, the number of "
    "the "
    "text and that of the token, not on the batch."
    "\v"
    "Examples:\n"
    "  s2s-train generate --model model/ --audio hello.wav\n"
    "  s2s-train generate --checkpoint runs/a/checkpoints --audio hello.wav\n"
    "  s2s-train generate --model model/ --audio hello.wav --prompt 'Transcribe:' --beams 4\n"
    "\n"
    "Exit status: 0 done, 1 the model or the sound is bad, 2 the command line is bad or an input "
    "cannot be opened.\n"
    "See also: s2s-train(1)";

static void add_stop(struct generate_args *args, struct argp_state *state, const char *arg)
{
    if (args->options.n_stop_ids == MAX_STOPS)
        argp_error(state, "more than %d ids that stop", MAX_STOPS);
    args->stops[args->options.n_stop_ids++] =
        (int32_t)s2s_arg_i64(state, "stop", arg, 0, INT32_MAX);
}

static error_t parse_choice(int key, char *arg, struct argp_state *state)
{
    struct generate_args *args = state->input;
    struct s2s_generate_options *opt = &args->options;
    switch (key) {
    case KEY_MAX_NEW:
        opt->max_new_tokens = s2s_arg_i64(state, "max-new-tokens", arg, 1, 1 << 20);
        return 0;
    case KEY_STOP:
        add_stop(args, state, arg);
        return 0;
    case KEY_BATCH:
        args->batch = s2s_arg_i64(state, "batch", arg, 1, 4096);
        return 0;
    case KEY_TEMPERATURE:
        opt->temperature = s2s_arg_f64(state, "temperature", arg, 0, 1e6);
        return 0;
    case KEY_TOP_K:
        opt->top_k = s2s_arg_i64(state, "top-k", arg, 0, INT32_MAX);
        return 0;
    case KEY_TOP_P:
        opt->top_p = s2s_arg_f64(state, "top-p", arg, 0, 1);
        return 0;
    case KEY_SEED:
        opt->seed = (uint64_t)s2s_arg_i64(state, "seed", arg, 0, INT64_MAX);
        return 0;
    case KEY_BEAMS:
        opt->n_beams = s2s_arg_i64(state, "beams", arg, 1, 256);
        return 0;
    case KEY_LENGTH_PENALTY:
        opt->length_penalty = s2s_arg_f64(state, "length-penalty", arg, -100, 100);
        return 0;
    case KEY_EARLY_STOPPING:
        opt->early_stopping = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void check_args(const struct generate_args *args, struct argp_state *state)
{
    if (!args->model == !args->checkpoint)
        argp_error(state, "give --model DIR or --checkpoint DIR");
    if (args->n_audio == 0 && !args->prompt && !args->list)
        argp_error(state, "give --audio FILE, --prompt TEXT, or both, or --list FILE");
    if (args->options.temperature > 0 && args->options.n_beams > 1)
        argp_error(state, "beams are not drawn: give --beams or --temperature");
    if (args->options.temperature <= 0 && (args->options.top_k > 0 || args->options.top_p < 1))
        argp_error(state, "--top-k and --top-p want a --temperature");
}

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
        s2s_grow(&args->audio, args->n_audio, &args->cap_audio, sizeof *args->audio);
        args->audio[args->n_audio++] = arg;
        return 0;
    case KEY_PROMPT:
        args->prompt = arg;
        return 0;
    case KEY_LIST:
        args->list = arg;
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
    case ARGP_KEY_ARG:
        argp_error(state, "no input expected, found '%s'", arg);
        return 0;
    case ARGP_KEY_END:
        check_args(args, state);
        return 0;
    default:
        return parse_choice(key, arg, state);
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

/* ---- the command ---- */

/* Everything that is open while texts are made. */
struct generate_run {
    const struct generate_args *args;
    struct s2s_bundle bundle;
    struct generate_inputs inputs;
    struct generate_reader reader;
    struct s2s_generate_options options;
    int32_t stops[MAX_STOPS];
};

static int say(const struct generate_run *run, const struct s2s_generated *out,
               struct s2s_error *err)
{
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_buf_puts(&text, "");
    int rc = run->reader.tok
                 ? s2s_tokenizer_decode(run->reader.tok, &text, out->ids, out->n, true, err)
                 : 0;
    if (rc == 0 && (run->args->common.json || !run->reader.tok)) {
        json_t *list = json_array(), *report = json_object();
        for (size_t i = 0; i < out->n; i++)
            json_array_append_new(list, json_integer(out->ids[i]));
        if (run->reader.tok)
            json_object_set_new(report, "text", json_stringn(text.data, text.len));
        json_object_set_new(report, "ids", list);
        if (run->options.n_beams > 1)
            json_object_set_new(report, "score", json_real(out->score));
        json_dumpf(report, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(report);
    } else if (rc == 0) {
        fwrite(text.data, 1, text.len, stdout);
        putchar('\n');
    }
    s2s_buf_release(&text);
    return rc;
}

/* The texts of some inputs, from the first on. */
static int make_texts(struct generate_run *run, int64_t first, int64_t n, struct s2s_error *err)
{
    struct generate_batch batch;
    struct s2s_generated *out = s2s_xcalloc((size_t)n, sizeof *out);
    int rc = generate_batch_make(&batch, run->inputs.list + first, n, &run->reader, err);
    run->options.first = first;
    if (rc == 0)
        rc = s2s_generate(out, run->bundle.model, &batch.batch, &run->options, err);
    for (int64_t i = 0; rc == 0 && i < n; i++)
        rc = say(run, &out[i], err);
    s2s_generated_release(out, n);
    generate_batch_release(&batch);
    free(out);
    return rc;
}

static int find_inputs(struct generate_run *run, struct s2s_error *err)
{
    const struct generate_args *args = run->args;
    for (size_t i = 0; i < args->n_audio; i++)
        generate_add(&run->inputs, args->audio[i], args->prompt);
    if (args->n_audio == 0 && args->prompt)
        generate_add(&run->inputs, NULL, args->prompt);
    int rc = args->list ? generate_read_list(&run->inputs, args->list, err) : 0;
    if (rc == 0)
        rc = s2s_outfile_spares(args->common.out, args->list, err);
    for (size_t i = 0; rc == 0 && i < run->inputs.n; i++)
        rc = s2s_outfile_spares(args->common.out, run->inputs.list[i].audio, err);
    return rc;
}

/* What ends a text: as asked, or the tokenizer's, or the model's one or several. */
static int find_stops(struct generate_run *run, struct s2s_error *err)
{
    const struct s2s_conf *eos = s2s_conf_find(run->bundle.model->conf, "eos_token_id");
    run->options.stop_ids = run->stops;
    memcpy(run->stops, run->args->stops, sizeof run->stops);
    if (run->options.n_stop_ids > 0)
        return 0;
    if (run->reader.tok) {
        run->stops[run->options.n_stop_ids++] = s2s_tokenizer_eos(run->reader.tok);
        return 0;
    }
    const size_t n = !eos || eos->kind == S2S_CONF_NULL ? 0 : eos->n_items ? eos->n_items : 1;
    for (size_t i = 0; i < n && i < MAX_STOPS; i++) {
        int64_t id;
        int rc = s2s_conf_as_i64(&id, eos->n_items ? eos->items[i] : eos, 0, INT32_MAX, err);
        if (rc < 0)
            return rc;
        run->stops[run->options.n_stop_ids++] = (int32_t)id;
    }
    return 0;
}

static int open_run(struct generate_run *run, struct s2s_error *err)
{
    const struct generate_args *args = run->args;
    int rc = find_inputs(run, err);
    if (rc == 0 && (run->inputs.want_text || args->tokenizer))
        rc = open_tokenizer(&run->reader.tok, args, err);
    if (rc == 0)
        rc = s2s_bundle_open_dir(&run->bundle, args->model, args->checkpoint, err);
    if (rc == 0 && run->reader.tok)
        rc = s2s_prompt_open(&run->reader.format, args->format, run->reader.tok, NULL, err);
    if (rc < 0)
        return rc;
    run->reader.model = run->bundle.model;
    run->reader.features = args->features;
    return find_stops(run, err);
}

static int generate_run(const struct generate_args *args, struct s2s_error *err)
{
    struct generate_run run = {.args = args, .options = args->options};
    struct s2s_printout to = {.out = NULL};
    int rc = open_run(&run, err);
    if (rc == 0 && (rc = s2s_printout_begin(&to, args->common.out, err)) == 0) {
        const int64_t n = (int64_t)run.inputs.n;
        for (int64_t i = 0; rc == 0 && i < n; i += args->batch)
            rc = make_texts(&run, i, n - i < args->batch ? n - i : args->batch, err);
        rc = s2s_printout_end(&to, rc, err);
    }
    generate_inputs_release(&run.inputs);
    s2s_prompt_free(run.reader.format);
    s2s_tokenizer_free(run.reader.tok);
    s2s_bundle_free(&run.bundle);
    return rc;
}

int train_generate(int argc, char **argv, struct s2s_error *err)
{
    static const struct argp argp = {
        options, parse, "--model DIR [--audio FILE].. [--prompt TEXT]", doc, NULL, NULL, NULL};
    struct generate_args args = {
        .common = S2S_COMMON_DEFAULT,
        .format = "plain",
        .batch = 8,
        .options = {.max_new_tokens = 256, .top_p = 1, .n_beams = 1, .length_penalty = 1}};
    s2s_tool_parse(&argp, argc, argv, &args);
    omp_set_num_threads(args.common.jobs);
    const int rc = generate_run(&args, err);
    free(args.audio);
    return rc;
}
