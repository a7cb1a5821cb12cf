"""make_hostile.py OUT: checkpoints that lie, a folder or file each in OUT, and OUT/cases.tsv: path, and a piece of what must be said of
it. Plain Python; nothing here runs anything of theirs."""
import gzip
import hashlib
import io
import json
import os
import shutil
import struct
import sys
import tarfile
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
safetensors("nothing_wide", st({"a": tensor((0, 1 << 40, 1 << 40), end=0)}, b""), "absurd")
safetensors("negative_dim", st({"a": tensor((-4,))}), "a")
safetensors("fraction", st(b'{"a": {"dtype": "F32", "shape": [4.5], "data_offsets": [0, 16]}}'), "a")
safetensors("dtype", st({"a": tensor(dtype="F33")}), "F33")
safetensors("too_few_bytes", st({"a": tensor((5,))}), "a")
safetensors("nul_in_name", st(b'{"a\\u0000b": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'), "")
safetensors("not_utf8", st(b'{"a\xff": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'), "")
safetensors("braces", st(b"{" + b"{}" * 1000000), "expected a string")
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


folder("up", {"weight_map": {"a": "../x.safetensors"}}, "not a plain file name")
folder("absolute", {"weight_map": {"a": "/etc/passwd"}}, "not a plain file name")
folder("lacks_shard", {"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}, "y.safetensors")
folder("lacks_tensor", {"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}, "b")
folder("not_json", b"{", "index.json")
folder("number", {"weight_map": {"a": 3}}, "a")
folder("no_map", {"metadata": {}}, "weight_map")
folder("dots", {"weight_map": {"a": ".."}}, "not a plain file name")
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
torch("stored_long", zipped(state(rebuild()), [("archive/data/0", b"\0" * 20)]), "its tensor says")
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
torch("size_of_nothing", zipped(state(rebuild(size=b"(K\x00" + (b"\x8a\x08" + struct.pack("<q", (1 << 63) - 1)) * 7 + b"t", stride=b"(K\x01" + (b"\x8a\x08" + struct.pack("<q", (1 << 63) - 1)) * 7 + b"t")), floats), "absurd")
torch("size_negative", zipped(state(rebuild(size=b"(J\xff\xff\xff\xfft")), floats), "w")
torch("stride_negative", zipped(state(rebuild(stride=b"(J\xff\xff\xff\xfft")), floats), "w")
torch("dims_differ", zipped(state(rebuild(stride=b"(K\x01K\x01t")), floats), "w")
torch("os_system", zipped(b"\x80\x02cos\nsystem\n(" + text("touch ran") + b"tR."), "os.system")
# what torch.storage calls for bytes loads them with pickle
torch("load_from_bytes", zipped(state(b"ctorch.storage\n_load_from_bytes\n" + text("x") + b"\x85R")), "torch.storage._load_from_bytes")
torch("eval", zipped(b"\x80\x02cbuiltins\neval\n(" + text("open('ran','w')") + b"tR."), "builtins.eval")
torch("getattr", zipped(b"\x80\x02cbuiltins\ngetattr\n."), "builtins.getattr")
torch("popen", zipped(b"\x80\x02csubprocess\nPopen\n)R."), "subprocess.Popen")
torch("stack_global", zipped(b"\x80\x04" + text("posix") + text("system") + b"\x93."), "posix.system")
torch("numpy_load", zipped(b"\x80\x02cnumpy\nload\n(" + text("ran") + b"tR."), "numpy.load")
torch("torch_load", zipped(b"\x80\x02ctorch.serialization\nload\n(" + text("ran") + b"tR."), "torch.serialization.load")
torch("version_99", zipped(state(rebuild()), floats + [("archive/version", b"99\n")]), '"99"')
torch("version_text", zipped(state(rebuild()), floats + [("archive/version", b"three")]), '"three"')
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
torch("doubles", zipped(b"\x80\x02]q\0" + b"".join(b"0](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(60)) + b"."), "")
torch("deflated", zipped(b"\x80\x02}" + b" " * 10, floats, method=zipfile.ZIP_DEFLATED), "")
torch("bomb", zipped(b"\x80\x02" + b"N0" * (1 << 22) + b"N.", method=zipfile.ZIP_DEFLATED), "")
torch("flipped", whole.replace(b"\0" * 16, b"\0" * 15 + b"\1", 1), "CRC-32")
end = whole.rindex(b"PK\5\6")
torch("members_lie", whole[:end + 8] + struct.pack("<HH", 60000, 60000) + whole[end + 12:], "")
torch("directory_outside", whole[:end + 16] + struct.pack("<I", 0x7FFFFFFF) + whole[end + 20:], "")

# values that the machine makes again and again out of its memo: each takes much of little
many = b"\x80\x02]q\0(" + b"N" * 100000 + b"e"
torch("bomb_sets", zipped(many + b"cbuiltins\nset\nq\1" + b"h\1h\0\x85R0" * 50000 + b"."), "a bomb")
torch("bomb_dicts", zipped(b"\x80\x02}q\0(" + b"NN" * 100000 + b"uccollections\nOrderedDict\nq\1" + b"h\1h\0\x85R0" * 50000 + b"."), "a bomb")
torch("bomb_text", zipped(b"\x80\x02" + text("x" * 100000) + b"q\0c_codecs\nencode\nq\1" + b"h\1h\0\x85R0" * 50000 + b"."), "a bomb")
# what takes long: each value is small, and is asked for again and again
dotted = b"\x80\x04" + text("m") + b"\x940" + text("a." * 32000 + "a") + b"\x940"
torch("class_of_many_parts", zipped(dotted + b"h\0h\1\x930" * 150000 + b"N."), "no class is called m.a.a.a.")
torch("many_floats", zipped(b"\x80\x04}\x94(" + b"".join(b"G" + struct.pack(">d", 1.1 + i * 1e-7) + b"N" for i in range(40000)) + b"u0](" + b"h\0" * 200000 + b"e."), "repeat")
torch("many_empty", zipped(b"\x80\x04]\x94(" + b"}" * 100000 + b"e0cmy\nC\n(" + b"h\0" * 400000 + b"tR."), "repeat")
torch("doubles_none", zipped(b"\x80\x02]q\0Na" + b"".join(b"0](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(60)) + b"."), "repeat")
torch("long_names", zipped(b"\x80\x02" + text("k" * 100000) + b"q\0" + b"0}q\1h\0Ns" + b"".join(b"0}q" + bytes([i + 1]) + b"h\0h" + bytes([i]) + b"s" for i in range(1, 200)) + b"."), "a name of")
torch("long_names_of_nothing", zipped(b"\x80\x02}" + text("k" * 1000000) + b"q\0}" + b"h\0}" * 400 + b"s" * 401 + b"."), "a name of")
torch("long_name_of_many", zipped(b"\x80\x02}(" + text("w") + rebuild() + b"q\0" + text("k" * 4000) + b"](" + b"h\0" * 20000 + b"eu.", floats), "names far longer than the pickle itself")
torch("long_tuple", zipped(b"\x80\x02}" + text("t" * 1000000) + b"q\0" + b"0(" + b"h\0" * 2000 + b"tNs."), "a name of")
buffers = b"h\1K\0" * 200000
torch("many_buffers", zipped(b"\x80\x02csome\nModule\n)\x81}(" + text("_parameters") + b"}" + text("_modules") + b"}" +
                             text("_non_persistent_buffers_set") + b"c__builtin__\nset\n](" + text("a") + b"q\0" + b"h\0" * 200000 + b"e\x85R" +
                             text("_buffers") + b"}(" + text("b") + b"q\1K\0" + buffers + b"uub."), "repeat")
torch("name_of_escapes", zipped(b"\x80\x02}" + text("w\x1b]0;owned\x07\x1b[2J") + rebuild(size=b"(K\5t") + b"s.", floats), "w\\x1b]0;owned\\x07\\x1b[2J")
torch("repeated_row", zipped(state(rebuild(size=b"(\x8a\x06" + struct.pack("<q", 1 << 45)[:6] + b"t", stride=b"(K\x00t")), floats), "absurd")
torch("many_views", zipped(b"\x80\x02}" + b"".join(text("w%d" % i) + rebuild(size=b"(J\0\0\0\x40t", stride=b"(K\x00t") + b"s" for i in range(8)) + b".", floats), "absurd")
torch("nine_axes", zipped(state(rebuild(size=b"(" + b"K\1" * 9 + b"t", stride=b"(" + b"K\1" * 9 + b"t")), floats), "at most 8 axes")
torch("thousand_axes", zipped(state(rebuild(size=b"(" + b"K\1" * 1000 + b"t", stride=b"(" + b"K\1" * 1000 + b"t")), floats), "at most 8 axes")
torch("count_is_nan", zipped(state(rebuild()).replace(b"J\4\0\0\0tQ", b"G\x7f\xf8\0\0\0\0\0\0tQ"), floats), "names no storage")
torch("size_is_nan", zipped(state(rebuild(size=b"(G\x7f\xf8\0\0\0\0\0\0t")), floats), "bad size")
torch("size_of_2_80", zipped(state(rebuild(size=b"(\x8a\x0b" + b"\0" * 10 + b"\1t")), floats), "bad size")
torch("two_storages", zipped(state(rebuild()), floats + [("other/data/0", b"\1" * 16)]), "twice")
torch("two_pickles", zipped(state(rebuild()), floats + [("other/data.pkl", b"\x80\x02}.")]), "other/data.pkl is there twice")
torch("itself_as_state", zipped(b"\x80\x02}q\0" + text("w") + b"h\0s."), "levels")
# many keys that print one bytes object of a thousand letters, and hold nothing (one of 257 bytes is large for the build with sanitizers)
torch("keys_of_bytes", zipped(b"\x80\x03N0N0N0cmy\nC\nq\0" + b"0B" + struct.pack("<I", 250) + b"\xff" * 250 + b"q\1\x85q\2" + b"0}q\3" + b"0}(" + text("w") + rebuild() + b"h\0h\2Rh\3" * 50000 + b"u.",
                              floats), "a bomb")
# a hundred thousand tuples around one tuple of five hundred numbers
torch("keys_of_tuples", zipped(b"\x80\x03N0(" + b"M\xff\x7f" * 500 + b"tq\1" + b"0}(" + text("w") + rebuild() + b"(h\1K\1tN(h\1K\2tN" * 50000 + b"u.", floats), "a bomb")
torch("tar", b"pickle" + b"\0" * 251 + b"ustar\0" + b"00" + b"\0" * 1000, "tar")


def ranks_linked(n):
    weights = zipped(b"\x80\x02}" + text("0") + rebuild() + b"q\1s" + b"".join(text(str(i)) + b"h\1s" for i in range(1, 20000)) + b".", floats)
    first = tarfile.TarInfo("tp_rank_00_pp_rank_000/model_weights.ckpt")
    first.size = len(weights)
    raw = [first.tobuf(tarfile.USTAR_FORMAT), weights, bytes(-len(weights) % 512)]
    first.size, first.type, first.linkname = 0, tarfile.LNKTYPE, first.name
    head = first.tobuf(tarfile.USTAR_FORMAT)
    others = sum(head[22:148]) + 256 + sum(head[156:])  # of the sum, in which its own field counts as spaces
    for i in range(1, n):
        name = b"tp_rank_%02d_pp_rank_%03d" % divmod(i, 1000)
        raw += [name, head[22:148], b"%06o\0 " % (others + sum(name)), head[156:]]
    return gzip.compress(b"".join(raw) + bytes(1024), 1)


put("links.nemo", ranks_linked(20000), "the same again and again")
torch("gzip", b"\x1f\x8b\x08" + b"\0" * 40, "gzip")


# the five pickles of before torch 1.6, then storages with their counts
def legacy(obj, keys=b"\x80\x02]" + text("0") + b"a.", data=struct.pack("<q", 4) + b"\0" * 16, protocol=1001, little=b"\x88"):
    magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    return magic + b"\x80\x02M" + struct.pack("<H", protocol) + b"." + b"\x80\x02}" + text("little_endian") + little + b"s." + obj + keys + data


torch("legacy_protocol", legacy(state(rebuild()), protocol=1002), "protocol")
torch("legacy_big", legacy(state(rebuild()), little=b"\x89"), "little-endian")
torch("legacy_os", legacy(b"\x80\x02cos\nsystem\n(" + text("touch ran") + b"tR."), "os.system")
torch("legacy_cut", legacy(state(rebuild()))[:-1], "leaves the file")
torch("legacy_behind", legacy(state(rebuild())) + b"x", "after the last storage")
torch("legacy_negative", legacy(state(rebuild()), data=struct.pack("<q", -4) + b"\0" * 16), "leaves the file")
torch("legacy_wraps", legacy(state(rebuild()), data=struct.pack("<q", 1 << 62) + b"\0" * 16), "leaves the file")
torch("legacy_unknown_key", legacy(state(rebuild()), keys=b"\x80\x02]" + text("9") + b"a."), "no tensor names it")
torch("legacy_twice", legacy(state(rebuild()), keys=b"\x80\x02](" + text("0") * 2 + b"e.", data=(struct.pack("<q", 4) + b"\0" * 16) * 2), "twice")
torch("doubles_in_sets", zipped(b"\x80\x02c__builtin__\nset\n](Nq\0e\x85R" + b"".join(b"q" + bytes([i + 1]) + b"0csome\nThing\n(h" + bytes([i + 1]) + b"h" + bytes([i + 1]) + b"tR" for i in range(60)) + b"."), "repeat")
torch("legacy_short", legacy(state(rebuild()), data=struct.pack("<q", 2) + b"\0" * 8), "its tensor says")
torch("legacy_ends", legacy(state(rebuild()), data=b"\0" * 3), "ends before storage")
torch("legacy_keys", legacy(state(rebuild()), keys=b"\x80\x02}."), "no list of storages")

# ---- tensors that are not what they are called ----


def rebuild3(dtype, storage=b"ctorch.storage\nUntypedStorage\n", function=b"_rebuild_tensor_v3"):
    persid = b"(" + text("storage") + storage + text("0") + text("cpu") + b"K\x10tQ"
    return b"ctorch._utils\n" + function + b"\n(" + persid + b"K\0K\4\x85K\1\x85\x89ccollections\nOrderedDict\n)R" + dtype + b"tR"


torch("dtype_unread", zipped(state(rebuild3(b"ctorch\nbits8\n")), floats), "dtype bits8 is not read")
torch("dtype_is_none", zipped(state(rebuild3(b"N")), floats), "it names no dtype")
torch("dtype_is_absent", zipped(state(rebuild3(b"")), floats), "too few arguments")
torch("dtype_of_another", zipped(state(rebuild3(b"ctorch\nint32\n", b"ctorch\nFloatStorage\n")), floats), "disagree")
torch("dtype_of_bytes", zipped(state(rebuild3(b"", function=b"_rebuild_tensor_v2")), floats), "its storage has no dtype")
torch("storage_quantized", zipped(state(rebuild(storage="QInt8Storage")), floats), "storage class QInt8Storage is not read")
torch("storage_of_storage", zipped(state(rebuild()).replace(b"J\4\0\0\0tQ", b"J\4\0\0\0(" + text("0") + b"K\0K\4ttQ"), floats), "a view of another")
torch("storage_absurd", zipped(state(rebuild()).replace(b"J\4\0\0\0tQ", b"\x8a\x08" + struct.pack("<q", 1 << 62) + b"tQ"), floats), "absurd size")
torch("byte_order", zipped(state(rebuild()), floats + [("archive/byteorder", b"big")]), 'byte order "big"')
torch("behind_pickle", zipped(state(rebuild()) + b"x", floats), "1 bytes after the end of the pickle")
torch("program", zipped(state(rebuild()), floats + [("archive/constants.pkl", b"\x80\x02).")]), "it holds a program")
torch("few_bytes", b"PK\3\4" + b"\0" * 6, "10 bytes are too few")
torch("key_twice", zipped(b"\x80\x02}(" + (text("w") + rebuild()) * 2 + b"u.", floats), "is there twice")
torch("key_of_two_dicts", zipped(b"\x80\x02}(" + b"".join(text("l") + b"}" + text(k) + rebuild() + b"s" for k in "xy") + b"u.", floats), "is there twice: l")
torch("key_of_two_layers", zipped(b"\x80\x02}" + text("l") + b"}(" + b"".join(b"K\1}" + text(k) + rebuild() + b"s" for k in "xy") + b"us.", floats), "is there twice")
torch("key_is_a_list", zipped(b"\x80\x02}]" + rebuild() + b"s.", floats), "dict key at byte")
torch("key_holds_a_list", zipped(b"\x80\x02}]\x85" + rebuild() + b"s.", floats), "dict key at byte")
put("mp_list/mp_rank_00/model_optim_rng.pt", zipped(b"\x80\x02]."), "a Megatron rank file is a dict")
cases[-1] = ("mp_list", cases[-1][1])
put("mp_two_models/mp_rank_00/model_optim_rng.pt", zipped(b"\x80\x02}(" + b"".join(text("model") + b"}" + text(k) + rebuild() + b"s" for k in "xy") + b"u.", floats), "is there twice: model")
cases[-1] = ("mp_two_models", cases[-1][1])

# ---- boxes in the headers of safetensors ----


def boxes(name, info, says, index=None, a=tensor()):
    info = info if isinstance(info, str) else json.dumps(info)
    put("box_%s/model-00001-of-00001.safetensors" % name, st({"__metadata__": {"DCP_SHARDING_INFO": info}, "a": a}, b"\0" * a["data_offsets"][1]), says)
    if index:
        put("box_%s/model.safetensors.index.json" % name, json.dumps({"weight_map": index}).encode(), says)
        cases.pop()
    cases[-1] = ("box_" + name, says)


boxes("not_json", "{", "DCP_SHARDING_INFO is not JSON")
boxes("other_rank", {"a": {"saved_offsets": [0, 0]}}, "saved_offsets with another number of axes")
boxes("negative", {"a": {"saved_offsets": [-4]}}, "bad saved_offsets")
boxes("past_63_bits", {"a": {"saved_offsets": [0, 1]}}, "bad saved_offsets", a=tensor((0, (1 << 63) - 1), end=0))
boxes("fraction", {"a": {"saved_offsets": [0.5]}}, "bad saved_offsets")
boxes("hole", {"a": {"saved_offsets": [4]}}, "missing")
boxes("forgotten", {"b": {"saved_offsets": [0]}}, "model-00001-of-00001.safetensors: a: not in DCP_SHARDING_INFO")
boxes("nowhere", {"a": {}}, "a: no saved_offsets")
boxes("lacks_file", {"a": {"saved_offsets": [0]}}, "y.safetensors is missing", {"a": "model-00001-of-00001.safetensors", "b": "y.safetensors"})
boxes("lacks_tensor", {"a": {"saved_offsets": [0]}}, "it is not", {"b": "model-00001-of-00001.safetensors"})

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
# ---- and such whose .metadata is made here ----
M = "torch.distributed.checkpoint.metadata"


def number(n):
    b = n.to_bytes((n.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(b)]) + b


def glob(module, name):
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def size(dims):
    return glob("torch", "Size") + b"((" + b"".join(d if isinstance(d, bytes) else number(d) for d in dims) + b"ttR"


def obj(module, name, **fields):
    return glob(module, name) + b")\x81}(" + b"".join(text(k) + v for k, v in fields.items()) + b"ub"


def dct(pairs):
    return b"}(" + b"".join(k + v for k, v in pairs) + b"u"


def chunk(offsets, sizes):
    return obj(M, "ChunkStorageMetadata", offsets=size(offsets), sizes=size(sizes))


def stored(dims, chunks, dtype="float32"):
    properties = glob(M, "TensorProperties") + b")\x81(" + glob("torch", dtype) + b"NNNNtb"
    return obj(M, "TensorStorageMetadata", properties=properties, size=size(dims), chunks=b"](" + b"".join(chunks) + b"e")


def place(name, offset, at, length, path="__0_0.distcp", **more):
    return (obj(M, "MetadataIndex", fqn=text(name), offset=b"N" if offset is None else size(offset), index=b"N"),
            obj("torch.distributed.checkpoint.filesystem", "_StorageInfo", relative_path=text(path), offset=number(at), length=number(length), **more))


def dcp(name, tensors, places, says, item=None, extra=(), planner_data=b"N", **more):
    if item:
        places = [place("w", [0], 0, len(item))]
    root = obj(M, "Metadata", state_dict_metadata=dct([(text(k), v) for k, v in tensors]), planner_data=planner_data, storage_data=dct(places), **more)
    put("dcp_%s/.metadata" % name, b"\x80\x02" + root + b".", says)
    cases[-1] = ("dcp_" + name, says)
    for path, content in [("__0_0.distcp", item or piece)] + list(extra):
        put("dcp_%s/%s" % (name, path), content, says)
        cases.pop()


piece = zipped(b"\x80\x02" + rebuild() + b".", floats)
n = len(piece)
one = ("w", stored([4], [chunk([0], [4])]))
here = place("w", [0], 0, n)
dcp("good", [one], [here], "")
cases.pop()
for name, cells, shape in (("cells_of_nothing", [1 << 21, 1], b"(" + number(1 << 21) + b"t"), ("flattened_from_more", [4, 1], b"(" + number(5) + b"t")):
    dcp(name, [("w", stored(cells, [chunk([0, 0], cells)]))], [place("w", [0, 0], 0, n)], "w",
        mcore_data=dct([(text("w"), dct([(text("nd_reformulated_orig_global_shape"), shape)]))]))
dcp("flattened_from_twice", [("w", stored([4, 1], [chunk([0, 0], [4, 1])]))], [place("w", [0, 0], 0, n)], "an impossible shape",
    mcore_data=dct([(text("w"), dct([(text("nd_reformulated_orig_global_shape"), b"(" + number(8) + b"t")]))]))
dcp("two_without_offset", [("w", stored([8], [chunk([0], [4]), chunk([4], [4])]))], [place("w", None, 0, n), place("w", [4], 0, n)], "does not have")
dcp("hole", [("w", stored([8], [chunk([0], [4])]))], [here], "missing")
dcp("overlap", [("w", stored([6], [chunk([0], [4]), chunk([2], [4])]))], [here, place("w", [2], 0, n)], "overlap")
# as many elements as the tensor has, two of them twice
dcp("overlap_and_hole", [("w", stored([4, 2], [chunk([0, 0], [2, 2]), chunk([1, 0], [2, 2])]))], [place("w", [0, 0], 0, n), place("w", [1, 0], 0, n)], "chunks at [0, 0] and [1, 0] overlap")
dcp("chunks_of_one_item", [("w", stored([8], [chunk([0], [4]), chunk([4], [4])]))], [here, place("w", [4], 0, n)], "w: chunks at [0] and [4] lie in the same bytes of __0_0.distcp")
dcp("chunk_outside", [("w", stored([4], [chunk([2], [4])]))], [place("w", [2], 0, n)], "leaves the tensor")
dcp("chunk_wraps", [("w", stored([4], [chunk([(1 << 63) - 2], [4])]))], [here], "w")
dcp("chunk_negative", [("w", stored([4], [chunk([-4], [8])]))], [here], "w")
dcp("size_negative", [("w", stored([-4], [chunk([0], [-4])]))], [here], "w")
dcp("size_wraps", [("w", stored([1 << 40, 1 << 40], [chunk([0, 0], [1 << 40, 1 << 40])]))], [place("w", [0, 0], 0, n)], "absurd")
dcp("size_is_nan", [("w", stored([b"G\x7f\xf8\0\0\0\0\0\0"], [chunk([0], [4])]))], [here], "w")
dcp("size_is_huge", [("w", stored([1 << 40], [chunk([0], [1 << 40])]))], [here], "absurd")
dcp("nine_axes", [("w", stored([1] * 9, [chunk([0] * 9, [1] * 9)]))], [place("w", [0] * 9, 0, n)], "at most 8 axes")
dcp("rank_differs", [("w", stored([4], [chunk([0, 0], [4, 1])]))], [here], "another number of axes")
dcp("sizes_of_more_axes", [("w", stored([4], [chunk([0], [4, 1])]))], [here], "another number of axes")
dcp("no_chunks", [("w", stored([4], []))], [], "missing")
dcp("empty_and_wide", [("w", stored([0, 1 << 60], [chunk([0, 0], [0, 1 << 60])]))], [place("w", [0, 0], 0, n)], "absurd")
dcp("dtype_lies", [("w", stored([4], [chunk([0], [4])], "int64"))], [here], "the metadata says")
dcp("dtype_unknown", [("w", stored([4], [chunk([0], [4])], "device"))], [here], "unknown dtype")
dcp("shape_lies", [("w", stored([2, 2], [chunk([0, 0], [2, 2])]))], [place("w", [0, 0], 0, n)], "the metadata says")
dcp("stored_short", [one], [here], "its tensor says", zipped(b"\x80\x02" + rebuild() + b".", [("archive/data/0", b"\0" * 12)]))
dcp("stored_long", [one], [here], "its tensor says", zipped(b"\x80\x02" + rebuild() + b".", [("archive/data/0", b"\0" * 20)]))
dcp("stored_nowhere", [one], [], "in no file")
dcp("stored_twice", [one], [here, place("w", [0], 0, n)], "stored twice")
dcp("fields_twice", [one], [(here[0], place("w", [0], 1, n - 1)[1][:-2] + text("offset") + number(0) + text("length") + number(n) + b"ub")], "field of an object set twice")
path = (text("w"), b"(" + text("w") + b"t")
dcp("paths_twice", [one], [here], "planner_data: w is there twice", planner_data=dct([path, path]))
dcp("flattened_twice", [("w", stored([1, 4], [chunk([0, 0], [1, 4])]))], [place("w", [0, 0], 0, n)], "mcore_data: w is there twice",
    mcore_data=dct([(text("w"), dct([(text("nd_reformulated_orig_global_shape"), b"(" + number(4) + b"t")]))] * 2))
for what, how in (("list", b"](" + text("stream.zstd/1") + b"e"), ("tuple", b"(" + text("stream.zstd/1") + b"t")):
    dcp("transformed_" + what, [one], [place("w", [0], 0, n, transform_descriptors=how)], "w: item is transformed (compressed or encrypted) on its way to the file: transform_descriptors stream.zstd/1")
dcp("stored_unknown", [one], [here, place("v", [0], 0, n)], "not among the names")
dcp("other_offset", [one], [place("w", [1], 0, n)], "does not have")
dcp("other_offset_of_72_bits", [one], [place("w", [1 << 64], 0, n)], "does not have")
dcp("twice", [one, one], [here], "twice")
dcp("item_negative", [one], [place("w", [0], -1, n)], "an item of %d bytes at -1 cannot be" % n)
dcp("item_outside", [one], [place("w", [0], 0, n + 1)], "truncated")
dcp("item_wraps", [one], [place("w", [0], (1 << 63) - 1, n)], "truncated")
dcp("item_empty", [one], [place("w", [0], 0, 0)], "too few")
dcp("item_cut", [one], [place("w", [0], 1, n - 1)], "w")
dcp("transformed", [one], [place("w", [0], 0, n, transform_descriptors=b"](" + text("zstd") + b"e")], "transformed")
dcp("path_dots", [one], [place("w", [0], 0, n, "..")], "not a plain file name")
dcp("path_empty", [one], [place("w", [0], 0, n, "")], "not a plain file name")
dcp("path_nul", [one], [place("w", [0], 0, n, "__0_0.distcp\0x")], "not a plain file name")
dcp("path_backslash", [one], [place("w", [0], 0, n, "..\\x")], "not a plain file name")
dcp("path_escapes", [one], [place("w", [0], 0, n, "\x1b[2J")], "not a plain file name")
dcp("path_is_a_folder", [one], [place("w", [0], 0, n, "sub")], "not a plain file", extra=[("sub/x", b"")])
# the item with a zip64 end that tells of more members than an item may have
at, length = len(piece) - 22, struct.unpack("<I", piece[-10:-6])[0]
crowd = piece[:at] + struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 65537, 65537, length, at - length) + struct.pack("<4sIQI", b"PK\6\7", 0, at, 1) + b"PK\5\6" + b"\0\0" * 2 + b"\xff" * 12 + b"\0\0"
dcp("item_of_many", [one], [place("w", [0], 0, len(crowd))], "65537 members: at most 65536", crowd)
dcp("item_runs", [one], [here], "os.system", zipped(b"\x80\x02cos\nsystem\n(" + text("touch ran") + b"tR."))
dcp("item_is_none", [one], [here], "no tensor", zipped(b"\x80\x02N."))
dcp("item_class", [one], [here], "not known here", zipped(b"\x80\x02cfoo\nbar\n)R."))
dcp("behind", [one], [here], "after the end of the pickle")
with open(os.path.join(out, "dcp_behind/.metadata"), "ab") as f:
    f.write(b"x")
octets = glob(M, "BytesStorageMetadata") + b")\x81"
dcp("object_twice", [one, ("o", octets)], [here, place("o", None, 0, n), place("o", None, 0, n)], "stored twice")
dcp("object_named_twice", [one, ("o", octets), ("o", octets)], [here, place("o", None, 0, n)], "object o is there twice")
dcp("object_named_often", [one], [here], "names longer than the metadata itself")
with open(os.path.join(out, "dcp_object_named_often/.metadata"), "wb") as f:
    f.write(b"\x80\x02" + obj(M, "Metadata", state_dict_metadata=b"}(" + text("o" * 4000) + b"q\0" + octets + b"q\1" + b"h\0h\1" * 20000 + b"u", storage_data=b"}") + b".")
dcp("tensor_named_twice", [one, one], [here], "tensor w is there twice")
dcp("object_nowhere", [one, ("o", octets)], [here], "o: in no file")
dcp("entry_is_text", [("w", text("x"))], [here], "neither tensor nor byte object")
dcp("chunks_are_none", [("w", stored([4], []).replace(b"](e", b"N"))], [here], "without a list of chunks")
dcp("scalar_twice", [("w", stored([], [chunk([], []), chunk([], [])]))], [place("w", [], 0, n)], "a scalar stored 2 times")
dcp("name_with_nul", [("w\0x", stored([4], [chunk([0], [4])]))], [here], "a name of 3 bytes with a NUL in it")
dcp("place_is_none", [one], [(here[0], b"N")], "storage without file, offset or length")
dcp("place_without_name", [one], [(obj(M, "MetadataIndex", index=b"N"), here[1])], "storage without a name")
dcp("impossible_grid", [("w", stored([2, 1, 6], [chunk([0, 0, 0], [2, 1, 6])]))], [place("w", [0, 0, 0], 0, n)], "an impossible grid",
    mcore_data=dct([(text("w"), dct([(text("nd_reformulated_orig_global_shape"), b"(" + number(3) + number(4) + b"t")]))]))
for name, root, says in (("root_is_a_dict", b"}", "not the Metadata"), ("long_list", b"]" + b"}a" * 300000, "not the Metadata"),
                         ("no_names", obj(M, "Metadata", storage_data=b"}"), "no dict state_dict_metadata"),
                         ("no_places", obj(M, "Metadata", state_dict_metadata=b"}"), "no dict storage_data")):
    put("dcp_%s/.metadata" % name, b"\x80\x02" + root + b".", says)
    cases[-1] = ("dcp_" + name, says)
# thousands of tensors in one item, which is long to read
slow = zipped(b"\x80\x02" + b"N0" * 500000 + rebuild() + b".", floats)
dcp("one_item", [("w%d" % i, stored([4], [chunk([0], [4])])) for i in range(4000)],
    [place("w%d" % i, [0], 0, len(slow)) for i in range(4000)], "again and again", extra=[("__0_0.distcp", slow)])
fields = b"\x80\x04}\x94(" + b"".join(text("k" * 20000 + "%04d" % i) + b"N" for i in range(32)) + b"u0" + glob(M, "MetadataIndex") + b"\x940"
put("dcp_fields_of_many/.metadata", fields + b"h\1)\x81h\0b0" * 50000 + b"N.", "not the Metadata")
cases[-1] = ("dcp_fields_of_many", cases[-1][1])
shared = b"](" + chunk([0], [1]) + b"q\0" + b"h\0" * 50000 + b"eq\1"
tensor_of_shared = b"h\2}(" + text("properties") + b"h\3" + text("size") + b"h\4" + text("chunks") + b"h\1ub"
first = (shared + b"0" + glob(M, "TensorProperties") + b")\x81(" + glob("torch", "float32") + b"NNNNtbq\3" + b"0" + size([1]) + b"q\4" + b"0")
names = b"".join(text("w%d" % i) + glob(M, "TensorStorageMetadata") + b")\x81" + tensor_of_shared[2:] for i in range(2000))
put("dcp_shared_chunks/.metadata", b"\x80\x02" + first + obj(M, "Metadata", state_dict_metadata=b"}(" + names + b"u", storage_data=b"}") + b".", "")
cases[-1] = ("dcp_shared_chunks", "a bomb")

objects = []


def with_object(name, payload, says):
    """A tensor that is well, and a byte object that is not."""
    dcp(name, [one, ("rng/shard_0_1", glob(M, "BytesStorageMetadata") + b")\x81")], [here, place("rng/shard_0_1", None, 0, len(payload), "__1_0.distcp")], says, extra=[("__1_0.distcp", payload)])
    objects.append(cases.pop())


with_object("object_runs", zipped(b"\x80\x02cos\nsystem\n(" + text("touch ran") + b"tR."), "os.system")
with_object("object_cut", zipped(b"\x80\x02](Ne.")[:-5], "rng/shard_0_1")
with_object("object_deflated", zipped(b"\x80\x02](Ne.", method=zipfile.ZIP_DEFLATED), "rng/shard_0_1")
with_object("object_flipped", zipped(b"\x80\x02](Ne.", floats).replace(b"\0" * 16, b"\0" * 15 + b"\1", 1), "rng/shard_0_1: __1_0.distcp: item at 0: ")
with_object("object_is_a_tensor", zipped(b"\x80\x02" + rebuild() + b".", floats), "holds a tensor")
with_object("object_is_no_archive", b"just words, and some more of them", "rng/shard_0_1")
wide = zipped(b"\x80\x02](Ne.", [("archive/data/0", bytes(1 << 20))])
dcp("objects_share", [one] + [("o%d" % i, glob(M, "BytesStorageMetadata") + b")\x81") for i in range(1500)],
    [here] + [place("o%d" % i, None, 0, len(wide), "__1_0.distcp") for i in range(1500)], "absurd", extra=[("__1_0.distcp", wide)])
objects.append(cases.pop())
dcp("common_flipped", [one], [here], "common.pt", extra=[("common.pt", zipped(b"\x80\x02}.", floats).replace(b"\0" * 16, b"\0" * 15 + b"\1", 1)), ("metadata.json", b'{"sharded_backend": "torch_dist"}')])
objects.append(cases.pop())
with open(os.path.join(out, "objects.tsv"), "w", encoding="utf-8") as f:
    for name, says in objects:
        f.write("%s\t%s\n" % (name, says))

# ---- names and numbers that a name map goes through ----


def empty(name, dims):
    return (name, stored(dims, [chunk([0] * len(dims), dims)]))


def megatron(name, tensors, says, places=(), common=b"\x80\x02}."):
    """Refused by convert --to hf only: the checkpoint is whole, the model is not."""
    dcp(name, [empty("decoder.layers.0.mlp.linear_fc1.weight", [0, 4]), empty("decoder.layers.0.mlp.linear_fc1.layer_norm_weight", [0])] + tensors,
        [place(k, [0] * d, 0, n) for k, d in (("decoder.layers.0.mlp.linear_fc1.weight", 2), ("decoder.layers.0.mlp.linear_fc1.layer_norm_weight", 1))] +
        [place(k, [0] * d, 0, n) for k, d in places], says, extra=[("common.pt", zipped(common))])
    models.append(cases.pop())


models = []
megatron("layers_on_an_axis", [empty("decoder.layers.self_attention.linear_proj.weight", [1 << 40, 0, 4])], "layers", [("decoder.layers.self_attention.linear_proj.weight", 3)])
megatron("far_layer", [empty("decoder.layers.9999.self_attention.linear_proj.weight", [0, 4])], "absent", [("decoder.layers.9999.self_attention.linear_proj.weight", 2)])
megatron("many_layers", [], "absent", common=b"\x80\x02}" + text("args") + b"cargparse\nNamespace\n)\x81}" + text("num_layers") + number(1 << 29) + b"sbs.")


def rank_folders(name, folders, says):
    """Megatron's rank folders that are no model: {folder: ({tensor: shape}, {argument: number})}. All tensors are views of one number."""
    def pack(dims):
        return b"(" + b"".join(number(d) for d in dims) + b"t"
    for folder, (tensors, args) in folders.items():
        model = b"}(" + b"".join(text(k) + rebuild(size=pack(dims), stride=pack(strides[0] if strides else [0] * len(dims)), storage=dtype)
                                 for k, dims, dtype, *strides in (v if len(v) > 2 else v + ("FloatStorage",) for v in tensors)) + b"u"
        named = b"cargparse\nNamespace\n)\x81}(" + b"".join(text(k) + (number(v) if isinstance(v, int) and not isinstance(v, bool) else b"\x88") for k, v in args.items()) + b"ub"
        put("ranks_%s/%s/model_optim_rng.pt" % (name, folder), zipped(b"\x80\x02}(" + text("model") + model + text("args") + named + b"u.", floats), says)
        cases.pop()
    models.append(("ranks_" + name, says))


def rank(name, tensors, says, **args):
    rank_folders(name, {"mp_rank_00": (tensors, args)}, says)


L = "decoder.layers.0."
rank("no_fc2", [(L + "mlp.linear_fc1.weight", [4, 2])], "its MLP has no linear_fc2 that fits")
rank("fc1_and_fc2", [(L + "mlp.linear_fc1.weight", [6, 2]), (L + "mlp.linear_fc2.weight", [2, 4])], "6 rows, its linear_fc2 has 4 columns")
rank("column", [(L + "self_attention.linear_proj.weight", [4])], "cannot be cut by columns")
rank("row", [("embedding.word_embeddings.weight", [])], "cannot be cut by rows")
rank("mixer_alone", [(L + "mixer.in_proj.weight", [8, 2])], "no out_proj, conv1d and A_log that fit")
rank("mixer_rows", [(L + "mixer.in_proj.weight", [8, 2]), (L + "mixer.out_proj.weight", [2, 2]), (L + "mixer.conv1d.weight", [4, 1, 4]), (L + "mixer.A_log", [1])],
     "does not fit the Mamba layer's other tensors")
rank("experts_said", [(L + "mlp.experts.local_experts.0.linear_fc2.weight", [2, 4])], "the saved arguments say num_experts 4, the rank folders have 1", num_experts=4)
rank("experts_extended", [(L + "mlp.experts.local_experts.0.linear_fc2.weight", [2, 4])], "moe_extended_tp", moe_extended_tp=True)
rank("expert_far", [(L + "mlp.experts.local_experts.99999.linear_fc2.weight", [2, 4])], "the expert's number is too large")
rank("expert_flat", [(L + "mlp.experts.local_experts.0.linear_fc2.weight", [4])], "is none of an expert")
rank("packed_odd", [(L + "mlp.experts.weight1", [2, 5]), (L + "mlp.experts.weight2", [4, 2])], "does not divide into the rank's experts", num_experts=2)
rank("packed_apart", [(L + "mlp.experts.weight1", [2, 2], "FloatStorage", [2, 1]), (L + "mlp.experts.weight2", [3, 1], "FloatStorage", [1, 1])],
     "has no weight2 that fits", num_experts=2)
rank("packed_alone", [(L + "mlp.experts.weight1", [2, 4])], "does not divide into the rank's experts", num_experts=2)
rank("many_stacks", [("m%d.layers.0.w" % i, [4]) for i in range(300)], "more than 256 stacks of layers")
# copies of which one is two halves and the other is not
rank_folders("other_halves", {"mp_rank_00_%03d" % e: ([(L + "mlp.linear_fc1.weight", [4, 2]), (L + "mlp.linear_fc2.weight", [2, 2 << e])], {"pipeline_model_parallel_size": 1})
                              for e in range(2)}, "mp_rank_00_000/decoder.layers.0.mlp.linear_fc1.weight and mp_rank_00_001/decoder.layers.0.mlp.linear_fc1.weight have other")
rank_folders("other_folder", {"mp_rank_00": ([("x", [4])], {}), "mp_rank_0x": ([("x", [4])], {})}, "no folder of a Megatron rank")
rank_folders("other_shape", {"mp_rank_00": ([("x", [4])], {}), "mp_rank_01": ([("x", [2])], {})}, "have other shapes or dtypes")
rank_folders("other_dtype", {"mp_rank_00": ([("x", [4])], {}), "mp_rank_01": ([("x", [4], "IntStorage")], {})}, "have other shapes or dtypes")
with open(os.path.join(out, "models.tsv"), "w", encoding="utf-8") as f:
    for name, says in models:
        f.write("%s\t%s\n" % (name, says))

# ---- odd and whole: what ls must say of it ----
good = []


def whole_torch(name, pickle, says, members=(("archive/data/0", struct.pack("<4f", 1, 2, 3, 4)),)):
    torch(name, zipped(b"\x80\x02" + pickle + b".", members), says)
    good.append(cases.pop())


whole_torch("one_tensor", rebuild(), "tensor\tF32\t[4]\t16")
for protocol in b"\4", b"\5":
    torch("legacy_of_%d" % protocol[0], legacy(state(rebuild())).replace(b"\x80\2", b"\x80" + protocol), "w\tF32\t[4]\t16")
    good.append(cases.pop())
torch("legacy_of_6", legacy(state(rebuild())).replace(b"\x80\2", b"\x80\6"), "neither")
whole_torch("namespace", b"cargparse\nNamespace\n)\x81}" + text("w") + rebuild() + b"sb", "w\tF32\t[4]\t16")
whole_torch("dtypes_as_keys", b"}" + glob("torch", "float32") + glob("torch", "int32") + b"\x86" + rebuild() + b"s", "(torch.float32, torch.int32)\tF32\t[4]\t16")
whole_torch("untyped", b"}" + text("w") + rebuild3(b"ctorch\nuint16\n") + b"s", "w\tU16\t[4]\t8")
whole_torch("own_class", b"}" + text("w") + b"ctorch._tensor\n_rebuild_from_type_v2\n(" + rebuild().split(b"(", 1)[0] + b"cmy\nTensor\n(" + rebuild().split(b"(", 1)[1][:-1] + b"}tRs",
            "w\tF32\t[4]\t16")
whole_torch("list_of_a_class", b"}" + text("w") + b"cmy\nList\n)R" + rebuild() + b"as", "w.0\tF32\t[4]\t16")
dcp("short_sizes", [("w", stored([1, 1, 4], [chunk([0, 0, 0], [4])]))], [place("w", [0, 0, 0], 0, n)], "w\tF32\t[1, 1, 4]\t16")
good.append(cases.pop())
dcp("without_offset", [one], [place("w", None, 0, n)], "w\tF32\t[4]\t16")
good.append(cases.pop())
none = zipped(b"\x80\x02" + rebuild(numel=0, size=b"(K\0K\3t", stride=b"(K\3K\1t") + b".", [("archive/data/0", b"")])
dcp("of_nothing", [("w", stored([0, 3], [chunk([0, 0], [0, 3])]))], [place("w", [0, 0], 0, len(none))], "w\tF32\t[0, 3]\t0", extra=[("__0_0.distcp", none)])
good.append(cases.pop())


def parts(name, index, says, shards):
    for k, names in enumerate(shards, 1):
        put("bin_%s/pytorch_model-0000%d-of-0000%d.bin" % (name, k, len(shards)), zipped(b"\x80\x02}(" + b"".join(text(x) + rebuild() for x in names) + b"u.", floats), says)
        cases.pop()
    put("bin_%s/pytorch_model.bin.index.json" % name, json.dumps({"weight_map": index}).encode(), says)
    cases[-1] = ("bin_" + name, says)


A, B = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
parts("index", {"a": A, "b": B}, "b\tF32\t[4]\t16", [["a"], ["b"]])
good.append(cases.pop())
parts("twice", {"a": A, "b": B}, "tensor a is in two of the index's files", [["a"], ["a", "b"]])
parts("elsewhere", {"a": B, "b": B}, "the index says that a is in", [["a"], ["b"]])
parts("absent", {"a": A, "c": B}, "the index says that c is in", [["a"], ["b"]])
parts("file_absent", {"a": A, "b": "pytorch_model-00003-of-00003.bin"}, "pytorch_model-00003-of-00003.bin", [["a"], ["b"]])
# items whose tensors lie within what is stored, or by columns
six = [("archive/data/0", struct.pack("<6f", 1, 2, 3, 4, 5, 6))]
for name, dims, values, where in (("item_offset", [4], (3, 4, 5, 6), dict(offset=2)),
                                  ("item_transposed", [2, 3], (1, 3, 5, 2, 4, 6), dict(size=b"(K\x02K\x03t", stride=b"(K\x01K\x02t"))):
    item = zipped(b"\x80\x02" + rebuild(numel=6, **where) + b".", six)
    zeros = [0] * len(dims)
    dcp(name, [("w", stored(dims, [chunk(zeros, dims)]))], [place("w", zeros, 0, len(item))],
        "w\tF32\t%s\t%d\t%s" % (dims, 4 * len(values), hashlib.sha256(struct.pack("<%df" % len(values), *values)).hexdigest()), extra=[("__0_0.distcp", item)])
    good.append(cases.pop())
for name, tracker, folder in (("tracked_release", "latest_checkpointed_iteration.txt", "release"), ("tracked_latest", "LATEST.txt", "epoch_0_step_20")):
    shutil.copytree(os.path.join(out, "dcp_good"), os.path.join(out, name, folder))
    put("%s/%s" % (name, tracker), folder.encode() + b" \n", "w\tF32\t[4]\t16")
    good.append((name, cases.pop()[1]))
with open(os.path.join(out, "good.tsv"), "w", encoding="utf-8") as f:
    for name, says in good:
        f.write("%s\t%s\n" % (name, says.replace("\t", " ")))

os.makedirs(os.path.join(out, "nothing"))
cases.append(("nothing", "no known checkpoint"))
put("text.pt", b"just some words, no checkpoint at all\n" * 3, "neither")


# ---- what is no plain file ----
def special(name, make, says):
    """A whole DCP and Hugging Face folder in one, before make(path) changes it."""
    path = os.path.join(out, name)
    os.makedirs(path)
    make(path)
    cases.append((name, says))


def dcp_but(what, make):
    def run(path):
        os.rmdir(path)
        shutil.copytree(os.path.join(out, "dcp_good"), path)
        full = os.path.join(path, what)
        if os.path.exists(full):
            os.rename(full, os.path.join(path, "was"))
        make(full)
    return run


def hf_but(what, make, index=None):
    def run(path):
        for name in ("a.safetensors", "b.safetensors"):
            with open(os.path.join(path, name), "wb") as f:
                f.write(st({name[0]: tensor()}))
        with open(os.path.join(path, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
            json.dump({"weight_map": index or {"a": "a.safetensors", "b": "b.safetensors"}}, f)
        full = os.path.join(path, what)
        if os.path.exists(full):
            os.unlink(full)
        make(full)
    return run


special("pipe_metadata", dcp_but(".metadata", os.mkfifo), "not a plain file")
special("pipe_shard", dcp_but("__0_0.distcp", os.mkfifo), "not a plain file")
special("pipe_json", dcp_but("metadata.json", os.mkfifo), "not a plain file")
special("pipe_tracker", dcp_but("latest_checkpointed_iteration.txt", os.mkfifo), "not a plain file")
special("pipe_common", dcp_but("common.pt", os.mkfifo), "not a plain file")
special("pipe_index", hf_but("model.safetensors.index.json", os.mkfifo), "not a plain file")
special("pipe_safetensors", hf_but("a.safetensors", os.mkfifo), "not a plain file")
special("folder_shard", hf_but("a.safetensors", os.mkdir), "not a plain file")
special("folder_metadata", dcp_but(".metadata", os.mkdir), "not a plain file")
special("device_shard", hf_but("a.safetensors", lambda p: os.symlink("/dev/zero", p)), "not a plain file")
special("loop_shard", hf_but("a.safetensors", lambda p: os.symlink("a.safetensors", p)), "a.safetensors")
special("link_metadata", dcp_but(".metadata", lambda p: os.symlink("was", p)), "a link")
special("link_common", dcp_but("common.pt", lambda p: os.symlink("__0_0.distcp", p)), "a link")
special("link_nowhere", dcp_but("__0_0.distcp", lambda p: os.symlink("nowhere", p)), "a link")
special("link_tracker", dcp_but("latest_checkpointed_iteration.txt", lambda p: os.symlink("/etc/passwd", p)), "latest_checkpointed_iteration.txt")


def write(content):
    def run(path):
        with open(path, "wb") as f:
            f.write(content)
    return run


special("tracker_up", dcp_but("latest_checkpointed_iteration.txt", write(b"../../etc")), "latest_checkpointed_iteration.txt")
special("tracker_negative", dcp_but("latest_checkpointed_iteration.txt", write(b"-1")), "latest_checkpointed_iteration.txt")
special("tracker_huge", dcp_but("latest_checkpointed_iteration.txt", write(b"9" * 40)), "latest_checkpointed_iteration.txt")
special("tracker_nowhere", dcp_but("latest_checkpointed_iteration.txt", write(b"7")), "iter_0000007")
special("backend_zarr", dcp_but("metadata.json", write(b'{"sharded_backend": "zarr"}')), "zarr")
special("backend_unknown", dcp_but("metadata.json", write(b'{"sharded_backend": "tape"}')), '"tape" is not known here; torch_dist')
special("json_deep", dcp_but("metadata.json", write(b"[" * 1000000)), "metadata.json")
special("index_deep", hf_but("model.safetensors.index.json", write(b'{"weight_map":' * 1000000)), "index.json")
special("index_twice", hf_but("model.safetensors.index.json", write(b'{"weight_map": {"a": "a.safetensors", "a": "b.safetensors"}}')), "index.json")
special("index_other_file", hf_but("x", write(b""), {"a": "b.safetensors", "b": "a.safetensors"}), "it is not")
special("index_same_tensor", hf_but("b.safetensors", write(st({"a": tensor()}))), "two of the")

put("ranks/mp_rank_zz/model_optim_rng.pt", b"PK", "")
cases[-1] = ("ranks", "")
put("rank_runs/mp_rank_00/model_optim_rng.pt", zipped(b"\x80\x02cos\nsystem\n(" + text("touch ran") + b"tR."), "")
cases[-1] = ("rank_runs", "os.system")
put("rank_is_list/mp_rank_00/model_optim_rng.pt", zipped(b"\x80\x02]."), "")
cases[-1] = ("rank_is_list", "a dict")

with open(os.path.join(out, "cases.tsv"), "w", encoding="utf-8") as f:
    for name, says in cases:
        f.write("%s\t%s\n" % (name, says))
