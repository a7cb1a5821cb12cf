# device: cuda, without a GPU: the messages, and whole steps over the emulated one.
load common
load train

setup_tool() {
    tiny_model '' 3 3 1
    # what is nearly 0 is divided by eps: its sign would be that of round-off
    sed -i 's/eps: 1.0e-8/eps: 1.0e-3/; s/packs_per_step: 4/packs_per_step: 2/' r.yaml
    # the emulation takes a hundred times as long as a CPU
    sed -i 's/"hidden_size": 32/"hidden_size": 16/; s/"intermediate_size": 64/"intermediate_size": 24/' llm.json
    s2s-pack -q --ids ids.jsonl --tokens 40 -o t.s2s
    export S2S_CUDA=$BUILD/libs2s-emu.so
    case $S2S_CUDA in /*) ;; *) S2S_CUDA=$ROOT/$S2S_CUDA ;; esac
}

@test "device: cuda without its library is one message that says how to build it" {
    S2S_CUDA=$PWD/absent.so exits 1 s2s-train -j1 r.yaml device=cuda
    says 'device "cuda":'
    says "make CUDA=1"
    [ ! -e run/checkpoints ]
}

# same_as_cpu RECIPE [KEY=VALUE..]: three steps on both, whose losses and norms of gradients differ in round-off alone
same_as_cpu() {
    local recipe=$1
    shift
    rm -rf cpu gpu
    s2s-train -q -j1 "$recipe" run=cpu "$@"
    s2s-train -q -j1 "$recipe" run=gpu device=cuda "$@"
    paste -d' ' <(log cpu) <(log gpu) | awk '
        function far(a, b) { return (a > b ? a - b : b - a) > 1e-5 * (a > 0 ? a : -a) }
        $1 != $7 || $2 != $8 || $3 != $9 || far($4, $10) || far($5, $11) || $6 != $12 { print "differs: " $0; bad = 1 }
        END { exit bad || NR != 3 }'
}

# moe_recipe NAME UPDATE: NAME.yaml trains the tiny model with experts, of which UPDATE, in Python, says more
moe_recipe() {
    sed "s/{llm: {config: llm.json}}/{llm: {config: $1.json}}/" r.yaml >"$1.yaml"
    python3 -c "
import json
c = json.load(open('llm.json'))
c.update(tie_word_embeddings=False, num_experts_per_tok=2, $2)
json.dump(c, open('$1.json', 'w'))"
}

@test "an emulated GPU trains what the CPU trains" {
    same_as_cpu r.yaml
}

@test "an emulated GPU trains speech and images as the CPU does" {
    for name in speech images; do
        eval "$(sed -n "/^$name()/,/^}/p" "$ROOT/tests/tools/s2s-train-mesh.bats")"
    done
    images
    same_as_cpu s.yaml train.steps=3 train.packs_per_step=1
    same_as_cpu i.yaml
    # queries that see a part of their clip, and dropout in all that attends
    sed -i '1s/{/{"att_context_size": [6, 3],/' enc.json
    same_as_cpu s.yaml train.packs_per_step=1 train.steps=3 "train.dropout={attention: 0.2, encoder_attention: 0.1}"
}

@test "an emulated GPU trains experts as the CPU does" {
    moe_recipe mixtral 'model_type="mixtral", num_local_experts=4, router_aux_loss_coef=0.02'
    same_as_cpu mixtral.yaml
    moe_recipe qwen 'model_type="qwen3_moe", num_experts=6, moe_intermediate_size=24, norm_topk_prob=True, head_dim=8, decoder_sparse_step=1, mlp_only_layers=[]'
    same_as_cpu qwen.yaml
}

@test "a GPU without enough memory is a message that says who wanted more, and what has it" {
    tiny_model '' 3 3 1
    S2S_EMU_BYTES=50000 exits 1 s2s-train -q -j1 r.yaml device=cuda
    says "no room for the model's 2.06e+04 parameters; check the sizes in its config; s2s-train plan"
    S2S_EMU_BYTES=300000 exits 1 s2s-train -q -j1 r.yaml device=cuda
    says "no room for the optimizer's two moments of 2.06e+04 parameters; s2s-train plan"
    S2S_EMU_BYTES=400000 exits 1 s2s-train -q -j1 r.yaml device=cuda
    says "step 1: forward: model.layers.0.mlp: out of memory: no room for 0.0 MiB more beside 0.4 MiB in use: 0.1 MiB parameters, 0.1 MiB gradients, 0.2 MiB optimizer, 0.1 MiB activations"
    says "s2s-train plan says how much"
    [ ! -e run/checkpoints ]
}

@test "an emulated GPU trains Mamba layers as the CPU does" {
    jq '.layers_block_type = ["linear_attention"] | .mamba_num_heads = 2 | .n_groups = 1' "$ROOT/tests/oracle/models/nemotron_h/config.json" >mamba.json
    same_as_cpu r.yaml "model={llm: {config: mamba.json}}"
}

@test "a plan for a GPU needs none" {
    exits 0 s2s-train plan r.yaml device=cuda
    says "on cuda"
}

@test "an operation that is not on the GPU is named" {
    moe_recipe moe 'model_type="mixtral", num_local_experts=4'
    local source object objects=() # of sources there are: an object may have outlived its own
    for source in "$ROOT"/kernels/cuda/*.cu "$ROOT"/kernels/cuda/emu/*.cc; do
        object=$(dirname "$S2S_CUDA")/emu/$(basename "${source%.*}").o
        [[ $object == */moe_route.o || ! -e $object ]] || objects+=("$object")
    done
    g++ -shared -o less.so "${objects[@]}"
    S2S_CUDA=$PWD/less.so exits 1 s2s-train -j1 moe.yaml device=cuda
    says "route is not on the GPU yet"
}
