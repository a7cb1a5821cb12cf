/* Cuts sorted samples into microbatches. */
#include "lib/thd/dynamic.h"

#include <stdlib.h>

#include "lib/base/base.h"
#include "lib/thd/bins.h"
#include "lib/thd/thd_internal.h"

void s2s_dynamic_release(struct s2s_dynamic *out)
{
    free(out->order);
    free(out->begin);
    free(out->len);
    *out = (struct s2s_dynamic){.n = 0};
}

static int check(int32_t *max, const int32_t *lens, size_t n, const struct s2s_dynamic_options *opt,
                 struct s2s_error *err)
{
    *max = 0;
    if (n % (size_t)opt->dp_size != 0)
        return s2s_error_set(err, S2S_E_SHAPE, "%zu samples do not divide over %lld ranks", n,
                             (long long)opt->dp_size);
    for (size_t i = 0; i < n; i++) {
        if (lens[i] < 0)
            return s2s_error_set(err, S2S_E_RANGE, "length %zu is %d", i, lens[i]);
        *max = lens[i] > *max ? lens[i] : *max;
    }
    return 0;
}

/* Length of the rows at a place of all ranks: the last of them has the longest. */
static int64_t row_len(const struct s2s_dynamic *out, size_t place, const int32_t *lens,
                       const struct s2s_dynamic_options *opt)
{
    const size_t last = (place + 1) * (size_t)opt->dp_size - 1;
    const int64_t len = s2s_thd_round_up(lens[out->order[last]], opt->round);
    return opt->width > 0 && len > opt->width ? opt->width : len;
}

int s2s_thd_dynamic(struct s2s_dynamic *out, const int32_t *lens, size_t n,
                    const struct s2s_dynamic_options *opt, struct s2s_error *err)
{
    int32_t max;
    *out = (struct s2s_dynamic){.n = n};
    int rc = check(&max, lens, n, opt, err);
    if (rc < 0)
        return rc;
    const size_t n_places = n / (size_t)opt->dp_size;
    out->order = s2s_xmalloc((n + 1) * sizeof *out->order);
    out->begin = s2s_xcalloc(n_places + 1, sizeof *out->begin);
    out->len = s2s_xcalloc(n_places + 1, sizeof *out->len);
    thd_sort(out->order, lens, n, max);
    for (size_t j = 0; j < n_places; j++) { /* rows never get shorter */
        const int64_t len = row_len(out, j, lens, opt);
        if (len > opt->max_tokens) {
            const uint32_t item = out->order[(j + 1) * (size_t)opt->dp_size - 1];
            rc = s2s_error_set(err, S2S_E_RANGE,
                               "length %u is %d, a row of %lld slots, a microbatch has %lld", item,
                               lens[item], (long long)len, (long long)opt->max_tokens);
            s2s_dynamic_release(out);
            return rc;
        }
        const size_t begin = out->n_micro > 0 ? out->begin[out->n_micro - 1] : 0;
        if (out->n_micro == 0 || (int64_t)(j - begin + 1) * len > opt->max_tokens)
            out->begin[out->n_micro++] = j;
        out->len[out->n_micro - 1] = (int32_t)len;
        out->begin[out->n_micro] = j + 1;
    }
    return 0;
}
