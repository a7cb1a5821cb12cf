"""What runs under a release of PyTorch for check_torch_versions.py, which asks for one of:

    torch_worker.py save WORLD FOLDER    every kind of state, saved by torch.distributed.checkpoint from WORLD processes
    torch_worker.py files FOLDER         every kind of object, saved by torch.save
    torch_worker.py load LIST.json       [[kind, folder or file, truth]..]: loads each and holds it against what was saved

Beside each checkpoint NAME lies NAME.truth.json: {"tensors": {name: [shape, sha256]}, "objects": names, where it is known which there
are, "refuse": text that the refusal must have, where there must be one, "lost": what --strict must say instead}. What a release lacks it does not save."""
import argparse
import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import io
import json
import os
import pathlib
import random
import socket
import sys
import uuid
import warnings

warnings.simplefilter("ignore")
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed._shard.sharded_tensor import Shard as Piece
from torch.distributed._shard.sharded_tensor import ShardedTensor, ShardedTensorMetadata, ShardMetadata, TensorProperties
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
except ImportError:  # 2.4
    from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_tensor
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before 2.6
    from torch.distributed._composable.fsdp import fully_shard

RELEASE = tuple(int(x) for x in torch.__version__.split("+")[0].split(".")[:2])
NAMES = ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool", "uint16", "uint32", "uint64", "float8_e4m3fn",
         "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "complex64", "complex128"]
gen = torch.Generator()


def rand(*shape, dtype=torch.float32):
    t = torch.randn(*shape, generator=gen)
    if dtype == getattr(torch, "float4_e2m1fn_x2", None):
        return (t * 50).to(torch.int8).view(dtype)
    if dtype.is_complex:
        return torch.complex(t, t.flip(0) * 3 if t.ndim else t).to(dtype)
    return t.to(dtype) if dtype.is_floating_point else (t * 50).to(torch.int64).to(dtype)


def saves(name):
    """whether this release has the dtype, and a form for it in its files"""
    try:
        torch.save(rand(1, dtype=getattr(torch, name)), io.BytesIO())
        return True
    except (AttributeError, KeyError):
        return False


def digest(t):
    t = t.detach().resolve_conj().resolve_neg().contiguous()
    raw = t.reshape(-1).view(torch.uint8) if t.numel() else t.new_empty(0, dtype=torch.uint8)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()


def joined(t):
    """a ShardedTensor as one tensor, on every rank"""
    out = torch.zeros(t.size(), dtype=t.dtype)
    for piece in t.local_shards():
        out[tuple(slice(o, o + n) for o, n in zip(piece.metadata.shard_offsets, piece.metadata.shard_sizes))] = piece.tensor
    dist.all_reduce(out)
    return out


def whole(value, name, out, into=(dict, list, tuple)):
    """the names that DCP (which does not look into tuples) and s2s-ckpt give to the tensors of a state"""
    if isinstance(value, ShardedTensor):
        out[name] = joined(value)
    elif isinstance(value, DTensor):
        out[name] = value.full_tensor()
    elif isinstance(value, torch.Tensor):
        out[name or "tensor"] = value
    elif isinstance(value, into):
        for k, v in value.items() if isinstance(value, dict) else enumerate(value):
            whole(v, "%s.%s" % (name, k) if name else str(k), out, into)
    return out


def tell(path, truth):
    with open(path + ".truth.json", "w", encoding="utf-8") as f:
        json.dump(truth, f)


def digests(state, **how):
    return {k: [list(t.shape), digest(t)] for k, t in whole(state, "", {}, **how).items()}


def truth_of(state, path, rank, refuse=None):
    truth = {"tensors": digests(state, into=(dict, list))}
    if refuse:
        truth["refuse"] = refuse
    elif os.path.exists(os.path.join(path, ".metadata")):
        stored = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
        truth["objects"] = sorted(k for k, v in stored.items() if not isinstance(v, TensorStorageMetadata))
        if {k for k, v in stored.items() if isinstance(v, TensorStorageMetadata)} != set(truth["tensors"]):
            raise ValueError("%s: these names are not as DCP makes them: %s" % (path, sorted(stored)))
    if rank == 0:
        tell(path, truth)


# ---- torch.distributed.checkpoint ----


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(7, 10), torch.nn.LayerNorm(10), torch.nn.Linear(10, 3, bias=False)
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3))
        self.scale = torch.nn.Parameter(torch.ones(1))


def trained(kind=torch.optim.AdamW, wrap=None, dtype=torch.float32):
    """a model and its optimizer behind one step, without a forward pass: gloo lacks what that needs in old releases"""
    model = Model().to(dtype)
    for p in model.parameters():
        p.data.copy_(rand(*p.shape))
    model = (wrap(model) if wrap else None) or model
    optimizer = kind(model.parameters(), lr=0.1)
    for p in model.parameters():
        p.grad = torch.zeros_like(p) + 0.5
    optimizer.step()
    return model, optimizer


class Run:
    """what training scripts save beside model and optimizer: a Stateful object"""

    def state_dict(self):
        return {"step": 7, "seen": {"tokens": 1 << 40}, "mask": torch.tensor([True, False])}

    def load_state_dict(self, state):
        pass


def pieces(rank, world, rows, cols=None):
    """a ShardedTensor of uneven pieces, in rows or (world 4) in a grid"""
    t = rand(*rows) if isinstance(rows, tuple) else rand(rows, 5)
    edges = [0] + [t.shape[0] * (i + 1) * (i + 2) // (world * (world + 1)) for i in range(world)]
    boxes = [([edges[i], 0], [edges[i + 1] - edges[i], t.shape[1]]) for i in range(world)]
    if cols:
        boxes = [([r, c], [min(t.shape[0] - r, cols), min(t.shape[1] - c, cols)]) for r in range(0, t.shape[0], cols) for c in range(0, t.shape[1], cols)]
    metadata = [ShardMetadata(o, n, "rank:%d/cpu" % (i % world)) for i, (o, n) in enumerate(boxes) if all(n)]
    mine = [Piece(t[tuple(slice(o, o + n) for o, n in zip(m.shard_offsets, m.shard_sizes))].clone(), m) for i, m in enumerate(metadata) if i % world == rank]
    kept = [m for i, m in enumerate(metadata)]
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        mine, ShardedTensorMetadata(kept, t.size(), TensorProperties(dtype=t.dtype)))


def sharded(rank, world):
    mesh, out = init_device_mesh("cpu", (world,)), {}
    for rows in (1, 3, 7, 8):
        for n in ("float32", "bfloat16"):
            dtype = getattr(torch, n)
            out["%s.%d.rows" % (n, rows)] = distribute_tensor(rand(rows, 6, dtype=dtype), mesh, [Shard(0)])
            out["%s.%d.cols" % (n, rows)] = distribute_tensor(rand(5, rows, dtype=dtype), mesh, [Shard(1)])
        out["%d.middle" % rows] = distribute_tensor(rand(2, rows, 3), mesh, [Shard(1)])
        out["%d.same" % rows] = distribute_tensor(rand(rows, 2), mesh, [Replicate()])
        out["%d.vector" % rows] = distribute_tensor(rand(rows), mesh, [Shard(0)])
    out["number"] = distribute_tensor(torch.tensor(4.5), mesh, [Replicate()])
    return out


def plain():
    tied, image = rand(9, 4), rand(2, 3, 4, 5)
    return {"w": rand(5, 7), "nested": {"list": [rand(2), rand(0, 3), 5, [rand(1), "deep"]], "pair": (rand(2), 3), "": rand(1), 3: rand(2), "text": "x", "none": None},
            "numbers": {"lr": 0.25, "big": 1 << 80, "yes": True, "complex": 1 + 2j, "inf": float("inf")}, "bytes": b"\0\1\2", "stream": io.BytesIO(b"abc"),
            "dtype": torch.bfloat16, "device": torch.device("cpu"), "size": torch.Size([2, 3]), "set": {1, 2}, "ordered": collections.OrderedDict(a=1),
            "empty": {}, "none at all": [], "numpy": np.float64(2.5), "array": np.arange(6).reshape(2, 3), "scalar": torch.tensor(2.5), "step": torch.tensor(7),
            "turned": rand(4, 6).t(), "part": rand(6, 6)[:, 1:3], "last": image.to(memory_format=torch.channels_last), "tied": tied, "tied too": tied, "row": tied[3],
            "parameter": torch.nn.Parameter(rand(3)), "ünï.ço dé": rand(2), "random": torch.get_rng_state()}


def states(rank, world):
    """name, state"""
    yield "plain", plain()
    yield "dtypes", {n: rand(3, 5, dtype=getattr(torch, n)) for n in NAMES if saves(n)}
    yield "sharded", sharded(rank, world)
    yield "pieces", {"rows": pieces(rank, world, 23), "grid": pieces(rank, world, (5, 7), 3), "plain": rand(2)}
    for name, kind in (("adamw", torch.optim.AdamW), ("sgd", lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)), ("adagrad", torch.optim.Adagrad)):
        model, optimizer = trained(kind, lambda m: fully_shard(m) and None)
        yield "fsdp2 " + name, {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer), "run": Run()}
    yield "fsdp2 flat", dict(zip(("model", "optim"), get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))))
    yield "fsdp2 whole", dict(zip(("model", "optim"), get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=False))))
    model, optimizer = trained(wrap=lambda m: fully_shard(m) and None, dtype=torch.bfloat16)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0)
    yield "fsdp2 raw", {"model": model.state_dict(), "optim": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    ddp, optimizer = trained(wrap=torch.nn.parallel.DistributedDataParallel)
    yield "ddp", {"app": {"model": get_model_state_dict(ddp), "optim": get_optimizer_state_dict(ddp, optimizer)}}
    if world == 4 and RELEASE >= (2, 5):  # 2.4 gives no state of two axes
        grid, two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), {}
        for rows in (3, 4, 5):
            two["%d.both" % rows] = distribute_tensor(rand(rows, 7), grid, [Shard(0), Shard(1)])
            two["%d.twice" % rows] = distribute_tensor(rand(rows, 3), grid, [Shard(0), Shard(0)])
            two["%d.hybrid" % rows] = distribute_tensor(rand(rows, 4), grid, [Replicate(), Shard(0)])
            two["%d.other" % rows] = distribute_tensor(rand(rows, 4), grid, [Shard(1), Replicate()])
        yield "two axes", two
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        model, optimizer = trained(wrap=lambda m: fully_shard(m, mesh=grid) and None)  # replicated over dp, sharded over tp
        yield "fsdp2 hybrid", {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}
        tp = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 12))
        parallelize_module(tp, grid["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        fully_shard(tp, mesh=grid["dp"])
        yield "fsdp2 tp", {"model": get_model_state_dict(tp)}


def writers(path):
    """what differs when the same state is saved again: name, writer, more of dcp.save"""
    write = dcp.FileSystemWriter
    yield "threads", write(path + " threads", thread_count=3, sync_files=False), {}
    yield "a file an item", write(path + " a file an item", single_file_per_rank=False, per_thread_copy_ahead=0), {}
    planner = dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    yield "lowest", write(path + " lowest", overwrite=True), {"planner": planner}
    if RELEASE >= (2, 7):
        yield "cached plan", write(path + " cached plan"), {"planner": dcp.DefaultSavePlanner(enable_plan_caching=True)}
    with contextlib.suppress(ImportError):
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
        yield "fsspec", FsspecWriter(path + " fsspec"), {}


def hf_writers(path, names):
    """name, writer, folder of each checkpoint that it leaves"""
    try:
        from torch.distributed.checkpoint import HuggingFaceStorageWriter as write
    except ImportError:
        return
    index = {k: 1 + i % 3 for i, k in enumerate(sorted(names))}
    distributed = {"save_sharded" if RELEASE < (2, 9) and "save_sharded" in write.__init__.__code__.co_varnames else "save_distributed": True}
    yield write(path + " hf", fqn_to_index_mapping=index, **distributed), [path + " hf"]
    yield write(path + " hf one", **distributed), [path + " hf one"]
    if "enable_consolidation" in write.__init__.__code__.co_varnames:
        both = path + " hf both"
        yield write(both, fqn_to_index_mapping=index, enable_consolidation=True, **distributed), [both, os.path.join(both, "sharded")]


def save_more(rank, world, path, state):
    """the sharded state, in every way it can be saved"""
    for name, writer, more in writers(path):
        dcp.save(state, storage_writer=writer, **more)
        truth_of(state, "%s %s" % (path, name), rank)
    dcp.async_save(state, checkpoint_id=path + " async").result()
    truth_of(state, path + " async", rank)
    if RELEASE >= (2, 9):
        dcp.save(state, checkpoint_id=path + " by rank", use_collectives=False)
        truth_of(state, path + " by rank", rank, refuse="one metadata file a rank")
    flat = {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}
    for writer, folders in hf_writers(path, flat):
        dcp.save(flat, storage_writer=writer)
        for folder in folders:
            truth_of(flat, folder, rank)
            if rank == 0 and folders[1:] and folder == folders[0]:
                # what it puts together lacks the values of tensors without axes: safetensors says what is there
                there = [load_file(os.path.join(folder, f)) for f in os.listdir(folder) if f.endswith(".safetensors")]
                tell(folder, {"tensors": {k: v for part in there for k, v in digests(part).items()}})


def save_states(rank, world, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    gen.manual_seed(world)
    torch.manual_seed(3)
    for what, state in states(rank, world):
        path = os.path.join(folder, what)
        dcp.save(state, checkpoint_id=path)
        state = {k: v.state_dict() if isinstance(v, Run) else v for k, v in state.items()}
        truth_of(state, path, rank)
        if what == "sharded":
            save_more(rank, world, path, state)
            if rank == 0:
                save_file(folder, "a DTensor", {"w": state["number"]}, {"lost": "DTensor"})
        dist.barrier()
    dist.destroy_process_group()


# ---- torch.save ----


class Named(collections.namedtuple("Named", "a b")):
    pass


class Color(enum.Enum):
    RED = 1


class Wrapped(torch.Tensor):
    """a tensor of a class of its own, with an attribute"""


@dataclasses.dataclass
class Config:
    lr: float = 0.1


def with_attribute(t, kind=None):
    t = t.as_subclass(kind) if kind else t
    t.tensor_model_parallel = True
    return t


def hooked(module):
    module.register_forward_hook(print)
    return module


def views():
    base, deep = rand(6, 8), rand(2, 3, 4)
    pairs = rand(3, 4, dtype=torch.complex64)
    return {"views": {"whole": base, "t": base.t(), "rows": base[1:4], "cols": base[:, 2:5], "step": base[::2, ::3], "row": base[2], "one": base[2, 3],
                      "expand": base[:1].expand(4, 8), "perm": deep.permute(2, 0, 1), "same": base, "flat": base.reshape(-1)[5:9], "empty": base[:0],
                      "diag": base.diagonal(), "unfold": base.reshape(-1).unfold(0, 4, 2)},
            "one storage": {"t%d" % i: base.reshape(-1)[i:i + 3] for i in range(10)},
            # one storage has one dtype in a file
            "bits": {"bits": rand(6, 8).view(torch.int32)[1:, ::2]},
            "halves of complex numbers": {"real": pairs.real, "imag": pairs.imag, "pairs": torch.view_as_real(pairs)},
            "channels last": {"w": rand(2, 3, 4, 5).to(memory_format=torch.channels_last)}}


def objects():
    """what lies about in checkpoints beside tensors"""
    yield "scalars and empties", {"zero_d": torch.tensor(3.5), "none": torch.empty(0), "n": torch.empty(0, 7), "m": torch.empty(4, 0, 2)}
    yield "torch's own", {"size": torch.Size([1, 2]), "dtype": torch.bfloat16, "device": torch.device("cuda:1"), "w": rand(2)}
    yield "containers", {"ordered": collections.OrderedDict(a=rand(1)), "default": collections.defaultdict(list, {"k": [rand(2)]}), "tuple": (rand(1), (rand(2),)),
                         "set": {1}, "frozen": frozenset([2]), "deque": collections.deque([1, 2]), "named": Named(rand(1), 2)}
    yield "python's own", {"w": rand(2), "bytes": b"\0\1", "array": bytearray(b"ab"), "io": io.BytesIO(b"abc"), "big": 1 << 100, "slice": slice(1, 2), "complex": 1 + 2j,
                           "path": pathlib.PurePosixPath("a/b"), "time": datetime.datetime(2026, 1, 2), "uuid": uuid.UUID(int=5), "decimal": decimal.Decimal("1.5"),
                           "color": Color.RED, "config": Config(), "part": functools.partial(max, 1), "class": Config, "function": torch.nn.functional.silu, "nan": float("nan")}
    yield "arguments", {"args": argparse.Namespace(lr=0.1, dtype=torch.bfloat16, act=torch.nn.functional.gelu, color=Color.RED), "w": rand(2)}
    yield "numpy", {"scalar": np.float64(2.5), "int": np.int64(3), "array": np.arange(6).reshape(2, 3), "text": np.array(["a"]), "random": np.random.get_state(), "w": rand(2)}
    yield "random states", {"python": random.Random(1).getstate(), "torch": torch.get_rng_state(), "cuda": [torch.zeros(16, dtype=torch.uint8)]}


def modules():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 2), torch.nn.BatchNorm2d(3), torch.nn.LSTM(3, 2), torch.nn.Embedding(5, 4, padding_idx=0))
    yield "a module's state", model.state_dict()
    model = torch.nn.utils.parametrizations.weight_norm(hooked(torch.nn.Linear(4, 3)))
    yield "hooks and parametrizations", model.state_dict()
    weights = rand(3, 2).requires_grad_()
    weights.register_hook(torch.neg)
    yield "parameters", {"p": torch.nn.Parameter(rand(4, 4)), "frozen": torch.nn.Parameter(rand(3), requires_grad=False), "buffer": torch.nn.Buffer(rand(2)) if RELEASE > (2, 4) else rand(2),
                         "attribute": with_attribute(torch.nn.Parameter(rand(2))), "tensor": with_attribute(rand(3)), "subclass": with_attribute(rand(2), Wrapped),
                         "parameter list": list(torch.nn.ParameterList([rand(2), rand(3)])), "buffers": dict(torch.nn.Linear(2, 2).named_parameters())}
    for kind in (torch.optim.AdamW, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.Adafactor if RELEASE > (2, 4) else torch.optim.Adagrad):
        model, optimizer = trained(lambda p, lr: kind(p))
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10) if kind is torch.optim.AdamW else torch.optim.lr_scheduler.StepLR(optimizer, 2)
        yield "an optimizer: %s" % type(optimizer).__name__, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "epoch": 3}
    scaler = torch.amp.GradScaler("cpu")
    yield "a scaler", {"scaler": scaler.state_dict(), "w": rand(2)}


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.list = hooked(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))), torch.nn.ModuleList([torch.nn.PReLU()])
        self.tied, self.nothing, self.extra = self.inner[0].weight, None, {"plain": rand(2)}
        self.register_buffer("kept", rand(3))
        self.register_buffer("passing", rand(3), persistent=False)
        self.register_parameter("absent", None)
        self.more = torch.nn.ParameterDict({"a": torch.nn.Parameter(rand(2))})


def whole_modules():
    """name, object, the state whose tensors it holds"""
    block, linear = Block(), torch.nn.Linear(2, 3)
    yield "a whole module", block, block.state_dict()
    yield "modules in a dict", {"model": linear, "ema": [block], "epoch": 3}, {"model": linear.state_dict(), "ema": [block.state_dict()]}


def lost():
    """name, object, the word for what in it has no tensor that can be read"""
    quantized = torch.quantize_per_tensor(rand(4, 3), 0.1, 3, torch.qint8)
    yield "quantized", {"w": rand(2), "q": quantized}, "_rebuild_qtensor"
    yield "quantized by channel", {"q": torch.quantize_per_channel(rand(4, 3), torch.ones(4), torch.zeros(4, dtype=torch.int64), 0, torch.quint8)}, "_rebuild_qtensor"
    yield "sparse", {"w": rand(2), "s": torch.eye(3).to_sparse()}, "_rebuild_sparse_tensor"
    yield "sparse rows", {"s": torch.eye(3).to_sparse_csr()}, "_rebuild_sparse_tensor"
    yield "nested", {"n": torch.nested.nested_tensor([rand(2), rand(3)])}, "_rebuild_nested_tensor"
    yield "meta", {"m": torch.empty(3, device="meta"), "w": rand(2)}, "_rebuild_meta_tensor_no_storage"
    yield "a bare storage", {"s": rand(3).untyped_storage(), "w": rand(2)}, "storage"


def refused():
    """name, object, what the refusal must say"""
    yield "conjugated", {"c": rand(3, dtype=torch.complex64).conj()}, "conjugated"
    yield "negated", {"c": rand(3, dtype=torch.complex64).conj().imag}, "negated"
    yield "half complex", {"c": rand(3, dtype=torch.complex64).to(torch.complex32)}, "complex32"


def save_file(folder, what, value, said=None, holds=None, **how):
    """said: {"refuse" or "lost": text}; holds: the state with the tensors of value"""
    path = os.path.join(folder, what.replace("/", " ") + ".pt")
    try:
        torch.save(value, path, **how)
        truth = said or {"tensors": digests(holds or torch.load(path, weights_only=False))}
    except (AttributeError, KeyError, RuntimeError):  # new dtypes in the old form: PyTorch cannot write them, or not read them back
        os.unlink(path)
        return
    tell(path, truth)


def save_files(folder):
    gen.manual_seed(11)
    torch.manual_seed(3)
    for tag, how in (("zip ", {}), ("legacy ", {"_use_new_zipfile_serialization": False})):
        for n in NAMES:
            if hasattr(torch, n):
                save_file(folder, tag + n, {n: rand(3, 5, dtype=getattr(torch, n))}, **how)
        for what, value in (*views().items(), *objects(), *modules()):
            save_file(folder, tag + what, value, **how)
        for what, value, holds in whole_modules():
            save_file(folder, tag + what, value, holds=holds, **how)
        save_file(folder, tag + "a bare tensor", rand(3, 2), **how)
        save_file(folder, tag + "a list", [rand(2), [rand(1)]], **how)
        for protocol in (3, 4, 5):
            save_file(folder, tag + "protocol %d" % protocol, {"w": rand(3, 4), "n": {"x": [1, "s", None, rand(2)]}}, pickle_protocol=protocol, **how)
        for word, odd in (("refuse", refused()), ("lost", lost())):
            for what, value, text in odd:
                with contextlib.suppress(RuntimeError, AttributeError, NotImplementedError):  # not in this form
                    if how and text == "_rebuild_qtensor":  # its storage cannot be passed over in a file that gives no sizes in bytes
                        save_file(folder, tag + what, value, {"refuse": "Int8Storage"}, **how)
                    else:
                        save_file(folder, tag + what, value, {word: text}, **how)
    with contextlib.suppress(AttributeError):  # from 2.6
        torch.serialization.set_crc32_options(False)
        save_file(folder, "zip without checksums", {"w": rand(30, 4)})
        torch.serialization.set_crc32_options(True)
    with contextlib.suppress(ImportError, AttributeError):
        from torch.utils.serialization import config
        config.save.storage_alignment = 4096
        save_file(folder, "zip of pages", {"a": rand(3), "b": rand(5, 2)})
        config.save.storage_alignment = 64


# ---- back again ----


def nested(folder):
    """the state as DCP puts it together again from nothing but the checkpoint, tensors as digests"""
    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    form = lambda v: ({repr(k): form(x) for k, x in v.items()} if isinstance(v, dict) else [form(x) for x in v] if isinstance(v, (list, tuple))
                      else digest(v) if isinstance(v, torch.Tensor) else v.getvalue() if isinstance(v, io.BytesIO) else repr(v))
    return form(state)


def load_dist(path, truth, bad):
    reader = dcp.FileSystemReader(path)
    stored = reader.read_metadata().state_dict_metadata
    state = {k: torch.empty(v.size, dtype=v.properties.dtype) for k, v in stored.items() if isinstance(v, TensorStorageMetadata)}
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False)
    dcp.load(state, storage_reader=reader, planner=planner)
    same_digests(path, digests(state), truth, bad)
    if truth.get("source") and nested(path) != nested(truth["source"]):
        bad.append("%s: puts it together otherwise than %s" % (path, truth["source"]))


def same_digests(path, got, truth, bad):
    want = truth["tensors"]
    for k in sorted(set(got) | set(want)):
        if got.get(k) != want.get(k):
            bad.append("%s: %s: PyTorch loads %r, saved %r" % (path, k, got.get(k), want.get(k)))


def load_all(listed):
    bad = []
    with open(listed, encoding="utf-8") as f:
        for kind, path, truth in json.load(f):
            try:
                if kind == "dist":
                    load_dist(path, truth, bad)
                else:
                    same_digests(path, digests(load_file(path)), truth, bad)
            except Exception as e:  # whatever it is, this checkpoint is wrong and the others are still to be seen
                bad.append("%s: %s: %s" % (path, type(e).__name__, str(e)[:300]))
    print(json.dumps(bad))


def main():
    what, where = sys.argv[1], sys.argv[-1]
    torch.set_num_threads(1)
    if what == "files":
        save_files(where)
    elif what == "load":
        load_all(where)
    else:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        world = int(sys.argv[2])
        torch.multiprocessing.start_processes(save_states, (world, port, where), world, start_method="fork")


if __name__ == "__main__":
    main()
