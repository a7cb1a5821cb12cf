"""The peer of the training benchmarks: one step (forward, backward, AdamW) in torch eager, two threads.

    python peer_torch.py llama      Llama of 50.5 M parameters, utterances packed to one row, SDPA called once a sequence
    python peer_torch.py encoder    FastConformer of 26.1 M parameters, clips of 10 s
    python peer_torch.py salm       both: encoder padded, LLM packed

PRECISION=bf16-mixed is torch.autocast over weights of fp32, PRECISION=bf16-true a model of bf16; else all is fp32.

Prints one line: name, real tokens (or seconds of audio) per second, median over the steps. Needs torch and transformers.
The shapes are those of train_bench.c and encoder_bench.c.
"""
import os
import statistics
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, ParakeetEncoder, ParakeetEncoderConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

VOCAB = 32000
STEPS = int(os.environ.get("STEPS", "3"))
TOKENS = int(os.environ.get("TOKENS", "2048"))
PRECISION = os.environ.get("PRECISION", "fp32")
cu_seqlens = [0]


def attention_per_sequence(module, q, k, v, mask, scaling=None, dropout=0.0, **kwargs):
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    out = [F.scaled_dot_product_attention(q[:, :, s:e], k[:, :, s:e], v[:, :, s:e], is_causal=True, scale=scaling)
           for s, e in zip(cu_seqlens[:-1], cu_seqlens[1:])]
    return torch.cat(out, 2).transpose(1, 2).contiguous(), None


def durations(rng, n):
    """Seconds: short commands, conversational turns, read sentences; 0.5 to 30 s."""
    kind = rng.choice(3, n, p=[.25, .45, .30])
    d = np.where(kind == 0, rng.lognormal(0.5, .5, n),
                 np.where(kind == 1, rng.lognormal(1.8, .6, n), rng.normal(14, 2.5, n)))
    return np.clip(d, .5, 30)


def pick(rng):
    """Durations and LLM lengths of one step of about TOKENS real tokens: 12.5 frames/s, some 3.6 tokens/s, 16 of prompt."""
    d = durations(rng, 4096)
    lengths = (np.ceil(d * 12.5) + np.ceil(d * 3.6 * rng.uniform(.7, 1.3, d.size)) + 16).astype(int)
    n = int(np.searchsorted(np.cumsum(lengths), TOKENS, side="right"))
    return d[:n], lengths[:n]


def llama():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=512, num_hidden_layers=10, num_attention_heads=8, num_key_value_heads=8,
        intermediate_size=1536, tie_word_embeddings=True, max_position_embeddings=8192, use_cache=False,
        attn_implementation="per_sequence"))


def encoder():
    return ParakeetEncoder(ParakeetEncoderConfig(
        hidden_size=256, num_hidden_layers=16, num_attention_heads=4, intermediate_size=1024,
        subsampling_conv_channels=256, num_mel_bins=80, dropout=0., layerdrop=0., activation_dropout=0.,
        attention_dropout=0.))


def packed(lengths):
    cu_seqlens[:] = [0] + [int(x) for x in np.cumsum(lengths)]
    return torch.cat([torch.arange(int(n)) for n in lengths])[None]


def llama_step(model, rng):
    _, lengths = pick(rng)
    positions = packed(lengths)
    ids = torch.randint(0, VOCAB, positions.shape)
    return (lambda: model(input_ids=ids, position_ids=positions, labels=ids).loss), int(lengths.sum())


def encoder_step(model, rng):
    n = 4
    x, mask = torch.randn(n, 1000, 80), torch.ones(n, 1000, dtype=torch.long)
    return (lambda: model(input_features=x, attention_mask=mask).last_hidden_state.pow(2).mean()), n * 10


class Salm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.proj, self.llm = encoder(), torch.nn.Linear(256, 512), llama()


def salm_step(model, rng):
    d, lengths = pick(rng)
    mel_frames = np.ceil(d * 100).astype(int)
    x = torch.randn(len(d), int(mel_frames.max()), 80)
    mask = (torch.arange(x.shape[1])[None] < torch.tensor(mel_frames)[:, None]).long()
    positions = packed(lengths)
    labels = torch.randint(0, VOCAB, positions.shape)

    def loss():
        y = model.proj(model.encoder(input_features=x, attention_mask=mask).last_hidden_state)
        frames = np.minimum(np.ceil(d * 12.5).astype(int), y.shape[1])
        embed = model.llm.get_input_embeddings()
        rows = [torch.cat([y[i, :frames[i]], embed(torch.randint(0, VOCAB, (int(lengths[i] - frames[i]),)))])
                for i in range(len(d))]
        return model.llm(inputs_embeds=torch.cat(rows)[None], position_ids=positions, labels=labels).loss
    return loss, int(lengths.sum())


def main():
    what = sys.argv[1]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    ALL_ATTENTION_FUNCTIONS.register("per_sequence", attention_per_sequence)
    make, step_of, unit = {"llama": (llama, llama_step, "tokens/s"), "encoder": (encoder, encoder_step, "audio-s/s"),
                           "salm": (Salm, salm_step, "tokens/s")}[what]
    model = make().to(torch.bfloat16 if PRECISION == "bf16-true" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    rates = []
    for step in range(STEPS + 1):  # the first one touches fresh memory and is not counted
        loss_of, amount = step_of(model, rng)
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=PRECISION == "bf16-mixed"):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        if step:
            rates.append(amount / (time.perf_counter() - start))
    print(f"torch {torch.__version__} {what} {PRECISION}: {statistics.median(rates):.1f} {unit} (best {max(rates):.1f})")


if __name__ == "__main__":
    main()
