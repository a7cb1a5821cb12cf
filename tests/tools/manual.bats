# The manual is true: pages have the options of --help, and the examples of both run.
load common

programs="s2s-check s2s-ckpt s2s-cpshard s2s-encode s2s-pack s2s-shard s2s-train"

# helps PROGRAM: its help and those of its commands, as wide as people see them
helps() {
    local command
    "$1" --help | tee help.first
    for command in $(sed '/^Examples:/,$d' help.first |
        sed -nE 's/^  ([a-z]+)  +[A-Za-z].*/\1/p; s/^  or:  [^ ]+ \[OPTION...\] ([a-z]+) .*/\1/p'); do
        "$1" "$command" --help
    done
}

# page PROGRAM: its pages without scdoc's escapes and forced ends of lines
page() {
    sed 's/\\\(.\)/\1/g; s/++$//' "$ROOT/doc/man/$1"*.scd
}

# examples PROGRAM: the command lines of its helps and pages
examples() {
    helps "$1" | sed -nE '/^Examples?:$/,/^$/s/^  //p; s/^Example: //p'
    page "$1" | sed -n '/^# EXAMPLES/,/^# SEE/p' | grep -oE '^	?(s2s-|mpirun|printf).*' | tr -d '\t'
}

@test "pages are what scdoc takes" {
    for file in "$ROOT"/doc/man/*.scd; do
        exits 0 scdoc <"$file"
    done
}

@test "pages have the options of --help, and no others" {
    for program in $programs; do
        helps $program | grep -oE '^ +(-[a-zA-Z], )?--[a-z0-9-]+' | grep -oE -- '--.*' | sort -u >help
        [ -s help ]
        page $program | grep -oE -- '--[a-z0-9-]+' | sort -u >said
        missing=$(comm -23 help said | grep -vxE -- '--(help|version|jobs|json|output|quiet|seed|verbose)' || :)
        [ -z "$missing" ] || { echo "$program: not in the page:" $missing >&2; false; }
        # a line of options begins with them; elsewhere the page may speak of other programs'
        page $program | grep -E '^\*-' | grep -oE -- '--[a-z0-9-]+' | sort -u >said
        extra=$(comm -13 help said)
        [ -z "$extra" ] || { echo "$program: in the page alone:" $extra >&2; false; }
    done
}

# belongings: in all/ everything that the examples name
belongings() {
    local data=$ROOT/tests/oracle/ckpt/data rules=$ROOT/tests/oracle/rules i
    mkdir all && cd all
    cp "$ROOT/demo/tokenizer.json" . && cp tokenizer.json tok.json
    python3 - "$ROOT" <<'PY'
import json, math, struct, sys, wave
def sound(name, seconds):
    with wave.open(name, "wb") as w:
        w.setnchannels(1); w.setsampwidth(2); w.setframerate(16000)
        w.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(i * i / 9e5))) for i in range(int(16000 * seconds))))
with open("train.jsonl", "w") as f:
    for i in range(8):
        sound(f"{i}.wav", .4 + i / 10)
        f.write(json.dumps({"audio_filepath": f"{i}.wav", "duration": .4 + i / 10, "text": "hello world"}) + "\n")
sound("hello.wav", .5)
with open("rows.jsonl", "w") as f:
    for i in range(6):
        f.write(json.dumps({"id": f"u{i}", "input_ids": [7 * i + 3 * k + 1 for k in range(5 + i)]}) + "\n")
open("lengths.txt", "w").write("4\n1\n3\n2\n")
for name, less in (("encoder.json", {"subsampling_conv_channels": 8}), ("llm.json", {"head_dim": 16})):
    config = json.load(open(f"{sys.argv[1]}/demo/{name}"))
    config.update(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, intermediate_size=48, **less)
    json.dump(config, open(name, "w"))
# ten pieces of SentencePiece, for the ten classes of tiny.nemo
pieces = [("<unk>", 2)] + [(c, 1) for c in "abcdefghi"]
with open("tokenizer.model", "wb") as f:
    for text, kind in pieces:
        piece = bytes([10, len(text)]) + text.encode() + b"\x15" + struct.pack("<f", -1) + bytes([0x18, kind])
        f.write(bytes([10, len(piece)]) + piece)
PY
    cat >recipe.yaml <<'YAML'
run: runs/a
model: {encoder: {config: encoder.json}, llm: {config: llm.json}}
data: {train: [packs.s2s], eval: {seen: packs.s2s}, tokenizer: tokenizer.json}
mesh: {dp: null}
optimizer: {name: adamw, lr: 1.0e-3}
schedule: {name: cosine, warmup_steps: 1, decay_steps: 300}
train: {steps: 3, packs_per_step: 4}
checkpoint: {every: 1, keep: 3}
YAML
    s2s-pack -q --manifest train.jsonl --tokenizer tokenizer.json --audio mel --tokens 64 --cp 2 -o packs.s2s
    mkdir sounds && s2s-pack -q --manifest train.jsonl --tokenizer tokenizer.json --audio pcm --tokens 64 -o sounds/packs.s2s
    mkdir sft && s2s-pack -q --ids rows.jsonl --tokens 64 --layout sft -o sft/packs.s2s
    s2s-pack npy -q -o packs.npy sft/packs.s2s
    for i in 0 1; do s2s-pack -q --ids rows.jsonl --tokens 64 --plan --report $i.json >plan; done
    s2s-train -q recipe.yaml mesh.dp=1
    sed 's/runs.a/runs\/lora/; s/^model: {/&lora: {rank: 2}, /' recipe.yaml >lora.yaml
    s2s-train -q lora.yaml mesh.dp=1 train.steps=1
    cp -r runs/a runs/demo
    mkdir checkpoints run
    cp -r runs/a/checkpoints/iter_0000003 iter_0001000
    cp -r iter_0001000 checkpoints && printf 1000 >checkpoints/latest_checkpointed_iteration.txt
    for i in 0800 0900 1000; do cp -r iter_0001000 run/iter_000$i; done
    s2s-ckpt convert -q --to hf checkpoints model.speech
    cp -r "$ROOT/tests/oracle/models/llama_gqa_untied" model.text
    cp -r model.text D && cp D/inputs.safetensors batch.safetensors && cp D/expected.json .
    cp -r model.text before && cp -r before after
    cp model.text/model.safetensors "$data/pytorch_model.bin" .
    cp -r "$data/mp_rank" mp_ranks && cp -r "$data/mcore015_vlm_tp2" vlm
    cp "$data/tiny.nemo" model.nemo && s2s-ckpt convert -q --to hf model.nemo parakeet.nemo
    cp -r model.speech/encoder parakeet.encoder
    cp packs.s2s train.s2s && cp packs.s2s a.s2s && cp packs.s2s b.s2s
    s2s-cpshard -q --cp 2 -o 'cp%r.s2s' packs.s2s
    s2s-shard split -q --parts 4 -o 'part%d.s2s' packs.s2s
    s2s-shard cat packs.s2s -o all.s2s.zst
    cp "$rules/slm.yaml" salm.yaml && cp "$rules/llama8b.json" config.json
    mkdir conf && cp recipe.yaml conf
    printf '#!/bin/bash\n#SBATCH -N 1\n#SBATCH --ntasks-per-node=8\nexport TP=2\nsrun bash run.sh\n' >job.sbatch
    echo 'python pretrain_gpt.py --num-layers 4 --tensor-model-parallel-size $TP' >run.sh
    cd ..
}

@test "every program's help says what its exit status means" {
    for program in $programs; do
        exits 0 $program --help
        says "Exit status:"
    done
    exits 0 s2s-train probe --help
    says "Exit status:"
    for program in s2s-ckpt s2s-shard; do
        exits 2 $program --json
        says "$program: a command is missing before '--json'; options follow it"
    done
}

@test "the front end is a program too" {
    command -v s2s || skip "it is not beside the programs of this build"
    exits 0 s2s --help
    for program in $programs; do
        [[ "$output"$'\n' == *"  ${program#s2s-}"$'\n'* ]]
    done
    alike "$(s2s --version)" "$(s2s-ckpt --version | sed 's/^s2s-ckpt/s2s/')"
    run bash -c "s2s 2>said"
    [ "$status" -eq 2 ]
    [ -z "$output" ]
    [ "$(cat said)" = "s2s: a program is missing; 's2s --help' lists them" ]
    alike "$(s2s ckpt --help)" "$(s2s-ckpt --help)"
}

@test "every example of --help and of the manual runs" {
    belongings
    n=0
    for program in $programs; do examples $program; done | sort -u >list
    while IFS= read -r line; do
        cd "$BATS_TEST_TMPDIR" && rm -rf here && cp -r all here && cd here
        # one name for several things; what is to be written must not be there
        case $line in
        *"--to hf"*model/ | *"--to nemo"* | *"--to hf"*parakeet/) mv parakeet.nemo parakeet ;;
        *"--map llama"* | *" cat model/"* | *" probe "*) mv model.text model ;;
        *) mv model.speech model && mv parakeet.encoder parakeet ;;
        esac
        case $line in
        *"--to hf"*parakeet/) rm -r parakeet ;;
        *"verify *.s2s"*) rm cp*.s2s ;;
        esac
        want=0
        case $line in
        # names of an optimizer that the other has not; configs with a finding, of which some are illegal
        *"diff --tolerance"* | *" --argv "* | *"--world-size 8..64 "* | *"--format github salm.yaml" | s2s-check*"16 --device"*) want=1 ;;
        esac
        exits $want bash -o pipefail -c "$line" </dev/null
        n=$((n + 1))
    done <list
    [ "$n" -ge 70 ]
}

@test "the name map of the manual is one" {
    sed -n '/^```/,/^```/{/^```/!p}' "$ROOT/doc/man/s2s-ckpt-map.5.scd" >mine.map
    [ "$(wc -l <mine.map)" -ge 5 ]
    exits 0 s2s-ckpt convert -q --to torch_dist --map mine.map "$ROOT/tests/oracle/models/llama_gqa_untied" out
    exits 0 s2s-ckpt ls out
    says "decoder.layers.self_attention.linear_qkv.weight"
    says "decoder.layers.mlp.linear_fc1.weight"
}
