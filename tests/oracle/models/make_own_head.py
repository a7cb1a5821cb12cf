#!/usr/bin/env python3
"""Makes llama_own_head and gemma1_own_head: the configs tie the output layer to the embedding (one says so, the other's class
does), the files hold another matrix for it. transformers keeps both and warns. check_decoders.py --write DIR does the rest."""
import json
import os
import subprocess
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
             head_dim=8, max_position_embeddings=64, pad_token_id=0, initializer_range=0.1)


def make(name, model, says_so):
    path = os.path.join(HERE, name)
    model.save_pretrained(path)
    file = os.path.join(path, "model.safetensors")
    weights = load_file(file)
    weights["lm_head.weight"] = torch.randn(weights["model.embed_tokens.weight"].shape) * 0.1
    save_file(weights, file, metadata={"format": "pt"})
    config = json.load(open(os.path.join(path, "config.json")))
    config.pop("tie_word_embeddings", None)
    if says_so:
        config["tie_word_embeddings"] = True
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    if os.path.exists(os.path.join(path, "generation_config.json")):
        os.remove(os.path.join(path, "generation_config.json"))
    ids = torch.randint(3, 40, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    ids[1, 6:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, :2] = -100
    save_file({"input_ids": ids, "attention_mask": mask, "labels": labels}, os.path.join(path, "inputs.safetensors"))
    subprocess.run([sys.executable, os.path.join(HERE, "check_decoders.py"), "--write", path], check=True)


torch.manual_seed(7)
make("llama_own_head", LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)), True)
make("gemma1_own_head", GemmaForCausalLM(GemmaConfig(**SIZES, tie_word_embeddings=True)), False)
