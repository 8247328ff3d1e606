"""Search around a plan by integer programs: some operators are free at a time, all others run as in the best plan.

Large neighbourhood search (Shaw, CP 1998), with programs over slots (`remat_passes.exact.slot_program`) in place of a
search for repairs.  The first program has all operators free, but recomputes few of them in a row; those that follow
have runs of operators free, one or two at a time, and recompute as deep as these go.  So one program weighs the whole
step against itself, and the others trade what two places hold.  Each is kept below a number of choices, whatever the
size of the graph.  Plans keep the order of first executions of the plan to begin with, which may be any.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.exact.backends import PIVOT_UNIT_S, SolverOptions
from remat_passes.exact.slot_program import SlotProgram
from remat_passes.exact.slots import Slots, repeatable_ops, slots_around
from remat_passes.exact.solver import solve
from remat_passes.sequences.sequence import StepIndex

DEPTHS = (6, 4, 3, 2, 1, 0)
"""Operators that the program of the whole step may recompute in a row, the most that keeps it small enough."""
LENGTHS = (48, 24, 12, 6)
"""Operators in a run that is free, likewise; single runs overlap by half of the longest."""
PAIRS = 1
"""Pairs of runs for each of the shortest runs of the graph."""
WHOLE_SHARE, SHARE, LEAST_S = 0.6, 0.15, 0.3
"""Part of the time left that the program of the whole step may take, and each other one; and the least in seconds, as
less is not worth building it."""
UNITS_OF_CHOICE = 14
"""Rows and variables of a program for each execution that it decides about."""
INSTANTS = 4
"""Instants of a program, see `SlotProgram`."""
SEED = 1


@dataclass(frozen=True, slots=True)
class Improved:
    """Result of the search.

    Attributes:
        plan: The cheapest plan found, that to begin with if nothing is cheaper.
        added_ns: Its added time.
        programs: Programs solved.
        choices: Executions that the largest one decided about.
        seconds: What the solvers are charged with, see `remat_passes.exact.solver.Solution`.
    """

    plan: Plan
    added_ns: int
    programs: int = 0
    choices: int = 0
    seconds: float = 0.0


def improve_around(
    problem: RematProblem, plan: Plan, options: SolverOptions, most_choices: int, enough_ns: int = 0
) -> Improved:
    """Search around `plan`, which fits and moves nothing.

    Args:
        problem: The problem.
        plan: The plan to begin with.
        options: Solver and limits; seconds are for all programs together.
        most_choices: Executions that a program may decide about.
        enough_ns: Added time that nothing beats: the search ends there.
    """
    index, repeatable = StepIndex.of(problem.graph), repeatable_ops(problem)
    best = Improved(plan, simulate(problem.graph, problem.costs, plan).added_ns)
    for begins in _runs_of(sum(repeatable)):
        left = None if options.time_limit_s is None else options.time_limit_s - best.seconds
        if best.added_ns <= enough_ns or (left is not None and left < LEAST_S):
            break
        limit = None if left is None else max((SHARE if begins else WHOLE_SHARE) * left, LEAST_S)
        most = most_choices if limit is None else min(most_choices, _affordable(limit))
        if begins:
            slots = _around_runs(index, best.plan, repeatable, begins, most)
        else:
            slots = _whole_step(index, best.plan, repeatable, most)
        if slots is not None and slots.choices:
            best = _solved(problem, index, slots, best, replace(options, time_limit_s=limit))
    return best


def _affordable(seconds: float) -> int:
    """Choices of a program whose first linear program, which no limit stops, is solved within `seconds`, about."""
    # It takes about as many iterations as the program has rows and variables.
    return int(math.sqrt(seconds / PIVOT_UNIT_S) / UNITS_OF_CHOICE)


def _runs_of(operators: int) -> Iterator[tuple[int, ...]]:
    """Where the runs of each program begin, of as many operators as may repeat; nowhere means that all are free."""
    yield ()
    for begin in range(0, operators, LENGTHS[0] // 2):
        yield (begin,)
    draw = random.Random(SEED)
    for _ in range(PAIRS * (operators // LENGTHS[-1])):
        yield (draw.randrange(operators), draw.randrange(operators))


def _whole_step(index: StepIndex, plan: Plan, repeatable: Sequence[bool], most_choices: int) -> Slots | None:
    """Slots in which all operators are free, as deep as the number of choices allows."""
    for depth in DEPTHS:
        slots = slots_around(index, plan, repeatable, depth)
        if slots.choices <= most_choices:
            return slots
    return None


def _around_runs(
    index: StepIndex, plan: Plan, repeatable: Sequence[bool], begins: Sequence[int], most_choices: int
) -> Slots | None:
    """Slots in which runs of operators are free, as long as the number of choices allows."""
    ops = [op for op, may in enumerate(repeatable) if may]
    for length in LENGTHS:
        free = [False] * len(repeatable)
        for begin in begins:
            for op in ops[begin : begin + length]:
                free[op] = True
        slots = slots_around(index, plan, free, length)
        if slots.choices <= most_choices:
            return slots
    return None


def _instants(problem: RematProblem, slots: Slots, plan: Plan) -> list[int]:
    """The slot at which `plan` holds most in each part of its backward."""
    live = simulate(problem.graph, problem.costs, plan).live_bytes
    places = [j for j, planned in enumerate(slots.planned) if planned]
    parts = np.array_split(np.arange(plan.boundary, len(plan.steps)), INSTANTS)
    return [places[int(part[np.argmax(live[part])])] for part in parts if len(part)]


def _solved(problem: RematProblem, index: StepIndex, slots: Slots, best: Improved, options: SolverOptions) -> Improved:
    """`best`, or what the program of `slots` makes of it."""
    program = SlotProgram(problem, index, slots, _instants(problem, slots, best.plan))
    solution = solve(program.model, replace(options, warm_start=program.start))
    best = replace(
        best,
        programs=best.programs + 1,
        choices=max(best.choices, slots.choices),
        seconds=best.seconds + solution.charged_s,
    )
    if not solution.found:
        return best
    plan = slots.plan(index, program.chosen(solution.values))
    timeline = simulate(problem.graph, problem.costs, plan)
    cheaper = timeline.added_ns < best.added_ns and timeline.peak_bytes <= problem.budget_bytes
    # The program only proposes: what it forgets, the verifier finds.
    if not cheaper or verify(problem, plan):
        return best
    return replace(best, plan=plan, added_ns=timeline.added_ns)
