#!/usr/bin/env python3
"""Modality adapters after a speech encoder against torch code written from their formulas, in fp64, clip by clip and padded.

check_modality.py    makes encoders with adapters of random weights, runs s2s-train probe with gradients, and compares outputs,
                     loss and every gradient. Exit 77 without torch, transformers.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers.models.parakeet import ParakeetEncoder
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

BASE = HERE + "/parakeet_encoder"
ADAPTERS = [
    {"_target_": "nemo.collections.speechlm2.modules.perception.IdentityConnector"},
    {"type": "linear", "output_dim": 20},
    {"type": "linear", "output_dim": 12, "hidden_dim": 30, "activation": "silu", "bias": False},
    {"_target_": "nemo.collections.asr.modules.ConformerEncoder", "feat_in": 32, "d_model": 24, "n_layers": 2, "n_heads": 4,
     "subsampling_factor": 1, "subsampling": "dw_striding", "conv_kernel_size": 5, "att_context_size": [-1, -1], "xscaling": True,
     "ff_expansion_factor": 2, "conv_norm_type": "batch_norm", "self_attention_model": "rel_pos", "untie_biases": True},
    {"type": "conformer", "d_model": 16, "n_layers": 1, "n_heads": 2, "feat_out": 10, "conv_kernel_size": 3, "xscaling": False,
     "conv_norm_type": "layer_norm", "use_bias": False},
    {"type": "conformer", "d_model": 16, "n_layers": 2, "n_heads": 2, "conv_kernel_size": 5, "conv_context_size": "causal", "untie_biases": False,
     "att_context_size": [4, 2]},
    {"type": "conformer", "d_model": 16, "n_layers": 2, "n_heads": 4, "conv_kernel_size": 3, "self_attention_model": "abs_pos",
     "att_context_size": [4, 1], "att_context_style": "chunked_limited"},
]


def make_weights(a, generator):
    """The adapter's tensors, by name."""
    w = {}

    def add(name, *shape):
        w[name] = torch.randn(*shape, generator=generator, dtype=torch.float64) * (0.3 if len(shape) > 1 else 0.1)

    def linear(name, out, into, bias=True):
        add(name + ".weight", out, into)
        if bias:
            add(name + ".bias", out)

    if a.get("type") == "linear":
        inner, bias = a.get("hidden_dim", a["output_dim"]), a.get("bias", True)
        linear("linear1", inner, 32, bias)
        linear("linear2", a["output_dim"], inner, bias)
    if "d_model" not in a:
        return w
    d, bias = a["d_model"], a.get("use_bias", True)
    linear("pre_encode", d, 32)
    for i in range(a["n_layers"]):
        at = "layers.%d." % i
        for ff in ("feed_forward1", "feed_forward2"):
            linear(at + ff + ".linear1", d * a.get("ff_expansion_factor", 4), d, bias)
            linear(at + ff + ".linear2", d, d * a.get("ff_expansion_factor", 4), bias)
        for m in "qkvo":
            linear(at + "self_attn.%s_proj" % m, d, d, bias)
        if a.get("self_attention_model") != "abs_pos":
            linear(at + "self_attn.relative_k_proj", d, d, False)
            for m in "uv":
                add(at + "self_attn.bias_" + m, a["n_heads"], d // a["n_heads"])
                if a.get("untie_biases", True) is False:  # files have a copy for each layer
                    w[at + "self_attn.bias_" + m] = w["layers.0.self_attn.bias_" + m].clone()
        for name, shape in (("pointwise_conv1", (2 * d, d, 1)), ("depthwise_conv", (d, 1, a["conv_kernel_size"])), ("pointwise_conv2", (d, d, 1))):
            add(at + "conv.%s.weight" % name, *shape)
            if bias:
                add(at + "conv.%s.bias" % name, shape[0])
        for norm in ("norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out", "conv.norm"):
            add(at + norm + ".weight", d)
            w[at + norm + ".weight"] += 1
            add(at + norm + ".bias", d)
        if a.get("conv_norm_type") != "layer_norm":
            add(at + "conv.norm.running_mean", d)
            w[at + "conv.norm.running_var"] = 0.5 + torch.rand(d, generator=generator, dtype=torch.float64)
    if a.get("feat_out", -1) > 0:
        linear("out_proj", a["feat_out"], d)
    return w


def mask_of(kind):
    """Who sees whom of t frames: [t, t]."""
    size = kind.get("att_context_size", [-1, -1])
    left, right = size[0] if isinstance(size[0], list) else size

    def mask(t):
        sees = torch.ones(t, t, dtype=torch.bool)
        if kind.get("att_context_style") == "chunked_limited" and right >= 0:
            chunk = torch.arange(t) // (right + 1)
            apart = chunk[:, None] - chunk[None]
            return sees & (apart >= 0) & (apart <= (left // (right + 1) if left >= 0 else 10000))
        sees = sees.triu(-left) if left >= 0 else sees
        return sees.tril(right) if right >= 0 and kind.get("att_context_style") != "chunked_limited" else sees
    return mask


def is_copy(a, name):
    return a.get("untie_biases", True) is False and "self_attn.bias_" in name and not name.startswith("layers.0.")


def silu(x):
    return x * torch.sigmoid(x)


def affine(w, name, x):
    y = x @ w[name + ".weight"].reshape(w[name + ".weight"].shape[:2]).T
    return y + w[name + ".bias"] if name + ".bias" in w else y


def normed(w, name, x):
    mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-5) * w[name + ".weight"] + w[name + ".bias"]


def sinusoids(r, width):
    """sin(r w_0), cos(r w_0), sin(r w_1).. of each number."""
    angle = r[..., None] * torch.exp(-math.log(10000.0) * torch.arange(0, width, 2, dtype=r.dtype) / width)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def attention(a, w, at, x, valid):
    """S_ij = ((q_i + u) k_j + (q_i + v) p_(i-j)) / sqrt(d) over the valid keys of a clip, x [B, T, D]; a["sees"](T): over those where it is true.
    Without biases u and v the positions are not looked at."""
    n, t, heads = x.shape[0], x.shape[1], a["n_heads"]
    d = x.shape[2] // heads
    split = lambda y: y.reshape(n, t, heads, d).transpose(1, 2)
    q, k, v = (split(affine(w, at + m + "_proj", x)) for m in "qkv")
    if at + "bias_u" in w:
        r = torch.arange(t, dtype=x.dtype)
        p = affine(w, at + "relative_k_proj", sinusoids(r[:, None] - r[None, :], x.shape[2])).reshape(t, t, heads, d)
        s = torch.einsum("bhid,bhjd->bhij", q + w[at + "bias_u"][:, None], k)
        s = s + torch.einsum("bhid,ijhd->bhij", q + w[at + "bias_v"][:, None], p)
    else:
        s = torch.einsum("bhid,bhjd->bhij", q, k)
    s = (s / math.sqrt(d)).masked_fill(~valid[:, None, None, :], float("-inf"))
    if "sees" in a:
        s = s.masked_fill(~a["sees"](t), float("-inf"))
    o = torch.softmax(s, -1) @ v
    return affine(w, at + "o_proj", o.transpose(1, 2).reshape(n, t, -1))


def convolution(a, w, at, x, valid):
    y = affine(w, at + "pointwise_conv1", x)
    y = y[..., :y.shape[-1] // 2] * torch.sigmoid(y[..., y.shape[-1] // 2:]) * valid[..., None]
    before = a.get("before", a["conv_kernel_size"] // 2)
    padded = torch.nn.functional.pad(y, (0, 0, before, a["conv_kernel_size"] - 1 - before))
    y = sum(padded[:, i:i + x.shape[1]] * w[at + "depthwise_conv.weight"][:, 0, i] for i in range(a["conv_kernel_size"]))
    y = y + w[at + "depthwise_conv.bias"] if at + "depthwise_conv.bias" in w else y
    if a.get("conv_norm_type") == "layer_norm":
        y = normed(w, at + "norm", y)
    else:
        y = (y - w[at + "norm.running_mean"]) / torch.sqrt(w[at + "norm.running_var"] + 1e-5) * w[at + "norm.weight"] + w[at + "norm.bias"]
    return affine(w, at + "pointwise_conv2", silu(y))


def adapter(a, w, x, valid):
    if a.get("type") == "linear":
        act = silu if a.get("activation") == "silu" else lambda z: 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))
        return affine(w, "linear2", act(affine(w, "linear1", x)))
    if "d_model" not in a:
        return x
    x = affine(w, "pre_encode", x) * (math.sqrt(a["d_model"]) if a.get("xscaling", True) else 1)
    if a.get("self_attention_model") == "abs_pos":
        x = x + sinusoids(torch.arange(x.shape[1], dtype=x.dtype), a["d_model"])
    if "att_context_size" in a:
        a = dict(a, sees=mask_of(a), before=a["conv_kernel_size"] - 1 if a.get("conv_context_size") else a["conv_kernel_size"] // 2)
    x = layers(a, w, x, valid)
    return affine(w, "out_proj", x) if "out_proj.weight" in w else x


def layers(a, w, x, valid):
    feed = lambda at, y: affine(w, at + ".linear2", silu(affine(w, at + ".linear1", y)))
    for i in range(a["n_layers"]):
        at = "layers.%d." % i
        x = x + 0.5 * feed(at + "feed_forward1", normed(w, at + "norm_feed_forward1", x))
        x = x + attention(a, w, at + "self_attn.", normed(w, at + "norm_self_att", x), valid)
        x = x + convolution(a, w, at + "conv.", normed(w, at + "norm_conv", x), valid)
        x = x + 0.5 * feed(at + "feed_forward2", normed(w, at + "norm_feed_forward2", x))
        x = normed(w, at + "norm_out", x)
    return x


def reference(a, weights, inputs, target, alone):
    """Outputs, loss and gradients in fp64: of the padded batch, or of clips each alone."""
    encoder = ParakeetEncoder.from_pretrained(BASE, dtype=torch.float32, attn_implementation="eager").double().eval()
    encoder.encode_positions = type(encoder.encode_positions)(encoder.config).double()
    w = {n: t.clone().requires_grad_("running" not in n) for n, t in weights.items()}
    w.update({n: w["layers.0" + n[n.index(".self_attn"):]] for n in w if is_copy(a, n)})
    features, mask = inputs["input_features"].double(), inputs["attention_mask"].bool()
    batches = [(features[i:i + 1, :int(m.sum())], m[None, :int(m.sum())]) for i, m in enumerate(mask)] if alone else [(features, mask)]
    outs = []
    for x, m in batches:
        got = encoder(input_features=x, attention_mask=m)
        valid = got.attention_mask.bool()
        y = adapter(a, w, got.last_hidden_state, valid)
        outs += [row[v] for row, v in zip(y, valid)]
    wanted = [t[:len(y)] for y, t in zip(outs, target.double())]
    loss = sum(0.5 * ((y - t) ** 2).sum() for y, t in zip(outs, wanted)) / sum(y.numel() for y in outs)
    loss.backward()
    grads = {n: p.grad for n, p in encoder.named_parameters()}
    grads.update({"modality_adapter." + n: t.grad for n, t in w.items() if t.grad is not None and not is_copy(a, n)})
    return loss.item(), torch.cat(outs).detach(), grads


def run(path, *options):
    out = path + "/out.safetensors"
    subprocess.run([os.path.join(os.environ.get("S2S_BIN", ROOT + "/bin"), "s2s-train"), "probe", "-q", "--model", path, "--inputs",
                    path + "/inputs.safetensors", "--out", out, "--grads", *options], check=True)
    return load_file(out)


def far(x, y):
    """Of the largest entry."""
    return ((x.double() - y.double()).abs().max() / y.double().abs().max().clamp(min=1e-12)).item()


def check(a, tmp, *options):
    generator = torch.Generator().manual_seed(5)
    weights = {n: t.float().double() for n, t in make_weights(a, generator).items()}
    inputs = load_file(BASE + "/inputs.safetensors")
    width = a.get("output_dim", a["feat_out"] if a.get("feat_out", -1) > 0 else a.get("d_model", 32))
    target = torch.randn(*inputs["target"].shape[:2], width, generator=generator)
    with open(BASE + "/config.json") as f:
        config = dict(json.load(f), modality_adapter=a)
    with open(tmp + "/config.json", "w") as f:
        json.dump(config, f)
    stored = load_file(BASE + "/model.safetensors")
    stored.update({"modality_adapter." + n: t.float().contiguous() for n, t in weights.items()})
    save_file(stored, tmp + "/model.safetensors")
    save_file(dict(inputs, target=target), tmp + "/inputs.safetensors")
    got = run(tmp, *options)
    worst = 0
    # a frame of padding may see no frame of its clip
    for alone in (False, True) if a.get("att_context_size", [-1, -1]) == [-1, -1] else (True,):
        loss, out, grads = reference(a, weights, inputs, target, alone)
        worst = max(worst, abs(got["loss"].item() - loss) / loss)
        largest = max(g.abs().max() for g in grads.values())
        for n, g in grads.items():
            if g.abs().max() > 1e-6 * largest:  # a bias of keys has none
                f = far(got["grad/" + n], g)
                assert f < 2e-4, (n, f, alone)
                worst = max(worst, f)
    missing = [n for n in weights if "running" not in n and not is_copy(a, n) and "grad/modality_adapter." + n not in got]
    assert not missing, missing
    print("%-60s %.1e" % (a.get("type", a.get("_target_", "").split(".")[-1]) + " " + " ".join(options), worst))
    return worst


def main():
    worst = 0
    for a in ADAPTERS:
        for options in ((), ("-j2",)):
            with tempfile.TemporaryDirectory() as tmp:
                worst = max(worst, check(a, tmp, *options))
    assert worst < 2e-4, worst


if __name__ == "__main__":
    main()
