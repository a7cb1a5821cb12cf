/*
 * Converts NeMo's model_config.yaml to the config.json and preprocessor_config.json of
 * transformers' Parakeet. Source for the keys: transformers' models/parakeet/convert_nemo_to_hf.py.
 */
#include <math.h>

#include "lib/base/base.h"
#include "lib/ckpt/map/map.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/nemo/from_nemo.h"

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

/* Resolves a reference; the string itself if its target does not exist. depth: of nested
 * references. */
static json_t *resolved(json_t *root, json_t *value, int depth)
{
    const char *text = json_string_value(value);
    size_t len = text ? strlen(text) : 0;
    char path[256];
    if (depth > 8 || len < 4 || len >= sizeof path || !s2s_starts_with(text, "${") ||
        text[len - 1] != '}')
        return value;
    snprintf(path, sizeof path, "%.*s", (int)len - 3, text + 2);
    json_t *found = look_up(root, path);
    if (!found && s2s_starts_with(path, "model."))
        found = look_up(root, path + 6);
    return found ? resolved(root, found, depth + 1) : value;
}

/* The value at a path ("decoding.greedy.max_symbols"), references resolved; NULL: none. */
static json_t *setting(const json_t *root, const char *path)
{
    return resolved((json_t *)root, look_up((json_t *)root, path), 0);
}

static bool is_reference(const json_t *value)
{
    const char *text = json_string_value(value);
    return text && strstr(text, "${");
}

/* Refuses a reference that was not resolved: the default in its place would be a guess. */
static int refuse_reference(const char *section, const char *key, const json_t *value,
                            struct s2s_error *err)
{
    int rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "model_config.yaml: %s.%s is %s, which is not resolved", section, key,
                           json_string_value(value));
    return s2s_error_hint(err, rc,
                          "write the value itself there, or give the model's config.json, with "
                          "--config");
}

static int check_resolved(const json_t *section, const char *name, struct s2s_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)section, key, value)
    {
        if (is_reference(value))
            return refuse_reference(name, key, value, err);
    }
    return 0;
}

/* A section, which may be a reference, with its references resolved, one level deep. Gives a
 * reference; NULL: not an object.
 */
static json_t *section(const json_t *root, const json_t *from, const char *name)
{
    const json_t *object = resolved((json_t *)root, json_object_get(from, name), 0);
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return NULL;
    json_t *out = json_object();
    json_object_foreach((json_t *)object, key, value)
        json_object_set(out, key, resolved((json_t *)root, value, 0));
    return out;
}

/* ---- the feature extractor ---- */

/* NeMo's AudioToMelSpectrogramPreprocessor becomes transformers' ParakeetFeatureExtractor. NeMo's
 * defaults: nemo/collections/asr/modules/audio_preprocessing.py. */

/* Settings with a single value in ParakeetFeatureExtractor, which is also the default. */
static const struct {
    const char *key;
    const char *text; /* NULL: a number or bool */
    double number;
    bool null_is_off; /* else null is refused by NeMo or as the default */
} fixed[] = {
    {"normalize", "per_feature", 0, true},
    {"window", "hann", 0, true},
    {"mel_norm", "slaney", 0, true},
    {"log_zero_guard_type", "add", 0, false},
    {"log_zero_guard_value", NULL, 0x1p-24, false},
    {"log", NULL, 1, true},
    {"exact_pad", NULL, 0, false},
    {"frame_splicing", NULL, 1, false},
    {"mag_power", NULL, 2, false},
    {"lowfreq", NULL, 0, false},
    {"use_torchaudio", NULL, 0, false},
};

/* Numbers and their bounds; without a key there is a default. */
static const struct {
    const char *key;
    bool whole, null_too;
    double min, max;
} numbers[] = {
    {"sample_rate", true, false, 1, 1 << 24},    {"features", true, false, 1, 1 << 16},
    {"n_fft", true, true, 0, 1 << 24},           {"n_window_size", true, true, 0, 1 << 24},
    {"n_window_stride", true, true, 0, 1 << 24}, {"window_size", false, true, 0, 1000},
    {"window_stride", false, true, 0, 1000},     {"preemph", false, true, -1e9, 1e9},
    {"pad_value", false, false, -1e9, 1e9},      {"highfreq", false, true, 0, 1e9},
};

static const char *find_odd_number(const json_t *from)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const json_t *value = json_object_get(from, numbers[i].key);
        const double number = json_number_value(value);
        const bool is_one = numbers[i].whole ? json_is_integer(value) : json_is_number(value);
        if (value && !(json_is_null(value) && numbers[i].null_too) &&
            !(is_one && number >= numbers[i].min && number <= numbers[i].max))
            return numbers[i].key;
    }
    return NULL;
}

static double number_of(const json_t *value)
{
    return json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
}

/* The first key whose value transformers does not support; NULL: none. */
static const char *find_odd(const json_t *from, json_int_t hz)
{
    const char *class = json_string_value(json_object_get(from, "_target_")), *key;
    json_t *item;
    if (class && !s2s_ends_with(class, "AudioToMelSpectrogramPreprocessor"))
        return "_target_";
    json_object_foreach((json_t *)from, key, item)
    {
        if (json_is_string(item) && strstr(json_string_value(item), "${"))
            return key; /* a reference that was not resolved */
    }
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        const json_t *value = json_object_get(from, fixed[i].key);
        const char *text = json_string_value(value);
        const bool is_it = fixed[i].text
                               ? text && strcmp(text, fixed[i].text) == 0
                               : !text && fabs(number_of(value) - fixed[i].number) < 1e-12;
        /* null turns normalisation, the window, the mels' norm and the logarithm off */
        const bool silent = !value || (json_is_null(value) && !fixed[i].null_is_off);
        if (!silent && !is_it)
            return fixed[i].key;
    }
    const double highest = json_number_value(json_object_get(from, "highfreq"));
    return highest > 0 && highest * 2 != (double)hz ? "highfreq" : find_odd_number(from);
}

/* Number of samples, from the key in seconds or the key that counts them; truncated as in NeMo. 0:
 * neither says one. */
static json_int_t samples(const json_t *from, const char *seconds, const char *count,
                          double usual_s, json_int_t hz)
{
    const json_t *said = json_object_get(from, seconds), *n = json_object_get(from, count);
    const double s = said || json_is_integer(n) ? json_number_value(said) : usual_s;
    return s > 0 ? (json_int_t)(s * (double)hz) : json_integer_value(n);
}

/* The FFT size: the next power of two. */
static json_int_t fft_of(json_int_t window)
{
    json_int_t n = 1;
    while (n < window)
        n *= 2;
    return n;
}

/* The same from the section `preprocessor` itself. */
static json_t *mel_features(char **odd, const json_t *from)
{
    static const char *const keys[][2] = {{"features", "feature_size"},
                                          {"n_fft", "n_fft"},
                                          {"preemph", "preemphasis"},
                                          {"pad_value", "padding_value"}};
    const json_t *rate = json_object_get(from, "sample_rate");
    const json_int_t hz = rate ? json_integer_value(rate) : 16000;
    const char *key = find_odd(from, hz);
    const json_int_t window = key ? 1 : samples(from, "window_size", "n_window_size", 0.02, hz);
    const json_int_t hop = key ? 1 : samples(from, "window_stride", "n_window_stride", 0.01, hz);
    if (window < 1 || hop < 1)
        key = window < 1 ? "window_size" : "window_stride";
    *odd = key ? s2s_xstrdup(key) : NULL; /* it may be a key of `from` */
    if (key)
        return NULL;
    json_t *out =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "feature_extractor_type",
                  "ParakeetFeatureExtractor", "sampling_rate", hz, "win_length", window,
                  "hop_length", hop, "feature_size", (json_int_t)64, "n_fft", fft_of(window));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(from, keys[i][0]);
        if (json_is_number(value))
            json_object_set(out, keys[i][1], value);
    }
    if (json_integer_value(json_object_get(out, "n_fft")) == 0) /* as null */
        json_object_set_new(out, "n_fft", json_integer(fft_of(window)));
    if (json_is_null(json_object_get(from, "preemph")))
        json_object_set_new(out, "preemphasis", json_real(0.0));
    return out;
}

/* ---- config.json ---- */

/* Finds a tensor by name, also with prefixes of Lightning and wrappers. */
static const struct s2s_ckpt_tensor *find_plain(const struct s2s_ckpt *ckpt, const char *name)
{
    const struct s2s_ckpt_tensor *found = s2s_ckpt_find(ckpt, name);
    for (size_t i = 0; i < ckpt->n_tensors && !found; i++) {
        if (!s2s_ends_with(ckpt->tensors[i].name, name))
            continue;
        char *plain = ckpt_map_plain_name(ckpt->tensors[i].name);
        if (strcmp(plain, name) == 0)
            found = &ckpt->tensors[i];
        free(plain);
    }
    return found;
}

static int64_t rows_of(const struct s2s_ckpt *ckpt, const char *name)
{
    const struct s2s_ckpt_tensor *t = find_plain(ckpt, name);
    return t && t->n_dims > 0 ? t->shape[0] : 0;
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

static json_t *ctc_config(const json_t *all, const char *reduction_key, json_t *encoder,
                          int64_t n_classes)
{
    const char *reduction = ckpt_nemo_reduction(setting(all, reduction_key));
    json_t *out = json_pack("{s:s, s:[s], s:I, s:I, s:o}", "model_type", "parakeet_ctc",
                            "architectures", "ParakeetForCTC", "vocab_size", (json_int_t)n_classes,
                            "pad_token_id", (json_int_t)(n_classes - 1), "encoder_config", encoder);
    if (reduction && strcmp(reduction, "mean") != 0) /* transformers' default */
        json_object_set_new(out, "ctc_loss_reduction", json_string(reduction));
    if (json_is_false(look_up((json_t *)all, CKPT_NEMO_KEPT ".ctc_zero_infinity")))
        json_object_set_new(out, "ctc_zero_infinity", json_false());
    return out;
}

static bool has_loss(const json_t *all, const char *name)
{
    const char *loss = json_string_value(setting(all, "loss.loss_name"));
    return loss && strcmp(loss, name) == 0;
}

/* The n durations of a TDT head; those of the loss come first, as NeMo writes them over those of
 * decoding. Gives a reference; NULL: unknown. */
static json_t *find_durations(const json_t *all, int64_t n)
{
    static const char *const paths[] = {"loss.tdt_kwargs.durations", "decoding.durations",
                                        "model_defaults.tdt_durations",
                                        "loss.tdt_kwargs.durations"};
    for (size_t i = has_loss(all, "tdt") ? 0 : 1; i < sizeof paths / sizeof *paths; i++) {
        const json_t *found = setting(all, paths[i]);
        json_t *item, *out = json_array();
        size_t k;
        json_array_foreach(found, k, item)
        {
            item = resolved((json_t *)all, item, 0);
            if (json_is_integer(item))
                json_array_append(out, item);
        }
        if (json_is_array(found) && json_array_size(found) == json_array_size(out) &&
            (int64_t)json_array_size(out) == n)
            return out;
        json_decref(out);
    }
    return NULL;
}

/* Refuses big blanks, outputs of the joint network that are no durations. */
static int check_blanks(const json_t *all, struct s2s_error *err)
{
    const json_t *blanks = setting(all, "decoding.big_blank_durations");
    if (!has_loss(all, "multiblank_rnnt") && !json_array_size(blanks) && !is_reference(blanks))
        return 0;
    return s2s_error_set(err, S2S_E_UNSUPPORTED,
                         "model_config.yaml: a multi-blank transducer (%s), which transformers' "
                         "Parakeet has not",
                         blanks ? "decoding.big_blank_durations" : "loss.loss_name");
}

/* The token that config.json shall have for padding: as kept by --to nemo; or the index of "<pad>"
 * among the labels; or `absent`. */
static json_int_t pad_of(const json_t *all, json_int_t absent)
{
    const json_t *labels = setting(all, "labels"), *item;
    const json_t *kept = look_up((json_t *)all, CKPT_NEMO_KEPT ".pad_token_id");
    size_t i;
    if (json_is_integer(kept))
        return json_integer_value(kept);
    if (!json_is_array(labels))
        labels = setting(all, "joint.vocabulary");
    json_array_foreach(labels, i, item)
    {
        if (json_is_string(item) && strcmp(json_string_value(item), "<pad>") == 0)
            return (json_int_t)i;
    }
    return absent;
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

/* Sizes of a transducer's head, from its tensors. */
struct head {
    int64_t classes, hidden, n_durations;
    json_int_t layers;
};

enum { HEAD_LAYERS_MAX = 8 }; /* as in the name map */

static void measure_head(struct head *head, const struct s2s_ckpt *ckpt)
{
    int64_t n_outputs = rows_of(ckpt, "joint.joint_net.2.weight");
    char name[80];
    if (!n_outputs)
        n_outputs = rows_of(ckpt, "joint.joint_net.1.weight");
    head->classes = rows_of(ckpt, "decoder.prediction.embed.weight");
    head->hidden = rows_of(ckpt, "joint.pred.weight");
    head->n_durations = n_outputs - head->classes;
    head->layers = 0;
    do
        snprintf(name, sizeof name, "decoder.prediction.dec_rnn.lstm.weight_ih_l%d",
                 (int)head->layers);
    while (find_plain(ckpt, name) && ++head->layers);
}

/* Parakeet's LSTM and joint network have the same width, and the blank has an embedding. */
static int check_head(const struct head *head, const struct s2s_ckpt *ckpt, const json_t *all,
                      const json_t *durations, struct s2s_error *err)
{
    const int64_t gates = rows_of(ckpt, "decoder.prediction.dec_rnn.lstm.weight_hh_l0");
    const char *joint = json_string_value(setting(all, "joint._target_"));
    int rc = 0;
    if (joint && !s2s_ends_with(joint, "RNNTJoint")) /* HATJoint has the blank apart */
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "model_config.yaml: joint._target_ is %s; Parakeet has only RNNTJoint",
                           joint);
    else if (json_is_false(setting(all, "decoder.blank_as_pad")))
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "model_config.yaml: decoder.blank_as_pad is false; Parakeet has only "
                           "true");
    else if (gates && gates / 4 != head->hidden)
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "the prediction network is %lld wide, the joint network %lld; in "
                           "Parakeet both have one width",
                           (long long)gates / 4, (long long)head->hidden);
    else if (head->layers > HEAD_LAYERS_MAX)
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED, "the prediction network has more than %d layers",
                           HEAD_LAYERS_MAX);
    else if (head->n_durations < 0 || (head->n_durations > 0 && !durations))
        rc = s2s_error_set(err, S2S_E_NOTFOUND,
                           "model_config.yaml: names no %lld durations, which the joint network "
                           "has outputs for",
                           (long long)head->n_durations);
    return rc < 0 ? s2s_error_hint(err, rc, "give the model's config.json with --config") : 0;
}

/* Sets *limit to the number of symbols that a frame can have: of two names NeMo takes the first
 * that is not 0 or null, and with none there is no limit. */
static int find_limit(json_int_t *limit, const json_t *all, struct s2s_error *err)
{
    static const char section[] = "decoding.greedy", *const keys[] = {"max_symbols",
                                                                      "max_symbols_per_step"};
    const json_t *greedy = setting(all, section);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = resolved((json_t *)all, json_object_get(greedy, keys[i]), 0);
        if (is_reference(value))
            return refuse_reference(section, keys[i], value, err);
        *limit = json_integer_value(value);
        if (*limit > 0)
            return 0;
        if (*limit < 0 || (value && !json_is_integer(value) && !json_is_null(value)))
            return s2s_error_set(err, S2S_E_FORMAT,
                                 "model_config.yaml: %s.%s is not a number of symbols", section,
                                 keys[i]);
    }
    *limit = 10; /* ParakeetRNNTConfig's */
    s2s_warn("ckpt",
             "model_config.yaml: %s.%s gives no limit of symbols in a frame; transformers needs "
             "one: in config.json max_symbols_per_step is %d",
             section, keys[0], (int)*limit);
    return 0;
}

/* The activation of the joint network, which NeMo has no default for. */
static int find_activation(const char **name, const json_t *all, struct s2s_error *err)
{
    static const char *const known[] = {"relu", "sigmoid", "tanh"};
    const json_t *value = setting(all, "joint.jointnet.activation");
    if (is_reference(value))
        return refuse_reference("joint.jointnet", "activation", value, err);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        *name = known[i];
        if (json_is_string(value) && strcmp(json_string_value(value), *name) == 0)
            return 0;
    }
    if (value)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "model_config.yaml: joint.jointnet.activation: NeMo has relu, sigmoid "
                             "or tanh");
    *name = known[0];
    s2s_warn("ckpt", "model_config.yaml: no joint.jointnet.activation: taken to be %s", *name);
    return 0;
}

static int transducer_config(json_t **config, json_t **generation, const struct s2s_ckpt *ckpt,
                             const json_t *all, json_t *encoder, struct s2s_error *err)
{
    struct head head;
    json_int_t limit = 0;
    const char *act = NULL;
    measure_head(&head, ckpt);
    json_t *durations = head.n_durations > 0 ? find_durations(all, head.n_durations) : NULL;
    int rc = check_blanks(all, err);
    if (rc == 0)
        rc = check_head(&head, ckpt, all, durations, err);
    if (rc == 0)
        rc = find_activation(&act, all, err);
    if (rc == 0)
        rc = find_limit(&limit, all, err);
    if (rc < 0) {
        json_decref(encoder);
        json_decref(durations);
        return rc;
    }
    const json_int_t classes = head.classes;
    *config = json_pack("{s:s, s:[s], s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:o}", "model_type",
                        durations ? "parakeet_tdt" : "parakeet_rnnt", "architectures",
                        durations ? "ParakeetForTDT" : "ParakeetForRNNT", "vocab_size", classes,
                        "decoder_hidden_size", (json_int_t)head.hidden, "num_decoder_layers",
                        head.layers, "hidden_act", act, "max_symbols_per_step", limit,
                        "pad_token_id", pad_of(all, durations ? classes - 1 : 0), "blank_token_id",
                        classes - 1, "encoder_config", encoder);
    if (durations)
        json_object_set_new(*config, "durations", durations);
    *generation = generation_config(head.classes, head.n_durations);
    return 0;
}

static char *as_text(json_t *value)
{
    char *text = s2s_ckpt_config_text(value);
    json_decref(value);
    return text;
}

json_t *ckpt_nemo_features(char **odd, const json_t *model_config)
{
    const json_t *part = json_object_get(model_config, "perception");
    const json_t *model = part ? part : model_config;
    json_t *from = section(model_config, model, "preprocessor");
    json_t *encoder = section(model_config, model, "encoder");
    const json_t *made = json_object_get(from, "features"),
                 *taken = json_object_get(encoder, "feat_in");
    json_t *out = from ? mel_features(odd, from) : NULL;
    if (out && json_is_integer(made) && json_is_integer(taken) && !json_equal(made, taken)) {
        json_decref(out);
        out = NULL;
        *odd = s2s_xstrdup("features");
    }
    json_decref(encoder);
    json_decref(from);
    return out;
}

/* Makes preprocessor_config.json, or warns why not. Gives a reference. */
static json_t *features_of(const json_t *all)
{
    char *odd = NULL;
    json_t *out = ckpt_nemo_features(&odd, all);
    if (odd)
        s2s_warn("ckpt",
                 "preprocessor_config.json is not written: this model's preprocessor.%s is not "
                 "that of transformers' Parakeet",
                 odd);
    else if (!out && all)
        s2s_warn("ckpt", "preprocessor_config.json is not written: model_config.yaml has no "
                         "section `preprocessor`");
    free(odd);
    return out;
}

/* What --to nemo kept of the one dropout that NeMo has not of its own. */
static void keep_activation(json_t *encoder, const json_t *all)
{
    json_t *kept = look_up((json_t *)all, CKPT_NEMO_KEPT ".activation_dropout");
    if (json_is_number(kept))
        json_object_set(encoder, "activation_dropout", kept);
}

int ckpt_nemo_config(struct ckpt_nemo_texts *texts, const struct s2s_ckpt *ckpt, const json_t *all,
                     const char *family, bool any, struct s2s_error *err)
{
    const json_t *part = json_object_get(all, "perception");
    json_t *encoder = section(all, part ? part : all, "encoder"), *out = NULL, *generation = NULL;
    const bool hybrid = strcmp(family, "fastconformer_hybrid_ctc") == 0;
    const char *ctc = hybrid                                     ? "aux_ctc.ctc_reduction"
                      : strcmp(family, "fastconformer_ctc") == 0 ? "ctc_reduction"
                                                                 : NULL;
    int rc = 0;
    *texts = (struct ckpt_nemo_texts){.config = NULL};
    if (!any && (json_is_integer(json_object_get(encoder, "d_model")) ||
                 is_reference(json_object_get(encoder, "d_model")))) {
        rc = check_resolved(encoder, "encoder", err);
        if (rc == 0)
            rc = ckpt_nemo_encoder(&out, ckpt, encoder, err);
        if (rc == 0 && strcmp(family, "fastconformer_encoder") != 0 &&
            strcmp(family, "fastconformer_perception") != 0)
            json_object_del(out, "architectures");
        if (rc == 0)
            keep_activation(out, all);
        if (rc == 0 && ctc)
            out = ctc_config(all, ctc, out,
                             rows_of(ckpt, hybrid ? "ctc_decoder.decoder_layers.0.weight"
                                                  : "decoder.decoder_layers.0.weight"));
        else if (rc == 0 && strcmp(family, "fastconformer_transducer") == 0)
            rc = transducer_config(&out, &generation, ckpt, all, out, err);
    }
    json_decref(encoder);
    if (rc < 0)
        return rc;
    texts->config = as_text(out);
    texts->generation = as_text(generation);
    texts->features = as_text(features_of(all));
    return 0;
}
