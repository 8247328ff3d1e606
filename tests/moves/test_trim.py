"""Trimming drops repetitions only: what is left fits, costs no more, and saves nothing that must not be saved."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders import ProblemBuilder, generators, problems, random_problem, random_steps
from remat_compiler.ir.graph import OpId, SavePolicy, StorageId, StorageKind
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.moves.trim import trim
from remat_passes.sequences.profile import arrays_of, drop_dead_steps

PASSES = 8


def trimmed(problem: RematProblem, plan: Plan, budget: int) -> Plan:
    steps, boundary, _ = trim(arrays_of(problem), np.array(plan.steps, np.int64), plan.boundary, budget, PASSES)
    return Plan(tuple(map(OpId, steps.tolist())), int(boundary))


def needed(problem: RematProblem, plan: Plan) -> Plan:
    """The plan without repetitions that nobody reads."""
    steps, boundary = drop_dead_steps(arrays_of(problem), np.array(plan.steps, np.int64), plan.boundary)
    return Plan(tuple(map(OpId, steps.tolist())), int(boundary))


def forbidden(problem: RematProblem, plan: Plan) -> set[StorageId]:
    """What a plan saves for its backward although it must not."""
    lives = simulate(problem.graph, problem.costs, plan).instances
    across = lives.storage[(lives.start < plan.boundary) & (lives.last >= plan.boundary)].tolist()
    ops = [op for op in problem.graph.ops if op.save_policy is SavePolicy.MUST_NOT_SAVE]
    return {s for op in ops for s in op.writes} & set(across)


def peak_bytes(problem: RematProblem, plan: Plan) -> int:
    return simulate(problem.graph, problem.costs, plan).peak_bytes


@settings(max_examples=300)
@given(problem=problems(), rng=generators(), room=st.floats(0.0, 1.0))
# Of an operator with two results, one run is for the first and the next one for the second.
@example(problem=random_problem(Random(2429), forwards=1, backwards=11), rng=Random(0), room=0.0)
def test_what_is_left_is_valid_and_fits(problem: RematProblem, rng: Random, room: float) -> None:
    plan = needed(problem, random_steps(rng, problem))
    before = peak_bytes(problem, plan)
    everything = peak_bytes(problem, Plan(tuple(dict.fromkeys(plan.steps)), plan.boundary))
    budget = before + int(room * max(everything - before, 0))
    after = trimmed(problem, plan, budget)
    assert peak_bytes(problem, after) <= budget
    assert forbidden(problem, after) <= forbidden(problem, plan)
    assert {v.rule for v in verify(problem, after)} <= {v.rule for v in verify(problem, plan)}
    left = iter(plan.steps)
    assert all(step in left for step in after.steps), "a part of the sequence, in its order"


def test_the_first_step_of_the_backward_may_make_what_must_not_be_saved() -> None:
    """Its repetition stands right behind the boundary: without it, the value would be saved."""
    b = ProblemBuilder()
    x = b.storage(8, StorageKind.INPUT)
    inner = b.forward([x], 8, save_policy=SavePolicy.MUST_NOT_SAVE)
    b.forward([inner], 8)
    tangent = b.storage(8, StorageKind.TANGENT)
    b.backward([tangent, inner], 8)
    plan = Plan(tuple(map(OpId, (0, 1, 0, 2))), 2)
    assert trimmed(b.problem(), plan, 1 << 40) == plan


def test_what_fits_is_not_repeated() -> None:
    b = ProblemBuilder()
    x = b.storage(8, StorageKind.INPUT)
    first = b.forward([x], 8)
    b.forward([first], 8)
    tangent = b.storage(8, StorageKind.TANGENT)
    b.backward([tangent, first], 8)
    plan = Plan(tuple(map(OpId, (0, 1, 0, 2))), 2)
    assert trimmed(b.problem(), plan, 1 << 40) == Plan(tuple(map(OpId, (0, 1, 2))), 2)
    # While the second operator runs, both values are there either way; a byte less and the first cannot stay.
    saved = peak_bytes(b.problem(), Plan(tuple(map(OpId, (0, 1, 2))), 2))
    assert trimmed(b.problem(), plan, saved) != plan
