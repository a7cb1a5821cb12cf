"""Megatron-LM's own training package (megatron.training of PYTHONPATH) on a CPU: its command line, its optimizer, its save_checkpoint and
load_checkpoint. Each line of stdin is a request in JSON, ["save", "load" or "logits", number of processes, job]; each is answered by a line on
stdout, null or what went wrong as a string. A job is a dict:

    argv    the words of the command line, among them --save or --load
    path    "save" and "load" write PATH.truth.json of what the model and its optimizer hold (as mcore_worker.py does), and PATH.after.truth.json
            of the model after one more step, whose gradients depend on names and places alone; "logits" PATH.logits of the tokens;
            "save" with --use-torch-fsdp2 PATH.whole, a file of torch.save with the parameters whole
    tokens  for "logits": a list
    local   names are to be those of modules: norms before experts are by a slip saved as those of a dense layer, and of a hybrid model, which
            has no local layers, those that a name map would rename keep theirs

Models are built here as the builders beside megatron/ do, of modules that need no Transformer Engine."""
import functools
import hashlib
import importlib.machinery
import json
import os
import sys
import types
import typing
from unittest.mock import MagicMock

import torch
import torch.distributed as dist

import mcore_cpu
import mcore_worker
import ranks
from mcore_worker import takes


def release():
    from megatron.core import package_info
    return package_info.MAJOR, package_info.MINOR


@functools.cache
def prepare():
    """Imports what the ranks, which are forked, will need; gives it a device to ask about."""
    for name in ("six", "pybind11", "sentencepiece", "tiktoken", "omegaconf", "nltk", "one_logger_utils"):  # tokenizers and loggers
        try:
            __import__(name)
        except ImportError:
            sys.modules[name] = MagicMock(__spec__=importlib.machinery.ModuleSpec(name, None), __path__=[], __version__="9")
    torch._dynamo.config.disable = True
    typing.override = getattr(typing, "override", lambda method: method)  # of Python 3.12
    device = types.SimpleNamespace(major=9, minor=0, multi_processor_count=1, total_memory=1 << 36)
    for name, does in dict(get_device_capability=lambda *_: (9, 0), get_rng_state=lambda *_, **__: torch.get_rng_state(),
                           set_rng_state=lambda state, *_, **__: torch.set_rng_state(state), is_initialized=lambda: True, Stream=MagicMock,
                           current_stream=MagicMock(), stream=lambda _: MagicMock(), get_device_properties=lambda *_, **__: device,
                           manual_seed=lambda _: None, mem_get_info=lambda *_: (1, 1), default_generators=(torch.default_generator,)).items():
        setattr(torch.cuda, name, does)
    import megatron.training.arguments
    import megatron.training.async_utils
    import megatron.training.checkpointing
    import megatron.training.training  # noqa: F401
    from megatron.core.models.gpt import gpt_layer_specs  # noqa: F401
    from megatron.core.transformer import torch_norm
    from megatron.core.transformer.moe import moe_utils
    if release() < (0, 13):  # asks for Transformer Engine's version where there is nothing to do
        from megatron.core.optimizer import distrib_optimizer
        distrib_optimizer.quantize_param_shard = lambda *_, **__: None
        megatron.training.checkpointing.fix_fp8_params_lose_precision_when_loading_dist_ckpt = lambda _: None
    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
    own = torch_norm.WrappedTorchNorm.__new__

    def new(cls, config, *args, **more):  # it refuses sequence parallelism, of which checkpoints show nothing
        parallel, config.sequence_parallel = config.sequence_parallel, False
        try:
            return own(cls, config, *args, **more)
        finally:
            config.sequence_parallel = parallel

    torch_norm.WrappedTorchNorm.__new__ = new
    from megatron.core.dist_checkpointing import optimizer as sharded
    from megatron.core.distributed import torch_fully_sharded_data_parallel as fsdp2
    mesh = fsdp2.DeviceMesh
    fsdp2.DeviceMesh = types.SimpleNamespace(from_group=lambda group, _: mesh.from_group(group, "cpu"))
    # it finds parameters by the id of their local tensors, of which newer torch gives a view
    sharded.to_local_if_dtensor = lambda t: getattr(t, "_local_tensor", t)


def arguments(rank, world, argv):
    """What pretrain() makes of its command line, its groups and its random states"""
    from megatron.core import num_microbatches_calculator, parallel_state, rerun_state_machine
    from megatron.core.tensor_parallel import random
    from megatron.training import arguments as own, checkpointing, global_vars
    sys.argv = ["pretrain_gpt.py", *argv]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank),
                      CUDA_DEVICE_MAX_CONNECTIONS="8" if "--use-torch-fsdp2" in argv else "1")
    args = own.parse_args(ignore_unknown_args=release() < (0, 15))
    args.use_mamba_mem_eff_path, args.disable_mamba_mem_eff_path, args.save_tokenizer_assets = False, True, False
    if args.use_checkpoint_args:
        checkpointing.load_args_from_checkpoint(args)
    own.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
    rows = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    args.padded_vocab_size = getattr(args, "padded_vocab_size", None) or -(-args.vocab_size // rows) * rows
    global_vars.set_args(args)
    global_vars._GLOBAL_TIMERS = MagicMock()
    num_microbatches_calculator.init_num_microbatches_calculator(
        rank, args.rampup_batch_size, args.global_batch_size, args.micro_batch_size, args.data_parallel_size, False)
    parallel_state.initialize_model_parallel(
        args.tensor_model_parallel_size, args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size, expert_tensor_parallel_size=args.expert_tensor_parallel_size)
    random.initialize_rng_tracker(**takes(random.initialize_rng_tracker, force_reset=True))
    tracker = random.get_cuda_rng_tracker()
    tracker.fork = lambda *_, **__: torch.random.fork_rng(devices=[])
    torch.manual_seed(100 + rank)
    tracker.states_ = {"model-parallel-rng": torch.get_rng_state(), "expert-parallel-rng": torch.get_rng_state()}
    rerun_state_machine.initialize_rerun_state_machine(mode=rerun_state_machine.RerunMode.DISABLED)
    return args


def provide(local, pre_process=True, post_process=True, vp_stage=None, config=None, **_):
    """The model of the arguments"""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec, get_gpt_mtp_block_spec
    from megatron.core.models.mamba import MambaModel
    from megatron.training import get_args
    from megatron.training.arguments import core_transformer_config_from_args
    args = get_args()
    config = config or core_transformer_config_from_args(args)
    pattern = getattr(args, "hybrid_layer_pattern", None) or args.hybrid_override_pattern
    if pattern:
        kind, how = MambaModel, dict(mamba_stack_spec=mcore_cpu.hybrid_spec(4, args.num_experts, local))
        how["hybrid_layer_pattern" if getattr(args, "hybrid_layer_pattern", None) else "hybrid_override_pattern"] = pattern
    else:
        kind, how = GPTModel, dict(rope_scaling=args.use_rope_scaling)
        if args.num_experts:
            spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=args.normalization,
                                              **takes(get_gpt_decoder_block_spec, vp_stage=vp_stage))
            for layer in spec.layer_specs:
                if "MoE" in str(layer.submodules.mlp) and not local:  # as in mcore_cpu.gpt
                    layer.submodules.sharded_state_dict_keys_map = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
        else:
            spec = get_gpt_layer_local_spec(qk_layernorm=args.qk_layernorm, normalization=args.normalization)
        how.update(transformer_layer_spec=spec, **takes(GPTModel.__init__, vp_stage=vp_stage))
        if args.mtp_num_layers:
            last = getattr(spec, "layer_specs", [spec])[-1]
            how.update(mtp_block_spec=get_gpt_mtp_block_spec(config, last, use_transformer_engine=False, **takes(get_gpt_mtp_block_spec, vp_stage=vp_stage)))
    return kind(config, vocab_size=args.padded_vocab_size, max_sequence_length=args.max_position_embeddings, pre_process=pre_process,
                post_process=post_process, share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
                position_embedding_type=args.position_embedding_type, rotary_percent=args.rotary_percent, rotary_base=args.rotary_base, **how)


def unwrapped(models):
    for m in models:
        while hasattr(m, "module"):
            m = m.module
        yield m


def metadata_of(args):
    """How this release's optimizer is sharded under these arguments"""
    from megatron.training import checkpointing
    if hasattr(checkpointing, "_build_sharded_state_dict_metadata"):
        return checkpointing._build_sharded_state_dict_metadata(args)
    return {"distrib_optim_sharding_type": "fully_sharded_model_space"} if args.use_distributed_optimizer else {}


def states(models, metadata):
    return {"model%d" % i if len(models) > 1 else "model": m.sharded_state_dict(metadata=metadata) for i, m in enumerate(unwrapped(models))}


def tell(args, models, optimizer, path, rank):
    """What mcore_worker.together puts together"""
    metadata = metadata_of(args)
    state = states(models, metadata)
    if optimizer and not args.no_load_optim:
        more = takes(mcore_worker.parts_of(optimizer)[0].sharded_state_dict, metadata=metadata)
        if not more and args.use_distributed_optimizer:
            more = {"sharding_type": metadata["distrib_optim_sharding_type"]}
        state["optimizer"] = optimizer.sharded_state_dict(state, is_loading=False, **more)
    torch.save(mcore_worker.shards(state), "%s.%d.shards" % (path, rank))


def tell_what_is_saved(path, rank):
    """Of padding the values, too, are those that the files have."""
    from megatron.core import dist_checkpointing
    own = dist_checkpointing.save

    def save(state, *args, **more):
        torch.save(mcore_worker.shards(state), "%s.%d.shards" % (path, rank))
        return own(state, *args, **more)

    dist_checkpointing.save = save


def gradient(t, seed):
    """Of a tensor's part: what it has by name and place. Of a vocabulary, padding shall change no row."""
    rows = 1024 if t.allow_shape_mismatch else t.global_shape[0]
    name = hashlib.sha256(t.key.encode()).hexdigest()[:8]
    whole = torch.randn((rows, *t.global_shape[1:]), generator=torch.Generator().manual_seed(int(name, 16) + seed))
    sizes = (1,) * t.prepend_axis_num + tuple(t.local_shape)
    return whole[tuple(slice(o, o + n) for o, n in zip(t.global_offset, sizes))].reshape(t.local_shape)


def step(args, models, optimizer, seed):
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
    for item in nested_values(states(models, metadata_of(args))):
        if isinstance(item, (ShardedTensor, ShardedTensorFactory)) and hasattr(item.data, "main_grad"):
            grad, factory = item.data.main_grad, isinstance(item, ShardedTensorFactory)
            if factory:  # its parts are views
                item.data = grad.view(item.data.shape)
            for t in nested_values([item.build()]) if factory else [item]:
                (t.data if factory else grad).copy_(gradient(t, seed))
    if args.use_torch_fsdp2:
        from torch.distributed.tensor import distribute_tensor
        for n, p in enumerate(models[0].parameters()):
            p.grad = distribute_tensor(torch.randn(p.shape, generator=torch.Generator().manual_seed(n + seed)).to(p.dtype), p.device_mesh, p.placements)
    optimizer.step()


def logits_of(model, tokens):
    return mcore_cpu.logits(model.eval(), torch.tensor([tokens]))


def work(rank, world, what, job):
    ranks.keep_results()
    from megatron.core.enums import ModelType
    from megatron.training import async_utils, checkpointing, training
    with mcore_worker.OnCpu():
        try:
            args = arguments(rank, world, job["argv"])
            models, optimizer, scheduler = training.setup_model_and_optimizer(
                model_provider_func=functools.partial(provide, job["local"]), model_type=ModelType.encoder_or_decoder, checkpointing_context={})
        except SystemExit as e:  # argparse, --exit-on-missing-checkpoint
            raise RuntimeError("the trainer exits: %s" % e)
        if what == "logits":
            torch.save(logits_of(*unwrapped(models), job["tokens"]), job["path"] + ".logits")
            return
        if what == "save":
            mcore_worker.fill_models(states(models, metadata_of(args)))
            optimizer.reload_model_params()
            for seed in range(2):
                step(args, models, optimizer, seed)
        tell(args, models, optimizer, job["path"], rank)
        if what == "save":
            tell_what_is_saved(job["path"], rank)
            if args.use_torch_fsdp2:
                whole = {name.removeprefix("module."): p.full_tensor() for name, p in models[0].module.named_parameters()}
                torch.save(whole, job["path"] + ".whole" if rank == 0 else os.devnull)
            checkpointing.save_checkpoint(7, models, optimizer, scheduler, 1, checkpointing_context={})
            if args.async_save:
                async_utils.maybe_finalize_async_save(blocking=True)
        if optimizer and not args.no_load_optim:
            step(args, models, optimizer, 99)
            torch.save(mcore_worker.shards(states(models, metadata_of(args))), "%s.after.%d.shards" % (job["path"], rank))
        dist.barrier()


def answer(what, world, job):
    prepare()
    try:
        ranks.together(work, world, world, what, job)
    except (torch.multiprocessing.ProcessRaisedException, torch.multiprocessing.ProcessExitedException) as e:
        return str(e)[-1500:]
    for path in (job["path"], job["path"] + ".after"):
        if os.path.exists(path + ".0.shards"):
            with open(path + ".truth.json", "w", encoding="utf-8") as f:
                json.dump(mcore_worker.together(path, world), f)


if __name__ == "__main__":
    mcore_worker.main(answer)
