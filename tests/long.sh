#!/bin/bash
# The long checks: tests/long.sh [PART...], all parts where none is named.
#   release   the whole suite with its long tests
#   sanitize  the suite under ASan and UBSan
#   tsan      threads that work on one tensor, threads in general, and those of emulated GPUs, under TSan
#   memcheck  each program once and the unit tests under valgrind, built for a CPU that it knows
#   levels    the tests of the CPU's kernels at each level of CPU_LEVELS that this machine has
#   fuzz      every fuzz target for FUZZ_RUNS inputs (50000; readers of data 100000), where clang is
#   oracle    the scripts of tests/oracle, which compare with the peers' own libraries where PYTHON has them (torch, transformers, safetensors,
#             peft, tokenizers, soundfile, soxr, lhotse, megatron-core, tensorboard, jsonschema,
#             PyYAML)
# Scripts and fuzz targets run side by side, JOBS at once (as many as there are cores). The summary at the end has a line for each with its seconds.
# Exit 0 when nothing failed; what is skipped is named with its reason.
set -u
cd "$(dirname "$0")/.."
export PYTHON=${PYTHON:-python3} S2S_BIN=${S2S_BIN:-$PWD/bin}
known="release sanitize tsan memcheck levels fuzz oracle"
export JOBS=${JOBS:-$(nproc)}
results=$(mktemp -d)
export results
trap 'rm -rf "$results"' EXIT

for part in "$@"; do
    [[ " $known " == *" $part "* ]] || { echo "long.sh: no part is called '$part': they are $known" >&2; exit 2; }
done

# timed NAME COMMAND...: what the command said, its status, and a line of the summary. Exit 77 is skipped, and the last line of what the command said is the reason.
timed() {
    local name=$1 log start=$SECONDS status word=FAILED why=""
    shift
    log=$results/${name//[^a-z0-9_]/.}.log
    echo "=== $name"
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    case $status in
    0) word=ok ;;
    77) word=skipped why=$(tail -n 1 "$log") ;;
    124) why="not done in its time" ;;
    137) why="killed" ;;
    *) why="exit $status" ;;
    esac
    printf '%-8s%6d s  %s%s\n' "$word" $((SECONDS - start)) "$name" "${why:+ ($why)}" >>"$results/summary"
    return "$status"
}
release() { make -s -j"$JOBS" WERROR=1 all units fuzzers man && tests/run.sh --long; }
sanitize() ( # its variables are its own
    make -s -j"$JOBS" SANITIZE=1 all units fuzzers &&
        export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 S2S_BIN=$PWD/build/sanitize/bin S2S_LONG=1 &&
        BUILD=build/sanitize tests/run.sh && bats --filter '^long: ' tests/tools/s2s-ckpt-mpi.bats
)
# the sanitizer wants its part of the address space, which a random layout may have taken
tsan() {
    local fixed=(setarch -R)
    "${fixed[@]}" true 2>/dev/null || fixed=()
    echo 'int main(void) { return 0; }' | ${CC:-gcc} -fsanitize=thread -x c - -o "$results/thread" && "${fixed[@]}" "$results/thread" ||
        { echo "no program runs under TSan here" && return 77; }
    make -s -j"$JOBS" SANITIZE=thread build/tsan/bin/s2s-ckpt build/tsan/tests/unit/{base/base,io/behind}_test &&
        OMP_NUM_THREADS=1 "${fixed[@]}" build/tsan/tests/unit/base/base_test &&
        "${fixed[@]}" build/tsan/tests/unit/io/behind_test &&
        S2S_BIN=$PWD/build/tsan/bin "${fixed[@]}" bats tests/tools/s2s-ckpt-threads.bats &&
        emulated_tsan
}
# each thread of a block is one to TSan, and barriers alone order them
emulated_tsan() {
    local name names="attention conv1d dropout encoder encoder_gradients gatednorm gemm glu loss moe reduce relattention rmsnorm rope rows ssd"
    make -s -j"$JOBS" SANITIZE=thread build/tsan/libs2s-emu.so $(printf "build/tsan/tests/unit/kernels/%s_test " $names) || return 1
    for name in $names; do
        S2S_TEST_TABLES=emu OMP_NUM_THREADS=1 "${fixed[@]}" build/tsan/tests/unit/kernels/${name}_test || return 1
    done
}
memcheck() {
    command -v valgrind >/dev/null || { echo "no valgrind" && return 77; }
    make -s -j"$JOBS" DEBUG=1 MARCH=x86-64-v3 BUILD=build/memcheck all units && tests/memcheck.sh build/memcheck
}
levels() {
    local names="x86-64-v2 x86-64-v3 x86-64-v4" level tests
    # the GPU's kernels have no levels, and their emulator is not built for this
    tests=$(printf '%s\n' tests/unit/kernels/*_test.c | sed '/\/collectives_/d; s,^,build/release-levels/,; s,\.c$,,')
    timed "kernels for several levels" make -s -j"$JOBS" WERROR=1 CPU_LEVELS="$names" $tests || return 0
    for level in $names; do timed "kernels at $level" kernels_at "$level" $tests; done
}
kernels_at() {
    local level=$1 test bad=0
    shift
    echo "int main(void) { return !__builtin_cpu_supports(\"$level\"); }" | ${CC:-gcc} -x c - -o "$results/has" || return 1
    "$results/has" || { echo "this machine has no $level" && return 77; }
    for test in "$@"; do S2S_CPU_LEVEL=$level S2S_TEST_TABLES=cpu,guard timeout 600 "$test" || bad=1; done
    return $bad
}
fuzz() {
    command -v clang >/dev/null || { echo "no clang" && return 77; }
    local data="manifest sources shar webdataset cut blend tokenizer" others bad=0
    others=$(printf '%s\n' tests/fuzz/fuzz_*.c | sed 's,.*/fuzz_,,; s,\.c$,,' | grep -vxF "${data// /$'\n'}")
    # shellcheck disable=SC2086
    tests/fuzz/run.sh "${FUZZ_RUNS:-50000}" $others || bad=1
    # shellcheck disable=SC2086
    tests/fuzz/run.sh "${FUZZ_RUNS:-100000}" $data || bad=1
    return $bad
}
# what a script says stays together; and none waits for ever for a process that has died
oracle_script() {
    timed "$1" timeout -k 10 3000 "$PYTHON" "$1" >"$results/$$.all"
    flock "$results/lock" cat "$results/$$.all"
    return 0
}
oracle() {
    export -f timed oracle_script
    printf '%s\n' tests/oracle/*/check_*.py | OMP_NUM_THREADS=1 xargs -n 1 -P "$JOBS" bash -c 'oracle_script "$1"' oracle
    export -nf timed oracle_script
}
part() {
    case $1 in
    release) timed "suite with its long tests" release ;;
    sanitize) timed "suite under ASan and UBSan" sanitize ;;
    tsan) timed "threads under TSan" tsan ;;
    memcheck) timed "programs and units under valgrind" memcheck ;;
    levels) levels ;;
    fuzz) timed "fuzzing" fuzz ;;
    oracle) timed "programs for the scripts of tests/oracle" make -s -j"$JOBS" all && oracle ;;
    esac
}
start=$SECONDS
for part in ${@:-$known}; do part "$part"; done
echo "=== summary, $((SECONDS - start)) s"
cat "$results/summary"
count() { grep -c "^$1 " "$results/summary"; }
echo "$(count ok) ok, $(count FAILED) failed, $(count skipped) skipped"
[ "$(count FAILED)" -eq 0 ] && [ "$(count ok)" -gt 0 ]
