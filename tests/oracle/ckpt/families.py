"""Tiny random models of the decoder families that s2s-ckpt maps, made by transformers: sizes are odd on purpose, so that a wrong
order of rows, a wrong group or a wrong layer cannot pass."""
import random

import torch
import transformers as hf

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()


def sizes(r):
    """hidden, heads, groups, head_dim, layers, ffn, vocabulary; head_dim is seldom hidden / heads"""
    groups = r.choice([1, 2, 3])
    heads = groups * r.choice([1, 2, 3])
    return dict(hidden_size=heads * r.randint(2, 7) if heads % 2 == 0 else heads * 2 * r.randint(1, 4),
                num_attention_heads=heads, num_key_value_heads=groups,
                head_dim=2 * r.randint(1, 6), num_hidden_layers=r.choice([1, 2, 3, 5, 11]), intermediate_size=r.randint(7, 30),
                vocab_size=r.randint(20, 90), max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                tie_word_embeddings=r.random() < 0.5, rms_norm_eps=10 ** r.uniform(-6, -3), rope_theta=r.choice([1e4, 5e5]))


def plain(config, model, map_name, **more):
    def make(r):
        return model(config(**dict(sizes(r), **more))), map_name
    return make


def llama(r):
    s = sizes(r)
    s["attention_bias"] = s["mlp_bias"] = r.random() < 0.3  # Megatron has both or none (add_bias_linear)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**s)), "llama"


def qwen2(r):
    s = sizes(r)  # it has no head_dim of its own
    s["hidden_size"] = s["num_attention_heads"] * s.pop("head_dim")
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(**s)), "llama"


def experts(r):
    n = r.choice([1, 2, 4, 12])
    k = r.randint(1, min(n, 3))
    # Megatron has no weight of 1 for the one expert that is chosen
    return dict(num_experts=n, num_experts_per_tok=k, moe_intermediate_size=r.randint(3, 17),
                norm_topk_prob=k > 1 and r.random() < 0.5)


def dense_layers(r, s):
    """some MoE models have dense layers in between"""
    if r.random() < 0.4:
        s["mlp_only_layers"] = [i for i in range(s["num_hidden_layers"]) if r.random() < 0.4]
    return s


def qwen2_moe(r):
    s = dense_layers(r, dict(sizes(r), **experts(r), shared_expert_intermediate_size=r.randint(3, 19)))
    s["hidden_size"] = s["num_attention_heads"] * s.pop("head_dim")
    return hf.Qwen2MoeForCausalLM(hf.Qwen2MoeConfig(**s)), "qwen_moe"


def qwen3_moe(r):
    return hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**dense_layers(r, dict(sizes(r), **experts(r))))), "qwen_moe"


def mistral(r):
    s = sizes(r)
    s["sliding_window"] = r.choice([None, 4, 8, 64])
    return hf.MistralForCausalLM(hf.MistralConfig(**s)), "llama"


def mixtral(r):
    # Megatron has no weight of 1 for the one expert that is chosen
    s, n = sizes(r), r.choice([2, 4, 12])
    s.update(num_local_experts=n, num_experts_per_tok=r.randint(2, min(n, 3)), sliding_window=r.choice([None, 4]))
    return hf.MixtralForCausalLM(hf.MixtralConfig(**s)), "mixtral"


def gemma(config, model):
    def make(r):
        s = dict(sizes(r), tie_word_embeddings=True)
        if config is not hf.GemmaConfig:
            s.update(query_pre_attn_scalar=s["head_dim"], sliding_window=r.choice([8, 64]))
        if config is hf.Gemma3TextConfig:  # every sixth layer is global; of 4 billion parameters and more it has a factor
            s["num_hidden_layers"] = r.choice([1, 2, 7, 11])
            s["rope_scaling"] = {"rope_type": "linear", "factor": 8.0} if r.random() < 0.5 else None
        return model(config(**s)), "gemma2" if config is not hf.GemmaConfig else "llama"
    return make


def gemma3_multimodal(r):
    s = dict(sizes(r), tie_word_embeddings=True, sliding_window=8)
    s["query_pre_attn_scalar"] = s["head_dim"]
    eye = dict(hidden_size=2 * r.randint(2, 9), num_attention_heads=2, intermediate_size=r.randint(5, 19), num_hidden_layers=2, image_size=28, patch_size=14)
    return hf.Gemma3ForConditionalGeneration(hf.Gemma3Config(text_config=s, vision_config=eye, mm_tokens_per_image=4)), "gemma3_vl"


def nemotron(r):
    s = sizes(r)
    s["norm_eps"] = s.pop("rms_norm_eps")
    s["attention_bias"] = s["mlp_bias"] = r.random() < 0.3
    s["head_dim"] = 4 * r.randint(1, 4)  # of which a quarter or more turns, two by two
    s["partial_rotary_factor"] = r.choice([0.5, 1.0])
    return hf.NemotronForCausalLM(hf.NemotronConfig(**s)), "nemotron"


def nemotron_h(r):
    s = sizes(r)
    s["layer_norm_epsilon"] = 1e-5  # Megatron's Mamba mixer knows no other
    del s["rms_norm_eps"]
    del s["rope_theta"]
    s["tie_word_embeddings"] = False  # transformers' NemotronH never ties
    n, groups = s.pop("num_hidden_layers") + 3, r.choice([1, 2])
    pattern = [r.choice("M*-E") for _ in range(n)]
    pattern[r.randrange(n)] = "M"
    heads = groups * r.choice([1, 2, 3])
    n_group = r.choice([1, 2])
    topk_group = r.randint(1, n_group)
    # transformers judges a group by its two best experts, Megatron by its best k / topk_group: they agree at two
    k = 2 * topk_group if n_group > 1 else r.choice([1, 2])
    n_experts = n_group * r.choice([2, 4, 6])
    s.update(hybrid_override_pattern="".join(pattern), mamba_num_heads=heads, mamba_head_dim=2 * r.randint(1, 5), n_groups=groups,
             ssm_state_size=r.randint(3, 9), conv_kernel=r.choice([2, 4]), use_conv_bias=True, chunk_size=r.choice([4, 16]),
             expand=1, n_routed_experts=n_experts, n_group=n_group, topk_group=topk_group,
             num_experts_per_tok=k, n_shared_experts=1, moe_intermediate_size=r.randint(3, 15),
             moe_shared_expert_intermediate_size=r.randint(3, 19), routed_scaling_factor=r.choice([1.0, 2.5]),
             # Megatron does not divide by the sum of one
             norm_topk_prob=k > 1, moe_latent_size=r.randint(3, 9) if r.random() < 0.3 else None,
             time_step_min=1e-30)
    return hf.NemotronHForCausalLM(hf.NemotronHConfig(**s)), "nemotron_h"


families = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": plain(hf.Qwen3Config, hf.Qwen3ForCausalLM, "llama"),
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "mixtral": mixtral,
    "gemma": gemma(hf.GemmaConfig, hf.GemmaForCausalLM),
    "gemma2": gemma(hf.Gemma2Config, hf.Gemma2ForCausalLM),
    "gemma3": gemma(hf.Gemma3TextConfig, hf.Gemma3ForCausalLM),
    "nemotron": nemotron,
    "nemotron_h": nemotron_h,
}
# whose language model is one of these, inside of more
composites = {"gemma3_multimodal": gemma3_multimodal}


def make(family, seed):
    """a model, every number of it drawn, and the name of its map"""
    torch.manual_seed(seed)
    model, name = dict(families, **composites)[family](random.Random("%s %d" % (family, seed)))
    with torch.no_grad():
        for key, p in list(model.named_parameters()) + list(model.named_buffers()):
            if not p.is_floating_point() or "inv_freq" in key:
                continue
            if p.dim() == 1 and "norm" in key:
                p.uniform_(-0.5, 0.5)
                p += 0 if "gemma" in family or family == "nemotron" else 1
            elif key.endswith("A_log"):
                p.uniform_(-1, 1.5)
            else:
                p.normal_(0, 0.3)
    return model.eval(), name
