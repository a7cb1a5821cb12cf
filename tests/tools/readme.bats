# The README's promises: its pipeline runs as it is pasted.
load common

@test "the pipeline of the README runs as pasted" {
    ln -s "$ROOT/demo" "$ROOT/tests" .
    # the same lines, a shorter training, and output here
    sed -n '/^## A pipeline to paste/,/^## /{/^    /p}' "$ROOT/README.md" |
        sed "s|demo/out/pipeline|out|; s|max_seconds=20|max_seconds=2|; s|export PATH=[^ ]*|export|" >pipeline.sh
    [ "$(wc -l <pipeline.sh)" -ge 9 ]
    # where a size is not legal s2s-check says so with exit 1
    sed -i 's/s2s-check [^#]*/& || [ $? -eq 1 ] /' pipeline.sh
    exits 0 bash -e -o pipefail pipeline.sh
    says "good: "
    says "legal"
    [ -s out/cp0.s2s ]
    [ -s out/cp1.s2s ]
    [ -s out/run/log.jsonl ]
    [ -s out/model/llm/model.safetensors ]
    [ -s out/model/encoder/config.json ]
}
