"""Names, shapes and values of the decoder families: random tiny models saved by transformers, converted to Megatron's names and compared
with a mapping written apart (megatron_names.py) and with what megatron-core's own models ask for; back again bit for bit; the other
spellings that Megatron checkpoints have; and what comes out is opened by transformers.

check_families.py [MODELS [FAMILY..]]: so many models a family (20). Exit 0 ok, 1 different, 77 a library is absent."""
import argparse
import glob
import json
import os
import shutil
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
try:
    import torch
    import torch.distributed.checkpoint as dcp
    import transformers
    from safetensors import safe_open
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)
import families
import megatron_names as names
import mcore_cpu
from tool import bad, compare, convert, has

mcore = has("megatron.core")
if mcore:
    mcore_cpu.start()


def read_hf(folder):
    out = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        with safe_open(path, "pt") as f:
            out.update((key, f.get_tensor(key)) for key in f.keys())
    return out


def read_dist(folder):
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    (folder,) = glob.glob(os.path.join(folder, "iter_*")) or glob.glob(os.path.join(folder, "release")) or [folder]
    reader = dcp.FileSystemReader(folder)
    meta = reader.read_metadata().state_dict_metadata
    out = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in meta.items() if isinstance(m, TensorStorageMetadata)}
    dcp.load(out, storage_reader=reader, no_dist=True)
    return out, folder


def write_dist(folder, tensors, args):
    """as torch and Megatron leave it"""
    os.makedirs(folder)
    dcp.save({k: t.contiguous().clone() for k, t in tensors.items()}, checkpoint_id=folder, no_dist=True)
    torch.save({"args": argparse.Namespace(**args), "iteration": 3}, os.path.join(folder, "common.pt"))
    with open(os.path.join(folder, "metadata.json"), "w", encoding="utf-8") as f:
        json.dump({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}, f)


def is_alike(numbered):
    kinds = {}
    for key in numbered:
        if "decoder.layers." in key:
            n, rest = key.split("decoder.layers.")[1].split(".", 1)
            kinds.setdefault(int(n), set()).add(rest)
    return len({frozenset(k) for k in kinds.values()}) == 1


def spellings(family, text, numbered):
    """other ways to store the same tensors: a word and the names"""
    is_gated, can_stack = not family.startswith("nemotron"), family != "nemotron_h" and is_alike(numbered)
    yield "numbered", numbered
    yield "unfused norms", names.unfused(numbered)
    yield "local norms", names.local_moe_norm(numbered)
    yield "singletons", names.singletons(numbered, is_gated)
    yield "padded", names.padded(numbered, 64)
    yield "wrapped", names.wrapped(numbered, "module.")
    yield "wrapped twice", names.wrapped(numbered, "model.module.module.")
    if can_stack:
        yield "stacked", names.stacked(numbered)
        yield "stacked unfused", names.stacked(names.unfused(numbered))
        yield "stacked singletons", names.stacked(names.singletons(numbered, is_gated))
        yield "stacked, wrapped", names.wrapped(names.stacked(numbered), "model.module.")


def check_model(family, seed, tmp):
    what = "%s %d" % (family, seed)
    model, map_name = families.make(family, seed)
    if seed % 3 == 0:
        model = model.bfloat16()
    text = model.config.get_text_config()
    source, dist, back = (os.path.join(tmp, x) for x in ("hf", "dist", "back"))
    model.save_pretrained(source, max_shard_size="10KB" if seed % 2 else "5GB")
    original = read_hf(source)
    prefix = "language_model." if "multimodal" in family else ""
    numbered = names.hybrid(original, text) if family == "nemotron_h" else names.decoder(original, text, prefix)
    if prefix:
        numbered = names.with_eye(original, numbered)
    is_stacked = family != "nemotron_h" and is_alike(numbered)
    if convert(what + " to torch_dist", "--to", "torch_dist", "--map", map_name, source, dist):
        got, folder = read_dist(dist)
        compare(what + " in Megatron's names", got, names.stacked(numbered) if is_stacked else numbered)
        if mcore and family in mcore_cpu.builders:
            asked = mcore_cpu.stored(mcore_cpu.wanted(mcore_cpu.builders[family](text)))
            have = {k: tuple(t.shape) for k, t in got.items()}
            for key in sorted(set(asked) | set(have)):
                if asked.get(key) != have.get(key):
                    bad.append("%s: %s: megatron-core asks for %s, there is %s" % (what, key, asked.get(key), have.get(key)))
        if convert(what + " back", "--to", "hf", dist, back):
            compare(what + " back", read_hf(back), original)
            again, info = type(model).from_pretrained(back, output_loading_info=True)
            bad.extend("%s: transformers: %s: %s" % (what, k, v) for k, v in info.items() if v and k.endswith("_keys"))
            if type(again.config) is not type(model.config):
                bad.append("%s: transformers reads a %s" % (what, type(again.config)))
    args = dict(num_layers=text.num_hidden_layers, num_attention_heads=text.num_attention_heads, num_query_groups=text.num_key_value_heads,
                kv_channels=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
                group_query_attention=True, vocab_size=text.vocab_size, hidden_size=text.hidden_size, squared_relu=family.startswith("nemotron"))
    every = list(spellings(family, text, numbered))
    for word, stored in [every[seed % len(every)], every[(seed * 5 + 3) % len(every)]]:
        spelled, out = os.path.join(tmp, "spelled"), os.path.join(tmp, "out")
        write_dist(spelled, stored, args)
        if convert("%s: %s" % (what, word), "--to", "hf", spelled, out):
            compare("%s: %s" % (what, word), read_hf(out), original)
        shutil.rmtree(spelled)
        shutil.rmtree(out, ignore_errors=True)


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    chosen = sys.argv[2:] or [*families.families, *families.composites]
    for family in chosen:
        before = len(bad)
        for seed in range(n):
            with tempfile.TemporaryDirectory() as tmp:
                check_model(family, seed, tmp)
        print("%s: %d models, %d differences%s" % (family, n, len(bad) - before,
                                                   "" if mcore and family in mcore_cpu.builders else " (no megatron-core model)"), flush=True)
    print("\n".join(bad[:60]))
    return bool(bad)


sys.exit(main())
