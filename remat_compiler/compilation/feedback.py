"""The decision after a check: keep the try, or plan for another peak, and for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remat_compiler.compilation.attempt import Attempt
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.plan_cache.origin import is_of_another_size

USED_ENOUGH = 0.95
"""A checked peak of at least this fraction of the budget is not improved on."""
MARGIN = 0.002
"""Fraction of the budget that the next try leaves free after one that went over it."""


def best_of(tries: Sequence[Attempt], limit: int | None) -> Attempt | None:
    """The try to keep: the fastest of those that fit, else the one of the smallest peak; of equals, the first."""

    def rank(one: Attempt) -> tuple[bool, int, int]:
        over, peak = one.is_over(limit), one.needed_bytes or 0
        # False sorts before True, so any try that fits wins.
        return (over, peak, one.added_ns) if over else (over, one.added_ns, peak)

    return min(tries, key=rank, default=None)


def next_request(request: PartitionRequest, attempt: Attempt, limit: int | None) -> PartitionRequest | None:
    """The next request; `None` if the try is good enough, or its peak is unknown.

    Emitted code peaks some bytes above or below the simulated peak, and nearby plans share that difference. So the
    next budget is the user's, less the difference.

    Args:
        request: The request of the try; for a try of an earlier process, the one that this process would make.
        attempt: The try.
        limit: The user's budget in bytes; `None` for none.
    """
    check = attempt.check
    # Both peaks are needed: the checked one, and the simulated one, which only a partition of this process has.
    if limit is None or check.unknown or not attempt.partitions:
        return None
    over = check.needed_bytes > limit
    if not over and _is_good_enough(attempt, limit):
        return None
    planned = attempt.planned_bytes
    if over and request.budget_bytes is not None and planned > request.budget_bytes:
        # The plan of the smallest peak was taken: no smaller one can be asked for.
        return None
    # The margin keeps the next difference, which is a little other, from sending that try over the budget, too.
    aim = limit - (check.needed_bytes - planned) - (int(MARGIN * limit) if over else 0)
    # More is lost in pieces than the budget has: the smallest peak may still fit, or is what the refusal names.
    if aim <= 0 and check.reserved_bytes and not request.take_smallest:
        return replace(request, budget_bytes=1, fraction=None, take_smallest=True)
    # An equal budget gives the same plan again, and so does one above the plan that was over.
    if aim <= 0 or aim == attempt.aimed_bytes or (over and aim >= planned):
        return None
    return replace(request, budget_bytes=aim, fraction=None)


def _is_good_enough(attempt: Attempt, limit: int) -> bool:
    """Whether a try within the budget leaves nothing to gain."""
    # A cached plan of another size may leave memory free; that was weighed when it was taken.
    scaled = any(is_of_another_size(one.result) for one in attempt.partitions)
    return attempt.check.needed_bytes >= USED_ENOUGH * limit or attempt.gainable_ns == 0 or scaled
