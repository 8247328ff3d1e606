"""The compiled loops of `instant` and `network`, over flat arrays.

A bound looks at tens of instants, each with a network of its own of a few arcs per operator: uncompiled, building the
networks would take most of the time of a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from remat_passes.sequences.jit import compiled
from remat_passes.sequences.max_flow import SINK, SOURCE

IntArray = npt.NDArray[np.int64]
StateArray = npt.NDArray[np.int8]
BoolArray = npt.NDArray[np.bool_]

DONE, AHEAD, FREE = range(3)
"""Whether an operator ran before an instant."""
FORWARD, TANGENT_FREE, BACKWARD = range(3)
"""Values of the column PHASE."""
LIVE, PHASE, REPEATS, TIME, REPLAY, KEPT = range(6)
"""Columns of `Tables.ops`."""


class Tables(NamedTuple):
    """A `StepGraph` as arrays.

    Row i of a list of numbers is ``items[start[i]:start[i + 1]]``.

    Attributes:
        ops: A row an operator.  Whether it is LIVE, its PHASE, whether it REPEATS; its TIME in ns; REPLAY and KEPT in
            bytes.
        producer: Operator that makes each storage.
        size_bytes: Bytes of each storage.
        sequence: All operators, each after those that first run before it.
    """

    ops: IntArray
    producer: IntArray
    size_bytes: IntArray
    read_start: IntArray
    read_items: IntArray
    write_start: IntArray
    write_items: IntArray
    earlier_start: IntArray
    earlier_items: IntArray
    sequence: IntArray


def rows(lists: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """`lists` as start and items."""
    start = np.array([0, *accumulate(map(len, lists))], np.int64)
    return start, np.array([item for row in lists for item in row], np.int64)


@compiled
def states(tables: Tables, op: int, forward_ordered: bool, backward_ordered: bool) -> StateArray:
    """Whether each operator is done, ahead or free when `op` first runs, in plans that keep some phases in order."""
    ops = tables.ops
    n = len(ops)
    state = np.full(n, FREE, np.int8)
    # First what the phases alone say ...
    forward_instant = ops[op, PHASE] == FORWARD
    for i in range(n):
        phase = ops[i, PHASE]
        # The boundary keeps the phases apart: no backward operator runs before it, no first forward execution after it.
        if ops[i, LIVE] == 0 or i == op or (forward_instant and phase == BACKWARD):
            state[i] = AHEAD
        elif phase == FORWARD and not forward_instant:
            state[i] = DONE
        elif (phase == FORWARD and forward_ordered) or (phase == BACKWARD and backward_ordered):
            state[i] = DONE if i < op else AHEAD
    start, items = tables.earlier_start, tables.earlier_items
    # ... then what follows from that: nothing runs before an operator on which it depends. Along `sequence`, one sweep
    # each way finds all of it.
    for i in tables.sequence:
        for k in range(start[i], start[i + 1]):
            if state[i] == FREE and state[items[k]] == AHEAD:
                state[i] = AHEAD
    for i in tables.sequence[::-1]:
        if state[i] == DONE or i == op:
            for k in range(start[i], start[i + 1]):
                state[items[k]] = DONE
    return state


@compiled
def arcs_of(tables: Tables, state: StateArray, present: BoolArray) -> tuple[int, IntArray, IntArray]:
    """The network of an instant, see `remat_passes.bounds.network`.

    Args:
        tables: The step.
        state: DONE, AHEAD or FREE for each operator.
        present: Whether each storage is alive in any case.

    Returns:
        Number of nodes; arcs as rows of origin, end, ns, bytes, and 1 if it may not be cut; for each operator its
        node n_p if the plan decides whether it ran before, and otherwise -1.
    """
    ops, size = tables.ops, tables.size_bytes
    n = len(ops)
    # Nodes x_p and n_p of each operator. One that is ahead surely runs: it is the source itself.
    again, ahead = np.full(n, SOURCE, np.int64), np.full(n, SOURCE, np.int64)
    matters, nodes = np.zeros(n, np.bool_), 2
    # Readers of each storage that run at the instant or later: a list of their nodes for each.
    newest = np.full(len(size), -1, np.int64)
    reader, before = np.empty(len(tables.read_items), np.int64), np.empty(len(tables.read_items), np.int64)
    readers = 0
    # In reverse joint order all readers of a result are known before its maker.
    for p in range(n - 1, -1, -1):
        if ops[p, LIVE] == 0:
            continue
        if state[p] != AHEAD:
            wanted = False
            for k in range(tables.write_start[p], tables.write_start[p + 1]):
                wanted = wanted or newest[tables.write_items[k]] >= 0
            # Once done, it runs no more, unless a later reader wants a result again.
            ahead[p], again[p] = SINK, SINK
            # One node for both questions, unless it may also run again after it ran before.
            if state[p] == FREE:
                ahead[p], again[p], nodes = nodes, nodes, nodes + 1
            if wanted and ops[p, REPEATS] == 1:
                again[p], nodes = nodes, nodes + 1
            # Done, and with no later reader of its results: it has no arcs.
            matters[p] = wanted or state[p] == FREE
        # It may run at the instant or later, and then reads. A result made by an operator ahead is not alive yet.
        if again[p] != SINK:
            for k in range(tables.read_start[p], tables.read_start[p + 1]):
                v = tables.read_items[k]
                if not present[v] and state[tables.producer[v]] != AHEAD:
                    reader[readers], before[readers], newest[v] = again[p], newest[v], readers
                    readers += 1
    # Upper bound of the arcs: three of an operator, one of a result, one of a reader, one of a predecessor.
    most = 3 * n + len(tables.write_items) + readers + len(tables.earlier_items)
    arcs, count = np.zeros((most, 5), np.int64), 0
    for p in range(n - 1, -1, -1):
        if not matters[p]:
            continue
        # x_p -> n_p or sink: it ran before and runs again, which takes time, and its random state is alive meanwhile.
        if again[p] != SINK and again[p] != ahead[p]:
            arcs[count] = again[p], ahead[p], ops[p, TIME], ops[p, REPLAY], 0
            count += 1
        if state[p] == FREE:
            # If its first execution is ahead, it runs at the instant or later.
            if again[p] != ahead[p]:
                arcs[count] = ahead[p], again[p], 0, 0, 1
                count += 1
            # Ran before, so the caller holds its kept results at the instant.
            if ops[p, KEPT] > 0:
                arcs[count] = SOURCE, ahead[p], 0, ops[p, KEPT], 0
                count += 1
            # If a predecessor is ahead, so is this one.
            for k in range(tables.earlier_start[p], tables.earlier_start[p + 1]):
                if state[tables.earlier_items[k]] == FREE:
                    arcs[count] = ahead[tables.earlier_items[k]], ahead[p], 0, 0, 1
                    count += 1
        for k in range(tables.write_start[p], tables.write_start[p + 1]):
            v = tables.write_items[k]
            if size[v] == 0 or newest[v] < 0:
                continue
            # One arc prices the bytes of v, from the node that says whether any reader runs: the reader if it is the
            # only one, the source if one of them surely runs, or else a node a_v to which all of them lead.
            alone, from_source = before[newest[v]] < 0, False
            r = newest[v]
            while r >= 0:
                from_source = from_source or reader[r] == SOURCE
                r = before[r]
            origin = SOURCE if from_source else reader[newest[v]]
            if not from_source and not alone:
                origin, nodes, r = nodes, nodes + 1, newest[v]
                while r >= 0:
                    arcs[count] = reader[r], origin, 0, 0, 1
                    count, r = count + 1, before[r]
            arcs[count] = origin, again[p], 0, size[v], 0
            count += 1
    for p in range(n):
        if state[p] != FREE:
            ahead[p] = -1
    return nodes, arcs[:count], ahead
