/*
 * NeMo's model_config.yaml as the config.json and preprocessor_config.json of transformers'
 * Parakeet. Which key is which: transformers' models/parakeet/convert_nemo_to_hf.py.
 */
#include "lib/base/base.h"
#include "lib/ckpt/model.h"

/* Of ConformerEncoder and of ParakeetEncoderConfig. */
static const struct {
    const char *nemo, *hf;
} encoder_keys[] = {
    {"d_model", "hidden_size"},
    {"n_heads", "num_attention_heads"},
    {"n_layers", "num_hidden_layers"},
    {"feat_in", "num_mel_bins"},
    {"conv_kernel_size", "conv_kernel_size"},
    {"subsampling_factor", "subsampling_factor"},
    {"subsampling_conv_channels", "subsampling_conv_channels"},
    {"pos_emb_max_len", "max_position_embeddings"},
    {"dropout", "dropout"},
    {"dropout_emb", "dropout_positions"},
    {"dropout_att", "attention_dropout"},
    {"xscaling", "scale_input"},
    {"use_bias", "attention_bias"},
    {"use_bias", "convolution_bias"},
    {"stochastic_depth_drop_prob", "layerdrop"},
};

/* What an encoder must be for transformers to run it: the key's values, and what is meant when it
 * is absent. */
static const struct {
    const char *key, *only;
} demands[] = {
    {"subsampling", "dw_striding"},
    {"self_attention_model", "rel_pos"},
    {"conv_norm_type", "batch_norm"},
    {"att_context_style", "regular"},
};

static int check_encoder(const json_t *encoder, struct s2s_error *err)
{
    for (size_t i = 0; i < sizeof demands / sizeof *demands; i++) {
        const char *value = json_string_value(json_object_get(encoder, demands[i].key));
        if (value && strcmp(value, demands[i].only) != 0)
            return s2s_error_set(err, S2S_E_UNSUPPORTED,
                                 "model_config.yaml: encoder.%s is %s; Parakeet has only %s",
                                 demands[i].key, value, demands[i].only);
    }
    if (json_is_true(json_object_get(encoder, "causal_downsampling")))
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "model_config.yaml: encoder.causal_downsampling: Parakeet has none");
    return 0;
}

static json_t *encoder_config(const json_t *encoder)
{
    json_t *out =
        json_pack("{s:s, s:[s], s:f, s:s}", "model_type", "parakeet_encoder", "architectures",
                  "ParakeetEncoder", "layerdrop", 0.0, "hidden_act", "silu");
    for (size_t i = 0; i < sizeof encoder_keys / sizeof *encoder_keys; i++) {
        json_t *value = json_object_get(encoder, encoder_keys[i].nemo);
        if (value && !json_is_null(value))
            json_object_set(out, encoder_keys[i].hf, value);
    }
    const json_t *width = json_object_get(out, "hidden_size");
    const json_t *factor = json_object_get(encoder, "ff_expansion_factor");
    json_int_t times = json_is_integer(factor) ? json_integer_value(factor) : 4, wide;
    if (!__builtin_mul_overflow(json_integer_value(width), times, &wide))
        json_object_set_new(out, "intermediate_size", json_integer(wide));
    json_object_set(out, "num_key_value_heads", json_object_get(out, "num_attention_heads"));
    /* NeMo's -1: as many channels as the model is wide */
    json_t *channels = json_object_get(out, "subsampling_conv_channels");
    if (json_is_integer(channels) && json_integer_value(channels) < 1)
        json_object_set(out, "subsampling_conv_channels", (json_t *)width);
    return out;
}

/* the classes of the head are the rows of its weight */
static int64_t n_classes(const struct s2s_ckpt *ckpt)
{
    const struct s2s_ckpt_tensor *head = s2s_ckpt_find(ckpt, "decoder.decoder_layers.0.weight");
    return head && head->n_dims > 0 ? head->shape[0] : 0;
}

/* seconds in samples; the usual number of them where the text says nothing of use */
static json_int_t samples(const json_t *seconds, double usual_s, json_int_t hz)
{
    double s = json_number_value(seconds);
    return (json_int_t)((s > 0 && s < 1000 ? s : usual_s) * (double)hz + 0.5);
}

static json_t *features_config(const json_t *from)
{
    const json_t *rate = json_object_get(from, "sample_rate");
    json_int_t hz = json_integer_value(rate);
    hz = hz > 0 && hz < 1 << 24 ? hz : 16000;
    json_t *out = json_pack("{s:s, s:I, s:I, s:I}", "feature_extractor_type",
                            "ParakeetFeatureExtractor", "sampling_rate", hz, "win_length",
                            samples(json_object_get(from, "window_size"), 0.025, hz), "hop_length",
                            samples(json_object_get(from, "window_stride"), 0.01, hz));
    static const char *const keys[][2] = {{"features", "feature_size"},
                                          {"n_fft", "n_fft"},
                                          {"preemph", "preemphasis"},
                                          {"preemphasis", "preemphasis"},
                                          {"pad_value", "padding_value"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(from, keys[i][0]);
        if (json_is_number(value))
            json_object_set(out, keys[i][1], value);
    }
    return out;
}

int ckpt_nemo_config(char **config, char **features, const struct s2s_ckpt *ckpt, const json_t *all,
                     bool with_head, struct s2s_error *err)
{
    const json_t *part = json_object_get(all, "perception");
    const json_t *from = part ? part : all;
    const json_t *encoder = json_object_get(from, "encoder");
    *config = *features = NULL;
    if (!json_is_object(encoder) || !json_is_integer(json_object_get(encoder, "d_model")))
        return 0;
    int rc = check_encoder(encoder, err);
    if (rc < 0)
        return rc;
    json_t *out = encoder_config(encoder);
    if (with_head) {
        const int64_t n = n_classes(ckpt);
        json_object_del(out, "architectures");
        out = json_pack("{s:s, s:[s], s:I, s:I, s:o}", "model_type", "parakeet_ctc",
                        "architectures", "ParakeetForCTC", "vocab_size", (json_int_t)n,
                        "pad_token_id", (json_int_t)(n - 1), "encoder_config", out);
    }
    *config = json_dumps(out, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(out);
    const json_t *preprocessor = json_object_get(from, "preprocessor");
    if (json_is_object(preprocessor)) {
        out = features_config(preprocessor);
        *features = json_dumps(out, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
        json_decref(out);
    }
    return 0;
}
