/* Embeddings of ids, output layer and loss: the two ends of decoders. */
#include "lib/model/text.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/mem.h"
#include "lib/model/model_internal.h"

/* ---- in front ---- */

/* Slot ids for the look-up: -1 in pad slots and where media will stand. */
static int32_t *lookup_ids(const struct s2s_batch *batch)
{
    int32_t *ids = s2s_xmalloc((size_t)(batch->n_tokens + 1) * sizeof *ids);
    memcpy(ids, batch->input_ids, (size_t)batch->n_tokens * sizeof *ids);
    for (int64_t s = 0; batch->seq_lens && s < batch->n_seqs; s++)
        for (int64_t i = batch->cu_seqlens[s] + batch->seq_lens[s]; i < batch->cu_seqlens[s + 1];
             i++)
            ids[i] = -1;
    for (int k = 0; k < batch->n_media; k++) {
        const int64_t n = s2s_media_n_rows(&batch->media[k]);
        for (int64_t i = 0; i < n; i++)
            if (batch->media[k].slot_of_row[i] >= 0)
                ids[batch->media[k].slot_of_row[i]] = -1;
    }
    return ids;
}

void model_add_embed(struct s2s_model *model, struct s2s_nn_table *embed,
                     const struct s2s_param_spec *table, const char *name)
{
    const struct s2s_block block = {
        .run = model_run_embed, .n_out = 1, .param_begin = model->params->n};
    *embed = s2s_nn_table_of(s2s_model_add(model, table, "%s.weight", name));
    model_add_block(model, &block, "%s", name);
}

struct s2s_tensor *model_embed_ids(const struct s2s_model *model, const struct s2s_pass *pass,
                                   const struct s2s_nn_table *table, float scale,
                                   const struct s2s_nn_dropout *dropout)
{
    int32_t *ids = lookup_ids(pass->batch);
    struct s2s_tensor *y = s2s_nn_embed(pass->tape, table, &pass->tp, ids, pass->batch->n_tokens,
                                        scale, model->pad_token_id);
    free(ids);
    return s2s_nn_drop(pass->tape, dropout, &pass->tp, y);
}

void model_run_embed(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                     struct s2s_tensor *const *in, struct s2s_tensor **out)
{
    const struct s2s_media *audio = model_media(ctx->pass->batch, S2S_MEDIA_AUDIO);
    out[0] = ctx->block->model->kind->embed(ctx->block->model, ctx->pass);
    if (model_has_embeds(audio))
        out[0] = model_splice(ctx->pass, out[0], model_upload_embeds(tape, audio), audio);
}

/* ---- after the layers ---- */

/* Rows of y: of all slots, or of the last one of each sequence. No gradient goes this way. */
static struct s2s_tensor *some_rows(struct s2s_tape *tape, struct s2s_tensor *y,
                                    const struct s2s_batch *batch, bool last)
{
    const int64_t n = last ? batch->n_seqs : batch->n_tokens;
    if (n == s2s_tensor_rows(y))
        return y;
    int32_t *rows = s2s_tape_host_alloc(tape, (size_t)(n + 1) * sizeof *rows);
    const bool recording = tape->recording;
    for (int64_t i = 0; i < n; i++)
        rows[i] = last ? batch->cu_seqlens[i + 1] - 1 : (int32_t)i;
    tape->recording = false;
    y = s2s_op_gather_rows(tape, y, s2s_tape_upload_i32(tape, rows, n));
    tape->recording = recording;
    return y;
}

/* Sum over the labels, of y that came into the region; rows behind the last token have none. */
static void add_loss(const struct s2s_nn_table *head, const struct s2s_pass *pass,
                     struct s2s_tensor *y)
{
    struct s2s_forward *fwd = pass->fwd;
    const int64_t n = pass->batch->n_tokens, n_rows = s2s_tensor_rows(y);
    int32_t *labels = s2s_xmalloc((size_t)(n_rows + 1) * sizeof *labels);
    for (int64_t i = 0; i < n_rows; i++)
        labels[i] = i < n ? pass->batch->labels[i] : -1;
    fwd->loss = s2s_op_linear_xent_of(pass->tape, y, head->w->tensor, &head->classes, labels,
                                      fwd->seed, fwd->want_hits ? &fwd->hits : NULL,
                                      fwd->want_rows ? &fwd->rows : NULL);
    free(labels);
}

struct s2s_tensor *model_run_head(struct s2s_tape *tape, const struct s2s_block_ctx *ctx,
                                  const struct s2s_nn_rmsnorm *norm,
                                  const struct s2s_nn_table *head, struct s2s_tensor *h)
{
    const struct s2s_pass *pass = ctx->pass;
    struct s2s_forward *fwd = pass->fwd;
    fwd->output = s2s_nn_rmsnorm(tape, norm, h);
    s2s_tape_layer(tape, "%slm_head", ctx->block->model->prefix);
    struct s2s_tensor *y = s2s_nn_enter(tape, &pass->tp, fwd->output);
    if (pass->batch->labels)
        add_loss(head, pass, y);
    if (fwd->want_logits || fwd->want_last)
        fwd->logits = s2s_nn_logits(tape, head, some_rows(tape, y, pass->batch, fwd->want_last));
    return fwd->output;
}

/* ---- what a batch must have ---- */

int model_refuse_images(const struct s2s_media *images, struct s2s_error *err)
{
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "%lld images for a model without their encoder",
                           (long long)images->n);
    return s2s_error_hint(err, rc, "name model.vision");
}

int model_check_embeds(const struct s2s_model *model, const struct s2s_media *audio,
                       struct s2s_error *err)
{
    int rc;
    if (!audio || s2s_media_n_rows(audio) == 0)
        return 0;
    if (!model_has_embeds(audio)) {
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "%lld clips of sound for a model without an encoder",
                           (long long)audio->n);
        return s2s_error_hint(err, rc,
                              "name model.encoder, or encode the stream first: s2s-encode "
                              "--projection");
    }
    if (audio->width != model->hidden_size) {
        rc = s2s_error_set(err, S2S_E_SHAPE, "embeddings are %lld wide; the LLM is %lld",
                           (long long)audio->width, (long long)model->hidden_size);
        return s2s_error_hint(err, rc,
                              "a model without a projection takes what s2s-encode "
                              "--projection makes");
    }
    return 0;
}

int model_check_text(const struct s2s_model *model, const struct s2s_batch *batch,
                     struct s2s_error *err)
{
    const struct s2s_media *images = model_media(batch, S2S_MEDIA_IMAGE);
    if (!batch->input_ids || !batch->position_ids || !batch->cu_seqlens)
        return s2s_error_set(err, S2S_E_ARG,
                             "a decoder needs input_ids, position_ids and cu_seqlens");
    if (images && images->n > 0)
        return model_refuse_images(images, err);
    return model_check_embeds(model, model_media(batch, S2S_MEDIA_AUDIO), err);
}
