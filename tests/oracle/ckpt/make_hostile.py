"""make_hostile.py OUT: checkpoints that lie, a folder or file each in OUT, and OUT/cases.tsv: path, and a piece of what must be said of
it. Plain Python; nothing here runs anything."""
import io
import json
import os
import shutil
import struct
import sys
import zipfile

out = sys.argv[1]
data = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
cases = []


def put(name, content, says):
    path = os.path.join(out, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(content)
    cases.append((name, says))


# ---- safetensors ----

def st(header, body=b"\0" * 16, length=None):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head) if length is None else length) + head + body


def tensor(shape=(4,), dtype="F32", begin=0, end=16):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def safetensors(name, content, says):
    put("st_%s.safetensors" % name, content, says)


good = {"a": tensor()}
safetensors("empty", b"", "")
safetensors("seven_bytes", b"\1\0\0\0\0\0\0", "")
safetensors("header_leaves_file", st(good, length=1000), "")
safetensors("header_of_2_63", struct.pack("<Q", 1 << 63) + b"{}" + b" " * 20, "")
safetensors("header_of_200_mb", st(good, length=200 << 20), "")
safetensors("not_json", st(b"{nonsense}     "), "")
safetensors("array", st(b'{"a": []}   '), "a")
safetensors("twice", st(b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "a": {"dtype": "F32", "shape": [2], '
                        b'"data_offsets": [8, 16]}}'), "")
safetensors("reversed", st({"a": tensor(begin=16, end=0)}), "a")
safetensors("negative", st({"a": tensor(begin=-16, end=0)}), "a")
safetensors("hole", st({"a": tensor((2,), end=8), "b": tensor((1,), begin=12, end=16)}), "")
safetensors("overlap", st({"a": tensor((3,), end=12), "b": tensor((2,), begin=8, end=16)}), "")
safetensors("leaves_file", st({"a": tensor((8,), end=32)}), "")
safetensors("bytes_behind", st({"a": tensor((2,), end=8)}), "")
safetensors("wraps", st({"a": tensor((1 << 32, 1 << 32, 1 << 2), end=16)}), "a")
safetensors("wraps_to_zero", st({"a": tensor((1 << 32, 1 << 32), end=0)}, b""), "a")
safetensors("negative_dim", st({"a": tensor((-4,))}), "a")
safetensors("fraction", st(b'{"a": {"dtype": "F32", "shape": [4.5], "data_offsets": [0, 16]}}'), "a")
safetensors("dtype", st({"a": tensor(dtype="F33")}), "F33")
safetensors("too_few_bytes", st({"a": tensor((5,))}), "a")
safetensors("nul_in_name", st(b'{"a\\u0000b": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'), "")
safetensors("not_utf8", st(b'{"a\xff": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'), "")
safetensors("deep", st(b'{"a":' * 100000), "")
safetensors("cut", st(good, b"\0" * 15), "")


# ---- Hugging Face folders ----

def folder(name, index, says, shards=("x.safetensors",)):
    for shard in shards:
        put("hf_%s/%s" % (name, shard), st(good), says)
        cases.pop()
    text = index if isinstance(index, bytes) else json.dumps(index).encode()
    put("hf_%s/model.safetensors.index.json" % name, text, says)
    cases[-1] = ("hf_" + name, says)


folder("up", {"weight_map": {"a": "../x.safetensors"}}, "no plain file name")
folder("absolute", {"weight_map": {"a": "/etc/passwd"}}, "no plain file name")
folder("lacks_shard", {"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}, "y.safetensors")
folder("lacks_tensor", {"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}, "b")
folder("not_json", b"{", "index.json")
folder("number", {"weight_map": {"a": 3}}, "a")
folder("no_map", {"metadata": {}}, "weight_map")
folder("dots", {"weight_map": {"a": ".."}}, "no plain file name")
folder("newline", {"weight_map": {"a": "x\n.safetensors"}}, "")

# ---- torch.save archives ----


def zipped(pickle, members=(), root="archive", method=zipfile.ZIP_STORED):
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as z:
        if pickle is not None:
            z.writestr(root + "/data.pkl", pickle)
        for name, content in members:
            z.writestr(name, content)
    return raw.getvalue()


def text(s):
    return b"X" + struct.pack("<I", len(s)) + s.encode()


def rebuild(key="0", numel=4, offset=0, size=b"(K\x04t", stride=b"(K\x01t", storage="FloatStorage"):
    persid = b"(" + text("storage") + b"ctorch\n" + storage.encode() + b"\n" + text(key) + text("cpu") + b"J" + struct.pack("<i", numel) + b"tQ"
    where = b"\x8a" + bytes([8]) + struct.pack("<q", offset)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + persid + where + size + stride + b"\x89ccollections\nOrderedDict\n)RtR"


def state(value):
    return b"\x80\x02}" + text("w") + value + b"s."


floats = [("archive/data/0", b"\0" * 16)]


def torch(name, content, says):
    put("pt_%s.pt" % name, content, says)


whole = zipped(state(rebuild()), floats)
torch("cut", whole[:-30], "")
torch("cut_in_data", whole[:120], "")
torch("no_pickle", zipped(None, floats), "data.pkl")
torch("no_storage", zipped(state(rebuild(key="7")), floats), "7")
torch("storage_shorter", zipped(state(rebuild(numel=8)), floats), "0")
torch("offset_outside", zipped(state(rebuild(offset=100)), floats), "w")
torch("offset_wraps", zipped(state(rebuild(offset=(1 << 62) + 1)), floats), "w")
torch("offset_negative", zipped(state(rebuild(offset=-4)), floats), "w")
torch("size_outside", zipped(state(rebuild(size=b"(K\x05t")), floats), "w")
torch("size_wraps", zipped(state(rebuild(size=b"(" + (b"\x8a\x06" + struct.pack("<q", 1 << 40)[:6]) * 2 + b"t", stride=b"(K\x00K\x00t")), floats), "w")
torch("size_negative", zipped(state(rebuild(size=b"(J\xff\xff\xff\xfft")), floats), "w")
torch("stride_negative", zipped(state(rebuild(stride=b"(J\xff\xff\xff\xfft")), floats), "w")
torch("dims_differ", zipped(state(rebuild(stride=b"(K\x01K\x01t")), floats), "w")
torch("os_system", zipped(b"\x80\x02cos\nsystem\n(" + text("touch ran") + b"tR."), "os.system")
torch("eval", zipped(b"\x80\x02cbuiltins\neval\n(" + text("open('ran','w')") + b"tR."), "builtins.eval")
torch("getattr", zipped(b"\x80\x02cbuiltins\ngetattr\n."), "builtins.getattr")
torch("popen", zipped(b"\x80\x02csubprocess\nPopen\n)R."), "subprocess.Popen")
torch("stack_global", zipped(b"\x80\x04" + text("posix") + text("system") + b"\x93."), "posix.system")
torch("inst", zipped(b"\x80\x02(" + text("x") + b"ios\nsystem\n."), "opcode 0x69")
torch("no_stop", zipped(b"\x80\x02}"), "")
torch("stack_empty", zipped(b"\x80\x020."), "")
torch("no_mark", zipped(b"\x80\x02t."), "")
torch("memo_absent", zipped(b"\x80\x02h\x05."), "")
torch("memo_huge", zipped(b"\x80\x02}r\xff\xff\xff\x7fj\xff\xff\xff\x7e."), "")
torch("text_leaves", zipped(b"\x80\x02X\xff\xff\xff\x7fabc."), "")
torch("text_of_2_63", zipped(b"\x80\x04\x8d" + struct.pack("<Q", 1 << 63) + b"abc."), "")
torch("long_negative", zipped(b"\x80\x02\x8b\xff\xff\xff\xff."), "")
torch("opcode", zipped(b"\x80\x02\xff."), "")
torch("protocol", zipped(b"\x80\x63}."), "")
torch("deep", zipped(b"\x80\x02" + b"]" * 200000 + b"a" * 199999 + b"."), "")
torch("itself", zipped(b"\x80\x02]q\0h\0a."), "")
torch("doubles", zipped(b"\x80\x02]q\0" + b"".join(b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(60)) + b"."), "")
torch("deflated", zipped(b"\x80\x02}" + b" " * 10, floats, method=zipfile.ZIP_DEFLATED), "")
torch("bomb", zipped(b"\x80\x02" + b"N0" * (1 << 22) + b"N.", method=zipfile.ZIP_DEFLATED), "")
torch("flipped", whole.replace(b"\0" * 16, b"\0" * 15 + b"\1", 1), "CRC-32")
end = whole.rindex(b"PK\5\6")
torch("members_lie", whole[:end + 8] + struct.pack("<HH", 60000, 60000) + whole[end + 12:], "")
torch("directory_outside", whole[:end + 16] + struct.pack("<I", 0x7FFFFFFF) + whole[end + 20:], "")

# ---- distributed checkpoints ----


def copy(name, source, change, says):
    path = os.path.join(out, name)
    shutil.copytree(os.path.join(data, source), path)
    for where, _, names in os.walk(path):
        for item in names:
            os.chmod(os.path.join(where, item), 0o644)
        os.chmod(where, 0o755)
    change(path)
    cases.append((name, says))


def edit(relative, change):
    def run(path):
        file = os.path.join(path, relative)
        with open(file, "rb") as f:
            content = f.read()
        with open(file, "wb") as f:
            f.write(change(content))
    return run


def link(path):
    file = os.path.join(path, "__0_0.distcp")
    os.rename(file, os.path.join(path, "real"))
    os.symlink("real", file)


copy("dcp_up", "dcp_plain", edit(".metadata", lambda b: b.replace(b"__0_0.distcp", b"../../passwd")), "passwd")
copy("dcp_absolute", "dcp_plain", edit(".metadata", lambda b: b.replace(b"__0_0.distcp", b"/etc//passwd")), "passwd")
copy("dcp_class", "dcp_plain", edit(".metadata", lambda b: b.replace(b"torch.distributed.checkpoint.metadata", b"torch.distributed.checkpoint.metadatb", 1)), "metadatb")
copy("dcp_not_pickle", "dcp_plain", edit(".metadata", lambda b: b"hello" + b), "")
copy("dcp_cut_metadata", "dcp_plain", edit(".metadata", lambda b: b[:-20]), "")
copy("dcp_empty_metadata", "dcp_plain", edit(".metadata", lambda b: b""), "")
copy("dcp_cut_data", "dcp_plain", edit("__0_0.distcp", lambda b: b[:-64]), "__0_0.distcp")
copy("dcp_no_data", "dcp_plain", lambda p: os.unlink(os.path.join(p, "__0_0.distcp")), "__0_0.distcp")
copy("dcp_no_metadata", "dcp_plain", lambda p: os.unlink(os.path.join(p, ".metadata")), "unfinished")
copy("dcp_link", "dcp_plain", link, "link")
os.makedirs(os.path.join(out, "nothing"))
cases.append(("nothing", "no checkpoint"))
put("text.pt", b"just some words, no checkpoint at all\n" * 3, "neither")
put("ranks/mp_rank_zz/model_optim_rng.pt", b"PK", "")
cases[-1] = ("ranks", "")

with open(os.path.join(out, "cases.tsv"), "w", encoding="utf-8") as f:
    for name, says in cases:
        f.write("%s\t%s\n" % (name, says))
