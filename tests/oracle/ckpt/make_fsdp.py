"""make_fsdp.py OUT: models as Megatron-FSDP saves them (fsdp_dtensor) and as torch_dist has them, in OUT/NAME.fsdp and OUT/NAME.dist: the same
weights. Names and cuts are those that check_fsdp.py sees the library write: a live model's names behind "model.module.", gated
fc1 as _w and _v, an expert a tensor, rows in uneven chunks, the arguments as an object. Plain Python with numpy."""
import os
import struct
import sys

import numpy as np
from mini_writer import g, i, s, write

H, HEADS, GROUPS, F, VOCAB, EXPERTS, CHANNELS, STATE, MAMBA_HEADS = 8, 4, 2, 12, 16, 3, 16, 8, 4
random = np.random.default_rng(11)


def values(*shape):
    return random.standard_normal(shape).astype(np.float32)


def args(tp, **more):
    said = dict(num_layers=2, hidden_size=H, num_attention_heads=HEADS, num_query_groups=GROUPS, kv_channels=H // HEADS, ffn_hidden_size=F, vocab_size=VOCAB,
                padded_vocab_size=VOCAB, max_position_embeddings=32, rotary_base=10000, **more)
    said.update({"tensor_model_parallel_size": tp} if tp else {})
    said.update(normalization="RMSNorm", norm_epsilon=1e-5, add_bias_linear=False, position_embedding_type="rope", rotary_percent=1.0, bf16=False,
                untie_embeddings_and_output_weights=True, group_query_attention=True)
    said.update({"position_embedding_type": "none"} if "mamba_num_heads" in more else {})
    pickled = {bool: lambda v: b"\x88" if v else b"\x89", int: i, str: s, float: lambda v: b"G" + struct.pack(">d", v)}
    return g("argparse", "Namespace") + b")\x81}(" + b"".join(s(k) + pickled[type(v)](v) for k, v in said.items()) + b"ub"


def chunks(v, n):
    """Rows in at most n uneven chunks; what a rank has none of is not written"""
    cuts = sorted({0, len(v)} | set(random.integers(0, len(v) + 1, n - 1).tolist()))
    return [([a] + [0] * (v.ndim - 1), [b - a] + list(v.shape[1:]), v[a:b].tobytes()) for a, b in zip(cuts, cuts[1:])]


def save(folder, tensors, objects=(), common=None, n=3):
    write(os.path.join(sys.argv[1], folder), [(k, "float32", v.shape, chunks(v, n)) for k, v in tensors.items()], objects, common=common,
          sharded_backend=common and "torch_dist")


def by_rank(sections, tp):
    """Rows of a fused tensor as tensor-parallel ranks behind each other have them"""
    return np.concatenate([np.split(section, tp)[r] for r in range(tp) for section in sections])


def attention(live, dist, at):
    for k, v in (("linear_proj.weight", values(H, H)), ("linear_qkv.weight", values(2 * H, H)), ("linear_qkv.layer_norm_weight", values(H))):
        live[at + "self_attention." + k] = dist[at + "self_attention." + k] = v


def gated(live, dist, at, to, split):
    """fc1 as torch_dist has it; live: split as _w and _v, or not"""
    live_at, live_end = at
    w, v = values(F, H), values(F, H)
    live.update({live_at + "_w" + live_end: w, live_at + "_v" + live_end: v} if split else {live_at + live_end: np.concatenate([w, v])})
    dist[to] = np.concatenate([w, v])


def ends(norm="final_layernorm"):
    both = {"embedding.word_embeddings.weight": values(VOCAB, H), "output_layer.weight": values(VOCAB, H), "decoder.%s.weight" % norm: values(H)}
    return dict(both), dict(both)


def dense():
    live, dist = ends()
    for n in range(2):
        at = "decoder.layers.%d." % n
        attention(live, dist, at)
        gated(live, dist, (at + "mlp.linear_fc1.weight", ""), at + "mlp.linear_fc1.weight", True)
        for k, v in (("mlp.linear_fc1.layer_norm_weight", values(H)), ("mlp.linear_fc2.weight", values(H, F))):
            live[at + k] = dist[at + k] = v
    return live, dist, args(2, swiglu=True)


def experts(name1, name2, split, single=False):
    live, dist = ends()
    for n in range(2):
        at = "decoder.layers.%d." % n
        attention(live, dist, at)
        for k, v in (("pre_mlp_layernorm.weight", values(H)), ("mlp.router.weight", values(EXPERTS, H))):
            live[at + k] = dist[at + k] = v
        for k in "qk":
            live[at + "self_attention.%s_layernorm.weight" % k] = dist[at + "self_attention.%s_layernorm.weight" % k] = values(H // HEADS)
        fc1, fc2 = {}, values(EXPERTS, H, F)
        for e in range(EXPERTS):
            gated(live, fc1, (at + name1 % e, ""), e, split)
            live[at + name2 % e] = fc2[e]
        dist[at + "mlp.experts.experts.linear_fc1.weight"] = np.stack([fc1[e] for e in range(EXPERTS)])
        dist[at + "mlp.experts.experts.linear_fc2.weight"] = fc2
        if single:  # Transformer Engine's one tensor of all experts
            live = {k: v for k, v in live.items() if not k.startswith(at + "mlp.experts.")}
            live.update({k.replace("experts.experts.", "experts."): v for k, v in dist.items() if k.startswith(at + "mlp.experts.")})
    return live, dist, args(1, swiglu=True, num_experts=EXPERTS, moe_ffn_hidden_size=F, moe_router_topk=2, moe_router_load_balancing_type="aux_loss", moe_router_score_function="softmax", moe_layer_freq=1, qk_layernorm=True)


def hybrid(tp, said=True):
    live, dist = ends("final_norm")
    at = "decoder.layers.0.mixer."
    rows = {"in_proj.weight": [("z", CHANNELS), ("x", CHANNELS), ("B", STATE), ("C", STATE), ("dt", MAMBA_HEADS)],
            "conv1d.weight": [("x", CHANNELS), ("B", STATE), ("C", STATE)], "conv1d.bias": [("x", CHANNELS), ("B", STATE), ("C", STATE)]}
    for k, sections in rows.items():
        shape = {"in_proj.weight": (H,), "conv1d.weight": (1, 4), "conv1d.bias": ()}[k]
        made = [values(n, *shape) for _, n in sections]
        dist.update({"%s%s.%s" % (at, k, name): v for (name, _), v in zip(sections, made)})
        live[at + (k.replace("conv1d.", "conv1d_") if tp == 1 else k)] = by_rank(made, tp)  # the later spelling in one of them
    for k, v in (("in_proj.layer_norm_weight", values(H)), ("A_log", values(MAMBA_HEADS)), ("D", values(MAMBA_HEADS)), ("dt_bias", values(MAMBA_HEADS)),
                 ("norm.weight", values(CHANNELS)), ("out_proj.weight", values(H, CHANNELS))):
        live[at + k] = dist[at + k] = v
    attention(live, dist, "decoder.layers.1.")
    return live, dist, args(said and tp, squared_relu=True, hybrid_override_pattern="M*", mamba_num_heads=MAMBA_HEADS, mamba_head_dim=CHANNELS // MAMBA_HEADS, mamba_num_groups=2, mamba_state_dim=STATE // 2)


for name, model in (("dense", dense()), ("grouped", experts("mlp.experts.linear_fc1.weight%d", "mlp.experts.linear_fc2.weight%d", True)),
                    ("sequential", experts("mlp.experts.local_experts.%d.linear_fc1.weight", "mlp.experts.local_experts.%d.linear_fc2.weight", True)),
                    ("unsplit", experts("mlp.experts.local_experts.%d.linear_fc1.weight", "mlp.experts.local_experts.%d.linear_fc2.weight", False)),
                    ("single", experts("mlp.experts.linear_fc1.weight%d", "mlp.experts.linear_fc2.weight%d", False, single=True)), ("hybrid", hybrid(2)), ("hybrid1", hybrid(1)), ("silent", hybrid(2, said=False))):
    live, dist, said = model
    state = {"model.module." + k: v for k, v in live.items()}
    state.update({"optimizer.state.module.module.%s.%s" % (k, m): values(*v.shape) for k, v in live.items() for m in ("exp_avg", "exp_avg_sq")})
    save(name + ".fsdp", state, [("args", b"\x80\x02" + said + b"."), ("iteration", b"\x80\x02K\x07.")])
    save(name + ".dist", dist, common=b"}(" + s("args") + said + b"u")
