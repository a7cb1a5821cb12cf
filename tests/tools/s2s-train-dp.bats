# Data parallelism: what ranks with other packs exchange, and what each of them keeps.
load common
load train

setup_tool() {
    tiny_model 'seen: t.s2s' 6 0 2
}

# same_checkpoint A B STEP: every byte of weights and moments
same_checkpoint() {
    local at
    at=checkpoints/$(printf 'iter_%07d' "$3")
    alike "$(s2s-ckpt ls --json --sha256 "$1/$at" | grep -v '"path"')" "$(s2s-ckpt ls --json --sha256 "$2/$at" | grep -v '"path"')"
}

@test "gradients in buckets of any size, beside the backward or after it, give the bits of one sum" {
    mpirun_n 2 s2s-train -j1 r.yaml run=whole mesh.dp=2 mesh.overlap_grad_reduce=false
    for mb in 25 0.01 0.001; do
        mpirun_n 2 s2s-train -j1 r.yaml run=run$mb mesh.dp=2 mesh.bucket_mb=$mb
        alike "$(log whole)" "$(log run$mb)"
        same_checkpoint whole run$mb 6
    done
    mpirun_n 3 s2s-train -j1 r.yaml run=three mesh.dp=3 train.packs_per_step=6 mesh.overlap_grad_reduce=false
    mpirun_n 3 s2s-train -j1 r.yaml run=parts mesh.dp=3 train.packs_per_step=6 train.recompute=true mesh.bucket_mb=0.005
    same_checkpoint three parts 6
}

@test "ranks that divide the optimizer have the bits of ranks that do not" {
    optim="mesh.data_parallel_sharding_strategy=optim"
    for n in 2 3; do
        mpirun_n $n s2s-train -j1 r.yaml run=plain$n mesh.dp=$n train.packs_per_step=6
        for mb in 25 0.01 0.002; do
            mpirun_n $n s2s-train -j1 r.yaml run=optim$n.$mb mesh.dp=$n train.packs_per_step=6 $optim mesh.bucket_mb=$mb
            nearly plain$n optim$n.$mb
            alike "$(bits plain$n 6)" "$(bits optim$n.$mb 6)"
        done
    done
    # one rank divides nothing
    s2s-train -j1 r.yaml run=alone
    s2s-train -j1 r.yaml run=alone.optim $optim mesh.bucket_mb=0.01
    alike "$(bits alone 6)" "$(bits alone.optim 6)"
}

@test "ranks that divide the parameters too have the bits of ranks that do not" {
    all="mesh.data_parallel_sharding_strategy=optim_grads_params"
    for n in 2 3; do
        # one microbatch a rank: sums over ranks and microbatches come in one order
        mpirun_n $n s2s-train -j1 r.yaml run=plain$n mesh.dp=$n train.packs_per_step=$n
        for how in train.recompute=false train.recompute=true mesh.overlap_grad_reduce=false; do
            mpirun_n $n s2s-train -j1 r.yaml run=all$n.$how mesh.dp=$n train.packs_per_step=$n $all $how train.eval_every=2
            nearly plain$n all$n.$how
            alike "$(bits plain$n 6)" "$(bits all$n.$how 6)"
        done
    done
    # an output layer of its own, weights from a folder, and parts that are frozen
    grep -v '^model:' r.yaml >p.yaml
    for how in 'model.freeze=["*embed*","*layers.0.*"]' 'model.freeze=["*norm.weight","lm_head*"]' optimizer.clip_norm=0 train.precision=bf16-mixed; do
        rm -rf plain all
        mpirun_n 2 s2s-train -j1 p.yaml "model.path=$ROOT/tests/oracle/models/llama_gqa_untied" run=plain mesh.dp=2 train.packs_per_step=2 "$how"
        mpirun_n 2 s2s-train -j1 p.yaml "model.path=$ROOT/tests/oracle/models/llama_gqa_untied" run=all mesh.dp=2 train.packs_per_step=2 "$how" $all
        nearly plain all
        alike "$(bits plain 6)" "$(bits all 6)"
    done
    # beside other axes, where a rank has one microbatch; what is gathered in BF16 is what was rounded
    while read -r model packs mesh; do
        rm -rf plain all
        read -ra mesh <<<"$mesh"
        for how in plain all; do
            mpirun_n 4 s2s-train -j1 p.yaml "model.path=$ROOT/tests/oracle/models/$model" run=$how train.packs_per_step="$packs" "${mesh[@]}" train.precision=bf16-mixed \
                mesh.data_parallel_sharding_strategy="$([ $how = plain ] && echo no_shard || echo optim_grads_params)" </dev/null
        done
        nearly plain all
        alike "$(bits plain 6)" "$(bits all 6)"
    done <<'LINES'
qwen3_moe 4 mesh.dp=4 mesh.ep=2
llama_gqa_tied 2 mesh.pp=2 mesh.dp=2
LINES
}

@test "plan says what a rank keeps of what is divided" {
    sed -i 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 16/' llm.json
    s2s-train plan r.yaml --mesh dp=4 --json >whole.json
    s2s-train plan r.yaml --mesh dp=4 mesh.data_parallel_sharding_strategy=optim_grads_params --json >divided.json
    # half of what is gathered in F32
    s2s-train plan r.yaml --mesh dp=4 mesh.data_parallel_sharding_strategy=optim_grads_params train.precision=bf16-mixed --json >half.json
    # a quarter of each; of what layers work with two stand whole at a time, as does the embedding
    python3 - <<'PY'
import json
whole, divided = (json.load(open(f + ".json"))["memory"] for f in ("whole", "divided"))
share = {part: divided[part] / whole[part] for part in ("parameters", "gradients", "optimizer")}
assert 0.25 <= share["optimizer"] <= 0.27 and 0.25 < share["gradients"] < 0.6 and 0.25 < share["parameters"] < 0.6, share
wide, half = (json.load(open(f + ".json"))["sent"]["main/dp"] for f in ("divided", "half"))
# values are gathered twice, gradients summed in F32 once, for each microbatch
assert 0.65 <= half / wide <= 0.7, half / wide
PY
}

@test "plan says what a rank keeps of an optimizer that is divided, and that it sends as much as before" {
    whole=$(s2s-train plan r.yaml --mesh dp=4 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["memory"]["optimizer"])')
    part=$(s2s-train plan r.yaml --mesh dp=4 mesh.data_parallel_sharding_strategy=optim --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["memory"]["optimizer"])')
    awk -v a="$whole" -v b="$part" 'BEGIN { exit !(b > 0.24 * a && b < 0.27 * a) }'
    # gradients go to the rank that updates them, and values from there: together a sum over all
    whole=$(s2s-train plan r.yaml --mesh dp=4 --json | jq '.sent["main/dp"]')
    part=$(s2s-train plan r.yaml --mesh dp=4 mesh.data_parallel_sharding_strategy=optim --json | jq '.sent["main/dp"]')
    awk -v a="$whole" -v b="$part" 'BEGIN { exit !(b > 0.98 * a && b < 1.02 * a) }'
}

@test "a bucket of no size is refused" {
    exits 1 s2s-train r.yaml mesh.bucket_mb=0
    says "mesh.bucket_mb"
    says "above 0"
    exits 1 s2s-train r.yaml mesh.overlap_grad_reduce=2
    says "mesh.overlap_grad_reduce"
}
