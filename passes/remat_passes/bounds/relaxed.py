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
    """Result of pricing.

    Attributes:
        bound_ns: Lower bound of the added time.
        feasible: Whether any point fits; if none does, no plan fits either.
        fits: The cheapest cut found that fits, or the one of the fewest bytes if none does: the integer program's
            optimum lies between `bound_ns` and its time.
        over: The cut found of more bytes than the room and of least bytes among those; `None` if there is nothing to
            mix: the cheapest cut of all fits, or no cut does.
        work: Work done, about nodes visited.
    """

    bound_ns: int
    feasible: bool
    fits: Cut
    over: Cut | None
    work: int


def relax(network: Network, room: int, above_ns: int = 0) -> Relaxed:
    """The bound of the instant of `network` with `room` bytes for storages alive by choice.

    Args:
        network: The network of an instant.
        room: Bytes for storages alive by choice.
        above_ns: Climbing stops when no price can lift the bound above this; the result is still a valid bound.
    """
    total = network.total
    fits = network.cheapest(0, 1)
    # Even the fewest bytes are too many.
    if fits.point.size_bytes > room:
        return Relaxed(0, False, fits, None, fits.work)
    # Saving all costs no time; a weight on bytes too small to matter picks the fewest bytes among those.
    over = network.cheapest(total.size_bytes + 1, 1) if _small(total) else network.cheapest(1, 0)
    work = fits.work + over.work
    # The cheapest cut of all fits: the instant forces no recomputation beyond it.
    if over.point.size_bytes <= room:
        return Relaxed(0, True, over, None, work)
    best = 0
    for _ in range(MAX_CUTS):
        low, high = fits.point, over.point
        ns_weight, byte_weight = _price(low.time_ns - high.time_ns, high.size_bytes - low.size_bytes, total)
        # No price does better than where the two lines cross.
        known = ns_weight * high.time_ns + byte_weight * (high.size_bytes - room)
        # Equal times, so no price above zero; or not even the crossing would lift the bound above `above_ns`.
        if byte_weight == 0 or known <= above_ns * ns_weight:
            break
        cut = network.cheapest(ns_weight, byte_weight)
        work += cut.work
        value = ns_weight * cut.point.time_ns + byte_weight * (cut.point.size_bytes - room)
        # Every price is a valid bound; times are whole nanoseconds, so a fraction counts as one more.
        best = max(best, -(-value // ns_weight))
        # The function reaches the crossing there, or rounding of the price keeps it from a new cut: no price is better.
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
    # Weighted capacities are summed in 64 bits; prices too large for that are scaled down together.
    most = max(total.time_ns * size_bytes + total.size_bytes * time_ns, 1)
    if most < WEIGHT:
        return size_bytes, time_ns
    return max(size_bytes * WEIGHT // most, 1), time_ns * WEIGHT // most
