"""The program under test, the folder of these scripts, and what was found bad so far."""
import importlib.util
import os
import subprocess
import sys

here = os.path.dirname(os.path.abspath(__file__))
program = os.path.join(os.environ.get("S2S_BIN", os.path.join(here, "../../../bin")), "s2s-ckpt")
bad = []


def has(name):
    """Is there a library of that name? One that is there and cannot be imported is an error of the script that wants it, no reason to skip."""
    parts = name.split(".")
    return all(importlib.util.find_spec(".".join(parts[:n])) for n in range(1, len(parts) + 1))


def need(*names):
    """Ends the script with 77 where a library is absent."""
    for name in names:
        if not has(name):
            print("no Python package %s" % name)
            sys.exit(77)


def finish(releases, wrong, what):
    """Ends a script over releases of a library: 77 where none was there, 1 with what was wrong, else with what agrees."""
    if not releases:
        sys.exit(77)
    print("\n".join(wrong[:400]) if wrong else "%s as they have them" % (what % ", ".join(releases)))
    sys.exit(bool(wrong))


def run(*words):
    return subprocess.run([program, *words], capture_output=True, text=True)


def need_ok(what, *words):
    p = run(*words)
    if p.returncode:
        bad.append("%s: %s: %s" % (what, " ".join(words), p.stderr.strip()[:400]))
    return p.returncode == 0


def convert(what, *words):
    """s2s-ckpt convert --strict, which must go well"""
    return need_ok(what, "convert", "-q", "--strict", *words)


def compare(what, got, want):
    """Tensors of torch by name: bit for bit, with their dtypes and shapes."""
    import torch
    for key in sorted(set(got) | set(want)):
        g, w = got.get(key), want.get(key)
        if g is None or w is None:
            bad.append("%s: %s: %s" % (what, key, "absent" if g is None else "not wanted"))
        elif g.dtype != w.dtype or g.shape != w.shape:
            bad.append("%s: %s: %s %s, expected %s %s" % (what, key, g.dtype, list(g.shape), w.dtype, list(w.shape)))
        elif not torch.equal(g, w):
            bad.append("%s: %s: other values" % (what, key))
