/* s2s-train: a recipe, or one of the commands. */
#include "lib/base/error.h"
#include "lib/base/tool.h"
#include "tools/train/commands.h"
#include "tools/train/probe.h"

static const struct s2s_command commands[] = {
    {"eval", train_eval, "Loss, token accuracy and word error rate of data sets"},
    {"export", train_export, "Adapters as a PEFT folder, or merged into the model"},
    {"generate", train_generate, "Text for a sound and a prompt"},
    {"lr", train_lr, "The learning rate of each step"},
    {"plan", train_plan, "What a step needs and who runs with whom, without running it"},
    {"plot", train_plot, "The loss of a run as a picture"},
    {"probe", train_probe, "Numbers of a model for comparison with another framework"},
    {0},
};

/* Whatever is no command is the recipe to train. */
static int run(int argc, char **argv, struct s2s_error *err)
{
    const struct s2s_command *command = s2s_tool_command(commands, argv);
    return command ? command->run(argc - 1, argv + 1, err) : train_train(argc, argv, err);
}

int main(int argc, char **argv)
{
    struct s2s_error err = S2S_ERROR_INIT;
    s2s_tool_share_cores(argv);
    s2s_tool_begin("s2s-train", argc, argv);
    int rc = run(argc, argv, &err);
    /* one rank speaks for all, before any of them ends */
    if (train_mesh && s2s_mesh_rank(train_mesh) > 0 && rc < 0)
        rc = s2s_errc_exit_status(rc);
    int status = s2s_tool_end(rc, &err);
    s2s_mesh_close(train_mesh);
    return status;
}
