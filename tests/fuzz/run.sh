#!/bin/bash
# libFuzzer with ASan and UBSan on every target: tests/fuzz/run.sh [RUNS] [TARGET...]; needs clang. New inputs go to build/fuzz/corpus/.
set -eu
cd "$(dirname "$0")/../.."
runs=${1:-100000}
shift || true
command -v clang >/dev/null || { echo "make fuzz needs clang: apt-get install clang" >&2; exit 1; }
targets=${*:-$(ls tests/fuzz/fuzz_*.c | xargs -n1 basename | sed 's/^fuzz_//; s/\.c$//')}
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
make -s -j"$(nproc)" BUILD=build/fuzz VARIANT=fuzz CC=clang MARCH=x86-64-v3 \
    OPT='-O1 -g -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all -fno-omit-frame-pointer' build/fuzz/libs2s.a
failed=0
for target in $targets; do
    mkdir -p "build/fuzz/corpus/$target"
    clang -std=gnu11 -D_GNU_SOURCE -I. -O1 -g -fsanitize=address,undefined,fuzzer -fno-sanitize-recover=all -march=x86-64-v3 \
        -pthread -o "build/fuzz/fuzz_$target" "tests/fuzz/fuzz_$target.c" build/fuzz/libs2s.a $(make -s print-libs) -lomp 2>/dev/null ||
        clang -std=gnu11 -D_GNU_SOURCE -I. -O1 -g -fsanitize=address,undefined,fuzzer -fno-sanitize-recover=all -march=x86-64-v3 \
            -pthread -o "build/fuzz/fuzz_$target" "tests/fuzz/fuzz_$target.c" build/fuzz/libs2s.a $(make -s print-libs)
    echo "== $target, $runs inputs"
    "build/fuzz/fuzz_$target" -runs="$runs" -rss_limit_mb=512 -timeout=5 -max_len=65536 -print_final_stats=1 -verbosity=0 \
        "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target" || failed=1
done
exit $failed
