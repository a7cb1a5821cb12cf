#!/usr/bin/env python3
"""Speech encoders and the speech LLM of tests/oracle/models against the transformers library at hand.

check_speech.py    recompute their expected values in fp32 and fp64, compare the stored ones, run s2s-train probe and compare
                   it with both. Exit 77 without torch, transformers.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, HERE)
try:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    from transformers.models.parakeet import ParakeetEncoder
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)
from check_decoders import as_in_files, casts_to


class Encoder(torch.nn.Module):
    """Half the squared distance to a target over the valid frames."""

    def __init__(self, path, inputs, dtype, training):
        super().__init__()
        self.model = ParakeetEncoder.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").to(dtype)
        self.model.train(training)
        self.inputs, self.dtype, self.prefix = inputs, dtype, "model."

    def renew_positions(self):
        """Tables that are computed when the model is built, in the type of this run."""
        self.model.encode_positions = type(self.model.encode_positions)(self.model.config)

    def run(self, first):
        x = self.inputs["input_features"].to(self.dtype).clone().requires_grad_(True)
        seen, hooks = {}, []
        layer = self.model.layers[0]
        for name, module in (("subsampling", self.model.subsampling), ("layer0/ff1", layer.feed_forward1),
                             ("layer0/attn", layer.self_attn), ("layer0/conv", layer.conv), ("layer0/ff2", layer.feed_forward2)):
            hooks.append(module.register_forward_hook(
                lambda m, i, o, name=name: seen.__setitem__(name, o[0] if isinstance(o, tuple) else o)))
        for i, module in enumerate(self.model.layers):
            hooks.append(module.register_forward_hook(lambda m, j, o, i=i: seen.__setitem__("hidden/%d" % (i + 1), o)))
        got = self.model(input_features=x, attention_mask=self.inputs["attention_mask"].bool())
        for hook in hooks:
            hook.remove()
        mask = got.attention_mask.bool()
        diff = got.last_hidden_state[mask] - self.inputs["target"].to(self.dtype)[mask]
        seen["output_mask"] = mask
        if first:
            self.buffers_after = {"buffer_after/" + n: b.clone() for n, b in self.model.named_buffers() if "running" in n}
        return 0.5 * (diff ** 2).sum() / diff.numel(), seen, x


class Salm(torch.nn.Module):
    """Encoder, projection, LLM over right-padded rows without their last column."""

    def __init__(self, path, inputs, dtype, training):
        super().__init__()
        self.encoder = ParakeetEncoder.from_pretrained(path + "/encoder", dtype=torch.float32, attn_implementation="eager").to(dtype).eval()
        self.llm = AutoModelForCausalLM.from_pretrained(path + "/llm", dtype=torch.float32, attn_implementation="eager",
                                                        experts_implementation="eager").to(dtype).eval()
        weights = load_file(path + "/projection.safetensors")
        self.proj = torch.nn.Linear(24, 32).to(dtype)
        self.proj.load_state_dict({"weight": weights["proj.weight"], "bias": weights["proj.bias"]})
        self.inputs, self.dtype, self.prefix, self.buffers_after = inputs, dtype, "", {}
        with open(path + "/config.json") as f:
            self.placeholder = json.load(f)["audio_locator_token_id"]

    def renew_positions(self):
        if hasattr(self.llm.model, "rotary_emb"):
            self.llm.model.rotary_emb = type(self.llm.model.rotary_emb)(config=self.llm.config)
        self.encoder.encode_positions = type(self.encoder.encode_positions)(self.encoder.config)

    def run(self, first):
        i = self.inputs
        got = self.encoder(input_features=i["input_features"].to(self.dtype), attention_mask=i["features_mask"].bool())
        clips = [self.proj(h[m.bool()]) for h, m in zip(got.last_hidden_state, got.attention_mask)]
        rows, targets, k = [], [], 0
        for ids, n, keep in zip(i["text_ids"], i["text_lens"], i["loss_mask"]):
            row, target = [], []
            for t in range(n):
                if ids[t] == self.placeholder:
                    row.append(clips[k])
                    target += [-100] * len(clips[k])
                    k += 1
                else:
                    row.append(self.llm.get_input_embeddings()(ids[t:t + 1]))
                    target.append(int(ids[t]) if keep[t] else -100)
            rows.append(torch.cat(row))
            targets.append(torch.tensor(target))
        longest = max(map(len, rows))
        embeds = torch.stack([torch.nn.functional.pad(r, (0, 0, 0, longest - len(r))) for r in rows])[:, :-1]
        target = torch.stack([torch.nn.functional.pad(t, (0, longest - len(t)), value=-100) for t in targets])[:, 1:]
        mask = torch.stack([(torch.arange(longest) < len(r)).long() for r in rows])[:, :-1]
        logits = self.llm(inputs_embeds=embeds, attention_mask=mask, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[target != -100], target[target != -100])
        return loss, {"audio_embeds": torch.cat(clips), "bshd/inputs_embeds": embeds, "bshd/logits": logits, "mask": mask.bool()}, None


def names_in_files(model, name, tensor):
    """The names that files have of a parameter, an expert each."""
    if not name.startswith("llm."):
        return [(name, tensor)]
    return [("llm." + n, t) for n, t in as_in_files(model.llm.config.model_type, name[4:], tensor)]


def compute(kind, path, dtype, optimizer, training):
    torch.set_num_threads(1)
    m = kind(path, load_file(path + "/inputs.safetensors"), dtype, training)
    with casts_to(dtype):
        m.renew_positions()
        params = {n[len(m.prefix):]: p for n, p in m.named_parameters()}
        groups = [{"params": [p for n, p in params.items() if (p.ndim >= 2 and not n.endswith(".bias")) == decays],
                   "weight_decay": optimizer["weight_decay"] if decays else 0.0} for decays in (True, False)]
        opt = torch.optim.AdamW(groups, lr=1.0, betas=tuple(optimizer["betas"]), eps=optimizer["eps"])
        out = {}
        for step, lr in enumerate(optimizer["lr"]):
            opt.zero_grad()
            loss, seen, x = m.run(step == 0)
            loss.backward()
            if step == 0:
                out = dict(seen, loss=loss.reshape(1), **m.buffers_after)
                out.update({"grad/" + n: t.clone() for k, p in params.items() for n, t in names_in_files(m, k, p.grad)})
                if x is not None:
                    out["grad_input_features"] = x.grad
            norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in params.values())).item()
            for p in params.values():
                p.grad.mul_(min(1.0, optimizer["max_norm"] / (norm + 1e-6)))
            for group in opt.param_groups:
                group["lr"] = lr
            opt.step()
        out.update({"param3/" + n: t for k, p in params.items() for n, t in names_in_files(m, k, p)})
    return {n: t.detach().contiguous() for n, t in out.items()}


def probe(path, options):
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "out.safetensors")
        subprocess.run([os.path.join(os.environ.get("S2S_BIN", os.path.join(ROOT, "bin")), "s2s-train"), "probe", "--model", path,
                        "--inputs", path + "/inputs.safetensors", "--out", out, "--grads", "--steps", "3",
                        "--optimizer", path + "/expected.json"] + options, check=True)
        return load_file(out)


def check(kind, name, options, training=False):
    path = os.path.join(HERE, name)
    with open(path + "/expected.json") as f:
        expected = json.load(f)
    stored, probed, bad = load_file(path + "/expected.safetensors"), probe(path, options), 0
    features = load_file(path + "/inputs.safetensors").get("attention_mask")
    for dtype in (torch.float32, torch.float64):
        fresh = compute(kind, path, dtype, expected["optimizer"], training)
        masks = [fresh[n].bool() for n in ("output_mask", "mask") if n in fresh] + ([] if features is None else [features.bool()])
        for what, tensors in (("stored", stored), ("probe", probed)):
            worst, n = 0.0, 0
            for key in expected["tolerance"]:
                if key not in fresh:
                    continue
                a, b = tensors[key].double(), fresh[key].double()
                for mask in masks:
                    if a.ndim >= 3 and a.shape[:2] == mask.shape:
                        a, b = a[mask], b[mask]
                share = ((a - b).abs().max() / expected["tolerance"][key]["atol"]).item()
                worst, n = max(worst, share), n + 1
                if not share <= 1:
                    print("%s: differs by %.2f of its tolerance" % (key, share))
                    bad += 1
            bad += n == 0
            print("%-24s %-6s against %s: %d tensors, worst %.2f of its tolerance" % (name, what, dtype, n, worst))
    return bad


def main():
    bad = check(Encoder, "parakeet_encoder", [])
    bad += check(Encoder, "parakeet_encoder_train", ["--batch-norm", "batch"], True)
    bad += check(Salm, "salm_llama", ["--layout", "bshd"])
    bad += check(Salm, "salm_nemotron_h", ["--layout", "bshd"])
    print("%d tensors differ" % bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
