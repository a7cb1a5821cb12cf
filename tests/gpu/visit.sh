#!/bin/bash
# Everything that only a GPU can tell, in one go of some eight minutes: visit.sh FOLDER, where FOLDER is what `make visit` made. Each phase has a time
# limit of its own; logs go to $OUT/visit.log as they come, the table is printed last.
set -u
from=$(cd "$1" && pwd)
out=${OUT:-$PWD/build/visit-out}
mkdir -p "$out"
work=$(mktemp -d /tmp/visit.XXXXXX)
logs=$work/logs
mkdir -p "$logs"
start=$SECONDS
python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$from/tree.tar.xz" "$work"
cd "$work/data" || exit 1
bin=$work/bin
export S2S_CUDA=$bin/libs2s-cuda.so S2S_TEST_TABLES=cuda
libs=$(python3 -c 'import glob, site; print(":".join(sorted({p.rsplit("/", 1)[0] for s in site.getsitepackages() for p in glob.glob(s + "/nvidia/**/libcublasLt.so.1[23]", recursive=True)})))' 2>/dev/null)
export S2S_CUDA_LIBS=${libs%%:*}
[ -n "$S2S_CUDA_LIBS" ] || unset S2S_CUDA_LIBS

# with our libraries, which no other program is to see
ours() { LD_LIBRARY_PATH=$work/lib:${LD_LIBRARY_PATH:-} "$@"; }

# phase NAME SECONDS COMMAND..: its output in NAME.log
phase() {
    local name=$1 limit=$2 begin=$SECONDS rc
    shift 2
    timeout -k 2 "$limit" "$@" >"$logs/$name.log" 2>&1
    rc=$?
    printf '%-28s status %3d %4d s\n' "$name" $rc $((SECONDS - begin)) | tee -a "$logs/phases"
    { printf '\n######## %s (status %d)\n' "$name" $rc; tail -c 60000 "$logs/$name.log"; } >>"$out/visit.log"
}
# the environment of `ours`, for commands under timeout
our=(env "LD_LIBRARY_PATH=$work/lib:${LD_LIBRARY_PATH:-}")
left() { echo $((${VISIT_SECONDS:-540} - (SECONDS - start))); }

# steps RUN SECONDS N RECIPE [KEY=VALUE..]: training until N steps are in the log; what it would save at its end is of no use
steps() {
    local run=$1 limit=$2 n=$3 recipe=$4
    shift 4
    phase "$run" "$limit" "${our[@]}" bash -c '
        run=$1 n=$2; shift 2
        "$@" & pid=$!
        while kill -0 $pid 2>/dev/null; do
            [ -f "$run/log.jsonl" ] && [ "$(wc -l <"$run/log.jsonl")" -ge "$n" ] && { kill -9 $pid; break; }
            sleep .2
        done
        wait $pid 2>/dev/null; [ -f "$run/log.jsonl" ] && [ "$(wc -l <"$run/log.jsonl")" -ge "$n" ]' \
        steps "$logs/$run" "$n" "$bin/s2s-train" "$recipe" run="$logs/$run" device=cuda "$@"
    { echo "-- log of $run"; cat "$logs/$run/log.jsonl" 2>/dev/null; } >>"$out/visit.log"
}

phase machine 20 bash -c 'nvidia-smi; nvcc --version; ldd --version | head -1; nproc; echo "libs: ${S2S_CUDA_LIBS:-none}"; ls -d /usr/local/cuda*'
# code for another GPU than the one that was built for is made here
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1)
echo "GPU: $(nvidia-smi --query-gpu=name --format=csv,noheader | head -1), sm ${capability}"

phase isa 20 "$bin/isa_test" check isa
for test in "$bin"/*_test; do
    name=$(basename "$test")
    case $name in count_test | profile_test | levels_test | list_test | isa_test) continue ;; esac
    phase "case-$name" 60 "${our[@]}" "$test"
done

phase small-cpu 40 "${our[@]}" "$bin/s2s-train" small.yaml run="$logs/small-cpu" device=cpu -j8
phase small-cuda 40 "${our[@]}" "$bin/s2s-train" small.yaml run="$logs/small-cuda" device=cuda
phase small-again 40 "${our[@]}" "$bin/s2s-train" small.yaml run="$logs/small-again" device=cuda
phase small-tf32 40 env S2S_TF32=1 "${our[@]}" "$bin/s2s-train" small.yaml run="$logs/small-tf32" device=cuda
[ ! -e "$bin/attention_bench" ] || phase attention-tiles 40 "$bin/attention_bench"
phase bench 60 "${our[@]}" "$bin/gpu_bench" cuda
S2S_TF32=1 steps long-tf32 60 10 long.yaml
S2S_TF32=1 steps speech-tf32 60 10 speech.yaml
steps long-f32 40 6 long.yaml
if "${our[@]}" "$bin/s2s-train" --help 2>/dev/null | grep -q nothing || grep -q 'precision' "$bin/s2s-train"; then
    steps long-bf16 60 10 long.yaml train.precision=bf16
    steps speech-bf16 60 10 speech.yaml train.precision=bf16
fi
S2S_TF32=1 phase profile 60 "${our[@]}" "$bin/s2s-train" part.yaml run="/dev/shm/part" device=cuda --profile="$work/trace.json"
rm -rf /dev/shm/part
phase peer 80 python3 "$from/peer.py"
for test in reduce rows rmsnorm glu loss attention; do
    [ "$(left)" -gt 60 ] || break
    phase "san-memcheck-$test" 30 "${our[@]}" compute-sanitizer --tool memcheck "$bin/${test}_test"
done
for test in attention rmsnorm reduce; do
    [ "$(left)" -gt 45 ] || break
    phase "san-racecheck-$test" 40 "${our[@]}" compute-sanitizer --tool racecheck "$bin/${test}_test"
done
echo "all: $((SECONDS - start)) s"
python3 "$from/report.py" "$logs" | tee "$out/table.txt"
cp "$logs"/small-c*/log.jsonl "$out/" 2>/dev/null
exit 0
