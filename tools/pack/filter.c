/* Asks whether a sample is wanted. */
#include "tools/pack/filter.h"

#include <string.h>

#include "tools/pack/row.h"

const char *const pack_filtered_names[N_PACK_FILTERED] = {
    "kept",  "validation_status", "duration", "tokens", "tokens_per_second", "tokens_per_token",
    "bucket"};

static bool has_status(const struct pack_row *row, const char *status)
{
    const json_t *value = json_object_get(row->sample.custom, "validation_status");
    return !json_is_string(value) || !strcmp(json_string_value(value), status);
}

static bool within(double value, double min, double max)
{
    return value >= min && value <= max;
}

/* Predicted ids by those that are not. */
static double answer_ratio(const struct s2s_thd_row *thd)
{
    size_t n = 0;
    for (size_t i = 0; i < thd->n_ids; i++)
        n += !thd->loss_mask || thd->loss_mask[i];
    return n < thd->n_ids ? (double)n / (double)(thd->n_ids - n) : 1e299;
}

enum pack_filtered pack_filter_row(const struct pack_filter *f, const struct pack_row *row,
                                   int64_t len, int rate_hz)
{
    const double seconds = (double)pack_row_samples(row) / rate_hz;
    const bool has_sound = row->n_clips > 0;
    if (f->status && !has_status(row, f->status))
        return PACK_FILTERED_STATUS;
    if (has_sound && !within(seconds, f->min_s, f->max_s))
        return PACK_FILTERED_DURATION;
    if (len < f->min_len || len > f->max_len)
        return PACK_FILTERED_TOKENS;
    if (has_sound && seconds > 0 &&
        !within((double)row->thd.n_ids / seconds, f->min_tps, f->max_tps))
        return PACK_FILTERED_TPS;
    if (!has_sound && !within(answer_ratio(&row->thd), f->min_tpt, f->max_tpt))
        return PACK_FILTERED_TPT;
    return PACK_KEPT;
}
