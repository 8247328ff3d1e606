"""A plan that fits because it moves values off the device: the same operators, with transfers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from remat_compiler.ir.graph import StorageId
from remat_compiler.ir.plan import Plan, Transfer, in_pages
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.arrays import GraphArrays, IntArray
from remat_compiler.simulate.timeline import simulate_arrays
from remat_passes.transfers.gaps import Gaps, gaps_of
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
    gaps, begins = gaps_of(problem.graph, arrays, steps), _begins(arrays, steps)
    link = problem.costs.links[0]
    chosen = insert_offload(gaps, live, begins[:-1], problem.budget_bytes, problem.offload_bytes, link)
    return _placed(problem, plan, gaps, chosen, live, begins)


def with_moved(problem: RematProblem, plan: Plan, storages: Collection[int]) -> Plan:
    """`plan`, which moves nothing, with these storages moved between their uses on both sides of the boundary."""
    arrays, steps = GraphArrays.of(problem.graph, problem.costs), np.array(plan.steps, np.int64)
    gaps = gaps_of(problem.graph, arrays, steps)
    across = _is_across(gaps, plan) & np.isin(gaps.storage, list(storages))
    live = simulate_arrays(arrays, steps, plan.boundary).live_bytes
    return _placed(problem, plan, gaps, np.flatnonzero(across).tolist(), live, _begins(arrays, steps))


def saved_storages(problem: RematProblem, arrays: GraphArrays, plan: Plan) -> set[int]:
    """Storages that the plan saves for the backward, as many as there is room for: those away for the longest time."""
    steps = np.array(plan.steps, np.int64)
    gaps, begins = gaps_of(problem.graph, arrays, steps), _begins(arrays, steps)
    across = np.flatnonzero(_is_across(gaps, plan))
    found, left_bytes = set[int](), problem.offload_bytes
    for gap in across[np.lexsort((across, begins[gaps.first[across]] - begins[gaps.read[across]]))].tolist():
        taken_bytes = in_pages(int(gaps.size_bytes[gap]))
        if taken_bytes <= left_bytes:
            found.add(int(gaps.storage[gap]))
            left_bytes -= taken_bytes
    return found


def _is_across(gaps: Gaps, plan: Plan) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each gap, whether it begins in the forward and ends in the backward."""
    return (gaps.first <= plan.boundary) & (gaps.read >= plan.boundary)


def _begins(arrays: GraphArrays, steps: IntArray) -> IntArray:
    """When each step begins, and at last when they end."""
    return np.array(list(accumulate(arrays.time_ns[steps].tolist(), initial=0)), np.int64)


def _placed(
    problem: RematProblem, plan: Plan, gaps: Gaps, chosen: Sequence[int], live: IntArray, begins: IntArray
) -> Plan:
    """`plan` with the instances of the chosen gaps moved."""
    link, lowest = problem.costs.links[0], gaps.moved_in(chosen, live)
    limit = max(problem.budget_bytes, int(lowest.max(initial=0)))
    at = np.array(chosen, np.int64)
    size = gaps.size_bytes[at]
    moves = Moves(
        gaps.made[at],
        gaps.first[at],
        gaps.read[at],
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
