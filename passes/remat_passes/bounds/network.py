"""One instant as a network: each cut is a choice of values kept alive and operators repeated, priced in ns and bytes.

A node on the source's side stands for "runs at this instant or later".  For an operator p that is done, x_p says that
it runs again; for a free one, n_p says that its first execution is still ahead, and x_p that any is:

    x_p -> sink         time of p                     p is done and runs again
    x_p -> n_p          time of p                     p is free, ran before and runs again
    x_q -> a_v -> x_p   bytes of v, which p makes     q reads v later and p does not run again: v is alive
    n_p -> n_q          infinite                      q follows p, so q does not run before p

A minimum cut of ``ns + price * bytes`` is then a Lagrangian relaxation of the one-instant integer program with its
only capacity row priced (see `relaxed`), and the program without that row is integral, since it is a cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from remat_passes.bounds.arcs import arcs_of
from remat_passes.bounds.instant import Instant
from remat_passes.bounds.step_graph import StepGraph
from remat_passes.sequences.max_flow import INFINITE, source_side

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Point:
    """One way through an instant.

    Attributes:
        time_ns: Time of what it recomputes later.
        size_bytes: Bytes alive by choice at the instant.
    """

    time_ns: int
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A cut with its point.

    Attributes:
        point: What it costs.
        side: Whether each node stands on the source's side.
        work: Work done to find it.
    """

    point: Point
    side: BoolArray
    work: int


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Arcs as columns; the bytes of an arc are priced.

    Attributes:
        nodes: Number of nodes, source and sink included.
        free: Operators for which the plan decides whether they ran before, each with its node n_p.
        tail: Where each arc starts.
        head: Where it ends.
        time_ns: Its time.
        size_bytes: Its bytes.
        infinite: Whether it may not be cut.
    """

    nodes: int
    free: tuple[tuple[int, int], ...]
    tail: IntArray
    head: IntArray
    time_ns: IntArray
    size_bytes: IntArray
    infinite: BoolArray

    @property
    def total(self) -> Point:
        """Time and bytes of all arcs: no cut has more."""
        return Point(int(self.time_ns.sum()), int(self.size_bytes.sum()))

    def done(self, cut: Cut) -> list[int]:
        """Free operators that run before the instant in `cut`."""
        return [op for op, node in self.free if not cut.side[node]]

    def cheapest(self, ns_weight: int, byte_weight: int) -> Cut:
        """The cut of least ``ns_weight * time_ns + byte_weight * size_bytes``."""
        return self.cheapest_of(self.time_ns * ns_weight + self.size_bytes * byte_weight)

    def cheapest_of(self, worth: IntArray) -> Cut:
        """The cut of the least sum of `worth`, a number of at least 0 for each arc."""
        # Infinite arcs carry no price of their own, so they need a capacity that no sum of the others reaches.
        arcs = np.stack([self.tail, self.head, np.where(self.infinite, INFINITE, worth)], axis=1)
        side, work = source_side(self.nodes, arcs)
        # Only arcs from the source's side to the sink's are cut; those back cost nothing.
        cut = side[self.tail] & ~side[self.head]
        return Cut(Point(int(self.time_ns[cut].sum()), int(self.size_bytes[cut].sum())), side, work)


def network_of(graph: StepGraph, instant: Instant) -> Network:
    """The network of `instant`."""
    present = np.zeros(len(graph.size_bytes), np.bool_)
    present[list(instant.present)] = True
    nodes, arcs, ahead = arcs_of(graph.tables, instant.state, present)
    ops = np.flatnonzero(ahead >= 0)
    free = tuple(zip(ops.tolist(), ahead[ops].tolist()))
    return Network(nodes, free, arcs[:, 0], arcs[:, 1], arcs[:, 2], arcs[:, 3], arcs[:, 4] == 1)
