#!/usr/bin/env bats
# s2s-cpshard: split, join, index.
load common

setup_tool() {
    for i in $(seq 1 12); do
        echo "{\"id\":\"u$i\",\"input_ids\":[$(seq -s, 1 $((i * 3)))],\"text\":\"t$i\",\"audio\":[{\"pos\":$((i % 3)),\"frames\":$i}]}"
    done >rows.jsonl
    s2s-pack -q --ids rows.jsonl --tokens 96 --cp 3 --tp 2 -o packs.s2s
}

@test "help and version exit 0, a bad command line 2" {
    exits 0 s2s-cpshard --help
    says "--join"
    exits 0 s2s-cpshard index -h
    exits 0 s2s-cpshard --version
    exits 2 s2s-cpshard --nonsense
    exits 2 s2s-cpshard packs.s2s -o 'x%r.s2s'
    says "--cp is missing"
    exits 2 s2s-cpshard --cp 2 packs.s2s -o x.s2s
    says "%r"
    exits 2 s2s-cpshard --cp 2 --rank 2 packs.s2s -o x.s2s
    exits 2 s2s-cpshard --join -o x.s2s
    exits 2 s2s-cpshard --cp 3 absent.s2s -o 'x%r.s2s'
    says absent.s2s
    exits 2 s2s-cpshard --join -o x.s2s absent.s2s
    no_litter . packs.s2s rows.jsonl
}

@test "the worked examples of the map" {
    [ "$(s2s-cpshard index --cp 2 --cu-seqlens 0,8,16)" = $'0 1 6 7 8 9 14 15\n2 3 4 5 10 11 12 13' ]
    [ "$(s2s-cpshard index --cp 2 --cu-seqlens 0,8,12 --json)" = '{"index": [[0,1,6,7,8,11],[2,3,4,5,9,10]]}' ]
    [ "$(s2s-cpshard index --cp 2 --cu-seqlens 0,8,12 --rank 1 --json)" = '{"index": [[2,3,4,5,9,10]]}' ]
    [ "$(s2s-cpshard index --cp 1 --cu-seqlens 0,3,3,5)" = "0 1 2 3 4" ]
    [ "$(s2s-cpshard index --cp 2 --cu-seqlens 0,0,4,4)" = $'0 3\n1 2' ]
    # shared options may stand before the command
    [ "$(s2s-cpshard -q --seed=3 -j 2 -j1 --json index --cp 2 --cu-seqlens 0,0,4,4)" = '{"index": [[0,3],[1,2]]}' ]
    for bounds in 0,8,13 4,8 0,8,4 0 0,0 0,-8 -8,0; do
        exits 1 s2s-cpshard index --cp 2 --cu-seqlens=$bounds
        says cu_seqlens
    done
    exits 2 s2s-cpshard index --cp 2 --cu-seqlens 0,x
}

@test "join gives the input back, bit for bit, in any order of the ranks" {
    s2s-cpshard --cp 3 -o 'cp%r.s2s' packs.s2s
    s2s-shard verify cp0.s2s cp1.s2s cp2.s2s
    s2s-cpshard --join -o joined.s2s cp2.s2s cp0.s2s cp1.s2s
    same joined.s2s packs.s2s
    s2s-cpshard --cp 1 -o one.s2s packs.s2s
    s2s-cpshard --join -o joined.s2s one.s2s
    same joined.s2s packs.s2s
}

@test "a rank alone through a pipe is the rank's file; .zst too" {
    s2s-cpshard --cp 3 -o 'cp%r.s2s' packs.s2s
    s2s-cpshard --cp 3 --rank 1 -o - <packs.s2s | cat >one.s2s
    same one.s2s cp1.s2s
    s2s-cpshard --cp 3 -o 'z%r.s2s.zst' packs.s2s
    s2s-cpshard --join -o joined.s2s z0.s2s.zst z1.s2s.zst z2.s2s.zst
    same joined.s2s packs.s2s
    cat cp0.s2s | s2s-cpshard --join -o - - cp1.s2s cp2.s2s | cmp - packs.s2s
}

@test "-j 1 equals -j 8" {
    s2s-cpshard -j 1 --cp 3 -o 'a%r.s2s.zst' packs.s2s
    s2s-cpshard -j 8 --cp 3 -o 'b%r.s2s.zst' packs.s2s
    for r in 0 1 2; do same a$r.s2s.zst b$r.s2s.zst; done
}

# three clips of sound and a manifest of them
speech() {
    python3 - <<'PY'
import json, math, struct, wave
with open("m.jsonl", "w") as f:
    for i in range(3):
        with wave.open(f"{i}.wav", "wb") as w:
            w.setnchannels(1); w.setsampwidth(2); w.setframerate(16000)
            w.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(t / (5 + i)))) for t in range(4000 * (i + 1))))
        f.write(json.dumps({"audio_filepath": f"{i}.wav", "duration": .25 * (i + 1), "text": "abc"}) + "\n")
PY
}

@test "embeddings: each rank has the rows of its slots, and join gives all back" {
    speech
    encoder=$ROOT/tests/oracle/models/parakeet_encoder
    s2s-pack -q --manifest m.jsonl --tokenizer "$ROOT/demo/tokenizer.json" --encoder-frames "$encoder" --batch-size 3 --cp 2 -o speech.s2s
    s2s-encode -q -j 1 --encoder "$encoder" -o embed.s2s speech.s2s
    s2s-cpshard --cp 2 -o 'cp%r.s2s' embed.s2s
    PYTHONPATH=$ROOT/tests/oracle/packing python3 - <<'PY'
import naive
header, ((whole, _),) = naive.read_stream("embed.s2s")
width = header["embed"]["hidden"]
row_of = [s + i for s, n in zip(whole["audio_slot"], whole["audio_frames"]) for i in range(n)]
for rank in range(2):
    (got, _), = naive.read_stream(f"cp{rank}.s2s")[1]
    rows = [row_of.index(slot) for slot in naive.cp_index(whole["cu_seqlens"], 2, rank) if slot in row_of]
    want = [x for r in rows for x in whole["audio_embeds"][r * width:(r + 1) * width]]
    assert rows and got["audio_embeds"] == want, rank
PY
    s2s-cpshard --join -o joined.s2s cp1.s2s cp0.s2s
    same joined.s2s embed.s2s
}

@test "waveforms of a pack go to all ranks and come back" {
    speech
    s2s-pack -q --manifest m.jsonl --tokenizer "$ROOT/demo/tokenizer.json" --tokens 64 --cp 2 -o speech.s2s
    s2s-cpshard --cp 2 -o 'cp%r.s2s' speech.s2s
    s2s-cpshard --join -o joined.s2s cp0.s2s cp1.s2s
    same joined.s2s speech.s2s
}

@test "what does not belong together is not joined" {
    s2s-cpshard --cp 3 -o 'cp%r.s2s' packs.s2s
    exits 1 s2s-cpshard --join -o j.s2s cp0.s2s cp2.s2s
    says "rank 1 of cp 3 is missing"
    exits 1 s2s-cpshard --join -o j.s2s cp0.s2s cp1.s2s cp1.s2s
    says "rank 1 again"
    s2s-pack -q --ids rows.jsonl --tokens 96 --cp 3 --tp 2 --seed 1 -o other.s2s
    s2s-cpshard --cp 3 -o 'o%r.s2s' other.s2s
    exits 1 s2s-cpshard --join -o j.s2s cp0.s2s cp1.s2s o2.s2s
    says "another stream"
    s2s-cpshard --cp 1 -o 'one%r.s2s' packs.s2s
    exits 1 s2s-cpshard --join -o j.s2s cp0.s2s cp1.s2s one0.s2s
    says "of cp 1"
    # the same header, other records
    sed 's/t3/t4/' rows.jsonl | s2s-pack -q --ids - --tokens 96 --cp 3 --tp 2 -o other.s2s
    s2s-cpshard --cp 3 -o 'o%r.s2s' other.s2s
    exits 1 s2s-cpshard --join -o j.s2s cp0.s2s cp1.s2s o2.s2s
    says "o2.s2s: record"
    exits 1 s2s-cpshard --join -o j.s2s packs.s2s
    says "a stream of kind pack; expected cpshard"
    exits 1 s2s-cpshard --cp 3 -o 'x%r.s2s' cp0.s2s
    says "a stream of kind cpshard; expected pack or embed"
    [ ! -e j.s2s ]
    [ ! -e x0.s2s ]
}

@test "a rank that is a record short, or has more of what all have, is not joined" {
    s2s-cpshard --cp 3 -o 'cp%r.s2s' packs.s2s
    PYTHONPATH=$ROOT/tests/oracle/stream python3 - <<'PY' # streams that are whole in themselves
import sys
sys.argv = ["make_corpus.py"]
sys.dont_write_bytecode = True
import numpy as np
import make_corpus, reader
data = open("cp1.s2s", "rb").read()
header, records = reader.read(data)
inputs = reader.safetensors(list(reader.members(data))[-1][2])[0]["inputs"]
def write(name, records):
    stream = make_corpus.Stream(header, records)
    stream.end_meta = {"inputs": inputs}
    open(name, "wb").write(stream.bytes())
records = [({name: (t[0], t[2].reshape(t[1])) for name, t in tensors.items()}, meta) for meta, tensors in records]
write("short.s2s", records[:-1])
write("same.s2s", records)
tensors = records[0][0]
for name, value in ("audio_frames", 1), ("audio_slot", 61): # a third clip, which fits behind the second
    tensors[name] = (tensors[name][0], np.append(tensors[name][1], np.array([value], "i4")))
write("more.s2s", records)
PY
    s2s-cpshard --join -o j.s2s cp0.s2s same.s2s cp2.s2s
    same j.s2s packs.s2s
    rm j.s2s
    exits 1 s2s-cpshard --join -o j.s2s cp0.s2s short.s2s cp2.s2s
    says "short.s2s ends before record 3 of cp0.s2s"
    exits 1 s2s-cpshard --join -o j.s2s short.s2s cp0.s2s cp2.s2s
    says "short.s2s ends before record 3"
    exits 1 s2s-cpshard --join -o j.s2s cp0.s2s more.s2s cp2.s2s
    says "more.s2s: record 0: tensor 'audio_frames' is not that of cp0.s2s"
    [ ! -e j.s2s ]
}

@test "lengths that 2*cp does not divide are refused, named, and leave nothing" {
    s2s-pack -q --ids rows.jsonl --tokens 96 -o odd.s2s
    mkdir out
    exits 1 s2s-cpshard --cp 2 -o 'out/cp%r.s2s' odd.s2s
    says "record 0"
    says "2 * cp"
    no_litter out
}

@test "a share that tensor parallelism cannot split is warned of and changes no byte" {
    s2s-cpshard --cp 3 --rank 0 -o a.s2s packs.s2s
    exits 0 s2s-cpshard --cp 3 --rank 0 --tp 7 -o b.s2s packs.s2s
    says "no multiple of tp = 7"
    same a.s2s b.s2s
}

@test "truncated and changed input is found, with the record" {
    mkdir out
    head -c $(($(stat -c %s packs.s2s) / 2)) packs.s2s >cut.s2s
    exits 1 s2s-cpshard --cp 3 -o 'out/cp%r.s2s' cut.s2s
    says "record"
    exits 1 bash -c "cat cut.s2s | s2s-cpshard --cp 3 -o 'out/cp%r.s2s'"
    says "record"
    cp packs.s2s bad.s2s
    flip bad.s2s 4000
    exits 1 s2s-cpshard --cp 3 -o 'out/cp%r.s2s' bad.s2s
    no_litter out
}

@test "a full disk is an error, a reader that leaves early is none" {
    exits 1 s2s-cpshard --cp 3 --rank 0 -o /dev/full packs.s2s
    for i in $(seq 300); do cat rows.jsonl; done | s2s-pack -q --ids - --tokens 96 --cp 3 -o big.s2s
    run bash -c "s2s-cpshard --cp 3 --rank 0 <big.s2s | head -c 100 >/dev/null"
    [ -z "$output" ]
}

@test "killed in the middle, nothing has a final name" {
    mkdir out
    mkfifo pipe
    (head -c 4000 packs.s2s; sleep 30) >pipe &
    feeder=$!
    s2s-cpshard --cp 3 -o 'out/cp%r.s2s' <pipe &
    pid=$!
    sleep 0.3
    kill -TERM $pid
    wait $pid || true
    kill $feeder || true
    no_litter out
}

@test "memory does not grow with the stream" {
    case "${S2S_BIN:-}" in *sanitize*) skip "sanitizers keep what is freed" ;; esac
    peak_kib() { # FILE [COMMAND..]: into rank.s2s
        python3 -c "
import resource, subprocess, sys
command = sys.argv[2:] or ['s2s-cpshard', '--cp', '3', '--rank', '2', '-o', '-']
subprocess.run(command, stdin=open(sys.argv[1]), stdout=open('rank.s2s', 'w'), check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)" "$@"
    }
    for i in $(seq 400); do cat rows.jsonl; done >many.jsonl
    for i in 1 2 3 4 5; do cat many.jsonl; done | s2s-pack -q --ids - --tokens 96 --cp 3 -o big.s2s
    [ "$(stat -c %s big.s2s)" -gt 12000000 ]
    mkfifo pipe
    cat big.s2s >pipe &
    [ "$(peak_kib pipe)" -lt "$(($(peak_kib packs.s2s) + 4096))" ]
    s2s-shard verify rank.s2s
    # nor with a file, whose pages are given back once they are read
    s2s-shard cat big.s2s big.s2s big.s2s big.s2s big.s2s big.s2s big.s2s big.s2s -o bigger.s2s
    [ "$(stat -c %s bigger.s2s)" -gt 96000000 ]
    [ "$(peak_kib bigger.s2s)" -lt 65536 ]
    # also when they are read in any order
    [ "$(peak_kib bigger.s2s s2s-shard shuffle -q bigger.s2s)" -lt 65536 ]
    rm bigger.s2s
}

@test "a stream that is read is not replaced" {
    cp packs.s2s p0.s2s
    exits 2 s2s-cpshard --cp 3 -o p%r.s2s p0.s2s
    says "p0.s2s: is part of the input: choose another OUT"
    exits 2 s2s-cpshard --cp 3 --rank 1 -o p0.s2s ./p0.s2s
    same packs.s2s p0.s2s
    s2s-cpshard --cp 3 -o r%r.s2s packs.s2s
    exits 2 s2s-cpshard --join -o r2.s2s r0.s2s r1.s2s r2.s2s
    s2s-cpshard --join -o joined.s2s r0.s2s r1.s2s r2.s2s
    same packs.s2s joined.s2s
    no_litter . packs.s2s rows.jsonl p0.s2s r0.s2s r1.s2s r2.s2s joined.s2s
}

@test "index prints into -o" {
    s2s-cpshard index --cp 2 --cu-seqlens 0,8,12 >want
    exits 0 s2s-cpshard index --cp 2 --cu-seqlens 0,8,12 -o got
    [ -z "$output" ]
    same want got
}
