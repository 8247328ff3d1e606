"""Why the cache had no plan: for each of the last misses, the nearest key that was known then, and how it differs.

A miss costs no more than keeping its key; the comparison is made when `remat cache explain` runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from remat_compiler.plan_cache.cache import REACH
from remat_compiler.plan_cache.key import CachedPlan, CacheMiss, PlanCacheKey


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which two keys differ: its value in the query, and in the known entry."""

    field: str
    asked: str
    known: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a question was missed.

    Attributes:
        miss: The miss.
        nearest: The entry whose key differs least; `None` if the cache was empty.
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
        # Neighbouring classes are searched, so they are no reason for a miss.
        near = field.name == "size_class" and abs(one - two) <= REACH
        if one != two and not near:
            found.append(Difference(field.name, str(one), str(two)))
    return tuple(found)


def explain(miss: CacheMiss, entries: Sequence[CachedPlan]) -> Explanation:
    """Explain `miss` by those of `entries` that were solved before it.

    The nearest entry differs in the fewest fields; of several, it is the one of the nearest size, then the latest.
    """
    asked = miss.question
    # Later entries could not have answered, and plans taken from another size are no candidates.
    known = [entry for entry in entries if entry.made_at_ns < miss.at_ns and not entry.seed]

    def rank(entry: CachedPlan) -> tuple[int, int, int, str]:
        size = abs(entry.question.activation_bytes - asked.activation_bytes)
        return len(differences(asked.key, entry.question.key)), size, -entry.made_at_ns, entry.question.name

    nearest = min(known, key=rank, default=None)
    return Explanation(miss, nearest, () if nearest is None else differences(asked.key, nearest.question.key))
