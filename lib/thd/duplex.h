/*
 * The layout of duplex speech: what one side of a conversation says, as text on a grid of frames
 * that it shares with the sound of both sides. A turn begins with bos at the frame where it starts,
 * its ids follow one a frame, eos stands at the frame where it ends, and the rest is padding.
 *
 * Source: build_token_channel of NeMo's DuplexS2SDataset, compute_num_frames of Lhotse;
 * tests/oracle/packing/check_duplex.py pins it.
 */
#ifndef S2S_THD_DUPLEX_H
#define S2S_THD_DUPLEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct s2s_duplex_options {
    double frame_s; /* length of a frame */
    int rate_hz;    /* times are rounded to its samples first; a frame has at least one */
    int32_t bos, eos, pad;
    bool drop_overrun; /* turns whose text does not end before they do are left out */
};

/* One turn; ids [n_ids] of its text, borrowed. */
struct s2s_duplex_turn {
    double start_s, end_s;
    const int32_t *ids;
    size_t n_ids;
};

/* Turns that are not what one may think; added up. */
struct s2s_duplex_counts {
    int64_t late; /* begin behind the end, and are not there */
    int64_t cut;  /* whose text goes on behind the end */
    int64_t
        overrun; /* whose text does not end before they do: eos stands in it, or it is dropped */
    int64_t unfinished; /* have no eos, as they end with the sound or later */
};

/* Frames of a time, rounded half up, after it was rounded to samples half to even. */
int64_t s2s_duplex_frames(double seconds, const struct s2s_duplex_options *opt);

/* Writes tokens [n], n = s2s_duplex_frames of the whole; times are not negative. Later turns
 * replace what earlier ones wrote. Adds to counts. */
void s2s_duplex_channel(int32_t *tokens, int64_t n, const struct s2s_duplex_turn *turns,
                        size_t n_turns, const struct s2s_duplex_options *opt,
                        struct s2s_duplex_counts *counts);

#endif
