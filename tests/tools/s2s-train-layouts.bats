# A run goes on, on any other layout of ranks: it holds the bits that were saved, and learns what one process would have.
load common
load train

# Steps come in pairs: of the first no slot has a label, so that nothing is learned and what was loaded is what is saved again; the second
# one learns.
setup_tool() {
    tiny_model '' 2 1 99
    sed -i 's/eps: 1.0e-8/eps: 1.0e-3/; s/warmup_steps: 2/warmup_steps: 0/; s/packs_per_step: 4/packs_per_step: 12/; s/train: \[t.s2s\]/train: [train0.s2s, train1.s2s], shuffle: false/' r.yaml
    sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 4/' llm.json
    sed '/^model:/d' r.yaml >p.yaml
    local mask
    for mask in 0 1; do
        python3 - $mask >rows.jsonl <<'PY'
import json, sys
for i in range(24):
    print(json.dumps({"id": f"p{i}", "input_ids": [(5 * i + 3 * k) % 60 + 1 for k in range(30)], "loss_mask": [int(sys.argv[1])] * 30}))
PY
        s2s-pack -q --ids rows.jsonl --tokens 64 -o train$mask.s2s
    done
    optim="mesh.data_parallel_sharding_strategy=optim mesh.bucket_mb=0.01"
    all="mesh.data_parallel_sharding_strategy=optim_grads_params"
}

# chain RECIPE..: each line a layout, which goes on where the one before stopped
chain() {
    local mesh key ranks at=0 n=0
    while read -ra mesh; do
        ranks=1
        for key in "${mesh[@]}"; do
            case $key in mesh.tp=* | mesh.cp=* | mesh.dp=* | mesh.pp=*) ranks=$((ranks * ${key#*=})) ;; esac
        done
        at=$((at + 2))
        if [ $ranks -eq 1 ]; then
            s2s-train -q -j1 "$@" run=run train.steps=$at </dev/null || return 1
        else
            mpirun_n $ranks s2s-train -q -j1 "$@" run=run train.steps=$at "${mesh[@]}" </dev/null || return 1
        fi
        # who loaded it holds the bits of who saved it; each rank wrote a share
        if [ $n -gt 0 ] && ! alike "$(bits run $((at - 2)))" "$(bits run $((at - 1)))"; then
            echo "loaded by ${mesh[*]}" >&2
            return 1
        fi
        [ "$(ls run/checkpoints/"$(printf 'iter_%07d' $at)"/__*_0.distcp | wc -l)" -eq $ranks ]
        n=$((n + 1))
    done
    [ $n -gt 1 ]
    s2s-train -q -j1 "$@" run=one train.steps=$at
    python3 "$ROOT/tests/tools/mesh_equal.py" one run
    s2s-ckpt verify -q run/checkpoints
}

@test "from one process to ranks that divide the optimizer, the layers, the tokens, everything, and back" {
    chain r.yaml <<LINES
mesh.dp=1
mesh.dp=4 $optim
mesh.pp=2 mesh.tp=2 mesh.sequence_parallel=true
mesh.dp=3 $all
mesh.cp=2 mesh.dp=2 $optim
mesh.pp=4
mesh.dp=1
LINES
}

@test "experts go from rank to rank" {
    chain p.yaml "model.path=$ROOT/tests/oracle/models/qwen3_moe" <<LINES
mesh.dp=2 mesh.ep=2
mesh.tp=2 mesh.dp=2 mesh.ep=4 mesh.etp=1 mesh.sequence_parallel=true $optim
mesh.dp=2 $all
mesh.dp=4 mesh.ep=2 $all
mesh.pp=2 mesh.dp=2 mesh.ep=2 $all
LINES
}

@test "long: twelve layouts of a decoder whose output layer is the embedding" {
    chain r.yaml <<LINES
mesh.tp=2
mesh.dp=2 $all
mesh.pp=2 mesh.vpp=2
mesh.dp=2 $optim
mesh.cp=2
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true $all
mesh.dp=3 $optim
mesh.pp=4
mesh.tp=4 mesh.sequence_parallel=true
mesh.pp=2 mesh.dp=2 $optim
mesh.pp=2 mesh.dp=2 $all
mesh.dp=4 $all
LINES
}

@test "long: ten layouts of a vocabulary that does not divide, with an output layer of its own" {
    chain p.yaml "model.path=$ROOT/tests/oracle/models/llama_gqa_untied" <<LINES
mesh.dp=4 $all
mesh.tp=2 mesh.cp=2 mesh.sequence_parallel=true
mesh.pp=2
mesh.dp=3 $all
mesh.dp=1
mesh.cp=2 mesh.cp_comm=p2p
mesh.tp=2 mesh.dp=2 $optim
mesh.dp=2
mesh.cp=2 mesh.dp=2 $all
mesh.pp=2 mesh.tp=2
mesh.dp=1
LINES
}

@test "long: eight layouts of a mixture of experts" {
    chain p.yaml "model.path=$ROOT/tests/oracle/models/mixtral" optimizer.lr=2e-3 <<LINES
mesh.tp=2
mesh.dp=4 mesh.ep=4 $optim
mesh.pp=2 mesh.dp=2 mesh.ep=2
mesh.tp=2 mesh.ep=2 mesh.etp=1 mesh.sequence_parallel=true
mesh.dp=3 $all
mesh.tp=2 mesh.dp=2 mesh.ep=2
mesh.cp=2 mesh.ep=2
mesh.dp=1
mesh.dp=2 mesh.ep=2 $optim
LINES
}
