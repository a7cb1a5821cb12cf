#!/usr/bin/env python3
"""Shar that lhotse writes, as `s2s-pack --shar` reads it: cuts in lhotse's order, with its samples and texts."""
import gzip
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

try:
    import lhotse
    import numpy as np
    import soundfile as sf
    from lhotse import CutSet, Recording, SupervisionSegment
    from lhotse.shar import SharWriter
except ImportError as e:
    print("skip: no", e.name)
    sys.exit(0)

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(os.environ.get("S2S_BIN", ROOT / "bin"))
sys.path.insert(0, str(ROOT / "tests/oracle/packing"))
import naive

warnings.filterwarnings("ignore")
N, SHARD = 23, 5
rng = np.random.default_rng(11)


def make(folder, form):
    Path(folder).mkdir()
    cuts = []
    for i in range(N):
        n = int(rng.integers(4000, 9000))
        for name in ("in", "out"):
            sf.write(f"{name}{i}.wav", (rng.integers(-8000, 8000, n) / 32768).astype("f4"), 16000)
        r = Recording.from_file(f"in{i}.wav", recording_id=f"r{i}")
        cut = r.to_cut().with_id(f"sub/c.{i}" if i % 3 == 0 else f"c{i}")
        cut.supervisions = [SupervisionSegment(id=f"s{i}", recording_id=r.id, start=0, duration=r.duration, text=f"text {i}", language="en", speaker="p")]
        if i % 4 != 1:
            cut.target_audio = Recording.from_file(f"out{i}.wav", recording_id=f"t{i}")
        if i % 2:
            cut = cut.truncate(offset=0.05, duration=0.15, preserve_id=True)
        cuts.append(cut)
    with SharWriter(folder, fields={"recording": form, "target_audio": "wav"}, shard_size=SHARD) as w:
        for c in cuts:
            w.write(c)
    # a field of lines, of which every third cut has no value
    for k in range((N + SHARD - 1) // SHARD):
        with gzip.open(f"{folder}/note.{k:06d}.jsonl.gz", "wt") as f:
            for c in cuts[k * SHARD:(k + 1) * SHARD]:
                i = int(c.id.split("c")[-1].strip("."))
                print(json.dumps({"cut_id": c.id, **({"note": f"n{i}"} if i % 3 else {})}), file=f)


def packed(*args):
    subprocess.run([BIN / "s2s-pack", "-q", *map(str, args), "--tokenizer", ROOT / "demo/tokenizer.json", "--batch-size", "1", "-o", "o.s2s"], check=True)
    out = []
    for tensors, meta in naive.read_stream("o.s2s")[1]:
        pcm = np.array(tensors["audio_pcm"])
        out.append((json.loads(meta["ids"])[0], json.loads(meta["texts"])[0], pcm / 32768 if pcm.dtype.kind == "i" else pcm))
    return out


def differs(got, cuts, load, exact=True):
    bad = 0
    if [g[0] for g in got] != [c.id for c in cuts]:
        print("order:", [g[0] for g in got], "lhotse:", [c.id for c in cuts])
        return 1
    for (id, text, pcm), c in zip(got, cuts):
        want = load(c)[0]
        if text != c.supervisions[0].text or len(pcm) != len(want) or (exact and np.abs(pcm - want).max() > 0):
            print(id, text, len(pcm), len(want))
            bad += 1
    return bad


def main():
    os.chdir(tempfile.mkdtemp())
    bad = n = 0
    for form in ("flac", "wav"):
        make(form, form)
        cuts = list(CutSet.from_shar(in_dir=form))
        bad += differs(packed("--shar", form), cuts, lambda c: c.load_audio())
        n += len(cuts)
    files = {f: sorted(str(p) for p in Path("flac").glob(f + ".*")) for f in ("cuts", "recording", "target_audio", "note")}
    # a choice of fields, by names
    bad += differs(packed("--shar", "cuts=flac/cuts.{000000..000004}.jsonl.gz", "recording=flac/recording.{000000..000004}.tar"),
                   list(CutSet.from_shar(fields={k: files[k] for k in ("cuts", "recording")})), lambda c: c.load_audio())
    # a custom recording, of which some cuts have none
    with_target = [c for c in CutSet.from_shar(in_dir="flac") if c.has_custom("target_audio")]
    bad += differs(packed("--shar", "flac", "--audio-field", "target_audio", "--bad", "skip"), with_target, lambda c: c.load_custom("target_audio"))
    # shards shuffled, epoch after epoch
    shuffled = CutSet.from_shar(in_dir="flac", shuffle_shards=True, seed=5)
    Path("cfg.yaml").write_text("- {type: lhotse_shar, shar_path: flac, shard_seed: 5}\n")
    two = list(shuffled) + list(shuffled)
    bad += differs(packed("--input-cfg", "cfg.yaml", "--samples", 2 * N), two, lambda c: c.load_audio())
    # a slice of each shard
    sliced = list(CutSet.from_shar(in_dir="flac", shuffle_shards=True, seed=5, slice_length=2))
    Path("cfg.yaml").write_text("- {type: lhotse_shar, shar_path: flac, shard_seed: 5, slice_length: 2}\n")
    bad += differs(packed("--input-cfg", "cfg.yaml", "--samples", len(sliced)), sliced, lambda c: c.load_audio())
    # what s2s-shard writes, as lhotse reads it
    for form in ("pcm", "flac"):
        subprocess.run([BIN / "s2s-pack", "-q", "--shar", "flac", "--tokenizer", ROOT / "demo/tokenizer.json", "--tokens", "200", "--algorithm", "concatenative",
                        "--audio", form, "-o", "p.s2s"], check=True)
        subprocess.run([BIN / "s2s-shard", "export", "-q", "--to", "shar", "--shard-size", "4", "-o", "written-" + form, "p.s2s"], check=True)
        got = [(c.id, c.supervisions[0].text, c.load_audio()[0]) for c in CutSet.from_shar(in_dir="written-" + form)]
        bad += differs(got, list(CutSet.from_shar(in_dir="flac")), lambda c: c.load_audio())
        bad += differs(packed("--shar", "written-" + form), list(CutSet.from_shar(in_dir="written-" + form)), lambda c: c.load_audio())
    print(f"{n} cuts in two forms, fields by name, a custom recording, shuffled and sliced shards, ours read by lhotse: {bad} differ; lhotse {lhotse.__version__}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
