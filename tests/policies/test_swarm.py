"""The swarm: HOME's Algorithms 1 and 3, word for word, against what the loops do; and the climb."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

from builders import generators
from moving_problems import drawn_actions, moving_problem
from remat_passes.policies.climb import climb
from remat_passes.policies.decode import OVER, measure_policy
from remat_passes.policies.policy import KEEP, MOVE, RECOMPUTE, Policies
from remat_passes.policies.space import PolicySpace
from remat_passes.policies.swarm import RANK, Swarm, Turn, evaluate, update
from remat_passes.sequences.profile import IntArray


def rank(p: Policies, actions: IntArray) -> int:
    """`decode.rank`, from figures."""
    peak, added, room = measure_policy(p, actions)
    over = max(peak - p.budget_bytes, 0)
    if room > p.room_bytes:
        return 2 * OVER + over + room - p.room_bytes
    return OVER + over if over else added


def as_printed(p: Policies, particle: IntArray, last: IntArray, own: IntArray) -> IntArray:
    """Lines 4 to 14 of Algorithm 3."""
    policy = particle.copy()
    for j in range(len(policy)):
        policy[j] = last[j]
        first = rank(p, policy)
        policy[j] = own[j]
        second = rank(p, policy)
        policy[j] = last[j] if first < second else own[j]
    return policy


@settings(max_examples=40)
@given(rng=generators())
def test_an_update_is_that_of_the_paper(rng: Random) -> None:
    space = PolicySpace.of_all(moving_problem(rng))[0]
    p = space.policies
    particles = np.array([drawn_actions(space, rng) for _ in range(4)])
    last, own = drawn_actions(space, rng), np.array([drawn_actions(space, rng) for _ in range(4)])
    figures = np.zeros((4, 2), np.int64)
    evaluate(p, particles, figures)
    expected = [as_printed(p, particle, last, mine) for particle, mine in zip(particles, own)]
    update(p, particles, figures, last, own)
    assert (particles == np.array(expected)).all()
    assert figures[:, RANK].tolist() == [rank(p, particle) for particle in particles]


def tight_space(seed: int) -> PolicySpace:
    """A space of several values in which keeping everything does not fit."""
    rng = Random(seed)
    while True:
        space = PolicySpace.of_all(moving_problem(rng))[0]
        if len(space.policies.values) > 4 and rank(space.policies, space.all_of(KEEP)) > 0:
            return space


@pytest.mark.parametrize("seed", range(8))
def test_a_swarm_finds_the_same_with_any_number_of_threads(seed: int) -> None:
    space = tight_space(seed)
    turns: tuple[list[Turn], list[Turn]] = ([], [])
    found = [
        Swarm(space.policies, 12, 6, seed, threads=threads, observe=seen.append).run()
        for threads, seen in zip((1, 3), turns)
    ]
    assert (found[0] == found[1]).all()
    assert turns[0] == turns[1]
    best = [turn.best_ns for turn in turns[0]]
    # Once a policy fits, the best one only gets better.
    known = [one for one in best if one is not None]
    assert known == sorted(known, reverse=True)
    assert best[len(best) - len(known) :] == known


@pytest.mark.parametrize("seed", range(12))
def test_a_climb_never_ends_below_its_start(seed: int) -> None:
    space = tight_space(seed)
    draws = np.random.default_rng(seed).integers(0, 1 << 40, (300, 4))
    improved = 0
    for action in (KEEP, MOVE, RECOMPUTE):
        start = space.all_of(action)
        before = start.copy()
        actions, found, done = climb(space.policies, start, draws, 300)
        assert (start == before).all()
        assert found == rank(space.policies, actions) <= rank(space.policies, start)
        assert done <= 300
        assert space.policies.allowed[np.arange(len(actions)), actions].all()
        again = climb(space.policies, start, draws, 300)
        assert (again[0] == actions).all()
        improved += found < rank(space.policies, start)
    assert improved or seed


def test_no_change_of_one_value_improves_what_a_climb_ends_with() -> None:
    space = tight_space(5)
    draws = np.random.default_rng(0).integers(0, 1 << 40, (500, 4))
    actions, found, _ = climb(space.policies, space.all_of(KEEP), draws, 5_000)
    for v in range(len(actions)):
        for action in np.flatnonzero(space.policies.allowed[v]):
            other = actions.copy()
            other[v] = action
            assert rank(space.policies, other) >= found
