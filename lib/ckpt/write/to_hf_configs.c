/* Updates config.json to the weights as written. */
#include "lib/base/base.h"
#include "lib/ckpt/box.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/names.h"
#include "lib/ckpt/pickle/torch_dtype.h"
#include "lib/ckpt/write/to_hf_internal.h"

/* Sets the dtype of the weights, if config.json has one. Returns whether it changed. dtype 0:
 * leaves it. */
static bool set_dtype(json_t *config, enum s2s_dtype dtype)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    bool changed = false;
    for (int k = 0; k < 2 && dtype; k++) {
        const char *said = json_string_value(json_object_get(config, keys[k]));
        if (!said || strcmp(said, ckpt_torch_dtype(dtype)) == 0)
            continue;
        json_object_set_new(config, keys[k], json_string(ckpt_torch_dtype(dtype)));
        changed = true;
    }
    return changed;
}

/* The dtype of the largest floating-point tensor: norms and the like may be wider. */
static enum s2s_dtype weights_dtype(const struct s2s_ckpt_plan *plan)
{
    enum s2s_dtype found = S2S_DTYPE_NONE;
    int64_t most = 0;
    for (size_t i = 0; i < plan->n_targets; i++) {
        const struct s2s_ckpt_target *target = &plan->targets[i];
        const int64_t numel = ckpt_box_numel(s2s_ckpt_target_shape(target), target->n_dims);
        if (s2s_dtype_is_float(target->dtype) && numel > most) {
            most = numel;
            found = target->dtype;
        }
    }
    return found;
}

/* The dtype for the config.json at this path; NONE: no weights are beside it. */
static enum s2s_dtype dtype_beside(const struct s2s_hf_output *out, const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t len = slash ? (size_t)(slash - path) : 0;
    for (size_t i = 0; i < out->n_parts; i++)
        if (!out->parts[i].file && strlen(out->parts[i].folder) == len &&
            strncmp(out->parts[i].folder, path, len) == 0)
            return weights_dtype(&out->parts[i].plan);
    return S2S_DTYPE_NONE;
}

/* Sets tie_word_embeddings and vocab_size, also of the text model inside. rows: 0, or of the
 * embedding matrix if padding rows were kept, which are vocabulary to transformers. Returns whether
 * it changed. */
static bool set_words(json_t *config, enum ckpt_tie tie, int64_t rows)
{
    static const char *const inner[] = {"text_config", "llm_config"};
    const json_t *said = json_object_get(config, "vocab_size");
    const json_t *tied = json_object_get(config, "tie_word_embeddings");
    const bool is_whole = !json_is_object(json_object_get(config, inner[0])) &&
                          !json_is_object(json_object_get(config, inner[1]));
    /* if it is absent, the default of the class applies */
    const bool ties = tie != CKPT_TIE_AS_SAID &&
                      (json_is_boolean(tied) ? json_is_true(tied) != (tie == CKPT_TIED) : is_whole);
    const bool grows = rows > 0 && json_is_integer(said) && json_integer_value(said) < rows;
    bool changed = ties || grows;
    if (ties)
        json_object_set_new(config, "tie_word_embeddings", json_boolean(tie == CKPT_TIED));
    if (grows)
        json_object_set_new(config, "vocab_size", json_integer(rows));
    for (int k = 0; k < 2; k++)
        if (json_is_object(json_object_get(config, inner[k])))
            changed |= set_words(json_object_get(config, inner[k]), tie, rows);
    return changed;
}

/* Removes quantization_config: mapped weights are not quantised, and readers would require scales.
 * Returns whether there was one. */
static bool drop_quantization(json_t *config)
{
    static const char key[] = "quantization_config";
    const char *name;
    json_t *inner;
    bool there = json_is_object(json_object_get(config, key));
    json_object_foreach(config, name, inner)
    {
        there |= strcmp(name, key) != 0 && drop_quantization(inner);
    }
    if (json_is_object(json_object_get(config, key)))
        json_object_del(config, key);
    return there;
}

/* Rows of the embedding matrix; 0: none. */
static int64_t vocab_rows(const struct s2s_hf_output *out)
{
    const struct s2s_ckpt_plan *plan = &out->parts[0].plan;
    for (size_t i = 0; i < plan->n_targets; i++)
        if (s2s_ends_with(s2s_ckpt_target_name(&plan->targets[i]), ".embed_tokens.weight") ||
            s2s_ends_with(s2s_ckpt_target_name(&plan->targets[i]), "backbone.embeddings.weight"))
            return s2s_ckpt_target_shape(&plan->targets[i])[0];
    return 0;
}

void ckpt_hf_follow_in_configs(struct s2s_hf_output *out, const struct s2s_ckpt *ckpt,
                               const struct s2s_hf_options *options)
{
    /* in a copy of a Hugging Face folder the source's value is kept */
    const bool is_own = ckpt_has_word("hf hf_bin dcp_hf safetensors", ckpt->format);
    const bool is_mapped = *out->map.family;
    const enum s2s_dtype dtype = options->dtype;
    for (size_t i = 0; i < out->files.n; i++) {
        struct ckpt_side_file *file = &out->files.v[i];
        json_t *root = s2s_has_tail(file->path, '/', "config.json")
                           ? s2s_ckpt_parse_config(file->bytes, file->len, 0, NULL)
                           : NULL;
        if (!root)
            continue;
        bool changed = set_dtype(
            root, dtype || (is_own && !is_mapped) ? dtype : dtype_beside(out, file->path));
        changed |= set_words(root, out->map.tie,
                             options->keep_vocab_padding && is_mapped ? vocab_rows(out) : 0);
        if (is_mapped && drop_quantization(root)) {
            s2s_warn("ckpt", "%s: quantization_config is left out: the weights are not quantised",
                     file->path);
            changed = true;
        }
        if (changed) {
            free(file->bytes);
            file->bytes = s2s_ckpt_config_text(root);
            file->len = strlen(file->bytes);
        }
        json_decref(root);
    }
}
