# Faults on purpose: `load inject` beside `load common`, `inject_build` in setup_file. Skips under the sanitizers, which must come first.

inject_build() {
    export INJECT=$BATS_FILE_TMPDIR/inject.so
    ${CC:-cc} -O1 -shared -fPIC -o "$INJECT" "$BATS_TEST_DIRNAME/inject.c"
}

inject_or_skip() {
    case ${S2S_BIN:-} in *sanitize*) skip "a preloaded library and ASan do not go together" ;; esac
}

# does the file system here know files without names (else outputs have a hidden one until they are whole)?
unnamed_files() {
    python3 -c 'import os; os.open(".", os.O_TMPFILE | os.O_WRONLY)' 2>/dev/null
}

# with_fault CALL:N:HOW COMMAND...: runs it with that fault; $fired is 1 when the call was reached
with_fault() {
    local fault=$1
    shift
    rm -f "$BATS_TEST_TMPDIR/.fired"
    run env S2S_INJECT="$fault" S2S_INJECT_MARK="$BATS_TEST_TMPDIR/.fired" LD_PRELOAD="$INJECT" "$@"
    fired=0
    if [ -e "$BATS_TEST_TMPDIR/.fired" ]; then
        fired=1
        rm -f "$BATS_TEST_TMPDIR/.fired"
    fi
}

# every_fault CALL HOW OUT COMMAND...: fails the 1st, 2nd, 3rd... CALL until none is left. Each time COMMAND must exit 1 with a message
# and leave nothing at OUT nor beside it, or (HOW is EINTR or SHORT) succeed and make OUT as it is without faults.
every_fault() {
    local call=$1 how=$2 out=$3 n want
    shift 3
    rm -f "$out"
    "$@"
    mv "$out" want.bytes
    for ((n = 1; n <= 5000; n++)); do
        with_fault "$call:$n:$how" "$@"
        [ $fired = 1 ] || break
        case $how in
        EINTR | SHORT)
            [ "$status" -eq 0 ] && cmp "$out" want.bytes || { echo "$call $n $how: exit $status: $output" >&2; return 1; }
            ;;
        KILL)
            [ "$status" -eq 137 ] || { echo "$call $n $how: exit $status" >&2; return 1; }
            if [ -e "$out" ]; then cmp "$out" want.bytes || return 1; fi
            unnamed_files || rm -f ./.*.tmp
            ;;
        *)
            if [ "$status" -ne 1 ] || [ -z "$output" ]; then
                echo "$call $n $how: exit $status: $output" >&2
                return 1
            fi
            # the folder's own fsync fails after the rename: then the file is there, whole
            if [ -e "$out" ]; then cmp "$out" want.bytes || return 1; fi
            ;;
        esac
        rm -f "$out"
        if ls -A | grep -q '\.tmp$'; then
            echo "$call $n $how left $(ls -A)" >&2
            return 1
        fi
    done
    [ "$n" -gt 1 ] || { echo "no $call was ever reached" >&2; return 1; }
}
