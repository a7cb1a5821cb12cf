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
    says "notes.txt is in the manifest and not a plain file"
    rmdir in/notes.txt
    echo x >notes.txt
    ln -s ../notes.txt in/notes.txt
    exits 1 s2s-ckpt verify in
    says "notes.txt is in the manifest and a link"
    rm in/notes.txt
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

@test "integrity.json: what is made of a checkpoint is compared with it first" {
    cp -r "$DATA/mcore016_gated_pp2dp2_dpreshardable/iter_0000007" in
    chmod -R u+w in
    integrity in
    cp in/integrity.json kept
    for command in "convert --to torch_dist" "convert --to safetensors" reshard prune "average in"; do
        turn || continue
        rm -rf out
        cp kept in/integrity.json
        exits 0 s2s-ckpt $command -q in out
        rm -rf out
        # a digest of another file; its CRC-32s are right
        sed 's/\("__0_0.distcp": "\)[0-9a-f]\{8\}/\100000000/' kept >in/integrity.json
        exits 1 s2s-ckpt $command in out
        says "in: __0_0.distcp: digest "
        says "without integrity.json no file is compared with it"
        [ ! -e out ]
        [ ! -e out.s2s-partial ]
    done
    jq 'del(.files["__0_0.distcp"])' kept >in/integrity.json
    exits 1 s2s-ckpt reshard in out
    says "__0_0.distcp is read, and integrity.json does not name it"
    exits 0 s2s-ckpt convert --plan --to torch_dist in out
    sed 's/sha256/blake3/' kept >in/integrity.json
    exits 0 s2s-ckpt reshard in out
    says "integrity.json: algorithm blake3: nothing is compared with it"
}

@test "integrity.json: whoever interrupts the comparison is obeyed" {
    cp -r "$DATA/mini_writer/iter_0000042" in
    chmod -R u+w in
    truncate -s 64G in/large
    python3 -c 'import json
json.dump({"algorithm": "sha256", "files": {"large": "0" * 64}}, open("in/integrity.json", "w"))'
    exits 124 timeout -s TERM 1 s2s-ckpt reshard in out
    [ "$output" = "s2s-ckpt: in: interrupted" ]
    [ ! -e out ]
    [ ! -e out.s2s-partial ]
}

@test "a manifest names all that is read, and files that are links are compared where the format has them" {
    s2s-ckpt convert -q --to hf --max-shard-size 4k "$DATA/hf_sharded" out
    mkdir blobs
    for file in out/*; do
        mv "$file" blobs/
        ln -s "../blobs/${file##*/}" "$file"
    done
    exits 0 s2s-ckpt verify out
    says "$(find blobs -type f ! -name s2s-manifest.json | wc -l) files as the manifest says"
    file=$(cd blobs && ls ./*.safetensors | head -1)
    file=${file#./}
    python3 - "$file" <<'PY'
import json, sys
m = json.load(open("blobs/s2s-manifest.json"))
del m["files"][sys.argv[1]]
json.dump(m, open("blobs/s2s-manifest.json", "w"))
PY
    exits 1 s2s-ckpt verify out
    says "out: $file is read, and s2s-manifest.json does not name it"
    cp -rL out none
    echo '{"algorithm": "xxh3-128", "files": {}}' >none/s2s-manifest.json
    exits 1 s2s-ckpt verify none
    says "is read, and s2s-manifest.json does not name it"
    rm blobs/"$file"
    exits 1 s2s-ckpt verify out
}

@test "a bit of metadata.json that turns is found, as one of any other file" {
    s2s-ckpt convert -q --to torch_dist "$DATA/mini_writer" out
    cat >turn.py <<'PY'
import os, subprocess
path = "out/iter_0000042/metadata.json"
was = open(path, "rb").read()
for at in range(0, len(was), 5 if os.environ["S2S_LONG"] else 15):
    with open(path, "wb") as f:
        f.write(was[:at] + bytes([was[at] ^ 2]) + was[at + 1:])
    made = subprocess.run(["s2s-ckpt", "verify", "out"], capture_output=True, text=True)
    assert made.returncode == 1 and "metadata.json" in made.stderr, (at, made)
PY
    python3 turn.py
}

@test "verify --json says of a bad checkpoint that it is bad, and why" {
    cp "$DATA/zip.pt" whole.pt
    head -c 1000 whole.pt >cut.pt
    for path in cut.pt nowhere.pt; do
        status=0
        s2s-ckpt verify --json $path >out.json 2>err.txt || status=$?
        [ $status = "$([ $path = cut.pt ] && echo 1 || echo 2)" ]
        jq -e --arg path $path '.ok == false and .path == $path' out.json >/dev/null
        [[ $(<err.txt) == "s2s-ckpt: $(jq -r .error out.json)"* ]]
    done
    # a digest that is not right; into a file, which appears whole
    s2s-ckpt convert -q --to hf "$DATA/hf_sharded" out
    echo >>out/config.json
    exits 1 s2s-ckpt verify --json -o report.json out
    jq -e '.ok == false and (.error | contains("config.json"))' report.json >/dev/null
    exits 1 s2s-ckpt verify -o text out
    [ ! -e text ]
    exits 2 s2s-ckpt verify --json -o absent.json nowhere.pt
    says_not '"ok"'
    [ ! -e absent.json ]
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

@test "what is made of a file that we wrote is compared with its digest on the way" {
    s2s-ckpt convert -q --to torch_dist "$DATA/mini_writer" dist
    s2s-ckpt convert -q --to safetensors "$DATA/mini_writer" one.safetensors
    # the last byte of what the weights are in, which nothing but the digest vouches for
    flip_last() { flip "$1" $(($(stat -c %s "$1") - 1)) 1; }
    cp -r dist whole
    flip_last one.safetensors
    flip_last "$(ls dist/iter_*/*.distcp dist/*.distcp 2>/dev/null | head -n 1)"
    for command in "convert --to torch_dist one.safetensors" "convert --to safetensors one.safetensors" "reshard --files 2 dist" "prune dist" "average dist whole" \
        "average whole dist"; do
        exits 1 s2s-ckpt $command out
        says "the manifest says"
        says "it is damaged"
        says "s2s-manifest.json"
        [ ! -e out ]
    done
    # who wrote it since takes the manifest away
    rm one.safetensors.s2s-manifest.json
    exits 0 s2s-ckpt convert -q --to safetensors one.safetensors out
}

@test "a file alone: its digest is beside it, and verify compares every byte" {
    exits 0 s2s-ckpt convert --to safetensors "$DATA/zip.pt" a.safetensors
    no_litter . a.safetensors a.safetensors.s2s-manifest.json
    exits 0 s2s-ckpt verify a.safetensors
    says "; 1 file as the manifest says"
    size=$(stat -c %s a.safetensors)
    cp a.safetensors good
    for ((at = size - 328; at < size; at += 41)); do
        flip a.safetensors $at $((at % 8))
        exits 1 s2s-ckpt verify a.safetensors
        cp good a.safetensors
    done
    says "a.safetensors: digest "
    says "or another program wrote it since: then remove a.safetensors.s2s-manifest.json"
    # the name of a tensor is no fault of any format
    sed 's|"int"|"INT"|' good >a.safetensors
    not same a.safetensors good
    exits 1 s2s-ckpt verify a.safetensors
    says "it is damaged"
    cp good a.safetensors && echo >>a.safetensors.s2s-manifest.json
    exits 0 s2s-ckpt verify a.safetensors
    echo '{"algorithm": "xxh3-128", "files": {}}' >a.safetensors.s2s-manifest.json
    exits 1 s2s-ckpt verify a.safetensors
    says "a.safetensors.s2s-manifest.json: not a manifest of one file"
}

@test "a file alone of any name has a manifest that is compared" {
    for name in $'a\nb' $'bad\xff' 'back\slash' 'ü' ' ' -x; do
        exits 0 s2s-ckpt convert -q --to safetensors -o "$name" "$DATA/zip.pt"
        exits 0 s2s-ckpt verify -- "$name"
        says "; 1 file as the manifest says"
        printf x >>"$name"
        exits 1 s2s-ckpt verify -- "$name"
    done
}

@test "a .nemo alone: every byte of its small files is compared too" {
    s2s-ckpt convert -q --to nemo "$DATA/tiny.nemo" a.nemo
    exits 0 s2s-ckpt verify a.nemo
    says "; 1 file as the manifest says"
    # a comment in its configuration, which has no checksum of its own
    at=$(grep -abo 'model_config.yaml' a.nemo | head -n 1 | cut -d: -f1)
    flip a.nemo $((at + 512)) 1
    exits 1 s2s-ckpt verify a.nemo
    says "a.nemo: digest "
}

@test "files alone that several write at once: the one that stays has its own manifest" {
    for ((round = 0; round < (STEP > 1 ? 8 : 60); round++)); do
        s2s-ckpt convert -q --to safetensors "$DATA/zip.pt" a.safetensors &
        s2s-ckpt convert -q --to safetensors "$DATA/hf_sharded" a.safetensors &
        s2s-ckpt convert -q --to safetensors --dtype f32 "$DATA/hf_sharded" a.safetensors &
        wait
        exits 0 s2s-ckpt verify a.safetensors
        says "; 1 file as the manifest says"
    done
    no_litter . a.safetensors a.safetensors.s2s-manifest.json
    # a lock of others on the folder, such as of flock(1) that runs us, is not waited for without end
    exits 0 timeout 60 flock . s2s-ckpt convert -q --to safetensors "$DATA/zip.pt" a.safetensors
    exits 0 s2s-ckpt verify a.safetensors
    says "; 1 file as the manifest says"
}

@test "a file alone: its manifest goes along with its name, and is never another file's" {
    s2s-ckpt convert -q --to safetensors "$DATA/zip.pt" a.safetensors
    for end in '' .s2s-manifest.json; do mv a.safetensors$end b.safetensors$end; done
    ln -s b.safetensors link.safetensors
    for path in b.safetensors "$PWD/b.safetensors" link.safetensors; do
        exits 0 s2s-ckpt verify $path
        says "as the manifest says"
    done
    # what is written over it has its own, whatever the name and the way
    exits 0 s2s-ckpt average --to safetensors "$DATA/hf_sharded" "$DATA/hf_sharded" link.safetensors
    no_litter . b.safetensors b.safetensors.s2s-manifest.json link.safetensors
    exits 0 s2s-ckpt verify b.safetensors
    says "21 tensors"
    says "as the manifest says"
    exits 0 mpirun_n 2 s2s-ckpt convert -q --resume --to safetensors "$DATA/zip.pt" b.safetensors
    exits 0 s2s-ckpt verify link.safetensors
    says "10 tensors"
    says "as the manifest says"
    exits 0 s2s-ckpt convert -q --to nemo "$DATA/tiny.nemo" b.safetensors
    no_litter . b.safetensors b.safetensors.s2s-manifest.json link.safetensors
    exits 0 s2s-ckpt verify b.safetensors
    says "nemo, 96 tensors"
    says "as the manifest says"
    rm ./*
    # neither a plan nor a stream has any, and a place that is taken is found before the work
    exits 0 s2s-ckpt convert -q --plan --to safetensors "$DATA/zip.pt" a.safetensors
    s2s-ckpt convert -q --to safetensors "$DATA/zip.pt" - >piped
    s2s-ckpt convert -q --to safetensors "$DATA/zip.pt" /dev/null
    no_litter . piped
    mkdir a.safetensors.s2s-manifest.json
    exits 1 s2s-ckpt convert --to safetensors "$DATA/zip.pt" a.safetensors
    says "a.safetensors.s2s-manifest.json: is a folder"
    [ ! -e a.safetensors ]
    # nobody named what a link there leads to
    rmdir a.safetensors.s2s-manifest.json
    echo mine >notes
    ln -s notes a.safetensors.s2s-manifest.json
    exits 2 s2s-ckpt convert --to safetensors "$DATA/zip.pt" a.safetensors
    says "a.safetensors.s2s-manifest.json: is a link"
    [ "$(cat notes)" = mine ]
    [ ! -e a.safetensors ]
    # nor waits for whoever reads a pipe
    rm a.safetensors.s2s-manifest.json
    mkfifo a.safetensors.s2s-manifest.json
    exits 2 timeout 5 s2s-ckpt convert --to safetensors "$DATA/zip.pt" a.safetensors
    says "a.safetensors.s2s-manifest.json: is not a plain file"
    [ ! -e a.safetensors ]
    # a name that the file system takes, and its manifest's is too long
    rm ./*
    long=$(printf '%0240d' 0).safetensors
    exits 0 s2s-ckpt convert --to safetensors "$DATA/zip.pt" "$long"
    says "$long: no manifest beside it: its name would be too long"
    no_litter . "$long"
    exits 0 s2s-ckpt verify "$long"
    says "no manifest"
    # a folder that is made of the file has its own
    rm ./*
    mkdir in
    s2s-ckpt convert -q --to safetensors "$DATA/hf_sharded" in/model.safetensors
    cp "$DATA/hf_sharded/config.json" in
    exits 0 s2s-ckpt convert -q --to hf --dtype f32 in out
    no_litter out config.json model.safetensors s2s-manifest.json
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

@test "F4 of safetensors, two elements a byte, is torch's float4_e2m1fn_x2 and becomes F4 again" {
    safetensors a.safetensors w F4 '[2, 4]' 12345670 none F4 '[0, 6]' '' x F32 '[1]' 0000803f
    exits 0 s2s-ckpt ls a.safetensors
    says $'w\tF4_E2M1FN_X2\t[2, 2]\t4'
    says $'none\tF4_E2M1FN_X2\t[0, 3]\t0'
    s2s-ckpt convert -q --to torch_dist a.safetensors dist
    grep -q float4_e2m1fn_x2 dist/iter_*/.metadata
    s2s-ckpt convert -q --to safetensors dist b.safetensors
    exits 0 s2s-ckpt diff a.safetensors b.safetensors
    grep -aqF '"w":{"dtype":"F4","shape":[2,4],' b.safetensors
    # 0.5 and 1 against 6 and 1; against bytes, which are no such numbers
    safetensors c.safetensors w F4 '[2, 4]' 17345670 none F4 '[0, 6]' '' x F32 '[1]' 0000803f
    exits 1 s2s-ckpt diff a.safetensors c.safetensors
    says $'w\tvalues\tF4_E2M1FN_X2\t1 of 4\tmax 5'
    safetensors d.safetensors w U8 '[2, 2]' 12345670 none F4 '[0, 6]' '' x F32 '[1]' 0000803f
    exits 1 s2s-ckpt diff a.safetensors d.safetensors
    says $'w\tvalues\tF4_E2M1FN_X2 and U8\t4 of 4\tmax nan'
    exits 1 s2s-ckpt cat --json a.safetensors w
    says "w is F4_E2M1FN_X2: its numbers are not printed"
    exits 1 s2s-ckpt average a.safetensors c.safetensors mean
    says "is F4_E2M1FN_X2, which cannot be averaged"
    for shape in '[]' '[3]' '[2, 1]'; do
        safetensors bad.safetensors w F4 "$shape" 00
        exits 1 s2s-ckpt ls bad.safetensors
        says "has no last axis of an even length"
    done
    safetensors bad.safetensors w F4_E2M1FN_X2 '[1]' 00
    exits 1 s2s-ckpt ls bad.safetensors
    says "unknown dtype 'F4_E2M1FN_X2'"
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
