"""Minimum cut of a network with integer capacities, by Dinic's algorithm.

Source: Dinitz, *Algorithm for solution of a problem of maximum flow in networks with power estimation*, 1970: level
graphs by breadth-first search, and a blocking flow in each by depth-first search with current arcs.

Arcs stand in pairs: arc ``a`` and its reverse ``a ^ 1``, whose capacity is what flows through ``a``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat_passes.planning.compiled import compiled, inner
from remat_passes.planning.profile import BoolArray, IntArray

UNLIMITED = 1 << 60
"""Capacity of an arc that no finite cut contains."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Nodes and arcs; node 0 is the source and node 1 the sink.

    Attributes:
        first: First arc of each node, or -1.
        following: Next arc of the same node, or -1.
        to: Node that each arc ends in.
        capacity: Capacity of each arc; 0 for the reverse ones.
    """

    first: IntArray
    following: IntArray
    to: IntArray
    capacity: IntArray

    @staticmethod
    def of(num_nodes: int, arcs: Sequence[tuple[int, int, int]]) -> Network:
        """The network of `arcs`: origin, end and capacity; arc ``i`` gets number ``2 * i``."""
        first, following = [-1] * num_nodes, [-1] * (2 * len(arcs))
        to, capacity = [0] * (2 * len(arcs)), [0] * (2 * len(arcs))
        for i, (origin, end, size) in enumerate(arcs):
            for arc, a, b in ((2 * i, origin, end), (2 * i + 1, end, origin)):
                to[arc], following[arc], first[a] = b, first[a], arc
            capacity[2 * i] = size
        return Network(*(np.array(row, np.int64) for row in (first, following, to, capacity)))

    def sink_side(self, capacity: IntArray) -> BoolArray:
        """The nodes on the sink's side of a minimum cut, the smallest such set.

        Args:
            capacity: Capacity of each arc, in place of `self.capacity`; a copy is used.
        """
        return saturate(self.first, self.following, self.to, capacity.copy())


@compiled
def saturate(first: IntArray, following: IntArray, to: IntArray, left: IntArray) -> BoolArray:
    """Send a maximum flow through the network; `left` becomes what is left of the capacities.

    Returns:
        The nodes from which the sink can still be reached.
    """
    while True:
        level = _levels(first, following, to, left)
        if level[0] < 0:
            break
        _block(first, following, to, left, level)
    return level >= 0


@inner
def _levels(first: IntArray, following: IntArray, to: IntArray, left: IntArray) -> IntArray:
    """Number of arcs from each node to the sink, along arcs with capacity left; -1 where there is no way."""
    level = np.full(len(first), -1, np.int64)
    queue = np.empty(len(first), np.int64)
    level[1], queue[0] = 0, 1
    head, tail = 0, 1
    while head < tail:
        node = queue[head]
        head += 1
        arc = first[node]
        while arc >= 0:
            before = to[arc]
            if left[arc ^ 1] > 0 and level[before] < 0:
                level[before] = level[node] + 1
                queue[tail] = before
                tail += 1
            arc = following[arc]
    return level


@inner
def _block(first: IntArray, following: IntArray, to: IntArray, left: IntArray, level: IntArray) -> None:
    """Send a blocking flow along arcs that lead one level nearer to the sink."""
    current = first.copy()
    path = np.empty(len(first), np.int64)
    length, node = 0, 0
    while True:
        if node == 1:
            flow = left[path[0]]
            for i in range(length):
                flow = min(flow, left[path[i]])
            full = 0
            for i in range(length - 1, -1, -1):
                left[path[i]] -= flow
                left[path[i] ^ 1] += flow
                if left[path[i]] == 0:
                    full = i
            length = full
            node = to[path[full] ^ 1]
            continue
        arc = current[node]
        while arc >= 0 and (left[arc] == 0 or level[to[arc]] != level[node] - 1):
            arc = following[arc]
        current[node] = arc
        if arc >= 0:
            path[length] = arc
            length += 1
            node = to[arc]
        elif length == 0:
            return
        else:
            length -= 1
            node = to[path[length] ^ 1]
            current[node] = following[current[node]]
