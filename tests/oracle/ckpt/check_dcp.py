"""Checkpoints that torch.distributed.checkpoint writes from 1 to 4 processes, in every way it shards: `s2s-ckpt ls --sha256` must list
each tensor whole, `verify` must find nothing, `convert --to safetensors` and `--to torch_dist` must keep each byte.
Exit 0 ok, 1 different, 77 torch is absent."""
import glob
import hashlib
import json
import os
import subprocess
import sys
import tempfile

from tool import need, program

need("torch", "safetensors")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
import ranks  # noqa: E402

NAMES = ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool", "uint16", "uint32", "uint64",
         "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2", "complex64"]


def rand(*shape, dtype=torch.float32, seed=[0]):
    seed[0] += 1
    t = torch.randn(*shape, generator=torch.Generator().manual_seed(seed[0]))
    if dtype == torch.float4_e2m1fn_x2:
        return (t * 50).to(torch.int8).view(dtype)
    if dtype.is_complex:
        return torch.complex(t, -t)
    return t.to(dtype) if dtype.is_floating_point else (t * 50).to(torch.int64).to(dtype)


def digest(t):
    t = t.detach().contiguous()
    raw = t.reshape(-1).view(torch.uint8) if t.numel() else t.new_empty(0, dtype=torch.uint8)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()


def whole(value, name, out):
    if isinstance(value, DTensor):
        out[name] = value.full_tensor()
    elif isinstance(value, torch.Tensor):
        out[name] = value
    elif isinstance(value, dict):
        for k, v in value.items():
            whole(v, "%s.%s" % (name, k) if name else str(k), out)
    elif isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            whole(v, "%s.%d" % (name, i), out)
    return out


def states(world):
    """name -> (state, how it is saved)"""
    mesh = init_device_mesh("cpu", (world,))
    plain = {"w": rand(5, 7), "n": {"list": [rand(2), rand(0, 3), 5], "text": "x", "none": None, "lr": 0.25, "big": 1 << 80},
             "scalar": torch.tensor(2.5), "t": rand(4, 6).t(), "cols": rand(6, 6)[:, 1:3], "step": torch.tensor(7)}
    yield "plain", plain, {}
    yield "dtypes", {n: rand(3, 5, dtype=getattr(torch, n)) for n in NAMES if hasattr(torch, n)}, {}
    tied = rand(9, 4)
    yield "tied", {"a": tied, "b": tied, "row": tied[3]}, {}
    uneven = {}
    for rows in (1, 2, 3, 7, 8):
        for n in ("float32", "bfloat16"):
            uneven["%s.%d.rows" % (n, rows)] = distribute_tensor(rand(rows, 6, dtype=getattr(torch, n)), mesh, [Shard(0)])
            uneven["%s.%d.cols" % (n, rows)] = distribute_tensor(rand(5, rows, dtype=getattr(torch, n)), mesh, [Shard(1)])
        uneven["%d.three" % rows] = distribute_tensor(rand(2, rows, 3), mesh, [Shard(1)])
        uneven["%d.same" % rows] = distribute_tensor(rand(rows, 2), mesh, [Replicate()])
        uneven["%d.vector" % rows] = distribute_tensor(rand(rows), mesh, [Shard(0)])
    yield "sharded", uneven, {}
    yield "threads", uneven, {"thread_count": 3}
    yield "file an item", uneven, {"single_file_per_rank": False}
    if world == 4:
        grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        two = {}
        for rows in (3, 4, 5):
            two["%d.both" % rows] = distribute_tensor(rand(rows, 7), grid, [Shard(0), Shard(1)])
            two["%d.twice" % rows] = distribute_tensor(rand(rows, 3), grid, [Shard(0), Shard(0)])
            two["%d.tp" % rows] = distribute_tensor(rand(rows, 4), grid, [Replicate(), Shard(0)])
        yield "two axes", two, {}
        tp = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 6))
        parallelize_module(tp, grid["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        fully_shard(tp, mesh=grid["dp"])
        yield "fsdp and tp", {"model": get_model_state_dict(tp)}, {}
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3, bias=False))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(rand(2, 7)).sum().backward()
    optimizer.step()
    yield "fsdp2", {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}, {}


def write_all(rank, folder):
    torch.manual_seed(3)
    for what, state, how in states(dist.get_world_size()):
        path = os.path.join(folder, what)
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path, **how))
        want = {k: [list(t.shape), digest(t)] for k, t in whole(state, "", {}).items()}
        if what == "sharded":
            future = dcp.async_save(state, checkpoint_id=os.path.join(folder, "async"))
            future.result()
        if what in ("sharded", "fsdp2"):
            flat = {k: v for k, v in state.items() if isinstance(v, torch.Tensor)} if what == "sharded" else dict(state["model"])
            index = {k: 1 + i % 3 for i, k in enumerate(sorted(flat))}
            dcp.save(flat, storage_writer=HuggingFaceStorageWriter(path + " hf", fqn_to_index_mapping=index, save_distributed=True))
            want_hf = {k: [list(t.shape), digest(t)] for k, t in whole(flat, "", {}).items()}
            if rank == 0:
                json.dump(want_hf, open(path + " hf.json", "w"))
        if rank == 0:
            json.dump(want, open(path + ".json", "w"))
            if what == "sharded":
                json.dump(want, open(os.path.join(folder, "async.json"), "w"))
        dist.barrier()


def run(*args):
    return subprocess.run([program, *args], capture_output=True, text=True)


def nested(folder):
    """the state as torch puts it together again, tensors as digests"""
    with tempfile.NamedTemporaryFile() as file:
        dcp_to_torch_save(folder, file.name)
        state = torch.load(file.name, weights_only=False)
    form = lambda v: ({k: form(x) for k, x in v.items()} if isinstance(v, dict) else [form(x) for x in v] if isinstance(v, (list, tuple))
                      else digest(v) if isinstance(v, torch.Tensor) else repr(v))
    return form(state)


def check(path, bad):
    want = {k: tuple(map(str, v)) for k, v in json.load(open(path + ".json")).items()}
    listed = lambda where: {t["name"]: (str(t["shape"]), t["sha256"]) for t in json.loads(run("ls", "--json", "--sha256", where).stdout or '{"tensors":[]}')["tensors"]}
    for where, out in ((path, None), (path + ".dist", ["convert", "-q", "--to", "torch_dist", "--files", "3"]),
                       (path + ".st", ["convert", "-q", "--to", "safetensors"])):
        made = run(*out, path, where) if out else run("verify", path)
        if made.returncode:
            bad.append("%s: %s" % (where, made.stderr.strip()))
            continue
        got = listed(where)
        for k in sorted(set(got) | set(want)):
            if got.get(k) != want.get(k):
                bad.append("%s: %s: %r, torch has %r" % (where, k, got.get(k), want.get(k)))
    (written,) = glob.glob(path + ".dist/iter_*")
    if os.path.exists(os.path.join(path, ".metadata")) and nested(written) != nested(path):
        bad.append("%s: dcp_to_torch_save nests it otherwise" % written)
    if os.path.exists(path + ".st"):
        back = load_file(path + ".st")
        bad.extend("%s: %s is not what safetensors loads" % (path, k) for k in want if k not in back or digest(back[k]) != want[k][1])


def main():
    bad, n = [], 0
    with tempfile.TemporaryDirectory() as tmp:
        for world in (1, 2, 3, 4):
            folder = os.path.join(tmp, "%d" % world)
            os.mkdir(folder)
            ranks.together(write_all, world, folder)
            for name in sorted(os.listdir(folder)):
                if name.endswith(".json"):
                    check(os.path.join(folder, name[:-5]), bad)
                    n += 1
    print("\n".join(bad[:60]) if bad else "%d checkpoints as torch.distributed.checkpoint has them" % n)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
