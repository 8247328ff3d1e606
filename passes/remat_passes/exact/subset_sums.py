"""Which sums the sizes of a capacity row can reach: a smaller capacity that cuts off no whole solution."""

from __future__ import annotations

import math
from collections.abc import Iterable

SUM_BITS = 1 << 22
"""Largest capacity, in units of the common divisor, for which `largest_sum` looks."""


def largest_sum(sizes: Iterable[int], limit: int) -> int:
    """Largest sum of a subset of `sizes` that does not exceed `limit`; `limit` itself if that takes long to find."""
    # Larger sizes are in no such subset.
    left = [size for size in sizes if 0 < size <= limit]
    unit = math.gcd(*left) if left else 1
    limit = limit // unit * unit if left else 0
    if sum(left) <= limit:
        return sum(left)
    # Any value from the largest sum up to the limit is a valid capacity.
    if limit // unit > SUM_BITS:
        return limit
    # Bit k says whether some subset sums to k units; each size shifts in the sums with it.
    mask = (1 << (limit // unit + 1)) - 1
    sums = 1
    for size in sorted(left):
        sums |= (sums << (size // unit)) & mask
    return (sums.bit_length() - 1) * unit
