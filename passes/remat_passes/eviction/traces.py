"""The traces of a planner that runs the step in a pool, and which of them is its plan.

A trace *fits its pool* if the pool, which begins with the bytes of the budget, never had to grow.  That is not the
claim of a `PlanResult`: its peak is the simulator's, which adds up bytes without addresses.  The two can differ both
ways: fragmentation makes a pool grow whose live bytes are within the budget, and a result that is written in place
takes no bytes in a pool, while the simulator has it beside its input (`simulate.timeline`).  So the plan is, in this
order,

- the cheapest trace that fits its pool, if some of them have their simulated peak within the budget,
- the cheapest whose simulated peak is within the budget,
- the one of the smallest simulated peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_passes.eviction.memory import last_needs
from remat_passes.eviction.pool_run import (
    ASKED,
    BOUNDARY,
    COMPARED,
    FORCED,
    IN_PLACE,
    MOST_BYTES,
    POOL_BYTES,
    run_in_pool,
)
from remat_passes.sequences.profile import IntArray, arrays_of
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order, drop_dead_repeats


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How a step is run in a pool.

    Attributes:
        policy: One of `room.DTR`, `room.DTE`, `room.COOP`.
        ends: Whether results of super-linear operators go to the left end of the pool, all others to the right.
        in_place: Whether operators that may write over an input do.
        granularity: Bytes to whose multiples the pool rounds sizes.
        patience: Executions allowed for each operator, on average; after these nothing is evicted any more.
        kept_first: Whether gradients and outputs have their places before the step begins.
    """

    policy: int
    ends: bool
    in_place: bool
    granularity: int
    patience: int
    kept_first: bool


@dataclass(frozen=True, slots=True)
class PoolTrace:
    """One run.

    Attributes:
        plan: The trace, without repetitions that nobody reads.
        placement: Where tangent-free operators run.
        fits: Whether the pool never had to grow.
        pool_bytes: Bytes of the pool in the end.
        most_bytes: Most bytes of storages in it at once, not rounded.
        evictions: Tensors evicted for want of room.
        searches: Requests for which that was so.
        scored: Tensors whose cost was worked out for them.
        in_place: Results written over an input.
        fragmentation: Mean of the free part of the pool after each of these requests, 0 to 1.
        worst_fragmentation: The largest of them.
    """

    plan: Plan
    placement: Placement
    fits: bool
    pool_bytes: int
    most_bytes: int
    evictions: int
    searches: int
    scored: int
    in_place: int
    fragmentation: float
    worst_fragmentation: float

    @property
    def stats(self) -> tuple[tuple[str, str], ...]:
        """What a planner reports of it; rates in percent."""
        return (
            ("evictions", str(self.evictions)),
            ("placement", self.placement.value),
            ("fits_pool", "yes" if self.fits else "no"),
            ("pool_bytes", str(self.pool_bytes)),
            ("fragmentation", f"{100 * self.fragmentation:.2f} %"),
            ("worst_fragmentation", f"{100 * self.worst_fragmentation:.2f} %"),
            ("searches", str(self.searches)),
            ("scored", str(self.scored)),
            ("in_place", str(self.in_place)),
        )


def pool_traces(problem: RematProblem, classes: IntArray, options: PoolOptions) -> Iterator[PoolTrace]:
    """The trace under the budget, for each placement of tangent-free operators.

    Args:
        problem: The problem.
        classes: A row an operator, see `room.Room.classes`.
        options: How to run.

    Raises:
        ValueError: The granularity is below 1.
    """
    if options.granularity < 1:
        raise ValueError(f"got a granularity of {options.granularity} bytes; allowed is 1 or more")
    index, arrays = StepIndex.of(problem.graph), arrays_of(problem)
    # Where sizes are multiples of it, no whole piece fits into the rest.
    capacity = max(problem.budget_bytes, 0) // options.granularity * options.granularity
    for placement in Placement:
        order = baseline_order(index, placement)
        steps, figures, rates = run_in_pool(
            arrays,
            classes,
            np.array((*order.forward, *order.backward), np.int64),
            len(order.forward),
            last_needs(index, order),
            options.patience * (len(index.phase) + 1),
            capacity,
            options.granularity,
            options.policy,
            options.ends,
            options.in_place,
            options.kept_first,
        )
        plan = Plan(tuple(map(OpId, steps.tolist())), int(figures[BOUNDARY]))
        yield PoolTrace(
            # The run did not know yet which remade values would be evicted again unread.
            plan=drop_dead_repeats(index, plan),
            placement=placement,
            fits=int(figures[POOL_BYTES]) == capacity,
            pool_bytes=int(figures[POOL_BYTES]),
            most_bytes=int(figures[MOST_BYTES]),
            evictions=int(figures[FORCED]),
            searches=int(figures[ASKED]),
            scored=int(figures[COMPARED]),
            in_place=int(figures[IN_PLACE]),
            fragmentation=float(rates[0]),
            worst_fragmentation=float(rates[1]),
        )
