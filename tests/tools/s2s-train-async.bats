# Checkpoints written beside training: the bytes of one that training waits for, when they appear, and what failures and kills leave.
load common
load inject
load train

setup_file() {
    inject_build
}

setup_tool() {
    tiny_model '' 6 2 9
}

# what waits for it ends
teardown() {
    rm -f held
}

# equal A B STEP..: the files of tensors of these checkpoints, byte for byte
equal() {
    local a=$1 b=$2 step name file
    shift 2
    for step in "$@"; do
        name=$(printf 'checkpoints/iter_%07d' "$step")
        alike "$(cd "$a/$name" && ls -A)" "$(cd "$b/$name" && ls -A)" || return 1
        for file in "$a/$name"/*.distcp; do
            same "$file" "$b/$name/${file##*/}" || return 1
        done
    done
}

# both RANKS KEY=VALUE..: waited for, and beside training whose writers are slow
both() {
    local ranks=$1
    shift
    rm -rf waited beside
    mpirun_n "$ranks" s2s-train -j1 -q r.yaml run=waited "$@" &&
        mpirun_n "$ranks" env S2S_INJECT=open:1:SLOW LD_PRELOAD="$INJECT" s2s-train -j1 -q r.yaml run=beside checkpoint.async_save=true "$@" &&
        alike "$(log waited)" "$(log beside)" &&
        equal waited beside 2 4 6 &&
        no_litter beside/checkpoints iter_000000{2,4,6} latest_checkpointed_iteration.txt
}

@test "training goes on beside a save, which appears when it is whole" {
    inject_or_skip
    s2s-train -j1 -q r.yaml run=waited
    touch held
    # behind recipe.yaml and its name, the tensors of step 2 are what is synced first
    S2S_INJECT=fsync:3:HOLD S2S_INJECT_HOLD=$PWD/held LD_PRELOAD=$INJECT s2s-train -j1 -q r.yaml run=beside checkpoint.async_save=true 3>&- &
    run=$!
    for _ in $(seq 400); do
        [ "$(tail -n 1 beside/log.jsonl 2>/dev/null | grep -c '"step": 4,')" = 0 ] || break
        sleep 0.02
    done
    no_litter beside/checkpoints iter_0000002.tmp
    sleep 0.2
    # the next save waits for the one before
    [ "$(log beside | tail -n 1 | cut -d' ' -f1)" = 4 ]
    rm held
    wait $run
    alike "$(log waited)" "$(log beside)"
    equal waited beside 2 4 6
    no_litter beside/checkpoints iter_000000{2,4,6} latest_checkpointed_iteration.txt
    # older ones go, and a run goes on from the last
    s2s-train -j1 -q r.yaml run=beside checkpoint.async_save=true checkpoint.keep=2 train.steps=8
    s2s-train -j1 -q r.yaml run=waited train.steps=8
    equal waited beside 6 8
    no_litter beside/checkpoints iter_000000{6,8} latest_checkpointed_iteration.txt
}

@test "what two ranks divide is written beside training as it was" {
    inject_or_skip
    both 2 mesh.dp=2 mesh.data_parallel_sharding_strategy=optim train.precision=bf16-mixed
}

@test "long: whoever holds what: it is written beside training as it was" {
    inject_or_skip
    both 1
    both 2 mesh.dp=2
    both 2 mesh.dp=2 mesh.data_parallel_sharding_strategy=optim
    both 2 mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params
    both 2 mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params train.precision=bf16-mixed
    both 2 mesh.tp=2
    both 2 mesh.tp=2 train.precision=bf16-mixed model.llm.freeze=false
    both 2 mesh.pp=2
    both 4 mesh.tp=2 mesh.pp=2
}

@test "a writer that fails ends the run of all ranks with one message, and leaves nothing of its checkpoint" {
    inject_or_skip
    # the second rank's disk is full: its own file is the first that it syncs
    cat >rank.sh <<'SH'
[ "${OMPI_COMM_WORLD_RANK-$PMI_RANK}" = 0 ] || export S2S_INJECT=fsync:1:ENOSPC LD_PRELOAD=$INJECT
exec s2s-train -j1 -q r.yaml mesh.dp=2 checkpoint.async_save=true
SH
    exits 1 mpirun_n 2 bash rank.sh
    says "[rank 1]: "
    says "checkpoint of step 2: "
    says "__1_0.distcp: "
    says "No space left on device"
    [ "$(grep -c 'No space left' <<<"$output")" = 1 ]
    no_litter run/checkpoints
    # of one process, as its save before it is there
    with_fault fsync:14:EIO s2s-train -j1 -q r.yaml run=one checkpoint.async_save=true
    [ "$status" -eq 1 ]
    [ $fired = 1 ]
    says "checkpoint of step 4: "
    no_litter one/checkpoints iter_0000002 latest_checkpointed_iteration.txt
}

@test "a signal waits for what is being written, and saves what came after it" {
    inject_or_skip
    touch held # the save of step 60 waits for that of step 30, so there are steps enough when the signal comes
    S2S_INJECT=fsync:3:HOLD S2S_INJECT_HOLD=$PWD/held LD_PRELOAD=$INJECT s2s-train -j1 r.yaml train.steps=1000 checkpoint.every=30 checkpoint.async_save=true 3>&- 2>said &
    run=$!
    for _ in $(seq 400); do
        [ "$(tail -n 1 run/log.jsonl 2>/dev/null | grep -c '"step": 3[0-9],')" = 0 ] || break
        sleep 0.02
    done
    kill -TERM $run
    sleep 0.1
    no_litter run/checkpoints iter_0000030.tmp
    rm held
    status=0
    wait $run || status=$?
    [ "$status" -eq 1 ]
    last=$(log run | tail -n 1 | cut -d' ' -f1)
    grep -q "interrupted after step $last" said
    [ -d run/checkpoints/iter_0000030 ]
    [ "$(cat run/checkpoints/latest_checkpointed_iteration.txt)" = "$last" ]
    until=$((last + 5))
    s2s-train -j1 -q r.yaml train.steps=$until checkpoint.every=30 checkpoint.async_save=true
    s2s-train -j1 -q r.yaml run=waited train.steps=$until checkpoint.every=30
    alike "$(log waited)" "$(log run)"
    equal waited run 30 $until
}

@test "plan tells the memory of the copy, which is what a rank writes" {
    s2s-train -j1 -q r.yaml
    s2s-train plan --json r.yaml checkpoint.async_save=true >plan.json
    s2s-ckpt ls --json run/checkpoints >ls.json
    python3 - <<'PY'
import json
from math import prod
written = sum(4 * prod(t["shape"]) for t in json.load(open("ls.json"))["tensors"])
told = json.load(open("plan.json"))["save_bytes"]
assert told == written > 0, (told, written)
PY
    exits 0 s2s-train plan r.yaml mesh.dp=2 mesh.data_parallel_sharding_strategy=optim checkpoint.async_save=true
    says "copy for a checkpoint"
    exits 0 s2s-train plan r.yaml
    says_not "copy for a checkpoint"
}
