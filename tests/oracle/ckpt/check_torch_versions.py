"""Checkpoints that several releases of PyTorch write: by torch.distributed.checkpoint from 1 to 4 processes in every way it shards and stores,
and by torch.save. `s2s-ckpt ls --sha256` must list what was saved, `verify` find nothing, or what is no plain tensor be refused by name; what
`convert` makes of them, torch_dist and safetensors, is loaded by the same release and compared again.
The releases: folders (as `pip install --target FOLDER torch==2.5.1` makes them) in S2S_TORCH_VERSIONS, colon-separated; without it those
in build/torch/* and the one that Python itself has. Exit 0 ok, 1 different, 77 none is there."""
import concurrent.futures
import glob
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile

from tool import finish, here, program

PARTS = ("1", "3", "4", "files")  # so many processes, or torch.save; those of the command line instead


def run(*args):
    return subprocess.run([program, *args], capture_output=True, text=True)


def release_of(folder):
    """"2.5.1" of the PyTorch in a folder, or of Python's own"""
    if folder is None:
        found = importlib.util.find_spec("torch")
        folder = os.path.dirname(os.path.dirname(found.origin)) if found else ""
    try:
        with open(os.path.join(folder, "torch/version.py"), encoding="utf-8") as f:
            return re.search(r"__version__ = '([0-9.]+)", f.read()).group(1)
    except (OSError, AttributeError):
        return None


def work(folder, *args):
    env = dict(os.environ, PYTHONWARNINGS="ignore", TORCH_CPP_LOG_LEVEL="ERROR", OMP_NUM_THREADS="1", PYTHONPATH=folder or "")
    done = subprocess.run([sys.executable, os.path.join(here, "torch_worker.py"), *map(str, args)], capture_output=True, text=True, env=env)
    return done.stdout, done.stderr[-1500:] if done.returncode else None


def same(what, path, truth, bad):
    """whether `ls` lists what was saved"""
    out = run("ls", "--json", "--sha256", path)
    if out.returncode:
        bad.append("%s: ls: %s" % (what, out.stderr.strip()))
        return
    listed = json.loads(out.stdout)
    got, want = {t["name"]: [t["shape"], t["sha256"]] for t in listed["tensors"]}, truth["tensors"]
    for k in sorted(set(got) | set(want)):
        if got.get(k) != want.get(k):
            bad.append("%s: %s: %r, PyTorch has %r" % (what, k, got.get(k), want.get(k)))
    objects = sorted(o["name"] for o in listed["objects"])
    if "objects" in truth and objects != truth["objects"]:
        bad.append("%s: objects differ: %s" % (what, sorted(set(objects) ^ set(truth["objects"]))))


def check_refused(what, args, made, text, bad):
    out = run(*args, *([made] if args[0] == "convert" else []))
    if out.returncode != 1 or text not in out.stderr or os.path.exists(made):
        bad.append("%s: %s is not refused as %s: %d: %s" % (what, args[0], text, out.returncode, out.stderr.strip()))


def check(release, path, again, bad):
    """what s2s-ckpt says of a checkpoint; what it makes of it is added to what PyTorch loads again"""
    what = "%s %s" % (release, os.sep.join(path.split(os.sep)[3:]))
    with open(path + ".truth.json", encoding="utf-8") as f:
        truth = json.load(f)
    if "refuse" in truth:
        for args in (["ls", path], ["verify", path], ["convert", "-q", "--to", "safetensors", path], ["convert", "-q", "--to", "torch_dist", path]):
            check_refused(what, args, path + ".refused", truth["refuse"], bad)
        return
    if "lost" in truth:
        check_refused(what, ["convert", "--strict", "--to", "safetensors", path], path + ".refused", truth["lost"], bad)
        return
    same("%s: ls" % what, path, truth, bad)
    out = run("verify", path)
    if out.returncode:
        bad.append("%s: verify: %s" % (what, out.stderr.strip()))
    if not truth["tensors"]:
        return
    out = run("convert", "-q", "--to", "torch_dist", "--files", "2", path, path + ".dist")
    if out.returncode:
        bad.append("%s: convert --to torch_dist: %s" % (what, out.stderr.strip()))
    else:
        (made,) = glob.glob(path + ".dist/iter_*") or [path + ".dist"]
        source = {"source": path} if os.path.exists(os.path.join(path, ".metadata")) else {}
        same("%s: torch_dist" % what, made, {"tensors": truth["tensors"]}, bad)
        again.append(("dist", made, {**truth, **source}))
    out = run("convert", "-q", "--to", "safetensors", path, path + ".safetensors")
    if out.returncode and not ("which safetensors lacks" in out.stderr and not os.path.exists(path + ".safetensors")):
        bad.append("%s: convert --to safetensors: %s" % (what, out.stderr.strip()))
    elif not out.returncode:
        again.append(("safetensors", path + ".safetensors", truth))


def check_release(folder, release, tmp, bad):
    for part in sys.argv[1:] or PARTS:
        os.mkdir(os.path.join(tmp, part))
        _, error = work(folder, *(("files",) if part == "files" else ("save", part)), os.path.join(tmp, part))
        if error:
            bad.append("%s: %s: %s" % (release, part, error))
    truths = sorted(glob.glob(os.path.join(tmp, "**", "*.truth.json"), recursive=True))
    again = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda t: check(release, t[:-len(".truth.json")], again, bad), truths))
    with open(os.path.join(tmp, "again.json"), "w", encoding="utf-8") as f:
        json.dump(again, f)
    out, error = work(folder, "load", f.name)
    bad.extend("%s: %s" % (release, line) for line in ([error] if error else json.loads(out)))
    return len(truths)


def main():
    places = [p for p in os.environ.get("S2S_TORCH_VERSIONS", "").split(os.pathsep) if p]
    places = places or sorted(glob.glob(os.path.join(here, "../../../build/torch/*"))) + [None]
    bad, n, seen = [], 0, []
    for folder in places:
        release = release_of(folder)
        if not release:
            continue
        with tempfile.TemporaryDirectory() as tmp:
            n += check_release(folder, release, tmp, bad)
        seen.append(release)
    finish(seen, bad, "%d checkpoints of PyTorch %%s" % n)


if __name__ == "__main__":
    main()
