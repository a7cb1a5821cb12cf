"""The peer of the training benchmarks: one step (forward, backward, AdamW) in torch eager, two threads.

    python peer_torch.py llama      Llama of 50.5 M parameters, utterances packed to one row, SDPA called once a sequence
    python peer_torch.py encoder    FastConformer of 26.1 M parameters, clips of 10 s
    python peer_torch.py mixed      that FastConformer, clips of mixed lengths, 80 s a step: sorted, in batches padded by a quarter at most
    python peer_torch.py salm       both: encoder padded, LLM packed
    python peer_torch.py nemotron   NemotronH of 52.9 M parameters without experts, packed as the Llama. transformers' own class knows no packs;
                                    this one is written here: the convolution as four shifted products, the scan in chunks of CHUNK (32) rows, all
                                    chunks and heads in batched products, a loop over chunks for the states alone, boundaries as zeros of the decays

PRECISION=bf16-mixed is torch.autocast over weights of fp32, PRECISION=bf16-true a model of bf16; else all is fp32.

Prints one line: name, real tokens (or seconds of audio) per second, median over the steps, and the peak memory. Needs torch and transformers.
The shapes are those of train_bench.c and encoder_bench.c.
"""
import os
import resource
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


HEADS, DIM, GROUPS, STATE, KERNEL = 16, 64, 2, 64, 4
CHUNK = int(os.environ.get("CHUNK", "32"))
segment = None  # of each packed row: the number of its utterance


class RmsNorm(torch.nn.Module):
    def __init__(self, width, groups=1):
        super().__init__()
        self.weight, self.groups = torch.nn.Parameter(torch.ones(width)), groups

    def forward(self, x):
        y = F.rms_norm(x.float().unflatten(-1, (self.groups, -1)), (x.shape[-1] // self.groups,), eps=1e-5).flatten(-2)
        return (self.weight * y).to(x.dtype)


def scan(x, dt, a, b, c, skip):
    """x [T, H, P], dt [T, H] steps, a [H], b, c [T, G, N]; rows of other utterances are not seen. Sums in fp32."""
    t = x.shape[0]
    pad = -t % CHUNK
    seg = F.pad(segment, (0, pad), value=-1).view(-1, CHUNK)
    x, b, c = (F.pad(m.float(), (0, 0, 0, 0, 0, pad)).unflatten(0, (-1, CHUNK)) for m in (x, b, c))
    dt = F.pad(dt.float(), (0, 0, 0, pad)).unflatten(0, (-1, CHUNK))
    v = (x * dt[..., None]).transpose(1, 2)  # [n, H, Q, P]
    s = (dt * a).cumsum(1).transpose(1, 2)  # [n, H, Q]
    same = seg[:, :, None] == seg[:, None, :]
    decay = torch.exp((s[..., :, None] - s[..., None, :]).masked_fill(~(same & torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril())[:, None], -torch.inf))
    b, c = b.transpose(1, 2), c.transpose(1, 2)  # [n, G, Q, N]
    each = x.shape[2] // b.shape[1]
    y = ((c @ b.transpose(-1, -2)).repeat_interleave(each, 1) * decay) @ v
    last = (seg == seg[:, -1:])[:, None] * torch.exp(s[..., -1:] - s)  # what is left of a row at the chunk's end
    own = (v * last[..., None]).transpose(-1, -2) @ b.repeat_interleave(each, 1)  # [n, H, P, N]
    through = torch.exp(s[..., -1]) * (seg[:, :1] == seg[:, -1:])
    goes_on = torch.cat([torch.zeros(1, dtype=torch.bool), seg[1:, 0] == seg[:-1, -1]])
    state, states = torch.zeros_like(own[0]), []
    for i in range(own.shape[0]):
        states.append(state if goes_on[i] else torch.zeros_like(state))
        state = states[-1] * through[i, :, None, None] + own[i]
    first = (seg == seg[:, :1])[:, None] * torch.exp(s)
    y = y + first[..., None] * (c.repeat_interleave(each, 1) @ torch.stack(states).transpose(-1, -2))
    return (y.transpose(1, 2) + skip[:, None] * x).flatten(0, 1)[:t]


class Mamba(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        inner, self.pairs = HEADS * DIM, GROUPS * STATE
        self.parts = [inner, inner + 2 * self.pairs, HEADS]
        self.in_proj, self.out_proj = torch.nn.Linear(width, sum(self.parts), bias=False), torch.nn.Linear(inner, width, bias=False)
        self.conv = torch.nn.Parameter(torch.rand(KERNEL, self.parts[1]) - .5)
        self.conv_bias = torch.nn.Parameter(torch.zeros(self.parts[1]))
        self.dt_bias, self.skip = torch.nn.Parameter(torch.full((HEADS,), -4.)), torch.nn.Parameter(torch.ones(HEADS))
        self.a_log, self.norm = torch.nn.Parameter(torch.arange(1, HEADS + 1.).log()), RmsNorm(inner, GROUPS)

    def forward(self, u):
        z, xbc, dt = self.in_proj(u).split(self.parts, -1)
        y = self.conv_bias + self.conv[-1] * xbc
        for k in range(1, KERNEL):
            seen = (segment[k:] == segment[:-k])[:, None]
            y = y + F.pad(self.conv[-1 - k] * xbc[:-k] * seen, (0, 0, k, 0))
        x, b, c = F.silu(y).split([HEADS * DIM, self.pairs, self.pairs], -1)
        y = scan(x.unflatten(-1, (HEADS, DIM)), F.softplus(dt + self.dt_bias), -self.a_log.exp(), b.unflatten(-1, (GROUPS, STATE)),
                 c.unflatten(-1, (GROUPS, STATE)), self.skip)
        return self.out_proj(self.norm(y.flatten(-2).to(z.dtype) * F.silu(z)))


class Attention(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(width, 3 * width, bias=False), torch.nn.Linear(width, width, bias=False)

    def forward(self, u):
        q, k, v = self.qkv(u).unflatten(-1, (3, 8, -1)).permute(1, 2, 0, 3)[:, None]
        y, _ = attention_per_sequence(self, q, k, v, None)
        return self.out(y[0].flatten(-2))


class Mlp(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 2048, bias=False), torch.nn.Linear(2048, width, bias=False)

    def forward(self, u):
        return self.down(F.relu(self.up(u)).square())


class Nemotron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        kinds = {"M": Mamba, "*": Attention, "-": Mlp}
        self.embed, self.head = torch.nn.Embedding(VOCAB, 512), torch.nn.Linear(512, VOCAB, bias=False)
        self.mixers = torch.nn.ModuleList(kinds[letter](512) for letter in "M-M-M*-M-M-")
        self.norms = torch.nn.ModuleList(RmsNorm(512) for _ in range(12))

    def forward(self, ids, labels):
        h = self.embed(ids)
        for norm, mixer in zip(self.norms, self.mixers):
            h = h + mixer(norm(h))
        return F.cross_entropy(self.head(self.norms[-1](h)).float(), labels)


def nemotron_step(model, rng):
    global segment
    _, lengths = pick(rng)
    n = packed(lengths).shape[1]
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor([int(x) for x in lengths]))
    ids, labels = torch.randint(0, VOCAB, (n,)), torch.randint(0, VOCAB, (n,))
    return (lambda: model(ids, labels)), n


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


def mixed_step(model, rng):
    d = durations(rng, 4096)
    d = np.sort(d[:int(np.searchsorted(np.cumsum(d), 80, side="right"))])
    batches = []
    for frames in (100 * d).astype(int):
        if not batches or frames > 1.25 * batches[-1][0]:
            batches.append([])
        batches[-1].append(int(frames))
    inputs = []
    for frames in batches:
        mask = (torch.arange(frames[-1])[None] < torch.tensor(frames)[:, None]).long()
        inputs.append((torch.randn(len(frames), frames[-1], 80), mask))
    return (lambda: sum(model(input_features=x, attention_mask=mask).last_hidden_state.pow(2).mean() for x, mask in inputs)), float(d.sum())


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
                           "mixed": (encoder, mixed_step, "audio-s/s"), "salm": (Salm, salm_step, "tokens/s"), "nemotron": (Nemotron, nemotron_step, "tokens/s")}[what]
    model = make().to(torch.bfloat16 if PRECISION == "bf16-true" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    rates, amounts, cpu_s = [], 0, 0
    for step in range(STEPS + 1):  # the first one touches fresh memory and is not counted
        loss_of, amount = step_of(model, rng)
        start, cpu = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=PRECISION == "bf16-mixed"):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        if step:
            rates.append(amount / (time.perf_counter() - start))
            amounts, cpu_s = amounts + amount, cpu_s + time.process_time() - cpu
    print(f"torch {torch.__version__} {what} {PRECISION}: {statistics.median(rates):.1f} {unit} (best {max(rates):.1f}), {amounts / cpu_s:.1f} a cpu-second, peak "
          f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
