#!/usr/bin/env python3
"""s2s-pack and s2s-cpshard against naive.py on random cases. Plain Python.

check_packing.py [CASES [SEED]]   (800 and 1) exit 0: no difference, 1: the first one is shown
"""
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import naive

BIN = os.environ.get("S2S_BIN") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../bin")


def run(*args, data=None):
    done = subprocess.run([os.path.join(BIN, args[0]), *map(str, args[1:])], input=data, capture_output=True)
    return done.returncode, done.stdout, done.stderr.decode()


def fail(*what):
    print(*what, sep="\n")
    sys.exit(1)


def check_bins(rng):
    cap = rng.choice([5, 16, 17, 100, 1000])
    multiple = rng.choice([1, 1, 1, 4])
    n = rng.choice([1, 2, 8, 30, 120, 300])
    shape = rng.random()
    top = max(1, int(cap // multiple * multiple * (1 if shape < .5 else .5 if shape < .7 else .2)))
    lens = [rng.randint(1, top) for _ in range(n)]
    rounded = [naive.up(x, multiple) for x in lens]
    min_bins, bins_multiple = rng.choice([(0, 1), (0, 1), (3, 1), (0, 4), (5, 3)])
    name = rng.choice(["concatenative", "ffd", "mffd", "bfd", "ff_shuffle"])
    seed = rng.randint(0, 10**6)
    if name == "ff_shuffle":
        order = list(range(n))
        random.Random(seed).shuffle(order)
        bins = naive.first_fit(order, rounded, cap)
    else:
        bins = getattr(naive, name)(rounded, cap)
    bins = naive.constrain(bins, min_bins, bins_multiple)
    args = ["s2s-pack", "bins", "--json", "--algorithm", name, "--tokens", cap, "--multiple", multiple, "--seed", seed,
            "--min-bins", min_bins, "--bins-multiple", bins_multiple]
    rc, out, err = run(*args, data="\n".join(map(str, lens)).encode())
    if bins is None:
        if rc != 1 or "E_TOO_FEW" not in err:
            fail(f"{args}: E_TOO_FEW expected, exit {rc}", err)
    elif rc != 0 or json.loads(out)["bins"] != bins:
        fail(f"{args} lens {lens}", f"exit {rc} {err}", f"got      {out.decode()}", f"expected {bins}")


def check_dynamic(rng):
    dp, tokens = rng.choice([1, 1, 2, 4]), rng.choice([8, 20, 100, 1000])
    lens = [rng.randint(0, tokens) for _ in range(dp * rng.choice([1, 3, 10, 40]))]
    rounded, width = rng.choice([1, 1, 4]), rng.choice([0, 0, tokens])
    want = naive.dynamic(lens, tokens, dp, rounded, width)
    args = ["s2s-pack", "batches", "--json", "--tokens", tokens, "--dp", dp, "--round", rounded]
    args += ["--width", width] if width else []
    rc, out, err = run(*args, data="\n".join(map(str, lens)).encode())
    if (rc == 0) != (want is not None):
        fail(f"{args} {lens}", f"exit {rc} {err}", f"expected {want}")
    got = want and [(m["length"], m["ranks"]) for m in json.loads(out)["batches"][0]]
    if got != want:
        fail(f"{args} {lens}", f"got {got}", f"expected {want}")


def random_row(rng, pad):
    ids = [rng.choice([pad, 7, 8, 9, 50]) for _ in range(rng.choice([1, 1, 2, 3, 5, 8, 20]))]
    ids = [pad] * rng.choice([0, 0, 1, 3]) + ids
    mask = [rng.randint(0, 1) for _ in ids]
    clips = [(p, rng.choice([0, 1, 2, 3, 7, 40])) for p in range(len(ids)) if rng.random() < .2]
    if rng.random() < .03:
        clips.append((rng.choice([len(ids), 0]), 2))
    if rng.random() < .02:
        ids, mask, clips = [], [], []
    return ids, mask, sorted(clips)


# around the divisor, one token, and one long row (what breaks packing elsewhere)
def edge_rows(rng, cp, pad):
    lens = [1, 2 * cp - 1, 2 * cp, 2 * cp + 1, rng.choice([1, 700])]
    rng.shuffle(lens)
    return [([5] * n, [1] * n, []) for n in lens]


def check_layout(rng, folder):
    pad, cp, tp = rng.choice([0, 0, 3]), rng.choice([1, 1, 2, 3, 4]), rng.choice([1, 1, 2, 3, 4, 6])
    strict = rng.random() < .3
    rows = edge_rows(rng, cp, pad) if rng.random() < .2 else [random_row(rng, pad) for _ in range(rng.randint(1, 5))]
    path = os.path.join(folder, "packs.s2s")
    lines = "".join(json.dumps({"id": f"u{i}", "input_ids": ids, "loss_mask": mask,
                                "audio": [{"pos": p, "frames": f} for p, f in clips]}) + "\n"
                    for i, (ids, mask, clips) in enumerate(rows))
    args = ["s2s-pack", "-q", "--ids", "-", "--batch-size", len(rows), "--pad-id", pad, "--cp", cp, "--tp", tp, "-o", path]
    args += ["--strict-sp"] if strict else []
    keep = rng.random() < .5
    args += rng.choice([[], ["--pad-labels", "keep"]]) if keep else ["--pad-labels", "drop"]
    rc, _, err = run(*args, data=lines.encode())
    try:
        want = naive.salm(rows, pad, cp, tp, strict, keep)
    except naive.Reject as why:
        if rc != 1 or str(why) not in err or os.path.exists(path):
            fail(f"{args}", lines, f"{why} expected, exit {rc}: {err}")
        return
    if rc != 0:
        fail(f"{args}", lines, f"exit {rc}: {err}")
    (got, meta), = naive.read_stream(path)[1]
    if got != want or json.loads(meta["ids"]) != [f"u{i}" for i in range(len(rows))]:
        fail(f"{args}", lines, *(f"{k}: got {got.get(k)} expected {want[k]}" for k in want if got.get(k) != want[k]))
    check_ranks(folder, path, want, cp)
    os.remove(path)


def check_other_layout(rng, folder):
    pad, cp, name = rng.choice([0, 3]), rng.choice([1, 1, 2, 3]), rng.choice(["rl", "mcore", "sft"])
    rows = edge_rows(rng, cp, pad) if rng.random() < .2 else [random_row(rng, pad) for _ in range(rng.randint(1, 5))]
    path = os.path.join(folder, "packs.s2s")
    lines = "".join(json.dumps({"id": f"u{i}", "input_ids": ids, "loss_mask": mask,
                                "audio": [{"pos": p, "frames": f} for p, f in clips]}) + "\n"
                    for i, (ids, mask, clips) in enumerate(rows))
    args = ["s2s-pack", "-q", "--ids", "-", "--batch-size", len(rows), "--layout", name, "--pad-id", pad, "--cp", cp,
            "-o", path]
    unit = 2 * cp if cp > 1 else 1
    try:
        if name == "rl":
            least = unit * rng.choice([0, 0, 10, 100])
            args += ["--min-seq-len", least]
            want = naive.rl(rows, pad, cp, least)
        elif name == "mcore":
            each, multiple, fixed = unit * rng.choice([1, 4]), unit * rng.choice([0, 1, 8]), unit * rng.choice([0, 0, 16, 96])
            fixed = naive.up(fixed, multiple or 1)
            args += ["--multiple", each] + (["--pack-multiple", multiple] if multiple else [])
            args += ["--pack-to", fixed] if fixed else []
            want = naive.mcore(rows, pad, each, multiple, fixed)
        else:
            fixed = unit * rng.choice([0, 0, 16, 96])
            args += ["--pack-to", fixed] if fixed else []
            want = naive.sft(rows, pad, cp, fixed)
    except naive.Reject as why:
        rc, _, err = run(*args, data=lines.encode())
        if rc != 1 or str(why) not in err or os.path.exists(path):
            fail(f"{args}", lines, f"{why} expected, exit {rc}: {err}")
        return
    rc, _, err = run(*args, data=lines.encode())
    if rc != 0:
        fail(f"{args}", lines, f"exit {rc}: {err}")
    (got, _), = naive.read_stream(path)[1]
    if got != want:
        fail(f"{args}", lines, *(f"{k}: got {got.get(k)} expected {want.get(k)}" for k in want | got if got.get(k) != want.get(k)))
    check_ranks(folder, path, want, cp)
    os.remove(path)


def check_ranks(folder, path, want, cp):
    rc, _, err = run("s2s-cpshard", "--cp", cp, "-o", os.path.join(folder, "cp%r.s2s"), path)
    if rc != 0:
        fail(f"cpshard: exit {rc}: {err}")
    ranks = [os.path.join(folder, f"cp{r}.s2s") for r in range(cp)]
    seen = []
    for r, name in enumerate(ranks):
        (got, _), = naive.read_stream(name)[1]
        index = naive.cp_index(want.get("cu_seqlens_padded", want["cu_seqlens"]), cp, r)
        seen += index
        for key in want:
            cut = key in ("input_ids", "labels", "position_ids", "loss_mask")
            expected = [want[key][i] for i in index] if cut else want[key]
            if got[key] != expected:
                fail(f"rank {r} of {cp}: {key}: got {got[key]}", f"expected {expected}")
    if sorted(seen) != list(range(want.get("cu_seqlens_padded", want["cu_seqlens"])[-1])):
        fail("a slot is lost or doubled")
    joined = os.path.join(folder, "joined.s2s")
    rc, _, err = run("s2s-cpshard", "--join", "-o", joined, *reversed(ranks))
    if rc != 0 or open(joined, "rb").read() != open(path, "rb").read():
        fail(f"join: exit {rc}: {err}")
    for name in ranks + [joined]:
        os.remove(name)


def main():
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 800
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(cases):
            check_bins(rng)
        for _ in range(cases // 4):
            check_dynamic(rng)
        for _ in range(cases // 2):
            check_layout(rng, folder)
            check_other_layout(rng, folder)
    print(f"{cases} sets of lengths, {cases // 2} batches: no difference")


if __name__ == "__main__":
    main()
