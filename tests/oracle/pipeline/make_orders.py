#!/usr/bin/env python3
"""Writes orders.txt: what torch and megatron-core compute in a pipeline, rank by rank.

make_orders.py >orders.txt     needs torch and megatron-core (PYTHONPATH); orders.txt was made with 2.13 and 0.14.0

A line: who says so, ranks, chunks, microbatches, group, rank; then F3.1 for the forward of microbatch 3 in the rank's chunk 1.
"""
import warnings
from types import SimpleNamespace

warnings.filterwarnings("ignore")
from megatron.core.pipeline_parallel.schedules import (convert_schedule_table_to_order, get_pp_rank_microbatches,
                                                       get_schedule_table)
from torch.distributed.pipelining import schedules

PLAIN = [(1, 3), (2, 2), (2, 5), (4, 4), (4, 9), (8, 16)]
INTERLEAVED = [(2, 2, 2, 2), (2, 2, 4, 2), (2, 2, 5, 3), (2, 3, 8, 4), (3, 2, 9, 3), (4, 2, 8, 4), (4, 2, 14, 5), (4, 3, 12, 4), (4, 3, 15, 5),
               (8, 2, 16, 8)]


def show(who, p, v, m, g, rank, actions):
    print(who, p, v, m, g, rank, *(f"{kind}{mb}.{chunk}" for kind, mb, chunk in actions))


def of_torch(order, p):
    kinds = {"F": "F", "B": "B"}
    return [(kinds[a.computation_type.value], a.microbatch_index, a.stage_index // p) for a in order
            if a is not None and a.computation_type.value in kinds]


def torch_plain(p, m):
    """The last rank's forwards are numbered from 1 there, though all others begin with 0."""
    made = SimpleNamespace(_num_stages=p, _n_microbatches=m)
    order = {r: of_torch(a, p) for r, a in schedules.Schedule1F1B._get_pipeline_order(made).items()}
    order[p - 1] = [(kind, mb - (kind == "F"), chunk) for kind, mb, chunk in order[p - 1]]
    return order


def torch_interleaved(p, v, m):
    rounds = max(1, m // p)
    made = SimpleNamespace(n_local_stages=v, pp_group_size=p, _n_microbatches=m, microbatches_per_round=m // rounds)
    return {r: schedules.ScheduleInterleaved1F1B._calculate_single_rank_operations(made, r) for r in range(p)}


def group(size, rank, v=None):
    pp = SimpleNamespace(size=lambda: size, rank=lambda: rank)
    return SimpleNamespace(pp_group=pp, virtual_pipeline_model_parallel_size=v)


def megatron(p, v, m, g, rank):
    warm_up = get_pp_rank_microbatches(m, v, g, p2p_communicator=group(p, rank, v))[2]
    table = get_schedule_table(m, v, g)
    order = convert_schedule_table_to_order(warm_up, v, table)
    forwards, backwards = iter(table), iter(table)
    out = []
    for entry in order:
        mb, chunk = next(forwards if entry > 0 else backwards)
        out.append(("F", mb, entry - 1) if entry > 0 else ("B", mb, -entry - 1))
    return out


for p, m in PLAIN:
    order = torch_plain(p, m)
    for rank in range(p):
        show("torch", p, 1, m, p, rank, order[rank])
for p, v, m, g in INTERLEAVED:
    for rank in range(p):
        show("megatron-core", p, v, m, g, rank, megatron(p, v, m, g, rank))
    rounds = max(1, m // p)
    if m % rounds == 0 and m // rounds == g:
        order = torch_interleaved(p, v, m)
        for rank in range(p):
            show("torch", p, v, m, g, rank, of_torch(order[rank], p))
