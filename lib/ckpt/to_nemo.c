#include "lib/ckpt/to_nemo.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "lib/audio/mel.h"
#include "lib/base/base.h"
#include "lib/ckpt/map.h"
#include "lib/ckpt/model.h"
#include "lib/conf/conf.h"
#include "lib/io/outfile.h"
#include "lib/io/tar.h"

enum {
    MAX_SIDE_FILE = 256 << 20 /* and all of them */,
    MAX_LABELS = 1 << 22,
    MAX_NAME = 78 /* of what a tar header here takes, less "./" */
};

static const char CONFIG[] = "model_config.yaml", WEIGHTS[] = "model_weights.ckpt";
static const char MODEL[] = "tokenizer.model", VOCAB[] = "tokenizer.vocab", WORDS[] = "vocab.txt";

/* ---- small files ---- */

static void add_file(struct s2s_nemo_output *out, const char *name, const void *bytes, size_t len)
{
    s2s_grow(&out->files, out->n_files, &out->cap_files, sizeof *out->files);
    char *copy = s2s_xmalloc(len + 1);
    memcpy(copy, bytes, len);
    copy[len] = 0;
    out->files[out->n_files++] = (struct s2s_nemo_file){s2s_xstrdup(name), copy, len};
}

static const struct s2s_nemo_file *find_file(const struct s2s_nemo_output *out, const char *name)
{
    for (size_t i = 0; i < out->n_files; i++)
        if (strcmp(out->files[i].name, name) == 0)
            return &out->files[i];
    return NULL;
}

static bool in_folder(const struct s2s_ckpt *ckpt, const char *name)
{
    return ckpt->dir_fd >= 0 && faccessat(ckpt->dir_fd, name, R_OK, 0) == 0;
}

/* A JSON file of the folder; NULL without an error where there is none. Gives: json_decref. */
static int read_json(json_t **value, const struct s2s_ckpt *ckpt, const char *name,
                     struct s2s_error *err)
{
    char *text;
    size_t len;
    json_error_t at;
    *value = NULL;
    if (!in_folder(ckpt, name))
        return 0;
    int rc = ckpt_slurp(ckpt->dir_fd, name, MAX_SIDE_FILE, &text, &len, err);
    if (rc < 0)
        return s2s_error_add(err, rc, "%s", ckpt->path);
    *value = json_loadb(text, len, 0, &at);
    free(text);
    return *value ? 0
                  : s2s_error_set(err, S2S_E_FORMAT, "%s/%s:%d: %s", ckpt->path, name, at.line,
                                  at.text);
}

/* ---- the tokenizer ---- */

/* tokenizer.model, from the user or the folder, and what NeMo wants beside it */
static int add_tokenizer(struct s2s_nemo_output *out, const struct s2s_ckpt *ckpt,
                         const struct s2s_nemo_options *options, json_t **labels,
                         struct s2s_error *err)
{
    const char *path = options->tokenizer ? options->tokenizer : MODEL;
    struct s2s_buf vocab = S2S_BUF_INIT, words = S2S_BUF_INIT;
    char *bytes;
    size_t len;
    *labels = NULL;
    if (options->without_tokenizer || (!options->tokenizer && !in_folder(ckpt, MODEL)))
        return 0;
    int rc = ckpt_slurp(options->tokenizer ? AT_FDCWD : ckpt->dir_fd, path, MAX_SIDE_FILE, &bytes,
                        &len, err);
    if (rc < 0)
        return rc;
    rc = ckpt_sentencepiece(labels, &vocab, &words, bytes, len, err);
    if (rc == 0) {
        add_file(out, MODEL, bytes, len);
        add_file(out, VOCAB, vocab.data, vocab.len);
        add_file(out, WORDS, words.data ? words.data : "", words.len);
    } else {
        s2s_error_add(err, rc, "%s%s%s", options->tokenizer ? "" : ckpt->path,
                      options->tokenizer ? "" : "/", path);
        json_decref(*labels);
        *labels = NULL;
    }
    s2s_buf_release(&vocab);
    s2s_buf_release(&words);
    free(bytes);
    return rc;
}

/* the labels that the head has classes for, without the blank */
static int find_labels(json_t **labels, const struct s2s_ckpt *ckpt,
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
                           ckpt->path, MODEL);
        return s2s_error_hint(err, rc,
                              "give it with --tokenizer FILE, or write a model whose labels are "
                              "the pieces with --no-tokenizer");
    }
    rc = read_json(&tokenizer, ckpt, "tokenizer.json", err);
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

/* the symmetric Hann window and the filters: NeMo loads them as part of the model */
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
        if (json_is_integer(value) && json_integer_value(value) > 0 &&
            json_integer_value(value) < 1 << 20)
            *fields[i] = (int)json_integer_value(value);
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

/* ---- files that a configuration names ---- */

/* "0123..ef_tokenizer.model": NeMo puts a digest in front */
static const char *without_digest(const char *name)
{
    return strspn(name, "0123456789abcdef") == 32 && name[32] == '_' ? name + 33 : name;
}

static int add_named(struct s2s_nemo_output *out, const struct s2s_ckpt *ckpt, const char *name,
                     struct s2s_error *err)
{
    const char *plain = without_digest(name);
    const struct s2s_nemo_file *same = find_file(out, plain);
    char *bytes;
    size_t len;
    if (find_file(out, name))
        return 0;
    if (same) {
        add_file(out, name, same->bytes, same->len);
        return 0;
    }
    const char *there = in_folder(ckpt, name) ? name : plain;
    if (!ckpt_name_is_plain(there, strlen(there)) || !in_folder(ckpt, there)) {
        int rc = s2s_error_set(err, S2S_E_NOTFOUND,
                               "%s names nemo:%s, which would not be in the archive", CONFIG, name);
        return s2s_error_hint(err, rc, "put it beside the weights, or give --tokenizer FILE");
    }
    int rc = ckpt_slurp(ckpt->dir_fd, there, MAX_SIDE_FILE, &bytes, &len, err);
    if (rc == 0)
        add_file(out, name, bytes, len);
    free(bytes);
    return rc;
}

static int add_all_named(struct s2s_nemo_output *out, const struct s2s_ckpt *ckpt,
                         const json_t *value, struct s2s_error *err)
{
    const char *key, *text = json_string_value(value);
    json_t *item;
    size_t i;
    int rc = 0;
    if (text && strncmp(text, "nemo:", 5) == 0)
        return add_named(out, ckpt, text + 5, err);
    if (json_is_object(value))
        json_object_foreach((json_t *)value, key, item) rc =
            rc < 0 ? rc : add_all_named(out, ckpt, item, err);
    if (json_is_array(value))
        json_array_foreach(value, i, item) rc = rc < 0 ? rc : add_all_named(out, ckpt, item, err);
    return rc;
}

/* the user's model_config.yaml as a tree. Gives: json_decref. */
static int parse_yaml(json_t **tree, const char *text, struct s2s_error *err)
{
    struct s2s_conf *conf = NULL;
    int rc = s2s_conf_parse(&conf, text, strlen(text), CONFIG, S2S_CONF_YAML, err);
    *tree = NULL;
    if (rc == 0) {
        struct s2s_buf json = S2S_BUF_INIT;
        s2s_conf_dump_json(&json, conf);
        *tree = json_loadb(json.data, json.len, JSON_DECODE_ANY, NULL);
        s2s_buf_release(&json);
    }
    s2s_conf_free(conf);
    if (rc == 0 && !json_is_object(json_object_get(*tree, "encoder")))
        rc = s2s_error_set(err, S2S_E_FORMAT, "%s: has no section `encoder`", CONFIG);
    if (rc < 0) {
        json_decref(*tree);
        *tree = NULL;
    }
    return rc;
}

/* ---- from Parakeet ---- */

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
    int rc = read_json(&p->features, p->ckpt, "preprocessor_config.json", p->err);
    if (rc < 0 || p->features)
        return rc;
    rc = read_json(&whole, p->ckpt, "processor_config.json", p->err);
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
    struct ckpt_map_result result = {.n_unused = 0};
    int rc = ckpt_map_to_megatron(&p->out->plan, &request, &result, p->err);
    for (size_t i = 0; i < result.n_unused; i++) {
        s2s_grow(&p->out->unused, p->out->n_unused, &p->out->cap_unused, sizeof *p->out->unused);
        p->out->unused[p->out->n_unused++] = s2s_xstrdup(result.unused[i]);
    }
    free(result.unused);
    p->out->n_optimizer = result.n_optimizer;
    snprintf(p->out->family, sizeof p->out->family, "%s", family);
    return rc;
}

static const struct s2s_ckpt_target *find_target(const struct s2s_nemo_output *out,
                                                 const char *name)
{
    for (size_t i = 0; i < out->plan.n_targets; i++)
        if (strcmp(out->plan.targets[i].name, name) == 0)
            return &out->plan.targets[i];
    return NULL;
}

static int check_rows(const struct parakeet *p, const char *name, int64_t rows, const char *key)
{
    const struct s2s_ckpt_target *t = find_target(p->out, name);
    if (t && t->n_dims > 0 && t->shape[0] == rows)
        return 0;
    return s2s_error_set(p->err, S2S_E_SHAPE, "config.json: %s says %lld, %s has %lld rows", key,
                         (long long)rows, name, t && t->n_dims ? (long long)t->shape[0] : 0LL);
}

/* the configuration is of these weights */
static int check_config(const struct parakeet *p, enum ckpt_nemo_kind kind)
{
    const int64_t classes = ckpt_parakeet_classes(p->config);
    const int64_t layers = ckpt_parakeet_int(p->config, "num_hidden_layers");
    const json_t *blank =
        json_object_get(p->config, kind == CKPT_NEMO_CTC ? "pad_token_id" : "blank_token_id");
    const json_t *durations = json_object_get(p->config, "durations");
    const int64_t extra = kind != CKPT_NEMO_TDT ? 0
                          : durations           ? (int64_t)json_array_size(durations)
                                                : 5;
    char *last = s2s_xasprintf("encoder.layers.%lld.norm_out.weight", (long long)layers - 1);
    char *past = s2s_xasprintf("encoder.layers.%lld.norm_out.weight", (long long)layers);
    int rc = check_rows(p, "encoder.pre_encode.out.weight",
                        ckpt_parakeet_int(p->config, "hidden_size"), "hidden_size");
    if (rc == 0)
        rc = check_rows(p, last, ckpt_parakeet_int(p->config, "hidden_size"), "num_hidden_layers");
    if (rc == 0 && find_target(p->out, past))
        rc = s2s_error_set(p->err, S2S_E_SHAPE,
                           "config.json: num_hidden_layers is %lld, there is %s", (long long)layers,
                           past);
    if (rc == 0)
        rc = kind == CKPT_NEMO_CTC
                 ? check_rows(p, "decoder.decoder_layers.0.weight", classes, "vocab_size")
                 : check_rows(p, "joint.joint_net.2.weight", classes + extra,
                              "vocab_size and durations");
    if (rc == 0 && json_is_integer(blank) && json_integer_value(blank) != classes - 1) {
        rc = s2s_error_set(p->err, S2S_E_UNSUPPORTED,
                           "config.json: the blank is token %lld; NeMo's is the last class, %lld",
                           (long long)json_integer_value(blank), (long long)classes - 1);
    }
    free(last);
    free(past);
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
                                    .pieces = find_file(p->out, MODEL) != NULL};
    if (rc == 0)
        rc = ckpt_nemo_yaml(&yaml, &model, p->err);
    if (rc == 0)
        add_file(p->out, CONFIG, yaml.data, yaml.len);
    s2s_buf_release(&yaml);
    return rc < 0 ? rc
                  : add_featurizer(p->out, p->features,
                                   ckpt_parakeet_int(p->config, "num_mel_bins"), p->err);
}

/* the user's configuration: its features decide about the buffers */
static int take_config(struct parakeet *p)
{
    json_t *tree;
    int rc = parse_yaml(&tree, p->options->yaml, p->err);
    if (rc < 0)
        return rc;
    add_file(p->out, CONFIG, p->options->yaml, strlen(p->options->yaml));
    rc = add_all_named(p->out, p->ckpt, tree, p->err);
    p->features = ckpt_nemo_features(tree);
    const json_t *mels = json_object_get(p->features, "feature_size");
    if (rc == 0)
        rc = add_featurizer(p->out, p->features,
                            json_is_integer(mels) ? json_integer_value(mels) : 80, p->err);
    json_decref(tree);
    return rc;
}

static bool has_tensor(const struct s2s_ckpt *ckpt, const char *name)
{
    return s2s_ckpt_find(ckpt, name) != NULL;
}

static int from_parakeet(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt,
                         const struct s2s_nemo_options *options, struct s2s_error *err)
{
    struct parakeet p = {.out = out, .ckpt = ckpt, .options = options, .err = err};
    const bool ctc = has_tensor(ckpt, "ctc_head.weight");
    const bool joint = has_tensor(ckpt, "joint.head.weight");
    int rc = 0;
    if (!options->yaml && !ctc && !joint) {
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "%s: an encoder without a head is no model of NeMo's", ckpt->path);
        return s2s_error_hint(err, rc, "give the model_config.yaml to write with --config");
    }
    p.config = json_incref((json_t *)options->config);
    if (!p.config)
        rc = read_json(&p.config, ckpt, "config.json", err);
    if (rc == 0)
        rc = map_names(&p, ctc     ? "fastconformer_ctc"
                           : joint ? "fastconformer_transducer"
                                   : "fastconformer_encoder");
    /* a configuration names the files that it wants */
    if (rc == 0 && (!options->yaml || options->tokenizer))
        rc = add_tokenizer(out, ckpt, options, &p.labels, err);
    const char *type = json_string_value(json_object_get(p.config, "model_type"));
    if (rc == 0 && options->yaml)
        rc = take_config(&p);
    else if (rc == 0)
        rc = make_config(&p, ctc                                         ? CKPT_NEMO_CTC
                             : type && strcmp(type, "parakeet_tdt") == 0 ? CKPT_NEMO_TDT
                                                                         : CKPT_NEMO_RNNT);
    json_decref(p.config);
    json_decref(p.features);
    json_decref(p.labels);
    return rc;
}

/* ---- from NeMo's names ---- */

static bool is_harmless(const char *name)
{
    return *name && *name != '/' && strlen(name) <= MAX_NAME && strcmp(name, "..") != 0 &&
           strncmp(name, "../", 3) != 0 && !strstr(name, "/../") &&
           (strlen(name) < 3 || strcmp(name + strlen(name) - 3, "/..") != 0) && !strchr(name, '\\');
}

/* all members but the weights and the configuration, as they are called */
static int copy_members(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt, bool with_config,
                        struct s2s_error *err)
{
    const char *root = ckpt->root ? ckpt->root : "";
    int64_t total = 0;
    int rc = 0;
    for (size_t i = 0; i < ckpt->n_members && rc == 0; i++) {
        const struct ckpt_member *member = &ckpt->members[i];
        char *bytes;
        if (strncmp(member->name, root, strlen(root)) != 0)
            continue;
        const char *name = member->name + strlen(root);
        if (strcmp(name, WEIGHTS) == 0 || (!with_config && strcmp(name, CONFIG) == 0))
            continue;
        if (!is_harmless(name))
            return s2s_error_set(err, S2S_E_UNSUPPORTED, "%s: member %s: its name is refused",
                                 ckpt->path, member->name);
        total += member->span.len_bytes;
        if (total > MAX_SIDE_FILE)
            return s2s_error_set(err, S2S_E_UNSUPPORTED,
                                 "%s: more than %d MiB beside the weights (%s)", ckpt->path,
                                 MAX_SIDE_FILE >> 20, member->name);
        rc = ckpt_slurp_span(ckpt, &member->span, MAX_SIDE_FILE, &bytes, err);
        if (rc == 0)
            add_file(out, name, bytes, (size_t)member->span.len_bytes);
        else
            s2s_error_add(err, rc, "%s", member->name);
        free(bytes);
    }
    return rc;
}

static int from_nemo(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt,
                     const struct s2s_nemo_options *options, struct s2s_error *err)
{
    json_t *tree = NULL;
    int rc = 0;
    if (strcmp(ckpt->format, "mp_rank") == 0 || ckpt->inside)
        return s2s_error_set(err, S2S_E_UNSUPPORTED,
                             "%s: a .nemo is written of one model_weights.ckpt; these weights are "
                             "distributed",
                             ckpt->path);
    if (options->tokenizer || options->without_tokenizer)
        return s2s_error_set(err, S2S_E_ARG, "%s: has its own tokenizer, which is kept",
                             ckpt->path);
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        s2s_ckpt_plan_copy(&out->plan, ckpt->tensors[i].name, &ckpt->tensors[i]);
    for (size_t i = 0; i < ckpt->n_objects; i++) {
        s2s_grow(&out->unused, out->n_unused, &out->cap_unused, sizeof *out->unused);
        out->unused[out->n_unused++] = s2s_xstrdup(ckpt->objects[i].name);
    }
    if (options->yaml) {
        add_file(out, CONFIG, options->yaml, strlen(options->yaml));
        rc = parse_yaml(&tree, options->yaml, err);
    }
    if (rc == 0)
        rc = copy_members(out, ckpt, !options->yaml, err);
    if (rc == 0 && tree)
        rc = add_all_named(out, ckpt, tree, err);
    if (rc == 0 && !find_file(out, CONFIG)) {
        rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s: has no %s", ckpt->path, CONFIG);
        s2s_error_hint(err, rc, "give one with --config");
    }
    json_decref(tree);
    return rc;
}

/* ---- both ---- */

static int by_name(const void *a, const void *b)
{
    const struct s2s_nemo_file *x = a, *y = b;
    const bool x_first = strcmp(x->name, CONFIG) == 0, y_first = strcmp(y->name, CONFIG) == 0;
    return x_first != y_first ? (x_first ? -1 : 1) : strcmp(x->name, y->name);
}

int s2s_nemo_prepare(struct s2s_nemo_output *out, struct s2s_ckpt *ckpt,
                     const struct s2s_nemo_options *options, struct s2s_error *err)
{
    int rc;
    *out = (struct s2s_nemo_output){.plan = {.source = ckpt}};
    if (ckpt->n_members || has_tensor(ckpt, "encoder.pre_encode.conv.0.weight"))
        rc = from_nemo(out, ckpt, options, err);
    else if (has_tensor(ckpt, "encoder.subsampling.layers.0.weight") ||
             has_tensor(ckpt, "subsampling.layers.0.weight"))
        rc = from_parakeet(out, ckpt, options, err);
    else
        rc = s2s_error_set(err, S2S_E_UNSUPPORTED,
                           "%s: --to nemo takes transformers' Parakeet or a .nemo; these names are "
                           "neither's",
                           ckpt->path);
    if (rc == 0 && options->dtype)
        s2s_ckpt_plan_cast(&out->plan, options->dtype);
    if (rc == 0)
        rc = s2s_ckpt_plan_seal(&out->plan, err);
    if (rc == 0 && out->plan.n_targets == 0)
        rc = s2s_error_set(err, S2S_E_NOTFOUND, "%s holds no weights", ckpt->path);
    if (out->n_files)
        qsort(out->files, out->n_files, sizeof *out->files, by_name);
    return rc;
}

/* ---- writing ---- */

static int file_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    return s2s_outfile_write(ctx, bytes, len, err);
}

static int null_sink(void *ctx, const void *bytes, size_t len, struct s2s_error *err)
{
    return 0;
}

static int begin_member(struct s2s_outfile *file, const char *name, int64_t len,
                        struct s2s_error *err)
{
    unsigned char header[S2S_TAR_MAX_HEADER];
    char *dotted = s2s_xasprintf("./%s", name); /* as NeMo's own archives */
    size_t header_len = s2s_tar_header(header, dotted, (uint64_t)len);
    free(dotted);
    return s2s_outfile_write(file, header, header_len, err);
}

static int end_member(struct s2s_outfile *file, int64_t len, struct s2s_error *err)
{
    static const char zeros[S2S_TAR_BLOCK];
    return s2s_outfile_write(file, zeros, s2s_tar_padding((uint64_t)len), err);
}

static int write_weights(struct s2s_nemo_output *out, struct s2s_outfile *file,
                         const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    struct ckpt_torch_dict dict = {.made = out->made, .n_made = out->n_made, .plan = &out->plan};
    int64_t len, written = 0;
    /* a tar says a length before its bytes */
    int rc = ckpt_write_torch(&dict, NULL, null_sink, NULL, &len, err);
    if (rc == 0)
        rc = begin_member(file, WEIGHTS, len, err);
    if (rc == 0)
        rc = ckpt_write_torch(&dict, how, file_sink, file, &written, err);
    if (rc == 0 && written != len)
        S2S_BUG("measured %lld bytes, wrote %lld", (long long)len, (long long)written);
    return rc < 0 ? rc : end_member(file, len, err);
}

int s2s_nemo_write(struct s2s_nemo_output *out, struct s2s_outfile *file,
                   const struct s2s_ckpt_write *how, struct s2s_error *err)
{
    static const char tail[S2S_TAR_TAIL];
    int rc = 0;
    for (size_t i = 0; i < out->n_files && rc == 0; i++) {
        const int64_t len = (int64_t)out->files[i].len;
        rc = begin_member(file, out->files[i].name, len, err);
        if (rc == 0)
            rc = s2s_outfile_write(file, out->files[i].bytes, out->files[i].len, err);
        if (rc == 0)
            rc = end_member(file, len, err);
    }
    if (rc == 0)
        rc = write_weights(out, file, how, err);
    if (rc == 0)
        rc = s2s_outfile_write(file, tail, sizeof tail, err);
    return rc < 0 ? rc : s2s_ckpt_plan_verify(&out->plan, err);
}

void s2s_nemo_release(struct s2s_nemo_output *out)
{
    s2s_ckpt_plan_release(&out->plan);
    for (size_t i = 0; i < out->n_made; i++)
        free(out->made[i].bytes);
    for (size_t i = 0; i < out->n_files; i++) {
        free(out->files[i].name);
        free(out->files[i].bytes);
    }
    for (size_t i = 0; i < out->n_unused; i++)
        free(out->unused[i]);
    free(out->files);
    free(out->unused);
    *out = (struct s2s_nemo_output){.n_made = 0};
}
