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

from remat_passes.bounds.network import Network, Point

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
        cheapest: The cheapest point found that fits: the integer program's optimum lies between `bound_ns` and its
            time.
        work: Work done, about nodes visited.
    """

    bound_ns: int
    feasible: bool
    cheapest: Point | None
    work: int


def relax(network: Network, room: int) -> Relaxed:
    """The bound of the instant of `network` with `room` bytes for what is alive by choice."""
    total = network.total
    fits, work = network.cheapest(0, 1)
    if fits.size_bytes > room:
        return Relaxed(0, False, None, work)
    # Saving all costs no time; a weight on bytes too small to matter picks the fewest bytes among those.
    over, effort = network.cheapest(total.size_bytes + 1, 1) if _small(total) else network.cheapest(1, 0)
    work += effort
    if over.size_bytes <= room:
        return Relaxed(0, True, over, work)
    best = 0
    for _ in range(MAX_CUTS):
        ns_weight, byte_weight = _price(fits.time_ns - over.time_ns, over.size_bytes - fits.size_bytes, total)
        if byte_weight == 0:
            break
        point, effort = network.cheapest(ns_weight, byte_weight)
        work += effort
        value = ns_weight * point.time_ns + byte_weight * (point.size_bytes - room)
        best = max(best, -(-value // ns_weight))
        if value >= ns_weight * over.time_ns + byte_weight * (over.size_bytes - room) or point in (fits, over):
            break
        if point.size_bytes <= room:
            fits = point
        else:
            over = point
    return Relaxed(best, True, fits, work)


def _small(total: Point) -> bool:
    return (total.size_bytes + 1) * (total.time_ns + 1) < WEIGHT


def _price(time_ns: int, size_bytes: int, total: Point) -> tuple[int, int]:
    """Weights of a nanosecond and a byte, near ``size_bytes : time_ns``, that no sum over all arcs overflows."""
    most = max(total.time_ns * size_bytes + total.size_bytes * time_ns, 1)
    if most < WEIGHT:
        return size_bytes, time_ns
    return max(size_bytes * WEIGHT // most, 1), time_ns * WEIGHT // most
