"""From a plan to begin with to a proven optimum: the search over demanded sets, then programs in windows.

Both work on a relaxation first, in which small storages weigh nothing (`exact.small_storages`): its
bounds hold, and its plans mostly fit the original too.  If one does not, both go on with the original.
The search lets operators run in a gap in any order and any number of times, so its proofs hold for all plans that keep
the order of first executions.  Programs bound the plans of the space only.

1. A narrow search over demanded sets: a better plan, in a second.
2. The wide one, until a stage has too many states: the optimum where little is alive at once.
3. Programs in windows: bounds for problems in which most values fit and few places decide which ones must go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_passes.exact.backends import SolverOptions
from remat_passes.exact.demand_search import PLACES, DemandLimits, Searched, search_demands
from remat_passes.exact.program import Cuts
from remat_passes.exact.refine import Refined, refine
from remat_passes.exact.small_storages import zero_small_storages
from remat_passes.exact.space import Reductions
from remat_passes.exact.stages import space_of

NARROW = 25
"""By how much the first search is narrower than the widest."""
SEARCHED = 400
"""Largest graph that is searched, in operators; on larger ones programs make better use of the time."""
STATE_S = 4e-6
"""What a state of a search takes, in seconds."""
TOTAL = 20
"""States of all stages for each that one stage of the widest search may have."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Methods to use, and their limits.

    Attributes:
        solver: Solver and limits; with a time limit of 0 nothing is searched.
        states: States that a stage of the widest search may have; 0 for no search.
        reductions: Reductions of each program.
        cuts: Valid inequalities.
        relaxes: Whether to begin with the relaxation.
        passes_per_gap: How often an operator may run in a gap.
        most_executions: Executions that a program may decide about.
    """

    solver: SolverOptions
    states: int
    reductions: Reductions
    cuts: Cuts
    relaxes: bool
    passes_per_gap: int
    most_executions: int


@dataclass(frozen=True, slots=True)
class Proof:
    """Best plan and bound known of a problem.

    Attributes:
        plan: The cheapest plan found that fits; `None` if none does.
        added_ns: Its added time.
        bound_ns: Proven lower bound of the added time of plans of the space.
        infeasible: Proven: none fits.
        method: Origin of the bound: ``demands`` (for gaps in any order), ``program`` (for the space), ``instant``
            (known before), or nothing.
        states: States of all searches.
        seconds: What searches and solvers are charged with.
        stats: Rounds, windows, executions and nodes of the programs, and what `Solution.stats` says.
    """

    plan: Plan | None
    added_ns: int | None
    bound_ns: int = 0
    infeasible: bool = False
    method: str = ""
    states: int = 0
    seconds: float = 0.0
    stats: tuple[tuple[str, str], ...] = ()

    @property
    def closed(self) -> bool:
        """Whether nothing is left to find."""
        return self.infeasible or self.bound_ns == self.added_ns


def prove(
    problem: RematProblem, plan: Plan | None, effort: Effort, bound_ns: int = 0, instant: int | None = None
) -> Proof:
    """The best plan and bound of `problem` within `effort`.

    Args:
        problem: The problem.
        plan: A plan to begin with, which fits, or `None`.
        effort: Methods and limits.
        bound_ns: A bound known already, of all plans in the joint order.
        instant: Operator whose first execution forces it, if one is known.

    Raises:
        OutsideSpace: See `space_of`.
    """
    added = None if plan is None else simulate(problem.graph, problem.costs, plan).added_ns
    bound_ns = bound_ns if added is None else min(bound_ns, added)
    known = Proof(plan, added, bound_ns, method="instant" if bound_ns else "")
    if known.closed:
        return known
    light = zero_small_storages(problem) if effort.relaxes else problem
    # The relaxation first; the original only if small storages lost bytes, or else it would be solved twice.
    for one in (light, *([problem] if light.graph is not problem.graph else [])):
        limit = effort.solver.time_limit_s
        left = None if limit is None else max(0.0, limit - known.seconds)
        limited = replace(effort, solver=replace(effort.solver, time_limit_s=left))
        known = _attempt(problem, one, known, limited, instant)
        if known.closed:
            break
    return known


def cheaper_plan(problem: RematProblem, plan: Plan, widths: Sequence[int], total: int) -> Plan:
    """The cheapest of `plan`, which fits, and of the plans that narrow searches over demanded sets find.

    Args:
        problem: The problem; small storages weigh nothing in the searches.
        plan: A plan to begin with.
        widths: States for each stage, of one search after another.
        total: States of all searches, after which the last one gives up.

    Raises:
        OutsideSpace: See `space_of`.
    """
    known = Proof(plan, simulate(problem.graph, problem.costs, plan).added_ns)
    space = space_of(zero_small_storages(problem), Reductions())
    for width in widths:
        # Each search must beat the plan of the one before: the better the cutoff, the fewer states go on.
        limits = DemandLimits(width, max(total - known.states, 0), True, _byte_ns(problem, known), free=True)
        known = _searched(problem, known, search_demands(space, known.added_ns, limits))
    return plan if known.plan is None else known.plan


def _attempt(problem: RematProblem, one: RematProblem, known: Proof, effort: Effort, instant: int | None) -> Proof:
    """`known` with the proofs for `one`: `problem` itself, or a relaxation of it."""
    space = space_of(one, effort.reductions, effort.passes_per_gap)
    spent, limit = known.seconds, effort.solver.time_limit_s
    if effort.states and limit != 0 and len(problem.graph.ops) <= SEARCHED:
        width = max(effort.states // NARROW, 1)
        # States that one stage leaves for the next limit the work of a search that thins them.
        total = width * (len(one.graph.ops) + 1) * PLACES
        narrow = DemandLimits(width, total, True, _byte_ns(problem, known), free=True)
        # The narrow search comes first: its plan is the cutoff that keeps the wide one small.
        for limits in (narrow, DemandLimits(effort.states, TOTAL * effort.states, free=True)):
            known = _searched(problem, known, search_demands(space, known.added_ns, limits))
            if known.closed:
                return known
    left = None if limit is None else max(0.0, limit - (known.seconds - spent))
    solver = replace(effort.solver, time_limit_s=left)
    most = effort.most_executions
    found = refine(space, effort.reductions, effort.cuts, solver, known.plan, known.added_ns, problem, most, instant)
    return _refined(known, found)


def _byte_ns(problem: RematProblem, known: Proof) -> float:
    """Rough price of a byte: the added time known, or else the time of the step, per byte of all results."""
    # A scale only, to weigh demanded bytes against time spent in the choice of promising states.
    made = sum(s.size_bytes for s in problem.graph.storages if not s.resident)
    return (problem.costs.step_ns if known.added_ns is None else known.added_ns) / max(made, 1)


def _searched(problem: RematProblem, known: Proof, found: Searched) -> Proof:
    """`known` with the result of a search."""
    seconds = known.seconds + STATE_S * found.states
    known = replace(known, states=known.states + found.states, seconds=seconds)
    if found.plan is not None and found.added_ns is not None:
        # A plan of the relaxation may overflow in the original, where small storages weigh something.
        timeline = simulate(problem.graph, problem.costs, found.plan)
        if timeline.peak_bytes <= problem.budget_bytes and _cheaper(timeline.added_ns, known):
            known = replace(known, plan=found.plan, added_ns=timeline.added_ns)
    # With a known plan this means that nothing is cheaper, without one that nothing fits.
    if found.complete and found.plan is None and known.added_ns is None:
        return replace(known, infeasible=True, method="demands")
    if found.bound_ns > known.bound_ns:
        # The search bounds plans below its cutoff only; the known plan may be cheaper than that bound.
        bound = found.bound_ns if known.added_ns is None else min(found.bound_ns, known.added_ns)
        known = replace(known, bound_ns=bound, method="demands")
    return known


def _cheaper(added_ns: int, known: Proof) -> bool:
    return known.added_ns is None or added_ns < known.added_ns


def _refined(known: Proof, found: Refined) -> Proof:
    """`known` with the result of the rounds of programs."""
    stats = (
        ("rounds", str(found.rounds)),
        ("windows", str(found.windows)),
        ("executions", str(found.executions)),
        ("nodes", str(found.nodes)),
        *found.stats,
    )
    known = replace(known, infeasible=found.infeasible, stats=stats, seconds=known.seconds + found.seconds)
    if found.plan is not None and found.added_ns is not None:
        known = replace(known, plan=found.plan, added_ns=found.added_ns)
    if found.bound_ns > known.bound_ns:
        known = replace(known, bound_ns=found.bound_ns, method="program")
    return known
