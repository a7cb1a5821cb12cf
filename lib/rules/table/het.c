/* Heterogeneous MIMO training: two grids of ranks; launch scripts and their batch system. */
#include "lib/rules/rules_internal.h"

#define MLM S2S_DIALECT_MLM
#define HET S2S_DIALECT_HET
#define ERROR S2S_SEVERITY_ERROR
#define WARNING S2S_SEVERITY_WARNING
#define INFO S2S_SEVERITY_INFO

#define GRIDS "examples/mimo/training/args.py:validate_hetero_grid_args"

const struct s2s_rule rules_het[] = {
    {
        .id = "S2S-HET-010",
        .dialects = HET,
        .severity = ERROR,
        .when = "llm_only and (llm_offset != 0 or enc_overlap or llm_size != world)",
        .at = "llm_only llm_offset",
        .message = "llm-only with llm-offset {llm_offset}, {llm_size} ranks in the grid of "
                   "{world}",
        .fix = "use --llm-offset 0 and sizes whose product is the world size, without "
               "--encoder-ddp-overlap",
        .why = "Without an encoder the language model's grid must cover every rank.",
        .source = GRIDS,
    },
    {
        .id = "S2S-HET-001",
        .dialects = HET,
        .severity = ERROR,
        .when = "overlap and not colocated",
        .at = "llm_offset enc_dp llm_dp",
        .message = "the encoder's ranks {enc_offset}..{enc_end - 1} and the language "
                   "model's {llm_offset}..{llm_end - 1} overlap",
        .fix = "move --llm-offset to {enc_end}, or shrink the encoder's grid "
               "({enc_tp}*{enc_cp}*{enc_pp}*{enc_dp} ranks)",
        .why = "A rank belongs to one module; the trainer refuses grids that share ranks.",
        .source = GRIDS,
    },
    {
        .id = "S2S-HET-002",
        .dialects = HET,
        .severity = ERROR,
        .when = "not llm_only and (grids_end > world or (not overlap and enc_size + llm_size "
                "!= world) or min(enc_offset, llm_offset) != 0 or (enc_offset < llm_offset "
                "and enc_end < llm_offset))",
        .at = "llm_offset llm_dp enc_dp",
        .message = "encoder {enc_offset}..{enc_end - 1} and language model "
                   "{llm_offset}..{llm_end - 1} do not cover {if(known(world), world, "
                   "'the')} ranks exactly",
        .fix = "start {enc_size + llm_size} ranks with --llm-offset {enc_size}, or change a "
               "size",
        .why = "A rank that no grid owns waits for ever in the first collective; one beyond "
               "the world does not exist.",
        .source = GRIDS,
        .after = "S2S-HET-001",
    },
    {
        .id = "S2S-HET-003",
        .dialects = HET,
        .severity = ERROR,
        .when = "not llm_only and enc_dp not divides mbs*llm_dp*gtp",
        .at = "enc_dp llm_dp mbs",
        .message = "encoder-dp {enc_dp} does not divide micro-batch-size * llm-dp * weight "
                   "shards = {mbs}*{llm_dp}*{gtp} = {mbs*llm_dp*gtp}",
        .fix = "use an encoder-dp out of {divisors(mbs*llm_dp*gtp)}",
        .why = "The bridge deals the samples of all language-model lanes out to the "
               "encoder's; the split must be exact.",
        .source = GRIDS,
    },
    {
        .id = "S2S-HET-004",
        .dialects = HET,
        .severity = ERROR,
        .when = "not llm_only and not colocated and enc_dp > llm_dp*gtp",
        .at = "enc_dp llm_dp",
        .message = "encoder-dp {enc_dp} is more than llm-dp {llm_dp*gtp}",
        .fix = "use an encoder-dp out of {divisors(llm_dp*gtp)}",
        .why = "One encoder lane serves several language-model lanes; the other way round "
               "is not wired.",
        .source = "megatron/core/models/mimo/model/base.py:_attach_modality_split_sizes",
    },
    {
        .id = "S2S-HET-005",
        .dialects = HET,
        .severity = ERROR,
        .when = "not llm_only and ((colocated and enc_dp not divides llm_dp and llm_dp not "
                "divides enc_dp) or (not colocated and data_kind != 'mock' and enc_dp <= "
                "llm_dp and enc_dp not divides llm_dp))",
        .at = "enc_dp llm_dp",
        .message = "encoder-dp {enc_dp} does not divide llm-dp {llm_dp}",
        .fix = "use an encoder-dp out of {divisors(llm_dp)}",
        .why = "Each encoder rank reads for a whole number of language-model lanes.",
        .source = "examples/mimo/training/hetero/args.py:validate_energon_data_args",
        .after = "S2S-HET-003",
    },
    {
        .id = "S2S-HET-006",
        .dialects = HET,
        .severity = ERROR,
        .when = "data_kind == 'energon' and not llm_only and enc_dp != llm_dp and mbs != 1",
        .at = "mbs",
        .message = "micro-batch-size {mbs} with energon data and encoder-dp {enc_dp} != "
                   "llm-dp {llm_dp}",
        .fix = "use --micro-batch-size 1",
        .why = "The routed reader deals out one sample to a lane.",
        .source = "examples/mimo/training/hetero/args.py:validate_energon_data_args",
    },
    {
        .id = "S2S-HET-007",
        .dialects = HET,
        .severity = ERROR,
        .when = "packing_buffer > 0 and mbs != 1",
        .at = "mbs packing_buffer",
        .message = "packing-buffer-size {packing_buffer} with micro-batch-size {mbs}",
        .fix = "use --micro-batch-size 1",
        .why = "A packed sample is a microbatch of its own.",
        .source = "examples/mimo/training/hetero/args.py:validate_args",
    },
    {
        .id = "S2S-HET-008",
        .dialects = HET,
        .severity = ERROR,
        .when = "(etp*ep*egtp*pp not divides llm_size) or gtp < 1",
        .at = "ep etp llm_dp",
        .message = "expert grid llm-expt-tp*llm-ep*llm-pp = {etp}*{ep}*{pp} does not divide "
                   "the language model's {llm_size} ranks",
        .fix = "use an llm-ep out of {divisors(llm_size / (etp*pp))}",
        .why = "Experts factor the same ranks in another way; without remainder.",
        .source = "examples/mimo/training/topology.py:ModuleGridSpec",
    },
    {
        .id = "S2S-HET-009",
        .dialects = HET,
        .severity = ERROR,
        .when = "set(expt_dp) and etp*ep*pp*expt_dp != llm_size",
        .at = "expt_dp ep",
        .message = "llm-expt-tp*llm-ep*llm-pp*llm-expt-dp = {etp}*{ep}*{pp}*{expt_dp} = "
                   "{etp*ep*pp*expt_dp}, but the language model has {llm_size} ranks",
        .fix = "leave --llm-expt-dp out; it follows from the rest",
        .why = "Both views of a grid must have the same ranks.",
        .source = "megatron/core/hyper_comm_grid.py:register_view",
        .after = "S2S-HET-008",
    },
    {
        .id = "S2S-HET-011",
        .dialects = HET,
        .severity = ERROR,
        .when = "enc_overlap and not overlap_grads and not llm_only",
        .at = "enc_overlap",
        .message = "encoder-ddp-overlap without overlap-grad-reduce",
        .fix = "add --overlap-grad-reduce",
        .why = "It applies the global overlap setting to the encoder.",
        .source = GRIDS,
    },
    {
        .id = "S2S-HET-012",
        .dialects = HET,
        .severity = WARNING,
        .when = "enc_overlap and not llm_only and (data_kind != 'mock' or early)",
        .error_when = "early",
        .at = "enc_overlap",
        .message = "overlapped gradient reduction of the encoder while batches may hold "
                   "text only",
        .fix = "leave --encoder-ddp-overlap out",
        .why = "Ranks without an encoder backward never join the reduction, and the others "
               "wait for them.",
        .source = GRIDS,
    },
    {
        .id = "S2S-HET-013",
        .dialects = HET,
        .severity = ERROR,
        .when = "not per_token_loss",
        .at = "per_token_loss llm_dp",
        .message = "calculate-per-token-loss is not given",
        .fix = "add --calculate-per-token-loss",
        .why = "Encoder and language model divide their gradients by the same number of "
               "tokens; other normalisations differ between the grids.",
        .source = "examples/mimo/model_providers/nemotron_moe_vlm.py:require_per_token_loss",
    },
    {
        .id = "S2S-HET-014",
        .dialects = HET,
        .severity = ERROR,
        .when = "not dist_opt",
        .at = "dist_opt llm_dp",
        .message = "use-distributed-optimizer is not given",
        .fix = "add --use-distributed-optimizer",
        .why = "Each module has a sharded optimizer of its own; there is no other.",
        .source = "examples/mimo/pretrain_mimo.py:_parse_and_validate",
    },
    {
        .id = "S2S-HET-015",
        .dialects = HET,
        .severity = WARNING,
        .when = "data_kind == 'energon' and not freeze_vit and stage == 'stage3' and enc_dp "
                "> 1 and not correct_partial and not llm_only",
        .at = "enc_dp",
        .message = "batches may hold text only on some of {enc_dp} encoder ranks, and the "
                   "gradient is not corrected for it",
        .fix = "add --correct-encoder-grad-for-partial-participation",
        .why = "The encoder's gradient is diluted by the share of ranks that had an image.",
        .source = "examples/mimo/training/grad_sync.py:configure_grad_sync",
    },
    {
        .id = "S2S-HET-016",
        .dialects = HET,
        .severity = INFO,
        .when = "stage == 'stage1'",
        .at = "stage",
        .message = "stage1 freezes encoder and language model: only the projection trains",
        .fix = "nothing to do; no learning rate is logged for a frozen module",
        .why = "Their optimizers are empty.",
        .source = "megatron/core/models/mimo/optimizer.py",
    },
    {
        .id = "S2S-HET-017",
        .dialects = HET,
        .severity = ERROR,
        .when = "freeze_projection and ((freeze_lm and freeze_vit) or stage == 'stage1' or "
                "(stage == 'stage2' and freeze_lm))",
        .at = "freeze_projection stage",
        .message = "projection, encoder and language model are all frozen",
        .fix = "leave --freeze-projection out",
        .why = "Nothing trains.",
        .source = "derived from the flags",
    },
    {
        .id = "S2S-PP-018",
        .dialects = HET,
        .severity = ERROR,
        .when = "pp > 1 and not llm_only and not variable_seq",
        .at = "variable_seq pp",
        .message = "{pp} pipeline stages of a model of several modules, with sequences of one "
                   "length",
        .fix = "let the model provider set variable_seq_lengths",
        .why = "Stages exchange shapes before tensors only then; the schedule of several modules "
               "raises ValueError otherwise.",
        .source = "megatron/core/pipeline_parallel/schedules.py",
    },
    {
        .id = "S2S-HET-018",
        .dialects = HET,
        .severity = INFO,
        .when = "not llm_only and (freeze_vit or stage == 'stage1' or stage == 'stage2') and "
                "4*enc_size > world",
        .at = "enc_dp",
        .message = "the frozen encoder has {enc_size} of {world} ranks",
        .fix = "use fewer encoder ranks",
        .why = "It only runs forwards and waits between them.",
        .source = "derived from the sizes",
        .after = "S2S-HET-001 S2S-HET-002",
    },
    {
        .id = "S2S-HET-019",
        .dialects = MLM | HET,
        .severity = ERROR,
        .when = "set(guard)",
        .at = "guard",
        .message = "the script ends here: {guard}",
        .fix = "make the number that the script expects agree with its sizes and its "
               "#SBATCH lines",
        .why = "A guard of the script contradicts what the script itself says.",
        .source = "sbatch_hetero_* scripts",
    },
    {
        .id = "S2S-HET-021",
        .dialects = HET,
        .severity = ERROR,
        .when = "data_kind == 'energon' and (data_path == null or tokenizer_model == null) "
                "and early and not handed_over",
        .at = "data_kind",
        .message = "energon data without data-path or tokenizer-model",
        .fix = "give --data-path and --tokenizer-model",
        .why = "Real data is read and tokenised on the fly.",
        .source = "examples/mimo/training/hetero/args.py:validate_energon_data_args",
    },
    {
        .id = "S2S-HET-022",
        .dialects = HET,
        .severity = WARNING,
        .when = "num_workers*llm_dp // enc_dp > 64 and not llm_only",
        .at = "num_workers",
        .message = "num-workers {num_workers} for {llm_dp // enc_dp} lanes: "
                   "{num_workers*llm_dp // enc_dp} workers on each encoder rank",
        .fix = "use fewer workers",
        .why = "They open their shards at once and hold a buffer each.",
        .source = "routed loader: workers of an encoder rank = num_workers * lanes",
    },
    {
        .id = "S2S-HET-023",
        .dialects = HET,
        .severity = ERROR,
        .when = "dist_opt_instances > 1",
        .at = "dist_opt_instances",
        .message = "num-distributed-optimizer-instances {dist_opt_instances}",
        .fix = "use 1",
        .why = "The optimizer of each module has one instance.",
        .source = "megatron/core/models/mimo/optimizer.py:get_mimo_optimizer",
    },
    {
        .id = "S2S-HET-024",
        .dialects = HET,
        .severity = ERROR,
        .when =
            "data_kind == 'mock' and not early and not llm_only and not dynamic_images and "
            "(patch_dim < 1 or image_height % patch_dim != 0 or image_width % patch_dim != 0 or "
            "(pixel_shuffle and (patch_rows != patch_columns or patch_rows % 2 != 0)) or "
            "(image_seq != null and image_seq != emitted_tokens))",
        .at = "image_seq image_height image_width patch_dim llm_dp",
        .message = "mock images of {image_height}x{image_width} in patches of {patch_dim} give "
                   "{if(known(emitted_tokens), emitted_tokens, 'no whole number of')} tokens, "
                   "image-seq-length is {image_seq}",
        .fix = "leave --image-seq-length out, with img-h and img-w multiples of patch-dim (of "
               "2*patch-dim and equal with --pixel-shuffle)",
        .why = "The mock data must have as many image tokens as the encoder gives back.",
        .source = "examples/mimo/training/data.py:_MockVLMDataset",
    },
    {
        .id = "S2S-HET-024",
        .dialects = HET,
        .severity = ERROR,
        .when = "data_kind == 'mock' and not early and not llm_only and dynamic_images and "
                "image_tiles >= 1 and image_seq % image_tiles != 0",
        .at = "image_seq image_tiles",
        .message = "image-seq-length {image_seq} is not a multiple of num-image-tiles "
                   "{image_tiles}",
        .fix = "use {near(image_seq, image_tiles)}",
        .why = "Every tile of a mock image has the same number of tokens.",
        .source = "examples/mimo/training/data.py:_MockVLMDataset",
    },
    {
        .id = "S2S-HET-024",
        .dialects = HET,
        .severity = ERROR,
        .when = "data_kind == 'mock' and not early and not llm_only and not colocated and not "
                "no_class_token",
        .at = "no_class_token data_kind enc_dp",
        .message = "mock data with the encoder's class token",
        .fix = "add --disable-vision-class-token",
        .why = "The mock data has no place for it.",
        .source = "examples/mimo/training/data.py",
    },
    {
        .id = "S2S-HET-028",
        .dialects = HET,
        .severity = ERROR,
        .when = "prefetch and (llm_only or not freeze_vit or freeze_projection or enc_tp != 1 or "
                "enc_cp != 1 or enc_pp != 1 or prefetch_depth < 1)",
        .at = "prefetch",
        .message = "encoder prefetch with {if(llm_only, 'no encoder', 'encoder')} tp {enc_tp}, cp "
                   "{enc_cp}, pp {enc_pp}, freeze-vit {freeze_vit}, freeze-projection "
                   "{freeze_projection}, depth {prefetch_depth}",
        .fix =
            "it needs exactly one encoder, frozen, on grids of tp, cp and pp 1, and a projection "
            "that trains",
        .why = "Features are computed ahead of time, which only a frozen encoder allows.",
        .source = "examples/mimo/training/encoder_prefetch.py; examples/mimo/pretrain_mimo.py:main",
    },
    {
        .id = "S2S-HET-029",
        .dialects = HET,
        .severity = INFO,
        .when = "early and not handed_over and not llm_only and not set(mtp_layers)",
        .at = "mtp_layers enc_dp",
        .message = "mtp-num-layers is not given: the encoder is built without its last norm",
        .fix = "give --mtp-num-layers 0",
        .why = "The last norm of the vision tower is made only where the number of prediction "
               "depths is a number; without it the features are many times too large.",
        .source =
            "megatron/core/transformer/transformer_block.py:has_final_layernorm_in_this_stage",
    },
    {
        .id = "S2S-HET-025",
        .dialects = HET,
        .severity = ERROR,
        .when = "sp and tp > 1 and packing_buffer == 0 and if(cp > 1, 2*cp, 1)*tp not "
                "divides seq",
        .at = "seq_given",
        .message = "sequence parallel over llm-tp {tp} with seq-length {seq}",
        .fix = "use a seq-length such as {near(seq, if(cp > 1, 2*cp, 1)*tp)}",
        .why = "The sequence is split evenly over the tensor-parallel ranks.",
        .source = "megatron/core/models/mimo/partition/utils.py:PartitionAdapter.shard",
    },
    {
        .id = "S2S-HET-026",
        .dialects = HET,
        .severity = ERROR,
        .when = "not early and enc_offset != 0",
        .at = "enc_offset",
        .message = "encoder-offset {enc_offset}",
        .fix = "leave it out",
        .why = "The encoder's ranks always start at 0.",
        .source = GRIDS,
    },
    {
        .id = "S2S-HET-027",
        .dialects = HET,
        .severity = ERROR,
        .when = "contains(optimizer, 'muon')",
        .at = "optimizer",
        .message = "optimizer {optimizer} works on whole layers",
        .fix = "use --optimizer adam",
        .why = "The sharded optimizers of the modules do not have it.",
        .source = "examples/mimo/training/builder.py:build_distributed_models",
    },
    {
        .id = "S2S-CP-030",
        .dialects = HET,
        .severity = ERROR,
        .when = "cp > 1 or enc_cp > 1",
        .at = "cp enc_cp",
        .message = "context parallelism in a hetero run (encoder-cp {enc_cp}, llm-cp {cp})",
        .fix = "use 1",
        .why = "The bridge between the grids does not split sequences; the trainer refuses "
               "it.",
        .source = GRIDS,
    },
    {
        .id = "S2S-PP-019",
        .dialects = HET,
        .severity = ERROR,
        .when = "data_kind == 'energon' and (enc_pp != 1 or pp != 1) and not llm_only",
        .at = "pp enc_pp",
        .message = "energon data with pipeline stages (encoder-pp {enc_pp}, llm-pp {pp})",
        .fix = "use 1 for both",
        .why = "Only ranks that own a first and a last stage read data.",
        .source = "examples/mimo/training/hetero/args.py:validate_energon_data_args",
    },
    {
        .id = "S2S-BAT-013",
        .dialects = HET,
        .severity = WARNING,
        .when = "early and set(gbs_given) and gbs_given != mbs*nmb_given*llm_dp",
        .at = "gbs_given",
        .message = "global-batch-size {gbs_given} is not micro-batch-size * "
                   "num-microbatches * llm-dp = {mbs}*{nmb_given}*{llm_dp} = "
                   "{mbs*nmb_given*llm_dp}",
        .fix = "use {mbs*nmb_given*llm_dp}",
        .why = "Sample counters and the learning-rate schedule count by the first, data is "
               "consumed by the second.",
        .source = "examples/mimo/training/hetero/args.py:validate_args",
    },
    {
        .id = "S2S-WLD-016",
        .dialects = MLM | HET,
        .severity = ERROR,
        .when = "set(batch_nodes) and batch_nodes != env_nnodes and world_given == null",
        .at = "batch_nodes",
        .message = "#SBATCH asks for {batch_nodes} nodes, torchrun is told {env_nnodes}",
        .fix = "make both the same, for example --nnodes=$SLURM_NNODES",
        .why = "The rendezvous waits for nodes that never come until its timeout, or leaves "
               "some out.",
        .source = "torchrun rendezvous",
    },
    {
        .id = "S2S-ENV-003",
        .dialects = MLM,
        .severity = WARNING,
        .when = "(torch_fsdp or megatron_fsdp) and (tp > 1 or cp > 1) and sm < 100",
        .at = "torch_fsdp megatron_fsdp",
        .message = "FSDP with tp {tp}, cp {cp} on compute capability {sm // 10}.{sm % 10}",
        .fix = "leave tensor and context parallelism out, or FSDP",
        .why = "FSDP wants CUDA_DEVICE_MAX_CONNECTIONS above 1, the overlap of tensor "
               "parallelism wants it to be 1.",
        .source = "megatron/training/arguments.py:validate_args",
    },
    RULES_END,
};
