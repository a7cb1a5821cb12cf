"""Models of several parts, converted in both directions and held against mappings written here with torch, tensor by tensor and
bit by bit: Nemotron VLM and Omni in every spelling of Megatron's side, RADIO H and g alone, NeMo's SALM. Parts that transformers
has (Llama, Parakeet) are its own models, and are opened by it again. Exit 0 ok, 1 different, 77 a library is absent."""
import json
import os
import re
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file, save_file, save_model
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, ParakeetEncoder, ParakeetEncoderConfig
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)
import ranks
from tool import has, here, program

random = torch.Generator().manual_seed(7)
bad, proven = [], 0


def new(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=random).to(dtype)


# ---- parts in Hugging Face's names, and what Megatron calls them ----

HYBRID = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 45, "num_hidden_layers": 4,
          "n_routed_experts": 3}


def nemotron_h():
    """M * - E; Mamba with 6 heads of 4, 2 groups of state 5"""
    h, inner, state, heads, hf = 16, 24, 10, 6, {}
    hf["backbone.embeddings.weight"], hf["lm_head.weight"], hf["backbone.norm_f.weight"] = new(45, h), new(45, h), new(h)
    for i in range(4):
        hf["backbone.layers.%d.norm.weight" % i] = new(h)
    m, a, d, e = ("backbone.layers.%d.mixer." % i for i in range(4))
    hf.update({m + "in_proj.weight": new(2 * inner + 2 * state + heads, h), m + "conv1d.weight": new(inner + 2 * state, 1, 4),
               m + "conv1d.bias": new(inner + 2 * state), m + "A_log": new(heads, dtype=torch.float32), m + "D": new(heads), m + "dt_bias": new(heads),
               m + "norm.weight": new(inner), m + "out_proj.weight": new(h, inner)})
    hf.update({a + "q_proj.weight": new(32, h), a + "k_proj.weight": new(16, h), a + "v_proj.weight": new(16, h), a + "o_proj.weight": new(h, 32)})
    hf.update({d + "up_proj.weight": new(20, h), d + "down_proj.weight": new(h, 20)})
    hf.update({e + "gate.weight": new(3, h), e + "gate.e_score_correction_bias": new(3, dtype=torch.float32)})
    for k in range(3):
        hf.update({e + "experts.%d.up_proj.weight" % k: new(12, h), e + "experts.%d.down_proj.weight" % k: new(h, 12)})
    hf.update({e + "shared_experts.up_proj.weight": new(14, h), e + "shared_experts.down_proj.weight": new(h, 14)})
    return hf


def fuse_qkv(q, k, v, groups):
    rest = q.shape[1:]
    parts = [t.reshape(groups, -1, *rest) for t in (q, k, v)]
    return torch.cat(parts, 1).reshape(-1, *rest)


def nemotron_h_megatron(hf):
    out = {"embedding.word_embeddings.weight": hf["backbone.embeddings.weight"], "output_layer.weight": hf["lm_head.weight"],
           "decoder.final_norm.weight": hf["backbone.norm_f.weight"]}
    m, a, d, e = ("backbone.layers.%d.mixer." % i for i in range(4))
    norm = [hf["backbone.layers.%d.norm.weight" % i] for i in range(4)]
    for name, t in zip(("z", "x", "B", "C", "dt"), hf[m + "in_proj.weight"].split([24, 24, 10, 10, 6])):
        out["decoder.layers.0.mixer.in_proj.weight." + name] = t
    for what in ("weight", "bias"):
        for name, t in zip(("x", "B", "C"), hf[m + "conv1d." + what].split([24, 10, 10])):
            out["decoder.layers.0.mixer.conv1d.%s.%s" % (what, name)] = t
    for name in ("A_log", "D", "dt_bias", "norm.weight", "out_proj.weight"):
        out["decoder.layers.0.mixer." + name] = hf[m + name]
    out["decoder.layers.0.mixer.in_proj.layer_norm_weight"] = norm[0]
    out["decoder.layers.1.self_attention.linear_qkv.layer_norm_weight"] = norm[1]
    out["decoder.layers.1.self_attention.linear_qkv.weight"] = fuse_qkv(*(hf[a + "%s_proj.weight" % x] for x in "qkv"), 2)
    out["decoder.layers.1.self_attention.linear_proj.weight"] = hf[a + "o_proj.weight"]
    out["decoder.layers.2.mlp.linear_fc1.layer_norm_weight"] = norm[2]
    out["decoder.layers.2.mlp.linear_fc1.weight"] = hf[d + "up_proj.weight"]
    out["decoder.layers.2.mlp.linear_fc2.weight"] = hf[d + "down_proj.weight"]
    x = "decoder.layers.3."
    out[x + "pre_mlp_layernorm.weight"] = norm[3]
    out[x + "mlp.router.weight"], out[x + "mlp.router.expert_bias"] = hf[e + "gate.weight"], hf[e + "gate.e_score_correction_bias"]
    for n, name in ((1, "up"), (2, "down")):
        out[x + "mlp.experts.experts.linear_fc%d.weight" % n] = torch.stack([hf[e + "experts.%d.%s_proj.weight" % (k, name)] for k in range(3)])
        out[x + "mlp.shared_experts.linear_fc%d.weight" % n] = hf[e + "shared_experts.%s_proj.weight" % name]
    return out


LLAMA = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
         "vocab_size": 50}


def llama():
    torch.manual_seed(3)
    return {k: v.detach().to(torch.bfloat16) for k, v in LlamaForCausalLM(LlamaConfig(tie_word_embeddings=False, **LLAMA)).state_dict().items()}


def llama_megatron(hf):
    def stack(make):
        return torch.stack([make("model.layers.%d." % i) for i in range(2)])
    return {"embedding.word_embeddings.weight": hf["model.embed_tokens.weight"], "output_layer.weight": hf["lm_head.weight"],
            "decoder.final_layernorm.weight": hf["model.norm.weight"],
            "decoder.layers.self_attention.linear_qkv.layer_norm_weight": stack(lambda p: hf[p + "input_layernorm.weight"]),
            "decoder.layers.self_attention.linear_qkv.weight":
                stack(lambda p: fuse_qkv(*(hf[p + "self_attn.%s_proj.weight" % x] for x in "qkv"), 2)),
            "decoder.layers.self_attention.linear_proj.weight": stack(lambda p: hf[p + "self_attn.o_proj.weight"]),
            "decoder.layers.mlp.linear_fc1.layer_norm_weight": stack(lambda p: hf[p + "post_attention_layernorm.weight"]),
            "decoder.layers.mlp.linear_fc1.weight": stack(lambda p: torch.cat([hf[p + "mlp.gate_proj.weight"], hf[p + "mlp.up_proj.weight"]])),
            "decoder.layers.mlp.linear_fc2.weight": stack(lambda p: hf[p + "mlp.down_proj.weight"])}


def radio(size, tokens, width, inner="", video=False, layers=2):
    """a tower of that width; H has fc1 and fc2, g has w12, w3, layer scales, biases, a mask token and a last norm"""
    g, ffn, hf = size == "g", 24, {}
    p = inner + "patch_generator."
    hf[p + "cls_token.token"], hf[p + "pos_embed"], hf[p + "embedder.weight"] = new(tokens, width), new(1, 9, width), new(width, 12)
    if video:
        hf[p + "video_embedder.weight"] = new(width, 24)
    if g:
        hf[p + "embedder.bias"], hf[inner + "mask_token"] = new(width), new(1, width)
        hf["inner.norm.weight"], hf["inner.norm.bias"] = new(width), new(width)
    for i in range(layers):
        b = inner + "blocks.%d." % i
        for n in ("norm1", "norm2"):
            hf[b + n + ".weight"], hf[b + n + ".bias"] = new(width), new(width)
        hf[b + "attn.qkv.weight"], hf[b + "attn.qkv.bias"] = new(3 * width, width), new(3 * width)
        hf[b + "attn.proj.weight"], hf[b + "attn.proj.bias"] = new(width, width), new(width)
        one, two, rows = ("w12", "w3", 2 * ffn) if g else ("fc1", "fc2", ffn)
        hf[b + "mlp.%s.weight" % one], hf[b + "mlp.%s.bias" % one] = new(rows, width), new(rows)
        hf[b + "mlp.%s.weight" % two], hf[b + "mlp.%s.bias" % two] = new(width, ffn), new(width)
        if g:
            hf[b + "ls1.grandma"], hf[b + "ls2.grandma"] = new(width), new(width)
    return hf


def radio_megatron(hf, heads):
    def per_head(t):
        return t.reshape(3, heads, -1, *t.shape[1:]).transpose(0, 1).reshape(t.shape)
    ends = {"patch_generator.cls_token.token": "class_token", "patch_generator.pos_embed": "position_embeddings",
            "patch_generator.embedder.weight": "embedder.weight", "patch_generator.embedder.bias": "embedder.bias",
            "patch_generator.video_embedder.weight": "video_embedder.weight", "mask_token": "mask_token", "norm.weight": "ln_post.weight",
            "norm.bias": "ln_post.bias"}
    inside = {"norm1.weight": "self_attention.linear_qkv.layer_norm_weight", "norm1.bias": "self_attention.linear_qkv.layer_norm_bias",
              "norm2.weight": "mlp.linear_fc1.layer_norm_weight", "norm2.bias": "mlp.linear_fc1.layer_norm_bias",
              "attn.proj.weight": "self_attention.linear_proj.weight", "attn.proj.bias": "self_attention.linear_proj.bias",
              "ls1.grandma": "ls1", "ls2.grandma": "ls2"}
    for w in ("weight", "bias"):
        inside["attn.qkv." + w] = "self_attention.linear_qkv." + w
        for n, names in ((1, ("fc1", "w12")), (2, ("fc2", "w3"))):
            for name in names:
                inside["mlp.%s.%s" % (name, w)] = "mlp.linear_fc%d.%s" % (n, w)
    out, stacks = {}, {}
    for name, t in hf.items():
        name = name[6:] if name.startswith("inner.") else name
        m = re.fullmatch(r"blocks\.(\d+)\.(.*)", name)
        if not m:
            out[ends[name]] = t
            continue
        t = per_head(t) if m[2].startswith("attn.qkv.") else t
        stacks.setdefault("decoder.layers." + inside[m[2]], {})[int(m[1])] = t
    for name, rows in stacks.items():
        out[name] = torch.stack([rows[i] for i in range(len(rows))])
    return out


PARAKEET = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32, "num_mel_bins": 16,
            "subsampling_conv_channels": 8, "conv_kernel_size": 9}


def parakeet():
    torch.manual_seed(5)
    model = ParakeetEncoder(ParakeetEncoderConfig(num_key_value_heads=4, **PARAKEET))
    return {k: (v.detach().to(torch.bfloat16) if v.is_floating_point() else v) for k, v in model.state_dict().items()}


def parakeet_nemo(hf):
    swaps = [(r"^subsampling\.layers\.", "pre_encode.conv."), (r"^subsampling\.linear\.", "pre_encode.out."),
             (r"self_attn\.([qkv])_proj", r"self_attn.linear_\1"), (r"self_attn\.o_proj", "self_attn.linear_out"),
             (r"self_attn\.relative_k_proj", "self_attn.linear_pos"), (r"self_attn\.bias_([uv])$", r"self_attn.pos_bias_\1"),
             (r"conv\.norm\.", "conv.batch_norm.")]
    out = {}
    for name, t in hf.items():
        for a, b in swaps:
            name = re.sub(a, b, name)
        out[name] = t
    return out


# ---- comparing ----

def under(prefix, tensors):
    return {prefix + k: v for k, v in tensors.items()}


def run(*words, rc=0):
    done = subprocess.run([program, *words], capture_output=True, text=True)
    if done.returncode != rc:
        raise SystemExit("exit %d, expected %d: %s\n%s" % (done.returncode, rc, " ".join(words), done.stderr))
    return done.stderr


def read_dist(path):
    """by torch, not by the program under test"""
    tracker = os.path.join(path, "latest_checkpointed_iteration.txt")
    if os.path.exists(tracker):
        path = os.path.join(path, "iter_%07d" % int(open(tracker).read()))
    reader = dcp.FileSystemReader(path)
    state = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in reader.read_metadata().state_dict_metadata.items()
             if hasattr(m, "size")}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


def read_folder(path):
    out = {}
    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors"):
            out.update(load_file(os.path.join(path, name)))
    return out


def same(what, got, want):
    global proven
    for name in sorted(set(got) ^ set(want)):
        bad.append("%s: %s is %s" % (what, name, "too much" if name in got else "missing"))
    for name in set(got) & set(want):
        a, b = got[name], want[name]
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8)):
            bad.append("%s: %s differs (%s %s, %s %s)" % (what, name, a.dtype, list(a.shape), b.dtype, list(b.shape)))
    proven += len(want)


def save_hf(path, tensors, config):
    os.makedirs(path)
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(path, "model.safetensors"))
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f)


def save_dist(path, tensors):
    dcp.save({k: v.contiguous() for k, v in tensors.items()}, checkpoint_id=path, no_dist=True)


def both_ways(tmp, what, family, hf, megatron, config, left_out=()):
    """Hugging Face -> Megatron -> Hugging Face, each side against this file's"""
    at = os.path.join(tmp, re.sub(r"\W", "_", what))
    save_hf(at + "_hf", hf, config)
    words = run("convert", "--strict", "--to", "torch_dist", "--map", family, at + "_hf", at + "_m")
    same(what + ", to Megatron", read_dist(at + "_m"), megatron)
    run("convert", "-q", "--strict", "--to", "hf", at + "_m", at + "_back")
    same(what + ", and back", read_folder(at + "_back"), {k: v for k, v in hf.items() if k not in left_out})
    return words


def wrapped(name, k):
    """with "module." in places where wrappers put it"""
    parts = name.split(".")
    cut = 1 + k % min(3, len(parts) - 1)
    return ".".join(["module"] * (k % 2) + parts[:cut] + ["module"] * (k % 3) + parts[cut:])


# ---- the cases ----

SPELLINGS = {"nemotron_vlm": ("language_model.", "vision_model.", "vision_projection."),
             "nemotron_vlm_bridge": ("llava_model.language_model.", "llava_model.vision_model.", "llava_model.vision_projection."),
             "nemotron_vlm_mimo": ("language_model.", "modality_submodules.images.encoders.radio_encoder.radio_model.",
                                   "modality_submodules.images.input_projections.0.")}
RADIO = "vision_model.radio_model.model."


def vlm(tmp):
    towers = {"h8": (radio("h", 8, 1280, layers=1), 16), "h10": (radio("h", 10, 1280, video=True), 16), "g": (radio("g", 8, 1536, "inner.", layers=1), 24),
              "small": (radio("h", 10, 24), 3)}
    for family, (l, v, p) in SPELLINGS.items():
        for tower, (vision, heads) in towers.items():
            decoder = "llama" if tower == "h8" else "nemotron_h"
            text = llama() if decoder == "llama" else nemotron_h()
            text_m = llama_megatron(text) if decoder == "llama" else nemotron_h_megatron(text)
            numbers = LLAMA if decoder == "llama" else HYBRID
            config = {"llm_config": numbers, "vision_config": {"num_attention_heads": 3} if tower == "small" else {}}
            mlp = {"0.weight": new(32), "1.weight": new(24, 32), "3.weight": new(numbers["hidden_size"], 24)}
            mlp_m = {"encoder.linear_fc1.layer_norm_weight": mlp["0.weight"], "encoder.linear_fc1.weight": mlp["1.weight"],
                     "encoder.linear_fc2.weight": mlp["3.weight"]}
            extra = {"vision_model.radio_model.input_conditioner.norm_mean": new(3, 1, 1), "vision_model.radio_model.input_conditioner.norm_std": new(3, 1, 1),
                     "vision_model.radio_model.summary_idxs": torch.tensor([0, 1])}
            hf = {**under("language_model.", text), **under(RADIO, vision), **under("mlp1.", mlp), **extra}
            megatron = {**under(l, text_m), **under(v, radio_megatron(vision, heads)), **under(p, mlp_m)}
            if tower == "small":  # how many heads it has is in the configuration only, which the way back does not have
                at = os.path.join(tmp, family + tower)
                save_hf(at, hf, config)
                run("convert", "-q", "--strict", "--to", "torch_dist", "--map", family, at, at + "_m")
                same(family + " small", read_dist(at + "_m"), megatron)
                run("convert", "-q", "--strict", "--to", "hf", "--config", os.path.join(at, "config.json"), at + "_m", at + "_back")
                same(family + " small, and back", read_folder(at + "_back"), {k: t for k, t in hf.items() if k not in extra})
            else:
                both_ways(tmp, "%s %s" % (family, tower), family, hf, megatron, config, extra)
                # from a training job: wrapped, with the optimizers of both branches
                job = {wrapped(k, i): t for i, (k, t) in enumerate(sorted(megatron.items()))}
                for branch in ("language", "images"):
                    job["mimo.%s.optimizer.state.exp_avg.x" % branch] = new(4)
                    job["mimo.%s.chained_0.optimizer.distributed.dp_group_idx_0.gbuf_idx_0.bucket_idx_0.param" % branch] = new(4)
                    job["optimizer.mimo.%s.1.grad_scaler" % branch] = new(1)
                at = os.path.join(tmp, family + tower + "_job")
                save_dist(at, job)
                with open(at + ".json", "w") as f:
                    json.dump(config, f)
                said = run("convert", "-v", "--strict", "--to", "hf", "--config", at + ".json", at, at + "_hf")
                same("%s %s of a job" % (family, tower), read_folder(at + "_hf"), {k: t for k, t in hf.items() if k not in extra})
                if "6 tensors of optimizer and other state" not in said:
                    bad.append("%s %s of a job: the optimizer is not said to be left out: %s" % (family, tower, said))
                run("convert", "-q", "--to", "torch_dist", at, at + "_copy")
                same("%s %s of a job, copied" % (family, tower), read_dist(at + "_copy"), job)


def save_ranks(path, tensors, tp):
    """a tower as examples/multimodal's radio_converter leaves it: rank folders with weights and nothing else"""
    for r in range(tp):
        state = {}
        for name, t in tensors.items():
            kind = re.sub(r"^decoder\.layers\.\d+\.", "", name)
            if re.fullmatch(r"self_attention\.linear_qkv\.(weight|bias)|mlp\.linear_fc1\.(weight|bias)|embedder\.(weight|bias)", kind):
                # ranks have gate and up of their own
                halves = t.chunk(2) if kind.startswith("mlp.") and "ln_post.weight" in tensors else [t]
                t = torch.cat([half.chunk(tp)[r] for half in halves])
            elif kind in ("self_attention.linear_proj.weight", "mlp.linear_fc2.weight"):
                t = t.chunk(tp, 1)[r]
            state[name] = t.clone()
        folder = os.path.join(path, "iter_0000001", "mp_rank_%02d" % r)
        os.makedirs(folder)
        torch.save({"model": state}, os.path.join(folder, "model_optim_rng.pt"))
    with open(os.path.join(path, "latest_checkpointed_iteration.txt"), "w") as f:
        f.write("1")


def towers(tmp):
    for size in ("h", "g"):
        tower = radio(size, 8, 24, "inner." * (size == "g"), layers=11)
        numbered = {}
        for name, t in radio_megatron(tower, 4).items():
            at = "decoder.layers."
            numbered.update({at + "%d." % i + name[len(at):]: row for i, row in enumerate(t)} if name.startswith(at) else {name: t})
        for tp in (1, 2, 4):
            at = os.path.join(tmp, "ranks_%s_%d" % (size, tp))
            save_ranks(at, numbered, tp)
            with open(at + ".json", "w") as f:
                json.dump({"vision_config": {"num_attention_heads": 4}}, f)
            run("convert", "-q", "--strict", "--to", "hf", "--config", at + ".json", at, at + "_hf")
            same("radio %s of %d ranks" % (size, tp), read_folder(at + "_hf"), under("radio_model.model.", tower))
    for size, tokens, width, heads, inner in (("h", 8, 1280, 16, ""), ("h", 10, 1280, 16, ""), ("g", 8, 1536, 24, "inner.")):
        tower = radio(size, tokens, width, inner, layers=2)
        config = {"num_hidden_layers": 2}
        both_ways(tmp, "radio %s %d" % (size, tokens), "radio", under("radio_model.model.", tower), radio_megatron(tower, heads), config)
        for family, prefix in (("radio_hub", "model."), ("radio_bare", "")):
            at = os.path.join(tmp, family + size + str(tokens))
            save_hf(at, under(prefix, tower), config)
            run("convert", "-q", "--strict", "--to", "torch_dist", "--map", family, at, at + "_m")
            same("%s %s" % (family, size), read_dist(at + "_m"), radio_megatron(tower, heads))
            run("convert", "-q", "--strict", "--to", "hf", "--map", family, at + "_m", at + "_back")
            same("%s %s, and back" % (family, size), read_folder(at + "_back"), under(prefix, tower))
    # the g size with all but its last norm outside "inner."
    flat = radio("g", 8, 1536, "", layers=1)
    at = os.path.join(tmp, "flat")
    save_hf(at, under("radio_model.model.", flat), {})
    run("convert", "-q", "--strict", "--to", "torch_dist", "--map", "radio", at, at + "_m")
    same("radio g, flat", read_dist(at + "_m"), radio_megatron(flat, 24))
    # the last norm is wanted where there is one, and not where there is none
    g = radio("g", 8, 1536, "inner.", layers=1)
    for side in ("hf", "megatron"):
        lacks = under("radio_model.model.", g) if side == "hf" else radio_megatron(g, 24)
        lacks = {k: v for k, v in lacks.items() if not re.search(r"inner\.norm\.bias|ln_post\.bias", k)}
        at = os.path.join(tmp, "no_norm_" + side)
        save_hf(at, lacks, {}) if side == "hf" else save_dist(at, lacks)
        to = ["--to", "torch_dist", "--map", "radio"] if side == "hf" else ["--to", "hf"]
        said = run("convert", *to, at, at + "_out", rc=1)
        if "wanted but absent (1)" not in said or "inner.norm.bias" not in said or os.path.exists(at + "_out"):
            bad.append("radio g without its last norm (%s): %s" % (side, said))
    h = {**radio_megatron(radio("h", 8, 1280, layers=1), 16), "decoder.final_layernorm.weight": new(1280), "decoder.final_layernorm.bias": new(1280)}
    at = os.path.join(tmp, "final_norm")
    save_dist(at, h)
    said = run("convert", "--to", "hf", at, at + "_out")
    if said.count("in checkpoint but unused: decoder.final_layernorm") != 2:
        bad.append("a last norm that RADIO H has no name for is not listed: " + said)
    run("convert", "--strict", "--to", "hf", at, at + "_strict", rc=1)


def omni(tmp):
    text, vision, sound = nemotron_h(), radio("h", 10, 1280, video=True, layers=1), parakeet()
    mlp, proj = {"0.weight": new(32), "1.weight": new(24, 32), "3.weight": new(16, 24)}, {"norm.weight": new(16), "linear1.weight": new(24, 16), "linear2.weight": new(16, 24)}
    fc = ("encoder.linear_fc1.layer_norm_weight", "encoder.linear_fc1.weight", "encoder.linear_fc2.weight")
    left = {"sound_encoder.encoder.feature_extractor.featurizer.fb": new(1, 16, 9), "sound_encoder.encoder.feature_extractor.featurizer.window": new(16)}
    hf = {**under("language_model.", text), **under(RADIO, vision), **under("mlp1.", mlp), **under("sound_encoder.encoder.", sound),
          **under("sound_projection.", proj), **left, "vision_final_layernorm.weight": new(1280), "vision_final_layernorm.bias": new(1280)}
    for family, p in (("nemotron_vlm", ""), ("nemotron_vlm_bridge", "llava_model.")):
        megatron = under(p, {**under("language_model.", nemotron_h_megatron(text)), **under("vision_model.", radio_megatron(vision, 16)),
                             **{"vision_model.decoder.final_layernorm." + k: hf["vision_final_layernorm." + k] for k in ("weight", "bias")},
                             **under("vision_projection.", dict(zip(fc, mlp.values()))), **under("sound_model.encoder.", sound),
                             **under("sound_projection.", dict(zip(fc, proj.values())))})
        both_ways(tmp, family + " with sound", family, hf, megatron, {"llm_config": HYBRID}, left)
        lacks = {k: v for k, v in megatron.items() if "layers.1.norm_conv.bias" not in k}
        at = os.path.join(tmp, family + "_lacks")
        save_dist(at, lacks)
        with open(at + ".json", "w") as f:
            json.dump({"llm_config": HYBRID}, f)
        said = run("convert", "--to", "hf", "--config", at + ".json", at, at + "_out", rc=1)
        if "sound_encoder.encoder.layers.1.norm_conv.bias" not in said:
            bad.append("a sound encoder without a tensor: " + said)


NEMO = {"audio_locator_tag": "<|audio|>", "perception": {
    "preprocessor": {"sample_rate": 16000, "window_size": 0.025, "window_stride": 0.01, "features": 16, "n_fft": 512},
    "encoder": {"d_model": 16, "n_heads": 4, "n_layers": 2, "feat_in": 16, "conv_kernel_size": 9, "subsampling": "dw_striding", "subsampling_factor": 8,
                "subsampling_conv_channels": 8, "ff_expansion_factor": 2, "self_attention_model": "rel_pos"}}}


def salm(tmp):
    text, speech = llama(), parakeet()
    proj = {"weight": new(32, 16), "bias": new(32)}
    nemo = {**under("perception.encoder.", parakeet_nemo(speech)), **under("perception.proj.", proj), **under("llm.", text),
            "perception.preprocessor.featurizer.window": new(16), "perception.preprocessor.featurizer.fb": new(1, 16, 9)}
    moved = {("embed_tokens.weight" if k == "llm.model.embed_tokens.weight" else k): v for k, v in nemo.items()}
    parts = {"encoder": speech, "llm": text, "": under("proj.", proj)}
    for family, tensors in (("salm", moved), ("salm_automodel", nemo)):
        for how in ("folder", "lightning", "dcp"):
            at = os.path.join(tmp, family + "_" + how)
            if how == "folder":
                save_hf(at, tensors, NEMO)
                os.makedirs(os.path.join(at, "llm_backbone"))
                LlamaConfig(architectures=["LlamaForCausalLM"], tie_word_embeddings=False, **LLAMA).save_pretrained(os.path.join(at, "llm_backbone"))
                with open(os.path.join(at, "tokenizer.json"), "w") as f:
                    json.dump({"added_tokens": [{"id": 49, "content": "<|audio|>"}]}, f)
            elif how == "lightning":
                torch.save({"state_dict": tensors, "hyper_parameters": {"cfg": NEMO}, "optimizer_states": [{"state": {0: {"exp_avg": new(3)}}}]}, at)
            else:
                # as Lightning's strategy of model parallelism does
                save_dist(at, {**under("state_dict.", tensors), "optimizer_0.state.llm.lm_head.weight.exp_avg": new(3)})
                torch.save({"hyper_parameters": {"cfg": NEMO}, "loops": {}, "callbacks": {"x": {"best_model_score": torch.ones(())}}}, os.path.join(at, "meta.pt"))
            run("convert", "-q", "--strict", "--to", "hf", at, at + "_hf")
            for folder, want in parts.items():
                same("%s %s: %s" % (family, how, folder or "projection"), read_folder(os.path.join(at + "_hf", folder)), want)
            _, info = ParakeetEncoder.from_pretrained(os.path.join(at + "_hf", "encoder"), output_loading_info=True)
            if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
                bad.append("%s %s: the encoder in transformers: %s" % (family, how, info))
            if how != "folder":
                continue
            _, info = AutoModelForCausalLM.from_pretrained(os.path.join(at + "_hf", "llm"), output_loading_info=True)
            if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
                bad.append("%s: the language model in transformers: %s" % (family, info))
            run("convert", "-q", "--strict", "--to", "hf", "--part", "llm", at, at + "_llm")
            same(family + ", its language model alone", read_folder(at + "_llm"), text)
            config = json.load(open(os.path.join(at + "_hf", "config.json")))
            if config.get("audio_locator_token_id") != 49 or config["projection"] != {"in": 16, "out": 32, "bias": True}:
                bad.append("%s: config.json %s" % (family, config))
            # and back to NeMo's names, twice
            run("convert", "-q", "--strict", "--to", "torch_dist", "--map", family, at + "_hf", at + "_nemo")
            same(family + ", back", read_dist(at + "_nemo"), {k: v for k, v in tensors.items() if "preprocessor" not in k})
            run("convert", "-q", "--to", "hf", at + "_nemo", at + "_again")
            run("diff", "-q", at + "_hf", at + "_again")
            for name in ("config.json", "encoder/config.json", "llm/config.json"):
                if json.load(open(os.path.join(at + "_hf", name))) != json.load(open(os.path.join(at + "_again", name))):
                    bad.append("%s: %s is another one after a round" % (family, name))
            # names kept, into torch_dist and out of it
            run("convert", "-q", "--to", "torch_dist", at, at + "_dist")
            run("convert", "-q", "--strict", "--to", "hf", at + "_dist", at + "_third")
            run("diff", "-q", at + "_hf", at + "_third")
    # what is wrong with a part is said of that part
    for lost, say in (("llm.model.layers.1.mlp.up_proj.weight", "llm.model.layers.1.mlp.up_proj.weight"),
                      ("embed_tokens.weight", "llm.model.embed_tokens.weight"), ("perception.proj.weight", "proj.weight"),
                      ("perception.encoder.layers.0.conv.batch_norm.running_var", "encoder.layers.0.conv.norm.running_var")):
        at = os.path.join(tmp, "lost_" + lost)
        save_hf(at, {k: v for k, v in moved.items() if k != lost}, NEMO)
        said = run("convert", "--to", "hf", at, at + "_out", rc=1)
        if "wanted but absent (1)" not in said or say not in said or os.path.exists(at + "_out"):
            bad.append("a SALM without %s: %s" % (lost, said))
    adapted = {re.sub(r"^llm\.", "llm.base_model.model.", k): v for k, v in moved.items()}
    adapted["llm.base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"] = new(4, 32)
    adapted["llm.base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight"] = new(32, 4)
    at = os.path.join(tmp, "lora")
    save_hf(at, adapted, NEMO)
    said = run("convert", "--to", "hf", at, at + "_out", rc=1)
    if "LoRA" not in said or "lora_A" not in said:
        bad.append("adapters: " + said)
    run("convert", "-q", "--to", "torch_dist", at, at + "_kept")
    same("adapters kept", read_dist(at + "_kept"), adapted)
    adapter = {**moved, "perception.modality_adapter.layers.0.norm_out.weight": new(16)}
    at = os.path.join(tmp, "adapter")
    save_hf(at, adapter, NEMO)
    if "unused: perception.modality_adapter.layers.0" not in run("convert", "--to", "hf", at, at + "_out"):
        bad.append("a modality adapter is not listed")
    run("convert", "--strict", "--to", "hf", at, at + "_strict", rc=1)


class Tree(torch.nn.Module):
    """modules that have these tensors under these names"""
    def __init__(self, tensors):
        super().__init__()
        for name in {k.split(".")[0] for k in tensors}:
            inner = {k[len(name) + 1:]: v for k, v in tensors.items() if k.startswith(name + ".")}
            self.add_module(name, Tree(inner)) if inner else self.register_buffer(name, tensors[name])


def salm_tied(tmp):
    """as the hub's mixin saves a SALM whose words and outputs are one matrix: once, under the name that comes first"""
    text, speech = llama(), parakeet()
    text["lm_head.weight"] = text["model.embed_tokens.weight"]
    nemo = {**under("perception.encoder.", parakeet_nemo(speech)), **under("perception.proj.", {"weight": new(32, 16), "bias": new(32)}), **under("llm.", text)}
    moved = {("embed_tokens.weight" if k == "llm.model.embed_tokens.weight" else k): v for k, v in nemo.items()}
    for family, tensors in (("salm", moved), ("salm_automodel", nemo)):
        at = os.path.join(tmp, "tied_" + family)
        save_hf(at, {"x": new(1)}, NEMO)
        save_model(Tree(tensors), os.path.join(at, "model.safetensors"))
        run("verify", at)
        run("convert", "-q", "--strict", "--to", "hf", at, at + "_hf")
        same("tied " + family, read_folder(os.path.join(at + "_hf", "llm")), text)


def salm_kin(tmp):
    """NeMo's models of speech and text that are a little otherwise: an adapter that needs no projection, DuplexS2S with its language model
    taken apart, a language model whose experts are in one tensor"""
    speech, text = under("perception.encoder.", parakeet_nemo(parakeet())), llama()
    no_adapter = {**NEMO, "perception": {**NEMO["perception"], "modality_adapter": {"_target_": "nemo.collections.speechlm2.modules.perception.IdentityConnector"}}}
    adapter = {**NEMO, "perception": {**NEMO["perception"], "modality_adapter": {**no_adapter["perception"]["modality_adapter"], "d_model": 16}}}
    tensors = {**speech, **under("llm.", text)}
    at = os.path.join(tmp, "direct")
    save_hf(at, tensors, no_adapter)
    run("convert", "-q", "--strict", "--to", "hf", at, at + "_hf")
    same("no projection", read_folder(os.path.join(at + "_hf", "llm")), text)
    if "projection" in json.load(open(os.path.join(at + "_hf", "config.json"))) or os.path.exists(os.path.join(at + "_hf", "projection.safetensors")):
        bad.append("a projection out of nothing")
    run("convert", "-q", "--strict", "--to", "torch_dist", "--map", "salm_automodel", at + "_hf", at + "_nemo")
    same("no projection, back", read_dist(at + "_nemo"), tensors)
    torch.save({"state_dict": tensors, "hyper_parameters": {"cfg": no_adapter}}, at + ".ckpt")
    run("convert", "-q", "--strict", "--to", "hf", at + ".ckpt", at + "_lightning")
    save_hf(at + "_lost", tensors, adapter)
    if "proj.weight" not in run("convert", "--to", "hf", at + "_lost", at + "_none", rc=1):
        bad.append("a projection that the adapter has is not missed")
    # DuplexS2S
    inner = {"llm." + k[len("model."):]: v for k, v in text.items() if k.startswith("model.") and "embed" not in k}
    duplex = {**speech, **under("perception.proj.", {"weight": new(32, 16), "bias": new(32)}), **inner, "embed_tokens.weight": text["model.embed_tokens.weight"],
              "lm_head.weight": text["lm_head.weight"]}
    heads = {"audio_head.weight": new(9, 32), "embed_audio_tokens.0.weight": new(9, 32)}
    at = os.path.join(tmp, "duplex")
    save_hf(at, {**duplex, **heads}, NEMO)
    if "unused: audio_head.weight" not in run("convert", "--to", "hf", at, at + "_hf"):
        bad.append("duplex: its audio head is not listed")
    same("duplex", read_folder(os.path.join(at + "_hf", "llm")), text)
    run("convert", "-q", "--strict", "--to", "hf", "--part", "llm", at, at + "_llm")
    same("duplex, its language model alone", read_folder(at + "_llm"), text)
    run("convert", "-q", "--strict", "--to", "torch_dist", "--map", "salm_duplex", at + "_hf", at + "_back")
    same("duplex, back", read_dist(at + "_back"), duplex)
    save_hf(at + "_lost", {k: v for k, v in duplex.items() if k != "llm.layers.1.mlp.up_proj.weight"}, NEMO)
    if "layers.1.mlp.up_proj.weight" not in run("convert", "--to", "hf", at + "_lost", at + "_none", rc=1):
        bad.append("duplex: a lost tensor is not missed")
    # experts, and Nemotron-H's names in memory
    hybrid = nemotron_h()
    memory = {k.replace("backbone.", "model."): v for k, v in hybrid.items() if ".experts." not in k}
    for kind in ("up_proj", "down_proj"):
        memory["model.layers.3.mixer.experts." + kind] = torch.stack([hybrid["backbone.layers.3.mixer.experts.%d.%s.weight" % (e, kind)] for e in range(3)])
    at = os.path.join(tmp, "memory")
    save_hf(at, {**speech, **under("perception.proj.", {"weight": new(16, 16)}), **under("llm.", memory)}, NEMO)
    run("convert", "-q", "--strict", "--to", "hf", at, at + "_hf")
    same("a hybrid as it is in memory", read_folder(os.path.join(at + "_hf", "llm")), {k.replace("model.", "backbone."): v for k, v in memory.items()})
    # its words taken out, and as DuplexSTT has the rest
    moved = {"embed_tokens.weight": memory["model.embeddings.weight"], **under("llm.", {k: v for k, v in memory.items() if k != "model.embeddings.weight"})}
    for how, tensors in (("moved", moved), ("stt", {k.replace("llm.model.", "llm.").replace("llm.lm_head.", "lm_head."): v for k, v in moved.items()})):
        at = os.path.join(tmp, how)
        save_hf(at, {**speech, **under("perception.proj.", {"weight": new(16, 16)}), **tensors}, NEMO)
        run("convert", "-q", "--strict", "--to", "hf", at, at + "_hf")
        same("a hybrid " + how, read_folder(os.path.join(at + "_hf", "llm")), {k.replace("model.", "backbone."): v for k, v in memory.items()})
        run("convert", "-q", "--strict", "--to", "hf", "--part", "llm", at, at + "_llm")
        same("a hybrid alone " + how, read_folder(at + "_llm"), {k.replace("model.", "model." if how == "moved" else "backbone."): v for k, v in memory.items()})


def branches(tmp):
    """what megatron-core saves of a heterogeneous job's two optimizers: kept by reshard and convert --to torch_dist, left out by hf"""
    if not has("megatron.core"):
        print("megatron-core is absent: branches are not checked")
        return
    import torch.distributed as dist
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    ranks.keep_results()
    # its writer asks for a GPU and for psutil, of which this needs neither
    torch.cuda.synchronize, torch.cuda.current_device, filesystem_async._process_memory = lambda *_: None, lambda: "cpu", lambda: 0
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    model = {**under("language_model.module.", nemotron_h_megatron(nemotron_h())),
             **under("modality_submodules.images.module.module.encoders.radio_encoder.radio_model.", radio_megatron(radio("h", 10, 1280, layers=1), 16))}
    tensors, objects = dict(model), {}
    for branch in ("language_model", "images"):
        tensors["mimo.%s.chained_0.optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.param" % branch] = \
            new(64, dtype=torch.float32)
        objects["optimizer.mimo.%s.param_groups" % branch] = [{"lr": 0.1, "params": []}]
        objects["optimizer.mimo.%s.1.grad_scaler" % branch] = {"scale": torch.ones(1)}
        objects["optimizer.mimo.%s.param_state_sharding_type" % branch] = "dp_reshardable"
        objects["mimo.%s.rng_state" % branch] = [{"torch_rng_state": torch.zeros(8, dtype=torch.uint8)}]

    def state(empty):
        out = {k: ShardedTensor.from_rank_offsets(k, torch.empty_like(v) if empty else v.contiguous(), replica_id=0) for k, v in tensors.items()}
        out.update({k: ShardedObject(k, None if empty else v, (1,), (0,), replica_id=0) for k, v in objects.items()})
        return out
    at = os.path.join(tmp, "job")
    os.makedirs(at)
    dist_checkpointing.save(state(False), at)
    listed = subprocess.run([program, "ls", at], capture_output=True, text=True, check=True).stdout
    for name in list(tensors) + list(objects):
        if name not in listed:
            bad.append("branches: ls does not list " + name)
    run("convert", "-q", "--to", "torch_dist", at, at + "_copy")
    run("reshard", "-q", "--files", "3", at, at + "_files")
    for out in ("_copy", "_files"):
        back = dist_checkpointing.load(state(True), os.path.join(at + out, "iter_0000001"))
        same("branches" + out, {k: back[k] for k in tensors}, tensors)
        for k, v in objects.items():
            if str(back[k]) != str(v):
                bad.append("branches%s: %s is %s" % (out, k, back[k]))
    with open(at + ".json", "w") as f:
        json.dump({"llm_config": HYBRID}, f)
    run("convert", "-q", "--strict", "--to", "hf", "--config", at + ".json", at, at + "_hf")
    got = read_folder(at + "_hf")
    if len(got) < 40 or any("mimo" in k or "optimizer" in k for k in got):
        bad.append("branches: to hf %s" % sorted(got)[:5])


MAY_BE_ABSENT = r"lm_head|output_layer|video_embedder|shared_experts|linear[12]\.bias$|pw.*bias|conv\.(pointwise|depthwise).*bias|_proj\.bias|" \
                r"linear_(q|k|v|out|pos)\.bias|num_batches|proj\.bias$|subsampling\.layers\.[2-9]|pre_encode\.conv\.[2-9]"


def totality(tmp):
    """a model of which one tensor is lost, each in turn, is refused and the tensor named: nothing is ever left out in silence"""
    text, vision, sound = nemotron_h(), radio("h", 10, 24), parakeet()
    mlp, proj = {"0.weight": new(32), "1.weight": new(24, 32), "3.weight": new(16, 24)}, {"norm.weight": new(16), "linear1.weight": new(24, 16), "linear2.weight": new(16, 24)}
    fc = ("encoder.linear_fc1.layer_norm_weight", "encoder.linear_fc1.weight", "encoder.linear_fc2.weight")
    hf = {**under("language_model.", text), **under(RADIO, vision), **under("mlp1.", mlp), **under("sound_encoder.encoder.", sound),
          **under("sound_projection.", proj)}
    megatron = {**under("language_model.", nemotron_h_megatron(text)), **under("vision_model.", radio_megatron(vision, 3)),
                **under("vision_projection.", dict(zip(fc, mlp.values()))), **under("sound_model.encoder.", sound),
                **under("sound_projection.", dict(zip(fc, proj.values())))}
    numbered = {}
    for name, t in megatron.items():
        at = "vision_model.decoder.layers."
        if name.startswith(at):
            numbered.update({at + "%d." % i + name[len(at):]: row for i, row in enumerate(t)})
        else:
            numbered[name] = t
    speech = parakeet()
    salm_model = {**under("perception.encoder.", parakeet_nemo(speech)), **under("perception.proj.", {"weight": new(32, 16), "bias": new(32)}),
                  **under("llm.", llama())}
    g = radio("g", 8, 24, "inner.")
    config = os.path.join(tmp, "config.json")
    with open(config, "w") as f:
        json.dump({"llm_config": HYBRID, "vision_config": {"num_attention_heads": 3}}, f)
    back = ["--to", "torch_dist", "--map"]
    cases = [("hf", hf, back + ["nemotron_vlm"]), ("megatron", numbered, ["--to", "hf", "--map", "nemotron_vlm"]),
             ("stacked", megatron, ["--to", "hf", "--map", "nemotron_vlm"]), ("salm", salm_model, ["--to", "hf", "--map", "salm_automodel"]),
             ("g hf", under("radio_model.model.", g), back + ["radio"]), ("g megatron", radio_megatron(g, 3), ["--to", "hf", "--map", "radio"])]
    global proven
    for what, tensors, words in cases:
        path = os.path.join(tmp, "one.safetensors")
        for lost in sorted(tensors):
            if re.search(MAY_BE_ABSENT, lost) or lost.endswith("mask_token") or lost.endswith("embedder.bias"):
                continue
            save_file({k: v.contiguous() for k, v in tensors.items() if k != lost}, path)
            done = subprocess.run([program, "convert", "--plan", "--config", config, *words, path, os.path.join(tmp, "x")], capture_output=True, text=True)
            proven += 1
            # a layer axis is named by its layers, the last expert by how many are wanted
            name = re.escape(lost).replace(r"decoder\.layers\.", r"decoder\.layers\.(\d+\.)?").replace(r"experts\.2", r"experts\.(2|{E})")
            if done.returncode != 1 or not re.search(name.replace(r"layers\.3\.mixer\.experts", r"layers\.(3|{N})\.mixer\.experts"), done.stderr):
                bad.append("%s without %s: exit %d %s" % (what, lost, done.returncode, done.stderr[:300]))


if __name__ == "__main__":
    for case in [globals()[name] for name in sys.argv[1:]] or [vlm, towers, omni, salm, salm_tied, salm_kin, branches, totality]:
        with tempfile.TemporaryDirectory() as folder:
            case(folder)
    print("\n".join(bad[:40]) if bad else "%d tensors of models of several parts are as the mappings here say" % proven)
    sys.exit(bool(bad))
