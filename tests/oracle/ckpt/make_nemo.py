"""make_nemo.py OUT: a tiny FastConformer with a CTC head as a .nemo archive (OUT/tiny.nemo: NeMo's names and configuration), beside
OUT/tiny.nemo.hf.json: the tensors that transformers' ParakeetForCTC has for it. The weights are made in transformers and renamed; the
archive is what NeMo writes: a plain tar with ./model_config.yaml and ./model_weights.ckpt. Needs torch and transformers."""
import hashlib
import io
import json
import os
import re
import sys
import tarfile

import torch
from transformers import ParakeetCTCConfig, ParakeetEncoderConfig, ParakeetForCTC

CONFIG = """sample_rate: 16000
preprocessor:
  _target_: nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor
  sample_rate: 16000
  normalize: per_feature
  window_size: 0.025
  window_stride: 0.01
  window: hann
  features: 16
  n_fft: 512
  dither: 1.0e-05
  pad_to: 0
encoder:
  _target_: nemo.collections.asr.modules.ConformerEncoder
  feat_in: 16
  feat_out: -1
  n_layers: 2
  d_model: 16
  subsampling: dw_striding
  subsampling_factor: 8
  subsampling_conv_channels: 4
  causal_downsampling: false
  ff_expansion_factor: 2
  self_attention_model: rel_pos
  n_heads: 2
  att_context_size: [-1, -1]
  att_context_style: regular
  xscaling: false
  untie_biases: true
  pos_emb_max_len: 5000
  conv_kernel_size: 5
  conv_norm_type: batch_norm
  use_bias: true
  dropout: 0.1
  dropout_pre_encoder: 0.1
  dropout_emb: 0.0
  dropout_att: 0.1
  stochastic_depth_drop_prob: 0.0
decoder:
  _target_: nemo.collections.asr.modules.ConvASRDecoder
  feat_in: 16
  num_classes: 10
"""

RENAME = [(r"encoder\.subsampling\.layers\.", "encoder.pre_encode.conv."), (r"encoder\.subsampling\.linear\.", "encoder.pre_encode.out."),
          (r"\.conv\.norm\.", ".conv.batch_norm."), (r"^ctc_head\.", "decoder.decoder_layers.0."), (r"\.relative_k_proj\.", ".linear_pos."),
          (r"\.o_proj\.", ".linear_out."), (r"\.([qkv])_proj\.", r".linear_\1."), (r"\.bias_([uv])$", r".pos_bias_\1")]


def model():
    torch.manual_seed(5)
    encoder = ParakeetEncoderConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=32, num_mel_bins=16,
                                    conv_kernel_size=5, subsampling_conv_channels=4, scale_input=False, layerdrop=0.0, max_position_embeddings=5000)
    made = ParakeetForCTC(ParakeetCTCConfig(vocab_size=11, pad_token_id=10, encoder_config=encoder)).eval()
    with torch.no_grad():
        for name, value in made.state_dict().items():
            if value.dtype.is_floating_point:
                value.copy_(torch.rand(value.shape) * 0.5 + (0.5 if "var" in name else -0.25))
    return made


def nemo_state(made):
    state = {}
    for name, value in made.state_dict().items():
        for pattern, to in RENAME:
            name = re.sub(pattern, to, name)
        state[name] = value
    state["preprocessor.featurizer.window"] = torch.hann_window(400, periodic=False)
    state["preprocessor.featurizer.fb"] = torch.rand(1, 16, 257)
    return state


def main(out):
    made = model()
    weights = io.BytesIO()
    torch.save(nemo_state(made), weights)
    os.makedirs(out, exist_ok=True)
    with tarfile.open(os.path.join(out, "tiny.nemo"), "w:") as tar:
        for name, data in (("./model_config.yaml", CONFIG.encode()), ("./model_weights.ckpt", weights.getvalue())):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    names = {torch.float32: "F32", torch.int64: "I64"}
    table = {k: {"dtype": names[v.dtype], "shape": list(v.shape),
                 "sha256": hashlib.sha256(v.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()}
             for k, v in sorted(made.state_dict().items())}
    with open(os.path.join(out, "tiny.nemo.hf.json"), "w", encoding="utf-8") as f:
        json.dump({"tensors": table, "objects": {}}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
