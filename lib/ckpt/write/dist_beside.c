/* Files that Megatron-Bridge, NeMo RL and Lightning load beside the tensors of a folder.
 * Without run_config.yaml the first two take the folder for one of Megatron-LM, whose arguments it
 * lacks. Lightning stores all non-tensor state (loops, schedules, hyper-parameters) in meta.pt, by
 * which it recognises a checkpoint. */
#include <errno.h>
#include <sys/stat.h>

#include "lib/base/base.h"
#include "lib/ckpt/nemo/from_nemo.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/dist_internal.h"
#include "lib/ckpt/write/manifest.h"

static const char tokenizer[] = "tokenizer";

int ckpt_dist_take_beside(struct ckpt_side_files *files, struct s2s_ckpt *ckpt,
                          struct s2s_error *err)
{
    static const char *const names[] = {CKPT_LIGHTNING_META, "run_config.yaml", "train_state.pt"};
    /* of ModelOpt and NeMo 2 */
    static const char *const left[] = {"modelopt_state", "../context/model.yaml"};
    /* Megatron-Bridge writes torch_dist, or DCP with FSDP */
    const bool dcp = strcmp(ckpt->format, "dcp") == 0, plain = dcp && !ckpt_has_run_config(ckpt);
    int rc = 0;
    ckpt_nemo_warn_left(files, ckpt); /* its configuration goes into the common state */
    if ((!dcp && strcmp(ckpt->format, "torch_dist") != 0) || ckpt->part)
        return 0;
    for (size_t i = 0; i < sizeof left / sizeof *left && !plain; i++)
        if (s2s_is_there(ckpt->dir_fd, left[i]))
            s2s_warn("ckpt", "%s: %s is not taken along", ckpt->path, left[i]);
    for (size_t i = 0; i < (plain ? 1 : sizeof names / sizeof *names) && rc >= 0; i++) {
        if (!s2s_is_there(ckpt->dir_fd, names[i]))
            continue;
        if (s2s_ends_with(names[i], ".pt")) /* loading a pickle can run code */
            rc = ckpt_verify_torch_file(ckpt, names[i], err);
        if (rc == 0)
            rc = ckpt_side_take(files, ckpt->dir_fd, names[i], names[i], err);
    }
    rc = rc < 0 || plain ? rc : ckpt_side_take_folder(files, ckpt, tokenizer, err);
    /* without a common state, that which is made has the texts (s2s_hf_common) */
    return rc < 0 || (plain && !ckpt->common) ? rc : ckpt_side_warn_left(files, ckpt, true, err);
}

int ckpt_dist_write_beside(const char *dir, const struct ckpt_side_files *files, json_t *manifest,
                           struct s2s_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < files->n && rc == 0; i++) {
        const struct ckpt_side_file *file = &files->v[i];
        const bool in_folder = strchr(file->path, '/') != NULL;
        char *folder = s2s_xasprintf("%s/%s", dir, tokenizer);
        if (in_folder && mkdir(folder, 0777) < 0 && errno != EEXIST)
            rc = s2s_error_errno(err, S2S_E_IO, "%s: cannot create the folder", folder);
        if (rc == 0)
            rc = ckpt_file_put_noted(dir, file->path, file->bytes, file->len,
                                     in_folder ? NULL : manifest, err);
        if (rc == 0 && in_folder)
            rc = ckpt_sync_dir(folder, err);
        free(folder);
    }
    return rc;
}
