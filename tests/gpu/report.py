#!/usr/bin/env python3
"""The table of a visit: report.py FOLDER of its logs."""
import json
import os
import re
import sys

logs = sys.argv[1]


def lines(name):
    path = f"{logs}/{name}"
    return open(path, errors="replace").read().splitlines() if os.path.exists(path) else []


def steps(run):
    path = f"{logs}/{run}/log.jsonl"
    return [json.loads(x) for x in open(path)] if os.path.exists(path) else []


print("== phases")
for line in lines("phases"):
    print(line)

print("== instructions, and tiles of attention")
print("\n".join([x for x in lines("isa.log") if not x.startswith("ok")][-8:]))
print("\n".join(lines("attention-tiles.log")[-60:]))

print("== cases of kernels, cuda")
for name in sorted(os.listdir(logs)):
    if name.startswith("case-"):
        text = "\n".join(lines(name))
        passed, failed = re.findall(r"PASSED  \] (\d+) test", text), re.findall(r"FAILED  \] (\w+)", text)
        print(f"{name[5:-4]:<28} passed {sum(map(int, passed))}" + (f", FAILED {' '.join(sorted(set(failed)))}" if failed else "")
              + ("" if passed else "  NO RESULT: " + " | ".join(text.splitlines()[-2:])[:200]))

print("== small llama, cpu against cuda: steps, largest relative difference of loss and of the gradient's norm")
a = steps("small-cpu")
for run in ("small-cuda", "small-again", "small-tf32"):
    b = steps(run)
    if a and b:
        n = min(len(a), len(b))
        far = [max(abs(x[k] - y[k]) / abs(x[k]) for x, y in zip(a, b)) for k in ("loss", "grad_norm")]
        print(f"{run:<12} {n} steps  loss {far[0]:.2e}  norm {far[1]:.2e}  {'ok' if far[0] < 1e-3 and n == len(a) else 'NOT EQUAL'}"
              f"  last loss {a[n-1]['loss']:.5f} {b[n-1]['loss']:.5f}")
b, c = steps("small-cuda"), steps("small-again")
if b and c:
    same = all(x[k] == y[k] for x, y in zip(b, c) for k in ("loss", "grad_norm"))
    print("two runs give the same bits:", same and len(b) == len(c))

print("== 1.24 B, a pack of 8192 tokens a step")
layers, d, kv, inner, vocab, heads = 16, 2048, 512, 8192, 128256, 2048
body = layers * (2 * d * d + 2 * d * kv + 3 * d * inner)
for run, length in (("long-f32", 8191), ("long-tf32", 8191), ("long-bf16", 8191), ("speech-f32", 600), ("speech-tf32", 600), ("speech-bf16", 600)):
    s = steps(run)[2:]
    if s:
        speed = sorted(x["tokens_per_s"] for x in s)[len(s) // 2]
        flop = 6 * (body + vocab * d) + 6 * layers * heads * length
        print(f"{run:<12} {len(s) + 2} steps  {speed:9.0f} tokens/s  {speed * flop / 1e12:6.1f} TFLOP/s  MFU {speed * flop / 989e12 * 100:5.1f} % of 989"
              f"  loss {s[-1]['loss']:.4f}")
    elif lines(run + ".log"):
        print(f"{run:<12} {' | '.join(lines(run + '.log')[-2:])[:220]}")

print("== kernels: ours, and torch's of the same name")


def table(name):
    found = {}
    for line in lines(name):
        m = re.match(r"(.+?)\s+([\d.]+) ms\s+([\d.]+) (\S+)", line)
        if m:
            found[m[1].strip()] = (float(m[2]), float(m[3]), m[4])
    return found


ours, peer = table("bench.log"), table("peer.log")
for name, (ms, rate, unit) in ours.items():
    best = [(k, v) for k, v in peer.items() if k == name or k.startswith(name + " ")]
    other = "  ".join(f"{k[len(name):].strip() or 'torch'} {v[0]:.3f} ms {v[1]:.0f}" for k, v in best)
    print(f"{name:<48} {ms:9.3f} ms {rate:8.1f} {unit:<8} | {other}")
for line in lines("bench.log"):
    if "failed" in line:
        print(line)
print("-- torch alone")
for name, (ms, rate, unit) in peer.items():
    if not any(name == k or name.startswith(k + " ") for k in ours):
        print(f"{name:<48} {ms:9.3f} ms {rate:8.1f} {unit}")

print("== compute-sanitizer")
for name in sorted(os.listdir(logs)):
    if name.startswith("san-"):
        found = [x for x in lines(name) if "ERROR SUMMARY" in x or "RACECHECK SUMMARY" in x]
        print(f"{name[4:-4]:<36} {found[-1].strip('= ') if found else 'no summary: ' + ' | '.join(lines(name)[-2:])[:150]}")

print("== time of a step by kernel, 4 layers of the 1.24 B")
for line in lines("profile.log")[-45:]:
    print(line)
