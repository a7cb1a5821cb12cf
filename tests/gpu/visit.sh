#!/bin/bash
# Everything that only a GPU can tell, in one go of under nine minutes: visit.sh FOLDER, where FOLDER is what `make visit` made. Phases come in the order of
# their worth, each with a time limit of its own, some three times what it took where it ran; those whose turn comes too late are named, and another go with
# VISIT_ONLY, a pattern of names, runs them. Logs go to $OUT/visit.log as they come, the table is printed last.
#
# Without a GPU, VISIT_PLAN=1 prints the phases with their limits, and VISIT_CUDA, a library in place of the bundle's, as build/release/libs2s-emu.so, tries the
# order at sizes for that: what only a GPU can run says so. VISIT_NCCL is a library in place of NCCL then. VISIT_SECONDS is the time in all.
set -u
from=$(cd "$1" && pwd)
out=${OUT:-$PWD/build/visit-out}
mkdir -p "$out"
work=$(mktemp -d /tmp/visit.XXXXXX)
logs=$work/logs
mkdir -p "$logs"
start=$SECONDS
dry=${VISIT_CUDA:+$(realpath "$VISIT_CUDA")}
[ -z "${VISIT_NCCL:-}" ] || VISIT_NCCL=$(realpath "$VISIT_NCCL")
python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$from/tree.tar.xz" "$work"
cd "$work/data" || exit 1
bin=$work/bin
export S2S_CUDA=${dry:-$bin/libs2s-cuda.so} S2S_TEST_TABLES=cuda
if [ -n "$dry" ]; then
    [ -z "${VISIT_PLAN:-}" ] || { echo "visit.sh: VISIT_PLAN is of a visit to a GPU" >&2 && exit 2; }
    sed -i 's/"hidden_size": 256/"hidden_size": 32/; s/"intermediate_size": 512/"intermediate_size": 32/; s/"num_hidden_layers": 4/"num_hidden_layers": 2/; s/"head_dim": 64/"head_dim": 8/' small.json
    sed -i 's/steps: [0-9]*/steps: 2/' small.yaml salm.yaml
    export GRADIENTS_SECONDS=600
    cp small.yaml part.yaml
    cp salm.yaml encoder.yaml
fi
libs=$(python3 -c 'import glob, site; print(":".join(sorted({p.rsplit("/", 1)[0] for s in site.getsitepackages() for p in glob.glob(s + "/nvidia/**/libcublasLt.so.1[23]", recursive=True)})))' 2>/dev/null)
export S2S_CUDA_LIBS=${libs%%:*}
[ -n "$S2S_CUDA_LIBS" ] || unset S2S_CUDA_LIBS

nccl=$(python3 -c 'import glob, site; print(*sorted(p for s in site.getsitepackages() for p in glob.glob(s + "/nvidia/**/libnccl.so.2", recursive=True))[:1])' 2>/dev/null)
nccl=${VISIT_NCCL:-$nccl}
[ -z "$nccl" ] || export S2S_NCCL=$nccl

left() { echo $((${VISIT_SECONDS:-520} - (SECONDS - start))); }
planned=0

# phase NAME SECONDS COMMAND..: its output in NAME.log; not begun where little time is left, so that the table is always printed
phase() {
    local name=$1 limit=$2 begin=$SECONDS rc
    shift 2
    [[ $name =~ ${VISIT_ONLY:-.} ]] || return
    planned=$((planned + limit))
    [ -z "${VISIT_PLAN:-}" ] || { printf '%-28s %4d s\n' "$name" "$limit" && return; }
    [ "$(left)" -ge 15 ] || { echo "$name: no time left" | tee -a "$logs/phases" && return; }
    [ -z "$dry" ] || limit=$((limit * 20)) # an emulated GPU is slow
    [ "$limit" -le "$(left)" ] || limit=$(left)
    timeout -k 2 "$limit" "$@" >"$logs/$name.log" 2>&1
    rc=$?
    printf '%-28s status %3d %4d s\n' "$name" $rc $((SECONDS - begin)) | tee -a "$logs/phases"
    { printf '\n######## %s (status %d)\n' "$name" $rc; tail -c 60000 "$logs/$name.log"; } >>"$out/visit.log"
}
# the same of what only a GPU can run
gpu_phase() {
    [ -z "$dry" ] || { [[ ! $1 =~ ${VISIT_ONLY:-.} ]] || echo "$1: needs a GPU" | tee -a "$logs/phases"; return; }
    phase "$@"
}
# the environment with our libraries, which no other program is to see
our=(env "LD_LIBRARY_PATH=$work/lib:${LD_LIBRARY_PATH:-}")

# steps RUN SECONDS N RECIPE [KEY=VALUE..]: training until N steps are in the log; what it would save at its end is of no use
steps() {
    local run=$1 limit=$2 n=$3 recipe=$4 how=gpu_phase
    shift 4
    [ -z "$dry" ] || [ "$recipe" != part.yaml ] || how=phase n=1
    $how "$run" "$limit" "${our[@]}" bash -c '
        run=$1 n=$2; shift 2
        "$@" & pid=$!
        while kill -0 $pid 2>/dev/null; do
            [ -f "$run/log.jsonl" ] && [ "$(wc -l <"$run/log.jsonl")" -ge "$n" ] && { kill -9 $pid; break; }
            sleep .2
        done
        wait $pid 2>/dev/null; [ -f "$run/log.jsonl" ] && [ "$(wc -l <"$run/log.jsonl")" -ge "$n" ]' \
        steps "$logs/$run" "$n" "$bin/s2s-train" "$recipe" run="$logs/$run" device=cuda "$@"
    [ -n "${VISIT_PLAN:-}" ] || { echo "-- log of $run"; cat "$logs/$run/log.jsonl" 2>/dev/null; } >>"$out/visit.log"
}

phase machine 5 bash -c 'nvidia-smi; nvcc --version; ldd --version | head -1; nproc; echo "libs: ${S2S_CUDA_LIBS:-none}"; ls -d /usr/local/cuda*; true'
[ -n "${VISIT_PLAN:-}" ] || echo "GPU: $(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2>/dev/null | head -1)"

# ---- is it right: instructions, gradients, cases, whole trainings ----

gpu_phase isa 5 "$bin/isa_test" check isa
gpu_phase isa-sm90 10 "$bin/sm90" # of Hopper alone
phase gradients 40 "${our[@]}" "$bin/gradients.sh" "$bin"
for test in "$bin"/*_test; do
    name=$(basename "$test") limit=5
    case $name in
    count_test | profile_test | levels_test | list_test | isa_test) continue ;;
    attention_test | relattention_test | ssd_test | conv1d_test | rmsnorm_test | gatednorm_test | encoder_gradients_test | glu_test | moe_test | loss_test)
        continue ;; # of gradients
    far_test) limit=20 ;;
    gemm_test) limit=20 ;;
    collectives_test) limit=15 ;;
    esac
    phase "case-$name" $limit "${our[@]}" "$test"
done

S2S_WGMMA=1 phase case-attention-wgmma 10 "${our[@]}" "$bin/attention_test"

# both RUN RECIPE [KEY=VALUE..]: a short training on the CPU and on the GPU
both() {
    local run=$1 recipe=$2
    shift 2
    phase "$run-cpu" 5 "${our[@]}" "$bin/s2s-train" "$recipe" run="$logs/$run-cpu" device=cpu -j8 "$@"
    phase "$run-cuda" 5 "${our[@]}" "$bin/s2s-train" "$recipe" run="$logs/$run-cuda" device=cuda "$@"
}
both small small.yaml
phase small-again 5 "${our[@]}" "$bin/s2s-train" small.yaml run="$logs/small-again" device=cuda
both bf16 small.yaml train.precision=bf16-mixed
both salm salm.yaml
both salm16 salm.yaml train.precision=bf16-mixed

# case-collectives_test was NCCL of this machine as one rank; here two share the GPU, which NCCL says may hang
if [ -e "$work/libnccl.so.2" ] || [ -n "${VISIT_NCCL:-}" ]; then
    two=("${our[@]}" S2S_NCCL="${VISIT_NCCL:-$work/libnccl.so.2}" NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4)
    mpi=(OPAL_PREFIX="$work/mpi" PMIX_INSTALL_PREFIX="$work/mpi/libs/pmix2" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent=
        OMPI_MCA_btl=^tcp OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_yield_when_idle=1 PATH="$work/mpi/bin:$PATH")
    phase two-collectives 15 "${two[@]}" "$bin/collectives_test"
    for mesh in dp=2 tp=2 cp=2 pp=2; do
        phase "two-${mesh%=2}" 10 "${two[@]}" "${mpi[@]}" mpirun --oversubscribe --bind-to none -n 2 \
            "$bin/s2s-train" small.yaml run="$logs/two-${mesh%=2}" device=cuda "mesh.$mesh" mesh.timeout_s=10
    done
fi

# ---- is it fast: kernels, tiles of attention, steps ----

S2S_TF32=1 phase bench 20 "${our[@]}" "$bin/gpu_bench" cuda ${dry:+1024}
S2S_WGMMA=1 phase bench-wgmma 10 "${our[@]}" "$bin/gpu_bench" cuda $([ -n "$dry" ] && echo 1024 || echo 1) attention
[ ! -e "$bin/attention_bench" ] || gpu_phase attention-tiles 20 "$bin/attention_bench"
steps speech-bf16 15 12 speech.yaml train.precision=bf16-mixed
steps long-bf16 15 12 long.yaml train.precision=bf16-mixed
steps mamba-bf16 20 12 mamba.yaml train.precision=bf16-mixed
steps encoder-bf16 10 8 encoder.yaml train.precision=bf16-mixed
[ -n "${VISIT_NO_PEER:-}" ] || gpu_phase peer 35 python3 "$from/peer.py"
# torch's steps take two minutes with what it compiles: only where they are named
[ -z "${VISIT_ONLY:-}" ] || gpu_phase peer-steps 150 python3 "$from/peer_model.py" 8

# ---- races, and where the time goes ----

# every kernel of a language model at small sizes, and what was not under it there
gpu_phase san-racecheck-all 50 "${our[@]}" compute-sanitizer --tool racecheck "$bin/gpu_bench" cuda 64
gpu_phase san-initcheck-all 10 "${our[@]}" compute-sanitizer --tool initcheck "$bin/gpu_bench" cuda 32
for test in gemm encoder_gradients relattention; do
    gpu_phase "san-memcheck-$test" 15 "${our[@]}" compute-sanitizer --tool memcheck "$bin/${test}_test"
done
# the same steps with and without a wait after each call: what the launches hide
steps part-bf16 8 8 part.yaml train.precision=bf16-mixed
phase profile 12 "${our[@]}" "$bin/s2s-train" part.yaml run=/dev/shm/part device=cuda train.precision=bf16-mixed --profile="$logs/trace.json"
rm -rf /dev/shm/part
phase profile-encoder 10 "${our[@]}" "$bin/s2s-train" encoder.yaml run=/dev/shm/part device=cuda train.precision=bf16-mixed train.steps=6 --profile="$logs/trace-encoder.json"
rm -rf /dev/shm/part
S2S_TF32=1 phase small-tf32 5 "${our[@]}" "$bin/s2s-train" small.yaml run="$logs/small-tf32" device=cuda
S2S_TF32=1 steps long-tf32 15 8 long.yaml
S2S_TF32=1 steps speech-tf32 12 8 speech.yaml
[ -z "${VISIT_PLAN:-}" ] || { echo "all: $planned s" && rm -rf "$work" && exit 0; }
echo "all: $((SECONDS - start)) s"
python3 "$from/report.py" "$logs" | tee "$out/table.txt"
cp "$logs/small-cuda/log.jsonl" "$out/" 2>/dev/null
gzip -c "$logs/trace.json" >"$out/trace.json.gz" 2>/dev/null
exit 0
