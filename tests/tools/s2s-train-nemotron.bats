# Nemotron-H: what its config.json and files may say, and what a run makes of it.
load common
load train

setup_tool() {
    M=$ROOT/tests/oracle/models/nemotron_h
    tiny_model '' 3 3 1
    grep -v '^model:' r.yaml >p.yaml
}

probe() {
    s2s-train probe --model "$1" --inputs "$M/inputs.safetensors" --out "$2" -j1
}

@test "a letter a layer, and the words of older files, are the list of layers" {
    probe "$M" list
    mkdir letters words
    ln -s "$M/model.safetensors" letters
    ln -s "$M/model.safetensors" words
    # as NVIDIA's own files have it, Infinity and a number of layers that has no say too
    jq 'del(.layers_block_type) | .hybrid_override_pattern = "ME*-ME" | .num_hidden_layers = 52' "$M/config.json" | sed 's/"time_step_limit": \[/&0.0, Infinity], "x": [/' >letters/config.json
    jq '.layers_block_type = ["mamba", "moe", "attention", "mlp", "mamba", "moe"]' "$M/config.json" >words/config.json
    probe letters letters.out
    probe words words.out
    same list letters.out
    same list words.out
}

@test "layers that predict further tokens are left out, and the config that is kept says so" {
    mkdir m
    jq '.num_nextn_predict_layers = 1' "$M/config.json" >m/config.json
    python3 - "$M/model.safetensors" m/model.safetensors <<'PY'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
(n,) = struct.unpack("<Q", data[:8])
head, body = json.loads(data[8:8 + n]), data[8 + n:]
for name in ("mtp.layers.0.norm.weight", "mtp.layers.0.mixer.q_proj.weight"):
    head[name] = {"dtype": "F32", "shape": [2], "data_offsets": [len(body), len(body) + 8]}
    body += bytes(8)
text = json.dumps(head).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + body)
PY
    exits 0 probe m with
    says "2 tensors mtp.* are left out"
    says_not "not used"
    probe "$M" without
    same with without
    exits 0 s2s-train -q -j1 p.yaml model.path=m train.steps=1
    s2s-ckpt convert -q --to hf run/checkpoints/iter_0000001 out
    [ "$(jq .num_nextn_predict_layers out/config.json)" = 0 ]
}

@test "a probe clamps steps as transformers does, a run where it is asked to" {
    cp -r "$M" free
    jq '.time_step_min = 1e-30' "$M/config.json" >free/config.json
    probe "$M" clamped
    probe free free.out
    not cmp -s clamped free.out
    for how in false true; do
        s2s-train -q -j1 p.yaml model.path="$M" model.time_step_clamp=$how run=$how
        s2s-train -q -j1 p.yaml model.path=free model.time_step_clamp=$how run=free$how
    done
    # without a clamp the config has no say, and the one that is kept has none
    for run in false true freefalse freetrue; do log $run >$run.log; done
    same false.log freefalse.log
    same false.log freetrue.log
    not cmp -s false.log true.log
    s2s-ckpt convert -q --to hf false/checkpoints/iter_0000003 out
    [ "$(jq .time_step_min out/config.json)" = 1e-30 ]
    s2s-ckpt convert -q --to hf true/checkpoints/iter_0000003 kept
    [ "$(jq .time_step_min kept/config.json)" = 0.001 ]
}

@test "what would be another model is refused at its place" {
    refuses() { # FILTER WORDS..
        local filter=$1
        shift
        jq "$filter" "$M/config.json" >other.json
        exits 1 s2s-train -q p.yaml model.llm.config=other.json
        says "other.json"
        for word in "$@"; do says "$word"; done
    }
    refuses '.layers_block_type[3] = "gru"' 'layers_block_type[3]' 'layer 3 is "gru"'
    refuses 'del(.layers_block_type)' "layers_block_type"
    refuses 'del(.layers_block_type) | .hybrid_override_pattern = "MX"' "layer 1 is 'X'"
    refuses '.sliding_window = 4' "sliding_window"
    refuses '.n_group = 3' "n_group" "8 experts cannot form 3 groups"
    refuses '.topk_group = 1' "topk_group" "fewer than the 3 that are chosen"
    refuses '.moe_gating_noise = 1' "moe_gating_noise"
    refuses '.n_groups = 4' "n_groups" "6 heads of Mamba layers cannot form 4 groups"
    refuses '.mamba_hidden_act = "gelu"' "mamba_hidden_act"
}
