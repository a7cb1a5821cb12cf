/*
 * RADIO, an image encoder in Hugging Face's form (RadioModel): patches -> rows with positions ->
 * layers. Images of any sizes lie end to end; attention stops at their borders. There is no norm
 * behind the last layer.
 */
#include "lib/model/radio.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/model/keys.h"
#include "lib/model/model_internal.h"
#include "lib/nn/vit.h"

enum { CHANNELS = 3, BIG = 1 << 24 };

#define STEM "radio_model.model."
#define CONDITIONER "radio_model.input_conditioner."

struct config {
    int64_t n_layers, patch, side, n_front;
    double init_std;
    double mean[CHANNELS], std[CHANNELS]; /* of the pixels */
    struct s2s_nn_vit_options layer;
};

struct radio {
    struct config config;
    struct s2s_nn_patches patches;
    struct s2s_nn_vit *layers;
};

static const char *const model_types[] = {"radio", NULL};

/* The config says the same, and a model of images has no use for what embeds videos. */
static const char *const unused[] = {CONDITIONER "norm_mean", CONDITIONER "norm_std",
                                     "radio_model.summary_idxs",
                                     STEM "patch_generator.video_embedder.weight", NULL};

static void run_patches(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                        struct s2s_tensor *const *in, struct s2s_tensor **out);
static void run_layer(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out);

/* ---- config.json ---- */

/* Keys of transformers' class (5.24), and of published files. */
static const struct model_key keys[] = {
    {"hidden_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"num_hidden_layers", MODEL_KEY_READ, 1, NULL, NULL},
    {"num_attention_heads", MODEL_KEY_READ, 1, NULL, NULL},
    {"mlp_ratio", MODEL_KEY_READ, 1, NULL, NULL},
    {"hidden_act", MODEL_KEY_READ, 1, NULL, NULL},
    {"layer_norm_eps", MODEL_KEY_READ, 1, NULL, NULL},
    {"qkv_bias", MODEL_KEY_READ, 1, NULL, NULL},
    {"layerscale_value", MODEL_KEY_READ, 1, NULL, NULL},
    {"patch_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"max_img_size", MODEL_KEY_READ, 1, NULL, NULL},
    {"num_cls_tokens", MODEL_KEY_READ, 1, NULL, NULL},
    {"num_registers", MODEL_KEY_READ, 1, NULL, NULL},
    {"norm_mean", MODEL_KEY_READ, 1, NULL, NULL},
    {"norm_std", MODEL_KEY_READ, 1, NULL, NULL},
    {"initializer_range", MODEL_KEY_READ, 1, NULL, NULL},
    {"num_channels", MODEL_KEY_FIXED, 1, "3", NULL},
    {"use_swiglu_ffn", MODEL_KEY_OFF, 1, NULL, NULL},
    {"hidden_dropout_prob", MODEL_KEY_OFF, 1, NULL, NULL},
    {"attention_probs_dropout_prob", MODEL_KEY_OFF, 1, NULL, NULL},
    {"drop_path_rate", MODEL_KEY_OFF, 1, NULL, NULL},
    {"image_size", MODEL_KEY_QUIET, 1, NULL, NULL}, /* images have sizes of their own */
    {"patch_dim", MODEL_KEY_QUIET, 1, NULL, NULL},  /* it follows from patch_size */
    {"summary_idxs", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"video_patch_dim", MODEL_KEY_QUIET, 1, NULL, NULL},
    {"video_temporal_patch_size", MODEL_KEY_QUIET, 1, NULL, NULL},
};

static int read_three(double *out, const struct s2s_conf *conf, const char *key,
                      const double *other, struct s2s_error *err)
{
    const struct s2s_conf *list;
    int rc = s2s_conf_get_list(&list, conf, key, err);
    if (rc < 0)
        return rc;
    if (list && list->n_items != CHANNELS)
        return s2s_conf_error(err, S2S_E_SHAPE, list, "expected a number for each of %d colours",
                              CHANNELS);
    for (size_t i = 0; i < CHANNELS; i++) {
        out[i] = other[i];
        if (list && (rc = s2s_conf_as_f64(&out[i], list->items[i], err)) < 0)
            return rc;
    }
    return 0;
}

/* The pixels' mean and deviation: CLIP's, unless the config has others. */
static int read_pixels(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const double mean[] = {0.48145466, 0.4578275, 0.40821073},
                        std[] = {0.26862954, 0.26130258, 0.27577711};
    int rc = read_three(c->mean, conf, "norm_mean", mean, err);
    if (rc < 0 || (rc = read_three(c->std, conf, "norm_std", std, err)) < 0)
        return rc;
    for (int i = 0; i < CHANNELS; i++)
        if (!(c->std[i] > 0))
            return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "norm_std"),
                                  "expected numbers above 0, found %g", c->std[i]);
    return 0;
}

static int read_sizes(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    struct s2s_nn_vit_options *o = &c->layer;
    int64_t largest, n_classes, n_registers;
    double ratio;
    int rc;
    if ((rc = s2s_conf_get_i64_or(&o->width, conf, "hidden_size", 1, BIG, 1280, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->n_layers, conf, "num_hidden_layers", 0, 10000, 32, err)) <
            0 ||
        (rc = s2s_conf_get_i64_or(&o->n_heads, conf, "num_attention_heads", 1, 10000, 16, err)) <
            0 ||
        (rc = s2s_conf_get_f64_or(&ratio, conf, "mlp_ratio", 4, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&c->patch, conf, "patch_size", 1, 1024, 16, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&largest, conf, "max_img_size", 1, 1 << 20, 2048, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&n_classes, conf, "num_cls_tokens", 0, 10000, 3, err)) < 0 ||
        (rc = s2s_conf_get_i64_or(&n_registers, conf, "num_registers", 0, 10000, 7, err)) < 0)
        return rc;
    if (o->width % o->n_heads)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "hidden_size"),
                              "%lld does not divide into %lld heads", (long long)o->width,
                              (long long)o->n_heads);
    if (!(ratio > 0 && ratio * (double)o->width <= BIG) || ratio * (double)o->width < 1)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "mlp_ratio"), "%g", ratio);
    c->side = largest / c->patch;
    if (c->side < 1 || c->side > 8192)
        return s2s_conf_error(err, S2S_E_RANGE, s2s_conf_find(conf, "max_img_size"),
                              "%lld pixels are %lld patches of %lld; expected 1 to 8192",
                              (long long)largest, (long long)c->side, (long long)c->patch);
    o->inner = (int64_t)((double)o->width * ratio);
    c->n_front = n_classes + n_registers;
    return 0;
}

static int read_config(struct config *c, const struct s2s_conf *conf, struct s2s_error *err)
{
    static const char *const acts[] = {"gelu", "gelu_pytorch_tanh", "gelu_new", NULL};
    static const enum s2s_act act_of[] = {S2S_ACT_GELU, S2S_ACT_GELU_TANH, S2S_ACT_GELU_TANH};
    const struct model_keys known = {keys, sizeof keys / sizeof *keys, 1, "radio"};
    struct s2s_nn_vit_options *o = &c->layer;
    int act, rc;
    if ((rc = model_check_keys(conf, &known, err)) < 0 || (rc = read_sizes(c, conf, err)) < 0 ||
        (rc = read_pixels(c, conf, err)) < 0 ||
        (rc = s2s_conf_get_choice_or(&act, conf, "hidden_act", acts, 0, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&o->eps, conf, "layer_norm_eps", 1e-6, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&o->scale, conf, "layerscale_value", 1, err)) < 0 ||
        (rc = s2s_conf_get_f64_or(&c->init_std, conf, "initializer_range", 0.02, err)) < 0)
        return rc;
    o->act = act_of[act];
    return s2s_conf_get_bool_or(&o->qkv_bias, conf, "qkv_bias", true, err);
}

/* ---- parameters ---- */

static void build_layer(struct s2s_model *model, struct radio *m, int idx)
{
    const size_t begin = model->params->n;
    char *place = s2s_xasprintf("%s" STEM "blocks.%d", model->prefix, idx);
    struct s2s_nn_ctx ctx = {
        .params = model->params, .par = model->par, .place = place, .init_std = m->config.init_std};
    s2s_nn_vit_init(&m->layers[idx], &ctx, &m->config.layer);
    free(place);
    model_add_block(model,
                    &(struct s2s_block){.run = run_layer,
                                        .impl = &m->layers[idx],
                                        .n_in = 1,
                                        .n_out = 1,
                                        .param_begin = begin,
                                        .hidden = idx + 1,
                                        .pure = true},
                    STEM "blocks.%d", idx);
}

static void build_patches(struct s2s_model *model, struct radio *m)
{
    const struct config *c = &m->config;
    const size_t begin = model->params->n;
    char *place = s2s_xasprintf("%s" STEM "patch_generator", model->prefix);
    struct s2s_nn_ctx ctx = {
        .params = model->params, .par = model->par, .place = place, .init_std = c->init_std};
    s2s_nn_patches_init(&m->patches, &ctx,
                        &(struct s2s_nn_patches_options){.patch_dim = model->patch_dim,
                                                         .width = c->layer.width,
                                                         .side = c->side,
                                                         .n_front = c->n_front});
    free(place);
    model_add_block(model,
                    &(struct s2s_block){.run = run_patches, .n_out = 1, .param_begin = begin},
                    STEM "patch_generator");
}

/* Ranks of tp have heads, and columns of the MLP. */
static int check_ranks(const struct s2s_model *model, const struct s2s_nn_vit_options *o,
                       struct s2s_error *err)
{
    const int ranks = s2s_group_size(model->par->tp);
    const struct model_cut cuts[] = {
        {"num_attention_heads", "attention heads", o->n_heads, o->n_heads % ranks == 0},
        {"mlp_ratio", "columns of an MLP", o->inner, o->inner % ranks == 0},
    };
    return model_check_cuts(model, cuts, sizeof cuts / sizeof *cuts, err);
}

/* Published files have no scales, which then are 1 and stay it. */
static bool lacks_scales(const struct s2s_model *model, const struct config *c)
{
    float *scale = s2s_xcalloc((size_t)c->layer.width, sizeof *scale);
    const bool lacks =
        model->dir && c->n_layers > 0 &&
        !model_dir_read(model, STEM "blocks.0.layer_scale1.lambda1", scale, (size_t)c->layer.width);
    free(scale);
    return lacks;
}

static int radio_build(struct s2s_model *model, struct s2s_error *err)
{
    struct radio *m = model->impl = s2s_xcalloc(1, sizeof *m);
    struct config *c = &m->config;
    int rc = read_config(c, model->conf, err);
    if (rc < 0 || (rc = check_ranks(model, &c->layer, err)) < 0)
        return rc;
    model->hidden_size = c->layer.width;
    model->patch_dim = CHANNELS * c->patch * c->patch;
    model->patch_size = c->patch;
    c->layer.fixed_scale = lacks_scales(model, c);
    build_patches(model, m);
    m->layers = s2s_xcalloc((size_t)c->n_layers + 1, sizeof *m->layers);
    for (int i = 0; i < c->n_layers; i++)
        build_layer(model, m, i);
    model_add_encoder_loss(model);
    return 0;
}

static void radio_free(void *impl)
{
    struct radio *m = impl;
    free(m->layers);
    free(m);
}

/* Transformers takes the files' numbers, this the config's: they must not differ. */
static int check_pixels(const struct s2s_model *model, const char *key, const double *value,
                        struct s2s_error *err)
{
    float stored[CHANNELS];
    char *name = s2s_xasprintf(CONDITIONER "%s", key);
    int rc = 0;
    const bool there = model_dir_read(model, name, stored, CHANNELS);
    for (int i = 0; there && rc == 0 && i < CHANNELS; i++)
        if (!(fabs((double)stored[i] - value[i]) <= 1e-5))
            rc = s2s_error_set(err, S2S_E_FORMAT,
                               "%s: %s is %g for colour %d, but the weights have %s of %g",
                               model->config_path, key, value[i], i, name, (double)stored[i]);
    free(name);
    return rc;
}

static void set_scale(struct s2s_param *scale)
{
    if (s2s_param_is_here(scale) && !scale->set)
        s2s_param_init(scale, 0);
}

static int radio_load(struct s2s_model *model, struct s2s_error *err)
{
    const struct radio *m = model->impl;
    const struct config *c = &m->config;
    int rc = model_load_dir(model, model->dir, err);
    for (int64_t i = 0; rc == 0 && i < c->n_layers; i++) {
        set_scale(m->layers[i].scale1);
        set_scale(m->layers[i].scale2);
    }
    if (rc == 0)
        rc = check_pixels(model, "norm_mean", c->mean, err);
    return rc < 0 ? rc : check_pixels(model, "norm_std", c->std, err);
}

int64_t model_radio_n_front(const struct s2s_model *model)
{
    return ((const struct radio *)model->impl)->config.n_front;
}

double model_radio_eps(const struct s2s_model *model)
{
    return ((const struct radio *)model->impl)->config.layer.eps;
}

/* ---- forward ---- */

struct s2s_nn_images model_radio_images(const struct s2s_model *model, const struct s2s_pass *pass)
{
    const struct s2s_media own = model_own_media(model, pass, S2S_MEDIA_IMAGE);
    return (struct s2s_nn_images){.n = own.n, .grid = own.grid};
}

static void *radio_prepare(const struct s2s_model *model, const struct s2s_pass *pass)
{
    const struct radio *m = model->impl;
    struct s2s_nn_vit_batch *shared = s2s_tape_host_alloc(pass->tape, sizeof *shared);
    const struct s2s_nn_images images = model_radio_images(model, pass);
    int32_t *cu = s2s_tape_host_alloc(pass->tape, (size_t)(images.n + 1) * sizeof *cu);
    s2s_nn_patches_bounds(&m->patches, &images, cu);
    shared->tp = (struct s2s_nn_tp){.group = model->par->tp};
    shared->spans = s2s_op_spans(pass->tape, cu, cu, images.n, false);
    return shared;
}

/* Pixels of 0 to 1, a patch a row, colour by colour, in units of their deviation. */
static struct s2s_tensor *upload_pixels(struct s2s_tape *tape, const struct config *c,
                                        const struct s2s_media *images)
{
    const int64_t n = images->cu[images->n] - images->cu[0], area = c->patch * c->patch,
                  shape[] = {n, CHANNELS * area};
    float *pixels = s2s_xmalloc((size_t)(n * shape[1] + 1) * sizeof *pixels);
    const float *from = n > 0 ? images->data + images->cu[0] * shape[1] : NULL;
    for (int64_t i = 0; i < n * CHANNELS; i++) {
        const float mean = (float)c->mean[i % CHANNELS], std = (float)c->std[i % CHANNELS];
        for (int64_t k = i * area; k < (i + 1) * area; k++)
            pixels[k] = (from[k] - mean) / std;
    }
    struct s2s_tensor *x = s2s_tape_upload_floats(tape, 2, shape, pixels);
    free(pixels);
    return x;
}

static void run_patches(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                        struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct s2s_model *model = ctx->block->model;
    const struct radio *m = model->impl;
    const struct s2s_media own = model_own_media(model, ctx->pass, S2S_MEDIA_IMAGE);
    const struct s2s_nn_images images = {.n = own.n, .grid = own.grid};
    out[0] = s2s_nn_patches(tape, &m->patches, upload_pixels(tape, &m->config, &own), &images);
}

static void run_layer(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    out[0] = s2s_nn_vit(tape, ctx->block->impl, in[0], ctx->shared);
}

/* ---- what a batch must have ---- */

static int check_image(const struct s2s_model *model, const struct s2s_media *images, int64_t i,
                       struct s2s_error *err)
{
    const int64_t height = images->grid[2 * i], width = images->grid[2 * i + 1],
                  longer = height > width ? height : width, n = images->cu[i + 1] - images->cu[i];
    /* past this size the reference has its positions by another rule */
    if (height < 1 || width < 1 || longer * longer >= INT32_MAX / model->hidden_size)
        return s2s_error_set(err, S2S_E_RANGE, "image %lld has %lld x %lld patches", (long long)i,
                             (long long)height, (long long)width);
    if (height * width != n)
        return s2s_error_set(err, S2S_E_SHAPE, "image %lld of %lld x %lld patches has %lld of them",
                             (long long)i, (long long)height, (long long)width, (long long)n);
    return 0;
}

static int radio_check(const struct s2s_model *model, const struct s2s_batch *batch,
                       struct s2s_error *err)
{
    const struct s2s_media *images = model_media(batch, S2S_MEDIA_IMAGE);
    const int64_t n_front = model_radio_n_front(model);
    int rc = 0;
    if (!model_has_features(images) || !images->grid)
        return s2s_error_set(err, S2S_E_ARG, "an image encoder needs patches and sizes of images");
    if (images->width != model->patch_dim)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "patches are of %lld numbers; the encoder expects %lld, 3 colours of "
                             "%lld x %lld pixels",
                             (long long)images->width, (long long)model->patch_dim,
                             (long long)model->patch_size, (long long)model->patch_size);
    for (int64_t i = 0; rc == 0 && i < images->n; i++)
        rc = check_image(model, images, i, err);
    if (rc == 0 && images->cu[images->n] + images->n * n_front > INT32_MAX / 8)
        rc = s2s_error_set(err, S2S_E_RANGE, "%lld patches in one batch",
                           (long long)images->cu[images->n]);
    return rc;
}

const struct s2s_model_kind s2s_model_radio = {
    .model_types = model_types,
    .unused = unused,
    .build = radio_build,
    .check = radio_check,
    .prepare = radio_prepare,
    .load = radio_load,
    .free_impl = radio_free,
};
