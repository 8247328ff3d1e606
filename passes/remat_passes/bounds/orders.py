"""Plans in any order, split by which of two operators runs first.

In any order, an instant leaves open which operators ran before, and the cheapest answers of several instants need not
belong to one order: if a residual block has two branches, the weight gradient of one is put off at every instant of the
other at which that helps.  Yet every plan first executes a before b, or b before a.  So with
``bound(G)`` a bound for the plans of the step G, and ``G + (a, b)`` the step in which a first runs before b,

    bound = min(bound(G + (a, b)), bound(G + (b, a)))

holds for all plans of G; likewise any further split of a part.  A part is never below the whole, since each of its
instants leaves less open.  The part of the lowest bound is split next, by the pair that lifts it most, as in branch and
bound (Land and Doig, Econometrica 28, 1960).
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_compiler.ir.graph import Phase
from remat_passes.bounds.instant import FREE, Instant, OrderClass
from remat_passes.bounds.pricing import Pricing

PROMISE = 1.03
"""Orders are tried if the graph's own order, which no split exceeds by much, has a bound higher by this factor."""
GAIN = 1.01
"""A split lifts the bound by this factor at least."""


@dataclass(frozen=True, slots=True)
class _Split:
    """One part of the plans as two: `bound_ns` is the lower of their bounds."""

    bound_ns: int
    parts: tuple[Pricing, Pricing]


def split_orders(whole: Pricing, splits: int, pairs: int) -> list[Pricing]:
    """Parts that together hold all plans of `whole`; each has the best instants priced.

    Args:
        whole: Priced instants of plans that may run operators in several orders.
        splits: Splits at most.
        pairs: Instants of which the order with another operator is tried for each split, at most.
    """
    parts = [whole]
    # In joint order nothing is left to split, and a whole without a plan needs no parts.
    if whole.order is OrderClass.JOINT or not splits or whole.infeasible:
        return parts
    # The graph's own order shows what splitting may gain, and at which instants.
    ordered = Pricing(whole.graph, whole.budget, OrderClass.JOINT, whole.work)
    ordered.price(sorted(whole.priced, key=lambda op: -whole.priced[op].bound_ns)[: 4 * pairs])
    for _ in range(splits):
        lowest = min(parts, key=lambda part: (part.infeasible, part.bound_ns))
        # All parts are infeasible, or the lowest is already near what any order could prove.
        if lowest.infeasible or ordered.bound_ns <= PROMISE * lowest.bound_ns:
            break
        found = [s for pair in _pairs(lowest, ordered, pairs) if (s := _split(lowest, *pair)) is not None]
        best = max(found, key=lambda split: split.bound_ns, default=None)
        if best is None:
            break
        # A part starts with the two instants of its pair only; its bound needs the instants that bind elsewhere.
        for part in best.parts:
            part.price([*ordered.best(pairs), *lowest.best(pairs)])
        parts = [part for part in parts if part is not lowest] + list(best.parts)
    return parts


def _pairs(part: Pricing, ordered: Pricing, count: int) -> list[tuple[int, int]]:
    """Instants whose bound an order could lift, each with the two largest operators that may run before or after it."""
    graph = part.graph
    found = []
    for op in dict.fromkeys([*ordered.best(count), *part.best(max(count // 2, 1))]):
        state = Instant.of(graph, op, part.order).state
        free = [i for i, s in enumerate(state.tolist()) if s == FREE and graph.phase[i] is Phase.BACKWARD]
        # Whether a large result is there at the instant changes its bound most.
        free.sort(key=lambda i: (-graph.written_bytes[i] - graph.workspace_bytes[i], i))
        found += [(op, i) for i in free[:2]]
    return found


def _split(part: Pricing, op: int, other: int) -> _Split | None:
    """`part` split by which of `op` and `other` runs first; `None` if that does not lift its bound."""
    parts = []
    for first, then in ((other, op), (op, other)):
        smaller = part.ordered(first, then)
        smaller.price((op, other))
        # The lower side decides, so one side without a gain makes the split useless.
        if not smaller.infeasible and smaller.bound_ns <= GAIN * part.bound_ns:
            return None
        parts.append(smaller)
    bounds = [smaller.bound_ns for smaller in parts if not smaller.infeasible]
    # A side without any plan bounds nothing; if neither has one, no split can be better.
    return _Split(min(bounds, default=1 << 62), (parts[0], parts[1]))
