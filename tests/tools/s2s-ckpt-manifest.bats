# What verify reads beside the weights: manifests of ours and of Megatron-Core; and what diff, cat and ls say of rarer tensors.
load common

setup_tool() {
    DATA=$ROOT/tests/oracle/ckpt/data
}

# integrity FOLDER: its integrity.json, as Megatron-Core writes it
integrity() {
    python3 - "$1" <<'PY'
import hashlib, json, os, sys
folder = sys.argv[1]
files = {n: hashlib.sha256(open(os.path.join(folder, n), "rb").read()).hexdigest() for n in sorted(os.listdir(folder)) if n != "integrity.json"}
json.dump({"algorithm": "sha256", "files": files}, open(os.path.join(folder, "integrity.json"), "w"))
PY
}

# safetensors FILE NAME DTYPE SHAPE HEX...: tensors one after the other
safetensors() {
    python3 - "$@" <<'PY'
import json, struct, sys
head, data = {}, b""
for i in range(2, len(sys.argv), 4):
    name, dtype, shape, digits = sys.argv[i:i + 4]
    raw = bytes.fromhex(digits)
    head[name] = {"dtype": dtype, "shape": json.loads(shape), "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
head = json.dumps(head).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(head)) + head + data)
PY
}

@test "integrity.json: every file is compared, what differs or is missing is named" {
    cp -r "$DATA/mini_writer/iter_0000042" in
    chmod -R u+w in
    integrity in
    exits 0 s2s-ckpt verify in
    says "$(($(ls -A in | wc -l) - 1)) files as the manifest says"
    cp in/integrity.json kept
    python3 -c 'import json
d = json.load(open("kept"))
json.dump({**d, "files": {k: v.upper() for k, v in d["files"].items()}}, open("in/integrity.json", "w"))'
    exits 0 s2s-ckpt verify in
    # a byte of a file that nothing else holds against anything
    echo x >in/notes.txt
    integrity in
    echo y >in/notes.txt
    exits 1 s2s-ckpt verify in
    says "in: notes.txt: digest "
    says "it is damaged"
    rm in/notes.txt
    exits 1 s2s-ckpt verify in
    says "in: notes.txt is in the manifest and missing"
    mkdir in/notes.txt
    exits 1 s2s-ckpt verify in
    says "notes.txt is in the manifest and no plain file"
    rmdir in/notes.txt
    sed 's/sha256/md5/' kept >in/integrity.json
    exits 1 s2s-ckpt verify in
    says "integrity.json: algorithm md5"
    echo '{"files": {}}' >in/integrity.json
    exits 1 s2s-ckpt verify in
    says "integrity.json: not a manifest"
    echo '{"algorithm": "sha256", "files": {"../secret": "00"}}' >in/integrity.json
    exits 1 s2s-ckpt verify in
    says 'bad entry for "../secret"'
    cp kept in/integrity.json
    exits 0 s2s-ckpt verify in
}

@test "s2s-manifest.json: lengths are held against the files before they are read" {
    s2s-ckpt convert -q --to hf "$DATA/hf_sharded" out
    exits 0 s2s-ckpt verify out
    python3 - <<'PY'
import json
m = json.load(open("out/s2s-manifest.json"))
m["files"]["config.json"]["bytes"] += 1
json.dump(m, open("out/s2s-manifest.json", "w"))
PY
    exits 1 s2s-ckpt verify out
    says "config.json has "
    says "the manifest says"
}

@test "diff: other shapes, tensors without numbers, small integers" {
    safetensors a.safetensors c C64 '[2]' 0000803f000000000000000000000040 i I8 '[3]' 01ff7f s F32 '[2]' 0000803f00000040 t BOOL '[2]' 0001
    safetensors b.safetensors c C64 '[2]' 0000803f000000000000000000000041 i I8 '[3]' 01fe7f s F32 '[2, 1]' 0000803f00000040 t BOOL '[2]' 0001
    exits 1 s2s-ckpt diff a.safetensors b.safetensors
    says $'c\tvalues\tC64\t1 of 2'
    says $'i\tvalues\tI8\t1 of 3\tmax 1'
    says $'s\tshape\t[2]\t[2, 1]'
    says_not $'t\t'
    run s2s-ckpt diff --json a.safetensors b.safetensors
    echo "$output" | python3 -c '
import json, sys
d = {x["name"]: x for x in json.load(sys.stdin)["differences"]}
assert d["s"]["a"] == [2] and d["s"]["b"] == [2, 1] and d["s"]["difference"] == "shape", d
assert d["c"]["elements"] == 1 and d["i"]["max_abs"] == 1, d'
    exits 1 s2s-ckpt diff --tolerance 1 a.safetensors b.safetensors
    says_not $'i\t'
    says $'c\tvalues'
}

@test "cat --json: integers of 64 bits digit by digit, of other widths, and what is no number" {
    safetensors a.safetensors c C64 '[1]' 0000803f00000000 big U64 '[1]' ffffffffffffffff low I64 '[1]' 0000000000000080 \
        short I16 '[2]' feff0100 bytes U8 '[2]' 00ff wide F64 '[1]' 0000000000000440
    exits 0 s2s-ckpt cat --json a.safetensors big
    says '[18446744073709551615]'
    exits 0 s2s-ckpt cat --json a.safetensors low
    says '[-9223372036854775808]'
    exits 0 s2s-ckpt cat --json a.safetensors short
    says '[-2, 1]'
    exits 0 s2s-ckpt cat --json a.safetensors bytes
    says '[0, 255]'
    exits 0 s2s-ckpt cat --json a.safetensors wide
    says '[2.5]'
    exits 1 s2s-ckpt cat --json a.safetensors c
    says "c is C64: its numbers are not printed"
}

@test "convert --dtype f64 and from it: every value comes back" {
    safetensors a.safetensors w F32 '[4]' 0000803f000080bf9a99193e0000807f
    s2s-ckpt convert -q --to safetensors --dtype f64 a.safetensors wide.safetensors
    exits 0 s2s-ckpt ls wide.safetensors
    says $'w\tF64\t[4]\t32'
    s2s-ckpt convert -q --to safetensors --dtype f32 wide.safetensors back.safetensors
    exits 0 s2s-ckpt diff a.safetensors back.safetensors
}
