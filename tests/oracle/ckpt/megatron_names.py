"""What the tensors of a Hugging Face decoder are called by Megatron-Core and how their rows lie there, from the layout of its modules:
written apart from the tables of s2s-ckpt so that the two can be compared. Layers are numbered here; `stacked` puts them on an axis."""
import re

import torch


def interleave(q, k, v, groups):
    """rows of the fused projection: the query heads of a group, its key, its value"""
    parts = [t.unflatten(0, (groups, t.shape[0] // groups)) for t in (q, k, v)]
    return torch.cat(parts, 1).flatten(0, 1)


def attention(out, hf, to, at, groups):
    for kind in ("weight", "bias"):
        if at + "q_proj." + kind in hf:
            out[to + "linear_qkv." + kind] = interleave(*(hf[at + p + "_proj." + kind] for p in "qkv"), groups)
        if at + "o_proj." + kind in hf:
            out[to + "linear_proj." + kind] = hf[at + "o_proj." + kind]
    for a, b in (("q_layernorm", "q_norm"), ("k_layernorm", "k_norm")):
        if at + b + ".weight" in hf:
            out[to + a + ".weight"] = hf[at + b + ".weight"]


def gated(hf, at, kind="weight"):
    return torch.cat([hf[at + "gate_proj." + kind], hf[at + "up_proj." + kind]])


def count(hf, at):
    n = 0
    while any(key.startswith("%s%d." % (at, n)) for key in hf):
        n += 1
    return n


def mixtral(key):
    """Mixtral's name as Qwen's"""
    for a, b in ((".block_sparse_moe.", ".mlp."), (".w1.", ".gate_proj."), (".w3.", ".up_proj."), (".w2.", ".down_proj.")):
        key = key.replace(a, b)
    return key


def decoder(hf, c, prefix=""):
    """Llama, Mistral, Mixtral, Qwen, Gemma, Nemotron-4"""
    if c.model_type == "mixtral":
        hf = {mixtral(key): t for key, t in hf.items()}
    out, m = {}, prefix + "model."
    out["embedding.word_embeddings.weight"] = hf[m + "embed_tokens.weight"]
    if prefix + "lm_head.weight" in hf:
        out["output_layer.weight"] = hf[prefix + "lm_head.weight"]
    out["decoder.final_layernorm.weight"] = hf[m + "norm.weight"]
    with_bias = m + "norm.bias" in hf  # Nemotron-4's norms, whose MLP has no gate
    if with_bias:
        out["decoder.final_layernorm.bias"] = hf[m + "norm.bias"]
    for n in range(c.num_hidden_layers):
        at, to = "%slayers.%d." % (m, n), "decoder.layers.%d." % n
        four = at + "pre_feedforward_layernorm.weight" in hf
        attention(out, hf, to + "self_attention.", at + "self_attn.", c.num_key_value_heads)
        out[to + "self_attention.linear_qkv.layer_norm_weight"] = hf[at + "input_layernorm.weight"]
        if with_bias:
            out[to + "self_attention.linear_qkv.layer_norm_bias"] = hf[at + "input_layernorm.bias"]
            out[to + "mlp.linear_fc1.layer_norm_bias"] = hf[at + "post_attention_layernorm.bias"]
        norm = hf[at + ("pre_feedforward_layernorm.weight" if four else "post_attention_layernorm.weight")]
        if four:
            out[to + "self_attention.linear_proj.post_layernorm.weight"] = hf[at + "post_attention_layernorm.weight"]
            out[to + "mlp.linear_fc2.post_layernorm.weight"] = hf[at + "post_feedforward_layernorm.weight"]
        at += "mlp."
        to += "mlp."
        if at + "gate.weight" not in hf:
            out[to + "linear_fc1.layer_norm_weight"] = norm
            out[to + "linear_fc1.weight"] = hf[at + "up_proj.weight"] if with_bias else gated(hf, at)
            out[to + "linear_fc2.weight"] = hf[at + "down_proj.weight"]
            if at + "down_proj.bias" in hf:
                out[to + "linear_fc1.bias"] = hf[at + "up_proj.bias"] if with_bias else gated(hf, at, "bias")
                out[to + "linear_fc2.bias"] = hf[at + "down_proj.bias"]
            continue
        out[to[:-4] + "pre_mlp_layernorm.weight"] = norm
        out[to + "router.weight"] = hf[at + "gate.weight"]
        e = range(count(hf, at + "experts."))
        out[to + "experts.experts.linear_fc1.weight"] = torch.stack([gated(hf, "%sexperts.%d." % (at, i)) for i in e])
        out[to + "experts.experts.linear_fc2.weight"] = torch.stack([hf["%sexperts.%d.down_proj.weight" % (at, i)] for i in e])
        if at + "shared_expert_gate.weight" in hf:
            out[to + "shared_experts.gate_weight"] = hf[at + "shared_expert_gate.weight"]
            out[to + "shared_experts.linear_fc1.weight"] = gated(hf, at + "shared_expert.")
            out[to + "shared_experts.linear_fc2.weight"] = hf[at + "shared_expert.down_proj.weight"]
    return out


def hybrid(hf, c):
    """Nemotron-H"""
    inner, state = c.mamba_num_heads * c.mamba_head_dim, c.n_groups * c.ssm_state_size
    out = {"embedding.word_embeddings.weight": hf["backbone.embeddings.weight"],
           "decoder.final_norm.weight": hf["backbone.norm_f.weight"]}
    if "lm_head.weight" in hf:
        out["output_layer.weight"] = hf["lm_head.weight"]
    for n, kind in enumerate(c.hybrid_override_pattern):
        at, to = "backbone.layers.%d.mixer." % n, "decoder.layers.%d." % n
        norm = hf["backbone.layers.%d.norm.weight" % n]
        if kind == "M":
            out[to + "mixer.in_proj.layer_norm_weight"] = norm
            rows = hf[at + "in_proj.weight"].split([inner, inner, state, state, c.mamba_num_heads])
            out.update((to + "mixer.in_proj.weight." + part, r) for part, r in zip(("z", "x", "B", "C", "dt"), rows))
            for what in ("weight", "bias"):
                rows = hf[at + "conv1d." + what].split([inner, state, state])
                out.update((to + "mixer.conv1d.%s.%s" % (what, part), r) for part, r in zip("xBC", rows))
            for same in ("A_log", "D", "dt_bias", "norm.weight", "out_proj.weight"):
                out[to + "mixer." + same] = hf[at + same]
        elif kind == "*":
            out[to + "self_attention.linear_qkv.layer_norm_weight"] = norm
            attention(out, hf, to + "self_attention.", at, c.num_key_value_heads)
        elif kind == "-":
            out[to + "mlp.linear_fc1.layer_norm_weight"] = norm
            out[to + "mlp.linear_fc1.weight"] = hf[at + "up_proj.weight"]
            out[to + "mlp.linear_fc2.weight"] = hf[at + "down_proj.weight"]
        else:
            out[to + "pre_mlp_layernorm.weight"] = norm
            to += "mlp."
            out[to + "router.weight"] = hf[at + "gate.weight"]
            out[to + "router.expert_bias"] = hf[at + "gate.e_score_correction_bias"]
            e = range(count(hf, at + "experts."))
            for a, b in (("linear_fc1", "up_proj"), ("linear_fc2", "down_proj")):
                out[to + "experts.experts.%s.weight" % a] = torch.stack([hf["%sexperts.%d.%s.weight" % (at, i, b)] for i in e])
                out[to + "shared_experts.%s.weight" % a] = hf["%sshared_experts.%s.weight" % (at, b)]
            for latent in ("fc1_latent_proj.weight", "fc2_latent_proj.weight"):
                if at + latent in hf:
                    out[to + latent] = hf[at + latent]
    return out


def with_eye(hf, words):
    """Gemma 3: transformers' tower as it is, a projection as a linear layer has it"""
    out = {"language_model." + key: t for key, t in words.items()}
    out.update((key, t) for key, t in hf.items() if key.startswith("vision_tower."))
    at = "multi_modal_projector."
    out[at + "mm_soft_embed_norm.weight"] = hf[at + "mm_soft_emb_norm.weight"]
    out[at + "proj.weight"] = hf[at + "mm_input_projection_weight"].T.contiguous()
    return out


def stacked(numbered):
    """all layers of a name on axis 0"""
    out, layers = {}, {}
    for key, t in numbered.items():
        found = re.match(r"(.*decoder\.layers)\.(\d+)(\..*)", key)
        if found:
            layers.setdefault(found[1] + found[3], {})[int(found[2])] = t
        else:
            out[key] = t
    for key, at in layers.items():
        out[key] = torch.stack([at[n] for n in range(len(at))])
    return out


# Other spellings of the same model. Each takes and gives numbered names.

def unfused(names):
    """norms as modules of their own, as before they were fused into the projections"""
    table = ((".self_attention.linear_qkv.layer_norm_weight", ".input_layernorm.weight"), (".mixer.in_proj.layer_norm_weight", ".norm.weight"),
             (".mlp.linear_fc1.layer_norm_weight", ".pre_mlp_layernorm.weight"))
    out = {}
    for key, t in names.items():
        for a, b in table:
            key = key.replace(a, b)
        out[key] = t
    return out


def local_moe_norm(names):
    """megatron-core's local spec names the norm before an MoE layer as if it were fused"""
    return {re.sub(r"(layers\.\d+)\.pre_mlp_layernorm\.weight", r"\1.mlp.linear_fc1.layer_norm_weight", k): t for k, t in names.items()}


def singletons(names, is_gated):
    """singleton_local_shards: gate and up apart (weight_w, weight_v), every expert by itself"""
    out = {}
    for key, t in names.items():
        one = re.fullmatch(r"(.*\.experts\.experts)\.(linear_fc[12])\.weight", key)
        parts = [("%s.%d.%s.weight" % (one[1], e, one[2]), t[e]) for e in range(len(t))] if one else [(key, t)]
        for name, x in parts:
            if name.endswith(("linear_fc1.weight", "linear_fc1.bias")) and is_gated:
                half = x.shape[0] // 2
                out[name + "_w"], out[name + "_v"] = x[:half].clone(), x[half:].clone()
            else:
                out[name] = x.clone()
    return out


def wrapped(names, prefix):
    return {prefix + k: t for k, t in names.items()}


def padded(names, multiple):
    out = dict(names)
    for key in ("embedding.word_embeddings.weight", "output_layer.weight"):
        if key in out:
            t = out[key]
            out[key] = torch.cat([t, torch.full((-len(t) % multiple, t.shape[1]), 7.0, dtype=t.dtype)])
    return out
