#!/usr/bin/env python3
"""Rows of numbers and models for a visit to a GPU: small.* and big.*, in the folder that is named."""
import array
import json
import math
import os
import random
import sys
import wave

out = sys.argv[1]


def rows(path, n, lengths, vocab, seed):
    random.seed(seed)
    with open(f"{out}/{path}", "w") as f:
        for i in range(n):
            length, start, step = lengths(), random.randint(1, vocab - 2), random.randint(1, 5)
            # learnable: numbers that count by a small step
            ids = [(start + step * j) % (vocab - 1) + 1 for j in range(length)]
            f.write(json.dumps({"id": f"u{i}", "input_ids": ids}) + "\n")


def model(path, vocab, hidden, layers, heads, kv_heads, inner, head_dim):
    json.dump({"model_type": "llama", "vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers,
               "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": inner, "head_dim": head_dim,
               "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
               "max_position_embeddings": 16384, "hidden_act": "silu"}, open(f"{out}/{path}", "w"))


def recipe(path, llm, stream, steps, packs, encoder=""):
    with open(f"{out}/{path}", "w") as f:
        f.write(f"""seed: 1
model: {{{encoder}llm: {{config: {llm}}}}}
data: {{train: [{stream}]}}
optimizer: {{name: adamw, lr: 1.0e-3, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0.1, clip_norm: 1.0}}
schedule: {{name: cosine, warmup_steps: 3, decay_steps: 1000, min_lr: 1.0e-5}}
train: {{steps: {steps}, packs_per_step: {packs}}}
checkpoint: {{every: 0, keep: 1}}
""")


rows("small.jsonl", 400, lambda: random.randint(3, 200), 1000, 1)
model("small.json", 1000, 256, 4, 4, 2, 512, 64)
recipe("small.yaml", "small.json", "small.s2s", 20, 2)
# one sequence a pack, and packs of some hundred tokens each, as speech has them
rows("long.jsonl", 24, lambda: 8191, 32000, 2)
rows("speech.jsonl", 500, lambda: min(2000, max(40, int(random.lognormvariate(6.2, .6)))), 32000, 3)
model("big.json", 128256, 2048, 16, 32, 8, 8192, 64)
model("part.json", 32000, 2048, 4, 32, 8, 8192, 64)
recipe("long.yaml", "big.json", "long.s2s", 100, 1)
recipe("speech.yaml", "big.json", "speech.s2s", 100, 1)
# a stack of NemotronH without experts: six Mamba layers of 64 heads x 128 with state 128, two of attention, eight MLPs
base = json.load(open(os.path.dirname(os.path.abspath(__file__)) + "/../oracle/models/nemotron_h/config.json"))
kinds = (["linear_attention", "mlp"] * 3 + ["full_attention", "mlp"]) * 2
json.dump({**base, "layers_block_type": kinds, "vocab_size": 32000, "hidden_size": 3072, "intermediate_size": 12288, "num_attention_heads": 24,
           "num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 128, "n_groups": 8, "ssm_state_size": 128, "chunk_size": 128,
           "max_position_embeddings": 16384}, open(f"{out}/mamba.json", "w"))
recipe("mamba.yaml", "mamba.json", "speech.s2s", 100, 1)
recipe("part.yaml", "part.json", "speech.s2s", 8, 1)


def speech(path, n, seconds, seed):
    random.seed(seed)
    words = "one two three four".split()
    with open(f"{out}/{path}.jsonl", "w") as f:
        for i in range(n):
            length, said = int(16000 * seconds()), [random.randrange(4) for _ in range(3)]
            tones = [2 * math.pi * (300 + 250 * said[t * 3 // length]) / 16000 for t in range(length)]
            sound = array.array("h", (int(9000 * math.sin(tones[t] * t) + random.gauss(0, 300)) for t in range(length)))
            with wave.open(f"{out}/{path}{i}.wav", "wb") as w:
                w.setnchannels(1)
                w.setsampwidth(2)
                w.setframerate(16000)
                w.writeframes(sound.tobytes())
            f.write(json.dumps({"audio_filepath": f"{path}{i}.wav", "duration": length / 16000,
                                "text": " ".join(words[k] for k in said)}) + "\n")


def encoder(path, hidden, layers, heads, inner, channels):
    json.dump({"model_type": "parakeet_encoder", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
               "num_key_value_heads": heads, "intermediate_size": inner, "conv_kernel_size": 9, "subsampling_factor": 8,
               "subsampling_conv_channels": channels, "subsampling_conv_kernel_size": 3, "subsampling_conv_stride": 2,
               "num_mel_bins": 80, "attention_bias": True, "convolution_bias": True, "scale_input": False,
               "hidden_act": "silu", "max_position_embeddings": 5000}, open(f"{out}/{path}", "w"))


# a small speech model, and an encoder of the size of FastConformer-Large in front of a small decoder
speech("clips", 12, lambda: random.uniform(.5, 1.5), 4)
speech("talk", 8, lambda: random.uniform(8, 16), 5)
encoder("small-encoder.json", 64, 2, 4, 128, 16)
encoder("encoder.json", 512, 17, 8, 2048, 256)
model("salm.json", 260, 64, 2, 4, 2, 128, 16)
model("decoder.json", 260, 512, 4, 8, 8, 1536, 64)
recipe("salm.yaml", "salm.json", "clips.s2s", 10, 2, "encoder: {config: small-encoder.json}, ")
recipe("encoder.yaml", "decoder.json", "talk.s2s", 100, 1, "encoder: {config: encoder.json}, ")
