"""Problems in which values may be moved, and policies for them, at random."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from builders import random_problem
from remat_compiler.ir.plan import Tier
from remat_compiler.ir.problem import CopyTime, Link, RematProblem
from remat_passes.planning.save_all import SaveAll
from remat_passes.policies.space import PolicySpace
from remat_passes.sequences.profile import IntArray


def moving_problem(rng: Random) -> RematProblem:
    """Any problem with a link of any speed, room for everything, and a budget up to the peak of keeping everything."""
    problem = random_problem(rng, forwards=rng.randint(1, 12), backwards=rng.randint(1, 10))
    speeds = (10**7, 10**8, 10**9)
    link = Link(Tier.HOST, rng.choice(speeds), rng.choice(speeds), rng.choice((0, 1, 5)), rng.choice((0, 50, 100)))
    curve = drawn_curve(rng, link.latency_ns)
    link = replace(link, curve=curve, begin_ns=2 * len(curve))
    return replace(
        problem,
        costs=replace(problem.costs, links=(link,)),
        offload_bytes=1 << 40,
        budget_bytes=int(SaveAll().plan(problem).peak_bytes * rng.choice((0, 0.5, 0.8, 1))),
    )


def drawn_curve(rng: Random, latency_ns: int) -> tuple[CopyTime, ...]:
    """Up to three measured times; none as often as any."""
    curve: list[CopyTime] = []
    size_bytes, out_ns, back_ns = 0, max(latency_ns, 1), max(latency_ns, 1)
    for _ in range(rng.choice((0, 0, 0, 1, 2, 3))):
        size_bytes += rng.randint(1, 40)
        out_ns, back_ns = out_ns + rng.randrange(60), back_ns + rng.randrange(60)
        curve.append(CopyTime(size_bytes, out_ns, back_ns))
    return tuple(curve)


def drawn_actions(space: PolicySpace, rng: Random) -> IntArray:
    """A policy at random."""
    return np.array([rng.choice(np.flatnonzero(row)) for row in space.policies.allowed], np.int64).reshape(-1)
