# s2s-train probe: the numbers of image encoders are transformers' numbers.
load common

setup_tool() {
    M=$ROOT/tests/oracle/models/radio
}

# three_steps OUT [OPTION...]: activations, loss, gradients, three AdamW steps
three_steps() {
    local out=$1
    shift
    s2s-train probe --model "$M" --inputs "$M/inputs.safetensors" --out "$out" --grads --steps 3 --optimizer "$M/expected.json" "$@"
}

# like OUT FILES [OPTION...]: every tensor of the table FILES.json, within its tolerance
like() {
    local out=$1 files=$2
    shift 2
    python3 "$ROOT/tests/oracle/compare.py" "$out" "$M/$files.safetensors" "$M/$files.json" "$@"
}

@test "images: activations, loss, gradients, three steps, of equal sizes and packed of any" {
    three_steps rows --layout bshd
    like rows expected
    three_steps packed
    like packed packed
}

@test "a model that sees: in rows, packed and rounded up, rows of images in slots of their own" {
    local layout
    M=$ROOT/tests/oracle/models/salm_images
    for layout in "--layout bshd" "" "--multiple 4"; do
        # shellcheck disable=SC2086
        three_steps out $layout
        if [ "$layout" = "--layout bshd" ]; then
            like out expected
        else
            like out expected --skip bshd/
        fi
    done
    for layout in 1 2; do OMP_NUM_THREADS=2 three_steps out$layout -j $layout; done
    same out1 out2
}

@test "images: an image in a pack gives what it gives alone" {
    python3 - "$ROOT" "$M" <<'PY'
import json, struct, sys
sys.path.insert(0, sys.argv[1] + "/tests/oracle")
from compare import read
x = read(sys.argv[2] + "/inputs.safetensors")
grid, patches, at = x["packed/grid_hw"], x["packed/patches"], 0
for k, (h, w) in enumerate(grid):
    own = {"packed/patches": patches[at:at + h * w], "packed/grid_hw": grid[k:k + 1]}
    at += h * w
    head, data = {}, b""
    for name, t in own.items():
        head[name] = {"dtype": "F32" if t.dtype.kind == "f" else "I64", "shape": list(t.shape), "data_offsets": [len(data), len(data) + t.nbytes]}
        data += t.tobytes()
    head = json.dumps(head).encode()
    open("in%d" % k, "wb").write(struct.pack("<Q", len(head)) + head + data)
PY
    s2s-train probe --model "$M" --inputs "$M/inputs.safetensors" --out all
    for k in 0 1 2; do s2s-train probe --model "$M" --inputs in$k --out out$k; done
    python3 - "$ROOT" <<'PY'
import sys
sys.path.insert(0, sys.argv[1] + "/tests/oracle")
from compare import read
import numpy as np
whole = read("all")
for name in ("packed/last_hidden_state", "packed/features", "packed/summary"):
    parts = np.concatenate([read("out%d" % k)[name] for k in range(3)])
    assert parts.shape == whole[name].shape and abs(parts - whole[name]).max() <= 2e-6, name
PY
}

@test "images: threads do not change a byte" {
    local jobs
    for jobs in 1 2 8; do
        OMP_NUM_THREADS=8 three_steps out$jobs -j "$jobs"
    done
    same out1 out2
    same out1 out8
}

# with SED: a copy of the model with its config changed
with() {
    rm -rf model
    cp -r "$M" model
    sed -i "$1" model/config.json
}

@test "images: a config that the equations do not cover is refused by its key" {
    local change
    for change in 's/"use_swiglu_ffn": false/"use_swiglu_ffn": true/' 's/"hidden_act": "gelu"/"hidden_act": "relu"/' 's/"num_channels": 3/"num_channels": 1/' \
        's/"drop_path_rate": 0.0/"drop_path_rate": 0.1/' 's/"num_attention_heads": 4/"num_attention_heads": 5/' 's/"qkv_bias"/"attention_bias": true, &/'; do
        with "$change"
        exits 1 s2s-train probe --model model --inputs "$M/inputs.safetensors" --out out
        says "config.json:"
        [ ! -e out ]
    done
    # transformers takes the mean of the pixels from the weights
    with 's/0.4578275/0.45/'
    exits 1 s2s-train probe --model model --inputs "$M/inputs.safetensors" --out out
    says "norm_mean is 0.45 for colour 1, but the weights have"
}

@test "images: patches and sizes that do not fit are refused" {
    with 's/"patch_size": 8/"patch_size": 4/; s/"max_img_size": 64/"max_img_size": 32/; s/"patch_dim": 192/"patch_dim": 48/'
    exits 1 s2s-train probe --model model --inputs "$M/inputs.safetensors" --out out
    says "patch_generator.embedder.weight is [32, 192]; the config asks for [32, 48]"
    python3 - "$M" <<'PY'
import sys
data = open(sys.argv[1] + "/inputs.safetensors", "rb").read()
at = data.index(b"grid_hw")
open("in", "wb").write(data.replace(b"packed/grid_hw", b"packed/grid_xx"))
PY
    exits 1 s2s-train probe --model "$M" --inputs in --out out
    says "no tensor packed/grid_hw"
}

@test "images: weights without scales, as published ones, are 1 and stay it" {
    python3 - "$M" <<'PY'
import json, struct, sys, os
os.mkdir("bare")
data = open(sys.argv[1] + "/model.safetensors", "rb").read()
(n,) = struct.unpack("<Q", data[:8])
head = json.loads(data[8:8 + n])
kept, body = {}, b""
for name, t in head.items():
    if name == "__metadata__" or "layer_scale" in name:
        continue
    a, b = t["data_offsets"]
    kept[name] = dict(t, data_offsets=[len(body), len(body) + b - a])
    body += data[8 + n + a:8 + n + b]
head = json.dumps(kept).encode()
open("bare/model.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + body)
PY
    cp "$M/config.json" bare/
    s2s-train probe --model bare --inputs "$M/inputs.safetensors" --out out --grads
    python3 - "$ROOT" <<'PY'
import sys
sys.path.insert(0, sys.argv[1] + "/tests/oracle")
from compare import read
names = [n for n in read("out") if n.startswith("grad/")]
assert len(names) == 31 - 4 and not any("layer_scale" in n for n in names), names
PY
}
