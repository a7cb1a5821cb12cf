"""Models as transformers has them in memory (a layer's experts in one tensor, Nemotron-H as model.*) give the Megatron checkpoint that its
save_pretrained gives, also out of torch.save; so does a decoder without its matrix of outputs; a Mixtral is known by its names. And of models whose tensors some families have and others
have not, each tensor is taken away in turn, in both directions: none is left out in silence.

check_spellings.py [MODELS]: so many models a family (4). Exit 0 ok, 1 different, 77 a library is absent."""
import os
import random
import shutil
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
from tool import bad, convert, need, need_ok, run

need("torch", "transformers", "safetensors")
import torch  # noqa: E402
import transformers as hf  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
import families  # noqa: E402


def in_memory(family, seed, tmp):
    model, name = families.make(family, seed)
    disk, memory, file = (os.path.join(tmp, n) for n in ("disk", "memory", "memory.pt"))
    a, b, c, d, back = (os.path.join(tmp, n) for n in "abcde")
    what = "%s %d" % (family, seed)
    os.makedirs(memory)
    model.save_pretrained(disk)
    state = {k: v.clone() for k, v in model.state_dict().items() if k != "lm_head.weight" or not model.config.tie_word_embeddings}
    save_file(state, os.path.join(memory, "model.safetensors"))
    shutil.copy(os.path.join(disk, "config.json"), memory)
    torch.save(state, file)
    to = ("convert", "-q", "--strict", "--to", "torch_dist", "--map", name)
    need_ok(what, *to, disk, a)
    need_ok(what, *to, memory, b)
    need_ok(what, *to, "--config", os.path.join(disk, "config.json"), file, c)
    need_ok(what, "diff", a, b)
    need_ok(what, "diff", a, c)
    convert(what, "--to", "hf", a, back)
    need_ok(what, "diff", disk, back)
    # under the names that it has: transformers takes those too
    convert(what, "--to", "hf", memory, d)
    _, info = type(model).from_pretrained(d, output_loading_info=True)
    bad.extend("%s: transformers: %s: %s" % (what, k, v) for k, v in info.items() if v and k.endswith("_keys"))


def headless(family, seed, tmp):
    """transformers' model without the matrix of outputs, which has names of its own, as the tied model that it is a part of"""
    torch.manual_seed(seed)
    model = families.families[family](random.Random(seed))[0]
    model.config.tie_word_embeddings = True
    whole, part, a, b = (os.path.join(tmp, n) for n in ("whole", "part", "a", "b"))
    model.tie_weights()
    model.save_pretrained(whole)
    model.model.save_pretrained(part)
    for source, out in ((whole, a), (part, b)):
        need_ok("headless " + family, "convert", "-q", "--strict", "--to", "torch_dist", "--map", "llama", source, out)
    need_ok("headless " + family, "diff", a, b)


def one_less(what, name, model, tmp):
    whole, less, megatron, file, out = (os.path.join(tmp, n) for n in ("whole", "less", "megatron", "m.safetensors", "out"))
    model.save_pretrained(whole)
    shutil.copytree(whole, less)
    convert(what, "--to", "torch_dist", "--map", name, "--layers", "numbered", whole, megatron)
    need_ok(what, "convert", "-q", "--to", "safetensors", megatron, file)
    for path, words in ((os.path.join(less, "model.safetensors"), ("--to", "torch_dist", "--layers", "numbered", "--map", name, less)),
                        (file, ("--to", "hf", "--config", os.path.join(whole, "config.json"), file))):
        tensors = load_file(path)
        for lost in tensors:
            save_file({k: v for k, v in tensors.items() if k != lost}, path)
            p = run("convert", "--plan", *words, out)
            # of a Nemotron-H whose arguments say nothing words may be tied
            may = lost == "output_layer.weight" and "nothing says that it is tied" in p.stderr
            if p.returncode != 1 and not may:
                bad.append("%s without %s: exit %d" % (what, lost, p.returncode))
    return len(tensors)


SIZES = dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=12, vocab_size=20, tie_word_embeddings=False)
MANY = dict(SIZES, num_hidden_layers=3)
EXPERTS = dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=6)
MODELS = {
    "llama with biases": ("llama", lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**MANY, attention_bias=True, mlp_bias=True))),
    "qwen2": ("llama", lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**MANY))),
    "qwen3": ("llama", lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**MANY, head_dim=4))),
    "qwen2_moe": ("qwen_moe", lambda: hf.Qwen2MoeForCausalLM(hf.Qwen2MoeConfig(**MANY, **EXPERTS, shared_expert_intermediate_size=6))),
    "qwen3_moe": ("qwen_moe", lambda: hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**MANY, **EXPERTS, head_dim=4))),
    "nemotron": ("nemotron", lambda: hf.NemotronForCausalLM(hf.NemotronConfig(**MANY))),
    "mixtral": ("mixtral", lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**MANY, num_local_experts=2))),
    "gemma3": ("gemma2", lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**dict(MANY, tie_word_embeddings=True), head_dim=4))),
    "nemotron_h": ("nemotron_h", lambda: hf.NemotronHForCausalLM(hf.NemotronHConfig(
        **SIZES, head_dim=4, hybrid_override_pattern="ME-*ME-*", mamba_num_heads=2, mamba_head_dim=4, n_groups=1, ssm_state_size=3,
        n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=5, moe_shared_expert_intermediate_size=6, moe_latent_size=4, mlp_bias=True,
        chunk_size=4))),
    "nemotron_h without biases": ("nemotron_h", lambda: hf.NemotronHForCausalLM(hf.NemotronHConfig(
        **SIZES, head_dim=4, hybrid_override_pattern="M*M", mamba_num_heads=2, mamba_head_dim=4, n_groups=2, ssm_state_size=3, use_conv_bias=False,
        chunk_size=4))),
}

count, n = 0, int(sys.argv[1]) if len(sys.argv) > 1 else 4
MEMORY, HEADLESS = ("nemotron_h", "qwen2_moe", "qwen3_moe", "mixtral", "gemma3_multimodal"), ("qwen3", "llama")
for families_of, check in ((MEMORY, in_memory), (HEADLESS, headless)):
    for family in families_of:
        for seed in range(n):
            with tempfile.TemporaryDirectory() as tmp:
                check(family, seed, tmp)
torch.manual_seed(1)
for what, (name, make) in MODELS.items():
    with tempfile.TemporaryDirectory() as tmp:
        count += one_less(what, name, make(), tmp)
print("\n".join(bad[:40]) if bad else "%d models as they are in memory; each of %d tensors is missed" % ((len(MEMORY) + len(HEADLESS)) * n, count))
sys.exit(bool(bad))
