#!/bin/bash
# Every benchmark, each beside the machine's limit in the same run; beside torch too where $PYTHON has it (default: python3).
# tests/bench/run.sh [NAME...]: only benchmarks whose file name holds NAME.
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
status=0
for file in tests/bench/*_bench.c tests/bench/*_bench.sh; do
    [ -e "$file" ] && wanted "$file" "$@" || continue
    echo "== $(basename "$file" | sed 's/_bench.*//')"
    case $file in
    *.c) "$BUILD/${file%.c}" || status=1 ;;
    *.sh) bash "$file" || status=1 ;;
    esac
done
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
exit $status
