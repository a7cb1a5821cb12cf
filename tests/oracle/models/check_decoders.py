#!/usr/bin/env python3
"""Decoders of tests/oracle/models against the transformers library at hand.

check_decoders.py               recompute every decoder's expected values in fp32 and fp64, compare the stored ones, run
                                s2s-train probe and compare it with both. Exit 77 without torch, transformers.
check_decoders.py --write DIR   write expected.safetensors and expected.json of one directory
"""
import contextlib
import glob
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

OPTIMIZER = {"optimizer": "AdamW (decoupled)", "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1,
             "lr": [0.001, 0.0008, 0.0005],
             "no_decay": "parameters with one dimension or whose name ends in .bias"}


@contextlib.contextmanager
def casts_to(dtype):
    """The library casts to fp32 inside norms and softmax; in an fp64 run those must be fp64 too."""
    single, to_float = torch.float32, torch.Tensor.float
    if dtype == torch.float64:
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(dtype)
    yield
    torch.float32 = torch.float = single
    torch.Tensor.float = to_float
    torch.set_default_dtype(single)


def rotate_parts(config):
    """The library's Llama rotates whole heads; its GPT-NeoX has the same rotation, of a part where the config says so."""
    from transformers.models.gpt_neox import modeling_gpt_neox as neox
    from transformers.models.llama import modeling_llama as llama
    if (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor", 1) == 1:
        return
    llama.apply_rotary_pos_emb = neox.apply_rotary_pos_emb
    llama.LlamaRotaryEmbedding.compute_default_rope_parameters = staticmethod(neox.GPTNeoXRotaryEmbedding.compute_default_rope_parameters)


def compute(path, dtype, optimizer):
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").train().to(dtype)
    rotate_parts(model.config)
    with casts_to(dtype):
        if hasattr(model.model, "rotary_emb"):
            new_positions(model)
        return run(model, path, dtype, optimizer)


def new_positions(model):
    model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)


def forward(model, ids, mask):
    """Logits and hidden states. Positions that depend on the longest row of a batch are those of each row alone."""
    if (getattr(model.config, "rope_parameters", None) or {}).get("rope_type") not in ("dynamic", "longrope"):
        got = model(input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False)
        return got.logits, got.hidden_states
    rows = []
    for row, n in enumerate(mask.sum(1)):
        new_positions(model)
        got = model(input_ids=ids[row:row + 1, :n], output_hidden_states=True, use_cache=False)
        rows.append([torch.nn.functional.pad(t, (0, 0, 0, ids.shape[1] - n)) for t in (got.logits, *got.hidden_states)])
    logits, *hidden = [torch.cat(tensors) for tensors in zip(*rows)]
    return logits, hidden


def run(model, path, dtype, optimizer):
    """Everything an expected.safetensors holds, and the norm of the first gradient."""
    inputs = load_file(os.path.join(path, "inputs.safetensors"))
    params, kind = dict(model.named_parameters()), model.config.model_type
    decay = [p for n, p in params.items() if p.ndim >= 2 and not n.endswith(".bias")]
    plain = [p for n, p in params.items() if not (p.ndim >= 2 and not n.endswith(".bias"))]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": optimizer["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
                            lr=1.0, betas=tuple(optimizer["betas"]), eps=optimizer["eps"])
    out, norm0 = {}, 0.0
    for step, lr in enumerate(optimizer["lr"]):
        opt.zero_grad()
        all_logits, hidden = forward(model, inputs["input_ids"], inputs["attention_mask"])
        logits = all_logits[:, :-1]
        target = inputs["labels"][:, 1:]
        keep = target != -100
        loss = torch.nn.functional.cross_entropy(logits[keep].to(dtype), target[keep])
        loss.backward()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in params.values())).item()
        if step == 0:
            norm0 = norm
            out = {"hidden/%d" % i: h for i, h in enumerate(hidden)}
            out.update(logits=all_logits, loss=loss.reshape(1))
            out.update({"grad/" + m: t.clone() for n, p in params.items() for m, t in as_in_files(kind, n, p.grad)})
        limit = optimizer.get("max_norm") or norm / 2
        optimizer.setdefault("max_norm", limit)
        for p in params.values():
            p.grad.mul_(min(1.0, limit / (norm + 1e-6)))
        for group in opt.param_groups:
            group["lr"] = lr
        opt.step()
    out.update({"param3/" + m: t.clone() for n, p in params.items() for m, t in as_in_files(kind, n, p.detach())})
    return {n: t.detach().contiguous() for n, t in out.items()}, norm0


def as_in_files(model_type, name, tensor):
    """The names and tensors that files have: the library stacks experts in memory, gate above up."""
    if model_type == "nemotron_h" and name.startswith("model."):
        name = "backbone" + name[len("model"):]
    if ".experts." not in name:
        yield (name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if model_type == "mixtral" else name), tensor
        return
    place, kind = name.split("experts.")
    names = ["gate_proj", "up_proj", "down_proj"]
    if model_type == "mixtral":
        place, names = place.replace(".mlp.", ".block_sparse_moe."), ["w1", "w3", "w2"]
    for e, matrix in enumerate(tensor):
        parts = zip(names[:2], matrix.chunk(2)) if kind == "gate_up_proj" else [(kind if model_type == "nemotron_h" else names[2], matrix)]
        for part, values in parts:
            yield "%sexperts.%d.%s.weight" % (place, e, part), values


def difference(a, b, mask):
    a, b = a.double(), b.double()
    if a.ndim >= 3 and a.shape[:2] == mask.shape:
        a, b = a[mask], b[mask]
    return (a - b).abs().max().item(), b.abs().max().item()


def write(path):
    optimizer = dict(OPTIMIZER)
    single, _ = compute(path, torch.float32, optimizer)
    double, _ = compute(path, torch.float64, optimizer)
    mask = load_file(os.path.join(path, "inputs.safetensors"))["attention_mask"].bool()
    table = {}
    for name in single:
        noise, largest = difference(single[name], double[name], mask)
        table[name] = {"max_abs": largest, "f32_minus_f64": noise, "atol": max(20 * noise, 1e-6 * largest)}
    save_file(single, os.path.join(path, "expected.safetensors"))
    with open(os.path.join(path, "expected.json"), "w") as f:
        json.dump({"optimizer": optimizer, "tolerance": table}, f, indent=1)
        f.write("\n")


def check(path):
    """Number of tensors that differ."""
    with open(os.path.join(path, "expected.json")) as f:
        expected = json.load(f)
    mask = load_file(os.path.join(path, "inputs.safetensors"))["attention_mask"].bool()
    stored = load_file(os.path.join(path, "expected.safetensors"))
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "out.safetensors")
        subprocess.run([os.path.join(os.environ.get("S2S_BIN", os.path.join(ROOT, "bin")), "s2s-train"), "probe", "--model", path, "--inputs", path + "/inputs.safetensors",
                        "--out", out, "--grads", "--steps", "3", "--optimizer", path + "/expected.json"], check=True)
        probe = load_file(out)
    bad = 0
    for dtype in (torch.float32, torch.float64):
        fresh, _ = compute(path, dtype, dict(expected["optimizer"]))
        for what, tensors in (("stored", stored), ("probe", probe)):
            worst = 0.0
            for name, limit in expected["tolerance"].items():
                share = difference(tensors[name], fresh[name], mask)[0] / (limit["atol"] or 1e-30)
                worst = max(worst, share)
                bad += not share <= 1
            print("%-20s %-6s against %s: worst %.2f of its tolerance" % (os.path.basename(path), what, dtype, worst))
    return bad


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--write":
        write(sys.argv[2])
        return 0
    bad = checked = 0
    for config in sorted(glob.glob(os.path.join(HERE, "*", "config.json"))):
        with open(config) as f:
            if json.load(f).get("model_type") in ("llama", "mistral", "nemotron_h", "qwen2", "qwen3", "gemma", "mixtral", "qwen3_moe"):
                bad += check(os.path.dirname(config))
                checked += 1
    print("%d models, %d tensors differ" % (checked, bad))
    return 1 if bad or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
