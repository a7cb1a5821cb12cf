#!/bin/bash
# Runs the suite and counts: unit tests (cmocka), fuzz corpora, tool tests (bats), with a last line `N passed, N failed[, N skipped]`.
# tests/run.sh [--long]; S2S_BIN and BUILD say where the programs and test binaries are.
set -u
cd "$(dirname "$0")/.."
export BUILD=${BUILD:-build/release} S2S_BIN=${S2S_BIN:-$PWD/bin}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
long=${1:-}
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# one binary a file; cmocka prints a line a test
for source in tests/unit/*/*_test.c; do
    unit=$BUILD/${source%.c}
    CMOCKA_MESSAGE_OUTPUT=TAP timeout 600 "$unit" >"$log" 2>&1
    status=$?
    ok=$(grep -cE '^ok ' "$log")
    bad=$(grep -cE '^not ok ' "$log")
    skips=$(grep -cE '^ok .*# SKIP' "$log")
    # a test binary that died, or tested nothing, is a failure whatever it printed
    if [ $status -ne 0 ] || [ $((ok + bad)) -eq 0 ]; then
        [ "$bad" -gt 0 ] || bad=1
        echo "FAILED ${unit#"$BUILD"/} (exit $status)"
        grep -vE '^ok ' "$log" | tail -n 40
    fi
    passed=$((passed + ok - skips)) failed=$((failed + bad)) skipped=$((skipped + skips))
done
echo "unit tests done: $passed passed, $failed failed"

for source in tests/fuzz/fuzz_*.c; do
    target=$BUILD/${source%.c}
    corpus=tests/fuzz/corpus/$(basename "$target" | sed 's/^fuzz_//')
    if timeout 600 "$target" "$corpus" >"$log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $(basename "$target") over $corpus"
        tail -n 30 "$log"
    fi
done

# some tests of a file take long: they run only with --long, and are called so ("long: ...")
for file in tests/tools/*.bats; do
    start=$SECONDS
    tests=$(grep -E '^@test ' "$file" | sed -E 's/^@test "(.*)" \{.*/\1/')
    if [ "$long" = --long ]; then
        timeout 3000 bats --tap "$file" >"$log" 2>&1
    else
        tests=$(grep -v '^long: ' <<<"$tests")
        names=$(sed 's/[][\.*^$()+?{}|]/\\&/g' <<<"$tests" | paste -sd'|')
        timeout 1200 bats --tap --filter "^($names)\$" "$file" >"$log" 2>&1
    fi
    status=$?
    ok=$(grep -cE '^ok ' "$log")
    bad=$(grep -cE '^not ok ' "$log")
    skips=$(grep -cE '^ok .*# skip' "$log")
    # each test of the file, no fewer
    if [ $status -ne 0 ] || [ $((ok + bad)) -ne "$(grep -c . <<<"$tests")" ]; then
        [ "$bad" -gt 0 ] || bad=1
        echo "FAILED in $file (exit $status)"
        awk '/^not ok/ {show = 1} /^ok/ {show = 0} show' "$log" | head -n 80
    fi
    echo "$file: $ok ok, $bad not ok, $((SECONDS - start)) s"
    passed=$((passed + ok - skips)) failed=$((failed + bad)) skipped=$((skipped + skips))
done

if [ $((passed + failed)) -eq 0 ]; then
    echo "no test ran"
    failed=1
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
