# s2s-shard: the common rules of every tool, each command, damaged inputs, faults.
load common
load inject

setup_file() { inject_build; }

setup_tool() {
    good=$ROOT/tests/oracle/stream/good
    bad=$ROOT/tests/oracle/stream/bad
    cp "$good/pack.s2s" a.s2s
}

# big FILE RECORDS: a stream of many records, larger than any buffer
big() {
    s2s-shard cat a.s2s a.s2s a.s2s a.s2s -o four.s2s
    local list=() i
    for ((i = 0; i < $2; i += 8)); do list+=(four.s2s); done
    s2s-shard cat "${list[@]}" -o "$1"
    rm four.s2s
}

@test "help, version, unknown option and command" {
    exits 0 s2s-shard --help
    says "ls"
    exits 0 s2s-shard --version
    says "s2s-shard "
    for command in ls head view verify stats cat split shuffle export; do
        exits 0 s2s-shard $command --help
        says "Usage: s2s-shard $command"
        exits 2 s2s-shard $command --no-such-option a.s2s
    done
    exits 2 s2s-shard
    exits 2 s2s-shard vew a.s2s
    says "view"
}

@test "an input that is not there exits 2, a folder too" {
    for command in ls head view verify stats cat shuffle; do
        exits 2 s2s-shard $command no-such.s2s -o /dev/null
        says "no-such.s2s"
        exits 2 s2s-shard $command . -o /dev/null
    done
}

@test "a cut input exits 1 and names the record" {
    head -c 5000 a.s2s >cut.s2s
    for command in ls view verify stats cat; do
        exits 1 s2s-shard $command cut.s2s -o /dev/null
        says "cut.s2s: record 1"
        run bash -c "s2s-shard $command - -o /dev/null <<<\"\" "
        [ "$status" -eq 1 ]
        run bash -c "cat cut.s2s | s2s-shard $command - -o /dev/null"
        [ "$status" -eq 1 ]
        says "record 1"
    done
    exits 1 s2s-shard verify --quick cut.s2s
    exits 1 s2s-shard head cut.s2s
    # what a program leaves that failed before its first byte
    run bash -c "s2s-shard ls - </dev/null"
    says "stdin: header.json: the stream is empty"
}

@test "a file that becomes shorter while it is read is named" {
    big big.s2s 8192
    # the reader takes no more than a pipe holds before the file is cut
    { s2s-shard cat big.s2s 2>said || echo $? >status; } | { head -c 100 >/dev/null; truncate -s 8192 big.s2s; cat >/dev/null; }
    [ "$(cat status)" = 1 ]
    grep -q 's2s-shard: /.*/big.s2s: cannot be read on: it became shorter' said
    [ "$(wc -l <said)" = 1 ]
}

@test "a flipped byte exits 1 and names record and offset" {
    flip a.s2s 5000
    for command in ls view verify stats cat shuffle; do
        exits 1 s2s-shard $command a.s2s -o /dev/null
        says "record 1 at offset"
    done
    run bash -c "cat a.s2s | s2s-shard verify -"
    [ "$status" -eq 1 ]
    says "record 1 at offset"
}

@test "the corpus: good streams are read as reader.py reads them, bad ones refused for their reason" {
    exits 0 python3 "$ROOT/tests/oracle/stream/check_corpus.py" "$(command -v s2s-shard)"
}

@test "stdin and stdout are - and the default when they are no terminals" {
    s2s-shard cat a.s2s >b.s2s
    same a.s2s b.s2s
    s2s-shard cat <a.s2s -o - | cat >b.s2s
    same a.s2s b.s2s
    cat a.s2s | s2s-shard cat - >b.s2s
    same a.s2s b.s2s
    s2s-shard ls - <a.s2s >one
    cat a.s2s | s2s-shard ls >two
    same one two
}

@test "binary output to a terminal is refused" {
    command -v script >/dev/null || skip "no script(1)"
    run script -qec "s2s-shard cat a.s2s" /dev/null
    says "terminal"
}

@test "a full disk is a failure" {
    for command in "cat a.s2s" "shuffle a.s2s" "ls a.s2s" "head a.s2s" "view a.s2s" "stats a.s2s" "verify a.s2s"; do
        run bash -c "s2s-shard $command >/dev/full"
        [ "$status" -eq 1 ]
        says "No space left"
    done
    exits 1 s2s-shard cat a.s2s -o /dev/full
    says "/dev/full"
}

@test "a closed stdout is a failure where something is printed" {
    exits 1 sh -c "s2s-shard ls $ROOT/tests/oracle/stream/good/*.s2s >&-"
    says "cannot write to stdout"
}

@test "a reader that leaves early is no noise" {
    big big.s2s 2000
    run bash -c "s2s-shard view big.s2s 2>noise | head -c 100 >/dev/null; echo \${PIPESTATUS[0]}"
    [ "$output" = 141 ]
    run bash -c "s2s-shard cat big.s2s 2>>noise | head -c 100 >/dev/null; echo \${PIPESTATUS[0]}"
    [ "$output" = 141 ]
    [ ! -s noise ]
}

@test "threads change no byte" {
    big big.s2s 4000
    s2s-shard cat -j1 big.s2s -o one.s2s.zst
    s2s-shard cat -j8 big.s2s -o eight.s2s.zst
    same one.s2s.zst eight.s2s.zst
    zstd -dcq one.s2s.zst | cmp - big.s2s
    s2s-shard cat one.s2s.zst | cmp - big.s2s
}

# writes PID: a child of that process has an output of this folder open, which has no name so far or a hidden one
writes() {
    local child
    [ ! -e "$(echo .out.s2s*.tmp)" ] || return 0
    child=$(pgrep -P "$1") || return 1
    readlink "/proc/$child/fd/"* | grep -q "^$PWD/.*(deleted)"
}

@test "killed in the middle leaves no file" {
    mkfifo in.fifo
    for signal in TERM INT; do
        # a background program would have SIGINT ignored
        timeout 20 env --default-signal=INT s2s-shard cat in.fifo -o out.s2s 3>&- &
        pid=$!
        exec 8>in.fifo
        head -c 5000 a.s2s >&8
        for i in $(seq 100); do
            writes $pid && break
            sleep 0.05
        done
        writes $pid
        kill -$signal $pid # timeout passes it on
        wait $pid || true
        exec 8>&-
        [ ! -e out.s2s ]
        [ -z "$(ls -A | grep tmp || true)" ]
    done
}

@test "an output that exists is replaced whole or stays as it was; a link stays a link" {
    echo old >out.s2s
    head -c 5000 a.s2s >cut.s2s
    exits 1 s2s-shard cat cut.s2s -o out.s2s
    [ "$(cat out.s2s)" = old ]
    ln -s out.s2s link.s2s
    s2s-shard cat a.s2s -o link.s2s
    [ -L link.s2s ]
    same out.s2s a.s2s
    exits 1 s2s-shard cat a.s2s -o no/such/folder.s2s
    exits 1 s2s-shard cat a.s2s -o .
}

@test "ls and head say what is there" {
    exits 0 s2s-shard ls a.s2s
    [ "${#lines[@]}" -eq 2 ]
    says "tokens 16"
    s2s-shard ls --json a.s2s | jq -e '.files[0].records | length == 2 and .[1].index == 1 and .[0].slots == 20' >/dev/null
    exits 0 s2s-shard head a.s2s
    says "make_corpus"
    s2s-shard head --json a.s2s | jq -e '.kind == "pack" and .records == 2 and .schema.labels.dtype == "I32"' >/dev/null
    # the offsets are true
    s2s-shard ls --json a.s2s | jq -r '.files[0].records[1] | "\(.offset) \(.size)"' | {
        read -r offset size
        tail -c +$((offset + 1)) a.s2s | head -c "$size" >record
    }
    tar -xOf a.s2s 00000001.safetensors | cmp - record
}

@test "view prints what is stored" {
    s2s-shard view --json --record 1 --tensor seq_lens a.s2s >v.json
    jq -e '.kind == "pack" and (.records | length) == 1 and .records[0].index == 1' v.json >/dev/null
    jq -e '.records[0].tensors == {"seq_lens": {"dtype": "I32", "shape": [2], "data": [11, 5]}}' v.json >/dev/null
    s2s-shard view --json a.s2s | jq -e '.records[0].tensors.max_seqlen == {"dtype": "I32", "shape": [], "data": [12]}' >/dev/null
    s2s-shard view --json "$good/embed_f32.s2s" |
        jq -e '.records[0].tensors.audio_embeds.data[0:3] == ["Infinity", "-Infinity", "NaN"]' >/dev/null
    cat a.s2s | s2s-shard view --record 1 --json - >piped.json
    s2s-shard view --record 1 --json a.s2s | cmp - piped.json
    exits 1 s2s-shard view --record 2 a.s2s
    says "record 2"
    exits 1 s2s-shard view --tensor nothing a.s2s
    exits 0 s2s-shard view a.s2s
    says "seq_lens I32 [2]: 11, 5"
}

@test "view --json: floats come back bit for bit, a negative zero too, halves by their exact value" {
    PYTHONPATH=$ROOT/tests/oracle/stream python3 -B - <<'PY'
import json, subprocess
import numpy as np
import make_corpus as corpus
x32 = np.array([0.0, -0.0, 0.1, 1e-45, -3.4028235e38, 16777217.0], "f4")
x16 = np.array([-0.0, 0.1, 6e-8, -65504], "f2")
stream = corpus.Stream(corpus.header(), [({**corpus.pack(), "x32": x32, "x16": ("F16", x16)}, corpus.META)])
open("x.s2s", "wb").write(stream.bytes())
text = subprocess.run(["s2s-shard", "view", "--json", "x.s2s"], check=True, stdout=subprocess.PIPE).stdout
tensors = json.loads(text)["records"][0]["tensors"]
back32, back16 = (np.array(tensors[name]["data"], "f8") for name in ("x32", "x16"))
assert back32.astype("f4").tobytes() == x32.tobytes(), back32
assert back16.tobytes() == x16.astype("f8").tobytes(), back16
PY
}

@test "view --json: floats of 8 and 4 bits" {
    PYTHONPATH=$ROOT/tests/oracle/stream python3 -B - <<'PY'
import numpy as np
import make_corpus as corpus
small = {"F8_E4M3": 0x38, "F8_E5M2": 0x3c, "F8_E8M0": 0x80, "F8_E4M3FNUZ": 0x40, "F8_E5M2FNUZ": 0x42, "F4": 0x91}
tensors = {name: (name, np.array([bits] * (2 if name == "F4" else 1), "u1")) for name, bits in small.items()}
record = corpus.safetensors({**corpus.pack(), **tensors}, corpus.META, lambda header: header["F4"].update(shape=[4]))
open("x.s2s", "wb").write(corpus.Stream(corpus.header(), [record]).bytes())
PY
    for one in "F8_E4M3 [1]" "F8_E5M2 [1]" "F8_E8M0 [2]" "F8_E4M3FNUZ [1]" "F8_E5M2FNUZ [1.5]" "F4 [0.5,-0.5,0.5,-0.5]"; do
        [ "$(s2s-shard view --json --tensor "${one% *}" x.s2s | jq -c ".records[0].tensors.${one% *}.data")" = "${one#* }" ]
    done
}

@test "verify: quick sees the end, -k goes on behind a fault" {
    exits 0 s2s-shard verify a.s2s "$good/pack.s2s.zst"
    cp a.s2s bad.s2s
    flip bad.s2s 3000
    exits 0 s2s-shard verify --quick bad.s2s
    exits 1 s2s-shard verify bad.s2s
    flip bad.s2s 5000
    exits 1 s2s-shard verify -k bad.s2s a.s2s
    says "record 0"
    says "record 1"
    says "a.s2s: good"
    says "2 faults in 1 of 2 streams"
    run bash -c "s2s-shard verify -k --json bad.s2s a.s2s 2>/dev/null"
    [ "$status" -eq 1 ]
    echo "$output" | jq -e '.files[0].ok == false and (.files[0].faults | length) == 2 and .files[1].ok' >/dev/null
}

@test "stats counts, and draws" {
    s2s-shard stats --json a.s2s | jq -e '.records == 2 and .tokens == 32 and .slots == 40 and .fill == 0.8 and .clips == 6' >/dev/null
    exits 0 s2s-shard stats "$good/audio.s2s"
    says "500 samples"
    s2s-shard stats --plot p.svg a.s2s >/dev/null
    head -c 100 p.svg | grep -q '<?xml'
    grep -q '</svg>' p.svg
    s2s-shard stats --plot p.png a.s2s >/dev/null
    [ "$(head -c 4 p.png | tail -c 3)" = PNG ]
    exits 2 s2s-shard stats --plot p.gif a.s2s
    [ "$output" = "s2s-shard: --plot p.gif: the name must end in .svg or .png" ]
    [ ! -e p.gif ]
}

@test "cat of several streams renumbers the records and tells where they are from" {
    s2s-shard cat a.s2s "$good/pack.s2s.zst" -o all.s2s
    exits 0 s2s-shard verify all.s2s
    s2s-shard head --json all.s2s | jq -e '.records == 4 and (.provenance | length) == 2 and (.inputs[1] | length) == 2' >/dev/null
    # a pipe gives the same bytes as a file
    cat a.s2s | s2s-shard cat - "$good/pack.s2s.zst" >piped.s2s
    same all.s2s piped.s2s
    exits 1 s2s-shard cat a.s2s "$good/rl.s2s" -o no.s2s
    says "differs"
    [ ! -e no.s2s ]
    # what was to become of samples longer than a pack is no matter once they are packed
    echo '{"input_ids": [1, 2]}' >row.jsonl
    s2s-pack -q --ids row.jsonl --tokens 4 -o fail.s2s
    s2s-pack -q --ids row.jsonl --tokens 8 --too-long skip -o skip.s2s
    s2s-shard cat fail.s2s skip.s2s -o both.s2s
    s2s-shard head --json both.s2s | jq -e '.config | has("too_long") or has("tokens") | not'
}

@test "split and cat: all records, each once" {
    big big.s2s 16
    s2s-shard split --parts 3 -o 'part%02d.s2s' big.s2s
    s2s-shard verify -q part00.s2s part01.s2s part02.s2s
    [ "$(s2s-shard head --json part00.s2s | jq .records)" -eq 6 ]
    s2s-shard ls --json part0?.s2s | jq -r '.files[].records[].xxh3' | sort >split.txt
    s2s-shard ls --json big.s2s | jq -r '.files[].records[].xxh3' | sort >whole.txt
    same split.txt whole.txt
    cat big.s2s | s2s-shard split --records 10 -o 'run%d.s2s' -
    [ "$(s2s-shard head --json run1.s2s | jq .records)" -eq 6 ]
    exits 2 s2s-shard split --parts 3 -o nopercent.s2s big.s2s
    exits 2 s2s-shard split -o 'x%d' big.s2s
    flip big.s2s 20000
    exits 1 s2s-shard split --parts 2 -o 'bad%d.s2s' big.s2s
    [ -z "$(ls bad?.s2s 2>/dev/null)" ]
}

@test "more parts than a process may have open files until it asks" {
    big big.s2s 104
    (ulimit -Sn 64 && s2s-shard split --records 1 -o 'part%03d.s2s' big.s2s)
    exits 0 s2s-shard verify -q part*.s2s
    (ulimit -Sn 64 && s2s-shard cat part*.s2s -o joined.s2s && s2s-shard shuffle part*.s2s -o shuffled.s2s)
    for file in big.s2s joined.s2s shuffled.s2s; do s2s-shard ls --json $file | jq -r '.files[].records[].xxh3' | sort >$file.txt; done
    [ "$(wc -l <big.s2s.txt)" -eq 104 ]
    same joined.s2s.txt big.s2s.txt
    same shuffled.s2s.txt big.s2s.txt
}

@test "shuffle: all records, each once, as the seed says, from files and pipes" {
    big big.s2s 40
    s2s-shard shuffle --seed 3 big.s2s -o one.s2s
    s2s-shard shuffle --seed 3 - <big.s2s -o two.s2s
    cat big.s2s | s2s-shard shuffle --seed 3 -o three.s2s
    s2s-shard shuffle --seed 4 big.s2s -o four.s2s
    same one.s2s two.s2s
    same one.s2s three.s2s
    s2s-shard cat big.s2s -o big.s2s.zst
    s2s-shard shuffle --seed 3 big.s2s.zst -o five.s2s
    same one.s2s five.s2s
    # of some inputs each record comes from where it lies
    s2s-shard shuffle --seed 3 big.s2s a.s2s big.s2s -o files.s2s
    cat big.s2s | s2s-shard shuffle --seed 3 - a.s2s big.s2s.zst -o mixed.s2s
    same files.s2s mixed.s2s
    not cmp -s one.s2s four.s2s
    s2s-shard ls --json one.s2s | jq -r '.files[].records[].xxh3' | sort >shuffled.txt
    s2s-shard ls --json big.s2s | jq -r '.files[].records[].xxh3' | sort >whole.txt
    same shuffled.txt whole.txt
}

@test "tar, zstd and tar --zstd read our streams" {
    s2s-shard cat a.s2s -o a.s2s.zst
    [ "$(tar -tf a.s2s | wc -l)" -eq 4 ]
    [ "$(tar --zstd -tf a.s2s.zst | wc -l)" -eq 4 ]
    zstd -dcq a.s2s.zst | cmp - a.s2s
    zstd -q a.s2s -o plain.s2s.zst
    exits 1 s2s-shard verify plain.s2s.zst
    says "what zstd itself compressed is read through zstd -dc"
    zstd -dcq plain.s2s.zst | s2s-shard verify -q -
}

@test "a cut anywhere is refused by verify --quick" {
    size=$(stat -c %s a.s2s)
    for ((at = size - 1; at > 0; at -= 97)); do
        head -c $at a.s2s >cut.s2s
        exits 1 s2s-shard verify --quick cut.s2s
    done
}

@test "every failing write, sync, rename and open is a failure with a message, and leaves nothing" {
    inject_or_skip
    big big.s2s 600 # several writes
    for how in ENOSPC EIO EDQUOT; do
        for call in write fsync rename open close; do
            every_fault $call $how out.s2s s2s-shard cat big.s2s -o out.s2s
        done
    done
    every_fault write ENOSPC out.s2s.zst s2s-shard cat -j1 big.s2s -o out.s2s.zst
}

@test "short and interrupted calls change nothing" {
    inject_or_skip
    big big.s2s 600
    every_fault write SHORT out.s2s s2s-shard cat big.s2s -o out.s2s
    every_fault write EINTR out.s2s s2s-shard cat big.s2s -o out.s2s
    every_fault fsync EINTR out.s2s s2s-shard cat big.s2s -o out.s2s
    every_fault read SHORT out.s2s bash -c 'cat big.s2s | s2s-shard cat - -o out.s2s'
    every_fault read EINTR out.s2s bash -c 'cat <big.s2s | s2s-shard cat - -o out.s2s'
}

@test "killed at any write, sync or rename: the old file, the new file or none" {
    inject_or_skip
    big big.s2s 600
    for call in write fsync rename; do
        every_fault $call KILL out.s2s s2s-shard cat big.s2s -o out.s2s
    done
}

@test "where a file cannot be without a name, it has a hidden one until it is whole" {
    inject_or_skip
    unnamed_files || skip "this file system has no other"
    big big.s2s 600
    # no such files; such files that cannot be linked; a link that is refused where there is a file
    for fault in open:1:ENOTSUP rename:1:EPERM rename:2:EPERM; do
        [ $fault != rename:2:EPERM ] || echo old >out.s2s
        with_fault $fault s2s-shard cat big.s2s -o out.s2s
        [ "$fired" = 1 ]
        if [ $fault = rename:2:EPERM ]; then
            [ "$status" -eq 1 ]
            [ "$(cat out.s2s)" = old ]
        else
            [ "$status" -eq 0 ]
            same big.s2s out.s2s
        fi
        rm out.s2s
        [ -z "$(ls -A | grep tmp || true)" ]
    done
    # over a file that is there: killed between link and rename, the old one stays and the new is complete
    for n in 1 2 3; do
        echo old >out.s2s
        with_fault rename:$n:KILL s2s-shard cat big.s2s -o out.s2s
        [ "$(cat out.s2s)" = old ]
        for left in .*.tmp; do
            [ ! -e "$left" ] || same big.s2s "$left"
        done
        rm -f .*.tmp
    done
}

@test "long: random cuts and flips of a large stream are found, the quick look at a cut costs little" {
    big big.s2s 20000
    s2s-shard cat big.s2s -o big.s2s.zst
    for file in big.s2s big.s2s.zst; do
        python3 - "$file" "$(command -v s2s-shard)" <<'PY'
import os, random, resource, shutil, subprocess, sys
path, shard = sys.argv[1:]
rng, size = random.Random(1), os.path.getsize(path)


def cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


for i in range(200):
    shutil.copy(path, "x")
    os.truncate("x", rng.randrange(size))
    begin = cpu()
    assert subprocess.run([shard, "verify", "--quick", "x"], capture_output=True).returncode == 1, "a cut is not found"
    # of the processor, as a loaded machine's clock says little; whatever is cut: a compressed one is
    # decoded up to the cut to say where it is
    assert cpu() - begin < 2, "the quick look took %.3f s" % (cpu() - begin)
for i in range(200):
    shutil.copy(path, "x")
    at, bit = rng.randrange(size), rng.randrange(8)
    with open("x", "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    run = subprocess.run([shard, "verify", "x"], capture_output=True)
    assert run.returncode == 1 and b"offset" in run.stderr, "bit %d of byte %d: %s" % (bit, at, run.stderr)
PY
    done
}

@test "long: no allocation that fails crashes or succeeds silently" {
    inject_or_skip
    for command in "cat a.s2s a.s2s -o out.s2s" "view --json a.s2s" "verify $good/pack.s2s.zst"; do
        for ((n = 1; n <= 5000; n++)); do
            with_fault malloc:$n:ENOMEM s2s-shard $command
            [ $fired = 1 ] || break
            if [ "$status" -ne 1 ] && [ "$status" -ne 0 ]; then
                echo "malloc $n: exit $status: $output" >&2
                return 1
            fi
            if [ "$status" -eq 0 ] && [ -e out.s2s ]; then s2s-shard verify -q out.s2s; fi
            rm -f out.s2s
        done
        [ "$n" -gt 10 ]
    done
}

@test "a stream that is read is not replaced" {
    cp a.s2s p0.s2s
    for command in cat shuffle "cat a.s2s" "cat --zstd 3" "split --records 1"; do
        out=p0.s2s
        [[ "$command" != split* ]] || out=p%d.s2s
        exits 2 s2s-shard $command p0.s2s -o $out
        says "p0.s2s: is part of the input: choose another OUT"
        same a.s2s p0.s2s
    done
    [ ! -e p1.s2s ]
}

@test "-o: what is printed goes to a file, whole or not at all, and to no input" {
    for command in ls head view stats verify "ls --json" "verify --json"; do
        s2s-shard $command a.s2s >want
        exits 0 s2s-shard $command -o got a.s2s
        [ -z "$output" ]
        same want got
        rm got
        exits 2 s2s-shard $command -o a.s2s a.s2s
        says "choose another OUT"
        exits 1 s2s-shard $command -o /dev/full a.s2s
    done
    same a.s2s "$good/pack.s2s"
    truncate -s -1 a.s2s
    exits 1 s2s-shard ls -o got a.s2s
    [ ! -e got ]
    # a bad stream's report is whole too
    exits 1 s2s-shard verify -k -o got a.s2s
    grep "stream is cut" got
}

@test "--json is JSON where a path is no UTF-8" {
    cp a.s2s $'a\xff.s2s'
    [ "$(s2s-shard ls --json $'a\xff.s2s' | jq -r '.files[0].path')" = $'a\xef\xbf\xbd.s2s' ]
    truncate -s -1 $'a\xff.s2s'
    [ "$(s2s-shard verify --json $'a\xff.s2s' 2>errors | jq '.files[0].faults | length')" -eq 1 ]
}

@test "export writes shards that s2s-pack reads again, the same bytes each time" {
    python3 - <<'PY'
import json, struct, wave
with open("m.jsonl", "w") as f:
    for i in range(5):
        with wave.open(f"u{i}.wav", "wb") as w:
            w.setnchannels(1); w.setsampwidth(2); w.setframerate(16000)
            w.writeframes(b"".join(struct.pack("<h", (k * (i + 3) * 37) % 9000 - 4500) for k in range(2000 + 160 * i)))
        print(json.dumps({"audio_filepath": f"u{i}.wav", "duration": 0.125 + 0.01 * i, "text": f"text {i}"}), file=f)
PY
    local how=(--tokenizer "$ROOT/demo/tokenizer.json" --batch-size 2)
    s2s-pack -q --manifest m.jsonl "${how[@]}" -o a.s2s
    tensors() { s2s-shard view --json "$1" | jq -c '.records[] | [.metadata.ids, .metadata.texts, .tensors]'; }
    tensors a.s2s >want
    s2s-shard export -q -j 1 --shard-size 2 -o shar a.s2s
    [ "$(ls shar | tr '\n' ' ')" = 'cuts.000000.jsonl.gz cuts.000001.jsonl.gz cuts.000002.jsonl.gz recording.000000.tar recording.000001.tar recording.000002.tar ' ]
    s2s-pack -q --shar shar "${how[@]}" -o b.s2s
    [ "$(tensors b.s2s)" = "$(cat want)" ]
    s2s-shard export -q --to webdataset --shard-size 3 -o tars a.s2s
    s2s-pack -q --tar tars "${how[@]}" -o c.s2s
    [ "$(tensors c.s2s)" = "$(cat want)" ]
    s2s-pack -q --manifest m.jsonl "${how[@]}" --audio flac | s2s-shard export -q --shard-size 2 -o again -
    diff -r shar again
    s2s-shard export -q -j 3 --shard-size 2 -o threads a.s2s
    diff -r shar threads
    exits 2 s2s-shard export -q -o shar a.s2s
    says "shar: cannot make the folder"
    exits 2 s2s-shard export a.s2s
    says "-o FOLDER"
    exits 1 s2s-shard export -q -o none "$good/pack.s2s"
    says "holds no sound of form pcm or flac"
}

@test "export: ids that leave the folder, stand twice or are cut at a dot are refused, and a failed one leaves no folder" {
    python3 - <<'PY'
import json, struct, wave
for i in range(2):
    with wave.open(f"{i}.wav", "wb") as w:
        w.setnchannels(1); w.setsampwidth(2); w.setframerate(16000)
        w.writeframes(struct.pack("<4000h", *range(4000)))
for name, ids in (("up", ["../../evil", "b"]), ("inside", ["sub/c.0", "a/b"]), ("empty", ["a//b", "b"]), ("twice", ["a", "a"]), ("dots", ["a.b", "a.c"])):
    with open(name + ".jsonl", "w") as f:
        for i, id in enumerate(ids):
            f.write(json.dumps({"id": id, "start": 0, "duration": .25, "channel": 0, "type": "MonoCut", "supervisions": [
                {"id": id, "recording_id": id, "start": 0, "duration": .25, "channel": 0, "text": "hello"}],
                "recording": {"id": id, "sources": [{"type": "file", "channels": [0], "source": f"{i}.wav"}], "sampling_rate": 16000,
                              "num_samples": 4000, "duration": .25, "channel_ids": [0]}}) + "\n")
PY
    for name in up inside empty twice dots; do
        s2s-pack -q --cuts $name.jsonl --tokenizer "$ROOT/demo/tokenizer.json" --tokens 64 -o $name.s2s
    done
    exits 1 s2s-shard export -o out up.s2s
    says "id '../../evil' cannot name a member of a tar"
    exits 1 s2s-shard export -o out empty.s2s
    says "id 'a//b' cannot name a member of a tar"
    [ ! -e out ]
    exits 1 s2s-shard export -o out twice.s2s
    says "id 'a' stands twice"
    [ ! -e out ]
    exits 1 s2s-shard export --shard-size 1 -o out twice.s2s # the first shard was whole
    [ ! -e out ]
    exits 1 s2s-shard export --to webdataset -o out dots.s2s
    says "WebDataset cuts names at the first dot"
    [ ! -e out ]
    exits 0 s2s-shard export -o out dots.s2s
    s2s-shard export -q -o folders inside.s2s
    [ "$(tar tf folders/recording.000000.tar | sort | tr '\n' ' ')" = 'a/b.flac a/b.json sub/c.0.flac sub/c.0.json ' ]
}
