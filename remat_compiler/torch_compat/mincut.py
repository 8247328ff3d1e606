"""torch's own cut, faster: the same minimum cut, no graph extracted twice, dead code found by its missing users.

torch's partitioner hands its network to `networkx`.  Most of that network is decided without any flow: arcs of
infinite capacity tie vertices to the source or the sink.  What is left falls into many small parts, one or two a
layer, each of which is solved by itself.

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
    """`minimum_cut` in the place of networkx's, which answers what is asked otherwise than torch asks."""

    def cut(graph: Any, source: Vertex, sink: Vertex, *rest: Any, **keywords: Any) -> Cut:
        if rest or keywords:
            return original(graph, source, sink, *rest, **keywords)
        return minimum_cut(graph, source, sink, otherwise=original)

    return cut


def _erasing(original: Callable[..., bool]) -> Callable[..., bool]:
    """`erase_dead_code` in the place of torch's own pass, which serves those with another notion of side effects."""

    def eliminate_dead_code(graph: fx.Graph, is_impure_node: Callable[[fx.Node], bool] | None = None) -> bool:
        return erase_dead_code(graph) if is_impure_node is None else original(graph, is_impure_node)

    return eliminate_dead_code


def _remembering(extract: Callable[..., Any]) -> Callable[..., Any]:
    """`extract` that returns the graph that it made for the same inputs and outputs.

    torch extracts the backward once to see which saved values it reads, and again with those alone: mostly all.
    """
    known: dict[Hashable, Any] = {}

    def extracted(joint: Any, inputs: Any, outputs: Any, *rest: Any, **keywords: Any) -> Any:
        key = (id(joint), tuple(inputs), tuple(outputs), *map(str, rest[1:]), *sorted(map(str, keywords.items())))
        if key not in known:
            known[key] = extract(joint, inputs, outputs, *rest, **keywords)
        return known[key]

    return extracted


def minimum_cut(graph: Any, source: Vertex, sink: Vertex, otherwise: Callable[..., Cut] = networkx.minimum_cut) -> Cut:
    """Capacity of the minimum cut, and both of its sides, as `networkx.minimum_cut` returns them.

    Args:
        graph: A `networkx.DiGraph` whose arcs have the attribute ``capacity``.
        source: Where flow comes from.
        sink: Where it goes.
        otherwise: What answers where there is no finite cut, capacities are fractions, or a part is too large.
    """
    forward: Mapping[Vertex, Any] = graph.succ
    from_source, to_sink = _tied(forward, source), _tied(graph.pred, sink)
    if not from_source.isdisjoint(to_sink):
        return otherwise(graph, source, sink)
    arcs: Arcs = {}
    decided = 0
    for tail, heads in forward.items():
        start = source if tail in from_source else tail
        if tail in to_sink:
            continue
        for head, attributes in heads.items():
            end = sink if head in to_sink else head
            if head in from_source:
                continue
            capacity = attributes["capacity"]
            if capacity != math.inf and capacity != int(capacity):
                return otherwise(graph, source, sink)
            if start == source and end == sink:
                decided += capacity
            else:
                there = arcs.setdefault(start, {})
                there[end] = there.get(end, 0) + capacity
                arcs.setdefault(end, {}).setdefault(start, 0)
    below = set(to_sink)
    for part in _parts(arcs, source, sink):
        if len(part) > LARGEST_PART:
            return otherwise(graph, source, sink)
        flow, side = _solve(arcs, part, source, sink)
        decided += flow
        below |= side
    return decided, (set(graph) - below, below)


def _tied(arcs: Mapping[Vertex, Any], start: Vertex) -> set[Vertex]:
    """What arcs of infinite capacity lead to from `start`."""
    found, stack = {start}, [start]
    while stack:
        for end, attributes in arcs[stack.pop()].items():
            if attributes["capacity"] == math.inf and end not in found:
                found.add(end)
                stack.append(end)
    return found


def _parts(arcs: Arcs, source: Vertex, sink: Vertex) -> Iterator[list[Vertex]]:
    """Sets of vertices that hang together otherwise than through source and sink; every arc has its reverse."""
    seen = {source, sink}
    for first in arcs:
        if first in seen:
            continue
        seen.add(first)
        part = [first]
        for vertex in part:
            for end in arcs[vertex]:
                if end not in seen:
                    seen.add(end)
                    part.append(end)
        yield part


def _solve(arcs: Arcs, part: list[Vertex], source: Vertex, sink: Vertex) -> tuple[Any, set[Vertex]]:
    """Largest flow through one part, along shortest augmenting paths, and what can still reach the sink then."""
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
    """A shortest path with capacity left, if there is one."""
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
