"""After a check: is the peak good enough, and if not, what to plan for next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from remat_compiler.dry_run.dry_run import DryRun
from remat_compiler.options import BudgetKind, MemoryBudget
from remat_compiler.partition.partition import Partition
from remat_compiler.partition.stages import PartitionRequest
from remat_compiler.plan_cache.origin import is_of_another_size

USED_ENOUGH = 0.95
"""A checked peak of at least this fraction of the budget is not improved on."""
MARGIN = 0.002
"""Fraction of the budget left free where a try went over it."""


class Checked(Protocol):
    """What is compared: a try and its check."""

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """What was decided."""
        ...

    @property
    def check(self) -> DryRun:
        """What a dry run found of it."""
        ...


C = TypeVar("C", bound=Checked)


def limit_bytes(budget: MemoryBudget, partitions: Sequence[Partition]) -> int | None:
    """The user's budget in bytes, once the step without a budget is known; `None` for no limit."""
    if budget.kind is BudgetKind.BYTES:
        return budget.limit_bytes
    if budget.kind is BudgetKind.FRACTION and partitions:
        return sum(p.cut.problem.budget_bytes for p in partitions)
    return None


def needed_bytes(one: Checked) -> int | None:
    """What a try takes, as checked; where that is not known, as simulated; `None` where nothing is known of it."""
    if not one.check.unknown:
        return one.check.needed_bytes
    return planned_bytes(one.partitions, one.check.between_bytes) if one.partitions else None


def over_budget(one: Checked, limit: int | None) -> bool:
    """Whether a try exceeds the budget, as far as anything is known of it."""
    needed = needed_bytes(one)
    return limit is not None and needed is not None and needed > limit


def added_ns(partitions: Sequence[Partition]) -> int:
    """Modelled time that recomputation adds."""
    return sum(p.cut.timeline.added_ns for p in partitions)


def planned_bytes(partitions: Sequence[Partition], between_bytes: int = 0) -> int:
    """Peak that the simulator foresees, what other graphs take between forward and backward included."""
    peak = sum(p.cut.timeline.peak_bytes for p in partitions)
    return max(peak, sum(p.cut.timeline.saved_bytes for p in partitions) + between_bytes) if between_bytes else peak


def _scaled(partitions: Sequence[Partition]) -> bool:
    """Whether a plan of another size was taken: what it leaves free was weighed, and is not worth solving for."""
    return any(is_of_another_size(p.cut.result) for p in partitions)


def best_of(tries: Sequence[C], limit: int | None) -> C | None:
    """The try to keep: one that fits before one that does not; of those that fit the fastest, else the smallest."""

    def rank(one: C) -> tuple[bool, int, int]:
        over = over_budget(one, limit)
        peak = needed_bytes(one) or 0
        return (over, peak, 0) if over else (over, added_ns(one.partitions), peak)

    return min(tries, key=rank, default=None)


def adjusted(
    request: PartitionRequest, partitions: Sequence[Partition], check: DryRun, limit: int | None
) -> PartitionRequest | None:
    """What to aim for next; `None` when the try is good enough, or nothing is known of its peak.

    What is emitted peaks some bytes above or below what the simulator says; nearby plans share that.
    """
    if limit is None or check.unknown or not partitions:
        return None
    over = check.needed_bytes > limit
    if not over and (check.needed_bytes >= USED_ENOUGH * limit or added_ns(partitions) == 0 or _scaled(partitions)):
        return None
    planned = planned_bytes(partitions, check.between_bytes)
    if over and request.budget_bytes is not None and planned > request.budget_bytes:
        # The smallest peak was taken: there is nothing less to aim for.
        return None
    aim = limit - (check.needed_bytes - planned) - (int(MARGIN * limit) if over else 0)
    aimed = sum(p.cut.problem.budget_bytes for p in partitions)
    if aim <= 0 or aim == aimed or (over and aim >= planned):
        return None
    return replace(request, budget_bytes=aim, fraction=None)
