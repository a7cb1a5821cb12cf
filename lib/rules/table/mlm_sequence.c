/* Sequences, batches over time and stages of Megatron-LM. */
#include "lib/rules/rules_internal.h"

#define MLM S2S_DIALECT_MLM
#define HET S2S_DIALECT_HET
#define ERROR S2S_SEVERITY_ERROR
#define WARNING S2S_SEVERITY_WARNING
#define INFO S2S_SEVERITY_INFO

#define ARGS "megatron/training/arguments.py:validate_args"
#define CONFIG "megatron/core/transformer/transformer_config.py:TransformerConfig.__post_init__"
#define TE_CP "transformer_engine attention/dot_product_attention/context_parallel.py"
#define TE "transformer_engine attention/dot_product_attention/utils.py:get_attention_backend"

const struct s2s_rule rules_mlm_sequence[] = {
    {
        .id = "S2S-WLD-015",
        .dialects = MLM,
        .severity = ERROR,
        .when = "pp_before_dp and pp > 1 and world / (etp*ep*pp) != dp",
        .at = "pp_before_dp ep",
        .message = "use-tp-pp-dp-mapping with {world / (etp*ep*pp)} data-parallel ranks of experts "
                   "and {dp} of the rest",
        .fix = "leave --use-tp-pp-dp-mapping out, or make etp*ep equal to tp*cp",
        .why = "Only with pipeline ranks last do experts and the rest agree on the stages whatever "
               "their data-parallel sizes.",
        .source = "megatron/core/parallel_state.py:initialize_model_parallel",
        .after = "S2S-WLD",
    },
    {
        .id = "S2S-BAT-006",
        .dialects = MLM,
        .severity = ERROR,
        .when = "step_fault != null",
        .at = "step_schedule",
        .message = "entry '{step_entry}' of step-batch-size-schedule {step_fault}",
        .fix = "write START:SIZE entries, the first 0:SIZE, with growing starts and sizes that are "
               "multiples of micro-batch-size * dp",
        .why = "The schedule is read at start, and each size is used when its samples have been "
               "seen, which may be days later.",
        .source = "megatron/core/num_microbatches_calculator.py:_validate_schedule",
        .after = "S2S-WLD",
    },
    {
        .id = "S2S-TP-009",
        .dialects = MLM | HET,
        .severity = INFO,
        .when = "plain_vocab > 0 and tp > 1 and vocab == null and vocab_unit >= 1 and "
                "100*(up(plain_vocab, vocab_unit*tp) - plain_vocab) > 5*plain_vocab",
        .at = "plain_vocab tp",
        .message = "the vocabulary of {plain_vocab} is padded to {up(plain_vocab, vocab_unit*tp)}",
        .fix = "use a smaller --make-vocab-size-divisible-by",
        .why = "Embedding and logits hold rows that no token has.",
        .source = "megatron/core/tokenizers/utils/build_tokenizer.py:vocab_size_with_padding",
    },
    {
        .id = "S2S-CP-008",
        .dialects = MLM,
        .severity = WARNING,
        .when =
            "cp > 1 and contains(cp_comm, 'a2a') and attn == 'fused' and ((heads / tp) % 2 == 1 "
            "or (kv_heads / tp) % 2 == 1)",
        .at = "cp_comm cp",
        .message = "cp-comm-type {cp_comm} with {heads / tp} heads and {kv_heads / tp} key-value "
                   "heads a rank",
        .fix = "use even numbers of heads a rank, or cp-comm-type p2p",
        .why = "Fused attention drops out where heads cannot be exchanged in pairs.",
        .source = TE,
    },
    {
        .id = "S2S-CP-009",
        .dialects = MLM,
        .severity = ERROR,
        .when = "cp > 1 and set(window) and (starts(cp_comm, 'p2p') or cp_comm == 'a2a+p2p')",
        .at = "window cp_comm cp",
        .message = "sliding-window attention with cp {cp} and cp-comm-type {cp_comm}",
        .fix = "use --cp-comm-type a2a or allgather",
        .why = "The ring exchange knows whole causal attention only.",
        .source = TE_CP ":attn_forward_func_with_cp",
    },
    {
        .id = "S2S-CP-011",
        .dialects = MLM,
        .severity = ERROR,
        .when = "cp > 1 and packed and softmax_type != 'vanilla' and cudnn < 91800",
        .at = "softmax_type cp",
        .message = "softmax-type {softmax_type} over packed sequences with cp {cp} and cuDNN "
                   "{cudnn}",
        .fix = "upgrade cuDNN to 9.18",
        .why = "Older versions have no such kernel.",
        .source = TE_CP,
    },
    {
        .id = "S2S-CP-012",
        .dialects = MLM,
        .severity = ERROR,
        .when = "cp > 1 and position == 'relative' and (packed or cp_comm != 'p2p')",
        .at = "position cp",
        .message = "relative position embeddings with cp {cp}",
        .fix = "use rope",
        .why = "They are a bias of attention, which context parallelism takes only in the ring "
               "exchange of unpacked sequences.",
        .source = TE,
    },
    {
        .id = "S2S-CP-014",
        .dialects = MLM,
        .severity = ERROR,
        .when = "cp > 1 and n_cp_comm > 1 and n_cp_comm != layers",
        .at = "cp_comm",
        .message = "cp-comm-type has {n_cp_comm} entries for {layers} layers",
        .fix = "give one, or one for each layer",
        .why = "A list names the exchange of every layer.",
        .source = CONFIG,
    },
    {
        .id = "S2S-CP-015",
        .dialects = MLM,
        .severity = ERROR,
        .when = "cp > 1 and attention_variant == 'dsa' and stranger(cp_comm, 'allgather "
                "all_gather') != null",
        .at = "cp_comm attention_variant cp",
        .message = "sparse attention (dsa) with cp {cp} and cp-comm-type {cp_comm}",
        .fix = "use --cp-comm-type allgather",
        .why = "Its indexer must see the keys of the whole sequence.",
        .source = CONFIG,
    },
    {
        .id = "S2S-CP-017",
        .dialects = MLM,
        .severity = ERROR,
        .when = "cp > 1 and flash_version == 4",
        .at = "flash_version cp",
        .message = "FlashAttention 4 with cp {cp}",
        .fix = "use version 2 or 3, or the fused backend",
        .why = "Version 4 has no context parallelism.",
        .source = TE,
    },
    {
        .id = "S2S-CP-019",
        .dialects = MLM,
        .severity = WARNING,
        .when = "cp > 1 and rl_step",
        .at = "rl_step cp",
        .message = "rollouts are generated on a mesh with cp {cp}",
        .fix = "generate with cp 1",
        .why = "With a cache of keys and values no attention backend has context parallelism.",
        .source = TE,
    },
    {
        .id = "S2S-CP-023",
        .dialects = MLM,
        .severity = ERROR,
        .when = "attention_variant == 'gated_delta_net' and (tp*cp not divides key_heads or tp*cp "
                "not divides value_heads or key_heads not divides value_heads)",
        .at = "attention_variant key_heads value_heads",
        .message = "gated delta net with {key_heads} key heads, {value_heads} value heads on tp "
                   "{tp} * cp {cp}",
        .fix = "use a tp*cp out of {divisors(key_heads)}",
        .why = "Its heads are split over tensor- and context-parallel ranks.",
        .source = CONFIG,
    },
    {
        .id = "S2S-THD-016",
        .dialects = MLM | HET,
        .severity = ERROR,
        .when = "packed and pattern_mamba and no_mamba_path",
        .at = "no_mamba_path",
        .message = "packed sequences with disable-mamba-mem-eff-path",
        .fix = "leave --disable-mamba-mem-eff-path out",
        .why = "Only the memory-efficient path stops a Mamba layer's state at the end of a "
               "sequence.",
        .source = "megatron/core/ssm/mamba_mixer.py:forward",
    },
    {
        .id = "S2S-THD-018",
        .dialects = MLM | HET,
        .severity = ERROR,
        .when = "packing_rows > 0 and mbs > 1",
        .at = "mbs packing_rows",
        .message = "packing-buffer-size {packing_rows} with micro-batch-size {mbs}",
        .fix = "use --micro-batch-size 1",
        .why = "A packed sample is a microbatch of its own.",
        .source = "examples/multimodal",
    },
    {
        .id = "S2S-PP-012",
        .dialects = MLM,
        .severity = ERROR,
        .when = "p2p_warmup and (no_overlap_p2p or pp == 1 or vpp == 1)",
        .at = "p2p_warmup",
        .message = "overlap-p2p-communication-warmup-flush without overlapped communication",
        .fix = "use the interleaved schedule with overlap, or leave it out",
        .why = "Only the interleaved schedule overlaps its sends and receives.",
        .source = "megatron/core/model_parallel_config.py:ModelParallelConfig.__post_init__",
    },
    {
        .id = "S2S-PP-020",
        .dialects = MLM,
        .severity = ERROR,
        .when = "inference_threshold > -1 and (pp == 1 or graph_impl != 'none')",
        .at = "inference_threshold",
        .message = "inference-batch-times-seqlen-threshold with pp {pp}, cuda-graph-impl "
                   "{graph_impl}",
        .fix = "leave it out",
        .why = "It cuts batches for pipeline stages, which graphs of one shape exclude.",
        .source = ARGS,
    },
    {
        .id = "S2S-PP-021",
        .dialects = MLM,
        .severity = ERROR,
        .when = "pp > 1 and pp_backend == 'ucc' and max_connections == '1'",
        .at = "pp_backend max_connections",
        .message = "the ucc backend between stages with CUDA_DEVICE_MAX_CONNECTIONS=1",
        .fix = "unset CUDA_DEVICE_MAX_CONNECTIONS",
        .why = "Its kernels wait for each other and need queues of their own.",
        .source = "megatron/core/parallel_state.py:initialize_model_parallel",
    },
    {
        .id = "S2S-PP-022",
        .dialects = MLM,
        .severity = ERROR,
        .when = "mhc and (pp > 1 or recompute == 'full' or mtp_layers != null or fp32_residual)",
        .at = "mhc",
        .message = "hyper-connections with pp {pp}, recompute {recompute}, mtp-num-layers "
                   "{mtp_layers}",
        .fix = "use pp 1, selective recomputation and no multi-token prediction",
        .why = "A layer carries several residual streams, which these do not know.",
        .source = CONFIG,
    },
    {
        .id = "S2S-MOE-006",
        .dialects = MLM | HET,
        .severity = ERROR,
        .when = "experts != null and n_balancing > 1 and n_balancing != n_coefficients",
        .at = "aux_coeff router_balancing",
        .message = "{n_balancing} kinds of load balancing and {n_coefficients} coefficients",
        .fix = "give a --moe-aux-loss-coeff for each",
        .why = "Each kind has a coefficient of its own.",
        .source = CONFIG,
    },
    {
        .id = "S2S-WLD-003",
        .dialects = HET,
        .severity = ERROR,
        .when = "etp*ep*egtp*pp not divides llm_size",
        .at = "ep>1 etp>1 pp ep",
        .message = "etp*ep*pp = {etp}*{ep}*{pp} does not divide the {llm_size} ranks of the "
                   "language model",
        .fix = "use a smaller llm-ep or llm-expt-tp",
        .why = "Experts have a grid of their own over the same ranks.",
        .source = "megatron/core/parallel_state.py:initialize_model_parallel",
    },
    {
        .id = "S2S-CP-013",
        .dialects = MLM,
        .severity = ERROR,
        .when = "cp > 1 and padding_mask",
        .at = "cp",
        .message = "cp {cp} in a program whose batches carry a padding mask",
        .fix = "use cp 1",
        .why = "The attention kernels under context parallelism take no padding mask.",
        .source = TE_CP,
    },
    {
        .id = "S2S-THD-022",
        .dialects = MLM | HET,
        .severity = ERROR,
        .when = "packed and seq*mbs > 2147483647",
        .at = "seq mbs",
        .message = "packs of {seq*mbs} tokens: cu_seqlens are 32-bit",
        .fix = "use smaller packs",
        .why = "The offsets of variable-length attention are int32.",
        .source = "transformer_engine",
    },
    RULES_END,
};
