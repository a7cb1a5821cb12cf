"""Maps of a user's own: random files of rules of every transform, with layers on an axis or numbered, experts together or one by one, lists,
transposed and optional tensors, {*}. What comes out is held against what each rule means, done here with torch, and back bit for bit.

check_own_maps.py [MAPS]: so many (60). Exit 0 ok, 1 different, 77 a library is absent."""
import json
import os
import random
import re
import sys
import tempfile

from tool import bad, compare, convert, need

need("torch", "safetensors")
import torch
from safetensors.torch import load_file, save_file

import megatron_names as names


def fill(pattern, layer, expert=0, item=0):
    pattern = pattern.replace("{N}", str(layer)).replace("{E}", str(expert))
    return re.sub(r"\{([^{}]*,[^{}]*)\}", lambda m: m[1].split(",")[item], pattern)


class Rules:
    """Lines of a map, and both sides of it (Megatron's with numbered layers)."""

    def __init__(self, r):
        self.r, self.lines, self.left, self.right = r, [], {}, {}
        self.layers, self.experts = r.choice([1, 2, 3, 11]), r.choice([1, 2, 3, 12])
        self.groups, self.dim, self.hidden, self.vocab = r.choice([1, 2]), r.choice([1, 3, 4]), r.choice([2, 3, 5]), r.randint(3, 9)
        self.heads = self.groups * r.choice([1, 2, 3])
        self.dtype = r.choice([torch.float32, torch.bfloat16])

    def random(self, *shape):
        return torch.randn(shape).to(self.dtype)

    def add(self, transform, left, right, make, more=""):
        """make(): parts of the right side by item, and of the left; of experts a list by expert"""
        optional = self.r.random() < 0.3
        in_layers = self.r.random() < 0.8
        n = len(self.lines)
        left, right = ("%s%s%d%s" % (at if in_layers else root, transform, n, end)
                       for at, root, end in (("enc.blocks.{N}.", "enc.", left), ("m.h.{N}.", "m.", right)))
        self.lines.append(" ".join([left, right, transform, more] + ["?"] * optional).replace(" ", self.r.choice([" ", "   ", "\t"])))
        for layer in range(self.layers if in_layers else 1) if not optional or self.r.random() < 0.5 else []:
            many = "{E}" in right
            for expert in range(self.experts if many and "{E}" in left else 1):
                lefts, rights = make()
                self.left.update((fill(left, layer, expert, i), t.contiguous()) for i, t in enumerate(lefts))
                for i, t in enumerate(rights):
                    for e, one in enumerate(t) if isinstance(t, list) else [(expert, t)]:
                        self.right[fill(right, layer, e, i)] = one

    def copy(self):
        shape = [self.r.randint(1, 5) for _ in range(self.r.choice([0, 1, 2, 3]))]
        if self.r.random() < 0.5:
            return self.add("copy", ".{a,bb,ccc}.w", ".{x,y,xx}", lambda: [[self.random(*shape) for _ in range(3)]] * 2)
        turned = len(shape) > 1 and self.r.random() < 0.4

        def make():
            t = self.random(*shape)
            return [t.transpose(-1, -2) if turned else t], [t]
        self.add("copy", ".weight", ".w", make, "transposed" if turned else "")

    def split(self):
        n, shape = self.r.choice([2, 3, 5]), (self.r.randint(1, 5), 3)
        one_by_one = self.r.random() < 0.4

        def make():
            parts = [self.random(*shape) for _ in range(n)]
            return [torch.cat(parts)], parts
        self.add("split", ".{E}.weight" if one_by_one else ".weight", (".e{E}" if one_by_one else "") + ".{%s}" % ",".join("pqrst"[:n]), make)

    def concat(self):
        shape = (self.r.randint(1, 5), 3)

        def make():
            parts = [self.random(*shape) for _ in range(3)]
            return parts, [torch.cat(parts)]
        self.add("concat", ".{al,be,ga}", ".all", make)

    def qkv(self):
        def make():
            q, k, v = (self.random(n * self.dim, self.hidden) for n in (self.heads, self.groups, self.groups))
            return [names.interleave(q, k, v, self.groups)], [q, k, v]
        self.add("qkv", ".weight", ".{q,k,v}", make)

    def fused(self):
        def make():
            q, k, v = (self.random(n * self.dim, self.hidden) for n in (self.heads, self.groups, self.groups))
            return [names.interleave(q, k, v, self.groups)], [torch.cat([q, k, v])]
        self.add("qkv", ".weight", ".qkv", make)

    def eyes(self):
        size = self.r.randint(1, 5)

        def make():
            q, k, v = (self.random(2 * size, 3) for _ in range(3))
            return [names.interleave(q, k, v, 2)], [torch.cat([q, k, v])]
        self.add("heads", ".weight", ".qkv", make)

    def words(self):
        def make():
            t = self.random(self.vocab, 3)
            return [t], [t]
        self.add("vocab", ".weight", ".w", make)

    def together(self):
        n, shape = self.r.choice([1, 2]), (self.r.randint(1, 5), 3)
        turned = n == 1 and self.r.random() < 0.4

        def make():
            experts = [[self.random(*shape) for _ in range(self.experts)] for _ in range(n)]
            rows = [torch.cat(parts) for parts in zip(*experts)]
            return [torch.stack([t.t() if turned else t for t in rows])], experts
        self.add("experts", ".weight", ".{E}." + ("{u,g}" if n > 1 else "w"), make, "transposed" if turned else "")


def check(seed, tmp):
    r, what = random.Random(seed), "map %d" % seed
    torch.manual_seed(seed)
    rules = Rules(r)
    for _ in range(r.randint(1, 8)):
        r.choice([rules.copy, rules.copy, rules.split, rules.concat, rules.qkv, rules.fused, rules.eyes, rules.words, rules.together])()
    if r.random() < 0.5:
        rules.lines.append("tail.{*}  old.tail.{*}  copy")
        for end in ("a", "b.c"):
            rules.right["old.tail." + end] = rules.left["tail." + end] = rules.random(3)
    if not rules.right:
        return
    numbered = r.random() < 0.5
    file, config, hf, dist, got, back = (os.path.join(tmp, n) for n in ("own.map", "config.json", "hf.safetensors", "dist", "got.safetensors", "back"))
    with open(file, "w", encoding="utf-8") as f:
        f.write("\n".join(["# one's own", "family own   # of a test", ""] + ["numbered enc.blocks."] * numbered + rules.lines) + "\n")
    with open(config, "w", encoding="utf-8") as f:
        json.dump(dict(num_attention_heads=rules.heads, num_key_value_heads=rules.groups, head_dim=rules.dim, vocab_size=rules.vocab,
                       vision_config=dict(num_attention_heads=2)), f)
    save_file({k: t.contiguous() for k, t in rules.right.items()}, hf)
    left = rules.left
    if not numbered:
        layers, left = {}, {}
        for key, t in rules.left.items():
            at = re.fullmatch(r"enc\.blocks\.(\d+)\.(.*)", key)
            if at:
                layers.setdefault("enc.blocks." + at[2], {})[int(at[1])] = t
            else:
                left[key] = t
        left.update((key, torch.stack([ts[n] for n in range(len(ts))])) for key, ts in layers.items())
    before = len(bad)
    if convert(what, "--to", "torch_dist", "--map", file, "--config", config, hf, dist) and convert(what, "--to", "safetensors", dist, got):
        compare(what, load_file(got), left)
        if convert(what + " back", "--to", "hf", "--map", file, "--config", config, dist, back):
            compare(what + " back", load_file(os.path.join(back, "model.safetensors")), rules.right)
    if len(bad) > before:
        bad.append("\n".join(rules.lines))


n_maps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
for number in range(n_maps):
    with tempfile.TemporaryDirectory() as folder:
        check(number, folder)
print("\n".join(bad[:40]) if bad else "%d maps of one's own, both ways" % n_maps)
sys.exit(bool(bad))
