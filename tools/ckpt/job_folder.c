/* Output folders appear complete or not at all, and an interrupted one can be resumed. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/ckpt/ckpt_files.h"
#include "lib/ckpt/write/journal.h"
#include "lib/io/digest.h"
#include "lib/io/temps.h"
#include "lib/mesh/mesh.h"
#include "tools/ckpt/job_internal.h"

/* Digest of everything that determines the output, so that --resume does not reuse another
 * conversion's files. */
static void resume_key(const struct job *job, char key[33])
{
    const struct ckpt_job_options *opt = job->opt;
    char map[33] = "";
    struct stat st;
    /* a map file's contents; an invalid one is refused when parsed */
    if (opt->map && stat(opt->map, &st) == 0 && S_ISREG(st.st_mode))
        (void)s2s_digest_file(map, opt->map, NULL);
    struct s2s_buf all = S2S_BUF_INIT;
    s2s_buf_puts(&all, S2S_VERSION);
    for (size_t i = 0; i <= job->n_others; i++)
        s2s_buf_printf(&all, " %s", job->sources[i]);
    s2s_buf_printf(&all, " %s %s %d %d %lld %lld %d %lld %d %d %d ", map, opt->map ? opt->map : "",
                   (int)job->to, (int)opt->dtype, (long long)opt->max_shard_bytes,
                   (long long)opt->n_files, opt->layers_given ? (int)opt->layers : -1,
                   (long long)opt->vocab_multiple, opt->keep_padding, opt->only_weights,
                   opt->merge_ranks);
    s2s_buf_printf(&all, "%s ", opt->part ? opt->part : "");
    s2s_buf_puts(&all, job->config_text ? job->config_text : "");
    s2s_xxh3_128_hex(key, all.data, all.len);
    s2s_buf_release(&all);
}

/* Creates the temporary folder beside OUT, with a journal; with --resume keeps what it has of the
 * same conversion. */
static int begin_folder(struct job *job, const char *tmp, struct s2s_error *err)
{
    const bool resume = job->opt->resume, first = ckpt_is_first();
    char key[33];
    int rc = 0;
    resume_key(job, key);
    ckpt_job_catch_signals();
    /* one that is there may be another run's until the journal is ours */
    if (first && !resume && access(tmp, F_OK) < 0)
        job->temp = s2s_temp_add(tmp, true);
    if (first)
        rc = s2s_ckpt_journal_open(&job->how.journal, tmp, key, resume, err);
    if (rc < 0) {
        s2s_temp_drop(job->temp);
        job->temp = -1;
    }
    rc = ckpt_agree(rc, err);
    /* whichever rank runs out of memory */
    if (rc == 0 && !resume && job->temp < 0)
        job->temp = s2s_temp_add(tmp, true);
    if (rc == 0 && !first)
        rc = s2s_ckpt_journal_join(&job->how.journal, tmp, key, s2s_mesh_rank(ckpt_mesh), err);
    if (rc == 0)
        s2s_ckpt_journal_count(job->how.journal, &job->n_infinite);
    return ckpt_agree(rc, err);
}

static bool is_empty(const char *folder)
{
    DIR *dir = opendir(folder);
    int rc = 0;
    const bool empty = dir && !s2s_ckpt_next_entry(dir, folder, &rc, NULL) && rc == 0;
    if (dir)
        closedir(dir);
    return empty;
}

/* An empty folder may be one that no rename replaces: that is to be known before hours of writing.
 */
static bool is_fixed(const char *folder)
{
    struct statx st;
    const char *slash = strrchr(folder, '/'), *name = slash ? slash + 1 : folder;
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
           (statx(AT_FDCWD, folder, AT_SYMLINK_NOFOLLOW, 0, &st) == 0 &&
            (st.stx_attributes & STATX_ATTR_MOUNT_ROOT));
}

/* OUT must not exist, or be an empty folder, which is replaced at the end. */
static int check_free(const struct job *job, struct s2s_error *err)
{
    struct stat st;
    if (lstat(job->out, &st) < 0 || (S_ISDIR(st.st_mode) && job->opt->plan))
        return 0;
    if (S_ISDIR(st.st_mode) && is_empty(job->out)) {
        if (!is_fixed(job->out))
            return 0;
        int fixed = s2s_error_set(err, S2S_E_ARG, "%s: a mount point or \".\" cannot be replaced",
                                  job->out);
        return s2s_error_hint(err, fixed, "name a new folder in it");
    }
    int rc = s2s_error_set(err, S2S_E_ARG, "%s: already exists", job->out);
    return s2s_error_hint(err, rc, "choose another OUT or remove it first");
}

/* Removes the journal when only the rename is left; until then --resume can use it. */
static int end_folder(const struct job *job, const char *tmp, struct s2s_error *err)
{
    int rc = ckpt_job_check_source(job, err);
    if (rc == 0)
        rc = check_free(job, err); /* again, as it may have been hours */
    if (rc == 0)
        rc = s2s_ckpt_journal_remove(job->how.journal, err);
    if (rc == 0)
        (void)rmdir(job->out); /* removes an empty folder; otherwise the rename reports it */
    if (rc < 0)
        return rc;
    rc = s2s_ckpt_rename_tree(tmp, job->out, err);
    if (rc < 0 && job->opt->resume && access(tmp, F_OK) == 0)
        s2s_error_hint(err, rc, "all is written: rename %s yourself", tmp);
    return rc;
}

/* The result is agreed among ranks. */
static int fill_folder(struct job *job, const char *tmp, struct s2s_error *err)
{
    int rc = ckpt_agree(ckpt_is_first() ? check_free(job, err) : 0, err);
    if (rc == 0 && !job->opt->plan)
        rc = begin_folder(job, tmp, err);
    if (rc == 0)
        rc = ckpt_agree(ckpt_job_fill(job, tmp, err), err);
    if (rc == 0 && !job->opt->plan && ckpt_is_first())
        rc = end_folder(job, tmp, err);
    return ckpt_agree(rc, err);
}

int ckpt_job_write_folder(struct job *job, struct s2s_error *err)
{
    if (strcmp(job->opt->out, "-") == 0) {
        int refused = s2s_error_set(err, S2S_E_ARG, "OUT is a folder, which stdout cannot be");
        return s2s_error_hint(err, refused, "name it");
    }
    char *tmp = s2s_xasprintf("%s.s2s-partial", job->out);
    job->temp = -1;
    int rc = fill_folder(job, tmp, err);
    const bool begun = job->how.journal && ckpt_is_first();
    if (rc < 0 && begun && !job->opt->resume)
        s2s_ckpt_journal_discard(job->how.journal);
    else if (rc < 0 && begun && access(tmp, F_OK) == 0)
        s2s_error_hint(err, rc, "%s keeps what is done; the same command continues from there",
                       tmp);
    s2s_temp_drop(job->temp);
    s2s_ckpt_journal_close(job->how.journal);
    job->how.journal = NULL;
    ckpt_job_mind_readers();
    free(tmp);
    return rc;
}
