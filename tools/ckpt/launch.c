/* Joins the ranks of `mpirun -n N`; without a launcher there is one process. */
#include "lib/base/log.h"
#include "lib/mesh/mesh.h"
#include "tools/ckpt/ckpt_tool.h"

/* an idle rank waits for the others; the launcher detects a rank that died */
#define LONGEST_WAIT_S (7 * 86400.0)

struct s2s_mesh *ckpt_mesh;

int ckpt_launch(const struct s2s_common *common, struct s2s_error *err)
{
    int rc = s2s_mesh_open(&ckpt_mesh, NULL, err);
    if (rc < 0)
        return rc;
    s2s_mesh_set_timeout(ckpt_mesh, LONGEST_WAIT_S);
    if (common->json || s2s_mesh_size(ckpt_mesh) > 1)
        ckpt_warnings_begin();
    if (!ckpt_is_first())
        s2s_log_set_verbosity(common->verbosity > 1 ? common->verbosity : -1);
    return 0;
}

bool ckpt_is_first(void)
{
    return s2s_mesh_rank(ckpt_mesh) == 0;
}

int ckpt_agree(int rc, struct s2s_error *err)
{
    return s2s_mesh_all_ok(ckpt_mesh, rc, err);
}
