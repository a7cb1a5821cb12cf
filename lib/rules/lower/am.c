/* Automodel recipes. The strings none and None are null there; nothing is inherited. */
#include "lib/rules/rules_internal.h"

#include <fnmatch.h>
#include <string.h>

static const struct rules_map map[] = {
    {"fsdp", "distributed.strategy", "text", "fsdp2"},
    {"tp", "distributed.tp_size", "size", "1"},
    {"cp", "distributed.cp_size", "size", "1"},
    {"pp", "distributed.pp_size", "size", "1"},
    {"ep", "distributed.ep_size", "size", "1"},
    {"dp_cfg", "distributed.dp_size", "size", ""},
    {"dp_replicate", "distributed.dp_replicate_size", "size", ""},
    {"sp", "distributed.sequence_parallel", "bool", "false"},
    {"recompute", "distributed.activation_checkpointing", "any", "false"},
    {"pipeline", "distributed.pipeline", "any", ""},
    {"moe_config", "distributed.moe", "any", ""},
    {"pp_mbs", "distributed.pipeline.pp_microbatch_size", "int", "1"},
    {"pp_schedule", "distributed.pipeline.pp_schedule", "text", "1f1b"},
    {"pp_round", "distributed.pipeline.round_virtual_stages_to_pp_multiple", "text", ""},
    {"pp_schedule_csv", "distributed.pipeline.pp_schedule_csv", "text", ""},
    {"layers_per_stage", "distributed.pipeline.layers_per_stage", "int", ""},
    {"tp_plan", "distributed.tp_plan", "any", ""},
    {"async_tp", "distributed.enable_async_tensor_parallel", "bool", "false"},
    {"ci_nodes", "ci.nodes", "int", ""},
    {"ci_gpus", "ci.nproc_per_node", "int", ""},
    {"mbs", "step_scheduler.local_batch_size", "int", "?"},
    {"gbs", "step_scheduler.global_batch_size", "int", "?"},
    {"steps", "step_scheduler.max_steps", "int", ""},
    {"ckpt_every", "step_scheduler.ckpt_every_steps", "int", ""},
    {"val_every", "step_scheduler.val_every_steps", "int", ""},
    {"log_every", "step_scheduler.log_remote_every_steps", "int", ""},
    {"gc_every", "step_scheduler.gc_every_steps", "int", ""},
    {"dataset_target", "dataset._target_", "text", ""},
    {"seq", "dataset.seq_length dataset.seq_len", "int", "?"},
    {"pack_tokens", "packed_sequence.packed_sequence_size", "int", "0"},
    {"attn", "model.backend.attn", "text", ""},
    {"collate", "dataloader.collate_fn._target_ dataloader.collate_fn", "text", ""},
    {"attn_implementation", "model.attn_implementation", "text", ""},
    {"experts_backend", "model.backend.experts", "text", ""},
    {"dispatcher", "model.backend.dispatcher", "text", ""},
    {"enable_deepep", "model.backend.enable_deepep", "any", ""},
    {"compile_attn", "model.backend.compile_attn", "bool", "false"},
    {"compile_layers", "distributed.enable_compile", "bool", "false"},
    {"fp8_attention", "model.backend.te_fp8.recipe.fp8_dpa model.backend.te_fp8.recipe.fp8_mha",
     "bool", "false"},
    {"linear_backend", "model.backend.linear", "text", ""},
    {"norm_backend", "model.backend.rms_norm", "text", ""},
    {"window", "model.sliding_window model.config.sliding_window", "any", ""},
    {"rope_fusion", "model.backend.rope_fusion", "bool", ""},
    {"lora", "peft", "any", ""},
    {"lora_triton", "peft.use_triton", "bool", ""},
    {"qat_on", "qat.enabled", "bool", "false"},
    {"separate_mesh", "separate_meshes", "bool", "false"},
    {"teacher_mesh", "teacher_distributed", "any", ""},
    {"teacher_fsdp", "teacher_distributed.strategy", "text", "fsdp2"},
    {"teacher_dp", "teacher_distributed.dp_size", "size", ""},
    {"teacher_tp", "teacher_distributed.tp_size", "size", "1"},
    {"teacher_cp", "teacher_distributed.cp_size", "size", "1"},
    {"teacher_pp", "teacher_distributed.pp_size", "size", "1"},
    {"loss", "loss_fn._target_", "text", ""},
    {"lr", "optimizer.lr", "number", "?"},
    {"min_lr", "lr_scheduler.min_lr", "number", "0"},
    {"warmup", "lr_scheduler.lr_warmup_steps", "int", "0"},
    {"decay", "lr_scheduler.lr_decay_steps", "int", ""},
    {"timeout_minutes", "dist_env.timeout_minutes", "number", ""},
    {"model_name", "model.pretrained_model_name_or_path model.config.pretrained_model_name_or_path",
     "text", ""},
    {"rope_type",
     "model.config.rope_scaling.rope_type model.config.rope_scaling.type "
     "model.rope_scaling.rope_type model.rope_scaling.type",
     "text", ""},
    {"rope_factor", "model.config.rope_scaling.factor model.rope_scaling.factor", "number", ""},
    {"rope_original",
     "model.config.rope_scaling.original_max_position_embeddings "
     "model.rope_scaling.original_max_position_embeddings",
     "number", ""},
    {"lora_all", "peft.match_all_linear", "bool", "false"},
    {"lora_targets", "peft.target_modules", "any", ""},
    {"lora_excluded", "peft.exclude_modules", "any", ""},
    {"pp_dtype", "distributed.pipeline.dtype", "text", ""},
    {"mp_policy", "distributed.mp_policy", "any", ""},
    {"activation_dtype", "distributed.mp_policy.output_dtype distributed.mp_policy.param_dtype",
     "text", ""},
    {"fp8_on", "fp8.enabled", "bool", "false"},
    {"fp8_emulated", "fp8.emulate", "bool", "false"},
    {"te_fp8", "model.backend.te_fp8.recipe", "text", ""},
    {0},
};

/* none and None are null: translate_value of the loader */
static void translate(struct s2s_conf *node)
{
    if (node->kind == S2S_CONF_STRING && !node->quoted &&
        (!strcmp(node->text, "none") || !strcmp(node->text, "None")))
        node->kind = S2S_CONF_NULL;
    for (size_t i = 0; i < node->n_items; i++)
        translate(node->items[i]);
}

static void lower_world(struct rules_check *check)
{
    static const struct rules_derived derived[] = {
        {"gpus_per_node",
         "if(gpus_given == null, if(ci_gpus == null, unknown, ci_gpus), gpus_given)"},
        {"ci_world", "if(ci_gpus == null, null, ci_gpus * if(ci_nodes == null, 1, ci_nodes))"},
        {"sizes_world", "if(dp_cfg == null, unknown, dp_cfg*tp*cp*pp)"},
        {"all_world", "if(world_given == null, if(ci_world == null, unknown, ci_world), "
                      "world_given)"},
        {"teacher_world", "if(teacher_dp == null, unknown, teacher_dp*teacher_tp*teacher_cp*"
                          "teacher_pp)"},
        /* with meshes of their own, the student has as many ranks as its sizes say */
        {"world", "if(separate_mesh or not known(all_world), sizes_world, all_world)"},
        {"dp", "if(dp_cfg == null, world / (tp*cp*pp), dp_cfg)"},
        {"vpp", "if(layers_per_stage == null, null, unknown)"},
        {"gtp", "1"},
        {"etp", "1"},
        {"strategy", "null"},
        {"nmb", "mbs // pp_mbs"},
        {"packed", "pack_tokens > 0"},
        {"fsdp_on", "fsdp in ('fsdp2', 'megatron_fsdp', 'megatron-fsdp', 'mfsdp')"},
        {"rank_tokens", "if(packed and pack_tokens > 0, pack_tokens, seq) // cp"},
        {"bubble", "100*(pp - 1) // (nmb + pp - 1)"},
        {"stage_most", "if(layers_per_stage == null, (layers + pp - 1) // pp + 1, unknown)"},
        {"even_stages", "if(layers_per_stage == null, null, (layers + layers_per_stage - 1) // "
                        "layers_per_stage)"},
        {"stages", "if(even_stages == null, pp*if(schedule == 'single', 1, 2), if(even_stages % pp "
                   "== 0 or pp_round == null, even_stages, if(pp_round == 'up', even_stages + pp - "
                   "even_stages % pp, even_stages - even_stages % pp)))"},
        /* a schedule of several stages a rank refuses fewer than two */
        {"least_stages", "if(known(stages), stages, if(schedule == 'single', pp, 2*pp))"},
        {0},
    };
    rules_lower_derived(check, derived);
}

/* bfloat16 for bf16 and torch.bfloat16, so on; other words as they are */
static struct rules_value dtype_of(struct rules_value v)
{
    static const char *const names[][2] = {{"bf16", "bfloat16"},
                                           {"fp16", "float16"},
                                           {"half", "float16"},
                                           {"fp32", "float32"},
                                           {"float", "float32"}};
    if (v.type != RULES_TEXT)
        return v;
    const char *word = strncmp(v.s, "torch.", 6) ? v.s : v.s + 6;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i][0], word))
            word = names[i][1];
    return rules_text(word);
}

/* The types of pipeline messages and of what a stage puts out, in one spelling. */
static void lower_dtypes(struct rules_check *check)
{
    struct rules_facts *f = &check->facts;
    struct rules_value given = rules_fact_find(f, "activation_dtype")->value;
    bool policy = rules_fact_find(f, "mp_policy")->value.type != RULES_NULL;
    rules_fact_find(f, "pp_dtype")->value = dtype_of(rules_fact_find(f, "pp_dtype")->value);
    if (given.type == RULES_NULL) /* FSDP2's own policy computes in bf16 */
        given = policy ? rules_unknown() : rules_text("bfloat16");
    rules_fact_set(f, "stage_dtype", dtype_of(given));
}

static bool matches_out_proj(const char *pattern)
{
    return !strcmp(pattern, "out_proj") ||
           !fnmatch(pattern, "backbone.layers.0.mixer.out_proj", 0) ||
           !fnmatch(pattern, "model.layers.0.mixer.out_proj", 0);
}

static bool any_out_proj(struct rules_value list)
{
    if (list.type == RULES_TEXT)
        return matches_out_proj(list.s);
    for (size_t i = 0; list.type == RULES_LIST && i < list.list->n_items; i++)
        if (list.list->items[i]->text && matches_out_proj(list.list->items[i]->text))
            return true;
    return false;
}

/* Whether the adapters reach out_proj: named, by all linear layers, or all that are not excluded.
 */
static void lower_adapters(struct rules_check *check)
{
    struct rules_facts *f = &check->facts;
    struct rules_value targets = rules_fact_find(f, "lora_targets")->value,
                       all = rules_fact_find(f, "lora_all")->value;
    bool named =
        targets.type == RULES_TEXT || (targets.type == RULES_LIST && targets.list->n_items > 0);
    bool reach = rules_fact_find(f, "lora")->value.type != RULES_NULL &&
                 ((all.type == RULES_BOOL && all.b) ||
                  (named ? any_out_proj(targets)
                         : !any_out_proj(rules_fact_find(f, "lora_excluded")->value)));
    rules_fact_set(f, "lora_out_proj", rules_bool(reach));
}

/* activation_checkpointing as a word: off, full, selective, or "bad" */
static void lower_recompute(struct rules_check *check)
{
    static const char *const off[] = {"false", "off", "none", "disabled", "no", NULL};
    static const char *const on[] = {"true", "on", "full", "enabled", "yes", NULL};
    struct rules_value v = rules_fact_find(&check->facts, "recompute")->value;
    const char *word = v.type == RULES_BOOL ? (v.b ? "full" : "off") : "bad";
    for (int i = 0; v.type == RULES_TEXT && i < 5; i++)
        word = !strcasecmp(v.s, off[i])        ? "off"
               : !strcasecmp(v.s, on[i])       ? "full"
               : !strcasecmp(v.s, "selective") ? "selective"
                                               : word;
    rules_fact_set(&check->facts, "no_recompute",
                   v.type == RULES_UNKNOWN ? rules_unknown() : rules_bool(!strcmp(word, "off")));
    rules_fact_set(&check->facts, "recompute_kind",
                   v.type == RULES_UNKNOWN ? rules_unknown() : rules_text(word));
}

/* What a pipeline schedule is: single, multi (several stages a rank), v (two, folded), none (no
 * name where a name must be), bad (a name that is not known) */
static void lower_schedule(struct rules_check *check)
{
    static const struct {
        const char *name, *kind;
    } kinds[] = {
        {"1f1b", "single"},
        {"gpipe", "single"},
        {"pipelineschedulesingle", "single"},
        {"interleaved1f1b", "multi"},
        {"loopedbfs", "multi"},
        {"interleavedzerobubble", "multi"},
        {"pipelineschedulemulti", "multi"},
        {"zbvzerobubble", "v"},
        {"dualpipev", "v"},
    };
    struct rules_value v = rules_fact_find(&check->facts, "pp_schedule")->value;
    const struct s2s_conf *node = s2s_conf_find(check->conf, "distributed.pipeline.pp_schedule");
    struct rules_value kind = rules_unknown();
    if (node && node->kind == S2S_CONF_NULL)
        kind = rules_text("none");
    else if (v.type == RULES_TEXT)
        kind = rules_text("bad");
    bool named = v.type == RULES_TEXT && !(node && node->kind == S2S_CONF_NULL);
    for (size_t i = 0; named && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcasecmp(kinds[i].name, v.s))
            kind = rules_text(kinds[i].kind);
    /* a table of its own replaces the named one */
    if (rules_fact_find(&check->facts, "pp_schedule_csv")->value.type != RULES_NULL)
        kind = rules_unknown();
    struct rules_fact *f = rules_fact_make(&check->facts, "schedule");
    f->value = kind;
    f->node = node;
    f->key = "distributed.pipeline.pp_schedule";
}

static bool is_any_of(const char *word, const char *const *names)
{
    for (; *names; names++)
        if (!strcmp(word, *names))
            return true;
    return false;
}

/* A key under `distributed` that neither the recipe nor the strategy's class knows */
static void lower_options(struct rules_check *check)
{
    static const char *const all[] = {
        "strategy", "dp_size",  "dp_replicate_size", "tp_size",
        "pp_size",  "cp_size",  "ep_size",           "pipeline",
        "moe",      "_target_", "_recursive_",       "_convert_",
        NULL,
    };
    static const char *const fsdp2[] = {"sequence_parallel",
                                        "tp_plan",
                                        "patch_is_packed_sequence",
                                        "mp_policy",
                                        "offload_policy",
                                        "autocast_dtype",
                                        "activation_checkpointing",
                                        "activation_checkpointing_scope",
                                        "defer_fsdp_grad_sync",
                                        "reshard_after_forward",
                                        "enable_async_tensor_parallel",
                                        "enable_compile",
                                        "enable_fsdp2_prefetch",
                                        "fsdp2_backward_prefetch_depth",
                                        "fsdp2_forward_prefetch_depth",
                                        "multimodal",
                                        NULL};
    static const char *const megatron[] = {"megatron_fsdp_unit_modules",
                                           "zero_dp_strategy",
                                           "init_fsdp_with_meta_device",
                                           "grad_reduce_in_fp32",
                                           "preserve_fp32_weights",
                                           "overlap_grad_reduce",
                                           "overlap_param_gather",
                                           "check_for_nan_in_grad",
                                           "report_nan_in_param_grad",
                                           "average_in_collective",
                                           "disable_bucketing",
                                           "calculate_per_token_loss",
                                           "keep_fp8_transpose_cache",
                                           "nccl_ub",
                                           "fsdp_double_buffer",
                                           "activation_checkpointing",
                                           NULL};
    static const char *const ddp[] = {"activation_checkpointing",
                                      "activation_checkpointing_scope",
                                      "broadcast_buffers",
                                      "find_unused_parameters",
                                      "static_graph",
                                      "bucket_cap_mb",
                                      "gradient_as_bucket_view",
                                      "autocast_dtype",
                                      NULL};
    const struct s2s_conf *config = s2s_conf_key(check->conf, "distributed");
    struct rules_value v = rules_fact_find(&check->facts, "fsdp")->value;
    const char *name = v.type == RULES_TEXT ? v.s : "";
    const char *const *own = !strcasecmp(name, "fsdp2")                          ? fsdp2
                             : !strcasecmp(name, "ddp")                          ? ddp
                             : strcasestr(name, "fsdp") && strcasestr(name, "m") ? megatron
                                                                                 : NULL;
    struct rules_fact *f = rules_fact_make(&check->facts, "bad_option");
    f->value = v.type == RULES_UNKNOWN ? rules_unknown() : rules_null();
    for (size_t i = 0; config && config->kind == S2S_CONF_MAP && own && i < config->n_items; i++) {
        const char *key = config->items[i]->key;
        if (f->node || is_any_of(key, all) || is_any_of(key, own))
            continue;
        f->value = rules_text(key);
        f->node = config->items[i];
    }
}

/* Sizes that the recipe itself gives to a model it builds from scratch */
static void lower_sizes(struct rules_check *check)
{
    static const struct {
        const char *name, *key;
    } sizes[] = {{"heads", "model.config.num_attention_heads"},
                 {"kv_heads", "model.config.num_key_value_heads"},
                 {"hidden", "model.config.hidden_size"},
                 {"layers", "model.config.num_hidden_layers"},
                 {"experts", "model.config.num_experts"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct rules_fact *f = rules_fact_find(&check->facts, sizes[i].name);
        const struct s2s_conf *node = s2s_conf_find(check->conf, sizes[i].key);
        struct rules_value v = rules_value_of(node);
        if (!f || f->value.type != RULES_UNKNOWN || f->node || v.type != RULES_INT)
            continue;
        f->value = v;
        f->node = node;
        f->key = sizes[i].key;
        f->of_model = false;
    }
}

/* Whether the model's name is of a family without sparse attention; unknown for other names. */
static void lower_family(struct rules_check *check)
{
    static const char *const dense[] = {"llama", "qwen",    "mistral", "mixtral",
                                        "gemma", "gpt-oss", "gpt_oss", "phi-",
                                        "phi3",  "glm-4",   "nemotron"};
    struct rules_value name = rules_fact_find(&check->facts, "model_name")->value;
    struct rules_value other = rules_unknown();
    for (size_t i = 0; name.type == RULES_TEXT && i < sizeof dense / sizeof *dense; i++)
        if (strcasestr(name.s, dense[i]))
            other = rules_bool(true);
    rules_fact_set(&check->facts, "other_family", other);
}

int rules_lower_am(struct rules_check *check)
{
    translate(check->conf);
    rules_lower_map(check, map);
    rules_lower_model(check);
    lower_sizes(check);
    lower_schedule(check);
    lower_world(check);
    static const struct rules_env env[] = {
        {"nvte_flash", "NVTE_FLASH_ATTN"}, {"nvte_fused", "NVTE_FUSED_ATTN"}, {0}};
    check->env_vars = s2s_conf_find(check->conf, "ci.env_vars");
    rules_lower_env(check, env);
    lower_recompute(check);
    lower_dtypes(check);
    lower_adapters(check);
    lower_family(check);
    rules_lower_nemotron_h(check, rules_fact_find(&check->facts, "model_name")->value);
    lower_options(check);
    return 0;
}
