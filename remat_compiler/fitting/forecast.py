"""The largest batch that fits, found by planning steps that were extrapolated rather than captured.

To capture a step takes seconds to minutes.  Two captured steps tell how each size depends on the batch (`outline`), so
that steps of other batches are made up and planned in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from remat_compiler.fitting.outline import Outline, at_batch
from remat_compiler.ir.plan import Plan

_PLANS = 10
"""How many plans are made at most; what they have not decided, the next captured step does."""
_LOOSENESS = (1.0, 0.1)
"""Parts of the way from the smallest peak to all that is left, at which the allocator is asked for room."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The largest batch with room.

    Attributes:
        batch: That batch.
        budget_bytes: The largest budget under which the allocator has room for it.
        in_pieces: Whether a larger one has no room only because memory is in pieces.
    """

    batch: int
    budget_bytes: int
    in_pieces: bool = False


def forecast(known: Sequence[Outline], limit: int, *, with_budget: bool = True) -> Forecast | None:
    """The largest batch that plans have room for, 0 if they have none for 1.

    Args:
        known: At least two captured steps; the two of the largest batches tell the others.
        limit: No larger one is considered.
        with_budget: Whether to look for the largest budget; otherwise it is the peak of a plan.

    Returns:
        `None` if the captured steps cannot tell others, or have no plan.
    """
    first, second = sorted(known, key=lambda outline: outline.batch)[-2:]

    def at(batch: int) -> Outline | None:
        return at_batch(first, second, batch)

    def has_room(plan: Plan, batch: int) -> bool:
        outline = at(batch)
        return outline is not None and outline.has_room(plan)

    plan, good, bad, stride = second.smallest, 0, limit + 1, 1
    loosest: Plan | None = None
    in_pieces = False
    for _ in range(_PLANS):
        # A plan for one batch is a plan for all, and shows how much larger the batch may be at least.
        reached = _largest(partial(has_room, plan), limit)
        batch = max(reached, good + stride) if bad > limit else max(reached, (good + bad) // 2)
        batch = min(max(batch, good + 1), bad - 1)
        if batch <= good:
            break
        outline = at(batch)
        own = None if outline is None else outline.plan(1)
        if outline is None or own is None:
            return None
        plan = own
        if outline.has_room(own):
            # Plans for other batches reach nearly as far as own ones: only where they do not, steps grow.
            good, stride, loosest = batch, 1 if batch == reached else 2 * stride, own
        else:
            bad, in_pieces = batch, not outline.expandable and outline.peak_bytes(own) <= outline.left_bytes
    found = at(good) if good else None
    if found is None or loosest is None:
        return Forecast(0, 0, in_pieces)
    return Forecast(good, _loosest_bytes(found, loosest) if with_budget else found.peak_bytes(loosest), in_pieces)


def _largest(has_room: Callable[[int], bool], limit: int) -> int:
    """The largest number up to `limit` with room, 0 if there is none; room must only ever end as numbers grow."""
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if has_room(middle) else (low, middle)
    return low


def _loosest_bytes(outline: Outline, smallest: Plan) -> int:
    """A budget that leaves as much as possible to the plan, while the allocator has room for it."""
    least = outline.peak_bytes(smallest)
    for part in _LOOSENESS:
        budget = least + int(part * (outline.left_bytes - least))
        plan = outline.plan(budget)
        if plan is not None and outline.has_room(plan):
            return budget
    return least
