/* Plans the names and boxes of a Megatron checkpoint from a Hugging Face folder. */
#include "lib/ckpt/write/to_dist.h"

#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/model.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/to_hf_internal.h"

/* ---- extra states ---- */

/* Megatron-Core's models require extra states beside their weights: its own linear layers
 * have one each, and so do Transformer Engine's modules, including norms and attention.
 * torch.distributed.checkpoint rejects a torch_dist that lacks one; superfluous ones do no harm.
 * All are None, as nothing is computed in FP8 yet. */

/* Suffixes of modules with a weight and an extra state. */
static const char *const modules[] = {"attention.linear_qkv",
                                      "attention.linear_q",
                                      "attention.linear_kv",
                                      "attention.linear_q_proj",
                                      "attention.linear_q_down_proj",
                                      "attention.linear_q_up_proj",
                                      "attention.linear_kv_down_proj",
                                      "attention.linear_kv_up_proj",
                                      "attention.linear_proj",
                                      "linear_fc1",
                                      "linear_fc2",
                                      "mixer.in_proj",
                                      "mixer.out_proj",
                                      "fc1_latent_proj",
                                      "fc2_latent_proj",
                                      "eh_proj",
                                      "embedder",
                                      "video_embedder",
                                      "input_layernorm",
                                      "pre_mlp_layernorm",
                                      "q_layernorm",
                                      "k_layernorm",
                                      "kv_layernorm",
                                      "post_layernorm",
                                      "final_layernorm",
                                      "final_norm",
                                      "enorm",
                                      "hnorm"};

/* Extra states of other modules, which have no weight or are identified by this one's: `of` is the
 * suffix of a module with a weight, `wanted` the name of the other. */
static const struct {
    const char *of, *wanted;
} others[] = {
    {"attention.linear_proj", "core_attention"},
    /* GPTModel deletes that of its output layer again, a hybrid model does not */
    {"decoder.final_norm", "output_layer"},
};

/* Adds an extra state for each layer on the first axis of a stacked weight, and for each expert:
 * KEY/shard_3.0_32.8. Takes key. */
static int add_states(struct s2s_ckpt *ckpt, const struct s2s_ckpt_target *t, char *key,
                      struct s2s_error *err)
{
    const char *layers = strstr(key, "layers."), *digits = "0123456789";
    const bool stacked = layers && !strchr(digits, layers[strlen("layers.")]);
    const bool expert = strstr(key, "experts.experts.") != NULL;
    const int64_t n_layers = stacked && t->n_dims > 0 ? s2s_ckpt_target_shape(t)[0] : 1;
    const int64_t n_experts = expert && t->n_dims > stacked ? s2s_ckpt_target_shape(t)[stacked] : 1;
    int rc = 0;
    for (int64_t i = 0; i < n_layers * n_experts && rc == 0; i++) {
        struct s2s_ckpt_object *object;
        char shard[100];
        if (stacked && expert)
            snprintf(shard, sizeof shard, "%lld.%lld_%lld.%lld", (long long)(i / n_experts),
                     (long long)(i % n_experts), (long long)n_layers, (long long)n_experts);
        else
            snprintf(shard, sizeof shard, "%lld_%lld", (long long)i,
                     (long long)(n_layers * n_experts));
        char *name = s2s_xasprintf("%s._extra_state/shard_%s", key, shard);
        rc = ckpt_add_object(ckpt, &object, name, strlen(name), err);
        free(name);
        if (rc == 0)
            object->value = json_null();
    }
    free(key);
    return rc;
}

/* Length of "decoder.layers.0.mlp.linear_fc1" in the name of a weight, which ends with ".weight" or
 * ".weight.z"; 0: not a weight. */
static size_t module_len(const char *name)
{
    static const char *const ends[] = {".weight", ".weight.z"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (s2s_ends_with(name, ends[i]))
            return strlen(name) - strlen(ends[i]);
    return 0;
}

/* Does the text of this length end with `with`, after a dot or, for "attention.", within a word
 * such as "self_attention."? */
static bool ends(const char *text, size_t len, const char *with)
{
    const size_t n = strlen(with);
    if (len < n || memcmp(text + len - n, with, n) != 0)
        return false;
    return len == n || text[len - n - 1] == '.' || s2s_starts_with(with, "attention.");
}

/* Are the names Megatron's? Other models of NeMo have norms with the same names as Megatron's. */
static bool is_megatron(const struct s2s_ckpt_plan *plan)
{
    for (size_t i = 0; i < plan->n_targets; i++)
        if (strstr(s2s_ckpt_target_name(&plan->targets[i]), "attention.linear_") ||
            strstr(s2s_ckpt_target_name(&plan->targets[i]), "mixer.in_proj.") ||
            strstr(s2s_ckpt_target_name(&plan->targets[i]), ".linear_fc1."))
            return true;
    return false;
}

/* Adds to plan->source, as empty objects, the extra states that Megatron-Core requires when it
 * loads the weights of the plan. */
static int add_extra_states(struct s2s_ckpt_plan *plan, struct s2s_error *err)
{
    static const char decoder[] = "decoder.";
    int rc = 0;
    const size_t n_targets = is_megatron(plan) ? plan->n_targets : 0;
    for (size_t i = 0; i < n_targets && rc == 0; i++) {
        const struct s2s_ckpt_target *t = &plan->targets[i];
        size_t len = module_len(s2s_ckpt_target_name(t)), parent = len;
        while (parent > 0 && s2s_ckpt_target_name(t)[parent - 1] != '.')
            parent--;
        for (size_t k = 0; len && k < sizeof modules / sizeof *modules && rc == 0; k++)
            if (ends(s2s_ckpt_target_name(t), len, modules[k]))
                rc = add_states(plan->source, t, s2s_xstrndup(s2s_ckpt_target_name(t), len), err);
        for (size_t k = 0; len && k < sizeof others / sizeof *others && rc == 0; k++) {
            /* the output layer is a sibling of the decoder that this norm is in */
            const size_t up = s2s_starts_with(others[k].of, decoder) ? strlen(decoder) : 0;
            if (ends(s2s_ckpt_target_name(t), len, others[k].of))
                rc = add_states(plan->source, t,
                                s2s_xasprintf("%.*s%s", (int)(parent - up), s2s_ckpt_target_name(t),
                                              others[k].wanted),
                                err);
        }
    }
    return rc;
}

/* ---- all of it ---- */

/* The model's configuration; a speech model has that of its language model in llm/. */
static int find_config(json_t **config, struct s2s_ckpt *ckpt, struct s2s_error *err)
{
    const char *name =
        strcmp(ckpt->format, "fsdp_rank") == 0 ? CKPT_FSDP_FILES "/config.json" : "config.json";
    const bool has_llm = ckpt->part ? strcmp(ckpt->part, "llm") == 0 : ckpt_hf_is_composite(ckpt);
    json_t *words = NULL;
    int rc = s2s_hf_read_json(config, ckpt, name, err);
    if (rc == 0 && has_llm && ckpt_text_config(*config) == *config)
        rc = s2s_hf_read_json(&words, ckpt, "llm/config.json", err);
    if (words) {
        *config = *config ? *config : json_object();
        json_object_set_new(*config, "llm_config", words);
    }
    return rc;
}

int s2s_megatron_prepare(struct s2s_ckpt_plan *plan, json_t **common,
                         const struct ckpt_map_request *request, struct ckpt_map_result *result,
                         struct s2s_error *err)
{
    struct ckpt_map_request full = *request;
    json_t *config = NULL;
    int rc = 0;
    *common = NULL;
    if (ckpt_map_is_megatron(request->ckpt)) {
        rc = s2s_error_set(err, S2S_E_ARG, "the names are Megatron's already");
        return s2s_error_hint(err, rc, "without --map they are kept");
    }
    if (!request->config)
        rc = find_config(&config, request->ckpt, err);
    full.config = config ? config : request->config;
    plan->source = request->ckpt;
    if (rc == 0)
        rc = ckpt_map_to_megatron(plan, &full, result, err);
    if (rc == 0)
        rc = add_extra_states(plan, err);
    if (rc == 0)
        rc = s2s_hf_common(common, request->ckpt, false, err);
    if (rc == 0) {
        json_object_set_new(*common, "args", ckpt_config_args(full.config, plan));
        /* there is no optimizer: only what determines the tensors' names is set */
        json_t *metadata = s2s_ckpt_layers_metadata(NULL, request->layers);
        json_object_set_new(*common, "content_metadata",
                            metadata ? metadata : json_pack("{s:b}", "singleton_local_shards", 0));
    }
    json_decref(config);
    return rc;
}
