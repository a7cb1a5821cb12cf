# Names that are kept: what the model of their config.json lacks, part by part. Which tensors transformers' own classes want is held
# against them in tests/oracle/ckpt/check_kept.py and check_alarms.py.

load common
load tensors

setup_tool() {
    DATA=$ROOT/tests/oracle/ckpt/data
    MODELS=$ROOT/tests/oracle/models
}

# rewrite IN OUT CODE: a safetensors file with the names that CODE, of a name k, says; None: without the tensor; (name, shape): with zeros
rewrite() {
    python3 - "$@" <<'PY'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
change, head, body = eval("lambda k: " + sys.argv[3]), {}, b""
for k, v in json.loads(raw[8:8 + n]).items():
    to = None if k == "__metadata__" else change(k)
    if to is None: continue
    data = raw[8 + n:][slice(*v["data_offsets"])]
    if isinstance(to, tuple):
        to, v["shape"] = to
        size = len(data) and 1
        for s in v["shape"]: size *= s
        data = bytes(size * {"BF16": 2, "F16": 2}.get(v["dtype"], 4))
    head[to] = {"dtype": v["dtype"], "shape": v["shape"], "data_offsets": [len(body), len(body) + len(data)]}
    body += data
text = json.dumps(head).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + body)
PY
}

# FOLDER is whole: nobody says otherwise
is_whole() {
    exits 0 s2s-ckpt verify "$1"
    says_not "is not whole"
    exits 0 s2s-ckpt convert --strict --to hf "$1" out
    says_not "is not whole"
    rm -r out
}

# lacks FOLDER NAME..: each is said of the folder, which is refused
lacks() {
    folder=$1
    shift
    exits 1 s2s-ckpt convert --to hf "$folder" out
    not test -e out
    exits 1 s2s-ckpt verify "$folder"
    says "is not whole"
    for name; do
        says "$name"
    done
}

@test "names that a wrapper stands around are no model's in a folder, and are put right out of a file" {
    mkdir model
    cp "$MODELS/qwen3/config.json" model
    for around in module. _orig_mod. model. model.module.; do
        rewrite "$MODELS/qwen3/model.safetensors" model/model.safetensors "'$around' + k"
        exits 1 s2s-ckpt verify model
        says "is not whole"
        says "wanted but absent"
        s2s-ckpt convert -q --to torch_dist model/model.safetensors dist
        exits 0 s2s-ckpt convert --strict --to hf --config model/config.json dist out
        exits 0 s2s-ckpt diff "$MODELS/qwen3" out
        exits 0 s2s-ckpt verify out
        says_not "is not whole"
        rm -r dist out
    done
    rewrite "$MODELS/qwen3/model.safetensors" model/model.safetensors "'module.' + k"
    lacks model embed_tokens.weight
}

@test "BERT's embeddings and Qwen3-VL's tower have words of Megatron's in their names, and are copied as they are" {
    mkdir model
    echo '{"model_type": "bert", "architectures": ["BertModel"]}' >model/config.json
    write model/model.safetensors "{'embeddings.word_embeddings.weight': (4, 2), 'bert.embeddings.word_embeddings.weight': (4, 2)}"
    is_whole model
    echo '{"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"]}' >model/config.json
    write model/model.safetensors "{'model.visual.blocks.0.mlp.linear_fc1.weight': (4, 2), 'model.visual.merger.linear_fc2.weight': (4, 2)}"
    is_whole model
    # all of ShieldGemma 2's begin so
    echo '{"model_type": "shieldgemma2", "architectures": ["ShieldGemma2ForImageClassification"]}' >model/config.json
    write model/model.safetensors "{'model.model.language_model.model.norm.weight': (4,), 'model.model.vision_tower.post_layernorm.weight': (4,)}"
    is_whole model
    s2s-ckpt convert -q --to hf model out
    exits 0 s2s-ckpt diff model out
    rm -r out
    for name in embedding.word_embeddings model.embedding.word_embeddings decoder.layers.0.mlp.linear_fc1 decoder.layers.mlp.linear_fc2 \
        vision_projection.encoder.linear_fc1; do
        write model/model.safetensors "{'$name.weight': (4, 2)}"
        exits 1 s2s-ckpt convert --to hf model out
        says "the names are Megatron's, such as $name.weight"
    done
}

@test "a Nemotron VLM under Hugging Face's names: what each of its parts lacks is told" {
    s2s-ckpt convert -q --to hf "$DATA/mcore015_vlm_tp2" all
    mkdir less
    # as NVIDIA publishes it: code of its own, and a tower that says no model_type
    cat >less/config.json <<'JSON'
{"architectures": ["NemotronH_Nano_VL_V2"], "model_type": "NemotronH_Nano_VL_V2", "auto_map": {"AutoConfig": "a.B"},
 "llm_config": {"architectures": ["NemotronHForCausalLM"], "auto_map": {"AutoConfig": "a.C"}, "model_type": "nemotron_h", "hidden_size": 16,
  "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 45, "tie_word_embeddings": false},
 "vision_config": {"architectures": ["RADIOModel"], "args": {}, "patch_size": 2}}
JSON
    cp all/model.safetensors less/
    is_whole less
    llm=language_model.backbone.layers radio=vision_model.radio_model.model
    for name in $llm.0.mixer.A_log $llm.1.mixer.o_proj.weight $llm.2.mixer.gate.e_score_correction_bias language_model.lm_head.weight \
        $radio.blocks.1.attn.qkv.weight $radio.patch_generator.pos_embed mlp1.3.weight; do
        rewrite all/model.safetensors less/model.safetensors "None if k == '$name' else k"
        lacks less $name
    done
    # of several parts, in one run
    rewrite all/model.safetensors less/model.safetensors "None if k in ('$llm.0.mixer.D', '$radio.blocks.0.norm1.bias', 'mlp1.0.weight') else k"
    lacks less $llm.0.mixer.D $radio.blocks.0.norm1.bias mlp1.0.weight
    # the last layer, and a shape
    rewrite all/model.safetensors less/model.safetensors "None if k.startswith('$llm.2.') else k"
    lacks less "layers.2"
    rewrite all/model.safetensors less/model.safetensors "(k, [8, 15]) if k == '$llm.1.mixer.k_proj.weight' else k"
    lacks less "$llm.1.mixer.k_proj.weight: shape [8, 15]"
    # a part with nothing of it left
    rewrite all/model.safetensors less/model.safetensors "None if k.startswith('vision_model.') else k"
    lacks less "all layers of its radio"
    rewrite all/model.safetensors less/model.safetensors "None if k.startswith('language_model.') else k"
    lacks less "all layers of its nemotron_h"
    # another's code has other parts
    rewrite all/model.safetensors less/model.safetensors "None if 'mixer.D' in k else k"
    sed -i 's/NemotronH_Nano_VL_V2/Other_VL/' less/config.json
    is_whole less
}

@test "long: a LLaVA: its words are found behind any prefix, each key of config.json counts where transformers reads it" {
    M=$MODELS/llama_gqa_untied
    mkdir llava
    config() { # of the text, of the whole
        jq "{architectures: [\"LlavaForConditionalGeneration\"], model_type: \"llava\", tie_word_embeddings: false,
            text_config: (del(.architectures) | $1), vision_config: {model_type: \"clip_vision_model\"}} | $2" "$M/config.json" >llava/config.json
    }
    put() { # as transformers saves it, as it has it in memory, and as a release or another class has it
        rewrite "$M/model.safetensors" llava/model.safetensors "(lambda k: $2)($1)"
    }
    spellings=("'language_model.' + k" "k.replace('model.', 'model.language_model.', 1)" "k.replace('model.', 'model.text_model.', 1)" "'a.b.' + k")
    config . .
    for spelling in "${spellings[@]}"; do
        put "$spelling" k
        is_whole llava
        put "$spelling" "None if 'layers.1.self_attn.q_proj' in k else k"
        lacks llava model.layers.1.self_attn.q_proj.weight
        put "$spelling" "None if 'layers.2' in k else k"
        lacks llava model.layers.2.mlp.down_proj.weight
        put "$spelling" "None if '.layers.' in k else k"
        lacks llava "all layers of its llama"
        put "$spelling" "None if 'lm_head' in k else k"
        lacks llava lm_head.weight
    done
    # tied by the whole model, or by the text; a text that does not say it follows the whole
    for change in "." "del(.tie_word_embeddings)"; do
        config "$change" ".tie_word_embeddings = true"
        is_whole llava
    done
    config ".tie_word_embeddings = true" "."
    is_whole llava
    config "del(.tie_word_embeddings)" "."
    lacks llava lm_head.weight
    config "." "del(.tie_word_embeddings)"
    lacks llava lm_head.weight
    # what no table knows, and code of one's own, are left alone; so are words of which nobody knows where they lie
    config ".model_type = \"llama5\"" "."
    is_whole llava
    config "." ".auto_map = {}"
    is_whole llava
    # weights packed by a quantiser, whose names no table knows either
    put "${spellings[0]}" "k.replace('.weight', '.W_q') if 'mlp' in k else k"
    config . .
    lacks llava model.layers.1.mlp.up_proj.weight
    for change in ".,.quantization_config = {quant_method: \"hqq\"}" ".quantization_config = {quant_method: \"hqq\"},."; do
        config "${change%,*}" "${change#*,}"
        is_whole llava
    done
    # a Gemma 3 with another head, or none, has no output matrix
    put "${spellings[0]}" "None if 'lm_head' in k else k"
    for class in Gemma3ForConditionalGeneration Gemma3ForSequenceClassification Gemma3Model; do
        config . ".model_type = \"gemma3\" | .architectures = [\"$class\"]"
        exits 1 s2s-ckpt verify llava
        says multi_modal_projector.mm_soft_emb_norm.weight
        if [ $class = Gemma3ForConditionalGeneration ]; then says lm_head; else says_not lm_head; fi
    done
    put "${spellings[0]}" k
    config . .
    rewrite "$M/model.safetensors" one.safetensors "'a.' + k"
    rewrite "$M/model.safetensors" two.safetensors "'b.' + k"
    mkdir twice && mv one.safetensors two.safetensors twice/ && cp llava/config.json twice/
    is_whole twice
}

@test "a tower of SigLIP's in a model that no table knows: its layers, and what goes with its head" {
    mkdir eye
    cat >eye/config.json <<'JSON'
{"architectures": ["SomeForConditionalGeneration"], "model_type": "some", "text_config": {"model_type": "other"},
 "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 2}}
JSON
    put() { # the code of rewrite; with a head, or without
        python3 - "$1" <<'PY'
import json, struct, sys
t = {"embeddings.patch_embedding.weight": [4, 3, 2, 2], "embeddings.position_embedding.weight": [9, 4]}
for name in "embeddings.patch_embedding.bias post_layernorm.weight post_layernorm.bias".split(): t[name] = [4]
for n in range(2):
    p = "encoder.layers.%d." % n
    for name in ("layer_norm1.weight", "layer_norm1.bias", "layer_norm2.weight", "layer_norm2.bias", "mlp.fc2.bias"): t[p + name] = [4]
    t.update({p + "mlp.fc1.weight": [6, 4], p + "mlp.fc1.bias": [6], p + "mlp.fc2.weight": [4, 6]})
    for x in "qkv": t.update({p + "self_attn.%s_proj.weight" % x: [4, 4], p + "self_attn.%s_proj.bias" % x: [4]})
    t.update({p + "self_attn.out_proj.weight": [4, 4], p + "self_attn.out_proj.bias": [4]})
if int(sys.argv[1]):
    t.update({"head.probe": [1, 1, 4], "head.attention.in_proj_weight": [12, 4], "head.attention.in_proj_bias": [12],
              "head.attention.out_proj.weight": [4, 4], "head.attention.out_proj.bias": [4], "head.layernorm.weight": [4], "head.layernorm.bias": [4],
              "head.mlp.fc1.weight": [6, 4], "head.mlp.fc1.bias": [6], "head.mlp.fc2.weight": [4, 6], "head.mlp.fc2.bias": [4]})
head, at = {}, 0
for k, shape in t.items():
    size = 4
    for s in shape: size *= s
    head["model.tower." + k] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
    at += size
text = json.dumps(head).encode()
open("all.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + bytes(at))
PY
        rewrite all.safetensors eye/model.safetensors "$2"
    }
    for head in 0 1; do
        put $head k
        is_whole eye
        for name in encoder.layers.0.layer_norm1.weight encoder.layers.1.mlp.fc2.bias post_layernorm.bias; do
            put $head "None if k.endswith('$name') else k"
            lacks eye $name
        done
    done
    put 1 "None if 'encoder.layers.1' in k else k"
    lacks eye encoder.layers.1.self_attn.out_proj.weight
    for name in head.probe head.attention.in_proj_weight head.mlp.fc2.bias; do
        put 1 "None if k.endswith('$name') else k"
        lacks eye $name
    done
}

@test "a SALM: what its encoder, its language model and its projection lack is told, under s2s-train's names and NeMo's" {
    cp -r "$MODELS/salm_llama" salm && rm salm/expected.* salm/inputs.*
    is_whole salm
    while read -r file name; do
        rewrite "$MODELS/salm_llama/$file" "salm/$file" "None if k == '$name' else k"
        lacks salm "$name"
        cp "$MODELS/salm_llama/$file" "salm/$file"
    done <<'LIST'
encoder/model.safetensors layers.0.norm_out.weight
encoder/model.safetensors subsampling.linear.bias
llm/model.safetensors model.layers.0.self_attn.k_proj.weight
llm/model.safetensors model.norm.weight
projection.safetensors proj.weight
LIST
    # a checkpoint that keeps the configurations in its common state
    s2s-ckpt convert -q --to torch_dist salm dist
    exits 0 s2s-ckpt convert --strict --to hf dist back
    says_not "is not whole"
    rewrite "$MODELS/salm_llama/llm/model.safetensors" salm/llm/model.safetensors "None if k == 'model.norm.weight' else k"
    s2s-ckpt convert -q --to torch_dist salm less
    exits 1 s2s-ckpt convert --strict --to hf less out
    says llm.model.norm.weight
    # NeMo's folder has one file, and a configuration of its own
    s2s-ckpt convert -q --to torch_dist --map salm "$MODELS/salm_llama" nemo.dist
    s2s-ckpt convert -q --to safetensors nemo.dist nemo.safetensors
    mkdir nemo
    echo '{"pretrained_llm": "a/b", "perception": {"encoder": {}, "modality_adapter": {"d_model": 8}}}' >nemo/config.json
    cp nemo.safetensors nemo/model.safetensors
    exits 0 s2s-ckpt verify nemo
    says_not "is not whole"
    name=perception.encoder.layers.0.self_attn.linear_q.weight
    rewrite nemo.safetensors nemo/model.safetensors "None if k == '$name' else k"
    exits 1 s2s-ckpt verify nemo
    says "(of $name)"
    says "is not whole"
}

@test "a SALM of NeMo's: its language model has the layers and the head that llm_backbone/config.json says" {
    s2s-ckpt convert -q --to torch_dist --map salm "$MODELS/salm_llama" nemo.dist
    s2s-ckpt convert -q --to safetensors nemo.dist nemo.safetensors
    mkdir -p nemo/llm_backbone
    echo '{"pretrained_llm": "a/b", "perception": {"encoder": {}, "modality_adapter": {"d_model": 8}}}' >nemo/config.json
    cp "$MODELS/salm_llama/llm/config.json" nemo/llm_backbone/
    cp nemo.safetensors nemo/model.safetensors
    exits 0 s2s-ckpt convert --strict --to hf nemo out
    exits 0 s2s-ckpt verify out
    says_not "is not whole"
    # the language model alone has its configuration, and the words that NeMo took out of it
    exits 0 s2s-ckpt convert --strict --to hf --part llm nemo part
    exits 0 s2s-ckpt verify part
    exits 0 s2s-ckpt diff out/llm part
    exits 0 s2s-ckpt convert --to safetensors --part llm nemo part.safetensors
    # a part whose configuration is not there
    exits 0 s2s-ckpt convert --to hf --part perception.encoder nemo ear
    says "no config.json is written"
    for lost in llm.model.layers.1. llm.lm_head.; do
        rewrite nemo.safetensors nemo/model.safetensors "None if k.startswith('$lost') else k"
        exits 1 s2s-ckpt convert --to hf nemo less
        says "wanted but absent"
        says $lost
        not test -e less
        exits 1 s2s-ckpt verify nemo
        says $lost
    done
}

@test "one part of a model (--part), Parakeet and Nemotron-H with NVIDIA's code: what they lack is told" {
    M=$MODELS/llama_gqa_untied
    mkdir llava eye
    jq '{model_type: "llava", text_config: del(.architectures)}' "$M/config.json" >llava/config.json
    rewrite "$M/model.safetensors" llava/model.safetensors "None if 'layers.1.mlp.up' in k else 'language_model.' + k"
    exits 1 s2s-ckpt convert --strict --to hf --part language_model llava out
    says model.layers.1.mlp.up_proj.weight
    # nothing says that a part has a head
    rewrite "$M/model.safetensors" llava/model.safetensors "None if 'lm_head' in k else 'language_model.' + k"
    exits 0 s2s-ckpt convert --strict --to hf --part language_model llava out
    says_not "is not whole"

    rm -r out
    cp -r "$MODELS/parakeet_encoder" parakeet && rm -f parakeet/expected.* parakeet/inputs.*
    is_whole parakeet
    rewrite "$MODELS/parakeet_encoder/model.safetensors" parakeet/model.safetensors "None if '0.conv.norm.bias' in k else k"
    lacks parakeet layers.0.conv.norm.bias

    # a head on it: its section calls itself an encoder, as transformers writes it
    s2s-ckpt convert -q --to hf "$DATA/tiny.nemo" ctc && rm ctc/s2s-manifest.json
    is_whole ctc
    mv ctc/model.safetensors all.safetensors
    for lost in ctc_head.weight encoder.layers.1.norm_out.bias; do
        rewrite all.safetensors ctc/model.safetensors "None if k == '$lost' else k"
        lacks ctc $lost
    done
    # Cohere's class writes the encoder's layers under names of its own
    jq '{architectures: ["CohereAsrForConditionalGeneration"], model_type: "cohere_asr", encoder_config}' ctc/config.json >config.json
    mv config.json ctc/
    rewrite all.safetensors ctc/model.safetensors "'model.' + k.replace('q_proj', 'linear_q').replace('conv.norm', 'conv.batch_norm')"
    is_whole ctc

    s2s-ckpt convert -q --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" hybrid
    jq '.auto_map = {"AutoConfig": "a.B"}' hybrid/config.json >config.json && mv config.json hybrid/ && rm hybrid/s2s-manifest.json
    is_whole hybrid
    mv hybrid/model.safetensors all.safetensors
    rewrite all.safetensors hybrid/model.safetensors "None if '.0.norm.weight' in k else k"
    lacks hybrid backbone.layers.0.norm.weight
}

@test "a weight of 8 bits without its scale is told of where others have theirs" {
    M=$MODELS/llama_gqa_untied
    mkdir small
    cp "$M/config.json" small/
    # LOST: a name, the scale of which is not there; DTYPE: of the weights
    put() {
        python3 - "$M/model.safetensors" small/model.safetensors "$@" <<'PY'
import json, struct, sys
source, out, end, lost, dtype = sys.argv[1:]
raw = open(source, "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head, at = {}, 0
for k, v in json.loads(raw[8:8 + n]).items():
    if k == "__metadata__": continue
    small = "_proj.weight" in k
    size = (v["data_offsets"][1] - v["data_offsets"][0]) // (4 if small else 1)
    head[k] = {"dtype": dtype if small else v["dtype"], "shape": v["shape"], "data_offsets": [at, at + size]}
    at += size
    if small and end and k != lost:
        head[k + end] = {"dtype": "F32", "shape": [1], "data_offsets": [at, at + 4]}
        at += 4
text = json.dumps(head).encode()
open(out, "wb").write(struct.pack("<Q", len(text)) + text + bytes(at))
PY
    }
    lost=model.layers.1.mlp.up_proj.weight
    for end in _scale _scale_inv; do
        put $end "" F8_E4M3
        is_whole small
        put $end $lost F8_E4M3
        lacks small $lost "without a scale"
    done
    # none has one, or they are of no such type
    put "" "" F8_E4M3
    is_whole small
    put _scale $lost I8
    is_whole small
}

@test "a decoder without its output matrix, or with another head: what it lacks is told" {
    M=$MODELS/llama_gqa_untied
    mkdir body
    jq '.architectures = ["LlamaModel"]' "$M/config.json" >body/config.json
    rewrite "$M/model.safetensors" bare.safetensors 'None if k.startswith("lm_head.") else k.removeprefix("model.")'
    cp bare.safetensors body/model.safetensors
    is_whole body
    for name in embed_tokens.weight norm.weight layers.0.input_layernorm.weight layers.1.mlp.down_proj.weight; do
        turn || continue
        rewrite bare.safetensors body/model.safetensors "None if k == '$name' else k"
        lacks body "$name"
    done
    # the last layer, of which only config.json knows
    rewrite bare.safetensors body/model.safetensors 'None if k.startswith("layers.1.") else k'
    lacks body layers.1.self_attn.q_proj.weight layers.1.input_layernorm.weight
    # a head of another kind in the matrix's place
    jq '.architectures = ["LlamaForSequenceClassification"]' "$M/config.json" >body/config.json
    rewrite "$M/model.safetensors" body/model.safetensors '("score.weight", [2, 48]) if k == "lm_head.weight" else k'
    is_whole body
    cp body/model.safetensors scored.safetensors
    for name in score.weight model.layers.0.self_attn.v_proj.weight; do
        rewrite scored.safetensors body/model.safetensors "None if k == '$name' else k"
        lacks body "$name"
    done
    # also where nothing says of which class it is
    jq 'del(.architectures)' "$M/config.json" >body/config.json
    cp scored.safetensors body/model.safetensors
    is_whole body
    rewrite scored.safetensors body/model.safetensors 'None if k == "model.norm.weight" else k'
    lacks body model.norm.weight
    # code of its own may have other weights
    jq '.auto_map = {AutoModel: "modeling.Mine"}' body/config.json >own.json
    mv own.json body/config.json
    is_whole body
}

@test "a key of config.json that the class does not heed wants no biases" {
    M=$MODELS/llama_gqa_untied
    mkdir idle
    cp "$M/model.safetensors" idle
    while read -r type key; do
        turn || continue
        jq ".model_type = \"$type\" | .$key = true | del(.architectures)" "$M/config.json" >idle/config.json
        is_whole idle
        jq '.auto_map = {} | .architectures = ["OwnForCausalLM"]' idle/config.json >own.json # code of one's own may heed it
        exits 1 s2s-ckpt convert --to torch_dist --map llama --config own.json "$M" x
        says "wanted but absent"
    done <<'LIST'
mistral attention_bias
mistral mlp_bias
llama qkv_bias
gemma mlp_bias
LIST
    jq '.attention_bias = true | .model_type = "mistral"' "$MODELS/qwen2/config.json" >mistral.json
    s2s-ckpt convert -q --to torch_dist --map llama "$MODELS/qwen2" biased
    exits 1 s2s-ckpt convert --to hf --config mistral.json biased x
    says "q_proj.bias: the configuration says that this is a mistral, which has none"
    says_not "without attention_bias"
    [ ! -e x ]
}

@test "a config.json that says nothing of the output matrix: Llama's class has one" {
    M=$MODELS/llama_gqa_untied
    mkdir silent
    jq 'del(.tie_word_embeddings)' "$M/config.json" >silent/config.json
    cp "$M/model.safetensors" silent
    is_whole silent
    rewrite "$M/model.safetensors" silent/model.safetensors 'None if k == "lm_head.weight" else k'
    lacks silent lm_head.weight
    exits 1 s2s-ckpt convert --to torch_dist --map llama silent out
    says "lm_head.weight"
}

@test "folders below a model's, which are not taken along, are named" {
    M=$MODELS/llama_gqa_untied
    mkdir -p in/1_Pooling in/2_Dense in/runs
    cp "$M/config.json" "$M/model.safetensors" in
    echo '[{"path": "1_Pooling"}, {"path": "2_Dense"}]' >in/modules.json
    exits 0 s2s-ckpt convert --to hf in plain
    says_not "folders below"
    echo '{}' >in/1_Pooling/config.json
    echo one >in/runs/events.out
    write in/2_Dense/model.safetensors "{'linear.weight': (2, 3)}"
    for words in "--to hf" "--to torch_dist" "--to torch_dist --map llama"; do
        rm -rf out
        # shellcheck disable=SC2086
        exits 0 s2s-ckpt convert $words in out
        says "in: files in folders below are left out: 1_Pooling/, 2_Dense/"
    done
}

@test "a folder that gets no config.json says so, unless it is a copy of one without" {
    M=$MODELS/llama_gqa_untied
    mkdir in
    cp "$M/model.safetensors" in
    for source in "$DATA/dcp_fsdp2" in/model.safetensors; do
        exits 0 s2s-ckpt convert --to hf "$source" out
        says "no config.json is written"
        rm -r out
    done
    exits 0 s2s-ckpt convert --to hf --config "$M" in/model.safetensors out
    says_not "no config.json"
    rm -r out
    exits 0 s2s-ckpt convert --to hf in out
    says_not "no config.json"
    # a part of a folder may have no share in its config.json
    rm -r out
    exits 0 s2s-ckpt convert --to hf --part model "$M" out
    says "no config.json is written"
}

@test "files beside the weights that are not copied are named, what is read or made anew is not" {
    M=$MODELS/llama_gqa_untied
    mkdir -p in
    cp "$M/config.json" "$M/model.safetensors" in
    echo '{}' | tee in/generation_config.json in/model.safetensors.index.fp16.json >in/metadata.json
    echo '{"algorithm": "xxh3-128", "files": {}}' >in/s2s-manifest.json
    : >in/.gitattributes
    for words in "--to hf" "--to torch_dist" "--to torch_dist --map llama"; do
        rm -rf out
        # shellcheck disable=SC2086
        s2s-ckpt convert -q --json $words in out | jq -e '.warnings == []'
    done
    echo '{}' | tee in/spk_dict.pt in/tokenizer.model.v3 >in/adapter_config.json
    for words in "--to hf" "--to torch_dist" "--to torch_dist --map llama"; do
        rm -rf out
        # shellcheck disable=SC2086
        s2s-ckpt convert -q --json $words in out >report.json
        jq -e '.warnings == ["adapter_config.json: there are no weights of an adapter, left out",
            "in: files beside the weights are left out: spk_dict.pt, tokenizer.model.v3"]' report.json
    done
    # beside tensors of torch_dist, and more than are shown
    dist=$(echo out/iter_*)
    for n in {100..300}; do : >"$dist/rng_$n.pth"; done
    : >"$dist/notes.json"
    mkdir many
    s2s-ckpt reshard -q --json --files 1 out many >report.json
    jq -e '.warnings | length == 1 and (.[0] | contains("are left out: notes.json, rng_100.pth,") and endswith("more"))' report.json
    # of the copy nothing is left out
    rm -r out
    s2s-ckpt reshard -q --json --files 1 many out | jq -e '.warnings == []'
}

# torchao says there how it quantised each tensor, and transformers loads no such model without it
@test "texts in the metadata of safetensors files are kept with the names, or named" {
    cat >texts.py <<'PY'
import glob, json, struct, sys
def save(path, names, **said):
    head = {n: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]} for i, n in enumerate(names)}
    text = json.dumps({"__metadata__": said, **head}).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + bytes(8 * len(names)))
def said(path):
    with open(path, "rb") as f: return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))["__metadata__"]
all = {"format": "pt", "a": '{"_type": "Int8Tensor"}', "é \n": "日本", "long": 'x"\\é\n' * 20000}
if __name__ == "__main__":
    assert sys.argv[1:] and [said(f) for f in sys.argv[1:]] == [all] * (len(sys.argv) - 1)
PY
    python3 -c "from texts import *; save('in.safetensors', 'ab', **all)"
    exits 0 s2s-ckpt convert --to safetensors in.safetensors out.safetensors
    exits 0 s2s-ckpt convert --to hf --max-shard-size 8 in.safetensors out
    exits 0 s2s-ckpt average --to safetensors in.safetensors out.safetensors mean.safetensors
    says_not "left out"
    python3 texts.py out.safetensors out/model-0000[12]-of-00002.safetensors mean.safetensors
    # the same from several files, each of which has all
    exits 0 s2s-ckpt convert --to hf out whole
    says_not "left out"
    python3 texts.py whole/model.safetensors
    # others have no place for them, or other names
    exits 0 s2s-ckpt convert --to torch_dist in.safetensors dist
    says "in.safetensors: texts in the metadata of its files are left out: a, é \\n, long"
    python3 -c "from texts import *; save('part.safetensors', ['llm.a', 'b'], **{'llm.a': '{}'})"
    exits 0 s2s-ckpt convert --to hf --part llm part.safetensors part
    says "left out: llm.a"
    # files that do not agree, a text of nine million bytes, and each file's own layout
    mkdir two
    python3 -c "from texts import *
save('two/model-00001-of-00002.safetensors', 'a', same='1', other='1', one='1', vast=9000000 * 'x')
save('two/model-00002-of-00002.safetensors', 'b', same='1', other='2', DCP_VERSION='1.0')"
    exits 0 s2s-ckpt convert --to hf two merged
    says "two: texts in the metadata of its files are left out: "
    says "other"
    says "vast"
    python3 -c "from texts import *; assert said('merged/model.safetensors') == {'format': 'pt', 'same': '1', 'one': '1'}"
}

@test "a model that ties the words of its part, whatever that says: so does the part alone" {
    M=$MODELS/llama_gqa_untied
    mkdir in
    jq '{architectures: ["InternVLForConditionalGeneration"], model_type: "internvl", tie_word_embeddings: true, text_config: .}' \
        "$M/config.json" >in/config.json
    rewrite "$M/model.safetensors" in/model.safetensors "None if 'lm_head' in k else 'language_model.' + k"
    is_whole in
    exits 0 s2s-ckpt convert -q --strict --to hf --part language_model in part
    [ "$(jq .tie_word_embeddings part/config.json)" = true ]
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama --part language_model in dist
    exits 0 s2s-ckpt convert -q --strict --to hf dist back
    exits 0 s2s-ckpt diff part back
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map language_model in inside
    # the way back has the configuration of the whole, and no other part
    exits 0 s2s-ckpt convert --to hf inside outside
    says "config.json is that of the whole model (internvl), of which only the language model is written"
    exits 0 s2s-ckpt convert --strict --to hf --part language_model inside inner
    says_not "config.json is that"
    # files that lie beside torch_dist's are no format's
    local dist=$(dirname inside/*/common.pt)
    touch "$dist"/{tokenizer.model,vocab.txt,run.yaml,common.pt~}
    exits 0 s2s-ckpt convert --to hf inside beside
    says "files beside the weights are left out: tokenizer.model, vocab.txt"
    [ ! -e beside/vocab.txt ]
    # an output matrix that is there is none of the words'
    rewrite "$M/model.safetensors" in/model.safetensors "'language_model.' + k"
    rm -r part
    exits 0 s2s-ckpt convert -q --strict --to hf --part language_model in part
    [ "$(jq .tie_word_embeddings part/config.json)" = false ]
    exits 0 s2s-ckpt diff "$M" part
}

# other MODEL JQ: the folder other/ has the weights of MODEL and its config.json, changed
other() {
    mkdir -p other
    jq "$2" "$1/config.json" >other/config.json
    cp "$1/model.safetensors" other/
}

@test "a config.json of another size than the weights is refused, whichever of its numbers differs" {
    M=$MODELS/qwen3
    while IFS='|' read -r change says; do
        turn || continue
        other "$M" "$change"
        lacks other "$says"
    done <<'LIST'
.vocab_size = 139|expected [139, 48] (139 as vocab_size of the configuration says)
.num_attention_heads = 2|expected [40, 48] (40 as num_attention_heads and head_dim of the configuration says)
.num_key_value_heads = 4|expected [80, 48] (80 as num_key_value_heads and head_dim of the configuration says)
.num_key_value_heads = null|expected [80, 48] (80 as num_key_value_heads and head_dim of the configuration says)
.head_dim = 10|k_norm.weight: shape [20], expected [10] (10 as head_dim of the configuration says)
LIST
    # Qwen3 has a head_dim of its own without one, Llama that of its width
    other "$M" 'del(.head_dim)'
    is_whole other
    other "$MODELS/llama_gqa_tied" 'del(.head_dim, .vocab_size)'
    is_whole other
    s2s-ckpt convert -q --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" hybrid
    for key in mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel num_key_value_heads; do
        turn || continue
        other hybrid ".$key *= 2"
        lacks other "$key"
    done
}

@test "weights that the class of config.json ignores are kept, and told" {
    other "$MODELS/qwen3" '.num_hidden_layers = 1 | .layer_types = .layer_types[:1]'
    exits 0 s2s-ckpt verify other
    says "model.layers.1: the configuration says 1 layers, the checkpoint has 2: transformers ignores the others"
    exits 0 s2s-ckpt convert --to hf other out
    exits 0 s2s-ckpt diff other out
    other "$MODELS/qwen2" '.model_type = "llama" | .architectures = ["LlamaForCausalLM"]'
    exits 0 s2s-ckpt verify other
    says "model.layers.0.self_attn.q_proj.bias: the configuration says that this is a llama, which has none without attention_bias: transformers ignores it"
    # where names are mapped they would be lost
    exits 1 s2s-ckpt convert --to torch_dist --map llama other dist
    says "which has none without attention_bias"
}

@test "a matrix that is tied is there once, under either name" {
    M=$MODELS/llama_gqa_tied
    mkdir model
    cp "$M/config.json" model
    # as safetensors' save_model leaves it
    rewrite "$M/model.safetensors" model/model.safetensors '"lm_head.weight" if k == "model.embed_tokens.weight" else k'
    is_whole model
    jq '.tie_word_embeddings = false' "$M/config.json" >model/config.json
    lacks model model.embed_tokens.weight
    # Nemotron-H's class has two, whatever it says; NVIDIA's own need not
    s2s-ckpt convert -q --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" hybrid
    jq '.tie_word_embeddings = true' hybrid/config.json >model/config.json
    for name in lm_head.weight backbone.embeddings.weight; do
        rewrite hybrid/model.safetensors model/model.safetensors "None if k == '$name' else k"
        lacks model "$name"
    done
    jq '.tie_word_embeddings = true | .auto_map = {}' hybrid/config.json >model/config.json
    rewrite hybrid/model.safetensors model/model.safetensors "None if k == 'lm_head.weight' else k"
    is_whole model
    # of some composites it is tied unless they say otherwise, whatever their language model's section says
    rewrite "$M/model.safetensors" model/model.safetensors '"language_model." + k'
    for type in mistral3 llava; do
        jq "{model_type: \"$type\", architectures: [\"TheForConditionalGeneration\"], text_config: (. + {tie_word_embeddings: false})}" "$M/config.json" \
            >model/config.json
        [ $type = mistral3 ] || lacks model language_model.lm_head.weight
        [ $type = llava ] || is_whole model
    done
}

@test "no layer at all, layers without an MLP, and heads of a wrong size are told" {
    M=$MODELS/qwen3
    other "$M" .
    rewrite "$M/model.safetensors" other/model.safetensors 'None if "layers." in k else k'
    lacks other "all of model.layers.0 to 1"
    s2s-ckpt convert -q --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" hybrid
    other hybrid '.n_shared_experts = 1'
    rewrite hybrid/model.safetensors other/model.safetensors 'None if ".shared_experts." in k else k'
    lacks other mixer.shared_experts.up_proj.weight mixer.shared_experts.down_proj.weight
    # a mixture whose second layer has experts
    jq '.model_type = "qwen3_moe" | .architectures = ["Qwen3MoeForCausalLM"] | .mlp_only_layers = [0] | .decoder_sparse_step = 1 | .num_experts = 2 |
        .moe_intermediate_size = 96' "$M/config.json" >other/config.json
    rewrite "$M/model.safetensors" other/model.safetensors 'None if "layers.1.mlp." in k else k'
    lacks other model.layers.1.mlp.gate.weight model.layers.1.mlp.experts.0.up_proj.weight
    rewrite "$M/model.safetensors" other/model.safetensors 'None if "layers.0.mlp." in k else k.replace("layers.1.mlp", "layers.1.mlp.experts.0")'
    lacks other model.layers.0.mlp.gate_proj.weight model.layers.1.mlp.gate.weight
    # a head has a row for each label
    jq '.architectures = ["Qwen3ForQuestionAnswering"]' "$M/config.json" >other/config.json
    rewrite "$M/model.safetensors" other/model.safetensors '("qa_outputs.weight", [2, 48]) if k == "lm_head.weight" else k.replace("model.", "transformer.")'
    lacks other qa_outputs.bias
    rewrite "$M/model.safetensors" scored.safetensors '("score.weight", [3, 48]) if k == "lm_head.weight" else k'
    jq '.architectures = ["Qwen3ForSequenceClassification"]' "$M/config.json" >other/config.json
    cp scored.safetensors other/model.safetensors
    lacks other "score.weight: shape [3, 48], expected [2, 48]"
    jq '.architectures = ["Qwen3ForSequenceClassification"] | .id2label = {"0": "a", "1": "b", "2": "c"}' "$M/config.json" >other/config.json
    is_whole other
}
