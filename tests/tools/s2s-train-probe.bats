# s2s-train probe: the numbers of decoders are transformers' numbers, whatever the layout.
load common

setup_tool() {
    M=$ROOT/tests/oracle/models
}

# probe MODEL OUT [OPTION...]
probe() {
    local model=$1 out=$2
    shift 2
    s2s-train probe --model "$M/$model" --inputs "$M/$model/inputs.safetensors" --out "$out" "$@"
}

# against MODEL OUT [OPTION...]: every tensor of the model's table, within its tolerance
against() {
    local model=$1 out=$2
    shift 2
    python3 "$ROOT/tests/oracle/compare.py" "$out" "$M/$model/expected.safetensors" "$M/$model/expected.json" \
        --mask "$M/$model/inputs.safetensors" "$@"
}

for_each_decoder() {
    local model
    for model in llama_gqa_untied llama_gqa_tied qwen2 qwen3 gemma1 mixtral qwen3_moe nemotron_h nemotron_h_latent mistral qwen2_window \
        llama_{linear,dynamic,yarn,longrope,partial}; do
        "$@" "$model"
    done
}

three_steps() {
    local model=$1
    shift
    probe "$model" "$model.out" --grads --steps 3 --optimizer "$M/$model/expected.json" "$@"
    against "$model" "$model.out"
}

@test "probe help, version" {
    exits 0 s2s-train probe --help
    says "--multiple"
    exits 0 s2s-train probe --version
    says "s2s-train"
}

@test "probe refuses an unknown option, a missing one, an unknown layout" {
    exits 2 s2s-train probe --frobnicate
    says "frobnicate"
    exits 2 s2s-train probe --model "$M/qwen2"
    says "--inputs"
    exits 2 probe qwen2 out --layout diagonal
    says "packed"
    exits 2 probe qwen2 out stray
    says "no input expected, found 'stray'"
    exits 2 s2s-train generate --model x hello.wav
    says "no input expected, found 'hello.wav'"
    exits 2 probe qwen2 out --steps 2
    says "--optimizer"
}

@test "probe does not replace its inputs" {
    cp "$M/qwen2/inputs.safetensors" "$M/qwen2/expected.json" .
    for out in inputs.safetensors expected.json; do
        exits 2 s2s-train probe --model "$M/qwen2" --inputs inputs.safetensors --steps 1 --optimizer expected.json --out ./$out
        says "$out: is part of the input: choose another OUT"
    done
    same "$M/qwen2/inputs.safetensors" inputs.safetensors
}

@test "probe says which input is absent" {
    exits 2 s2s-train probe --model "$M/none" --inputs x --out y
    says "none/config.json"
    exits 2 s2s-train probe --model "$M/qwen2" --inputs absent.safetensors --out y
    says "absent.safetensors"
    no_litter . ""
}

@test "decoders: activations, loss, gradients, three AdamW steps (packed)" {
    one() { three_steps "$1"; }
    for_each_decoder one
}

@test "decoders: the same as padded rows" {
    one() {
        # which go by the length of a row, padded or not
        case $1 in llama_dynamic | llama_longrope) return ;; esac
        three_steps "$1" --layout bshd
    }
    for_each_decoder one
}

@test "decoders: the same with utterances rounded up" {
    one() { three_steps "$1" --multiple 8; }
    for_each_decoder one
}

@test "the comparison fails where a tensor is missing or differs" {
    probe qwen2 out
    run against qwen2 out
    [ "$status" -eq 1 ]
    says "absent from the output"
    against qwen2 out --only hidden --only logits --only loss
    probe qwen2 rows --layout bshd
    flip rows 2003 6
    exits 1 against qwen2 rows --only hidden --only logits --only loss
}

@test "threads do not change a byte" {
    for jobs in 1 2 8; do
        OMP_NUM_THREADS=8 probe llama_gqa_tied "out$jobs" -j "$jobs" --grads --steps 3 --optimizer "$M/llama_gqa_tied/expected.json"
    done
    same out1 out2
    same out1 out8
}

@test "left padding is stripped when packed and refused as rows" {
    python3 - "$M/qwen2/inputs.safetensors" left.safetensors <<'PY'
import json, struct, sys
import numpy as np
data = open(sys.argv[1], "rb").read()
(size,) = struct.unpack("<Q", data[:8])
head = json.loads(data[8:8 + size])
out, parts, at = {}, [], 0
arrays = {}
for name, t in head.items():
    if name != "__metadata__":
        b, e = t["data_offsets"]
        arrays[name] = np.frombuffer(data[8 + size + b:8 + size + e], "<i8").reshape(t["shape"])
mask = arrays["attention_mask"]
for name, a in arrays.items():
    a = a.copy()
    for row, n in enumerate(mask.sum(1)):
        a[row] = np.roll(a[row], a.shape[1] - n)
    out[name] = {"dtype": "I64", "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
    at += a.nbytes
    parts.append(a.tobytes())
text = json.dumps(out).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + b"".join(parts))
PY
    s2s-train probe --model "$M/qwen2" --inputs left.safetensors --out out --grads
    against qwen2 out --only loss --only grad/
    exits 1 s2s-train probe --model "$M/qwen2" --inputs left.safetensors --out bad --layout bshd
    says "not padded on the right"
    [ ! -e bad ]
}

@test "holes in a mask, ids below 0 and an optimizer with one beta are refused" {
    PYTHONPATH="$ROOT/tests/tools" python3 - <<'PY'
import numpy as np
from small_safetensors import save
ids, mask = np.arange(1, 8, dtype="<i8")[None], np.ones((1, 7), "<i8")
save("whole", input_ids=("I64", ids), attention_mask=("I64", mask), labels=("I64", ids))
save("hole", input_ids=("I64", ids), attention_mask=("I64", mask * [1, 0, 1, 1, 1, 1, 1]), labels=("I64", ids))
save("below", input_ids=("I64", ids * 0 - 1))
PY
    exits 1 s2s-train probe --model "$M/qwen2" --inputs hole --out out
    says "hole: attention_mask: row 0 has a hole before column 2"
    exits 1 s2s-train probe --model "$M/qwen2" --inputs below --out out
    says "input_ids[0] = -1"
    echo '{"lr": 0.1, "betas": [0.9]}' >o.json
    exits 1 s2s-train probe --model "$M/qwen2" --inputs whole --out out --steps 1 --optimizer o.json
    says "s2s-train: o.json:1:22: betas: expected two numbers"
    [ ! -e out ]
}

@test "weights that do not fit are refused by name" {
    mkdir model
    cp "$M/qwen2/config.json" "$M/qwen2/model.safetensors" model/
    jq '.num_hidden_layers = 4 | del(.layer_types)' "$M/qwen2/config.json" >model/config.json
    exits 1 s2s-train probe --model model --inputs "$M/qwen2/inputs.safetensors" --out out
    says "tensors are absent"
    says "model.layers.2.self_attn.q_proj.bias"
    cp "$M/qwen2/config.json" model/
    sed -i 's/"intermediate_size": [0-9]*/"intermediate_size": 8/' model/config.json
    exits 1 s2s-train probe --model model --inputs "$M/qwen2/inputs.safetensors" --out out
    says "mlp.gate_proj.weight is ["
    sed -i 's/"model_type": "qwen2"/"model_type": "mystery"/' model/config.json
    exits 1 s2s-train probe --model model --inputs "$M/qwen2/inputs.safetensors" --out out
    says "mystery"
    says "config.json:"
    cp "$M/qwen2/config.json" model/
    mv model/model.safetensors model/pytorch_model.bin
    exits 2 s2s-train probe --model model --inputs "$M/qwen2/inputs.safetensors" --out out
    says "model/model.safetensors: cannot open"
    says "s2s-ckpt convert --to hf makes a model of any checkpoint"
    [ ! -e out ]
}

# edited FROM FILTER: the numbers of a model with another config
edited() {
    rm -rf model
    mkdir model
    cp "$M/$1/model.safetensors" model/
    jq -c "$2" "$M/$1/config.json" >model/config.json
    s2s-train probe --model model --inputs "${inputs:-$M/$1/inputs.safetensors}" --grads --out out
}

@test "a key of a config that may change what is computed is an error, others are named" {
    edited qwen2 '. + {use_cache: false, temperature: 0.7, residual_multiplier: null, logit_scale: 0}'
    says_not "warning"
    run edited qwen2 '.author = "x" | .remark = "y"'
    [ "$status" -eq 0 ]
    says "model/config.json: keys that are not known, and not read: author, remark"
    for key in attention_bias residual_in_fp32 tie_word_embeddings mamba_proj_bias; do
        exits 1 edited nemotron_h ".$key = true"
        says "$key: "
        says "not implemented"
    done
    exits 1 edited nemotron_h '.residual_scale = 2'
    says "residual_scale: not a key of nemotron_h that is known"
    exits 1 edited qwen2 '.mlp_bias = true' # a key of Llama's
    says "config.json:1:"
    says "mlp_bias: not a key of qwen2 that is known, and it may change what is computed; qwen2 knows vocab_size"
    exits 1 edited mistral '.attention_bias = true'
    says "attention_bias"
    exits 1 edited llama_linear '.sliding_window = 4'
    says "sliding_window"
    exits 1 edited llama_linear '.attention_dropout = 1.5'
    says "attention_dropout: expected a share of at least 0 and below 1, found 1.5"
    exits 1 edited llama_linear '.quantization_config = {bits: 4}'
    says "quantization_config"
    exits 1 edited llama_linear 'del(.vocab_size, .num_hidden_layers)'
    says "llama needs vocab_size, num_hidden_layers"
    exits 1 edited gemma1 '.hidden_activation = "silu"'
    says "hidden_activation: it is not read; hidden_act says the activation"
    exits 1 edited gemma1 '.use_bidirectional_attention = true'
    says "attention to what comes later is not implemented"
}

@test "both spellings of scaled positions mean the same, and others are refused" {
    local old='.rope_theta = .rope_parameters.rope_theta | .rope_scaling = (.rope_parameters | del(.rope_theta)) | del(.rope_parameters)'
    for model in llama_dynamic llama_yarn qwen2_window llama_longrope; do
        edited $model .
        mv out want
        edited $model "$old"
        same want out
        edited $model "$old | .rope_scaling.type = .rope_scaling.rope_type | del(.rope_scaling.rope_type)"
        same want out
        edited $model "$old | .rope_theta = 50"
        exits 1 cmp -s want out
    done
    edited llama_partial "$old | .partial_rotary_factor = 0.5 | del(.rope_scaling)" 2>/dev/null
    mv out want
    edited llama_partial . 2>/dev/null
    same want out
    # each setting counts
    edited qwen2_window .
    mv out want
    for key in beta_fast beta_slow mscale factor truncate original_max_position_embeddings; do
        edited qwen2_window "del(.rope_parameters.$key)"
        exits 1 cmp -s want out
    done
    edited qwen2_window '.rope_parameters.attention_factor = 1.5'
    exits 1 cmp -s want out
    exits 1 edited llama_yarn '.rope_parameters.rope_type = "mrope"'
    says "mrope"
    says "longrope"
    exits 1 edited llama_yarn '.rope_parameters.attention_scale = 2'
    says "attention_scale: not a key of yarn that is known"
    exits 1 edited llama_longrope '.rope_parameters.long_factor = [1]'
    says "long_factor: 1 factors for 4 frequencies"
    exits 1 edited llama_linear '.rope_parameters.factor = 0'
    says "expected a number above 0, found 0"
    exits 1 edited llama_linear 'del(.rope_parameters.factor)'
    says "no factor"
    exits 1 edited llama_partial '.rope_parameters.partial_rotary_factor = 0.25'
    says "0.25 of head_dim 12 are 3 components; rotation needs an even number of them"
}

@test "windows are those of each family and layer" {
    edited mistral .
    mv out want
    edited mistral '.layer_types = ["sliding_attention", "sliding_attention"]' # what it does anyway
    same want out
    exits 1 edited mistral '.layer_types = ["sliding_attention", "full_attention"]'
    says "transformers' class of mistral has sliding_attention in every layer"
    edited mistral '.sliding_window = null'
    exits 1 cmp -s want out
    mv out whole
    edited mistral 'del(.sliding_window)' # 4096
    same whole out
    exits 1 edited mistral '.sliding_window = 0'
    says "sliding_window"
    edited qwen2_window .
    mv out want
    edited qwen2_window 'del(.layer_types)'
    same want out
    edited qwen2_window 'del(.max_window_layers)' # the list says it
    same want out
    edited qwen2_window '.layer_types = ["sliding_attention", "full_attention"]'
    exits 1 cmp -s want out
    exits 1 edited qwen2_window '.use_sliding_window = false'
    says "no window is given (sliding_window, use_sliding_window)"
    edited mixtral '.'
    mv out whole
    edited mixtral '.sliding_window = 3'
    exits 1 cmp -s whole out
    edited qwen3_moe '.sliding_window = 3'
    mv out whole
    edited qwen3_moe '.sliding_window = 3 | .use_sliding_window = true'
    exits 1 cmp -s whole out
}

@test "absent keys of a config are what transformers takes for them" {
    # Gemma's row of padding gets no gradient of the look-up, where its id is a word's
    local inputs=words.safetensors
    python3 - "$M/gemma1/inputs.safetensors" "$inputs" <<'PY'
import json, sys
data = bytearray(open(sys.argv[1], "rb").read())
n = 8 + int.from_bytes(data[:8], "little")
first = n + json.loads(data[8:n])["input_ids"]["data_offsets"][0]
data[first:first + 8] = bytes(8)
open(sys.argv[2], "wb").write(data)
PY
    edited gemma1 .
    mv out want
    edited gemma1 'del(.pad_token_id)'
    same want out
    edited gemma1 '.hidden_act = "gelu" | del(.hidden_activation)'
    same want out
    edited gemma1 'del(.hidden_act, .hidden_activation)'
    same want out
    edited gemma1 '.hidden_act = "silu"'
    exits 1 cmp -s want out
    edited gemma1 '.pad_token_id = null' # said to be none
    exits 1 cmp -s want out
    exits 1 edited gemma1 'del(.head_dim)'
    says "q_proj.weight is [64, 48]; the config asks for [1024, 48]"
    exits 1 edited qwen3 'del(.head_dim)'
    says "q_proj.weight is [80, 48]; the config asks for [512, 48]"
    unset inputs
    exits 1 edited qwen2 '.is_causal = false'
    says "is_causal: attention to what comes later is not implemented"
    # torch counts rows from the end
    edited llama_gqa_untied '.pad_token_id = .vocab_size - 1'
    mv out want
    edited llama_gqa_untied '.pad_token_id = -1'
    same want out
}

@test "truncated weights, truncated inputs, a full disk" {
    mkdir model
    cp "$M/qwen2/config.json" model/
    head -c 100000 "$M/qwen2/model.safetensors" >model/model.safetensors
    exits 1 s2s-train probe --model model --inputs "$M/qwen2/inputs.safetensors" --out out
    says "model/model.safetensors"
    head -c 900 "$M/qwen2/inputs.safetensors" >short.safetensors
    exits 1 s2s-train probe --model "$M/qwen2" --inputs short.safetensors --out out
    says "short.safetensors"
    [ ! -e out ]
    run bash -c 's2s-train probe --model "$1" --inputs "$1/inputs.safetensors" -o - >/dev/full' _ "$M/qwen2"
    [ "$status" -eq 1 ]
    probe qwen2 out
    s2s-train probe --model "$M/qwen2" --inputs "$M/qwen2/inputs.safetensors" -o - >piped
    same out piped
}

@test "weights in shards with an index" {
    mkdir sharded
    cp "$M/qwen2/config.json" sharded/
    python3 - "$M/qwen2/model.safetensors" sharded <<'PY'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
(size,) = struct.unpack("<Q", data[:8])
head = json.loads(data[8:8 + size])
head.pop("__metadata__", None)
names, index = sorted(head), {}
for part in range(2):
    shard, out, at, raw = "model-%d.safetensors" % part, {}, 0, b""
    for name in names[part::2]:
        b, e = head[name]["data_offsets"]
        out[name] = dict(head[name], data_offsets=[at, at + e - b])
        at += e - b
        raw += data[8 + size + b:8 + size + e]
        index[name] = shard
    text = json.dumps(out).encode()
    open(sys.argv[2] + "/" + shard, "wb").write(struct.pack("<Q", len(text)) + text + raw)
json.dump({"weight_map": index}, open(sys.argv[2] + "/model.safetensors.index.json", "w"))
PY
    s2s-train probe --model sharded --inputs "$M/qwen2/inputs.safetensors" --out out
    probe qwen2 whole
    same out whole
    rm sharded/model-1.safetensors
    exits 2 s2s-train probe --model sharded --inputs "$M/qwen2/inputs.safetensors" --out out
    says "model-1.safetensors"
}

@test "killed in the middle leaves no file" {
    s2s-train probe --model "$M/qwen2" --inputs "$M/qwen2/inputs.safetensors" --out out --steps 1000000 \
        --optimizer "$M/qwen2/expected.json" &
    pid=$!
    sleep 0.4
    kill -TERM $pid
    wait $pid || true
    no_litter . ""
}
