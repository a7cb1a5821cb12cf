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
        rc = ckpt_add_extra_states(plan, err);
    if (rc == 0)
        rc = s2s_hf_common(common, request->ckpt, err);
    if (rc == 0) {
        json_object_set_new(*common, "args", ckpt_config_args(full.config, plan));
        /* no optimizer is here: what the tensors' names follow is all that is said */
        json_t *metadata = s2s_ckpt_layers_metadata(NULL, request->layers);
        json_object_set_new(*common, "content_metadata",
                            metadata ? metadata : json_pack("{s:b}", "singleton_local_shards", 0));
    }
    json_decref(config);
    return rc;
}
