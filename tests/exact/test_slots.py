"""Programs over slots: they know every plan of their slots, and what they propose is a plan that fits."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from builders import random_problem, with_budget
from exact.exhaustive import optimum_ns
from remat_compiler.ir.graph import Phase
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.exact.backends import SolverOptions
from remat_passes.exact.neighbourhood import improve_around
from remat_passes.exact.slot_program import SlotProgram
from remat_passes.exact.slots import Slots, repeatable_ops, slots_around
from remat_passes.exact.solver import SolveStatus, solve
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll
from remat_passes.sequences.sequence import StepIndex

pytest.importorskip("highspy")
EXACT = SolverOptions("highs", None)


def drawn(rng: Random) -> RematProblem:
    problem = random_problem(rng, rng.randint(2, 7), rng.randint(2, 5))
    return with_budget(problem, int(SaveAll().plan(problem).peak_bytes * rng.uniform(0.5, 1.0)))


def drawn_without_demands(rng: Random) -> RematProblem:
    """A problem in which tangent-free operators run only for their readers: others have one place in slots."""
    while True:
        problem = drawn(rng)
        index = StepIndex.of(problem.graph)
        if not any(index.demanded[op.id] for op in problem.graph.ops if op.phase is Phase.TANGENT_FREE):
            return problem


def drawn_with_plan(rng: Random, *, reorders: bool) -> tuple[RematProblem, Plan]:
    """A problem with a plan that fits and recomputes something."""
    while True:
        problem = drawn(rng)
        found = Auto(effort=50, reorders=reorders, time_limit=0.0).plan(problem)
        if found.plan is not None and found.peak_bytes <= problem.budget_bytes and found.added_ns:
            return problem, found.plan


def all_slots(problem: RematProblem, index: StepIndex) -> Slots:
    """Every operator that may, in every gap between first executions, in joint order."""
    ops, may = problem.graph.ops, repeatable_ops(problem)
    anchors = [op.id for phase in (Phase.FORWARD, Phase.BACKWARD) for op in ops if op.phase is phase]
    boundary = sum(op.phase is Phase.FORWARD for op in ops)
    made: set[int] = set()
    sequence: list[tuple[int, bool]] = []
    ahead = 0
    for position, anchor in enumerate(anchors):
        if position == boundary:
            # The gap behind the boundary is another one than that before it.
            sequence += [(i, True) for i in _ready(index, may, made)]
            ahead = len(sequence)
        sequence += [(i, True) for i in _ready(index, may, made)]
        sequence.append((anchor, False))
        made.add(anchor)
    optional = tuple(one for _, one in sequence)
    planned = tuple(not one for one in optional)
    return Slots(tuple(i for i, _ in sequence), optional, planned, ahead)


def _ready(index: StepIndex, may: list[bool], made: set[int]) -> list[int]:
    """Operators that may run here, in joint order; those without a first execution of their own among them."""
    found = []
    for i, repeats in enumerate(may):
        free = index.phase[i] is Phase.TANGENT_FREE and all(
            index.producer[s] < 0 or index.producer[s] in made for s in index.reads[i]
        )
        if repeats and (i in made or free):
            found.append(i)
            made.add(i)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_all_slots_have_the_optimum_of_all_plans(seed: int) -> None:
    """Of those that run an operator once in a gap, in joint order: by an exhaustive search that knows no program."""
    problem = drawn_without_demands(Random(5000 + seed))
    index = StepIndex.of(problem.graph)
    slots = all_slots(problem, index)
    program = SlotProgram(problem, index, slots, range(0, len(slots.ops), 2))
    solution = solve(program.model, EXACT)
    expected = optimum_ns(problem, once_per_gap=True)
    if expected is None:
        assert solution.status is SolveStatus.INFEASIBLE
        return
    plan = slots.plan(index, program.chosen(solution.values))
    assert verify(problem, plan) == []
    timeline = simulate(problem.graph, problem.costs, plan)
    assert timeline.peak_bytes <= problem.budget_bytes
    assert timeline.added_ns == expected


@pytest.mark.parametrize("seed", range(8))
def test_the_plan_to_begin_with_is_a_solution_and_is_never_made_worse(seed: int) -> None:
    """In any order of first executions, with any depth."""
    problem, plan = drawn_with_plan(Random(6000 + seed), reorders=seed % 2 == 0)
    timeline = simulate(problem.graph, problem.costs, plan)
    index = StepIndex.of(problem.graph)
    slots = slots_around(index, plan, repeatable_ops(problem), depth=1 + seed % 3)
    assert slots.plan(index, slots.planned).steps == plan.steps
    program = SlotProgram(problem, index, slots, [j for j, planned in enumerate(slots.planned) if planned])
    for name, row in program.model.constraints.items():
        total = row.constant + sum(c * program.start[variable.name] for variable, c in row.items())
        assert total * row.sense >= 0, (name, row)
    found = improve_around(problem, plan, replace(EXACT, time_limit_s=1.0), most_choices=200)
    assert verify(problem, found.plan) == []
    after = simulate(problem.graph, problem.costs, found.plan)
    assert after.peak_bytes <= problem.budget_bytes
    assert after.added_ns == found.added_ns <= timeline.added_ns
    if seed % 4 == 1:
        optimum = optimum_ns(problem, once_per_gap=False)
        assert optimum is not None
        assert optimum <= found.added_ns


def test_a_program_is_never_larger_than_asked() -> None:
    """Whatever the size of the graph; without choices nothing is solved."""
    rng = Random(7)
    problem = random_problem(rng, 60, 20)
    problem = with_budget(problem, int(SaveAll().plan(problem).peak_bytes * 0.7))
    plan = Auto(time_limit=0.0, effort=500).plan(problem).plan
    assert plan is not None
    for most in (0, 10, 40):
        found = improve_around(problem, plan, replace(EXACT, node_limit=1), most)
        assert found.choices <= most
        assert (found.programs > 0) == (most > 0)
