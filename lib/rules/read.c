/* Reads a config file or a launch script. */
#include "lib/base/affix.h"
#include "lib/rules/rules_internal.h"
#include "lib/rules/shell/shell_internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/error.h"

enum { MAX_SCRIPT_BYTES = 4 << 20 };

bool s2s_rules_is_shell(const char *path)
{
    static const char *const ends[] = {".sh", ".bash", ".sbatch", ".slurm"};
    static const char *const others[] = {".yaml", ".yml", ".json"};
    char head[2] = "";
    size_t len = strlen(path);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (len > strlen(ends[i]) && !strcmp(path + len - strlen(ends[i]), ends[i]))
            return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (len > strlen(others[i]) && !strcmp(path + len - strlen(others[i]), others[i]))
            return false;
    int fd = strcmp(path, "-") != 0 ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    ssize_t got = fd >= 0 ? pread(fd, head, 2, 0) : 0;
    if (fd >= 0)
        close(fd);
    return got == 2 && !memcmp(head, "#!", 2);
}

static int read_text(struct s2s_buf *text, const char *path, struct s2s_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return s2s_error_errno(err, S2S_E_OPEN, "%s: cannot open", path);
    int rc = s2s_buf_read(text, fd, MAX_SCRIPT_BYTES, err);
    if (rc < 0)
        s2s_error_add(err, rc, "%s", path);
    close(fd);
    if (rc >= 0 && memchr(text->data, 0, text->len))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: not a text file", path);
    return rc;
}

int s2s_rules_read(struct s2s_conf **out, const char *path, const char *also, struct s2s_error *err)
{
    *out = NULL;
    if (s2s_ends_with(path, ".toml"))
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "%s: TOML, as torchtitan's configs are, is not judged", path);
    if (!s2s_rules_is_shell(path))
        return s2s_conf_read(out, path, S2S_CONF_AUTO, err);
    struct s2s_buf texts[2] = {S2S_BUF_INIT, S2S_BUF_INIT};
    struct rules_script scripts[2];
    const char *paths[2] = {path, also};
    size_t n = also ? 2 : 1;
    int rc = 0;
    for (size_t i = 0; i < n && rc >= 0; i++) {
        rc = read_text(&texts[i], paths[i], err);
        scripts[i] =
            (struct rules_script){texts[i].data ? texts[i].data : "", texts[i].len, paths[i]};
    }
    if (rc >= 0)
        *out = rules_read_scripts(scripts, n);
    s2s_buf_release(&texts[0]);
    s2s_buf_release(&texts[1]);
    return rc;
}
