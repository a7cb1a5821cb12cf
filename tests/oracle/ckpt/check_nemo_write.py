"""`s2s-ckpt convert --to nemo` and back, on random small Parakeets of each head: HF -> .nemo -> HF is the same bit for bit; the .nemo is a
tar that tarfile opens, its weights what torch.load(weights_only=True) reads, with NeMo's names; what comes back loads in transformers with
no key missing and gives the same logits. The window and the mel filters are those of torch and transformers. check_nemo_write.py [N].
Exit 0 ok, 1 different, 77 a library is absent."""
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile

try:
    import numpy as np
    import torch
    import yaml
    from safetensors.torch import load_file
    from transformers import (ParakeetCTCConfig, ParakeetEncoderConfig, ParakeetFeatureExtractor, ParakeetForCTC, ParakeetForRNNT,
                              ParakeetForTDT, ParakeetRNNTConfig, ParakeetTDTConfig)
    from transformers.audio_utils import mel_filter_bank
    from transformers.utils import logging
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

import make_nemo  # noqa: E402
from tool import program

TRANSDUCER = [("decoder.embedding.", "decoder.prediction.embed."), ("decoder.lstm.", "decoder.prediction.dec_rnn.lstm."),
              ("encoder_projector.", "joint.enc."), ("decoder.decoder_projector.", "joint.pred."), ("joint.head.", "joint.joint_net.2.")]
bad = []
logging.disable_progress_bar()


def s2s(*args):
    return subprocess.run([program, "convert", "-q", *args], check=True, capture_output=True, text=True)


def nemo_name(name):
    for a, b in TRANSDUCER:
        name = name.replace(a, b) if name.startswith(a) else name
    import re
    for pattern, to in make_nemo.RENAME:
        name = re.sub(pattern, to, name)
    return name


def random_model(rng, kind):
    heads, mels = rng.choice([1, 2, 4]), rng.choice([16, 32, 80, 128])
    width, factor = heads * 2 * rng.randint(2, 6), rng.choice([2, 4, 8, 16])
    bias = rng.random() < 0.5
    encoder = dict(hidden_size=width, num_attention_heads=heads, num_hidden_layers=rng.randint(1, 3), intermediate_size=width * rng.randint(1, 4),
                   num_mel_bins=mels, conv_kernel_size=rng.choice([3, 5, 9]), subsampling_conv_channels=rng.choice([4, 6, 8]),
                   subsampling_factor=factor, scale_input=rng.random() < 0.5, attention_bias=bias, convolution_bias=bias,
                   layerdrop=rng.choice([0.0, 0.25]), dropout=0.1, activation_dropout=rng.choice([0.1, 0.3]), attention_dropout=rng.choice([0.0, 0.1]), max_position_embeddings=500)
    classes = rng.randint(5, 40)
    torch.manual_seed(rng.randint(0, 1 << 30))
    if kind == "ctc":
        config = ParakeetCTCConfig(vocab_size=classes, pad_token_id=classes - 1, ctc_loss_reduction=rng.choice(["mean", "sum"]),
                                   ctc_zero_infinity=rng.random() < 0.5, encoder_config=ParakeetEncoderConfig(**encoder))
        made = ParakeetForCTC(config)
    else:
        rest = dict(vocab_size=classes, blank_token_id=classes - 1, pad_token_id=rng.choice([0, 2]), decoder_hidden_size=rng.randint(3, 20),
                    num_decoder_layers=rng.randint(1, 3), max_symbols_per_step=rng.randint(2, 12), encoder_config=encoder)
        if kind == "tdt":
            config = ParakeetTDTConfig(durations=list(range(rng.randint(2, 6))), **rest)
        else:
            config = ParakeetRNNTConfig(**rest)
        made = (ParakeetForTDT if kind == "tdt" else ParakeetForRNNT)(config)
    with torch.no_grad():
        for name, value in made.state_dict().items():
            if value.dtype.is_floating_point:
                value.copy_(torch.rand(value.shape) * 0.5 + (0.5 if "var" in name else -0.25))
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    return made.eval().to(dtype), mels, classes


def features_of(rng, mels):
    win, hop = rng.choice([(400, 160), (320, 160), (441, 147), (512, 128)])
    return ParakeetFeatureExtractor(feature_size=mels, sampling_rate=16000, n_fft=512, win_length=win, hop_length=hop,
                                    preemphasis=rng.choice([0.97, 0.9]))


def logits(model, x):
    with torch.no_grad():
        if hasattr(model, "ctc_head"):
            return [model(x).logits]
        ids = torch.tensor([[model.config.blank_token_id, 1, 2]]).expand(x.shape[0], -1)
        out = model(input_features=x, decoder_input_ids=ids)
        return [t for t in (getattr(out, "logits", None), getattr(out, "last_hidden_state", None)) if t is not None]


def vocabulary(kind, classes):
    pieces = ["▁" + chr(97 + i % 26) * (1 + i // 26) for i in range(classes - 1)]
    if kind != "ctc" and classes > 4:
        pieces[2] = "<pad>"
    return pieces


def sentencepiece(pieces):
    out = b""
    for i, piece in enumerate(pieces):
        text = piece.encode()
        body = b"\x0a" + bytes([len(text)]) + text + b"\x15" + np.float32(-i).tobytes() + (b"\x18\x03" if piece == "<pad>" else b"")
        out += b"\x0a" + bytes([len(body)]) + body
    return out


def check(rng, kind, tmp, number):
    made, mels, classes = random_model(rng, kind)
    hf, nemo, again, twice = (os.path.join(tmp, "%s%d" % (n, number)) for n in ("hf", "n.nemo", "again", "twice.nemo"))
    what = "%s %d" % (kind, number)
    made.save_pretrained(hf)
    extractor = features_of(rng, mels)
    extractor.save_pretrained(hf)
    pieces = vocabulary(kind, classes)
    if with_tokenizer := rng.random() < 0.5:
        with open(os.path.join(hf, "tokenizer.model"), "wb") as f:
            f.write(sentencepiece(pieces))
    else:
        with open(os.path.join(hf, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump({"model": {"type": "BPE", "vocab": {p: i for i, p in enumerate(pieces)}}, "added_tokens": []}, f)
    option = [] if with_tokenizer else ["--no-tokenizer"]
    s2s("--strict", "--to", "nemo", *option, hf, nemo)
    s2s("--strict", "--to", "nemo", *option, hf, twice)
    if open(nemo, "rb").read() != open(twice, "rb").read():
        bad.append(what + ": not the same bytes twice")

    with tarfile.open(nemo, "r:") as tar:
        names = tar.getnames()
        config = yaml.safe_load(tar.extractfile("./model_config.yaml"))
        state = torch.load(io.BytesIO(tar.extractfile("./model_weights.ckpt").read()), weights_only=True)
        if with_tokenizer and tar.extractfile("./tokenizer.model").read() != sentencepiece(pieces):
            bad.append(what + ": another tokenizer.model")
    for reference in [v for v in (config.get("tokenizer") or {}).values() if v.startswith("nemo:")]:
        if "./" + reference[5:] not in names:
            bad.append("%s: %s is not in the archive" % (what, reference))
    window, fb = state.pop("preprocessor.featurizer.window"), state.pop("preprocessor.featurizer.fb")
    want = torch.hann_window(extractor.win_length, periodic=False)
    if window.shape != want.shape or (window - want).abs().max() > 1e-6:
        bad.append("%s: window %s" % (what, window.shape))
    filters = mel_filter_bank(257, mels, 0.0, 8000.0, 16000, norm="slaney", mel_scale="slaney").T[None]
    if fb.shape != filters.shape or np.abs(fb.numpy() - filters).max() > 1e-6:
        bad.append("%s: filters %s" % (what, fb.shape))
    saved = load_file(os.path.join(hf, "model.safetensors"))
    wanted = {nemo_name(k): v for k, v in saved.items()}
    if set(wanted) != set(state):
        bad.append("%s: names differ: %s" % (what, sorted(set(wanted) ^ set(state))[:6]))
    elif not all(torch.equal(v, state[k]) and v.dtype == state[k].dtype for k, v in wanted.items()):
        bad.append(what + ": tensors differ")
    check_yaml(what, config, made.config, extractor, pieces, kind)

    s2s("--strict", "--to", "hf", nemo, again)
    back = load_file(os.path.join(again, "model.safetensors"))
    if set(back) != set(saved) or not all(torch.equal(v, back[k]) and v.dtype == back[k].dtype for k, v in saved.items()):
        bad.append(what + ": not what it was after there and back")
    got, info = type(made).from_pretrained(again, output_loading_info=True, dtype=made.dtype)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[key]:
            bad.append("%s: %s: %s" % (what, key, info[key]))
    x = torch.randn(2, 80, mels, generator=torch.Generator().manual_seed(number)).to(made.dtype)
    # both loaded alike: a cast after the making would round the positions, which are no weights
    want = type(made).from_pretrained(hf, dtype=made.dtype).eval()
    for a, b in zip(logits(want, x), logits(got.eval(), x)):
        if not torch.equal(a, b):
            bad.append("%s: logits differ by %g" % (what, (a - b).abs().max()))
    for key in ("sampling_rate", "feature_size", "win_length", "hop_length", "n_fft", "preemphasis"):
        if abs(getattr(ParakeetFeatureExtractor.from_pretrained(again), key) - getattr(extractor, key)) > 1e-9:
            bad.append("%s: preprocessor %s" % (what, key))
    for key in ("vocab_size", "pad_token_id", "blank_token_id", "durations", "num_decoder_layers", "decoder_hidden_size", "max_symbols_per_step",
                "ctc_loss_reduction", "ctc_zero_infinity"):
        a, b = getattr(made.config, key, None), getattr(got.config, key, None)
        if a != b and not (key == "pad_token_id" and kind != "ctc"):
            bad.append("%s: config.json %s: %s, was %s" % (what, key, b, a))
    for key, value in made.config.encoder_config.to_dict().items():
        if key in ("dtype", "_name_or_path", "transformers_version", "architectures", "initializer_range"):
            continue
        if getattr(got.config.encoder_config, key, None) != value:
            bad.append("%s: encoder_config %s: %s, was %s" % (what, key, getattr(got.config.encoder_config, key, None), value))


def check_yaml(what, config, was, extractor, pieces, kind):
    encoder, pre = config["encoder"], config["preprocessor"]
    pairs = [(encoder["d_model"], was.encoder_config.hidden_size), (encoder["n_layers"], was.encoder_config.num_hidden_layers),
             (encoder["use_bias"], was.encoder_config.attention_bias), (encoder["xscaling"], was.encoder_config.scale_input),
             (encoder["ff_expansion_factor"] * encoder["d_model"], was.encoder_config.intermediate_size),
             (encoder["feat_in"], was.encoder_config.num_mel_bins), (pre["features"], extractor.feature_size), (config["labels"], pieces)]
    # NeMo's own rule from seconds to samples
    for seconds, count, n in (("window_size", "n_window_size", extractor.win_length), ("window_stride", "n_window_stride", extractor.hop_length)):
        pairs.append((int(pre[seconds] * pre["sample_rate"]) if pre[seconds] else pre[count], n))
    if kind == "ctc":
        pairs += [(config["decoder"]["num_classes"], was.vocab_size - 1), (config["decoder"]["vocabulary"], pieces)]
    else:
        pairs += [(config["decoder"]["vocab_size"], was.vocab_size - 1), (config["joint"]["num_classes"], was.vocab_size - 1),
                  (config["decoder"]["prednet"]["pred_rnn_layers"], was.num_decoder_layers)]
    if kind == "tdt":
        pairs += [(config["joint"]["num_extra_outputs"], len(was.durations)), (config["decoding"]["durations"], list(was.durations))]
    for i, (a, b) in enumerate(pairs):
        if a != b:
            bad.append("%s: model_config.yaml, pair %d: %s, not %s" % (what, i, a, b))


count, rng = int(sys.argv[1]) if len(sys.argv) > 1 else 12, random.Random(7)
for number in range(count):
    with tempfile.TemporaryDirectory() as folder:
        check(rng, ("ctc", "tdt", "rnnt")[number % 3], folder, number)
print("\n".join(bad) if bad else "%d models went to .nemo and back" % count)
sys.exit(bool(bad))
