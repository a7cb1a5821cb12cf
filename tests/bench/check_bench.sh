#!/bin/bash
# s2s-check: one config from process start to exit, a thousand in one call, memory; beside a Python that starts, imports PyYAML and
# OmegaConf and reads the same config (where PYTHON, by default python3, has them) - all that a peer in Python does before its first rule.
# Memory is what GNU time reports, where it is.
# BENCH_ROUNDS runs of one config (default 50), their median; BENCH_FILES configs (default 1000).
set -eu
cd "$(dirname "$0")/../.."
ROOT=$PWD PROGRAM=${S2S_BIN:-$PWD/bin}/s2s-check ROUNDS=${BENCH_ROUNDS:-50} FILES=${BENCH_FILES:-1000} PEER=${PYTHON:-python3} python3 - <<'PY'
import os, shutil, statistics, subprocess, tempfile, time

root, program, peer = os.environ["ROOT"], os.environ["PROGRAM"], os.environ["PEER"]
rounds, n_files = int(os.environ["ROUNDS"]), int(os.environ["FILES"])
configs = os.path.join(root, "tests/oracle/rules")
kinds = ["rl", "slm", "mlm", "am", "het", "s2s"]


def run(command):
    """Seconds of a command, which may find what it likes."""
    start = time.perf_counter()
    status = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    if status not in (0, 1):
        raise SystemExit("%s: exit status %d" % (command, status))
    return time.perf_counter() - start


def line(what, command, n):
    seconds = statistics.median([run(command) for _ in range(n + 1)][1:])
    memory = "-"
    if os.access("/usr/bin/time", os.X_OK):
        said = subprocess.run(["/usr/bin/time", "-f", "%M", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True).stderr
        memory = "%.1f" % (int(said.split()[-1]) / 1024)
    print("check  %-32s %9.2f  %8s" % (what, seconds * 1e3, memory))


print("check  %-32s %9s  %8s" % ("what", "median ms", "peak MB"))
for kind in kinds:
    line("one config (%s)" % kind, [program, os.path.join(configs, kind + ".yaml")], rounds)
line("/bin/true, the limit", ["/bin/true"], rounds)
with tempfile.TemporaryDirectory() as folder:
    shutil.copy(os.path.join(configs, "rl_parent.yaml"), folder)
    for i in range(n_files - 1):
        kind = kinds[i % len(kinds)]
        shutil.copy(os.path.join(configs, kind + ".yaml"), os.path.join(folder, "%s%d.yaml" % (kind, i)))
    for jobs in sorted({1, os.cpu_count() or 1}):
        line("%d configs, %d thread%s" % (n_files, jobs, "" if jobs == 1 else "s"), [program, "-j%d" % jobs, folder], 5)
config = os.path.join(configs, "rl_parent.yaml")
reads = "import yaml; from omegaconf import OmegaConf; c = OmegaConf.create(yaml.safe_load(open(%r)))" % config
if subprocess.run([peer, "-c", "import yaml, omegaconf"], stderr=subprocess.DEVNULL).returncode == 0:
    line("Python reads one config", [peer, "-c", reads], 5)
else:
    print("check  Python: %s has no PyYAML and OmegaConf (set PYTHON to compare)" % peer)
for module in ("torch", "transformers"):
    if subprocess.run([peer, "-c", "import " + module], stderr=subprocess.DEVNULL).returncode == 0:
        line("Python imports " + module, [peer, "-c", "import " + module], 1)
PY
