#!/usr/bin/env python3
"""check_corpus.py [S2S_SHARD]: good/ is read by s2s-shard and by reader.py alike, bad/ is refused by both, for the reason that
bad/expected.json names, from a file and through a pipe."""
import json
import os
import subprocess
import sys

import numpy as np

sys.dont_write_bytecode = True
import reader  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SHARD = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.environ.get("S2S_BIN", os.path.join(HERE, "../../../bin")), "s2s-shard")
HAVE_ZSTD = subprocess.run(["sh", "-c", "command -v zstd"], capture_output=True).returncode == 0
# what only one who knows the kinds and the zstd frames can see, and what Python's json lets pass
ONLY_OURS = ("record_", "header_", "zst_", "safetensors_half", "safetensors_neg", "safetensors_nul", "safetensors_unknown")
failures = []


def run(*args, stdin=None):
    return subprocess.run(args, capture_output=True, input=stdin, timeout=60)


def read(path):
    """What reader.py prints, or None and why not."""
    try:
        with open(path, "rb") as file:
            return json.loads(json.dumps(reader.view(*reader.read(file.read())))), ""
    except (SystemExit, Exception) as error:  # whatever stops it is a refusal
        return None, repr(error)


def same(a, b):
    """Equal; floats as F32 or BF16 see them."""
    for x, y in zip(a["records"], b["records"]):
        for name, t in x["tensors"].items():
            u = y["tensors"][name]
            if t["dtype"] in ("F32", "BF16"):
                close = [p == q if isinstance(p, str) else np.float32(p) == np.float32(q) for p, q in zip(t["data"], u["data"])]
                if not all(close) or len(t["data"]) != len(u["data"]):
                    return False
                t["data"] = u["data"] = []
    return a == b


def expect(condition, name, what):
    if not condition:
        failures.append("%s: %s" % (name, what))


for name in sorted(os.listdir(os.path.join(HERE, "good"))):
    path = os.path.join(HERE, "good", name)
    data = open(path, "rb").read()
    ours, piped = run(SHARD, "view", "--json", path), run(SHARD, "view", "--json", "-", stdin=data)
    expect(ours.returncode == 0, name, ours.stderr.decode())
    expect(piped.stdout == ours.stdout, name, "a pipe gives something else")
    expect(run(SHARD, "verify", "-q", path).returncode == 0, name, "verify refuses it")
    expect(run(SHARD, "cat", "-", stdin=data).returncode == 0, name, "cat refuses it")
    if HAVE_ZSTD or not name.endswith(".zst"):
        theirs, why = read(path)
        expect(theirs, name, why)
        if theirs and ours.returncode == 0:
            expect(same(json.loads(ours.stdout), theirs), name, "reader.py sees something else")

expected = json.load(open(os.path.join(HERE, "bad", "expected.json")))
for name, says in expected.items():
    path = os.path.join(HERE, "bad", name)
    ours = run(SHARD, "verify", path)
    expect(ours.returncode == 1, name, "exit %d" % ours.returncode)
    expect(says in ours.stderr.decode(), name, "'%s' expected: %s" % (says, ours.stderr.decode().strip()))
    piped = run(SHARD, "verify", "-", stdin=open(path, "rb").read())
    expect(piped.returncode == 1, name, "exit %d through a pipe" % piped.returncode)
    if not name.startswith(ONLY_OURS):
        expect(not read(path)[0], name, "reader.py takes it")

expect(len(os.listdir(os.path.join(HERE, "good"))) >= 10 and len(expected) >= 50, "the corpus", "is not whole")
for failure in failures:
    print(failure)
print("%d good, %d bad, %d failures" % (len(os.listdir(os.path.join(HERE, "good"))), len(expected), len(failures)))
sys.exit(1 if failures else 0)
