"""The bound of one instant with equal results counted: their number, fractional if only bytes are priced, is whole.

Layers that are alike have results of equal bytes, and the linear relaxation keeps two and a half of them.  Let n be
the number of arcs of one size that a point cuts (`remat_passes.bounds.network`).  It is whole, so for any k each point
has ``n <= k`` or ``n >= k + 1``, and the lower of two bounds, one for each side, holds for all.  A side has a second
row, and a second price w for it (Geoffrion 1974, as in `relaxed`): for u >= 0, and w >= 0 where K = k bounds n from
above, w <= 0 where K = k + 1 bounds it from below,

    bound(u, w) = min over points of (time_ns + u * size_bytes + w * n)  -  u * room  -  w * K

A point's value is a cut as before, as long as ``u * size + w >= 0``.  The bound is concave in both prices; u is
climbed for each w tried, and w by the slope that the best u leaves.  All in integers, at a fixed scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from remat_passes.bounds.network import BoolArray, Cut, IntArray, Network
from remat_passes.bounds.pricing import Work
from remat_passes.bounds.relaxed import WEIGHT, Relaxed

STEPS = 9
"""Prices tried for each climb."""
CLOSE = 10_000
"""A climb ends when it can gain no more than its value divided by this."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A line above a concave function, which it meets at `at`; `count` is n of the point that it belongs to."""

    at: int
    value: int
    slope: float
    count: float = 0.0


def counted_bound_ns(network: Network, room: int, found: Relaxed, work: Work) -> int:
    """The bound of the module docstring, or that of `found` if that is no lower.

    Args:
        network: The network of an instant.
        room: Bytes for storages alive by choice.
        found: The result of pricing for it.
        work: Counter to which the work is added.
    """
    # No point fits, or the cheapest one does: nothing is mixed.
    if not found.feasible or found.over is None:
        return found.bound_ns
    low, high = found.fits.point, found.over.point
    # The linear relaxation mixes the two cuts so that their bytes just fill the room; `count` is then its n.
    share = (high.size_bytes - room) / (high.size_bytes - low.size_bytes)
    equal = _equal_arcs(network, found.fits, found.over)
    if equal is None:
        return found.bound_ns
    held = [int(np.count_nonzero(_cut_arcs(network, cut) & equal)) for cut in (found.fits, found.over)]
    count = share * held[0] + (1 - share) * held[1]
    # Already whole: neither side would cut the mixture off.
    if count == int(count):
        return found.bound_ns
    price = (low.time_ns - high.time_ns) / (high.size_bytes - low.size_bytes)
    # n <= k on one side, n >= k + 1 on the other; the lower bound of the two holds for every point.
    sides = [_Side(network, room, equal, int(count) + above, bool(above), price, work) for above in (0, 1)]
    return max(found.bound_ns, min(side.bound_ns() for side in sides))


def _cut_arcs(network: Network, cut: Cut) -> BoolArray:
    return np.asarray(cut.side[network.tail] & ~cut.side[network.head])


def _equal_arcs(network: Network, fits: Cut, over: Cut) -> BoolArray | None:
    """Arcs of the size whose bytes differ most between the two cuts; `None` if no size differs."""
    # Arcs that hold a result; those with a time are repetitions, with their random state.
    held = (network.size_bytes > 0) & (network.time_ns == 0)
    differ = np.flatnonzero(held & (_cut_arcs(network, fits) != _cut_arcs(network, over)))
    sizes, counts = np.unique(network.size_bytes[differ], return_counts=True)
    if not len(sizes):
        return None
    return np.asarray(held & (network.size_bytes == sizes[np.argmax(sizes * counts)]))


class _Side:
    """Points with at most, or at least, `whole` of the arcs `equal`; a byte costs about `price` ns."""

    def __init__(
        self, network: Network, room: int, equal: BoolArray, whole: int, least: bool, price: float, work: Work
    ) -> None:
        self.network, self.room, self.equal, self.whole, self.least = network, room, equal, whole, least
        self.work = work
        total = network.total
        self.size = int(network.size_bytes[equal][0])
        # Times, bytes and counts have a third of the largest sum each, at prices of up to eight times the first.
        self.dearest = WEIGHT // 3 // max(total.size_bytes, 1)
        self.furthest = WEIGHT // 3 // int(np.count_nonzero(equal))
        # Prices are whole numbers of 1 / scale ns; the finer, the closer to the best price.
        self.scale = max(min(WEIGHT // 3 // max(total.time_ns, 1), int(self.dearest / (8 * price))), 1)
        self.start = min(int(price * self.scale) + 1, self.dearest)

    def bound_ns(self) -> int:
        """The bound of this side."""
        # A price of the count compares to one of bytes times the size; the first step is an eighth of the known one.
        best = _climb(self._at, 0, max(self.start * self.size // 8, 1), None)
        # Added time is whole nanoseconds, so a fraction counts as one more.
        return max(0, -(-best.value // self.scale))

    def _at(self, count_price: int) -> _Line:
        """The best byte price for a price of the count, which is on this side of zero."""
        count_price = max(min(count_price, self.furthest), -self.furthest)
        # A price that rewards more of the equal arcs proves "at least", a penalty "at most".
        count_price = min(count_price, 0) if self.least else max(count_price, 0)
        # The least u with u * size + w >= 0; below it the equal arcs would have a negative capacity.
        lowest = -(count_price // self.size) if count_price < 0 else 0
        best = _climb(
            lambda price: self._cut(price, count_price), max(self.start, lowest), max(self.start // 8, 1), lowest
        )
        return _Line(count_price, best.value, best.count - self.whole)

    def _cut(self, price: int, count_price: int) -> _Line:
        """The value of both prices."""
        network = self.network
        price = min(price, self.dearest)
        worth: IntArray = network.time_ns * self.scale + network.size_bytes * price + self.equal * count_price
        # No cut; a line that is low and rising sends the climb back up.
        if (worth < 0).any():
            return _Line(price, -WEIGHT, 1.0)
        cut = network.cheapest_of(worth)
        self.work.done += cut.work
        count = int(np.count_nonzero(_cut_arcs(network, cut) & self.equal))
        over, value = cut.point.size_bytes - self.room, cut.point.time_ns * self.scale
        return _Line(price, value + price * over + count_price * (count - self.whole), over, count)


def _climb(evaluate: Callable[[int], _Line], start: int, step: int, lowest: int | None) -> _Line:
    """The highest value found, with the mixture of the counts of the two lines next to it.

    Args:
        evaluate: The line of a price.
        start: The first price.
        step: How far to look first: up from a rising line, down from a falling one.
        lowest: No price below this is tried.
    """
    rising: _Line | None = None
    falling: _Line | None = None
    best: _Line | None = None
    at, reach = start, abs(step)
    for _ in range(STEPS):
        line = evaluate(at)
        best = line if best is None or line.value > best.value else best
        # A level line touches the function at its maximum.
        if line.slope == 0:
            return best
        if line.slope > 0:
            rising = line
        else:
            falling = line
        # The maximum lies between: the function is below both lines, so it is tried where they cross.
        if rising is not None and falling is not None:
            meet = _meet(rising, falling)
            # No whole price is left between the two.
            if not rising.at < meet < falling.at:
                break
            # Even the crossing, which the function cannot exceed, gains next to nothing.
            if rising.value + rising.slope * (meet - rising.at) - best.value <= abs(best.value) / CLOSE:
                break
            at = meet
            continue
        # Only one side is known yet: go on that way in growing steps.
        at, reach = (line.at + reach, reach * 4) if falling is None else (line.at - reach, reach * 4)
        if lowest is not None and at < lowest:
            if line.at == lowest:
                break
            at = lowest
    assert best is not None
    if rising is None or falling is None:
        return best
    # The mixture of the two lines that is level: the slope at the maximum.
    share = rising.slope / (rising.slope - falling.slope)
    return _Line(best.at, best.value, best.slope, share * falling.count + (1 - share) * rising.count)


def _meet(rising: _Line, falling: _Line) -> int:
    """Where two lines cross."""
    ahead = falling.value - falling.slope * (falling.at - rising.at) - rising.value
    return rising.at + int(ahead / (rising.slope - falling.slope))
