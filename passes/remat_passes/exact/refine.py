"""Solve the program by refining a relaxation: few windows at first, more at places where the relaxed plan overflows.

Each round solves a merged program (`remat_passes.exact.coarse`), whose bound holds for the whole space, and simulates
the plan that its solution stands for.  If that plan overflows, windows are split: after an anchor that overflows, and
around a stage whose gap does.  A plan that fits at the cost of the bound is optimal.  The rounds end there, or with
the limit, or when nothing is left to split.

The idea is dynamic discretization discovery (Boland, Hewitt, Marshall and Savelsbergh, Oper. Res. 65(5), 2017), with
windows of stages in place of points in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import MemoryTimeline, simulate
from remat_passes.exact.backends import SolverOptions
from remat_passes.exact.coarse import merge
from remat_passes.exact.lift import decode, stages_of_steps, start_values
from remat_passes.exact.program import Cuts, Program
from remat_passes.exact.solver import Solution, SolveStatus, solve
from remat_passes.exact.space import BOUNDARY, Reductions, Space

FIRST_WINDOWS = 1
"""Parts of the stages in which the first round has a capacity: little is proven from many at once in limited time."""
SPLITS = 1
"""Windows split in a round, those that overflow most."""
ROUGH_GAP = 0.003
"""Relative gap of a round after which windows are split: an exact optimum of a relaxation is not worth its time."""


@dataclass(frozen=True, slots=True)
class Refined:
    """Result of the rounds.

    Attributes:
        plan: The cheapest plan found that fits, if any is cheaper than the one to begin with.
        added_ns: Its added time.
        bound_ns: Proven lower bound of the added time of every plan of the space.
        infeasible: Proven: no plan of the space fits.
        rounds: Programs solved.
        windows: Windows of the last one.
        nodes: Nodes of all trees.
        executions: Executions that the last one decided about.
        counted_s: About the CPU seconds of all rounds, by their work, see `Solution`.
        seconds: What the solvers are charged with, see `Solution`.
        stats: Solver of the last round; how many were replaced in all rounds, and why.
    """

    plan: Plan | None
    added_ns: int | None
    bound_ns: int
    infeasible: bool
    rounds: int
    windows: int
    nodes: int
    executions: int
    counted_s: float
    seconds: float
    stats: tuple[tuple[str, str], ...]


def refine(
    space: Space,
    reductions: Reductions,
    cuts: Cuts,
    options: SolverOptions,
    first: Plan | None,
    cutoff_ns: int | None,
    judge: RematProblem | None = None,
    most_executions: int | None = None,
    instant: int | None = None,
    most_counted_s: float = math.inf,
) -> Refined:
    """Search `space` for plans cheaper than `cutoff_ns`, the added time of the plan `first` that fits.

    Args:
        space: Where to search.
        reductions: Reductions of each program.
        cuts: Valid inequalities.
        options: Solver and limits, for all rounds together.
        first: A plan to begin with, or `None`.
        cutoff_ns: Its added time, or `None`.
        judge: The problem that plans must fit, if that of `space` is a relaxation of it with the same operators.
        most_executions: Executions that a program may decide about; a finer one is not built.
        instant: An operator at which a capacity is known to bind, for the first round.
        most_counted_s: No round is begun that, if it takes as long as the one before, exceeds so many counted seconds.
    """
    judge = judge or space.problem
    starts = _first_starts(space, instant)
    found = Refined(None, cutoff_ns, 0, False, 0, len(starts), 0, 0, 0.0, 0.0, ())
    gap = ROUGH_GAP
    while True:
        merged = merge(space, starts)
        if most_executions is not None and merged.executions > most_executions:
            return found
        found = replace(found, executions=merged.executions)
        # The best plan so far is the cutoff of every later round, so the solver drops what cannot improve on it.
        program = Program(merged, reductions, cuts, found.added_ns)
        start = start_values(program, first) if first is not None else {}
        left = None if options.time_limit_s is None else max(0.0, options.time_limit_s - found.seconds)
        solution = solve(
            program.model, replace(options, time_limit_s=left, gap=max(gap, options.gap), warm_start=start)
        )
        found = _learned(found, solution, len(starts))
        is_last = found.counted_s + solution.counted_s > most_counted_s
        # Settled, or the solver ran into its limit without a solution from which to refine.
        if found.infeasible or found.bound_ns == found.added_ns or not solution.found:
            return found
        plan = decode(program, solution.values)
        timeline = simulate(judge.graph, judge.costs, plan)
        # A merged program forgets most capacities: only the simulator tells whether its plan fits.
        if timeline.peak_bytes <= judge.budget_bytes:
            if found.added_ns is None or timeline.added_ns < found.added_ns:
                found, first = replace(found, plan=plan, added_ns=timeline.added_ns), plan
            # The relaxation's bound is met by a plan of the original: nothing is cheaper.
            if found.bound_ns >= timeline.added_ns:
                return replace(found, bound_ns=timeline.added_ns)
        # The solver stopped at a limit, and a finer program would be harder still.
        if is_last or solution.status is not SolveStatus.OPTIMAL:
            return found
        finer = _split(space, starts, plan, timeline)
        # Nothing is left to split: once more at the gap asked for, unless this round had it already.
        if finer == starts and gap <= options.gap:
            return found
        gap = options.gap if finer == starts else ROUGH_GAP
        starts = finer


def least_executions(space: Space) -> int:
    """Executions that the program of the first round decides about: fewer than that of any other."""
    return merge(space, _first_starts(space)).executions


def _learned(found: Refined, solution: Solution, windows: int) -> Refined:
    """`found` with the proof of one more solution."""
    known = replace(
        found,
        rounds=found.rounds + 1,
        windows=windows,
        nodes=found.nodes + solution.nodes,
        counted_s=found.counted_s + solution.counted_s,
        seconds=found.seconds + solution.charged_s,
        stats=(("solver", solution.solver), *_fallbacks(found.stats, solution.stats)),
    )
    if solution.status is SolveStatus.INFEASIBLE:
        # Nothing is as cheap as the cutoff, which the plan to begin with is: by arithmetic, or because that plan moves
        # values as no solution can.
        return replace(known, infeasible=found.added_ns is None, bound_ns=found.added_ns or 0)
    bound = max(found.bound_ns, _whole(solution.bound))
    return replace(known, bound_ns=bound if found.added_ns is None else min(bound, found.added_ns))


def _fallbacks(before: tuple[tuple[str, str], ...], now: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """How many solvers were replaced in all rounds, and the latest reason."""
    # The latest stats win, but a reason told once is not lost when a later round needs no other solver.
    counts = [int(dict(stats).get("fallbacks", "0")) for stats in (before, now)]
    told = {**dict(before), **dict(now)}
    return (("fallbacks", str(sum(counts))), ("reason", told["reason"])) if sum(counts) else now


def _whole(bound: float) -> int:
    """The bound of a sum of whole nanoseconds, rounded up after taking off the possible error of the solver."""
    return 0 if math.isinf(bound) else max(0, math.ceil(bound - 1e-3 - 1e-9 * abs(bound)))


def _first_starts(space: Space, instant: int | None = None) -> list[int]:
    """Windows that end at `instant` and at the anchors that need most in each part of the stages that may overflow."""
    # One capacity for each part, at the anchor that needs most for itself: the least room for what is retained.
    limited = [t for t, stage in enumerate(space.stages) if stage.anchor_limited]
    parts = np.array_split(np.array(limited, np.int64), FIRST_WINDOWS)
    ends = {int(part[np.argmax([_pressure(space, int(t)) for t in part])]) for part in parts if len(part)}
    # Operators without an anchor have no stage; those of the skipped prefix have one below 0.
    if instant is not None and space.made_at.get(instant, -1) in limited:
        ends.add(space.made_at[instant])
    if any(space.unsavable(v) for v, last in enumerate(space.last) if last >= 0):
        # What must not cross is forbidden at the start of a window.
        ends |= {t for t, stage in enumerate(space.stages) if BOUNDARY in stage.anchors}
    # A window's capacity is that of its last anchor, so the next one starts after it.
    return sorted({0} | {t + 1 for t in ends if t + 1 < len(space.stages)})


def _pressure(space: Space, t: int) -> int:
    """Bytes that the anchor of stage `t` needs for itself."""
    anchor = space.stages[t].anchors[-1]
    size = space.index.size_bytes
    own = {*space.index.reads[anchor], *space.index.writes[anchor]}
    return space.stages[t].base_bytes + space.problem.costs.workspace_bytes[anchor] + sum(size[s] for s in own)


def _split(space: Space, starts: list[int], plan: Plan, timeline: MemoryTimeline) -> list[int]:
    """`starts` with those windows split that overflow most under `plan`."""
    places = stages_of_steps(space, plan)
    assert places is not None, "decoded plans keep the order of first executions"
    worst: dict[int, tuple[int, int, bool]] = {}
    edges = [*starts, len(space.stages)]
    for step in np.flatnonzero(timeline.live_bytes > space.problem.budget_bytes).tolist():
        place = places[step]
        window = int(np.searchsorted(starts, place.stage, "right")) - 1
        # A window of one stage has all its rows and cannot be split.
        if place.stage >= 0 and edges[window + 1] - edges[window] > 1:
            worst[window] = max(
                worst.get(window, (0, 0, False)), (int(timeline.live_bytes[step]), place.stage, place.anchor)
            )
    new = set(starts)
    for _, t, anchor in sorted(worst.values(), reverse=True)[:SPLITS]:
        # The anchor's capacity counts from the next round on, since its window ends with it.
        new.add(t + 1)
        # Gaps have capacities in windows of one stage only; an anchor that ended its window already is isolated, too.
        if not anchor or t + 1 in starts:
            new.add(t)
    return sorted(t for t in new if t < len(space.stages))
