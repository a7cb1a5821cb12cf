/* Reads options of batches of like length, and has the batches made. */
#include "tools/pack/batching.h"

#include <string.h>

#include "lib/base/base.h"
#include "lib/base/tool.h"

enum { DEFAULT_BUFFER = 10000 };

/* Walks words between commas; gives each one (free), NULL behind the last. */
static char *next_item(const char **at)
{
    if (!*at)
        return NULL;
    const size_t len = strcspn(*at, ",");
    char *word = s2s_xstrndup(*at, len);
    *at = (*at)[len] ? *at + len + 1 : NULL;
    return word;
}

/* A, or A:T */
static void parse_bound(struct pack_batching *b, char *word, struct argp_state *state)
{
    char *second = strchr(word, ':');
    if (second)
        *second++ = 0;
    s2s_grow(&b->bins, b->n_bins, &b->cap_bins, sizeof *b->bins);
    b->bins[b->n_bins++] = s2s_arg_f64(state, "buckets", word, 0, 1e300);
    if (!second)
        return;
    s2s_grow(&b->bins2, b->n_bins2, &b->cap_bins2, sizeof *b->bins2);
    b->bins2[b->n_bins2++] = s2s_arg_f64(state, "buckets", second, 0, 1e300);
}

/* One number is how many buckets there are, others are their bounds. */
static void parse_buckets(struct pack_batching *b, const char *arg, struct argp_state *state)
{
    char *word;
    b->n_bins = b->n_bins2 = 0;
    b->n_buckets = 0;
    if (!strpbrk(arg, ",:.")) {
        b->n_buckets = s2s_arg_i64(state, "buckets", arg, 2, 1 << 20);
        return;
    }
    while ((word = next_item(&arg))) {
        parse_bound(b, word, state);
        free(word);
    }
    if (b->n_bins2 > 0 && b->n_bins2 != b->n_bins)
        argp_error(state, "--buckets: all bounds have two lengths, or none");
}

static void parse_sizes(struct pack_batching *b, const char *arg, struct argp_state *state)
{
    char *word;
    b->n_sizes = 0;
    while ((word = next_item(&arg))) {
        s2s_grow(&b->sizes, b->n_sizes, &b->cap_sizes, sizeof *b->sizes);
        b->sizes[b->n_sizes++] = s2s_arg_i64(state, "bucket-sizes", word, 1, INT32_MAX);
        free(word);
    }
}

bool pack_batching_parse(struct pack_batching *b, int key, const char *arg,
                         struct argp_state *state)
{
    switch (key) {
    case PACK_KEY_BATCH_SIZE:
        b->size = s2s_arg_i64(state, "batch-size", arg, 1, INT32_MAX);
        return true;
    case PACK_KEY_BATCH_DURATION:
        b->duration = s2s_arg_f64(state, "batch-duration", arg, 1e-6, 1e300);
        return true;
    case PACK_KEY_BUCKETS:
        parse_buckets(b, arg, state);
        return true;
    case PACK_KEY_BUCKET_SIZES:
        parse_sizes(b, arg, state);
        return true;
    case PACK_KEY_BUCKET_BUFFER:
        b->buffer = s2s_arg_i64(state, "bucket-buffer", arg, 1, S2S_BUCKETS_MAX_BUFFER);
        return true;
    case PACK_KEY_QUADRATIC:
        b->quadratic = s2s_arg_f64(state, "quadratic", arg, 1e-6, 1e300);
        return true;
    case PACK_KEY_HARD_LIMIT:
        return b->hard = true;
    case PACK_KEY_DROP_LAST:
        return b->drop_last = true;
    case PACK_KEY_LENIENT:
        return b->lenient = true;
    default:
        return false;
    }
}

bool pack_batching_has_buckets(const struct pack_batching *b)
{
    return b->n_buckets > 0 || b->n_bins > 0;
}

bool pack_batching_is_on(const struct pack_batching *b)
{
    return b->size > 0 || b->duration > 0 || b->n_sizes > 0;
}

void pack_batching_check(const struct pack_batching *b, struct argp_state *state)
{
    const struct {
        bool is_wrong;
        const char *text;
    } rules[] = {
        {b->n_sizes > 0 && b->n_sizes != b->n_bins,
         "--bucket-sizes has a number for each bound of --buckets"},
        {b->n_sizes > 0 && (b->size > 0 || b->duration > 0),
         "--bucket-sizes, or other bounds of a batch, not both"},
        {b->n_bins2 > 0 && b->n_sizes == 0, "--buckets of two lengths go with --bucket-sizes"},
        {b->lenient && b->n_bins2 == 0, "--lenient-buckets goes with --buckets of two lengths"},
        {b->buffer > 0 && !pack_batching_has_buckets(b), "--bucket-buffer goes with --buckets"},
        {(b->quadratic > 0 || b->hard) && b->duration == 0,
         "--quadratic and --hard-limit go with a bound of lengths"},
        {(b->drop_last || pack_batching_has_buckets(b)) && !pack_batching_is_on(b),
         "--buckets and --drop-last go with bounds of a batch"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].is_wrong)
            argp_error(state, "%s", rules[i].text);
}

void pack_batching_release(struct pack_batching *b)
{
    free(b->bins);
    free(b->bins2);
    free(b->sizes);
}

size_t pack_batching_bounds(double **bins, const struct pack_batching *b,
                            const struct pack_batching_of *of)
{
    const size_t n = of->n < S2S_BUCKETS_N_FOR_ESTIMATE ? of->n : S2S_BUCKETS_N_FOR_ESTIMATE;
    if (b->n_buckets == 0) {
        *bins = s2s_xmalloc((b->n_bins + 1) * sizeof **bins);
        if (b->n_bins > 0)
            memcpy(*bins, b->bins, b->n_bins * sizeof **bins);
        return b->n_bins;
    }
    *bins = s2s_xmalloc(((size_t)b->n_buckets + 2) * sizeof **bins);
    return of->max < 1e299 ? s2s_thd_buckets_even(*bins, of->min, of->max, (size_t)b->n_buckets)
                           : s2s_thd_buckets_estimate(*bins, of->lens, n, (size_t)b->n_buckets);
}

int pack_batching_run(struct s2s_bins *bins, size_t *n_unfit, const struct pack_batching *b,
                      const struct pack_batching_of *of, struct s2s_error *err)
{
    struct s2s_buckets_options how = S2S_BUCKETS_OPTIONS_DEFAULT;
    double *bounds = NULL;
    how.max_total = b->duration;
    how.max_items = b->size;
    how.quadratic = b->quadratic;
    how.hard = b->hard;
    how.drop_last = b->drop_last;
    how.world = of->multiple;
    if (pack_batching_has_buckets(b)) {
        how.n_bins = pack_batching_bounds(&bounds, b, of);
        how.bins = bounds;
        how.bins2 = b->n_bins2 > 0 ? b->bins2 : NULL;
        how.sizes = b->n_sizes > 0 ? b->sizes : NULL;
        how.lenient = b->lenient;
        how.shuffle = of->shuffle > 0;
        how.seed = of->seed;
        how.buffer = (size_t)(b->buffer > 0 ? b->buffer : DEFAULT_BUFFER) + of->shuffle;
    }
    int rc = s2s_thd_buckets(bins, n_unfit, of->lens, of->lens2, of->n, &how, err);
    free(bounds);
    return rc;
}
