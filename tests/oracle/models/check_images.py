#!/usr/bin/env python3
"""The image encoder and the model that sees of tests/oracle/models against the transformers library at hand, images as rows of a batch and packed.

check_images.py           recompute their expected values in fp32 and fp64, compare the stored ones, run s2s-train probe and compare it with both.
                          Exit 77 without torch, transformers.
                          Then a model that s2s-train trained on images of a stream is converted, loaded here, and must have the loss s2s-train eval says.
check_images.py --write   write packed.safetensors and packed.json of radio, whose other files are those of the fixture
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import RadioModel
except (ModuleNotFoundError, ImportError) as e:
    print(e)
    sys.exit(77)
from check_decoders import casts_to
from check_speech import ROOT, probe

LAYOUTS = {"bshd": "expected", "packed": "packed"}
RENAMED = (("embeddings.patch_projection", "patch_generator.embedder"), ("embeddings.position_embedding", "patch_generator.pos_embed"),
           ("embeddings.cls_register_token", "patch_generator.cls_token.token"), ("encoder.layer", "blocks"), ("attention.o_proj", "attn.proj"))


def as_in_files(tensors):
    """Names of files, where q, k and v are one matrix."""
    out = {}
    for name, tensor in tensors.items():
        for old, new in RENAMED:
            name = name.replace(old, new)
        name, _, part = name.partition("attention.")
        end = part[len("q_proj"):]
        out.setdefault("radio_model.model." + (name + "attn.qkv" + end if part else name), {})[part[:1]] = tensor
    return {n: torch.cat([t[k] for k in "qkv"]) if "q" in t else t[""] for n, t in out.items()}


def run(model, inputs, dtype, layout):
    if layout == "packed":
        got = model(inputs["packed/patches"].to(dtype), image_grid_hw=inputs["packed/grid_hw"], output_hidden_states=True)
        seen = {"packed/last_hidden_state": got.last_hidden_state, "packed/features": got.features, "packed/summary": got.summary}
        target = inputs["packed/target"]
    else:
        got = model(inputs["pixel_values"].to(dtype), output_hidden_states=True)
        seen = {"summary": got.summary, "features": got.features}
        target = inputs["target"]
    seen.update(("%shidden/%d" % ("packed/" if layout == "packed" else "", i), h.reshape(target.shape)) for i, h in enumerate(got.hidden_states))
    loss = 0.5 * ((got.last_hidden_state - target.to(dtype)) ** 2).mean()
    return loss, dict(seen, loss=loss.reshape(1))


def compute(path, dtype, optimizer, layout):
    torch.set_num_threads(1)
    model = RadioModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").to(dtype).train()
    inputs, params = load_file(path + "/inputs.safetensors"), dict(model.named_parameters())
    with casts_to(dtype):
        groups = [{"params": [p for n, p in params.items() if (p.ndim >= 2 and not n.endswith(".bias")) == decays],
                   "weight_decay": optimizer["weight_decay"] if decays else 0.0} for decays in (True, False)]
        opt = torch.optim.AdamW(groups, lr=1.0, betas=tuple(optimizer["betas"]), eps=optimizer["eps"])
        for step, lr in enumerate(optimizer["lr"]):
            opt.zero_grad()
            loss, seen = run(model, inputs, dtype, layout)
            loss.backward()
            if step == 0:
                out = seen
                out.update(("grad/" + n, t.clone()) for n, t in as_in_files({n: p.grad for n, p in params.items()}).items())
            norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in params.values())).item()
            limit = optimizer.setdefault("max_norm", norm / 2)
            for p in params.values():
                p.grad.mul_(min(1.0, limit / (norm + 1e-6)))
            for group in opt.param_groups:
                group["lr"] = lr
            opt.step()
        out.update(("param3/" + n, t) for n, t in as_in_files(params).items())
    return {n: t.detach().contiguous() for n, t in out.items()}


def write(path):
    with open(path + "/expected.json") as f:
        optimizer = json.load(f)["optimizer"]
    single, double = (compute(path, dtype, optimizer, "packed") for dtype in (torch.float32, torch.float64))
    limits = {n: {"atol": max(20 * (single[n].double() - double[n]).abs().max().item(), 1e-6 * double[n].abs().max().item())} for n in double}
    save_file({n: t.clone() for n, t in single.items()}, path + "/packed.safetensors")
    with open(path + "/packed.json", "w") as f:
        json.dump({"optimizer": optimizer, "tolerance": limits}, f, indent=1)
        f.write("\n")


def check(path, layout, values, again):
    with open("%s/%s.json" % (path, values)) as f:
        expected = json.load(f)
    stored, probed, bad = load_file("%s/%s.safetensors" % (path, values)), probe(path, ["--layout", layout]), 0
    for dtype in (torch.float32, torch.float64):
        fresh = again(path, dtype, expected["optimizer"])
        mask = fresh.get("bshd/attention_mask", torch.ones(1)).bool()
        for what, tensors in (("stored", stored), ("probe", probed)):
            worst, n = 0.0, 0
            for key, limit in expected["tolerance"].items():
                a, b = tensors[key].double(), fresh[key].double()
                if a.shape[:2] == mask.shape:
                    a, b = a[mask], b[mask]
                share = ((a - b).abs().max() / limit["atol"]).item()
                worst, n = max(worst, share), n + 1
                if not share <= 1:
                    print("%s: differs by %.2f of its tolerance" % (key, share))
                    bad += 1
            bad += n == 0
            print("%-12s %-8s %-6s against %s: %d tensors, worst %.2f of its tolerance" % (os.path.basename(path), layout, what, dtype, n, worst))
    return bad


RECIPE = """
run: run
seed: 1
model:
  llm: {config: {model_type: llama, vocab_size: 64, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
                 intermediate_size: 64, rms_norm_eps: 1.0e-5, rope_theta: 10000.0, tie_word_embeddings: false, max_position_embeddings: 128, hidden_act: silu}}
  vision: {config: {model_type: radio, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 4, mlp_ratio: 2.0, patch_size: 4, max_img_size: 32,
                    num_cls_tokens: 2, num_registers: 1, initializer_range: 0.2, hidden_act: gelu_pytorch_tanh}}
  vision_projection: {inner: 32, final_layernorm: true}
data: {train: [im.s2s], eval: {all: im.s2s}}
optimizer: {name: adamw, lr: 1.0e-2}
train: {steps: 30, packs_per_step: 2}
"""


def loss_here(folder, stream):
    """Mean over the labels of all packs, with the library's encoder and decoder; images of an utterance one by one."""
    sys.path.insert(0, ROOT + "/tests/oracle/stream")
    import reader
    from transformers import AutoModelForCausalLM
    eye = RadioModel.from_pretrained(folder + "/vision", dtype=torch.float64)
    llm = AutoModelForCausalLM.from_pretrained(folder + "/llm", dtype=torch.float64)
    w = {n: t.double() for n, t in load_file(folder + "/vision_projection.safetensors").items()}
    total, n = 0.0, 0
    with open(stream, "rb") as f:
        records = reader.read(f.read())[1]
    for _, record in records:
        t = {k: torch.tensor(values).reshape(shape) for k, (_, shape, values, _) in record.items()}
        rows, at = [], 0
        for h, width in t["image_grid"].tolist():
            pixels = t["image_patches"][at:at + h * width].double() / 255
            at += h * width
            x = eye(pixels, image_grid_hw=torch.tensor([[h, width]])).features.reshape(h, width, -1)
            x = torch.nn.functional.layer_norm(x, x.shape[-1:], w["vision_final_layernorm.weight"], w["vision_final_layernorm.bias"], 1e-6)
            x = x.reshape(h // 2, 2, width // 2, 2, -1).permute(0, 2, 1, 3, 4).reshape(h * width // 4, -1)
            x = x * torch.rsqrt((x ** 2).mean(-1, keepdim=True) + 1e-5) * w["mlp1.0.weight"]
            rows.append(torch.relu(x @ w["mlp1.1.weight"].T) ** 2 @ w["mlp1.3.weight"].T)
        embeds = llm.get_input_embeddings()(t["input_ids"].long()).detach()
        if rows:
            embeds[t["image_slot"].long()] = torch.cat(rows)
        for a, m in zip(t["cu_seqlens"].tolist(), t["seq_lens"].tolist()):
            logits, labels = llm(inputs_embeds=embeds[None, a:a + m], use_cache=False).logits[0], t["labels"][a:a + m].long()
            total += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
            n += (labels != -100).sum().item()
    return total / n


def check_learned():
    tool = os.environ.get("S2S_BIN", os.path.join(ROOT, "bin"))
    with tempfile.TemporaryDirectory() as tmp:
        call = lambda *args: subprocess.run(args, cwd=tmp, check=True, capture_output=True, text=True).stdout
        with open(tmp + "/i.yaml", "w") as f:
            f.write(RECIPE)
        call(sys.executable, ROOT + "/tests/oracle/stream/make_images.py", "im.s2s", "6")
        call(tool + "/s2s-train", "-q", "-j1", "i.yaml")
        ours = json.loads(call(tool + "/s2s-train", "eval", "-j1", "--json", "i.yaml"))["sets"][0]["loss"]
        call(tool + "/s2s-ckpt", "convert", "--to", "hf", "run/checkpoints", "-o", "hf")
        with torch.no_grad():
            theirs = loss_here(tmp + "/hf", tmp + "/im.s2s")
    print("a converted run: loss %.7f, with the library %.7f" % (ours, theirs))
    return not abs(ours - theirs) <= 1e-6 * theirs


def main():
    path = os.path.join(HERE, "radio")
    if sys.argv[1:] == ["--write"]:
        return write(path)
    import make_images
    bad = sum(check(path, layout, values, lambda *args: compute(*args, layout)) for layout, values in LAYOUTS.items())
    bad += check_learned()
    bad += check(os.path.join(HERE, "salm_images"), "bshd", "expected", make_images.compute)
    print("%d tensors differ" % bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
