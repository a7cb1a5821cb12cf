#!/usr/bin/env python3
"""Makes mixtral and qwen3_moe: tiny decoders with mixtures of experts, as transformers saves them. Qwen3-MoE has a dense layer between
sparse ones and weights that do not sum to one; Mixtral has an expert that no token goes to. check_decoders.py --write DIR does the rest."""
import json
import os
import subprocess
import sys

import torch
from safetensors.torch import save_file
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = dict(vocab_size=62, hidden_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
             pad_token_id=0, initializer_range=0.2, tie_word_embeddings=False)


def make(name, model):
    path = os.path.join(HERE, name)
    model.save_pretrained(path)
    file = os.path.join(path, "generation_config.json")
    if os.path.exists(file):
        os.remove(file)
    with open(os.path.join(path, "config.json")) as f:
        config = json.load(f)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    ids = torch.randint(3, 60, (2, 19))
    mask = torch.ones_like(ids)
    mask[1, 12:] = 0
    ids[1, 12:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, :4] = -100
    save_file({"input_ids": ids, "attention_mask": mask, "labels": labels}, os.path.join(path, "inputs.safetensors"))
    subprocess.run([sys.executable, os.path.join(HERE, "check_decoders.py"), "--write", path], check=True)


torch.manual_seed(11)
mixtral = MixtralForCausalLM(MixtralConfig(**SIZES, intermediate_size=20, num_hidden_layers=2, num_local_experts=4,
                                           num_experts_per_tok=2, rope_parameters={"rope_type": "default", "rope_theta": 1e6}))
with torch.no_grad():
    # the first component of what layer 0 routes is positive in every token
    mixtral.model.embed_tokens.weight[:, 0] = 1
    mixtral.model.layers[0].mlp.gate.weight[3] = 0
    mixtral.model.layers[0].mlp.gate.weight[3, 0] = -20
make("mixtral", mixtral)
make("qwen3_moe", Qwen3MoeForCausalLM(Qwen3MoeConfig(
    **SIZES, intermediate_size=36, moe_intermediate_size=12, num_hidden_layers=3, num_experts=8, num_experts_per_tok=3,
    mlp_only_layers=[1], norm_topk_prob=False, rope_parameters={"rope_type": "default", "rope_theta": 1e4})))
