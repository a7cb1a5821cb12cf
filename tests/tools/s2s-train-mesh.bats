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
    # each token sees the last seven
    jq '.model_type = "mistral" | .sliding_window = 7' llm.json >window.json
}

speech() {
    eval "$(sed -n '/^make_speech()/,/^}/p' "$ROOT/tests/tools/s2s-train.bats")"
    make_speech
    sed -i 's/weight_decay: 0.1/&, eps: 1.0e-3/; s/warmup_steps: 10/warmup_steps: 0/; s/{steps: 150/{steps: 5/; s/eval: {[^}]*}, //' s.yaml
}

# images: i.yaml trains an encoder of images with a decoder, b.yaml one that hears, too
images() {
    speech
    python3 "$ROOT/tests/oracle/stream/make_images.py" im.s2s 6
    cat >v.json <<'JSON'
{"model_type": "radio", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2.0, "patch_size": 4,
 "max_img_size": 32, "num_cls_tokens": 2, "num_registers": 1, "initializer_range": 0.2}
JSON
    sed 's/^data: .*/data: {train: [im.s2s]}/; s/^model: .*/model: {vision: {config: v.json}, vision_projection: {inner: 32, final_layernorm: true}, llm: {config: llm.json}}/' r.yaml >i.yaml
    sed 's/model: {/&vision: {config: v.json}, vision_projection: {inner: 32}, /; s/train: \[mel.s2s\]/train: [mel.s2s, im.s2s]/' s.yaml >b.yaml
}

# s2s-train_on RANKS ARGS...: one thread a rank; one rank is no launch
s2s-train_on() {
    local n=$1
    shift
    if [ "$n" -eq 1 ]; then s2s-train -q -j1 "$@"; else mpirun_n "$n" s2s-train -q -j1 "$@" </dev/null; fi
}

# equal: lines of `MESH | RECIPE and what is changed in it`; the mesh and one process learn the same
equal() {
    local mesh how key value ranks one pairs=()
    while IFS='|' read -r mesh how; do
        read -ra mesh <<<"$mesh"
        read -ra how <<<"$how"
        how=("${how[@]//MODELS/$ROOT/tests/oracle/models}")
        ranks=1
        for key in "${mesh[@]}"; do
            value=${key##*=}
            case $key in mesh.tp=* | mesh.cp=* | mesh.dp=* | mesh.pp=*) ranks=$((ranks * value)) ;; esac
        done
        one=one.$(md5sum <<<"${how[*]}" | cut -c1-8)
        [ -d "$one" ] || s2s-train_on 1 "${how[@]}" run="$one"
        pairs+=("$one" "line $((${#pairs[@]} / 2 + 1)): ${mesh[*]}")
        s2s-train_on $ranks "${how[@]}" "${mesh[@]}" run="'${pairs[-1]}'"
    done
    [ ${#pairs[@]} -gt 0 ]
    python3 "$ROOT/tests/tools/mesh_equal.py" "${pairs[@]}"
}

@test "tp: a decoder on two and four ranks, sequences whole and cut, learns as one process" {
    equal <<'LINES'
mesh.tp=2 mesh.sequence_parallel=true | r.yaml data.train=[odd.s2s] train.packs_per_microbatch=2
mesh.tp=2 mesh.dp=2 | r.yaml
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true | r.yaml data.train=[mute.s2s] data.shuffle=false train.packs_per_step=2
mesh.tp=2 | r.yaml model.llm.config=bias.json
mesh.tp=4 mesh.sequence_parallel=true | r.yaml model.llm.config=bias.json data.train=[odd.s2s] train.recompute=true
LINES
}

@test "tp: other families, vocabularies that do not divide, more ranks than key-value heads" {
    equal <<'LINES'
mesh.tp=2 mesh.sequence_parallel=true | p.yaml model.path=MODELS/llama_gqa_untied
mesh.tp=4 | p.yaml model.path=MODELS/qwen3
mesh.tp=4 mesh.sequence_parallel=true | p.yaml model.path=MODELS/gemma1
LINES
}

@test "long: tp: parts that are frozen, and what is trained below them" {
    equal <<'LINES'
mesh.tp=2 mesh.sequence_parallel=true | r.yaml model.freeze=["*.mlp.*","*.norm.weight"]
mesh.tp=2 | r.yaml model.freeze=["*embed*","*layers.0.*"]
mesh.tp=2 mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params | r.yaml model.freeze=["*"] model.unfreeze=["*layers.1.*"] optimizer.groups=[{"match":"*mlp*","lr_mult":0.5,"min_lr":1.0e-3}]
mesh.tp=4 mesh.sequence_parallel=true | r.yaml model.llm.config=bias.json model.freeze=["*weight"]
LINES
}

@test "what is computed again on a mesh is what was computed, and averages are divided as moments are" {
    equal <<'LINES'
mesh.tp=2 mesh.dp=2 mesh.data_parallel_sharding_strategy=optim | r.yaml train.ema_decay=0.9
mesh.tp=2 mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params train.recompute=selective | r.yaml train.ema_decay=0.9
mesh.cp=2 mesh.pp=2 mesh.tp=2 mesh.sequence_parallel=true train.recompute=selective | r.yaml model.lora={"rank":4}
LINES
}

@test "dropout leaves out the same on any mesh, and when a layer is computed again; so do masks and noise of sound" {
    speech
    equal <<'LINES'
mesh.tp=2 mesh.sequence_parallel=true train.recompute=full | r.yaml train.dropout={"hidden":0.2} model.lora={"rank":4,"dropout":0.3} data.train=[odd.s2s] train.packs_per_microbatch=2
mesh.cp=2 mesh.pp=2 | s.yaml train.dropout=0.2 train.steps=3
mesh.tp=2 mesh.dp=2 train.recompute=selective | s.yaml data.train=[pcm.s2s] train.dropout=0.2 train.dither=1.0e-3 train.spec_augment={"freq_width":9} train.steps=3
LINES
}

@test "modality adapters: of layers and of linear maps, after an encoder that learns or stands still" {
    speech
    layers='model.encoder.override={"modality_adapter":{"type":"conformer","d_model":12,"n_layers":2,"n_heads":2,"conv_kernel_size":3,"feat_out":8}}'
    equal <<LINES
mesh.tp=2 | s.yaml $layers train.dropout=0.1 train.steps=3
mesh.cp=2 mesh.pp=2 | s.yaml $layers train.steps=3
mesh.tp=2 mesh.dp=2 | s.yaml model.encoder.override={"subsampling":"stacking_norm"} train.steps=3
mesh.dp=2 train.recompute=full | s.yaml model.encoder.override={"modality_adapter":{"type":"linear","output_dim":20}} train.steps=3 model.encoder.freeze=true model.unfreeze=["encoder.modality_adapter.*"]
LINES
}

@test "long: dropout on all axes, of Mamba layers and mixtures of experts" {
    # key-value heads for each of cp x tp ranks
    sed 's/"num_key_value_heads": 2/"num_key_value_heads": 4/' llm.json >heads.json
    equal <<'LINES'
mesh.cp=2 mesh.pp=2 mesh.tp=2 mesh.sequence_parallel=true train.recompute=selective | r.yaml train.dropout={"hidden":0.1} model.lora={"rank":4,"dropout":0.1} data.train=[odd.s2s]
mesh.tp=2 mesh.sequence_parallel=true | p.yaml model.path=MODELS/nemotron_h optimizer.lr=2e-3 train.dropout=0.2
mesh.cp=2 mesh.dp=2 | p.yaml model.path=MODELS/nemotron_h optimizer.lr=2e-3 train.dropout=0.2
mesh.cp=2 mesh.cp_comm=a2a mesh.tp=2 | r.yaml train.dropout=0.2 model.llm.config=heads.json
mesh.cp=2 mesh.cp_comm=p2p mesh.dp=2 | r.yaml train.dropout=0.2
mesh.cp=4 mesh.cp_comm=p2p | r.yaml train.dropout=0.2 model.llm.config=window.json
mesh.ep=2 mesh.dp=2 | p.yaml model.path=MODELS/mixtral train.dropout=0.2
LINES
}

@test "adapters: cut with their maps, beside a base that stands still" {
    lora='model.lora={"rank":4,"alpha":16}'
    equal <<LINES
mesh.tp=2 mesh.sequence_parallel=true | r.yaml $lora data.train=[odd.s2s]
mesh.tp=4 mesh.dp=2 | r.yaml model.lora={"rank":3,"targets":["*.down_proj","*.v_proj"]} model.unfreeze=["*norm*"] train.recompute=true
mesh.cp=2 mesh.pp=2 | r.yaml $lora
mesh.tp=2 mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params | r.yaml $lora
LINES
}

@test "long: adapters: of speech, of mixtures of experts, of Mamba layers" {
    lora='model.lora={"rank":4,"alpha":16}'
    speech
    equal <<LINES
mesh.dp=2 mesh.data_parallel_sharding_strategy=optim | r.yaml $lora
mesh.tp=2 mesh.dp=2 | s.yaml $lora
mesh.tp=2 mesh.cp=2 mesh.sequence_parallel=true | s.yaml $lora model.encoder.freeze=true
mesh.tp=2 mesh.ep=2 mesh.dp=2 | p.yaml model.path=MODELS/qwen3_moe $lora
mesh.tp=2 mesh.sequence_parallel=true | p.yaml model.path=MODELS/nemotron_h optimizer.lr=2e-3 $lora
LINES
}

@test "tp: sound goes through an encoder that is cut, too" {
    speech
    # as streaming encoders are; what each step attends to is drawn
    jq '. + {causal_downsampling: true, conv_context_size: "causal", conv_norm_type: "layer_norm", att_context_style: "chunked_limited", att_context_size: [[4, 1], [3, 0], [8, 3]]}' \
        enc.json >stream.json
    s2s-pack -q --manifest m.jsonl --tokenizer tokenizer.json --prompt plain --audio mel --tokens 80 --encoder-frames stream.json -o stream.s2s
    equal <<'LINES'
mesh.tp=2 mesh.sequence_parallel=true train.recompute=full | s.yaml model.encoder.config=stream.json data.train=[stream.s2s] train.packs_per_step=4 train.packs_per_microbatch=2
mesh.dp=2 | s.yaml model.encoder.config=stream.json data.train=[stream.s2s] train.packs_per_step=4 train.packs_per_microbatch=2
mesh.tp=2 mesh.sequence_parallel=true | s.yaml model.encoder.batch_norm=batch train.packs_per_microbatch=2
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true | s.yaml model.llm.freeze=true train.recompute=true
LINES
}

@test "encoders of other subsampling, positions, context and shared biases learn as one process" {
    speech
    layers='{"type":"conformer","d_model":12,"n_layers":2,"n_heads":2,"conv_kernel_size":3,"untie_biases":false,"att_context_size":[3,3]}'
    equal <<LINES
mesh.tp=2 mesh.sequence_parallel=true train.recompute=full | s.yaml model.encoder.override={"subsampling":"vggnet","self_attention_model":"abs_pos"} train.steps=2 train.dropout=0.1
mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params | s.yaml model.encoder.override={"untie_biases":false,"modality_adapter":$layers} train.steps=2
mesh.cp=2 mesh.dp=2 | s.yaml model.encoder.override={"subsampling":"striding","self_attention_model":"abs_pos","att_context_size":[4,2]} train.steps=2
mesh.tp=2 mesh.cp=2 | s.yaml model.encoder.override={"subsampling":"striding_conv1d","att_context_size":[5,2],"conv_context_size":[3,1],"untie_biases":false} train.steps=2
mesh.cp=2 mesh.pp=2 | s.yaml model.encoder.override={"subsampling":"dw_striding_conv1d","att_context_size":[4,1],"att_context_style":"chunked_limited","untie_biases":false} train.steps=2
LINES
}

@test "images: an encoder of images on a mesh, whole, cut, spread and divided, learns as one process" {
    images
    equal <<'LINES'
mesh.tp=2 mesh.sequence_parallel=true train.recompute=true | i.yaml train.packs_per_microbatch=2
mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params | i.yaml
mesh.cp=2 | i.yaml train.packs_per_microbatch=2
mesh.cp=2 mesh.tp=2 mesh.cp_comm=p2p mesh.sequence_parallel=true | i.yaml model.vision.freeze=true
mesh.tp=2 mesh.dp=2 | b.yaml data.shuffle=true train.recompute=selective
LINES
}

@test "images: they are encoded in the first stage of a pipeline" {
    images
    sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 4/; s/"tie_word_embeddings": true/"tie_word_embeddings": false/' llm.json
    BITS=1 equal <<'LINES'
mesh.pp=2 mesh.vpp=2 | i.yaml train.recompute=true
mesh.pp=2 | i.yaml model.vision.freeze=true model.llm.freeze=true
mesh.pp=4 | b.yaml data.shuffle=true train.packs_per_step=4
LINES
}

@test "dp: ranks that divide the optimizer, each part of the model or of the tokens by itself" {
    divided="mesh.data_parallel_sharding_strategy=optim mesh.bucket_mb=0.01"
    equal <<LINES
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true | r.yaml $divided train.recompute=true
mesh.cp=2 mesh.dp=2 | r.yaml $divided
mesh.pp=2 mesh.dp=2 | r.yaml $divided
mesh.dp=4 mesh.ep=2 | p.yaml model.path=MODELS/qwen3_moe $divided
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true mesh.ep=2 mesh.etp=1 | p.yaml model.path=MODELS/mixtral optimizer.lr=2e-3 $divided
LINES
}

@test "cp: sequences that are cut over ranks, whichever way keys come, learn as whole ones" {
    equal <<'LINES'
mesh.cp=4 mesh.cp_comm=p2p | r.yaml train.recompute=true
mesh.cp=2 mesh.dp=2 | r.yaml data.train=[odd.s2s] train.packs_per_microbatch=2
mesh.cp=2 mesh.cp_comm=p2p | r.yaml data.train=[mute.s2s] data.shuffle=false train.packs_per_step=2
mesh.cp=2 mesh.cp_comm=p2p | p.yaml model.path=MODELS/gemma1
mesh.cp=2 mesh.cp_comm=a2a | p.yaml model.path=MODELS/qwen3
mesh.cp=2 mesh.tp=2 mesh.sequence_parallel=true | r.yaml data.train=[odd.s2s]
mesh.cp=2 mesh.tp=2 mesh.cp_comm=p2p | r.yaml
LINES
}

@test "long: sequences of a token or two, ranks that have none, and ranks without sound" {
    python3 - >few.jsonl <<'PY'
import json
for i in range(30):
    print(json.dumps({"id": f"f{i}", "input_ids": [(i + 3 * k) % 60 + 1 for k in range((1, 2, 3, 4, 5, 7, 8, 9)[i % 8])]}))
PY
    s2s-pack -q --ids few.jsonl --tokens 9 -o few.s2s
    speech
    s2s-pack -q --ids ids.jsonl --tokens 64 -o text.s2s
    equal <<'LINES'
mesh.cp=2 | r.yaml data.train=[few.s2s]
mesh.cp=4 mesh.cp_comm=p2p | r.yaml data.train=[few.s2s]
mesh.cp=2 mesh.cp_comm=a2a | r.yaml data.train=[few.s2s]
mesh.tp=4 mesh.sequence_parallel=true | r.yaml data.train=[few.s2s] model.llm.config=bias.json
mesh.dp=4 | s.yaml data.train=[few.s2s,text.s2s,mel.s2s] data.shuffle=true train.packs_per_step=4
mesh.dp=2 mesh.cp=2 | s.yaml data.train=[few.s2s,mel.s2s] train.packs_per_step=4
LINES
}

@test "windows and scaled positions are of whole sequences on a mesh" {
    equal <<'LINES'
mesh.tp=2 mesh.sequence_parallel=true | p.yaml model.path=MODELS/mistral
mesh.cp=2 | r.yaml model.llm.config=window.json data.train=[odd.s2s] train.packs_per_microbatch=2
mesh.cp=2 mesh.cp_comm=a2a | r.yaml model.llm.config=window.json
mesh.cp=3 mesh.cp_comm=p2p | r.yaml model.llm.config=window.json train.recompute=true
mesh.cp=2 mesh.tp=2 mesh.cp_comm=p2p mesh.sequence_parallel=true | p.yaml model.path=MODELS/qwen2_window optimizer.lr=2e-3
mesh.pp=2 | p.yaml model.path=MODELS/llama_partial
mesh.tp=2 | p.yaml model.path=MODELS/llama_dynamic
LINES
    exits 1 mpirun_n 2 s2s-train p.yaml -j1 model.path="$ROOT/tests/oracle/models/llama_dynamic" run=no mesh.cp=2
    says "rope_type dynamic and longrope go by the length of each sequence, which ranks of mesh.cp share"
}

@test "long: cp: clips that are spread over ranks, and cross their chunks, train the encoder as one process" {
    speech
    equal <<'LINES'
mesh.cp=2 | s.yaml
mesh.cp=4 mesh.cp_comm=p2p | s.yaml train.recompute=true
mesh.cp=2 mesh.dp=2 mesh.cp_comm=a2a | s.yaml model.encoder.freeze=true
mesh.cp=2 | s.yaml model.encoder.batch_norm=batch train.packs_per_microbatch=2
mesh.cp=2 mesh.tp=2 mesh.sequence_parallel=true | s.yaml model.llm.freeze=true
LINES
}

@test "cp: parts that s2s-cpshard made are what the feed makes of the whole" {
    speech
    s2s-pack -q --ids ids.jsonl --tokens 64 --cp 2 -o whole.s2s
    s2s-pack -q --manifest m.jsonl --tokenizer tokenizer.json --prompt plain --audio pcm --tokens 80 --cp 2 -o sound.s2s
    s2s-cpshard -q --cp 2 whole.s2s -o whole-%r.s2s
    s2s-cpshard -q --cp 2 sound.s2s -o sound-%r.s2s
    equal <<'LINES'
mesh.cp=2 data.train=[whole-%r.s2s] | r.yaml data.train=[whole.s2s] train.packs_per_microbatch=2
mesh.cp=2 mesh.dp=2 data.train=[whole-%r.s2s] | r.yaml data.train=[whole.s2s] train.packs_per_microbatch=2
mesh.cp=2 data.train=[sound-%r.s2s] | s.yaml data.train=[sound.s2s]
LINES
    # the parts of other ranks, of another cp, of another stream or of none
    head -n 20 ids.jsonl | tac >back.jsonl
    s2s-pack -q --ids back.jsonl --tokens 64 --cp 2 -o back.s2s
    s2s-cpshard -q --cp 2 back.s2s -o back-%r.s2s
    cp whole-0.s2s stale-0.s2s
    cp back-1.s2s stale-1.s2s
    exits 1 mpirun_n 2 s2s-train r.yaml -j1 run=no mesh.cp=2 'data.train=[stale-%r.s2s]'
    says "other ranks of cp have parts of another record; cut the stream again"
    exits 1 s2s-train r.yaml run=no 'data.train=[whole-0.s2s]'
    says "training reads streams of kind pack or embed, found cpshard; name the files of all ranks by one name with %r"
    exits 1 s2s-train r.yaml run=no 'data.train=[whole-%r.s2s]'
    says "whole-0.s2s: the part of rank 0 of cp 2; this is rank 0 of cp 1"
    cp whole.s2s plain-0.s2s
    exits 1 s2s-train r.yaml run=no 'data.train=[plain-%r.s2s]'
    says "plain-0.s2s: a name with %r is that of a part of a stream, of kind cpshard; found pack"
    exits 2 s2s-train r.yaml run=no 'data.train=[whole-%r.s2s, whole.s2s]'
    says "names with %r, of parts of streams, and names without"
    exits 1 s2s-train r.yaml run=no 'data.train=[whole-%r.s2s]' train.token_dropout=0.1
    says "train.token_dropout wants whole sequences"
}

# weights_of RUN: digests of weights and moments
weights_of() {
    s2s-ckpt ls --json --sha256 "$1/checkpoints" | grep -v '"path"'
}

@test "the same mesh twice gives the same bytes" {
    for mesh in "mesh.tp=2 mesh.sequence_parallel=true" "mesh.cp=2 mesh.cp_comm=p2p"; do
        for run in a b; do
            rm -rf $run
            # shellcheck disable=SC2086
            s2s-train_on 2 r.yaml $mesh data.train=[odd.s2s] run=$run
        done
        alike "$(log a)" "$(log b)"
        alike "$(weights_of a)" "$(weights_of b)"
    done
}

@test "an evaluation says on any mesh what one process says, of generated text too" {
    speech
    sed -i 's/data: {/&eval: {seen: mel.s2s}, /' s.yaml
    s2s-train_on 1 s.yaml run=run train.steps=30 train.eval_every=30
    for mesh in "" mesh.tp=2 "mesh.tp=2 mesh.sequence_parallel=true" mesh.cp=2 "mesh.cp=2 mesh.cp_comm=p2p"; do
        n=1
        [ -z "$mesh" ] || n=2
        # shellcheck disable=SC2086
        mpirun_n $n s2s-train eval -j1 --json s.yaml run=run $mesh >"eval$mesh.json"
    done
    s2s-train_on 2 s.yaml run=tp train.steps=30 train.eval_every=30 mesh.tp=2
    s2s-train_on 2 s.yaml run=cp train.steps=30 train.eval_every=30 mesh.cp=2
    python3 - eval.json evalmesh*.json <<'PY'
import json, sys
one, *others = (json.load(open(f))["sets"][0] for f in sys.argv[1:])
assert len(others) == 4 and one["words"] > 10 and 0 < one["wer"], one
for e in others:
    assert abs(e["loss"] - one["loss"]) <= 2e-7 * one["loss"], (e, one)
    assert all(e[k] == one[k] for k in ("token_accuracy", "wer", "words", "utterances", "tokens")), (e, one)
a, *rest = (json.loads(open(run + "/eval.jsonl").read()) for run in ("run", "tp", "cp"))
for b in rest:
    assert abs(a["loss"] - b["loss"]) <= 1e-5 * a["loss"] and a["token_accuracy"] == b["token_accuracy"], (a, b)
PY
}

# deep: a tied model of as many layers as four stages want, and one of eight with an output layer of its own
deep() {
    sed 's/"num_hidden_layers": 2/"num_hidden_layers": 4/' llm.json >deep.json
    sed 's/"num_hidden_layers": 2/"num_hidden_layers": 8/; s/"tie_word_embeddings": true/"tie_word_embeddings": false/' llm.json >untied.json
    sed 's/llm.json/deep.json/' r.yaml >d.yaml
    sed 's/llm.json/untied.json/' r.yaml >u.yaml
}

@test "pp: stages of a decoder whose output layer is the embedding learn as one process" {
    deep
    equal <<'LINES'
mesh.pp=2 | d.yaml
mesh.pp=4 mesh.pp_layers=[0,1,3,0] | d.yaml train.recompute=true
mesh.pp=2 mesh.dp=2 | d.yaml data.train=[mute.s2s] data.shuffle=false train.packs_per_step=4
mesh.pp=2 mesh.vpp=2 mesh.tp=2 mesh.sequence_parallel=true | d.yaml data.train=[odd.s2s] train.packs_per_step=8 train.packs_per_microbatch=2
mesh.pp=2 | d.yaml model.freeze=["*embed*","*layers.0.*"]
mesh.pp=2 mesh.vpp=2 mesh.cp=2 | d.yaml
LINES
}

@test "pp: with an output layer of its own every bit is that of one process" {
    deep
    BITS=1 equal <<'LINES'
mesh.pp=4 | u.yaml train.packs_per_step=3
mesh.pp=2 mesh.vpp=2 | u.yaml train.recompute=true
mesh.pp=4 mesh.vpp=2 | u.yaml train.packs_per_step=14 mesh.vpp_group=5
mesh.pp=2 | p.yaml model.path=MODELS/qwen3
mesh.pp=2 mesh.vpp=2 | u.yaml train.precision=bf16-mixed
LINES
}

@test "pp: sound is encoded in the first stage; what is frozen ends the backward" {
    speech
    sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 4/; s/"tie_word_embeddings": true/"tie_word_embeddings": false/' llm.json
    BITS=1 equal <<'LINES'
mesh.pp=4 | s.yaml model.encoder.batch_norm=batch train.packs_per_step=4 train.packs_per_microbatch=2
mesh.pp=2 mesh.vpp=2 | s.yaml train.packs_per_step=4 train.recompute=true
mesh.pp=2 | s.yaml model.encoder.freeze=true model.llm.freeze=true
mesh.pp=4 | s.yaml model.encoder.freeze=true model.projection.freeze=true model.freeze=["*embed*","*layers.[012].*"]
LINES
}

@test "ep: ranks have experts each and send each other rows" {
    equal <<'LINES'
mesh.dp=2 mesh.ep=2 | p.yaml model.path=MODELS/qwen3_moe
mesh.dp=4 mesh.ep=4 | p.yaml model.path=MODELS/qwen3_moe train.recompute=true
mesh.dp=4 mesh.ep=2 | p.yaml model.path=MODELS/mixtral optimizer.lr=2e-3 train.packs_per_step=4
mesh.dp=2 mesh.ep=2 | p.yaml model.path=MODELS/mixtral optimizer.lr=2e-3 data.train=[odd.s2s] train.packs_per_step=8 train.packs_per_microbatch=2
mesh.dp=4 mesh.ep=4 | p.yaml model.path=MODELS/mixtral optimizer.lr=2e-3 data.train=[mute.s2s] data.shuffle=false train.packs_per_step=4
LINES
}

@test "long: ep: ranks of tp have columns of each expert, or experts of their own" {
    equal <<'LINES'
mesh.tp=2 | p.yaml model.path=MODELS/mixtral optimizer.lr=2e-3
mesh.tp=2 mesh.sequence_parallel=true | p.yaml model.path=MODELS/qwen3_moe data.train=[odd.s2s]
mesh.tp=2 mesh.sequence_parallel=true mesh.ep=2 mesh.etp=1 | p.yaml model.path=MODELS/qwen3_moe
mesh.tp=2 mesh.dp=2 mesh.ep=2 | p.yaml model.path=MODELS/qwen3_moe
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true mesh.ep=2 mesh.etp=2 | p.yaml model.path=MODELS/qwen3_moe data.train=[odd.s2s]
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true mesh.ep=2 mesh.etp=1 | p.yaml model.path=MODELS/mixtral optimizer.lr=2e-3 train.recompute=true
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true mesh.ep=4 mesh.etp=1 | p.yaml model.path=MODELS/mixtral optimizer.lr=2e-3 train.packs_per_step=4
LINES
}

@test "long: ep: beside cp and pp, and with experts that are frozen" {
    equal <<'LINES'
mesh.cp=2 mesh.ep=2 | p.yaml model.path=MODELS/qwen3_moe
mesh.pp=2 mesh.dp=2 mesh.ep=2 | p.yaml model.path=MODELS/mixtral optimizer.lr=2e-3 train.packs_per_step=4
mesh.dp=2 mesh.ep=2 | p.yaml model.path=MODELS/qwen3_moe model.freeze=["*.experts.*","*embed*"]
mesh.dp=2 mesh.ep=2 | p.yaml model.path=MODELS/mixtral optimizer.lr=2e-3 model.freeze=["*attn*","*norm*","*embed*","*gate*"]
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true mesh.ep=2 mesh.etp=1 | p.yaml model.path=MODELS/qwen3_moe mesh.data_parallel_sharding_strategy=optim mesh.bucket_mb=0.01
LINES
}

@test "long: ep: losses of balance are one process', in the gradients and in the log" {
    equal <<'LINES'
mesh.dp=2 mesh.ep=2 | p.yaml model.path=MODELS/qwen3_moe train.moe_aux_loss_coeff=0.5 train.moe_z_loss_coeff=0.1
mesh.tp=2 mesh.sequence_parallel=true mesh.ep=2 mesh.etp=1 | p.yaml model.path=MODELS/qwen3_moe data.train=[odd.s2s] train.packs_per_microbatch=2 train.moe_aux_loss_coeff=0.5 train.moe_router_load_balancing_type=seq_aux_loss train.recompute=true
mesh.tp=2 mesh.cp=2 mesh.sequence_parallel=true | p.yaml model.path=MODELS/qwen3_moe train.moe_aux_loss_coeff=0.5 train.moe_router_load_balancing_type=seq_aux_loss
mesh.tp=2 mesh.pp=2 | p.yaml model.path=MODELS/qwen3_moe train.moe_aux_loss_coeff=0.5 train.moe_z_loss_coeff=0.1
LINES
    # two runs of one process that differ in nothing else: what is asked for becomes smaller
    for coeff in 0 0.001 1; do
        s2s-train -q -j1 p.yaml model.path="$ROOT/tests/oracle/models/qwen3_moe" run=b$coeff train.moe_aux_loss_coeff=$coeff
    done
    jq -s -e 'all(.moe_balance == null)' b0/log.jsonl
    [ "$(jq -s 'last.moe_balance > 1' b1/log.jsonl)" = true ]
    [ "$(jq -s -n --slurpfile a b0.001/log.jsonl --slurpfile b b1/log.jsonl '($a[0].moe_balance == $b[0].moe_balance) and ($a | last.moe_balance) > ($b | last.moe_balance)')" = true ]
    exits 1 s2s-train -q p.yaml model.path="$ROOT/tests/oracle/models/qwen3_moe" run=bad train.moe_aux_loss_coeff=-1
    says "train.moe_aux_loss_coeff"
}

@test "ranks share Mamba heads, shared and latent experts, and move the biases of routers together" {
    jq '.moe_latent_size = 12 | .mlp_bias = true | .use_bias = true | .initializer_range = 0.2' "$ROOT/tests/oracle/models/nemotron_h/config.json" >latent.json
    equal <<'LINES'
mesh.tp=2 | p.yaml model.path=MODELS/nemotron_h optimizer.lr=2e-3 train.moe_router_bias_update_rate=1e-2
mesh.tp=2 mesh.sequence_parallel=true mesh.ep=2 mesh.etp=1 | p.yaml model.llm.config=latent.json optimizer.lr=2e-3 data.train=[odd.s2s] train.moe_router_bias_update_rate=1e-2 train.recompute=true
mesh.cp=2 mesh.cp_comm=p2p | p.yaml model.path=MODELS/nemotron_h_latent optimizer.lr=2e-3 data.train=[odd.s2s] train.moe_router_bias_update_rate=1e-2
mesh.dp=2 mesh.ep=2 train.packs_per_microbatch=1 | p.yaml model.llm.config=latent.json optimizer.lr=2e-3 data.train=[odd.s2s] train.moe_aux_loss_coeff=0.5 train.moe_router_load_balancing_type=global_aux_loss train.packs_per_step=2 train.packs_per_microbatch=2
LINES
}

@test "long: NemotronH on pipelines, divided parameters, and several axes at once" {
    jq '.moe_latent_size = 12 | .mlp_bias = true | .use_bias = true | .initializer_range = 0.2' "$ROOT/tests/oracle/models/nemotron_h/config.json" >latent.json
    jq '.mamba_num_heads = 8' latent.json >eight.json
    equal <<'LINES'
mesh.tp=2 mesh.sequence_parallel=true | p.yaml model.path=MODELS/nemotron_h optimizer.lr=2e-3 data.train=[odd.s2s] train.moe_router_bias_update_rate=1e-2
mesh.tp=2 mesh.sequence_parallel=true | p.yaml model.llm.config=latent.json optimizer.lr=2e-3 train.moe_aux_loss_coeff=0.5 train.moe_router_load_balancing_type=global_aux_loss
mesh.pp=2 mesh.dp=2 | p.yaml model.path=MODELS/nemotron_h optimizer.lr=2e-3 train.moe_router_bias_update_rate=1e-2 train.recompute=true
mesh.dp=2 mesh.data_parallel_sharding_strategy=optim | p.yaml model.path=MODELS/nemotron_h optimizer.lr=2e-3
mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params | p.yaml model.path=MODELS/nemotron_h optimizer.lr=2e-3 train.moe_router_bias_update_rate=1e-2
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true mesh.ep=4 mesh.etp=1 | p.yaml model.path=MODELS/nemotron_h optimizer.lr=2e-3 data.train=[odd.s2s] train.packs_per_step=4
mesh.cp=4 mesh.cp_comm=p2p | p.yaml model.path=MODELS/nemotron_h_latent optimizer.lr=2e-3 data.train=[odd.s2s] train.recompute=true
mesh.cp=2 mesh.cp_comm=a2a mesh.ep=2 | p.yaml model.llm.config=eight.json optimizer.lr=2e-3 data.train=[mute.s2s] data.shuffle=false train.moe_router_bias_update_rate=1e-2
mesh.tp=2 mesh.cp=2 mesh.sequence_parallel=true mesh.ep=2 mesh.etp=1 | p.yaml model.llm.config=eight.json optimizer.lr=2e-3 data.train=[odd.s2s] train.moe_router_bias_update_rate=1e-2
mesh.cp=2 mesh.dp=2 mesh.data_parallel_sharding_strategy=optim_grads_params | p.yaml model.llm.config=eight.json optimizer.lr=2e-3
mesh.tp=2 mesh.sequence_parallel=true mesh.cp=2 | p.yaml model.llm.config=eight.json optimizer.lr=2e-2 data.train=[odd.s2s] model.lora.rank=4
LINES
}

@test "dp: ranks that divide parameters, each part of the model or of the tokens by itself" {
    divided="mesh.data_parallel_sharding_strategy=optim_grads_params"
    equal <<LINES
mesh.dp=2 | r.yaml $divided
mesh.dp=4 | r.yaml $divided train.recompute=true data.train=[mute.s2s] data.shuffle=false
mesh.tp=2 mesh.dp=2 mesh.sequence_parallel=true | r.yaml $divided train.recompute=true
mesh.cp=2 mesh.dp=2 | r.yaml $divided
mesh.pp=2 mesh.dp=2 | r.yaml $divided data.train=[odd.s2s] train.packs_per_step=4
mesh.dp=2 | p.yaml model.path=MODELS/qwen3_moe $divided train.moe_aux_loss_coeff=0.5 train.moe_z_loss_coeff=0.1
mesh.dp=4 mesh.ep=2 | p.yaml model.path=MODELS/qwen3_moe $divided train.moe_aux_loss_coeff=0.5 train.moe_z_loss_coeff=0.1
LINES
}

@test "long: dp: ranks that divide parameters of pipelines and of experts" {
    divided="mesh.data_parallel_sharding_strategy=optim_grads_params"
    speech
    deep
    equal <<LINES
mesh.pp=2 mesh.vpp=2 mesh.dp=2 | d.yaml $divided train.packs_per_step=8
mesh.pp=2 mesh.vpp=2 mesh.dp=2 | r.yaml model.llm.config=untied.json $divided data.train=[mute.s2s] data.shuffle=false train.packs_per_step=4 train.recompute=true
mesh.cp=2 mesh.pp=2 | r.yaml $divided train.packs_per_step=3
mesh.cp=2 mesh.pp=2 mesh.tp=2 mesh.sequence_parallel=true | r.yaml $divided train.recompute=selective data.train=[odd.s2s]
mesh.dp=2 mesh.pp=2 | s.yaml $divided train.packs_per_step=4
mesh.dp=2 mesh.pp=2 | s.yaml $divided train.packs_per_step=4 model.llm.freeze=true
mesh.dp=2 mesh.pp=2 | s.yaml $divided train.packs_per_step=6 model.encoder.freeze=true train.recompute=true
mesh.dp=2 mesh.pp=2 | r.yaml $divided model.lora={"rank":4}
mesh.dp=2 mesh.pp=2 | r.yaml $divided model.freeze=["*"] model.unfreeze=["*layers.0.*"] train.packs_per_step=6
mesh.dp=2 mesh.pp=2 mesh.ep=2 | p.yaml model.path=MODELS/qwen3_moe $divided train.packs_per_step=4 train.moe_aux_loss_coeff=0.5 train.moe_z_loss_coeff=0.1
mesh.tp=2 mesh.dp=2 mesh.ep=2 mesh.etp=1 mesh.sequence_parallel=true | p.yaml model.path=MODELS/qwen3_moe $divided data.train=[odd.s2s]
mesh.dp=2 mesh.pp=2 | p.yaml model.path=MODELS/nemotron_h $divided optimizer.lr=2e-3 train.moe_router_bias_update_rate=1e-2
mesh.dp=4 mesh.ep=2 | p.yaml model.path=MODELS/nemotron_h $divided optimizer.lr=2e-3 train.moe_router_bias_update_rate=1e-2
mesh.dp=2 mesh.pp=2 | p.yaml model.path=MODELS/llama_gqa_tied $divided train.ema_decay=0.9
LINES
}

@test "long: dp: ranks that divide parameters of an encoder too, or of what is trained beside it" {
    divided="mesh.data_parallel_sharding_strategy=optim_grads_params"
    speech
    equal <<LINES
mesh.dp=2 | s.yaml $divided
mesh.dp=2 | s.yaml $divided model.encoder.freeze=true train.recompute=true
mesh.tp=2 mesh.dp=2 | s.yaml $divided model.llm.freeze=true
LINES
}

@test "ep: experts of all ranks are exported under their names" {
    model=$ROOT/tests/oracle/models/qwen3_moe
    s2s-train_on 2 p.yaml model.path="$model" run=mesh mesh.dp=2 mesh.ep=2 train.steps=1
    s2s-ckpt convert -q --to hf mesh/checkpoints out
    s2s-ckpt ls --json out | jq -r '.tensors[].name' | sort >names
    s2s-ckpt ls --json "$model" | jq -r '.tensors[].name' | sort | cmp - names
    exits 0 s2s-train probe --model out --inputs "$model/inputs.safetensors" --out probe
}

@test "ep: ranks that have other packs score a set, and do not generate its texts" {
    how=(p.yaml "model.path=$ROOT/tests/oracle/models/qwen3_moe" data.eval.seen=t.s2s)
    s2s-train_on 1 "${how[@]}" run=run
    cp "$ROOT/demo/tokenizer.json" .
    exits 1 mpirun_n 2 s2s-train eval "${how[@]}" run=run -j1 data.tokenizer=tokenizer.json mesh.dp=2 mesh.ep=2
    says "ranks that have other packs share experts (mesh.ep 2), and cannot generate text alone"
    says "give mesh.ep=1, or --no-text"
    s2s-train eval "${how[@]}" run=run -j1 --json >one.json
    mpirun_n 2 s2s-train eval "${how[@]}" run=run -j1 --json --no-text data.tokenizer=tokenizer.json mesh.dp=2 mesh.ep=2 >two.json
    jq -s -e '.[0].sets[0] as $a | .[1].sets[0] as $b | ($a.loss - $b.loss | fabs) <= 2e-7 * $a.loss and $a.tokens == $b.tokens and $a.token_accuracy == $b.token_accuracy' one.json two.json
}

@test "mixtures of experts that are computed otherwise are refused by their key" {
    model=$ROOT/tests/oracle/models/qwen3_moe
    sed 's/"norm_topk_prob"/"moe_gating_noise": 1, &/' "$model/config.json" >other.json
    exits 1 s2s-train -q p.yaml model.llm.config=other.json
    says "other.json"
    says "moe_gating_noise"
    sed 's/"router_jitter_noise": 0.0/"router_jitter_noise": 0.1/' "$ROOT/tests/oracle/models/mixtral/config.json" >other.json
    exits 1 s2s-train -q p.yaml model.llm.config=other.json
    says "router_jitter_noise"
}

@test "long: eight ranks of several axes at once learn as one process" {
    speech
    equal <<'LINES'
mesh.tp=2 mesh.cp=2 mesh.pp=2 mesh.sequence_parallel=true | r.yaml data.train=[odd.s2s]
mesh.dp=2 mesh.cp=2 mesh.pp=2 mesh.data_parallel_sharding_strategy=optim | r.yaml train.recompute=true
mesh.tp=2 mesh.cp=2 mesh.dp=2 mesh.cp_comm=p2p | r.yaml
mesh.tp=2 mesh.cp=2 mesh.dp=2 mesh.ep=4 mesh.sequence_parallel=true | p.yaml model.path=MODELS/qwen3_moe
mesh.tp=2 mesh.dp=2 mesh.pp=2 mesh.ep=2 | p.yaml model.path=MODELS/mixtral optimizer.lr=2e-3 train.packs_per_step=4
mesh.tp=2 mesh.cp=2 mesh.pp=2 mesh.sequence_parallel=true | s.yaml
LINES
}
