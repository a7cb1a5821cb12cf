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

step "2. s2s-check judges configs before anything runs: our recipe passes, a NeMo recipe that would train to NaN is refused"
show s2s-check --world-size 2 demo/recipe.yaml && echo "  demo/recipe.yaml: nothing to complain about"
if show s2s-check demo/broken.yaml; then
    echo "the broken recipe was not refused" >&2
    exit 1
fi

step "3. s2s-pack: decode, resample, log-mel, tokenize, and pack to rows without padding between utterances"
for set in train seen heldout; do
    show s2s-pack --manifest "$out/$set.jsonl" --tokenizer demo/tokenizer.json --prompt plain --audio mel \
        --tokens 512 --cp 2 --report "$out/$set.report.json" -o "$out/$set.s2s"
done
echo "  Single words, each faster and slower in eight ways to learn from; as it was recorded, and higher or lower, to be tested with"
pack=(s2s-pack -q --tokenizer demo/tokenizer.json --prompt plain --audio mel --tokens 512)
show "${pack[@]}" --manifest "$out/words.jsonl" --speed 0.8,0.85,0.9,0.95,1.05,1.1,1.15,1.2 --epochs 8 -o "$out/words.s2s"
show "${pack[@]}" --manifest "$out/words.jsonl" -o "$out/recorded.s2s"
show "${pack[@]}" --manifest "$out/words.jsonl" --pitch=-1,1 --epochs 2 -o "$out/pitch.s2s"
show "${pack[@]}" --manifest "$out/swapped.jsonl" -o "$out/swapped.s2s"
s2s-shard stats --plot "$out/packing.svg" "$out/train.s2s" | sed 's/^/  /'
s2s-shard verify "$out"/*.s2s | sed 's/^/  /'

step "4. s2s-cpshard: one stream per context-parallel rank, and back, bit for bit; through pipes too"
show s2s-cpshard --cp 2 -o "$out/cp%r.s2s" "$out/train.s2s"
show s2s-cpshard --join -o "$out/joined.s2s" "$out/cp0.s2s" "$out/cp1.s2s"
s2s-shard cat "$out/train.s2s" | s2s-cpshard --cp 2 --rank 1 -o - | cmp - "$out/cp1.s2s"
cmp "$out/train.s2s" "$out/joined.s2s" && echo "  joined == packed, and rank 1 through a pipe == rank 1 from the file"
rm -f "$out"/cp?.s2s "$out/joined.s2s"

step "5. s2s-encode: the model as it starts, its encoder on one rank and on two"
show s2s-train -q demo/recipe.yaml run="$out/init" train.steps=0 mesh.dp=1
show s2s-ckpt convert -q --to hf "$out/init/checkpoints" "$out/init-model"
show s2s-encode -q --encoder "$out/init-model/encoder" -o "$out/embed1.s2s" "$out/seen.s2s"
show $ranks s2s-encode -q --encoder "$out/init-model/encoder" -o "$out/embed2.s2s" "$out/seen.s2s"
cmp "$out/embed1.s2s" "$out/embed2.s2s" && echo "  embeddings from one rank == from two"
rm -rf "$out/init" "$out"/embed?.s2s

step "6. s2s-train: a small speech model from scratch, data parallel on two ranks, under three minutes"
show $ranks s2s-train -v demo/recipe.yaml
show s2s-train plot "$out/run" -o "$out/loss.svg"

step "7. What it learned: prompts of the training set, and prompts it never saw"
show s2s-train eval demo/recipe.yaml mesh.dp=1 --show 6 | tee "$out/eval.txt"
echo
echo "  The same, every utterance with the sound of another one: what the model knows without listening"
show s2s-train eval demo/recipe.yaml mesh.dp=1 --shuffle-audio --no-text | tee "$out/eval-shuffled.txt"

step "8. s2s-train, once more: a smaller model that learns to write down single words, in a minute"
show $ranks s2s-train -v demo/words.yaml
show s2s-train eval demo/words.yaml mesh.dp=1 --show 1000 >"$out/words.txt"
demo/words.sh "$out" | tee "$out/words-table.txt"

step "9. s2s-ckpt: the checkpoint as a Hugging Face directory"
show s2s-ckpt verify "$out/run/checkpoints"
show s2s-ckpt convert --to hf "$out/run/checkpoints" "$out/model"
one=$(sed -n 's/.*"audio_filepath": "\([^"]*\)".*/\1/p' "$out/seen.jsonl" | sed -n 5p)
show s2s-train generate --model "$out/model" --audio "$one"

# The loss must be worse, and clearly so, when the audio is another's: else the model learned texts, not speech. How much worse is a matter of
# how many steps the machine made in its three minutes: 4 times with two cores of its own, 1.8 after 710 steps, 1.17 after 300, 1.03 after 112.
steps=$(ls -d "$out"/run/checkpoints/iter_* | tail -n 1)
steps=$((10#${steps##*_}))
least=1.2
[ $steps -ge 600 ] || least=1.05
[ $steps -ge 300 ] || least=1
accuracy=$(awk -v least=$least -F'loss |accuracy |[,%]' '/^seen:/ {
        if (NR == FNR) { own = $2; accuracy = $4 } else other = $2
    }
    END {
        if (!(other > least * own)) { print "the model does not listen: loss " own " and " other > "/dev/stderr"; exit 1 }
        printf "%.0f", accuracy
    }' "$out/eval.txt" "$out/eval-shuffled.txt")

right=$(sed -n 's/.*not seen in training: \(.*\) words right/\1/p' "$out/words-table.txt")

step "Done in $((SECONDS - start)) s"
cat <<END
  What three minutes can do: a model of three million parameters that heard sixteen minutes of one voice. Told what was said so far, it
  names the next letter of the prompts it was trained on $accuracy times in a hundred, and it listens: with the sound of another prompt its
  loss is higher.
  What one minute more can: a second model writes down single words of this voice, and of those recordings as they are, of which it knows only
  faster and slower ones, $right are right. With the sound of another word it writes that one.
  Whole sentences of strangers take a speech recogniser some ten thousand times the data and the time. The programs stay the same.

  $out/packing.svg    the packed rows, a colour an utterance
  $out/loss.svg       the loss, step by step
  $out/eval.txt       losses, word error rates, transcripts
  $out/words.txt      what was said and heard, word by word
  $out/run/           recipe.yaml as resolved, log.jsonl, TensorBoard events, checkpoints/
  $out/model/         llm/ and encoder/ open with transformers' from_pretrained
  $out/*.s2s          the streams: try  bin/s2s-shard view --record 0 $out/heldout.s2s | head

  Speech: Asterisk core sounds, recorded by Allison Smith, CC-BY-SA-3.0.
END
