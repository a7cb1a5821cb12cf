#!/usr/bin/env python3
"""Adapters against PEFT: its folders in and out, its training step by step, its merge, on Llama, Qwen3 and a mixture of experts.

check_lora.py [FAMILY]...    Exit 77 without torch, transformers, peft.

PEFT makes the adapter that s2s-train begins with (model.lora.path), with values in B too; both train it for STEPS full batches of AdamW with clipping;
then PEFT loads what s2s-train export writes. Values agree to CLOSE of the largest change of a tensor, which is the round-off of three steps; losses of the
exported and of the merged model to LOSS.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import peft
    import torch
    import transformers
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.environ.get("S2S_BIN", os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(HERE))), "bin"))
STEPS, CLOSE, LOSS = 3, 3e-4, 1e-6
SIZES = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
             rms_norm_eps=1e-5, initializer_range=0.2)
ADAM = dict(lr=1e-2, betas=(0.9, 0.98), eps=1e-4, weight_decay=0.1)
FAMILIES = {
    "llama": (transformers.LlamaConfig(**SIZES, tie_word_embeddings=False), ["q_proj", "v_proj", "model.layers.1.mlp.down_proj"]),
    "qwen3": (transformers.Qwen3Config(**SIZES, head_dim=8), ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    "qwen3_moe": (transformers.Qwen3MoeConfig(**SIZES, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16), ["q_proj", "o_proj"]),
    # what a run does not clamp transformers does not either
    "nemotron_h": (transformers.NemotronHConfig(
        **{k: v for k, v in SIZES.items() if k not in ("num_hidden_layers", "rms_norm_eps")}, head_dim=8, mamba_num_heads=4, mamba_head_dim=8, n_groups=2,
        ssm_state_size=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, moe_shared_expert_intermediate_size=24, moe_latent_size=12,
        layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], time_step_min=1e-30, pad_token_id=None),
                   ["in_proj", "q_proj", "model.layers.3.mixer.down_proj", "fc1_latent_proj"]),
}


def tool(name, *args):
    return subprocess.run([os.path.join(BIN, name), *args], check=True, capture_output=True, text=True).stdout


def sequences():
    random.seed(3)
    rows = []
    for _ in range(12):
        n, start = random.randint(3, 20), random.randint(1, 50)
        rows.append([(start + 3 * k) % 60 + 1 for k in range(n)])
    return rows


def loss_of(model, rows):
    """Sum over all labels / their number, as a step has it."""
    total, n = 0, 0
    for row in rows:
        logits = model(input_ids=torch.tensor([row])).logits[0, :-1]
        total = total + torch.nn.functional.cross_entropy(logits.float(), torch.tensor(row[1:]), reduction="sum")
        n += len(row) - 1
    return total / n


def adapters(model):
    return {k: v for k, v in peft.get_peft_model_state_dict(model).items()}


def evaluate(recipe, *args):
    return json.loads(tool("s2s-train", "eval", recipe, "--json", *args))["sets"][0]["loss"]


def compare(what, ours, theirs, before):
    assert ours.keys() == theirs.keys(), (ours.keys() ^ theirs.keys())
    worst = 0
    for name, want in theirs.items():
        moved = (want - before[name]).abs().max().item()
        assert moved > 0, f"{name} did not move"
        worst = max(worst, (ours[name] - want).abs().max().item() / moved)
    print(f"{what}: largest difference {worst:.2g} of the change")
    assert worst < CLOSE, what


def check(family):
    config, targets = FAMILIES[family]
    torch.manual_seed(1)
    rows = sequences()
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained("base")
    base = transformers.AutoModelForCausalLM.from_pretrained("base", dtype=torch.float32)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=10, target_modules=targets, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(0, 0.05)
    model.save_pretrained("begin")
    before = {k: v.clone() for k, v in adapters(model).items()}
    with open("ids.jsonl", "w") as f:
        for i, row in enumerate(rows):
            f.write(json.dumps({"id": f"u{i}", "input_ids": row}) + "\n")
    tool("s2s-pack", "-q", "--ids", "ids.jsonl", "--tokens", "400", "-o", "t.s2s")
    with open("r.yaml", "w") as f:
        f.write("run: run\nmodel: {path: base, lora: {path: begin}}\ndata: {train: [t.s2s], eval: {seen: t.s2s}}\n"
                f"optimizer: {{name: adamw, lr: {ADAM['lr']:e}, betas: [0.9, 0.98], eps: {ADAM['eps']:e}, weight_decay: 0.1, clip_norm: 0.5}}\n"
                f"train: {{steps: {STEPS}}}\n")
    tool("s2s-train", "r.yaml", "-q")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **ADAM)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, rows).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    tool("s2s-train", "export", "r.yaml", "-o", "adapter")
    again = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained("base", dtype=torch.float32), "adapter")
    compare(f"{family}: {STEPS} steps", adapters(again), adapters(model), before)
    loss = evaluate("r.yaml")
    with torch.no_grad():
        theirs = loss_of(again, rows).item()
        assert abs(theirs - loss) < LOSS * loss, (theirs, loss)
        print(f"{family}: loss {loss:.7f}, PEFT's of the exported folder {theirs:.7f}")
    tool("s2s-train", "export", "r.yaml", "--merge", "-o", "merged")
    tool("s2s-ckpt", "convert", "-q", "merged", "--to", "hf", "-o", "model")
    merged = transformers.AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
    want = again.merge_and_unload().state_dict()
    for name, value in merged.state_dict().items():
        assert torch.allclose(value, want[name], rtol=1e-6, atol=1e-7), name
    with torch.no_grad():
        assert abs(loss_of(merged, rows).item() - loss) < LOSS * loss
    print(f"{family}: merged weights are PEFT's")


def main():
    for family in sys.argv[1:] or FAMILIES:
        with tempfile.TemporaryDirectory() as tmp:
            os.chdir(tmp)
            check(family)
            os.chdir(HERE)


if __name__ == "__main__":
    main()
