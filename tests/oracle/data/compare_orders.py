"""Are the samples of each orders/NAME.yaml drawn in the order of orders/NAME.txt, which make_orders.py had from NeMo and Lhotse?

    compare_orders.py    in a folder that make_data.py filled, with s2s-pack in PATH
"""
import glob
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "packing"))
import naive  # noqa: E402


def texts_of(path):
    texts = []
    for _, meta in naive.read_stream(path)[1]:
        texts += json.loads(meta["texts"]) if isinstance(meta["texts"], str) else meta["texts"]
    return texts


def main():
    failed = 0
    tokenizer = os.path.join(HERE, "..", "..", "..", "demo", "tokenizer.json")
    configs = sorted(glob.glob(os.path.join(HERE, "orders", "*.yaml")))
    for config in configs:
        with open(config[:-len("yaml")] + "txt") as f:
            want = f.read().split("\n")[:-1]
        finite = "force_finite: true" in open(config).read()
        subprocess.run(["s2s-pack", "-q", "--input-cfg", config, "--tokenizer", tokenizer, "--batch-size", "100000", "--audio", "none",
                        "-o", "order.s2s"] + ([] if finite else ["--samples", str(len(want))]), check=True)
        got = texts_of("order.s2s")
        if got != want:
            failed += 1
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            print(f"{os.path.basename(config)}: sample {at}: {got[at:at + 3]}, where NeMo has {want[at:at + 3]} ({len(got)}, {len(want)})")
    print(f"{len(configs) - failed} orders equal")
    return failed > 0 or len(configs) == 0


if __name__ == "__main__":
    sys.exit(main())
