/* Folders of a file for each FSDP rank: read, and planned towards Hugging Face. */
/* run.sh: max_len=4096 */
#include "tests/fuzz/folder.h"

static const struct folder_name names[] = {
    {"model_world_size_1_rank_0.pt", true},
    {"model_world_size_2_rank_0.pt", true},
    {"model_world_size_2_rank_1.pt", true},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_error err = S2S_ERROR_INIT;
    folder_fill(data, size, names, sizeof names / sizeof *names);
    struct s2s_ckpt *ckpt = folder_open();
    if (!ckpt)
        return 0;
    folder_demand(s2s_ckpt_verify_copies(ckpt, &err), &err);
    folder_plan_hf(ckpt, S2S_DTYPE_NONE);
    s2s_ckpt_close(ckpt);
    return 0;
}
