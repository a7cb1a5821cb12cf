#!/usr/bin/env python3
"""Features of `s2s-encode --features mel` against the Parakeet feature extractor of transformers, on noise, tones, silence and speech of odd lengths.

Exit 0 when all agree, 1 when not, 77 without torch and transformers.
"""
import io, json, os, subprocess, sys, tarfile, tempfile, wave

try:
    import numpy as np
    import torch
    from safetensors.numpy import load
    from transformers import ParakeetFeatureExtractor
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
ENCODE = os.path.join(os.environ.get("S2S_BIN", os.path.join(ROOT, "bin")), "s2s-encode")


def clips(rng):
    with wave.open(f"{ROOT}/tests/oracle/parakeet_features/hello-world.wav") as f:
        speech = np.frombuffer(f.readframes(f.getnframes()), np.int16)
    for n in (320, 321, 479, 480, 2559, 2560, 2561, 16000, 48123, 160 * 16 * 5 - 1):
        t = np.arange(n) / 16000
        yield f"noise{n}", (rng.standard_normal(n) * 3000).astype(np.int16)
        yield f"tone{n}", (12000 * np.sin(2 * np.pi * 440 * t)).astype(np.int16)
        yield f"speech{n}", np.resize(speech, n).astype(np.int16)
    yield "loud", np.where(rng.random(20000) < 0.5, 32767, -32768).astype(np.int16)


def main():
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for mels in (80, 128):
            extractor = ParakeetFeatureExtractor(feature_size=mels)
            with open(f"{folder}/preprocessor_config.json", "w") as f:
                json.dump(extractor.to_dict(), f)
            every = list(clips(np.random.default_rng(mels)))
            paths = []
            for name, x in every:
                paths.append(f"{folder}/{name}.wav")
                with wave.open(paths[-1], "wb") as f:
                    f.setnchannels(1), f.setsampwidth(2), f.setframerate(16000), f.writeframes(x.tobytes())
            out = subprocess.run([ENCODE, "--features", "mel", "--config", f"{folder}/preprocessor_config.json", *paths, "-o", "-"],
                                 capture_output=True, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(out)) as tar:
                records = [load(tar.extractfile(m).read()) for m in tar if m.name[:8].isdigit()]
            assert len(records) == len(every)
            for (name, x), record in zip(every, records):
                want = extractor(x.astype(np.float32) / 32768, sampling_rate=16000)
                frames = int(want["attention_mask"][0].sum())
                want = want["input_features"][0, :frames].numpy()
                difference = np.abs(record["mel"] - want).max() if record["mel"].shape == want.shape else np.inf
                # a bin that hardly moves is divided by a small deviation: two frames may differ by more
                if not difference < (1e-3 if frames > 10 else 2e-2):
                    bad += 1
                    print(name, mels, record["mel"].shape, want.shape, difference)
            print(f"{mels} mels: {len(every)} clips, {bad} differ")
    return bad > 0


sys.exit(main())
