/* Reading checkpoints, writing one: whole or not at all. */
#include "tools/ckpt/job.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/ckpt/ckpt_files.h"
#include "lib/ckpt/journal.h"
#include "lib/ckpt/to_dist.h"
#include "lib/ckpt/to_hf.h"
#include "lib/ckpt/to_megatron.h"
#include "lib/ckpt/to_nemo.h"
#include "lib/io/digest.h"
#include "lib/io/durable.h"
#include "lib/io/outfile.h"
#include "lib/mesh/mesh.h"

/* a rank that has little to write waits for the others; the launcher notices one that is gone */
#define LONGEST_WAIT_S (7 * 86400.0)

struct s2s_mesh *ckpt_mesh;

static bool is_weight(const char *name)
{
    return !s2s_ckpt_is_state(name);
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

static bool is_first(void)
{
    return s2s_mesh_rank(ckpt_mesh) == 0;
}

static int agree(int rc, struct s2s_error *err)
{
    return s2s_mesh_all_ok(ckpt_mesh, rc, err);
}

/* rank 0 speaks for all; the shares are about equal */
static void add_progress(void *ctx, int64_t bytes)
{
    s2s_progress_add(ctx, bytes * s2s_mesh_size(ckpt_mesh));
}

/* ---- the three outputs; all write to `tmp`, which the caller renames ---- */

struct job {
    const struct ckpt_job_options *opt;
    struct s2s_ckpt *ckpt, **others;
    size_t n_others;
    enum ckpt_output to;
    json_t *config, *common;
    char *config_text;
    char source[33]; /* s2s_ckpt_identity when it was opened */
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
    for (size_t i = 0; i < n && is_first(); i++)
        s2s_log(job->opt->strict ? S2S_LOG_ERROR : S2S_LOG_WARN, "convert",
                "in checkpoint but unused: %s", unused[i]);
    return n && job->opt->strict
               ? s2s_error_set(err, S2S_E_NOTFOUND,
                               "%zu tensors of the checkpoint are not used (--strict)", n)
               : 0;
}

static void show_plan(const struct s2s_ckpt_plan *plan, const char *folder)
{
    for (size_t i = 0; i < plan->n_targets && is_first(); i++) {
        const struct s2s_ckpt_target *t = &plan->targets[i];
        printf("%s%s", folder, *folder ? "/" : "");
        ckpt_print_name(t->name);
        printf("\t%s\t", s2s_dtype_name(t->dtype));
        ckpt_print_shape(t->shape, t->n_dims);
        printf("\t%lld\n", (long long)s2s_ckpt_target_bytes(t));
    }
}

/* ---- averaging ---- */

/* the other checkpoints must have the same weights; *plan then takes means */
static int add_others(struct job *job, struct s2s_ckpt_plan *plan, struct s2s_error *err)
{
    size_t n, n_wants = 0;
    const struct s2s_ckpt_tensor *tensors = s2s_ckpt_tensors(job->ckpt, &n);
    struct s2s_ckpt_want *wants = s2s_xcalloc(n + 1, sizeof *wants);
    int rc = 0;
    for (size_t i = 0; i < n; i++)
        if (is_weight(tensors[i].name))
            wants[n_wants++] = (struct s2s_ckpt_want){tensors[i].name, tensors[i].dtype,
                                                      tensors[i].n_dims, tensors[i].shape};
    for (size_t k = 0; k < job->n_others && rc == 0; k++) {
        rc = s2s_ckpt_check(job->others[k], wants, n_wants, NULL, err);
        tensors = s2s_ckpt_tensors(job->others[k], &n);
        for (size_t i = 0; i < n && rc == 0; i++)
            if (is_weight(tensors[i].name) && !s2s_ckpt_find(job->ckpt, tensors[i].name))
                rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s is in %s, but not in %s",
                                   tensors[i].name, s2s_ckpt_path(job->others[k]),
                                   s2s_ckpt_path(job->ckpt));
    }
    free(wants);
    plan->others = job->others;
    plan->n_others = job->n_others;
    return rc;
}

/* ---- the three ways to write ---- */

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
        if (job->n_others)
            rc = add_others(job, &out.parts[i].plan, err);
        count(job, &out.parts[i].plan);
        if (job->opt->plan)
            show_plan(&out.parts[i].plan, out.parts[i].folder);
    }
    rc = agree(rc, err);
    if (rc == 0 && !job->opt->plan) {
        begin_progress(job);
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
        if (!job->opt->only_weights || is_weight(tensors[i].name))
            s2s_ckpt_plan_copy(plan, tensors[i].name, &tensors[i]);
    if (job->opt->dtype)
        s2s_ckpt_plan_cast(plan, job->opt->dtype);
    if (rc == 0 && job->n_others)
        rc = add_others(job, plan, err);
    if (rc == 0)
        rc = s2s_ckpt_plan_seal(plan, err);
    if (rc == 0 && job->to == TO_SAFETENSORS)
        rc = s2s_ckpt_plan_for_safetensors(plan, err);
    count(job, plan);
    if (rc == 0 && job->opt->plan)
        show_plan(plan, "");
    return rc;
}

static int write_torch_dist(struct job *job, const char *tmp, struct s2s_error *err)
{
    struct s2s_ckpt_plan plan = {.source = NULL};
    int rc = agree(plan_all(job, &plan, err), err);
    if (rc == 0 && !job->opt->plan) {
        begin_progress(job);
        rc = s2s_ckpt_write_dist(&plan, tmp, &job->how, err);
    }
    s2s_ckpt_plan_release(&plan);
    return rc;
}

/* A file that was replaced while it was read would give half of one model and half of another. */
static int check_source(const struct job *job, struct s2s_error *err)
{
    char now[33];
    int rc = s2s_ckpt_identity(job->ckpt, now, err);
    if (rc == 0 && strcmp(now, job->source) != 0)
        rc = s2s_error_set(err, S2S_E_IO, "%s: was changed while it was read",
                           s2s_ckpt_path(job->ckpt));
    return rc;
}

static int write_single(struct job *job, const char *path, struct s2s_error *err)
{
    struct s2s_ckpt_plan plan = {.source = NULL};
    struct s2s_outfile *out = NULL;
    int rc = plan_all(job, &plan, err);
    if (rc == 0 && s2s_ckpt_reads(job->ckpt, path))
        rc = s2s_error_set(err, S2S_E_ARG, "%s: is what would be read: choose another OUT", path);
    if (rc == 0 && !job->opt->plan) {
        begin_progress(job);
        rc = s2s_outfile_open(&out, path, err);
    }
    if (rc == 0 && out)
        rc = s2s_ckpt_write_safetensors(&plan, 0, plan.n_targets, out, &job->how, err);
    if (rc == 0 && out)
        rc = s2s_ckpt_plan_verify(&plan, err);
    if (rc == 0 && out)
        rc = check_source(job, err);
    if (rc == 0 && out)
        rc = s2s_outfile_commit(out, err);
    else
        s2s_outfile_abort(out);
    s2s_ckpt_plan_release(&plan);
    return rc;
}

static int plan_nemo(struct job *job, struct s2s_nemo_output *nemo, struct s2s_error *err)
{
    struct s2s_nemo_options options = {.dtype = job->opt->dtype,
                                       .yaml = job->config ? NULL : job->config_text,
                                       .config = job->config,
                                       .tokenizer = job->opt->tokenizer,
                                       .without_tokenizer = job->opt->without_tokenizer};
    int rc = s2s_nemo_prepare(nemo, job->ckpt, &options, err);
    if (rc == 0)
        rc = report_unused(job, (const char *const *)nemo->unused, nemo->n_unused,
                           nemo->n_optimizer, err);
    if (rc == 0 && job->n_others)
        rc = add_others(job, &nemo->plan, err);
    if (rc == 0 && *nemo->family)
        s2s_info("convert", "name map: %s", nemo->family);
    count(job, &nemo->plan);
    if (rc == 0 && job->opt->plan)
        show_plan(&nemo->plan, "");
    return rc;
}

static int write_nemo(struct job *job, const char *path, struct s2s_error *err)
{
    struct s2s_nemo_output nemo;
    struct s2s_outfile *out = NULL;
    int rc = plan_nemo(job, &nemo, err);
    if (rc == 0 && s2s_ckpt_reads(job->ckpt, path))
        rc = s2s_error_set(err, S2S_E_ARG, "%s: is what would be read: choose another OUT", path);
    if (rc == 0 && !job->opt->plan) {
        begin_progress(job);
        rc = s2s_outfile_open(&out, path, err);
    }
    if (rc == 0 && out)
        rc = s2s_nemo_write(&nemo, out, &job->how, err);
    if (rc == 0 && out)
        rc = check_source(job, err);
    if (rc == 0 && out)
        rc = s2s_outfile_commit(out, err);
    else
        s2s_outfile_abort(out);
    s2s_nemo_release(&nemo);
    return rc;
}

/* ---- folders appear whole ---- */

/* Digest of all that decides the bytes, so that --resume takes no other conversion's files. */
static void resume_key(const struct job *job, char key[33])
{
    const struct ckpt_job_options *opt = job->opt;
    char map[33] = "";
    /* a map's text where it is a file */
    if (opt->map && access(opt->map, R_OK) == 0)
        (void)s2s_digest_file(map, opt->map, NULL);
    struct s2s_buf all = S2S_BUF_INIT;
    s2s_buf_printf(&all, "%s %s %s %s %d %d %lld %lld %d %lld %d %d %d ", S2S_VERSION, job->source,
                   map, opt->map ? opt->map : "", (int)job->to, (int)opt->dtype,
                   (long long)opt->max_shard_bytes, (long long)opt->n_files, (int)opt->layers,
                   (long long)opt->vocab_multiple, opt->keep_padding, opt->only_weights,
                   opt->merge_ranks);
    s2s_buf_printf(&all, "%s ", opt->part ? opt->part : "");
    s2s_buf_puts(&all, job->config_text ? job->config_text : "");
    s2s_xxh3_128_hex(key, all.data, all.len);
    s2s_buf_release(&all);
}

/* The folder beside OUT, with a journal; --resume leaves what it holds of the same conversion. */
static int begin_folder(struct job *job, const char *tmp, struct s2s_error *err)
{
    char key[33];
    int rc = 0;
    resume_key(job, key);
    if (is_first())
        rc = s2s_ckpt_journal_open(&job->how.journal, tmp, key, job->opt->resume, err);
    rc = agree(rc, err);
    if (rc == 0 && !is_first())
        rc = s2s_ckpt_journal_join(&job->how.journal, tmp, key, s2s_mesh_rank(ckpt_mesh), err);
    return agree(rc, err);
}

static int end_folder(const struct job *job, const char *tmp, const char *out,
                      struct s2s_error *err)
{
    int rc = check_source(job, err);
    if (rc == 0)
        rc = s2s_ckpt_journal_remove(job->how.journal, err);
    return rc < 0 ? rc : s2s_ckpt_rename_tree(tmp, out, err);
}

/* an empty folder may be replaced, anything else is somebody's */
static int check_free(const struct job *job, const char *out, struct s2s_error *err)
{
    struct stat st;
    if (lstat(out, &st) < 0 || (S_ISDIR(st.st_mode) && (job->opt->plan || rmdir(out) == 0)))
        return 0;
    int rc = s2s_error_set(err, S2S_E_ARG, "%s: is there already", out);
    return s2s_error_hint(err, rc, "choose another OUT, or remove it first");
}

/* Agreed. */
static int fill_folder(struct job *job, const char *tmp, const char *out, struct s2s_error *err)
{
    int rc = agree(is_first() ? check_free(job, out, err) : 0, err);
    if (rc == 0 && !job->opt->plan)
        rc = begin_folder(job, tmp, err);
    if (rc == 0)
        rc = agree(job->to == TO_HF ? write_hf(job, tmp, err) : write_torch_dist(job, tmp, err),
                   err);
    if (rc == 0 && !job->opt->plan && is_first())
        rc = end_folder(job, tmp, out, err);
    return agree(rc, err);
}

static int write_folder(struct job *job, struct s2s_error *err)
{
    size_t len = strlen(job->opt->out);
    while (len > 1 && job->opt->out[len - 1] == '/')
        len--;
    char *out = s2s_xstrndup(job->opt->out, len), *tmp = s2s_xasprintf("%s.s2s-partial", out);
    int rc = fill_folder(job, tmp, out, err);
    bool begun = job->how.journal && is_first();
    s2s_ckpt_journal_close(job->how.journal);
    job->how.journal = NULL;
    if (rc < 0 && begun && !job->opt->resume)
        s2s_ckpt_remove_tree(tmp, NULL);
    else if (rc < 0 && begun)
        s2s_error_hint(err, rc, "%s keeps what is done; the same command goes on from there", tmp);
    free(out);
    free(tmp);
    return rc;
}

/* a model_config.yaml is kept as it is; what NeMo needs of it is checked when it is written */
static int read_yaml(struct job *job, struct s2s_error *err)
{
    enum { MAX_YAML = 16 << 20 };
    FILE *file = fopen(job->opt->config, "re");
    if (!file)
        return s2s_error_errno(err, S2S_E_OPEN, "%s", job->opt->config);
    job->config_text = s2s_xcalloc(MAX_YAML + 1, 1);
    size_t len = fread(job->config_text, 1, MAX_YAML, file);
    int rc = 0;
    if (ferror(file))
        rc = s2s_error_errno(err, S2S_E_IO, "%s", job->opt->config);
    else if (!feof(file) || strlen(job->config_text) != len)
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: no text of at most 16 MiB", job->opt->config);
    fclose(file);
    return rc;
}

static bool is_yaml(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

static int read_config(struct job *job, struct s2s_error *err)
{
    if (!job->opt->config)
        return 0;
    if (job->to == TO_NEMO && is_yaml(job->opt->config))
        return read_yaml(job, err);
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
    if (job->opt->common.verbosity < 0 || !is_first())
        return;
    getrusage(RUSAGE_SELF, &usage);
    fprintf(stderr, "s2s-ckpt: %s: %zu tensors, %s in %.2f s (%s/s), peak memory %ld MiB\n",
            job->opt->out, job->n_tensors, ckpt_bytes_text(bytes, job->bytes), seconds,
            ckpt_bytes_text(rate, (int64_t)((double)job->bytes / (seconds > 0 ? seconds : 1))),
            usage.ru_maxrss / 1024);
}

static int open_one(struct job *job, const char *path, struct s2s_ckpt **ckpt,
                    struct s2s_error *err)
{
    int rc = s2s_ckpt_open(ckpt, path, err);
    if (rc == 0 && job->opt->from && strcmp(job->opt->from, s2s_ckpt_format(*ckpt)) != 0)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: is %s, not %s", path, s2s_ckpt_format(*ckpt),
                             job->opt->from);
    if (rc == 0 && (job->opt->merge_ranks || job->opt->to == TO_HF))
        rc = s2s_ckpt_merge_ranks(*ckpt, err);
    if (rc == 0 && job->opt->part)
        rc = s2s_ckpt_select(*ckpt, job->opt->part, err);
    return rc;
}

/* optimizer states that only the job that wrote them can take apart */
static int check_optimizer(const struct job *job, struct s2s_error *err)
{
    static const char *const refused[] = {"dp_zero_gather_scatter", "fully_sharded_bucket_space"};
    const json_t *common = s2s_ckpt_common(job->ckpt);
    const char *type = json_string_value(json_object_get(
        json_object_get(common, "content_metadata"), "distrib_optim_sharding_type"));
    if (!type)
        type = json_string_value(
            json_object_get(json_object_get(common, "optimizer"), "param_state_sharding_type"));
    for (size_t i = 0; type && i < sizeof refused / sizeof *refused; i++)
        if (strcmp(type, refused[i]) == 0) {
            int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                                   "%s: its optimizer is saved as %s, which cannot be resharded",
                                   s2s_ckpt_path(job->ckpt), type);
            return s2s_error_hint(err, rc, "s2s-ckpt prune leaves the optimizer out");
        }
    if (type && strcmp(type, "dp_reshardable") == 0)
        s2s_info("reshard",
                 "the optimizer is %s: its buckets are kept as they are, for the same "
                 "tensor and pipeline parallelism",
                 type);
    return 0;
}

static enum ckpt_output same_as(const struct s2s_ckpt *ckpt)
{
    const char *format = s2s_ckpt_format(ckpt);
    return strncmp(format, "hf", 2) == 0        ? TO_HF
           : strcmp(format, "safetensors") == 0 ? TO_SAFETENSORS
                                                : TO_TORCH_DIST;
}

static int open_all(struct job *job, struct s2s_error *err)
{
    int rc = open_one(job, job->opt->in[0], &job->ckpt, err);
    job->others = s2s_xcalloc(job->opt->n_in, sizeof(struct s2s_ckpt *));
    for (size_t i = 1; i < job->opt->n_in && rc == 0; i++)
        rc = open_one(job, job->opt->in[i], &job->others[job->n_others++], err);
    if (rc == 0)
        rc = s2s_ckpt_identity(job->ckpt, job->source, err);
    if (rc == 0)
        job->to = job->opt->to ? job->opt->to : same_as(job->ckpt);
    if (rc == 0 && job->opt->reshard)
        rc = check_optimizer(job, err);
    return rc;
}

static void close_all(struct job *job)
{
    s2s_ckpt_close(job->ckpt);
    for (size_t i = 0; i < job->n_others; i++)
        s2s_ckpt_close(job->others[i]);
    free(job->others);
    json_decref(job->config);
    json_decref(job->common);
    free(job->config_text);
}

/* ranks of an `mpirun -n N` share the work; without a launcher it is one process's */
static int launch(const struct ckpt_job_options *opt, struct s2s_error *err)
{
    int rc = s2s_mesh_open(&ckpt_mesh, NULL, err);
    if (rc < 0)
        return rc;
    s2s_mesh_set_timeout(ckpt_mesh, LONGEST_WAIT_S);
    if (!is_first())
        s2s_log_set_verbosity(opt->common.verbosity > 1 ? opt->common.verbosity : -1);
    return 0;
}

int ckpt_job_run(struct ckpt_job_options *opt, struct s2s_error *err)
{
    struct job job = {.opt = opt};
    double start_s = s2s_now_s();
    job.how = (struct s2s_ckpt_write){.max_shard_bytes = opt->max_shard_bytes,
                                      .n_files = opt->n_files,
                                      .progress = add_progress,
                                      .ctx = &job.progress,
                                      .stop = &stop,
                                      .keep_object = opt->only_weights ? is_weight : NULL};
    catch_signals();
    s2s_durable_set(!opt->no_sync);
    int rc = launch(opt, err);
    if (rc < 0)
        return rc;
    job.how.mesh = ckpt_mesh;
    rc = open_all(&job, err);
    if (rc == 0)
        rc = read_config(&job, err);
    rc = agree(rc, err);
    if (rc == 0 && job.to != TO_SAFETENSORS && job.to != TO_NEMO)
        rc = write_folder(&job, err);
    else if (rc == 0) /* one file is one rank's work */
        rc = agree(!is_first()         ? 0
                   : job.to == TO_NEMO ? write_nemo(&job, opt->out, err)
                                       : write_single(&job, opt->out, err),
                   err);
    s2s_progress_end(&job.progress);
    if (rc < 0 && job.ckpt && !strstr(err->text, s2s_ckpt_path(job.ckpt)) &&
        !strstr(err->text, opt->out))
        s2s_error_add(err, rc, "%s", s2s_ckpt_path(job.ckpt));
    if (rc == 0 && !opt->plan)
        say_done(&job, start_s);
    close_all(&job);
    return rc;
}
