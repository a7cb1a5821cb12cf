#!/bin/bash
# Runs the suite and counts: unit tests (cmocka), fuzz corpora, tool tests (bats), with a last line `N passed, N failed[, N skipped]`.
# tests/run.sh [--long]; S2S_BIN and BUILD say where the programs and test binaries are, JOBS how many files run at once (one more than there are cores, as some wait).
set -u
cd "$(dirname "$0")/.."
export BUILD=${BUILD:-build/release} S2S_BIN=${S2S_BIN:-$PWD/bin}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export long=${1:-} S2S_LONG=${S2S_LONG:-} work
[ "$long" != --long ] || S2S_LONG=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# measured LIMIT COMMAND...: runs it with its output in $log, for LIMIT seconds at most; sets status, and took to what it took
measured() {
    local start=$SECONDS TIMEFORMAT='%3U %3S' user sys ms
    { time timeout "$@" >"$log" 2>&1; } 2>"$log.cpu"
    status=$?
    # the shell tells there of what a signal ended, too
    read -r user sys < <(tail -n 1 "$log.cpu")
    ms=$((10#${user/./} + 10#${sys/./}))
    echo $ms >"$log.cpu"
    took="$((SECONDS - start)) s, $(((ms + 500) / 1000)) s of CPU"
}

# one binary a file; cmocka prints a line a test
unit() {
    local unit=$BUILD/${1%.c} status took ok bad skips
    CMOCKA_MESSAGE_OUTPUT=TAP measured 600 "$unit"
    ok=$(grep -cE '^ok ' "$log")
    # cmocka calls a skipped test not ok
    bad=$(grep -E '^not ok ' "$log" | grep -vc '# SKIP')
    skips=$(grep -cE '^(not )?ok .*# SKIP' "$log")
    ok=$((ok + $(grep -cE '^not ok .*# SKIP' "$log")))
    # a test binary that died, or tested nothing, is a failure whatever it printed
    if [ $status -ne 0 ] || [ $((ok + bad)) -eq 0 ]; then
        [ "$bad" -gt 0 ] || bad=1
        echo "FAILED ${unit#"$BUILD"/} (exit $status)"
        grep -vE '^ok ' "$log" | tail -n 40
    fi
    [ "$(cat "$log.cpu")" -lt 1000 ] || echo "$1: $ok ok, $bad not ok, $took"
    count $((ok - skips)) "$bad" "$skips"
}

fuzz() {
    local target=$BUILD/${1%.c} corpus=${1##*/fuzz_} status took
    corpus=tests/fuzz/corpus/${corpus%.c}
    measured 600 "$target" "$corpus"
    if [ $status -eq 0 ]; then
        count 1 0 0
    else
        echo "FAILED $(basename "$target") over $corpus"
        tail -n 30 "$log"
        count 0 1 0
    fi
}

# Some tests of a file take long: they run only with --long, and are called so ("long: ..."). Others do more where S2S_LONG is set (tests/tools/common.bash).
tool() {
    local file=$1 tests names limit=1200 only=() status took ok bad skips
    tests=$(grep -E '^@test ' "$file" | sed -E 's/^@test "(.*)" \{.*/\1/')
    if [ "$long" = --long ]; then
        limit=3000
    else
        tests=$(grep -v '^long: ' <<<"$tests")
        names=$(sed 's/[][\.*^$()+?{}|]/\\&/g' <<<"$tests" | paste -sd'|')
        only=(--filter "^($names)\$")
    fi
    measured $limit bats --tap "${only[@]}" "$file"
    ok=$(grep -cE '^ok ' "$log")
    bad=$(grep -cE '^not ok ' "$log")
    skips=$(grep -cE '^ok .*# skip' "$log")
    # each test of the file, no fewer
    if [ $status -ne 0 ] || [ $((ok + bad)) -ne "$(grep -c . <<<"$tests")" ]; then
        [ "$bad" -gt 0 ] || bad=1
        echo "FAILED in $file (exit $status)"
        awk '/^not ok/ {show = 1} /^ok/ {show = 0} show' "$log" | head -n 80
    fi
    echo "$file: $ok ok, $bad not ok, $took"
    count $((ok - skips)) "$bad" "$skips"
}

count() { echo "$@" >"$log.count"; }

# one NUMBER KIND FILE: runs it. What it says is printed when all before it has been, so the order is that of the list.
one() {
    local number=$1 next
    log=$work/$number
    "$2" "$3" >"$log.said" 2>&1
    mv "$log.said" "$log.done"
    {
        flock 9
        read -r next <"$work/next"
        for (( ; ; next++)); do
            cat "$work/$next.done" 2>/dev/null || break
        done
        echo "$next" >"$work/next"
    } 9>"$work/lock"
    return 0
}

# the tool tests that take longest begin first, so that all cores end together
items() {
    local early=() late=() file
    for file in tests/tools/*.bats; do
        case $file in
        */s2s-ckpt-memory.bats | */s2s-ckpt-resume.bats | */s2s-train*.bats | */s2s-ckpt.bats) early+=("$file") ;;
        *) late+=("$file") ;;
        esac
    done
    printf 'unit %s\n' tests/unit/*/*_test.c
    printf 'fuzz %s\n' tests/fuzz/fuzz_*.c
    printf 'tool %s\n' "${early[@]}" "${late[@]}"
}

export -f measured unit fuzz tool count one
echo 1 >"$work/next"
items | nl -w1 -s' ' >"$work/items"
xargs -L 1 -P "${JOBS:-$(($(env -u OMP_NUM_THREADS nproc) + 1))}" bash -c 'one "$@"' one <"$work/items"

passed=0 failed=0 skipped=0
read -r next <"$work/next"
while read -r number _ file; do
    [ "$number" -lt "$next" ] || cat "$work/$number.done" 2>/dev/null
    if read -r ok bad skips 2>/dev/null <"$work/$number.count"; then
        passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skips))
    else
        echo "FAILED $file: it did not come to its end"
        failed=$((failed + 1))
    fi
done <"$work/items"
if [ $((passed + failed)) -eq 0 ]; then
    echo "no test ran"
    failed=1
fi
echo "$SECONDS s, $((($(cat "$work"/*.cpu | paste -sd+)) / 1000)) s of CPU"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
