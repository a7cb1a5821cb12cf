/* Megatron-LM arguments: optimizer, schedule, checkpoints, precision, recomputation, environment:
 * what needs or excludes another. */
#include "lib/rules/rules_internal.h"

#define MEGATRON (S2S_DIALECT_MLM | S2S_DIALECT_HET)
#define ERROR S2S_SEVERITY_ERROR
#define WARNING S2S_SEVERITY_WARNING
#define INFO S2S_SEVERITY_INFO

#define ARGS "megatron/training/arguments.py:validate_args"
#define CONFIG "megatron/core/transformer/transformer_config.py"

const struct s2s_rule rules_mlm_train[] = {
    {
        .id = "S2S-OPT-012",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "megatron_fsdp and ((fsdp_version == 2 and dist_opt) or optimizer not in ('sgd', "
                "'adam') or single_weight or (meta_device and sharding == 'no_shard'))",
        .at = "megatron_fsdp",
        .message = "Megatron-FSDP with {if(optimizer not in ('sgd', 'adam'), 'an optimizer that "
                   "is neither sgd nor adam', if(single_weight, 'single grouped weights', "
                   "if(meta_device and sharding == 'no_shard', 'meta initialisation but nothing "
                   "sharded', 'the distributed optimizer, in its version 2')))}",
        .fix = "leave one of the two out",
        .why = "It keeps parameters and optimizer states its own way.",
        .source = ARGS,
        .after = "S2S-OPT-013",
    },
    {
        .id = "S2S-OPT-014",
        .dialects = MEGATRON,
        .severity = INFO,
        .when = "pad_buckets and not dist_opt",
        .at = "pad_buckets",
        .message = "ddp-pad-buckets-for-high-nccl-busbw without the distributed optimizer has no "
                   "effect",
        .fix = "leave it out, or add --use-distributed-optimizer",
        .why = "Only buckets that are sharded are padded.",
        .source = "megatron/core/distributed/distributed_data_parallel_config.py",
    },
    {
        .id = "S2S-OPT-015",
        .dialects = MEGATRON,
        .severity = INFO,
        .when = "not no_wgrad_fusion and trains and (backend == 'gloo' or visible_devices == 0)",
        .at = "backend",
        .message = "gradient-accumulation fusion is on by default, but this runs without GPUs",
        .fix = "add --no-gradient-accumulation-fusion",
        .why = "The extension that it needs is not there in CPU builds, and the start fails.",
        .source = "megatron/core/tensor_parallel/layers.py",
    },
    {
        .id = "S2S-OPT-018",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "gtp > 1 and (average_in_collective or ckpt_format not in ('torch', "
                "'torch_dist') or (set(fp8) and fp8_recipe == 'mxfp8' and (not fp8_gather or not "
                "reuse_grads)) or (set(fp4) and not fp4_gather))",
        .at = "weight_shards",
        .message = "extra weight shards (gtp {gtp}) with {if(average_in_collective, "
                   "'ddp-average-in-collective', if(ckpt_format not in ('torch', 'torch_dist'), 'a "
                   "checkpoint format other than torch and torch_dist', if(set(fp4) and not "
                   "fp4_gather, 'FP4 but no fp4-param-gather', 'mxfp8 but no fp8-param-gather with "
                   "reuse-grad-buf-for-mxfp8-param-ag')))}",
        .fix = "leave averaging out, use --ckpt-format torch_dist, gather weights in their "
               "narrow type",
        .why = "The shards are gathered in the type that they are stored in.",
        .source = ARGS,
    },
    {
        .id = "S2S-SCH-009",
        .dialects = S2S_DIALECT_MLM,
        .severity = ERROR,
        .when =
            "closed_args and trains and yaml_cfg == null and not skip_train and sizes_given >= 3 "
            "and set(lr) and steps == null and samples == null",
        .at = "lr mbs",
        .message = "neither train-iters nor train-samples is given",
        .fix = "give one of them",
        .why = "The length of the run has no default.",
        .source = "megatron/training/training.py:get_optimizer_param_scheduler",
    },
    {
        .id = "S2S-SCH-016",
        .dialects = MEGATRON,
        .severity = INFO,
        .when = "samples > 0 and rampup == null and step_schedule == null and gbs not divides "
                "samples",
        .at = "samples",
        .message = "train-samples {samples} is not a multiple of the global batch of {gbs}: the "
                   "run has {up(samples, gbs) // gbs} iterations, the last one partly full",
        .fix = "use {near(samples, gbs)}",
        .why = "The samples of the last step are counted, or dropped, by the trainer's rounding.",
        .source = "examples/mimo/training; derived",
    },
    {
        .id = "S2S-SCH-017",
        .dialects = S2S_DIALECT_HET,
        .severity = INFO,
        .when = "early and set(steps) and set(samples)",
        .at = "steps",
        .message = "train-iters and train-samples are both given: the samples win",
        .fix = "leave --train-iters out",
        .why = "The number of iterations follows from the samples.",
        .source = "examples/mimo/training/hetero/args.py",
    },
    {
        .id = "S2S-SCH-020",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "rl_step and rl_step_iterations > 0 and (rl_step_iterations not divides "
                "exit_every or rl_step_iterations not divides save_every)",
        .at = "save_every exit_every",
        .message = "save-interval {save_every} or exit-interval {exit_every} is no multiple of "
                   "the {rl_step_iterations} training iterations of a generation",
        .fix = "use multiples of {rl_step_iterations}",
        .why = "Generated data is not saved, so a run can only stop between generations.",
        .source = ARGS,
        .after = "S2S-BAT-014",
    },
    {
        .id = "S2S-CKP-008",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "no_gloo and dist_opt and optimizer in ('adam', 'sgd') and (ckpt_format == "
                "'torch' or (reshardable and reshard_lean))",
        .at = "no_gloo",
        .message = "no Gloo groups with the distributed optimizer and {if(ckpt_format == "
                   "'torch', 'checkpoint format torch', 'the mem-efficient fully reshardable "
                   "mode')}",
        .fix = "use --ckpt-format torch_dist, without the mem-efficient mode",
        .why = "The whole optimizer state is collected in host memory through Gloo.",
        .source = ARGS,
    },
    {
        .id = "S2S-CKP-011",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "set(pg_cache) and save_group != load_group",
        .at = "load_group save_group pg_cache",
        .message = "ckpt-pg-tensors-cache-path with save group {save_group} and load group "
                   "{load_group}",
        .fix = "use the same group for both",
        .why = "The cache is keyed by the group: one side would read the other's distribution.",
        .source = ARGS,
    },
    {
        .id = "S2S-CKP-015",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "dist_opt and ckpt_format == 'torch_dist' and not no_load_optim and not finetune "
                "and set(load) and not previous_reshardable and (previous_save == null or "
                "load == previous_save or not known(load) or not known(previous_save)) and "
                "(tp != previous_tp or pp != previous_pp or ep != previous_ep) and previous_tp != "
                "null",
        .at = "tp pp ep load",
        .message = "the run that is resumed had tp {previous_tp}, pp {previous_pp}, ep "
                   "{previous_ep}; this one has tp {tp}, pp {pp}, ep {ep}",
        .fix = "keep the sizes, or save with --dist-ckpt-optim-fully-reshardable before",
        .why = "The optimizer's shards are cut for the data-parallel ranks of one model-parallel "
               "layout, and fit no other.",
        .source = "megatron/core/optimizer/distrib_optimizer.py:"
                  "load_parameter_state_from_dp_reshardable",
    },
    {
        .id = "S2S-CKP-017",
        .dialects = S2S_DIALECT_HET,
        .severity = ERROR,
        .when = "(set(nemotron_load) and set(load)) or (early and set(save_every) and not "
                "set(save))",
        .at = "nemotron_load save_every",
        .message = "{if(set(nemotron_load), 'load and load-nemotron-checkpoint are both given', "
                   "'save-interval without save')}",
        .fix = "{if(set(nemotron_load), 'keep one', 'give --save')}",
        .why = "Weights come from one checkpoint, and saving needs a place.",
        .source = "examples/mimo/training/hetero/args.py",
    },
    {
        .id = "S2S-CKP-018",
        .dialects = MEGATRON,
        .severity = WARNING,
        .when = "reshardable and not reshard_lean and dist_opt and 12*stage_params > "
                "device_gib*1073741824",
        .at = "reshardable",
        .message = "dp rank 0 gathers about {12*stage_params // 1073741824} GiB of optimizer "
                   "state to save it fully reshardable, a {device} has {device_gib} GiB",
        .fix = "leave --dist-ckpt-optim-fully-reshardable out, or add "
               "--distrib-optim-fully-reshardable-mem-efficient",
        .why = "Master weights and both moments of a stage come together on one GPU: 12 bytes a "
               "parameter.",
        .source = "note of the option",
    },
    {
        .id = "S2S-CKP-021",
        .dialects = MEGATRON,
        .severity = INFO,
        .when = "(upcycling or (set(skip_train) and skip_train and not inference and not "
                "rl_step)) and not no_load_optim",
        .at = "upcycling skip_train",
        .message = "{if(upcycling, 'moe-use-upcycling', 'skip-train')} switches no-load-optim on",
        .fix = "write --no-load-optim, to be plain",
        .why = "There is no optimizer state to load.",
        .source = ARGS,
    },
    {
        .id = "S2S-PRC-004",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "set(fp8) and edge_bf16 and (fp8_recipe == 'delayed' or first_bf16 < 0 or "
                "last_bf16 < 0 or first_bf16 > layers // pp or last_bf16 > layers // pp)",
        .at = "edge_bf16 first_bf16 last_bf16",
        .message = "{if(fp8_recipe == 'delayed', 'first-last-layers-bf16 with delayed scaling', "
                   "'more layers in bf16 than a pipeline stage has')}",
        .fix = "{if(fp8_recipe == 'delayed', 'use another --fp8-recipe', 'use fewer')}",
        .why = "Delayed scaling keeps one history for all layers; the counts are of one stage.",
        .source = CONFIG,
    },
    {
        .id = "S2S-PRC-005",
        .dialects = MEGATRON,
        .severity = WARNING,
        .when = "set(fp8) and seq*mbs % (cp*if(sp, tp, 1)*fp8_block) != 0",
        .at = "seq_given mbs",
        .message = "{seq} * {mbs} tokens over cp {cp}{if(sp and tp > 1, ' and tp', '')} are no "
                   "multiple of the {fp8_block} that FP8 ({fp8_recipe}) works in",
        .fix = "use a seq-length that is a multiple of {cp*if(sp, tp, 1)*fp8_block}",
        .why = "Products are padded, or fail.",
        .source = "nemo_rl/models/megatron/data.py",
        .after = "S2S-TP-004 S2S-CP-001",
    },
    {
        .id = "S2S-PRC-007",
        .dialects = MEGATRON,
        .severity = WARNING,
        .when = "te_loss == 'te'",
        .error_when = "loss_fusion and not yaml_sections",
        .at = "te_loss",
        .message = "cross-entropy-fusion-impl te is known to be unstable",
        .fix = "use native",
        .why = "With cross-entropy-loss-fusion it is refused at start; alone it has no effect.",
        .source = ARGS,
    },
    {
        .id = "S2S-PRC-008",
        .dialects = MEGATRON,
        .severity = INFO,
        .when = "fp16 and (loss_scale == null or loss_scale == 0) and not no_nan_check",
        .at = "fp16",
        .message = "fp16 with dynamic loss scaling: the check for NaN in loss and gradients is "
                   "switched off",
        .fix = "add --no-check-for-nan-in-loss-and-grad, to be plain",
        .why = "An overflow is how the scale is found.",
        .source = ARGS,
    },
    {
        .id = "S2S-PRC-015",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "deterministic and ((known(nvte_nondeterministic) and nvte_nondeterministic != "
                "'0') or nccl_algo_stranger != null or (known(cublas_workspace) and "
                "cublas_workspace not in (':4096:8', ':16:8')))",
        .at = "nvte_nondeterministic nccl_algo cublas_workspace deterministic",
        .message = "deterministic-mode with {if(nccl_algo_stranger != null, 'an NCCL_ALGO whose "
                   "sums change their order', if(known(nvte_nondeterministic) and "
                   "nvte_nondeterministic != '0', 'NVTE_ALLOW_NONDETERMINISTIC_ALGO not 0', "
                   "'another CUBLAS_WORKSPACE_CONFIG'))}",
        .fix = "NCCL_ALGO=Ring NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 CUBLAS_WORKSPACE_CONFIG=:4096:8",
        .why = "Two runs would differ, which the mode promises not to do.",
        .source = "megatron/training/determinism.py",
    },
    {
        .id = "S2S-REC-005",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "recompute == 'selective' and ((has(recompute_modules, 'moe_act') and not "
                "grouped_gemm) or (has(recompute_modules, 'mla_up_proj') and not mla and not "
                "hybrid) or (has(recompute_modules, 'shared_experts') and shared_overlap and "
                "shared_ffn != null) or (has(recompute_modules, 'gdn_norm_out') and not "
                "starts(attention_variant, 'g')))",
        .at = "recompute_modules",
        .message = "recompute-modules: {if(has(recompute_modules, 'moe_act') and not "
                   "grouped_gemm, 'moe_act needs moe-grouped-gemm', if(has(recompute_modules, "
                   "'mla_up_proj') and not mla, 'mla_up_proj needs multi-latent-attention', "
                   "if(has(recompute_modules, 'shared_experts') and shared_overlap, "
                   "'shared_experts excludes moe-shared-expert-overlap', 'gdn_norm_out needs a "
                   "gated delta net')))}",
        .fix = "leave the module out, or switch on what it belongs to",
        .why = "The module is not there to be recomputed.",
        .source = CONFIG,
    },
    {
        .id = "S2S-REC-007",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "offload_acts and (offload_modules == null or stranger(offload_modules, "
                "'core_attn attn_proj expert_fc1 fused_group_mlp moe_act attn_norm mlp_norm "
                "qkv_linear gdp_qkv') != null or (has(offload_modules, 'attn_proj') and not "
                "has(offload_modules, 'core_attn')) or cpu_offloading or offload_layers > 0 or "
                "transformer_impl != 'transformer_engine' or (known(offload_v1) and offload_v1 "
                "!= '1'))",
        .at = "offload_modules offload_v1 offload_acts",
        .message =
            "fine-grained-activation-offloading with {if(offload_modules == null, 'no "
            "offload-modules', if(cpu_offloading or offload_layers > 0, 'cpu-offloading', "
            "if(has(offload_modules, 'attn_proj') and not has(offload_modules, 'core_attn'), "
            "'attn_proj but not core_attn', if(known(offload_v1) and offload_v1 != '1', "
            "'NVTE_CPU_OFFLOAD_V1 not 1', if(transformer_impl != 'transformer_engine', 'a "
            "transformer that is not of Transformer Engine', 'a module that it does not "
            "know')))))}",
        .fix = "name modules it knows, core_attn with attn_proj, and export NVTE_CPU_OFFLOAD_V1=1",
        .why = "Activations of named modules go to host memory; the other kind of offload would "
               "move them again.",
        .source = CONFIG,
    },
    {
        .id = "S2S-REC-008",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "(graph_impl == 'full_iteration' and ((not no_nan_check and not fp16) or "
                "set(graph_modules))) or (graph_impl in ('local', 'transformer_engine') and "
                "recompute == 'full') or (graph_impl in ('local', 'transformer_engine') and "
                "(has(graph_modules, 'moe') and has(graph_modules, 'moe_router'))) or "
                "(graph_impl == 'transformer_engine' and has(graph_modules, 'moe_preprocess') "
                "and not has(graph_modules, 'moe_router'))",
        .at = "graph_modules graph_impl recompute",
        .message = "CUDA graphs ({graph_impl}) with {if(graph_impl == 'full_iteration', "
                   "if(set(graph_modules), 'modules, though they take the whole iteration', 'the "
                   "check for NaN'), if(recompute == 'full', 'full recomputation', "
                   "if(has(graph_modules, 'moe_preprocess') and not has(graph_modules, "
                   "'moe_router'), 'moe_preprocess but not moe_router', 'both moe and "
                   "moe_router')))}",
        .fix = "{if(graph_impl == 'full_iteration', 'add --no-check-for-nan-in-loss-and-grad and "
               "name no modules', 'recompute selectively, and name moe_router with "
               "moe_preprocess')}",
        .why = "A graph is recorded once and replayed without the host.",
        .source = CONFIG,
    },
    {
        .id = "S2S-REC-009",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "(graph_impl == 'transformer_engine' or external_graph) and contains(alloc_conf, "
                "'expandable_segments:True') and ((known(graph_register) and graph_register != "
                "'0') or (not known(graph_register) and not set(graph_register)))",
        .at = "graph_register alloc_conf graph_impl",
        .message = "CUDA graphs with expandable segments of memory and NCCL_GRAPH_REGISTER not 0",
        .fix = "export NCCL_GRAPH_REGISTER=0",
        .why = "NCCL keeps addresses of the graph that the allocator may move.",
        .source = ARGS,
    },
    {
        .id = "S2S-REC-012",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "nccl_ub and contains(alloc_conf, 'expandable_segments:True') and not "
                "(known(torch) and not older(torch, '2.11'))",
        .at = "alloc_conf nccl_ub",
        .message = "nccl-ub with expandable segments of memory",
        .fix = "leave expandable_segments out of PYTORCH_CUDA_ALLOC_CONF",
        .why = "Before torch 2.11 registered buffers come from a pool that cannot grow. A newer "
               "one is said with --set torch=2.11.",
        .source = "megatron/core/distributed/distributed_data_parallel_config.py",
    },
    {
        .id = "S2S-DAT-003",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "fim and (mock or fim_rate == 0 or fim_spm_rate == 0 or fim_no_token)",
        .at = "fim_no_token fim_rate fim_spm_rate fim",
        .message = "fim-data with {if(mock, 'mock data', if(fim_rate == 0 or fim_spm_rate == 0, "
                   "'a rate of 0', 'a token that is null'))}",
        .fix = "use real data, rates above 0, and the tokenizer's five tokens for prefix, middle, "
               "suffix, pad and end",
        .why = "Documents are cut in three and put together around these tokens.",
        .source = ARGS,
    },
    {
        .id = "S2S-ENV-004",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "gtp > 1 and sm >= 100 and (graph_impl != 'none' or enable_graph or "
                "external_graph) and ((known(graph_priority) and graph_priority != '1') or (not "
                "known(graph_priority) and not set(graph_priority) and env_block))",
        .at = "graph_priority weight_shards",
        .message = "extra weight shards and CUDA graphs without CUDA_GRAPHS_USE_NODE_PRIORITY=1",
        .fix = "export CUDA_GRAPHS_USE_NODE_PRIORITY=1",
        .why = "Gathers of weights must go before the products that they hide behind.",
        .source = ARGS,
    },
    {
        .id = "S2S-SCH-008",
        .dialects = MEGATRON,
        .severity = INFO,
        .when = "schedule != 'constant' and ((set(decay_iters) and (decay_iters*10 < steps or "
                "decay_iters > 10*steps)) or (set(decay_samples) and (decay_samples*10 < samples "
                "or decay_samples > 10*samples)))",
        .at = "decay_iters decay_samples",
        .message =
            "the decay of the learning rate and the run differ more than ten times in length",
        .fix = "align --lr-decay-iters (or -samples) with the length of the run",
        .why = "The learning rate stays at its minimum for nearly all of the run, or never comes "
               "down.",
        .source = "derived",
    },
    {
        .id = "S2S-SCH-012",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "warmup_init > lr",
        .at = "warmup_init lr",
        .message = "lr-warmup-init {warmup_init} is more than the learning rate {lr}",
        .fix = "use less than {lr}",
        .why = "The warmup goes up.",
        .source = "megatron/core/optimizer_param_scheduler.py",
    },
    {
        .id = "S2S-OPT-021",
        .dialects = S2S_DIALECT_HET,
        .severity = ERROR,
        .when = "freeze_lm and freeze_vit and freeze_projection",
        .at = "freeze_projection freeze_lm freeze_vit",
        .message = "everything is frozen: encoder, projection and language model",
        .fix = "train at least one part, usually the projection",
        .why = "The optimizer would get an empty list of parameters.",
        .source = "examples/mimo/training: MIMO optimizer",
    },
    {
        .id = "S2S-ENV-008",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "attn == 'auto' and (sft or cp > 1) and nvte_flash == '0' and nvte_fused == '0'",
        .at = "nvte_fused nvte_flash",
        .message = "flash and fused attention are both switched off, with {if(cp > 1, 'context "
                   "parallelism', 'packed sequences')}",
        .fix = "allow one of NVTE_FLASH_ATTN and NVTE_FUSED_ATTN",
        .why = "No other backend takes packed or shared sequences.",
        .source = "transformer_engine get_attention_backend",
    },
    RULES_END,
};
