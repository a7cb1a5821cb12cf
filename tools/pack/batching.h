/* Options of batches of like length (lib/thd/buckets.h), which s2s-pack and `s2s-pack buckets`
 * share. */
#ifndef TOOLS_PACK_BATCHING_H
#define TOOLS_PACK_BATCHING_H

#include <argp.h>
#include <stdbool.h>

#include "lib/thd/buckets.h"

struct pack_batching {
    double duration;      /* the longest times their number; 0: any */
    int64_t size;         /* samples; 0: any */
    int64_t n_buckets;    /* with bounds that are found; 0: they are given */
    double *bins, *bins2; /* [n_bins], bounds that are given */
    int64_t *sizes;       /* [n_sizes], samples of a batch of each */
    size_t n_bins, cap_bins, n_bins2, cap_bins2, n_sizes, cap_sizes;
    int64_t buffer; /* 0: not given */
    double quadratic;
    bool hard, drop_last, lenient;
};

enum {
    PACK_KEY_BATCH_SIZE = 0x200,
    PACK_KEY_BATCH_DURATION,
    PACK_KEY_BUCKETS,
    PACK_KEY_BUCKET_SIZES,
    PACK_KEY_BUCKET_BUFFER,
    PACK_KEY_QUADRATIC,
    PACK_KEY_HARD_LIMIT,
    PACK_KEY_DROP_LAST,
    PACK_KEY_LENIENT
};

/* Rows of a table of options, of that group. */
#define PACK_BATCHING_OPTIONS(group) \
    {"buckets", \
     PACK_KEY_BUCKETS, \
     "N|A,B,..", \
     0, \
     "Samples of like length share a batch: N buckets, or up to these lengths; A:T,.. also up to " \
     "T " \
     "ids", \
     group}, \
        {"bucket-sizes", \
         PACK_KEY_BUCKET_SIZES, \
         "N,M,..", \
         0, \
         "Samples of a batch of each bucket, in the place of other bounds", \
         group}, \
        {"bucket-buffer", \
         PACK_KEY_BUCKET_BUFFER, \
         "N", \
         0, \
         "Samples that are held in all buckets (default 10000)", \
         group}, \
        {"lenient-buckets", \
         PACK_KEY_LENIENT, \
         NULL, \
         0, \
         "A sample with too many ids for the buckets of its length goes to those of a greater " \
         "one", \
         group}, \
        {"quadratic", PACK_KEY_QUADRATIC, "X", 0, "A length x counts as x + x*x / X", group}, \
        {"hard-limit", \
         PACK_KEY_HARD_LIMIT, \
         NULL, \
         0, \
         "No batch is larger than its bound; else the last sample may make it so, as in Lhotse", \
         group}, \
    { \
        "drop-last", PACK_KEY_DROP_LAST, NULL, 0, "Leave out batches that are not full", group \
    }

/* Takes an option of these, or of --batch-size and --batch-duration; false: it is none. */
bool pack_batching_parse(struct pack_batching *b, int key, const char *arg,
                         struct argp_state *state);
/* Is there a bound of batches at all? */
bool pack_batching_is_on(const struct pack_batching *b);
bool pack_batching_has_buckets(const struct pack_batching *b);
/* Once all options are there: ends the program where they cannot go together. */
void pack_batching_check(const struct pack_batching *b, struct argp_state *state);
void pack_batching_release(struct pack_batching *b);

/* What is said of the samples. */
struct pack_batching_of {
    const double *lens, *lens2; /* [n]; lens2: ids, used with bounds of two lengths */
    size_t n;
    double min, max; /* lengths that are let pass; max: at most 1e299, else bounds are estimated */
    uint64_t shuffle, seed; /* shuffle: so many more are held, and batches drawn; 0: in order */
    int64_t multiple;       /* of batches */
};

/* Batches of the samples as bins of their indices. *n_unfit: samples that no bucket takes. */
int pack_batching_run(struct s2s_bins *bins, size_t *n_unfit, const struct pack_batching *b,
                      const struct pack_batching_of *of, struct s2s_error *err);
/* Bounds of n_buckets, given or found; gives *bins (free). Returns how many. */
size_t pack_batching_bounds(double **bins, const struct pack_batching *b,
                            const struct pack_batching_of *of);

#endif
