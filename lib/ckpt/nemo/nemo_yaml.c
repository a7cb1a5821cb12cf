/*
 * Makes model_config.yaml from transformers' Parakeet: keys as in NeMo's
 * examples/asr/conf/fastconformer/, and the arguments of its ConformerEncoder, ConvASRDecoder,
 * RNNTDecoder and RNNTJoint. nemo_config.c is the other direction.
 */
#include <ctype.h>
#include <math.h>

#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/nemo/from_nemo.h"
#include "lib/ckpt/nemo/to_nemo.h"

/* ---- JSON as YAML, in the form that OmegaConf gives to a model_config.yaml ---- */

static bool is_plain(const char *s)
{
    static const char *const words[] = {"true", "false", "null", "yes", "no",
                                        "on",   "off",   "y",    "n",   "~"};
    if (!isalpha((unsigned char)*s) && *s != '_')
        return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(s, words[i]) == 0)
            return false;
    return s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-")] == 0;
}

/* YAML 1.1 requires a point in a float; JSON's quoted strings are also YAML. */
static void add_scalar(struct s2s_buf *out, const json_t *value)
{
    char number[40];
    if (json_is_real(value)) {
        snprintf(number, sizeof number, "%.15g", json_real_value(value));
        size_t head = strcspn(number, "e");
        bool point = memchr(number, '.', head) != NULL;
        s2s_buf_printf(out, "%.*s%s%s", (int)head, number, point ? "" : ".0", number + head);
        return;
    }
    if (json_is_string(value) && is_plain(json_string_value(value))) {
        s2s_buf_puts(out, json_string_value(value));
        return;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    s2s_buf_puts(out, text ? text : "null");
    free(text);
}

static void add_value(struct s2s_buf *out, const json_t *value, int indent);

static void add_list(struct s2s_buf *out, const json_t *list, int indent)
{
    const bool texts = json_is_string(json_array_get(list, 0));
    const json_t *item;
    size_t i;
    s2s_buf_puts(out, texts ? "" : " [");
    json_array_foreach(list, i, item)
    {
        if (texts)
            s2s_buf_printf(out, "\n%*s- ", indent, "");
        else if (i)
            s2s_buf_puts(out, ", ");
        if (texts) { /* always quoted: labels may contain anything */
            char *text = json_dumps(item, JSON_ENCODE_ANY | JSON_COMPACT);
            s2s_buf_puts(out, text ? text : "\"\"");
            free(text);
        } else {
            add_scalar(out, item);
        }
    }
    s2s_buf_puts(out, texts ? "\n" : "]\n");
}

/* Appends an object as YAML; its keys begin at column `indent`. */
static void yaml_object(struct s2s_buf *out, const json_t *object, int indent)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        s2s_buf_printf(out, "%*s%s:", indent, "", key);
        add_value(out, value, indent + 2);
    }
}

static void add_value(struct s2s_buf *out, const json_t *value, int indent)
{
    if (json_is_object(value)) {
        s2s_buf_putc(out, '\n');
        yaml_object(out, value, indent);
    } else if (json_is_array(value)) {
        add_list(out, value, indent - 2);
    } else {
        s2s_buf_putc(out, ' ');
        add_scalar(out, value);
        s2s_buf_putc(out, '\n');
    }
}

/* ---- Parakeet's configuration ---- */

/* Defaults of ParakeetEncoderConfig. */
static const struct {
    const char *key;
    int64_t value;
} defaults[] = {
    {"hidden_size", 1024},
    {"num_hidden_layers", 24},
    {"num_attention_heads", 8},
    {"intermediate_size", 4096},
    {"conv_kernel_size", 9},
    {"subsampling_factor", 8},
    {"subsampling_conv_channels", 256},
    {"num_mel_bins", 80},
    {"subsampling_conv_kernel_size", 3},
    {"subsampling_conv_stride", 2},
    {"max_position_embeddings", 5000},
};

static const json_t *encoder_of(const json_t *config)
{
    const json_t *encoder = json_object_get(config, "encoder_config");
    return encoder ? encoder : config;
}

/* Limits numbers, as they are added and multiplied; 0 for others, which is no valid size. */
static int64_t credible(const json_t *value)
{
    const json_int_t number = json_integer_value(value);
    return number > -(1 << 30) && number < 1 << 30 ? number : 0;
}

int64_t ckpt_parakeet_int(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(encoder_of(config), key);
    if (json_is_integer(value))
        return credible(value);
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (strcmp(defaults[i].key, key) == 0)
            return defaults[i].value;
    return 0;
}

static bool flag_of(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(encoder_of(config), key);
    return value ? json_is_true(value) : true;
}

static double real_of(const json_t *config, const char *key, double absent)
{
    const json_t *value = json_object_get(encoder_of(config), key);
    return json_is_number(value) ? json_number_value(value) : absent;
}

static int64_t top_int(const json_t *config, const char *key, int64_t absent)
{
    const json_t *value = json_object_get(config, key);
    return json_is_integer(value) ? credible(value) : absent;
}

int64_t ckpt_parakeet_classes(const json_t *config)
{
    const bool ctc = strcmp(ckpt_config_type(config), "parakeet_ctc") == 0;
    return top_int(config, "vocab_size", ctc ? 1025 : 8193);
}

static int refuse(struct s2s_error *err, const char *key, const char *why)
{
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "config.json: %s: %s", key, why);
    return s2s_error_hint(err, rc, "a model_config.yaml of your own can be given with --config");
}

static int check_encoder(const json_t *config, struct s2s_error *err)
{
    const char *act = json_string_value(json_object_get(encoder_of(config), "hidden_act"));
    const int64_t width = ckpt_parakeet_int(config, "hidden_size");
    if (ckpt_parakeet_int(config, "subsampling_conv_kernel_size") != 3)
        return refuse(err, "subsampling_conv_kernel_size", "NeMo's dw_striding has kernels of 3");
    if (ckpt_parakeet_int(config, "subsampling_conv_stride") != 2)
        return refuse(err, "subsampling_conv_stride", "NeMo's dw_striding has strides of 2");
    if (flag_of(config, "attention_bias") != flag_of(config, "convolution_bias"))
        return refuse(err, "convolution_bias",
                      "NeMo has one use_bias for attention and convolution");
    if (width < 1 || ckpt_parakeet_int(config, "intermediate_size") % width != 0)
        return refuse(err, "intermediate_size", "NeMo wants a multiple of hidden_size");
    if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return refuse(err, "hidden_act", "NeMo's encoder has only silu");
    return 0;
}

static bool is_whole(const json_t *value)
{
    return json_is_integer(value) && credible(value) == json_integer_value(value);
}

static bool is_positive(const json_t *value)
{
    return is_whole(value) && json_integer_value(value) > 0;
}

static bool is_number(const json_t *value)
{
    return json_is_number(value);
}

static bool is_bool(const json_t *value)
{
    return json_is_boolean(value);
}

static bool is_text(const json_t *value)
{
    return json_is_string(value);
}

static bool is_reduction(const json_t *value)
{
    return ckpt_nemo_reduction(value) != NULL;
}

/* The types of keys: a value of another type is refused, as the default in its place would be a
 * guess. Sizes are in `defaults`. */
static const struct type {
    const char *name;
    bool (*fits)(const json_t *value);
    const char *keys[8];
} types[] = {
    {"a whole number", is_whole, {"pad_token_id", "blank_token_id"}},
    {"a whole number above 0",
     is_positive,
     {"max_symbols_per_step", "num_decoder_layers", "decoder_hidden_size"}},
    {"a number",
     is_number,
     {"dropout", "activation_dropout", "dropout_positions", "attention_dropout", "layerdrop"}},
    {"true or false",
     is_bool,
     {"scale_input", "attention_bias", "convolution_bias", "ctc_zero_infinity"}},
    {"mean, sum or none", is_reduction, {"ctc_loss_reduction"}},
    {"a text", is_text, {"hidden_act"}},
};

static int check_type(const json_t *section, const struct type *type, const char *key,
                      struct s2s_error *err)
{
    const json_t *value = json_object_get(section, key);
    return !value || type->fits(value)
               ? 0
               : s2s_error_set(err, S2S_E_FORMAT, "config.json: %s is not %s", key, type->name);
}

static int check_types(const json_t *config, struct s2s_error *err)
{
    const json_t *encoder = encoder_of(config), *item;
    size_t i, k;
    int rc = 0;
    for (i = 0; i < sizeof defaults / sizeof *defaults && rc == 0; i++)
        rc = check_type(encoder, &types[0], defaults[i].key, err);
    for (i = 0; i < sizeof types / sizeof *types; i++)
        for (k = 0; types[i].keys[k] && rc == 0; k++) {
            rc = check_type(config, &types[i], types[i].keys[k], err);
            if (rc == 0)
                rc = check_type(encoder, &types[i], types[i].keys[k], err);
        }
    json_array_foreach(json_object_get(config, "durations"), i, item)
    {
        if (rc == 0 && !is_whole(item))
            rc = s2s_error_set(err, S2S_E_FORMAT, "config.json: durations: not all whole numbers");
    }
    return rc;
}

static bool is_number_or_null(const json_t *value)
{
    return json_is_number(value) || json_is_null(value);
}

/* Checks feature settings; missing ones have valid defaults. */
static int check_features(const json_t *features, struct s2s_error *err)
{
    static const struct {
        const char *key;
        bool (*fits)(const json_t *value);
    } keys[] = {
        {"sampling_rate", is_positive},     {"win_length", is_positive},
        {"hop_length", is_positive},        {"n_fft", is_positive},
        {"feature_size", is_positive},      {"padding_value", is_number},
        {"preemphasis", is_number_or_null},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(features, keys[i].key);
        if (value && !keys[i].fits(value))
            return s2s_error_set(err, S2S_E_UNSUPPORTED,
                                 "the feature extractor's %s is not a valid number", keys[i].key);
    }
    return 0;
}

/* ---- sections ---- */

static json_t *encoder_section(const json_t *c)
{
    const int64_t width = ckpt_parakeet_int(c, "hidden_size");
    const double dropout = real_of(c, "dropout", 0.1),
                 activation = real_of(c, "activation_dropout", 0.1);
    if (activation != dropout)
        s2s_warn("convert",
                 "config.json: activation_dropout is %g; NeMo has one dropout, which is %g",
                 activation, dropout);
    if (real_of(c, "layerdrop", 0.1) > 0)
        s2s_warn("convert",
                 "config.json: layerdrop is %g; NeMo's stochastic depth drops layers with this "
                 "probability, but never the first, and scales the others",
                 real_of(c, "layerdrop", 0.1));
    json_t *out = json_pack(
        "{s:s, s:I, s:i, s:I, s:I, s:s, s:I, s:I, s:b, s:n, s:n, s:i}", "_target_",
        "nemo.collections.asr.modules.ConformerEncoder", "feat_in",
        (json_int_t)ckpt_parakeet_int(c, "num_mel_bins"), "feat_out", -1, "n_layers",
        (json_int_t)ckpt_parakeet_int(c, "num_hidden_layers"), "d_model", (json_int_t)width,
        "subsampling", "dw_striding", "subsampling_factor",
        (json_int_t)ckpt_parakeet_int(c, "subsampling_factor"), "subsampling_conv_channels",
        (json_int_t)ckpt_parakeet_int(c, "subsampling_conv_channels"), "causal_downsampling", 0,
        "reduction", "reduction_position", "reduction_factor", 1);
    json_object_update_new(
        out,
        json_pack("{s:I, s:s, s:I, s:[i,i], s:s, s:b, s:b, s:b, s:I, s:I, s:s, s:n}",
                  "ff_expansion_factor",
                  (json_int_t)(ckpt_parakeet_int(c, "intermediate_size") / width),
                  "self_attention_model", "rel_pos", "n_heads",
                  (json_int_t)ckpt_parakeet_int(c, "num_attention_heads"), "att_context_size", -1,
                  -1, "att_context_style", "regular", "xscaling", flag_of(c, "scale_input"),
                  "untie_biases", 1, "use_bias", flag_of(c, "attention_bias"), "pos_emb_max_len",
                  (json_int_t)ckpt_parakeet_int(c, "max_position_embeddings"), "conv_kernel_size",
                  (json_int_t)ckpt_parakeet_int(c, "conv_kernel_size"), "conv_norm_type",
                  "batch_norm", "conv_context_size"));
    json_object_update_new(out, json_pack("{s:f, s:f, s:f, s:f, s:f, s:s, s:i}", "dropout", dropout,
                                          "dropout_pre_encoder", dropout, "dropout_emb",
                                          real_of(c, "dropout_positions", 0.0), "dropout_att",
                                          real_of(c, "attention_dropout", 0.1),
                                          "stochastic_depth_drop_prob",
                                          real_of(c, "layerdrop", 0.1), "stochastic_depth_mode",
                                          "uniform", "stochastic_depth_start_layer", 1));
    return out;
}

/* Sets a length in seconds, which NeMo truncates to samples; in samples if rounding would lose one.
 */
static void set_samples(json_t *out, const char *seconds, const char *count, int64_t n, int64_t hz)
{
    char text[40];
    snprintf(text, sizeof text, "%.15g", (double)n / (double)hz);
    const double value = strtod(text, NULL);
    const bool exact = (int64_t)(value * (double)hz) == n;
    json_object_set_new(out, seconds, exact ? json_real(value) : json_null());
    if (!exact)
        json_object_set_new(out, count, json_integer(n));
}

static json_t *preprocessor_section(const struct ckpt_nemo_model *m)
{
    const json_t *f = m->features, *preemphasis = json_object_get(f, "preemphasis");
    const json_t *padding = json_object_get(f, "padding_value");
    const int64_t hz = top_int(f, "sampling_rate", 16000);
    json_t *out = json_pack("{s:s, s:I, s:s}", "_target_",
                            "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
                            "sample_rate", (json_int_t)hz, "normalize", "per_feature");
    set_samples(out, "window_size", "n_window_size", top_int(f, "win_length", 400), hz);
    set_samples(out, "window_stride", "n_window_stride", top_int(f, "hop_length", 160), hz);
    json_object_update_new(
        out, json_pack("{s:s, s:I, s:I, s:b, s:i, s:f, s:i, s:f}", "window", "hann", "features",
                       (json_int_t)top_int(f, "feature_size",
                                           ckpt_parakeet_int(m->config, "num_mel_bins")),
                       "n_fft", (json_int_t)top_int(f, "n_fft", 512), "log", 1, "frame_splicing", 1,
                       "dither", 1e-5, "pad_to", 0, "pad_value", json_number_value(padding)));
    if (json_is_null(preemphasis)) /* off; without the key NeMo takes 0.97 */
        json_object_set_new(out, "preemph", json_null());
    else if (json_is_number(preemphasis) && json_number_value(preemphasis) != 0.97)
        json_object_set_new(out, "preemph", json_real(json_number_value(preemphasis)));
    return out;
}

static json_t *tokenizer_section(void)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "dir", "tokenizer", "type", "bpe", "model_path",
                     "nemo:tokenizer.model", "vocab_path", "nemo:vocab.txt", "spe_tokenizer_vocab",
                     "nemo:tokenizer.vocab");
}

/* Adds to the section of what NeMo ignores. Takes value. */
static void keep(json_t *out, const char *key, json_t *value)
{
    json_t *kept = json_object_get(out, CKPT_NEMO_KEPT);
    if (!kept)
        json_object_set_new(out, CKPT_NEMO_KEPT, kept = json_object());
    json_object_set_new(kept, key, value);
}

static void add_ctc(json_t *out, const struct ckpt_nemo_model *m)
{
    json_t *reduction = json_object_get(m->config, "ctc_loss_reduction");
    if (json_is_false(json_object_get(m->config, "ctc_zero_infinity"))) {
        s2s_warn("convert", "config.json: ctc_zero_infinity is false; NeMo's CTC loss has true");
        keep(out, "ctc_zero_infinity", json_false());
    }
    json_object_set_new(out, "ctc_reduction",
                        reduction ? json_incref(reduction) : json_string("mean"));
    json_object_set_new(
        out, "decoder",
        json_pack("{s:s, s:I, s:I, s:O}", "_target_", "nemo.collections.asr.modules.ConvASRDecoder",
                  "feat_in", (json_int_t)ckpt_parakeet_int(m->config, "hidden_size"), "num_classes",
                  (json_int_t)json_array_size(m->labels), "vocabulary", m->labels));
    json_object_set_new(out, "decoding", json_pack("{s:s}", "strategy", "greedy_batch"));
    json_object_set_new(out, "target",
                        json_string(m->pieces
                                        ? "nemo.collections.asr.models.ctc_bpe_models."
                                          "EncDecCTCModelBPE"
                                        : "nemo.collections.asr.models.ctc_models.EncDecCTCModel"));
}

static void add_loss(json_t *out, const json_t *durations)
{
    json_t *decoding = json_object_get(out, "decoding");
    /* as transformers' losses have it */
    json_object_set_new(out, "rnnt_reduction", json_string(durations ? "mean" : "mean_volume"));
    if (!durations) {
        json_object_set_new(out, "loss", json_pack("{s:s}", "loss_name", "default"));
        return;
    }
    json_object_set_new(decoding, "model_type", json_string("tdt"));
    json_object_set(decoding, "durations", (json_t *)durations);
    json_object_set_new(out, "loss",
                        json_pack("{s:s, s:{s:f, s:f, s:O, s:f, s:f}}", "loss_name", "tdt",
                                  "tdt_kwargs", "fastemit_lambda", 0.0, "clamp", -1.0, "durations",
                                  durations, "sigma", 0.02, "omega", 0.1));
}

/* Gives a reference; NULL: the head has no durations. */
static json_t *durations_of(const struct ckpt_nemo_model *m)
{
    json_t *said = json_object_get(m->config, "durations");
    if (m->kind != CKPT_NEMO_TDT)
        return NULL;
    return said ? json_incref(said) : json_pack("[i,i,i,i,i]", 0, 1, 2, 3, 4);
}

static json_t *defaults_section(json_int_t width, json_int_t hidden, json_t *durations)
{
    json_t *out = json_pack("{s:I, s:I, s:I}", "enc_hidden", width, "pred_hidden", hidden,
                            "joint_hidden", hidden);
    if (durations) {
        json_object_set(out, "tdt_durations", durations);
        json_object_set_new(out, "num_tdt_durations",
                            json_integer((json_int_t)json_array_size(durations)));
    }
    return out;
}

static json_t *decoder_section(const struct ckpt_nemo_model *m, json_int_t hidden)
{
    return json_pack("{s:s, s:n, s:b, s:b, s:I, s:{s:I, s:I, s:n, s:f}}", "_target_",
                     "nemo.collections.asr.modules.RNNTDecoder", "normalization_mode",
                     "random_state_sampling", 0, "blank_as_pad", 1, "vocab_size",
                     (json_int_t)json_array_size(m->labels), "prednet", "pred_hidden", hidden,
                     "pred_rnn_layers", (json_int_t)top_int(m->config, "num_decoder_layers", 2),
                     "t_max", "dropout", 0.2);
}

static json_t *joint_section(const struct ckpt_nemo_model *m, json_int_t width, json_int_t hidden,
                             const json_t *durations)
{
    const char *act = json_string_value(json_object_get(m->config, "hidden_act"));
    json_t *out = json_pack(
        "{s:s, s:n, s:b, s:b, s:i, s:{s:I, s:s, s:f, s:I, s:I}, s:I, s:O}", "_target_",
        "nemo.collections.asr.modules.RNNTJoint", "log_softmax", "preserve_memory", 0,
        "fuse_loss_wer", 1, "fused_batch_size", 4, "jointnet", "joint_hidden", hidden, "activation",
        act ? act : "relu", "dropout", 0.2, "encoder_hidden", width, "pred_hidden", hidden,
        "num_classes", (json_int_t)json_array_size(m->labels), "vocabulary", m->labels);
    if (durations)
        json_object_set_new(out, "num_extra_outputs",
                            json_integer((json_int_t)json_array_size(durations)));
    return out;
}

static void add_transducer(json_t *out, const struct ckpt_nemo_model *m)
{
    const json_int_t hidden = top_int(m->config, "decoder_hidden_size", 640);
    const json_int_t width = ckpt_parakeet_int(m->config, "hidden_size");
    json_t *durations = durations_of(m);
    json_object_set_new(out, "model_defaults", defaults_section(width, hidden, durations));
    json_object_set_new(out, "decoder", decoder_section(m, hidden));
    json_object_set_new(out, "joint", joint_section(m, width, hidden, durations));
    json_object_set_new(out, "decoding",
                        json_pack("{s:s, s:{s:I}}", "strategy", "greedy_batch", "greedy",
                                  "max_symbols",
                                  (json_int_t)top_int(m->config, "max_symbols_per_step", 10)));
    keep(out, "pad_token_id", json_integer((json_int_t)top_int(m->config, "pad_token_id", 2)));
    add_loss(out, durations);
    json_object_set_new(
        out, "target",
        json_string(m->pieces ? "nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel"
                              : "nemo.collections.asr.models.rnnt_models.EncDecRNNTModel"));
    json_decref(durations);
}

int ckpt_nemo_yaml(struct s2s_buf *out, const struct ckpt_nemo_model *m, struct s2s_error *err)
{
    int rc = check_types(m->config, err);
    if (rc == 0)
        rc = check_encoder(m->config, err);
    if (rc == 0)
        rc = check_features(m->features, err);
    if (rc < 0)
        return rc;
    json_t *all = json_pack("{s:I, s:b, s:b}", "sample_rate",
                            (json_int_t)top_int(m->features, "sampling_rate", 16000),
                            "log_prediction", 1, "skip_nan_grad", 0);
    json_object_set(all, "labels", m->labels);
    if (m->pieces)
        json_object_set_new(all, "tokenizer", tokenizer_section());
    json_object_set_new(all, "preprocessor", preprocessor_section(m));
    json_object_set_new(all, "encoder", encoder_section(m->config));
    if (m->kind == CKPT_NEMO_CTC)
        add_ctc(all, m);
    else
        add_transducer(all, m);
    if (real_of(m->config, "activation_dropout", 0.1) != real_of(m->config, "dropout", 0.1))
        keep(all, "activation_dropout", json_real(real_of(m->config, "activation_dropout", 0.1)));
    yaml_object(out, all, 0);
    json_decref(all);
    return 0;
}
