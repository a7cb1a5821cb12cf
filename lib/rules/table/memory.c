/* Rules about the memory of a GPU; what they compare comes from memory.c. */
#include "lib/rules/rules_internal.h"

#define WARNING S2S_SEVERITY_WARNING
#define INFO S2S_SEVERITY_INFO
#define MODELS (S2S_DIALECT_SLM | S2S_DIALECT_RL | S2S_DIALECT_AM | S2S_DIALECT_MLM)
#define FORMULA "megatron/training/theoretical_memory_usage.py:compute_weight_and_optimizer_memory"

const struct s2s_rule rules_memory[] = {
    {
        .id = "S2S-MEM-001",
        .dialects = MODELS,
        .severity = WARNING,
        .when = "device != null and state_gib > device_gib",
        .at = "tp dp_cfg dist_opt",
        .message =
            "{state_rank} needs {state_gib} GiB for weights, gradients and optimizer states, "
            "{device} has {device_gib} GiB",
        .fix = "more tp, pp or sharding over dp; a larger device",
        .why = "They are allocated before the first step: the run ends with an out-of-memory error "
               "at its start.",
        .source = FORMULA,
        .after = "S2S-WLD",
    },
    {
        .id = "S2S-MEM-002",
        .dialects = MODELS,
        .severity = WARNING,
        .when = "device != null and total_gib > device_gib",
        .at = "mbs pack_tokens seq",
        .message = "{total_rank} needs {total_gib} GiB, {activation_gib} GiB of them activations, "
                   "{device} has {device_gib} GiB",
        .fix =
            "recompute activations, smaller microbatches, more cp or tp with sequence parallelism",
        .why =
            "Activations of the microbatches in flight and the logits come on top of weights and "
            "optimizer states: the first step runs out of memory.",
        .source = "megatron/training/theoretical_memory_usage.py:compute_activation_memory",
        .after = "S2S-MEM-001 S2S-WLD",
    },
    {
        .id = "S2S-MEM-003",
        .dialects = MODELS | S2S_DIALECT_S2S,
        .severity = INFO,
        .when = "report and total_gib > 0",
        .at = "tp pp",
        .message =
            "a rank needs at least {total_gib} GiB: {state_gib} GiB of weights, gradients and "
            "optimizer states, {activation_gib} GiB of activations, {logits_gib} GiB of "
            "{logits_name}",
        .fix = "",
        .why = "Asked for with --report. Buffers of communication, fragments and the encoder of a "
               "speech model come on top; in recipes of s2s-train all is counted.",
        .source = "megatron/training/theoretical_memory_usage.py:report_theoretical_memory",
    },
    {
        .id = "S2S-MEM-004",
        .dialects = MODELS,
        .severity = INFO,
        .when = "device != null and 4*logits_gib > device_gib",
        .at = "mbs pack_tokens seq",
        .message = "the logits of a microbatch alone need {logits_gib} of {device_gib} GiB",
        .fix = "a fused or chunked cross entropy, more tp, fewer tokens a microbatch",
        .why = "tokens * vocabulary values in float32 exist at once in the last stage, with their "
               "gradient once more: the peak of the step is there.",
        .source = "Korthikanti et al. 2022, section 4.3",
        .after = "S2S-MEM-001 S2S-WLD",
    },
    {
        .id = "S2S-MEM-005",
        .dialects = S2S_DIALECT_MLM | S2S_DIALECT_AM,
        .severity = WARNING,
        .when = "device != null and ep == 1 and 2*experts_gib > device_gib",
        .at = "ep",
        .message = "all experts on each rank (ep 1) need {experts_gib} of {device_gib} GiB",
        .fix = "raise ep to a divisor of {experts}",
        .why =
            "With ep 1 each data-parallel rank holds every expert; ep shares them among ranks that "
            "are there anyway.",
        .source = FORMULA,
    },
    {
        .id = "S2S-MEM-006",
        .dialects = S2S_DIALECT_SLM,
        .severity = INFO,
        .when = "use_automodel and dp > 1 and embedding_gib >= 1",
        .at = "llm",
        .message = "the embedding is gathered whole in each step: {embedding_gib} GiB for a moment",
        .fix = "",
        .why =
            "The table of the language model is sharded by FSDP, and the audio model looks up its "
            "tokens outside of the language model: every rank takes vocabulary * hidden * 2 bytes.",
        .source = "speechlm2/models/salm_automodel.py:_embed_tokens",
    },
    RULES_END,
};
