"""After a check: is the peak good enough, and if not, what to plan for next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remat_compiler.compilation.attempt import Attempt
from remat_compiler.options import BudgetKind, MemoryBudget
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.plan_cache.origin import is_of_another_size

USED_ENOUGH = 0.95
"""A checked peak of at least this fraction of the budget is not improved on."""
MARGIN = 0.002
"""Fraction of the budget left free where a try went over it."""


def limit_bytes(budget: MemoryBudget, attempt: Attempt) -> int | None:
    """The user's budget in bytes, once the step without a budget is known; `None` for no limit."""
    if budget.kind is BudgetKind.BYTES:
        return budget.limit_bytes
    return attempt.aimed_bytes if budget.kind is BudgetKind.FRACTION and attempt.partitions else None


def best_of(tries: Sequence[Attempt], limit: int | None) -> Attempt | None:
    """The try to keep: one that fits before one that does not; of those that fit the fastest, else the smallest."""

    def rank(one: Attempt) -> tuple[bool, int, int]:
        over, peak = one.is_over(limit), one.needed_bytes or 0
        return (over, peak, 0) if over else (over, one.added_ns, peak)

    return min(tries, key=rank, default=None)


def next_request(request: PartitionRequest, attempt: Attempt, limit: int | None) -> PartitionRequest | None:
    """What to aim for next; `None` when the try is good enough, or nothing is known of its peak.

    What is emitted peaks some bytes above or below what the simulator says; nearby plans share that.

    Args:
        request: What was aimed for, or would be now where the try is an earlier process's.
        attempt: The try.
        limit: The user's budget in bytes; `None` for none.
    """
    check = attempt.check
    if limit is None or check.unknown or not attempt.partitions:
        return None
    over = check.needed_bytes > limit
    if not over and _is_good_enough(attempt, limit):
        return None
    planned = attempt.planned_bytes
    if over and request.budget_bytes is not None and planned > request.budget_bytes:
        # The smallest peak was taken: there is nothing less to aim for.
        return None
    aim = limit - (check.needed_bytes - planned) - (int(MARGIN * limit) if over else 0)
    if aim <= 0 or aim == attempt.aimed_bytes or (over and aim >= planned):
        return None
    return replace(request, budget_bytes=aim, fraction=None)


def _is_good_enough(attempt: Attempt, limit: int) -> bool:
    """Whether a try within the budget leaves nothing to gain."""
    # What a plan of another size leaves free was weighed when it was taken, and is not worth solving for.
    scaled = any(is_of_another_size(one.result) for one in attempt.partitions)
    return attempt.check.needed_bytes >= USED_ENOUGH * limit or attempt.added_ns == 0 or scaled
