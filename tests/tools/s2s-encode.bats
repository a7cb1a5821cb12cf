# s2s-encode: clips to embeddings, the same bytes on any number of ranks and threads.
load common
load inject

setup_file() { inject_build; }

setup_tool() {
    E=$ROOT/tests/oracle/models/salm_llama/encoder
    W=$ROOT/tests/oracle/parakeet_features
    python3 - "$W" >clips.jsonl <<'PY'
import json, sys, wave
for name in ("activated", "hello-world", "please-try-again", "activated", "hello-world"):
    f = wave.open("%s/%s.wav" % (sys.argv[1], name))
    print(json.dumps({"audio_filepath": "%s/%s.wav" % (sys.argv[1], name),
                      "duration": f.getnframes() / f.getframerate(), "text": name}))
PY
}

# packs FORM OUT [OPTION...]: five clips in two packs
packs() {
    local form=$1 out=$2
    shift 2
    s2s-pack -q --manifest clips.jsonl --tokenizer "$ROOT/tests/oracle/tokenizer_bytelevel_qwen/tokenizer.json" \
        --batch-size 3 --audio "$form" -o "$out" "$@"
}

encode() {
    s2s-encode -q --encoder "$E" "$@"
}

# tensor FILE RECORD NAME: its values, one a line
tensor() {
    s2s-shard view --json --record "$2" --tensor "$3" "$1" |
        python3 -c 'import json, sys; t = json.load(sys.stdin)["records"][0]["tensors"][sys.argv[1]]; print(t["shape"]); print(*t["data"], sep="\n")' "$3"
}

@test "help, version" {
    exits 0 s2s-encode --help
    says "--batch-seconds"
    exits 0 s2s-encode --version
    says "s2s-encode"
}

@test "a bad command line is 2" {
    exits 2 s2s-encode --frobnicate
    says "frobnicate"
    exits 2 s2s-encode x.s2s
    says "--encoder"
    exits 2 s2s-encode --encoder "$E" --plan x.s2s
    exits 2 s2s-encode --encoder "$E" --dtype f64 x.s2s
    says "bf16"
    exits 2 s2s-encode --encoder "$E" --batch-seconds -1 x.s2s
    exits 2 s2s-encode --encoder "$E" --ranks 2 x.s2s
    exits 2 s2s-encode --encoder "$E" x.s2s y.s2s
    exits 2 s2s-encode --projection "$E" --plan x.s2s
}

@test "what is absent is named" {
    packs pcm p.s2s
    exits 2 encode absent.s2s -o out
    says "absent.s2s"
    exits 2 s2s-encode --encoder nowhere p.s2s -o out
    says "nowhere/config.json"
    exits 2 encode --projection nowhere p.s2s -o out
    says "nowhere"
    exits 2 s2s-encode --plan --ranks 2 absent.s2s
    says "absent.s2s"
    no_litter . p.s2s clips.jsonl
}

@test "a truncated stream names the record, a flipped byte is found" {
    packs pcm p.s2s
    head -c 150000 p.s2s >short.s2s
    exits 1 encode short.s2s -o out
    says "record"
    cp p.s2s bad.s2s
    flip bad.s2s 50000
    exits 1 encode bad.s2s -o out
    says "record 0"
    [ ! -e out ]
}

@test "one, two and three ranks, one and more threads, any window: equal bytes" {
    packs pcm p.s2s
    encode -j 1 p.s2s -o one.s2s
    s2s-shard verify one.s2s
    encode -j 2 p.s2s -o out.s2s
    same one.s2s out.s2s
    encode -j 8 p.s2s -o out.s2s
    same one.s2s out.s2s
    encode --batch-seconds 0.1 p.s2s -o out.s2s
    same one.s2s out.s2s
    local n
    for n in 2 3 7; do
        mpirun_n $n s2s-encode -q -j 1 --encoder "$E" p.s2s -o "out$n.s2s"
        same one.s2s "out$n.s2s"
    done
    mpirun_n 2 s2s-encode -q -j 2 --batch-seconds 0.1 --encoder "$E" p.s2s -o out.s2s
    same one.s2s out.s2s
}

@test "pipes are files, also under mpirun" {
    packs pcm p.s2s
    encode p.s2s -o one.s2s
    encode <p.s2s >piped.s2s
    same one.s2s piped.s2s
    cat p.s2s | encode - -o - | cat >piped.s2s
    same one.s2s piped.s2s
    ! by_hydra || skip "MPICH's mpirun gives up long pipes"
    mpirun_n 2 s2s-encode -q -j 1 --encoder "$E" - -o - <p.s2s >piped.s2s
    same one.s2s piped.s2s
}

@test "what stands in a pack stays, clips become rows" {
    packs pcm p.s2s
    encode p.s2s -o e.s2s
    local name
    for name in input_ids labels position_ids seq_lens cu_seqlens audio_slot audio_frames; do
        alike "$(tensor p.s2s 1 $name)" "$(tensor e.s2s 1 $name)"
    done
    exits 0 s2s-shard view --json e.s2s
    case "$output" in *audio_pcm* | *audio_cu_samples*) false ;; esac
    [ "$(tensor e.s2s 0 audio_embeds | head -n 1)" = "[48, 24]" ]
    exits 0 s2s-shard head e.s2s
    says 'kind        "embed"'
    says '"hidden":24,"projection":null'
    says "s2s-encode 0.1.0 --encoder=encoder"
}

@test "sound, FLAC and features give the same rows; so do single clips" {
    packs pcm p.s2s
    encode p.s2s -o pcm.s2s
    packs mel m.s2s
    encode m.s2s -o mel.s2s
    s2s-encode -q --features mel p.s2s -o f.s2s
    encode f.s2s -o features.s2s
    alike "$(tensor pcm.s2s 1 audio_embeds)" "$(tensor mel.s2s 1 audio_embeds)"
    alike "$(tensor pcm.s2s 1 audio_embeds)" "$(tensor features.s2s 1 audio_embeds)"
    s2s-encode -q --features mel "$W/activated.wav" "$W/hello-world.wav" -o files.s2s
    encode files.s2s -o single.s2s
    mpirun_n 3 s2s-encode -q -j 1 --encoder "$E" files.s2s -o single3.s2s
    same single.s2s single3.s2s
    s2s-shard verify single.s2s
    alike "$(tensor single.s2s 0 embeds | sed 1d)" "$(tensor pcm.s2s 1 audio_embeds | sed 1d | head -n $((14 * 24)))"
}

@test "rows are those of the model that transformers wrote" {
    packs mel m.s2s
    encode m.s2s -o e.s2s
    s2s-shard view --json --record 0 m.s2s >mel.json
    s2s-shard view --json --record 0 e.s2s >embeds.json
    python3 - inputs.safetensors <<'PY'
import json, struct, sys
import numpy as np
t = json.load(open("mel.json"))["records"][0]["tensors"]
cu = t["audio_cu_mel"]["data"]
mel = np.array(t["audio_mel"]["data"], "<f4").reshape(t["audio_mel"]["shape"])
n = max(b - a for a, b in zip(cu, cu[1:]))
x, mask = np.zeros((len(cu) - 1, n, 80), "<f4"), np.zeros((len(cu) - 1, n), "<i8")
for k, (a, b) in enumerate(zip(cu, cu[1:])):
    x[k, :b - a], mask[k, :b - a] = mel[a:b], 1
head, raw, at = {}, b"", 0
for name, a, dtype in (("attention_mask", mask, "I64"), ("input_features", x, "F32")):
    head[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
    at += a.nbytes
    raw += a.tobytes()
text = json.dumps(head).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + raw)
PY
    s2s-train probe --model "$E" --inputs inputs.safetensors --out probed.safetensors
    python3 - "$ROOT" <<'PY'
import json, sys
sys.path.insert(0, sys.argv[1] + "/tests/oracle")
import numpy as np
from compare import read
out = read("probed.safetensors")
rows = out["hidden/1"][out["output_mask"].astype(bool)]
t = json.load(open("embeds.json"))["records"][0]["tensors"]["audio_embeds"]
embeds = np.array(t["data"], "f4").reshape(t["shape"])
assert embeds.shape == rows.shape and np.abs(embeds - rows).max() < 1e-5, np.abs(embeds - rows).max()
PY
}

@test "the encoder of a published recogniser: its config under a key, its tensors behind a name" {
    mkdir asr
    python3 - "$E" asr <<'PY'
import json, struct, sys
config = json.load(open(sys.argv[1] + "/config.json"))
json.dump({"model_type": "parakeet_ctc", "vocab_size": 4, "encoder_config": config}, open(sys.argv[2] + "/config.json", "w"))
raw = open(sys.argv[1] + "/model.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head, data = json.loads(raw[8:8 + n]), raw[8 + n:]
head = {"encoder." + k: v for k, v in head.items() if k != "__metadata__"}
head["ctc_head.bias"] = {"dtype": "F32", "shape": [4], "data_offsets": [len(data), len(data) + 16]}
text = json.dumps(head).encode()
open(sys.argv[2] + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data + bytes(16))
PY
    packs pcm p.s2s
    encode p.s2s -o plain.s2s
    exits 0 s2s-encode -q --encoder asr p.s2s -o asr.s2s
    says_not "not used"
    alike "$(s2s-shard view --json plain.s2s)" "$(s2s-shard view --json asr.s2s)"

    python3 - <<'PY'
import json
config = json.load(open("asr/config.json"))
del config["encoder_config"]
json.dump(config, open("asr/config.json", "w"))
PY
    exits 1 s2s-encode -q --encoder asr p.s2s -o none.s2s
    says parakeet_ctc
}

@test "settings of the features are found in either file that transformers saves them in" {
    packs pcm p.s2s
    encode p.s2s -o plain.s2s
    mkdir own
    cp "$E"/config.json "$E"/model.safetensors own/
    echo '{"feature_extractor_type": "ParakeetFeatureExtractor", "preemphasis": 0.5}' >own/preprocessor_config.json
    s2s-encode -q --encoder own p.s2s -o pre.s2s
    jq '{feature_extractor: ., processor_class: "ParakeetProcessor"}' own/preprocessor_config.json >own/processor_config.json
    rm own/preprocessor_config.json
    s2s-encode -q --encoder own p.s2s -o pro.s2s
    tensor plain.s2s 0 audio_embeds >plain
    tensor pre.s2s 0 audio_embeds >pre
    tensor pro.s2s 0 audio_embeds >pro
    not cmp -s plain pre
    cmp pre pro
    s2s-encode -q --features mel --config own/processor_config.json p.s2s -o mel.s2s
    [ "$(s2s-shard head --json mel.s2s | jq .config.features.preemphasis)" = 0.5 ]
    jq '.feature_extractor.feature_size = 40' own/processor_config.json >bad.json
    mv bad.json own/processor_config.json
    exits 1 s2s-encode -q --encoder own p.s2s -o bad.s2s
    says "own makes features of 40 mel bins"
}

@test "projection maps to the width of the language model, bf16 rounds once" {
    packs pcm p.s2s
    encode p.s2s -o plain.s2s
    encode --projection "$ROOT/tests/oracle/models/salm_llama" p.s2s -o wide.s2s
    encode --projection "$ROOT/tests/oracle/models/salm_llama/projection.safetensors" p.s2s -o file.s2s
    [ "$(tensor wide.s2s 1 audio_embeds | head -n 1)" = "[32, 32]" ]
    alike "$(tensor wide.s2s 1 audio_embeds)" "$(tensor file.s2s 1 audio_embeds)"
    encode --dtype bf16 --projection "$ROOT/tests/oracle/models/salm_llama" p.s2s -o half.s2s
    tensor wide.s2s 1 audio_embeds | sed 1d >full
    tensor half.s2s 1 audio_embeds | sed 1d >half
    tensor plain.s2s 1 audio_embeds | sed 1d >rows
    python3 - "$ROOT" <<'PY'
import sys
sys.path.insert(0, sys.argv[1] + "/tests/oracle")
import numpy as np
from compare import read
full, half, rows = (np.loadtxt(name, dtype="f4") for name in ("full", "half", "rows"))
bits = full.view("u4").astype("u8")
rounded = (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype("u4")).view("f4")
assert (rounded == half).all()
p = read(sys.argv[1] + "/tests/oracle/models/salm_llama/projection.safetensors")
want = rows.reshape(-1, 24) @ p["proj.weight"].T + p["proj.bias"]
assert np.abs(full.reshape(-1, 32) - want).max() < 1e-5
PY
}

@test "an emulated GPU encodes as the CPU does, the same bytes on any number of ranks" {
    local built=$BUILD
    case $built in /*) ;; *) built=$ROOT/$built ;; esac
    sed -i 2q clips.jsonl
    packs mel p.s2s
    encode -j 1 p.s2s -o cpu.s2s
    export S2S_CUDA=$built/libs2s-emu.so
    encode --device cuda -j 2 p.s2s -o gpu.s2s
    mpirun_n 2 s2s-encode -q -j 1 --device cuda --encoder "$E" p.s2s -o two.s2s
    same gpu.s2s two.s2s
    paste -d' ' <(tensor cpu.s2s 0 audio_embeds | sed 1d) <(tensor gpu.s2s 0 audio_embeds | sed 1d) | awk '
        { far = $1 > $2 ? $1 - $2 : $2 - $1; n += far > 0; bad += !(far <= 1e-5) }
        END { exit bad || n == 0 || NR != 32 * 24 }'
    # no library, no device of that name, nothing to run on one
    S2S_CUDA=$PWD/absent.so exits 1 encode --device cuda p.s2s -o out
    says "make CUDA=1"
    [ ! -e out ]
    exits 2 encode --device tpu p.s2s -o out
    says "cpu, cuda"
    exits 2 s2s-encode --features mel --device cuda p.s2s -o out
    says "--device needs --encoder"
}

@test "plan: shares, dummies, the shortest length" {
    exits 0 s2s-encode --plan --ranks 2 --json --lengths 900,400,700,300,800
    python3 - "$output" <<'PY'
import json, sys
plan = json.loads(sys.argv[1])
slot = lambda i, clip, n: {"slot": i, "clip": clip, "length": n}
assert plan == {"per_rank": 3, "dummy_len": 300, "ranks": [[slot(0, 0, 900), slot(1, 1, 400), slot(2, 2, 700)],
                                                           [slot(0, 3, 300), slot(1, 4, 800), slot(2, -1, 300)]]}, plan
PY
    exits 0 s2s-encode --plan --ranks 4 --json --lengths 5
    [ "$(python3 -c 'import json, sys; print([s["clip"] for r in json.loads(sys.argv[1])["ranks"] for s in r])' "$output")" = "[0, -1, -1, -1]" ]
    exits 0 s2s-encode --plan --ranks 2 --json --lengths ""
    [ "$output" = '{"per_rank": 0, "dummy_len": 0, "ranks": [[], []]}' ]
    exits 2 s2s-encode --plan --ranks 2 --lengths 5,x
    says "lengths"
    packs pcm p.s2s
    exits 0 s2s-encode --plan --ranks 2 --json p.s2s
    [ "$(python3 -c 'import json, sys; print([(p["per_rank"], p["dummy_len"]) for p in json.loads(sys.argv[1])])' "$output")" = "[(2, 17024), (1, 17024)]" ]
    exits 0 s2s-encode --plan --ranks 2 p.s2s
    says "dummy"
}

@test "an encoder, features or slots that do not fit" {
    packs pcm p.s2s
    exits 1 s2s-encode --encoder "$ROOT/tests/oracle/models/qwen2" p.s2s -o out
    says "no speech encoder"
    exits 1 s2s-encode --encoder "$ROOT/tests/oracle/models/salm_llama" p.s2s -o out
    says "encoder/"
    packs mel m.s2s
    exits 1 s2s-encode --encoder "$ROOT/tests/oracle/models/parakeet_encoder_train" m.s2s -o out
    says "its features were made with n_mels = 80, the encoder wants 128"
    packs mel hop.s2s --encoder-frames 200,8
    exits 1 encode hop.s2s -o out
    says "its features were made with hop = 200, the encoder wants 160"
    mkdir slow
    echo '{"subsampling_factor": 8, "num_mel_bins": 80}' >slow/config.json
    echo '{"sampling_rate": 8000, "feature_size": 80}' >slow/preprocessor_config.json
    packs pcm slow.s2s --encoder-frames slow
    exits 1 encode slow.s2s -o out
    says "clips are at 8000 Hz, the features want 16000 Hz"
    exits 1 encode --projection "$ROOT/tests/oracle/models/qwen2/model.safetensors" p.s2s -o out
    says "proj.weight"
    packs pcm wrong.s2s --encoder-frames 160,4
    exits 1 encode wrong.s2s -o out
    says "record 0: clip 0 has"
    says "--encoder-frames"
    packs none text.s2s
    exits 1 encode text.s2s -o out
    says "no sound"
    encode p.s2s -o e.s2s
    exits 1 encode e.s2s -o out
    says "kind embed"
    [ ! -e out ]
}

@test "packs of text alone pass, on any number of ranks" {
    printf '{"id": "a", "input_ids": [1, 2, 3]}\n{"id": "b", "input_ids": [4, 5]}\n' >ids.jsonl
    s2s-pack -q --ids ids.jsonl --tokens 4 -o text.s2s
    encode text.s2s -o one.s2s
    s2s-shard verify -q one.s2s
    [ "$(tensor one.s2s 1 audio_embeds | head -n 1)" = "[0, 24]" ]
    mpirun_n 3 s2s-encode -q -j 1 --encoder "$E" text.s2s -o three.s2s
    same one.s2s three.s2s
}

@test "a clip too short for a frame has no row" {
    python3 -c 'import wave; f = wave.open("tiny.wav", "wb"); f.setparams((1, 2, 16000, 0, "NONE", "")); f.writeframes(b"\1\2" * 100)'
    s2s-encode -q --features mel tiny.wav "$W/activated.wav" tiny.wav -o files.s2s
    encode files.s2s -o one.s2s
    [ "$(tensor one.s2s 0 embeds | head -n 1)" = "[0, 24]" ]
    mpirun_n 2 s2s-encode -q -j 1 --encoder "$E" files.s2s -o two.s2s
    same one.s2s two.s2s
}

@test "weights that make NaN are refused with the clip, on every rank" {
    cp -r "$E" enc
    python3 - enc/model.safetensors <<'PY'
import json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
(size,) = struct.unpack("<Q", data[:8])
at = json.loads(data[8:8 + size])["layers.0.norm_out.bias"]["data_offsets"][0] + 8 + size
data[at:at + 4] = struct.pack("<f", float("nan"))
open(sys.argv[1], "wb").write(data)
PY
    packs pcm p.s2s
    exits 1 s2s-encode --encoder enc p.s2s -o out
    says "record 0: clip"
    says "NaN"
    exits 1 mpirun_n 2 s2s-encode -j 1 --encoder enc p.s2s -o out
    says "[rank 0]"
    [ ! -e out ]
}

@test "a full disk, a reader that leaves early, a kill" {
    packs pcm p.s2s
    run bash -c 's2s-encode -q --encoder "$1" p.s2s >/dev/full' _ "$E"
    [ "$status" -eq 1 ]
    run bash -c 's2s-encode -q --encoder "$1" p.s2s | head -c 100 >/dev/null; exit ${PIPESTATUS[0]}' _ "$E"
    [ -z "$output" ]
    mkfifo slow
    (head -c 100000 p.s2s; exec sleep 5) >slow &
    local feeder=$!
    s2s-encode --encoder "$E" slow -o out.s2s 2>/dev/null &
    local pid=$!
    sleep 0.5
    kill -TERM $pid
    wait $pid || true
    kill $feeder
    no_litter . clips.jsonl p.s2s slow
}

@test "a part of the encoder that the disk does not tell of is not absent" {
    inject_or_skip
    packs pcm p.s2s
    right_or_refused faccessat:EIO s2s-encode -q -j1 --encoder "$E" p.s2s -o out
}

@test "what is read is not replaced" {
    packs mel p.s2s
    cp p.s2s kept.s2s
    exits 2 encode p.s2s -o p.s2s
    says "p.s2s: is part of the input: choose another OUT"
    exits 2 mpirun_n 2 s2s-encode --encoder "$E" p.s2s -o p.s2s
    same kept.s2s p.s2s
    cp "$W/activated.wav" a.wav
    exits 2 s2s-encode --features mel a.wav -o a.wav
    same "$W/activated.wav" a.wav
}

@test "--plan prints into -o" {
    s2s-encode --plan --ranks 2 --lengths 900,400,700 >want
    exits 0 s2s-encode --plan --ranks 2 --lengths 900,400,700 -o got
    [ -z "$output" ]
    same want got
}
