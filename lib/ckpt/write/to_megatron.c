#include "lib/ckpt/write/to_megatron.h"

#include "lib/base/base.h"
#include "lib/ckpt/config/args_config.h"
#include "lib/ckpt/map/layers.h"
#include "lib/ckpt/read/read.h"
#include "lib/ckpt/write/to_hf.h"

int s2s_megatron_prepare(struct s2s_ckpt_plan *plan, json_t **common,
                         const struct ckpt_map_request *request, struct ckpt_map_result *result,
                         struct s2s_error *err)
{
    struct ckpt_map_request full = *request;
    const char *name = strcmp(request->ckpt->format, "fsdp_rank") == 0 ? CKPT_FSDP_FILES
                           "/config.json"
                                                                       : "config.json";
    json_t *config = NULL;
    int rc = 0;
    *common = NULL;
    if (ckpt_map_is_megatron(request->ckpt)) {
        rc = s2s_error_set(err, S2S_E_ARG, "the names are Megatron's already");
        return s2s_error_hint(err, rc, "without --map they are kept");
    }
    if (!request->config)
        rc = ckpt_read_json(&config, request->ckpt, name, err);
    full.config = config ? config : request->config;
    plan->source = request->ckpt;
    if (rc == 0)
        rc = ckpt_map_to_megatron(plan, &full, result, err);
    if (rc == 0)
        rc = ckpt_add_extra_states(plan, err);
    if (rc == 0)
        rc = s2s_hf_common(common, request->ckpt, err);
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
