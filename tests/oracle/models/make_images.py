#!/usr/bin/env python3
"""make_images.py DIR: a model that sees, salm_images, out of transformers' NemotronH_Omni_Reasoning_V3, and its numbers.

The library's model has random weights. Its parts become the folders vision/ and llm/ and vision_projection.safetensors. Two utterances with two
images and one, of three sizes, whose placeholders stand in runs and alone. expected.* as the other folders'; names are those of files.
"""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers.models.nemotron_h_omni import modeling_nemotron_h_omni as omni
from transformers.models.nemotron_h_omni.configuration_nemotron_h_omni import NemotronH_Omni_Reasoning_V3_Config

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_images
from check_decoders import casts_to, OPTIMIZER

IMAGE, VOCAB, WIDTH = 90, 96, 32
VISION = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2.0, patch_size=4, max_img_size=32, num_cls_tokens=2,
              num_registers=1, video_temporal_patch_size=2, initializer_range=0.2, hidden_act="gelu")
TEXT = dict(vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=48, layers_block_type=["linear_attention", "mlp", "full_attention"], num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, mamba_num_heads=8, mamba_head_dim=8, n_groups=2, ssm_state_size=8, conv_kernel=4, chunk_size=8,
            num_nextn_predict_layers=1, initializer_range=0.1, tie_word_embeddings=False, pad_token_id=0, n_routed_experts=4, num_experts_per_tok=1,
            moe_intermediate_size=8, moe_shared_expert_intermediate_size=8, time_step_limit=[0.0, float("inf")], time_step_min=1e-30)


def config():
    return NemotronH_Omni_Reasoning_V3_Config(vision_config=dict(VISION, model_type="radio"), text_config=dict(TEXT, model_type="nemotron_h"), audio_config=None,
                                              vision_hidden_size=24, projector_hidden_size=56, image_token_id=IMAGE, audio_token_id=91)


def make(path):
    torch.manual_seed(403)
    model = omni.NemotronH_Omni_Reasoning_V3(config())
    for p in model.parameters():  # nothing is at the values it begins with
        p.data += 0.05 * torch.randn_like(p)
    model.vision_model.save_pretrained(path + "/vision")
    model.language_model.save_pretrained(path + "/llm")
    save_file({n: t.contiguous() for n, t in projection(dict(model.named_parameters())).items()}, path + "/vision_projection.safetensors")
    with open(path + "/config.json", "w") as f:
        json.dump({"model_type": "salm", "vision": "vision", "llm": "llm", "image_token_id": IMAGE, "pad_token_id": 0,
                   "vision_projection": {"in": 24, "out": WIDTH, "inner": 56, "pixel_shuffle": 2, "final_layernorm": True}}, f, indent=1)
        f.write("\n")
    save_file(inputs(), path + "/inputs.safetensors")


def inputs():
    grid, ids = [[4, 6], [2, 2], [2, 8]], [torch.randint(1, 80, (21,)), torch.randint(1, 80, (14,))]
    lens = torch.tensor([21, 14])
    text, mask = torch.zeros(2, 21, dtype=torch.int64), torch.zeros(2, 21, dtype=torch.int64)
    for b, row in enumerate(ids):
        text[b, :len(row)] = row
        mask[b, 2:len(row)] = 1
    for b, t in ((0, 1), (0, 3), (0, 4), (0, 5), (0, 9), (0, 10), (0, 13), (1, 0), (1, 5), (1, 6), (1, 7)):  # 6 rows, 1 row; 4 rows
        text[b, t], mask[b, t] = IMAGE, 0
    return {"text_ids": text, "text_lens": lens, "loss_mask": mask, "grid_hw": torch.tensor(grid), "patches": torch.rand(44, 48)}


def projection(params):
    names = {"vision_final_layernorm": "vision_final_layernorm", "multi_modal_projector.layer_norm": "mlp1.0", "multi_modal_projector.linear_1": "mlp1.1",
             "multi_modal_projector.linear_2": "mlp1.3"}
    out = {}
    for n, t in params.items():
        for a, b in names.items():
            if n.startswith(a + "."):
                out[b + n[len(a):]] = t.detach()
    return out


def as_in_files(tensors):
    """Names of the composite here."""
    tensors = {n: t for n, t in tensors.items() if "video_patch_projection" not in n and t is not None}
    out = {"vision." + n: t for n, t in check_images.as_in_files({n[len("vision_model."):]: t for n, t in tensors.items() if n.startswith("vision_model.")}).items()}
    out.update(("vision_proj." + n, t) for n, t in projection(tensors).items())
    for n, t in tensors.items():
        if n.startswith("language_model."):
            n = n[len("language_model."):]
            out["llm." + ("backbone" + n[len("model"):] if n.startswith("model.") else n)] = t
    return out


def load(path, dtype):
    model = omni.NemotronH_Omni_Reasoning_V3(config())
    # which normalises pixels; the composite lets its caller do it
    model.vision_model = type(model.vision_model).from_pretrained(path + "/vision", dtype=torch.float32, attn_implementation="eager")
    model.language_model = type(model.language_model).from_pretrained(path + "/llm", dtype=torch.float32, attn_implementation="eager")
    weights = load_file(path + "/vision_projection.safetensors")
    for n, t in model.named_parameters():
        if n.startswith(("multi_modal", "vision_final")):
            t.data = weights[list(projection({n: t}))[0]].clone()
    return model.to(dtype)


def run(model, x, dtype):
    model.vision_model.config.torch_dtype = dtype
    images = torch.cat(model.get_image_features(x["patches"].to(dtype), x["grid_hw"]).pooler_output)
    embeds = model.language_model.get_input_embeddings()(x["text_ids"])
    slots = x["text_ids"] == IMAGE
    embeds = embeds.masked_scatter(slots[..., None].expand_as(embeds), images)
    mask = torch.arange(x["text_ids"].shape[1])[None] < x["text_lens"][:, None]
    target = torch.where((x["loss_mask"] == 1) & mask, x["text_ids"], -100)[:, 1:]
    logits = model.language_model(inputs_embeds=embeds[:, :-1], attention_mask=mask[:, :-1].long(), use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[target != -100], target[target != -100])
    seen = {"image_embeds": images, "bshd/inputs_embeds": embeds[:, :-1], "bshd/logits": logits, "bshd/attention_mask": mask[:, :-1].int()}
    return loss, dict(seen, loss=loss.reshape(1))


def compute(path, dtype, optimizer):
    torch.set_num_threads(1)
    x, model = load_file(path + "/inputs.safetensors"), load(path, dtype)
    params = {n: p for n, p in model.named_parameters() if "video_patch_projection" not in n}
    with casts_to(dtype):
        groups = [{"params": [p for n, p in params.items() if (p.ndim >= 2 and not n.endswith(".bias")) == decays],
                   "weight_decay": optimizer["weight_decay"] if decays else 0.0} for decays in (True, False)]
        opt = torch.optim.AdamW(groups, lr=1.0, betas=tuple(optimizer["betas"]), eps=optimizer["eps"])
        for step, lr in enumerate(optimizer["lr"]):
            opt.zero_grad()
            loss, seen = run(model, x, dtype)
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


def main():
    path = sys.argv[1]
    os.makedirs(path, exist_ok=True)
    make(path)
    optimizer = dict(OPTIMIZER)
    single, double = compute(path, torch.float32, optimizer), compute(path, torch.float64, optimizer)
    limits = {n: {"atol": max(20 * (single[n].double() - double[n].double()).abs().max().item(), 1e-6 * double[n].double().abs().max().item())}
              for n in double if single[n].is_floating_point()}
    save_file({n: t.clone() for n, t in single.items()}, path + "/expected.safetensors")
    with open(path + "/expected.json", "w") as f:
        json.dump({"optimizer": optimizer, "tolerance": limits}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
