"""Drop what nobody needs: operators behind nothing that runs, storages that nobody reads or makes.

*Operators.*  A tangent-free operator on which neither the backward nor anything held by the caller depends, and that is
not bound to run, need not run.  Its executions cost time and bytes and make nothing that is read, so plans without
them are no worse.

*Results that nobody reads*, and that the caller does not hold, live while their operator runs and no longer: they are
workspace.  A result that an operator must not save is left as it is, since that is a demand on plans.

*Storages* that no operator reads or makes do not count, but for tangents, which are alive in the whole backward.

Both optima are the same, and so are the peaks of plans (`Claim.SAME`).
"""

from __future__ import annotations

from dataclasses import replace

from remat_compiler.ir.graph import Op, OpId, Phase, SavePolicy, StorageId, StorageKind, TrainingGraph
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_passes.reductions.reduced import Claim, Reduced


def drop_needless(problem: RematProblem) -> Reduced:
    """`problem` without what nobody needs."""
    kept_ops = _needed(problem)
    read = {s for op in kept_ops for s in op.reads}
    spare = {op.id: _unread(problem, op, read) for op in kept_ops}
    used = {s for op in kept_ops for s in (*op.reads, *op.writes, *(() if op.replay is None else (op.replay,)))}
    used -= {s for storages in spare.values() for s in storages}
    used |= {s.id for s in problem.graph.storages if s.kind is StorageKind.TANGENT}
    number = {old: StorageId(new) for new, old in enumerate(sorted(used))}
    ops = tuple(
        replace(
            op,
            id=OpId(new),
            reads=tuple(number[s] for s in op.reads),
            writes=tuple(number[s] for s in op.writes if s in number),
            replay=None if op.replay is None else number[op.replay],
        )
        for new, op in enumerate(kept_ops)
    )
    storages = problem.graph.storages
    costs = CostTable(
        tuple(problem.costs.time_ns[op.id] for op in kept_ops),
        tuple(
            problem.costs.workspace_bytes[op.id] + sum(storages[s].size_bytes for s in spare[op.id]) for op in kept_ops
        ),
        tuple(problem.costs.provenance[op.id] for op in kept_ops),
    )
    graph = TrainingGraph(ops, tuple(replace(storages[old], id=new) for old, new in number.items()))
    smaller = replace(problem, graph=graph, costs=costs, reference=None)
    return Reduced(smaller, Claim.SAME, tuple((op.id,) for op in kept_ops))


def _needed(problem: RematProblem) -> list[Op]:
    """Operators that run in some plan that is no worse than any, in joint order."""
    ops, producer = problem.graph.ops, problem.graph.producers()
    needed = [op.phase is not Phase.TANGENT_FREE or _bound(problem, op) for op in ops]
    for op in reversed(ops):
        for s in op.reads if needed[op.id] else ():
            maker = producer[s]
            if maker is not None:
                needed[maker] = True
    return [op for op in ops if needed[op.id]]


def _bound(problem: RematProblem, op: Op) -> bool:
    """Whether a tangent-free operator has to run even if nobody reads what it makes."""
    pinned = bool(op.no_recompute or op.traits) or op.save_policy is SavePolicy.MUST_SAVE
    return pinned or not op.writes or any(problem.graph.storages[s].kept for s in op.writes)


def _unread(problem: RematProblem, op: Op, read: set[StorageId]) -> list[StorageId]:
    """Results of `op` that are workspace; one result stays, since an operator without any has to run."""
    if op.save_policy is SavePolicy.MUST_NOT_SAVE:
        return []
    unread = [s for s in op.writes if s not in read and not problem.graph.storages[s].kept]
    alone = len(unread) == len(op.writes) and op.phase is Phase.TANGENT_FREE
    return unread[1:] if alone else unread
