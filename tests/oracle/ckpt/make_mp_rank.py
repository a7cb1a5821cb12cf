"""make_mp_rank.py OUT: small legacy Megatron checkpoints (a folder a rank, torch.save) cut out of known whole tensors, each beside
NAME.expected.json: what the merged checkpoint has, with the sha256 of every tensor. Needs torch. The cuts are those of Megatron-Core's
layers: ColumnParallelLinear and VocabParallelEmbedding by rows, RowParallelLinear by columns, a gated fc1 as [w_r; v_r], Mamba's
in_proj as [z_r x_r B_r C_r dt_r], its conv1d as [x_r B_r C_r]; experts and layers are numbered from 0 on each rank.

  mp_rank_dense    tp 2, pp 2 of two virtual stages each, gated, tied (the last stage keeps a copy of the embedding)
  mp_rank_hybrid   tp 2, ep 2: Mamba, attention, experts of TEGroupedMLP and SequentialMLP, a shared expert, a latent projection
  mp_rank_tower    tp 2: a gated MLP, a tower whose MLP is not, a gated projector, the projection of multi-token prediction
  mp_rank_etp1     tp 2, ep 2, experts not cut (expert_tensor_parallel_size 1): tensor rank r is expert rank r, so there are two folders;
                   layers that are alike, norms of Megatron-Core's own layers, extra states
  mp_rank_packed   ep 2, gated experts of the old GroupedMLP, no pipeline: the folder's second number is the expert rank"""
import argparse
import hashlib
import json
import os
import sys

import torch


class Model:
    """Whole tensors by their global name, and what each rank has of them."""

    def __init__(self, name, tp, pp, vpp, ep, args):
        self.name, self.tp, self.pp, self.vpp, self.ep = name, tp, pp, vpp, ep
        self.args = argparse.Namespace(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
                                       iteration=7, params_dtype=torch.bfloat16, **args)
        self.whole = {}
        self.objects = []
        self.ranks = {}
        self.gen = torch.Generator().manual_seed(sum(map(ord, name)))

    def make(self, name, *shape, dtype=torch.bfloat16):
        self.whole[name] = torch.randn(shape, generator=self.gen).to(dtype)
        return self.whole[name]

    def put(self, tp, pp, chunk, ep, name, tensor):
        self.ranks.setdefault((tp, pp, ep), {}).setdefault(chunk, {})[name] = tensor.clone()

    def give(self, pp, chunk, name, cut, local=None):
        """cut(r): tp rank r's part of the whole tensor `name`; the same on every expert rank."""
        for r in range(self.tp):
            for e in range(self.ep):
                self.put(r, pp, chunk, e, local or name, cut(r))

    def rows(self, tensor, r):
        return tensor.chunk(self.tp, 0)[r]

    def gated(self, tensor, r, dim=0):
        w, v = tensor.chunk(2, dim)
        return torch.cat([w.chunk(self.tp, dim)[r], v.chunk(self.tp, dim)[r]], dim)

    def save(self, out):
        base = os.path.join(out, self.name, "iter_0000007")
        for (tp, pp, ep), chunks in self.ranks.items():
            folder = "mp_rank_%02d" % tp + ("_%03d" % pp if self.pp > 1 else "") + ("_%03d" % ep if self.ep > 1 else "")
            os.makedirs(os.path.join(base, folder))
            state = {"args": self.args, "checkpoint_version": 3.0, "iteration": 7}
            for chunk, tensors in chunks.items():
                state["model" if self.vpp == 1 else "model%d" % chunk] = tensors
            torch.save(state, os.path.join(base, folder, "model_optim_rng.pt"))
        with open(os.path.join(out, self.name, "latest_checkpointed_iteration.txt"), "w", encoding="utf-8") as f:
            f.write("7")
        names = {torch.bfloat16: "BF16", torch.float32: "F32"}
        table = {k: {"dtype": names[v.dtype], "shape": list(v.shape),
                     "sha256": hashlib.sha256(v.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()}
                 for k, v in sorted(self.whole.items())}
        with open(os.path.join(out, self.name + ".expected.json"), "w", encoding="utf-8") as f:
            json.dump({"tensors": table, "objects": {k: {"value": None} for k in self.objects}}, f, indent=1)
            f.write("\n")


def dense(out):
    h, ffn, heads, vocab = 8, 12, 4, 32
    m = Model("mp_rank_dense", 2, 2, 2, 1, {"swiglu": True, "num_layers": 5, "hidden_size": h, "num_attention_heads": heads,
                                           "num_query_groups": heads, "kv_channels": 2, "ffn_hidden_size": ffn,
                                           "normalization": "RMSNorm", "position_embedding_type": "rope", "rotary_base": 10000,
                                           "norm_epsilon": 1e-5, "max_position_embeddings": 64, "add_bias_linear": False,
                                           "group_query_attention": False, "untie_embeddings_and_output_weights": False})
    emb = m.make("embedding.word_embeddings.weight", vocab, h)
    m.give(0, 0, "embedding.word_embeddings.weight", lambda r: m.rows(emb, r))
    m.give(1, 1, "embedding.word_embeddings.weight", lambda r: m.rows(emb, r), "output_layer.weight")
    norm = m.make("decoder.final_layernorm.weight", h)
    m.give(1, 1, "decoder.final_layernorm.weight", lambda r: norm)
    # rank 0 stage 0: layers 0 1; rank 1 stage 0: layer 2; rank 0 stage 1: layer 3; rank 1 stage 1: layer 4
    for layer, (pp, chunk, local) in enumerate([(0, 0, 0), (0, 0, 1), (1, 0, 0), (0, 1, 0), (1, 1, 0)]):
        def give(name, shape, cut):
            whole = m.make("decoder.layers.%d.%s" % (layer, name), *shape)
            m.give(pp, chunk, None, lambda r: cut(whole, r), "decoder.layers.%d.%s" % (local, name))
        give("self_attention.linear_qkv.layer_norm_weight", [h], lambda w, r: w)
        give("self_attention.linear_qkv.weight", [3 * h, h], m.rows)
        give("self_attention.linear_qkv.bias", [3 * h], m.rows)
        give("self_attention.linear_proj.weight", [h, h], lambda w, r: w.chunk(2, 1)[r])
        give("mlp.linear_fc1.layer_norm_weight", [h], lambda w, r: w)
        give("mlp.linear_fc1.weight", [2 * ffn, h], m.gated)
        give("mlp.linear_fc2.weight", [h, ffn], lambda w, r: w.chunk(2, 1)[r])
    m.save(out)


def hybrid(out):
    h, inner, state, heads, ffn, experts = 8, 16, 4, 4, 6, 4
    m = Model("mp_rank_hybrid", 2, 1, 1, 2, {"swiglu": False, "num_layers": 4, "hidden_size": h, "num_experts": experts,
                                             "num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 2, "untie_embeddings_and_output_weights": True})
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        whole = m.make(name, 16, h)
        m.give(0, 0, None, lambda r, w=whole: m.rows(w, r), name)
    norm = m.make("decoder.final_norm.weight", h)
    m.give(0, 0, None, lambda r: norm, "decoder.final_norm.weight")
    mixer = "decoder.layers.0.mixer."
    sizes = {"z": inner, "x": inner, "B": state, "C": state, "dt": heads}
    parts = {k: m.make(mixer + "in_proj.weight." + k, n, h) for k, n in sizes.items()}
    m.give(0, 0, None, lambda r: torch.cat([m.rows(parts[k], r) for k in sizes]), mixer + "in_proj.weight")
    for what, shape in (("weight", [1, 4]), ("bias", [])):
        conv = {k: m.make(mixer + "conv1d.%s.%s" % (what, k), sizes[k], *shape) for k in ("x", "B", "C")}
        m.give(0, 0, None, lambda r, c=conv: torch.cat([m.rows(c[k], r) for k in c]), mixer + "conv1d." + what)
    for name, dtype in (("A_log", torch.float32), ("D", torch.float32), ("dt_bias", torch.bfloat16)):
        whole = m.make(mixer + name, heads, dtype=dtype)
        m.give(0, 0, None, lambda r, w=whole: m.rows(w, r), mixer + name)
    gate = m.make(mixer + "norm.weight", inner)
    m.give(0, 0, None, lambda r: m.rows(gate, r), mixer + "norm.weight")
    first = m.make(mixer + "in_proj.layer_norm_weight", h)
    m.give(0, 0, None, lambda r: first, mixer + "in_proj.layer_norm_weight")
    last = m.make(mixer + "out_proj.weight", h, inner)
    m.give(0, 0, None, lambda r: last.chunk(2, 1)[r], mixer + "out_proj.weight")
    attention = "decoder.layers.1.self_attention."
    qkv, proj = m.make(attention + "linear_qkv.weight", 16, h), m.make(attention + "linear_proj.weight", h, h)
    m.give(0, 0, None, lambda r: m.rows(qkv, r), attention + "linear_qkv.weight")
    m.give(0, 0, None, lambda r: proj.chunk(2, 1)[r], attention + "linear_proj.weight")
    for layer, local in ((2, "mlp.experts.%s.weight%d"), (3, "mlp.experts.local_experts.%d.%s.weight")):
        moe = "decoder.layers.%d." % layer
        for name, shape in (("pre_mlp_layernorm.weight", [h]), ("mlp.router.weight", [experts, h]), ("mlp.router.expert_bias", [experts]),
                            ("mlp.fc1_latent_proj.weight", [4, h])):
            whole = m.make(moe + name, *shape)
            m.give(0, 0, None, lambda r, w=whole: w, moe + name)
        up, down = m.make(moe + "mlp.shared_experts.linear_fc1.weight", ffn, h), m.make(moe + "mlp.shared_experts.linear_fc2.weight", h, ffn)
        m.give(0, 0, None, lambda r, w=up: m.rows(w, r), moe + "mlp.shared_experts.linear_fc1.weight")
        m.give(0, 0, None, lambda r, w=down: w.chunk(2, 1)[r], moe + "mlp.shared_experts.linear_fc2.weight")
        for fc, shape, dim in (("linear_fc1", [ffn, h], 0), ("linear_fc2", [h, ffn], 1)):
            whole = m.make(moe + "mlp.experts.experts.%s.weight" % fc, experts, *shape)
            for e in range(experts):
                at = (fc, e % 2) if layer == 2 else (e % 2, fc)
                for r in range(2):
                    m.put(r, 0, 0, e // 2, moe + local % at, whole[e].chunk(2, dim)[r])
    m.save(out)


def tower(out):
    h, ffn = 4, 6
    m = Model("mp_rank_tower", 2, 1, 1, 1, {"swiglu": True, "num_layers": 1, "hidden_size": h})
    for name, gated in (("language_model.decoder.layers.0.mlp", True), ("vision_model.decoder.layers.0.mlp", False),
                        ("vision_projection.encoder", True)):
        one, two = m.make(name + ".linear_fc1.weight", ffn * (2 if gated else 1), h), m.make(name + ".linear_fc2.weight", h, ffn)
        m.give(0, 0, None, lambda r, w=one, g=gated: m.gated(w, r) if g else m.rows(w, r), name + ".linear_fc1.weight")
        m.give(0, 0, None, lambda r, w=two: w.chunk(2, 1)[r], name + ".linear_fc2.weight")
    eh = m.make("language_model.mtp.layers.0.eh_proj.weight", h, 2 * h)
    m.give(0, 0, None, lambda r: m.rows(eh, r), "language_model.mtp.layers.0.eh_proj.weight")
    m.save(out)


def etp1(out):
    h, ffn, experts, layers = 4, 6, 4, 2
    m = Model("mp_rank_etp1", 2, 1, 1, 2, {"swiglu": False, "num_layers": layers, "hidden_size": h, "num_experts": experts,
                                          "expert_tensor_parallel_size": 1, "moe_layer_freq": 1, "untie_embeddings_and_output_weights": True})
    both = ((0, 0), (1, 1))

    def give(name, whole, cut):
        for tp, ep in both:
            m.put(tp, 0, 0, ep, name, cut(whole, tp))

    def stack(name, *shape):
        return m.make("decoder.layers." + name, layers, *shape)

    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        give(name, m.make(name, 8, h), m.rows)
    whole = {"self_attention.linear_qkv.layer_norm_weight": (stack("self_attention.linear_qkv.layer_norm_weight", h), "input_layernorm.weight"),
             "mlp.linear_fc1.layer_norm_weight": (stack("mlp.linear_fc1.layer_norm_weight", h), "pre_mlp_layernorm.weight"),
             "mlp.router.weight": (stack("mlp.router.weight", experts, h), "mlp.router.weight")}
    qkv, proj = stack("self_attention.linear_qkv.weight", 12, h), stack("self_attention.linear_proj.weight", h, h)
    up, down = stack("mlp.experts.experts.linear_fc1.weight", experts, ffn, h), stack("mlp.experts.experts.linear_fc2.weight", experts, h, ffn)
    for layer in range(layers):
        at = "decoder.layers.%d." % layer
        for tensor, name in whole.values():
            give(at + name, tensor[layer], lambda w, r: w)
        give(at + "self_attention.linear_qkv.weight", qkv[layer], m.rows)
        give(at + "self_attention.linear_proj.weight", proj[layer], lambda w, r: w.chunk(2, 1)[r])
        for tp, ep in both:
            for i in range(2):
                expert = at + "mlp.experts.local_experts.%d." % i
                m.put(tp, 0, 0, ep, expert + "linear_fc1.weight", up[layer, 2 * ep + i])
                m.put(tp, 0, 0, ep, expert + "linear_fc2.weight", down[layer, 2 * ep + i])
                m.ranks[tp, 0, ep][0][expert + "linear_fc2._extra_state"] = None
            # what differs between ranks is no copy of one tensor
            m.ranks[tp, 0, ep][0][at + "self_attention.linear_qkv._extra_state"] = torch.tensor([tp], dtype=torch.uint8)
            m.ranks[tp, 0, ep][0]["output_layer._extra_state"] = None
    m.objects = ["decoder.layers.self_attention.linear_qkv._extra_state/shard_%d_2" % i for i in range(layers)]
    m.objects += ["decoder.layers.mlp.experts.experts.linear_fc2._extra_state/shard_%d.%d_2.4" % (i, e) for i in range(layers) for e in range(experts)]
    m.save(out)


def packed(out):
    h, ffn, experts = 4, 6, 4
    m = Model("mp_rank_packed", 1, 1, 1, 2, {"swiglu": True, "num_layers": 1, "hidden_size": h, "num_experts": experts})
    norm = m.make("decoder.final_layernorm.weight", h)
    m.give(0, 0, None, lambda r: norm, "decoder.final_layernorm.weight")
    moe = "decoder.layers.0.mlp.experts."
    one, two = m.make(moe + "experts.linear_fc1.weight", experts, 2 * ffn, h), m.make(moe + "experts.linear_fc2.weight", experts, h, ffn)
    for e in range(2):
        # GroupedMLP multiplies by weight1.view(n, hidden, -1) and weight2.view(n, -1, hidden)
        m.put(0, 0, 0, e, moe + "weight1", one[2 * e:2 * e + 2].transpose(1, 2).contiguous().view(h, -1))
        m.put(0, 0, 0, e, moe + "weight2", two[2 * e:2 * e + 2].transpose(1, 2).contiguous().view(-1, h))
    m.objects = [moe + "experts.linear_fc%d._extra_state/shard_%d_%d" % (fc, e, experts) for fc in (1, 2) for e in range(experts)]
    m.save(out)


os.makedirs(sys.argv[1], exist_ok=True)
dense(sys.argv[1])
hybrid(sys.argv[1])
tower(sys.argv[1])
packed(sys.argv[1])
etp1(sys.argv[1])
