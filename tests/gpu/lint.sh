#!/bin/bash
# Compiles every kernel, or those of the files that are named, for every architecture of $ARCHS, and prints the registers, stack and spills that ptxas
# reports. 1 where a kernel spills, or where one that multiplies tiles of a type has no matrix instruction of it (HMMA of BF16 or TF32 in the machine code,
# which cuobjdump shows; CUOBJDUMP names another one, and without any this is left out, and said).
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
dump=${CUOBJDUMP:-cuobjdump} bad=0
command -v "$dump" >/dev/null || { dump='' && echo "no cuobjdump: nobody looks which matrix instructions there are" >&2; }
[ $# -gt 0 ] || set -- kernels/cuda/*.cu

# Of machine code, each kernel that should have matrix instructions and has not.
without_matrices() {
    awk -v arch="$1" '
        function judge() { if (want != "" && !found) { print arch ": no HMMA of " want " in " name; bad = 1 } }
        /Function :/ { judge(); name = $NF; found = 0; want = name ~ /att_bf16/ ? "BF16" : name ~ /att_f32|grouped_tf32/ ? "TF32" : "" }
        /HMMA/ && want != "" && index($0, want) { found = 1 }
        END { judge(); exit bad }'
}

for file in "$@"; do
    for arch in $ARCHS; do
        "${NVCC:-nvcc}" -std=c++17 -O3 -I. -arch="sm_$arch" -cubin -Xptxas -v -o "$out/x.cubin" "$file" 2>"$out/one" || { cat "$out/one" >&2 && exit 1; }
        cat "$out/one" >>"$out/log"
        [ -z "$dump" ] || "$dump" --dump-sass "$out/x.cubin" | without_matrices "sm_$arch" | c++filt || bad=1
    done
done
c++filt <"$out/log" | awk '
    /Compiling entry function/ { match($0, /\x27[^\x27]*\x27/); kernel = substr($0, RSTART + 1, RLENGTH - 2); match($0, /sm_[0-9]+a?/); arch = substr($0, RSTART, RLENGTH)
                                 sub(/^void /, "", kernel); sub(/\(.*/, "", kernel) }
    /bytes stack frame/ { stack = $1; spills = $5 + $9 }
    /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); printf "%-8s %4d registers %5d stack %5d spilled  %s\n", arch, substr($0, RSTART + 5, RLENGTH - 5), stack, spills, kernel
                              bad += spills > 0 }
    END { exit bad > 0 }' | sort -k8,8 -k1,1 || bad=1
exit "$bad"
