/*
 * Converts NeMo's model_config.yaml to the config.json and preprocessor_config.json of
 * transformers' Parakeet. Source for the keys: transformers' models/parakeet/convert_nemo_to_hf.py.
 */
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

json_t *ckpt_nemo_setting(const json_t *root, const char *path)
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

int ckpt_nemo_check_kind(const json_t *all, struct s2s_error *err)
{
    json_t *encoder = section(all, all, "encoder");
    int rc = ckpt_nemo_encoder_kind(encoder, err);
    json_decref(encoder);
    return rc;
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

static json_t *ctc_config(const json_t *all, const char *reduction_key, json_t *encoder,
                          int64_t n_classes)
{
    const char *reduction = ckpt_nemo_reduction(ckpt_nemo_setting(all, reduction_key));
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
    const char *loss = json_string_value(ckpt_nemo_setting(all, "loss.loss_name"));
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
        const json_t *found = ckpt_nemo_setting(all, paths[i]);
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
    const json_t *blanks = ckpt_nemo_setting(all, "decoding.big_blank_durations");
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
    const json_t *labels = ckpt_nemo_setting(all, "labels"), *item;
    const json_t *kept = look_up((json_t *)all, CKPT_NEMO_KEPT ".pad_token_id");
    size_t i;
    if (json_is_integer(kept))
        return json_integer_value(kept);
    if (!json_is_array(labels))
        labels = ckpt_nemo_setting(all, "joint.vocabulary");
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
    const char *joint = json_string_value(ckpt_nemo_setting(all, "joint._target_"));
    int rc = 0;
    if (joint && !s2s_ends_with(joint, "RNNTJoint")) /* HATJoint has the blank apart */
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "model_config.yaml: joint._target_ is %s; Parakeet has only RNNTJoint",
                           joint);
    else if (json_is_false(ckpt_nemo_setting(all, "decoder.blank_as_pad")))
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
    const json_t *greedy = ckpt_nemo_setting(all, section);
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
    const json_t *value = ckpt_nemo_setting(all, "joint.jointnet.activation");
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
    json_t *out = from ? ckpt_nemo_mel(odd, from) : NULL;
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
        if (rc == 0)
            ckpt_nemo_warn_training(part ? part : all, encoder, generation ? "rnnt_reduction" : ctc,
                                    !generation                         ? NULL
                                    : json_object_get(out, "durations") ? "mean"
                                                                        : "mean_volume");
        else
            out = NULL;
    }
    json_decref(encoder);
    if (rc < 0)
        return rc;
    texts->config = as_text(out);
    texts->generation = as_text(generation);
    texts->features = as_text(features_of(all));
    return 0;
}
