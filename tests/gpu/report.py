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

print("== gradients against formulas in double: largest error of each (share of what is allowed)")
print("\n".join(lines("gradients.log")))

print("== cases of kernels, cuda")
for name in sorted(os.listdir(logs)):
    if name.startswith("case-"):
        text = "\n".join(lines(name))
        passed, failed = re.findall(r"PASSED  \] (\d+) test", text), re.findall(r"FAILED  \] (\w+)", text)
        print(f"{name[5:-4]:<28} passed {sum(map(int, passed))}" + (f", FAILED {' '.join(sorted(set(failed)))}" if failed else "")
              + ("" if passed else "  NO RESULT: " + " | ".join(text.splitlines()[-2:])[:200]))

print("== short trainings, cpu against cuda: steps, largest relative difference of loss and of the gradient's norm")
for base, run, bound in (("small-cpu", "small-cuda", 1e-3), ("small-cpu", "small-tf32", 1e-3), ("bf16-cpu", "bf16-cuda", 1e-2),
                         ("small-cpu", "bf16-cuda", 1e-2), ("salm-cpu", "salm-cuda", 1e-3), ("salm16-cpu", "salm16-cuda", 1e-2)):
    a, b = steps(base), steps(run)
    if not a or not b:
        print(f"{run:<12} NO RESULT: {' | '.join(lines(run + '.log')[-2:])[:200]}")
        continue
    n = min(len(a), len(b))
    far = [max(abs(x[k] - y[k]) / abs(x[k]) for x, y in zip(a, b)) for k in ("loss", "grad_norm")]
    print(f"{base} {run:<12} {n} steps  loss {far[0]:.2e}  norm {far[1]:.2e}  {'ok' if far[0] < bound and n == len(a) else 'NOT EQUAL'}"
          f"  last loss {a[n-1]['loss']:.5f} {b[n-1]['loss']:.5f}")
print("== two ranks on this GPU, against one: steps, largest relative difference of loss and of the gradient's norm")
for mesh in ("dp", "tp", "cp", "pp"):
    a, b = steps("small-cuda"), steps("two-" + mesh)
    if a and b:
        far = [max(abs(x[k] - y[k]) / abs(x[k]) for x, y in zip(a, b)) for k in ("loss", "grad_norm")]
        print(f"mesh.{mesh}=2 {len(b)} steps  loss {far[0]:.2e}  norm {far[1]:.2e}  {'ok' if far[0] < 1e-4 and len(a) == len(b) else 'NOT EQUAL'}")
    else:
        print(f"mesh.{mesh}=2 NO RESULT: {' | '.join(x for x in lines(f'two-{mesh}.log') if x.startswith('s2s-train'))[:300]}")
for name in ("case-collectives_test.log", "two-collectives.log"):
    for line in lines(name):
        if line.startswith(("NCCL ", "all_reduce of")):
            print(line)
b, c = steps("small-cuda"), steps("small-again")
if b and c:
    same = all(x[k] == y[k] for x, y in zip(b, c) for k in ("loss", "grad_norm"))
    print("two runs give the same bits:", same and len(b) == len(c))



def peak(run):
    """What a step held at most."""
    return f"  peak {max(x.get('peak_bytes', 0) for x in run) / 1e9:.1f} GB"


print("== 1.24 B, a pack of 8192 tokens a step")
layers, d, kv, inner, vocab, heads = 16, 2048, 512, 8192, 128256, 2048
body = layers * (2 * d * d + 2 * d * kv + 3 * d * inner)
for run, length in (("long-tf32", 8191), ("long-bf16", 8191), ("speech-tf32", 600), ("speech-bf16", 600)):
    s = steps(run)[2:]
    if s:
        speed = sorted(x["tokens_per_s"] for x in s)[len(s) // 2]
        flop = 6 * (body + vocab * d) + 6 * layers * heads * length
        print(f"{run:<12} {len(s) + 2} steps  {speed:9.0f} tokens/s  {speed * flop / 1e12:6.1f} TFLOP/s  MFU {speed * flop / 989e12 * 100:5.1f} % of 989"
              f"{peak(s)}  loss {s[-1]['loss']:.4f}")
    elif lines(run + ".log"):
        print(f"{run:<12} {' | '.join(lines(run + '.log')[-2:])[:220]}")
print("\n".join(lines("peer-steps.log")[-4:]))

# per token 6 operations a weight of a matrix, and those of attention; the scan's own are left out
kinds = {"mamba": 3072 * (2 * 8192 + 2 * 8 * 128 + 64) + 8192 * 3072, "mlp": 2 * 3072 * 12288, "attention": 2 * 3072 * 3072 + 2 * 3072 * 1024}
s = steps("mamba-bf16")[2:]
if s:
    speed = sorted(x["tokens_per_s"] for x in s)[len(s) // 2]
    flop = 6 * (6 * kinds["mamba"] + 8 * kinds["mlp"] + 2 * kinds["attention"] + 32000 * 3072) + 6 * 2 * 3072 * 600
    print(f"mamba-bf16   {len(s) + 2} steps  {speed:9.0f} tokens/s  {speed * flop / 1e12:6.1f} TFLOP/s  MFU {speed * flop / 989e12 * 100:5.1f} % of 989"
          f"{peak(s)}  loss {s[-1]['loss']:.4f}")
elif lines("mamba-bf16.log"):
    print(f"mamba-bf16   {' | '.join(lines('mamba-bf16.log')[-2:])[:220]}")

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

print("== time of a step by kernel, 4 layers of the 1.24 B, bf16")
for line in lines("profile.log")[-45:]:
    print(line)
for run in ("part-bf16", "encoder-bf16"):
    s = steps(run)
    if s:
        times = sorted(x["step_s"] for x in s[2:] or s)
        print(f"{run}: without waits {times[len(times) // 2] * 1e3:.2f} ms a step (median)")
    else:
        print(f"{run}: {' | '.join(lines(run + '.log')[-2:])[:200]}")
path = f"{logs}/trace.json"
if os.path.exists(path):
    shapes = {}
    events = json.load(open(path))["traceEvents"]
    for e in events:
        if e.get("name") == "gemm":
            key = (re.sub(r"\\.\\d+\\.", ".*.", e["args"]["layer"]), e["args"]["flop"], e["args"]["bytes"])
            shapes.setdefault(key, []).append(e["dur"])
    print("-- products: layer, GFLOP, ms (median), TFLOP/s, calls")
    for (layer, flop, _), times in sorted(shapes.items(), key=lambda x: -sum(x[1]))[:30]:
        mid = sorted(times)[len(times) // 2]
        print(f"{layer:<36} {flop / 1e9:9.1f} {mid / 1e3:9.3f} {flop / mid / 1e6:9.1f} {len(times):6}")
print("== time of a step by kernel, speech encoder and decoder, bf16")
for line in lines("profile-encoder.log")[:46]:
    print(line)
