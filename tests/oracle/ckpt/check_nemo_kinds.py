"""`s2s-ckpt convert --to hf` of .nemo archives whose model_config.yaml is silent about most of the model, and of the kinds of heads that
NeMo's options make: transformers opens each with no key missing and gives the logits of the model it was made from. Exit 0 ok, 1 different,
77 a library is absent."""
import io
import os
import subprocess
import sys
import tarfile
import tempfile

try:
    import torch
    from transformers import (ParakeetCTCConfig, ParakeetEncoderConfig, ParakeetForCTC, ParakeetForRNNT, ParakeetForTDT, ParakeetRNNTConfig,
                              ParakeetTDTConfig)
    from transformers.utils import logging
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

import make_nemo  # noqa: E402
from tool import program

logging.disable_progress_bar()
bad, BINS = [], 80
TRANSDUCER = [("decoder.embedding.", "decoder.prediction.embed."), ("decoder.lstm.", "decoder.prediction.dec_rnn.lstm."),
              ("encoder_projector.", "joint.enc."), ("decoder.decoder_projector.", "joint.pred."), ("joint.head.", "joint.joint_net.2.")]
# what ConformerEncoder takes where its configuration is silent
NEMO = dict(hidden_size=24, num_attention_heads=4, num_hidden_layers=2, intermediate_size=96, num_mel_bins=BINS, conv_kernel_size=31,
            subsampling_factor=4, subsampling_conv_channels=24, scale_input=True, layerdrop=0.0, dropout=0.1, dropout_positions=0.1,
            attention_dropout=0.0, max_position_embeddings=5000)


def build(kind, layers=1, hidden=12, **changes):
    encoder, classes = {**NEMO, **changes}, 33
    if kind == "ctc":
        made = ParakeetForCTC(ParakeetCTCConfig(vocab_size=classes, pad_token_id=32, encoder_config=ParakeetEncoderConfig(**encoder)))
    else:
        rest = dict(vocab_size=classes, blank_token_id=32, pad_token_id=0, decoder_hidden_size=hidden, num_decoder_layers=layers,
                    max_symbols_per_step=5, encoder_config=encoder)
        made = ParakeetForRNNT(ParakeetRNNTConfig(**rest)) if kind == "rnnt" else \
            ParakeetForTDT(ParakeetTDTConfig(durations=[0, 1, 2, 4], **rest))
    with torch.no_grad():
        for name, value in made.state_dict().items():
            if value.dtype.is_floating_point:
                value.copy_(torch.rand(value.shape) * 0.5 + (0.5 if "var" in name else -0.25))
    return made.eval()


def nemo_name(name):
    import re
    for a, b in TRANSDUCER:
        name = name.replace(a, b) if name.startswith(a) else name
    for pattern, to in make_nemo.RENAME:
        name = re.sub(pattern, to, name)
    return name


def archive(path, made, kind, encoder, change):
    state = change({nemo_name(k): v for k, v in made.state_dict().items()})
    state["preprocessor.featurizer.fb"] = torch.rand(1, BINS, 257)
    config = "preprocessor:\n  sample_rate: 16000\n  features: %d\nencoder:\n  feat_in: ${model.preprocessor.features}\n" % BINS
    config += "  d_model: 24\n  subsampling: dw_striding\n%s" % "".join("  %s\n" % line for line in encoder)
    config += "decoding:\n  greedy:\n    max_symbols: 5\n" + ("  durations: [0, 1, 2, 4]\n" if kind == "tdt" else "")
    weights = io.BytesIO()
    torch.save(state, weights)
    with tarfile.open(path, "w:") as tar:
        for name, data in (("./model_weights.ckpt", weights.getvalue()), ("./model_config.yaml", config.encode())):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def logits(model, x):
    with torch.no_grad():
        if hasattr(model, "ctc_head"):
            return model(x).logits
        ids = torch.tensor([[model.config.blank_token_id, 1, 2]]).expand(x.shape[0], -1)
        return model(input_features=x, decoder_input_ids=ids).logits


def check(what, kind, encoder=(), change=lambda s: s, refused=None, **changes):
    made = build(kind, **changes)
    with tempfile.TemporaryDirectory() as tmp:
        nemo, out = os.path.join(tmp, "m.nemo"), os.path.join(tmp, "hf")
        archive(nemo, made, kind, encoder, change)
        ran = subprocess.run([program, "convert", "-q", "--to", "hf", nemo, out], capture_output=True, text=True)
        if refused or ran.returncode:
            if not refused or ran.returncode != 1 or refused not in ran.stderr:
                bad.append("%s: exit %d: %s" % (what, ran.returncode, ran.stderr))
            return
        got, info = type(made).from_pretrained(out, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[key]:
            bad.append("%s: %s: %s" % (what, key, info[key]))
    x = torch.randn(2, 150, BINS, generator=torch.Generator().manual_seed(1))
    if not torch.equal(logits(made, x), logits(got.eval(), x)):
        bad.append(what + ": other logits")
    for key, value in made.config.encoder_config.to_dict().items():
        if key not in ("dtype", "architectures", "transformers_version") and getattr(got.config.encoder_config, key, None) != value:
            bad.append("%s: %s is %s, was %s" % (what, key, getattr(got.config.encoder_config, key, None), value))


def no_dropout(state):
    return {k.replace("joint_net.2", "joint_net.1"): v for k, v in state.items()}


torch.manual_seed(3)
for kind in ("ctc", "rnnt", "tdt"):
    check(kind + " of a silent configuration", kind)
    check(kind + " without biases", kind, attention_bias=False, convolution_bias=False, subsampling_factor=2)
    check(kind + " without scaling", kind, ["xscaling: null", "dropout: 0"], scale_input=False, subsampling_factor=16, dropout=0,
          activation_dropout=0)
check("a joint network without dropout", "rnnt", change=no_dropout)
check("a joint network of TDT without dropout", "tdt", change=no_dropout, layers=2)
check("five layers of LSTM", "rnnt", layers=5, hidden=20)
check("biases that all layers share", "ctc",
      change=lambda s: {**s, "encoder.pos_bias_u": s["encoder.layers.0.self_attn.pos_bias_u"], "encoder.pos_enc.pe": torch.zeros(1, 9, 24)})
check("layer norm", "ctc", ["conv_norm_type: layer_norm"], refused="batch_norm",
      change=lambda s: {k: v for k, v in s.items() if "running" not in k and "num_b" not in k})
check("a narrow joint network", "rnnt", refused="12 wide, the joint network 6",
      change=lambda s: {k: v[:6] if k.startswith(("joint.enc", "joint.pred")) else v[:, :6] if k == "joint.joint_net.2.weight" else v
                        for k, v in s.items()})
print("\n".join(bad) if bad else "every kind of .nemo opens in transformers with the same logits")
sys.exit(bool(bad))
