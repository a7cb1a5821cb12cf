# Models of several parts: what the maps choose, keep, rename and refuse. The mappings themselves are held against torch's in
# tests/oracle/ckpt/check_composites.py.

load common
load inject
load tensors

setup_tool() {
    DATA=$ROOT/tests/oracle/ckpt/data
}

# st.py: a safetensors file of F32 tensors, each of its own values
write_lib() {
    cat >st.py <<'PY'
import json, struct
def write(path, shapes):
    header, data = {}, []
    for k, (name, shape) in enumerate(shapes.items()):
        n = 1
        for size in shape: n *= size
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [4 * len(data), 4 * (len(data) + n)]}
        data += [k + i / 4096 for i in range(n)]
    head = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(head)) + head + struct.pack("<%df" % len(data), *data))
def rename(path, out, change, more={}):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n]); body = raw[8 + n:]
    head = {change(k): v for k, v in head.items() if k != "__metadata__" and change(k)}
    parts, at, new = [], 0, {}
    for k, v in head.items():
        b, e = v["data_offsets"]
        parts.append(body[b:e]); new[k] = dict(v, data_offsets=[at, at + e - b]); at += e - b
    for k, shape in more.items():
        n = 1
        for size in shape: n *= size
        parts.append(struct.pack("<%df" % n, *[i / 8 for i in range(n)]))
        new[k] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + 4 * n]}; at += 4 * n
    text = json.dumps(new).encode(); text += b" " * (-len(text) % 8)
    open(out, "wb").write(struct.pack("<Q", len(text)) + text + b"".join(parts))
def tower(g, width=8, layers=2, inner=""):
    p, out = inner + "patch_generator.", {}
    out[p + "cls_token.token"], out[p + "pos_embed"], out[p + "embedder.weight"] = (8, width), (1, 4, width), (width, 12)
    if g:
        out["inner.norm.weight"] = out["inner.norm.bias"] = out[inner + "mask_token"] = (width,)
    for n in range(layers):
        b = inner + "blocks.%d." % n
        one, two, f = ("w12", "w3", 2) if g else ("fc1", "fc2", 1)
        for norm in ("norm1", "norm2"): out[b + norm + ".weight"] = out[b + norm + ".bias"] = (width,)
        out.update({b + "attn.qkv.weight": (3 * width, width), b + "attn.qkv.bias": (3 * width,), b + "attn.proj.weight": (width, width),
                    b + "attn.proj.bias": (width,), b + "mlp.%s.weight" % one: (6 * f, width), b + "mlp.%s.bias" % one: (6 * f,),
                    b + "mlp.%s.weight" % two: (width, 6), b + "mlp.%s.bias" % two: (width,)})
        if g: out[b + "ls1.grandma"] = out[b + "ls2.grandma"] = (width,)
    return out
PY
}

@test "RADIO: qkv by head, H and g, and back; the last norm is wanted of g only" {
    write_lib
    echo '{"vision_config": {"num_attention_heads": 2}}' >config.json
    for size in 0 1; do
        python3 -c "import st; st.write('hf.safetensors', {'radio_model.model.' + k: v for k, v in st.tower($size, inner='inner.' * $size).items()})"
        rm -rf out back
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map radio --config config.json hf.safetensors out
        s2s-ckpt ls out >listed
        [ "$(grep -c '^ln_post' listed)" -eq $((2 * size)) ]
        exits 0 s2s-ckpt convert -q --strict --to hf --config config.json out back
        exits 0 s2s-ckpt diff hf.safetensors back
    done
    # head 0 has rows 0-3 of q, then of k, then of v
    s2s-ckpt cat hf.safetensors radio_model.model.inner.blocks.1.attn.qkv.bias >qkv
    for row in 0 8 16 4 12 20; do tail -c +$((row * 4 + 1)) qkv | head -c 16; done >want
    s2s-ckpt cat out decoder.layers.self_attention.linear_qkv.bias | tail -c 96 >got
    same want got
    python3 -c "import st; st.write('lacks.safetensors', {'radio_model.model.' + k: v for k, v in st.tower(1, inner='inner.').items() if k != 'inner.norm.bias'})"
    exits 1 s2s-ckpt convert --to torch_dist --map radio --config config.json lacks.safetensors x
    says "wanted but absent (1)"
    says "inner.norm.bias"
    [ ! -e x ]
}

@test "a map of the user's own may include built-in families under its prefixes" {
    write_lib
    cat >mine.map <<'MAP'
family mine
detect eye.position_embeddings
include radio_h eye. my.eye.
part =fastconformer ear. my.ear. ?
scale my.scale copy
{*} kept.{*} copy
MAP
    echo '{"vision_config": {"num_attention_heads": 2}}' >config.json
    python3 -c "
import st
names = {'my.eye.' + k: v for k, v in st.tower(0).items()}
names.update({'my.scale': (1,), 'kept.other.thing': (3, 2)})
st.write('hf.safetensors', names)"
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map mine.map --config config.json hf.safetensors out
    s2s-ckpt ls out >listed
    grep -q "^eye.class_token" listed
    grep -q "^eye.decoder.layers.mlp.linear_fc1.weight.*\[2, 6, 8\]" listed
    grep -q "^other.thing" listed
    exits 0 s2s-ckpt convert -q --strict --to hf --map mine.map --config config.json out back
    exits 0 s2s-ckpt diff hf.safetensors back
    echo "include nothing x. y." >>mine.map
    exits 1 s2s-ckpt convert --to torch_dist --map mine.map hf.safetensors x
    says "no family nothing"
}

# 4 heads of 3, of which two share k and v: rows of q, k, v in one tensor, whose places on the other side are counted here
@test "a map of the user's own takes q, k and v from one tensor, in groups too, and its letters are its own" {
    write_lib
    cat >mine.map <<'MAP'
family mine
section decoder.layers.{N}.attention.qkv.weight
decoder.layers.{N}.attention.qkv.weight  h.{N}.qkv.weight  qkv  [q+k+k,H]
decoder.layers.{N}.mlp.weight            h.{N}.mlp         copy [f,H]
MAP
    echo '{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 3, "hidden_size": 5, "intermediate_size": 6}' >config.json
    python3 -c "
import st
st.write('hf.safetensors', {'h.%d.%s' % (n, k): v for n in (0, 1) for k, v in {'qkv.weight': (24, 5), 'mlp': (12, 5)}.items()})"
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map mine.map --config config.json hf.safetensors out
    s2s-ckpt cat --json out decoder.layers.attention.qkv.weight | jq -c '.data | _nwise(5)' >made
    s2s-ckpt cat --json hf.safetensors h.0.qkv.weight | jq -c '.data | _nwise(5)' >rows
    # of the first group its two heads, k, v; then the second's
    for first in 0 3 12 18 6 9 15 21; do
        sed -n "$((first + 1)),$((first + 3))p" rows
    done >wanted
    head -n 24 made | diff - wanted
    exits 0 s2s-ckpt convert -q --strict --to hf --map mine.map --config config.json out back
    exits 0 s2s-ckpt diff hf.safetensors back
    jq '.head_dim = 4' config.json >other.json
    exits 1 s2s-ckpt convert --to torch_dist --map mine.map --config other.json hf.safetensors x
    says "h.0.qkv.weight: 24 rows are not 4 heads and 2 x 2 groups of 4"
}

# NeMo's SALM out of the fixtures: tiny.nemo's encoder and a Llama
write_salm() {
    write_lib
    s2s-ckpt convert -q --to safetensors "$DATA/tiny.nemo" ear.safetensors
    s2s-ckpt convert -q --to safetensors "$ROOT/tests/oracle/models/llama_gqa_untied/model.safetensors" llm.safetensors
    python3 - <<'PY'
import json, struct, st
st.rename("ear.safetensors", "a.safetensors", lambda k: "perception." + k if k.startswith(("encoder.", "preprocessor.")) else None)
st.rename("llm.safetensors", "b.safetensors", lambda k: "embed_tokens.weight" if k == "model.embed_tokens.weight" else "llm." + k)
def load(path):
    raw = open(path, "rb").read(); n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + n]), raw[8 + n:]
(a, x), (b, y) = load("a.safetensors"), load("b.safetensors")
for v in b.values(): v["data_offsets"] = [o + len(x) for o in v["data_offsets"]]
head = json.dumps({**a, **b}).encode()
open("ab.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + x + y)
st.rename("ab.safetensors", "salm.safetensors", lambda k: k, {"perception.proj.weight": (48, 16), "perception.proj.bias": (48,)})
PY
}

@test "a speech model's folder says by llm/config.json how Megatron has its language model" {
    write_salm
    model=$ROOT/tests/oracle/models/llama_gqa_untied
    s2s-ckpt convert -q --to hf salm.safetensors hf
    cp "$model/config.json" hf/llm
    echo '{"version": "1.0"}' >hf/llm/tokenizer.json
    exits 0 s2s-ckpt convert -q --to torch_dist hf kept
    exits 0 s2s-ckpt convert -q --to torch_dist --map llama hf/llm want
    for from in hf kept; do
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama --part llm $from llm-$from
        exits 0 s2s-ckpt diff want llm-$from
        same want/iter_0000001/common.pt llm-$from/iter_0000001/common.pt
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map salm_megatron $from all-$from
        s2s-ckpt ls all-$from | grep -q "^llm.decoder.layers.self_attention.linear_qkv.weight"
        exits 0 s2s-ckpt convert -q --strict --to hf all-$from back-$from
        exits 0 s2s-ckpt diff hf back-$from
        same hf/llm/tokenizer.json back-$from/llm/tokenizer.json
    done
}

@test "NeMo's SALM becomes encoder/, llm/ and projection.safetensors, and its names come back" {
    write_salm
    exits 0 s2s-ckpt convert -v --strict --to hf salm.safetensors model
    says "name map: salm"
    says "llm/config.json is not written"
    exits 0 s2s-ckpt diff llm.safetensors model/llm
    case ${S2S_BIN:-} in
    *sanitize*) ;;
    *)
        inject_build
        durably again s2s-ckpt convert -q --to hf salm.safetensors again
        ;;
    esac
    s2s-ckpt convert -q --map fastconformer_encoder --to hf "$DATA/tiny.nemo" encoder
    s2s-ckpt ls --sha256 encoder >want
    s2s-ckpt ls --sha256 model/encoder >got
    same want got
    grep -q '"bias": true' model/config.json
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map salm model back
    s2s-ckpt ls --sha256 salm.safetensors | grep -v featurizer >want
    s2s-ckpt ls --sha256 back >got
    same want got
}

@test "a SALM that NeMo Automodel trained: its experts become Hugging Face's; of other models they are refused" {
    write_salm
    cat >make.py <<'PY'
import st
ear = lambda k: k if k.startswith("perception.") else None
ends = {"llm.model.embed_tokens.weight": (10, 48), "llm.lm_head.weight": (10, 48), "llm.model.norm.weight": (48,)}
at = "llm.model.layers."
qwen = {**ends, **{at + "0." + k: v for k, v in {"input_layernorm.weight": (48,), "post_attention_layernorm.weight": (48,), "mlp.gate.weight": (3, 48),
        "self_attn.q_proj.weight": (8, 48), "self_attn.k_proj.weight": (4, 48), "self_attn.v_proj.weight": (4, 48), "self_attn.o_proj.weight": (48, 8),
        "self_attn.q_norm.weight": (4,), "self_attn.k_norm.weight": (4,), "mlp.experts.gate_and_up_projs": (3, 48, 10),
        "mlp.experts.down_projs": (3, 5, 48)}.items()}}
hybrid = {**ends, **{at + "0." + k: v for k, v in {"norm.weight": (48,), "mixer.in_proj.weight": (30, 48), "mixer.conv1d.weight": (18, 1, 4),
          "mixer.conv1d.bias": (18,), "mixer._fp32_params.A_log": (2,), "mixer._fp32_params.D": (2,), "mixer._fp32_params.dt_bias": (2,),
          "mixer.norm.weight": (10,), "mixer.out_proj.weight": (48, 10)}.items()},
          **{at + "1." + k: v for k, v in {"norm.weight": (48,), "mixer.gate.weight": (3, 48), "mixer.gate.e_score_correction_bias": (3,),
          "mixer.experts.gate_and_up_projs": (3, 48, 5), "mixer.experts.down_projs": (3, 5, 48)}.items()}}
other = {**{k: v for k, v in qwen.items() if "_norm." not in k}, at + "0.mlp.shared_experts.down_proj.weight": (48, 5)}
st.rename("salm.safetensors", "qwen.safetensors", ear, qwen)
st.rename("salm.safetensors", "hybrid.safetensors", ear, hybrid)
st.rename("salm.safetensors", "other.safetensors", ear, other)
st.write("plain.safetensors", {k[4:]: v for k, v in other.items()})
PY
    python3 make.py
    exits 0 s2s-ckpt convert -q --strict --to hf qwen.safetensors qwen
    exits 0 s2s-ckpt convert -q --strict --to hf hybrid.safetensors hybrid
    for e in 0 1 2; do
        printf 'model.layers.0.mlp.experts.%s.%s\n' $e "down_proj.weight	[48, 5]" $e "gate_proj.weight	[5, 48]" $e "up_proj.weight	[5, 48]"
    done >want
    for e in 0 1 2; do
        printf 'backbone.layers.1.mixer.experts.%s.%s\n' $e "down_proj.weight	[48, 5]" $e "up_proj.weight	[5, 48]"
    done >>want
    for from in qwen hybrid; do s2s-ckpt ls $from/llm | cut -f1,3 | grep experts; done >got
    same want got
    # of other models nobody says here what transformers calls them
    for from in other plain; do
        exits 1 s2s-ckpt convert --to hf $from.safetensors $from
        says "the experts are as NeMo Automodel trains them, such as model.layers.0.mlp.experts."
        [ ! -e $from ]
        exits 0 s2s-ckpt convert -q --to torch_dist $from.safetensors $from.kept
    done
}

@test "a Nemotron-H whose words NeMo took out of it, and DuplexSTT's, are a SALM's" {
    write_salm
    cat >make.py <<'PY'
import st
def write(path, begin, more):
    st.rename("salm.safetensors", path, lambda k: k if k.startswith("perception.") else None, {"embed_tokens.weight": (10, 48), **more, **{
        begin + k: v for k, v in {"norm_f.weight": (48,), "layers.0.norm.weight": (48,), "layers.0.mixer.in_proj.weight": (30, 48),
        "layers.0.mixer.conv1d.weight": (18, 1, 4), "layers.0.mixer.conv1d.bias": (18,), "layers.0.mixer.A_log": (2,), "layers.0.mixer.D": (2,),
        "layers.0.mixer.dt_bias": (2,), "layers.0.mixer.norm.weight": (10,), "layers.0.mixer.out_proj.weight": (48, 10)}.items()}})
write("model.safetensors", "llm.model.", {"llm.lm_head.weight": (10, 48)})
write("backbone.safetensors", "llm.backbone.", {"llm.lm_head.weight": (10, 48)})
write("duplex.safetensors", "llm.", {"lm_head.weight": (10, 48)})
PY
    python3 make.py
    for name in model backbone duplex; do
        exits 0 s2s-ckpt convert -q --strict --to hf $name.safetensors $name
        exits 0 s2s-ckpt diff model $name
    done
    s2s-ckpt ls model/llm | cut -f1 >got
    grep -qx backbone.embeddings.weight got
    grep -qx lm_head.weight got
    [ "$(wc -l <got)" -eq 12 ]
}

@test "a tied matrix that safetensors' save_model wrote under one name has its other one too" {
    write_salm
    python3 - <<'PY'
import json, struct, st
st.rename("salm.safetensors", "tied.safetensors", lambda k: "llm.model.embed_tokens.weight" if k == "embed_tokens.weight" else None if k == "llm.lm_head.weight" else k)
st.rename("tied.safetensors", "kept.safetensors", lambda k: "llm.lm_head.weight" if k == "llm.model.embed_tokens.weight" else k)
raw = open("kept.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
for name, said in (("kept", {"llm.model.embed_tokens.weight": "llm.lm_head.weight", "format": "pt"}), ("other", {"llm.model.embed_tokens.weight": "x"})):
    text = json.dumps({"__metadata__": said, **json.loads(raw[8:8 + n])}).encode()
    open(name + ".safetensors", "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + n:])
PY
    exits 0 s2s-ckpt convert -q --strict --to hf kept.safetensors model
    s2s-ckpt cat model/llm model.embed_tokens.weight >a
    s2s-ckpt cat model/llm lm_head.weight >b
    s2s-ckpt cat tied.safetensors llm.model.embed_tokens.weight >want
    same want a
    same want b
    exits 0 s2s-ckpt verify kept.safetensors
    # what the file has is listed and copied as it is: load_model refuses both names
    [ "$(s2s-ckpt ls kept.safetensors | grep -c embed_tokens)" = 0 ]
    exits 0 s2s-ckpt convert -q --to safetensors kept.safetensors copy.safetensors
    exits 0 s2s-ckpt diff kept.safetensors copy.safetensors
    # under kept names Hugging Face's folder is a copy, too
    mkdir own
    python3 - <<'PY'
import json, struct
text = json.dumps({"__metadata__": {"b.weight": "a.weight"}, "a.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
open("own/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + bytes(8))
PY
    exits 0 s2s-ckpt convert -q --to hf own own.copy
    [ "$(s2s-ckpt ls own.copy | cut -f 1)" = a.weight ]
    exits 0 s2s-ckpt average -q own own own.mean
    [ "$(s2s-ckpt ls own.mean | cut -f 1)" = a.weight ]
    # a text that names no tensor is none
    exits 1 s2s-ckpt convert -q --to hf other.safetensors none
    says "llm.model.embed_tokens.weight"
    # of several files each may say what is true of all
    mkdir parts
    python3 - <<'PY'
import json, struct
raw = open("kept.safetensors", "rb").read()
open("parts/model-00001-of-00002.safetensors", "wb").write(raw)
text = json.dumps({"__metadata__": {"llm.model.embed_tokens.weight": "llm.lm_head.weight"}, "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
open("parts/model-00002-of-00002.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + bytes(4))
names = [k for k in json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]]) if k != "__metadata__"]
json.dump({"weight_map": {**{k: "model-00001-of-00002.safetensors" for k in names}, "x": "model-00002-of-00002.safetensors"}}, open("parts/model.safetensors.index.json", "w"))
PY
    exits 0 s2s-ckpt verify parts
    says_not "not in the index"
    # a small file does not become a large model by names
    python3 - <<'PY'
import json, struct
header = {"__metadata__": {f"x{i}": "w" for i in range(20000)}, "w": {"dtype": "F32", "shape": [32768], "data_offsets": [0, 131072]}}
text = json.dumps(header).encode()
open("bomb.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + bytes(131072))
PY
    exits 1 s2s-ckpt convert --to hf --map salm bomb.safetensors bomb
    says "absurd, the same again and again"
    [ ! -e bomb ]
}

@test "what Lightning has beside the tensors of a folder: meta.pt is read, checked and taken along" {
    write_salm
    s2s-ckpt convert -q --to torch_dist salm.safetensors dist
    mv dist/iter_0000001 in
    rm in/common.pt in/metadata.json in/s2s-manifest.json
    cat >meta.py <<'PY'
import pickle, zipfile, os, sys
class Runs:
    def __reduce__(self): return os.system, ("touch ran",)
encoder = {"d_model": 16, "n_heads": 2, "n_layers": 2, "feat_in": 16, "conv_kernel_size": 5, "subsampling": "dw_striding", "subsampling_factor": 8,
           "subsampling_conv_channels": 4, "ff_expansion_factor": 2, "self_attention_model": "rel_pos"}
meta = {"epoch": 1, "global_step": 10, "loops": {}, "hyper_parameters": {"cfg": {"perception": {"encoder": encoder, "modality_adapter": {"d_model": 16},
        "preprocessor": {"sample_rate": 16000, "window_size": 0.025, "window_stride": 0.01, "features": 16, "n_fft": 512}}}}}
with zipfile.ZipFile("in/meta.pt", "w") as z:
    z.writestr("meta/data.pkl", pickle.dumps(Runs() if sys.argv[1:] else meta, 2))
    z.writestr("meta/byteorder", "little")
    z.writestr("meta/version", "3\n")
PY
    python3 meta.py
    for command in reshard prune "convert --to torch_dist" "average in"; do
        rm -rf out
        # shellcheck disable=SC2086
        exits 0 s2s-ckpt $command in out
        same in/meta.pt out/iter_0000001/meta.pt
        exits 0 s2s-ckpt verify out
    done
    for from in in out; do
        exits 0 s2s-ckpt convert --strict --to hf $from $from.hf
        says_not "encoder/config.json is not written"
        grep -q '"hidden_size": 16' $from.hf/encoder/config.json
        [ -e $from.hf/encoder/preprocessor_config.json ]
    done
    python3 meta.py runs
    for command in "verify in" "reshard in out2"; do
        # shellcheck disable=SC2086
        exits 1 s2s-ckpt $command
        says "meta.pt"
        says "posix.system"
    done
    [ ! -e ran ]
    [ ! -e out2 ]
}

@test "the id of a SALM's placeholder is found in a tokenizer of any characters" {
    write_salm
    mkdir in && mv salm.safetensors in/model.safetensors
    echo '{"perception": {"encoder": {}}, "audio_locator_tag": "<|audio|>"}' >in/config.json
    printf '%s' '{"model": {"vocab": {"\u0000": 0}}, "added_tokens": [{"id": 7, "content": "<|audio|>"}]}' >in/tokenizer.json
    s2s-ckpt convert -q --to hf in out
    grep -q '"audio_locator_token_id": 7' out/config.json
}

@test "a SALM's adapter between encoder and projection, which no folder has, is said to be left out" {
    write_salm
    mkdir in && mv salm.safetensors in/model.safetensors
    echo '{"perception": {"encoder": {}, "modality_adapter": {"_target_": "nemo.x.IdentityConnector", "d_model": 16}}}' >in/config.json
    exits 0 s2s-ckpt convert --to hf in out
    says_not "modality_adapter"
    sed -i 's/IdentityConnector/ConformerEncoder/' in/config.json
    exits 0 s2s-ckpt convert --to hf in out2
    says "perception.modality_adapter is nemo.x.ConformerEncoder, which is left out"
}

@test "a SALM that lacks a tensor of any part is refused, all of them named" {
    write_salm
    python3 -c "
import st
lost = ('llm.model.layers.1.mlp.up_proj.weight', 'embed_tokens.weight', 'perception.encoder.layers.0.conv.batch_norm.running_var')
st.rename('salm.safetensors', 'lacks.safetensors', lambda k: None if k in lost else k)"
    exits 1 s2s-ckpt convert --to hf --map salm lacks.safetensors model
    says "wanted but absent (3)"
    says "llm.model.layers.1.mlp.up_proj.weight"
    says "llm.model.embed_tokens.weight"
    says "encoder.layers.0.conv.norm.running_var"
    [ ! -e model ]
}

@test "a SALM's projection is as wide as what it joins, both ways; a VLM's, as its words" {
    write_salm
    s2s-ckpt convert -q --to hf salm.safetensors model
    for shape in "48, 20" "40, 16" "16, 48"; do
        python3 -c "
import st
st.rename('salm.safetensors', 'wide.safetensors', lambda k: None if 'perception.proj' in k else k, {'perception.proj.weight': ($shape), 'perception.proj.bias': (${shape%,*},)})
st.rename('salm.safetensors', 'model/projection.safetensors', lambda k: None, {'proj.weight': ($shape), 'proj.bias': (${shape%,*},)})"
        exits 1 s2s-ckpt convert --to hf wide.safetensors x
        says "proj.weight (of perception.proj.weight): shape [$shape], expected [48, 16]"
        exits 1 s2s-ckpt convert --to torch_dist --map salm model x
        says "proj.weight: shape [$shape], expected [48, 16]"
        [ ! -e x ]
    done
    # of a configuration that says no width
    echo '{"vision_config": {"num_attention_heads": 2}, "llm_config": {"num_attention_heads": 4, "num_key_value_heads": 2}}' >config.json
    s2s-ckpt convert -q --to safetensors "$DATA/mcore015_vlm_tp2" vlm.safetensors
    exits 0 s2s-ckpt convert --plan --to hf --config config.json vlm.safetensors x
    python3 -c "
import st
st.rename('vlm.safetensors', 'wide.safetensors', lambda k: None if 'vision_projection.encoder.linear_fc2' in k else k, {'vision_projection.encoder.linear_fc2.weight': (20, 24)})"
    exits 1 s2s-ckpt convert --to hf --config config.json wide.safetensors x
    says "mlp1.3.weight (of vision_projection.encoder.linear_fc2.weight): shape [20, 24], expected ["
    [ ! -e x ]
}

@test "LoRA adapters are refused by name where weights are mapped, and kept where names are kept" {
    write_salm
    python3 -c "
import st
st.rename('salm.safetensors', 'lora.safetensors', lambda k: k.replace('llm.', 'llm.base_model.model.', 1),
          {'llm.base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight': (2, 4)})"
    exits 1 s2s-ckpt convert --to hf lora.safetensors model
    says "LoRA"
    says "lora_A.default.weight"
    [ ! -e model ]
    exits 0 s2s-ckpt convert -q --to torch_dist lora.safetensors kept
    s2s-ckpt ls kept | grep -q lora_A
    # a product of means is no mean of products
    exits 0 s2s-ckpt average --to torch_dist lora.safetensors kept mean
    says "has LoRA adapters, such as llm.base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    says_not "kept: has LoRA"
    exits 0 s2s-ckpt average --to torch_dist salm.safetensors salm.safetensors plain
    says_not LoRA
    # NeMo Automodel's of experts, and the lengths of DoRA
    for name in mlp.experts.lora_gate_and_up_B mlp.experts.lora_down_A self_attn.q_proj.lora_magnitude; do
        python3 -c "
import st
st.rename('salm.safetensors', 'lora.safetensors', lambda k: k, {'llm.model.layers.0.$name': (2, 4)})"
        exits 1 s2s-ckpt convert --to hf lora.safetensors model
        says "LoRA adapters or tensors under them (1), such as llm.model.layers.0.$name"
    done
    # a layer in the wrapping of an adapter that is gone
    python3 -c "
import st
st.rename('salm.safetensors', 'wrapped.safetensors', lambda k: k.replace('q_proj.weight', 'q_proj.base_layer.weight'), {})"
    exits 1 s2s-ckpt convert --to hf wrapped.safetensors model
    says "LoRA adapters or tensors under them ("
    says "q_proj.base_layer.weight"
    # Megatron-Bridge's, beside the weights they are to be added to, and alone
    s2s-ckpt convert -q --to torch_dist --map llama "$ROOT/tests/oracle/models/llama_gqa_untied" dist
    s2s-ckpt convert -q --to safetensors dist dist.safetensors
    python3 -c "
import st
q = 'decoder.layers.self_attention.linear_qkv.adapter.'
st.rename('dist.safetensors', 'both.safetensors', lambda k: k, {q + 'linear_in.weight': (3, 4, 24), q + 'linear_out.weight': (3, 40, 4)})
st.rename('dist.safetensors', 'alone.safetensors', lambda k: None, {q + 'adapter_q.linear_in.weight': (3, 4, 24)})"
    for name in both alone; do
        exits 1 s2s-ckpt convert --config "$ROOT/tests/oracle/models/llama_gqa_untied/config.json" --to hf $name.safetensors model
        says ", such as decoder.layers.self_attention.linear_qkv.adapter."
        says "LoRA adapters or tensors under them ("
        [ ! -e model ]
        exits 0 s2s-ckpt convert -q --to torch_dist $name.safetensors $name
    done
}

@test "--part takes one part of a model: its tensors, its configuration, nothing of the others" {
    write_lib
    V=$DATA/mcore015_vlm_tp2
    exits 0 s2s-ckpt convert -q --to hf "$V" all
    exits 0 s2s-ckpt convert -q --strict --to hf --part language_model "$V" llm
    exits 1 s2s-ckpt convert -q --strict --to hf --part all.language_model "$V" none
    says "no tensor's name begins with all.language_model."
    says "language_model., vision_model."
    [ ! -e none ]
    # a part that lies deeper is named as a whole, and wrappers are nobody's beginning
    s2s-ckpt convert -q --to safetensors "$V" flat.safetensors
    python3 -c "
import st
st.rename('flat.safetensors', 'deep.safetensors', lambda k: 'module.llava_model.' + k)"
    exits 1 s2s-ckpt convert --to hf --part language_model deep.safetensors none
    says "there are llava_model.language_model."
    exits 1 s2s-ckpt convert --to hf --part audio deep.safetensors none
    says "there are llava_model."
    [ ! -e none ]
    s2s-ckpt ls --sha256 all | grep ^language_model | sed 's/^language_model\.//' >want
    s2s-ckpt ls --sha256 llm >got
    same want got
    # the tower's heads are not the language model's: they are asked for
    exits 1 s2s-ckpt convert -q --to hf --part vision_model "$V" eye
    says "how many heads"
    echo '{"vision_config": {"num_attention_heads": 2, "num_hidden_layers": 2}, "llm_config": {"num_hidden_layers": 9, "num_attention_heads": 4}}' >config.json
    exits 0 s2s-ckpt convert -q --strict --to hf --part vision_model --config config.json "$V" eye
    s2s-ckpt ls --sha256 all | sed -n 's/^vision_model\.//p' >want
    s2s-ckpt ls --sha256 eye >got
    same want got
    # the part's share of it goes along, given or lying beside the weights
    [ "$(jq -c . eye/config.json)" = '{"num_attention_heads":2,"num_hidden_layers":2}' ]
    cp -r "$V" beside
    jq '.model_type = "vlm"' config.json > "$(echo beside/iter_*)/config.json"
    exits 0 s2s-ckpt convert -q --strict --to hf --part vision_model beside eye2
    exits 0 s2s-ckpt diff eye eye2
    cmp eye/config.json eye2/config.json
    # from Hugging Face's side, and into one file
    cp config.json all/
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --part vision_model --map radio all back
    s2s-ckpt ls --sha256 "$V" | grep -v _extra_state | sed -n 's/^vision_model\.//p' >want
    s2s-ckpt ls --sha256 back | grep -v _extra_state >got
    same want got
    exits 0 s2s-ckpt convert -q --to hf --part language_model all again
    grep -q '"num_hidden_layers": 9' again/config.json
    exits 1 grep -q vision_config again/config.json
    exits 0 s2s-ckpt convert -q --to safetensors --part mlp1 all mlp.safetensors
    [ "$(s2s-ckpt ls mlp.safetensors | wc -l)" -eq 3 ]
}

@test "the heads of a vision tower are those of the configuration that went along" {
    V=$DATA/mcore015_vlm_tp2
    for heads in 1 4; do
        rm -rf hf megatron back eye want
        echo '{"vision_config": {"num_attention_heads": '$heads'}, "llm_config": {"num_attention_heads": 4, "num_key_value_heads": 2}}' >config.json
        s2s-ckpt convert -q --to hf --config config.json "$V" hf
        exits 0 s2s-ckpt convert -q --to torch_dist --map nemotron_vlm hf megatron
        exits 0 s2s-ckpt convert --strict --to hf megatron back
        says_not "how many heads"
        exits 0 s2s-ckpt diff hf back
        exits 0 s2s-ckpt convert --strict --to hf --part vision_model megatron eye
        s2s-ckpt ls --sha256 hf | sed -n 's/^vision_model\.//p' >want
        s2s-ckpt ls --sha256 eye >got
        same want got
    done
}

@test "--part llm of NeMo's speech models has the words and the head that lie outside of it" {
    write_salm
    python3 - <<'PY'
import st
st.rename("salm.safetensors", "duplex.safetensors", lambda k: k.replace("llm.model.", "llm.").replace("llm.lm_head.", "lm_head."))
st.rename("salm.safetensors", "inside.safetensors", lambda k: "llm.model." + k if k == "embed_tokens.weight" else k)
PY
    for kind in salm duplex inside; do
        exits 0 s2s-ckpt convert -q --strict --to hf --part llm $kind.safetensors $kind
        exits 0 s2s-ckpt diff llm.safetensors $kind
        s2s-ckpt convert -q --to safetensors --part llm $kind.safetensors $kind.alone
        exits 0 s2s-ckpt diff llm.safetensors $kind.alone
    done
    exits 0 s2s-ckpt convert -q --strict --to safetensors --part perception duplex.safetensors ear.alone
    s2s-ckpt ls ear.alone >listed
    exits 1 grep -q '^\(embed_tokens\|lm_head\|model\)' listed
}

@test "a layer that lacks the tensor by which its kind is known is not taken for another kind" {
    write_lib
    M=$ROOT/tests/oracle/models/llama_gqa_untied
    python3 -c "
import st
st.rename('$M/model.safetensors', 'lacks.safetensors', lambda k: None if k == 'model.layers.1.self_attn.q_proj.weight' else k)
st.rename('$M/model.safetensors', 'odd.safetensors', lambda k: k.replace('layers.1.mlp.gate_proj', 'layers.1.mlp.gate_porj'))"
    exits 1 s2s-ckpt convert --to torch_dist --map llama --config "$M/config.json" lacks.safetensors x
    says "wanted but absent (1)"
    says "model.layers.1.self_attn.q_proj.weight"
    exits 1 s2s-ckpt convert --to torch_dist --map llama --config "$M/config.json" odd.safetensors x
    says "model.layers.1.mlp.gate_proj.weight (nearest: model.layers.1.mlp.gate_porj.weight)"
    exits 0 s2s-ckpt convert -q --to torch_dist --map llama --layers numbered --config "$M/config.json" "$M" dist
    exits 0 s2s-ckpt convert -q --to safetensors dist whole.safetensors
    python3 -c "
import st
st.rename('whole.safetensors', 'lacks.safetensors', lambda k: None if k == 'decoder.layers.1.self_attention.linear_qkv.weight' else k)"
    exits 1 s2s-ckpt convert --to hf --config "$M/config.json" lacks.safetensors x
    says "wanted but absent (3)"
    says "model.layers.1.self_attn.v_proj.weight (of decoder.layers.1.self_attention.linear_qkv.weight)"
    [ ! -e x ]
}

@test "RADIO in a heterogeneous model is found whatever its modality and its encoder are called" {
    write_lib
    data=$DATA/mcore015_vlm_tp2
    s2s-ckpt convert -q --to hf "$data" want
    s2s-ckpt convert -q --to safetensors "$data" vlm.safetensors
    named() { # EYE PROJECTION LANGUAGE: the model under these names
        python3 -c "
import st, sys
part = dict(zip(('vision_model', 'vision_projection', 'language_model'), sys.argv[1:]))
st.rename('vlm.safetensors', 'named.safetensors', lambda k: None if k[:9] == 'optimizer' else part[k.split('.')[0]] + k[k.index('.'):])" "$@"
        rm -rf dist got
        s2s-ckpt convert -q --to torch_dist named.safetensors dist
        cp "$data"/iter_*/common.pt dist/iter_*/
        rm dist/iter_*/s2s-manifest.json
    }
    while read -r eye projection language; do
        turn || continue
        named "$eye" "$projection" "$language"
        exits 0 s2s-ckpt convert --strict --to hf dist got
        exits 0 s2s-ckpt diff want got
    done <<NAMES
modality_submodules.images.encoders.radio_encoder.radio_model   modality_submodules.images.input_projections.0   language_model
modality_submodules.radio_encoder.encoders.radio_encoder.radio_model   modality_submodules.radio_encoder.input_projections.0   language_model
modality_submodules.radio_encoder.module.encoders.radio_encoder.module.radio_model   modality_submodules.radio_encoder.module.input_projections.0   language_model.module
modality_submodules.vision.encoders.radio   modality_submodules.vision.input_projections.0   mimo.language_model
model.vision_model   model.vision_projection   model.language_model
model.llava_model.vision_model   model.llava_model.vision_projection   model.llava_model.language_model
NAMES
    # two of them, of which nobody says which is meant, are listed; what a map of one's own calls them counts
    named modality_submodules.left.encoders.radio modality_submodules.left.input_projections.0 language_model
    python3 -c "
import st
st.rename('named.safetensors', 'two.safetensors', lambda k: k, {'modality_submodules.right.encoders.radio.position_embeddings': (2, 3)})"
    s2s-ckpt convert -q --to torch_dist two.safetensors two
    cp "$data"/iter_*/common.pt two/iter_*/
    rm two/iter_*/s2s-manifest.json
    exits 1 s2s-ckpt convert --strict --to hf two x
    says "in checkpoint but unused: modality_submodules.left.encoders.radio.position_embeddings"
    says "in checkpoint but unused: modality_submodules.right.encoders.radio.position_embeddings"
    printf 'family mine\nmodality_submodules.left.encoders.radio.{*} left.{*} copy\nlanguage_model.{*} words.{*} copy\n%s\n' \
        'drop modality_submodules.left.input_projections.0.{*}' >mine.map
    exits 0 s2s-ckpt convert --to hf --map mine.map dist x
    exits 0 s2s-ckpt ls x
    says "left.position_embeddings"
    # which can say so itself: of the modality that has this name, whatever it is called
    printf '%s\n' 'family mine' 'where modality_submodules.{1}.encoders.{2}.position_embeddings language_model.{*}' \
        'rename modality_submodules.{1}.encoders.{2}.{*} eye.{*}' 'rename modality_submodules.{1}.{*} {1}.{*}' \
        'eye.{*} {*} copy' 'language_model.{*} words.{*} copy' 'drop left.input_projections.0.{*}' >where.map
    exits 0 s2s-ckpt convert --strict --to hf --map where.map dist y
    s2s-ckpt ls x | sed 's/^left\.//' | sort >want.names
    s2s-ckpt ls y | sort | diff want.names -
    exits 1 s2s-ckpt convert --strict --to hf --map where.map two y2
    says "unused: modality_submodules.left.encoders.radio.position_embeddings"
    sed 's/ language_model/ absent/' where.map >absent.map
    exits 1 s2s-ckpt convert --strict --to hf --map absent.map dist y3
    says "unused: modality_submodules.left.encoders.radio.position_embeddings"
}

@test "Megatron's names of no known family are refused; a language model beside other parts is mapped, and one in a SALM" {
    write_salm
    M=$ROOT/tests/oracle/models/llama_gqa_untied
    s2s-ckpt convert -q --to torch_dist --map llama --config "$M/config.json" "$M" dist
    s2s-ckpt convert -q --to safetensors dist whole.safetensors
    python3 -c "
import st
st.rename('whole.safetensors', 'odd.safetensors', lambda k: 'words.' + k)
st.rename('whole.safetensors', 'vlm.safetensors', lambda k: 'language_model.' + k, {'vision_tower.x.weight': (2, 3)})
st.rename('whole.safetensors', 'mimo.safetensors', lambda k: 'mimo.language_model.module.' + k)"
    # of NeMo's before Megatron-Core
    python3 -c "
import st
st.write('old.safetensors', {'model.language_model.' + k: (4, 4) for k in (
    'embedding.word_embeddings.weight', 'encoder.layers.0.self_attention.query_key_value.weight', 'output_layer.weight')})"
    exits 1 s2s-ckpt convert --to hf old.safetensors x
    says "such as model.language_model.embedding.word_embeddings.weight, and of no family known here"
    exits 1 s2s-ckpt convert --to hf --config "$M/config.json" odd.safetensors x
    says "such as words.decoder.layers.mlp.linear_fc1.layer_norm_weight"
    says "--part"
    [ ! -e x ]
    exits 0 s2s-ckpt convert -q --to hf --part words --config "$M/config.json" odd.safetensors x
    exits 0 s2s-ckpt diff "$M" x
    python3 -c "import st; st.rename('$M/model.safetensors', 'want.safetensors', lambda k: 'language_model.' + k)"
    exits 0 s2s-ckpt convert --to hf --config "$M/config.json" vlm.safetensors vlm
    says "in checkpoint but unused: vision_tower.x.weight"
    exits 0 s2s-ckpt diff want.safetensors vlm
    # those of all layers are one line, but where each is an error
    python3 -c "import st
st.rename('whole.safetensors', 'scaled.safetensors', lambda k: 'language_model.' + k,
          {'vision_tower.blocks.%d.ls%d.scale' % (i // 2, i % 2): (1,) for i in range(24)})"
    exits 0 s2s-ckpt convert --to hf --config "$M/config.json" scaled.safetensors scaled
    says "in checkpoint but unused: vision_tower.blocks.0.ls0.scale and 23 more that differ from it in numbers alone"
    [ "$(grep -c "but unused" <<<"$output")" -eq 1 ]
    exits 1 s2s-ckpt convert --strict --to hf --config "$M/config.json" scaled.safetensors y
    [ "$(grep -c "but unused: vision_tower.blocks" <<<"$output")" -eq 24 ]
    exits 0 s2s-ckpt convert -q --strict --to hf --config "$M/config.json" mimo.safetensors mimo
    exits 0 s2s-ckpt diff want.safetensors mimo
    # Megatron's names below llm., Hugging Face's on the other side
    python3 - <<'PY'
import json, struct, st
def load(path):
    raw = open(path, "rb").read(); n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + n]), raw[8 + n:]
st.rename("whole.safetensors", "b.safetensors", lambda k: "llm." + k)
st.rename("salm.safetensors", "a.safetensors", lambda k: k if k.startswith("perception.") else None)
(a, x), (b, y) = load("a.safetensors"), load("b.safetensors")
for v in b.values(): v["data_offsets"] = [o + len(x) for o in v["data_offsets"]]
head = json.dumps({**a, **b}).encode()
open("salm_m.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + x + y)
PY
    exits 0 s2s-ckpt convert -v --strict --to hf --config "$M/config.json" salm_m.safetensors salm
    says "name map: salm_megatron"
    exits 0 s2s-ckpt diff "$M" salm/llm
    # its configuration out of the arguments, here those of a context/model.yaml
    s2s-ckpt convert -q --to torch_dist salm_m.safetensors made
    mkdir -p nemo/context
    mv made/iter_* nemo/weights
    cat >nemo/context/model.yaml <<YAML
config:
  num_layers: $(jq .num_hidden_layers "$M/config.json")
  hidden_size: $(jq .hidden_size "$M/config.json")
  num_attention_heads: $(jq .num_attention_heads "$M/config.json")
  num_query_groups: $(jq .num_key_value_heads "$M/config.json")
  normalization: RMSNorm
  gated_linear_unit: true
  activation_func:
    _target_: torch.nn.functional.silu
  position_embedding_type: rope
  vocab_size: $(jq .vocab_size "$M/config.json")
YAML
    exits 0 s2s-ckpt convert --strict --to hf nemo named
    exits 0 s2s-ckpt diff "$M" named/llm
    [ "$(jq -c '[.model_type, .num_key_value_heads]' named/llm/config.json)" = "$(jq -c '["llama", .num_key_value_heads]' "$M/config.json")" ]
    exits 0 s2s-ckpt convert --to hf "$DATA/mcore015_vlm_tp2" eyes
    says "no config.json: the arguments of a checkpoint do not make that of nemotron_vlm"
    says "nothing says how many heads it has; taken as 2"
}

@test "the last norm of a vision tower, which a model that predicts further tokens has, is the Omni model's" {
    write_lib
    s2s-ckpt convert -q --to safetensors "$DATA/mcore015_vlm_tp2" vlm.safetensors
    while read -r map eye projection language; do
        turn || continue
        python3 -c "
import st, sys
part = dict(zip(('vision_model', 'vision_projection', 'language_model'), sys.argv[1:]))
norm = {sys.argv[1] + '.decoder.final_layernorm.' + k: (24,) for k in ('weight', 'bias')}
st.rename('vlm.safetensors', 'norm.safetensors', lambda k: None if k[:9] == 'optimizer' else part[k.split('.')[0]] + k[k.index('.'):], norm)
norm.popitem()
st.rename('vlm.safetensors', 'half.safetensors', lambda k: None if k[:9] == 'optimizer' else part[k.split('.')[0]] + k[k.index('.'):], norm)" \
            "$eye" "$projection" "$language"
        echo '{"llm_config": {"num_attention_heads": 4, "num_key_value_heads": 2}, "vision_config": {"num_attention_heads": 2}}' >config.json
        rm -rf hf back
        exits 0 s2s-ckpt convert -q --strict --to hf --config config.json norm.safetensors hf
        exits 0 s2s-ckpt ls hf
        says "vision_final_layernorm.bias	"
        says "vision_final_layernorm.weight	"
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --layers numbered --map "$map" --config config.json hf back
        exits 0 s2s-ckpt ls back
        says "$eye.decoder.final_layernorm.bias	"
        says "$eye.decoder.final_layernorm.weight	"
        # as transformers 5.24 names it
        file=$(ls hf/*.safetensors)
        python3 -c "
import st, sys
st.rename(sys.argv[1], sys.argv[1], lambda k: 'vision_projector.' * k.startswith('vision_final') + k)" "$file"
        rm -rf again hf/s2s-manifest.json
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --layers numbered --map "$map" --config config.json hf again
        exits 0 s2s-ckpt diff back again
        exits 1 s2s-ckpt convert -q --strict --to hf --config config.json half.safetensors x
        says "vision_final_layernorm."
    done <<NAMES
nemotron_vlm vision_model vision_projection language_model
nemotron_vlm_bridge llava_model.vision_model llava_model.vision_projection llava_model.language_model
nemotron_vlm_mimo modality_submodules.images.encoders.radio_encoder.radio_model modality_submodules.images.input_projections.0 language_model
NAMES
}

@test "experts under the names that their modules have in memory: local_experts.E, weightE, gate and up apart" {
    write_lib
    echo '{"model_type": "qwen3_moe", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 3, "hidden_size": 4, "num_hidden_layers": 1, "num_experts": 11, "vocab_size": 5}' >config.json
    python3 - <<'PY'
import st
names = {"model.embed_tokens.weight": (5, 4), "lm_head.weight": (5, 4), "model.norm.weight": (4,)}
b = "model.layers.0."
names.update({b + "input_layernorm.weight": (4,), b + "post_attention_layernorm.weight": (4,), b + "self_attn.q_proj.weight": (6, 4),
              b + "self_attn.k_proj.weight": (3, 4), b + "self_attn.v_proj.weight": (3, 4), b + "self_attn.o_proj.weight": (4, 6), b + "mlp.gate.weight": (11, 4),
              b + "self_attn.q_norm.weight": (3,), b + "self_attn.k_norm.weight": (3,)})
for e in range(11):
    names.update({b + "mlp.experts.%d.%s_proj.weight" % (e, p): (4, 2) if p == "down" else (2, 4) for p in ("gate", "up", "down")})
st.write("hf.safetensors", names)
PY
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map qwen_moe --config config.json --layers numbered hf.safetensors dist
    s2s-ckpt convert -q --to safetensors dist m.safetensors
    python3 - <<'PY'
import json, struct
raw = open("m.safetensors", "rb").read(); n = struct.unpack("<Q", raw[:8])[0]
head, body = json.loads(raw[8:8 + n]), raw[8 + n:]
head.pop("__metadata__", None)
at = "decoder.layers.0.mlp.experts."
def cut(name, apart):
    out, parts = {}, []
    for k, v in head.items():
        b, e = v["data_offsets"]
        if ".experts.experts." not in k:
            pieces = [(k, v["shape"], body[b:e])]
        else:
            fc, size, pieces = k.split(".")[-2], (e - b) // 11, []
            for i in range(11):
                data, shape = body[b + i * size:b + (i + 1) * size], v["shape"][1:]
                if apart and fc == "linear_fc1":
                    half = [shape[0] // 2, shape[1]]
                    pieces += [(at + name % {"fc": fc, "e": i} + "_" + h, half, data[j * size // 2:(j + 1) * size // 2]) for j, h in enumerate("wv")]
                else:
                    pieces.append((at + name % {"fc": fc, "e": i}, shape, data))
        for k, shape, data in pieces:
            start = sum(map(len, parts))
            out[k] = {"dtype": "F32", "shape": shape, "data_offsets": [start, start + len(data)]}
            parts.append(data)
    text = json.dumps(out).encode(); text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)
for k, name in enumerate(("local_experts.%(e)d.%(fc)s.weight", "%(fc)s.weight%(e)d")):
    for apart in (0, 1):
        open("live%d%d.safetensors" % (k, apart), "wb").write(cut(name, apart))
PY
    for live in live??.safetensors; do
        rm -rf out
        exits 0 s2s-ckpt convert -q --strict --to hf --config config.json "$live" out
        exits 0 s2s-ckpt diff hf.safetensors out
    done
}

@test "tensors that do not fit the others, or are no weights, are refused both ways, all of them named" {
    write_lib
    echo '{"model_type": "qwen3_moe", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 3, "hidden_size": 4, "num_hidden_layers": 2, "num_experts": 3, "vocab_size": 5}' >config.json
    cat >moe.py <<'PY'
import st
names = {"model.embed_tokens.weight": (5, 4), "lm_head.weight": (5, 4), "model.norm.weight": (4,)}
for n in range(2):
    b = "model.layers.%d." % n
    names.update({b + "input_layernorm.weight": (4,), b + "post_attention_layernorm.weight": (4,), b + "self_attn.q_proj.weight": (6, 4),
                  b + "self_attn.k_proj.weight": (3, 4), b + "self_attn.v_proj.weight": (3, 4), b + "self_attn.o_proj.weight": (4, 6), b + "mlp.gate.weight": (3, 4),
                  b + "self_attn.q_norm.weight": (3,), b + "self_attn.k_norm.weight": (3,)})
    for e in range(3):
        names.update({b + "mlp.experts.%d.%s_proj.weight" % (e, p): (4, 2) if p == "down" else (2, 4) for p in ("gate", "up", "down")})
PY
    python3 -c "
from moe import *
st.write('good.safetensors', names)
st.write('bad.safetensors', {**names, 'model.layers.1.self_attn.o_proj.weight': (6, 4), 'model.norm.weight': (5,), 'model.embed_tokens.weight': (5, 7),
                             'model.layers.0.mlp.experts.1.down_proj.weight': (4, 3)})
st.write('few.safetensors', {k: v for k, v in names.items() if 'layers.1.mlp.experts.2.' not in k})"
    sed 's/F32/I32/' good.safetensors >whole.safetensors
    for few in bad few whole; do
        rm -rf x
        exits 1 s2s-ckpt convert --to torch_dist --map qwen_moe --config config.json $few.safetensors x
        [ ! -e x ]
        case $few in
        bad) says "do not fit the others (4)"
            says "model.layers.1.self_attn.o_proj.weight: shape [6, 4], expected [4, 6]"
            says "model.norm.weight: shape [5], expected [4] (4 as hidden_size of the configuration says)"
            says "model.embed_tokens.weight: shape [5, 7], expected [5, 4]"
            says "model.layers.0.mlp.experts.1.down_proj.weight: shape [4, 3], expected [4, 2]" ;;
        few) says "experts.2.up_proj.weight" ;;
        whole) says "dtype I32, expected a floating one" ;;
        esac
    done
    # Megatron's: the last expert of a layer, by the router's rows; a square that is none
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map qwen_moe --config config.json --layers numbered good.safetensors dist
    s2s-ckpt convert -q --to safetensors dist m.safetensors
    python3 - <<'PY'
import json, struct
raw = open("m.safetensors", "rb").read(); n = struct.unpack("<Q", raw[:8])[0]
head = json.loads(raw[8:8 + n])
fc1, fc2 = ("decoder.layers.1.mlp.experts.experts.linear_fc%d.weight" % k for k in (1, 2))
proj = "decoder.layers.0.self_attention.linear_proj.weight"
assert head[fc2]["shape"] == [3, 4, 2] and head[proj]["shape"] == [4, 6]
def write(path, head):
    text = json.dumps(head).encode(); text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + n:])
write("turned.safetensors", {**head, proj: dict(head[proj], shape=[6, 4])})
write("two.safetensors", {**head, fc1: dict(head[fc1], shape=[2, 6, 4]), fc2: dict(head[fc2], shape=[2, 4, 3])})
PY
    exits 1 s2s-ckpt convert --to hf --config config.json turned.safetensors x
    says "model.layers.0.self_attn.o_proj.weight (of decoder.layers.0.self_attention.linear_proj.weight): shape [6, 4], expected [4, 6]"
    says_not "without a gate"
    exits 1 s2s-ckpt convert --to hf --config config.json two.safetensors x
    says "wanted but absent (3)"
    says "model.layers.1.mlp.experts.2.down_proj.weight"
    [ ! -e x ]
    # a map of the user's own says shapes too
    printf 'family mine\na.{N}.w model.layers.{N}.mlp.gate.weight copy [r,7]\n' >mine.map
    exits 1 s2s-ckpt convert --to torch_dist --map mine.map --config config.json good.safetensors x
    says "model.layers.0.mlp.gate.weight: shape [3, 4], expected [3, 7]"
    for wrong in '[r' '[r,]' '[r+]' 'r,7' '[r|7]' '[r,7] [r,7]'; do
        turn || continue
        echo "family mine
a b copy $wrong" >mine.map
        exits 1 s2s-ckpt convert --to torch_dist --map mine.map good.safetensors x
        says "s2s-ckpt: mine.map:2: "
    done
}

@test "an axis of more layers or experts than any model has is refused at once, not gone through" {
    write_lib
    echo '{"vision_config": {"num_attention_heads": 2}}' >config.json
    python3 -c "
import st
st.write('layers.safetensors', {'decoder.layers.self_attention.linear_qkv.layer_norm_weight': (10001, 1), 'decoder.layers.self_attention.linear_qkv.weight': (1, 6, 1)})
st.write('experts.safetensors', {'decoder.layers.0.mlp.experts.experts.linear_fc1.weight': (10001, 1, 1), 'decoder.layers.0.mlp.router.weight': (1, 1)})"
    exits 1 s2s-ckpt convert --to hf --map radio --config config.json layers.safetensors out
    says "linear_qkv.layer_norm_weight: 10001 layers: more than 10000"
    exits 1 s2s-ckpt convert --to hf --map qwen_moe experts.safetensors out
    says "linear_fc1.weight: 10001 experts: more than 10000"
    [ ! -e out ]
}

@test "a configuration that is not this model's is noticed: heads, vocabulary, layers, an output matrix that is no copy" {
    M=$ROOT/tests/oracle/models/llama_gqa_untied
    write_lib
    for wrong in '.num_key_value_heads=1;not 6 heads and 1 groups' '.num_attention_heads=3;not 3 heads and 2 groups' \
        '.hidden_size=1000;the configuration says hidden_size 1000, the tensors' \
        '.hidden_size=-1;says hidden_size -1, which is no count' '.num_hidden_layers="2";says num_hidden_layers "2", which is no count' \
        '.num_hidden_layers=1099511627776;says num_hidden_layers 1099511627776, which is no count' '.head_dim=2.5;says head_dim 2.5, which is no count' \
        '.rope_theta="x";says rope_theta "x", which is no number' \
        '.vocab_size=1000;rows for a vocabulary of 1000' '.num_hidden_layers=1;the configuration says 1 layers, the checkpoint has'; do
        jq "${wrong%%;*}" "$M/config.json" >config.json
        exits 1 s2s-ckpt convert --to torch_dist --map llama --config config.json "$M" x
        says "${wrong#*;}"
        [ ! -e x ]
    done
    # a whole number is one, however Python wrote it
    sed 's/"head_dim": \([0-9]*\)/"head_dim": \1.0/' "$M/config.json" >config.json
    grep -q '"head_dim": [0-9]*\.0' config.json
    exits 0 s2s-ckpt convert --to torch_dist --map llama --config config.json "$M" x
    rm -r x
    # what says that the model has none of it is no fault
    jq '.final_logit_softcapping=false | .attn_logit_softcapping=null | .n_group=-1 | .num_experts=-1' "$M/config.json" >config.json
    exits 0 s2s-ckpt convert --to torch_dist --map llama --config config.json "$M" x
    grep -q num_query_groups x/*/common.pt
    not grep -q moe_router_num_groups x/*/common.pt
    # once in the config.json that is kept, and in no argument
    [ "$(grep -ao final_logit_softcapping x/*/common.pt | wc -l)" -eq 1 ]
    rm -r x
    sed 's/"rms_norm_eps": [^,]*/"rms_norm_eps": NaN/' "$M/config.json" >config.json
    exits 1 s2s-ckpt convert --to torch_dist --map llama --config config.json "$M" x
    says "says rms_norm_eps NaN, which is no number"
    python3 -c "import st; st.rename('$M/model.safetensors', 'tied.safetensors', lambda k: None if k == 'lm_head.weight' else k)"
    exits 1 s2s-ckpt convert --to torch_dist --map llama --config "$M/config.json" tied.safetensors x
    says "wanted but absent (1)"
    says "lm_head.weight"
    jq '.tie_word_embeddings=true' "$M/config.json" >config.json
    exits 0 s2s-ckpt convert --to torch_dist --map llama --config config.json tied.safetensors dist
    exits 0 s2s-ckpt convert --to safetensors dist m.safetensors
    exits 0 s2s-ckpt convert --to hf --config config.json m.safetensors x
    exits 1 s2s-ckpt convert --to hf --config "$M/config.json" m.safetensors y
    says "lm_head.weight (of output_layer.weight)"
    # padding that is kept is words to transformers
    exits 0 s2s-ckpt convert --to torch_dist --map llama --pad-vocab 64 --config "$M/config.json" "$M" padded
    exits 0 s2s-ckpt convert --to hf --keep-vocab-padding padded z
    rows=$(s2s-ckpt ls --json z | jq '.tensors[] | select(.name == "lm_head.weight") | .shape[0]')
    [ "$rows" -gt "$(jq .vocab_size "$M/config.json")" ]
    [ "$(jq .vocab_size z/config.json)" -eq "$rows" ]
}

@test "what wrappers of PyTorch put into names is left out where names are mapped; a SALM in a state dict's model is split" {
    M=$ROOT/tests/oracle/models/llama_gqa_untied
    write_salm
    s2s-ckpt convert -q --to torch_dist --map llama --layers numbered --config "$M/config.json" "$M" dist
    s2s-ckpt convert -q --to safetensors dist m.safetensors
    for wrapped in "'_orig_mod.' + k" "'module._orig_mod.' + k.replace('layers.0.', 'layers.0._checkpoint_wrapped_module.')" \
        "k.replace('layers.', 'layers._fsdp_wrapped_module.')"; do
        rm -rf out
        python3 -c "import st; st.rename('m.safetensors', 'w.safetensors', lambda k: $wrapped)"
        exits 0 s2s-ckpt convert --to hf --config "$M/config.json" w.safetensors out
        exits 0 s2s-ckpt diff "$M" out
    done
    rm m.safetensors.s2s-manifest.json # of the file that another one replaces
    python3 -c "import st; st.rename('salm.safetensors', 'm.safetensors', lambda k: 'model.' + k)"
    exits 0 s2s-ckpt convert --to hf m.safetensors salm
    exits 0 s2s-ckpt diff llm.safetensors salm/llm
}

@test "state of an optimizer below the parts of a composite is left out" {
    write in.safetensors '{"encoder.w": (2,), "llm.w": (2,), "proj.weight": (2,), "llm.optimizer.state.exp_avg.w": (2,), "encoder.rng_state": (2,)}'
    exits 0 s2s-ckpt convert --to hf in.safetensors out
    says "left out: 2 tensors of optimizer and other state"
    [ "$(s2s-ckpt ls out | wc -l)" -eq 3 ]
}

@test "to hf with names kept: what the model of config.json lacks, or has in another shape, is an error" {
    write_lib
    M=$ROOT/tests/oracle/models/llama_gqa_untied
    # one tensor less, one in another shape, all names behind something
    python3 -c "
import st
q, m = 'model.layers.1.self_attn.q_proj.weight', '$M/model.safetensors'
st.rename(m, 'whole.safetensors', lambda k: k)
st.rename(m, 'less.safetensors', lambda k: None if k == q else k)
st.rename(m, 'other.safetensors', lambda k: None if k == q else k, {q: (3, 3)})
st.rename(m, 'actor.safetensors', lambda k: 'actor.model.' + k)
st.rename(m, 'app.safetensors', lambda k: 'app.model.' + k)
st.rename(m, 'dcp.safetensors', lambda k: 'dcp.model.' + k)
st.rename(m, 'flat.safetensors', lambda k: k, {'train_state.step': (), 'train_state.ntokens_seen': ()})
st.rename(m, 'packed.safetensors', lambda k: k[:-6] + 'qweight' if k == q else k)"
    while read -r name says; do
        exits 1 s2s-ckpt convert --to hf --config "$M/config.json" $name.safetensors $name
        says "is not whole (convert --to safetensors takes it as it is)"
        says "$says"
        not test -e $name
        # the config.json beside the weights counts as well
        mkdir $name
        cp "$M/config.json" $name
        cp $name.safetensors $name/model.safetensors
        for command in "convert --to hf $name out" "verify $name"; do
            exits 1 s2s-ckpt $command
            says "is not whole"
            says "$says"
            not test -e out
        done
        # one file has no config.json
        exits 0 s2s-ckpt convert --to safetensors $name one.safetensors
        exits 0 s2s-ckpt diff $name.safetensors one.safetensors
    done <<'LIST'
less model.layers.1.self_attn.q_proj.weight
other model.layers.1.self_attn.q_proj.weight: shape [3, 3]
actor model.embed_tokens.weight
LIST
    # all are listed, however many there are
    jq '.num_hidden_layers = 9' "$M/config.json" >nine.json
    exits 1 s2s-ckpt convert -q --to hf --config nine.json whole.safetensors nine
    says "wanted but absent: model.layers.8.self_attn.v_proj.weight"
    says "wanted but absent (54):"
    # a model of another class has other weights, and packed ones other names
    jq '.architectures = ["LlamaForMultipleChoice"]' "$M/config.json" >classes.json
    exits 0 s2s-ckpt convert -q --strict --to hf --config classes.json less.safetensors classes
    exits 0 s2s-ckpt convert -q --strict --to hf --config "$M/config.json" packed.safetensors packed
    exits 0 s2s-ckpt convert -q --strict --to hf --config "$M/config.json" whole.safetensors whole
    exits 0 s2s-ckpt verify --strict whole
    says_not "is not whole"
    # what PyTorch's AppState and AReaL put around a model is gone through where names are mapped
    # too, and torchtitan's step beside it is no weight
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama --config "$M/config.json" whole want
    for name in app dcp flat; do
        rm -rf hf got
        exits 0 s2s-ckpt convert -q --to torch_dist $name.safetensors $name
        exits 0 s2s-ckpt convert -q --strict --to hf --config "$M/config.json" $name hf
        exits 0 s2s-ckpt diff whole hf
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama --config "$M/config.json" $name got
        exits 0 s2s-ckpt diff want got
    done
    # in a map of one's own a module of that name is what its author saw
    write mine.safetensors "{'app.enc.weight': (2, 3), 'enc.weight': (3, 2)}"
    printf 'family mine\napp.{*} its.{*} copy\nenc.{*} ours.{*} copy\n' >mine.map
    exits 0 s2s-ckpt convert -q --strict --to hf --map mine.map mine.safetensors mine
    [ "$(s2s-ckpt ls mine | cut -f1 | paste -sd' ')" = "its.enc.weight ours.weight" ]
}

@test "to hf with names kept: what config.json says of no class of transformers' is not held against the weights" {
    write_lib
    M=$ROOT/tests/oracle/models/llama_gqa_untied
    mkdir less
    python3 -c "
import st
st.rename('$M/model.safetensors', 'less/model.safetensors', lambda k: None if '1.self_attn' in k else k)"
    # code of its own may share what a layer has
    jq '.auto_map = {"AutoModelForCausalLM": "shared.Shared"}' "$M/config.json" >less/config.json
    exits 0 s2s-ckpt convert --strict --to hf less out
    says_not "not whole"
    same less/config.json out/config.json
    rm -r out
    # the weights cannot be held against what is no configuration
    for text in '{"model_type": ' '"text"'; do
        echo "$text" >less/config.json
        exits 1 s2s-ckpt convert --to hf less out
        says "config.json"
        says_not "not whole"
        [ ! -e out ]
    done
    rm less/config.json && mkdir less/config.json
    exits 1 s2s-ckpt convert --to hf less out
    says "config.json: not a plain file"
    [ ! -e out ]
}
