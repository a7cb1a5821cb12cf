/* Optimizer, schedules, checkpoints, precision, recomputation, environment. */
#include "lib/rules/rules_internal.h"

#define S2S S2S_DIALECT_S2S
#define SLM S2S_DIALECT_SLM
#define AM S2S_DIALECT_AM
#define RL S2S_DIALECT_RL
#define ERROR S2S_SEVERITY_ERROR
#define WARNING S2S_SEVERITY_WARNING
#define INFO S2S_SEVERITY_INFO

const struct s2s_rule rules_run[] = {
    {
        .id = "S2S-OPT-019",
        .dialects = SLM,
        .severity = WARNING,
        .when = "strategy == 'ddp' and not find_unused and len(freeze) > 0",
        .at = "find_unused strategy_target",
        .message = "DDP with find_unused_parameters false and frozen parameters",
        .fix = "set find_unused_parameters: true, or use an FSDP strategy",
        .why =
            "A branch that takes no part in some step leaves DDP waiting for gradients that do not "
            "come.",
        .source = "speechlm2 example configs",
    },
    {
        .id = "S2S-OPT-021",
        .dialects = S2S,
        .severity = ERROR,
        .when = "freeze_encoder and freeze_projection and freeze_llm and ((vision_path == null "
                "and vision_config == null) or (freeze_vision and freeze_vision_projection))",
        .at = "freeze_encoder freeze_projection freeze_llm",
        .message = "everything is frozen: encoder, projection and language model",
        .fix = "train at least one part, usually the projection",
        .why = "There is nothing left to optimise.",
        .source = "lib/train",
    },
    {
        .id = "S2S-OPT-021",
        .dialects = S2S,
        .severity = ERROR,
        .when = "freeze_llm and model_path == null and encoder_path == null and encoder_config == "
                "null and vision_path == null and vision_config == null",
        .at = "freeze_llm",
        .message = "everything is frozen: the model is a language model alone",
        .fix = "train it, or give it an encoder",
        .why = "There is nothing left to optimise.",
        .source = "lib/train",
    },
    {
        .id = "S2S-OPT-021",
        .dialects = SLM,
        .severity = ERROR,
        .when = "all_frozen and not set(lora)",
        .at = "freeze",
        .message = "freeze_params matches every parameter and prevent_freeze_params is empty",
        .fix = "leave something trainable",
        .why = "The optimizer would get an empty list of parameters.",
        .source = "speechlm2/parts/optim_setup.py",
    },
    {
        .id = "S2S-SCH-004",
        .dialects = S2S | SLM | RL | AM,
        .severity = ERROR,
        .when = "min_lr > lr or min_lr < 0",
        .at = "min_lr meg_min_lr lr meg_lr",
        .message = "{@min_lr} {min_lr} is not within 0 and the learning rate {lr}",
        .fix = "use a min_lr of at most {lr}",
        .why = "The schedule goes from lr down to min_lr.",
        .source = "megatron/core/optimizer_param_scheduler.py:OptimizerParamScheduler",
    },
    {
        .id = "S2S-SCH-005",
        .dialects = S2S,
        .severity = ERROR,
        .when = "schedule == 'wsd' and (wsd == null or wsd == 0)",
        .at = "schedule",
        .message = "schedule wsd without wsd_steps",
        .fix = "say how many steps the final decay takes: schedule.wsd_steps",
        .why = "Warmup-stable-decay needs the length of its decay.",
        .source = "megatron/core/optimizer_param_scheduler.py:OptimizerParamScheduler",
    },
    {
        .id = "S2S-SCH-006",
        .dialects = S2S | SLM | RL | AM,
        .severity = ERROR,
        .when = "decay > 0 and warmup >= decay",
        .at = "warmup meg_warmup decay",
        .message = "{@warmup} {warmup} is not shorter than the schedule of {decay} steps",
        .fix = "use a shorter warmup or a longer decay",
        .why =
            "The decay counts from the start and includes the warmup; nothing would be left of it.",
        .source = "megatron/core/optimizer_param_scheduler.py:OptimizerParamScheduler",
    },
    {
        .id = "S2S-SCH-006",
        .dialects = S2S,
        .severity = ERROR,
        .when = "decay == null and steps > 0 and schedule != 'constant' and warmup >= steps",
        .at = "warmup",
        .message = "{@warmup} {warmup} is not shorter than the run of {@steps} {steps}",
        .fix = "use a shorter warmup, or give schedule.decay_steps",
        .why = "Without decay_steps the schedule ends with the run, and must be longer than its "
               "warmup.",
        .source = "doc/RECIPE.md",
    },
    {
        .id = "S2S-SCH-006",
        .dialects = AM,
        .severity = ERROR,
        .when = "decay == null and steps > 0 and warmup >= steps",
        .at = "warmup",
        .message = "{@warmup} {warmup} is not shorter than the run of {@steps} {steps}",
        .fix = "use a shorter warmup, or give lr_scheduler.lr_decay_steps",
        .why = "Without lr_decay_steps the schedule ends with the run, and must be longer than its "
               "warmup.",
        .source = "nemo_automodel/components/optim/optimizer.py:LRSchedulerConfig",
    },
    {
        .id = "S2S-SCH-007",
        .dialects = S2S,
        .severity = ERROR,
        .when = "schedule == 'wsd' and wsd > decay_end - warmup",
        .at = "wsd",
        .message =
            "wsd_steps {wsd} overlaps the warmup: {decay_end} - {warmup} = {decay_end - warmup} "
            "steps are left for it",
        .fix = "use at most {decay_end - warmup}",
        .why = "The learning rate would jump where the decay starts inside the warmup.",
        .source = "megatron/core/optimizer_param_scheduler.py:get_lr",
        .after = "S2S-SCH-006",
    },
    {
        .id = "S2S-SCH-008",
        .dialects = S2S | SLM | AM,
        .severity = INFO,
        .when = "steps > 0 and decay > 0 and (decay*10 < steps or decay > 10*steps)",
        .at = "decay",
        .message =
            "the schedule of {decay} steps and the run of {steps} steps differ more than ten "
            "times",
        .fix = "align {@decay} with the length of the run",
        .why = "The learning rate stays at its minimum for nearly all of the run, or never comes "
               "down.",
        .source = "derived",
    },
    {
        .id = "S2S-SCH-014",
        .dialects = SLM,
        .severity = WARNING,
        .when = "decay > 0 and steps > 0 and decay != steps",
        .at = "decay",
        .message = "lr_scheduler.max_steps {decay} is not trainer.max_steps {steps}",
        .fix = "write max_steps: ${trainer.max_steps}",
        .why = "The learning rate reaches its end early, or not at all.",
        .source = "speechlm2 example configs",
    },
    {
        .id = "S2S-SCH-015",
        .dialects = SLM,
        .severity = WARNING,
        .when = "set(train_ds) and limit_train == null and set(val_ds) and (val_check == null or "
                "val_check <= 1)",
        .at = "val_check limit_train train_ds",
        .message = "validation once an epoch, but nothing bounds the epoch",
        .fix = "set trainer.limit_train_batches, and val_check_interval to it",
        .why = "The Lhotse sampler is infinite; an epoch never ends, so validation never runs.",
        .source = "speechlm2 example configs",
    },
    {
        .id = "S2S-PRC-011",
        .dialects = SLM,
        .severity = WARNING,
        .when = "precision == '16-true'",
        .at = "precision",
        .message = "training in pure fp16, without loss scaling",
        .fix = "use bf16-true or 16-mixed",
        .why = "Small gradients underflow to zero in fp16.",
        .source = "Lightning precision plugins",
    },
    {
        .id = "S2S-REC-011",
        .dialects = SLM,
        .severity = INFO,
        .when = "recompute_llm and no_gradient_path",
        .at = "recompute_llm",
        .message = "the language model is frozen and its activations are recomputed, though no "
                   "gradient passes through it",
        .fix = "switch activation_checkpointing_llm off",
        .why = "Recomputation is only needed where a backward pass goes.",
        .source = "derived",
    },
    {
        .id = "S2S-AM-006",
        .dialects = SLM,
        .severity = ERROR,
        .when = "dp_replicate > 1 and dp_replicate < dp and dp_replicate not divides dp",
        .at = "dp_replicate",
        .message = "dp_replicate_size {dp_replicate} does not divide dp {dp}",
        .fix = "use one of {divisors(dp)}",
        .why = "Hybrid sharding cuts the data-parallel ranks into equal groups.",
        .source = "nemo_automodel/components/distributed/mesh_utils.py",
        .after = "S2S-WLD",
    },
    {
        .id = "S2S-AM-006",
        .dialects = RL,
        .severity = ERROR,
        .when = "dt and not meg and v2 and dp_replicate > 1 and dp_replicate not divides dp",
        .at = "dp_replicate",
        .message = "dp_replicate_size {dp_replicate} does not divide dp {dp}",
        .fix = "use one of {divisors(dp)}",
        .why = "Hybrid sharding cuts the data-parallel ranks into equal groups.",
        .source = "nemo_rl/models/automodel/setup.py:setup_distributed",
        .after = "S2S-WLD",
    },
    {
        .id = "S2S-AM-007",
        .dialects = SLM,
        .severity = ERROR,
        .when = "dp_replicate > 1 and dp_replicate >= dp",
        .at = "dp_replicate",
        .message =
            "dp_replicate_size {dp_replicate} with a data-parallel size of {dp}: nothing is left "
            "to shard over",
        .fix = "use a smaller dp_replicate_size",
        .why = "Pure replication is not available in FSDP2.",
        .source = "nemo_automodel/components/distributed/mesh_utils.py",
        .after = "S2S-WLD",
    },
    {
        .id = "S2S-AM-022",
        .dialects = SLM,
        .severity = INFO,
        .when = "rope_fusion",
        .at = "rope_fusion",
        .message = "rope_fusion true is forced off by current releases",
        .fix = "remove it",
        .why = "The setting has no effect.",
        .source = "nemo_automodel BackendConfig.__post_init__",
    },
    {
        .id = "S2S-AM-024",
        .dialects = SLM,
        .severity = WARNING,
        .when = "timeout_minutes != null and timeout_minutes < 10 and world >= 64",
        .at = "timeout_minutes",
        .message = "a time limit of {timeout_minutes} minutes on {world} ranks",
        .fix = "use 10 minutes or more",
        .why = "Loading and sharding a model at this size takes longer, and NCCL gives up.",
        .source = "note in speechlm2/parts/parallel.py",
    },
    {
        .id = "S2S-ENV-007",
        .dialects = SLM,
        .severity = INFO,
        .when = "env('PYTORCH_CUDA_ALLOC_CONF') != null and not "
                "contains(env('PYTORCH_CUDA_ALLOC_CONF'), 'expandable_segments')",
        .at = "train_ds",
        .message = "PYTORCH_CUDA_ALLOC_CONF without expandable_segments: the data loader adds it",
        .fix = "",
        .why = "The dynamic batch sizes of the loader fragment memory without it.",
        .source = "nemo/collections/common/data/lhotse/dataloader.py",
    },
    {
        .id = "S2S-ENV-008",
        .dialects = SLM,
        .severity = ERROR,
        .when = "packed and attn == 'te' and cp <= 1 and env('NVTE_FLASH_ATTN') == '0' and "
                "env('NVTE_FUSED_ATTN') == '0'",
        .at = "packed",
        .message = "packed sequences with flash and fused attention both switched off",
        .fix = "allow one of NVTE_FLASH_ATTN and NVTE_FUSED_ATTN",
        .why = "No other backend takes packed sequences.",
        .source = "transformer_engine get_attention_backend",
    },
    {
        .id = "S2S-ENV-009",
        .dialects = S2S_DIALECT_ALL,
        .severity = INFO,
        .when = "not device_known",
        .at = "",
        .message = "device '{device}' is not in the table: rules about devices are not evaluated",
        .fix = "give its compute capability with --sm",
        .why = "Facts about devices are data of this program.",
        .source = "-",
    },
    {
        .id = "S2S-OPT-010",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and ((precision_aware and opt_name != 'adam') or (not precision_aware and "
                "states_strange))",
        .at = "precision_aware grads_dtype main_dtype avg_dtype avg_sq_dtype",
        .message = "states of another type than fp32 need the precision-aware adam",
        .fix = "set use_precision_aware_optimizer: true with optimizer: adam",
        .why = "Only that optimizer keeps its states in other types.",
        .source = "megatron/core/optimizer/optimizer_config.py",
    },
    {
        .id = "S2S-OPT-020",
        .dialects = SLM,
        .severity = WARNING,
        .when = "pattern_fault != null",
        .at = "pattern_fault",
        .message = "the pattern '{pattern_text}' has {pattern_fault}",
        .fix = "mend it: patterns begin with the name of a part, as in ^llm\\..+$",
        .why = "A pattern that matches no parameter leaves its part trainable, or frozen.",
        .source = "speechlm2/parts/optim_setup.py:freeze_and_subset",
    },
    {
        .id = "S2S-OPT-023",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and ((precision == 'bfloat16' and precision_aware and not opt_bf16) or "
                "(precision == 'float16' and precision_aware and not opt_fp16) or (precision == "
                "'float32' and (opt_bf16 or opt_fp16)))",
        .at = "opt_bf16 opt_fp16 precision",
        .message = "precision {precision} with optimizer.bf16 {opt_bf16} and optimizer.fp16 "
                   "{opt_fp16}",
        .fix = "set the optimizer's flag of that type, and only it",
        .why = "The optimizer would keep master weights of another type than the model's.",
        .source = "nemo_rl/models/megatron/setup.py:_validate_dtype_config",
    },
    {
        .id = "S2S-SCH-008",
        .dialects = RL,
        .severity = INFO,
        .when = "meg and decay_style != 'constant' and run_steps > 0 and decay > 0 and (decay > "
                "10*run_steps or (set(train_iters) and decay*10 < run_steps))",
        .at = "decay meg_decay",
        .message = "the schedule of {decay} steps and the run of {run_steps} steps differ more "
                   "than ten times",
        .fix = "align lr_decay_iters with the length of the run",
        .why = "The learning rate stays at its minimum for nearly all of the run, or never comes "
               "down.",
        .source = "derived",
    },
    {
        .id = "S2S-SCH-011",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and ((wd_style == 'constant' and wd_start != null and wd_end != null and "
                "wd_start != wd_end) or (wd_style != 'constant' and (wd_start == null or wd_end "
                "== null)))",
        .at = "wd_style wd_start wd_end",
        .message = "weight_decay_incr_style {wd_style} with start {wd_start} and end {wd_end}",
        .fix = "give both with a style that changes, the same twice with constant",
        .why = "A constant decay has one value.",
        .source = "megatron/core/optimizer_param_scheduler.py",
    },
    {
        .id = "S2S-SCH-019",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and train_iters == null and not set(algorithm)",
        .at = "meg",
        .message = "the Megatron backend without {@train_iters}, and no algorithm that fills it",
        .fix = "set {@train_iters}",
        .why = "Its learning-rate schedule is as long as the run.",
        .source = "nemo_rl/models/megatron/setup.py:_validate_training_config",
    },
    {
        .id = "S2S-CKP-019",
        .dialects = SLM,
        .severity = WARNING,
        .when = "not ckpt_sharded and 12*model_params > host_room*1073741824",
        .at = "ckpt_sharded",
        .message = "rank 0 puts about {12*model_params // 1073741824} GiB of weights and "
                   "optimizer together, its host has about {host_room} GiB",
        .fix = "set save_distributed_checkpoint: true",
        .why = "Without it every save gathers the whole model in the memory of one host. Twice the "
               "memory of its GPUs is taken for it, or --set host_gib=1024.",
        .source = "nemo_automodel: AutomodelParallelStrategy",
    },
    {
        .id = "S2S-PRC-009",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and fp8_on and (sm < 89 or (fp8_recipe == 'mxfp8' and sm < 100))",
        .at = "fp8_recipe fp8_on",
        .message = "FP8 ({fp8_recipe}) on compute capability {sm // 10}.{sm % 10}",
        .fix = "use another recipe or device",
        .why = "The tensor cores do not have it: fp8 from 8.9, mxfp8 and fp4 from 10.0.",
        .source = "transformer_engine: fp8 hardware support",
    },
    {
        .id = "S2S-PRC-009",
        .dialects = AM,
        .severity = ERROR,
        .when = "(fp8_on and not fp8_emulated and sm < 89) or (te_fp8 != null and sm < 89) or "
                "(te_fp8 in ('mxfp8', 'nvfp4') and sm < 100)",
        .at = "te_fp8 fp8_on",
        .message = "{if(te_fp8 == null, 'fp8', te_fp8)} on compute capability {sm // 10}.{sm % "
                   "10}",
        .fix = "use another recipe or device",
        .why = "The tensor cores do not have it: fp8 from 8.9, mxfp8 and fp4 from 10.0.",
        .source = "transformer_engine: fp8 hardware support",
    },
    {
        .id = "S2S-PRC-012",
        .dialects = AM,
        .severity = WARNING,
        .when = "pp > 1 and pp_dtype != null and fsdp == 'fsdp2' and pp_dtype != stage_dtype",
        .at = "pp_dtype",
        .message = "pipeline.dtype {pp_dtype}, but stages put out {stage_dtype}",
        .fix = "leave {@pp_dtype} out",
        .why = "The next stage receives into buffers of another type.",
        .source = "nemo_automodel/recipes/_dist_utils.py:parse_distributed_section",
    },
    {
        .id = "S2S-PRC-014",
        .dialects = RL,
        .severity = ERROR,
        .when = "set(grpo) and backend == 'vllm' and ((gen_precision == 'fp8' and not "
                "importance) or (starts(kv_cache, 'fp8') and (gen_precision != 'fp8' or dt or "
                "gen_async or (meg and pp > 1))))",
        .at = "kv_cache gen_precision",
        .message =
            "{if(gen_precision == 'fp8' and not importance, 'generation in FP8 without "
            "importance-sampling correction', if(gen_precision != 'fp8', 'an FP8 KV cache without "
            "FP8 weights', if(dt, 'an FP8 KV cache with the DTensor backend', if(gen_async, 'an "
            "FP8 KV cache with the asynchronous engine', 'an FP8 KV cache with pipeline "
            "parallelism'))))}",
        .fix = "set loss_fn.use_importance_sampling_correction: true; keep the FP8 cache for FP8 "
               "weights, Megatron with one stage, and the synchronous engine",
        .why = "Sampled and trained probabilities differ by the rounding, and scales of the cache "
               "are taken from the trainer.",
        .source = "nemo_rl/algorithms/grpo.py:setup",
    },
    {
        .id = "S2S-REC-005",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and recompute and recompute_granularity == 'selective' and "
                "((has(recompute_modules, 'moe_act') and not grouped_gemm) or "
                "(has(recompute_modules, 'shared_experts') and shared_overlap))",
        .at = "recompute_modules",
        .message = "recompute_modules: {if(has(recompute_modules, 'shared_experts') and "
                   "shared_overlap, 'shared_experts excludes moe_shared_expert_overlap', "
                   "'moe_act needs moe_grouped_gemm')}",
        .fix = "leave the module out, or switch on what it belongs to",
        .why = "The module is not there to be recomputed.",
        .source = "megatron TransformerConfig",
    },
    {
        .id = "S2S-REC-007",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and offload_acts and (offload_modules == null or len(offload_modules) == 0 or "
                "stranger(offload_modules, 'core_attn attn_proj expert_fc1 fused_group_mlp "
                "moe_act attn_norm mlp_norm qkv_linear gdp_qkv') != null or "
                "(has(offload_modules, 'attn_proj') and not has(offload_modules, 'core_attn')) or "
                "(offload_v1 != null and offload_v1 != '1'))",
        .at = "offload_modules offload_acts",
        .message = "fine_grained_activation_offloading with {if(offload_modules == null or "
                   "len(offload_modules) == 0, 'no offload_modules', if(has(offload_modules, "
                   "'attn_proj') and not has(offload_modules, 'core_attn'), 'attn_proj but not "
                   "core_attn', if(offload_v1 != null and offload_v1 != '1', "
                   "'NVTE_CPU_OFFLOAD_V1 not 1', 'a module that it does not know')))}",
        .fix = "name modules it knows, and core_attn with attn_proj",
        .why = "Activations of named modules go to host memory.",
        .source = "nemo_rl/models/megatron/setup.py:_apply_performance_config",
    },
    {
        .id = "S2S-REC-008",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and ((graph_impl == 'full_iteration' and len(graph_modules) > 0) or "
                "(graph_impl in ('local', 'transformer_engine') and recompute and "
                "(recompute_granularity == null or recompute_granularity == 'full')) or "
                "(graph_impl in ('local', 'transformer_engine') and has(graph_modules, 'moe') and "
                "has(graph_modules, 'moe_router')) or (graph_impl == 'transformer_engine' and "
                "has(graph_modules, 'moe_preprocess') and not has(graph_modules, 'moe_router')))",
        .at = "graph_modules graph_impl",
        .message = "CUDA graphs ({graph_impl}) with {if(graph_impl == 'full_iteration', 'modules, "
                   "though they take the whole iteration', if(has(graph_modules, "
                   "'moe_preprocess') and not has(graph_modules, 'moe_router'), 'moe_preprocess "
                   "but not moe_router', if(has(graph_modules, 'moe') and has(graph_modules, "
                   "'moe_router'), 'both moe and moe_router', 'full recomputation')))}",
        .fix = "recompute selectively, name moe_router with moe_preprocess, and nothing for "
               "full_iteration",
        .why = "A graph is recorded once and replayed without the host.",
        .source = "megatron TransformerConfig",
    },
    {
        .id = "S2S-ENV-006",
        .dialects = RL,
        .severity = WARNING,
        .when = "meg and flex_backend == 'hybridep' and ((hybridep_domain == null and "
                "env('NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN') == null) or (hybridep_mnnvl == "
                "null and env('USE_MNNVL') == null))",
        .at = "flex_backend",
        .message = "HybridEP without {if(hybridep_domain == null, "
                   "'hybridep_num_ranks_per_nvlink_domain', 'hybridep_use_mnnvl')}: it is guessed "
                   "from ep {ep}",
        .fix = "set hybridep_num_ranks_per_nvlink_domain and hybridep_use_mnnvl",
        .why = "The exchange is laid out by which ranks share NVLink: the smaller of ep and 64 is "
               "taken for it.",
        .source = "nemo_rl/models/megatron/setup.py:_apply_moe_config",
    },
    {
        .id = "S2S-ENV-008",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and attn == null and (packed or cp > 1) and nvte_flash == '0' and nvte_fused "
                "== '0'",
        .at = "nvte_fused nvte_flash",
        .message = "flash and fused attention are both switched off, with {if(packed, 'packed "
                   "sequences', 'context parallelism')}",
        .fix = "allow one of NVTE_FLASH_ATTN and NVTE_FUSED_ATTN",
        .why = "No other backend takes packed or shared sequences.",
        .source = "transformer_engine get_attention_backend",
    },
    {
        .id = "S2S-ENV-008",
        .dialects = AM,
        .severity = ERROR,
        .when = "attn == 'te' and (packed or cp > 1) and nvte_flash == '0' and nvte_fused == '0'",
        .at = "attn",
        .message = "flash and fused attention are both switched off, with {if(packed, 'packed "
                   "sequences', 'context parallelism')}",
        .fix = "allow one of NVTE_FLASH_ATTN and NVTE_FUSED_ATTN",
        .why = "No other backend takes packed or shared sequences.",
        .source = "transformer_engine get_attention_backend",
    },
    RULES_END,
};
