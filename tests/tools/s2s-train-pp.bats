# Pipelines: what is said, saved and evaluated (that they learn as one process is in s2s-train-mesh.bats).
load common
load train

setup_tool() {
    tiny_model 'seen: t.s2s' 6 0 2
    sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 4/; s/"tie_word_embeddings": true/"tie_word_embeddings": false/' llm.json
}

# on RANKS ARGS...: one thread a rank
on() {
    local n=$1
    shift
    if [ "$n" -eq 1 ]; then command s2s-train -q -j1 "$@"; else mpirun_n "$n" s2s-train -q -j1 "$@" </dev/null; fi
}

@test "an output layer that is the embedding is saved once" {
    sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' llm.json
    on 2 r.yaml run=tied mesh.pp=2 train.steps=1
    s2s-ckpt ls --json tied/checkpoints >ls.json
    python3 -c '
import json
names = [t["name"] for t in json.load(open("ls.json"))["tensors"]]
assert len(names) == len(set(names)) and not any("lm_head" in n for n in names), names
assert sum(n.endswith("model.embed_tokens.weight") for n in names) == 3'
    # each stage wrote what it has, and only that
    python3 - <<'PY'
import glob, os
sizes = [os.path.getsize(f) for f in sorted(glob.glob("tied/checkpoints/iter_*/*.distcp"))]
assert len(sizes) == 2 and .6 < sizes[0] / sizes[1] < 1.6, sizes
PY
}

@test "the stage that has the first NaN is the one that all name, wherever it is" {
    for layer in 0 3; do
        set -- r.yaml run=nan train.steps=9 "optimizer.groups=[{match: '*layers.$layer.mlp*', lr_mult: 1e25}]"
        exits 1 on 1 "$@"
        one=$output
        says "the first NaN or Inf is in model.layers.$layer.mlp"
        rm -r nan
        exits 1 on 4 "$@" mesh.pp=4
        says "${one#*s2s-train: step *: }"
        rm -r nan
        exits 1 on 2 "$@" mesh.pp=2 mesh.vpp=2
        says "${one#*s2s-train: step *: }"
        rm -r nan
    done
}

@test "losses and accuracies of a set are those of one process; text is refused" {
    # more packs than are on their way together, and no multiple of them
    s2s-pack -q --ids ids.jsonl --tokens 24 -o many.s2s
    [ "$(s2s-shard ls many.s2s | grep -c tokens)" -gt 16 ]
    how=(r.yaml data.eval.many=many.s2s train.steps=2 train.eval_every=1)
    on 1 "${how[@]}" run=one
    for mesh in mesh.pp=2 'mesh.pp=2 mesh.vpp=2'; do
        rm -rf two
        # shellcheck disable=SC2086
        on 2 "${how[@]}" run=two $mesh
        same one/eval.jsonl two/eval.jsonl
    done
    exits 0 mpirun_n 2 s2s-train eval r.yaml run=two mesh.pp=2 --json
    two=$output
    exits 0 s2s-train eval r.yaml run=two --json
    alike "$two" "$output"
    cp "$ROOT/demo/tokenizer.json" .
    exits 1 mpirun_n 2 s2s-train eval r.yaml run=two mesh.pp=2 data.tokenizer=tokenizer.json
    says "no rank of a pipeline of 2 can generate text alone"
    says "give mesh.pp=1, or --no-text"
}

@test "the last step of a pipe may have fewer packs than the stages want" {
    # eight packs: seven and one
    for how in mesh.pp=1 'mesh.pp=2 mesh.vpp=2 mesh.vpp_group=7'; do
        n=${how:8:1}
        # shellcheck disable=SC2086
        s2s-shard cat t.s2s | mpirun_n "$n" s2s-train -q -j1 r.yaml run="pipe$n" 'data.train=[-]' data.shuffle=false train.steps=null train.packs_per_step=7 $how
    done
    BITS=1 python3 "$ROOT/tests/tools/mesh_equal.py" pipe1 pipe2
    [ "$(wc -l <pipe2/log.jsonl)" -eq 2 ]
}

@test "plan tells stages, actions and waiting, and what a run sends and keeps" {
    for how in mesh.pp=2 'mesh.pp=2 mesh.vpp=2'; do
        # shellcheck disable=SC2086
        mpirun_n 2 s2s-train r.yaml -q -j1 --profile trace.json run=run train.steps=3 'data.eval={}' checkpoint.every=0 $how 2>table
        rm -r run
        for r in 0 1; do
            # shellcheck disable=SC2086
            s2s-train plan r.yaml -j1 --rank $r --json 'data.eval={}' $how >plan.json
            python3 - plan.json trace.rank$r.json <<'PY'
import json, sys
plan, trace = (json.load(open(f)) for f in sys.argv[1:])
assert plan["sent"] == trace["otherData"]["sent"] and plan["sent"]["main/pp"] > 0, (plan["sent"], trace["otherData"]["sent"])
assert plan["memory"] == trace["otherData"]["memory"], (plan["memory"], trace["otherData"]["memory"])
PY
        done
    done
    python3 - <<'PY'
import json
p = json.load(open("plan.json"))["pipeline"]
assert p["stage_layers"] == [1] * 4 and (p["ranks"], p["chunks"], p["group"], p["microbatches"]) == (2, 2, 2, 4), p
assert abs(p["idle"] - 1 / 9) < 1e-9, p
assert p["actions"] == ["F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
                        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"], p
PY
    exits 0 s2s-train plan r.yaml -j1 --mesh pp=4 'mesh.pp_layers=[0,1,3,0]' --rank 2
    says "pipeline: this rank has stage 2 (3 layers) of 4; ranks wait"
    says "F0.0 F1.0 B0.0 F2.0 B1.0 F3.0 B2.0 B3.0"
    sed 's/"num_hidden_layers": 4/"num_hidden_layers": 128/' llm.json >large.json
    s2s-train plan large.json --tokens 64 --microbatches 128 --mesh pp=64,dp=16 mesh.vpp=2 --rank 1023 -j1 --json >plan.json
    python3 - <<'PY'
import json
j = json.load(open("plan.json"))
p = j["pipeline"]
assert len(p["actions"]) == 64 and all(len(a.split()) == 2 * 2 * 128 for a in p["actions"])
assert abs(p["idle"] - 63 / (2 * 128 + 63)) < 1e-9 and j["coordinates"]["pp"][1023] == 63
PY
}
