"""Experts as NeMo Automodel has them in its own state dict (all of a layer in one tensor, transposed, gate and up side by side) to Hugging Face's
names and to Megatron's: random Qwen3-MoE and Nemotron-H models of transformers, whose tensors Automodel's own adapters (where S2S_AUTOMODEL is a
folder with nemo_automodel) or a mapping written here name anew; saved by torch.distributed.checkpoint from one process, and cut into pieces along
each axis. Hugging Face's files must come back bit for bit, and Megatron's be those that the Hugging Face files give. Where S2S_AUTOMODEL is there,
its Checkpointer saves models from three processes too, and without a process's file the rest must be refused.

check_automodel.py [MODELS]: so many a family (6). Exit 0 ok, 1 different, 77 a library is absent."""
import glob
import os
import re
import shutil
import sys
import tempfile
import types
import warnings

warnings.filterwarnings("ignore")
from tool import bad, compare, convert, here, need, need_ok, run

need("torch", "transformers", "safetensors")
import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import transformers as hf  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
import families  # noqa: E402
import ranks  # noqa: E402

sys.path.insert(0, os.environ.get("S2S_AUTOMODEL", "/nowhere"))
try:
    from nemo_automodel.components.models.nemotron_v3.state_dict_adapter import NemotronV3StateDictAdapter
    from nemo_automodel.components.models.qwen3_moe.state_dict_adapter import Qwen3MoeStateDictAdapter
    adapters = {"nemotron_h": NemotronV3StateDictAdapter, "qwen3_moe": Qwen3MoeStateDictAdapter}
except ImportError:
    adapters = {}


def native(tensors):
    """Automodel's names and shapes of Hugging Face's"""
    out, experts = {}, {}
    for key, t in tensors.items():
        e = re.match(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight$", key)
        if e:
            experts.setdefault(e[1], {}).setdefault(int(e[2]), {})[e[3]] = t
        else:
            out[key] = t
    for at, each in experts.items():
        order = [each[i] for i in sorted(each)]
        out[at + ".gate_and_up_projs"] = torch.stack([torch.cat([e[k].T for k in ("gate", "up") if k in e], 1) for e in order])
        out[at + ".down_projs"] = torch.stack([e["down"].T for e in order])
    names = {}
    for key, t in out.items():
        key = re.sub(r"^backbone\.", "model.", key).replace("model.norm_f.", "model.norm.").replace("model.embeddings.", "model.embed_tokens.")
        names[re.sub(r"\.mixer\.(A_log|D|dt_bias)$", r".mixer._fp32_params.\1", key)] = t
    return names


def by_adapter(family, tensors, c):
    n = c.n_routed_experts if family == "nemotron_h" else c.num_experts
    moe = types.SimpleNamespace(n_routed_experts=n, moe_inter_dim=c.moe_intermediate_size, expert_activation="relu2" if family == "nemotron_h" else "swiglu")
    backend = types.SimpleNamespace(experts="gmm", dispatcher="torch")
    return adapters[family](c, moe, backend, dtype=next(iter(tensors.values())).dtype).from_hf(dict(tensors))


def save_pieces(folder, tensors, axis):
    """as several ranks leave it: experts, or another axis of them, in two pieces of two files"""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    import io
    import pickle
    os.makedirs(folder)
    blobs, state, storage = [bytearray(), bytearray()], {}, {}
    for key, t in tensors.items():
        d = axis % t.dim() if t.dim() == 3 else 0
        parts = t.tensor_split(2, d) if t.dim() and t.shape[d] > 1 else (t,)
        chunks, at = [], [0] * t.dim()
        for r, part in enumerate(parts):
            item = io.BytesIO()
            torch.save(part.contiguous().clone(), item)
            index = MetadataIndex(key, torch.Size(at))
            storage[index] = _StorageInfo("__%d_0.distcp" % r, len(blobs[r]), len(item.getvalue()))
            blobs[r] += item.getvalue()
            chunks.append(ChunkStorageMetadata(torch.Size(at), torch.Size(part.shape)))
            at[d] += part.shape[d]
        state[key] = TensorStorageMetadata(TensorProperties(dtype=t.dtype), t.size(), chunks)
    for r, blob in enumerate(blobs):
        with open(os.path.join(folder, "__%d_0.distcp" % r), "wb") as f:
            f.write(blob)
    with open(os.path.join(folder, ".metadata"), "wb") as f:
        pickle.dump(Metadata(state_dict_metadata=state, planner_data={k: (k,) for k in state}, storage_data=storage), f)


def check_salm(what, own, whole, width, tmp):
    """the same language model in NeMo's SALMAutomodel, as Lightning saves it from one process"""
    ear, at = os.path.join(tmp, "ear"), os.path.join(tmp, "salm")
    if not need_ok(what, "convert", "-q", "--to", "safetensors", os.path.join(here, "data/tiny.nemo"), ear):
        return
    salm = {"perception." + k: t for k, t in load_file(ear).items() if k.startswith(("encoder.", "preprocessor."))}
    salm.update({"perception.proj.weight": torch.randn(width, 16), "perception.proj.bias": torch.randn(width)})
    salm.update({"llm." + k: t.contiguous() for k, t in own.items()})
    dcp.save({"state_dict": salm, "optimizer_0": {"state": {"llm.lm_head.weight": {"step": torch.ones(())}}}}, checkpoint_id=at, no_dist=True)
    if convert(what, "--to", "hf", at, at + "_hf"):
        compare(what + " in a SALM", load_file(os.path.join(at + "_hf", "llm", "model.safetensors")), whole)


def check(family, seed, tmp):
    model, name = families.make(family, seed)
    what, disk = "%s %d" % (family, seed), os.path.join(tmp, "disk")
    model.save_pretrained(disk)
    whole = load_file(os.path.join(disk, "model.safetensors"))
    if not any(".experts." in key for key in whole):
        return 0
    if family == "nemotron_h":
        # a depth that predicts a further token: attention, then experts
        h, at = model.config.hidden_size, next(k for k in whole if ".experts.0.up_proj" in k).split(".mixer.")[0]
        whole.update({"mtp.layers.1." + k[len(at) + 1:]: torch.randn_like(t) for k, t in list(whole.items()) if k.startswith(at + ".")})
        d, n, g = model.config.head_dim, model.config.num_attention_heads, model.config.num_key_value_heads
        for key, rows, columns in (("q", n * d, h), ("k", g * d, h), ("v", g * d, h), ("o", h, n * d)):
            whole["mtp.layers.0.mixer.%s_proj.weight" % key] = torch.randn(rows, columns)
        whole.update({"mtp.layers.0.norm.weight": torch.randn(h), "mtp.layers.0.eh_proj.weight": torch.randn(h, 2 * h), "mtp.layers.0.enorm.weight":
                      torch.randn(h), "mtp.layers.0.hnorm.weight": torch.randn(h), "mtp.layers.1.final_layernorm.weight": torch.randn(h)})
        whole = {k: t.to(next(iter(whole.values())).dtype) if k.startswith("mtp.") and "e_score" not in k else t for k, t in whole.items()}
        # of a dtype that Automodel gives them too
        whole = {k: t.float() if re.search(r"\.mixer\.(A_log|D|dt_bias)$", k) else t for k, t in whole.items()}
        save_file(whole, os.path.join(disk, "model.safetensors"))
    own = native(whole)
    check_salm(what, own, whole, model.config.hidden_size, tmp)
    if family in adapters:
        compare(what + ": Automodel's adapter", own, by_adapter(family, whole, model.config))
    config = os.path.join(disk, "config.json")
    want = os.path.join(tmp, "want")
    to = ("--to", "torch_dist", "--map", name, "--config", config)
    convert(what, *to, disk, want)
    for axis in range(-1, 3):
        folder, back, megatron = (os.path.join(tmp, "%s%d" % (n, axis)) for n in ("dcp", "back", "megatron"))
        if axis < 0:
            dcp.save({"model": {k: t.contiguous() for k, t in own.items()}} if seed % 2 else {k: t.contiguous() for k, t in own.items()},
                     checkpoint_id=folder, no_dist=True)
        else:
            save_pieces(folder, own, axis)
        if convert(what, "--to", "hf", "--config", config, folder, back):
            compare("%s axis %d to Hugging Face" % (what, axis), load_file(os.path.join(back, "model.safetensors")), whole)
        if convert(what, *to, folder, megatron):
            p = run("diff", want, megatron)
            if p.returncode:
                bad.append("%s axis %d to Megatron: %s" % (what, axis, (p.stdout + p.stderr)[:300]))
    return 1


WORLD = 3


def save_as_trained(rank, disk, folder, how):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    from nemo_automodel.components.checkpoint.checkpointing import Checkpointer, CheckpointingConfig
    model, mesh = hf.AutoModelForCausalLM.from_pretrained(disk), init_device_mesh("cpu", (WORLD,))
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    keep = CheckpointingConfig(checkpoint_dir=folder, model_cache_dir=folder, model_repo_id="none", model_save_format=how, save_consolidated="every")
    saver = Checkpointer(keep, dp_rank=rank, tp_rank=0, pp_rank=0)
    saver.save_model(model, folder)
    saver.save_optimizer(optimizer, model, folder)
    saver.close()


def check_saved(family, how, tmp):
    what, disk, folder, back = family + " " + how, *(os.path.join(tmp, n) for n in ("disk", "epoch_0_step_1", "back"))
    families.make(family, 1)[0].save_pretrained(disk)
    os.makedirs(folder)
    ranks.together(save_as_trained, WORLD, disk, folder, how)
    want = load_file(os.path.join(disk, "model.safetensors"))
    for source in [folder] + glob.glob(os.path.join(folder, "model/consolidated")):
        if convert(what, "--to", "hf", source, back):
            compare(what, load_file(os.path.join(back, "model.safetensors")), want)
            shutil.rmtree(back)
    for share in sorted(glob.glob(os.path.join(folder, "model/shard-*"))):
        os.rename(share, share + ".aside")
        if not run("verify", folder).returncode:
            bad.append("%s: %s is not missed" % (what, os.path.basename(share)))
        os.rename(share + ".aside", share)


n, seen = int(sys.argv[1]) if len(sys.argv) > 1 else 6, 0
for family in ("qwen3_moe", "nemotron_h"):
    for seed in range(n):
        torch.manual_seed(seed)
        with tempfile.TemporaryDirectory() as tmp:
            seen += check(family, seed, tmp)
for family, how in [(f, h) for f in ("llama", "qwen3") for h in ("safetensors", "torch_save")] if adapters else []:
    with tempfile.TemporaryDirectory() as tmp:
        check_saved(family, how, tmp)
if not seen:
    bad.append("no model with experts")
print("\n".join(bad[:40]) if bad else "%d models with Automodel's experts%s" % (seen, ", named by its adapters too" if adapters else ""))
sys.exit(bool(bad))
