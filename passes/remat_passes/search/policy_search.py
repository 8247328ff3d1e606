"""The part of the search of `auto` that gives each value one action: some milliseconds where sequences take seconds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from remat_passes.policies.climb import climb
from remat_passes.policies.policy import KEEP, MOVE, RECOMPUTE, Policies
from remat_passes.policies.space import PolicySpace
from remat_passes.search.moving_search import MovingSearch
from remat_passes.search.sequence_search import SMALLEST
from remat_passes.sequences.profile import IntArray

WORK_OF_EVALUATION = 10
"""Work of evaluating one policy, for each operator."""


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
    draws = np.random.default_rng(seed).integers(0, 1 << 40, (most, 4))
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
