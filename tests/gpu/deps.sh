#!/bin/bash
# Brings the programs of CUDA that are not on PATH out of PyPI's wheels into a folder: deps.sh FOLDER. cuobjdump and nvdisasm, which read machine code, and the
# compiler with all it calls. What PATH or the folder has already is left alone.
set -euo pipefail
folder=$1
mkdir -p "$folder"
PATH=$PATH:$(cd "$folder" && pwd)/nvidia/cu13/bin
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

# bring PACKAGE[VERSION]..
bring() {
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$wheels" "$@" || {
        echo "cuda-deps: pip could not bring $*" >&2
        exit 1
    }
    for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$folder"; done
    # a zip file keeps no permissions that python would set again
    find "$folder" -path '*/bin/*' -type f -exec chmod +x {} +
    rm -f "$wheels"/*.whl
}
for program in cuobjdump nvdisasm; do
    command -v $program >/dev/null || bring "nvidia-cuda-$program"
done
command -v nvcc >/dev/null || bring 'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*'
for program in nvcc cuobjdump nvdisasm; do printf '%-10s %s\n' $program "$(command -v $program)"; done
