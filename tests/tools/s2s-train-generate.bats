# s2s-train generate: many texts at once are what transformers makes of each, and what each is alone.
load common

setup_tool() {
    M=$ROOT/tests/oracle/models
    python3 - >list.jsonl <<'PY'
import json
for i, n in enumerate((7, 1, 12, 4, 9)):
    print(json.dumps({"input_ids": [(5 * i + 7 * k) % 50 + 3 for k in range(n)]}))
PY
}

# ids OPTION..: of the list, a line each
ids() {
    s2s-train generate -q --model "$M/mistral" --list list.jsonl --stop 54 --max-new-tokens 20 "$@"
}

@test "the likeliest tokens, and searches with beams, are those of transformers" {
    python3 "$M/check_generate.py" --stored
}

@test "what is drawn depends on the seed and the text's number, not on the batch" {
    ids --temperature 0.9 >want
    for batch in 1 2 3 5; do
        alike "$(ids --temperature 0.9 --batch $batch)" "$(cat want)"
    done
    exits 1 cmp -s want <(ids --temperature 0.9 --seed 1)
    exits 1 cmp -s want <(ids)
    # one token to draw from is the likeliest
    alike "$(ids --temperature 5 --top-k 1)" "$(ids)"
    alike "$(ids --temperature 5 --top-p 1e-9)" "$(ids)"
    alike "$(ids --temperature 1e-4)" "$(ids)"
    exits 1 cmp -s want <(ids --temperature 0.9 --top-k 3)
    exits 1 cmp -s want <(ids --temperature 0.9 --top-p 0.5)
    # equal texts are drawn by themselves
    head -n1 list.jsonl >one
    cat one one one >list.jsonl
    [ "$(ids --temperature 2 | sort -u | wc -l)" -eq 3 ]
    [ "$(ids | sort -u | wc -l)" -eq 1 ]
}

@test "texts that go on do not depend on the windows and batches they are in" {
    # after the window of 5 what came first is not seen
    ids --max-new-tokens 30 >want
    alike "$(ids --max-new-tokens 30 --batch 1)" "$(cat want)"
    alike "$(ids --max-new-tokens 30 --batch 4 -j2)" "$(cat want)"
    beams() { ids --beams 3 "$@" | sed 's/,"score".*//'; }
    alike "$(beams --batch 1)" "$(beams)"
}

@test "generate refuses what cannot be drawn, read or begun" {
    exits 2 ids --top-k 3
    says "--top-k and --top-p want a --temperature"
    exits 2 ids --beams 2 --temperature 1
    says "beams are not drawn"
    exits 2 s2s-train generate --model "$M/mistral"
    says "give --audio FILE, --prompt TEXT, or both, or --list FILE"
    echo '{"input_ids": [1, "x"]}' >bad.jsonl
    exits 1 s2s-train generate --model "$M/mistral" --list bad.jsonl
    says "bad.jsonl:1: input_ids[1] is not an id"
    echo '{"text": "x"}' >bad.jsonl
    exits 1 s2s-train generate --model "$M/mistral" --list bad.jsonl
    says "bad.jsonl:1: expected an object with audio, prompt or both, or with input_ids"
    echo '{"input_ids": [99]}' >bad.jsonl
    exits 1 s2s-train generate --model "$M/mistral" --list bad.jsonl
    says "the vocabulary has 62"
    exits 2 s2s-train generate --model "$M/mistral" --list list.jsonl -o list.jsonl
    exits 2 s2s-train generate --model "$M/mistral" --list absent.jsonl
}
