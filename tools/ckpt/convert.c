/* s2s-ckpt convert, prune, reshard, average: one job with different options. */
#include "tools/ckpt/job.h"

#define DEFAULT_SHARD "5GB"

enum {
    KEY_FROM = 0x100,
    KEY_TO,
    KEY_MAP,
    KEY_PART,
    KEY_DTYPE,
    KEY_SHARD,
    KEY_STRICT,
    KEY_CONFIG,
    KEY_PADDING,
    KEY_MERGE,
    KEY_LAYERS,
    KEY_PAD_VOCAB,
    KEY_FILES,
    KEY_RESUME,
    KEY_NO_SYNC,
    KEY_PLAN,
    KEY_TOKENIZER,
    KEY_NO_TOKENIZER
};

/* options of several commands */
#define DTYPE_OPTION \
    "dtype", KEY_DTYPE, "D", 0, "Cast floating-point tensors to f32, bf16, f16 or f64", 1
#define SHARD_OPTION \
    "max-shard-size", KEY_SHARD, "SIZE", 0, \
        "Largest weights file in a folder, such as 2GB (default " DEFAULT_SHARD ")", 1
#define RESUME_OPTION \
    "resume", KEY_RESUME, NULL, 0, \
        "Continue an interrupted run of the same command: keep the finished files in " \
        "OUT.s2s-partial, also if this run is interrupted (folders only)", \
        1
#define NO_SYNC_OPTION \
    "no-sync", KEY_NO_SYNC, NULL, 0, \
        "Do not wait for the disk: faster, but a power cut may damage OUT", 1
#define MERGE_OPTION \
    "merge-ranks", KEY_MERGE, NULL, 0, \
        "Merge Megatron's per-rank folders (mp_rank_XX) into whole tensors; convert --to hf " \
        "always does", \
        1
#define PLAN_OPTION "plan", KEY_PLAN, NULL, 0, "Show what would be written; write nothing", 1

static const struct argp_option options[] = {
    {"to", KEY_TO, "FORMAT", 0,
     "Format of OUT: hf (a folder), torch_dist (a folder), safetensors (one file, names unchanged) "
     "or nemo (a .nemo archive, from Parakeet or a .nemo)",
     0}, /* first; the others are in alphabetical order */
    {"from", KEY_FROM, "FORMAT", 0, "Refuse IN unless it has this format (as ls --json names it)",
     1},
    {"map", KEY_MAP, "NAME|FILE", 0,
     "Name map between Megatron and Hugging Face: a family, a model_type or a file. With --to "
     "torch_dist it is needed to get Megatron's names; to hf the default is to detect it",
     1},
    {"part", KEY_PART, "PREFIX", 0,
     "Convert only the tensors below this prefix, such as language_model or llm, and strip it", 1},
    {"layers", KEY_LAYERS, "HOW", 0,
     "Layers in torch_dist: stacked along an axis, numbered, or auto, as Megatron-Core saves the "
     "model (default: auto with --map or --merge-ranks, else unchanged)",
     1},
    {"pad-vocab", KEY_PAD_VOCAB, "N", 0,
     "Pad Megatron's vocabulary with zero rows to a multiple of N", 1},
    {"config", KEY_CONFIG, "FILE", 0,
     "The model's config.json, for what IN does not say; copied to OUT. For NeMo's weights, also "
     "model_config.yaml",
     1},
    {"tokenizer", KEY_TOKENIZER, "FILE", 0,
     "SentencePiece model for --to nemo (default: tokenizer.model in IN)", 1},
    {"no-tokenizer", KEY_NO_TOKENIZER, NULL, 0,
     "Write --to nemo without a tokenizer, labelled with the pieces of tokenizer.json", 1},
    {DTYPE_OPTION},
    {SHARD_OPTION},
    {"files", KEY_FILES, "N", 0,
     "Write torch_dist as N files of about equal size, splitting tensors where needed", 1},
    {"keep-vocab-padding", KEY_PADDING, NULL, 0, "Keep the padding rows beyond the vocabulary", 1},
    {MERGE_OPTION},
    {RESUME_OPTION},
    {"strict", KEY_STRICT, NULL, 0, "Fail if IN has tensors that OUT does not take", 1},
    {NO_SYNC_OPTION},
    {PLAN_OPTION},
    {0},
};

static enum s2s_dtype parse_dtype(struct argp_state *state, const char *text)
{
    static const char *const names[] = {"f32", "bf16", "f16", "f64", NULL};
    static const enum s2s_dtype dtypes[] = {S2S_F32, S2S_BF16, S2S_F16, S2S_F64};
    /* names of torch, and of ls */
    static const char *const others[][4] = {{"float32", "bfloat16", "float16", "float64"},
                                            {"F32", "BF16", "F16", "F64"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        for (size_t k = 0; k < 4; k++)
            if (strcmp(others[i][k], text) == 0)
                return dtypes[k];
    return dtypes[s2s_arg_choice(state, "dtype", text, names)];
}

/* Checks combinations of options; OUT is the last argument. */
static void check_usage(struct argp_state *state, struct ckpt_job_options *opt)
{
    opt->out = opt->common.out;
    if (!opt->out && opt->n_in)
        opt->out = opt->in[--opt->n_in];
    if (opt->average ? opt->n_in < 2 : opt->n_in < 1)
        argp_error(state, opt->average ? "two or more checkpoints and OUT are needed"
                                       : "IN and OUT are needed");
    if (!opt->average && opt->n_in > 1)
        argp_error(state, "unexpected argument '%s': give one IN and one OUT", opt->in[1]);
    const bool to_stdout = strcmp(opt->out, "-") == 0;
    const struct {
        bool wrong;
        const char *why;
    } rules[] = {
        {!*opt->out, "OUT is an empty name"},
        {to_stdout && (opt->to == TO_HF || opt->to == TO_TORCH_DIST),
         "OUT is a folder here: it cannot be stdout"},
        {to_stdout && opt->common.json && !opt->plan,
         "OUT is stdout (-): --json would print there too"},
        {!opt->to && !opt->average, "--to is missing: hf, torch_dist, safetensors or nemo"},
        {to_stdout && opt->resume, "--resume does not work with stdout"},
        {opt->n_files && opt->to != TO_TORCH_DIST, "--files goes with --to torch_dist"},
        {opt->n_files && opt->shard_given, "--files or --max-shard-size, not both"},
        {opt->shard_given && (opt->to == TO_SAFETENSORS || opt->to == TO_NEMO),
         "--max-shard-size goes with --to hf or torch_dist"},
        {opt->layers_given && opt->to != TO_TORCH_DIST, "--layers goes with --to torch_dist"},
        {opt->vocab_multiple && !(opt->map && opt->to == TO_TORCH_DIST),
         "--pad-vocab goes with --to torch_dist --map"},
        {(opt->tokenizer || opt->without_tokenizer) && opt->to != TO_NEMO,
         "--tokenizer and --no-tokenizer go with --to nemo"},
        {opt->tokenizer && opt->without_tokenizer, "--tokenizer or --no-tokenizer, not both"},
        {opt->keep_padding && opt->to != TO_HF,
         "--keep-vocab-padding goes with --to hf; other formats keep it anyway"},
        {opt->config && (opt->to == TO_SAFETENSORS || (opt->to == TO_TORCH_DIST && !opt->map)),
         "--config goes with --to hf, nemo, or torch_dist --map"},
        {opt->map && (opt->to == TO_SAFETENSORS || opt->to == TO_NEMO),
         "--map goes with --to hf or torch_dist"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].wrong)
            argp_error(state, "%s", rules[i].why);
}

/* Options without value, or with any string; false: another key. */
static bool parse_plain(struct ckpt_job_options *opt, int key, const char *arg)
{
    const struct {
        int key;
        bool *flag;
        const char **text;
    } all[] = {
        {KEY_NO_TOKENIZER, &opt->without_tokenizer, NULL},
        {KEY_MERGE, &opt->merge_ranks, NULL},
        {KEY_PADDING, &opt->keep_padding, NULL},
        {KEY_RESUME, &opt->resume, NULL},
        {KEY_NO_SYNC, &opt->no_sync, NULL},
        {KEY_STRICT, &opt->strict, NULL},
        {KEY_PLAN, &opt->plan, NULL},
        {KEY_MAP, NULL, &opt->map},
        {KEY_PART, NULL, &opt->part},
        {KEY_CONFIG, NULL, &opt->config},
        {KEY_TOKENIZER, NULL, &opt->tokenizer},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].key != key)
            continue;
        if (all[i].flag)
            *all[i].flag = true;
        else
            *all[i].text = arg;
        return true;
    }
    return false;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    static const char *const sources[] = {"torch_dist", "dcp",         "dcp_hf", "hf",
                                          "hf_bin",     "safetensors", "torch",  "torch_legacy",
                                          "mp_rank",    "fsdp_rank",   "nemo",   NULL};
    static const char *const layers[] = {"auto", "stacked", "numbered", NULL};
    struct ckpt_job_options *opt = state->input;
    struct s2s_error err = S2S_ERROR_INIT;
    switch (key) {
    case KEY_TO:
        opt->to = TO_HF + (enum ckpt_output)s2s_arg_choice(state, "to", arg, ckpt_output_names);
        return 0;
    case KEY_FROM:
        opt->from = sources[s2s_arg_choice(state, "from", arg, sources)];
        return 0;
    case KEY_DTYPE:
        opt->dtype = parse_dtype(state, arg);
        return 0;
    case KEY_SHARD:
        if (s2s_parse_size(&opt->max_shard_bytes, arg, &err) < 0)
            argp_error(state, "--max-shard-size: %s", err.text);
        if (opt->max_shard_bytes == 0)
            argp_error(state, "--max-shard-size: 0 bytes hold nothing");
        opt->shard_given = true;
        return 0;
    case KEY_LAYERS:
        opt->layers = (enum ckpt_layers)s2s_arg_choice(state, "layers", arg, layers);
        opt->layers_given = true;
        return 0;
    case KEY_PAD_VOCAB:
        opt->vocab_multiple = s2s_arg_i64(state, "pad-vocab", arg, 1, 1 << 20);
        return 0;
    case KEY_FILES:
        opt->n_files = s2s_arg_i64(state, "files", arg, 1, 1 << 16);
        return 0;
    case ARGP_KEY_ARG:
        s2s_grow(&opt->in, opt->n_in, &opt->cap_in, sizeof *opt->in);
        opt->in[opt->n_in++] = arg;
        return 0;
    case ARGP_KEY_END:
        check_usage(state, opt);
        return 0;
    default:
        return parse_plain(opt, key, arg) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    options,
    parse,
    "--to FORMAT IN OUT",
    "Convert a checkpoint from any format that ls reads. OUT appears only when it is "
    "complete.\vExamples:\n"
    "  s2s-ckpt convert --to hf checkpoints/ model/\n"
    "  s2s-ckpt convert --to hf --dtype bf16 iter_0001000/ model/\n"
    "  s2s-ckpt convert --to torch_dist --map llama model/ megatron/\n"
    "  s2s-ckpt convert --to hf --part language_model vlm/ llm/\n"
    "  s2s-ckpt convert --to torch_dist --merge-ranks mp_ranks/ megatron/\n"
    "  s2s-ckpt convert --to safetensors pytorch_model.bin model.safetensors\n"
    "  mpirun -n 4 s2s-ckpt convert --to hf iter_0001000/ model/\n\n"
    "See also: s2s-ckpt(1), s2s-ckpt-map(5)",
    NULL,
    NULL,
    NULL};

/* ---- prune: the same job with fewer options ---- */

static const struct argp_option prune_options[] = {
    {DTYPE_OPTION},
    {SHARD_OPTION},
    {MERGE_OPTION},
    {RESUME_OPTION},
    {NO_SYNC_OPTION},
    {PLAN_OPTION},
    {0},
};

static const struct argp prune_argp = {
    prune_options,
    parse,
    "IN OUT",
    "Write a torch_dist checkpoint (from dcp: dcp) without the optimizer, gradient scaler and "
    "random states: it is enough to start from, not to resume. Names are unchanged.\vExamples:\n"
    "  s2s-ckpt prune checkpoints/iter_0001000 weights/\n\n"
    "See also: s2s-ckpt(1)",
    NULL,
    NULL,
    NULL};

/* ---- reshard ---- */

static const struct argp_option reshard_options[] = {
    {"files", KEY_FILES, "N", 0,
     "Write N files of about equal size, splitting tensors where needed", 1},
    {"max-shard-size", KEY_SHARD, "SIZE", 0,
     "Or: largest file, such as 2GB (default " DEFAULT_SHARD "); tensors are not split", 1},
    {MERGE_OPTION},
    {RESUME_OPTION},
    {NO_SYNC_OPTION},
    {PLAN_OPTION},
    {0},
};

static const struct argp reshard_argp = {
    reshard_options,
    parse,
    "IN OUT",
    "Write the same checkpoint, optimizer included, as torch_dist (from dcp: dcp) in another "
    "number of files. Megatron-Core loads any number of files into any parallelism; only the "
    "buckets of a dp_reshardable optimizer stay tied to the parallelism that wrote "
    "them.\vExamples:\n"
    "  s2s-ckpt reshard --files 8 checkpoints/iter_0001000 out/\n\n"
    "See also: s2s-ckpt(1)",
    NULL,
    NULL,
    NULL};

/* ---- average ---- */

static const struct argp_option average_options[] = {
    {"to", KEY_TO, "FORMAT", 0,
     "Format of OUT: hf, torch_dist, safetensors or nemo (default: that of A)", 0},
    {DTYPE_OPTION},
    {SHARD_OPTION},
    {RESUME_OPTION},
    {NO_SYNC_OPTION},
    {PLAN_OPTION},
    {0},
};

static const struct argp average_argp = {
    average_options,
    parse,
    "A B... OUT",
    "Average the weights of checkpoints that have the same names, shapes and dtypes. Sums are in "
    "float64. Integer tensors, small files and the common state are taken from A; optimizer and "
    "random states are left out.\vExamples:\n"
    "  s2s-ckpt average run/iter_0000800 run/iter_0000900 run/iter_0001000 mean/\n\n"
    "See also: s2s-ckpt(1)",
    NULL,
    NULL,
    NULL};

static int start(struct ckpt_job_options *opt, const struct argp *parser, int argc, char **argv,
                 struct s2s_error *err)
{
    if (s2s_parse_size(&opt->max_shard_bytes, DEFAULT_SHARD, err) < 0)
        S2S_BUG("%s", err->text);
    s2s_tool_parse(parser, argc, argv, opt);
    int rc = ckpt_job_run(opt, err);
    free(opt->in);
    return rc;
}

int ckpt_convert(int argc, char **argv, struct s2s_error *err)
{
    struct ckpt_job_options opt = {.common = S2S_COMMON_DEFAULT};
    return start(&opt, &argp, argc, argv, err);
}

int ckpt_prune(int argc, char **argv, struct s2s_error *err)
{
    struct ckpt_job_options opt = {
        .common = S2S_COMMON_DEFAULT, .to = TO_TORCH_DIST, .only_weights = true};
    return start(&opt, &prune_argp, argc, argv, err);
}

int ckpt_reshard(int argc, char **argv, struct s2s_error *err)
{
    struct ckpt_job_options opt = {
        .common = S2S_COMMON_DEFAULT, .to = TO_TORCH_DIST, .reshard = true};
    return start(&opt, &reshard_argp, argc, argv, err);
}

int ckpt_average(int argc, char **argv, struct s2s_error *err)
{
    struct ckpt_job_options opt = {
        .common = S2S_COMMON_DEFAULT, .only_weights = true, .average = true};
    return start(&opt, &average_argp, argc, argv, err);
}
