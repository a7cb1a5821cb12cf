/*
 * Bin packing: which utterances share a row of `capacity` slots. The algorithms are those of
 * NeMo-RL's sequence packing and give the same bins in the same order;
 * tests/oracle/packing/check_packing.py pins them.
 */
#ifndef S2S_THD_BINS_H
#define S2S_THD_BINS_H

#include <stddef.h>
#include <stdint.h>

struct s2s_error;

enum s2s_bin_algorithm {
    S2S_BINS_CONCATENATIVE, /* in order; a new bin when the next item does not fit */
    S2S_BINS_FFD,           /* first_fit_decreasing: ties by index, the higher first */
    S2S_BINS_FF_SHUFFLE,    /* first_fit over random.shuffle of the seed */
    S2S_BINS_MFFD,          /* modified_first_fit_decreasing */
    S2S_BINS_BFD /* the longest first, each into the fullest bin with room; ties as ffd */
};

/* "concatenative", "ffd", "ff_shuffle", "mffd", "bfd"; NULL-ended, in the order of the enum. */
extern const char *const s2s_thd_bin_algorithms[];

enum { S2S_BFD_MAX_CAPACITY = 1 << 24 };

struct s2s_bins_options {
    enum s2s_bin_algorithm algorithm;
    int64_t capacity;      /* slots of a bin, 1 .. INT32_MAX */
    int64_t multiple;      /* each length is rounded up to this first; at least 1 */
    int64_t min_bins;      /* 0: no minimum */
    int64_t bins_multiple; /* the number of bins is a multiple of this; at least 1 */
    uint64_t seed;         /* of ff_shuffle */
    int64_t lookahead;     /* 0, or samples held: lookahead.h packs in the place of the algorithm */
};

#define S2S_BINS_OPTIONS_DEFAULT \
    { \
        .algorithm = S2S_BINS_FFD, .multiple = 1, .bins_multiple = 1 \
    }

/* Bin b holds items[begin[b]] .. items[begin[b + 1] - 1], indices of lengths in the order in which
 * they went in. */
struct s2s_bins {
    uint32_t *items; /* [n_items] */
    size_t *begin;   /* [n_bins + 1] */
    size_t n_bins, n_items;
};

#define S2S_BINS_INIT \
    { \
        NULL, NULL, 0, 0 \
    }

void s2s_bins_release(struct s2s_bins *bins);

/*
 * Packs lens [n] (slots, borrowed; 0 only where the algorithm is not mffd). RANGE for a length that
 * is negative, or longer than the capacity after rounding (names the index), and E_TOO_FEW when
 * there are fewer items than bins wanted; bfd counts rooms and takes capacities up to
 * S2S_BFD_MAX_CAPACITY. O(n log n) at most; 1 M lengths take well under 0.1 s.
 * Gives: s2s_bins_release.
 *
 * Source: nemo_rl/data/packing/algorithms.py (NVIDIA NeMo-RL).
 */
int s2s_thd_bins(struct s2s_bins *bins, const int32_t *lens, size_t n,
                 const struct s2s_bins_options *opt, struct s2s_error *err);

/* Bins that no way of packing can fall below: (rounded) lengths over capacity. */
int64_t s2s_thd_bins_bound(const struct s2s_bins *bins, const int32_t *lens,
                           const struct s2s_bins_options *opt);

/* Share of the slots that hold (rounded) lengths: total / (bins * capacity); 0 without bins. */
double s2s_thd_bins_fill(const struct s2s_bins *bins, const int32_t *lens,
                         const struct s2s_bins_options *opt);

/* x rounded up to a multiple of m; x >= 0, m >= 1. */
static inline int64_t s2s_thd_round_up(int64_t x, int64_t m)
{
    return (x + m - 1) / m * m;
}

#endif
