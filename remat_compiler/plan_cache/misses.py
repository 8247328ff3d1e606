"""Why the cache had no plan: for each of the last misses the nearest key that was known then, and how it differs.

Nothing is computed when a plan is missed but the key, which is kept; the comparison is made when someone asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from remat_compiler.plan_cache.cache import REACH
from remat_compiler.plan_cache.key import CachedPlan, CacheMiss, PlanCacheKey


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of two keys: what was asked for, and what was known."""

    field: str
    asked: str
    known: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a question was missed.

    Attributes:
        miss: The miss.
        nearest: The entry whose key differs least; `None` where nothing was known.
        differences: Fields in which its key differs.
    """

    miss: CacheMiss
    nearest: CachedPlan | None
    differences: tuple[Difference, ...]


def differences(asked: PlanCacheKey, known: PlanCacheKey) -> tuple[Difference, ...]:
    """Fields in which `known` differs from `asked`, in their order; size classes within reach do not differ."""
    found = []
    for field in fields(PlanCacheKey):
        one, two = getattr(asked, field.name), getattr(known, field.name)
        near = field.name == "size_class" and abs(one - two) <= REACH
        if one != two and not near:
            found.append(Difference(field.name, str(one), str(two)))
    return tuple(found)


def explain(miss: CacheMiss, entries: Sequence[CachedPlan]) -> Explanation:
    """Why `miss` was missed, by those of `entries` that were solved before it.

    The nearest entry differs in the fewest fields; of several, it is the one of the nearest size, then the latest.
    """
    asked = miss.question
    known = [entry for entry in entries if entry.made_at_ns < miss.at_ns and not entry.seed]

    def rank(entry: CachedPlan) -> tuple[int, int, int, str]:
        size = abs(entry.question.activation_bytes - asked.activation_bytes)
        return len(differences(asked.key, entry.question.key)), size, -entry.made_at_ns, entry.question.name

    nearest = min(known, key=rank, default=None)
    return Explanation(miss, nearest, () if nearest is None else differences(asked.key, nearest.question.key))
