"""What `s2s-ckpt convert` writes, loaded by the real libraries: torch_dist by torch.distributed.checkpoint and megatron-core,
Hugging Face folders by safetensors; every tensor must have the bytes that the fixture's own library gave.
Exit 0 ok, 1 different, 77 a library is absent."""
import json
import os
import subprocess
import sys
import tempfile

from tool import has, here, need, program

need("torch", "safetensors")
import load_back as libraries  # noqa: E402

mcore = has("megatron.core")
data = os.path.join(here, "data")
bad = []


def load_back(path):
    # as it comes back from a file
    return json.loads(json.dumps(libraries.listing(path, mcore), sort_keys=True))


def compare(what, got, want):
    if not want["tensors"]:
        bad.append("%s: nothing to compare with" % what)
    if got["errors"]:
        bad.append("%s: %s" % (what, got["errors"]))
    g = {k: (v["dtype"], v["shape"], v["sha256"]) for k, v in got["tensors"].items()}
    w = {k: (v["dtype"], v["shape"], v["sha256"]) for k, v in want["tensors"].items()}
    for key in sorted(set(g) | set(w)):
        if g.get(key) != w.get(key):
            bad.append("%s: %s: %r, expected %r" % (what, key, g.get(key), w.get(key)))


with tempfile.TemporaryDirectory() as tmp:
    for name in ("mcore016_hybrid_tp2pp2ep2", "mcore015_vlm_tp2", "dcp_plain", "dcp_fsdp2", "hf_sharded", "zip.pt"):
        source = os.path.join(data, name)
        want = json.load(open(source + ".expected.json", encoding="utf-8"))
        out = os.path.join(tmp, name + ".dist")
        subprocess.run([program, "convert", "-q", "--to", "torch_dist", "--max-shard-size", "20k", source, out], check=True)
        got = load_back(out)
        compare(name + " as torch_dist", got, want)
        if want["kind"] == "mcore" and got["common"] != want["common"]:
            bad.append(name + ": the common state changed")
        if want["kind"] == "mcore" and got["objects"] != want["objects"]:
            bad.append(name + ": byte objects changed")
        if os.path.exists(source + ".hf.json"):
            out = os.path.join(tmp, name + ".hf")
            subprocess.run([program, "convert", "-q", "--to", "hf", "--max-shard-size", "8k", source, out], check=True)
            back = os.path.join(tmp, name + ".back")
            config = os.path.join(tmp, "config.json")
            with open(config, "w", encoding="utf-8") as f:
                args = want["common"]["args"]["namespace"]
                json.dump({"num_attention_heads": args["num_attention_heads"], "num_key_value_heads": args["num_query_groups"],
                           "vision_config": {"num_attention_heads": 2}}, f)
            family = "nemotron_vlm" if "vlm" in name else "nemotron_h"
            subprocess.run([program, "convert", "-q", "--to", "hf", "--keep-vocab-padding", source, out + "p"], check=True)
            subprocess.run([program, "convert", "-q", "--to", "torch_dist", "--map", family, "--config", config, out + "p", back], check=True)
            model = {k: v for k, v in want["tensors"].items() if not k.startswith("optimizer")}
            compare(name + " from hf", load_back(back), {"tensors": model})
            compare(name + " as hf", load_back(out), json.load(open(source + ".hf.json", encoding="utf-8")))

print("\n".join(bad[:40]) if bad else "all tensors as the real libraries have them%s" % (" (megatron-core too)" if mcore else ""))
sys.exit(bool(bad))
