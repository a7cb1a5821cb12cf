"""Checkpoints that the megatron-core of PYTHONPATH (0.12 or later) writes or loads on a CPU. Each line of stdin is a request in JSON,
["save" or "load", number of processes, cases]; each is answered by a line on stdout, null or what went wrong as a string. Cases are a list of
dicts (see BASE); each names its folder `path`. Beside it PATH.truth.json is written: of every
tensor that the models and optimizers hold, put together from the shards in memory, its dtype, shape and SHA-256 (and again with zeros in the
padding of the optimizer's buckets); and the objects' names."""
import argparse
import hashlib
import json
import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import mcore_cpu
import ranks

BASE = dict(kind="gpt", tp=1, pp=1, ep=1, etp=None, vpp=None, layers=4, bf16=False, optimizer=None, sharding=None, metadata={}, gated=True,
            asynchronous=False, parallel_save=False, tied=False, prefix="", moe_layer_freq=None, wrapped=False,
            rng=True, latent=None, mtp=None, legacy_grouped=False, config={}, frozen=None, strategy={}, pattern="M*-M", vocab=96)


class OnCpu(TorchFunctionMode):
    """What asks for the CUDA device gets the CPU; tensors say that they are on the CUDA device where their kind is asked for by name."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0]
        if name == "type" and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        if name == "to":
            args = tuple("cpu" if is_cuda(a) else a for a in args)
        if is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def is_cuda(x):
    return isinstance(x, (str, torch.device)) and str(x).startswith("cuda")


class FusedAdam(torch.optim.Optimizer):
    """What a checkpoint shows of Apex's: a step in the group, no step beside exp_avg and exp_avg_sq. Each operation is rounded by itself, so
    that an element becomes the same wherever it lies."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, bias_correction=True, adam_w_mode=True, **_):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, bias_correction=bias_correction))

    @torch.no_grad()
    def step(self, closure=None, **_):
        for group in self.param_groups:
            group["step"] = n = group.get("step", 0) + 1
            a, b = group["betas"]
            for p in group["params"]:
                m, v = (self.state[p].setdefault(name, torch.zeros_like(p)) for name in ("exp_avg", "exp_avg_sq"))
                g = p.grad if p.grad is not None else getattr(p, "decoupled_grad", None)
                if g is None:
                    continue
                m.copy_(m * a + g * (1 - a))
                v.copy_(v * b + g * g * (1 - b))
                p.sub_(((m / (1 - a ** n)) / ((v / (1 - b ** n)).sqrt() + group["eps"]) + p * group["weight_decay"]) * group["lr"])


def older_libraries():
    """What megatron-core before 0.15 calls that newer torch and numpy call or name otherwise, and 0.15 calls that it has not imported"""
    import builtins
    import numpy
    import warnings
    builtins.warnings = warnings
    from torch.distributed.checkpoint import filesystem
    numpy.product = numpy.prod
    if hasattr(filesystem, "SerializationFormat"):
        filesystem._write_item.__defaults__ = (filesystem.SerializationFormat.TORCH_SAVE,)


def start():
    """Imports all that the ranks, which are forked, will need."""
    torch.set_num_threads(1)
    mcore_cpu.stand_ins()
    try:
        import triton  # noqa: F401
    except ImportError:  # 0.17 and later import kernels that are never run here
        from unittest.mock import MagicMock
        from torch._inductor import compile_fx  # noqa: F401 (torch shall see that there is none)
        for name in ("triton", "triton.language"):
            sys.modules[name] = MagicMock(__spec__=None, __version__="3.0.0")
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *a, **k: None
    older_libraries()
    try:
        import psutil  # noqa: F401
    except ImportError:  # for log lines
        import types
        memory = types.SimpleNamespace(rss=0)
        mcore_cpu.stand_in("psutil", Process=lambda *_: types.SimpleNamespace(memory_info=lambda: memory, memory_full_info=lambda: memory))
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer
    optimizer.Adam = distrib_optimizer.Adam = FusedAdam
    distrib_optimizer.HAVE_APEX_OR_TE = True
    optimizer.USING_PYTORCH_OPTIMIZER = False
    if hasattr(distrib_optimizer, "USING_APEX_OPTIMIZER"):
        distrib_optimizer.USING_APEX_OPTIMIZER = True
    from megatron.core.tensor_parallel import random
    random.initialize_rng_tracker()
    random.get_cuda_rng_tracker().fork = lambda *a, **k: torch.random.fork_rng(devices=[])
    import megatron.core.dist_checkpointing.strategies.fully_parallel  # noqa: F401
    import megatron.core.distributed  # noqa: F401
    import megatron.core.models.gpt.gpt_layer_specs  # noqa: F401
    mamba_spec()
    import megatron.core.models.mamba  # noqa: F401
    latent_attention()
    from megatron.core.transformer import multi_token_prediction
    if hasattr(multi_token_prediction, "is_inference_column_parallel_linear"):  # by classes that are made of Transformer Engine's
        multi_token_prediction.is_inference_column_parallel_linear = lambda _: False


def latent_attention():
    """Megatron-Core's own attention, which has no weights, takes what Transformer Engine's takes."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    own = DotProductAttention.__init__
    DotProductAttention.__init__ = lambda self, *args, **more: own(self, *args, **takes(own, **more))
    from megatron.core.transformer import multi_latent_attention
    if not isinstance(getattr(multi_latent_attention, "TELinear", None), type):
        multi_latent_attention.TELinear = type(None)


def config_of(c):
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig
    more, kind = dict(c["config"]), MLATransformerConfig if c["latent"] else TransformerConfig
    if c["latent"]:
        more.update(c["latent"], multi_latent_attention=True, kv_lora_rank=12, qk_head_dim=8, qk_pos_emb_head_dim=4, v_head_dim=8, rope_type="rope",
                    num_query_groups=8)
    if c["mtp"]:
        more.update(mtp_num_layers=c["mtp"])
    if c["legacy_grouped"]:
        from megatron.core.transformer.moe import experts
        experts.gg = type("gg", (), {"assert_grouped_gemm_is_available": staticmethod(lambda: None)})  # no step is made here
        more.update(moe_grouped_gemm=True, moe_use_legacy_grouped_gemm=True)
    if c["kind"] == "moe":
        more.update(num_moe_experts=4, moe_router_topk=2, moe_ffn_hidden_size=24, moe_token_dispatcher_type="allgather",
                    moe_router_load_balancing_type="none", moe_shared_expert_intermediate_size=16)
        if c["moe_layer_freq"]:
            more["moe_layer_freq"] = c["moe_layer_freq"]
    if c["kind"] == "mamba":
        more.update(mamba_num_heads=8, mamba_head_dim=8, mamba_num_groups=4, mamba_state_dim=8, is_hybrid_model=True, use_mamba_mem_eff_path=False)
        more.update(c["config"])
    have = kind.__dataclass_fields__  # of this release
    more = {k: v for k, v in more.items() if k in have}
    more.setdefault("num_query_groups", 4)
    return kind(
        num_layers=c["layers"], hidden_size=32, num_attention_heads=8, ffn_hidden_size=48, add_bias_linear=not c["gated"],
        normalization="RMSNorm" if c["gated"] else "LayerNorm", gated_linear_unit=c["gated"], activation_func=F.silu if c["gated"] else F.gelu,
        tensor_model_parallel_size=c["tp"], pipeline_model_parallel_size=c["pp"], pipeline_dtype=torch.float32,
        virtual_pipeline_model_parallel_size=c["vpp"], expert_model_parallel_size=c["ep"], expert_tensor_parallel_size=c["etp"] or c["tp"],
        use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0, gradient_accumulation_fusion=False, bf16=c["bf16"],
        params_dtype=torch.bfloat16 if c["bf16"] else torch.float32, bias_activation_fusion=False, bias_dropout_fusion=False,
        masked_softmax_fusion=False, apply_rope_fusion=False, **more)


def takes(function, **arguments):
    """Those of the arguments that this version's function knows"""
    import inspect
    known = inspect.signature(function).parameters
    return {k: v for k, v in arguments.items() if k in known}


def gpt(c, config, pre, post, stage):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec, get_gpt_mtp_block_spec
    if c["kind"] == "moe" or c["latent"]:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=config.normalization,
                                          **takes(get_gpt_decoder_block_spec, vp_stage=stage))
    else:
        spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization=config.normalization)
    mtp = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False, **takes(get_gpt_mtp_block_spec, vp_stage=stage)) if c["mtp"] else None
    return GPTModel(config, spec, mtp_block_spec=mtp, vocab_size=c["vocab"], max_sequence_length=16, pre_process=pre, post_process=post,
                    share_embeddings_and_output_weights=c["tied"], position_embedding_type="rope" if c["gated"] else "learned_absolute",
                    **takes(GPTModel.__init__, vp_stage=stage))


def mamba_spec():
    """Mamba, attention and dense layers of modules that need no Transformer Engine; norms of their own"""
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    try:
        from megatron.core.ssm import mamba_block
    except ImportError:  # 0.12 wants Transformer Engine's norm
        import types
        sys.modules["megatron.core.extensions.transformer_engine"] = engine = types.ModuleType("transformer_engine")
        engine.TENorm = None
        from megatron.core.ssm import mamba_block
    from megatron.core.ssm.mamba_block import MambaStack, MambaStackSubmodules
    from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
    from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
    from megatron.core.ssm.mlp_layer import MLPLayer
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.mlp import MLP, MLPSubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
    sys.modules[mamba_block.MambaStack.__module__].TENorm = WrappedTorchNorm
    mixer = ModuleSpec(MambaMixer, params={"d_conv": 4}, submodules=MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear))
    attention = ModuleSpec(SelfAttention, params={"attn_mask_type": AttnMaskType.causal}, submodules=SelfAttentionSubmodules(
        linear_qkv=ColumnParallelLinear, core_attention=DotProductAttention, linear_proj=RowParallelLinear))
    mlp = ModuleSpec(MLP, submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear))
    return ModuleSpec(MambaStack, submodules=MambaStackSubmodules(
        mamba_layer=ModuleSpec(MambaLayer, submodules=MambaLayerSubmodules(norm=WrappedTorchNorm, mixer=mixer, mamba_bda=get_bias_dropout_add)),
        attention_layer=ModuleSpec(TransformerLayer, submodules=TransformerLayerSubmodules(
            input_layernorm=WrappedTorchNorm, self_attention=attention, self_attn_bda=get_bias_dropout_add)),
        mlp_layer=ModuleSpec(MLPLayer, submodules=TransformerLayerSubmodules(pre_mlp_layernorm=WrappedTorchNorm, mlp=mlp, mlp_bda=get_bias_dropout_add))))


def mamba(c, config, pre, post, stage):
    from megatron.core.models.mamba import MambaModel
    return MambaModel(config, mamba_spec(), vocab_size=c["vocab"], max_sequence_length=16, hybrid_override_pattern=c["pattern"], pre_process=pre,
                      post_process=post, share_embeddings_and_output_weights=c["tied"])


def build(c):
    from megatron.core import parallel_state as ps
    config, models = config_of(c), []
    for stage in range(c["vpp"] or 1):
        at = stage if c["vpp"] else None
        if c["vpp"]:
            ps.set_virtual_pipeline_model_parallel_rank(stage)
        known = takes(ps.is_pipeline_first_stage, ignore_virtual=not c["vpp"], vp_stage=at)
        pre, post = ps.is_pipeline_first_stage(**known), ps.is_pipeline_last_stage(**known)
        model = (mamba if c["kind"] == "mamba" else gpt)(c, config, pre, post, at)
        for name, p in model.named_parameters():
            p.requires_grad = not c["frozen"] or c["frozen"] not in name
        models.append(model.bfloat16() if c["bf16"] else model)
    return config, models


def optimizer_of(c, config, models):
    """(the models as data-parallel wrappers, the optimizer)"""
    if not c["optimizer"]:
        return models, None
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    distributed = c["optimizer"] == "distributed"
    if c["bf16"]:
        from megatron.core.transformer.module import Float16Module
        models = [Float16Module(config, m) for m in models]
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=distributed, overlap_grad_reduce=False, bucket_size=c.get("bucket"))
    models = [DistributedDataParallel(config, ddp, m) for m in models]
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=0.01, weight_decay=0.1, bf16=c["bf16"], use_distributed_optimizer=distributed,
                                                       params_dtype=config.params_dtype, clip_grad=0.0), models)
    return models, optimizer


def parts_of(optimizer):
    return [part for part in getattr(optimizer, "chained_optimizers", [optimizer]) if part is not None]


def fill_optimizer(optimizer, rank):
    gen = torch.Generator().manual_seed(1000 + rank)
    for part in parts_of(optimizer):
        inner = getattr(part, "optimizer", None)
        if inner is None:
            continue
        if hasattr(part, "_init_optimizer_states_with_dummy_values"):
            part._init_optimizer_states_with_dummy_values()
        else:
            inner.step()
        for group in inner.param_groups:
            for p in group["params"]:
                with torch.no_grad():
                    for t in [p] + [v for k, v in inner.state[p].items() if k in ("exp_avg", "exp_avg_sq")]:
                        t.copy_(torch.randn(t.shape, generator=gen))


def groups(c):
    """What the tokens more want of the metadata, and which is not saved"""
    from megatron.core import parallel_state as ps
    return {"dp_cp_group": ps.get_data_parallel_group(with_context_parallel=True)} if c["mtp"] else {}


def state_of(c, models, optimizer, loading=False):
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from megatron.core import parallel_state as ps
    metadata, state = dict(c["metadata"]), {}
    if c["sharding"]:
        metadata["distrib_optim_sharding_type"] = c["sharding"]
    for i, m in enumerate(models):
        inner = m
        while hasattr(inner, "module") and not c["wrapped"]:
            inner = inner.module
        state["model%d" % i if c["vpp"] else "model"] = inner.sharded_state_dict(**({"prefix": c["prefix"]} if c["prefix"] else {}),
                                                                              metadata={**metadata, **groups(c)} or None)
    if optimizer:
        more = takes(parts_of(optimizer)[0].sharded_state_dict, metadata=metadata)
        if not more and c["sharding"]:
            more = {"sharding_type": c["sharding"]}
        state["optimizer"] = optimizer.sharded_state_dict(state, is_loading=loading, **more)
    if not c["rng"]:  # of another parallelism
        return state
    rng = {"random": list(range(5)), "torch_rng_state": torch.arange(8, dtype=torch.uint8)}
    tp, pp = ps.get_tensor_model_parallel_rank(), ps.get_pipeline_model_parallel_rank()
    state["rng_state"] = ShardedObject("rng_state", [rng], (c["pp"], c["tp"]), (pp, tp), replica_id=ps.get_data_parallel_rank(with_context_parallel=True))
    if not loading:
        state.update(args=argparse.Namespace(num_layers=c["layers"], hidden_size=32, num_attention_heads=8, num_query_groups=4, kv_channels=4,
                                             padded_vocab_size=96, params_dtype=torch.float32, activation=F.gelu), iteration=7, checkpoint_version=3.0)
    return state


def mark_padding(state, found):
    """The tensors of a bucket that belong to no parameter, whose values are what was in memory"""
    for item in state.values() if isinstance(state, dict) else state if isinstance(state, list) else []:
        if isinstance(item, dict) and getattr(item.get("padding"), "obj", False) is True:
            found.update(id(t) for t in item.values())
        mark_padding(item, found)


def shards(state):
    """The pieces that this rank is to write: (key, dtype, global shape, offset, local shape, flattened range, tensor, is it padding), and
    the objects' keys"""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory, is_main_replica
    tensors, objects, padding = [], [], set()
    mark_padding(state, padding)
    for item in nested_values(state):
        for t in nested_values([item.build()]) if isinstance(item, ShardedTensorFactory) else [item]:
            if isinstance(t, ShardedTensor) and is_main_replica(t.replica_id):
                flat = getattr(t, "flattened_range", None)
                tensors.append((t.key, t.dtype, tuple(t.global_shape), tuple(t.global_offset), (1,) * t.prepend_axis_num + tuple(t.local_shape),
                                (flat.start, flat.stop) if flat else None, t.data.detach().clone(), id(t) in padding))
            elif isinstance(t, ShardedObject) and is_main_replica(t.replica_id):
                objects.append(t.unique_key)
    return tensors, objects


def fill_models(state):
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
    for item in nested_values(state):
        if isinstance(item, (ShardedTensor, ShardedTensorFactory)) and item.data is not None and item.data.is_floating_point():
            t = list(nested_values([item.build()]))[0] if isinstance(item, ShardedTensorFactory) else item
            seed = hashlib.sha256(("%s %s" % (t.key, t.global_offset)).encode()).hexdigest()[:8]
            with torch.no_grad():
                item.data.copy_(torch.randn(item.data.shape, generator=torch.Generator().manual_seed(int(seed, 16))))


def strategy_of(c):
    from megatron.core import parallel_state as ps
    from megatron.core.dist_checkpointing import serialization
    from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
    strategy = serialization.get_default_save_sharded_strategy("torch_dist")
    if c["strategy"]:
        from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy as Strategy
        strategy = Strategy(**c["strategy"], **takes(Strategy.__init__, backend="torch_dist", version=1))
    if c["parallel_save"]:
        strategy = FullyParallelSaveStrategyWrapper(strategy, ps.get_data_parallel_group(with_context_parallel=True), True)
    return strategy


def save(c, rank):
    config, models = build(c)
    fill_models({"m%d" % i: m.sharded_state_dict(metadata=groups(c) or None) for i, m in enumerate(models)})
    models, optimizer = optimizer_of(c, config, models)
    if optimizer:
        fill_optimizer(optimizer, rank)
    if rank == 0:
        os.makedirs(c["path"], exist_ok=True)
    dist.barrier()
    strategy = strategy_of(c)
    if c["strategy"].get("cached_metadata"):  # what the first save of a run finds out serves those that follow
        os.makedirs(c["path"] + ".before", exist_ok=True)
        for _ in range(2):
            write(c, state_of(c, models, optimizer), c["path"] + ".before", strategy)
            dist.barrier()
            if rank == 0:
                shutil.rmtree(c["path"] + ".before")
                os.makedirs(c["path"] + ".before")
            dist.barrier()
    state = state_of(c, models, optimizer)
    torch.save(shards(state), "%s.%d.shards" % (c["path"], rank))
    write(c, state, c["path"], strategy)


def write(c, state, path, strategy):
    from megatron.core import dist_checkpointing
    more = takes(dist_checkpointing.save, content_metadata=c["metadata"] or None, async_strategy="mcore")
    request = dist_checkpointing.save(state, path, strategy, async_sharded_save=c["asynchronous"], **more)
    if c["asynchronous"]:
        from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
        queue = AsyncCallsQueue()
        queue.schedule_async_request(request)
        queue.maybe_finalize_async_calls(blocking=True)


def load(c, rank):
    from megatron.core import dist_checkpointing
    config, models = build(c)
    models, optimizer = optimizer_of(c, config, models)
    state = state_of(c, models, optimizer, loading=True)
    state = dist_checkpointing.load(state, c["path"])
    for i, m in enumerate(models):
        while hasattr(m, "module") and not c["wrapped"]:
            m = m.module
        part = state.get("model%d" % i if c["vpp"] else "model", {})  # a stage may be empty
        m.load_state_dict({k[len(c["prefix"]):]: v for k, v in part.items()} if c["prefix"] else part, strict=False)
    if optimizer:
        optimizer.load_state_dict(state["optimizer"])
    if c["rng"] and state["rng_state"][0]["random"] != list(range(5)) or state["iteration"] != 7 or state["args"].hidden_size != 32:
        raise ValueError("objects or common state are others")
    torch.save(shards(state_of(c, models, optimizer)), "%s.%d.shards" % (c["path"], rank))


def work(rank, what, cases):
    ranks.keep_results()
    from megatron.core import parallel_state as ps
    with OnCpu():
        for c in cases:
            ps.initialize_model_parallel(c["tp"], c["pp"], c["vpp"], expert_model_parallel_size=c["ep"], expert_tensor_parallel_size=c["etp"] or c["tp"])
            torch.manual_seed(5)
            try:
                (save if what == "save" else load)(c, rank)
            except Exception as e:
                raise RuntimeError("%s: %s" % (what, c["path"])) from e
            dist.barrier()
            ps.destroy_model_parallel()


def digest(t):
    t = t.clone(memory_format=torch.contiguous_format)  # contiguous() leaves one element its strides
    return hashlib.sha256(t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b"").hexdigest()


def together(path, world):
    """The shards of all ranks as whole tensors"""
    whole, unpadded, objects = {}, {}, []
    for rank in range(world):
        tensors, names = torch.load("%s.%d.shards" % (path, rank), weights_only=False)
        os.remove("%s.%d.shards" % (path, rank))
        objects += names
        for key, dtype, shape, offset, local, flat, data, is_padding in tensors:
            for into, values in (whole, data), (unpadded, torch.zeros_like(data) if is_padding else data):
                box = into.setdefault(key, torch.zeros(shape, dtype=dtype))[tuple(slice(o, o + n) for o, n in zip(offset, local))]
                if flat:
                    part = box.flatten().clone()
                    part[flat[0]:flat[1]] = values
                    values = part
                box.copy_(values.reshape(box.shape))
    told = lambda of: {k: [str(t.dtype), list(t.shape), digest(t)] for k, t in of.items()}
    return {"tensors": told(whole), "unpadded": told(unpadded), "objects": sorted(objects)}


def answer(what, world, cases):
    cases = [{**BASE, **c} for c in cases]
    try:
        ranks.together(work, world, what, cases)
    except (torch.multiprocessing.ProcessRaisedException, torch.multiprocessing.ProcessExitedException) as e:
        return str(e)[-1500:]
    for c in cases:
        with open(c["path"] + ".truth.json", "w", encoding="utf-8") as f:
            json.dump(together(c["path"], world), f)


def main(answer=answer):
    # stdout is for answers alone, whatever a library prints
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    start()
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
