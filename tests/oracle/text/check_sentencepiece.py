#!/usr/bin/env python3
"""Ids and texts of a bare tokenizer.model against the sentencepiece package, on random lines of every Unicode block.

    check_sentencepiece.py [LINES [SEED]]       default 20000 lines for each model

Models are trained here: BPE with byte fallback as Llama 2 has it, and without, Unigram with the normalizations nmt_nfkc and identity, with control
and user-defined symbols. From 0.2 on the package adds scores in another precision than Debian's library, and cuts long runs of the same signs at
other places: a line in ten may differ then. With --golden FOLDER a small model and its ids are written for the tool's test. Exit 0 when nothing differs, 1 when
something does, 77 without the package.
"""
import io, json, os, random, subprocess, sys, tempfile

try:
    import sentencepiece
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PACK = os.path.join(os.environ.get("S2S_BIN", os.path.join(ROOT, "bin")), "s2s-pack")
SETTINGS = {
    "llama2": dict(model_type="bpe", byte_fallback=True, split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False, vocab_size=800),
    "bpe": dict(model_type="bpe", user_defined_symbols=["<user>"], control_symbols=["<control>"], vocab_size=500),
    "unigram": dict(model_type="unigram", normalization_rule_name="nmt_nfkc", pad_id=3, vocab_size=500),
    "unigram bytes": dict(model_type="unigram", byte_fallback=True, add_dummy_prefix=False, normalization_rule_name="nfkc_cf", vocab_size=800),
}


def corpus():
    with open(f"{ROOT}/tests/oracle/tokenizer_spbpe_llama2/strings.json") as f:
        lines = [s["text"].replace("\0", "").replace("\n", " ") for s in json.load(f)]
    return [x for x in lines if x.strip()] + ["the quick brown fox jumps over the lazy dog and then there is more to say"] * 20


def random_line(rng, texts):
    parts = []
    for _ in range(rng.randint(1, 8)):
        if rng.random() < 0.6:
            words = rng.choice(texts).split(" ")
            parts.append(" ".join(rng.choice(words) for _ in range(rng.randint(1, 5))))
        else:
            row = rng.choice([r for r in range(0x1100) if not 0xD8 <= r < 0xE0])
            parts.append("".join(chr(row * 256 + rng.randrange(256)) for _ in range(rng.randint(1, 4))))
        parts.append(rng.choice(["", " ", "  ", "\n", "<user>", "<s>", "<control>"]))
    return "".join(parts).replace("\0", "")


def run(path, lines, *options):
    out = subprocess.run([PACK, "tokenize", "--json", "--tokenizer", path, *options], input="".join(json.dumps(x) + "\n" for x in lines).encode(), capture_output=True)
    if out.returncode:
        sys.exit(f"s2s-pack: {out.stderr.decode()}")
    return [json.loads(x) for x in out.stdout.decode().split("\n") if x]


def main():
    golden = sys.argv.pop(sys.argv.index("--golden") + 1) if "--golden" in sys.argv else None
    args = [a for a in sys.argv[1:] if a != "--golden"]
    n, seed = int(args[0]) if args else 20000, int(args[1]) if len(args) > 1 else 1
    texts, bad = corpus(), 0
    for name, options in SETTINGS.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=model, hard_vocab_limit=False, character_coverage=0.98, minloglevel=2, **options)
        peer = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        rng = random.Random(f"{seed} {name}")
        lines = [random_line(rng, texts) for _ in range(n)]
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/tokenizer.model", "wb") as f:
                f.write(model.getvalue())
            ids = peer.encode(lines)
            differ = [i for i, x in enumerate(run(folder, lines)) if x["ids"] != ids[i]]
            decoded = peer.decode(ids)
            differ += [i for i, x in enumerate(run(folder, [{"ids": x} for x in ids], "--decode")) if x != decoded[i]]
        print(f"{name}: {n} lines, {len(differ)} differences")
        for i in differ[:3]:
            print("   ", ascii(lines[i]), ids[i], ascii(decoded[i]))
        other_sums = options["model_type"] == "unigram" and sentencepiece.__version__ >= "0.2"
        bad += len(differ) > n / 10 if other_sums else len(differ)
        if golden and name == "llama2":
            os.makedirs(golden, exist_ok=True)
            with open(f"{golden}/tokenizer.model", "wb") as f:
                f.write(model.getvalue())
            with open(f"{golden}/strings.json", "w") as f:
                json.dump([{"text": t, "ids": i, "decoded": d} for t, i, d in zip(lines, ids, decoded) if len(i) < 60][:20], f, separators=(",", ":"))
    return bad > 0


sys.exit(main())
