/* torch_dist folders: .metadata, metadata.json, common.pt and items, with manifests beside them;
 * read, planned towards Hugging Face. */
/* run.sh: max_len=4096 */
#include "lib/ckpt/to_hf.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct folder_name names[] = {
    {".metadata", false},      {"metadata.json", false}, {"common.pt", true},
    {"__0_0.distcp", true},    {"__1_0.distcp", true},   {"s2s-manifest.json", false},
    {"integrity.json", false},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct s2s_hf_options options = {.dtype = S2S_DTYPE_NONE};
    struct s2s_hf_output out;
    struct s2s_ckpt *ckpt;
    struct s2s_error err = S2S_ERROR_INIT;
    size_t n;
    folder_fill(data, size, names, sizeof names / sizeof *names);
    int rc = s2s_ckpt_open(&ckpt, folder, &err);
    folder_demand(rc, &err);
    if (rc < 0)
        return 0;
    folder_read(ckpt);
    s2s_ckpt_verify_manifest(ckpt, &n, &err);
    s2s_hf_prepare(&out, ckpt, &options, &err);
    s2s_hf_release(&out);
    s2s_ckpt_close(ckpt);
    return 0;
}
