/* The folder that contains torch_dist checkpoints: lists and removes them, and publishes a new one.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/ckpt_files.h"
#include "lib/ckpt/file.h"
#include "lib/ckpt/folder.h"
#include "lib/ckpt/names.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/dist.h"
#include "lib/ckpt/write/dist_internal.h"
#include "lib/ckpt/write/manifest.h"

static char *final_dir(const char *root, int64_t iteration)
{
    return iteration == S2S_DIST_RELEASE ? s2s_xasprintf("%s/release", root)
                                         : s2s_xasprintf("%s/iter_%07" PRId64, root, iteration);
}

char *ckpt_dist_tmp_dir(const char *root, int64_t iteration)
{
    char *dir = final_dir(root, iteration);
    char *tmp = s2s_xasprintf("%s.tmp", dir);
    free(dir);
    return tmp;
}

int s2s_dist_open(struct s2s_dist_writer **out, const char *root, int64_t iteration, int rank,
                  struct s2s_error *err)
{
    char *dir = ckpt_dist_tmp_dir(root, iteration);
    int rc = s2s_dist_open_dir(out, dir, rank, err);
    free(dir);
    return rc;
}

/* The iteration of "iter_0001000" + suffix; -1 for other names. */
static int64_t iteration_of(const char *name, const char *suffix)
{
    char text[32];
    size_t len = strlen(name), suffix_len = strlen(suffix);
    int64_t iteration;
    if (!s2s_starts_with(name, "iter_") || len < 12 + suffix_len || len >= sizeof text ||
        !s2s_ends_with(name, suffix))
        return -1;
    snprintf(text, sizeof text, "%.*s", (int)(len - suffix_len - 5), name + 5);
    return s2s_parse_i64(&iteration, text, 0, INT64_MAX, NULL) < 0 ? -1 : iteration;
}

/* Is it a folder that a killed save of a release leaves? suffix: ".tmp" or ".old". */
static bool is_release(const char *name, const char *suffix)
{
    return *suffix && s2s_starts_with(name, "release") && strcmp(name + 7, suffix) == 0;
}

/* Lists the paths of checkpoints in root with this suffix, sorted. Gives: ckpt_free_list. */
static int list_iterations(const char *root, const char *suffix, char ***names, size_t *n,
                           struct s2s_error *err)
{
    struct dirent **entries;
    size_t cap = 0;
    *names = NULL;
    *n = 0;
    int n_entries = scandir(root, &entries, NULL, alphasort);
    if (n_entries < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "%s", root);
    for (int i = 0; i < n_entries; i++) {
        if (iteration_of(entries[i]->d_name, suffix) >= 0 ||
            is_release(entries[i]->d_name, suffix)) {
            s2s_grow(names, *n, &cap, sizeof **names);
            (*names)[(*n)++] = s2s_xasprintf("%s/%s", root, entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
    return 0;
}

int s2s_dist_clean(const char *root, struct s2s_error *err)
{
    char **names;
    size_t n;
    if (access(root, F_OK) < 0 && errno == ENOENT)
        return 0;
    int rc = list_iterations(root, ".tmp", &names, &n, err);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = s2s_ckpt_remove_tree(names[i], err);
    ckpt_free_list(names, n);
    if (rc < 0 || (rc = list_iterations(root, ".old", &names, &n, err)) < 0)
        return rc;
    for (size_t i = 0; i < n && rc == 0; i++) {
        char *name = s2s_xstrndup(names[i], strlen(names[i]) - strlen(".old"));
        if (access(name, F_OK) == 0)
            rc = s2s_ckpt_remove_tree(names[i], err);
        else if (rename(names[i], name) < 0)
            rc = s2s_error_errno(err, S2S_E_IO, "%s: rename", names[i]);
        free(name);
    }
    ckpt_free_list(names, n);
    return rc;
}

static int make_dirs(const char *path, struct s2s_error *err)
{
    char *copy = s2s_xstrdup(path);
    int rc = 0;
    for (char *slash = copy; rc == 0 && slash;) {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = 0;
        if (mkdir(copy, 0777) < 0 && errno != EEXIST)
            rc = s2s_error_errno(err, S2S_E_IO, "%s: cannot create the folder", copy);
        if (slash)
            *slash = '/';
    }
    free(copy);
    return rc;
}

int s2s_dist_begin(const char *root, int64_t iteration, struct s2s_error *err)
{
    int rc = make_dirs(root, err);
    if (rc == 0)
        rc = s2s_dist_clean(root, err);
    if (rc < 0)
        return rc;
    char *dir = ckpt_dist_tmp_dir(root, iteration);
    if (mkdir(dir, 0777) < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: cannot create the folder", dir);
    free(dir);
    return rc;
}

void s2s_dist_abort(const char *root, int64_t iteration)
{
    struct s2s_error err = S2S_ERROR_INIT;
    char *dir = ckpt_dist_tmp_dir(root, iteration);
    if (s2s_ckpt_remove_tree(dir, &err) < 0)
        s2s_warn("ckpt", "%s", err.text);
    free(dir);
}

static int replace_tracker(const char *root, int64_t iteration, struct s2s_error *err)
{
    static const char name[] = CKPT_TRACKER ".tmp";
    char text[32], *tmp = s2s_xasprintf("%s/%s", root, name);
    char *path = s2s_xasprintf("%s/" CKPT_TRACKER, root);
    int len = iteration == S2S_DIST_RELEASE ? snprintf(text, sizeof text, "release")
                                            : snprintf(text, sizeof text, "%" PRId64, iteration);
    int rc = ckpt_file_put(root, name, text, (size_t)len, err);
    if (rc == 0 && rename(tmp, path) < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: rename", path);
    if (rc == 0)
        rc = ckpt_sync_dir(root, err);
    free(tmp);
    free(path);
    return rc;
}

/* Renames tmp to dir. An existing checkpoint is exchanged atomically where the file system supports
 * it; otherwise it is moved aside first (s2s_dist_clean restores it after a crash in between). */
static int rename_dir(const char *tmp, const char *dir, struct s2s_error *err)
{
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, dir, RENAME_NOREPLACE) == 0)
        return 0;
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, dir, RENAME_EXCHANGE) == 0)
        return s2s_ckpt_remove_tree(tmp, err);
    char *old = s2s_xasprintf("%s.old", dir);
    int rc = 0;
    if (rename(dir, old) < 0 && errno != ENOENT)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: rename", dir);
    else if (rename(tmp, dir) < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: rename", tmp);
    else
        rc = s2s_ckpt_remove_tree(old, err);
    free(old);
    return rc;
}

int ckpt_dist_publish(const char *root, int64_t iteration, struct s2s_error *err)
{
    char *tmp = ckpt_dist_tmp_dir(root, iteration);
    char *dir = final_dir(root, iteration);
    int rc = rename_dir(tmp, dir, err);
    if (rc == 0)
        rc = ckpt_sync_dir(root, err);
    if (rc == 0)
        rc = replace_tracker(root, iteration, err);
    free(tmp);
    free(dir);
    return rc;
}

int s2s_dist_commit(const char *root, int64_t iteration, const struct s2s_buf *items,
                    size_t n_ranks, const json_t *common, struct s2s_error *err)
{
    char *tmp = ckpt_dist_tmp_dir(root, iteration);
    int rc = s2s_dist_finish(tmp, items, n_ranks, common, err);
    free(tmp);
    return rc < 0 ? rc : ckpt_dist_publish(root, iteration, err);
}

static int by_iteration(const void *a, const void *b)
{
    int64_t x = iteration_of(strrchr(*(char *const *)a, '/') + 1, "");
    int64_t y = iteration_of(strrchr(*(char *const *)b, '/') + 1, "");
    return (x > y) - (x < y);
}

/* The iteration that the tracker names; -1: no tracker, or not a number. */
static int64_t tracked(const char *root)
{
    char *text = NULL;
    size_t len;
    int64_t latest = -1;
    int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && ckpt_slurp(fd, CKPT_TRACKER, 64, &text, &len, NULL) == 0 &&
        s2s_parse_i64(&latest, text, 0, INT64_MAX, NULL) < 0)
        latest = -1;
    if (fd >= 0)
        close(fd);
    free(text);
    return latest;
}

int64_t s2s_dist_previous(const char *root)
{
    struct s2s_error err = S2S_ERROR_INIT;
    char **names;
    size_t n;
    const int64_t latest = tracked(root);
    int64_t previous = -1;
    if (list_iterations(root, "", &names, &n, &err) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        int64_t iteration = iteration_of(strrchr(names[i], '/') + 1, "");
        if (iteration < latest && iteration > previous)
            previous = iteration;
    }
    ckpt_free_list(names, n);
    return previous;
}

/* Removes a checkpoint. It is renamed first, so that a kill leaves no incomplete one under its
 * name. */
static int remove_checkpoint(const char *dir, struct s2s_error *err)
{
    char *aside = s2s_xasprintf("%s.tmp", dir);
    int rc = s2s_ckpt_remove_tree(aside, err);
    if (rc == 0 && rename(dir, aside) < 0)
        rc = s2s_error_errno(err, S2S_E_IO, "%s: rename", dir);
    if (rc == 0)
        rc = s2s_ckpt_remove_tree(aside, err);
    free(aside);
    return rc;
}

int s2s_dist_prune(const char *root, int keep, struct s2s_error *err)
{
    char **names;
    size_t n;
    const int64_t latest = tracked(root);
    int rc = list_iterations(root, "", &names, &n, err);
    if (n)
        qsort(names, n, sizeof *names, by_iteration);
    for (size_t i = 0; i + (size_t)keep < n && rc == 0; i++)
        if (iteration_of(strrchr(names[i], '/') + 1, "") != latest)
            rc = remove_checkpoint(names[i], err);
    ckpt_free_list(names, n);
    return rc;
}
