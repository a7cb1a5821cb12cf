#!/bin/bash
# s2s-ckpt convert against cp of the same bytes, in pairs, after an untimed round: medians of seconds, ratio, cpu seconds, peak memory.
# cp is followed by sync of its file system, because convert syncs what it writes before it renames it.
# BENCH_MB megabytes (default 512), BENCH_ROUNDS pairs (default 5), BENCH_DIR where (default a temporary folder).
set -eu
mb=${BENCH_MB:-512} rounds=${BENCH_ROUNDS:-5}
dir=$(mktemp -d "${BENCH_DIR:-/tmp}/s2s-ckpt-bench-XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$dir"
program=${S2S_BIN:-$OLDPWD/bin}/s2s-ckpt
S2S_NO_PROGRESS=1 PROGRAM=$program MB=$mb ROUNDS=$rounds python3 - <<'PY'
import json, os, resource, shutil, statistics, struct, subprocess, time

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


def timed(command):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True)
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree("out")
    os.sync()
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


ways = {
    "cp && sync": ["sh", "-c", "cp -r dist out && sync -f out"],
    "cp": ["cp", "-r", "dist", "out"],
    "convert --to hf": [program, "convert", "-q", "--to", "hf", "dist", "out"],
    "convert --to torch_dist": [program, "convert", "-q", "--to", "torch_dist", "dist", "out"],
}
times = {way: [] for way in ways}
for r in range(rounds + 1):
    for way, command in ways.items():
        result = timed(command)
        if r:
            times[way].append(result)
gb = at / 1e9
for way in ways:
    wall = [t[0] for t in times[way]]
    ratio = statistics.median(t[0] / c[0] for t, c in zip(times[way], times["cp && sync"]))
    print("ckpt  %-26s %6.2f s  %5.2f GB/s  cpu %5.2f s  %.2f x (cp && sync)" % (way, statistics.median(wall), gb / statistics.median(wall), statistics.median(t[1] for t in times[way]), ratio))
peak = subprocess.run(["sh", "-c", "exec %s convert --to hf dist out 2>&1" % program], check=True, capture_output=True, text=True).stdout
print("ckpt  " + peak.strip().replace("s2s-ckpt: ", ""))
start = time.monotonic()
for _ in range(10):
    subprocess.run([program, "ls", "dist"], check=True, stdout=subprocess.DEVNULL)
print("ckpt  ls of it: %.1f ms" % ((time.monotonic() - start) * 100))
PY
