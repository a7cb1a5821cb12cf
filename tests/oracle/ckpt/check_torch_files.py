"""Files of torch.save in every form that PyTorch writes: `s2s-ckpt ls --sha256` must list each tensor with the bytes that torch.load
gives, `convert --to safetensors` must keep them. Exit 0 ok, 1 different, 77 torch is absent."""
import argparse
import collections
import enum
import functools
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
    from safetensors.torch import load_file
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)
from tool import program

bad, done, unread = [], 0, 0
gen = torch.Generator().manual_seed(7)


class Color(enum.Enum):
    RED = 1


def digest(t):
    t = t.detach().contiguous()
    raw = t.reshape(-1).view(torch.uint8) if t.numel() else t.new_empty(0, dtype=torch.uint8)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()


def flatten(value, name, out):
    if isinstance(value, torch.Tensor):
        out[name or "tensor"] = value
    elif isinstance(value, dict):
        for key, v in value.items():
            flatten(v, "%s.%s" % (name, key) if name else str(key), out)
    elif isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            flatten(v, "%s.%d" % (name, i) if name else str(i), out)
    return out


def check(what, value, tmp, **how):
    global done, unread
    path = os.path.join(tmp, "%d.pt" % done)
    done += 1
    torch.save(value, path, **how)
    try:
        want = flatten(torch.load(path, weights_only=False), "", {})
    except AttributeError:
        unread += 1  # PyTorch cannot read back what it wrote: new dtypes in the old form
        return
    run = subprocess.run([program, "ls", "--json", "--sha256", path], capture_output=True, text=True)
    if run.returncode:
        bad.append("%s: %s" % (what, run.stderr.strip()))
        return
    got = {t["name"]: (t["shape"], t["sha256"]) for t in json.loads(run.stdout)["tensors"]}
    expected = {k: (list(t.shape), digest(t)) for k, t in want.items()}
    for k in sorted(set(got) | set(expected)):
        if got.get(k) != expected.get(k):
            bad.append("%s: %s: %r, torch has %r" % (what, k, got.get(k), expected.get(k)))
    run = subprocess.run([program, "verify", path], capture_output=True, text=True)
    if run.returncode:
        bad.append("%s: verify: %s" % (what, run.stderr.strip()))
    if not want:
        return
    out = path + ".safetensors"
    run = subprocess.run([program, "convert", "-q", "--to", "safetensors", path, out], capture_output=True, text=True)
    if any(t.dtype == torch.complex128 for t in want.values()):
        if run.returncode != 1 or "which safetensors lacks" not in run.stderr or os.path.exists(out):
            bad.append("%s: convert: complex128 was not refused: %s" % (what, run.stderr))
        return
    if run.returncode:
        bad.append("%s: convert: %s" % (what, run.stderr.strip()))
        return
    back = load_file(out)
    for k in want:
        if k not in back or back[k].shape != want[k].shape or digest(back[k]) != digest(want[k]):
            bad.append("%s: %s: other bytes in safetensors" % (what, k))


def rand(*shape, dtype=torch.float32):
    t = torch.randn(*shape, generator=gen)
    if dtype == getattr(torch, "float4_e2m1fn_x2", None):
        return (t * 50).to(torch.int8).view(dtype)
    if dtype.is_complex:
        return torch.complex(t, t.flip(0) if t.ndim else t).to(dtype)
    return t.to(dtype) if dtype.is_floating_point else (t * 50).to(torch.int64).to(dtype)


def random_tree(depth, rng):
    kind = rng.randrange(9 if depth else 6)
    base = rand(rng.randrange(1, 9), rng.randrange(1, 9))
    leaves = [base, base.t(), base[::2], base[:, 1:], base.expand(3, *base.shape), rng.choice([None, 1, 2.5, "text", True, b"bytes"])]
    if kind < 6:
        return leaves[kind]
    n = rng.randrange(1, 4)
    if kind == 6:
        return {rng.choice(["a", "b", "weight", 3, "x.y"]) if i == 0 else "k%d" % i: random_tree(depth - 1, rng) for i in range(n)}
    return (list if kind == 7 else tuple)(random_tree(depth - 1, rng) for _ in range(n))


names = ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool", "uint16", "uint32", "uint64",
         "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "complex64", "complex128"]
with tempfile.TemporaryDirectory() as tmp:
    for legacy in (False, True):
        how = {"_use_new_zipfile_serialization": not legacy}
        tag = "legacy " if legacy else "zip "
        dtypes = {n: rand(3, 5, dtype=getattr(torch, n)) for n in names if hasattr(torch, n)}
        for n, t in dtypes.items():
            check(tag + n, {n: t}, tmp, **how)
        base = rand(6, 8)
        check(tag + "views", {"whole": base, "t": base.t(), "rows": base[1:4], "cols": base[:, 2:5], "step": base[::2, ::3], "row": base[2],
                              "one": base[2, 3], "expand": base[:1].expand(4, 8), "perm": rand(2, 3, 4).permute(2, 0, 1), "same": base,
                              "flat": base.reshape(-1)[5:9], "empty": base[:0], "diag": base.diagonal()}, tmp, **how)
        check(tag + "scalars and empties", {"zero_d": torch.tensor(3.5), "none": torch.empty(0), "n": torch.empty(0, 7), "m": torch.empty(4, 0, 2)}, tmp, **how)
        check(tag + "a bare tensor", rand(3, 2), tmp, **how)
        check(tag + "a list", [rand(2), rand(3), [rand(1)]], tmp, **how)
        check(tag + "a module's state", torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.LSTM(3, 2)).state_dict(), tmp, **how)
        p = torch.nn.Parameter(rand(4, 4))
        check(tag + "parameters", {"p": p, "buffer": torch.nn.Buffer(rand(2)), "frozen": torch.nn.Parameter(rand(3), requires_grad=False)}, tmp, **how)
        model = torch.nn.Linear(5, 4)
        for opt in (torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)):
            model(rand(2, 5)).sum().backward()
            opt.step()
            check(tag + "an optimizer", {"model": model.state_dict(), "optimizer": opt.state_dict(), "epoch": 3, "loss": 0.25}, tmp, **how)
        check(tag + "odd keys", collections.OrderedDict([("a b", rand(1)), ("ünï", rand(2)), ("deep.name", rand(1)), (7, rand(2)), ("", rand(1))][:4]), tmp, **how)
        check(tag + "arguments", {"args": argparse.Namespace(lr=0.1, dtype=torch.bfloat16, device=torch.device("cpu"), shape=torch.Size([1, 2]),
                                                             act=torch.nn.functional.silu, color=Color.RED, part=functools.partial(max, 1)), "w": rand(2)},
              tmp, **how)
        check(tag + "numpy", {"scalar": np.float64(2.5), "int": np.int64(3), "array": np.arange(6).reshape(2, 3), "w": rand(2)}, tmp, **how)
        check(tag + "bytes, sets, big numbers", {"b": b"\0\1\2", "set": {1, 2}, "big": 1 << 100, "neg": -(1 << 70), "inf": float("inf"), "io": io.BytesIO(b"abc"),
                                              "frozen": frozenset([3]), "complex": 1 + 2j, "w": rand(2), "slice": slice(1, 2), "range": None}, tmp, **how)
        check(tag + "default dict", {"d": collections.defaultdict(list, {"k": [rand(2)]}), "c": collections.Counter("aab")}, tmp, **how)
        for protocol in (2, 3, 4, 5):
            check(tag + "protocol %d" % protocol, {"w": rand(3, 4), "n": {"x": [1, "s", None, rand(2)]}}, tmp, pickle_protocol=protocol, **how)
        check(tag + "many", {"layer.%d.weight" % i: rand(2, 3) for i in range(600)}, tmp, **how)
        shared = rand(20)
        check(tag + "one storage", {"t%d" % i: shared[i:i + 3] for i in range(10)}, tmp, **how)
        rng = random.Random(11)
        for i in range(60):
            check(tag + "random tree %d" % i, {"root": random_tree(3, rng)}, tmp, **how)

print("\n".join(bad[:60]) if bad else "%d files as torch.load has them, %d that it cannot read" % (done - unread, unread))
sys.exit(bool(bad))
