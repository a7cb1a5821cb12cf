/* The speech LLM: composes encoder, projection and LLM. */
#include "lib/model/salm.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"
#include "lib/io/safetensors.h"
#include "lib/model/model_internal.h"
#include "lib/model/projection.h"
#include "lib/nn/spread.h"

struct salm {
    struct s2s_model *encoder, *llm;
    struct s2s_par encoder_par; /* whose frames are not cut: each rank of tp has all of them */
    struct s2s_nn_linear projection;
    char *projection_path; /* or NULL: it has no file */
};

static const char *const model_types[] = {"salm", NULL};

static void run_projection(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                           struct s2s_tensor *const *in, struct s2s_tensor **out);
static void run_embed(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out);

struct s2s_model *s2s_salm_encoder(const struct s2s_model *model)
{
    return ((const struct salm *)model->impl)->encoder;
}

struct s2s_model *s2s_salm_llm(const struct s2s_model *model)
{
    return ((const struct salm *)model->impl)->llm;
}

/* ---- building ---- */

static int open_part(struct s2s_model **part, struct s2s_model *model, const struct s2s_par *par,
                     const char *name, const struct s2s_salm_part *from,
                     const struct s2s_salm_parts *parts, struct s2s_error *err)
{
    const bool is_llm = from == &parts->llm;
    char *prefix = s2s_xasprintf("%s%s.", model->prefix, name);
    struct s2s_model_options options = {.prefix = prefix,
                                        .config = from->config,
                                        .conf = from->conf,
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

/* The encoder's blocks without its own loss, projection, embeddings, the LLM's blocks. */
static void add_blocks(struct s2s_model *model, size_t proj_begin)
{
    const struct salm *m = model->impl;
    const struct s2s_block *embed = &m->llm->blocks[0];
    model_take_blocks(model, m->encoder, 0, m->encoder->n_blocks - 1, false);
    model_add_block(
        model,
        &(struct s2s_block){
            .run = run_projection, .n_in = 1, .n_out = 1, .param_begin = proj_begin, .hidden = -1},
        "proj");
    model->n_media_blocks = model->n_blocks;
    model_add_block(
        model,
        &(struct s2s_block){.run = run_embed, .n_in = 1, .n_out = 1, .hidden = embed->hidden}, "%s",
        embed->layer + strlen(model->prefix));
    model->blocks[model->n_blocks - 1].param_begin = embed->param_begin;
    model->blocks[model->n_blocks - 1].param_end = embed->param_end;
    model_take_blocks(model, m->llm, 1, m->llm->n_blocks, true);
}

/* Opens the parts and adds the projection; *model has params, par and prefix. */
static int build_parts(struct s2s_model *model, const struct s2s_salm_parts *parts, bool bias,
                       struct s2s_error *err)
{
    struct salm *m = model->impl = s2s_xcalloc(1, sizeof *m);
    m->projection_path = parts->projection ? s2s_xstrdup(parts->projection) : NULL;
    m->encoder_par = *model->par;
    m->encoder_par.sp = false;
    int rc = open_part(&m->encoder, model, &m->encoder_par, "encoder", &parts->encoder, parts, err);
    if (rc < 0 || (rc = open_part(&m->llm, model, model->par, "llm", &parts->llm, parts, err)) < 0)
        return rc;
    if (m->encoder->n_mels == 0 || m->encoder->kind->embed)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s is no speech encoder",
                             m->encoder->config_path);
    if (!m->llm->kind->embed)
        return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s is no language model that takes audio",
                             m->llm->config_path);
    const size_t begin = model->params->n;
    const size_t len = strlen(model->prefix);
    char *place = s2s_xasprintf("%.*s", (int)(len ? len - 1 : 0), model->prefix);
    struct s2s_nn_ctx ctx = {.params = model->params, .par = &m->encoder_par, .place = place};
    s2s_projection_init(&m->projection, &ctx, m->llm->hidden_size, m->encoder->hidden_size, bias);
    free(place);
    add_blocks(model, begin);
    model->draws = m->encoder->draws || m->llm->draws;
    model->vocab_size = m->llm->vocab_size;
    model->hidden_size = m->llm->hidden_size;
    model->n_mels = m->encoder->n_mels;
    model->pad_token_id = m->llm->pad_token_id;
    return 0;
}

/* Where a part of the composite stands: beside the config. */
static int part_path(char **path, const struct s2s_model *model, const char *key, const char *other,
                     struct s2s_error *err)
{
    const char *name;
    int rc = s2s_conf_get_str_or(&name, model->conf, key, other, err);
    if (rc == 0)
        *path = *name == '/' || !model->dir ? s2s_xstrdup(name)
                                            : s2s_xasprintf("%s/%s", model->dir, name);
    return rc;
}

static int check_projection(const struct s2s_model *model, struct s2s_error *err)
{
    const struct salm *m = model->impl;
    const struct {
        const char *key;
        int64_t size;
    } sides[] = {{"projection.in", m->encoder->hidden_size},
                 {"projection.out", m->llm->hidden_size}};
    for (int i = 0; i < 2; i++) {
        int64_t value;
        int rc =
            s2s_conf_get_i64_or(&value, model->conf, sides[i].key, 1, 1 << 30, sides[i].size, err);
        if (rc < 0)
            return rc;
        if (value != sides[i].size)
            return s2s_conf_error(err, S2S_E_SHAPE, s2s_conf_find(model->conf, sides[i].key),
                                  "%lld, but that part is %lld wide", (long long)value,
                                  (long long)sides[i].size);
    }
    return 0;
}

static int salm_build(struct s2s_model *model, struct s2s_error *err)
{
    struct s2s_salm_parts parts = {.batch_norm_batch = model->options.batch_norm_batch,
                                   .head = model->options.head,
                                   .free_steps = model->options.free_steps,
                                   .lora = model->options.lora,
                                   .dropout = model->options.dropout};
    char *encoder = NULL, *llm = NULL;
    char *projection = model->dir ? s2s_xasprintf("%s/projection.safetensors", model->dir) : NULL;
    bool bias;
    int rc = part_path(&encoder, model, "encoder", "encoder", err);
    if (rc < 0 || (rc = part_path(&llm, model, "llm", "llm", err)) < 0 ||
        (rc = s2s_conf_get_bool_or(&bias, model->conf, "projection.bias", true, err)) < 0)
        goto out;
    parts.encoder.dir = encoder;
    parts.llm.dir = llm;
    parts.projection = projection;
    rc = build_parts(model, &parts, bias, err);
    if (rc == 0)
        rc = check_projection(model, err);
out:
    free(encoder);
    free(llm);
    free(projection);
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
    s2s_model_free(m->llm);
    free(m->projection_path);
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

static int salm_load(struct s2s_model *model, struct s2s_error *err)
{
    const struct salm *m = model->impl;
    int rc = 0;
    if (m->encoder->dir && (rc = s2s_model_load(m->encoder, err)) < 0)
        return rc;
    if (m->llm->dir && (rc = s2s_model_load(m->llm, err)) < 0)
        return rc;
    return m->projection_path ? load_projection(m, err) : 0;
}

/* ---- what a batch must have ---- */

static int64_t salm_frames(const struct s2s_model *model, int64_t n_mel)
{
    return s2s_model_frames(s2s_salm_encoder(model), n_mel);
}

/* Embeddings in the LLM's width. */
static bool is_projected(const struct s2s_model *model, const struct s2s_media *audio)
{
    const struct salm *m = model->impl;
    const int64_t width = m->llm->hidden_size;
    if (!model_has_embeds(audio))
        return false;
    return audio->projected || (audio->width == width && m->encoder->hidden_size != width);
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

static int salm_check(const struct s2s_model *model, const struct s2s_batch *batch,
                      struct s2s_error *err)
{
    if (!batch->input_ids || !batch->position_ids || !batch->cu_seqlens)
        return s2s_error_set(err, S2S_E_ARG,
                             "a speech LLM needs input_ids, position_ids and cu_seqlens");
    return check_audio(model, batch, err);
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

static void run_embed(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                      struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct s2s_model *model = ctx->block->model, *llm = s2s_salm_llm(model);
    const struct s2s_media *audio = model_media(ctx->pass->batch, S2S_MEDIA_AUDIO);
    out[0] = llm->kind->embed(llm, ctx->pass);
    s2s_tape_layer(tape, "%ssplice", model->prefix);
    if (is_projected(model, audio))
        out[0] = model_splice(ctx->pass, out[0], model_upload_embeds(tape, audio), audio);
    if (!in[0])
        return;
    struct s2s_tensor *rows = in[0];
    if (model_has_features(audio)) /* each rank encoded some of the clips */
        rows = s2s_nn_spread_gather(tape, rows, audio->rows, audio->n,
                                    model_spread(s2s_salm_encoder(model), ctx->pass));
    out[0] = model_splice(ctx->pass, out[0], rows, audio);
}

const struct s2s_model_kind s2s_model_salm = {
    .model_types = model_types,
    .build = salm_build,
    .check = salm_check,
    .frames = salm_frames,
    .load = salm_load,
    .free_impl = salm_free,
};
