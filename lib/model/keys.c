/* Holds the keys of a config against the table of its class. */
#include "lib/model/keys.h"

#include <stdbool.h>
#include <string.h>

#include "lib/base/error.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/conf/conf.h"

/* Of transformers' base class and of the tools that write configs. */
static const char *const quiet[] = {
    "model_type",
    "architectures",
    "auto_map",
    "transformers_version",
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "_experts_implementation",
    "torch_dtype",
    "dtype",
    "torchscript",
    "use_bfloat16",
    "use_cache",
    "return_dict",
    "return_dict_in_generate",
    "output_hidden_states",
    "output_attentions",
    "output_scores",
    "tie_last_hidden_states",
    "chunk_size_feed_forward",
    "gradient_checkpointing",
    "num_logits_to_keep",
    "logits_to_keep",
    "is_decoder",
    "is_encoder_decoder",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    "tokenizer_class",
    "prefix",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "begin_suppress_tokens",
    "suppress_tokens",
    "bad_words_ids",
    /* settings of generation that older files keep here */
    "max_length",
    "max_new_tokens",
    "min_length",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "diversity_penalty",
    "repetition_penalty",
    "encoder_no_repeat_ngram_size",
    "no_repeat_ngram_size",
    "length_penalty",
    "early_stopping",
    "exponential_decay_length_penalty",
    "remove_invalid_values",
    "unsloth_version",
    "unsloth_fixed",
};

/* Of keys that say how something is computed. */
static const char *const words[] = {
    "act",        "attn",   "attention", "bias",     "cap",    "clip",   "cross",    "drop",
    "embed",      "expert", "gating",    "group",    "head",   "hidden", "kernel",   "latent",
    "layer",      "logit",  "loop",      "lora",     "mask",   "mlp",    "moe",      "mtp",
    "multiplier", "norm",   "pattern",   "position", "pruned", "quant",  "residual", "rope",
    "rotary",     "router", "scal",      "shared",   "skip",   "soft",   "sparse",   "theta",
    "tie",        "topk",   "window",    NULL};

static bool is_off(const struct s2s_conf *node)
{
    static const char *const off[] = {"false", "0", "0.0", "null", "", NULL};
    if (node->kind == S2S_CONF_NULL)
        return true;
    if (node->kind == S2S_CONF_LIST || node->kind == S2S_CONF_MAP)
        return node->n_items == 0;
    for (int i = 0; off[i]; i++)
        if (strcmp(node->text, off[i]) == 0)
            return true;
    return false;
}

static const struct model_key *find_key(const struct model_keys *keys, const char *name)
{
    for (size_t i = 0; i < keys->n; i++)
        if ((keys->list[i].families & keys->family) && strcmp(keys->list[i].key, name) == 0)
            return &keys->list[i];
    return NULL;
}

/* What the family knows of the mathematics, as a hint. */
static int hint_known(const struct model_keys *keys, struct s2s_error *err, int rc)
{
    struct s2s_buf known = S2S_BUF_INIT;
    for (size_t i = 0; i < keys->n; i++)
        if ((keys->list[i].families & keys->family) && keys->list[i].use <= MODEL_KEY_READ)
            s2s_buf_printf(&known, "%s%s", known.len ? ", " : "", keys->list[i].key);
    s2s_error_hint(err, rc, "%s knows %s; take the key away if the weights do without it",
                   keys->name, known.data);
    s2s_buf_release(&known);
    return rc;
}

static bool sounds_of_mathematics(const char *name)
{
    for (int w = 0; words[w]; w++)
        if (strstr(name, words[w]))
            return true;
    return false;
}

static int check_key(const struct s2s_conf *node, const struct model_keys *keys,
                     struct s2s_buf *unknown, struct s2s_error *err)
{
    const struct model_key *key = find_key(keys, node->key);
    for (size_t i = 0; !key && i < sizeof quiet / sizeof *quiet; i++)
        if (strcmp(node->key, quiet[i]) == 0)
            return 0;
    if (is_off(node) || (key && key->use <= MODEL_KEY_QUIET))
        return 0;
    if (key && key->use == MODEL_KEY_FIXED && node->text && strcmp(node->text, key->value) == 0)
        return 0;
    if (key)
        return s2s_conf_error(err, S2S_E_UNSUPPORTED, node, "%s",
                              key->reason ? key->reason : "it is not implemented");
    if (sounds_of_mathematics(node->key))
        return hint_known(keys, err,
                          s2s_conf_error(err, S2S_E_UNSUPPORTED, node,
                                         "not a key of %s that is known, and it may change what is "
                                         "computed",
                                         keys->name));
    s2s_buf_printf(unknown, "%s%s", unknown->len ? ", " : "", node->key);
    return 0;
}

/* All that is absent at once. */
static int check_needed(const struct s2s_conf *conf, const struct model_keys *keys,
                        struct s2s_error *err)
{
    struct s2s_buf absent = S2S_BUF_INIT;
    int rc = 0;
    for (size_t i = 0; i < keys->n; i++) {
        const struct model_key *key = &keys->list[i];
        const struct s2s_conf *node = s2s_conf_key(conf, key->key);
        if ((key->families & keys->family) && key->use == MODEL_KEY_NEEDED &&
            (!node || node->kind == S2S_CONF_NULL))
            s2s_buf_printf(&absent, "%s%s", absent.len ? ", " : "", key->key);
    }
    if (absent.len)
        rc = s2s_conf_error(err, S2S_E_NOTFOUND, conf, "%s needs %s", keys->name, absent.data);
    s2s_buf_release(&absent);
    return rc;
}

int model_check_keys(const struct s2s_conf *conf, const struct model_keys *keys,
                     struct s2s_error *err)
{
    struct s2s_buf unknown = S2S_BUF_INIT;
    int rc = check_needed(conf, keys, err);
    for (size_t i = 0; rc == 0 && i < conf->n_items; i++)
        rc = check_key(conf->items[i], keys, &unknown, err);
    if (rc == 0 && unknown.len)
        s2s_warn("model", "%s: keys that are not known, and not read: %s",
                 conf->place.source ? conf->place.source->name : "config", unknown.data);
    s2s_buf_release(&unknown);
    return rc;
}
