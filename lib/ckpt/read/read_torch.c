/* torch.save files, and Megatron's folders of them. */
#include "lib/ckpt/model.h"
#include "lib/ckpt/read/torch_walk.h"

#include "lib/base/base.h"
#include "lib/ckpt/read/torch_zip.h"

/* ---- zip archives ---- */

/* Finds the storages among the archive's members. */
static void take_stores(struct ckpt_torch_walk *w, const struct s2s_zip *zip, int64_t begin)
{
    for (size_t i = 0; i < zip->n_members; i++) {
        static const char data[] = "/data/";
        const struct s2s_zip_member *m = &zip->members[i];
        const char *slash = strchr(m->name, '/');
        if (!slash || !s2s_starts_with(slash, data))
            continue;
        ckpt_warn_no_crc(w->ckpt, m);
        const char *key = slash + strlen(data);
        *ckpt_add_torch_store(&w->stores, key, strlen(key)) = (struct ckpt_torch_store){
            .pos = begin + m->pos, .len_bytes = m->len_bytes, .crc = m->crc, .is_listed = true};
    }
}

static int read_zip(struct ckpt_torch_walk *w, const struct ckpt_torch_source *source, int fd,
                    int64_t len)
{
    const struct ckpt_pickle_taker taker = {.dtensors = source->fsdp != NULL};
    struct ckpt_archive archive;
    struct s2s_zip_source span = {.fd = fd, .begin = source->begin, .len_bytes = len};
    int rc = ckpt_archive_begin(&archive, &span, w->err);
    if (rc < 0)
        return rc;
    rc = ckpt_archive_check_notes(&archive.zip, w->err);
    if (rc < 0) {
        ckpt_archive_release(&archive);
        return rc;
    }
    take_stores(w, &archive.zip, source->begin);
    s2s_zip_drop_members(&archive.zip);
    rc = ckpt_archive_parse(&archive, CKPT_OPEN, &taker, w->err);
    if (rc < 0)
        return rc;
    w->left = ckpt_json_limit(archive.pickle.len);
    rc = ckpt_torch_walk(w, &archive.pickle, source);
    if (rc == 0)
        ckpt_warn_opaque(w->ckpt, &archive.pickle, source->file);
    ckpt_archive_release(&archive);
    return rc;
}

int ckpt_read_torch(struct s2s_ckpt *ckpt, const struct ckpt_torch_source *source,
                    struct s2s_error *err)
{
    struct ckpt_torch_walk w = {.ckpt = ckpt, .err = err};
    unsigned char head[CKPT_TORCH_HEAD] = {0};
    w.file = ckpt_add_file(ckpt, source->file, err);
    int fd = ckpt_file_fd(ckpt, w.file, err);
    if (fd < 0)
        return fd;
    int64_t len = source->len_bytes;
    if (len < 0)
        len = ckpt->files[w.file].len_bytes - source->begin;
    int rc = len < (int64_t)sizeof head
                 ? s2s_error_set(err, S2S_E_TRUNCATED, "%lld bytes are too few", (long long)len)
                 : ckpt_pread(fd, head, sizeof head, source->begin, source->file, err);
    if (rc == 0 && memcmp(head, "PK\3\4", 4) == 0)
        rc = read_zip(&w, source, fd, len);
    else if (rc == 0 && ckpt_is_legacy_torch(head))
        rc = ckpt_read_torch_legacy(&w, source, fd, len);
    else if (rc == 0)
        rc = s2s_error_set(err, S2S_E_FORMAT, "neither a zip archive nor a legacy torch file");
    ckpt_torch_stores_release(&w.stores);
    s2s_buf_release(&w.name);
    return rc < 0 ? s2s_error_add(err, rc, "%s", source->file) : 0;
}

/* 1 if the optimizer is stored separately from the rank's model: the distributed optimizer in one
 * file, Megatron-Core's layer-wise optimizer in one file per data-parallel rank. */
static int optimizer_apart(struct s2s_ckpt *ckpt, const char *prefix, struct s2s_error *err)
{
    char **names;
    size_t n;
    int rc = ckpt_list_suffix(ckpt, prefix, ".pt", &names, &n, err);
    int found = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const char *name = names[i] + strlen(prefix);
        found |=
            strcmp(name, "distrib_optim.pt") == 0 || s2s_starts_with(name, "layer_wise_optimizer_");
    }
    ckpt_free_list(names, n);
    return rc < 0 ? rc : found;
}

static int read_rank(struct s2s_ckpt *ckpt, const char *folder, struct s2s_error *err)
{
    char *file = s2s_xasprintf("%s/model_optim_rng.pt", folder);
    char *prefix = s2s_xasprintf("%s/", folder);
    const struct ckpt_torch_source source = {
        .file = file, .prefix = prefix, .len_bytes = -1, .model_only = true};
    const size_t had = ckpt->n_left_states;
    int rc = ckpt_read_torch(ckpt, &source, err);
    if (rc == 0 && ckpt->n_left_states == had) {
        rc = optimizer_apart(ckpt, prefix, err);
        ckpt->n_left_states += rc > 0;
    }
    free(file);
    free(prefix);
    return rc < 0 ? rc : 0;
}

/* mp_rank_00, mp_rank_00_001, ..: one file a model-parallel rank */
int ckpt_read_mp_rank(struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    char **names;
    size_t n;
    int rc = ckpt_list_suffix(ckpt, "", "", &names, &n, err);
    for (size_t i = 0; i < n && rc == 0; i++)
        if (s2s_starts_with(names[i], "mp_rank_"))
            rc = read_rank(ckpt, names[i], err);
    ckpt_free_list(names, n);
    return rc;
}
