/* s2s-ckpt: look at, verify and convert checkpoints of any format. */
#include <jansson.h>
#include <malloc.h>

#include "lib/mesh/mesh.h"
#include "tools/ckpt/ckpt_tool.h"

static const struct s2s_command commands[] = {
    {"ls", ckpt_ls, "every tensor: name, dtype, shape, bytes; any format, detected"},
    {"verify", ckpt_verify, "complete, consistent, undamaged, safe; exit 1 otherwise"},
    {"convert", ckpt_convert, "to Hugging Face, torch_dist, one safetensors file or a .nemo"},
    {"prune", ckpt_prune, "the same checkpoint without optimizer and random states"},
    {"reshard", ckpt_reshard, "the same checkpoint in another number of files"},
    {"average", ckpt_average, "the mean of the weights of several checkpoints"},
    {"diff", ckpt_diff, "names, shapes, dtypes, bits and largest differences of two checkpoints"},
    {"cat", ckpt_cat, "the bytes or numbers of one tensor"},
    {NULL, NULL, NULL},
};

error_t ckpt_parse_path(const char **path, int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case ARGP_KEY_ARG:
        if (*path)
            argp_error(state, "one PATH, please: '%s' is too many", arg);
        *path = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "PATH is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    struct s2s_error err = S2S_ERROR_INIT;
    s2s_tool_begin("s2s-ckpt", argc, argv);
    /* a tree without what found no memory would be taken for a smaller one */
    json_set_alloc_funcs(s2s_xmalloc, free);
    /* What would be kept here for the next use is tables of names that are needed no more, and
     * holes between what stays. */
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    mallopt(M_TRIM_THRESHOLD, 1 << 20);
    int rc = s2s_tool_run(commands,
                          "Checkpoints: torch_dist (Megatron, NeMo), torch.distributed.checkpoint, "
                          "Hugging Face, torch.save. No Python, no GPU, memory that does not grow "
                          "with the checkpoint; nothing in a file is ever executed.",
                          "Examples:\n"
                          "  s2s-ckpt ls checkpoints/\n"
                          "  s2s-ckpt convert --to hf checkpoints/ model/\n\n"
                          "Exit status: 0 done, 1 a checkpoint is bad, diff found something or a "
                          "write failed, 2 bad command line, an input that cannot be opened or a "
                          "folder to write that is there already.\n"
                          "See also: s2s-ckpt(1)",
                          argc, argv, &err);
    /* what all ranks know, one of them says, before any of them ends */
    const bool silent = rc < 0 && ckpt_mesh && s2s_mesh_rank(ckpt_mesh) > 0;
    int status = s2s_tool_end(silent ? s2s_errc_exit_status(rc) : rc, &err);
    s2s_mesh_close(ckpt_mesh);
    ckpt_end_as_signalled(rc);
    return status;
}
