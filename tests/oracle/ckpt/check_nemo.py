"""`s2s-ckpt convert --to hf` of a .nemo archive, opened by transformers: every weight is found and the logits are those of the model
that the archive was made from. Exit 0 ok, 1 different, 77 a library is absent."""
import os
import subprocess
import sys
import tempfile

try:
    import torch
    from transformers import ParakeetForCTC
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

import make_nemo  # noqa: E402
from tool import program

bad = []
with tempfile.TemporaryDirectory() as tmp:
    make_nemo.main(tmp)
    out = os.path.join(tmp, "hf")
    subprocess.run([program, "convert", "-q", "--strict", "--to", "hf", os.path.join(tmp, "tiny.nemo"), out], check=True)
    want, (got, info) = make_nemo.model(), ParakeetForCTC.from_pretrained(out, output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what]:
            bad.append("%s: %s" % (what, info[what]))
    features = torch.randn(2, 120, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        a, b = want(features).logits, got.eval()(features).logits
    if not torch.equal(a, b):
        bad.append("logits differ by %g" % (a - b).abs().max())
print("\n".join(bad) if bad else "a .nemo archive opens in transformers with the same logits")
sys.exit(bool(bad))
