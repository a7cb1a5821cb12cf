/* Megatron's rank folders: read, merged, planned towards Hugging Face. */
/* run.sh: max_len=4096 */
#include "lib/ckpt/to_hf.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    const struct s2s_hf_options options = {.dtype = S2S_DTYPE_NONE};
    struct s2s_hf_output out;
    struct s2s_ckpt *ckpt;
    struct s2s_error err = S2S_ERROR_INIT;
    folder_fill(data, size, names, sizeof names / sizeof *names);
    int rc = s2s_ckpt_open(&ckpt, folder, &err);
    folder_demand(rc, &err);
    if (rc < 0)
        return 0;
    folder_read(ckpt);
    rc = s2s_ckpt_merge_ranks(ckpt, &err);
    folder_demand(rc, &err);
    if (rc == 0) {
        folder_read(ckpt);
        s2s_hf_prepare(&out, ckpt, &options, &err);
        s2s_hf_release(&out);
    }
    s2s_ckpt_close(ckpt);
    return 0;
}
