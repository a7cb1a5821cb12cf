"""compare_hf.py PROGRAM PATH EXPECTED.hf.json: `ls --json --sha256 PATH` must give exactly the converted tensors of EXPECTED."""
import json
import subprocess
import sys

program, path, expected = sys.argv[1:4]
want = json.load(open(expected, encoding="utf-8"))["tensors"]
got = {t["name"]: t for t in json.loads(subprocess.run([program, "ls", "--json", "--sha256", path], check=True, capture_output=True).stdout)["tensors"]}
bad = ["only %s: %s" % ("expected" if k in want else "written", k) for k in sorted(set(want) ^ set(got))]
bad += ["%s: %s is %r, expected %r" % (k, f, got[k][f], want[k][f]) for k in sorted(set(want) & set(got)) for f in ("dtype", "shape", "sha256") if got[k][f] != want[k][f]]
print("\n".join(bad[:40]) if bad else "%d tensors as expected" % len(got))
sys.exit(bool(bad))
