/* Megatron-LM arguments: dimensions, hybrid patterns and experts that need or exclude another. */
#include "lib/rules/rules_internal.h"

#define MEGATRON (S2S_DIALECT_MLM | S2S_DIALECT_HET)
#define ERROR S2S_SEVERITY_ERROR
#define WARNING S2S_SEVERITY_WARNING
#define INFO S2S_SEVERITY_INFO

#define ARGS "megatron/training/arguments.py:validate_args"
#define CONFIG "megatron/core/transformer/transformer_config.py"
#define MIXER "megatron/core/ssm/mamba_mixer.py"

const struct s2s_rule rules_mlm_model[] = {
    {
        .id = "S2S-MOD-007",
        .dialects = S2S_DIALECT_MLM,
        .severity = ERROR,
        .when = "closed_args and trains and not use_ckpt_args and yaml_cfg == null and "
                "heterogeneous == null and sizes_given == 3",
        .at = "hidden heads mpe layers_given",
        .message = "{if(hidden == null, 'hidden-size', if(heads == null, 'num-attention-heads', "
                   "if(mpe == null, 'max-position-embeddings', 'num-layers')))} is not given",
        .fix = "give it, or --use-checkpoint-args",
        .why = "A size of the model has no default.",
        .source = ARGS,
    },
    {
        .id = "S2S-MOD-009",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "no_rope_step not divides layers or (no_rope_entries > 0 and no_rope_entries != "
                "layers)",
        .at = "no_rope",
        .message = "no-rope-freq {if(no_rope_step != null, no_rope_step, no_rope_entries)} does "
                   "not fit {layers} layers",
        .fix = "use {if(no_rope_step != null, divisors(layers), 'one entry a layer')}",
        .why = "The pattern of layers without rotary embedding repeats a whole number of times.",
        .source = CONFIG,
    },
    {
        .id = "S2S-MOD-012",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "(mtp_layers > 0 or pattern_mtp > 0) and not rotary and position not in ('rope', "
                "'none')",
        .at = "position mtp_layers",
        .message = "multi-token prediction with position embedding {position}",
        .fix = "use --position-embedding-type rope or none",
        .why = "Its layers see shifted tokens and have no table of positions for them.",
        .source = ARGS,
    },
    {
        .id = "S2S-MOD-013",
        .dialects = MEGATRON,
        .severity = WARNING,
        .when = "mtp_hsm and (mtp_layers == null or mtp_layers < 2) and (pattern_mtp == null or "
                "pattern_mtp < 2)",
        .error_when = "yaml_sections",
        .at = "mtp_hsm",
        .message = "mtp-hsm with {if(mtp_layers == null, 'no', mtp_layers)} layers of "
                   "multi-token prediction is switched off",
        .fix = "use --mtp-num-layers 2 or more, or leave it out",
        .why = "It mixes the states of several such layers.",
        .source = ARGS,
    },
    {
        .id = "S2S-MOD-016",
        .dialects = S2S_DIALECT_HET,
        .severity = ERROR,
        .when = "image_tokens >= seq or audio_tokens >= seq",
        .at = "image_tokens audio_tokens",
        .message = "{max(if(image_tokens == null, 0, image_tokens), if(audio_tokens == null, 0, "
                   "audio_tokens))} tokens of a modality in samples of {seq} tokens leave no "
                   "room for text",
        .fix = "use a longer --seq-length, or fewer tokens a sample",
        .why = "A sample holds its text too; without any the batch has nothing to learn from.",
        .source = "examples/mimo/training/data.py:_MockVLMDataset",
    },
    {
        .id = "S2S-MOD-020",
        .dialects = MEGATRON,
        .severity = WARNING,
        .when = "(rope_type == 'yarn' or position == 'yarn') and rope_factor > 0 and "
                "rope_factor*rope_original < seq",
        .at = "rope_factor rope_original seq_given",
        .message = "yarn reaches {rope_factor} * {rope_original} = {rope_factor*rope_original} "
                   "positions, sequences have {seq}",
        .fix = "use a factor of at least {up(seq, rope_original) // rope_original}",
        .why = "Positions behind that are outside what the rotation was scaled for.",
        .source = "derived",
    },
    {
        .id = "S2S-HYB-009",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "pattern_mamba and mamba_heads == null and mamba_head_dim not divides 2*hidden",
        .at = "mamba_head_dim hidden",
        .message = "mamba-head-dim {mamba_head_dim} does not divide 2 * hidden-size = {2*hidden}",
        .fix = "give --mamba-num-heads, or another head dimension",
        .why = "Without a number of heads, the expanded width is cut into heads.",
        .source = MIXER,
    },
    {
        .id = "S2S-HYB-010",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "pattern_mamba and set(fp8) and mamba_in_width % 16 != 0",
        .at = "mamba_heads mamba_head_dim mamba_groups mamba_state",
        .message = "the input projection of mamba layers is {mamba_in_width} wide, with FP8 it "
                   "must be a multiple of 16",
        .fix = "use another number of heads, groups or states",
        .why = "FP8 products work on blocks of 16: 2*inner + 2*groups*states + heads columns.",
        .source = MIXER,
    },
    {
        .id = "S2S-HYB-014",
        .dialects = S2S_DIALECT_MLM,
        .severity = INFO,
        .when = "pattern_skew > 130",
        .at = "pattern_new pattern_old",
        .message = "one pipeline stage has only mamba layers and another most of the attention: "
                   "the heaviest does {pattern_skew} % of the work of the lightest",
        .fix = "move the | breaks",
        .why = "Every stage waits for the slowest.",
        .source = "derived",
        .after = "S2S-HYB-001 S2S-HYB-002 S2S-HYB-003",
    },
    {
        .id = "S2S-MOE-019",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "experts != null and dispatcher == 'allgather' and variable_seq",
        .at = "dispatcher variable_seq fp8",
        .message = "the allgather dispatcher with sequences of variable length",
        .fix = "use --moe-token-dispatcher-type alltoall",
        .why = "The gather needs the same number of tokens on every rank.",
        .source = CONFIG,
    },
    {
        .id = "S2S-MOE-020",
        .dialects = MEGATRON,
        .severity = ERROR,
        .when = "overlap_ep and ((pp > 1 and vpp <= 1) or ep == 1 or dispatcher not in "
                "('alltoall', 'flex') or recompute == 'full' or set(recompute_method) or "
                "set(recompute_layers) or (recompute == 'selective' and has(recompute_modules, "
                "'moe')) or (not bf16 and not fp16) or shared_overlap or mtp_layers > 1)",
        .at = "overlap_ep",
        .message =
            "overlap-moe-expert-parallel-comm with {if(pp > 1 and vpp <= 1, 'pipeline stages "
            "that are not interleaved', if(ep == 1, 'ep 1', if(dispatcher == 'allgather', "
            "'dispatcher allgather', if(recompute == 'full' or set(recompute_method) or "
            "set(recompute_layers), 'full recomputation', if(shared_overlap, "
            "'moe-shared-expert-overlap', if(mtp_layers > 1, 'more than one layer of "
            "multi-token prediction', if(bf16 or fp16, 'recomputed moe modules', 'fp32')))))))}",
        .fix = "it takes interleaved stages, ep > 1, dispatcher alltoall or flex, bf16 or fp16, "
               "and no full or moe recomputation",
        .why = "It runs the exchange of one microbatch behind the computation of another.",
        .source = CONFIG,
    },
    {
        .id = "S2S-MOE-022",
        .dialects = MEGATRON,
        .severity = WARNING,
        .when = "permute_fusion and older(te, '2.1')",
        .at = "permute_fusion",
        .message = "moe-permute-fusion with Transformer Engine {te}",
        .fix = "use Transformer Engine 2.1 or newer, or leave it out",
        .why = "Older releases do not have the fused kernels, and the start fails. The release is "
               "said with --set te=2.0.",
        .source = CONFIG,
    },
    {
        .id = "S2S-MOE-027",
        .dialects = S2S_DIALECT_MLM,
        .severity = INFO,
        .when = "experts == ep and ep > 1 and tp > 1 and if(moe_ffn == null, dense_ffn, moe_ffn) < "
                "2048",
        .at = "ep experts",
        .message =
            "one expert of width {if(moe_ffn == null, dense_ffn, moe_ffn)} a rank, and tp {tp}: "
            "its products are small",
        .fix = "use a smaller ep",
        .why = "Small matrices leave most of a GPU idle.",
        .source = "heuristic",
    },
    {
        .id = "S2S-MOD-008",
        .dialects = MEGATRON,
        .severity = WARNING,
        .when = "not mla and attn in ('auto', 'flash', 'fused') and (head_dim > 256 or head_dim % "
                "8 != 0)",
        .at = "head_dim_given heads hidden",
        .message = "head dimension {head_dim}: no fast attention backend takes it",
        .fix = "use a head dimension that is a multiple of 8 and at most 256",
        .why = "Flash and fused attention filter on the head dimension; the unfused fallback is "
               "slow and knows neither packing nor context parallelism.",
        .source = "transformer_engine get_attention_backend, head dimension filters",
    },
    {
        .id = "S2S-HYB-013",
        .dialects = MEGATRON,
        .severity = WARNING,
        .when = "hybrid and experts > 0 and not pattern_experts and pattern_fault == ''",
        .at = "experts pattern_new",
        .message = "num-experts {experts}, but no layer of the pattern is an expert layer (E)",
        .fix = "put E into the pattern, or leave --num-experts out",
        .why = "The flag has no effect.",
        .source = "hybrid stack",
    },
    RULES_END,
};
