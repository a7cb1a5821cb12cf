/*
 * Megatron-LM arguments. Whatever they were written in, they come here as one map: flags without
 * dashes and with '_' for '-', values typed as argparse would; a flag that is present without a
 * value is true, one that is switched off is not there.
 */
#include "lib/rules/rules_internal.h"

#include <stdlib.h>
#include <string.h>

static const struct rules_map map[] = {
    {"tp", "tensor_model_parallel_size", "size", "1"},
    {"pp", "pipeline_model_parallel_size", "size", "1"},
    {"cp", "context_parallel_size", "size", "1"},
    {"ep", "expert_model_parallel_size", "size", "1"},
    {"etp_given", "expert_tensor_parallel_size", "size", ""},
    {"weight_shards", "tensor_parallel_num_weight_shards", "int", ""},
    {"expert_shards", "expert_tensor_parallel_num_weight_shards", "int", ""},
    {"sp", "sequence_parallel", "bool", "false"},
    {"mbs", "micro_batch_size", "int", "?"},
    {"gbs_given", "global_batch_size", "int", ""},
    {"rampup", "rampup_batch_size", "any", ""},
    {"step_schedule", "step_batch_size_schedule", "any", ""},
    {"decrease_batch", "decrease_batch_size_if_needed", "bool", "false"},
    {"dist_opt_instances", "num_distributed_optimizer_instances", "int", "1"},
    {"seq_given", "seq_length", "size", ""},
    {"encoder_seq", "encoder_seq_length", "int", ""},
    {"decoder_seq", "decoder_seq_length", "int", ""},
    {"mpe", "max_position_embeddings", "size", ""},
    {"hidden", "hidden_size", "size", ""},
    {"heads", "num_attention_heads", "size", ""},
    {"gqa", "group_query_attention", "bool", "false"},
    {"query_groups", "num_query_groups", "int", ""},
    {"head_dim_given", "kv_channels", "int", ""},
    {"ffn", "ffn_hidden_size", "int", ""},
    {"layers_given", "num_layers", "size", ""},
    {"encoder_layers", "encoder_num_layers", "int", ""},
    {"experts", "num_experts", "any", ""},
    {"topk", "moe_router_topk", "int", "2"},
    {"moe_ffn", "moe_ffn_hidden_size", "int", ""},
    {"router_groups", "moe_router_num_groups", "int", ""},
    {"router_group_topk", "moe_router_group_topk", "int", ""},
    {"router_dtype", "moe_router_dtype", "text", ""},
    {"router_score", "moe_router_score_function", "text", "softmax"},
    {"router_pre_softmax", "moe_router_pre_softmax", "bool", "false"},
    {"router_balancing", "moe_router_load_balancing_type", "text", "aux_loss"},
    {"expert_bias", "moe_router_enable_expert_bias", "bool", "false"},
    {"dispatcher", "moe_token_dispatcher_type", "text", "allgather"},
    {"deepep", "moe_enable_deepep", "bool", "false"},
    {"flex_backend", "moe_flex_dispatcher_backend", "text", ""},
    {"shared_overlap", "moe_shared_expert_overlap", "bool", "false"},
    {"capacity", "moe_expert_capacity_factor", "number", ""},
    {"pad_capacity", "moe_pad_expert_input_to_capacity", "bool", "false"},
    {"no_bias", "disable_bias_linear no_add_bias_linear", "bool", "false"},
    {"use_ckpt_args", "use_checkpoint_args", "bool", "false"},
    {"yaml_cfg", "yaml_cfg", "any", ""},
    {"vocab", "padded_vocab_size", "int", ""},
    {"attn", "attention_backend", "text", "auto"},
    {"cp_comm", "cp_comm_type", "text", "p2p"},
    {"cp_hier", "hierarchical_context_parallel_sizes", "list", ""},
    {"tp_overlap", "tp_comm_overlap", "bool", "false"},
    {"vpp_layers", "num_layers_per_virtual_pipeline_stage", "size", ""},
    {"vpp_stages", "num_virtual_stages_per_pipeline_rank", "size", ""},
    {"layout", "pipeline_model_parallel_layout", "text", ""},
    {"first_layers", "decoder_first_pipeline_num_layers", "int", ""},
    {"last_layers", "decoder_last_pipeline_num_layers", "int", ""},
    {"account_embedding", "account_for_embedding_in_pipeline_split", "bool", "false"},
    {"account_loss", "account_for_loss_in_pipeline_split", "bool", "false"},
    {"no_overlap_p2p", "no_overlap_p2p_communication", "bool", "false"},
    {"vpp_group", "microbatch_group_size_per_virtual_pipeline_stage", "int", ""},
    {"pattern_new", "hybrid_layer_pattern", "text", ""},
    {"pattern_old", "hybrid_override_pattern", "text", ""},
    {"mtp_layers", "mtp_num_layers", "int", ""},
    {"dist_opt", "use_distributed_optimizer", "bool", "false"},
    {"overlap_grads", "overlap_grad_reduce", "bool", "false"},
    {"overlap_params", "overlap_param_gather", "bool", "false"},
    {"overlap_params_step", "overlap_param_gather_with_optimizer_step", "bool", "false"},
    {"megatron_fsdp", "use_megatron_fsdp use_custom_fsdp", "bool", "false"},
    {"torch_fsdp", "use_torch_fsdp2", "bool", "false"},
    {"optimizer", "optimizer", "text", "adam"},
    {"bucket", "ddp_bucket_size bucket_size", "int", ""},
    {"num_buckets", "ddp_num_buckets num_buckets", "int", ""},
    {"per_token_loss", "calculate_per_token_loss", "bool", "false"},
    {"average_in_collective", "ddp_average_in_collective", "bool", "false"},
    {"steps", "train_iters", "int", ""},
    {"samples", "train_samples", "int", ""},
    {"skip_train", "skip_train", "bool", "false"},
    {"decay_iters", "lr_decay_iters", "int", ""},
    {"decay_samples", "lr_decay_samples", "int", ""},
    {"warmup_iters", "lr_warmup_iters", "int", "0"},
    {"warmup_samples", "lr_warmup_samples", "int", "0"},
    {"warmup_fraction", "lr_warmup_fraction", "number", ""},
    {"lr", "lr", "number", ""},
    {"min_lr", "min_lr", "number", "0"},
    {"schedule", "lr_decay_style", "text", "linear"},
    {"wsd_iters", "lr_wsd_decay_iters", "int", ""},
    {"wsd_samples", "lr_wsd_decay_samples", "int", ""},
    {"override_sched", "override_opt_param_scheduler", "bool", "false"},
    {"use_ckpt_sched", "use_checkpoint_opt_param_scheduler", "bool", "false"},
    {"save", "save", "text", ""},
    {"save_every", "save_interval", "int", ""},
    {"save_retain", "save_retain_interval", "int", ""},
    {"ckpt_format", "ckpt_format", "text", "torch_dist"},
    {"async_save", "async_save", "bool", "false"},
    {"bf16", "bf16", "bool", "false"},
    {"fp16", "fp16", "bool", "false"},
    {"fp8", "fp8_format", "any", ""},
    {"fp4", "fp4_format", "any", ""},
    {"recompute", "recompute_granularity", "text", ""},
    {"recompute_method", "recompute_method", "text", ""},
    {"recompute_layers", "recompute_num_layers", "int", ""},
    {"distribute_saved", "distribute_saved_activations", "bool", "false"},
    {"rl_step", "perform_rl_step", "bool", "false"},
    {"sft", "sft", "bool", "false"},
    {"swiglu", "swiglu", "bool", "false"},
    {"overlap_ep", "overlap_moe_expert_parallel_comm", "bool", "false"},
    {"removed_batch_size", "batch_size", "any", ""},
    {"removed_warmup", "warmup", "any", ""},
    {"removed_model_parallel", "model_parallel_size", "any", ""},
    {"removed_checkpoint_activations", "checkpoint_activations", "any", ""},
    {"eval_gbs", "eval_global_batch_size", "int", ""},
    {"eval_mbs", "eval_micro_batch_size", "int", ""},
    {"rl_prompts", "grpo_prompts_per_step", "int", "32"},
    {"rl_group", "grpo_group_size", "int", "2"},
    {"rl_iterations", "grpo_iterations", "int", "2"},
    {"rl_packing", "rl_use_sequence_packing", "bool", "false"},
    {"mla", "multi_latent_attention", "bool", "false"},
    {"mla_fusion", "mla_down_proj_fusion", "bool", "false"},
    {"position", "position_embedding_type", "text", "learned_absolute"},
    {"mrope", "mrope_section", "any", ""},
    {"squared_relu", "squared_relu", "bool", "false"},
    {"log_memory", "log_memory_interval", "int", ""},
    {"log_every", "log_interval", "int", "100"},
    {"upcycling", "moe_use_upcycling", "bool", "false"},
    {"latent", "moe_latent_size", "int", ""},
    {"grouped_gemm", "moe_grouped_gemm", "bool", "false"},
    {"delay_wgrad", "delay_wgrad_compute", "bool", "false"},
    {"router_padding", "moe_router_padding_for_quantization moe_router_padding_for_fp8", "bool",
     "false"},
    {"batch_invariant", "batch_invariant_mode", "bool", "false"},
    {"hybrid_cp", "hybrid_context_parallel", "bool", "false"},
    {"dataloader", "dataloader_type", "text", "single"},
    {"enable_graph", "enable_cuda_graph", "bool", "false"},
    {"graph_impl", "cuda_graph_impl", "text", "none"},
    {"grads_bf16", "grad_reduce_in_bf16", "bool", "false"},
    {"offload_optimizer", "optimizer_cpu_offload", "bool", "false"},
    {"precision_aware", "use_precision_aware_optimizer", "bool", "false"},
    {"grads_dtype", "main_grads_dtype", "text", "fp32"},
    {"params_dtype", "main_params_dtype", "text", "fp32"},
    {"avg_dtype", "exp_avg_dtype", "text", "fp32"},
    {"avg_sq_dtype", "exp_avg_sq_dtype", "text", "fp32"},
    {"grads_fp32", "accumulate_allreduce_grads_in_fp32", "bool", "false"},
    {"freeze_all", "freeze_all_layers", "bool", "false"},
    {"save_params", "save_params_interval", "int", ""},
    {"main_params_load", "load_main_params_from_ckpt", "bool", "false"},
    {"no_load_optim", "no_load_optim", "bool", "false"},
    {"override_iteration", "ckpt_step override_ckpt_iteration", "any", ""},
    {"override_only", "override_ckpt_iteration", "any", ""},
    {"finetune", "finetune", "bool", "false"},
    {"load", "load", "any", ""},
    {"pretrained", "pretrained_checkpoint", "any", ""},
    {"local_type", "non_persistent_ckpt_type", "text", ""},
    {"local_dir", "non_persistent_local_ckpt_dir", "any", ""},
    {"replication", "replication", "bool", "false"},
    {"replication_jump", "replication_jump", "int", ""},
    {"old_ckpt", "use_dist_ckpt ckpt_fully_parallel_save dist_ckpt_format", "any", ""},
    {"no_parallel_save", "no_ckpt_fully_parallel_save", "bool", "false"},
    {"persistent_worker", "use_persistent_ckpt_worker", "bool", "false"},
    {"fp8_gather", "fp8_param_gather", "bool", "false"},
    {"fp4_gather", "fp4_param_gather", "bool", "false"},
    {"fp8_recipe", "fp8_recipe", "text", "delayed"},
    {"fp8_attention", "fp8_dot_product_attention fp8_multi_head_attention", "bool", "false"},
    {"fp32_residual", "fp32_residual_connection", "bool", "false"},
    {"fp16_loss", "fp16_lm_cross_entropy", "bool", "false"},
    {"mock", "mock_data", "bool", "false"},
    {"data_path_arg", "data_path", "any", ""},
    {"data_args", "data_args_path", "any", ""},
    {"split_data", "train_data_path valid_data_path test_data_path", "any", ""},
    {"split_args", "per_split_data_args_path", "any", ""},
    {"builder_threads", "num_dataset_builder_threads", "int", "1"},
    {"wd_style", "weight_decay_incr_style", "text", "constant"},
    {"wd_start", "start_weight_decay", "number", ""},
    {"wd_end", "end_weight_decay", "number", ""},
    {"reset_mask", "reset_attention_mask reset_position_ids create_attention_mask_in_dataloader",
     "bool", "false"},
    {"cpu_offloading", "cpu_offloading", "bool", "false"},
    {"logits_dir", "logits_save_dir", "any", ""},
    {"logits_top", "logits_save_top_k", "int", ""},
    {"untied", "untie_embeddings_and_output_weights", "bool", "false"},
    {"defer_wgrad", "defer_embedding_wgrad_compute", "bool", "false"},
    {"no_wgrad_fusion", "no_gradient_accumulation_fusion", "bool", "false"},
    {"softmax_type", "softmax_type", "text", "vanilla"},
    {"window", "window_size", "any", ""},
    {"te_loss", "cross_entropy_fusion_impl", "text", "native"},
    {"loss_fusion", "cross_entropy_loss_fusion", "bool", "false"},
    {"mamba_heads", "mamba_num_heads", "int", ""},
    {"mamba_groups", "mamba_num_groups", "int", "8"},
    {0},
};

static struct rules_value fact(const struct rules_check *check, const char *name)
{
    return rules_fact_find(&check->facts, name)->value;
}

/* Appends text[..end) with x*n and (..)*n multiplied out; commas mean nothing. */
static void add_layout(struct s2s_buf *out, const char *s, const char *end, int depth)
{
    enum { MOST = 20000, DEEPEST = 8 };
    while (s < end && out->len < MOST) {
        const char *unit = s, *stop = s + 1;
        if (*s == '(') {
            int open = 1;
            for (; stop < end && open; stop++)
                open += (*stop == '(') - (*stop == ')');
        }
        const char *next = stop;
        long times = 1;
        if (next < end && *next == '*')
            times = strtol(next + 1, (char **)&next, 10);
        for (long i = 0; i < times && out->len < MOST; i++) {
            if (*unit == '(' && depth < DEEPEST)
                add_layout(out, unit + 1, stop - 1, depth + 1);
            else if (*unit != ',' && *unit != ' ')
                s2s_buf_putc(out, *unit);
        }
        s = next;
    }
}

/* What is wrong with the m, multi-token prediction, of a layout with n_stages; NULL if nothing. */
static const char *mtp_fault(const struct rules_check *check, const char *layout, int64_t n_stages)
{
    struct rules_value pp = fact(check, "pp"), mtp = fact(check, "mtp_layers");
    const char *first = strchr(layout, 'm'), *last = strrchr(layout, 'm');
    int64_t n = 0, stage = 0;
    for (const char *s = layout; *s; s++) {
        n += *s == 'm';
        stage += *s == '|' && first && s < first;
    }
    if ((mtp.type == RULES_INT && mtp.i != n) || (mtp.type == RULES_NULL && n))
        return "its m are not as many as mtp-num-layers";
    if (!first)
        return NULL;
    if (strchr(first, 't'))
        return "a t stands behind an m";
    if (memchr(first, '|', (size_t)(last - first)))
        return "its m are not in one stage";
    bool ranks = check->report->dialect == S2S_DIALECT_MLM && pp.type == RULES_INT && pp.i > 0;
    return ranks && stage / pp.i < n_stages / pp.i - 1 ? "its m are not in a last virtual stage"
                                                       : NULL;
}

/* What a layout says: virtual stages, and what is wrong with it in itself. */
static void lower_layout(struct rules_check *check)
{
    struct rules_value layout = fact(check, "layout"), layers = fact(check, "layers_given");
    bool known = layout.type == RULES_TEXT && !strpbrk(layout.s, "[.$/");
    struct rules_value stages = layout.type == RULES_NULL ? rules_null() : rules_unknown();
    struct rules_value fault = stages;
    if (known) {
        struct s2s_buf text = S2S_BUF_INIT;
        int64_t n = 1, n_t = 0, n_e = 0, n_l = 0;
        add_layout(&text, layout.s, layout.s + strlen(layout.s), 0);
        s2s_buf_putc(&text, 0);
        for (const char *s = text.data; *s; s++) {
            n += *s == '|';
            n_t += *s == 't';
            n_e += *s == 'E';
            n_l += *s == 'L';
        }
        size_t len = strlen(text.data);
        bool counted = layers.type == RULES_INT && layers.i != n_t;
        const char *wrong = text.data[strspn(text.data, "EtmL|")]
                                ? "a letter that is none of E t m L |"
                            : n_e != 1 || n_l != 1      ? "E and L must stand in it once each"
                            : text.data[0] != 'E'       ? "it does not begin with E"
                            : text.data[len - 1] != 'L' ? "it does not end with L"
                            : counted                   ? "its t are not as many as num-layers"
                                                        : mtp_fault(check, text.data, n);
        stages = rules_int(n);
        fault = wrong ? rules_text(wrong) : rules_null();
        s2s_buf_release(&text);
    }
    rules_fact_set(&check->facts, "layout_stages", stages);
    rules_fact_set(&check->facts, "layout_fault", fault);
}

static struct rules_value env_int(const struct rules_check *check, const char *name)
{
    struct rules_value v = fact(check, name);
    int64_t n = 0;
    bool number = v.type == RULES_TEXT && *v.s && !v.s[strspn(v.s, "0123456789")];
    for (const char *s = number ? v.s : ""; *s && n < INT32_MAX; s++)
        n = 10 * n + (*s - '0');
    return number && n > 0 ? rules_int(n) : rules_unknown();
}

/* How many ranks #SBATCH and srun start; null if the file is no such script. */
static void lower_batch(struct rules_check *check)
{
    static const struct {
        const char *fact, *key;
    } names[] = {{"batch_world", "BATCH.world"},
                 {"batch_nodes", "BATCH.nodes"},
                 {"batch_gpus", "BATCH.gpus_per_node"},
                 {"batch_tasks", "BATCH.tasks_per_node"},
                 {"guard", "GUARD"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct s2s_conf *node =
            check->report->raw ? s2s_conf_find(check->report->raw, names[i].key) : NULL;
        struct rules_fact *f = rules_fact_make(&check->facts, names[i].fact);
        f->value = rules_value_of(node);
        f->node = node;
        f->key = names[i].key;
    }
}

static void lower_world(struct rules_check *check)
{
    struct rules_facts *f = &check->facts;
    struct rules_value nodes = env_int(check, "env_nodes"), gpus = env_int(check, "env_gpus");
    struct rules_value torchrun = nodes.type == RULES_INT && gpus.type == RULES_INT
                                      ? rules_int(nodes.i * gpus.i)
                                      : rules_unknown();
    rules_fact_set(f, "torchrun_world", torchrun);
    rules_fact_set(f, "env_world_size", env_int(check, "env_world"));
    rules_fact_set(f, "env_nnodes", nodes);
    rules_fact_set(f, "env_nproc", gpus);
    static const struct rules_derived derived[] = {
        {"world", "if(world_given != null, world_given, if(known(env_world_size), env_world_size, "
                  "if(known(torchrun_world), torchrun_world, if(set(batch_world), batch_world, "
                  "unknown))))"},
        {"gpus_per_node", "if(gpus_given != null, gpus_given, if(known(env_nproc), env_nproc, "
                          "if(set(batch_gpus), batch_gpus, if(set(batch_tasks), batch_tasks, "
                          "unknown))))"},
        {0},
    };
    rules_lower_derived(check, derived);
}

/* Everything that the arguments say by themselves. */
void rules_lower_mlm_arguments(struct rules_check *check)
{
    rules_lower_map(check, map);
    /* `0` experts, and a list of them in old models, mean what they say elsewhere */
    struct rules_fact *experts = rules_fact_find(&check->facts, "experts");
    if (experts->value.type == RULES_INT && experts->value.i == 0)
        experts->value = rules_null();
    else if (experts->value.type == RULES_FLOAT || experts->value.type == RULES_TEXT)
        rules_find(check, "S2S-CFG-004", experts->node, false, "",
                   "expected an integer, found '%s'", experts->node->text);
    if (experts->value.type != RULES_INT && experts->value.type != RULES_NULL)
        experts->value = rules_unknown();
    static const struct rules_env env[] = {{"max_connections", "CUDA_DEVICE_MAX_CONNECTIONS"},
                                           {"nvte_flash", "NVTE_FLASH_ATTN"},
                                           {"nvte_fused", "NVTE_FUSED_ATTN"},
                                           {"nvte_unfused", "NVTE_UNFUSED_ATTN"},
                                           {"env_world", "WORLD_SIZE"},
                                           {"env_gpus", "GPUS_PER_NODE"},
                                           {"env_nodes", "NUM_NODES"},
                                           {0}};
    rules_lower_pattern(check);
    lower_layout(check);
    rules_lower_env(check, env);
    rules_lower_mlm_run(check);
    lower_batch(check);
    lower_world(check);
}

/* What follows once the sizes and dp are known. */
void rules_lower_mlm_derived(struct rules_check *check)
{
    static const struct rules_derived derived[] = {
        {"gbs", "if(gbs_given != null, gbs_given, if(step_schedule != null, unknown, mbs*dp))"},
        {"nmb", "gbs / (mbs*dp_batch)"},
        {"seq", "if(seq_given == null, encoder_seq, seq_given)"},
        {"layers", "if(hybrid, pattern_layers, if(layers_given == null, encoder_layers, "
                   "layers_given))"},
        {"kv_heads", "if(gqa, query_groups, heads)"},
        {"split_layers", "layers + if(account_embedding, 1, 0) + if(account_loss, 1, 0)"},
        {"uneven", "first_layers != null or last_layers != null or layout != null or hybrid"},
        {"vpp", "if(vpp_stages != null, vpp_stages, if(vpp_layers != null, split_layers / pp / "
                "vpp_layers, if(layout != null, layout_stages / pp, if(pattern_segments != null, "
                "pattern_segments / pp, 1))))"},
        /* what the largest stage holds; embedding and loss count as a layer each */
        {"free_stages", "pp - if(first_layers == null, 0, 1) - if(last_layers == null, 0, 1)"},
        {"rest_layers", "layers - if(first_layers == null, 0, first_layers) - if(last_layers == "
                        "null, 0, last_layers)"},
        {"stage_most",
         "if(layout != null or hybrid or vpp_layers != null, unknown, if(first_layers == null and "
         "last_layers == null, split_layers / pp + if(account_embedding and account_loss, 0, 1), "
         "max(max(if(first_layers == null, rest_layers / free_stages, first_layers), "
         "if(last_layers == null, rest_layers / free_stages, last_layers)) + 1, if(free_stages > "
         "0, rest_layers / free_stages, 0))))"},
        {"group", "if(vpp_group == null, pp, vpp_group)"},
        {"decay", "if(decay_iters == null, steps, decay_iters)"},
        {"warmup", "if(decay_samples == null and samples == null, warmup_iters, 0)"},
        {"no_recompute", "recompute == null"},
        {"bubble", "100*(pp - 1) // (nmb + pp - 1)"},
        {"linear_attention", "null"},
        {"packed", "sft"},
        {"head_dim", "if(head_dim_given == null, hidden / heads, head_dim_given)"},
        {"sizes_given", "if(layers != null, 1, 0) + if(hidden != null, 1, 0) + if(heads != null, "
                        "1, 0) + if(mpe != null, 1, 0)"},
        {"mamba_inner", "if(mamba_heads == null, 2*hidden, mamba_heads*mamba_head_dim)"},
        {"mamba_in_width", "2*mamba_inner + 2*mamba_groups*mamba_state + if(mamba_heads == null, "
                           "mamba_inner / mamba_head_dim, mamba_heads)"},
        {"fp8_block", "if(fp8_recipe == 'mxfp8', 32, if(fp8_recipe == 'blockwise', 128, 16))"},
        {"rl_step_iterations", "rl_prompts*rl_group*rl_iterations / gbs"},
        {"dense_ffn", "if(ffn != null, ffn, if(swiglu, 8*hidden // 192 * 64, 4*hidden))"},
        {"layer_ffn",
         "if(experts == null, dense_ffn, experts*if(moe_ffn == null, dense_ffn, moe_ffn) / ep)"},
        {"layer_params", "hidden*(2*heads + 2*kv_heads)*if(head_dim_given == null, hidden / "
                         "heads, head_dim_given) + if(swiglu, 3, 2)*hidden*layer_ffn"},
        {"stage_params", "layers*layer_params // (tp*pp)"},
        {0},
    };
    rules_lower_derived(check, derived);
    rules_lower_mlm_sequence(check);
}

int rules_lower_mlm(struct rules_check *check)
{
    static const struct rules_derived derived[] = {
        {"etp", "if(etp_given == null, tp, etp_given)"},
        {"gtp", "if(weight_shards == null, 1, weight_shards / tp)"},
        {"egtp", "if(expert_shards == null, 1, expert_shards / etp)"},
        {"strategy", "null"},
        {"dp_cfg", "null"},
        {"dp", "world / (tp*cp*pp*gtp)"},
        {"dp_batch", "dp*gtp"}, /* replicas, and the shards of their weights: each has samples */
        {0},
    };
    const struct s2s_conf *raw = check->report->raw;
    check->incomplete = raw && s2s_conf_key(raw, "PART");
    rules_lower_mlm_arguments(check);
    check->incomplete = false;
    rules_lower_derived(check, derived);
    rules_lower_mlm_derived(check);
    return 0;
}

/* ---- MODEL_ARGS ---- */

/* "--a-b_c" -> "a_b_c"; "" if it is no flag */
static void normalise(char *out, size_t size, const char *flag)
{
    size_t n = 0;
    flag += strspn(flag, "-");
    for (; *flag && n + 1 < size; flag++)
        out[n++] = *flag == '-' ? '_' : *flag;
    out[n] = 0;
}

/* "2 4" of a flag that takes several words */
static void set_words(struct s2s_conf *args, const char *name, const struct s2s_conf *value)
{
    static const char *const lists[] = {"hierarchical_context_parallel_sizes", NULL};
    bool list = false;
    for (int i = 0; lists[i]; i++)
        list |= !strcmp(lists[i], name);
    if (!list || !value->text) {
        s2s_conf_set(args, name, value, NULL);
        return;
    }
    struct s2s_buf text = S2S_BUF_INIT;
    s2s_buf_putc(&text, '[');
    for (const char *s = value->text; *s; s++)
        s2s_buf_putc(&text, *s == ' ' ? ',' : *s);
    s2s_buf_putc(&text, ']');
    s2s_conf_set_text(args, name, text.data, S2S_CONF_FROM_DERIVED, "derived", NULL);
    struct s2s_conf *node = (struct s2s_conf *)s2s_conf_key(args, name);
    s2s_buf_release(&text);
    if (node && value->place.source) {
        /* the place stays the flag's; its source is kept alive by the report's raw tree */
        node->place = value->place;
    }
}

/* a file for inference trains nothing, whatever its arguments say */
static bool is_inference(const struct s2s_conf *config)
{
    static const char *const names[] = {"inference", "text_gen", "generate", NULL};
    const struct s2s_conf *mode = s2s_conf_key(config, "MODE"),
                          *program = s2s_conf_key(config, "PROGRAM");
    if (mode && mode->text && !strcmp(mode->text, "inference"))
        return true;
    for (int i = 0; program && program->text && names[i]; i++)
        if (strstr(program->text, names[i]))
            return true;
    return false;
}

static void set_argument(struct s2s_conf *args, const struct s2s_conf *item)
{
    char name[128];
    normalise(name, sizeof name, item->key);
    if (!*name || (item->kind == S2S_CONF_BOOL && !item->as_bool))
        return;
    set_words(args, name, item);
    struct s2s_conf *node = (struct s2s_conf *)s2s_conf_key(args, name);
    if (node)
        s2s_conf_retype(node);
}

/* A file of --yaml-cfg: sections of the model and its parallelism, the rest beside them. Groups of
 * queries need no further switch there. */
static void set_sections(struct s2s_conf *args, const struct s2s_conf *config)
{
    static const char *const names[] = {"language_model", "model_parallel"};
    for (size_t i = 0; i < config->n_items; i++)
        if (config->items[i]->kind != S2S_CONF_MAP)
            set_argument(args, config->items[i]);
    for (size_t k = 0; k < 2; k++) {
        const struct s2s_conf *section = rules_section(config, names[k]);
        for (size_t i = 0; section && i < section->n_items; i++)
            if (section->items[i]->kind != S2S_CONF_NULL)
                set_argument(args, section->items[i]);
    }
    if (s2s_conf_key(args, "num_query_groups"))
        s2s_conf_set_text(args, "group_query_attention", "true", S2S_CONF_FROM_DERIVED, "derived",
                          NULL);
    const struct s2s_conf *experts = s2s_conf_key(args, "num_moe_experts");
    if (experts)
        s2s_conf_set(args, "num_experts", experts, NULL);
}

int rules_args_of_yaml(struct rules_check *check)
{
    struct s2s_conf *config = check->conf;
    const struct s2s_conf *section = rules_section(config, "MODEL_ARGS");
    struct s2s_conf *args = s2s_conf_new(S2S_CONF_FROM_FILE, check->report->path);
    if (!section)
        section = rules_section(config, "BASE_MODEL_ARGS");
    args->place = config->place;
    check->env_vars = rules_section(config, "ENV_VARS");
    for (size_t i = 0; section && i < section->n_items; i++)
        set_argument(args, section->items[i]);
    if (!section)
        set_sections(args, config);
    if (is_inference(config))
        s2s_conf_set_text(args, "skip_train", "true", S2S_CONF_FROM_DERIVED, "derived", NULL);
    check->report->raw = config;
    check->report->conf = check->conf = args;
    return 0;
}
