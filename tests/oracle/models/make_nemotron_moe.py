#!/usr/bin/env python3
"""Makes nemotron_moe/block.safetensors: the mixture of experts of transformers' NemotronH alone, with a sigmoid router, groups, a
correction bias and squared ReLU; its shared expert is zero. Names are those of files; grad/NAME for the loss sum(y * cotangent)."""
import os

import torch
from safetensors.torch import save_file
from transformers import NemotronHConfig
from transformers.models.nemotron_h import modeling_nemotron_h as nemotron

HERE = os.path.dirname(os.path.abspath(__file__))
torch.manual_seed(5)
config = NemotronHConfig(hidden_size=12, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, moe_intermediate_size=10,
                         n_shared_experts=1, moe_shared_expert_intermediate_size=4, norm_topk_prob=True, routed_scaling_factor=2.5,
                         mlp_hidden_act="relu2", moe_latent_size=None)
config._experts_implementation = "eager"
block = next(v for k, v in vars(nemotron).items() if k.lower() == "nemotronhmoe")(config)
for name, p in list(block.named_parameters()) + list(block.named_buffers()):
    p.data = torch.zeros_like(p.data) if "shared" in name else torch.randn(p.shape) * (0.05 if "bias" in name else 0.4)
x = torch.randn(1, 17, 12, requires_grad=True)
cotangent = torch.randn(1, 17, 12)
y = block(x)
(y * cotangent).sum().backward()


def flat(prefix, tensors):
    out = {}
    for name, t in tensors.items():
        if "shared" in name:
            continue
        if name.startswith("experts."):
            out.update({"%sexperts.%d.%s.weight" % (prefix, e, name.split(".")[1]): m.clone() for e, m in enumerate(t)})
        else:
            out[prefix + name] = t.clone()
    return out


params = dict(block.named_parameters())
values = dict({n: p.detach() for n, p in params.items()}, **dict(block.named_buffers()))
save = flat("", values)
save.update(flat("grad/", {n: p.grad for n, p in params.items() if p.grad is not None}))
save.update({"x": x.detach()[0], "cotangent": cotangent[0], "y": y.detach()[0], "grad/x": x.grad[0]})
os.makedirs(os.path.join(HERE, "nemotron_moe"), exist_ok=True)
save_file({n: t.float().contiguous() for n, t in save.items()}, os.path.join(HERE, "nemotron_moe", "block.safetensors"))
