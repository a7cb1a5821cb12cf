"""The section `model` of Megatron-Bridge's run_config.yaml, from the config of a transformers model: what its bridges (provider_bridge)
put into their providers, and the defaults of those where they matter. Written from Bridge's sources, apart from s2s-ckpt."""
import math

ACTIVATIONS = {"silu": "torch.nn.functional.silu", "relu2": "megatron.core.activations.squared_relu"}


def function(name):
    return {"_target_": name, "_call_": False}


def common(c, eps):
    return dict(
        _target_="megatron.bridge.models.gpt_provider.GPTModelProvider", num_layers=c.num_hidden_layers, hidden_size=c.hidden_size,
        ffn_hidden_size=getattr(c, "intermediate_size", None), num_attention_heads=c.num_attention_heads,
        num_query_groups=None if c.num_key_value_heads == c.num_attention_heads else c.num_key_value_heads,
        kv_channels=getattr(c, "head_dim", None), vocab_size=c.vocab_size, seq_length=c.max_position_embeddings, layernorm_epsilon=eps,
        normalization="RMSNorm", share_embeddings_and_output_weights=c.tie_word_embeddings, add_bias_linear=False, add_qkv_bias=False,
        layernorm_zero_centered_gamma=False, params_dtype=function("torch.float32"), rotary_percent=1.0, rotary_interleaved=False,
        rope_scaling=False, rope_scaling_factor=1.0, seq_len_interpolation_factor=None, softmax_scale=None, softmax_type="vanilla",
        window_size=None, window_attn_skip_freq=None, multi_latent_attention=False, no_rope_freq=None, qk_layernorm=False,
        num_moe_experts=None, moe_layer_freq=1, moe_router_topk=2, moe_router_pre_softmax=False, moe_router_score_function="softmax",
        moe_router_enable_expert_bias=False, moe_router_num_groups=None, moe_router_group_topk=None, moe_router_topk_scaling_factor=None,
        moe_shared_expert_intermediate_size=None)


def decoder(c):
    kind, rope = c.model_type, c.rope_parameters
    gemma = kind.startswith("gemma")
    p = common(c, c.norm_eps if kind == "nemotron" else c.rms_norm_eps)
    p.update(gated_linear_unit=True, activation_func=function("megatron.core.activations.fast_gelu" if gemma else ACTIVATIONS["silu"]),
             position_embedding_type="rope", layernorm_zero_centered_gamma=gemma)
    if kind == "gemma3_text":
        p.update(rotary_base=[rope["sliding_attention"]["rope_theta"], rope["full_attention"]["rope_theta"]], window_size=c.sliding_window,
                 interleaved_attn_pattern=[5, 1], softmax_scale=1 / math.sqrt(c.query_pre_attn_scalar), qk_layernorm=True,
                 attn_logit_softcapping=None, final_logit_softcapping=None, rope_scaling_factor=rope["full_attention"].get("factor", 1.0))
    else:
        p["rotary_base"] = rope["rope_theta"]
    if rope.get("rope_type") == "llama3":
        p.update(rope_scaling=True, rope_scaling_factor=rope["factor"])
    if kind == "gemma2":
        p.update(window_size=[c.sliding_window - 1, 0], query_pre_attn_scalar=c.query_pre_attn_scalar,
                 attn_logit_softcapping=c.attn_logit_softcapping, final_logit_softcapping=c.final_logit_softcapping)
    if kind in ("mistral", "mixtral") and c.sliding_window:
        p["window_size"] = [c.sliding_window - 1, 0]
    if kind == "nemotron":
        p.update(normalization="LayerNorm", layernorm_zero_centered_gamma=True, gated_linear_unit=False,
                 activation_func=function(ACTIVATIONS["relu2"]), rotary_percent=rope["partial_rotary_factor"])
    p.update(add_bias_linear=getattr(c, "mlp_bias", False), add_qkv_bias=kind in ("qwen2", "qwen2_moe"))
    p["qk_layernorm"] |= kind in ("qwen3", "qwen3_moe")
    if kind.endswith("moe") or kind == "mixtral":
        dense = set(getattr(c, "mlp_only_layers", None) or [])
        p.update(num_moe_experts=getattr(c, "num_experts", None) or c.num_local_experts, moe_router_topk=c.num_experts_per_tok,
                 moe_ffn_hidden_size=getattr(c, "moe_intermediate_size", None) or c.intermediate_size,
                 moe_router_pre_softmax=not getattr(c, "norm_topk_prob", True),
                 moe_shared_expert_intermediate_size=getattr(c, "shared_expert_intermediate_size", None),
                 moe_layer_freq=[int(i not in dense) for i in range(c.num_hidden_layers)] if dense else 1)
    return p


def built(c):
    """of models that are built from a configuration, which has Megatron-Core's inside"""
    p = decoder(c)
    outer = ("vocab_size", "seq_length", "share_embeddings_and_output_weights", "position_embedding_type", "rotary_base", "rotary_percent",
             "rope_scaling", "rope_scaling_factor", "seq_len_interpolation_factor")
    inner = {k: v for k, v in p.items() if k not in outer and k != "_target_"}
    inner.update(_target_="megatron.bridge.models.transformer_config.TransformerConfig",
                 activation_func=inner["activation_func"]["_target_"].split(".")[-1])
    return dict({k: p[k] for k in outer}, _target_="megatron.bridge.models.gpt.model_config.BridgeGPTModelConfig",
                _builder_="megatron.bridge.models.gpt.gpt_builder.GPTModelBuilder", transformer=inner)


def hybrid(c):
    p = common(c, c.layer_norm_epsilon)
    limited = c.n_group > 1
    p.update(gated_linear_unit=False, activation_func=function(ACTIVATIONS["relu2"]), position_embedding_type="none", is_hybrid_model=True,
             hybrid_layer_pattern=c.hybrid_override_pattern, hybrid_override_pattern=None, mamba_num_heads=c.mamba_num_heads,
             mamba_head_dim=c.mamba_head_dim, mamba_num_groups=c.n_groups, mamba_state_dim=c.ssm_state_size, num_moe_experts=c.n_routed_experts,
             moe_router_topk=c.num_experts_per_tok, moe_ffn_hidden_size=c.moe_intermediate_size, moe_router_score_function="sigmoid",
             moe_shared_expert_intermediate_size=c.moe_shared_expert_intermediate_size, moe_router_enable_expert_bias=True,
             moe_router_topk_scaling_factor=c.routed_scaling_factor, moe_latent_size=c.moe_latent_size,
             moe_router_num_groups=c.n_group if limited else None, moe_router_group_topk=c.topk_group if limited else None)
    return p
