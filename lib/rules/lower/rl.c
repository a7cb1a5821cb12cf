/* NeMo-RL: GRPO, SFT, DPO, distillation on the Megatron or the DTensor backend. '@' is the section
 * of the trained model: policy, or student. */
#include "lib/rules/rules_internal.h"

#include <stdlib.h>
#include <string.h>

static const struct rules_map map[] = {
    {"meg", "@.megatron_cfg.enabled", "bool", "false"},
    {"dt", "@.dtensor_cfg.enabled", "bool", "false"},
    {"v2", "@.dtensor_cfg._v2", "bool", "false"},
    {"mbs", "@.train_micro_batch_size", "int", "?"},
    {"gbs", "@.train_global_batch_size", "int", "?"},
    {"lbs", "@.logprob_batch_size", "int", ""},
    {"seq", "@.max_total_sequence_length", "size", "?"},
    {"precision", "@.precision", "text", "?"},
    {"packed", "@.sequence_packing.enabled", "bool", "false"},
    {"pack_tokens", "@.sequence_packing.train_mb_tokens", "int", ""},
    {"pack_algorithm", "@.sequence_packing.algorithm", "text", ""},
    {"mb_order", "@.sequence_packing.microbatch_order", "text", ""},
    {"dynamic", "@.dynamic_batching.enabled", "bool", "false"},
    {"dynamic_tokens", "@.dynamic_batching.train_mb_tokens", "int", ""},
    {"pad_mult", "@.make_sequence_length_divisible_by", "int", "?"},
    {"chunk", "@.logprob_chunk_size", "int", ""},
    {"draft", "@.draft.enabled", "bool", "false"},
    {"reward_model", "@.reward_model_cfg.enabled", "bool", "false"},
    {"model_name", "@.model_name", "text", ""},
    {"rope_type",
     "@.hf_config_overrides.rope_scaling.rope_type @.hf_config_overrides.rope_scaling.type", "text",
     ""},
    {"backend", "@.generation.backend", "text", ""},
    {"gen_tp", "@.generation.vllm_cfg.tensor_parallel_size", "int", "1"},
    {"gen_pp", "@.generation.vllm_cfg.pipeline_parallel_size", "int", "1"},
    {"gen_ep", "@.generation.vllm_cfg.expert_parallel_size", "int", "1"},
    {"gen_async", "@.generation.vllm_cfg.async_engine", "bool", "false"},
    {"gen_precision", "@.generation.vllm_cfg.precision", "text", ""},
    {"gen_len", "@.generation.max_new_tokens", "int", ""},
    {"top_k", "@.generation.top_k", "number", ""},
    {"top_p", "@.generation.top_p", "number", ""},
    {"colocated", "@.generation.colocated.enabled", "bool", "true"},
    {"gen_nodes", "@.generation.colocated.resources.num_nodes", "int", ""},
    {"gen_gpus", "@.generation.colocated.resources.gpus_per_node", "int", ""},
    {"nodes", "cluster.num_nodes", "size", "?"},
    {"gpus_per_node", "cluster.gpus_per_node", "size", "?"},
    {"prompts", "grpo.num_prompts_per_step ppo.num_prompts_per_step", "int", ""},
    {"generations", "grpo.num_generations_per_prompt ppo.num_generations_per_prompt", "int", ""},
    {"dynamic_sampling", "grpo.use_dynamic_sampling", "bool", "false"},
    {"batch_multiplier", "grpo.batch_multiplier", "number", "1"},
    {"async_grpo", "grpo.async_grpo.enabled", "bool", "false"},
    {"val_period", "grpo.val_period sft.val_period ppo.val_period distillation.val_period", "int",
     ""},
    {"val_at_start", "grpo.val_at_start ppo.val_at_start distillation.val_at_start", "bool",
     "false"},
    {"val_at_end", "grpo.val_at_end ppo.val_at_end distillation.val_at_end", "bool", "false"},
    {"force_on_policy", "loss_fn.force_on_policy_ratio", "bool", "false"},
    {"importance", "loss_fn.use_importance_sampling_correction", "bool", "false"},
    {"ckpt_enabled", "checkpointing.enabled", "bool", "false"},
    {"ckpt_metric", "checkpointing.metric_name", "text", ""},
    {"defer_fp32", "@.megatron_cfg.defer_fp32_logits", "bool", "false"},
    {"fused_logprobs", "@.megatron_cfg.use_fused_linear_logprobs", "bool", "false"},
    {"opt_name", "@.megatron_cfg.optimizer.optimizer", "text", "adam"},
    {"opt_bf16", "@.megatron_cfg.optimizer.bf16", "bool", "false"},
    {"opt_fp16", "@.megatron_cfg.optimizer.fp16", "bool", "false"},
    {"dist_opt", "@.megatron_cfg.optimizer.use_distributed_optimizer", "bool", "false"},
    {"precision_aware", "@.megatron_cfg.optimizer.use_precision_aware_optimizer", "bool", "false"},
    {"opt_offload", "@.megatron_cfg.optimizer.optimizer_cpu_offload", "bool", "false"},
    {"opt_offload_fraction", "@.megatron_cfg.optimizer.optimizer_offload_fraction", "number", "0"},
    {"opt_offload_overlap", "@.megatron_cfg.optimizer.overlap_cpu_optimizer_d2h_h2d", "bool",
     "false"},
    {"overlap_param_gather", "@.megatron_cfg.distributed_data_parallel_config.overlap_param_gather",
     "bool", "false"},
    {"meg_lr", "@.megatron_cfg.optimizer.lr", "number", ""},
    {"meg_min_lr", "@.megatron_cfg.optimizer.min_lr", "number", ""},
    {"meg_warmup", "@.megatron_cfg.scheduler.lr_warmup_iters", "int", "0"},
    {"meg_decay", "@.megatron_cfg.scheduler.lr_decay_iters", "int", ""},
    {"meg_init_lr", "@.megatron_cfg.scheduler.lr_warmup_init", "number", ""},
    {"first_layers", "@.megatron_cfg.num_layers_in_first_pipeline_stage", "int", ""},
    {"last_layers", "@.megatron_cfg.num_layers_in_last_pipeline_stage", "int", ""},
    {"vpp", "@.megatron_cfg.virtual_pipeline_model_parallel_size", "int", ""},
    {"pipeline_dtype", "@.megatron_cfg.pipeline_dtype", "text", ""},
    {"layout", "@.megatron_cfg.pipeline_model_parallel_layout", "any", ""},
    {"account_embedding", "@.megatron_cfg.account_for_embedding_in_pipeline_split", "bool",
     "false"},
    {"account_loss", "@.megatron_cfg.account_for_loss_in_pipeline_split", "bool", "false"},
    {"refit", "@.generation.refit_transport @.generation.vllm_cfg.refit_transport", "text", ""},
    {"dispatcher", "@.megatron_cfg.moe_token_dispatcher_type", "text", ""},
    {"deepep", "@.megatron_cfg.moe_enable_deepep", "bool", "false"},
    {"flex_backend", "@.megatron_cfg.moe_flex_dispatcher_backend", "text", ""},
    {"recompute", "@.megatron_cfg.activation_checkpointing", "bool", "false"},
    {"recompute_granularity", "@.megatron_cfg.recompute_granularity", "text", ""},
    {"lora", "@.dtensor_cfg.lora_cfg.enabled", "bool", "false"},
    {"lora_triton", "@.dtensor_cfg.lora_cfg.use_triton", "bool", "true"},
    {"dp_replicate", "@.dtensor_cfg.dp_replicate_size", "int", "1"},
    {"cpu_offload", "@.dtensor_cfg.cpu_offload", "bool", "false"},
    {"tp_plan", "@.dtensor_cfg.custom_parallel_plan", "any", ""},
    {"attn_implementation", "@.dtensor_cfg.automodel_kwargs.attn_implementation", "text", ""},
    {"automodel_backend", "@.dtensor_cfg.automodel_kwargs.backend", "any", ""},
    {"force_hf", "@.dtensor_cfg.automodel_kwargs.force_hf", "bool", "false"},
    {"nvte_fused", "@.megatron_cfg.env_vars.NVTE_FUSED_ATTN", "text", ""},
    {"peft", "@.megatron_cfg.peft.enabled", "bool", "false"},
    {"peft_dim", "@.megatron_cfg.peft.dim", "int", ""},
    {"peft_alpha", "@.megatron_cfg.peft.alpha", "number", ""},
    {0},
};

/* The teacher of distillation is a model like the student, on the same GPUs. */
static const struct rules_map teacher_map[] = {
    {"teacher_dt", "teacher.dtensor_cfg.enabled", "bool", "false"},
    {"teacher_sp", "teacher.dtensor_cfg.sequence_parallel", "bool", "false"},
    {"teacher_packed", "teacher.sequence_packing.enabled", "bool", "false"},
    {0},
};

static const struct rules_map megatron_map[] = {
    {"tp", "@.megatron_cfg.tensor_model_parallel_size", "size", "?"},
    {"cp", "@.megatron_cfg.context_parallel_size", "size", "?"},
    {"pp", "@.megatron_cfg.pipeline_model_parallel_size", "size", "?"},
    {"ep", "@.megatron_cfg.expert_model_parallel_size", "size", "1"},
    {"etp", "@.megatron_cfg.expert_tensor_parallel_size", "size", "1"},
    {"sp", "@.megatron_cfg.sequence_parallel", "bool", "false"},
    {"attn", "@.megatron_cfg.attention_backend", "text", ""},
    {0},
};

static const struct rules_map dtensor_map[] = {
    {"tp", "@.dtensor_cfg.tensor_parallel_size", "size", "1"},
    {"cp", "@.dtensor_cfg.context_parallel_size", "size", "1"},
    {"pp", "@.dtensor_cfg.pipeline_parallel_size", "size", "1"},
    {"ep", "@.dtensor_cfg.expert_parallel_size", "size", "1"},
    {"etp", "@.dtensor_cfg.expert_tensor_parallel_size", "size", "1"},
    {"sp", "@.dtensor_cfg.sequence_parallel", "bool", "false"},
    {"attn", "@.dtensor_cfg.automodel_kwargs.backend.attn", "text", ""},
    {0},
};

static struct rules_value fact(const struct rules_check *check, const char *name)
{
    return rules_fact_find(&check->facts, name)->value;
}

static bool is_true(struct rules_value v)
{
    return v.type == RULES_BOOL && v.b;
}

static bool present(const struct rules_check *check, const char *path)
{
    const struct s2s_conf *node = s2s_conf_find(check->conf, path);
    return node && node->kind != S2S_CONF_NULL;
}

static int64_t int_at(const struct rules_check *check, const char *path, int64_t other)
{
    int64_t value = other;
    s2s_conf_get_i64_or(&value, check->conf, path, 0, INT32_MAX, other, NULL);
    return value;
}

static bool on_at(const struct rules_check *check, const char *path)
{
    bool on = false;
    s2s_conf_get_bool_or(&on, check->conf, path, false, NULL);
    return on;
}

/* The GPUs that train, out of the cluster's (grpo.py:setup); unknown where a launcher decides. */
static struct rules_value training_gpus(const struct rules_check *check)
{
    struct rules_value nodes = fact(check, "nodes"), gpus = fact(check, "gpus_per_node");
    struct rules_value colocated = fact(check, "colocated");
    struct rules_value gen_nodes = fact(check, "gen_nodes"), gen_gpus = fact(check, "gen_gpus");
    if (nodes.type != RULES_INT || gpus.type != RULES_INT || colocated.type != RULES_BOOL ||
        present(check, "env.nemo_gym") || present(check, "on_policy_distillation"))
        return rules_unknown();
    bool reward = present(check, "env.reward_model") && on_at(check, "env.reward_model.enabled");
    int64_t n = nodes.i, g = gpus.i;
    if (reward && n > 1)
        n -= int_at(check, "env.reward_model.resources.num_nodes", 0);
    if (colocated.b) {
        if (reward && nodes.i == 1)
            g -= int_at(check, "env.reward_model.resources.gpus_per_node", 0);
        return n > 0 && g > 0 ? rules_int(n * g) : rules_unknown();
    }
    if (n == 1) {
        g -= gen_gpus.type == RULES_INT ? gen_gpus.i : 0;
        if (reward && nodes.i == 1)
            g -= int_at(check, "env.reward_model.resources.gpus_per_node", 0);
        return gen_gpus.type == RULES_INT && g > 0 ? rules_int(g) : rules_unknown();
    }
    n -= gen_nodes.type == RULES_INT ? gen_nodes.i : 0;
    return gen_nodes.type == RULES_INT && n > 0 ? rules_int(n * g) : rules_unknown();
}

/* Why non-colocated generation cannot be placed: nothing, or a word for the message. */
static void lower_placement(struct rules_check *check)
{
    struct rules_value nodes = fact(check, "nodes"), gpus = fact(check, "gpus_per_node");
    struct rules_value colocated = fact(check, "colocated");
    struct rules_value gen_nodes = fact(check, "gen_nodes"), gen_gpus = fact(check, "gen_gpus");
    const char *fault = "";
    bool known =
        nodes.type == RULES_INT && gpus.type == RULES_INT && colocated.type == RULES_BOOL &&
        gen_nodes.type != RULES_UNKNOWN && gen_gpus.type != RULES_UNKNOWN &&
        !present(check, "env.nemo_gym") && !present(check, "env.reward_model") &&
        (present(check, "grpo") || present(check, "ppo") || present(check, "distillation"));
    if (known && !colocated.b && nodes.i == 1) {
        if (gen_gpus.type != RULES_INT || gen_gpus.i < 1)
            fault = "gpus_per_node must be given on one node";
        else if (gen_nodes.type == RULES_INT && gen_nodes.i > 1)
            fault = "num_nodes must be null or 1 on one node";
        else if (gen_gpus.i >= gpus.i)
            fault = "no GPU is left for training";
    } else if (known && !colocated.b) {
        if (gen_nodes.type != RULES_INT || gen_nodes.i < 1)
            fault = "num_nodes must be given on several nodes";
        else if (gen_gpus.type != RULES_INT || gen_gpus.i != gpus.i)
            fault = "gpus_per_node must be the cluster's on several nodes";
        else if (gen_nodes.i >= nodes.i)
            fault = "no node is left for training";
    }
    /* vLLM runs where training runs, or on what is kept for it */
    struct rules_value gen_world = rules_unknown();
    if (known && !*fault && colocated.b)
        gen_world = fact(check, "world");
    else if (known && !*fault)
        gen_world = rules_int(nodes.i == 1 ? gen_gpus.i : gen_nodes.i * gen_gpus.i);
    rules_fact_set(&check->facts, "gen_world", gen_world);
    rules_fact_set(&check->facts, "placement", known ? rules_text(fault) : rules_unknown());
}

/* A list of schedulers needs milestones: one fewer than there are schedulers. */
static void lower_schedulers(struct rules_check *check)
{
    char *path = rules_keep(&check->facts, s2s_xasprintf("%s.scheduler", check->section));
    const struct s2s_conf *list = s2s_conf_find(check->conf, path);
    int64_t n = 0, n_milestones = -1;
    for (size_t i = 0; list && list->kind == S2S_CONF_LIST && i < list->n_items; i++) {
        const struct s2s_conf *milestones = s2s_conf_key(list->items[i], "milestones");
        if (milestones)
            n_milestones = (int64_t)milestones->n_items;
        else
            n++;
    }
    bool bad = n > 1 && n_milestones < n - 1;
    struct rules_fact *f = rules_fact_make(&check->facts, "schedulers_bad");
    f->value = rules_bool(bad);
    f->node = list;
    f->key = path;
}

/* The first of `list` (a map, or a list of maps) that has `key` above 0: 1; none: 0; -1 unknown */
static int any_above_zero(const struct s2s_conf *list, const char *key)
{
    int found = 0;
    bool many = list && list->kind == S2S_CONF_LIST;
    for (size_t i = 0; list && i < (many ? list->n_items : 1); i++) {
        const struct s2s_conf *node = s2s_conf_key(many ? list->items[i] : list, key);
        struct rules_value v = rules_value_of(node);
        if ((v.type == RULES_INT && v.i > 0) || (v.type == RULES_FLOAT && v.f > 0))
            return 1;
        if (node && v.type == RULES_UNKNOWN)
            found = -1;
    }
    return found;
}

/* Whether there is something to validate on: data.validation, or a part of data.train. */
static void lower_validation(struct rules_check *check)
{
    const struct s2s_conf *data = s2s_conf_key(check->conf, "data");
    const struct s2s_conf *train = data ? s2s_conf_key(data, "train") : NULL;
    struct rules_value there = rules_unknown();
    bool known = train && !check->incomplete && !present(check, "env.nemo_gym");
    int split = known ? any_above_zero(train, "split_validation_size") : -1;
    if (known && !split)
        split = any_above_zero(s2s_conf_key(data, "default"), "split_validation_size");
    if (known && split >= 0)
        there = rules_bool(split > 0);
    for (size_t i = 0; data && i < data->n_items; i++)
        if (data->kind == S2S_CONF_MAP && !strncmp(data->items[i]->key, "val", 3) &&
            data->items[i]->kind != S2S_CONF_NULL)
            there = rules_bool(true);
    rules_fact_set(&check->facts, "val_set", there);
}

/* Whether Automodel builds the model by code of its own, which takes no cu_seqlens: it is given a
 * backend for that code, or the name is of a family that is in its registry and not a plain decoder
 * (those go through transformers' attention, which reads them). */
static void lower_own_model(struct rules_check *check)
{
    static const char *const families[] = {
        "Nemotron-3",
        "Nemotron-Nano-9B-v2",
        "Nemotron-Nano-12B-v2",
        "GLM-4.5",
        "GLM-4.6",
        "GLM-4.7",
        "GLM-5",
        "gpt-oss",
        "DeepSeek-V3",
        "Moonlight",
        "Kimi-K2",
        "Kimi-Linear",
        "MiniMax-M2",
        "Qwen3-Next",
        "Qwen3.5",
        "Qwen3.6",
        "Qwen3-30B-A3B",
        "Qwen3-235B-A22B",
        "Step-3",
        "Ling-",
    };
    struct rules_value name = fact(check, "model_name");
    bool own = rules_fact_find(&check->facts, "automodel_backend")->node != NULL;
    for (size_t i = 0; name.type == RULES_TEXT && i < sizeof families / sizeof *families; i++)
        own |= strstr(name.s, families[i]) != NULL;
    rules_fact_set(&check->facts, "own_model", rules_bool(own));
}

/* A setting of megatron_cfg that model_overrides sets too */
static void lower_overrides(struct rules_check *check)
{
    /* settings that megatron_cfg knows whether they are in the file or not */
    static const char *const known[] = {"activation_checkpointing",
                                        "apply_rope_fusion",
                                        "attention_backend",
                                        "bias_activation_fusion",
                                        "context_parallel_size",
                                        "cuda_graph_impl",
                                        "cuda_graph_modules",
                                        "cuda_graph_warmup_steps",
                                        "expert_model_parallel_size",
                                        "expert_tensor_parallel_size",
                                        "fine_grained_activation_offloading",
                                        "freeze_moe_router",
                                        "gradient_accumulation_fusion",
                                        "moe_enable_deepep",
                                        "moe_flex_dispatcher_backend",
                                        "moe_grouped_gemm",
                                        "moe_hybridep_num_sms",
                                        "moe_per_layer_logging",
                                        "moe_router_group_topk",
                                        "moe_router_num_groups",
                                        "moe_shared_expert_overlap",
                                        "moe_token_dispatcher_type",
                                        "mtp_detach_heads",
                                        "mtp_loss_scaling_factor",
                                        "mtp_num_layers",
                                        "mtp_use_repeated_layer",
                                        "num_layers_in_first_pipeline_stage",
                                        "num_layers_in_last_pipeline_stage",
                                        "offload_modules",
                                        "pipeline_dtype",
                                        "pipeline_model_parallel_size",
                                        "recompute_granularity",
                                        "recompute_modules",
                                        "sequence_parallel",
                                        "tensor_model_parallel_size",
                                        "transformer_impl",
                                        "use_fused_linear_logprobs",
                                        NULL};
    char *path = rules_keep(&check->facts, s2s_xasprintf("%s.megatron_cfg", check->section));
    const struct s2s_conf *config = s2s_conf_find(check->conf, path);
    const struct s2s_conf *overrides = config ? s2s_conf_key(config, "model_overrides") : NULL;
    struct rules_fact *f = rules_fact_make(&check->facts, "override");
    f->value = rules_null();
    for (size_t i = 0; overrides && i < overrides->n_items && !f->node; i++) {
        const char *key = overrides->items[i]->key; /* NULL in a list */
        bool twice = key && s2s_conf_key(config, key) != NULL;
        for (int k = 0; key && known[k]; k++)
            twice |= !strcmp(known[k], key);
        if (!twice)
            continue;
        f->value = rules_text(key);
        f->node = overrides->items[i];
    }
}

static int64_t size_at(const struct rules_check *check, const char *section, const char *key)
{
    char *path = s2s_xasprintf("%s.%s", section, key);
    const struct s2s_conf *node = s2s_conf_find(check->conf, path);
    struct rules_value v = rules_value_of(node);
    free(path);
    if (!node || node->kind == S2S_CONF_NULL)
        return 1;
    return v.type == RULES_INT && v.i > 0 && v.i < 1 << 20 ? v.i : 0;
}

/* tp*cp*pp of a second model on the same GPUs; unknown if it has none or one size is not known */
static void lower_second(struct rules_check *check, const char *name, const char *fact_name)
{
    char *backend = rules_keep(&check->facts, s2s_xasprintf("%s.megatron_cfg", name));
    char *enabled = rules_keep(&check->facts, s2s_xasprintf("%s.enabled", backend));
    bool megatron = on_at(check, enabled);
    struct rules_fact *f = rules_fact_make(&check->facts, fact_name);
    f->value = rules_unknown();
    f->key = backend;
    if (!present(check, name) || check->incomplete || present(check, "on_policy_distillation"))
        return;
    if (!megatron)
        f->key = backend = rules_keep(&check->facts, s2s_xasprintf("%s.dtensor_cfg", name));
    int64_t size =
        size_at(check, backend, "context_parallel_size") *
        size_at(check, backend, megatron ? "tensor_model_parallel_size" : "tensor_parallel_size");
    if (megatron)
        size *= size_at(check, backend, "pipeline_model_parallel_size");
    if (size > 0)
        f->value = rules_int(size);
    char *tp = rules_keep(&check->facts, s2s_xasprintf("%s.%s", backend,
                                                       megatron ? "tensor_model_parallel_size"
                                                                : "tensor_parallel_size"));
    f->node = s2s_conf_find(check->conf, tp);
    f->key = tp;
}

/* Which algorithm's section the file has */
static void lower_algorithm(struct rules_check *check)
{
    static const struct {
        const char *name, *section;
    } names[] = {{"has_grpo", "grpo"},
                 {"has_dpo", "dpo"},
                 {"has_ppo", "ppo"},
                 {"has_distillation", "distillation"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        rules_fact_set(&check->facts, names[i].name, rules_bool(present(check, names[i].section)));
}

int rules_lower_rl(struct rules_check *check)
{
    static const struct rules_derived derived[] = {
        {"dp", "world / (tp*cp*pp)"},
        {"env_flash", "if(nvte_flash != null, nvte_flash, env('NVTE_FLASH_ATTN'))"},
        {"env_fused", "if(nvte_fused != null, nvte_fused, env('NVTE_FUSED_ATTN'))"},
        {"gtp", "1"},
        {"strategy", "null"},
        {"dp_cfg", "null"},
        {"nmb", "gbs / (mbs*dp)"},
        {"min_lr", "if(meg, meg_min_lr, null)"},
        {"lr", "if(meg, meg_lr, null)"},
        {"warmup", "if(meg, meg_warmup, 0)"},
        {"decay", "if(meg, meg_decay, null)"},
        {"steps", "null"},
        {"run_steps", "if(meg, run_length, null)"},
        {"shard", "(if(cp > 1, 2*cp, 1)) * (if(sp and tp > 1, tp, 1))"},
        {"fsdp_on", "dt and not meg"},
        {"rank_tokens", "if(packed and pack_tokens > 0, pack_tokens, seq) // cp"},
        {"bubble", "100*(pp - 1) // (nmb + pp - 1)"},
        /* what the largest stage holds; embedding and loss count as a layer each */
        {"free_stages", "pp - if(first_layers == null, 0, 1) - if(last_layers == null, 0, 1)"},
        {"rest_layers", "layers - if(first_layers == null, 0, first_layers) - if(last_layers == "
                        "null, 0, last_layers)"},
        {"stage_most",
         "if(layout != null or not meg, unknown, if(first_layers == null and last_layers == null, "
         "(layers + if(account_embedding, 1, 0) + if(account_loss, 1, 0)) / pp + "
         "if(account_embedding and account_loss, 0, 1), "
         "max(max(if(first_layers == null, rest_layers / free_stages, first_layers), "
         "if(last_layers == null, rest_layers / free_stages, last_layers)) + 1, if(free_stages > "
         "0, rest_layers / free_stages, 0))))"},
        {0},
    };
    check->section = present(check, "policy") ? "policy" : "student";
    rules_lower_map(check, map);
    rules_lower_map(check, teacher_map);
    bool megatron = is_true(fact(check, "meg"));
    rules_lower_map(check, megatron ? megatron_map : dtensor_map);
    rules_lower_model(check);
    rules_lower_rl_run(check);
    struct rules_value given = fact(check, "world_given");
    rules_fact_set(&check->facts, "world", given.type == RULES_INT ? given : training_gpus(check));
    lower_placement(check);
    lower_schedulers(check);
    lower_algorithm(check);
    lower_validation(check);
    lower_own_model(check);
    lower_overrides(check);
    lower_second(check, "value", "value_size");
    lower_second(check, "teacher", "teacher_size");
    rules_lower_derived(check, derived);
    return 0;
}
