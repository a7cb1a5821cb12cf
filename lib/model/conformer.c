/* Reads, builds and runs Conformer layers of an encoder or an adapter. */
#include "lib/model/conformer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/affix.h"
#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/conf/conf.h"
#include "lib/model/model_internal.h"

/* ---- what frames see of their clip ---- */

enum attention { REL_POS, LOCAL, ABSOLUTE };

/* [left, right], frames on each side; -1: all of them. */
static int read_context(struct s2s_reach *reach, const struct s2s_conf *pair, bool in_chunks,
                        struct s2s_error *err)
{
    int64_t side[2];
    int rc;
    if (pair->n_items != 2)
        return s2s_conf_error(err, S2S_E_SHAPE, pair, "expected [left, right]");
    for (int i = 0; i < 2; i++)
        if ((rc = s2s_conf_as_i64(&side[i], pair->items[i], -1, 1 << 24, err)) < 0)
            return rc;
    *reach = (struct s2s_reach){.chunk = 1,
                                .before = side[0] < 0 ? S2S_REACH_ALL : side[0],
                                .after = side[1] < 0 ? S2S_REACH_ALL : side[1]};
    if (side[0] < 0 && side[1] < 0)
        reach->chunk = 0;
    if (!in_chunks || side[1] < 0)
        return 0;
    if (side[0] > 0 && side[0] % (side[1] + 1))
        return s2s_conf_error(err, S2S_E_RANGE, pair,
                              "%lld frames before are no whole number of chunks of %lld",
                              (long long)side[0], (long long)side[1] + 1);
    reach->chunk = side[1] + 1;
    reach->after = 0;
    return 0;
}

static int read_probabilities(struct model_conformer *c, const struct s2s_conf *conf,
                              const char *key, struct s2s_error *err)
{
    const struct s2s_conf *list;
    double sum = 0;
    int rc = s2s_conf_get_list(&list, conf, key, err);
    if (rc < 0)
        return rc;
    if (list && (int64_t)list->n_items != c->n_contexts)
        return s2s_conf_error(err, S2S_E_SHAPE, list, "%zu probabilities of %lld contexts",
                              list->n_items, (long long)c->n_contexts);
    for (int64_t i = 0; i < c->n_contexts; i++) {
        double *p = &c->contexts[i].probability;
        *p = 1.0 / (double)c->n_contexts;
        if (list && (rc = s2s_conf_as_f64(p, list->items[i], err)) < 0)
            return rc;
        if (!(*p >= 0))
            return s2s_conf_error(err, S2S_E_RANGE, list->items[i], "%g is no probability", *p);
        sum += *p;
    }
    if (c->n_contexts > 0 && !(fabs(sum - 1) < 1e-6))
        return s2s_conf_error(err, S2S_E_RANGE, list, "these add up to %g, expected 1", sum);
    return 0;
}

/* The context is absent, a pair, or a list of such. */
static int read_contexts(struct model_conformer *c, const struct s2s_conf *conf,
                         const struct model_conformer_keys *keys, struct s2s_error *err)
{
    static const char *const styles[] = {"regular", "chunked_limited", NULL};
    static const char *const models[] = {"rel_pos", "rel_pos_local_attn", "abs_pos", NULL};
    const struct s2s_conf *list;
    bool untied;
    int style, model, rc;
    if ((rc = s2s_conf_get_choice_or(&style, conf, keys->style, styles, 0, err)) < 0 ||
        (rc = s2s_conf_get_choice_or(&model, conf, keys->positions, models, REL_POS, err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&untied, conf, keys->untied, true, err)) < 0 ||
        (rc = s2s_conf_get_list(&list, conf, keys->context, err)) < 0)
        return rc;
    const bool several = list && list->n_items > 0 && list->items[0]->kind == S2S_CONF_LIST;
    c->n_contexts = several ? (int64_t)list->n_items : list && list->n_items > 0;
    c->contexts = s2s_xcalloc((size_t)c->n_contexts + 1, sizeof *c->contexts);
    for (int64_t i = 0; i < c->n_contexts; i++)
        if ((rc = read_context(&c->contexts[i].reach, several ? list->items[i] : list,
                               style == 1 && model != LOCAL, err)) < 0)
            return rc;
    c->block.absolute = model == ABSOLUTE;
    c->shares_biases = !untied && model == REL_POS;
    const struct s2s_reach *one = &c->contexts[0].reach;
    /* where the sides differ NeMo's class gives keys the positions of others */
    if (model == LOCAL && (c->n_contexts != 1 || one->before != one->after || one->before < 1 ||
                           one->before == S2S_REACH_ALL))
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, list ? list : conf,
                              "rel_pos_local_attn: expected as many frames on both sides");
    return read_probabilities(c, conf, keys->probs, err);
}

/* "causal", or [left, right] of the convolution in every layer. */
static int read_shift(struct model_conformer *c, const struct s2s_conf *conf, const char *key,
                      struct s2s_error *err)
{
    const struct s2s_conf *node = s2s_conf_find(conf, key);
    const int64_t width = c->block.kernel_size;
    int64_t left, right;
    int rc;
    if (!node || s2s_conf_is_unset(conf, key))
        return 0;
    if (node->text && strcmp(node->text, "causal") == 0) {
        c->block.shift = (width - 1) / 2;
        return 0;
    }
    if (node->kind != S2S_CONF_LIST || node->n_items != 2)
        return s2s_conf_error(err, S2S_E_RANGE, node, "expected causal or [left, right]");
    if ((rc = s2s_conf_as_i64(&left, node->items[0], 0, width, err)) < 0 ||
        (rc = s2s_conf_as_i64(&right, node->items[1], 0, width, err)) < 0)
        return rc;
    if (left + right + 1 != width)
        return s2s_conf_error(err, S2S_E_RANGE, node,
                              "expected two numbers that add up to %lld (conv_kernel_size - 1)",
                              (long long)width - 1);
    c->block.shift = left - (width - 1) / 2;
    return 0;
}

/* ---- sizes and shares ---- */

static int check_sizes(const struct s2s_nn_conformer_options *b, const struct s2s_model *model,
                       const struct model_conformer_keys *keys, struct s2s_error *err)
{
    const int ranks = s2s_group_size(model->par->tp);
    const struct model_cut cuts[] = {
        {keys->heads, "attention heads", b->n_heads, b->n_heads % ranks == 0},
        {keys->width, "channels", b->width, b->width % ranks == 0},
        {keys->inner, "columns of a feed-forward", b->inner, b->inner % ranks == 0},
    };
    if (b->width % b->n_heads || b->width % 2)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(model->conf, keys->width),
                              "%lld does not divide into %lld heads of even sum",
                              (long long)b->width, (long long)b->n_heads);
    if (b->kernel_size % 2 == 0)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, s2s_conf_find(model->conf, keys->kernel),
                              "%lld is even: such a kernel has no middle",
                              (long long)b->kernel_size);
    return model_check_cuts(model, cuts, sizeof cuts / sizeof *cuts, err);
}

/* `key` where the config says something there. */
static const char *said_or(const struct s2s_model *model, const char *key, const char *otherwise)
{
    return key && !s2s_conf_is_unset(model->conf, key) ? key : otherwise;
}

/* NeMo's dropout and dropout_pre_encoder are one here unless the latter is said. */
static int read_dropout(struct model_conformer *c, struct s2s_model *model,
                        const struct model_conformer_keys *keys, struct s2s_error *err)
{
    const struct s2s_dropout_rates said = model_said_dropout(model);
    const struct {
        double *rate;
        const char *key;
        double said;
    } shares[] = {
        {&c->block.dropout, keys->dropout, said.encoder},
        {&c->block.inner_dropout, said_or(model, keys->inner_dropout, keys->dropout), said.encoder},
        {&c->input_dropout, said_or(model, keys->input_dropout, keys->dropout), said.input},
        {&c->block.attention_dropout, keys->attention_dropout, said.encoder_attention},
        {&c->positions_dropout, keys->positions_dropout, said.positions},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof shares / sizeof *shares; i++)
        rc = model_read_dropout(shares[i].rate, model, shares[i].key, shares[i].said, err);
    return rc;
}

int model_conformer_read(struct model_conformer *c, struct s2s_model *model,
                         const struct model_conformer_keys *keys, struct s2s_error *err)
{
    static const char *const norms[] = {"batch_norm", "layer_norm", NULL};
    int norm, rc;
    if ((rc = s2s_conf_get_choice_or(&norm, model->conf, keys->norm, norms, 0, err)) < 0)
        return rc;
    c->block.layer_norm = norm == 1;
    if ((rc = read_contexts(c, model->conf, keys, err)) < 0 ||
        (rc = read_shift(c, model->conf, keys->sides, err)) < 0 ||
        (rc = check_sizes(&c->block, model, keys, err)) < 0)
        return rc;
    model->draws |= c->n_contexts > 1;
    return read_dropout(c, model, keys, err);
}

void model_conformer_release(struct model_conformer *c)
{
    free(c->contexts);
    free(c->layers);
    c->contexts = NULL;
    c->layers = NULL;
}

/* ---- parameters ---- */

static const char *const shared_names[] = {"bias_u", "bias_v"};

/* Files have a copy for each layer, as NeMo's modules do. */
static int check_copies(const struct model_conformer *c, const struct s2s_model *model,
                        const char *layers, struct s2s_error *err)
{
    int rc = 0;
    for (int64_t i = 1; rc == 0 && i < c->n_layers; i++)
        for (int n = 0; rc == 0 && n < 2; n++) {
            char *first = s2s_xasprintf("%s.0.self_attn.%s", layers, shared_names[n]);
            char *name =
                s2s_xasprintf("%s.%lld.self_attn.%s", layers, (long long)i, shared_names[n]);
            char *path = model_dir_differs(model, first, name);
            if (path)
                rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                                   "%s: %s and %s differ, but untie_biases: false says that layers "
                                   "share one",
                                   path, first, name);
            free(path);
            free(name);
            free(first);
        }
    return rc;
}

int model_conformer_begin(struct model_conformer *c, struct s2s_model *model,
                          const struct s2s_nn_ctx *ctx, const char *layers, struct s2s_error *err)
{
    c->on_input = s2s_nn_dropout_at(ctx, "dropout", c->input_dropout);
    c->on_positions = s2s_nn_dropout_at(ctx, "positions", c->positions_dropout);
    c->layers = s2s_xcalloc((size_t)c->n_layers + 1, sizeof *c->layers);
    if (!c->shares_biases || c->n_layers == 0)
        return 0;
    char *place = s2s_xasprintf("%s%s.0", model->prefix, layers);
    struct s2s_nn_ctx of_first = *ctx;
    of_first.place = place;
    s2s_nn_conformer_share(&c->block, &of_first);
    free(place);
    return model->dir ? check_copies(c, model, layers, err) : 0;
}

void model_conformer_add_layer(struct model_conformer *c, struct s2s_model *model, int idx,
                               const char *layers, struct s2s_block *block)
{
    char *place = s2s_xasprintf("%s%s.%d", model->prefix, layers, idx);
    const struct s2s_nn_ctx ctx = {
        .params = model->params, .par = model->par, .place = place, .fan_in = true};
    block->impl = &c->layers[idx];
    block->n_in = block->n_out = 1;
    block->param_begin = model->params->n;
    block->pure = true;
    block->uses = c->block.u; /* bias_v stands beside it */
    s2s_nn_conformer_init(&c->layers[idx], &ctx, &c->block);
    free(place);
}

bool model_conformer_is_copy(const struct model_conformer *c, const char *layers, const char *name)
{
    const size_t len = strlen(layers);
    if (!c->shares_biases || strncmp(name, layers, len) != 0 || name[len] != '.')
        return false;
    const char *rest = name + len + 1;
    rest += strspn(rest, "0123456789");
    return strcmp(rest, ".self_attn.bias_u") == 0 || strcmp(rest, ".self_attn.bias_v") == 0;
}

/* ---- forward ---- */

enum { CONTEXT_SITE = 0x6374 }; /* sets what is drawn apart from other draws of a step */

/* In training one of several, the same for all clips of a step. */
static struct s2s_reach reach_of(const struct model_conformer *c, const struct s2s_pass *pass,
                                 bool draws)
{
    if (c->n_contexts == 0)
        return (struct s2s_reach){0};
    int64_t i = 0;
    if (c->n_contexts > 1 && draws) {
        double at =
            s2s_rng_uniform_f64(S2S_RNG_KEY(pass->batch->draw, CONTEXT_SITE), (uint64_t)c->number);
        while (i + 1 < c->n_contexts && at >= c->contexts[i].probability)
            at -= c->contexts[i++].probability;
    }
    return c->contexts[i].reach;
}

/* Of each row its place in its clip, and that place's row in a table of relative positions. */
static void find_places(struct s2s_tape *tape, struct s2s_nn_clips *clips, const int32_t *cu)
{
    const int64_t n = clips->seqs.n_rows;
    int32_t *at = s2s_xmalloc((size_t)(2 * n + 1) * sizeof *at), *rows = at + n;
    for (int64_t k = 0; k < clips->seqs.n_seqs; k++)
        for (int32_t i = cu[k]; i < cu[k + 1]; i++) {
            at[i] = i - cu[k];
            rows[i] = (int32_t)clips->seqs.max_seqlen - 1 - at[i];
        }
    clips->spans.k_at = s2s_tape_upload_i32(tape, at, n);
    clips->places = s2s_tape_upload_i32(tape, rows, n);
    free(at);
}

void model_conformer_prepare(const struct model_conformer *c, const struct s2s_pass *pass,
                             struct s2s_nn_clips *clips, const int32_t *cu,
                             struct s2s_tensor *names)
{
    clips->reach = reach_of(c, pass, names != NULL);
    clips->tp.inside = clips->tp.outside = names;
    clips->positions = s2s_op_relpos_table(pass->tape, clips->seqs.max_seqlen, c->block.width);
    if (c->block.absolute) {
        s2s_nn_clips_span(pass->tape, clips, cu);
        find_places(pass->tape, clips, cu);
        clips->spans.names = names;
    } else if (names) {
        clips->positions = model_drop_positions(pass, &c->on_positions, clips->positions);
    }
}

struct s2s_tensor *model_conformer_enter(struct s2s_tape *tape, const struct model_conformer *c,
                                         const struct s2s_nn_clips *clips, struct s2s_tensor *x)
{
    if (c->scale_input)
        x = s2s_op_scale(tape, sqrtf((float)c->block.width), x);
    if (c->block.absolute)
        x = s2s_op_add(tape, x, s2s_op_gather_rows(tape, clips->positions, clips->places));
    return s2s_nn_drop(tape, &c->on_input, &clips->tp, x);
}
