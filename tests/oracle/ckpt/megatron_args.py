"""The arguments that Megatron's training script saves of a model (those that shape it), from the config of its transformers twin."""


def decoder(c):
    kind = c.model_type
    four = kind == "nemotron"  # Nemotron-4
    gemma, window = kind.startswith("gemma"), getattr(c, "sliding_window", None)
    args = dict(
        num_layers=c.num_hidden_layers, hidden_size=c.hidden_size, ffn_hidden_size=c.intermediate_size, vocab_size=c.vocab_size,
        num_attention_heads=c.num_attention_heads, group_query_attention=c.num_key_value_heads != c.num_attention_heads,
        num_query_groups=c.num_key_value_heads if c.num_key_value_heads != c.num_attention_heads else 1,
        kv_channels=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        max_position_embeddings=c.max_position_embeddings, normalization="LayerNorm" if four else "RMSNorm",
        norm_epsilon=c.norm_eps if four else c.rms_norm_eps, apply_layernorm_1p=gemma or four,
        add_bias_linear=getattr(c, "mlp_bias", False), add_qkv_bias=kind in ("qwen2", "qwen2_moe"), qk_layernorm=kind in ("qwen3", "qwen3_moe", "gemma3_text"),
        swiglu=not gemma and not four, squared_relu=four, quick_geglu=False, untie_embeddings_and_output_weights=not c.tie_word_embeddings,
        position_embedding_type="rope", rotary_percent=1.0, rotary_interleaved=False, use_rope_scaling=False, rope_scaling_factor=8.0,
        rotary_seq_len_interpolation_factor=None, no_rope_freq=None, multi_latent_attention=False, attention_output_gate=False,
        softmax_scale=None, softmax_type="vanilla", num_experts=None, moe_router_topk=2, moe_router_pre_softmax=False,
        moe_router_score_function="softmax", moe_router_num_groups=None, moe_router_group_topk=None, moe_router_enable_expert_bias=False,
        moe_router_topk_scaling_factor=None, window_size=None, window_attn_skip_freq=None)
    rope = c.rope_parameters
    args["rotary_percent"] = rope.get("partial_rotary_factor", 1.0)
    args["rotary_base"] = rope["rope_theta"] if "rope_theta" in rope else tuple(rope[k]["rope_theta"] for k in
                                                                               ("sliding_attention", "full_attention"))
    if kind == "gemma3_text":
        args["rotary_seq_len_interpolation_factor"] = rope["full_attention"].get("factor")
    if kind in ("gemma2", "gemma3_text"):
        args.update(softmax_scale=c.query_pre_attn_scalar ** -0.5, attn_logit_softcapping=c.attn_logit_softcapping,
                    final_logit_softcapping=c.final_logit_softcapping)
    types = getattr(c, "layer_types", None)
    if window and (types is None or "sliding_attention" in types):
        args["window_size"] = (window - 1, 0)
        if types:
            args["window_attn_skip_freq"] = [int(t == "sliding_attention") for t in types]
    if kind.endswith("moe") or kind == "mixtral":
        args.update(num_experts=getattr(c, "num_experts", None) or c.num_local_experts, moe_router_topk=c.num_experts_per_tok,
                    moe_ffn_hidden_size=getattr(c, "moe_intermediate_size", None) or c.intermediate_size,
                    moe_router_pre_softmax=not getattr(c, "norm_topk_prob", True),
                    moe_shared_expert_gate=kind == "qwen2_moe", moe_shared_expert_intermediate_size=getattr(c, "shared_expert_intermediate_size", None))
    return args


def hybrid(c):
    limited = c.n_group > 1
    return dict(
        num_layers=c.num_hidden_layers, hidden_size=c.hidden_size, ffn_hidden_size=c.intermediate_size, vocab_size=c.vocab_size,
        num_attention_heads=c.num_attention_heads, group_query_attention=c.num_key_value_heads != c.num_attention_heads,
        num_query_groups=c.num_key_value_heads, kv_channels=c.head_dim, max_position_embeddings=c.max_position_embeddings, normalization="RMSNorm",
        norm_epsilon=c.layer_norm_epsilon, apply_layernorm_1p=False, add_bias_linear=False, swiglu=False, squared_relu=True,
        untie_embeddings_and_output_weights=True, position_embedding_type="none", rotary_percent=1.0, rotary_base=10000,
        hybrid_layer_pattern=c.hybrid_override_pattern, hybrid_override_pattern=None, mamba_num_heads=None,
        mamba_head_dim=c.mamba_head_dim, mamba_num_groups=c.n_groups, mamba_state_dim=c.ssm_state_size,
        num_experts=c.n_routed_experts, moe_router_topk=c.num_experts_per_tok, moe_ffn_hidden_size=c.moe_intermediate_size,
        moe_shared_expert_intermediate_size=c.moe_shared_expert_intermediate_size, moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True, moe_router_topk_scaling_factor=c.routed_scaling_factor, moe_latent_size=c.moe_latent_size,
        moe_router_num_groups=c.n_group if limited else None, moe_router_group_topk=c.topk_group if limited else None)
