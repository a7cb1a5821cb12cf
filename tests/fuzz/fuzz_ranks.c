/* Megatron's rank folders: read, merged, planned towards Hugging Face and with other layers, and
 * copied. */
/* run.sh: max_len=4096 */
#include "tests/fuzz/folder.h"

static const struct folder_name names[] = {
    {"mp_rank_00/model_optim_rng.pt", true},
    {"mp_rank_01/model_optim_rng.pt", true},
    {"mp_rank_00_000/model_optim_rng.pt", true},
    {"mp_rank_00_001/model_optim_rng.pt", true},
    {"mp_rank_01_000/model_optim_rng.pt", true},
    {"mp_rank_01_001/model_optim_rng.pt", true},
    {"mp_rank_00_000_000/model_optim_rng.pt", true},
    {"mp_rank_00_000_001/model_optim_rng.pt", true},
    {"mp_rank_00_001_000/model_optim_rng.pt", true},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_error err = S2S_ERROR_INIT;
    folder_fill(data, size, names, sizeof names / sizeof *names);
    struct s2s_ckpt *ckpt = folder_open();
    if (!ckpt)
        return 0;
    int rc = s2s_ckpt_merge_ranks(ckpt, &err);
    folder_demand(rc, &err);
    if (rc == 0) {
        folder_read(ckpt);
        folder_plan_hf(ckpt, S2S_DTYPE_NONE);
        folder_plan_layers(ckpt, (enum ckpt_layers)(size % 3));
        folder_reshard(ckpt, (int64_t)(size % 4));
    }
    s2s_ckpt_close(ckpt);
    return 0;
}
