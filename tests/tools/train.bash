# A tiny LLM to train: `load train` beside `load common`.

# tiny_model EVAL STEPS EVERY KEEP: r.yaml trains a model on rows of numbers that count by three, which is learnable in a few steps.
tiny_model() {
    python3 - <<'PY'
import json, random
random.seed(3)
with open("ids.jsonl", "w") as f:
    for i in range(40):
        n, s = random.randint(3, 20), random.randint(1, 50)
        f.write(json.dumps({"id": f"u{i}", "input_ids": [(s + 3 * k) % 60 + 1 for k in range(n)]}) + "\n")
json.dump({"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "rms_norm_eps": 1e-5,
           "rope_theta": 10000.0, "tie_word_embeddings": True, "max_position_embeddings": 128,
           "hidden_act": "silu"}, open("llm.json", "w"))
PY
    cat >r.yaml <<YAML
run: run
seed: 1
model: {llm: {config: llm.json}}
data: {train: [t.s2s], eval: {$1}}
optimizer: {name: adamw, lr: 1.0e-2, betas: [0.9, 0.98], eps: 1.0e-8, weight_decay: 0.1, clip_norm: 1.0}
schedule: {name: cosine, warmup_steps: 2, decay_steps: 20, min_lr: 1.0e-5}
train: {steps: $2, packs_per_step: 4}
checkpoint: {every: $3, keep: $4}
YAML
    s2s-pack -q --ids ids.jsonl --tokens 64 -o t.s2s
}

# log RUN: what must not depend on time
log() {
    python3 -c '
import json, sys
for line in open(sys.argv[1] + "/log.jsonl"):
    r = json.loads(line)
    print(*(r[k] for k in ("step", "samples", "tokens", "loss", "grad_norm", "lr")))' "$1"
}

# bits RUN STEP: name and digest of each tensor, however many chunks it was written in
bits() {
    s2s-ckpt ls --json --sha256 "$1/checkpoints/$(printf 'iter_%07d' "$2")" | python3 -c '
import json, sys
for t in sorted(json.load(sys.stdin)["tensors"], key=lambda t: t["name"]):
    print(t["name"], t["shape"], t["sha256"])'
}

# nearly A B: the same steps and losses, and norms but for the order in which squares are added up, in double
nearly() {
    paste -d' ' <(log "$1") <(log "$2") | awk '
        { d = $5 - $11; if (d < 0) d = -d }
        $1 != $7 || $4 != $10 || $6 != $12 || d > 1e-12 * $5 { print "differs: " $0; bad = 1 }
        END { exit bad || NR == 0 }'
}
