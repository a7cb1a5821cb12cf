/* The LLM that hears and sees: composes encoders, projections and LLM. */
#include "lib/model/salm.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/io/safetensors.h"
#include "lib/model/model_internal.h"
#include "lib/model/projection.h"
#include "lib/model/radio.h"
#include "lib/nn/spread.h"

struct salm {
    struct s2s_model *encoder, *vision, *llm; /* an encoder of sound, of images; NULL: none */
    struct s2s_par encoder_par; /* whose rows are not cut: each rank of tp has all of them */
    struct s2s_nn_linear projection;
    struct s2s_vision_projection vision_projection;
    char *projection_path, *vision_projection_path; /* or NULL: it has no file */
};

static const char *const model_types[] = {"salm", NULL};

static void run_projection(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                           struct s2s_tensor *const *in, struct s2s_tensor **out);
static void run_vision_projection(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                                  struct s2s_tensor *const *in, struct s2s_tensor **out);
static void run_embed(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out);

struct s2s_model *s2s_salm_vision(const struct s2s_model *model)
{
    return ((const struct salm *)model->impl)->vision;
}

const struct s2s_vision_spec *s2s_salm_vision_spec(const struct s2s_model *model)
{
    return &((const struct salm *)model->impl)->vision_projection.spec;
}

struct s2s_model *s2s_salm_encoder(const struct s2s_model *model)
{
    return ((const struct salm *)model->impl)->encoder;
}

struct s2s_model *s2s_salm_llm(const struct s2s_model *model)
{
    return ((const struct salm *)model->impl)->llm;
}

/* ---- building ---- */

static bool is_given(const struct s2s_salm_part *part)
{
    return part->dir || part->config || part->conf;
}

static int open_part(struct s2s_model **part, struct s2s_model *model, const struct s2s_par *par,
                     const char *name, const struct s2s_salm_part *from,
                     const struct s2s_salm_parts *parts, struct s2s_error *err)
{
    const bool is_llm = from == &parts->llm;
    char *prefix = s2s_xasprintf("%s%s.", model->prefix, name);
    struct s2s_model_options options = {.prefix = prefix,
                                        .config = from->config,
                                        .conf = from->conf,
                                        .override = from->override,
                                        .params = model->params,
                                        .batch_norm_batch = parts->batch_norm_batch,
                                        .head = parts->head,
                                        .free_steps = parts->free_steps,
                                        .lora = is_llm ? parts->lora : NULL,
                                        .dropout = parts->dropout};
    int rc = s2s_model_open(part, model->params->device, par, from->dir, &options, err);
    free(prefix);
    return rc;
}

/* The encoder's blocks without its own loss, and its projection; n_carried tensors pass them. */
static void add_encoder(struct s2s_model *model, const struct s2s_model *encoder, int n_carried,
                        struct s2s_block *projection, const char *name)
{
    model_take_blocks(model, encoder, 0, encoder->n_blocks - 1, n_carried, false);
    projection->n_in = projection->n_out = 1;
    projection->n_carried = n_carried;
    projection->hidden = -1;
    model_add_block(model, projection, "%s", name);
    model->blocks[model->n_blocks - 1].param_end = projection->param_end;
}

/* Where the parameters of the projections begin, and end. */
struct ranges {
    size_t sound, images, end;
};

/* The encoders with their projections, embeddings, the LLM's blocks. */
static void add_blocks(struct s2s_model *model, const struct ranges *at)
{
    const struct salm *m = model->impl;
    const struct s2s_block *embed = &m->llm->blocks[0];
    int n = 0;
    if (m->encoder)
        add_encoder(model, m->encoder, n++,
                    &(struct s2s_block){
                        .run = run_projection, .param_begin = at->sound, .param_end = at->images},
                    "proj");
    if (m->vision)
        add_encoder(model, m->vision, n++,
                    &(struct s2s_block){.run = run_vision_projection,
                                        .param_begin = at->images,
                                        .param_end = at->end},
                    "vision_proj");
    model->n_media_blocks = model->n_blocks;
    model_add_block(
        model,
        &(struct s2s_block){.run = run_embed, .n_in = n, .n_out = 1, .hidden = embed->hidden}, "%s",
        embed->layer + strlen(model->prefix));
    model->blocks[model->n_blocks - 1].param_begin = embed->param_begin;
    model->blocks[model->n_blocks - 1].param_end = embed->param_end;
    model_take_blocks(model, m->llm, 1, m->llm->n_blocks, 0, true);
}

static int open_encoders(struct s2s_model *model, const struct s2s_salm_parts *parts,
                         struct s2s_error *err)
{
    struct salm *m = model->impl;
    int rc = 0;
    if (is_given(&parts->encoder))
        rc = open_part(&m->encoder, model, &m->encoder_par, "encoder", &parts->encoder, parts, err);
    if (rc == 0 && is_given(&parts->vision))
        rc = open_part(&m->vision, model, &m->encoder_par, "vision", &parts->vision, parts, err);
    if (rc < 0)
        return rc;
    if (!m->encoder && !m->vision)
        return s2s_error_set(err, S2S_E_NOTFOUND, "%s: it has no encoder", model->config_path);
    if (m->encoder && (m->encoder->n_mels == 0 || m->encoder->kind->embed))
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s is no speech encoder",
                             m->encoder->config_path);
    /* the projection counts the rows as this kind lays them out */
    if (m->vision && m->vision->kind != &s2s_model_radio)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s is no image encoder",
                             m->vision->config_path);
    return 0;
}

/* What the file is, or what was asked for. */
static int vision_spec(struct s2s_vision_spec *spec, const struct salm *m,
                       const struct s2s_salm_parts *parts, struct s2s_error *err)
{
    struct s2s_safetensors st;
    *spec = parts->vision_spec;
    if (!m->vision_projection_path)
        return 0;
    int rc = s2s_safetensors_open(&st, m->vision_projection_path, err);
    if (rc < 0)
        return rc;
    rc = s2s_vision_spec_look(spec, &st, m->vision->hidden_size, err);
    s2s_safetensors_release(&st);
    return rc < 0 ? s2s_error_add(err, rc, "%s", m->vision_projection_path) : 0;
}

static int add_vision_projection(struct s2s_model *model, const struct s2s_salm_parts *parts,
                                 struct s2s_error *err)
{
    struct salm *m = model->impl;
    struct s2s_vision_spec spec;
    int rc = vision_spec(&spec, m, parts, err);
    if (rc < 0)
        return rc;
    char *place = s2s_xasprintf("%svision_proj", model->prefix);
    struct s2s_nn_ctx ctx = {.params = model->params, .par = &m->encoder_par, .place = place};
    rc = s2s_vision_projection_init(&m->vision_projection, &ctx, &spec, m->llm->hidden_size,
                                    m->vision->hidden_size, model_radio_eps(m->vision), err);
    free(place);
    return rc;
}

/* Parameters of the projections, behind those of the LLM. */
static int add_projections(struct s2s_model *model, const struct s2s_salm_parts *parts, bool bias,
                           struct ranges *at, struct s2s_error *err)
{
    struct salm *m = model->impl;
    const size_t len = strlen(model->prefix);
    int rc = 0;
    at->sound = model->params->n;
    if (m->encoder) {
        char *place = s2s_xasprintf("%.*s", (int)(len ? len - 1 : 0), model->prefix);
        struct s2s_nn_ctx ctx = {.params = model->params, .par = &m->encoder_par, .place = place};
        s2s_projection_init(&m->projection, &ctx, m->llm->hidden_size, m->encoder->hidden_size,
                            bias);
        free(place);
    }
    at->images = model->params->n;
    if (m->vision)
        rc = add_vision_projection(model, parts, err);
    at->end = model->params->n;
    return rc;
}

/* Opens the parts and adds the projections; *model has params, par and prefix. */
static int build_parts(struct s2s_model *model, const struct s2s_salm_parts *parts, bool bias,
                       struct s2s_error *err)
{
    struct salm *m = model->impl = s2s_xcalloc(1, sizeof *m);
    struct ranges at;
    m->projection_path = parts->projection ? s2s_xstrdup(parts->projection) : NULL;
    m->vision_projection_path =
        parts->vision_projection ? s2s_xstrdup(parts->vision_projection) : NULL;
    m->encoder_par = *model->par;
    m->encoder_par.sp = false;
    int rc = open_encoders(model, parts, err);
    if (rc < 0 || (rc = open_part(&m->llm, model, model->par, "llm", &parts->llm, parts, err)) < 0)
        return rc;
    if (!m->llm->kind->embed)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "%s is no language model that takes audio or images",
                             m->llm->config_path);
    if ((rc = add_projections(model, parts, bias, &at, err)) < 0)
        return rc;
    add_blocks(model, &at);
    model->draws = m->llm->draws || (m->encoder && m->encoder->draws);
    model->vocab_size = m->llm->vocab_size;
    model->hidden_size = m->llm->hidden_size;
    model->n_mels = m->encoder ? m->encoder->n_mels : 0;
    model->patch_dim = m->vision ? m->vision->patch_dim : 0;
    model->patch_size = m->vision ? m->vision->patch_size : 0;
    model->pad_token_id = m->llm->pad_token_id;
    return 0;
}

/* Where a part of the composite stands: beside the config. */
static char *beside(const struct s2s_model *model, const char *name)
{
    return *name == '/' || !model->dir ? s2s_xstrdup(name)
                                       : s2s_xasprintf("%s/%s", model->dir, name);
}

/* *path: what the key says, or `other`; NULL where both are. */
static int part_path(char **path, const struct s2s_model *model, const char *key, const char *other,
                     struct s2s_error *err)
{
    const char *name = other;
    int rc = 0;
    if (!s2s_conf_is_unset(model->conf, key))
        rc = s2s_conf_get_str(&name, model->conf, key, err);
    if (rc == 0)
        *path = name ? beside(model, name) : NULL;
    return rc;
}

static int check_side(const struct s2s_model *model, const char *key, int64_t size,
                      struct s2s_error *err)
{
    int64_t value;
    int rc = s2s_conf_get_i64_or(&value, model->conf, key, 1, 1 << 30, size, err);
    if (rc < 0 || value == size)
        return rc;
    return s2s_conf_error(err, S2S_E_SHAPE, s2s_conf_find(model->conf, key),
                          "%lld, but that part is %lld wide", (long long)value, (long long)size);
}

static int check_projections(const struct s2s_model *model, struct s2s_error *err)
{
    const struct salm *m = model->impl;
    int rc = 0;
    if (m->encoder &&
        ((rc = check_side(model, "projection.in", m->encoder->hidden_size, err)) < 0 ||
         (rc = check_side(model, "projection.out", m->llm->hidden_size, err)) < 0))
        return rc;
    if (!m->vision)
        return 0;
    rc = check_side(model, "vision_projection.in", m->vision->hidden_size, err);
    return rc < 0 ? rc : check_side(model, "vision_projection.out", m->llm->hidden_size, err);
}

/* A folder that says nothing of images has an encoder of sound, whatever it says of that. */
static int salm_build(struct s2s_model *model, struct s2s_error *err)
{
    struct s2s_salm_parts parts = {.batch_norm_batch = model->options.batch_norm_batch,
                                   .head = model->options.head,
                                   .free_steps = model->options.free_steps,
                                   .lora = model->options.lora,
                                   .dropout = model->options.dropout};
    char *encoder = NULL, *vision = NULL, *llm = NULL, *of_sound = NULL, *of_images = NULL;
    bool bias;
    int rc = part_path(&vision, model, "vision", NULL, err);
    if (rc < 0 ||
        (rc = part_path(&encoder, model, "encoder", vision ? NULL : "encoder", err)) < 0 ||
        (rc = part_path(&llm, model, "llm", "llm", err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&bias, model->conf, "projection.bias", true, err)) < 0)
        goto out;
    if (model->dir && encoder)
        parts.projection = of_sound = beside(model, "projection.safetensors");
    if (model->dir && vision)
        parts.vision_projection = of_images = beside(model, "vision_projection.safetensors");
    parts.encoder.dir = encoder;
    parts.vision.dir = vision;
    parts.llm.dir = llm;
    rc = build_parts(model, &parts, bias, err);
    if (rc == 0)
        rc = check_projections(model, err);
out:
    free(encoder);
    free(vision);
    free(llm);
    free(of_sound);
    free(of_images);
    return rc;
}

int s2s_salm_open(struct s2s_model **out, struct s2s_device *device, const struct s2s_par *par,
                  const struct s2s_salm_parts *parts, struct s2s_error *err)
{
    static const struct s2s_par alone = {0};
    struct s2s_model *model = s2s_xcalloc(1, sizeof *model);
    model->kind = &s2s_model_salm;
    model->par = par ? par : &alone;
    model->prefix = s2s_xstrdup("");
    model->conf = s2s_conf_new(S2S_CONF_FROM_DEFAULT, "composite");
    model->config_path = s2s_xstrdup("composite");
    model->owns_params = true;
    model->params = s2s_params_new(device);
    int rc = build_parts(model, parts, true, err);
    if (rc < 0) {
        s2s_model_free(model);
        model = NULL;
    }
    *out = model;
    return rc;
}

static void salm_free(void *impl)
{
    struct salm *m = impl;
    s2s_model_free(m->encoder);
    s2s_model_free(m->vision);
    s2s_model_free(m->llm);
    free(m->projection_path);
    free(m->vision_projection_path);
    free(m);
}

/* ---- weights ---- */

static int load_projection(const struct salm *m, struct s2s_error *err)
{
    struct s2s_safetensors st;
    int rc = s2s_safetensors_open(&st, m->projection_path, err);
    if (rc < 0)
        return rc;
    rc = s2s_projection_load(&m->projection, &st, err);
    s2s_safetensors_release(&st);
    return rc < 0 ? s2s_error_add(err, rc, "%s", m->projection_path) : 0;
}

static int load_vision_projection(const struct s2s_model *model, struct s2s_error *err)
{
    const struct salm *m = model->impl;
    struct s2s_safetensors st;
    int rc = s2s_safetensors_open(&st, m->vision_projection_path, err);
    if (rc < 0)
        return rc;
    char *prefix = s2s_xasprintf("%svision_proj.", model->prefix);
    rc = s2s_vision_projection_load(&m->vision_projection, prefix, &st, err);
    free(prefix);
    s2s_safetensors_release(&st);
    return rc < 0 ? s2s_error_add(err, rc, "%s", m->vision_projection_path) : 0;
}

static int salm_load(struct s2s_model *model, struct s2s_error *err)
{
    const struct salm *m = model->impl;
    struct s2s_model *const parts[] = {m->encoder, m->vision, m->llm};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof parts / sizeof *parts; i++)
        if (parts[i] && parts[i]->dir)
            rc = s2s_model_load(parts[i], err);
    if (rc == 0 && m->projection_path)
        rc = load_projection(m, err);
    return rc == 0 && m->vision_projection_path ? load_vision_projection(model, err) : rc;
}

/* ---- what a batch must have ---- */

static int64_t salm_frames(const struct s2s_model *model, int64_t n_mel)
{
    const struct s2s_model *encoder = s2s_salm_encoder(model);
    return encoder ? s2s_model_frames(encoder, n_mel) : 0;
}

/* Embeddings in the LLM's width. */
static bool is_projected(const struct s2s_model *model, const struct s2s_media *audio)
{
    const struct salm *m = model->impl;
    const int64_t width = m->llm->hidden_size;
    if (!model_has_embeds(audio))
        return false;
    return audio->projected || !m->encoder ||
           (audio->width == width && m->encoder->hidden_size != width);
}

/* Frames of the encoder against slots of the pack, before anything runs. */
static int check_frames(const struct s2s_model *model, const struct s2s_media *audio,
                        struct s2s_error *err)
{
    for (int64_t k = 0; audio->cu && k < audio->n; k++) {
        const int64_t n_mel = audio->cu[k + 1] - audio->cu[k], n = salm_frames(model, n_mel);
        if (n != audio->rows[k])
            return s2s_error_hint(
                err,
                s2s_error_set(err, S2S_E_SHAPE,
                              "clip %lld has %d slots; the encoder makes %lld frames of its %lld "
                              "mel frames",
                              (long long)k, audio->rows[k], (long long)n, (long long)n_mel),
                "pack with the encoder's own --encoder-frames");
    }
    return 0;
}

static int check_audio(const struct s2s_model *model, const struct s2s_batch *batch,
                       struct s2s_error *err)
{
    const struct s2s_model *encoder = s2s_salm_encoder(model), *llm = s2s_salm_llm(model);
    const struct s2s_media *audio = model_media(batch, S2S_MEDIA_AUDIO);
    if (!audio || audio->n == 0)
        return 0;
    if (!encoder)
        return model_check_embeds(llm, audio, err);
    if (!audio->rows || !audio->slot_of_row)
        return s2s_error_set(err, S2S_E_ARG, "%lld clips without slots", (long long)audio->n);
    int rc = check_frames(model, audio, err);
    if (rc < 0 || s2s_media_n_rows(audio) == 0)
        return rc;
    if (!audio->data)
        return s2s_error_set(err, S2S_E_ARG, "%lld clips without features or embeddings",
                             (long long)audio->n);
    if (audio->cu)
        return encoder->kind->check(encoder, batch, err);
    if (audio->width != (is_projected(model, audio) ? llm : encoder)->hidden_size)
        return s2s_error_set(
            err, S2S_E_SHAPE, "embeddings are %lld wide; the encoder is %lld, the LLM %lld",
            (long long)audio->width, (long long)encoder->hidden_size, (long long)llm->hidden_size);
    return 0;
}

/* Rows that the projection makes of image i against its slots. */
static int check_rows(const struct salm *m, const struct s2s_media *images, int64_t i,
                      struct s2s_error *err)
{
    const int64_t s = m->vision_projection.spec.shuffle, height = images->grid[2 * i],
                  width = images->grid[2 * i + 1], n = height / s * (width / s);
    if (height % s || width % s)
        return s2s_error_set(
            err, S2S_E_SHAPE, "image %lld has %lld x %lld patches; %lld x %lld become one row",
            (long long)i, (long long)height, (long long)width, (long long)s, (long long)s);
    if (n != images->rows[i])
        return s2s_error_set(
            err, S2S_E_SHAPE, "image %lld has %d slots; %lld x %lld patches become %lld rows",
            (long long)i, images->rows[i], (long long)height, (long long)width, (long long)n);
    return 0;
}

static int check_images(const struct s2s_model *model, const struct s2s_batch *batch,
                        struct s2s_error *err)
{
    const struct salm *m = model->impl;
    const struct s2s_media *images = model_media(batch, S2S_MEDIA_IMAGE);
    if (!images || images->n == 0)
        return 0;
    if (!m->vision)
        return model_refuse_images(images, err);
    if (!images->rows || !images->slot_of_row)
        return s2s_error_set(err, S2S_E_ARG, "%lld images without slots", (long long)images->n);
    int rc = m->vision->kind->check(m->vision, batch, err);
    for (int64_t i = 0; rc == 0 && i < images->n; i++)
        rc = check_rows(m, images, i, err);
    return rc;
}

static int salm_check(const struct s2s_model *model, const struct s2s_batch *batch,
                      struct s2s_error *err)
{
    if (!batch->input_ids || !batch->position_ids || !batch->cu_seqlens)
        return s2s_error_set(err, S2S_E_ARG,
                             "a composite needs input_ids, position_ids and cu_seqlens");
    int rc = check_audio(model, batch, err);
    return rc < 0 ? rc : check_images(model, batch, err);
}

/* ---- forward ---- */

/* Rows of the encoder [n, D] to the LLM's width. Rows that the stream brought in the encoder's
 * width take the same way; then there are none from the encoder, which runs all the same. */
static void run_projection(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                           struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct s2s_model *model = ctx->block->model;
    const struct salm *m = model->impl;
    const struct s2s_media *audio = model_media(ctx->pass->batch, S2S_MEDIA_AUDIO);
    struct s2s_tensor *x = in[0];
    if (model_has_embeds(audio) && !is_projected(model, audio))
        x = s2s_op_splice_rows(tape, model_upload_embeds(tape, audio), x,
                               s2s_tape_upload_i32(tape, NULL, 0));
    out[0] = s2s_nn_linear(tape, &m->projection, x);
}

/* The same of images: rows [patches and what is in front of them, D]. */
static void run_vision_projection(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                                  struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct salm *m = ctx->block->model->impl;
    const struct s2s_nn_images images = model_radio_images(m->vision, ctx->pass);
    const struct s2s_nn_tp tp = {.group = m->encoder_par.tp};
    out[0] = s2s_vision_project(tape, &m->vision_projection, in[0], &images,
                                model_radio_n_front(m->vision), &tp);
}

/* What an encoder made, into its slots; each rank encoded some of the clips or images. */
static struct s2s_tensor *splice(const struct s2s_model *encoder, const struct s2s_pass *pass,
                                 struct s2s_tensor *embeds, struct s2s_tensor *rows,
                                 enum s2s_media_kind kind)
{
    const struct s2s_media *media = model_media(pass->batch, kind);
    if (model_has_features(media))
        rows = s2s_nn_spread_gather(pass->tape, rows, media->rows, media->n,
                                    model_spread(encoder, pass));
    return model_splice(pass, embeds, rows, media);
}

static void run_embed(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct s2s_model *model = ctx->block->model, *llm = s2s_salm_llm(model);
    const struct salm *m = model->impl;
    const struct s2s_media *audio = model_media(ctx->pass->batch, S2S_MEDIA_AUDIO);
    out[0] = llm->kind->embed(llm, ctx->pass);
    s2s_tape_layer(tape, "%ssplice", model->prefix);
    if (is_projected(model, audio))
        out[0] = model_splice(ctx->pass, out[0], model_upload_embeds(tape, audio), audio);
    if (!in[0])
        return;
    if (m->encoder)
        out[0] = splice(m->encoder, ctx->pass, out[0], in[0], S2S_MEDIA_AUDIO);
    if (m->vision)
        out[0] = splice(m->vision, ctx->pass, out[0], in[m->encoder ? 1 : 0], S2S_MEDIA_IMAGE);
}

const struct s2s_model_kind s2s_model_salm = {
    .model_types = model_types,
    .build = salm_build,
    .check = salm_check,
    .frames = salm_frames,
    .load = salm_load,
    .free_impl = salm_free,
};
