/* Shares the files of a conversion among ranks, and gathers their digests. */
#include "lib/ckpt/write/share.h"

#include "lib/base/base.h"
#include "lib/ckpt/model.h"
#include "lib/mesh/mesh.h"

int ckpt_share_rank(const struct s2s_ckpt_write *how)
{
    return how->mesh ? s2s_mesh_rank(how->mesh) : 0;
}

int ckpt_share_size(const struct s2s_ckpt_write *how)
{
    return how->mesh ? s2s_mesh_size(how->mesh) : 1;
}

int ckpt_share_agree(const struct s2s_ckpt_write *how, int rc, struct s2s_error *err)
{
    return how->mesh ? s2s_mesh_all_ok(how->mesh, rc, err) : rc;
}

void ckpt_share_manifest(const struct s2s_ckpt_write *how)
{
    const int n = ckpt_share_size(how);
    if (n == 1 || !how->manifest)
        return;
    struct s2s_buf mine = S2S_BUF_INIT;
    char *text = json_dumps(how->manifest, JSON_COMPACT);
    s2s_buf_puts(&mine, text);
    free(text);
    struct s2s_buf *all = s2s_comm_gather_bufs(s2s_mesh_world(how->mesh), &mine);
    s2s_buf_release(&mine);
    for (int r = 0; r < n; r++) {
        json_t *theirs = json_loadb(all[r].data, all[r].len, 0, NULL);
        if (!theirs || json_object_update(how->manifest, theirs) < 0)
            S2S_BUG("a manifest that rank %d made cannot be read", r);
        json_decref(theirs);
        s2s_buf_release(&all[r]);
    }
    free(all);
}

static bool is_checked(const struct s2s_ckpt_tensor *tensor)
{
    for (size_t i = 0; i < tensor->n_chunks; i++)
        if (!ckpt_place_at(tensor, i)->checked)
            return false;
    return true;
}

int ckpt_share_verify(struct s2s_ckpt_plan *plan, const struct s2s_ckpt_write *how,
                      struct s2s_error *err)
{
    const int n = ckpt_share_size(how), rank = ckpt_share_rank(how);
    if (n == 1)
        return s2s_ckpt_plan_verify(plan, err);
    struct s2s_ckpt *ckpt = plan->source;
    /* 1: a rank has read all of it, which verified it */
    unsigned char *done = s2s_xcalloc(ckpt->n_tensors + 1, 1);
    unsigned char *wanted = s2s_xcalloc(ckpt->n_tensors + 1, 1);
    for (size_t i = 0; i < plan->n_targets; i++)
        for (size_t k = 0; k < plan->targets[i].n_pieces; k++) {
            const struct s2s_ckpt_piece piece = s2s_ckpt_target_piece(&plan->targets[i], k);
            if (piece.source)
                wanted[ckpt_tensor_index(ckpt, piece.source)] = 1;
        }
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        done[i] = is_checked(&ckpt->tensors[i]) && plan->n_others == 0;
    s2s_comm_all_reduce(s2s_mesh_world(how->mesh), done, (int64_t)ckpt->n_tensors, S2S_U8,
                        S2S_GROUP_MAX);
    int rc = 0, turn = 0;
    for (size_t i = 0; i < ckpt->n_tensors && rc == 0; i++)
        if (wanted[i] && !done[i] && turn++ % n == rank)
            rc = ckpt_plan_verify_source(plan, &ckpt->tensors[i], err);
    free(done);
    free(wanted);
    return ckpt_share_agree(how, rc, err);
}
