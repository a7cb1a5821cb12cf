"""`s2s-ckpt convert --to hf` of Megatron checkpoints without a config.json: transformers opens what it writes out of the saved arguments,
finds every weight and no other, and gives the logits of the model that the weights and arguments were made from.

check_config.py [MODELS [FAMILY..]]: so many models a family (8). Exit 0 ok, 1 different, 77 a library is absent."""
import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
try:
    import torch
    import torch.distributed.checkpoint as dcp
    import transformers
    import yaml
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)
import bridge_config
import families
import megatron_args
import megatron_names as names
from tool import here, program

bad = []
# what saved arguments have no word for
UNSAID = {"gemma": "hidden_act", "gemma2": "hidden_activation", "gemma3": "hidden_activation"}


def convert(source, out, *words):
    p = subprocess.run([program, "convert", "--strict", "--to", "hf", *words, source, out], capture_output=True, text=True, check=False)
    if p.returncode:
        raise ValueError(p.stderr)
    return p.stderr


def load(what, folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, experts_implementation="eager")
    bad.extend("%s: %s: %s" % (what, k, info[k]) for k in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[k])
    return model.eval()


def write_dist(folder, tensors, args):
    """as torch and Megatron leave it"""
    os.makedirs(folder)
    dcp.save({k: t.contiguous().clone() for k, t in tensors.items()}, checkpoint_id=folder, no_dist=True)
    common = {"iteration": 3, "checkpoint_version": 3.0}
    if args is not None:
        common["args"] = argparse.Namespace(**args)
    torch.save(common, os.path.join(folder, "common.pt"))
    with open(os.path.join(folder, "metadata.json"), "w", encoding="utf-8") as f:
        json.dump({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}, f)


def effective(args):
    """without what Megatron's script says in any case, and does not use for such a model"""
    off = [] if args.get("group_query_attention") else ["num_query_groups"]
    if not args.get("num_experts") or "E" not in (args.get("hybrid_override_pattern") or "E"):
        off += [k for k in args if k.startswith("moe_")]
    if args.get("position_embedding_type") != "rope":
        off += [k for k in args if k.startswith("rotary_")]
    if not args.get("use_rope_scaling"):
        off += ["rope_scaling_factor"]
    if set(args.get("window_attn_skip_freq") or [1]) == {1}:
        off += ["window_attn_skip_freq"]
    return {k: v for k, v in args.items() if k not in off and v not in (None, False, "vanilla")}


def check_args(what, map_name, source, tmp, want):
    """the arguments that go with Megatron's names, as its own script would have saved them"""
    dist = os.path.join(tmp, "args")
    p = subprocess.run([program, "convert", "--strict", "--to", "torch_dist", "--map", map_name, source, dist], capture_output=True, text=True,
                       check=True)
    if "WARN" in p.stderr.upper():
        bad.append("%s: to Megatron: %s" % (what, p.stderr))
    got = vars(torch.load(glob.glob(os.path.join(dist, "*", "common.pt"))[0], weights_only=False)["args"])
    if "hybrid_layer_pattern" in want:
        want = dict(want, hybrid_layer_pattern=None, hybrid_override_pattern=want["hybrid_layer_pattern"])
    for key, value in effective(want).items():
        mine = got.get(key)
        if isinstance(value, tuple):
            value = list(value)
        same = abs(mine - value) <= 1e-12 * abs(value) if isinstance(value, float) and mine is not None else mine == value
        if not same:
            bad.append("%s: argument %s is %s, not %s" % (what, key, mine, value))
    more = {k: v for k, v in effective(got).items() if k in want and want[k] in (None, False) and k not in ("mamba_num_heads", "hybrid_override_pattern")}
    bad.extend("%s: argument %s is %s, expected none" % (what, k, v) for k, v in more.items())


def check_back(what, family, model, dist, out):
    """what comes out opens, says what it has to say, and computes what the model does"""
    # nothing in Megatron's names tells them from Qwen's
    said = convert(dist, out, *(["--map", "mixtral"] if family == "mixtral" else []))
    lines = [x for x in said.splitlines() if "no config.json" in x or "do not say" in x]
    if [UNSAID[family] in x for x in lines] != [True] if family in UNSAID else lines:
        bad.append("%s: said %s" % (what, said))
    if not os.path.exists(os.path.join(out, "config.json")):
        bad.append("%s: no config.json: %s" % (what, said))
        return
    again = load(what, out)
    if type(again) is not type(model) and {family, again.config.model_type} != {"llama", "mistral"}:  # the same without a window
        bad.append("%s: a %s, expected %s" % (what, type(again).__name__, type(model).__name__))
    tokens = torch.randint(0, model.config.vocab_size, (2, 23))
    with torch.no_grad():
        ours, theirs = (m(tokens, use_cache=False).logits for m in (again, model))
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    if not error < 1e-5:
        bad.append("%s: logits differ by %.3g of the largest" % (what, error))


def check(family, seed, tmp):
    what = "%s %d" % (family, seed)
    model, map_name = families.make(family, seed)
    source, dist, out, bridge, out_bridge = (os.path.join(tmp, x) for x in ("hf", "dist", "out", "bridge", "out-bridge"))
    model.save_pretrained(source)
    model = load(what, source)  # with the same implementation of experts
    original, c = load_file(os.path.join(source, "model.safetensors")), model.config
    hybrid = family == "nemotron_h"
    args = (megatron_args.hybrid if hybrid else megatron_args.decoder)(c)
    tensors = (names.hybrid if hybrid else names.decoder)(original, c)
    check_args(what, map_name, source, tmp, args)
    write_dist(dist, tensors, args)
    check_back(what, family, model, dist, out)
    write_dist(bridge, tensors, None)
    # Gemma 3's is no configuration that a model is built from yet
    decoder = bridge_config.built if seed % 2 and family != "gemma3" else bridge_config.decoder
    with open(os.path.join(bridge, "run_config.yaml"), "w", encoding="utf-8") as f:
        yaml.safe_dump({"model": (bridge_config.hybrid if hybrid else decoder)(c)}, f)
    check_back(what + ", run_config.yaml", family, model, bridge, out_bridge)


def arguments(what, map_name, source, tmp):
    dist = os.path.join(tmp, "args")
    p = subprocess.run([program, "convert", "--strict", "--to", "torch_dist", "--map", map_name, source, dist], capture_output=True, text=True)
    if p.returncode:
        raise ValueError(what + ": " + p.stderr)
    got = vars(torch.load(glob.glob(os.path.join(dist, "*", "common.pt"))[0], weights_only=False)["args"])
    shutil.rmtree(dist)
    return got


# nothing else of them may be what a class takes by default: they would be too large
SMALL = dict(hidden_size=96, head_dim=4, num_hidden_layers=2, intermediate_size=14, vocab_size=23, moe_intermediate_size=5,
             shared_expert_intermediate_size=7)
HYBRID = dict(hybrid_override_pattern="M*-E", mamba_num_heads=8, mamba_head_dim=4, n_groups=2, ssm_state_size=5, n_routed_experts=4,
              moe_shared_expert_intermediate_size=7)


def check_absent(family, tmp):
    """older files of models of several parts have in text_config what differs from the defaults of its class; the arguments are the same"""
    model, map_name = families.make(family, 0)
    kind, what = type(model.config), family + " with its class's defaults"
    own = kind().to_dict()
    small = {k: v for k, v in SMALL.items() if k in own}
    small.update({"nemotron": dict(num_key_value_heads=48), "nemotron_h": HYBRID, "mixtral": dict(num_local_experts=3)}.get(family, {}))
    if "moe" in family:
        small["num_experts"] = 9
    type(model)(kind(**small)).save_pretrained(tmp)
    path = os.path.join(tmp, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    full = arguments(what, map_name, tmp, tmp)
    sizes = ("hidden_size", "num_hidden_layers", "vocab_size", "moe_intermediate_size", "num_experts", "num_local_experts", "n_routed_experts")
    less = {k: v for k, v in config.items() if k == "model_type" or k not in sizes and (k not in own or own[k] != v)}
    with open(path, "w", encoding="utf-8") as f:
        json.dump(less, f)
    got = arguments(what, map_name, tmp, tmp)
    for key in sorted(set(full) | set(got)):
        # as many as there are heads, and a factor of 1, need no word
        none = got.get(key) is None and full.get(key) == {"num_query_groups": full["num_attention_heads"], "moe_router_topk_scaling_factor": 1}.get(key)
        if got.get(key) != full.get(key) and not none:
            bad.append("%s: argument %s is %s, not %s" % (what, key, got.get(key), full.get(key)))


def check_fixtures():
    """checkpoints that say less than Megatron's script does"""
    for name, kind in (("mcore016_hybrid_tp2pp2ep2", "NemotronHForCausalLM"), ("mp_rank_dense", "Qwen2ForCausalLM")):
        with tempfile.TemporaryDirectory() as tmp:
            out = os.path.join(tmp, name)
            convert(os.path.join(here, "data", name), out)
            model = load(name, out)
            if type(model).__name__ != kind:
                bad.append("%s: a %s, expected %s" % (name, type(model).__name__, kind))
            with torch.no_grad():
                logits = model(torch.arange(12)[None]).logits
            if not torch.isfinite(logits).all():
                bad.append("%s: logits are not finite" % name)


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    check_fixtures()
    for family in sys.argv[2:] or list(families.families):
        before = len(bad)
        with tempfile.TemporaryDirectory() as tmp:
            check_absent(family, tmp)
        for seed in range(n):
            tmp = tempfile.mkdtemp()
            try:
                check(family, seed, tmp)
            except (ValueError, RuntimeError) as e:
                bad.append("%s %d: %s" % (family, seed, e))
            shutil.rmtree(tmp)
        print("%s: %d models, %d differences" % (family, n, len(bad) - before), flush=True)
    print("\n".join(bad[:60]) if bad else "transformers opens what the saved arguments say, and computes the same")
    return bool(bad)


sys.exit(main())
