#!/bin/bash
# The whole pipeline once, on recorded speech: called by `make demo` from the top of the tree. Everything it makes is in demo/out/.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/bin:$PATH LC_ALL=C.UTF-8
# two ranks on two cores, also as root and in a container
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMP_NUM_THREADS=1
ranks="mpirun --oversubscribe --bind-to none -n 2"
out=demo/out
start=$SECONDS
rm -rf "$out"
mkdir -p "$out"

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi
step() { printf '\n%s[%3d s] %s%s\n' "$bold" $((SECONDS - start)) "$*" "$plain"; }
show() {
    printf '  $ %s\n' "$*"
    "$@"
}

step "1. Speech: prompts of the Asterisk PBX, recorded by Allison Smith (Debian package asterisk-core-sounds-en-wav, CC-BY-SA)"
show demo/manifest.sh "$out"
head -n 60 "$out/train.jsonl" >"$out/seen.jsonl"
wc -l "$out"/*.jsonl | sed 's/^/  /'

step "2. s2s-check judges configs before anything runs: our recipe passes, a NeMo recipe that would train to NaN does not"
show s2s-check --world-size 2 demo/recipe.yaml
if show s2s-check demo/broken.yaml; then
    echo "the broken recipe was not refused" >&2
    exit 1
fi

step "3. s2s-pack: audio and text to packed rows, no padding between utterances"
for set in train seen heldout; do
    show s2s-pack --manifest "$out/$set.jsonl" --tokenizer demo/tokenizer.json --prompt plain --audio mel \
        --tokens 2048 --cp 2 --report "$out/$set.report.json" -o "$out/$set.s2s"
done
s2s-shard stats "$out/train.s2s" | sed 's/^/  /'
show s2s-shard stats --plot "$out/packing.svg" "$out/train.s2s" >/dev/null

step "4. s2s-cpshard: one stream per context-parallel rank, and back, bit for bit; through pipes too"
show s2s-cpshard --cp 2 -o "$out/cp%r.s2s" "$out/train.s2s"
show s2s-cpshard --join -o "$out/joined.s2s" "$out/cp0.s2s" "$out/cp1.s2s"
s2s-shard cat "$out/train.s2s" | s2s-cpshard --cp 2 --rank 1 -o - | cmp - "$out/cp1.s2s"
cmp "$out/train.s2s" "$out/joined.s2s" && echo "  joined == packed, and the pipe's rank 1 == the file's"
rm -f "$out"/cp?.s2s "$out/joined.s2s"

step "5. s2s-encode: the encoder (still untrained) on two ranks gives the bytes of one"
show s2s-train -q demo/recipe.yaml run="$out/init" train.steps=0 mesh.dp=1
show s2s-ckpt convert -q --to hf "$out/init/checkpoints" "$out/init-model"
show s2s-encode -j 1 --encoder "$out/init-model/encoder" -o "$out/embed1.s2s" "$out/seen.s2s"
show $ranks s2s-encode -j 1 --encoder "$out/init-model/encoder" -o "$out/embed2.s2s" "$out/seen.s2s"
cmp "$out/embed1.s2s" "$out/embed2.s2s" && echo "  one rank == two ranks"

step "6. s2s-train: a small speech model from scratch on two ranks, about three minutes"
show $ranks s2s-train -v demo/recipe.yaml

step "7. What it learned: loss, token accuracy and word error rate; then the same with the audio of other prompts"
show s2s-train eval demo/recipe.yaml --checkpoint "$out/run/checkpoints" mesh.dp=1
show s2s-train eval demo/recipe.yaml --checkpoint "$out/run/checkpoints" --shuffle-audio mesh.dp=1

step "8. s2s-ckpt: the checkpoint as a Hugging Face directory"
show s2s-ckpt verify "$out/run/checkpoints"
show s2s-ckpt convert --to hf "$out/run/checkpoints" "$out/model"

step "9. The picture of the loss"
show s2s-train plot "$out/run" -o "$out/loss.svg"

step "Done. Look at:"
