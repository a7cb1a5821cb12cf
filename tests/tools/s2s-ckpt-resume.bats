# s2s-ckpt convert --resume: what an interrupted conversion finished is kept, and nothing else.
load common
load ckpt_faults
load tensors

# killed_anywhere OPTION...: killed at one of its writes after the other, then resumed: the bytes of an unbroken run, and files were kept
killed_anywhere() {
    local n kept=0
    rm -rf want
    s2s-ckpt convert -q "$@" "$DATA/hf_sharded" want
    for ((n = 1; n <= 500; n += n > 1 ? STEP : FIRST)); do
        rm -rf out out.s2s-partial
        with_fault "write:$n:KILL" s2s-ckpt convert -q "$@" "$DATA/hf_sharded" out
        [ $fired = 1 ] || break
        [ "$status" -eq 137 ]
        [ ! -e out ]
        exits 0 s2s-ckpt convert -v --resume "$@" "$DATA/hf_sharded" out
        case $output in *"already exists"*) kept=$((kept + 1)) ;; esac
        diff -r want out || { echo "write $n: other bytes" >&2; return 1; }
        [ ! -e out.s2s-partial ]
    done
    [ "$n" -gt 10 ]
    [ "$kept" -gt $((STEP > 1 ? 0 : 3)) ]
}

@test "killed at any write and resumed, a conversion gives the bytes of an unbroken one" {
    inject_or_skip
    killed_anywhere --to hf --max-shard-size 4k
    killed_anywhere --to torch_dist --max-shard-size 4k
    killed_anywhere --to torch_dist --files 5
}

@test "long: killed at a random moment by any signal, a hundred times of each way, resumed or begun anew, it gives the same bytes" {
    head -c 48000000 /dev/urandom >noise
    python3 - <<'PY'
import json, struct
rows = 24000000 // 48 // 1000
header = {"layers.%d.w" % i: {"dtype": "BF16", "shape": [rows, 1000], "data_offsets": [i * 2000 * rows, (i + 1) * 2000 * rows]} for i in range(48)}
header = json.dumps(header).encode()
with open("big.safetensors", "wb") as out:
    out.write(struct.pack("<Q", len(header)) + header + open("noise", "rb").read())
PY
    local n killed kept resume way signals=(TERM KILL HUP KILL)
    for way in "--to hf --max-shard-size 4M" "--to torch_dist --files 12" "--to safetensors"; do
        rm -rf want out
        s2s-ckpt convert -q $way big.safetensors want
        killed=0 kept=0
        for ((n = 0; n < 100; n++)); do
            resume=--resume
            [ $((n % 3)) != 0 ] || resume=
            s2s-ckpt convert -q $resume $way big.safetensors out 2>/dev/null &
            sleep 0.0$((RANDOM % 90 + 10))
            kill -${signals[n % 4]} $! 2>/dev/null || true
            wait $! 2>/dev/null || killed=$((killed + 1))
            if [ ! -e out ]; then
                [ $((n % 5)) != 0 ] || continue # to the next one's kill
                exits 0 s2s-ckpt convert -v $resume $way big.safetensors out
                case $output in *"already exists"*) kept=$((kept + 1)) ;; esac
            fi
            diff -r want out
            rm -rf out {out,want}.s2s-manifest.json
            no_litter . big.safetensors noise want
        done
        [ $killed -gt 20 ]
        [ "$way" = "--to safetensors" ] || [ $kept -gt 5 ]
    done
}

# stopped [OPTION...]: out.s2s-partial of a conversion that was killed after some files
stopped() {
    rm -rf out out.s2s-partial
    with_fault rename:3:KILL s2s-ckpt convert -q --to hf --max-shard-size 4k "$@" "$DATA/hf_sharded" out
    [ $fired = 1 ]
    ls out.s2s-partial/*.safetensors >/dev/null
}

@test "killed while it removes what an earlier run left, the folder is still known as ours" {
    inject_or_skip
    s2s-ckpt convert -q --to hf --max-shard-size 4k "$DATA/hf_sharded" want
    for ((n = 1; n <= 50; n++)); do
        stopped
        touch out.s2s-partial/s2s-resume.1
        with_fault "unlink:$n:KILL" s2s-ckpt convert -q --to hf --dtype f16 "$DATA/hf_sharded" out
        [ $fired = 1 ] || break
        exits 0 s2s-ckpt convert -q --resume --to hf --max-shard-size 4k "$DATA/hf_sharded" out
        diff -r want out
    done
    [ "$n" -gt 5 ]
}

@test "--resume with an OUT of one file begins anew, whatever stopped the one before" {
    inject_or_skip
    s2s-ckpt convert -q --to safetensors "$DATA/hf_sharded" want
    for how in KILL ENOSPC; do
        with_fault write:1:$how s2s-ckpt convert -q --resume --to safetensors "$DATA/hf_sharded" out
        [ $fired = 1 ]
        [ -z "$(find . -name 'out*')" ]
    done
    exits 0 s2s-ckpt convert -q --resume --to safetensors "$DATA/hf_sharded" out
    cmp want out
    exits 2 s2s-ckpt convert --resume --to safetensors "$DATA/hf_sharded" -
    says "stdout"
}

@test "a line of the journal that was altered counts as absent" {
    inject_or_skip
    s2s-ckpt convert -q --to torch_dist --files 6 "$DATA/hf_sharded" want
    rm -rf out out.s2s-partial
    with_fault fsync:12:KILL s2s-ckpt convert -q --to torch_dist --files 6 "$DATA/hf_sharded" out
    [ $fired = 1 ]
    cp -r out.s2s-partial stopped
    python3 - <<'PY'
lines = open("stopped/s2s-resume").read().split("\n")
noted = [i for i, line in enumerate(lines) if line.count("\t") == 3]
assert noted
for i in noted:
    field = lines[i].split("\t")
    field[0] = str(int(field[0]) + 1)
    lines[i] = "\t".join(field)
open("out.s2s-partial/s2s-resume", "w").write("\n".join(lines))
PY
    exits 0 s2s-ckpt convert -v --resume --to torch_dist --files 6 "$DATA/hf_sharded" out
    says_not "already exists"
    diff -r want out
    # what a file holds: another byte is another tensor, place or size
    rm -rf out && mv stopped out.s2s-partial
    items=$(find out.s2s-partial -name '*.items' | head -1)
    flip "$items" $(($(stat -c %s "$items") / 2))
    exits 0 s2s-ckpt convert -v --resume --to torch_dist --files 6 "$DATA/hf_sharded" out
    says "${items##*/}: is not what was written; writing it again"
    says "already exists"
    diff -r want out
}

@test "what fails or is killed behind the last file keeps all files for --resume" {
    inject_or_skip
    s2s-ckpt convert -q --to torch_dist --files 6 "$DATA/hf_sharded" want
    files=$(find want -name '*.distcp' | wc -l)
    S2S_INJECT_TRACE=$PWD/trace LD_PRELOAD=$INJECT s2s-ckpt convert -q --resume --to torch_dist --files 6 "$DATA/hf_sharded" out
    # the write of what comes behind them
    n=$(grep ^write trace | grep -n "^write $(stat -c %i out/iter_0000001/common.pt) " | head -n 1 | cut -d : -f 1)
    for how in ENOSPC KILL; do
        rm -rf out out.s2s-partial
        with_fault write:$n:$how s2s-ckpt convert -q --resume --to torch_dist --files 6 "$DATA/hf_sharded" out
        [ $fired = 1 ]
        [ -e out.s2s-partial/iter_0000001.tmp/common.pt ]
        (cd out.s2s-partial/iter_0000001.tmp && stat -c "%n %y" *.distcp) >had # when each was written
        [ "$(wc -l <had)" = "$files" ]
        exits 0 s2s-ckpt convert --resume --to torch_dist --files 6 "$DATA/hf_sharded" out
        (cd out/iter_0000001 && stat -c "%n %y" *.distcp) >has
        same had has
        diff -r want out
    done
}

@test "--resume does not wait for a pipe in place of the journal" {
    mkdir out.s2s-partial
    mkfifo out.s2s-partial/s2s-resume
    exits 0 timeout 20 s2s-ckpt convert -q --resume --to hf "$DATA/hf_sharded" out
    exits 0 s2s-ckpt diff out "$DATA/hf_sharded"
}

@test "--resume takes no file that is damaged, half or of another conversion" {
    inject_or_skip
    s2s-ckpt convert -q --to hf --max-shard-size 4k "$DATA/hf_sharded" want
    stopped
    first=$(ls out.s2s-partial/*.safetensors | head -1)
    flip "$first" $(($(stat -c %s "$first") - 10))
    echo half >out.s2s-partial/.model.safetensors.1-1.tmp
    exits 0 s2s-ckpt convert -v --resume --to hf --max-shard-size 4k "$DATA/hf_sharded" out
    says "$first: is not what was written; writing it again"
    diff -r want out
    # a link is no file of ours, even to the same bytes: nothing is written through it
    stopped
    first=$(ls out.s2s-partial/*.safetensors | head -1)
    mv "$first" victim && ln -s "$PWD/victim" "$first"
    cp victim was && flip victim 100
    cp victim flipped
    exits 0 s2s-ckpt convert -v --resume --to hf --max-shard-size 4k "$DATA/hf_sharded" out
    diff -r want out
    [ -z "$(find out -type l)" ]
    same victim flipped
    # another dtype: another conversion
    stopped
    exits 0 s2s-ckpt convert -v --resume --to hf --max-shard-size 4k --dtype f32 "$DATA/hf_sharded" out
    says_not "already exists"
    # another source of the same shape
    stopped
    cp -r "$DATA/hf_sharded" in
    exits 0 s2s-ckpt convert -v --resume --to hf --max-shard-size 4k in out
    says_not "already exists"
    # without --resume it begins anew
    stopped
    exits 0 s2s-ckpt convert -v --to hf --max-shard-size 4k "$DATA/hf_sharded" out
    says_not "already exists"
    diff -r want out
}

@test "--resume takes no file that was cut by other heads of run_config.yaml" {
    inject_or_skip
    s2s-ckpt convert -q --to torch_dist --map llama "$DATA/hf_sharded" in
    folder=$(echo in/iter_*)
    rm "$folder/s2s-manifest.json"
    python3 - "$folder" <<'PY'
import pickle, sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/common.pt", "w") as z: # without arguments, as Megatron-Bridge has it
    z.writestr("common/data.pkl", pickle.dumps({"iteration": 5}, 2))
    z.writestr("common/version", "3\n")
PY
    # HEADS GROUPS CHANNELS: the numbers of both agree with every shape
    run_config() {
        cat >"$folder/run_config.yaml" <<YAML
model: {num_layers: 2, hidden_size: 16, ffn_hidden_size: 24, vocab_size: 40, seq_length: 64, num_attention_heads: $1, num_query_groups: $2, kv_channels: $3,
  gated_linear_unit: true, activation_func: {_target_: torch.nn.functional.silu}, normalization: RMSNorm, layernorm_epsilon: 1e-5,
  add_bias_linear: false, position_embedding_type: rope, rotary_base: 1e4}
YAML
    }
    run_config 2 1 8
    with_fault rename:3:KILL s2s-ckpt convert -q --to hf --max-shard-size 4k in out
    [ $fired = 1 ]
    run_config 4 2 4
    exits 0 s2s-ckpt convert -q --resume --to hf --max-shard-size 4k in out
    exits 0 s2s-ckpt diff "$DATA/hf_sharded" out
}

@test "a conversion that fails leaves its files only for --resume" {
    cp -r "$DATA/hf_sharded" in
    chmod -R u+w in
    last=$(ls in/*.safetensors | tail -1)
    s2s-ckpt convert -q --to torch_dist in dist
    # a byte of a tensor's data in the archives: the CRC tells
    python3 - dist/*/__0_0.distcp <<'PY'
import sys, zipfile, io
data = bytearray(open(sys.argv[1], "rb").read())
end = data.rfind(b"PK\x01\x02")
at = data.rfind(b"/data/0", 0, data.rfind(b"PK\x03\x04", 0, end) + 40)
extra = int.from_bytes(data[at - 7 - 2:at - 7], "little")
header = data.rfind(b"PK\x03\x04", 0, at)
name, more = (int.from_bytes(data[header + k:header + k + 2], "little") for k in (26, 28))
data[header + 30 + name + more] ^= 1
open(sys.argv[1], "wb").write(data)
PY
    exits 1 s2s-ckpt convert -q --to hf --max-shard-size 4k dist out
    [ ! -e out ]
    [ ! -e out.s2s-partial ]
    exits 1 s2s-ckpt convert -q --resume --to hf --max-shard-size 4k dist out
    says "out.s2s-partial keeps what is done"
    [ ! -e out ]
    [ -e out.s2s-partial ]
}

@test "with --resume, what lacks only its name is kept, and the message says so" {
    inject_or_skip
    s2s-ckpt convert -q --to hf "$DATA/hf_sharded" want
    local n=0
    output=
    until [[ $output == *"out.s2s-partial: rename to out"* ]]; do
        rm -rf out.s2s-partial
        with_fault rename:$((++n)):EACCES s2s-ckpt convert -q --resume --to hf "$DATA/hf_sharded" out
        [ "$fired" = 1 ]
        [ "$status" -eq 1 ]
        [ ! -e out ]
    done
    says "all is written: rename out.s2s-partial yourself"
    mv out.s2s-partial out
    diff -r want out
}

@test "two conversions to one place: the second is refused and harms nothing" {
    mkfifo hold
    mkdir out.s2s-partial
    flock out.s2s-partial cat hold &
    exec 9>hold
    exits 1 s2s-ckpt convert -q --to hf "$DATA/hf_sharded" out
    says "out.s2s-partial: another process is writing there"
    [ -e out.s2s-partial ]
    printf 'key\nprocess 1 on elsewhere\nprocess 42 on node3\n' >out.s2s-partial/s2s-resume
    exits 1 s2s-ckpt convert -q --to hf "$DATA/hf_sharded" out
    says "out.s2s-partial: process 42 on node3 is writing there"
    [ ! -e out ]
    exec 9>&-
    wait
    s2s-ckpt convert -q --to hf "$DATA/hf_sharded" out
    [ -s out/model.safetensors ]
}

@test "a folder that becomes OUT while another run waits for it is not emptied" {
    inject_or_skip
    s2s-ckpt convert -q --to hf "$DATA/hf_sharded" want
    # between the second run's look and its lock, the first gives the folder its name, and a third makes one
    local others
    for others in "mv out.s2s-partial out && mkdir out.s2s-partial" "mv out.s2s-partial out"; do
        cp -r want out.s2s-partial
        S2S_INJECT_RUN=$others with_fault flock:1:RUN s2s-ckpt convert -q --to hf "$DATA/hf_sharded" out
        [ $fired = 1 ]
        [ "$status" -eq 2 ]
        says "out: already exists"
        diff -r want out
        no_litter . want out
        rm -r out
    done
    # a folder that is made in the same moment belongs to who made it
    S2S_INJECT_RUN="mkdir out.s2s-partial && touch out.s2s-partial/s2s-resume" with_fault mkdir:1:RUN \
        s2s-ckpt convert -q --to hf "$DATA/hf_sharded" out
    [ $fired = 1 ]
    [ "$status" -eq 1 ]
    says "out.s2s-partial: another process is writing there"
    [ -e out.s2s-partial/s2s-resume ]
}

@test "a run that fails has the folder until it is removed" {
    inject_or_skip
    cp "$DATA/zip.pt" bad.pt
    flip bad.pt 1440 # in a tensor: found when it is written
    # who gets the lock before would take the folder, and lose files of its own to the removal
    S2S_INJECT_RUN='! flock -n out.s2s-partial touch free' with_fault unlink:1:RUN \
        s2s-ckpt convert -q --to hf --max-shard-size 32 bad.pt out
    [ $fired = 1 ]
    [ "$status" -eq 1 ]
    says "CRC-32"
    [ ! -e free ]
    [ ! -e out.s2s-partial ]
}

@test "a rank that outlives the first one has the folder still" {
    inject_or_skip
    s2s-ckpt convert -q --to hf --max-shard-size 4k "$DATA/hf_sharded" want
    stopped
    printf 'key\nprocess 7 on node9\n' >out.s2s-partial/s2s-resume.1
    mkfifo hold
    flock out.s2s-partial/s2s-resume.1 cat hold &
    exec 9>hold
    cp -r out.s2s-partial was
    for resume in "" --resume; do
        exits 1 s2s-ckpt convert -q $resume --to hf --max-shard-size 4k "$DATA/hf_sharded" out
        says "out.s2s-partial: process 7 on node9 is writing there"
        diff -r was out.s2s-partial
    done
    exec 9>&-
    wait
    exits 0 s2s-ckpt convert -q --resume --to hf --max-shard-size 4k "$DATA/hf_sharded" out
    diff -r want out
    # and a rank has its own
    mpirun_n 2 s2s-ckpt convert -q --to torch_dist --files 4 "$DATA/hf_sharded" dist
    [ -e dist ]
}

@test "who takes the name of OUT in the meantime costs nothing of what is done" {
    python3 - <<'PY'
import json, struct
header = json.dumps({"w": {"dtype": "F32", "shape": [4096, 4096], "data_offsets": [0, 4 << 24]}}).encode()
with open("big.safetensors", "wb") as out:
    out.write(struct.pack("<Q", len(header)) + header)
    out.truncate(8 + len(header) + (4 << 24))
PY
    s2s-ckpt convert -q --resume --to hf big.safetensors out 2>said &
    while [ ! -e out.s2s-partial/s2s-resume ] && kill -0 $!; do :; done
    mkdir out && touch out/theirs
    not wait $!
    grep -q "out: already exists" said
    rm -r out
    exits 0 s2s-ckpt convert -v --resume --to hf big.safetensors out
    says "model.safetensors already exists"
    [ ! -e out.s2s-partial ]
}

@test "--no-sync writes the same bytes and waits for no disk" {
    inject_or_skip
    for to in hf torch_dist; do
        s2s-ckpt convert -q --to $to "$DATA/hf_sharded" synced
        with_fault fsync:1:EIO s2s-ckpt convert -q --no-sync --to $to "$DATA/hf_sharded" out
        [ "$status" -eq 0 ]
        [ $fired = 0 ]
        diff -r synced out
        with_fault fsync:1:EIO s2s-ckpt convert -q --to $to "$DATA/hf_sharded" again
        [ "$status" -eq 1 ]
        [ $fired = 1 ]
        [ ! -e again ]
        rm -rf synced out
    done
}

@test "files and folders are synced before and behind the names that they get" {
    inject_or_skip
    for to in "torch_dist --files 3" "hf --max-shard-size 4k" safetensors; do
        rm -rf out
        durably out s2s-ckpt convert -q --to $to "$DATA/hf_sharded" out
    done
    # over a file that is there
    durably out s2s-ckpt convert -q --to safetensors "$DATA/hf_sharded" out
    # and files beside the weights in the folder of a part
    write parts.safetensors '{part + ".w": (2, 4) for part in ("encoder", "llm", "proj")}'
    s2s-ckpt convert -q --to hf parts.safetensors parts
    echo '{"model_type": "fastconformer"}' >parts/encoder/config.json
    durably again s2s-ckpt convert -q --to hf parts again
    [ -e again/encoder/config.json ]
    durably pruned s2s-ckpt prune -q "$DATA/mcore016_gated_pp2dp2_dpreshardable" pruned
}

@test "values that became infinite in a file that --resume keeps are said and counted again" {
    inject_or_skip
    PYTHONPATH=$ROOT/tests/tools python3 -B - <<'PY'
import numpy as np
from small_safetensors import save

values = np.ones(1000, np.float32)
values[:3] = 1e6
save("in.safetensors", **{name: ("F32", values) for name in "abcdefgh"})
PY
    local to n
    for to in "hf --max-shard-size 2k" "torch_dist --max-shard-size 4k"; do
        rm -rf out
        s2s-ckpt convert --json --dtype f16 --to $to in.safetensors out >whole.json 2>said
        jq -e '.infinite_values == 24 and ([.warnings[] | select(contains("float16"))] | length == 5)' whole.json
        grep -q '; 24 values became infinite' said
        for ((n = 6; n <= 40; n += 2)); do
            rm -rf out out.s2s-partial
            with_fault fsync:$n:KILL s2s-ckpt convert -q --dtype f16 --to $to in.safetensors out
            [ $fired = 1 ]
            [ "$(grep -c '[.]safetensors.*\|[.]distcp.*' out.s2s-partial/s2s-resume)" -lt 3 ] || break
        done
        s2s-ckpt convert -q --json --resume --dtype f16 --to $to in.safetensors out >report.json
        jq -e '.infinite_values == 24 and any(.warnings[]; contains("an earlier run wrote it, and 3 values past"))' report.json
    done
    # --json of what has none says so
    s2s-ckpt convert -q --json --to hf "$DATA/hf_sharded" none | jq -e '.infinite_values == 0 and .warnings == []'
}
