#!/usr/bin/env python3
"""s2s-train generate against transformers' generate: greedy and with beams, several prompts of several lengths at once.

check_generate.py           recompute generate.json with the library, run s2s-train generate and compare it with both; exit 77 without torch, transformers
check_generate.py --write   write generate.json
check_generate.py --stored  run s2s-train generate and compare it with generate.json alone
"""
import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
STORED = sys.argv[1:] == ["--stored"]
try:
    if not STORED:
        import torch
        from transformers import AutoModelForCausalLM
        torch.set_num_threads(1)
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

# nemotron_h is not among them: in steps of one token the library does not clamp time steps, which it does in prompts
MODELS = ["llama_gqa_tied", "qwen3", "mixtral", "mistral", "qwen2_window", "nemotron_h_latent"]
SETTINGS = [{}, {"num_beams": 3}, {"num_beams": 4, "length_penalty": 0.2}, {"num_beams": 2, "length_penalty": -1.5},
            {"num_beams": 3, "early_stopping": True}, {"num_beams": 5, "length_penalty": 2.0}]
NEW = 12


def prompts(model):
    r = random.Random(model)
    return [[r.randrange(3, 60) for _ in range(n)] for n in (7, 1, 12, 4, 9)]



def of_library(name):
    path = os.path.join(HERE, name)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    model.generation_config.eos_token_id = None
    rows = []
    said = []
    for prompt in prompts(name):
        ids = torch.tensor([prompt])
        said += model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, pad_token_id=0)[0, len(prompt):].tolist()
    counts = sorted(set(said), key=lambda i: (-said.count(i), i))
    end = counts[2:4]
    for setting in SETTINGS:
        texts = []
        for prompt in prompts(name):
            ids = torch.tensor([prompt])
            with torch.no_grad():
                got = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, eos_token_id=end, pad_token_id=0,
                                     return_dict_in_generate=True, output_scores=True, **setting)
            text = got.sequences[0, len(prompt):].tolist()
            cut = next((i for i, t in enumerate(text) if t in end), len(text))
            texts.append({"ids": text[:cut]} | ({"score": round(got.sequences_scores[0].item(), 5)} if setting else {}))
        rows.append({"setting": setting, "texts": texts})
    return {"model": name, "stops": end, "prompts": prompts(name), "rows": rows}


def options(setting):
    words = {"num_beams": "--beams", "length_penalty": "--length-penalty", "early_stopping": "--early-stopping"}
    out = []
    for key, value in setting.items():
        out += [words[key]] if value is True else ["%s=%s" % (words[key], value)]
    return out


def of_tool(case, setting, *more):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for prompt in case["prompts"]:
            print(json.dumps({"input_ids": prompt}), file=f)
        f.flush()
        bin_dir = os.environ.get("S2S_BIN", os.path.join(ROOT, "bin"))
        out = subprocess.run([os.path.join(bin_dir, "s2s-train"), "generate", "-q", "--model", os.path.join(HERE, case["model"]), "--list", f.name, "--json",
                              "--max-new-tokens", str(NEW), *["--stop=%d" % i for i in case["stops"]], *options(setting), *more],
                             check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def same(a, b):
    return a["ids"] == b["ids"] and abs(a.get("score", 0) - b.get("score", 0)) < 2e-5 + 1e-6 * abs(b.get("score", 0))


def main():
    file = os.path.join(HERE, "generate.json")
    if sys.argv[1:] == ["--write"]:
        with open(file, "w") as f:
            f.write("[\n" + ",\n".join(json.dumps(of_library(name)) for name in MODELS) + "\n]\n")
        return 0
    with open(file) as f:
        cases = json.load(f)
    bad = n = 0
    for case in cases:
        fresh = case if STORED else of_library(case["model"])
        for stored, again in zip(case["rows"], fresh["rows"]):
            for batch in (5,) if STORED else (5, 2):
                for i, text in enumerate(of_tool(case, stored["setting"], "--batch=%d" % batch)):
                    n += 1
                    if not (same(text, stored["texts"][i]) and same(text, again["texts"][i])):
                        bad += 1
                        print(case["model"], stored["setting"], "prompt", i, text, stored["texts"][i], again["texts"][i])
    print("%d texts, %d differ" % (n, bad))
    return 1 if bad or not n else 0


if __name__ == "__main__":
    sys.exit(main())
