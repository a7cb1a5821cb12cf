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

@test "biases of routers move after each step, are saved, and go on as they were" {
    rate=train.moe_router_bias_update_rate=1e-2
    s2s-train -q -j1 p.yaml model.path="$M" run=one train.steps=4 $rate
    s2s-train -q -j1 p.yaml model.path="$M" run=two train.steps=2 $rate
    s2s-train -q -j1 p.yaml model.path="$M" run=two train.steps=4 $rate train.recompute=true
    bits one 4 >one.bits
    bits two 4 >two.bits
    same one.bits two.bits
    s2s-ckpt convert -q --to safetensors one/checkpoints/iter_0000004 one.safetensors
    python3 - "$M/model.safetensors" one.safetensors <<'PY'
import json, struct, sys

def biases(path):
    data = open(path, "rb").read()
    (n,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8:8 + n])
    return {k: struct.unpack("<8f", data[8 + n:][slice(*t["data_offsets"])]) for k, t in head.items() if k.endswith("bias") and "gate" in k}

old, new = (biases(path) for path in sys.argv[1:])
assert len(old) == len(new) == 2
for name in old:
    moves = [(b - a) / 1e-2 for a, b in zip(old[name], new[name])]
    # four steps of the rate, up, down or, where the load is the mean, not at all
    assert all(abs(m - round(m)) < 1e-4 and abs(m) < 4.5 for m in moves) and any(moves), moves
PY
    # frozen, or without the key, they stay
    s2s-train -q -j1 p.yaml model.path="$M" run=frozen train.steps=1 $rate 'model.freeze=["*score_correction*"]'
    s2s-train -q -j1 p.yaml model.path="$M" run=without train.steps=1
    for run in frozen without; do
        s2s-ckpt diff $run/checkpoints "$M" >diff 2>/dev/null || true
        [ -s diff ]
        not grep score_correction diff
    done
    exits 1 s2s-train -q -j1 p.yaml model.path="$ROOT/tests/oracle/models/mixtral" run=no $rate
    says "whose routers have no bias"
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
