# Ranks that are killed or stopped, and signals to the launcher: how soon the others end, and what the last line says.
load common
load train

# oneDNN makes its kernels in each process anew, those of AVX-512 in half of the time that a tiny run takes
export DNNL_MAX_CPU_ISA=SSE41

setup_tool() {
    tiny_model '' 20 5 2
}

# begin KEY=VALUE...: two ranks, whose launcher is $job (so not by mpirun_n), train `run` without an end
begin() {
    rm -rf run pid.*
    # shellcheck disable=SC2016
    mpirun "${launcher[@]}" -n 2 bash -c 'echo $$ >pid.${OMPI_COMM_WORLD_RANK-$PMI_RANK}; exec s2s-train -j1 r.yaml mesh.dp=2 train.steps=2000000 checkpoint.every=0 "$@"' - "$@" >said 2>&1 &
    job=$!
}

# until_begun PATH: it is there, and not empty
until_begun() {
    for _ in $(seq 1000); do
        [ ! -s "$1" ] || return 0
        sleep 0.01
    done
    cat said >&2
    return 1
}

# since NANOSECONDS: milliseconds from then to now
since() { echo $((($(date +%s%N) - $1) / 1000000)); }

# ended: what the launcher gave, soon; $last is what a rank said last
ended() {
    gone $job 15 || kill -9 $job
    rc=0
    wait $job || rc=$?
    last=$(grep '^s2s-train' said | tail -n 1)
}

# killed_rank RANK MOMENT: it is killed MOMENT milliseconds after the first step, and named in the last line. Sets took, the milliseconds until the other one is gone.
# MPICH's mpirun kills the other one before it can name anybody.
killed_rank() {
    local start
    begin
    until_begun run/log.jsonl
    sleep "$(printf '0.%03d' "$2")"
    kill -9 "$(cat "pid.$1")"
    start=$(date +%s%N)
    gone "$(cat pid.$((1 - $1)))" 4
    took=$(since "$start")
    ended
    if by_hydra; then [ $rc -ne 0 ] && return; fi
    if [ $rc -eq 0 ] || [ "$(grep -c ' died in ' said)" -ne 1 ] ||
        [[ "$last" != "s2s-train[$((1 - $1))]: step "*": rank $1 (pid $(cat "pid.$1") on $(hostname)) died in step "* ]]; then
        echo "rank $1 killed after $2 ms, exit $rc:" >&2
        cat said >&2
        return 1
    fi
}

@test "a rank that is killed is named with its step in the last line, and the other one is gone within 1.5 s" {
    for dead in 0 1 0; do
        killed_rank $dead $((RANDOM % 300))
        # the launcher alone needs two seconds for that
        [ "$took" -le 1500 ] || { echo "gone after $took ms" >&2; false; }
    done
}

@test "long: so it is at any of 25 moments" {
    RANDOM=5
    late=()
    for _ in $(seq 25); do
        killed_rank $((RANDOM % 2)) $((RANDOM % 500))
        [ "$took" -le 1500 ] || late+=("$took")
    done
    # other work on the machine may hold one up
    [ ${#late[@]} -le 1 ] || { echo "gone after ${late[*]} ms" >&2; false; }
}

# stopped_rank RANK: the other one ends soon after the time limit of 4 s, and names it, which it has told before
stopped_rank() {
    local pid start
    pid=$(cat "pid.$1")
    kill -STOP "$pid"
    start=$(date +%s%N)
    gone "$(cat pid.$((1 - $1)))" 9
    took=$(since "$start")
    ended
    if [ $rc -eq 0 ] || [ "$took" -gt 7000 ] ||
        [[ "$last" != *": step "*" is not complete after 4 s; missing: rank $1 (pid $pid on $(hostname), no sign of life for "* ]] ||
        [ "$(grep -c 'is not complete after 4 s' said)" -ne 1 ] ||
        [ "$(grep -c 'is not complete after [1-3] s.*; the job ends after 4 s' said)" -eq 0 ]; then
        echo "rank $1 stopped, exit $rc after $took ms:" >&2
        cat said >&2
        return 1
    fi
}

@test "a rank that is stopped is named when the time limit is over, whichever it is; a slow one is not" {
    for stopped in 1 0; do
        begin mesh.timeout_s=4
        until_begun run/log.jsonl
        if [ $stopped = 1 ]; then
            kill -STOP "$(cat pid.1)"
            sleep 1.5
            kill -CONT "$(cat pid.1)"
            sleep 1
            kill -0 $job
        fi
        stopped_rank $stopped
    done
}

@test "long: so it is at any of 25 moments, of rank 0" {
    RANDOM=7
    for _ in $(seq 25); do
        begin mesh.timeout_s=4
        until_begun run/log.jsonl
        sleep "$(printf '0.%03d' $((RANDOM % 500)))"
        stopped_rank 0
    done
}

# ---- signals to the launcher ----

open_mpi_4() {
    case $(mpirun --version 2>&1) in *"(Open MPI) 4."*) ;; *) skip "this is said of Open MPI 4" ;; esac
}

@test "SIGUSR1 to mpirun reaches the ranks at once, which save" {
    open_mpi_4
    # by its own signals it would come later
    launcher=(--mca odls_base_sigkill_timeout 3)
    begin
    until_begun run/log.jsonl
    kill -USR1 $job
    gone "$(cat pid.0)" 2
    gone "$(cat pid.1)" 1
    ended
    [ $rc -eq 1 ]
    grep -q 'interrupted after step [0-9]*; its checkpoint' said
    [ -s run/checkpoints/latest_checkpointed_iteration.txt ]
}

@test "SIGTERM to mpirun reaches ranks after odls_base_sigkill_timeout, and after as long again they are killed" {
    open_mpi_4
    # shellcheck disable=SC2016
    mpirun --mca odls_base_sigkill_timeout 2 -n 1 bash -c 'trap "date +%s%N >told" TERM; echo >begun; while :; do date +%s%N >seen; sleep 0.05; done' >said 2>&1 &
    job=$!
    until_begun begun
    start=$(date +%s%N)
    kill -TERM $job
    ended
    told=$((($(cat told) - start) / 1000000)) seen=$((($(cat seen) - start) / 1000000))
    [ $told -ge 1900 ] && [ $told -le 3500 ] || { echo "told after $told ms" >&2; false; }
    [ $seen -ge 3700 ] && [ $seen -le 5500 ] || { echo "seen after $seen ms" >&2; false; }
}
