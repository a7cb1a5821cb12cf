#!/usr/bin/env python3
"""Cuts of every kind as `s2s-pack --cuts` packs them, against what lhotse's load_audio gives: the same bits where nothing
is resampled, else the same within what another resampler may differ by. And their windows."""
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
    from lhotse import CutSet, MonoCut, MultiCut, Recording, SupervisionSegment
    from lhotse.audio import AudioSource
    from lhotse.cut import PaddingCut
except ImportError as e:
    print("skip: no", e.name)
    sys.exit(0)

ROOT = Path(__file__).resolve().parents[3]
PACK = Path(os.environ.get("S2S_BIN", ROOT / "bin")) / "s2s-pack"
sys.path.insert(0, str(ROOT / "tests/oracle/packing"))
import naive

warnings.filterwarnings("ignore")
RATE = 16000
rng = np.random.default_rng(5)


def voice(seconds, rate, channels=1, low=120):
    """Something like speech: harmonics that come and go, below 3 kHz, so that resamplers agree on it."""
    t = np.arange(round(seconds * rate)) / rate
    out = []
    for c in range(channels):
        f = low * (1 + c) * (1 + 0.05 * np.sin(2 * np.pi * 0.7 * t))
        phase = 2 * np.pi * np.cumsum(f) / rate
        x = sum(np.sin(k * phase) / k for k in range(1, 6)) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * t))
        out.append(0.2 * x)
    return np.stack(out, 1).astype(np.float32)


def recordings():
    made = {}
    for name, rate, channels, seconds, fmt in [
            ("mono", 16000, 1, 3.3, "wav"), ("other", 16000, 1, 2.1, "wav"), ("stereo", 16000, 2, 2.5, "wav"),
            ("float", 16000, 1, 1.7, "wav"), ("cd", 44100, 1, 2.2, "flac"), ("phone", 8000, 1, 2.0, "wav"),
            ("left", 16000, 1, 2.0, "wav"), ("right", 16000, 1, 2.0, "wav"), ("mp3", 16000, 1, 2.0, "mp3")]:
        path = f"{name}.{fmt}"
        sf.write(path, voice(seconds, rate, channels, 100 + 7 * len(made)), rate,
                 subtype="FLOAT" if name == "float" else None)
        made[name] = Recording.from_file(path, recording_id=name)
    # two files, one channel each
    made["pair"] = Recording(id="pair", sources=[AudioSource("file", [0], "left.wav"), AudioSource("file", [1], "right.wav")],
                             sampling_rate=16000, num_samples=32000, duration=2.0, channel_ids=[0, 1])
    return made


def cuts(r):
    """(name, cut, how far it may be) of each kind: 0 where nothing is resampled. Lhotse adds up the energy of several
    channels in the order of its memory, which is not always that of the channels."""
    mono = lambda name, start=0.0, dur=None, ch=0: MonoCut(
        id="x", start=start, duration=dur or r[name].duration, channel=ch, recording=r[name],
        supervisions=[SupervisionSegment(id="s", recording_id=name, start=0, duration=(dur or r[name].duration), text="hello")])
    whole, part, odd = mono("mono"), mono("mono", 0.5, 1.25), mono("mono", 0.123456, 0.987654)
    other = mono("other", 0.2, 1.0)
    yield "whole", whole, 0
    yield "part", part, 0
    yield "odd", odd, 0
    yield "float", mono("float", 0.1, 1.2), 0
    yield "mp3 whole", mono("mp3"), 0
    yield "stereo right", mono("stereo", 0.25, 1.5, 1), 0
    yield "pair right", mono("pair", 0.25, 1.5, 1), 0
    yield "stereo both", MultiCut("x", 0.25, 1.5, [0, 1], recording=r["stereo"], supervisions=whole.supervisions), 0
    yield "pair both", MultiCut("x", 0.5, 1.0, [0, 1], recording=r["pair"], supervisions=whole.supervisions), 0
    # a manifest that says more, or less, than there is
    for name, more in [("longer", 0.3), ("shorter", -0.4), ("a sample", 1 / 16000)]:
        n = r["mono"].num_samples + round(more * 16000)
        said = lhotse.utils.fastcopy(r["mono"], num_samples=n, duration=n / 16000)
        yield "declared " + name, said.to_cut().append(PaddingCut("p", 0.1, 16000, -23, num_samples=1600)).with_id("x"), 0
        yield "plain declared " + name, lhotse.utils.fastcopy(whole, recording=said, duration=said.duration), 0
    # transforms
    yield "volume", whole.perturb_volume(0.3), 0
    yield "volume of a part", odd.perturb_volume(1.7).perturb_volume(0.5), 0
    for f in (0.9, 1.1, 1.05):
        yield f"speed {f}", whole.perturb_speed(f), 2e-3
        yield f"speed {f} of a part", odd.perturb_speed(f), 2e-3
        yield f"speed {f} cut later", whole.perturb_speed(f).truncate(offset=0.4, duration=1.1), 2e-3
    yield "speed and volume", odd.perturb_speed(1.1).perturb_volume(0.5), 2e-3
    yield "resampled up", mono("phone", 0.3, 1.1).resample(16000), 2e-3
    yield "resampled down", mono("cd", 0.3, 1.1).resample(16000), 2e-3
    yield "resampled twice", mono("mono", 0.3, 1.1).resample(8000).resample(16000), 2e-3
    yield "faster, then resampled", mono("cd", 0.3, 1.1).perturb_speed(1.1).resample(16000), 2e-3
    yield "resampled, then faster", mono("cd", 0.3, 1.1).resample(16000).perturb_speed(0.9), 2e-3
    # mixes
    yield "padded", part.pad(2.0), 0
    yield "padded left", part.pad(2.0, direction="left"), 0
    yield "padded both", odd.pad(2.5, direction="both"), 0
    yield "padded to samples", odd.pad(num_samples=30001), 0
    yield "appended", part.append(other), 0
    yield "mixed", part.mix(other, offset_other_by=0.3), 0
    yield "mixed behind the end", part.mix(other, offset_other_by=0.9), 0
    for snr in (10, -3.5, 0):
        yield f"mixed at {snr} dB", part.mix(other, offset_other_by=0.3, snr=snr), 0
    noise = mono("stereo", 0.0, 1.5, 1).mix(other, snr=5)
    yield "padded, mixed and padded", part.pad(1.5).mix(other, snr=7, offset_other_by=0.2).pad(3.0), 0
    yield "mix of a mix", noise.mix(part, offset_other_by=0.4, snr=3), 0
    yield "noise first", other.mix(part, offset_other_by=0.1, snr=4).pad(2.0, direction="left"), 0
    first = lhotse.cut.MixedCut("x", [lhotse.cut.MixTrack(cut=other, offset=0.2, snr=6), lhotse.cut.MixTrack(cut=part, offset=0.1)])
    yield "first track has the snr", first, 0
    muted = lhotse.cut.MixedCut("x", [lhotse.cut.MixTrack(cut=part, offset=0.0), lhotse.cut.MixTrack(cut=whole, offset=0.1, mute=True),
                                      lhotse.cut.MixTrack(cut=other, offset=0.5, snr=3)])
    yield "muted track", muted, 0
    marked = lhotse.cut.MixedCut("x", [lhotse.cut.MixTrack(cut=part, offset=0.0), lhotse.cut.MixTrack(cut=other, offset=0.5, is_snr_reference=True),
                                       lhotse.cut.MixTrack(cut=odd, offset=0.2, snr=3)])
    yield "marked reference", marked, 0
    yield "mix made quieter", part.mix(other, snr=10).perturb_volume(0.25), 0
    yield "mix made faster", part.mix(other, snr=10).perturb_speed(1.1), 2e-3
    yield "stereo mixed with mono", MultiCut("x", 0.25, 1.5, [0, 1], recording=r["stereo"],
                                             supervisions=whole.supervisions).mix(other, snr=3), 1e-6


def joined(cut):
    """MixedCuts speak with all their supervisions, which may overlap here: one is enough."""
    d = cut.to_dict()
    for k, t in enumerate(d.get("tracks", [])):
        if k > 0 or "supervisions" not in t["cut"]:
            t["cut"].pop("supervisions", None)
    if "tracks" in d:
        for t in d["tracks"]:
            if t["type"] != "PaddingCut":
                t["cut"]["supervisions"] = [SupervisionSegment("s", "r", 0, 0.5, text="hello").to_dict()]
                break
    return d


def windows(r):
    """Cuts of several turns, to be cut into windows."""
    turns = lambda name, n, step: [SupervisionSegment(id=f"s{k}", recording_id=name, start=k * step, duration=step * 0.9, text=f"turn{k}")
                                   for k in range(n) if k != 3]
    whole = MonoCut(id="a", start=0.123456, duration=3.1, channel=0, recording=r["mono"], supervisions=turns("mono", 7, 0.43))
    cd = MonoCut(id="c", start=0.2, duration=1.9, channel=0, recording=r["cd"], supervisions=turns("cd", 5, 0.37))
    other = MonoCut(id="b", start=0.2, duration=1.7, channel=0, recording=r["other"], supervisions=turns("other", 5, 0.33))
    both = MultiCut("d", 0.25, 2.1, [0, 1], recording=r["stereo"], supervisions=turns("stereo", 5, 0.4))
    return [whole, cd.resample(16000), whole.perturb_speed(1.1).with_id("f"), other.pad(2.5).with_id("p"), other.append(whole).with_id("q"), both]


def check_windows(r):
    """Windows of cuts against cut_into_windows and truncate of lhotse: what is said, and the sound."""
    all_cuts, n, bad = CutSet.from_cuts(windows(r)), 0, 0
    all_cuts.to_file("long.jsonl")
    all_cuts = CutSet.from_file("long.jsonl").to_eager()
    for how, options in [("0.7", dict(duration=0.7)), ("0.7,0.3", dict(duration=0.7, hop=0.3)), ("0.31,0.5", dict(duration=0.31, hop=0.5)),
                         ("0.8,first", "start"), ("0.8,last", "end")]:
        theirs = (all_cuts.truncate(max_duration=0.8, offset_type=options) if isinstance(options, str)
                  else all_cuts.cut_into_windows(**options))
        want = []
        for c in theirs:
            said = sorted(c.supervisions, key=lambda s: s.start)
            if not said:
                continue
            audio = c.load_audio().astype(np.float32)
            sound = sum(audio[1:], audio[0]) / np.float32(len(audio))
            parts = getattr(c, "tracks", None)
            exact = not any(t.cut.recording.transforms for t in parts if hasattr(t.cut, "recording")) if parts else not c.recording.transforms
            want.append((" ".join(s.text for s in said), sound, 0 if exact else 2e-3))
        subprocess.run([PACK, "-q", "--cuts", "long.jsonl", "--tokenizer", ROOT / "demo/tokenizer.json", "--windows", how,
                        "--bad", "other=skip", "--batch-size", "1000", "-o", "w.s2s"], check=True)
        for tensors, meta in naive.read_stream("w.s2s")[1]:
            cu, pcm = tensors["audio_cu_samples"], np.array(tensors["audio_pcm"], np.float32)
            ids, texts = json.loads(meta["ids"]), json.loads(meta["texts"])
            if len(texts) != len(want):
                print(f"--windows {how}: {len(texts)} samples, lhotse {len(want)}")
                bad += 1
                continue
            for k, (text, sound, may) in enumerate(want):
                got = pcm[cu[k]:cu[k + 1]]
                n += 1
                inner = slice(0, None) if may < 1e-3 else slice(400, -400)
                if texts[k] != text or len(got) != len(sound) or np.abs(got[inner] - sound[inner]).max(initial=0) > may:
                    print(f"--windows {how}: {ids[k]} says {texts[k]!r}, lhotse {text!r}; {len(got)} samples, lhotse {len(sound)}")
                    bad += 1
    return n, bad


def main():
    os.chdir(tempfile.mkdtemp())
    r = recordings()
    n_windows, bad_windows = check_windows(r)
    rows, want, may_differ = [], {}, {}
    for i, (name, cut, may) in enumerate(cuts(r)):
        cut = cut.with_id(f"{i:02d} {name}")
        d = joined(cut)
        rows.append(json.dumps(d))
        audio = CutSet.from_cuts([CutSet.from_dicts([json.loads(rows[-1])]).to_eager()[0]])[0].load_audio()
        if cut.sampling_rate != RATE:
            sys.exit(f"{name}: at {cut.sampling_rate} Hz")
        audio = audio.astype(np.float32)
        mono = audio[0]
        for c in range(1, len(audio)):
            mono = mono + audio[c]
        want[cut.id], may_differ[cut.id] = (mono / np.float32(len(audio)) if len(audio) > 1 else mono), may
    Path("cuts.jsonl").write_text("\n".join(rows) + "\n")
    subprocess.run([PACK, "-q", "--cuts", "cuts.jsonl", "--tokenizer", ROOT / "demo/tokenizer.json",
                    "--tokens", "200", "-o", "o.s2s"], check=True)
    bad, n = 0, 0
    for tensors, meta in naive.read_stream("o.s2s")[1]:
        cu, pcm = tensors["audio_cu_samples"], np.array(tensors["audio_pcm"], np.float32)
        for k, id in enumerate(json.loads(meta["ids"])):
            got, ref = pcm[cu[k]:cu[k + 1]], want.pop(id)
            n += 1
            if len(got) != len(ref):
                print(f"{id}: {len(got)} samples, lhotse {len(ref)}")
                bad += 1
                continue
            inner = slice(0, None) if may_differ[id] < 1e-3 else slice(400, -400)
            worst = float(np.abs(got[inner] - ref[inner]).max())
            if worst > may_differ[id]:
                print(f"{id}: differs by {worst:g} of {np.abs(ref).max():g}, first at {int(np.argmax(np.abs(got - ref) > 0))}")
                bad += 1
    if want:
        print("not packed:", *want)
    print(f"{n} cuts, {sum(not e for e in may_differ.values())} of them bit for bit, {bad} differ; lhotse {lhotse.__version__}")
    print(f"{n_windows} windows, {bad_windows} differ")
    return 1 if bad or want or bad_windows else 0


if __name__ == "__main__":
    sys.exit(main())
