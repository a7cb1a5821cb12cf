"""Checkpoints that Megatron-LM's trainer saves from 1 to 4 processes with its own command line, and what it makes of those that s2s-ckpt
writes. For each of CASES: `ls --sha256` lists what the trainer held and `verify` finds nothing; what `reshard` makes of it (of per-rank files:
`convert --merge-ranks`) is loaded in another layout, optimizer and all, and the next step there is the same; transformers' model of what
`convert --to hf` makes, and the trainer's of that converted back, found by --use-checkpoint-args, give the logits that the trainer's own has.
The trainers: checkouts of Megatron-LM (`git archive core_v0.16.1 megatron | tar x -C FOLDER` is enough; from 0.12; SINCE says which
cases are of later ones) in S2S_MEGATRON_LM, colon-separated. check_megatron_lm.py [CASE..]. Exit 0 ok, 1 different, 77 none is there or a library is absent."""
import json
import os
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
from tool import bad, need, need_ok

need("safetensors", "torch", "transformers")
import torch  # noqa: E402
import transformers  # noqa: E402
import check_mcore_versions as versions  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
# fp32 sums in another order, as in check_logits.py
TOLERANCE = 1e-4
ON_CPU = """--micro-batch-size 1 --global-batch-size 8 --train-iters 100 --lr 0.01 --min-lr 0.001 --lr-decay-style cosine --transformer-impl local
    --use-cpu-initialization --no-persist-layer-norm --no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-bias-swiglu-fusion
    --no-bias-dropout-fusion --no-rope-fusion --distributed-backend gloo --tokenizer-type NullTokenizer --vocab-size 99
    --make-vocab-size-divisible-by 32 --hidden-dropout 0 --attention-dropout 0 --save-interval 10 --clip-grad 0 --seq-length 16 --dist-ckpt-strictness log_all"""
MODEL = "--bf16 --hidden-size 32 --num-attention-heads 8 --ffn-hidden-size 48 --max-position-embeddings 16 --normalization RMSNorm --disable-bias-linear "
GPT = MODEL + "--num-layers 4 --swiglu --position-embedding-type rope --group-query-attention --num-query-groups 4 "
UNTIED = GPT + "--untie-embeddings-and-output-weights "
EXPERTS = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 24 "
HYBRID = MODEL + """--untie-embeddings-and-output-weights --squared-relu --position-embedding-type none --group-query-attention --num-query-groups 4
    --mamba-num-heads 8 --mamba-head-dim 8 --mamba-num-groups 4 --mamba-state-dim 8 """
SIGMOID = EXPERTS + """--moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-topk-scaling-factor 2.5
    --moe-shared-expert-intermediate-size 32 """
FURTHER = UNTIED + "--mtp-num-layers 2 "
# what a checkpoint does not say of how its experts are called
DISPATCH = "--moe-token-dispatcher-type allgather --moe-router-load-balancing-type none --moe-router-dtype fp32 "
FREE = "--use-distributed-optimizer --dist-ckpt-optim-fully-reshardable "  # any layout may load it
TP2, PP2, EP2 = "--tensor-model-parallel-size 2 ", "--pipeline-model-parallel-size 2 ", "--expert-model-parallel-size 2 "
TP4, EP4 = TP2.replace("2", "4"), EP2.replace("2", "4")
ETP1 = TP2 + "--sequence-parallel " + EP2 + "--expert-tensor-parallel-size 1 "

# name -> (model as its checkpoint tells the trainer, what it does not tell it, model_type in transformers or None: not converted, how it is saved, processes and layout,
# processes and layout of what loads it; the optimizer of experts is one of two, which EP 1 has not)
CASES = {
    "llama": (UNTIED + "--rotary-base 500000 ", "--use-rope-scaling ", "llama", FREE, 4, TP2 + PP2, 4, TP4),
    "qwen2, tied, buckets": (GPT + "--add-qkv-bias ", "--norm-epsilon 1e-3 ", "qwen2", "--use-distributed-optimizer --ckpt-fully-parallel-save ", 4, TP2, 4, TP2),
    "qwen3, tied, uneven virtual stages": (GPT.replace("layers 4", "layers 7") + "--kv-channels 8 ", "--qk-layernorm ", "qwen3", FREE, 4,
                                     TP2 + PP2 + "--pipeline-model-parallel-layout Ettt|t|tt|tL ", 2, TP2),
    "mistral, async": (UNTIED, "--window-size 4,0 ", "mistral", FREE + "--async-save --ckpt-fully-parallel-save --ckpt-assume-constant-structure ", 2, TP2, 2, PP2),
    "mixtral": (UNTIED + EXPERTS, "", "mixtral", FREE, 4, ETP1, 4, EP4),
    "qwen3_moe, one layer dense": (UNTIED + EXPERTS + "--moe-layer-freq [0,1,1,1] ", "--qk-layernorm ", "qwen3_moe", FREE,
                                   4, PP2 + EP2, 4, TP2 + "--sequence-parallel " + EP2),
    "qwen2_moe, a gate": (UNTIED + EXPERTS + "--moe-shared-expert-intermediate-size 32 --add-qkv-bias ", "--moe-shared-expert-gate --moe-router-pre-softmax ",
                          "qwen2_moe", FREE, 4, TP2 + "--sequence-parallel " + EP2, 4, EP4),
    "nemotron_h": (HYBRID + "PATTERN M*M- ", "", "nemotron_h", FREE, 4, TP4, 1, ""),
    "nemotron_h, latent experts": (HYBRID + SIGMOID + "--moe-latent-size 16 PATTERN ME*E ", "", "nemotron_h", FREE, 4, ETP1, 4, EP4),
    "further tokens": (FURTHER, "", None, FREE, 4, TP2 + PP2, 4, TP4),
    "llama, FSDP2": (UNTIED, "", "llama", "--use-torch-fsdp2 ", 2, "", 2, ""),
    "llama, a file a rank, virtual stages": (UNTIED, "", "llama", "--ckpt-format torch ", 4, TP2 + PP2 + "--num-layers-per-virtual-pipeline-stage 1 ", 4, TP4),
    "further tokens, a file a rank": (FURTHER, "", None, "--ckpt-format torch ", 4, TP2 + PP2, 4, TP4),
    "nemotron_h, latent experts, a file a rank": (HYBRID + SIGMOID + "--moe-latent-size 16 PATTERN ME*E ", "", "nemotron_h", "--ckpt-format torch ", 4, ETP1, 4, EP4),
    "mixtral, a file a rank": (UNTIED + EXPERTS, "", "mixtral", "--ckpt-format torch ", 4, ETP1, 4, PP2 + EP2),
}
SINCE = {"qwen3, tied, uneven virtual stages": (0, 13), "llama, FSDP2": (0, 14), "mistral, async": (0, 15), "qwen2_moe, a gate": (0, 16),
         "nemotron_h": (0, 16), "nemotron_h, latent experts": (0, 16), "nemotron_h, latent experts, a file a rank": (0, 16)}
LOGITS = ON_CPU + " --use-checkpoint-args --no-load-optim --no-load-rng --finetune --exit-on-missing-checkpoint "


def truth_of(path):
    with open(path + ".truth.json", encoding="utf-8") as f:
        return json.load(f)


def logits_agree(what, model, dist, path, work, more, local=False):
    """transformers' model and the trainer's of a torch_dist checkpoint"""
    tokens = [5 * i % 99 for i in range(16)]
    error = work("logits", 1, dict(argv=(LOGITS + more).split() + ["--load", dist], path=path, tokens=tokens, local=local))
    if error:
        bad.append("%s: --use-checkpoint-args: %s" % (what, error))
        return
    with torch.no_grad():
        theirs = model(torch.tensor([tokens]), use_cache=False).logits
    ours = torch.load(path + ".logits")[..., :theirs.shape[-1]]
    differ = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    if not differ < TOLERANCE:
        bad.append("%s: logits differ by %.3g of the largest" % (what, differ))


def halves_agree(what, model, path):
    """transformers' model and the trainer's under FSDP2, which saves ranges of their rows as no other layout does"""
    whole = torch.load(path + ".whole")
    for n, layer in enumerate(model.model.layers):
        if not torch.equal(torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]), whole["decoder.layers.%d.mlp.linear_fc1.weight" % n].float()):
            bad.append("%s: gate and up of layer %d are not those of the trainer" % (what, n))


def check_hf(what, path, dist, kind, want, work, more, local):
    """By way of transformers and back"""
    hf, back = path + ".hf", path + ".back"
    if not need_ok(what, "convert", "-q", "--strict", "--to", "hf", dist, hf):
        return
    model, info = transformers.AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32, output_loading_info=True)
    if model.config.model_type != kind or any(info.values()):
        bad.append("%s: transformers has a %s with %s" % (what, model.config.model_type, {k: v for k, v in info.items() if v}))
        return
    config = model.config  # what logits show little of or nothing
    said = {"epsilon": getattr(config, "rms_norm_eps", None) or config.layer_norm_epsilon, "positions": config.max_position_embeddings,
            "words": config.vocab_size, "tied": config.tie_word_embeddings}
    if said != want:
        bad.append("%s: config.json says %r, the trainer %r" % (what, said, want))
    model.set_experts_implementation("eager")
    if os.path.exists(path + ".whole"):
        halves_agree(what + ": convert --to hf", model, path)
    else:
        logits_agree(what + ": convert --to hf", model.eval(), dist, path, work, more, local)
    if need_ok(what, "convert", "-q", "--strict", "--to", "torch_dist", "--map", kind, hf, back):
        logits_agree(what + ": converted back", model, back, path, work, more)


def check(what, path, case, work):
    told, untold, kind, saved, world, layout, other_world, other = case
    hybrid, legacy, untold = "PATTERN" in told, "--ckpt-format torch" in saved, untold + (DISPATCH if EXPERTS in told else "")
    argv = (ON_CPU + " " + told.replace("PATTERN", work.pattern) + untold + saved).split()
    error = work("save", world, dict(argv=argv + layout.split() + ["--save", path], path=path, local=legacy))
    if error:
        bad.append("%s: the trainer does not save: %s" % (what, error))
        return
    truth, dist, pruned = truth_of(path), path + ".dist", path + ".pruned"
    after = truth_of(path + ".after")["tensors"]
    if sum(after[name] != truth["tensors"][name] for name in after) < len(after) / 2:
        bad.append("%s: the trainer's step changes nothing" % what)
    if not legacy:
        versions.same_tensors(what + ": ls", path, truth, bad)
    need_ok(what, "verify", path)
    if not need_ok(what, *(("convert", "-q", "--to", "torch_dist", "--merge-ranks") if legacy else ("reshard", "-q", "--files", "3")), path, dist):
        return
    if not legacy:
        versions.same_tensors(what + ": rewritten", dist, truth, bad)
    if need_ok(what, "prune", "-q", dist, pruned):
        versions.same_tensors(what + ": pruned", pruned, truth, bad, lambda name: not name.startswith(("optimizer.", "chained_")))
    argv = [w for w in argv if w not in ("--ckpt-format", "torch")] + other.split() + ["--exit-on-missing-checkpoint", "--load", dist]
    if not legacy or work.release < (0, 14):  # else the arguments say that there are no random states
        argv.append("--no-load-rng")
    error = work("load", other_world, dict(argv=argv, path=dist, local=legacy))
    if error:
        bad.append("%s: the trainer does not load it: %s" % (what, error))
    else:
        versions.same_truth(what + ": loaded", truth_of(dist), truth, bad)
        if "fsdp2" not in saved:  # there the trainer loses the step of its own checkpoints, too
            versions.same_truth(what + ": the next step", truth_of(dist + ".after"), truth_of(path + ".after"), bad)
    epsilon = float(argv[argv.index("--norm-epsilon") + 1]) if "--norm-epsilon" in argv else 1e-5
    want = {"epsilon": epsilon, "positions": 16, "words": 99, "tied": "--untie" not in told}
    if kind and not ("fsdp2" in saved and work.release < (0, 19)):  # those mix gate and up, which is refused
        check_hf(what, path, dist if legacy else path, kind, want, work, untold + (work.hybrid if hybrid else ""), legacy)


def main():
    folders = [p for p in os.environ.get("S2S_MEGATRON_LM", "").split(os.pathsep) if p]
    if not folders:
        print("no checkout of Megatron-LM in S2S_MEGATRON_LM")
        sys.exit(77)
    names, seen, checked = sys.argv[1:] or list(CASES), [], 0
    for folder in folders:
        release = versions.release_of(folder)
        with tempfile.TemporaryDirectory() as tmp, versions.Worker(folder, "megatron_lm_worker.py") as work:
            new, work.release = release >= (0, 17), release
            work.pattern = "--hybrid-layer-pattern" if new else "--is-hybrid-model --num-layers 4 --hybrid-override-pattern"
            work.hybrid = "" if new else "--is-hybrid-model"
            for n, name in enumerate(names):
                if release < SINCE.get(name, (0, 12)):
                    continue
                check("%d.%d %s" % (*release, name), os.path.join(tmp, str(n)), CASES[name], work)
                checked += 1
        seen.append("%d.%d" % release)
    print("\n".join(bad[:400]) if bad else "%d checkpoints of Megatron-LM %s as it has them" % (checked, ", ".join(seen)))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
