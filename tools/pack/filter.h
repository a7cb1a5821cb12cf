/* Samples that are left out on purpose, by what they measure. */
#ifndef TOOLS_PACK_FILTER_H
#define TOOLS_PACK_FILTER_H

#include <stdint.h>

/* Why a sample is left out, in the order in which they are asked. */
enum pack_filtered {
    PACK_KEPT,
    PACK_FILTERED_STATUS,
    PACK_FILTERED_DURATION,
    PACK_FILTERED_TOKENS,
    PACK_FILTERED_TPS,
    PACK_FILTERED_TPT,
    PACK_FILTERED_BUCKET, /* which fits none of --buckets */
    N_PACK_FILTERED
};

/* Names of the reasons in reports; that of PACK_KEPT is not used. */
extern const char *const pack_filtered_names[N_PACK_FILTERED];

/* Bounds, all inclusive. */
struct pack_filter {
    const char *status;       /* validation_status that is kept, if there is one; NULL: any */
    double min_s, max_s;      /* of all sound; text alone passes */
    int64_t min_len, max_len; /* slots */
    double min_tps, max_tps;  /* ids a second of sound; text alone passes */
    double min_tpt, max_tpt;  /* predicted ids an id that is not; sound passes */
};

#define PACK_FILTER_DEFAULT \
    { \
        .max_s = 1e300, .max_len = INT64_MAX, .max_tps = 1e300, .max_tpt = 1e300 \
    }

struct pack_row;

/* len: slots of the row. rate_hz: of the samples that it is measured in. */
enum pack_filtered pack_filter_row(const struct pack_filter *filter, const struct pack_row *row,
                                   int64_t len, int rate_hz);

#endif
