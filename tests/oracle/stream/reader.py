#!/usr/bin/env python3
"""Reads any s2s stream, written from doc/FORMAT.md alone: reader.py FILE prints what `s2s-shard view --json FILE` prints, or fails.

Standard library and numpy; a .zst is read through the zstd program. Checked: members and order, every byte of the tar headers and
of padding, safetensors, schema shapes, the end with its digests, and of compressed streams digests and seek table.
"""
import json
import re
import struct
import subprocess
import sys

import numpy as np

from xxh3 import xxh3_64, xxh3_128

DTYPES = {"BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "BF16": "<u2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
          "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8"}


def need(condition, *what):
    if not condition:
        sys.exit("reader.py: " + " ".join(map(str, what)))


def unzstd(data):
    """Section 6: frames, their digests, the seek table."""
    n = struct.unpack_from("<I", data, len(data) - 9)[0]
    tail = len(data) - (8 + 8 * n) - (8 + 8 * n + 9)
    need(tail > 0 and data[tail:tail + 8] == struct.pack("<II", 0x184D2A50, 8 * n), "no digests of the frames")
    need(data[-5:] == struct.pack("<BI", 0, 0x8F92EAB1), "no seek table")
    need(data[tail + 8 + 8 * n:tail + 16 + 8 * n] == struct.pack("<II", 0x184D2A5E, 8 * n + 9), "no seek table")
    at, out = 0, []
    for i in range(n):
        packed, size = struct.unpack_from("<II", data, tail + 16 + 8 * n + 8 * i)
        frame, digest = data[at:at + packed], xxh3_64(data[at:at + packed])
        need(digest in (None, struct.unpack_from("<Q", data, tail + 8 + 8 * i)[0]), "frame", i, "has another digest")
        run = subprocess.run(["zstd", "-dcq"], input=frame, capture_output=True)
        need(run.returncode == 0 and len(run.stdout) == size, "frame", i, "cannot be decoded")
        at, out = at + packed, out + [run.stdout]
    need(at == tail, "the frames do not end where the digests begin")
    return b"".join(out)


def tar_header(name, size):
    field = lambda text, n: text.encode().ljust(n, b"\0")
    make = lambda total: (field(name, 100) + b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % size + b"00000000000\0" + total + b"0" +
                          bytes(100) + b"ustar\00000" + bytes(64) + b"0000000\0" * 2 + bytes(167))
    return make(b"%06o\0 " % sum(make(b" " * 8)))


def members(data):
    at = 0
    while at < len(data):
        name, size = data[at:at + 100].rstrip(b"\0").decode("latin1"), data[at + 124:at + 135]
        need(name and re.fullmatch(b"[0-7]{11}", size), "no tar header at offset", at)
        size = int(size, 8)
        need(data[at:at + 512] == tar_header(name, size), "wrong tar header at offset", at)
        body, end = data[at + 512:at + 512 + size], at + 512 + size + -size % 512
        need(len(body) == size and end <= len(data), "member", name, "at offset", at, "is cut")
        need(not any(data[at + 512 + size:end]), "padding of", name, "is not zero")
        yield name, at + 512, body
        at = end
        if name == "end.safetensors":
            need(data[at:] == bytes(1024), "no two zero blocks behind the end")
            return
    need(False, "the stream ends without end.safetensors")


def once(pairs):
    need(len(dict(pairs)) == len(pairs), "a name twice")
    return dict(pairs)


def safetensors(body):
    need(len(body) >= 8, "no safetensors file")
    n = struct.unpack_from("<Q", body)[0]
    need(n <= min(100_000_000, len(body) - 8), "a safetensors header of", n, "bytes")
    header, data, at = json.loads(body[8:8 + n].decode(), object_pairs_hook=once), body[8 + n:], 0
    meta, tensors = header.pop("__metadata__", {}), {}
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        count = int(np.prod([int(d) for d in t["shape"]], dtype=object))
        need(begin == at and end - begin == count * np.dtype(DTYPES[t["dtype"]]).itemsize, "tensor", name, "is out of place")
        tensors[name], at = (t["dtype"], t["shape"], np.frombuffer(data, DTYPES[t["dtype"]], count, begin), begin + 8 + n), end
    need(at == len(data) and all(type(v) is str for v in meta.values()), "tensors do not fill the data")
    return meta, tensors


def check_schema(schema, tensors, i):
    letters = {}
    for name, want in schema.items():
        need(name in tensors, "record", i, "has no", name)
        dtype, shape = tensors[name][:2]
        need(dtype == want["dtype"] and len(shape) == len(want["shape"]), "record", i, name, "is", dtype, shape)
        for have, size in zip(shape, want["shape"]):
            letter, plus = re.fullmatch(r"([A-Za-z]*)\+?(\d*)", str(size)).groups()
            fixed = letters.setdefault(letter, have - int(plus or 0)) if letter else 0
            need(have == fixed + int(plus or 0), "record", i, name, "has size", have, "for", size)


def read(data):
    if data[:4] == b"\x28\xb5\x2f\xfd":
        data = unzstd(data)
    header, records, found = None, [], []
    for name, offset, body in members(data):
        if header is None:
            need(name == "header.json", "the first member is", name)
            header, digest = json.loads(body.decode(), object_pairs_hook=once), xxh3_128(body)
            need(header["format"] == "s2s" and header["version"] == 1, "not version 1 of s2s")
        elif name == "end.safetensors":
            meta, end = safetensors(body)
            at = end["self"][3]
            need(xxh3_64(body[:at] + bytes(8) + body[at + 8:]) in (None, int(end["self"][2][0])), "the end has another digest")
            listed = list(zip(*(end[key][2].tolist() for key in ("offset", "size", "xxh3"))))
            need(int(meta["records"]) == len(listed) == len(found), "the end lists", len(listed), "of", len(found), "records")
            need(meta["header"] == (digest or meta["header"]), "header.json has another digest")
            need(len(json.loads(meta["inputs"])) == len(header["provenance"]), "inputs and provenance differ in length")
            for i, (have, want) in enumerate(zip(found, listed)):
                need(have[:2] == want[:2] and have[2] in (None, want[2]), "record", i, "is not the one that the end lists")
        else:
            i = len(records)
            need(name == "%08d.safetensors" % i, "member", name, "where record", i, "should be")
            meta, tensors = safetensors(body)
            check_schema(header["schema"], tensors, i)
            records.append((meta, tensors))
            found.append((offset, len(body), xxh3_64(body)))
    return header, records


def values(dtype, x):
    if dtype == "BF16":
        x = (x.astype("<u4") << 16).view("<f4")
    name = lambda v: "NaN" if v != v else "Infinity" if v > 0 else "-Infinity"
    return [name(v) if isinstance(v, float) and not np.isfinite(v) else v for v in x.tolist()]


def view(header, records):
    return {"kind": header["kind"], "records": [
        {"index": i, "metadata": meta, "tensors": {n: {"dtype": d, "shape": s, "data": values(d, x)} for n, (d, s, x, _) in t.items()}}
        for i, (meta, t) in enumerate(records)]}


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        json.dump(view(*read(file.read())), sys.stdout)
