"""Where in the cache a plan comes from: said among the `stats` of its result, from where reports take it."""

from __future__ import annotations

import time
from dataclasses import replace

from remat_compiler.ir.plan import PlanResult
from remat_compiler.plan_cache.key import CachedPlan

FROM_CACHE, FROM_SIMILAR = "from cache", "from cache, of another size"
"""Names among `PlanResult.stats` under which a plan says where in the cache it comes from."""


def marked(result: PlanResult, name: str, where: str) -> PlanResult:
    """`result` that says by `name`, one of the two above, `where` in the cache it comes from."""
    others = tuple(one for one in result.stats if one[0] not in (FROM_CACHE, FROM_SIMILAR))
    return replace(result, stats=(*others, (name, where)))


def made_at(entry: CachedPlan) -> str:
    """When the plan of `entry` was solved, as a part of a sentence."""
    return time.strftime("made at %Y-%m-%d %H:%M UTC", time.gmtime(entry.made_at_ns / 1e9))


def where_in_cache(result: PlanResult) -> str:
    """Where in the cache `result` comes from, as a part of a sentence; empty for what was solved."""
    return next((where for name, where in result.stats if name in (FROM_CACHE, FROM_SIMILAR)), "")


def is_of_another_size(result: PlanResult) -> bool:
    """Whether `result` was solved for another size, and was taken knowing that it may leave room."""
    return any(name == FROM_SIMILAR for name, _ in result.stats)
