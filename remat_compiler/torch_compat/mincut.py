"""torch's own partition, faster: the same minimum cut, no graph extracted twice, dead code found by its missing users.

torch's partitioner hands its network to `networkx`.  Most of that network is decided without any flow: arcs of
infinite capacity tie vertices to the source or the sink.  The rest falls into many small parts, one or two a layer,
each of which is solved by itself.

The cut returned is the one that networkx returns, that of the smallest sink side, which is the same for every maximum
flow (Ford and Fulkerson, *Flows in Networks*, 1962, corollary 5.2 read from the sink).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import networkx
from torch import fx

from remat_compiler.torch_compat.modules import erase_dead_code
from remat_compiler.torch_compat.patches import DEAD_CODE, EXTRACTION, MINIMUM_CUT
from remat_compiler.torch_compat.patching import replaced

Vertex = Hashable
Arcs = dict[Vertex, dict[Vertex, Any]]
Cut = tuple[Any, tuple[set[Vertex], set[Vertex]]]

# The patches are process-wide; each undoes itself to what was there before, so blocks must not interleave.
_one_at_a_time = threading.RLock()
LARGEST_PART = 2_000
"""Vertices of a part that shortest augmenting paths solve quickly; networkx takes networks with a larger one."""


@contextmanager
def quick_partitioning() -> Iterator[None]:
    """Within the block, torch's partitioner does the same in less time; see the module's docstring."""
    with (
        _one_at_a_time,
        replaced(MINIMUM_CUT, _cutting),
        replaced(EXTRACTION, _remembering),
        replaced(DEAD_CODE, _erasing),
    ):
        yield


def _cutting(original: Callable[..., Cut]) -> Callable[..., Cut]:
    """Wrapper that calls `minimum_cut` for calls as torch makes them, and networkx's for all others."""

    def cut(graph: Any, source: Vertex, sink: Vertex, *rest: Any, **keywords: Any) -> Cut:
        if rest or keywords:
            return original(graph, source, sink, *rest, **keywords)
        return minimum_cut(graph, source, sink, otherwise=original)

    return cut


def _erasing(original: Callable[..., bool]) -> Callable[..., bool]:
    """Wrapper that calls `erase_dead_code`, or torch's own pass for callers with their own notion of side effects."""

    def eliminate_dead_code(graph: fx.Graph, is_impure_node: Callable[[fx.Node], bool] | None = None) -> bool:
        return erase_dead_code(graph) if is_impure_node is None else original(graph, is_impure_node)

    return eliminate_dead_code


def _remembering(extract: Callable[..., Any]) -> Callable[..., Any]:
    """`extract` that returns the graph that it made for the same inputs and outputs.

    torch extracts the backward once to see which saved values it reads, and again with those alone: mostly all.
    """
    known: dict[Hashable, Any] = {}

    def extracted(joint: Any, inputs: Any, outputs: Any, *rest: Any, **keywords: Any) -> Any:
        # The first of the rest describes the outputs, which are in the key themselves.
        key = (id(joint), tuple(inputs), tuple(outputs), *map(str, rest[1:]), *sorted(map(str, keywords.items())))
        if key not in known:
            known[key] = extract(joint, inputs, outputs, *rest, **keywords)
        return known[key]

    return extracted


def minimum_cut(graph: Any, source: Vertex, sink: Vertex, otherwise: Callable[..., Cut] = networkx.minimum_cut) -> Cut:
    """Capacity of the minimum cut, and both of its sides, as `networkx.minimum_cut` returns them.

    Args:
        graph: A `networkx.DiGraph` whose arcs have the attribute ``capacity``.
        source: Vertex that the flow comes from.
        sink: Vertex that the flow goes to.
        otherwise: Solver to call if there is no finite cut, capacities are fractions, or a part is too large.
    """
    # Vertices that no finite cut parts from the source, or from the sink; each set becomes one vertex.
    forward: Mapping[Vertex, Any] = graph.succ
    from_source, to_sink = _tied(forward, source), _tied(graph.pred, sink)
    # A path of infinite capacity, for which networkx raises its own error.
    if not from_source.isdisjoint(to_sink):
        return otherwise(graph, source, sink)
    arcs: Arcs = {}
    decided = 0
    for tail, heads in forward.items():
        start = source if tail in from_source else tail
        # An arc that leaves the sink side, or below enters the source side, crosses no cut.
        if tail in to_sink:
            continue
        for head, attributes in heads.items():
            end = sink if head in to_sink else head
            if head in from_source:
                continue
            capacity = attributes["capacity"]
            # Sums of fractions depend on their order, so another order could give another cut than networkx's.
            if capacity != math.inf and capacity != int(capacity):
                return otherwise(graph, source, sink)
            # Every cut has it.
            if start == source and end == sink:
                decided += capacity
            else:
                # Arcs between merged vertices are parallel.
                there = arcs.setdefault(start, {})
                there[end] = there.get(end, 0) + capacity
                # The reverse, for flow that is taken back, and for walking either way.
                arcs.setdefault(end, {}).setdefault(start, 0)
    # Parts share no arcs, so their cuts add up.
    below = set(to_sink)
    for part in _parts(arcs, source, sink):
        if len(part) > LARGEST_PART:
            return otherwise(graph, source, sink)
        flow, side = _solve(arcs, part, source, sink)
        decided += flow
        below |= side
    return decided, (set(graph) - below, below)


def _tied(arcs: Mapping[Vertex, Any], start: Vertex) -> set[Vertex]:
    """The vertices that arcs of infinite capacity lead to from `start`."""
    found, stack = {start}, [start]
    while stack:
        for end, attributes in arcs[stack.pop()].items():
            if attributes["capacity"] == math.inf and end not in found:
                found.add(end)
                stack.append(end)
    return found


def _parts(arcs: Arcs, source: Vertex, sink: Vertex) -> Iterator[list[Vertex]]:
    """Connected components of the network without source and sink; every arc has its reverse."""
    # Source and sink count as seen, so that no walk goes through them.
    seen = {source, sink}
    for first in arcs:
        if first in seen:
            continue
        seen.add(first)
        part = [first]
        # The list grows while it is walked: breadth first.
        for vertex in part:
            for end in arcs[vertex]:
                if end not in seen:
                    seen.add(end)
                    part.append(end)
        yield part


def _solve(arcs: Arcs, part: list[Vertex], source: Vertex, sink: Vertex) -> tuple[Any, set[Vertex]]:
    """Largest flow through one part, by shortest augmenting paths (Edmonds and Karp), and the smallest sink side."""
    # Residual capacities of this part alone, with its own arcs of source and sink.
    left = {vertex: dict(arcs[vertex]) for vertex in part}
    entries = arcs.get(source, {})
    left[source] = {v: entries[v] for v in part if v in entries}
    left[sink] = {v: 0 for v in part if sink in arcs[v]}
    total = 0
    while (path := _path(left, source, sink)) is not None:
        steps = list(pairwise(path))
        flow = min(left[a][b] for a, b in steps)
        total += flow
        for a, b in steps:
            left[a][b] -= flow
            left[b][a] = left[b].get(a, 0) + flow
    # The sink side: the vertices with a residual path to the sink, found backwards from it.
    side: set[Vertex] = set()
    stack = [sink]
    while stack:
        end = stack.pop()
        for start in left[end]:
            if start not in side and start != sink and left[start].get(end, 0) > 0:
                side.add(start)
                stack.append(start)
    return total, side


def _path(left: Arcs, source: Vertex, sink: Vertex) -> list[Vertex] | None:
    """A shortest path with residual capacity, if there is one."""
    came_from: dict[Vertex, Vertex] = {source: source}
    reached = [source]
    for vertex in reached:
        for end, capacity in left[vertex].items():
            if capacity > 0 and end not in came_from:
                came_from[end] = vertex
                if end == sink:
                    path = [sink]
                    while path[-1] != source:
                        path.append(came_from[path[-1]])
                    return path[::-1]
                reached.append(end)
    return None
