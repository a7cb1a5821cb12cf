# s2s-train probe --mesh: on any mesh every gradient, gathered over its ranks, is transformers', and so is what AdamW makes of them.
load common

setup_tool() {
    M=$ROOT/tests/oracle/models
}

# on MESH MODEL_DIR OUT [OPTION...]: as many ranks as the mesh has; one is no launch
on() {
    local mesh=$1 model=$2 out=$3 item ranks=1 start=()
    shift 3
    for item in ${mesh//,/ }; do
        case $item in tp=* | cp=* | dp=* | pp=*) ranks=$((ranks * ${item#*=})) ;; esac
    done
    [ $ranks -eq 1 ] || start=(mpirun_n $ranks)
    "${start[@]}" s2s-train probe -j1 --model "$model" --inputs "$model/inputs.safetensors" --out "$out" --grads --steps 3 \
        --optimizer "$model/expected.json" --mesh "$mesh" "$@"
}

# agrees OUT REFERENCE TABLE [OPTION...]: within the tolerance that one process has, and the norm is that of all gradients
agrees() {
    python3 "$ROOT/tests/oracle/compare.py" "$@" --only loss --only grad/ --only param3/
    python3 - "$ROOT" "$1" <<'PY'
import sys
sys.path.insert(0, sys.argv[1] + "/tests/oracle")
from compare import read
got = read(sys.argv[2])
norm = sum((got[n].astype("f8") ** 2).sum() for n in got if n.startswith("grad/")) ** .5
assert abs(got["grad_norm"][0] - norm) <= 2e-7 * norm, (got["grad_norm"], norm)
PY
}

# golden: lines of `MODEL MESH`
golden() {
    local model mesh n=0
    while read -r model mesh; do
        on "$mesh" "$M/$model" out </dev/null && agrees out "$M/$model/expected.safetensors" "$M/$model/expected.json" || {
            echo "$model on $mesh"
            return 1
        }
        n=$((n + 1))
    done
    [ $n -gt 0 ]
}

@test "every gradient is transformers' on ranks that cut the model, the tokens, the packs or the layers" {
    golden <<'LINES'
llama_gqa_tied pp=2,tp=2,sequence_parallel=true
qwen3 tp=2,cp=2
qwen3_moe dp=2,ep=2
salm_llama cp=2,dp=2,data_parallel_sharding_strategy=optim_grads_params
LINES
}

@test "long: every gradient is transformers' on each axis, alone and beside others, of each family" {
    golden <<'LINES'
qwen3_moe dp=4,ep=2,data_parallel_sharding_strategy=optim_grads_params
salm_llama pp=2,dp=2,data_parallel_sharding_strategy=optim_grads_params
llama_gqa_tied tp=2
llama_gqa_tied tp=2,sequence_parallel=true
llama_gqa_tied cp=2
llama_gqa_tied dp=2
llama_gqa_tied pp=2
llama_gqa_tied tp=2,cp=2
llama_gqa_tied cp=2,cp_comm=p2p,dp=2,data_parallel_sharding_strategy=optim
qwen2 cp=2,dp=2
gemma1 tp=4
qwen3 tp=2
qwen3 cp=2,cp_comm=a2a
qwen3 dp=2
qwen3 pp=2
qwen3 tp=2,cp=2,dp=2,sequence_parallel=true
mixtral tp=2
mixtral cp=2
mixtral dp=2
mixtral tp=2,cp=2
mixtral pp=2
mixtral pp=2,dp=2,ep=2
mixtral tp=2,dp=2,ep=2
mixtral tp=2,dp=2,ep=2,etp=1,sequence_parallel=true
mixtral tp=2,dp=2,ep=4,etp=1,sequence_parallel=true,data_parallel_sharding_strategy=optim
salm_llama cp=2
salm_llama dp=2
salm_llama pp=2
salm_llama pp=2,cp=2
LINES
}

# four heads of the encoder in the place of three, which two ranks cannot share: the same matrices
even_heads() {
    cp -r "$M/salm_llama" even
    sed -i 's/"num_attention_heads": 3/"num_attention_heads": 4/; s/"num_key_value_heads": 3/"num_key_value_heads": 4/' even/encoder/config.json
    python3 - even/encoder/model.safetensors <<'PY'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
(n,) = struct.unpack("<Q", data[:8])
head = json.loads(data[8:8 + n])
for name, t in head.items():
    if name.endswith(("bias_u", "bias_v")):
        heads, dim = t["shape"]
        assert heads == 3
        t["shape"] = [4, heads * dim // 4]
text = json.dumps(head).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data[8 + n:])
PY
}

@test "an encoder that ranks cut has the gradients of one process" {
    even_heads
    s2s-train probe -j1 --model even --inputs even/inputs.safetensors --out one --grads --steps 3 --optimizer even/expected.json
    for mesh in tp=2 tp=2,cp=2,sequence_parallel=true; do
        on $mesh even out
        # both have their share of round-off, which three steps of AdamW make larger
        agrees out one even/expected.json --times 10
    done
}

@test "bf16-mixed on a mesh is bf16-mixed of one process but for the order of sums" {
    m=$M/llama_gqa_untied
    on tp=1 "$m" one --precision bf16-mixed
    on dp=2 "$m" out --precision bf16-mixed
    python3 - "$ROOT" <<'PY'
import sys
sys.path.insert(0, sys.argv[1] + "/tests/oracle")
from compare import read
a, b = read("one"), read("out")
grads = [n for n in a if n.startswith("grad/")]
assert grads
for n in grads:
    assert abs(a[n] - b[n]).max() <= 2e-2 * abs(a[n]).max(), (n, abs(a[n] - b[n]).max(), abs(a[n]).max())
PY
}

@test "a mesh that has no sense is refused, once, in the words of s2s-train" {
    exits 1 on tp=2 "$M/salm_llama" out
    says "encoder/config.json:20:26: num_attention_heads: 3 attention heads cannot be shared by 2 ranks (mesh.tp)"
    exits 1 s2s-train probe --model "$M/qwen3" --inputs "$M/qwen3/inputs.safetensors" --out out --mesh tp=3
    says "world size 1 is less than tp*cp*pp = 3*1*1 = 3"
    exits 1 on dp=2,ep=2 "$M/qwen3" out
    says "for a model without experts"
    exits 1 on tq=1 "$M/qwen3" out
    says "unknown key 'tq'"
    exits 1 on tp=1 "$M/parakeet_encoder" out
    says "an encoder alone has no loss to train on"
    exits 2 on tp=1 "$M/qwen3" out --layout bshd
    says "leave out --layout"
    [ ! -e out ]
}
