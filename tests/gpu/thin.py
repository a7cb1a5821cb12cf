#!/usr/bin/env python3
"""thin.py LIBRARY OUT ARCH: a library with code for one GPU (90) alone.

What it has for others, PTX too, becomes zeros, which compress to nothing: a library of 250 MB then travels as some 14. Sections
and addresses stay as they are.
"""
import re
import struct
import subprocess
import sys

MAGIC = 0xBA55ED50  # of a container of code for several GPUs


def section(headers, name):
    """Place and length in the file."""
    m = re.search(re.escape(name) + r"\s+\S+\s+[0-9a-f]+\s+([0-9a-f]+)\s+([0-9a-f]+)", headers)
    return (int(m[1], 16), int(m[2], 16)) if m else (0, 0)


def main():
    source, out, keep = sys.argv[1], sys.argv[2], int(sys.argv[3])
    subprocess.run(["strip", "--strip-unneeded", "-o", out, source], check=True)
    headers = subprocess.run(["readelf", "-SW", out], capture_output=True, text=True, check=True).stdout
    data = bytearray(open(out, "rb").read())
    at, length = section(headers, "__nv_relfatbin")  # for linking, which is done
    data[at : at + length] = bytes(length)
    at, length = section(headers, ".nv_fatbin")
    end = at + length
    while at < end - 16:
        magic, _, head, size = struct.unpack_from("<IHHQ", data, at)
        if magic != MAGIC:
            at += 8
            continue
        element, end_of_elements = at + head, at + head + size
        while element < end_of_elements - 32:
            _, _, element_head, element_size = struct.unpack_from("<HHIQ", data, element)
            (arch,) = struct.unpack_from("<I", data, element + 28)
            if arch != keep:
                data[element + element_head : element + element_head + element_size] = bytes(element_size)
            element += element_head + element_size
        at = end_of_elements
    open(out, "wb").write(data)


main()
