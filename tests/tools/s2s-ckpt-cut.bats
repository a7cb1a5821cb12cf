# s2s-ckpt and how files are read: whole, in good time, and with a message, never a signal, where somebody cuts them.
load common
load ckpt_faults

# cut_anywhere EVERY CHECKPOINT: cuts the file at its 1st, 1+EVERY-th, .. read (of which STEP leaves out some); each time ls ends in a message
cut_anywhere() {
    local every=$1 n cuts=0
    rm -rf in whole
    cp -R "$DATA/$2" whole && chmod -R u+w whole
    for ((n = 1; n <= 2000; n += every * (n > 1 ? STEP : FIRST))); do
        cp -RT whole in
        with_fault "pread:$n:CUT" s2s-ckpt ls --sha256 in
        [ $fired = 1 ] || break
        [ "$status" -eq 1 ] && [ -n "$output" ] || { echo "$2: read $n: exit $status: $output" >&2; return 1; }
        [[ $output = *s2s-ckpt:*in* && ${output#*s2s-ckpt:} != *s2s-ckpt:* ]] || { echo "$2: read $n: $output" >&2; return 1; }
        cuts=$((cuts + 1))
    done
    [ "$cuts" -gt $((STEP > 1 ? 0 : 2)) ] || { echo "$2: $cuts cuts" >&2; return 1; }
}

@test "a file that is cut while it is read is said to end too early, whatever its format" {
    inject_or_skip
    cut_anywhere 1 hf_sharded/model-00001-of-00003.safetensors
    cut_anywhere 3 hf_sharded
    cut_anywhere 3 dcp_hf
    cut_anywhere 3 zip.pt
    cut_anywhere 1 legacy.pt
    cut_anywhere 1 legacy_protocol4.pt
    cut_anywhere 3 pytorch_model.bin
    cut_anywhere 5 tiny.nemo
    cut_anywhere 7 dcp_plain
    cut_anywhere 7 mp_rank
    cut_anywhere 61 mcore016_hybrid_tp2pp2ep2
}

@test "a read that fails is a failure, whatever is asked of the file" {
    inject_or_skip
    local of n
    for of in dcp_hf hf_sharded zip.pt legacy.pt mp_rank_dense tiny.nemo; do
        for ((n = 1; n <= 1000; n += n > 8 ? 17 * STEP : n > 1 ? STEP : FIRST)); do
            with_fault "pread:$n:EIO" s2s-ckpt ls --sha256 "$DATA/$of"
            [ $fired = 1 ] || break
            [ "$status" -eq 1 ] || { echo "$of: read $n: exit $status: $output" >&2; return 1; }
            says "$of"
            says "Input/output error"
        done
        [ "$n" -gt 3 ] || { echo "$of: $n" >&2; return 1; }
    done
}

@test "verify reads what has no checksum too: the disk may not give it" {
    inject_or_skip
    python3 - <<'PY'
import json, struct
n = 40 << 20
head = json.dumps({"w": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
with open("large.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head)
    f.truncate(8 + len(head) + n)
PY
    local n
    for ((n = 1; n <= 1000; n += n > 1 && STEP > 1 ? 11 : FIRST)); do
        with_fault "pread:$n:EIO" s2s-ckpt verify large.safetensors
        [ $fired = 1 ] || break
        [ "$status" -eq 1 ] || { echo "read $n: exit $status: $output" >&2; return 1; }
        says "large.safetensors"
        says "Input/output error"
    done
    exits 0 s2s-ckpt verify large.safetensors
    says "no checksum of 1 tensor"
    [ "$n" -gt 20 ]
}

@test "a pickle of several windows whose reading fails anywhere ends in a message" {
    inject_or_skip
    mkdir dist
    # texts of 5000 bytes, each dropped: some lie across the end of a window
    python3 - <<'PY'
text = b"X" + (5000).to_bytes(4, "little") + b"x" * 5000 + b"0"
open("dist/.metadata", "wb").write(b"\x80\x02" + text * 700 + b"N.")
PY
    local n
    for ((n = 1; n <= 20; n++)); do
        with_fault "pread:$n:EIO" s2s-ckpt ls dist
        [ $fired = 1 ] || break
        [ "$status" -eq 1 ] || { echo "read $n: exit $status: $output" >&2; return 1; }
        says "Input/output error"
    done
    [ "$n" -gt 3 ]
}

@test "pickles of a legacy file are read to their end, however long, and no further" {
    python3 - <<'PY'
import pickle
with open("long.pt", "wb") as f:
    for value in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}},
                  {"text": "x" * 5_000_000, "number": 7}, []):
        pickle.dump(value, f, protocol=2)
    end = f.tell()
    f.write(b"more")
for name, n in (("whole.pt", end), ("cut.pt", end - 9)):
    open(name, "wb").write(open("long.pt", "rb").read()[:n])
PY
    exits 0 s2s-ckpt ls whole.pt
    says "number	object"
    exits 1 s2s-ckpt ls cut.pt
    says "cut.pt: at "
    exits 1 s2s-ckpt ls long.pt
    says "4 bytes after the last storage"
}

@test "views in any order of axes have the elements that their strides say, and are read in runs" {
    python3 - <<'PY'
import hashlib, numpy as np, struct, zipfile
rng = np.random.default_rng(5)
store = rng.integers(0, 1 << 32, 1800000, dtype=np.uint32).view(np.float32)
def text(s): return b"X" + struct.pack("<I", len(s)) + s.encode()
def tup(v): return b"(" + b"".join(b"J" + struct.pack("<i", x) for x in v) + b"t"
views = {"transposed": ((1200, 1500), (1, 1200), 0), "permuted": ((7, 300, 11, 70), (770, 6000, 70, 1), 3), "swapped": ((40, 50, 60), (1, 40, 2000), 17),
         "repeated": ((5, 1000), (0, 1), 9), "columns": ((1000, 5), (1, 0), 9), "steps": ((100, 3, 1), (700, 111, 9999), 1), "one": ((1, 1), (5, 7), 2),
         "two boxes": ((3000, 1600), (1, 1000), 11)}
state = b""
with open("want", "w") as want:
    for name in sorted(views):
        size, stride, offset = views[name]
        state += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + \
            b"J" + struct.pack("<i", len(store)) + b"tQJ" + struct.pack("<i", offset) + tup(size) + tup(stride) + b"\x89}tR"
        data = np.lib.stride_tricks.as_strided(store[offset:], size, [4 * s for s in stride])
        print(name, hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest(), file=want)
with zipfile.ZipFile("views.pt", "w") as z:
    z.writestr("archive/data.pkl", b"\x80\x02}(" + state + b"u.")
    z.writestr("archive/data/0", store.tobytes())
PY
    s2s-ckpt ls --sha256 views.pt | awk -F'\t' '{print $1, $NF}' >got
    diff want got
    inject_or_skip
    # 7,000,000 elements, of which a run at a time is read, the longer the better
    with_fault pread:20000:EIO s2s-ckpt ls --sha256 views.pt
    [ $fired = 0 ]
    [ "$status" -eq 0 ]
}

@test "what becomes several tensors, in any order, is read once; damage in any part of it is found" {
    cat >make.py <<'PY'
from torch_files import *
n = 1 << 18
store = Storage("0", range(8 * n))
save("parts.pt", {"part%d" % i: tensor(store, (n,), offset=(7 - i) * n) for i in range(8)})
zeros = Storage("0", [0] * 2 * n)
save("twice.pt", {"a": tensor(zeros, (n,)), "b": tensor(zeros, (n,))})
few = Storage("0", range(8000))
save("short.pt", {"part%d" % i: tensor(few, (1000,), offset=(7 - i) * 1000) for i in range(8)})
PY
    PYTHONPATH=$BATS_TEST_DIRNAME PYTHONDONTWRITEBYTECODE=1 python3 make.py
    exits 0 s2s-ckpt convert -q --to hf parts.pt out
    for at in 1 3 5 7; do
        cp parts.pt bad.pt
        flip bad.pt $((at << 20)) 3
        exits 1 s2s-ckpt convert -q --to hf bad.pt bad
        says "CRC-32"
    done
    # parts so short that they are read again
    exits 0 s2s-ckpt convert -q --to hf short.pt short
    exits 0 s2s-ckpt diff short.pt short
    for at in 6000 18000 30000; do
        cp short.pt bad.pt
        flip bad.pt $at 3
        exits 1 s2s-ckpt convert -q --to hf bad.pt bad
        says "CRC-32"
    done
    # as many bytes as the whole, but not each of them
    exits 0 s2s-ckpt convert -q --to hf twice.pt twice
    flip twice.pt $((3 << 19)) 3
    exits 1 s2s-ckpt convert -q --to hf twice.pt bad
    says "CRC-32"
    inject_or_skip
    # 32 pieces of 256 KiB, and 14 reads of what is beside them; 32 more would be a second time
    rm -rf out
    with_fault pread:60:EIO s2s-ckpt convert -q --to hf parts.pt out
    [ $fired = 0 ]
    [ "$status" -eq 0 ]
}

@test "sizes of chunks that leave out leading axes of extent 1 are those with them" {
    data=$ROOT/tests/oracle/ckpt/data/mcore016_gated_pp2dp2_dpreshardable
    cp -r "$data" in
    chmod -R u+w in
    n=$(python3 - in/*/.metadata <<'PY'
import pickle, sys, types
made = {}


class Thing:
    def __new__(cls, *args):
        self = object.__new__(cls)
        self.__dict__["args"] = args
        return self

    def __setstate__(self, state):
        self.__dict__["state"] = state

    def __reduce__(self):
        return (type(self), self.args) + ((self.state,) if "state" in self.__dict__ else ())

    def __hash__(self):
        return hash(repr(self.args) + repr(self.__dict__.get("state")))

    def __eq__(self, other):
        return hash(self) == hash(other)


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        if module in ("collections", "builtins"):
            return super().find_class(module, name)
        if (module, name) not in made:
            made[module, name] = type(name, (Thing,), {"__module__": module, "__qualname__": name})
            setattr(sys.modules.setdefault(module, types.ModuleType(module)), name, made[module, name])
        return made[module, name]


meta = Reader(open(sys.argv[1], "rb")).load()
n = 0
for tensor in meta.state["state_dict_metadata"].values():
    for chunk in tensor.__dict__.get("state", {}).get("chunks", []):
        size = chunk.state["sizes"].args[0]
        k = 0
        while k < len(size) - 1 and size[k] == 1:
            k += 1
        if k:
            chunk.state["sizes"] = type(chunk.state["sizes"])(size[k:])
            n += 1
pickle.dump(meta, open(sys.argv[1], "wb"), 2)
print(n)
PY
    )
    [ "$n" -ge 10 ]
    exits 0 s2s-ckpt diff in "$data"
    exits 0 s2s-ckpt verify in
}
