# Faults on purpose: `load inject` beside `load common`, `inject_build` in setup_file. Skips under the sanitizers, which must come first.

inject_build() {
    export INJECT=$BATS_FILE_TMPDIR/inject.so
    ${CC:-cc} -O1 -shared -fPIC -o "$INJECT" "$BATS_TEST_DIRNAME/inject.c"
    # where the compiler has it and this machine lets it look into processes (a container may not), it finds memory that nobody holds at the end
    LSAN=$(${CC:-cc} -print-file-name=liblsan.so)
    LD_PRELOAD=$LSAN true 2>&1 | grep -q . && LSAN=
    export LSAN
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

# tensors PATH: names and digests of the file, or of those in a folder that do not tell of times
tensors() {
    find "$1" -type f \( -path "$1" -o -name '*.distcp' -o -name '*.safetensors' -o -name '*.tar' -o -name '*.s2s' \) -exec sha256sum {} + 2>/dev/null | sort -k 2
}

# lost CALL:N COMMAND...: with that allocation failed, it loses memory or crashes, and not inside of libsndfile, libFLAC, libarchive or oneDNN: where an allocation of theirs
# fails, they forget what they have or write to what they have not (1.2.0, 1.4.2, 3.6.2 and 2.6). To tell whose a block is takes stacks that take long.
lost() {
    printf 'leak:libsndfile.so\nleak:libFLAC.so\nleak:archive_read_open_fd\nleak:archive_write_open2\n' >.libraries
    S2S_INJECT=$1:ENOMEM LSAN_OPTIONS=fast_unwind_on_malloc=0:print_suppressions=0:suppressions=$PWD/.libraries LD_PRELOAD=$INJECT:$LSAN "${@:2}" >got.out 2>said </dev/null
    [ $? = 23 ] || return 1
    not grep -qE '^ *#[01] .*/(libsndfile|libFLAC|libarchive|libdnnl)\.so' said
}

# every_malloc OUT COMMAND...: one allocation after the other fails, RUNS of them in equal steps from one that the day chooses (a few, or with S2S_LONG up to 1,500).
# Each time the command makes OUT as it does without faults (- is what it prints), or it exits 1 (FAILS) with one message and leaves nothing new that differs.
# Whichever it is, it has lost no memory (the leak sanitizer exits 23). A checkpoint on its way stays in its .tmp as after a kill, until the next start.
every_malloc() {
    local out=$1 call n total step before want left said said_wrong runs=$((STEP == 1 ? ${S2S_MALLOCS:-1500} : ${RUNS:-12})) bad=0
    shift
    rm -rf "$out"
    "$@" >want.out 2>/dev/null || return 1
    want=$(tensors "$out")
    [ "$out" = - ] || { [ -n "$want" ] && rm -rf "$out"; } || return 1
    touch said got.out .count .libraries
    before=$(ls -A)
    for call in malloc aligned; do
        S2S_INJECT=$call:1000000000:ENOMEM S2S_INJECT_COUNT=$PWD/.count LD_PRELOAD=$INJECT "$@" >/dev/null 2>&1
        rm -rf "$out"
        total=$(cat .count)
        step=$(((total + runs - 1) / runs))
        for ((n = 1 + (step > 1 ? ${S2S_DAY:-$(date +%s) / 86400} * 37 % step : 0); n <= total; n += step)); do
            status=0 said_wrong=
            S2S_INJECT=$call:$n:ENOMEM LD_PRELOAD=$INJECT${LSAN:+:$LSAN} "$@" >got.out 2>said </dev/null || status=$?
            said=$(grep -v '^s2s-[a-z]*: warning: ' said || true)
            if [ $status = 0 ]; then
                cmp -s got.out want.out && [ "$(tensors "$out")" = "$want" ] || said_wrong="its output is another"
            elif [ $status = 23 ] && grep -q LeakSanitizer said; then
                ! lost "$call:$n" "$@" || said_wrong="memory is lost, or it crashes"
            elif [[ ! $status =~ ^(${FAILS:-1})$ ]]; then
                said_wrong="exit $status"
            elif [ "$(grep -cE '^s2s-[a-z]+( [a-z]+)?: |^Fatal Internal Error in libarchive' <<<"$said")" != 1 ]; then
                said_wrong="exit 1 with no message, or with several"
            elif [ -n "$(comm -23 <(tensors "$out" | grep -v '/iter_[0-9]*\.tmp/') <(echo "$want"))" ] || { [ -f "$out" ] && ! [ "$(tensors "$out")" = "$want" ]; }; then
                said_wrong="exit 1, and half an output"
            fi
            rm -rf "$out"
            left=$(comm -13 <(echo "$before") <(ls -A))
            [ -z "$left" ] || { said_wrong="$said_wrong, it left $left" && echo "$left" | xargs -d '\n' rm -rf; }
            [ -z "$said_wrong" ] || {
                echo "$call $n of $total: $said_wrong: $said"
                bad=$((bad + 1))
            }
            [ $bad -lt 10 ] || return 1
        done
        echo "$call: $total allocations, every ${step}th failed, $bad wrong: $*"
    done
    [ $bad = 0 ]
}
