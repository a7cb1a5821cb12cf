"""Checkpoints of random pieces (mcore_pieces_worker.py says of which) that several releases of megatron-core write from 1 to 4 processes:
`s2s-ckpt ls --sha256` must list what they hold, `verify` find nothing; what `reshard` and `convert` make of them is loaded by the same release,
by other pieces. check_mcore_pieces.py [SEEDS [FIRST]]: so many a release (12). Releases as in check_mcore_versions.py.
Exit 0 ok, 1 different, 77 none is there."""
import os
import sys
import tempfile

import check_mcore_versions as versions
from tool import finish

versions.DTYPES.update({"torch.int16": "I16", "torch.int8": "I8", "torch.float8_e4m3fn": "F8_E4M3", "torch.float8_e5m2": "F8_E5M2",
                        "torch.complex64": "C64", "torch.complex128": "C128", "torch.uint16": "U16", "torch.uint32": "U32", "torch.uint64": "U64",
                        "torch.float8_e4m3fnuz": "F8_E4M3FNUZ", "torch.float8_e5m2fnuz": "F8_E5M2FNUZ", "torch.float8_e8m0fnu": "F8_E8M0"})


def check_release(work, release, seeds, tmp, bad):
    for world in range(1, 5):
        cases = [dict(seed=s, path=os.path.join(tmp, "s%d" % s)) for s in seeds if s % 4 + 1 == world]
        error = work("save", world, cases)
        if error:
            bad.append("%d.%d: %d processes: %s" % (*release, world, error))
            continue
        for c in cases:
            versions.check_saved("%d.%d seed %d" % (*release, c["seed"]), c["path"], bad)
        for out, how in ((".reshard", {}), (".convert", {"whole": True})):
            there = [dict(c, path=versions.whole(c["path"] + out), **how) for c in cases if os.path.isdir(c["path"] + out)]
            error = work("load", world, there)
            if error:
                bad.append("%d.%d: %d processes, what was %s: %s" % (*release, world, out[1:], error))


def main():
    n, first = [int(a) for a in sys.argv[1:3] + ["12", "0"][len(sys.argv) - 1:]]
    bad, seen = [], []
    for folder, release in versions.releases():
        with tempfile.TemporaryDirectory() as tmp, versions.Worker(folder, "mcore_pieces_worker.py") as work:
            check_release(work, release, range(first, first + n), tmp, bad)
        seen.append("%d.%d" % release)
    finish(seen, bad, "%d checkpoints of pieces by each megatron-core of %%s" % n)


if __name__ == "__main__":
    main()
