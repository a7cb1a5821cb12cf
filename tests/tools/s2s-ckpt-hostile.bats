# s2s-ckpt and checkpoints that lie: each is refused with a message that names it, in little time and memory; nothing is run or written.
load common

setup_file() {
    PATH="/usr/bin:$PATH" PYTHONDONTWRITEBYTECODE=1 python3 "$BATS_TEST_DIRNAME/../oracle/ckpt/make_hostile.py" "$BATS_FILE_TMPDIR/cases"
}

setup_tool() {
    ln -s "$BATS_FILE_TMPDIR/cases" cases
}

refused() {
    python3 "$BATS_TEST_DIRNAME/refused.py" "$@"
}

@test "every hostile checkpoint is refused by name" {
    refused cases/cases.tsv 225 "verify {}" "convert -q --to hf {} out" "convert -q --to torch_dist {} out"
    no_litter . cases
}

@test "names and numbers of a model that cannot be end in a message, not in a long search" {
    for map in llama nemotron_h; do
        refused cases/models.tsv 18 "convert -q --to hf --map $map {} out"
    done
}

@test "byte objects and a common state that lie do not travel on" {
    refused cases/objects.tsv 6 "verify {}" "convert -q --to torch_dist {} out" "reshard -q {} out"
}

@test "what is odd and whole is read" {
    n=0
    while IFS=$'\t' read -r name says; do
        n=$((n + 1))
        turn || continue
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
