"""Folders of a torch.save file for each FSDP rank (model_world_size_N_rank_R.pt of verl, SkyRL), from 1 to 4 processes on a CPU: FSDP2 with rows
that do not divide and ranks that have none, a mesh with replicas, FSDP1, and DTensors cut in other ways. What `ls`, `convert`, `diff`, `average` and
`verify` have must be what torch's own full_tensor() puts together. Exit 0 ok, 1 different, 77 torch is absent."""
import json
import logging as python_logging
import os
import sys
import tempfile
import warnings

from tool import bad, compare, need, need_ok, run

need("torch", "safetensors", "transformers")
import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from transformers.utils import logging

logging.disable_progress_bar()
warnings.simplefilter("ignore")
python_logging.getLogger("torch.distributed.tensor").setLevel(python_logging.ERROR)  # of how it gathers
CONFIG = dict(vocab_size=37, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=4,
              max_position_embeddings=32, tie_word_embeddings=False, dtype="float32")


def save(folder, state, truth_at=None):
    """As verl does, and what is true of it beside, or elsewhere"""
    rank, world = dist.get_rank(), dist.get_world_size()
    os.makedirs(folder, exist_ok=True)
    dist.barrier()
    torch.save(state, "%s/model_world_size_%d_rank_%d.pt" % (folder, world, rank))
    truth = {k: (v.full_tensor() if isinstance(v, DTensor) else v).detach().clone() for k, v in state.items()}
    if rank == 0:
        torch.save(truth, (truth_at or folder) + ".truth.pt")
    dist.barrier()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = torch.nn.Linear(3, 5), torch.nn.LayerNorm(3), torch.nn.Linear(2, 1, dtype=torch.bfloat16)
        self.d = torch.nn.Parameter(torch.randn(7, 2, 3))
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("steps", torch.arange(3.0).repeat(2, 1).T)


def net(mesh):
    torch.manual_seed(0)
    model = Net()
    fully_shard(model.a, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2(folder):
    save(folder, net(init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))).state_dict())


def hsdp(folder):
    save(folder, net(init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "fsdp"))).state_dict())


def fsdp1(folder, *shape):
    from torch.distributed.fsdp import ShardedStateDictConfig, ShardingStrategy, StateDictType
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", shape or (dist.get_world_size(),), mesh_dim_names=("ddp", "fsdp")[-max(1, len(shape)):])
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 7), torch.nn.Linear(7, 1))
    model = FullyShardedDataParallel(model, device_mesh=mesh, device_id=torch.device("cpu"),
                                     sharding_strategy=ShardingStrategy.HYBRID_SHARD if shape else ShardingStrategy.FULL_SHARD)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=True)):
        save(folder, model.state_dict())


def placed(folder):
    """All ways of two axes of a mesh, and meshes of another order"""
    torch.manual_seed(1)
    state = {"plain": torch.randn(3, 2), "scalar": torch.tensor(1.5), "none": torch.empty(0, 3)}
    one, two = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    meshes = {"one": one, "two": two, "turned": DeviceMesh("cpu", [[0, 2], [1, 3]])}
    for name, mesh in meshes.items():
        ways = [(p,) for p in (Replicate(), Shard(0), Shard(1), Shard(2))] if mesh.ndim == 1 else \
            [(p, q) for p in (Replicate(), Shard(0), Shard(1)) for q in (Replicate(), Shard(0), Shard(1))]
        for n, way in enumerate(ways):
            for shape in ((5, 7, 6), (2, 3, 9), (4, 4, 4), (0, 3, 1)):
                state["%s.%d.%s" % (name, n, "x".join(map(str, shape)))] = distribute_tensor(torch.randn(shape).to(torch.bfloat16), mesh, way)
        state[name + ".scalar"] = distribute_tensor(torch.tensor(2, dtype=torch.int32), mesh, [Replicate()] * mesh.ndim)
    save(folder, state)


def refused(folder):
    mesh, one = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), init_device_mesh("cpu", (4,))
    torch.manual_seed(0)
    model = parallelize_module(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)), mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    assert any(isinstance(p, _StridedShard) for p in model.state_dict()["0.weight"].placements)
    local = torch.ones(2, 3)
    for name, state in (("strided", model.state_dict()), ("order", {"w": distribute_tensor(torch.randn(4), DeviceMesh("cpu", [2, 0, 3, 1]), [Shard(0)])}),
                        ("part", {"w": distribute_tensor(torch.randn(4, 4), mesh["tp"], [Shard(0)])}),
                        ("partial", {"w": DTensor.from_local(local, one, [Partial()])}),
                        ("short", {"w": DTensor.from_local(local[:, :2 + (dist.get_rank() == 3)].contiguous(), one, [Shard(0)], shape=torch.Size((8, 2)), stride=(2, 1))}),
                        ("lacks", dict({"v": torch.ones(2)}, **({} if dist.get_rank() == 2 else {"w": torch.ones(3)}))),
                        ("other", {"w": torch.ones(2 + dist.get_rank())}), ("copies", {"w": torch.full((3,), float(dist.get_rank() // 3))}),
                        ("sparse", {"w": torch.ones(2, 2).to_sparse()})):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        dist.barrier()
        torch.save(state, "%s/%s/model_world_size_4_rank_%d.pt" % (folder, name, dist.get_rank()))
    dist.barrier()


REFUSED = {"strided": ("ls", "_StridedShard"), "part": ("ls", "of 2 ranks"), "order": ("ls", "do not ascend"), "partial": ("ls", "placement_types.Partial"), "short": ("ls", "the part is [2, 3]"),
           "lacks": ("ls", "w is in model_world_size_4_rank_0.pt and not in model_world_size_4_rank_2.pt"), "other": ("ls", "other shapes"),
           "copies": ("verify", "differ"), "sparse": ("ls", "not a dense array")}


def llama():
    torch.manual_seed(int(os.environ.get("SEED", "0")))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))


def verl(folder, seed):
    """global_step_N/actor as verl fills it, beside the same as a Hugging Face folder and as torch.distributed.checkpoint has it"""
    os.environ["SEED"] = str(seed)
    model, actor = llama(), folder + "/global_step_1/actor"
    if dist.get_rank() == 0:
        model.save_pretrained(folder + ".hf")
        os.makedirs(actor + "/huggingface")
        model.config.save_pretrained(actor + "/huggingface")
        model.generation_config.save_pretrained(actor + "/huggingface")
        with open(actor + "/fsdp_config.json", "w", encoding="utf-8") as f:
            json.dump({"FSDP_version": 2, "world_size": dist.get_world_size()}, f)
    dist.barrier()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    save(actor, model.state_dict(), folder)
    with open(folder + "/latest_checkpointed_iteration.txt", "w", encoding="utf-8") as f:
        f.write("1")
    torch.save(optimizer.state_dict(), "%s/optim_world_size_%d_rank_%d.pt" % (actor, dist.get_world_size(), dist.get_rank()))
    torch.save({"lr_scheduler": {}, "rng": torch.get_rng_state()}, "%s/extra_state_world_size_%d_rank_%d.pt" % (actor, dist.get_world_size(), dist.get_rank()))
    dcp.save(model.state_dict(), checkpoint_id=folder + ".dcp")


def work(rank, cases):
    for name, folder, *args in cases:
        try:
            globals()[name](folder, *args)
        except Exception as e:
            raise RuntimeError("%s of %d" % (name, dist.get_world_size())) from e
        dist.barrier()


def check(what, folder):
    """All that is read of it against the truth"""
    truth = torch.load(folder + ".truth.pt")
    if need_ok(what, "convert", "-q", "--to", "safetensors", folder, folder + ".safetensors"):
        compare(what, load_file(folder + ".safetensors"), truth)
    out = run("verify", "--strict", folder)
    if out.returncode or "fsdp_rank, %d tensors" % len(truth) not in out.stdout:
        bad.append("%s: verify: %s%s" % (what, out.stdout, out.stderr))
    need_ok(what, "diff", folder, folder + ".safetensors")
    need_ok(what, "average", "-q", folder, folder, folder + ".mean.safetensors")
    need_ok(what, "diff", folder, folder + ".mean.safetensors")


def check_verl(what, folder):
    check(what, folder)
    for to, other in (("hf", "hf"), ("torch_dist", "dist")):
        if need_ok(what, "convert", "-q", "--strict", "--to", to, folder + "/global_step_1", folder + ".to_" + other) and \
                need_ok(what, "convert", "-q", "--strict", "--to", to, folder + ".hf", folder + ".from_" + other):
            need_ok(what, "diff", folder + ".to_" + other, folder + ".from_" + other)
    need_ok(what, "diff", folder, folder + ".dcp")
    if os.path.isdir(folder + ".to_hf"):
        if sorted(os.listdir(folder + ".to_hf")) != sorted(os.listdir(folder + ".from_hf")):
            bad.append("%s: files %s" % (what, sorted(os.listdir(folder + ".to_hf"))))
        got = transformers.AutoModelForCausalLM.from_pretrained(folder + ".to_hf").state_dict()
        compare(what + ", transformers", got, torch.load(folder + ".truth.pt"))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        def at(name):
            return os.path.join(tmp, name)
        cases = {world: [("fsdp2", at("fsdp2 %d" % world))] for world in (1, 2, 3, 4)}
        cases[2] += [("fsdp1", at("fsdp1 2")), ("verl", at("verl 2"), 0), ("verl", at("verl again"), 1)]
        cases[3] += [("fsdp1", at("fsdp1 3")), ("verl", at("verl 3"), 0)]
        cases[4] += [("hsdp", at("hsdp")), ("fsdp1", at("fsdp1 hybrid"), 2, 2), ("placed", at("placed")), ("refused", at("refused"))]
        for world, some in cases.items():
            ranks.together(work, world, some)
        n = 0
        for name, folder, *_ in sum(cases.values(), []):
            what = os.path.basename(folder)
            if name == "refused":
                for case, (command, text) in REFUSED.items():
                    out = run(command, os.path.join(folder, case))
                    if out.returncode != 1 or text not in out.stderr:
                        bad.append("refused %s: %d %s" % (case, out.returncode, out.stderr))
            else:
                (check_verl if name == "verl" else check)(what, folder)
            n += 1
        if need_ok("average", "average", "-q", "--to", "hf", at("verl 2"), at("verl again"), at("mean")) and \
                need_ok("average", "average", "-q", at("verl 2.hf"), at("verl again.hf"), at("mean hf")):
            need_ok("average", "diff", at("mean"), at("mean hf"))
    print("\n".join(bad) if bad else "%d folders of FSDP ranks as torch %s puts them together" % (n, torch.__version__))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
