/* Runs gnuplot with the script on its stdin and the picture on its stdout. */
#include "lib/io/gnuplot.h"

#include <errno.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/base.h"
#include "lib/io/outfile.h"

extern char **environ;

/* Starts gnuplot with the script as its stdin; *picture is the read end of its stdout. */
static int start_gnuplot(pid_t *pid, int *picture, FILE *script, struct s2s_error *err)
{
    char *const argv[] = {(char *)"gnuplot", NULL};
    posix_spawn_file_actions_t actions;
    int ends[2];
    if (pipe(ends) < 0)
        return s2s_error_errno(err, S2S_E_IO, "cannot make a pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fileno(script), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    int failed = posix_spawnp(pid, "gnuplot", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed) {
        close(ends[0]);
        errno = failed;
        int rc = s2s_error_errno(err, S2S_E_NOTFOUND, "cannot run gnuplot");
        return s2s_error_hint(err, rc, "install gnuplot-nox");
    }
    *picture = ends[0];
    return 0;
}

static int copy_picture(struct s2s_outfile *out, int from, struct s2s_error *err)
{
    char block[65536];
    for (;;) {
        ssize_t n = read(from, block, sizeof block);
        if (n == 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return s2s_error_errno(err, S2S_E_IO, "cannot read from gnuplot");
        int rc = n > 0 ? s2s_outfile_write(out, block, (size_t)n, err) : 0;
        if (rc < 0)
            return rc;
    }
}

static int draw(struct s2s_outfile *out, FILE *script, struct s2s_error *err)
{
    pid_t pid;
    int picture = -1, status = 0, rc = start_gnuplot(&pid, &picture, script, err);
    if (rc < 0)
        return rc;
    rc = copy_picture(out, picture, err);
    close(picture);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (rc == 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || s2s_outfile_offset(out) == 0))
        rc = s2s_error_set(err, S2S_E_IO, "gnuplot failed (status %d)", status);
    return rc;
}

int s2s_gnuplot(const char *path, void (*put)(FILE *script, bool is_svg, const void *what),
                const void *what, struct s2s_error *err)
{
    struct s2s_outfile *out = NULL;
    FILE *script = tmpfile();
    if (!script)
        return s2s_error_errno(err, S2S_E_IO, "cannot make a temporary file");
    put(script, !s2s_ends_with(path, ".png"), what);
    int rc = 0;
    if (fflush(script) != 0 || ferror(script) || fseek(script, 0, SEEK_SET) != 0)
        rc = s2s_error_errno(err, S2S_E_IO, "cannot write a temporary file");
    if (rc == 0)
        rc = s2s_outfile_open(&out, path, err);
    if (rc == 0 && (rc = draw(out, script, err)) == 0)
        rc = s2s_outfile_commit(out, err);
    else
        s2s_outfile_abort(out);
    fclose(script);
    return rc;
}
