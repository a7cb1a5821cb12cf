"""`s2s-ckpt convert --to hf` of Megatron checkpoints without a config.json: transformers opens what it writes out of the saved arguments,
finds every weight and no other, and runs. Exit 0 ok, 1 different, 77 a library is absent."""
import os
import subprocess
import sys
import tempfile

try:
    import torch
    from transformers import AutoModelForCausalLM
except ImportError:
    sys.exit(77)

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(os.path.dirname(here)))
program = os.path.join(os.environ.get("S2S_BIN", os.path.join(root, "bin")), "s2s-ckpt")
bad = []
with tempfile.TemporaryDirectory() as tmp:
    for name, kind in (("mcore016_hybrid_tp2pp2ep2", "NemotronHForCausalLM"), ("mp_rank_dense", "Qwen2ForCausalLM")):
        out = os.path.join(tmp, name)
        subprocess.run([program, "convert", "-q", "--strict", "--to", "hf", os.path.join(here, "data", name), out], check=True)
        model, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True, experts_implementation="eager")
        if type(model).__name__ != kind:
            bad.append("%s: a %s, expected %s" % (name, type(model).__name__, kind))
        bad += ["%s: %s: %s" % (name, what, info[what]) for what in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[what]]
        with torch.no_grad():
            logits = model.eval()(torch.arange(12)[None]).logits
        if not torch.isfinite(logits).all():
            bad.append("%s: logits are not finite" % name)
print("\n".join(bad) if bad else "transformers opens what the saved arguments say")
sys.exit(bool(bad))
