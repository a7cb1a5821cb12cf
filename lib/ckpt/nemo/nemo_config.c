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

/* What an encoder must be for transformers to run it: the key's value; what is meant when it is
 * absent is that too. */
static const struct {
    const char *key, *only;
} demands[] = {
    {"subsampling", "dw_striding"},
    {"self_attention_model", "rel_pos"},
    {"conv_norm_type", "batch_norm"},
    {"att_context_style", "regular"},
};

static int refuse(struct s2s_error *err, const char *key, const char *is, const char *only)
{
    int rc =
        s2s_error_set(err, S2S_E_UNSUPPORTED,
                      "model_config.yaml: encoder.%s is %s; Parakeet has only %s", key, is, only);
    return s2s_error_hint(err, rc, "a config.json of your own can be given with --config");
}

/* [-1, -1], or several of them: attention sees everything */
static bool sees_all(const json_t *context)
{
    const json_t *item;
    size_t i;
    json_array_foreach(context, i,
                       item) if (!(json_is_integer(item) && json_integer_value(item) == -1) &&
                                 !(json_is_array(item) && sees_all(item))) return false;
    return true;
}

static bool is_centred(const json_t *context)
{
    const json_t *left = json_array_get(context, 0), *right = json_array_get(context, 1);
    return !context || json_is_null(context) || (json_is_array(context) && json_equal(left, right));
}

static int check_encoder(const json_t *encoder, struct s2s_error *err)
{
    for (size_t i = 0; i < sizeof demands / sizeof *demands; i++) {
        const char *value = json_string_value(json_object_get(encoder, demands[i].key));
        if (value && strcmp(value, demands[i].only) != 0)
            return refuse(err, demands[i].key, value, demands[i].only);
    }
    const json_t *width = json_object_get(encoder, "feat_out");
    if (json_is_true(json_object_get(encoder, "causal_downsampling")))
        return refuse(err, "causal_downsampling", "true", "false");
    if (!sees_all(json_object_get(encoder, "att_context_size")))
        return refuse(err, "att_context_size", "limited", "[-1, -1]");
    if (!is_centred(json_object_get(encoder, "conv_context_size")))
        return refuse(err, "conv_context_size", "causal", "null");
    if (json_is_string(json_object_get(encoder, "reduction")))
        return refuse(err, "reduction", json_string_value(json_object_get(encoder, "reduction")),
                      "null");
    if (json_is_integer(width) && json_integer_value(width) > 0 &&
        !json_equal(width, json_object_get(encoder, "d_model")))
        return refuse(err, "feat_out", "another width", "-1");
    return 0;
}

/* ---- "${model.sample_rate}" ---- */

static json_t *look_up(json_t *root, const char *path)
{
    char key[128];
    json_t *at = root;
    while (at && *path) {
        size_t len = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)(len < sizeof key ? len : 0), path);
        at = json_object_get(at, key);
        path += len + (path[len] == '.');
    }
    return at;
}

/* what it stands for; the string itself when that is not there. depth: of names of names */
static json_t *resolved(json_t *root, json_t *value, int depth)
{
    const char *text = json_string_value(value);
    size_t len = text ? strlen(text) : 0;
    char path[256];
    if (depth > 8 || len < 4 || len >= sizeof path || strncmp(text, "${", 2) != 0 ||
        text[len - 1] != '}')
        return value;
    snprintf(path, sizeof path, "%.*s", (int)len - 3, text + 2);
    json_t *found = look_up(root, path);
    if (!found && strncmp(path, "model.", 6) == 0)
        found = look_up(root, path + 6);
    return found ? resolved(root, found, depth + 1) : value;
}

/* A section with its references followed, one level deep. Gives a reference; NULL: it is no
 * object. */
static json_t *section(const json_t *root, const json_t *from, const char *name)
{
    const json_t *object = json_object_get(from, name);
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return NULL;
    json_t *out = json_object();
    json_object_foreach((json_t *)object, key, value)
        json_object_set(out, key, resolved((json_t *)root, value, 0));
    return out;
}

/* ---- config.json ---- */

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

static int64_t rows_of(const struct s2s_ckpt *ckpt, const char *name)
{
    const struct s2s_ckpt_tensor *t = s2s_ckpt_find(ckpt, name);
    return t && t->n_dims > 0 ? t->shape[0] : 0;
}

/* samples: of the key in seconds, or of the key that counts them; the usual number where neither
 * says anything of use */
static json_int_t samples(const json_t *from, const char *seconds, const char *count,
                          double usual_s, json_int_t hz)
{
    const json_t *value = json_object_get(from, seconds), *n = json_object_get(from, count);
    const double s = json_number_value(value);
    if (!json_is_number(value) && json_is_integer(n))
        return json_integer_value(n);
    return (json_int_t)((s > 0 && s < 1000 ? s : usual_s) * (double)hz + 0.5);
}

static json_t *features_config(const json_t *from)
{
    const json_t *rate = json_object_get(from, "sample_rate");
    json_int_t hz = json_integer_value(rate);
    hz = hz > 0 && hz < 1 << 24 ? hz : 16000;
    json_t *out = json_pack("{s:s, s:I, s:I, s:I}", "feature_extractor_type",
                            "ParakeetFeatureExtractor", "sampling_rate", hz, "win_length",
                            samples(from, "window_size", "n_window_size", 0.025, hz), "hop_length",
                            samples(from, "window_stride", "n_window_stride", 0.01, hz));
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

static json_t *ctc_config(json_t *encoder, int64_t n_classes)
{
    return json_pack("{s:s, s:[s], s:I, s:I, s:o}", "model_type", "parakeet_ctc", "architectures",
                     "ParakeetForCTC", "vocab_size", (json_int_t)n_classes, "pad_token_id",
                     (json_int_t)(n_classes - 1), "encoder_config", encoder);
}

/* The durations of a TDT head with n of them. A reference; NULL: it is not said. */
static json_t *find_durations(const json_t *all, int64_t n)
{
    static const char *const paths[] = {"decoding.durations", "model_defaults.tdt_durations",
                                        "loss.tdt_kwargs.durations"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        json_t *found = look_up((json_t *)all, paths[i]);
        found = resolved((json_t *)all, found, 0);
        if (json_is_array(found) && (int64_t)json_array_size(found) == n)
            return json_incref(found);
    }
    return NULL;
}

/* index of "<pad>" among the labels; -1: there is none */
static json_int_t pad_label(const json_t *all)
{
    const json_t *labels = json_object_get(all, "labels"), *item;
    size_t i;
    if (!labels)
        labels = json_object_get(json_object_get(all, "joint"), "vocabulary");
    json_array_foreach(labels, i,
                       item) if (json_is_string(item) && strcmp(json_string_value(item), "<pad>") ==
                                                             0) return (json_int_t)i;
    return -1;
}

static json_t *generation_config(json_int_t classes, int64_t n_durations)
{
    json_t *out = json_pack("{s:I}", "decoder_start_token_id", classes - 1);
    if (n_durations > 0) {
        json_t *suppress = json_array();
        for (int64_t i = 0; i < n_durations; i++)
            json_array_append_new(suppress, json_integer(classes + i));
        json_object_set_new(out, "suppress_tokens", suppress);
    }
    return out;
}

/* the head's sizes are those of its tensors */
static int transducer_config(json_t **config, json_t **generation, const struct s2s_ckpt *ckpt,
                             const json_t *all, json_t *encoder, struct s2s_error *err)
{
    const int64_t classes = rows_of(ckpt, "decoder.prediction.embed.weight");
    const int64_t n_durations = rows_of(ckpt, "joint.joint_net.2.weight") - classes;
    const json_t *symbols = look_up((json_t *)all, "decoding.greedy.max_symbols");
    const json_t *act = look_up((json_t *)all, "joint.jointnet.activation");
    json_t *durations = n_durations > 0 ? find_durations(all, n_durations) : NULL;
    const json_int_t pad = pad_label(all);
    char name[80];
    json_int_t layers = 0;
    do
        snprintf(name, sizeof name, "decoder.prediction.dec_rnn.lstm.weight_ih_l%d", (int)layers);
    while (s2s_ckpt_find(ckpt, name) && ++layers);
    if (n_durations < 0 || (n_durations > 0 && !durations)) {
        json_decref(encoder);
        int rc =
            s2s_error_set(err, S2S_E_NOTFOUND,
                          "model_config.yaml: names no %lld durations, which the joint network "
                          "has outputs for",
                          (long long)n_durations);
        return s2s_error_hint(err, rc, "give the model's config.json with --config");
    }
    *config = json_pack("{s:s, s:[s], s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:o}", "model_type",
                        durations ? "parakeet_tdt" : "parakeet_rnnt", "architectures",
                        durations ? "ParakeetForTDT" : "ParakeetForRNNT", "vocab_size",
                        (json_int_t)classes, "decoder_hidden_size",
                        (json_int_t)rows_of(ckpt, "joint.pred.weight"), "num_decoder_layers",
                        layers, "hidden_act", json_is_string(act) ? json_string_value(act) : "relu",
                        "max_symbols_per_step",
                        json_is_integer(symbols) ? json_integer_value(symbols) : 10, "pad_token_id",
                        pad >= 0    ? pad
                        : durations ? (json_int_t)classes - 1
                                    : 0,
                        "blank_token_id", (json_int_t)classes - 1, "encoder_config", encoder);
    if (durations)
        json_object_set_new(*config, "durations", durations);
    *generation = generation_config(classes, n_durations);
    return 0;
}

static char *as_text(json_t *value)
{
    char *text = value ? json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(value);
    return text;
}

json_t *ckpt_nemo_features(const json_t *model_config)
{
    const json_t *part = json_object_get(model_config, "perception");
    json_t *from = section(model_config, part ? part : model_config, "preprocessor");
    json_t *out = from ? features_config(from) : NULL;
    json_decref(from);
    return out;
}

int ckpt_nemo_config(struct ckpt_nemo_texts *texts, const struct s2s_ckpt *ckpt, const json_t *all,
                     const char *family, bool any, struct s2s_error *err)
{
    const json_t *part = json_object_get(all, "perception");
    json_t *encoder = section(all, part ? part : all, "encoder"), *out = NULL, *generation = NULL;
    int rc = 0;
    *texts = (struct ckpt_nemo_texts){.config = NULL};
    if (!any && json_is_integer(json_object_get(encoder, "d_model"))) {
        rc = check_encoder(encoder, err);
        if (rc == 0)
            out = encoder_config(encoder);
        if (rc == 0 && strcmp(family, "fastconformer_encoder") != 0 &&
            strcmp(family, "fastconformer_perception") != 0)
            json_object_del(out, "architectures");
        if (rc == 0 && strcmp(family, "fastconformer_ctc") == 0)
            out = ctc_config(out, rows_of(ckpt, "decoder.decoder_layers.0.weight"));
        else if (rc == 0 && strcmp(family, "fastconformer_hybrid_ctc") == 0)
            out = ctc_config(out, rows_of(ckpt, "ctc_decoder.decoder_layers.0.weight"));
        else if (rc == 0 && strcmp(family, "fastconformer_transducer") == 0)
            rc = transducer_config(&out, &generation, ckpt, all, out, err);
        if (rc < 0)
            out = NULL;
    }
    json_decref(encoder);
    if (rc < 0)
        return rc;
    texts->config = as_text(out);
    texts->generation = as_text(generation);
    texts->features = as_text(ckpt_nemo_features(all));
    return 0;
}
