#!/usr/bin/env python3
"""`s2s-pack buckets` against Lhotse's samplers and NeMo's constraints: the same batches in the same order, and the same bounds.

check_batches.py [CASES [SEED]]   MIRROR: a folder with NVIDIA-NeMo+NeMo, whose own choice of a bucket is then asked too
"""
import json
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

try:
    import numpy as np
    from lhotse.cut import MonoCut
    from lhotse.dataset import DynamicBucketingSampler, DynamicCutSampler
    from lhotse.dataset.sampling.dynamic_bucketing import FixedBucketBatchSizeConstraint, estimate_duration_buckets
except ImportError as e:
    print("skip: no", e.name)
    sys.exit(0)

warnings.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/oracle/packing"))
from check_peers import functions  # noqa: E402

BIN = Path(os.environ.get("S2S_BIN", ROOT / "bin"))


def cut(i, duration, n_tokens):
    c = MonoCut(id=str(i), start=0, duration=duration, channel=0)
    c.n_tokens = n_tokens
    return c


class TwoLengths(FixedBucketBatchSizeConstraint):
    """Which bucket NeMo's FixedBucketBatchSizeConstraint2D takes for a cut: its rule, in other words."""
    strict = True

    def __post_init__(self):
        pass

    def measure_length(self, example):
        return example.duration, example.n_tokens

    def select_bucket(self, buckets, example=None, example_len=None):
        seconds, tokens = example_len or self.measure_length(example)
        fits = [i for i, (s, t) in enumerate(self.max_seq_len_buckets) if seconds <= s]
        if fits and self.strict:
            fits = [i for i in fits if self.max_seq_len_buckets[i][0] == self.max_seq_len_buckets[fits[0]][0]]
        fits = [i for i in fits if tokens <= self.max_seq_len_buckets[i][1]]
        return fits[0] if fits else None


class OneLength(FixedBucketBatchSizeConstraint):
    pass


def batches_of(sampler):
    return [[int(c.id.split("_")[0]) for c in batch] for batch in sampler]


def all_ranks(make, world):
    """Batches of the ranks in turn, as one list."""
    ranks = [batches_of(make(rank)) for rank in range(world)]
    return [b for turn in zip(*ranks) for b in turn]


def ours(lines, *args):
    done = subprocess.run([BIN / "s2s-pack", "buckets", "-q", "--json", *map(str, args)], input="".join(lines), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{args}: {done.stderr}")
    return json.loads(done.stdout)


def fail(*what):
    print(*what, sep="\n")
    sys.exit(1)


def check(rng):
    n, world, seed = rng.choice([1, 7, 60, 400]), rng.choice([1, 1, 2, 3]), rng.randrange(1000)
    durations = [rng.choice([rng.randrange(1, 40) / 2, rng.lognormvariate(1, 0.8)]) for _ in range(n)]
    tokens = [rng.randrange(0, 60) for _ in range(n)]
    cuts = [cut(i, d, t) for i, (d, t) in enumerate(zip(durations, tokens))]
    drop_last, shuffle, quadratic = rng.random() < 0.4, rng.random() < 0.6, rng.choice([None, None, 15.0])
    bound, args = {}, ["--bins-multiple", world, "--seed", seed]
    if rng.random() < 0.8:
        bound["max_duration"] = rng.choice([5.0, 20.0, 60.0, 200.5])
        args += ["--batch-duration", bound["max_duration"]]
    if not bound or rng.random() < 0.3:
        bound["max_cuts"] = rng.choice([1, 3, 8])
        args += ["--batch-size", bound["max_cuts"]]
    if quadratic and "max_duration" in bound:
        args += ["--quadratic", quadratic]
    else:
        quadratic = None
    args += ["--drop-last"] if drop_last else []
    common = dict(seed=seed, drop_last=drop_last, world_size=world)
    kind = rng.choice(["order", "given", "estimated", "sizes", "two", "lenient"])
    lines = [f"{d!r}\n" for d in durations]
    if kind == "order":
        make = lambda rank: DynamicCutSampler(cuts, rank=rank, quadratic_duration=quadratic, **bound, **common)
        got = ours(lines, *args)
    else:
        buffer = rng.choice([5, 50, 1000])
        held = rng.choice([1, 40]) if shuffle else 0
        args += ["--bucket-buffer", buffer] + (["--shuffle", held] if shuffle else [])
        common.update(shuffle=shuffle, buffer_size=buffer + held)
        n_buckets = rng.choice([2, 3, 6])
        if kind == "estimated" and n_buckets <= n:
            bins = [float(b) for b in estimate_duration_buckets(cuts, n_buckets)]
            got = ours(lines, *args, "--buckets", n_buckets)
            if got["bounds"] != bins:
                fail(f"bounds of {durations}", bins, got["bounds"])
            make = lambda rank: DynamicBucketingSampler(cuts, rank=rank, num_buckets=n_buckets, quadratic_duration=quadratic, **bound, **common)
        elif kind in ("given", "estimated"):
            bins = sorted({rng.randrange(1, 40) / 2 for _ in range(n_buckets)})
            got = ours(lines, *args, "--buckets", ",".join(map(str, bins)))
            make = lambda rank: DynamicBucketingSampler(cuts, rank=rank, duration_bins=bins, quadratic_duration=quadratic, **bound, **common)
        else:
            args = [a for a in args]
            for name in ("--batch-duration", "--batch-size", "--quadratic"):
                if name in args:
                    at = args.index(name)
                    del args[at:at + 2]
            if kind == "sizes":
                bins = sorted({rng.randrange(1, 40) / 2 for _ in range(n_buckets)})
                text = ",".join(map(str, bins)) + ("" if len(bins) > 1 else "," + str(bins[0] + 1))
                bins = [float(b) for b in text.split(",")]
            else:
                bins = sorted({(rng.randrange(1, 8) * 2.5, rng.randrange(5, 60)) for _ in range(n_buckets)})
                text = ",".join(f"{s}:{t}" for s, t in bins)
                lines = [f"{d!r} {t}\n" for d, t in zip(durations, tokens)]
                args += ["--lenient-buckets"] if kind == "lenient" else []
            sizes = [rng.randrange(1, 9) for _ in bins]
            args += ["--buckets", text, "--bucket-sizes", ",".join(map(str, sizes))]

            def constraint():
                c = (OneLength if kind == "sizes" else TwoLengths)(bins, sizes)
                c.strict = kind != "lenient"
                return c
            one = constraint()
            kept = [c for c in cuts if (c.duration <= bins[-1] if kind == "sizes" else one.select_bucket(bins, c) is not None)]
            got = ours(lines, *args)
            make = lambda rank: DynamicBucketingSampler(kept, rank=rank, duration_bins=bins, constraint=constraint(), **common)
    want = all_ranks(make, world)
    if got["batches"] != want:
        at = next((i for i, (a, b) in enumerate(zip(got["batches"], want)) if a != b), min(len(want), len(got["batches"])))
        fail(f"{kind} {args} n {n}", f"batch {at}: got {got['batches'][at:at + 3]}", f"expected {want[at:at + 3]}",
             f"{len(got['batches'])} and {len(want)} batches")
    return kind, len(want)


def check_estimates(rng):
    """Bounds of many lengths: the sum that is cut into parts is numpy's, to its last bit."""
    for n in (10, 130, 1000, 9999):
        sizes = [rng.lognormvariate(1.5, 0.7) for _ in range(n)]
        bins = [float(b) for b in estimate_duration_buckets([cut(i, d, 0) for i, d in enumerate(sizes)], 7)]
        got = ours([f"{d!r}\n" for d in sizes], "--estimate", "--buckets", 7)["bounds"]
        if got != bins:
            fail(f"bounds of {n} lengths", bins, got)


def check_choice(rng):
    """The rule restated above is NeMo's."""
    import bisect
    scope = functions("NVIDIA-NeMo+NeMo", "nemo/collections/common/data/lhotse/sampling.py", ["find_smallest_bucket"],
                      {"np": np, "bisect_left": bisect.bisect_left})
    if scope is None:
        return "its rule of two lengths as restated here"
    for _ in range(3000):
        bins = sorted({(rng.randrange(1, 5) * 2.5, rng.randrange(5, 60)) for _ in range(rng.choice([1, 3, 8]))})
        one, lens = TwoLengths(bins, [1] * len(bins)), (rng.randrange(1, 30) / 2, rng.randrange(0, 70))
        for strict in (True, False):
            one.strict = strict
            want = scope["find_smallest_bucket"](np.asarray(bins), lens, strict=strict)
            if one.select_bucket(bins, example_len=lens) != want:
                fail(f"{bins} {lens} strict {strict}: {want}")
    return "its rule of two lengths from NeMo"


def main():
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 5)
    kinds = {}
    check_estimates(rng)
    rule = check_choice(rng)
    for _ in range(cases):
        kind, n = check(rng)
        kinds[kind] = kinds.get(kind, 0) + n
    print("batches equal:", ", ".join(f"{k} {n}" for k, n in sorted(kinds.items())) + ";", rule)


if __name__ == "__main__":
    main()
