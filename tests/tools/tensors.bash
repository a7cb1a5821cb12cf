# Safetensors files for tests, out of the shapes of their tensors, and such with a fault.

# write FILE SHAPES-AS-PYTHON-DICT: a safetensors file; equal numbers in equal names, whatever else is in it. F32, or F16 of ("F16", 2, 3)
write() {
    python3 - "$1" "$2" <<'PY'
import json, struct, sys, zlib
header, data = {}, b""
for name, shape in eval(sys.argv[2]).items():
    dtype, shape = ("F16", shape[1:]) if "F16" in shape else ("F32", shape)
    n, width, letter = 1, 2 if dtype == "F16" else 4, "e" if dtype == "F16" else "f"
    for size in shape:
        n *= size
    header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + width * n]}
    data += struct.pack("<%d%s" % (n, letter), *[zlib.crc32(name.encode()) % 997 + i / 64 for i in range(n)])
text = json.dumps(header).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data)
PY
}

# lose.py IN OUT NAME..: a safetensors file without these tensors
write_lose() {
    cat >lose.py <<'PY'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head = {k: v for k, v in json.loads(raw[8:8 + n]).items() if k not in sys.argv[3:]}
text, data = {}, b""
for k, v in head.items():
    if k != "__metadata__":
        b = raw[8 + n:][slice(*v["data_offsets"])]
        text[k] = dict(v, data_offsets=[len(data), len(data) + len(b)])
        data += b
text = json.dumps(text).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data)
PY
}

# turn.py IN OUT NAME: the same with that tensor's axes in the other order
write_turn() {
    cat >turn.py <<'PY'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head = json.loads(raw[8:8 + n])
head[sys.argv[3]]["shape"].reverse()
text = json.dumps(head).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + n:])
PY
}
