#!/usr/bin/env python3
"""Makes expected.safetensors: noise and a sweep resampled by python-soxr (quality HQ). Needs numpy, soxr, safetensors."""
import os
import numpy as np, soxr
from safetensors.numpy import save_file

rng = np.random.default_rng(3)
tensors = {}
for n, start, stop in (1500, 8000, 16000), (2205, 44100, 16000), (2400, 48000, 16000), (1102, 22050, 16000), (1601, 16000, 8000), (7, 44100, 16000):
    t = np.arange(n) / start
    x = (0.3 * np.sin(2 * np.pi * (200 + 2000 * t / max(t[-1], 1e-9)) * t) + 0.05 * rng.standard_normal(n)).astype(np.float32)
    tensors[f"{start}_{stop}_{n}/in"] = x
    tensors[f"{start}_{stop}_{n}/out"] = soxr.resample(x, start, stop, quality="HQ")
save_file(tensors, os.path.join(os.path.dirname(os.path.abspath(__file__)), "expected.safetensors"), metadata={"made_with": f"soxr {soxr.__version__}"})
