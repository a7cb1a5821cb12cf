#!/usr/bin/env python3
"""Token ids and decoded text of `s2s-pack tokenize` against Hugging Face tokenizers, on random lines of every Unicode block.

    check_tokenizers.py [LINES [SEED]]          default 100000 lines over all settings

The settings are the two tokenizers of tests/oracle/tokenizer_bytelevel_* and variants of them that use every supported part: prefix
space, GPT-2's own pattern, o200k's pattern, Digits, Split with every behaviour, added tokens with every flag. Exit 0 when nothing
differs, 1 when something does, 77 without the library. With --golden FILE it writes a small sample with the ids for the unit test.
"""
import copy, json, os, random, subprocess, sys, tempfile, unicodedata

try:
    import tokenizers
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PACK = os.path.join(os.environ.get("S2S_BIN", os.path.join(ROOT, "bin")), "s2s-pack")
O200K = ("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")


def settings():
    base = {}
    for name in "llama3", "qwen":
        with open(f"{ROOT}/tests/oracle/tokenizer_bytelevel_{name}/tokenizer.json", encoding="utf-8") as f:
            base[name] = json.load(f)
        yield name, base[name]

    def variant(of, **parts):
        tok = copy.deepcopy(base[of])
        tok.update(parts)
        return tok

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

    def sequence(*steps):
        return {"type": "Sequence", "pretokenizers": [*steps, byte_level]}

    def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
        return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}

    yield "gpt2", variant("llama3", pre_tokenizer={**byte_level, "use_regex": True})
    yield "gpt2 prefix", variant("qwen", pre_tokenizer={**byte_level, "use_regex": True, "add_prefix_space": True})
    yield "o200k", variant("qwen", pre_tokenizer=sequence(split(O200K)))
    yield "digits", variant("llama3", pre_tokenizer=sequence({"type": "Digits", "individual_digits": True}))
    yield "digit runs", variant("qwen", pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": False}, {**byte_level, "use_regex": True, "add_prefix_space": True}]})
    for behavior in "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous":
        yield behavior, variant("llama3", pre_tokenizer=sequence(split("\\s|[A-Z]", behavior)))
        yield behavior + " inverted", variant("qwen", pre_tokenizer=sequence(split("[\\w]+", behavior, True), split("\\S", behavior)))
    for pattern in "\\p{Han}+", "\\w+", "\\W+", "\\d{,2}[^\\d]", "\\p{Hangul}?a":
        yield "removed " + pattern, variant("llama3", pre_tokenizer=sequence(split(pattern, "Removed")))
    yield "literal", variant("llama3", pre_tokenizer=sequence(split("e.", "MergedWithNext", kind="String"), split(" ", "MergedWithPrevious", kind="String")))
    flags = []
    for i, content in enumerate(["token", "tok", " two words ", "n\u0303o", "\u00e9", "<a>", "<ab>", "'s", "12", "\u4e2d"]):
        flags.append({"id": 1800 + i, "content": content, "special": i % 2 == 1, "single_word": i % 3 == 0,
                      "lstrip": i % 4 < 2, "rstrip": i % 5 < 2, "normalized": i % 2 == 0})
    for name in "llama3", "qwen":
        # the library gives ids in a row behind the vocabulary
        tok = variant(name)
        first = max(t["id"] for t in tok["added_tokens"]) + 1
        vocab = tok["model"]["vocab"]
        for t in copy.deepcopy(flags):
            t["id"] = vocab.get(t["content"], first)
            first += t["content"] not in vocab
            if not any(t["content"] == o["content"] for o in tok["added_tokens"]):
                tok["added_tokens"].append(t)
        yield name + " added flags", tok


def blocks():
    """Code points of every 256-wide row that has assigned characters, surrogates left out."""
    rows = []
    for row in range(0x1100):
        points = [c for c in range(row * 256, row * 256 + 256) if not 0xD800 <= c < 0xE000]
        named = [c for c in points if unicodedata.category(chr(c)) != "Cn"]
        if named:
            rows.append(points if row < 0x320 or row % 16 == 0 else named)
    return rows


WORDS = ("the quick brown fox I'm you're WE'LL it'S don'T naïve café Zürich 1234567 3.14 x+y= $%^ () \t \r\n \n\n   ... -- token tokens "
         "tok <a> <ab> <abc> two words  two words 中文 漢字 かな 한국어 русский العربية עברית हिन्दी ไทย 'ſ 'S K '\u017f ñ ño n\u0303o e\u0301 "
         "<|audio|> <|im_start|> <|begin_of_text|><|eot_id|> <|end_of_text|> \u00a0 \u2003 \u180e \u200b \u2028 \u0085 😀 👩‍👩‍👧 ﬁ Ⅷ ½ ٣ \x00 \x1f").split(" ")


def random_line(rng, rows):
    parts = []
    kind = rng.random()
    for _ in range(rng.randint(1, 24)):
        if kind < 0.35 or rng.random() < 0.4:
            parts.append(rng.choice(WORDS) + rng.choice(["", " ", " ", "  "]))
        else:
            row = rng.choice(rows)
            parts.append("".join(chr(rng.choice(row)) for _ in range(rng.randint(1, 5))))
    return "".join(parts)


def run(path, lines, *options):
    text = "".join(json.dumps(x) + "\n" for x in lines)
    out = subprocess.run([PACK, "tokenize", "--json", "--tokenizer", path, *options], input=text.encode(), capture_output=True)
    if out.returncode:
        sys.exit(f"s2s-pack: {out.stderr.decode()}")
    return [json.loads(line) for line in out.stdout.decode().split("\n") if line]


def main():
    golden = sys.argv.pop(sys.argv.index("--golden") + 1) if "--golden" in sys.argv else None
    args = [a for a in sys.argv[1:] if a != "--golden"]
    n_lines, seed = int(args[0]) if args else 100000, int(args[1]) if len(args) > 1 else 1
    rows, every = blocks(), list(settings())
    differences = total = 0
    for name, tok in every:
        rng = random.Random(f"{seed} {name}")
        lines = [random_line(rng, rows) for _ in range(n_lines // len(every) + 1)]
        if n_lines >= 20000:  # each character once, alone and between letters
            lines += [chr(c) for row in rows for c in row] if name in ("llama3", "qwen", "gpt2") else []
            lines += ["a" + "".join(map(chr, row[i:i + 16])) + "b 1" for row in rows for i in range(0, len(row), 16)]
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as f:
            json.dump(tok, f)
            f.flush()
            peer = tokenizers.Tokenizer.from_file(f.name)
            ours = run(f.name, lines)
            theirs = [e.ids for e in peer.encode_batch(lines)]
            bad = [i for i, ids in enumerate(theirs) if ours[i]["ids"] != ids]
            plain = run(f.name, lines, "--no-special")
            bad += [i for i, e in enumerate(peer.encode_batch(lines, add_special_tokens=False)) if plain[i]["ids"] != e.ids]
            texts = run(f.name, [{"ids": ids} for ids in theirs], "--decode", "--no-special")
            bad += [i for i, t in enumerate(peer.decode_batch(theirs, skip_special_tokens=True)) if texts[i] != t]
        total += len(lines)
        differences += len(bad)
        print(f"{name}: {len(lines)} lines, {len(bad)} differences")
        for i in bad[:3]:
            print("   ", ascii(lines[i]), theirs[i], ours[i]["ids"])
        if golden and name == "qwen added flags":
            with open(golden, "w") as g:
                json.dump([{"text": t, "ids": i} for t, i in zip(lines[:120], theirs)], g, ensure_ascii=True, separators=(",", ":"))
            with open(os.path.join(os.path.dirname(golden), "tokenizer.json"), "w") as g:
                json.dump(tok, g, ensure_ascii=True, separators=(",", ":"))
    print(f"{total} lines, {differences} differences")
    return differences > 0


sys.exit(main())
