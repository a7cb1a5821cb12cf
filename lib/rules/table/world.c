/* World size, topology and batch arithmetic. */
#include "lib/rules/rules_internal.h"

#define S2S S2S_DIALECT_S2S
#define SLM S2S_DIALECT_SLM
#define AM S2S_DIALECT_AM
#define MLM S2S_DIALECT_MLM
#define RL S2S_DIALECT_RL
#define ERROR S2S_SEVERITY_ERROR
#define WARNING S2S_SEVERITY_WARNING
#define INFO S2S_SEVERITY_INFO

const struct s2s_rule rules_wld[] = {
    {
        .id = "S2S-WLD-001",
        .dialects = S2S | SLM | RL | AM | MLM,
        .severity = ERROR,
        .when = "world >= tp*cp*pp*gtp and tp*cp*pp*gtp not divides world",
        .at = "tp>1 cp>1 pp>1 tp cp pp world_given nodes devices",
        .message = "world size {world} is not a multiple of tp*cp*pp = {tp}*{cp}*{pp}: {world} % "
                   "{tp*cp*pp*gtp} = {world % (tp*cp*pp*gtp)}",
        .fix = "change a size, or run on {near(world, tp*cp*pp*gtp)} ranks",
        .why = "Every data-parallel replica needs tp*cp*pp ranks; what is left over belongs to no "
               "group and process groups cannot be formed.",
        .source = "megatron/training/arguments.py:validate_args; "
                  "nemo_automodel/components/distributed/mesh_utils.py:_infer_dp_size",
    },
    {
        .id = "S2S-WLD-002",
        .dialects = S2S | SLM | RL | AM | MLM,
        .severity = ERROR,
        .when = "world < tp*cp*pp*gtp",
        .at = "tp>1 cp>1 pp>1 tp cp pp world_given nodes devices",
        .message = "world size {world} is less than tp*cp*pp = {tp}*{cp}*{pp} = {tp*cp*pp*gtp}",
        .fix = "run on at least {tp*cp*pp*gtp} ranks, or make a size smaller",
        .why =
            "Not even one replica of the model fits the ranks: the data-parallel size would be 0.",
        .source = "nemo_rl/models/policy/lm_policy.py:Policy.__init__",
    },
    {
        .id = "S2S-WLD-003",
        .dialects = RL,
        .severity = ERROR,
        .when = "meg and ep*etp > 1 and etp*ep*pp not divides world",
        .at = "ep>1 etp>1 pp ep",
        .message =
            "etp*ep*pp = {etp}*{ep}*{pp} = {etp*ep*pp} does not divide the world size {world}",
        .fix = "use a smaller ep or etp, or {near(world, etp*ep*pp)} ranks",
        .why = "Experts have a grid of their own over the same ranks.",
        .source = "megatron/core/parallel_state.py:initialize_model_parallel",
        .after = "S2S-WLD-001 S2S-WLD-002",
    },
    {
        .id = "S2S-WLD-004",
        .dialects = SLM | AM,
        .severity = ERROR,
        .when = "ep > 1 and ep not divides dp*cp*tp",
        .at = "ep",
        .message = "ep {ep} does not divide dp*cp*tp = {dp}*{cp}*{tp} = {dp*cp*tp}",
        .fix = "choose an ep among {divisors(dp*cp*tp)}",
        .why =
            "Expert-parallel groups are cut out of the dp, cp and tp ranks; they do not take ranks "
            "of their own.",
        .source = "nemo_automodel/components/distributed/mesh_utils.py:_create_fsdp2_device_mesh",
        .after = "S2S-WLD-001 S2S-WLD-002",
    },
    {
        .id = "S2S-WLD-005",
        .dialects = S2S | SLM | AM,
        .severity = ERROR,
        .when = "dp_cfg*tp*cp*pp != world and not (strategy == 'model_parallel')",
        .at = "dp_cfg",
        .message =
            "{@dp_cfg} {dp_cfg} times tp*cp*pp = {tp*cp*pp} is {dp_cfg*tp*cp*pp}, but the world "
            "size is {world}",
        .fix =
            "set {@dp_cfg} to {world / (tp*cp*pp)}, or to null, which takes the rest of the ranks",
        .why = "The mesh would have another number of places than there are ranks.",
        .source = "DeviceMesh size check of torch; "
                  "nemo_automodel/components/distributed/mesh_utils.py",
        .after = "S2S-WLD-001 S2S-WLD-002",
    },
    {
        .id = "S2S-WLD-006",
        .dialects = SLM,
        .severity = ERROR,
        .when = "strategy == 'model_parallel' and dp_cfg*tp != world",
        .at = "dp_cfg tp",
        .message =
            "data_parallel_size {dp_cfg} times tensor_parallel_size {tp} is {dp_cfg*tp}, but "
            "the world size is {world}",
        .fix = "write `auto` for one of the two",
        .why = "Lightning's ModelParallelStrategy builds a two-dimensional mesh over all ranks and "
               "refuses another size.",
        .source = "lightning.pytorch.strategies.ModelParallelStrategy",
    },
    {
        .id = "S2S-WLD-007",
        .dialects = S2S_DIALECT_ALL,
        .severity = ERROR,
        .message = "a size must be at least 1",
        .fix = "use a positive integer",
        .why = "A parallel size counts ranks of a group.",
        .source = "nemo_automodel/components/distributed/mesh_utils.py:_validate_mesh_spec",
    },
    {
        .id = "S2S-WLD-008",
        .dialects = S2S | SLM | RL | AM | MLM | S2S_DIALECT_HET,
        .severity = WARNING,
        .when = "tp > gpus_per_node",
        .at = "tp",
        .message = "tp {tp} is larger than the {gpus_per_node} GPUs of a node",
        .fix = "keep tp within a node ({divisors(gpus_per_node)}) and use pp or cp across nodes",
        .why = "Tensor parallelism exchanges activations in every layer; outside of NVLink that is "
               "what the step waits for.",
        .source = "performance rule; topology warning of nemo_rl lm_policy.py",
    },
    {
        .id = "S2S-WLD-009",
        .dialects = S2S | SLM | RL | AM | MLM | S2S_DIALECT_HET,
        .severity = WARNING,
        .when = "tp < gpus_per_node and gpus_per_node % tp != 0",
        .at = "tp",
        .message = "{gpus_per_node} GPUs a node are not a multiple of tp {tp}: some tp groups span "
                   "two nodes",
        .fix = "use a tp among {divisors(gpus_per_node)}",
        .why =
            "Ranks are numbered tp first, so groups that do not tile a node straddle its border.",
        .source = "rank order of megatron/core/parallel_state.py:initialize_model_parallel",
    },
    {
        .id = "S2S-WLD-017",
        .dialects = S2S_DIALECT_ALL,
        .severity = ERROR,
        .when = "world > 1 and visible_devices < gpus_per_node",
        .at = "devices tp",
        .message =
            "CUDA_VISIBLE_DEVICES lists {visible_devices} GPUs, but {gpus_per_node} ranks run "
            "on a node",
        .fix = "list at least {gpus_per_node} GPUs, or unset it",
        .why = "Two ranks would share a GPU, which NCCL refuses (duplicate GPU).",
        .source = "NCCL",
    },
    {
        .id = "S2S-WLD-018",
        .dialects = SLM | RL | AM,
        .severity = WARNING,
        .when = "fsdp_on and dp == 1 and cp == 1 and device != null and state_gib > device_gib",
        .at = "dp_cfg tp world_given nodes devices",
        .message =
            "FSDP over a single data-parallel rank shards nothing, and {state_gib} GiB of weights, "
            "gradients and optimizer states do not fit the {device_gib} GiB of {device}",
        .fix = "run on more ranks, or give ranks of tp or pp back to dp",
        .why = "Every rank keeps the whole of its parameters and their states, as without FSDP.",
        .source = "nemo_automodel/components/distributed/"
                  "parallelizer.py:megatron_fsdp_strategy_parallelize",
        .after = "S2S-WLD-001 S2S-WLD-002",
    },
    RULES_END,
};

const struct s2s_rule rules_bat[] = {
    {
        .id = "S2S-BAT-010",
        .dialects = RL,
        .severity = WARNING,
        .when = "pp > 1 and not packed and nmb < pp",
        .at = "pp gbs",
        .message =
            "{nmb} microbatches for {pp} pipeline stages: the pipeline never fills, {bubble} % "
            "of the time is bubble",
        .fix = "use at least {2*pp} microbatches",
        .why = "1F1B keeps (pp-1)/(nmb+pp-1) of each rank's time idle.",
        .source = "megatron/core/pipeline_parallel/schedules.py",
        .after = "S2S-WLD S2S-BAT-002 S2S-BAT-003",
    },
    {
        .id = "S2S-BAT-001",
        .dialects = S2S,
        .severity = ERROR,
        .when = "gbs >= 1 and mbs >= 1 and mbs*dp not divides gbs",
        .at = "gbs mbs",
        .message = "{@gbs} {gbs} is not a multiple of {@mbs} * dp = {mbs} * {dp}: {gbs} % "
                   "{mbs*dp} = {gbs % (mbs*dp)}",
        .fix = "use {near(gbs, mbs*dp)}",
        .why =
            "Every rank takes the same number of microbatches of the same number of samples in a "
            "step.",
        .source = "megatron/core/num_microbatches_calculator.py",
        .after = "S2S-WLD",
    },
    {
        .id = "S2S-BAT-004",
        .dialects = S2S | SLM | RL | AM,
        .severity = ERROR,
        .when = "mbs < 1",
        .at = "mbs",
        .message = "a batch must hold at least one sample: {@mbs} {mbs}",
        .fix = "use a positive number",
        .why = "An empty batch trains nothing; the step count would never advance the data.",
        .source = "megatron/training/arguments.py:validate_args",
    },
    {
        .id = "S2S-BAT-004",
        .dialects = S2S | RL | AM,
        .severity = ERROR,
        .when = "gbs < 1",
        .at = "gbs",
        .message = "a batch must hold at least one sample: {@gbs} {gbs}",
        .fix = "use a positive number",
        .why = "An empty batch trains nothing; the step count would never advance the data.",
        .source = "megatron/training/arguments.py:validate_args",
    },
    {
        .id = "S2S-BAT-004",
        .dialects = SLM,
        .severity = ERROR,
        .when = "nmb < 1",
        .at = "nmb",
        .message = "a step must hold at least one batch: {@nmb} {nmb}",
        .fix = "use a positive number",
        .why = "An empty batch trains nothing; the step count would never advance the data.",
        .source = "lightning.pytorch: the trainer divides the number of a batch by it",
    },
    {
        .id = "S2S-BAT-016",
        .dialects = SLM,
        .severity = INFO,
        .when = "nmb > 1 and (batch_tokens != null or batch_duration != null) and dp > 1",
        .at = "nmb",
        .message =
            "accumulate_grad_batches {nmb} with a sampler that is bounded by tokens: the tokens "
            "of a step differ between ranks",
        .fix = "normalise the loss by the token count of all ranks",
        .why = "Averages of per-rank means weigh ranks with few tokens as much as full ones.",
        .source = "speechlm2 training_step",
    },
    {
        .id = "S2S-BAT-017",
        .dialects = SLM,
        .severity = ERROR,
        .when = "set(train_ds) and not set(mbs) and not (multimodal and set(batch_tokens)) and not "
                "(not multimodal and set(batch_duration)) and not set(bucket_batch_size) and not "
                "train_ds_own_sampler",
        .at = "batch_duration batch_tokens mbs train_ds",
        .message = "nothing bounds a batch: batch_size and bucket_batch_size are unset, and with "
                   "use_multimodal_sampling {multimodal} {if(multimodal, 'batch_tokens', "
                   "'batch_duration')} would count, which is unset",
        .fix = "set {if(multimodal, 'batch_tokens', 'batch_duration')} or batch_size under "
               "data.train_ds{if(set(conversation) and not multimodal, "
               "', or use_multimodal_sampling: true and batch_tokens', '')}",
        .why =
            "The Lhotse sampler needs one constraint to know when a batch is full; which keys it "
            "reads depends on use_multimodal_sampling.",
        .source = "nemo/collections/common/data/lhotse/dataloader.py:determine_sampling_constraint",
    },
    {
        .id = "S2S-BAT-021",
        .dialects = SLM,
        .severity = ERROR,
        .when = "set(conversation) and not multimodal and not train_ds_own_sampler and "
                "(set(batch_duration) or use_bucketing or set(bucket_bins) or "
                "set(bucket_batch_size))",
        .at = "conversation batch_duration bucket_batch_size bucket_bins use_bucketing",
        .message = "samples of type {conversation} have no duration, by which batches are bounded "
                   "or bucketed",
        .fix = "set data.train_ds.use_multimodal_sampling: true, and batch_tokens in place of "
               "batch_duration",
        .why = "Lhotse's time constraint asks every sample for its duration; a conversation or a "
               "text has only a number of tokens, and the run ends at the first batch.",
        .source = "lhotse/dataset/sampling/base.py:TimeConstraint.add; "
                  "nemo/collections/common/data/lhotse/text_adapters.py:NeMoMultimodalConversation",
    },
    {
        .id = "S2S-BAT-022",
        .dialects = SLM,
        .severity = WARNING,
        .when = "not train_ds_own_sampler and ((multimodal and (set(batch_duration) or "
                "set(quadratic_duration))) or (not multimodal and (set(batch_tokens) or "
                "set(quadratic_factor))))",
        .at = "batch_duration quadratic_duration batch_tokens quadratic_factor",
        .message = "use_multimodal_sampling is {multimodal}, so the sampler does not read "
                   "{if(multimodal, 'batch_duration and quadratic_duration', 'batch_tokens and "
                   "quadratic_factor')}",
        .fix = "{if(multimodal, 'use batch_tokens and quadratic_factor', 'set "
               "use_multimodal_sampling: true, or use batch_duration and quadratic_duration')}",
        .why = "A batch is bounded by tokens or by seconds; keys of the other kind are ignored in "
               "silence.",
        .source = "nemo/collections/common/data/lhotse/dataloader.py:determine_sampling_constraint",
        .after = "S2S-BAT-017 S2S-BAT-021",
    },
    {
        .id = "S2S-BAT-018",
        .dialects = SLM,
        .severity = ERROR,
        .when = "set(bucket_batch_size) and (not set(bucket_bins) or len(bucket_batch_size) != "
                "len(bucket_bins))",
        .at = "bucket_batch_size",
        .message = "bucket_batch_size has {len(bucket_batch_size)} entries, bucket_duration_bins "
                   "{len(bucket_bins)}",
        .fix = "give both lists the same length",
        .why = "Each bucket has its own batch size; the lists are read in step.",
        .source = "nemo/collections/common/data/lhotse/dataloader.py:determine_sampling_constraint",
    },
    {
        .id = "S2S-BAT-019",
        .dialects = SLM,
        .severity = WARNING,
        .when = "dist_sampler and set(train_ds)",
        .at = "dist_sampler train_ds",
        .message = "trainer.use_distributed_sampler is not false",
        .fix = "set trainer.use_distributed_sampler: false",
        .why = "Lightning would wrap the Lhotse sampler, which already splits the data over ranks: "
               "ranks would see the wrong part of it.",
        .source = "speechlm2 example configs",
    },
    {
        .id = "S2S-BAT-020",
        .dialects = SLM,
        .severity = WARNING,
        .when = "world > 1 and shard_seed_fixed",
        .at = "shard_seed",
        .message =
            "shard_seed is {shard_seed} on all {world} ranks: they read the same shards in the "
            "same order",
        .fix = "use \"randomized\" or \"trng\"",
        .why = "Equal seeds duplicate data over data-parallel ranks, and the effective batch is "
               "smaller than it looks.",
        .source = "nemo lhotse dataloader",
    },
    {
        .id = "S2S-BAT-012",
        .dialects = AM | MLM,
        .severity = INFO,
        .when = "pp == 1 and gbs == mbs*dp and no_recompute and device != null and state_gib <= "
                "device_gib and 10*total_gib > 9*device_gib",
        .at = "mbs gbs",
        .message = "one microbatch of {mbs} samples a step without recomputation: {total_gib} of "
                   "{device_gib} GiB are used",
        .fix = "recompute activations, or use smaller microbatches and more of them",
        .why = "Activations grow with the microbatch; several small ones give the same gradient in "
               "less memory.",
        .source = "derived",
        .after = "S2S-WLD S2S-BAT-001",
    },
    RULES_END,
};
