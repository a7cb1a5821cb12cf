#!/bin/bash
# Puts what a visit to a GPU needs into one folder that travels: collect.sh BUILD BIN [NCCL]. The programs with their libraries (but for the C library, which the
# other machine has, and which must be no older), the kernels, tests, and data. NCCL is a libnccl.so.2 of 2.30 or later, which lets two ranks have one GPU:
# with it an MPI travels, too. Run by `make visit`.
set -euo pipefail
build=$1 bin=$2 nccl=${3:-}
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top"
out=build/visit
rm -rf "$out"
mkdir -p "$out/tree/bin" "$out/tree/lib" "$out/tree/data" "$out/tree/mpi"
cp "$bin"/s2s-train "$bin"/libs2s-cuda.so "$build"/tests/gpu/gpu_bench "$out/tree/bin/"
cp "$build"/tests/gpu/{isa_test,sm90} "$out/tree/bin/"
[ ! -e "$build"/tests/gpu/attention_bench ] || cp "$build"/tests/gpu/attention_bench "$out/tree/bin/"
cp "$build"/tests/unit/kernels/*_test tests/gpu/gradients.sh "$out/tree/bin/"
# code for the GPU that is visited alone
for name in libs2s-cuda.so attention_bench; do
    [ ! -e "$out/tree/bin/$name" ] || python3 tests/gpu/thin.py "$out/tree/bin/$name" "$out/tree/bin/$name" 90
done
# Open MPI as Debian has it, in a folder that OPAL_PREFIX names (visit.sh)
if [ -n "$nccl" ]; then
    python3 tests/gpu/thin.py "$nccl" "$out/tree/libnccl.so.2" 90
    lib=lib/$(gcc -print-multiarch)
    mkdir -p "$out/tree/mpi/bin" "$out/tree/mpi/share" "$out/tree/mpi/$lib/openmpi/lib" "$out/tree/mpi/$lib/pmix2/lib"
    cp -L /usr/bin/orterun "$out/tree/mpi/bin/mpirun"
    cp -L /usr/bin/orted "$out/tree/mpi/bin/"
    cp -r "/usr/$lib/openmpi/lib/openmpi3" "$out/tree/mpi/$lib/openmpi/lib/"
    cp -r "/usr/$lib/pmix2/lib/pmix" "$out/tree/mpi/$lib/pmix2/lib/"
    cp -r "/usr/$lib/pmix2/share" "$out/tree/mpi/$lib/pmix2/"
    cp -r /usr/share/openmpi "$out/tree/mpi/share/"
    ln -s "$lib" "$out/tree/mpi/libs"
    cp "$bin"/libs2s-mpi.so "$out/tree/bin/"
fi
# the closure of libraries; those of the C and C++ compilers are the other machine's own, which may be newer
find "$out"/tree/bin "$out"/tree/mpi \( -name '*.so' -o -path '*/bin/*' \) -type f | { xargs ldd 2>/dev/null || true; } | awk '$3 ~ /^\// { print $3 }' | sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux.*)\.so' |
    while read -r lib; do cp -L "$lib" "$out/tree/lib/"; done
# 31 MB of other encodings' characters, which libxml2, of libarchive, asks for in XML alone: none are enough to be loaded
for data in "$out"/tree/lib/libicudata.so.*; do
    [ -e "$data" ] || continue
    echo "const int icudt${data##*.}_dat[64];" | gcc -shared -fPIC -x c - "-Wl,-soname,${data##*/}" -o "$data"
done
strip --strip-debug "$out"/tree/bin/* "$out"/tree/lib/* 2>/dev/null || true
python3 tests/gpu/data.py "$out/tree/data"
"$build"/tests/gpu/isa_test_emu write "$out/tree/data/isa" >/dev/null
(
    cd "$out/tree/data"
    "$top/$bin/s2s-pack" -q --ids small.jsonl --tokens 512 -o small.s2s
    "$top/$bin/s2s-pack" -q --ids long.jsonl --tokens 8192 -o long.s2s
    "$top/$bin/s2s-pack" -q --ids speech.jsonl --tokens 8192 -o speech.s2s
    for set in clips talk; do
        "$top/$bin/s2s-pack" -q --manifest $set.jsonl --tokenizer "$top/demo/tokenizer.json" --prompt plain --audio mel --tokens $([ $set = talk ] && echo 1400 || echo 80) -o $set.s2s
    done
    rm -- *.jsonl *.wav
)
# kernels' sources, for a machine whose GPU the carried code does not fit
cp tests/gpu/{visit.sh,peer.py,peer_model.py,report.py} "$out/"
# programs hold the same library, which a dictionary as large as all of them sees once
tar -C "$out/tree" --sort=name -cf - . | xz -T1 --x86 --lzma2=preset=6,dict=128MiB >"$out/tree.tar.xz"
rm -rf "$out/tree"
bytes=$(du -sb "$out" | cut -f1)
echo "$out: $((bytes / 1000000)) MB"
[ "$bytes" -lt 40000000 ] || { echo "collect.sh: more than the 40 MB that travel well" >&2 && exit 1; }
