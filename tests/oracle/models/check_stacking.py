#!/usr/bin/env python3
"""FastConformer encoders that stack frames, or norm layers in convolutions, against torch code written from the formulas, in fp64.

check_stacking.py    makes encoders of random weights, runs s2s-train probe with gradients, and compares outputs, loss and every
                     gradient. Exit 77 without torch, transformers.
"""
import json
import math
import tempfile

import check_modality as m
from check_modality import load_file, save_file, torch

KINDS = [{"subsampling": "stacking", "subsampling_factor": 4}, {"subsampling": "stacking_norm", "subsampling_factor": 8},
         {"subsampling": "stacking_norm", "subsampling_factor": 3, "conv_norm_type": "layer_norm", "scale_input": False},
         {"subsampling": "stacking", "subsampling_factor": 2, "attention_bias": False, "convolution_bias": False}]


def frames_of(w, kind, x):
    """A clip's features [n, mels] as frames [ceil(n / factor), width]."""
    factor = kind["subsampling_factor"]
    x = torch.cat([x, x.new_zeros(-len(x) % factor, x.shape[1])])
    if "subsampling.pre_norm.weight" in w:
        x = m.normed(w, "subsampling.pre_norm", x)
    return m.affine(w, "subsampling.proj_out", x.reshape(-1, factor * x.shape[1])) * (math.sqrt(32) if kind.get("scale_input", True) else 1)


def check(kind, tmp):
    generator = torch.Generator().manual_seed(7)
    a = {"d_model": 32, "n_layers": 2, "n_heads": 4, "conv_kernel_size": 9, "ff_expansion_factor": 2,
         "use_bias": kind.get("attention_bias", True), "conv_norm_type": kind.get("conv_norm_type", "batch_norm")}
    w = {n: t.float().double() for n, t in m.make_weights(a, generator).items() if not n.startswith("pre_encode")}
    for name, shape in (("proj_out.weight", (32, 80 * kind["subsampling_factor"])), ("proj_out.bias", (32,))) + (
            (("pre_norm.weight", (80,)), ("pre_norm.bias", (80,))) if kind["subsampling"] == "stacking_norm" else ()):
        w["subsampling." + name] = (torch.randn(*shape, generator=generator) * 0.1).double()
    inputs = load_file(m.BASE + "/inputs.safetensors")
    w = {n: t.requires_grad_("running" not in n) for n, t in w.items()}
    mask = inputs["attention_mask"].bool()
    outs = []
    for x, k in zip(inputs["input_features"].double(), mask):
        y = frames_of(w, kind, x[:int(k.sum())])[None]
        outs.append(m.layers(a, w, y, torch.ones(y.shape[:2], dtype=torch.bool))[0])
    target = torch.randn(len(outs), -(-inputs["input_features"].shape[1] // kind["subsampling_factor"]), 32, generator=generator)
    loss = sum(0.5 * ((y - t[:len(y)].double()) ** 2).sum() for y, t in zip(outs, target)) / sum(y.numel() for y in outs)
    loss.backward()
    with open(m.BASE + "/config.json") as f:
        config = dict(json.load(f), **kind)
    with open(tmp + "/config.json", "w") as f:
        json.dump(config, f)
    save_file({n: t.detach().float().contiguous() for n, t in w.items()}, tmp + "/model.safetensors")
    save_file(dict(inputs, target=target), tmp + "/inputs.safetensors")
    got = m.run(tmp)
    largest = max(t.grad.abs().max() for t in w.values() if t.grad is not None)
    worst = abs(got["loss"].item() - loss.item()) / loss.item()
    for n, t in w.items():
        if t.grad is not None and t.grad.abs().max() > 1e-6 * largest:
            worst = max(worst, m.far(got["grad/" + n], t.grad))
    print("%-90s %.1e" % (json.dumps(kind), worst))
    assert worst < 2e-4, worst


for kind in KINDS:
    with tempfile.TemporaryDirectory() as tmp:
        check(kind, tmp)
