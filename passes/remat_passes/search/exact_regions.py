"""Regions of a sequence solved exactly: a zoom of few operators as a problem for the mixed-integer program.

A zoom is a problem of its own (see `zoom`), in which everything but the operators of the region stays as it is.  So the
program has some thousand variables on any graph, and is mostly solved at the root.  If it is solved and finds nothing
cheaper, the region is proven to be as good as it can be around the rest.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.graph import (
    Op,
    OpId,
    Phase,
    SavePolicy,
    Storage,
    StorageId,
    StorageKind,
    TrainingGraph,
    Trait,
)
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_passes.moves.climb import WORK_PER_SECOND
from remat_passes.moves.zoom import Zoom, region, whole, zoom
from remat_passes.sequences.candidate import SequenceCandidate
from remat_passes.sequences.profile import (
    END,
    KEPT,
    MUST_NOT_SAVE,
    PRODUCER,
    READS,
    REPEATABLE,
    REPLAY,
    SIZE,
    TIME,
    WORKSPACE,
    WRITES,
    Arrays,
    BoolArray,
    IntArray,
    measure,
)

OPERATORS, LARGEST_REGION = 40, 100
"""Operators of a region at first, and the most after `closed` has added those that it needs."""
NODES = 30
"""Nodes of the solver's tree for one program."""
LARGEST = 4_000
"""Executions that the largest program that is tried decides about."""
REGION_WORK, PROGRAM_WORK = 300_000, 80_000
"""Work of a region, and of each program solved for it beyond the solver's: what takes as long as so many steps of a
climb."""
CUBE_WORK = 0.01
"""Work that a program may take, for the cube of the executions that it decides about."""


@dataclass(frozen=True, slots=True, eq=False)
class SolvedRegion:
    """A sequence after one region of it was solved.

    Attributes:
        entry: The sequence, unchanged if nothing cheaper was found.
        work: Work done.
    """

    entry: SequenceCandidate
    work: int


@dataclass(frozen=True, slots=True, eq=False)
class ZoomedProblem:
    """A zoom in the form that every planner takes.

    Attributes:
        problem: The problem; its operators are numbered as they first run.
        plan: The zoom's sequence as its plan.
        ops: Operator of the zoom for each one of the problem.
    """

    problem: RematProblem
    plan: Plan
    ops: IntArray


def zoomed_problem(view: Zoom, budget: int) -> ZoomedProblem:
    """`view` as a problem with `budget` bytes."""
    g = view.g
    # A problem's numbers are its joint order, so operators are numbered by their first run.
    first: dict[int, int] = {}
    for p, op in enumerate(view.steps.tolist()):
        first.setdefault(op, p)
    order = list(first)
    number = {op: OpId(i) for i, op in enumerate(order)}
    # The arrays do not keep phases; place and repeatability tell enough of them.
    phases = [_phase(g, op, first[op] < view.boundary) for op in order]
    graph = TrainingGraph(
        tuple(_operator(g, op, number[op], phase) for op, phase in zip(order, phases)),
        (*_storages(g, order, phases), _tangents(g)),
    )
    times, workspaces = g.ops[order, TIME].tolist(), g.ops[order, WORKSPACE].tolist()
    costs = CostTable(tuple(times), tuple(workspaces), ("zoom",) * len(order))
    plan = Plan(tuple(number[op] for op in view.steps.tolist()), view.boundary)
    return ZoomedProblem(RematProblem(graph, costs, budget), plan, np.array(order, np.int64))


def _phase(g: Arrays, op: int, ahead: bool) -> Phase:
    """Phase of an operator that first runs before the boundary (`ahead`) or after it."""
    if ahead:
        return Phase.FORWARD
    return Phase.TANGENT_FREE if g.ops[op, REPEATABLE] else Phase.BACKWARD


def _operator(g: Arrays, op: int, number: OpId, phase: Phase) -> Op:
    """An operator; one that represents background runs once."""
    row = g.ops[op]
    writes = g.items[row[WRITES] : row[END]]
    replay = None if row[REPLAY] < 0 else StorageId(int(row[REPLAY]))
    unsavable = bool(g.storages[writes, MUST_NOT_SAVE].any())
    return Op(
        id=number,
        name=f"op_{number}",
        target="zoom",
        phase=phase,
        reads=tuple(map(StorageId, g.items[row[READS] : row[WRITES]].tolist())),
        writes=tuple(map(StorageId, writes.tolist())),
        traits=frozenset() if replay is None else frozenset({Trait.RANDOM}),
        # Background must run once; in the backward the phase says so already.
        no_recompute="" if row[REPEATABLE] or phase is Phase.BACKWARD else "background",
        save_policy=SavePolicy.MUST_NOT_SAVE if unsavable else SavePolicy.FREE,
        replay=replay,
    )


def _storages(g: Arrays, order: list[int], phases: list[Phase]) -> list[Storage]:
    """All storages under their own numbers."""
    # Residents, which no operator here makes, have no bytes in the arrays and stay inputs.
    kinds = [StorageKind.INPUT] * len(g.storages)
    for op in order:
        if g.ops[op, REPLAY] >= 0:
            kinds[g.ops[op, REPLAY]] = StorageKind.TEMPORARY
    for op, phase in zip(order, phases):
        ahead = phase is Phase.FORWARD
        for v in g.items[g.ops[op, WRITES] : g.ops[op, END]].tolist():
            kept = StorageKind.OUTPUT if ahead else StorageKind.GRADIENT
            passing = StorageKind.ACTIVATION if ahead else StorageKind.TEMPORARY
            kinds[v] = kept if g.storages[v, KEPT] else passing
    sizes = g.storages[:, SIZE].tolist()
    return [Storage(StorageId(v), f"value_{v}", sizes[v], kind) for v, kind in enumerate(kinds)]


def _tangents(g: Arrays) -> Storage:
    return Storage(StorageId(len(g.storages)), "tangents", int(g.tangent_bytes), StorageKind.TANGENT)


def closed(g: Arrays, steps: IntArray, boundary: int, inside: BoolArray) -> BoolArray | None:
    """`inside` with the operators that its zoom must hold to be a problem; `None` if it cannot be one.

    Added are operators that make a value of the region more than once, since each value of a problem has one maker; and
    tangent-free operators of the backward that the region reads from, since background there has the phase BACKWARD.
    """
    runs = np.bincount(steps, minlength=len(g.ops))
    behind = np.ones(len(g.ops), np.bool_)
    behind[steps[:boundary]] = False
    may = (g.ops[:, REPEATABLE] == 1) & ((runs > 1) | behind)
    # Added operators read values, too, so this repeats until nothing is added or the region is too large.
    inside, grew = inside.copy(), True
    while grew and inside.sum() <= LARGEST_REGION:
        grew = False
        for op in np.flatnonzero(inside):
            makers = g.storages[g.items[g.ops[op, READS] : g.ops[op, WRITES]], PRODUCER]
            makers = makers[makers >= 0]
            # A maker that may not repeat would be background, a BACKWARD one, and no tangent-free operator may depend
            # on that.
            if behind[op] and (behind[makers] & (g.ops[makers, REPEATABLE] == 0)).any():
                return None
            more = makers[may[makers] & ~inside[makers]]
            inside[more] = True
            grew = grew or len(more) > 0
    return None if grew else inside


def solve_region(
    g: Arrays, entry: SequenceCandidate, budget: int, limit_ns: int, draw: random.Random, most_work: float
) -> SolvedRegion:
    """`entry` with one region around a random step of the backward made as cheap as it can be, within limits.

    Nothing is solved that may take more than `most_work`.
    """
    # Loading PuLP takes longer than a quick plan does.
    from remat_passes.exact.backends import SolverOptions
    from remat_passes.exact.program import Cuts
    from remat_passes.exact.refine import refine
    from remat_passes.exact.space import OutsideSpace, Reductions
    from remat_passes.exact.stages import space_of

    # The region is found, and its result put back, by visits to the whole sequence.
    work = REGION_WORK + 4 * len(entry.steps)
    inside = np.zeros(len(g.ops), np.bool_)
    region(g, entry.steps, draw.randrange(entry.boundary, len(entry.steps)), OPERATORS, inside)
    whole_region = closed(g, entry.steps, entry.boundary, inside)
    if whole_region is None:
        return SolvedRegion(entry, work)
    view = zoom(g, entry.steps, entry.boundary, whole_region)
    zoomed = zoomed_problem(view, budget)
    try:
        space = space_of(zoomed.problem, Reductions())
    except OutsideSpace:
        return SolvedRegion(entry, work)
    executions = sum(len(stage.candidates) for stage in space.stages)
    if executions > LARGEST or CUBE_WORK * executions**3 > most_work:
        return SolvedRegion(entry, work)
    # The cutoff: only a cheaper plan of the zoom is of use.
    added_ns = int(measure(view.g, view.steps, view.boundary)[1]) - zoomed.problem.costs.step_ns
    # A limit of nodes and not of seconds keeps the result the same on any machine.
    options = SolverOptions(time_limit_s=None, node_limit=NODES)
    most_s = most_work / WORK_PER_SECOND
    refined = refine(space, Reductions(), Cuts(), options, zoomed.plan, added_ns, most_counted_s=most_s)
    work += PROGRAM_WORK * refined.rounds + int(WORK_PER_SECOND * refined.counted_s)
    plan = refined.plan
    if plan is None:
        return SolvedRegion(entry, work)
    small = zoomed.ops[np.array(plan.steps, np.int64)]
    # The whole sequence is measured, as everywhere: the program only proposes.
    new = SequenceCandidate.of(g, *whole(g, entry.steps, view, small, plan.boundary), limit_ns)
    better = new.peak <= budget and not new.barred and new.time < entry.time
    return SolvedRegion(new if better else entry, work)
