#!/bin/bash
# Prints the table of doc/MESH.md: what a rank of large layouts needs, sends and waits, as `s2s-train plan` tells it without a launch. table.sh [BIN]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
plan=${1:-$here/../../bin}/s2s-train
# what it is | mesh | microbatches of a step | model | what ranks of dp divide
while IFS='|' read -r what mesh n model divided; do
    "$plan" plan "$here/${model:-qwen3_30b_a3b}.json" mesh.sequence_parallel=true train.recompute=true "train.precision=bf16-mixed" \
        "mesh.data_parallel_sharding_strategy=${divided:-optim}" --mesh "$mesh" --microbatches "$n" --tokens 8192 --json | WHAT=$what MESH=$mesh python3 -c '
import json, os, sys
d = json.load(sys.stdin)
gib = lambda n: f"{n / 2**30:.1f}"
m = d["memory"]
state = m["parameters"] + m["gradients"] + m["optimizer"]
sent = ", ".join("%s %s" % (k.replace("main/", "").replace("experts/", "experts: "), gib(v)) for k, v in d["sent"].items() if v >= 2**26)
idle = d.get("pipeline", {}).get("idle")
p, c, n = (d["pipeline"][k] for k in ("ranks", "chunks", "microbatches")) if idle is not None else (1, 1, 1)
formula = (p - 1) / (n * c + p - 1)
waits = "-" if idle is None else f"{100 * idle:.1f} % ({100 * formula:.1f} %)"
print("|", os.environ["WHAT"].strip(), "|", os.environ["MESH"].strip(), "|", d["world_size"], "|", gib(state), "|", gib(m["sum"]), "|", sent, "|", waits, "|")'
done <<'LAYOUTS'
9 nodes, the LLM's 8|tp=2,dp=32,ep=16,etp=1|6
33 nodes, the LLM's 32|tp=2,dp=128,ep=8,etp=1|6
100 nodes, the LLM's 96|tp=2,dp=384,ep=8,etp=1|2
1 node, cp|cp=2,dp=4,ep=8|4
1 node, pp|pp=2,dp=4,ep=4|8
1 node, pp and cp|pp=2,cp=2,dp=2,ep=4|8
1 node, pp 4|pp=4,dp=2,ep=2|8
1 node, hybrid|tp=2,dp=4,ep=8,etp=1|4|nemotron_3_nano_30b_a3b
1 node, hybrid, cp|cp=2,dp=4,ep=8|4|nemotron_3_nano_30b_a3b
9 nodes, hybrid, the LLM's 8|tp=4,dp=16,ep=16,etp=1|6|nemotron_3_nano_30b_a3b
1 node, FSDP, pp|pp=2,dp=4,ep=4|8||optim_grads_params
8 nodes, FSDP|dp=64,ep=8|4||optim_grads_params
LAYOUTS
