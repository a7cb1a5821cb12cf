#!/bin/bash
# Compiles every kernel for every architecture of $ARCHS and prints the registers, stack and spills that ptxas reports; 1 where a kernel spills.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for file in kernels/cuda/*.cu; do
    for arch in $ARCHS; do
        "${NVCC:-nvcc}" -std=c++17 -O3 -I. -arch="sm_$arch" -cubin -Xptxas -v -o "$out/x.cubin" "$file" 2>>"$out/log"
    done
done
c++filt <"$out/log" | awk '
    /Compiling entry function/ { match($0, /\x27[^\x27]*\x27/); kernel = substr($0, RSTART + 1, RLENGTH - 2); match($0, /sm_[0-9]+a?/); arch = substr($0, RSTART, RLENGTH)
                                 sub(/^void /, "", kernel); sub(/\(.*/, "", kernel) }
    /bytes stack frame/ { stack = $1; spills = $5 + $9 }
    /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); printf "%-8s %4d registers %5d stack %5d spilled  %s\n", arch, substr($0, RSTART + 5, RLENGTH - 5), stack, spills, kernel
                              bad += spills > 0 }
    END { exit bad > 0 }' | sort -k8,8 -k1,1
exit "${PIPESTATUS[1]}"
