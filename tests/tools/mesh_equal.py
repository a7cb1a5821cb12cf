#!/usr/bin/env python3
"""mesh_equal.py ONE MESH [ONE MESH...]: pairs of runs of s2s-train that a mesh should not tell apart.

fp32 keeps 6e-8 of a number. Sums over the ranks are added in another order than in one process, so losses, norms and
moments may differ by some of that; gradients go by the size of their norm, as single ones may be round-off alone, and
weights by that over the eps of AdamW (which is large in these recipes, so that no step is made of round-off). With
BITS=1 nothing may differ: every sum has the order it has in one process.
"""
import json
import os
import subprocess
import sys

LOSS, NORM, MOMENT, WEIGHT, BALANCE = (0,) * 5 if os.environ.get("BITS") else (2e-7, 1e-6, 5e-8, 5e-6, 1e-6)


def log(run):
    return [json.loads(line) for line in open(run + "/log.jsonl")]


def compare(one, mesh):
    a, b = log(one), log(mesh)
    assert len(a) == len(b) > 0, (len(a), len(b))
    worst = {"loss": 0.0, "grad_norm": 0.0, "m": 0.0, "v": 0.0, "weight": 0.0}
    for x, y in zip(a, b):
        for key in ("step", "samples", "tokens", "lr"):
            assert x[key] == y[key], (key, x, y)
        for key in ("loss", "grad_norm"):
            worst[key] = max(worst[key], abs(x[key] - y[key]) / max(abs(x[key]), 1e-30))
        for key in ("moe_balance", "moe_z"):
            assert (key in x) == (key in y), key
            if key in x:
                worst[key] = max(worst.get(key, 0), abs(x[key] - y[key]) / max(abs(x[key]), 1e-30))
    norm = max(x["grad_norm"] for x in a)
    diff = subprocess.run(["s2s-ckpt", "diff", "--json", one + "/checkpoints", mesh + "/checkpoints"],
                          capture_output=True, text=True)
    assert diff.returncode in (0, 1) and not diff.stderr, diff.stderr
    for t in json.loads(diff.stdout)["differences"]:
        assert t["difference"] == "values", t
        name, far = t["name"], t["max_abs"]
        if "exp_avg_sq" in name:
            worst["v"] = max(worst["v"], far / norm ** 2)
        elif "exp_avg" in name:
            worst["m"] = max(worst["m"], far / norm)
        else:
            worst["weight"] = max(worst["weight"], far)
    bounds = {"loss": LOSS, "grad_norm": NORM, "m": MOMENT, "v": MOMENT, "weight": WEIGHT, "moe_balance": BALANCE,
              "moe_z": BALANCE}
    print(mesh, *("%s %.1e" % item for item in worst.items()))
    bad = [key for key in worst if not worst[key] <= bounds[key]]
    assert not bad, (mesh, bad)


assert len(sys.argv) > 2
for i in range(1, len(sys.argv), 2):
    compare(sys.argv[i], sys.argv[i + 1])
