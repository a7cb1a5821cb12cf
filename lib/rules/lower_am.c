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
    {"pp_schedule", "distributed.pipeline.pp_schedule", "text", "?"},
    {"pp_schedule_csv", "distributed.pipeline.pp_schedule_csv", "text", ""},
    {"layers_per_stage", "distributed.pipeline.layers_per_stage", "int", ""},
    {"async_tp", "distributed.enable_async_tensor_parallel", "bool", "false"},
    {"ci_nodes", "ci.nodes", "int", ""},
    {"ci_gpus", "ci.nproc_per_node", "int", ""},
    {"mbs", "step_scheduler.local_batch_size", "int", "?"},
    {"gbs", "step_scheduler.global_batch_size", "int", "?"},
    {"steps", "step_scheduler.max_steps", "int", ""},
    {"ckpt_every", "step_scheduler.ckpt_every_steps", "int", ""},
    {"val_every", "step_scheduler.val_every_steps", "int", ""},
    {"seq", "dataset.seq_length dataset.seq_len", "int", "?"},
    {"pack_tokens", "packed_sequence.packed_sequence_size", "int", "0"},
    {"attn", "model.backend.attn", "text", ""},
    {"attn_implementation", "model.attn_implementation", "text", ""},
    {"experts_backend", "model.backend.experts", "text", ""},
    {"dispatcher", "model.backend.dispatcher", "text", ""},
    {"enable_deepep", "model.backend.enable_deepep", "any", ""},
    {"rope_fusion", "model.backend.rope_fusion", "bool", ""},
    {"lora", "peft", "any", ""},
    {"lora_triton", "peft.use_triton", "bool", ""},
    {"qat", "qat.enabled qat.fake_quant_after_n_steps", "any", ""},
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
        {"world",
         "if(world_given == null, if(ci_world == null, sizes_world, ci_world), world_given)"},
        {"dp", "if(dp_cfg == null, world / (tp*cp*pp), dp_cfg)"},
        {"gtp", "1"},
        {"etp", "1"},
        {"strategy", "null"},
        {"nmb", "mbs // pp_mbs"},
        {"packed", "pack_tokens > 0"},
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
    rules_fact_set(&check->facts, "recompute_kind",
                   v.type == RULES_UNKNOWN ? rules_unknown() : rules_text(word));
}

/* The recipes whose data set packs or whose step does not follow the scheduler's arithmetic */
static void lower_kind(struct rules_check *check)
{
    const struct s2s_conf *recipe = s2s_conf_find(check->conf, "recipe");
    const struct s2s_conf *target = s2s_conf_find(check->conf, "recipe._target_");
    const char *name = recipe && recipe->text   ? recipe->text
                       : target && target->text ? target->text
                                                : "";
    rules_fact_set(&check->facts, "recipe_name", rules_text(name));
    bool separate = s2s_conf_find(check->conf, "teacher_distributed") ||
                    s2s_conf_find(check->conf, "separate_mesh") ||
                    s2s_conf_find(check->conf, "kd.separate_mesh");
    rules_fact_set(&check->facts, "separate_mesh", rules_bool(separate));
}

int rules_lower_am(struct rules_check *check)
{
    translate(check->conf);
    rules_lower_map(check, map);
    rules_lower_model(check);
    lower_world(check);
    lower_recompute(check);
    lower_kind(check);
    lower_dtypes(check);
    lower_adapters(check);
    rules_lower_nemotron_h(check, rules_fact_find(&check->facts, "model_name")->value);
    return 0;
}
