"""Layers that predict further tokens, of Nemotron-H (Megatron numbers depths and layers in each, Hugging Face all layers in a row): random models
of transformers with such layers added, every kind of layer in them, one to three depths, converted to Megatron's names and held against a mapping
written apart, back bit for bit with the configuration, opened by transformers; alone and as the language model of a Nemotron VLM, whose Hugging
Face names begin with mtp. as well; and each of their tensors is missed in both directions.

check_mtp.py [MODELS]: so many (12). Exit 0 ok, 1 different, 77 a library is absent."""
import json
import os
import random
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
from tool import bad, compare, convert, need, need_ok, run

need("torch", "transformers", "safetensors")
import torch  # noqa: E402
import transformers as hf  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
import families  # noqa: E402
import megatron_names as names  # noqa: E402


def layer(c, kind):
    """Hugging Face's tensors of one layer, without a prefix"""
    h, n, d = c.hidden_size, c.num_attention_heads, c.head_dim
    inner, state = c.mamba_num_heads * c.mamba_head_dim, c.n_groups * c.ssm_state_size
    shapes = {"M": {"in_proj.weight": (2 * inner + 2 * state + c.mamba_num_heads, h), "conv1d.weight": (inner + 2 * state, 1, c.conv_kernel),
                    "conv1d.bias": (inner + 2 * state,), "A_log": (c.mamba_num_heads,), "D": (c.mamba_num_heads,), "dt_bias": (c.mamba_num_heads,),
                    "norm.weight": (inner,), "out_proj.weight": (h, inner)},
              "*": {"q_proj.weight": (n * d, h), "k_proj.weight": (c.num_key_value_heads * d, h), "v_proj.weight": (c.num_key_value_heads * d, h),
                    "o_proj.weight": (h, n * d)},
              "-": {"up_proj.weight": (c.intermediate_size, h), "down_proj.weight": (h, c.intermediate_size)}}
    x, m, s = c.moe_latent_size or h, c.moe_intermediate_size, c.moe_shared_expert_intermediate_size
    moe = {"gate.weight": (c.n_routed_experts, h), "gate.e_score_correction_bias": (c.n_routed_experts,), "shared_experts.up_proj.weight": (s, h),
           "shared_experts.down_proj.weight": (h, s)}
    for e in range(c.n_routed_experts):
        moe.update({"experts.%d.up_proj.weight" % e: (m, x), "experts.%d.down_proj.weight" % e: (x, m)})
    if c.moe_latent_size:
        moe.update({"fc1_latent_proj.weight": (x, h), "fc2_latent_proj.weight": (h, x)})
    shapes["E"] = moe
    out = {"mixer." + k: torch.randn(v) for k, v in shapes[kind].items()}
    out["norm.weight"] = torch.randn(h)
    return out


def predicting(c, pattern, depths):
    """their tensors by Hugging Face's names and by Megatron's"""
    of_hf, plain, h, n = {}, {}, c.hidden_size, len(pattern)
    for i in range(n * depths):
        for key, t in layer(c, pattern[i % n]).items():
            of_hf["mtp.layers.%d.%s" % (i, key)] = plain["backbone.layers.%d.%s" % (i, key)] = t
    plain["backbone.embeddings.weight"], plain["backbone.norm_f.weight"] = torch.zeros(1), torch.zeros(1)
    many = type("c", (), dict({k: getattr(c, k) for k in ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "num_key_value_heads")},
                              hybrid_override_pattern=pattern * depths))
    of_megatron = {}
    for key, t in names.hybrid(plain, many).items():
        if key.startswith("decoder.layers."):
            number, rest = key[len("decoder.layers."):].split(".", 1)
            of_megatron["mtp.layers.%d.mtp_model_layer.layers.%d.%s" % (int(number) // n, int(number) % n, rest)] = t
    for d in range(depths):
        for key, at, shape in (("eh_proj", 0, (h, 2 * h)), ("enorm", 0, (h,)), ("hnorm", 0, (h,)), ("final_layernorm", n - 1, (h,))):
            t = torch.randn(shape)
            of_hf["mtp.layers.%d.%s.weight" % (d * n + at, key)] = of_megatron["mtp.layers.%d.%s.weight" % (d, key)] = t
    return of_hf, of_megatron


def megatron(path, tmp):
    flat = os.path.join(tmp, "flat.safetensors")
    return load_file(flat) if need_ok(path, "convert", "-q", "--to", "safetensors", path, flat) else {}


def one_less(what, folder, file, config, tmp):
    count, out = 0, os.path.join(tmp, "less")
    for path, words in ((os.path.join(folder, "model.safetensors"), ("--to", "torch_dist", "--map", "nemotron_h", folder)),
                        (file, ("--to", "hf", "--config", config, file))):
        tensors = load_file(path)
        for lost in [k for k in tensors if "mtp." in k]:
            save_file({k: v for k, v in tensors.items() if k != lost}, path)
            if run("convert", "--plan", *words, out).returncode != 1:
                bad.append("%s without %s: not missed" % (what, lost))
            count += 1
        save_file(tensors, path)
    return count


def check(seed, tmp):
    r, count = random.Random("mtp %d" % seed), 0
    model, _ = families.make("nemotron_h", seed)
    c = model.config
    pattern, depths = "".join(r.choice("M*-E") for _ in range(r.choice([1, 2, 2, 3]))), r.choice([1, 1, 2, 3])
    what = "%d: %s, %d depths" % (seed, pattern, depths)
    folder, dist, back, file = (os.path.join(tmp, n) for n in ("hf", "dist", "back", "file.safetensors"))
    model.save_pretrained(folder)
    extra, wanted = predicting(c, pattern, depths)
    main = load_file(os.path.join(folder, "model.safetensors"))
    whole = dict(main, **extra)
    save_file(whole, os.path.join(folder, "model.safetensors"))
    config = os.path.join(folder, "config.json")
    with open(config, encoding="utf-8") as f:
        said = json.load(f)
    said.update(num_nextn_predict_layers=depths, mtp_hybrid_override_pattern=pattern)
    said.pop("mtp_layers_block_type", None)
    with open(config, "w", encoding="utf-8") as f:
        json.dump(said, f)
    if not convert(what, "--to", "torch_dist", "--map", "nemotron_h", folder, dist):
        return 0
    got = megatron(dist, tmp)
    compare(what, got, dict(names.hybrid(main, c), **wanted))
    # the configuration out of the arguments that went along
    if convert(what, "--to", "hf", dist, back):
        compare(what + " back", load_file(os.path.join(back, "model.safetensors")), whole)
        _, info = type(model).from_pretrained(back, output_loading_info=True)
        bad.extend("%s: transformers: %s: %s" % (what, k, v) for k, v in info.items() if v and k.endswith("_keys"))
        with open(os.path.join(back, "config.json"), encoding="utf-8") as f:
            made = json.load(f)
        bad.extend("%s: config.json: %s: %s" % (what, k, made.get(k)) for k, v in
                   (("num_nextn_predict_layers", depths), ("mtp_hybrid_override_pattern", pattern)) if made.get(k) != v)
    kept = os.path.join(tmp, "kept")
    save_file(got, file)
    if convert(what, "--to", "hf", "--config", config, file, kept):
        compare(what + " of one file", load_file(os.path.join(kept, "model.safetensors")), whole)
    if seed % 3 == 0:
        count = one_less(what, folder, file, config, tmp)
    # inside of a model of several parts
    parts, split, again = (os.path.join(tmp, n) for n in ("parts.safetensors", "split", "again"))
    with open(os.path.join(tmp, "vlm.json"), "w", encoding="utf-8") as f:
        json.dump({"llm_config": said}, f)
    save_file({"language_model." + k: v for k, v in got.items()}, parts)
    if convert(what, "--to", "hf", "--config", f.name, parts, split):
        compare(what + " as a part", load_file(os.path.join(split, "model.safetensors")),
                {k if k.startswith("mtp.") else "language_model." + k: v for k, v in whole.items()})
        if convert(what, "--to", "torch_dist", "--map", "language_model", "--config", f.name, split, again):
            compare(what + " as a part, back", megatron(again, tmp), load_file(parts))
    return count


n, lost = int(sys.argv[1]) if len(sys.argv) > 1 else 12, 0
for seed in range(n):
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as tmp:
        lost += check(seed, tmp)
print("\n".join(bad[:40]) if bad else "%d models that predict further tokens; each of %d tensors is missed" % (n, lost))
sys.exit(bool(bad))
