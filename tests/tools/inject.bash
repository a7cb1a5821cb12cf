# Faults on purpose: `load inject` beside `load common`, `inject_build` in setup_file. Skips under the sanitizers, which must come first.

inject_build() {
    export INJECT=$BATS_FILE_TMPDIR/inject.so
    ${CC:-cc} -O1 -shared -fPIC -o "$INJECT" "$BATS_TEST_DIRNAME/inject.c"
}

inject_or_skip() {
    case ${S2S_BIN:-} in *sanitize* | *tsan*) skip "a preloaded library and the sanitizers do not go together" ;; esac
}

# does the file system here know files without names (else outputs have a hidden one until they are whole)?
unnamed_files() {
    python3 -c 'import os; os.open(".", os.O_TMPFILE | os.O_WRONLY)' 2>/dev/null
}

# with_fault CALL:N:HOW COMMAND...: runs it with that fault; $fired is 1 when the call was reached
with_fault() {
    set +T # see exits
    with_fault_untraced "$@"
    set -T
}

with_fault_untraced() {
    FAULTS=$((${FAULTS:-0} + 1))
    local mark=$BATS_TEST_TMPDIR.fired.$FAULTS fault=$1
    shift
    S2S_INJECT=$fault S2S_INJECT_MARK=$mark LD_PRELOAD=$INJECT ran "$@"
    fired=0
    [ ! -e "$mark" ] || fired=1
}

# every_fault CALL HOW OUT COMMAND...: fails one CALL, then a later one (see STEP in common.bash), until none is left. Each time COMMAND must exit 1 with a message
# and leave nothing at OUT nor beside it, or (HOW is EINTR or SHORT) succeed and make OUT as it is without faults.
every_fault() {
    local call=$1 how=$2 out=$3 n want
    shift 3
    rm -f "$out"
    "$@"
    mv "$out" want.bytes
    for ((n = 1; n <= 5000; n += n > 1 ? STEP : FIRST)); do
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
        [ ! -e "$out" ] || rm -f "$out"
        if compgen -G '*.tmp' || compgen -G '.*.tmp'; then
            echo "$call $n $how left $(ls -A)" >&2
            return 1
        fi
    done
    [ "$n" -gt 1 ] || { echo "no $call was ever reached" >&2; return 1; }
}

# right_or_refused CALL:HOW COMMAND...: fails one CALL after the other, too. COMMAND makes out (or prints) what it makes without faults, or it says why not,
# leaves nothing, and names no strange place.
right_or_refused() {
    local call=${1%:*} how=${1#*:} n want
    shift
    rm -rf out want
    want=$("$@" 2>/dev/null)
    [ ! -e out ] || mv out want
    for ((n = 1; n <= 500; n += n > 1 ? STEP : FIRST)); do
        with_fault "$call:$n:$how" "$@"
        [ $fired = 1 ] || break
        if [ "$status" -eq 0 ]; then
            if [ -e want ]; then
                diff -r want out || { echo "$call $n $how: $output" >&2; return 1; }
            else
                [ "$(grep -v warning: <<<"$output")" = "$want" ] || { echo "$call $n $how: $output" >&2; return 1; }
            fi
        elif [ "$status" -gt 2 ] || [ -z "$output" ] || [ -e out ] || [ -e out.s2s-partial ]; then
            echo "$call $n $how: exit $status: $output" >&2
            ls -A >&2
            return 1
        fi
        [ ! -e out ] || rm -r out
    done
    [ "$n" -gt 1 ] || { echo "no $call was ever reached" >&2; return 1; }
    # nothing that is there was harmed
    [ -e want ] || [ "$("$@" 2>/dev/null)" = "$want" ]
}

# durably OUT COMMAND...: COMMAND makes OUT, and a loss of power at any time leaves no whole name with half of the bytes: a file is on the disk
# before what makes it visible has its name, a folder behind the last name in it.
durably() {
    local trace=$BATS_TEST_TMPDIR/.trace
    rm -f "$trace"
    S2S_INJECT_TRACE=$trace LD_PRELOAD=$INJECT "${@:2}" || return 1
    python3 - "$1" "$trace" <<'PY'
import os, sys
out = sys.argv[1]
events = [line.split() for line in open(sys.argv[2])]
def inode(path):
    return str(os.lstat(path).st_ino)
def last(call, path):
    return max([i for i, e in enumerate(events) if e[0] == call and e[1] == inode(path)], default=-1)
def above(path):
    return os.path.dirname(path) or "."
files = [os.path.join(d, f) for d, _, fs in os.walk(out) for f in fs] if os.path.isdir(out) else [out]
folders = [d for d, _, _ in os.walk(out)] if os.path.isdir(out) else []
for path in files:
    synced = last("fsync", path)
    assert synced >= 0 and last("write", path) < synced, path + ": not synced behind its last byte"
    while path:
        named = last("name", path)
        assert named < 0 or synced < named, path + ": has its name before all of it is synced"
        path = os.path.dirname(path)
for path in files + folders:
    # a file that is not renamed has its name before it is synced
    begun = max(last("name", path), last("fsync", path) if os.path.isfile(path) else -1)
    assert last("fsync", above(path)) > begun, path + ": its folder is not synced behind it"
def between(folder, begin, end):
    return any(e[:2] == ["fsync", inode(folder)] for e in events[begin + 1 : end])
for path in files: # these say that others are there
    beside = [p for p in files + folders if above(p) == above(path) and p != path]
    if os.path.basename(path) == "metadata.json":
        assert between(above(path), max(last("fsync", p) for p in beside), last("fsync", path)), path + ": before the others"
    if os.path.basename(path) == "latest_checkpointed_iteration.txt":
        assert between(above(path), max(last("name", p) for p in beside), last("name", path)), path + ": before the folder that it names"
assert last("name", out) >= 0
PY
}
