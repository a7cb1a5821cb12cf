/* s2s-pack: samples to packs. */
#include "tools/pack/options.h"
#include "tools/pack/pack.h"
#include "tools/pack/tokenize.h"

static const struct argp pack_argp = {
    .options = pack_option_table,
    .parser = pack_parse_option,
    .args_doc = "[INPUT...]\nbins --tokens N [OPTION...] [LENGTHS.txt]\n"
                "tokenize --tokenizer F [OPTION...] [FILE]\n"
                "report [--plot F.svg] [-o ALL.json] REPORT.json...\n"
                "npy IN -o OUT\n"
                "batches --tokens N [OPTION...] [LENGTHS.txt]\n"
                "buckets --batch-size N [OPTION...] [LENGTHS.txt]",
    .doc =
        "Tokenize, measure and pack samples into THD rows without padding between them, as a "
        "stream."
        "\vExamples:\n"
        "  s2s-pack --manifest train.jsonl --tokenizer tok.json --tokens 8192 -o a.s2s\n"
        "  s2s-pack --ids rows.jsonl --tokens 4096 --cp 2 | s2s-shard ls -\n"
        "  s2s-pack --manifest train.jsonl --tokenizer tok.json --tokens 8192 --plan\n\n"
        "bins packs bare lengths, tokenize turns lines into ids, report adds up reports of parts, "
        "npy reads and writes packed SFT files, batches and buckets make padded batches of "
        "lengths; "
        "each has its own --help.\n\n"
        "Exit status: 0 done, 1 a sample is bad or a write failed, 2 bad command line or an input "
        "that cannot be opened.\n"
        "See also: s2s-shard(1), s2s-cpshard(1), s2s-encode(1)",
};

static const struct s2s_command commands[] = {
    {.name = "bins", .run = pack_bins},
    {.name = "tokenize", .run = pack_tokenize},
    {.name = "report", .run = pack_merge},
    {.name = "npy", .run = pack_npy},
    {.name = "batches", .run = pack_batches},
    {.name = "buckets", .run = pack_buckets},
    {0},
};

int main(int argc, char **argv)
{
    struct pack_options opt = PACK_OPTIONS_DEFAULT;
    struct s2s_error err = S2S_ERROR_INIT;

    s2s_tool_begin("s2s-pack", argc, argv);
    const struct s2s_command *command = s2s_tool_command(commands, argv);
    if (command)
        return s2s_tool_end(command->run(argc - 1, argv + 1, &err), &err);
    s2s_tool_parse(&pack_argp, argc, argv, &opt);
    int rc = pack_run(&opt, &err);
    free(opt.inputs);
    free(opt.tars);
    pack_batching_release(&opt.batching);
    return s2s_tool_end(rc, &err);
}
