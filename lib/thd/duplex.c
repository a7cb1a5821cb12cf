/* Lays turns of text out on frames. */
#include "lib/thd/duplex.h"

#include <math.h>

int64_t s2s_duplex_frames(double seconds, const struct s2s_duplex_options *opt)
{
    const int64_t hop = (int64_t)nearbyint(opt->frame_s * opt->rate_hz);
    const int64_t n_samples = (int64_t)nearbyint(seconds * opt->rate_hz);
    return (n_samples + hop / 2) / hop;
}

static void put_turn(int32_t *tokens, int64_t n, const struct s2s_duplex_turn *turn,
                     const struct s2s_duplex_options *opt, struct s2s_duplex_counts *counts)
{
    const int64_t begin = s2s_duplex_frames(turn->start_s, opt);
    const int64_t end = s2s_duplex_frames(turn->end_s, opt);
    const int64_t n_ids = (int64_t)turn->n_ids + 1; /* with bos */
    if (begin > n) {
        counts->late++;
        return;
    }
    const bool overruns = end < n && begin + n_ids > end;
    counts->overrun += overruns;
    if (overruns && opt->drop_overrun)
        return;
    counts->cut += begin + n_ids > n;
    for (int64_t i = 0; i < n_ids && begin + i < n; i++)
        tokens[begin + i] = i == 0 ? opt->bos : turn->ids[i - 1];
    if (end < n)
        tokens[end] = opt->eos;
    else
        counts->unfinished++;
}

void s2s_duplex_channel(int32_t *tokens, int64_t n, const struct s2s_duplex_turn *turns,
                        size_t n_turns, const struct s2s_duplex_options *opt,
                        struct s2s_duplex_counts *counts)
{
    for (int64_t t = 0; t < n; t++)
        tokens[t] = opt->pad;
    for (size_t i = 0; i < n_turns; i++)
        put_turn(tokens, n, &turns[i], opt, counts);
}
