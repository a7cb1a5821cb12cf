#include "lib/ckpt/to_megatron.h"

#include <unistd.h>

#include "lib/base/base.h"
#include "lib/ckpt/args_config.h"
#include "lib/ckpt/layers.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/to_hf.h"

enum { MAX_CONFIG = 16 << 20 };

static int read_config(json_t **config, const struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    char *text;
    size_t len;
    json_error_t at;
    *config = NULL;
    if (ckpt->dir_fd < 0 || faccessat(ckpt->dir_fd, "config.json", F_OK, 0) < 0)
        return 0;
    int rc = ckpt_slurp(ckpt->dir_fd, "config.json", MAX_CONFIG, &text, &len, err);
    if (rc < 0)
        return rc;
    *config = json_loadb(text, len, 0, &at);
    free(text);
    return *config ? 0
                   : s2s_error_set(err, S2S_E_FORMAT, "%s/config.json:%d: %s", ckpt->path, at.line,
                                   at.text);
}

/* ---- the arguments that Megatron's scripts read back (--use-checkpoint-args) ---- */

static void set_activation(json_t *args, const json_t *config)
{
    const char *name = json_string_value(json_object_get(config, "hidden_act"));
    if (!name)
        name = json_string_value(json_object_get(config, "mlp_hidden_act"));
    if (!name)
        return;
    bool squared = strcmp(name, "relu2") == 0;
    json_object_set_new(args, "swiglu", json_boolean(strcmp(name, "silu") == 0));
    json_object_set_new(args, "squared_relu", json_boolean(squared));
}

static json_t *make_args(const json_t *config, const struct s2s_ckpt_plan *plan)
{
    json_t *args = json_object(), *value;
    const json_t *text = json_object_get(config, "text_config");
    text = text ? text : json_object_get(config, "llm_config");
    text = text ? text : config;
    for (const struct ckpt_arg_key *key = ckpt_arg_keys; key->config; key++)
        if ((value = json_object_get(text, key->config)) && !json_is_null(value))
            json_object_set(args, key->args, value);
    int64_t heads = json_integer_value(json_object_get(args, "num_attention_heads"));
    int64_t groups = json_integer_value(json_object_get(args, "num_query_groups"));
    int64_t hidden = json_integer_value(json_object_get(args, "hidden_size"));
    if (heads > 0)
        json_object_set_new(args, "group_query_attention", json_boolean(groups && groups != heads));
    if (heads > 0 && hidden % heads == 0 && !json_object_get(args, "kv_channels"))
        json_object_set_new(args, "kv_channels", json_integer(hidden / heads));
    set_activation(args, text);
    bool output = false;
    for (size_t i = 0; i < plan->n_targets; i++) {
        const struct s2s_ckpt_target *t = &plan->targets[i];
        bool words = strstr(t->name, "word_embeddings.weight") != NULL;
        if (words && t->n_dims == 2) {
            json_object_set_new(args, "padded_vocab_size", json_integer(t->shape[0]));
            /* without it nothing would say which rows are padding */
            if (!json_object_get(args, "vocab_size"))
                json_object_set_new(args, "vocab_size", json_integer(t->pieces[0].size[0]));
        }
        output |= strstr(t->name, "output_layer.weight") != NULL;
    }
    json_object_set_new(args, "untie_embeddings_and_output_weights", json_boolean(output));
    return args;
}

int s2s_megatron_prepare(struct s2s_ckpt_plan *plan, json_t **common,
                         const struct ckpt_map_request *request, struct ckpt_map_result *result,
                         struct s2s_error *err)
{
    struct ckpt_map_request full = *request;
    json_t *config = NULL;
    int rc = 0;
    *common = NULL;
    if (ckpt_map_wanted(request->ckpt)) {
        rc = s2s_error_set(err, S2S_E_ARG, "the names are Megatron's already");
        return s2s_error_hint(err, rc, "without --map they are kept");
    }
    if (!request->config)
        rc = read_config(&config, request->ckpt, err);
    full.config = config ? config : request->config;
    plan->source = request->ckpt;
    if (rc == 0)
        rc = ckpt_map_to_megatron(plan, &full, result, err);
    if (rc == 0)
        rc = s2s_hf_common(common, request->ckpt, err);
    if (rc == 0) {
        json_object_set_new(*common, "args", make_args(full.config, plan));
        /* no optimizer is here: what the tensors' names follow is all that is said */
        json_t *metadata = s2s_ckpt_layers_metadata(NULL, request->layers);
        json_object_set_new(*common, "content_metadata",
                            metadata ? metadata : json_pack("{s:b}", "singleton_local_shards", 0));
    }
    json_decref(config);
    return rc;
}
