"""The peak of a step that runs several graphs one after another, from the memory of each graph by itself.

    forward A   forward B   backward B   backward A
    ─────────   held A ──────────────►
                            left by B ───────────►

While a graph runs, memory of the other graphs is alive too: saved values and outputs of those whose backward is still
to come, gradients and outputs of those whose backward is over.  What graphs hand to each other counts once: an output
of one graph is an input, so resident, to the next graph; the gradient of that input is a tangent of the first graph.

Neither the operators between the graphs nor the moment at which the caller releases an output is known, so this is an
upper bound of the graphs' own part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.simulate.timeline import MemoryTimeline


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """Memory of one graph by itself.

    Attributes:
        forward_bytes: Most bytes alive while its forward runs.
        held_bytes: Bytes alive between its forward and its backward: saved values and outputs.
        backward_bytes: Most bytes alive while its backward runs, tangents included.
        left_bytes: Bytes alive after its backward: gradients and outputs.
        output_bytes: Bytes of the outputs, if they are known apart from the rest; else 0.
    """

    forward_bytes: int
    held_bytes: int
    backward_bytes: int
    left_bytes: int
    output_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """Peak of the graph by itself."""
        return max(self.forward_bytes, self.backward_bytes)


@dataclass(frozen=True, slots=True)
class Passed:
    """The gradient of an input that other differentiable operators made.

    Attributes:
        size_bytes: Its bytes.
        to: The call whose output that input is, for which the gradient is a tangent; `None` if no graph made the input.
        argument: Position of that input among the arguments of the call.
        value: If no graph made the input, its number in the step: calls that read the same value add up its gradient,
            which is alive until the last of them has run backward.
    """

    size_bytes: int
    to: int | None
    argument: int = -1
    value: int = -1


@dataclass(frozen=True, slots=True)
class Call:
    """One forward call.

    Attributes:
        graph: Which graph; the same one may be called several times.
        passed: Gradients that its backward hands back.
        leaves: Number of the set of parameters that the call uses; calls with the same set share its gradients.
    """

    graph: int
    passed: tuple[Passed, ...] = ()
    leaves: int = 0


class Turn(str, Enum):
    """An event in the life of a call."""

    FORWARD = "forward"
    BACKWARD = "backward"
    KEPT = "kept"
    """A backward after which the graph is kept for another one."""
    DROPPED = "dropped"
    """Its outputs are released without a backward."""


def whole_step_peak(graphs: Sequence[GraphMemory], calls: Sequence[Call], turns: Sequence[tuple[Turn, int]]) -> int:
    """Most bytes alive over a step.

    Args:
        graphs: The graphs.
        calls: The calls in order.
        turns: What happens, and to which call, in order.  Calls that are neither dropped nor run backward here run
            their backward at the end, the last call first.
    """
    return max((beside + own for _, beside, own in _runs(graphs, calls, turns)), default=0)


def beside_bytes(
    graphs: Sequence[GraphMemory], calls: Sequence[Call], turns: Sequence[tuple[Turn, int]]
) -> tuple[int, ...]:
    """For each graph, the most bytes that the other graphs hold while it runs; arguments as for `whole_step_peak`."""
    most = [0] * len(graphs)
    for graph, beside, _ in _runs(graphs, calls, turns):
        most[graph] = max(most[graph], beside)
    return tuple(most)


def _runs(
    graphs: Sequence[GraphMemory], calls: Sequence[Call], turns: Sequence[tuple[Turn, int]]
) -> Iterator[tuple[int, int, int]]:
    """For each run: the graph, the bytes that the others hold meanwhile, and the bytes that the graph itself takes."""
    held: dict[int, int] = {}
    outputs: dict[int, int] = {}
    left: dict[tuple[int, int], int] = {}
    waiting: list[Passed] = []
    # Until it is known otherwise, every call runs its backward, the last call first.
    for turn, call in (*turns, *_missing_backwards(calls, turns)):
        graph, memory, key = calls[call].graph, graphs[calls[call].graph], (calls[call].graph, calls[call].leaves)
        before = held.pop(call, 0)  # a run counts its own saved values itself
        # The caller may hold the outputs for as long as the step goes on.
        shown = outputs.pop(call, 0)
        # Gradients that this call waits for are among its tangents; those that it adds to are not.
        waiting = [passed for passed in waiting if passed.to != call and _is_awaited(passed, calls, (*held, call))]
        sums = sum(held.values()), sum(outputs.values()), sum(left.values())
        beside = sum(sums) + sum(passed.size_bytes for passed in waiting)
        if turn is Turn.FORWARD:
            # The saved values are this call's own while it runs; they count against the others only afterwards.
            yield graph, beside, memory.forward_bytes
            held[call] = memory.held_bytes
        elif turn is Turn.DROPPED:
            outputs[call] = shown
        else:
            # Values kept for another backward are not freed on the way.
            kept = before if turn is Turn.KEPT else 0
            yield graph, beside, memory.backward_bytes + kept
            passed_bytes = sum(passed.size_bytes for passed in calls[call].passed)
            # Outputs and passed gradients are counted on their own: neither ends with the gradients of the parameters.
            gradients = max(memory.left_bytes - memory.output_bytes - passed_bytes, 0)
            # Calls with the same parameters add to one set of gradients, so it counts once.
            left[key] = max(left.get(key, 0), gradients)
            # A gradient that no held call awaits goes to operators outside the graphs, which this bound leaves out.
            waiting += [passed for passed in calls[call].passed if _is_awaited(passed, calls, held)]
            if kept:
                held[call] = kept
            else:
                outputs[call] = memory.output_bytes


def _is_awaited(passed: Passed, calls: Sequence[Call], held: Collection[int]) -> bool:
    """Whether one of the `held` calls still needs the gradient `passed`, or adds its own to it."""
    # The gradient of another call's output waits for that call's backward alone.
    if passed.to is not None:
        return passed.to in held
    return any(other.to is None and other.value == passed.value >= 0 for call in held for other in calls[call].passed)


def handed_on(calls: Sequence[Call], turns: Sequence[tuple[Turn, int]]) -> dict[int, tuple[Passed, ...]]:
    """For each graph, the gradients that the next backward takes over at once in all of its calls, so that none waits.

    Args:
        calls: The calls in order.
        turns: What happens, in order, see `whole_step_peak`.
    """
    ran = (Turn.BACKWARD, Turn.KEPT)
    backwards = [call for turn, call in (*turns, *_missing_backwards(calls, turns)) if turn in ran]
    following = dict(pairwise(backwards))
    behind = {call: backwards[place + 1 :] for place, call in enumerate(backwards)}
    found: dict[int, tuple[Passed, ...]] = {}
    for i, call in enumerate(calls):
        at_once = [
            passed
            for passed in call.passed
            if passed.to == following.get(i)
            or (passed.to is None and not _is_awaited(passed, calls, behind.get(i, ())))
        ]
        # One graph has one answer for all of its calls: an argument counts only if no call's gradient has to wait.
        arguments = {passed.argument for passed in at_once}
        before = found.get(call.graph)
        kept = at_once if before is None else [passed for passed in before if passed.argument in arguments]
        found[call.graph] = tuple(kept)
    return found


def _missing_backwards(calls: Sequence[Call], turns: Sequence[tuple[Turn, int]]) -> list[tuple[Turn, int]]:
    # A kept graph may run backward again, but needs no backward added for it.
    ended = {call for turn, call in turns if turn is not Turn.FORWARD}
    return [(Turn.BACKWARD, call) for call in reversed(range(len(calls))) if call not in ended]


def memory_of(graph: TrainingGraph, timeline: MemoryTimeline) -> GraphMemory:
    """Memory of one graph as simulated in `timeline`."""
    live, boundary = timeline.live_bytes, timeline.boundary
    return GraphMemory(
        forward_bytes=int(live[:boundary].max(initial=0)),
        held_bytes=timeline.saved_bytes,
        backward_bytes=int(live[boundary:].max(initial=0)),
        left_bytes=sum(storage.size_bytes for storage in graph.storages if storage.kept),
    )
