/* What dropout draws by: each row has a name of its sample and of its place in it. */
#include <stdlib.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/conf/conf.h"
#include "lib/model/model_internal.h"

struct s2s_dropout_rates model_said_dropout(const struct s2s_model *model)
{
    static const struct s2s_dropout_rates nobody = S2S_DROPOUT_RATES_INIT;
    return model->options.dropout ? *model->options.dropout : nobody;
}

int model_read_dropout(double *rate, struct s2s_model *model, const char *key, double said,
                       struct s2s_error *err)
{
    int rc = 0;
    *rate = 0;
    if (key && (rc = s2s_conf_get_f64_or(rate, model->conf, key, 0, err)) < 0)
        return rc;
    if (!(*rate >= 0 && *rate < 1))
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(model->conf, key),
                              "expected a share of at least 0 and below 1, found %g", *rate);
    if (said >= 0)
        *rate = said;
    model->draws |= *rate > 0;
    return 0;
}

/* Two words a row. */
static void name_row(int32_t *to, uint64_t draws, int64_t place)
{
    const uint64_t name = S2S_RNG_KEY(draws, (uint64_t)place);
    to[0] = (int32_t)(uint32_t)name;
    to[1] = (int32_t)(uint32_t)(name >> 32);
}

static struct s2s_tensor *upload(struct s2s_tape *tape, const int32_t *names, int64_t n)
{
    return s2s_tape_upload(tape, S2S_I32, 2, (int64_t[]){n, 2}, names);
}

void model_name_rows(struct s2s_pass *pass)
{
    const struct s2s_batch *b = pass->batch;
    if (!pass->model->draws || !b->draws || !b->cu_seqlens || pass->fwd->decode)
        return;
    const int64_t n = s2s_nn_rows(&pass->tp, b->n_tokens);
    int32_t *names = s2s_xcalloc((size_t)(2 * n + 1), sizeof *names);
    for (int64_t s = 0; s < b->n_seqs; s++)
        for (int64_t t = b->cu_seqlens[s]; t < b->cu_seqlens[s + 1]; t++)
            name_row(names + 2 * t, b->draws[s], b->position_ids[t]);
    pass->tp.inside = pass->tp.outside = upload(pass->tape, names, n);
    if (pass->tp.sp) {
        const int64_t own = n / s2s_group_size(pass->tp.group);
        pass->tp.outside =
            upload(pass->tape, names + 2 * own * s2s_group_rank(pass->tp.group), own);
    }
    free(names);
}

struct s2s_tensor *model_name_clips(struct s2s_tape *tape, const struct s2s_media *media,
                                    const int32_t *cu)
{
    if (!media->draws)
        return NULL;
    int32_t *names = s2s_xcalloc((size_t)(2 * cu[media->n] + 1), sizeof *names);
    for (int64_t k = 0; k < media->n; k++)
        for (int32_t row = cu[k]; row < cu[k + 1]; row++)
            name_row(names + 2 * row, media->draws[k], row - cu[k]);
    struct s2s_tensor *rows = upload(tape, names, cu[media->n]);
    free(names);
    return rows;
}

struct s2s_tensor *model_name_positions(const struct s2s_pass *pass, int64_t n)
{
    int32_t *names = s2s_xcalloc((size_t)(2 * n + 1), sizeof *names);
    for (int64_t i = 0; i < n; i++)
        name_row(names + 2 * i, pass->batch->draw, n / 2 - i);
    struct s2s_tensor *rows = upload(pass->tape, names, n);
    free(names);
    return rows;
}
