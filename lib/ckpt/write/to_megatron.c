/* Plans the names and boxes of a Megatron checkpoint from a Hugging Face folder. */
#include "lib/ckpt/write/to_megatron.h"

#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/map/layers.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/to_hf_internal.h"

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
        rc = ckpt_add_extra_states(plan, err);
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
