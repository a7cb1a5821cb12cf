/*
 * Signs that a folder holds files of more than one save. Nothing in a .distcp file tells which save
 * it is of, so one of another save may be read without an error and have other values.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "lib/base/base.h"
#include "lib/ckpt/list.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/read/read_internal.h"

/* Warns of bytes that belong to no item: torch writes items without gaps. */
static void warn_gaps(const struct s2s_ckpt *ckpt)
{
    int64_t *unused = s2s_xcalloc(ckpt->n_files + 1, sizeof *unused);
    size_t first = 0, n_found = 0;
    for (size_t i = 0; i < ckpt->n_files; i++)
        unused[i] = ckpt->files[i].len_bytes;
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        for (size_t k = 0; k < ckpt->tensors[i].n_chunks; k++) {
            const struct ckpt_location *place = ckpt_place_at(&ckpt->tensors[i], k);
            unused[place->file] -= place->store_len;
        }
    for (size_t i = 0; i < ckpt->n_objects; i++) {
        const json_t *file = json_object_get(ckpt->file_idx, ckpt->objects[i].file);
        unused[json_integer_value(file)] -= ckpt->objects[i].len_bytes;
    }
    for (size_t i = 0; i < ckpt->n_files; i++)
        if (unused[i] > 0 && s2s_ends_with(ckpt->files[i].name, ".distcp") && n_found++ == 0)
            first = i;
    if (n_found)
        s2s_warn("ckpt",
                 "%s: %s%s: %lld of its %lld bytes belong to nothing that .metadata names: one of "
                 "the two may be of another save",
                 ckpt->path, ckpt->files[first].name, n_found > 1 ? " (as in other files)" : "",
                 (long long)unused[first], (long long)ckpt->files[first].len_bytes);
    free(unused);
}

/* Warns of files that nothing is in. Empty ones are of ranks that had nothing to write. */
static void warn_strays(struct s2s_ckpt *ckpt)
{
    struct s2s_error ignored = S2S_ERROR_INIT; /* the folder was listed before */
    char **names = NULL;
    size_t n = 0, n_strays = 0;
    const char *first = "";
    struct stat st;
    if (ckpt_list_suffix(ckpt, "", ".distcp", &names, &n, &ignored) < 0)
        n = 0;
    for (size_t i = 0; i < n; i++)
        if (!json_object_get(ckpt->file_idx, names[i]) &&
            fstatat(ckpt->dir_fd, names[i], &st, 0) == 0 && st.st_size > 0 && n_strays++ == 0)
            first = names[i];
    if (n_strays)
        s2s_warn(
            "ckpt",
            "%s: .metadata names nothing in %zu of the .distcp files (%s%s): they or it may be "
            "of another save",
            ckpt->path, n_strays, first, n_strays > 1 ? ".." : "");
    ckpt_free_list(names, n);
}

void ckpt_warn_mixed(struct s2s_ckpt *ckpt)
{
    warn_gaps(ckpt);
    warn_strays(ckpt);
}

void ckpt_warn_iteration(const struct s2s_ckpt *ckpt, int64_t named)
{
    const json_t *saved = json_object_get(ckpt->common, "iteration");
    if (named >= 0 && json_is_integer(saved) && json_integer_value(saved) != named)
        s2s_warn("ckpt",
                 "%s: the common state is of iteration %lld: it may be of another save, or the "
                 "folder was renamed",
                 ckpt->path, (long long)json_integer_value(saved));
}
