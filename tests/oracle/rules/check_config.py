#!/usr/bin/env python3
"""Rules about TransformerConfig against TransformerConfig itself, of the installed megatron-core.

Each line below is what a config gets beyond the base, in the words of its class, and the rule that must fire on the
same in Megatron's arguments, or - where the class takes it. What the class says (it raises or not) is the answer;
s2s-check must say the same. A line whose fields the installed release does not have is passed over.

Exit status 0 all agree, 1 one does not, 77 without megatron-core.
"""
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import warnings

try:
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.abspath(os.environ.get("S2S_BIN", os.path.join(HERE, "../../../bin"))) + "/s2s-check"

BASE = dict(num_layers=8, hidden_size=1024, num_attention_heads=16, bf16=True, pipeline_dtype="bf16")
MOE = dict(num_moe_experts=8, add_bias_linear=False)
EP = dict(MOE, expert_model_parallel_size=2, overlap_moe_expert_parallel_comm=True)
LINES = [
    ("MOE-020", dict(EP)),
    ("-", dict(EP, moe_token_dispatcher_type="alltoall")),
    ("MOE-020", dict(EP, moe_token_dispatcher_type="alltoall", expert_model_parallel_size=1)),
    ("MOE-020", dict(EP, moe_token_dispatcher_type="alltoall", pipeline_model_parallel_size=2)),
    ("MOE-020", dict(EP, moe_token_dispatcher_type="alltoall", bf16=False)),
    ("MOE-020", dict(EP, moe_token_dispatcher_type="alltoall", mtp_num_layers=2)),
    ("MOE-020", dict(EP, moe_token_dispatcher_type="alltoall", recompute_granularity="full",
                     recompute_method="uniform", recompute_num_layers=1)),
    ("MOE-019", dict(MOE, variable_seq_lengths=True)),
    ("-", dict(MOE, variable_seq_lengths=True, moe_token_dispatcher_type="alltoall")),
    ("MOE-012", dict(MOE, moe_shared_expert_intermediate_size=512, moe_shared_expert_overlap=True)),
    ("MOE-010", dict(MOE, moe_pad_expert_input_to_capacity=True)),
    ("MOE-009", dict(MOE, moe_expert_capacity_factor=1.0, moe_router_load_balancing_type="sinkhorn")),
    ("MOE-014", dict(MOE, moe_router_enable_expert_bias=True)),
    ("MOE-013", dict(MOE, moe_router_topk=1)),
    ("-", dict(MOE, moe_router_topk=1, moe_router_pre_softmax=True)),
    ("MOE-005", dict(MOE, moe_router_num_groups=3, moe_router_group_topk=2)),
    ("MOE-005", dict(MOE, moe_router_num_groups=2, moe_router_group_topk=3)),
    ("-", dict(MOE, moe_router_num_groups=4, moe_router_group_topk=2)),
    ("MOE-008", dict(moe_ffn_hidden_size=512)),
    ("MOE-011", dict(MOE, moe_enable_deepep=True)),
    ("MOE-018", dict(MOE, moe_router_padding_for_fp8=True, moe_token_dispatcher_type="alltoall")),
    ("MOE-018", dict(MOE, moe_router_padding_for_fp8=True, fp8="hybrid")),
    ("-", dict(MOE, moe_router_padding_for_fp8=True, fp8="hybrid", moe_token_dispatcher_type="alltoall")),
    ("MOE-021", dict(MOE, delay_wgrad_compute=True)),
    ("MOD-009", dict(no_rope_freq=3)),
    ("-", dict(no_rope_freq=4)),
    ("TP-002", dict(num_attention_heads=15, kv_channels=64, tensor_model_parallel_size=2)),
    ("PRC-001", dict(fp16=True)),
    ("PRC-004", dict(fp8="hybrid", fp8_recipe="delayed", first_last_layers_bf16=True)),
    ("PRC-004", dict(fp8="hybrid", fp8_recipe="tensorwise", first_last_layers_bf16=True,
                     num_layers_at_start_in_bf16=5, pipeline_model_parallel_size=2)),
    ("-", dict(fp8="hybrid", fp8_recipe="tensorwise", first_last_layers_bf16=True)),
    ("REC-001", dict(recompute_granularity="selective", recompute_num_layers=1)),
    ("REC-002", dict(recompute_granularity="full")),
    ("REC-002", dict(recompute_granularity="full", recompute_method="uniform")),
    ("-", dict(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)),
    ("REC-003", dict(recompute_granularity="some")),
    ("REC-003", dict(recompute_granularity="selective", recompute_modules=["attention"])),
    ("REC-005", dict(recompute_granularity="selective", recompute_modules=["moe_act"])),
    ("REC-005", dict(recompute_granularity="selective", recompute_modules=["mla_up_proj"])),
    ("-", dict(recompute_granularity="selective", recompute_modules=["core_attn", "mlp"])),
    ("REC-006", dict(cpu_offloading=True, cpu_offloading_num_layers=8)),
    ("REC-006", dict(cpu_offloading=True, cpu_offloading_num_layers=1, pipeline_model_parallel_size=2)),
    ("-", dict(cpu_offloading=True, cpu_offloading_num_layers=1)),
    ("REC-007", dict(fine_grained_activation_offloading=True, offload_modules=[])),
    ("REC-007", dict(fine_grained_activation_offloading=True, offload_modules=["attn_proj"])),
    ("REC-007", dict(fine_grained_activation_offloading=True, offload_modules=["moe"])),
    ("-", dict(fine_grained_activation_offloading=True, offload_modules=["core_attn", "attn_proj"])),
]
# fields whose argument has another name
FLAGS = {"num_moe_experts": "num-experts", "fp8": "fp8-format"}
# what the class's own defaults are that the arguments' are not
ARGUMENTS = {"--seq-length": 512, "--max-position-embeddings": 512, "--micro-batch-size": 1, "--train-iters": 10,
             "--lr": 1.0e-4, "--position-embedding-type": "rope"}


UNKNOWN = object()  # it wants to know the release of a library that is not there


def raised(fields):
    fields = {k: torch.bfloat16 if v == "bf16" and k == "pipeline_dtype" else v for k, v in fields.items()}
    try:
        TransformerConfig(**fields)
        return None
    except (ValueError, AssertionError) as error:
        return str(error)[:90] or "an assertion"
    except TypeError:
        return UNKNOWN


def arguments(fields):
    flags = dict(ARGUMENTS)
    for name, value in fields.items():
        flag = "--" + FLAGS.get(name, name).replace("_", "-")
        if name == "add_bias_linear":
            flag, value = "--disable-bias-linear", not value
        if name != "pipeline_dtype":
            flags[flag] = " ".join(value) if isinstance(value, list) and value else value or None
    # of the environment the class knows nothing
    connections = 32 if fields.get("overlap_moe_expert_parallel_comm") else 1
    return {"ENV_VARS": {"CUDA_DEVICE_MAX_CONNECTIONS": connections}, "MODEL_ARGS": flags}


def found(fields):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        json.dump(arguments(fields), f)
        f.flush()
        out = subprocess.run([PROGRAM, "--json", "--dialect", "mlm", f.name], capture_output=True, text=True)
    return {x["rule"][4:] for x in json.loads(out.stdout)["files"][0]["findings"] if x["severity"] == "error"}


def main():
    warnings.simplefilter("ignore")
    known = {f.name for f in dataclasses.fields(TransformerConfig)}
    bad = checked = 0
    for rule, more in LINES:
        fields = {**BASE, **more}
        if not set(fields) <= known:
            continue
        error, rules = raised(fields), found(fields)
        if error is UNKNOWN:
            continue
        checked += 1
        if (error is None) != (rule == "-") or (rules & {rule} if rule != "-" else not rules) in (set(), False):
            bad += 1
            print(f"{rule} {more}: the class says {error!r}, s2s-check {sorted(rules)}")
    print(f"{checked} configs, {bad} judged otherwise; {len(LINES) - checked} are of fields or libraries that are not there")
    return bad > 0 or checked < len(LINES) // 2


sys.exit(main())
