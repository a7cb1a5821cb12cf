#!/usr/bin/env python3
"""Makes pairs.json: random sentence pairs and their edit counts from the full table of the textbook algorithm with a walk back from the
end that prefers match or substitution, then deletion, then insertion. Needs nothing but Python."""
import json, os, random


def counts(ref, hyp):
    n, m = len(ref), len(hyp)
    cost = [[i + j if i * j == 0 else 0 for j in range(m + 1)] for i in range(n + 1)]
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            cost[i][j] = min(cost[i - 1][j - 1] + (ref[i - 1] != hyp[j - 1]), cost[i - 1][j] + 1, cost[i][j - 1] + 1)
    hits = substitutions = deletions = insertions = 0
    i, j = n, m
    while i or j:
        if i and j and cost[i][j] == cost[i - 1][j - 1] + (ref[i - 1] != hyp[j - 1]):
            hits += ref[i - 1] == hyp[j - 1]
            substitutions += ref[i - 1] != hyp[j - 1]
            i, j = i - 1, j - 1
        elif i and cost[i][j] == cost[i - 1][j] + 1:
            deletions, i = deletions + 1, i - 1
        else:
            insertions, j = insertions + 1, j - 1
    return {"n_ref": n, "hits": hits, "substitutions": substitutions, "deletions": deletions, "insertions": insertions}


rng = random.Random(7)
words = "the a to of please enter your password hash key press été ärger 中文 x y".split()
pairs = []
for k in range(200):
    ref = [rng.choice(words) for _ in range(rng.randint(0, 14))]
    hyp = list(ref)
    for _ in range(rng.randint(0, 6)):
        at = rng.randint(0, len(hyp))
        op = rng.random()
        if op < 0.35 and at < len(hyp):
            hyp[at] = rng.choice(words)
        elif op < 0.7:
            hyp.insert(at, rng.choice(words))
        elif at < len(hyp):
            del hyp[at]
    if k % 10 == 0:
        hyp = [rng.choice(words) for _ in range(rng.randint(0, 14))]
    ref, hyp = " ".join(ref), " ".join(hyp)
    pairs.append({"ref": ref, "hyp": hyp, "words": counts(ref.split(), hyp.split()), "characters": counts(ref, hyp)})
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pairs.json"), "w") as f:
    json.dump(pairs, f, separators=(",", ":"))
