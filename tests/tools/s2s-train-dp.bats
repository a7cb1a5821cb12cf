load common
load train

# Data parallelism: what ranks with other packs exchange, and what each of them keeps.

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

@test "a bucket of no size is refused" {
    exits 1 s2s-train r.yaml mesh.bucket_mb=0
    says "mesh.bucket_mb"
    says "above 0"
    exits 1 s2s-train r.yaml mesh.overlap_grad_reduce=2
    says "mesh.overlap_grad_reduce"
}
