#!/bin/bash
# Training steps beside torch's, in turn: pairs.sh [ROUNDS] [NAME...] runs each pair ROUNDS times (3), ours and then the peer, and prints the
# median of the ratios. What disturbs the machine for longer than one run then disturbs both. $PYTHON has torch and transformers.
# Its rows of BENCH_TABLE (goal.h) have as the limit what products alone would take.
set -u
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build/release}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)}
python=${PYTHON:-python3}
rounds=${1:-3}
shift

# ours COMMAND..: the rate it prints, and its share in percent of the machine's products
ours() {
    OMP_PROC_BIND=true "$@" 2>/dev/null |
        sed -n 's/.*tok\/s median=\([0-9.]*\).* share=0*\([0-9]*\)\.\([0-9]*\) .*/\1 \2\3/p; s/^mixed lengths *\([0-9.]*\) audio.* GFLOP\/s (\([0-9]*\) %).*/\1 \2/p'
}
theirs() { PRECISION=$2 OMP_WAIT_POLICY=passive "$python" tests/bench/peer_torch.py "$1" 2>/dev/null | sed -n 's/^torch .*: \([0-9.]*\) .*/\1/p'; }

# pair NAME PEER PRECISION GOAL COMMAND..
pair() {
    local name=$1 peer=$2 precision=$3 goal=$4 i a b list=
    shift 4
    for ((i = 0; i < rounds; i++)); do
        a=$(ours "$@") b=$(theirs "$peer" "$precision")
        [ -n "$a" ] && [ -n "$b" ] || { echo "$name: no pair" && return 1; }
        list+="$a $b"$'\n'
    done
    printf '%s' "$list" | awk '{ print $1 / $3, $1, $3, $2 }' | sort -n | awk -v name="$name" -v goal="$goal" -v table="${BENCH_TABLE:-/dev/null}" '
        { ratio[NR] = $1; share[NR] = $4; ours = ours " " $2; peer = peer " " $3 }
        END {
            m = int((NR + 1) / 2)
            printf "%-22s %.2f times torch (%.2f to %.2f); ours%s, torch%s\n", name, ratio[m], ratio[1], ratio[NR], ours, peer
            why = ratio[m] >= goal ? "met" : "products are " share[m] + 0 " % of the time, the rest is memory and all else"
            printf "step, %s\t>= %s\t%.3g\t%.3g\tx torch\t%s\n", name, goal, ratio[m], 100 * ratio[m] / share[m], why >>table
        }'
}

status=0
while read -r name peer precision goal command; do
    [ $# -gt 0 ] && [[ " $* " != *" $name "* ]] && continue
    # shellcheck disable=SC2086
    pair "$name" "$peer" "$precision" "$goal" $command </dev/null || status=1
done <<END
llama50 llama fp32 1.9 $BUILD/tests/bench/train_bench llama50 3 fp32
llama50-bf16 llama bf16-mixed 1.6 $BUILD/tests/bench/train_bench llama50 3 bf16-mixed
nemotron53 nemotron fp32 1.4 $BUILD/tests/bench/train_bench nemotron53 3 fp32
fastconformer-mixed mixed fp32 2.5 $BUILD/tests/bench/encoder_bench 3
salm77 salm fp32 2 $BUILD/tests/bench/train_bench salm77 3 fp32
END
exit $status
