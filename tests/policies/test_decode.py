"""Policies in compiled loops, against the plans that they stand for and the simulator."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given, settings

from builders import generators, random_problem
from moving_problems import drawn_actions, moving_problem
from remat_compiler.ir.graph import Phase
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.transfers import moved_bytes
from remat_compiler.simulate.verify import verify
from remat_passes.policies.decode import measure_policy
from remat_passes.policies.policy import KEEP, MOVE, RECOMPUTE
from remat_passes.policies.space import PolicySpace
from remat_passes.sequences.sequence import recompute


def test_the_figures_are_those_of_the_plan() -> None:
    moves = fitting = 0
    for seed in range(150):
        rng = Random(seed)
        problem = moving_problem(rng)
        for space in PolicySpace.of_all(problem):
            actions = drawn_actions(space, rng)
            plan = space.plan(actions)
            timeline = simulate(problem.graph, problem.costs, plan)
            figures = timeline.peak_bytes, timeline.added_ns, moved_bytes(problem.graph, plan)
            assert measure_policy(space.policies, actions) == figures
            assert [v for v in verify(problem, plan, timeline.peak_bytes) if v.rule is not Rule.BUDGET] == []
            saved = space.index.all_savable()
            for storage in space.policies.values[actions == RECOMPUTE].tolist():
                saved[storage] = False
            assert replace(plan, transfers=()) == recompute(space.index, space.order, saved)
            moved = {one.storage for one in plan.transfers}
            assert moved <= set(space.policies.values[actions == MOVE].tolist())
            moves += len(moved)
            fitting += timeline.peak_bytes <= problem.budget_bytes
    assert moves > 100
    assert fitting > 30


@settings(max_examples=60)
@given(rng=generators())
def test_what_a_policy_decides_is_what_the_forward_saves(rng: Random) -> None:
    problem = moving_problem(rng)
    for space in PolicySpace.of_all(problem):
        kept = space.kept
        lives = simulate(problem.graph, problem.costs, kept).instances
        crossing = lives.storage[(lives.start < kept.boundary) & (lives.last >= kept.boundary)].tolist()
        states = {op.replay for op in problem.graph.ops}
        free = {s for s in crossing if not space.index.kept[s] and space.index.size_bytes[s] and s not in states}
        assert free == set(space.policies.values.tolist())


@settings(max_examples=60)
@given(rng=generators())
def test_a_plan_and_its_actions(rng: Random) -> None:
    problem = moving_problem(rng)
    for space in PolicySpace.of_all(problem):
        actions = drawn_actions(space, rng)
        plan = space.plan(actions)
        again = space.actions_of(plan)
        # What the plan does not do although the policy asked for it (an operator with two results runs again for one
        # of them) is not seen in it; what it does is.
        assert {one.storage for one in plan.transfers} == set(space.policies.values[again == MOVE].tolist()), (
            "each moved value is seen"
        )
        assert ((again == KEEP) | space.policies.allowed[np.arange(len(again)), again]).all()
        same = PolicySpace.of_plan(problem, space.kept)
        executed = set(space.kept.steps)
        assert set(same.order.forward) | set(same.order.backward) == executed
        assert all(space.index.phase[op] is not Phase.BACKWARD for op in same.order.forward)


def test_nothing_is_moved_without_a_link() -> None:
    problem = random_problem(Random(3))
    for space in PolicySpace.of_all(problem):
        assert not space.policies.allowed[:, MOVE].any()
        assert (space.all_of(MOVE) == KEEP).all()
