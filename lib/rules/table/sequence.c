/* Sequences over ranks on NeMo-RL, Automodel and Megatron: what context parallelism, packing,
 * attention backends and pipeline stages ask of lengths, heads and microbatches. */
#include "lib/rules/rules_internal.h"

#define AM S2S_DIALECT_AM
#define RL S2S_DIALECT_RL
#define MLM S2S_DIALECT_MLM
#define HET S2S_DIALECT_HET
#define ERROR S2S_SEVERITY_ERROR
#define WARNING S2S_SEVERITY_WARNING
#define INFO S2S_SEVERITY_INFO

#define BACKENDS "transformer_engine attention/dot_product_attention/utils.py:get_attention_backend"
#define LANGUAGE "megatron/core/models/common/language_module/language_module.py"

const struct s2s_rule rules_sequence[] = {
    {
        .id = "S2S-WLD-004",
        .dialects = RL,
        .severity = ERROR,
        .when = "dt and not meg and ep > 1 and ep not divides dp*cp*tp and not (upstream == "
                "'rl-pr2242' and cp > 1)",
        .at = "ep",
        .message = "ep {ep} does not divide dp*cp*tp = {dp}*{cp}*{tp} = {dp*cp*tp}",
        .fix = "choose an ep among {divisors(dp*cp*tp)}",
        .why = "Expert-parallel groups are cut out of the dp, cp and tp ranks; they do not take "
               "ranks of their own.",
        .source = "nemo_automodel/components/distributed/mesh_utils.py:_create_fsdp2_device_mesh",
        .after = "S2S-WLD-001 S2S-WLD-002",
    },
    {
        .id = "S2S-WLD-010",
        .dialects = RL,
        .severity = WARNING,
        .when = "meg and (deepep or flex_backend == 'deepep') and etp*ep > gpus_per_node",
        .at = "ep",
        .message = "expert groups of ep*etp = {ep}*{etp} ranks over nodes of {gpus_per_node} with "
                   "an all-to-all made for one node",
        .fix = "use a smaller ep, or moe_flex_dispatcher_backend: hybridep",
        .why = "Its exchange crosses nodes over the slow network.",
        .source = "nemo_rl/models/megatron/setup.py:_apply_moe_config",
    },
    {
        .id = "S2S-WLD-010",
        .dialects = AM,
        .severity = WARNING,
        .when = "dispatcher == 'deepep' and ep > gpus_per_node",
        .at = "ep",
        .message = "expert groups of ep {ep} ranks over nodes of {gpus_per_node} with an "
                   "all-to-all made for one node",
        .fix = "use a smaller ep, or dispatcher hybridep",
        .why = "Its exchange crosses nodes over the slow network.",
        .source = "nemo_rl/models/megatron/setup.py:_apply_moe_config",
    },
    {
        .id = "S2S-BAT-011",
        .dialects = RL | AM | MLM,
        .severity = INFO,
        .when = "pp > 1 and nmb >= pp and (vpp == null or vpp == 1) and 100*(pp - 1) // (nmb + pp "
                "- 1) > 25",
        .at = "pp gbs",
        .message = "{nmb} microbatches for {pp} pipeline stages: {100*(pp - 1) // (nmb + pp - 1)} "
                   "% of the time is bubble",
        .fix = "use more microbatches, or virtual stages",
        .why = "1F1B keeps (pp-1)/(nmb+pp-1) of each rank's time idle.",
        .source = "megatron/core/pipeline_parallel/schedules.py",
        .after = "S2S-WLD S2S-BAT-001 S2S-BAT-002",
    },
    {
        .id = "S2S-TP-006",
        .dialects = AM,
        .severity = ERROR,
        .when = "tp > 1 and tp not divides kv_heads",
        .at = "tp",
        .message = "tp {tp} does not divide the {kv_heads} key-value heads",
        .fix = "use a tp among {divisors(kv_heads)}",
        .why = "The DTensor plans do not repeat key-value heads.",
        .source = "nemo_automodel parallelizer.py:validate_tp_mesh",
    },
    {
        .id = "S2S-TP-014",
        .dialects = AM,
        .severity = ERROR,
        .when = "experts > 1 and tp > 1 and sp",
        .at = "sp tp",
        .message = "tp {tp} with sequence parallelism on a mixture of experts",
        .fix = "set {@sp}: false",
        .why = "The tensor-parallel plan of Automodel's MoE models refuses sequence parallelism.",
        .source = "nemo_automodel/components/moe/parallelizer.py:_resolve_moe_tp_plan",
    },
    {
        .id = "S2S-CP-001",
        .dialects = AM,
        .severity = ERROR,
        .when = "cp > 1 and not packed and 2*cp not divides seq",
        .at = "seq cp",
        .message = "the sequence length {seq} is not a multiple of 2*cp = {2*cp}: {seq} % {2*cp} = "
                   "{seq % (2*cp)}",
        .fix = "use {near(seq, 2*cp)}",
        .why = "Each rank takes two of 2*cp equal chunks, one from each end.",
        .source = "nemo_automodel/components/distributed/context_parallel/sharder.py",
    },
    {
        .id = "S2S-CP-001",
        .dialects = RL,
        .severity = ERROR,
        .when = "dt and not meg and cp > 1 and not packed and 2*cp not divides seq",
        .at = "seq cp",
        .message = "{@seq} {seq} is not a multiple of 2*cp = {2*cp}: {seq} % {2*cp} = {seq % "
                   "(2*cp)}",
        .fix = "use {near(seq, 2*cp)}",
        .why = "Each rank takes two of 2*cp equal chunks, one from each end; a sequence of full "
               "length cannot be cut.",
        .source = "torch.distributed.tensor.experimental.context_parallel",
    },
    {
        .id = "S2S-CP-003",
        .dialects = AM,
        .severity = ERROR,
        .when = "cp > 1 and (attn == 'te' or attn_implementation == 'te') and "
                "env('NVTE_FLASH_ATTN') == '0' and env('NVTE_FUSED_ATTN') == '0'",
        .at = "cp attn",
        .message = "cp {cp} with flash and fused attention both switched off: no attention backend "
                   "supports context parallelism",
        .fix = "allow one of NVTE_FLASH_ATTN and NVTE_FUSED_ATTN",
        .why = "Context parallelism is implemented in the flash and fused backends only.",
        .source = BACKENDS,
    },
    {
        .id = "S2S-CP-004",
        .dialects = MLM | HET,
        .severity = ERROR,
        .when = "cp > 1 and not bf16 and not fp16 and not skip_train",
        .at = "cp",
        .message = "cp {cp} without --bf16 or --fp16",
        .fix = "add --bf16",
        .why = "Flash and fused attention, the only backends with context parallelism, take 16-bit "
               "inputs.",
        .source = BACKENDS,
        .after = "S2S-CP-030",
    },
    {
        .id = "S2S-CP-004",
        .dialects = AM,
        .severity = ERROR,
        .when = "cp > 1 and (attn == 'te' or attn_implementation == 'te') and stage_dtype == "
                "'float32'",
        .at = "cp",
        .message = "cp {cp} with activations in float32",
        .fix = "use bfloat16 in distributed.mp_policy",
        .why = "Flash and fused attention, the only backends with context parallelism, take 16-bit "
               "inputs.",
        .source = BACKENDS,
    },
    {
        .id = "S2S-CP-021",
        .dialects = MLM | HET,
        .severity = ERROR,
        .when = "cp > 1 and pattern_mamba and mamba_heads != null and (cp*tp not divides "
                "mamba_heads or (tp divides mamba_groups and (mamba_groups / tp) not divides cp "
                "and cp not divides (mamba_groups / tp)))",
        .at = "cp",
        .message = "cp {cp} cannot exchange the {mamba_heads} mamba heads and {mamba_groups} "
                   "groups of tp {tp}",
        .fix = "use a cp that divides {mamba_heads}/tp",
        .why = "Mamba layers run head-parallel under context parallelism: each rank takes "
               "heads/cp, and groups are split or repeated evenly.",
        .source = "megatron/core/ssm/mamba_context_parallel.py",
        .after = "S2S-CP-030",
    },
    {
        .id = "S2S-CP-025",
        .dialects = RL,
        .severity = ERROR,
        .when = "dt and not meg and cp > 1 and (contains(model_name, 'gemma-3') or "
                "contains(model_name, 'gemma3') or contains(model_name, '-VL-') or "
                "(contains(model_name, 'Qwen3.5-') and not contains(model_name, '-A')))",
        .at = "cp model_name",
        .message = "cp {cp} with {model_name} on the DTensor backend",
        .fix = "use the Megatron backend, or context_parallel_size: 1",
        .why = "Torch's context parallelism does not fit its attention; the model is refused.",
        .source = "nemo_rl/models/automodel/setup.py:setup_model_and_optimizer",
    },
    {
        .id = "S2S-CP-026",
        .dialects = AM,
        .severity = ERROR,
        .when = "tp > 1 and (attn == 'te' or attn_implementation == 'te') and (tp not divides "
                "heads or tp not divides kv_heads)",
        .at = "tp attn",
        .message = "TransformerEngine attention with tp {tp}, {heads} heads and {kv_heads} "
                   "key-value heads",
        .fix = "use a tp that divides both",
        .why = "Each rank's attention is built for an equal share of both.",
        .source = "nemo_automodel/components/distributed/context_parallel/"
                  "utils.py:attach_te_context_parallel",
    },
    {
        .id = "S2S-CP-027",
        .dialects = AM,
        .severity = INFO,
        .when = "cp > 1 and compile_layers and (attn == 'sdpa' or attn_implementation == 'sdpa')",
        .at = "compile_layers cp",
        .message = "cp {cp} with compiled layers and attention sdpa",
        .fix = "use attention te",
        .why = "Context parallelism hooks into sdpa; a compiled layer must break its graph there, "
               "or each rank attends to its own part only.",
        .source = "nemo_automodel attach_cp_sdpa_hooks",
    },
    {
        .id = "S2S-CP-029",
        .dialects = MLM | HET,
        .severity = ERROR,
        .when = "(attn == 'local' and (nvte_flash != '0' or nvte_fused != '0' or nvte_unfused != "
                "'0')) or (attn == 'flash' and (nvte_flash != '1' or nvte_fused != '0' or "
                "nvte_unfused != '0')) or (attn == 'fused' and (nvte_flash != '0' or nvte_fused != "
                "'1' or nvte_unfused != '0')) or (attn == 'unfused' and (nvte_flash != '0' or "
                "nvte_fused != '0' or nvte_unfused != '1')) or (attn == 'auto' and (nvte_flash != "
                "'1' or nvte_fused != '1' or nvte_unfused != '1'))",
        .at = "attn nvte_flash nvte_fused nvte_unfused tp",
        .message = "attention-backend {attn} contradicts NVTE_FLASH_ATTN, NVTE_FUSED_ATTN or "
                   "NVTE_UNFUSED_ATTN of the environment",
        .fix = "unset the three variables; --attention-backend sets them",
        .why = "The backend is chosen by setting them, and other values are asserted against.",
        .source = LANGUAGE,
    },
    {
        .id = "S2S-CP-029",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and ((attn == 'flash' and (env_flash == '0' or env_fused == '1')) or (attn == "
                "'fused' and (env_flash == '1' or env_fused == '0')) or (attn in ('unfused', "
                "'local') and (env_flash == '1' or env_fused == '1')))",
        .at = "attn nvte_fused",
        .message = "attention_backend {attn} contradicts NVTE_FLASH_ATTN or NVTE_FUSED_ATTN of the "
                   "environment",
        .fix = "unset the variables; attention_backend sets them",
        .why = "The backend is chosen by setting them, and other values are asserted against.",
        .source = LANGUAGE,
    },
    {
        .id = "S2S-THD-005",
        .dialects = AM,
        .severity = ERROR,
        .when = "packed and (attn == 'te' or attn_implementation == 'te') and "
                "env('NVTE_FUSED_ATTN') == '0' and known(sm) and sm != 90",
        .at = "packed attn",
        .message = "packed sequences with padding between them, fused attention off and no "
                   "FlashAttention 3: no backend is left",
        .fix = "allow fused attention",
        .why = "Flash 2 and unfused attention do not take padding between packed sequences.",
        .source = BACKENDS,
    },
    {
        .id = "S2S-THD-006",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and packed and sm == 120 and env('NVTE_FLASH_ATTN') == '0' and cudnn < 91801",
        .at = "packed",
        .message = "packed sequences on sm 12.0 with flash attention off and cuDNN {cudnn}",
        .fix = "upgrade cuDNN to 9.18.1, or allow flash attention",
        .why = "Fused attention has no packed layout on sm 12.0 before cuDNN 9.18.1.",
        .source = BACKENDS,
    },
    {
        .id = "S2S-THD-006",
        .dialects = AM | MLM | HET,
        .severity = ERROR,
        .when = "packed and sm == 120 and env('NVTE_FLASH_ATTN') == '0' and cudnn < 91801",
        .at = "packed sft pack_tokens packing_buffer",
        .message = "packed sequences on sm 12.0 with flash attention off and cuDNN {cudnn}",
        .fix = "upgrade cuDNN to 9.18.1, or allow flash attention",
        .why = "Fused attention has no packed layout on sm 12.0 before cuDNN 9.18.1.",
        .source = BACKENDS,
    },
    {
        .id = "S2S-THD-010",
        .dialects = AM,
        .severity = WARNING,
        .when = "packed and (cp > 1 or (sp and tp > 1)) and pack_tokens % (if(cp > 1, 2*cp, 1)*"
                "if(sp, tp, 1)) != 0",
        .at = "pack_tokens",
        .message = "packed_sequence_size {pack_tokens} is not a multiple of {if(cp > 1, 2*cp, "
                   "1)*if(sp, tp, 1)}",
        .fix = "use {near(pack_tokens, if(cp > 1, 2*cp, 1)*if(sp, tp, 1))}",
        .why = "Every pack is padded up to it.",
        .source = "nemo_automodel recipes, packing",
    },
    {
        .id = "S2S-THD-019",
        .dialects = RL,
        .severity = INFO,
        .when = "meg and packed and pp > 1",
        .at = "packed pp",
        .message = "with pp {pp} all bins of a batch are padded to the longest",
        .fix = "nothing to do; larger bins are filled more evenly",
        .why = "Pipeline stages exchange activations of one shape.",
        .source = "nemo_rl/models/megatron/data.py",
    },
    {
        .id = "S2S-THD-022",
        .dialects = RL | AM,
        .severity = ERROR,
        .when = "packed and pack_tokens > 2147483647",
        .at = "pack_tokens",
        .message = "a pack of {pack_tokens} tokens: cu_seqlens are 32-bit",
        .fix = "use smaller packs",
        .why = "The offsets of variable-length attention are int32.",
        .source = "transformer_engine",
    },
    {
        .id = "S2S-PP-007",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and vpp > 1 and pp > 1 and not packed and not dynamic and nmb % pp != 0",
        .at = "vpp pp gbs",
        .message = "{nmb} microbatches for {pp} stages with {vpp} virtual stages each",
        .fix = "use {near(nmb, pp)} microbatches",
        .why = "The interleaved schedule runs microbatches in groups of pp.",
        .source = "megatron/core/pipeline_parallel/"
                  "schedules.py:forward_backward_pipelining_with_interleaving",
        .after = "S2S-WLD S2S-BAT-002 S2S-BAT-003",
    },
    {
        .id = "S2S-PP-009",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and pp > 1 and pipeline_dtype == null",
        .at = "pipeline_dtype pp",
        .message = "pp {pp} without a pipeline_dtype",
        .fix = "set {@pipeline_dtype} to the precision",
        .why = "Stages must know the type of what they receive.",
        .source = "megatron/core/model_parallel_config.py:ModelParallelConfig.__post_init__",
    },
    {
        .id = "S2S-PP-010",
        .dialects = MLM,
        .severity = WARNING,
        .when = "pp == 1 and (first_layers != null or last_layers != null)",
        .at = "first_layers last_layers",
        .message = "layers of the first or last stage are given, but pp is 1",
        .fix = "remove them",
        .why = "They are ignored.",
        .source = "megatron/core/transformer/transformer_config.py",
    },
    {
        .id = "S2S-PP-023",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and refit == 'nccl_reshard' and pp > 1 and (vpp > 1 or set(layout) or "
                "account_embedding or account_loss)",
        .at = "refit vpp layout",
        .message = "weights are handed over by nccl_reshard from uneven or virtual stages",
        .fix = "use an even split without virtual stages, or another refit_transport",
        .why = "The hand-over computes which stage holds a layer by plain division.",
        .source = "nemo_rl/models/policy/workers/"
                  "megatron_policy_worker.py:_build_layer_to_pp_stage",
    },
    {
        .id = "S2S-WLD-016",
        .dialects = AM,
        .severity = ERROR,
        .when = "not separate_mesh and world_given == null and ci_world != null and ci_world != "
                "sizes_world",
        .at = "ci_gpus ci_nodes",
        .message =
            "{ci_world} processes are launched, the sizes under distributed make {sizes_world}",
        .fix = "make dp_size*tp_size*cp_size*pp_size the product of ci.nodes and ci.nproc_per_node",
        .why = "A rank that is missing, or one too many, leaves the others waiting at rendezvous "
               "until the timeout.",
        .source = "torchrun rendezvous",
    },
    {
        .id = "S2S-BAT-010",
        .dialects = AM,
        .severity = WARNING,
        .when = "pp > 1 and schedule == 'single' and nmb >= 1 and nmb < pp",
        .at = "mbs pp_mbs pp",
        .message = "{nmb} microbatches for {pp} pipeline stages: the pipeline never fills, "
                   "{bubble} % of the time is bubble",
        .fix = "use a local_batch_size of at least {2*pp*pp_mbs}",
        .why = "1F1B keeps (pp-1)/(nmb+pp-1) of each rank's time idle.",
        .source = "torch.distributed.pipelining.schedules",
        .after = "S2S-WLD",
    },
    {
        .id = "S2S-TP-012",
        .dialects = RL | AM,
        .severity = INFO,
        .when = "sp and tp > 1 and tp_plan == null and dense and architecture_plan != null",
        .at = "sp tp",
        .message = "no tensor-parallel plan is made for {architecture}: the one of Hugging Face is "
                   "taken, which may not know sequence parallelism",
        .fix = "give a plan in {@tp_plan}, or set {@sp}: false",
        .why = "Activations that a plan does not split are repeated on every rank, or fail to meet "
               "the shape that follows.",
        .source = "nemo_rl/models/dtensor/parallelize.py:_parallelize_model",
    },
    {
        .id = "S2S-CP-010",
        .dialects = AM,
        .severity = ERROR,
        .when = "cp > 1 and (contains(model_name, 'gpt-oss') or contains(model_name, 'gpt_oss'))",
        .at = "cp",
        .message = "cp {cp} with attention sinks ({model_name})",
        .fix = "use cp_size: 1",
        .why = "A learned softmax offset is exchanged in no other way than a2a, which the recipe "
               "does not use.",
        .source = BACKENDS,
    },
    {
        .id = "S2S-CP-011",
        .dialects = AM,
        .severity = ERROR,
        .when = "cp > 1 and packed and (contains(model_name, 'gpt-oss') or contains(model_name, "
                "'gpt_oss')) and cudnn < 91800",
        .at = "cp packed",
        .message =
            "attention sinks ({model_name}) over packed sequences with cp {cp} and cuDNN {cudnn}",
        .fix = "use cp_size: 1, or unpacked sequences",
        .why = "cuDNN has had such a kernel since 9.18 only.",
        .source = BACKENDS,
    },
    {
        .id = "S2S-CP-017",
        .dialects = AM,
        .severity = ERROR,
        .when = "cp > 1 and attn_implementation == 'flash_attention_4'",
        .at = "attn_implementation cp",
        .message = "FlashAttention 4 with cp {cp}",
        .fix = "use the te backend",
        .why = "Version 4 has no context parallelism.",
        .source = BACKENDS,
    },
    {
        .id = "S2S-CP-018",
        .dialects = AM,
        .severity = ERROR,
        .when = "cp > 1 and packed and fp8_attention",
        .at = "fp8_attention cp",
        .message = "FP8 attention with cp {cp} and packed sequences",
        .fix = "set fp8_dpa: false",
        .why = "No backend of Transformer Engine has FP8 attention over packed sequences split "
               "over ranks.",
        .source = BACKENDS,
    },
    {
        .id = "S2S-CP-013",
        .dialects = S2S_DIALECT_SLM,
        .severity = ERROR,
        .when = "cp > 1 and not packed and use_automodel and model_class != 'salm_automodel'",
        .at = "cp packed",
        .message = "cp_size {cp} with batches that are padded to their longest sequence",
        .fix = "use cp_size: 1, or packed sequences",
        .why = "The attention kernels under context parallelism take no padding mask.",
        .source = BACKENDS,
        .after = "S2S-CP-002",
    },
    {
        .id = "S2S-CP-019",
        .dialects = RL,
        .severity = WARNING,
        .when = "meg and cp > 1 and backend == 'megatron'",
        .at = "backend cp",
        .message = "answers are generated on the training mesh with cp {cp}",
        .fix = "use vllm, or cp 1",
        .why = "With a cache of keys and values no attention backend has context parallelism.",
        .source = BACKENDS,
    },
    {
        .id = "S2S-THD-007",
        .dialects = AM,
        .severity = ERROR,
        .when = "packed and fp8_attention",
        .at = "fp8_attention packed",
        .message = "packed sequences with FP8 attention",
        .fix = "set fp8_dpa: false",
        .why =
            "The fused backend, the only one with FP8 attention, drops out for packed sequences.",
        .source = BACKENDS,
        .after = "S2S-CP-018",
    },
    {
        .id = "S2S-THD-011",
        .dialects = RL,
        .severity = INFO,
        .when = "meg and packed and fp8_on",
        .at = "packed",
        .message = "FP8 pads packs to multiples of {if(dispatcher == 'flex' and flex_backend == "
                   "'hybridep', 128, fp8_block)*if(cp > 1, 2*cp, 1)*tp} tokens",
        .fix = "nothing to do; larger packs waste less",
        .why = "Quantised matrices come in whole blocks on every rank.",
        .source = "nemo_rl/models/megatron/data.py:_get_pack_sequence_parameters_for_megatron",
    },
    {
        .id = "S2S-THD-012",
        .dialects = AM,
        .severity = WARNING,
        .when = "packed and cp > 1 and (attn in ('sdpa', 'flex') or (attn == null and "
                "attn_implementation in ('sdpa', 'eager', 'flex_attention', 'flash_attention_2', "
                "'flash_attention_3')))",
        .at = "attn attn_implementation packed cp",
        .message = "packed sequences with cp {cp} and attention that does not know both",
        .fix = "set model.backend.attn: te, or packed_sequence_size: 0",
        .why = "Only Transformer Engine attention, and models with an exchange of their own, split "
               "packed sequences over ranks; the recipe refuses the others at setup.",
        .error_when = "dense",
        .source = "nemo_automodel/_transformers/capabilities.py:supports_cp_with_sequence_packing",
    },
    {
        .id = "S2S-THD-021",
        .dialects = AM,
        .severity = WARNING,
        .when = "attn in ('tilelang', 'cudnn') and other_family",
        .at = "attn",
        .message = "{@attn} {attn} for {model_name}, which has no such kernel",
        .fix = "use te",
        .why = "Sparse attention kernels exist for models that are trained with sparse attention; "
               "others fall back or fail.",
        .source = "nemo_automodel/components/models/common/utils.py:BackendConfig",
    },
    {
        .id = "S2S-PP-016",
        .dialects = RL | AM | MLM,
        .severity = INFO,
        .when = "pp > 1 and layers >= pp and 5*pp*stage_most > 6*(layers + 2)",
        .at = "pp",
        .message = "the largest of {pp} stages has {stage_most} of {layers + 2} layers, embedding "
                   "and loss counted: all wait for it",
        .fix = "move a layer from the first and last stage to the others, or use a smaller pp",
        .why = "A pipeline runs at the pace of its slowest stage.",
        .source = "derived",
    },
    RULES_END,
};
