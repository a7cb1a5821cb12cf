/*
 * Batches of samples of like length, for training in padded batches: samples go into buckets by
 * their lengths, a bucket is drawn, and what it holds gives one batch. Without buckets batches
 * are cut out of the samples in their order.
 *
 * A batch is closed by the sample after which it has max_items samples, or after which one more
 * sample as long as its longest would make their number times the longest more than max_total. That
 * sample is part of it, so without buckets a batch can come to more than max_total.
 *
 * Source: DynamicBucketingSampler (sync_buckets, not concurrent) and DynamicCutSampler of Lhotse,
 * TimeConstraint and TokenConstraint, FixedBucketBatchSizeConstraint2D of NeMo: the same batches in
 * the same order. tests/oracle/lhotse/check_batches.py pins them.
 */
#ifndef S2S_THD_BUCKETS_H
#define S2S_THD_BUCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/thd/bins.h"

struct s2s_error;

struct s2s_buckets_options {
    double max_total;  /* in the unit of lengths; 0: no bound */
    int64_t max_items; /* 0: no bound; one of these two or sizes is given */
    double quadratic;  /* a length x counts as x + x*x / quadratic; 0: as x */
    bool hard;         /* a batch never comes to more than max_total */
    bool drop_last;    /* batches that nothing closes are left out */
    int64_t world;     /* at least 1: so many batches in a row are of one bucket, and the number of
                        * batches is a multiple of it: of what is left at the end, samples are dealt
                        * anew, some twice if they are too few; with drop_last they are left out */
    /* Buckets: bucket i has lengths up to bins[i], ascending; what is longer than the last goes
     * into one more, unless `sizes` or bins2 is given, when it fits none. buffer 0: there are no
     * buckets. */
    size_t buffer;        /* samples that are held in all of them; at least 1 to have buckets */
    const double *bins;   /* [n_bins], borrowed */
    const double *bins2;  /* [n_bins]: of a second length that must fit too; NULL: there is none */
    const int64_t *sizes; /* [n_bins]: samples of a batch of each, instead of the bounds above */
    size_t n_bins;
    bool lenient; /* with bins2: the first bucket that holds both lengths; else only those whose
                   * first bound is the smallest that fits */
    bool shuffle; /* a batch is drawn from its bucket, else it is its first samples */
    uint64_t seed;
};

#define S2S_BUCKETS_OPTIONS_DEFAULT \
    { \
        .world = 1 \
    }

enum { S2S_BUCKETS_MAX_BUFFER = 1 << 28 };

/*
 * Batches as bins of the indices of lens [n]; lens2 [n] is the second length with bins2. *n_unfit:
 * samples that fit no bucket, and are in none. ARG for options that cannot go together; RANGE for a
 * length that is not finite or negative, or with `hard` more than max_total alone (names the
 * index). Gives: s2s_bins_release.
 */
int s2s_thd_buckets(struct s2s_bins *bins, size_t *n_unfit, const double *lens, const double *lens2,
                    size_t n, const struct s2s_buckets_options *opt, struct s2s_error *err);

enum { S2S_BUCKETS_N_FOR_ESTIMATE = 10000 }; /* samples that Lhotse estimates bounds from */

/*
 * Bounds between buckets of about the same sum of lengths. bins: room for n_buckets, which always
 * suffices; returns how many there are, n_buckets - 1 or, where lengths are few, less. n >= 1.
 * Source: estimate_duration_buckets of Lhotse; the sum is numpy's.
 */
size_t s2s_thd_buckets_estimate(double *bins, const double *lens, size_t n, size_t n_buckets);
/* n_buckets - 1 bounds that cut min .. max evenly (numpy's linspace), as NeMo has them where no
 * bounds are given but a longest length. */
size_t s2s_thd_buckets_even(double *bins, double min, double max, size_t n_buckets);

#endif
