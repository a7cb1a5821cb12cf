"""Checkpoints of pieces that no model has, written and loaded by the megatron-core of PYTHONPATH on a CPU: tensors of every dtype and rank, cut in
grids with axes before them, in boxes of any size and in flattened ranges, several pieces a rank; objects in grids, and with payloads of many
kinds; a common state of many kinds; every way to write the files. All of it comes out of a seed. Requests as in mcore_worker.py: cases are
dicts with `seed` and `path`; PATH.truth.json is what the whole tensors are."""
import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import itertools
import json
import math
import os
import pathlib
import random
import signal
import sys
import types
import uuid

import numpy
import torch
import torch.distributed as dist

import mcore_worker as models
import ranks

DTYPES = [getattr(torch, n) for n in (
    "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool float8_e4m3fn float8_e5m2 complex64 complex128 "
    "uint16 uint32 uint64 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu").split() if hasattr(torch, n)]


class Kind(enum.Enum):
    encoder = 1
    both = ("a", 2)


@dataclasses.dataclass
class Inner:
    scale: float = 1.5
    names: list = dataclasses.field(default_factory=lambda: ["x"])


class Odd:
    """A class of the user's own, with slots and reduce"""
    __slots__ = ("a", "b")

    def __init__(self, a, b=None):
        self.a, self.b = a, b

    def __reduce__(self):
        return Odd, (self.a,), (None, {"b": self.b})


class Machine:
    def __getstate__(self):
        return ("state", [1, 2])

    def __setstate__(self, state):
        pass


class Names(dict):
    pass


class Numbers(list):
    pass


def payload(r, deep=0):
    """Anything that a checkpoint may have beside its tensors"""
    n = r.randrange(38 if deep < 4 else 26)
    if n == 0:
        return None
    leaf = [r.random() < .5, r.getrandbits(r.choice([1, 7, 8, 16, 31, 32, 63, 64, 65, 200])) - 2 ** r.choice([0, 8, 15, 31, 63, 64, 100]), r.random() * 10 ** r.randrange(-300, 300),
            float("nan"), float("-inf"), "".join(chr(r.choice([65, 10, 233, 0x4e00, 0x1f600])) for _ in range(r.choice([0, 1, 300]))),
            bytes(r.getrandbits(8) for _ in range(r.choice([0, 3, 300]))), Kind.both, torch.bfloat16, torch.device("cpu"), torch.Size([2, 3]),
            numpy.float32(.25), numpy.int64(-3), numpy.arange(6).reshape(2, 3).T, pathlib.Path("a/b"), datetime.timedelta(3), datetime.datetime(2026, 1, 2, 3),
            complex(1, -2), range(3), decimal.Decimal("1.5"), uuid.UUID(int=r.getrandbits(128)), torch.nn.functional.gelu, Inner, signal.SIGTERM,
            io.BytesIO(b"state" * r.randrange(3)), slice(1, 2), fractions.Fraction(1, 3), bytearray(b"xy"), Odd(3, 4), Machine(), Inner(),
            frozenset([1, 2]), torch.arange(12, dtype=torch.int16).view(3, 4)[1:, ::2], torch.nn.Parameter(torch.ones(2)), torch.tensor(3.5), torch.zeros(0, 4),
            numpy.array(["a", "bc"], dtype=object), numpy.zeros(2, dtype=[("a", "<i4"), ("b", "<f8")])]
    if n < 26:
        return r.choice(leaf)
    some = [payload(r, deep + 1) for _ in range(r.randrange(5))]
    keys = [r.choice(["a.b", "", "%d", 3, ("x", 1), None, torch.float32, 2.5, b"k", "x/y", Kind.encoder]) for _ in some]
    return [some, tuple(some), dict(zip(keys, some)), collections.OrderedDict(zip(keys, some)), collections.defaultdict(list, zip(keys, some)),
            argparse.Namespace(**{"k%d" % i: v for i, v in enumerate(some)}), types.SimpleNamespace(a=some), functools.partial(torch.add, *some[:1]),
            collections.deque(some), Names(zip(keys, some)), Numbers(some), {1, 2, "x"}][n - 26]


def cuts(r, size, most):
    """Where an axis is cut, anywhere"""
    if size < 2:
        return [(0, size)]
    at = sorted(r.sample(range(1, size), min(size - 1, r.randrange(most))))
    return list(zip([0] + at, at + [size]))


def values(r, dtype, shape):
    n = math.prod(shape)
    gen = torch.Generator().manual_seed(r.getrandbits(31))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=gen).bool()
    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)
    raw = torch.randint(0, 256, (n * dtype.itemsize,), generator=gen, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape) if n else torch.empty(shape, dtype=dtype)


def boxes(r, shape):
    """(how, pieces as (offset, shape), grid or None, how many axes stand before)"""
    how = r.choice(["grid", "grid", "grid", "before", "grid" if flat_ok() else "box"]) if shape and all(shape) else "whole"
    if how == "whole":
        return how, [((0,) * len(shape), shape)], (1,) * len(shape), 0
    if how == "box":  # slabs of any size along each axis
        axes = [cuts(r, n, 4) for n in shape]
        return how, [(tuple(b for b, _ in cell), tuple(e - b for b, e in cell)) for cell in itertools.product(*axes)], None, 0
    grid = [r.choice([d for d in range(1, n + 1) if n % d == 0][:3]) for n in shape]
    before = r.randrange(1, len(shape) + 1) if how == "before" else 0
    for a in range(before):
        grid[a] = shape[a]
    if math.prod(grid) > 96:  # torch holds every piece against every other
        before, grid = 0, [1] * len(shape)
    step = [n // g for n, g in zip(shape, grid)]
    return how, [(tuple(i * s for i, s in zip(cell, step)), tuple(step)) for cell in itertools.product(*[range(g) for g in grid])], tuple(grid), before


def flat_ok():
    """Ranges of a flattened piece may be saved by releases before 0.16, pieces in no grid by the others."""
    from megatron.core import package_info
    return (package_info.MAJOR, package_info.MINOR) < (0, 16)


def tensors_of(c, rank, world):
    """({key: whole tensor}, this rank's pieces)"""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    whole, mine = {}, []
    for t in range(c.get("tensors", 24)):
        r = random.Random("%s tensor %d" % (c["seed"], t))
        dtype = r.choice(DTYPES)
        shape = tuple(r.choice([1, 2, 3, 4, 6, 8, 12]) for _ in range(r.randrange(5)))
        if shape and r.random() < .05 and not in_parallel(c):  # which divides by the sizes of pieces
            shape = (0,) + shape[1:]
        key = r.choice(["w%d", "model.module.w%d", "decoder.layers.%d.weight", "optimizer.state.exp_avg.w%d", "x y/z%d", "\u00e9%d", "a.%d._extra_state"]) % t
        whole[key] = values(r, dtype, shape)
        how, pieces, grid, before = boxes(r, shape)
        flat = flat_ok() and how in ("grid", "whole") and shape and all(shape) and dtype.itemsize > 1 and dtype.is_floating_point and r.random() < .3
        for offset, size in pieces:
            box = whole[key][tuple(slice(o, o + n) for o, n in zip(offset, size))]
            ranges = cuts(r, box.numel(), world) if flat else [None]
            owners = r.sample(range(world), world)  # a rank has one range of a piece
            for part, owner in zip(ranges, owners):
                others, strided = r.random() < .3, r.random() < .3
                if rank != owner and (flat or not others):
                    continue
                data = box.reshape(size[before:]).clone()
                if flat:
                    data = data.flatten()[part[0]:part[1]].clone()
                elif strided and data.dim() > 1 and all(data.shape):  # a view that is not contiguous
                    data = data.transpose(0, -1).contiguous().transpose(0, -1)
                more = dict(flattened_range=slice(*part)) if flat else {}
                mine.append(ShardedTensor(key, data, dtype, tuple(size[before:]), tuple(shape), tuple(offset), grid,
                                          replica_id=(0 if rank == owner else 1 + rank), prepend_axis_num=before, **more))
    return whole, mine


def objects_of(c, rank, world):
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    keys, mine = [], []
    for t in range(c.get("objects", 8)):
        r = random.Random("%s object %d" % (c["seed"], t))
        key = r.choice(["rng_state.%d", "a.b%d._extra_state", "rerun_state_machine_state.%d", "o %d"]) % t
        shape = tuple(r.choice([1, 2, 3]) for _ in range(r.choice([1, 1, 2, 3])))
        for offset in itertools.product(*[range(n) for n in shape]):
            owner, others = r.randrange(world), r.random() < .3
            o = ShardedObject(key, payload(r), shape, offset, replica_id=0 if rank == owner else 1 + rank)
            keys.append(o.unique_key)
            if rank == owner or others:
                mine.append(o)
    return keys, mine


def state_of(c, rank, world, loading=False):
    from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject
    whole, pieces = tensors_of(c, rank, world)
    keys, objects = objects_of(c, rank, world)
    state = {"model": {"k%d" % i: t for i, t in enumerate(pieces)}, "nested": [objects[::2], {"deep": objects[1::2]}], "own": LocalNonpersistentObject(rank)}
    if not loading:
        r = random.Random("%s common" % c["seed"])
        state.update(args=argparse.Namespace(**{"a%d" % i: payload(r) for i in range(12)}), iteration=7, checkpoint_version=3.0,
                     **{"more%d" % i: payload(r) for i in range(4)})
    return state, whole, keys


def in_parallel(c):
    return random.Random("%s in parallel" % c["seed"]).random() < .4


def strategy_of(c, world):
    from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
    r = random.Random("%s strategy" % c["seed"])
    more = models.takes(TorchDistSaveShardedStrategy.__init__, backend="torch_dist", version=1)
    strategy = TorchDistSaveShardedStrategy(thread_count=r.randrange(2, 5), separation_hint=r.choice([None, None, "model", "optimizer.state"]),
                                            cached_metadata=r.random() < .3, **more)
    if in_parallel(c):
        strategy = FullyParallelSaveStrategyWrapper(strategy, dist.new_group(list(range(world))), r.random() < .5)
    return strategy, r.random() < .3, r.random() < .3


def save(c, rank, world):
    from megatron.core import dist_checkpointing
    state, whole, keys = state_of(c, rank, world)
    strategy, asynchronous, integrity = strategy_of(c, world)
    if rank == 0:
        os.makedirs(c["path"], exist_ok=True)
        told = {k: [str(t.dtype), list(t.shape), models.digest(t)] for k, t in whole.items()}
        with open(c["path"] + ".truth.json", "w", encoding="utf-8") as f:
            json.dump({"tensors": told, "unpadded": told, "objects": sorted(keys)}, f)
    dist.barrier()
    more = models.takes(dist_checkpointing.save, content_metadata={"kind": c["seed"]}, async_strategy="mcore", verify_integrity=integrity)
    request = dist_checkpointing.save(state, c["path"], strategy, async_sharded_save=asynchronous, validate_access_integrity=False, **more)
    if asynchronous:
        from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
        queue = AsyncCallsQueue()
        queue.schedule_async_request(request)
        queue.maybe_finalize_async_calls(blocking=True)


def load(c, rank, world):
    """By pieces of another rank, or whole"""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    state, whole, _ = state_of(c, (rank + 1) % world, world, loading=True)
    if c.get("whole") and not flat_ok():  # what was flattened stays so
        state["model"] = {k: ShardedTensor.from_rank_offsets(k, torch.empty_like(t)) for k, t in whole.items()}
    for t in state["model"].values():
        t.data = torch.empty_like(t.data)
    wanted = {k: (t.key, t.global_offset, t.local_shape, t.prepend_axis_num, getattr(t, "flattened_range", None)) for k, t in state["model"].items()}
    got = dist_checkpointing.load(state, c["path"], validate_access_integrity=False)
    for k, (key, offset, size, before, flat) in wanted.items():
        box = whole[key][tuple(slice(o, o + n) for o, n in zip(offset, (1,) * before + tuple(size)))].reshape(size)
        if flat:
            box = box.flatten()[flat]
        have = got["model"][k]
        if have.dtype != box.dtype or have.shape != box.shape or models.digest(have) != models.digest(box):
            raise ValueError("%s: %s: other values" % (c["path"], key))
    if got["iteration"] != 7 or not isinstance(got["args"], argparse.Namespace) or len(vars(got["args"])) != 12:
        raise ValueError("%s: common state is another" % c["path"])


def work(rank, what, cases):
    ranks.keep_results()
    with models.OnCpu():
        for c in cases:
            try:
                (save if what == "save" else load)(c, rank, dist.get_world_size())
            except Exception as e:
                raise RuntimeError("%s: %s" % (what, c["path"])) from e
            dist.barrier()


def answer(what, world, cases):
    try:
        ranks.together(work, world, what, cases)
    except (torch.multiprocessing.ProcessRaisedException, torch.multiprocessing.ProcessExitedException) as e:
        return str(e)[-2500:]


if __name__ == "__main__":
    models.main(answer)
