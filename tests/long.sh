#!/bin/bash
# The long checks: the whole suite with its long tests, the same under ASan + UBSan, the threaded rooms under TSan, every fuzz target
# for a while (where clang is), and the scripts of tests/oracle that compare with the peers' own libraries (where PYTHON has them:
# torch, transformers, safetensors, tokenizers, soundfile, soxr, lhotse, megatron-core, tensorboard).
set -u
cd "$(dirname "$0")/.."
export PYTHON=${PYTHON:-python3}
status=0
summary=()
part() {
    local name=$1
    shift
    echo "=== $name"
    if "$@"; then summary+=("ok      $name"); else
        summary+=("FAILED  $name")
        status=1
    fi
}

release() { make -s WERROR=1 all units fuzzers man && tests/run.sh --long; }
sanitize() {
    make -s -j"$(nproc)" SANITIZE=1 all units fuzzers &&
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 BUILD=build/sanitize S2S_BIN=$PWD/build/sanitize/bin tests/run.sh
}
fuzz() { tests/fuzz/run.sh "${FUZZ_RUNS:-50000}"; }

part "suite with its long tests" release
part "suite under ASan and UBSan" sanitize
if command -v clang >/dev/null; then part "fuzzing" fuzz; else summary+=("skipped fuzzing (no clang)"); fi
for script in tests/oracle/*/check_*.py; do
    [ -e "$script" ] || continue
    # a script exits 77 when its library is not there
    "$PYTHON" "$script"
    case $? in
    0) summary+=("ok      $script") ;;
    77) summary+=("skipped $script (its library is not in $PYTHON)") ;;
    *)
        summary+=("FAILED  $script")
        status=1
        ;;
    esac
done
printf '%s\n' "=== summary" "${summary[@]}"
exit $status
