"""The peer of chain_bench.c: lhotse on one thread, from a NeMo manifest to samples or log-mel features at 16 kHz.

    python peer_audio.py MANIFEST pcm|mel        prints the seconds of a processor that it took, imports left out
"""
import json
import sys
import time

import torch
from lhotse import Fbank, FbankConfig, Recording


def main():
    manifest, form = sys.argv[1:]
    torch.set_num_threads(1)
    extractor = Fbank(FbankConfig(sampling_rate=16000, num_mel_bins=80)) if form == "mel" else None
    start = time.process_time()
    for line in open(manifest):
        cut = Recording.from_file(json.loads(line)["audio_filepath"]).to_cut()
        if cut.sampling_rate != 16000:
            cut = cut.resample(16000)
        samples = cut.load_audio()
        if extractor is not None:
            extractor.extract(samples, 16000)
    print(time.process_time() - start)


if __name__ == "__main__":
    main()
