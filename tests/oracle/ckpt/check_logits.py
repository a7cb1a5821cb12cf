"""The same weights under both names say the same: transformers' model of a folder that `s2s-ckpt convert --to hf` wrote, and
megatron-core's own model loaded from Megatron's names (dist_checkpointing, strict) give the same logits. Random tiny models in fp32.

check_logits.py [MODELS [FAMILY..]]: so many models a family (8). Exit 0 ok, 1 different, 77 a library is absent."""
import glob
import os
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
from tool import need, program

need("safetensors", "torch", "transformers", "megatron.core")
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import families  # noqa: E402
import mcore_cpu  # noqa: E402

mcore_cpu.start()
# fp32 sums in another order; the largest seen is a tenth of it
TOLERANCE = 1e-4


def convert(*words):
    subprocess.run([program, "convert", "-q", "--strict", *words], check=True)


def tie(config, folder):
    """A folder without the output matrix becomes a tied Megatron model; transformers' NemotronH never ties."""
    path = os.path.join(folder, "model.safetensors")
    tensors = safetensors.torch.load_file(path)
    del tensors["lm_head.weight"]
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    config.tie_word_embeddings = True
    config.save_pretrained(folder)


def check(family, seed, tmp):
    """the largest difference of logits, as a share of the largest logit"""
    model, map_name = families.make(family, seed)
    source, dist, back = (os.path.join(tmp, x) for x in ("hf", "dist", "back"))
    model.save_pretrained(source)
    if family == "nemotron_h" and seed % 2:
        tie(model.config, source)
    convert("--to", "torch_dist", "--map", map_name, source, dist)
    convert("--to", "hf", dist, back)
    (folder,) = glob.glob(os.path.join(dist, "iter_*")) or glob.glob(os.path.join(dist, "release")) or [dist]
    megatron = mcore_cpu.builders[family](model.config)
    mcore_cpu.load(megatron, folder)
    if family == "gemma":  # gains are around 0 in the checkpoint, and words are scaled as they are looked up
        for name, module in megatron.named_modules():
            if "layernorm" in name and hasattr(module, "weight"):
                module.weight.data += 1
        megatron.embedding.register_forward_hook(lambda *a: a[-1] * model.config.hidden_size ** 0.5)
    tokens = torch.randint(0, model.config.vocab_size, (2, 19))
    again, info = type(model).from_pretrained(back, experts_implementation="eager", output_loading_info=True)
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    again.eval()
    with torch.no_grad():
        theirs = again(tokens, use_cache=False).logits
    ours = mcore_cpu.logits(megatron, tokens)
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    status = 0
    for family in sys.argv[2:] or list(mcore_cpu.builders):
        worst = 0
        for seed in range(n):
            with tempfile.TemporaryDirectory() as tmp:
                error = check(family, seed, tmp)
            if not error < TOLERANCE:
                print("%s %d: logits differ by %.3g of the largest" % (family, seed, error))
                status = 1
            worst = max(worst, error)
        print("%s: %d models, logits within %.2g of the largest" % (family, n, worst), flush=True)
    return status


sys.exit(main())
