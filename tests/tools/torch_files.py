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
