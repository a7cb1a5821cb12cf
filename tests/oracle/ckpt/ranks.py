"""Processes of one gloo group. They are forked from the process that calls, which has imported what they need: that is most of what a small
case costs. The caller itself must be in no group, and have made no threads."""
import ctypes
import multiprocessing
import multiprocessing.managers
import os
import signal
import tempfile

import torch
import torch.distributed as dist


def together(do, world, *args):
    """do(rank, *args) in WORLD processes; torch.multiprocessing.ProcessRaisedException with what one of them raised."""
    with tempfile.TemporaryDirectory() as tmp:
        torch.multiprocessing.start_processes(one, (world, os.path.join(tmp, "store"), do, args), world, daemon=False, start_method="fork")


def one(rank, world, store, do, args):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
    do(rank, *args)
    dist.destroy_process_group()


def keep_results():
    """Megatron-Core keeps what its writers report in a process that it does not fork, and which so imports everything anew. In a rank."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    assert filesystem_async._results_queue is None
    manager = multiprocessing.managers.SyncManager(ctx=multiprocessing.get_context("fork"))
    manager.start(end_with_parent)
    filesystem_async._results_queue = manager.Queue()


def end_with_parent():
    """Else it would hold open what tells the caller that a rank which failed has ended."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
