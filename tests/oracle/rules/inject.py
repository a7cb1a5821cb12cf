#!/usr/bin/env python3
"""Faults put into public configs, one at a time, as a person would make them; s2s-check must find each by its id.

    inject.py [--program bin/s2s-check] [-n FILES] [-v] FOLDER...

The table below says for each fault: rule, dialect, which configs it can be put into (an expression over the common
names of s2s-check --resolve), what is changed (names of KEYS, or keys of the dialect, to expressions), and which other
rules may fire as consequences. A changed copy of the file is checked, with the files it inherits from where they are.
Prints for each fault how many files were tried and in how many it was found; exit status 1 if it was missed anywhere,
or if another error appeared that the unchanged file did not have. 77 without PyYAML.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

try:
    import yaml
except ImportError:
    sys.exit(77)

MEG, DT = "policy.megatron_cfg.", "policy.dtensor_cfg."
KEYS = {
    "rl": {
        "gbs": "policy.train_global_batch_size", "mbs": "policy.train_micro_batch_size",
        "lbs": "policy.logprob_batch_size", "seq": "policy.max_total_sequence_length",
        "pad": "policy.make_sequence_length_divisible_by", "packed": "policy.sequence_packing.enabled",
        "pack_tokens": "policy.sequence_packing.train_mb_tokens", "algo": "policy.sequence_packing.algorithm",
        "dynamic": "policy.dynamic_batching.enabled", "gpus": "cluster.gpus_per_node", "nodes": "cluster.num_nodes",
    },
    "am": {
        "gbs": "step_scheduler.global_batch_size", "mbs": "step_scheduler.local_batch_size",
        "strategy": "distributed.strategy", "tp": "distributed.tp_size", "cp": "distributed.cp_size",
        "pp": "distributed.pp_size", "ep": "distributed.ep_size", "dp": "distributed.dp_size",
        "rep": "distributed.dp_replicate_size", "sp": "distributed.sequence_parallel",
        "ac": "distributed.activation_checkpointing", "pipeline": "distributed.pipeline",
    },
    "slm": {
        "tp": "trainer.strategy.tp_size", "pp": "trainer.strategy.pp_size", "cp": "trainer.strategy.cp_size",
        "ep": "trainer.strategy.ep_size", "dp": "trainer.strategy.dp_size",
    },
    "mlm": {
        "tp": "tensor-model-parallel-size", "pp": "pipeline-model-parallel-size", "cp": "context-parallel-size",
        "ep": "expert-model-parallel-size", "etp": "expert-tensor-parallel-size", "sp": "sequence-parallel",
        "mbs": "micro-batch-size", "gbs": "global-batch-size", "layers": "num-layers", "heads": "num-attention-heads",
        "hidden": "hidden-size", "seq": "seq-length", "mpe": "max-position-embeddings", "pattern": "hybrid-layer-pattern",
        "experts": "num-experts",
    },
}
KEYS["het"] = {
    **KEYS["mlm"], "tp": "llm-tp", "pp": "llm-pp", "cp": "llm-cp", "ep": "llm-ep", "etp": "llm-expt-tp",
    "dp": "llm-dp", "offset": "llm-offset", "etp_enc": "encoder-tp", "enc_dp": "encoder-dp", "enc_pp": "encoder-pp",
    "enc_cp": "encoder-cp", "enc_offset": "encoder-offset",
}
OPTIONS = {"@world": "--world-size=", "@gpus": "--gpus-per-node=", "@env": "--env=", "@layers": "--set=layers=",
           "@sm": "--sm=", "@upstream": "--upstream=", "@set": "--set="}


def rl_key(facts, name):
    """Sizes live under the backend that is on."""
    meg = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
           "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size", "sp": "sequence_parallel"}
    dt = {"tp": "tensor_parallel_size", "cp": "context_parallel_size", "ep": "expert_parallel_size",
          "sp": "sequence_parallel", "rep": "dp_replicate_size"}
    table, prefix = (meg, MEG) if facts.get("meg") is True else (dt, DT)
    return prefix + table[name] if name in table else None


# rule | dialect | needs | changes | may follow
FAULTS = """
WLD-001 | rl | world != "?" and world >= 4 and world % 3 != 0 and not moe and cp*pp == 1 | tp=3 ; sp=False ; pad=12 | BAT TP RL-008 RL-014
WLD-001 | am | dp_cfg is None and tp == 1 and cp == 1 and pp == 1 and ep == 1 | tp=3 ; @world=8 | BAT TP
WLD-001 | mlm | tp*pp*cp > 1 | @world=tp*pp*cp*2+1 | BAT PP WLD-003
WLD-002 | rl | world != "?" and world >= 1 and meg and not moe | pp=world*2 | BAT PP MOE WLD-003 RL PRC-014
WLD-002 | mlm | world != "?" and not hybrid and heads and layers != "?" and not experts and vpp == 1 | pp=layers ; @world=1 | BAT PP
WLD-003 | rl | meg and world not in ("?", 1) and world % 3 | ep=3*world | MOE WLD-004
WLD-003 | mlm | experts not in (None, "?") and ep == 1 and tp == 1 and cp == 1 and experts % 4 == 0 | ep=4 ; @world=pp*2 | BAT MOE PP
WLD-004 | am | ep == 1 and tp == 1 and cp == 1 and pp == 1 and dp_cfg is None | ep=3 ; @world=8 | MOE BAT AM-010
WLD-005 | am | dp_cfg is None and tp == 1 and pp == 1 and cp == 1 and ep == 1 and not separate_mesh | dp=3 ; @world=8 | BAT WLD-001
WLD-007 | rl | True | tp=0 | *
WLD-007 | am | True | cp=0 | *
WLD-007 | mlm | True | tp=-2 | *
WLD-008 | rl | meg and gpus_per_node == 8 and world != "?" and world >= 16 and not moe | tp=16 ; pad=64 | TP RL BAT WLD
WLD-009 | am | tp*cp*pp == 1 and dp_cfg is None and ep == 1 and fsdp == "fsdp2" | tp=3 ; @world=24 ; @gpus=8 | BAT TP
BAT-001 | mlm | world != "?" and gbs_given not in (None, "?") and not set_schedule and dp != "?" and mbs*dp > 1 | gbs=mbs*dp+mbs*dp//2 if mbs*dp > 1 else 0 | BAT
BAT-001 | am | gbs != "?" and mbs != "?" and tp*cp*pp == 1 and dp_cfg is None and ep == 1 | gbs=mbs*8+1 ; @world=8 | BAT AM
BAT-002 | rl | world not in ("?", 1) and dp not in ("?", 1) | gbs=gbs+1 | RL BAT
BAT-003 | rl | world != "?" and not packed and not dynamic and dp != "?" and gbs // dp > 1 and gbs // dp % 2 == 0 | mbs=gbs//dp+1 | RL BAT-010
BAT-004 | rl | True | gbs=0 | RL BAT
BAT-004 | am | True | mbs=0 | AM BAT
BAT-004 | mlm | True | mbs=0 | BAT
BAT-005 | mlm | gbs_given not in (None, "?") | step-batch-size-schedule="0:768 4:1536" | BAT-006 BAT-001
BAT-006 | mlm | gbs_given not in (None, "?") | step-batch-size-schedule="8:16 4:32" ; gbs=None | BAT
TP-001 | rl | tp == 1 and world != "?" | sp=True | TP HYB
TP-001 | mlm | tp == 1 and not experts | sp=True | CP ENV
TP-001 | am | tp == 1 | sp=True | TP HYB AM-013
TP-002 | mlm | heads not in ("?", None) and tp == 1 and not hybrid and not experts and not gqa | tp=2 ; heads=heads//2*2+1 ; kv-channels=64 ; @world=8 | BAT TP MOD CP WLD OPT ENV
TP-003 | mlm | not gqa and tp == 2 and heads not in ("?", None) and not mla and not hybrid and heads % 3 == 0 | group-query-attention=True ; num-query-groups=3 | TP MOD
TP-004 | mlm | sp and tp > 1 and cp == 1 and seq != "?" and not sft | seq=seq-1 | MOD
TP-005 | mlm | not sp and tp == 1 | tp-comm-overlap=True | TP
CP-001 | mlm | cp > 1 and not sft and not hybrid_cp and seq != "?" | seq=seq-1 | MOD TP
CP-001 | am | cp > 1 and seq != "?" and not packed | dataset.seq_length=seq*0+cp*2+1 | CP THD
CP-003 | mlm | cp > 1 | attention-backend="unfused" | CP
CP-005 | mlm | cp > 1 | hierarchical-context-parallel-sizes="3 5" | CP
CP-006 | mlm | cp > 1 and cp_hier is None | cp-comm-type="a2a+p2p" | CP
CP-007 | mlm | cp == 1 and heads not in ("?", None) and tp == 1 and pp == 1 and not hybrid and not experts | cp=3 ; cp-comm-type="a2a" ; heads=heads//3*3+1 ; seq=6144 ; mpe=6144 ; kv-channels=64 ; @world=24 ; gbs=mbs*8 | TP MOD ENV BAT CP
THD-009 | rl | packed and pack_tokens != "?" and meg and dynamic is not True | pack_tokens=seq//2 | RL
THD-013 | am | seq not in ("?", None) and pack_tokens > seq | packed_sequence.packed_sequence_size=seq//2 | THD
PP-001 | mlm | not use_ckpt_args and layers not in ("?", None) and pp > 1 and not uneven and vpp == 1 | layers=layers+1 | MOD PP HYB MOE CP
PP-001 | rl | meg and pp == 2 and first_layers is None and last_layers is None and vpp is None | @layers=33 | MOE
PP-002 | mlm | pp > 1 and not uneven and layers not in ("?", None) and vpp_stages is None | num-layers-per-virtual-pipeline-stage=layers//pp+1 | PP OPT MOE
PP-003 | mlm | pp > 1 and layout is None and not hybrid and layers not in ("?", None) and vpp == 1 | decoder-first-pipeline-num-layers=0 | PP
PP-004 | mlm | pp > 2 and not hybrid and layout is None | num-layers-per-virtual-pipeline-stage=1 ; num-virtual-stages-per-pipeline-rank=2 | PP BAT
PP-005 | mlm | not use_ckpt_args and pp > 1 and layout is None and not hybrid and layers not in ("?", None) and vpp == 1 and not first_layers | pipeline-model-parallel-layout="Et|tL" | PP BAT
PP-006 | mlm | pp == 1 and not hybrid and layers not in ("?", None) and layout is None | num-layers-per-virtual-pipeline-stage=1 | PP OPT
PP-007 | mlm | pp > 1 and vpp not in ("?", 1) and gbs_given not in (None, "?") and vpp_group is None | gbs=mbs ; @world=tp*pp*cp ; ep=1 | BAT MOE
HYB-001 | mlm | hybrid and pattern_new is not None | pattern=pattern_new.replace("M", "X", 1) | HYB PP MOD
HYB-002 | mlm | not skip_train and hybrid and pattern_new not in (None, "?") and pp == 1 and "|" not in pattern_new | pattern=pattern_new[:1]+"|"+pattern_new[1:2]+"|"+pattern_new[2:] ; pp=2 | HYB PP BAT WLD
HYB-003 | mlm | hybrid and pattern_new is not None and "|" not in pattern_new and pattern_layers % 5 and first_layers is None | pp=5 ; @world=5*tp*cp*ep | BAT OPT WLD MOE
HYB-004 | mlm | hybrid and pattern_new is not None and pp == 1 | account-for-embedding-in-pipeline-split=True | PP HYB
HYB-005 | mlm | pattern_new not in (None, "?") and layers_given not in (None, "?") | layers=layers_given+1 | HYB
MOE-001 | mlm | experts not in (None, "?") and ep > 1 | experts=experts+1 | MOE
MOE-002 | mlm | experts is None and ep == 1 and not use_ckpt_args | ep=2 ; @world=tp*pp*cp*2 | BAT WLD OPT
MOE-003 | mlm | experts not in (None, "?") and tp > 1 and sp and not skip_train and not rl_step | sp=False | MOE TP
MOE-004 | mlm | experts not in (None, "?") | moe-router-topk=experts+1 | MOE
MOE-005 | mlm | experts not in (None, "?") and experts > 2 | moe-router-num-groups=experts-1 ; moe-router-group-topk=1 | MOE
MOE-008 | mlm | experts is None and not hybrid and not use_ckpt_args | moe-ffn-hidden-size=1024 | MOE
MOE-009 | mlm | experts not in (None, "?") | moe-expert-capacity-factor=1.0 ; moe-router-load-balancing-type="sinkhorn" | MOE
MOE-010 | mlm | experts not in (None, "?") and capacity is None | moe-pad-expert-input-to-capacity=True | MOE
MOE-011 | mlm | experts not in (None, "?") and dispatcher != "flex" | moe-enable-deepep=True | MOE
MOE-012 | mlm | experts not in (None, "?") and dispatcher == "allgather" | moe-shared-expert-overlap=True | MOE
MOE-013 | mlm | experts not in (None, "?") and router_score == "softmax" and not router_pre_softmax and router_balancing != "sinkhorn" | moe-router-topk=1 | MOE
MOE-015 | mlm | experts not in (None, "?") and etp > 1 and no_bias | disable-bias-linear=False | MOE
MOE-016 | mlm | experts not in (None, "?") and dispatcher != "flex" | moe-flex-dispatcher-backend="hybridep" | MOE
MOE-014 | mlm | experts not in (None, "?") and router_score == "softmax" | moe-router-enable-expert-bias=True | MOE
OPT-001 | mlm | dist_opt and overlap_params and not megatron_fsdp and "muon" not in str(optimizer) | use-distributed-optimizer=False | OPT CKP MOE PRC
OPT-002 | mlm | dist_opt and overlap_params and overlap_grads and not megatron_fsdp | overlap-grad-reduce=False | OPT
OPT-006 | mlm | per_token_loss | ddp-average-in-collective=True | OPT
OPT-011 | mlm | not torch_fsdp and dist_opt and not megatron_fsdp | use-torch-fsdp2=True | OPT ENV CKP
SCH-001 | mlm | steps not in (None, "?") and samples is None | lr-warmup-samples=100 | SCH
SCH-003 | mlm | not shell and warmup_fraction not in (None, "?") and steps is not None | lr-warmup-iters=10 | SCH
SCH-004 | mlm | lr not in (None, "?") and min_lr not in (None, "?") | min-lr=lr*10 | SCH
SCH-004 | am | lr not in (None, "?") and present("lr_scheduler") | lr_scheduler.min_lr=1.0 | SCH
SCH-005 | mlm | schedule != "WSD" and not skip_train and lr not in (None, "?") | lr-decay-style="WSD" | SCH
SCH-002 | mlm | not shell and steps not in (None, "?") | train-samples=1000 | SCH
SCH-006 | mlm | steps not in (None, "?") and decay_iters is None and warmup_fraction is None and not samples | lr-warmup-iters=steps+1 | SCH
CKP-001 | mlm | save not in (None, "?") and not skip_train | save-interval=0 | CKP
CKP-002 | mlm | save is not None and save_every not in (None, "?", 1) | save-retain-interval=save_every+1 | CKP
CKP-003 | mlm | not torch_fsdp and not megatron_fsdp and not async_save | ckpt-format="torch_dcp" | CKP OPT
CKP-004 | mlm | not megatron_fsdp and not async_save | ckpt-format="fsdp_dtensor" | CKP OPT
CKP-005 | mlm | megatron_fsdp and ckpt_format == "fsdp_dtensor" | ckpt-format="torch_dist" | CKP OPT
CKP-006 | mlm | async_save and persistent_worker | use-persistent-ckpt-worker=False | CKP
PRC-001 | mlm | bf16 | fp16=True | PRC OPT
PRC-001 | mlm | fp16 | bf16=True | PRC
REC-001 | mlm | recompute is None | recompute-granularity="selective" ; recompute-method="uniform" | REC MOE
REC-002 | mlm | recompute is None and not overlap_ep | recompute-granularity="full" | REC MOE
REC-003 | mlm | recompute is None | recompute-granularity="partial" | REC MOE
ENV-002 | mlm | (torch_fsdp or megatron_fsdp) and max_connections == "?" and not shell | @env="CUDA_DEVICE_MAX_CONNECTIONS=1" | ENV
MOD-001 | mlm | head_dim_given is None and heads not in (None, "?") and hidden not in (None, "?") and tp == 1 and not hybrid and heads > 1 | hidden=hidden+1 | MOD TP
MOD-002 | mlm | gqa and heads not in (None, "?") and query_groups not in (None, "?") and tp == 1 | num-query-groups=heads-1 | MOD TP
MOD-003 | mlm | mpe not in (None, "?") and seq not in (None, "?") | mpe=seq-1 | MOD
MOD-004 | mlm | not shell and gqa and query_groups not in (None, "?") | group-query-attention=False | MOD TP
MOD-006 | mlm | seq_given not in (None, "?") | encoder-seq-length=seq_given | MOD
MOD-007 | mlm | not shell and sizes_given == 4 and not use_ckpt_args and not heterogeneous and trains and not retro | mpe=None | MOD
MOD-008 | mlm | not mla and attn in ("auto", "flash", "fused") | kv-channels=260 | MOD TP
MOD-009 | mlm | layers not in (None, "?") and layers > 1 | no-rope-freq=layers+1 | MOD
MOD-012 | mlm | not mtp_layers and not hybrid | mtp-num-layers=1 ; position-embedding-type="learned_absolute" ; use-rotary-position-embeddings=False | MOD PP MOE
MOD-013 | mlm | not mtp_layers and not pattern_mtp | mtp-hsm=True | MOD
MOD-018 | mlm | log_every not in (None, "?", 1) | log-memory-interval=log_every+1 | MOD
HYB-008 | mlm | hybrid and pattern_mamba and tp == 2 | mamba-num-heads=63 | HYB MOD CP
HYB-010 | mlm | hybrid and pattern_mamba and not fp8 and tp == 1 and hidden not in (None, "?") | fp8-format="hybrid" ; mamba-num-heads=36 | HYB PRC MOE OPT
HYB-011 | mlm | True | is-hybrid-model=True | HYB
MOE-019 | mlm | experts not in (None, "?") and dispatcher == "allgather" | variable-seq-lengths=True | MOE
MOE-020 | mlm | experts not in (None, "?") and ep > 1 and pp == 1 and not overlap_ep | overlap-moe-expert-parallel-comm=True ; moe-token-dispatcher-type="allgather" ; moe-enable-deepep=False | MOE
MOE-021 | mlm | not overlap_ep | delay-wgrad-compute=True | MOE
MOE-024 | rl | meg and present("grpo") | policy.megatron_cfg.moe_router_load_balancing_type="aux_loss" | MOE
MOE-029 | rl | dt and not meg | policy.dtensor_cfg.automodel_kwargs={"backend": {"enable_deepep": True}} | MOE RL
OPT-003 | mlm | dist_opt and overlap_params and ckpt_format != "torch" | overlap-param-gather-with-optimizer-step=True | OPT
OPT-004 | mlm | not bucket | ddp-bucket-size=40000000 ; ddp-num-buckets=4 | OPT
OPT-007 | mlm | not dist_opt and not torch_fsdp | num-distributed-optimizer-instances=2 | OPT WLD
OPT-009 | mlm | not precision_aware | optimizer-cpu-offload=True | OPT
OPT-010 | mlm | not precision_aware | exp-avg-dtype="bf16" | OPT
OPT-013 | mlm | not torch_fsdp and not megatron_fsdp | optimizer="muon" ; use-torch-fsdp2=True | OPT ENV CKP
OPT-014 | mlm | not dist_opt | ddp-pad-buckets-for-high-nccl-busbw=True | OPT
OPT-023 | rl | meg and precision == "bfloat16" | policy.megatron_cfg.optimizer.use_precision_aware_optimizer=True ; policy.megatron_cfg.optimizer.bf16=False | OPT
SCH-007 | mlm | steps not in (None, "?") and not samples and warmup_fraction is None and not decay_iters and warmup_iters not in (None, "?") and steps > warmup_iters | lr-decay-style="WSD" ; lr-wsd-decay-iters=steps-warmup_iters+1 | SCH
SCH-009 | mlm | not shell and trains and not skip_train and sizes_given in (3, 4) and lr not in (None, "?") and not use_ckpt_args and not retro | train-iters=None ; train-samples=None | SCH
SCH-010 | mlm | True | override-opt-param-scheduler=True ; use-checkpoint-opt-param-scheduler=True | SCH
SCH-011 | mlm | wd_style == "constant" | start-weight-decay=0.1 | SCH
SCH-012 | mlm | lr not in (None, "?") | lr-warmup-init=lr*2 | SCH
SCH-012 | rl | meg and meg_lr not in (None, "?") | policy.megatron_cfg.scheduler.lr_warmup_init=1.0 | SCH
SCH-013 | am | True | step_scheduler.ckpt_every_steps=0 | SCH
SCH-018 | rl | dt and not meg | policy.scheduler=[{"name": "torch.optim.lr_scheduler.LinearLR"}, {"name": "torch.optim.lr_scheduler.ConstantLR"}] | SCH
CKP-001 | mlm | not shell and save is not None and not skip_train and trains and steps not in (None, "?") | save-interval=None | CKP SCH
CKP-008 | mlm | dist_opt and not no_gloo and optimizer == "adam" and not async_save and not megatron_fsdp and not torch_fsdp | disable-gloo-process-groups=True ; ckpt-format="torch" | CKP
CKP-010 | mlm | local_type is None | non-persistent-ckpt-type="local" | CKP
CKP-011 | mlm | not shell | ckpt-pg-tensors-cache-path="/cache" ; ckpt-fully-parallel-load-process-group="ep_dp" | CKP
CKP-012 | mlm | not no_load_optim | load-main-params-from-ckpt=True | CKP
CKP-013 | mlm | True | override-ckpt-iteration=10 ; finetune=True | CKP
CKP-014 | mlm | not shell and load is None and pretrained is None and not use_ckpt_args | use-checkpoint-args=True | CKP
CKP-016 | mlm | True | use-dist-ckpt=True | CKP
CKP-020 | rl | True | checkpointing.enabled=True ; checkpointing.metric_name="accuracy" | CKP
CKP-021 | mlm | not shell and not skip_train and not no_load_optim and not rl_step | skip-train=True | CKP
CKP-022 | mlm | not shell | logits-save-dir="/logits" | CKP
PRC-002 | mlm | not fp8 | fp8-format="hybrid" ; fp4-format="e2m1" | PRC CP MOE HYB
PRC-004 | mlm | not fp8 and not fp4 | fp8-format="hybrid" ; fp8-recipe="delayed" ; first-last-layers-bf16=True | PRC CP MOE HYB
PRC-006 | mlm | not fp16 | fp16-lm-cross-entropy=True | PRC
PRC-007 | mlm | True | cross-entropy-loss-fusion=True ; cross-entropy-fusion-impl="te" | PRC
PRC-009 | mlm | not fp8 and not fp4 | fp8-format="hybrid" ; fp8-recipe="mxfp8" ; @sm=9.0 | PRC CP MOE HYB ENV
PRC-010 | rl | True | policy.precision="bf16" | *
PRC-012 | am | pp > 1 and fsdp == "fsdp2" and not present("distributed.mp_policy") | distributed.pipeline.dtype="fp32" | PRC
PRC-013 | mlm | not precision_aware | accumulate-allreduce-grads-in-fp32=True ; main-grads-dtype="bf16" ; use-precision-aware-optimizer=True | PRC OPT
PRC-014 | rl | present("grpo") and backend == "vllm" and not importance | policy.generation.vllm_cfg.precision="fp8" | PRC RL
PRC-015 | mlm | not shell and not deterministic | deterministic-mode=True ; @env="NVTE_ALLOW_NONDETERMINISTIC_ALGO=1" | PRC
REC-004 | mlm | tp == 1 | distribute-saved-activations=True | REC
REC-005 | mlm | recompute is None and not grouped_gemm | recompute-granularity="selective" ; recompute-modules="moe_act layernorm" | REC MOE
REC-006 | mlm | recompute is None and pp > 1 | cpu-offloading-num-layers=1 | REC
REC-007 | mlm | not offload_acts | fine-grained-activation-offloading=True | REC
REC-008 | mlm | graph_impl == "none" and not enable_graph and not fp16 and not no_nan_check | cuda-graph-impl="full_iteration" | REC
REC-008 | rl | meg and graph_impl == "none" | policy.megatron_cfg.cuda_graph_impl="full_iteration" ; policy.megatron_cfg.cuda_graph_modules=["attn"] | REC
REC-009 | mlm | graph_impl == "none" and not enable_graph and recompute is None | cuda-graph-impl="transformer_engine" ; @env="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" | REC
REC-012 | mlm | True | nccl-ub=True ; @env="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" | REC
DAT-001 | mlm | not mock and data_path_arg is not None | mock-data=True | DAT
DAT-003 | mlm | not shell and mock | fim-data=True | DAT
DAT-004 | mlm | True | dataloader-type="multi" | DAT
DAT-005 | mlm | True | num-dataset-builder-threads=0 | DAT
ENV-006 | rl | meg and flex_backend is None | policy.megatron_cfg.moe_flex_dispatcher_backend="hybridep" ; policy.megatron_cfg.moe_token_dispatcher_type="flex" | ENV MOE RL
CFG-007 | mlm | True | tensor-model-paralel-size=2 | CFG
CFG-011 | am | mbs not in ("?", None) | @set="step_scheduler.local_batch_size=77" | *
RL-001 | rl | meg and not present("policy.draft") | policy.dtensor_cfg.enabled=True | RL
RL-002 | rl | dt and not meg and not draft | policy.dtensor_cfg.enabled=False | *
RL-003 | rl | packed and not draft | dynamic=True | RL THD BAT
RL-004 | rl | meg and pp > 1 and not packed | dynamic=True | RL
RL-005 | rl | meg and cp > 1 and packed | packed=False | RL BAT
RL-006 | rl | dt and not meg and not packed and cp > 1 | packed=True ; pack_tokens=seq | RL
RL-007 | rl | dt and not meg and cp > 1 and tp > 1 and not sp | sp=True | RL TP
RL-008 | rl | meg and packed and shard > 1 | pad=shard+1 | RL
RL-009 | rl | tp >= 4 and lbs == mbs and not force_on_policy | lbs=mbs*2 | RL
RL-010 | rl | meg and packed | policy.megatron_cfg.use_fused_linear_logprobs=True | RL
RL-011 | rl | meg and not defer_fp32 and chunk is None | policy.logprob_chunk_size=512 | RL
RL-012 | rl | dt and packed and not meg and not draft | policy.reward_model_cfg={"enabled": True, "reward_model_type": "bradley_terry"} | RL
RL-013 | rl | meg | policy.reward_model_cfg={"enabled": True, "reward_model_type": "bradley_terry"} | RL
RL-014 | rl | dt and not meg and tp > 1 and v2 | policy.dtensor_cfg.lora_cfg={"enabled": True, "use_triton": True} | RL
RL-015 | rl | dt and not meg and v2 | policy.dtensor_cfg._v2=False ; policy.dtensor_cfg.lora_cfg={"enabled": True, "use_triton": False} | RL OPT
RL-016 | rl | dt and not meg and v2 and dp not in ("?", 1) and dp % 2 == 0 | policy.dtensor_cfg._v2=False ; policy.dtensor_cfg.dp_replicate_size=2 | RL OPT AM WLD
RL-017 | rl | prompts not in (None, "?") and prompts*generations == gbs | loss_fn.force_on_policy_ratio=True ; gbs=gbs//2 | RL BAT
RL-018 | rl | async_grpo and importance | loss_fn.use_importance_sampling_correction=False | RL PRC-014
RL-019 | rl | async_grpo and gen_async and backend == "vllm" | policy.generation.vllm_cfg.async_engine=False | RL
RL-020 | rl | dt and not meg and not packed | policy.draft={"enabled": True} | RL
RL-021 | rl | packed and meg | policy.draft={"enabled": True} | RL
RL-022 | rl | meg and dist_opt and not opt_offload | policy.megatron_cfg.optimizer.optimizer_cpu_offload=True ; policy.megatron_cfg.optimizer.optimizer_offload_fraction=0.0 | RL OPT
RL-023 | rl | meg and not opt_offload | policy.megatron_cfg.optimizer.overlap_cpu_optimizer_d2h_h2d=True | RL OPT
RL-024 | rl | packed and pack_tokens != "?" and not dynamic | pack_tokens=seq-1 | THD RL CP
RL-025 | rl | packed | algo="best_fit" | RL
RL-026 | rl | dt and not meg and packed | policy.dtensor_cfg.automodel_kwargs={"attn_implementation": "sdpa"} | RL
RL-027 | rl | prompts not in (None, "?") and not force_on_policy and dp not in ("?",) and prompts*generations == gbs and dp > 1 | grpo.num_prompts_per_step=prompts+1 | RL BAT
RL-028 | rl | backend == "vllm" and not gen_async and gen_pp == 1 | policy.generation.vllm_cfg.pipeline_parallel_size=2 | RL
RL-029 | rl | colocated and nodes == 1 and present("grpo") and not present("env.nemo_gym") and placement != "?" | policy.generation.colocated={"enabled": False, "resources": {"gpus_per_node": None, "num_nodes": None}} | RL BAT WLD
RL-030 | rl | present("grpo") and not dynamic_sampling | grpo.batch_multiplier=2 | RL
RL-031 | rl | has_grpo and val_set and val_period > 0 and not present("env.nemo_gym") | data.validation=None ; data.train={"dataset_name": "OpenMathInstruct-2", "split_validation_size": 0} ; data.default=None | CFG
RL-032 | rl | has_ppo and world not in ("?", None) and value_size != "?" | value.dtensor_cfg.enabled=False ; value.megatron_cfg.enabled=True ; value.megatron_cfg.pipeline_model_parallel_size=world*2 | RL
RL-032 | rl | has_distillation and teacher_size != "?" and world not in ("?", None) | teacher.megatron_cfg.context_parallel_size=2*world ; teacher.dtensor_cfg.context_parallel_size=2*world | RL
RL-033 | rl | has_dpo and not packed | packed=True ; pack_tokens=seq ; algo="first_fit_decreasing" | RL THD
RL-033 | rl | has_dpo and not packed and not dynamic | dynamic=True | RL
RL-034 | rl | has_distillation and dt and not meg and packed and tp > 1 | policy.dtensor_cfg.sequence_parallel=True | RL TP CP
RL-035 | rl | meg | @env="TORCH_CUDA_ARCH_LIST=" | RL
RL-036 | rl | not packed and meg and tp > 1 and sp | pad=tp+1 | RL
RL-038 | rl | meg | policy.megatron_cfg.model_overrides={"sequence_parallel": True} | RL
RL-040 | rl | dt and not meg and cp > 1 and not packed and world != "?" | policy.dtensor_cfg.expert_parallel_size=world*3 ; @upstream="rl-pr2242" | RL WLD MOE
RL-039 | rl | meg | policy.megatron_cfg.peft={"enabled": True, "dim": None} | RL
AM-001 | am | True | strategy="fsdp3" | AM OPT
AM-002 | am | pp == 1 and tp == 1 and cp == 1 and not present("distributed.pipeline") and dp_cfg is None and ep == 1 | pp=2 | AM BAT PP WLD-002
AM-004 | am | pp > 1 | mbs=pp-1 ; distributed.pipeline.pp_microbatch_size=1 | BAT AM
AM-005 | am | pp > 1 and pp_mbs not in ("?", None) | distributed.pipeline.pp_microbatch_size=3 ; mbs=3*pp+1 | BAT AM
AM-006 | am | dp_cfg is None and tp*cp*pp == 1 and ep == 1 and fsdp == "fsdp2" | rep=3 ; @world=8 | BAT
AM-007 | am | dp_cfg is None and tp*cp*pp == 1 and ep == 1 and fsdp == "fsdp2" | rep=8 ; @world=8 | BAT
AM-008 | am | fsdp == "fsdp2" and tp*cp*pp*ep == 1 and dp_cfg is None | strategy="ddp" ; rep=2 ; @world=8 | AM BAT
AM-009 | am | fsdp == "fsdp2" and tp == 1 and cp*pp*ep == 1 and dp_cfg is None | strategy="ddp" ; tp=2 ; @world=8 | AM BAT TP
AM-010 | am | fsdp == "fsdp2" and ep > 1 | strategy="megatron_fsdp" | AM
AM-012 | am | fsdp == "megatron_fsdp" | ac="selective" | AM
AM-011 | am | cp > 1 and not packed and attn != "?" | packed_sequence.packed_sequence_size=4096 ; model.backend={"attn": "sdpa"} ; model.attn_implementation="sdpa" | THD CP AM
AM-013 | am | fsdp == "fsdp2" | distributed.squence_parallel=True | AM
AM-013 | am | fsdp == "megatron_fsdp" | distributed.tp_plan=None | AM
AM-014 | am | pp > 1 and pp_schedule == "1f1b" | distributed.pipeline.layers_per_stage=1 ; @layers=pp*4 | AM
AM-015 | am | pp > 1 | distributed.pipeline.layers_per_stage=1 ; distributed.pipeline.pp_schedule="ZBVZeroBubble" ; @layers=pp*4 | AM
AM-016 | am | pp > 1 and pp_schedule == "1f1b" and nmb == pp | distributed.pipeline.pp_schedule="interleaved1f1b" ; distributed.pipeline.layers_per_stage=None | AM
AM-017 | am | pp > 1 | distributed.pipeline.pp_schedule=None | AM
AM-018 | am | pp > 1 and loss is not None | loss_fn._target_="nemo_automodel.components.loss.linear_ce.FusedLinearCrossEntropy" | AM
AM-019 | am | present("peft") | qat={"enabled": True} | AM
AM-020 | am | ep == 1 and not present("distributed.moe") | distributed.moe={"reshard_after_forward": False} | AM MOE
AM-021 | am | present("model.backend") | model.backend.compile_attn=True ; model.backend.attn="te" | AM
AM-023 | am | mbs not in ("?", None, 1) | model.attn_implementation="magi" | AM CP
AM-025 | am | separate_mesh and sizes_world != "?" | distributed.dp_size=dp_cfg*2 ; @world=sizes_world+teacher_world | AM WLD BAT
AM-026 | am | True | ac="sometimes" | AM
SLM-001 | slm | strategy_kind == "automodel" or present("model.use_nemo_automodel") | trainer.strategy={"_target_": "lightning.pytorch.strategies.DDPStrategy", "find_unused_parameters": True} ; model.use_nemo_automodel=True ; trainer.devices=8 | SLM
SLM-002 | slm | True | trainer.strategy={"_target_": "nemo.collections.speechlm2.parts.parallel.AutomodelParallelStrategy"} ; model.use_nemo_automodel=False ; trainer.devices=8 | SLM OPT
SLM-003 | slm | not present("model.use_nemo_automodel") | model.packed_sequences=True ; model.use_nemo_automodel=False | SLM OPT THD
SLM-004 | slm | True | model.lora={"dim": 8, "alpha": 32} ; model.use_nemo_automodel=False | SLM OPT
SLM-014 | slm | True | data.train_ds.use_bucketing=True ; data.train_ds.bucket_duration_bins=[1, 2] ; data.train_ds.num_buckets=9 | SLM BAT
BAT-017 | slm | True | data.train_ds.batch_size=None ; data.train_ds.batch_duration=None ; data.train_ds.batch_tokens=None ; data.train_ds.bucket_batch_size=None | BAT SLM
BAT-018 | slm | True | data.train_ds.bucket_batch_size=[1, 2] ; data.train_ds.bucket_duration_bins=[1] | BAT SLM
BAT-019 | slm | True | trainer.use_distributed_sampler=True | SLM
SCH-004 | slm | present("model.lr_scheduler") | model.lr_scheduler.min_lr=1.0 | SCH
SCH-006 | slm | present("model.lr_scheduler") | model.lr_scheduler.warmup_steps=100 ; model.lr_scheduler.max_steps=100 | SCH
HET-001 | het | llm_offset != "?" and not early | offset=enc_end-1 | HET
HET-002 | het | enc_size != "?" and not early | offset=enc_end+1 | HET
HET-003 | het | not early and enc_dp == 2 | enc_dp=3 ; offset=3*enc_tp ; @world=3*enc_tp+llm_size | HET BAT WLD
HET-004 | het | not early | enc_dp=llm_dp*gtp*2 ; mbs=2 ; offset=llm_dp*gtp*2*enc_tp ; @world=llm_dp*gtp*2*enc_tp+llm_size | HET BAT WLD
HET-008 | het | not early and experts != "?" | ep=llm_size*2 | HET WLD MOE
HET-010 | het | not early | llm-only=True | HET WLD BAT
HET-011 | het | not early and overlap_grads | encoder-ddp-overlap=True ; overlap-grad-reduce=False | HET OPT
HET-013 | het | not early | calculate-per-token-loss=False | HET
HET-014 | het | not early | use-distributed-optimizer=False | HET OPT CKP
HET-017 | het | not early | freeze-lm=True ; freeze-vit=True ; freeze-projection=True | HET OPT-021
HET-023 | het | not early | num-distributed-optimizer-instances=2 | HET WLD OPT
HET-024 | het | not early and data_kind == "mock" | disable-vision-class-token=False | HET
HET-025 | het | not early and sp and tp > 1 | seq=seq-1 | HET TP MOD CP
HET-026 | het | not early | enc_offset=1 | HET
HET-027 | het | not early | optimizer="muon" | HET OPT
HET-028 | het | not early | mimo-encoder-prefetch=True | HET
CP-030 | het | not early | cp=2 | HET CP WLD BAT
MOE-001 | het | not early and experts != "?" and ep > 1 | experts=experts+1 | MOE HET
WLD-012 | mlm | world != "?" and dp not in ("?", None) and dist_opt and not early | num-distributed-optimizer-instances=dp*cp+1 | WLD
WLD-013 | mlm | tp > 1 | tensor-parallel-num-weight-shards=tp+1 | WLD BAT
WLD-016 | am | dp_cfg is None and tp*cp*pp == 1 and ep == 1 and not separate_mesh | dp=3 ; ci={"nodes": 1, "nproc_per_node": 8} | WLD BAT
BAT-006 | mlm | not shell and gbs_given not in (None, "?") | gbs=False ; step-batch-size-schedule="0:64 10M:-1" | BAT SCH
TP-005 | mlm | sp and tp > 1 | sp=False ; tp-comm-overlap=True | TP MOE
TP-013 | am | sp and tp > 1 | sp=False ; distributed.enable_async_tensor_parallel=True | TP
CP-009 | mlm | cp > 1 | window-size="127,0" | CP
CP-014 | mlm | not shell and cp > 1 and layers not in ("?", None) and layers > 3 and not hybrid | cp-comm-type="p2p p2p a2a" | CP
CP-015 | mlm | attention_variant == "dsa" | cp=2 ; @world=tp*pp*2*8 | CP WLD BAT PRC MOE TP
CP-017 | am | cp > 1 | model.attn_implementation="flash_attention_4" | CP AM THD
CP-020 | mlm | pp > 1 | hybrid-context-parallel=True | CP
CP-023 | mlm | attention_variant == "gated_delta_net" | linear-num-key-heads=tp*cp*2+1 | CP
THD-012 | am | packed and cp > 1 and attn == "te" | model.backend.attn="sdpa" | THD AM CP
THD-021 | am | model_name and attn == "te" and ("lama" in model_name or "wen" in model_name) | model.backend.attn="tilelang" | AM THD CP
PP-003 | mlm | not use_ckpt_args and pp > 2 and layers not in ("?", None) and not hybrid and vpp == 1 and layout is None and not account_embedding and not account_loss | decoder-first-pipeline-num-layers=layers//pp+1 ; decoder-last-pipeline-num-layers=layers//pp | PP
PP-005 | mlm | layout is not None and layout_stages != "?" and mtp_layers is None | mtp-num-layers=1 | PP MOD HYB MOE REC
PP-012 | mlm | pp > 1 and vpp_stages is None and vpp_layers is None and layout is None and not hybrid | overlap-p2p-communication-warmup-flush=True | PP
PP-020 | mlm | pp == 1 | inference-batch-times-seqlen-threshold=128 | PP
PP-021 | mlm | pp > 1 and max_connections == "1" | pipeline-model-parallel-comm-backend="ucc" | PP
PP-022 | mlm | pp > 1 | enable-mhc-connections=True | PP
MOE-006 | mlm | not shell and experts and experts != "?" | moe-router-load-balancing-type="aux_loss seq_aux_loss" ; moe-aux-loss-coeff=0.01 | MOE
CP-019 | rl | meg and cp > 1 | policy.generation.backend="megatron" | RL
PP-001 | rl | not moe and meg and pp > 1 and first_layers is None and last_layers is None and layout is None and vpp is None | @layers=pp*4+1 | PP
PP-003 | rl | meg and pp > 1 and layout is None | policy.megatron_cfg.num_layers_in_first_pipeline_stage=0 | PP
PP-009 | rl | meg and pp > 1 | policy.megatron_cfg.pipeline_dtype=None | PP
CFG-003 | am | True | @duplicate=1 | AM
CFG-004 | rl | True | mbs="four" | RL BAT CFG-002
CFG-004 | am | True | tp=1.5 | *
CFG-004 | mlm | True | tp="2.5" | *
CFG-002 | rl | True | policy.max_total_sequence_length="${policy.no_such_key}" | *
CFG-006 | rl | inherits | defaults="no_such_parent.yaml" | *
CFG-008 | mlm | True | model-parallel-size=2 | CFG
"""


def faults():
    for line in FAULTS.strip().splitlines():
        rule, dialect, needs, changes, follow = (part.strip() for part in line.split(" | "))
        yield "S2S-" + rule, dialect, needs, [c.strip().split("=", 1) for c in changes.split(" ; ")], follow.split()


def run(program, path, options=()):
    got = subprocess.run([program, "--json", "--resolve", *options, path], capture_output=True, text=True, timeout=60)
    if got.returncode < 0:
        sys.exit(f"{path}: killed by signal {-got.returncode}")
    return json.loads(got.stdout)["files"][0] if got.stdout else {}


class Unknown(str):
    """Neither true nor false: a fault that needs it does not fit."""

    def __bool__(self):
        raise TypeError("unknown")


class Facts(dict):
    """Names of --resolve; one that is not there is None."""

    def __missing__(self, name):
        if name in ("True", "False", "None", "str", "len", "present"):
            raise KeyError(name)
        return None


def set_path(tree, path, value):
    *parents, last = path.split(".")
    for part in parents:
        tree = tree.setdefault(part, {}) if tree.get(part) is not None else tree.__setitem__(part, {}) or tree[part]
    tree[last] = value


class Config:
    def __init__(self, path, report):
        self.path, self.dialect = path, report["dialect"]
        self.resolved = report["resolved"]
        self.facts = Facts({k: Unknown(v) if v == "?" else v for k, v in report["resolved"].items()})
        self.errors = {f["rule"] for f in report["findings"] if f["severity"] == "error"}
        self.text = open(path, encoding="utf-8").read()
        self.shell = path.endswith((".sh", ".sbatch"))
        self.tree = None if self.shell else yaml.safe_load(self.text)
        self.facts["inherits"] = isinstance(self.tree, dict) and "defaults" in self.tree
        self.facts["moe"] = bool(re.search(r"moe|a3b|a12b|a22b|mixtral|deepseek|glm|gpt.?oss|nano|super|ultra|kimi", path, re.I))
        self.facts["present"], self.facts["shell"] = self.present, self.shell

    def present(self, path):
        tree = self.tree
        for part in path.split("."):
            if not isinstance(tree, dict) or part not in tree:
                return False
            tree = tree[part]
        return True

    def key(self, name):
        if self.dialect == "rl":
            return rl_key(self.facts, name) or KEYS["rl"].get(name, name)
        return KEYS[self.dialect].get(name, name)

    def changed(self, changes, folder):
        """A path of a copy with the changes, and options; None if a change cannot be made."""
        options, tree, text = [], json.loads(json.dumps(self.tree, default=str)), self.text
        for name, expression in changes:
            value = eval(expression, {"str": str, "len": len}, self.facts)
            if name in OPTIONS:
                options.append(OPTIONS[name] + str(value))
            elif name == "@duplicate":
                line = next((l for l in text.splitlines() if re.match(r"^[a-z_]+:\s*$", l)), None)
                if not line:
                    return None, None
                text += f"\n{line} {{}}\n"
                tree = None
            elif self.shell:
                flag = "--" + self.key(name)
                if value is False or value is None:
                    text = re.sub(rf"{flag}(?=\s)(?:[ =]+(?!--)[^\s\\)\"]+)?", "", text)
                elif re.search(rf"(?m)^[^#\n]*{flag}[ =]+\S+", text) and value is not True:
                    text = re.sub(rf"(?m)^([^#\n]*{flag})[ =]+\S+", lambda m: f"{m.group(1)} {value}", text)
                else:
                    where = re.search(r"(?m)(?<=\s)--(?:num-layers|micro-batch-size|hidden-size)[ =]", text)
                    if not where:
                        return None, None
                    given = "" if value is True else f'"{value}" ' if "|" in str(value) else f"{value} "
                    text = text[: where.start()] + f"{flag} {given}" + text[where.start():]
            elif self.dialect in ("mlm", "het"):
                args = tree.get("MODEL_ARGS")
                if not isinstance(args, dict):
                    return None, None
                flag = self.key(name)
                for k in list(args):
                    if k.strip("-").replace("_", "-") == flag:
                        del args[k]
                if value is not None and value is not False:
                    args["--" + flag] = value
            else:
                set_path(tree, self.key(name), value)
        if not self.shell and tree is not None:
            if self.dialect == "rl" and "defaults" in tree:
                parents = tree["defaults"]
                if not any(c[0] == "defaults" for c in changes):
                    home = os.path.dirname(os.path.abspath(self.path))
                    tree["defaults"] = ([os.path.join(home, p) for p in parents] if isinstance(parents, list)
                                        else os.path.join(home, parents))
            text = yaml.safe_dump(tree, sort_keys=False, width=1000)
        path = os.path.join(folder, "fault" + os.path.splitext(self.path)[1])
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path, options


def collect(program, folders):
    configs = []
    for folder in folders:
        got = subprocess.run([program, "--json", "--resolve", folder], capture_output=True, text=True, timeout=600)
        for report in json.loads(got.stdout)["files"]:
            if report.get("dialect") and report.get("resolved"):
                try:
                    configs.append(Config(report["path"], report))
                except yaml.YAMLError:
                    continue
    return configs


def follows(rule, prefixes):
    return any(p == "*" or rule.startswith("S2S-" + p) for p in prefixes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../bin/s2s-check"))
    parser.add_argument("-n", type=int, default=12, help="files for each fault, evenly over those it fits")
    parser.add_argument("-v", action="store_true", help="name the files where a fault was missed")
    parser.add_argument("--only", default="", help="rules that begin so")
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    args = parser.parse_args()
    configs = collect(args.program, args.folders)
    n_missed = n_other = n_tried = 0
    with tempfile.TemporaryDirectory() as folder:
        for rule, dialect, needs, changes, follow in faults():
            if not rule.startswith("S2S-" + args.only):
                continue
            fit = []
            for c in configs:
                try:
                    if c.dialect == dialect and not c.errors and eval(needs, {"str": str}, c.facts):
                        fit.append(c)
                except TypeError:
                    continue
            tried, missed, others = 0, [], collections.Counter()
            for c in fit[:: max(1, len(fit) // args.n)][: args.n]:
                try:
                    path, options = c.changed(changes, folder)
                except TypeError:
                    continue
                if not path:
                    continue
                report = run(args.program, path, options)
                # in a script the flag may stand where nobody knows whether it counts
                if c.shell and not options and not any(
                        value not in ("?", c.resolved.get(name)) for name, value in report.get("resolved", {}).items()):
                    continue
                tried += 1
                found = report.get("findings", [])
                if not any(f["rule"] == rule for f in found):
                    missed.append(c.path)
                for f in found:
                    if f["severity"] == "error" and f["rule"] != rule and f["rule"] not in c.errors \
                            and not follows(f["rule"], follow):
                        others[f["rule"]] += 1
            n_tried, n_missed, n_other = n_tried + tried, n_missed + len(missed), n_other + sum(others.values())
            state = "ok" if tried and not missed and not others else "NOTHING FITS" if not tried else "LOOK"
            print(f"{rule:13}{dialect:5}{len(fit):5} fit {tried:4} tried {tried - len(missed):4} found  {state}"
                  + ("  also " + " ".join(f"{r} {n}" for r, n in others.items()) if others else ""), flush=True)
            for path in missed[: 3 if args.v else 0]:
                print(f"      missed in {path}")
    print(f"{n_tried} faults, {n_missed} missed, {n_other} errors beside them")
    return 1 if n_missed or n_other else 0


if __name__ == "__main__":
    sys.exit(main())
