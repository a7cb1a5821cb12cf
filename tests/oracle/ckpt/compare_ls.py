"""compare_ls.py PROGRAM NAME EXPECTED.json: `ls --json --sha256 NAME` must give exactly the tensors and objects of EXPECTED."""
import json
import subprocess
import sys

program, name, expected = sys.argv[1:4]
want = json.load(open(expected, encoding="utf-8"))
got = json.loads(subprocess.run([program, "ls", "--json", "--sha256", name], check=True, capture_output=True).stdout)
bad = []
tensors = {t["name"]: t for t in got["tensors"]}
if [t["name"] for t in got["tensors"]] != sorted(tensors):
    bad.append("tensors are not sorted by name, or a name is there twice")
for key in sorted(set(want["tensors"]) ^ set(tensors)):
    bad.append("%s: only %s" % (key, "expected" if key in want["tensors"] else "listed"))
for key in sorted(set(want["tensors"]) & set(tensors)):
    for field in ("dtype", "shape", "sha256", "n_chunks", "orig_shape", "orig_sha256"):
        w = want["tensors"][key].get(field)
        if w is not None and tensors[key].get(field) != w:
            bad.append("%s: %s is %r, expected %r" % (key, field, tensors[key].get(field), w))
objects = {o["name"]: o for o in got["objects"]}
for key in sorted(set(want["objects"]) ^ set(objects)):
    bad.append("object %s: only %s" % (key, "expected" if key in want["objects"] else "listed"))
for key in sorted(set(want["objects"]) & set(objects)):
    w, o = want["objects"][key], objects[key]
    if "sha256" in w and (o.get("sha256"), o.get("bytes")) != (w["sha256"], w["n"]):
        bad.append("object %s: %r, expected %r" % (key, o, w))
    if "sha256" not in w and isinstance(w.get("value"), (str, int, float, type(None))) and o.get("value") != w["value"]:
        bad.append("object %s: %r, expected %r" % (key, o.get("value"), w["value"]))
print("\n".join(bad[:40]) if bad else "%s: %d tensors, %d objects as expected" % (got["format"], len(tensors), len(objects)))
sys.exit(bool(bad))
