#!/usr/bin/env python3
"""What bf16-mixed costs: s2s-train probe against transformers in fp64, with transformers in bf16 as the yardstick.

check_bf16.py [MODEL]...    Exit 77 without torch, transformers.

Distances are those of fp64: rms(x - exact) / rms(exact), a tensor each. The library's own distance is that of a model of bf16 (weights, activations and
gradients, as Megatron and NeMo compute). Both round activations to 8 bits in about the same places but in other orders, so distances agree but for
chance: the mean over the tensors of a kind may be MEAN of the library's, and that of one tensor, which may have a few elements, EACH of it; FLOOR, a
rounding, is for where the library's happens to be small. Gradients of parameters are sums of fp32 here, so ours are a little nearer.
After three steps of AdamW the change of each parameter is compared, not its value. A step has about the sign of a gradient, so that small gradients
make large errors; the yardstick is autocast over weights of fp32, which are masters as ours. What is zero but for roundings (the bias of keys, which
cancels in the softmax) is left out.
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file

    import check_decoders
    import check_images
    import check_speech
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
MEAN, EACH, FLOOR = 1.25, 4, 2.0 ** -9


def decoder(path, dtype, training):
    with open(path + "/expected.json") as f:
        return check_decoders.compute(path, dtype, dict(json.load(f)["optimizer"]))[0]


def speech(kind):
    def compute(path, dtype, training):
        with open(path + "/expected.json") as f:
            return check_speech.compute(kind, path, dtype, dict(json.load(f)["optimizer"]), training)
    return compute


def images(layout):
    def compute(path, dtype, training):
        with open(path + "/expected.json") as f:
            return check_images.compute(path, dtype, dict(json.load(f)["optimizer"]), layout)
    return compute


MODELS = {name: (decoder, [[]], False) for name in ("llama_gqa_untied", "llama_gqa_tied", "qwen2", "qwen3", "gemma1", "mixtral", "qwen3_moe", "nemotron_h", "nemotron_h_latent")}
MODELS["parakeet_encoder"] = (speech(check_speech.Encoder), [[]], False)
MODELS["parakeet_encoder_train"] = (speech(check_speech.Encoder), [["--batch-norm", "batch"]], True)
for name in ("salm_llama", "salm_nemotron_h"):
    MODELS[name] = (speech(check_speech.Salm), [["--layout", "bshd"]], False)
for layout in check_images.LAYOUTS:
    MODELS["radio " + layout] = (images(layout), [["--layout", layout]], False)
for name in ("llama_gqa_untied", "qwen3"):
    MODELS[name][1].append(["--layout", "bshd"])


def probe(path, options):
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "out.safetensors")
        tool = os.path.join(os.environ.get("S2S_BIN", os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(HERE))), "bin")), "s2s-train")
        subprocess.run([tool, "probe", "--model", path, "--inputs", path + "/inputs.safetensors", "--out", out, "--grads", "--steps", "3", "--optimizer",
                        path + "/expected.json", "--precision", "bf16-mixed"] + options, check=True)
        return load_file(out)


def weights(path, name):
    """Before the first step."""
    for sub in ("", "encoder/", "llm/"):
        file = os.path.join(path, sub, "model.safetensors")
        if os.path.exists(file):
            tensors = load_file(file)
            short = name[len(sub.replace("/", ".")):] if name.startswith(sub.replace("/", ".")) else name
            if short in tensors:
                return tensors[short].double()
    tensors = load_file(path + "/projection.safetensors")
    return tensors[name].double()


def rms(x):
    return x.double().pow(2).mean().sqrt().item()


def distance(x, exact, masks):
    for mask in masks:
        if exact.ndim >= 3 and exact.shape[:2] == mask.shape:
            x, exact = x[mask], exact[mask]
    return rms(x.double() - exact.double()) / rms(exact)


def kind_of(key):
    return key.split("/")[0]


def compare(got, exact, coarse, mixed, masks, path):
    """Distances by kind: (ours, the library's, name)."""
    largest, found = {}, {}
    for key, value in exact.items():
        largest[kind_of(key)] = max(largest.get(kind_of(key), 0), rms(value))
    for key, value in exact.items():
        if key not in got or not value.is_floating_point() or key == "pos_emb" or rms(value) < 1e-9 * largest[kind_of(key)]:
            continue
        if key.startswith("param3/"):
            before = weights(path, key[7:])
            if rms(exact.get("grad/" + key[7:], value)) < 1e-9 * largest["grad"]:
                continue
            ours, peer = (distance(x[key].double() - before, value - before, []) for x in (got, mixed))
        else:
            ours, peer = (distance(x[key], value, masks) for x in (got, coarse))
        found.setdefault(kind_of(key), []).append((ours, peer, key))
    return found


def check(name):
    compute, runs, training = MODELS[name]
    path = os.path.join(HERE, name.split()[0])
    exact, coarse = compute(path, torch.float64, training), compute(path, torch.bfloat16, training)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = compute(path, torch.float32, training)
    inputs = load_file(path + "/inputs.safetensors")
    masks = [inputs[n].bool() for n in ("attention_mask",) if n in inputs] + [exact[n].bool() for n in ("output_mask", "mask") if n in exact]
    bad = 0
    for options in runs:
        for kind, tensors in sorted(compare(probe(path, options), exact, coarse, mixed, masks, path).items()):
            mean = [sum(t[i] for t in tensors) / len(tensors) for i in (0, 1)]
            worst = max(tensors, key=lambda t: t[0] / (EACH * t[1] + FLOOR))
            fails = [t for t in tensors if not t[0] <= EACH * t[1] + FLOOR]
            bad += len(fails) + (not mean[0] <= MEAN * mean[1] + FLOOR)
            print("%-22s %-6s %-19s %3d: mean %.1e, library %.1e; furthest of its bound %.1e, library %.1e, %s%s"
                  % (name, " ".join(options[1:]), kind, len(tensors), *mean, *worst, "" if not fails else ": TOO FAR"))
    return bad


def main():
    bad = sum(check(name) for name in sys.argv[1:] or MODELS)
    print("%d distances beyond their bound" % bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
