"""Checkpoints of random models in random layouts that several releases of megatron-core write from 1 to 4 processes: dense, of experts, with
Mamba layers, with further tokens; keys of stacked layers, of each layer, of single experts; every optimizer and sharding type, ways to save.
Held to what check_mcore_versions.py holds its own to, and loaded in another random layout wherever megatron-core has one.
check_mcore_random.py [SEEDS [FIRST]]: so many a release (8). Releases as in check_mcore_versions.py. Exit 0 ok, 1 different, 77 none is there."""
import random
import sys
import tempfile

import check_mcore_versions as versions
from tool import finish


def layout(r, world, release, c):
    """How many ranks along each axis"""
    while True:
        tp, pp = r.choice([1, 2, 4]), r.choice([1, 1, 2, 4])
        if tp * pp > world or c["kind"] == "mamba" and c["config"]["mamba_num_groups"] % tp or c["layers"] % pp or c.get("mtp") and pp == 4:
            continue
        ep = r.choice([1, 2]) if c["kind"] == "moe" else 1
        etp = r.choice([None, 1]) if ep > 1 and tp > 1 else None
        dense = tp if etp is None else etp
        if world % (dense * ep * pp) or world % (tp * pp) or ep > 1 and tp > 1 and release < (0, 15):
            continue
        vpp = r.choice([None, 2]) if pp == 2 and c["kind"] == "gpt" and c["layers"] == 4 and not c.get("mtp") else None
        return dict(tp=tp, pp=pp, ep=ep, etp=etp, vpp=vpp)


def model(r, release):
    kind = r.choice(["gpt", "gpt", "moe", "moe", "mamba"])
    c = dict(kind=kind, layers=4, tied=r.random() < .4, gated=r.random() < .7, vocab=r.choice([96, 128, 160]))
    more = c["config"] = dict(num_query_groups=r.choice([4, 8]), qk_layernorm=kind != "mamba" and r.random() < .5, add_qkv_bias=r.random() < .3)
    if kind == "mamba":
        groups = r.choice([2, 4, 8])
        more.update(mamba_num_groups=groups, mamba_num_heads=r.choice([8, 16]), mamba_state_dim=r.choice([4, 8]))
        c.update(pattern=r.choice(["M*-M", "MM*-", "-*MM", "M-M-", "MMMM"]), gated=r.random() < .3)
    elif r.random() < .2:
        c["mtp"] = r.choice([1, 2])
    if kind == "moe":
        c["gated"] = True  # those of others have biases, which not every layout takes
        more.update(moe_router_enable_expert_bias=r.random() < .4, moe_router_score_function="sigmoid")
        c["moe_layer_freq"] = r.choice([None, [0, 1, 1, 1], [0, 1, 0, 1]])
        if release >= (0, 16):
            more["moe_shared_expert_gate"] = r.random() < .3
    if c.get("mtp") and kind == "moe" and c["moe_layer_freq"]:
        c["moe_layer_freq"] = [0, 1, 1, 1]
    return c


def saving(r, release, c):
    """The optimizer, and how it is saved"""
    known = [s for s, (since, until) in versions.SHARDING.items() if since <= release < until]
    if r.random() < .6:
        c.update(versions.OPTIMIZED, sharding=r.choice(known))
        if c["sharding"] == "dp_reshardable" and r.random() < .5:
            c["bucket"] = r.choice([1000, 5000])
    elif r.random() < .4:
        c.update(optimizer="plain", bf16=r.random() < .5)
    metadata = c["metadata"] = {}
    if r.random() < .4 and c["kind"] != "mamba":
        metadata["non_homogeneous_layers"] = True
    if r.random() < .3 and release >= (0, 14) and c.get("sharding") in (None, "fully_reshardable"):
        metadata["singleton_local_shards"] = True
    if r.random() < .5 and release >= (0, 14):
        metadata["chained_optim_avoid_prefix"] = True
    c["prefix"] = r.choice(["", "", "module.", "language_model."])
    c.update(parallel_save=r.random() < .4, asynchronous=r.random() < .3)
    if r.random() < .6:
        c["strategy"] = dict(thread_count=r.choice([2, 3]), separation_hint=r.choice([None, "optimizer.state", "decoder"]), cached_metadata=r.random() < .5)


def case(seed, release):
    """(processes, how it is saved, what is different when it is loaded)"""
    r = random.Random("mcore %d" % seed)
    c, world = model(r, release), r.choice([1, 2, 2, 4])
    c.update(layout(r, world, release, c))
    saving(r, release, c)
    free = not c.get("optimizer") or c.get("sharding") in versions.FREE or c["optimizer"] == "plain" and not c["bf16"]
    if not free or c["tied"] and c["pp"] > 1 and c.get("optimizer"):
        return world, c, {}
    other = layout(r, world, release, c)
    if c.get("optimizer") and (other["ep"] > 1) != (c["ep"] > 1):  # of experts it has one of its own then
        other = {}
    return world, c, other if other != {k: c[k] for k in other} else {}


def main():
    n, first = [int(a) for a in sys.argv[1:3] + ["8", "0"][len(sys.argv) - 1:]]
    bad, done, seen = [], 0, []
    for folder, release in versions.releases():
        for seed in range(first, first + n):
            of = case(seed, release)
            name = "seed %d %s" % (seed, of[1].get("sharding") or "")
            versions.CASES[name] = of
            with tempfile.TemporaryDirectory() as tmp, versions.Worker(folder) as work:
                wrong = []
                done += versions.check_release(work, release, [name], tmp, wrong)
                bad += wrong[:8] + ["%d wrong: %r" % (len(wrong), of)] if wrong else []
        seen.append("%d.%d" % release)
    finish(seen, bad, "%d checkpoints of megatron-core %%s" % done)


if __name__ == "__main__":
    main()
