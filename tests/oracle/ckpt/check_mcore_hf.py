"""The names that several releases of megatron-core give one model's tensors become the same Hugging Face model: layers on an axis, numbered, every
expert and half by itself (content metadata non_homogeneous_layers, singleton_local_shards). Random tiny models of transformers are loaded by
each release (through what `convert --to torch_dist --map` makes), saved by it in each of these forms, and `convert --to hf` must give back every
tensor bit for bit, also by way of --layers.

check_mcore_hf.py [MODELS [FAMILY..]]: so many a family (2). Releases as in check_mcore_versions.py. Exit 0 ok, 1 different, 77 none is there or a
library is absent."""
import glob
import os
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
from tool import bad, compare, need, need_ok, run

need("safetensors", "torch", "transformers")
import check_mcore_versions as versions  # noqa: E402

FORMS = {"by default": {}, "numbered": {"non_homogeneous_layers": True}, "singletons": {"singleton_local_shards": True}}
SINCE = {"nemotron_h": (0, 16), "qwen2_moe": (0, 16), "mixtral": (0, 16)}  # latent experts, a gate of shared ones, windows
FAMILIES = ["llama", "qwen3", "qwen2_moe", "qwen3_moe", "mixtral", "nemotron_h"]


def tensors_of(folder):
    from safetensors.torch import load_file
    return {k: t for f in glob.glob(os.path.join(folder, "*.safetensors")) for k, t in load_file(f).items()}


def save(model, metadata, path):
    import mcore_worker
    from megatron.core import dist_checkpointing, parallel_state
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    state = {"model": model.sharded_state_dict(metadata={**metadata, "dp_cp_group": group}), "iteration": 7, "checkpoint_version": 3.0}
    os.makedirs(path)
    strategy = dist_checkpointing.serialization.get_default_save_sharded_strategy("torch_dist")
    dist_checkpointing.save(state, path, strategy, **mcore_worker.takes(dist_checkpointing.save, content_metadata=metadata, async_strategy="mcore"))


def same(what, path, config, want):
    out = path + ".hf"
    if need_ok(what, "convert", "-q", "--strict", "--to", "hf", "--config", config, path, out):
        compare(what, tensors_of(out), want)


def check(what, family, seed, tmp, forms):
    import families
    import mcore_cpu
    import mcore_worker
    model, map_name = families.make(family, seed)
    source, dist = os.path.join(tmp, "hf"), os.path.join(tmp, "dist")
    model.save_pretrained(source)
    if not need_ok(what, "convert", "-q", "--strict", "--to", "torch_dist", "--map", map_name, source, dist):
        return
    config, want = os.path.join(source, "config.json"), tensors_of(source)
    with mcore_worker.OnCpu():
        megatron = mcore_cpu.builders[family](model.config)
        mcore_cpu.load(megatron, versions.whole(dist))
        for form in forms:
            path = os.path.join(tmp, form.replace(" ", "_"))
            save(megatron, FORMS[form], path)
            need_ok(what, "verify", "-q", "--strict", path)
            same("%s %s" % (what, form), path, config, want)
            for layers in ("stacked", "numbered"):
                other = "%s.%s" % (path, layers)
                p = run("convert", "-q", "--to", "torch_dist", "--layers", layers, path, other)
                if p.returncode == 0:
                    same("%s %s %s" % (what, form, layers), other, config, want)
                elif "layers that differ cannot lie on an axis" not in p.stderr:
                    bad.append("%s %s: --layers %s: %s" % (what, form, layers, p.stderr.strip()))


def of_release(release, n, names):
    """In a process that has this release"""
    import families  # noqa: F401 (transformers, before there are stand-ins for what it looks for)
    import mcore_cpu
    import mcore_worker
    mcore_worker.start()
    mcore_cpu.start()
    import ranks
    ranks.keep_results()
    forms = [f for f in FORMS if f != "singletons" or release >= (0, 14)]
    for family in names:
        if release < SINCE.get(family, (0, 12)):
            continue
        for seed in range(n):
            with tempfile.TemporaryDirectory() as tmp:
                check("%d.%d %s %d" % (*release, family, seed), family, seed, tmp, forms)
    print("\n".join(bad[:100]))
    return bool(bad)


def main():
    n, names, status, seen = sys.argv[1:2] or ["2"], sys.argv[2:] or FAMILIES, 0, []
    if os.environ.get("S2S_MCORE_RELEASE"):
        return of_release(tuple(int(x) for x in os.environ["S2S_MCORE_RELEASE"].split(".")), int(n[0]), names)
    for folder, release in versions.releases():
        told = "%d.%d" % release
        p = subprocess.run([sys.executable, __file__, *n, *names], env=dict(versions.environment(folder), S2S_MCORE_RELEASE=told), capture_output=True, text=True)
        if p.returncode:
            print("%s: %s%s" % (told, p.stdout.strip(), p.stderr.strip()[-1500:] if p.returncode != 1 or not p.stdout.strip() else ""))
            status = 1
        seen.append(told)
    if not seen:
        return 77
    if not status:
        print("%s models a family by each megatron-core of %s as transformers has them" % (n[0], ", ".join(seen)))
    return status


if __name__ == "__main__":
    sys.exit(main())
