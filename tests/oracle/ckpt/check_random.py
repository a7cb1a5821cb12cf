"""Checkpoints of random content (random_states.py) in every form that PyTorch writes: `s2s-ckpt ls`, `cat` and `verify` must say what the library
says, and what `convert`, `reshard`, `average` and `diff` make of them with random options, on one rank or several, is loaded by the library and
compared: dtypes, shapes, bytes, nesting. check_random.py [SEEDS [FIRST]]: so many of each kind (12). Exit 0 ok, 1 different, 77 a library is absent."""
import glob
import hashlib
import io
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings

from tool import bad, need, program, run

need("torch", "safetensors", "numpy")
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner  # noqa: E402
from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: E402
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict  # noqa: E402

from random_states import SPELLED, Pieces, boxes, dtensors, file, hugging_face, names_of, nested, partition, shape_of, values  # noqa: E402

F4 = torch.float4_e2m1fn_x2
CASTS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}


def raw(t):
    t = t.detach().clone(memory_format=torch.contiguous_format)
    return t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def told(tensors):
    return {k: [SPELLED[t.dtype], list(t.shape), hashlib.sha256(raw(t)).hexdigest()] for k, t in tensors.items()}


def same(what, got, want):
    bad.extend("%s: %.80r: %r, expected %r" % (what, k, got.get(k), want.get(k)) for k in sorted(set(got) | set(want)) if got.get(k) != want.get(k))


def tool(what, *words, ranks=1):
    """s2s-ckpt, which must go well and have nothing to say"""
    together = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] if ranks > 1 and shutil.which("mpirun") else []
    p = subprocess.run([*together, program, *words], capture_output=True, text=True)
    if p.returncode or p.stderr:
        bad.append("%s: %s: exit %d: %s" % (what, " ".join(words), p.returncode, p.stderr[:400]))
    return p.returncode == 0


def check_listed(what, path, want):
    p = run("ls", "--json", "--sha256", path)
    same(what + ": ls", {t["name"]: [t["dtype"], t["shape"], t["sha256"]] for t in json.loads(p.stdout)["tensors"]} if p.returncode == 0 else {None: p.stderr}, want)


def check_cat(what, path, name, t):
    said = subprocess.run([program, "cat", "--", path, name], capture_output=True).stdout
    if said != raw(t):
        bad.append("%s: cat %.80r: other bytes" % (what, name))
    if not t.dtype.is_complex and t.dtype != F4:
        numbers = [float(x) for x in json.loads(run("cat", "--json", "--", path, name).stdout)["data"]]
        if not torch.equal(torch.tensor(numbers, dtype=torch.float64).nan_to_num(7e77), t.detach().double().reshape(-1).nan_to_num(7e77)):
            bad.append("%s: cat --json %.80r: other numbers" % (what, name))


def load_dist(path):
    stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = {k: torch.empty(v.size, dtype=v.properties.dtype) for k, v in stored.items() if isinstance(v, TensorStorageMetadata)}
    dcp.load(tensors, storage_reader=dcp.FileSystemReader(path), planner=dcp.DefaultLoadPlanner(flatten_state_dict=False), no_dist=True)
    return tensors


def nesting(path):
    """the state as torch puts it together; it cannot do so where a list began with nothing, and must not be able to with ours"""
    state = {}
    form = lambda v: ({repr(k): form(x) for k, x in v.items()} if isinstance(v, dict) else [form(x) for x in v] if isinstance(v, (list, tuple)) else
                      raw(v) if isinstance(v, torch.Tensor) else v.getvalue() if isinstance(v, io.BytesIO) else repr(v))
    try:
        _load_state_dict(state, storage_reader=dcp.FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    except dcp.CheckpointException as e:
        return str(e)[-60:]
    return form(state)


def check_boxes(what, r, path, tensors):
    """other ranks load other boxes of it"""
    state = {k: Pieces(t.detach(), partition(r, [0] * t.dim(), list(t.shape), 3), empty=True) for k, t in tensors.items() if t.numel()}
    dcp.load(state, storage_reader=dcp.FileSystemReader(path), planner=dcp.DefaultLoadPlanner(flatten_state_dict=False), no_dist=True)
    bad.extend("%s: %.80r: box %s %s of %s" % (what, k, o, n, list(t.shape)) for k, t in state.items() for o, n in t.boxes if raw(t.parts[o]) != raw(t.cut(o, n)))


def check_cast(what, got, tensors, dtype):
    for k, t in tensors.items():
        want = t.detach().to(dtype) if t.is_floating_point() and t.dtype.itemsize > 1 else t.detach()
        form = (lambda x: x.double().nan_to_num(7e77).tolist()) if want.is_floating_point() and want.dtype != F4 else raw  # which NaN torch makes depends on its place
        if k not in got or got[k].dtype != want.dtype or got[k].shape != want.shape or form(got[k]) != form(want):
            bad.append("%s: %.80r: not what torch makes of its %s" % (what, k, t.dtype))


def check(what, r, path, tensors):
    want, ranks = told(tensors), r.choice([1, 1, 1, 2, 3])
    check_listed(what, path, want)
    tool(what, "verify", "-q", path)
    for name in r.sample(sorted(want), min(2, len(want))):
        check_cat(what, path, name, tensors[name])
    if not want:
        return
    parts = r.choice([["--files", str(r.randrange(1, 9))], ["--max-shard-size", str(r.choice([1, 3000, 9000]))]])
    out = path + ".out"
    if tool(what, *r.choice([["reshard"], ["convert", "--to", "torch_dist"]]), "-q", *parts, path, out, ranks=ranks):
        how = "%s: %s on %d" % (what, " ".join(parts), ranks)
        check_listed(how, out, want)
        tool(how, "verify", "-q", out)
        tool(how, "diff", "-q", path, out)
        made = (glob.glob(out + "/iter_*") or [out])[0]
        same(how + ": torch", told(load_dist(made)), want)
        check_boxes(how, r, made, tensors)
        if os.path.exists(path + "/.metadata") and nesting(path) != nesting(made):
            bad.append(how + ": nested otherwise")
    dtype = r.choice(list(CASTS))
    if any(t.dtype == F4 and t.dim() == 0 for t in tensors.values()):  # half a byte in a header
        p = run("convert", "-q", "--to", "safetensors", path, out + ".st")
        if p.returncode != 1 or "F4 of safetensors needs a last axis" not in p.stderr:
            bad.append("%s: F4 without an axis: exit %d: %s" % (what, p.returncode, p.stderr))
        return
    if tool(what, "convert", "-q", "--to", "safetensors", "-j", str(r.randrange(1, 4)), path, out + ".st"):
        same(what + ": safetensors", told(load_file(out + ".st")), want)
    if tool(what, "convert", "-q", "--to", "hf", "--dtype", dtype, "--max-shard-size", str(r.choice([1, 100, 5000])), path, out + ".hf", ranks=ranks):
        check_cast(what + ": hf " + dtype, {k: t for f in glob.glob(out + ".hf/*.safetensors") for k, t in load_file(f).items()}, tensors, CASTS[dtype])


# ---- several checkpoints ----


def save_any(r, path, state):
    what = r.randrange(4)
    if what == 0:
        torch.save(state, path)
    elif what == 1:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path, sync_files=False), no_dist=True)
    else:
        save_file(state, path)
    return path


def check_several(what, r, path):
    kinds = {n: (getattr(torch, r.choice(["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool"])), shape_of(r)) for n in names_of(r, 12)}
    states = [{n: values(r, *kind) for n, kind in kinds.items()} for _ in range(r.randrange(2, 5))]
    if r.random() < .5:  # neighbours of the first
        states[1:] = [{n: (t.double() * (1 + 2. ** -r.randrange(1, 60))).to(t.dtype) for n, t in states[0].items()} for _ in states[1:]]
    paths = [save_any(r, "%s%d" % (path, i), s) for i, s in enumerate(states)]
    how, dtype = r.choice(["safetensors", "torch_dist"]), r.choice([None, *CASTS])
    if tool(what, "average", "-q", "--to", how, *(["--dtype", dtype] if dtype else []), *paths, path, ranks=r.choice([1, 1, 2, 3])):
        mean = {n: (sum(s[n].double() for s in states) / len(states) if t.is_floating_point() else t) for n, t in states[0].items()}
        got = load_file(path) if how == "safetensors" else load_dist((glob.glob(path + "/iter_*") or [path])[0])
        for n, t in states[0].items():
            check_cast("%s: average" % what, {n: got[n]}, {n: mean[n]}, CASTS[dtype] if dtype else t.dtype)
    within = r.choice([0, 0, 1e-3, 1e-12, 1e300])
    found = {d["name"]: d for d in json.loads(run("diff", "-q", "--json", "--tolerance", str(within), *paths[:2]).stdout)["differences"]}
    for n, a in states[0].items():
        b = states[1][n]
        by = torch.where((a == b) | (a.isnan() & b.isnan()), 0., (a.double() - b.double()).abs())
        if a.dtype == torch.int64:  # float64 does not have all of its numbers
            by = torch.tensor([float(abs(x - y)) for x, y in zip(a.flatten().tolist(), b.flatten().tolist())], dtype=torch.float64)
        bits = [x != y for x, y in zip(*[[raw(x)[i:i + x.itemsize] for i in range(0, x.nbytes, x.itemsize)] for x in (a, b)])]
        past = int((~(by <= within)).sum()) if within else sum(bits)
        if found.get(n, {"elements": 0})["elements"] != past:
            bad.append("%s: diff within %g: %.80r: %r, expected %d" % (what, within, n, found.get(n), past))
        elif past and not by.isnan().any() and a.dtype != torch.int64 and float(found[n]["max_abs"]) != float(by.max()):
            bad.append("%s: diff: %.80r: at most %r, expected %r" % (what, n, found[n]["max_abs"], float(by.max())))


def main():
    n, first = [int(a) for a in sys.argv[1:3] + ["12", "0"][len(sys.argv) - 1:]]
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for seed in range(first, first + n):
        for make in (file, nested, boxes, dtensors, hugging_face, None):
            r = random.Random("%s %d" % (make and make.__name__, seed))
            with tempfile.TemporaryDirectory() as tmp:
                path = os.path.join(tmp, "it")
                if make:
                    check("%s %d" % (make.__name__, seed), r, *make(r, path))
                else:
                    check_several("several %d" % seed, r, path)
    print("\n".join(bad[:60]) if bad else "%d checkpoints of random content as PyTorch and safetensors have them" % (6 * n))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
