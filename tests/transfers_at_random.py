"""Transfers at random: what a plan could move off the device, and when."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

from remat_compiler.ir.graph import KEPT_KINDS, StorageId, StorageKind, TrainingGraph
from remat_compiler.ir.plan import Plan, Tier, Transfer


def possible_transfers(graph: TrainingGraph, plan: Plan) -> list[Transfer]:
    """The longest transfer between any two uses of a storage that may be moved."""
    states = {op.replay for op in graph.ops}
    uses: dict[StorageId, list[int]] = {}
    makes: dict[StorageId, set[int]] = {}
    for step, op_id in enumerate(plan.steps):
        for storage in (*graph.ops[op_id].reads, *graph.ops[op_id].writes):
            uses.setdefault(storage, []).append(step)
        for storage in graph.ops[op_id].writes:
            makes.setdefault(storage, set()).add(step)
    found = []
    for storage, steps in uses.items():
        info = graph.storages[storage]
        if info.resident or info.kind in KEPT_KINDS | {StorageKind.TANGENT} or storage in states:
            continue
        for before, after in pairwise(steps):
            rereads = storage in graph.ops[plan.steps[after]].reads
            if before + 1 < after and rereads and min(makes[storage]) <= before:
                found.append(Transfer(storage, before + 1, after, Tier.HOST))
    return found


def with_random_transfers(graph: TrainingGraph, plan: Plan, random: Random, share: float) -> Plan:
    """`plan` with a share of its possible transfers, some of them shorter than they could be."""
    chosen = []
    for one in possible_transfers(graph, plan):
        if random.random() >= share:
            continue
        first, last = sorted(random.choices(range(one.out_after, one.back_before + 1), k=2))
        whole = first == last or random.random() < 0.5
        out_after, back_before = (one.out_after, one.back_before) if whole else (first, last)
        chosen.append(Transfer(one.storage, out_after, back_before, random.choice(list(Tier))))
    return replace(plan, transfers=tuple(chosen))
