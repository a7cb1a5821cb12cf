/* s2s-ckpt convert */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/ckpt/ckpt_files.h"
#include "lib/ckpt/to_dist.h"
#include "lib/ckpt/to_hf.h"
#include "lib/ckpt/to_megatron.h"
#include "lib/io/outfile.h"
#include "tools/ckpt/ckpt_tool.h"

enum target { TO_NONE, TO_HF, TO_TORCH_DIST, TO_SAFETENSORS };

struct options {
    struct s2s_common common;
    enum target to;
    const char *from, *map, *config, *in, *out;
    enum s2s_dtype dtype;
    int64_t max_shard_bytes;
    enum ckpt_layers layers;
    int64_t vocab_multiple;
    bool strict, keep_padding, plan;
    bool prune; /* the command prune: names as they are, without the optimizer */
};

#define DEFAULT_SHARD "5GB"

enum {
    KEY_FROM = 0x100,
    KEY_TO,
    KEY_MAP,
    KEY_DTYPE,
    KEY_SHARD,
    KEY_STRICT,
    KEY_CONFIG,
    KEY_PADDING,
    KEY_LAYERS,
    KEY_PAD_VOCAB,
    KEY_PLAN
};

static const struct argp_option options[] = {
    {"to", KEY_TO, "FORMAT", 0,
     "hf (a folder), torch_dist (a folder), safetensors (one file, names as they are)", 1},
    {"from", KEY_FROM, "FORMAT", 0, "Refuse IN unless it is this format, as `ls --json` names it",
     1},
    {"map", KEY_MAP, "NAME|FILE", 0,
     "Name map between Megatron and Hugging Face: a family or a file (default to hf: found from "
     "the "
     "names). With --to torch_dist: from Hugging Face's names to Megatron's",
     1},
    {"layers", KEY_LAYERS, "HOW", 0,
     "To Megatron's names: layers auto, stacked on an axis, or numbered (default auto)", 1},
    {"pad-vocab", KEY_PAD_VOCAB, "N", 0,
     "To Megatron's names: zero rows until the vocabulary is a multiple of N", 1},
    {"config", KEY_CONFIG, "FILE", 0,
     "The model's config.json: heads, groups and vocabulary where IN does not say; copied to OUT",
     1},
    {"dtype", KEY_DTYPE, "D", 0, "Cast floating tensors to f32, bf16, f16 or f64", 1},
    {"max-shard-size", KEY_SHARD, "SIZE", 0,
     "Largest file of weights in a folder, such as 2GB (default " DEFAULT_SHARD ")", 1},
    {"keep-vocab-padding", KEY_PADDING, NULL, 0, "Keep the rows past the vocabulary", 1},
    {"strict", KEY_STRICT, NULL, 0, "Fail when IN has tensors that OUT does not take", 1},
    {"plan", KEY_PLAN, NULL, 0, "Say what would be written, write nothing", 1},
    {0},
};

static enum s2s_dtype parse_dtype(struct argp_state *state, const char *text)
{
    static const char *const names[] = {"f32", "bf16", "f16", "f64", NULL};
    static const enum s2s_dtype dtypes[] = {S2S_F32, S2S_BF16, S2S_F16, S2S_F64};
    return dtypes[s2s_arg_choice(state, "--dtype", text, names)];
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    static const char *const formats[] = {"hf", "torch_dist", "safetensors", NULL};
    static const char *const layers[] = {"auto", "stacked", "numbered", NULL};
    struct options *opt = state->input;
    struct s2s_error err = S2S_ERROR_INIT;
    switch (key) {
    case KEY_TO:
        opt->to = (enum target)(s2s_arg_choice(state, "--to", arg, formats) + 1);
        return 0;
    case KEY_FROM:
        opt->from = arg;
        return 0;
    case KEY_MAP:
        opt->map = arg;
        return 0;
    case KEY_CONFIG:
        opt->config = arg;
        return 0;
    case KEY_DTYPE:
        opt->dtype = parse_dtype(state, arg);
        return 0;
    case KEY_SHARD:
        if (s2s_parse_size(&opt->max_shard_bytes, arg, &err) < 0)
            argp_error(state, "--max-shard-size: %s", err.text);
        return 0;
    case KEY_PADDING:
        opt->keep_padding = true;
        return 0;
    case KEY_LAYERS:
        opt->layers = (enum ckpt_layers)s2s_arg_choice(state, "--layers", arg, layers);
        return 0;
    case KEY_PAD_VOCAB:
        if (s2s_parse_i64(&opt->vocab_multiple, arg, 1, 1 << 20, &err) < 0)
            argp_error(state, "--pad-vocab: %s", err.text);
        return 0;
    case KEY_STRICT:
        opt->strict = true;
        return 0;
    case KEY_PLAN:
        opt->plan = true;
        return 0;
    case ARGP_KEY_ARG:
        if (opt->in && opt->out)
            argp_error(state, "IN and OUT, please: '%s' is too many", arg);
        *(opt->in ? &opt->out : &opt->in) = arg;
        return 0;
    case ARGP_KEY_END:
        if (!opt->out)
            opt->out = opt->common.out;
        if (!opt->in || !opt->out)
            argp_error(state, "IN and OUT are needed");
        if (!opt->to)
            argp_error(state, "--to hf, torch_dist or safetensors is needed");
        if ((opt->layers || opt->vocab_multiple) && !(opt->map && opt->to == TO_TORCH_DIST))
            argp_error(state, "--layers and --pad-vocab go with --to torch_dist --map");
        if (opt->map && opt->to == TO_SAFETENSORS)
            argp_error(state, "--map goes with --to hf or torch_dist");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    options,
    parse,
    "--to FORMAT IN OUT",
    "Convert a checkpoint of any format that `s2s-ckpt ls` reads. OUT appears when it is complete; "
    "a "
    "refused input leaves nothing.\vExamples:\n"
    "  s2s-ckpt convert --to hf checkpoints/ model/\n"
    "  s2s-ckpt convert --to hf --dtype bf16 --max-shard-size 2GB iter_0001000/ model/\n"
    "  s2s-ckpt convert --to torch_dist --map llama --pad-vocab 128 model/ megatron/\n"
    "  s2s-ckpt convert --to safetensors pytorch_model.bin model.safetensors\n\n"
    "See also: s2s-ckpt(1)",
    NULL,
    NULL,
    NULL};

/* ---- prune: the same job with fewer options ---- */

static const struct argp_option prune_options[] = {
    {"dtype", KEY_DTYPE, "D", 0, "Cast floating tensors to f32, bf16, f16 or f64", 1},
    {"max-shard-size", KEY_SHARD, "SIZE", 0,
     "Largest file of weights in a folder, such as 2GB (default " DEFAULT_SHARD ")", 1},
    {"plan", KEY_PLAN, NULL, 0, "Say what would be written, write nothing", 1},
    {0},
};

static const struct argp prune_argp = {
    prune_options,
    parse,
    "IN OUT",
    "A torch_dist checkpoint without its optimizer, gradient scaler and random states: what is "
    "needed "
    "to start from, not to resume. Names stay as they are.\vExamples:\n"
    "  s2s-ckpt prune checkpoints/iter_0001000 weights/\n\n"
    "See also: s2s-ckpt(1)",
    NULL,
    NULL,
    NULL};

/* also under the prefixes that several optimizers or branches put in front */
static bool is_weight(const char *name)
{
    static const char *const state[] = {"optimizer.", "optim.", "rng_state", "grad_scaler"};
    for (const char *at = name; at; at = strchr(at, '.'), at = at ? at + 1 : NULL)
        for (size_t i = 0; i < sizeof state / sizeof *state; i++)
            if (strncmp(at, state[i], strlen(state[i])) == 0)
                return false;
    return true;
}

/* ---- stopping and progress ---- */

static volatile int stop;

static void on_signal(int signal_number)
{
    stop = 1;
}

/* ends through the ordinary clean-up, so that no half folder stays */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

static void add_progress(void *ctx, int64_t bytes)
{
    s2s_progress_add(ctx, bytes);
}

/* ---- the three outputs; all write to `tmp`, which the caller renames ---- */

struct job {
    const struct options *opt;
    struct s2s_ckpt *ckpt;
    json_t *config, *common;
    char *config_text;
    struct s2s_ckpt_write how;
    struct s2s_progress progress;
    size_t n_tensors;
    int64_t bytes;
};

static void count(struct job *job, const struct s2s_ckpt_plan *plan)
{
    for (size_t i = 0; i < plan->n_targets; i++)
        job->bytes += s2s_ckpt_target_bytes(&plan->targets[i]);
    job->n_tensors += plan->n_targets;
}

static void begin_progress(struct job *job)
{
    s2s_progress_begin(&job->progress, "converting", "bytes", job->bytes);
}

static int report_unused(const struct job *job, const char *const *unused, size_t n,
                         size_t n_optimizer, struct s2s_error *err)
{
    if (n_optimizer)
        s2s_info("convert", "%zu tensors of the optimizer and other state are left out",
                 n_optimizer);
    for (size_t i = 0; i < n; i++)
        s2s_log(job->opt->strict ? S2S_LOG_ERROR : S2S_LOG_WARN, "convert",
                "in checkpoint but unused: %s", unused[i]);
    return n && job->opt->strict
               ? s2s_error_set(err, S2S_E_NOTFOUND,
                               "%zu tensors of the checkpoint are not used (--strict)", n)
               : 0;
}

static void show_plan(const struct s2s_ckpt_plan *plan, const char *folder)
{
    for (size_t i = 0; i < plan->n_targets; i++) {
        const struct s2s_ckpt_target *t = &plan->targets[i];
        printf("%s%s%s\t%s\t", folder, *folder ? "/" : "", t->name, s2s_dtype_name(t->dtype));
        ckpt_print_shape(t->shape, t->n_dims);
        printf("\t%lld\n", (long long)s2s_ckpt_target_bytes(t));
    }
}

static int write_hf(struct job *job, const char *tmp, struct s2s_error *err)
{
    struct s2s_hf_output out;
    struct s2s_hf_options hf = {.map = job->opt->map,
                                .dtype = job->opt->dtype,
                                .keep_vocab_padding = job->opt->keep_padding,
                                .config = job->config,
                                .config_text = job->config_text};
    int rc = s2s_hf_prepare(&out, job->ckpt, &hf, err);
    if (rc == 0)
        rc =
            report_unused(job, (const char *const *)out.unused, out.n_unused, out.n_optimizer, err);
    if (rc == 0 && *out.family)
        s2s_info("convert", "name map: %s", out.family);
    for (size_t i = 0; i < out.n_parts && rc == 0; i++) {
        count(job, &out.parts[i].plan);
        if (job->opt->plan)
            show_plan(&out.parts[i].plan, out.parts[i].folder);
    }
    if (rc == 0 && !job->opt->plan) {
        begin_progress(job);
        if (mkdir(tmp, 0777) < 0)
            rc = s2s_error_errno(err, S2S_E_IO, "%s: cannot make the folder", tmp);
        else
            rc = s2s_hf_write(&out, tmp, &job->how, err);
    }
    s2s_hf_release(&out);
    return rc;
}

/* Hugging Face's names as Megatron's; the common state that belongs to them goes into job */
static int plan_megatron(struct job *job, struct s2s_ckpt_plan *plan, struct s2s_error *err)
{
    struct ckpt_map_request request = {.ckpt = job->ckpt,
                                       .name = job->opt->map,
                                       .config = job->config,
                                       .vocab_multiple = job->opt->vocab_multiple,
                                       .layers = job->opt->layers};
    struct ckpt_map_result result = {.n_unused = 0};
    int rc = s2s_megatron_prepare(plan, &job->common, &request, &result, err);
    if (rc == 0)
        rc = report_unused(job, result.unused, result.n_unused, result.n_optimizer, err);
    if (rc == 0 && job->config_text)
        json_object_set_new(job->common, "config/llm", json_string(job->config_text));
    job->how.common = job->common;
    free(result.unused);
    return rc;
}

static int plan_all(struct job *job, struct s2s_ckpt_plan *plan, struct s2s_error *err)
{
    size_t n;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(job->ckpt, &n);
    int rc = job->opt->map ? plan_megatron(job, plan, err) : 0;
    plan->source = job->ckpt;
    for (size_t i = 0; i < n && !job->opt->map; i++)
        if (!job->opt->prune || is_weight(tensors[i].name))
            s2s_ckpt_plan_copy(plan, tensors[i].name, &tensors[i]);
    if (job->opt->dtype)
        s2s_ckpt_plan_cast(plan, job->opt->dtype);
    if (rc == 0)
        rc = s2s_ckpt_plan_seal(plan, err);
    count(job, plan);
    if (rc == 0 && job->opt->plan)
        show_plan(plan, "");
    return rc;
}

static int write_torch_dist(struct job *job, const char *tmp, struct s2s_error *err)
{
    struct s2s_ckpt_plan plan = {.source = NULL};
    int rc = plan_all(job, &plan, err);
    if (rc == 0 && !job->opt->plan) {
        begin_progress(job);
        rc = s2s_ckpt_write_dist(&plan, tmp, &job->how, err);
    }
    s2s_ckpt_plan_release(&plan);
    return rc;
}

static int write_single(struct job *job, const char *path, struct s2s_error *err)
{
    struct s2s_ckpt_plan plan = {.source = NULL};
    struct s2s_outfile *out = NULL;
    int rc = plan_all(job, &plan, err);
    if (rc == 0 && !job->opt->plan) {
        begin_progress(job);
        rc = s2s_outfile_open(&out, path, err);
    }
    if (rc == 0 && out)
        rc = s2s_ckpt_write_safetensors(&plan, 0, plan.n_targets, out, &job->how, err);
    if (rc == 0 && out)
        rc = s2s_ckpt_plan_verify(&plan, err);
    if (rc == 0 && out)
        rc = s2s_outfile_commit(out, err);
    else
        s2s_outfile_abort(out);
    s2s_ckpt_plan_release(&plan);
    return rc;
}

/* ---- folders appear whole ---- */

static int write_folder(struct job *job, struct s2s_error *err)
{
    size_t len = strlen(job->opt->out);
    while (len > 1 && job->opt->out[len - 1] == '/')
        len--;
    char *out = s2s_xstrndup(job->opt->out, len), *tmp = s2s_xasprintf("%s.s2s-partial", out);
    struct stat st;
    /* an empty folder may be replaced, anything else is somebody's */
    int rc = 0;
    if (lstat(out, &st) == 0 && (!S_ISDIR(st.st_mode) || (!job->opt->plan && rmdir(out) < 0))) {
        rc = s2s_error_set(err, S2S_E_ARG, "%s: is there already", out);
        s2s_error_hint(err, rc, "choose another OUT, or remove it first");
    }
    if (rc == 0 && !job->opt->plan)
        rc = s2s_ckpt_remove_tree(tmp, err);
    if (rc == 0)
        rc = job->opt->to == TO_HF ? write_hf(job, tmp, err) : write_torch_dist(job, tmp, err);
    if (rc == 0 && !job->opt->plan)
        rc = s2s_ckpt_rename_tree(tmp, out, err);
    if (rc < 0 && !job->opt->plan)
        s2s_ckpt_remove_tree(tmp, NULL);
    free(out);
    free(tmp);
    return rc;
}

static int read_config(struct job *job, struct s2s_error *err)
{
    if (!job->opt->config)
        return 0;
    json_error_t at;
    job->config = json_load_file(job->opt->config, JSON_REJECT_DUPLICATES, &at);
    if (!job->config)
        return s2s_error_set(err, at.line > 0 ? S2S_E_FORMAT : S2S_E_OPEN, "%s:%d: %s",
                             job->opt->config, at.line, at.text);
    job->config_text = json_dumps(job->config, JSON_INDENT(2));
    return 0;
}

static void say_done(const struct job *job, double start_s)
{
    struct rusage usage;
    char bytes[32], rate[32];
    double seconds = s2s_now_s() - start_s;
    if (job->opt->common.verbosity < 0)
        return;
    getrusage(RUSAGE_SELF, &usage);
    fprintf(stderr, "s2s-ckpt: %s: %zu tensors, %s in %.2f s (%s/s), peak memory %ld MiB\n",
            job->opt->out, job->n_tensors, ckpt_bytes_text(bytes, job->bytes), seconds,
            ckpt_bytes_text(rate, (int64_t)((double)job->bytes / (seconds > 0 ? seconds : 1))),
            usage.ru_maxrss / 1024);
}

static int run(struct job *job, struct s2s_error *err)
{
    double start_s = s2s_now_s();
    int rc = s2s_ckpt_open(&job->ckpt, job->opt->in, err);
    if (rc == 0 && job->opt->from && strcmp(job->opt->from, s2s_ckpt_format(job->ckpt)) != 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: is %s, not %s", job->opt->in,
                           s2s_ckpt_format(job->ckpt), job->opt->from);
    if (rc == 0)
        rc = read_config(job, err);
    if (rc == 0)
        rc = job->opt->to == TO_SAFETENSORS ? write_single(job, job->opt->out, err)
                                            : write_folder(job, err);
    s2s_progress_end(&job->progress);
    if (rc == 0 && !job->opt->plan)
        say_done(job, start_s);
    s2s_ckpt_close(job->ckpt);
    json_decref(job->config);
    json_decref(job->common);
    free(job->config_text);
    return rc;
}

static int start(struct options *opt, const struct argp *parser, int argc, char **argv,
                 struct s2s_error *err)
{
    if (s2s_parse_size(&opt->max_shard_bytes, DEFAULT_SHARD, err) < 0)
        S2S_BUG("%s", err->text);
    s2s_tool_parse(parser, argc, argv, opt);
    struct job job = {.opt = opt};
    job.how = (struct s2s_ckpt_write){.max_shard_bytes = opt->max_shard_bytes,
                                      .progress = add_progress,
                                      .ctx = &job.progress,
                                      .stop = &stop,
                                      .keep_object = opt->prune ? is_weight : NULL};
    catch_signals();
    return run(&job, err);
}

int ckpt_convert(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT};
    return start(&opt, &argp, argc, argv, err);
}

int ckpt_prune(int argc, char **argv, struct s2s_error *err)
{
    struct options opt = {.common = S2S_COMMON_DEFAULT, .to = TO_TORCH_DIST, .prune = true};
    return start(&opt, &prune_argp, argc, argv, err);
}
