"""The peer of audio_bench.c's log-mel: kaldi-native-fbank on one thread, 80 mels of 12 s of noise at 16 kHz.

    python peer_mel.py        prints a line for Kaldi's features and one for those of NeMo: the best of many runs in hours of audio a second
"""
import time

import kaldi_native_fbank
import numpy

RATE, SECONDS, BUDGET = 16000, 12, 0.5


def best(make, samples):
    """The seconds of the fastest run; all frames are computed as the last samples are accepted."""
    fastest, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < BUDGET:
        fbank, begin = make(), time.perf_counter()
        fbank.accept_waveform(RATE, samples)
        fbank.input_finished()
        fastest = min(fastest, time.perf_counter() - begin)
    assert fbank.num_frames_ready >= 100 * SECONDS - 3
    return fastest


def main():
    samples = (0.1 * numpy.random.default_rng(1).standard_normal(RATE * SECONDS)).astype(numpy.float32).tolist()
    kaldi = kaldi_native_fbank.FbankOptions()
    kaldi.frame_opts.dither, kaldi.mel_opts.num_bins = 0, 80
    nemo = kaldi_native_fbank.NemoFbankOptions()
    nemo.num_mel_bins = 80
    for what, make in (("Kaldi's", lambda: kaldi_native_fbank.OnlineFbank(kaldi)),
                       ("NeMo's", lambda: kaldi_native_fbank.OnlineNemoFbank(nemo))):
        seconds = best(make, samples)
        print(f"{'kaldi-native-fbank, ' + what + ' log-mel 80':<44} {SECONDS / 3600 / seconds:7.2f} h/s  "
              f"({1e6 * seconds / SECONDS:.1f} us a second of audio)")


if __name__ == "__main__":
    main()
