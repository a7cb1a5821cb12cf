"""TensorBoard reads the event files of a run: the points of log.jsonl, those of a resumed run once."""
import json
import os
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ModuleNotFoundError as e:
    print(e)
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BIN = os.environ.get("S2S_BIN", os.path.join(ROOT, "bin"))

CONFIG = ("{model_type: llama, vocab_size: 64, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 4, "
          "num_key_value_heads: 2, intermediate_size: 64, rms_norm_eps: 1.0e-5, rope_theta: 10000.0, "
          "tie_word_embeddings: true, max_position_embeddings: 128, hidden_act: silu}")


def run(*args):
    subprocess.run([os.path.join(BIN, args[0]), *args[1:]], check=True)


with tempfile.TemporaryDirectory() as tmp:
    os.chdir(tmp)
    with open("ids.jsonl", "w") as f:
        for i in range(8):
            f.write(json.dumps({"id": str(i), "input_ids": [(i + 3 * k) % 60 + 1 for k in range(8)]}) + "\n")
    with open("r.yaml", "w") as f:
        f.write("run: run\nmodel: {llm: {config: %s}}\ndata: {train: [t.s2s], eval: {seen: t.s2s}}\n"
                "optimizer: {lr: 1.0e-2}\ntrain: {steps: 9, eval_every: 3}\ncheckpoint: {every: 4}\n" % CONFIG)
    run("s2s-pack", "-q", "--ids", "ids.jsonl", "--batch-size", "4", "-o", "t.s2s")
    run("s2s-train", "-j1", "r.yaml", "train.steps=6")
    # as after a kill at step 6: the newest checkpoint is of step 4
    os.rename("run/checkpoints/iter_0000006", "gone") if os.path.exists("run/checkpoints/iter_0000006") else None
    run("s2s-train", "-j1", "r.yaml", "run=other", "train.steps=4")
    os.makedirs("run2")
    for name in os.listdir("run"):
        if name.startswith("events"):
            os.rename("run/" + name, "run2/" + name)
    os.rename("other/checkpoints", "run2/checkpoints")
    os.rename("run/log.jsonl", "run2/log.jsonl")
    run("s2s-train", "-j1", "r.yaml", "run=run2")
    log = [json.loads(line) for line in open("run2/log.jsonl")]
    assert [line["step"] for line in log] == list(range(1, 10)), log
    events = EventAccumulator("run2")
    events.Reload()
    tags = events.Tags()["scalars"]
    assert {"train/loss", "train/grad_norm", "train/lr", "eval/seen/loss"} <= set(tags), tags
    points = events.Scalars("train/loss")
    assert [p.step for p in points] == list(range(1, 10)), [p.step for p in points]
    for point, line in zip(points, log):
        assert abs(point.value - line["loss"]) <= 1e-6 * line["loss"], (point, line)
print("TensorBoard reads the same points")
