# What beside the model stands in Megatron's rank folders, and is left out when they are merged: the optimizer and random states.

load common

# ranks FOLDER [random]: two tensor-parallel ranks of a small model with its Adam, and with random states
ranks() {
    mkdir -p "$1/iter_0000007/mp_rank_00" "$1/iter_0000007/mp_rank_01"
    printf 7 >"$1/latest_checkpointed_iteration.txt"
    PYTHONPATH=$ROOT/tests/tools python3 - "$@" <<'PY'
import sys
from torch_files import Call, Storage, save, tensor

folder, random = sys.argv[1], "random" in sys.argv[2:]
layer = "decoder.layers.0."
# name, shape of a rank's part
params = [("embedding.word_embeddings.weight", [3, 2]), (layer + "self_attention.linear_proj.weight", [2, 3]),
          (layer + "self_attention.linear_qkv.layer_norm_weight", [2]), (layer + "self_attention.linear_qkv.weight", [3, 2]),
          ("decoder.final_layernorm.weight", [2])]
numel = lambda shape: shape[0] * (shape[1] if len(shape) > 1 else 1)
for rank in range(2):
    count = iter(range(1000))
    # what is not cut is the same on both ranks
    make = lambda shape, base: tensor(Storage(str(next(count)), [float(base + j + (100 * rank if len(shape) > 1 else 0)) for j in range(numel(shape))]), shape)
    model = {name: make(shape, 10 * i) for i, (name, shape) in enumerate(params)}
    state = {i: {"step": 5, "exp_avg": make(shape, 1000)} for i, (_, shape) in enumerate(params)}
    optimizer = {"state": state, "param_groups": [{"lr": 0.5, "params": list(state)}]}
    args = Call("argparse", "Namespace", (), {"tensor_model_parallel_size": 2, "num_layers": 1})
    rng = {"rng_state": [{"random_rng_state": (3, (rank, 5), None)}]} if random else {}
    save("%s/iter_0000007/mp_rank_%02d/model_optim_rng.pt" % (folder, rank),
         {"args": args, "iteration": 7, "checkpoint_version": 3.0, "model": model, "optimizer": optimizer, **rng})
PY
}

# saved_args FOLDER: what its common.pt says was not saved
saved_args() {
    python3 - "$1" <<'PY'
import pickle, sys, zipfile
archive = zipfile.ZipFile(sys.argv[1] + "/iter_0000007/common.pt")


class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        return dict if name == "OrderedDict" else (lambda *_: None) if name.startswith("_") else type(name, (), {})
    def persistent_load(self, pid):
        return None
args = Reader(archive.open(next(n for n in archive.namelist() if n.endswith("/data.pkl")))).load()["args"]
print(sorted(k for k, v in vars(args).items() if k.startswith("no_save_") and v is True))
PY
}

@test "the optimizer of rank folders is left out and counted, whatever is made of them" {
    ranks run
    exits 0 s2s-ckpt verify run
    exits 0 s2s-ckpt ls run
    says_not optimizer
    for command in "convert --to safetensors" "convert --to torch_dist --merge-ranks" "reshard --merge-ranks" "prune --merge-ranks"; do
        rm -rf out
        exits 0 s2s-ckpt $command run out
        says "left out: the optimizer of 2 rank folders"
        exits 0 s2s-ckpt ls out
        says_not optimizer
    done
    exits 0 saved_args out
    [ "$output" = "['no_save_optim']" ]
}

@test "random states of rank folders, which are not merged, are counted, and the arguments say so" {
    ranks run random
    exits 0 s2s-ckpt reshard --merge-ranks run out
    says "left out: rng_state (2)"
    says "2 values of rank folders"
    exits 0 s2s-ckpt prune --merge-ranks --json -q run pruned
    says '"rank_values": 2,'
    says '"names": {"rng_state": 2}'
    exits 0 saved_args pruned
    [ "$output" = "['no_save_optim', 'no_save_rng']" ]
}
