#!/usr/bin/env bats
# Names of one model that differ with the program that wrote it. The mappings themselves: tests/oracle/ckpt/check_spellings.py.
load common
load tensors

setup_tool() {
    DATA=$ROOT/tests/oracle/ckpt/data
    MODELS=$ROOT/tests/oracle/models
}

# memory.py IN OUT PREFIX..: a Nemotron-H as a program has it in memory: under another prefix, experts in one tensor
write_memory() {
    cat >memory.py <<'PY'
import json, re, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head, body, out, experts = json.loads(raw[8:8 + n]), raw[8 + n:], {}, {}
head.pop("__metadata__", None)
for name, t in head.items():
    bytes_of = body[slice(*t["data_offsets"])]
    e = re.match(r"(.*experts)\.(\d+)\.(\w+)\.weight", name)
    if e:
        experts.setdefault((e[1] + "." + e[3], tuple(t["shape"]), t["dtype"]), {})[int(e[2])] = bytes_of
    else:
        out[name] = (t["dtype"], t["shape"], bytes_of)
for (name, shape, dtype), each in experts.items():
    out[name] = (dtype, [len(each), *shape], b"".join(each[i] for i in sorted(each)))
header, data = {}, b""
for name, (dtype, shape, b) in out.items():
    name = name.replace("backbone.", sys.argv[3])
    if len(sys.argv) > 4:
        name = name.replace("model.embeddings.", "model.embed_tokens.").replace("norm_f", "norm").replace("mixer.A_log", "mixer._fp32_params.A_log")
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(b)]}
    data += b
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data)
PY
}

@test "a Nemotron-H as transformers and Automodel have it in memory is the one on disk" {
    write_memory
    cat >config.json <<'JSON'
{"model_type": "nemotron_h", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61}
JSON
    exits 0 s2s-ckpt convert -q --to hf --config config.json "$DATA/mcore016_hybrid_tp2pp2ep2" disk
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map nemotron_h disk want
    python3 memory.py disk/model.safetensors memory.safetensors model.
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map nemotron_h --config config.json memory.safetensors got
    exits 0 s2s-ckpt diff want got
    python3 memory.py disk/model.safetensors native.safetensors model. native
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map nemotron_h --config config.json native.safetensors got2
    exits 0 s2s-ckpt diff want got2
    # below what stands in front of it in a model of several parts
    python3 memory.py disk/model.safetensors part.safetensors words.model. native
    python3 memory.py disk/model.safetensors whole.safetensors backbone.
    printf 'family mine\nwords.{*} {*} copy\nlm_head.weight lm_head.weight copy\n' >mine.map
    exits 0 s2s-ckpt convert -q --strict --to hf --map mine.map part.safetensors part
    exits 0 s2s-ckpt diff whole.safetensors part
    python3 memory.py disk/model.safetensors deep.safetensors a.words.model. native
    printf 'family mine\na.words.{*} {*} copy\nlm_head.weight lm_head.weight copy\n' >deep.map
    exits 0 s2s-ckpt convert -q --strict --to hf --map deep.map deep.safetensors deep
    exits 0 s2s-ckpt diff whole.safetensors deep
    # what such a tensor lacks is missed still
    python3 - <<'PY'
import re
raw = open("memory.safetensors", "rb").read()
open("less.safetensors", "wb").write(re.sub(rb"mixer\.experts\.down_proj", b"mixer.experts.down_prot", raw))
PY
    exits 1 s2s-ckpt convert --to torch_dist --map nemotron_h --config config.json less.safetensors less
    says "mixer.experts.0.down_proj.weight"
}

@test "one Megatron name in two kinds of layers has each kind's Hugging Face name, numbered or on an axis, both ways" {
    # one Hugging Face name has the shape of its section, too
    printf '%s\n' 'family mine' 'section a.{N}.x' 'a.{N}.norm h.{N}.of_x copy [n]' 'a.{N}.x h.{N}.x copy' 'a.{N}.s h.{N}.s copy [5]' \
        'section a.{N}.y' 'a.{N}.s h.{N}.s copy [6]' 'a.{N}.norm h.{N}.of_y copy [n]' 'a.{N}.y h.{N}.{y,z} split' >mine.map
    write in.safetensors "{'a.0.x': (2, 3), 'a.0.norm': (3,), 'a.0.s': (5,), 'a.1.y': (2, 4), 'a.1.norm': (4,), 'a.1.s': (6,),
        'a.2.norm': (3,), 'a.2.s': (5,), 'a.2.x': (2, 3)}"
    exits 0 s2s-ckpt convert --strict --to hf --map mine.map in.safetensors hf
    [ "$(s2s-ckpt ls hf | cut -f1 | paste -sd' ')" = "h.0.of_x h.0.s h.0.x h.1.of_y h.1.s h.1.y h.1.z h.2.of_x h.2.s h.2.x" ]
    exits 0 s2s-ckpt convert --strict --to torch_dist --map mine.map --layers numbered hf back
    exits 0 s2s-ckpt diff in.safetensors back
    # layers on an axis are all of the second kind
    write stacked.safetensors "{'a.y': (2, 2, 4), 'a.norm': (2, 4), 'a.s': (2, 6)}"
    exits 0 s2s-ckpt convert --strict --to hf --map mine.map stacked.safetensors hf2
    [ "$(s2s-ckpt ls hf2 | cut -f1 | paste -sd' ')" = "h.0.of_y h.0.s h.0.y h.0.z h.1.of_y h.1.s h.1.y h.1.z" ]
    # what a kind lacks is missed under its own name
    write less.safetensors "{'a.0.x': (2, 3), 'a.0.norm': (3,), 'a.0.s': (5,), 'a.1.y': (2, 4), 'a.1.s': (6,)}"
    exits 1 s2s-ckpt convert --to hf --map mine.map less.safetensors x
    says "h.1.of_y (of a.1.norm)"
    says "absent (1)"
}

@test "a Nemotron-H with biases, and without one of the convolution, is whole where its configuration says so" {
    local model='{
        "backbone.embeddings.weight": (10, 4), "lm_head.weight": (10, 4), "backbone.norm_f.weight": (4,),
        "backbone.layers.0.norm.weight": (4,), "backbone.layers.0.mixer.in_proj.weight": (22, 4), "backbone.layers.0.mixer.conv1d.weight": (14, 1, 4),
        "backbone.layers.0.mixer.A_log": (2,), "backbone.layers.0.mixer.D": (2,), "backbone.layers.0.mixer.dt_bias": (2,),
        "backbone.layers.0.mixer.norm.weight": (6,), "backbone.layers.0.mixer.out_proj.weight": (4, 6),
        "backbone.layers.1.norm.weight": (4,), "backbone.layers.1.mixer.up_proj.weight": (5, 4), "backbone.layers.1.mixer.up_proj.bias": (5,),
        "backbone.layers.1.mixer.down_proj.weight": (4, 5), "backbone.layers.1.mixer.down_proj.bias": (4,)}'
    write hf.safetensors "$model"
    echo '{"model_type": "nemotron_h", "use_conv_bias": false, "mlp_bias": true, "vocab_size": 10}' >without.json
    echo '{"model_type": "nemotron_h", "vocab_size": 10}' >with.json
    exits 0 s2s-ckpt convert --strict --to torch_dist --map nemotron_h --config without.json hf.safetensors megatron
    says "mlp_bias: Megatron's add_bias_linear gives the attention biases too"
    exits 0 s2s-ckpt convert -q --strict --to hf --config without.json megatron back
    exits 0 s2s-ckpt diff hf.safetensors back
    exits 1 s2s-ckpt convert --to torch_dist --map nemotron_h --config with.json hf.safetensors other
    says "backbone.layers.0.mixer.conv1d.bias"
    exits 1 s2s-ckpt convert --to hf --config with.json megatron other
    says "conv1d.bias"
    # biases of the mixer's projections, which Megatron has by ranks
    sed 's/"mlp_bias"/"use_bias": true, &/' without.json >mixer.json
    exits 1 s2s-ckpt convert --to hf --config mixer.json megatron other
    says "backbone.layers.0.mixer.in_proj.bias"
    says "backbone.layers.0.mixer.out_proj.bias"
    local biases='"backbone.layers.0.mixer.in_proj.bias": (22,), "backbone.layers.0.mixer.out_proj.bias": (4,)'
    write biased.safetensors "{**$model, $biases}"
    exits 0 s2s-ckpt convert --strict --to hf --config mixer.json biased.safetensors kept
    exits 1 s2s-ckpt convert --to torch_dist --map nemotron_h --config mixer.json biased.safetensors other
    says "in_proj.bias: Megatron has its rows rank by rank"
    local names=$(s2s-ckpt ls megatron | awk -F'\t' '/F32/ {gsub(/[][]/, "", $3); printf "\"%s\": (%s,), ", $1, $3}')
    write live.safetensors "{$names ${biases//backbone/decoder}}"
    exits 0 s2s-ckpt convert -q --strict --to hf --config mixer.json live.safetensors live
    exits 0 s2s-ckpt ls live
    says "backbone.layers.0.mixer.in_proj.bias	F32	[22]"
}

@test "experts in one tensor, as transformers has Qwen's and Mixtral's in memory" {
    cat >config.json <<'JSON'
{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 10, "num_experts": 3}
JSON
    cat >rest.py <<'PY'
rest = {"model.embed_tokens.weight": (10, 4), "lm_head.weight": (10, 4), "model.norm.weight": (4,), "model.layers.0.input_layernorm.weight": (4,),
        "model.layers.0.post_attention_layernorm.weight": (4,), "model.layers.0.self_attn.q_proj.weight": (8, 4),
        "model.layers.0.self_attn.k_proj.weight": (4, 4), "model.layers.0.self_attn.v_proj.weight": (4, 4), "model.layers.0.self_attn.o_proj.weight": (4, 8)}
memory = dict(rest, **{"model.layers.0.mlp.gate.weight": (3, 4), "model.layers.0.mlp.experts.gate_up_proj": (3, 10, 4),
                       "model.layers.0.mlp.experts.down_proj": (3, 4, 5)})
PY
    write memory.safetensors '__import__("rest").memory'
    for map in qwen_moe mixtral; do
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map $map --config config.json memory.safetensors $map
        exits 0 s2s-ckpt convert -q --strict --to hf --map $map --config config.json $map $map.hf
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map $map --config config.json $map.hf $map.again
        exits 0 s2s-ckpt diff $map $map.again
    done
    exits 0 s2s-ckpt diff qwen_moe mixtral
    # expert 2's gate and up are rows 0 to 4 and 5 to 9 of it
    s2s-ckpt cat memory.safetensors model.layers.0.mlp.experts.gate_up_proj >all
    s2s-ckpt cat mixtral.hf model.layers.0.block_sparse_moe.experts.2.w3.weight >up
    tail -c 80 all >want
    same up want
}

@test "the hub's cache, adapters, quantised weights and files beside model.safetensors" {
    mkdir -p models--a--b/blobs models--a--b/refs models--a--b/snapshots/abc adapter fp8
    write models--a--b/blobs/1 '{"model.norm.weight": (4,)}'
    echo '{}' >models--a--b/blobs/2
    ln -s ../../blobs/1 models--a--b/snapshots/abc/model.safetensors
    ln -s ../../blobs/2 models--a--b/snapshots/abc/config.json
    exits 1 s2s-ckpt ls models--a--b
    says "snapshots"
    printf abc >models--a--b/refs/main
    exits 0 s2s-ckpt convert -q --to hf models--a--b out
    exits 0 s2s-ckpt diff models--a--b/snapshots/abc out
    [ -f out/config.json ]
    printf ../../.. >models--a--b/refs/main
    exits 1 s2s-ckpt ls models--a--b
    says "refs/main names no snapshot"
    # a checkpoint of Megatron's or NeMo's there: each of its files is a link too
    mkdir -p models--a--c/blobs models--a--c/refs models--a--c/snapshots/abc/weights
    s2s-ckpt convert -q --to torch_dist models--a--b/snapshots/abc dist
    for file in dist/iter_0000001/{.metadata,*}; do
        cp "$file" models--a--c/blobs/
        ln -s "../../../blobs/${file##*/}" models--a--c/snapshots/abc/weights/
    done
    printf abc >models--a--c/refs/main
    exits 0 s2s-ckpt verify models--a--c
    says "as the manifest says"
    exits 0 s2s-ckpt diff dist models--a--c
    for to in ../../blobs/../__0_0.distcp blobs/__0_0.distcp "$PWD/models--a--c/blobs/__0_0.distcp"; do
        ln -sf "$to" models--a--c/snapshots/abc/weights/__0_0.distcp
        exits 1 s2s-ckpt ls models--a--c
        says "__0_0.distcp: a link"
    done
    ln -sf ../../../blobs/second models--a--c/snapshots/abc/weights/__0_0.distcp
    mv models--a--c/blobs/__0_0.distcp secret
    ln -s ../../secret models--a--c/blobs/second
    exits 1 s2s-ckpt ls models--a--c
    says "__0_0.distcp: a link"
    # peft looks for it under this name
    write adapter/adapter_model.safetensors '{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (2, 4)}'
    echo '{}' >adapter/adapter_config.json
    exits 0 s2s-ckpt convert -q --to hf adapter adapted
    [ -f adapted/adapter_model.safetensors ]
    [ -f adapted/adapter_config.json ]
    exits 0 s2s-ckpt diff adapter adapted
    mv adapter/adapter_model.safetensors adapter/adapter_model-00001-of-00002.safetensors
    write adapter/adapter_model-00002-of-00002.safetensors '{"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (4, 2)}'
    exits 0 s2s-ckpt convert -q --to hf adapter sharded
    [ -f sharded/adapter_config.json ]
    # others have other names for its file, and its tensors tell
    mkdir other named
    write other/adapters.safetensors '{"model.layers.0.self_attn.q_proj.lora_a": (4, 2)}'
    write named/model.safetensors '{"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": (4, 2)}'
    for kind in other named; do
        cp adapter/adapter_config.json $kind
        exits 0 s2s-ckpt convert -q --to hf $kind lora
        [ -f lora/adapter_config.json ]
        rm -r lora
    done
    # numbers without their scales are no weights
    write fp8/model.safetensors '{"model.embed_tokens.weight": (10, 4), "model.layers.0.mlp.down_proj.weight": (4, 8),
                                  "model.layers.0.mlp.down_proj.weight_scale_inv": (1, 1)}'
    exits 1 s2s-ckpt convert --to torch_dist --map llama fp8 megatron
    says "quantised"
    says "model.layers.0.mlp.down_proj.weight_scale_inv"
    # of bitsandbytes, eight bits
    write scb.safetensors '{"model.embed_tokens.weight": (10, 4), "model.layers.0.mlp.down_proj.weight": (4, 8), "model.layers.0.mlp.down_proj.SCB": (4,)}'
    exits 1 s2s-ckpt convert --to torch_dist --map llama scb.safetensors megatron
    says "quantised"
    # of MLX
    mkdir mlx
    write mlx/model.safetensors '{"model.embed_tokens.weight": (10, 4), "model.layers.0.mlp.down_proj.weight": (4, 8),
                                  "model.layers.0.mlp.down_proj.scales": (4, 1), "model.layers.0.mlp.down_proj.biases": (4, 1)}'
    echo '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization": {"group_size": 64, "bits": 4}}' >mlx/config.json
    exits 0 s2s-ckpt convert --strict --to hf mlx packed
    says_not "not whole"
    exits 1 s2s-ckpt convert --to torch_dist --map llama mlx megatron
    says "quantised"
    exits 1 s2s-ckpt average mlx mlx mean
    says "model.layers.0.mlp.down_proj.scales is of quantised weights"
    exits 1 s2s-ckpt average fp8 fp8 mean
    says "model.layers.0.mlp.down_proj.weight_scale_inv is of quantised weights, which cannot be averaged"
    [ ! -e mean ]
    exits 0 s2s-ckpt convert --to hf --dtype bf16 fp8 kept
    says_not "not cast"
    exits 0 s2s-ckpt ls kept
    says "$(printf 'model.layers.0.mlp.down_proj.weight_scale_inv\tF32')"
    cp fp8/model.safetensors fp8/consolidated.safetensors
    exits 0 s2s-ckpt ls fp8
    says "consolidated.safetensors: beside model.safetensors, not read"
}

@test "what trainers leave beside a model's weights neither hides them nor travels along" {
    # Trainer with DeepSpeed; an adapter that is not read; the index of a variant
    mkdir -p trainer/global_step10
    write trainer/model.safetensors '{"model.norm.weight": (4,)}'
    echo -n global_step10 >trainer/latest
    touch trainer/zero_to_fp32.py
    write trainer/adapter_model.safetensors '{"base_model.model.model.norm.lora_A.weight": (2, 4)}'
    for name in config adapter_config model.safetensors.index.fp16; do
        echo '{}' >trainer/$name.json
    done
    exits 0 s2s-ckpt convert -q --to hf trainer out
    exits 0 s2s-ckpt diff trainer/model.safetensors out
    [ -f out/config.json ]
    not [ -e out/adapter_config.json ]
    not [ -e out/model.safetensors.index.fp16.json ]
    rm trainer/*.safetensors
    exits 1 s2s-ckpt ls trainer
    says "a DeepSpeed checkpoint"
}

@test "what may be absent is absent from all layers, and from none where one has it" {
    cat >make.py <<'PY'
import sys
def model(layers=3):
    out = {"model.embed_tokens.weight": (10, 4), "lm_head.weight": (10, 4), "model.norm.weight": (4,)}
    for n in range(layers):
        p = "model.layers.%d." % n
        out.update({p + "input_layernorm.weight": (4,), p + "post_attention_layernorm.weight": (4,), p + "self_attn.q_proj.weight": (8, 4),
                    p + "self_attn.k_proj.weight": (4, 4), p + "self_attn.v_proj.weight": (4, 4), p + "self_attn.o_proj.weight": (4, 8),
                    p + "self_attn.q_norm.weight": (4,), p + "self_attn.k_norm.weight": (4,), p + "mlp.gate.weight": (2, 4),
                    p + "mlp.shared_expert_gate.weight": (1, 4), p + "self_attn.q_proj.bias": (8,), p + "self_attn.k_proj.bias": (4,),
                    p + "self_attn.v_proj.bias": (4,)})
        for where in ("experts.0.", "experts.1.", "shared_expert."):
            out.update({p + "mlp.%sgate_proj.weight" % where: (5, 4), p + "mlp.%sup_proj.weight" % where: (5, 4), p + "mlp.%sdown_proj.weight" % where: (4, 5)})
    return out
PY
    write_lose
    echo '{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 10}' >config.json
    PYTHONPATH=. write hf.safetensors '__import__("make").model()'
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --layers numbered --map qwen_moe --config config.json hf.safetensors whole
    exits 0 s2s-ckpt convert -q --to safetensors whole megatron.safetensors
    for lost in self_attn.q_norm.weight self_attn.k_norm.weight self_attn.q_proj.bias mlp.shared_expert_gate.weight mlp.shared_expert.down_proj.weight; do
        turn || continue
        python3 lose.py hf.safetensors less.safetensors model.layers.1.$lost
        exits 1 s2s-ckpt convert --layers numbered --to torch_dist --map qwen_moe --config config.json less.safetensors out
        says "model.layers.1.$lost"
    done
    for lost in self_attention.q_layernorm.weight self_attention.linear_qkv.bias mlp.shared_experts.gate_weight mlp.shared_experts.linear_fc1.weight; do
        turn || continue
        python3 lose.py megatron.safetensors less.safetensors decoder.layers.2.$lost
        exits 1 s2s-ckpt convert --to hf --config config.json less.safetensors out
        says "decoder.layers.2.$lost"
    done
    # from all layers one of two that belong together
    python3 lose.py hf.safetensors less.safetensors model.layers.{0,1,2}.self_attn.k_norm.weight
    exits 1 s2s-ckpt convert --layers numbered --to torch_dist --map qwen_moe --config config.json less.safetensors out
    says "wanted but absent (3)"
    # and from all layers both
    python3 lose.py hf.safetensors less.safetensors model.layers.{0,1,2}.self_attn.{q,k}_norm.weight
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map qwen_moe --config config.json less.safetensors out
    # the gate of shared experts, of which the arguments speak or do not
    python3 lose.py hf.safetensors less.safetensors model.layers.{0,1,2}.mlp.shared_expert_gate.weight
    for gate in False True; do
        rm -rf out hf
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map qwen_moe --config config.json less.safetensors out
        python3 - "$gate" <<'PY'
import argparse, glob, pickle, sys, zipfile
args = argparse.Namespace(moe_shared_expert_gate=sys.argv[1] == "True")
with zipfile.ZipFile(glob.glob("out/*/common.pt")[0], "w") as z:
    z.writestr("common/data.pkl", pickle.dumps({"args": args}, 2))
    z.writestr("common/version", "3\n")
PY
        rm out/*/s2s-manifest.json
        exits $([ $gate = True ] && echo 1 || echo 0) s2s-ckpt convert --to hf --config config.json out hf
    done
    says "model.layers.0.mlp.shared_expert_gate.weight (of decoder.layers.0."
}

@test "experts that a map of one's own numbers on both sides: each of them has all layers on its axis" {
    write hf.safetensors '{"h.%d.e%d.%s" % (n, e, x): (2, 3) for n in range(3) for e in range(12) for x in ("up", "gate")}'
    printf 'family mine\nblocks.{N}.expert.{E}.weight h.{N}.e{E}.{up,gate} split\n' >mine.map
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map mine.map hf.safetensors megatron
    s2s-ckpt ls --json megatron | jq -r '.tensors[] | .name, (.shape | tostring)' | sort -u >got
    { echo '[3,4,3]'; printf 'blocks.expert.%d.weight\n' {0..11}; } | sort >want
    same got want
    exits 0 s2s-ckpt convert -q --strict --to hf --map mine.map megatron back
    # as an editor elsewhere stores it
    { printf '\xef\xbb\xbf'; sed 's/$/\r/' mine.map; } >marked.map
    exits 0 s2s-ckpt convert -q --strict --to hf --map marked.map megatron marked
    diff -r back marked
    exits 0 s2s-ckpt diff hf.safetensors back
    # one expert more in one layer
    write more.safetensors '{"h.%d.e%d.%s" % (n, e, x): (2, 3) for n in range(3) for e in range(2 + (n == 1)) for x in ("up", "gate")}'
    exits 1 s2s-ckpt convert --to torch_dist --map mine.map more.safetensors x
    says "h.{N}.e{E}.{up,gate}: in 1 of 3 layers only, so layers cannot lie on one axis"
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --layers numbered --map mine.map more.safetensors numbered
    exits 0 s2s-ckpt convert -q --strict --to hf --map mine.map numbered again
    exits 0 s2s-ckpt diff more.safetensors again
}

@test "Nemotron-4: norms with biases, an MLP without gate; its configuration tells it from a Llama" {
    write hf.safetensors '{"model.embed_tokens.weight": (10, 4), "lm_head.weight": (10, 4), "model.norm.weight": (4,), "model.norm.bias": (4,),
        "model.layers.0.input_layernorm.weight": (4,), "model.layers.0.input_layernorm.bias": (4,), "model.layers.0.post_attention_layernorm.weight": (4,),
        "model.layers.0.post_attention_layernorm.bias": (4,), "model.layers.0.self_attn.q_proj.weight": (8, 4), "model.layers.0.self_attn.k_proj.weight": (4, 4),
        "model.layers.0.self_attn.v_proj.weight": (4, 4), "model.layers.0.self_attn.o_proj.weight": (4, 8), "model.layers.0.mlp.up_proj.weight": (6, 4),
        "model.layers.0.mlp.down_proj.weight": (4, 6)}'
    echo '{"model_type": "nemotron", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 10}' >config.json
    exits 0 s2s-ckpt convert -q --strict --layers numbered --to torch_dist --map nemotron --config config.json hf.safetensors megatron
    s2s-ckpt cat megatron decoder.layers.0.mlp.linear_fc1.weight >fc1
    s2s-ckpt cat hf.safetensors model.layers.0.mlp.up_proj.weight >up
    same fc1 up
    exits 0 s2s-ckpt convert -q --strict --to hf --config config.json megatron back
    exits 0 s2s-ckpt diff hf.safetensors back
    # what its arguments are: gains around 0 of norms that subtract the mean, and the part of a head that is turned
    while IFS='|' read -r part more why; do
        turn || continue
        rm -rf "args$part"
        jq '. + {hidden_act: "relu2", norm_eps: 0.001, partial_rotary_factor: '"$part}" config.json >more.json
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map nemotron --config more.json hf.safetensors "args$part"
        python3 - "args$part" "$part" "$more" <<'PY'
import argparse, glob, json, pickle, sys, zipfile
path, = glob.glob(sys.argv[1] + "/*/common.pt")
with zipfile.ZipFile(path) as z:
    args = vars(pickle.loads(z.read([n for n in z.namelist() if n.endswith("data.pkl")][0]))["args"])
want = dict(normalization="LayerNorm", apply_layernorm_1p=True, norm_epsilon=0.001, rotary_percent=float(sys.argv[2]), rotary_base=10000,
            position_embedding_type="rope", squared_relu=True, swiglu=False, add_bias_linear=False, add_qkv_bias=False, qk_layernorm=False)
assert {k: args.get(k) for k in want} == want, args
args.update(max_position_embeddings=64, **json.loads(sys.argv[3]))
with zipfile.ZipFile(path, "w") as z:  # as Megatron saves it: without a config.json
    z.writestr("common/data.pkl", pickle.dumps({"args": argparse.Namespace(**args), "iteration": 5, "checkpoint_version": 3.0}, 2))
    z.writestr("common/byteorder", "little")
    z.writestr("common/version", "3\n")
PY
        rm -rf out
        exits 0 s2s-ckpt convert --strict --to hf "args$part" out
        if [ -n "$why" ]; then
            says "no config.json: $why"
        else
            exits 0 s2s-ckpt diff hf.safetensors out
            [ "$(jq -c '[.model_type, .partial_rotary_factor, .norm_eps, .hidden_act, .intermediate_size]' out/config.json)" = \
                "[\"nemotron\",$part,0.001,\"relu2\",6]" ]
        fi
    done <<'LIST'
0.5|{}|
0.25|{}|
0.5|{"normalization": "RMSNorm"}|its normalization is not LayerNorm
0.5|{"apply_layernorm_1p": false}|its norms have gains around 1
0.5|{"window_size": [7, 0]}|its attention has a window
0.5|{"use_rope_scaling": true}|its rotary embedding is scaled
LIST
    sed s/nemotron/llama/ config.json >llama.json
    exits 1 s2s-ckpt convert --to hf --config llama.json megatron other
    says "do not fit the others"
    says "an MLP without a gate, as Megatron's has it without --swiglu, is in no model known here but Nemotron's"
}

@test "a model of several parts as transformers has it in memory, and a decoder without its matrix of outputs" {
    cat >names.py <<'PY'
rest = {"layers.0.input_layernorm.weight": (4,), "layers.0.post_attention_layernorm.weight": (4,), "layers.0.self_attn.q_proj.weight": (8, 4),
        "layers.0.self_attn.k_proj.weight": (4, 4), "layers.0.self_attn.v_proj.weight": (4, 4), "layers.0.self_attn.o_proj.weight": (4, 8),
        "layers.0.self_attn.q_norm.weight": (4,), "layers.0.self_attn.k_norm.weight": (4,), "layers.0.mlp.gate_proj.weight": (5, 4), "layers.0.mlp.up_proj.weight": (5, 4), "layers.0.mlp.down_proj.weight": (4, 5),
        "embed_tokens.weight": (10, 4), "norm.weight": (4,)}
def named(prefix, **more): return dict({prefix + k: v for k, v in rest.items()}, **more)
PY
    of() { echo "__import__('names').named($*)"; }
    write memory.safetensors "$(of '"model.language_model.", **{"lm_head.weight": (10, 4), "model.visual.proj": (3,)}')"
    write headless.safetensors "$(of '""')"
    write whole.safetensors "$(of '"model."')"
    echo '{"model_type": "qwen3", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 10, "tie_word_embeddings": true}' >config.json
    # equal names have equal numbers here: shapes and names are what is compared
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama --config config.json headless.safetensors headless
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama --config config.json whole.safetensors whole
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --part model.language_model --map llama --config config.json memory.safetensors part
    for out in headless whole part; do
        s2s-ckpt ls --json $out | jq -c '.tensors[] | [.name, .shape]' >$out.names
    done
    same headless.names whole.names
    same part.names whole.names
    s2s-ckpt cat headless decoder.layers.self_attention.linear_proj.weight >got
    s2s-ckpt cat headless.safetensors layers.0.self_attn.o_proj.weight >want
    same got want
    # a map of one's own has the names that are there
    printf 'family mine\nmine.{*} {*} copy\n' >mine.map
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map mine.map headless.safetensors mine
    s2s-ckpt ls --json mine | jq -r '.tensors[].name' | grep -qx mine.layers.0.mlp.up_proj.weight
    exits 1 s2s-ckpt convert --strict --to torch_dist --map language_model --config config.json memory.safetensors x
    says "in checkpoint but unused: model.visual.proj"
    exits 0 s2s-ckpt convert -q --to torch_dist --map language_model --config config.json memory.safetensors all
    s2s-ckpt ls --json all | jq -r '.tensors[].name' >names
    for name in embedding.word_embeddings output_layer decoder.final_layernorm decoder.layers.mlp.linear_fc1; do
        turn || continue
        grep -qx "language_model.$name.weight" names
    done
}

@test "a text_config that leaves out what its class has by itself means that" {
    write hf.safetensors '{"model.embed_tokens.weight": (10, 6), "model.norm.weight": (6,), "model.layers.0.input_layernorm.weight": (6,),
        "model.layers.0.post_attention_layernorm.weight": (6,), "model.layers.0.pre_feedforward_layernorm.weight": (6,),
        "model.layers.0.post_feedforward_layernorm.weight": (6,), "model.layers.0.self_attn.q_proj.weight": (24, 6),
        "model.layers.0.self_attn.k_proj.weight": (12, 6), "model.layers.0.self_attn.v_proj.weight": (12, 6),
        "model.layers.0.self_attn.o_proj.weight": (6, 24), "model.layers.0.self_attn.q_norm.weight": (3,), "model.layers.0.self_attn.k_norm.weight": (3,),
        "model.layers.0.mlp.gate_proj.weight": (5, 6), "model.layers.0.mlp.up_proj.weight": (5, 6), "model.layers.0.mlp.down_proj.weight": (6, 5)}'
    # Gemma 3's 8 heads in 4 groups; a head is not as wide as 6 / 8
    echo '{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 6, "vocab_size": 10}}' >few.json
    echo '{"model_type": "gemma3_text", "hidden_size": 6, "vocab_size": 10, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 3}' >all.json
    for config in few all; do
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map gemma2 --config $config.json hf.safetensors $config
        exits 0 s2s-ckpt convert -q --strict --to hf --config $config.json $config $config.hf
        exits 0 s2s-ckpt diff hf.safetensors $config.hf
        python3 - "$config" <<'PY'
import argparse, glob, pickle, sys, zipfile
class Safe(pickle.Unpickler):
    def find_class(self, module, name): return argparse.Namespace
with zipfile.ZipFile(glob.glob(sys.argv[1] + "/*/common.pt")[0]) as z:
    args = Safe(z.open(next(n for n in z.namelist() if n.endswith("data.pkl")))).load()["args"]
assert (args.num_attention_heads, args.num_query_groups, args.kv_channels, args.norm_epsilon) == (8, 4, 3, 1e-6), args
PY
    done
    exits 0 s2s-ckpt diff few all
    # what says something else is taken at its word
    sed 's/"hidden_size"/"num_key_value_heads": 2, &/' few.json >other.json
    exits 1 s2s-ckpt convert --to torch_dist --map gemma2 --config other.json hf.safetensors x
    says "not 8 heads and 2 groups"
}

@test "layers of several sizes or dtypes are numbered, as Megatron-Core has them; on one axis they are refused" {
    cat >layer.py <<'PY'
def layer(n, f, *dtype):
    at = "model.layers.%d." % n
    return {at + "input_layernorm.weight": dtype + (4,), at + "post_attention_layernorm.weight": dtype + (4,),
            at + "self_attn.q_proj.weight": (8, 4), at + "self_attn.k_proj.weight": (4, 4), at + "self_attn.v_proj.weight": (4, 4),
            at + "self_attn.o_proj.weight": (4, 8), at + "mlp.gate_proj.weight": (f, 4), at + "mlp.up_proj.weight": (f, 4),
            at + "mlp.down_proj.weight": (4, f)}
ends = {"model.embed_tokens.weight": (10, 4), "lm_head.weight": (10, 4), "model.norm.weight": (4,)}
alike = dict(ends, **layer(0, 6), **layer(1, 6))
sizes = dict(ends, **layer(0, 6), **layer(1, 7))
dtypes = dict(ends, **layer(0, 6, "F16"), **layer(1, 6))
PY
    echo '{"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 10}' >config.json
    for kind in alike sizes dtypes; do
        write $kind.safetensors "__import__('layer').$kind"
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map llama --config config.json $kind.safetensors $kind
        exits 0 s2s-ckpt convert -q --strict --to hf --config config.json $kind $kind.hf
        exits 0 s2s-ckpt diff $kind.safetensors $kind.hf
        s2s-ckpt ls --json $kind | jq -r '.tensors[].name' >names
        [ $kind = alike ] || grep -qx decoder.layers.1.mlp.linear_fc1.weight names
        [ $kind != alike ] || grep -qx decoder.layers.mlp.linear_fc1.weight names
    done
    exits 1 s2s-ckpt convert --to torch_dist --layers stacked --map llama --config config.json sizes.safetensors x
    says "model.layers.1.mlp.gate_proj.weight: another shape or dtype than in layer 0, so layers cannot lie on one axis"
    says "layers numbered"
    [ ! -e x ]
}

@test "parts that make one tensor are refused where their dtypes or columns differ: no cast is silent" {
    cat >mixer.py <<'PY'
at = "decoder.layers.0.mixer."
good = {"embedding.word_embeddings.weight": (10, 4), "output_layer.weight": (10, 4), "decoder.final_norm.weight": (4,),
        at + "in_proj.layer_norm_weight": (4,), at + "in_proj.weight.z": (6, 4), at + "in_proj.weight.x": (6, 4), at + "in_proj.weight.B": (4, 4),
        at + "in_proj.weight.C": (4, 4), at + "in_proj.weight.dt": (2, 4), at + "conv1d.weight.x": (6, 1, 4), at + "conv1d.weight.B": (4, 1, 4),
        at + "conv1d.weight.C": (4, 1, 4), at + "conv1d.bias.x": (6,), at + "conv1d.bias.B": (4,), at + "conv1d.bias.C": (4,), at + "A_log": (2,),
        at + "D": (2,), at + "dt_bias": (2,), at + "norm.weight": (6,), at + "out_proj.weight": (4, 6)}
dtype = dict(good, **{at + "conv1d.bias.C": ("F16", 4)})
columns = dict(good, **{at + "in_proj.weight.dt": (2, 1, 4)})
# all layers on an axis, and one of the parts has fewer
stacked = {k.replace("layers.0.", "layers."): (2,) + v if "layers" in k else v for k, v in good.items()}
short = dict(stacked, **{"decoder.layers.mixer.in_proj.weight.B": (1, 4, 4)})
at = "model.layers.0."
llama = {"model.embed_tokens.weight": (10, 4), "model.norm.weight": (4,), at + "input_layernorm.weight": (4,),
         at + "post_attention_layernorm.weight": (4,), at + "self_attn.q_proj.weight": (4, 4), at + "self_attn.k_proj.weight": ("F16", 4, 4),
         at + "self_attn.v_proj.weight": (4, 4), at + "self_attn.o_proj.weight": (4, 4), at + "mlp.gate_proj.weight": (6, 4),
         at + "mlp.up_proj.weight": (6, 4), at + "mlp.down_proj.weight": (4, 6)}
PY
    echo '{"model_type": "nemotron_h", "vocab_size": 10}' >config.json
    for kind in good dtype columns stacked short; do
        write $kind.safetensors "__import__('mixer').$kind"
    done
    exits 0 s2s-ckpt convert -q --strict --to hf --config config.json good.safetensors good
    exits 0 s2s-ckpt convert -q --strict --to hf --config config.json stacked.safetensors stacked
    exits 1 s2s-ckpt convert --to hf --config config.json dtype.safetensors x
    says "conv1d.bias.x (F32 [6]) and decoder.layers.0.mixer.conv1d.bias.C (F16 [4]) go into one tensor"
    exits 1 s2s-ckpt convert --to hf --config config.json columns.safetensors x
    says "in_proj.weight.z (F32 [6, 4]) and decoder.layers.0.mixer.in_proj.weight.dt (F32 [2, 1, 4]) go into one tensor"
    exits 1 s2s-ckpt convert --to hf --config config.json short.safetensors x
    says "in_proj.weight.z (F32 [2, 6, 4]) and decoder.layers.mixer.in_proj.weight.B (F32 [1, 4, 4]) go into one tensor"
    [ ! -e x ]
    # towards Megatron --dtype comes too late, and what comes in time is said
    mkdir llama
    write llama/model.safetensors "__import__('mixer').llama"
    echo '{"model_type": "llama", "vocab_size": 10, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 1, "tie_word_embeddings": true}' >llama/config.json
    exits 1 s2s-ckpt convert --map llama --to torch_dist --dtype f32 llama x
    says "q_proj.weight (F32 [4, 4]) and model.layers.0.self_attn.k_proj.weight (F16 [4, 4]) go into one tensor"
    says "give all one dtype first, under the names that they have: convert --to hf --dtype"
    exits 0 s2s-ckpt convert -q --to hf --dtype f32 llama one
    exits 0 s2s-ckpt convert -q --map llama --to torch_dist one x
}

@test "a language model that names cannot tell from others, inside a model of several parts, is what the configuration says" {
    # Mixtral's and Qwen's experts have one name in Megatron
    cat >model.py <<'PY'
rest = {"embedding.word_embeddings.weight": (10, 4), "output_layer.weight": (10, 4), "decoder.final_layernorm.weight": (4,),
        "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight": (4,), "decoder.layers.0.self_attention.linear_qkv.weight": (16, 4),
        "decoder.layers.0.self_attention.linear_proj.weight": (4, 8), "decoder.layers.0.pre_mlp_layernorm.weight": (4,),
        "decoder.layers.0.mlp.router.weight": (3, 4), "decoder.layers.0.mlp.experts.experts.linear_fc1.weight": (3, 10, 4),
        "decoder.layers.0.mlp.experts.experts.linear_fc2.weight": (3, 4, 5)}
norms = {"decoder.layers.0.self_attention.%s_layernorm.weight" % name: (4,) for name in "qk"}
def whole(**more): return {"language_model." + k: v for k, v in {**rest, **more}.items()}
PY
    write mixtral.safetensors '__import__("model").whole()'
    write qwen3_moe.safetensors '__import__("model").whole(**__import__("model").norms)'
    for type in mixtral qwen3_moe; do
        echo '{"llm_config": {"model_type": "'$type'", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 10}}' >$type.json
        exits 0 s2s-ckpt convert -q --strict --to hf --config $type.json $type.safetensors $type
        exits 0 s2s-ckpt convert -q --strict --layers numbered --to torch_dist --map language_model --config $type.json $type $type.back
        exits 0 s2s-ckpt diff $type.safetensors $type.back
    done
    s2s-ckpt cat mixtral language_model.model.layers.0.block_sparse_moe.experts.1.w3.weight >a
    s2s-ckpt cat qwen3_moe language_model.model.layers.0.mlp.experts.1.up_proj.weight >b
    same a b
}

@test "experts as NeMo Automodel has them, all of a layer in one transposed tensor, go to Hugging Face's and to Megatron's names" {
    cat >model.py <<'PY'
native = {"model.embed_tokens.weight": (10, 4), "lm_head.weight": (10, 4), "model.norm.weight": (4,), "model.layers.0.input_layernorm.weight": (4,),
          "model.layers.0.post_attention_layernorm.weight": (4,), "model.layers.0.self_attn.q_proj.weight": (8, 4),
          "model.layers.0.self_attn.k_proj.weight": (4, 4), "model.layers.0.self_attn.v_proj.weight": (4, 4), "model.layers.0.self_attn.o_proj.weight": (4, 8),
          "model.layers.0.self_attn.q_norm.weight": (4,), "model.layers.0.self_attn.k_norm.weight": (4,), "model.layers.0.mlp.gate.weight": (3, 4),
          "model.layers.0.mlp.experts.gate_and_up_projs": (3, 4, 10), "model.layers.0.mlp.experts.down_projs": (3, 5, 4)}
PY
    write native.safetensors '__import__("model").native'
    echo '{"model_type": "qwen3_moe", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 10}' >config.json
    exits 0 s2s-ckpt convert -q --strict --to hf --config config.json native.safetensors hf
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map qwen_moe --config config.json native.safetensors a
    exits 0 s2s-ckpt convert -q --strict --to torch_dist --map qwen_moe hf b
    exits 0 s2s-ckpt diff a b
    for name in gate_and_up_projs down_projs; do s2s-ckpt cat native.safetensors model.layers.0.mlp.experts.$name >$name; done
    for name in gate up down; do s2s-ckpt cat hf model.layers.0.mlp.experts.2.${name}_proj.weight >$name; done
    python3 - <<'PY'
import numpy as np
both, down = np.fromfile("gate_and_up_projs", "<f4").reshape(3, 4, 10), np.fromfile("down_projs", "<f4").reshape(3, 5, 4)
for name, want in (("gate", both[2, :, :5]), ("up", both[2, :, 5:]), ("down", down[2])):
    assert np.array_equal(np.fromfile(name, "<f4").reshape(want.T.shape), want.T), name
PY
    # a mean of such: every checkpoint's is transposed
    mkdir one two
    cp config.json one/config.json
    cp config.json two/config.json
    cp native.safetensors one/model.safetensors
    python3 - <<'PY'
import struct
import numpy as np
whole = open("native.safetensors", "rb").read()
at = 8 + struct.unpack("<Q", whole[:8])[0]
thrice = np.frombuffer(whole[at:], "<f4") * 3
open("two/model.safetensors", "wb").write(whole[:at] + thrice.tobytes())
PY
    exits 0 s2s-ckpt average -q --to hf one two mean
    for name in gate up down; do
        s2s-ckpt cat mean model.layers.0.mlp.experts.2.${name}_proj.weight >$name.mean
        python3 -c "import numpy as np; assert np.array_equal(np.fromfile('$name', '<f4') * 2, np.fromfile('$name.mean', '<f4'))"
    done
    # columns of two tensors side by side are not made
    exits 1 s2s-ckpt convert --to torch_dist --map automodel_qwen_moe --config config.json hf native
    says "only the way to Hugging Face is known"
}

@test "Qwen3's layer that predicts a further token, under each of Megatron's names, and the inverse frequencies of an old transformers" {
    cat >model.py <<'PY'
def layer(at):
    return {at + k: v for k, v in {"input_layernorm.weight": (4,), "post_attention_layernorm.weight": (4,), "self_attn.q_proj.weight": (8, 4),
            "self_attn.k_proj.weight": (4, 4), "self_attn.v_proj.weight": (4, 4), "self_attn.o_proj.weight": (4, 8), "self_attn.q_norm.weight": (4,),
            "self_attn.k_norm.weight": (4,), "mlp.gate_proj.weight": (6, 4), "mlp.up_proj.weight": (6, 4), "mlp.down_proj.weight": (4, 6)}.items()}
hf = dict({"model.embed_tokens.weight": (10, 4), "lm_head.weight": (10, 4), "model.norm.weight": (4,), "mtp.fc.weight": (4, 8),
           "mtp.pre_fc_norm_embedding.weight": (4,), "mtp.pre_fc_norm_hidden.weight": (4,), "mtp.norm.weight": (4,)},
          **layer("model.layers.0."), **layer("mtp.layers.0."))
old = dict(hf, **{"model.layers.0.self_attn.rotary_emb.inv_freq": (2,)})
PY
    load='__import__("model")'
    write hf.safetensors "$load.hf"
    write old.safetensors "$load.old"
    echo '{"model_type": "qwen3", "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 10, "num_hidden_layers": 1}' >config.json
    for from in hf old; do
        exits 0 s2s-ckpt convert -q --strict --layers numbered --to torch_dist --map llama --config config.json $from.safetensors $from
    done
    exits 0 s2s-ckpt diff hf old
    says_not inv_freq
    exits 0 s2s-ckpt convert -q --strict --to hf --config config.json hf back
    exits 0 s2s-ckpt diff hf.safetensors back
    s2s-ckpt cat hf mtp.layers.0.eh_proj.weight >eh
    s2s-ckpt cat hf.safetensors mtp.fc.weight >fc
    same eh fc
    # as a live model of newer releases calls it
    exits 0 s2s-ckpt convert -q --to safetensors hf file.safetensors
    python3 - <<'PY'
import json, struct
raw = open("file.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head = raw[8:8 + n].decode().replace("transformer_layer.", "mtp_model_layer.").encode()
open("live.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + raw[8 + n:])
PY
    exits 0 s2s-ckpt convert -q --strict --to hf --config config.json live.safetensors live
    exits 0 s2s-ckpt diff hf.safetensors live
    # nothing of it may be lost
    write less.safetensors "{k: v for k, v in $load.hf.items() if k != 'mtp.norm.weight'}"
    exits 1 s2s-ckpt convert --to torch_dist --map llama --config config.json less.safetensors less
    says "mtp.norm.weight"
}

@test "--map gemma3 is Gemma 3 with its eye or without, whichever is there; parakeet_ctc is a map's name too" {
    layer=''
    for name in input post_attention pre_feedforward post_feedforward; do layer+="'layers.0.${name}_layernorm.weight': (6,), "; done
    layer+="'layers.0.self_attn.q_proj.weight': (24, 6), 'layers.0.self_attn.k_proj.weight': (12, 6), 'layers.0.self_attn.v_proj.weight': (12, 6),
        'layers.0.self_attn.o_proj.weight': (6, 24), 'layers.0.self_attn.q_norm.weight': (3,), 'layers.0.self_attn.k_norm.weight': (3,),
        'layers.0.mlp.gate_proj.weight': (5, 6), 'layers.0.mlp.up_proj.weight': (5, 6), 'layers.0.mlp.down_proj.weight': (6, 5),
        'embed_tokens.weight': (10, 6), 'norm.weight': (6,)"
    eye="'multi_modal_projector.mm_soft_emb_norm.weight': (4,), 'multi_modal_projector.mm_input_projection_weight': (4, 6), 'vision_tower.a.weight': (2, 3)"
    write text.safetensors "{'model.' + k: v for k, v in {$layer}.items()}"
    write eye.safetensors "dict({'language_model.model.' + k: v for k, v in {$layer}.items()}, **{$eye})"
    write memory.safetensors "{'model.' + k: v for k, v in dict({'language_model.' + k: v for k, v in {$layer}.items()}, **{$eye}).items()}"
    echo '{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 6, "vocab_size": 10}}' >config.json
    for kind in text:gemma2 eye:gemma3_vl memory:gemma3_vl; do
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map gemma3 --config config.json "${kind%:*}.safetensors" "${kind%:*}"
        exits 0 s2s-ckpt convert -q --strict --to torch_dist --map "${kind#*:}" --config config.json "${kind%:*}.safetensors" "${kind%:*}.named"
        exits 0 s2s-ckpt diff "${kind%:*}" "${kind%:*}.named"
        exits 0 s2s-ckpt convert -q --strict --to hf --map gemma3 --config config.json "${kind%:*}" "${kind%:*}.hf"
    done
    exits 0 s2s-ckpt diff text.safetensors text.hf
    exits 0 s2s-ckpt diff eye.safetensors eye.hf
    # a file too many is named
    mkdir two
    cp text.safetensors two/b.safetensors
    cp text.safetensors two/a.safetensors
    exits 1 s2s-ckpt ls two
    says "tensor model.embed_tokens.weight is there twice, in a.safetensors and in b.safetensors"
    exits 0 s2s-ckpt convert -q --to hf --map parakeet_ctc "$DATA/tiny.nemo" ctc
    exits 0 s2s-ckpt convert -q --to hf "$DATA/tiny.nemo" found
    exits 0 s2s-ckpt diff ctc found
    # its config.json goes along, and is not said to be missing
    exits 0 s2s-ckpt convert --to torch_dist --map parakeet_ctc ctc nemo
    exits 0 s2s-ckpt convert --to hf nemo back
    says_not "config.json is not written"
    cmp ctc/config.json back/config.json
    exits 2 s2s-ckpt convert --to nemo --no-tokenizer nemo out.nemo
    says "has NeMo's names, whose configuration says the tokenizer"
}

@test "to hf: weights of 8 bits whose scales are in Megatron's extra states are told of" {
    M=$ROOT/tests/oracle/models/llama_gqa_untied
    s2s-ckpt convert -q --to torch_dist --map llama "$M" dist
    s2s-ckpt convert -q --to safetensors dist wide.safetensors
    python3 - <<'PY'
import json, struct
raw = open("wide.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head, body, new, data = json.loads(raw[8:8 + n]), raw[8 + n:], {}, b""
head.pop("__metadata__", None)
for name, t in head.items():
    part = body[slice(*t["data_offsets"])]
    if name == "decoder.layers.mlp.linear_fc2.weight":
        t["dtype"], part = "F8_E4M3", b"8" * (len(part) // 4)
    new[name] = dict(t, data_offsets=[len(data), len(data) + len(part)])
    data += part
text = json.dumps(new).encode()
open("small.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
PY
    exits 0 s2s-ckpt convert --to hf --config "$M/config.json" wide.safetensors wide
    says_not "8 bits"
    exits 0 s2s-ckpt convert --to hf --config "$M/config.json" small.safetensors small
    says "model.layers.0.mlp.down_proj.weight and others: weights of 8 bits, and without the scales"
}

@test "gate and up come out right of what FSDP2 of Megatron-LM saves since 0.19, and are refused where they may be mixed, in a copy too" {
    PYTHONPATH=$ROOT/tests/oracle/ckpt python3 - <<'PY'
import math, struct
from mini_writer import i, obj, s, write
H = 2
def saved(name, tp, dp, mixed):
    half = 2 * tp * dp  # rows of gate; up has as many
    gate, up = [float(n) for n in range(half)], [100.0 + n for n in range(half)]
    n, chunks, left = 2 * half // (tp * dp), [], half // tp
    for t in range(tp):
        whole = gate[t * left:(t + 1) * left] + up[t * left:(t + 1) * left]
        for d in range(dp):
            mine, rank = whole[d * n:(d + 1) * n], t * dp + d
            if mixed:
                places = [(rank * n // 2, mine[:n // 2]), (half + rank * n // 2, mine[n // 2:])]
            else:
                places = [(sum(x < mine[0] for x in gate + up), mine)]
            chunks += [((at, 0), (len(rows), H), struct.pack("<%df" % (H * len(rows)), *[x for x in rows for _ in range(H)])) for at, rows in places]
    plain = lambda *shape: ("float32", shape, [((0,) * len(shape), shape, bytes(4 * math.prod(shape)))])
    layer = {"mlp.linear_fc2.weight": (H, half), "mlp.linear_fc1.layer_norm_weight": (H,), "self_attention.linear_qkv.layer_norm_weight": (H,),
             "self_attention.linear_qkv.weight": (3 * H, H), "self_attention.linear_proj.weight": (H, H)}
    names = {"embedding.word_embeddings.weight": (4, H), "output_layer.weight": (4, H), "decoder.final_layernorm.weight": (H,)}
    names.update({"decoder.layers.0." + k: v for k, v in layer.items()})
    args = [(k, i(v)) for k, v in dict(num_layers=1, hidden_size=H, num_attention_heads=1, num_query_groups=1, kv_channels=H, ffn_hidden_size=half,
            tensor_model_parallel_size=tp, data_parallel_size=dp, context_parallel_size=1, vocab_size=4).items()]
    args += [("use_torch_fsdp2", b"\x88"), ("swiglu", b"\x88"), ("untie_embeddings_and_output_weights", b"\x88"), ("ckpt_format", s("torch_dist"))]
    write(name, [(k, *plain(*v)) for k, v in names.items()] + [("decoder.layers.0.mlp.linear_fc1.weight", "float32", (2 * half, H), sorted(chunks))],
          common=b"}(" + s("args") + obj("argparse", "Namespace", args) + b"u")
for tp, dp in ((1, 3), (2, 2), (4, 1)):
    for mixed in (True, False) if dp > 1 else (True,):
        saved("in-%d-%d-%d" % (tp, dp, mixed), tp, dp, mixed)
PY
    refused="decoder.layers.0.mlp.linear_fc1.weight: trained with --use-torch-fsdp2"
    for in in in-*; do
        rm -rf out copy
        exits 0 s2s-ckpt reshard -q "$in" copy
        if [[ "$in" = *-1 ]] && [ "$in" != in-4-1-1 ]; then
            exits 1 s2s-ckpt convert -q --strict --to hf "$in" out
            says "$refused"
            continue
        fi
        exits 0 s2s-ckpt convert -q --strict --to hf "$in" out
        rows=$((2 * $(echo "$in" | cut -d- -f2) * $(echo "$in" | cut -d- -f3)))
        for at in "gate 0" "up 100"; do
            set -- $at
            alike "$(s2s-ckpt cat out model.layers.0.mlp.$1_proj.weight | od -An -v -w8 -tf4 | awk '{print $1}' | xargs)" \
                "$(seq $2 $(($2 + rows - 1)) | xargs)"
        done
        rm -rf out
        [ "$in" = in-4-1-1 ] || exits 1 s2s-ckpt convert -q --to hf copy out
        [ "$in" = in-4-1-1 ] || says "$refused"
    done
}

@test "a model that stands below a prefix is missed there, and the message says how to take it" {
    python3 - "$MODELS/llama_gqa_tied/model.safetensors" <<'PY'
import json, os, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
text = json.dumps({k if k == "__metadata__" else "pretrained_model." + k: v for k, v in json.loads(raw[8:8 + n]).items()}).encode()
os.mkdir("in")
open("in/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + raw[8 + n:])
PY
    cp "$MODELS/llama_gqa_tied/config.json" in
    for words in "verify" "convert --to hf" "convert --to torch_dist --map llama"; do
        out=out
        [ "$words" != verify ] || out=
        exits 1 s2s-ckpt $words in $out
        says "model.norm.weight"
        says "they are below pretrained_model.: convert --part pretrained_model takes these"
    done
    exits 0 s2s-ckpt convert -q --to torch_dist --map llama --part pretrained_model in got
    exits 0 s2s-ckpt convert -q --to torch_dist --map llama "$MODELS/llama_gqa_tied" want
    exits 0 s2s-ckpt diff want got
}
