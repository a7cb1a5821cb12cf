# s2s-train plan says before the run what --profile finds in it.
load common
load train

setup_tool() {
    tiny_model '' 3 0 1
    # what a run on sound needs, too
    eval "$(sed -n '/^make_speech()/,/^}/p' "$ROOT/tests/tools/s2s-train.bats")"
}

# llama8b: the published config of Llama 3.1 8B
llama8b() {
    cat >llama8b.json <<'JSON'
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu", "hidden_size": 4096,
 "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
 "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
 "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
                  "rope_type": "llama3"},
 "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256}
JSON
}

# holds FILE EXPRESSION: of the JSON in FILE, called j
holds() {
    python3 -c '
import json, sys
j = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), (sys.argv[2], j)' "$1" "$2"
}

# agrees PLAN TRACE: bytes of every part and communicator, operations and calls of the third step
agrees() {
    python3 - "$1" "$2" <<'PY'
import json, sys
plan, trace = (json.load(open(f)) for f in sys.argv[1:])
assert plan["memory"] == trace["otherData"]["memory"], (plan["memory"], trace["otherData"]["memory"])
assert min(plan["memory"][k] for k in ("parameters", "gradients", "optimizer", "activations", "activation_gradients", "scratch", "results")) > 0
assert plan["sent"] == trace["otherData"]["sent"], (plan["sent"], trace["otherData"]["sent"])
slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
step, = (e for e in slices if e["name"] == "step 3")
calls = [e for e in slices if "args" in e and step["ts"] <= e["ts"] and e["ts"] + e["dur"] <= step["ts"] + step["dur"] + .01]
assert len(calls) == sum(o["calls"] for o in plan["operations"].values())
assert sum(e["args"]["flop"] for e in calls) == plan["flops"] > 0
assert sum(e["args"]["bytes"] for e in calls) == plan["read_bytes"] + plan["written_bytes"]
PY
}

# foretold RECIPE THREADS [KEY=VALUE...]: the plan of a recipe is what its third step is
foretold() {
    local recipe=$1 threads=$2
    shift 2
    s2s-train plan "$recipe" -j"$threads" --json "$@" >plan.json
    rm -rf run
    s2s-train "$recipe" -q -j"$threads" --profile trace.json run=run train.steps=3 checkpoint.every=0 "$@" 2>table
    agrees plan.json trace.json
}

@test "text: memory, work and calls are those of the third step" {
    foretold r.yaml 1
    holds plan.json 'j["memory"]["recompute"] == 0 and j["threads"] == 1 and j["microbatches"] == 4'
    foretold r.yaml 2
    holds plan.json 'j["threads"] == 2'
    foretold r.yaml 1 train.recompute=true
    holds plan.json 'j["memory"]["recompute"] > 0'
    foretold r.yaml 1 train.recompute=selective
    holds plan.json 'j["memory"]["recompute"] == 0'
    foretold r.yaml 2 train.recompute=true train.packs_per_microbatch=2
    holds plan.json 'j["microbatches"] == 2'
}

@test "speech: memory, work and calls are those of the third step" {
    make_speech
    for threads in 1 2; do
        foretold s.yaml $threads 'data.eval={}'
        foretold s.yaml $threads 'data.eval={}' train.recompute=true
        foretold s.yaml $threads 'data.eval={}' train.recompute=selective
    done
    one=$(s2s-train plan s.yaml -j1 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["memory"]["scratch"])')
    holds plan.json "j['memory']['scratch'] > $one" # threads have workspaces of their own
    foretold s.yaml 1 'data.eval={}' model.encoder.freeze=true
    holds plan.json 'j["memory"]["gradients"] < j["memory"]["parameters"] and j["trained_parameters"] < j["parameters"]'
    sed -i 's/"convolution_bias": true/"convolution_bias": false/' enc.json
    foretold s.yaml 1 'data.eval={}' model.encoder.batch_norm=batch
    # sound of the stream becomes features first
    foretold s.yaml 1 'data.eval={}' 'data.train=[pcm.s2s]'
}

@test "images: memory, work and calls are those of the third step" {
    eval "$(sed -n '/^images()/,/^}/p' "$ROOT/tests/tools/s2s-train-mesh.bats" | grep -v '^ *speech$')"
    make_speech
    images
    foretold i.yaml 1
    foretold i.yaml 2 train.recompute=true
    foretold i.yaml 1 train.recompute=selective train.precision=bf16-mixed
    foretold i.yaml 1 model.vision.freeze=true
    foretold b.yaml 1 'data.eval={}'
    # with made-up images, of up to half of the slots
    s2s-train plan i.yaml --tokens 300 --json >plan.json
    holds plan.json '"300 slots: 1 utterance of 144 rows of an image (96 x 96 pixels), then text" in j["batch"]'
    s2s-train plan b.yaml --tokens 300 --json 'data.eval={}' >plan.json
    holds plan.json '"rows of sound" in j["batch"] and "rows of an image" in j["batch"]'
}

@test "Mamba layers and experts: memory, work and calls are those of the third step" {
    grep -v '^model:' r.yaml >p.yaml
    foretold p.yaml 2 model.path="$ROOT/tests/oracle/models/nemotron_h" train.moe_router_bias_update_rate=1e-2
    holds plan.json 'min(j["operations"][k]["calls"] for k in ("ssd", "ssd_backward", "conv1d_backward", "gatednorm", "expert_counts", "router_bias")) > 0'
    foretold p.yaml 1 model.path="$ROOT/tests/oracle/models/nemotron_h_latent" train.recompute=true train.precision=bf16-mixed train.moe_aux_loss_coeff=0.1 train.moe_router_load_balancing_type=global_aux_loss
    rm -rf run
    how=("model.path=$ROOT/tests/oracle/models/nemotron_h_latent" mesh.cp=2)
    mpirun_n 2 s2s-train p.yaml -q -j1 --profile trace.json train.steps=3 checkpoint.every=0 "${how[@]}" 2>table
    for r in 0 1; do
        s2s-train plan p.yaml -j1 --rank $r --json "${how[@]}" >plan.json
        agrees plan.json trace.rank$r.json
    done
}

@test "below the lowest parameter that is trained nothing is kept, and no backward runs" {
    # a first layer that is frozen costs its output, beside a model that does not have it
    sed 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' llm.json >shallow.json
    s2s-train plan r.yaml -j1 --tokens 64 'model.freeze=["*embed*"]' model.llm.config=shallow.json --json >one.json
    s2s-train plan r.yaml -j1 --tokens 64 'model.freeze=["*embed*","*.layers.0.*"]' --json >two.json
    s2s-train plan r.yaml -j1 --tokens 64 'model.freeze=["*embed*"]' --json >all.json
    python3 - <<'PY'
import json
one, two, all = (json.load(open(f + ".json")) for f in ("one", "two", "all"))
assert two["memory"]["activations"] == one["memory"]["activations"] + 64 * 32 * 4, (one["memory"], two["memory"])
assert all["memory"]["activations"] > two["memory"]["activations"] + 20000
backward = [k for k in one["operations"] if k.endswith("_backward")]
assert len(backward) > 2 and all["operations"]["attention_backward"]["calls"] == 2 * one["operations"]["attention_backward"]["calls"]
assert {k: two["operations"][k] for k in backward} == {k: one["operations"][k] for k in backward}
PY
    foretold r.yaml 1 'model.freeze=["*embed*","*.layers.0.*"]'
    foretold r.yaml 1 'model.lora={rank: 4}'
    # a model that hears with ears of its own
    make_speech
    foretold s.yaml 1 'data.eval={}' model.encoder.freeze=true model.projection.freeze=true
    holds plan.json 'j["operations"]["relattention"]["calls"] > 0'
    holds plan.json 'not {"relattention_backward", "dwconv_backward", "batchnorm_backward", "layernorm_backward", "conv2d_backward"} & set(j["operations"])'
    s2s-train plan s.yaml -j1 'data.eval={}' --json >all.json
    holds all.json '"relattention_backward" in j["operations"] and "layernorm_backward" in j["operations"]'
    frozen=$(python3 -c 'import json; print(json.load(open("plan.json"))["memory"]["activations"])')
    holds all.json "j['memory']['activations'] > $frozen + 250000"
}

@test "bytes sent are those of a run on two ranks" {
    mpirun_n 2 s2s-train r.yaml -q -j1 --profile trace.json train.steps=3 checkpoint.every=0 2>table
    no_litter . ids.jsonl llm.json r.yaml t.s2s run table trace.rank0.json trace.rank1.json
    for r in 0 1; do
        s2s-train plan r.yaml -j1 --world-size 2 --rank $r --json >plan.json
        agrees plan.json trace.rank$r.json
        holds plan.json 'j["sent"]["main/dp"] > 0 and j["world_size"] == 2 and j["mesh"]["dp"] == 2'
        holds trace.rank$r.json "all(e['pid'] == $r for e in j['traceEvents'])"
    done
    s2s-train plan r.yaml -j1 mesh.dp=2 --json >other.json
    holds other.json 'j["world_size"] == 2'
}

@test "memory, work and bytes sent are those of a run on any mesh" {
    while read -r n mesh; do
        read -ra mesh <<<"$mesh"
        rm -rf run
        mpirun_n "$n" s2s-train r.yaml -q -j1 --profile trace.json train.steps=3 checkpoint.every=0 "${mesh[@]}" </dev/null 2>table
        for r in $(seq 0 $((n - 1))); do
            s2s-train plan r.yaml -j1 --rank "$r" --json "${mesh[@]}" >plan.json
            agrees plan.json "trace.rank$r.json"
        done
    done <<'MESHES'
2 mesh.cp=2 train.packs_per_step=3
4 mesh.cp=2 mesh.tp=2 mesh.cp_comm=p2p mesh.sequence_parallel=true
2 mesh.pp=2
4 mesh.pp=2 mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params
4 mesh.cp=2 mesh.dp=2 mesh.cp_comm=a2a train.recompute=true
MESHES
    # --mesh is the same; a made-up pack is cut, too
    s2s-train plan r.yaml -j1 --tokens 64 mesh.cp=2 mesh.tp=2 --json >a.json
    s2s-train plan r.yaml -j1 --tokens 64 --mesh cp=2,tp=2 --json >b.json
    cmp a.json b.json
    holds a.json 'j["batch"].endswith("64 slots: one sequence, cut over 2 ranks of cp") and j["sent"]["main/cp"] > 0'
}

@test "a published Llama 8B, from its config alone" {
    llama8b
    s2s-train plan llama8b.json --tokens 8192 --json -j2 >plan.json
    holds plan.json 'j["parameters"] == j["trained_parameters"] == 8030261248'
    holds plan.json 'j["memory"]["parameters"] == j["memory"]["gradients"] == 4 * 8030261248'
    holds plan.json '0 <= j["memory"]["optimizer"] - 8 * 8030261248 < 1e4'
    # 6 operations a weight and token, 2 fewer where there is no label and none for the embedding
    holds plan.json 'j["operations"]["gemm"]["flops"] == 6 * (8192 * 32 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336) + 8191 * 4096 * 128256)'
    # every query and key before it, two products forward and five back
    holds plan.json 'j["operations"]["attention"]["flops"] == 32 * 32 * 8192 * 8193 / 2 * (4 * 128 + 4)'
    holds plan.json 'j["batch"].startswith("a made-up pack of 8192 slots: one sequence")'
    s2s-train plan llama8b.json --tokens 8192 --json -j2 train.recompute=full >less.json
    s2s-train plan llama8b.json --tokens 8192 --json -j2 train.recompute=selective >some.json
    python3 -c '
import json
plan, less = (json.load(open(f)) for f in ("plan.json", "less.json"))
m, n = plan["memory"], less["memory"]
s = json.load(open("some.json"))
# norms and the MLP inside, of 17 widths 5.5 a layer, for the time of a norm and a product of elements
kept = 32 * 8192 * 4 * (2 * 4096 + 14336)
assert m["activations"] - s["memory"]["activations"] == kept, (m, s["memory"])
assert s["memory"]["activation_gradients"] - m["activation_gradients"] < 8192 * 4 * 2 * 14336 and plan["flops"] < s["flops"] < plan["flops"] * 1.0005
assert n["activations"] < m["activations"] / 8 and n["recompute"] > 0 and n["sum"] < m["sum"]
assert plan["flops"] < less["flops"] < plan["flops"] * 4 / 3'
    s2s-train plan llama8b.json --tokens 100 --microbatches 3 --world-size 1024 --rank 1023 --json -j2 >large.json
    holds large.json 'j["microbatches"] == 3 and j["tokens"] == 300 and j["coordinates"]["dp"][1023] == 1023'
    holds large.json 'abs(j["sent"]["main/dp"] / (2 * 4 * 8030261248) - 1023 / 1024) < 1e-6'
    exits 0 s2s-train plan llama8b.json -j2
    says "activations "
    says "sum "
    says "a step of 1 microbatch, 8192 tokens:"
    says "attention_backward"
    no_litter . ids.jsonl llm.json r.yaml t.s2s llama8b.json plan.json less.json some.json large.json
}

@test "a model with an encoder is planned with made-up utterances, a folder's config too" {
    make_speech
    s2s-train plan s.yaml --tokens 80 -j1 --json >plan.json
    holds plan.json '"rows of sound" in j["batch"] and j["tokens"] == 160 and j["microbatches"] == 2'
    holds plan.json 'j["operations"]["relattention"]["calls"] > 0'
    s2s-train plan "$ROOT/tests/oracle/models/salm_llama/config.json" --tokens 1000 -j1 --json >plan.json
    holds plan.json '"rows of sound" in j["batch"] and j["tokens"] == 1000'
    # streams that are not there, or a pipe, are made up, too
    exits 0 s2s-train plan r.yaml 'data.train=[absent.s2s]' -j1
    says "a made-up pack of 8192 slots"
    exits 0 s2s-train plan r.yaml 'data.train=[-]' -j1
    says "a made-up pack of 8192 slots"
    exits 0 s2s-train plan r.yaml -j1
    says "the packs of step 3 of data.train"
}

@test "groups are Megatron's, of any axes" {
    llama8b
    exits 0 s2s-train plan llama8b.json --mesh tp=2,pp=2,dp=2 --json
    printf '%s' "$output" >plan.json
    holds plan.json 'j["groups"]["tp"] == [[0, 1], [2, 3], [4, 5], [6, 7]]'
    holds plan.json 'j["groups"]["dp"] == [[0, 2], [1, 3], [4, 6], [5, 7]]'
    holds plan.json 'j["groups"]["pp"] == [[0, 4], [1, 5], [2, 6], [3, 7]]'
    holds plan.json 'sorted(j["groups"]) == sorted("tp cp dp pp dp_cp tp_pp tp_cp tp_dp tp_dp_cp".split())'
    holds plan.json 'sorted(j["expert"]) == sorted("ep tp dp tp_ep tp_ep_pp".split())'
    holds plan.json 'j["coordinates"]["pp"] == [0, 0, 0, 0, 1, 1, 1, 1] and j["coordinates"]["tp"] == [0, 1] * 4'
    holds plan.json 'j["parameters"] == 8030261248 and abs(j["memory"]["parameters"] / 8030261248 - 1) < 1e-3 and j["sent"]["main/pp"] > 0'
    moe="$ROOT/tests/oracle/models/qwen3_moe/config.json"
    s2s-train plan "$moe" mesh.sequence_parallel=true --mesh tp=2,cp=2,ep=4,etp=1 --world-size 16 --json >plan.json
    holds plan.json 'j["mesh"]["dp"] == 4 and j["groups"]["dp_cp"][0] == [0, 2, 4, 6, 8, 10, 12, 14]'
    holds plan.json 'j["expert"]["ep"][0] == [0, 1, 2, 3] and j["expert"]["dp"][0] == [0, 4, 8, 12]'
    holds plan.json 'j["memory"]["parameters"] > 0 and j["sent"]["main/tp-cp"] > 0'
    exits 1 s2s-train plan llama8b.json --mesh tp=2,pp=2,dp=2,ep=2
    says "a model without experts"
    exits 0 s2s-train plan llama8b.json --mesh tp=2,pp=2,dp=2,order=tp-pp-cp-ep-dp --rank 5
    says "rank 5 of 8, memory, operations and messages are not told: s2s-train does not train on a mesh with order=tp-pp-cp-ep-dp"
    says "group dp: number 1 of 4 groups, place 1 of [1 5]"
}

@test "a picture shows which rank holds what" {
    llama8b
    exits 0 s2s-train plan llama8b.json --mesh tp=2,pp=2,dp=2 --format svg -o mesh.svg
    python3 - mesh.svg <<'PY'
import sys, xml.etree.ElementTree as tree
svg = "{http://www.w3.org/2000/svg}"
root = tree.parse(sys.argv[1]).getroot()
boxes = [r for r in root.iter(svg + "rect") if r.get("class") == "rank"]
texts = ["".join(t.itertext()) for t in root.iter(svg + "text")]
assert len({(b.get("x"), b.get("y")) for b in boxes}) == 8
assert "stage 0: embedding, layers 0-15" in texts and "stage 1: layers 16-31, head" in texts, texts
assert sum(t.startswith("rank ") for t in texts) == 8 and any(t.startswith("rank 5 tp 1/2") for t in texts), texts
assert all(float(b.get("x")) + float(b.get("width")) <= float(root.get("width")) for b in boxes)
PY
    exits 2 s2s-train plan llama8b.json --mesh dp=2048 --format svg
    says "a picture has up to 1024 ranks, found 2048"
    exits 2 s2s-train plan llama8b.json --format png
    says "expected text, json or svg, found 'png'"
}

@test "s2s-check --report of a recipe is the plan of it" {
    make_speech
    for recipe in r.yaml s.yaml; do
        s2s-train plan $recipe -j1 --json >plan.json
        exits 0 s2s-check --report --format json $recipe
        printf '%s' "$output" >check.json
        python3 -c '
import json
plan, check = (json.load(open(f)) for f in ("plan.json", "check.json"))
m, (s,) = plan["memory"], check["files"][0]["memory"]
assert check["files"][0]["parameters"] == s["parameters"] == plan["parameters"]
assert (s["weights"], s["gradients"], s["optimizer"]) == (m["parameters"], m["gradients"], m["optimizer"])
assert s["activations"] == m["activations"] + m["recompute"] + m["activation_gradients"] and s["scratch"] == m["scratch"] + m["results"]
assert s["total"] == m["sum"] > 0'
    done
    llama8b
    exits 0 s2s-check --report --set model.llm.config=llama8b.json --set data.train=[absent.s2s] r.yaml
    says "r.yaml: 8.03 billion parameters; GiB a rank"
    says "scratch"
    says "info: a rank needs at least 189."
    says "GiB of scratch [S2S-MEM-003]"
    exits 0 s2s-check --report --set model.llm.config=absent.json r.yaml
    says "r.yaml: what a rank needs is not known: absent.json"
    exits 0 s2s-check --set model.llm.config=absent.json r.yaml
}

@test "a recipe names its device" {
    exits 0 s2s-train plan r.yaml device=cpu
    says "on cpu with"
    (cat r.yaml && echo 'device: cpux') >d.yaml
    exits 1 s2s-train d.yaml
    says "d.yaml:9:9: device: expected one of cpu, cuda, found 'cpux'"
    exits 1 s2s-check d.yaml
    says "d.yaml:9:9: error: device: expected one of cpu, cuda, found 'cpux' [S2S-TRN-017]"
    (cat r.yaml && echo 'devices: cpu') >e.yaml
    exits 1 s2s-check e.yaml
    says "did you mean 'device'?"
    s2s-train r.yaml -q -j1 device=cpu
    grep -q 'device: cpu' run/recipe.yaml
}

@test "what cannot be planned is said" {
    exits 2 s2s-train plan
    says "no recipe"
    exits 2 s2s-train plan absent.yaml
    says "absent.yaml"
    exits 1 s2s-train plan r.yaml --mesh tp=3 --world-size 8
    says "tp 3 x cp 1 x dp 2 x pp 1 are 6 ranks, not 8"
    exits 1 s2s-train plan r.yaml --mesh ep=3,dp=4
    says "do not divide 4 ranks"
    exits 2 s2s-train plan r.yaml --mesh gp=3
    says "'gp=3' is no size of a mesh"
    exits 2 s2s-train plan r.yaml --mesh dp=0
    says "--mesh dp=0"
    exits 2 s2s-train plan r.yaml --mesh dp=2,order=tp-dp
    says "order"
    exits 2 s2s-train plan r.yaml --world-size 2 --rank 2
    says "--rank 2 is not one of 2"
    exits 1 s2s-train plan r.yaml model.llm.freeze=true
    says "S2S-OPT-021"
    exits 1 s2s-train plan "$ROOT/tests/oracle/models/parakeet_encoder/config.json"
    says "an encoder alone has no loss to train on"
    exits 1 s2s-train plan r.yaml nonsense=1
    says "nonsense"
    exits 2 s2s-train plan r.yaml --tokens 0
    says "tokens"
}

@test "the trace is of the last three steps, the table of all" {
    s2s-train r.yaml -q -j1 --profile trace.json train.steps=5 checkpoint.every=0 2>table
    holds trace.json '[e["name"] for e in j["traceEvents"] if e["name"].startswith("step ")] == ["step 3", "step 4", "step 5"]'
    holds trace.json 'all(e["dur"] >= 0 and e["tid"] == 0 for e in j["traceEvents"] if e["ph"] == "X")'
    holds trace.json '{"gemm", "adamw", "zero"} < {e["name"] for e in j["traceEvents"]}'
    holds trace.json '"model.layers.1.mlp" in {e.get("args", {}).get("layer") for e in j["traceEvents"]}'
    output=$(cat table)
    says "5 steps, by operation"
    says "5 steps, by layer"
    says "model.layers.*.mlp"
    says "between calls"
    # measured or not, the numbers are the same
    s2s-train r.yaml -q -j1 run=plain train.steps=5 checkpoint.every=0
    alike "$(log run)" "$(log plain)"
    # a trace that cannot be written is missed before the first step
    exits 1 s2s-train r.yaml -j1 run=other --profile absent/trace.json
    says "absent/trace.json"
    [ ! -e run/other/log.jsonl ]
}

@test "sequences that are cut between the layers take less memory than whole ones" {
    for cut in false true; do
        s2s-train plan r.yaml --json --tokens 256 --mesh tp=4 mesh.sequence_parallel=$cut >cut.$cut
    done
    python3 - <<'PY'
import json
whole, cut = (json.load(open("cut." + x))["memory"]["activations"] for x in ("false", "true"))
assert cut < 0.8 * whole, (cut, whole)
PY
}
