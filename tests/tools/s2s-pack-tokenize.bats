# s2s-pack tokenize: text to ids and back.
load common

setup_tool() {
    tok=$ROOT/tests/oracle/tokenizer_bytelevel_llama3/tokenizer.json
    qwen=$ROOT/tests/oracle/tokenizer_bytelevel_qwen/tokenizer.json
}

@test "tokenize says how it is used" {
    exits 0 s2s-pack tokenize --help
    says "--tokenizer"
    says "--no-special"
    exits 0 s2s-pack tokenize --version
}

@test "tokenize refuses a bad command line" {
    exits 2 s2s-pack tokenize
    says "--tokenizer is missing"
    exits 2 s2s-pack tokenize --tokenizer "$tok" --unknown
    exits 2 s2s-pack tokenize --tokenizer "$tok" a b
    exits 2 s2s-pack tokenize --tokenizer "$tok" nowhere.txt
    says nowhere.txt
    exits 2 s2s-pack tokenize --tokenizer nowhere.json </dev/null
    says nowhere.json
    exits 2 s2s-pack tokenize --tokenizer "$tok" .
    says ".: is a folder"
    echo a line >text
    exits 2 s2s-pack tokenize --tokenizer "$tok" -o text text
    says "choose another OUT"
    same text - <<<"a line"
}

@test "lines become ids and come back, through pipes and files" {
    printf 'hello world\n\n  two  spaces \nna\xc3\xafve \xe4\xb8\xad\n' >text
    s2s-pack tokenize --tokenizer "$tok" text -o ids
    [ "$(head -c 5 ids)" = "1500 " ]
    s2s-pack tokenize --tokenizer "$tok" --decode --no-special ids -o back
    same text back
    s2s-pack tokenize --tokenizer "$tok" <text | s2s-pack tokenize --tokenizer "$tok" --decode --no-special - >piped
    same text piped
    s2s-pack tokenize --no-special --tokenizer "$tok" <text | s2s-pack tokenize --tokenizer "$tok" --decode >plain
    same text plain
}

@test "JSON carries NUL and line feeds" {
    printf '%s\n' '"a\u0000b\nc"' >text
    run s2s-pack tokenize --json --tokenizer "$qwen" text
    [ "$status" -eq 0 ]
    [ "$(jq -c '.ids | length' <<<"$output")" = 5 ]
    s2s-pack tokenize --json --tokenizer "$qwen" text | s2s-pack tokenize --json --decode --tokenizer "$qwen" >back
    alike "$(jq -c . back)" "$(jq -c . text)"
    exits 1 bash -c "s2s-pack tokenize --json --tokenizer '$qwen' text | sed 's/.*\[//;s/\].*//;s/,//g' | s2s-pack tokenize --decode --tokenizer '$qwen'"
    says "line feed"
}

@test "a bad line is named" {
    printf 'fine\n\xff\n' >text
    exits 1 s2s-pack tokenize --tokenizer "$tok" text
    says "s2s-pack: text:2: "
    says "not UTF-8"
    printf '1 2\n3 x\n' >ids
    exits 1 s2s-pack tokenize --tokenizer "$tok" --decode ids
    says "s2s-pack: ids:2: "
    printf '1 2\0 3\n' >ids
    exits 1 s2s-pack tokenize --tokenizer "$tok" --decode ids
    says "s2s-pack: ids:1: a NUL among the ids"
    echo 999999 >ids
    exits 1 s2s-pack tokenize --tokenizer "$tok" --decode ids
    says 999999
    echo '"not closed' >text
    exits 1 s2s-pack tokenize --json --tokenizer "$tok" text
    says "s2s-pack: text:1: "
    # a disk that is full is no fault of a line
    echo fine >text
    exits 1 bash -c "s2s-pack tokenize --tokenizer '$tok' text >/dev/full"
    says "s2s-pack: stdout: cannot write"
}

@test "a cut or changed tokenizer.json is refused" {
    head -c 20000 "$tok" >cut.json
    exits 1 s2s-pack tokenize --tokenizer cut.json </dev/null
    says cut.json
    jq '.model.type = "Other"' "$tok" >other.json
    exits 1 s2s-pack tokenize --tokenizer other.json </dev/null
    says "other.json: model.type: Other is not supported"
}

@test "any number of threads writes the same bytes, nothing half-written stays" {
    python3 - <<'PY'
import random
rng = random.Random(1)
words = "the a of please enter 12 345 naïve 中文 don't I'll  x".split(" ")
with open("text", "w") as f:
    for _ in range(20000):
        f.write(" ".join(rng.choice(words) for _ in range(rng.randint(0, 12))) + "\n")
PY
    s2s-pack tokenize -j1 --tokenizer "$qwen" text -o one
    s2s-pack tokenize -j8 --tokenizer "$qwen" text -o eight
    same one eight
    printf '\xff\n' >>text
    exits 1 s2s-pack tokenize -j8 --tokenizer "$qwen" text -o bad
    no_litter . text one eight
}

@test "a full disk is a failure, a reader that leaves early is none" {
    yes 'hello world' | head -n 100000 >text
    exits 1 bash -c "s2s-pack tokenize --tokenizer '$tok' text >/dev/full"
    run bash -c "s2s-pack tokenize --tokenizer '$tok' text 2>err | head -n 1; cat err"
    [ "$output" = "$(s2s-pack tokenize --tokenizer "$tok" text | head -n 1)" ]
}

@test "a byte-level tokenizer with another normal form gives the ids of its library" {
    with_normalizer() {
        jq --arg form "$1" '.normalizer = {"type": $form}' "$tok" >"$1.json"
        printf 'ﬁne Ａ é\n' | s2s-pack tokenize --tokenizer "$1.json"
    }
    # the ids of tokenizers 0.23
    alike "$(with_normalizer NFKC)" "1500 69 653 220 32 447 102"
    alike "$(with_normalizer NFD)" "1500 171 105 223 77 68 220 171 120 94 691 136 223"
    alike "$(with_normalizer Lowercase)" "1500 171 105 223 77 68 220 171 121 223 447 102"
}

@test "a conversation goes through the chat template of the tokenizer's folder" {
    mkdir folder
    cp "$tok" folder/tokenizer.json
    talk='[{"role": "user", "content": "hello"}, {"role": "assistant", "content": " there"}]'
    exits 2 bash -c "s2s-pack tokenize --tokenizer folder --prompt chat --generate --decode <<<'$talk'"
    exits 1 bash -c "s2s-pack tokenize --tokenizer folder --prompt chat <<<'$talk'"
    says "the tokenizer has no chat template"
    says "tokenizer_config.json"
    jq -n '{bos_token: "<|begin_of_text|>", eos_token: {content: "<|eot_id|>"}, pad_token: null, chat_template:
        "{{ bos_token }}{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content if m.role == \"assistant\" }}{% endgeneration %}{{ eos_token }}{% endfor %}"}' \
        >folder/tokenizer_config.json
    s2s-pack tokenize --tokenizer folder --prompt chat --json <<<"$talk" >row
    s2s-pack tokenize --tokenizer folder --decode row --json >text
    alike "$(cat text)" '"<|begin_of_text|>user:<|eot_id|>assistant: there<|eot_id|>"'
    # what is learned is the answer alone
    jq -c '[.ids, .loss_mask] | transpose | map(select(.[1] == 1)[0]) | {ids: .}' row | s2s-pack tokenize --tokenizer folder --decode --json >learned
    alike "$(cat learned)" '" there"'
    echo '{{ messages[0].content }}{{ raise_exception("no") }}' >folder/chat_template.jinja
    exits 1 bash -c "s2s-pack tokenize --tokenizer folder --prompt chat <<<'$talk'"
    says "stdin:1: chat: line 1: no"
    exits 2 s2s-pack tokenize --tokenizer folder --prompt chat:other
    says "chat:llama3"
    exits 1 bash -c "s2s-pack tokenize --tokenizer folder --prompt chat:llama3 <<<'[{\"role\": 1}]'"
    says "stdin:1: message 0: no role"
}

@test "a tokenizer.model gives what sentencepiece gives, or says that it is not there" {
    model=$ROOT/tests/oracle/text/sentencepiece
    cp "$(command -v s2s-pack)" alone
    exits 1 bash -c "./alone tokenize --tokenizer '$model/tokenizer.model' <<<'a'"
    says "a tokenizer.model is read by sentencepiece, which is not there"
    says "libsentencepiece-dev"
    printf '\n\011\n\007not one' >broken.model
    [ -e "$S2S_BIN/libs2s-sentencepiece.so" ] || skip "no sentencepiece"
    exits 1 bash -c "s2s-pack tokenize --tokenizer broken.model <<<'a'"
    says "broken.model: no model of sentencepiece"
    jq -c '.[].text' "$model/strings.json" | s2s-pack tokenize --tokenizer "$model" --json >ids
    jq -c '.[] | {ids: .ids}' "$model/strings.json" >want
    alike "$(jq -c . ids)" "$(cat want)"
    s2s-pack tokenize --tokenizer "$model" --json --decode want | jq -c . >texts
    alike "$(cat texts)" "$(jq -c '.[].decoded' "$model/strings.json")"
    # a conversation, whose own tokens stand between the pieces
    echo '[{"role": "user", "content": "the fox"}, {"role": "assistant", "content": "jumps"}]' >talk
    s2s-pack tokenize --tokenizer "$model" --prompt chat:llama2 --json talk >row
    jq -c '[.ids, .loss_mask] | transpose | map(select(.[1] == 1)[0]) | {ids: .}' row | s2s-pack tokenize --tokenizer "$model" --decode --json >learned
    alike "$(cat learned)" '"jumps "'
}
