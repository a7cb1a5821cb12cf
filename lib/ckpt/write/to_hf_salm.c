/*
 * Converts NeMo's SALM to a composite folder: encoder/, llm/, projection.safetensors and their
 * configurations. NeMo's single config.json is split; the language model's own configuration is in
 * llm_backbone/, if NeMo's exporter wrote the folder.
 */

#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/nemo/from_nemo.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/to_hf_internal.h"

#define BACKBONE "llm_backbone/"

/* ---- weights ---- */

/* Moves the targets with this prefix, and removes the first `drop` bytes of their names. */
static void move_targets(struct s2s_ckpt_plan *to, struct s2s_ckpt_plan *from, const char *prefix,
                         size_t drop)
{
    size_t kept = 0;
    for (size_t i = 0; i < from->n_targets; i++) {
        struct s2s_ckpt_target *target = &from->targets[i];
        if (!s2s_starts_with(s2s_ckpt_target_name(target), prefix)) {
            from->targets[kept++] = *target;
            continue;
        }
        struct s2s_ckpt_target *moved =
            s2s_ckpt_plan_add(to, s2s_ckpt_target_name(target) + drop, target->dtype,
                              target->n_dims, s2s_ckpt_target_shape(target));
        for (size_t k = 0; k < target->n_pieces; k++) {
            const struct s2s_ckpt_piece piece = s2s_ckpt_target_piece(target, k);
            s2s_ckpt_plan_piece(to, moved, piece.source, piece.begin, piece.size);
        }
    }
    from->n_targets = kept;
}

/* The parts of a composite. Not all have all: encoder and language model may have the same width,
 * and a model that sees may not hear. */
static const struct {
    const char *prefix, *folder, *file;
    size_t drop; /* of the prefix in names */
} salm_parts[] = {{"encoder.", "encoder", NULL, 8},
                  {"llm.", "llm", NULL, 4},
                  {"proj.", "", "projection.safetensors", 0},
                  {"vision.", "vision", NULL, 7},
                  {"vision_proj.", "", "vision_projection.safetensors", 12}};
enum { N_SALM_PARTS = sizeof salm_parts / sizeof *salm_parts };

bool ckpt_hf_salm_has(const char *name)
{
    bool has = false;
    for (size_t i = 0; i < N_SALM_PARTS; i++)
        has |= s2s_starts_with(name, salm_parts[i].prefix);
    return has;
}

void ckpt_hf_salm_split(struct s2s_hf_output *out, struct s2s_ckpt *ckpt)
{
    struct s2s_ckpt_plan all = out->parts[0].plan;
    out->n_parts = 0;
    for (size_t i = 0; i < N_SALM_PARTS; i++) {
        struct s2s_hf_part *part =
            ckpt_hf_add_part(out, ckpt, salm_parts[i].folder, salm_parts[i].file);
        move_targets(&part->plan, &all, salm_parts[i].prefix, salm_parts[i].drop);
        if (part->plan.n_targets == 0)
            out->n_parts--;
    }
    s2s_ckpt_plan_release(&all);
}

/* ---- small files ---- */

/* Restores lists that became objects with keys "0", "1", .., recursively. Takes value, gives
 * another. */
static json_t *with_lists(json_t *value)
{
    const size_t n = json_object_size(value);
    const char *key;
    char digits[24];
    json_t *item;
    if (n == 0) /* also of what is no object */
        return value;
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++) {
        snprintf(digits, sizeof digits, "%zu", i);
        if (!(item = json_object_get(value, digits)))
            break;
        json_array_append_new(out, with_lists(json_incref(item)));
    }
    if (json_array_size(out) != n) {
        json_decref(out);
        out = json_object();
        json_object_foreach(value, key, item)
            json_object_set_new(out, key, with_lists(json_incref(item)));
    }
    json_decref(value);
    return out;
}

/* Lightning's hyper-parameters as a tree: a torch.save file has an object for each value, named by
 * its path ("a.b.c"). Gives a reference; NULL: none. */
static json_t *tree_of_objects(const struct s2s_ckpt *ckpt, const char *prefix)
{
    json_t *root = NULL;
    for (size_t i = 0; i < ckpt->n_objects; i++) {
        const struct s2s_ckpt_object *object = &ckpt->objects[i];
        if (!s2s_starts_with(object->name, prefix) || !object->value)
            continue;
        root = root ? root : json_object();
        json_t *at = root;
        const char *key = object->name + strlen(prefix);
        for (size_t len; key[len = strcspn(key, ".")] && json_is_object(at); key += len + 1) {
            json_t *next = json_object_getn(at, key, len);
            if (!next)
                json_object_setn_new(at, key, len, next = json_object());
            at = next;
        }
        if (json_is_object(at))
            json_object_set(at, key, object->value);
    }
    return root ? with_lists(root) : NULL;
}

int ckpt_hf_nemo_model(json_t **model, const struct s2s_ckpt *ckpt, const json_t *config,
                       struct s2s_error *err)
{
    const json_t *found = json_object_get(ckpt->common, "model_config");
    if (json_object_get(config, "perception"))
        found = config;
    *model = found ? json_incref((json_t *)found) : tree_of_objects(ckpt, "hyper_parameters.cfg.");
    return *model ? 0 : ckpt_read_json(model, ckpt, "config.json", err);
}

/* Size of an axis of a target; 0: no such target. */
static int64_t size_of(const struct s2s_ckpt_plan *plan, const char *name, int axis)
{
    const struct s2s_ckpt_target *target = s2s_ckpt_plan_find(plan, name);
    return target && axis < target->n_dims ? s2s_ckpt_target_shape(target)[axis] : 0;
}

/* Parses a tokenizer.json for its added tokens. A vocabulary may contain U+0000, which jansson
 * rejects in a key, so it is replaced. */
static json_t *parse_tokenizer(const struct ckpt_side_file *file)
{
    char *text = s2s_xstrndup(file->bytes, file->len);
    for (char *at = text; (at = strstr(at, "\\u0000")) != NULL;)
        at[5] = '1';
    json_t *root = json_loads(text, 0, NULL);
    free(text);
    return root;
}

/* The id of the audio placeholder token, from the tokenizer; -1: unknown. */
static int64_t placeholder_id(const struct s2s_hf_output *out, const char *tag)
{
    const struct ckpt_side_file *file = ckpt_side_find(&out->files, "llm/tokenizer.json");
    json_t *root = tag && file ? parse_tokenizer(file) : NULL, *token;
    int64_t id = -1;
    size_t k;
    json_array_foreach(json_object_get(root, "added_tokens"), k, token)
    {
        const char *content = json_string_value(json_object_get(token, "content"));
        if (content && strcmp(content, tag) == 0)
            id = json_integer_value(json_object_get(token, "id"));
    }
    json_decref(root);
    return id;
}

static void add_composite_config(struct s2s_hf_output *out, const json_t *model)
{
    const struct s2s_ckpt_plan *proj = out->n_parts > 2 ? &out->parts[2].plan : NULL;
    const json_t *tag = json_object_get(model, "audio_locator_tag");
    json_t *config =
        json_pack("{s:s, s:s, s:s}", "model_type", "salm", "encoder", "encoder", "llm", "llm");
    if (proj)
        json_object_set_new(config, "projection",
                            json_pack("{s:I, s:I, s:b}", "in",
                                      (json_int_t)size_of(proj, "proj.weight", 1), "out",
                                      (json_int_t)size_of(proj, "proj.weight", 0), "bias",
                                      size_of(proj, "proj.bias", 0) > 0));
    const int64_t id = placeholder_id(out, json_string_value(tag));
    if (json_is_string(tag))
        json_object_set(config, "audio_locator_tag", (json_t *)tag);
    if (id >= 0)
        json_object_set_new(config, "audio_locator_token_id", json_integer(id));
    char *text = s2s_ckpt_config_text(config);
    ckpt_side_add_text(&out->files, "config.json", text);
    free(text);
    json_decref(config);
}

/* Adds a file of NeMo's folder, if it exists. */
static int take_file(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt, const char *from,
                     const char *to, struct s2s_error *err)
{
    if (ckpt->dir_fd < 0 || !s2s_is_there(ckpt->dir_fd, from))
        return 0;
    int rc = ckpt_side_take(&out->files, ckpt->dir_fd, from, to, err);
    return rc < 0 ? rc : 0;
}

/* Adds the language model's configuration, and its tokenizer, which NeMo keeps in the top folder.
 */
static int take_llm_files(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt,
                          struct s2s_error *err)
{
    static const char *const names[] = {"generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "tokenizer.model",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "chat_template.jinja",
                                        "vocab.json",
                                        "merges.txt"};
    int rc = take_file(out, ckpt, BACKBONE "config.json", "llm/config.json", err);
    for (size_t i = 0; i < sizeof names / sizeof *names && rc == 0; i++) {
        char *inner = s2s_xasprintf(BACKBONE "%s", names[i]);
        char *to = s2s_xasprintf("llm/%s", names[i]);
        rc = take_file(out, ckpt, inner, to, err);
        if (rc == 0)
            rc = take_file(out, ckpt, names[i], to, err);
        free(inner);
        free(to);
    }
    return rc;
}

/* Makes the configuration of a language model that Megatron saved from its arguments. The family is
 * detected from the names. */
static void add_llm_config(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt)
{
    const struct s2s_ckpt_plan *plan = &out->parts[1].plan;
    const char *family = ckpt_config_family(plan, "");
    if (ckpt_side_find(&out->files, "llm/config.json"))
        return;
    char *config = family ? ckpt_args_config(family, ckpt_args(ckpt), plan) : NULL;
    if (config)
        ckpt_side_add_text(&out->files, "llm/config.json", config);
    free(config);
}

/* Warns of missing configurations. */
static void say_absent(const struct s2s_hf_output *out)
{
    static const char *const wanted[] = {"encoder/config.json", "llm/config.json"};
    for (size_t k = 0; k < 2; k++)
        if (!ckpt_side_find(&out->files, wanted[k]))
            s2s_warn("ckpt", "%s is not written: nothing here says it (%s)", wanted[k],
                     k ? "copy the language model's config.json there"
                       : "--config takes NeMo's configuration with its \"perception\"");
}

/* Warns of a module between encoder and projection, which a composite has no place for. */
static void say_adapter(const json_t *model)
{
    const json_t *adapter =
        json_object_get(json_object_get(model, "perception"), "modality_adapter");
    const char *class = json_string_value(json_object_get(adapter, "_target_"));
    if (class && !s2s_ends_with(class, "IdentityConnector"))
        s2s_warn("ckpt",
                 "perception.modality_adapter is %s, which is left out: encoder/, projection and "
                 "llm/ compute something else without it",
                 class);
}

int ckpt_hf_salm_files(struct s2s_hf_output *out, struct s2s_ckpt *ckpt,
                       const struct s2s_hf_options *options, struct s2s_error *err)
{
    struct ckpt_nemo_texts texts = {.config = NULL};
    json_t *model;
    int rc = ckpt_hf_nemo_model(&model, ckpt, options->config, err);
    if (rc == 0)
        rc = ckpt_nemo_config(&texts, ckpt, model, "fastconformer_encoder", false, err);
    if (rc == 0 && texts.config)
        ckpt_side_add_text(&out->files, "encoder/config.json", texts.config);
    if (rc == 0 && texts.features)
        ckpt_side_add_text(&out->files, "encoder/preprocessor_config.json", texts.features);
    if (rc == 0)
        rc = take_llm_files(out, ckpt, err);
    if (rc == 0) {
        add_llm_config(out, ckpt);
        add_composite_config(out, model);
        say_adapter(model);
        say_absent(out);
    }
    free(texts.config);
    free(texts.features);
    json_decref(model);
    return rc;
}
