#!/usr/bin/env bats
# What is past a few hundred kilobytes is written by a thread while what comes next is read: the same bytes as from one thread, the same failures. Run under TSan by `tests/long.sh tsan`.
load common
load inject

setup_file() {
    inject_build
    cd "$BATS_FILE_TMPDIR" || return 1
    PATH=/usr/bin:$PATH PYTHONPATH=$BATS_TEST_DIRNAME PYTHONDONTWRITEBYTECODE=1 python3 - <<'END'
import numpy as np, small_safetensors, torch_files as t
for seed, path in enumerate(("a.safetensors", "b.safetensors")):
    r = np.random.default_rng(seed)
    small_safetensors.save(path, **{"layer.weight": ("F32", r.standard_normal((1300, 1100)).astype("f4")),
                                    "layer.bias": ("F32", r.standard_normal(7).astype("f4")),
                                    "embed.weight": ("F32", r.standard_normal((700, 2003)).astype("f4"))})
store = t.Storage("0", [float(i % 65521) for i in range(1200 * 1000)])
t.save("transposed.pt", {"weight": t.tensor(store, (1000, 1200), stride=[1, 1000])})
END
}

setup_tool() {
    ln "$BATS_FILE_TMPDIR"/*.safetensors "$BATS_FILE_TMPDIR"/*.pt .
}

# every way that data takes: out of a file, of several, cut again, cast, turned round
both_ways() {
    "$@" convert -q --to torch_dist --files 3 a.safetensors dist
    "$@" reshard -q --files 2 dist again
    "$@" convert -q --to hf --dtype bf16 --max-shard-size 4MB again hf
    "$@" convert -q --to safetensors transposed.pt transposed.safetensors
    "$@" convert -q --to torch_dist transposed.pt turned
    "$@" convert -q --to torch_dist --dtype f64 a.safetensors cast
    "$@" average -q a.safetensors b.safetensors mean.safetensors
    "$@" ls --json --sha256 dist -o dist.json
    "$@" verify -q dist -o verify.txt
}

@test "two threads write the bytes of one" {
    mkdir one two
    cp -- *.safetensors *.pt one
    cp -- *.safetensors *.pt two
    (cd one && both_ways taskset -c "$(taskset -cp $$ | grep -oE '[0-9]+' | tail -n 1)" s2s-ckpt)
    (cd two && both_ways s2s-ckpt)
    diff -r one two
    exits 0 s2s-ckpt diff one/dist two/again
    # the sums that were made beside the writing: of the archives, of the files
    for folder in dist again hf turned cast; do exits 0 s2s-ckpt verify "two/$folder"; done
}

@test "the mean of large tensors is numpy's, and a mean of the same is the same" {
    s2s-ckpt average -q a.safetensors b.safetensors mean.safetensors
    s2s-ckpt average -q a.safetensors a.safetensors same.safetensors
    exits 0 s2s-ckpt diff a.safetensors same.safetensors
    exits 1 s2s-ckpt diff a.safetensors mean.safetensors
    for name in a b mean; do s2s-ckpt cat "$name.safetensors" layer.weight -o "$name.raw"; done
    python3 -c '
import numpy as np
a, b, mean = (np.fromfile(n + ".raw", "f4") for n in ("a", "b", "mean"))
assert np.array_equal(((a.astype("f8") + b) / 2).astype("f4"), mean)'
}

@test "damage that is met while a thread writes ends the conversion, and is named" {
    s2s-ckpt convert -q --to torch_dist a.safetensors dist
    file=$(ls dist/iter_*/__0_0.distcp)
    printf 'X' | dd of="$file" bs=1 seek=3000000 conv=notrunc status=none
    exits 1 s2s-ckpt convert --to hf dist hf
    says 'CRC-32'
    [ ! -e hf ]
}

@test "verify compares digests beside CRC-32s: damage that either sees is named, that of the CRC-32 where both do" {
    s2s-ckpt convert -q --to torch_dist a.safetensors dist
    file=$(ls dist/iter_*/__0_0.distcp)
    one() { taskset -c "$(taskset -cp $$ | grep -oE '[0-9]+' | tail -n 1)" "$@"; }
    # the padding in front of a tensor: no CRC-32 covers it
    at=$(grep -obUa -m 1 ZZZZZZZZ "$file" | head -n 1 | cut -d : -f 1)
    printf 'X' | dd of="$file" bs=1 seek="$at" conv=notrunc status=none
    for how in env one; do
        exits 1 "$how" s2s-ckpt verify dist
        says 'the manifest says'
    done
    printf 'X' | dd of="$file" bs=1 seek=3000000 conv=notrunc status=none
    for how in env one; do
        exits 1 "$how" s2s-ckpt verify dist
        says 'CRC-32'
    done
    # of what no manifest names, too
    s2s-ckpt convert -q --to torch_dist a.safetensors named
    sed -i 's/"__0_0.distcp"/"__9_0.distcp"/' named/iter_*/s2s-manifest.json
    mv named/iter_*/__0_0.distcp whole
    cp whole "$(echo named/iter_*)/__0_0.distcp"
    mv whole "$(echo named/iter_*)/__9_0.distcp"
    exits 1 s2s-ckpt verify named
    says 'does not name it'
}

@test "an output that fails in the thread is told as one that fails without it" {
    exits 1 bash -c 's2s-ckpt cat a.safetensors layer.weight >/dev/full'
    says 'No space left'
    run bash -c 'set -o pipefail; s2s-ckpt cat a.safetensors layer.weight | head -c 1 | wc -c'
    [ "$status" = 141 ]
    [ "$output" = 1 ]
}

# the first pieces are written while others wait, the last ones when everything is read
@test "a full disk at any write ends in one message, and leaves nothing" {
    inject_or_skip
    for how in "convert -q --to torch_dist a.safetensors out" "convert -q --to safetensors a.safetensors out" "cat a.safetensors layer.weight -o out"; do
        read -ra command <<<"s2s-ckpt $how"
        for ((n = 1; n < 1000; n += n > 1 && STEP > 1 ? 13 : FIRST)); do
            with_fault "write:$n:ENOSPC" "${command[@]}"
            [ $fired = 1 ] || break
            [ "$status" = 1 ]
            says 'No space left'
            [[ ${output#s2s-ckpt:} != *s2s-ckpt:* ]]
            # its manifest is written when the file has its name
            [ ! -e out ] || says "out is there, whole"
            [ ! -e out ] || rm out
        done
        [ "$n" -gt 20 ]
        [ "$status" = 0 ]
        rm -rf out
    done
}

@test "where no thread is to be had all is done without" {
    inject_or_skip
    for to in torch_dist safetensors; do
        s2s-ckpt convert -q --to "$to" a.safetensors want
        with_fault thread:1:EAGAIN s2s-ckpt convert -q --to "$to" a.safetensors out
        [ "$status" = 0 ]
        [ $fired = 1 ]
        diff -r want out
        rm -rf want out
    done
    s2s-ckpt ls --sha256 a.safetensors >want
    with_fault thread:1:EAGAIN s2s-ckpt ls --sha256 a.safetensors
    [ $fired = 1 ]
    [ "$output" = "$(cat want)" ]
}
