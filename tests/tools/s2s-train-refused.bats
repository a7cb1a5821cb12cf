# Meshes that s2s-train refuses before it starts: s2s-check and s2s-train plan refuse the same ones, in the same words, without a launch.
load common
load train

setup_tool() {
    tiny_model '' 2 0 1
    (grep -v '^model:' r.yaml; echo "model: {path: $ROOT/tests/oracle/models/qwen3_moe}") >moe.yaml
    sed 's/"num_hidden_layers": 2/"num_hidden_layers": 4/' llm.json >deep.json
    sed 's/llm.json/deep.json/' r.yaml >deep.yaml
}

# ranks MESH: how many it has
ranks() {
    local key n=1
    for key in $1; do
        case $key in mesh.tp=* | mesh.cp=* | mesh.pp=* | mesh.dp=*) n=$((n * ${key#*=})) ;; esac
    done
    echo $n
}

# checked RANKS RECIPE KEY=VALUE...: by s2s-check
checked() {
    local n=$1 recipe=$2
    shift 2
    s2s-check --world-size "$n" "${@/#/--set=}" "$recipe"
}

# launched RANKS RECIPE KEY=VALUE...: by who would train
launched() {
    local n=$1
    shift
    mpirun_n "$n" s2s-train -q -j1 "$@" run=bad
}

# refused BY: lines of `RECIPE MESH.. | TEXT`; both say it, and where s2s-train does it begins nothing
refused() {
    local what text n=0
    while IFS='|' read -r what text; do
        text=${text# }
        read -ra what <<<"$what"
        if [ "$1" = plan ]; then
            exits 1 s2s-train plan "${what[@]}" --world-size "$(ranks "${what[*]}")" </dev/null
            says "$text"
            exits 1 checked "$(ranks "${what[*]}")" "${what[@]}" </dev/null
        else
            exits 1 launched "$(ranks "${what[*]}")" "${what[@]}" </dev/null
        fi
        says "$text"
        [ ! -e bad/log.jsonl ]
        n=$((n + 1))
    done
    [ $n -gt 0 ]
}

@test "sizes of a model that ranks cannot share" {
    sed 's/"vocab_size": 64/"vocab_size": 1/' llm.json >v.json
    sed 's/"intermediate_size": 64/"intermediate_size": 63/' llm.json >i.json
    sed 's/"num_attention_heads": 4, "num_key_value_heads": 2/"num_attention_heads": 12, "num_key_value_heads": 3, "head_dim": 4/' llm.json >k.json
    sed 's/"num_key_value_heads": 2/"num_key_value_heads": 1, "head_dim": 2/' llm.json >d.json
    refused plan <<'LINES'
r.yaml mesh.tp=3 | num_attention_heads: 4 attention heads cannot be shared by 3 ranks (mesh.tp)
r.yaml mesh.tp=2 model.llm.config=v.json | vocab_size: 1 tokens cannot be shared by 2 ranks (mesh.tp)
r.yaml mesh.tp=2 model.llm.config=i.json | intermediate_size: 63 columns of an MLP cannot be shared by 2 ranks (mesh.tp)
r.yaml mesh.tp=4 model.llm.config=k.json | num_key_value_heads: 3 key-value heads cannot be shared by 4 ranks (mesh.tp)
r.yaml mesh.tp=4 model.llm.config=d.json | head_dim: 2 rows of a key-value head cannot be shared by 4 ranks (mesh.tp)
r.yaml mesh.cp=4 mesh.cp_comm=a2a | num_key_value_heads: 2 key-value heads cannot be shared by cp 4 x tp 1 ranks, as mesh.cp_comm a2a does
r.yaml mesh.cp=2 mesh.tp=2 mesh.cp_comm=a2a | num_key_value_heads: 2 key-value heads cannot be shared by cp 2 x tp 2 ranks, as mesh.cp_comm a2a does
LINES
    exits 0 checked 4 r.yaml mesh.tp=4
}

@test "shapes that no pipeline has" {
    refused plan <<'LINES'
deep.yaml mesh.pp=3 mesh.vpp=2 train.packs_per_step=6 | 4 layers cannot be dealt to 6 stages
deep.yaml mesh.pp=2 mesh.pp_layers=[2,1] | the stages have 3 layers, the model has 4
deep.yaml mesh.pp=3 mesh.pp_layers=[2,0,2] | stage 1 has 0 of 4 layers
deep.yaml mesh.pp=2 mesh.pp_layers=[4] | expected the layers of each of 2 stages (pp x vpp), found 1 numbers
deep.yaml mesh.vpp=2 | 2 chunks a rank need a pipeline: mesh.pp is 1
deep.yaml mesh.pp=2 mesh.vpp=2 train.packs_per_step=1 | expected at least as many as ranks (2) and at most all (1)
deep.yaml mesh.pp=2 mesh.vpp=2 train.packs_per_step=4 mesh.vpp_group=3 | 4 microbatches in groups of 3 leave 1
LINES
    # fewer microbatches than ranks only leave them idle
    exits 0 mpirun_n 2 s2s-train -j1 deep.yaml mesh.pp=2 train.packs_per_step=1 train.steps=1
    says "1 microbatch a step for 2 pipeline ranks"
}

@test "experts that ranks cannot share" {
    refused plan <<LINES
moe.yaml mesh.dp=3 mesh.ep=3 train.packs_per_step=3 | 8 experts cannot be shared by 3 ranks (mesh.ep)
r.yaml mesh.dp=2 mesh.ep=2 | mesh.ep 2 and mesh.etp 1 for a model without experts
moe.yaml mesh.tp=2 mesh.etp=1 | mesh.sequence_parallel=true
LINES
    # who starts ranks hears it once, and nothing has begun
    refused launch <<LINES
moe.yaml mesh.dp=2 mesh.ep=4 | etp*ep*pp = 1*4*1 does not divide 2 ranks
r.yaml mesh.tp=3 | [rank 0]: llm.json:1:109: num_attention_heads: 4 attention heads cannot be shared by 3 ranks (mesh.tp)
LINES
}

@test "a recipe that no mesh could train is not the mesh's fault" {
    sed 's/"model_type": "llama"/"model_type": "mystery"/' llm.json >odd.json
    exits 1 s2s-train plan r.yaml model.llm.config=odd.json
    says "mystery"
    exits 0 checked 2 r.yaml mesh.tp=2 model.llm.config=odd.json
}

# meshes MOST: every combination of sizes 1 and 2, of an etp of the experts' own and of what is divided, on so many ranks at most
meshes() {
    local tp cp pp dp ep etp sharding
    for tp in 1 2; do for cp in 1 2; do for pp in 1 2; do for dp in 1 2; do
        [ $((tp * cp * pp * dp)) -le "$1" ] || continue
        for ep in 1 2; do for etp in '' ' mesh.etp=1'; do for sharding in no_shard optim optim_grads_params; do
            echo "mesh.tp=$tp mesh.cp=$cp mesh.pp=$pp mesh.dp=$dp mesh.ep=$ep$etp mesh.data_parallel_sharding_strategy=$sharding"
        done; done; done
    done; done; done; done
}

# judged RECIPE MESH COMMAND...: the command's verdict is s2s-check's
judged() {
    local recipe=$1 mesh=$2 theirs=0 ours=0 said
    shift 2
    said=$("$@" 2>&1 >/dev/null </dev/null) || theirs=$?
    # shellcheck disable=SC2086
    checked "$(ranks "$mesh")" "$recipe" $mesh >found 2>&1 </dev/null || ours=$?
    if [ $theirs -gt 1 ] || [ $ours -ne $theirs ]; then
        printf '%s of %s: s2s-train %s, s2s-check %s\n%s\n' "$mesh" "$recipe" $theirs $ours "$said" >&2
        cat found >&2
        return 1
    fi
    echo $theirs >>verdicts
}

# both verdicts were heard: ACCEPTED REFUSED
heard() {
    alike "$(sort verdicts | uniq -c | awk '{ printf "%s ", $1 }')" "$1 $2 "
}

@test "every mesh of two ranks is refused by both, or by none" {
    while read -r mesh; do
        # shellcheck disable=SC2086
        judged moe.yaml "$mesh" s2s-train plan moe.yaml --world-size "$(ranks "$mesh")" $mesh
    done < <(meshes 2)
    heard 39 21
}

@test "long: every mesh of up to sixteen ranks is refused by both, or by none" {
    for recipe in deep.yaml moe.yaml; do
        while read -r mesh; do
            # shellcheck disable=SC2086
            judged $recipe "$mesh" s2s-train plan $recipe --world-size "$(ranks "$mesh")" $mesh
        done < <(meshes 16)
    done
    heard 198 186
}

@test "long: every mesh of two ranks that is accepted starts, and no other does" {
    while read -r mesh; do
        rm -rf bad
        # shellcheck disable=SC2086
        judged moe.yaml "$mesh" launched "$(ranks "$mesh")" moe.yaml train.steps=1 $mesh
    done < <(meshes 2)
    heard 39 21
}

@test "keys of parts beside a whole model are refused, not passed over" {
    for key in 'encoder: {override: {dropout: 0.1}}' 'llm: {override: {attention_dropout: 0.1}}' 'vision_projection: {inner: 8}'; do
        printf 'run: r\nmodel: {path: m, %s}\ndata: {train: [t.s2s]}\noptimizer: {lr: 1.0e-3}\ntrain: {steps: 1}\n' "$key" >whole.yaml
        exits 1 s2s-train whole.yaml
        says "has no effect beside model.path"
    done
}
