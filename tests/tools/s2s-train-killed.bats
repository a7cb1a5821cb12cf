# Training that is killed: at every call of a save, and at random moments on two ranks, a hundred times.
load common
load inject
load train

setup_file() {
    inject_build
}

setup_tool() {
    tiny_model '' 6 2 1
}

# same A B STEP: the same log and the same checkpoint, and nothing else lies beside it. What calls it asks for its status, so each line does too.
same() {
    local name
    name=$(printf 'iter_%07d' "$3")
    alike "$(log "$1")" "$(log "$2")" &&
        alike "$(s2s-ckpt ls --json --sha256 "$1/checkpoints/$name" | grep -v '"path"')" \
            "$(s2s-ckpt ls --json --sha256 "$2/checkpoints/$name" | grep -v '"path"')" &&
        no_litter "$2/checkpoints" "$name" latest_checkpointed_iteration.txt
}

@test "a damaged checkpoint is named, and the older one that is there" {
    s2s-train -j1 -q r.yaml run=whole checkpoint.keep=2
    cp -r whole cut
    file=$(ls cut/checkpoints/iter_0000006/*.distcp | head -1)
    truncate -s -100 "$file"
    exits 1 s2s-train -j1 -q r.yaml run=cut train.steps=8 checkpoint.keep=2
    says "iter_0000006: .metadata: "
    says "${file##*/} has"
    says "write 4 into cut/checkpoints/latest_checkpointed_iteration.txt"
    echo 4 >cut/checkpoints/latest_checkpointed_iteration.txt
    s2s-train -j1 -q r.yaml run=cut checkpoint.keep=2
    alike "$(log whole)" "$(log cut)"
    # nothing older: nothing is promised
    rm -r cut/checkpoints/iter_0000004
    truncate -s -100 "$file"
    exits 1 s2s-train -j1 -q r.yaml run=cut train.steps=8
    says_not "write 4"
}

@test "a run whose tracker the disk does not tell of is no new run" {
    inject_or_skip
    s2s-train -j1 -q r.yaml train.steps=4
    cp -r run before
    for ((n = 1; n <= 500; n++)); do
        rm -rf run
        cp -r before run
        with_fault faccessat:$n:EIO s2s-train -j1 -v r.yaml
        [ $fired = 1 ] || break
        [ "$status" -ne 0 ] || says "goes on from step 4"
    done
    [ "$n" -gt 1 ]
}

# killed_at CALL KEY=VALUE..: kills the first CALL, then later ones (see STEP in common.bash); each time the next run goes on to what `whole` is.
# Adds to $points.
killed_at() {
    local call=$1 n dir
    shift
    for ((n = 1; n <= 2000; n += n > 1 ? STEP : FIRST)); do
        rm -rf killed
        with_fault "$call:$n:KILL" s2s-train -j1 -q r.yaml run=killed "$@"
        [ $fired = 1 ] || break
        points=$((points + 1))
        [ "$status" -eq 137 ] || return 1
        # what there is under a final name is whole
        for dir in killed/checkpoints/iter_???????; do
            [ ! -e "$dir" ] || s2s-ckpt verify "$dir" >said || { echo "$call $n: $dir" >&2; return 1; }
        done
        exits 0 s2s-train -j1 -q r.yaml run=killed "$@" || return 1
        same whole killed 6 || { echo "differs after $call $n" >&2; return 1; }
    done
    [ "$n" -gt 1 ]
}

@test "killed while it writes beside training, it goes on bit for bit" {
    inject_or_skip
    s2s-train -j1 -q r.yaml run=whole
    points=0
    killed_at rename checkpoint.async_save=true
}

@test "long: killed at any write, sync, rename, mkdir or unlink, it goes on bit for bit" {
    inject_or_skip
    s2s-train -j1 -q r.yaml run=whole
    points=0
    for call in write fsync rename mkdir unlink; do
        killed_at $call
        killed_at $call checkpoint.async_save=true
    done
    echo "$points points" >&3
    [ "$points" -ge 120 ]
}

@test "long: any call that fails ends the run with a message, and the next goes on bit for bit" {
    inject_or_skip
    s2s-train -j1 -q r.yaml run=whole
    for fault in write:ENOSPC fsync:EIO rename:EIO mkdir:EDQUOT open:EACCES; do
        for ((n = 1; n <= 2000; n++)); do
            rm -rf failed
            with_fault "${fault%:*}:$n:${fault#*:}" s2s-train -j1 -q r.yaml run=failed
            [ $fired = 1 ] || break
            if [ "$status" -ne 0 ]; then
                [ "$status" -le 2 ] && [ -n "$output" ] || { echo "$fault $n: exit $status: $output" >&2; return 1; }
                exits 0 s2s-train -j1 -q r.yaml run=failed
            fi
            same whole failed 6 || { echo "differs after $fault $n" >&2; return 1; }
        done
        [ "$n" -gt 1 ]
    done
}

# end_of MPIRUN: waits until the ranks of a launch are gone, a minute at most, then for the launcher. That may hang in its own end
# when a rank was killed (PMIx 4.2, a lock in PMIx_server_finalize): after ten seconds it is killed too.
end_of() {
    local pid
    for pid in $(cat pid.0 pid.1 2>/dev/null); do
        gone "$pid" 60 || return 1
    done
    gone "$1" 10 || kill -9 "$1"
    wait "$1" || true
}

# Every other run divides the optimizer, and goes on from what one that does not has left.
@test "long: a rank of two killed at a random moment, a hundred times: it resumes bit for bit" {
    two="r.yaml mesh.dp=2 train.steps=40 checkpoint.every=2 schedule.decay_steps=40 -q -j1"
    how=(mesh.data_parallel_sharding_strategy={no_shard,optim})
    # shellcheck disable=SC2086
    mpirun_n 2 s2s-train $two run=whole
    RANDOM=7
    kills=0
    for round in $(seq 100); do
        # a new run now and then, so that also its first steps are hit
        [ $((round % 4)) -ne 1 ] || rm -rf killed
        # shellcheck disable=SC2086
        mpirun -n 2 bash -c 'echo $$ >pid.${OMPI_COMM_WORLD_RANK-$PMI_RANK}; exec s2s-train "$@"' - $two run=killed "${how[round % 2]}" mesh.bucket_mb=0.01 >/dev/null 2>&1 &
        job=$!
        for _ in $(seq 200); do
            [ ! -e killed/lock ] || break
            sleep 0.005
        done
        sleep "0.$(printf '%03d' $((RANDOM % 250)))"
        if kill -9 "$(cat pid.$((RANDOM % 2)))" 2>/dev/null; then kills=$((kills + 1)); fi
        end_of $job || { echo "round $round: a rank goes on" >&2; return 1; }
        if [ $((round % 4)) -eq 0 ]; then
            # shellcheck disable=SC2086
            mpirun_n 2 s2s-train $two run=killed
            nearly whole killed && alike "$(bits whole 40)" "$(bits killed 40)" &&
                no_litter killed/checkpoints iter_0000040 latest_checkpointed_iteration.txt || { echo "round $round" >&2; return 1; }
        fi
    done
    echo "$kills killed" >&3
    [ "$kills" -ge 50 ]
}

@test "an allocation that fails ends a run with a message, in a library too" {
    inject_or_skip
    local n step=$((STEP == 1 ? 61 : 2311))
    for ((n = 1200; n <= 12000; n += step)); do
        rm -rf oom
        with_fault malloc:$n:ENOMEM s2s-train r.yaml run=oom -j1 train.steps=2
        [ $fired = 1 ] || break
        if [ "$status" -gt 1 ] || { [ "$status" -eq 1 ] && [ -z "$output" ]; }; then
            echo "malloc $n: exit $status: $output" >&2
            return 1
        fi
    done
    [ "$n" -gt 5000 ]
}
