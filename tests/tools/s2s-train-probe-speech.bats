# s2s-train probe: the numbers of speech encoders and of the speech LLM are transformers' numbers.
load common

setup_tool() {
    M=$ROOT/tests/oracle/models
}

# three_steps MODEL OUT [OPTION...]: activations, loss, gradients, three AdamW steps
three_steps() {
    local model=$1 out=$2
    shift 2
    s2s-train probe --model "$M/$model" --inputs "$M/$model/inputs.safetensors" --out "$out" --grads --steps 3 \
        --optimizer "$M/$model/expected.json" "$@"
}

# against MODEL OUT [OPTION...]: every tensor of the model's table, within its tolerance
against() {
    local model=$1 out=$2
    shift 2
    python3 "$ROOT/tests/oracle/compare.py" "$out" "$M/$model/expected.safetensors" "$M/$model/expected.json" "$@"
}

# exactly MODEL OUT PREFIX: integer tensors of that prefix are equal
exactly() {
    python3 - "$ROOT" "$2" "$M/$1/expected.safetensors" "$3" <<'PY'
import sys
sys.path.insert(0, sys.argv[1] + "/tests/oracle")
from compare import read
got, want = read(sys.argv[2]), read(sys.argv[3])
names = [n for n in want if n.startswith(sys.argv[4]) and want[n].dtype.kind == "i"]
assert names
for n in names:
    assert got[n].dtype == want[n].dtype and got[n].tolist() == want[n].tolist(), n
PY
}

@test "encoder: activations, loss, gradients also of the features, three steps" {
    three_steps parakeet_encoder out
    against parakeet_encoder out --mask "$M/parakeet_encoder/inputs.safetensors"
    exactly parakeet_encoder out output_mask
}

@test "encoder with the statistics of a padded batch, and what the running ones become" {
    three_steps parakeet_encoder_train out --batch-norm batch
    against parakeet_encoder_train out --mask "$M/parakeet_encoder_train/inputs.safetensors"
    three_steps parakeet_encoder_train frozen
    exits 1 against parakeet_encoder_train frozen --only loss
}

@test "speech LLM: packed, rounded up, and as rows" {
    three_steps salm_llama packed
    against salm_llama packed --skip packed4/ --skip bshd/
    exactly salm_llama packed packed/
    three_steps salm_llama packed4 --multiple 4
    against salm_llama packed4 --skip packed/ --skip bshd/
    exactly salm_llama packed4 packed4/
    three_steps salm_llama bshd --layout bshd
    against salm_llama bshd --skip packed/ --skip packed4/
    exactly salm_llama bshd bshd/
}

@test "speech LLM with a NemotronH: packed, rounded up, and as rows" {
    three_steps salm_nemotron_h packed
    against salm_nemotron_h packed --skip packed8/ --skip bshd/
    exactly salm_nemotron_h packed packed/
    three_steps salm_nemotron_h packed8 --multiple 8
    against salm_nemotron_h packed8 --skip packed/ --skip bshd/
    exactly salm_nemotron_h packed8 packed8/
    three_steps salm_nemotron_h bshd --layout bshd
    against salm_nemotron_h bshd --skip packed/ --skip packed8/
    exactly salm_nemotron_h bshd bshd/
}

@test "speech LLM: a clip in the last slot of the longest row counts in rows as it does packed" {
    python3 - "$ROOT" "$M/salm_llama" <<'PY'
import json, struct, sys
sys.path.insert(0, sys.argv[1] + "/tests/oracle")
from compare import read
x = read(sys.argv[2] + "/inputs.safetensors")
x = {name: x[name].copy() for name in x}
row = int((x["text_ids"] == 89).sum(1).argmax())
n = int(x["text_lens"][row])
ids = [i for i in x["text_ids"][row, :n] if i != 89]
x["text_ids"][row, :n] = ids + [89] * (n - len(ids))
head, data = {}, b""
for name in x:
    raw = x[name].tobytes()
    head[name] = {"dtype": "F32" if x[name].dtype.kind == "f" else "I64", "shape": list(x[name].shape),
                  "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
head = json.dumps(head).encode()
open("in", "wb").write(struct.pack("<Q", len(head)) + head + data)
PY
    for layout in packed bshd; do
        s2s-train probe --model "$M/salm_llama" --inputs in --out $layout --layout $layout --grads
    done
    python3 - "$ROOT" <<'PY'
import sys
sys.path.insert(0, sys.argv[1] + "/tests/oracle")
from compare import read
a, b = read("packed"), read("bshd")
assert b["bshd/logits"].shape[:2] == b["bshd/target_ids"].shape == b["bshd/attention_mask"].shape
for name in ["loss", "audio_embeds"] + [n for n in a if n.startswith("grad/")]:
    assert abs(a[name] - b[name]).max() <= 1e-5 * max(1, abs(a[name]).max()), name
PY
}

@test "threads do not change a byte" {
    local jobs
    for jobs in 1 2 8; do
        OMP_NUM_THREADS=8 three_steps salm_llama "salm$jobs" -j "$jobs"
        OMP_NUM_THREADS=8 three_steps parakeet_encoder_train "train$jobs" -j "$jobs" --batch-norm batch
    done
    same salm1 salm2
    same salm1 salm8
    same train1 train2
    same train1 train8
}

@test "a config that the equations do not cover is refused by its key" {
    mkdir model
    cp "$M/parakeet_encoder/"{config.json,model.safetensors} model/
    local change
    for change in 's/"conv_kernel_size": 9/"conv_kernel_size": 8/' 's/"subsampling_factor": 8/"subsampling_factor": 6/' \
        's/"subsampling_conv_stride": 2/"subsampling_conv_stride": 3/' 's/"num_attention_heads": 4/"num_attention_heads": 5/'; do
        sed "$change" "$M/parakeet_encoder/config.json" >model/config.json
        exits 1 s2s-train probe --model model --inputs "$M/parakeet_encoder/inputs.safetensors" --out out
        says "config.json:"
        [ ! -e out ]
    done
}

@test "a modality adapter that is none, or asks for what is not there, is refused by its key" {
    while IFS='|' read -r change text; do
        rm -rf model
        cp -r "$M/parakeet_encoder" model
        jq '.modality_adapter = ({_target_: "nemo.collections.asr.modules.ConformerEncoder", d_model: 12, n_layers: 1, n_heads: 2} + '"$change)" \
            "$M/parakeet_encoder/config.json" >model/config.json
        exits 1 s2s-train probe -q --model model --inputs model/inputs.safetensors -o out.safetensors
        says "modality_adapter.$text"
    done <<'LINES'
{feat_in: 5}|feat_in: 5, but the encoder is 32 wide
{att_context_size: [-1]}|att_context_size: expected [left, right]
{self_attention_model: "rope"}|self_attention_model: expected one of
{conv_context_size: [3, 4]}|conv_context_size: expected two numbers that add up to 30
{subsampling_factor: 2}|subsampling_factor: expected 1
{conv_kernel_size: 4}|conv_kernel_size: 4 is even
{att_softcap: 3}|att_softcap: not a key of modality_adapter that is known
{_target_: "nemo.QformerConnector"}|_target_: 'nemo.QformerConnector' is not known
{type: "linear", output_dim: 4}|n_layers: not a key of modality_adapter
{n_heads: 5}|d_model: 12 does not divide into 5 heads
LINES
}

@test "a key of an encoder's config that changes the mathematics and is not known is an error" {
    mkdir model
    cp "$M/parakeet_encoder/model.safetensors" model/
    while IFS='|' read -r change text; do
        jq ". + $change" "$M/parakeet_encoder/config.json" >model/config.json
        exits 1 s2s-train probe --model model --inputs "$M/parakeet_encoder/inputs.safetensors" --out out
        says "$text"
    done <<'LINES'
{untie_biases: false}|layers.0.self_attn.bias_u and layers.1.self_attn.bias_u differ, but untie_biases: false says that layers share one
{self_attention_model: "rope"}|self_attention_model: expected one of rel_pos, rel_pos_local_attn, abs_pos
{att_context_size: [6, 3], att_context_style: "chunked_limited"}|att_context_size: 6 frames before are no whole number of chunks of 4
{att_context_size: [6, 3, 2]}|att_context_size: expected [left, right]
{att_context_size: [[6, 3], [4]]}|att_context_size[1]: expected [left, right]
{att_context_size: [[6, 3], [4, 3]], att_context_probs: [0.5, 0.6]}|att_context_probs: these add up to 1.1
{att_context_size: [[6, 3], [4, 3]], att_context_probs: [1]}|att_context_probs: 1 probabilities of 2 contexts
{att_context_size: [6, 3], self_attention_model: "rel_pos_local_attn"}|rel_pos_local_attn: expected as many frames on both sides
{self_attention_model: "rel_pos_local_attn"}|rel_pos_local_attn: expected as many frames on both sides
{conv_context_size: [3, 4]}|conv_context_size: expected two numbers that add up to 8
{conv_context_size: "past"}|conv_context_size: expected causal or [left, right]
{global_tokens: 2}|global_tokens:
{subsampling: "conv"}|subsampling: expected one of dw_striding, striding, vggnet
{subsampling: "vggnet", causal_downsampling: true}|causal_downsampling: a subsampling of vggnet sees what follows
{subsampling: "vggnet"}|subsampling.layers.2.weight is [8, 1, 3, 3]; the config asks for [8, 8, 3, 3]
{conv_norm_type: "group_norm"}|conv_norm_type: expected
{attention_softcap: 30}|attention_softcap: not a key of parakeet_encoder that is known
LINES
}

@test "an encoder for another number of mel bins says both" {
    exits 1 s2s-train probe --model "$M/parakeet_encoder" --inputs "$M/parakeet_encoder_train/inputs.safetensors" --out out
    says "128"
    says "80"
}

@test "a composite whose projection does not fit is refused" {
    cp -r "$M/salm_llama" model
    sed -i 's/"in": 24/"in": 25/' model/config.json
    exits 1 s2s-train probe --model model --inputs "$M/salm_llama/inputs.safetensors" --out out
    says "projection.in"
    cp "$M/salm_llama/config.json" model/
    rm model/projection.safetensors
    exits 2 s2s-train probe --model model --inputs "$M/salm_llama/inputs.safetensors" --out out
    says "projection.safetensors"
    [ ! -e out ]
}
