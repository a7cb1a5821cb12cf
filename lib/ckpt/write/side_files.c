#include "lib/ckpt/write/side_files.h"

#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/model.h"

void ckpt_side_add(struct ckpt_side_files *files, const char *path, const void *bytes, size_t len)
{
    if (ckpt_side_find(files, path))
        return;
    s2s_grow(&files->v, files->n, &files->cap, sizeof *files->v);
    char *copy = s2s_xmalloc(len + 1);
    if (len)
        memcpy(copy, bytes, len);
    copy[len] = 0;
    files->len_bytes += len;
    files->v[files->n++] = (struct ckpt_side_file){s2s_xstrdup(path), copy, len};
}

void ckpt_side_add_text(struct ckpt_side_files *files, const char *path, const char *text)
{
    ckpt_side_add(files, path, text, strlen(text));
}

int ckpt_side_take(struct ckpt_side_files *files, int dir_fd, const char *name, const char *path,
                   struct s2s_error *err)
{
    char *bytes;
    size_t len;
    if (ckpt_is_strange_link(dir_fd, name)) {
        s2s_warn("ckpt", "%s: a link to a file elsewhere, left out", name);
        return 0;
    }
    int rc = ckpt_slurp(dir_fd, name, CKPT_MAX_SIDE_FILE, &bytes, &len, err);
    if (rc < 0)
        return rc;
    if (files->n >= CKPT_MAX_SIDE_FILES || files->len_bytes + len > CKPT_MAX_SIDE_BYTES)
        rc = s2s_error_set(err, S2S_E_FORMAT,
                           "%s: more than %d small files, or %d MiB of them, beside the weights",
                           name, CKPT_MAX_SIDE_FILES, CKPT_MAX_SIDE_BYTES >> 20);
    else
        ckpt_side_add(files, path, bytes, len);
    free(bytes);
    return rc < 0 ? rc : 1;
}

const struct ckpt_side_file *ckpt_side_find(const struct ckpt_side_files *files, const char *path)
{
    for (size_t i = 0; i < files->n; i++)
        if (strcmp(files->v[i].path, path) == 0)
            return &files->v[i];
    return NULL;
}

void ckpt_side_release(struct ckpt_side_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        free(files->v[i].path);
        free(files->v[i].bytes);
    }
    free(files->v);
    *files = (struct ckpt_side_files){.n = 0};
}
