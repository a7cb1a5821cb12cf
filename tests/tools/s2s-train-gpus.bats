# Several ranks with device: cuda, without a GPU: each has an emulated one, and NCCL is tests/emu/nccl_host.c. What is told of them is in links_test.c, too.
load common
load train

setup_tool() {
    for name in equal s2s-train_on speech; do
        eval "$(sed -n "/^$name()/,/^}/p" "$ROOT/tests/tools/s2s-train-mesh.bats")"
    done
    tiny_model '' 2 5 1
    sed -i 's/eps: 1.0e-8/eps: 1.0e-3/; s/warmup_steps: 2/warmup_steps: 0/; s/packs_per_step: 4/packs_per_step: 2/' r.yaml
    echo 'device: cuda' >>r.yaml
    # the emulation takes a hundred times as long as a CPU
    sed -i 's/"hidden_size": 32/"hidden_size": 16/; s/"intermediate_size": 64/"intermediate_size": 24/' llm.json
    s2s-pack -q --ids ids.jsonl --tokens 40 -o t.s2s
    local built=$BUILD
    case $built in /*) ;; *) built=$ROOT/$built ;; esac
    # what is started is done late: who does not wait for it reads too early
    export S2S_CUDA=$built/libs2s-emu.so S2S_NCCL=$built/libnccl-host.so S2S_EMU_LATE_MS=2
}

@test "several emulated GPUs train what one does" {
    equal <<'LINES'
mesh.tp=2 mesh.sequence_parallel=true | r.yaml
mesh.dp=2 mesh.bucket_mb=0.002 | r.yaml
LINES
}

@test "long: several emulated GPUs train what one does, along each axis" {
    equal <<'LINES'
mesh.tp=2 | r.yaml
mesh.cp=2 | r.yaml
mesh.cp=2 mesh.cp_comm=a2a | r.yaml
mesh.cp=2 mesh.cp_comm=p2p | r.yaml train.recompute=true
mesh.pp=2 | r.yaml
mesh.dp=2 mesh.data_parallel_sharding_strategy=optim mesh.bucket_mb=0.002 | r.yaml
mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params | r.yaml
mesh.pp=2 mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params | r.yaml
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true mesh.data_parallel_sharding_strategy=optim | r.yaml
mesh.pp=2 mesh.dp=2 | r.yaml
mesh.tp=2 mesh.pp=2 mesh.dp=2 | r.yaml
LINES
}

@test "long: several emulated GPUs train experts" {
    grep -v '^model:' r.yaml >p.yaml
    equal <<'LINES'
mesh.dp=2 mesh.ep=2 | p.yaml model.path=MODELS/qwen3_moe
mesh.dp=4 mesh.ep=2 mesh.data_parallel_sharding_strategy=optim_grads_params | p.yaml model.path=MODELS/qwen3_moe train.packs_per_step=4
mesh.tp=2 mesh.sequence_parallel=true mesh.ep=2 mesh.etp=1 | p.yaml model.path=MODELS/mixtral
LINES
}

@test "long: several emulated GPUs train speech" {
    speech
    equal <<'LINES'
mesh.tp=2 mesh.sequence_parallel=true | s.yaml device=cuda train.steps=2
LINES
}

@test "several emulated GPUs work in BF16" {
    s2s-train_on 1 r.yaml run=one train.precision=bf16-mixed
    for mesh in mesh.tp=2 "mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params"; do
        rm -rf two
        # shellcheck disable=SC2086
        s2s-train_on 2 r.yaml run=two train.precision=bf16-mixed $mesh
        paste -d' ' <(log one) <(log two) | awk '
            function far(a, b) { return (a > b ? a - b : b - a) > 1e-2 * a }
            $1 != $7 || far($4, $10) || far($5, $11) { print "differs: " $0; bad = 1 }
            END { exit bad || NR != 2 }'
    done
}

# one_says TEXT: of all ranks one says this, and nobody says more
one_says() {
    says "$1"
    [ "$(grep -c '^s2s-train\[' <<<"$output")" -eq 1 ] || { echo "$output" && return 1; }
}

@test "an operation between GPUs that fails ends all ranks, and is named once" {
    # in the queue of the computation, and beside it
    S2S_NCCL_FAULT="fails 1 6" exits 1 mpirun_n 2 s2s-train -q -j1 r.yaml mesh.tp=2
    one_says "s2s-train[1]: step 1: forward: all_gather over main/tp: NCCL: system error: it was told to fail"
    S2S_NCCL_FAULT="fails 1 2" exits 1 mpirun_n 2 s2s-train -q -j1 r.yaml mesh.dp=2
    one_says "all_reduce over main/dp: NCCL: system error: it was told to fail"
    # ranks that are in different operations
    S2S_NCCL_FAULT="errs 1 6" exits 1 mpirun_n 2 s2s-train -q -j1 r.yaml mesh.tp=2
    one_says "rank 0 is in AllGather of "
}

@test "an operation between GPUs that one rank never comes to ends within the limit" {
    for how in "0 6|mesh.tp=2|main/tp" "1 2|mesh.dp=2|main/dp"; do
        IFS='|' read -r fault mesh over <<<"$how"
        begin=$SECONDS
        S2S_NCCL_FAULT="sleeps $fault" exits 1 mpirun_n 2 s2s-train -q -j1 r.yaml "$mesh" mesh.timeout_s=2
        [ $((SECONDS - begin)) -lt 20 ]
        one_says "over $over ("
        says "is not complete after 2 s"
    done
}

@test "ranks that cannot have a GPU each, or have no NCCL, are refused before a step" {
    S2S_EMU_DEVICES=1 exits 1 mpirun_n 2 s2s-train -q -j1 r.yaml mesh.dp=2
    says "[rank 0]: ranks 0 and 1 on $(hostname) have one GPU, emulated:0; start as many ranks on a host as it has GPUs"
    S2S_NCCL=$PWD/absent.so exits 1 mpirun_n 2 s2s-train -q -j1 r.yaml mesh.dp=2
    says "need NCCL: S2S_NCCL: $PWD/absent.so: cannot open"
    [ ! -e run/checkpoints ]
}
