/* Draws batches of like length from buckets. */
#include "lib/thd/buckets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/base/pyrandom.h"

/* ---- a batch ---- */

struct batch {
    size_t n;
    double longest; /* as it counts */
    int64_t size;   /* of its bucket; 0: none is set */
};

/* As Python computes it, whose ** is pow. */
static double counted(double len, const struct s2s_buckets_options *opt)
{
    return opt->quadratic > 0 ? len + pow(len, 2) / opt->quadratic : len;
}

static bool exceeds(size_t n, double longest, const struct s2s_buckets_options *opt)
{
    return opt->max_total > 0 && (double)n * longest > opt->max_total;
}

static bool is_closed(const struct batch *b, const struct s2s_buckets_options *opt)
{
    if (b->size > 0)
        return (int64_t)b->n >= b->size;
    return (opt->max_items > 0 && (int64_t)b->n >= opt->max_items) ||
           exceeds(b->n + 1, b->longest, opt);
}

/* Adds a sample; false: it would be too much, and is not in. */
static bool add(struct batch *b, double len, const struct s2s_buckets_options *opt)
{
    const double longest = fmax(b->longest, counted(len, opt));
    if (opt->hard && b->n > 0 && b->size == 0 && exceeds(b->n + 1, longest, opt))
        return false;
    b->longest = longest;
    b->n++;
    return true;
}

/* ---- what comes out ---- */

struct out {
    struct s2s_bins *bins;
    size_t cap_items, cap_begin;
};

static void put(struct out *out, uint32_t item)
{
    struct s2s_bins *bins = out->bins;
    s2s_grow(&bins->items, bins->n_items, &out->cap_items, sizeof *bins->items);
    bins->items[bins->n_items++] = item;
}

static void close_batch(struct out *out)
{
    struct s2s_bins *bins = out->bins;
    s2s_grow(&bins->begin, bins->n_bins + 1, &out->cap_begin, sizeof *bins->begin);
    bins->begin[++bins->n_bins] = bins->n_items;
}

/* What is left for some ranks but not for all becomes a batch of each. */
static void share_rest(struct out *out, const struct s2s_buckets_options *opt)
{
    struct s2s_bins *bins = out->bins;
    const size_t world = (size_t)opt->world, n_left = bins->n_bins % world;
    if (n_left == 0)
        return;
    bins->n_bins -= n_left;
    const size_t first = bins->begin[bins->n_bins];
    if (opt->drop_last) {
        bins->n_items = first;
        return;
    }
    while (bins->n_items - first < world) {
        const size_t n = bins->n_items - first, lacking = world - n;
        for (size_t i = 0; i < n && i < lacking; i++)
            put(out, bins->items[first + i]);
    }
    const size_t n = bins->n_items - first;
    bins->n_items = first;
    for (size_t r = 0; r < world; r++) {
        bins->n_items += n / world + (r < n % world);
        close_batch(out);
    }
}

/* ---- without buckets ---- */

static void in_order(struct out *out, const double *lens, size_t n,
                     const struct s2s_buckets_options *opt)
{
    struct batch b = {.n = 0};
    for (size_t i = 0; i < n; i++) {
        if (!add(&b, lens[i], opt)) {
            close_batch(out);
            b = (struct batch){.n = 0};
            add(&b, lens[i], opt);
        }
        put(out, (uint32_t)i);
        if (is_closed(&b, opt)) {
            close_batch(out);
            b = (struct batch){.n = 0};
        }
    }
    if (b.n > 0 && opt->drop_last)
        out->bins->n_items -= b.n;
    else if (b.n > 0)
        close_batch(out);
}

/* ---- buckets ---- */

struct bucket {
    uint32_t *items;
    size_t n, cap;
};

struct sampler {
    const struct s2s_buckets_options *opt;
    const double *lens, *lens2;
    size_t n, next, n_unfit;
    struct bucket *buckets; /* [n_bins + 1] */
    /* the choice of buckets has a generator of its own, whose seed is the same everywhere */
    struct s2s_pyrandom random, random_bucket;
    int64_t n_used; /* batches that the bucket last drawn has given */
    size_t drawn;
    uint32_t *order; /* [cap_order] scratch: places in the bucket of the batch */
    size_t cap_order;
};

/* The first bound that is not below len; n if all are. */
static size_t bisect(const double *bounds, size_t n, double len)
{
    size_t low = 0, high = n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (bounds[mid] < len)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The bucket of a sample, or n_bins + 1: none. */
static size_t bucket_of(double len, double len2, const struct s2s_buckets_options *opt)
{
    const size_t none = opt->n_bins + 1;
    if (opt->bins2 && opt->lenient) {
        for (size_t i = 0; i < opt->n_bins; i++)
            if (len <= opt->bins[i] && len2 <= opt->bins2[i])
                return i;
        return none;
    }
    const size_t from = bisect(opt->bins, opt->n_bins, len);
    if (!opt->bins2)
        return from == opt->n_bins && opt->sizes ? none : from;
    size_t to = from;
    while (to < opt->n_bins && opt->bins[to] == opt->bins[from])
        to++;
    const size_t at = from + bisect(opt->bins2 + from, to - from, len2);
    return at < to ? at : none;
}

static void collect(struct sampler *s, size_t n)
{
    for (; s->next < s->n && n > 0; s->next++) {
        const size_t i = s->next;
        const size_t at = bucket_of(s->lens[i], s->lens2 ? s->lens2[i] : 0, s->opt);
        if (at > s->opt->n_bins) { /* is left out before it comes here */
            s->n_unfit++;
            continue;
        }
        struct bucket *b = &s->buckets[at];
        s2s_grow(&b->items, b->n, &b->cap, sizeof *b->items);
        b->items[b->n++] = (uint32_t)i;
        n--;
    }
}

static struct batch new_batch(const struct sampler *s, size_t bucket)
{
    return (struct batch){.size = s->opt->sizes ? s->opt->sizes[bucket] : 0};
}

/* Holds the bucket a batch that something closes? */
static bool is_ready(const struct sampler *s, size_t bucket)
{
    struct batch b = new_batch(s, bucket);
    const struct bucket *from = &s->buckets[bucket];
    for (size_t i = 0; i < from->n; i++)
        if (!add(&b, s->lens[from->items[i]], s->opt) || is_closed(&b, s->opt))
            return true;
    return false;
}

static bool has_any(const struct sampler *s, size_t bucket)
{
    return s->buckets[bucket].n > 0;
}

static size_t draw_bucket(struct sampler *s)
{
    if (s->n_used == 0 || s->n_used == s->opt->world) {
        s->drawn = s2s_pyrandom_below(&s->random_bucket, (uint32_t)s->opt->n_bins + 1);
        s->n_used = 0;
    }
    s->n_used++;
    return s->drawn;
}

/* The bucket drawn, or its nearest neighbour that will do; -1: none does. */
static int64_t scan(struct sampler *s, bool (*will_do)(const struct sampler *s, size_t bucket))
{
    const int64_t n = (int64_t)s->opt->n_bins + 1;
    int64_t at = (int64_t)draw_bucket(s), least = at, most = at;
    for (int64_t k = 1; at < 0 || at >= n || !will_do(s, (size_t)at); k++) {
        if (least < 0 && most >= n)
            return -1;
        at += k % 2 == 0 ? k : -k;
        least = at < least ? at : least;
        most = at > most ? at : most;
    }
    return at;
}

static int64_t select_bucket(struct sampler *s)
{
    const struct s2s_pyrandom random = s->random_bucket;
    const int64_t n_used = s->n_used;
    const size_t drawn = s->drawn;
    const int64_t at = scan(s, is_ready);
    if (at >= 0 || s->opt->drop_last)
        return at;
    s->random_bucket = random; /* each batch takes as many draws, whatever is ready */
    s->n_used = n_used;
    s->drawn = drawn;
    return scan(s, has_any);
}

static int by_place(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Takes one batch out of the bucket; returns its samples. */
static size_t take(struct sampler *s, size_t bucket, struct out *out)
{
    struct bucket *from = &s->buckets[bucket];
    struct batch b = new_batch(s, bucket);
    if (from->n > s->cap_order) {
        s->cap_order = from->n;
        s->order = s2s_xrealloc(s->order, s->cap_order, sizeof *s->order);
    }
    for (size_t i = 0; i < from->n; i++)
        s->order[i] = (uint32_t)i;
    if (s->opt->shuffle)
        s2s_pyrandom_shuffle(&s->random, s->order, from->n);
    size_t n = 0;
    while (n < from->n && !is_closed(&b, s->opt) &&
           add(&b, s->lens[from->items[s->order[n]]], s->opt))
        put(out, from->items[s->order[n++]]);
    close_batch(out);
    qsort(s->order, n, sizeof *s->order, by_place);
    size_t kept = s->order[0];
    for (size_t i = kept, k = 0; i < from->n; i++)
        if (k < n && s->order[k] == i)
            k++;
        else
            from->items[kept++] = from->items[i];
    from->n = kept;
    return n;
}

static size_t by_buckets(struct out *out, const double *lens, const double *lens2, size_t n,
                         const struct s2s_buckets_options *opt)
{
    enum { SEED_OF_BUCKETS = 1234 };
    struct sampler s = {.opt = opt, .lens = lens, .lens2 = opt->bins2 ? lens2 : NULL, .n = n};
    int64_t at;
    s.buckets = s2s_xcalloc(opt->n_bins + 1, sizeof *s.buckets);
    s2s_pyrandom_seed(&s.random, opt->seed);
    s2s_pyrandom_seed(&s.random_bucket, SEED_OF_BUCKETS);
    collect(&s, opt->buffer);
    while ((at = select_bucket(&s)) >= 0)
        collect(&s, take(&s, (size_t)at, out));
    for (size_t i = 0; i <= opt->n_bins; i++)
        free(s.buckets[i].items);
    free(s.buckets);
    free(s.order);
    return s.n_unfit;
}

/* ---- the door ---- */

static int check_bounds(const struct s2s_buckets_options *opt, struct s2s_error *err)
{
    for (size_t i = 1; i < opt->n_bins; i++) {
        const double *a = &opt->bins[i], *b = opt->bins2 ? &opt->bins2[i] : NULL;
        if (a[0] < a[-1] || (b && a[0] == a[-1] && b[0] < b[-1]))
            return s2s_error_set(err, S2S_E_ARG, "bounds of buckets ascend, %g comes behind %g",
                                 b && a[0] == a[-1] ? b[0] : a[0],
                                 b && a[0] == a[-1] ? b[-1] : a[-1]);
    }
    for (size_t i = 0; opt->sizes && i < opt->n_bins; i++)
        if (opt->sizes[i] < 1)
            return s2s_error_set(err, S2S_E_ARG, "bucket %zu: a batch has at least one sample", i);
    if (opt->bins2 && !opt->sizes)
        return s2s_error_set(err, S2S_E_ARG,
                             "buckets of two lengths need the number of samples of each one's "
                             "batches");
    if (opt->n_bins > UINT32_MAX / 2)
        return s2s_error_set(err, S2S_E_ARG, "%zu buckets are too many", opt->n_bins);
    return 0;
}

static int check_lens(const double *lens, size_t n, const struct s2s_buckets_options *opt,
                      struct s2s_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (!(lens[i] >= 0 && isfinite(lens[i])))
            return s2s_error_set(err, S2S_E_RANGE, "length %zu is %g", i, lens[i]);
        if (opt->hard && !opt->sizes && exceeds(1, counted(lens[i], opt), opt))
            return s2s_error_set(err, S2S_E_RANGE, "length %zu is %g, more than a batch may have",
                                 i, lens[i]);
    }
    return 0;
}

int s2s_thd_buckets(struct s2s_bins *bins, size_t *n_unfit, const double *lens, const double *lens2,
                    size_t n, const struct s2s_buckets_options *opt, struct s2s_error *err)
{
    struct out out = {.bins = bins};
    *bins = (struct s2s_bins)S2S_BINS_INIT;
    *n_unfit = 0;
    int rc = opt->buffer > 0 ? check_bounds(opt, err) : 0;
    if (rc == 0)
        rc = check_lens(lens, n, opt, err);
    if (rc < 0)
        return rc;
    s2s_grow(&bins->begin, 0, &out.cap_begin, sizeof *bins->begin);
    s2s_grow(&bins->items, 0, &out.cap_items, sizeof *bins->items);
    bins->begin[0] = 0;
    if (opt->buffer > 0)
        *n_unfit = by_buckets(&out, lens, lens2, n, opt);
    else
        in_order(&out, lens, n, opt);
    share_rest(&out, opt);
    return 0;
}

/* ---- bounds ---- */

/* numpy's sum: eight sums side by side, in halves where there are many. */
static double numpy_sum(const double *x, size_t n)
{
    enum { N_SUMS = 8, N_BLOCK = 128 };
    double sum[N_SUMS];
    if (n < N_SUMS) {
        double all = -0.0;
        for (size_t i = 0; i < n; i++)
            all += x[i];
        return all;
    }
    if (n > N_BLOCK) {
        const size_t half = n / 2 - n / 2 % N_SUMS;
        return numpy_sum(x, half) + numpy_sum(x + half, n - half);
    }
    size_t i = N_SUMS;
    memcpy(sum, x, sizeof sum);
    for (; i < n - n % N_SUMS; i += N_SUMS)
        for (size_t k = 0; k < N_SUMS; k++)
            sum[k] += x[i + k];
    double all = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    for (; i < n; i++)
        all += x[i];
    return all;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

size_t s2s_thd_buckets_estimate(double *bins, const double *lens, size_t n, size_t n_buckets)
{
    double *sorted = s2s_xmalloc((n + 1) * sizeof *sorted);
    double sum = 0;
    size_t n_bins = 0;
    memcpy(sorted, lens, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    const double each = numpy_sum(sorted, n) / (double)n_buckets;
    for (size_t i = 0; i < n; i++) {
        if (sum > each) {
            bins[n_bins++] = sorted[i];
            sum = 0;
        }
        sum += sorted[i];
    }
    free(sorted);
    return n_bins;
}

size_t s2s_thd_buckets_even(double *bins, double min, double max, size_t n_buckets)
{
    const double step = (max - min) / (double)n_buckets;
    for (size_t i = 1; i < n_buckets; i++)
        bins[i - 1] = (double)i * step + min;
    return n_buckets - 1;
}
