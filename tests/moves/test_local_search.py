"""Hoisting keeps plans valid, wherever what it makes dead stood."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import ProblemBuilder, generators, problems, random_steps
from remat_compiler.ir.graph import OpId, Phase, StorageKind
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.moves.local_search import HOIST_STEPS, hoist
from remat_passes.sequences.profile import arrays_of


def hoisted(problem: RematProblem, plan: Plan, most: int = HOIST_STEPS) -> tuple[Plan, bool]:
    """The plan with the run of repetitions at its peak earlier, and whether that is lower."""
    steps, boundary, moved, _ = hoist(arrays_of(problem), np.array(plan.steps, np.int64), plan.boundary, most)
    return Plan(tuple(map(OpId, steps.tolist())), int(boundary)), bool(moved)


@settings(max_examples=400)
@given(problem=problems(), rng=generators(), most=st.integers(1, 12))
def test_hoisting_keeps_plans_valid(problem: RematProblem, rng: Random, most: int) -> None:
    plan = random_steps(rng, problem)
    after, moved = hoisted(problem, plan, most)
    assert {v.rule for v in verify(problem, after)} <= {v.rule for v in verify(problem, plan)}
    if not moved:
        assert after == plan


def test_what_dies_in_the_forward_moves_the_boundary() -> None:
    """T runs in the forward for b1 and again for b2, at the peak; before b1 one run serves both."""
    b = ProblemBuilder()
    x = b.storage(1000, StorageKind.INPUT)
    first = b.forward([x], 10)
    b.run(Phase.FORWARD, [first], [(1, StorageKind.OUTPUT)])
    (free,) = b.run(Phase.TANGENT_FREE, [first], [(10, StorageKind.ACTIVATION)], workspace=100)
    tangent = b.storage(1, StorageKind.TANGENT)
    (flow,) = b.run(Phase.BACKWARD, [tangent], [(5, StorageKind.TEMPORARY)])
    (wide,) = b.run(Phase.BACKWARD, [flow, free], [(50, StorageKind.TEMPORARY)])
    b.run(Phase.BACKWARD, [wide, free], [(1, StorageKind.GRADIENT)])
    problem = b.problem()
    plan = Plan(tuple(map(OpId, (0, 1, 2, 3, 4, 2, 5))), 3)
    assert not [v for v in verify(problem, plan) if "budget" not in v.rule.value]
    after, moved = hoisted(problem, plan)
    assert moved
    assert after == Plan(tuple(map(OpId, (0, 1, 3, 2, 4, 5))), 2)
    peaks = [simulate(problem.graph, problem.costs, one).peak_bytes for one in (plan, after)]
    assert peaks[1] < peaks[0]
