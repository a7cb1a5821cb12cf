#!/usr/bin/env bats
# s2s-pack: where samples come from: blends, tars, conversations, texts, commands, and files of another kind.
load common

# The data sets of tests/oracle/data in the current folder, and a shortcut.
setup_tool() {
    python3 "$ROOT/tests/oracle/data/make_data.py"
    tok=$ROOT/demo/tokenizer.json
}

pack() { s2s-pack -q --tokenizer "$tok" "$@"; }

# rows STREAM: id, text, number of clips and the ids that are predicted, a row a line
rows() {
    PYTHONPATH=$ROOT/tests/oracle/packing python3 - "$1" <<'PY'
import json, sys, naive
for t, m in naive.read_stream(sys.argv[1])[1]:
    get = lambda k: json.loads(m[k]) if isinstance(m[k], str) else m[k]
    slot, at = t["audio_slot"], 0
    for name, text, n in zip(get("ids"), get("texts"), t["seq_lens_padded"]):
        labels = [x for x in t["labels"][at:at + n] if x != -100]
        print(name, text, sum(at <= s < at + n for s in slot), *labels, sep="|")
        at += n
PY
}

# sounds STREAM: digest of each record's samples
sounds() {
    PYTHONPATH=$ROOT/tests/oracle/packing python3 - "$1" <<'PY'
import hashlib, sys, naive
for t, m in naive.read_stream(sys.argv[1])[1]:
    print(hashlib.sha256(str(list(t["audio_pcm"])).encode()).hexdigest(), *t["audio_cu_samples"])
PY
}

@test "blends draw in the order of NeMo over Lhotse" {
    python3 "$ROOT/tests/oracle/data/compare_orders.py"
}

@test "a blend gives the same bytes with one thread and with four, and twice" {
    for j in 1 4 4; do
        pack --input-cfg "$ROOT/tests/oracle/data/orders/tarred.yaml" --samples 60 --tokens 256 -j $j -o $j.s2s
        [ ! -e old ] || same old $j.s2s
        cp $j.s2s old
    done
    s2s-shard verify 4.s2s
}

@test "members of tars sound as the files that they were, parts of them too" {
    mkdir un && tar xf tar/audio_1.tar -C un
    sed 's/-sub[0-9]*//' tar/manifest_1.json >un/m.json
    pack --manifest un/m.json --batch-size 1 -o files.s2s
    pack --manifest tar/manifest_1.json --tars tar/audio_1.tar --batch-size 1 -o tars.s2s
    sounds files.s2s | sort >want
    sounds tars.s2s | sort >got
    [ "$(wc -l <got)" = 6 ]
    same want got
    # a compressed one, and one from a command
    gzip -k tar/audio_1.tar
    mv tar/audio_1.tar.gz audio.tgz
    pack --manifest tar/manifest_1.json --tars audio.tgz --batch-size 1 -o gz.s2s
    sounds gz.s2s | sort >got
    same want got
    pack --manifest tar/manifest_1.json --tars 'pipe:cat tar/audio_1.tar' --batch-size 1 -o pipe.s2s
    sounds pipe.s2s | sort >got
    same want got
}

@test "shards are matched by their numbers, and every sample comes once" {
    pack --manifest 'tar/manifest__OP_0..3_CL_.json' --tars 'tar/audio_{3,1,0,2}.tar' --batch-size 100 --audio none -o out.s2s
    rows out.s2s | cut -d'|' -f2 | sort >got
    cat tar/manifest_?.json | jq -r 'select(._skipme != true) | .text' | sort >want
    same want got
    exits 1 pack --manifest 'tar/manifest_{0..2}.json' --tars 'tar/audio_{1..3}.tar' --batch-size 100 -o out.s2s
    says "shard 0 has no tar"
    exits 1 pack --manifest 'tar/manifest_{0..2}.json' --tars 'tar/audio_{0..3}.tar' --batch-size 100 -o out.s2s
    says "3 manifests and 4 tars"
}

@test "a member without a line is refused or left out, a broken tar is named or skipped" {
    grep -v m1_2 tar/manifest_1.json >few.json
    exits 1 pack --manifest few.json --tars tar/audio_1.tar --batch-size 100 -o out.s2s
    says "m1_2.wav is not in few.json"
    pack --manifest few.json --tars tar/audio_1.tar --batch-size 100 --skip-missing -o out.s2s
    [ "$(rows out.s2s | wc -l)" = 5 ]
    head -c 12000 tar/audio_1.tar >cut && mv cut tar/audio_1.tar
    exits 1 pack --manifest 'tar/manifest_{0..2}.json' --tars 'tar/audio_{0..2}.tar' --batch-size 100 -o out.s2s
    says "tar/audio_1.tar"
    pack --manifest 'tar/manifest_{0..2}.json' --tars 'tar/audio_{0..2}.tar' --batch-size 100 --bad skip --report r.json -o out.s2s 2>err
    jq -r '.skipped[].reason' r.json | grep -q 'tar/audio_1.tar'
    rows out.s2s | cut -d'|' -f2 | grep -q 'm2 0'
}

@test "conversations: turns of sound and text, the loss on the assistant" {
    cat >c.jsonl <<'J'
{"id":"two","conversations":[{"from":"User","type":"audio","value":"wav/w0.wav","duration":0.3},{"from":"Assistant","type":"text","value":"a"},{"from":"User","type":"text","value":"and"},{"from":"User","type":"audio","value":"wav/w1.wav","offset":0.1,"duration":0.1},{"from":"Assistant","type":"text","value":"b"}]}
{"id":"skipped","conversations":[],"custom":{"_skipme":true}}
J
    pack --conversations c.jsonl --batch-size 1 -o out.s2s
    # 'a' and 'b' with the ends of their turns
    [ "$(rows out.s2s)" = "two|b|2|101|2|102|2" ]
    PYTHONPATH=$ROOT/tests/oracle/packing python3 -c "
import naive
t, m = naive.read_stream('out.s2s')[1][0]
assert list(t['audio_cu_samples']) == [0, 4800, 6400], t['audio_cu_samples']"
    pack --conversations 'talk/t{0,1}.jsonl' --batch-size 100 --audio none -o out.s2s
    [ "$(rows out.s2s | cut -d'|' -f2,3 | head -n 2 | tr '\n' ' ')" = "t0 0|1 t0 1|1 " ]
    [ "$(rows out.s2s | wc -l)" = 11 ]
    pack --share-gpt share/g0.jsonl --batch-size 100 --audio none -o out.s2s
    [ "$(rows out.s2s | head -n 1 | cut -d'|' -f1,2,3)" = "g0-0|g0 0|1" ]
    echo '{"id":"x","conversations":[{"from":"User","type":"text","value":"hi"}]}' >c.jsonl
    exits 1 pack --conversations c.jsonl --batch-size 1 -o out.s2s
    says "c.jsonl:1"
    says "no turn of the assistant"
}

@test "clips of conversations in tars come in the order of their turns" {
    pack --conversations 'talktar/talk_{0..3}.jsonl' --tars 'talktar/audio_{0..3}.tar' --batch-size 100 -o out.s2s
    [ "$(rows out.s2s | cut -d'|' -f3 | sort -u)" = 1 ]
    [ "$(rows out.s2s | wc -l)" = 14 ]
    sed -i 's/k1_2.wav/k1_0.wav/' talktar/talk_1.jsonl
    exits 1 pack --conversations 'talktar/talk_{0..3}.jsonl' --tars 'talktar/audio_{0..3}.tar' --batch-size 100 -o out.s2s
    says "talktar/talk_1.jsonl:3: talktar/audio_1.tar has k1_2.wav where 'k1_0.wav' is expected"
}

@test "texts, chats and pairs are rows without sound" {
    printf 'one\ntwo\n' >t.txt
    pack --text t.txt --batch-size 10 -o out.s2s
    [ "$(rows out.s2s | cut -d'|' -f2,3 | tr '\n' ' ')" = "one|0 two|0 " ]
    echo '{"body":"three"}' >t.jsonl
    pack --text-jsonl t.jsonl --text-field body --batch-size 10 -o out.s2s
    [ "$(rows out.s2s | cut -d'|' -f2)" = three ]
    cat >s.jsonl <<'J'
{"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}
{"input":"q","output":"b"}
{"prompt":"q","completion":"c"}
{"system":"s","conversations":[{"from":"User","value":"q"},{"from":"Assistant","value":"d"}]}
{"messages":[{"role":"user","content":[{"type":"audio","audio":"wav/w0.wav"},{"type":"text","text":"q"}]},{"role":"assistant","content":"e"}]}
J
    pack --sft s.jsonl --batch-size 10 -o out.s2s
    [ "$(rows out.s2s | cut -d'|' -f2- | tr '\n' ' ')" = "a|0|101|2 b|0|102|2 c|0|103|2 d|0|104|2 e|1|105|2 " ]
}

@test "other keys for text and language, and what is said before a sample" {
    echo '{"audio_filepath":"wav/w0.wav","duration":0.3,"answer":"yes","context":"is it?"}' >m.json
    exits 1 pack --manifest m.json --batch-size 1 -o out.s2s
    says "--text-field answer"
    pack --manifest m.json --text-field answer --batch-size 1 -o out.s2s
    [ "$(rows out.s2s | cut -d'|' -f2)" = yes ]
    cat >b.yaml <<'Y'
text_field: answer
input_cfg:
  - type: group
    tags: {system_prompt: listen, context: "is it?"}
    input_cfg:
      - {type: nemo, manifest_filepath: m.json, tags: {context: replaced}}
Y
    pack --input-cfg b.yaml --batch-size 1 -o tags.s2s
    pack --manifest m.json --text-field answer --batch-size 1 -o plain.s2s
    len() { PYTHONPATH=$ROOT/tests/oracle/packing python3 -c "import naive; print(naive.read_stream('$1')[1][0][0]['num_tokens'][0])"; }
    [ "$(len tags.s2s)" -gt "$(len plain.s2s)" ]
}

@test "the end of a command is looked at, whatever it wrote" {
    pack --manifest 'pipe:cat nemo/u0.json | sed s=../wav=wav=' --batch-size 10 -o out.s2s
    exits 1 pack --manifest 'pipe:cat nemo/u0.json; exit 3' --batch-size 10 -o out2.s2s
    says "failed with exit status 3"
    exits 1 pack --manifest tar/manifest_1.json --tars 'pipe:cat tar/audio_1.tar; false' --batch-size 10 -o out2.s2s
    says "failed with exit status 1"
    [ ! -e out2.s2s ]
    cat >b.yaml <<'Y'
- {type: nemo, manifest_filepath: "pipe:cat nemo/u0.json | sed s=../wav=wav="}
Y
    exits 1 pack --input-cfg b.yaml --batch-size 10 -o out2.s2s
    says "--run-pipes"
    pack --input-cfg b.yaml --run-pipes --batch-size 10 -o out.s2s
}

@test "a config that is wrong names its line and key" {
    wrong() {
        printf '%s\n' "$2" >b.yaml
        exits "${3:-1}" pack --input-cfg b.yaml --batch-size 10 --audio none -o out.s2s
        says "$1"
    }
    wrong "b.yaml:2:12" '- {type: txt, paths: txt/s0_0.txt, weight: 1}
- {weight: -1, type: txt, paths: txt/s1_0.txt}'
    wrong "either all items" '- {type: txt, paths: txt/s0_0.txt, weight: 1}
- {type: txt, paths: txt/s1_0.txt}'
    wrong "type 'nemmo' is not read here" '- {type: nemmo, paths: x}'
    wrong "'manifest_filepath' is missing" '- {type: nemo}'
    wrong "force_iterable_dataset" '- {type: nemo, manifest_filepath: nemo/u0.json}
- {type: txt, paths: txt/s1_0.txt}'
    wrong "nested 1 deep" 'reweight_temperature: [1, 2]
input_cfg: [{type: txt, paths: txt/s0_0.txt, weight: 1}]'
    wrong "--samples N" 'max_open_streams: 2
input_cfg: [{type: txt, paths: txt/s0_0.txt}, {type: txt, paths: txt/s1_0.txt}]' 2
    wrong "absent.txt" '- {type: txt, paths: absent.txt}' 2
}

@test "a file of another kind is named, with the option that takes it" {
    echo '{"id":"c","start":0,"duration":0.3,"channel":0,"supervisions":[],"recording":{"id":"r","sources":[]}}' >cuts.jsonl
    echo '{"input_ids":[1,2,3]}' >ids.jsonl
    jq . nemo/u0.json >pretty.json
    jq -s -c . nemo/u0.json >array.json
    printf 'input_cfg:\n' >cfg.yaml
    printf 'shuffle: true\ninput_cfg:\n' >flat.yaml
    echo '{"text":"hello"}' >words.jsonl
    printf 'hello\nthere\n' >words.txt
    pack --sft sft/c0.jsonl --batch-size 4 -o done.s2s
    printf 'PAR1....PAR1' >p.parquet
    while read -r option file text; do
        exits 1 s2s-pack $option $file $([ $option = --ids ] || echo --tokenizer $tok) --tokens 64 -o out.s2s
        says "$text"
        says "$file: "
        [ ! -e out.s2s ]
    done <<'T'
--cuts nemo/u0.json --manifest takes it
--manifest cuts.jsonl --cuts takes them
--manifest ids.jsonl --ids takes them
--ids nemo/u0.json --manifest takes it
--manifest talk/t0.jsonl --conversations takes them
--manifest share/g0.jsonl --share-gpt takes them
--cuts sft/c0.jsonl --sft takes them
--conversations nemo/u0.json --manifest takes it
--manifest pretty.json jq -c . FILE
--manifest array.json jq -c '.[]' FILE
--manifest tar/audio_0.tar --tars takes it
--manifest p.parquet found Parquet
--manifest wav/w0.wav found sound
--manifest done.s2s packed stream
--manifest cfg.yaml --input-cfg takes
--manifest flat.yaml --input-cfg takes
--manifest words.jsonl --text-jsonl takes them
--manifest words.txt --text takes lines
--sft words.txt --text takes lines
--text-jsonl sft/c0.jsonl --sft takes them
--text-jsonl talk/t0.jsonl --conversations takes them
T
    exits 2 pack --shar nemo/u0.json --tokens 64 -o out.s2s
    says "nemo/u0.json: cannot open: Not a directory; --shar takes a folder"
    # any line may be a text
    s2s-pack --text nemo/u0.json --tokenizer "$tok" --batch-size 1 -o out.s2s 2>said
    grep -q "nemo/u0.json: its lines are taken as text, JSON and all, and look like a NeMo manifest (--manifest takes it)" said
    exits 1 pack --manifest tar/manifest_0.json --tars nemo/u0.json --tokens 64 -o out.s2s
    says "nemo/u0.json: is no tar"
    exits 1 pack --input-cfg nemo/u0.json --tokens 64 -o out.s2s
    says "--manifest or --cuts"
}

@test "samples are left out by what they measure, and counted" {
    cat >m.json <<'J'
{"audio_filepath":"wav/w0.wav","duration":0.3,"text":"aa"}
{"audio_filepath":"wav/w1.wav","duration":0.2,"offset":0.1,"text":"bbbb"}
{"audio_filepath":"wav/w2.wav","duration":0.1,"offset":0,"text":"cc"}
{"audio_filepath":"wav/w3.wav","duration":0.3,"text":"dd","validation_status":"fail"}
J
    kept() { pack --manifest m.json --batch-size 10 --report r.json -o out.s2s "$@" && rows out.s2s | cut -d'|' -f2 | tr '\n' ' '; }
    [ "$(kept)" = "aa bbbb cc dd " ]
    [ "$(kept --min-duration 0.2)" = "aa bbbb dd " ]
    [ "$(kept --max-duration 0.2)" = "bbbb cc " ]
    s2s-pack --manifest m.json --tokenizer "$tok" --batch-size 10 --max-duration 0.2 -o out.s2s 2>said
    grep -q "0 truncated, 2 filtered;" said
    exits 1 s2s-pack --manifest m.json --tokenizer "$tok" --batch-size 10 --min-duration 3 -o no.s2s
    says "there is no sample to pack (4 read, 0 bad, 0 too long, 4 left out by duration)"
    [ "$(kept --keep-status pass)" = "aa bbbb cc " ]
    [ "$(jq -c .filtered r.json)" = '{"validation_status":1,"duration":0,"tokens":0,"tokens_per_second":0,"tokens_per_token":0,"bucket":0}' ]
    # 4 frames and 3 ids; 3 and 5; 2 and 3
    [ "$(kept --min-tokens 8)" = "bbbb " ]
    [ "$(kept --max-tokens 5)" = "cc " ]
    # a placeholder, the text and its end: 4 ids in 0.3 s, 6 in 0.2, 4 in 0.1
    [ "$(kept --min-tps 30)" = "bbbb cc " ]
    [ "$(kept --max-tps 30)" = "aa bbbb dd " ]
    printf '{"input":"qq","output":"a"}\n{"input":"q","output":"bbb"}\n' >s.jsonl
    pack --sft s.jsonl --batch-size 10 --max-tpt 1 -o out.s2s
    [ "$(rows out.s2s | cut -d'|' -f2)" = a ]
}

@test "duplex: both sides of a cut on one grid of frames, from lines, Shar and blends" {
    python3 "$ROOT/tests/oracle/packing/check_duplex.py" 40 "$RANDOM"
    python3 - <<'PY'
import gzip, io, json, math, os, struct, tarfile, wave
def sound(rate, n):
    out = io.BytesIO()
    with wave.open(out, "wb") as w:
        w.setnchannels(1); w.setsampwidth(2); w.setframerate(rate)
        w.writeframes(b"".join(struct.pack("<h", int(8000 * math.sin(i * i / 1e4))) for i in range(n)))
    return out.getvalue()
def rec(id, rate, n, type="file"):
    return {"id": id, "sources": [{"type": type, "channels": [0], "source": id if type == "file" else ""}], "sampling_rate": rate, "num_samples": n, "duration": n / rate}
data = {"in.wav": sound(16000, 32000), "out.wav": sound(22050, 44100)}
for name in data:
    open(name, "wb").write(data[name])
def cut(type):
    turns = [(0.5, 0.8, "agent", "<|1|> it's   me "), (0.16, 0.16, "user", "hello hello hello"), (3.0, 1.0, "user", "late"), (1.9, 2.0, "Assistant", "me")]
    return {"id": "c", "type": "MonoCut", "start": 0, "duration": 2.0, "channel": 0, "recording": rec("in.wav", 16000, 32000, type),
            "custom": {"target_audio": rec("out.wav", 22050, 44100, type)},
            "supervisions": [{"id": f"s{i}", "recording_id": "r", "start": s, "duration": d, "speaker": who, "text": t} for i, (s, d, who, t) in enumerate(turns)]}
open("duplex.jsonl", "w").write(json.dumps(cut("file")) + "\n")
os.mkdir("shar")
with gzip.open("shar/cuts.000000.jsonl.gz", "wt") as f:
    print(json.dumps(cut("shar")), file=f)
for field, name, rate, n in (("recording", "in.wav", 16000, 32000), ("target_audio", "out.wav", 22050, 44100)):
    with tarfile.open(f"shar/{field}.000000.tar", "w") as tar:
        for member, bytes in (("c.wav", data[name]), ("c.json", json.dumps(rec(name, rate, n, "shar")).encode())):
            info = tarfile.TarInfo(member); info.size = len(bytes); tar.addfile(info, io.BytesIO(bytes))
PY
    local how=(--layout duplex --tokenizer "$tok")
    s2s-pack --cuts duplex.jsonl "${how[@]}" --report r.json -o a.s2s 2>said
    [ "$(tar xOf a.s2s header.json | jq -c '[.kind, .config.target_sampling_rate, .schema.target_pcm.dtype]')" = '["duplex",22050,"I16"]' ]
    python3 - <<PY
import sys
sys.path.insert(0, "$ROOT/tests/oracle/packing")
import naive
(tensors, meta), = naive.read_stream("a.s2s")[1]
target, source = (list(tensors[k]) for k in ("target_tokens", "source_tokens"))
assert len(target) == len(source) == 25
# the worked example: bos at 6, text behind it, eos at 16; the last turn ends with the sound
assert target[:7] == [0] * 6 + [1] and 0 not in target[7:9] and target[16] == 2 and target[24] == 1, target
# a text with more ids than its turn has frames: eos stands in it
assert source[2] == 1 and source[4] == 2 and source[3] > 2 and source[5] > 2, source
assert len(tensors["source_pcm"]) == 32000 and len(tensors["target_pcm"]) == 44100
assert meta["text"] == "it's me me" and meta["id"] == "c", meta
PY
    [ "$(jq -c .turns r.json)" = '{"late":1,"cut":1,"overrun":1,"unfinished":1}' ]
    grep -q "1 turns have more text than frames: eos stands in it" said
    s2s-pack -q --shar shar "${how[@]}" -o b.s2s
    printf -- '- {type: lhotse_shar, shar_path: shar}\n' >blend.yaml
    s2s-pack -q --input-cfg blend.yaml "${how[@]}" -o c.s2s
    local i
    for i in a b c; do tar xOf $i.s2s 00000000.safetensors | tail -c 110000 >$i.bytes; done
    same a.bytes b.bytes
    same a.bytes c.bytes
    s2s-pack -q --cuts duplex.jsonl "${how[@]}" --overrun drop --output-roles agent -o d.s2s
    tar xOf d.s2s 00000000.safetensors | strings | grep -q '"text":"it.s me"'
    s2s-pack -q -j3 --cuts duplex.jsonl "${how[@]}" --plan --json | jq -e '.real_tokens == 25 and .hours > 0.0005 and .hours < 0.0006'
    exits 2 s2s-pack --cuts duplex.jsonl "${how[@]}" --tokens 64
    says "--tokens goes with layouts of packs"
    exits 2 s2s-pack --text t "${how[@]}"
    says "--layout duplex goes with --cuts, --shar or --input-cfg"
    sed 's/, "custom".*, "supervisions"/, "supervisions"/' duplex.jsonl >one_side.jsonl
    exits 1 s2s-pack --cuts one_side.jsonl "${how[@]}" -o no.s2s
    says "one_side.jsonl:1: no recording 'custom.target_audio'"
    sed 's/"text": "hello hello hello"/"x": 1/' duplex.jsonl >silent.jsonl
    exits 1 s2s-pack --cuts silent.jsonl "${how[@]}" -o no.s2s
    says "silent.jsonl:1: supervision 1, of 'user', has no text"
}

@test "endless sources: bounded runs that go on where the last one ended are one run" {
    python3 - <<'PY'
import json, random
random.seed(4)
for name, n in (("a", 13), ("b", 7)):
    with open(f"{name}.jsonl", "w") as f:
        for i in range(n):
            f.write(json.dumps({"text": " ".join(random.choice(["hello", "it's", "me"]) for _ in range(random.randrange(1, 9)))}) + "\n")
PY
    printf -- '- {type: txt_jsonl, paths: [a.jsonl], weight: 0.6}\n- {type: txt_jsonl, paths: [b.jsonl], weight: 0.4}\n' >blend.yaml
    local how=(--input-cfg blend.yaml --tokenizer "$tok" --tokens 48 --lookahead 11 --seed 5)
    packs() { for i in $(seq 0 "$2"); do tar xOf "$1" "$(printf %08d "$i").safetensors"; done; }
    s2s-pack -q "${how[@]}" --packs 30 -o all.s2s
    local i last=()
    for i in 0 1 2; do
        s2s-pack -q -j$((1 + i)) "${how[@]}" --packs 10 "${last[@]}" -o $i.s2s
        last=(--continue $i.s2s)
    done
    packs all.s2s 29 >whole
    for i in 0 1 2; do packs $i.s2s 9; done >parts
    same whole parts
    # what is held goes on; each source comes round again, and no pack is less full for the end of a run
    tar xOf 1.s2s header.json | jq -e '.config.seam.held | length > 0'
    tar xOf all.s2s header.json | jq -e '.config.seam.next[0] > 40'
    # a run that is killed left nothing, and is made again; a stream of other options is no beginning
    s2s-pack -q "${how[@]}" --packs 10 --continue 0.s2s -o again.s2s
    same 1.s2s again.s2s
    exits 2 s2s-pack "${how[@]}" --lookahead 12 --packs 10 --continue 0.s2s -o no.s2s
    says "0.s2s: was packed with another 'lookahead'"
    head -n 12 a.jsonl >b.jsonl
    exits 2 s2s-pack "${how[@]}" --packs 10 --continue 0.s2s -o no.s2s
    says "0.s2s: was packed of other inputs"
    s2s-pack -q --text-jsonl a.jsonl --tokenizer "$tok" --tokens 48 -o ends.s2s
    exits 1 s2s-pack "${how[@]}" --packs 10 --continue ends.s2s -o no.s2s
    says "ends.s2s: does not say where it ends"
    head -c 20000 1.s2s >cut.s2s
    exits 1 s2s-pack "${how[@]}" --packs 10 --continue cut.s2s -o no.s2s
    exits 2 s2s-pack "${how[@]:0:6}" --packs 10 -o no.s2s
    says "--packs goes with --lookahead"
    [ ! -e no.s2s ]
}

@test "one channel of a file, pairs of lines, and turns that are supervisions" {
    python3 - <<'PY'
import json, math, struct, wave
with wave.open("two.wav", "wb") as w:
    w.setnchannels(2); w.setsampwidth(2); w.setframerate(16000)
    w.writeframes(b"".join(struct.pack("<hh", 1000, int(8000 * math.sin(i / 9.0))) for i in range(16000)))
line = {"audio_filepath": "two.wav", "duration": 1.0, "text": "hello"}
with open("m.jsonl", "w") as f:
    for more in ({"channel": 0}, {"channel": 1}, {}, {"channel": "left"}):
        f.write(json.dumps({**line, **more}) + "\n")
open("beyond.jsonl", "w").write(json.dumps({**line, "channel": 2}) + "\n")
def turn(start, duration, who, text):
    return {"id": "s", "recording_id": "r", "start": start, "duration": duration, "channel": 0, "speaker": who, "text": text}
recording = {"id": "r", "sources": [{"type": "file", "channels": [0, 1], "source": "two.wav"}], "sampling_rate": 16000, "num_samples": 16000, "duration": 1.0, "channel_ids": [0, 1]}
cut = {"id": "c", "type": "MonoCut", "start": 0.1, "duration": 0.8, "channel": 1, "recording": recording,
       "supervisions": [turn(0.05, 0.2, "user", "?"), turn(0.3, 0.1, "agent", "<|4|> it's  me"), turn(0.4, 0.3, "User", "?"), turn(0.7, 0.1, "Assistant", "bye")]}
with open("cuts.jsonl", "w") as f:
    f.write(json.dumps(cut) + "\n" + json.dumps({**cut, "id": "d", "supervisions": [turn(0, 0.1, "somebody", "x")]}) + "\n")
open("ask.txt", "w").write("hello\n\nit's\nme \n")
open("say.txt", "w").write("bye\nlost\n\n me\n")
PY
    values() { PYTHONPATH=$ROOT/tests/oracle/packing python3 -c 'import sys, naive
for tensors, meta in naive.read_stream(sys.argv[1])[1]:
    print(*(meta[k] for k in ("ids", "texts") if k in meta), *tensors.get("audio_cu_samples", []), *{int(v) for v in tensors.get("audio_pcm", [])[:100]} if len(sys.argv) > 2 else "")' "$@"; }
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --batch-size 1 --pcm i16 -o out.s2s
    values out.s2s all >got
    sed -n 1p got | grep -q ' 1000$'
    sed -n 2p got | not grep -q ' 1000 *$'
    alike "$(sed -n 3p got)" "$(sed -n 4p got)" # the mean of both, and a word that is some other's key
    exits 1 s2s-pack --manifest beyond.jsonl --tokenizer "$tok" --batch-size 1 -o no.s2s
    says "beyond.jsonl:1"
    printf -- '- {type: s2s_as_conversation, cuts_path: cuts.jsonl}\n' >turns.yaml
    s2s-pack --input-cfg turns.yaml --tokenizer "$tok" --batch-size 1 -o out.s2s 2>said
    [ "$(values out.s2s)" = '["c"] ["bye"] 0 3200 8000' ]
    grep -q "cut 'd' is left out: speaker 'somebody' is neither user nor agent" said
    # the same of Shar, where the sound is in a tar; other roles, and texts with their time stamps
    python3 - <<'PY'
import io, json, os, tarfile
os.mkdir("sh")
cuts = [json.loads(line) for line in open("cuts.jsonl")]
with tarfile.open("sh/recording.000000.tar", "w") as tar:
    for cut in cuts:
        meta = {**cut.pop("recording"), "sources": [{"type": "shar", "channels": [0, 1], "source": ""}]}
        for suffix, data in ((".wav", open("two.wav", "rb").read()), (".json", json.dumps(meta).encode())):
            info = tarfile.TarInfo(cut["id"] + suffix)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
open("sh/cuts.000000.jsonl", "w").write("".join(json.dumps(cut) + "\n" for cut in cuts))
PY
    printf -- '- {type: s2s_as_conversation, shar_path: sh}\n' >shar.yaml
    s2s-pack -q --input-cfg shar.yaml --tokenizer "$tok" --batch-size 1 -o shar.s2s 2>said
    [ "$(values shar.s2s all)" = "$(values out.s2s all)" ]
    printf -- '- {type: s2s_as_conversation, cuts_path: cuts.jsonl, input_roles: [user, User, Assistant], output_roles: agent, strip_timestamp_tokens: false}\n' >turns.yaml
    s2s-pack -q --input-cfg turns.yaml --tokenizer "$tok" --batch-size 1 -o out.s2s 2>said
    [ "$(values out.s2s)" = '["c"] ["<|4|> it'"'"'s  me"] 0 3200 8000 9600' ]
    # what stands for sound in ShareGPT's turns
    echo '{"sound": "two.wav", "conversations": [{"from": "human", "value": "<clip> say <sound>"}, {"from": "gpt", "value": "x"}]}' >share.jsonl
    printf -- '- {type: share_gpt, manifest_filepath: share.jsonl, audio_placeholders: ["<clip>"]}\n' >share.yaml
    s2s-pack -q --input-cfg share.yaml --tokenizer "$tok" --batch-size 1 -o out.s2s
    python3 "$ROOT/tests/oracle/data/compare_orders.py" out.s2s >said
    [ "$(cat said)" = "say <sound>x" ]
    printf -- '- {type: txt_pair, source_paths: ask.txt, target_paths: say.txt}\n' >pairs.yaml
    s2s-pack -q --input-cfg pairs.yaml --tokenizer "$tok" --batch-size 1 --prompt llama2 -o out.s2s
    [ "$(values out.s2s | tr '\n' ,)" = '["1"] ["bye"] 0,["4"] ["me"] 0,' ]
    printf -- '- {type: txt_pair, source_paths: ask.txt, target_paths: [say.txt, say.txt]}\n' >pairs.yaml
    exits 1 s2s-pack --input-cfg pairs.yaml --tokenizer "$tok" --batch-size 1 -o no.s2s
    says "expected as many files as source_paths"
}

@test "Energon's field_map says which members are sound and text" {
    mkdir -p e/.nv-meta in
    cp wav/w0.wav in/a.wav
    echo wrong >in/a.txt
    echo right >in/a.lab
    echo '{"caption":"said","text":"wrong"}' >in/a.json
    echo rest >in/a.pdf
    tar cf e/0.tar -C in a.wav a.txt a.lab a.json a.pdf
    texts() { pack --tar e --batch-size 1 -o out.s2s "$@" && rows out.s2s | cut -d'|' -f2; }
    exits 1 s2s-pack --tar e --tokenizer "$tok" --batch-size 1 -o no.s2s
    says "sample 'a' has several members that may be its sound"
    printf 'sample_type: {__module__: megatron.energon, __class__: CrudeSample}\nfield_map: {audio: wav, text: "json[caption]"}\n' >e/.nv-meta/dataset.yaml
    [ "$(texts)" = said ]
    [ "$(texts --text-field text)" = wrong ]
    printf 'field_map: {audio: wav, transcript: lab}\n' >e/.nv-meta/dataset.yaml
    [ "$(texts)" = right ]
    printf 'field_map: {audio: wav, text: "json[a][b]"}\n' >e/.nv-meta/dataset.yaml
    exits 1 s2s-pack --tar e --tokenizer "$tok" --batch-size 1 -o no.s2s
    says "dataset.yaml:1"
    says "a key of json is expected"
}

@test "an option that would be without effect is refused, with what it goes with" {
    local words
    touch any
    while read -r words; do
        exits 2 s2s-pack ${words% :*} --tokenizer "$tok" -o no.s2s
        says "${words#*: }"
    done <<'END'
--manifest any --tokens 9 --skip-missing : --skip-missing goes with --tars or --input-cfg
--manifest any --tokens 9 --run-pipes : --run-pipes goes with --input-cfg
--manifest any --tokens 9 --audio-field x : --audio-field goes with --cuts, --shar or --input-cfg
--text any --tokens 9 --text-field x : --text-field goes with --manifest, --text-jsonl
--cuts any --tokens 9 --lang-field x : --lang-field goes with --manifest
--cuts any --tokens 9 --tars x : --tars goes with --manifest
--cuts any --tokens 9 --shuffle-shards : --shuffle-shards goes with samples in files or shards
--text any --tokens 9 --max-duration 3 : --max-duration goes with samples that have sound
--manifest any --tokens 9 --max-tpt 3 : --max-tpt goes with samples of text alone
--manifest any --tokens 9 --lookahead 3 --algorithm ffd : --algorithm goes with --tokens alone: --lookahead takes its place
--manifest any --batch-size 9 --too-long skip : --too-long goes with --tokens
--manifest any --tokens 9 --trust-durations : --trust-durations goes with --plan
--manifest any --tokens 9 --audio mel --pcm i16 : --pcm goes with --audio pcm
--manifest any --tokens 9 --target-rate 16000 : --target-rate goes with --layout duplex
--manifest any --tokens 9 --min-tokens 5 --max-tokens 4 : --min-tokens 5 is above --max-tokens 4
--manifest any --tokens 9 --min-duration 5 --max-duration 4.5 : --min-duration 5 is above --max-duration 4.5
END
    seq 4 >lens.txt
    exits 2 s2s-pack batches --tokens 9 --seed 3 lens.txt
    says "--seed is without effect here"
    exits 2 s2s-pack npy --cp 2 some.s2s -o some.npy
    says "--pad-id, --pack-to and --cp act on a stream that is written: some.s2s"
    exits 2 s2s-pack report --seed 3 r.json
    says "--seed is without effect here"
}

@test "a key of a blend that nobody reads is told, one that would change samples is refused" {
    printf 'hello\nworld\n' >a.txt
    printf 'input_cfg:\n  - {type: txt, paths: a.txt, wieght: 0.5}\n' >blend.yaml
    exits 0 s2s-pack --input-cfg blend.yaml --tokenizer "$ROOT/demo/tokenizer.json" --tokens 64 -o a.s2s
    says "blend.yaml:2:"
    says "key 'wieght' is not known here, and ignored; did you mean 'weight'?"
    printf 'input_cfg:\n  - {type: txt, paths: a.txt, extra_fields: [{type: text_iter}]}\n' >blend.yaml
    exits 0 s2s-pack --input-cfg blend.yaml --tokenizer "$ROOT/demo/tokenizer.json" --tokens 64 -o b.s2s
    says "key 'extra_fields' has no effect on items of type 'txt', and is ignored"
    printf 'input_cfg:\n  - {type: nemo, manifest_filepath: nemo/u1.json, channel: 1}\n' >blend.yaml
    exits 1 s2s-pack --input-cfg blend.yaml --tokenizer "$ROOT/demo/tokenizer.json" --tokens 64 -o b.s2s
    says "channel is not read here"
}

@test "what extra_fields and questions_path lack is named" {
    local words
    printf 'one\n' >one.txt
    touch none.txt
    printf 'a\n\xff\n' >bad.txt
    while read -r words; do
        printf -- '- {type: nemo, manifest_filepath: nemo/u1.json, extra_fields: [%s]}\n' "${words% => *}" >blend.yaml
        exits 1 pack --input-cfg blend.yaml --batch-size 9 -o no.s2s
        says "${words#* => }"
    done <<'END'
{type: text_iter, name: context, path: one.txt} => one.txt: has 1 lines for 'context', fewer than there are samples
{type: text_sample, name: context, path: none.txt} => none.txt: has no lines
{type: text_sample, name: context, path: bad.txt} => bad.txt:2: is not UTF-8, or has a NUL
{type: text_draw, name: context, path: one.txt} => blend.yaml:1:
{type: text_iter, path: one.txt} => 'name'
{type: text_iter, name: context} => 'path' is missing
{type: text_iter, name: context, path: one.txt, sed: 1} => 'sed'; did you mean 'seed'?
{type: text_iter, name: duration, path: one.txt} => this name is a part of each sample
{type: text_iter, name: context, path: "pipe:cat one.txt"} => --run-pipes
END
    printf -- '- {type: txt_pair, source_paths: pair/q1.txt, target_paths: pair/a1.txt, questions_path: gone.txt}\n' >blend.yaml
    exits 2 pack --input-cfg blend.yaml --batch-size 9 -o no.s2s
    says "gone.txt: cannot open"
    # a field of a command, and the digest of what it says beside that of the manifest
    printf -- '- {type: nemo, manifest_filepath: nemo/u1.json, extra_fields: [{type: text_sample, name: context, path: "pipe:cat one.txt"}]}\n' >blend.yaml
    pack --input-cfg blend.yaml --run-pipes --batch-size 9 --report r.json -o out.s2s
    [ "$(rows out.s2s | wc -l)" = 5 ]
}

@test "an index of a tar is used, and named where it is not of this tar" {
    mkdir -p e/.nv-meta in/b
    for k in 1 2 3; do
        cp wav/w$k.wav in/b/$k.wav
        echo "text $k" >in/b/$k.txt
    done
    tar --format=ustar --sort=name -cf e/0.tar -C in b
    cp e/0.tar e/1.tar
    printf '{"energon_version": "7.1.0", "shard_counts": {"0.tar": 3, "1.tar": 3}}\n' >e/.nv-meta/.info.json
    # where samples begin in this tar, and behind the last one; index CHANGE: an index of 0.tar, with a change to the numbers `at`
    index() {
        python3 - "$1" <<'PY'
import struct, sys, tarfile
at, last = [], None
with tarfile.open("e/0.tar") as tar:
    for m in tar:
        if m.isreg() and m.name.split(".")[0] != last:
            last = m.name.split(".")[0]
            at.append(m.offset)
    at.append(tar.offset)
exec(sys.argv[1])
open("e/0.tar.idx", "wb").write(struct.pack(f"<{len(at)}Q", *at))
PY
    }
    texts() { pack --tar e --batch-size 1 -o out.s2s "$@" && rows out.s2s | cut -d'|' -f1,2 | tr '\n' ' '; }
    wrong() { # change words
        index "$1"
        exits 1 s2s-pack --tar e --tokenizer "$tok" --batch-size 1 -o no.s2s
        says "$2"
    }
    want='b/1|text 1 b/2|text 2 b/3|text 3 b/1|text 1 b/2|text 2 b/3|text 3 '
    [ "$(texts)" = "$want" ]
    index ''
    [ "$(texts)" = "$want" ]
    wrong 'at[1] += 512' "e/0.tar.idx: "
    wrong 'at[1] += 1024' "e/0.tar.idx: "
    wrong 'del at[1]' "e/0.tar: has 2 samples, where the list of shards says 3"
    wrong 'at[1:2] = []; at.insert(1, at[0] + 512 * 3)' "e/0.tar.idx: "
    wrong 'at[-1] -= 512' "e/0.tar.idx: the tar goes on behind its last entry"
    wrong 'at[-1] += 10 ** 9' "where"
    wrong 'at.reverse()' "e/0.tar.idx: entry 1 is"
    wrong 'at.clear()' "0 bytes are no list of offsets"
    says "'energon prepare' makes it of this tar"
    index ''
    printf 'exclude: ["{1,7}.tar", 0.tar/b/2]\nsplit_parts: {train: ["{0..1}.tar"], val: []}\n' >e/.nv-meta/split.yaml
    [ "$(texts)" = 'b/1|text 1 b/3|text 3 ' ]
    # a list of shards as wids has it
    printf '{"wids_version": 1, "shardlist": [{"url": "0.tar", "nsamples": 3}, {"url": "1.tar"}]}\n' >e/list.json
    pack --tar e/list.json --batch-size 1 -o out.s2s
    [ "$(rows out.s2s | wc -l)" = 6 ]
    printf '{"shardlist": [{"url": "1.tar", "nsamples": 4}, {"url": "pipe:touch bad"}]}\n' >e/list.json
    exits 1 s2s-pack --tar e/list.json --tokenizer "$tok" --batch-size 1 -o no.s2s
    says "commands of a list of shards are not run"
    sed -i 's/, {"url": "pipe.*"}/]}/;s/]}]}/]}/' e/list.json
    exits 1 s2s-pack --tar e/list.json --tokenizer "$tok" --batch-size 1 -o no.s2s
    says "e/1.tar: has 3 samples, where the list of shards says 4"
}

@test "sound that nobody decodes here is named, with what makes FLAC of it" {
    local kind words
    while IFS='|' read -r kind words; do
        printf "$kind" >x.snd
        head -c 4000 /dev/zero >>x.snd
        echo '{"audio_filepath": "x.snd", "duration": 1, "text": "hi"}' >m.jsonl
        exits 1 s2s-pack --manifest m.jsonl --tokenizer "$tok" --batch-size 1 -o no.s2s
        says "m.jsonl:1: x.snd: $words is not decoded here"
        says "ffmpeg -i IN -c:a flac OUT.flac"
    done <<'END'
\0\0\0\x20ftypM4A |MPEG-4 (m4a, mp4, mov)
\x1a\x45\xdf\xa3\x9f|Matroska (webm, mka, mkv)
\x30\x26\xb2\x75\x8e|ASF (wma)
\xff\xf1\x50\x80|AAC
#!AMR\n|AMR
wvpk|WavPack
END
    echo '{"audio_filepath": "wav/w0.wav", "duration": 0.3, "text": "hi"}' >>m.jsonl
    pack --manifest m.jsonl --batch-size 1 --bad skip --report r.json -o out.s2s
    [ "$(jq '[.samples, (.skipped | length)] | @csv' -r r.json)" = 1,1 ]
}
