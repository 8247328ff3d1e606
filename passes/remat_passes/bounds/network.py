"""One instant as a network: its cuts are what a plan may keep alive and execute again, priced in ns and bytes.

A node on the source's side stands for "runs at this instant or later".  For an operator p that is done, x_p says that
it runs again; for a free one, n_p says that its first execution is still ahead, and x_p that any is:

    x_p -> sink         time of p                     p is done and runs again
    x_p -> n_p          time of p                     p is free, ran before and runs again
    x_q -> a_v -> x_p   bytes of v, which p makes     q reads v later and p does not run again: v is alive
    n_p -> n_q          infinite                      what follows p is not done before p

A minimum cut of ``ns + price * bytes`` is then a Lagrangian relaxation of the one-instant integer program with its
only capacity row priced (see `relaxed`), and the program without that row is integral, since it is a cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from remat_passes.bounds.instant import AHEAD, DONE, FREE, Instant
from remat_passes.bounds.step_graph import StepGraph
from remat_passes.planning.max_flow import INFINITE, SINK, SOURCE, source_side

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
        free: Operators of which the plan decides whether they ran before, each with the node n_p.
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
        """Time and bytes of all arcs, which no cut exceeds."""
        return Point(int(self.time_ns.sum()), int(self.size_bytes.sum()))

    def done(self, cut: Cut) -> list[int]:
        """Free operators that run before the instant in `cut`."""
        return [op for op, node in self.free if not cut.side[node]]

    def cheapest(self, ns_weight: int, byte_weight: int) -> Cut:
        """The cut of least ``ns_weight * time_ns + byte_weight * size_bytes``."""
        room = self.time_ns * ns_weight + self.size_bytes * byte_weight
        arcs = np.stack([self.tail, self.head, np.where(self.infinite, INFINITE, room)], axis=1)
        side, work = source_side(self.nodes, arcs)
        cut = side[self.tail] & ~side[self.head]
        return Cut(Point(int(self.time_ns[cut].sum()), int(self.size_bytes[cut].sum())), side, work)


def network_of(graph: StepGraph, instant: Instant) -> Network:
    """The network of `instant`."""
    rows = _Rows(graph, instant)
    for p in rows.relevant:
        rows.add_op(p)
        for v in graph.writes[p]:
            rows.add_storage(p, v)
    arcs = np.array(rows.arcs, np.int64).reshape(-1, 5)
    free = tuple((p, rows.ahead[p]) for p in reversed(rows.relevant) if instant.state[p] == FREE)
    return Network(rows.nodes, free, arcs[:, 0], arcs[:, 1], arcs[:, 2], arcs[:, 3], arcs[:, 4] == 1)


class _Rows:
    """Arcs under construction: tail, head, ns, bytes, infinite."""

    def __init__(self, graph: StepGraph, instant: Instant) -> None:
        self.graph = graph
        self.instant = instant
        self.nodes = 2
        self.arcs: list[tuple[int, int, int, int, int]] = []
        self.again = [SOURCE] * len(graph.live)
        """x_p"""
        self.ahead = [SOURCE] * len(graph.live)
        """n_p"""
        self.readers: dict[int, list[int]] = {}
        self.relevant = self._find_relevant()

    def _find_relevant(self) -> list[int]:
        """Operators of which the plan decides something that matters, last first; numbers their nodes."""
        graph, state = self.graph, self.instant.state
        found: list[int] = []
        for p in range(len(graph.live) - 1, -1, -1):
            if not graph.live[p]:
                continue
            if state[p] != AHEAD:
                wanted = any(v in self.readers for v in graph.writes[p])
                if state[p] == DONE:
                    self.ahead[p] = SINK
                    self.again[p] = self._node() if wanted and graph.repeats[p] else SINK
                else:
                    self.ahead[p] = self._node()
                    self.again[p] = self._node() if wanted and graph.repeats[p] else self.ahead[p]
                if wanted or state[p] == FREE:
                    found.append(p)
            if self.again[p] != SINK:
                for v in graph.reads[p]:
                    if v not in self.instant.present and state[graph.producer[v]] != AHEAD:
                        self.readers.setdefault(v, []).append(self.again[p])
        return found

    def _node(self) -> int:
        self.nodes += 1
        return self.nodes - 1

    def add_op(self, p: int) -> None:
        """What it takes to run `p` again, and what its first execution entails."""
        graph, again, ahead = self.graph, self.again[p], self.ahead[p]
        if again not in (SOURCE, ahead):
            self.arcs.append((again, ahead, graph.time_ns[p], graph.replay_bytes[p], 0))
        if self.instant.state[p] != FREE:
            return
        if again != ahead:
            self.arcs.append((ahead, again, 0, 0, 1))
        if graph.kept_bytes[p]:
            self.arcs.append((SOURCE, ahead, 0, graph.kept_bytes[p], 0))
        for earlier in graph.earlier[p]:
            if self.ahead[earlier] not in (SOURCE, SINK):
                self.arcs.append((self.ahead[earlier], ahead, 0, 0, 1))

    def add_storage(self, p: int, v: int) -> None:
        """The bytes of `v`, which `p` makes, where someone reads it later and `p` does not run again."""
        size, readers = self.graph.size_bytes[v], self.readers.get(v, [])
        if not size or not readers:
            return
        if SOURCE in readers or len(readers) == 1:
            reader = SOURCE if SOURCE in readers else readers[0]
        else:
            reader = self._node()
            self.arcs += [(other, reader, 0, 0, 1) for other in readers]
        self.arcs.append((reader, self.again[p], 0, size, 0))
