"""The origin of a plan from the cache: an entry among the `stats` of its result, which reports show."""

from __future__ import annotations

import time
from dataclasses import replace

from remat_compiler.ir.plan import PlanResult
from remat_compiler.plan_cache.key import CachedPlan

FROM_CACHE, FROM_SIMILAR = "from cache", "from cache, of another size"
"""Names in `PlanResult.stats` for the origin of a plan from the cache."""


def marked(result: PlanResult, name: str, where: str) -> PlanResult:
    """`result` with its origin: `name` is one of the two above, `where` describes the entry."""
    # One origin only: a plan that is taken again may still have the mark of the time before.
    others = tuple(one for one in result.stats if one[0] not in (FROM_CACHE, FROM_SIMILAR))
    return replace(result, stats=(*others, (name, where)))


def made_at(entry: CachedPlan) -> str:
    """The time at which the plan of `entry` was solved, as a part of a sentence."""
    return time.strftime("made at %Y-%m-%d %H:%M UTC", time.gmtime(entry.made_at_ns / 1e9))


def where_in_cache(result: PlanResult) -> str:
    """The origin of `result`, as a part of a sentence; empty if it was solved."""
    return next((where for name, where in result.stats if name in (FROM_CACHE, FROM_SIMILAR)), "")


def is_of_another_size(result: PlanResult) -> bool:
    """Whether `result` was solved for another size, and so may leave a part of the budget unused."""
    return any(name == FROM_SIMILAR for name, _ in result.stats)
