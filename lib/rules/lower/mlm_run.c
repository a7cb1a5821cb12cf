/* Megatron-LM arguments of the run: optimizer, recomputation, offload, graphs, checkpoints, data,
 * and the environment that they need. */
#include "lib/rules/rules_internal.h"

#include <string.h>

static const struct rules_map map[] = {
    {"no_gelu_fusion", "no_bias_gelu_fusion", "bool", "false"},
    {"old_hybrid", "hybrid_attention_ratio hybrid_mlp_ratio is_hybrid_model", "any", ""},
    {"warmup_init", "lr_warmup_init", "number", "0"},
    {"no_position", "no_position_embedding", "bool", "false"},
    {"limited_devices", "moe_router_topk_limited_devices", "any", ""},
    {"transformer_impl", "transformer_impl", "text", "transformer_engine"},
    {"te", "te_version", "text", "?"},
    {"torch", "torch_version", "text", "?"},
    {"heterogeneous",
     "heterogeneous_layers_config_path heterogeneous_layers_config_encoded_json "
     "language_model_type",
     "any", ""},
    {"no_rope", "no_rope_freq", "any", ""},
    {"rotary", "use_rotary_position_embeddings", "bool", "false"},
    {"rope_factor", "rotary_scaling_factor rope_scaling_factor", "number", ""},
    {"rope_original", "original_max_position_embeddings yarn_original_max_position_embeddings",
     "int", ""},
    {"rope_type", "rope_type", "text", ""},
    {"mtp_hsm", "mtp_hsm", "bool", "false"},
    {"mtp_old", "mtp_hybrid_override_pattern", "any", ""},
    {"mamba_head_dim", "mamba_head_dim", "int", "64"},
    {"mamba_state", "mamba_state_dim", "int", "128"},
    {"variable_seq", "variable_seq_lengths", "bool", "false"},
    {"permute_fusion", "moe_permute_fusion", "bool", "false"},
    {"shared_ffn", "moe_shared_expert_intermediate_size", "int", ""},
    {"single_weight", "moe_single_grouped_weight moe_single_grouped_bias", "bool", "false"},
    {"fsdp_version", "megatron_fsdp_version", "int", "1"},
    {"sharding", "data_parallel_sharding_strategy", "text", "optim_grads_params"},
    {"meta_device", "init_model_with_meta_device", "bool", "false"},
    {"pad_buckets", "ddp_pad_buckets_for_high_nccl_busbw", "bool", "false"},
    {"fp32_scatter", "ddp_reduce_scatter_with_fp32_accumulation", "bool", "false"},
    {"reuse_grads", "reuse_grad_buf_for_mxfp8_param_ag", "bool", "false"},
    {"backend", "distributed_backend", "text", "nccl"},
    {"nccl_ub", "nccl_ub", "bool", "false"},
    {"no_gloo", "disable_gloo_process_groups no_use_gloo_process_groups", "bool", "false"},
    {"reshardable", "dist_ckpt_optim_fully_reshardable", "bool", "false"},
    {"reshard_lean", "distrib_optim_fully_reshardable_mem_efficient", "bool", "false"},
    {"pg_cache", "ckpt_pg_tensors_cache_path", "any", ""},
    {"save_group", "ckpt_fully_parallel_save_process_group", "text", "dp"},
    {"load_group", "ckpt_fully_parallel_load_process_group", "text", "dp"},
    {"exit_every", "exit_interval", "int", ""},
    {"edge_bf16", "first_last_layers_bf16", "bool", "false"},
    {"first_bf16", "num_layers_at_start_in_bf16", "int", "1"},
    {"last_bf16", "num_layers_at_end_in_bf16", "int", "1"},
    {"loss_scale", "loss_scale", "number", ""},
    {"no_nan_check", "no_check_for_nan_in_loss_and_grad", "bool", "false"},
    {"deterministic", "deterministic_mode", "bool", "false"},
    {"recompute_modules", "recompute_modules", "any", ""},
    {"attention_variant", "experimental_attention_variant", "text", ""},
    {"offload_acts", "fine_grained_activation_offloading", "bool", "false"},
    {"offload_modules", "offload_modules", "any", ""},
    {"offload_layers", "cpu_offloading_num_layers", "int", "0"},
    {"external_graph", "external_cuda_graph", "bool", "false"},
    {"graph_modules", "cuda_graph_modules cuda_graph_scope", "any", ""},
    {"fim", "fim_data", "bool", "false"},
    {"fim_rate", "fim_rate", "number", "0.5"},
    {"fim_spm_rate", "fim_spm_rate", "number", "0.5"},
    {"image_tokens", "image_seq_length", "int", ""},
    {"audio_tokens", "audio_seq_length", "int", ""},
    {"nemotron_load", "load_nemotron_checkpoint", "any", ""},
    {0},
};

/* Variables of the launch as facts: --env, else the file's own block. A fact whose variable stands
 * nowhere is unknown and not set. */
void rules_lower_env(struct rules_check *check, const struct rules_env *names)
{
    for (; names->fact; names++) {
        const struct s2s_conf *node =
            check->env_vars ? s2s_conf_key(check->env_vars, names->name) : NULL;
        char *call = rules_keep(&check->facts, s2s_xasprintf("env('%s')", names->name));
        struct rules_value v = rules_eval(&check->facts, call, NULL);
        struct rules_fact *f = rules_fact_make(&check->facts, names->fact);
        f->key = names->name;
        if (v.type == RULES_NULL && node && node->text) {
            v = strchr(node->text, '$') ? rules_unknown() : rules_text(node->text);
            f->node = node;
        } else if (v.type == RULES_NULL) {
            v = rules_unknown();
        }
        f->value = v;
    }
}

static struct rules_value fact(const struct rules_check *check, const char *name)
{
    return rules_fact_find(&check->facts, name)->value;
}

/* Whether all arguments are there to see, and whether the program is one that trains. */
static void lower_program(struct rules_check *check)
{
    const struct s2s_conf *raw = check->report->raw;
    const struct s2s_conf *program = raw ? s2s_conf_key(raw, "PROGRAM") : NULL;
    const char *name = program && program->text ? program->text : "--";
    const char *base = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
    bool bert = !strncmp(base, "pretrain_bert", 13);
    bool trains = !strncmp(base, "--", 2) || strstr(base, "train");
    bool open = (raw && (s2s_conf_key(raw, "OPEN") || s2s_conf_key(raw, "language_model"))) ||
                check->incomplete || strstr(base, "retro"); /* has a file of arguments */
    rules_fact_set(&check->facts, "closed_args", open ? rules_unknown() : rules_bool(true));
    rules_fact_set(&check->facts, "trains", rules_bool(trains));
    rules_fact_set(&check->facts, "padding_mask", rules_bool(bert));
    const struct rules_fact *skip = rules_fact_find(&check->facts, "skip_train");
    rules_fact_set(&check->facts, "inference",
                   rules_bool(skip->node && skip->origin == S2S_CONF_FROM_DERIVED));
    rules_fact_set(&check->facts, "yaml_sections",
                   rules_bool(raw && s2s_conf_key(raw, "language_model")));
    rules_fact_set(&check->facts, "early", rules_bool(false));
    rules_fact_set(&check->facts, "env_block", rules_bool(check->env_vars != NULL));
}

/* no-rope-freq is N, one in N layers, or a list with an entry a layer, as Python writes lists */
static void lower_no_rope(struct rules_check *check)
{
    struct rules_value v = fact(check, "no_rope");
    struct rules_value n = v.type == RULES_NULL ? v : rules_unknown();
    if (v.type == RULES_LIST)
        n = rules_int((int64_t)v.list->n_items);
    rules_fact_set(&check->facts, "no_rope_entries", v.type == RULES_INT ? rules_null() : n);
    rules_fact_set(&check->facts, "no_rope_step",
                   v.type == RULES_INT && v.i > 0 ? v
                   : v.type == RULES_UNKNOWN      ? rules_unknown()
                                                  : rules_null());
}

/* One of the five tokens of fill-in-the-middle is null; they have defaults. */
static void lower_fim(struct rules_check *check)
{
    static const char *const tokens[] = {"fim_prefix_token", "fim_middle_token", "fim_suffix_token",
                                         "fim_pad_token", "fim_eod_token"};
    struct rules_fact *f = rules_fact_make(&check->facts, "fim_no_token");
    f->value = rules_bool(false);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        const struct s2s_conf *node = s2s_conf_key(check->conf, tokens[i]);
        if (!node || (node->kind != S2S_CONF_NULL && (!node->text || *node->text)))
            continue;
        f->value = rules_bool(true);
        f->node = node;
        f->key = tokens[i];
    }
}

/* NCCL_ALGO under --deterministic-mode: the first word that is not known to repeat itself */
static void lower_determinism(struct rules_check *check)
{
    static const struct rules_derived derived[] = {
        {"nccl_algo_stranger", "stranger(nccl_algo, 'Ring CollnetDirect CollnetChain ^NVLS')"},
        {0},
    };
    rules_lower_derived(check, derived);
}

void rules_lower_mlm_run(struct rules_check *check)
{
    static const struct rules_env names[] = {
        {"alloc_conf", "PYTORCH_CUDA_ALLOC_CONF"},
        {"graph_register", "NCCL_GRAPH_REGISTER"},
        {"graph_priority", "CUDA_GRAPHS_USE_NODE_PRIORITY"},
        {"offload_v1", "NVTE_CPU_OFFLOAD_V1"},
        {"nccl_algo", "NCCL_ALGO"},
        {"nvte_nondeterministic", "NVTE_ALLOW_NONDETERMINISTIC_ALGO"},
        {"cublas_workspace", "CUBLAS_WORKSPACE_CONFIG"},
        {0},
    };
    rules_lower_map(check, map);
    rules_lower_env(check, names);
    lower_program(check);
    lower_no_rope(check);
    lower_determinism(check);
    lower_fim(check);
}
