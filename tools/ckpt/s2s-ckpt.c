/* s2s-ckpt: look at, verify and convert checkpoints of any format. */
#include <jansson.h>
#include <malloc.h>

#include "lib/mesh/mesh.h"
#include "tools/ckpt/ckpt_tool.h"

static const struct s2s_command commands[] = {
    {"ls", ckpt_ls, "list tensors: name, dtype, shape, bytes"},
    {"verify", ckpt_verify, "check that a checkpoint is complete, undamaged and safe"},
    {"convert", ckpt_convert, "convert to Hugging Face, torch_dist, safetensors or .nemo"},
    {"prune", ckpt_prune, "drop the optimizer and random states"},
    {"reshard", ckpt_reshard, "rewrite in another number of files, optimizer included"},
    {"average", ckpt_average, "average the weights of several checkpoints"},
    {"diff", ckpt_diff, "compare two checkpoints, tensor by tensor"},
    {"cat", ckpt_cat, "print one tensor, as bytes or JSON"},
    {NULL, NULL, NULL},
};

error_t ckpt_parse_path(const char **path, int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case ARGP_KEY_ARG:
        if (*path)
            argp_error(state, "unexpected argument '%s': give one PATH", arg);
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
    /* out of memory must end the program: a JSON tree with missing parts would look like a smaller
     * one */
    json_set_alloc_funcs(s2s_xmalloc, free);
    /* Return freed memory to the system: mostly tables of names that are not needed again, and
     * holes between what stays. */
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    mallopt(M_TRIM_THRESHOLD, 1 << 20);
    int rc = s2s_tool_run(
        commands,
        "List, verify and convert checkpoints of any format: Megatron, NeMo, PyTorch,\n"
        "Hugging Face. The format is detected. No Python, no GPU, little memory;\n"
        "nothing in a file is ever executed.",
        "Examples:\n"
        "  s2s-ckpt ls checkpoints/\n"
        "  s2s-ckpt verify checkpoints/\n"
        "  s2s-ckpt convert --to hf checkpoints/ model/\n\n"
        "Exit status: 0 done; 1 a checkpoint is bad, diff found differences or a\n"
        "write failed; 2 the command line is bad, an input cannot be opened or the\n"
        "folder OUT already exists.\n"
        "See also: s2s-ckpt(1)",
        argc, argv, &err);
    /* only rank 0 prints an agreed error, before any rank ends */
    const bool silent = rc < 0 && ckpt_mesh && s2s_mesh_rank(ckpt_mesh) > 0;
    int status = s2s_tool_end(silent ? s2s_errc_exit_status(rc) : rc, &err);
    s2s_mesh_close(ckpt_mesh);
    ckpt_end_as_signalled(rc);
    return status;
}
