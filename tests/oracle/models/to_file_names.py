#!/usr/bin/env python3
"""to_file_names.py DIR: gives gradients and parameters in expected.safetensors and expected.json, which have the names of transformers'
memory, those of files: `backbone.` for a NemotronH's `model.`, a tensor an expert. Tolerances of a stack are those of each of its experts."""
import json
import os
import sys

from safetensors.torch import load_file, save_file

from check_decoders import as_in_files

path = sys.argv[1]
file = os.path.join(path, "expected.safetensors")
tensors, renamed = load_file(file), {}
with open(os.path.join(path, "expected.json")) as f:
    expected = json.load(f)
table, limits = expected["tolerance"], {}
for name, tensor in tensors.items():
    begin, found, end = name.partition("/llm.")
    names = [(begin + found + n, t) for n, t in as_in_files("nemotron_h", end, tensor)] if found else [(name, tensor)]
    renamed.update(names)
    limits.update({n: table[name] for n, _ in names if name in table})
save_file({n: t.contiguous() for n, t in renamed.items()}, file)
expected["tolerance"] = limits
with open(os.path.join(path, "expected.json"), "w") as f:
    json.dump(expected, f, indent=1)
    f.write("\n")
