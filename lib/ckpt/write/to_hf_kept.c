/*
 * Checks checkpoints whose names are kept for missing weights, according to config.json. A
 * composite model is checked part by part, each with its own section of config.json; models that no
 * name map describes are not checked. A config.json that ties an output matrix which is none but
 * its own is put right.
 */
#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/list.h"
#include "lib/ckpt/map/map.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/to_hf_internal.h"

struct check {
    struct s2s_ckpt *ckpt;
    struct ckpt_side_files *files; /* of the output, to be put right; or NULL */
    bool only_heads;               /* what is missing is nobody's concern */
    int rc;                        /* of the first error; others are logged at once */
    struct s2s_error *err;
};

static void tell_error(struct check *c, struct s2s_error found)
{
    if (c->rc == 0) {
        c->rc = found.code;
        *c->err = found;
        return;
    }
    for (char *at = found.text; (at = strchr(at, '\n'));)
        *at = ' ';
    s2s_log(S2S_LOG_ERROR, "ckpt", "%s: %s", c->ckpt->path, found.text);
}

/* Reports missing or misshapen weights (lacks, if it has such a code). One file is written without
 * a config.json, and so whatever the model is. */
static void tell(struct check *c, struct s2s_error lacks)
{
    if ((lacks.code != S2S_E_NOTFOUND && lacks.code != S2S_E_SHAPE) || c->only_heads)
        return;
    s2s_error_add(&lacks, lacks.code,
                  "the model of its config.json is not whole (convert --to safetensors takes it as "
                  "it is)");
    tell_error(c, lacks);
}

/* Reports the names of a list, unless it is empty, and frees them. */
static void tell_list(struct check *c, struct ckpt_list *list, int code, const char *what)
{
    struct s2s_error lacks = S2S_ERROR_INIT;
    const int rc = list->n ? s2s_error_set(&lacks, code, "%s (%zu):", what, list->n) : 0;
    ckpt_list_end(list, rc, &lacks);
    tell(c, lacks);
}

/* Checks a part, or the whole model. */
static void check(struct check *c, struct ckpt_map_request request)
{
    struct s2s_error lacks = S2S_ERROR_INIT;
    request.ckpt = c->ckpt;
    request.is_exact = true;
    if (!c->only_heads)
        ckpt_map_check_hf(&request, &lacks);
    tell(c, lacks);
}

static const char TIE[] = "tie_word_embeddings";

/* Unties a section of a config.json; also one that says nothing, since its class may tie by
 * default.
 */
static bool untie_section(json_t *section)
{
    if (!json_is_object(section) || json_is_false(json_object_get(section, TIE)))
        return false;
    json_object_set_new(section, TIE, json_false());
    return true;
}

/* Unties the words in a config.json of the output: of its section `key`, or all of it (key NULL).
 */
static void untie(struct check *c, const char *path, const char *key)
{
    struct ckpt_side_file *file = NULL;
    for (size_t i = 0; c->files && i < c->files->n; i++)
        if (strcmp(c->files->v[i].path, path) == 0)
            file = &c->files->v[i];
    json_t *root = file ? s2s_ckpt_parse_config(file->bytes, file->len, 0, NULL) : NULL;
    json_t *words = key ? json_object_get(root, key) : (json_t *)ckpt_text_config(root);
    bool changed = untie_section(root);
    if (words != root)
        changed |= untie_section(words);
    if (changed) {
        free(file->bytes);
        file->bytes = s2s_ckpt_config_text(root);
        file->len = strlen(file->bytes);
    }
    json_decref(root);
}

/* Finds an output matrix that its config.json ties, and yet is one of its own. key: the part's
 * section; NULL: the whole model. is_salm: the section is a file of its own. */
static void check_tie(struct check *c, struct ckpt_map_request request, const char *key,
                      bool is_salm)
{
    struct s2s_error bad = S2S_ERROR_INIT;
    struct ckpt_own_head head;
    request.ckpt = c->ckpt;
    request.is_exact = true;
    const int rc = ckpt_map_own_head(&request, &head, &bad);
    if (rc < 0)
        tell_error(c, bad);
    if (!head.name)
        return;
    s2s_warn("ckpt", "%s: %s differs from %s, though %s%sconfig.json ties them (%s): %s",
             c->ckpt->path, head.name, head.words, is_salm ? key : "", is_salm ? "/" : "", TIE,
             c->files ? "it is kept, and the config.json that is written says false"
                      : "transformers keeps both; the value should be false");
    if (!is_salm || json_is_true(json_object_get(request.beside, TIE)))
        untie(c, "config.json", key);
    if (is_salm) {
        char *path = s2s_xasprintf("%s/config.json", key);
        untie(c, path, NULL);
        free(path);
    }
}

/* Checks NeMo's own names of a SALM, whose configuration has none of transformers' keys. */
static void check_nemo(struct check *c, const json_t *config)
{
    const struct ckpt_map_request request = {.ckpt = c->ckpt, .beside = config};
    struct s2s_ckpt_plan plan = {.source = c->ckpt};
    struct ckpt_map_result result = {.n_state = 0};
    struct s2s_error lacks = S2S_ERROR_INIT;
    ckpt_map_to_hf(&plan, &request, &result, &lacks);
    tell(c, lacks);
    s2s_ckpt_plan_release(&plan);
    ckpt_map_free_result(&result);
}

static const char *class_of(const json_t *config)
{
    const char *class =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    return class ? class : "";
}

/* Does the model bring its own code? Its weights are unknown then; except for NVIDIA's Nemotron-H,
 * which predates transformers' class of the same model. */
static bool has_own_code(const json_t *config)
{
    return json_object_get(config, "auto_map") &&
           strcmp(ckpt_config_type(config), "nemotron_h") != 0;
}

/* Does the class of transformers in config.json have all weights of the family? */
static bool is_whole_model(const json_t *config)
{
    const char *type = ckpt_config_type(config), *class = class_of(config);
    if (has_own_code(config))
        return false;
    return s2s_ends_with(class, "ForCausalLM") ||
           (s2s_starts_with(type, "parakeet_") && s2s_starts_with(class, "Parakeet"));
}

/* transformers' classes of a decoder without the output matrix, and the heads that they have
 * instead: a matrix and perhaps a bias. rows: of these; 0: one for each label */
static const struct body {
    const char *class, *heads[2];
    int64_t rows;
} bodies[] = {
    {"Model", {NULL}, 0},
    {"ForSequenceClassification", {"score.weight"}, 0},
    {"ForTokenClassification", {"score.weight", "score.bias"}, 0},
    {"ForQuestionAnswering", {"qa_outputs.weight", "qa_outputs.bias"}, 2},
};

/* The entry for config.json's class; NULL: none. */
static const struct body *body_of(const json_t *config)
{
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        if (s2s_ends_with(class_of(config), bodies[i].class) && !has_own_code(config) &&
            ckpt_config_class(ckpt_config_type(config)))
            return &bodies[i];
    return NULL;
}

/* Is it unknown which class it is, and whether it has a head? */
static bool may_be_body(const struct s2s_ckpt *ckpt, const json_t *config)
{
    return !*class_of(config) &&
           (ckpt->part || (ckpt_config_class(ckpt_config_type(config)) && !has_own_code(config)));
}

/* Composite models with weights outside of their parts, and the family that describes those. By
 * model_type or, for NVIDIA's many classes, by a prefix of the class. */
static const struct composite {
    const char *name, *family;
    const char *part; /* only if config.json has this section; NULL: always */
} composites[] = {
    {"gemma3", "gemma3_projection", NULL},
    {"NemotronH_", "nemotron_vlm_projection", NULL},
    {"NemotronH_", "nemotron_sound_projection", "sound_config"},
    {"NemotronH_", "nemotron_sound_projection", "audio_config"}, /* transformers' name for it */
    {"Llama_Nemotron_Nano_VL", "nemotron_vlm_projection", NULL},
    {"salm", "salm_projection", NULL},
};

/* The next family, from *at on, which is advanced past it; NULL: no more. */
static const char *family_besides(const json_t *config, size_t *at)
{
    while (*at < sizeof composites / sizeof *composites) {
        const struct composite *next = &composites[(*at)++];
        if ((strcmp(ckpt_config_type(config), next->name) == 0 ||
             s2s_starts_with(class_of(config), next->name)) &&
            (!next->part || json_is_object(json_object_get(config, next->part))))
            return next->family;
    }
    return NULL;
}

/* Does its class use names in files that no name map describes? */
static bool is_named_otherwise(const json_t *config)
{
    return ckpt_has_word("cohere_asr qianfan_ocr", ckpt_config_type(config));
}

/* Is it quantised? There are many formats of packed weights. */
static bool is_packed(const json_t *config)
{
    return json_is_object(json_object_get(config, "quantization_config")) ||
           json_is_object(json_object_get(config, "quantization")); /* of MLX */
}

static bool is_composite(const json_t *config)
{
    size_t at = 0;
    return (s2s_ends_with(class_of(config), "ForConditionalGeneration") && !has_own_code(config)) ||
           family_besides(config, &at);
}

/* model_type of a part's section; NVIDIA's towers have others or none. */
static const char *type_of_part(const json_t *part)
{
    const char *type = ckpt_config_type(part);
    if (strcmp(class_of(part), "RADIOModel") == 0)
        return "radio";
    return strcmp(type, "parakeet") == 0 ? "parakeet_encoder" : type;
}

/* Does the class have no output matrix? Of transformers' Gemma 3 classes only one has. */
static bool is_headless(const json_t *config)
{
    return strcmp(ckpt_config_type(config), "gemma3") == 0 &&
           !s2s_ends_with(class_of(config), "ForConditionalGeneration");
}

static void check_parts(struct check *c, const json_t *config)
{
    json_t *headless = json_pack("{s:b}", "tie_word_embeddings", 1);
    const char *key, *family;
    const json_t *part;
    size_t at = 0;
    json_object_foreach((json_t *)config, key, part)
    {
        const struct ckpt_map_request request = {.name = type_of_part(part),
                                                 .config = part,
                                                 .beside = is_headless(config) ? headless : config,
                                                 .is_part = true};
        if (!ckpt_map_knows_type(request.name) || is_packed(part))
            continue;
        check(c, request);
        if (!is_headless(config))
            check_tie(c, request, key, strcmp(ckpt_config_type(config), "salm") == 0);
    }
    while ((family = family_besides(config, &at)))
        check(c, (struct ckpt_map_request){.name = family, .config = config});
    json_decref(headless);
}

/* Reads a configuration, of the output's small files or, without those, of the source. NULL: none,
 * or not readable, which is reported. Gives a reference. */
static json_t *read_config(struct check *c, const struct ckpt_side_files *files, const char *path)
{
    const struct ckpt_side_file *file = files ? ckpt_side_find(files, path) : NULL;
    json_t *config = NULL;
    json_error_t at;
    struct s2s_error bad = S2S_ERROR_INIT;
    int rc = 0;
    if (file) {
        config = s2s_ckpt_parse_config(file->bytes, file->len, 0, &at);
        if (!config)
            rc = s2s_error_set(&bad, S2S_E_FORMAT, "%s/%s:%d: %s", c->ckpt->path, path, at.line,
                               at.text);
    } else if (!c->ckpt->part) {
        rc = ckpt_read_json(&config, c->ckpt, path, &bad);
    }
    if (rc == 0 && !c->only_heads)
        rc = ckpt_config_check_counts(config, &bad);
    if (rc < 0)
        tell_error(c, bad);
    return config;
}

/* Inserts the configurations of the parts of s2s-train's SALM, which are in their folders. */
static void add_parts(struct check *c, json_t *config, const struct ckpt_side_files *files)
{
    static const char *const parts[] = {"encoder", "llm"};
    for (size_t i = 0; i < 2; i++) {
        char *path = s2s_xasprintf("%s/config.json", parts[i]);
        json_t *part = read_config(c, files, path);
        if (part)
            json_object_set_new(config, parts[i], part);
        free(path);
    }
}

/* The configuration of the layers. That of a Parakeet is the encoder's section, whose own
 * model_type is that of an encoder without a head. Gives a reference. */
static json_t *layers_of(const json_t *config)
{
    json_t *layers = json_copy(json_object_get(config, "encoder_config"));
    if (json_is_object(layers))
        json_object_set(layers, "model_type", json_object_get(config, "model_type"));
    return layers ? layers : json_incref((json_t *)config);
}

/* As many labels as id2label says, or 2, transformers' default. */
static int64_t count_labels(const json_t *config)
{
    const json_t *labels = json_object_get(config, "id2label");
    const json_t *n = json_object_get(config, "num_labels");
    if (json_is_object(labels))
        return (int64_t)json_object_size(labels);
    return json_is_integer(n) ? json_integer_value(n) : 2;
}

/* Checks the head that a decoder has instead of the output matrix. */
static void check_head(struct check *c, const json_t *config, const struct body *body)
{
    const int64_t want[2] = {body->rows ? body->rows : count_labels(config),
                             json_integer_value(json_object_get(config, "hidden_size"))};
    struct ckpt_list missed = {.n = 0}, wrong = {.n = 0};
    for (int i = 0; i < 2 && body->heads[i]; i++) {
        const struct s2s_ckpt_tensor *t = s2s_ckpt_find(c->ckpt, body->heads[i]);
        char is[200], should[200];
        if (!t)
            ckpt_list_add(&missed, "wanted but absent", s2s_xstrdup(body->heads[i]));
        else if (want[1] && !ckpt_same_shape(t->shape, t->n_dims, want, i == 0 ? 2 : 1))
            ckpt_list_add(&wrong, "does not fit",
                          s2s_xasprintf("%s: shape %s, expected %s", body->heads[i],
                                        ckpt_shape_text(is, t->shape, t->n_dims),
                                        ckpt_shape_text(should, want, i == 0 ? 2 : 1)));
    }
    tell_list(c, &missed, S2S_E_NOTFOUND, "wanted but absent");
    tell_list(c, &wrong, S2S_E_SHAPE, "tensors that do not fit the configuration");
}

/* Checks a decoder that has no output matrix, or of which that is unknown. */
static void check_body(struct check *c, const json_t *config, const struct body *body)
{
    json_t *headless = json_pack("{s:b}", "tie_word_embeddings", 1);
    const struct ckpt_map_request request = {
        .name = ckpt_config_type(config), .config = config, .beside = headless, .is_part = true};
    check(c, request);
    if (body)
        check_head(c, config, body);
    else /* it may have an output matrix */
        check_tie(
            c, (struct ckpt_map_request){.name = request.name, .config = config, .is_part = true},
            NULL, false);
    json_decref(headless);
}

static void check_all(struct check *c, const json_t *config)
{
    const bool known = ckpt_map_knows_type(ckpt_config_type(config));
    const struct body *body = body_of(config);
    json_t *layers = layers_of(config);
    const struct ckpt_map_request whole = {.name = ckpt_config_type(config), .config = layers};
    if (is_named_otherwise(config) || is_packed(config)) {
        /* unknown names */
    } else if (is_composite(config)) {
        check_parts(c, config);
    } else if (json_object_get(config, "perception") && ckpt_map_wanted(c->ckpt)) {
        if (!c->only_heads)
            check_nemo(c, config);
    } else if (known && is_whole_model(config)) {
        check(c, whole);
        check_tie(c, whole, NULL, false);
    } else if (known && (body || may_be_body(c->ckpt, config))) {
        check_body(c, config, body);
    }
    json_decref(layers);
}

/* Is it a floating-point weight of 8 or 4 bits? Scales can be 8-bit, too. */
static bool is_small(const struct s2s_ckpt_tensor *t)
{
    return s2s_dtype_size(t->dtype) == 1 && *s2s_dtype_name(t->dtype) == 'F' && t->n_dims >= 2 &&
           !strstr(t->name, "scale") && !s2s_ckpt_is_state(t->name);
}

static bool has_scale(const struct s2s_ckpt *ckpt, const char *name)
{
    static const char *const ends[] = {"_scale", "_scale_inv"};
    bool has = false;
    for (size_t i = 0; i < 2 && !has; i++) {
        char *scale = s2s_xasprintf("%s%s", name, ends[i]);
        has = s2s_ckpt_find(ckpt, scale) != NULL;
        free(scale);
    }
    return has;
}

/* Checks that each such weight has a scale, if others have: transformers would initialise a
 * missing one. */
static void check_scales(struct check *c)
{
    struct ckpt_list list = {.n = 0};
    bool any = false;
    for (size_t i = 0; i < c->ckpt->n_tensors && !any; i++)
        any = is_small(&c->ckpt->tensors[i]) && has_scale(c->ckpt, c->ckpt->tensors[i].name);
    for (size_t i = 0; i < c->ckpt->n_tensors && any; i++) {
        const char *name = c->ckpt->tensors[i].name;
        if (is_small(&c->ckpt->tensors[i]) && !has_scale(c->ckpt, name))
            ckpt_list_add(&list, "without a scale", s2s_xstrdup(name));
    }
    tell_list(c, &list, S2S_E_NOTFOUND,
              "weights of 8 or 4 bits without a scale, which others have");
}

/* Checks the tensors under their names as written: they replace ckpt's for the time of the check.
 */
static void check_as_written(struct check *c, const json_t *config)
{
    const struct ckpt_hf_wrapping wrapping = ckpt_hf_wrapping_of(c->ckpt);
    struct s2s_ckpt_tensor *const own = c->ckpt->tensors;
    const size_t n_own = c->ckpt->n_tensors;
    struct s2s_ckpt_tensor *named = s2s_xcalloc(n_own + 1, sizeof *named);
    size_t n = 0;
    for (size_t i = 0; i < n_own; i++) {
        char *name = ckpt_hf_name(c->ckpt, &wrapping, own[i].name);
        if (!name) /* not written */
            continue;
        named[n] = own[i];
        named[n++].name = ckpt_arena_text(c->ckpt, name, strlen(name));
        free(name);
    }
    s2s_sort(named, n, sizeof *named, ckpt_by_tensor_name);
    c->ckpt->tensors = named;
    c->ckpt->n_tensors = n;
    check_all(c, config);
    c->ckpt->tensors = own;
    c->ckpt->n_tensors = n_own;
    free(named);
}

static int check_kept(struct check *c)
{
    json_t *config = read_config(c, c->files, "config.json");
    if (strcmp(ckpt_config_type(config), "salm") == 0)
        add_parts(c, config, c->files);
    if (ckpt_is_adapter(c->ckpt) || !config) {
        /* the required weights are unknown */
    } else if (c->files) {
        check_as_written(c, config);
    } else {
        check_all(c, config);
    }
    if (!c->only_heads)
        check_scales(c);
    json_decref(config);
    return c->rc;
}

int s2s_hf_check_kept(struct s2s_ckpt *ckpt, struct ckpt_side_files *files, struct s2s_error *err)
{
    struct check c = {.ckpt = ckpt, .files = files, .err = err};
    return check_kept(&c);
}

int ckpt_hf_untie(struct s2s_ckpt *ckpt, struct ckpt_side_files *files, struct s2s_error *err)
{
    struct check c = {.ckpt = ckpt, .files = files, .only_heads = true, .err = err};
    return check_kept(&c);
}
