"""Rank folders (mp_rank_XX) and torch_dist of the same megatron-core model, saved by the same 2 to 4 processes: what
`convert --merge-ranks` makes of the folders must be, bit for bit, what Megatron-Core's own sharded save holds.
Exit 0 ok, 1 different, 77 megatron-core is absent."""
import argparse
import glob
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import types

from tool import here, need, program

need("torch", "megatron.core")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import mcore_cpu  # noqa: E402
import ranks  # noqa: E402

mcore_cpu.stand_ins()
# here once, so that no process of a case imports anything more
from megatron.core import dist_checkpointing, parallel_state as ps  # noqa: E402
from megatron.core.dist_checkpointing.dict_utils import nested_values  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory  # noqa: E402
from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: E402
from megatron.core.dist_checkpointing.validation import StrictHandling  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import (  # noqa: E402
    get_gpt_decoder_block_spec, get_gpt_layer_local_spec, get_gpt_mtp_block_spec)
from megatron.core.models.mamba import MambaModel  # noqa: E402, F401
from megatron.core.tensor_parallel import random  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.moe import experts  # noqa: E402

BASE = dict(num_layers=4, hidden_size=32, num_attention_heads=8, num_query_groups=4, ffn_hidden_size=48, vocab_size=100, add_bias_linear=False,
            gated=True, tied=False, normalization="RMSNorm", tp=1, pp=1, vpp=None, ep=1, num_moe_experts=None, hybrid=None, packed=False)
CASES = {
    "tp2": dict(tp=2), "tp4, layer norm, biases, no gate": dict(tp=4, normalization="LayerNorm", add_bias_linear=True, gated=False),
    "tp2 pp2 tied": dict(tp=2, pp=2, tied=True), "tp2 pp2 vpp2": dict(tp=2, pp=2, vpp=2), "qkv bias": dict(tp=2, add_qkv_bias=True),
    "padded vocabulary": dict(tp=2, vocab_size=90), "ep2": dict(ep=2, num_moe_experts=4),
    "shared experts": dict(tp=2, ep=2, num_moe_experts=4, moe_shared_expert_intermediate_size=16),
    "some dense": dict(ep=2, num_moe_experts=2, moe_layer_freq=[0, 1, 0, 1]), "tp2 pp2 ep2": dict(tp=2, pp=2, ep=2, num_moe_experts=2),
    "a list of alike": dict(ep=2, num_moe_experts=2, moe_layer_freq=[1, 1, 1, 1]),
    "tp2 ep2, one tensor of experts": dict(tp=2, ep=2, num_moe_experts=4, packed=True),
    "tp2 ep2 etp1, one tensor of experts": dict(tp=2, ep=2, etp=1, num_moe_experts=4, packed=True),
    "tp2 pp2, two tokens more": dict(tp=2, pp=2, mtp_num_layers=2),
    "tp2 etp1": dict(tp=2, etp=1, num_moe_experts=2), "tp2 ep2 etp1": dict(tp=2, ep=2, etp=1, num_moe_experts=4),
    "tp4 ep2 etp1": dict(tp=4, ep=2, etp=1, num_moe_experts=2), "tp4 ep2 etp2": dict(tp=4, ep=2, etp=2, num_moe_experts=4),
    "tp2 pp2 ep2 etp1": dict(tp=2, pp=2, ep=2, etp=1, num_moe_experts=4), "tp2 ep4 etp1": dict(tp=2, ep=4, etp=1, num_moe_experts=4),
    "hybrid tp2": dict(tp=2, hybrid="M*-ME"), "hybrid tp2 pp2": dict(tp=2, pp=2, hybrid="M*-M"),
    "hybrid tp2 ep2 etp1": dict(tp=2, ep=2, etp=1, hybrid="ME*E"),
    "pp3, first and last": dict(pp=3, num_layers=6, num_layers_in_first_pipeline_stage=1, num_layers_in_last_pipeline_stage=3),
    "pp2 vpp2, embedding and loss": dict(pp=2, vpp=2, num_layers=6, account_for_embedding_in_pipeline_split=True, account_for_loss_in_pipeline_split=True),
    "tp2 pp2, layout, tied": dict(tp=2, pp=2, num_layers=5, tied=True, pipeline_model_parallel_layout="Et|ttttL"),
    "tp2 pp2 vpp3, layout, an empty stage": dict(tp=2, pp=2, vpp=3, num_layers=5, pipeline_model_parallel_layout="E|tt||t|tt|L"),
    "pp2 vpp2 ep2, layout, some dense": dict(pp=2, vpp=2, ep=2, num_layers=5, num_moe_experts=4, moe_layer_freq=[0, 1, 1, 0, 1],
                                             pipeline_model_parallel_layout="Ett|t|t|tL"),
    "pp2 vpp2, layout, a token more": dict(pp=2, vpp=2, num_layers=5, mtp_num_layers=1, pipeline_model_parallel_layout="Ett|t|tt|mL"),
}
AGAIN = ("tp2", "tp2 pp2 vpp2", "tp2 ep2 etp1")


def build_hybrid(c, pre, post):
    config = types.SimpleNamespace(
        hybrid_override_pattern=c["hybrid"], num_hidden_layers=len(c["hybrid"]), hidden_size=16, num_attention_heads=4, num_key_value_heads=2,
        head_dim=4, intermediate_size=24, layer_norm_epsilon=1e-5, mamba_num_heads=8, mamba_head_dim=4, n_groups=2, ssm_state_size=4,
        conv_kernel=4, vocab_size=64, max_position_embeddings=16, tie_word_embeddings=c["tied"], n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=12, moe_shared_expert_intermediate_size=8, routed_scaling_factor=1.0, n_group=1, topk_group=1, moe_latent_size=None,
        parallel=dict(tensor_model_parallel_size=c["tp"], pipeline_model_parallel_size=c["pp"], pipeline_dtype=torch.float32,
                      expert_model_parallel_size=c["ep"], expert_tensor_parallel_size=c.get("etp", c["tp"])))
    return mcore_cpu.hybrid(config, pre_process=pre, post_process=post)


def fused(state):
    """Hybrid models are made of Transformer Engine's layers, whose norms are in the linear layers behind them."""
    out = {}
    for name, t in state.items():
        layer = re.match(r"decoder\.layers\.\d+\.", name)
        rest = name[layer.end():] if layer else ""
        if rest.startswith("norm."):
            name = layer[0] + "mixer.in_proj.layer_norm_" + rest[5:]
        elif rest.startswith("input_layernorm."):
            name = layer[0] + "self_attention.linear_qkv.layer_norm_" + rest[16:]
        elif rest.startswith("pre_mlp_layernorm.") and layer[0] + "mlp.linear_fc1.weight" in state:
            name = layer[0] + "mlp.linear_fc1.layer_norm_" + rest[18:]
        out[name] = t
    return out


def build(c, pre, post, stage):
    if c["hybrid"]:
        return build_hybrid(c, pre, post)
    own = {"tp", "pp", "vpp", "ep", "etp", "gated", "tied", "vocab_size", "hybrid", "packed", "bf16", "how", "odd"}
    more = {k: v for k, v in c.items() if k not in own}
    if c["num_moe_experts"]:
        more.update(moe_router_topk=2, moe_ffn_hidden_size=24, moe_token_dispatcher_type="allgather", moe_router_load_balancing_type="none")
    if c["packed"]:
        experts.gg.assert_grouped_gemm_is_available = lambda: None  # no step is made here
        more.update(moe_grouped_gemm=True, moe_use_legacy_grouped_gemm=True)
    config = TransformerConfig(**more, gated_linear_unit=c["gated"], activation_func=torch.nn.functional.silu if c["gated"] else torch.nn.functional.gelu,
                               tensor_model_parallel_size=c["tp"], pipeline_model_parallel_size=c["pp"], pipeline_dtype=torch.float32,
                               virtual_pipeline_model_parallel_size=c["vpp"], expert_model_parallel_size=c["ep"],
                               expert_tensor_parallel_size=c.get("etp", c["tp"]),
                               use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0, gradient_accumulation_fusion=False,
                               bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False)
    if c["num_moe_experts"]:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=c["normalization"], vp_stage=stage)
    else:
        spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization=c["normalization"])
    mtp = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False, vp_stage=stage) if config.mtp_num_layers else None
    return GPTModel(config, spec, mtp_block_spec=mtp, vocab_size=-(-c["vocab_size"] // (8 * c["tp"])) * 8 * c["tp"], max_sequence_length=16, pre_process=pre, post_process=post,
                    share_embeddings_and_output_weights=c["tied"], position_embedding_type="rope", vp_stage=stage)


def wanted(model, metadata=None):
    return model.sharded_state_dict(metadata={**(metadata or {}), "dp_cp_group": ps.get_data_parallel_group(with_context_parallel=True)})


def generator(name, seed):
    return torch.Generator().manual_seed(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) + seed)


def fill(model, seed):
    """Every rank its own values, but one value in all places that hold the same tensor."""
    for name, item in wanted(model).items():
        if not isinstance(item, (ShardedTensor, ShardedTensorFactory)):
            continue
        built = item.build() if isinstance(item, ShardedTensorFactory) else item
        parts = [built] if isinstance(built, ShardedTensor) else list(nested_values(built))
        key = "%s %s" % (parts[0].key, parts[0].global_offset)
        with torch.no_grad():
            item.data.copy_(torch.randn(item.data.shape, generator=generator(key, seed)))


def start(c):
    """This process's place among the others, and its stages of the model."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *a, **k: None
    torch.Tensor.cuda = lambda self, *a, **k: self
    ps.initialize_model_parallel(c["tp"], c["pp"], c["vpp"], expert_model_parallel_size=c["ep"], expert_tensor_parallel_size=c.get("etp", c["tp"]))
    random.initialize_rng_tracker()
    random.get_cuda_rng_tracker().fork = lambda *a, **k: torch.random.fork_rng(devices=[])
    filesystem_async._process_memory = lambda: 0  # it wants psutil for a log line
    ranks.keep_results()
    models = []
    for stage in range(c["vpp"] or 1):
        at = stage if c["vpp"] else None
        if c["vpp"]:
            ps.set_virtual_pipeline_model_parallel_rank(stage)
        models.append(build(c, ps.is_pipeline_first_stage(ignore_virtual=False, vp_stage=at), ps.is_pipeline_last_stage(ignore_virtual=False, vp_stage=at), at))
        fill(models[-1], 5)
    return models


def save_rank(models, folder, c, more):
    tp, pp, ep = ps.get_tensor_model_parallel_rank(), ps.get_pipeline_model_parallel_rank(), ps.get_expert_model_parallel_rank()
    args = argparse.Namespace(tensor_model_parallel_size=c["tp"], pipeline_model_parallel_size=c["pp"], expert_model_parallel_size=c["ep"],
                              expert_tensor_parallel_size=c.get("etp", c["tp"]), virtual_pipeline_model_parallel_size=c["vpp"], num_layers=c["num_layers"],
                              num_experts=c["num_moe_experts"], moe_layer_freq=c.get("moe_layer_freq", 1), swiglu=c["gated"], padded_vocab_size=-(-c["vocab_size"] // (8 * c["tp"])) * 8 * c["tp"],
                              untie_embeddings_and_output_weights=not c["tied"], hidden_size=c["hidden_size"])
    state = {"args": args, "checkpoint_version": 3.0, "iteration": 7, **more}
    for i, m in enumerate(models):
        own = m.state_dict_for_save_checkpoint()
        state["model%d" % i if c["vpp"] else "model"] = fused(own) if c["hybrid"] else own
    # the names of Megatron-LM's checkpointing.py
    name = "mp_rank_%02d" % tp + ("_%03d" % pp if c["pp"] > 1 else "") + ("_%03d" % ep if c["ep"] > 1 else "")
    path = os.path.join(folder, "mp", name)
    if ps.get_data_parallel_rank() == 0 or c["ep"] > 1 and ps.get_expert_data_parallel_rank() == 0:
        os.makedirs(path, exist_ok=True)
        torch.save(state, os.path.join(path, "model_optim_rng.pt"))


def save(rank, folder, c):
    models = start(c)
    save_rank(models, folder, c, {})
    sharded = {}
    for i, m in enumerate(models):
        sharded["model%d" % i] = wanted(m)
    os.makedirs(os.path.join(folder, "dist"), exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(sharded, os.path.join(folder, "dist"))


def load(rank, folder, c):
    """What we wrote, by the model's own sharded load with every name wanted and every name taken."""
    models = start(c)
    want = [{k: v.clone() for k, v in m.state_dict().items() if v is not None} for m in models]
    with torch.no_grad():
        for m in models:
            for p in m.parameters():
                p.fill_(9)
    path = glob.glob(folder + "/iter_*")[0]
    metadata = dist_checkpointing.load_content_metadata(path)
    sharded = {"model%d" % i: wanted(m, metadata) for i, m in enumerate(models)}
    state = dist_checkpointing.load(sharded, path, strict=StrictHandling.RAISE_ALL)
    for i, m in enumerate(models):
        m.load_state_dict(state.get("model%d" % i, {}))  # a stage may be empty
        got = m.state_dict()
        assert all(torch.equal(got[k], v) for k, v in want[i].items()), "other values"


def spawn(do, c, folder):
    ranks.together(do, c["pp"] * max(c["tp"], c["ep"] * c.get("etp", c["tp"])), folder, c)


def check(what, c, bad):
    c = {**BASE, **c}
    with tempfile.TemporaryDirectory() as tmp:
        spawn(save, c, tmp)
        out = os.path.join(tmp, "out")
        run = subprocess.run([program, "convert", "-q", "--to", "torch_dist", "--merge-ranks", tmp + "/mp", out], capture_output=True, text=True)
        if run.returncode:
            bad.append("%s: %s" % (what, run.stderr.strip()))
            return
        load_back(what, c, out, bad)
        compare(what, stored(glob.glob(out + "/iter_*")[0]), stored(tmp + "/dist"), bad)
        # and for a model that is told that its layers are numbered
        numbered = os.path.join(tmp, "numbered")
        subprocess.run([program, "convert", "-q", "--to", "torch_dist", "--merge-ranks", "--layers", "numbered", tmp + "/mp", numbered], check=True)
        # there and back
        if stacks(c):
            for how, source, to in (("stacked", numbered, "a"), ("numbered", out, "b")):
                subprocess.run([program, "convert", "-q", "--to", "torch_dist", "--layers", how, source, os.path.join(tmp, to)], check=True)
            compare(what + ", stacked again", stored(glob.glob(tmp + "/a/iter_*")[0]), stored(tmp + "/dist"), bad)
            compare(what + ", numbered again", stored(glob.glob(tmp + "/b/iter_*")[0]), stored(glob.glob(numbered + "/iter_*")[0]), bad)
        if what in AGAIN:
            for name in ("numbered", "a", "b"):
                load_back("%s, %s" % (what, name), c, os.path.join(tmp, name), bad)


def stacks(c):
    """Layers that differ are numbered in any case."""
    return "moe_layer_freq" not in c and not c["hybrid"]


def load_back(what, c, folder, bad):
    try:
        spawn(load, c, folder)
    except torch.multiprocessing.ProcessRaisedException as e:
        bad.append("%s: Megatron-Core does not load it: %s" % (what, str(e)[-4000:]))


def compare(what, got, want, bad):
    for name in sorted(set(got) | set(want)):
        if name not in got or name not in want or not equal(got[name], want[name]):
            bad.append("%s: %s: %s" % (what, name, "absent" if name not in got else "not saved by Megatron-Core" if name not in want else
                                       "%s, not %s" % tuple(tuple(t.shape) if isinstance(t, torch.Tensor) else t for t in (got[name], want[name]))))


def equal(a, b):
    return torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a is None and b is None


def stored(folder):
    """name -> tensor; None for a byte object (Megatron-Core's own layers have empty ones)"""
    reader = dcp.FileSystemReader(folder)
    meta = reader.read_metadata().state_dict_metadata
    state = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in meta.items() if hasattr(m, "size")}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return {k: state.get(k) for k in meta}


def main():
    bad = []
    wanted = sys.argv[1:] or CASES
    for what in wanted:
        check(what, CASES[what], bad)
    print("\n".join(bad) if bad else "%d models: merged rank folders are what Megatron-Core saves" % len(wanted))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
