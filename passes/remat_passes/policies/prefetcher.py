"""DELTA's Prefetcher (Algorithm 4): what was moved comes back as soon as there is memory, a few values at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from remat_compiler.ir.plan import Plan
from remat_compiler.simulate.arrays import GraphArrays
from remat_compiler.simulate.timeline import simulate_arrays
from remat_compiler.simulate.transfers import transfer_lives


def prefetched(arrays: GraphArrays, plan: Plan, reloads: int, budget_bytes: int) -> Plan:
    """`plan` with its moved values back in the backward as early as the budget allows, in the order of their use.

    Args:
        arrays: The step.
        plan: A plan whose transfers each cross from forward to backward.
        reloads: Most values that are back and not yet read.
        budget_bytes: Bytes that may be alive.
    """
    if not plan.transfers:
        return plan
    lives = transfer_lives(arrays, plan.steps, plan.boundary, plan.transfers)
    late = [replace(one, back_before=life.read) for one, life in zip(plan.transfers, lives)]
    live = simulate_arrays(arrays, np.array(plan.steps, np.int64), plan.boundary, late).live_bytes.copy()
    limit = max(budget_bytes, int(live.max()))
    queue = sorted(range(len(late)), key=lambda i: (late[i].back_before, i))
    asked: dict[int, int] = {}
    for step in range(plan.boundary, len(plan.steps)):
        while queue:
            one = late[queue[0]]
            size = int(arrays.size_bytes[one.storage])
            waiting = sum(late[i].back_before > step for i in asked)
            enough = waiting < reloads and (live[step : one.back_before] + size <= limit).all()
            # It must be gone before it can come back, and is asked for at the latest when it is read.
            if one.back_before > step and (one.out_after >= step or not enough):
                break
            live[step : one.back_before] += size
            asked[queue.pop(0)] = step
    return replace(plan, transfers=tuple(replace(one, back_before=asked[i]) for i, one in enumerate(late)))
