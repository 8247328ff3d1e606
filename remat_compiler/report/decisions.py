"""The decision on each forward storage that the backward part of a plan reads, and its reason.

A storage is listed if a step of the backward reads it and its operator ran in the forward.  It is saved
if the instance of the forward is read after the boundary, recomputed if only later instances are.  A storage
that is saved and later recomputed, too, is listed as saved, with its repetitions.  One that is saved, but not on the
device, is listed as offloaded.
"""

from __future__ import annotations

from collections import Counter

from remat_compiler.ir.graph import Op, SavePolicy, Storage, StorageId, TrainingGraph, Trait
from remat_compiler.ir.plan import Decision, Plan
from remat_compiler.ir.problem import CostTable
from remat_compiler.ir.text_form import format_time
from remat_compiler.report.plan_report import Origin, StorageDecision


def origin_of(op: Op | None) -> Origin:
    """The origin of `op`; empty for `None`."""
    return Origin() if op is None else Origin(op.name, op.target, op.module, op.source)


def decisions(graph: TrainingGraph, plan: Plan, costs: CostTable | None = None) -> tuple[StorageDecision, ...]:
    """The decisions of a valid `plan`, largest storage first, then by id; times are 0 without `costs`."""
    crossing, read = _backward_reads(graph, plan)
    runs = Counter(plan.steps)
    in_forward = set(plan.steps[: plan.boundary])
    producers = graph.producers()
    away = {one.storage for one in plan.transfers if one.out_after <= plan.boundary < one.back_before}
    found: list[tuple[int, StorageId, StorageDecision]] = []
    for storage_id in read:
        producer = producers[storage_id]
        # Inputs and values that only the backward makes were never there to be saved.
        if producer is None or producer not in in_forward:
            continue
        op, storage = graph.ops[producer], graph.storages[storage_id]
        repeats = runs[producer] - 1
        time_ns = 0 if costs is None else costs.time_ns[producer]
        if storage_id not in crossing:
            decision, reason = Decision.RECOMPUTE, _recompute_reason(op, repeats)
        elif storage_id in away:
            decision, reason = Decision.OFFLOAD, "moved off the device to stay within the budget"
        else:
            decision, reason = Decision.SAVE, _save_reason(op, storage, time_ns)
        made = StorageDecision(
            storage.name, storage.size_bytes, decision, repeats, repeats * time_ns, reason, origin_of(op)
        )
        # The id breaks ties, so that equal plans give equal reports.
        found.append((-storage.size_bytes, storage_id, made))
    return tuple(made for _, _, made in sorted(found, key=lambda entry: entry[:2]))


def _backward_reads(graph: TrainingGraph, plan: Plan) -> tuple[set[StorageId], set[StorageId]]:
    """Storages whose forward instance the backward reads, and all storages that the backward reads."""
    crossing: set[StorageId] = set()
    read: set[StorageId] = set()
    made_again: set[StorageId] = set()
    done = set(plan.steps[: plan.boundary])
    for op_id in plan.steps[plan.boundary :]:
        op = graph.ops[op_id]
        # A repetition reads the state of the first execution.
        replay = (op.replay,) if op.replay is not None and op_id in done else ()
        for storage in (*op.reads, *replay):
            read.add(storage)
            # A read of a kept storage means its first instance, however often it is recomputed.
            if storage not in made_again or graph.storages[storage].kept:
                crossing.add(storage)
        # After the reads, which still mean the instance before.
        made_again.update(op.writes)
        done.add(op_id)
    return crossing, read


def _save_reason(op: Op, storage: Storage, time_ns: int) -> str:
    """Why a storage of `op` is kept for the backward."""
    # The order is from what leaves no choice to what does.
    if storage.id == op.replay:
        return "random state, replayed so that a repetition draws the same values"
    if storage.kept:
        return "the caller holds it anyway"
    if op.no_recompute:
        return f"may not be recomputed: {op.no_recompute}"
    if op.save_policy is SavePolicy.MUST_SAVE:
        return "must be saved: a checkpoint policy or the kind of operator demands it"
    return f"fits; saves {format_time(time_ns)} of recomputation" if time_ns else "fits"


def _recompute_reason(op: Op, repeats: int) -> str:
    """Why a storage of `op` is dropped and recomputed."""
    times = "" if repeats == 1 else f", {repeats} times"
    if op.save_policy is SavePolicy.MUST_NOT_SAVE:
        return f"never saved: a checkpoint of the user recomputes it, or it is a chunk of what is saved whole{times}"
    if Trait.RANDOM in op.traits:
        return f"not saved to stay within the budget; replays the same random values{times}"
    return f"not saved to stay within the budget{times}"
