/* s2s-train: a table of subcommands. */
#include "lib/base/error.h"
#include "lib/base/tool.h"
#include "tools/train/probe.h"

static const struct s2s_command commands[] = {
    {"probe", train_probe, "Numbers of a model for comparison with another framework"},
    {0},
};

int main(int argc, char **argv)
{
    struct s2s_error err = S2S_ERROR_INIT;
    s2s_tool_begin("s2s-train", argc, argv);
    return s2s_tool_end(
        s2s_tool_run(commands, "Train speech language models.", "", argc, argv, &err), &err);
}
