#!/usr/bin/env python3
"""`s2s-pack --layout duplex` against its rules restated, and against NeMo's own build_token_channel where a MIRROR has it.

check_duplex.py [CASES [SEED]]   exit 0: no difference, 1: the first one is shown
"""
import json
import math
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import wave
from types import SimpleNamespace

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import naive
from check_peers import functions

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
TOKENIZER = os.path.join(ROOT, "demo", "tokenizer.json")
BIN = os.environ.get("S2S_BIN", os.path.join(ROOT, "bin"))
PAD, BOS, EOS = 0, 1, 2
WORDS = ["hello", "it's", "<|12|>", " ", "me\u00a0", "and\t you", "<|3|> yes", "no", ""]


def frames(seconds, rate, shift):
    samples, hop = round(seconds * rate), round(shift * rate)
    return (samples + hop // 2) // hop


def clean(text):
    return re.sub(r"\s+", " ", re.sub(r"<\|\d+\|>", "", text)).strip()


def channel(cut, roles, ids_of, rate, shift):
    tokens = [PAD] * frames(cut["duration"], rate, shift)
    for s in cut["supervisions"]:
        at = frames(s["start"], rate, shift)
        if s["speaker"] not in roles or at > len(tokens):
            continue
        for i, token in enumerate([BOS] + ids_of[clean(s["text"])]):
            if at + i < len(tokens):
                tokens[at + i] = token
        end = frames(round(s["start"] + s["duration"], 8), rate, shift)
        if end < len(tokens):
            tokens[end] = EOS
    return tokens


def nemo_channel(scope, cut, roles, ids_of, rate, shift):
    supervisions = [SimpleNamespace(speaker=s["speaker"], start=s["start"], end=round(s["start"] + s["duration"], 8), text=clean(s["text"]))
                    for s in cut["supervisions"]]
    tokenizer = SimpleNamespace(bos=BOS, eos=EOS, text_to_ids=lambda text: ids_of[text])
    return scope["build_token_channel"](SimpleNamespace(id="c", duration=cut["duration"], sampling_rate=rate, supervisions=supervisions),
                                        tokenizer, shift, roles, PAD).tolist()


def write_wave(path, n, rate):
    with wave.open(path, "wb") as w:
        w.setnchannels(1), w.setsampwidth(2), w.setframerate(rate)
        w.writeframes(b"".join(struct.pack("<h", int(9000 * math.sin(i * i / 1e5))) for i in range(n)))


def recording(path, n, rate):
    return {"id": path, "sources": [{"type": "file", "channels": [0], "source": path}], "sampling_rate": rate, "num_samples": n,
            "duration": n / rate, "channel_ids": [0]}


def random_cut(rng, i):
    n = rng.randrange(3000, 40000)
    duration = n / 16000
    turns = []
    for k in range(rng.randrange(0, 6)):
        start = round(rng.random() * (duration + 0.2), rng.choice([2, 3, 6]))
        turns.append({"id": f"t{k}", "recording_id": "r", "start": start, "duration": round(rng.random() * duration, 3), "channel": 0,
                      "speaker": rng.choice(["user", "User", "agent", "Assistant", "other"]),
                      "text": " ".join(rng.choice(WORDS) for _ in range(rng.randrange(0, 6)))})
    return {"id": f"c{i}", "type": "MonoCut", "start": 0, "duration": duration, "channel": 0, "supervisions": turns,
            "recording": recording("in.wav", n, 16000), "custom": {"target_audio": recording("out.wav", math.ceil(duration * 22050), 22050)}}


def main():
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 3)
    scope = None
    try:
        import torch
        scope = functions("NVIDIA-NeMo+NeMo", "nemo/collections/speechlm2/data/s2s_dataset.py", ["build_token_channel"],
                          {"torch": torch, "logging": SimpleNamespace(warning=lambda text: None), "compute_num_frames": lambda d, shift, rate: frames(d, rate, shift)})
    except ImportError:
        pass
    os.chdir(tempfile.mkdtemp())
    write_wave("in.wav", 40000, 16000)
    write_wave("out.wav", 56000, 22050)
    cuts = [random_cut(rng, i) for i in range(cases)]
    with open("cuts.jsonl", "w") as f:
        f.writelines(json.dumps(c) + "\n" for c in cuts)
    texts = sorted({clean(s["text"]) for c in cuts for s in c["supervisions"]})
    done = subprocess.run([os.path.join(BIN, "s2s-pack"), "tokenize", "--tokenizer", TOKENIZER, "--json", "--no-special"], check=True,
                          input="\n".join(map(json.dumps, texts)), capture_output=True, text=True)
    ids_of = dict(zip(texts, (r["ids"] if isinstance(r, dict) else r for r in map(json.loads, done.stdout.splitlines()))))
    ids_of[""] = []
    for rate, shift in ((22050, 0.08), (16000, 0.08), (24000, 0.04)):
        subprocess.run([os.path.join(BIN, "s2s-pack"), "-q", "--layout", "duplex", "--cuts", "cuts.jsonl", "--tokenizer", TOKENIZER,
                        "--target-rate", str(rate), "--frame-length", str(shift), "-o", "out.s2s"], check=True, stderr=subprocess.DEVNULL)
        records = naive.read_stream("out.s2s")[1]
        if len(records) != len(cuts):
            sys.exit(f"{len(records)} records of {len(cuts)} cuts")
        for cut, (tensors, meta) in zip(cuts, records):
            for side, roles in (("source", {"user", "User"}), ("target", {"agent", "Assistant"})):
                got = list(tensors[f"{side}_tokens"])
                want = {"as restated": channel(cut, roles, ids_of, rate, shift)}
                if scope:
                    want["NeMo"] = nemo_channel(scope, cut, roles, ids_of, rate, shift)
                for who, tokens in want.items():
                    if got != tokens:
                        sys.exit(f"{json.dumps(cut)}\n{side} at {rate}: got {got}\n{who} {tokens}")
            seconds = [len(tensors["source_pcm"]) / 16000, len(tensors["target_pcm"]) / rate]
            if max(abs(s - cut["duration"]) for s in seconds) > 1 / 16000:
                sys.exit(f"{cut['duration']} s of sound became {seconds}")
            if meta["text"] != " ".join(clean(s["text"]) for s in cut["supervisions"] if s["speaker"] in ("agent", "Assistant")):
                sys.exit(f"{cut}: text {meta['text']!r}")
    print(f"{cases} cuts, their channels equal" + (", NeMo's too" if scope else ""))


if __name__ == "__main__":
    main()
