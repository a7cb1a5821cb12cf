#!/usr/bin/env python3
"""Holds tensors against a reference, each within its own tolerance.

compare.py GOT REFERENCE EXPECTED_JSON [--mask INPUTS] [--only PREFIX]... [--skip PREFIX]... [--times N]

EXPECTED_JSON has a table "tolerance": name -> {"atol": ..}. Every name of that table (those that
--only and --skip leave) must be in both files, or the comparison fails. Rows of [B, S, ..]
activations are not compared where a mask [B, S] is 0: with --mask the attention_mask of INPUTS,
and output_mask, bshd/attention_mask of REFERENCE where it has them. --times N allows N times the
tolerance. Needs numpy only.
"""
import argparse
import json
import struct
import sys

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
          "I8": "i1", "U8": "u1", "BOOL": "?"}


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        raw = data[8 + size + begin:8 + size + end]
        if t["dtype"] == "BF16":
            wide = np.frombuffer(raw, "<u2").astype("<u4") << 16
            array = wide.view("<f4")
        else:
            array = np.frombuffer(raw, DTYPES[t["dtype"]])
        out[name] = array.reshape(t["shape"])
    return out


def wanted(name, args):
    if args.only and not any(name.startswith(p) for p in args.only):
        return False
    return not any(name.startswith(p) for p in args.skip)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("got")
    parser.add_argument("reference")
    parser.add_argument("expected")
    parser.add_argument("--mask")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--skip", action="append", default=[])
    parser.add_argument("--times", type=float, default=1)
    parser.add_argument("-v", action="store_true")
    args = parser.parse_args()
    got, ref = read(args.got), read(args.reference)
    with open(args.expected) as f:
        table = json.load(f)["tolerance"]
    masks = [read(args.mask)["attention_mask"]] if args.mask else []
    masks += [ref[name] for name in ("output_mask", "bshd/attention_mask") if name in ref]
    names = [n for n in table if wanted(n, args)]
    bad, worst = [], (0.0, "")
    for name in names:
        if name not in got or name not in ref:
            bad.append("%s: absent from the %s" % (name, "output" if name not in got else "reference"))
            continue
        a, b = got[name].astype("f8"), ref[name].astype("f8")
        if a.shape != b.shape:
            bad.append("%s: shape %s, expected %s" % (name, a.shape, b.shape))
            continue
        for mask in masks:
            if a.ndim >= 3 and a.shape[:2] == mask.shape:
                a, b = a[mask.astype(bool)], b[mask.astype(bool)]
        if not np.isfinite(a).all():
            bad.append("%s: not finite" % name)
            continue
        diff = float(np.abs(a - b).max()) if a.size else 0.0
        limit = args.times * table[name]["atol"]
        share = diff / limit if limit else (0.0 if diff == 0 else float("inf"))  # 0: of an expert that no token went to
        worst = max(worst, (share, name))
        if args.v:
            print("%-60s %.2e of %.2e" % (name, diff, limit))
        if not share <= 1:
            bad.append("%s: differs by %.3g; %.3g is allowed" % (name, diff, limit))
    if not names:
        bad.append("nothing to compare")
    for line in bad:
        print(line)
    print("%d tensors, worst %.2f of its tolerance (%s), %d failed"
          % (len(names), worst[0], worst[1], len(bad)))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
