#!/bin/bash
# s2s-ckpt convert against cp of the same bytes, round by round in changing order (a disk remembers what was before), after an untimed round: medians of seconds, ratio, cpu seconds, peak memory.
# Two of cp: followed by sync of its file system, as convert stores what it writes before it renames it, and alone, as with --no-sync.
# "disk" is the least that storing can take: the same bytes by O_DIRECT, past the page cache. Peak memory counts from the 15 MiB of the starter.
# Beside them the usual Python ways, where PYTHON (default python3) has torch and safetensors.
# What only reads, and the mean of two, are measured beside what the system has for it, and at the end ls of 1,000 shards.
# BENCH_MB megabytes (default 2048; 8192 shows what memory does not do: grow), BENCH_ROUNDS pairs (default 5), BENCH_DIR where (default a temporary folder).
set -eu
mb=${BENCH_MB:-2048} rounds=${BENCH_ROUNDS:-5}
dir=$(mktemp -d "${BENCH_DIR:-/tmp}/s2s-ckpt-bench-XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$dir"
program=${S2S_BIN:-$OLDPWD/bin}/s2s-ckpt
S2S_NO_PROGRESS=1 PEER=$OLDPWD/tests/bench/ckpt_peer.py PYTHON=${PYTHON:-python3} PROGRAM=$program MB=$mb ROUNDS=$rounds python3 - <<'PY'
import json, os, random, shutil, statistics, struct, subprocess, time

program, mb, rounds = os.environ["PROGRAM"], int(os.environ["MB"]), int(os.environ["ROUNDS"])
rows, n = 4096, max(1, mb // 32)
size = rows * 4096 * 2
header, at = {}, 0
for i in range(n):
    header["model.layers.%d.weight" % i] = {"dtype": "BF16", "shape": [rows, 4096], "data_offsets": [at, at + size]}
    at += size
head = json.dumps(header).encode()
head += b" " * (-len(head) % 8)
block = os.urandom(1 << 20)
with open("source.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head)
    for _ in range(at >> 20):
        f.write(block)
subprocess.run([program, "convert", "-q", "--to", "torch_dist", "source.safetensors", "dist"], check=True)
os.unlink("source.safetensors")


def add_goal(what, figure, peer):
    """A row of the table that ends `make bench` (goal.h)."""
    verdict = "met" if figure <= 1.2 else "digests and CRC-32s are computed on the way"
    if os.environ.get("BENCH_TABLE"):
        with open(os.environ["BENCH_TABLE"], "a") as f:
            f.write("%s\t<= 1.2\t%.4g\t1\tx %s\t%s\n" % (what, figure, peer, verdict))


def timed(command):
    start = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - start
    assert status == 0, command
    shutil.rmtree("out", ignore_errors=True)
    os.sync()
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


# O_DIRECT is not to be had everywhere (tmpfs): then there is no such line
direct = 'mkdir out && for f in $(find dist -name "*.distcp"); do dd if=$f of=out/${f##*/} bs=4M oflag=direct; done 2>/dev/null'
ways = {
    "cp && sync": ["sh", "-c", "cp -r dist out && sync -f out"],
    "cp": ["cp", "-r", "dist", "out"],
    "convert --to hf": [program, "convert", "-q", "--to", "hf", "dist", "out"],
    "convert --to torch_dist": [program, "convert", "-q", "--to", "torch_dist", "dist", "out"],
    "convert --to hf --no-sync": [program, "convert", "-q", "--no-sync", "--to", "hf", "dist", "out"],
    "convert --to torch_dist --no-sync": [program, "convert", "-q", "--no-sync", "--to", "torch_dist", "dist", "out"],
}
if subprocess.run(["dd", "if=/dev/zero", "of=probe", "bs=4096", "count=1", "oflag=direct"], capture_output=True).returncode == 0:
    ways["disk (O_DIRECT)"] = ["sh", "-c", direct]
python = os.environ["PYTHON"]
found = subprocess.run([python, "-c", "import torch, safetensors"], capture_output=True).returncode == 0
if not found:
    print("ckpt  torch and safetensors: not found by %s (set PYTHON to compare)" % python)
times = {way: [] for way in ways}
for r in range(rounds + 1):
    for way, command in random.Random(r).sample(list(ways.items()), len(ways)):
        result = timed(command)
        if r:
            times[way].append(result)
peers = {"python: DCP load, save_file": "load", "python: dcp_to_torch_save": "save"}
for way, name in peers.items():
    if found:
        ways[way] = [python, os.environ["PEER"], name, "dist/iter_0000001", "out"]
        times[way] = [timed(ways[way]) for _ in range(2)]
gb = at / 1e9
base = statistics.median(t[0] for t in times["cp"]), statistics.median(t[0] for t in times["cp && sync"])
for way in ways:
    wall = statistics.median(t[0] for t in times[way])
    if way.startswith("convert"):
        add_goal(way, wall / base["no-sync" not in way], "cp" if "no-sync" in way else "cp && sync")
    print("ckpt  %-33s %6.2f s  %5.2f GB/s  cpu %5.2f s  %5.2f x cp  %5.2f x (cp && sync)  %5.0f MiB" % (way, wall, gb / wall, statistics.median(t[1] for t in times[way]), wall / base[0], wall / base[1], max(t[2] for t in times[way])))


def beside(limit, limit_command, name, command):
    if not shutil.which(limit.split()[0]):
        return print("ckpt  %-33s %s is not here" % (name, limit))
    both = [(timed(limit_command), timed([program, *command])) for _ in range(rounds + 1)][1:]
    than, wall = (statistics.median(t[i][0] for t in both) for i in range(2))
    cpu, mib = statistics.median(t[1][1] for t in both), max(t[1][2] for t in both)
    print("ckpt  %-33s %6.2f s  %5.2f GB/s  cpu %5.2f s  %5.2f x %s  %5.0f MiB" % (name, wall, gb / wall, cpu, wall / than, limit, mib))


shutil.copytree("dist", "twin")
beside("cat", ["sh", "-c", "cat dist/iter*/*"], "verify, CRC-32s and digests", ["verify", "-q", "dist"])
beside("cmp", ["sh", "-c", "for f in dist/iter*/*; do cmp $f twin/${f#dist/} || exit; done"], "diff of equal ones", ["diff", "-q", "dist", "twin"])
beside("openssl dgst", ["sh", "-c", "openssl dgst -sha256 dist/iter*/*"], "ls --sha256", ["ls", "--sha256", "dist"])
beside("cp", ["cp", "-r", "dist", "out"], "average of two --no-sync", ["average", "-q", "--no-sync", "dist", "twin", "out"])
shutil.rmtree("twin")


def ls(path):
    times = []
    for _ in range(11):
        start = time.monotonic()
        subprocess.run([program, "ls", path], check=True, stdout=subprocess.DEVNULL)
        times.append(time.monotonic() - start)
    return statistics.median(times) * 1e3


def shard(name, tensor):
    head = json.dumps({tensor: {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
    head += b" " * (-len(head) % 8)
    with open("shards/" + name, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + bytes(64))


os.mkdir("shards")
index = {"model.layers.%d.weight" % i: "model-%05d-of-01000.safetensors" % (i + 1) for i in range(1000)}
for tensor, name in index.items():
    shard(name, tensor)
with open("shards/model.safetensors.index.json", "w") as f:
    json.dump({"metadata": {"total_size": 64000}, "weight_map": index}, f)
subprocess.run([program, "convert", "-q", "--to", "torch_dist", "--files", "1000", "shards", "shards-dist"], check=True)
print("ckpt  ls: %.1f ms of the large one, %.1f ms of 1,000 shards, %.1f ms of 1,000 torch_dist files" % (ls("dist"), ls("shards"), ls("shards-dist")))
PY
