"""What Megatron-FSDP (in megatron-core 0.15 and later; 0.14 needs an older torch) saves as fsdp_dtensor, from 2 or 4 processes on a CPU: `s2s-ckpt ls --sha256` must list the
tensors as its own DTensors put themselves together, `convert --to hf` must give what the same weights saved as torch_dist give, and
torch.distributed.checkpoint must load what `reshard` made. Releases as in check_mcore_versions.py. Exit 0 ok, 1 different, 77 none is there."""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
except ImportError:
    sys.exit(77)
import ranks
from check_mcore_versions import DTYPES, environment, glob, here, listed, release_of, run, whole
from tool import program

# name -> (since which release it works there, processes, what is saved)
CASES = {
    "dense": ((0, 15), 2, dict()),
    "dense_tp2": ((0, 15), 4, dict(tp=2)),
    "experts_ep2": ((0, 16), 2, dict(kind="moe", ep=2)),
    "grouped_ep2": ((0, 16), 2, dict(kind="moe", ep=2, grouped=True)),
    "mamba": ((0, 16), 2, dict(kind="mamba")),
    "mamba_tp2": ((0, 17), 2, dict(kind="mamba", tp=2)),
}


# ---- under a release: one case ----

def arguments(c):
    import mcore_worker as worker
    said = dict(num_layers=c["layers"], hidden_size=32, num_attention_heads=8, num_query_groups=4, kv_channels=4, ffn_hidden_size=48, vocab_size=96,
                padded_vocab_size=96, tensor_model_parallel_size=c["tp"], activation=torch.nn.functional.gelu, params_dtype=torch.float32)
    return argparse.Namespace(**said)


def on_cpu():
    """Streams and events of no device; a CUDA device by its name is the CPU"""
    from unittest.mock import MagicMock
    import mcore_worker as worker
    for name in ("Stream", "Event", "stream", "current_stream"):
        setattr(torch.cuda, name, MagicMock())
    torch.cuda.get_rng_state, torch.cuda.set_rng_state = torch.get_rng_state, lambda state: None

    class Mode(worker.OnCpu):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.device and args and isinstance(args[0], str) and args[0].startswith("cuda"):
                return torch.device("cpu")
            return super().__torch_function__(func, types, args, kwargs)

    return Mode()


def leaves(state, path=""):
    for k, v in state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, (list, tuple)) else []:
        at = "%s.%s" % (path, k) if path else str(k)
        if isinstance(v, (dict, list, tuple)):
            yield from leaves(v, at)
        elif isinstance(v, torch.Tensor):
            yield at, v


def pieces(state):
    """What this rank holds: key -> (dtype, shape, offset, local tensor)"""
    from torch.distributed.tensor import DTensor
    found = {}
    for k, t in leaves(state):
        local = t.to_local() if isinstance(t, DTensor) else t
        at = list(t.__create_chunk_list__()[0].offsets) if isinstance(t, DTensor) else [0] * t.dim()
        found[k] = (t.dtype, list(t.shape), at, local.detach().clone())
    return found


def together(found):
    """The pieces of all ranks as whole tensors: dtype, shape, SHA-256; every element is some rank's"""
    truth = {}
    for key in {k for one in found for k in one}:
        parts = [one[key] for one in found if key in one]
        out, filled = torch.zeros(parts[0][1], dtype=parts[0][0]), torch.zeros(parts[0][1], dtype=torch.bool)
        for _, _, at, local in parts:
            box = tuple(slice(a, a + n) for a, n in zip(at, local.shape))
            out[box], filled[box] = local, True
        assert filled.all(), key
        truth[key] = [str(out.dtype), list(out.shape), hashlib.sha256(out.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()]
    return truth


def grouped_names(state):
    """As TEGroupedMLP calls what SequentialMLP has"""
    change = lambda k: re.sub(r"local_experts\.(\d+)\.(linear_fc\d\.weight)", r"\2\1", k)
    return {change(k) if isinstance(k, str) else k: v for k, v in state.items()}


def live_state(c, model, optimizer):
    """What Megatron's training script saves of a model and its optimizer"""
    import mcore_worker as worker
    from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import preprocess_state_dict_for_uneven_dtensor
    from megatron.core.transformer import fsdp_dtensor_checkpoint as fsdp
    state = {"model": model.state_dict_for_save_checkpoint()}
    kind = {"distrib_optim_sharding_type": "fsdp_dtensor"}
    more = worker.takes(worker.parts_of(optimizer)[0].sharded_state_dict, metadata=kind) or {"sharding_type": "fsdp_dtensor"}
    state["optimizer"] = optimizer.sharded_state_dict(state, **more)
    fsdp.handle_fp8_extra_state_case(state["model"])
    if c["kind"] != "mamba":
        both = fsdp.handle_swiglu_in_state_dict(model, state["model"], state["optimizer"])
        state["model"], state["optimizer"] = both or (state["model"], state["optimizer"])  # 0.15 changes them in place
    if c["kind"] == "moe":
        state["model"] = fsdp.handle_experts_in_state_dict(state["model"], **worker.takes(fsdp.handle_experts_in_state_dict, num_experts=4))
    if c["grouped"]:
        state["model"] = grouped_names(state["model"])
        for part in state["optimizer"].values() if "state" not in state["optimizer"] else [state["optimizer"]]:
            part["state"] = grouped_names(part["state"])
    preprocess_state_dict_for_uneven_dtensor(state)
    return dict(state, args=arguments(c), iteration=7, checkpoint_version=3.0)


def not_gated(config_of):
    def changed(c):
        config = config_of(c)
        config.gated_linear_unit, config.activation_func = False, lambda x: torch.nn.functional.relu(x).square()
        return config
    return changed


def save(c, rank):
    import mcore_worker as worker
    import torch.distributed.checkpoint as dcp
    from megatron.core import dist_checkpointing
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.module import Float16Module
    if c["kind"] == "mamba":  # dense layers as Nemotron-H has them
        worker.config_of = not_gated(worker.config_of)
    config, models = worker.build(c)
    for path in (c["path"] + ".dist", c["path"]):
        if rank == 0:
            os.makedirs(path)
    dist.barrier()
    worker.fill_models({"model": models[0].sharded_state_dict()})
    dist_checkpointing.save(dict(models[0].sharded_state_dict(), args=arguments(c), iteration=7, checkpoint_version=3.0), c["path"] + ".dist")
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True, use_megatron_fsdp=True,
                                        data_parallel_sharding_strategy="optim_grads_params")
    wrapper = mcore_fsdp_adapter.FullyShardedDataParallel
    if not isinstance(getattr(mcore_fsdp_adapter, "TELinear", object), type):
        mcore_fsdp_adapter.TELinear = type("TELinear", (), {})  # Transformer Engine's, of which no module is one
    model = wrapper(config, ddp, Float16Module(config, models[0]), **worker.takes(wrapper.__init__, device=torch.device("cpu")))
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=0.01, weight_decay=0.1, bf16=True, use_distributed_optimizer=True,
                                                       params_dtype=config.params_dtype, clip_grad=0.0), [model])
    fill_moments(optimizer, rank)
    state = live_state(c, model.module, optimizer)
    dcp.save(state, checkpoint_id=c["path"])
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, pieces({k: state[k] for k in ("model", "optimizer")}))
    if rank == 0:
        with open(c["path"] + ".truth.json", "w", encoding="utf-8") as f:
            json.dump(together(found), f)


def fill_moments(optimizer, rank):
    import mcore_worker as worker
    gen = torch.Generator().manual_seed(1000 + rank)
    for part in worker.parts_of(optimizer):
        for group in part.optimizer.param_groups:
            for p in group["params"]:
                for name in ("exp_avg", "exp_avg_sq"):
                    moment = part.optimizer.state[p].setdefault(name, torch.zeros_like(p))
                    local = moment.to_local()
                    with torch.no_grad():
                        local.copy_(torch.randn(local.shape, generator=gen))


def work(rank, cases):
    ranks.keep_results()
    from megatron.core import parallel_state as ps
    with on_cpu():
        for c in cases:
            ps.initialize_model_parallel(c["tp"], 1, None, expert_model_parallel_size=c["ep"], expert_tensor_parallel_size=c["tp"])
            torch.manual_seed(5)
            try:
                save(c, rank)
            except Exception as e:
                raise RuntimeError(c["path"]) from e
            dist.barrier()
            ps.destroy_model_parallel()


# ---- what s2s-ckpt makes of it ----

def check_loads(what, path, truth, bad):
    """torch.distributed.checkpoint reads what reshard wrote"""
    import torch.distributed.checkpoint as dcp
    dtypes = {str(t): t for t in (torch.float32, torch.bfloat16, torch.int64)}
    state = {k: torch.empty(shape, dtype=dtypes[dtype]) for k, (dtype, shape, _) in truth.items()}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    for k, t in state.items():
        if hashlib.sha256(t.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest() != truth[k][2]:
            bad.append("%s: torch loads another %s" % (what, k))


def check_saved(what, path, bad):
    with open(path + ".truth.json", encoding="utf-8") as f:
        truth = json.load(f)
    got, _, error = listed(path)
    if got is None:
        return bad.append("%s: %s" % (what, error))
    for k in sorted(set(got) | set(truth)):
        have = got.get(k) and [got[k]["dtype"], got[k]["shape"], got[k]["sha256"]]
        want = truth.get(k) and [DTYPES[truth[k][0]]] + truth[k][1:]
        if have != want:
            bad.append("%s: %s: %r, Megatron-FSDP has %r" % (what, k, have, want))
    for command in (["verify", path], ["reshard", "-q", "--files", "3", path, path + ".reshard"], ["diff", path, path + ".reshard"],
                    ["convert", "-q", "--to", "safetensors", path, path + ".safetensors"], ["diff", path, path + ".safetensors"],
                    ["prune", "-q", path, path + ".prune"],
                    *(["convert", "-q", "--strict", "--dtype", "f32", "--to", "hf", path + end, path + end + ".hf"] for end in ("", ".dist", ".prune")),
                    ["diff", path + ".hf", path + ".dist.hf"], ["diff", path + ".prune.hf", path + ".dist.hf"]):
        made = run(*command)
        if made.returncode:
            bad.append("%s: %s: %s" % (what, " ".join(command[:1]), (made.stderr + made.stdout).strip()[:1500]))
    if os.path.isdir(path + ".reshard"):
        check_loads(what, whole(path + ".reshard"), truth, bad)


def main():
    if sys.argv[1:2] == ["work"]:
        import mcore_worker as worker
        worker.start()
        import megatron.core.distributed.fsdp.mcore_fsdp_adapter  # noqa: F401
        import torch.distributed.checkpoint  # noqa: F401
        for world, cases in json.loads(sys.argv[2]):
            ranks.together(work, world, [{**worker.BASE, "bf16": True, "grouped": False, **c} for c in cases])
        return
    places = [p for p in os.environ.get("S2S_MCORE_VERSIONS", "").split(os.pathsep) if p]
    places = places or sorted(glob.glob(os.path.join(here, "../../../build/mcore/*"))) + [None]
    bad, n, seen = [], 0, []
    for folder in places:
        release = release_of(folder)
        if not release or release < (0, 15):
            continue
        with tempfile.TemporaryDirectory() as tmp:
            cases = [(CASES[name][1], dict(CASES[name][2], path=os.path.join(tmp, name))) for name in sys.argv[1:] or CASES if release >= CASES[name][0]]
            by_world = [(world, [c for w, c in cases if w == world]) for world in sorted({w for w, _ in cases})]
            made = subprocess.run([sys.executable, os.path.abspath(__file__), "work", json.dumps(by_world)], capture_output=True, text=True,
                                  env=environment(folder))
            if made.returncode:
                bad.append("%d.%d: %s" % (*release, made.stderr[-1500:]))
                continue
            for _, c in cases:
                check_saved("%d.%d %s" % (*release, os.path.basename(c["path"])), c["path"], bad)
            n += len(cases)
        seen.append("%d.%d" % release)
    if not seen and not bad:
        sys.exit(77)
    print("\n".join(bad[:400]) if bad else "%d checkpoints of Megatron-FSDP in megatron-core %s as they have them" % (n, ", ".join(seen)))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
