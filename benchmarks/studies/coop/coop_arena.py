"""The arena of a plan whose places are all chosen ahead: the largest allocation first, each as low as it can."""

from __future__ import annotations

import numpy as np

from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.lives import storage_lives


def arena_bytes(problem: RematProblem, plan: Plan) -> int:
    """Bytes of the arena; at least the plan's peak."""
    end = len(plan.steps)
    lives = [
        (life.size_bytes, life.made, end if life.freed is None else life.freed)
        for life in storage_lives(problem, plan)
        if life.size_bytes
    ]
    lives.sort(key=lambda life: (-life[0], life[1]))
    made, freed = (np.array([life[k] for life in lives], np.int64) for k in (1, 2))
    sizes = np.array([life[0] for life in lives], np.int64)
    tops, places = np.zeros(len(lives), np.int64), np.zeros(len(lives), np.int64)
    for k in range(len(lives)):
        beside = np.flatnonzero((made[:k] < freed[k]) & (freed[:k] > made[k]))
        beside = beside[np.argsort(places[beside], kind="stable")]
        # Before each neighbour by address, and after the last, stands what is free above all that come before it.
        floors = np.concatenate([[0], np.maximum.accumulate(tops[beside])]) if len(beside) else np.zeros(1, np.int64)
        ceilings = np.concatenate([places[beside], [np.iinfo(np.int64).max]])
        place = floors[np.argmax(ceilings - floors >= sizes[k])]
        places[k], tops[k] = place, place + sizes[k]
    return int(tops.max(initial=0))
