"""The peak of a step that runs several graphs one after another, from the memory of each graph by itself.

    forward A   forward B   backward B   backward A
    ─────────   held A ──────────────►
                            left by B ───────────►

While a graph runs, memory of the other graphs is alive too: saved values and outputs of those whose backward is still
to come, gradients and outputs of those whose backward is over.  What graphs hand to each other counts once: an output
of one graph is an input, so resident, to the next graph; the gradient of that input is a tangent of the first graph.
Where parameters are sharded, what is gathered and scattered around the runs comes on top, see `sharding`.

Neither the operators between the graphs nor the moment at which the caller releases an output is known, so this is an
upper bound of the graphs' own part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from remat_compiler.step_model.alive import NONE_BEFORE, Alive, EarlierGradients
from remat_compiler.step_model.events import BACKWARDS, NOTHING_SEEN, Call, Event, Sightings, Turn, missing_backwards
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.sharding import Seen, around_of, scattered_at_once


def whole_step_peak(
    graphs: Sequence[GraphMemory],
    calls: Sequence[Call],
    turns: Sequence[Event],
    seen: Sightings = NOTHING_SEEN,
    before: EarlierGradients = NONE_BEFORE,
) -> int:
    """Most bytes alive over a step.

    Args:
        graphs: The graphs.
        calls: The calls in order.
        turns: What happens, and to which call, in order.  Calls that are neither dropped nor run backward here run
            their backward at the end, the last call first.
        seen: What was seen at these turns.
        before: Gradients from before the step; they count.
    """
    peak = max((beside + own for _, beside, own in _runs(graphs, calls, turns, seen, before)), default=0)
    # Outputs that were let go of once need not be in each such step: none peaks below one of its graphs by itself.
    peak = max((peak, *(graphs[call.graph].forward_bytes for call in calls), *_backwards_alone(graphs, calls, turns)))
    if not (before.whole and seen.sharded):
        return peak
    # Gradients that stay whole are scattered in the last micro-batch, those from before with them.
    last = _runs(graphs, calls, turns, seen, before, at_once=True)
    return max(peak, *(beside + own for _, beside, own in last))


def _backwards_alone(graphs: Sequence[GraphMemory], calls: Sequence[Call], turns: Sequence[Event]) -> Iterator[int]:
    """Peaks of the backwards that run, by themselves."""
    for turn, call in (*turns, *missing_backwards(calls, turns)):
        if turn in BACKWARDS:
            yield graphs[calls[call].graph].backward_bytes


def beside_bytes(
    graphs: Sequence[GraphMemory], calls: Sequence[Call], turns: Sequence[Event], seen: Sightings = NOTHING_SEEN
) -> tuple[int, ...]:
    """For each graph, the most bytes alive beside it while it runs; arguments as for `whole_step_peak`."""
    most = [0] * len(graphs)
    for graph, beside, _ in _runs(graphs, calls, turns, seen, NONE_BEFORE):
        if graph is not None:
            most[graph] = max(most[graph], beside)
    return tuple(most)


def _runs(
    graphs: Sequence[GraphMemory],
    calls: Sequence[Call],
    turns: Sequence[Event],
    seen: Sightings,
    gradients_before: EarlierGradients,
    *,
    at_once: bool = False,
) -> Iterator[tuple[int | None, int, int]]:
    """For each run: the graph, the bytes that the others hold meanwhile, and the bytes that the graph itself takes.

    What is alive between the runs comes without a graph.
    """
    alive = Alive(graphs, calls, gradients_before)
    # Until it is known otherwise, every call runs its backward, the last call first.
    events = [*turns, *missing_backwards(calls, turns)]
    sharded, backwards = _also_missing(events, seen.sharded), {event for event in events if event[0] in BACKWARDS}
    around = around_of(events, scattered_at_once(events, sharded, backwards) if at_once else sharded, backwards)
    for position, (turn, call) in enumerate(events):
        alive.release([one for one, event in seen.released.items() if event == (turn, call)])
        for scatter in around.scatters.get(position, ()):
            yield None, alive.scattered(scatter, with_those_before=at_once), 0
        if position in around.before_bytes:
            yield None, alive.size_bytes + around.before_bytes[position], 0
        graph, memory = calls[call].graph, graphs[calls[call].graph]
        during_bytes = around.during_bytes.get(position, 0)
        before = alive.begin(call)
        if turn is Turn.FORWARD:
            # The saved values are this call's own while it runs; they count against the others only afterwards.
            yield graph, alive.size_bytes + during_bytes, memory.forward_bytes
            alive.hold(call)
        elif turn is not Turn.DROPPED:
            # Values kept for another backward are not freed on the way.
            kept = before if turn is Turn.KEPT else 0
            own_bytes = memory.backward_bytes - (memory.released_bytes if call in alive.released else 0)
            yield graph, alive.size_bytes + during_bytes, own_bytes + kept
            alive.end(call, kept)
    for scatter in around.scatters.get(len(events), ()):
        yield None, alive.scattered(scatter, with_those_before=True), 0


def _also_missing(events: Sequence[Event], seen: Mapping[Event, Seen]) -> Mapping[Event, Seen]:
    """What was seen; for runs that are still to come, what their forward saw, and gradients on their way."""
    if not seen:
        return seen
    found = dict(seen)
    for turn, call in events:
        forward = seen.get(Event(Turn.FORWARD, call))
        if turn in BACKWARDS and Event(turn, call) not in seen and forward is not None:
            scatter_bytes = max((group.scatter_bytes for group in forward.own), default=0)
            found[Event(turn, call)] = replace(forward, scatter_bytes=max(scatter_bytes, forward.scatter_bytes))
    return found
