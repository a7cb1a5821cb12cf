#!/usr/bin/env python3
"""check_safetensors.py [S2S_SHARD]: the safetensors library opens our records and sees what `s2s-shard view` shows; what it writes is
taken as a record. Exit 77 where the library is not there."""
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile

try:
    import numpy as np
    import safetensors
    import safetensors.numpy
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
SHARD = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.environ.get("S2S_BIN", os.path.join(HERE, "../../../bin")), "s2s-shard")
n = 0
for name in sorted(os.listdir(os.path.join(HERE, "good"))):
    path = os.path.join(HERE, "good", name)
    if name.endswith(".zst") or name == "embed_bf16.s2s":  # numpy has no bfloat16
        continue
    # cat of two writes the end with our own writer; records are checked against view
    with tempfile.TemporaryDirectory() as folder:
        both = os.path.join(folder, "both.s2s")
        subprocess.run([SHARD, "cat", path, path, "-o", both], check=True)
        shown = json.loads(subprocess.check_output([SHARD, "view", "--json", both]))
        tar = tarfile.open(both)
        for record in shown["records"]:
            body = tar.extractfile("%08d.safetensors" % record["index"]).read()
            tensors = safetensors.numpy.load(body)
            assert tensors.keys() == record["tensors"].keys(), name
            for key, t in record["tensors"].items():
                want = np.array([float(v) if isinstance(v, str) else v for v in t["data"]], tensors[key].dtype).reshape(t["shape"])
                np.testing.assert_array_equal(want, tensors[key])
            where = os.path.join(folder, "r")
            with open(where, "wb") as file:
                file.write(body)
            with safetensors.safe_open(where, "np") as opened:
                assert (opened.metadata() or {}) == record["metadata"], name
            n += 1
        safetensors.numpy.load(tar.extractfile("end.safetensors").read())
print(n, "records opened")
sys.exit(n == 0)
