/* Tensor, sequence, context and pipeline parallelism, attention backends, packed sequences. */
#include "lib/rules/rules_internal.h"

#define S2S S2S_DIALECT_S2S
#define SLM S2S_DIALECT_SLM
#define AM S2S_DIALECT_AM
#define RL S2S_DIALECT_RL
#define ERROR S2S_SEVERITY_ERROR
#define WARNING S2S_SEVERITY_WARNING
#define INFO S2S_SEVERITY_INFO

#define VALIDATE "nemo/collections/speechlm2/parts/parallel.py:validate_parallelism_compatibility"

const struct s2s_rule rules_tp[] = {
    {
        .id = "S2S-TP-001",
        .dialects = SLM,
        .severity = INFO,
        .when = "sp and tp == 1",
        .at = "sp",
        .message = "sequence parallelism is on, but tp is 1",
        .fix = "remove {@sp}, or use tp > 1",
        .why =
            "Sequence parallelism splits over the tensor-parallel group; with one rank in it there "
            "is nothing to split, and it is switched off.",
        .source = "megatron/training/arguments.py:validate_args",
    },
    {
        .id = "S2S-TP-001",
        .dialects = RL | AM,
        .severity = WARNING,
        .when = "sp and tp == 1",
        .at = "sp",
        .message = "sequence parallelism is on, but tp is 1",
        .fix = "remove {@sp}, or use tp > 1",
        .why =
            "Sequence parallelism splits over the tensor-parallel group; with one rank in it there "
            "is nothing to split, and it is switched off.",
        .source = "nemo_rl/models/automodel/setup.py; megatron/training/arguments.py:validate_args",
    },
    {
        .id = "S2S-TP-002",
        .dialects = RL | AM,
        .severity = ERROR,
        .when = "tp > 1 and tp not divides heads",
        .at = "tp",
        .message = "tp {tp} does not divide the {heads} attention heads",
        .fix = "use a tp among {divisors(heads)}",
        .why = "Attention is split by heads.",
        .source = "megatron TransformerConfig; nemo_rl/models/dtensor/parallelize.py",
    },
    {
        .id = "S2S-TP-003",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and tp > 1 and tp not divides kv_heads and kv_heads not divides tp",
        .at = "tp",
        .message = "tp {tp} and {kv_heads} key-value heads: neither divides the other",
        .fix = "use a tp among {divisors(kv_heads)}",
        .why = "Key-value heads are split or repeated evenly over tensor-parallel ranks.",
        .source = "megatron TransformerConfig",
    },
    {
        .id = "S2S-TP-006",
        .dialects = RL,
        .severity = ERROR,
        .when = "dt and not meg and tp > 1 and tp not divides kv_heads",
        .at = "tp",
        .message = "tp {tp} does not divide the {kv_heads} key-value heads",
        .fix = "use a tp among {divisors(kv_heads)}",
        .why = "The DTensor plans do not repeat key-value heads.",
        .source = "nemo_automodel parallelizer.py:validate_tp_mesh",
    },
    {
        .id = "S2S-TP-002",
        .dialects = SLM,
        .severity = ERROR,
        .when = "strategy == 'automodel' and tp > 1 and tp not divides heads",
        .at = "tp",
        .message = "tp {tp} does not divide the {heads} attention heads",
        .fix = "use a tp among {divisors(heads)}",
        .why = "Attention is split by heads.",
        .source = "nemo_automodel parallelizer.py:validate_tp_mesh",
    },
    {
        .id = "S2S-TP-007",
        .dialects = SLM,
        .severity = WARNING,
        .when =
            "strategy == 'model_parallel' and tp > 1 and (tp not divides heads or tp not divides "
            "kv_heads or tp not divides hidden)",
        .at = "tp",
        .message =
            "tp {tp} does not divide heads {heads}, kv heads {kv_heads} or hidden size {hidden}",
        .fix = "use a tp that divides all three",
        .why = "The model only logs this at start; the shapes break later.",
        .source = "nemo/collections/speechlm2/models/salm.py:configure_model",
    },
    {
        .id = "S2S-TP-014",
        .dialects = SLM,
        .severity = ERROR,
        .when = "strategy == 'automodel' and experts > 1 and tp > 1 and sp",
        .at = "sp tp",
        .message = "tp {tp} with sequence parallelism on a mixture of experts",
        .fix = "set {@sp}: false",
        .why = "The tensor-parallel plan of Automodel's MoE models refuses sequence parallelism.",
        .source = "nemo_automodel/components/moe/parallelizer.py:_resolve_moe_tp_plan",
    },
    {
        .id = "S2S-TP-015",
        .dialects = SLM,
        .severity = ERROR,
        .when = "mtp and tp > 1",
        .at = "tp mtp",
        .message = "multi-token prediction with tp {tp}",
        .fix = "use tp 1, or set model.mtp.enabled: false",
        .why = "The MTP head has no tensor-parallel plan.",
        .source = "nemo/collections/speechlm2/models/salm_automodel.py",
    },
    {
        .id = "S2S-TP-016",
        .dialects = SLM,
        .severity = ERROR,
        .when = "model_class == 'streaming' and use_automodel and tp > 1",
        .at = "tp",
        .message = "a streaming model with tp {tp}",
        .fix = "use tp 1",
        .why =
            "The interleaved loss is not safe on a vocabulary-sharded head; the model refuses at "
            "fit start.",
        .source = "nemo/collections/speechlm2/models/streaming_stt_model_automodel.py",
    },
    {
        .id = "S2S-TP-017",
        .dialects = SLM,
        .severity = WARNING,
        .when = "foreach and tp > 1",
        .at = "foreach",
        .message = "optimizer.foreach is true with tp {tp}",
        .fix = "set model.optimizer.foreach: false",
        .why = "The foreach kernels need all parameters in one placement; tensor parallelism mixes "
               "sharded and replicated ones.",
        .source = "comment in the speechlm2 example configs",
    },
    RULES_END,
};

const struct s2s_rule rules_cp[] = {
    {
        .id = "S2S-CP-002",
        .dialects = SLM,
        .severity = ERROR,
        .when = "cp > 1 and not packed and model_class == 'salm_automodel'",
        .at = "cp packed",
        .message = "cp_size {cp} without packed sequences: padding keys leak into attention and "
                   "gradients become NaN after the first step",
        .fix = "set model.packed_sequences: true (with automodel_backend.attn: te), or cp_size: 1",
        .why = "The attention kernels under context parallelism take no padding mask, so it is "
               "dropped, and right-padded batches attend to their padding.",
        .source = VALIDATE,
    },
    {
        .id = "S2S-CP-003",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and cp > 1 and (attn in ('unfused', 'local') or (env_flash == '0' and "
                "env_fused == '0'))",
        .at = "attn cp",
        .message = "cp {cp} with neither flash nor fused attention",
        .fix = "use flash or fused attention, and leave NVTE_FLASH_ATTN and NVTE_FUSED_ATTN unset",
        .why = "Context parallelism is implemented in the flash and fused backends only.",
        .source = "transformer_engine get_attention_backend",
    },
    {
        .id = "S2S-CP-004",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and cp > 1 and precision == 'float32'",
        .at = "precision cp",
        .message = "cp {cp} with precision float32",
        .fix = "use bfloat16",
        .why = "Flash and fused attention take 16-bit inputs.",
        .source = "transformer_engine get_attention_backend",
    },
    {
        .id = "S2S-CP-003",
        .dialects = SLM,
        .severity = ERROR,
        .when = "cp > 1 and attn == 'te' and env('NVTE_FLASH_ATTN') == '0' and "
                "env('NVTE_FUSED_ATTN') == '0'",
        .at = "cp attn",
        .message = "cp {cp} with flash and fused attention both switched off: no attention backend "
                   "supports context parallelism",
        .fix = "allow one of NVTE_FLASH_ATTN and NVTE_FUSED_ATTN",
        .why = "Context parallelism is implemented in the flash and fused backends only.",
        .source =
            "transformer_engine attention/dot_product_attention/utils.py:get_attention_backend",
    },
    {
        .id = "S2S-CP-004",
        .dialects = SLM,
        .severity = ERROR,
        .when = "cp > 1 and attn == 'te' and precision in ('32', '32-true')",
        .at = "precision cp",
        .message = "cp {cp} with precision {precision}",
        .fix = "use a bf16 precision, such as bf16-true",
        .why = "Flash and fused attention, the only backends with context parallelism, take 16-bit "
               "inputs.",
        .source = "transformer_engine get_attention_backend, qkv dtype filter",
    },
    {
        .id = "S2S-CP-021",
        .dialects = SLM | AM,
        .severity = ERROR,
        .when = "cp > 1 and (cp*tp not divides mamba_heads or (tp divides mamba_groups and "
                "(mamba_groups / tp) not divides cp and cp not divides (mamba_groups / tp)))",
        .at = "cp",
        .message =
            "cp {cp} cannot exchange the {mamba_heads} mamba heads and {mamba_groups} groups "
            "of tp {tp}",
        .fix = "use a cp that divides {mamba_heads}/tp",
        .why =
            "Mamba layers run head-parallel under context parallelism: each rank takes heads/cp, "
            "and groups are split or repeated evenly.",
        .source = "megatron/core/ssm/mamba_context_parallel.py",
    },
    {
        .id = "S2S-CP-022",
        .dialects = SLM,
        .severity = ERROR,
        .when = "linear_attention and cp > 1",
        .at = "cp",
        .message = "cp {cp} with a language model that has linear attention layers",
        .fix = "use cp_size: 1",
        .why = "The backbone guard refuses context parallelism over linear attention.",
        .source = VALIDATE,
    },
    {
        .id = "S2S-CP-028",
        .dialects = SLM | S2S_DIALECT_MLM | S2S_DIALECT_HET,
        .severity = INFO,
        .when = "cp > 1 and seq >= cp and seq // cp < 2048",
        .at = "cp",
        .message = "cp {cp} leaves {seq // cp} tokens a rank: communication will dominate",
        .fix = "use a smaller cp, or longer sequences",
        .why =
            "Below some 2,000 tokens a rank the exchange of keys and values takes longer than the "
            "attention it hides behind.",
        .source = "heuristic",
    },
    {
        .id = "S2S-CP-028",
        .dialects = RL | AM,
        .severity = INFO,
        .when = "cp > 1 and rank_tokens >= 1 and rank_tokens < 2048",
        .at = "cp",
        .message = "cp {cp} leaves {rank_tokens} tokens a rank: communication will dominate",
        .fix = "use a smaller cp, or longer sequences",
        .why =
            "Below some 2,000 tokens a rank the exchange of keys and values takes longer than the "
            "attention it hides behind.",
        .source = "heuristic",
    },
    RULES_END,
};

const struct s2s_rule rules_thd[] = {
    {
        .id = "S2S-THD-005",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and packed and env_fused == '0' and known(sm) and sm != 90",
        .at = "nvte_fused packed",
        .message = "packed sequences with padding between them, fused attention off and no "
                   "FlashAttention 3: no backend is left",
        .fix = "allow fused attention",
        .why = "Flash 2 and unfused attention do not take padding between packed sequences.",
        .source = "transformer_engine get_attention_backend, THD filter",
    },
    {
        .id = "S2S-THD-010",
        .dialects = RL,
        .severity = WARNING,
        .when = "meg and packed and shard > 1 and pack_tokens % shard != 0",
        .at = "pack_tokens",
        .message = "train_mb_tokens {pack_tokens} is not a multiple of {shard}",
        .fix = "use {near(pack_tokens, shard)}",
        .why = "The last bin is padded up in every step.",
        .source = "nemo_rl/models/megatron/data.py",
    },
    {
        .id = "S2S-THD-001",
        .dialects = SLM,
        .severity = ERROR,
        .when = "packed and attn != 'te' and model_class == 'salm_automodel'",
        .at = "attn packed",
        .message = "packed sequences with attention {attn}",
        .fix = "set model.automodel_backend.attn: te",
        .why = "Packing makes one [tokens, hidden] row for variable-length attention; the other "
               "paths take it for a padded four-dimensional batch and break.",
        .source = VALIDATE,
        .after = "S2S-CP-002",
    },
    {
        .id = "S2S-THD-002",
        .dialects = SLM,
        .severity = ERROR,
        .when = "packed and attn == 'te' and env('NVTE_FUSED_ATTN') != '0' and sm == 120 and "
                "model_class == 'salm_automodel'",
        .at = "packed",
        .message = "packed sequences on sm 12.0 without NVTE_FUSED_ATTN=0: gradients grow 8 to 960 "
                   "times a layer, to inf and NaN",
        .fix = "export NVTE_FUSED_ATTN=0 in the launcher (and say so here with --env "
               "NVTE_FUSED_ATTN=0)",
        .why =
            "The fused attention backward of TransformerEngine 2.14 is wrong for packed sequences "
            "on this architecture; only the exact value 0 switches it off.",
        .source = VALIDATE,
        .after = "S2S-CP-002 S2S-THD-001",
    },
    {
        .id = "S2S-THD-003",
        .dialects = SLM,
        .severity = WARNING,
        .when =
            "packed and attn == 'te' and env('NVTE_FUSED_ATTN') != '0' and (not known(sm) or sm "
            "!= 120) and model_class == 'salm_automodel'",
        .at = "packed",
        .message = "packed sequences without NVTE_FUSED_ATTN=0",
        .fix = "export NVTE_FUSED_ATTN=0 in the launcher (and say so here with --env "
               "NVTE_FUSED_ATTN=0)",
        .why = "The fused attention backward is known to be wrong for packed sequences on sm 12.0, "
               "and nobody has shown that it is right elsewhere.",
        .source = VALIDATE,
        .after = "S2S-CP-002 S2S-THD-001",
    },
    {
        .id = "S2S-THD-004",
        .dialects = SLM,
        .severity = ERROR,
        .when = "packed and linear_attention",
        .at = "packed",
        .message = "packed sequences with a language model that has linear attention layers",
        .fix = "set model.packed_sequences: false",
        .why =
            "The backbone guard refuses packing over linear attention: its state would run across "
            "documents.",
        .source = VALIDATE,
    },
    {
        .id = "S2S-THD-006",
        .dialects = SLM,
        .severity = ERROR,
        .when =
            "packed and attn == 'te' and sm == 120 and env('NVTE_FLASH_ATTN') == '0' and cudnn < "
            "91801",
        .at = "packed",
        .message = "packed sequences on sm 12.0 with flash attention off and cuDNN {cudnn}",
        .fix = "upgrade cuDNN to 9.18.1, or allow flash attention",
        .why = "Fused attention has no packed layout on sm 12.0 before cuDNN 9.18.1.",
        .source = "transformer_engine get_attention_backend, THD filter",
    },
    {
        .id = "S2S-THD-020",
        .dialects = SLM,
        .severity = WARNING,
        .when = "packed and pe_encoder != null",
        .at = "packed pe_encoder",
        .message = "packed sequences with a ParallelExpertEncoder",
        .fix = "generate without packed sequences",
        .why = "The encoder's generation path does not support packing.",
        .source = "nemo/collections/speechlm2/models/salm_automodel.py",
    },
    {
        .id = "S2S-THD-022",
        .dialects = SLM,
        .severity = ERROR,
        .when = "packed and batch_tokens > 2147483647",
        .at = "batch_tokens",
        .message = "a pack of {batch_tokens} tokens: cu_seqlens are 32-bit",
        .fix = "use smaller batches",
        .why = "The offsets of variable-length attention are int32.",
        .source = "transformer_engine",
    },
    RULES_END,
};

const struct s2s_rule rules_pp[] = {
    {
        .id = "S2S-PP-001",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and pp > 1 and first_layers == null and last_layers == null and layout == "
                "null and vpp == null and not (known(nemotron_h) and nemotron_h) and pp not "
                "divides (layers + if(account_embedding, 1, 0) + if(account_loss, 1, 0))",
        .at = "pp",
        .message = "pp {pp} does not divide the {layers} layers",
        .fix = "use a pp among {divisors(layers)}, or say how many layers the first and last stage "
               "take",
        .why = "Layers are spread evenly over stages unless told otherwise.",
        .source = "megatron/training/arguments.py:validate_args",
    },
    {
        .id = "S2S-PP-003",
        .dialects = RL,
        .severity = ERROR,
        .when =
            "meg and (first_layers < 1 or last_layers < 1 or (pp > 1 and layout == null and "
            "(first_layers != null or last_layers != null) and (if(free_stages > 0, rest_layers < "
            "1 or rest_layers % free_stages != 0, rest_layers != 0) or (vpp > 1 and (first_layers "
            "% vpp != 0 or last_layers % vpp != 0 or (rest_layers / free_stages) % vpp != 0)))))",
        .at = "first_layers last_layers",
        .message = "the first stage has {first_layers} layers, the last {last_layers}: "
                   "{rest_layers} are left for {free_stages} stages between",
        .fix = "give each at least one layer and, with virtual stages, a multiple of them, and "
               "those between the same number",
        .why = "An empty stage cannot be built.",
        .source = "megatron TransformerConfig",
    },
    {
        .id = "S2S-PP-010",
        .dialects = RL,
        .severity = WARNING,
        .when = "meg and pp == 1 and (first_layers != null or last_layers != null)",
        .at = "first_layers last_layers",
        .message = "layers of the first or last stage are given, but pp is 1",
        .fix = "remove them",
        .why = "They are ignored.",
        .source = "nemo_rl/models/megatron/setup.py",
    },
    {
        .id = "S2S-SLM-008",
        .dialects = SLM,
        .severity = ERROR,
        .when = "pp > 1",
        .at = "pp",
        .message = "pp_size {pp}: speechlm2 models have no pipeline parallelism",
        .fix = "set pp_size: 1",
        .why = "configure_model raises NotImplementedError.",
        .source = "nemo/collections/speechlm2/models/salm_automodel.py:configure_model",
    },
    RULES_END,
};
