"""Contract two operators into one where the second only goes on with what the first made.

    i  reads a b    writes v          contracted   reads a b    writes w        workspace: the higher of the two steps
    j  reads v b    writes w

Contracted are neighbours i, j of the same phase where j alone reads v, v is not held, and what else j reads is there
anyway (residents, tangents, what is held since before i) or is read or made by i; both are free of traits, demands and
random states, and what j makes is no larger than v.  The contracted operator needs the bytes of whichever step needs
more, so a lifted plan needs no more than the contracted one: `Claim.ABOVE`.

The optimum is the same (`Claim.SAME`) for neighbours in the backward where the step of j needs no more than that of i:

    bytes(writes of j) + workspace(j) <= workspace(i) + bytes of what i is the last to read

counting there only what the backward makes, since nothing can make that again.  Take a plan that runs others between i
and j.  None of them serves j.  Move them all, in their order, behind j: they make no use of w, and find w alive
instead of v, which is no larger.  At j, what they read is alive instead of what they made; but all of it was alive at i
too, whose step needs no less.  So nothing peaks higher, nothing runs more often, and i and j stand side by side.  This
argument joins two gaps into one, so it is about plans that may run an operator several times in a gap.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from remat_compiler.ir.graph import Op, OpId, Phase, SavePolicy, StorageId, TrainingGraph
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_passes.reductions.reduced import Claim, Reduced, unreduced


def contract(problem: RematProblem, exact: bool = True) -> Reduced:
    """`problem` with neighbours contracted as long as there are any, and without the storages between them.

    Args:
        problem: The problem.
        exact: Contract only where the optimum stays the same.
    """
    reduced = unreduced(replace(problem, reference=None))
    while True:
        pairs = _pairs(reduced.problem, exact)
        if not pairs:
            return reduced
        reduced = _follow(reduced, _contracted(reduced.problem, pairs, exact))


def _follow(first: Reduced, second: Reduced) -> Reduced:
    """Both reductions as one."""
    origin = tuple(tuple(old for op in ops for old in first.origin[op]) for ops in second.origin)
    return Reduced(second.problem, Claim.SAME if first.claim is second.claim is Claim.SAME else Claim.ABOVE, origin)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two neighbours, the storage between them, and the workspace of both as one."""

    first: Op
    second: Op
    between: StorageId
    workspace_bytes: int


def _pairs(problem: RematProblem, exact: bool) -> list[_Pair]:
    """Disjoint neighbours to contract, in order."""
    readers: list[list[OpId]] = [[] for _ in problem.graph.storages]
    for op in problem.graph.ops:
        for s in op.reads:
            readers[s].append(op.id)
    found: list[_Pair] = []
    taken = -1
    for first, second in _neighbours(problem):
        pair = None if first.id == taken else _pair(problem, readers, first, second, exact)
        if pair is not None:
            found.append(pair)
            taken = second.id
    return found


def _neighbours(problem: RematProblem) -> list[tuple[Op, Op]]:
    """Operators of a phase that follow each other; in the backward, tangent-free ones may stand between them."""
    ops = problem.graph.ops
    backward = [op for op in ops if op.phase is Phase.BACKWARD]
    forward = [(a, b) for a, b in itertools.pairwise(ops) if a.phase is b.phase is Phase.FORWARD]
    return [*forward, *itertools.pairwise(backward)]


def _pair(problem: RematProblem, readers: list[list[OpId]], first: Op, second: Op, exact: bool) -> _Pair | None:
    """The pair, if it may be contracted."""
    storages, costs, producer = problem.graph.storages, problem.costs, problem.graph.producers()
    between = [s for s in first.writes if readers[s] == [second.id] and not storages[s].kept]
    if len(between) != 1 or not (_is_free(first) and _is_free(second)):
        return None
    (v,) = between
    near = {*first.reads, *first.writes}
    for s in second.reads:
        maker = producer[s]
        made_before = maker is not None and problem.graph.ops[maker].phase is not Phase.TANGENT_FREE
        there = maker is None or (storages[s].kept and made_before)
        if s not in near and not there:
            return None
    made = sum(storages[s].size_bytes for s in second.writes)
    size = storages[v].size_bytes
    step = made + costs.workspace_bytes[second.id]
    if made > size:
        return None
    if exact:
        dying = sum(storages[s].size_bytes for s in first.reads if _ends_at(problem, producer[s], readers[s], first, s))
        if first.phase is not Phase.BACKWARD or step > costs.workspace_bytes[first.id] + dying:
            return None
        return _Pair(first, second, v, size + costs.workspace_bytes[first.id] - made)
    return _Pair(first, second, v, size - made + max(costs.workspace_bytes[first.id], step))


def _is_free(op: Op) -> bool:
    """Whether nothing but its storages binds `op`."""
    return not op.traits and not op.no_recompute and op.replay is None and op.save_policy is SavePolicy.FREE


def _ends_at(problem: RematProblem, maker: OpId | None, readers: list[OpId], op: Op, s: StorageId) -> bool:
    """Whether the backward makes a storage that `op` alone reads."""
    made = maker is not None and problem.graph.ops[maker].phase is Phase.BACKWARD
    return made and readers == [op.id] and not problem.graph.storages[s].kept


def _contracted(problem: RematProblem, pairs: list[_Pair], exact: bool) -> Reduced:
    """`problem` with the second operators of `pairs` standing for both."""
    by_second = {pair.second.id: pair for pair in pairs}
    gone = {pair.first.id for pair in pairs}
    ops: list[Op] = []
    origin: list[tuple[OpId, ...]] = []
    times: list[int] = []
    workspaces: list[int] = []
    provenance: list[str] = []
    for op in problem.graph.ops:
        if op.id in gone:
            continue
        pair = by_second.get(op.id)
        new = OpId(len(ops))
        parts = (op.id,) if pair is None else (pair.first.id, op.id)
        ops.append(replace(op, id=new) if pair is None else _joined(pair, new))
        origin.append(parts)
        times.append(sum(problem.costs.time_ns[part] for part in parts))
        workspaces.append(problem.costs.workspace_bytes[op.id] if pair is None else pair.workspace_bytes)
        provenance.append(problem.costs.provenance[op.id])
    graph = TrainingGraph(tuple(ops), problem.graph.storages)
    smaller = replace(problem, graph=graph, costs=CostTable(tuple(times), tuple(workspaces), tuple(provenance)))
    rest = _without_orphans(smaller, {pair.between for pair in pairs})
    return Reduced(rest, Claim.SAME if exact else Claim.ABOVE, tuple(origin))


def _joined(pair: _Pair, new: OpId) -> Op:
    """One operator for both."""
    made = [s for s in pair.first.writes if s != pair.between] + list(pair.second.writes)
    reads = {*pair.first.reads, *pair.second.reads} - {*pair.first.writes}
    return replace(
        pair.second,
        id=new,
        reads=tuple(sorted(reads)),
        writes=tuple(made),
        nodes=(*pair.first.nodes, *pair.second.nodes),
    )


def _without_orphans(problem: RematProblem, orphans: set[StorageId]) -> RematProblem:
    """`problem` without storages that no operator names any more."""
    left = [s for s in problem.graph.storages if s.id not in orphans]
    number = {s.id: StorageId(new) for new, s in enumerate(left)}
    ops = tuple(
        replace(
            op,
            reads=tuple(number[s] for s in op.reads),
            writes=tuple(number[s] for s in op.writes),
            replay=None if op.replay is None else number[op.replay],
        )
        for op in problem.graph.ops
    )
    storages = tuple(replace(s, id=number[s.id]) for s in left)
    return replace(problem, graph=TrainingGraph(ops, storages))
