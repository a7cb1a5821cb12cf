/* Megatron-LM arguments: optimizer, schedules, checkpoints, precision, recomputation. */
#include "lib/rules/rules_internal.h"

#define MLM (S2S_DIALECT_MLM | S2S_DIALECT_HET)
#define ERROR S2S_SEVERITY_ERROR
#define WARNING S2S_SEVERITY_WARNING

#define ARGS "megatron/training/arguments.py:validate_args"
#define CONFIG "megatron/core/transformer/transformer_config.py"

const struct s2s_rule rules_mlm_run[] = {
    {
        .id = "S2S-OPT-001",
        .dialects = MLM,
        .severity = ERROR,
        .when = "overlap_params and not dist_opt and not megatron_fsdp and not starts(optimizer, "
                "'dist_')",
        .at = "overlap_params",
        .message = "overlap-param-gather without the distributed optimizer",
        .fix = "add --use-distributed-optimizer",
        .why = "There is no gather to overlap: every rank has all parameters.",
        .source = ARGS,
    },
    {
        .id = "S2S-OPT-002",
        .dialects = MLM,
        .severity = ERROR,
        .when = "overlap_params and not overlap_grads and not megatron_fsdp",
        .at = "overlap_params",
        .message = "overlap-param-gather without overlap-grad-reduce",
        .fix = "add --overlap-grad-reduce",
        .why = "The gather is driven by the buckets of the overlapped reduction.",
        .source = ARGS,
    },
    {
        .id = "S2S-OPT-003",
        .dialects = MLM,
        .severity = ERROR,
        .when = "overlap_params_step and (not dist_opt or not overlap_params or vpp <= 1 or "
                "ckpt_format != 'torch')",
        .at = "overlap_params_step",
        .message = "overlap-param-gather-with-optimizer-step {if(not dist_opt or not "
                   "overlap_params, 'without its parts', if(vpp <= 1, 'without interleaved "
                   "stages', 'with distributed checkpoints'))}",
        .fix = "it takes --use-distributed-optimizer, --overlap-param-gather, interleaved stages "
               "and --ckpt-format torch",
        .why = "It moves the gather of the first bucket into the optimizer step.",
        .source = ARGS,
    },
    {
        .id = "S2S-OPT-004",
        .dialects = MLM,
        .severity = ERROR,
        .when = "(set(num_buckets) and if(early, not set(bucket) or bucket > 0, set(bucket))) or "
                "num_buckets <= 0",
        .at = "num_buckets bucket",
        .message = "ddp-bucket-size and ddp-num-buckets are both given, or a number of buckets is "
                   "not positive",
        .fix = "keep one",
        .why = "Each follows from the other.",
        .source = "megatron/core/distributed/distributed_data_parallel_config.py",
    },
    {
        .id = "S2S-OPT-005",
        .dialects = MLM,
        .severity = WARNING,
        .when = "overlap_grads and bucket > 0 and bucket < 1000000 and dp > 32",
        .at = "bucket",
        .message = "buckets of {bucket} parameters over dp {dp}: many tiny collectives",
        .fix = "leave it at its default",
        .why = "Latency dominates small messages.",
        .source = "distributed_data_parallel.py",
    },
    {
        .id = "S2S-OPT-006",
        .dialects = MLM,
        .severity = ERROR,
        .when = "per_token_loss and average_in_collective",
        .at = "average_in_collective per_token_loss",
        .message = "calculate-per-token-loss and ddp-average-in-collective",
        .fix = "drop one",
        .why = "The loss is divided by tokens, not by ranks.",
        .source = "distributed_data_parallel.py",
    },
    {
        .id = "S2S-OPT-011",
        .dialects = MLM,
        .severity = ERROR,
        .when = "torch_fsdp and (pp > 1 or ep > 1 or dist_opt or fp16 or not no_wgrad_fusion or "
                "not untied or ckpt_format not in ('torch_dist', 'torch_dcp'))",
        .at = "torch_fsdp",
        .message = "torch FSDP2 with {if(pp > 1, 'pipeline stages', if(ep > 1, 'expert "
                   "parallelism', if(dist_opt, 'the distributed optimizer', if(fp16, 'fp16', "
                   "if(not no_wgrad_fusion, 'gradient-accumulation fusion', if(not untied, 'tied "
                   "embeddings', 'a checkpoint format other than torch_dist and torch_dcp'))))))}",
        .fix = "it takes none of pp, ep, the distributed optimizer and fp16, and needs "
               "--no-gradient-accumulation-fusion, --untie-embeddings-and-output-weights and "
               "--ckpt-format torch_dist or torch_dcp",
        .why = "Asserted at start.",
        .source = ARGS,
    },
    {
        .id = "S2S-SCH-001",
        .dialects = MLM,
        .severity = ERROR,
        .when = "not early and not skip_train and steps != null and (samples != null or "
                "decay_samples != null or warmup_samples != 0)",
        .at = "samples decay_samples warmup_samples",
        .message = "train-iters together with a length in samples",
        .fix = "count everything in iterations or everything in samples",
        .why = "The schedule has one unit.",
        .source = ARGS,
    },
    {
        .id = "S2S-SCH-002",
        .dialects = MLM,
        .severity = ERROR,
        .when = "not early and not skip_train and samples != null and (steps != null or "
                "decay_iters != null or warmup_iters > 0)",
        .at = "decay_iters warmup_iters samples",
        .message = "train-samples together with a length in iterations",
        .fix = "count everything in iterations or everything in samples",
        .why = "The schedule has one unit.",
        .source = ARGS,
    },
    {
        .id = "S2S-SCH-003",
        .dialects = MLM,
        .severity = ERROR,
        .when = "not skip_train and warmup_fraction != null and (warmup_iters > 0 or "
                "warmup_samples > 0)",
        .at = "warmup_fraction",
        .message = "lr-warmup-fraction together with a warmup length",
        .fix = "keep one",
        .why = "They say the same thing.",
        .source = ARGS,
    },
    {
        .id = "S2S-SCH-004",
        .dialects = MLM,
        .severity = ERROR,
        .when = "min_lr > lr or min_lr < 0",
        .at = "min_lr lr",
        .message = "min-lr {min_lr} is not within 0 and lr {lr}",
        .fix = "use a min-lr of at most {lr}",
        .why = "The schedule goes from lr down to min-lr.",
        .source = ARGS,
    },
    {
        .id = "S2S-SCH-005",
        .dialects = MLM,
        .severity = ERROR,
        .when = "(schedule == 'WSD' and wsd_iters == null and wsd_samples == null) or (early and "
                "schedule != 'WSD' and (set(wsd_iters) or set(wsd_samples)))",
        .at = "schedule",
        .message = "{if(schedule == 'WSD', 'lr-decay-style WSD without the length of its decay', "
                   "'a length of the WSD decay without lr-decay-style WSD')}",
        .fix = "give both lr-decay-style WSD and lr-wsd-decay-iters (or -samples)",
        .why = "Warmup-stable-decay needs it.",
        .source = "megatron/core/optimizer_param_scheduler.py",
    },
    {
        .id = "S2S-SCH-006",
        .dialects = MLM,
        .severity = ERROR,
        .when = "(decay > 0 and samples == null and warmup_iters >= decay and warmup_iters > 0) or "
                "(decay_samples > 0 and warmup_samples >= decay_samples) or (warmup_fraction >= 1 "
                "and not skip_train)",
        .at = "warmup_iters warmup_samples warmup_fraction",
        .message = "the warmup ({if(warmup_fraction >= 1, warmup_fraction, warmup_iters)} "
                   "{if(warmup_fraction >= 1, 'times the decay', 'iterations')}, {warmup_samples} "
                   "samples) is not shorter than the decay",
        .fix = "use a shorter warmup",
        .why = "The decay counts from the start and includes the warmup.",
        .source = "megatron/core/optimizer_param_scheduler.py",
    },
    {
        .id = "S2S-SCH-007",
        .dialects = MLM,
        .severity = WARNING,
        .when = "schedule == 'WSD' and ((samples == null and wsd_iters > decay - warmup_iters) or "
                "(decay_samples > 0 and wsd_samples > decay_samples - warmup_samples))",
        .at = "wsd_iters wsd_samples",
        .message = "the WSD decay overlaps the warmup: {if(samples == null, wsd_iters, "
                   "wsd_samples)} of the {if(samples == null, decay - warmup_iters, decay_samples "
                   "- warmup_samples)} that are left behind it",
        .fix = "use at most {if(samples == null, decay - warmup_iters, decay_samples - "
               "warmup_samples)}",
        .why = "The learning rate jumps where the anneal starts inside the warmup.",
        .source = "megatron/core/optimizer_param_scheduler.py",
    },
    {
        .id = "S2S-SCH-010",
        .dialects = MLM,
        .severity = ERROR,
        .when = "override_sched and use_ckpt_sched",
        .at = "override_sched use_ckpt_sched",
        .message = "override- and use-checkpoint-opt-param-scheduler are both given",
        .fix = "keep one",
        .why = "One takes the arguments, the other the checkpoint.",
        .source = "megatron/core/optimizer_param_scheduler.py",
    },
    {
        .id = "S2S-CKP-001",
        .dialects = MLM,
        .severity = ERROR,
        .when = "set(save) and not skip_train and (save_every <= 0 or (closed_args and trains "
                "and save_every == null and (set(steps) or set(samples))))",
        .at = "save_every save",
        .message = "{if(save_every == null, 'no save-interval', 'a save-interval of 0 or less')} "
                   "with a place to save",
        .fix = "use a positive interval",
        .why = "Asserted at start.",
        .source = ARGS,
    },
    {
        .id = "S2S-CKP-002",
        .dialects = MLM,
        .severity = ERROR,
        .when = "save_retain != null and (save_retain <= 0 or (save_every > 0 and save_retain % "
                "save_every != 0))",
        .at = "save_retain",
        .message = "save-retain-interval {save_retain} is no positive multiple of save-interval "
                   "{save_every}",
        .fix = "use a multiple of {save_every}",
        .why = "Only saved checkpoints can be retained.",
        .source = ARGS,
    },
    {
        .id = "S2S-CKP-003",
        .dialects = MLM,
        .severity = ERROR,
        .when = "ckpt_format == 'torch_dcp' and (not torch_fsdp or tp > 1 or pp > 1)",
        .at = "ckpt_format",
        .message = "ckpt-format torch_dcp with tp {tp}, pp {pp}, torch FSDP2 {torch_fsdp}",
        .fix = "use torch_dist",
        .why = "It is only for FSDP2 alone.",
        .source = ARGS,
    },
    {
        .id = "S2S-CKP-004",
        .dialects = MLM,
        .severity = ERROR,
        .when = "ckpt_format == 'fsdp_dtensor' and not megatron_fsdp",
        .at = "ckpt_format",
        .message = "ckpt-format fsdp_dtensor without Megatron-FSDP",
        .fix = "use torch_dist",
        .why = "It is the format of Megatron-FSDP.",
        .source = ARGS,
    },
    {
        .id = "S2S-CKP-005",
        .dialects = MLM,
        .severity = ERROR,
        .when = "megatron_fsdp and ckpt_format != 'fsdp_dtensor'",
        .at = "ckpt_format megatron_fsdp",
        .message = "Megatron-FSDP with ckpt-format {ckpt_format}",
        .fix = "use fsdp_dtensor",
        .why = "It is the only format that it saves.",
        .source = ARGS,
    },
    {
        .id = "S2S-PRC-001",
        .dialects = MLM,
        .severity = ERROR,
        .when = "bf16 and fp16",
        .at = "fp16 bf16",
        .message = "bf16 and fp16 are both on",
        .fix = "keep one",
        .why = "Training has one 16-bit type.",
        .source = ARGS,
    },
    {
        .id = "S2S-PRC-002",
        .dialects = MLM,
        .severity = ERROR,
        .when = "set(fp8) and set(fp4)",
        .at = "fp4 fp8",
        .message = "fp8-format and fp4-format are both given",
        .fix = "keep one",
        .why = "Matrix products have one narrow type.",
        .source = ARGS,
    },
    {
        .id = "S2S-REC-001",
        .dialects = MLM,
        .severity = ERROR,
        .when =
            "recompute == 'selective' and (recompute_method != null or recompute_layers != null)",
        .at = "recompute_method recompute_layers recompute",
        .message = "selective recomputation with {if(recompute_method != null, 'recompute-method', "
                   "'recompute-num-layers')}",
        .fix = "drop it",
        .why = "It is a setting of full recomputation.",
        .source = ARGS,
    },
    {
        .id = "S2S-REC-002",
        .dialects = MLM,
        .severity = ERROR,
        .when = "recompute == 'full' and (recompute_method == null or recompute_layers == null)",
        .at = "recompute",
        .message = "full recomputation without {if(recompute_method == null, 'recompute-method', "
                   "'recompute-num-layers')}",
        .fix = "add --recompute-method uniform --recompute-num-layers 1",
        .why = "The layers to recompute are not known.",
        .source = CONFIG,
    },
    {
        .id = "S2S-REC-003",
        .dialects = MLM,
        .severity = ERROR,
        .when = "recompute not in (null, 'full', 'selective') or recompute_method not in (null, "
                "'block', 'uniform') or (recompute == 'selective' and stranger(recompute_modules, "
                "'core_attn moe_act layernorm mla_up_proj mlp moe shared_experts gdn_norm_out "
                "gdp_in_proj gdp_qkv mhc') != null)",
        .at = "recompute recompute_method recompute_modules",
        .message = "recompute-granularity {recompute}, recompute-method {recompute_method}, "
                   "recompute-modules {recompute_modules}: one of the words is not known",
        .fix = "use full or selective, block or uniform, and modules such as core_attn, moe_act, "
               "layernorm, mla_up_proj, mlp, moe and shared_experts",
        .why = "Other words are refused.",
        .source = CONFIG,
    },
    {
        .id = "S2S-REC-004",
        .dialects = MLM,
        .severity = ERROR,
        .when = "distribute_saved and (tp == 1 or recompute != 'full' or recompute_method == null "
                "or sp)",
        .at = "distribute_saved",
        .message = "distribute-saved-activations with tp {tp}, recompute {recompute}, sequence "
                   "parallelism {sp}",
        .fix = "drop it",
        .why = "It spreads fully recomputed activations over tp.",
        .source = ARGS,
    },
    {
        .id = "S2S-ENV-002",
        .dialects = MLM,
        .severity = ERROR,
        .when = "(torch_fsdp or megatron_fsdp) and max_connections == '1'",
        .at = "max_connections megatron_fsdp torch_fsdp",
        .message = "FSDP with CUDA_DEVICE_MAX_CONNECTIONS=1",
        .fix = "unset it",
        .why = "The gathers would wait for the computation they should hide behind.",
        .source = ARGS,
    },
    {
        .id = "S2S-ENV-001",
        .dialects = MLM,
        .severity = WARNING,
        .when = "(tp > 1 or cp > 1) and not torch_fsdp and not megatron_fsdp and not overlap_ep "
                "and sm < 100 and ((known(max_connections) and max_connections != '1') or (not "
                "known(max_connections) and not set(max_connections) and env_block))",
        .error_when = "known(max_connections)",
        .at = "max_connections tp cp",
        .message = "tp {tp}, cp {cp} on Hopper or older without CUDA_DEVICE_MAX_CONNECTIONS=1",
        .fix = "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        .why = "Communication must be queued before the computation it overlaps.",
        .source = ARGS,
    },
    {
        .id = "S2S-ENV-010",
        .dialects = MLM,
        .severity = WARNING,
        .when = "overlap_ep and max_connections == '1'",
        .error_when = "tp == 1 and cp == 1",
        .at = "max_connections overlap_ep",
        .message = "overlap-moe-expert-parallel-comm with CUDA_DEVICE_MAX_CONNECTIONS=1",
        .fix = "unset CUDA_DEVICE_MAX_CONNECTIONS, or set it to 32",
        .why = "The all-to-all of one microbatch must run beside the computation of another; with "
               "one hardware queue their kernels wait for each other.",
        .source = "megatron/core/transformer/moe/README.md; " ARGS,
    },
    {
        .id = "S2S-CFG-008",
        .dialects = MLM,
        .severity = ERROR,
        .when = "set(removed_batch_size) or set(removed_warmup) or set(removed_model_parallel) or "
                "set(removed_checkpoint_activations)",
        .at = "removed_batch_size removed_warmup removed_model_parallel "
              "removed_checkpoint_activations",
        .message = "an argument that no longer exists",
        .fix = "batch-size is micro-batch-size, warmup is lr-warmup-fraction, model-parallel-size "
               "is tensor-model-parallel-size, checkpoint-activations is recompute-activations",
        .why = "Asserted at start.",
        .source = ARGS,
    },
    RULES_END,
};
