#!/usr/bin/env python3
"""Parameters that s2s-check --report counts from a config.json against those of the model that transformers builds from it (on the
meta device: no memory is needed). Sizes of public models and small odd ones of every family that is known.

Exit status 0 all agree, 1 one does not, 77 without transformers.
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.abspath(os.environ.get("S2S_BIN", os.path.join(HERE, "../../../bin"))) + "/s2s-check"


def sizes(model_type, hidden, layers, heads, kv_heads, ffn, vocab, tied=False, **more):
    return dict(model_type=model_type, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
                intermediate_size=ffn, vocab_size=vocab, tie_word_embeddings=tied, **more)


# name, config, parameters in billions as published (to a percent)
MODELS = [
    ("Llama-3-8B", sizes("llama", 4096, 32, 32, 8, 14336, 128256), 8.03),
    ("Llama-3-70B", sizes("llama", 8192, 80, 64, 8, 28672, 128256), 70.6),
    ("Llama-3.2-1B", sizes("llama", 2048, 16, 32, 8, 8192, 128256, tied=True), 1.24),
    ("Mistral-7B", sizes("mistral", 4096, 32, 32, 8, 14336, 32000), 7.24),
    ("Mixtral-8x7B", sizes("mixtral", 4096, 32, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2), 46.7),
    ("Qwen2.5-7B", sizes("qwen2", 3584, 28, 28, 4, 18944, 152064), 7.62),
    ("Qwen3-1.7B", sizes("qwen3", 2048, 28, 16, 8, 6144, 151936, tied=True, head_dim=128), 1.72),
    ("Qwen3-30B-A3B", sizes("qwen3_moe", 2048, 48, 32, 4, 6144, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
                            moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[]), 30.5),
    ("Qwen1.5-MoE-A2.7B", sizes("qwen2_moe", 2048, 24, 16, 16, 5632, 151936, num_experts=60, num_experts_per_tok=4,
                                moe_intermediate_size=1408, shared_expert_intermediate_size=5632, decoder_sparse_step=1), 14.3),
    ("DeepSeek-V3", sizes("deepseek_v3", 7168, 61, 128, 128, 18432, 129280, moe_intermediate_size=2048, n_routed_experts=256,
                          n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=3, q_lora_rank=1536, kv_lora_rank=512,
                          qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_group=8, topk_group=4), 671),
    ("gemma-2b", sizes("gemma", 2048, 18, 8, 1, 16384, 256000, tied=True, head_dim=256), 2.51),
    ("Nemotron-H-8B", dict(model_type="nemotron_h", hidden_size=4096, num_hidden_layers=52, num_attention_heads=32, num_key_value_heads=8,
                           head_dim=128, intermediate_size=21504, vocab_size=131072, tie_word_embeddings=False, mamba_num_heads=128,
                           mamba_head_dim=64, n_groups=8, ssm_state_size=128, conv_kernel=4,
                           hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"), 8.10),
    ("odd qwen3_moe", sizes("qwen3_moe", 96, 6, 6, 2, 200, 1000, tied=True, head_dim=10, num_experts=5, num_experts_per_tok=2,
                            moe_intermediate_size=24, decoder_sparse_step=2, mlp_only_layers=[3]), None),
    ("odd llama", sizes("llama", 96, 3, 6, 6, 200, 999, attention_bias=True, mlp_bias=True), None),
    ("odd deepseek_v2", sizes("deepseek_v2", 96, 3, 4, 4, 200, 999, moe_intermediate_size=24, n_routed_experts=8, n_shared_experts=2,
                              num_experts_per_tok=2, first_k_dense_replace=1, q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=12,
                              qk_rope_head_dim=8, v_head_dim=10, aux_loss_alpha=0.001), None),
]


def counted(config):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        run = subprocess.run([PROGRAM, "--json", "--report", "--model-config", path, os.path.join(HERE, "slm.yaml")],
                             capture_output=True, text=True)
    return json.loads(run.stdout)["files"][0]["parameters"]


def built(config):
    config = dict(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
    # what balances the experts' load is a buffer there, and a parameter of the checkpoint
    extra = sum(b.numel() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias"))
    return sum(p.numel() for p in model.parameters()) + extra


def main():
    n_faults = 0
    for name, config, billions in MODELS:
        ours, theirs = counted(config), built(config)
        wrong = ours != theirs or (billions and abs(theirs / 1e9 / billions - 1) > 0.01)
        n_faults += bool(wrong)
        print("%-18s %14s %14d%s" % (name, ours, theirs, "  DIFFERENT" if wrong else ""))
    return 1 if n_faults else 0


if __name__ == "__main__":
    sys.exit(main())
