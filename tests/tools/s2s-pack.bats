#!/usr/bin/env bats
# s2s-pack: what its manual promises.
load common
load inject

setup_file() { inject_build; }

# Three clips (16 kHz, 8 kHz, stereo 16 kHz), a manifest of them, tokenized rows of the worked example, and a shortcut.
setup_tool() {
    python3 - <<'PY'
import json, math, os, struct, wave
os.mkdir("wav")
rows = []
for name, rate, channels, seconds, text in [("a", 16000, 1, 1.0, "hello"), ("b", 8000, 1, 0.5, "it's me"),
                                            ("c", 16000, 2, 2.3, "two channels")]:
    n = int(rate * seconds)
    with wave.open(f"wav/{name}.wav", "wb") as w:
        w.setnchannels(channels); w.setsampwidth(2); w.setframerate(rate)
        w.writeframes(b"".join(struct.pack("<h", int(8000 * math.sin(i * (c + 1) / 9.0)))
                               for i in range(n) for c in range(channels)))
    rows.append({"audio_filepath": f"wav/{name}.wav", "duration": seconds, "text": text})
with open("m.jsonl", "w") as f:
    f.writelines(json.dumps(r) + "\n" for r in rows)
with open("ids.jsonl", "w") as f:
    f.write('{"id":"u0","input_ids":[7,100,1,2,100,3],"loss_mask":[0,0,0,0,0,1],'
            '"audio":[{"pos":1,"frames":4},{"pos":4,"frames":3}]}\n'
            '{"id":"u1","input_ids":[0,0,4,100,5,6],"loss_mask":[0,0,0,0,1,1],"audio":[{"pos":3,"frames":2}]}\n')
PY
    tok=$ROOT/demo/tokenizer.json
}

# values STREAM: every tensor of every record as python lists, one a line: "record name values"
values() {
    PYTHONPATH=$ROOT/tests/oracle/packing python3 - "$1" <<'PY'
import sys, naive
for i, (tensors, meta) in enumerate(naive.read_stream(sys.argv[1])[1]):
    for name in sorted(tensors):
        print(i, name, *tensors[name])
    for name in sorted(meta):
        print(i, name, meta[name])
PY
}

@test "help and version exit 0, an unknown option 2" {
    exits 0 s2s-pack --help
    says "--manifest"
    exits 0 s2s-pack -h
    exits 0 s2s-pack bins --help
    says "--multiple"
    exits 0 s2s-pack --version
    says "s2s-pack 0"
    exits 2 s2s-pack --nonsense
    says "--usage"
    exits 0 s2s-pack --usage
    says "--tokens=N"
    exits 2 s2s-pack bins --nonsense
    exits 2 s2s-pack --ids ids.jsonl
    says "--tokens or --batch-size"
    exits 2 s2s-pack --ids ids.jsonl --tokens 64 --batch-size 2
    says "--tokens or --batch-size, not both"
    exits 2 s2s-pack --manifest m.jsonl --tokens 100
    says "--tokenizer"
    exits 2 s2s-pack --ids ids.jsonl --manifest m.jsonl --tokens 100
}

@test "an input that is not there exits 2 and leaves nothing" {
    exits 2 s2s-pack --ids absent.jsonl --tokens 64 -o out.s2s
    says absent.jsonl
    exits 2 s2s-pack --manifest m.jsonl --tokenizer absent.json --tokens 64 -o out.s2s
    says absent.json
    no_litter . ids.jsonl m.jsonl wav
}

@test "the worked example of the layout" {
    s2s-pack -q --ids ids.jsonl --batch-size 2 -o out.s2s
    values out.s2s >got
    grep -qx '0 cu_seqlens 0 11 16' got
    grep -qx '0 max_seqlen 11' got
    grep -qx '0 labels -100 -100 -100 -100 -100 -100 -100 -100 -100 3 -100 -100 -100 5 6 -100' got
    s2s-pack -q --ids ids.jsonl --batch-size 2 --cp 2 -o out.s2s
    values out.s2s >got
    grep -qx '0 cu_seqlens 0 12 20' got
    grep -qx '0 seq_lens 11 5' got
    grep -qx '0 audio_slot 1 7 13' got
    grep -qx '0 input_ids 7 100 100 100 100 1 2 100 100 100 3 0 4 100 100 5 6 0 0 0' got
    grep -qx '0 num_tokens 16' got
    s2s-pack -q --ids ids.jsonl --batch-size 2 --cp 2 --tp 6 -o out.s2s
    values out.s2s | grep -qx '0 seq_lens_padded 12 12'
    s2s-pack -q --ids ids.jsonl --batch-size 2 --tp 3 -o out.s2s
    values out.s2s | grep -qx '0 seq_lens_padded 11 7'
}

@test "layouts of NeMo-RL, Megatron-core and packed SFT files: their worked examples" {
    printf '%s\n' '{"id":"a","input_ids":[11,12,13,14,15],"loss_mask":[0,0,1,1,1]}' \
        '{"id":"b","input_ids":[21,22,23],"loss_mask":[0,1,1]}' >rl.jsonl
    s2s-pack -q --ids rl.jsonl --batch-size 2 --layout rl --cp 2 --min-seq-len 16 --pad-id 2 -o out.s2s
    s2s-cpshard --cp 2 -o 'rank%r.s2s' out.s2s
    values rank0.s2s >got
    grep -qx '0 input_ids 11 12 2 2 21 22 2 2' got
    grep -qx '0 labels -100 -100 -100 -100 -100 22 -100 -100' got
    grep -qx '0 position_ids 0 1 6 7 0 1 0 0' got
    grep -qx '0 seq_lens_padded 8 8' got
    values rank1.s2s | grep -qx '0 labels 13 14 15 -100 23 -100 -100 -100'
    # nothing but trailing fill: it counts as tokens of the last sequence
    s2s-pack -q --ids rl.jsonl --batch-size 2 --layout rl --min-seq-len 10 -o out.s2s
    values out.s2s | grep -qx '0 cu_seqlens 0 5 10'
    printf '%s\n' '{"id":"a","input_ids":[1,2,3,4,5]}' '{"id":"b","input_ids":[6,7]}' >two.jsonl
    s2s-pack -q --ids two.jsonl --batch-size 2 --layout mcore --cp 2 --multiple 4 --pack-multiple 16 -o out.s2s
    values out.s2s >got
    grep -qx '0 input_ids 1 2 3 4 5 0 0 0 6 7 0 0 0 0 0 0' got
    grep -qx '0 cu_seqlens 0 5 7' got
    grep -qx '0 cu_seqlens_padded 0 8 16' got
    exits 1 grep position_ids got
    s2s-pack -q --ids rl.jsonl --tokens 8 --layout sft --pack-to 8 -o out.s2s
    values out.s2s >got
    grep -qx '0 input_ids 11 12 13 14 21 22 0 0' got
    grep -qx '0 labels 12 13 14 15 22 23 -100 -100' got
    grep -qx '0 loss_mask 0 1 1 1 1 1 0 0' got
    s2s-shard verify out.s2s
    s2s-pack -q --ids rl.jsonl --tokens 16 --layout mcore --pack-multiple 16 --plan >got
    grep -qx 'padding_tokens	8' got
}

@test "packed SFT files of numpy become streams and come back, and nothing in them is run" {
    printf '%s\n' '{"id":"a","input_ids":[11,12,13,14,15],"loss_mask":[0,0,1,1,1]}' \
        '{"id":"b","input_ids":[21,22,23],"loss_mask":[0,1,1]}' >sft.jsonl
    s2s-pack -q --ids sft.jsonl --tokens 8 --layout sft -o out.s2s
    s2s-pack npy -q -o out.npy out.s2s
    s2s-pack npy -q -o back.s2s out.npy
    alike "$(values out.s2s | grep -v ' ids ')" "$(values back.s2s | grep -v ' ids ')"
    s2s-pack npy -q --pack-to 8 --pad-id 2 -o full.s2s out.npy
    values full.s2s | grep -qx '0 input_ids 11 12 13 14 21 22 2 2'
    s2s-pack npy -q -o again.npy full.s2s # what fills a pack up is none of the file
    cmp out.npy again.npy
    # a pickle that calls something is refused, and leaves nothing
    python3 - <<'PY'
import os, pickle
class Hostile:
    def __reduce__(self):
        return os.system, ("touch ran",)
head = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"
open("bad.npy", "wb").write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + pickle.dumps(Hostile()))
open("plain.npy", "wb").write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.replace(b"|O", b"<i8"))
PY
    exits 1 s2s-pack npy -o bad.s2s bad.npy
    says "nothing was run"
    [ ! -e ran ]
    exits 1 s2s-pack npy -o bad.s2s plain.npy
    says "plain.npy: no array of objects"
    head -c 100 out.npy >cut.npy
    exits 1 s2s-pack npy -o bad.s2s cut.npy
    [ ! -e bad.s2s ]
    s2s-pack -q --ids ids.jsonl --batch-size 2 -o salm.s2s
    exits 1 s2s-pack npy -o bad.npy salm.s2s
    says "--layout sft"
    exits 2 s2s-pack npy out.s2s
}

@test "lengths become padded microbatches of like length, cut alike on every rank" {
    printf '%s\n' 4 1 3 2 1 3 4 5 >lens.txt
    [ "$(s2s-pack batches --tokens 8 --dp 2 lens.txt)" = $'3\t1 3\t4 2\n4\t5\t0\n5\t6\t7' ]
    [ "$(s2s-pack batches --tokens 8 --batch-size 4 <lens.txt | head -1)" = $'2\t1 3' ]
    s2s-pack batches --tokens 8 --json lens.txt | jq -e '.fill > 0.7 and (.batches | length) == 1'
    exits 1 s2s-pack batches --tokens 4 lens.txt
    says "length 7 is 5, a row of 5 slots, a microbatch has 4"
    exits 1 s2s-pack batches --tokens 8 --dp 3 lens.txt
    says "8 samples do not divide over 3 ranks"
    exits 2 s2s-pack batches lens.txt
}

@test "lengths go to batches of like length, as Lhotse's samplers make them" {
    # Lhotse's own batches of these: check_batches.py of tests/oracle/lhotse
    printf '%s\n' 1 2.5 .5 7.25 3 3 12 .75 1.5 4 6 >lens.txt
    [ "$(s2s-pack buckets --batch-duration 10 <lens.txt | tr '\n' ,)" = "0 1 2 3,4 5 6,7 8 9,10," ]
    exits 1 s2s-pack buckets --batch-duration 10 --hard-limit lens.txt
    says "length 6 is 12, more than a batch may have"
    [ "$(s2s-pack buckets --batch-duration 12 --hard-limit lens.txt | tr '\n' ,)" = "0 1 2,3,4 5,6,7 8 9,10," ]
    [ "$(s2s-pack buckets --batch-duration 10 --buckets 1.2,3,9 lens.txt | tr '\n' ,)" = "6,1 4 5,3,9 10,0 2 7,8," ]
    [ "$(s2s-pack buckets --estimate --buckets 3 lens.txt)" = 6 ]
    printf '%s\n' "8 11" "8 5" "30 1" "19 18" >two.txt
    s2s-pack buckets --buckets 10:5,10:10,20:12,20:18 --bucket-sizes 2,2,2,2 two.txt >got 2>said
    [ "$(sort got | tr '\n' ,)" = "1,3," ]
    grep -q "2 lengths fit no bucket" said
    s2s-pack buckets --buckets 10:5,10:10,20:12,20:18 --bucket-sizes 2,2,2,2 --lenient-buckets two.txt >got 2>said
    [ "$(sort got | tr '\n' ,)" = "0,1,3," ]
    exits 2 s2s-pack buckets lens.txt
    says "--batch-size, --batch-duration or --bucket-sizes is needed"
    exits 2 s2s-pack buckets --buckets 3,2 --batch-size 2 lens.txt
    says "bounds of buckets ascend, 2 comes behind 3"
    exits 2 s2s-pack buckets --buckets 3:2,4:5 --batch-size 2 lens.txt
    says "go with --bucket-sizes"
    echo "1 x" >>two.txt
    exits 1 s2s-pack buckets --batch-size 2 two.txt
    says "two.txt:1: more than a length"
    says_not "0 "
}

@test "packs may be batches of like length: by slots, by seconds, a number to each bucket" {
    for i in $(seq 0 29); do echo "{\"id\":\"$i\",\"input_ids\":[$(seq -s, 1 $((1 + i * 7 % 30)))]}"; done >rows.jsonl
    jq '.input_ids | length' rows.jsonl >lens.txt
    batches_of() { values "$1" | grep ' ids ' | cut -d' ' -f3- | jq -c 'map(tonumber)'; }
    local how
    for how in "" "--buckets 4 --shuffle 3" "--buckets 5.5,10,20 --bins-multiple 4" "--buckets 3 --drop-last --quadratic 20"; do
        s2s-pack -q --ids rows.jsonl --batch-tokens 40 $how --seed 3 -o out.s2s
        s2s-pack buckets --json --batch-duration 40 $how --seed 3 lens.txt | jq -c '.batches[]' >want
        [ -s want ]
        batches_of out.s2s >got
        alike "$(cat want)" "$(cat got)"
    done
    s2s-pack -q --ids rows.jsonl --batch-tokens 40 --buckets 4 --shuffle 30 --epochs 2 -o out.s2s
    [ "$(batches_of out.s2s | jq '.[]' | sort | uniq -c | awk '{print $1}' | sort -u)" = 2 ]
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --batch-duration 2.5 --audio none --report r.json -o out.s2s
    [ "$(values out.s2s | grep -c ' ids ')" = 2 ] # the second of a, b and c comes to more, so it is the last
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --buckets 0.5:50,1:50 --bucket-sizes 2,2 --audio none --report r.json -o out.s2s
    jq -e '.samples == 2 and .filtered.bucket == 1' r.json
    exits 2 s2s-pack --ids rows.jsonl --batch-duration 4 -o no.s2s
    says "rows.jsonl:1: a sample without sound has no --batch-duration"
    says "--batch-tokens counts slots"
    exits 1 s2s-pack --ids rows.jsonl --batch-tokens 40000 --drop-last -o no.s2s
    says "E_EMPTY_BATCH"
    [ ! -e no.s2s ]
    exits 2 s2s-pack --ids rows.jsonl --tokens 64 --buckets 3
    says "--buckets and --drop-last go with bounds of a batch"
}

@test "what a layout cannot be is said with its option" {
    local words
    while IFS='|' read -r words message; do
        exits 2 s2s-pack --ids ids.jsonl --batch-size 2 -o out.s2s $words
        says "$message"
    done <<'EOF'
--min-seq-len 8|--min-seq-len goes with --layout rl
--layout rl --cp 2 --min-seq-len 10|E_ALIGN: --min-seq-len 10 is no multiple of 2 * cp = 4
--layout mcore --cp 2 --multiple 6|--multiple 6 is no multiple of 4
--layout mcore --pack-multiple 16 --pack-to 40|--pack-to 40 is no multiple of 16
--layout rl --pad-labels drop|--pad-labels goes with --layout salm
EOF
    exits 1 s2s-pack --ids ids.jsonl --batch-size 2 --layout mcore --pack-to 8 -o out.s2s
    says "E_TOO_SHORT: a pack of 8 slots cannot hold 16"
    exits 2 s2s-pack --ids ids.jsonl --tokens 8 --layout sft --pack-to 16 -o out.s2s
    echo '{"id":"a","input_ids":[5]}' >one.jsonl
    exits 1 s2s-pack --ids one.jsonl --tokens 8 --layout sft -o out.s2s
    says "one.jsonl:1: E_EMPTY_UTT"
    [ ! -e out.s2s ]
}

@test "sequence parallelism: a misaligned share is warned of, --strict-sp mends it" {
    echo '{"id":"a","input_ids":[5,6,7]}' >short.jsonl
    exits 0 s2s-pack --ids short.jsonl --batch-size 1 --cp 2 --tp 4 -o out.s2s
    says "--strict-sp"
    values out.s2s | grep -qx '0 seq_lens_padded 4'
    exits 0 s2s-pack --ids short.jsonl --batch-size 1 --cp 2 --tp 4 --strict-sp -o out.s2s
    values out.s2s | grep -qx '0 seq_lens_padded 8'
}

@test "labels and attention_mask of a Hugging Face data set are not passed over" {
    local wrong message
    row() { printf '{"id":"a","input_ids":[5,6,7,0],%s}\n' "$1" >hf.jsonl; }
    while IFS='|' read -r wrong message; do
        row "$wrong"
        exits 1 s2s-pack --ids hf.jsonl --tokens 64 -o out.s2s
        says "hf.jsonl:1: $message"
    done <<'EOF'
"labels":[-100,-100,7,0]|labels[1] = -100, where no loss_mask says 6; give loss_mask
"labels":[-100,6,7,0],"loss_mask":[0,0,1,1]|labels[1] = 6, where loss_mask says -100
"labels":[5,6]|labels has 2 entries, input_ids 4
"attention_mask":[1,1,1,0]|attention_mask[3] leaves out an id; leave padding on the right out
"attention_mask":[0,1,1,1]|attention_mask[0] leaves out id 5; if it is padding, say so with --pad-id
EOF
    [ ! -e out.s2s ]
    # what says the same passes: padding on the left, a placeholder without a label
    row '"attention_mask":[0,1,1,1],"labels":[-100,-100,7,0],"loss_mask":[0,1,1,1],"audio":[{"pos":1,"frames":2}]'
    s2s-pack -q --ids hf.jsonl --tokens 64 --pad-id 5 -o out.s2s
    values out.s2s | grep -qx '0 seq_lens 4'
    # and no label where there is no loss: the first id, padding without a mask, its id as the end of text
    for same in '"attention_mask":[1,1,1,1],"labels":[5,6,7,0]' '"attention_mask":[1.0,1,1,1]' \
        '"labels":[-100,6,7,-100]'; do
        row "$same"
        s2s-pack -q --ids hf.jsonl --tokens 64 -o out.s2s
        values out.s2s | grep -qx '0 seq_lens 4'
    done
    row '"labels":[-100,-100,7,0]'
    s2s-pack -q --ids hf.jsonl --tokens 64 --pad-id 5 -o out.s2s
    values out.s2s | grep -qx '0 seq_lens 3'
    # what a clip in front predicts has loss, whatever the placeholder's id
    row '"labels":[-100,-100,7,0],"audio":[{"pos":0,"frames":2}]'
    exits 1 s2s-pack --ids hf.jsonl --tokens 64 --pad-id 5 -o out.s2s
    says "labels[1] = -100"
    # of many clips each is found at once
    python3 - >many.jsonl <<'PY'
import json
n = 400000
print(json.dumps({"id": "a", "input_ids": [5] * n, "labels": [5, -100] * (n // 2),
                  "audio": [{"pos": i, "frames": 1} for i in range(1, n, 2)]}))
PY
    timeout 10 s2s-pack -q --ids many.jsonl --tokens 400000 -o many.s2s
}

@test "a byte order mark in front of a list of samples is none of it" {
    printf '\xef\xbb\xbf{"id":"a","input_ids":[5,6,7]}\r\n' >marked.jsonl
    s2s-pack -q --ids marked.jsonl --tokens 64 -o out.s2s
    values out.s2s | grep -qx '0 input_ids 5 6 7'
    printf '\xef\xbb\xbf3\r\n4\r\n' >lens.txt
    [ "$(s2s-pack bins --tokens 8 --json lens.txt | jq '.bins[0] | length')" = 2 ]
}

@test "what the layout refuses is named, exits 1 and leaves nothing" {
    refused() {
        printf '%s\n' "$2" >bad.jsonl
        exits 1 s2s-pack --ids bad.jsonl --tokens 64 -o out.s2s
        says "$1"
        [ ! -e out.s2s ]
    }
    refused E_EMPTY_BATCH ''
    refused E_EMPTY_ROW '{"id":"a","input_ids":[]}'
    refused E_EMPTY_UTT '{"id":"a","input_ids":[9],"audio":[{"pos":0,"frames":0}]}'
    refused E_AUDIO_COUNT '{"id":"a","input_ids":[9,8],"audio":[{"pos":2,"frames":1}]}'
    refused E_AUDIO_COUNT '{"id":"a","input_ids":[9,8],"audio":[{"pos":1,"frames":1},{"pos":1,"frames":2}]}'
    refused "bad.jsonl:1" '{"id":"a","input_ids":[9,8],"loss_mask":[1]}'
    refused "bad.jsonl:1" '{"id":"a","input_ids":[9,"x"]}'
    refused "bad.jsonl:1" '{"id":"a","input_ids":[99999999999]}'
    refused "bad.jsonl:1" '{"id":"a"'
    refused "utterance 'a' needs 65 slots" "{\"id\":\"a\",\"input_ids\":[$(seq -s, 1 65)]}"
}

@test "a key that stands twice in a line is refused, not half read" {
    echo '{"id":"u0","input_ids":[7,1],"loss_mask":[0,1],"input_ids":[7,2]}' >twice.jsonl
    exits 1 s2s-pack --ids twice.jsonl --tokens 64 -o out.s2s
    says "twice.jsonl:1:"
    says "duplicate object key near '\"input_ids\"'"
    echo '{"audio_filepath":"wav/a.wav","duration":1.0,"text":"a","text":"b"}' >twice.jsonl
    exits 1 s2s-pack --manifest twice.jsonl --tokenizer "$tok" --tokens 64 -o out.s2s
    says "twice.jsonl:1:"
    [ ! -e out.s2s ]
}

@test "too long and bad samples are truncated, skipped, counted and named in the report" {
    { cat ids.jsonl; echo "{\"id\":\"long\",\"input_ids\":[$(seq -s, 1 40)]}"; echo '{"id":"bad","input_ids":[]}'; } >mixed.jsonl
    exits 1 s2s-pack --ids mixed.jsonl --tokens 20 --too-long skip -o out.s2s
    says "mixed.jsonl:4"
    s2s-pack -q --ids mixed.jsonl --tokens 20 --too-long skip --bad skip --report r.json -o out.s2s
    [ "$(jq -c '[.samples, .samples_read, .too_long.skipped, (.skipped | length)]' r.json)" = '[2,4,1,1]' ]
    jq -r '.skipped[0].reason' r.json | grep -q 'mixed.jsonl:4.*E_EMPTY_ROW'
    s2s-pack -q --ids mixed.jsonl --tokens 20 --too-long truncate --bad skip --report r.json -o out.s2s
    [ "$(jq -c '[.samples, .too_long.truncated]' r.json)" = '[3,1]' ]
    values out.s2s | grep -qx '0 seq_lens 20'
}

@test "truncation never cuts a clip" {
    echo '{"id":"a","input_ids":[5,9,6],"audio":[{"pos":1,"frames":8}]}' >clip.jsonl
    s2s-pack -q --ids clip.jsonl --tokens 9 --too-long truncate -o out.s2s
    values out.s2s | grep -qx '0 seq_lens 9'
    s2s-pack -q --ids clip.jsonl --tokens 8 --too-long truncate -o out.s2s
    values out.s2s | grep -qx '0 seq_lens 1'
    values out.s2s | grep -qx '0 audio_slot'
}

@test "--tokens is lowered to what the last utterance can be raised within" {
    exits 0 s2s-pack --ids ids.jsonl --tokens 35 --cp 2 --tp 6 -o out.s2s
    says "lowered to 24"
    values out.s2s | grep -qx '0 cu_seqlens 0 12 24'
    exits 2 s2s-pack --ids ids.jsonl --tokens 11 --cp 2 --tp 6 -o out.s2s
}

@test "a window of samples packs near the bound and keeps the order of the rest" {
    python3 - >many.jsonl <<'PY'
import json, random
rng = random.Random(5)
for i in range(3000):
    print(json.dumps({"id": str(i), "input_ids": [5] * rng.randint(4, 60)}))
PY
    s2s-pack -q --ids many.jsonl --tokens 512 --lookahead 64 --report r.json -o out.s2s
    jq -e '.packs - .packs_bound <= 2 and .packs_bound > 150' r.json
    [ "$(s2s-shard head --json out.s2s | jq -c '.config | [.lookahead, has("algorithm")]')" = '[64,false]' ]
    values out.s2s | sed -n 's/^[0-9]* ids //p' | jq -r '.[]' >order
    sort -n order | cmp - <(seq 0 2999)
    # no sample comes earlier than the window lets it
    awk '{ if ($1 - NR > 64 + 60) exit 1 }' order
    awk '{ if (NR > 1 && $1 == last + 1) n++; last = $1 } END { exit n < 1000 }' order
    exits 2 s2s-pack --ids many.jsonl --batch-size 4 --lookahead 64
    [ "$(seq 1 40 | s2s-pack bins --tokens 50 --lookahead 40 --json | jq -c '[(.bins | length), .bound]')" = '[18,17]' ]
}

@test "bins: the worked example in every algorithm, from a file and a pipe" {
    printf '%s\n' 4 1 3 2 1 3 4 5 >lens.txt
    [ "$(s2s-pack bins --algorithm concatenative --tokens 5 --json lens.txt | jq -c .bins)" = '[[0,1],[2,3],[4,5],[6],[7]]' ]
    [ "$(s2s-pack bins --tokens 5 --json <lens.txt | jq -c .bins)" = '[[7],[6,4],[0,1],[5,3],[2]]' ]
    [ "$(s2s-pack bins --algorithm mffd --tokens 5 --json - <lens.txt | jq -c .bins)" = '[[7],[0],[6],[2,3],[5,1,4]]' ]
    [ "$(s2s-pack bins --tokens 5 --json lens.txt | jq .fill)" = 0.92 ]
    [ "$(s2s-pack bins --tokens 5 lens.txt | head -n 2 | tr '\n' '|')" = '7|6 4|' ]
    exits 1 s2s-pack bins --tokens 4 lens.txt
    says "length 7"
    exits 1 s2s-pack bins --tokens 5 --min-bins 9 lens.txt
    says E_TOO_FEW
    echo 1x >>lens.txt
    exits 1 s2s-pack bins --tokens 5 lens.txt
    says "lens.txt:9"
}

@test "lengths, layout and partition are those of a plain implementation" {
    python3 "$ROOT/tests/oracle/packing/check_packing.py" 60 "$RANDOM"
}

@test "a manifest: frames from the file's length, ids, texts and clips" {
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --batch-size 3 -o out.s2s
    values out.s2s >got
    # 100, 50 and 230 columns: 13, 7 and 29 frames
    grep -qx '0 audio_frames 13 7 29' got
    grep -qx '0 audio_cu_samples 0 16000 24000 60800' got
    grep -qx '0 ids \["a","b","c"\]' got
    grep -qx '0 texts \["hello","it'"'"'s me","two channels"\]' got
    grep -q '0 audio \[{"source":"wav/a.wav","offset":0.0,"duration":1.0,"xxh3":"[0-9a-f]*"}' got
    # 13 frames, hello, end of text: labels begin at the last frame
    head=$(grep '^0 labels' got | cut -d' ' -f3-22)
    [ "$head" = "-100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 108 105 112 112 115 2 -100 -100" ]
}

@test "pcm is I16 exactly when that says all" {
    schema() { tar xOf "$1" header.json | jq -r .schema.audio_pcm.dtype; }
    head -n 1 m.jsonl >one.jsonl
    s2s-pack -q --manifest one.jsonl --tokenizer "$tok" --tokens 64 -o out.s2s
    [ "$(schema out.s2s)" = I16 ]
    values out.s2s | grep '^0 audio_pcm' | cut -d' ' -f3- >got
    python3 -c "import wave,struct; b=wave.open('wav/a.wav').readframes(99999); print(*struct.unpack(f'<{len(b)//2}h', b))" >want
    same got want
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --tokens 64 -o out.s2s
    [ "$(schema out.s2s)" = F32 ]
}

@test "every form of audio gives the same layout" {
    for form in none path pcm mel; do
        s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --tokens 64 --audio $form -o $form.s2s
        values $form.s2s | grep -v ' audio_cu\| audio_pcm\| audio_mel\| audio \[' >$form.txt
        same none.txt $form.txt
        s2s-shard verify $form.s2s
    done
    values path.s2s | grep -q 'audio \[{"source":"wav/'
}

@test "flac is the same sound in fewer bytes, for whoever reads it" {
    local how=(--manifest m.jsonl --tokenizer "$tok" --tokens 64)
    s2s-pack -q "${how[@]}" --audio pcm -o pcm.s2s
    s2s-pack -q "${how[@]}" --audio flac -j1 -o flac.s2s
    s2s-pack -q "${how[@]}" --audio flac -j3 | cmp - flac.s2s
    s2s-shard verify flac.s2s
    [ "$(stat -c %s flac.s2s)" -lt "$(stat -c %s pcm.s2s)" ]
    # all but the clips' own tensors
    [ "$(values flac.s2s | grep -v ' audio_[bcp][yuc]')" = "$(values pcm.s2s | grep -v ' audio_[bcp][yuc]')" ]
    for f in pcm flac; do s2s-encode -q --features mel -o $f-mel.s2s $f.s2s; done
    values pcm-mel.s2s >want
    values flac-mel.s2s >got
    # clip a is 16 bits, bit for bit; the others were resampled or mixed and have 24
    python3 - <<'PY'
rows = [dict(line.split(" ", 2)[1:] for line in open(f) if " audio_mel" in line) for f in ("want", "got")]
a, b = ([float(v) for v in r["audio_mel"].split()] for r in rows)
assert len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) < 1e-2, max(abs(x - y) for x, y in zip(a, b))
PY
    head -1 m.jsonl >a.jsonl
    for f in pcm flac; do s2s-pack -q --manifest a.jsonl "${how[@]:2}" --audio $f | s2s-encode -q --features mel -o $f-mel.s2s -; done
    [ "$(values pcm-mel.s2s | grep audio_mel)" = "$(values flac-mel.s2s | grep audio_mel)" ]
}

@test "frames a clip takes: from numbers, a config, an encoder's folder" {
    frames() { s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --batch-size 3 --audio mel "$@" -o out.s2s && values out.s2s | grep ' audio_frames '; }
    [ "$(frames --encoder-frames 160,4)" = "0 audio_frames 25 13 58" ]
    [ "$(frames --encoder-frames 320,8)" = "0 audio_frames 7 4 15" ]
    echo '{"subsampling_factor": 2, "num_mel_bins": 40}' >encoder.json
    [ "$(frames --encoder-frames encoder.json)" = "0 audio_frames 50 25 115" ]
    [ "$(tar xOf out.s2s header.json | jq -c '[.config.features.n_mels, .schema.audio_mel.shape[1]]')" = "[40,40]" ]
    echo '{"subsampling_factor": 8, "causal_downsampling": true}' >causal.json
    [ "$(frames --encoder-frames causal.json)" = "0 audio_frames 14 8 30" ]
    mkdir encoder
    mv encoder.json encoder/config.json
    echo '{"feature_size": 64, "hop_length": 200, "win_length": 400, "sampling_rate": 16000}' >encoder/preprocessor_config.json
    [ "$(frames --encoder-frames encoder)" = "0 audio_frames 40 20 92" ]
    [ "$(tar xOf out.s2s header.json | jq .config.features.n_mels)" = 64 ]
    # where transformers 5 saves them
    jq '{feature_extractor: .}' encoder/preprocessor_config.json >encoder/processor_config.json
    rm encoder/preprocessor_config.json
    [ "$(frames --encoder-frames encoder)" = "0 audio_frames 40 20 92" ]
    [ "$(tar xOf out.s2s header.json | jq .config.features.n_mels)" = 64 ]
    echo '{"processor_class": "ParakeetProcessor"}' >encoder/processor_config.json
    [ "$(frames --encoder-frames encoder)" = "0 audio_frames 50 25 115" ]
    exits 2 s2s-pack --manifest m.jsonl --tokenizer "$tok" --tokens 64 --encoder-frames absent
    exits 2 s2s-pack --manifest m.jsonl --tokenizer "$tok" --tokens 64 --encoder-frames 0,8
}

@test "a clip of less than a mel frame takes no slot" {
    python3 -c "
import wave
w = wave.open('s.wav', 'wb'); w.setnchannels(1); w.setsampwidth(2); w.setframerate(16000); w.writeframes(b'\\0' * 318); w.close()"
    echo '{"audio_filepath":"s.wav","duration":0.01,"text":"x"}' >s.jsonl
    s2s-pack -q --manifest s.jsonl --tokenizer "$tok" --tokens 8 -o out.s2s
    values out.s2s | grep -qx '0 audio_frames 0'
    values out.s2s | grep -qx '0 seq_lens 2'
}

@test "offset and duration take a part of a file, and the id says so" {
    echo '{"audio_filepath":"wav/a.wav","offset":0.25,"duration":0.5,"text":"x"}' >part.jsonl
    s2s-pack -q --manifest part.jsonl --tokenizer "$tok" --tokens 64 -o out.s2s
    values out.s2s >got
    grep -qx '0 ids \["a-000025-000050"\]' got
    grep -qx '0 audio_cu_samples 0 8000' got
    grep -qx '0 audio_frames 7' got
}

@test "a part of a long file takes memory for the part alone" {
    case ${S2S_BIN:-} in *sanitize* | *tsan*) skip "the sanitizers have memory of their own" ;; esac
    ${CC:-cc} -O1 -o peak "$BATS_TEST_DIRNAME/peak.c"
    python3 - <<'PY' # 3.5 hours of silence, which take no place on the disk
import struct
n = 200_000_000
with open("long.wav", "wb") as f:
    f.write(b"RIFF" + struct.pack("<I", 36 + 2 * n) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16))
    f.write(b"data" + struct.pack("<I", 2 * n))
    f.truncate(44 + 2 * n)
PY
    echo '{"audio_filepath": "long.wav", "offset": 12000.0, "duration": 10.0, "text": "a"}' >long.jsonl
    ./peak kib s2s-pack -q --manifest long.jsonl --tokenizer "$tok" --tokens 400 -o out.s2s
    [ "$(cat kib)" -lt 65536 ]
    # nor do all parts of it, one after the other
    echo '{"audio_filepath": "long.wav", "duration": 12500.0, "text": "a"}' >long.jsonl
    ./peak kib s2s-pack -q --manifest long.jsonl --tokenizer "$tok" --windows 25 --tokens 400 -o out.s2s
    [ "$(cat kib)" -lt 65536 ]
    [ "$(s2s-shard stats --json out.s2s | jq .utterances)" = 500 ]
}

@test "windows: long sound becomes samples, each with what is said in it; silence is put behind short sound" {
    cat >cuts.jsonl <<'J'
{"id":"c","start":0.25,"duration":0.65,"channel":0,"type":"MonoCut","supervisions":[{"id":"s","recording_id":"a","start":0,"duration":0.15,"text":"one"},{"id":"t","recording_id":"a","start":0.15,"duration":0.15,"text":"two"},{"id":"u","recording_id":"a","start":0.6,"duration":0.05,"text":"last"}],"recording":{"id":"a","sources":[{"type":"file","channels":[0],"source":"wav/a.wav"}],"sampling_rate":16000,"num_samples":16000,"duration":1.0}}
J
    made() { s2s-pack -q "$@" --tokenizer "$tok" --batch-size 9 -o out.s2s && values out.s2s >got && grep -E '^0 (ids|texts|audio_cu_samples) ' got | cut -d' ' -f3- | sort | tr '\n' '|'; }
    # a turn that crosses an end is in both windows; nothing is said in the third, from 0.4 s on
    [ "$(made --cuts cuts.jsonl --windows 0.2)" = '0 3200 6400 7200|["c-000000-000020","c-000020-000020","c-000060-000005"]|["one two","two","last"]|' ]
    # its samples are those of the file from 0.25 + 0.2 s on
    python3 - <<'PY'
import re, wave
pcm = wave.open("wav/a.wav").readframes(16000)
got = [int(x) for x in next(l for l in open("got") if l.startswith("0 audio_pcm ")).split()[2:]]
want = [int.from_bytes(pcm[2 * i:2 * i + 2], "little", signed=True) for i in range(7200, 10400)]
assert got[3200:6400] == want
PY
    [ "$(made --cuts cuts.jsonl --windows 0.3,0.2)" = '0 4800 9600 13600|["c-000000-000030","c-000020-000030","c-000040-000025"]|["one two","two","last"]|' ]
    [ "$(made --cuts cuts.jsonl --windows 0.2,first)" = '0 3200|["c-000000-000020"]|["one two"]|' ]
    [ "$(made --cuts cuts.jsonl --windows 0.2,last)" = '0 3200|["c-000045-000020"]|["last"]|' ]
    [ "$(made --cuts cuts.jsonl --windows 0.65)" = '0 10400|["c"]|["one two last"]|' ]
    sed 's/{"id":"u"[^}]*}/{"id":"u","start":0,"duration":0}/' cuts.jsonl >quiet.jsonl
    exits 1 s2s-pack --cuts quiet.jsonl --tokenizer "$tok" --batch-size 9 --windows 0.2,last -o no.s2s
    says "quiet.jsonl:1: sample 'c-000045-000020' has no text"
    # a line of a manifest has its text in each, and so do the texts beside it
    echo '{"audio_filepath":"wav/a.wav","duration":0.5,"offset":0.5,"text":"x","alt_text":{"de":{"text":"y"}}}' >w.jsonl
    [ "$(made --manifest w.jsonl --windows 0.4)" = '0 6400 8000 14400 16000|["a-000050-000040","a-000090-000010","a-000050-000040","a-000090-000010"]|["x","x","y","y"]|' ]
    [ "$(made --manifest w.jsonl --windows 0.4 --min-duration 0.2)" = '0 6400 12800|["a-000050-000040","a-000050-000040"]|["x","y"]|' ]
    # silence counts as sound for bounds; every form has it
    [ "$(made --manifest w.jsonl --windows 0.4 --pad-duration 0.2 --min-duration 0.2)" = '0 6400 9600 16000 19200|["a-000050-000040","a-000090-000010","a-000050-000040","a-000090-000010"]|["x","x","y","y"]|' ]
    [ "$(grep '^0 audio_pcm ' got | cut -d' ' -f8003-9602 | tr ' ' '\n' | sort -u)" = 0 ]
    made --manifest w.jsonl --windows 0.4 --pad-duration 0.2 --audio mel
    grep -x '0 audio_frames 5 3 5 3' got
    exits 2 s2s-pack --text w.jsonl --tokenizer "$tok" --batch-size 9 --windows 1 -o no.s2s
    says "--windows goes with --manifest, --cuts, --shar or --input-cfg"
    exits 2 s2s-pack --manifest w.jsonl --tokenizer "$tok" --batch-size 9 --audio path --pad-duration 1 -o no.s2s
    says "--pad-duration changes sound"
}

@test "names in a manifest are looked up beside it first" {
    mkdir elsewhere
    mv wav m.jsonl elsewhere/
    s2s-pack -q --manifest elsewhere/m.jsonl --tokenizer "$tok" --tokens 64 -o out.s2s
    values out.s2s | grep -q '"source":"wav/a.wav"'
}

@test "_skipme, alt_text and Lhotse cuts" {
    echo '{"audio_filepath":"wav/a.wav","duration":1,"text":"x","_skipme":1}' >odd.jsonl
    echo '{"audio_filepath":"wav/a.wav","duration":1,"text":"yes","lang":"en","alt_text":{"de":{"text":"ja","lang":"de"}}}' >>odd.jsonl
    s2s-pack -q --manifest odd.jsonl --tokenizer "$tok" --batch-size 9 --audio none -o out.s2s --report r.json
    values out.s2s | grep -qx '0 texts \["yes","ja"\]'
    [ "$(jq .marked_skipme r.json)" = 1 ]
    cat >cuts.jsonl <<'J'
{"id":"cut1","start":0.5,"duration":0.25,"channel":1,"type":"MonoCut","supervisions":[{"id":"s","recording_id":"c","start":0,"duration":0.25,"text":"part"}],"recording":{"id":"c","sources":[{"type":"file","channels":[0,1],"source":"wav/c.wav"}],"sampling_rate":16000,"num_samples":36800,"duration":2.3}}
J
    s2s-pack -q --cuts cuts.jsonl --tokenizer "$tok" --tokens 64 -o out.s2s
    values out.s2s >got
    grep -qx '0 ids \["cut1"\]' got
    grep -qx '0 texts \["part"\]' got
    grep -qx '0 audio_cu_samples 0 4000' got
    # the second channel's samples from 8000 on
    [ "$(grep '^0 audio_pcm' got | cut -d' ' -f3-5)" = "$(python3 -c "
import math; print(*(int(8000*math.sin(i*2/9.0)) for i in range(8000,8003)))")" ]
    sed 's/"MonoCut"/"VideoCut"/' cuts.jsonl >video.jsonl
    exits 1 s2s-pack --cuts video.jsonl --tokenizer "$tok" --tokens 64 -o out2.s2s
    says "video.jsonl:1: a cut of type 'VideoCut'"
}

@test "a cut may be a mix of changed and padded parts, and another recording than the first" {
    python3 - <<'PY'
import json
def rec(name, n, **more):
    return {"id": name, "sources": [{"type": "file", "channels": [0], "source": f"wav/{name}.wav"}], "sampling_rate": 16000,
            "num_samples": n, "duration": n / 16000, **more}
def cut(r, dur, **more):
    return {"id": "t", "start": 0, "duration": dur, "channel": 0, "recording": r, **more}
loud = rec("a", 14545, transforms=[{"name": "Speed", "kwargs": {"factor": 1.1}}, {"name": "Volume", "kwargs": {"factor": 0.5}}])
said = [{"id": "s", "recording_id": "a", "start": 0, "duration": 0.5, "text": "hello"}]
mix = {"id": "m", "type": "MixedCut", "tracks": [
    {"type": "MonoCut", "cut": cut(loud, 0.5, supervisions=said, custom={"target_audio": rec("a", 16000)})},
    {"type": "MonoCut", "cut": cut(rec("a", 16000), 0.5, custom={"target_audio": rec("a", 16000)}), "offset": 0.25, "snr": 10},
    {"type": "PaddingCut", "cut": {"id": "p", "duration": 0.25, "sampling_rate": 16000, "feat_value": -23}, "offset": 0.75}]}
whole = {**cut(rec("a", 16000), 0.5, supervisions=said, custom={"target_audio": rec("a", 16000)}), "id": "w", "type": "MonoCut"}
open("cuts.jsonl", "w").write(json.dumps(mix) + "\n" + json.dumps(whole) + "\n")
PY
    local how=(--cuts cuts.jsonl --tokenizer "$tok" --tokens 64)
    s2s-pack -q "${how[@]}" -j1 -o out.s2s
    s2s-pack -q "${how[@]}" -j3 | cmp - out.s2s
    values out.s2s >got
    grep -qx '0 audio_cu_samples 0 16000 24000' got
    grep -qx '0 ids \["m","w"\]' got
    # half as loud, then nothing
    python3 - <<'PY'
x = next(line.split()[2:] for line in open("got") if line.startswith("0 audio_pcm"))
x = [float(v) for v in x]
m = lambda a, b: max(abs(v) for v in x[a:b])
assert 0.12 < m(0, 4000) < 0.13 and m(4000, 12000) > m(0, 4000) and m(12000, 16000) == 0
PY
    # target_audio is cut as the recording is, unless it says that it is not
    sed -n 2p cuts.jsonl >one.jsonl
    s2s-pack -q --cuts one.jsonl "${how[@]:2}" --audio-field target_audio -o out.s2s
    values out.s2s >got
    grep -qx '0 audio_cu_samples 0 8000' got
    sed 's/"target_audio":/"target_audio_unaligned": true, &/' one.jsonl >own.jsonl
    s2s-pack -q --cuts own.jsonl "${how[@]:2}" --audio-field target_audio -o out.s2s
    values out.s2s >got
    grep -qx '0 audio_cu_samples 0 16000' got
    exits 1 s2s-pack --cuts one.jsonl "${how[@]:2}" --audio-field other -o out2.s2s
    says "one.jsonl:1: no recording 'custom.other'"
    # a file that is not there, and one shorter than it should be, are bad samples of their own
    sed '1s,wav/a.wav,wav/no.wav,' cuts.jsonl >bad.jsonl
    s2s-pack -q --cuts bad.jsonl "${how[@]:2}" --bad skip --report r.json -o out.s2s
    [ "$(jq -c '[.samples, (.skipped | length)]' r.json)" = '[1,1]' ]
    jq -r '.skipped[].reason' r.json | grep -q 'bad.jsonl:1: wav/no.wav: cannot open'
}

# shar FOLDER: two shards of Shar, of three and two cuts, the fourth of which has no recording
shar() {
    python3 - "$1" <<'PY'
import gzip, io, json, os, sys, tarfile
os.mkdir(sys.argv[1])
wav = open("wav/a.wav", "rb").read()
def rec(id):
    return {"id": id, "sources": [{"type": "shar", "channels": [0], "source": ""}], "sampling_rate": 16000, "num_samples": 16000, "duration": 1.0}
n = 0
for k, ids in enumerate([["a", "x/b.1", "c"], ["d", "e"]]):
    with gzip.open(f"{sys.argv[1]}/cuts.{k:06d}.jsonl.gz", "wt") as cuts, tarfile.open(f"{sys.argv[1]}/recording.{k:06d}.tar", "w") as tar:
        def add(name, data):
            info = tarfile.TarInfo(name); info.size = len(data); tar.addfile(info, io.BytesIO(data))
        for id in ids:
            n += 1
            print(json.dumps({"id": id, "start": 0, "duration": 1.0 / n, "channel": 0, "type": "MonoCut", "recording": rec(id),
                              "supervisions": [{"id": id, "recording_id": id, "start": 0, "duration": 0.1, "text": "is " + id}]}), file=cuts)
            add(id + (".nodata" if id == "d" else ".wav"), b"" if id == "d" else wav)
            add(id + (".nometa" if id == "d" else ".json"), b"" if id == "d" else json.dumps(rec(id)).encode())
PY
}

@test "Shar: cuts and their tars go together, faults are those of a shard or of a cut" {
    local how=(--tokenizer "$tok" --batch-size 1)
    shar s
    exits 1 s2s-pack --shar s "${how[@]}" -o out.s2s
    says "s/cuts.000001.jsonl.gz:1: its sound is elsewhere"
    s2s-pack -q --shar s "${how[@]}" --bad skip --report r.json -o out.s2s
    values out.s2s >got
    [ "$(grep -o ' ids .*' got | tr -d '\n')" = ' ids ["a"] ids ["x/b.1"] ids ["c"] ids ["e"]' ]
    [ "$(grep ' audio_cu_samples ' got | cut -d' ' -f4 | tr '\n' ' ')" = '16000 8000 5333 3200 ' ]
    grep -q '"source":"x/b.1.wav"' got
    s2s-pack -q --shar cuts=s/cuts.{000000,000001}.jsonl.gz recording=s/recording.{000000,000001}.tar "${how[@]}" --bad skip | cmp - out.s2s
    s2s-pack -q -j1 --shar s "${how[@]}" --bad skip | cmp - out.s2s
    # windows have names of their own, and the sound of the whole's
    s2s-pack -q --shar s "${how[@]}" --bad skip --windows 0.05 -o parts.s2s
    values parts.s2s >got.parts
    [ "$(grep -o ' ids .*' got.parts | head -n 3 | tr -d '\n')" = ' ids ["a-000000-000005"] ids ["a-000005-000005"] ids ["x/b.1-000000-000005"]' ]
    [ "$(sed -n 's/^[01] audio_pcm //p' got.parts | tr '\n' ' ')" = "$(sed -n 's/^0 audio_pcm //p' got | cut -d' ' -f1-1600) " ]
    # a tar that belongs to other cuts, one that is cut, fewer shards of one field than of the other
    mkdir t && cp s/* t/ && cp s/recording.000000.tar t/recording.000001.tar
    exits 1 s2s-pack --shar t "${how[@]}" -o out2.s2s
    says "its members are not those of the cuts"
    head -c 40000 s/recording.000000.tar >t/recording.000000.tar && cp s/recording.000001.tar t/
    s2s-pack -q --shar t "${how[@]}" --bad skip --report r.json -o out2.s2s
    jq -r '.skipped[].reason' r.json | grep -q 't/recording.000000.tar'
    [ "$(jq .samples r.json)" = 2 ]
    rm t/recording.000001.tar
    exits 1 s2s-pack --shar t "${how[@]}" -o out2.s2s
    says "2 shards of cuts and 1 of recording"
    exits 2 s2s-pack --shar nowhere "${how[@]}" -o out2.s2s
    mkdir empty
    exits 1 s2s-pack --shar empty "${how[@]}" -o out2.s2s
    says "empty: has no shard of cuts"
}

@test "WebDataset: members of one name are a sample; Energon's folder says which shards" {
    local how=(--tokenizer "$tok" --batch-size 1)
    mkdir w
    cp wav/a.wav k1.wav && cp wav/c.wav k2.wav && cp wav/a.wav k3.wav
    printf 'one\n' >k1.txt
    echo '{"text": "two", "lang": "en", "context": "say"}' >k2.json
    echo '{"transcript": "three"}' >k3.json && echo 1 >k3.cls
    tar --format=ustar -cf w/0.tar k1.wav k1.txt k2.json k2.wav
    tar --format=ustar -cf w/1.tar k3.wav k3.json k3.cls
    tar --format=ustar -cf w/2.tar k1.txt
    exits 1 s2s-pack --tar w/0.tar w/1.tar "${how[@]}" -o out.s2s
    says "w/1.tar:k3: sample 'k3' has no text"
    s2s-pack -q --tar w/0.tar w/1.tar "${how[@]}" --bad skip -o out.s2s
    values out.s2s >got
    [ "$(grep -o ' texts .*' got | tr -d '\n')" = ' texts ["one"] texts ["two"]' ]
    cat w/0.tar | s2s-pack -q --tar - "${how[@]}" -o pipe.s2s
    [ "$(values pipe.s2s)" = "$(cat got)" ]
    s2s-pack -q --tar w/1.tar --text-field transcript "${how[@]}" -o out.s2s
    values out.s2s | grep -qx '0 texts \["three"\]'
    exits 1 s2s-pack --tar w "${how[@]}" -o out.s2s
    says "w/1.tar:k3"
    mkdir w/.nv-meta
    printf 'shard_counts:\n  0.tar: 2\n' >w/.nv-meta/.info.yaml
    s2s-pack -q --tar w "${how[@]}" -o out.s2s
    [ "$(values out.s2s)" = "$(cat got)" ]
    printf 'split_parts:\n  train: [1.tar]\n  val: [0.tar]\nexclude: []\n' >w/.nv-meta/split.yaml
    s2s-pack -q --tar w --text-field transcript "${how[@]}" -o out.s2s
    values out.s2s | grep -qx '0 texts \["three"\]'
    tar --format=ustar -cf two.tar k1.wav && cp k1.wav k1.flac && tar --format=ustar -rf two.tar k1.flac
    exits 1 s2s-pack --tar two.tar "${how[@]}" -o out.s2s
    says "several members that may be its sound"
}

@test "bad audio is named with its line, and skipped when that is asked for" {
    head -c 9000 wav/c.wav >cut.wav
    mv cut.wav wav/c.wav
    exits 1 s2s-pack --manifest m.jsonl --tokenizer "$tok" --tokens 64 -o out.s2s
    says "m.jsonl:3"
    says "wav/c.wav"
    [ ! -e out.s2s ]
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --tokens 64 --bad skip --report r.json -o out.s2s
    [ "$(jq -c '[.samples, (.skipped | length)]' r.json)" = '[2,1]' ]
    rm wav/b.wav
    exits 1 s2s-pack --manifest m.jsonl --tokenizer "$tok" --tokens 64 -o out2.s2s
    says "m.jsonl:2"
    mkfifo wav/b.wav
    exits 1 timeout 20 s2s-pack --manifest m.jsonl --tokenizer "$tok" --tokens 64 -o out2.s2s
    says "wav/b.wav: not a regular file"
    cp m.jsonl wav/a.wav && echo '{"audio_filepath":"wav/a.wav","duration":1,"text":"x"}' >text.jsonl
    exits 1 s2s-pack --manifest text.jsonl --tokenizer "$tok" --tokens 64 -o out2.s2s
    says "text.jsonl:1: wav/a.wav: not a sound file that can be read"
    # a turn that the format has not is a fault of the sample, not of the command line
    echo '{"audio_filepath":"wav/a.wav","duration":1,"text":"x","system_prompt":"y"}' >turn.jsonl
    exits 1 s2s-pack --manifest turn.jsonl --tokenizer "$tok" --prompt gemma --tokens 640 -o out2.s2s
    says "turn.jsonl:1: prompt format gemma has no system turn"
    exits 2 s2s-pack --manifest turn.jsonl --tokenizer "$tok" --prompt gemmma --tokens 640 -o out2.s2s
}

@test "each fault of a sample has its policy, its count and its name" {
    python3 - <<'PY'
import json, struct, wave
def wav(name, data, rate=16000, fmt=1, bits=16):
    n = len(data)
    open(name, "wb").write(b"RIFF" + struct.pack("<I", 36 + n) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, fmt, 1, rate, rate * bits // 8, bits // 8, bits)
                           + b"data" + struct.pack("<I", n) + data)
wav("nan.wav", struct.pack("<3200f", *[0.5] * 3199, float("nan")), fmt=3, bits=32)
wav("silent.wav", bytes(6400))
wav("none.wav", b"")
open("empty.wav", "wb")
open("text.wav", "w").write("not sound at all, not by a long way\n")
wav("short.wav", struct.pack("<3200h", *[100] * 3200))
with open("m.jsonl", "w") as f:
    for name, dur in [("nan", .2), ("silent", .2), ("none", .2), ("empty", .2), ("absent", .2), ("short", .9), ("text", .2), ("wav/a", 1)]:
        print(json.dumps({"audio_filepath": name + ".wav", "duration": dur, "text": "x"}), file=f)
PY
    local how=(--manifest m.jsonl --tokenizer "$tok" --tokens 64)
    s2s-pack -q "${how[@]}" --bad skip --report r.json -o out.s2s
    [ "$(jq -cS .bad r.json)" = '{"absent":1,"empty":2,"not_finite":1,"other":1,"short":1}' ]
    [ "$(jq -c '[.samples, .warnings.silent, (.skipped | length)]' r.json)" = '[2,1,6]' ]
    [ "$(jq -c .first.silent r.json)" = '["m.jsonl:2"]' ]
    [ "$(jq -c '[.skipped[] | .reason | capture("^m.jsonl:(?<n>[0-9]+)").n] | sort' r.json)" = '["1","3","4","5","6","7"]' ]
    s2s-pack -q "${how[@]}" --bad skip,silent=skip --report r.json -o out.s2s
    [ "$(jq -c '[.samples, .bad.silent, .warnings.silent]' r.json)" = '[1,1,0]' ]
    exits 1 s2s-pack "${how[@]}" --bad skip --bad not_finite=fail -o out2.s2s
    says "m.jsonl:1: nan.wav: sample 3199 is NaN"
    exits 1 s2s-pack "${how[@]}" --bad skip,silent=fail -o out2.s2s
    says "m.jsonl:2: silent.wav: nothing is heard in it"
    exits 1 s2s-pack "${how[@]}" --bad skip,absent=fail -o out2.s2s
    says "m.jsonl:5: absent.wav: cannot open"
    exits 1 s2s-pack "${how[@]}" --bad skip,empty=fail -o out2.s2s
    says "m.jsonl:3: none.wav: no sample in the file"
    exits 2 s2s-pack "${how[@]}" --bad skip,nan=fail -o out2.s2s
    says "--bad 'nan=fail'"
    exits 2 s2s-pack "${how[@]}" --bad absent=keep -o out2.s2s
    [ ! -e out2.s2s ]
}

@test "what is missing of a declared duration is forgiven up to --duration-tolerance, and counted" {
    local how=(--tokenizer "$tok" --tokens 64)
    sample() { echo '{"audio_filepath":"wav/a.wav","duration":'"$1"',"text":"x"'"${2-}"'}'; }
    # rounded; half a second and more; less than there is; a part that ends behind the end
    { sample 1.02; sample 1.5; sample 0.7; sample 0.7 ',"offset":0.6'; } >m.jsonl
    s2s-pack -q --manifest m.jsonl "${how[@]}" -o out.s2s --report r.json
    [ "$(jq -c '.warnings | [.shorter_than_manifest, .longer_than_manifest]' r.json)" = '[2,1]' ]
    [ "$(jq -c '.first | [.shorter_than_manifest, .longer_than_manifest]' r.json)" = '[["m.jsonl:2","m.jsonl:4"],["m.jsonl:3"]]' ]
    # 1 s three times, and 0.4 s: all that is there
    values out.s2s >got
    grep -qx '0 audio_frames 13 13 13 5' got
    sample 1.6 >m.jsonl
    exits 1 s2s-pack --manifest m.jsonl "${how[@]}" -o out2.s2s
    says "m.jsonl:1: wav/a.wav: 1 s long, the manifest says 1.6 s"
    says "--duration-tolerance 0.6"
    s2s-pack -q --manifest m.jsonl "${how[@]}" --duration-tolerance 0.6 -o out.s2s
    sample 0.7 ',"offset":0.6' >m.jsonl
    exits 1 s2s-pack --manifest m.jsonl "${how[@]}" --duration-tolerance 0.2 -o out2.s2s
    says "1 s long, the manifest says 1.3 s"
    exits 2 s2s-pack --manifest m.jsonl "${how[@]}" --duration-tolerance -1
}

@test "speed, tempo, pitch and volume are drawn by sample and epoch, whatever the threads and the split" {
    local how=(--tokenizer "$tok" --tokens 128 --manifest m.jsonl) all=(--speed 0.5,1,2 --epochs 3)
    s2s-pack -q "${how[@]}" "${all[@]}" -j1 -o a.s2s
    s2s-pack -q "${how[@]}" "${all[@]}" -j4 | cmp - a.s2s
    # each sample at each speed once: 26, 13 and 7 frames of a second, 59, 29 and 15 of 2.3 s
    s2s-shard view --json a.s2s | jq -c '[.records[] | .metadata | .ids as $i | .audio as $a
        | [$i | fromjson, [$a | fromjson | .[] | .speed // 1]] | transpose | .[]] | sort' >got
    [ "$(cat got)" = '[["a",0.5],["a",1],["a",2],["b",0.5],["b",1],["b",2],["c",0.5],["c",1],["c",2]]' ]
    s2s-shard view --json a.s2s | jq -c '[.records[].tensors.audio_frames.data[]] | sort' >got
    [ "$(cat got)" = '[4,7,7,13,13,15,25,29,58]' ]
    for r in 0 1 2; do s2s-pack -q "${how[@]}" "${all[@]}" --split $r/3 -o $r.s2s; done
    cat_clips() { for f; do s2s-shard view --json "$f"; done | jq -c '.records[].metadata.audio | fromjson[]' | sort; }
    cat_clips a.s2s >want
    cat_clips 0.s2s 1.s2s 2.s2s >got
    cmp want got
    # the volume is a factor of every sample; another seed draws anew
    s2s-pack -q "${how[@]}" --volume 0.5 -o v.s2s && s2s-pack -q "${how[@]}" --volume 1 -o one.s2s
    s2s-pack -q "${how[@]}" -o plain.s2s
    for f in v one plain; do s2s-shard view --json --tensor audio_pcm $f.s2s | jq -c '[.records[].tensors.audio_pcm.data[]]' >$f; done
    cmp one plain
    python3 -c 'import json; a, b = (json.load(open(f)) for f in ("plain", "v")); assert len(a) == len(b) and all(abs(x - 2 * y) < 1e-7 for x, y in zip(a, b))'
    s2s-pack -q "${how[@]}" --speed 0.5..2 --seed 1 -o one.s2s && s2s-pack -q "${how[@]}" --speed 0.5..2 --seed 2 -o two.s2s
    not cmp -s one.s2s two.s2s
    s2s-shard head --json one.s2s 2>/dev/null | grep -q 'speed=0.5..2' || s2s-shard head one.s2s | grep 'speed=0.5..2'
    # the sample of a plan is that of the run; what is as long as before is planned so
    [ "$(s2s-pack -q "${how[@]}" "${all[@]}" --plan --json | jq -c '[.samples, .packs, .real_tokens]')" = \
      "$(s2s-pack -q "${how[@]}" "${all[@]}" --report /dev/stdout -o x.s2s | jq -c '[.samples, .packs, .real_tokens]')" ]
    [ "$(s2s-pack -q "${how[@]}" --pitch 3 --plan --json | jq .real_tokens)" = "$(s2s-pack -q "${how[@]}" --plan --json | jq .real_tokens)" ]
    exits 2 s2s-pack "${how[@]}" --speed 1,0 -o x.s2s
    says "--speed '1,0': A,B,.. (up to 16) or A..B expected, each from 0.1 to 10"
    exits 2 s2s-pack "${how[@]}" --speed 1.1 --audio path -o x.s2s
}

@test "what libsndfile writes to stdout of a damaged file is not in the stream" {
    python3 - <<'PY'
# MIDI sample dump, 40 samples a packet, which do not begin as one
head = bytes([0xf0, 0x7e, 0, 1, 0, 0, 16, 0x24, 0x68, 3, 80, 0, 0, 0, 0, 0, 80, 0, 0, 0x7f, 0xf7])
packets = b"".join(bytes([first, 0x7e, 0, 2, i]) + bytes(120) + bytes([0x7c ^ i, 0xf7])
                   for i, first in enumerate([0xd0, 0xd0]))
open("wav/a.wav", "wb").write(head + packets)
PY
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --tokens 64 --bad skip >piped.s2s
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --tokens 64 --bad skip -o out.s2s
    cmp piped.s2s out.s2s
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --tokens 64 --bad skip --plan --json -o plan.json
    jq -e .packs plan.json
}

@test "-j 1 equals -j 8, a pipe equals a file, twice is the same bytes" {
    for i in 1 2 3 4 5 6 7 8; do cat m.jsonl; done >many.jsonl
    s2s-pack -q -j 1 --manifest many.jsonl --tokenizer "$tok" --audio mel --tokens 64 -o one.s2s
    s2s-pack -q -j 8 --manifest many.jsonl --tokenizer "$tok" --audio mel --tokens 64 -o eight.s2s
    same one.s2s eight.s2s
    s2s-pack -q -j 3 --manifest - --tokenizer "$tok" --audio mel --tokens 64 <many.jsonl >pipe.s2s
    same one.s2s pipe.s2s
    cat many.jsonl | s2s-pack -q --manifest - --tokenizer "$tok" --audio mel --tokens 64 -o - | cat >pipe.s2s
    same one.s2s pipe.s2s
}

@test "a truncated or changed output of s2s-pack is seen" {
    s2s-pack -q --ids ids.jsonl --tokens 64 -o out.s2s
    head -c 2600 out.s2s >cut.s2s
    exits 1 s2s-shard verify cut.s2s
    says "record"
    flip out.s2s 2700
    exits 1 s2s-shard verify out.s2s
}

@test "a full disk is an error, a reader that leaves early is none" {
    exits 1 s2s-pack -q --ids ids.jsonl --tokens 64 -o /dev/full
    exits 1 bash -c "s2s-pack -q --ids ids.jsonl --tokens 64 >/dev/full"
    yes "$(cat ids.jsonl)" | head -n 6000 >many.jsonl
    run bash -c "s2s-pack -q --ids many.jsonl --tokens 64 | head -c 100 >/dev/null"
    [ -z "$output" ]
}

@test "whatever call fails, the packs are right or there are none" {
    inject_or_skip
    cp "$tok" tokenizer.json
    echo '{"bos_token": "<|endoftext|>"}' >tokenizer_config.json
    gzip -k m.jsonl
    local pack=(s2s-pack -q --manifest m.jsonl.gz --tokenizer tokenizer.json --tokens 400 -o out)
    for call in faccessat read pread; do
        right_or_refused $call:EIO "${pack[@]}"
    done
    for call in open fsync rename; do
        every_fault $call ENOSPC out "${pack[@]}"
    done
    for call in pread write fsync; do # zlib itself gives up at an interrupted read
        every_fault $call EINTR out "${pack[@]}"
    done
    for call in read pread write; do
        every_fault $call SHORT out "${pack[@]}"
    done
    every_fault rename KILL out "${pack[@]}"
}

@test "an allocation that fails ends the run, or changes no byte" {
    inject_or_skip
    local n step=$((STEP == 1 ? 1 : 61)) pack=(s2s-pack -q --ids ids.jsonl --tokens 64 -o out.s2s)
    "${pack[@]}"
    mv out.s2s want.bytes
    for ((n = FIRST; n <= 20000; n += step)); do
        with_fault malloc:$n:ENOMEM "${pack[@]}"
        [ $fired = 1 ] || break
        # what fails after the stream has its name leaves it whole
        if [ "$status" -eq 0 ] || [ -e out.s2s ]; then
            cmp out.s2s want.bytes || { echo "malloc $n is lost" >&2; return 1; }
        fi
        if [ "$status" -gt 1 ] || { [ "$status" -eq 1 ] && [ -z "$output" ]; }; then
            echo "malloc $n: exit $status: $output" >&2
            return 1
        fi
        rm -f out.s2s
    done
    [ "$n" -gt 500 ]
}

@test "killed in the middle, nothing has the final name" {
    mkdir out
    mkfifo pipe
    (cat ids.jsonl; sleep 30) >pipe &
    feeder=$!
    s2s-pack -q --ids - --tokens 64 -o out/p.s2s <pipe &
    pid=$!
    sleep 0.3
    kill -TERM $pid
    wait $pid || true
    kill $feeder || true
    no_litter out
}

@test "parts that fail and are made again, side by side, are the bytes of parts made in a row" {
    local i
    for i in 1 2 3 4; do sed "s|\"text\": \"|&$i |" m.jsonl; done >many.jsonl
    part() { s2s-pack -q -j 1 --manifest many.jsonl --tokenizer "$tok" --tokens 128 --pcm i16 --split "$1/3" --report "$2/$1.json" -o "$2/$1.s2s"; }
    mkdir row once
    for i in 0 1 2; do part $i row; done
    (ulimit -f 8; exits 1 part 1 once) # a part for which the disk has no room
    [ ! -e once/1.s2s ]
    for i in 2 1 0; do part $i once & done
    wait
    for i in 0 1 2; do cmp row/$i.s2s once/$i.s2s; done
    s2s-shard cat -q -o row.s2s row/*.s2s
    s2s-shard cat -q -o once.s2s once/*.s2s
    cmp row.s2s once.s2s
    values once.s2s | sed -n 's/^[0-9]* texts //p' | jq -r '.[]' | sort | cmp - <(jq -r .text many.jsonl | sort)
    s2s-pack report -o all.json once/*.json
    s2s-pack -q --manifest many.jsonl --tokenizer "$tok" --tokens 128 --report whole.json -o whole.s2s
    for key in samples samples_read real_tokens too_long skipped; do
        [ "$(jq -c .$key all.json)" = "$(jq -c .$key whole.json)" ]
    done
    jq -e --slurpfile w whole.json '(.hours - $w[0].hours | fabs) < 1e-9' all.json
    jq -e '.fill == .real_tokens / (.packs * .tokens) and .packs >= 3' all.json
    s2s-pack report --plot padding.svg whole.json >/dev/null
    grep -q 'padding [0-9.]* % -> [0-9.]* %' padding.svg
    # reports of packs of another size, and what is none
    s2s-pack -q --ids ids.jsonl --tokens 32 --plan --report other.json >/dev/null
    exits 1 s2s-pack report whole.json other.json
    says "other.json: of packs of 32 slots"
    echo '{}' >none.json
    exits 1 s2s-pack report none.json
    says "no report of s2s-pack"
    exits 2 s2s-pack report absent.json
}

@test "the manual's array of Slurm and its line of GNU parallel: a part that failed is made again, to the same bytes" {
    local i program
    sed "s|\"text\": \"|&1 |" m.jsonl | cat m.jsonl - >all.jsonl
    cp "$tok" tok.json
    mkdir row shim
    for i in 0 1 2; do
        s2s-pack -q -j 1 --pcm i16 --manifest all.jsonl --tokenizer tok.json --tokens 8192 --split "$i/3" -o row/$i.s2s
    done
    # part 1 fails until somebody has mended what it lacks
    program=$(command -v s2s-pack)
    printf '#!/bin/sh\ncase " $* " in *" 1/3 "*) [ -e mended ] || exit 1;; esac\nexec %s "$@"\n' "$program" >shim/s2s-pack
    chmod +x shim/s2s-pack
    page() { sed 's/\\\(.\)/\1/g; s/++$//; s/0-99/0-2/; s/seq 0 99/seq 0 2/; s,/100,/3,g' "$ROOT/doc/man/s2s-pack.1.scd" | tr -d '\t'; }
    page | sed -n '/^#!.bin.sh/,/o \$i.s2s$/p' >array.sh
    grep -q '^\[ -e $i.s2s \] ||' array.sh
    for i in 0 1 2; do PATH=$PWD/shim:$PATH SLURM_ARRAY_TASK_ID=$i sh array.sh || :; done
    [ ! -e 1.s2s ]
    touch mended
    for i in 0 1 2; do PATH=$PWD/shim:$PATH SLURM_ARRAY_TASK_ID=$i sh array.sh; done
    for i in 0 1 2; do same row/$i.s2s $i.s2s; done
    rm ./?.s2s mended
    command -v parallel || skip "GNU parallel is not installed"
    page | grep '^seq 0 2 | parallel' >line.sh
    PATH=$PWD/shim:$PATH sh line.sh || :
    [ ! -e 1.s2s ]
    touch mended
    PATH=$PWD/shim:$PATH sh line.sh
    for i in 0 1 2; do same row/$i.s2s $i.s2s; done
}

@test "a plan may trust the durations of a manifest, and opens no file then" {
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --tokens 400 --plan >files
    mv wav elsewhere
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --tokens 400 --plan --trust-durations >trusted
    cmp files trusted
    exits 1 s2s-pack --manifest m.jsonl --tokenizer "$tok" --tokens 400 --plan
    exits 2 s2s-pack --manifest m.jsonl --tokenizer "$tok" --tokens 400 --trust-durations -o out.s2s
    says "--trust-durations goes with --plan"
}

@test "split, shuffle and epochs cover each sample as often as they should" {
    for i in $(seq 0 9); do echo "{\"id\":\"s$i\",\"input_ids\":[$((i + 1))]}"; done >ten.jsonl
    ids_of() { values "$1" | grep ' ids ' | cut -d' ' -f3 | jq -r '.[]' | tr '\n' ' '; }
    s2s-pack -q --ids ten.jsonl --batch-size 4 --split 1/3 -o out.s2s
    [ "$(ids_of out.s2s)" = "s1 s4 s7 " ]
    s2s-pack -q --ids ten.jsonl --batch-size 10 --shuffle 4 --seed 42 -o out.s2s
    shuffled=$(ids_of out.s2s)
    [ "$shuffled" != "s0 s1 s2 s3 s4 s5 s6 s7 s8 s9 " ]
    [ "$(echo "$shuffled" | tr ' ' '\n' | sort | tr '\n' ' ')" = " s0 s1 s2 s3 s4 s5 s6 s7 s8 s9 " ]
    s2s-pack -q --ids ten.jsonl --batch-size 10 --shuffle 4 --seed 42 --epochs 3 -o out.s2s
    [ "$(ids_of out.s2s | tr ' ' '\n' | sort | uniq -c | awk 'NF == 2 {print $1}' | sort -u)" = 3 ]
    case "$(ids_of out.s2s)" in "$shuffled"*) ;; *) false ;; esac
    exits 2 s2s-pack --ids ten.jsonl --batch-size 4 --split 3/3
    exits 0 s2s-pack -q --ids ten.jsonl --tokens 64 --shuffle 4 --seed 9223372036854775807 --epochs 2 -o last.s2s
}

@test "--plan decodes and writes nothing, its report is that of the run" {
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --tokens 64 --plan --json >plan.json
    s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --tokens 64 --report run.json -o out.s2s
    alike "$(jq -cS 'del(.seconds)' plan.json)" "$(jq -cS 'del(.seconds)' run.json)"
    exits 0 s2s-pack -q --manifest m.jsonl --tokenizer "$tok" --tokens 64 --plan
    says "fill"
}

@test "a token to be predicted that is the padding's id is counted and warned of" {
    echo '{"id":"a","input_ids":[5,2,2],"loss_mask":[1,1,1]}' >eos.jsonl
    exits 0 s2s-pack --ids eos.jsonl --tokens 8 --pad-id 2 --pad-labels drop --report r.json -o out.s2s
    says "no eos"
    [ "$(jq .warnings.pad_id_labels_dropped r.json)" = 2 ]
    values out.s2s | grep -qx '0 labels -100 -100 -100'
    [ "$(s2s-shard head --json out.s2s | jq -r .config.pad_labels)" = drop ]
    s2s-pack -q --ids eos.jsonl --tokens 8 --pad-id 2 --pad-labels drop --report p.json --plan >/dev/null
    [ "$(jq -c .warnings p.json)" = "$(jq -c .warnings r.json)" ]
    # shorter than the longest and beginning with a token to be predicted
    echo '{"id":"b","input_ids":[5,6],"loss_mask":[1,1]}' >>eos.jsonl
    s2s-pack -q --ids eos.jsonl --batch-size 2 --report r.json -o out.s2s
    [ "$(jq .warnings.first_token_supervised r.json)" = 1 ]
}

@test "a token to be predicted keeps its label, whatever the padding's id" {
    local tok=$ROOT/tests/oracle/tokenizer_bytelevel_llama3/tokenizer.json id
    echo '{"id":"a","input_ids":[2,5,2,7,2],"loss_mask":[0,0,1,0,1]}' >eos.jsonl # padded in front, ends in eos
    exits 0 s2s-pack --ids eos.jsonl --tokens 8 --pad-id 2 --report r.json -o out.s2s
    values out.s2s | grep -qx '0 labels 2 -100 2 -100'
    [ "$(jq .warnings.pad_id_labels_dropped r.json)" = 0 ]
    # where labels of a data set were masked by the padding's id, that stands
    echo '{"id":"a","input_ids":[5,2,7,2],"labels":[-100,-100,7,-100]}' >eos.jsonl
    s2s-pack -q --ids eos.jsonl --tokens 8 --pad-id 2 -o out.s2s
    values out.s2s | grep -qx '0 labels -100 7 -100 -100'
    # what is tokenized here: the end token as padding, or "!", or (nothing is padded yet) the first token
    echo '{"audio_filepath":"wav/a.wav","duration":1.0,"text":"hello! there!"}' >eos.jsonl
    for id in 1504 0 1500; do
        s2s-pack -q --manifest eos.jsonl --tokenizer "$tok" --prompt llama3 --tokens 64 --pad-id $id -o out.s2s
        values out.s2s >got
        [ "$(grep -c '^0 input_ids 1500 ' got)" = 1 ]
        grep '^0 labels' got | tr ' ' '\n' | grep -v '^-100$' | tail -n +3 >labels.$id
    done
    cmp labels.0 labels.1504
    cmp labels.0 labels.1500
    tail -1 labels.0 | grep -qx 1504
}

@test "a sample that is cut so that no label is left is counted and named" {
    cat >long.jsonl <<'J'
{"id":"answer","input_ids":[1,2,3,4,5,6],"loss_mask":[0,0,0,0,1,1]}
{"id":"whole","input_ids":[1,2,3],"loss_mask":[0,0,1]}
{"id":"half","input_ids":[1,2,3,4,5,6],"loss_mask":[0,0,0,1,1,1]}
{"id":"none","input_ids":[1,2,3,4,5,6],"loss_mask":[0,0,0,0,0,0]}
{"id":"first","input_ids":[1,2,3,4,5,6],"loss_mask":[1,0,0,0,0,1]}
J
    exits 0 s2s-pack --ids long.jsonl --tokens 4 --too-long truncate --report r.json -o out.s2s
    says "long.jsonl:1: utterance 'answer' of 6 slots is cut to 4, of which none has a label"
    says "2 samples are cut so that nothing in them is predicted"
    [ "$(jq -c '[.truncated_without_label[].id]' r.json)" = '["answer","first"]' ]
    [ "$(jq -c '[.samples, .too_long.truncated]' r.json)" = '[5,4]' ]
}

@test "provenance leaves out what changes no byte" {
    s2s-pack -q -j 2 --ids ids.jsonl --tokens 64 --cp 2 --report r.json -o out.s2s
    [ "$(tar xOf out.s2s header.json | jq -c '.provenance[0].args')" = '["--cp=2","--tokens=64"]' ]
}

@test "closed stdout and stderr: what is printed never lands in the output file, and is missed" {
    s2s-pack -q --ids ids.jsonl --tokens 64 -o want.s2s
    s2s-pack -q --ids ids.jsonl --tokens 64 -o out.s2s >&- 2>&-
    same out.s2s want.s2s
    exits 1 sh -c 's2s-pack -q --json --ids ids.jsonl --tokens 64 -o out.s2s >&-'
    says "cannot write to stdout"
    same out.s2s want.s2s
    exits 1 sh -c 'echo 3 | s2s-pack bins --tokens 5 >&-'
    exits 1 sh -c 's2s-pack --help >/dev/full'
    exits 1 sh -c 's2s-pack --version >&-'
}

@test "manifests and rows may be gzip, from a file or a pipe; a cut or damaged one is refused" {
    gzip -k m.jsonl ids.jsonl
    args=(--tokenizer "$tok" --tokens 256)
    s2s-pack -q --manifest m.jsonl "${args[@]}" -o want.s2s
    s2s-pack -q --manifest m.jsonl.gz "${args[@]}" -o out.s2s
    same out.s2s want.s2s
    s2s-pack -q --manifest - "${args[@]}" <m.jsonl.gz | cmp - want.s2s
    s2s-pack -q --ids ids.jsonl.gz --tokens 64 | s2s-shard verify -q -
    head -c 60 m.jsonl.gz >cut.gz
    exits 1 s2s-pack --manifest cut.gz "${args[@]}" -o none.s2s
    says "cut.gz: the gzip file is cut"
    flip m.jsonl.gz $(($(stat -c %s m.jsonl.gz) - 6))
    exits 1 s2s-pack --manifest m.jsonl.gz "${args[@]}" -o none.s2s
    says damaged
    [ ! -e none.s2s ]
}

@test "no output replaces an input, and --plan and bins print into -o" {
    cp m.jsonl was
    for names in "-o m.jsonl" "-o packs.s2s --report m.jsonl" "-o $ROOT/demo/tokenizer.json" "-o one --report one" "--report -" "-o - --report -"; do
        exits 2 s2s-pack --manifest m.jsonl --tokenizer "$ROOT/demo/tokenizer.json" --tokens 256 $names
        [[ "$output" == *"give each its name"* || "$output" == *"is part of the input"* ]]
    done
    same m.jsonl was
    [ ! -e packs.s2s ]
    [ ! -e one ]
    exits 2 s2s-pack --ids ids.jsonl --tokens 64 -o ""
    says "the name of an output is empty"
    # a report that cannot be there is found out before the samples are
    echo nonsense >bad.jsonl
    exits 1 s2s-pack --ids bad.jsonl --tokens 64 --report nowhere/r.json -o packs.s2s
    says "nowhere/r.json: cannot create the file"
    s2s-pack -q --ids ids.jsonl --tokens 64 --report - -o packs.s2s | jq -e '.packs > 0' >out
    s2s-pack -q --plan --ids ids.jsonl --tokens 64 >want
    exits 0 s2s-pack -q --plan --ids ids.jsonl --tokens 64 -o got
    [ -z "$output" ]
    same want got
    printf '3\n2\n5\n' >lens
    exits 0 s2s-pack bins --tokens 5 -o bins lens
    [ -z "$output" ]
    alike "$(cat bins)" "$(s2s-pack bins --tokens 5 lens)"
    exits 2 s2s-pack bins --tokens 5 -o lens lens
}
