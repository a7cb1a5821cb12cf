"""False alarms and missed faults of names that are kept: tiny models of the decoder classes that s2s-ckpt knows, with every key of config.json
drawn that decides which weights there are or how large, as save_pretrained leaves them, in memory's names or in a .bin. What transformers loads
with nothing missing or of another shape `verify` and `convert --strict` have to take in silence; once a weight is lost or reshaped, or
config.json changed, `verify` has to refuse exactly what transformers then misses.

check_alarms.py [MODELS [TYPE..]]: so many models a type (6). Exit 0 ok, 1 different, 77 a library is absent."""
import glob
import json
import os
import random
import re
import shutil
import sys
import tempfile
import warnings

from tool import bad, need, run

need("torch", "transformers", "safetensors")
warnings.filterwarnings("ignore")
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

STEMS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma": "Gemma", "gemma2": "Gemma2", "gemma3_text": "Gemma3",
         "mixtral": "Mixtral", "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe", "nemotron": "Nemotron", "nemotron_h": "NemotronH"}
HEADS = ("ForCausalLM",) * 4 + ("Model", "TextModel", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
NUMBERS = ("num_hidden_layers hidden_size intermediate_size num_attention_heads num_key_value_heads vocab_size num_experts num_local_experts "
           "n_routed_experts moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size head_dim mamba_num_heads "
           "mamba_head_dim n_groups ssm_state_size conv_kernel").split()
FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "qkv_bias", "use_bias", "use_conv_bias")


def drawn(r, **choices):
    """keys that are there, of each a value or (...) none"""
    picked = {k: r.choice(v) for k, v in choices.items()}
    return {k: v for k, v in picked.items() if v is not ...}


def settings(r, kind):
    groups = r.choice([1, 2, 3])
    heads, dim = groups * r.choice([1, 2, 3]), 2 * r.randint(1, 4)
    s = dict(hidden_size=heads * dim, num_attention_heads=heads, num_key_value_heads=groups, head_dim=r.choice([dim, 2 * r.randint(1, 5)]),
             num_hidden_layers=r.choice([1, 2, 3]), intermediate_size=r.randint(7, 30), vocab_size=r.choice([20, 37, 64]),
             max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    s.update(drawn(r, **{k: [True, False, ...] for k in FLAGS}, sliding_window=[4, ...]))
    if kind in ("qwen2", "qwen2_moe", "mixtral", "llama", "nemotron") and r.random() < 0.5:
        s.pop("head_dim")
        s["hidden_size"] = heads * 4
    if kind == "nemotron":
        s["partial_rotary_factor"] = 1.0
    if "moe" in kind:
        s.update(drawn(r, num_experts=[1, 2, 5], moe_intermediate_size=[3, 8], decoder_sparse_step=[1, 1, 2, ...], mlp_only_layers=[[], [0], [0, 1], ...]),
                 num_experts_per_tok=1, shared_expert_intermediate_size=7)
    if kind == "mixtral":
        s.update(num_local_experts=r.choice([2, 3]), num_experts_per_tok=1)
    if kind == "nemotron_h":
        # the biases of its experts are not among the tables' required ones
        s.update(num_hidden_layers=4, hybrid_override_pattern="".join(r.sample("ME*-", 4)), mamba_num_heads=4, mamba_head_dim=r.choice([2, 4]),
                 ssm_state_size=r.choice([3, 4]), n_groups=r.choice([1, 2]), conv_kernel=r.choice([2, 4]), n_routed_experts=4,
                 moe_intermediate_size=8, moe_shared_expert_intermediate_size=12, num_experts_per_tok=2, n_group=r.choice([1, 2]), mlp_bias=False,
                 moe_latent_size=r.choice([None, 5]))
    return s


def make(r, kind):
    names = [n for n in (STEMS[kind] + h for h in HEADS) if hasattr(hf, n)]
    model = getattr(hf, r.choice(names))
    s = settings(r, kind)
    # Gemma 3's have a configuration of the language model, or of more
    config = hf.Gemma3TextConfig if kind == "gemma3_text" else model.config_class
    if kind == "gemma3_text" and model.config_class is not config:
        model = hf.Gemma3ForCausalLM
    if "Classification" in model.__name__:
        s["num_labels"] = r.choice([1, 2, 5])
    return model(config(**s))


def lose(r, tensors):
    """the weights, less one, less a kind of them in all layers, less a layer; or one of another shape"""
    name = r.choice(sorted(tensors))
    how, pattern = r.randrange(4), re.sub(r"\d+", "#", name)
    layer = re.match(r"(.*layers\.\d+\.)", name)
    if how == 0 or (how == 2 and not layer):
        return name, {k: v for k, v in tensors.items() if k != name}
    if how == 1:
        return pattern, {k: v for k, v in tensors.items() if re.sub(r"\d+", "#", k) != pattern}
    if how == 2:
        return layer[1] + "*", {k: v for k, v in tensors.items() if not k.startswith(layer[1])}
    shape = list(tensors[name].shape)
    shape[r.randrange(len(shape))] += 1
    return "%s %s" % (name, shape), dict(tensors, **{name: torch.zeros(shape)})


def change(r, config):
    """config.json with another number or flag"""
    numbers = [k for k in NUMBERS if isinstance(config.get(k), int)]
    key = r.choice(numbers + [k for k in FLAGS if k != "mlp_bias" or config["model_type"] != "nemotron_h"])
    value = r.choice([config[key] + 1, config[key] * 2]) if key in numbers else not config.get(key, False)
    return "%s = %s" % (key, value), dict(config, **{key: value})


def write(folder, tensors, config, kind):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    if kind == "bin":
        torch.save(tensors, os.path.join(folder, "pytorch_model.bin"))
    else:
        save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(folder, "model.safetensors"), {"format": "pt"})


def lacks(model, folder):
    """what transformers misses; None: it cannot make the model at all"""
    try:
        _, info = type(model).from_pretrained(folder, output_loading_info=True, ignore_mismatched_sizes=True)
    except Exception:
        return None
    return [*info["missing_keys"], *info["mismatched_keys"]]


def judge(what, model, folder, whole):
    wanted, said = lacks(model, folder), run("verify", folder)
    if wanted is None:
        return 0
    if wanted and not said.returncode:
        bad.append("%s: not missed: %s" % (what, wanted[:3]))
    elif not wanted and (said.returncode or (whole and said.stderr)):
        bad.append("%s: whole, and yet: %s" % (what, said.stderr.strip()[:300]))
    return 1


def check(kind, seed, tmp):
    r = random.Random("%s %d" % (kind, seed))
    folder, out = os.path.join(tmp, "model"), os.path.join(tmp, "out")
    try:
        model = make(r, kind)
    except Exception:  # transformers' classes check some combinations
        return 0
    model.save_pretrained(folder, max_shard_size=r.choice(["5GB", "6KB"]))
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    tensors = {k: v for p in glob.glob(os.path.join(folder, "*.safetensors")) for k, v in load_file(p).items()}
    n, how = 0, r.choice(["saved", "saved", "memory", "bin"])
    what = "%s %d (%s, %s)" % (kind, seed, type(model).__name__, how)
    n += judge(what, model, folder, True)
    said = run("convert", "-q", "--strict", "--to", "hf", folder, out)
    if said.returncode or said.stderr:
        bad.append("%s: convert: %s" % (what, said.stderr.strip()[:300]))
    if how == "memory":
        tensors = {k: v.detach().clone() for k, v in model.state_dict().items()}
    for i in range(10):
        word, less = lose(r, tensors) if i < 6 else ("", tensors)
        word, other = change(r, config) if i >= 6 else (word, config)
        write(folder, less, other, how)
        n += judge("%s: %s" % (what, word), model, folder, False)
    return n


count = int(sys.argv[1]) if len(sys.argv) > 1 else 6
for kind in sys.argv[2:] or STEMS:
    n = 0
    for seed in range(count):
        with tempfile.TemporaryDirectory() as tmp:
            n += check(kind, seed, tmp)
    if n < 5 * count:
        bad.append("%s: only %d cases" % (kind, n))
print("\n".join(bad[:60]) or "check_alarms: ok")
sys.exit(bool(bad))
