/* NeMo-RL: what concerns the model, precision and memory. '@' is the section of the trained model.
 */
#include "lib/rules/rules_internal.h"

#include <string.h>

#define MEG "@.megatron_cfg."
#define ROPE "@.hf_config_overrides.rope_scaling."

static const struct rules_map map[] = {
    {"te", "te_version", "text", "?"},
    {"grpo", "grpo", "any", ""},
    {"algorithm", "grpo sft dpo distillation rm ppo gdpo on_policy_distillation", "any", ""},
    {"run_length", MEG "train_iters grpo.max_num_steps sft.max_num_steps dpo.max_num_steps", "int",
     ""},
    {"decay_style", MEG "scheduler.lr_decay_style", "text", ""},
    {"train_iters", MEG "train_iters", "any", ""},
    {"router_balancing", MEG "moe_router_load_balancing_type", "any", ""},
    {"router_groups", MEG "moe_router_num_groups", "int", ""},
    {"router_group_topk", MEG "moe_router_group_topk", "int", ""},
    {"permute_fusion", MEG "moe_permute_fusion", "bool", "false"},
    {"grouped_gemm", MEG "moe_grouped_gemm", "bool", "?"},
    {"shared_overlap", MEG "moe_shared_expert_overlap", "bool", "false"},
    {"recompute_modules", MEG "recompute_modules", "any", ""},
    {"offload_acts", MEG "fine_grained_activation_offloading", "bool", "false"},
    {"offload_modules", MEG "offload_modules", "any", ""},
    {"graph_impl", MEG "cuda_graph_impl", "text", "none"},
    {"graph_modules", MEG "cuda_graph_modules", "any", ""},
    {"fp8_on", MEG "fp8_cfg.enabled", "bool", "false"},
    {"fp8_recipe", MEG "fp8_cfg.fp8_recipe", "text", ""},
    {"hybridep_domain",
     MEG "hybridep_num_ranks_per_nvlink_domain " MEG
         "env_vars.NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN",
     "any", ""},
    {"hybridep_mnnvl", MEG "hybridep_use_mnnvl " MEG "env_vars.USE_MNNVL", "any", ""},
    {"offload_v1", MEG "env_vars.NVTE_CPU_OFFLOAD_V1", "text", ""},
    {"nvte_flash", MEG "env_vars.NVTE_FLASH_ATTN", "text", ""},
    {"enable_deepep", "@.dtensor_cfg.automodel_kwargs.backend.enable_deepep", "any", ""},
    {"kv_cache", "@.generation.vllm_cfg.kv_cache_dtype", "text", "auto"},
    {"grads_dtype", MEG "optimizer.main_grads_dtype", "text", ""},
    {"main_dtype", MEG "optimizer.main_params_dtype", "text", ""},
    {"avg_dtype", MEG "optimizer.exp_avg_dtype", "text", ""},
    {"avg_sq_dtype", MEG "optimizer.exp_avg_sq_dtype", "text", ""},
    {"wd_style", MEG "scheduler.weight_decay_incr_style", "text", "constant"},
    {"wd_start", MEG "scheduler.start_weight_decay", "number", ""},
    {"wd_end", MEG "scheduler.end_weight_decay", "number", ""},
    {"rope_factor", ROPE "factor", "number", ""},
    {"rope_original", ROPE "original_max_position_embeddings", "number", ""},
    {"mtp_layers", MEG "mtp_num_layers", "int", ""},
    {0},
};

/* The first field that YaRN on the Megatron backend needs and does not have; null if none. */
static void lower_yarn(struct rules_check *check)
{
    static const char *const fields[] = {
        "factor",   "rope_theta",    "original_max_position_embeddings",
        "truncate", "beta_fast",     "beta_slow",
        "mscale",   "mscale_all_dim"};
    char *path = rules_keep(&check->facts,
                            s2s_xasprintf("%s.hf_config_overrides.rope_scaling", check->section));
    const struct s2s_conf *scaling = s2s_conf_find(check->conf, path);
    struct rules_value missing = check->incomplete ? rules_unknown() : rules_null();
    for (size_t i = 0; scaling && !check->incomplete && i < sizeof fields / sizeof *fields; i++)
        if (missing.type == RULES_NULL && !s2s_conf_key(scaling, fields[i]))
            missing = rules_text(fields[i]);
    rules_fact_set(&check->facts, "yarn_missing", missing);
}

void rules_lower_rl_run(struct rules_check *check)
{
    static const struct rules_derived derived[] = {
        {"fp8_block", "if(fp8_recipe == 'mxfp8', 32, if(fp8_recipe == 'blockwise', 128, 16))"},
        {"states_strange", "stranger(grads_dtype, 'float32 torch.float32 fp32') != null or "
                           "stranger(main_dtype, 'float32 torch.float32 fp32') != null or "
                           "stranger(avg_dtype, 'float32 torch.float32 fp32') != null or "
                           "stranger(avg_sq_dtype, 'float32 torch.float32 fp32') != null"},
        {0},
    };
    rules_lower_map(check, map);
    rules_lower_derived(check, derived);
    lower_yarn(check);
    rules_lower_nemotron_h(check, rules_fact_find(&check->facts, "model_name")->value);
}
