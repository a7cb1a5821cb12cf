/* Automodel recipes. */
#include "lib/rules/rules_internal.h"

#define AM S2S_DIALECT_AM
#define ERROR S2S_SEVERITY_ERROR
#define WARNING S2S_SEVERITY_WARNING
#define INFO S2S_SEVERITY_INFO

#define DIST "nemo_automodel/recipes/_dist_utils.py:parse_distributed_section"
#define MESH "nemo_automodel/components/distributed/mesh_utils.py"
#define TRAIN "nemo_automodel/recipes/llm/train_ft.py"
#define PIPE "nemo_automodel/components/distributed/pipelining"

const struct s2s_rule rules_am[] = {
    {
        .id = "S2S-AM-001",
        .dialects = AM,
        .severity = ERROR,
        .when = "fsdp not in ('fsdp2', 'megatron_fsdp', 'megatron-fsdp', 'mfsdp', 'ddp')",
        .at = "fsdp",
        .message = "strategy '{fsdp}' is not known",
        .fix = "use fsdp2, megatron_fsdp or ddp",
        .why = "The strategy is looked up by name.",
        .source = "nemo_automodel/components/distributed/config.py:_resolve_strategy_config",
    },
    {
        .id = "S2S-AM-002",
        .dialects = AM,
        .severity = ERROR,
        .when = "pp > 1 and not set(pipeline)",
        .at = "pp",
        .message = "pp_size {pp} without a pipeline block",
        .fix = "add distributed.pipeline, `pipeline: {}` for its defaults",
        .why = "The schedule and the size of a microbatch are not known.",
        .source = DIST,
    },
    {
        .id = "S2S-AM-003",
        .dialects = AM,
        .severity = WARNING,
        .when = "pp <= 1 and set(pipeline)",
        .at = "pipeline",
        .message = "a pipeline block with pp_size {pp} is ignored",
        .fix = "remove it, or use pp_size > 1",
        .why = "Without stages there is no schedule.",
        .source = DIST,
    },
    {
        .id = "S2S-AM-004",
        .dialects = AM,
        .severity = ERROR,
        .when = "pp > 1 and pp_mbs >= 1 and mbs // pp_mbs < pp",
        .at = "mbs pp_mbs pp",
        .message = "local_batch_size {mbs} / pp_microbatch_size {pp_mbs} gives {mbs // pp_mbs} "
                   "microbatches for {pp} stages",
        .fix = "use a local_batch_size of at least {pp*pp_mbs}",
        .why = "The schedule needs a microbatch for every stage.",
        .source = TRAIN,
    },
    {
        .id = "S2S-AM-005",
        .dialects = AM,
        .severity = ERROR,
        .when = "pp > 1 and (pp_mbs < 1 or pp_mbs not divides mbs)",
        .at = "pp_mbs mbs",
        .message = "pp_microbatch_size {pp_mbs} does not divide local_batch_size {mbs}",
        .fix = "use one of {divisors(mbs)}",
        .why = "The local batch is cut into whole microbatches.",
        .source = PIPE "/autopipeline.py",
    },
    {
        .id = "S2S-AM-006",
        .dialects = AM,
        .severity = ERROR,
        .when = "fsdp == 'fsdp2' and dp_replicate > 1 and dp_replicate < dp and dp_replicate not "
                "divides dp",
        .at = "dp_replicate",
        .message = "dp_replicate_size {dp_replicate} does not divide dp {dp}",
        .fix = "use one of {divisors(dp)}",
        .why = "Hybrid sharding cuts the data-parallel ranks into equal groups.",
        .source = MESH,
        .after = "S2S-WLD",
    },
    {
        .id = "S2S-AM-007",
        .dialects = AM,
        .severity = ERROR,
        .when = "fsdp == 'fsdp2' and dp_replicate > 1 and dp_replicate >= dp",
        .at = "dp_replicate",
        .message =
            "dp_replicate_size {dp_replicate} with a data-parallel size of {dp}: nothing is left "
            "to shard over",
        .fix = "use a smaller dp_replicate_size",
        .why = "Pure replication is not available in FSDP2.",
        .source = MESH,
        .after = "S2S-WLD",
    },
    {
        .id = "S2S-AM-008",
        .dialects = AM,
        .severity = ERROR,
        .when = "dp_replicate > 1 and fsdp != 'fsdp2'",
        .at = "dp_replicate",
        .message = "dp_replicate_size {dp_replicate} with strategy {fsdp}",
        .fix = "use strategy: fsdp2",
        .why = "Hybrid sharding is a feature of FSDP2.",
        .source = MESH,
    },
    {
        .id = "S2S-AM-009",
        .dialects = AM,
        .severity = ERROR,
        .when = "fsdp == 'ddp' and (tp > 1 or pp > 1 or cp > 1 or ep > 1)",
        .at = "tp pp cp ep",
        .message = "strategy ddp with tp {tp}, pp {pp}, cp {cp}, ep {ep}",
        .fix = "use strategy: fsdp2",
        .why = "DDP replicates the whole model on each rank.",
        .source = MESH,
    },
    {
        .id = "S2S-AM-010",
        .dialects = AM,
        .severity = ERROR,
        .when = "fsdp in ('megatron_fsdp', 'megatron-fsdp', 'mfsdp') and (pp > 1 or ep > 1)",
        .at = "pp ep",
        .message = "strategy {fsdp} with pp {pp}, ep {ep}",
        .fix = "use strategy: fsdp2",
        .why = "Megatron-FSDP has no pipeline and no expert axis here.",
        .source = MESH,
    },
    {
        .id = "S2S-AM-011",
        .dialects = AM,
        .severity = WARNING,
        .when = "cp > 1 and packed and attn not in ('te', 'magi', 'tilelang', 'cudnn') and "
                "attn_implementation not in ('te', 'magi')",
        .at = "cp attn",
        .message = "cp {cp} with packed sequences and attention {attn}",
        .fix = "use model.backend.attn: te",
        .why = "Most models refuse packing under context parallelism with another attention.",
        .source = TRAIN,
    },
    {
        .id = "S2S-AM-012",
        .dialects = AM,
        .severity = ERROR,
        .when = "recompute_kind == 'selective' and fsdp not in ('fsdp2', 'ddp')",
        .at = "recompute",
        .message = "selective activation checkpointing with strategy {fsdp}",
        .fix = "use full, or strategy: fsdp2",
        .why = "Only FSDP2 and DDP have it.",
        .source = DIST,
    },
    {
        .id = "S2S-AM-013",
        .dialects = AM,
        .severity = ERROR,
        .when = "bad_option != null",
        .at = "bad_option",
        .message = "strategy {fsdp} has no option {bad_option}",
        .fix = "remove it",
        .why = "What is left under `distributed` goes to the strategy's class, which refuses names "
               "it does not know.",
        .source = "nemo_automodel/components/distributed/config.py:_resolve_strategy_config",
        .after = "S2S-AM-001",
    },
    {
        .id = "S2S-AM-014",
        .dialects = AM,
        .severity = ERROR,
        .when =
            "pp > 1 and set(layers_per_stage) and (layers_per_stage < 1 or (pp_round == null and "
            "even_stages % pp != 0) or (pp_round not in (null, 'up', 'down')) or stages > layers "
            "or (schedule == 'single' and stages != pp) or (schedule in ('multi', 'v') and "
            "stages < 2*pp))",
        .at = "layers_per_stage pp_round",
        .message = "layers_per_stage {layers_per_stage} cuts {if(known(layers), layers, 'the')} "
                   "layers into {if(known(stages), stages, 'a number of')} stages for pp {pp} and "
                   "schedule {pp_schedule}",
        .fix =
            "the number of stages must be a multiple of pp (or "
            "round_virtual_stages_to_pp_multiple: up or down): one a rank for 1f1b and gpipe, two "
            "or more for the others",
        .why = "Every rank holds the same number of stages, and the schedule says how many.",
        .source = PIPE "/functional.py:calculate_virtual_stages",
    },
    {
        .id = "S2S-AM-015",
        .dialects = AM,
        .severity = ERROR,
        .when = "pp > 1 and schedule == 'v' and stages != 2*pp",
        .at = "layers_per_stage schedule",
        .message = "schedule {pp_schedule} with {stages} stages on {pp} ranks",
        .fix = "choose layers_per_stage so that there are {2*pp} stages",
        .why = "A V-shaped schedule folds the pipeline once: two stages a rank.",
        .source = PIPE "/functional.py:stage_ids_this_rank",
        .after = "S2S-AM-014",
    },
    {
        .id = "S2S-AM-016",
        .dialects = AM,
        .severity = WARNING,
        .when = "pp > 1 and nmb < least_stages",
        .at = "mbs pp",
        .message = "{nmb} microbatches for {if(known(stages), stages, 'at least')} "
                   "{if(known(stages), '', least_stages)} stages: much of the time is bubble",
        .fix = "use a larger local_batch_size, or a smaller pp_microbatch_size",
        .why = "A pipeline idles until every stage has a microbatch.",
        .source = PIPE "/functional.py:build_pipeline_schedule",
        .after = "S2S-AM-004",
    },
    {
        .id = "S2S-AM-017",
        .dialects = AM,
        .severity = ERROR,
        .when = "pp > 1 and (schedule == 'none' or schedule == 'bad')",
        .at = "schedule pp_schedule pp",
        .message = "no pipeline schedule: pp_schedule '{pp_schedule}' is not known",
        .fix = "use 1f1b, gpipe, interleaved1f1b, loopedbfs, interleavedzerobubble, zbvzerobubble "
               "or dualpipev, or give pp_schedule_csv",
        .why = "The schedule is looked up by name.",
        .source = PIPE "/autopipeline.py:AutoPipeline",
    },
    {
        .id = "S2S-AM-019",
        .dialects = AM,
        .severity = ERROR,
        .when = "qat_on and set(lora)",
        .at = "qat_on lora",
        .message = "quantisation-aware training with PEFT",
        .fix = "remove one of the blocks qat and peft",
        .why = "Not supported together.",
        .source = TRAIN ":build_model",
    },
    {
        .id = "S2S-AM-020",
        .dialects = AM,
        .severity = WARNING,
        .when = "(set(moe_config) and ep <= 1) or (experts_backend in ('te', 'gmm') and dispatcher "
                "== 'torch')",
        .at = "moe_config experts_backend",
        .message = "settings for experts are dropped: {if(set(moe_config) and ep <= 1, 'a moe "
                   "block with ep_size 1', 'this experts backend with dispatcher torch')}",
        .fix = "use ep_size > 1 for the moe block; dispatcher deepep, hybridep or uccl_ep for "
               "experts te or gmm",
        .why = "A moe block belongs to expert parallelism; te and gmm experts to a dispatcher that "
               "sends tokens by itself. Otherwise they are replaced in silence.",
        .source = DIST,
    },
    {
        .id = "S2S-AM-021",
        .dialects = AM,
        .severity = ERROR,
        .when = "compile_attn and (attn not in (null, 'sdpa') or linear_backend not in (null, "
                "'torch') or norm_backend not in (null, 'torch') or rope_fusion)",
        .at = "compile_attn attn linear_backend norm_backend",
        .message = "compile_attn with attn {attn}, linear {linear_backend}, rms_norm "
                   "{norm_backend}, rope_fusion {rope_fusion}",
        .fix = "use attn sdpa, linear torch, rms_norm torch and rope_fusion false",
        .why = "The attention is compiled as one graph; kernels that cannot be traced break it.",
        .source = "nemo_automodel/components/models/common/utils.py:BackendConfig",
    },
    {
        .id = "S2S-AM-023",
        .dialects = AM,
        .severity = ERROR,
        .when = "(attn == 'magi' or attn_implementation == 'magi') and (mbs != 1 or window > 0)",
        .at = "mbs window attn",
        .message = "magi attention with local_batch_size {mbs}, sliding window {window}",
        .fix = "use local_batch_size 1 with packed sequences and no window, or attn te",
        .why = "Magi attention has neither a batch dimension nor sliding windows.",
        .source = "nemo_automodel/components/distributed/context_parallel/magi.py",
    },
    {
        .id = "S2S-AM-025",
        .dialects = AM,
        .severity = ERROR,
        .when = "separate_mesh and (not set(teacher_mesh) or dp_cfg == null or teacher_dp == null "
                "or sizes_world + teacher_world != all_world)",
        .at = "separate_mesh teacher_dp dp_cfg",
        .message = "student and teacher on meshes of their own ({if(known(sizes_world), "
                   "sizes_world, 'unknown')} and {if(known(teacher_world), teacher_world, "
                   "'unknown')} ranks) do not fill the {if(known(all_world), all_world, 'world')}",
        .fix = "give both dp_size, and sizes that add up to the number of ranks",
        .why = "Every rank belongs to exactly one of the two.",
        .source = "nemo_automodel/recipes/kd_utils.py:create_kd_distributed_setups",
    },
    {
        .id = "S2S-AM-025",
        .dialects = AM,
        .severity = ERROR,
        .when = "separate_mesh and (fsdp == 'ddp' or teacher_fsdp == 'ddp')",
        .at = "teacher_fsdp fsdp",
        .message = "student and teacher on meshes of their own with DDP",
        .fix = "use fsdp2",
        .why = "DDP has no mesh.",
        .source = "nemo_automodel/recipes/kd_utils.py:create_kd_distributed_setups",
    },
    {
        .id = "S2S-AM-025",
        .dialects = AM,
        .severity = ERROR,
        .when = "not separate_mesh and set(teacher_mesh)",
        .at = "teacher_mesh",
        .message = "teacher_distributed without separate_meshes",
        .fix = "set separate_meshes: true, or remove the block",
        .why = "Without meshes of their own student and teacher share one.",
        .source = "nemo_automodel/recipes/kd_utils.py:create_kd_distributed_setups",
    },
    {
        .id = "S2S-AM-018",
        .dialects = AM,
        .severity = WARNING,
        .when = "pp > 1 and ends(loss, 'FusedLinearCrossEntropy')",
        .at = "loss",
        .message = "FusedLinearCrossEntropy with pp {pp} is replaced by MaskedCrossEntropy",
        .fix = "use MaskedCrossEntropy",
        .why = "The fused loss needs hidden states, the last stage has logits.",
        .source = TRAIN,
    },
    {
        .id = "S2S-AM-022",
        .dialects = AM,
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
        .dialects = AM,
        .severity = WARNING,
        .when = "timeout_minutes < 10 and world >= 64",
        .at = "timeout_minutes",
        .message = "a time limit of {timeout_minutes} minutes on {world} ranks",
        .fix = "use 10 minutes or more",
        .why = "Loading and sharding a model at this size takes longer, and NCCL gives up.",
        .source = "dist_env",
    },
    {
        .id = "S2S-AM-026",
        .dialects = AM,
        .severity = ERROR,
        .when = "recompute_kind == 'bad'",
        .at = "recompute",
        .message =
            "activation_checkpointing '{recompute}' is neither a boolean nor full or selective",
        .fix = "use true, false, full or selective",
        .why = "Other words are refused.",
        .source = DIST ":_normalize_activation_checkpointing",
    },
    {
        .id = "S2S-BAT-001",
        .dialects = AM,
        .severity = ERROR,
        .when = "gbs >= 1 and mbs >= 1 and not separate_mesh and mbs*dp not divides gbs",
        .at = "gbs mbs",
        .message =
            "global_batch_size {gbs} is not a multiple of local_batch_size * dp = {mbs} * {dp}: "
            "{gbs} % {mbs*dp} = {gbs % (mbs*dp)}",
        .fix = "use {near(gbs, mbs*dp)}",
        .why = "A step accumulates a whole number of local batches on every rank.",
        .source = "nemo_automodel/components/training/step_scheduler.py:StepScheduler.__init__",
        .after = "S2S-WLD",
    },
    {
        .id = "S2S-SCH-013",
        .dialects = AM,
        .severity = ERROR,
        .when = "ckpt_every <= 0 or val_every <= 0 or log_every <= 0 or gc_every <= 0 or (steps == "
                "null and (ends(dataset_target, 'NanogptDataset') or (ends(dataset_target, "
                "'IterableDataset') and not contains(dataset_target, 'Mock'))))",
        .at = "ckpt_every val_every log_every gc_every dataset_target",
        .message = "{if(ckpt_every <= 0 or val_every <= 0 or log_every <= 0 or gc_every <= 0, 'an "
                   "interval of 0 steps or less', 'no max_steps, and a data set whose length is "
                   "not known')}",
        .fix = "use positive intervals, and give step_scheduler.max_steps",
        .why = "The step scheduler refuses an interval of nothing, and cannot count the steps of a "
               "stream.",
        .source = "nemo_automodel/components/training/step_scheduler.py:StepScheduler.__init__",
    },
    {
        .id = "S2S-TP-013",
        .dialects = AM,
        .severity = ERROR,
        .when = "async_tp and (not sp or (tp > 1 and (ep > 1 or experts > 1)))",
        .at = "async_tp",
        .message =
            "enable_async_tensor_parallel without sequence parallelism, or on a mixture of experts",
        .fix = "drop it, or set distributed.sequence_parallel: true on a dense model",
        .why = "It overlaps the gathers that sequence parallelism makes.",
        .source = "nemo_automodel/components/distributed/parallelizer.py",
    },
    {
        .id = "S2S-THD-013",
        .dialects = AM,
        .severity = WARNING,
        .when = "packed and pack_tokens < seq",
        .at = "pack_tokens",
        .message = "packed_sequence_size {pack_tokens} is less than the data set's length {seq}",
        .fix = "use at least {seq}",
        .why = "Long samples are dropped or split.",
        .source = "recipe packing",
    },
    {
        .id = "S2S-AM-027",
        .dialects = AM,
        .severity = ERROR,
        .when = "attn == 'flex' and contains(collate, 'packed_sequence_thd_collater')",
        .at = "attn collate",
        .message = "attention flex with batches in the THD layout",
        .fix = "use attn: te, or another collate_fn",
        .why =
            "FlexAttention is called with four axes (batch, heads, tokens, channels); a THD pack "
            "has three, and the first forward ends.",
        .source = "nemo_automodel/components/attention/flex_attention.py; "
                  "nemo_automodel/components/attention/utils.py",
    },
    RULES_END,
};
