/* Hugging Face folders: index, shards, config.json, torch files, composites and the boxes of
 * torch.distributed.checkpoint in headers; read, and planned in both directions. */
/* run.sh: max_len=4096 */
#include "lib/ckpt/write/to_dist.h"
#include "tests/fuzz/folder.h"

static const struct folder_name names[] = {
    {"model.safetensors", false},
    {"model.safetensors.index.json", false},
    {"model-00001-of-00002.safetensors", false},
    {"model-00002-of-00002.safetensors", false},
    {"config.json", false},
    {"pytorch_model.bin", true},
    {"pytorch_model.bin.index.json", false},
    {"pytorch_model-00001-of-00001.bin", true},
    {"encoder/model.safetensors", false},
    {"llm/model.safetensors", false},
    {"projection.safetensors", false},
    {"encoder/config.json", false},
};

static void plan_megatron(struct s2s_ckpt *ckpt)
{
    const struct ckpt_map_request request = {.ckpt = ckpt, .name = "llama", .vocab_multiple = 8};
    struct ckpt_map_result result = {.n_state = 0};
    struct s2s_error err = S2S_ERROR_INIT;
    struct s2s_ckpt_plan plan = {.source = ckpt};
    json_t *common = NULL;
    if (s2s_megatron_prepare(&plan, &common, &request, &result, &err) == 0)
        s2s_ckpt_plan_seal(&plan, &err);
    s2s_ckpt_plan_release(&plan);
    json_decref(common);
    ckpt_map_free_result(&result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    folder_fill(data, size, names, sizeof names / sizeof *names);
    struct s2s_ckpt *ckpt = folder_open();
    if (!ckpt)
        return 0;
    folder_plan_hf(ckpt, S2S_BF16);
    plan_megatron(ckpt);
    folder_plan_nemo(ckpt);
    s2s_ckpt_close(ckpt);
    return 0;
}
