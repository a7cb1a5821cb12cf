/* What config.json says of the weights follows what became of them. */
#include "lib/base/base.h"
#include "lib/ckpt/pickle/torch_dtype.h"
#include "lib/ckpt/write/to_hf_internal.h"

/* config.json says which dtype the weights have: it must follow a cast (dtype 0: there is none) */
static bool set_dtype(json_t *config, enum s2s_dtype dtype)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    bool changed = false;
    for (int k = 0; k < 2 && dtype; k++)
        if (json_is_string(json_object_get(config, keys[k]))) {
            json_object_set_new(config, keys[k], json_string(ckpt_torch_dtype(dtype)));
            changed = true;
        }
    return changed;
}

/* the words of the output have a matrix of their own now */
static bool set_untied(json_t *config)
{
    static const char *const inner[] = {"text_config", "llm_config"};
    bool changed = json_is_true(json_object_get(config, "tie_word_embeddings"));
    if (changed)
        json_object_set_new(config, "tie_word_embeddings", json_false());
    for (int k = 0; k < 2; k++)
        if (json_is_object(json_object_get(config, inner[k])))
            changed |= set_untied(json_object_get(config, inner[k]));
    return changed;
}

/* rows past the vocabulary were kept: to transformers they are words */
static bool set_vocab(json_t *config, int64_t rows)
{
    static const char *const inner[] = {"text_config", "llm_config"};
    const json_t *said = json_object_get(config, "vocab_size");
    bool changed = json_is_integer(said) && json_integer_value(said) < rows;
    if (changed)
        json_object_set_new(config, "vocab_size", json_integer(rows));
    for (int k = 0; k < 2; k++)
        if (json_is_object(json_object_get(config, inner[k])))
            changed |= set_vocab(json_object_get(config, inner[k]), rows);
    return changed;
}

/* rows of the matrix of words; 0: there is none */
static int64_t vocab_rows(const struct s2s_hf_output *out)
{
    const struct s2s_ckpt_plan *plan = &out->parts[0].plan;
    for (size_t i = 0; i < plan->n_targets; i++)
        if (s2s_ends_with(plan->targets[i].name, ".embed_tokens.weight") ||
            s2s_ends_with(plan->targets[i].name, "backbone.embeddings.weight"))
            return plan->targets[i].shape[0];
    return 0;
}

void ckpt_hf_follow_in_configs(struct s2s_hf_output *out, enum s2s_dtype dtype, bool untied,
                               bool padded)
{
    for (size_t i = 0; i < out->files.n; i++) {
        struct ckpt_side_file *file = &out->files.v[i];
        json_t *root =
            s2s_ends_with(file->path, "config.json") &&
                    (strlen(file->path) == 11 || s2s_ends_with(file->path, "/config.json"))
                ? json_loadb(file->bytes, file->len, 0, NULL)
                : NULL;
        bool changed = set_dtype(root, dtype);
        if (untied)
            changed |= set_untied(root);
        if (padded)
            changed |= set_vocab(root, vocab_rows(out));
        if (changed) {
            free(file->bytes);
            file->bytes = json_dumps(root, JSON_INDENT(2));
            file->len = strlen(file->bytes);
        }
        json_decref(root);
    }
}
