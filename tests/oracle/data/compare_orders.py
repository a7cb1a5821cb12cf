"""Are the samples of each orders/NAME.yaml drawn in the order of orders/NAME.txt, which make_orders.py had from NeMo and Lhotse?

    compare_orders.py            in a folder that make_data.py filled, with s2s-pack in PATH
    compare_orders.py F.s2s..    prints what is said in each sample of these
"""
import glob
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "packing"))
import naive  # noqa: E402

TOKENIZER = os.path.join(HERE, "..", "..", "..", "demo", "tokenizer.json")


def letters():
    """The bytes that the ids of demo/tokenizer.json stand for, in the code of byte-level BPE."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    code = {chr(b): b for b in plain}
    code.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)})
    with open(TOKENIZER) as f:
        return {i: code[t] for t, i in json.load(f)["model"]["vocab"].items() if t in code}


def texts_of(path):
    """(all that is said, the text) of each sample."""
    byte_of, texts = letters(), []
    for tensors, meta in naive.read_stream(path)[1]:
        at = 0
        said = json.loads(meta["texts"]) if isinstance(meta["texts"], str) else meta["texts"]
        for text, n in zip(said, tensors["seq_lens_padded"]):
            row = tensors["input_ids"][at:at + n]
            texts.append((bytes(byte_of[i] for i in row if i in byte_of).decode(), text))
            at += n
    return texts


def joined(text):
    return "".join(text.split())


def main():
    failed = 0
    configs = sorted(glob.glob(os.path.join(HERE, "orders", "*.yaml")))
    for config in configs:
        with open(config[:-len("yaml")] + "txt") as f:
            want = f.read().split("\n")[:-1]
        finite = "force_finite: true" in open(config).read()
        subprocess.run(["s2s-pack", "-q", "--input-cfg", config, "--tokenizer", TOKENIZER, "--batch-size", "100000", "--audio", "none",
                        "-o", "order.s2s"] + ([] if finite else ["--samples", str(len(want))]), check=True)
        got, want = texts_of("order.s2s"), [line for line in want if line]
        if any("\t" in line for line in want):  # all that is said, else the text
            got, want = [joined(said) for said, _ in got], [joined(line) for line in want]
        else:
            got = [text for _, text in got]
        if got != want:
            failed += 1
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            print(f"{os.path.basename(config)}: sample {at}: {got[at:at + 3]}, where NeMo has {want[at:at + 3]} ({len(got)}, {len(want)})")
    print(f"{len(configs) - failed} orders equal")
    return failed > 0 or len(configs) == 0


if __name__ == "__main__":
    for said, _ in (sample for path in sys.argv[1:] for sample in texts_of(path)):
        print(said.strip())
    sys.exit(0 if sys.argv[1:] else main())
