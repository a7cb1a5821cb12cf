#!/usr/bin/env python3
"""FastConformer encoders that see a part of their clip, in attention, convolutions and subsampling, and other variants of NeMo's: outputs, loss and
every gradient in fp64.

check_streaming.py    Exit 77 without torch, transformers.

STREAMING is beside transformers' NemotronAsrStreamingEncoder, clip by clip (padded frames are NaN there). KINDS are beside torch code that has the
masks as NeMo's ConformerEncoder makes them, with ParakeetEncoder's subsampling in front, or one written from NeMo's ConvSubsampling.
"""
import json
import math
import sys
import tempfile

import check_modality as m
from check_modality import load_file, save_file, torch

try:
    from transformers.models.nemotron_asr_streaming import NemotronAsrStreamingEncoder, NemotronAsrStreamingEncoderConfig
except ImportError as e:
    print(e)
    sys.exit(77)

STREAMING = [(8, 3), (12, 0), (12, 5)]  # left, right
KINDS = [{"att_context_size": [5, 3]}, {"att_context_size": [-1, 2]}, {"att_context_size": [4, -1], "att_context_style": "regular"},
         {"att_context_size": [[8, 3], [2, 1]], "att_context_style": "chunked_limited"},
         {"att_context_size": [-1, 4], "att_context_style": "chunked_limited"}, {"att_context_size": [3, -1], "att_context_style": "chunked_limited"},
         {"conv_context_size": "causal"}, {"conv_context_size": [6, 2]}, {"conv_context_size": [0, 8], "att_context_size": [0, 0]},
         {"self_attention_model": "rel_pos_local_attn", "att_context_size": [4, 4]},
         {"self_attention_model": "abs_pos"}, {"self_attention_model": "abs_pos", "att_context_size": [4, 1], "att_context_style": "chunked_limited"},
         {"subsampling": "striding"}, {"subsampling": "striding", "causal_downsampling": True, "subsampling_factor": 4},
         {"causal_downsampling": True, "subsampling_factor": 2}, {"subsampling": "dw_striding", "subsampling_factor": 32},
         {"subsampling": "vggnet", "subsampling_factor": 4}, {"subsampling": "vggnet"}, {"subsampling": "striding_conv1d", "subsampling_factor": 4},
         {"subsampling": "striding_conv1d", "causal_downsampling": True}, {"subsampling": "dw_striding_conv1d"},
         {"untie_biases": False}, {"untie_biases": False, "att_context_size": [6, 1]}, {"self_attention_model": "abs_pos", "att_context_size": [4, -1]},
         {"self_attention_model": "abs_pos", "att_context_size": [-1, 3]}, {"self_attention_model": "abs_pos", "att_context_size": [3, 2]},
         {"subsampling": "dw_striding_conv1d", "subsampling_factor": 2}, {"subsampling": "dw_striding", "subsampling_factor": 1}]
RELU, POOL = "relu", "pool"


def loss_of(outs, target):
    return sum(0.5 * ((y - t[:len(y)].double()) ** 2).sum() for y, t in zip(outs, target)) / sum(y.numel() for y in outs)


def compare(what, config, weights, inputs, target, outs, grads):
    """The same by a probe of these weights."""
    loss = loss_of(outs, target)
    loss.backward()
    with tempfile.TemporaryDirectory() as tmp:
        with open(tmp + "/config.json", "w") as f:
            json.dump(config, f)
        save_file({n: t.detach().float().contiguous() for n, t in weights.items()}, tmp + "/model.safetensors")
        save_file(dict(inputs, target=target), tmp + "/inputs.safetensors")
        got = m.run(tmp)
    grads = {n: g for n, g in grads().items() if g is not None}
    largest = max(g.abs().max() for g in grads.values())
    worst = abs(got["loss"].item() - loss.item()) / loss.item()
    for n, g in grads.items():
        if g.abs().max() > 1e-6 * largest:
            worst = max(worst, m.far(got["grad/" + n], g))
    print("%-100s %d frames, %d gradients, %.1e" % (what, sum(map(len, outs)), len(grads), worst))
    assert worst < 2e-4, worst
    return loss.item()


def clips(inputs):
    return [x[:int(k.sum())] for x, k in zip(inputs["input_features"].double(), inputs["attention_mask"].bool())]


# ---- transformers ----

def our_name(name):
    parts = name.split(".")
    if parts[0] != "subsampling" or parts[1] == "linear":
        return name
    number = 0 if parts[1] == "conv_in" else 2 + 3 * int(parts[2]) + (parts[3] == "pointwise_conv")
    return "subsampling.layers.%d.%s" % (number, parts[-1])


def check_streaming(left, right, inputs):
    torch.manual_seed(11)  # its eager attention turns the mask round; sdpa has it right
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, conv_kernel_size=5, subsampling_factor=4,
                 subsampling_conv_channels=12, num_mel_bins=inputs["input_features"].shape[2], scale_input=False, convolution_bias=False)
    encoder = NemotronAsrStreamingEncoder(NemotronAsrStreamingEncoderConfig(**sizes, sliding_window=left + 1, default_num_lookahead_tokens=right,
                                                                            attn_implementation="sdpa"))
    for name, p in encoder.named_parameters():
        p.data = (p.data + 0.1 * torch.randn_like(p)).float()
    encoder = encoder.double().eval()
    encoder.encode_positions = type(encoder.encode_positions)(encoder.config).double()
    outs = [encoder(input_features=x[None]).last_hidden_state[0] for x in clips(inputs)]
    target = torch.randn(len(outs), max(map(len, outs)), 32)
    config = dict(sizes, model_type="parakeet_encoder", conv_norm_type="layer_norm", conv_context_size="causal", causal_downsampling=True,
                  att_context_size=[left, right], att_context_style="chunked_limited")
    weights = {our_name(n): p for n, p in encoder.named_parameters()}
    compare("transformers' streaming encoder, %d before, chunks of %d" % (left, right + 1), config, weights, inputs, target, outs,
            lambda: {n: p.grad for n, p in weights.items()})


# ---- NeMo's subsampling ----

def layers_of(kind, base):
    """NeMo's list in front of the encoder: (number, class, inputs, outputs, kernel) of what has weights, RELU and POOL between."""
    way, channels, width = kind.get("subsampling", "dw_striding"), base["subsampling_conv_channels"], base["hidden_size"]
    found, at, ins = [], 0, 1
    stages = int(math.log2(kind.get("subsampling_factor", 8)))
    for i in range(stages):
        if way == "vggnet":
            found += [(at, "dense", ins, channels, (3, 3)), RELU, (at + 2, "dense", channels, channels, (3, 3)), RELU, POOL]
            at += 5
        elif way.endswith("conv1d"):
            ins, outs = base["num_mel_bins"] if i == 0 else channels, base["hidden_size"] if i + 1 == stages else channels
            if way == "striding_conv1d":
                found += [(at, "strided", ins, outs, (5,)), RELU]
                at += 2
            else:
                found += [(at, "depthwise", ins, ins, (5,)), (at + 1, "point", ins, outs, (1,)), RELU]
                at += 3
        elif way == "striding" or i == 0:
            found += [(at, "strided", ins, channels, (3, 3)), RELU]
            at += 2
        else:
            found += [(at, "depthwise", channels, channels, (3, 3)), (at + 1, "point", channels, channels, (1, 1)), RELU]
            at += 3
        ins = channels
    return found


def make_subsampling(kind, base, generator):
    """Random weights of convolutions and of the linear map behind."""
    w, width = {}, base["num_mel_bins"]

    def add(name, *shape):
        w["subsampling.%s.weight" % name] = (torch.randn(*shape, generator=generator) * 0.3).double()
        w["subsampling.%s.bias" % name] = (torch.randn(shape[0], generator=generator) * 0.1).double()

    layers = [layer for layer in layers_of(kind, base) if layer not in (RELU, POOL)]
    for number, way, ins, outs, kernel in layers:
        add("layers.%d" % number, outs, 1 if way == "depthwise" else ins, *kernel)
    for _ in range(int(math.log2(kind.get("subsampling_factor", 8)))):
        width = width // 2 + 1 if kind.get("causal_downsampling") else (width + 1) // 2
    if not kind.get("subsampling", "").endswith("conv1d"):
        add("linear", base["hidden_size"], (base["subsampling_conv_channels"] if layers else 1) * width)
    return w


def subsample(kind, base, w, x):
    """A clip's features [n, mels] as frames, by NeMo's layers."""
    flat = kind.get("subsampling", "").endswith("conv1d")
    x = x.T[None] if flat else x[None, None]
    conv, pool = (torch.nn.functional.conv1d, None) if flat else (torch.nn.functional.conv2d, torch.nn.functional.max_pool2d)
    for layer in layers_of(kind, base):
        if layer == RELU:
            x = torch.relu(x)
        elif layer == POOL:
            x = pool(x, 2, 2, ceil_mode=True)
        else:
            number, way, _, _, kernel = layer
            weight, bias = w["subsampling.layers.%d.weight" % number], w["subsampling.layers.%d.bias" % number]
            size, stride = kernel[0], 1 if way in ("dense", "point") else 2
            sides = [size - 1, 1] if kind.get("causal_downsampling") and stride == 2 else [size // 2] * 2
            x = conv(torch.nn.functional.pad(x, sides * len(kernel)), weight, bias, stride=stride, groups=x.shape[1] if way == "depthwise" else 1)
    return x.transpose(1, 2) if flat else m.affine(w, "subsampling.linear", x.transpose(1, 2).flatten(2))


def check(kind, inputs):
    with open(m.BASE + "/config.json") as f:
        base = json.load(f)
    width, kernel = base["hidden_size"], base["conv_kernel_size"]
    sides = kind.get("conv_context_size", [kernel // 2, kernel // 2])
    a = {"n_layers": base["num_hidden_layers"], "n_heads": base["num_attention_heads"], "conv_kernel_size": kernel, "sees": m.mask_of(kind),
         "before": kernel - 1 if sides == "causal" else sides[0]}
    encoder = m.ParakeetEncoder.from_pretrained(m.BASE, dtype=torch.float32, attn_implementation="eager").double().eval()
    stored = load_file(m.BASE + "/model.safetensors")
    own = "causal_downsampling" in kind or "subsampling" in kind
    if own:
        stored = {n: t for n, t in stored.items() if not n.startswith("subsampling")}
        stored.update((n, t.float()) for n, t in make_subsampling(kind, base, torch.Generator().manual_seed(9)).items())
    if kind.get("self_attention_model") == "abs_pos":
        stored = {n: t for n, t in stored.items() if "bias_u" not in n and "bias_v" not in n and "relative_k" not in n}
    w = {n: t.double() for n, t in stored.items() if (own or not n.startswith("subsampling")) and t.is_floating_point()}
    w = {n: t.requires_grad_("running" not in n) for n, t in w.items()}
    shares = [n for n in w if kind.get("untie_biases", True) is False and "self_attn.bias_" in n and not n.startswith("layers.0.")]
    for n in shares:  # NeMo's files have a copy for each layer
        first = "layers.0" + n[n.index(".self_attn"):]
        w[n], stored[n] = w[first], stored[first].clone()
    outs = []
    for x in clips(inputs):
        y = subsample(kind, base, w, x) if own else encoder.subsampling(x[None], torch.ones(1, len(x), dtype=torch.bool))
        y = y * (math.sqrt(width) if base.get("scale_input", True) else 1)
        if kind.get("self_attention_model") == "abs_pos":
            y = y + m.sinusoids(torch.arange(y.shape[1], dtype=y.dtype), width)
        outs.append(m.layers(a, w, y, torch.ones(y.shape[:2], dtype=torch.bool))[0])
    def grads():
        found = {n: t.grad for n, t in w.items() if n not in shares}
        if not own:
            found.update(("subsampling." + n, p.grad) for n, p in encoder.subsampling.named_parameters())
        return found
    target = inputs["target"]
    if own:  # frames of what is padded, too
        target = torch.randn(len(outs), subsample(kind, base, w, inputs["input_features"][0].double()).shape[1], width)
    return compare(json.dumps(kind), dict(base, **kind), stored, inputs, target, outs, grads)


def main():
    inputs = load_file(m.BASE + "/inputs.safetensors")
    for left, right in STREAMING:
        check_streaming(left, right, {n: inputs[n] for n in ("input_features", "attention_mask")})
    everything = check({}, inputs)
    for kind in KINDS:
        assert check(kind, inputs) != everything, kind  # which sees less


if __name__ == "__main__":
    main()
