"""The part of the search of `auto` that gives each value one action: some milliseconds where sequences take seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from remat_passes.policies.climb import climb
from remat_passes.policies.policy import KEEP, MOVE, RECOMPUTE, Policies
from remat_passes.policies.space import PolicySpace
from remat_passes.policies.swarm import random_policies
from remat_passes.search.moving_search import MovingSearch
from remat_passes.search.sequence_search import SMALLEST
from remat_passes.sequences.profile import IntArray

WORK_OF_EVALUATION = 10
"""Work of evaluating one policy, for each operator."""
RESTARTS = 16
"""Policies at random from which the search begins once more, where it may evaluate enough of them."""
ROUNDS = 4
"""Enough of them, for each value."""
LONGER = 3
"""The best policies found so are climbed on from, four times as long."""


def search_policies(moving: MovingSearch, effort: int, seed: int) -> None:
    """Offer policies in the orders of the step that need no search: all kept, moved, and recomputed, improved.

    Args:
        moving: Gets the plans.
        effort: Work of each climb, for each operator.
        seed: Of the changes at random.
    """
    ranks = {}
    for space in PolicySpace.of_all(moving.problem):
        # Moved by need alone, where a policy moves a value for as long as it can.
        moving.offer([space.kept])
        ranks[space] = _climb(moving, space, [space.all_of(KEEP)], effort, seed)
    best = min(ranks, key=lambda space: ranks[space])
    _climb(moving, best, [best.all_of(MOVE), best.all_of(RECOMPUTE)], effort, seed)
    if evaluations(best.policies, effort) >= ROUNDS * len(best.policies.values):
        _restart(moving, best, effort, seed)


def _restart(moving: MovingSearch, space: PolicySpace, effort: int, seed: int) -> None:
    """Offer what climbs from policies at random reach: one climb ends at the next peak, and there are many."""
    most = evaluations(space.policies, effort)
    found = []
    for number, start in enumerate(random_policies(space.policies, RESTARTS, seed)):
        if moving.free:
            return
        actions, rank, _ = climb(space.policies, start, _draws((seed, 1, number), most), most)
        found.append((int(rank), number, actions))
    found.sort(key=lambda one: one[:2])
    for _, number, start in found[:LONGER]:
        actions, _, _ = climb(space.policies, start, _draws((seed, 2, number), 4 * most), 4 * most)
        moving.adopt(space.plan(actions))


def _draws(seed: int | Sequence[int], rows: int) -> IntArray:
    """Random numbers for `climb`."""
    return np.random.default_rng(seed).integers(0, 1 << 40, (rows, 4))


def improve_best(moving: MovingSearch, effort: int, seed: int) -> None:
    """Offer policies in the order of the best plan, from its own actions, all moved, and all recomputed.

    Args: see `search_policies`.
    """
    if moving.best is not None:
        space = PolicySpace.of_plan(moving.problem, moving.best.plan)
        starts = [space.actions_of(moving.best.plan), space.all_of(MOVE), space.all_of(RECOMPUTE)]
        _climb(moving, space, starts, effort, seed)


def _climb(moving: MovingSearch, space: PolicySpace, starts: Iterable[IntArray], effort: int, seed: int) -> int:
    """Offer the plan of what a climb from each of `starts` reaches; the least rank, see `decode.rank`."""
    most = evaluations(space.policies, effort)
    draws = _draws(seed, most)
    least = 1 << 62
    for start in starts:
        if moving.free:
            break
        actions, rank, _ = climb(space.policies, start, draws, most)
        moving.adopt(space.plan(actions))
        least = min(least, int(rank))
    return least


def evaluations(policies: Policies, effort: int) -> int:
    """How many policies may be evaluated with `effort` an operator."""
    work = effort * SMALLEST // max(len(policies.g.ops), SMALLEST)
    return max(work // WORK_OF_EVALUATION, 2 * len(policies.values))
