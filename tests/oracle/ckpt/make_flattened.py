"""make_flattened.py OUT: optimizer state as Megatron-Core up to 0.15 stores it, flattened, in grids and ranges of any kind: OUT/a and OUT/b
hold the same parameters cut differently, OUT/want.safetensors their values in their own shapes. Plain Python with numpy."""
import json
import os
import struct
import sys

import numpy as np
from mini_writer import write

KEY = "optimizer.state.exp_avg.%s"
random = np.random.default_rng(7)
# key -> shape, grids of a and b
CASES = {"row": ((12, 10), (4, 1), (1, 1)), "column": ((12, 10), (1, 5), (1, 2)), "both": ((12, 10), (3, 2), (2, 5)),
         "layers": ((3, 8, 6), (3, 2, 1), (3, 1, 3)), "experts": ((2, 4, 6, 5), (2, 4, 2, 1), (2, 4, 1, 5)), "norm": ((7,), (1,), (7,)),
         "many": ((2, 3, 2, 3, 4), (1, 1, 1, 1, 1), (2, 1, 1, 3, 2)), "scalar": ((), (), ())}


def flattened(values, grid, n_ranges):
    """(stored shape, chunks): each cell of the grid row-major on the last axis, cut into ranges that mind no row"""
    local = [n // g for n, g in zip(values.shape, grid)]
    numel, chunks = int(np.prod(local)), []
    for cell in np.ndindex(*grid):
        flat = values[tuple(slice(c * n, (c + 1) * n) for c, n in zip(cell, local))].reshape(-1)
        cuts = sorted({0, numel} | set(random.integers(0, numel + 1, n_ranges - 1).tolist()))
        for begin, end in zip(cuts, cuts[1:]):
            chunks.append((list(cell) + [begin], [1] * len(cell) + [end - begin], flat[begin:end].tobytes()))
    random.shuffle(chunks)
    return list(grid) + [numel], chunks


out, tensors = sys.argv[1], {k: random.standard_normal(shape).astype(np.float32) for k, (shape, _, _) in CASES.items()}
os.makedirs(out)
for folder, which, n_ranges in (("a", 1, 3), ("b", 2, 6)):
    made = [(KEY % k, "float32", *flattened(v, CASES[k][which], n_ranges)) for k, v in tensors.items()]
    write(os.path.join(out, folder), made, mcore_data={KEY % k: v.shape for k, v in tensors.items()}, common=b"}")
header, at = {}, 0
for k, v in tensors.items():
    header[KEY % k] = {"dtype": "F32", "shape": list(v.shape), "data_offsets": [at, at + v.nbytes]}
    at += v.nbytes
text = json.dumps(header).encode()
with open(os.path.join(out, "want.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values()))
