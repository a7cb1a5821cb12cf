# Adapters of s2s-train: what is trained and kept, what goes out and in again. tests/oracle/models/check_lora.py holds them against PEFT.
load common
load train

setup_tool() {
    tiny_model 'seen: t.s2s' 0 5 2
    # a model with weights of its own
    s2s-train r.yaml -q -j1 run=base
    s2s-ckpt convert -q base/checkpoints --to hf -o model
    sed 's/^model:.*/model: {path: model, lora: {rank: 4, alpha: 16}}/; s/steps: 0/steps: 10/; s/warmup_steps: 2/warmup_steps: 0/' r.yaml >l.yaml
}

s2s-train() {
    command s2s-train "$@" -j1
}

# loss ARGS...: of the data set, by s2s-train eval
loss() {
    s2s-train eval "$@" --json | python3 -c 'import json, sys; print("%.6f" % json.load(sys.stdin)["sets"][0]["loss"])'
}

names() {
    s2s-ckpt ls --json "$1" | python3 -c 'import json, sys; print(*(t["name"] for t in json.load(sys.stdin)["tensors"]), sep="\n")'
}

@test "adapters alone are trained and kept, over a base that is known again" {
    s2s-train l.yaml -q
    # two matrices of seven maps in two layers, and their moments
    [ "$(names run/checkpoints | grep -vc optimizer)" -eq 28 ]
    [ "$(names run/checkpoints | grep -c optimizer)" -eq 56 ]
    [ "$(names run/checkpoints | grep -vc lora_)" -eq 0 ]
    # a run that was stopped goes on to the same bytes, with the base where it is now
    s2s-train l.yaml -q run=two train.steps=4
    cp -r model moved
    s2s-train l.yaml -q run=two model.path=moved
    alike "$(bits run 10)" "$(bits two 10)"
    echo >>moved/config.json
    exits 1 s2s-train l.yaml -q run=two model.path=moved train.steps=12
    says "moved/config.json is not the file that the adapters of the checkpoint were trained over"
    says "give the model that the run began with"
    # the base itself is as it was, and a parameter that is trained beside adapters is kept too
    s2s-train l.yaml -q run=norms 'model.unfreeze=["*norm*"]'
    [ "$(names norms/checkpoints | grep -v optimizer | grep -vc lora_)" -eq 5 ]
    # nothing of the base in fp32 has a gradient or moments
    s2s-train plan l.yaml --json >plan.json
    python3 - <<'PY'
import json
p = json.load(open("plan.json"))
n = 2 * 4 * ((32 + 32) * 2 + (32 + 16) * 2 + (32 + 64) * 3)
assert p["trained_parameters"] == n and p["memory"]["gradients"] == 4 * n and 0 <= p["memory"]["optimizer"] - 8 * n < 200, p
PY
}

@test "a PEFT folder of a run, and the merged model, say what the run says; the folder begins another" {
    s2s-train l.yaml -q 'model.lora={rank: 4, alpha: 16, targets: ["*.v_proj", "*layers.1.mlp.up_proj"]}'
    lora='model.lora={rank: 4, alpha: 16, targets: ["*.v_proj", "*layers.1.mlp.up_proj"]}'
    want=$(loss l.yaml "$lora")
    [ "$want" != "$(loss r.yaml run=base)" ]
    s2s-train export l.yaml "$lora" -o adapter
    s2s-train export l.yaml "$lora" --merge -o merged
    [ "$(names merged | grep -c lora_)" -eq 0 ]
    alike "$(loss l.yaml model.lora=null --checkpoint merged)" "$want"
    s2s-ckpt convert -q merged --to hf -o whole
    s2s-train l.yaml -q 'model={path: whole}' run=whole train.steps=0
    alike "$(loss l.yaml 'model={path: whole}' run=whole)" "$want"
    python3 - <<'PY'
import json
c = json.load(open("adapter/adapter_config.json"))
assert c["r"] == 4 and c["lora_alpha"] == 16 and c["base_model_name_or_path"] == "model", c
assert sorted(c["target_modules"]) == ["model.layers.1.mlp.up_proj", "v_proj"], c
PY
    names adapter/adapter_model.safetensors >names
    [ "$(wc -l <names)" -eq 6 ]
    grep -qx base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight names
    # begun from the folder, before any step
    s2s-train l.yaml -q run=again 'model.lora={path: adapter}' train.steps=0
    alike "$(loss l.yaml 'model.lora={path: adapter}' run=again)" "$want"
    # a checkpoint of adapters is no whole model
    exits 1 s2s-train generate --checkpoint run/checkpoints --prompt 1 --tokenizer "$ROOT/tests/oracle/tokenizer/tokenizer.json"
    says "it holds what was trained beside adapters, not the whole model"
    says "s2s-train export --merge makes a checkpoint of both"
}

@test "adapters that say nonsense are refused at their place" {
    for line in "model.lora={rank: 0}|model.lora.rank" "model.lora={alpha: 0}|expected a number above 0, found 0" \
        "model.lora={targets: [none]}|no linear map's name matches 'none'" "model.lora={path: nowhere}|nowhere/adapter_config.json" \
        "model.lora={path: odd, rank: 3}|the folder at path says it" "model.lora={path: odd}|odd/adapter_config.json:1:35: use_dora" \
        "model.lora={path: other}|base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight"; do
        mkdir -p odd other
        echo '{"peft_type": "LORA", "use_dora": true, "target_modules": ["v_proj"]}' >odd/adapter_config.json
        echo '{"peft_type": "LORA", "r": 3, "target_modules": ["v_proj"]}' >other/adapter_config.json
        [ -e other/adapter_model.safetensors ] || {
            s2s-train l.yaml -q run=v train.steps=0 'model.lora={rank: 4, targets: ["*.v_proj"]}'
            s2s-train export l.yaml run=v 'model.lora={rank: 4, targets: ["*.v_proj"]}' -o v
            cp v/adapter_model.safetensors other
        }
        IFS='|' read -r what text <<<"$line"
        run s2s-train l.yaml run=no "$what"
        [ "$status" -ne 0 ]
        rm -rf no
        says "$text"
    done
    # a dropout that the folder names is that of training, unless the recipe says another one
    sed -i 's/"lora_dropout": 0.0/"lora_dropout": 0.5/' v/adapter_config.json
    s2s-train -q l.yaml run=dropped train.steps=2 'model.lora={path: v}'
    s2s-train -q l.yaml run=whole train.steps=2 'model.lora={path: v, dropout: 0}'
    [ "$(log whole)" != "$(log dropped)" ]
    s2s-train export l.yaml run=dropped 'model.lora={path: v}' -o out
    [ "$(jq .lora_dropout out/adapter_config.json)" = 0.5 ]
    exits 1 s2s-train export r.yaml -o no
    says "the recipe has no adapters"
    exits 1 s2s-train export l.yaml run=none -o no
    says "no checkpoint"
    [ ! -e no ]
}
