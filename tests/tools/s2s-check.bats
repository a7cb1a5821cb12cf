# s2s-check finds what is wrong in configs of every dialect, and says where and how to mend it.
load common
load inject

setup_file() { inject_build; }

setup_tool() {
    cp "$ROOT/tests/oracle/rules/s2s.yaml" good.yaml
    sed 's/packs_per_step: 8/packs_per_step: 7/; s/keep: 2/keep: 0/' good.yaml >bad.yaml
    cp "$ROOT/tests/oracle/rules/slm.yaml" slm.yaml
}

@test "help, version, unknown option, no input" {
    exits 0 s2s-check --help
    says "Exit status: 0 no errors"
    exits 0 s2s-check -h
    exits 0 s2s-check --version
    says "s2s-check 0."
    exits 2 s2s-check --nonsense good.yaml
    exits 2 s2s-check
    says "no input"
    exits 2 s2s-check --format prose good.yaml
    says "not one of text, json, sarif, github, junit"
    exits 2 s2s-check --world-size 8..4 good.yaml
    exits 2 s2s-check --set tp good.yaml
    exits 2 s2s-check --sm nine good.yaml
    exits 2 s2s-check --dialect latin good.yaml
}

@test "configs of trainers that are not judged are named as theirs" {
    echo '{"actor_rollout_ref": {"actor": {"strategy": "fsdp"}}, "trainer": {"nnodes": 1}}' >verl.yaml
    exits 2 s2s-check verl.yaml
    says "verl.yaml: a config of verl, which is not judged"
    echo '{"model": {}, "train": {"train_iters": 10, "micro_batch_size": 1}}' >bridge.yaml
    exits 2 s2s-check bridge.yaml
    says "bridge.yaml: a config of Megatron-Bridge"
    printf '[parallelism]\ntensor_parallel_degree = 2\n' >titan.toml
    exits 2 s2s-check titan.toml
    says "titan.toml: TOML, as torchtitan's configs are, is not judged"
}

@test "a clean recipe is silent and exits 0, once the number of ranks is known" {
    exits 0 s2s-check --world-size 2 good.yaml
    [ -z "$output" ]
    exits 0 s2s-check good.yaml
    says "not judged, as the number of ranks is not known: give it with --world-size N"
    exits 0 s2s-check -q good.yaml
    [ -z "$output" ]
    exits 0 s2s-check -v good.yaml
    says "1 file: 0 errors, 0 warnings"
}

@test "a finding names file, line, column, rule, the line with a caret, and the fix" {
    exits 1 s2s-check --world-size 2 bad.yaml
    cat >want <<'EOF'
bad.yaml:17:19: error: train.packs_per_step 7 is not a multiple of train.packs_per_microbatch * dp = 2 * 2: 7 % 4 = 3 [S2S-BAT-001]
   17 |   packs_per_step: 7
      |                   ^
      = fix: use 4 or 8
bad.yaml:22:32: error: checkpoint.keep 0 [S2S-TRN-014]
   22 | checkpoint: {every: 500, keep: 0, resume: true}
      |                                ^
      = fix: use at least 1
EOF
    s2s-check --world-size 2 bad.yaml | head -8 >got || true
    diff got want
    says "2 errors, 0 warnings"
}

@test "an absent or unreadable file is 2, and the others are still checked" {
    exits 2 s2s-check absent.yaml
    says "absent.yaml: cannot open"
    printf 'a: [1,\nb: 2\n' >broken.yaml
    exits 2 s2s-check broken.yaml bad.yaml
    says "s2s-check: broken.yaml:3:1: "
    says "S2S-TRN-014"
    head -c 100 /dev/urandom >noise.yaml
    exits 2 s2s-check noise.yaml
    printf 'x: 1\n' >other.yaml
    : >empty.yaml
    exits 2 s2s-check empty.yaml
    says "empty.yaml: nothing is in it"
    printf '#!/bin/sh\nls\n' >other.sh
    exits 2 s2s-check other.sh
    says "other.sh: not a config of a known kind"
    exits 2 s2s-check other.yaml
    says "not a config of a known kind; say which one it is with --dialect"
}

@test "alias bombs, deep nesting, huge and binary files end with one message" {
    python3 - <<'EOF'
lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
lines += [f"a{i}: &a{i} [" + ", ".join([f"*a{i-1}"] * 10) + "]" for i in range(1, 9)]
open("bomb.yaml", "w").write("\n".join(lines))
open("deep.yaml", "w").write("[" * 100000)
open("binary.yaml", "wb").write(bytes(range(256)))
EOF
    truncate -s 100M huge.yaml
    for f in bomb deep binary huge; do
        exits 2 timeout 5 s2s-check $f.yaml
        [ "${#lines[@]}" -eq 1 ]
        says "s2s-check: $f.yaml"
    done
}

@test "interpolations that circle or multiply end with 2, with the place, and the others are still checked" {
    python3 - <<'EOF'
slm = open("slm.yaml").read()
def write(name, lines):
    open(name, "w").write(slm + "".join(lines))
write("circle.yaml", ["a: ${b}\n", "b: x${a}\n"])
write("text.yaml", ["a0: xxxxxxxxxx\n"] + ["a%d: ${a%d}${a%d}\n" % (i, i - 1, i - 1) for i in range(1, 40)])
write("values.yaml", ["a0: [1, 2]\n"] + ["a%d: ['${a%d}', '${a%d}']\n" % (i, i - 1, i - 1) for i in range(1, 40)])
write("aliases.yaml", ["x: &a %s\n" % ("y" * 100000), "l: [%s]\n" % ", ".join(["*a"] * 20000)])
EOF
    # a little memory is enough (AddressSanitizer reserves terabytes of addresses)
    little="ulimit -v 400000;"
    case ${S2S_BIN:-} in *sanitize*) little= ;; esac
    for f in circle text values aliases; do
        exits 2 bash -c "$little timeout 5 s2s-check --world-size 8,16 $f.yaml"
        exits 2 bash -c "$little timeout 5 s2s-check --json $f.yaml bad.yaml"
        echo "${lines[@]}" | grep -q S2S-TRN-014
    done
    exits 2 s2s-check circle.yaml
    says "S2S-CFG-002"
    says "leads back to itself"
    for f in text values; do
        exits 2 s2s-check $f.yaml
        [ "$(grep -c 'interpolation makes more than' <<<"$output")" -eq 1 ]
    done
}

@test "what is no map where a map belongs is said, in every dialect" {
    printf '[1, {a: b}]\n' >list.yaml
    printf 'policy: [1]\ngrpo: 3\ndata: [2, {x: 1}]\ncluster: x\n' >rl.yaml
    printf 'MODEL_ARGS: [1, 2]\n' >args.yaml
    printf 'ENV_VARS: [1]\nMODEL_ARGS: {--num-layers: [1, {}], --bf16: {}}\n' >args2.yaml
    printf 'model: [1]\ntrainer: [2]\ndistributed: 7\nrecipe: {}\ndata: x\n' >model.yaml
    : >empty.yaml
    for d in s2s slm rl am mlm het; do
        for f in list rl args args2 model empty; do
            s2s-check --dialect $d --world-size 8 $f.yaml >out 2>&1 || [ $? -lt 3 ]
        done
    done
}

@test "stdin and stdout" {
    exits 1 s2s-check - <bad.yaml
    says "stdin:22:32: error"
    s2s-check --json - <bad.yaml | jq -e '.files[0].path == "-" and (.files[0].findings[0] | has("file") | not)'
    s2s-check --json -o out.json bad.yaml || [ $? -eq 1 ]
    jq -e '.errors == 1' out.json
    exits 1 bash -c 's2s-check bad.yaml >/dev/full'
    says "No space left"
    exits 1 s2s-check -o /dev/full bad.yaml
    bash -c 's2s-check --list | head -n 1' >first
    [ "$(wc -l <first)" -eq 1 ]
}

@test "folders are searched for configs, and only configs count" {
    mkdir -p conf/deep conf/.hidden
    cp good.yaml conf/deep/a.yaml
    cp bad.yaml conf/.hidden/b.yaml
    echo 'x: 1' >conf/other.yaml
    echo '[' >conf/readme.txt
    printf 'a: 1\n---\nb: 1\n' >conf/cluster.yaml
    printf 'a: "\\0"\n' >conf/nul.yaml
    exits 0 s2s-check -v conf
    says "1 file:"
    cp bad.yaml conf/c.yml
    exits 1 s2s-check conf
    says "conf/c.yml:22:32"
    exits 2 s2s-check conf/cluster.yaml
    says "conf/cluster.yaml:2:1: expected one document"
}

@test "a config of a folder that the disk does not tell of is not passed over" {
    inject_or_skip
    mkdir conf
    cp good.yaml conf/a.yaml
    cp good.yaml conf/b.yaml
    for call in readdir faccessat; do
        right_or_refused $call:EIO s2s-check -v conf
    done
}

@test "folders that link to themselves are read once, a file in them that cannot be opened counts" {
    mkdir -p tree/a
    cp bad.yaml tree/a/x.yaml
    ln -s .. tree/a/up
    ln -s . tree/self
    ln -s . tree/self2
    exits 1 timeout 5 s2s-check --json tree
    echo "$output" | jq -e '[.files[].path] == ["tree/a/x.yaml"]'
    [ "$(id -u)" -ne 0 ] || skip "root may open everything"
    cp good.yaml tree/closed.yaml
    mkdir tree/shut
    chmod 0 tree/closed.yaml tree/shut
    exits 2 s2s-check tree
    says "tree/closed.yaml: cannot open: Permission denied"
    says "tree/shut: cannot open: Permission denied"
    says "S2S-TRN-014"
    chmod 700 tree/shut
}

@test "JSON says what the text says" {
    exits 1 s2s-check --format json --world-size 2 bad.yaml good.yaml
    echo "$output" | jq -e '.errors == 2 and .warnings == 0 and (.files | length) == 2'
    echo "$output" | jq -e '.files[0] | .path == "bad.yaml" and .dialect == "s2s" and .world_size == 2'
    echo "$output" | jq -e '.files[0].findings[0] | .rule == "S2S-BAT-001" and .severity == "error" and .line == 17
        and .column == 19 and .key == "train.packs_per_step" and .fix == "use 4 or 8"'
    echo "$output" | jq -e '.files[1].findings == [] and (.files[1].skipped | type) == "number"'
    exits 1 s2s-check --json bad.yaml
    echo "$output" | jq -e '.files[0].world_size == null'
    exits 2 s2s-check --json absent.yaml
    [[ "$output" == *'"rule": "S2S-CFG-001"'* ]]
}

@test "SARIF, GitHub and JUnit are well formed" {
    s2s-check --format sarif bad.yaml >o.sarif || [ $? -eq 1 ]
    jq -e '.version == "2.1.0" and (.runs[0].results | length) == 1' o.sarif
    jq -e '.runs[0] as $r | $r.results | all($r.tool.driver.rules[.ruleIndex].id == .ruleId)' o.sarif
    jq -e '.runs[0].results[0].locations[0].physicalLocation.region == {startLine: 22, startColumn: 32}' o.sarif
    jq -e '[.runs[0].tool.driver.rules[].id] | (unique | length) == length' o.sarif
    jq -e '.runs[0].invocations == [{executionSuccessful: true}]' o.sarif
    s2s-check --format sarif absent.yaml bad.yaml >o.sarif || [ $? -eq 2 ]
    jq -e '.runs[0] | .invocations[0].executionSuccessful == false and ([.results[].ruleId] == ["S2S-CFG-001", "S2S-TRN-014"])
        and .results[1].message.text == "checkpoint.keep 0; fix: use at least 1"' o.sarif
    exits 1 s2s-check --format github bad.yaml
    says "::error file=bad.yaml,line=22,col=32,title=S2S-TRN-014::checkpoint.keep 0; fix: use at least 1"
    s2s-check --format junit bad.yaml good.yaml >o.xml || [ $? -eq 1 ]
    python3 - <<'EOF'
import xml.etree.ElementTree as tree
suite = tree.parse("o.xml").getroot()
assert suite.attrib == {"name": "s2s-check", "tests": "2", "failures": "1", "errors": "0"}, suite.attrib
assert suite[0][0].attrib["type"] == "S2S-TRN-014"
EOF
}

@test "names and values that are not UTF-8 leave every format readable" {
    cp bad.yaml $'b\xffd & <.yaml'
    printf '#!/bin/sh\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 3\xff\xef\xbf\xbf\x01\n' >bytes.sh
    for f in json sarif github junit; do
        s2s-check --format $f bytes.sh $'b\xffd & <.yaml' >out.$f || [ $? -eq 1 ]
        iconv -f UTF-8 -t UTF-8 out.$f >/dev/null
    done
    jq -e '.errors == 2' out.json
    jq -e '.runs[0].results[1].locations[0].physicalLocation.artifactLocation.uri == "b%FFd%20&%20%3C.yaml"' out.sarif
    python3 -c 'import xml.etree.ElementTree as t; assert len(t.parse("out.junit").getroot()) == 2'
}

@test "the caret stands under its column: tabs, wide characters, marks, long lines, control characters" {
    python3 - <<'EOF'
lines = {"tab": "--a\t--b\t", "wide": "--note 音声 ", "mark": "--note e\u0301u\u0308 ", "long": "--note " + "x" * 300 + " ", "escape": "--note \x1b[2J\xff "}
for name, before in lines.items():
    text = "#!/bin/sh\ntorchrun --nproc_per_node 8 pretrain_gpt.py " + before + "--num-layers 3z " + "y" * 300 + "\n"
    open(name + ".sh", "wb").write(text.encode("latin-1" if name == "escape" else "utf-8"))
EOF
    for f in tab wide mark long escape; do
        s2s-check --set save=x $f.sh >$f.out || [ $? -eq 1 ]
    done
    python3 - <<'EOF'
import unicodedata
def columns(s):
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in s.expandtabs())
for name in ("tab", "wide", "mark", "long", "escape"):
    lines = open(name + ".out", encoding="utf-8").read().split("\n")
    at = next(i for i, line in enumerate(lines) if "S2S-CFG-004" in line)
    shown, caret = lines[at + 1], lines[at + 2]
    assert len(shown) < 200 and "\x1b" not in shown, shown
    assert columns(shown[:shown.index("3z")]) == columns(caret[:caret.index("^")]), (name, shown, caret)
    assert (name == "long") == ("| ..." in shown) and shown.endswith("..."), shown
EOF
}

@test "--set asks what if, by common names and by keys" {
    exits 1 s2s-check --set ep=3 --world-size 2 good.yaml
    says "S2S-TRN-005"
    exits 0 s2s-check --set checkpoint.keep=2 bad.yaml
    exits 1 s2s-check --set cp=2 slm.yaml
    says "command line: error: cp_size 2 without packed sequences"
    exits 1 s2s-check --set ++trainer.strategy.cp_size=2 slm.yaml
    exits 2 s2s-check --set +trainer.strategy.cp_size=2 slm.yaml
    says "is there already"
    # a map is put over the one that is there, as Hydra does
    exits 1 s2s-check --set "trainer.strategy={cp_size: 2}" slm.yaml
    says "cp_size 2 without packed sequences"
    exits 0 s2s-check --set "+trainer.strategy={}" slm.yaml
    exits 0 s2s-check --set +model.note=x slm.yaml
    exits 2 s2s-check --set '~trainer.strategy.nowhere' slm.yaml
    exits 0 s2s-check --set cp=2 --set '~trainer.strategy.cp_size' slm.yaml
    # a word that nothing reads would change nothing, and say that all is well
    for kind in slm rl am mlm het; do
        exits 2 s2s-check --set cpp=3 "$ROOT/tests/oracle/rules/$kind.yaml"
        says "--set: 'cpp' is neither a key of the config nor a common name; did you mean "
        exits 0 s2s-check -q --set te=2.9 --set packed=true --set +cpp=3 "$ROOT/tests/oracle/rules/$kind.yaml"
    done
    exits 2 s2s-check --set xyzzy=3 slm.yaml
    says "++xyzzy adds it"
    exits 0 s2s-check --set seed=3 --set no-such-argument-of-ours=3 "$ROOT/tests/oracle/rules/mlm.yaml"
}

@test "many files on several threads give the same bytes" {
    mkdir many
    for i in $(seq 40); do sed "s/^/ /;s/^ //" bad.yaml >many/$i.yaml; done
    cp slm.yaml many/x.yaml
    exits 1 s2s-check -j1 -o one many
    exits 1 s2s-check -j8 -o eight many
    cmp one eight
    grep -q many/40.yaml one
}

@test "packed sequences depend on the device and the environment" {
    exits 1 s2s-check --set packed=true --device rtx5090 slm.yaml
    says "S2S-THD-002"
    exits 1 s2s-check --set packed=true --sm 12.0 slm.yaml
    exits 0 s2s-check --set packed=true --device h100 slm.yaml
    says "S2S-THD-003"
    exits 1 s2s-check --strict --set packed=true --device h100 slm.yaml
    exits 0 s2s-check --strict --set packed=true --sm 12.0 --env NVTE_FUSED_ATTN=0 slm.yaml
}

@test "--world-size lists which sizes are legal" {
    exits 1 s2s-check --world-size 1..6 good.yaml
    says "       4  yes"
    says "       3  no     S2S-BAT-001"
    says "legal: 1, 2, 4"
    exits 0 s2s-check --world-size 1,2,4 good.yaml
    says "       2  yes    dp 2"
    exits 1 s2s-check --world-size 3..4 --argv -- pretrain_gpt.py --num-layers 12 --hidden-size 64 --num-attention-heads 4 \
        --max-position-embeddings 32 --seq-length 32 --micro-batch-size 1 --global-batch-size 16 --tensor-model-parallel-size 2
    says "       3  no     S2S-WLD-001"
    says "       4  yes    dp 2, 8 microbatches a step"
    exits 1 s2s-check --world-size 3,5 good.yaml
    says "legal: none of these"
    exits 1 s2s-check --json --world-size 2,3 good.yaml
    echo "$output" | jq -e '[.files[] | [.world_size, (.findings | length)]] == [[2, 0], [3, 1]]'
    exits 1 s2s-check --world-size 2,3 - <good.yaml
    says "       3  no"
}

@test "--report says what a rank needs, by the published formulas" {
    run_gpt() {
        s2s-check --json --report --world-size 64 --argv -- pretrain_gpt.py --num-layers 96 --hidden-size 12288 \
            --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --bf16 \
            --position-embedding-type rope --disable-bias-linear --padded-vocab-size 51200 \
            --untie-embeddings-and-output-weights --sequence-parallel --tensor-model-parallel-size 8 "$@" || [ $? -eq 1 ]
    }
    run_gpt >plain.json
    run_gpt --use-distributed-optimizer --pipeline-model-parallel-size 4 --global-batch-size 128 >sharded.json
    run_gpt --use-distributed-optimizer --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 >full.json
    python3 - <<'EOF'
import json
h, layers, ffn, vocab, tokens, tp = 12288, 96, 4 * 12288, 51200, 2048 * 2, 8
block = layers * (2 * h * (ffn + 2) + 4 * h * h) + 2 * h  # theoretical_memory_usage.py
embedding = h * vocab
def stages(name):
    report = json.load(open(name))["files"][0]
    assert report["parameters"] == block + 2 * embedding, report["parameters"]
    assert "S2S-MEM-003" in [f["rule"] for f in report["findings"]]
    return {s["stage"]: s for s in report["memory"]}
def near(a, b):
    assert abs(a - b) <= 1e-6 * b + 1, (a, b)
def states(s):
    return s["weights"] + s["gradients"] + s["optimizer"]
layer = tokens * h * (18 + 4 * ffn / h) / tp

s = stages("plain.json")["every"]
near(states(s), (block + 2 * embedding) / tp * 18)
near(s["activations"], layers * layer)
near(s["logits"], 4 * tokens * vocab / tp)
near(s["total"], states(s) + s["activations"] + s["logits"])

s, pp, dp = stages("sharded.json"), 4, 2
assert list(s) == ["first", "middle", "last"]
near(states(s["middle"]), block / pp / tp * (6 + 12 / dp))
near(states(s["first"]), (block / pp + embedding) / tp * (6 + 12 / dp))
near(s["first"]["activations"], pp * layers / pp * layer)
near(s["last"]["activations"], layers / pp * layer)
assert s["first"]["logits"] == 0

s = stages("full.json")["every"]
near(states(s), (block + 2 * embedding) / tp * (6 + 12 / 8))
near(s["activations"], (2 * layers * tokens * h) / tp + layer)
EOF
    exits 0 s2s-check --report --model-config "$ROOT/tests/oracle/rules/llama8b.json" slm.yaml
    says "8.03 billion parameters"
    exits 0 s2s-check --report slm.yaml
    says "sizes of the model are missing"
    exits 0 s2s-check --device h100 --model-config "$ROOT/tests/oracle/rules/llama8b.json" --set model.freeze_params=[] \
        --set devices=1 --set nodes=1 --set ep=1 --set precision=bf16-mixed slm.yaml
    says "warning: every rank needs 119.7 GiB for weights, gradients and optimizer states, h100 has 80 GiB [S2S-MEM-001]"
}

@test "--resolve shows common names and where they come from" {
    exits 0 s2s-check --resolve slm.yaml
    says "ep: 8  # slm.yaml:24:14"
    says "decay: 1000"
    says "packed: false  # default"
    says "dp: 16  # derived"
}

@test "--explain and --list come from the table" {
    exits 0 s2s-check --explain S2S-CP-002
    says "when      cp > 1 and not packed"
    says "validate_parallelism_compatibility"
    exits 0 s2s-check --explain S2S-PP-014
    says "S2S-SLM-008 (error)"
    exits 2 s2s-check --explain S2S-NO-1
    s2s-check --explain S2S-CP-002 >one
    s2s-check --explain cp-002 | diff one -
    exits 2 s2s-check --explain S2S-CP-02
    says "did you mean S2S-CP-002?"
    exits 0 s2s-check --list
    says "S2S-WLD-001  error    s2s,slm"
    for format in sarif github junit; do
        exits 2 s2s-check --list --format $format
        says "--explain and --list have --format text, json and markdown"
        exits 2 s2s-check --explain S2S-CP-002 --format $format
    done
    s2s-check --list --json | jq -e 'length > 90 and all(.why != "" and .source != "")'
}

@test "a page for each rule" {
    exits 0 s2s-check --explain S2S-CP-001 --format markdown
    says "# S2S-CP-001"
    exits 0 s2s-check --list --format markdown
    says "| [S2S-CP-001](S2S-CP-001.md) | error |"
    exits 2 s2s-check --format markdown good.yaml
}

@test "comments silence rules where they stand" {
    sed 's/^checkpoint:.*/&   # s2s-check: ignore S2S-TRN-014 for now/' bad.yaml >quiet.yaml
    exits 0 s2s-check quiet.yaml
    sed 's/^checkpoint:/# s2s-check: ignore S2S-TRN\n&/' bad.yaml >quiet.yaml
    exits 0 s2s-check quiet.yaml
    (echo '# s2s-check: ignore-file S2S-TRN-014'; cat bad.yaml) >quiet.yaml
    exits 0 s2s-check quiet.yaml
    sed 's/^checkpoint:.*/&   # s2s-check: ignore S2S-CP-001/' bad.yaml >quiet.yaml
    exits 1 s2s-check quiet.yaml
    says "S2S-CFG-015"
}

@test "unknown keys of a recipe are errors with the nearest name" {
    sed 's/weight_decay/weigth_decay/' good.yaml >typo.yaml
    exits 1 s2s-check typo.yaml
    says "typo.yaml:13:71: error: unknown key 'weigth_decay' [S2S-TRN-001]"
    says "fix: did you mean 'weight_decay'?"
}

@test "what s2s-train refuses in a recipe is found before it starts" {
    printf 'run: r\nmodel: {llm: {config: llm.json}}\ndata: {train: a.s2s}\ntrain: {steps: 5}\n' >bare.yaml
    exits 0 s2s-check bare.yaml # known for a recipe without an optimizer of its own
    for set in 'data.eval=[a.s2s]' train.recompute=x seed=-1 mesh.timeout_s=0 model.llm.freeze=true \
        train.token_dropout=2 schedule={name:\ cosine,warmup_steps:\ 5}; do
        exits 1 s2s-check --set "+$set" bare.yaml
        says "$(case $set in data*) echo 'expected a map, found a list' ;; train.r*) echo "recompute 'x' is none that s2s-train has" ;; *) echo error: ;; esac)"
    done
}

@test "a duplicate key is a warning with the first place, an error where s2s-train refuses it" {
    (cat good.yaml; echo 'seed: 2') >twice.yaml
    exits 1 s2s-check twice.yaml
    says "twice.yaml:23:1: error: 'seed' stands here again; it was set in line 2"
    # of a child and of its parent, too
    cp "$ROOT"/tests/oracle/rules/rl_parent.yaml .
    (cat "$ROOT/tests/oracle/rules/rl.yaml"; echo 'defaults: rl_parent.yaml') >child.yaml
    sed 's/^defaults:.*/defaults: child.yaml/' "$ROOT/tests/oracle/rules/rl.yaml" >grandchild.yaml
    for file in child grandchild; do
        exits 0 s2s-check $file.yaml
        says "child.yaml:$(wc -l <child.yaml):1: warning: 'defaults' stands here again; it was set in line 1"
        [ "$(grep -c 'stands here again' <<<"$output")" = 1 ]
    done
}

@test "a killed run leaves no output, MPI and oneDNN are not linked" {
    mkfifo pipe
    mkdir empty
    s2s-check --json -o empty/out.json - <pipe &
    pid=$!
    exec 9>pipe
    kill -TERM $pid
    wait $pid || true
    exec 9>&-
    no_litter empty ""
    ldd "$(command -v s2s-check)" >libraries
    not grep -E 'mpi|dnnl|openblas' libraries
}

@test "parents of NeMo-RL configs are read, their places kept, circles refused" {
    cp "$ROOT"/tests/oracle/rules/rl*.yaml .
    exits 0 s2s-check rl.yaml
    sed -i 's/enabled: true, metric_name: "val:accuracy"/enabled: true, metric_name: accuracy/' rl_parent.yaml
    exits 1 s2s-check rl.yaml
    says "rl_parent.yaml:8:45: error: checkpointing.metric_name 'accuracy'"
    exits 1 s2s-check rl_orphan.yaml
    says "rl_orphan.yaml:1:12: error: the parent 'gone.yaml' is not there [S2S-CFG-006]"
    echo 'defaults: b.yaml' >a.yaml
    echo 'defaults: a.yaml' >b.yaml
    exits 2 s2s-check a.yaml rl_orphan.yaml
    says "leads back to itself"
    says "S2S-CFG-006"
}

@test "the hook of pre-commit passes over what is no config" {
    hook=$(sed -n 's/^  entry: //p' "$ROOT/.pre-commit-hooks.yaml")
    printf 'x: 1\n' >other.yaml
    printf '#!/bin/sh\nls\n' >other.sh
    exits 0 $hook other.yaml other.sh good.yaml
    exits 2 s2s-check other.yaml
    exits 1 $hook other.yaml bad.yaml
    exits 2 $hook absent.yaml
    for name in conf/a.yaml run.sh job.sbatch x.yml; do
        grep -qE "$(sed -n 's/^  files: //p' "$ROOT/.pre-commit-hooks.yaml")" <<<"$name"
    done
}

@test "--select and --ignore choose rules by id or beginning" {
    exits 1 s2s-check --world-size 3 --json bad.yaml
    [ "$(jq -r '.files[0].findings[].rule' <<<"$output" | paste -sd' ')" = "S2S-BAT-001 S2S-TRN-014" ]
    exits 1 s2s-check --world-size 3 --json --select S2S-TRN,S2S-CP-002 bad.yaml
    [ "$(jq -r '.files[0].findings[].rule' <<<"$output")" = S2S-TRN-014 ]
    exits 1 s2s-check --world-size 3 --json --ignore S2S-TRN-014 bad.yaml
    [ "$(jq -r '.files[0].findings[].rule' <<<"$output")" = S2S-BAT-001 ]
    exits 0 s2s-check --world-size 3 --ignore S2S-TRN,S2S-BAT bad.yaml
    [ -z "$output" ]
    exits 2 s2s-check --ignore S2S-NONE bad.yaml
    says "no rule begins with 'S2S-NONE'"
}

@test "a comment in a parent silences what stands there" {
    cp "$ROOT"/tests/oracle/rules/rl*.yaml .
    sed -i 's/enabled: true, metric_name: "val:accuracy"}/enabled: true, metric_name: accuracy} # s2s-check: ignore S2S-CKP-020/' rl_parent.yaml
    sed -i 's/^cluster:.*/& # s2s-check: ignore S2S-BAT/' rl_parent.yaml
    exits 0 s2s-check rl.yaml
    [ -z "$output" ]
    sed -i 's/ # s2s-check: ignore S2S-CKP-020//' rl_parent.yaml
    exits 1 s2s-check rl.yaml
    (echo '# s2s-check: ignore-file S2S-CKP'; cat rl_parent.yaml) >p && mv p rl_parent.yaml
    exits 0 s2s-check rl.yaml
}

@test "launch scripts and command lines are read, never run" {
    cat >run.sh <<'EOF'
#!/bin/bash
touch ran
TP=3
ARGS=(
    --num-layers 32      # s2s-check: ignore S2S-PP
    --tensor-model-parallel-size $TP
    --micro-batch-size ${MBS:-1}
)
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py "${ARGS[@]}" $(touch ran)
EOF
    exits 1 s2s-check run.sh
    says "run.sh:3:4: error: world size 16 is not a multiple of tp*cp*pp = 3*1*1: 16 % 3 = 1"
    [ ! -e ran ]
    exits 0 s2s-check --set tp=4 run.sh
    exits 1 s2s-check --world-size 8 --argv -- pretrain_gpt.py --num-layers 12 --tensor-model-parallel-size 3
    says "8 % 3 = 2 [S2S-WLD-001]"
    printf '#!/bin/sh\necho hello\n' >other.sh
    exits 2 s2s-check other.sh
    mkdir scripts
    cp other.sh scripts
    exits 0 s2s-check scripts
}

@test "hetero runs: an sbatch script, the script it hands over to, and its guard" {
    cat >job.sbatch <<'EOF'
#!/bin/bash
#SBATCH -N 9
#SBATCH --ntasks-per-node=8
export ENCODER_TP=1 ENCODER_DP=8 LLM_OFFSET=8
export LLM_TP=2 LLM_DP=${LLM_DP:-32}; LLM_EP=16
WORLD=$(( ENCODER_TP*ENCODER_DP + LLM_TP*LLM_DP ))
[[ $WORLD -eq 72 ]] || { echo "want 72"; exit 1; }
srun bash run.sh
EOF
    cat >run.sh <<'EOF'
python examples/mimo/training/hetero/train_hetero.py --encoder-tp $ENCODER_TP --encoder-pp 1 \
    --encoder-dp $ENCODER_DP --llm-offset $LLM_OFFSET --llm-tp $LLM_TP --llm-pp 1 --llm-dp $LLM_DP \
    --llm-ep $LLM_EP --micro-batch-size 2 --num-microbatches 6 \
    --packing-buffer-size 4
EOF
    exits 0 s2s-check job.sbatch
    [ -z "$output" ]
    exits 1 s2s-check --also run.sh job.sbatch
    says "run.sh:3:41: error: packing-buffer-size 4 with micro-batch-size 2 [S2S-HET-007]"
    sed -i 's/:-32/:-30/' job.sbatch
    exits 1 s2s-check job.sbatch
    says "job.sbatch:6:7: error: the script ends here: 68 -eq 72 [S2S-HET-019]"
    says "S2S-HET-002"
    exits 2 s2s-check --also nowhere.sh job.sbatch
    exits 1 s2s-check --argv -- --encoder-tp 1 --encoder-dp 8 --llm-offset 7 --llm-tp 2 --llm-pp 1 --llm-dp 32
    says "S2S-HET-001"
}

@test "--previous: what a resumed run may not change" {
    cat >a.yaml <<'EOT'
MODEL_ARGS:
  --tensor-model-parallel-size: 4
  --sequence-parallel: true
  --use-distributed-optimizer: true
  --load: /ckpt
  --save: /ckpt
  --save-interval: 10
EOT
    sed 's/size: 4/size: 2/' a.yaml >b.yaml
    exits 0 s2s-check --previous a.yaml a.yaml
    exits 1 s2s-check --previous b.yaml a.yaml
    says "a.yaml:2:33: error: the run that is resumed had tp 2, pp 1, ep 1; this one has tp 4"
    exits 2 s2s-check --previous nowhere.yaml a.yaml
    says "nowhere.yaml"
}

@test "flags that are nearly Megatron's, and flags given twice" {
    exits 0 s2s-check --argv -- pretrain_gpt.py --num-layers 4 --tensor-model-parralel-size 2
    says "S2S-CFG-007"
    says "did you mean --tensor-model-parallel-size?"
    exits 0 s2s-check --argv -- pretrain_gpt.py --num-layers 4 --sequence-parallell --use-checkpoint-args --load /x
    says "did you mean --sequence-parallel?"
    # a program with a parser of its own may take both
    exits 0 s2s-check --world-size 1 --argv -- my/train_mimo.py --num-layers 4 --dataset-root /x --freeze-llm true --micro-batch-size 1
    [ -z "$output" ]
    exits 0 s2s-check --argv -- my/train_mimo.py --num-layers 4 --freeze-llm true --micro-batch-size 1
    says "did you mean --freeze-lm?"
    # which is asked once
    exits 0 timeout 20 s2s-check --argv -- my/train_mimo.py --num-layers 4 --sequence-parallel{a..t}{a..t} --micro-batch-size 1
    cat >run.sh <<'EOT'
NUM_NODES=1
torchrun --nproc_per_node 8 --nnodes $NUM_NODES pretrain_gpt.py --num-layers 8 --pipeline-model-parallel-size 4 \
    --num-layers 16 --tensor-model-parallel-size 4 --sequence-parallel "$@"
EOT
    exits 1 s2s-check run.sh
    says "run.sh:3:18: info: --num-layers is 16 here and 8 in line 2: the later one counts [S2S-CFG-011]"
    says "run.sh:1:11: info: NUM_NODES=1 decides how many ranks there are [S2S-CFG-014]"
    [[ $output != *MOD-007* ]]
}

@test "-o is none of the files that are checked; --explain is JSON when asked" {
    cp good.yaml was
    exits 2 s2s-check -o good.yaml good.yaml
    says "choose another OUT"
    same good.yaml was
    [ "$(s2s-check --json --explain S2S-CP-001 | jq -r '.[0].rule')" = S2S-CP-001 ]
}
