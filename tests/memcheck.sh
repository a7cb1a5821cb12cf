#!/bin/bash
# Each program once under valgrind, then the unit tests, JOBS at once: no error, and no memory that is lost for certain.
# tests/memcheck.sh BUILD, which is made for a CPU that valgrind knows (MARCH=x86-64-v3). Exit 77: there is no valgrind.
set -eu
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "no valgrind" && exit 77; }
BUILD=$(cd "$1" && pwd) BIN=$BUILD/bin ROOT=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$BIN:/usr/bin:$PATH OMP_NUM_THREADS=1 S2S_NO_PROGRESS=1 LC_ALL=C.UTF-8
# oneDNN makes code for the CPU that runs it, which valgrind is not
export DNNL_MAX_CPU_ISA=AVX2
memcheck="valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite"
bad=0

# gives STATUS PROGRAM ARGUMENT...: it exits so, and valgrind has nothing to say
gives() {
    local status=0
    # shellcheck disable=SC2086 # of its options
    $memcheck "$BIN/$2" "${@:3}" >said 2>&1 </dev/null || status=$?
    programs=$((programs + 1))
    if [ $status -ne "$1" ] || grep -q '^==[0-9]*== ' said; then
        echo "FAILED (exit $status) ${*:2}"
        tail -n 40 said
        bad=1
    fi
}

inputs() {
    # shellcheck disable=SC1091
    . "$ROOT/tests/tools/train.bash"
    eval "$(sed -n '/^make_speech()/,/^}/p' "$ROOT/tests/tools/s2s-train.bats")"
    tiny_model '' 2 0 1
    make_speech
    sed -i 's/steps: 150/steps: 2/; s/warmup_steps: 10/warmup_steps: 1/' s.yaml
    seq 20 >lengths.txt
    head -c 1000 t.s2s >cut.s2s
}

programs() {
    gives 0 s2s-pack -q --ids ids.jsonl --tokens 64 --cp 2 -o whole.s2s
    gives 0 s2s-pack -q -j2 --manifest m.jsonl --tokenizer tokenizer.json --audio mel --tokens 80 -o mel2.s2s
    gives 0 s2s-pack -q -j2 --manifest m.jsonl --tokenizer tokenizer.json --audio flac --tokens 80 -o flac.s2s
    gives 0 s2s-pack tokenize --tokenizer tokenizer.json ids.jsonl -o ids.txt
    gives 0 s2s-pack bins --tokens 40 --json lengths.txt
    gives 1 s2s-pack -q --ids m.jsonl --tokens 64 -o none.s2s
    gives 0 s2s-shard verify whole.s2s
    gives 0 s2s-shard ls --json whole.s2s
    gives 0 s2s-shard view --json whole.s2s
    gives 0 s2s-shard shuffle -q --seed 3 whole.s2s -o other.s2s
    gives 0 s2s-shard cat --zstd 3 whole.s2s -o whole.s2s.zst
    gives 0 s2s-shard export -q -o shar pcm.s2s
    gives 1 s2s-shard verify cut.s2s
    gives 0 s2s-cpshard -q --cp 2 whole.s2s -o 'p%r.s2s'
    gives 0 s2s-cpshard -q --join -o back.s2s p0.s2s p1.s2s
    gives 1 s2s-cpshard -q --join -o none.s2s p0.s2s p0.s2s
    gives 0 s2s-encode -q -j2 --encoder "$ROOT/tests/oracle/models/salm_llama/encoder" mel.s2s -o embedded.s2s
    gives 0 s2s-check "$ROOT/tests/oracle/rules/s2s.yaml"
    gives 0 s2s-train -q -j2 r.yaml train.dropout=0.1 model.lora='{"rank": 2}'
    gives 0 s2s-train -q -j1 s.yaml
    gives 0 s2s-train -q -j1 s.yaml train.steps=3
    gives 1 s2s-train -q -j1 s.yaml optimizer.lr=-1
    gives 0 s2s-train plan r.yaml
    gives 0 s2s-train eval -j1 s.yaml
    gives 0 s2s-train generate --checkpoint srun/checkpoints --audio a0.wav --max-new-tokens 3
    gives 0 s2s-ckpt verify srun/checkpoints
    gives 0 s2s-ckpt convert -q --to hf srun/checkpoints model
    gives 0 s2s-ckpt convert -q --to torch_dist model dist
    gives 0 s2s-ckpt ls --json --sha256 model
    gives 0 s2s-ckpt diff model dist
    gives 1 s2s-ckpt diff srun/checkpoints dist
}

# unit TEST: what it says where it fails
unit() {
    local status=0 log
    log=$(mktemp)
    # shellcheck disable=SC2086 # of its options
    timeout 900 $memcheck "$1" >"$log" 2>&1 || status=$?
    [ $status = 0 ] || { echo "exit $status: $1" && head -n 60 "$log"; }
    rm "$log"
    return $status
}

# Not here: tests of the code that oneDNN and PCRE2 make as they run, which reads beyond their own blocks; of addresses that are nowhere; of children that end without freeing; of minutes.
units() {
    export memcheck S2S_TEST_TABLES=cpu
    export -f unit
    find "$BUILD/tests/unit" -name '*_test' | sort | grep -vE '/(attention|gemm|tokenizer|count|base|map|tape|device)_test$' >"$work/units"
    [ -s "$work/units" ] && xargs -n 1 -P "${JOBS:-$(nproc)}" bash -c 'unit "$1"' unit <"$work/units"
}

cd "$work"
inputs
programs=0
programs
echo "$programs calls of programs"
cd "$ROOT"
units || bad=1
echo "$(wc -l <"$work/units") unit tests"
exit $bad
