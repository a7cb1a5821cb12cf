/* Reading checkpoints, writing one: whole or not at all. */
#include <limits.h>
#include <signal.h>

#include "lib/base/utf8.h"
#include "lib/io/durable.h"
#include "lib/mesh/mesh.h"
#include "tools/ckpt/job_internal.h"

bool ckpt_job_is_weight(const char *name)
{
    return !s2s_ckpt_is_state(name);
}

/* ---- stopping and progress ---- */

static volatile int stop;

static void on_signal(int signal_number)
{
    stop = 1;
}

/* A folder is left through the ordinary clean-up, so that no half one stays. A file has no name
 * before it is whole: there a signal ends us at once, also where we wait for the reader of a pipe.
 */
void ckpt_job_catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal}, now;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) /* nohup's */
            sigaction(signals[i], &action, NULL);
}

/* rank 0 speaks for all; the shares are about equal */
static void add_progress(void *ctx, int64_t bytes)
{
    s2s_progress_add(ctx, bytes * s2s_mesh_size(ckpt_mesh));
}

/* ---- reading ---- */

static struct s2s_ckpt *input(const struct job *job, size_t i)
{
    return i == 0 ? job->ckpt : job->others[i - 1];
}

static int identify_all(struct job *job, struct s2s_error *err)
{
    int rc = 0;
    job->sources = s2s_xcalloc(job->n_others + 1, sizeof *job->sources);
    for (size_t i = 0; i <= job->n_others && rc == 0; i++)
        rc = s2s_ckpt_identity(input(job, i), job->sources[i], err);
    return rc;
}

int ckpt_job_check_source(const struct job *job, struct s2s_error *err)
{
    char now[33];
    int rc = 0;
    for (size_t i = 0; i <= job->n_others && rc == 0; i++) {
        rc = s2s_ckpt_identity(input(job, i), now, err);
        if (rc == 0 && strcmp(now, job->sources[i]) != 0)
            rc = s2s_error_set(err, S2S_E_IO, "%s: was changed while it was read",
                               s2s_ckpt_path(input(job, i)));
    }
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
    FILE *file = fopen(job->opt->config, "re");
    if (!file)
        return s2s_error_errno(err, S2S_E_OPEN, "%s", job->opt->config);
    job->config = json_loadf(file, JSON_REJECT_DUPLICATES, &at);
    fclose(file);
    if (!job->config)
        return s2s_error_set(err, S2S_E_FORMAT, "%s:%d: %s", job->opt->config, at.line, at.text);
    job->config_text = json_dumps(job->config, JSON_INDENT(2));
    return 0;
}

struct left_out {
    size_t n_state, n_objects, n_ranks;
    bool common;
};

/* What the source has and the output has not. */
static struct left_out count_left_out(const struct job *job)
{
    size_t n;
    const struct s2s_ckpt_object *objects = s2s_ckpt_objects(job->ckpt, &n);
    struct left_out left = {.n_state = job->n_state,
                            .n_ranks = s2s_ckpt_rank_states(job->ckpt),
                            .common = job->to == TO_SAFETENSORS &&
                                      json_object_size(s2s_ckpt_common(job->ckpt)) > 0};
    for (size_t i = 0; i < n; i++)
        left.n_objects += job->to != TO_TORCH_DIST ||
                          (job->how.keep_object && !job->how.keep_object(objects[i].name));
    return left;
}

/* "; left out: ..", or "". Gives: free. */
static char *left_out_text(const struct left_out *left)
{
    struct s2s_buf text = S2S_BUF_INIT;
    if (left->n_state)
        s2s_buf_printf(&text, ", %zu tensors of optimizer and other state", left->n_state);
    if (left->n_objects)
        s2s_buf_printf(&text, ", %zu byte objects", left->n_objects);
    if (left->n_ranks)
        s2s_buf_printf(&text, ", the optimizer of %zu rank folders", left->n_ranks);
    if (left->common)
        s2s_buf_puts(&text, ", the common state");
    char *out = s2s_xasprintf("%s%s", text.len ? "; left out: " : "",
                              text.len ? text.data + strlen(", ") : "");
    s2s_buf_release(&text);
    return out;
}

static const char *format_name(enum ckpt_output to)
{
    static const char *const names[] = {[TO_HF] = "hf",
                                        [TO_TORCH_DIST] = "torch_dist",
                                        [TO_SAFETENSORS] = "safetensors",
                                        [TO_NEMO] = "nemo"};
    return names[to];
}

static void print_done(const struct job *job, const struct left_out *left, double seconds)
{
    printf("{\"out\": ");
    ckpt_print_json_text(job->opt->out);
    printf(", \"format\": \"%s\", \"tensors\": %zu, \"bytes\": %lld, \"seconds\": %.3f, "
           "\"peak_memory_bytes\": %lld, \"left_out\": {\"state_tensors\": %zu, \"objects\": %zu, "
           "\"rank_optimizers\": %zu, \"common_state\": %s}}\n",
           format_name(job->to), job->n_tensors, (long long)job->bytes, seconds,
           (long long)s2s_peak_memory_bytes(), left->n_state, left->n_objects, left->n_ranks,
           left->common ? "true" : "false");
}

static void say_done(const struct job *job, double start_s)
{
    char bytes[32], rate[32];
    double seconds = s2s_now_s() - start_s;
    if (!ckpt_is_first())
        return;
    const struct left_out left = count_left_out(job);
    if (job->opt->common.json)
        print_done(job, &left, seconds);
    if (job->opt->common.verbosity < 0)
        return;
    char *rest = left_out_text(&left), out[PATH_MAX];
    s2s_utf8_show_text(out, sizeof out, job->opt->out);
    fprintf(stderr, "s2s-ckpt: %s: %zu tensors, %s in %.2f s (%s/s), peak memory %lld MiB%s\n", out,
            job->n_tensors, ckpt_bytes_text(bytes, job->bytes), seconds,
            ckpt_bytes_text(rate, (int64_t)((double)job->bytes / (seconds > 0 ? seconds : 1))),
            (long long)s2s_peak_memory_bytes() >> 20, rest);
    free(rest);
}

/* Hugging Face's formats, a part of a model, and names that are mapped have no optimizer. */
static bool keeps_optimizer(const struct ckpt_job_options *opt)
{
    return (opt->to == TO_TORCH_DIST || opt->to == TO_SAFETENSORS ||
            (opt->to == TO_NONE && opt->reshard)) &&
           !opt->only_weights && !opt->part && !opt->map;
}

static int open_one(struct job *job, const char *path, struct s2s_ckpt **ckpt,
                    struct s2s_error *err)
{
    int rc = s2s_ckpt_open(ckpt, path, err);
    if (rc == 0 && job->opt->from && strcmp(job->opt->from, s2s_ckpt_format(*ckpt)) != 0)
        return s2s_error_set(err, S2S_E_FORMAT, "%s: is %s, not %s", path, s2s_ckpt_format(*ckpt),
                             job->opt->from);
    if (rc == 0 && (job->opt->merge_ranks || job->opt->to == TO_HF))
        rc = s2s_ckpt_merge_ranks(*ckpt, keeps_optimizer(job->opt), err);
    if (rc == 0 && job->opt->part)
        rc = s2s_ckpt_select(*ckpt, job->opt->part, err);
    return rc;
}

/* How the optimizer's tensors are cut, or NULL. Of several optimizers (dense and expert layers)
 * each says it, under its number. */
static const char *sharding_type(const json_t *common)
{
    static const char key[] = "param_state_sharding_type";
    const json_t *optimizer = json_object_get(common, "optimizer");
    const char *type = json_string_value(json_object_get(
        json_object_get(common, "content_metadata"), "distrib_optim_sharding_type"));
    const char *number;
    json_t *one;
    if (!type)
        type = json_string_value(json_object_get(optimizer, key));
    json_object_foreach((json_t *)optimizer, number, one)
    {
        if (!type)
            type = json_string_value(json_object_get(one, key));
    }
    return type;
}

/* optimizer states that only the job that wrote them can take apart */
static int check_optimizer(const struct job *job, struct s2s_error *err)
{
    static const char *const refused[] = {"dp_zero_gather_scatter", "fully_sharded_bucket_space"};
    const char *type = sharding_type(s2s_ckpt_common(job->ckpt));
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

static enum ckpt_output same_as(const struct job *job)
{
    const char *format = s2s_ckpt_format(job->ckpt);
    return strncmp(format, "hf", 2) == 0                       ? TO_HF
           : strcmp(format, "safetensors") == 0                ? TO_SAFETENSORS
           : strcmp(format, "nemo") == 0 && !job->opt->reshard ? TO_NEMO
                                                               : TO_TORCH_DIST;
}

/* Objects that hold tensors which no reader takes; the reader has named each. */
static int check_lost(const struct job *job, struct s2s_error *err)
{
    size_t n_tensors, n, n_lost = 0;
    const struct s2s_ckpt_object *objects = s2s_ckpt_objects(job->ckpt, &n), *first = NULL;
    s2s_ckpt_tensors(job->ckpt, &n_tensors);
    for (size_t i = 0; i < n; i++) {
        if (!objects[i].lost || !ckpt_job_is_weight(objects[i].name))
            continue;
        first = first ? first : &objects[i];
        n_lost++;
    }
    if (!n_lost || (n_tensors && !job->opt->strict))
        return 0;
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: %s is a %s, of which no tensor is read%s",
                           s2s_ckpt_path(job->ckpt), first->name, first->lost,
                           n_tensors ? " (--strict)" : "");
    return n_tensors ? rc
                     : s2s_error_hint(err, rc, "save the state_dict() of a module, dense tensors");
}

static int open_all(struct job *job, struct s2s_error *err)
{
    int rc = open_one(job, job->opt->in[0], &job->ckpt, err);
    job->others = s2s_xcalloc(job->opt->n_in, sizeof(struct s2s_ckpt *));
    for (size_t i = 1; i < job->opt->n_in && rc == 0; i++)
        rc = open_one(job, job->opt->in[i], &job->others[job->n_others++], err);
    if (rc == 0)
        rc = check_lost(job, err);
    if (rc == 0)
        rc = identify_all(job, err);
    if (rc == 0)
        job->to = job->opt->to ? job->opt->to : same_as(job);
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
    free(job->sources);
    json_decref(job->config);
    json_decref(job->common);
    json_decref(job->metadata);
    free(job->config_text);
}

/* does the message name OUT, with or without the slashes behind it? */
static bool names_out(const struct job *job, const struct s2s_error *err)
{
    size_t len = strlen(job->opt->out);
    while (len > 1 && job->opt->out[len - 1] == '/')
        len--;
    char *out = s2s_xstrndup(job->opt->out, len);
    bool named = strstr(err->text, out) != NULL;
    free(out);
    return named;
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
                                      .keep_object = opt->only_weights ? ckpt_job_is_weight : NULL};
    s2s_durable_set(!opt->no_sync);
    int rc = ckpt_launch(&opt->common, err);
    if (rc < 0)
        return rc;
    job.how.mesh = ckpt_mesh;
    rc = open_all(&job, err);
    if (rc == 0)
        rc = read_config(&job, err);
    rc = ckpt_agree(rc, err);
    if (rc == 0 && job.to != TO_SAFETENSORS && job.to != TO_NEMO)
        rc = ckpt_job_write_folder(&job, err);
    else if (rc == 0)
        rc = ckpt_agree(ckpt_is_first() ? ckpt_job_write_file(&job, err) : 0, err);
    s2s_progress_end(&job.progress);
    if (rc < 0 && job.ckpt && !strstr(err->text, s2s_ckpt_path(job.ckpt)) && !names_out(&job, err))
        s2s_error_add(err, rc, "%s", s2s_ckpt_path(job.ckpt));
    if (rc == 0 && !opt->plan)
        say_done(&job, start_s);
    else if (rc == 0 && opt->common.json)
        ckpt_job_end_plan(&job, format_name(job.to));
    close_all(&job);
    return rc;
}
