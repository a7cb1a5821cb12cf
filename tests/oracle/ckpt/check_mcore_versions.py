"""Checkpoints that several releases of megatron-core write from 1 to 4 processes: models of all kinds, every sharding type that the release's
distributed optimizer has, sync and async. `s2s-ckpt ls --sha256` must list what the models held, `verify` find nothing; what `reshard`,
`convert` and `prune` make of them is loaded by the same release, in another parallelism where that is possible, and compared again.
The releases: folders (as `pip install --no-deps --target FOLDER megatron-core==0.15.3` makes them) in S2S_MCORE_VERSIONS, colon-separated;
without it those in build/mcore/* and the one that Python itself has. Exit 0 ok, 1 different, 77 none is there."""
import glob
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile

from tool import finish, here, need, program

need("torch")

DTYPES = {"torch.float32": "F32", "torch.bfloat16": "BF16", "torch.float16": "F16", "torch.int64": "I64", "torch.int32": "I32", "torch.uint8": "U8",
          "torch.float64": "F64", "torch.bool": "BOOL"}
COMMON = "common_state/shard_0_1"  # where 0.20 keeps what is common.pt again in what we write
OPTIMIZED = dict(optimizer="distributed", bf16=True)
# name -> (processes, how it is saved, what is different when it is loaded; None: nothing loads it in one process more or less)
CASES = {
    "one process": (1, dict(tied=True), {}),
    "tp2": (2, dict(tp=2), dict(tp=1)),
    "layer norm, biases": (2, dict(gated=False), dict(tp=2)),
    "dp2, saved in parallel": (2, dict(parallel_save=True, metadata={"non_homogeneous_layers": True}), dict(tp=2)),
    "async": (2, dict(tp=2, asynchronous=True), dict(pp=2, tp=1)),
    "experts": (2, dict(kind="moe", ep=2), dict(ep=1, tp=2)),
    "some experts": (2, dict(kind="moe", ep=2, moe_layer_freq=[0, 1, 0, 1], prefix="module."), dict(ep=1, tp=2)),
    "mamba": (2, dict(kind="mamba", tp=2), dict(tp=1, pp=2)),
    "plain optimizer": (2, dict(tp=2, optimizer="plain", bf16=True), dict()),
    "pp2 tp2 tied": (4, dict(tp=2, pp=2, tied=True, asynchronous=True), dict(tp=4, pp=1)),
    "vpp2": (2, dict(pp=2, vpp=2), {}),
}
# sharding type -> releases that have it: from, until (not included)
SHARDING = {"fully_sharded_model_space": ((0, 12), (0, 16)), "dp_zero_gather_scatter": ((0, 12), (9, 9)),
            "dp_reshardable": ((0, 15), (9, 9)), "fully_reshardable": ((0, 15), (9, 9))}
FREE = ("fully_sharded_model_space", "fully_reshardable")  # another parallelism may load them
for sharding in SHARDING:
    free = sharding in FREE
    CASES["%s dp2" % sharding] = (2, dict(OPTIMIZED, sharding=sharding, parallel_save=True), dict(tp=2) if free else {})
    CASES["%s experts" % sharding] = (4, dict(OPTIMIZED, kind="moe", ep=2, sharding=sharding), {})
    CASES["%s mamba" % sharding] = (4, dict(OPTIMIZED, kind="mamba", tp=2, sharding=sharding), dict(tp=4) if free else {})
LATENT = dict(kind="moe", moe_layer_freq=[0, 1, 1, 1])  # experts of DeepSeek's kind of model
CASES.update({
    "uneven stages": (2, dict(pp=2, config=dict(num_layers_in_first_pipeline_stage=1)), dict(pp=1, tp=2, config={})),
    "embedding and loss as layers": (4, dict(pp=4, layers=6, config=dict(account_for_embedding_in_pipeline_split=True, account_for_loss_in_pipeline_split=True)),
                                     dict(pp=1, tp=4, config={})),
    "latent attention": (2, dict(LATENT, latent=dict(q_lora_rank=16), tp=2), dict(tp=1, pp=2)),
    "latent attention, no q": (2, dict(LATENT, latent=dict(q_lora_rank=None), tp=2), dict(tp=1, pp=2)),
    "more tokens": (2, dict(mtp=2, pp=2), dict(pp=1, tp=2)),
    "more tokens, experts, optimizer": (4, dict(OPTIMIZED, kind="moe", mtp=1, tp=2, ep=2, sharding="fully_reshardable"), dict(tp=1, ep=4)),
    "experts etp1": (4, dict(OPTIMIZED, kind="moe", tp=2, ep=2, etp=1, sharding="fully_reshardable"), dict(tp=1, ep=2, etp=None)),
    "experts etp1, buckets": (4, dict(OPTIMIZED, kind="moe", tp=2, ep=2, etp=1, sharding="dp_reshardable", bucket=1000), {}),
    "experts etp1, flattened": (4, dict(OPTIMIZED, kind="moe", tp=2, ep=2, etp=1, sharding="fully_sharded_model_space"), dict(tp=1, ep=2, etp=None)),
    "one tensor of experts": (2, dict(OPTIMIZED, kind="moe", ep=2, legacy_grouped=True, sharding="fully_reshardable"), {}),
    "one tensor of experts, flattened": (2, dict(OPTIMIZED, kind="moe", tp=2, legacy_grouped=True, sharding="fully_sharded_model_space"), {}),
    "vpp2 buckets": (4, dict(OPTIMIZED, pp=2, vpp=2, sharding="dp_reshardable"), {}),
    "vpp2 optimizer": (4, dict(OPTIMIZED, pp=2, vpp=2, tied=True, sharding="fully_reshardable"), {}),
    "uneven stages, optimizer": (4, dict(OPTIMIZED, pp=2, tp=2, tied=True, sharding="fully_reshardable", config=dict(num_layers_in_first_pipeline_stage=3)),
                                 dict(pp=1, config={})),
    "a plain optimizer of experts": (4, dict(kind="moe", ep=2, tp=2, optimizer="plain", bf16=True), {}),
    "a plain optimizer of floats": (2, dict(tp=2, optimizer="plain"), dict(tp=1)),
})
CASES.update({
    "frozen attention, buckets": (4, dict(OPTIMIZED, kind="moe", ep=2, pp=2, tied=True, frozen="attention", sharding="dp_reshardable"), {}),
    "frozen experts": (4, dict(OPTIMIZED, kind="moe", ep=2, tp=2, frozen="experts", sharding="fully_reshardable"), dict(tp=1, ep=4)),
    "singletons, optimizer": (4, dict(OPTIMIZED, kind="moe", ep=2, tp=2, sharding="fully_reshardable", metadata={"singleton_local_shards": True}), {}),
})
STAGES = {  # of no common size: the first and last of each rank, embedding and loss as layers, a layout in words
    "first and last": (3, dict(layers=9, pp=3, config=dict(num_layers_in_first_pipeline_stage=2, num_layers_in_last_pipeline_stage=3))),
    "first and last, vpp2": (3, dict(layers=8, pp=3, vpp=2, config=dict(num_layers_in_first_pipeline_stage=2, num_layers_in_last_pipeline_stage=4))),
    "embedding and loss, vpp2": (2, dict(layers=6, pp=2, vpp=2, config=dict(account_for_embedding_in_pipeline_split=True, account_for_loss_in_pipeline_split=True))),
    "layout": (2, dict(layers=7, pp=2, config=dict(pipeline_model_parallel_layout="Ettttt|ttL"))),
    "layout, vpp2": (2, dict(layers=7, pp=2, vpp=2, config=dict(pipeline_model_parallel_layout="Ettt|t|tt|tL"))),
    "layout, vpp3, empty": (4, dict(layers=5, pp=2, vpp=3, tp=2, config=dict(pipeline_model_parallel_layout="E|tt||t|tt|L"))),
    "layout, vpp2, tied": (4, dict(layers=5, pp=4, vpp=2, tied=True, config=dict(pipeline_model_parallel_layout="Et|t|t|t|t|||L"))),
    "layout, vpp2, experts": (4, dict(layers=5, pp=2, vpp=2, kind="moe", ep=2, moe_layer_freq=[0, 1, 1, 0, 1], config=dict(pipeline_model_parallel_layout="Ett|t|t|tL"))),
    "layout, vpp2, more tokens": (2, dict(layers=5, pp=2, vpp=2, mtp=1, config=dict(pipeline_model_parallel_layout="Ett|t|tt|mL"))),
}
for i, (name, (world, how)) in enumerate(STAGES.items()):
    flat = dict(pp=1, vpp=None, tp=2, config={}) if world == 2 else dict(pp=1, vpp=None, tp=1, config={})
    sharding = ("fully_reshardable", "dp_reshardable")[i % 2]  # megatron-core cannot save the latter with MTP
    CASES[name] = (world, how, flat)
    CASES["%s, %s" % (name, sharding)] = (world, dict(OPTIMIZED, **how, sharding=sharding), flat if sharding in FREE else {})
CASES["singletons"] = (2, dict(kind="moe", ep=2, metadata={"singleton_local_shards": True}), dict(ep=1))


def run(*args):
    return subprocess.run([program, *args], capture_output=True, text=True)


def release_of(folder):
    """(major, minor) of the megatron-core in a folder, or of Python's own"""
    if folder is None:
        found = importlib.util.find_spec("megatron")
        folder = os.path.dirname(list(found.submodule_search_locations)[0]) if found else ""
    try:
        with open(os.path.join(folder, "megatron/core/package_info.py"), encoding="utf-8") as f:
            said = dict(re.findall(r"^(MAJOR|MINOR) = (\d+)", f.read(), re.M))
        return int(said["MAJOR"]), int(said["MINOR"])
    except (OSError, KeyError):
        return None


def environment(folder):
    return dict(os.environ, PYTHONWARNINGS="ignore", TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1", TORCH_CPP_LOG_LEVEL="ERROR", PYTHONPATH=os.pathsep.join([folder] if folder else []))


class Worker:
    """A process that has imported a release and answers requests to save and load."""

    def __init__(self, folder, script="mcore_worker.py"):
        self.said = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([sys.executable, os.path.join(here, script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.said, text=True, env=environment(folder))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()
        self.said.close()

    def __call__(self, *request):
        """None, or what went wrong"""
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            self.said.seek(0)
            return "the process that works for it has ended: %s" % self.said.read()[-1500:]


def listed(path):
    out = run("ls", "--json", "--sha256", path)
    if out.returncode:
        return None, None, out.stderr.strip()
    got = json.loads(out.stdout)
    return {t["name"]: t for t in got["tensors"]}, {o["name"]: o for o in got["objects"]}, ""


def same_tensors(what, path, truth, bad, only=lambda name: True):
    got, objects, error = listed(path)
    if got is None:
        bad.append("%s: %s" % (what, error))
        return {}
    want = {k: v for k, v in truth["tensors"].items() if only(k)}
    for k in sorted(set(got) | set(want)):
        have = got.get(k)
        if have and "orig_shape" in have:
            have = [have["dtype"], have["orig_shape"], have["orig_sha256"]]
        elif have:
            have = [have["dtype"], have["shape"], have["sha256"]]
        w = [DTYPES[want[k][0]]] + want[k][1:] if k in want else None
        if have != w:
            bad.append("%s: %s: %r, megatron-core has %r" % (what, k, have, w))
    return objects


def same_truth(what, got, want, bad):
    got, want = got["unpadded"], want["unpadded"]
    for k in sorted(set(got) | set(want)):
        if got.get(k) != want.get(k):
            bad.append("%s: %s: megatron-core loads %r, saved %r" % (what, k, got.get(k), want.get(k)))


def is_of_model(name):
    return not name.startswith(("optimizer.", "chained_"))


def check_saved(what, path, bad):
    """what s2s-ckpt says of a checkpoint, and what it makes of it"""
    with open(path + ".truth.json", encoding="utf-8") as f:
        truth = json.load(f)
    objects = same_tensors("%s: ls" % what, path, truth, bad)
    differ = set(objects) ^ set(truth["objects"])
    if differ - {COMMON}:
        bad.append("%s: objects differ: %s" % (what, sorted(differ)))
    everything = lambda name: True
    for command, out in ((["verify", "--strict"], None), (["reshard", "-q", "--files", "3"], ".reshard"), (["convert", "-q", "--to", "torch_dist"], ".convert"),
                         (["prune", "-q"], ".prune"), (["convert", "-q", "--to", "safetensors"], ".safetensors")):
        made = run(*command, path, *([path + out] if out else []))
        if command[0] == "reshard" and "dp_zero_gather_scatter" in what:
            if made.returncode != 1 or "dp_zero_gather_scatter" not in made.stderr:
                bad.append("%s: reshard is not refused by name" % what)
        elif out == ".safetensors" and any(t[0] == "torch.complex128" for t in truth["tensors"].values()):
            if made.returncode != 1 or "safetensors lacks" not in made.stderr:
                bad.append("%s: %s: what safetensors has not is not refused" % (what, command[0]))
        elif made.returncode:
            bad.append("%s: %s: %s" % (what, command[0], made.stderr.strip()))
        elif out in (".reshard", ".convert"):
            after = same_tensors("%s: %s" % (what, command[0]), path + out, truth, bad)
            bad.extend("%s: %s: object %s changed" % (what, command[0], k) for k in objects if after.get(k) != objects[k] and k != COMMON)
        elif out:
            same_tensors("%s: %s" % (what, out), path + out, truth, bad, is_of_model if out == ".prune" else everything)
    return truth


def check_release(work, release, names, tmp, bad):
    sets = {}
    for name in names:
        world, how, other = CASES[name]
        since, until = SHARDING.get(how.get("sharding"), ((0, 12), (9, 9)))
        if name.startswith("singletons"):
            since = (0, 14)
        if how.get("ep", 1) > 1 and how.get("tp", 1) > 1:  # before, only with layers of Transformer Engine
            since = max(since, (0, 15))
        if "pipeline_model_parallel_layout" in how.get("config", {}):
            since = max(since, (0, 14) if how.get("mtp") else (0, 13))
        if how.get("legacy_grouped"):
            until = min(until, (0, 17))
        if since <= release < until:
            sets.setdefault(world, []).append((name, dict(how, path=os.path.join(tmp, name.replace(" ", "_"))), other))
    n = 0
    for world, cases in sorted(sets.items()):
        error = work("save", world, [how for _, how, _ in cases])
        if error:
            bad.append("%d.%d: %d processes: %s" % (*release, world, error))
            continue
        again, truths = [], {}
        for name, how, other in cases:
            what = "%d.%d %s" % (*release, name)
            truths[how["path"]] = check_saved(what, how["path"], bad)
            again.append((what, how["path"], {**how, **other, "rng": not other}))
        bare = dict(optimizer=None, sharding=None, rng=False)
        for out in (".reshard", ".convert", ".prune"):
            there = [(what, path, dict(how, path=whole(path + out), **(bare if out == ".prune" else {}))) for what, path, how in again if os.path.isdir(path + out)]
            error = work("load", world, [how for _, _, how in there])
            if error:
                bad.append("%d.%d: %d processes, what was %s: %s" % (*release, world, out[1:], error))
                continue
            for what, path, how in there:
                with open(how["path"] + ".truth.json", encoding="utf-8") as f:
                    loaded = json.load(f)
                want = {k: v for k, v in truths[path]["unpadded"].items() if out != ".prune" or is_of_model(k)}
                same_truth("%s%s" % (what, out), loaded, {"unpadded": want}, bad)
        n += len(cases)
    return n


def whole(path):
    inside = glob.glob(os.path.join(path, "iter_*"))
    return inside[0] if inside else path


def releases():
    """Those that are there: [(folder or None for Python's own, (major, minor))]"""
    places = [p for p in os.environ.get("S2S_MCORE_VERSIONS", "").split(os.pathsep) if p]
    places = places or sorted(glob.glob(os.path.join(here, "../../../build/mcore/*"))) + [None]
    return [(p, release_of(p)) for p in places if release_of(p)]


def main():
    names, bad, n, seen = sys.argv[1:] or list(CASES), [], 0, []
    for folder, release in releases():
        with tempfile.TemporaryDirectory() as tmp, Worker(folder) as work:
            n += check_release(work, release, names, tmp, bad)
        seen.append("%d.%d" % release)
    finish(seen, bad, "%d checkpoints of megatron-core %%s" % n)


if __name__ == "__main__":
    main()
