# s2s-ckpt beside hostile bytes: what may happen to terminals, to the input, to the disk and to the neighbours of OUT.
load common

# tensors FILE NAME...: a safetensors file of four float32 each; names as in JSON
tensors() {
    local path=$1 head= at=0 name LC_ALL=C
    shift
    for name; do
        head+=", \"$name\": {\"dtype\": \"F32\", \"shape\": [4], \"data_offsets\": [$at, $((at += 16))]}"
    done
    head="{${head#, }}"
    {
        # shellcheck disable=SC2059 # bytes
        printf "\\x$(printf '%02x\\x%02x' $((${#head} & 255)) $((${#head} >> 8)))\0\0\0\0\0\0%s" "$head"
        for name; do printf '\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16\17'; done
    } >"$path"
}

# large FILE MIB: a safetensors file of one tensor
large() {
    python3 - "$@" <<'PY'
import json, struct, sys
n = int(sys.argv[2]) << 20
head = json.dumps({"w": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head)
    f.truncate(8 + len(head) + n)
PY
}

# only NAME...: the folder holds these and nothing else
only() {
    [ "$(ls -A | sort | tr '\n' ' ')" = "$(printf '%s\n' "$@" | sort | tr '\n' ' ')" ] || { ls -lA >&2; return 1; }
}

# calm: $output has no control characters but newline and tab
calm() {
    printf '%s' "$output" | python3 -c '
import sys
text = sys.stdin.buffer.read().decode()
bad = [c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
sys.exit("control characters: %r" % text if bad else 0)'
}

@test "names with control characters are printed as text, a line a tensor" {
    tensors a.safetensors 'x\u001b[2Jy' 'two\nlines' 'tab\tbed' 'c1\u009b31m' 'back\\slash' 'plain'
    tensors b.safetensors 'x\u001b[2Jz'
    exits 0 s2s-ckpt ls a.safetensors
    calm
    [ "${#lines[@]}" -eq 6 ]
    says 'x\x1b[2Jy'
    says 'two\nlines'
    says 'tab\tbed'
    says 'c1\xc2\x9b31m'
    says 'back\\slash'
    exits 1 s2s-ckpt diff a.safetensors b.safetensors
    calm
    exits 0 s2s-ckpt convert --plan --to hf a.safetensors out
    calm
    exits 1 s2s-ckpt cat a.safetensors "$(printf 'x\033[2Jq')"
    calm
    exits 0 s2s-ckpt convert -q --to torch_dist a.safetensors out
    exits 0 s2s-ckpt diff a.safetensors out
    exits 0 s2s-ckpt ls --json out
    printf '%s' "$output" | python3 -c 'import json,sys; assert "two\nlines" in {t["name"] for t in json.load(sys.stdin)["tensors"]}'
}

@test "no name forges a line: tensors, files, classes, configs and folders in errors, warnings and lists" {
    # forged: no line of $output is the one that the names try to put there
    forged() {
        calm
        ! printf '%s\n' "$output" | grep -q '^s2s-ckpt: all is well' || { printf '%s\n' "$output" >&2; return 1; }
        says '\ns2s-ckpt: all is well'
    }
    local evil=$'x\ns2s-ckpt: all is well'
    tensors a.safetensors 'x\ns2s-ckpt: all is well' b
    tensors b.safetensors b
    exits 1 s2s-ckpt diff a.safetensors b.safetensors
    forged
    exits 1 s2s-ckpt cat a.safetensors "$evil?"
    forged
    exits 2 s2s-ckpt ls "$evil"
    forged
    mkdir "$evil" && tensors "$evil/model.safetensors" b
    exits 0 s2s-ckpt verify "$evil"
    forged
    python3 - "$evil" <<'PY'
import json, os, sys, zipfile
evil = sys.argv[1]
def torch(path, pickle):
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", pickle)
text = evil.encode()
# a class, an attribute and a storage of such names; a tensor whose storage is not there
torch("opaque.pt", b"\x80\x04\x8c\x01m\x8c" + bytes([len(text)]) + text + b"\x93.")
torch("hostile.pt", b"\x80\x04\x8c\x02os\x8c" + bytes([len(text)]) + text + b"\x93)R.")
key = b"X" + len(text).to_bytes(4, "little") + text
torch("storage.pt", b"\x80\x02}" + key + b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n" + key +
      b"X\x03\0\0\0cpuK\x01tQK\0K\x01\x85K\x01\x85\x89}tRs.")
os.mkdir("sharded")
json.dump({"weight_map": {evil: "model-00001.safetensors"}}, open("sharded/model.safetensors.index.json", "w"))
os.mkdir("backend")
json.dump({"sharded_backend": evil}, open("backend/metadata.json", "w"))
open("backend/.metadata", "w")
PY
    cp b.safetensors sharded/model-00001.safetensors
    for file in opaque.pt; do
        exits 0 s2s-ckpt ls $file
        forged
    done
    for file in hostile.pt storage.pt sharded backend; do
        exits 1 s2s-ckpt ls $file
        forged
    done
    # in the lists of what is absent and of what no map wants
    printf 'family own\na b copy\n' >own.map
    tensors hf.safetensors 'x\ns2s-ckpt: all is well' b
    exits 1 s2s-ckpt convert --strict --to torch_dist --map own.map hf.safetensors out
    forged
}

@test "tensors named like paths stay names" {
    mkdir -p deep/er
    tensors deep/er/in.safetensors '../../x' '/tmp/s2s-never' '..' '.' 'a/b'
    cd deep/er
    for to in hf torch_dist; do
        exits 0 s2s-ckpt convert -q --to $to in.safetensors $to
        exits 0 s2s-ckpt diff in.safetensors $to
    done
    exits 0 s2s-ckpt convert -q --to safetensors in.safetensors one
    only in.safetensors hf torch_dist one one.s2s-manifest.json
    cd ..
    only er
    cd ..
    only deep
    [ ! -e /tmp/s2s-never ]
}

@test "a checkpoint of more files than may be open at once" {
    mkdir in
    python3 - <<'PY'
import json, struct
files = {}
for i in range(700):
    name = "model-%05d-of-00700.safetensors" % (i + 1)
    head = json.dumps({"t.%d" % i: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    open("in/" + name, "wb").write(struct.pack("<Q", len(head)) + head + struct.pack("<I", i))
    files["t.%d" % i] = name
json.dump({"weight_map": files}, open("in/model.safetensors.index.json", "w"))
PY
    s2s-ckpt ls --sha256 in >want
    for limit in 32 256; do
        (ulimit -n $limit && s2s-ckpt ls --sha256 in >got && s2s-ckpt convert -q --no-sync --to torch_dist in out.$limit)
        same want got
        exits 0 s2s-ckpt diff in out.$limit
    done
}

@test "the input is never written: OUT is IN, a link to it, a hard link; cat onto it" {
    tensors in.safetensors a b
    cp in.safetensors was
    ln -s in.safetensors link && ln in.safetensors hard
    for out in in.safetensors ./in.safetensors link hard; do
        exits 2 s2s-ckpt convert --to safetensors in.safetensors $out
        says "choose another OUT"
        exits 2 s2s-ckpt cat in.safetensors a -o $out
        same in.safetensors was
    done
    mkdir model && cp in.safetensors model/model.safetensors
    for to in hf torch_dist; do
        exits 2 s2s-ckpt convert --to $to model model
        says "already exists"
        exits 2 s2s-ckpt convert --to $to model model/model.safetensors
    done
    same model/model.safetensors was
    only in.safetensors was link hard model
}

mounts_or_skip() {
    unshare -rm true 2>/dev/null || skip "no mounts here"
}

@test "the input is never written: OUT is a file of IN by another mount" {
    mounts_or_skip
    mkdir -p above/model b && tensors above/model/model.safetensors a b && echo '{}' >above/model/config.json
    cp -r above/model was
    for of in "above/model b/config.json" "above b/model/config.json"; do
        exits 2 unshare -rm sh -ec "mount --bind ${of% *} b; s2s-ckpt convert --to safetensors above/model ${of#* }"
        says "is part of the input"
        diff -r above/model was
    done
}

@test "an OUT that no rename can replace is refused before anything is written" {
    tensors in.safetensors a b
    mkdir here mounted
    cd here
    for to in hf torch_dist; do
        exits 2 s2s-ckpt convert --to $to ../in.safetensors .
        says "name a new folder in it"
        exits 2 s2s-ckpt convert --resume --to $to ../in.safetensors ./
        [ -z "$(ls -A)" ]
    done
    cd ..
    mounts_or_skip
    exits 2 unshare -rm sh -ec "mount -t tmpfs none mounted; s2s-ckpt convert --to hf in.safetensors mounted"
    says "name a new folder in it"
    exits 0 unshare -rm sh -ec "mount -t tmpfs none mounted; s2s-ckpt convert --to hf in.safetensors mounted/out; s2s-ckpt verify mounted/out"
}

@test "OUT below IN is written, and IN stays as it was" {
    mkdir model && tensors model/model.safetensors a b && echo '{}' >model/config.json
    cp -r model was
    exits 0 s2s-ckpt convert -q --to hf model model/out
    exits 0 s2s-ckpt verify model/out
    exits 0 s2s-ckpt diff model/out was
    rm -r model/out
    diff -r model was
}

@test "links to files elsewhere are not taken along; those of a cache and of the folder are" {
    mkdir -p hub/snapshots/1 hub/blobs && cd hub/snapshots/1
    echo secret >"$BATS_TEST_TMPDIR/secret.json"
    tensors ../../blobs/aa a && echo '{"x": 1}' >../../blobs/bb && echo text >real.txt
    ln -s ../../blobs/aa model.safetensors && ln -s ../../blobs/bb config.json && ln -s real.txt README.md
    ln -s "$BATS_TEST_TMPDIR/secret.json" notes.json && ln -s ../../../secret.json other.json && ln -s ../../blobs/../../secret.json third.json
    exits 0 s2s-ckpt convert --to hf . "$BATS_TEST_TMPDIR/out"
    says "notes.json: a link to a file elsewhere"
    says "other.json: a link"
    says "third.json: a link"
    cd "$BATS_TEST_TMPDIR/out"
    only README.md config.json model.safetensors real.txt s2s-manifest.json
    [ "$(grep -c x config.json)" -eq 1 ]
}

@test "what a model_config.yaml names is a plain file of the folder, and no archive of copies" {
    tar xf "$ROOT/tests/oracle/ckpt/data/tiny.nemo" model_config.yaml 2>/dev/null || tar xf "$ROOT/tests/oracle/ckpt/data/tiny.nemo" ./model_config.yaml
    s2s-ckpt convert -q --to hf "$ROOT/tests/oracle/ckpt/data/tiny.nemo" in
    echo secret >secret && echo text >in/real && ln -s ../secret in/linked && ln -s real in/own
    # named NAME: converts with a configuration that names it
    named() {
        { cat model_config.yaml; printf 'extra:\n  file: "nemo:%s"\n' "$1"; } >config.yaml
        ran s2s-ckpt convert -q --to nemo --config config.yaml --no-tokenizer in out.nemo
    }
    named own
    [ "$status" -eq 0 ]
    [ "$(tar xOf out.nemo ./own)" = text ]
    rm out.nemo
    for name in linked ../secret /etc/passwd in/../real . .. 0123456789abcdef0123456789abcdef_../secret "$(printf 'x%.0s' {1..90})"; do
        turn || continue
        named "$name"
        [ "$status" -eq 1 ] && says "names nemo:" || { echo "$name: $status $output" >&2; return 1; }
        [ ! -e out.nemo ]
    done
    # a thousand names of one large file, and a folder of links to one: a gigabyte is written, so both with S2S_LONG, else one of them some days
    truncate -s 4M in/large
    for i in $(seq 1000); do printf '  f%d: "nemo:%032x_large"\n' $i $i; done >names
    { cat model_config.yaml && echo extra: && cat names; } >config.yaml
    # AddressSanitizer reserves terabytes of addresses
    case ${S2S_BIN:-} in *sanitize*) ;; *) ulimit -v 4000000 ;; esac
    [ -n "$S2S_LONG" ] || [ $((FIRST % 2)) = 0 ] || return 0
    if [ -n "$S2S_LONG" ] || [ $FIRST = 2 ]; then
        run s2s-ckpt convert -q --to nemo --config config.yaml --no-tokenizer in out.nemo
        [ "$status" -eq 1 ]
        says "beside the weights"
        [ -n "$S2S_LONG" ] || return 0
    fi
    python3 -c "import os; [os.symlink('large', 'in/%d.txt' % i) for i in range(1000)]"
    run s2s-ckpt convert -q --to hf in out
    [ "$status" -eq 1 ]
    says "beside the weights"
    [ ! -e out ]
    [ ! -e out.s2s-partial ]
}

@test "texts of a common state are no weights, no index and no manifest of the output" {
    tensors in.safetensors a
    s2s-ckpt convert -q --to torch_dist in.safetensors in
    # common NAME: the common state holds a file of that name
    common() {
        python3 - "$(dirname in/iter*/common.pt)" "$1" <<'PY'
import pickle, sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/common.pt", "w") as z:
    z.writestr("common/data.pkl", pickle.dumps({"file/" + sys.argv[2]: "text"}, protocol=2))
PY
        rm -rf out
        ran s2s-ckpt convert -q --to hf in out
    }
    common tokenizer.json
    [ "$status" -eq 0 ]
    [ "$(cat out/tokenizer.json)" = text ]
    for name in model.safetensors model.safetensors.index.json pytorch_model.bin s2s-manifest.json .hidden ../x.json llm/../x.json other/x.json 'back\slash.json'; do
        common "$name"
        [ "$status" -eq 1 ] && says "file name \"$name\" is refused" && [ ! -e out ] || { echo "$name: $status $output" >&2; return 1; }
    done
}

@test "a full disk, a limit of the file's size and a place that cannot be written leave nothing" {
    large in.safetensors 4
    for to in hf torch_dist safetensors; do
        run bash -c "ulimit -f 1024; s2s-ckpt convert -q --to $to in.safetensors out"
        [ "$status" -eq 1 ] || { echo "$to: exit $status: $output" >&2; return 1; }
        says "File too large"
        only in.safetensors
        touch file
        exits 1 s2s-ckpt convert -q --to $to in.safetensors file/out
        says "file/out"
        exits 1 s2s-ckpt convert -q --to $to in.safetensors no/folder/out
        says "no/folder/out"
        rm file
        only in.safetensors
    done
    exits 1 s2s-ckpt convert -q --to safetensors in.safetensors /dev/full
    says "No space left"
    exits 1 bash -c 's2s-ckpt convert -q --to safetensors in.safetensors - >/dev/full'
    says "s2s-ckpt: stdout: cannot write "
    exits 1 s2s-ckpt cat in.safetensors w -o /dev/full
    says "No space left"
    # a report comes when all is done: what cannot be told is there
    exits 1 bash -c 's2s-ckpt convert -q --json --to torch_dist in.safetensors told >/dev/full'
    says "stdout: No space left"
    exits 0 s2s-ckpt diff in.safetensors told
}

@test "what does not fit on the disk is said before it is written" {
    python3 - <<'PY' || skip "no file here may be as large as that"
import json, os, struct
fs = os.statvfs(".")
rows = fs.f_bavail * fs.f_frsize // 1024 + (1 << 20)
head = json.dumps({"w": {"dtype": "U8", "shape": [rows, 1024], "data_offsets": [0, rows * 1024]}}).encode()
head += b" " * (-len(head) % 8)
with open("in.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head)
    f.truncate(8 + len(head) + rows * 1024)
PY
    for to in hf torch_dist safetensors; do
        run bash -c "ulimit -f 1024; s2s-ckpt convert --to $to in.safetensors out"
        [ "$status" -eq 1 ]
        says "warning: out needs "
        says "B, and . has room for "
        says "File too large"
        only in.safetensors
    done
    # the room where devices are is nobody's concern
    exits 1 s2s-ckpt convert --to safetensors in.safetensors /dev/full
    says "No space left"
    says_not "has room"
    tensors small.safetensors a
    exits 0 s2s-ckpt convert --to hf small.safetensors out
    says_not "has room"
}

@test "a folder that may not be read is named" {
    [ "$(id -u)" -ne 0 ] || skip "root reads everything"
    mkdir model && tensors model/model.safetensors a && chmod 000 model
    run s2s-ckpt ls model
    chmod 755 model
    [ "$status" -ne 0 ]
    says "model"
    says "Permission denied"
    chmod 000 model/model.safetensors
    exits 1 s2s-ckpt ls model
    says "model.safetensors"
    says "Permission denied"
}

@test "a file beside the model that may not be read keeps nobody from the model" {
    local as=
    [ "$(id -u)" -ne 0 ] || as="setpriv --reuid 65534 --clear-groups"
    $as "$(type -P s2s-ckpt)" --version || skip "nobody else can run it"
    tensors model.safetensors a
    mkdir model && mv model.safetensors model && cp model/model.safetensors model/about.safetensors && chmod 000 model/about.safetensors
    chmod 755 . model
    exits 0 $as "$(type -P s2s-ckpt)" ls model
    says "a"
    mv model/model.safetensors model/x.safetensors
    exits 2 $as "$(type -P s2s-ckpt)" ls model
    says "about.safetensors: Permission denied"
}

@test "an input that is replaced while it is read is noticed" {
    large in.safetensors 8
    mkfifo out
    s2s-ckpt convert -q --to safetensors in.safetensors out 2>said &
    local converter=$!
    exec 7<out
    head -c 1000000 <&7 >part
    touch -d '2001-01-01' in.safetensors
    cat <&7 >/dev/null
    exec 7<&-
    local status=0
    wait $converter || status=$?
    [ "$status" -eq 1 ]
    grep -q 'in.safetensors: changed while it was read' said
}

@test "stopped at any time, a conversion leaves nothing or all of it" {
    large in.safetensors 64
    cp in.safetensors was
    for to in hf torch_dist safetensors; do
        local stopped=0 signals=(INT TERM)
        for ms in 001 004 008 012 016 020 025 030 040 060; do
            turn || [ $ms = 001 ] || continue
            [ -n "$S2S_LONG" ] || signals=($([ "${signals[0]}" = TERM ] && echo INT || echo TERM)) # by turns
            for signal in "${signals[@]}"; do
                run timeout -s $signal 0.$ms s2s-ckpt convert -q --to $to in.safetensors out
                [ ! -e out ] || { exits 0 s2s-ckpt verify out; rm -rf out out.s2s-manifest.json; }
                only in.safetensors was
                [ "$status" -eq 0 ] || stopped=$((stopped + 1))
            done
        done
        [ $stopped -gt 0 ]
    done
    same in.safetensors was
}

@test "texts that a small pickle repeats do not fill the memory" {
    python3 - <<'PY'
import struct, zipfile
text = b"X" + struct.pack("<I", 100000) + b"x" * 100000
keys = b"}q\2h\0Ns0" + b"".join(b"}q" + bytes([i + 3]) + b"h" + bytes([i + 2]) + b"Ns0" for i in range(60))
for name, pickle in (("list", b"\x80\x02" + text + b"q\0000]q\1(" + b"h\0" * 100000 + b"e."),
                     ("bytes", b"\x80\x03](B\x60\xea\0\0" + b"x" * 60000 + b"q\0" + b"h\0" * 10000 + b"e."),
                     ("classes", b"\x80\x02](ctorch._utils\n_rebuild_" + b"x" * 4000 + b"\n)Rq\0" + b"h\0" * 10000 + b"e."),
                     ("keys", b"\x80\x02X\1\0\0\0\"q\0000" + keys + b"cfoo\nbar\n(h\x3etR.")):
    with zipfile.ZipFile(name + ".pt", "w") as z:
        z.writestr("archive/data.pkl", pickle)
# before torch 1.6: two storages of long names, each meant ten thousand times
def counted(t):
    return b"X" + struct.pack("<I", len(t)) + t
def storage(key):
    return b"(" + counted(b"storage") + b"ctorch\nFloatStorage\n" + counted(key) + counted(b"cpu") + b"K\0t"
with open("storages.pt", "wb") as f:
    f.write(b"\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19." + b"\x80\2M\xe9\3." + b"\x80\2}" + counted(b"little_endian") + b"\x88s.")
    f.write(b"\x80\2" + storage(b"a" * 60000) + b"q\0000" + storage(b"b" * 60000) + b"q\x010" + b"h\0Q0h\1Q0" * 10000 + b"}." + b"\x80\2].")
PY
    local little="ulimit -v 300000;"
    case ${S2S_BIN:-} in *sanitize*) little= ;; esac
    for name in list bytes classes keys storages; do
        run bash -c "$little timeout 20 s2s-ckpt ls -q --json $name.pt | head -c 100000000 | wc -c"
        [ "$status" -eq 0 ]
        [ "$output" -lt 20000000 ]
    done
    exits 0 s2s-ckpt verify list.pt
    says "not all are kept"
}

@test "members of a .nemo outside the model's folder, of odd names and too many bytes" {
    python3 - <<'PY'
import gzip, io, struct, tarfile, zipfile
raw = io.BytesIO()
with zipfile.ZipFile(raw, "w") as z:
    z.writestr("archive/data.pkl", b"\x80\x02}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
                                   b"0X\3\0\0\0cpuK\4tQK\0(K\4t(K\1t\x89ccollections\nOrderedDict\n)RtRs.")
    z.writestr("archive/data/0", bytes(16))
weights, config = raw.getvalue(), b"a: 1\n"


def tar(name, members, pack=lambda b: b):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as t:
        for path, content in members:
            info = tarfile.TarInfo(path)
            info.size = len(content)
            t.addfile(info, io.BytesIO(content))
    with open(name, "wb") as f:
        f.write(pack(raw.getvalue()))


inside = [("a_long_name_of_a_model/model_config.yaml", config), ("a_long_name_of_a_model/model_weights.ckpt", weights)]
tar("short.nemo", [("a", b"x"), ("tokenizer.model", b"x")] + inside)
tar("up.nemo", [("model_config.yaml", config), ("model_weights.ckpt", weights), ("sub/..", b"x")])
tar("beside.nemo", [("model_config.yaml", config), ("model_weights.ckpt", weights)])
with tarfile.open("beside.nemo") as t:
    t.getmembers()
    end = t.offset
with open("beside.nemo", "r+b") as f:  # and three files of holes
    f.seek(end)
    for i in range(3):
        info = tarfile.TarInfo("f%d" % i)
        info.size = 100 << 20
        f.write(info.tobuf(tarfile.GNU_FORMAT))
        f.seek(info.size, 1)
    f.truncate(f.tell() + 1024)
tar("nested.nemo", [], lambda b: gzip.compress(b"LRZI" + bytes(1000)))
PY
    exits 0 s2s-ckpt ls short.nemo
    exits 0 s2s-ckpt convert -q --to hf short.nemo out
    exits 1 s2s-ckpt convert -q --to nemo up.nemo out.nemo
    says "up.nemo"
    says "refused"
    exits 1 s2s-ckpt convert -q --to nemo beside.nemo out.nemo
    says "beside.nemo"
    says "beside the weights"
    exits 1 s2s-ckpt ls nested.nemo
    says "nested.nemo"
    says "not a whole"
    [ ! -e out.nemo ]
}

@test "members of a .nemo that would leave its folder or are no plain files, and links to its own" {
    export ROOT
    python3 - <<'PY'
import io, os, tarfile
weights = tarfile.open(os.environ["ROOT"] + "/tests/oracle/ckpt/data/tiny.nemo")
content = {m.name: weights.extractfile(m).read() for m in weights if m.isreg()}


def tar(name, *members, mode="w"):
    with tarfile.open(name, mode) as t:
        for path, data in content.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
        for path, kind, target in members:
            info = tarfile.TarInfo(path)
            info.type, info.linkname = kind, target
            t.addfile(info)


first = min(content)
tar("up.nemo", ("./a/../../x", tarfile.REGTYPE, ""))
tar("folder.nemo", ("../", tarfile.DIRTYPE, ""))
tar("root.nemo", ("/etc/x", tarfile.REGTYPE, ""), mode="w:gz")
tar("link.nemo", ("./x", tarfile.SYMTYPE, "/etc/passwd"))
tar("device.nemo", ("./x", tarfile.CHRTYPE, ""))
tar("fifo.nemo", ("./x", tarfile.FIFOTYPE, ""), mode="w:gz")
tar("lost.nemo", ("./x", tarfile.LNKTYPE, "./nothing"))
tar("again.nemo", ("./again", tarfile.LNKTYPE, first))
tar("dots.nemo", ("./..a/b..", tarfile.REGTYPE, ""), (".//c", tarfile.REGTYPE, ""))
tar("odd.nemo", ("./a\\..\\b", tarfile.REGTYPE, ""))
for i, spelling in enumerate(("a/./b", "a//b", "././/a/b")):
    tar("twice%d.nemo" % i, ("a/b", tarfile.REGTYPE, ""), (spelling, tarfile.REGTYPE, ""))
for name, kind, target in ("many", tarfile.REGTYPE, ""), ("linked", tarfile.LNKTYPE, first):
    tar(name + ".nemo", *(("%d_tokenizer.model" % i, kind, target) for i in range(5000)), mode="w:gz")
PY
    for name in up folder root link device fifo lost odd twice{0..2}; do
        turn || continue
        for command in ls verify; do
            exits 1 s2s-ckpt $command $name.nemo
            says "$name.nemo: "
        done
        exits 1 s2s-ckpt convert --to hf $name.nemo out
        [ ! -e out ]
    done
    for name in many linked; do
        for to in hf nemo; do
            exits 1 bash -c "ulimit -t 2; s2s-ckpt convert -q --to $to $name.nemo out"
            says "$name.nemo: more than 4096 files, or 256 MiB of them, beside the weights"
        done
    done
    exits 0 s2s-ckpt verify dots.nemo
    exits 0 s2s-ckpt verify again.nemo
    exits 0 s2s-ckpt convert -q --to nemo again.nemo out.nemo
    tar xOf out.nemo ./again >again
    [ -s again ]
}

@test "a small .nemo that inflates to gigabytes of headers takes neither time nor memory" {
    export ROOT
    python3 - <<'PY'
import gzip, os, tarfile


def header(name, size, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.USTAR_FORMAT)


def pax(**values):
    text = b""
    for key, value in values.items():
        n = len(key) + len(value) + 3
        while len(record := b"%d %s=%s\n" % (n, key.replace("_", ".").encode(), value)) != n:
            n = len(record)
        text += record
    return header("pax", len(text), tarfile.XHDTYPE) + text + bytes(-len(text) % 512)


whole = open(os.environ["ROOT"] + "/tests/oracle/ckpt/data/tiny.nemo", "rb").read().rstrip(b"\0")
whole += bytes(-len(whole) % 512)
end = bytes(1024)
# libarchive has the places of a sparse file in memory before it says that there are any
n = 8000000
places = b"%d\n" % n + b"0\n0\n" * n
places += bytes(-len(places) % 512)
sparse = pax(GNU_sparse_major=b"1", GNU_sparse_minor=b"0", GNU_sparse_name=b"x", GNU_sparse_realsize=b"9") + header("x", len(places)) + places
open("sparse.nemo", "wb").write(gzip.compress(whole + sparse + end, 1))
wide = gzip.compress((pax(comment=b"c" * 900000) + header("d", 0, tarfile.DIRTYPE)) * 20)
open("wide.nemo", "wb").write(gzip.compress(whole) + wide * 200 + gzip.compress(end))
long = pax(comment=b"c" * 900000) + header("d", 0, tarfile.DIRTYPE)
open("long.nemo", "wb").write(gzip.compress(whole + long * 3 + end))
open("plain.nemo", "wb").write(gzip.compress(whole + end))
PY
    little="ulimit -v 300000;"
    case ${S2S_BIN:-} in *sanitize*) little= ;; esac
    while IFS=: read -r name why; do
        exits 1 bash -c "$little ulimit -t 3; s2s-ckpt ls $name.nemo"
        says "$name.nemo: not a whole compressed tar archive"
        says "$why"
    done <<'END'
sparse:a header of more than 1 MiB
wide:made to fill the disk
END
    for name in long plain; do
        exits 0 s2s-ckpt diff "$name.nemo" "$ROOT/tests/oracle/ckpt/data/tiny.nemo"
    done
}

@test "long: hard links in a .nemo are not looked up one after another" {
    python3 - <<'PY'
import tarfile
long = "n" * 90
with tarfile.open("links.nemo", "w", format=tarfile.USTAR_FORMAT) as t:
    for k in range(65536):
        info = tarfile.TarInfo(long + "%05d" % k)
        if k >= 32768:
            info.type, info.linkname = tarfile.LNKTYPE, long + "32767"
        t.addfile(info)
PY
    exits 1 bash -c "ulimit -t 2; exec s2s-ckpt ls links.nemo"
    says "a tar without model_weights.ckpt"
}

@test "a compressed file's checksum is compared: bytes of a small file that flipped are noticed" {
    export ROOT
    python3 - <<'PY'
import bz2, gzip, lzma, os, subprocess
data = bytearray(open(os.environ["ROOT"] + "/tests/oracle/ckpt/data/tiny.nemo", "rb").read())
packed = gzip.compress(bytes(data), 0)  # stored: what flips is the data, not how it is packed
at = packed.find(b"sample_rate")
assert at > 0
open("good.nemo", "wb").write(packed)
open("flipped.nemo", "wb").write(packed[:at] + b"S" + packed[at + 1:])
open("crc.nemo", "wb").write(packed[:-8] + bytes(4) + packed[-4:])
open("length.nemo", "wb").write(packed[:-4] + bytes(4))
open("cut.nemo", "wb").write(packed[:-8])
half = len(data) // 2 // 512 * 512
open("two.nemo", "wb").write(gzip.compress(bytes(data[:half])) + gzip.compress(bytes(data[half:])))
# the checksum is after zeros that no reader of the tar comes to
packed = gzip.compress(bytes(data) + bytes(200 << 10))
open("good_after.nemo", "wb").write(packed)
open("crc_after.nemo", "wb").write(packed[:-6] + bytes([packed[-6] ^ 8]) + packed[-5:])
for name, other in ("xz", lzma.compress(bytes(data))), ("bzip2", bz2.compress(bytes(data))), ("zstd", subprocess.check_output(["zstd", "-qc"], input=bytes(data))):
    open(name + ".nemo", "wb").write(other)
PY
    for name in good two good_after; do
        exits 0 s2s-ckpt verify $name.nemo
    done
    for name in flipped crc length cut crc_after; do
        exits 1 s2s-ckpt verify $name.nemo
        says "$name.nemo: not a whole"
    done
    # NeMo writes no others
    for name in xz bzip2 zstd; do
        exits 1 s2s-ckpt verify $name.nemo
        says "$name.nemo: compressed by $name, and only gzip is read"
        says "unpack it first: $name -d"
    done
}

# part of a folder: without its index, so that only the files' names tell how many there were
without_index() {
    rm -rf part
    cp -rL "$DATA/$1" part
    chmod -R u+w part
    rm -f part/*.index.json
}

@test "a shard that is missing is noticed without an index, and of every format" {
    DATA=$ROOT/tests/oracle/ckpt/data
    for gone in 00001 00002 00003; do
        without_index hf_sharded
        rm part/model-$gone-of-00003.safetensors
        for command in ls verify; do
            exits 1 s2s-ckpt $command part
            says "model-$gone-of-00003.safetensors is missing"
        done
        exits 1 s2s-ckpt convert --to torch_dist part out
        [ ! -e out ]
    done
    without_index hf_sharded
    exits 0 s2s-ckpt verify part
    # some count from 0
    for k in 1 2 3; do mv part/model-0000$k-of-00003.safetensors part/model-0000$((k - 1))-of-00003.safetensors; done
    exits 0 s2s-ckpt verify part
    rm part/model-00002-of-00003.safetensors
    exits 1 s2s-ckpt verify part
    for gone in 00001 00002; do
        without_index dcp_hf
        rm part/model-$gone-of-00002.safetensors
        exits 1 s2s-ckpt verify part
        says "model-$gone-of-00002.safetensors is missing"
        cp "$DATA/dcp_hf/model.safetensors.index.json" part
        exits 1 s2s-ckpt verify part
        says "missing"
    done
    # each rank has a share of its own; a rank without one writes no file
    without_index dcp_hf
    mv part/model-00001-of-00002.safetensors part/shard-00001-model-00001-of-00002.safetensors
    mv part/model-00002-of-00002.safetensors part/shard-00003-model-00002-of-00002.safetensors
    cp "$DATA/dcp_hf/model.safetensors.index.json" part
    exits 0 s2s-ckpt verify part
    rm part/shard-00003-*
    exits 1 s2s-ckpt verify part
    # which the last of one file may have been, too
    without_index dcp_hf
    mv part/model-00001-of-00002.safetensors part/shard-00001-model-00001-of-00002.safetensors
    mv part/model-00002-of-00002.safetensors part/shard-00001-model-00002-of-00002.safetensors
    exits 0 s2s-ckpt verify part
    says_not rank
    mv part/shard-00001-model-00002-of-00002.safetensors part/shard-00004-model-00002-of-00002.safetensors
    exits 0 s2s-ckpt verify part
    says "model-00001-of-00002.safetensors: the last share is of rank 1, that of other files of rank 4"
    mkdir bin
    cp "$DATA/pytorch_model.bin" bin/pytorch_model-00001-of-00002.bin
    cp "$DATA/pytorch_model.bin" bin/training_args.bin
    exits 1 s2s-ckpt ls bin
    says "pytorch_model-00002-of-00002.bin is missing"
}

@test "shares of ranks as NeMo Automodel leaves them: the last one is missed by the vocabulary, and names by their list" {
    python3 - <<'PY'
import json, os, struct
os.makedirs("model/.hf_metadata")
names = {"model.embed_tokens.weight": (7, 4), "model.norm.weight": (4,)}
for rank in range(2):
    head, info, at = {}, {}, 0
    for name, shape in names.items():
        begin, half = (0, -(-shape[0] // 2)) if rank == 0 else (-(-shape[0] // 2), shape[0] // 2)
        size = 4 * half * (shape[1] if len(shape) > 1 else 1)
        head[name] = {"dtype": "F32", "shape": [half, *shape[1:]], "data_offsets": [at, at + size]}
        info[name] = {"saved_offsets": [begin] + [0] * (len(shape) - 1)}
        at += size
    head["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps(info), "DCP_VERSION": "1.0"}
    text = json.dumps(head).encode()
    with open("model/shard-0000%d-model-00001-of-00001.safetensors" % (rank + 1), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + bytes(at))
json.dump({name: 1 for name in names}, open("model/.hf_metadata/fqn_to_file_index_mapping.json", "w"), indent=2)
json.dump({"vocab_size": 7, "model_type": "mine"}, open("model/.hf_metadata/config.json", "w"))
PY
    exits 0 s2s-ckpt verify model
    says_not warning
    cp -r model short
    rm short/shard-00002-*
    for command in ls verify "convert --to hf -o out"; do
        # shellcheck disable=SC2086
        exits 1 s2s-ckpt $command short
        says "model.embed_tokens.weight ends with row 4; config.json says 7: the last rank's share is missing"
    done
    [ ! -e out ]
    # where the words are the text model's
    echo '{"vocab_size": 4, "text_config": {"vocab_size": 7}}' >short/.hf_metadata/config.json
    exits 1 s2s-ckpt verify short
    # a configuration that is broken is verify's business
    echo '{' >short/.hf_metadata/config.json
    exits 0 s2s-ckpt ls short
    exits 1 s2s-ckpt verify short
    echo '{"model.layers.0.mlp.up_proj.weight": 1, "model.layers.1.mlp.up_proj.weight": 1, "model.norm.weight": 1}' \
        >model/.hf_metadata/fqn_to_file_index_mapping.json
    exits 0 s2s-ckpt verify model
    says "no file has 2 of the tensors that .hf_metadata/fqn_to_file_index_mapping.json names, such as model.layers.0.mlp.up_proj.weight"
    echo '{"model.norm.weight": 1,, }' >model/.hf_metadata/fqn_to_file_index_mapping.json
    exits 0 s2s-ckpt verify model
    says "not used: model/.hf_metadata/fqn_to_file_index_mapping.json:1:"
}

@test "one file of several that is named alone is said to be one" {
    local data=$ROOT/tests/oracle/ckpt/data command
    for command in ls verify "convert --to hf --plan -o out"; do
        exits 0 s2s-ckpt $command "$data/hf_sharded/model-00001-of-00003.safetensors"
        says "s2s-ckpt: warning: $data/hf_sharded/model-00001-of-00003.safetensors: by its name one of 3 files, and read alone; name the folder for all"
    done
    exits 0 s2s-ckpt ls "$data/hf_sharded"
    says_not "read alone"
    cp "$data/pytorch_model.bin" pytorch_model-00001-of-00001.bin
    exits 0 s2s-ckpt ls pytorch_model-00001-of-00001.bin
    says_not "read alone"
    cp "$data/pytorch_model.bin" pytorch_model-00001-of-00002.bin
    exits 0 s2s-ckpt ls pytorch_model-00001-of-00002.bin
    says "one of 2 files"
}

@test "what an index does not name is said, and an index names something" {
    DATA=$ROOT/tests/oracle/ckpt/data
    cp -r "$DATA/hf_sharded" folder
    chmod -R u+w folder
    cp folder/model-00001-of-00003.safetensors folder/old.safetensors
    exits 0 s2s-ckpt ls folder
    says "old.safetensors: not in the index"
    echo '{"weight_map": {}}' >folder/model.safetensors.index.json
    exits 1 s2s-ckpt ls folder
    says "weight_map is empty"
}

@test "an index that swaps the files of two tensors is refused" {
    cp -r "$ROOT/tests/oracle/ckpt/data/hf_sharded" folder
    chmod -R u+w folder
    python3 - <<'EOF'
import json
path = "folder/model.safetensors.index.json"
index = json.load(open(path))
of = index["weight_map"]
a, b = min(of, key=of.get), max(of, key=of.get)
assert of[a] != of[b]
json.dump({"weight_map": {**of, a: of[b], b: of[a]}}, open(path, "w"))
EOF
    exits 1 s2s-ckpt ls folder
    says "the index says that "
    says "it is not"
}

@test "a tensor that the index forgets, in a file that it names, is read" {
    DATA=$ROOT/tests/oracle/ckpt/data
    cp -r "$DATA/hf_sharded" folder
    chmod -R u+w folder
    exits 0 s2s-ckpt ls --sha256 -o whole folder
    python3 - <<'EOF'
import json
path = "folder/model.safetensors.index.json"
index = json.load(open(path))
del index["weight_map"][min(index["weight_map"])]
json.dump(index, open(path, "w"))
EOF
    exits 0 s2s-ckpt ls --sha256 -o forgotten folder
    says "$(cut -f 1 whole | head -n 1): not in the index, but read"
    cmp whole forgotten
}

@test "verify reads config.json; what beside the weights is no file is left out with a word" {
    DATA=$ROOT/tests/oracle/ckpt/data
    cp -r "$DATA/hf_sharded" folder
    chmod -R u+w folder
    mkfifo folder/tokenizer.json
    ln -s nowhere folder/tokenizer_config.json
    ln -s encoder folder/encoder
    exits 0 s2s-ckpt convert --to hf folder out
    says "encoder: Too many levels of symbolic links, left out"
    says "tokenizer.json: not a plain file, left out"
    says "tokenizer_config.json: a link to nothing, left out"
    truncate -s -5 folder/config.json
    exits 1 s2s-ckpt verify folder
    says "config.json:"
    # nor can a copy under kept names be held against it
    for how in "--part model" "" "--dtype bf16"; do
        exits 1 s2s-ckpt convert $how --to hf folder copy
        says "folder/config.json:"
        [ ! -e copy ]
    done
    cp -r "$ROOT/tests/oracle/models/salm_llama" salm
    chmod -R u+w salm
    echo '{' >salm/llm/config.json
    exits 1 s2s-ckpt verify salm
    says "salm/llm/config.json:"
    exits 1 s2s-ckpt convert --strict --to hf salm strict
    says "salm/llm/config.json:"
    # convert --to hf reads it in Megatron's folders, too
    for name in mcore016_hybrid_tp2pp2ep2/iter_0001000 mp_rank/iter_0000100 dcp_plain; do
        rm -rf other
        cp -r "$DATA/$name" other
        chmod -R u+w other
        cp out/config.json other
        exits 0 s2s-ckpt verify other
        cp folder/config.json other
        exits 1 s2s-ckpt verify other
        says "config.json:"
    done
}

@test "small files of names that nothing can note are left out with a word, others are taken" {
    cp -r "$ROOT/tests/oracle/ckpt/data/hf_sharded" folder
    chmod -R u+w folder
    for name in 'odd name.txt' 'ü.txt' '-o.txt' $'new\nline.txt' 'back\slash.txt' $'\xff.txt'; do
        echo kept >"folder/$name"
    done
    for to in "hf folder out" "torch_dist --map llama folder dist" "hf dist back"; do
        exits 0 s2s-ckpt convert --to $to
        [ "${to##* }" = back ] && continue
        for name in 'new\nline.txt' 'back\slash.txt' '\xff.txt'; do
            says "s2s-ckpt: warning: $name: a name with bytes that are not text, left out"
        done
    done
    for path in out back; do
        exits 0 s2s-ckpt verify $path
        no_litter $path config.json model.safetensors s2s-manifest.json 'odd name.txt' 'ü.txt' '-o.txt'
    done
}

@test "unfinished saves and conversions are called so, and what was meant is named" {
    DATA=$ROOT/tests/oracle/ckpt/data
    cp -r "$DATA/mini_writer" run
    chmod -R u+w run
    printf 43 >run/latest_checkpointed_iteration.txt
    exits 1 s2s-ckpt ls run
    says "name one inside it: iter_0000042"
    printf 42 >run/latest_checkpointed_iteration.txt
    mv run/iter_0000042/metadata.json .
    exits 1 s2s-ckpt verify run
    says "metadata.json, which Megatron-Core writes last, is missing"
    # all is there that a conversion needs, the common state too
    exits 0 s2s-ckpt convert --to torch_dist run out
    says "is missing or names no backend"
    exits 0 s2s-ckpt verify out
    same run/iter_0000042/common.pt out/iter_0000042/common.pt
    mv metadata.json run/iter_0000042/
    rm run/iter_0000042/common.pt
    exits 1 s2s-ckpt verify run
    says "common.pt is missing"
    exits 0 s2s-ckpt reshard run resharded
    says "run/iter_0000042: common.pt is missing: the one written holds none of the run's arguments"
    mkdir out.s2s-partial
    cp "$DATA/hf_sharded/"model-* out.s2s-partial
    touch out.s2s-partial/s2s-resume
    exits 1 s2s-ckpt verify out.s2s-partial
    says "an unfinished conversion"
    # a save that did not come far, to which the tracker points
    cp -r "$DATA/mini_writer" runs
    chmod -R u+w runs
    mkdir runs/iter_0000050 runs/iter_0000049
    : >runs/latest_checkpointed_iteration.txt # of a full disk
    exits 1 s2s-ckpt ls runs
    says 'runs: latest_checkpointed_iteration.txt: "" is not an iteration; name one inside it: iter_0000042'
    printf 50 >runs/latest_checkpointed_iteration.txt
    exits 1 s2s-ckpt ls runs
    says "runs/iter_0000050: no known checkpoint here; name another one of the run: runs/iter_0000042"
    for file in common.pt metadata.json; do
        cp runs/iter_0000042/$file runs/iter_0000050
        exits 1 s2s-ckpt ls runs
        says "runs/iter_0000050: neither .metadata nor .distcp data are there: an unfinished save, or a damaged one; name another one of the run: runs/iter_0000042"
        rm runs/iter_0000050/$file
    done
    cp runs/iter_0000042/*.distcp runs/iter_0000050
    exits 1 s2s-ckpt ls runs
    says "there is .distcp data and no .metadata; name another one of the run: runs/iter_0000042"
    # the newest Megatron-Core has no common.pt by which to know its folder
    PYTHONPATH=$ROOT/tests/oracle/ckpt python3 - <<'PY'
from mini_writer import s, write
write("object", [("w", "float32", (1, 2), [((0, 0), (1, 2), bytes(8))])],
      objs=[("common_state/shard_0_1", b"\x80\x02]}(" + s("checkpoint_version") + b"K\3ua.")])
PY
    exits 0 s2s-ckpt verify object
    rm object/metadata.json
    exits 1 s2s-ckpt verify object
    says "metadata.json, which Megatron-Core writes last, is missing"
    exits 0 s2s-ckpt reshard object again
    says "is missing or names no backend"
    exits 0 s2s-ckpt verify again
    [ -s again/iter_0000001/common.pt ]
}

@test "files of two saves in one folder are told of" {
    cp -r "$ROOT/tests/oracle/ckpt/data/mini_writer" run
    chmod -R u+w run
    : >run/iter_0000042/__2_0.distcp # of a rank that had nothing to write
    exits 0 s2s-ckpt verify run
    says_not "save"
    cp run/iter_0000042/__1_0.distcp run/iter_0000042/__3_0.distcp
    for command in ls verify "convert --to torch_dist" reshard; do
        rm -rf out
        case $command in ls | verify) to= ;; *) to=out ;; esac
        exits 0 s2s-ckpt $command run $to
        says ".metadata names nothing in 1 of the .distcp files (__3_0.distcp)"
    done
    exits 0 s2s-ckpt verify out
    says_not "save"
    cat run/iter_0000042/__3_0.distcp >>run/iter_0000042/__0_0.distcp
    rm run/iter_0000042/__3_0.distcp
    exits 0 s2s-ckpt verify run
    says "bytes belong to nothing that .metadata names"
    mv run/iter_0000042 run/iter_0000043
    exits 0 s2s-ckpt ls run/iter_0000043
    says "the common state is of iteration 42"
    mv run/iter_0000043 run/release # weights to start from say any
    exits 0 s2s-ckpt ls run/release
    says_not "of iteration"
    # an old release's common state beside that of a new one
    PYTHONPATH=$ROOT/tests/oracle/ckpt python3 - <<'PY'
from mini_writer import i, s, write
write("both", [("w", "float32", (1, 2), [((0, 0), (1, 2), bytes(8))])], common=b"}(" + s("iteration") + i(6) + b"u",
      objs=[("common_state/shard_0_1", b"\x80\x02]}(" + s("iteration") + i(7) + b"ua.")])
PY
    exits 0 s2s-ckpt verify both
    says "one is of another save; common.pt is taken"
    exits 0 s2s-ckpt reshard both out6
    says "one is of another save; common.pt is taken"
    [ -d out6/iter_0000006 ]
    exits 0 s2s-ckpt verify out6
    says_not "another save"
}

@test "a pointer of Git LFS or a web page in place of weights is named as such" {
    DATA=$ROOT/tests/oracle/ckpt/data
    cp -r "$DATA/hf_sharded" folder
    chmod -R u+w folder
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n' >folder/model-00002-of-00003.safetensors
    cp folder/model-00002-of-00003.safetensors pytorch_model.bin
    printf '<!DOCTYPE html><html>' >model.safetensors
    for path in folder folder/model-00002-of-00003.safetensors pytorch_model.bin; do
        exits 1 s2s-ckpt ls $path
        says "git lfs pull"
    done
    exits 1 s2s-ckpt ls model.safetensors
    says "a web page"
}

@test "somebody else's folder named OUT.s2s-partial is not removed; what a killed run left is" {
    DATA=$ROOT/tests/oracle/ckpt/data
    mkdir out.s2s-partial
    echo precious >out.s2s-partial/file
    exits 2 s2s-ckpt convert --to hf "$DATA/hf_sharded" out
    says "no run of s2s-ckpt left it"
    [ "$(cat out.s2s-partial/file)" = precious ]
    [ ! -e out ]
    touch out.s2s-partial/s2s-resume
    exits 0 s2s-ckpt convert --to hf "$DATA/hf_sharded" out
    [ ! -e out.s2s-partial ]
}

@test "a map that is a pipe or a device is refused, not read without end" {
    mkfifo pipe
    tensors in.safetensors w
    for map in "$PWD/pipe" /dev/zero; do
        for to in hf torch_dist; do
            exits 1 timeout 20 s2s-ckpt convert --to $to --map "$map" in.safetensors out
            says "$map: not a plain file"
            [ ! -e out ]
        done
    done
}

@test "hidden files are nobody's weights" {
    DATA=$ROOT/tests/oracle/ckpt/data
    mkdir only
    echo x >only/._model.safetensors
    exits 1 s2s-ckpt ls only
    says "no known checkpoint here"
    cp -r "$DATA/dcp_hf" boxes
    for file in boxes/*.safetensors; do
        echo x >"boxes/._${file##*/}"
    done
    s2s-ckpt ls "$DATA/dcp_hf" >want
    s2s-ckpt ls boxes >got
    diff want got
}

@test "no file of the input's folder is an output, weights or not" {
    mkdir model && tensors model/model.safetensors a b && echo '{}' >model/config.json
    cp -r model was
    exits 2 s2s-ckpt convert --to safetensors model model/config.json
    says "choose another OUT"
    ln model/config.json hard && ln -s model/config.json link
    for out in model/config.json link model/../model/model.safetensors; do
        exits 2 s2s-ckpt ls -o $out model
        exits 2 s2s-ckpt cat -o $out model a
    done
    diff -r model was
}

@test "an output that is a link is written where it leads, or not at all" {
    tensors in.safetensors a b
    mkdir far && echo old >far/out && ln -s far/out link && ln -s far/none dangling
    exits 0 s2s-ckpt convert -q --to safetensors in.safetensors link
    [ -L link ]
    exits 0 s2s-ckpt diff in.safetensors far/out
    for command in "convert -q --to safetensors -o dangling in.safetensors" "ls -o dangling in.safetensors"; do
        # shellcheck disable=SC2086
        exits 1 s2s-ckpt $command
        says "dangling: is a link to nothing"
        [ -L dangling ]
    done
    only in.safetensors far link dangling
}

@test "a disk that is full at the first byte leaves no folder" {
    tensors in.safetensors a b
    run bash -c 'ulimit -f 0; s2s-ckpt convert --to torch_dist in.safetensors out 2>&1 | cat; exit ${PIPESTATUS[0]}'
    [ "$status" -eq 1 ]
    says "out.s2s-partial/s2s-resume: write: File too large"
    only in.safetensors
}

@test "what a signal interrupts leaves nothing, and ends of that signal" {
    large big.safetensors 512
    for signal in INT TERM HUP PIPE ALRM USR1 USR2 XCPU; do
        turn || continue
        run python3 - $signal <<'PY'
import os, signal, subprocess, sys
number = getattr(signal, "SIG" + sys.argv[1])
signal.signal(number, signal.SIG_DFL)
made = subprocess.Popen(["s2s-ckpt", "convert", "--to", "hf", "big.safetensors", "out"], stderr=subprocess.PIPE, text=True)
while not os.path.exists("out.s2s-partial/s2s-resume") and made.poll() is None:
    pass
made.send_signal(number)
said = made.communicate()[1]
assert "interrupted" in said, said
assert made.returncode == -number, made.returncode
PY
        [ "$status" -eq 0 ] || { echo "$output" >&2; return 1; }
        only big.safetensors
    done
}

@test "a reader of the report who left ends what is done, in silence" {
    tensors in.safetensors a b
    run python3 - <<'PY'
import subprocess
made = subprocess.Popen(["s2s-ckpt", "convert", "-q", "--json", "--to", "hf", "in.safetensors", "out"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
made.stdout.close()
assert made.wait() == -13, made.returncode
said = made.stderr.read()
assert said == b"", said
PY
    [ "$status" -eq 0 ] || { echo "$output" >&2; return 1; }
    only in.safetensors out
    exits 0 s2s-ckpt verify out
}

@test "a signal ends what waits for a pipe's reader; one that is ignored stays ignored" {
    tensors in.safetensors a b && large big.safetensors 64
    mkfifo pipe
    s2s-ckpt convert --to safetensors in.safetensors pipe &
    pid=$!
    sleep 0.5
    kill -TERM $pid
    status=0
    for _ in $(seq 100); do
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL $pid 2>/dev/null || true
    wait $pid || status=$?
    [ $status -eq 143 ]
    # as under nohup: a whole folder comes of it
    (trap '' HUP && exec s2s-ckpt convert -q --no-sync --to hf big.safetensors out) &
    pid=$!
    while [ ! -e out.s2s-partial/s2s-resume ] && kill -0 $pid; do :; done
    kill -HUP $pid || true
    wait $pid
    [ -s out/model.safetensors ]
}

@test "forty thousand aliases among fifty thousand anchors are found at once" {
    python3 - "$ROOT/tests/oracle/ckpt/data/tiny.nemo" <<'PY'
import io, sys, tarfile
with tarfile.open(sys.argv[1]) as old, tarfile.open("many.nemo", "w") as new:
    for member in old.getmembers():
        content = old.extractfile(member).read() if member.isfile() else b""
        if member.name.endswith("model_config.yaml"):
            content += b"".join(b"a%d: &a%d 1\n" % (i, i) for i in range(50000)) + b"".join(b"b%d: *a0\n" % i for i in range(40000))
            member.size = len(content)
        new.addfile(member, io.BytesIO(content))
PY
    # a comparison with each took many seconds
    exits 0 timeout 3 s2s-ckpt ls many.nemo
}

@test "a text too large for the common state is refused" {
    cp -r "$ROOT/tests/oracle/models/llama_gqa_untied" in
    rm in/expected.* in/inputs.*
    truncate -s 300M in/large.txt
    for map in "" "--map llama"; do
        # shellcheck disable=SC2086 # words
        exits 1 s2s-ckpt convert --to torch_dist $map in out
        [ "$output" = "s2s-ckpt: in: large.txt: has 314572800 bytes, at most 268435456 are expected" ]
        [ ! -e out ]
    done
}

@test "a hundred thousand numbers or truths under a long name are no bomb" {
    python3 - <<'PY'
import zipfile
with zipfile.ZipFile("sampler.pt", "w") as z:
    z.writestr("archive/data.pkl", b"\x80\x02}U\x19sampler_state_of_the_epoch"[:-1] + b"]q\0(" + b"K\1" * 100000 + b"es.")
with zipfile.ZipFile("masks.pt", "w") as z:
    z.writestr("archive/data.pkl", b"\x80\x02}U\x50" + b"train_dataloader.sampler.".ljust(80, b"x") + b"]q\0(" + b"\x88" * 300000 + b"es.")
PY
    exits 0 s2s-ckpt verify sampler.pt
    says "100000 objects"
    exits 0 s2s-ckpt verify masks.pt
    says "300000 objects"
}

@test "a checkpoint without weights is named once" {
    tensors in.safetensors optimizer.state.exp_avg.w
    exits 1 s2s-ckpt convert --to hf in.safetensors out
    [ "$output" = "s2s-ckpt: in.safetensors: no weights" ]
    exits 1 s2s-ckpt convert --to torch_dist --map llama in.safetensors out
    [ "$(grep -o in.safetensors <<<"$output" | wc -l)" -eq 1 ]
}

@test "folders whose links lead in circles are soon found to hold nothing" {
    mkdir in
    for name in weights model policy actor dist_ckpt pytorch_model_fsdp_0 optim value critic optimizer_0; do
        ln -s . "in/$name"
    done
    exits 1 timeout 5 s2s-ckpt ls in
    says "in: no known checkpoint here"
}
