"""The peer of the packing benchmark: NeMo-RL's packers, in Python, on lengths like those of pack_bench.c.

    python peer_pack.py        MIRROR: a folder with a bare repository NVIDIA-NeMo+RL/repo, or a checkout NVIDIA-NeMo+RL

Prints a line a packer: lengths per second and fill. Fewer lengths than ours: two of the packers are quadratic.
"""
import os
import random
import subprocess
import sys
import time

CAPACITY, N = 4096, 20000


def algorithms():
    try:
        from nemo_rl.data.packing import algorithms as module
        return vars(module)
    except ImportError:
        pass
    folder, path = os.path.join(os.environ.get("MIRROR", ""), "NVIDIA-NeMo+RL"), "nemo_rl/data/packing/algorithms.py"
    if os.path.exists(os.path.join(folder, path)):
        text = open(os.path.join(folder, path)).read()
    else:
        text = subprocess.run(["git", "--git-dir", os.path.join(folder, "repo"), "show", "HEAD:" + path],
                              capture_output=True, text=True).stdout
    scope = {"__name__": "nemo_rl_packing"}
    exec(compile(text, path, "exec"), scope)
    return scope if "get_packer" in scope else None


def main():
    scope = algorithms()
    if scope is None:
        sys.exit("no NeMo-RL here")
    rng = random.Random(42)
    speech = [max(1, min(CAPACITY, int(140 * rng.lognormvariate(0, .6)))) for _ in range(N)]
    mixed = [x if i % 2 else rng.randint(1, CAPACITY) for i, x in enumerate(speech)]
    for what, lens in ("speech", speech), ("mixed", mixed):
        for name in "CONCATENATIVE", "FIRST_FIT_DECREASING", "MODIFIED_FIRST_FIT_DECREASING":
            packer = scope["get_packer"](name, CAPACITY)
            start = time.perf_counter()
            bins = packer.pack(lens)
            seconds = time.perf_counter() - start
            print(f"NeMo-RL {name.lower():<30} {what:<6} {N / seconds / 1e6:8.3f} M lengths/s  "
                  f"fill {sum(lens) / len(bins) / CAPACITY:.5f}")


if __name__ == "__main__":
    main()
