"""The simulated memory of `dtr`: which storages are resident, evicted or locked, and the run through the program."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat_compiler.ir.graph import Phase
from remat_passes.sequences.jit import compiled, inner
from remat_passes.sequences.profile import (
    END,
    KEPT,
    MUST_NOT_SAVE,
    PRODUCER,
    READS,
    REPEATABLE,
    REPLAY,
    SIZE,
    TIME,
    WORKSPACE,
    WRITES,
    Arrays,
    IntArray,
)
from remat_passes.sequences.sequence import Order, StepIndex

LAST_READ, NEED, RESIDENT, LOCKS, TOUCHED, SET = range(6)
"""Columns of `Memory.state`."""
LIVE, CLOCK, EVICTIONS, SETS, VISITS, HIGHEST = range(6)
"""Entries of `Memory.counters`."""


def last_needs(index: StepIndex, order: Order) -> IntArray:
    """When the program `order` is done with each storage.

    Returns:
        A row a storage: the last position of the program that reads it (-1 for none), and the last position that can
        need it at all, to remake a value that is read there.
    """
    last = np.full((len(index.producer), 2), -1, np.int64)
    program = (*order.forward, *order.backward)
    for position in range(len(program) - 1, -1, -1):
        op = program[position]
        need = position
        if not index.pinned[op] and index.phase[op] is not Phase.BACKWARD:
            # It may run again as long as anything may need its results, and would then read its inputs.
            need = max([position, *(int(last[s, 1]) for s in index.writes[op])])
        for s in index.reads[op]:
            last[s] = np.maximum(last[s], (position, need))
    return last


class Memory(NamedTuple):
    """The state of one run.

    Attributes:
        g: The problem.
        readers: Row starts by storage, then operators that read it.
        state: A row a storage, see the columns above; SET is its component once it was evicted, else -1.
        above: Parent of each component in the union-find.
        cost: Time of each component, in ns.
        stamp: Scratch: the last visit of each component.
        counters: Live bytes, simulated time, evictions, components, visits, and most live bytes.
    """

    g: Arrays
    reader_start: IntArray
    readers: IntArray
    state: IntArray
    above: IntArray
    cost: IntArray
    stamp: IntArray
    counters: IntArray


@inner
def find(m: Memory, component: int) -> int:
    """Root of a component, with path halving."""
    while m.above[component] != component:
        m.above[component] = m.above[m.above[component]]
        component = m.above[component]
    return component


@inner
def visit(m: Memory, storage: int, join: int) -> int:
    """Sum of the costs of evicted components next to `storage`; with `join` >= 0 they become one with it."""
    # A new stamp for each visit, so that a component that is met through several neighbours counts once.
    m.counters[VISITS] += 1
    turn = m.counters[VISITS]
    total = 0
    producer = m.g.storages[storage, PRODUCER]
    low, high = m.g.ops[producer, READS], m.g.ops[producer, WRITES]
    for i in range(low, high):
        total += take(m, m.g.items[i], turn, join)
    # Downstream neighbours: evicted results of the operators that read it, which would be remade from it.
    for k in range(m.reader_start[storage], m.reader_start[storage + 1]):
        for i in range(m.g.ops[m.readers[k], WRITES], m.g.ops[m.readers[k], END]):
            total += take(m, m.g.items[i], turn, join)
    return total


@inner
def take(m: Memory, neighbour: int, turn: int, join: int) -> int:
    """Cost of the component of `neighbour` if it is evicted and was not counted in this visit."""
    if m.state[neighbour, SET] < 0 or m.state[neighbour, RESIDENT] == 1:
        return 0
    root = find(m, m.state[neighbour, SET])
    if m.stamp[root] == turn:
        return 0
    m.stamp[root] = turn
    if join >= 0:
        to = find(m, join)
        if to != root:
            m.above[root] = to
            m.cost[to] += m.cost[root]
            # The joined component was counted with this visit.
            m.stamp[to] = turn
    return int(m.cost[root])


@inner
def evict(m: Memory, storage: int, position: int) -> None:
    """Free `storage`; unless nothing can ask for it any more, it joins the evicted components next to it."""
    m.state[storage, RESIDENT] = 0
    m.counters[LIVE] -= m.g.storages[storage, SIZE]
    # Banished; or out of components, whose number is limited: then it counts as no one's neighbour.
    if m.state[storage, NEED] <= position or m.counters[SETS] == len(m.above):
        m.state[storage, SET] = -1
        return
    new = m.counters[SETS]
    m.counters[SETS] += 1
    m.above[new], m.cost[new] = new, m.g.ops[m.g.storages[storage, PRODUCER], TIME]
    m.state[storage, SET] = new
    visit(m, storage, new)


@inner
def remade(m: Memory, storage: int) -> None:
    """Take `storage` out of its component, whose cost falls by its own."""
    if m.state[storage, SET] >= 0:
        # A union-find cannot split, so the component keeps its shape (h_DTR-eq) and loses only the cost.
        root = find(m, m.state[storage, SET])
        m.cost[root] = max(m.cost[root] - m.g.ops[m.g.storages[storage, PRODUCER], TIME], 0)
        m.state[storage, SET] = -1


@inner
def make_room(m: Memory, wanted: int, budget: int, position: int) -> None:
    """Evict, least h first, until `wanted` more bytes fit or nothing is left to evict."""
    while m.counters[LIVE] + wanted > budget:
        best, lowest = -1, 0.0
        # All storages are scored each time, as in the paper: staleness changes every score between two evictions.
        for s in range(len(m.state)):
            # Locked: an operator that is about to run reads it.  Kept: the caller holds it, so eviction frees
            # nothing.
            if m.state[s, RESIDENT] == 0 or m.state[s, LOCKS] > 0 or m.g.storages[s, KEPT]:
                continue
            size = m.g.storages[s, SIZE]
            producer = m.g.storages[s, PRODUCER]
            if size == 0 or not m.g.ops[producer, REPEATABLE]:
                continue
            # A visit that joins nothing: only the cost of the evicted neighbourhood.
            price = m.g.ops[producer, TIME] + visit(m, s, -1)
            stale = max(m.counters[CLOCK] - m.state[s, TOUCHED], 1)
            # Plus one, so that bytes and staleness also rank values that cost no time.
            h = (price + 1.0) / (float(size) * float(stale))
            if best < 0 or h < lowest:
                best, lowest = s, h
        # Nothing is left to evict: the trace goes over the budget, which the judge will see.
        if best < 0:
            return
        evict(m, best, position)
        m.counters[EVICTIONS] += 1


@inner
def execute(m: Memory, op: int, again: bool, budget: int, position: int) -> None:
    """Run one operator whose inputs are resident and locked."""
    g = m.g
    wanted = g.ops[op, WORKSPACE]
    for i in range(g.ops[op, WRITES], g.ops[op, END]):
        s = g.items[i]
        # A second execution writes a second copy of a kept result, next to the one that the caller holds.
        if m.state[s, RESIDENT] == 0 or g.storages[s, KEPT]:
            wanted += g.storages[s, SIZE]
    if g.ops[op, REPLAY] >= 0:
        # A copy of the random state at first; in a repetition, the generator's own state, kept aside.
        wanted += g.storages[g.ops[op, REPLAY], SIZE]
    make_room(m, wanted, budget, position)
    m.counters[HIGHEST] = max(m.counters[HIGHEST], m.counters[LIVE] + wanted)
    m.counters[CLOCK] += g.ops[op, TIME]
    for i in range(g.ops[op, READS], g.ops[op, WRITES]):
        m.state[g.items[i], TOUCHED] = m.counters[CLOCK]
    for i in range(g.ops[op, WRITES], g.ops[op, END]):
        s = g.items[i]
        if m.state[s, RESIDENT] == 0:
            remade(m, s)
            m.state[s, RESIDENT] = 1
            m.counters[LIVE] += g.storages[s, SIZE]
        m.state[s, TOUCHED] = m.counters[CLOCK]
        if again and m.state[s, NEED] < position and not g.storages[s, KEPT]:
            evict(m, s, position)  # a second result, which nothing asks for any more
    if g.ops[op, REPLAY] >= 0 and not again and g.ops[op, REPEATABLE]:
        m.counters[LIVE] += g.storages[g.ops[op, REPLAY], SIZE]  # its random state stays, for repetitions


@inner
def release(m: Memory, low: int, high: int, position: int) -> None:
    """Of items `low` to `high` (exclusive), evict those that the program reads no more after `position`."""
    for i in range(low, high):
        s = m.g.items[i]
        if m.state[s, RESIDENT] == 0 or m.g.storages[s, KEPT] or m.state[s, LAST_READ] > position:
            continue
        # Eager eviction: remaking it stays possible.  What cannot be remade stays until nothing can need it.
        if m.g.ops[m.g.storages[s, PRODUCER], REPEATABLE] or m.state[s, NEED] <= position:
            evict(m, s, position)


@inner
def new_memory(g: Arrays, last_need: IntArray, most: int) -> Memory:
    """Nothing resident yet."""
    num_storages = len(g.storages)
    start = np.zeros(num_storages + 1, np.int64)
    for op in range(len(g.ops)):
        for i in range(g.ops[op, READS], g.ops[op, WRITES]):
            start[g.items[i] + 1] += 1
    for s in range(num_storages):
        start[s + 1] += start[s]
    fill, readers = start[:-1].copy(), np.empty(start[-1], np.int64)
    for op in range(len(g.ops)):
        for i in range(g.ops[op, READS], g.ops[op, WRITES]):
            readers[fill[g.items[i]]] = op
            fill[g.items[i]] += 1
    state = np.zeros((num_storages, 6), np.int64)
    state[:, LAST_READ : NEED + 1] = last_need
    state[:, SET] = -1
    # Every eviction opens a component; executions are limited, and so are evictions.
    sets = 4 * most + num_storages
    zeros = np.zeros(6, np.int64)
    return Memory(
        g, start, readers, state, np.zeros(sets, np.int64), np.zeros(sets, np.int64), np.zeros(sets, np.int64), zeros
    )


@compiled
def run(
    g: Arrays, program: IntArray, boundary: int, budget: int, last_need: IntArray, most: int
) -> tuple[IntArray, int, int, int]:
    """Run `program`, whose backward begins at `boundary`, within `budget` bytes.

    Args:
        g: The problem.
        program: Operators, each once.
        boundary: Position in `program` of the backward.
        budget: Bytes.
        last_need: See `last_needs`.
        most: Executions after which nothing is evicted any more.

    Returns:
        The trace, its boundary, the number of evictions for want of room, and the most bytes that were live: at
        least the peak of the trace, since the run cannot know yet what will not be read again.
    """
    m = new_memory(g, last_need, most)
    # Once nothing is evicted for room, what was evicted is remade once more at most.
    trace = np.empty(most + 4 * len(g.ops) + 2, np.int64)
    done, bound, expired = 0, 0, 0
    # Storages by the position after which nothing can need them: they are banished there.
    expiry = np.argsort(last_need[:, 1])
    stack, at = np.empty(len(g.ops) + 1, np.int64), np.empty(len(g.ops) + 1, np.int64)
    for position in range(len(program)):
        if position == boundary:
            bound = done
            m.counters[LIVE] += g.tangent_bytes
            for s in range(len(g.storages)):
                # Values that must not be saved leave at the boundary; `position - 1`, since the operators from here
                # on may still need them.
                if g.storages[s, MUST_NOT_SAVE] and m.state[s, RESIDENT]:
                    evict(m, s, position - 1)
        # A stack in place of recursion, whose depth is that of the graph: operators, and the next input of each to
        # look at.
        depth = 1
        stack[0], at[0] = program[position], g.ops[program[position], READS]
        while depth:
            op = stack[depth - 1]
            if at[depth - 1] < g.ops[op, WRITES]:
                s = g.items[at[depth - 1]]
                if m.state[s, RESIDENT] == 1:
                    m.state[s, LOCKS] += 1
                    at[depth - 1] += 1
                else:
                    # Remake it first; the inputs found so far stay locked.
                    stack[depth] = g.storages[s, PRODUCER]
                    at[depth] = g.ops[stack[depth], READS]
                    depth += 1
                continue
            execute(m, op, depth > 1, budget if done < most else 1 << 62, position)
            trace[done] = op
            done += 1
            for i in range(g.ops[op, READS], g.ops[op, WRITES]):
                m.state[g.items[i], LOCKS] -= 1
            depth -= 1
        op = program[position]
        release(m, g.ops[op, READS], g.ops[op, END], position)
        while expired < len(expiry) and last_need[expiry[expired], 1] <= position:
            s = expiry[expired]
            expired += 1
            if m.state[s, RESIDENT] == 1 and not g.storages[s, KEPT]:
                evict(m, s, position)
    # No backward: the boundary is the end of the trace.
    if boundary >= len(program):
        bound = done
    return trace[:done].copy(), bound, m.counters[EVICTIONS], m.counters[HIGHEST]
