#!/bin/bash
# libFuzzer with ASan and UBSan: tests/fuzz/run.sh [RUNS] [TARGET...], JOBS targets at once (as many as there are cores); needs clang.
# New inputs go to build/fuzz/corpus/, those that fail to build/fuzz/.
set -eu
cd "$(dirname "$0")/../.."
export runs=${1:-100000}
shift || true
command -v clang >/dev/null || {
    echo "make fuzz needs clang: apt-get install clang" >&2
    exit 1
}
targets=${*:-$(ls tests/fuzz/fuzz_*.c | xargs -n1 basename | sed 's/^fuzz_//; s/\.c$//')}
# a small quarantine: the limit on memory is about what an input needs; and pages stay, as fresh ones were most of the time of some targets
export ASAN_OPTIONS=allocator_may_return_null=1:quarantine_size_mb=16:allocator_release_to_os_interval_ms=-1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export flags='-O1 -g -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all -fno-omit-frame-pointer -DPICKLE_WINDOW=4096 -DHEADER_WINDOW=64 -DFIRST_ROOM_BYTES=0x200000'
# the rooms that parse foreign bytes; kernels want OpenMP's headers and have nothing to fuzz
rooms=$(find lib/{base,conf,io,stream,audio,text,data,thd,ckpt,rules,mesh} -name '*.c' | sort | paste -sd' ')
# anew: make takes objects that are missing behind a newer archive for present
rm -f build/fuzz/libs2s.a
make -s -j"$(nproc)" BUILD=build/fuzz CC="${FUZZ_CC:-clang}" CXX="${FUZZ_CXX:-clang++}" "OPT=$flags" WARN=-w "LIB_SRC=$rooms" build/fuzz/libs2s.a
libs=$(make -s print-libs)
results=$(mktemp -d)
export libs results
trap 'rm -rf "$results"' EXIT

fuzz_one() {
    local target=$1 log=$results/$1.log start=$SECONDS word=ok longest done
    mkdir -p "build/fuzz/corpus/$target"
    longest=$(sed -n 's/.*run.sh: max_len=\([0-9]*\).*/\1/p' "tests/fuzz/fuzz_$target.c")
    # shellcheck disable=SC2086
    clang -std=gnu11 -D_GNU_SOURCE -I. -w ${flags/fuzzer-no-link/fuzzer} -march=native -pthread -o "build/fuzz/fuzz_$target" \
        "tests/fuzz/fuzz_$target.c" build/fuzz/libs2s.a -Wl,--as-needed $libs >"$log" 2>&1 &&
        "build/fuzz/fuzz_$target" -runs="$runs" -rss_limit_mb=512 -timeout=20 -max_len="${longest:-65536}" -verbosity=0 -print_funcs=0 -print_final_stats=1 -artifact_prefix=build/fuzz/ \
            "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target" >>"$log" 2>&1 || word=FAILED
    # a fuzzer that stops before its time has tested little
    done=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    [ "${done:-0}" -ge "$runs" ] || word=FAILED
    {
        flock 9
        echo "== $target, $runs inputs"
        grep -vE '^stat::(new_units|slowest)|# Uses:|^#####|^s2s ' "$log" || true
        echo "$target: $word, $((SECONDS - start)) s"
    } 9>"$results/lock"
    [ $word = ok ] || touch "$results/failed"
}
export -f fuzz_one
# shellcheck disable=SC2016
printf '%s\n' $targets | xargs -n 1 -P "${JOBS:-$(nproc)}" bash -c 'fuzz_one "$1"' fuzz
[ ! -e "$results/failed" ]
