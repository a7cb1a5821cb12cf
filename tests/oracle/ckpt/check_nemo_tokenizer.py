"""The tokenizer and processor that `s2s-ckpt convert --to hf` writes beside a Parakeet, against those of transformers' own converter of
SentencePiece models, for random pieces and each head: the same tokenizer.json, AutoProcessor opens the folder, the blank is where the head
has it, and speech goes in and text comes out. check_nemo_tokenizer.py [N]. Exit 0 ok, 1 different, 77 a library is absent."""
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile

try:
    import google.protobuf  # noqa: F401  ParakeetConverter asks for it
    import numpy as np
    import torch
    from tokenizers import AddedToken
    from transformers import AutoModelForCTC, AutoProcessor, ParakeetTokenizer
    from transformers.convert_slow_tokenizer import ParakeetConverter
    from transformers.utils import logging
except ImportError as e:
    print(e)
    sys.exit(77)

import make_nemo  # noqa: E402
from tool import program

logging.disable_progress_bar()
logging.set_verbosity_error()
bad = []


def varint(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def model_of(pieces, kind, unknown):
    out = b""
    for piece, score, sort in pieces:
        out += field(1, field(1, piece.encode()) + b"\x15" + np.float32(score).tobytes() + (b"\x18" + bytes([sort]) if sort != 1 else b""))
    return out + field(2, b"\x18" + bytes([kind]) + field(45, unknown.encode())) + field(3, field(1, b"identity") + b"\x18\x01\x20\x01")


def pieces_of(rng, kind, unknown):
    letters = list("▁abcdefghij") + ["é", "ß", "日"]
    pieces = [(unknown, 0, 2)]
    if kind == "tdt" or (kind == "rnnt" and rng.random() < 0.5):
        pieces.append(("<pad>", 0, rng.choice([3, 4])))
    if rng.random() < 0.5:
        pieces += [("<|en|>", 0, 4), ("<s>", 0, 3)]
    seen, count = {p for p, _, _ in pieces}, rng.randint(40, 120)
    while len(pieces) < count:
        piece = "".join(rng.choice(letters) for _ in range(rng.randint(2, 6)))
        if piece not in seen:
            seen.add(piece)
            # many of one score: then lengths and places decide
            pieces.append((piece, -rng.randint(0, 9) if rng.random() < 0.5 else -len(pieces), 1))
    return pieces + [(c, -200.5 - i, 1) for i, c in enumerate(letters)]


def of_transformers(path, kind):
    made = ParakeetTokenizer(tokenizer_object=ParakeetConverter(path).converted(), clean_up_tokenization_spaces=False)
    unknown = made.unk_token or "<unk>"
    pad = "<blank>" if kind == "rnnt" else "<pad>"
    for token in (pad, "<blank>") if kind == "tdt" else (pad,):
        if made.convert_tokens_to_ids(token) is None or token not in made.get_vocab():
            made.add_tokens([AddedToken(token, normalized=False, special=True)])
    made.add_special_tokens({"pad_token": AddedToken(pad, normalized=False, special=True),
                             "unk_token": AddedToken(unknown, normalized=False, special=True)})
    return made


def archive(path, kind, model, n_pieces):
    head = {"ctc": {"decoder.decoder_layers.0.weight": (n_pieces + 1, 16, 1), "decoder.decoder_layers.0.bias": (n_pieces + 1,)}}.get(kind)
    state = {k: v for k, v in make_nemo.nemo_state(make_nemo.model()).items() if not k.startswith("decoder.")}
    config = make_nemo.CONFIG
    if not head:
        out = n_pieces + 1 + 3 * (kind == "tdt")
        head = {"decoder.prediction.embed.weight": (n_pieces + 1, 8), "joint.enc.weight": (8, 16), "joint.enc.bias": (8,),
                "joint.pred.weight": (8, 8), "joint.pred.bias": (8,), "joint.joint_net.2.weight": (out, 8), "joint.joint_net.2.bias": (out,)}
        for name, shape in (("weight_ih", (32, 8)), ("weight_hh", (32, 8)), ("bias_ih", (32,)), ("bias_hh", (32,))):
            head["decoder.prediction.dec_rnn.lstm.%s_l0" % name] = shape
        config += "decoding:\n  durations: [0, 1, 2]\nlabels: [a, <pad>]\n" if kind == "tdt" else ""
    state.update({k: torch.rand(v) for k, v in head.items()})
    weights = io.BytesIO()
    torch.save(state, weights)
    with tarfile.open(path, "w:") as tar:
        for name, data in (("./model_config.yaml", config.encode()), ("./%032x_tokenizer.model" % 7, model),
                           ("./model_weights.ckpt", weights.getvalue())):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def check(number, kind, tmp):
    rng, what = random.Random(number), "%s %d" % (kind, number)
    unknown = "<unk>" if number % 4 else "[?]"
    pieces = pieces_of(rng, kind, unknown)
    model = model_of(pieces, rng.choice([1, 2]), unknown)
    path, nemo, out, theirs = (os.path.join(tmp, n) for n in ("t.model", "m.nemo", "out", "theirs"))
    with open(path, "wb") as f:
        f.write(model)
    archive(nemo, kind, model, len(pieces))
    subprocess.run([program, "convert", "-q", "--strict", "--to", "hf", nemo, out], check=True)
    want = of_transformers(path, kind)
    want.save_pretrained(theirs)
    a, b = (json.load(open(os.path.join(folder, "tokenizer.json"), encoding="utf-8")) for folder in (out, theirs))
    if unknown == "[?]":  # the converter there does not say which token is the unknown one
        for both in (a, b):
            both["added_tokens"] = [t for t in both["added_tokens"] if t["content"] not in ("[?]", "<unk>")]
    for key in sorted(set(a) | set(b)):
        if a.get(key) != b.get(key):
            bad.append("%s: tokenizer.json: %s is %s, theirs %s" % (what, key, str(a.get(key))[:300], str(b.get(key))[:300]))
    processor = AutoProcessor.from_pretrained(out)
    if processor.blank_token_id != len(pieces) or processor.decoder_type != kind:
        bad.append("%s: the blank is %s of %d pieces, the decoder %s" % (what, processor.blank_token_id, len(pieces), processor.decoder_type))
    for text in ("abc dej  hig é日 <|en|>bad zq ", "", "jj abaß"):
        if unknown == "<unk>" and processor.tokenizer.encode(text) != want.encode(text):
            bad.append("%s: %r is %s" % (what, text, processor.tokenizer.encode(text)))
    if kind == "ctc":
        speech = np.random.default_rng(1).standard_normal(16000).astype(np.float32)
        made = AutoModelForCTC.from_pretrained(out).eval()
        with torch.no_grad():
            ids = made(**processor(speech, sampling_rate=16000)).logits.argmax(-1)
        if not isinstance(processor.batch_decode(ids)[0], str):
            bad.append(what + ": no text")


count = int(sys.argv[1]) if len(sys.argv) > 1 else 18
for number in range(count):
    with tempfile.TemporaryDirectory() as folder:
        check(number, ("ctc", "tdt", "rnnt")[number % 3], folder)
print("\n".join(bad) if bad else "%d tokenizers are those that transformers makes" % count)
sys.exit(bool(bad))
