#!/usr/bin/env python3
"""Steps of torch on the 1.24 B decoder of a visit: a pack of speech a step, bf16 by autocast over fp32 weights, varlen_attn, fused AdamW; eager and
compiled. Prints tokens/s, the same MFU as report.py, and the memory that tensors had at most."""
import random
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.varlen import varlen_attn

N, D, LAYERS, HEADS, KV, DIM, INNER, VOCAB = 8192, 2048, 16, 32, 8, 64, 8192, 128256


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(D, eps=1e-5), nn.RMSNorm(D, eps=1e-5)
        self.q, self.k, self.v = (nn.Linear(D, h * DIM, bias=False) for h in (HEADS, KV, KV))
        self.o = nn.Linear(HEADS * DIM, D, bias=False)
        self.gate, self.up, self.down = nn.Linear(D, INNER, bias=False), nn.Linear(D, INNER, bias=False), nn.Linear(INNER, D, bias=False)

    def forward(self, h, cos, sin, cu, longest):
        def rotate(x):
            a, b = x.chunk(2, -1)
            return (x * cos + torch.cat((-b, a), -1) * sin).to(x.dtype)
        x = self.norm1(h)
        q, k, v = (f(x).view(N, -1, DIM) for f in (self.q, self.k, self.v))
        # varlen_attn wants as many heads of keys as of queries
        q, k, v = rotate(q), rotate(k).repeat_interleave(HEADS // KV, 1), v.repeat_interleave(HEADS // KV, 1)
        try:
            y = varlen_attn(q, k, v, cu, cu, longest, longest, window_size=(-1, 0))
        except TypeError:
            y = varlen_attn(q, k, v, cu, cu, longest, longest, is_causal=True)
        h = h + self.o(y.reshape(N, -1))
        x = self.norm2(h)
        return h + self.down(F.silu(self.gate(x)) * self.up(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(D, eps=1e-5)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, ids, labels, positions, cu, longest):
        freq = 500000.0 ** (-torch.arange(0, DIM, 2, device=ids.device) / DIM)
        angles = (positions[:, None] * freq).repeat(1, 2)[:, None]
        cos, sin = angles.cos(), angles.sin()
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h, cos, sin, cu, longest)
        return F.cross_entropy(F.linear(self.norm(h), self.embed.weight).float(), labels)


def pack(lengths):
    """Lengths that fill N slots, the last one cut."""
    cu = [0]
    while cu[-1] < N:
        cu.append(min(N, cu[-1] + lengths()))
    ids = torch.randint(1, 32000, (N,), device="cuda")
    positions = torch.cat([torch.arange(b - a) for a, b in zip(cu, cu[1:])]).cuda()
    longest = max(b - a for a, b in zip(cu, cu[1:]))
    squares = sum((b - a) ** 2 for a, b in zip(cu, cu[1:]))
    return (ids, ids.roll(-1), positions, torch.tensor(cu, dtype=torch.int32, device="cuda"), longest), squares


def run(name, model, step_model, lengths, seconds):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    params = sum(p.numel() for p in model.parameters())
    random.seed(3)
    (ids, labels, positions, cu, _), squares = pack(lengths)
    times, end = [], time.time() + 600
    torch.cuda.reset_peak_memory_stats()
    longest = 2000 if squares < N * N / 2 else N
    while time.time() < end and len(times) < 14:
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = step_model(ids, labels, positions, cu, longest)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        if len(times) == 1: # that may have compiled
            end = time.time() + seconds
    step = sorted(times[3:])[len(times[3:]) // 2] if len(times) > 4 else times[-1]
    flops = 6 * params * N + 6 * LAYERS * HEADS * DIM * squares
    print(f"torch {name:<24} {len(times)} steps {N / step:9.0f} tokens/s {flops / step / 1e12:7.1f} TFLOP/s  MFU {100 * flops / step / 989e12:5.1f} % of 989"
          f"  peak {torch.cuda.max_memory_allocated() / 1e9:.1f} GB",
          flush=True)


def main():
    torch.manual_seed(1)
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    model = Decoder().cuda()
    speech = lambda: min(2000, max(40, int(random.lognormvariate(6.2, .6))))
    for name, step_model in (("compiled", torch.compile(model)), ("eager", model)):
        for kind, lengths in (("speech pack", speech), ("one sequence", lambda: N)):
            try:
                run(f"{name}, {kind}", model, step_model, lengths, seconds)
            except Exception as e:
                print(f"torch {name}, {kind}: {str(e).splitlines()[0][:200]}", flush=True)


main()
