#!/usr/bin/env python3
"""Every family of decoders that s2s-train knows: folders of random weights that transformers made are trained, and exported by s2s-ckpt.

check_exports.py [NAME]...   all of CASES, or those named. Exit 77 without torch, transformers.

Held of each: the losses of three steps over the whole set are those of torch, which trains the same folder with its own AdamW; every tensor has moved,
and the export has the names of the folder it began with; transformers loads the export, and has the loss that an evaluation of the checkpoint says,
and the logits of a probe of the export.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers as hf
    from safetensors.torch import load_file, save_file
except (ModuleNotFoundError, ImportError) as e:
    print(e)
    sys.exit(77)

hf.utils.logging.disable_progress_bar()
hf.utils.logging.set_verbosity_error()
HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.abspath(os.environ.get("S2S_BIN", os.path.join(HERE, "../../../bin")))
STEPS, SAME_LOSS, SAME_LOGITS = 3, 2e-6, 2e-5
ADAM = dict(lr=1e-2, betas=(0.9, 0.98), eps=1e-4, weight_decay=0.1)
RECIPE = """
run: run
seed: 1
model: {path: made}
data: {train: [t.s2s], eval: {seen: t.s2s}}
optimizer: {name: adamw, lr: 1.0e-2, betas: [0.9, 0.98], eps: 1.0e-4, weight_decay: 0.1, clip_norm: 1.0}
schedule: {name: constant}
train: {steps: %d, packs_per_step: 1, moe_router_bias_update_rate: %g}
"""
SIZES = dict(vocab_size=64, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=48, initializer_range=0.2)
TWO = dict(SIZES, num_hidden_layers=2, max_position_embeddings=128)
QWEN3_MOE = dict(TWO, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
MIXTRAL = dict(TWO, num_local_experts=4, num_experts_per_tok=2)
HYBRID = dict(SIZES, layers_block_type=["linear_attention", "moe", "full_attention", "mlp", "linear_attention"], mamba_num_heads=4, mamba_head_dim=8,
              n_groups=2, ssm_state_size=8, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, moe_shared_expert_intermediate_size=24,
              n_group=3, topk_group=2)


def rope(kind, **keys):
    return dict(rope_parameters=dict({"rope_type": kind, "rope_theta": 100.0}, **keys))


CASES = {
    "llama": hf.LlamaConfig(**TWO),
    "llama tied, biases": hf.LlamaConfig(**TWO, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama linear": hf.LlamaConfig(**TWO, **rope("linear", factor=3.0)),
    "llama dynamic": hf.LlamaConfig(**dict(TWO, max_position_embeddings=9), **rope("dynamic", factor=2.5)),
    "llama llama3": hf.LlamaConfig(**TWO, **rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)),
    "llama yarn": hf.LlamaConfig(**TWO, **rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama longrope": hf.LlamaConfig(**dict(TWO, max_position_embeddings=24), **rope(
        "longrope", short_factor=[1.0, 1.1, 1.2, 1.4], long_factor=[1.5, 2.0, 3.0, 5.0], original_max_position_embeddings=9)),
    "mistral with a window": hf.MistralConfig(**TWO, sliding_window=5),
    "mistral without": hf.MistralConfig(**TWO, sliding_window=None),
    "qwen2": hf.Qwen2Config(**TWO),
    "qwen2 with a window, yarn": hf.Qwen2Config(
        **TWO, tie_word_embeddings=True, use_sliding_window=True, sliding_window=4, max_window_layers=1, **rope("yarn", factor=3.0, beta_fast=3, beta_slow=0.6,
                                                                            mscale=1.4, mscale_all_dim=0.6, original_max_position_embeddings=64)),
    "qwen3": hf.Qwen3Config(**TWO),
    "qwen3 tied": hf.Qwen3Config(**TWO, tie_word_embeddings=True),
    "gemma": hf.GemmaConfig(**TWO),
    "mixtral": hf.MixtralConfig(**MIXTRAL, sliding_window=None),
    "mixtral with a window": hf.MixtralConfig(**MIXTRAL, sliding_window=6),
    "qwen3_moe": hf.Qwen3MoeConfig(**QWEN3_MOE),
    "qwen3_moe with a dense layer": hf.Qwen3MoeConfig(**QWEN3_MOE, mlp_only_layers=[1], norm_topk_prob=False),
    # steps that the class clamps s2s-train, as Megatron, does not; its exports then say so
    "nemotron_h": hf.NemotronHConfig(**HYBRID, time_step_min=1e-30),
    "nemotron_h latent": hf.NemotronHConfig(**HYBRID, time_step_min=1e-30, moe_latent_size=12),
    "nemotron_h unclamped, with updates of the router": hf.NemotronHConfig(**HYBRID),
}
OTHERS_CHECK = {"parakeet_encoder", "radio", "salm"}  # check_speech.py, check_images.py


def tool(name, *args, **how):
    return subprocess.run([os.path.join(BIN, name), *args], check=True, **how)


def make(config, clamped):
    torch.manual_seed(7)
    model = hf.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        if clamped:
            model.model.layers[0].mixer.dt_bias[0] = -9
        for name, p in model.named_parameters():  # nothing is at the values it begins with
            if p.ndim == 1 and "mixer" not in name:
                p += 0.1 * torch.randn_like(p)
    model.save_pretrained("made")


def rows():
    generator = torch.Generator().manual_seed(3)
    return [[int(t) for t in torch.randint(1, 63, (int(n),), generator=generator)] for n in torch.randint(3, 20, (24,), generator=generator)]


def load(path):
    return hf.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")


def logits_of(model, ids):
    """Positions that depend on the longest row so far are those of this one."""
    if (getattr(model.config, "rope_parameters", None) or {}).get("rope_type") in ("dynamic", "longrope"):
        model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def loss(model, data):
    """Of all labels, backward where that is recorded."""
    total, count = 0, sum(len(ids) - 1 for ids in data)
    for ids in data:
        one = torch.nn.functional.cross_entropy(logits_of(model, ids)[:-1], torch.tensor(ids[1:]), reduction="sum") / count
        if torch.is_grad_enabled():
            one.backward()
        total += one.item()
    return total


def losses_of_torch(data):
    model, losses = load("made").train(), []
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([dict(params=matrices), dict(params=others, weight_decay=0)], **ADAM)
    for _ in range(STEPS):
        losses.append(loss(model, data))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def check(config, data, unclamped):
    """What is wrong, and the distances."""
    make(config, unclamped)
    with open("r.yaml", "w") as f:
        f.write(RECIPE % (STEPS, 0.02 if unclamped else 0))
    tool("s2s-train", "-q", "-j1", "r.yaml")
    said = json.loads(tool("s2s-train", "eval", "r.yaml", "-j1", "--json", capture_output=True, text=True).stdout)["sets"][0]["loss"]
    tool("s2s-ckpt", "convert", "-q", "--to", "hf", "run/checkpoints", "out")
    model, wrong = load("out").eval(), []
    probed = [ids[:12] for ids in data if len(ids) >= 12][:3]
    with torch.no_grad():
        found = loss(model, data)
        logits = torch.stack([logits_of(model, ids) for ids in probed])
    inputs = {"input_ids": torch.tensor(probed), "attention_mask": torch.ones(len(probed), 12, dtype=torch.int64)}
    save_file(inputs, "inputs.safetensors")
    tool("s2s-train", "probe", "-q", "--model", "out", "--inputs", "inputs.safetensors", "--out", "probe.safetensors", "-j1")
    far = (load_file("probe.safetensors")["logits"] - logits).abs().max().item()
    if not abs(said - found) < SAME_LOSS * found:
        wrong.append("loss %.8g from the checkpoint, %.8g in transformers" % (said, found))
    if not far < SAME_LOGITS:
        wrong.append("logits differ by %.1e" % far)
    made, trained = load_file("made/model.safetensors"), load_file("out/model.safetensors")
    stays = () if unclamped else ("gate.e_score_correction_bias",)  # no gradient flows there
    wrong += ["%s has not moved" % n for n in made if n in trained and torch.equal(made[n], trained[n]) and not n.endswith(stays)]
    wrong += ["%s is in one folder only" % n for n in set(made) ^ set(trained)]
    with open("run/log.jsonl") as f:
        losses = [json.loads(line)["loss"] for line in f]
    theirs = losses if unclamped else losses_of_torch(data)
    apart = max(abs(a - b) / b for a, b in zip(losses, theirs, strict=True))
    if not apart < SAME_LOSS:
        wrong.append("losses of steps are %s, those of torch %s" % (losses, theirs))
    return wrong, "loss %.6f -> %.6f, %.0e from transformers', steps %.0e from torch's, logits %.0e" % (losses[0], found, abs(said - found) / found, apart, far)


def unchecked():
    """Model types that s2s-train knows and no case is about."""
    with open("config.json", "w") as f:
        json.dump({"model_type": "none"}, f)
    said = subprocess.run([BIN + "/s2s-train", "probe", "--model", ".", "--inputs", "none", "--out", "none"], capture_output=True, text=True).stderr
    known = re.search(r"known are: (.*)", said).group(1).rstrip(")").split(", ")
    return set(known) - {config.model_type for config in CASES.values()} - OTHERS_CHECK


def main():
    torch.set_num_threads(1)
    data, bad = rows(), 0
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as tmp:
            os.chdir(tmp)
            with open("ids.jsonl", "w") as f:
                for i, ids in enumerate(data):
                    f.write(json.dumps({"id": "u%d" % i, "input_ids": ids}) + "\n")
            tool("s2s-pack", "-q", "--ids", "ids.jsonl", "--tokens", "512", "-o", "t.s2s")  # one pack
            wrong, distances = check(CASES[name], data, "unclamped" in name)
            missed = unchecked()
            os.chdir(HERE)
        print("%-50s %s" % (name, distances))
        for text in wrong:
            print("    " + text)
        bad += len(wrong)
    for family in sorted(missed):
        print("no case is about %s" % family)
    return 1 if bad or missed else 0


if __name__ == "__main__":
    sys.exit(main())
