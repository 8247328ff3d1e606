"""Minimum cuts of networks with integer capacities, by Dinic's algorithm.

Source: Dinitz, *Algorithm for solution of a problem of maximum flow in networks with power estimation*, 1970: level
graphs by breadth-first search, and a blocking flow in each by depth-first search with current arcs.

A network is its arcs, as rows of origin, end and capacity; node 0 is the source and node 1 the sink.
"""

from __future__ import annotations

import numpy as np

from remat_passes.sequences.jit import compiled
from remat_passes.sequences.profile import BoolArray, IntArray

INFINITE = 1 << 61
SOURCE, SINK = 0, 1


@compiled
def source_side(nodes: int, arcs: IntArray) -> tuple[BoolArray, int]:
    """The source side of the minimum cut that has fewest nodes there, as a mask of nodes, and the work done."""
    count = len(arcs)
    # Linked lists of arcs by tail.  Arc `2 * i + 1` is the reverse of arc `2 * i`, so `arc ^ 1` turns one round.
    first, after = np.full(nodes, -1, np.int64), np.empty(2 * count, np.int64)
    to, room = np.empty(2 * count, np.int64), np.zeros(2 * count, np.int64)
    for i in range(count):
        for back in range(2):
            arc, tail = 2 * i + back, arcs[i, back]
            to[arc], after[arc], first[tail] = arcs[i, 1 - back], first[tail], arc
        room[2 * i] = arcs[i, 2]
    level, at, path = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    work = 0
    while True:
        # Levels: distances from the source along arcs with room.
        for node in range(nodes):
            # `at` is the current arc of each node: arcs before it are useless until the levels change.
            level[node] = -1
            at[node] = first[node]
        level[SOURCE] = 0
        # `path` serves as the queue of the search here, and as the arcs of the path below.
        path[0] = SOURCE
        done, found = 0, 1
        while done < found:
            arc = first[path[done]]
            while arc >= 0:
                if room[arc] > 0 and level[to[arc]] < 0:
                    level[to[arc]] = level[path[done]] + 1
                    path[found] = to[arc]
                    found += 1
                arc = after[arc]
            done += 1
        work += nodes
        if level[SINK] < 0:
            # Reachable nodes of the residual network: every minimum cut has these on the side of the source, so they
            # are the fewest.
            return level >= 0, work
        # A flow that leaves no way along the levels.
        depth, node = 0, SOURCE
        while depth >= 0:
            if node == SINK:
                least = INFINITE
                for i in range(depth):
                    least = min(least, room[path[i]])
                work += depth
                for i in range(depth - 1, -1, -1):
                    room[path[i]] -= least
                    room[path[i] ^ 1] += least
                    # Downwards, so that the last assignment is the full arc nearest to the source: the search resumes
                    # at its tail.
                    if room[path[i]] == 0:
                        depth = i
                node = to[path[depth] ^ 1]
            arc = at[node]
            while arc >= 0 and (room[arc] == 0 or level[to[arc]] != level[node] + 1):
                arc = after[arc]
            at[node] = arc
            if arc >= 0:
                path[depth] = arc
                depth += 1
                node = to[arc]
            else:
                # A dead end on these levels: no other path needs to try it.
                level[node] = -1
                depth -= 1
                if depth >= 0:
                    node = to[path[depth] ^ 1]


def sink_side(nodes: int, arcs: IntArray) -> BoolArray:
    """The sink side of the minimum cut that has fewest nodes there, as a mask of nodes."""
    # Source and sink change places and arcs turn round; `swapped` is its own inverse, so it also maps back.
    swapped = np.array([SINK, SOURCE, *range(2, nodes)], np.int64)
    back = np.column_stack([swapped[arcs[:, 1]], swapped[arcs[:, 0]], arcs[:, 2]])
    side, _ = source_side(nodes, back)
    return np.asarray(side[swapped])
