# A mesh trains what one process trains: losses, norms, weights and moments, to the round-off of sums in another order.
load common
load train

setup_tool() {
    tiny_model '' 5 5 1
    sed -i 's/eps: 1.0e-8/eps: 1.0e-3/; s/warmup_steps: 2/warmup_steps: 0/' r.yaml
    grep -v '^model:' r.yaml >p.yaml
    # packs of odd lengths
    s2s-pack -q --ids ids.jsonl --tokens 61 -o odd.s2s
    # packs of one row, of which every other has no label
    python3 - >mute.jsonl <<'PY'
import json
for i in range(10):
    print(json.dumps({"id": f"m{i}", "input_ids": [(i + 3 * k) % 60 + 1 for k in range(30)], "loss_mask": [i % 2] * 30}))
PY
    s2s-pack -q --ids mute.jsonl --tokens 45 -o mute.s2s
    # every bias that a decoder may have
    sed 's/"hidden_act"/"attention_bias": true, "mlp_bias": true, &/' llm.json >bias.json
}

speech() {
    eval "$(sed -n '/^make_speech()/,/^}/p' "$ROOT/tests/tools/s2s-train.bats")"
    make_speech
    sed -i 's/weight_decay: 0.1/&, eps: 1.0e-3/; s/warmup_steps: 10/warmup_steps: 0/; s/{steps: 150/{steps: 5/; s/eval: {[^}]*}, //' s.yaml
}

# s2s-train_on RANKS ARGS...: one thread a rank; one rank is no launch
s2s-train_on() {
    local n=$1
    shift
    if [ "$n" -eq 1 ]; then s2s-train -q -j1 "$@"; else mpirun_n "$n" s2s-train -q -j1 "$@" </dev/null; fi
}

# equal: lines of `MESH | RECIPE and what is changed in it`; the mesh and one process learn the same
equal() {
    local mesh how key value ranks one lines i=0
    while IFS='|' read -r mesh how; do
        read -ra mesh <<<"$mesh"
        read -ra how <<<"$how"
        how=("${how[@]//MODELS/$ROOT/tests/oracle/models}")
        ranks=1
        for key in "${mesh[@]}"; do
            value=${key##*=}
            case $key in mesh.sequence_parallel=*) ;; *) ranks=$((ranks * value)) ;; esac
        done
        one=one.$(md5sum <<<"${how[*]}" | cut -c1-8)
        [ -d "$one" ] || s2s-train_on 1 "${how[@]}" run="$one"
        i=$((i + 1))
        s2s-train_on $ranks "${how[@]}" "${mesh[@]}" run=mesh$i
        python3 "$ROOT/tests/tools/mesh_equal.py" "$one" mesh$i || {
            echo "${mesh[*]} of ${how[*]}"
            return 1
        }
    done
    [ $i -gt 0 ]
}

@test "tp: a decoder on two and four ranks, sequences whole and cut, learns as one process" {
    equal <<'LINES'
mesh.tp=2 | r.yaml
mesh.tp=2 mesh.sequence_parallel=true | r.yaml data.train=[odd.s2s] train.packs_per_microbatch=2
mesh.tp=4 mesh.sequence_parallel=true | r.yaml train.recompute=true
mesh.tp=2 mesh.dp=2 | r.yaml
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true | r.yaml data.train=[mute.s2s] data.shuffle=false train.packs_per_step=2
mesh.tp=2 | r.yaml model.llm.config=bias.json
mesh.tp=4 mesh.sequence_parallel=true | r.yaml model.llm.config=bias.json data.train=[odd.s2s]
LINES
}

@test "tp: other families, vocabularies that do not divide, more ranks than key-value heads" {
    equal <<'LINES'
mesh.tp=2 mesh.sequence_parallel=true | p.yaml model.path=MODELS/llama_gqa_untied
mesh.tp=4 | p.yaml model.path=MODELS/qwen3
mesh.tp=4 mesh.sequence_parallel=true | p.yaml model.path=MODELS/gemma1
LINES
}

@test "tp: parts that are frozen, and what is trained below them" {
    equal <<'LINES'
mesh.tp=2 mesh.sequence_parallel=true | r.yaml model.freeze=["*.mlp.*","*.norm.weight"]
mesh.tp=2 | r.yaml model.freeze=["*embed*","*layers.0.*"]
mesh.tp=4 mesh.sequence_parallel=true | r.yaml model.llm.config=bias.json model.freeze=["*weight"]
LINES
}

@test "tp: sound goes through an encoder that is cut, too" {
    speech
    equal <<'LINES'
mesh.tp=2 | s.yaml
mesh.tp=2 mesh.sequence_parallel=true | s.yaml model.encoder.batch_norm=batch train.packs_per_microbatch=2
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true | s.yaml model.llm.freeze=true train.recompute=true
LINES
}

@test "dp: ranks that divide the optimizer, each part of the model or of the tokens by itself" {
    divided="mesh.data_parallel_sharding_strategy=optim mesh.bucket_mb=0.01"
    equal <<LINES
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true | r.yaml $divided train.recompute=true
mesh.cp=2 mesh.dp=2 | r.yaml $divided
mesh.pp=2 mesh.dp=2 | r.yaml $divided
LINES
}
