"""Rank folders (mp_rank_XX) with an optimizer that is not distributed, and torch_dist, of the same megatron-core model after a step of Adam,
saved by the same processes: what `convert --merge-ranks` makes of the folders must be, bit for bit and with the same groups of parameters,
what Megatron-Core's own sharded save holds, and Megatron-Core loads it. Exit 0 ok, 1 different, 77 megatron-core is absent."""
import argparse
import glob
import logging
import os
import subprocess
import sys
import tempfile
import warnings

import check_ranks as models  # of them, saved likewise
from check_ranks import BASE, compare, ps, stored
from mcore_worker import OnCpu
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, optimizer as optimizers
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.validation import StrictHandling
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer.module import Float16Module
from ranks import together
from tool import program

logging.getLogger("megatron").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
MOE = dict(num_moe_experts=4)
# odd: Megatron-Core may be unable to load what it saves itself (it looks at the wrong groups, or at the common state of a rank without experts)
CASES = {
    "one rank": dict(), "tp2": dict(tp=2), "tp2 pp2 tied": dict(tp=2, pp=2, tied=True), "tp2 pp2 vpp2": dict(tp=2, pp=2, vpp=2),
    "layer norm, biases, no gate": dict(tp=2, normalization="LayerNorm", add_bias_linear=True, gated=False),
    "norms of q and k": dict(tp=2, qk_layernorm=True), "norms of q and k decay": dict(tp=2, qk_layernorm=True, how=dict(apply_wd_to_qk_layernorm=True)),
    "a learning rate of its own": dict(tp=2, odd=True, how=dict(decoupled_lr=0.5, decoupled_min_lr=0.1)),
    "a learning rate of its own, tied": dict(tp=2, odd=True, pp=2, tied=True, how=dict(decoupled_lr=0.5, decoupled_min_lr=0.1)),
    "experts": dict(**MOE), "ep2": dict(ep=2, **MOE), "tp2 ep2 etp1": dict(tp=2, ep=2, etp=1, **MOE),
    "tp2 pp2 ep2": dict(tp=2, pp=2, ep=2, moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid", **MOE),
    "pp2, experts in one stage": dict(pp=2, odd=True, ep=2, num_moe_experts=2, moe_layer_freq=[0, 0, 1, 1]),
    "tp2 pp2, two tokens more": dict(tp=2, pp=2, mtp_num_layers=2),
    "hybrid tp2": dict(tp=2, hybrid="M*-ME"), "hybrid tp2 pp2": dict(tp=2, pp=2, hybrid="M*-M"),
    "hybrid tp2 ep2 etp1": dict(tp=2, ep=2, etp=1, hybrid="ME*E"),
}

BOTH = ("tp2 pp2 tied", "ep2", "tp2 pp2 ep2", "pp2, experts in one stage", "hybrid tp2 ep2 etp1")


class FusedAdam(torch.optim.Optimizer):
    """Counts steps in the group, as Apex's and Transformer Engine's; of bf16, where torch's own is of float32"""

    def __init__(self, params, lr, betas, eps, weight_decay, adam_w_mode=True):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, bias_correction=True))

    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                state = self.state[p]
                for i, name in enumerate(("exp_avg", "exp_avg_sq")):
                    state[name] = state.get(name, torch.zeros_like(p)).lerp(p.grad ** (i + 1), 1 - group["betas"][i])
                with torch.no_grad():
                    p.sub_(group["lr"] * (state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"]) + group["weight_decay"] * p))


def make(c):
    """The models, as data-parallel wrappers too, and the optimizer"""
    inner = models.start(c)
    config = inner[0].config
    config.bf16 = c["bf16"]
    outer = inner
    if c["bf16"]:
        outer = [Float16Module(config, m.bfloat16()) for m in inner]
    outer = [DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=False), m) for m in outer]
    optimizers.Adam = FusedAdam
    optimizers.USING_PYTORCH_OPTIMIZER = not c["bf16"]
    how = optimizers.OptimizerConfig(optimizer="adam", lr=0.01, weight_decay=0.1, bf16=c["bf16"], clip_grad=0.0,
                                     params_dtype=torch.bfloat16 if c["bf16"] else torch.float32, **c.get("how", {}))
    return inner, optimizers.get_megatron_optimizer(how, outer)


def step(inner, optimizer):
    """One step; tensors that several ranks hold get the same gradient in each."""
    for m in inner:
        for item in models.wanted(m).values():
            if isinstance(item, (ShardedTensor, ShardedTensorFactory)) and hasattr(item.data, "main_grad"):
                built = item.build() if isinstance(item, ShardedTensorFactory) else item
                first = built if isinstance(built, ShardedTensor) else next(iter(nested_values(built)))
                item.data.main_grad.copy_(torch.randn(item.data.shape, generator=models.generator("%s %s" % (first.key, first.global_offset), 9)))
    assert optimizer.step()[0]



def sharded_state(inner, optimizer, loading=False):
    state = {"model%d" % i: models.wanted(m) for i, m in enumerate(inner)}
    state["optimizer"] = optimizer.sharded_state_dict(state, is_loading=loading)
    return state


def save(rank, folder, c):
    with OnCpu():
        inner, optimizer = make(c)
        step(inner, optimizer)
        models.save_rank(inner, folder, c, {"optimizer": optimizer.state_dict()})
        os.makedirs(folder + "/dist", exist_ok=True)
        dist.barrier()
        dist_checkpointing.save(sharded_state(inner, optimizer), folder + "/dist")


def load(rank, folder, c):
    """What we wrote, with every name wanted and every name taken; the next step is that of the optimizer that was saved."""
    with OnCpu():
        inner, optimizer = make(c)
        step(inner, optimizer)
        want = plain(optimizer.state_dict())
        ps.destroy_model_parallel()
        models.filesystem_async._results_queue = None
        other, fresh = make(c)
        path = (glob.glob(folder + "/iter_*") + [folder + "/dist"])[0]
        state = dist_checkpointing.load(sharded_state(other, fresh, True), path, strict=StrictHandling.RAISE_ALL)
        for i, m in enumerate(other):
            m.load_state_dict(state["model%d" % i])
        fresh.load_state_dict(state["optimizer"])
        assert plain(fresh.state_dict()) == want, "another state of the optimizer"
        for a in (optimizer, fresh):
            step(inner if a is optimizer else other, a)
        for a, b in zip(inner, other):
            for (name, x), y in zip(a.named_parameters(), b.parameters()):
                assert torch.equal(x, y), name + " after the next step"


def plain(x):
    """Tensors as what can be compared, with their dtype"""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(plain(v) for v in x)
    return (str(x.dtype), x.tolist()) if isinstance(x, torch.Tensor) else x


def common_of(folder):
    return plain(torch.load(os.path.join(folder, "common.pt"), weights_only=False).get("optimizer"))


def check(what, c, bad):
    c = {**BASE, **c}
    spawn = lambda do, folder: together(do, c["pp"] * max(c["tp"], c["ep"] * c.get("etp", c["tp"])), folder, c)
    with tempfile.TemporaryDirectory() as tmp:
        spawn(save, tmp)
        out = os.path.join(tmp, "out")
        run = subprocess.run([program, "convert", "--to", "torch_dist", "--merge-ranks", tmp + "/mp", out], capture_output=True, text=True)
        if run.returncode or "left out" in run.stderr:
            bad.append("%s: %s" % (what, run.stderr.strip()))
            return
        path = glob.glob(out + "/iter_*")[0]
        compare(what, stored(path), stored(tmp + "/dist"), bad)
        got, want = common_of(path), with_steps(common_of(tmp + "/dist"))
        if got != want:
            bad.append("%s: common state %s, not %s" % (what, got, want))
        why = loads(spawn, out)
        if why and not (c.get("odd") and loads(spawn, tmp)):
            bad.append("%s: Megatron-Core does not load it: %s" % (what, why))


def with_steps(common):
    """Megatron-Core saves the common state of rank 0, which has made no step of the experts that are in later stages alone: they were in step"""
    for part in common.values() if 0 in common else []:
        if part.get("state") == {}:
            part["state"] = common[0]["state"]
    return common


def loads(spawn, folder):
    """None, or why Megatron-Core does not"""
    try:
        spawn(load, folder)
    except torch.multiprocessing.ProcessRaisedException as e:
        return str(e)[-3000:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", default=list(CASES))
    bad, n = [], 0
    for what in parser.parse_args().cases:
        for half in (False, True) if what in BOTH else (n % 2 == 1,):
            check("%s, %s" % (what, "bf16" if half else "fp32"), {**CASES[what], "bf16": half}, bad)
            n += 1
    print("\n".join(bad) if bad else "%d optimizers: merged rank folders are what Megatron-Core saves" % n)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
