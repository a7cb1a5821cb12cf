/* A job from its begin to its end: what was asked for is read, one output written, whole or not at
 * all. */
#include <signal.h>
#include <stdatomic.h>

#include "lib/base/signals.h"
#include "lib/io/durable.h"
#include "lib/mesh/mesh.h"
#include "tools/ckpt/job_internal.h"

bool ckpt_job_is_weight(const char *name)
{
    return !s2s_ckpt_is_state(name);
}

static atomic_int stop; /* the signal that came */

static void on_signal(int signal_number)
{
    stop = signal_number;
}

/* For an output folder, signals go through ordinary clean-up, so that no partial folder remains. A
 * file has no name until it is complete, so there a signal ends the program at once, even while
 * waiting for the reader of a pipe. */
void ckpt_job_catch_signals(void)
{
    s2s_catch_fatal_signals(on_signal);
}

void ckpt_job_mind_readers(void)
{
    signal(SIGPIPE, SIG_DFL);
}

void ckpt_end_as_signalled(int rc)
{
    if (rc != S2S_E_INTERRUPTED || !stop)
        return;
    signal(stop, SIG_DFL);
    raise(stop);
}

/* Rank 0 reports for all; ranks write about equally much. */
static void add_progress(void *ctx, int64_t bytes)
{
    s2s_progress_add(ctx, bytes * s2s_mesh_size(ckpt_mesh));
}

/* Strips trailing slashes: "out/" is "out". Gives: free. */
static char *without_slashes(const char *path)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    return s2s_xstrndup(path, len);
}

/* Does the text mention this path, one inside it, or its .s2s-partial? Matches whole words, as a
 * short path may be part of a word. */
static bool speaks_of(const char *text, const char *path)
{
    const size_t len = strlen(path);
    for (const char *at = strstr(text, path); at; at = strstr(at + 1, path))
        if ((at == text || strchr(" \"(", at[-1])) &&
            (strchr(":/,\")", at[len]) || s2s_starts_with(at + len, ".s2s-")))
            return true;
    return false;
}

/* Does the error mention a file or folder already? */
static bool says_where(const struct job *job, const char *text)
{
    const struct ckpt_job_options *opt = job->opt;
    const char *out = strcmp(job->out, "-") == 0 ? "stdout" : job->out;
    const char *const paths[] = {s2s_ckpt_path(job->ckpt), out, opt->config, opt->tokenizer,
                                 opt->map};
    bool says = false;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        says |= paths[i] && *paths[i] && speaks_of(text, paths[i]);
    for (size_t i = 0; i < opt->n_in; i++)
        says |= speaks_of(text, opt->in[i]);
    return says;
}

/* The file that an error is about which mentions none: IN, or the YAML of --config, which is used
 * as IN's model_config.yaml. */
static const char *place_of(const struct job *job, const char *text)
{
    const bool is_yaml = job->config_text && !job->config;
    return is_yaml && s2s_starts_with(text, "model_config.yaml") ? job->config_path
                                                                 : s2s_ckpt_path(job->ckpt);
}

int ckpt_job_run(struct ckpt_job_options *opt, struct s2s_error *err)
{
    struct job job = {.opt = opt, .out = without_slashes(opt->out)};
    double start_s = s2s_now_s();
    job.how = (struct s2s_ckpt_write){.max_shard_bytes = opt->max_shard_bytes,
                                      .n_files = opt->n_files,
                                      .progress = add_progress,
                                      .ctx = &job.progress,
                                      .stop = &stop,
                                      .n_infinite = &job.n_infinite,
                                      .keep_object = opt->only_weights ? ckpt_job_is_weight : NULL};
    s2s_durable_set(!opt->no_sync);
    int rc = ckpt_launch(&opt->common, err);
    job.how.mesh = ckpt_mesh;
    if (rc < 0)
        goto out;
    rc = ckpt_job_open(&job, err);
    if (rc == 0)
        rc = ckpt_job_read_config(&job, err);
    rc = ckpt_agree(rc, err);
    if (rc == 0 && ckpt_job_is_folder(&job))
        rc = ckpt_job_write_folder(&job, err);
    else if (rc == 0)
        rc = ckpt_agree(ckpt_is_first() ? ckpt_job_fill(&job, NULL, err) : 0, err);
    s2s_progress_end(&job.progress);
    if (rc < 0 && job.ckpt && !says_where(&job, err->text))
        s2s_error_add(err, rc, "%s", place_of(&job, err->text));
    if (rc == 0) {
        s2s_comm_all_reduce(s2s_mesh_world(ckpt_mesh), &job.n_infinite, 1, S2S_I64, S2S_GROUP_SUM);
        ckpt_job_say_done(&job, start_s);
    }
out:
    ckpt_job_close(&job);
    return rc;
}
