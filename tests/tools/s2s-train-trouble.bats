# Steps whose loss or gradient is no number, or far from what is usual: who is named, what is skipped, on any mesh.
load common
load train

# poison KIND: the model's first dimension is that of token 62 alone, and nothing adds to it. KIND says what it does to who has it:
# "loss": the MLP of the second layer overflows; "gradient": a product in its backward does; "value": the embedding itself is NaN
poison() {
    rm -rf "$1"
    cp -r model "$1"
    python3 - "$1" <<'PY'
import json, struct, sys
import numpy as np
kind = sys.argv[1]
path = kind + "/model.safetensors"
data = bytearray(open(path, "rb").read())
n = struct.unpack("<Q", data[:8])[0]
head = json.loads(data[8:8 + n])
def tensor(name):
    begin, end = head[name]["data_offsets"]
    return np.frombuffer(data, dtype="<f4", count=(end - begin) // 4, offset=8 + n + begin).reshape(head[name]["shape"])
embed = tensor("model.embed_tokens.weight")
if kind == "value":
    embed[62, 3] = np.nan
    open(path, "wb").write(data)
    sys.exit()
embed[:, 0] = 0
embed[62] = 0
embed[62, 0] = 1
for layer in 0, 1:
    for name in "self_attn.o_proj", "mlp.down_proj":
        tensor(f"model.layers.{layer}.{name}.weight")[0] = 0
up, gate, down = (tensor(f"model.layers.1.mlp.{x}_proj.weight") for x in ("up", "gate", "down"))
if kind == "loss":
    up[:, 0] = gate[:, 0] = 3e38
else:
    up[5, 0] = 1e37
    down[:, 5] = 0
    tensor("model.norm.weight")[:] = 1e6
open(path, "wb").write(data)
PY
}

setup_tool() {
    tiny_model '' 5 0 2
    # u14 is in the second step, and has 62 in its middle
    python3 - <<'PY'
import json
rows = [json.loads(line) for line in open("ids.jsonl")]
rows[14]["input_ids"][1] = 62
for name, keep in ("ids.jsonl", range(40)), ("clean.jsonl", [i for i in range(40) if i // 8 != 1]):
    with open(name, "w") as f:
        f.writelines(json.dumps(rows[i]) + "\n" for i in keep)
PY
    s2s-pack -q --ids ids.jsonl --batch-size 2 -o t.s2s
    s2s-pack -q --ids clean.jsonl --batch-size 2 -o clean.s2s
    sed -i 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' llm.json
    s2s-train -q -j1 r.yaml run=first train.steps=1
    s2s-ckpt convert -q --to hf first/checkpoints model
    how=(r.yaml data.shuffle=false data.eval=null schedule.name=constant schedule.warmup_steps=0 model.llm.config=null
        "optimizer.groups=[{match: '*embed*', lr_mult: 0}, {match: '*o_proj*', lr_mult: 0}, {match: '*down_proj*', lr_mult: 0}]")
}

# on RANKS ARGS...: one thread a rank
on() {
    local n=$1
    shift
    if [ "$n" -eq 1 ]; then command s2s-train -j1 "$@"; else mpirun_n "$n" s2s-train -j1 "$@" </dev/null; fi
}

# trouble RUN: what the log has of it
trouble() {
    python3 -c '
import json, sys
for line in open(sys.argv[1] + "/log.jsonl"):
    r = json.loads(line)
    if "trouble" in r:
        t = r["trouble"]
        print(r["step"], r["loss"] is None, r["grad_norm"] is None, t["kind"], t["answer"], t["bad_samples"], "mlp" in t["where"],
              *(s["id"] + " of " + s["record"] for s in t["samples"]))' "$1"
}

meshes='1 | mesh.dp=1
2 | mesh.dp=2
2 | mesh.tp=2
2 | mesh.pp=2
2 | mesh.cp=2
2 | mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params
4 | mesh.pp=2 mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params
1 | train.packs_per_microbatch=2'

@test "a sample whose loss is NaN is named, with its record and layer, on one process and on any mesh" {
    poison loss
    while IFS='|' read -r n mesh; do
        rm -rf bad
        # shellcheck disable=SC2086
        exits 1 on $n "${how[@]}" run=bad model.llm.path=loss $mesh
        says "step 2: loss "
        says "the first NaN or Inf is in model.layers.1.mlp"
        says "it is in samples u14 of t.s2s: record 7"
        says_not "u15"
        alike "$(trouble bad)" "2 True True nan stop 1 True u14 of t.s2s: record 7"
    done <<<"$meshes"
}

@test "a sample whose gradient alone is no number is found among all of the step" {
    poison gradient
    while IFS='|' read -r n mesh; do
        rm -rf bad
        # shellcheck disable=SC2086
        exits 1 on $n "${how[@]}" run=bad model.llm.path=gradient $mesh
        says "step 2: gradient norm "
        says "the first NaN or Inf of the backward is in the gradient of model.layers.1.mlp.down_proj.weight"
        says "it is in samples u14 of t.s2s: record 7"
        alike "$(trouble bad)" "2 False True nan stop 1 True u14 of t.s2s: record 7"
    done <<<"$meshes"
}

@test "a step that is skipped leaves weights and moments as if its packs had not been there" {
    poison loss
    poison gradient
    for kind in loss gradient; do
        on 1 -q "${how[@]}" run=clean.$kind 'data.train=[clean.s2s]' model.llm.path=$kind train.steps=4
        while IFS='|' read -r n mesh; do
            rm -rf skip
            # shellcheck disable=SC2086
            exits 0 on $n "${how[@]}" run=skip model.llm.path=$kind train.on_nan=skip $mesh
            says "step 2 is skipped"
            says "u14 of t.s2s: record 7"
            says "1 steps were skipped"
            [ "$(wc -l <skip/log.jsonl)" -eq 5 ]
            [ "$n" -gt 1 ] || alike "$(bits skip 5)" "$(bits clean.$kind 4)"
        done <<<"$(head -n 2 <<<"$meshes")"
    done
}

@test "values that are no numbers stop the run whatever was asked, and so do too many skips in a row" {
    poison value
    exits 1 on 1 "${how[@]}" run=bad model.llm.path=value train.on_nan=skip
    says "parameter model.embed_tokens.weight holds NaN or Inf; it is in samples u14 of t.s2s: record 7"
    poison loss
    exits 1 on 2 "${how[@]}" run=many model.llm.path=loss train.on_nan=skip 'data.train=[t.s2s]' train.packs_per_step=20 train.max_skips=2 mesh.dp=2
    says "step 3 is skipped"
    says "3 steps in a row were skipped (train.max_skips 2)"
    # in a row means across a checkpoint, too
    on 1 -q "${how[@]}" run=two model.llm.path=loss train.on_nan=skip train.packs_per_step=20 train.max_skips=2 train.steps=2
    exits 1 on 1 "${how[@]}" run=two model.llm.path=loss train.on_nan=skip train.packs_per_step=20 train.max_skips=2
    says "3 steps in a row were skipped"
    says_not "step 4"
}

@test "a spike is a multiple of the median of the last steps: warned of, skipped or stopped, resumed too" {
    # from step 4 on a rate that breaks what was learned: the rule looks at what it made of the loss
    spike=(r.yaml -j1 data.eval=null optimizer.clip_norm=0 schedule.name=constant schedule.warmup_steps=0 train.spike_window=3 train.spike_factor=1.2)
    on 1 -q "${spike[@]}" run=kept train.steps=4 optimizer.lr=1e-3 train.on_spike=warn
    for answer in warn skip stop; do
        cp -r kept $answer
        exits $([ $answer = stop ] && echo 1 || echo 0) s2s-train "${spike[@]}" run=$answer train.steps=6 optimizer.lr=1 train.on_spike=$answer
        says "step 6"
        says "and the median of the last 3 steps is"
        says "samples that lift the loss most: u"
        [ "$(trouble $answer | cut -d' ' -f1-6)" = "6 False False spike $answer 0" ]
    done
    # a warning changes nothing
    on 1 -q "${spike[@]}" run=plain train.steps=4 optimizer.lr=1e-3
    on 1 -q "${spike[@]}" run=plain train.steps=6 optimizer.lr=1
    alike "$(bits warn 6)" "$(bits plain 6)"
    [ "$(bits skip 6)" != "$(bits plain 6)" ]
    exits 1 s2s-train "${spike[@]}" run=no train.spike_factor=1
    says "train.spike_factor"
}

@test "who made a spike is looked for without moving the statistics of batch norms" {
    eval "$(sed -n '/^make_speech()/,/^}/p' "$ROOT/tests/tools/s2s-train.bats")"
    make_speech
    sed -i 's/"convolution_bias": true/"convolution_bias": false/' enc.json
    sed 's/config: enc.json/&, batch_norm: batch/; s/packs_per_step: 2/packs_per_step: 4, packs_per_microbatch: 2/' s.yaml >b.yaml
    spike=(b.yaml -j1 data.eval=null train.steps=5 optimizer.lr=3 optimizer.clip_norm=0 schedule.name=constant schedule.warmup_steps=0)
    on 1 -q "${spike[@]}" run=plain
    exits 0 on 1 "${spike[@]}" run=warn train.on_spike=warn train.spike_window=1 train.spike_factor=1.0001
    says "samples that lift the loss most: "
    alike "$(bits warn 5)" "$(bits plain 5)"
    [ -n "$(bits warn 5 | grep running_mean)" ]
}
