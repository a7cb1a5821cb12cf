# s2s-train learns from images of a stream: what they show, that a run goes on, and what is refused.
load common
load train

setup_tool() {
    tiny_model '' 5 0 1
    eval "$(sed -n '/^images()/,/^}/p' "$ROOT/tests/tools/s2s-train-mesh.bats" | grep -v -e '^ *speech$' -e b.yaml)"
    images
}

# told STREAM: the share of the colours' tokens that the run knows
told() {
    s2s-train eval -j1 --json i.yaml run=run "data.eval={new: $1}" |
        python3 -c 'import json, sys; e = json.load(sys.stdin)["sets"][0]; assert e["utterances"] == 16; print(e["token_accuracy"])'
}

# Of 32 tokens 4 are the first ones of utterances without an image, where one of four is right by chance.
@test "images that the run has not seen are told by their colour, and not where they have none" {
    python3 "$ROOT/tests/oracle/stream/make_images.py" many.s2s 20 4 5
    for name in new grey; do python3 "$ROOT/tests/oracle/stream/make_images.py" $name.s2s 4 4 77; done
    s2s-train -q -j1 i.yaml train.steps=60 schedule.decay_steps=60 data.train=[many.s2s]
    python3 -c 'import sys; assert float(sys.argv[1]) > 0.85 and float(sys.argv[2]) < 0.75, sys.argv' "$(told new.s2s)" "$(told grey.s2s)"
}

@test "a run on images that was stopped is the run that was not; bytes and numbers of pixels are the same" {
    s2s-train -q -j1 i.yaml run=one train.steps=6
    s2s-train -q -j1 i.yaml run=two train.steps=3
    s2s-train -q -j1 i.yaml run=two train.steps=6
    alike "$(bits one 6)" "$(bits two 6)"
    OMP_NUM_THREADS=2 s2s-train -q -j2 i.yaml run=three train.steps=6 train.recompute=true
    alike "$(bits one 6)" "$(bits three 6)"
    python3 "$ROOT/tests/oracle/stream/make_images.py" wide.s2s 6
    s2s-train -q -j1 i.yaml run=four train.steps=6 data.train=[wide.s2s]
    alike "$(bits one 6)" "$(bits four 6)"
}

@test "a converted checkpoint is a folder that trains on, with the loss that its run ends with" {
    s2s-train -q -j1 i.yaml run=one train.steps=6 'data.eval={all: im.s2s}'
    s2s-ckpt convert -q --to hf one/checkpoints -o hf
    [ -e hf/vision/config.json ]
    [ -e hf/vision_projection.safetensors ]
    [ ! -e hf/encoder ]
    s2s-train eval -j1 --json i.yaml run=one 'data.eval={all: im.s2s}' >one.json
    sed 's/^model: .*/model: {path: hf}/' i.yaml >again.yaml
    s2s-train -q -j1 again.yaml run=two train.steps=0 'data.eval={all: im.s2s}'
    s2s-train eval -j1 --json again.yaml run=two 'data.eval={all: im.s2s}' >two.json
    python3 -c '
import json
a, b = (json.load(open(f))["sets"][0] for f in ("one.json", "two.json"))
assert a["loss"] == b["loss"] and a["tokens"] == b["tokens"] > 0, (a, b)'
    # and its parts one by one
    sed 's|^model: .*|model: {vision: {path: hf/vision}, vision_projection: {path: hf/vision_projection.safetensors}, llm: {path: hf/llm}}|' i.yaml >parts.yaml
    s2s-train -q -j1 parts.yaml run=three train.steps=2
    s2s-train -q -j1 again.yaml run=four train.steps=2
    alike "$(log three)" "$(log four)"
}

@test "parts that s2s-cpshard made of a stream with images are what the feed makes of the whole" {
    python3 - "$ROOT" <<'PY'
import sys
sys.path.insert(0, sys.argv[1] + "/tests/oracle/stream")
import numpy as np
import make_images as m
from make_corpus import Stream, schema
rng = np.random.default_rng(5)
records = []
for k in range(4):
    t, meta = m.pack(rng, 4, 4, 4 * k, False)
    # utterances rounded up to four slots
    cu, at, order = t["cu_seqlens"], 0, []
    new = [0]
    for a, b in zip(cu[:-1], cu[1:]):
        n = -(-(b - a) // 4) * 4
        order += list(range(a, b)) + [-1] * (n - (b - a))
        new.append(new[-1] + n)
    moved = {old: i for i, old in enumerate(order) if old >= 0}
    take = lambda x, pad: np.array([x[i] if i >= 0 else pad for i in order], "i4")
    t.update(input_ids=take(t["input_ids"], 0), labels=take(t["labels"], -100), cu_seqlens=np.array(new, "i4"), seq_lens_padded=np.diff(new).astype("i4"),
             position_ids=np.concatenate([np.arange(n) for n in np.diff(new)]).astype("i4"), max_seqlen=np.array(max(np.diff(new)), "i4"),
             image_slot=np.array([moved[s] for s in t["image_slot"]], "i4"))
    records.append((t, meta))
head = {"format": "s2s", "version": 1, "kind": "pack", "layout": "salm", "audio": "none", "config": {"cp": 2}, "schema": schema(records[0][0], m.SIZES),
        "provenance": [{"program": "make_images", "version": "1", "args": []}]}
open("even.s2s", "wb").write(Stream(head, records).bytes())
PY
    s2s-cpshard -q --cp 2 even.s2s -o even-%r.s2s
    mpirun_n 2 s2s-train -q -j1 i.yaml run=whole mesh.cp=2 data.train=[even.s2s] </dev/null
    mpirun_n 2 s2s-train -q -j1 i.yaml run=parts mesh.cp=2 'data.train=[even-%r.s2s]' </dev/null
    alike "$(log whole)" "$(log parts)"
}

# spoilt CHANGE: a stream whose records t were changed
spoilt() {
    python3 - "$ROOT" "$1" <<'PY'
import sys
sys.path.insert(0, sys.argv[1] + "/tests/oracle/stream")
import numpy as np
import make_images as m
from make_corpus import Stream, schema
t, meta = m.pack(np.random.default_rng(5), 4, 4, 0, False)
sizes = dict(m.SIZES)
exec(sys.argv[2])
head = {"format": "s2s", "version": 1, "kind": "pack", "layout": "salm", "audio": "none", "config": {}, "schema": schema(t, sizes),
        "provenance": [{"program": "make_images", "version": "1", "args": []}]}
open("bad.s2s", "wb").write(Stream(head, [(t, meta)]).bytes())
PY
}

@test "images that do not fit their slots, their sizes or the model are refused by name" {
    local change says
    while IFS='|' read -r change says; do
        spoilt "$change"
        exits 1 s2s-train i.yaml -j1 run=no data.train=[bad.s2s]
        says "bad.s2s: record 0"
        says "$says"
    done <<'LINES'
t["image_slot"][1] = t["image_slot"][0]|row 1 of image 0 is in slot 1, not behind slot 1
t["image_slot"][-1] = 9999|is not in the image's utterance
t["image_rows"][0] += 1; t["image_slot"] = np.append(t["image_slot"], t["image_slot"][-1] + 1).astype("i4")|is not in the image's utterance
t["image_rows"][0] += 1|image_slot has
t["image_grid"][0] += 2|image_grid says
t["image_grid"][0, 0] = 0|patches
del t["image_patches"]; del sizes["image_patches"]|images without image_patches
t["image_patches"] = (t["image_patches"] / np.float32(255)).astype("f4"); t["image_patches"][0, 0] = np.nan|image_patches of image 0 holds NaN or Inf (samples ["i0"
LINES
    exits 1 s2s-train i.yaml -j1 run=no model.vision_projection.pixel_shuffle=1
    says "patches become"
    sed 's/"patch_size": 4/"patch_size": 2/' v.json >small.json
    exits 1 s2s-train i.yaml -j1 run=no model.vision.config=small.json
    says "patches are of 48 numbers; the encoder expects 12, 3 colours of 2 x 2 pixels"
    exits 1 s2s-train r.yaml -j1 run=no data.train=[im.s2s]
    says "images for a model without their encoder"
    says "name model.vision"
    exits 1 s2s-train i.yaml -j1 run=no model.vision.config=llm.json
    says "is no image encoder"
    exits 1 mpirun_n 3 s2s-train i.yaml -j1 run=no mesh.tp=3
    says "4 attention heads cannot be shared by 3 ranks (mesh.tp)"
}
