# What every tool test starts with: `load common`. A fresh folder, the built programs first in PATH, one thread a rank.

setup() {
    cd "$BATS_TEST_DIRNAME/../.." || return 1
    export ROOT=$PWD
    # the system's own python3 behind the programs: it is the one that packages.txt gives numpy
    export PATH="${S2S_BIN:-$ROOT/bin}:/usr/bin:$PATH"
    export OMP_NUM_THREADS=1 S2S_NO_PROGRESS=1 LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
    # ranks share two cores here: give the processor away while waiting, and run as root where CI does
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none # the same of Open MPI 5
    # the ranks are on one machine, whatever networks it has: asking for these takes twice the time of everything else
    export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader
    # MPI keeps memory to the end; the library's own leaks are found by the unit tests. What no machine has room for is refused as without a sanitizer.
    export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:allocator_may_return_null=1}
    # a loop over every call of a kind tries the 1st and every fourth from one that the day chooses, with S2S_LONG (run.sh --long) each of them:
    # for ((n = 1; ..; n += n > 1 ? STEP : FIRST))
    export S2S_LONG=${S2S_LONG:-}
    STEP=$((${#S2S_LONG} > 0 ? 1 : 4))
    FIRST=$((1 + ${S2S_DAY:-EPOCHSECONDS / 86400} % STEP)) # S2S_DAY: of another day
    TURN=0 # see turn
    cd "$BATS_TEST_TMPDIR" || return 1
    if declare -F setup_tool >/dev/null; then setup_tool; fi
}

# mpirun_n N COMMAND...: N ranks on whatever cores there are
mpirun_n() {
    local n=$1
    shift
    mpirun -n "$n" "$@"
}

# is mpirun MPICH's, which kills all ranks when one dies, and gives up where they read its stdin slower than it is written?
by_hydra() {
    case $(mpirun --version 2>&1) in *HYDRA*) ;; *) return 1 ;; esac
}

# `turn || continue` begins a loop over four cases or more of one rule: it takes every fourth from one that the day chooses, with S2S_LONG each of them
turn() {
    TURN=$((TURN + 1))
    [ $((TURN % STEP)) = $((FIRST % STEP)) ]
}

# exits STATUS COMMAND...: runs it (stdout and stderr in $output and $lines) and demands the exit status. Bats traces every command of a
# function, which takes longer than what most tests run: here it does not, and no process but the command's is made.
exits() {
    set +T
    exits_untraced "$@" || { set -T; return 1; }
    set -T
}

exits_untraced() {
    local want=$1
    shift
    ran "$@"
    [ "$status" -ne "$want" ] || return 0
    printf 'expected exit %s, got %s from: %s\n%s\n' "$want" "$status" "$*" "$output" >&2
    return 1
}

# ran COMMAND...: sets $status, $output and $lines
ran() {
    local file=$BATS_TEST_TMPDIR.said part
    status=0
    if declare -F -- "$1" >/dev/null; then
        (set +eE; "$@") >"$file" 2>&1 || status=$?
    else
        "$@" >"$file" 2>&1 || status=$?
    fi
    output=
    while IFS= read -r -d '' part; do output+=$part; done <"$file"
    output+=$part
    while [[ $output = *$'\n' ]]; do output=${output%$'\n'}; done
    local IFS=$'\n'
    set -f
    # shellcheck disable=SC2206 # of its lines
    lines=($output)
    set +f
}

# says TEXT: $output of the last `run` or `exits` holds TEXT
says() {
    [[ $output = *"$1"* ]] || says_otherwise 'expected to see' "$1"
}

says_otherwise() {
    printf '%s: %s\ngot: %s\n' "$1" "$2" "$output" >&2
    return 1
}

# not COMMAND...: demands that it fails (a test goes on after a bare `! command`, whatever comes of it)
not() {
    if "$@"; then
        printf 'expected to fail: %s\n' "$*" >&2
        return 1
    fi
}

# says_not TEXT: $output does not hold TEXT
says_not() {
    [[ $output != *"$1"* ]] || says_otherwise 'did not expect to see' "$1"
}

# alike TEXT TEXT: equal, and something: two commands that failed have said the same nothing
alike() {
    if [ -z "$1" ] || [ "$1" != "$2" ]; then
        diff <(printf '%s\n' "$1") <(printf '%s\n' "$2") | head -n 20 >&2
        [ -n "$1" ] || echo 'nothing to compare' >&2
        return 1
    fi
}

# same FILE FILE: equal bytes, and some
same() {
    [ -s "$1" ] || { echo "$1 is empty or absent" >&2; return 1; }
    cmp "$1" "$2"
}

# flip FILE OFFSET [BIT]: one bit of a file
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1") && [ -n "$byte" ] || return 1
    # shellcheck disable=SC2059 # the byte is the format
    printf "\\x$(printf %02x $((byte ^ 1 << ${3:-0})))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# no_litter FOLDER NAME...: the folder holds these names and nothing else (no temporary files, no half outputs)
no_litter() {
    local folder=$1
    shift
    local got want
    got=$(ls -A "$folder" | sort)
    want=$(printf '%s\n' "$@" | sed '/^$/d' | sort)
    [ "$got" = "$want" ] || {
        printf 'expected only [%s], found [%s]\n' "$want" "$got" >&2
        return 1
    }
}

# gone PID SECONDS: the process ends by then (its parent may not have asked yet)
gone() {
    local stat
    for _ in $(seq "$2"0); do
        stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
        case ${stat##*) } in Z*) return 0 ;; esac
        sleep 0.1
    done
    return 1
}
