/* s2s-shard: look at, verify, split, join, shuffle, plot any stream. */
#include "tools/shard/shard.h"

static const struct s2s_command commands[] = {
    {"ls", shard_ls, "one line a record"},
    {"head", shard_head, "header and provenance"},
    {"view", shard_view, "tensors and metadata, as text or JSON"},
    {"verify", shard_verify, "digests, counts, schema, end"},
    {"stats", shard_stats, "lengths, fill, hours, tokens; pictures"},
    {"cat", shard_cat, "streams one behind the other; of one stream an exact copy"},
    {"split", shard_split, "one stream into several"},
    {"shuffle", shard_shuffle, "the records in random order"},
    {"export", shard_export, "clips and texts as Lhotse's Shar or WebDataset's tars"},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    struct s2s_error err = S2S_ERROR_INIT;
    s2s_tool_begin("s2s-shard", argc, argv);
    int rc =
        s2s_tool_run(commands, "Look at, verify, split, join, shuffle and plot any .s2s stream.",
                     "Examples:\n"
                     "  s2s-shard ls packs.s2s\n"
                     "  s2s-shard view --record 0 --tensor labels packs.s2s\n"
                     "  s2s-shard verify *.s2s && s2s-shard cat *.s2s -o all.s2s.zst\n"
                     "  s2s-shard export --to shar -o folder sounds/packs.s2s\n"
                     "\n"
                     "Exit status: 0 done, 1 a stream is bad or a write failed, 2 bad command "
                     "line or an input that cannot be opened.\n"
                     "See also: s2s-pack(1), s2s-cpshard(1), doc/FORMAT.md",
                     argc, argv, &err);
    return s2s_tool_end(rc, &err);
}
