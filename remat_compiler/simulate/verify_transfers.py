"""The naive checker's part for transfers: a moved instance is back when it is needed, and was worth moving.

An instance may be off the device between two steps of its life, but neither where it is made nor where it is last read:

    made at 3      read at 9        out_after >= 4, back_before <= 9, and no step between reads or makes the storage
"""

from __future__ import annotations

from remat_compiler.ir.graph import KEPT_KINDS, RESIDENT_KINDS, Op, StorageKind, TrainingGraph
from remat_compiler.ir.plan import PAGE_BYTES, Plan, Transfer
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.rules import Rule, Violation


def check_transfers(problem: RematProblem, plan: Plan) -> list[Violation]:
    """Rules that the transfers of `plan` break; its steps must be valid."""
    graph = problem.graph
    found: list[Violation] = []
    moved: dict[int, list[Transfer]] = {}
    for one in plan.transfers:
        # The second check indexes by what the first one finds to exist.
        violation = _check_place(graph, plan, one) or _check_life(graph, plan, one)
        if violation is not None:
            found.append(violation)
            continue
        others = moved.setdefault(one.storage, [])
        # One that begins where another ends has no step to come back in: together they are one transfer.
        if any(one.out_after <= other.back_before and other.out_after <= one.back_before for other in others):
            found.append(Violation(Rule.TRANSFER_TWICE, one.out_after, graph.storages[one.storage].name))
        others.append(one)
    return found or _check_room(problem, plan)


def _check_room(problem: RematProblem, plan: Plan) -> list[Violation]:
    """Whether all that the plan moves finds room, in tiers that exist."""
    tiers = {link.tier for link in problem.costs.links}
    found = [
        Violation(Rule.TRANSFER_TIER, one.out_after, one.tier.value) for one in plan.transfers if one.tier not in tiers
    ]
    # Without reuse of room that is given back: so it holds in whatever order the backward gives it back, or never does.
    total = 0
    for one in plan.transfers:
        size_bytes = problem.graph.storages[one.storage].size_bytes
        total += -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
    if total > problem.offload_bytes:
        found.append(Violation(Rule.TRANSFER_ROOM, 0, f"{total} bytes, of {problem.offload_bytes}"))
    return found


def _check_place(graph: TrainingGraph, plan: Plan, one: Transfer) -> Violation | None:
    """The first defect of the steps and the storage that a transfer names, if any."""
    if not 0 <= one.storage < len(graph.storages):
        return Violation(Rule.TRANSFER_PLACE, one.out_after, f"storage {one.storage}")
    # At least one step runs before it and one after: an instance is made before it leaves, and read after it returns.
    if not 0 < one.out_after < one.back_before < len(plan.steps):
        steps = f"out_after={one.out_after}, back_before={one.back_before}, {len(plan.steps)} steps"
        return Violation(Rule.TRANSFER_PLACE, one.out_after, steps)
    storage = graph.storages[one.storage]
    # Callers hold resident and kept storages, autograd holds tangents, and a random state belongs to its generator.
    replayed = any(op.replay == one.storage for op in graph.ops)
    if storage.kind in RESIDENT_KINDS | KEPT_KINDS | {StorageKind.TANGENT} or replayed:
        kind = "random state" if replayed else storage.kind.value
        return Violation(Rule.TRANSFER_KIND, one.out_after, f"{storage.name}: {kind}")
    return None


def _check_life(graph: TrainingGraph, plan: Plan, one: Transfer) -> Violation | None:
    """The first defect of a transfer in the instance's life, if any: made before, unused meanwhile, read later."""
    name = graph.storages[one.storage].name
    ops = [graph.ops[op_id] for op_id in plan.steps]
    if not any(one.storage in op.writes for op in ops[: one.out_after]):
        return Violation(Rule.TRANSFER_USELESS, one.out_after, f"{name} is not made before")
    for step in range(one.out_after, one.back_before):
        if one.storage in ops[step].reads or one.storage in ops[step].writes:
            return Violation(Rule.TRANSFER_AWAY, step, f"{ops[step].name} and {name}")
    if not _is_read(ops[one.back_before :], one.storage):
        return Violation(Rule.TRANSFER_USELESS, one.back_before, f"{name} is not read later")
    return None


def _is_read(ops: list[Op], storage: int) -> bool:
    """Whether `storage` is read before its next instance is made."""
    for op in ops:
        if storage in op.reads:
            return True
        # The next instance replaces the one that was moved, so bringing that back served nobody.
        if storage in op.writes:
            return False
    return False
