"""The program under test, and the folder of these scripts."""
import importlib.util
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
program = os.path.join(os.environ.get("S2S_BIN", os.path.join(here, "../../../bin")), "s2s-ckpt")


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
