# mpirun -n N s2s-ckpt: the work is shared, the bytes are those of one process.
load common
load ckpt_faults

# same_bytes RANKS IN OPTION...: so many ranks, "2 3" each, write what one process writes
same_bytes() {
    local n ranks=$1 in=$2
    shift 2
    rm -rf want out
    s2s-ckpt "$@" "$in" want
    for n in $ranks; do
        mpirun_n $n s2s-ckpt "$@" "$in" out
        diff -r want out || { echo "$n ranks: $*" >&2; return 1; }
        [ ! -e out.s2s-partial ]
        rm -rf out
    done
}

@test "two and three ranks write the bytes of one process" {
    same_bytes 2 "$DATA/mcore016_hybrid_tp2pp2ep2" convert -q --to hf --max-shard-size 6k --dtype f32
    same_bytes 3 "$DATA/hf_sharded" convert -q --to torch_dist --max-shard-size 4k
}

@test "long: any number of ranks writes the same bytes" {
    same_bytes "2 3" "$DATA/hf_sharded" convert -q --to hf --max-shard-size 4k
    same_bytes 3 "$DATA/mcore016_hybrid_tp2pp2ep2" convert -q --to hf --max-shard-size 6k --dtype f32
    same_bytes 2 "$DATA/hf_sharded" convert -q --to torch_dist --max-shard-size 4k
    same_bytes "2 3" "$DATA/mcore016_gated_pp2dp2_dpreshardable" reshard -q --files 5
    same_bytes "2 3" "$DATA/mcore012_torch24_flattened_tp2" reshard -q --files 3
    same_bytes "2 3" "$DATA/zip.pt" convert -q --to safetensors
}

@test "long: a tensor that three ranks' files share is written once, by rows" {
    s2s-ckpt convert -q --to torch_dist "$DATA/mcore016_hybrid_tp2pp2ep2" whole
    # more files than most tensors have rows
    mpirun_n 3 s2s-ckpt reshard -q --files 40 whole many
    s2s-ckpt verify -q many
    exits 0 s2s-ckpt diff whole many
    same_bytes "2 3" many reshard -q --files 2
}

@test "long: a rank whose files are all empty writes none" {
    # the second row is past the middle: the files between hold nothing
    printf '\x40\0\0\0\0\0\0\0%-64s%-8s%-8s' '{"two":{"dtype":"U64","shape":[2],"data_offsets":[0,16]}}' one two >two.safetensors
    same_bytes "2 3" two.safetensors convert -q --to torch_dist --files 6
    mpirun_n 3 s2s-ckpt convert -q --to torch_dist --files 6 two.safetensors out
    exits 0 s2s-ckpt verify out
    exits 0 s2s-ckpt diff two.safetensors out
}

@test "ranks speak with one voice, and a failure of one is everybody's" {
    mpirun_n 3 s2s-ckpt convert --to hf "$DATA/hf_sharded" out 2>said
    [ "$(grep -c 's2s-ckpt: out: ' said)" = 1 ]
    exits 2 mpirun_n 2 s2s-ckpt convert --to hf "$DATA/hf_sharded" out
    says "out: already exists"
    [ "$(grep -c 'already exists' <<<"$output")" = 1 ]
    # a flipped byte, in whoever's share it is
    cp -r "$DATA/mcore016_hybrid_tp2pp2ep2" bad
    big=$(ls -S bad/iter_*/*.distcp bad/*.distcp 2>/dev/null | head -1)
    flip "$big" $(($(stat -c %s "$big") / 2))
    run s2s-ckpt convert --to torch_dist --files 4 bad alone
    [ "$status" -eq 1 ]
    exits 1 mpirun_n 2 s2s-ckpt convert --to torch_dist --files 4 bad out2
    says "CRC-32"
    [ ! -e out2 ]
    [ ! -e out2.s2s-partial ]
}

@test "what killed ranks finished is kept by --resume, with another number of ranks too" {
    inject_or_skip
    s2s-ckpt convert -q --to torch_dist --files 6 "$DATA/hf_sharded" want
    # each of the ranks, at its second sync; mpirun itself is left alone
    run mpirun_n 2 env S2S_INJECT=fsync:2:KILL LD_PRELOAD="$INJECT" \
        s2s-ckpt convert -q --resume --to torch_dist --files 6 "$DATA/hf_sharded" out
    [ "$status" -ne 0 ]
    ls out.s2s-partial/iter_*/*.distcp
    [ ! -e out ]
    [ -e out.s2s-partial ]
    cp -r out.s2s-partial kept
    for n in 3 ${S2S_LONG:+1 2}; do
        rm -rf out out.s2s-partial
        cp -r kept out.s2s-partial
        exits 0 mpirun_n $n s2s-ckpt convert -v --resume --to torch_dist --files 6 "$DATA/hf_sharded" out
        diff -r want out
        [ ! -e out.s2s-partial ]
    done
}

@test "a call that fails in one rank alone ends all with one message, and --resume makes the same bytes" {
    inject_or_skip
    local convert=(s2s-ckpt convert -q --resume --to torch_dist --files 6 "$DATA/hf_sharded" out) fault
    local faults=(pread:7:EIO fsync:2:KILL)
    [ -z "$S2S_LONG" ] || faults+=(pread:1:EIO fsync:1:ENOSPC fsync:3:EIO)
    s2s-ckpt convert -q --to torch_dist --files 6 "$DATA/hf_sharded" want
    # (Open MPI 5.0.7 crashes where each rank has a command of its own)
    printf '%s\n' '#!/bin/sh' 'fault=$1; shift' '[ "${OMPI_COMM_WORLD_RANK-$PMI_RANK}" != 1 ] || export S2S_INJECT="$fault" LD_PRELOAD="$INJECT"' 'exec "$@"' >in_one
    chmod +x in_one
    for fault in "${faults[@]}"; do
        run timeout 60 mpirun -n 3 ./in_one $fault "${convert[@]}"
        [ ! -e out ]
        case $fault in
        *KILL) [ "$status" -eq "$(by_hydra && echo 9 || echo 137)" ] ;;
        *)
            [ "$status" -eq 1 ] || { echo "$fault: exit $status: $output" >&2; return 1; }
            [ "$(grep -c '^s2s-ckpt' <<<"$output")" = 1 ]
            says "[rank 1]"
            ;;
        esac
        exits 0 mpirun_n 2 "${convert[@]}"
        diff -r want out
        [ ! -e out.s2s-partial ]
        rm -r out
    done
}

@test "ls, verify, diff and cat are one rank's work and one voice" {
    local in="$DATA/mcore016_hybrid_tp2pp2ep2" command
    local commands=("verify $in" "diff $in $DATA/hf_sharded")
    [ -z "$S2S_LONG" ] || commands+=("ls $in" "ls --json --sha256 $in" "cat --json $in decoder.final_norm.weight")
    for command in "${commands[@]}"; do
        local one=0 three=0
        s2s-ckpt $command >alone 2>&1 || one=$?
        mpirun_n 3 s2s-ckpt $command >many 2>/dev/null || three=$?
        [ $one = $three ]
        same alone many
    done
    s2s-ckpt convert -q --to safetensors "$in" cut.safetensors
    truncate -s -1 cut.safetensors
    exits 1 mpirun_n 3 s2s-ckpt verify cut.safetensors
    [ "$(grep -c '^s2s-ckpt: ' <<<"$output")" = 1 ]
    # -o is written once, and so are the messages of an absent input
    mpirun_n 2 s2s-ckpt ls -o list "$in"
    s2s-ckpt ls "$in" | cmp - list
    exits 2 mpirun_n 2 s2s-ckpt ls nowhere
    [ "$(grep -c nowhere <<<"$output")" = 1 ]
}

@test "what only another rank warns of is said, and is in the report, once" {
    python3 - <<'PY'
import json, struct
names = ["a.weight", "b.weight"]
head = json.dumps({n: {"dtype": "F32", "shape": [1000], "data_offsets": [i * 4000, i * 4000 + 4000]} for i, n in enumerate(names)}).encode()
data = struct.pack("<1000f", *[1] * 1000) + struct.pack("<1000f", *[1e5] + [1] * 999)
open("in.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + data)
PY
    mv in.safetensors model-00001-of-00002.safetensors # both ranks warn of the name
    mpirun_n 2 s2s-ckpt convert --json --to torch_dist --dtype f16 --max-shard-size 5k model-00001-of-00002.safetensors out >report.json 2>said
    [ "$(grep -c 'b.weight: 1 value past' said)" = 1 ]
    [ "$(grep -c 'read alone' said)" = 1 ]
    [ "$(ls out/iter_*/*.distcp out/*.distcp 2>/dev/null | wc -l)" = 2 ]
    jq -e '.infinite_values == 1' report.json
    jq -e '.warnings | length == 2 and (.[0] | contains("read alone")) and (.[1] | contains("b.weight"))' report.json
}
