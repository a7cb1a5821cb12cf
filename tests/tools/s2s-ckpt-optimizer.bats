# The optimizer of Megatron's rank folders. tests/oracle/ckpt/check_rank_optimizers.py holds it against what Megatron-Core itself saves.

load common

# ranks FOLDER [FAULT]: two tensor-parallel ranks of a small model and its Adam; expect.json has what they are cut from
ranks() {
    mkdir -p "$1/iter_0000007/mp_rank_00" "$1/iter_0000007/mp_rank_01"
    printf 7 >"$1/latest_checkpointed_iteration.txt"
    PYTHONPATH=$ROOT/tests/tools python3 - "$@" <<'EOF'
import json
import struct
import sys
from torch_files import Call, Storage, save, tensor

folder, fault = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
half = fault in ("half", "swapped", "few masters")
layer = "decoder.layers.0."
# name, whole shape, cut axis, in the order of the modules
params = [("embedding.word_embeddings.weight", [6, 2], 0), (layer + "self_attention.linear_proj.weight", [2, 6], 1),
          (layer + "self_attention.linear_qkv.layer_norm_weight", [2], None), (layer + "self_attention.linear_qkv.weight", [6, 2], 0),
          (layer + "mlp.router.expert_bias", [4], None),
          (layer + "self_attention.q_layernorm.weight", [3], None), ("decoder.final_layernorm.weight", [2], None)]
buffers = {layer + "mlp.router.expert_bias"}
numel = lambda shape: shape[0] * (shape[1] if len(shape) > 1 else 1)
whole = {}
for kind in ("", "exp_avg", "exp_avg_sq", "fp32_param"):
    for i, (name, shape, _) in enumerate(params):
        # whole numbers are exact in 16 bits
        whole[kind, name] = [float(1000 * len(kind) + 20 * i + j) if kind != "fp32_param" else float(20 * i + j) for j in range(numel(shape))]
        if half and not kind:
            whole[kind, name] = [float(20 * i + j) for j in range(numel(shape))]


def part(kind, name, shape, axis, rank):
    values = whole[kind, name]
    if axis is None:
        return values, shape
    rows, columns = shape
    if axis == 0:
        return values[rank * numel(shape) // 2:(rank + 1) * numel(shape) // 2], [rows // 2, columns]
    at = rank * columns // 2
    return [x for r in range(rows) for x in values[r * columns + at:r * columns + at + columns // 2]], [rows, columns // 2]


for rank in range(2):
    count = iter(range(1000))
    make = lambda values, shape, bf16=False: tensor(
        Storage(str(next(count)), [struct.unpack("<I", struct.pack("<f", v))[0] >> 16 for v in values], "H", "BFloat16Storage")
        if bf16 else Storage(str(next(count)), values), shape)
    model = {p[0]: make(*part("", *p, rank), half and p[0] not in buffers) for p in params}
    own = [p for p in params if p[0] not in buffers]
    decays = lambda p: len(p[1]) > 1 or fault == "norms decay" and "q_layernorm" in p[0]
    groups = [[p for p in own if decays(p)], [p for p in own if not decays(p)]]
    if fault == "frozen":
        groups[0].pop()
    if fault == "moved":
        groups[1].append(groups[0].pop())
    order = groups[0] + groups[1]
    state = {i: {"step": make([float("nan") if fault == "endless" else 5.0 + (fault == "steps" and i == 3)], []), "exp_avg": make(*part("exp_avg", *p, rank)),
                 "exp_avg_sq": make(*part("exp_avg_sq", *p, rank))} for i, p in enumerate(order)}
    if fault == "half":
        state = {i: {k: v for k, v in s.items() if k != "step"} for i, s in state.items()}
    if fault == "copies":
        state = {i: {**state[i], "fp32_param": make(*part("", *p, rank))} for i, p in enumerate(order)}
    if fault == "lost":
        del state[2]
    told = [{"lr": 0.5, "betas": (0.9, 0.95), "wd_mult": 1.0 - (g if fault != "alike" else 0), "lr_mult": 1.0, "is_expert_parallel": False,
             "is_decoupled_lr": False, "params": [order.index(p) for p in group]} for g, group in enumerate(groups)]
    if fault == "half":
        told = [{**g, "step": 5} for g in told]
    if fault == "notes":
        told = [{**g, "note": {"tensor C128": 1}, "other": {"tensor of mine": [2]}} for g in told]
    optimizer = {"state": state, "param_groups": told}
    if fault == "apart":
        del optimizer["state"]
    if half:
        masters = [[make(*part("fp32_param", *p, rank)) for p in group] for group in groups]
        if fault == "swapped": # of one shape
            masters[0][0], masters[0][2] = masters[0][2], masters[0][0]
        if fault == "few masters":
            masters[0].pop()
        optimizer = {"optimizer": optimizer, "grad_scaler": {"scale": make([512.0], [1]), "growth_tracker": 3}, "fp32_from_fp16_params": masters}
    if fault == "one rank" and rank:
        optimizer = None
    if fault == "odd":
        optimizer = [optimizer, {"state": 3}]
    args = Call("argparse", "Namespace", (), {"tensor_model_parallel_size": 2, "num_layers": 1})
    rng = {"rng_state": [{"random_rng_state": (3, (rank, 5), None)}]} if fault == "random" else {}
    save("%s/iter_0000007/mp_rank_%02d/model_optim_rng.pt" % (folder, rank),
         {"args": args, "iteration": 7, "checkpoint_version": 3.0, "model": model, "optimizer": optimizer, **rng})
want = {(("optimizer.state.%s." % k) if k else "") + n: [s, whole[k, n]] for k in ("", "exp_avg", "exp_avg_sq") + (("fp32_param",) if half else ())
        for n, s, _ in params if not k or n not in buffers}
json.dump(want, open("expect.json", "w"))
EOF
}

# holds CHECKPOINT: exactly the tensors of expect.json
holds() {
    s2s-ckpt convert -q --to safetensors --dtype f32 "$1" holds.safetensors
    python3 - <<'EOF'
import json, struct
data = open("holds.safetensors", "rb").read()
n = struct.unpack("<Q", data[:8])[0]
head = json.loads(data[8:8 + n])
head.pop("__metadata__", None)
want = json.load(open("expect.json"))
assert sorted(head) == sorted(want), set(head) ^ set(want)
for name, t in head.items():
    begin, end = t["data_offsets"]
    values = list(struct.unpack("<%df" % ((end - begin) // 4), data[8 + n + begin:8 + n + end]))
    assert [t["shape"], values] == want[name], (name, t["shape"], values, want[name])
EOF
    rm holds.safetensors
}

# common FOLDER: the optimizer of its common.pt, as Python prints it; a tensor is (kind, shape, values)
common_optimizer() {
    python3 - "$1" <<'EOF'
import pickle, struct, sys, zipfile
archive = zipfile.ZipFile(sys.argv[1] + "/iter_0000007/common.pt")
class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        if name == "_rebuild_tensor_v2":
            return lambda store, offset, size, *rest: (store[0], size, store[1])
        return (lambda *a: {}) if name == "OrderedDict" else type(name, (), {})
    def persistent_load(self, pid):
        data = archive.read("archive/data/" + pid[2])
        return pid[1].__name__, struct.unpack("<%df" % pid[4], data)
print(Reader(archive.open("archive/data.pkl")).load().get("optimizer"))
EOF
}

@test "the optimizer of rank folders becomes whole tensors, groups and a step" {
    ranks run
    exits 0 s2s-ckpt verify run
    exits 0 s2s-ckpt convert --to torch_dist --merge-ranks --layers numbered run out
    says_not "left out"
    holds out
    exits 0 s2s-ckpt ls out
    says "optimizer.state.exp_avg_sq.decoder.layers.0.self_attention.linear_proj.weight	F32	[2, 6]"
    exits 0 s2s-ckpt verify out
    exits 0 common_optimizer out
    group() { echo "{'lr': 0.5, 'betas': (0.9, 0.95), 'wd_mult': $1, 'lr_mult': 1.0, 'is_expert_parallel': False, 'is_decoupled_lr': False}"; }
    [ "$output" = "{'param_groups': [$(group 1.0), $(group 0.0)], 'state': {'common_step': ('FloatStorage', (), (5.0,))}}" ]
    # layers on an axis carry it along; so does reshard, and prune drops it
    exits 0 s2s-ckpt convert -q --to torch_dist --merge-ranks run stacked
    exits 0 s2s-ckpt ls stacked
    says "optimizer.state.exp_avg.decoder.layers.self_attention.linear_proj.weight	F32	[1, 2, 6]"
    exits 0 s2s-ckpt reshard -q --files 3 out again
    holds again
    exits 0 s2s-ckpt reshard -q --files 2 --merge-ranks run cut
    exits 0 s2s-ckpt diff cut stacked
    exits 0 s2s-ckpt prune out pruned
    exits 0 s2s-ckpt ls pruned
    says_not optimizer
    # a norm that is to decay is found in the other group
    ranks other "norms decay"
    exits 0 s2s-ckpt convert -q --to torch_dist --merge-ranks --layers numbered other others
    holds others
}

@test "the optimizer of rank folders: master weights, and a step in the groups" {
    ranks run half
    exits 0 s2s-ckpt convert --to torch_dist --merge-ranks --layers numbered run out
    says_not "left out"
    holds out
    exits 0 common_optimizer out
    says "'grad_scaler': {'scale': ('FloatStorage', (1,), (512.0,)), 'growth_tracker': 3}"
    says "'step': 5"
    says_not common_step
}

@test "float32 copies that an optimizer keeps of float32 parameters come along" {
    ranks run copies
    exits 0 s2s-ckpt convert --to torch_dist --merge-ranks --layers numbered run out
    says_not "left out"
    for prefix in "" optimizer.state.fp32_param.; do
        s2s-ckpt cat out "${prefix}decoder.layers.0.self_attention.linear_qkv.weight" >"is$prefix"
    done
    same is isoptimizer.state.fp32_param.
}

@test "a dict in an optimizer's groups that looks like how a small tensor is kept stays a dict" {
    ranks run notes
    exits 0 s2s-ckpt convert --to torch_dist --merge-ranks --layers numbered run out
    holds out
    exits 0 common_optimizer out
    says "'note': {'tensor C128': 1}, 'other': {'tensor of mine': [2]}"
}

# saved_args FOLDER: what its common.pt says was not saved
saved_args() {
    python3 - "$1" <<'EOF'
import pickle, sys, zipfile
archive = zipfile.ZipFile(sys.argv[1] + "/iter_0000007/common.pt")


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        return dict if name == "OrderedDict" else (lambda *_: None) if name.startswith("_") else type(name, (), {})
    def persistent_load(self, pid):
        return None
args = Reader(archive.open(next(n for n in archive.namelist() if n.endswith("/data.pkl")))).load()["args"]
print(sorted(k for k, v in vars(args).items() if k.startswith("no_save_") and v is True))
EOF
}

@test "random states of rank folders, which are not merged, are counted, and the arguments say so" {
    ranks run random
    exits 0 s2s-ckpt reshard --merge-ranks run out
    says "left out: rng_state (2)"
    says "left out: 2 values of rank folders"
    exits 0 saved_args out
    [ "$output" = "['no_save_rng']" ]
    exits 0 s2s-ckpt prune --merge-ranks --json -q run pruned
    says '"rank_values": 2,'
    says '"names": {"rng_state": 2}'
    exits 0 saved_args pruned
    [ "$output" = "['no_save_optim', 'no_save_rng']" ]
    ranks other
    exits 0 s2s-ckpt reshard --merge-ranks other others
    says_not "left out"
    exits 0 saved_args others
    [ "$output" = "[]" ]
}

@test "where it is not certain whose the optimizer's tensors are, they are left out and it is said why" {
    while IFS=: read -r fault why; do
        ranks "run $fault" "$fault"
        exits 0 s2s-ckpt convert --to torch_dist --merge-ranks "run $fault" "out $fault"
        says "$why"
        says "left out: the optimizer of"
        exits 0 s2s-ckpt ls "out $fault"
        says_not optimizer
    done <<'EOF'
frozen:its groups have 5 parameters, the model 6
moved:group 0 has 2 parameters, and decoder.layers.0.self_attention.linear_qkv.weight would be one more
alike:two of its groups may have embedding.word_embeddings.weight
apart:it is a distributed one, whose state is in distrib_optim.pt
lost:parameter 2 has no state
steps:state.3.step is not the step of the other parameters
endless:state.0.step is no number
one rank:mp_rank_01 has none
odd:it has no groups of parameters
swapped:is not what mp_rank_00/embedding.word_embeddings.weight was rounded from
few masters:group 0 has 2 master weights, and decoder.layers.0.self_attention.linear_qkv.weight would want one more
EOF
}

@test "rank folders without a wish for the optimizer: it is counted" {
    ranks run
    exits 0 s2s-ckpt ls run
    says_not optimizer
    exits 0 s2s-ckpt convert --to safetensors run raw.safetensors
    says "left out: the optimizer of 2 rank folders"
    exits 0 s2s-ckpt convert --to safetensors --merge-ranks run merged.safetensors
    says_not "the optimizer of"
    exits 0 s2s-ckpt ls merged.safetensors
    says optimizer.state.exp_avg.decoder.final_layernorm.weight
    # copies of the optimizer's tensors are compared, too
    ranks other
    python3 - <<'EOF'
import shutil, struct, zipfile
path = "other/iter_0000007/mp_rank_01/model_optim_rng.pt"
with zipfile.ZipFile(path) as z:
    members = [(m.filename, z.read(m)) for m in z.infolist()]
value = struct.pack("<2f", 7120, 7121)  # exp_avg of the last norm
assert sum(data == value for _, data in members) == 1
with zipfile.ZipFile(path, "w") as z:
    for name, data in members:
        z.writestr(name, data[::-1] if data == value else data)
EOF
    exits 1 s2s-ckpt convert --to torch_dist --merge-ranks other out
    says "exp_avg and mp_rank_01/optimizer.0.state.5.exp_avg should be copies of one tensor and differ"
    says "s2s-ckpt prune --merge-ranks"
    exits 0 s2s-ckpt prune --merge-ranks other out
    says "left out: the optimizer of 2 rank folders"
    # a flipped byte in it is found
    python3 - <<'EOF'
data = open("run/iter_0000007/mp_rank_00/model_optim_rng.pt", "rb").read()
import struct
value = struct.pack("<2f", 7120, 7121)
assert data.count(value) == 1
open("run/iter_0000007/mp_rank_00/model_optim_rng.pt", "wb").write(data.replace(value, struct.pack("<2f", 7120, 7122)))
EOF
    exits 1 s2s-ckpt verify run
    says "optimizer.0.state.5.exp_avg"
    says "CRC-32"
}
