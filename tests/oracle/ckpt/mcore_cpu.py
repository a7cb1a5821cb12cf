"""megatron-core's own models on a CPU, one process, from the config of a transformers model. What its Mamba layers need of CUDA packages
is given here by plain PyTorch: the recurrence as the Mamba-2 paper states it, a causal convolution, a gated norm by groups."""
import math
import os
import re
import sys
import types

import torch
import torch.nn.functional as F


def causal_conv1d_fn(x, weight, bias=None, activation=None, **_):
    """x [batch, channels, time], weight [channels, width]"""
    y = F.conv1d(F.pad(x, (weight.shape[1] - 1, 0)), weight[:, None], bias, groups=weight.shape[0])
    return F.silu(y) if activation in ("silu", "swish") else y


def mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False, return_final_states=False, **_):
    """h_t = exp(dt_t A) h_(t-1) + dt_t x_t B_t',  y_t = h_t C_t + D x_t, head by head and step by step.
    x [batch, time, heads, dim], dt [batch, time, heads], B and C [batch, time, groups, state]"""
    batch, time, heads, dim = x.shape
    B = B.repeat_interleave(heads // B.shape[2], 2)
    C = C.repeat_interleave(heads // C.shape[2], 2)
    if dt_bias is not None:
        dt = dt + dt_bias
    if dt_softplus:
        dt = F.softplus(dt)
    h, out = torch.zeros(batch, heads, dim, B.shape[3], dtype=x.dtype), []
    for t in range(time):
        h = h * torch.exp(dt[:, t] * A)[..., None, None] + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        y = (h * C[:, t, :, None]).sum(-1)
        out.append(y if D is None else y + (D[:, None] if D.dim() == 1 else D) * x[:, t])
    y = torch.stack(out, 1)
    y = y if z is None else y * F.silu(z)
    return (y, h) if return_final_states else y


class RMSNormGated(torch.nn.Module):
    """x silu(z), then each group divided by its root mean square"""

    def __init__(self, size, eps=1e-5, group_size=None, norm_before_gate=True, device=None, dtype=None):
        super().__init__()
        self.weight, self.eps, self.group_size = torch.nn.Parameter(torch.ones(size, dtype=dtype)), eps, group_size or size
        assert not norm_before_gate

    def forward(self, x, z=None):
        x = x if z is None else x * F.silu(z)
        g = x.unflatten(-1, (-1, self.group_size))
        return (g * torch.rsqrt(g.square().mean(-1, keepdim=True) + self.eps)).flatten(-2) * self.weight


def rearrange(x, pattern, **sizes):
    """einops.rearrange of patterns with one level of parentheses"""
    left, right = ([p.replace("(", "").replace(")", "").split() for p in re.findall(r"\([^)]*\)|\S+", side)] for side in pattern.split("->"))
    sizes, shape = dict(sizes, **{"1": 1}), []
    for group, size in zip(left, x.shape):
        known = math.prod(sizes[p] for p in group if p in sizes)
        sizes.update((p, size // known) for p in group if p not in sizes)
        shape += [sizes[p] for p in group if p != "1"]
    order = [p for group in left for p in group if p != "1"]
    x = x.reshape(shape).permute([order.index(p) for group in right for p in group if p != "1"])
    return x.reshape([math.prod(sizes[p] for p in group) for group in right])


def stand_in(name, **members):
    at = ""
    for part in name.split("."):
        at += ("." if at else "") + part
        module = sys.modules.setdefault(at, types.ModuleType(at))
        module.__path__ = []
    for key, value in members.items():
        setattr(sys.modules[name], key, value)


def absent(*_, **__):
    raise NotImplementedError


def stand_ins():
    """What megatron-core imports of packages that need CUDA. Before it is imported."""
    stand_in("mamba_ssm.ops.triton.selective_state_update", selective_state_update=absent)
    stand_in("mamba_ssm.ops.triton.layernorm_gated", RMSNorm=RMSNormGated)
    stand_in("mamba_ssm.ops.triton.ssd_combined", mamba_chunk_scan_combined=mamba_chunk_scan_combined,
             mamba_split_conv1d_scan_combined=absent)
    try:
        import einops  # noqa: F401
    except ImportError:
        stand_in("einops", rearrange=rearrange, repeat=absent)
    stand_in("causal_conv1d", causal_conv1d_fn=causal_conv1d_fn, causal_conv1d_update=absent)
    stand_in("causal_conv1d.causal_conv1d_varlen", causal_conv1d_varlen_states=absent)
    try:
        import triton  # noqa: F401
    except ImportError:  # only needed for inference
        name = "megatron.core.inference.contexts.attention_context.triton.tensor_ops"
        sys.modules[name] = types.ModuleType(name)
        for member in ("tensor_get_slice_after", "tensor_masked_update", "tensor_merge"):
            setattr(sys.modules[name], member, absent)


def start():
    """Imports megatron-core and makes its groups of one. ImportError when it is not there."""
    stand_ins()
    import torch.distributed as dist
    if not torch.cuda.is_available():
        torch.cuda.current_device = lambda: torch.device("cpu")
        torch.cuda.synchronize = lambda *a, **k: None
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel()
    from megatron.core.fusions import fused_softmax
    own = getattr(fused_softmax, "get_sliding_window_causal_mask", None)  # asks for a GPU by name
    own = getattr(own, "__wrapped__", own)
    on_cpu = types.SimpleNamespace(ones=lambda *a, device=None, **k: torch.ones(*a, **k), triu=torch.triu, tril=torch.tril, bool=torch.bool)
    if own:
        fused_softmax.get_sliding_window_causal_mask = types.FunctionType(own.__code__, dict(own.__globals__, torch=on_cpu))
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils
    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
    random.initialize_rng_tracker()
    random.get_cuda_rng_tracker().fork = lambda *a, **k: torch.random.fork_rng(devices=[])


def transformer_config(c, **more):
    from megatron.core.transformer import TransformerConfig
    d = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    return TransformerConfig(**{**dict(
        num_layers=c.num_hidden_layers, hidden_size=c.hidden_size, num_attention_heads=c.num_attention_heads,
        num_query_groups=c.num_key_value_heads, kv_channels=d, ffn_hidden_size=c.intermediate_size, add_bias_linear=getattr(c, "mlp_bias", False),
        normalization="RMSNorm", hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True, perform_initialization=False,
        params_dtype=torch.float32, attention_softmax_in_fp32=True, bias_activation_fusion=False, bias_dropout_fusion=False,
        apply_rope_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False), **more, **getattr(c, "parallel", {})})


def gpt(c):
    """GPTModel of a transformers config: Llama, Mistral, Qwen2, Qwen3, their MoE kinds, Gemma 1"""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    kind, more = c.model_type, dict(layernorm_epsilon=c.rms_norm_eps, gated_linear_unit=True, activation_func=F.silu)
    moe = kind in ("qwen2_moe", "qwen3_moe", "mixtral")
    if kind in ("mistral", "mixtral") and c.sliding_window:
        more["window_size"] = (c.sliding_window - 1, 0)  # it counts the tokens before the one that looks
    if kind == "gemma":
        more["activation_func"] = lambda x: F.gelu(x, approximate="tanh")
    if kind in ("qwen2", "qwen2_moe"):
        more["add_qkv_bias"] = True
    if kind in ("qwen3", "qwen3_moe"):
        more["qk_layernorm"] = True
    if moe:
        dense = set(getattr(c, "mlp_only_layers", None) or [])
        own = kind == "mixtral"
        more.update(num_moe_experts=c.num_local_experts if own else c.num_experts, moe_router_topk=c.num_experts_per_tok,
                    moe_ffn_hidden_size=c.intermediate_size if own else c.moe_intermediate_size,
                    moe_router_pre_softmax=not own and not c.norm_topk_prob, moe_router_load_balancing_type="none",
                    moe_token_dispatcher_type="allgather", moe_router_dtype="fp32")
        if dense:
            more["moe_layer_freq"] = [int(i not in dense) for i in range(c.num_hidden_layers)]
        if kind == "qwen2_moe":
            more.update(moe_shared_expert_intermediate_size=c.shared_expert_intermediate_size, moe_shared_expert_gate=True)
    config = transformer_config(c, **more)
    if moe:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
        for n, layer in enumerate(spec.layer_specs):
            if n not in dense:  # the local spec's slip: with Transformer Engine the norm before an MoE layer keeps its name
                layer.submodules.sharded_state_dict_keys_map = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
    else:
        spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    return GPTModel(config, spec, vocab_size=c.vocab_size, max_sequence_length=c.max_position_embeddings,
                    share_embeddings_and_output_weights=c.tie_word_embeddings, position_embedding_type="rope",
                    rotary_base=c.rope_parameters["rope_theta"], parallel_output=False).eval()


def wanted(model):
    from megatron.core import parallel_state
    return model.sharded_state_dict(metadata={"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)})


def stored(sharded):
    """name -> global shape, of what is no byte object"""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
    out = {}
    for item in nested_values(sharded):
        for t in nested_values(item.build()) if isinstance(item, ShardedTensorFactory) else [item]:
            if isinstance(t, ShardedTensor):
                out[t.key] = tuple(t.global_shape)
    return out


def load(model, folder):
    """The checkpoint into the model by dist_checkpointing; any name too many or too few is an error, but for extra states of modules that
    only Transformer Engine's layers have."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.validation import StrictHandling
    state, unused, absent_keys = dist_checkpointing.load(wanted(model), folder, strict=StrictHandling.RETURN_ALL)
    unused = [k for k in unused if not k.endswith("_extra_state")]
    assert not unused and not absent_keys, (unused, absent_keys)
    state.pop("common", None)
    names = set(model.state_dict())
    model.load_state_dict({k: v for k, v in state.items() if k in names})


def logits(model, tokens):
    n = tokens.shape[1]
    mask = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)[None, None]
    with torch.no_grad():
        return model(tokens, torch.arange(n)[None].expand_as(tokens), mask)


builders = {family: gpt for family in ("llama", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mixtral", "gemma")}


class Duplicated(torch.nn.Linear):
    """Transformer Engine's linear layer that every rank has whole"""

    def __init__(self, n_in, n_out, config, bias, **_):
        super().__init__(n_in, n_out, bias=bias, dtype=config.params_dtype)

    def forward(self, x):
        return super().forward(x), None

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
        return make_sharded_tensors_for_checkpoint(self.state_dict(prefix="", keep_vars=True), prefix, None, sharded_offsets)


def hybrid_spec(width, experts=None, local=False):
    """The layers of a hybrid model, its convolutions that wide. The norms are modules of their own here and stored under the names of the fused ones
    (local: only those of attention)."""
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
    from megatron.core.ssm.mamba_block import MambaStack, MambaStackSubmodules
    from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
    from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
    from megatron.core.ssm.mlp_layer import MLPLayer
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.moe import moe_layer
    from megatron.core.transformer import transformer_layer
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
    sys.modules[MambaStack.__module__].TENorm = WrappedTorchNorm
    moe_layer.HAVE_TE, moe_layer.TELinear = True, Duplicated  # only for what is latent
    names = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_", "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}
    of_mamba = {"norm.": "mixer.in_proj.layer_norm_"}
    if local:
        del names["pre_mlp_layernorm."], of_mamba["norm."]
    mixer = ModuleSpec(MambaMixer, params={"d_conv": width},
                       submodules=MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear))
    attention = ModuleSpec(SelfAttention, params={"attn_mask_type": AttnMaskType.causal},
                           submodules=SelfAttentionSubmodules(linear_qkv=ColumnParallelLinear, core_attention=DotProductAttention,
                                                              linear_proj=RowParallelLinear))

    def layer(module, keys, **parts):
        return ModuleSpec(module, submodules=TransformerLayerSubmodules(sharded_state_dict_keys_map=keys, **parts))

    return ModuleSpec(MambaStack, submodules=MambaStackSubmodules(
        mamba_layer=ModuleSpec(MambaLayer, submodules=MambaLayerSubmodules(
            norm=WrappedTorchNorm, mixer=mixer, mamba_bda=get_bias_dropout_add,
            sharded_state_dict_keys_map=of_mamba)),
        attention_layer=layer(TransformerLayer, names, input_layernorm=WrappedTorchNorm, self_attention=attention,
                              self_attn_bda=get_bias_dropout_add),
        mlp_layer=layer(MLPLayer, names, pre_mlp_layernorm=WrappedTorchNorm, mlp=get_mlp_module_spec_for_backend(LocalSpecProvider()),
                        mlp_bda=get_bias_dropout_add),
        moe_layer=layer(getattr(transformer_layer, "MoETransformerLayer", TransformerLayer), {}, pre_mlp_layernorm=WrappedTorchNorm, mlp_bda=get_bias_dropout_add,
                        mlp=get_mlp_module_spec_for_backend(LocalSpecProvider(), num_experts=experts or 2))))


def hybrid(c, **stage):
    """MambaModel of a NemotronHConfig (of a pipeline stage: pre_process, post_process)."""
    from megatron.core.models.mamba import MambaModel
    more = dict(layernorm_epsilon=c.layer_norm_epsilon, activation_func=lambda x: F.relu(x).square(), gated_linear_unit=False,
                mamba_num_heads=c.mamba_num_heads, mamba_head_dim=c.mamba_head_dim, mamba_num_groups=c.n_groups,
                mamba_state_dim=c.ssm_state_size, use_mamba_mem_eff_path=False, is_hybrid_model=True)
    if "E" in c.hybrid_override_pattern:
        more.update(num_moe_experts=c.n_routed_experts, moe_router_topk=c.num_experts_per_tok, moe_ffn_hidden_size=c.moe_intermediate_size,
                    moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True, moe_router_dtype="fp32",
                    moe_router_topk_scaling_factor=c.routed_scaling_factor, moe_router_load_balancing_type="none",
                    moe_router_num_groups=c.n_group if c.n_group > 1 else None, moe_router_group_topk=c.topk_group if c.n_group > 1 else None,
                    moe_shared_expert_intermediate_size=c.moe_shared_expert_intermediate_size, moe_token_dispatcher_type="allgather",
                    moe_latent_size=c.moe_latent_size)
    config = transformer_config(c, **more)
    return MambaModel(config, hybrid_spec(c.conv_kernel, config.num_moe_experts), vocab_size=c.vocab_size, max_sequence_length=c.max_position_embeddings,
                      hybrid_override_pattern=c.hybrid_override_pattern, share_embeddings_and_output_weights=c.tie_word_embeddings,
                      position_embedding_type="none", parallel_output=False, **stage).eval()


builders["nemotron_h"] = hybrid
