/* torch_dist folders: .metadata, metadata.json, common.pt and items, with manifests beside them;
 * read, planned towards Hugging Face and with other layers, and copied. */
/* run.sh: max_len=4096 */
#include "tests/fuzz/folder.h"

static const struct folder_name names[] = {
    {".metadata", false},      {"metadata.json", false}, {"common.pt", true},
    {"__0_0.distcp", true},    {"__1_0.distcp", true},   {"s2s-manifest.json", false},
    {"integrity.json", false},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2s_error err = S2S_ERROR_INIT;
    size_t n;
    folder_fill(data, size, names, sizeof names / sizeof *names);
    struct s2s_ckpt *ckpt = folder_open();
    if (!ckpt)
        return 0;
    s2s_ckpt_verify_manifest(ckpt, NULL, &n, &err);
    folder_plan_hf(ckpt, S2S_DTYPE_NONE);
    folder_plan_layers(ckpt, (enum ckpt_layers)(size % 3));
    folder_reshard(ckpt, (int64_t)(size % 4));
    s2s_ckpt_close(ckpt);
    return 0;
}
