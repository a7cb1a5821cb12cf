#!/bin/bash
# Every benchmark, each beside the machine's limit in the same run; beside torch too where $PYTHON has it (default: python3).
# tests/bench/run.sh [NAME...]: only benchmarks whose file name holds NAME. Last comes a table of the goals with what was measured, what limits
# it in the same run, and the reason where one is not met (tests/bench/goal.h).
set -u
cd "$(dirname "$0")/../.."
export BUILD=${BUILD:-build/release} S2S_BIN=${S2S_BIN:-$PWD/bin} PATH="${S2S_BIN:-$PWD/bin}:$PATH"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)} OMP_PROC_BIND=true
python=${PYTHON:-python3}
wanted() {
    [ $# -lt 2 ] && return 0
    local file=$1
    shift
    for name; do case $file in *"$name"*) return 0 ;; esac; done
    return 1
}
BENCH_TABLE=$(mktemp)
export BENCH_TABLE
trap 'rm -f "$BENCH_TABLE"' EXIT
status=0
for file in tests/bench/*_bench.c tests/bench/*_bench.sh; do
    [ -e "$file" ] && wanted "$file" "$@" || continue
    echo "== $(basename "$file" | sed 's/_bench.*//')"
    case $file in
    */reduce_bench.c) # one rank has nothing to reduce
        OMP_NUM_THREADS=1 OMP_PROC_BIND=false mpirun --allow-run-as-root --oversubscribe -n 2 "$BUILD/${file%.c}" || status=1
        ;;
    *.c) "$BUILD/${file%.c}" || status=1 ;;
    *.sh) bash "$file" || status=1 ;;
    esac
done
# kaldi-native-fbank, where it is installed
wanted "peer audio mel" "$@" && "$python" tests/bench/peer_mel.py 2>/dev/null
# NeMo-RL's packers, where it is installed or in the folder MIRROR
wanted "peer pack" "$@" && "$python" tests/bench/peer_pack.py 2>/dev/null
if "$python" -c 'import torch, transformers' 2>/dev/null; then
    if wanted "torch" "$@"; then
        echo "== beside torch, in turn"
        PYTHON=$python tests/bench/pairs.sh 3 || status=1
    fi
else
    echo "== torch: not found by $python (set PYTHON to a Python that has torch and transformers to compare)"
fi
if [ -s "$BENCH_TABLE" ]; then
    echo "== goals"
    { printf 'what\tgoal\tfigure\tlimit\tunit\tmet, or why not\n' && cat "$BENCH_TABLE"; } |
        awk -F '\t' '{ printf "%-46s %9s %9s %9s  %-16s %s\n", $1, $2, $3, $4, $5, $6 }'
fi
exit $status
