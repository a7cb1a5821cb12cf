#!/usr/bin/env python3
"""Holds mamba2_units, which transformers' NemotronH computed in chunks, against torch's autograd of the plain recurrence in fp64.
With --write: makes expected.safetensors anew from that."""
import json
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mamba2_units")
told = json.load(open(os.path.join(HERE, "expected.json")))
inputs = {k: v.double() for k, v in load_file(os.path.join(HERE, "inputs.safetensors")).items()}
got = {}


def leaves(prefix, names):
    return {n: inputs[prefix + n].clone().requires_grad_() for n in names if prefix + n in inputs}


def gradients(prefix, loss, of):
    loss.backward()
    got.update({prefix + "grad/" + n: t.grad for n, t in of.items()})


for case in told["cases"]:
    prefix, group = case["name"] + "/", case["H"] // case["G"]
    t = leaves(prefix, ["x", "dt", "A_log", "B", "C", "D", "dt_bias", "initial_state"])
    step = F.softplus(t["dt"] + t["dt_bias"]).clamp(min=case["lo"])
    a = torch.exp(-torch.exp(t["A_log"]) * step)
    b, c = (t[n].repeat_interleave(group, dim=2) for n in "BC")
    s = t.get("initial_state", torch.zeros(case["B"], case["H"], case["P"], case["N"], dtype=torch.double))
    y = []
    for i in range(case["T"]):
        s = a[:, i, :, None, None] * s + (step[:, i, :, None] * t["x"][:, i])[..., None] * b[:, i, :, None, :]
        y.append((s * c[:, i, :, None, :]).sum(-1) + t["D"][:, None] * t["x"][:, i])
    y = torch.stack(y, 1)
    got.update({prefix + "y": y.detach(), prefix + "final_state": s.detach()})
    gradients(prefix, (y * inputs[prefix + "cotangent_y"]).sum() + (s * inputs[prefix + "cotangent_final_state"]).sum(), t)

t = leaves("conv/", ["x", "weight", "bias"])
x = t["x"].transpose(1, 2)
y = F.silu(F.conv1d(F.pad(x, (3, 0)), t["weight"][:, None], t["bias"], groups=x.shape[1])).transpose(1, 2)
got["conv/y"] = y.detach()
gradients("conv/", (y * inputs["conv/cotangent"]).sum(), t)

t = leaves("gated_norm/", ["x", "gate", "weight"])
v = (t["x"] * F.silu(t["gate"])).unflatten(-1, (-1, told["gated_norm"]["group_size"]))
y = t["weight"] * (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + told["gated_norm"]["eps"])).flatten(-2)
got["gated_norm/y"] = y.detach()
gradients("gated_norm/", (y * inputs["gated_norm/cotangent"]).sum(), t)

path = os.path.join(HERE, "expected.safetensors")
if "--write" in sys.argv:
    save_file({k: v.float().contiguous() for k, v in got.items()}, path)
expected = load_file(path)
bad = sorted(set(expected) ^ set(got))
for name in set(expected) & set(got):
    off = (expected[name].double() - got[name]).abs().max().item()
    if not off <= told["tolerance"][name]["atol"]:
        bad.append("%s is off by %g" % (name, off))
print("mamba2_units: %d tensors, %d bad" % (len(expected), len(bad)), *bad, sep="\n  ")
sys.exit(bool(bad))
