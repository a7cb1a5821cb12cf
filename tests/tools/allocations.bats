# Memory that is out, at whatever allocation: each program ends with one message and leaves nothing, or makes what it makes without that.
load common
load inject
load train

setup_file() { inject_build; }

setup_tool() {
    inject_or_skip
    tok=$ROOT/demo/tokenizer.json
}

# of tests/oracle/data: blends, tars, cuts, Shar, conversations, texts
data() { python3 "$ROOT/tests/oracle/data/make_data.py"; }

pack() { every_malloc out.s2s s2s-pack -q -j1 --tokenizer "${tokens:-$tok}" "$@" -o out.s2s; }

@test "memory that is lost where an allocation fails is noticed" {
    [ -n "$LSAN" ] || skip "no leak sanitizer that works here"
    cat >loses.c <<'C'
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    char *volatile a = malloc(10), *volatile b = malloc(10);
    if (!a || !b)
        return fputs("s2s-x: out of memory\n", stderr), KEEP ? b = NULL, 1 : (free(a), free(b), 1);
    free(a), free(b);
    return puts("made"), 0;
}
C
    ${CC:-cc} -DKEEP=0 loses.c -o frees
    ${CC:-cc} -DKEEP=1 loses.c -o loses
    every_malloc - ./frees
    exits 1 every_malloc - ./loses
    says "malloc 1 of 3: memory is lost, or it crashes"
}

@test "s2s-pack: rows of ids" {
    tiny_model '' 1 1 1
    every_malloc out.s2s s2s-pack -q --ids ids.jsonl --tokens 64 -o out.s2s
    every_malloc out.s2s s2s-pack -q --ids ids.jsonl --layout sft --tokens 64 -o out.s2s
    seq 20 >lengths.txt
    every_malloc - s2s-pack bins --tokens 40 --json lengths.txt
}

@test "s2s-pack: sound of files, features, FLAC, what is drawn" {
    data
    head -n 3 nemo/u0.json | sed 's=\.\./wav=wav=' >m.json
    pack --manifest m.json --tokens 200
    pack --manifest m.json --tokens 200 --audio mel
    pack --manifest m.json --tokens 200 --audio flac
}

@test "s2s-pack: blends, members of tars, cuts, Shar, WebDataset" {
    data
    pack --manifest tar/manifest_1.json --tars tar/audio_1.tar --batch-size 2
    pack --input-cfg "$ROOT/tests/oracle/data/orders/tarred.yaml" --samples 6 --tokens 256 --audio none
}

@test "s2s-pack: conversations and texts" {
    data
    pack --conversations talk/t0.jsonl --batch-size 100 --audio none
    pack --text txt/s0_0.txt --batch-size 10
    echo '{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}' >s.jsonl
    pack --sft s.jsonl --batch-size 10
}

@test "s2s-pack: tokenizers of each kind" {
    printf 'hello world\nna\xc3\xafve\n' >text
    for tokens in demo/tokenizer.json tests/oracle/tokenizer_bytelevel_qwen/tokenizer.json tests/oracle/text/sentencepiece; do
        [ "$tokens" != tests/oracle/text/sentencepiece ] || [ -e "$S2S_BIN/libs2s-sentencepiece.so" ] || continue
        FAILS="1|2" every_malloc ids s2s-pack tokenize -j1 --tokenizer "$ROOT/$tokens" text -o ids # 2: a file that is not opened
    done
    mkdir folder
    cp "$tok" folder/tokenizer.json
    jq -n '{eos_token: "<|endoftext|>", chat_template: "{% for m in messages %}{{ m.role }}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"}' >folder/tokenizer_config.json
    echo '[{"role": "user", "content": "hello"}, {"role": "assistant", "content": " there"}]' >talk
    FAILS="1|2" every_malloc ids s2s-pack tokenize -j1 --tokenizer folder --prompt chat --json talk -o ids
}

@test "s2s-shard: what reads, joins, cuts and exports" {
    tiny_model '' 1 1 1
    every_malloc - s2s-shard ls --json t.s2s
    every_malloc out.s2s s2s-shard shuffle -q --seed 3 t.s2s -o out.s2s
    every_malloc out.s2s s2s-shard cat -q --zstd 3 t.s2s t.s2s -o out.s2s
    every_malloc - s2s-shard view --json t.s2s
    data
    head -n 3 nemo/u0.json | sed 's=\.\./wav=wav=' >m.json
    s2s-pack -q --tokenizer "$tok" --manifest m.json --tokens 200 --audio flac -o a.s2s
    every_malloc out s2s-shard export -q -o out a.s2s
}

@test "s2s-cpshard: parts, and the whole of them" {
    tiny_model '' 1 1 1
    s2s-pack -q --ids ids.jsonl --tokens 64 --cp 2 -o whole.s2s
    every_malloc c0.s2s s2s-cpshard -q --cp 2 --rank 0 whole.s2s -o c0.s2s
    s2s-cpshard -q --cp 2 whole.s2s -o 'p%r.s2s'
    every_malloc out.s2s s2s-cpshard -q --join -o out.s2s p0.s2s p1.s2s
}

@test "s2s-encode, s2s-check" {
    python3 "$ROOT/tests/oracle/data/make_data.py"
    head -n 2 nemo/u0.json | sed 's=\.\./wav=wav=' >m.json
    s2s-pack -q --tokenizer "$tok" --manifest m.json --tokens 200 --audio mel -o a.s2s
    RUNS=4 every_malloc out.s2s s2s-encode -q -j1 --encoder "$ROOT/tests/oracle/models/salm_llama/encoder" a.s2s -o out.s2s
    FAILS="1|2" every_malloc - s2s-check --json "$ROOT/tests/oracle/rules/s2s.yaml"
}

@test "s2s-train: steps, images, dropout, text" {
    tiny_model '' 1 1 1
    RUNS=4 every_malloc run s2s-train -q -j1 r.yaml train.dropout=0.1
    RUNS=4 every_malloc - s2s-train plan -j1 --json r.yaml
}
