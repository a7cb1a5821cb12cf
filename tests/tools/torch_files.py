"""Files as torch.save makes them, without torch: classes of torch's names whose instances pickle as torch's do."""
import io
import pickle
import struct
import zipfile


def named(module, name):
    """a class that pickles as the global MODULE.NAME"""
    return type(name, (), {"__module__": module})


class Storage:
    def __init__(self, key, values, code="f", kind="FloatStorage"):
        self.key, self.data, self.n, self.kind = key, struct.pack("<%d%s" % (len(values), code), *values), len(values), kind


class Call:
    """pickles as REDUCE of a global on arguments, and BUILD of a state"""

    def __init__(self, module, name, args, state=None):
        self.what = (module, name, args, state)


def tensor(storage, shape, *rest, stride=None, offset=0):
    if stride is None:
        stride = [1] * len(shape)
        for d in range(len(shape) - 2, -1, -1):
            stride[d] = stride[d + 1] * shape[d + 1]
    return Call("torch._utils", "_rebuild_tensor_v2", (storage, offset, tuple(shape), tuple(stride), False, {}) + rest)


class Pickler(pickle._Pickler):
    def persistent_id(self, value):
        if isinstance(value, Storage):
            self.stores[value.key] = value
            return ("storage", named("torch", value.kind), value.key, "cpu", value.n)
        return None

    def save_global(self, obj, name=None):
        self.write(b"c%s\n%s\n" % (obj.__module__.encode(), obj.__name__.encode()))

    def reducer_override(self, value):
        if isinstance(value, Call):
            module, name, args, state = value.what
            return (named(module, name), args, state) if state else (named(module, name), args)
        return NotImplemented


def save(path, value, prefix="archive", order=None, protocol=2):
    out = io.BytesIO()
    pickler = Pickler(out, protocol)
    pickler.stores = {}
    # a class is called by name; nobody calls it here
    pickler.dump(value)
    with zipfile.ZipFile(path, "w") as z:
        z.writestr(prefix + "/data.pkl", out.getvalue())
        if order:
            z.writestr(prefix + "/byteorder", order)
        for key, store in pickler.stores.items():
            z.writestr("%s/data/%s" % (prefix, key), store.data)
        z.writestr(prefix + "/version", "3\n")


DISTRIBUTED = "torch.distributed."


def mesh(rank, sizes, ranks=None, form="axes"):
    """a DeviceMesh as that rank has it, of torch 2.13 ("axes"), 2.10 ("layout") or 2.4 to 2.9 ("tensor")"""
    n, strides = 1, []
    for size in reversed(sizes):
        strides.insert(0, n)
        n *= size
    ranks = tuple(ranks or range(n))
    own = tuple(ranks.index(rank) // stride % size for size, stride in zip(sizes, strides)) if rank in ranks else None
    layout = [Call(DISTRIBUTED + "_mesh_layout", "_FlatLayout", (), {"shape": (size,), "stride": (stride,)}) for size, stride in zip(sizes, strides)]
    state = {"_device_type": "cpu", "_coordinate_on_dim": own, "_thread_id": None}
    if form == "tensor":
        state.update(device_type="cpu", mesh=tensor(Storage("mesh", ranks, "i", "IntStorage"), sizes), _flatten_mesh_list=ranks)
    else:
        state.update(_flatten_rank_map=ranks, _layout=Call(DISTRIBUTED + "_mesh_layout", "_MeshLayout", (),
                                                           {"axes": tuple(layout)} if form == "axes" else {"shape": tuple(sizes), "stride": tuple(strides)}))
    return Call(DISTRIBUTED + "device_mesh", "DeviceMesh", (), state)


def placement(name, **state):
    return Call(DISTRIBUTED + "tensor.placement_types", name, (), state)


def cut(axis):
    return placement("Shard", dim=axis)


def dtensor(local, shape, of, placements, dtype="float32", old=False, order=None, name="DTensor"):
    """local: a tensor, of: a mesh; as torch 2.5 or later has it, or an old one"""
    spec = DISTRIBUTED + ("_tensor.placement_types" if old else "tensor._dtensor_spec")
    for p in placements if old else ():
        p.what = (DISTRIBUTED + "_tensor.placement_types",) + p.what[1:]
    meta = Call(spec, "TensorMeta", (tuple(shape), (1,) * len(shape), named("torch", dtype)))
    state = {"_local_tensor": local, "_spec": Call(spec, "DTensorSpec", (), {"mesh": of, "placements": tuple(placements), "tensor_meta": meta, "shard_order": order})}
    kind = named(DISTRIBUTED + ("_tensor.api" if old else "tensor"), name)
    args = (kind, named("torch", dtype), tuple(shape), (1,) * len(shape), 0, None, None, False)
    return Call("torch._tensor", "_rebuild_from_type_v2", (named("torch._utils", "_rebuild_wrapper_subclass"), kind, args, (None, state)))
