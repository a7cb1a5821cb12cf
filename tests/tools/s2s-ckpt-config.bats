#!/usr/bin/env bats
# s2s-ckpt convert --to hf: config.json out of the arguments that Megatron saves.
load common

setup_tool() {
    MODELS=$ROOT/tests/oracle/models
    DATA=$ROOT/tests/oracle/ckpt/data
}

# megatron MODEL [ARG=JSON..]: in/ is the model as Megatron's script would have saved it, with these arguments changed (null: absent)
megatron() {
    rm -rf in
    s2s-ckpt convert -q --to torch_dist --map "${MAP:-llama}" "$MODELS/$1" in
    python3 - "$MODELS/$1/config.json" "${@:2}" <<'PY'
import argparse, glob, json, pickle, sys, zipfile
c = json.load(open(sys.argv[1]))
heads = c["num_attention_heads"]
args = dict(num_layers=c["num_hidden_layers"], hidden_size=c["hidden_size"], ffn_hidden_size=c["intermediate_size"],
            num_attention_heads=heads, group_query_attention=True, num_query_groups=c["num_key_value_heads"],
            kv_channels=c.get("head_dim", c["hidden_size"] // heads), vocab_size=c["vocab_size"], norm_epsilon=c["rms_norm_eps"],
            max_position_embeddings=c["max_position_embeddings"], normalization="RMSNorm", add_bias_linear=False, swiglu=True,
            position_embedding_type="rope", rotary_base=int(c.get("rope_theta") or c["rope_parameters"]["rope_theta"]), rotary_percent=1.0,
            window_size=None)
for word in sys.argv[2:]:
    key, value = word.split("=", 1)
    args[key] = json.loads(value)
    if args[key] is None:
        del args[key]
with zipfile.ZipFile(glob.glob("in/*/common.pt")[0], "w") as z:
    z.writestr("common/data.pkl", pickle.dumps({"args": argparse.Namespace(**args), "iteration": 5, "checkpoint_version": 3.0}, 2))
    z.writestr("common/byteorder", "little")
    z.writestr("common/version", "3\n")
PY
}

# what config.json says of these keys, 1.0 as 1
config() {
    jq -c "walk(if type == \"number\" then . + 0 else . end) | [$1]" out/config.json
}

@test "config.json: the sizes and the kind of Llama, Qwen and Gemma" {
    while read -r name changes; do
        # shellcheck disable=SC2086
        megatron "$name" $changes
        rm -rf out
        exits 0 s2s-ckpt convert --strict --to hf in out
        python3 - "$MODELS/$name/config.json" "$output" <<'PY'
import json, sys
want, got = json.load(open(sys.argv[1])), json.load(open("out/config.json"))
for key in ("model_type", "architectures", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads",
            "vocab_size", "rms_norm_eps", "max_position_embeddings", "hidden_act", "tie_word_embeddings"):
    assert got[key] == want.get(key, got[key]), (key, got[key], want)
rope = want.get("rope_parameters") or want
assert got["rope_theta"] == rope["rope_theta"], got
assert ("do not say hidden_act;" in sys.argv[2]) == (want["model_type"] == "gemma"), sys.argv[2]
PY
    done <<'LIST'
llama_gqa_untied
qwen2 add_qkv_bias=true
qwen3 qk_layernorm=true
gemma1 swiglu=false apply_layernorm_1p=true
LIST
}

@test "config.json: positions that are stretched, windows" {
    megatron llama_gqa_untied use_rope_scaling=true rope_scaling_factor=32.0
    exits 0 s2s-ckpt convert -q --to hf in out
    [ "$(config '.rope_scaling | .rope_type, .factor, .original_max_position_embeddings')" = '["llama3",32,8192]' ]
    megatron llama_gqa_untied rotary_seq_len_interpolation_factor=4
    rm -r out
    exits 0 s2s-ckpt convert -q --to hf in out
    [ "$(config '.model_type, .rope_scaling.rope_type, .rope_scaling.factor')" = '["llama","linear",4]' ]
    # transformers counts the token that looks as well
    megatron llama_gqa_untied 'window_size=[7,0]'
    rm -r out
    exits 0 s2s-ckpt convert -q --to hf in out
    [ "$(config '.model_type, .sliding_window')" = '["mistral",8]' ]
    megatron qwen3 'window_size=[7,0]' window_attn_skip_freq=2
    rm -r out
    exits 0 s2s-ckpt convert -q --to hf in out
    [ "$(config '.sliding_window, .use_sliding_window, .layer_types[0:2]')" = '[8,true,["sliding_attention","full_attention"]]' ]
    # only Llama has such biases, and its attention no window
    mkdir -p models/biased
    jq '.attention_bias = true' "$MODELS/llama_gqa_untied/config.json" >models/biased/config.json
    python3 - "$MODELS/llama_gqa_untied/model.safetensors" <<'PY'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head, body = json.loads(raw[8:8 + n]), raw[8 + n:]
for name, t in list(head.items()):
    if ".self_attn." in name:
        head[name[:-6] + "bias"] = {"dtype": "F32", "shape": t["shape"][:1], "data_offsets": [len(body), len(body) + 4 * t["shape"][0]]}
        body += bytes(4 * t["shape"][0])
text = json.dumps(head).encode()
open("models/biased/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + body)
PY
    MODELS=$PWD/models
    megatron biased
    rm -r out
    exits 0 s2s-ckpt convert -q --to hf in out
    [ "$(config '.model_type, .attention_bias')" = '["llama",true]' ]
    megatron biased 'window_size=[7,0]'
    rm -r out
    exits 0 s2s-ckpt convert --to hf in out
    says "no config.json: its attention has a window"
    not test -e out/config.json
}

@test "config.json: numbers keep all their digits, and get none that they have not" {
    megatron llama_gqa_untied norm_epsilon=2.1521004660427574e-05 rotary_base=12345.600000000002
    exits 0 s2s-ckpt convert -q --to hf in exact
    # jq writes numbers as its version does
    python3 -c 'import json; c = json.load(open("exact/config.json")); assert (c["rms_norm_eps"], c["rope_theta"]) == (2.1521004660427574e-05, 12345.600000000002), c'
    megatron llama_gqa_untied norm_epsilon=1e-05
    exits 0 s2s-ckpt convert -q --to hf in plain
    not grep -q '0000000[0-9]*e-' plain/config.json
}

@test "config.json: the norms' epsilon is called as Megatron-LM has called it since 0.16, too" {
    megatron llama_gqa_untied norm_epsilon=null layernorm_epsilon=0.25
    exits 0 s2s-ckpt convert --strict --to hf in out
    [ "$(config .rms_norm_eps)" = "[0.25]" ]
    says_not "do not say"
    # and where a run began with an older release
    megatron llama_gqa_untied norm_epsilon=0.5 layernorm_epsilon=0.25
    rm -r out
    exits 0 s2s-ckpt convert -q --to hf in out
    [ "$(config .rms_norm_eps)" = "[0.25]" ]
}

@test "config.json: a text may hold U+0000, which is kept" {
    cp -r "$MODELS/llama_gqa_untied" in
    jq '.mark = "a\u0000b" | .small = 0.1' "$MODELS/llama_gqa_untied/config.json" >in/config.json
    exits 0 s2s-ckpt convert -q --to torch_dist --map llama in dist
    exits 0 s2s-ckpt convert -q --to hf --dtype bf16 dist out
    [ "$(jq -c '[.mark, .small, .dtype // .torch_dtype]' out/config.json)" = '["a\u0000b",0.1,"bfloat16"]' ]
    grep -q '"small": 0.1,*$' out/config.json
}

@test "config.json: what arguments do not say is named in one line" {
    megatron llama_gqa_untied norm_epsilon=null rotary_base=null
    exits 0 s2s-ckpt convert --to hf in out
    says "do not say rms_norm_eps, rope_theta; the defaults of llama apply"
    [ "$(config '.rms_norm_eps, .rope_theta')" = "[null,null]" ]
    # nor what no number is
    megatron llama_gqa_untied 'norm_epsilon="1e-5"' 'rotary_base=[]' max_position_embeddings=true
    exits 0 s2s-ckpt convert --to hf in other
    says "max_position_embeddings"
    says "rms_norm_eps"
    says "rope_theta"
    jq -e 'has("rms_norm_eps") or has("rope_theta") or has("max_position_embeddings") | not' other/config.json
}

@test "config.json: what transformers' model cannot do gives none, and a word why" {
    while read -r change why; do
        turn || continue
        megatron llama_gqa_untied "$change"
        rm -rf out
        exits 0 s2s-ckpt convert --to hf in out
        says "no config.json: $why"
        [ ! -e out/config.json ]
    done <<'LIST'
normalization="LayerNorm" its normalization is not RMSNorm
add_bias_linear=true its linear layers have biases
swiglu=false its activation is not swiglu
apply_layernorm_1p=true its norms have gains around 0
rotary_percent=0.5 its rotary embedding is partial
position_embedding_type="yarn" its position embedding is not RoPE
no_rope_freq=4 some of its layers have no position embedding
qk_l2_norm=true its queries and keys are divided by their lengths
enable_mhc_connections=true it has hyper-connections (several residual streams)
moe_apply_probs_on_input=true its router scales the experts' inputs, not their outputs
moe_router_load_balancing_type="sinkhorn" its router balances the experts by Sinkhorn's algorithm
moe_router_load_balancing_type=["quantile_balancing"] its router balances the experts by quantiles
moe_router_load_balancing_type=["sinkhorn"] its router balances the experts by Sinkhorn's algorithm
softmax_scale=0.5 its softmax_scale is not 1 / sqrt(head_dim)
LIST
    # a config.json that is given is all that is needed
    exits 0 s2s-ckpt convert --config "$MODELS/llama_gqa_untied/config.json" --to hf in given
    case $output in *"no config.json"*) false ;; esac
    [ "$(jq -r .model_type given/config.json)" = llama ]
}

@test "config.json of a quantised model: what is written out of Megatron's weights is not" {
    megatron llama_gqa_untied
    jq '.quantization_config = {quant_method: "fp8"}' "$MODELS/llama_gqa_untied/config.json" >config.json
    exits 0 s2s-ckpt convert --strict --to hf --config config.json in out
    says "config.json: quantization_config is left out"
    exits 0 s2s-ckpt diff "$MODELS/llama_gqa_untied" out
    jq -e 'del(.quantization_config) == $want' --argjson want "$(jq 'del(.quantization_config)' config.json)" out/config.json
    [ "$(config .quantization_config)" = "[null]" ]
    # also inside of a model of several parts; what has no map keeps its own
    jq '{model_type: "own", text_config: .}' config.json >config2.json
    exits 0 s2s-ckpt convert --to hf --config config2.json in parts
    jq -e '.text_config | has("quantization_config") | not' parts/config.json
    mkdir plain
    cp "$MODELS/llama_gqa_untied/model.safetensors" config.json plain
    exits 0 s2s-ckpt convert --to hf plain same
    says_not "quantization_config"
    jq -e .quantization_config same/config.json
}

@test "config.json: an output matrix of its own is not tied, whatever the configuration says" {
    # (transformers 4 leaves out the matrix of a folder that is said to be tied)
    M=$MODELS/llama_gqa_untied
    jq '.tie_word_embeddings = true' "$M/config.json" >config.json
    mkdir tied
    cp "$M/model.safetensors" config.json tied
    echo '{"bos_token_id": 1}' >tied/generation_config.json # says nothing of words
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama tied own
    megatron llama_gqa_untied untie_embeddings_and_output_weights=true
    for source in own "--config config.json in"; do
        rm -rf out
        # shellcheck disable=SC2086
        exits 0 s2s-ckpt convert --strict --to hf $source out
        says "output_layer.weight is a matrix of its own"
        [ "$(config .tie_word_embeddings)" = "[false]" ]
        exits 0 s2s-ckpt diff "$M" out
        [ "$source" != own ] || same tied/generation_config.json out/generation_config.json
    done
    # also where it says nothing and the class ties, as Gemma's does
    jq '.model_type = "gemma" | del(.tie_word_embeddings)' config.json >gemma.json
    rm -rf out
    exits 0 s2s-ckpt convert --to hf --config gemma.json in out
    says "output_layer.weight is a matrix of its own"
    [ "$(config .tie_word_embeddings)" = "[false]" ]
    # also in a folder whose names are kept
    rm -rf out
    exits 0 s2s-ckpt convert --strict --to hf tied out
    says "lm_head.weight differs from model.embed_tokens.weight"
    [ "$(config .tie_word_embeddings)" = "[false]" ]
    # arguments that say tied too are let be
    megatron llama_gqa_untied untie_embeddings_and_output_weights=false
    exits 0 s2s-ckpt convert --strict --to hf --config config.json in kept
    says_not "a matrix of its own"
    grep -q '"tie_word_embeddings": true' kept/config.json
    # and one that is the words' by the arguments is: transformers would begin one at random
    rm -rf in
    megatron llama_gqa_tied untie_embeddings_and_output_weights=false
    jq '.tie_word_embeddings = false' "$MODELS/llama_gqa_tied/config.json" >config.json
    exits 0 s2s-ckpt convert --strict --to hf --config config.json in shared
    says "output_layer.weight is tied to the word embeddings by the arguments"
    grep -q '"tie_word_embeddings": true' shared/config.json
    # also where it says nothing, by which Llama's class has a matrix
    jq 'del(.tie_word_embeddings)' config.json >silent.json
    exits 0 s2s-ckpt convert --strict --to hf --config silent.json in said
    says "config.json gets tie_word_embeddings true"
    grep -q '"tie_word_embeddings": true' said/config.json
}

@test "to Megatron: an output matrix that is stored beside the words it is tied to, bit for bit the same, is theirs" {
    T=$MODELS/llama_gqa_tied
    twice() { # FOLDER BYTE: the model with its words again, the last byte but one another by so much
        mkdir "$1"
        cp "$T/config.json" "$1"
        python3 - "$T/model.safetensors" "$1/model.safetensors" "$2" <<'PY'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head, body = json.loads(raw[8:8 + n]), raw[8 + n:]
words = head["model.embed_tokens.weight"]
copy = bytearray(body[slice(*words["data_offsets"])])
copy[-2] ^= int(sys.argv[3])
head["lm_head.weight"] = dict(words, data_offsets=[len(body), len(body) + len(copy)])
text = json.dumps(head).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + body + copy)
PY
    }
    twice same 0
    twice other 1
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama "$T" once
    exits 0 s2s-ckpt convert -v --strict --to torch_dist --map llama same out
    says "lm_head.weight is a copy of model.embed_tokens.weight"
    exits 0 s2s-ckpt diff once out
    exits 0 s2s-ckpt convert -q --strict --to hf out back
    exits 0 s2s-ckpt diff "$T" back
    grep -q '"tie_word_embeddings": true' back/config.json
    # a map of one's own says what it wants
    printf 'family own\nembedding.word_embeddings.weight model.embed_tokens.weight copy\noutput_layer.weight lm_head.weight copy\n' >own.map
    rm -r out
    exits 0 s2s-ckpt convert -q --to torch_dist --map own.map same out
    [ "$(s2s-ckpt ls out | grep -c '^output_layer.weight')" -eq 1 ]
    # untied by its configuration, it is one that is to be trained
    rm -r out
    jq '.tie_word_embeddings = false' "$T/config.json" >untied.json
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama --config untied.json same out
    [ "$(s2s-ckpt ls out | grep -c '^output_layer.weight')" -eq 1 ]
    rm -r out
    exits 0 s2s-ckpt convert -v --strict --to torch_dist --map llama other out
    says_not "is a copy"
    [ "$(s2s-ckpt ls out | grep -c '^output_layer.weight')" -eq 1 ]
}

@test "config.json of another kind of model is refused: transformers would leave out what its class has not" {
    while read -r name type tensor; do
        turn || continue
        rm -rf in
        s2s-ckpt convert -q --to torch_dist --map llama "$MODELS/$name" in
        jq ".model_type = \"$type\"" "$MODELS/$name/config.json" >other.json
        exits 1 s2s-ckpt convert --to hf --config other.json in out
        says "model.layers.0.$tensor: the configuration says that this is a $type, which has none"
        not test -e out
        jq '.auto_map = {}' other.json >own.json # code of one's own
        exits 0 s2s-ckpt convert -q --strict --to hf --config own.json in out
        rm -rf out
        exits 0 s2s-ckpt convert -q --strict --to hf --config "$MODELS/$name" in out
        rm -rf out
    done <<'LIST'
qwen3 llama self_attn.q_norm.weight
qwen3 qwen2 self_attn.q_norm.weight
qwen2 mistral self_attn.q_proj.bias
llama_gqa_untied mixtral mlp.gate_proj.weight
llama_gqa_untied nemotron_h mlp.gate_proj.weight
LIST
    s2s-ckpt convert -q --to torch_dist --map llama "$MODELS/qwen2" biased
    jq '.model_type = "llama"' "$MODELS/qwen2/config.json" >llama.json
    exits 1 s2s-ckpt convert --to hf --config llama.json biased out
    says "which has none without attention_bias"
    jq '.model_type = "qwen2_moe" | .qkv_bias = false' "$MODELS/qwen2/config.json" >off.json
    exits 1 s2s-ckpt convert --to hf --config off.json biased out
    says "the configuration says that this is a qwen2_moe, which has none without qkv_bias"
    jq '.model_type = "nemotron"' llama.json >nemotron.json # by the configuration alone it would be taken for one
    exits 1 s2s-ckpt convert --to hf --map llama --config nemotron.json biased out
    says "--map llama: the configuration says that this is a nemotron"
    says "--map nemotron is that family's"
    # to Megatron's names too, and what its class always has
    while read -r name type map why; do
        turn || continue
        jq ".model_type = \"$type\"" "$MODELS/$name/config.json" >other.json
        exits 1 s2s-ckpt convert --to torch_dist --map $map --config other.json "$MODELS/$name" out
        says "the configuration says that this is a $type"
        says "$why"
        not test -e out
    done <<'LIST'
qwen3 llama llama model.layers.0.self_attn.q_norm.weight
qwen2 mistral llama model.layers.0.self_attn.q_proj.bias
llama_gqa_untied mixtral llama --map mixtral
llama_gqa_untied gemma2 llama --map gemma2
qwen3 qwen3_moe nemotron --map qwen_moe
LIST
    s2s-ckpt convert -q --to torch_dist --map llama "$MODELS/llama_gqa_untied" plain
    jq '.model_type = "gemma2"' "$MODELS/llama_gqa_untied/config.json" >gemma2.json
    exits 1 s2s-ckpt convert --to hf --config gemma2.json plain out
    says 'this is a gemma2, whose layers have ".pre_feedforward_layernorm.weight": no tensor is called so'
    # its class has no biases in the MLP, whatever a key says
    python3 - "$MODELS/llama_gqa_untied/model.safetensors" <<'PY'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head, body = json.loads(raw[8:8 + n]), raw[8 + n:]
for name, t in list(head.items()):
    for kind in ("q", "k", "v", "gate", "up", "down"):
        if name.endswith(kind + "_proj.weight"):
            head[name[:-6] + "bias"] = {"dtype": "F32", "shape": t["shape"][:1], "data_offsets": [len(body), len(body) + 4 * t["shape"][0]]}
            body += bytes(4 * t["shape"][0])
text = json.dumps(head).encode()
open("biases.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + body)
PY
    jq '.model_type = "qwen2"' "$MODELS/llama_gqa_untied/config.json" >qwen2.json
    exits 1 s2s-ckpt convert --to torch_dist --map qwen2 --config qwen2.json biases.safetensors out
    says "mlp.down_proj.bias: the configuration says that this is a qwen2, which has none;"
}

@test "config.json: the router decides, and Mixtral has names of its own" {
    python3 - <<'PY'
import json, struct
head, at = {}, 0
def add(name, *shape):
    global at
    size = 4
    for d in shape:
        size *= d
    head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
    at += size
add("model.embed_tokens.weight", 10, 4); add("model.norm.weight", 4); add("lm_head.weight", 10, 4)
for n in range(2):
    p = "model.layers.%d." % n
    add(p + "input_layernorm.weight", 4); add(p + "post_attention_layernorm.weight", 4)
    for x, rows in (("q", 8), ("k", 4), ("v", 4)):
        add(p + "self_attn.%s_proj.weight" % x, rows, 4)
    add(p + "self_attn.o_proj.weight", 4, 8)
    add(p + "block_sparse_moe.gate.weight", 3, 4)
    for e in range(3):
        q = p + "block_sparse_moe.experts.%d." % e
        add(q + "w1.weight", 5, 4); add(q + "w3.weight", 5, 4); add(q + "w2.weight", 4, 5)
text = json.dumps(head).encode()
open("mixtral.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + bytes(i % 251 for i in range(at)))
PY
    mkdir -p mixtral && mv mixtral.safetensors mixtral/model.safetensors
    cat >mixtral/config.json <<'JSON'
{"model_type": "mixtral", "head_dim": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 3, "hidden_size": 4, "intermediate_size": 5,
 "num_hidden_layers": 2, "vocab_size": 10, "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "rope_theta": 10000.0}
JSON
    MODELS=$PWD
    MAP=mixtral megatron mixtral num_experts=3 moe_router_topk=2 moe_router_pre_softmax=false
    # no norms of q and k, no biases, no shared expert: of these Qwen's have at least one
    exits 0 s2s-ckpt convert --to hf in back
    exits 0 s2s-ckpt diff mixtral back
    # a configuration of Qwen's, or its map, is taken at its word: what transformers would begin at random is missed
    exits 0 s2s-ckpt convert --map qwen_moe --to hf in out
    says "no config.json: Qwen2-MoE has a shared expert (with --map mixtral: Mixtral's names)"
    sed 's/mixtral/qwen2_moe/; s/num_local_experts/num_experts/' mixtral/config.json >qwen.json
    exits 1 s2s-ckpt convert --config qwen.json --to hf in qwen
    says "model.layers.0.self_attn.q_proj.bias (of decoder.layers.0.self_attention.linear_qkv.bias)"
    says "model.layers.1.mlp.shared_expert_gate.weight"
    exits 1 s2s-ckpt convert --config <(jq '.model_type = "qwen3_moe"' qwen.json) --to hf in qwen
    says "model.layers.0.self_attn.q_norm.weight (of decoder.layers.0.self_attention.q_layernorm.weight)"
    [ ! -e qwen ]
    rm -r out && cp -r back out
    [ "$(config '.model_type, .num_local_experts, .intermediate_size, .num_experts_per_tok, .sliding_window')" = '["mixtral",3,5,2,null]' ]
    # the configuration that goes along tells them apart
    rm -r back
    s2s-ckpt convert -q --to torch_dist --map mixtral mixtral whole
    exits 0 s2s-ckpt convert -q --to hf whole back
    exits 0 s2s-ckpt diff mixtral back
    # its experts have the width that config.json says
    for to in hf torch_dist; do
        exits 1 s2s-ckpt convert --to $to --map mixtral --config <(jq '.intermediate_size = 6' mixtral/config.json) "$([ $to = hf ] && echo in || echo mixtral)" wide
        says "expected [6, 4] (6 as intermediate_size of the configuration says)"
        [ ! -e wide ]
    done
    # a router that does not divide by the sum
    MAP=mixtral megatron mixtral num_experts=3 moe_router_topk=2 moe_router_pre_softmax=true
    exits 0 s2s-ckpt convert --map mixtral --to hf in none
    says "no config.json: its router does not divide by the sum of the chosen weights"
    # norms of q and k, which Mixtral's class would leave out
    mkdir normed
    jq 'del(.model_type)' mixtral/config.json >normed/config.json
    python3 - <<'PY'
import json, struct
raw = open("mixtral/model.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head, body = json.loads(raw[8:8 + n]), raw[8 + n:]
for name in ("model.layers.%d.self_attn.%s_norm.weight" % (layer, x) for layer in range(2) for x in "qk"):
    head[name] = {"dtype": "F32", "shape": [2], "data_offsets": [len(body), len(body) + 8]}
    body += bytes(8)
text = json.dumps(head).encode()
open("normed/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + body)
PY
    MAP=mixtral megatron normed num_experts=3 moe_router_topk=2 moe_router_pre_softmax=false
    exits 0 s2s-ckpt convert --map mixtral --to hf in unnormed
    says "no config.json: its queries and keys have norms"
    # experts whose gate and up lie in turn, as Megatron-LM saves what its fused kernels train
    MAP=mixtral megatron mixtral num_experts=3 moe_router_topk=2 moe_mlp_glu_interleave_size=32
    exits 1 s2s-ckpt convert --to hf in none2
    says "mlp.experts.experts.linear_fc1.weight: gate and up lie in it in turn, 32 rows of each (moe_mlp_glu_interleave_size)"
    exits 0 s2s-ckpt convert -q --to safetensors in kept.safetensors
    # experts one by one have no such kernels; Megatron-Bridge saves all rows of gate first
    MAP=mixtral megatron mixtral num_experts=3 moe_router_topk=2 moe_mlp_glu_interleave_size=32 moe_grouped_gemm=false
    exits 0 s2s-ckpt convert -q --map mixtral --to hf in apart
    exits 0 s2s-ckpt diff mixtral apart
    MAP=mixtral bridge mixtral num_moe_experts=3 moe_router_topk=2 moe_mlp_glu_interleave_size=32 kv_channels=2
    exits 0 s2s-ckpt convert -q --map mixtral --to hf in contiguous
    exits 0 s2s-ckpt diff mixtral contiguous
}

# hybrid [ARG=JSON..]: in/ is a Nemotron-H as Megatron's script would have saved it
hybrid() {
    rm -rf in
    cp -r "$DATA/mcore016_hybrid_tp2pp2ep2" in
    chmod -R u+w in
    python3 - "$@" <<'PY'
import argparse, glob, json, pickle, sys, zipfile
args = dict(num_layers=6, hidden_size=32, ffn_hidden_size=48, num_attention_heads=4, group_query_attention=True, num_query_groups=2,
            kv_channels=8, vocab_size=61, norm_epsilon=1e-5, normalization="RMSNorm", add_bias_linear=False, swiglu=False, squared_relu=True,
            position_embedding_type="none", max_position_embeddings=64, hybrid_layer_pattern="M*E|M-E/*E", mamba_num_heads=None,
            mamba_head_dim=4, mamba_num_groups=2, mamba_state_dim=6, num_experts=4, moe_router_topk=2, moe_router_num_groups=None,
            moe_router_group_topk=None, moe_router_score_function="sigmoid", moe_router_topk_scaling_factor=2.5)
args.update((word.split("=", 1)[0], json.loads(word.split("=", 1)[1])) for word in sys.argv[1:])
with zipfile.ZipFile(glob.glob("in/*/common.pt")[0], "w") as z:
    z.writestr("common/data.pkl", pickle.dumps({"args": argparse.Namespace(**args), "iteration": 1000, "checkpoint_version": 3.0}, 2))
    z.writestr("common/byteorder", "little")
    z.writestr("common/version", "3\n")
PY
}

@test "config.json: a Nemotron-H, its layers from the tensors; what differs in transformers is said or refused" {
    hybrid
    exits 0 s2s-ckpt convert --to hf in out
    case $output in *warning*) false ;; esac
    [ "$(config '.hybrid_override_pattern, .mamba_num_heads, .n_routed_experts, .norm_topk_prob, .routed_scaling_factor')" = \
        '["M*EM-E",8,4,true,2.5]' ]
    # transformers 5 refuses an integer there
    hybrid moe_router_topk_scaling_factor=2
    rm -rf out
    exits 0 s2s-ckpt convert -q --to hf in out
    grep -q '"routed_scaling_factor": 2\.0' out/config.json
    while IFS='|' read -r change says none; do
        turn || continue
        # shellcheck disable=SC2086
        hybrid $change
        rm -rf out
        exits 0 s2s-ckpt convert --to hf in out
        says "$says"
        if [ -n "$none" ]; then [ ! -e out/config.json ]; else [ -e out/config.json ]; fi
    done <<'LIST'
norm_epsilon=1e-6|Megatron's norm inside Mamba layers always has 1e-5|
moe_router_num_groups=2 moe_router_group_topk=1 moe_router_topk=1|Megatron by its best 1|
moe_router_topk=null moe_router_topk_scaling_factor=null|do not say num_experts_per_tok;|
moe_router_score_function="softmax"|no config.json: its router's scores are not sigmoids|none
squared_relu=false|no config.json: its activation is not squared_relu|none
position_embedding_type="rope"|no config.json: its attention has a position embedding|none
window_size=[7,0]|no config.json: its attention has a window|none
softmax_scale=0.5|no config.json: its softmax_scale is not 1 / sqrt(head_dim)|none
layernorm_zero_centered_gamma=true|no config.json: its norms have gains around 0|none
LIST
}

# what the common state in out/ says of these arguments
args() {
    python3 - "$@" <<'PY'
import glob, json, pickle, sys, zipfile
z = zipfile.ZipFile(glob.glob("out/*/common.pt")[0])
args = vars(pickle.loads(z.read([n for n in z.namelist() if n.endswith("data.pkl")][0]))["args"])
print(" ".join(json.dumps(args.get(key)) for key in sys.argv[1:]))
PY
}

@test "to Megatron: the arguments say that a model of transformers is uncut, as trainers before 0.16 ask" {
    exits 0 s2s-ckpt convert -q --to torch_dist --map llama "$MODELS/llama_gqa_untied" out
    [ "$(args tensor_model_parallel_size pipeline_model_parallel_size)" = "1 1" ]
}

@test "to Megatron: layers_block_type and rope_parameters of newer configurations become arguments" {
    s2s-ckpt convert -q --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" hf
    for kinds in '"mamba", "attention", "moe", "mamba", "mlp", "moe"' \
        '"linear_attention", "full_attention", "moe", "linear_attention", "mlp", "moe"'; do
        jq "del(.hybrid_override_pattern, .num_hidden_layers) + {layers_block_type: [$kinds]}" hf/config.json >config.json
        rm -rf out
        exits 0 s2s-ckpt convert --to torch_dist --map nemotron_h --config config.json hf out
        case $output in *WARN* | *warn*) false ;; esac
        [ "$(args hybrid_override_pattern num_layers normalization position_embedding_type moe_router_score_function moe_router_num_groups)" = \
            '"M*EM-E" 6 "RMSNorm" "none" "sigmoid" null' ]
    done
    # published ones have keys beside it that their class does not read
    jq '. + {layer_norm_epsilon: 0.25, norm_eps: 0.5, rms_norm_eps: 0.5}' hf/config.json >config.json
    rm -r out
    exits 0 s2s-ckpt convert -q --to torch_dist --map nemotron_h --config config.json hf out
    [ "$(args norm_epsilon)" = 0.25 ]
    [ "$(args layernorm_epsilon)" = 0.25 ]
    rm -r out
    exits 0 s2s-ckpt convert -q --to torch_dist --map llama "$MODELS/qwen3" out
    [ "$(args rotary_base qk_layernorm add_qkv_bias swiglu add_bias_linear apply_layernorm_1p)" = "1000000 true false true false false" ]
    jq '.layers_block_type = ["mamba", "rwkv"]' hf/config.json | jq 'del(.hybrid_override_pattern)' >config.json
    rm -r out
    exits 0 s2s-ckpt convert --to torch_dist --map nemotron_h --config config.json hf out
    says 'layer 1 is "rwkv", for which Megatron'"'"'s pattern has no letter'
}

@test "to Megatron: what text_config leaves out is what its class takes, and sizes are those of the tensors" {
    PYTHONPATH=$ROOT/tests/tools python3 - <<'PY'
import numpy as np
from small_safetensors import save
shapes = {"lm_head.weight": (20, 8), "model.embed_tokens.weight": (20, 8), "model.norm.weight": (8,)}
for n in range(3):
    at = "model.layers.%d." % n
    shapes.update({at + "self_attn.%s_proj.weight" % x: (rows, 8) for x, rows in (("q", 64), ("k", 8), ("v", 8))})
    shapes.update({at + "self_attn.%s_norm.weight" % x: (2,) for x in "qk"})
    shapes.update({at + "self_attn.o_proj.weight": (8, 64), at + "input_layernorm.weight": (8,), at + "post_attention_layernorm.weight": (8,)})
    if n == 1:
        shapes.update({at + "mlp.%s_proj.weight" % x: (8, 7) if x == "down" else (7, 8) for x in ("gate", "up", "down")})
        continue
    shapes[at + "mlp.gate.weight"] = (9, 8)
    shapes.update({at + "mlp.experts.%d.%s_proj.weight" % (e, x): (8, 5) if x == "down" else (5, 8) for e in range(9) for x in ("gate", "up", "down")})
save("model.safetensors", **{"language_model." + name: ("F32", np.zeros(shape, "f4")) for name, shape in shapes.items()})
PY
    mkdir in
    mv model.safetensors in
    echo '{"model_type": "llava", "text_config": {"model_type": "qwen3_moe", "mlp_only_layers": [1], "tie_word_embeddings": false}}' >in/config.json
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --part language_model --map qwen3_moe in out
    [ "$(args moe_router_topk swiglu squared_relu max_position_embeddings norm_epsilon)" = "8 true false 32768 1e-06" ]
    [ "$(args num_layers hidden_size ffn_hidden_size num_experts moe_ffn_hidden_size vocab_size)" = "3 8 7 9 5 20" ]
    [ "$(args num_attention_heads num_query_groups kv_channels moe_layer_freq)" = "32 4 2 [1, 0, 1]" ]
}

@test "long: to Megatron: what a class of transformers takes for absent keys of window, rope and scores" {
    while IFS='|' read -r type more window freq base scores; do
        rm -rf out
        python3 - "$type" "$more" <<'PY'
import json, os, struct, sys
kind, layers = sys.argv[1], 7
shapes = {"model.embed_tokens.weight": (20, 8), "model.norm.weight": (8,), "lm_head.weight": (20, 8)}
gemma, norms = kind.startswith("gemma"), ["input_layernorm", "post_attention_layernorm"]
norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma else []
for n in range(layers):
    at = "model.layers.%d." % n
    shapes.update({at + name + ".weight": (8,) for name in norms})
    shapes.update({at + "self_attn.%s_proj.weight" % x: (8, 8) for x in "qkvo"})
    shapes.update({at + "mlp.%s_proj.weight" % x: (8, 8) for x in ("gate", "up", "down")})
    if kind in ("qwen3", "gemma3_text"):
        shapes.update({at + "self_attn.%s_norm.weight" % x: (4,) for x in "qk"})
    if kind == "qwen2":
        shapes.update({at + "self_attn.%s_proj.bias" % x: (8,) for x in "qkv"})
if gemma:
    del shapes["lm_head.weight"]
head, end = {}, 0
for name, shape in shapes.items():
    size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
    end += size
head = json.dumps(head).encode()
os.makedirs("in", exist_ok=True)
open("in/model.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + bytes(end))
config = {"model_type": kind, "num_hidden_layers": layers, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4,
          "hidden_size": 8, "intermediate_size": 8, "vocab_size": 20, "tie_word_embeddings": gemma}
json.dump({**config, **json.loads(sys.argv[2])}, open("in/config.json", "w"))
PY
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map "$type" in out
        [ "$(args window_size window_attn_skip_freq rotary_base)" = "$window $freq $base" ]
        [ "$(args attn_logit_softcapping final_logit_softcapping softmax_scale)" = "${scores:-null null null}" ]
    done <<'LIST'
gemma2|{}|[4095, 0]|[1, 0, 1, 0, 1, 0, 1]|10000|50.0 30.0 0.0625
gemma2|{"attn_logit_softcapping": null, "final_logit_softcapping": 20.0, "query_pre_attn_scalar": 4}|[4095, 0]|[1, 0, 1, 0, 1, 0, 1]|10000|null 20.0 0.5
gemma2|{"sliding_window": 8, "rope_theta": 5000.0}|[7, 0]|[1, 0, 1, 0, 1, 0, 1]|5000|50.0 30.0 0.0625
gemma3_text|{"sliding_window": 8}|[7, 0]|[1, 1, 1, 1, 1, 0, 1]|[10000, 1000000]|null null 0.0625
gemma3_text|{"sliding_window": 8, "sliding_window_pattern": 3}|[7, 0]|[1, 1, 0, 1, 1, 0, 1]|[10000, 1000000]|null null 0.0625
qwen2|{"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 5}|[7, 0]|[0, 0, 0, 0, 0, 1, 1]|10000
qwen2|{"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 0}|[7, 0]|null|10000
qwen2|{"sliding_window": 8, "use_sliding_window": true}|null|null|10000
qwen3|{"sliding_window": 8}|null|null|10000
mistral|{"sliding_window": 8}|[7, 0]|null|10000
mistral|{"sliding_window": null}|null|null|10000
mistral|{}|[4095, 0]|null|10000
llama|{"rope_theta": 500000.0}|null|null|500000
llama|{"sliding_window": 8}|null|null|10000
LIST
    # embeddings that look both ways
    jq '.use_bidirectional_attention = true' in/config.json >config.json
    mv config.json in
    rm -rf out
    exits 0 s2s-ckpt convert --to torch_dist --map llama in out
    says "warning: config.json: Megatron's arguments cannot say use_bidirectional_attention"
    # layers with a window, whose positions are stretched
    jq '.rope_parameters = {full_attention: {rope_type: "default"}, sliding_attention: {rope_type: "linear", factor: 2.0}}' in/config.json >config.json
    mv config.json in
    rm -rf out
    exits 0 s2s-ckpt convert --to torch_dist --map llama in out
    says "warning: config.json: Megatron's arguments cannot say rope_type \"linear\" of layers with a window"
}

@test "where Megatron and transformers compute a Nemotron-H differently, both ways say so" {
    s2s-ckpt convert -q --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" hf
    while IFS='|' read -r change why; do
        turn || continue
        jq ". + {layer_norm_epsilon: 1e-5, num_experts_per_tok: 2} + $change" hf/config.json >config.json
        rm -rf out
        exits 0 s2s-ckpt convert --to torch_dist --map nemotron_h --config config.json hf out
        if [ -n "$why" ]; then
            says "$why"
        else
            case $output in *Megatron*) false ;; esac
        fi
    done <<'LIST'
{}|
{layer_norm_epsilon: 1e-6}|Megatron's norm inside Mamba layers always has 1e-5
{num_experts_per_tok: 1}|norm_topk_prob is true with num_experts_per_tok 1
{num_experts_per_tok: 1, norm_topk_prob: false}|
{norm_topk_prob: false}|norm_topk_prob is false with num_experts_per_tok 2
{n_group: 2, topk_group: 1}|
{n_group: 2, topk_group: 2, num_experts_per_tok: 4}|
{n_group: 2, topk_group: 1, num_experts_per_tok: 3}|1 of 2 groups of experts: transformers judges a group by its two best experts, Megatron by its best 3
LIST
}

# bridge MODEL [KEY=YAML..]: in/ is the model as Megatron-Bridge leaves it: no arguments in common.pt, run_config.yaml beside. BUILT=1: of a model that
# is built from its configuration
bridge() {
    megatron "$1"
    python3 - "$MODELS/$1/config.json" "${@:2}" <<'PY'
import glob, json, os, pickle, sys, zipfile
c = json.load(open(sys.argv[1]))
rope = c.get("rope_theta") or c["rope_parameters"]["rope_theta"]
model = dict(num_layers=c["num_hidden_layers"], hidden_size=c["hidden_size"], ffn_hidden_size=c["intermediate_size"], kv_channels="null",
             num_attention_heads=c["num_attention_heads"], num_query_groups=c["num_key_value_heads"], vocab_size=c["vocab_size"],
             layernorm_epsilon="%e" % c["rms_norm_eps"], seq_length=c["max_position_embeddings"], normalization="RMSNorm", add_bias_linear="false",
             gated_linear_unit="true", layernorm_zero_centered_gamma="false", position_embedding_type="rope", rotary_base="%e" % rope,
             rotary_percent="1.0", window_size="null", num_moe_experts="null", seq_len_interpolation_factor="null", multi_latent_attention="false")
model.update(word.split("=", 1) for word in sys.argv[2:])
folder, = glob.glob("in/iter_*")
with open(folder + "/run_config.yaml", "w") as f:
    f.write("_target_: megatron.bridge.training.config.ConfigContainer\ncheckpoint:\n  save: null\nmodel:\n"
            "  _target_: megatron.bridge.models.%s\n" % ("gpt.model_config.BridgeGPTModelConfig" if os.environ.get("BUILT")
                                                         else "llama.llama_provider.Llama31ModelProvider"))
    outer = ("vocab_size", "seq_length", "position_embedding_type", "rotary_base", "rotary_percent", "rope_scaling", "rope_scaling_factor",
             "seq_len_interpolation_factor")
    if os.environ.get("BUILT"):
        f.write("  _builder_: megatron.bridge.models.gpt.gpt_builder.GPTModelBuilder\n")
        f.writelines("  %s: %s\n" % (key, model.pop(key)) for key in outer if key in model)
        f.write("  transformer:\n    _target_: megatron.bridge.models.transformer_config.TransformerConfig\n    activation_func: silu\n")
        f.writelines("    %s: %s\n" % item for item in model.items())
    else:
        f.write("  activation_func:\n    _call_: false\n    _target_: torch.nn.functional.silu\n"
                "  embedding_init_method:\n    _args_: []\n    _partial_: true\n    _target_: torch.nn.init.normal_\n    std: 0.02\n")
        f.writelines("  %s: %s\n" % item for item in model.items())
    f.write("optimizer:\n  lr: 0.0003\n")
with zipfile.ZipFile(folder + "/common.pt", "w") as z:
    z.writestr("common/data.pkl", pickle.dumps({"iteration": 5, "checkpoint_version": 3.0}, 2))
    z.writestr("common/byteorder", "little")
    z.writestr("common/version", "3\n")
PY
}

@test "long: config.json: out of Megatron-Bridge's run_config.yaml" {
    bridge llama_gqa_untied scale_factor=32.0 low_freq_factor=1.0 high_freq_factor=4.0 old_context_len=64
    exits 0 s2s-ckpt convert --strict --to hf in out
    exits 0 s2s-ckpt diff "$MODELS/llama_gqa_untied" out
    [ "$(config '.model_type, .num_attention_heads, .num_key_value_heads, .hidden_act')" = '["llama",6,2,"silu"]' ]
    [ "$(config '.rope_scaling')" = '[{"rope_type":"llama3","factor":32,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":64}]' ]
    for key in rms_norm_eps max_position_embeddings vocab_size; do
        alike "$(config ".$key")" "$(jq -c "[.$key]" "$MODELS/llama_gqa_untied/config.json")"
    done
    # newer providers have a switch, with Megatron-Core's constants; so have configurations that models are built from
    for switch in true:'[{"rope_type":"llama3","factor":32,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192}]' \
        false:'[null]'; do
        for built in '' 1; do
            rm -rf out
            BUILT=$built bridge llama_gqa_untied rope_scaling="${switch%%:*}" rope_scaling_factor=32.0
            exits 0 s2s-ckpt convert --strict --to hf in out
            exits 0 s2s-ckpt diff "$MODELS/llama_gqa_untied" out
            [ "$(config '.rope_scaling')" = "${switch#*:}" ]
            [ "$(config '.num_attention_heads, .num_key_value_heads, .hidden_act, .rms_norm_eps')" = "$(jq -c \
                '[.num_attention_heads, .num_key_value_heads, .hidden_act, .rms_norm_eps]' "$MODELS/llama_gqa_untied/config.json")" ]
        done
    done
    # Gemma 3's: the window counts the token itself, every third layer has none, and the factor is that of layers without; kinds may be listed too
    for pattern in '[2, 1]' '[sliding_attention, sliding_attention, full_attention]'; do
        rm -rf out
        bridge qwen3 window_size=8 interleaved_attn_pattern="$pattern" qk_layernorm=true rope_scaling=false rope_scaling_factor=8.0
        exits 0 s2s-ckpt convert --strict --to hf in out
        [ "$(config '.sliding_window, .layer_types[0], .layer_types[1], .rope_scaling')" = \
            '[8,"sliding_attention","sliding_attention",{"rope_type":"linear","factor":8}]' ]
    done
    # Gemma 2's: every other layer has the window, also where Megatron-Core was too old to say which
    for more in '' window_attn_skip_freq=null; do
        rm -rf out
        # shellcheck disable=SC2086
        bridge qwen3 window_size='[7, 0]' query_pre_attn_scalar="$(jq .head_dim "$MODELS/qwen3/config.json")" $more
        exits 0 s2s-ckpt convert --strict --to hf in out
        [ "$(config '.sliding_window, .layer_types[0:2]')" = '[8,["sliding_attention","full_attention"]]' ]
    done
    # NeMo's has transformers' number
    mkdir -p nemo2/context
    cp -r in/iter_* nemo2/weights
    sed -e 's/^model:/config:/' nemo2/weights/run_config.yaml >nemo2/context/model.yaml
    rm -r out nemo2/weights/run_config.yaml
    exits 0 s2s-ckpt convert --strict --to hf nemo2 out
    [ "$(config '.sliding_window, .layer_types[0:2]')" = '[7,["sliding_attention","full_attention"]]' ]
    rm -r out
    # nothing of it: the number of groups is asked for
    rm in/iter_*/run_config.yaml
    exits 1 s2s-ckpt convert --strict --to hf in out
    says "--config"
    # one that is broken is no reason to stop what does not need it
    printf 'model: [1\n' >"$(echo in/iter_*)/run_config.yaml"
    exits 0 s2s-ckpt ls in
    says "not used: run_config.yaml:2:1"
}

# train_state CALL: train_state.pt as Megatron-Bridge writes it; CALL: another that runs something
train_state() {
    python3 - "$@" <<'PY'
import glob, os, pickle, sys, zipfile
class Runs:
    def __reduce__(self):
        return os.system, ("touch ran",)
folder, = glob.glob("in/iter_*")
with zipfile.ZipFile(folder + "/train_state.pt", "w") as z:
    z.writestr("train_state/data.pkl", pickle.dumps({"step": Runs() if sys.argv[1:] else 5}, 2))
    z.writestr("train_state/byteorder", "little")
    z.writestr("train_state/version", "3\n")
PY
}

@test "what Megatron-Bridge loads beside the tensors goes along to torch_dist, checked like them" {
    bridge llama_gqa_untied
    train_state
    mv in/iter_* in/iter_0000005
    printf 5 >in/latest_checkpointed_iteration.txt
    mkdir in/iter_0000005/tokenizer in/iter_0000005/modelopt_state
    echo '{"model": {}}' >in/iter_0000005/tokenizer/tokenizer.json
    for command in reshard prune "convert --to torch_dist" "average in" fsdp prune "convert --to torch_dist"; do
        rm -rf out hf
        # with FSDP it is plain DCP
        [ "$command" != fsdp ] || { rm in/iter_0000005/{metadata.json,common.pt}; continue; }
        # shellcheck disable=SC2086
        exits 0 s2s-ckpt $command in out
        says "modelopt_state is not taken along"
        for name in run_config.yaml train_state.pt tokenizer/tokenizer.json; do
            same in/iter_0000005/$name out/iter_0000005/$name
        done
        exits 0 s2s-ckpt verify out
        # without the arguments this would ask for --config
        exits 0 s2s-ckpt convert --strict --to hf out hf
        exits 0 s2s-ckpt diff "$MODELS/llama_gqa_untied" hf
        [ -e hf/tokenizer.json ]
    done
    sed -i 's/heads/tails/' out/iter_0000005/run_config.yaml
    exits 1 s2s-ckpt verify out
    train_state runs
    rm -r out
    exits 1 s2s-ckpt reshard in out
    says "train_state.pt"
    says "posix.system"
    [ ! -e ran ]
    [ ! -e out ]
}

@test "a checkpoint of verl: dist_ckpt/ without arguments, beside huggingface/ with what it lacks" {
    bridge llama_gqa_untied
    step=verl/global_step_5
    mkdir -p $step/actor/huggingface
    rm in/iter_*/run_config.yaml
    mv in/iter_* $step/actor/dist_ckpt
    printf 5 >verl/latest_checkpointed_iteration.txt
    exits 1 s2s-ckpt convert --to hf verl out
    says "--config"
    cp "$MODELS/llama_gqa_untied/config.json" $step/actor/huggingface
    echo '{"model": {}}' >$step/actor/huggingface/tokenizer.json
    for path in verl $step $step/actor $step/actor/dist_ckpt; do
        rm -rf out
        exits 0 s2s-ckpt convert --strict --to hf $path out
        exits 0 s2s-ckpt diff "$MODELS/llama_gqa_untied" out
        same $step/actor/huggingface/tokenizer.json out/tokenizer.json
        [ "$(config '.model_type, .num_attention_heads, .num_key_value_heads')" = '["llama",6,2]' ]
    done
    # another folder's neighbour of that name is not the model's
    mv $step/actor/dist_ckpt $step/actor/mine
    exits 1 s2s-ckpt convert --to hf $step/actor/mine out2
    says "--config"
}

@test "a NeMo 2 checkpoint: weights/ and context/, whose model.yaml and tokenizer count" {
    bridge llama_gqa_untied
    mkdir -p nemo/context/nemo_tokenizer
    mv in/iter_* nemo/weights
    sed -e 's/^model:/config:/' nemo/weights/run_config.yaml >nemo/context/model.yaml
    rm nemo/weights/run_config.yaml
    echo '{"model": {}}' >nemo/context/nemo_tokenizer/tokenizer.json
    echo '{"not": "the model"}' >nemo/context/nemo_tokenizer/config.json
    for path in nemo nemo/weights; do
        rm -rf out
        exits 0 s2s-ckpt convert --strict --to hf $path out
        exits 0 s2s-ckpt diff "$MODELS/llama_gqa_untied" out
        [ "$(config '.model_type, .num_attention_heads, .num_key_value_heads, .hidden_act')" = '["llama",6,2,"silu"]' ]
        same nemo/context/nemo_tokenizer/tokenizer.json out/tokenizer.json
    done
    exits 0 s2s-ckpt verify out
    # Megatron-Bridge's lies in the folder itself
    mv nemo/context/nemo_tokenizer nemo/weights/tokenizer
    rm -rf out
    exits 0 s2s-ckpt convert --strict --to hf nemo out
    same nemo/weights/tokenizer/tokenizer.json out/tokenizer.json
}

@test "a language model of NeMo 1: heads and config.json out of its model_config.yaml" {
    bridge llama_gqa_untied # for its common.pt without arguments
    rm in/iter_*/run_config.yaml
    mv in/iter_* model_weights
    M=$MODELS/llama_gqa_untied/config.json
    nemo() { # [LINE..]: llm.nemo with these lines more
        rm -rf out
        cat >model_config.yaml <<YAML
mcore_gpt: true
encoder_seq_length: $(jq .max_position_embeddings "$M")
max_position_embeddings: \${.encoder_seq_length}
num_layers: $(jq .num_hidden_layers "$M")
hidden_size: $(jq .hidden_size "$M")
ffn_hidden_size: $(jq .intermediate_size "$M")
num_attention_heads: $(jq .num_attention_heads "$M")
num_query_groups: $(jq .num_key_value_heads "$M")
kv_channels: null
layernorm_epsilon: 0.002
bias: false
position_embedding_type: rope
rotary_percentage: 1.0
rotary_base: 5000
share_embeddings_and_output_weights: false
$(printf '%s\n' "$@")
YAML
        tar cf llm.nemo ./model_config.yaml ./model_weights ./notes ./*_tokenizer.model
    }
    echo one >11111111111111111111111111111111_tokenizer.model
    touch notes
    nemo 'normalization: rmsnorm' 'activation: fast-swiglu' 'scale_positional_embedding: true'
    exits 0 s2s-ckpt convert --strict --to hf llm.nemo out
    [ "$(cat out/tokenizer.model)" = one ]
    says "llm.nemo: files beside the weights are left out: notes"
    exits 0 s2s-ckpt diff "$MODELS/llama_gqa_untied" out
    [ "$(config '.model_type, .num_attention_heads, .num_key_value_heads, .hidden_act, .rms_norm_eps, .rope_theta, .tie_word_embeddings')" = \
        '["llama",6,2,"silu",0.002,5000,false]' ]
    [ "$(config .rope_scaling)" = \
        '[{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192}]' ]
    [ "$(config .max_position_embeddings)" = "$(jq -c '[.max_position_embeddings]' "$M")" ]
    # what Llama has not is refused, as it is of others' arguments
    while IFS='|' read -r norm activation more why; do
        turn || continue
        nemo "normalization: $norm" "activation: $activation" "$more"
        exits 0 s2s-ckpt convert --strict --to hf llm.nemo out
        says "no config.json: $why"
    done <<'LIST'
layernorm1p|fast-swiglu||its normalization is not RMSNorm
rmsnorm|fast-geglu||its activation is not swiglu
rmsnorm|swiglu|layernorm_zero_centered_gamma: true|its norms have gains around 0
rmsnorm|swiglu|mcore_customization_config: {softmax_scale: 0.5}|its softmax_scale is not 1 / sqrt(head_dim)
LIST
    # by itself, for weights that have none; of another kind of model it says nothing
    nemo 'normalization: rmsnorm' 'activation: swiglu'
    exits 1 s2s-ckpt convert --to hf model_weights out
    says "how many heads"
    exits 0 s2s-ckpt convert --to hf --config model_config.yaml model_weights out
    exits 0 s2s-ckpt diff "$MODELS/llama_gqa_untied" out
    [ "$(config .num_key_value_heads)" = "[2]" ]
    echo 'num_layers: 3' >model_config.yaml
    exits 1 s2s-ckpt convert --to hf --config model_config.yaml model_weights other
    says "nor the num_attention_heads of a language model"
}

@test "norms of another kind than the config.json given are told of" {
    bridge llama_gqa_untied layernorm_zero_centered_gamma=true
    exits 0 s2s-ckpt convert --strict --to hf in out
    says "no config.json: its norms have gains around 0"
    rm -rf out
    exits 0 s2s-ckpt convert --strict --to hf --config "$MODELS/llama_gqa_untied/config.json" in out
    says "transformers' llama takes gains around 1"
    bridge llama_gqa_untied
    rm -rf out
    exits 0 s2s-ckpt convert --strict --to hf --config "$MODELS/llama_gqa_untied/config.json" in out
    says_not "gains around"
}

# layers PATTERN: model/, a Nemotron-H of transformers with these layers
layers() {
    rm -rf model in out
    mkdir model
    python3 - "$1" <<'PY'
import json, sys
import numpy as np
pattern, H, rng, t = sys.argv[1], 8, np.random.default_rng(3), {}
shapes = {"backbone.embeddings": (20, H), "backbone.norm_f": (H,), "lm_head": (20, H)}
for n, kind in enumerate(pattern):
    at = "backbone.layers.%d." % n
    shapes[at + "norm"] = (H,)
    at += "mixer."
    if kind == "*":
        shapes.update({at + "q_proj": (12, H), at + "k_proj": (6, H), at + "v_proj": (6, H), at + "o_proj": (H, 12)})
    elif kind == "-":
        shapes.update({at + "up_proj": (14, H), at + "down_proj": (H, 14)})
    else:
        shapes.update({at + "gate": (2, H), at + "shared_experts.up_proj": (10, H), at + "shared_experts.down_proj": (H, 10)})
        shapes.update({at + "experts.%d.%s_proj" % (e, w): s for e in (0, 1) for w, s in (("up", (6, H)), ("down", (H, 6)))})
for name, shape in shapes.items():
    t[name + ".weight"] = rng.normal(size=shape).astype("<f4")
for n, kind in enumerate(pattern):
    if kind == "E":
        t["backbone.layers.%d.mixer.gate.e_score_correction_bias" % n] = rng.normal(size=2).astype("<f4")
head, at = {}, 0
for name, value in t.items():
    head[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
    at += value.nbytes
head = json.dumps(head).encode()
with open("model/model.safetensors", "wb") as f:
    f.write(len(head).to_bytes(8, "little") + head + b"".join(v.tobytes() for v in t.values()))
json.dump({"model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "hidden_size": H, "hybrid_override_pattern": pattern,
           "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 3, "n_routed_experts": 2, "vocab_size": 20}, open("model/config.json", "w"))
PY
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map nemotron_h --pad-vocab 16 model in
}

# saved [ARG=JSON..]: in/ says no more than these arguments
saved() {
    python3 - "$@" <<'PY'
import argparse, glob, json, pickle, sys, zipfile
args = {k: json.loads(v) for k, v in (w.split("=", 1) for w in sys.argv[1:])}
with zipfile.ZipFile(glob.glob("in/*/common.pt")[0], "w") as z:
    z.writestr("common/data.pkl", pickle.dumps({"args": argparse.Namespace(**args), "iteration": 5, "checkpoint_version": 3.0}, 2))
    z.writestr("common/byteorder", "little")
    z.writestr("common/version", "3\n")
PY
    rm -f in/*/s2s-manifest.json
}

@test "a Nemotron-H without a Mamba layer is one, and no Llama or Qwen" {
    for pattern in '*-' '*E-' 'E' '--' '*'; do
        turn || continue
        layers "$pattern"
        saved num_attention_heads=4 num_query_groups=2 kv_channels=3 vocab_size=20
        exits 0 s2s-ckpt convert -q --strict --to hf in out
        exits 0 s2s-ckpt diff model out
    done
}

@test "biases and norms that arguments or a configuration speak of are missed where every layer lacks them" {
    while read -r name change lacks; do
        megatron "$name" "$change"
        rm -rf out
        exits 1 s2s-ckpt convert --to hf in out
        says "wanted but absent"
        for tensor in $lacks; do
            says "model.layers.0.$tensor (of decoder.layers.0."
        done
        [ ! -e out ]
    done <<'LIST'
llama_gqa_untied add_qkv_bias=true self_attn.q_proj.bias
llama_gqa_untied qk_layernorm=true self_attn.k_norm.weight self_attn.q_norm.weight
qwen2 add_bias_linear=true mlp.down_proj.bias self_attn.o_proj.bias
LIST
    # where it is there they are no hindrance
    megatron qwen2 add_qkv_bias=true
    exits 0 s2s-ckpt convert -q --strict --to hf in out
    # Megatron's default, and no bias anywhere
    megatron llama_gqa_untied add_bias_linear=true
    exits 0 s2s-ckpt convert -q --strict --to hf in none
    megatron llama_gqa_untied
    while read -r key lacks; do
        jq ".$key = true" "$MODELS/llama_gqa_untied/config.json" >config.json
        for tensor in $lacks; do
            exits 1 s2s-ckpt convert --to hf --config config.json in x
            says "model.layers.0.$tensor (of decoder.layers.0."
            exits 1 s2s-ckpt convert --to torch_dist --map llama --config config.json "$MODELS/llama_gqa_untied" x
            says "model.layers.0.$tensor"
        done
    done <<'LIST'
attention_bias self_attn.q_proj.bias self_attn.o_proj.bias
mlp_bias mlp.up_proj.bias mlp.down_proj.bias
LIST
    [ ! -e x ]
}

@test "layers of several sizes get no config.json: it has one number for all of them" {
    for widths in '5 5' '5 6'; do
        rm -rf in out
        python3 - "$widths" <<'PY'
import json, struct, sys
shapes = {"model.embed_tokens": (20, 8), "lm_head": (20, 8), "model.norm": (8,)}
for n, width in enumerate(map(int, sys.argv[1].split())):
    at = "model.layers.%d." % n
    shapes.update({at + "input_layernorm": (8,), at + "post_attention_layernorm": (8,), at + "self_attn.q_proj": (12, 8), at + "self_attn.k_proj": (6, 8),
                   at + "self_attn.v_proj": (6, 8), at + "self_attn.o_proj": (8, 12), at + "mlp.gate_proj": (width, 8), at + "mlp.up_proj": (width, 8),
                   at + "mlp.down_proj": (8, width)})
head, end = {}, 0
for name, shape in shapes.items():
    size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    head[name + ".weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
    end += size
head = json.dumps(head).encode()
open("hf.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + bytes(end))
json.dump({"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2}, open("heads.json", "w"))
PY
        s2s-ckpt convert -q --to torch_dist --map llama --config heads.json hf.safetensors in
        saved num_attention_heads=4 num_query_groups=2 kv_channels=3 vocab_size=20 normalization='"RMSNorm"' swiglu=true position_embedding_type='"rope"' \
            rotary_base=10000 norm_epsilon=1e-5 max_position_embeddings=64
        exits 0 s2s-ckpt convert --strict --to hf in out
        if [ "$widths" = '5 5' ]; then
            [ "$(jq .intermediate_size out/config.json)" = 5 ]
        else
            says "no config.json: its layers differ in size"
            [ ! -e out/config.json ]
        fi
        exits 0 s2s-ckpt diff hf.safetensors out
    done
}

@test "a config.json beside Megatron's weights counts as --config does, and goes along" {
    layers '*-E'
    saved
    exits 1 s2s-ckpt convert --to hf in out
    says "how many heads and groups"
    cp model/config.json in/iter_*/
    exits 0 s2s-ckpt convert -q --strict --to hf in out
    exits 0 s2s-ckpt diff model out
    cmp model/config.json out/config.json
    # one that is given goes before it
    rm -rf out
    jq '.num_attention_heads = 2 | .num_key_value_heads = 1 | .head_dim = 6' model/config.json > other.json
    exits 0 s2s-ckpt convert -q --strict --to hf --config other.json in out
    exits 1 s2s-ckpt diff model out
    # and a broken one is refused
    rm -rf out
    echo '{' > in/iter_0000001/config.json
    exits 1 s2s-ckpt convert --to hf in out
    says "config.json:2"
    [ ! -e out ]
}

@test "--map takes what config.json calls a model; who forgets it is told" {
    # shellcheck disable=SC2153
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map qwen3 "$MODELS/qwen3" a
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama "$MODELS/qwen3" b
    exits 0 s2s-ckpt diff a b
    exits 0 s2s-ckpt convert --to torch_dist "$MODELS/qwen3" c
    says "--map NAME gives Megatron's"
    exits 0 s2s-ckpt convert --to torch_dist c d
    says_not "--map NAME"
    exits 0 s2s-ckpt reshard --files 2 "$MODELS/qwen3" e
    says_not "--map NAME"
    exits 0 s2s-ckpt prune "$MODELS/qwen3" f
    says_not "--map NAME"
    # who gives it to what has Hugging Face's names
    exits 1 s2s-ckpt convert --to hf --map qwen3 "$MODELS/qwen3" g
    says "Hugging Face's already; without --map they are kept"
    exits 1 s2s-ckpt convert --to torch_dist --map nemotron_h "$MODELS/qwen3" g
    says_not "already"
    [ ! -e g ]
}

@test "config.json says the dtype that the weights have, whichever command cast them" {
    said() { grep -o '"\(torch_\)\?dtype": "[a-z0-9]*"' "$1/config.json"; }
    model=$MODELS/qwen3
    dtype=$(said "$model")
    [[ $dtype == *float32* ]]
    for command in "convert --to torch_dist" "convert --to torch_dist --map qwen3" prune; do
        rm -rf megatron pruned out
        exits 0 s2s-ckpt $command -q --dtype bf16 "$model" megatron
        exits 0 s2s-ckpt convert -q --to hf megatron out
        [ "$(said out)" = "${dtype/float32/bfloat16}" ]
    done
    # as it was, where it is right; and of a folder of Hugging Face's own, which nothing was cast in
    rm -rf megatron out
    exits 0 s2s-ckpt convert -q --to torch_dist --map qwen3 "$model" megatron
    exits 0 s2s-ckpt convert -q --to hf megatron out
    same "$model/config.json" out/config.json
    mkdir in
    cp "$model"/* in/
    sed 's/"float32"/"bfloat16"/' "$model/config.json" >in/config.json
    exits 0 s2s-ckpt convert -q --to hf in kept
    same in/config.json kept/config.json
    # norms and the like may be wider
    rm -r in megatron out
    mkdir in
    echo '{"dtype": "float32"}' >in/config.json
    PYTHONPATH=$ROOT/tests/tools python3 -B -c 'import numpy as np
from small_safetensors import save
save("in/model.safetensors", a=("F32", np.zeros(2, np.float32)), w=("BF16", np.zeros((4, 4), np.uint16)), z=("F32", np.zeros(2, np.float32)))'
    exits 0 s2s-ckpt convert -q --to torch_dist in megatron
    exits 0 s2s-ckpt convert -q --to hf megatron out
    [ "$(said out)" = '"dtype": "bfloat16"' ]
}

@test "--config takes the folder of a config.json, and no list" {
    layers '*-'
    saved
    exits 0 s2s-ckpt convert -q --strict --to hf --config model in out
    exits 0 s2s-ckpt diff model out
    echo '[4]' > list.json
    rm -rf out
    exits 1 s2s-ckpt convert --to hf --config list.json in out
    says "s2s-ckpt: list.json: no configuration: not an object"
    mkdir empty
    exits 2 s2s-ckpt convert --to hf --config empty in out
    says "s2s-ckpt: empty/config.json: "
}

@test "a config.json of another model is refused: layers, their kinds and sizes; nothing is written" {
    layers '*-E*'
    while IFS='|' read -r change says; do
        turn || continue
        jq "$change" model/config.json > other.json
        for to in hf torch_dist; do
            rm -rf out
            if [ $to = hf ]; then
                exits 1 s2s-ckpt convert --to hf --config other.json in out
                says "${says/STACK/decoder}"
            else
                exits 1 s2s-ckpt convert --to torch_dist --map nemotron_h --config other.json model out
                says "${says/STACK/backbone}"
            fi
            [ ! -e out ]
        done
    done <<'LIST'
.hybrid_override_pattern="*-E*-"|all of STACK.layers.4
.hybrid_override_pattern="*-E"|the configuration says 3 layers, the checkpoint has 4
.hybrid_override_pattern="*E-*"|STACK.layers.1: the configuration says kind E (*E-*), its tensors are those of -
.layers_block_type=["mlp","mlp","moe","mlp"]|STACK.layers.0: the configuration says kind - (--E-), its tensors are those of *
.intermediate_size=15|expected [15, 8] (15 as intermediate_size of the configuration says)
.moe_intermediate_size=7|7 as moe_intermediate_size of the configuration says
.n_routed_experts=1|expert 1, where there are 1
.n_routed_experts=3|backbone.layers.2.mixer.experts.2.up_proj.weight
LIST
}

@test "experts that the router does not know are refused" {
    layers 'E'
    python3 - <<'PY'
import json
raw = open("model/model.safetensors", "rb").read()
n = int.from_bytes(raw[:8], "little")
head, data = json.loads(raw[8:8 + n]), raw[8 + n:]
for part, shape in (("up", [6, 8]), ("down", [8, 6])):
    head["backbone.layers.0.mixer.experts.2.%s_proj.weight" % part] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 192]}
    data += bytes(192)
head = json.dumps(head).encode()
open("model/model.safetensors", "wb").write(len(head).to_bytes(8, "little") + head + data)
PY
    exits 1 s2s-ckpt convert --to torch_dist --map nemotron_h model out
    says "backbone.layers.0.mixer.experts.2.up_proj.weight: expert 2, where there are 2"
}

@test "config.json: of a model with a vision tower the language model's part, and a word on the rest" {
    cp -r "$DATA/mcore015_vlm_tp2" vlm
    python3 - <<'PY'
import argparse, glob, pickle, zipfile
args = dict(num_layers=3, hidden_size=16, ffn_hidden_size=24, num_attention_heads=4, group_query_attention=True, num_query_groups=2, kv_channels=4,
            vocab_size=45, norm_epsilon=1e-5, normalization="RMSNorm", add_bias_linear=False, squared_relu=True, position_embedding_type="none",
            mamba_num_groups=2, mamba_state_dim=4, num_experts=4, moe_router_topk=2, moe_router_score_function="sigmoid",
            moe_router_topk_scaling_factor=2.5, max_position_embeddings=64)
with zipfile.ZipFile(glob.glob("vlm/*/common.pt")[0], "w") as z:
    z.writestr("common/data.pkl", pickle.dumps({"args": argparse.Namespace(**args), "iteration": 5, "checkpoint_version": 3.0}, 2))
    z.writestr("common/byteorder", "little")
    z.writestr("common/version", "3\n")
PY
    exits 0 s2s-ckpt convert --strict --to hf vlm out
    says "config.json has the language model's part alone (llm_config)"
    [ "$(config '.model_type, (.llm_config | .model_type, .hybrid_override_pattern, .vocab_size, .head_dim, .n_routed_experts)')" = '[null,"nemotron_h","M*E",45,4,4]' ]
    # which is what the way back needs
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map nemotron_vlm --pad-vocab 16 out again
    exits 0 s2s-ckpt convert -q --strict --to hf again back
    exits 0 s2s-ckpt diff out back
    # the tower's biases are none of the arguments'
    s2s-ckpt ls again | grep -q 'vision_model.*linear_qkv.bias'
    python3 - <<'PY'
import argparse, glob, pickle, zipfile
class Safe(pickle.Unpickler):
    def find_class(self, module, name): return argparse.Namespace
with zipfile.ZipFile(glob.glob("again/*/common.pt")[0]) as z:
    args = Safe(z.open(next(n for n in z.namelist() if n.endswith("data.pkl")))).load()["args"]
assert args.add_bias_linear is False and args.add_qkv_bias is False, args
PY
}

@test "Python's Infinity and NaN in a config.json, which Nemotron-H has, stay what they are" {
    DATA=$ROOT/tests/oracle/ckpt/data
    cp -r "$DATA/hf_sharded" in
    chmod -R u+w in
    python3 - <<'EOF'
import json
config = json.load(open("in/config.json"))
config.update(time_step_limit=[0.0, float("inf")], low=-float("inf"), nan=float("nan"), text='a "NaN", \\" Infinity')
json.dump(config, open("in/config.json", "w"))
EOF
    same() { # FILE DTYPE
        python3 - "$@" <<'EOF'
import json, sys
config = json.load(open(sys.argv[1]))
assert config["time_step_limit"] == [0.0, float("inf")] and config["low"] == -float("inf") and config["nan"] != config["nan"], config
assert config["text"] == 'a "NaN", \\" Infinity' and config.get("dtype", config.get("torch_dtype")) == sys.argv[2], config
EOF
    }
    exits 0 s2s-ckpt verify in
    exits 0 s2s-ckpt convert -q --to torch_dist --map llama in dist
    exits 0 s2s-ckpt convert -q --to hf dist back
    same back/config.json bfloat16
    exits 0 s2s-ckpt diff in back
    exits 0 s2s-ckpt convert -q --to hf --dtype f32 in wide
    same wide/config.json float32
    exits 0 s2s-ckpt convert -q --to hf --config in/config.json dist given
    same given/config.json bfloat16
    # no other word is a number
    sed -i 's/Infinity\]/Infinite]/' in/config.json
    exits 1 s2s-ckpt verify in
    says "config.json:1:"
}

@test "a model_type that no map knows is named where names or arguments are taken for it" {
    T=$MODELS/llama_gqa_tied
    exits 0 s2s-ckpt convert --to torch_dist --map llama "$T" known
    says_not "not known here"
    mkdir granite
    cp "$T/model.safetensors" granite
    jq '.model_type = "granite" | .architectures = ["GraniteForCausalLM"]' "$T/config.json" >granite/config.json
    exits 0 s2s-ckpt convert --to torch_dist --map llama granite out
    says "what Megatron computes for a granite is not known here"
    exits 0 s2s-ckpt convert --to hf out back
    says "the configuration says that this is a granite, for which there is no map: the names are those of llama"
    exits 0 s2s-ckpt diff granite back
    # a map of one's own knows the names, a folder that keeps them needs no map
    printf '%s\n' 'family granite' 'include llama "" ""' >own.map
    exits 0 s2s-ckpt convert --to hf --map own.map out own
    says_not "granite"
    exits 0 s2s-ckpt convert --to hf granite kept
    says_not "granite"
    exits 0 s2s-ckpt convert --to hf known again
    says_not "no map"
}

@test "a torch_dist folder with Hugging Face's names keeps the config.json and tokenizer that its way to Megatron's names needs" {
    mkdir model
    cp "$MODELS/llama_gqa_tied/model.safetensors" "$MODELS/llama_gqa_tied/config.json" model
    echo '{"version": "1.0"}' >model/tokenizer.json
    exits 0 s2s-ckpt convert -q --to torch_dist model kept
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama model want
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama kept got
    same want/iter_0000001/common.pt got/iter_0000001/common.pt
    exits 0 s2s-ckpt diff want got
    # also with a configuration of the user's
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama --config model/config.json kept given
    exits 0 s2s-ckpt convert -q --to hf given back
    same model/tokenizer.json back/tokenizer.json
}

@test "a Parakeet that went to torch_dist becomes the .nemo that it would have become before" {
    exits 0 s2s-ckpt convert -q --to hf "$ROOT/tests/oracle/ckpt/data/tiny.nemo" model
    echo '{"model": {"vocab": {"a": 0, "b": 1, "c": 2}}}' >model/tokenizer.json
    exits 0 s2s-ckpt convert -q --to torch_dist model kept
    exits 0 s2s-ckpt convert -q --to nemo --no-tokenizer model want.nemo
    exits 0 s2s-ckpt convert --to nemo --no-tokenizer kept got.nemo
    says_not "warning"
    same want.nemo got.nemo
}

@test "a number of layers or experts that no model has does not pass for a whole model" {
    mkdir in
    cp "$ROOT/tests/oracle/models/llama_gqa_untied/model.safetensors" in
    # says KEY VALUE: config.json with it
    config() {
        python3 - "$@" "$ROOT/tests/oracle/models/llama_gqa_untied/config.json" <<'PY'
import json, sys
config = json.load(open(sys.argv[3]))
config[sys.argv[1]] = json.loads(sys.argv[2])
json.dump(config, open("in/config.json", "w"))
PY
    }
    for value in 2147483647 10000 0 -1 null '"3"' 3.0; do
        turn || continue
        config num_hidden_layers "$value"
        for command in "verify in" "convert --to hf in out"; do
            exits 1 s2s-ckpt $command
            says "config.json: num_hidden_layers is $value, which is no number of layers"
            [ ! -e out ]
        done
    done
    for value in 2147483647 -2 '"8"' 8.0; do
        turn || continue
        config num_local_experts "$value"
        exits 1 s2s-ckpt verify in
        says "config.json: num_local_experts is $value, which is no number of experts"
    done
    # many missing layers are one line, and none vanishes
    for n in 1003 9999; do
        config num_hidden_layers $n
        exits 1 s2s-ckpt verify in
        says "wanted but absent ($((n - 3))):"
        says "all of model.layers.3 to $((n - 1))"
        [ "$(wc -l <<<"$output")" -le 4 ]
    done
}

@test "what is no checkpoint and no family is named" {
    mkdir meta
    touch meta/consolidated.00.pth
    echo '{"dim": 8}' >meta/params.json
    exits 1 s2s-ckpt ls meta
    says "Meta's and Mistral's own form"
    exits 2 s2s-ckpt convert --to hf --map lamma "$ROOT/tests/oracle/ckpt/data/mini_writer" out
    says "--map lamma: neither a family of models nor a file"
}
