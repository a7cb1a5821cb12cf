# The memory of s2s-ckpt: less than 64 MiB whatever the size of a file, up to 50,000 tensors, and about 1 KB for each beyond; and what is told of files that have so many.
load common

# under MIB COMMAND...: exits 0 and peaks below. The libraries of a program that does nothing take 7 to 11 MiB of it, as the system has them.
under() {
    python3 - "$@" <<'PY'
import resource, subprocess, sys
code = subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL).returncode
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
if code or peak >= float(sys.argv[1]):
    sys.exit("exit %d, peak %.1f MiB: %s" % (code, peak, " ".join(sys.argv[2:])))
PY
}

no_sanitizer() {
    case ${S2S_BIN:-} in *sanitize*) skip "memory of the sanitizers" ;; esac
}

# a file of COUNT tensors whose names are long, or of sixty characters
make_many() {
    COUNT=$1 SHORT=${2:-} python3 - <<'PY'
import json, os, struct
header, at = {}, 0
for i in range(int(os.environ["COUNT"])):
    part, shape = ("up_proj", [2, 4]) if i % 2 else ("down_proj", [4, 2])
    name = "model.language_model_of_the_speech_branch.backbone.layers.%d.mixer.experts.%d.%s_of_the_routed_expert.weight" % (i // 1000, i % 1000 // 2, part)
    if os.environ["SHORT"]:
        name = "model.language_model.layers.%02d.mlp.experts.%03d.%s.weight" % (i // 1000, i % 1000 // 2, part[:7])
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 16]}
    at += 16
head = json.dumps(header).encode()
head += b" " * (-len(head) % 8)
open("one.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + bytes(i * 7 % 251 for i in range(at)))
PY
}

@test "a file of gigabytes in less than 64 MiB" {
    no_sanitizer
    MB=$([ -n "$S2S_LONG" ] && echo 8192 || echo 192) python3 - <<'PY'
import json, os, struct
size = int(os.environ["MB"]) << 20
head = json.dumps({"a": {"dtype": "F32", "shape": [size >> 12, 1024], "data_offsets": [0, size]}}).encode()
head += b" " * (-len(head) % 8)
with open("large.safetensors", "wb") as out:
    out.write(struct.pack("<Q", len(head)) + head)
    out.truncate(8 + len(head) + size)
PY
    under 64 s2s-ckpt convert -q --no-sync --to safetensors large.safetensors /dev/null
    [ -z "$S2S_LONG" ] || under 64 s2s-ckpt verify large.safetensors
}

@test "fifty thousand tensors with names of sixty characters in less than 64 MiB" {
    no_sanitizer
    make_many 50000 short
    under 64 s2s-ckpt convert -q --no-sync --to torch_dist one.safetensors dist
    [ -n "$S2S_LONG" ] || return 0
    under 64 s2s-ckpt convert -q --no-sync --to hf --max-shard-size 200KB dist hf
    [ "$(s2s-ckpt ls hf | grep -c experts)" -eq 50000 ]
    under 64 s2s-ckpt ls --json dist
    under 64 s2s-ckpt diff -q dist hf
    under 64 s2s-ckpt average -q --no-sync dist hf mean
    exits 0 s2s-ckpt diff -q hf mean
}

@test "no dict of .metadata is filled with more than a thousand pairs at once, whatever it says of a tensor" {
    PYTHONPATH=$ROOT/tests/oracle/ckpt python3 - <<'PY'
import mini_writer
names = ["model.%d.weight" % i for i in range(2500)]
mini_writer.write("in", [(n, "float32", (1, 2), [((0, 0), (1, 2), bytes(8))]) for n in names],
                  mcore_data={n: (2,) for n in names}, paths={n: tuple(n.split(".")) for n in names})
PY
    s2s-ckpt reshard -q --no-sync in out
    python3 - <<'PY'
import glob, pickle
most, dicts = [0], {}


class Part:
    def __init__(self, *args):
        pass

    def __setstate__(self, state):
        dicts.update(state if isinstance(state, dict) else {})

    def __hash__(self):
        return id(self)


class Reader(pickle._Unpickler):
    def pop_mark(self):
        most[0] = max(most[0], len(self.stack))
        return super().pop_mark()

    def find_class(self, module, name):
        return Part


with open(glob.glob("out/iter_*/.metadata")[0], "rb") as f:
    Reader(f).load()
assert most[0] <= 2000, most
assert dicts["mcore_data"]["model.2499.weight"] == {"nd_reformulated_orig_global_shape": (2,)}, dicts["mcore_data"]
assert dicts["planner_data"]["model.7.weight"] == ("model", "7", "weight")
for key in "state_dict_metadata", "storage_data", "mcore_data", "planner_data":
    assert len(dicts[key]) == 2500, key
PY
}

@test "long: a hundred and fifty thousand tensors take about 1 KB each beyond fifty thousand" {
    no_sanitizer
    make_many 150000 short
    under 160 s2s-ckpt convert -q --no-sync --to torch_dist one.safetensors dist
    under 160 s2s-ckpt verify dist
    under 160 s2s-ckpt convert -q --no-sync --to hf dist hf
    under 160 s2s-ckpt reshard -q --no-sync dist again
    under 160 s2s-ckpt diff -q hf again
    [ "$(s2s-ckpt ls again | grep -c experts)" -eq 150000 ]
}

# cut_rows FOLDER [again]: the rows of each tensor of one.safetensors in two files; again: a name comes again at the end of DCP_SHARDING_INFO
cut_rows() {
    python3 - "$@" <<'PY'
import json, os, struct, sys
whole = open("one.safetensors", "rb").read()
n = struct.unpack("<Q", whole[:8])[0]
header, data = json.loads(whole[8 : 8 + n]), whole[8 + n :]
os.makedirs(sys.argv[1])
for half in 0, 1:
    tensors, info, at, rows = {}, {}, 0, []
    for name, t in header.items():
        begin, end = t["data_offsets"]
        middle = (begin + end) // 2
        rows.append(data[middle:end] if half else data[begin:middle])
        tensors[name] = {"dtype": "BF16", "shape": [t["shape"][0] // 2, t["shape"][1]], "data_offsets": [at, at + 8]}
        info[name] = {"saved_offsets": [half * t["shape"][0] // 2, 0]}
        at += 8
    text = json.dumps(info)
    if "again" in sys.argv:
        text = text[:-1] + ', "%s": {}}' % next(iter(info))
    head = json.dumps({**tensors, "__metadata__": {"DCP_SHARDING_INFO": text, "format": "pt"}}).encode()
    open("%s/model-%05d-of-00002.safetensors" % (sys.argv[1], half + 1), "wb").write(struct.pack("<Q", len(head)) + head + b"".join(rows))
PY
}

@test "long: fifty thousand boxes in less than 64 MiB: torch.distributed.checkpoint with safetensors" {
    no_sanitizer
    make_many 25000 short
    cut_rows boxes
    under 64 s2s-ckpt ls boxes
    under 64 s2s-ckpt diff one.safetensors boxes
}

@test "a name that comes again at the end of DCP_SHARDING_INFO is found" {
    make_many 2000
    cut_rows once
    exits 0 s2s-ckpt diff one.safetensors once
    cut_rows twice again
    exits 1 s2s-ckpt ls twice
    says "model-00001-of-00002.safetensors: DCP_SHARDING_INFO is not JSON"
}

@test "long: a header with tens of megabytes of white space in less than 64 MiB" {
    python3 - <<'PY'
import struct
def write(path, head):
    open(path, "wb").write(struct.pack("<Q", len(head)) + head + bytes(range(8)))
a = b'"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}'
b = b'"b": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}'
run = b" " * (20 << 20)
write("plain.safetensors", b"{" + a + b", " + b + b"}")
write("after.safetensors", b"{" + a + b", " + b + b"}" + run)
write("between.safetensors", b"{" + a + run + b", " + run + b + b"}")
write("within.safetensors", b"{" + a + b", " + b.replace(b'"shape"', run + b'"shape"') + b"}" + b"\n" * (1 << 20))
write("cut.safetensors", b"{" + a + b", " + b + run)
PY
    for name in after between within; do
        under 64 s2s-ckpt verify $name.safetensors
        exits 0 s2s-ckpt diff plain.safetensors $name.safetensors
    done
    exits 1 s2s-ckpt ls cut.safetensors
    says "safetensors header"
}

@test "an index that is not JSON, or names something twice, is refused with its line" {
    make_many 200
    exits 0 s2s-ckpt convert -q --no-sync --to hf --max-shard-size 2KB one.safetensors shards
    cp shards/model.safetensors.index.json index
    # $1: what the text becomes
    change() {
        python3 - "$1" <<'PY'
import sys
text = open("index").read()
lines = text.splitlines(True)
open("shards/model.safetensors.index.json", "w").write(eval(sys.argv[1]))
PY
    }
    for bad in 'text[:len(text) // 2]' 'text[:-2] + "]"' 'text.replace("{", "[", 1)' '""' 'text + "}"'; do
        change "$bad"
        exits 1 s2s-ckpt ls shards
        says "model.safetensors.index.json:"
    done
    change '"".join(lines[:150] + ["x\n"] + lines[150:])'
    exits 1 s2s-ckpt ls shards
    says "index.json:151: "
    change '"".join(lines[:150] + lines[100:101] + lines[150:])'
    exits 1 s2s-ckpt ls shards
    says "duplicate object key"
    change 'text.replace("\"weight_map\"", "\"weight_map\": {}, \"weight_map\"")'
    exits 1 s2s-ckpt ls shards
    says "duplicate object key"
    # what JSON may also be
    s2s-ckpt ls one.safetensors >names
    for same in 'text.replace("weight_map", "weight\\u005fmap")' 'text.replace("\n", "").replace("  ", "")' 'text.replace(".mixer.", "\\u002emixer\\u002e")'; do
        change "$same"
        exits 0 s2s-ckpt ls shards
        alike "$(cat names)" "$(s2s-ckpt ls shards)"
    done
}

@test "tens of thousands of stacks of layers are told apart at once" {
    python3 - <<'PY'
import json, struct
header, at = {}, 0
for i in range(20000):
    for part in ("self_attention.linear_qkv.weight", "mlp.linear_fc1.weight"):
        header["s%d.decoder.layers.0.%s" % (i, part)] = {"dtype": "U8", "shape": [1], "data_offsets": [at, at + 1]}
        at += 1
head = json.dumps(header).encode()
open("stacks.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + bytes(at))
PY
    # a comparison of each with each took minutes
    exits 0 timeout 30 s2s-ckpt convert --plan -q --to torch_dist --layers stacked stacks.safetensors out
}

@test "a .metadata of which Megatron-Core repeats all, and one in another order, give the same" {
    python3 - <<'PY'
import json, struct
header, at = {}, 0
for i in range(2500):
    header["layers.%d.weight" % i] = {"dtype": "F32", "shape": [2, 1], "data_offsets": [at, at + 8]}
    at += 8
head = json.dumps(header).encode()
open("in.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + bytes(i % 251 for i in range(at)))
PY
    s2s-ckpt convert -q --to torch_dist in.safetensors plain
    # Python's own pickler numbers every object and shares them
    for order in repeated reversed; do
        cp -r plain $order
        rm $order/iter_0000001/s2s-manifest.json
        ORDER=$order python3 - <<'PY'
import os, pickle, sys, types


class Any:
    def __new__(cls, *args):
        self = object.__new__(cls)
        self.__dict__["made_of"] = args
        return self

    def __reduce__(self):
        state = {k: v for k, v in self.__dict__.items() if k not in ("made_of", "state")}
        return type(self), self.made_of, self.__dict__.get("state", state) or None

    def __setstate__(self, state):
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})

    def __hash__(self):
        return id(self)


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        there = sys.modules.setdefault(module, types.ModuleType(module))
        if not hasattr(there, name):
            setattr(there, name, type(name, (Any,), {"__module__": module}))
        return getattr(there, name)


path = os.environ["ORDER"] + "/iter_0000001/.metadata"
meta = Reader(open(path, "rb")).load()
item = Reader(open(path, "rb")).find_class("torch.distributed.checkpoint.planner", "WriteItem")
plan = Reader(open(path, "rb")).find_class("torch.distributed.checkpoint.planner", "SavePlan")
if os.environ["ORDER"] == "repeated":
    plans = plan()
    plans.items = []
    for index, info in meta.storage_data.items():
        one = item()
        one.index, one.tensor_data = index, meta.state_dict_metadata[index.fqn]
        plans.items.append(one)
    meta.all_local_plans = [plans, plans]
else:
    meta.__dict__.update({k: meta.__dict__.pop(k) for k in reversed([*meta.__dict__])})
pickle.dump(meta, open(path, "wb"), protocol=4)
PY
        exits 0 s2s-ckpt verify $order
        exits 0 s2s-ckpt diff plain $order
    done
}

@test "the peak that is told is the program's own, not that of the one that started it" {
    peak=$(python3 -c 'import json, subprocess, sys
ballast = b"x" * (256 << 20)
p = subprocess.run(sys.argv[1:], capture_output=True, check=True)
print(json.loads(p.stdout)["peak_memory_bytes"] >> 20)' "$S2S_BIN/s2s-ckpt" reshard --json "$ROOT/tests/oracle/ckpt/data/dcp_plain" out)
    [ "$peak" -gt 0 ]
    [ "$peak" -lt 200 ]
}

# torch.py: a module that writes torch.save's files as torch does, with plain Python
write_torch() {
    cat >torch_files.py <<'PY'
import collections, io, pickle, struct, sys, types, zipfile

for name in ("torch", "torch._utils"):
    sys.modules[name] = types.ModuleType(name)


class BFloat16Storage:
    __module__ = "torch"


def _rebuild_tensor_v2(*args):
    return args


_rebuild_tensor_v2.__module__ = "torch._utils"
sys.modules["torch"].BFloat16Storage = BFloat16Storage
sys.modules["torch._utils"]._rebuild_tensor_v2 = _rebuild_tensor_v2


class Storage:
    def __init__(self, key, numel):
        self.key, self.numel = key, numel


class Tensor:
    def __init__(self, key, shape, offset=0, numel=8):
        self.storage, self.shape, self.offset = Storage(str(key), numel), shape, offset

    def __reduce__(self):
        return _rebuild_tensor_v2, (self.storage, self.offset, self.shape, (self.shape[1], 1), False, collections.OrderedDict())


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return ("storage", BFloat16Storage, obj.key, "cpu", obj.numel) if isinstance(obj, Storage) else None


def dumps(value, protocol=2):
    out = io.BytesIO()
    Pickler(out, protocol).dump(value)
    return out.getvalue()


# 16 bytes a storage
def save(value, path, n_storages=0, protocol=2):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", dumps(value, protocol))
        archive.writestr("archive/version", "3\n")
        for i in range(n_storages):
            archive.writestr("archive/data/%d" % i, struct.pack("<8H", *(i * 8 + k & 0x3FFF for k in range(8))))


# keys: those of the storages, in the file's order
def save_legacy(value, path, n_storages, keys=None):
    with open(path, "wb") as out:
        for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, value, keys or [str(i) for i in range(n_storages)]):
            out.write(dumps(part))
        for i in range(n_storages):
            out.write(struct.pack("<q8H", 8, *(i * 8 + k & 0x3FFF for k in range(8))))


def many(count, prefix=""):
    names = ("%smodel.language_model_of_the_speech_branch.backbone.layers.%d.mixer.experts.%d.up_proj_of_the_routed_expert.weight"
             % (prefix, i // 500, i % 500) for i in range(count))
    return collections.OrderedDict((name, Tensor(i, (2, 4))) for i, name in enumerate(names))
PY
}

@test "a storage of which twenty thousand tensors are views is read once" {
    write_torch
    python3 - <<'PY'
import zipfile
from torch_files import *
save({"w.%d" % i: Tensor(0, (2, 4), 8 * i, 8 << 20) for i in range(20000)}, "views.pt")
with zipfile.ZipFile("views.pt", "a") as archive:
    archive.writestr("archive/data/0", bytes(range(256)) * (1 << 16))
data = bytearray(open("views.pt", "rb").read())
data[len(data) // 2] ^= 1
open("flipped.pt", "wb").write(data)
PY
    # 320 GB are not
    exits 0 timeout 20 s2s-ckpt verify views.pt
    exits 0 timeout 20 s2s-ckpt convert -q --no-sync --to torch_dist views.pt out
    exits 1 s2s-ckpt verify flipped.pt
    says "CRC-32"
    exits 1 s2s-ckpt convert -q --no-sync --to torch_dist flipped.pt bad
    [ ! -e bad/latest_checkpointed_iteration.txt ]
}

@test "long: fifty thousand tensors of torch.save that are parts of one storage in less than 64 MiB" {
    no_sanitizer
    write_torch
    python3 - <<'PY'
from torch_files import *
n = 50000
save({"layers.%d.mlp.experts.%d.weight" % (i // 1000, i % 1000): Tensor(0, (2, 4), 8 * i, 8 * n) for i in range(n)}, "parts.pt")
with zipfile.ZipFile("parts.pt", "a") as archive:
    archive.writestr("archive/data/0", struct.pack("<%dH" % (8 * n), *(i & 0x3FFF for i in range(8 * n))))
print("", *(8 * n - 8 + k & 0x3FFF for k in range(8)), file=open("want", "w"))
PY
    under 64 s2s-ckpt convert -q --no-sync --to safetensors parts.pt out.safetensors
    s2s-ckpt cat out.safetensors layers.49.mlp.experts.999.weight | od -An -v -tu2 | tr -s ' ' >got
    cmp got want
}

@test "long: fifty thousand storages of torch.save's files and of torch before 1.6 in less than 64 MiB" {
    no_sanitizer
    write_torch
    # keys of the old files are addresses, which are not in the order of the tensors
    python3 - <<'PY'
import random
from torch_files import *
n = 50000
names = ["layers.%d.mlp.experts.%d.weight" % (i // 1000, i % 1000) for i in range(n)]
save({"epoch": 1, "state_dict": {name: Tensor(i, (2, 4)) for i, name in enumerate(names)}}, "zip.pt", n)
keys, order = [94370000000000 + 64 * i for i in range(n)], random.Random(1).sample(range(n), n)
save_legacy({"state_dict": {name: Tensor(keys[of], (2, 4)) for name, of in zip(names, order)}}, "legacy.pt", n, [str(key) for key in keys])
for path, last in ("zip.pt", n - 1), ("legacy.pt", order[-1]):
    print("", *(8 * last + k & 0x3FFF for k in range(8)), file=open(path + ".want", "w"))
PY
    for in in zip.pt legacy.pt; do
        under 64 s2s-ckpt ls $in
        under 64 s2s-ckpt verify $in
        under 64 s2s-ckpt convert -q --no-sync --to safetensors $in out.safetensors
        under 64 s2s-ckpt diff -q $in out.safetensors
        s2s-ckpt cat out.safetensors state_dict.layers.49.mlp.experts.999.weight | od -An -v -tu2 | tr -s ' ' >got
        cmp got $in.want
    done
}

@test "storages of torch before 1.6: parts of one, keys that are no numbers, and lists of them that do not fit" {
    write_torch
    python3 - <<'PY'
from torch_files import *
a, b = "storage", "140226622011232"
both = {"a": Tensor(a, (2, 4)), "b": Tensor(b, (1, 4)), "c": Tensor(b, (1, 4), 4)}
save_legacy(both, "fits.pt", 2, [b, a])
save_legacy(both, "twice.pt", 3, [b, a, b])
save_legacy(both, "unknown.pt", 2, [b, "140226622011233"])
save_legacy(both, "lacks.pt", 1, [b])
save_legacy(both, "nested.pt", 2, [b, [a]])
save_legacy({**both, "c": Tensor(b, (1, 4), 4, 9)}, "two_lengths.pt", 2, [b, a])
save_legacy({"a": Tensor(a, (1, 4), 0, 7)}, "other_length.pt", 1, [a])
# of one storage, twenty thousand
save_legacy({str(i): Tensor(b, (2, 4)) for i in range(20000)}, "shared.pt", 1, [b])
PY
    exits 0 s2s-ckpt verify fits.pt
    [ "$(for name in a b c; do s2s-ckpt cat fits.pt $name | od -An -v -tu2 | tr -s ' '; done)" = " 8 9 10 11 12 13 14 15
 0 1 2 3
 4 5 6 7" ]
    exits 1 s2s-ckpt ls twice.pt
    says "storage 140226622011232 is there twice"
    exits 1 s2s-ckpt ls unknown.pt
    says "storage 1: no tensor names it"
    exits 1 s2s-ckpt ls lacks.pt
    says "storage storage is not in the file"
    exits 1 s2s-ckpt ls nested.pt
    says "no tensor names it"
    exits 1 s2s-ckpt ls two_lengths.pt
    says "storage 0 of 2: its tensors say different lengths"
    exits 1 s2s-ckpt ls other_length.pt
    says "storage 0 of 1 has 8 elements, its tensor says 7"
    exits 0 s2s-ckpt verify shared.pt
}

@test "long: twenty-five thousand DTensors of each of two FSDP ranks in less than 64 MiB" {
    no_sanitizer
    write_torch
    mkdir in
    python3 - <<'PY'
from torch_files import *


def named(module, name):
    sys.modules.setdefault(module, types.ModuleType(module))
    made = type(name, (), {"__module__": module})
    setattr(sys.modules[module], name, made)
    return made


D = "torch.distributed."
from_type, wrapper = named("torch._tensor", "_rebuild_from_type_v2"), named("torch._utils", "_rebuild_wrapper_subclass")
dtype, kind, spec, meta, shard, mesh, layout = (named(*name) for name in (
    ("torch", "bfloat16"), (D + "tensor", "DTensor"), (D + "tensor._dtensor_spec", "DTensorSpec"), (D + "tensor._dtensor_spec", "TensorMeta"),
    (D + "tensor.placement_types", "Shard"), (D + "device_mesh", "DeviceMesh"), (D + "_mesh_layout", "_MeshLayout")))


def made(of, **state):
    value = of()
    value.__dict__.update(state)
    return value


meta.__new__, meta.__getnewargs__ = lambda cls, *args: object.__new__(cls), lambda self: ((4, 4), (4, 1), dtype)


class DTensor:
    def __init__(self, local, of):
        self.local, self.of = local, of

    def __reduce__(self):
        state = {"_local_tensor": self.local, "_spec": made(spec, mesh=self.of, placements=(made(shard, dim=0),), tensor_meta=meta())}
        return from_type, (wrapper, kind, (kind, dtype, (4, 4), (4, 1), 0, None, None, False), (None, state))


for rank in range(2):
    of = made(mesh, _coordinate_on_dim=(rank,), _flatten_rank_map=(0, 1), _layout=made(layout, shape=(2,), stride=(1,)))
    save({"layers.%d.mlp.experts.%d.weight" % (i // 1000, i % 1000): DTensor(Tensor(i, (2, 4)), of) for i in range(25000)},
         "in/model_world_size_2_rank_%d.pt" % rank, 25000)
PY
    under 64 s2s-ckpt ls in
    under 64 s2s-ckpt verify in
    under 64 s2s-ckpt convert -q --no-sync --to torch_dist in out
    under 64 s2s-ckpt diff -q in out
    under 64 s2s-ckpt average -q --no-sync in in mean
    [ "$(s2s-ckpt ls out | grep -c 'BF16.\[4, 4\]')" -eq 25000 ]
    s2s-ckpt cat mean layers.24.mlp.experts.999.weight | od -An -v -w16 -tu2 | tr -s ' ' >got
    printf ' %s\n' "$(seq -s' ' 3384 3391)"{,} >want # from (24999 * 8) & 0x3FFF
    cmp got want
}

@test "long: byte objects of 64 MB in a torch archive: less than 64 MiB" {
    no_sanitizer
    write_torch
    exits 0 s2s-ckpt reshard -q --no-sync "$ROOT/tests/oracle/ckpt/data/mcore016_hybrid_tp2pp2ep2" dist
    rm dist/*/s2s-manifest.json
    python3 - <<'PY'
import glob, os
from torch_files import *
blob = bytes(range(256)) * 250000
# protocol 2 has no bytes: they are texts that are encoded
for protocol in (2, 4):
    save({"w": Tensor(0, (2, 4)), "blob": blob, "last": 7}, "one%d.pt" % protocol, 1, protocol)
save_legacy({"w": Tensor(0, (2, 4)), "blob": blob, "last": 7}, "legacy.pt", 1)
os.makedirs("ranks/mp_rank_00")
save({"model": {"w": Tensor(0, (2, 4))}, "blob": blob, "iteration": 7}, "ranks/mp_rank_00/model_optim_rng.pt", 1)
save({"blob": blob, "iteration": 7}, glob.glob("dist/iter_*/common.pt")[0])
PY
    for in in one2.pt one4.pt legacy.pt ranks; do
        under 64 s2s-ckpt verify "$in"
        under 64 s2s-ckpt ls --json "$in"
        under 64 s2s-ckpt convert -q --no-sync --to torch_dist "$in" out
        rm -r out
    done
    for in in one2.pt one4.pt legacy.pt; do
        s2s-ckpt ls --json "$in" >shown
        grep -q '(64000000 bytes)' shown
        grep -Eq '"last".*7' shown
    done
    under 64 s2s-ckpt verify dist
    under 64 s2s-ckpt reshard -q --no-sync dist again
    under 64 s2s-ckpt prune -q --no-sync dist pruned
    cmp dist/iter_0001000/common.pt again/iter_0001000/common.pt
}

@test "a text past 12 MiB is warned of, one of a megabyte is kept, and a line past 4 MiB is refused" {
    write_torch
    python3 - <<'PY'
from torch_files import *
save_legacy({"w": Tensor(0, (2, 4)), "short": "kept " * 200000, "long": "t" * 14000000, "last": 7}, "legacy.pt", 1)
# a line of protocol 0
with zipfile.ZipFile("line.pt", "w") as archive:
    archive.writestr("archive/data.pkl", b"V" + b"t" * 9000000 + b"\n.")
PY
    exits 0 s2s-ckpt ls --json legacy.pt
    says 'a text of 14000000 bytes (byte '
    says '"value": "(14000000 bytes of text)"'
    says '"last", "value": 7'
    says 'kept kept kept kept "'
    exits 1 s2s-ckpt ls line.pt
    says "line of more than 4 MiB"
}

@test "long: a text of 64 MB in a torch archive: less than 64 MiB" {
    no_sanitizer
    write_torch
    python3 - <<'PY'
import os
from torch_files import *
values = {"w": Tensor(0, (2, 4)), "short": "kept " * 200000, "long": "t" * 64000000, "last": 7}
save(values, "zip.pt", 1, 4)
save(values, "unframed.pt", 1)
save_legacy(values, "legacy.pt", 1)
os.makedirs("ranks/mp_rank_00")
save({"model": {"w": Tensor(0, (2, 4))}, "args": values["long"], "iteration": 7}, "ranks/mp_rank_00/model_optim_rng.pt", 1)
PY
    for in in zip.pt unframed.pt legacy.pt ranks; do
        under 64 s2s-ckpt verify "$in"
        under 64 s2s-ckpt ls --json "$in"
        under 64 s2s-ckpt convert --no-sync --to torch_dist "$in" out
        rm -r out
    done
}

# dcp.py: a torch.distributed.checkpoint of many chunks, without torch
write_dcp() {
    write_torch
    cat >dcp.py <<'PY'
import os
from torch_files import *

META = "torch.distributed.checkpoint.metadata"
for name in ("torch.distributed", "torch.distributed.checkpoint", META, "torch.distributed.checkpoint.filesystem"):
    sys.modules[name] = types.ModuleType(name)


def known(module, name, **more):
    made = type(name, (), {"__module__": module, "__init__": lambda self, **state: self.__dict__.update(state), **more})
    setattr(sys.modules[module], name, made)
    return made


Metadata, MetadataIndex = known(META, "Metadata"), known(META, "MetadataIndex")
Chunk, Stored = known(META, "ChunkStorageMetadata"), known(META, "TensorStorageMetadata")
Properties = known(META, "TensorProperties", __getstate__=lambda self: (sys.modules["torch"].bfloat16,))
Place = known("torch.distributed.checkpoint.filesystem", "_StorageInfo")
sys.modules["torch"].bfloat16 = known("torch", "dtype", __reduce__=lambda self: "bfloat16")()


def item(value):
    save(Tensor(value, (2, 4)), "item.pt", value + 1)
    return open("item.pt", "rb").read()


# tensors: {name: list of chunks}, in chunks of [2, 4]; items: of each in its list
def write(folder, tensors, items, files=2):
    os.makedirs(folder)
    out = [open("%s/__%d_0.distcp" % (folder, i), "wb") for i in range(files)]
    storage, props = {}, Properties()
    for name, chunks in tensors.items():
        for i, chunk in enumerate(chunks):
            f, blob = i % files, items[i % len(items)]
            index = MetadataIndex(fqn=name, offset=(*chunk.offsets,), index=i)
            storage[index] = Place(relative_path="__%d_0.distcp" % f, offset=out[f].tell(), length=len(blob))
            out[f].write(blob)
    stored = {name: Stored(properties=props, size=(2 * len(chunks), 4), chunks=chunks) for name, chunks in tensors.items()}
    with open(folder + "/.metadata", "wb") as f:
        pickle.dump(Metadata(state_dict_metadata=stored, planner_data={}, storage_data=storage), f, 2)


def rows(count):
    return [Chunk(offsets=(2 * i, 0), sizes=(2, 4)) for i in range(count)]
PY
}

@test "chunks in whatever order, and in lists that several tensors have" {
    write_dcp
    python3 <<'PY'
from dcp import *
some, more, one = rows(4), rows(2), rows(1)
del more[1:]
more.append(some[1])
write("dcp", {"a": some[::-1], "b": some, "c": some, "d": more}, [item(i) for i in range(4)])
# a chunk that is all of a tensor is kept with that, and given back before the last of these is read
many = {"many.%d" % i: rows(1) for i in range(3000)}
write("whole", {"first": one, **many, "last": one}, [item(7)])
PY
    # each item stands for a place in its list
    for at in a:3210 b:0123 c:0123 d:01; do
        s2s-ckpt cat dcp "${at%:*}" >got
        python3 -c 'import struct, sys
open("want", "wb").write(b"".join(struct.pack("<8H", *range(8 * int(i), 8 * int(i) + 8)) for i in sys.argv[1]))' "${at#*:}"
        cmp got want
    done
    exits 0 s2s-ckpt verify dcp
    python3 -c 'import struct; open("want", "wb").write(struct.pack("<8H", *range(56, 64)))'
    for name in first many.0 many.1500 last; do
        s2s-ckpt cat whole $name >got
        cmp got want
    done
    exits 0 s2s-ckpt verify whole
}

@test "long: fifty thousand chunks of two tensors in less than 64 MiB" {
    no_sanitizer
    write_dcp
    python3 -c 'from dcp import *
write("dcp", {name: rows(25000) for name in "ab"}, [item(0)])'
    under 64 s2s-ckpt ls dcp
    under 64 s2s-ckpt verify dcp
    under 64 s2s-ckpt convert -q --no-sync --to safetensors dcp all.safetensors
    [ "$(s2s-ckpt cat all.safetensors b | sha256sum)" = "$(python3 -c 'import struct, sys
sys.stdout.buffer.write(struct.pack("<8H", *range(8)) * 25000)' | sha256sum)" ]
}
