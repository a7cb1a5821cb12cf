#!/usr/bin/env bats
# s2s-ckpt: what it lists, refuses and writes. tests/oracle/ckpt/data holds checkpoints made by the real libraries.
load common
load tensors

setup_tool() {
    DATA=$ROOT/tests/oracle/ckpt/data
    COMPARE=$ROOT/tests/oracle/ckpt/compare_ls.py
}

listed() {
    run python3 "$COMPARE" s2s-ckpt "$DATA/$1" "$DATA/$1.expected.json"
    [ "$status" -eq 0 ] || { echo "$output" >&2; return 1; }
}

@test "--help shows the commands and exits 0" {
    exits 0 s2s-ckpt --help
    says "Usage: s2s-ckpt"
    says "ls "
    exits 0 s2s-ckpt ls --help
    says "--sha256"
    exits 0 s2s-ckpt --version
}

@test "an unknown option, command or a missing path is a bad command line" {
    exits 2 s2s-ckpt ls --nonsense x
    says "nonsense"
    exits 2 s2s-ckpt lst x
    says "did you mean 'ls'"
    # the near one is named, not what argument of another looks like one
    exits 2 s2s-ckpt ls -v --jsno x
    says "ls: unrecognized option '--jsno'; did you mean '--json'?"
    says "s2s-ckpt ls --help"
    # the message and a hint, a line each
    exits 2 s2s-ckpt convert --to hf a b c
    [ "${#lines[@]}" = 2 ]
    [ "${lines[0]}" = "s2s-ckpt convert: unexpected argument 'b': give one IN and one OUT" ]
    [[ "${lines[1]}" = *"s2s-ckpt convert --help"* ]]
    exits 2 s2s-ckpt convert --to hf --max-shard-sizee=2GB a b
    says "did you mean '--max-shard-size'?"
    exits 2 s2s-ckpt ls --bogus x
    says_not "did you mean"
    exits 0 s2s-ckpt ls -qo --jsno "$DATA/zip.pt"
    [ -s ./--jsno ]
    exits 2 s2s-ckpt ls -- --jsn
    says_not "did you mean"
    exits 2 s2s-ckpt ls
    exits 2 s2s-ckpt ls absent
    says "absent"
}

@test "ls gives every tensor of torch_dist folders exactly" {
    listed mini_writer
    listed mcore016_hybrid_tp2pp2ep2
    listed mcore016_gated_pp2dp2_dpreshardable
    listed mcore015_vlm_tp2
    listed mcore012_torch24_flattened_tp2
}

@test "ls gives every tensor of plain DCP folders exactly" {
    listed dcp_plain
    listed dcp_fsdp2
    listed dcp_hf
}

@test "ls gives every tensor of Hugging Face folders and safetensors exactly" {
    listed hf_sharded
}

@test "ls gives every tensor of torch.save files exactly, zip and legacy" {
    listed zip.pt
    listed legacy.pt
    listed legacy_protocol4.pt
    listed pytorch_model.bin
    listed mp_rank
}

@test "a pickled module has the tensors that its state_dict has, zip and legacy" {
    listed module.pt
    listed legacy_module.pt
}

@test "what trainers put around a checkpoint is gone through: Automodel's model/, LATEST and .hf_metadata, NeMo RL's policy/weights" {
    step=run/epoch_0_step_20
    mkdir -p $step/model/.hf_metadata $step/optim $step/rng run/epoch_0_step_10
    cp "$DATA"/dcp_hf/*.safetensors $step/model
    cp -r "$DATA"/dcp_fsdp2/. $step/optim
    echo '{"model_type": "mine"}' >$step/model/.hf_metadata/config.json
    echo '{}' >$step/model/.hf_metadata/fqn_to_file_index_mapping.json
    echo 'a b' >$step/model/.hf_metadata/merges.txt
    echo 'step: 20' >$step/config.yaml
    s2s-ckpt ls --sha256 "$DATA/dcp_hf" >want
    exits 1 s2s-ckpt ls run
    says "epoch_0_step_20"
    ln -s epoch_0_step_20 run/LATEST
    for name in run $step $step/model run/LATEST; do
        s2s-ckpt ls --sha256 "$name" >got
        same want got
        rm -rf out
        exits 0 s2s-ckpt convert -q --to hf "$name" out
        [ "$(cat out/config.json)" = '{"model_type": "mine"}' ]
        [ -e out/merges.txt ]
        [ ! -e out/fqn_to_file_index_mapping.json ]
    done
    rm run/LATEST out -r
    printf epoch_0_step_20 >run/LATEST.txt
    exits 0 s2s-ckpt convert -q --to torch_dist run out
    [ -d out/iter_0000020 ]
    s2s-ckpt ls $step/optim | grep -q exp_avg
    printf ../elsewhere >run/LATEST.txt
    exits 1 s2s-ckpt ls run
    says "LATEST"
    touch $step/.incomplete
    exits 1 s2s-ckpt ls $step
    says "unfinished"

    mkdir -p rl/step_7/policy/tokenizer rl/step_7/policy/weights rl/step_7/policy/optimizer
    mv $step/model rl/step_7/policy/weights
    echo '{}' >rl/step_7/policy/tokenizer/tokenizer.json
    for name in rl/step_7 rl/step_7/policy rl/step_7/policy/weights; do
        s2s-ckpt ls --sha256 "$name" >got
        same want got
        rm -rf out
        exits 0 s2s-ckpt convert -q --to hf "$name" out
        [ -e out/tokenizer.json ]
    done
    cp -r $step/optim rl/step_7/policy/optimizer
    mkdir -p rl/step_7/value/weights
    cp -r rl/step_7/policy/weights/model rl/step_7/value/weights
    exits 0 s2s-ckpt verify rl/step_7
    says "policy/ is read; value/ beside it is a checkpoint of its own"
    says "weights/ is read; optimizer/optim/ beside it is a checkpoint of its own"
    exits 0 s2s-ckpt verify rl/step_7/value
    says_not warning
}

@test "folders of verl, Accelerate and torchtitan are gone through or named, and those of one file a rank of Accelerate are refused" {
    s2s-ckpt ls --sha256 "$DATA/dcp_fsdp2" >want
    # verl: a tracker, roles, Megatron's weights or a file a rank
    mkdir -p verl/global_step_10/actor
    printf 10 >verl/latest_checkpointed_iteration.txt
    cp -r "$DATA/dcp_fsdp2" verl/global_step_10/actor/dist_ckpt
    touch verl/global_step_10/data.pt
    for name in verl verl/global_step_10 verl/global_step_10/actor; do
        exits 0 s2s-ckpt ls --sha256 -o got $name
        same want got
    done
    exits 0 s2s-ckpt ls verl
    says_not beside
    cp -r verl/global_step_10/actor verl/global_step_10/critic
    exits 0 s2s-ckpt ls verl
    says "actor/ is read; critic/ beside it is a checkpoint of its own"
    mkdir -p verl/global_step_10/{a/weights,reward,empty}
    cp "$DATA"/hf_sharded/* verl/global_step_10/a/weights
    cp "$DATA"/hf_sharded/* verl/global_step_10/reward
    exits 0 s2s-ckpt ls verl
    says "actor/ is read; a/, critic/, reward/ beside it are checkpoints of their own"
    rm -r verl/global_step_10/{a,reward}
    s2s-ckpt ls --json verl | grep -q '"iteration": *10'
    rm -r verl/global_step_10/actor/dist_ckpt
    cp "$DATA"/fsdp_rank/* verl/global_step_10/actor
    for name in verl verl/global_step_10 verl/global_step_10/actor; do
        exits 0 s2s-ckpt ls --sha256 $name
        [[ "$output" == *"$(cat "$DATA/fsdp_rank.expected.tsv")" ]]
    done

    # Accelerate, and transformers' Trainer with it
    mkdir -p out/checkpoint-10 out/logs
    touch out/logs/x.pt
    cp -r "$DATA/dcp_fsdp2" out/checkpoint-10/pytorch_model_fsdp_0
    cp -r "$DATA/dcp_fsdp2" out/checkpoint-10/optimizer_0
    touch out/checkpoint-10/{scheduler.pt,rng_state_0.pth}
    exits 0 s2s-ckpt ls --sha256 -o got out/checkpoint-10
    says "pytorch_model_fsdp_0/ is read; optimizer_0/ beside it is a checkpoint of its own"
    same want got
    exits 1 s2s-ckpt ls out
    says "name one inside it: checkpoint-10"
    rm -r out/checkpoint-10/pytorch_model_fsdp_0
    exits 1 s2s-ckpt ls out/checkpoint-10
    says "name one inside it: optimizer_0, rng_state_0.pth, scheduler.pt"
    touch out/checkpoint-10/pytorch_model_fsdp_0_rank{0,1}.bin
    exits 1 s2s-ckpt ls out/checkpoint-10
    says "an FSDP checkpoint of Accelerate (a file a rank)"

    # beside the model it is a copy of it
    cp "$DATA/pytorch_model.bin" out/checkpoint-10
    exits 0 s2s-ckpt ls --sha256 -o got out/checkpoint-10
    s2s-ckpt ls --sha256 "$DATA/pytorch_model.bin" >one
    same one got
    rm out/checkpoint-10/*.bin
    cp "$DATA/pytorch_model.bin" out/checkpoint-10/pytorch_model_fsdp.bin
    exits 0 s2s-ckpt ls --sha256 -o got out/checkpoint-10
    same one got
    cp "$DATA/pytorch_model.bin" out/checkpoint-10
    exits 0 s2s-ckpt ls --sha256 -o got out/checkpoint-10
    same one got

    # a checkpoint some levels below
    mkdir -p titan/outputs/checkpoint
    cp -r "$DATA/dcp_fsdp2" titan/outputs/checkpoint/step-10
    exits 1 s2s-ckpt ls titan
    says "name one inside it: outputs/checkpoint/step-10"
    # NeMo RL names weights/ to its own converter
    mkdir rl
    cp -r "$DATA/dcp_fsdp2" rl/model
    exits 0 s2s-ckpt ls --sha256 -o got rl
    same want got
}

@test "ls takes a folder, the folder above it and a trailing slash" {
    s2s-ckpt ls "$DATA/mini_writer" >above
    s2s-ckpt ls "$DATA/mini_writer/iter_0000042/" >folder
    same above folder
    [ "$(wc -l <above)" -eq 4 ]
}

@test "ls of a full disk fails" {
    exits 1 bash -c "s2s-ckpt ls '$DATA/hf_sharded' >/dev/full"
}

converted() {
    exits 0 s2s-ckpt convert -q --to hf "$DATA/$1" out
    run python3 "$ROOT/tests/oracle/ckpt/compare_hf.py" s2s-ckpt out "$DATA/$1.hf.json"
    [ "$status" -eq 0 ] || { echo "$output" >&2; return 1; }
}

# name, dtype, shape and digest of each tensor
digests() {
    s2s-ckpt ls --sha256 "$1" | grep -v $'\tobject\t' | cut -f 1-3,5
}

# the same with the shapes before flattening, which a safetensors file has
unflattened() {
    s2s-ckpt ls --json --sha256 "$1" | python3 -c 'import json,sys
for t in json.load(sys.stdin)["tensors"]: print(t["name"], t["dtype"], t.get("orig_shape", t["shape"]), t.get("orig_sha256", t["sha256"]), sep="\t")'
}

# shapes before flattening, which only torch_dist can say
originals() {
    s2s-ckpt ls --json --sha256 "$1" | python3 -c 'import json,sys
for t in json.load(sys.stdin)["tensors"]: print(t["name"], t.get("orig_shape"), t.get("orig_sha256"))'
}

@test "convert to hf: a Nemotron-H of four ranks, optimizer and padding left out" {
    converted mcore016_hybrid_tp2pp2ep2
}

@test "convert to hf: a VLM with stacked vision layers" {
    converted mcore015_vlm_tp2
}

# config.json as far as the maps need it
attention() {
    echo "{\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": $1, \"vision_config\": {\"num_attention_heads\": 2}}" >config.json
}

@test "convert --to torch_dist --map: from Hugging Face's names to Megatron's and back, bit for bit" {
    while read -r name map dim; do
        attention "$dim"
        exits 0 s2s-ckpt convert -q --to hf --keep-vocab-padding "$DATA/$name" hf
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map "$map" --config config.json hf out
        digests "$DATA/$name" | grep -v ^optimizer >want
        [ "$(wc -l <want)" -gt 40 ]
        digests out >got
        same want got
        exits 0 s2s-ckpt verify out
        rm -rf hf out
    done <<'LIST'
mcore016_hybrid_tp2pp2ep2 nemotron_h 8
mcore015_vlm_tp2 nemotron_vlm 4
LIST
}

@test "convert --to torch_dist --map pads the vocabulary with zeros, and the way back cuts it" {
    attention 8
    exits 0 s2s-ckpt convert -q --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" hf
    exits 0 s2s-ckpt convert -q --to torch_dist --map nemotron_h --config config.json --pad-vocab 16 hf out
    s2s-ckpt ls out | grep -q "^embedding.word_embeddings.weight.*\[64, 32\]"
    s2s-ckpt cat out output_layer.weight | tail -c $((3 * 32 * 2)) | cmp - <(head -c $((3 * 32 * 2)) /dev/zero)
    exits 0 s2s-ckpt convert --to hf out back
    says ", 3 rows past the vocabulary"
    exits 0 s2s-ckpt diff hf back
    s2s-ckpt convert -q --json --to hf out counted >out.json
    jq -e '.left_out.vocabulary_rows == 3' out.json >/dev/null
    exits 2 s2s-ckpt convert --to hf --pad-vocab 16 out x
    exits 2 s2s-ckpt convert --to torch_dist --map nemotron_h "$DATA/mcore016_hybrid_tp2pp2ep2" x
    says "Megatron's already"
}

@test "convert to hf: a tied Nemotron-H gets an output matrix of its own, for transformers never ties it" {
    attention 8
    s2s-ckpt convert -q --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" hf
    python3 - <<'PY'
import json, struct
data = open("hf/model.safetensors", "rb").read()
n = struct.unpack("<Q", data[:8])[0]
head, body, out, at = json.loads(data[8:8 + n]), data[8 + n:], {}, 0
del head["lm_head.weight"]
head.pop("__metadata__", None)
parts = []
for key, t in head.items():
    begin, end = t["data_offsets"]
    parts.append(body[begin:end])
    out[key] = dict(t, data_offsets=[at, at + end - begin])
    at += end - begin
text = json.dumps(out).encode()
open("tied.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + b"".join(parts))
PY
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map nemotron_h --config config.json tied.safetensors tied
    [ "$(s2s-ckpt ls tied | grep -c '^output_layer.weight')" -eq 0 ]
    sed 's/{/{"tie_word_embeddings": true, /' config.json >said.json
    exits 0 s2s-ckpt convert -v --strict --to hf --config said.json tied back
    says "lm_head.weight is tied"
    s2s-ckpt cat back backbone.embeddings.weight >words
    s2s-ckpt cat back lm_head.weight | cmp - words
    grep -q '"tie_word_embeddings": false' back/config.json
    # weights without arguments: where the configuration says that it is no copy, it is lost
    s2s-ckpt convert -q --to safetensors tied bare.safetensors
    sed 's/{/{"tie_word_embeddings": false, /' config.json >said.json
    exits 1 s2s-ckpt convert --to hf --config said.json bare.safetensors lost
    says "lm_head.weight (of output_layer.weight)"
    not test -e lost
    [ "$(s2s-ckpt ls back | wc -l)" -eq "$(s2s-ckpt ls hf | wc -l)" ]
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map nemotron_h back again
    s2s-ckpt cat again output_layer.weight | cmp - words
}

@test "convert --to torch_dist --map: decoders of transformers, layers stacked or numbered" {
    for name in llama_gqa_tied llama_gqa_untied qwen2 qwen3 gemma1; do
        turn || continue
        for layers in auto numbered; do
            rm -rf out back
            exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama --layers $layers "$ROOT/tests/oracle/models/$name" out
            s2s-ckpt ls out >listed
            case $layers in
            # and the empty extra states that Megatron-Core's modules ask for
            auto)
                grep -q "^decoder.layers.mlp.linear_fc1.weight" listed
                n=$(sed -n 's/^decoder.layers.mlp.linear_fc1.weight	[A-Z0-9]*	\[\([0-9]*\),.*/\1/p' listed)
                [ "$(grep -c "^decoder.layers.mlp.linear_fc1._extra_state/shard_[0-9]*_$n	" listed)" -eq "$n" ]
                ;;
            numbered)
                grep -q "^decoder.layers.1.mlp.linear_fc1.weight" listed
                grep -q "^decoder.layers.1.self_attention.core_attention._extra_state/shard_0_1	" listed
                ;;
            esac
            exits 0 s2s-ckpt convert -q --strict --to hf out back
            exits 0 s2s-ckpt diff "$ROOT/tests/oracle/models/$name/model.safetensors" back
            same "$ROOT/tests/oracle/models/$name/config.json" back/config.json
        done
    done
}

@test "convert --to torch_dist --map: experts with gates, on an axis" {
    python3 - <<'PY'
import json, struct
header, data = {}, b""
def add(name, *shape):
    global data
    n = 1
    for size in shape: n *= size
    raw = struct.pack("<%df" % n, *[len(header) + i / 64 for i in range(n)])
    header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
add("model.embed_tokens.weight", 10, 4); add("model.norm.weight", 4); add("lm_head.weight", 10, 4)
for n in range(2):
    p = "model.layers.%d." % n
    for name, rows in (("q", 8), ("k", 4), ("v", 4)): add(p + "self_attn.%s_proj.weight" % name, rows, 4)
    add(p + "self_attn.o_proj.weight", 4, 8)
    for name in "qk": add(p + "self_attn.%s_norm.weight" % name, 2)
    for name in ("input", "post_attention"): add(p + name + "_layernorm.weight", 4)
    add(p + "mlp.gate.weight", 3, 4)
    for e in range(3):
        for name in ("gate", "up"): add(p + "mlp.experts.%d.%s_proj.weight" % (e, name), 6, 4)
        add(p + "mlp.experts.%d.down_proj.weight" % e, 4, 6)
head = json.dumps(header).encode()
open("moe.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + data)
PY
    echo '{"model_type": "qwen3_moe", "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 3}' >config.json
    for layers in auto numbered; do
        rm -rf out back
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map qwen_moe --layers $layers --config config.json moe.safetensors out
        exits 0 s2s-ckpt convert -q --strict --to hf out back
        exits 0 s2s-ckpt diff moe.safetensors back
    done
    exits 0 s2s-ckpt convert -q --to torch_dist --map qwen_moe --config config.json moe.safetensors axis
    s2s-ckpt ls axis | grep -q "^decoder.layers.mlp.experts.experts.linear_fc1.weight.*\[2, 3, 12, 4\]"
    # gate, then up, of expert 1 of layer 1: rows 12 to 23 of the fourth block of [2, 3]
    s2s-ckpt cat axis decoder.layers.mlp.experts.experts.linear_fc1.weight | tail -c +$(((4 * 48) * 4 + 1)) | head -c 192 >got
    for part in gate up; do s2s-ckpt cat moe.safetensors model.layers.1.mlp.experts.1.${part}_proj.weight; done >want
    same want got
    # of a layer that is lost, every name
    s2s-ckpt convert -q --to torch_dist --map qwen_moe --layers numbered --config config.json moe.safetensors numbers
    s2s-ckpt convert -q --to safetensors numbers numbers.safetensors
    python3 - <<'PY'
import json, struct
for path in "moe", "numbers":
    raw = open(path + ".safetensors", "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    kept, body, lost = {}, b"", []
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__" or ".layers.0." in name:
            lost.append(name)
            continue
        b, e = (8 + n + at for at in t["data_offsets"])
        kept[name] = dict(t, data_offsets=[len(body), len(body) + e - b])
        body += raw[b:e]
    head = json.dumps(kept).encode()
    open(path + "_lacks.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + body)
    open(path + ".lost", "w").writelines(name + "\n" for name in lost if name != "__metadata__")
PY
    [ "$(wc -l <moe.lost)" -eq 18 ]
    for way in "moe --to torch_dist --map qwen_moe" "numbers --to hf"; do
        exits 1 s2s-ckpt convert ${way#* } --config config.json ${way%% *}_lacks.safetensors x
        says "wanted but absent (18)"
        while read -r name; do says "$name"; done <moe.lost
    done
    while read -r name; do says "(of $name)"; done <numbers.lost
    sed -i 's/"num_experts": 3/"num_experts": 4/' config.json
    exits 1 s2s-ckpt convert --to torch_dist --map qwen_moe --config config.json moe.safetensors x
    says "model.layers.1.mlp.experts.3.up_proj.weight (nearest: "
    [ ! -e x ]
}

# renamed IN OUT NAME NAME..: a safetensors file with names of equal length in place of others
renamed() {
    python3 - "$@" <<'PY'
import sys
data = open(sys.argv[1], "rb").read()
for old, new in zip(sys.argv[3::2], sys.argv[4::2]):
    assert len(old) == len(new) and old.encode() in data
    data = data.replace(old.encode(), new.encode())
open(sys.argv[2], "wb").write(data)
PY
}

@test "what lacks is named: an expert's tensor, a section of a mixer, words, heads that do not fit" {
    exits 0 s2s-ckpt convert -q --to safetensors "$DATA/mcore016_hybrid_tp2pp2ep2" whole.safetensors
    exits 0 s2s-ckpt convert -q --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" hf
    layer=$(s2s-ckpt ls whole.safetensors | sed -n 's/^decoder\.layers\.\([0-9]*\)\.mixer\.in_proj\.weight\.dt.*/\1/p' | head -1)
    renamed whole.safetensors lacks.safetensors "decoder.layers.$layer.mixer.in_proj.weight.dt" "decoder.layers.$layer.mixer.in_proj.weight.dx"
    exits 1 s2s-ckpt convert --to hf --config hf/config.json lacks.safetensors out
    says "wanted but absent (1):"
    says "decoder.layers.$layer.mixer.in_proj.weight.dt (nearest: decoder.layers.$layer.mixer.in_proj.weight.dx)"
    # an expert in the middle
    s2s-ckpt convert -q --to safetensors hf one.safetensors
    name=$(s2s-ckpt ls one.safetensors | sed -n 's/^\(backbone.*experts\.1\.down_proj\.weight\).*/\1/p' | head -1)
    renamed one.safetensors lacks.safetensors "$name" "${name/down_proj/dawn_proj}"
    exits 1 s2s-ckpt convert --to torch_dist --map nemotron_h --config hf/config.json lacks.safetensors out
    says "wanted but absent (1):"
    says "$name (nearest: ${name/down_proj/dawn_proj})"
    # words that are said to be more than the matrix has
    sed 's/"vocab_size": [0-9]*/"vocab_size": 99999/' hf/config.json >more.json
    exits 1 s2s-ckpt convert --to hf --config more.json whole.safetensors out
    says "rows for a vocabulary of 99999"
    sed 's/"num_attention_heads": [0-9]*/"num_attention_heads": 5/' hf/config.json >five.json
    exits 1 s2s-ckpt convert --to hf --config five.json whole.safetensors out
    says "rows are not 5 heads"
    [ ! -e out ]
}

@test "layers that differ do not go on an axis, whatever is asked for" {
    exits 0 s2s-ckpt convert -q --to safetensors "$ROOT/tests/oracle/models/qwen3/model.safetensors" whole.safetensors
    config=$ROOT/tests/oracle/models/qwen3/config.json
    exits 0 s2s-ckpt convert -q --to torch_dist --map llama --layers numbered --config "$config" whole.safetensors numbered
    exits 0 s2s-ckpt reshard -q numbered again
    exits 0 s2s-ckpt convert -q --to safetensors numbered numbered.safetensors
    # a layer in another dtype; a layer without one of its tensors
    python3 - <<'PY'
import json, struct
data = open("numbered.safetensors", "rb").read()
n = struct.unpack("<Q", data[:8])[0]
head = json.loads(data[8:8 + n])
def put(path, head):
    text = json.dumps(head).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data[8 + n:])
name = "decoder.layers.1.mlp.linear_fc2.weight"
same = {"F32": "I32", "BF16": "F16"}
put("dtype.safetensors", {k: dict(v, dtype=same[v["dtype"]]) if k == name else v for k, v in head.items()})
put("lacks.safetensors", {k.replace(name, "other.weight"): v for k, v in head.items()})
PY
    exits 1 s2s-ckpt convert --to torch_dist --layers stacked dtype.safetensors out
    says "has another shape or dtype in another layer: layers that differ cannot lie on an axis"
    says "--layers numbered keeps them apart"
    exits 1 s2s-ckpt convert --to torch_dist --layers stacked lacks.safetensors out
    says "layer 1 of"
    says "has none: layers that differ cannot lie on an axis"
    [ ! -e out ]
    # from Hugging Face: experts in one of two layers
    python3 - <<'PY'
import json, struct
data = open("whole.safetensors", "rb").read()
n = struct.unpack("<Q", data[:8])[0]
head, body = json.loads(data[8:8 + n]), bytearray(data[8 + n:])
mlp = {k: head.pop("model.layers.1.mlp.%s_proj.weight" % k) for k in ("gate", "up", "down")}
for i in range(2):
    for k, v in mlp.items():
        head["model.layers.1.mlp.experts.%d.%s_proj.weight" % (i, k)] = dict(v, data_offsets=[len(body), len(body) + v["data_offsets"][1] - v["data_offsets"][0]])
        body += bytes(v["data_offsets"][1] - v["data_offsets"][0])
hidden, one = mlp["gate"]["shape"][1], {"F32": 4, "BF16": 2}[mlp["gate"]["dtype"]]
head["model.layers.1.mlp.gate.weight"] = {"dtype": mlp["gate"]["dtype"], "shape": [2, hidden], "data_offsets": [len(body), len(body) + 2 * hidden * one]}
body += bytes(2 * hidden * one)
end, packed = 0, bytearray()
for k, v in head.items():
    if k != "__metadata__":
        begin, stop = v["data_offsets"]
        v["data_offsets"] = [end, end + stop - begin]
        packed += body[begin:stop]
        end += stop - begin
text = json.dumps(head).encode()
open("mixed.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + packed)
PY
    jq '.model_type = "qwen3_moe"' "$config" >moe.json
    exits 1 s2s-ckpt convert --to torch_dist --map qwen_moe --layers stacked --config moe.json mixed.safetensors out
    says "in 1 of 2 layers only, so layers cannot lie on one axis"
    [ ! -e out ]
    exits 0 s2s-ckpt convert --to torch_dist --map qwen_moe --config moe.json mixed.safetensors numbered_experts
    # which layers have experts is what config.json says, where it does, in both directions
    while IFS=@ read -r said wrong; do
        jq ".model_type = \"qwen3_moe\" | $said" "$config" >said.json
        for way in "--to torch_dist --map qwen_moe --config said.json mixed.safetensors" "--to hf --map qwen_moe --config said.json numbered_experts"; do
            # shellcheck disable=SC2086
            exits $((${#wrong} > 0)) s2s-ckpt convert $way out
            case $way in *torch_dist*) says "${wrong/STACK/model}" ;; *) says "${wrong/STACK/decoder}" ;; esac
            rm -rf out
        done
    done <<'END'
.mlp_only_layers = [0]@
.decoder_sparse_step = 2@
.mlp_only_layers = []@STACK.layers.0: the configuration says that it has some experts (mlp_only_layers, decoder_sparse_step), its tensors are those of a layer with none
.mlp_only_layers = [0] | .decoder_sparse_step = 3@STACK.layers.1: the configuration says that it has no experts
END
    # left to the tool, such layers stay numbered
    exits 0 s2s-ckpt convert -q --to torch_dist --layers auto dtype.safetensors out
    exits 0 s2s-ckpt diff dtype.safetensors out
}

@test "layers of multi-token prediction keep their numbers, which Megatron-Core asks for" {
    python3 - <<'PY'
import json, struct
names = ["%s.layers.%d.%s.weight" % (stack, n, name) for stack in ("decoder", "mtp") for n in range(2) for name in ("self_attention.linear_proj", "mlp.linear_fc2")]
head = json.dumps({k: {"dtype": "F32", "shape": [2, 2], "data_offsets": [16 * i, 16 * i + 16]} for i, k in enumerate(names)}).encode()
open("in.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + bytes(range(16 * len(names))))
PY
    exits 0 s2s-ckpt convert -q --to torch_dist --layers stacked in.safetensors out
    s2s-ckpt ls out >said
    grep -q $'^decoder.layers.mlp.linear_fc2.weight\tF32\t\[2, 2, 2\]' said
    grep -q $'^mtp.layers.1.mlp.linear_fc2.weight\tF32\t\[2, 2\]' said
}

@test "convert --to torch_dist --map lists what a layer lacks" {
    exits 0 s2s-ckpt convert -q --to safetensors "$ROOT/tests/oracle/models/qwen3/model.safetensors" whole.safetensors
    python3 - <<'PY'
data = open("whole.safetensors", "rb").read()
open("lacks.safetensors", "wb").write(data.replace(b"layers.1.self_attn.o_proj.weight", b"layers.1.self_attn.o_prox.weight"))
PY
    exits 1 s2s-ckpt convert --to torch_dist --map llama --config "$ROOT/tests/oracle/models/qwen3/config.json" lacks.safetensors out
    says "wanted but absent"
    says "model.layers.1.self_attn.o_proj.weight"
    exits 1 s2s-ckpt convert --to torch_dist --map llama whole.safetensors out
    says "how many groups"
    [ ! -e out ]
}

@test "convert to torch_dist and to safetensors keeps every tensor bit for bit, whatever the input" {
    for name in mini_writer mcore016_gated_pp2dp2_dpreshardable mcore012_torch24_flattened_tp2 dcp_plain dcp_fsdp2 dcp_hf \
        hf_sharded zip.pt legacy.pt pytorch_model.bin mp_rank; do
        turn || continue
        rm -rf out out.safetensors
        exits 0 s2s-ckpt convert -q --to torch_dist "$DATA/$name" out
        exits 0 s2s-ckpt convert -q --to safetensors "$DATA/$name" out.safetensors
        digests "$DATA/$name" >want
        digests out >dist
        same want dist
        unflattened "$DATA/$name" >want
        digests out.safetensors >single
        same want single
    done
}

@test "flattened optimizer state gets its parameter's shape in safetensors, whatever the grid and the ranges" {
    python3 "$ROOT/tests/oracle/ckpt/make_flattened.py" made
    [ "$(s2s-ckpt ls made/want.safetensors | wc -l)" -eq 8 ]
    digests made/want.safetensors >want
    for name in a b; do
        exits 0 s2s-ckpt verify "made/$name"
        exits 0 s2s-ckpt reshard -q --files 3 "made/$name" "made/$name.3"
        for from in "$name" "$name.3"; do
            exits 0 s2s-ckpt convert -q --to safetensors "made/$from" out.safetensors
            digests out.safetensors >got
            same want got
            exits 0 s2s-ckpt diff "made/$from" made/want.safetensors
        done
        unflattened "made/$name" >got
        same want got
    done
    exits 0 s2s-ckpt diff made/a made/b
    # a changed value is found through two ways to store it
    python3 -c 'import sys; b = bytearray(open(sys.argv[1], "rb").read()); b[-1] ^= 1; open("other.safetensors", "wb").write(b)' made/want.safetensors
    exits 1 s2s-ckpt diff made/b other.safetensors
    says "optimizer.state.exp_avg.scalar"
    [ "${#lines[@]}" -eq 1 ]
}

@test "long: convert to hf: what Megatron-FSDP saves gives the same model as torch_dist" {
    python3 "$ROOT/tests/oracle/ckpt/make_fsdp.py" made
    for name in dense grouped sequential unsplit single hybrid hybrid1; do
        exits 0 s2s-ckpt verify "made/$name.fsdp"
        exits 0 s2s-ckpt convert --strict --to hf "made/$name.fsdp" "$name.live"
        says "tensors of optimizer and other state, 2 byte objects"
        exits 0 s2s-ckpt convert -q --strict --to hf "made/$name.dist" "$name"
        digests "$name" >want
        digests "$name.live" >got
        same want got
        [ "$(wc -l <want)" -ge 17 ]
        same "$name/config.json" "$name.live/config.json"
        exits 0 s2s-ckpt prune -q "made/$name.fsdp" "$name.pruned"
        exits 0 s2s-ckpt convert -q --strict --to hf "$name.pruned" "$name.again"
        digests "$name.again" >got
        same want got
        exits 0 s2s-ckpt reshard -q --files 2 "made/$name.fsdp" "$name.two"
        exits 0 s2s-ckpt diff "made/$name.fsdp" "$name.two"
        exits 0 s2s-ckpt convert -q --to safetensors "made/$name.fsdp" "$name.safetensors"
        exits 0 s2s-ckpt diff "made/$name.fsdp" "$name.safetensors"
    done
    # which rows of a mixer are whose is a matter of the parallelism, which only the arguments say
    exits 1 s2s-ckpt convert --to hf made/silent.fsdp x
    says "by how many tensor-parallel ranks was it cut"
    [ ! -e x ]
    echo '{"tensor_model_parallel_size": 2}' >config.json
    exits 0 s2s-ckpt convert -q --strict --to hf --config config.json made/silent.fsdp x
    exits 0 s2s-ckpt convert -q --strict --to hf made/silent.dist want.hf
    exits 0 s2s-ckpt diff x want.hf
}

@test "convert to torch_dist keeps what Megatron-Core noted about flattened tensors" {
    for name in mcore012_torch24_flattened_tp2 mcore015_vlm_tp2; do
        rm -rf out
        exits 0 s2s-ckpt convert -q --to torch_dist "$DATA/$name" out
        originals "$DATA/$name" >want
        originals out >got
        grep -q "\[" want
        same want got
    done
}

@test "convert to hf cuts shards, writes their index, takes the small files along" {
    exits 0 s2s-ckpt convert -q --to hf --max-shard-size 4k "$DATA/hf_sharded" out
    [ "$(ls out/*.safetensors | wc -l)" -gt 2 ]
    for shard in out/*.safetensors; do [ "$(stat -c %s "$shard")" -lt 6000 ]; done
    same out/config.json "$DATA/hf_sharded/config.json"
    digests "$DATA/hf_sharded" >want
    digests out >got
    same want got
    python3 -c 'import json
index = json.load(open("out/model.safetensors.index.json"))
assert index["metadata"]["total_size"] == sum(t["bytes"] for t in json.load(open("/dev/stdin"))["tensors"])' < <(s2s-ckpt ls --json out)
    exits 0 s2s-ckpt convert -q --to hf out whole
    no_litter whole config.json model.safetensors s2s-manifest.json
}

@test "convert --dtype casts floating tensors and follows in config.json" {
    exits 0 s2s-ckpt convert -q --to hf --dtype f32 "$DATA/hf_sharded" out
    [ "$(s2s-ckpt ls out | cut -f2 | sort -u)" = F32 ]
    grep -q '"float32"' out/config.json
    exits 0 s2s-ckpt convert -q --to hf --dtype bf16 out back
    digests "$DATA/hf_sharded" >want
    digests back >got
    same want got
}

@test "convert --dtype says what it does not cast: 8-bit floating and complex numbers" {
    PYTHONPATH=$ROOT/tests/tools python3 -B - <<'PY'
import numpy as np
from small_safetensors import save

save("in.safetensors", a=("F8_E4M3", np.array([1, 2], np.uint8)), c=("C64", np.array([1j], np.complex64)), w=("F32", np.array([1], np.float32)))
PY
    exits 0 s2s-ckpt convert --to safetensors --dtype bf16 in.safetensors out
    says "a and others: floating point of 8 bits or less, or complex, and not cast"
    [ "$(s2s-ckpt ls out | cut -f2 | tr '\n' ' ')" = "F8_E4M3 C64 BF16 " ]
    exits 0 s2s-ckpt convert --to safetensors in.safetensors out
    says_not "not cast"
}

@test "what is past float16 becomes infinite, and that is said; what was infinite is not" {
    PYTHONPATH=$ROOT/tests/tools python3 -B - <<'PY'
import numpy as np
from small_safetensors import save

values = np.full(20000, 3, np.float32)
save("fits.safetensors", w=("F32", np.where(values > 0, 65519, values).astype(np.float32)), i=("F32", np.array([np.inf, -np.inf, np.nan], np.float32)))
values[[0, 17000, 19999]] = 65520, -1e30, np.inf
save("past.safetensors", w=("F32", values), i=("F32", np.array([np.inf, -np.inf, np.nan], np.float32)))
save("brain.safetensors", w=("BF16", np.array([0x7f00, 0xff80, 0x3f80], np.uint16)))
PY
    exits 0 s2s-ckpt convert --to safetensors --dtype f16 fits.safetensors out
    says_not "infinite"
    exits 0 s2s-ckpt convert --to safetensors --dtype f16 past.safetensors out
    says "w: 2 values past float16's largest, 65504, made infinite"
    says_not "i: "
    exits 0 s2s-ckpt convert --to safetensors --dtype f16 brain.safetensors out
    says "w: 1 value past"
    exits 0 s2s-ckpt average --dtype f16 past.safetensors past.safetensors mean.safetensors
    says "w: 2 values"
    exits 0 s2s-ckpt convert --to safetensors --dtype bf16 past.safetensors out
    says_not "infinite"
}

@test "convert is whole or nothing: a damaged input leaves nothing" {
    cp -r "$DATA/mini_writer" in
    # a byte of tensor data: found by its CRC-32
    flip in/iter_0000042/__0_0.distcp 1700
    for to in hf torch_dist safetensors; do
        exits 1 s2s-ckpt convert --to $to in out
        no_litter . in
    done
    exits 1 s2s-ckpt convert --to safetensors in - >/dev/null
    exits 1 s2s-ckpt convert --to hf "$DATA/hf_sharded" /dev/full/out
    exits 2 s2s-ckpt convert --to hf "$DATA/hf_sharded" in
    says "already exists"
}

@test "convert --strict fails on what would be left out, and lists it" {
    cp -r "$DATA/mini_writer" in
    exits 0 s2s-ckpt convert --strict -q --to hf "$DATA/hf_sharded" out
    exits 2 s2s-ckpt convert --to nonsense in x
    exits 2 s2s-ckpt convert --to hf in
    exits 1 s2s-ckpt convert --from mp_rank --to hf in x
    says "is torch_dist, not mp_rank"
}

@test "convert says what it leaves out, and --dtype leaves an optimizer as it is" {
    exits 0 s2s-ckpt convert --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" hf
    says "left out: 165 tensors of optimizer and other state, 37 byte objects"
    says "left out: optimizer.state.exp_avg.* (55), optimizer.state.exp_avg_sq.* (55), optimizer.state.param.* (55), *_extra_state (33), rng_state (4) (-v"
    exits 0 s2s-ckpt convert --to safetensors "$DATA/mcore016_hybrid_tp2pp2ep2" all.safetensors
    says "left out: 37 byte objects, the common state"
    exits 0 s2s-ckpt convert -v --json --to hf "$DATA/mcore016_hybrid_tp2pp2ep2" verbose
    [ "$(grep -c 'left out: [^ ]*$' <<<"$output")" = 202 ]
    says '"names": {"optimizer.state.exp_avg.*": 55, '
    says "left out: optimizer.state.param.decoder.final_norm.weight"
    says "left out: rng_state/shard_0.0_2.2"
    exits 0 s2s-ckpt convert --to torch_dist --dtype f16 "$DATA/mcore016_hybrid_tp2pp2ep2" out
    case $output in *"left out"*) false ;; esac
    s2s-ckpt ls out | cut -f 1,2 >listed
    grep -v ^optimizer listed >model
    not grep BF16 model
    grep -q F16 model
    [ "$(grep ^optimizer listed | cut -f 2 | sort -u)" = F32 ]
    # nor does a router's bias get narrower, by either name
    [ "$(grep 'router.expert_bias' listed | grep -v ^optimizer | cut -f 2 | sort -u)" = F32 ]
    exits 0 s2s-ckpt convert -q --to hf --dtype bf16 "$DATA/mcore016_hybrid_tp2pp2ep2" narrow
    [ "$(s2s-ckpt ls narrow | grep e_score_correction_bias | cut -f 2 | sort -u)" = F32 ]
    [ "$(s2s-ckpt ls narrow | grep A_log | cut -f 2 | sort -u)" = BF16 ]
    # an optimizer beside the ranks' models is no tensor here
    cp -r "$DATA/mp_rank" ranks
    chmod -R u+w ranks
    touch ranks/iter_0000100/mp_rank_01/distrib_optim.pt
    exits 0 s2s-ckpt convert --to torch_dist --merge-ranks ranks merged
    says "the optimizer of 1 rank folder"
    says_not "1 rank folders"
    rm -r merged
    touch ranks/iter_0000100/mp_rank_0{0,1}/layer_wise_optimizer_{0,1}.pt
    exits 0 s2s-ckpt convert --to torch_dist --merge-ranks ranks merged
    says "the optimizer of 2 rank folders"
    # a long name is cut between characters
    local long=$(printf '日%.0s' {1..60})
    write long.safetensors "{'w': (2,), 'optimizer.a$long': (2,), 'optimizer.ab$long': (2,), 'optimizer.abc$long': (2,)}"
    exits 0 s2s-ckpt convert --to hf --json long.safetensors long
    [[ $output == *'"optimizer.abc日'* && $output != *"$(printf '\357\277\275')"* && $output != *'\x'* ]]
}

@test "convert names what a layer lacks" {
    exits 1 s2s-ckpt convert --to hf "$DATA/mcore012_torch24_flattened_tp2" out
    says "how many heads"
    says "--config"
    echo '{"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 4}' >config.json
    exits 1 s2s-ckpt convert --config config.json --to hf "$DATA/mcore012_torch24_flattened_tp2" out
    says "wanted but absent"
    says "model.layers.1.self_attn.o_proj.weight (of decoder.layers.1.self_attention.linear_proj.weight)"
    no_litter . config.json
}

@test "convert to stdout is a safetensors file" {
    s2s-ckpt convert -q --to safetensors "$DATA/dcp_hf" - >out.safetensors
    digests "$DATA/dcp_hf" >want
    digests out.safetensors >got
    same want got
}

@test "a .distcp that is cut, missing or a link is named" {
    cp -r "$DATA/mini_writer" in
    truncate -s 1000 in/iter_0000042/__0_0.distcp
    exits 1 s2s-ckpt ls in
    says "__0_0.distcp has 1000 bytes"
    says "truncated"
    rm in/iter_0000042/__0_0.distcp
    exits 1 s2s-ckpt ls in
    says "__0_0.distcp is missing"
    ln -s /etc/passwd in/iter_0000042/__0_0.distcp
    exits 1 s2s-ckpt ls in
    says "a link"
}

@test "a shard of a folder that is cut is named" {
    cp -r "$DATA/hf_sharded" in
    truncate -s -5 in/model-00003-of-00003.safetensors
    exits 1 s2s-ckpt convert --to torch_dist in out
    says "in: model-00003-of-00003.safetensors: tensor 'model.norm.weight' needs"
    [ ! -e out ]
    exits 2 s2s-ckpt convert --to nonsense in out
    says "convert: --to: 'nonsense' is not one of hf"
}

@test "a save that did not finish is called so" {
    cp -r "$DATA/mini_writer/iter_0000042" in
    rm in/.metadata in/metadata.json
    exits 1 s2s-ckpt ls in
    says "unfinished save"
}

@test "hostile names and classes are refused, nothing is run" {
    cp -r "$DATA/mini_writer/iter_0000042" in
    python3 - <<'PY'
path = "in/.metadata"
data = open(path, "rb").read()
open("traversal", "wb").write(data.replace(b"__0_0.distcp", b"../../passwd"))
open("system", "wb").write(b"cposix\nsystem\n(X\x0b\0\0\0touch ownedtR.")
open("unknown", "wb").write(b"\x80\x02cmymodule\nThing\n)R.")
PY
    cp traversal in/.metadata
    exits 1 s2s-ckpt ls in
    says "../../passwd"
    says "refused"
    cp system in/.metadata
    exits 1 s2s-ckpt ls in
    says "hostile: it wants to call posix.system"
    [ ! -e owned ]
    cp unknown in/.metadata
    exits 1 s2s-ckpt ls in
    says "class mymodule.Thing is not known"
    says "byte 2"
}

@test "zarr, unknown folders and empty files are named" {
    mkdir zarr empty
    echo '{"sharded_backend": "zarr", "sharded_backend_version": 1}' >zarr/metadata.json
    exits 1 s2s-ckpt ls zarr
    says "zarr"
    exits 1 s2s-ckpt ls empty
    : >nothing
    exits 1 s2s-ckpt ls nothing
    says "nothing: is empty"
}

@test "a folder of a version that came later is refused, and the version named" {
    mkdir -p llm/model_weights && cp -r "$DATA/mini_writer/iter_0000042" new
    chmod -R u+w new
    for key in sharded common; do
        python3 - $key <<'PY'
import json, sys
known = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}
json.dump({**known, sys.argv[1] + "_backend_version": 2}, open("new/metadata.json", "w"))
PY
        exits 1 s2s-ckpt ls new
        says "new: metadata.json: ${key}_backend_version 2; none past 1 is known"
        exits 1 s2s-ckpt convert --to safetensors new out
        [ ! -e out ]
    done
    cp -r new/. llm/model_weights
    echo "name: tiny" >llm/model_config.yaml
    tar -C llm -cf new.nemo .
    exits 1 s2s-ckpt ls new.nemo
    says "metadata.json: common_backend_version 2"
}

@test "a conversion that is killed leaves nothing under the final name" {
    head -c 60000000 /dev/zero >zeros
    python3 - <<'PY'
import json, struct
n = 60000000
header = json.dumps({"w": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
open("big.safetensors", "wb").write(struct.pack("<Q", len(header)) + header + open("zeros", "rb").read())
PY
    for signal in TERM KILL; do
        s2s-ckpt convert -q --to torch_dist big.safetensors out &
        sleep 0.01
        kill -$signal $! || true
        wait $! || true
        # either it was done already, or nothing is there
        [ ! -e out ] || exits 0 s2s-ckpt ls out
        rm -rf out
    done
    rm -rf out.s2s-partial
    no_litter . big.safetensors zeros
}

@test "verify passes every fixture and what convert writes" {
    for expected in "$DATA"/*.expected.json; do
        exits 0 s2s-ckpt verify "${expected%.expected.json}"
        says "complete and consistent; no manifest"
    done
    # what was compared is said
    exits 0 s2s-ckpt verify "$DATA/mini_writer"
    says "; no manifest, CRC-32s of all tensors are right"
    exits 0 s2s-ckpt verify "$DATA/hf_sharded"
    says "; no manifest, and no checksum of 21 tensors"
    for to in hf torch_dist; do
        exits 0 s2s-ckpt convert -q --to $to "$DATA/hf_sharded" $to
        exits 0 s2s-ckpt verify $to
        says "as the manifest says"
    done
    exits 0 s2s-ckpt verify --json hf
    echo "$output" | python3 -c 'import json,sys; assert json.load(sys.stdin)["ok"] is True'
    # asked to be quiet it says nothing of what is good, but where it is to write to a file
    exits 0 s2s-ckpt verify -q "$DATA/zip.pt"
    [ -z "$output" ]
    exits 0 s2s-ckpt verify -q -o report "$DATA/zip.pt"
    grep -q "complete and consistent" report
    exits 0 s2s-ckpt verify -q --json "$DATA/zip.pt"
    says '"ok": true'
}

@test "verify finds a flipped byte anywhere in what convert writes" {
    s2s-ckpt convert -q --to torch_dist "$DATA/mini_writer" in
    s2s-ckpt convert -q --to hf "$DATA/hf_sharded" hf
    for file in in/iter_0000042/__0_0.distcp in/iter_0000042/.metadata in/iter_0000042/common.pt hf/model.safetensors; do
        cp $file kept
        for at in 11 300 777; do
            [ "$at" -lt "$(stat -c %s $file)" ] || continue
            flip $file $at 3
            run s2s-ckpt verify "${file%%/*}"
            [ "$status" -eq 1 ] || { echo "$file at $at: exit $status: $output" >&2; return 1; }
            cp kept $file
        done
        exits 0 s2s-ckpt verify "${file%%/*}"
    done
}

@test "verify finds holes and overlaps between boxes" {
    cp -r "$DATA/mini_writer/iter_0000042" in
    python3 - <<'PY'
data = open("in/.metadata", "rb").read()
# the first chunk of [6, 4] has sizes (3, 4): say (2, 4), then (4, 4)
at = data.index(b"sizes") + data[data.index(b"sizes"):].index(b"((K\x03K\x04t") + 3
for value, name in ((2, "hole"), (4, "overlap"), (200, "outside")):
    open(name, "wb").write(data[:at] + bytes([value]) + data[at + 1:])
PY
    for name in hole overlap outside; do
        cp $name in/.metadata
        exits 1 s2s-ckpt verify in
        says "decoder.layers.0.mlp.linear_fc1.weight"
    done
}

@test "a composite goes to torch_dist and back: parts, projection and small files as they were" {
    mkdir -p in/encoder in/llm
    python3 - <<'PY'
import json, struct

def save(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        raw = struct.pack("<%df" % len(values), *values)
        header[name] = {"dtype": "F32", "shape": [1, len(values)] if name == "proj.weight" else [len(values)], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(head)) + head + data)

save("in/encoder/model.safetensors", {"layers.0.weight": [1, 2, 3]})
save("in/llm/model.safetensors", {"model.norm.weight": [4, 5], "lm_head.weight": [6]})
save("in/projection.safetensors", {"proj.weight": [7, 8], "proj.bias": [9]})
PY
    echo '{"model_type": "salm"}' >in/config.json
    echo '{"model_type": "ours"}' >in/encoder/config.json
    echo '{"model_type": "theirs"}' >in/llm/config.json
    echo '{"version": "1.0"}' >in/llm/tokenizer.json
    exits 0 s2s-ckpt convert -q --to torch_dist in dist
    digests in >want
    [ "$(wc -l <want)" -eq 5 ]
    digests dist >got
    same want got
    exits 0 s2s-ckpt convert -q --to hf dist out
    digests out >got
    same want got
    for file in config.json encoder/config.json llm/config.json llm/tokenizer.json; do same in/$file out/$file; done
    exits 0 s2s-ckpt verify out
}

@test "cat gives the bytes that ls has the digest of, and numbers" {
    name=language_model.decoder.layers.1.self_attention.linear_qkv.weight
    s2s-ckpt cat "$DATA/mcore015_vlm_tp2" $name >raw
    alike "$(sha256sum raw | cut -d' ' -f1)" "$(s2s-ckpt ls --sha256 "$DATA/mcore015_vlm_tp2" | grep -F "$name" | cut -f5)"
    s2s-ckpt cat "$DATA/mcore015_vlm_tp2" $name -o raw2
    same raw raw2
    s2s-ckpt cat --json "$DATA/zip.pt" int | python3 -c 'import json,sys; d=json.load(sys.stdin); assert len(d["data"]) == 3 and d["dtype"] == "I32"'
    exits 1 s2s-ckpt cat "$DATA/zip.pt" tied_c
    says "nearest: tied_a"
    exits 2 s2s-ckpt cat "$DATA/zip.pt"
}

@test "diff: bits without a tolerance, numbers with one; NaNs are alike, and past everything else" {
    PYTHONPATH=$ROOT/tests/tools python3 -B - <<'PY'
import numpy as np
from small_safetensors import save

plain = np.zeros(3000, np.float32)
first, last = plain.copy(), plain.copy()
first[5], last[2999] = np.nan, 7
odd = np.array([0, np.nan, 1], np.float32)
others = np.array([0x80000000, 0x7fc00001, 0x3f800000], np.uint32)
save("a.safetensors", bits=("F32", odd), far=("F32", first), wide=("F32", odd))
save("b.safetensors", bits=("F32", others.view(np.float32)), far=("F32", last), wide=("BF16", (others >> 16).astype(np.uint16)))
PY
    exits 1 s2s-ckpt diff a.safetensors b.safetensors
    alike "$(grep -v '^wide' <<<"$output")" $'bits\tvalues\tF32\t2 of 3\tmax 0\nfar\tvalues\tF32\t2 of 3000\tmax nan'
    exits 1 s2s-ckpt diff --tolerance 1 a.safetensors b.safetensors
    says $'far\tvalues\tF32\t2 of 3000\tmax nan'
    says_not bits
    says_not wide
}

@test "diff: equal is 0, different is 1 and says how" {
    exits 0 s2s-ckpt diff "$DATA/zip.pt" "$DATA/legacy.pt"
    [ -z "$output" ]
    exits 0 s2s-ckpt convert -q --to safetensors "$DATA/zip.pt" a.safetensors
    cp a.safetensors b.safetensors
    exits 0 s2s-ckpt diff a.safetensors b.safetensors
    flip b.safetensors $(($(stat -c %s b.safetensors) - 1))
    exits 1 s2s-ckpt diff a.safetensors b.safetensors
    says "values"
    exits 1 s2s-ckpt diff "$DATA/zip.pt" "$DATA/dcp_hf"
    says "only in A"
    says "only in B"
    exits 1 s2s-ckpt diff --json a.safetensors b.safetensors
    echo "$output" | python3 -c 'import json,sys; d=json.load(sys.stdin); assert d["different"] == 1 == len(d["differences"]) and d["same"] == 9, d'
    exits 0 s2s-ckpt convert -q --to hf --dtype f32 "$DATA/hf_sharded" wide
    exits 1 s2s-ckpt diff "$DATA/hf_sharded" wide
    says "dtype"
    exits 0 s2s-ckpt diff --tolerance 1e-9 "$DATA/hf_sharded" wide
    exits 2 s2s-ckpt diff a.safetensors
}

@test "prune leaves the optimizer and random states out and nothing else" {
    exits 0 s2s-ckpt prune -q "$DATA/mcore016_hybrid_tp2pp2ep2" out
    digests "$DATA/mcore016_hybrid_tp2pp2ep2" | grep -v '^optimizer' >want
    digests out >got
    same want got
    [ "$(s2s-ckpt ls out | grep -c -e rng_state -e '^optimizer')" -eq 0 ]
    s2s-ckpt ls out | grep -q _extra_state
    exits 0 s2s-ckpt verify out
}

@test "reshard: any number of files, every tensor and object as it was" {
    for name in mini_writer mcore016_gated_pp2dp2_dpreshardable mcore016_hybrid_tp2pp2ep2 mcore012_torch24_flattened_tp2 dcp_plain; do
        turn || continue
        s2s-ckpt ls --sha256 "$DATA/$name" | cut -f 1-3,5 >want
        originals "$DATA/$name" >want.originals
        for n in 1 3 16; do
            rm -rf out
            exits 0 s2s-ckpt reshard -q --files $n "$DATA/$name" out
            s2s-ckpt ls --sha256 out | cut -f 1-3,5 >got
            same want got
            originals out >got
            same want.originals got
            [ "$(ls out/*/*.distcp | wc -l)" -le $n ]
        done
        exits 0 s2s-ckpt verify out
    done
    # 96 rows of 100 kB: equal files, tensors cut
    python3 - <<'PY'
import json, struct
n, width = 96, 25000
header = json.dumps({"w": {"dtype": "F32", "shape": [n, width], "data_offsets": [0, 4 * n * width]}}).encode()
open("big.safetensors", "wb").write(struct.pack("<Q", len(header)) + header + bytes(i * 7 % 251 for i in range(width)) * 4 * n)
PY
    rm -rf out
    exits 0 s2s-ckpt reshard -q --files 8 big.safetensors out
    [ "$(ls out/*/*.distcp | wc -l)" -eq 8 ]
    for file in out/*/*.distcp; do [ "$(stat -c %s $file)" -lt 1210000 ]; done
    exits 0 s2s-ckpt diff big.safetensors out
    exits 2 s2s-ckpt reshard --files 0 big.safetensors x
    exits 2 s2s-ckpt convert --to hf --files 2 big.safetensors x
}

# metadata.json tells Megatron-LM that the folder is torch_dist, so it would not load FSDP's names
@test "reshard, prune and average: plain torch.distributed.checkpoint stays that, with no file of Megatron-Core's" {
    for command in "reshard --files 1" prune "average $DATA/dcp_fsdp2"; do
        exits 0 s2s-ckpt $command "$DATA/dcp_fsdp2" out
        [ "$(ls -A out/*/)" = "$(printf '.metadata\n__0_0.distcp\ns2s-manifest.json')" ]
        exits 0 s2s-ckpt verify out
        says ": dcp, "
        [[ "$command" != reshard* ]] || exits 0 s2s-ckpt diff "$DATA/dcp_fsdp2" out
        rm -r out
    done
    # where torch_dist is asked for, that is what comes
    for command in convert "average $DATA/dcp_fsdp2"; do
        exits 0 s2s-ckpt $command --to torch_dist "$DATA/dcp_fsdp2" out
        [ -e out/iter_0000001/metadata.json ]
        [ -e out/iter_0000001/common.pt ]
        rm -r out
    done
}

@test "what Megatron calls a release stays one: its training begins anew from it" {
    exits 0 s2s-ckpt convert -q --to torch_dist "$DATA/mini_writer" base
    mkdir root
    cp -r base/iter_* root/release
    printf release >root/latest_checkpointed_iteration.txt
    for name in root root/release; do
        exits 0 s2s-ckpt reshard -q --files 2 "$name" out
        [ "$(cat out/latest_checkpointed_iteration.txt)" = release ]
        [ "$(ls out)" = "$(printf 'latest_checkpointed_iteration.txt\nrelease')" ]
        exits 0 s2s-ckpt verify out
        exits 0 s2s-ckpt diff "$DATA/mini_writer" out
        rm -r out
    done
}

@test "optimizers that only their own job can take apart are refused by name, and left out by prune" {
    cp -r "$DATA/mcore016_gated_pp2dp2_dpreshardable" in
    python3 - <<'PY'
import glob, zipfile
# the same type under a refused name; the archive is written anew, with its checksums
path = glob.glob("in/iter_*/common.pt")[0]
with zipfile.ZipFile(path) as z:
    members = [(name, z.read(name)) for name in z.namelist()]
with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
    for name, data in members:
        long = b"dp_zero_gather_scatter"
        if name.endswith("data.pkl"):
            data = data.replace(b"X" + bytes([14, 0, 0, 0]) + b"dp_reshardable", b"X" + bytes([len(long), 0, 0, 0]) + long)
            assert long in data
        z.writestr(name, data)
PY
    exits 1 s2s-ckpt reshard --files 2 in out
    says "dp_zero_gather_scatter"
    says "prune"
    no_litter . in
    # a copy is for the job that wrote it
    exits 0 s2s-ckpt convert -q --to torch_dist in copy
    exits 0 s2s-ckpt diff in copy
    # what has no optimizer any more is like others
    exits 0 s2s-ckpt prune -q in pruned
    exits 0 s2s-ckpt reshard -q --files 2 pruned out
    exits 0 s2s-ckpt diff pruned out
}

@test "numbers: small floats are numbers, JSON is JSON, integers are exact, -0 stays, no mean in silence" {
    PYTHONPATH=$ROOT/tests/tools python3 -B - <<'PY'
import numpy as np
from small_safetensors import save

f32 = lambda *x: ("F32", np.array(x, np.float32))
u8 = lambda dtype, *x: (dtype, np.array(x, np.uint8))
nan, inf = float("nan"), float("inf")
save("a.safetensors", d=f32(1, inf, nan), f=u8("F8_E4M3", 0x38, 0x40, 0xfe, 0x7f, 0x01), g=u8("F8_E5M2", 0x3c, 0x7c, 0x84),
     h=u8("F8_E8M0", 0x7f, 0x80), n=("I64", np.array([2**53 + 1, -2**63])), w=f32(-inf, 1), x=f32(1, 2), z=f32(-0.0, 1))
save("b.safetensors", d=f32(1, inf, nan), f=u8("F8_E4M3", 0x40, 0x40, 0xfe, 0x7f, 0x01), g=u8("F8_E5M2", 0x3c, 0x7c, 0x84),
     h=u8("F8_E8M0", 0x7f, 0x80), n=("I64", np.array([2**53 + 1, -2**63])), w=f32(inf, 1), x=f32(nan, 2), z=f32(-0.0, 1))
save("half.safetensors", d=("F16", np.array([1, inf, nan], np.float16)))
save("one.safetensors", d=f32(1, inf, nan))
save("z.safetensors", z=f32(-0.0, 1))
PY
    # E4M3: 1, 2, -448, NaN, 2^-9; E5M2: 1, inf, -4 * 2^-16; E8M0: 1, 2
    exits 0 s2s-ckpt cat --json a.safetensors f
    says '[1, 2, -448, "nan", 0.001953125]'
    exits 0 s2s-ckpt cat --json a.safetensors g
    says '[1, "inf", -6.103515625e-05]'
    exits 0 s2s-ckpt cat --json a.safetensors h
    says '[1, 2]'
    exits 0 s2s-ckpt cat --json a.safetensors n
    says '[9007199254740993, -9223372036854775808]'
    exits 1 s2s-ckpt diff --json a.safetensors b.safetensors
    echo "$output" | python3 -c '
import json, sys
def never(word): raise SystemExit("not JSON: " + word)
d = json.load(sys.stdin, parse_constant=never)
assert [(x["name"], x["max_abs"]) for x in d["differences"]] == [("f", 1), ("w", "inf"), ("x", "nan")], d'
    exits 1 s2s-ckpt diff one.safetensors half.safetensors
    says "0 of 3"
    exits 0 s2s-ckpt diff --tolerance 0.1 one.safetensors half.safetensors
    exits 0 s2s-ckpt average -q z.safetensors z.safetensors mean.safetensors
    exits 0 s2s-ckpt diff z.safetensors mean.safetensors
    exits 1 s2s-ckpt average a.safetensors b.safetensors x.safetensors
    says "f is F8_E4M3, which cannot be averaged"
    [ ! -e x.safetensors ]
}

@test "average: the mean of the weights, rounded once; other checkpoints must be alike" {
    PYTHONPATH=$ROOT/tests/tools python3 -B - <<'PY'
import numpy as np
from small_safetensors import save

def bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)

rng = np.random.default_rng(1)
made = []
for k in range(3):
    a = rng.normal(size=(300, 700)).astype(np.float32)
    b = bf16(rng.normal(size=(40, 50)))
    save("%d.safetensors" % k, a=("F32", a), b=("BF16", b), n=("I64", np.array([k + 5])))
    made.append((a, (b.astype(np.uint32) << 16).view(np.float32)))
a, b = (sum(m[i].astype(np.float64) for m in made) / 3 for i in range(2))
save("want.safetensors", a=("F32", a.astype(np.float32)), b=("BF16", bf16(b)), n=("I64", np.array([5])))
save("other.safetensors", a=("F32", made[0][0][:299]), b=("BF16", bf16(b)), n=("I64", np.array([5])))
save("more.safetensors", a=("F32", made[0][0]), b=("BF16", bf16(b)), n=("I64", np.array([5])), c=("I64", np.array([5])))
PY
    exits 0 s2s-ckpt average -q [012].safetensors out.safetensors
    exits 0 s2s-ckpt diff want.safetensors out.safetensors
    # of any formats; the first says which one comes out
    exits 0 s2s-ckpt convert -q --to torch_dist 0.safetensors dist
    exits 0 s2s-ckpt average -q dist 1.safetensors 2.safetensors mean
    exits 0 s2s-ckpt verify mean
    exits 0 s2s-ckpt diff want.safetensors mean
    exits 0 s2s-ckpt average -q --to hf dist 1.safetensors 2.safetensors -o folder
    exits 0 s2s-ckpt diff want.safetensors folder
    exits 1 s2s-ckpt average 0.safetensors other.safetensors x
    says "of another shape or dtype"
    exits 1 s2s-ckpt average 0.safetensors more.safetensors x
    says "c is in"
    # of many the message has the first, the log the others
    write many.safetensors "{'t%d' % i: (2,) for i in range(12)}"
    write few.safetensors "{'t0': (3,)}"
    exits 1 s2s-ckpt average many.safetensors few.safetensors x
    says "ckpt: wanted but absent: t9"
    says "wanted but absent (11):"
    says "  t6"
    says "of another shape or dtype (1):"
    exits 2 s2s-ckpt average 0.safetensors x
    exits 2 s2s-ckpt average 0.safetensors absent x
    [ ! -e x ]
    # damage in any of them is found
    cp -r dist bad
    flip bad/iter_0000001/__0_0.distcp 100000
    exits 1 s2s-ckpt average -q 0.safetensors bad x.safetensors
    [ ! -e x.safetensors ]
    # optimizer and random states stay behind
    exits 0 s2s-ckpt average -q "$DATA/mcore016_hybrid_tp2pp2ep2" "$DATA/mcore016_hybrid_tp2pp2ep2" same
    [ "$(s2s-ckpt ls same | grep -c -e rng_state -e '^optimizer')" -eq 0 ]
    digests "$DATA/mcore016_hybrid_tp2pp2ep2" | grep -v '^optimizer' >want
    digests same >got
    same want got
}

@test "a checkpoint of s2s-train becomes a folder that s2s-train and transformers read" {
    model=$ROOT/tests/oracle/models/llama_gqa_tied
    for i in 1 2; do echo "{\"id\": \"a$i\", \"input_ids\": [1,2,3,4,5,6,7,$i]}"; done >ids.jsonl
    s2s-pack -q --ids ids.jsonl --tokens 16 -o train.s2s
    printf 'run: run\nmodel: {path: %s}\ntrain: {steps: 1, packs_per_step: 1}\ndata: {train: [train.s2s]}\n' "$model" >recipe.yaml
    exits 0 s2s-train -q recipe.yaml
    exits 0 s2s-ckpt verify run/checkpoints
    exits 0 s2s-ckpt convert -q --to hf run/checkpoints out
    # the weights and nothing of the optimizer, under the names that the model came with
    s2s-ckpt ls "$model/model.safetensors" | cut -f1-3 >want
    s2s-ckpt ls out | cut -f1-3 >got
    same want got
    exits 0 s2s-train probe --model out --inputs "$model/inputs.safetensors" --out probed.safetensors
    # one step moved every weight a little
    exits 1 s2s-ckpt diff out "$model/model.safetensors"
    exits 0 s2s-ckpt diff --tolerance 0.01 out "$model/model.safetensors"
}

@test "s2s-train goes on from a resharded checkpoint of its own as from the one it wrote" {
    for i in 1 2 3 4; do echo "{\"id\": \"a$i\", \"input_ids\": [1,2,3,4,5,6,7,$i]}"; done >ids.jsonl
    s2s-pack -q --ids ids.jsonl --tokens 16 -o train.s2s
    for run in unbroken resharded; do
        printf 'run: %s\nmodel: {path: %s}\ntrain: {packs_per_step: 1}\ndata: {train: [train.s2s]}\n' $run "$ROOT/tests/oracle/models/llama_gqa_tied" >$run.yaml
    done
    exits 0 s2s-train -q unbroken.yaml train.steps=2
    exits 0 s2s-train -q resharded.yaml train.steps=1
    mv resharded/checkpoints written
    exits 0 s2s-ckpt reshard -q --files 3 written resharded/checkpoints
    exits 0 s2s-train -q resharded.yaml train.steps=2
    exits 0 s2s-ckpt diff unbroken/checkpoints resharded/checkpoints
    # weights alone are nothing to go on from
    rm -r resharded/checkpoints
    exits 0 s2s-ckpt prune -q written resharded/checkpoints
    exits 1 s2s-train -q resharded.yaml train.steps=2
    says "optimizer.state.exp_avg.model.norm.weight"
    says "wanted but absent"
}

# merged NAME [OPTION..]: rank folders as torch_dist are the whole tensors they were cut from
merged() {
    s2s-ckpt convert -q --to torch_dist --merge-ranks "${@:2}" "$DATA/$1" "$1.dist"
    python3 "$COMPARE" s2s-ckpt "$1.dist" "$DATA/$1.expected.json"
}

@test "rank folders become the whole tensors: tp, pp, virtual stages, gated MLPs, Mamba, experts" {
    merged mp_rank_dense --layers numbered
    merged mp_rank_hybrid
    # as Megatron-Core 0.17 and later name a mixer's convolution
    rm -rf mp_rank_hybrid.dist
    cp -r "$DATA/mp_rank_hybrid" .
    python3 -c '
import glob, zipfile
for path in glob.glob("mp_rank_hybrid/iter_0000007/*/*.pt"):
    with zipfile.ZipFile(path) as z:
        members = [(m.filename, z.read(m).replace(b".mixer.conv1d.", b".mixer.conv1d_")) for m in z.infolist()]
    with zipfile.ZipFile(path, "w") as z:
        for name, data in members:
            z.writestr(name, data)'
    exits 0 s2s-ckpt ls mp_rank_hybrid
    says "mixer.conv1d_weight"
    cp "$DATA/mp_rank_hybrid.expected.json" .
    DATA=$PWD merged mp_rank_hybrid
    merged mp_rank_packed
    merged mp_rank_tower
    merged mp_rank_etp1
    # unless it is asked for, names stay as they are
    s2s-ckpt convert -q --to safetensors "$DATA/mp_rank_dense" ranks.safetensors
    exits 0 s2s-ckpt ls ranks.safetensors
    says "mp_rank_01_001/model1.decoder.layers.0.mlp.linear_fc1.weight"
    # to Hugging Face names, with the saved arguments alone
    s2s-ckpt convert -q --to hf "$DATA/mp_rank_dense" hf
    exits 0 s2s-ckpt ls hf
    says "model.layers.4.self_attn.q_proj.weight"
    says "model.layers.4.mlp.gate_proj.weight	BF16	[12, 8]"
    python3 -c '
import json
c = json.load(open("hf/config.json"))
assert (c["model_type"], c["num_hidden_layers"], c["head_dim"], c["vocab_size"], c["dtype"]) == ("qwen2", 5, 2, 32, "bfloat16"), c'
}

@test "layers that are alike lie on an axis, as Megatron-Core's GPT models ask for them" {
    ranks=$DATA/mp_rank_dense
    s2s-ckpt convert -q --to torch_dist --merge-ranks "$ranks" stacked
    s2s-ckpt convert -q --to torch_dist --merge-ranks --layers numbered "$ranks" numbered
    exits 0 s2s-ckpt ls stacked
    says "decoder.layers.mlp.linear_fc1.weight	BF16	[5, 24, 8]	1920"
    says "decoder.layers.self_attention.linear_qkv.bias	BF16	[5, 24]	240"
    says "embedding.word_embeddings.weight	BF16	[32, 8]	512"
    [ "$(s2s-ckpt ls stacked | grep -c 'layers\.[0-9]')" -eq 0 ]
    # layer after layer
    for i in 0 1 2 3 4; do s2s-ckpt cat numbered "decoder.layers.$i.mlp.linear_fc2.weight"; done >want
    s2s-ckpt cat stacked decoder.layers.mlp.linear_fc2.weight >got
    cmp want got
    # there and back, in any number of files
    exits 0 s2s-ckpt convert -q --to torch_dist --layers numbered --files 3 stacked numbered_again
    exits 0 s2s-ckpt diff numbered numbered_again
    exits 0 s2s-ckpt convert -q --to torch_dist --layers stacked --files 7 numbered stacked_again
    exits 0 s2s-ckpt diff stacked stacked_again
    # to Hugging Face it is one model
    s2s-ckpt convert -q --to hf stacked hf
    s2s-ckpt convert -q --to hf numbered hf_numbered
    exits 0 s2s-ckpt diff hf hf_numbered
    # without the option a torch_dist stays what it is
    s2s-ckpt convert -q --to torch_dist numbered same
    exits 0 s2s-ckpt diff numbered same
    exits 0 s2s-ckpt convert -q --to torch_dist --layers auto numbered auto
    exits 0 s2s-ckpt diff stacked auto
    exits 2 s2s-ckpt convert --to safetensors --layers stacked numbered x.safetensors
    says "--layers goes with --to torch_dist"
}

@test "layers that differ, and hybrid ones, stay numbered" {
    source=$DATA/mcore016_hybrid_tp2pp2ep2
    exits 0 s2s-ckpt convert -q --to torch_dist --layers auto "$source" auto
    exits 0 s2s-ckpt diff "$source" auto
    exits 0 s2s-ckpt convert -q --to torch_dist --layers stacked "$source" stacked
    exits 0 s2s-ckpt diff "$source" stacked
    # a transformer whose layers differ
    python3 - <<'EOF'
import json, struct
names = {"decoder.layers.%d.%s.weight" % (i, n): [2, 2] for i in range(3) for n in ("self_attention.linear_proj", "mlp.linear_fc2")}
del names["decoder.layers.1.mlp.linear_fc2.weight"]
names["decoder.layers.1.mlp.router.weight"] = [2, 2]
head, at = {}, 0
for name in sorted(names):
    head[name] = {"dtype": "F32", "shape": [2, 2], "data_offsets": [at, at + 16]}
    at += 16
text = json.dumps(head).encode()
open("mixed.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + bytes(at))
EOF
    exits 0 s2s-ckpt convert -q --to torch_dist --layers auto mixed.safetensors mixed
    exits 0 s2s-ckpt diff mixed.safetensors mixed
    exits 1 s2s-ckpt convert -q --to torch_dist --layers stacked mixed.safetensors x
    says "decoder.layers.0.mlp.linear_fc2.weight: layer 1 of 3 has none: layers that differ cannot lie on an axis; --layers numbered keeps them apart"
    [ ! -e x ]
}

@test "optimizer state and byte objects follow the layers of their weights" {
    # a language model that is hybrid beside a vision tower that is not
    source=$DATA/mcore015_vlm_tp2
    exits 0 s2s-ckpt convert -q --to torch_dist --layers numbered "$source" numbered
    exits 0 s2s-ckpt ls numbered
    says "vision_model.decoder.layers.1.mlp.linear_fc1.weight	BF16	[16, 8]"
    says "vision_model.decoder.layers.1.self_attention.linear_qkv._extra_state/shard_0_1	object	-	1325"
    says "language_model.decoder.layers.0.mixer.A_log	"
    exits 0 s2s-ckpt verify numbered
    exits 0 s2s-ckpt convert -q --to torch_dist --layers auto numbered auto
    s2s-ckpt ls "$source" >want
    s2s-ckpt ls auto >got
    same want got
    exits 0 s2s-ckpt diff "$source" auto
    python3 - <<'EOF'
import json, struct
names = ["%sdecoder.layers.%d.%s.weight" % (s, i, n) for i in range(3) for n in ("self_attention.linear_proj", "mlp.linear_fc2")
         for s in ("", "optimizer.state.exp_avg.")]
for what, drop in (("all", None), ("some", "optimizer.state.exp_avg.decoder.layers.2.mlp.linear_fc2.weight")):
    head, at = {}, 0
    for name in sorted(names):
        if name != drop:
            head[name] = {"dtype": "F32", "shape": [2], "data_offsets": [at, at + 8]}
            at += 8
    text = json.dumps(head).encode()
    open(what + ".safetensors", "wb").write(struct.pack("<Q", len(text)) + text + bytes(range(at)))
EOF
    exits 0 s2s-ckpt convert -q --to torch_dist --layers stacked all.safetensors all
    exits 0 s2s-ckpt ls all
    says "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight	F32	[3, 2]"
    exits 0 s2s-ckpt convert -q --to torch_dist --layers numbered all back
    exits 0 s2s-ckpt diff all.safetensors back
    exits 1 s2s-ckpt convert -q --to torch_dist --layers stacked some.safetensors some
    says "optimizer.state.exp_avg.decoder.layers.0.mlp.linear_fc2.weight: layer 2 of 3 has none"
    # flattened state has no axis of layers
    exits 1 s2s-ckpt convert -q --to torch_dist --layers numbered "$DATA/mcore012_torch24_flattened_tp2" x
    says "optimizer.state.exp_avg.module.decoder.layers.self_attention.linear_qkv.weight: is stored flattened"
    [ ! -e x ]
}

# rewrite OLD NEW FILE..: in the pickles of torch.save files
rewrite() {
    python3 - "$@" <<'EOF'
import sys, zipfile
old, new = (a.encode() for a in sys.argv[1:3])
for path in sys.argv[3:]:
    with zipfile.ZipFile(path) as z:
        members = [(i.filename, z.read(i)) for i in z.infolist()]
    with zipfile.ZipFile(path, "w") as z:
        for name, data in members:
            if name.endswith("data.pkl"):
                at = data.index(b"expert_tensor_parallel_size")
                if new.isdigit():
                    at = data.index(b"K" + bytes([int(old)]), at)
                    data = data[:at + 1] + bytes([int(new)]) + data[at + 2:]
                else:
                    data = data[:at] + data[at:].replace(old, new, 1)
            z.writestr(name, data)
EOF
}

@test "experts that are cut otherwise than the other layers: what the folders tell, and what they cannot" {
    s2s-ckpt convert -q --to torch_dist --merge-ranks "$DATA/mp_rank_etp1" want
    exits 0 s2s-ckpt verify want
    # what the arguments do not say, the folders' names do: there are two of four
    cp -r "$DATA/mp_rank_etp1" silent
    chmod -R u+w silent
    rewrite expert_tensor_parallel_size expert_tensor_parallel_some silent/*/*/*.pt
    exits 0 s2s-ckpt convert -q --to torch_dist --merge-ranks silent got
    exits 0 s2s-ckpt diff want got
    # all parts of the experts: two folders are missing
    cp -r "$DATA/mp_rank_etp1" other
    chmod -R u+w other
    rewrite 1 2 other/*/*/*.pt
    exits 1 s2s-ckpt convert -q --to torch_dist --merge-ranks other x
    says "2 rank folders cannot make tp 2 x pp 1 x ep 2 (experts cut into 2): some are missing"
    # four writers of two folders
    rewrite 2 4 other/*/*/*.pt
    exits 1 s2s-ckpt convert -q --to torch_dist --merge-ranks other x
    says "expert_tensor_parallel_size 4 does not divide tensor_model_parallel_size 2: its ranks share folders, each of which keeps the part of the last one that wrote it"
    rewrite 4 3 other/*/*/*.pt
    exits 1 s2s-ckpt convert -q --to torch_dist --merge-ranks other x
    says "expert_tensor_parallel_size 3"
    # copies of an expert that differ
    rewrite 3 1 other/*/*/*.pt
    exits 0 s2s-ckpt convert -q --to torch_dist --merge-ranks other same
    exits 0 s2s-ckpt diff want same
    [ ! -e x ]
}

@test "a name for layers is noted where Megatron looks for it, and the common state is else as it was" {
    source=$DATA/mcore015_vlm_tp2
    s2s-ckpt convert -q --to torch_dist --layers numbered "$source" numbered
    s2s-ckpt convert -q --to torch_dist --layers auto numbered auto
    python3 - "$source"/iter_*/common.pt numbered/iter_*/common.pt auto/iter_*/common.pt <<'EOF'
import pickle, sys, zipfile

class Reader(pickle.Unpickler):
    def persistent_load(self, pid):
        return pid[2:]
    def find_class(self, module, name):
        return super().find_class(module, name) if module == "argparse" else "%s.%s" % (module, name)

def read(path):
    with zipfile.ZipFile(path) as z:
        assert z.testzip() is None
        name = next(n for n in z.namelist() if n.endswith("data.pkl"))
        return Reader(z.open(name)).load(), {n: z.read(n) for n in z.namelist() if n != name}

(a, rest), (b, rest_b), (c, rest_c) = map(read, sys.argv[1:])
assert rest == rest_b == rest_c
assert b.pop("content_metadata") == {**a["content_metadata"], "non_homogeneous_layers": True}
assert c == a
a.pop("content_metadata")
assert a == b
EOF
}

@test "rank folders that are not whole are refused" {
    cp -r "$DATA/mp_rank_dense" dense
    chmod -R u+w dense
    rm -r dense/iter_0000007/mp_rank_01_000
    for command in "verify dense" "convert --to torch_dist --merge-ranks dense out"; do
        # shellcheck disable=SC2086
        exits 1 s2s-ckpt $command
        says "3 rank folders cannot make tp 2 x pp 2 x ep 1: some are missing, mp_rank_01_000 first"
    done
    [ ! -e out ]
    # a stage of another model: its copy of the embedding differs
    rm -r dense/iter_0000007/mp_rank_*
    cp -r "$DATA"/mp_rank_dense/iter_0000007/* dense/iter_0000007/
    chmod -R u+w dense
    cp dense/iter_0000007/mp_rank_00_001/model_optim_rng.pt dense/iter_0000007/mp_rank_01_001/model_optim_rng.pt
    exits 1 s2s-ckpt convert --to torch_dist --merge-ranks dense out
    says "should be copies of one tensor and differ"
    [ ! -e out ]
    # the same names without their number of ranks
    rm -r dense/iter_0000007/mp_rank_*_001
    exits 1 s2s-ckpt convert --to hf dense out
    says "the saved arguments say pipeline_model_parallel_size 2, the rank folders are of 1"
}

@test "rank folders of models of before Megatron-Core are refused by name" {
    mkdir -p ranks/mp_rank_00 ranks/mp_rank_01
    PYTHONPATH=$ROOT/tests/tools python3 - <<'EOF'
from torch_files import Storage, save, tensor
for rank in range(2):
    save("ranks/mp_rank_%02d/model_optim_rng.pt" % rank, {"iteration": 7, "model": {"language_model": {"encoder": {
        "layers.0.self_attention.query_key_value.bias": tensor(Storage("0", [0, 0, 0]), [3])}}}})
EOF
    exits 0 s2s-ckpt verify ranks
    exits 1 s2s-ckpt convert --to torch_dist --merge-ranks ranks out
    says "before Megatron-Core"
    says "query_key_value.bias"
    [ ! -e out ]
}

@test "rank folders: the layer that a GPT's further prediction wraps gets torch_dist's name, a hybrid's stack keeps its own" {
    mkdir -p ranks/mp_rank_00
    PYTHONPATH=$ROOT/tests/tools python3 - <<'EOF'
from torch_files import Call, Storage, save, tensor
names = ["decoder.layers.0.input_layernorm.weight", "mtp.layers.0.eh_proj.weight", "mtp.layers.0.mtp_model_layer.input_layernorm.weight",
         "mtp.layers.0.mtp_model_layer.self_attention.linear_qkv.weight", "mtp.layers.1.transformer_layer.mlp.linear_fc2.weight",
         "mtp.layers.2.mtp_model_layer.layers.0.norm.weight"]
save("ranks/mp_rank_00/model_optim_rng.pt", {"args": Call("argparse", "Namespace", (), {"tensor_model_parallel_size": 1}), "iteration": 7,
     "model": {name: tensor(Storage(str(n), [0] * 4), [2, 2]) for n, name in enumerate(names)}})
EOF
    exits 0 s2s-ckpt convert -q --to torch_dist --merge-ranks --layers numbered ranks out
    alike "$(s2s-ckpt ls out | cut -f1)" "decoder.layers.0.input_layernorm.weight
mtp.layers.0.eh_proj.weight
mtp.layers.0.transformer_layer.self_attention.linear_qkv.layer_norm_weight
mtp.layers.0.transformer_layer.self_attention.linear_qkv.weight
mtp.layers.1.transformer_layer.mlp.linear_fc2.weight
mtp.layers.2.mtp_model_layer.layers.0.norm.weight"
}

@test "verify holds tensor-parallel ranks against each other, and tensors beside a model are said" {
    ranks() { # PYTHON that changes the state of the second rank
        rm -rf ranks && mkdir -p ranks/mp_rank_00 ranks/mp_rank_01
        PYTHONPATH=$ROOT/tests/tools python3 - "$1" <<'EOF'
import sys
from torch_files import Call, Storage, save, tensor
for rank in range(2):
    model = {"decoder.final_layernorm.weight": tensor(Storage("0", [1, 2, 3, 4]), [4]),
             "output_layer.weight": tensor(Storage("1", list(range(8))), [2, 4])}
    state = {"iteration": 7, "rng_state": [{"cuda_rng_state": tensor(Storage("2", [1]), [1])}], "model": model}
    if rank:
        exec(sys.argv[1])
    save("ranks/mp_rank_%02d/model_optim_rng.pt" % rank, state)
EOF
    }
    ranks pass
    exits 0 s2s-ckpt verify ranks
    says_not "beside the model"
    ranks 'del model["output_layer.weight"]'
    exits 1 s2s-ckpt verify ranks
    says "mp_rank_01/output_layer.weight is not there, but mp_rank_00/output_layer.weight is"
    ranks 'model["more"] = tensor(Storage("3", [1]), [1])'
    exits 1 s2s-ckpt verify ranks
    says "mp_rank_00/more is not there, but mp_rank_01/more is"
    ranks 'model["output_layer.weight"] = tensor(Storage("1", list(range(8))), [1, 4])'
    exits 1 s2s-ckpt verify ranks
    says "have other shapes or dtypes"
    ranks 'state["ema"] = {"w": tensor(Storage("3", [1]), [1])}'
    exits 0 s2s-ckpt verify ranks
    says "mp_rank_01/ema: tensors beside the model, left out"
    for how in "--to torch_dist" "--to torch_dist --merge-ranks"; do
        # shellcheck disable=SC2086
        s2s-ckpt convert -q --json --plan $how ranks out | jq -e '.left_out.objects_with_unread_tensors == 1'
        # shellcheck disable=SC2086
        exits 1 s2s-ckpt convert -q --plan --strict $how ranks out
        says "ranks: the tensors in 1 value of rank folders are not used (--strict)"
    done
    s2s-ckpt verify -q --json ranks | jq -e '.objects_with_unread_tensors == 1'
    ranks 'model.update(epoch=3, none=None, odd=Call("torch._utils", "_rebuild_sparse_tensor", (1,)))'
    for how in "--to hf" "--to torch_dist --merge-ranks"; do
        # shellcheck disable=SC2086
        s2s-ckpt convert -q --json --plan $how ranks out | jq -e '.left_out.objects_with_unread_tensors == 1 and .left_out.rank_values == 4 and
            .left_out.names == {"model.epoch": 1, "model.odd": 1, "rng_state": 2}'
        # shellcheck disable=SC2086
        exits 1 s2s-ckpt convert -q --plan --strict $how ranks out
        says "ranks: the tensors in 1 value of rank folders are not used (--strict)"
    done
    ranks pass
    rm -r ranks/mp_rank_00
    exits 1 s2s-ckpt verify ranks
    says "1 rank folder cannot make tp 2 x pp 1 x ep 1: some are missing, mp_rank_00 first"
    ranks 'state["state_dict"] = state.pop("model")'
    exits 1 s2s-ckpt ls ranks
    says "mp_rank_01/model_optim_rng.pt: a Megatron rank file without its model"
}

@test "rank folders of two steps, or of two models, are refused" {
    ranks() { # ITERATION HIDDEN-SIZE of the second
        rm -rf ranks && mkdir -p ranks/mp_rank_00 ranks/mp_rank_01
        PYTHONPATH=$ROOT/tests/tools python3 - "$@" <<'EOF'
import sys
from torch_files import Call, Storage, save, tensor
for rank, (step, hidden) in enumerate(((7, 4), map(int, sys.argv[1:]))):
    args = Call("argparse", "Namespace", (), {"tensor_model_parallel_size": 2, "hidden_size": hidden})
    save("ranks/mp_rank_%02d/model_optim_rng.pt" % rank, {"args": args, "iteration": step, "model": {
        "decoder.final_layernorm.weight": tensor(Storage("0", [1, 2, 3, 4]), [4])}})
EOF
    }
    ranks 7 4
    exits 0 s2s-ckpt verify ranks
    exits 0 s2s-ckpt convert -q --to torch_dist --merge-ranks ranks out
    rm -r out
    for other in "8 4:mp_rank_00 has iteration 7, mp_rank_01 has 8" "7 8:mp_rank_00 has hidden_size 4, mp_rank_01 has 8"; do
        # shellcheck disable=SC2086
        ranks ${other%%:*}
        exits 1 s2s-ckpt verify ranks
        says "${other#*:}"
        exits 1 s2s-ckpt convert -q --to torch_dist --merge-ranks ranks out
        says "${other#*:}"
        [ ! -e out ]
    done
}

@test "NeMo's weights without configuration, and Lightning's file of a run, with a model_config.yaml" {
    mkdir unpacked && tar -C unpacked -xf "$DATA/tiny.nemo"
    s2s-ckpt convert -q --to hf "$DATA/tiny.nemo" hf
    s2s-ckpt convert -q --to safetensors "$DATA/tiny.nemo" tiny.safetensors
    PYTHONPATH=$ROOT/tests/tools python3 - <<'EOF'
import json, struct
from torch_files import Storage, save, tensor
data = open("tiny.safetensors", "rb").read()
n = struct.unpack_from("<Q", data)[0]
state = {}
for key, (name, t) in enumerate(json.loads(data[8:8 + n]).items()):
    if name != "__metadata__":
        code, kind = ("f", "FloatStorage") if t["dtype"] == "F32" else ("q", "LongStorage")
        a, b = (8 + n + x for x in t["data_offsets"])
        state[name] = tensor(Storage(str(key), [x for x, in struct.iter_unpack("<" + code, data[a:b])], code, kind), t["shape"])
save("weights.pt", state)
save("run.ckpt", {"state_dict": state, "epoch": 3, "ema": {"w": tensor(Storage("a", [1]), [1])},
                  "optimizer_states": [{"state": {0: {"exp_avg": tensor(Storage("b", [1]), [1])}}}]})
EOF
    for file in weights.pt run.ckpt; do
        rm -rf out out.nemo
        exits 0 s2s-ckpt convert --to hf --config unpacked/model_config.yaml "$file" out
        cmp hf/config.json out/config.json
        exits 0 s2s-ckpt diff hf out
        exits 0 s2s-ckpt convert --to nemo --config unpacked/model_config.yaml "$file" out.nemo
        exits 0 s2s-ckpt diff "$DATA/tiny.nemo" out.nemo
    done
    # what else the run's file has is said
    exits 0 s2s-ckpt convert --to nemo --config unpacked/model_config.yaml run.ckpt out2.nemo
    says "in checkpoint but unused: ema.w"
    says "left out: 1 unused tensor, 1 tensor of optimizer"
    exits 1 s2s-ckpt convert --strict --to nemo --config unpacked/model_config.yaml run.ckpt out3.nemo
    # a part may be called by what wraps it
    exits 0 s2s-ckpt convert -q --to safetensors --part state_dict run.ckpt part.safetensors
    exits 0 s2s-ckpt diff tiny.safetensors part.safetensors
    echo "a: 1" >other.yaml
    exits 1 s2s-ckpt convert --to hf --config other.yaml run.ckpt out4
    says "other.yaml: not a model_config.yaml of NeMo:"
    # a fault of the file of --config is not said to be one of IN
    sed 's/n_layers: 2/n_layers: 3/' unpacked/model_config.yaml >lie.yaml
    echo "encoder: [" >broken.yaml
    exits 1 s2s-ckpt convert --to hf --config lie.yaml "$DATA/tiny.nemo" out4
    says "s2s-ckpt: lie.yaml: model_config.yaml: encoder.n_layers is 3"
    exits 1 s2s-ckpt convert --to nemo --config broken.yaml "$DATA/tiny.nemo" out4
    says "s2s-ckpt: broken.yaml: model_config.yaml:2"
    [ ! -e out3.nemo ]
    [ ! -e out4 ]
}

@test "a .nemo archive becomes a Parakeet folder, and its names come back" {
    exits 0 s2s-ckpt ls "$DATA/tiny.nemo"
    says "encoder.layers.1.self_attn.linear_pos.weight	F32	[16, 16]"
    exits 0 s2s-ckpt verify "$DATA/tiny.nemo"
    s2s-ckpt convert -q --strict --to hf "$DATA/tiny.nemo" hf
    python3 "$COMPARE" s2s-ckpt hf "$DATA/tiny.nemo.hf.json"
    grep -q '"model_type": "parakeet_ctc"' hf/config.json
    grep -q '"hop_length": 160' hf/preprocessor_config.json
    # the encoder alone is what s2s-encode reads
    s2s-ckpt convert -q --map fastconformer_encoder --to hf "$DATA/tiny.nemo" encoder
    s2s-ckpt ls encoder | grep -q '^layers.0.conv.norm.running_var'
    python3 -c '
import struct, wave
with wave.open("tone.wav", "wb") as w:
    w.setparams((1, 2, 16000, 0, "NONE", ""))
    w.writeframes(b"".join(struct.pack("<h", (i * 37) % 2000 - 1000) for i in range(16000)))'
    s2s-encode -q --features mel --config encoder/preprocessor_config.json tone.wav -o mel.s2s
    s2s-encode -q --encoder encoder mel.s2s -o embeds.s2s
    s2s-shard verify embeds.s2s
    # and back to NeMo's names
    s2s-ckpt convert -q --to torch_dist --map fastconformer_ctc hf dist
    s2s-ckpt convert -q --to hf dist again
    exits 0 s2s-ckpt diff hf again
}

# tiny.nemo with its model_config.yaml through sed
with_yaml() { # NAME SED..
    local name=$1
    shift
    if [ ! -e good.yaml ]; then
        mkdir -p unpacked && tar -C unpacked -xf "$DATA/tiny.nemo"
        cp unpacked/model_config.yaml good.yaml
    fi
    sed "$@" good.yaml >unpacked/model_config.yaml
    tar -C unpacked -cf "$name" .
}

@test "what model_config.yaml leaves out is in the weights, or what NeMo takes" {
    s2s-ckpt convert -q --to hf "$DATA/tiny.nemo" want
    with_yaml less.nemo -E '/^  (n_layers|n_heads|subsampling|subsampling_factor|subsampling_conv_channels|ff_expansion_factor|conv_kernel_size|use_bias|dropout|stochastic_depth_drop_prob|pos_emb_max_len):/d'
    exits 0 s2s-ckpt convert -q --to hf less.nemo got
    cmp want/config.json got/config.json
    with_yaml silent.nemo -E '/^  (xscaling|dropout.*):/d; s/d_model: 16/d_model: 16\n  use_bias: null/'
    exits 0 s2s-ckpt convert -q --to hf silent.nemo silent
    python3 -c '
import json
got = json.load(open("silent/config.json"))["encoder_config"]
assert got["scale_input"] is True and got["attention_bias"] is got["convolution_bias"] is True, got
assert (got["dropout"], got["dropout_positions"], got["attention_dropout"], got["layerdrop"]) == (0.1, 0.1, 0, 0), got'
}

@test "a .nemo without configuration is said to give none; tokenizers of several languages keep their names" {
    mkdir folder && tar -C folder -xf "$DATA/tiny.nemo"
    echo one >folder/11111111111111111111111111111111_tokenizer.model
    exits 0 s2s-ckpt convert -q --to hf folder single
    [ "$(cat single/tokenizer.model)" = one ]
    echo two >folder/22222222222222222222222222222222_tokenizer.model
    exits 0 s2s-ckpt convert -q --to hf folder both
    [ "$(cat both/2*_tokenizer.model)" = two ]
    [ "$(cat both/1*_tokenizer.model)" = one ]
    [ ! -e both/tokenizer.model ]
    # what another format has no place for is said
    touch folder/words.bin
    tar -C folder -cf words.nemo .
    exits 0 s2s-ckpt convert --to hf words.nemo out
    says "words.nemo: files beside the weights are left out: words.bin"
    exits 0 s2s-ckpt convert --to torch_dist words.nemo dist
    says "left out: 11111111111111111111111111111111_tokenizer.model, 22222222222222222222222222222222_tokenizer.model, words.bin"
    rm -r out folder/model_config.yaml
    exits 0 s2s-ckpt convert --to hf folder out
    says "config.json is not written"
    [ ! -e out/config.json ]
}

@test "a SentencePiece model becomes the tokenizer that transformers opens" {
    mkdir folder && tar -C folder -xf "$DATA/tiny.nemo"
    tokenizer() { # TOKENIZER.MODEL PIECES CHARSMAP
        python3 - "$@" <<'EOF'
import ast, struct, sys
def field(number, data):
    return bytes([number << 3 & 127 | 128 * (number > 15) | 2]) + (b"\x02" if number > 15 else b"") + bytes([len(data)]) + data
out = b""
for text, score, kind in ast.literal_eval(sys.argv[2]):
    out += field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]))
open(sys.argv[1], "wb").write(out + field(2, field(45, b"[?]")) + field(3, field(2, sys.argv[3].encode())))
EOF
    }
    # ab of the best score, then abc, cut in two ways: the longer left part first
    pieces='("[?]", 0, 2), ("a", -9, 1), ("b", -9, 1), ("c", -9, 1), ("ab", -1, 1), ("bc", -3, 1), ("abc", -2, 1), ("<s>", 0, 3), ("<u>", 0, 4)'
    tokenizer folder/tokenizer.model "[$pieces, ('d', -9, 1)]" word
    exits 0 s2s-ckpt convert --strict --to hf folder hf
    python3 - <<'EOF'
import base64, json
made = json.load(open("hf/tokenizer.json"))
assert made["model"]["merges"] == [["a", "b"], ["ab", "c"], ["a", "bc"], ["b", "c"]], made["model"]["merges"]
assert made["model"]["vocab"]["<u>"] == 8 and made["model"]["unk_token"] == "[?]"
assert [(t["id"], t["content"], t["special"]) for t in made["added_tokens"]] == [
    (0, "[?]", True), (7, "<s>", True), (8, "<u>", False), (10, "<pad>", True)], made["added_tokens"]
assert base64.b64decode(made["normalizer"]["normalizers"][0]["precompiled_charsmap"], validate=True) == b"word"
assert json.load(open("hf/tokenizer_config.json"))["pad_token"] == "<pad>"
processor, features = json.load(open("hf/processor_config.json")), json.load(open("hf/preprocessor_config.json"))
assert processor["decoder_type"] == "ctc" and processor["feature_extractor"] == features
EOF
    for map in w wo wor word+; do
        tokenizer folder/tokenizer.model "[$pieces, ('d', -9, 1)]" $map
        rm -r hf && s2s-ckpt convert -q --to hf folder hf
        python3 -c "
import base64, json
made = json.load(open('hf/tokenizer.json'))['normalizer']['normalizers'][0]['precompiled_charsmap']
assert made == base64.b64encode(b'$map').decode(), made"
    done
    # of another model, or none: the weights are of use without it
    for pieces in "$pieces" "$pieces, ('d', -9, 1), ('e', -9, 1)" "$pieces, ('a', -9, 1)" "$pieces, ('<blank>', 0, 1)"; do
        tokenizer folder/tokenizer.model "[$pieces]" x
        rm -r hf
        exits 0 s2s-ckpt convert --to hf folder hf
        says "tokenizer.json is not written: tokenizer.model: "
        [ ! -e hf/tokenizer.json ]
        [ -e hf/tokenizer.model ]
    done
}

@test "the mean of .nemo archives is a .nemo" {
    s2s-ckpt convert -q --to safetensors "$DATA/tiny.nemo" one.safetensors
    exits 0 s2s-ckpt average -q "$DATA/tiny.nemo" "$DATA/tiny.nemo" mean.nemo
    exits 0 s2s-ckpt diff "$DATA/tiny.nemo" mean.nemo
    exits 0 s2s-ckpt average -q --to safetensors "$DATA/tiny.nemo" mean.nemo mean.safetensors
    cmp one.safetensors mean.safetensors
    tar -tf mean.nemo | grep -q model_config.yaml
}

@test "features are NeMo's: sizes cut off, its own where it is silent, none where Parakeet has no such" {
    feature() { # SED KEY VALUE
        with_yaml one.nemo "$1"
        rm -rf out && s2s-ckpt convert -q --to hf one.nemo out
        grep -Eq "^ *\"$2\": $3,?\$" out/preprocessor_config.json || { echo "$1: $(grep "$2" out/preprocessor_config.json)" >&2; return 1; }
    }
    feature 's/sample_rate: 16000/sample_rate: 22050/' hop_length 220
    feature 's/sample_rate: 16000/sample_rate: 22050/' win_length 551
    feature '/window_size/d' win_length 320
    feature 's/window_size: 0.025/window_size: null\n  n_window_size: 200/; /n_fft/d' n_fft 256
    feature 's/dither.*/preemph: null/' preemphasis 0.0
    feature 's/dither.*/preemph: 0.9/' preemphasis 0.9
    feature 's/dither.*/highfreq: 8000\n  lowfreq: 0\n  log: true\n  mag_power: 2.0\n  log_zero_guard_value: 5.960464477539063e-08/' feature_size 16
    for odd in 's/normalize: per_feature/normalize: NA/' 's/normalize: per_feature/normalize: null/' 's/window: hann/window: hamming/' \
        's/window: hann/window: null/' 's/dither.*/mel_norm: null/' 's/dither.*/log: null/' 's/n_fft: 512/n_fft: ${nowhere}/' \
        's/dither.*/highfreq: 7600/' 's/dither.*/lowfreq: 20/' 's/dither.*/mag_power: 1.0/' 's/dither.*/log: false/' \
        's/AudioToMelSpectrogramPreprocessor/AudioToMFCCPreprocessor/'; do
        with_yaml odd.nemo "$odd"
        rm -rf out
        exits 0 s2s-ckpt convert --to hf odd.nemo out
        says "preprocessor_config.json is not written" || { echo "$odd" >&2; return 1; }
        [ ! -e out/preprocessor_config.json ]
        [ -e out/config.json ]
    done
}

# tdt.safetensors, a head of 10 labels and two durations on the encoder of tiny.nemo, and its model_config.yaml without the head
tdt_weights() {
    s2s-ckpt convert -q --to safetensors "$DATA/tiny.nemo" tiny.safetensors
    tar -xf "$DATA/tiny.nemo" ./model_config.yaml
    python3 - <<'EOF'
import json, math, struct
data = open("tiny.safetensors", "rb").read()
n = struct.unpack_from("<Q", data)[0]
header, data = json.loads(data[8:8 + n]), data[8 + n:]
lstm = "decoder.prediction.dec_rnn.lstm."
head = {lstm + "weight_ih_l0": [12, 3], lstm + "weight_hh_l0": [12, 3], lstm + "bias_ih_l0": [12], lstm + "bias_hh_l0": [12], "joint.enc.weight": [3, 16],
        "joint.enc.bias": [3], "joint.pred.weight": [3, 3], "joint.pred.bias": [3], "joint.joint_net.2.weight": [13, 3], "joint.joint_net.2.bias": [13],
        "decoder.prediction.embed.weight": [11, 3]}
for name, shape in head.items():
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * math.prod(shape)]}
    data += bytes(4 * math.prod(shape))
out, header = b"", {k: v for k, v in header.items() if k != "__metadata__" and "decoder_layers" not in k}
for name, t in header.items():
    begin, end = t["data_offsets"]
    out, t["data_offsets"] = out + data[begin:end], [len(out), len(out) + end - begin]
text = json.dumps(header).encode()
open("tdt.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + out)
EOF
}

@test "references of a model_config.yaml: a transducer's settings are looked up; what is not found is refused" {
    for key in xscaling feat_in d_model; do
        with_yaml lost.nemo "s/ $key: .*/ $key: \${..nowhere}/"
        exits 1 s2s-ckpt convert --to hf lost.nemo out
        says "model_config.yaml: encoder.$key is \${..nowhere}, which is not resolved"
        [ ! -e out ]
    done
    tdt_weights
    cat >>model_config.yaml <<'EOF'
defaults: {act: tanh, most: 3, long: 4, durations: [0, "${model.defaults.long}"]}
joint: {jointnet: {activation: "${model.defaults.act}"}}
decoding: {durations: "${model.defaults.durations}", greedy: {max_symbols: "${model.defaults.most}"}}
EOF
    heads() { # SED JQ
        sed "$1" model_config.yaml >given.yaml
        rm -rf out
        s2s-ckpt convert -q --strict --to hf --config given.yaml tdt.safetensors out
        jq -e "$2" out/config.json >jq.out
    }
    heads '' '.hidden_act == "tanh" and .max_symbols_per_step == 3 and .durations == [0, 4]'
    heads 's/max_symbols:/max_symbols_per_step:/' '.max_symbols_per_step == 3'
    for lost in most:decoding.greedy.max_symbols act:joint.jointnet.activation; do
        sed "s/\\(model.defaults.\\)${lost%%:*}/\\1none/" model_config.yaml >given.yaml
        exits 1 s2s-ckpt convert -q --to hf --config given.yaml tdt.safetensors out2
        says "model_config.yaml: ${lost#*:} is \${model.defaults.none}, which is not resolved"
    done
    sed 's/^decoder:/decoder:\n  blank_as_pad: ${defaults.no}/; s/defaults: {/defaults: {no: false, /' model_config.yaml >given.yaml
    exits 1 s2s-ckpt convert -q --to hf --config given.yaml tdt.safetensors out2
    says "decoder.blank_as_pad is false"
    [ ! -e out2 ]
}

@test "long: a transducer's configuration: what only one of NeMo and transformers has is kept, said or refused" {
    tdt_weights
    echo 'joint: {jointnet: {activation: tanh}}' >>model_config.yaml
    to_hf() { # the section decoding and those below it
        { cat model_config.yaml; printf 'decoding: %b\n' "$1"; } >given.yaml
        rm -rf out
        run s2s-ckpt convert --to hf --config given.yaml tdt.safetensors out
    }
    for greedy in '' ', greedy: {max_symbols: null}' ', greedy: {max_symbols: 0, max_symbols_per_step: null}' ', greedy: {loop_labels: true}'; do
        to_hf "{durations: [0, 4]$greedy}"
        says "model_config.yaml: decoding.greedy.max_symbols gives no limit of symbols in a frame; transformers needs one: in config.json max_symbols_per_step is 10"
        jq -e '.max_symbols_per_step == 10' out/config.json
    done
    for odd in '"5"' -1 2.5; do
        to_hf "{durations: [0, 4], greedy: {max_symbols: $odd}}"
        [ "$status" = 1 ]
        says "model_config.yaml: decoding.greedy.max_symbols is not a number of symbols"
        [ ! -e out ]
    done
    # NeMo takes the first that is not 0, and writes the loss's durations over those of decoding
    to_hf '{durations: [0, 4], greedy: {max_symbols: 0, max_symbols_per_step: 7}}\nloss: {loss_name: tdt, tdt_kwargs: {durations: [0, 2]}}'
    says_not max_symbols
    jq -e '.max_symbols_per_step == 7 and .durations == [0, 2] and .pad_token_id == 10' out/config.json
    to_hf '{durations: [0, 4]}\njoint: {_target_: nemo.collections.asr.modules.HATJoint, jointnet: {activation: relu}}'
    [ "$status" = 1 ]
    says "joint._target_ is nemo.collections.asr.modules.HATJoint; Parakeet has only RNNTJoint"
    for blanks in '{durations: [0, 4], big_blank_durations: [2, 4]}' '{durations: [0, 4]}\nloss: {loss_name: multiblank_rnnt}'; do
        to_hf "$blanks"
        [ "$status" = 1 ]
        says "model_config.yaml: a multi-blank transducer"
        [ ! -e out ]
    done
    to_hf '{durations: [0, 4], big_blank_durations: [], greedy: {max_symbols: 5}}\nnames: [a, <pad>]\nlabels: ${names}'
    [ "$status" = 0 ]
    jq -e '.pad_token_id == 1' out/config.json
    to_hf '{durations: [0, 4], greedy: {max_symbols: 5}}\nrnnt_reduction: mean\nloss: {tdt_kwargs: {sigma: 0.05}}\nlabels: [a, <pad>]'
    # the padding, which NeMo has not, comes back
    for pad in 7 0; do
        rm -rf hf back
        cp -r out hf && jq ".pad_token_id = $pad" out/config.json >hf/config.json
        s2s-ckpt convert -q --to nemo --no-tokenizer hf pad.nemo
        tar -xOf pad.nemo ./model_config.yaml | grep -q '^rnnt_reduction: mean$'
        s2s-ckpt convert -q --strict --to hf pad.nemo back
        alike "$(jq -S . hf/config.json)" "$(jq -S . back/config.json)"
        rm pad.nemo
    done
    jq '.max_symbols_per_step = "5"' out/config.json >hf/config.json
    exits 1 s2s-ckpt convert --to nemo --no-tokenizer hf pad.nemo
    says "config.json: max_symbols_per_step is not a whole number above 0"
    jq 'del(.blank_token_id)' out/config.json >hf/config.json
    exits 1 s2s-ckpt convert --to nemo --no-tokenizer hf pad.nemo
    says "config.json: the blank is token 8192; NeMo's is the last class, 10"
    [ ! -e pad.nemo ]
}

@test "what only training uses and both sides have crosses and comes back; what NeMo has not is named" {
    with_yaml in.nemo '$a ctc_reduction: mean'
    exits 0 s2s-ckpt convert --to hf in.nemo hf
    jq -e 'has("ctc_loss_reduction") | not' hf/config.json
    with_yaml in.nemo '$a ctc_reduction: sum'
    exits 0 s2s-ckpt convert --to hf in.nemo out
    jq -e '.ctc_loss_reduction == "sum"' out/config.json
    # and the other way
    jq '.ctc_loss_reduction = "none" | .ctc_zero_infinity = false | .encoder_config.activation_dropout = 0.25 | .encoder_config.layerdrop = 0.5' hf/config.json >config.json
    exits 0 s2s-ckpt convert --to nemo --no-tokenizer --config config.json hf out.nemo
    says "config.json: ctc_zero_infinity is false; NeMo's CTC loss has true"
    says "config.json: activation_dropout is 0.25"
    says "config.json: layerdrop is 0.5; NeMo's stochastic depth"
    tar -xOf out.nemo ./model_config.yaml >made.yaml
    grep -q '^ctc_reduction: none$' made.yaml
    grep -q 'stochastic_depth_mode: uniform$' made.yaml
    s2s-ckpt convert -q --to hf out.nemo back
    alike "$(jq -S . config.json)" "$(jq -S . back/config.json)"
    jq '.ctc_loss_reduction = "mean_batch"' hf/config.json >config.json
    exits 1 s2s-ckpt convert --to nemo --no-tokenizer --config config.json hf no.nemo
    says "config.json: ctc_loss_reduction is not mean, sum or none"
}

@test "a model_config.yaml with values of another type, keys that are there twice, a preprocessor that is a reference" {
    for odd in 's/xscaling: false/xscaling: "no"/' 's/dropout: 0.1/dropout: "0.2"/' 's/pos_emb_max_len: 5000/pos_emb_max_len: 6e3/' \
        's/causal_downsampling: false/causal_downsampling: 1/' 's/att_context_size: .*/att_context_size: "[70, 13]"/'; do
        with_yaml odd.nemo "$odd"
        exits 1 s2s-ckpt convert --to hf odd.nemo out
        says "model_config.yaml: encoder.$(echo "$odd" | sed 's,s/\([a-z_]*\):.*,\1,') is "
        [ ! -e out ]
    done
    for odd in 's/sample_rate: 16000/sample_rate: "22050"/' 's/window_size: 0.025/window_size: "0.02"/' 's/features: 16/features: "16"/' \
        's/n_fft: 512/n_fft: 1024.0/' 's/window_stride: 0.01/window_stride: 0.00001/' 's/window_size: 0.025/window_size: null/' 's/pad_to: 0/preemph: "0.5"/' 's/pad_to: 0/use_torchaudio: true/' 's/features: 16/features: 24/'; do
        with_yaml odd.nemo "$odd"
        rm -rf out
        exits 0 s2s-ckpt convert --to hf odd.nemo out
        says "preprocessor_config.json is not written: this model's preprocessor." || { echo "$odd" >&2; return 1; }
        [ ! -e out/preprocessor_config.json ]
    done
    with_yaml odd.nemo 's/^preprocessor:/other:/'
    rm -rf out
    exits 0 s2s-ckpt convert --to hf odd.nemo out
    says "preprocessor_config.json is not written: model_config.yaml has no section \`preprocessor\`"
    # its buffers are weights of NeMo's
    exits 1 s2s-ckpt convert --to nemo --config unpacked/model_config.yaml out no.nemo
    says "model_config.yaml: has no section \`preprocessor\`"
    [ ! -e no.nemo ]
    with_yaml odd.nemo 's/^preprocessor:/preprocessor: ${other}\nother:/; s/xscaling: false/xscaling: 0\n  xscaling: 1/'
    rm -rf out
    exits 0 s2s-ckpt convert --to hf odd.nemo out
    says "model_config.yaml:30: xscaling is there twice, first in line 29; the later one counts"
    jq -e '.feature_size == 16' out/preprocessor_config.json
    jq -e '.encoder_config.scale_input' out/config.json
}

@test "a model_config.yaml that says otherwise than the weights is refused" {
    for lie in 's/n_heads: 2/n_heads: 4/' 's/n_layers: 2/n_layers: 3/' 's/conv_kernel_size: 5/conv_kernel_size: 9/' \
        's/subsampling_factor: 8/subsampling_factor: 4/' 's/use_bias: true/use_bias: false/' 's/feat_in: 16/feat_in: 80/' 's/ff_expansion_factor: 2/ff_expansion_factor: 4/'; do
        with_yaml lie.nemo "$lie"
        exits 1 s2s-ckpt convert -q --to hf lie.nemo out
        says "model_config.yaml: encoder.$(echo "$lie" | sed 's,s/\([a-z_]*\):.*,\1,')"
        [ ! -e out ]
    done
}

@test "a .nemo is read compressed, unpacked, nested, and with distributed weights inside" {
    s2s-ckpt ls --sha256 "$DATA/tiny.nemo" >want
    same_list() {
        exits 0 s2s-ckpt ls --sha256 "$1"
        [ "$output" = "$(cat want)" ]
    }
    gzip -c "$DATA/tiny.nemo" >gzip.nemo
    same_list gzip.nemo
    mkdir -p folder/model
    tar -C folder/model -xf "$DATA/tiny.nemo"
    same_list folder/model
    tar -C folder --format=pax -cf nested.nemo model
    same_list nested.nemo
    tar --format=gnu -czf dots.nemo ./folder
    same_list dots.nemo
    s2s-ckpt convert -q --to hf gzip.nemo hf
    s2s-ckpt convert -q --to hf "$DATA/tiny.nemo" plain
    cmp hf/model.safetensors plain/model.safetensors
    # a language model with a distributed checkpoint in its archive
    s2s-ckpt ls --sha256 "$DATA/mcore012_torch24_flattened_tp2" >want
    mkdir llm && cp -r "$DATA"/mcore012_torch24_flattened_tp2/iter_* llm/model_weights
    echo "name: tiny" >llm/model_config.yaml
    same_list llm
    tar -C llm -cf llm.nemo .
    same_list llm.nemo
    tar -C llm -czf llm.tgz .
    same_list llm.tgz
    exits 0 s2s-ckpt verify llm.tgz
    # one of its files is missing, or the format is zarr
    tar -C llm --exclude __0_0.distcp -cf less.nemo .
    exits 1 s2s-ckpt ls less.nemo
    says "model_weights/__0_0.distcp is missing"
    echo '{"sharded_backend": "zarr"}' >llm/model_weights/metadata.json
    rm llm/model_weights/.metadata
    tar -C llm -cf zarr.nemo .
    exits 1 s2s-ckpt ls zarr.nemo
    says "zarr checkpoint"
}

@test "convert --to nemo: Parakeet becomes an archive and comes back bit for bit" {
    s2s-ckpt convert -q --to hf "$DATA/tiny.nemo" hf
    # a tokenizer is needed, or said not to be
    exits 1 s2s-ckpt convert --to nemo hf out.nemo
    says "has no tokenizer.model"
    says "--no-tokenizer"
    [ ! -e out.nemo ]
    python3 - <<'PY'
# ten pieces as SentencePiece keeps them
import struct
def piece(text, score, kind):
    body = b"\x0a" + bytes([len(text.encode())]) + text.encode() + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
    return b"\x0a" + bytes([len(body)]) + body
pieces = [piece("<unk>", 0, 2)] + [piece(t, -i, 1) for i, t in enumerate(["\u2581a", "b", "\u2581", "c", "\u2581dd", "e", "f", "g", "h"])]
open("ten.model", "wb").write(b"".join(pieces))
open("nine.model", "wb").write(b"".join(pieces[:9]))
open("bad.model", "wb").write(b"".join(pieces)[:-3])
PY
    exits 1 s2s-ckpt convert --to nemo --tokenizer nine.model hf out.nemo
    says "the tokenizer has 9 pieces, the model 10 classes"
    exits 1 s2s-ckpt convert --to nemo --tokenizer bad.model hf out.nemo
    says "bad.model: no SentencePiece model"
    # what is read beside IN is no output
    cp hf/config.json . && mkdir folder && cp hf/config.json folder
    for given in "--tokenizer ten.model" "--tokenizer ten.model --config config.json" "--tokenizer ten.model --config folder"; do
        local file=${given##* }
        [ "$file" != folder ] || file=folder/config.json
        cp "$file" before
        exits 2 s2s-ckpt convert --to nemo $given hf "$file"
        says "$file: is part of the input: choose another OUT"
        same "$file" before
    done
    tar -xOf "$DATA/tiny.nemo" ./model_config.yaml >given.yaml
    exits 2 s2s-ckpt convert --to nemo --config given.yaml "$DATA/tiny.nemo" given.yaml
    exits 0 s2s-ckpt convert --strict --to nemo --tokenizer ten.model hf out.nemo
    exits 0 s2s-ckpt verify out.nemo
    tar -tf out.nemo >members
    printf './%s\n' model_config.yaml tokenizer.model tokenizer.vocab vocab.txt model_weights.ckpt >want
    diff want members
    tar -xf out.nemo ./vocab.txt ./tokenizer.model ./model_config.yaml
    cmp tokenizer.model ten.model
    [ "$(head -n 3 vocab.txt | tr '\n' ' ')" = "a ##b ▁ " ]
    grep -q "EncDecCTCModelBPE" model_config.yaml
    # the same bytes again, and the same weights back
    s2s-ckpt convert -q --to nemo --tokenizer ten.model hf again.nemo
    cmp out.nemo again.nemo
    s2s-ckpt convert -q --strict --to hf out.nemo back
    cmp hf/model.safetensors back/model.safetensors
    cmp hf/config.json back/config.json
    alike "$(jq -S . hf/preprocessor_config.json)" "$(jq -S 'del(.padding_value)' back/preprocessor_config.json)"
    # its tokenizer came along, so no option is needed now
    s2s-ckpt convert -q --to nemo back third.nemo
    cmp out.nemo third.nemo
    # labels alone
    exits 0 s2s-ckpt convert --to nemo --no-tokenizer hf chars.nemo
    says "the labels are <0> to <9>"
    says_not activation_dropout
    # what NeMo has in one, and off where it has another default
    cp -r hf other
    jq ".preemphasis = null" back/preprocessor_config.json >other/preprocessor_config.json
    jq ".encoder_config.activation_dropout = 0.25" hf/config.json >other/config.json
    exits 0 s2s-ckpt convert --to nemo --no-tokenizer other other.nemo
    says "config.json: activation_dropout is 0.25; NeMo has one dropout, which is 0.1"
    s2s-ckpt convert -q --to hf other.nemo off
    jq -e ".preemphasis == 0" off/preprocessor_config.json
    tar -xOf chars.nemo ./model_config.yaml | grep -q "ctc_models.EncDecCTCModel$"
    exits 0 s2s-ckpt convert --plan --to nemo --no-tokenizer hf none.nemo
    [ ! -e none.nemo ]
    # by the rate the lengths of windows become seconds
    for rate in 0 -16000 5000000000; do
        jq ".sampling_rate = $rate" back/preprocessor_config.json >hf/preprocessor_config.json
        exits 1 s2s-ckpt convert --to nemo --no-tokenizer hf none.nemo
        says "the feature extractor's sampling_rate is not a valid number"
        [ ! -e none.nemo ]
    done
}

@test "convert --to nemo: a .nemo keeps its configuration and files; a configuration can be given" {
    mkdir t && tar -C t -xf "$DATA/tiny.nemo"
    echo piece >t/0123456789abcdef0123456789abcdef_tokenizer.model
    tar -C t -czf in.nemo .
    exits 0 s2s-ckpt convert --to nemo --dtype bf16 in.nemo out.nemo
    exits 0 s2s-ckpt ls out.nemo
    says "encoder.pre_encode.out.bias	BF16"
    says "preprocessor.featurizer.window"
    mkdir o && tar -C o -xf out.nemo
    cmp o/model_config.yaml t/model_config.yaml
    cmp o/0123456789abcdef0123456789abcdef_tokenizer.model t/0123456789abcdef0123456789abcdef_tokenizer.model
    exits 2 s2s-ckpt convert --to nemo --no-tokenizer in.nemo no.nemo
    says "whose configuration says the tokenizer: it is kept"
    s2s-ckpt convert -q --to nemo in.nemo same.nemo
    exits 0 s2s-ckpt diff "$DATA/tiny.nemo" same.nemo
    exits 0 s2s-ckpt average --to nemo same.nemo same.nemo mean.nemo
    exits 0 s2s-ckpt diff mean.nemo same.nemo
    # an encoder alone is no model until somebody says which
    s2s-ckpt convert -q --map fastconformer_encoder --to hf in.nemo encoder
    exits 1 s2s-ckpt convert --to nemo encoder no.nemo
    says "an encoder without a head"
    exits 0 s2s-ckpt convert --to nemo --config t/model_config.yaml encoder yes.nemo
    exits 0 s2s-ckpt ls yes.nemo
    says "encoder.layers.1.norm_out.weight"
    says "preprocessor.featurizer.fb	F32	[1, 16, 257]"
    # files that the configuration names must be there
    { cat t/model_config.yaml; echo "tokenizer: {model_path: 'nemo:absent.model'}"; } >named.yaml
    exits 1 s2s-ckpt convert --to nemo --config named.yaml encoder no.nemo
    says "names nemo:absent.model, which would not be in the archive"
    # what a ConformerEncoder cannot be
    s2s-ckpt convert -q --to hf in.nemo hf && cp hf/config.json good.json
    refused() {
        sed "$1" good.json >hf/config.json
        exits 1 s2s-ckpt convert --to nemo --no-tokenizer hf no.nemo
        says "$2"
    }
    refused 's/"pad_token_id": 10/"pad_token_id": 0/' "NeMo's is the last class, 10"
    refused 's/"convolution_bias": true/"convolution_bias": false/' "one use_bias"
    refused 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' "num_hidden_layers says"
    refused 's/"num_attention_heads": 2/"num_attention_heads": 4/' "num_attention_heads says 4, encoder.layers.0.self_attn.pos_bias_u has 2 rows"
    refused 's/"conv_kernel_size": 5/"conv_kernel_size": 9/' "conv_kernel_size says 9"
    refused 's/"subsampling_factor": 8/"subsampling_factor": 4/' "subsampling_factor says 4, the weights have 8"
    refused 's/"num_mel_bins": 16/"num_mel_bins": 80/' "num_mel_bins"
    refused 's/\("[a-z]*_bias"\): true/\1: false/' "attention_bias is false, the weights have biases"
    refused 's/"intermediate_size": 32/"intermediate_size": 33/' "a multiple of hidden_size"
    [ ! -e no.nemo ]
    exits 2 s2s-ckpt convert --to hf --tokenizer x in.nemo out
    says "--tokenizer and --no-tokenizer go with --to nemo"
    exits 1 s2s-ckpt convert --to nemo "$DATA/hf_sharded" no.nemo
    says "these names are neither's"
}

@test "encoders that Parakeet has not are refused by name" {
    mkdir t && tar -C t -xf "$DATA/tiny.nemo" && cp t/model_config.yaml good.yaml
    refused() {
        sed "$1" good.yaml >t/model_config.yaml
        tar -C t -cf bad.nemo .
        exits 1 s2s-ckpt convert --to hf bad.nemo out
        says "$2"
        [ ! -e out ]
    }
    refused 's/subsampling: dw_striding/subsampling: striding/' "encoder.subsampling is striding"
    refused 's/conv_norm_type: batch_norm/conv_norm_type: layer_norm/' "encoder.conv_norm_type is layer_norm"
    refused 's/self_attention_model: rel_pos/self_attention_model: rel_pos_local_attn/' "rel_pos_local_attn"
    refused 's/att_context_size: .*/att_context_size: [[70, 13], [70, 0]]/' "att_context_size is limited"
    refused 's/conv_kernel_size: 5/conv_kernel_size: 5\n  conv_context_size: causal/' "conv_context_size is causal"
    refused 's/modules.ConformerEncoder/modules.ConformerMultiLayerFeatureExtractor/' "Parakeet has only ConformerEncoder"
    # three stages make two of 15 bins, and transformers counts one
    refused 's/feat_in: 16/feat_in: 15/' "encoder.feat_in is 15, of which convolutions make 2; transformers' Parakeet rounds down, to 1"
    # references are followed
    sed 's/feat_in: 16$/feat_in: ${model.preprocessor.features}/' good.yaml >t/model_config.yaml
    tar -C t -cf ok.nemo .
    s2s-ckpt convert -q --to hf ok.nemo out
    grep -q '"num_mel_bins": 16' out/config.json
}

@test "weights of each rank in a .nemo are put together" {
    mkdir -p t/mp_rank_00 t/mp_rank_01
    python3 - <<'PY'
import io, pickle, struct, zipfile
# a torch.save zip of {name: float tensor [rows, 2]}, written without torch
class Global:
    def __init__(self, name): self.name = name
def save(path, tensors):
    out = [b"\x80\x02}("]
    for k, (name, rows) in enumerate(tensors.items()):
        text = lambda s: b"X" + struct.pack("<I", len(s)) + s.encode()
        numel = len(rows)
        out += [text(name), b"ctorch._utils\n_rebuild_tensor_v2\n((", text("storage"), b"ctorch\nFloatStorage\n", text(str(k)), text("cpu"),
                b"J" + struct.pack("<i", numel), b"tQK\x00", b"K" + bytes([numel // 2]), b"K\x02\x86", b"K\x02K\x01\x86", b"\x89",
                b"ccollections\nOrderedDict\n)RtR"]
    out.append(b"u.")
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", b"".join(out))
        for k, rows in enumerate(tensors.values()):
            z.writestr("archive/data/%d" % k, struct.pack("<%df" % len(rows), *rows))
        z.writestr("archive/version", "3\n")
for r in (0, 1):
    save("t/mp_rank_0%d/model_weights.ckpt" % r, {
        "model.embedding.word_embeddings.weight": [r * 4 + i for i in range(4)],
        "model.decoder.layers.0.mlp.linear_fc2.weight": [10 * r + i for i in range(4)],
        "model.decoder.final_layernorm.weight": [1, 2]})
PY
    echo "tensor_model_parallel_size: 2" >t/model_config.yaml
    tar -C t -cf tp2.nemo .
    exits 0 s2s-ckpt ls tp2.nemo
    says "mp_rank_01/model.embedding.word_embeddings.weight"
    s2s-ckpt convert -q --merge-ranks --to safetensors tp2.nemo whole.safetensors
    exits 0 s2s-ckpt ls whole.safetensors
    says "model.embedding.word_embeddings.weight	F32	[4, 2]"
    says "model.decoder.layers.0.mlp.linear_fc2.weight	F32	[2, 4]"
    says "model.decoder.final_layernorm.weight	F32	[1, 2]"
    s2s-ckpt cat whole.safetensors model.embedding.word_embeddings.weight >rows
    python3 -c 'import struct; assert struct.unpack("<8f", open("rows","rb").read()) == tuple(range(8))'
}

@test ".nemo archives that are cut, too small for what they claim, or something else are refused by name" {
    head -c 60000 "$DATA/tiny.nemo" >cut.nemo
    exits 1 s2s-ckpt ls cut.nemo
    says "cut.nemo"
    # behind a member, where no other is missed but by the end
    tar --format=ustar -cf more.tar -C "$ROOT" README.md
    { head -c 89600 "$DATA/tiny.nemo" && cat more.tar; } >more.nemo
    exits 0 s2s-ckpt verify more.nemo
    for command in ls verify; do
        head -c 89600 more.nemo >cut.nemo
        exits 1 s2s-ckpt $command cut.nemo
        says "cut.nemo: the tar archive has no end mark: truncated"
        gzip -c cut.nemo >small.nemo
        exits 1 s2s-ckpt $command small.nemo
        says "small.nemo: the tar archive has no end mark: truncated"
    done
    gzip -c "$DATA/tiny.nemo" | head -c 20000 >small.nemo
    exits 1 s2s-ckpt ls small.nemo
    says "small.nemo: model_weights.ckpt: not a whole compressed tar archive"
    gzip -c "$DATA/tiny.nemo" >whole.nemo
    TMPDIR=/nonexistent exits 1 s2s-ckpt ls whole.nemo
    says "set TMPDIR to a folder with room"
    python3 - <<'PY'
import gzip, tarfile
info = tarfile.TarInfo("model_weights.ckpt")
info.size = 1 << 40
open("bomb.nemo", "wb").write(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)))
PY
    exits 1 s2s-ckpt ls bomb.nemo
    says "made to fill the disk"
    python3 - <<'PY'
import io, tarfile
with tarfile.open("twice.nemo", "w") as t:
    for data in (b"a", b"b"):
        info = tarfile.TarInfo("./model_weights.ckpt")
        info.size = 1
        t.addfile(info, io.BytesIO(data))
PY
    exits 1 s2s-ckpt ls twice.nemo
    says "holds model_weights.ckpt twice"
    echo hello >other && tar --format=ustar -cf other.tar other
    exits 1 s2s-ckpt ls other.tar
    says "without model_weights.ckpt"
    # a flipped byte in the weights is found by the archive's CRC
    python3 - "$DATA/tiny.nemo" <<'PY'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
at = data.find(b"PK\x03\x04", 20000)
data[at + 200] ^= 1
open("bad.nemo", "wb").write(data)
PY
    exits 1 s2s-ckpt verify bad.nemo
}

@test "whoever names a part of a checkpoint, or the folder above it, is told what to name" {
    mkdir above zarr zarr/layer.weight
    cp -r "$DATA/hf_sharded" above/model
    exits 1 s2s-ckpt ls above
    says "name one inside it: model"
    cp -r "$DATA/dcp_fsdp2" above/optim
    exits 0 s2s-ckpt ls above
    says "model/ is read; optim/ beside it is a checkpoint of its own"
    for part in above/model/model.safetensors.index.json above/model/config.json; do
        exits 1 s2s-ckpt ls "$part"
        says "name the folder, above/model"
    done
    for part in above/optim/.metadata above/optim/__0_0.distcp; do
        exits 1 s2s-ckpt ls "$part"
        says "name the folder, above/optim"
    done
    echo '{}' >zarr/layer.weight/.zarray
    exits 1 s2s-ckpt ls zarr
    says "a zarr checkpoint"
    # NeMo 2 has it below weights/
    mkdir nemo2 && cp -r zarr nemo2/weights
    echo '{"sharded_backend": "zarr", "sharded_backend_version": 1}' >nemo2/weights/metadata.json
    : >nemo2/weights/common.pt
    exits 1 s2s-ckpt ls nemo2
    says "nemo2/weights: a zarr checkpoint"
}

@test "memory does not grow with the checkpoint: 140 MB pass through less than 64 MiB" {
    python3 - <<'PY'
import json, os, struct
header, at = {}, 0
for i, shape in enumerate(([24 << 20, 1], [1, 24 << 20], [2048, 6144], [16, 32, 64, 256, 3])):  # one row, many rows, many axes
    n = 2
    for size in shape:
        n *= size
    header["t%d" % i] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
    at += n
head = json.dumps(header).encode()
with open("large.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head)
    f.truncate(8 + len(head) + at)
assert at > 140 << 20
PY
    for step in "--to torch_dist large.safetensors dist" "--to hf dist hf" "--to hf --dtype f32 --max-shard-size 100MB dist cast"; do
        exits 0 s2s-ckpt convert --no-sync $step
        [[ $output =~ "peak memory "([0-9]+)" MiB" ]]
        case ${S2S_BIN:-} in *sanitize*) continue ;; esac
        [ "${BASH_REMATCH[1]}" -lt 64 ]
    done
}

@test "long: 1,000 shards are converted with at most 300 files open" {
    python3 - <<'PY'
import json, os, struct
os.mkdir("many")
index = {"model.layers.%d.weight" % i: "model-%05d-of-01000.safetensors" % (i + 1) for i in range(1000)}
for tensor, name in index.items():
    head = json.dumps({tensor: {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
    with open("many/" + name, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + os.urandom(64))
with open("many/model.safetensors.index.json", "w") as f:
    json.dump({"metadata": {"total_size": 64000}, "weight_map": index}, f)
PY
    ulimit -n 300
    exits 0 s2s-ckpt convert -q --no-sync --to torch_dist --files 1000 many dist
    exits 0 s2s-ckpt convert -q --no-sync --to hf dist back
    for path in many dist back; do
        s2s-ckpt ls --sha256 "$path" | grep -o '[0-9a-f]\{64\}.*' | sort >"$path.sums"
    done
    [ "$(wc -l <many.sums)" -eq 1000 ]
    diff many.sums dist.sums
    diff many.sums back.sums
}

@test "a plain DCP keeps where its names stand in nested dicts and lists" {
    cat >paths.py <<'PY'
import glob, pickle, sys
class Any:
    def __init__(self, *a): pass
    def __setstate__(self, state): self.state = state
    def __hash__(self): return id(self)
class Reader(pickle.Unpickler):
    def find_class(self, module, name): return type(name, (Any,), {})
def paths(pattern):
    [path] = glob.glob(pattern)
    return Reader(open(path, "rb")).load().state["planner_data"]
want, got = paths(sys.argv[1]), paths(sys.argv[2])
assert len(want) > 10 and any(type(part) is int for path in want.values() for part in path)
kept = {name: path for name, path in want.items() if name in got} if sys.argv[3] == "some" else want
assert kept and got == kept, set(got) ^ set(kept)
PY
    for name in dcp_plain dcp_fsdp2; do
        exits 0 s2s-ckpt reshard -q --files 2 "$DATA/$name" "out-$name"
        python3 paths.py "$DATA/$name/.metadata" "out-$name/iter_*/.metadata" all
    done
    exits 0 s2s-ckpt prune -q "$DATA/dcp_plain" weights
    python3 paths.py "$DATA/dcp_plain/.metadata" "weights/iter_*/.metadata" some
}
