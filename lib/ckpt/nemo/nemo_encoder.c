/*
 * Converts NeMo's ConformerEncoder to the configuration of transformers' Parakeet encoder. Sizes
 * come from the weights; a model_config.yaml that contradicts them is refused. Other settings
 * default to NeMo's defaults, which differ from transformers'. Source:
 * nemo/collections/asr/modules/conformer_encoder.py.
 */
#include "lib/base/base.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/nemo/from_nemo.h"

enum { MEL_BINS_MAX = 1 << 16 };

/* Settings that no tensor shows, in ConformerEncoder and ParakeetEncoderConfig. */
static const struct {
    const char *nemo, *hf;
    enum { REAL, TRUTH, WHOLE } kind;
    double absent; /* NeMo's default */
} settings[] = {
    {"pos_emb_max_len", "max_position_embeddings", WHOLE, 5000},
    {"dropout", "dropout", REAL, 0.1},
    {"dropout", "activation_dropout", REAL, 0.1},
    {"dropout_emb", "dropout_positions", REAL, 0.1},
    {"dropout_att", "attention_dropout", REAL, 0.0},
    {"xscaling", "scale_input", TRUTH, 1},
    {"stochastic_depth_drop_prob", "layerdrop", REAL, 0.0},
};

/* Sizes that a tensor shows; names without "encoder.". */
static const struct {
    const char *nemo, *hf, *name;
    int axis;
} sizes[] = {
    {"d_model", "hidden_size", "pre_encode.out.weight", 0},
    {"n_heads", "num_attention_heads", "layers.0.self_attn.pos_bias_u", 0},
    {"conv_kernel_size", "conv_kernel_size", "layers.0.conv.depthwise_conv.weight", 2},
    {"subsampling_conv_channels", "subsampling_conv_channels", "pre_encode.conv.0.weight", 0},
};

/* Settings that transformers requires: key and value, which is also the default. */
static const struct {
    const char *key, *only;
} demands[] = {
    {"subsampling", "dw_striding"},
    {"self_attention_model", "rel_pos"},
    {"conv_norm_type", "batch_norm"},
    {"att_context_style", "regular"},
};

struct measured {
    const struct s2s_ckpt *ckpt;
    const json_t *yaml; /* the section `encoder` */
    char *prefix;       /* prefix of its tensors */
    json_t *out;
    struct s2s_error *err;
};

static int refuse(struct s2s_error *err, const char *key, const char *is, const char *only)
{
    int rc =
        s2s_error_set(err, S2S_E_UNSUPPORTED,
                      "model_config.yaml: encoder.%s is %s; Parakeet has only %s", key, is, only);
    return s2s_error_hint(err, rc, "a config.json of your own can be given with --config");
}

/* true, false, null, or a number that Python takes for one of them */
static bool is_bool(const json_t *value)
{
    return json_is_boolean(value) || json_is_null(value) || json_is_number(value);
}

/* As in Python, where a text is true, too. */
static bool is_true(const json_t *value)
{
    return json_is_true(value) || json_number_value(value) != 0 || json_string_length(value);
}

/* Is the attention context unlimited: [-1, -1], or several of these? */
static bool sees_all(const json_t *context)
{
    const json_t *item;
    size_t i;
    if (context && !json_is_null(context) && !json_is_array(context))
        return false;
    json_array_foreach(context, i, item)
    {
        if (!(json_is_integer(item) && json_integer_value(item) == -1) &&
            !(json_is_array(item) && sees_all(item)))
            return false;
    }
    return true;
}

static bool is_centred(const json_t *context)
{
    const json_t *left = json_array_get(context, 0), *right = json_array_get(context, 1);
    return !context || json_is_null(context) || (json_is_array(context) && json_equal(left, right));
}

static int check_class(const json_t *encoder, struct s2s_error *err)
{
    const char *class = json_string_value(json_object_get(encoder, "_target_"));
    return !class || s2s_ends_with(class, "ConformerEncoder") ||
                   s2s_ends_with(class, "ConformerEncoderAdapter")
               ? 0
               : refuse(err, "_target_", class, "ConformerEncoder");
}

static int check_settings(const json_t *encoder, struct s2s_error *err)
{
    for (size_t i = 0; i < sizeof demands / sizeof *demands; i++) {
        const json_t *value = json_object_get(encoder, demands[i].key);
        const char *text = json_string_value(value);
        if (value && (!text || strcmp(text, demands[i].only) != 0))
            return refuse(err, demands[i].key, text ? text : "no text", demands[i].only);
    }
    const json_t *width = json_object_get(encoder, "feat_out");
    if (is_true(json_object_get(encoder, "causal_downsampling")))
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

/* Is it an encoder that transformers' Parakeet has? UNSUPPORTED names the key that says otherwise.
 */
static int check_kind(const json_t *encoder, struct s2s_error *err)
{
    int rc = check_class(encoder, err);
    return rc < 0 ? rc : check_settings(encoder, err);
}

/* ---- sizes from the weights ---- */

/* Size of an axis; 0: no such tensor. */
static int64_t size_of(const struct measured *m, const char *name, int axis)
{
    char *full = s2s_xasprintf("%s%s", m->prefix ? m->prefix : "", name);
    const struct s2s_ckpt_tensor *t = m->prefix ? s2s_ckpt_find(m->ckpt, full) : NULL;
    free(full);
    return t && t->n_dims > axis ? t->shape[axis] : 0;
}

/* "encoder." with its prefix; NULL: not an encoder. Gives: free. */
static char *find_prefix(const struct s2s_ckpt *ckpt)
{
    static const char first[] = "encoder.pre_encode.conv.0.weight";
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const char *name = ckpt->tensors[i].name;
        if (s2s_has_tail(name, '.', first))
            return s2s_xstrndup(name, strlen(name) - strlen(first) + strlen("encoder."));
    }
    return NULL;
}

/* The number of consecutively numbered layers. */
static int64_t count(const struct measured *m, const char *format, int first, int step)
{
    char name[80];
    int64_t n = 0;
    for (int64_t at = first;; at += step, n++) {
        snprintf(name, sizeof name, format, (long long)at);
        if (!size_of(m, name, 0))
            return n;
    }
}

/* Sets a size. found: by the weights; 0: unknown, then the file's. */
static int set_size(struct measured *m, const char *nemo, const char *hf, int64_t found)
{
    json_t *said = json_object_get(m->yaml, nemo);
    /* NeMo's -1 stands for d_model */
    const bool says = json_is_integer(said) && json_integer_value(said) > 0;
    if (found && says && json_integer_value(said) != found)
        return s2s_error_set(m->err, S2S_E_SHAPE,
                             "model_config.yaml: encoder.%s is %lld, the weights have %lld", nemo,
                             (long long)json_integer_value(said), (long long)found);
    if (found)
        json_object_set_new(m->out, hf, json_integer(found));
    else if (says)
        json_object_set(m->out, hf, said);
    return 0;
}

static int set_bias(struct measured *m)
{
    const json_t *said = json_object_get(m->yaml, "use_bias");
    bool bias = !said || json_is_true(said);
    if (size_of(m, "layers.0.self_attn.linear_q.weight", 0)) {
        const bool found = size_of(m, "layers.0.self_attn.linear_q.bias", 0) > 0;
        if (json_is_boolean(said) && found != bias)
            return s2s_error_set(m->err, S2S_E_SHAPE,
                                 "model_config.yaml: encoder.use_bias is %s, the weights have "
                                 "%sbiases",
                                 bias ? "true" : "false", found ? "" : "no ");
        bias = found;
    }
    json_object_set_new(m->out, "attention_bias", json_boolean(bias));
    json_object_set_new(m->out, "convolution_bias", json_boolean(bias));
    return 0;
}

int64_t ckpt_nemo_bins_left(int64_t bins, int64_t n_stages)
{
    for (int64_t i = 0; i < n_stages; i++)
        bins = (bins - 1) / 2 + 1;
    return bins;
}

/* Sets the mel bins. After convolutions of stride 2 there are channels times the remaining bins. */
static int set_bins(struct measured *m, int64_t n_stages)
{
    int64_t bins = json_integer_value(json_object_get(m->yaml, "feat_in"));
    const int64_t channels = size_of(m, "pre_encode.conv.0.weight", 0),
                  columns = size_of(m, "pre_encode.out.weight", 1);
    if (bins < 1 || bins > MEL_BINS_MAX)
        return s2s_error_set(m->err, S2S_E_NOTFOUND,
                             "model_config.yaml: encoder.feat_in says no number of mel bins");
    const int64_t left = ckpt_nemo_bins_left(bins, n_stages);
    if (channels > 0 && columns > 0 && columns != channels * left)
        return s2s_error_set(m->err, S2S_E_SHAPE,
                             "model_config.yaml: encoder.feat_in is %lld, which the weights are "
                             "not made for: pre_encode.out.weight has %lld columns, not %lld",
                             (long long)bins, (long long)columns, (long long)(channels * left));
    if (n_stages < 32 && bins % ((int64_t)1 << n_stages) != 0) {
        int rc = s2s_error_set(m->err, S2S_E_UNSUPPORTED,
                               "model_config.yaml: encoder.feat_in is %lld, of which convolutions "
                               "make %lld; transformers' Parakeet rounds down, to %lld",
                               (long long)bins, (long long)left, (long long)(bins >> n_stages));
        return s2s_error_hint(m->err, rc, "convert --to safetensors takes the weights as they are");
    }
    json_object_set_new(m->out, "num_mel_bins", json_integer(bins));
    return 0;
}

static int set_sizes(struct measured *m)
{
    const int64_t n_stages = size_of(m, "pre_encode.conv.0.weight", 0)
                                 ? 1 + count(m, "pre_encode.conv.%lld.weight", 3, 3)
                                 : 0;
    int rc = 0;
    /* a dense second convolution is "striding", which Parakeet lacks */
    if (size_of(m, "pre_encode.conv.2.weight", 1) > 1)
        return refuse(m->err, "subsampling", "striding", "dw_striding");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && rc == 0; i++)
        rc = set_size(m, sizes[i].nemo, sizes[i].hf, size_of(m, sizes[i].name, sizes[i].axis));
    if (rc == 0)
        rc = set_size(m, "n_layers", "num_hidden_layers",
                      count(m, "layers.%lld.norm_out.weight", 0, 1));
    if (rc == 0 && n_stages < 32)
        rc = set_size(m, "subsampling_factor", "subsampling_factor",
                      n_stages ? (int64_t)1 << n_stages : 0);
    if (rc == 0)
        rc = set_bins(m, n_stages);
    return rc == 0 ? set_bias(m) : rc;
}

static int set_width(struct measured *m)
{
    const json_t *factor = json_object_get(m->yaml, "ff_expansion_factor");
    const json_int_t width = json_integer_value(json_object_get(m->out, "hidden_size"));
    json_int_t times = json_is_integer(factor) ? json_integer_value(factor) : 4,
               wide = size_of(m, "layers.0.feed_forward1.linear1.weight", 0);
    if (wide && json_is_integer(factor) && (times < 1 || wide / times != width || wide % times))
        return s2s_error_set(m->err, S2S_E_SHAPE,
                             "model_config.yaml: encoder.ff_expansion_factor is %lld, the weights "
                             "have %lld rows for %lld",
                             (long long)times, (long long)wide, (long long)width);
    if (wide || !__builtin_mul_overflow(width, times, &wide))
        json_object_set_new(m->out, "intermediate_size", json_integer(wide));
    json_object_set(m->out, "num_key_value_heads", json_object_get(m->out, "num_attention_heads"));
    return 0;
}

/* ---- settings from the file ---- */

static json_t *setting(json_t *said, int kind, double absent)
{
    if (kind == TRUTH)
        return json_boolean(said ? is_true(said) : absent != 0);
    if (said)
        return json_incref(said);
    return kind == WHOLE ? json_integer((json_int_t)absent) : json_real(absent);
}

static int set_settings(struct measured *m)
{
    static const char *const types[] = {"a number", "true or false", "an integer"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const int kind = settings[i].kind;
        json_t *said = json_object_get(m->yaml, settings[i].nemo);
        const bool fits = kind == WHOLE  ? json_is_integer(said)
                          : kind == REAL ? json_is_number(said)
                                         : is_bool(said);
        if (said && !fits)
            return s2s_error_set(m->err, S2S_E_FORMAT, "model_config.yaml: encoder.%s is not %s",
                                 settings[i].nemo, types[kind]);
        json_object_set_new(m->out, settings[i].hf, setting(said, kind, settings[i].absent));
    }
    return 0;
}

int ckpt_nemo_encoder(json_t **config, const struct s2s_ckpt *ckpt, const json_t *encoder,
                      struct s2s_error *err)
{
    struct measured m = {.ckpt = ckpt, .yaml = encoder, .err = err};
    *config = NULL;
    int rc = check_kind(encoder, err);
    if (rc < 0)
        return rc;
    m.prefix = find_prefix(ckpt);
    m.out = json_pack("{s:s, s:[s], s:s}", "model_type", "parakeet_encoder", "architectures",
                      "ParakeetEncoder", "hidden_act", "silu");
    rc = set_sizes(&m);
    if (rc == 0)
        rc = set_width(&m);
    if (rc == 0)
        rc = set_settings(&m);
    free(m.prefix);
    if (rc == 0)
        *config = m.out;
    else
        json_decref(m.out);
    return rc;
}
