#!/usr/bin/env python3
"""Makes mistral, qwen2_window and llama_{linear,dynamic,yarn,longrope,partial}: tiny decoders with windows shorter than their sequences and
with scaled positions, as transformers saves them. check_decoders.py --write DIR does the rest."""
import json
import os
import subprocess
import sys

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = dict(vocab_size=62, hidden_size=16, num_attention_heads=2, num_key_value_heads=1, intermediate_size=12, num_hidden_layers=2,
             pad_token_id=0, initializer_range=0.3)
LENGTHS = (19, 15, 9)


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
    ids = torch.randint(3, 62, (len(LENGTHS), max(LENGTHS)))
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    ids = ids * mask
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, :4] = -100
    save_file({"input_ids": ids, "attention_mask": mask, "labels": labels}, os.path.join(path, "inputs.safetensors"))
    subprocess.run([sys.executable, os.path.join(HERE, "check_decoders.py"), "--write", path], check=True)


def llama(name, positions=64, head_dim=8, **rope):
    make("llama_" + name, LlamaForCausalLM(LlamaConfig(**SIZES, head_dim=head_dim, max_position_embeddings=positions,
                                                       rope_parameters={"rope_theta": 100.0, **rope})))


torch.manual_seed(12)
make("mistral", MistralForCausalLM(MistralConfig(**SIZES, head_dim=8, sliding_window=5, rope_parameters={"rope_type": "default", "rope_theta": 1e4})))
# the first layer sees everything; every setting that yarn has
make("qwen2_window", Qwen2ForCausalLM(Qwen2Config(
    **SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1, max_position_embeddings=256,
    rope_parameters={"rope_type": "yarn", "rope_theta": 10.0, "factor": 3.0, "original_max_position_embeddings": 64, "beta_fast": 3, "beta_slow": 0.6,
                     "mscale": 1.4, "mscale_all_dim": 0.6, "truncate": False})))
llama("linear", rope_type="linear", factor=3.0)
# of the three rows one is short
llama("dynamic", positions=12, rope_type="dynamic", factor=2.5)
llama("yarn", positions=256, rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
llama("longrope", positions=24, rope_type="longrope", short_factor=[1.0, 1.1, 1.2, 1.4], long_factor=[1.5, 2.0, 3.0, 5.0], original_max_position_embeddings=12)
llama("partial", head_dim=12, rope_type="default", partial_rotary_factor=0.5)
