# s2s-ckpt and checkpoints that lie: each is refused with a message that names it, in little time and memory; nothing is run or written.
load common

@test "every hostile checkpoint is refused by name" {
    python3 "$ROOT/tests/oracle/ckpt/make_hostile.py" cases
    # AddressSanitizer reserves terabytes of addresses; seconds of the processor, whoever else uses it
    little="ulimit -v 300000; ulimit -t 2;"
    case ${S2S_BIN:-} in *sanitize*) little= ;; esac
    n=0
    while IFS=$'\t' read -r name says; do
        n=$((n + 1))
        for command in "verify cases/$name" "convert -q --to hf cases/$name out" "convert -q --to torch_dist cases/$name out"; do
            run bash -c "$little timeout 20 s2s-ckpt $command"
            if [ "$status" -ne 1 ] || [ "${#output}" -gt 4000 ]; then
                echo "$command: exit $status: ${output:0:2000}" >&2
                return 1
            fi
            says "s2s-ckpt: " && says "cases/$name" || { echo "$command" >&2; return 1; }
            output=${output//"$name"/} # many a case is called what must be said of it
            says "$says" || { echo "$command" >&2; return 1; }
            [ ! -e out ]
            [ ! -e out.s2s-partial ]
            [ ! -e ran ]
        done
    done <cases/cases.tsv
    [ "$n" -ge 225 ]
    no_litter . cases
}

@test "names and numbers of a model that cannot be end in a message, not in a long search" {
    python3 "$ROOT/tests/oracle/ckpt/make_hostile.py" cases
    n=0
    while IFS=$'\t' read -r name says; do
        n=$((n + 1))
        for map in llama nemotron_h; do
            exits 1 timeout 20 s2s-ckpt convert -q --to hf --map $map "cases/$name" out
            says "cases/$name"
            says "$says"
            [ ! -e out ]
            [ ! -e out.s2s-partial ]
        done
    done <cases/models.tsv
    [ "$n" -ge 18 ]
}

@test "byte objects and a common state that lie do not travel on" {
    python3 "$ROOT/tests/oracle/ckpt/make_hostile.py" cases
    n=0
    while IFS=$'\t' read -r name says; do
        n=$((n + 1))
        for command in "verify cases/$name" "convert -q --to torch_dist cases/$name out" "reshard -q cases/$name out"; do
            exits 1 timeout 20 s2s-ckpt $command
            says "cases/$name"
            says "$says"
            [ ! -e out ]
            [ ! -e out.s2s-partial ]
            [ ! -e ran ]
        done
    done <cases/objects.tsv
    [ "$n" -ge 6 ]
}

@test "what is odd and whole is read" {
    python3 "$ROOT/tests/oracle/ckpt/make_hostile.py" cases
    n=0
    while IFS=$'\t' read -r name says; do
        n=$((n + 1))
        exits 0 s2s-ckpt verify -q "cases/$name"
        exits 0 s2s-ckpt ls --sha256 "cases/$name"
        output=${output//$'\t'/ }
        says "$says"
        rm -f out.safetensors
        exits 0 s2s-ckpt convert -q --to safetensors "cases/$name" out.safetensors
        exits 0 s2s-ckpt diff "cases/$name" out.safetensors
    done <cases/good.tsv
    [ "$n" -ge 16 ]
}

@test "a flipped byte in what an archive says beside its tensors is found" {
    DATA=$ROOT/tests/oracle/ckpt/data
    cp -r "$DATA/mcore016_hybrid_tp2pp2ep2" "$DATA/zip.pt" .
    exits 0 s2s-ckpt verify mcore016_hybrid_tp2pp2ep2
    exits 0 s2s-ckpt verify zip.pt
    for file in mcore016_hybrid_tp2pp2ep2/*/*.distcp zip.pt; do
        cp "$file" whole
        # the last item's number of its own, behind its local header
        python3 - "$file" <<'PY'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
local = max(i for i in range(len(data)) if data[i:i + 4] == b"PK\3\4" and b".data/serialization_id" in data[i:i + 80])
size = 30 + int.from_bytes(data[local + 26:local + 28], "little") + int.from_bytes(data[local + 28:local + 30], "little")
data[local + size] ^= 1
open(sys.argv[1], "wb").write(data)
PY
        exits 1 s2s-ckpt verify "${file%%/*}"
        says "serialization_id"
        says "CRC-32"
        mv whole "$file"
    done
}
