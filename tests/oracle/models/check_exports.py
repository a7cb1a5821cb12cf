#!/usr/bin/env python3
"""A NemotronH that transformers made, trained by s2s-train and exported by s2s-ckpt, is in transformers what s2s-train says it is: the
loss of an evaluation, from the checkpoint, and the logits of a probe of what was exported. Exit 77 without torch, transformers."""
import json
import os
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, NemotronHConfig, NemotronHForCausalLM
except (ModuleNotFoundError, ImportError) as e:
    print(e)
    sys.exit(77)

BIN = os.environ.get("S2S_BIN", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../bin"))
RECIPE = """
run: run
seed: 1
model: {path: made}
data: {train: [t.s2s], eval: {seen: t.s2s}}
optimizer: {name: adamw, lr: 1.0e-2, clip_norm: 1.0}
train: {steps: 5, packs_per_step: 2, moe_router_bias_update_rate: 0.02}
"""


def tool(name, *args, **how):
    return subprocess.run([os.path.join(BIN, name), *args], check=True, **how)


def make(seed):
    """Steps that the class clamps (of a bias below zero) are among those that Megatron does not."""
    torch.manual_seed(seed)
    model = NemotronHForCausalLM(NemotronHConfig(
        vocab_size=64, hidden_size=32, layers_block_type=["linear_attention", "moe", "full_attention", "mlp", "linear_attention"], num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=48, mamba_num_heads=4, mamba_head_dim=8, n_groups=2, ssm_state_size=8, n_routed_experts=6,
        num_experts_per_tok=2, moe_intermediate_size=16, moe_shared_expert_intermediate_size=24, n_group=3, topk_group=2, initializer_range=0.2))
    with torch.no_grad():
        model.model.layers[0].mixer.dt_bias[0] = -9
    model.save_pretrained("made")


def rows():
    generator = torch.Generator().manual_seed(3)
    return [[int(t) for t in torch.randint(1, 63, (int(n),), generator=generator)] for n in torch.randint(3, 20, (24,), generator=generator)]


def loss(model, data):
    total = count = 0
    for ids in data:
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
        total += torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()
        count += len(ids) - 1
    return total / count


def main():
    data = rows()
    with open("ids.jsonl", "w") as f:
        for i, ids in enumerate(data):
            f.write(json.dumps({"id": "u%d" % i, "input_ids": ids}) + "\n")
    with open("r.yaml", "w") as f:
        f.write(RECIPE)
    tool("s2s-pack", "-q", "--ids", "ids.jsonl", "--tokens", "64", "-o", "t.s2s")
    make(7)
    tool("s2s-train", "-q", "-j1", "r.yaml")
    said = json.loads(tool("s2s-train", "eval", "r.yaml", "-j1", "--json", capture_output=True, text=True).stdout)["sets"][0]["loss"]
    tool("s2s-ckpt", "convert", "-q", "--to", "hf", "run/checkpoints", "out")
    model = AutoModelForCausalLM.from_pretrained("out", dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
    with torch.no_grad():
        found = loss(model, data)
        inputs = {"input_ids": torch.tensor([data[0][:3], data[1][:3]])}
        logits = model(input_ids=inputs["input_ids"], use_cache=False).logits
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    save_file(inputs, "inputs.safetensors")
    tool("s2s-train", "probe", "--model", "out", "--inputs", "inputs.safetensors", "--out", "probe.safetensors", "-j1")
    far = (load_file("probe.safetensors")["logits"] - logits).abs().max().item()
    made, trained = load_file("made/model.safetensors"), load_file("out/model.safetensors")
    moved = [n for n in made if torch.equal(made[n], trained[n])]
    print("loss %.8g from the checkpoint, %.8g in transformers; logits differ by %.1e; tensors that did not change: %s" % (said, found, far, moved))
    return 0 if abs(said - found) < 2e-6 * found and far < 2e-5 and not moved and set(made) == set(trained) else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        BIN = os.path.abspath(BIN)
        os.chdir(tmp)
        sys.exit(main())
