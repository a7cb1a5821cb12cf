#!/usr/bin/env python3
"""Token ids and decoded text of `s2s-pack tokenize` against Hugging Face tokenizers, on random lines of every Unicode block.

    check_tokenizers.py [LINES [SEED]]          default 100000 lines over all settings

The settings are the tokenizers of tests/oracle/tokenizer_* and variants of them that use every supported part: normalizers alone and in a row,
pre-tokenizers, models with all their options, decoders, post-processors, added tokens with every flag. Exit 0 when nothing
differs, 1 when something does, 77 without the library. With --golden FOLDER it writes small samples with their ids and texts for the unit
test.
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
    for name in "llama3", "qwen", "spbpe_llama2", "unigram", "wordpiece":
        kind = "bytelevel_" if name in ("llama3", "qwen") else ""
        with open(f"{ROOT}/tests/oracle/tokenizer_{kind}{name}/tokenizer.json", encoding="utf-8") as f:
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
    for i, content in enumerate(["token", "tok", " two words ", "n\u0303o", "\u00e9", "<a>", "<ab>", "'s", "12", "\u4e2d", "Quick", "\ufb01"]):
        flags.append({"id": 1800 + i, "content": content, "special": i % 2 == 1, "single_word": i % 3 == 0,
                      "lstrip": i % 4 < 2, "rstrip": i % 5 < 2, "normalized": i % 2 == 0})

    def with_flags(of, **parts):
        # the library gives ids in a row behind the vocabulary
        tok = variant(of, **parts)
        vocab = tok["model"]["vocab"]
        vocab = {piece: i for i, (piece, _) in enumerate(vocab)} if isinstance(vocab, list) else vocab
        first = max([len(vocab) - 1, *(t["id"] for t in tok["added_tokens"])]) + 1
        for t in copy.deepcopy(flags):
            t["id"] = vocab.get(t["content"], first)
            first += t["content"] not in vocab
            if not any(t["content"] == o["content"] for o in tok["added_tokens"]):
                tok["added_tokens"].append(t)
        return tok

    for name in base:
        yield name + " added flags", with_flags(name)
    lower_prepend = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "Prepend", "prepend": "\u2581"}, {"type": "NFKD"}]}
    yield "flags behind normalizers", with_flags("spbpe_llama2", normalizer=lower_prepend)
    yield "flags in bytes", with_flags("llama3", normalizer={"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]}, pre_tokenizer=None)
    yield from normalizer_settings(variant)
    yield from pre_tokenizer_settings(variant, sequence, split)
    yield from model_settings(variant)
    yield from decoder_settings(variant)


def charsmap(**rules):
    """The table of rules of sentencepiece, if that is there."""
    try:
        import sentencepiece
    except ModuleNotFoundError:
        return None
    import base64, io
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["a b c"] * 50), model_writer=model, vocab_size=7, hard_vocab_limit=False,
                                             minloglevel=2, **rules)
    data, at = model.getvalue(), 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def fields(end):  # tag and contents of the fields of a protobuf message
        nonlocal at
        while at < end:
            tag = number()
            if tag & 7 == 2:
                size = number()
                yield tag >> 3, at, at + size
                at += size
            elif tag & 7 == 0:
                number()
            else:
                at += 4 if tag & 7 == 5 else 8

    for tag, begin, end in list(fields(len(data))):
        if tag == 3:  # normalizer_spec
            at = begin
            for inner, b, e in list(fields(end)):
                if inner == 2:
                    return base64.b64encode(data[b:e]).decode()


def normalizer_settings(variant):
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    for form in "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt":
        yield form, variant("llama3", normalizer={"type": form})
        yield form + " fallback", variant("spbpe_llama2", normalizer={"type": "Sequence", "normalizers": [{"type": form}, space]})
    for left in True, False:
        yield f"strip {left}", variant("qwen", normalizer={"type": "Strip", "strip_left": left, "strip_right": not left})
    yield "strip", variant("unigram", normalizer={"type": "Strip", "strip_left": True, "strip_right": True})
    for i in range(8):
        yield f"bert {i}", variant("wordpiece", normalizer={"type": "BertNormalizer", "clean_text": i % 2 > 0, "handle_chinese_chars": i % 4 > 1,
                                                            "strip_accents": i > 3, "lowercase": i % 3 > 0})
    for pattern, content in ("\\s+", " "), ("[aeiou]", ""), ("(?=t)", "-"), ("\\p{Lu}", "XY"), ("$", "."):
        yield "replace " + pattern, variant("qwen", normalizer={"type": "Replace", "pattern": {"Regex": pattern}, "content": content})
    yield "replace string", variant("qwen", normalizer={"type": "Replace", "pattern": {"String": "th"}, "content": "\u00fe"})
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as f:  # one to many, many to one, to nothing; a space; keys that begin others
        for left, right in ("FB01", "66 69"), ("FF21", "61"), ("65 301", "E9"), ("200B", ""), ("3000", "20"), ("41", "62 63"), ("41 41", "64"), ("FF45", "65"):
            f.write(left + "\t" + right + "\n")
        f.flush()
        small = charsmap(normalization_rule_tsv=f.name)
    table = charsmap(normalization_rule_name="nmt_nfkc_cf")
    if small:
        yield "small charsmap", variant("unigram", normalizer={"type": "Precompiled", "precompiled_charsmap": small})
    if table:
        map_ = {"type": "Precompiled", "precompiled_charsmap": table}
        yield "charsmap", variant("unigram", normalizer=map_)
        yield "charsmap llama", variant("spbpe_llama2", normalizer={"type": "Sequence", "normalizers": [map_, space]})
    # who is first decides whether a sign is put in front
    for name, steps in {"first": [], "first stripped": [{"type": "Strip", "strip_left": True, "strip_right": False}], "first nfkd": [{"type": "NFKD"}],
                        "first cleaned": [{"type": "Nmt"}, {"type": "Lowercase"}], "first replaced": [{"type": "Replace", "pattern": {"Regex": "[a-m]"}, "content": ""}],
                        "first doubled": [{"type": "Replace", "pattern": {"String": "t"}, "content": "t t"}],
                        **({"first mapped": [map_]} if table else {})}.items():
        pre = [{"type": "Punctuation"}, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}]
        yield name, variant("spbpe_llama2", normalizer={"type": "Sequence", "normalizers": steps}, pre_tokenizer={"type": "Sequence", "pretokenizers": pre})


def pre_tokenizer_settings(variant, sequence, split):
    kinds = [{"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"}, {"type": "CharDelimiterSplit", "delimiter": "e"},
             {"type": "Digits", "individual_digits": True}, {"type": "FixedLength", "length": 3}]
    kinds += [{"type": "Punctuation", "behavior": b} for b in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")]
    kinds += [{"type": "Metaspace", "replacement": sign, "prepend_scheme": scheme, "split": cut}
              for sign, scheme, cut in (("\u2581", "always", True), ("\u2581", "never", True), ("\u2581", "first", True), ("_", "always", False))]
    for kind in kinds:
        name = " ".join(map(str, kind.values()))
        yield "wordpiece " + name, variant("wordpiece", pre_tokenizer=kind)
        yield "bytes " + name, variant("qwen", pre_tokenizer=sequence(kind))
        yield "fallback " + name, variant("spbpe_llama2", pre_tokenizer=kind, normalizer=None)
    behind = {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, split("\u0120", "MergedWithNext", kind="String")]}
    yield "behind bytes", variant("llama3", pre_tokenizer=behind)
    yield "unigram bytes", variant("unigram", pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True})


def model_settings(variant):
    def model(of, drop=0, **options):
        tok = variant(of)
        tok["model"].update(options)
        for key in list(tok["model"]["vocab"])[:drop] if drop else []:
            if len(key) == 6 and key.startswith("<0x"):
                del tok["model"]["vocab"][key]
        return tok

    yield "fuse_unk off", model("spbpe_llama2", fuse_unk=False, byte_fallback=False)
    yield "fuse_unk on", model("spbpe_llama2", fuse_unk=True, byte_fallback=False)
    yield "ignore_merges", model("spbpe_llama2", ignore_merges=True)
    yield "no unk", model("spbpe_llama2", unk_token=None, byte_fallback=False)
    yield "unigram byte fallback", unigram_bytes(variant)
    yield "max characters", model("wordpiece", max_input_chars_per_word=4)
    yield "word level", variant("wordpiece", model={"type": "WordLevel", "vocab": model("wordpiece")["model"]["vocab"], "unk_token": "[UNK]"}, post_processor=None)
    words = variant("spbpe_llama2")
    vocab, merges = {"<unk>": 0}, []
    for c in "abcdefghijklmnopqrstuvwxyz'":
        for token in c, "##" + c, c + "</w>", "##" + c + "</w>":
            vocab[token] = len(vocab)
    for a, b in ("t", "##h"), ("th", "##e</w>"), ("##o", "##k</w>"), ("##o", "##k"), ("a", "##n"), ("##a", "##n</w>"), ("w", "##o"), ("##r", "##d"):
        merges.append([a, b])
        vocab.setdefault(a + b[2:], len(vocab))
    words["model"] = {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "continuing_subword_prefix": "##", "end_of_word_suffix": "</w>", "fuse_unk": False}
    words["added_tokens"], words["post_processor"] = [], None
    words["pre_tokenizer"], words["normalizer"] = {"type": "Whitespace"}, {"type": "Lowercase"}
    words["decoder"] = {"type": "BPEDecoder", "suffix": "</w>"}
    yield "prefix and suffix", words
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    yield "bert processing", variant("wordpiece", post_processor=bert)
    yield "processors", variant("wordpiece", post_processor={"type": "Sequence", "processors": [bert, {"type": "RobertaProcessing", "sep": ["[MASK]", 4],
                                "cls": ["[PAD]", 0], "trim_offsets": True, "add_prefix_space": False}]})


def unigram_bytes(variant):
    tok = variant("unigram")
    for t in tok["added_tokens"][-2:]:  # behind the bytes
        t["id"] += 256
    tok["model"]["vocab"] += [[f"<0x{b:02X}>", 0.0] for b in range(256)]
    tok["model"]["byte_fallback"] = True
    tok["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}]}
    return tok


def decoder_settings(variant):
    replace = {"type": "Replace", "pattern": {"Regex": "\u2581|e"}, "content": "."}
    for name, steps in {"no decoder": None, "wordpiece": {"type": "WordPiece", "prefix": "\u2581", "cleanup": False}, "wordpiece clean": {"type": "WordPiece", "prefix": "a", "cleanup": True},
                        "metaspace": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never"}, "bytes": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                        "ctc": {"type": "CTC", "pad_token": "a", "word_delimiter_token": "\u2581", "cleanup": True}, "suffix": {"type": "BPEDecoder", "suffix": "e"},
                        "fuse": {"type": "Sequence", "decoders": [{"type": "Fuse"}, replace]}, "replace": replace,
                        "strip": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Strip", "content": "\u2581", "start": 1, "stop": 0}, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]}}.items():
        yield "decoder " + name, variant("spbpe_llama2", decoder=steps)


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


def each(one, batch, items):
    """What the library gives for each item; None where it panics, which it does at some odd texts."""
    def alone(item):
        try:
            return one(item)
        except BaseException as e:
            if type(e).__name__ != "PanicException":
                raise
            return None
    quiet, stderr = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(quiet, 2)
    try:
        return batch(items)
    except BaseException as e:
        if type(e).__name__ != "PanicException":
            raise
        return [alone(item) for item in items]
    finally:
        os.dup2(stderr, 2)
        os.close(quiet)
        os.close(stderr)


samples = []


def keep(folder, name, tok, every, lines, ids, texts):
    """A sample for the unit test: parts.json holds what differs from one of the tokenizers, and some lines."""
    if name == "qwen added flags":
        with open(os.path.join(folder, "strings.json"), "w") as f:
            json.dump([{"text": t, "ids": i} for t, i in zip(lines[:120], ids)], f, ensure_ascii=True, separators=(",", ":"))
        with open(os.path.join(folder, "tokenizer.json"), "w") as f:
            json.dump(tok, f, ensure_ascii=True, separators=(",", ":"))
    bases = [(n, t) for n, t in every if n in ("llama3", "qwen", "spbpe_llama2", "unigram", "wordpiece")]
    alike = [sum(tok[k] == t[k] for k in tok) + 9 * (tok["model"]["vocab"] == t["model"]["vocab"]) for _, t in bases]
    of, base = bases[alike.index(max(alike))]
    parts = {k: v for k, v in tok.items() if v != base[k] and k != "model"}
    model = {k: v for k, v in tok["model"].items() if v != base["model"].get(k, "")} | {k: None for k in base["model"] if k not in tok["model"]}
    if len(json.dumps([parts, model])) > 6000:
        return
    chosen = [i for i in range(len(lines)) if ids[i] and texts[i] is not None and 4 < len(ids[i]) < 40][:3]
    samples.append({"name": name, "of": of, "parts": parts, "model": model, "lines": [{"text": lines[i], "ids": ids[i], "decoded": texts[i]} for i in chosen]})


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
            every_one = ("llama3", "qwen", "gpt2", "spbpe_llama2", "unigram", "wordpiece", "charsmap", "NFKC", "NFKD fallback", "bert 7", "StripAccents")
            lines += [chr(c) for row in rows for c in row] if name in every_one else []
            step = 16 if name in every_one else 160
            lines += ["a" + "".join(map(chr, row[i:i + 16])) + "b 1" for row in rows for i in range(rng.randrange(step // 16) * 16, len(row), step)]
            lines += ["a" + chr(c) + "\u0301" for row in rows for c in row] if name == "charsmap" else []
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as f:
            json.dump(tok, f)
            f.flush()
            peer = tokenizers.Tokenizer.from_file(f.name)
            encoded = [each(lambda t: peer.encode(t, add_special_tokens=special), lambda l: peer.encode_batch(l, add_special_tokens=special), lines)
                       for special in (True, False)]
            theirs = [None if e is None else e.ids for e in encoded[0]]
            ours = run(f.name, lines)
            bad = [i for i, ids in enumerate(theirs) if ids is not None and ours[i]["ids"] != ids]
            plain = run(f.name, lines, "--no-special")
            bad += [i for i, e in enumerate(encoded[1]) if e is not None and plain[i]["ids"] != e.ids]
            decodable = [ids or [] for ids in theirs]
            for skip in True, False:
                texts = run(f.name, [{"ids": ids} for ids in decodable], "--decode", *["--no-special"] * skip)
                wanted = each(lambda ids: peer.decode(ids, skip_special_tokens=skip), lambda l: peer.decode_batch(l, skip_special_tokens=skip), decodable)
                bad += [i for i, t in enumerate(wanted) if t is not None and texts[i] != t]
                shown = [(ascii(t), ascii(texts[i])) for i, t in enumerate(wanted) if t is not None and texts[i] != t][:2]
            panics = sum(ids is None for ids in theirs)
        total += len(lines)
        differences += len(bad)
        print(f"{name}: {len(lines)} lines, {len(bad)} differences" + f" ({panics} lines at which the library panics)" * (panics > 0), flush=True)
        for i in bad[:3]:
            print("   ", ascii(lines[i]), theirs[i], ours[i]["ids"])
        for pair in shown:
            print("   ", *pair)
        if golden:
            keep(golden, name, tok, every, lines, theirs, each(peer.decode, peer.decode_batch, decodable))
    print(f"{total} lines, {differences} differences")
    if golden:
        with open(os.path.join(golden, "parts.json"), "w") as f:
            f.write("[\n" + ",\n".join(json.dumps(x, ensure_ascii=True, separators=(",", ":")) for x in samples) + "\n]\n")
    return differences > 0


sys.exit(main())
