"""A plan that fits because it moves values off the device: the same operators, with transfers."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np

from remat_compiler.ir.graph import StorageId
from remat_compiler.ir.plan import Plan, Transfer
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.arrays import GraphArrays
from remat_compiler.simulate.timeline import simulate_arrays
from remat_passes.transfers.gaps import gaps_of
from remat_passes.transfers.insert_offload import insert_offload
from remat_passes.transfers.prefetch import Moves, find_places


def with_transfers(problem: RematProblem, arrays: GraphArrays, plan: Plan) -> Plan:
    """`plan` with as many transfers as it takes to fit the budget, or as help towards it.

    Args:
        problem: The problem, which has a link and room.
        arrays: The same as arrays.
        plan: A plan without transfers.
    """
    steps = np.array(plan.steps, np.int64)
    live = simulate_arrays(arrays, steps, plan.boundary).live_bytes
    budget, link = problem.budget_bytes, problem.costs.links[0]
    gaps = gaps_of(problem.graph, arrays, steps)
    begins = np.array(list(accumulate(arrays.time_ns[steps].tolist(), initial=0)), np.int64)
    chosen = insert_offload(gaps, live, begins[:-1], budget, problem.offload_bytes, link)
    lowest = gaps.moved_in(chosen, live)
    limit = max(budget, int(lowest.max(initial=0)))
    size = gaps.size_bytes[chosen]
    moves = Moves(
        gaps.made[chosen],
        gaps.first[chosen],
        gaps.read[chosen],
        size,
        np.array([link.out_ns(one) for one in size.tolist()], np.int64),
        np.array([link.back_ns(one) for one in size.tolist()], np.int64),
    )
    places = find_places(moves, lowest, begins, plan.boundary, limit).tolist()
    transfers = [
        Transfer(StorageId(int(gaps.storage[gap])), out_after, back_before, link.tier)
        for gap, (out_after, back_before) in zip(chosen, places)
        if out_after < back_before
    ]
    return replace(plan, transfers=tuple(transfers))
