/* Sorts utterances into bins, by NeMo-RL's algorithms. */
#include "lib/thd/bins.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/base.h"
#include "lib/base/pyrandom.h"
#include "lib/thd/lookahead.h"
#include "lib/thd/thd_internal.h"

const char *const s2s_thd_bin_algorithms[] = {"concatenative", "ffd", "ff_shuffle",
                                              "mffd",          "bfd", NULL};

void s2s_bins_release(struct s2s_bins *bins)
{
    free(bins->items);
    free(bins->begin);
    *bins = (struct s2s_bins)S2S_BINS_INIT;
}

/* ---- sorting ---- */

enum { DIGIT_BITS = 16 };

/* One pass of a least-significant-digit sort. */
static void sort_pass(uint32_t *to, const uint32_t *from, const int32_t *keys, size_t n, int shift,
                      uint32_t *count, size_t n_digits)
{
    const uint32_t mask = (uint32_t)n_digits - 1;
    uint32_t at = 0;
    memset(count, 0, n_digits * sizeof *count);
    for (size_t i = 0; i < n; i++)
        count[(uint32_t)keys[i] >> shift & mask]++;
    for (size_t d = 0; d < n_digits; d++) {
        uint32_t here = count[d];
        count[d] = at;
        at += here;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t item = from ? from[i] : (uint32_t)i;
        to[count[(uint32_t)keys[item] >> shift & mask]++] = item;
    }
}

void thd_sort(uint32_t *order, const int32_t *keys, size_t n, int32_t max)
{
    const int bits = max > 0 ? 32 - __builtin_clz((unsigned)max) : 1;
    const int first_bits = bits < DIGIT_BITS ? bits : DIGIT_BITS;
    uint32_t *count = s2s_xmalloc(sizeof *count << first_bits);
    if (bits <= DIGIT_BITS) {
        sort_pass(order, NULL, keys, n, 0, count, (size_t)1 << bits);
    } else {
        uint32_t *low = s2s_xmalloc((n + 1) * sizeof *low);
        sort_pass(low, NULL, keys, n, 0, count, (size_t)1 << DIGIT_BITS);
        sort_pass(order, low, keys, n, DIGIT_BITS, count, (size_t)1 << (bits - DIGIT_BITS));
        free(low);
    }
    free(count);
}

/* ---- algorithms ---- */

static void concatenative(struct bins_open *open, const int32_t *lens, int64_t capacity)
{
    int64_t load = 0;
    for (size_t i = 0; i < open->n_items; i++) {
        if (i == 0 || load + lens[i] > capacity) {
            open->n_bins++;
            load = 0;
        }
        load += lens[i];
        open->order[i] = (uint32_t)i;
        open->bin[i] = (uint32_t)open->n_bins - 1;
    }
}

static void look_ahead(struct bins_open *open, const int32_t *lens, size_t window, int64_t capacity)
{
    struct s2s_lookahead *ahead = s2s_lookahead_new(window, capacity);
    const size_t n_items = open->n_items;
    size_t i = 0, n_placed = 0, n;
    const uint32_t *items;
    do {
        bool full = false;
        for (; i < n_items && !full; i++)
            full = s2s_lookahead_add(ahead, (uint32_t)i, lens[i]);
        n = s2s_lookahead_take(ahead, &items);
        for (size_t k = 0; k < n; k++) {
            open->order[n_placed] = items[k];
            open->bin[n_placed++] = (uint32_t)open->n_bins;
        }
        open->n_bins += n > 0;
    } while (n > 0);
    s2s_lookahead_free(ahead);
}

static void run(struct bins_open *open, const int32_t *lens, int32_t max,
                const struct s2s_bins_options *opt)
{
    struct s2s_pyrandom random;
    const size_t n = open->n_items;
    if (opt->lookahead > 0) {
        look_ahead(open, lens, (size_t)opt->lookahead, opt->capacity);
        return;
    }
    switch (opt->algorithm) {
    case S2S_BINS_CONCATENATIVE:
        concatenative(open, lens, opt->capacity);
        return;
    case S2S_BINS_MFFD:
        thd_mffd(open, lens, n, opt->capacity);
        return;
    case S2S_BINS_FFD:
    case S2S_BINS_BFD:
        thd_sort(open->order, lens, n, max);
        for (size_t i = 0; i < n / 2; i++) { /* descending, and of equal ones the last first */
            uint32_t item = open->order[i];
            open->order[i] = open->order[n - 1 - i];
            open->order[n - 1 - i] = item;
        }
        break;
    case S2S_BINS_FF_SHUFFLE:
        for (size_t i = 0; i < n; i++)
            open->order[i] = (uint32_t)i;
        s2s_pyrandom_seed(&random, opt->seed);
        s2s_pyrandom_shuffle(&random, open->order, n);
        break;
    }
    if (opt->algorithm == S2S_BINS_BFD)
        thd_best_fit(open, lens, opt->capacity);
    else
        thd_first_fit(open, lens, opt->capacity);
}

/* Lists of items by bin, from the order in which they went in. */
static void close_bins(struct s2s_bins *bins, const struct bins_open *open)
{
    const size_t n = open->n_items, n_bins = open->n_bins;
    bins->items = s2s_xmalloc((n + 1) * sizeof *bins->items);
    bins->begin = s2s_xcalloc(n_bins + 1, sizeof *bins->begin);
    bins->n_items = n;
    bins->n_bins = n_bins;
    uint32_t *at = s2s_xcalloc(n_bins + 1, sizeof *at);
    for (size_t i = 0; i < n; i++)
        at[open->bin[i] + 1]++;
    for (size_t b = 0; b < n_bins; b++) {
        at[b + 1] += at[b];
        bins->begin[b + 1] = at[b + 1];
    }
    for (size_t i = 0; i < n; i++)
        bins->items[at[open->bin[i]]++] = open->order[i];
    free(at);
}

/* ---- the number of bins ---- */

struct donor {
    size_t n_items, bin;
};

static int by_size_then_bin_descending(const void *pa, const void *pb)
{
    const struct donor *a = pa, *b = pb;
    if (a->n_items != b->n_items)
        return a->n_items < b->n_items ? 1 : -1;
    return a->bin < b->bin ? 1 : -1;
}

/* Each new bin gets the last item of the fullest bin (by items; the order is fixed at the start)
 * that has more than one left. */
static void split_bins(struct s2s_bins *bins, size_t want)
{
    const size_t have = bins->n_bins;
    struct donor *donors = s2s_xcalloc(have + 1, sizeof *donors);
    uint32_t *items = s2s_xmalloc((bins->n_items + 1) * sizeof *items);
    uint32_t *given = s2s_xmalloc((want - have + 1) * sizeof *given);
    size_t *begin = s2s_xcalloc(want + 1, sizeof *begin);
    size_t donor = 0, at = 0;
    for (size_t b = 0; b < have; b++)
        donors[b] = (struct donor){bins->begin[b + 1] - bins->begin[b], b};
    qsort(donors, have, sizeof *donors, by_size_then_bin_descending);
    for (size_t i = 0; i < want - have; i++) {
        while (donors[donor].n_items <= 1)
            donor++;
        given[i] = bins->items[bins->begin[donors[donor].bin] + --donors[donor].n_items];
    }
    for (size_t d = 0; d < have; d++) /* what is left of each, by bin */
        begin[donors[d].bin] = donors[d].n_items;
    for (size_t b = 0; b < have; b++) {
        size_t left = begin[b];
        begin[b] = at;
        memcpy(items + at, bins->items + bins->begin[b], left * sizeof *items);
        at += left;
    }
    for (size_t i = 0; i < want - have; i++) {
        begin[have + i] = at;
        items[at++] = given[i];
    }
    begin[want] = at;
    free(bins->items);
    free(bins->begin);
    free(donors);
    free(given);
    bins->items = items;
    bins->begin = begin;
    bins->n_bins = want;
}

static int constrain(struct s2s_bins *bins, const struct s2s_bins_options *opt,
                     struct s2s_error *err)
{
    int64_t want = (int64_t)bins->n_bins > opt->min_bins ? (int64_t)bins->n_bins : opt->min_bins;
    want = s2s_thd_round_up(want, opt->bins_multiple);
    if (want > (int64_t)bins->n_items)
        return s2s_error_set(err, S2S_E_RANGE, "E_TOO_FEW: %zu items for %lld bins", bins->n_items,
                             (long long)want);
    if ((size_t)want > bins->n_bins)
        split_bins(bins, (size_t)want);
    return 0;
}

/* ---- the door ---- */

static int check_options(const struct s2s_bins_options *opt, size_t n, struct s2s_error *err)
{
    if (opt->capacity < 1 || opt->capacity > INT32_MAX)
        return s2s_error_set(err, S2S_E_RANGE, "the capacity is %lld, 1 to %d expected",
                             (long long)opt->capacity, INT32_MAX);
    if (opt->multiple < 1 || opt->multiple > INT32_MAX || opt->bins_multiple < 1 ||
        opt->bins_multiple > INT32_MAX || opt->min_bins < 0 || opt->min_bins > INT32_MAX)
        return s2s_error_set(err, S2S_E_RANGE, "a multiple or minimum is out of range");
    if (opt->lookahead < 0 || opt->lookahead > S2S_LOOKAHEAD_MAX_WINDOW ||
        (opt->lookahead > 0 && opt->capacity > S2S_LOOKAHEAD_MAX_CAPACITY))
        return s2s_error_set(
            err, S2S_E_RANGE,
            "a window of %lld samples for bins of %lld, at most %d and %d expected",
            (long long)opt->lookahead, (long long)opt->capacity, S2S_LOOKAHEAD_MAX_WINDOW,
            S2S_LOOKAHEAD_MAX_CAPACITY);
    if (opt->algorithm == S2S_BINS_BFD && opt->capacity > S2S_BFD_MAX_CAPACITY)
        return s2s_error_set(err, S2S_E_RANGE, "the capacity is %lld, bfd takes %d at most",
                             (long long)opt->capacity, S2S_BFD_MAX_CAPACITY);
    if (n > UINT32_MAX / 2)
        return s2s_error_set(err, S2S_E_RANGE, "%zu items are too many", n);
    return 0;
}

/* Rounds lengths up; *max is the largest. */
static int round_lens(int32_t *rounded, int32_t *max, const int32_t *lens, size_t n,
                      const struct s2s_bins_options *opt, struct s2s_error *err)
{
    const int min = opt->lookahead > 0 || opt->algorithm == S2S_BINS_MFFD;
    *max = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t len = lens[i];
        if (len < min)
            return s2s_error_set(err, S2S_E_RANGE, "length %zu is %lld, at least %d expected", i,
                                 (long long)len, min);
        if (opt->multiple > 1)
            len = s2s_thd_round_up(len, opt->multiple);
        if (len > opt->capacity)
            return s2s_error_set(err, S2S_E_RANGE,
                                 "length %zu is %lld (rounded up from %d), the capacity is %lld", i,
                                 (long long)len, lens[i], (long long)opt->capacity);
        rounded[i] = (int32_t)len;
        *max = rounded[i] > *max ? rounded[i] : *max;
    }
    return 0;
}

int s2s_thd_bins(struct s2s_bins *bins, const int32_t *lens, size_t n,
                 const struct s2s_bins_options *opt, struct s2s_error *err)
{
    *bins = (struct s2s_bins)S2S_BINS_INIT;
    int32_t max;
    int rc = check_options(opt, n, err);
    if (rc < 0)
        return rc;
    struct bins_open open = {.n_items = n};
    int32_t *rounded = s2s_xmalloc((n + 1) * sizeof *rounded);
    if ((rc = round_lens(rounded, &max, lens, n, opt, err)) < 0)
        goto out;
    open.order = s2s_xmalloc((n + 1) * sizeof *open.order);
    open.bin = s2s_xmalloc((n + 1) * sizeof *open.bin);
    run(&open, rounded, max, opt);
    close_bins(bins, &open);
    if ((rc = constrain(bins, opt, err)) < 0)
        s2s_bins_release(bins);
out:
    free(open.order);
    free(open.bin);
    free(rounded);
    return rc;
}

static int64_t total_of(const struct s2s_bins *bins, const int32_t *lens, int64_t multiple)
{
    int64_t total = 0;
    for (size_t i = 0; i < bins->n_items; i++)
        total += s2s_thd_round_up(lens[bins->items[i]], multiple);
    return total;
}

int64_t s2s_thd_bins_bound(const struct s2s_bins *bins, const int32_t *lens,
                           const struct s2s_bins_options *opt)
{
    const int64_t total = total_of(bins, lens, opt->multiple);
    return (total + opt->capacity - 1) / opt->capacity;
}

double s2s_thd_bins_fill(const struct s2s_bins *bins, const int32_t *lens,
                         const struct s2s_bins_options *opt)
{
    const int64_t total = total_of(bins, lens, opt->multiple);
    return bins->n_bins ? (double)total / ((double)bins->n_bins * (double)opt->capacity) : 0;
}
