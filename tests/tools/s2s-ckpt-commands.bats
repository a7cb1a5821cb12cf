# s2s-ckpt's options, one by one: what --help says happens, and what cannot be meant is refused.
load common
load ckpt_faults

# one_tensor FILE DTYPE NUMPY_TYPE NUMBER...: a safetensors file of one tensor, w
one_tensor() {
    /usr/bin/python3 - "$@" <<'PY'
import json, struct, sys
import numpy
data = numpy.array([int(x) for x in sys.argv[4:]], sys.argv[3]).tobytes()
head = json.dumps({"w": {"dtype": sys.argv[2], "shape": [len(sys.argv) - 4], "data_offsets": [0, len(data)]}}).encode()
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head + data)
PY
}

# json FILE EXPRESSION: true of the document d
json() {
    python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2]))' "$1" "$2" ||
        { echo "not so: $2" >&2; cat "$1" >&2; return 1; }
}

@test "-o: what ls, verify and diff print appears in the file, whole or not at all" {
    for command in "ls" "ls --json" "verify" "diff --json $DATA/hf_sharded"; do
        s2s-ckpt $command "$DATA/hf_sharded" >want
        exits 0 s2s-ckpt $command "$DATA/hf_sharded" -o out
        [ -z "$output" ]
        same want out
        rm out
    done
    exits 1 s2s-ckpt diff -o out "$DATA/hf_sharded" "$DATA/dcp_plain"
    [ -s out ]
    rm out
    cp "$DATA/zip.pt" zip.pt
    truncate -s -1 zip.pt
    exits 1 s2s-ckpt ls -o out zip.pt
    [ ! -e out ]
    exits 1 s2s-ckpt ls -o /dev/full "$DATA/hf_sharded"
    says "/dev/full"
    cp "$DATA/zip.pt" zip.pt
    for command in "ls" "verify" "diff $DATA/zip.pt" "diff zip.pt $DATA/zip.pt" "cat"; do
        case $command in cat) last=tied ;; *zip.pt\ *) last= ;; *) last= ;; esac
        case $command in "diff zip.pt "*) in=() ;; *) in=(zip.pt) ;; esac
        run s2s-ckpt $command -o zip.pt "${in[@]}" $last
        [ "$status" -ne 0 ]
        same zip.pt "$DATA/zip.pt"
    done
}

@test "--json: convert, prune, reshard and average say what they did, --plan what they would" {
    s2s-ckpt convert --plan --json --to hf "$DATA/hf_sharded" out >plan.json
    [ ! -e out ]
    s2s-ckpt ls --json "$DATA/hf_sharded" >ls.json
    python3 - <<'PY'
import json
plan, ls = json.load(open("plan.json")), json.load(open("ls.json"))
assert plan["format"] == "hf" and plan["out"] == "out"
for t in ls["tensors"]:
    del t["n_chunks"]
assert plan["tensors"] == ls["tensors"]
PY
    # what the one would leave out the other leaves out
    s2s-ckpt convert --plan --json --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" hf >plan.json 2>said
    grep -q '^s2s-ckpt: left out: optimizer.state.exp_avg.\* (55), ' said
    grep -q '^s2s-ckpt: hf: 55 tensors, 65.4 kB would be written; left out: 165 tensors of optimizer and other state, ' said
    s2s-ckpt convert -q --json --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" hf >done.json
    python3 -c 'import json; a, b = [json.load(open(name))["left_out"] for name in ("plan.json", "done.json")]; assert a == b, (a, b)'
    # the map that was detected; none
    json plan.json 'd["map"] == "nemotron_h"'
    json done.json 'd["map"] == "nemotron_h"'
    s2s-ckpt convert -q --json --to torch_dist "$DATA/hf_sharded" kept >kept.json
    json kept.json 'd["map"] is None and d["format"] == "torch_dist"'
    json done.json 'd["out"] == "hf" and d["format"] == "hf" and d["tensors"] > 10 and d["left_out"]["state_tensors"] > 0'
    s2s-ckpt reshard -q --json --files 2 "$DATA/dcp_plain" dist >done.json
    json done.json 'd["format"] == "dcp" and d["tensors"] == 13 and d["bytes"] == 553'
    exits 2 s2s-ckpt convert --json --to safetensors "$DATA/hf_sharded" -
    says "--json"
}

@test "weights that a name map does not take, or drops, are counted and named at the end, in --json with -q too" {
    printf 'family mine\nmodel.norm.weight model.norm.weight copy\ndrop_hf lm_head.weight\n' >in.map
    exits 0 s2s-ckpt convert -v --to torch_dist --map in.map "$DATA/hf_sharded" out
    says "left out: lm_head.weight"
    says "left out: model.layers.1.self_attn.q_proj.weight"
    says "; left out: 19 unused tensors, 1 dropped by the name map"
    s2s-ckpt convert -q --json --to torch_dist --map in.map "$DATA/hf_sharded" quiet >done.json
    s2s-ckpt convert -q --json --plan --to torch_dist --map in.map "$DATA/hf_sharded" plan >plan.json
    for report in done.json plan.json; do
        json $report 'd["left_out"]["unused_tensors"] == 19 and d["left_out"]["dropped_tensors"] == 1'
        json $report 'd["left_out"]["names"]["lm_head.weight"] == 1 and sum(d["left_out"]["names"].values()) == 20'
        json $report 'd["left_out"]["names"]["model.layers.*.self_attn.q_proj.weight"] == 2'
    done
    # names of more kinds than the report has are counted
    PYTHONPATH=$ROOT/tests/tools python3 -B - <<'PY'
import numpy as np
from small_safetensors import save

one = ("F32", np.ones(1, np.float32))
save("many.safetensors", **{"model.norm.weight": one}, **{chr(97 + i // 26) + chr(97 + i % 26): one for i in range(140)})
PY
    s2s-ckpt convert -q --json --plan --to torch_dist --map in.map many.safetensors plan >plan.json
    json plan.json 'len(d["left_out"]["names"]) == 128 and d["left_out"]["more_names"] == 12'
    # what a map knows and drops is no error, what it does not know is
    exits 1 s2s-ckpt convert -q --strict --to torch_dist --map in.map "$DATA/hf_sharded" strict
    says "the checkpoint has 19 unused tensors (--strict)"
    # of which it takes none is an error
    printf 'family mine\nlayers.{N}.weight blocks.{N}.weight copy\n' >in.map
    for to in torch_dist hf; do
        exits 1 s2s-ckpt convert -q --to $to --map in.map "$DATA/hf_sharded" none
        says "no weights that mine names"
    done
}

# warned REPORT SAID: the warnings on stderr are those of the report, and there is one
warned() {
    python3 - "$@" <<'PY'
import json, sys
said = [line.split(": warning: ", 1)[1] for line in open(sys.argv[2]).read().splitlines() if ": warning: " in line]
report = json.load(open(sys.argv[1]))
assert said and report["warnings"] == said, (said, report)
PY
}

@test "--json: every report has the warnings, with -q too" {
    local command
    cp -r "$DATA/hf_sharded" in
    mkdir in/below
    : >in/below/tokenizer.json
    ln -s nowhere in/extra.json
    for command in "convert --to hf" "convert --plan --to hf" "convert --to torch_dist --map llama" "convert --to torch_dist" "average --to hf in"; do
        turn || continue
        rm -rf out
        s2s-ckpt $command --json in out >loud.json 2>said
        rm -rf out
        s2s-ckpt $command -q --json in out >quiet.json 2>none
        warned loud.json said
        warned quiet.json said
        grep -q 'below/' said
        [ ! -s none ]
    done
    # each is a shard by its name, and read alone
    cp in/model-00001-of-*.safetensors .
    part=$(ls model-00001-of-*)
    name=$(s2s-ckpt ls -q "$part" | head -1 | cut -f1)
    for command in "ls $part" "verify $part" "diff $part $part" "cat $part $name"; do
        turn || continue
        s2s-ckpt ${command/ / --json } >loud.json 2>said
        s2s-ckpt ${command/ / -q --json } >quiet.json 2>none
        sort -u said >once # diff reads it twice
        warned loud.json once
        warned quiet.json once
        [ ! -s none ]
    done
    # a bad checkpoint's too
    truncate -s -1 "$part"
    exits 1 s2s-ckpt verify -q --json "$part"
    says '"ok": false'
    says 'and read alone'
    # with a name that is not text the report is JSON all the same
    printf -v odd 'caf\xe9-00001-of-00002.safetensors'
    cp in/model-00001-of-*.safetensors "$odd"
    s2s-ckpt verify -q --json "$odd" >report.json
    json report.json 'len(d["warnings"]) == 1 and d["warnings"][0].startswith("caf\ufffd-")'
}

@test "options that contradict each other, or cannot be meant, are a bad command line" {
    for bad in "convert --to hf --from nonsense $DATA/hf_sharded out" "convert --to hf $DATA/hf_sharded -" \
        "reshard $DATA/hf_sharded -" "average $DATA/hf_sharded $DATA/hf_sharded -" \
        "reshard --files 2 --max-shard-size 1GB $DATA/hf_sharded out" "reshard --max-shard-size 0 $DATA/hf_sharded out" \
        "convert --to safetensors --max-shard-size 1GB $DATA/hf_sharded out" \
        "convert --to torch_dist --keep-vocab-padding $DATA/hf_sharded out" \
        "convert --to safetensors --config $DATA/hf_sharded/config.json $DATA/hf_sharded out"; do
        exits 2 s2s-ckpt $bad
        [ -z "$(ls -A)" ] || { ls -A >&2; return 1; }
    done
    exits 2 s2s-ckpt convert --to hf "$DATA/hf_sharded" ""
    says "OUT"
    exits 1 s2s-ckpt convert --to hf --from dcp "$DATA/hf_sharded" out
    says "is hf, not dcp"
}

@test "cat of a byte object says that it is one" {
    exits 1 s2s-ckpt cat "$DATA/dcp_plain" optim.param_groups.0.lr
    says "is an object, not a tensor"
    exits 1 s2s-ckpt cat "$DATA/hf_sharded" norm.weight
    says "nearest: model.norm.weight"
}

@test "diff: integers of 64 bits are compared as integers" {
    one_tensor a.safetensors I64 int64 9007199254740992 -9223372036854775808 5
    one_tensor b.safetensors I64 int64 9007199254740993 9223372036854775807 5
    exits 1 s2s-ckpt diff --json --tolerance 0.5 a.safetensors b.safetensors
    printf '%s' "$output" >diff.json
    json diff.json 'd["differences"][0]["elements"] == 2 and d["differences"][0]["max_abs"] > 1.8e19'
    exits 1 s2s-ckpt diff --tolerance 1 a.safetensors b.safetensors
    says "1 of 3"
    exits 0 s2s-ckpt diff --tolerance 1e20 a.safetensors b.safetensors
    one_tensor c.safetensors U64 uint64 9007199254740993 18446744073709551615 5
    exits 1 s2s-ckpt diff --tolerance 1 b.safetensors c.safetensors
    says "1 of 3"
}

@test "average: none of its inputs is overwritten, each must stay as it was" {
    one_tensor a.safetensors F32 float32 1 2
    one_tensor b.safetensors F32 float32 3 4
    cp b.safetensors before
    exits 2 s2s-ckpt average a.safetensors b.safetensors b.safetensors
    says "b.safetensors"
    same b.safetensors before
}

@test "--resume: prune, reshard and average go on too, and only with the same inputs" {
    inject_or_skip
    A=$DATA/mcore016_gated_pp2dp2_dpreshardable
    kill=12
    for command in "prune --max-shard-size 8k $A" "reshard --files 6 $A" "average --max-shard-size 8k $A $A"; do
        rm -rf want out out.s2s-partial
        s2s-ckpt $command want -q
        with_fault "write:$kill:KILL" s2s-ckpt $command -q out
        [ $fired = 1 ]
        [ ! -e out ]
        exits 0 s2s-ckpt $command --resume -v out
        says "already exists"
        diff -r want out
    done
    one_tensor a.safetensors F32 float32 1 2
    one_tensor b.safetensors F32 float32 3 4
    with_fault write:3:KILL s2s-ckpt average --to torch_dist -q a.safetensors b.safetensors mean
    [ $fired = 1 ]
    [ -e mean.s2s-partial ]
    one_tensor b.safetensors F32 float32 5 6
    exits 0 s2s-ckpt average --to torch_dist --resume a.safetensors b.safetensors mean
    exits 0 s2s-ckpt cat --json mean w
    says "[3, 4]"
}

@test "weights that say no iteration get the first, for Megatron-LM takes no 0 as the latest" {
    exits 0 s2s-ckpt convert -q --to torch_dist "$DATA/hf_sharded" out
    [ "$(cat out/latest_checkpointed_iteration.txt)" = 1 ]
    [ "$(ls out)" = "$(printf 'iter_0000001\nlatest_checkpointed_iteration.txt')" ]
    s2s-ckpt ls --json out | grep '"iteration": 1'
    # one that is 0 stays so
    mv out/iter_0000001 out/iter_0000000
    printf 0 >out/latest_checkpointed_iteration.txt
    exits 0 s2s-ckpt reshard -q out/iter_0000000 again
    [ "$(cat again/latest_checkpointed_iteration.txt)" = 0 ]
}

@test "the iteration stays, whether the run's folder was named, that of the iteration, or another name" {
    A=$DATA/mcore016_gated_pp2dp2_dpreshardable
    for in in "$A" "$A/iter_0000007" "$A/iter_0000007/"; do
        rm -rf out
        exits 0 s2s-ckpt reshard "$in" out
        [ -d out/iter_0000007 ]
        [ "$(cat out/latest_checkpointed_iteration.txt)" = 7 ]
    done
    # a folder of any name: what the common state says
    A=$DATA/mcore016_hybrid_tp2pp2ep2
    cp -r "$A/iter_0001000" renamed
    rm -rf out
    exits 0 s2s-ckpt prune renamed out
    [ "$(cat out/latest_checkpointed_iteration.txt)" = 1000 ]
    s2s-ckpt ls --json renamed | grep -q '"iteration": 1000'
}

@test "prune and average know torch.optim's state under any name, and no weight that sounds like it" {
    # optimizer_0: PyTorch Lightning; without a name: the state dict of an optimizer laid beside the weights
    python3 - <<'PY'
import json, struct
weights = ["w", "net.state.proj.weight", "net.step", "state.exp_avg", "optimizer_scale.weight", "optim_head.weight", "net.state.sum.w"]
states = ["%sstate.%s.%s" % (a, b, c) for a in ("", "opt.", "optimizer_0.", "run.sgd.") for b in ("0", "net.w") for c in ("exp_avg", "momentum_buffer", "step")]
states += ["%sparam_groups.%s" % (a, b) for a in ("", "opt.", "optimizer_0.") for b in ("0.lr", "net.w.lr")]
names = weights + states
head = json.dumps({n: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, n in enumerate(names)}).encode()
open("in.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + struct.pack("<%df" % len(names), *range(len(names))))
open("weights", "w").write("".join(n + "\n" for n in sorted(weights)))
PY
    exits 0 s2s-ckpt convert -q --to torch_dist in.safetensors in
    exits 0 s2s-ckpt prune in pruned
    says "left out: 30 tensors of optimizer and other state"
    s2s-ckpt ls pruned | cut -f1 | diff - weights
    exits 0 s2s-ckpt average -q in in mean
    s2s-ckpt ls mean | cut -f1 | diff - weights
}

@test "a common state that is an object becomes common.pt and stays no object" {
    # common_state/shard_0_1 as Megatron-Core's newest writer has it: a list of the dict
    cp -r "$DATA/mini_writer" run
    chmod -R u+w run
    python3 - run/iter_0000042 <<'PY'
import io, struct, sys, zipfile
folder = sys.argv[1]
item = io.BytesIO()
with zipfile.ZipFile(folder + "/common.pt") as old, zipfile.ZipFile(item, "w", zipfile.ZIP_STORED) as new:
    for name in old.namelist():
        data = old.read(name)
        if name.endswith("/data.pkl"):
            # PROTO, the dict, STOP: a list around it
            data = data[:2] + b"]" + data[2:-1] + b"a."
        new.writestr("archive/" + name.split("/", 1)[1], data)
item = item.getvalue()
path = folder + "/__0_0.distcp"
at = len(open(path, "rb").read())
open(path, "ab").write(item)
meta = open(folder + "/.metadata", "rb").read()
old = b"decoder.layers.0.mlp.linear_fc1._extra_state/shard_0_1"
new = b"common_state/shard_0_1"
meta = meta.replace(struct.pack("<I", len(old)) + old, struct.pack("<I", len(new)) + new)
place = b"offset%sX\6\0\0\0lengthJ%s"
was = place % (b"K\0", struct.pack("<i", 275))
assert meta.count(was) == 1
meta = meta.replace(was, place % (b"J" + struct.pack("<i", at), struct.pack("<i", len(item))))
open(folder + "/.metadata", "wb").write(meta)
PY
    rm run/iter_0000042/common.pt
    exits 0 s2s-ckpt verify run
    s2s-ckpt ls run | grep -q common_state
    for command in "reshard" "prune" "convert --to torch_dist"; do
        rm -rf out
        exits 0 s2s-ckpt $command run out
        [ -s out/iter_0000042/common.pt ]
        exits 0 s2s-ckpt verify out
        ! s2s-ckpt ls out | grep -q common_state || return 1
    done
}

@test "a stack of 64 kB is enough" {
    case ${S2S_BIN:-} in *sanitize*) skip "the sanitizers want more" ;; esac
    for to in hf torch_dist safetensors; do
        (ulimit -s 64 && s2s-ckpt convert -q --to $to --dtype f32 "$DATA/hf_sharded" small)
        s2s-ckpt convert -q --to $to --dtype f32 "$DATA/hf_sharded" usual
        diff -r usual small
        rm -r usual small
    done
    (ulimit -s 64 && s2s-ckpt average -q "$DATA/hf_sharded" "$DATA/hf_sharded" mean && s2s-ckpt verify -q mean && s2s-ckpt diff "$DATA/hf_sharded" mean)
}

@test "an empty folder that is OUT stays when nothing comes of it, and is replaced when all is written" {
    mkdir out
    exits 1 s2s-ckpt convert -q --to hf --map gemma2 "$DATA/zip.pt" out
    [ -d out ]
    s2s-ckpt convert -q --to hf "$DATA/hf_sharded" out
    [ -s out/model.safetensors ]
    exits 2 s2s-ckpt convert -q --to hf "$DATA/hf_sharded" out
    says "out: already exists"
}

@test "verify: a file of which no tensor is read is no complete checkpoint" {
    # one flipped bit in the name of the function that makes tensors; such files have no checksums
    sed 's/_rebuild_tensor_v2/_rebuild_tenror_v2/' "$DATA/legacy.pt" >flipped.pt
    exits 1 s2s-ckpt verify -q flipped.pt
    says "_rebuild_tenror_v2, and no tensor is read from the file"
    s2s-ckpt verify -q --json "$DATA/legacy.pt" | grep -q '"objects_with_unread_tensors": 0'
}

@test "progress counts what is written, in MB and MB/s" {
    python3 - <<'PY'
import json, struct
n = 8000000
header = json.dumps({"w": {"dtype": "BF16", "shape": [n // 1000, 1000], "data_offsets": [0, 2 * n]}}).encode()
open("big.safetensors", "wb").write(struct.pack("<Q", len(header)) + header + bytes(2 * n))
PY
    # a reader that takes its time: 32 MB in pieces of 2
    cat >slow.py <<'PY'
import sys, time
while sys.stdin.buffer.read(2000000):
    time.sleep(0.1)
PY
    unset S2S_NO_PROGRESS
    script -qec "s2s-ckpt convert --to safetensors --dtype f32 big.safetensors - | python3 slow.py" /dev/null | tr '\r' '\n' | grep converting >lines
    last=$(tail -n 1 lines)
    [[ "$last" =~ ^converting:\ ([0-9]+)\.[0-9]+/32\.00\ MB,\ [0-9.e+]+\ [kMG]B/s ]]
    # of 32 MB 16 are read
    [ "${BASH_REMATCH[1]}" -gt 20 ]
    [ "${BASH_REMATCH[1]}" -le 32 ]
}

# sparse NAME: a safetensors file of 48 MiB that takes no room, with a manifest that is not its own
sparse() {
    python3 - "$1" <<'PY'
import json, os, struct, sys
n = 192 << 20
header = json.dumps({name: {"dtype": "U8", "shape": [n], "data_offsets": [i * n, (i + 1) * n]} for i, name in enumerate("ab")}).encode()
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header)
    f.truncate(8 + len(header) + 2 * n)
files = {sys.argv[1]: {"bytes": 8 + len(header) + 2 * n, "digest": "0" * 32}}
json.dump({"algorithm": "xxh3-128", "files": files}, open(sys.argv[1] + ".s2s-manifest.json", "w"))
PY
}

@test "ls --sha256, verify and diff show how far they are" {
    sparse big.safetensors
    ln -s big.safetensors twin.safetensors
    unset S2S_NO_PROGRESS
    # a program that is quick on no machine: eight times it runs for 4 ms and stands still for a quarter of a second
    cat >slowly <<'SH'
"$@" &
for burst in 1 2 3 4 5 6 7 8; do
    kill -0 $! && sleep 0.004 && kill -STOP $! && sleep 0.25 && kill -CONT $! || break
done 2>gone
wait $!
SH
    # shows COMMAND LABEL..: on a terminal, with a rate and the time left; no line of the report is drawn over
    shows() {
        local command=$1 label
        shift
        script -qec "bash slowly $command" /dev/null | tr '\r' '\n' >lines
        for label in "$@"; do
            grep -Eq "^$label: [0-9.]+/402\.65 MB, [0-9.]+ [MG]B/s, [0-9]+:[0-9]+ left" lines || { cat lines >&2; return 1; }
        done
    }
    shows "s2s-ckpt verify big.safetensors" "comparing digests"
    shows "s2s-ckpt diff big.safetensors twin.safetensors" comparing
    shows "s2s-ckpt ls --sha256 big.safetensors" hashing
    grep -Pq '^b\tU8\t\[201326592\]\t201326592\t[0-9a-f]{64}$' lines
    s2s-ckpt ls --sha256 big.safetensors 2>said >/dev/null
    [ ! -s said ]
}

@test "a message begins with the program's name; who sets S2S_LOG sees its room too" {
    tensors=$DATA/hf_sharded
    printf 'family mine\nmodel.norm.weight model.norm.weight copy\n' >in.map
    run s2s-ckpt convert --to torch_dist --map in.map "$tensors" out
    says "s2s-ckpt: warning: in checkpoint but unused: lm_head.weight"
    not grep -qv '^s2s-ckpt: ' <<<"$output"
    rm -rf out
    S2S_LOG= run s2s-ckpt convert --to torch_dist --map in.map "$tensors" out
    says "s2s-ckpt: warning: in checkpoint but unused: lm_head.weight"
    rm -rf out
    S2S_LOG=warn run s2s-ckpt convert --to torch_dist --map in.map "$tensors" out
    says "s2s-ckpt convert: warning: in checkpoint but unused: lm_head.weight"
}

@test "--dtype takes the names of ls and of torch too" {
    s2s-ckpt convert -q --to hf --dtype bf16 "$DATA/hf_sharded" want
    for dtype in BF16 bfloat16; do
        s2s-ckpt convert -q --to hf --dtype $dtype "$DATA/hf_sharded" out
        diff -r want out
        rm -r out
    done
    exits 2 s2s-ckpt convert -q --to hf --dtype int8 "$DATA/hf_sharded" out
    says "not one of f32, bf16, f16, f64"
}

@test "diff: complex numbers have a distance; integers of 64 bits against float64 are exact" {
    python3 - <<'PY'
import json, struct
def write(name, **tensors):
    header, data = {}, b""
    for key, (dtype, n, raw) in sorted(tensors.items()):
        header[key] = {"dtype": dtype, "shape": [n], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    open(name, "wb").write(struct.pack("<Q", len(head)) + head + data)
write("a", c=("C64", 2, struct.pack("<4f", 1, 2, 3, 4)), i=("I64", 1, struct.pack("<q", 2**53 + 1)), n=("C64", 1, struct.pack("<2f", 1, float("nan"))))
write("b", c=("C64", 2, struct.pack("<4f", 1, 2, 6, 8)), i=("F64", 1, struct.pack("<d", 2.0**53)), n=("C64", 1, struct.pack("<2f", 1, 2)))
PY
    exits 1 s2s-ckpt diff --json a b
    alike "$(jq -c '.differences[] | [.name, .difference, .elements, .max_abs]' <<<"$output")" '["c","values",1,5]
["i","values",1,1]
["n","values",1,"nan"]'
    exits 1 s2s-ckpt diff --tolerance 5 a b
    [ "$(wc -l <<<"$output")" = 1 ]
    says "n	values"
}

@test "what cannot be opened is said and exit 2; no binary data to a terminal" {
    exits 2 s2s-ckpt convert -q --to hf --config nowhere.json "$DATA/hf_sharded" out
    says "nowhere.json: No such file or directory"
    says_not ":-1"
    exits 1 s2s-ckpt convert -q --to hf --config "$DATA/zip.pt" "$DATA/hf_sharded" out
    exits 2 script -qec "s2s-ckpt convert --to safetensors '$DATA/zip.pt' -" /dev/null
    says "binary output would go to the terminal"
    if [ "$(id -u)" = 0 ]; then
        id nobody >/dev/null && command -v setpriv >/dev/null || return 0
        as="setpriv --reuid=nobody --clear-groups"
        $as test -x "$(command -v s2s-ckpt)" || return 0
    else
        as=
    fi
    chmod a+rx . # whose own folder may be closed
    cp "$DATA/zip.pt" closed.pt
    chmod 0 closed.pt
    exits 2 $as "$(command -v s2s-ckpt)" ls closed.pt
    says "closed.pt: Permission denied"
    # a folder whose files may be listed and not opened; one with a small file of somebody else's
    cp -r "$DATA/hf_sharded" listed
    echo '{}' >listed/config.json
    chmod -R a+rX listed
    chmod 744 listed
    [ "$(id -u)" = 0 ] || chmod 444 listed
    exits 2 $as "$(command -v s2s-ckpt)" ls listed
    says "listed: Permission denied"
    chmod 755 listed
    chmod 0 listed/config.json
    exits 2 $as "$(command -v s2s-ckpt)" verify listed
    says "config.json: Permission denied"
}

@test "average finds each tensor where its own checkpoint has it, however that is cut" {
    PYTHONPATH=$ROOT/tests/oracle/ckpt python3 - <<'PY'
import struct
from mini_writer import write
rows = [((0, 0), (1, 2), (0, 1)), ((1, 0), (1, 2), (2, 3))]
columns = [((0, 0), (2, 1), (0, 2)), ((0, 1), (2, 1), (1, 3))]
values = {"a": (1, 2, 3, 4), "b": (5, 6, 7, 8)}
# two of them differ in nothing but which tensor comes first
for n, (names, cut, times) in enumerate((("ab", rows, 1), ("ab", columns, 2), ("ba", columns, 3), ("ab", rows, 6))):
    write("in%d" % n, [(name, "float32", (2, 2), [(o, s, struct.pack("<2f", *(values[name][i] * times for i in at))) for o, s, at in cut]) for name in names])
PY
    exits 0 s2s-ckpt average -q in0 in1 in2 in3 mean
    alike "$(s2s-ckpt cat mean a | od -An -tf4 | xargs)" "3 6 9 12"
    alike "$(s2s-ckpt cat mean b | od -An -tf4 | xargs)" "15 18 21 24"
}

@test "a common state that is nothing without the list around it is not made a common.pt" {
    PYTHONPATH=$ROOT/tests/oracle/ckpt python3 - <<'PY'
from mini_writer import s, write
for name, state in (("itself", b"]q\0}" + s("a") + b"h\0sa."), ("two", b"](}}e.")):
    write(name, [("w", "float32", (2,), [((0,), (2,), bytes(8))])], objs=[("common_state/shard_0_1", b"\x80\2" + state)])
PY
    for name in itself two; do
        exits 1 s2s-ckpt reshard $name out
        says "$name: common state without its list"
        [ ! -e out ]
        [ ! -e out.s2s-partial ]
    done
}

@test "average names the checkpoint that does not fit, and no other" {
    s2s-ckpt convert -q --to hf "$DATA/hf_sharded" first
    one_tensor other.safetensors F32 float32 1 2
    exits 2 s2s-ckpt average first nowhere out
    says "s2s-ckpt: nowhere: No such file or directory"
    exits 1 s2s-ckpt average first other.safetensors out
    says "s2s-ckpt: other.safetensors: wanted but absent"
    [ ! -e out ]
}

@test "a checkpoint without a name is called so" {
    exits 2 s2s-ckpt ls ""
    says "s2s-ckpt: the checkpoint's name is empty"
    exits 2 s2s-ckpt convert --to safetensors "" out
    says "s2s-ckpt: the checkpoint's name is empty"
    [ ! -e out ]
}

@test "an option with an empty name is no place that an error speaks of" {
    python3 -c "
import numpy as np, sys
sys.path.insert(0, '$BATS_TEST_DIRNAME')
from small_safetensors import save
save('in.safetensors', **{'encoder.subsampling.layers.0.weight': ('F32', np.zeros((2, 2), 'f')), 'ctc_head.weight': ('F32', np.zeros((3, 4, 1), 'f'))})"
    exits 1 s2s-ckpt convert --to nemo --tokenizer "" in.safetensors out.nemo
    says "s2s-ckpt: in.safetensors: wanted but absent"
    [ ! -e out.nemo ]
}

@test "average takes more inputs than files may be open at first" {
    [ "$(ulimit -Hn)" = unlimited ] || [ "$(ulimit -Hn)" -ge 512 ] || skip "no more files may be open here"
    for n in $(seq 100); do cp "$DATA/zip.pt" $n.pt; done
    (ulimit -Sn 64 && s2s-ckpt average -q --to safetensors *.pt mean)
    # 100 times the same, in float64
    s2s-ckpt convert -q --to safetensors "$DATA/zip.pt" one
    exits 0 s2s-ckpt diff --tolerance 1e-12 one mean
}

@test "--json stays JSON where a path is no UTF-8, and -0 and differences are exact" {
    cp "$DATA/zip.pt" $'bad\xff.pt'
    for command in ls verify; do
        s2s-ckpt $command --json $'bad\xff.pt' >out.json
        json out.json 'd["path"] == "bad\ufffd.pt"'
    done
    s2s-ckpt convert -q --json --to safetensors "$DATA/zip.pt" $'out\xfe' >out.json
    json out.json 'd["out"] == "out\ufffd"'
    python3 - <<'PY'
import struct
for name, x in (("a", -0.0), ("b", 0.1)):
    head = b'{"w": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}'
    open(name + ".safetensors", "wb").write(struct.pack("<Q", len(head)) + head + struct.pack("<d", x))
PY
    s2s-ckpt cat --json a.safetensors w >out.json
    json out.json 'str(d["data"][0]) == "-0.0"'
    exits 1 s2s-ckpt diff --json -o out.json a.safetensors b.safetensors
    json out.json 'd["differences"][0]["max_abs"] == 0.1'
}

@test "a checkpoint does not come through a pipe, and that is said" {
    exits 2 s2s-ckpt ls -
    says "name a file or a folder"
    mkfifo pipe
    exits 2 s2s-ckpt ls pipe
    says "pipe: is a pipe; a checkpoint is not read in order"
    mkdir full && touch full/a
    exits 2 s2s-ckpt convert --to hf "$DATA/hf_sharded" full/
    [ "$output" = "s2s-ckpt: full: already exists; choose another OUT or remove it first" ]
}

@test "latest_checkpointed_iteration.txt: white space around the number is nothing, a NUL behind it is no number" {
    mkdir in
    cp -r "$DATA/mini_writer/iter_0000042" in
    for word in '42' ' 42' '42\r\n' '0042 \n'; do
        printf "$word" >in/latest_checkpointed_iteration.txt
        exits 0 s2s-ckpt ls in
    done
    for word in '42\0' '\0' '' ' ' '42 43' '-42' '42.0' '4e1' '../42' '99999999999999999999'; do
        printf -- "$word" >in/latest_checkpointed_iteration.txt
        exits 1 s2s-ckpt ls in
        says "latest_checkpointed_iteration.txt"
    done
}
