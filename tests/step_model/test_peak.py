"""The peak of a step of several graphs: worked out by hand, and against one graph that holds all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawn_graphs import GraphBuilder
from remat_compiler.ir.graph import OpId, Phase, StorageKind, TrainingGraph
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import CostTable
from remat_compiler.simulate.timeline import MemoryTimeline, simulate
from remat_compiler.step_model.alive import EarlierGradients
from remat_compiler.step_model.events import Call, Leaf, Passed, Sightings, Turn
from remat_compiler.step_model.graph_memory import GraphMemory, memory_of
from remat_compiler.step_model.peak import whole_step_peak

F, B, DROPPED = Turn.FORWARD, Turn.BACKWARD, Turn.DROPPED
FRONT = GraphMemory(forward_bytes=100, held_bytes=60, backward_bytes=90, left_bytes=20)
BEHIND = GraphMemory(forward_bytes=50, held_bytes=40, backward_bytes=70, left_bytes=30)
IN_A_ROW = [Call(0), Call(1, (Passed(10, 0),))]


@pytest.mark.parametrize(
    ("calls", "turns", "peak"),
    [
        ([], [], 0),
        ([Call(0)], [(F, 0), (B, 0)], 100),
        # Forward of the second beside what the first holds, then its backward; 10 of the 30 that it leaves are passed.
        (IN_A_ROW, [(F, 0), (F, 1), (B, 1), (B, 0)], max(100, 60 + 50, 60 + 70, 30 - 10 + 90)),
        # What is not over yet runs backward at the end.
        (IN_A_ROW, [(F, 0), (F, 1)], 60 + 70),
        # Let go of before its backward, the second leaves nothing.
        (IN_A_ROW, [(F, 0), (F, 1), (DROPPED, 1), (B, 0)], 60 + 50),
        # One after the other is no overlap but for what the first left.
        ([Call(0), Call(1)], [(F, 0), (B, 0), (F, 1), (B, 1)], max(100, 20 + 50, 20 + 70)),
        # The same graph twice: both hold, the gradients of its parameters are there once.
        ([Call(0), Call(0)], [(F, 0), (F, 1), (B, 1), (B, 0)], max(60 + 100, 60 + 90, 20 + 90)),
        # A gradient passed over a graph waits for the one that it is for.
        ([Call(0), Call(1), Call(1, (Passed(10, 0),))], [(F, 0), (F, 1), (F, 2)], 60 + 40 + 70),
    ],
)
def test_by_hand(calls: list[Call], turns: list[tuple[Turn, int]], peak: int) -> None:
    assert whole_step_peak([FRONT, BEHIND], calls, turns) == peak


def test_a_waiting_gradient_counts_until_its_graph_runs() -> None:
    small = GraphMemory(0, 0, 0, 10)
    calls = [Call(0), Call(1), Call(2, (Passed(10, 0),))]
    turns = [(F, 0), (F, 1), (F, 2)]
    assert whole_step_peak([GraphMemory(0, 0, 0, 0), replace(small, backward_bytes=5), small], calls, turns) == 15
    assert whole_step_peak([GraphMemory(0, 0, 5, 0), small, small], calls, turns) == 15


@pytest.mark.parametrize(("value", "peak"), [(0, 25 + 5 + 70), (1, 5 + 70)])
def test_gradients_of_one_value_wait_for_each_other(value: int, peak: int) -> None:
    """Of the 30 bytes that a call leaves 25 are the gradient of what eager made; the second call adds to it, or not."""
    memory = GraphMemory(forward_bytes=0, held_bytes=5, backward_bytes=70, left_bytes=30)
    calls = [Call(0, (Passed(25, None, 0, 0),)), Call(0, (Passed(25, None, 0, value),))]
    assert whole_step_peak([memory], calls, [(F, 0), (F, 1)]) == peak


@pytest.mark.parametrize("other", [0, 1])
def test_calls_with_leaves_of_their_own_share_only_the_gradients_of_parameters(other: int) -> None:
    """Of the 20 bytes that a call leaves, 8 are the gradient of an input that is no parameter."""
    calls = [Call(0, leaves=(Leaf(i, 8),)) for i in (0, other, 0)]
    turns = [(F, 0), (B, 0), (F, 1), (B, 1), (F, 2), (B, 2)]
    # Before the last forward two calls are over, which read the same leaf or two.
    assert whole_step_peak([FRONT], calls, turns) == 12 + 8 * len({0, other}) + 100


@pytest.mark.parametrize(
    ("calls", "before", "peak"),
    [
        # Of its 20 bytes of gradients, the second leaves none beside the first's backward, or what is more than before.
        (IN_A_ROW, {(0, 0): 20, (1, 0): 20}, 40 + 90),
        (IN_A_ROW, {(0, 0): 20, (1, 0): 5}, 25 + 15 + 90),
        # They are those of other parameters.
        (IN_A_ROW, {(7, 0): 40}, 40 + 20 + 90),
        # Two calls with the same parameters: nothing is added up before the second has run.
        ([Call(0), Call(0)], {(0, 0): 20}, 20 + 20 + 90),
        ([Call(0), Call(0, parameters=1)], {(0, 0): 20, (0, 1): 20}, 40 + 90),
    ],
)
def test_gradients_are_added_to_those_from_before(
    calls: list[Call], before: dict[tuple[int, int], int], peak: int
) -> None:
    # Held and forward bytes are nothing, so that the last backward peaks.
    memories = [GraphMemory(0, 0, 90, 20), GraphMemory(0, 0, 0, 30)]
    turns = [(F, 0), (F, 1), (B, 1), (B, 0)]
    assert whole_step_peak(memories, calls, turns, before=EarlierGradients(before)) == peak


def test_outputs_are_among_what_is_left_behind_and_count_once() -> None:
    """Of 100 bytes that the first graph leaves, 40 are its output; the second one takes 7."""
    memories = [GraphMemory(10, 5, 20, 100, output_bytes=40), GraphMemory(7, 7, 7, 0)]
    assert whole_step_peak(memories, [Call(0), Call(1)], [(F, 0), (Turn.BACKWARD, 0), (F, 1)]) == 100 + 7


def test_outputs_that_the_caller_lets_go_of_are_gone_from_the_turn_on_at_which_that_was_seen() -> None:
    """The first graph holds 60 bytes, 25 of them an output that only the caller has."""
    memories = [replace(FRONT, output_bytes=25, released_bytes=25), BEHIND]
    turns = [(F, 0), (F, 1), (B, 1), (B, 0)]
    peak = {event: whole_step_peak(memories, IN_A_ROW, turns, Sightings(released={0: event})) for event in turns[1:]}
    assert peak[F, 1] == max(100, 35 + 50, 35 + 70, 30 - 10 + 90 - 25)
    assert peak[B, 1] == max(100, 60 + 50, 35 + 70, 30 - 10 + 90 - 25)
    assert peak[B, 0] == max(100, 60 + 50, 60 + 70, 30 - 10 + 90 - 25)
    # Other numbers mean the same.
    assert Sightings(released={0: (F, 1)}).renumbered({0: 5, 1: 6}) == Sightings(released={5: (F, 6)})
    assert not Sightings(released={0: (F, 1)}).renumbered({0: 5}).released


def chain(sizes: list[int], *, first: int, last: int) -> TrainingGraph:
    """Layers `first` to `last` of a chain as one graph; the backward of each reads its input.

    The first layer of all needs no gradient of its input; the others hand one to the layer in front.
    """
    b = GraphBuilder()
    values = [b.storage(sizes[first - 1] if first else 8, StorageKind.INPUT)]
    for layer in range(first, last + 1):
        kind = StorageKind.OUTPUT if layer == last else StorageKind.ACTIVATION
        values.append(b.storage(sizes[layer], kind))
        b.op([values[-2]], [values[-1]])
    flow = b.storage(sizes[last], StorageKind.TANGENT)
    for layer in range(last, first - 1, -1):
        writes = [b.storage(4, StorageKind.GRADIENT)]
        if layer:
            kind = StorageKind.GRADIENT if layer == first else StorageKind.TEMPORARY
            writes.append(b.storage(sizes[layer - 1], kind))
        b.op([values[layer - first], flow], writes, Phase.BACKWARD)
        flow = writes[-1]
    return b.graph()


def in_order(graph: TrainingGraph) -> Plan:
    forward = sum(op.phase is Phase.FORWARD for op in graph.ops)
    return Plan(tuple(OpId(i) for i in range(len(graph.ops))), forward)


def simulated(graph: TrainingGraph) -> MemoryTimeline:
    n = len(graph.ops)
    costs = CostTable((1,) * n, (0,) * n, ("test",) * n)
    return simulate(graph, costs, in_order(graph))


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=8), st.data())
def test_a_chain_cut_in_pieces_peaks_as_the_chain_does(sizes: list[int], data: st.DataObject) -> None:
    """But for what is cut: outputs and tangents there are held to the end of their piece, the last one's no longer."""
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sizes) - 1), min_size=1)))
    bounds = list(zip([0, *cuts], [*(cut - 1 for cut in cuts), len(sizes) - 1]))
    pieces = [chain(sizes, first=first, last=last) for first, last in bounds]
    memories = [memory_of(piece, simulated(piece), in_order(piece)) for piece in pieces]
    calls = [Call(i, (Passed(sizes[first - 1], i - 1),) if i else ()) for i, (first, _) in enumerate(bounds)]
    at_cuts = sum(sizes[cut - 1] for cut in cuts)
    whole = simulated(chain(sizes, first=0, last=len(sizes) - 1)).peak_bytes
    in_pieces = whole_step_peak(memories, calls, [(F, i) for i in range(len(calls))])
    assert whole - sizes[-1] <= in_pieces <= whole + 2 * at_cuts


MEMORIES = st.builds(
    lambda saved, forward, backward, left, output, released: GraphMemory(
        saved + output + forward,
        saved + output,
        saved + output + backward,
        left + output,
        output,
        min(released, output),
    ),
    *[st.integers(0, 100)] * 6,
)


@given(st.lists(MEMORIES, min_size=1, max_size=4), st.data())
def test_no_step_peaks_below_one_of_its_graphs(memories: list[GraphMemory], data: st.DataObject) -> None:
    """Whatever is handed on, let go of or dropped."""
    calls, turns, waiting = [], [], []
    for graph in data.draw(st.lists(st.integers(0, len(memories) - 1), min_size=1, max_size=6)):
        to = data.draw(st.sampled_from([None, *range(len(calls))]))
        passed = (Passed(data.draw(st.integers(1, 50)), to),) if data.draw(st.booleans()) else ()
        turns.append((F, len(calls)))
        waiting.append(len(calls))
        calls.append(Call(graph, passed))
    turns += [
        (data.draw(st.sampled_from([B, DROPPED])), call) for call in reversed(waiting) if data.draw(st.booleans())
    ]
    released = {call: data.draw(st.sampled_from(turns)) for call in waiting if data.draw(st.booleans())}
    dropped = {call for turn, call in turns if turn is DROPPED}
    peak = whole_step_peak(memories, calls, turns, Sightings(released=released))
    for number, call in enumerate(calls):
        memory = memories[call.graph]
        assert peak >= (memory.forward_bytes if number in dropped else memory.peak_bytes)
