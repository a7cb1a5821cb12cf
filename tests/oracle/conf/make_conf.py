#!/usr/bin/env python3
"""Makes scalars.json and the .json beside each case: what PyYAML and OmegaConf read.

Needs PyYAML and omegaconf. Run in this folder.
"""
import glob
import json
import math

import yaml
from omegaconf import OmegaConf

SCALARS = """~ null Null NULL nULL yes Yes YES yEs no No NO on On ON off Off OFF true True TRUE tRUE false False y n Y N none None
0 1 -1 +1 00 010 -010 +017 08 0o17 0b101 -0b11 0b 0b2 0x1F 0xfF -0x10 0x 0xg 1_000 1__0 _1 1_ 0_1 12e03 685_230.15
1e5 1e-5 1e+5 1E5 1.e5 1.0e5 1.0e+5 1.5e-3 1.5E3 -1e3 +1e3 1e 1e- 1.5e 1. -1. +1.5 .5 -.5 +.5 .5e5 .5e+5 .5e-5 . .. 1.2.3 1_0.5 1_.5 1_0e5 1__0e5 1_e5
.inf -.inf +.inf .Inf .INF .nan .NaN .NAN .nAN inf nan Infinity
1:30 1:30:00 -1:30 01:30 1:60 190:20:30.15 1:30. 00:03:50:00 0:30 1:5:7 1:5x 2024-01-01 2024-01-01T00:00:00Z
9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809 123456789012345678901234567890 0xFFFFFFFFFFFFFFFF
<< = - -- -a a-b a_b 1a 0a 1.0.0 v1.0 1,000 100% 3/4 +a +- 1+1 ${a.b} 0.1 1e400 -0 -0.0 0.0 0e0""".split()


def plain(value):
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def kind(value):
    return {type(None): "null", bool: "bool", int: "int", float: "float"}.get(type(value), "string")


def main():
    rows = []
    for text in SCALARS:
        try:
            omega = OmegaConf.to_container(OmegaConf.create("k: " + text), resolve=False)["k"]
        except Exception:  # OmegaConf itself fails on it
            continue
        rows.append({"text": text, "kind": kind(omega), "value": plain(omega),
                     "pyyaml": kind(yaml.safe_load("k: " + text)["k"])})
    with open("scalars.json", "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    for path in sorted(glob.glob("*.yaml")):
        with open(path) as source:
            value = yaml.safe_load(source)
        with open(path[:-5] + ".json", "w") as out:
            json.dump(value, out, indent=1)
            out.write("\n")


if __name__ == "__main__":
    main()
