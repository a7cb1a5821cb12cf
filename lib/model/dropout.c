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

/* The ranks over which the sequences of a pass are cut; NULL: they are whole. */
static const struct s2s_group *cutting(const struct s2s_pass *pass)
{
    const struct s2s_group *cp = pass->model->par->cp;
    return s2s_group_size(cp) > 1 ? cp : NULL;
}

/* Where slot i of the n that a rank has of a sequence stands in the whole: the two chunks of
 * struct s2s_spans_cp. */
static int64_t place_of(int64_t i, int64_t n, int size, int rank)
{
    const int64_t chunk = n / 2;
    if (size == 1)
        return i;
    return i < chunk ? rank * chunk + i : (2 * size - 1 - rank) * chunk + i - chunk;
}

void model_name_rows(struct s2s_pass *pass)
{
    const struct s2s_batch *b = pass->batch;
    const struct s2s_group *cp = cutting(pass);
    if (!pass->model->draws || !b->draws || !b->cu_seqlens || pass->fwd->decode)
        return;
    const int64_t n = s2s_nn_rows(&pass->tp, b->n_tokens);
    int32_t *names = s2s_xcalloc((size_t)(2 * n + 1), sizeof *names);
    for (int64_t s = 0; s < b->n_seqs; s++) {
        const int64_t first = b->cu_seqlens[s], len = b->cu_seqlens[s + 1] - first;
        for (int64_t i = 0; i < len; i++)
            name_row(names + 2 * (first + i), b->draws[s],
                     place_of(i, len, s2s_group_size(cp), s2s_group_rank(cp)));
    }
    pass->tp.inside = pass->tp.outside = upload(pass->tape, names, n);
    if (pass->tp.sp) {
        const int64_t own = n / s2s_group_size(pass->tp.group);
        pass->tp.outside =
            upload(pass->tape, names + 2 * own * s2s_group_rank(pass->tp.group), own);
    }
    free(names);
}

/* I32 [n_rows]: places of the keys of a rank of so many, each with its chunks of the bounds; of one
 * alone all of sequences `factor` times as long. */
static void place_keys(int32_t *at, const struct s2s_batch *b, int factor, int size, int rank)
{
    for (int64_t s = 0; s < b->n_seqs; s++) {
        const int64_t first = b->cu_seqlens[s] * factor,
                      len = b->cu_seqlens[s + 1] * factor - first;
        for (int64_t i = 0; i < len; i++)
            at[first + i] = (int32_t)place_of(i, len, size, rank);
    }
}

void model_name_spans(const struct s2s_pass *pass, struct s2s_spans *spans, int64_t n_rows)
{
    if (!pass->tp.inside)
        return;
    int32_t *at = s2s_xcalloc((size_t)n_rows + 1, sizeof *at);
    place_keys(at, pass->batch, 1, 1, 0);
    spans->names = pass->tp.inside;
    spans->k_at = s2s_tape_upload_i32(pass->tape, at, n_rows);
    free(at);
}

/* All rows of all ranks, in order. */
static struct s2s_tensor *name_all(const struct s2s_pass *pass, int64_t n_rows, int size)
{
    const struct s2s_batch *b = pass->batch;
    int32_t *names = s2s_xcalloc((size_t)(2 * n_rows * size + 1), sizeof *names);
    for (int64_t s = 0; s < b->n_seqs; s++)
        for (int64_t t = b->cu_seqlens[s] * size; t < b->cu_seqlens[s + 1] * size; t++)
            name_row(names + 2 * t, b->draws[s], t - b->cu_seqlens[s] * size);
    struct s2s_tensor *rows = upload(pass->tape, names, n_rows * size);
    free(names);
    return rows;
}

void model_name_spans_cp(const struct s2s_pass *pass, struct s2s_spans_cp *cp, int64_t n_rows)
{
    const int size = s2s_group_size(cp->group);
    if (!pass->tp.inside)
        return;
    int32_t *at = s2s_xcalloc((size_t)(n_rows * size) + 1, sizeof *at);
    for (int r = 0; cp->comm == S2S_CP_P2P && r < size; r++)
        place_keys(at + r * n_rows, pass->batch, 1, size, r);
    if (cp->comm != S2S_CP_P2P)
        place_keys(at, pass->batch, size, 1, 0);
    struct s2s_tensor *k_at = s2s_tape_upload_i32(pass->tape, at, n_rows * size);
    free(at);
    cp->own.names = cp->lower.names = cp->higher.names = pass->tp.inside;
    if (cp->comm == S2S_CP_ALL_TO_ALL)
        cp->own.names = name_all(pass, n_rows, size);
    if (cp->comm == S2S_CP_P2P)
        cp->k_at = k_at;
    else
        cp->own.k_at = k_at;
    for (int i = 0; cp->chunks && i < 2 * size; i++)
        cp->chunks[i].names = pass->tp.inside;
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

struct s2s_tensor *model_drop_positions(const struct s2s_pass *pass,
                                        const struct s2s_nn_dropout *dropout,
                                        struct s2s_tensor *table)
{
    const int64_t n = s2s_tensor_rows(table);
    if (dropout->rate <= 0)
        return table;
    int32_t *names = s2s_xcalloc((size_t)(2 * n + 1), sizeof *names);
    for (int64_t i = 0; i < n; i++)
        name_row(names + 2 * i, pass->batch->draw, n / 2 - i);
    struct s2s_tensor *rows = upload(pass->tape, names, n);
    free(names);
    return s2s_op_dropout(
        pass->tape, table,
        &(struct s2s_dropout){.rate = dropout->rate, .site = dropout->site, .rows = rows});
}
