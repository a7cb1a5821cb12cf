/*
 * Settings of model_config.yaml that only training uses and that transformers' Parakeet has in
 * another form or not at all: what a trained model computes does not depend on them, what it
 * becomes when trained on does.
 */
#include "lib/base/base.h"
#include "lib/ckpt/nemo/from_nemo.h"

/* Settings that are off when 0, false, null or absent; transformers has none of them. */
static const char *const extras[] = {"spec_augment",
                                     "preprocessor.nb_augmentation_prob",
                                     "loss.tdt_kwargs.sigma",
                                     "loss.tdt_kwargs.omega",
                                     "loss.tdt_kwargs.fastemit_lambda",
                                     "loss.warprnnt_numba_kwargs.fastemit_lambda",
                                     "decoder.prednet.dropout",
                                     "joint.jointnet.dropout",
                                     "joint.masking_prob",
                                     "interctc"};

static bool is_on(const json_t *value)
{
    return json_is_true(value) || json_number_value(value) > 0 || json_object_size(value) > 0;
}

static double number_or(const json_t *value, double absent)
{
    return json_is_number(value) ? json_number_value(value) : absent;
}

static void add(struct s2s_buf *out, const char *key)
{
    s2s_buf_printf(out, "%s%s", out->len ? ", " : "", key);
}

static void add_encoder(struct s2s_buf *out, const json_t *encoder)
{
    const double before = number_or(json_object_get(encoder, "dropout_pre_encoder"), 0.1),
                 dropout = number_or(json_object_get(encoder, "dropout"), 0.1);
    if (before != dropout)
        add(out, "encoder.dropout_pre_encoder");
    /* NeMo never drops the first layer, and scales the others */
    if (number_or(json_object_get(encoder, "stochastic_depth_drop_prob"), 0) > 0)
        add(out, "encoder.stochastic_depth_mode");
    if (json_is_false(json_object_get(encoder, "untie_biases")))
        add(out, "encoder.untie_biases");
}

const char *ckpt_nemo_reduction(const json_t *said)
{
    static const char *const known[] = {"mean", "sum", "none"};
    const char *text = json_string_value(said);
    for (size_t i = 0; text && i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], text) == 0)
            return known[i];
    return NULL;
}

/* Is the loss reduced as in transformers? Without the key NeMo has mean_batch, which it has not. */
static bool reduces_alike(const json_t *said, const char *want)
{
    const char *text = json_string_value(said);
    return want ? text && strcmp(text, want) == 0 : ckpt_nemo_reduction(said) != NULL;
}

void ckpt_nemo_warn_training(const json_t *all, const json_t *encoder, const char *reduction,
                             const char *want)
{
    struct s2s_buf keys = S2S_BUF_INIT;
    add_encoder(&keys, encoder);
    if (reduction && !reduces_alike(ckpt_nemo_setting(all, reduction), want))
        add(&keys, reduction);
    for (size_t i = 0; i < sizeof extras / sizeof *extras; i++)
        if (is_on(ckpt_nemo_setting(all, extras[i])))
            add(&keys, extras[i]);
    if (keys.len) {
        s2s_buf_putc(&keys, 0);
        s2s_warn("ckpt",
                 "model_config.yaml: settings of training that transformers has otherwise or not "
                 "at all: %s",
                 keys.data);
    }
    s2s_buf_release(&keys);
}
