#!/usr/bin/env python3
"""s2s-pack against the packers of its neighbours, run from their own sources: NeMo-RL's bins, packed rows of
Megatron-core and dynamic batches, Automodel's THD vectors, NeMo's packed SFT records.

check_peers.py [CASES [SEED]]   MIRROR: a folder with bare repositories OWNER+NAME/repo, or checkouts OWNER+NAME.
What is not there is said and passed over. exit 0: no difference, 1: the first one is shown
"""
import ast
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import naive
from check_packing import fail, random_row, run

MIRROR = os.environ.get("MIRROR", "")


def source(repo, path):
    folder = os.path.join(MIRROR, repo)
    if os.path.exists(os.path.join(folder, path)):
        return open(os.path.join(folder, path)).read()
    done = subprocess.run(["git", "--git-dir", os.path.join(folder, "repo"), "show", "HEAD:" + path],
                          capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def functions(repo, path, names, scope):
    """Runs the named functions of a file in a scope of ours, which stands in for what the file imports."""
    text = source(repo, path)
    if text is None:
        return None
    tree = ast.parse(text)
    wanted = [n for n in tree.body if getattr(n, "name", None) in names]
    if len(wanted) != len(names):
        return None
    for n in ast.walk(ast.Module(wanted, [])):  # annotations name what is not imported here
        if isinstance(n, ast.FunctionDef):
            n.returns = None
            for a in n.args.args + n.args.kwonlyargs:
                a.annotation = None
    exec(compile(ast.Module(wanted, []), path, "exec"), scope)
    return scope


def check_bins(rng, cases):
    scope = {"__name__": "peer"}
    text = source("NVIDIA-NeMo+RL", "nemo_rl/data/packing/algorithms.py")
    if text is None:
        return "NeMo-RL's bins"
    exec(compile(text, "algorithms.py", "exec"), scope)
    for _ in range(cases):
        cap, n = rng.choice([5, 16, 100, 1000]), rng.choice([1, 8, 30, 200])
        lens = [rng.randint(1, rng.choice([cap, cap // 2 or 1, cap])) for _ in range(n)]
        least, multiple = rng.choice([(None, None), (3, None), (None, 4), (4, 4)])
        for name, ours in [("concatenative", "concatenative"), ("first_fit_decreasing", "ffd"),
                           ("modified_first_fit_decreasing", "mffd")]:
            packer = scope["get_packer"](name.upper(), cap, min_bin_count=least, bin_count_multiple=multiple)
            try:
                want = packer.pack(lens)
            except ValueError:
                want = None
            args = ["s2s-pack", "bins", "--json", "--algorithm", ours, "--tokens", cap, "--min-bins", least or 0,
                    "--bins-multiple", multiple or 1]
            rc, out, err = run(*args, data="\n".join(map(str, lens)).encode())
            if (rc == 0) != (want is not None) or (want is not None and json.loads(out)["bins"] != want):
                fail(f"{args} {lens}", f"exit {rc} {err}", f"got {out.decode()}", f"expected {want}")
    return None


def rows_file(rows):
    return "".join(json.dumps({"id": f"u{i}", "input_ids": ids, "loss_mask": mask,
                               "audio": [{"pos": p, "frames": f} for p, f in clips]}) + "\n"
                   for i, (ids, mask, clips) in enumerate(rows)).encode()


def text_rows(rng, most=40):
    rows = []
    for _ in range(rng.randint(1, 5)):
        n = rng.randint(2, most)
        rows.append(([rng.randint(1, 90) for _ in range(n)], [rng.randint(0, 1) for _ in range(n)], []))
    return rows


def packs(folder, rows, *args):
    path = os.path.join(folder, "peer.s2s")
    rc, _, err = run("s2s-pack", "-q", "--ids", "-", *args, "-o", path, data=rows_file(rows))
    if rc != 0:
        fail(f"{args}", f"exit {rc}: {err}")
    return naive.read_stream(path)[1]


def check_mcore(rng, cases, folder):
    import torch
    from types import SimpleNamespace

    names = ["_pack_sequences_for_megatron", "_get_pack_sequence_parameters_for_megatron"]
    scope = {"torch": torch, "PackedSeqParams": lambda **k: SimpleNamespace(**k), "Optional": None,
             "_round_up_to_multiple": naive.up}
    scope["_get_tokens_on_this_cp_rank"] = lambda x, rank, cp, seq_dim: x[
        torch.tensor(naive.cp_index([0, len(x)], cp, rank), dtype=torch.long)]
    if functions("NVIDIA-NeMo+RL", "nemo_rl/models/megatron/data.py", names, scope) is None:
        return "NeMo-RL's packs for Megatron-core"
    for _ in range(cases):
        rows, cp, tp = text_rows(rng), rng.choice([1, 2, 4]), rng.choice([1, 2])
        recipe = rng.choice([None, "blockwise", "mxfp8", "delayed"])
        config = dict(tensor_model_parallel_size=tp, sequence_parallel=tp > 1, context_parallel_size=cp,
                      pipeline_model_parallel_size=rng.choice([1, 2]), fp8_cfg={"enabled": bool(recipe), "fp8_recipe": recipe})
        lens = [len(r[0]) for r in rows]
        unit = (2 * cp if cp > 1 else 1) * tp
        each, multiple, fixed = scope[names[1]](config, unit * rng.choice([1, 2]), sum(lens) + unit * 2 * len(lens) * 2)
        if fixed:
            fixed = naive.up(fixed, unit)
        ids = torch.zeros(len(rows), max(lens), dtype=torch.long)
        for i, r in enumerate(rows):
            ids[i, :lens[i]] = torch.tensor(r[0])
        args = ["--layout", "mcore", "--batch-size", len(rows), "--cp", cp, "--tp", tp, "--strict-sp", "--multiple", each]
        args += ["--pack-multiple", multiple] if multiple > 1 else []
        args += ["--pack-to", fixed] if fixed else []
        (got, _), = packs(folder, rows, *args)
        for rank in range(cp):
            whole, local, params, cu, cup = scope[names[0]](ids, torch.tensor(lens), each, multiple, fixed, rank, cp)
            index = naive.cp_index(got["cu_seqlens_padded"], cp, rank)
            want = dict(input_ids=whole[0].tolist(), cu_seqlens=cu.tolist(), cu_seqlens_padded=cup.tolist(),
                        max_seqlen=[params.max_seqlen_q])
            for key, value in want.items():
                if got[key] != value:
                    fail(f"{args} {rows}", f"{key}: got {got[key]}", f"expected {value}")
            if [got["input_ids"][i] for i in index] != local[0].tolist():
                fail(f"{args} {rows} rank {rank}: {local}")
    return None


def check_thd(rng, cases, folder):
    import torch

    scope = {"torch": torch}
    names = ["process_input_for_thd", "_thd_padding_mask", "thd_padding_mask_from_token_ids"]
    if functions("NVIDIA-NeMo+Automodel", "nemo_automodel/components/distributed/thd_utils.py", names, scope) is None:
        return "Automodel's THD vectors"
    for _ in range(cases):
        rows, cp = text_rows(rng), rng.choice([1, 2, 4])
        least = (2 * cp if cp > 1 else 1) * rng.choice([0, 8, 64])
        (got, _), = packs(folder, rows, "--layout", "rl", "--batch-size", len(rows), "--cp", cp, "--min-seq-len", least)
        row = lambda key: torch.tensor([got[key]])
        lens = row("seq_lens")
        out = scope[names[0]](dict(input_ids=row("input_ids"), labels=row("labels"), position_ids=row("position_ids"),
                                   seq_lens=lens, seq_lens_padded=row("seq_lens_padded")))
        bounds = out.get("cu_seqlens_padded", out["cu_seqlens"]).tolist()
        if out["cu_seqlens"].tolist() != got["cu_seqlens"] or bounds != got["cu_seqlens_padded"]:
            fail(f"{rows} cp {cp} {least}", f"got {got['cu_seqlens']} {got['cu_seqlens_padded']}", f"expected {out}")
    return None


def check_packed_sft(rng, cases, folder):
    try:
        import collections

        import numpy as np
    except ImportError:
        return "numpy"
    scope = {"np": np, "collections": collections, "tqdm": lambda x, **_: x,
             "logging": type("log", (), {"debug": print, "info": lambda *_: 0, "error": print})}
    names = ["create_hist", "create_packing_strategy", "fill_packing_strategy", "first_fit_decreasing", "first_fit",
             "find_first_bin_that_fits"]
    if functions("NVIDIA-NeMo+NeMo", "nemo/utils/sequence_packing_utils.py", names, scope) is None:
        return "NeMo's packed SFT files"
    scope["logging"].debug = lambda *_: 0
    scope["globals"] = lambda: scope
    path, stream, back = (os.path.join(folder, n) for n in ("nemo.npy", "nemo.s2s", "back.npy"))
    for _ in range(cases):
        rows = text_rows(rng) + text_rows(rng)
        data = [dict(input_ids=ids, loss_mask=mask) for ids, mask, _ in rows]
        sequences, histogram = scope["create_hist"](data, 64)
        bins, _ = scope["create_packing_strategy"](histogram, 64, "first_fit_decreasing")
        packed = scope["fill_packing_strategy"](bins, sequences, 64, 0)
        np.save(path, packed)
        for out, given in [(stream, path), (back, stream)]:
            rc, _, err = run("s2s-pack", "npy", "-q", "-o", out, given)
            if rc != 0:
                fail(f"{given}: exit {rc}: {err}")
        for (got, _), pack in zip(naive.read_stream(stream)[1], packed, strict=True):
            ends = pack["seq_start_id"][1:] + [len(pack["input_ids"])]
            spans = list(zip(pack["seq_start_id"], ends))
            cat = lambda values, a, b: sum((values[s + a:e + b] for s, e in spans), [])
            want = dict(input_ids=cat(pack["input_ids"], 0, -1), labels=cat(pack["input_ids"], 1, 0),
                        loss_mask=[int(x) for x in cat(pack["loss_mask"], 0, -1)],
                        position_ids=sum((list(range(e - s - 1)) for s, e in spans), []),
                        seq_lens=[e - s - 1 for s, e in spans])
            for key, value in want.items():
                if got[key] != value:
                    fail(f"{pack}", f"{key}: got {got[key]}", f"expected {value}")
        if [dict(p) for p in np.load(back, allow_pickle=True)] != packed:
            fail(f"{packed}", f"came back as {np.load(back, allow_pickle=True)}")
    return None


def main():
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    try:
        import torch  # noqa: F401
    except ImportError:
        print("no torch: nothing to compare with")
        return
    with tempfile.TemporaryDirectory() as folder:
        absent = [check_bins(rng, cases), check_mcore(rng, cases, folder), check_thd(rng, cases, folder),
                  check_packed_sft(rng, cases, folder)]
    for what in filter(None, absent):
        print(f"not there: {what}")
    print(f"{cases} cases each of {len(absent) - sum(map(bool, absent))} peers: no difference")


if __name__ == "__main__":
    main()
