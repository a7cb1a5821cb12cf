"""Prints the speed of `s2s-pack tokenize -j1` for a tokenizer of each kind, and of the tokenizers library where it is there, on the same text."""
import json, os, random, resource, subprocess, tempfile, time

try:
    import tokenizers
except ModuleNotFoundError:
    tokenizers = None
KINDS = "bytelevel_llama3", "bytelevel_qwen", "spbpe_llama2", "unigram", "wordpiece"


def text(n_lines):
    rng, words = random.Random(1), []
    for kind in KINDS:
        with open(f"tests/oracle/tokenizer_{kind}/strings.json") as f:
            words += [w for s in json.load(f) for w in s["text"].replace("\0", "").split() if len(w) < 20]
    return [" ".join(rng.choice(words) for _ in range(rng.randint(5, 40))) for _ in range(n_lines)]


def cpu_s(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def add_goal(what, figure):
    """A row of the table that ends `make bench` (goal.h)."""
    if path := os.environ.get("BENCH_TABLE"):
        with open(path, "a") as f:
            f.write(f"{what}\t>= 1\t{figure:.4g}\t-\tx tokenizers\t{'met' if figure >= 1 else 'not met'}\n")


lines = text(40000)
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/text", "w") as f:
        f.write("\n".join(lines) + "\n")
    size = os.path.getsize(f"{folder}/text")
    for kind in KINDS:
        path = f"tests/oracle/tokenizer_{kind}/tokenizer.json"
        ours = min(cpu_s(["s2s-pack", "tokenize", "-j1", "--tokenizer", path, f"{folder}/text", "-o", f"{folder}/ids"]) for _ in range(3))
        beside = ""
        if tokenizers:
            peer, start = tokenizers.Tokenizer.from_file(path), time.process_time()
            ids = peer.encode_batch_fast(lines[:10000])
            theirs = (time.process_time() - start) * size / sum(len(x.encode()) + 1 for x in lines[:10000])
            with open(f"{folder}/ids") as f:
                same = all([int(i) for i in line.split()] == e.ids for line, e in zip(f, ids))
            add_goal(f"tokenize, {kind}", theirs / ours)
            beside = f", tokenizers {size / theirs / 1e6:5.1f} MB/s, {theirs / ours:4.1f} x{'' if same else ', OTHER IDS'}"
        print(f"tokenize {kind:17} {size / ours / 1e6:6.1f} MB/s{beside}")
