"""Checkpoints of random content, saved by PyTorch: names, dtypes, views and shared storages, boxes of any cut over the files of several ranks, DTensors
on uneven and strided meshes, Hugging Face storage. All comes out of a random.Random. check_random.py says what becomes of them."""
import collections
import contextlib
import io
import math

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

OLD = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
       "bool": "BOOL", "complex64": "C64"}
NEW = {"uint16": "U16", "uint32": "U32", "uint64": "U64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ",
       "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4_E2M1FN_X2"}
SPELLED = {getattr(torch, k): v for k, v in {**OLD, **NEW}.items()}
# without what trainers put around names, which a Hugging Face folder is written without
ATOMS = ["a", "b", "weight", "layers", "0", "1", "10", "02", "-1", "x.y", ".", "..", "a/b", "\\", "\u00e9", "A\u0301", "\u65e5\u672c", "\U0001f600", "\n", "\x7f", " ", "%s%n",
         "_extra_state", "args", "common", "L" * 300, '"', "\u2028", "\ufeff", "shard_0_1", "~", "^", 7, -3, 1 << 40, True, None, 2.5]


def key(r):
    atom = r.choice(ATOMS[:4] if r.random() < .5 else ATOMS)
    return atom + str(r.randrange(30)) if isinstance(atom, str) and r.random() < .6 else atom


def shape_of(r, least=0):
    return tuple(r.choice([max(n, least) for n in (0, 1, 2, 3, 5, 8, 9)]) for _ in range(r.choice([0, 1, 1, 2, 2, 2, 3, 4, 6])))


def values(r, dtype, shape):
    gen = torch.Generator().manual_seed(r.getrandbits(31))
    if dtype == torch.bool or (dtype.is_floating_point and dtype != torch.float4_e2m1fn_x2 and r.random() < .5):
        return (torch.randn(shape, generator=gen, dtype=torch.float64) * 4).to(torch.int8 if dtype == torch.bool else torch.float32).to(dtype)
    return torch.randint(0, 256, (math.prod(shape) * dtype.itemsize,), generator=gen, dtype=torch.uint8).view(dtype).reshape(shape)


def view(r, t):
    how, n = r.randrange(8), t.dim()
    d = r.randrange(n) if n else 0
    if how == 0:
        return t.permute(r.sample(range(n), n))
    if how == 1 and n < 6:
        return t.expand(r.randrange(4), *t.shape)
    if how == 2:
        return t.unsqueeze(r.randrange(n + 1)) if n < 8 else t
    if n == 0 or t.shape[d] == 0:
        return t
    begin = r.randrange(t.shape[d])
    return [t.narrow(d, begin, r.randrange(t.shape[d] - begin + 1)), t.select(d, begin), t[tuple(slice(None, None, r.randrange(1, 4)) for _ in t.shape)],
            t.diagonal() if n > 1 else t, torch.nn.Parameter(t, requires_grad=False) if t.is_floating_point() else t][how - 3]


def tensor(r, pool, dtypes):
    """one of its own, or a view of one that is there"""
    t = r.choice(pool) if pool and r.random() < .4 else values(r, getattr(torch, r.choice(dtypes)), shape_of(r))
    pool.append(t)
    for _ in range(r.choice([0, 0, 1, 2, 3])):
        t = view(r, t)
    return t


def tree(r, pool, dtypes, depth):
    what = r.random() * (depth > 0)
    if what < .5:
        return tensor(r, pool, dtypes)
    if what < .6:
        return r.choice([None, 1, 2.5, "text", True, b"bytes", 1 << 90, {1, 2}, (), [], {}, torch.bfloat16, torch.Size([2]), io.BytesIO(b"ab"), range(3)])
    some = [tree(r, pool, dtypes, depth - 1) for _ in range(r.randrange(5))]
    return some if what < .7 else tuple(some) if what < .75 else r.choice([dict, collections.OrderedDict])([(key(r), x) for x in some])


def flat(value, name, out, into):
    if isinstance(value, torch.Tensor):
        if name in out:
            raise KeyError(name)
        out[name] = value
    elif isinstance(value, into):
        for k, v in value.items() if isinstance(value, dict) else enumerate(value):
            flat(v, "%s.%s" % (name, k) if name else str(k), out, into)
    return out


def state_of(r, dtypes, into=(dict, list, tuple)):
    """(a state in which no two tensors have one name, its tensors)"""
    while True:
        state = {key(r): tree(r, [], dtypes, 4) for _ in range(r.randrange(1, 9))}
        with contextlib.suppress(KeyError):
            return state, flat(state, "", {}, into)


def names_of(r, most):
    names = {".".join(str(key(r)) for _ in range(r.randrange(1, 4))) for _ in range(r.randrange(1, most))}
    return sorted(n for n in names if n)


# ---- many ranks in one process ----


class Pieces(torch.Tensor):
    """boxes of a tensor, as one rank has them"""

    def __new__(cls, whole, boxes, empty=False):
        return torch.Tensor._make_wrapper_subclass(cls, whole.size(), dtype=whole.dtype)

    def __init__(self, whole, boxes, empty=False):
        self.whole, self.boxes = whole, boxes
        self.parts = {o: (torch.empty_like if empty else torch.clone)(self.cut(o, n)) for o, n in boxes}

    def cut(self, offset, size):
        return self.whole[tuple(slice(o, o + n) for o, n in zip(offset, size))]

    def __create_write_items__(self, name, _):
        return [WriteItem(index=MetadataIndex(name, torch.Size(c.offsets)), type=WriteItemType.SHARD, tensor_data=TensorWriteData(
            chunk=c, properties=TensorProperties.create_from_tensor(self.parts[tuple(c.offsets)]), size=self.whole.size())) for c in self.__create_chunk_list__()]

    def __create_chunk_list__(self):
        return [ChunkStorageMetadata(torch.Size(o), torch.Size(n)) for o, n in self.boxes]

    def __get_tensor_shard__(self, index):
        return self.parts[tuple(index.offset)]

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return args[0]


def partition(r, offset, size, depth):
    axes = [d for d, n in enumerate(size) if n > 1]
    if not axes or depth == 0 or r.random() < .2:
        return [(tuple(offset), tuple(size))]
    d = r.choice(axes)
    at = r.randrange(1, size[d])
    put = lambda v, n: [*v[:d], n, *v[d + 1:]]
    return partition(r, offset, put(size, at), depth - 1) + partition(r, put(offset, offset[d] + at), put(size, size[d] - at), depth - 1)


def save_ranks(states, writers, enter=lambda rank: None):
    """what dcp.save does, its collectives done by hand"""
    planners, plans, results = [dcp.DefaultSavePlanner() for _ in states], [], []
    for i, (state, planner, writer) in enumerate(zip(states, planners, writers)):
        enter(i)
        planner.set_up_planner(state, writer.storage_meta(), i == 0)
        writer.set_up_storage_writer(i == 0)
        plans.append(writer.prepare_local_plan(planner.create_local_plan()))
    plans, metadata = planners[0].create_global_plan(plans)
    for i, plan in enumerate(writers[0].prepare_global_plan(plans)):
        enter(i)
        results.append(writers[i].write_data(planners[i].finish_plan(plan), planners[i]).wait())
    writers[0].finish(metadata, results)


# ---- kinds of checkpoints: each gives its path and what its tensors are ----


def file(r, path):
    old = r.random() < .4
    state, _ = state_of(r, list(OLD) if old else [*OLD, *NEW])
    path += r.choice([".pt", " \u00fc.bin", "x.y.ckpt"])
    torch.save(state, path, _use_new_zipfile_serialization=not old, pickle_protocol=r.choice([2, 2, 3, 4, 5]))
    return path, flat(torch.load(path, weights_only=False), "", {}, (dict, list, tuple))


def nested(r, path):
    while True:  # in a tuple DCP does not look for tensors
        state, tensors = state_of(r, [*OLD, *NEW], (dict, list))
        if len(tensors) == len(flat(state, "", {}, (dict, list, tuple))):
            break
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, single_file_per_rank=r.random() < .6, sync_files=False), no_dist=True)
    return path, tensors


def boxes(r, path):
    states, wholes = [{} for _ in range(r.randrange(1, 6))], {}
    for name in names_of(r, 12):
        t = wholes[name] = values(r, r.choice(list(SPELLED)), shape_of(r, 1))
        cut = [(r.choice(states), box) for box in partition(r, [0] * t.dim(), list(t.shape), 4)]
        for state in states:
            mine = [box for owner, box in cut if owner is state]
            state.update({name: Pieces(t, mine)} if mine else {})
    save_ranks(states, [dcp.FileSystemWriter(path, single_file_per_rank=r.random() < .7, sync_files=False) for _ in states])
    return path, wholes


def dtensors(r, path, writer=None):
    grid = r.choice([(2,), (3,), (4,), (2, 2), (2, 3), (3, 2), (2, 2, 2)])
    wholes, places, states = {}, {}, []
    for name in names_of(r, 14):
        t = wholes[name] = values(r, r.choice([d for d in SPELLED if not writer or d not in (torch.float8_e8m0fnu, torch.float4_e2m1fn_x2)]), shape_of(r))
        places[name] = [Shard(r.randrange(t.dim())) if t.dim() and r.random() < .7 else Replicate() for _ in grid]
        if len(grid) == 2 and t.dim() and r.random() < .3:
            d = r.randrange(t.dim())
            places[name] = [_StridedShard(d, split_factor=grid[1]), Shard(d)]

    def enter(rank):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=math.prod(grid))

    for rank in range(math.prod(grid)):
        enter(rank)
        mesh, state = init_device_mesh("cpu", grid), {}
        for name, t in wholes.items():
            size, offset = compute_local_shape_and_global_offset(t.shape, mesh, places[name])
            mine = t[tuple(slice(o, o + n) for o, n in zip(offset, size))].clone()
            state[name] = DTensor.from_local(mine, mesh, places[name], run_check=False, shape=t.shape, stride=t.stride())
        states.append(state)
    writer = writer or (lambda names: dcp.FileSystemWriter(path, single_file_per_rank=r.random() < .8, sync_files=False))
    save_ranks(states, [writer(wholes) for _ in states], enter)
    dist.destroy_process_group()
    return path, wholes


def hugging_face(r, path):
    files = r.randrange(1, 4)
    return dtensors(r, path, lambda names: HuggingFaceStorageWriter(path, save_distributed=True, fqn_to_index_mapping={
        n: 1 + i % files for i, n in enumerate(sorted(names))}))
