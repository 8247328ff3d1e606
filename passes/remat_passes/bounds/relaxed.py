"""The bound of one instant by pricing bytes: a concave function of the price, climbed by minimum cuts.

For any price ``u >= 0`` of a byte, with ``room`` the bytes that the budget leaves at the instant,

    bound(u) = min over points of (time_ns + u * size_bytes)  -  u * room

is a lower bound of the added time (Lagrangian relaxation; Geoffrion, Mathematical Programming Study 2, 1974).
The best price gives the bound of the linear relaxation, since without the capacity row the program is integral.  It
lies where two lines ``time_ns + u * (size_bytes - room)`` cross, one of a point that fits and one of a point that does
not, so the crossing of the best two known is tried next.  All in integers: prices are fractions, the result is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_passes.bounds.network import Cut, Network, Point

MAX_CUTS = 40
"""Prices tried at most; each is a valid bound."""
WEIGHT = 1 << 59
"""Largest sum of priced capacities."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What pricing finds.

    Attributes:
        bound_ns: Lower bound of the added time.
        feasible: Whether any point fits; where none does, no plan fits either.
        fits: The cheapest cut found that fits, or of the fewest bytes where none does: the integer program's optimum
            lies between `bound_ns` and its time.
        over: The cut found that fits least narrowly among those of less time; `None` where `fits` is free.
        work: Work done, about nodes visited.
    """

    bound_ns: int
    feasible: bool
    fits: Cut
    over: Cut | None
    work: int


def relax(network: Network, room: int, above_ns: int = 0) -> Relaxed:
    """The bound of the instant of `network` with `room` bytes for what is alive by choice.

    Args:
        network: The network of an instant.
        room: Bytes for what is alive by choice.
        above_ns: Climbing stops where no price can lift the bound above this; the result is a valid bound still.
    """
    total = network.total
    fits = network.cheapest(0, 1)
    if fits.point.size_bytes > room:
        return Relaxed(0, False, fits, None, fits.work)
    # Saving all costs no time; a weight on bytes too small to matter picks the fewest bytes among those.
    over = network.cheapest(total.size_bytes + 1, 1) if _small(total) else network.cheapest(1, 0)
    work = fits.work + over.work
    if over.point.size_bytes <= room:
        return Relaxed(0, True, over, None, work)
    best = 0
    for _ in range(MAX_CUTS):
        low, high = fits.point, over.point
        ns_weight, byte_weight = _price(low.time_ns - high.time_ns, high.size_bytes - low.size_bytes, total)
        # No price does better than where the two lines cross.
        known = ns_weight * high.time_ns + byte_weight * (high.size_bytes - room)
        if byte_weight == 0 or known <= above_ns * ns_weight:
            break
        cut = network.cheapest(ns_weight, byte_weight)
        work += cut.work
        value = ns_weight * cut.point.time_ns + byte_weight * (cut.point.size_bytes - room)
        best = max(best, -(-value // ns_weight))
        if value >= known or cut.point in (low, high):
            break
        if cut.point.size_bytes <= room:
            fits = cut
        else:
            over = cut
    return Relaxed(best, True, fits, over, work)


def _small(total: Point) -> bool:
    return (total.size_bytes + 1) * (total.time_ns + 1) < WEIGHT


def _price(time_ns: int, size_bytes: int, total: Point) -> tuple[int, int]:
    """Weights of a nanosecond and a byte, near ``size_bytes : time_ns``, that no sum over all arcs overflows."""
    most = max(total.time_ns * size_bytes + total.size_bytes * time_ns, 1)
    if most < WEIGHT:
        return size_bytes, time_ns
    return max(size_bytes * WEIGHT // most, 1), time_ns * WEIGHT // most
