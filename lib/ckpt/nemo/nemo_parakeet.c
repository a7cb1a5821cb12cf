/* Makes a .nemo from transformers' Parakeet: configuration, labels and the featurizer's buffers. */
#include <math.h>

#include "lib/audio/mel.h"
#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/map/map.h"
#include "lib/ckpt/nemo/from_nemo.h"
#include "lib/ckpt/nemo/to_nemo.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/to_hf.h"

enum { MAX_LABELS = 1 << 22 };

/* The labels of the head's classes, without the blank. */
static int find_labels(json_t **labels, struct s2s_ckpt *ckpt,
                       const struct s2s_nemo_options *options, int64_t n, struct s2s_error *err)
{
    json_t *tokenizer;
    int rc;
    if (*labels && (int64_t)json_array_size(*labels) != n)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "the tokenizer has %zu pieces, the model %lld classes without the "
                             "blank",
                             json_array_size(*labels), (long long)n);
    if (*labels)
        return 0;
    if (n < 0 || n > MAX_LABELS)
        return s2s_error_set(err, S2S_E_SHAPE, "a head of %lld classes", (long long)n);
    if (!options->without_tokenizer) {
        rc = s2s_error_set(err, S2S_E_NOTFOUND,
                           "%s: has no %s (SentencePiece), which a NeMo model of pieces needs",
                           ckpt->path, CKPT_NEMO_TOKENIZER);
        return s2s_error_hint(err, rc,
                              "give it with --tokenizer FILE, or write a model whose labels are "
                              "the pieces with --no-tokenizer");
    }
    rc = s2s_hf_read_json(&tokenizer, ckpt, "tokenizer.json", err);
    if (rc == 0 && !tokenizer)
        s2s_warn("convert", "no tokenizer.json: the labels are <0> to <%lld>", (long long)(n - 1));
    if (rc == 0)
        *labels = ckpt_tokenizer_labels(tokenizer, n);
    json_decref(tokenizer);
    return rc;
}

/* ---- the featurizer's buffers ---- */

static void add_made(struct s2s_nemo_output *out, const char *name, int n_dims,
                     const int64_t *shape, float *values)
{
    struct ckpt_made *made = &out->made[out->n_made++];
    *made = (struct ckpt_made){.name = name, .dtype = S2S_F32, .n_dims = n_dims, .bytes = values};
    made->len = sizeof *values;
    for (int d = 0; d < n_dims; d++) {
        made->shape[d] = shape[d];
        made->len *= (size_t)shape[d];
    }
}

/* Adds the symmetric Hann window and the mel filters, which NeMo loads as part of the model. */
static int add_featurizer(struct s2s_nemo_output *out, const json_t *features, int64_t n_mels,
                          struct s2s_error *err)
{
    static const char *const keys[] = {"sampling_rate", "n_fft", "win_length", "hop_length",
                                       "feature_size"};
    struct s2s_mel_config config = S2S_MEL_CONFIG_DEFAULT;
    int *const fields[] = {&config.rate_hz, &config.n_fft, &config.win, &config.hop,
                           &config.n_mels};
    struct s2s_mel *mel;
    config.n_mels = (int)n_mels;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(features, keys[i]);
        const json_int_t number = json_integer_value(value);
        if (value && (number < 1 || number >= 1 << 24))
            return s2s_error_set(err, S2S_E_UNSUPPORTED,
                                 "the feature extractor's %s is not a valid number", keys[i]);
        if (value)
            *fields[i] = (int)number;
    }
    if (config.n_mels != n_mels)
        return s2s_error_set(err, S2S_E_SHAPE,
                             "preprocessor_config.json: feature_size %d, the encoder takes %lld "
                             "mel bins",
                             config.n_mels, (long long)n_mels);
    int rc = s2s_mel_new(&mel, &config, err);
    if (rc < 0)
        return s2s_error_add(err, rc, "preprocessor_config.json");
    const int64_t n_bins = config.n_fft / 2 + 1, fb[] = {1, n_mels, n_bins}, win[] = {config.win};
    float *window = s2s_xcalloc((size_t)config.win, sizeof *window);
    float *filters = s2s_xcalloc((size_t)(n_mels * n_bins), sizeof *filters);
    for (int i = 0; i < config.win; i++)
        window[i] =
            config.win > 1 ? (float)(0.5 - 0.5 * cos(2 * M_PI * i / (config.win - 1))) : 1.0F;
    memcpy(filters, s2s_mel_filters(mel), (size_t)(n_mels * n_bins) * sizeof *filters);
    s2s_mel_free(mel);
    add_made(out, "preprocessor.featurizer.window", 1, win, window);
    add_made(out, "preprocessor.featurizer.fb", 3, fb, filters);
    return 0;
}

/* ---- names and configuration ---- */

struct parakeet {
    struct s2s_nemo_output *out;
    struct s2s_ckpt *ckpt;
    const struct s2s_nemo_options *options;
    json_t *config, *features, *labels;
    struct s2s_error *err;
};

static int read_features(struct parakeet *p)
{
    json_t *whole;
    int rc = s2s_hf_read_json(&p->features, p->ckpt, "preprocessor_config.json", p->err);
    if (rc < 0 || p->features)
        return rc;
    rc = s2s_hf_read_json(&whole, p->ckpt, "processor_config.json", p->err);
    p->features = json_incref(json_object_get(whole, "feature_extractor"));
    json_decref(whole);
    if (rc == 0 && !p->features)
        s2s_warn("convert",
                 "%s: has no preprocessor_config.json: the features are taken to be "
                 "those of 16 kHz, windows of 25 ms every 10 ms, n_fft 512",
                 p->ckpt->path);
    return rc;
}

static int map_names(struct parakeet *p, const char *family)
{
    struct ckpt_map_request request = {
        .ckpt = p->ckpt, .name = family, .config = p->config, .layers = CKPT_LAYERS_NUMBERED};
    return ckpt_map_to_megatron(&p->out->plan, &request, &p->out->map, p->err);
}

/* Checks a size of config.json (key: said) against an axis of a tensor. */
static int check_size(const struct parakeet *p, const char *name, int axis, int64_t said,
                      const char *key)
{
    static const char *const axes[] = {"rows", "columns", "taps"};
    const struct s2s_ckpt_target *t = s2s_ckpt_plan_find(&p->out->plan, name);
    const int64_t found = t && t->n_dims > axis ? s2s_ckpt_target_shape(t)[axis] : 0;
    return found == said
               ? 0
               : s2s_error_set(p->err, S2S_E_SHAPE, "config.json: %s says %lld, %s has %lld %s",
                               key, (long long)said, name, (long long)found, axes[axis]);
}

/* The number of consecutively numbered targets. */
static int64_t count_targets(const struct parakeet *p, const char *format, int first, int step)
{
    char name[80];
    for (int64_t n = 0, at = first;; n++, at += step) {
        snprintf(name, sizeof name, format, (long long)at);
        if (!s2s_ckpt_plan_find(&p->out->plan, name))
            return n;
    }
}

static int check_count(const struct parakeet *p, int64_t found, const char *key)
{
    const int64_t said = ckpt_parakeet_int(p->config, key);
    return found == said ? 0
                         : s2s_error_set(p->err, S2S_E_SHAPE,
                                         "config.json: %s says %lld, the weights have "
                                         "%lld",
                                         key, (long long)said, (long long)found);
}

/* Checks that config.json describes the encoder of the weights. */
static int check_encoder(const struct parakeet *p)
{
    static const struct {
        const char *key, *name;
        int axis;
    } sizes[] = {
        {"hidden_size", "encoder.pre_encode.out.weight", 0},
        {"num_attention_heads", "encoder.layers.0.self_attn.pos_bias_u", 0},
        {"intermediate_size", "encoder.layers.0.feed_forward1.linear1.weight", 0},
        {"conv_kernel_size", "encoder.layers.0.conv.depthwise_conv.weight", 2},
        {"subsampling_conv_channels", "encoder.pre_encode.conv.0.weight", 0},
    };
    const int64_t n_stages = 1 + count_targets(p, "encoder.pre_encode.conv.%lld.weight", 3, 3);
    const bool bias =
        s2s_ckpt_plan_find(&p->out->plan, "encoder.layers.0.self_attn.linear_q.bias") != NULL;
    const json_t *said =
        json_object_get(json_object_get(p->config, "encoder_config"), "attention_bias");
    int rc = check_count(p, count_targets(p, "encoder.layers.%lld.norm_out.weight", 0, 1),
                         "num_hidden_layers");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && rc == 0; i++)
        rc = check_size(p, sizes[i].name, sizes[i].axis, ckpt_parakeet_int(p->config, sizes[i].key),
                        sizes[i].key);
    if (rc == 0)
        rc = check_count(p, n_stages < 32 ? (int64_t)1 << n_stages : 0, "subsampling_factor");
    if (rc == 0 && json_is_boolean(said) && json_is_true(said) != bias)
        rc = s2s_error_set(p->err, S2S_E_SHAPE,
                           "config.json: attention_bias is %s, the weights have %sbiases",
                           json_is_true(said) ? "true" : "false", bias ? "" : "no ");
    const int64_t bins =
        ckpt_nemo_bins_left(ckpt_parakeet_int(p->config, "num_mel_bins"), n_stages);
    return rc < 0 ? rc
                  : check_size(p, "encoder.pre_encode.out.weight", 1,
                               bins * ckpt_parakeet_int(p->config, "subsampling_conv_channels"),
                               "num_mel_bins (times channels)");
}

static int check_transducer(const struct parakeet *p, int64_t n_outputs)
{
    static const char *const heads[] = {"relu", "sigmoid", "tanh"};
    const json_t *hidden = json_object_get(p->config, "decoder_hidden_size");
    const json_t *layers = json_object_get(p->config, "num_decoder_layers");
    const char *act = json_string_value(json_object_get(p->config, "hidden_act"));
    const int64_t n_layers =
        count_targets(p, "decoder.prediction.dec_rnn.lstm.weight_ih_l%lld", 0, 1);
    bool known = !act;
    for (size_t i = 0; i < sizeof heads / sizeof *heads && !known; i++)
        known = strcmp(act, heads[i]) == 0;
    if (!known) {
        int rc = s2s_error_set(p->err, S2S_E_UNSUPPORTED,
                               "config.json: hidden_act: NeMo's joint network has relu, sigmoid or "
                               "tanh");
        return s2s_error_hint(p->err, rc,
                              "a model_config.yaml of your own can be given with --config");
    }
    if (n_layers != (json_is_integer(layers) ? json_integer_value(layers) : 2))
        return s2s_error_set(p->err, S2S_E_SHAPE,
                             "config.json: num_decoder_layers is not the %lld that there are",
                             (long long)n_layers);
    int rc = check_size(p, "joint.pred.weight", 0,
                        json_is_integer(hidden) ? json_integer_value(hidden) : 640,
                        "decoder_hidden_size");
    return rc < 0 ? rc
                  : check_size(p, "joint.joint_net.2.weight", 0, n_outputs,
                               "vocab_size and durations");
}

/* The same for the head. */
static int check_config(const struct parakeet *p, enum ckpt_nemo_kind kind)
{
    const int64_t classes = ckpt_parakeet_classes(p->config);
    const bool ctc = kind == CKPT_NEMO_CTC;
    const json_t *said = json_object_get(p->config, ctc ? "pad_token_id" : "blank_token_id");
    const int64_t blank = said ? json_integer_value(said) : ctc ? 1024 : 8192;
    const json_t *durations = json_object_get(p->config, "durations");
    const int64_t extra = kind != CKPT_NEMO_TDT ? 0
                          : durations           ? (int64_t)json_array_size(durations)
                                                : 5;
    int rc = ctc ? check_size(p, "decoder.decoder_layers.0.weight", 0, classes, "vocab_size")
                 : check_transducer(p, classes + extra);
    if (rc == 0 && (!said || json_is_integer(said)) && blank != classes - 1)
        rc = s2s_error_set(p->err, S2S_E_UNSUPPORTED,
                           "config.json: the blank is token %lld; NeMo's is the last class, %lld",
                           (long long)blank, (long long)classes - 1);
    return rc;
}

static int make_config(struct parakeet *p, enum ckpt_nemo_kind kind)
{
    struct s2s_buf yaml = S2S_BUF_INIT;
    int rc = p->config ? read_features(p) : 0;
    if (!p->config) {
        rc = s2s_error_set(p->err, S2S_E_NOTFOUND, "%s: has no config.json", p->ckpt->path);
        return s2s_error_hint(p->err, rc, "give one, or a model_config.yaml, with --config");
    }
    if (rc == 0)
        rc = check_config(p, kind);
    if (rc == 0)
        rc = find_labels(&p->labels, p->ckpt, p->options, ckpt_parakeet_classes(p->config) - 1,
                         p->err);
    struct ckpt_nemo_model model = {.kind = kind,
                                    .config = p->config,
                                    .features = p->features,
                                    .labels = p->labels,
                                    .pieces = ckpt_side_find(&p->out->files, CKPT_NEMO_TOKENIZER) !=
                                              NULL};
    if (rc == 0)
        rc = ckpt_nemo_yaml(&yaml, &model, p->err);
    if (rc == 0)
        rc = check_encoder(p);
    if (rc == 0)
        ckpt_side_add(&p->out->files, CKPT_NEMO_CONFIG, yaml.data, yaml.len);
    s2s_buf_release(&yaml);
    return rc < 0 ? rc
                  : add_featurizer(p->out, p->features,
                                   ckpt_parakeet_int(p->config, "num_mel_bins"), p->err);
}

/* Uses the user's model_config.yaml, whose feature settings determine the buffers. */
static int take_config(struct parakeet *p)
{
    char *odd = NULL;
    json_t *tree;
    int rc = ckpt_nemo_parse_yaml(&tree, p->options->yaml, p->err);
    if (rc < 0)
        return rc;
    ckpt_side_add_text(&p->out->files, CKPT_NEMO_CONFIG, p->options->yaml);
    rc = ckpt_nemo_add_named(p->out, p->ckpt, tree, p->err);
    p->features = ckpt_nemo_features(&odd, tree);
    if (rc == 0 && odd)
        rc = s2s_error_set(p->err, S2S_E_UNSUPPORTED,
                           "model_config.yaml: preprocessor.%s is not what Parakeet's features "
                           "are made with",
                           odd);
    else if (rc == 0 && !p->features)
        rc = s2s_error_set(p->err, S2S_E_NOTFOUND,
                           "model_config.yaml: has no section `preprocessor`");
    if (rc == 0)
        rc = add_featurizer(p->out, p->features,
                            json_integer_value(json_object_get(p->features, "feature_size")),
                            p->err);
    free(odd);
    json_decref(tree);
    return rc;
}

int ckpt_nemo_from_parakeet(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt,
                            const struct s2s_nemo_options *options, struct s2s_error *err)
{
    struct parakeet p = {.out = out, .ckpt = ckpt, .options = options, .err = err};
    const bool ctc = s2s_ckpt_find(ckpt, "ctc_head.weight");
    const bool joint = s2s_ckpt_find(ckpt, "joint.head.weight");
    int rc = 0;
    if (!options->yaml && !ctc && !joint) {
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "%s: an encoder without a head is no model of NeMo's", ckpt->path);
        return s2s_error_hint(err, rc, "give the model_config.yaml to write with --config");
    }
    p.config = json_incref((json_t *)options->config);
    if (!p.config)
        rc = s2s_hf_read_json(&p.config, ckpt, "config.json", err);
    if (rc == 0)
        rc = map_names(&p, ctc     ? "fastconformer_ctc"
                           : joint ? "fastconformer_transducer"
                                   : "fastconformer_encoder");
    /* a model_config.yaml refers to the files that it needs */
    if (rc == 0 && (!options->yaml || options->tokenizer))
        rc = ckpt_nemo_add_tokenizer(out, ckpt, options, &p.labels, err);
    const bool tdt = strcmp(ckpt_config_type(p.config), "parakeet_tdt") == 0;
    if (rc == 0 && options->yaml)
        rc = take_config(&p);
    else if (rc == 0)
        rc = make_config(&p, ctc ? CKPT_NEMO_CTC : tdt ? CKPT_NEMO_TDT : CKPT_NEMO_RNNT);
    json_decref(p.config);
    json_decref(p.features);
    json_decref(p.labels);
    return rc;
}
