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

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise

from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.plan import Plan
from remat_compiler.simulate.sharding import Scatter, Seen, around_of, scattered_at_once
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
        released_bytes: Bytes of outputs that only the caller holds: once it lets go of them, they are gone.
    """

    forward_bytes: int
    held_bytes: int
    backward_bytes: int
    left_bytes: int
    output_bytes: int = 0
    released_bytes: int = 0

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
class Leaf:
    """An input that gets a gradient of its own and is no parameter, such as what a rank received from another one.

    Attributes:
        number: Which one of the step.
        size_bytes: Its bytes, and those of its gradient.
    """

    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Call:
    """One forward call.

    Attributes:
        graph: Which graph; the same one may be called several times.
        passed: Gradients that its backward hands back.
        parameters: Number of the set of parameters that the call uses; calls with the same set share its gradients.
        leaves: Other leaves that it gives gradients to: calls with the same parameters may have leaves of their own.
    """

    graph: int
    passed: tuple[Passed, ...] = ()
    parameters: int = 0
    leaves: tuple[Leaf, ...] = ()


class Turn(str, Enum):
    """An event in the life of a call."""

    FORWARD = "forward"
    BACKWARD = "backward"
    KEPT = "kept"
    """A backward after which the graph is kept for another one."""
    DROPPED = "dropped"
    """Its outputs are released without a backward."""


_BACKWARDS = (Turn.BACKWARD, Turn.KEPT)

Event = tuple[Turn, int]
"""What happens, and to which call."""


@dataclass(slots=True)
class Sightings:
    """What was seen of memory at the turns of a step.

    Attributes:
        sharded: What sharded modules held while the graph of each turn ran; empty without such modules.
        released: For each call whose outputs were seen to be gone, the first turn at whose begin they were.
    """

    sharded: dict[Event, Seen] = field(default_factory=dict)
    released: dict[int, Event] = field(default_factory=dict)

    def renumbered(self, numbers: Mapping[int, int]) -> Sightings:
        """What was seen of some calls, which have other numbers now."""
        sharded = {(turn, numbers[call]): seen for (turn, call), seen in self.sharded.items() if call in numbers}
        released = {
            numbers[call]: (turn, numbers[at])
            for call, (turn, at) in self.released.items()
            if call in numbers and at in numbers
        }
        return Sightings(sharded, released)


NOTHING_SEEN = Sightings()

CallKey = tuple[int, int]
"""A graph and the number of a set of its parameters: calls with the same one add up their gradients."""


@dataclass(frozen=True, slots=True)
class GradientsBefore:
    """Gradients from before a step, to which it adds its own.

    Attributes:
        whole: Bytes for calls with these parameters: once a backward is over, and they are added up, its own are gone.
        shards: Bytes by the number of the sharded group: once the step's own are scattered, they are added up.
    """

    whole: Mapping[CallKey, int] = field(default_factory=dict)
    shards: Mapping[int, int] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """All of them."""
        return sum(self.whole.values()) + sum(self.shards.values())


NONE_BEFORE = GradientsBefore()


def whole_step_peak(
    graphs: Sequence[GraphMemory],
    calls: Sequence[Call],
    turns: Sequence[Event],
    seen: Sightings = NOTHING_SEEN,
    before: GradientsBefore = NONE_BEFORE,
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
    for turn, call in (*turns, *_missing_backwards(calls, turns)):
        if turn in _BACKWARDS:
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
    gradients_before: GradientsBefore,
    *,
    at_once: bool = False,
) -> Iterator[tuple[int | None, int, int]]:
    """For each run: the graph, the bytes that the others hold meanwhile, and the bytes that the graph itself takes.

    What is alive between the runs comes without a graph.
    """
    alive = _Alive(graphs, calls, gradients_before)
    # Until it is known otherwise, every call runs its backward, the last call first.
    events = [*turns, *_missing_backwards(calls, turns)]
    sharded, backwards = _also_missing(events, seen.sharded), {event for event in events if event[0] in _BACKWARDS}
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
            alive.held[call] = memory.held_bytes
        elif turn is not Turn.DROPPED:
            # Values kept for another backward are not freed on the way.
            kept = before if turn is Turn.KEPT else 0
            own_bytes = memory.backward_bytes - (memory.released_bytes if call in alive.released else 0)
            yield graph, alive.size_bytes + during_bytes, own_bytes + kept
            alive.end(call, kept)
    for scatter in around.scatters.get(len(events), ()):
        yield None, alive.scattered(scatter, with_those_before=True), 0


class _Alive:
    """Bytes alive between the runs of a step."""

    def __init__(self, graphs: Sequence[GraphMemory], calls: Sequence[Call], before: GradientsBefore) -> None:
        self._graphs, self._calls = graphs, calls
        self.released: set[int] = set()
        self.held: dict[int, int] = {}
        self._outputs: dict[int, int] = {}
        self._gradients: dict[CallKey, int] = {}
        self._before = dict(before.whole)
        self._of_leaves: dict[int, int] = {}
        self._scattered = dict(before.shards)
        self._waiting: list[Passed] = []

    @property
    def size_bytes(self) -> int:
        """All of them."""
        parts = (self.held, self._outputs, self._gradients, self._before, self._of_leaves, self._scattered)
        return sum(sum(part.values()) for part in parts) + sum(passed.size_bytes for passed in self._waiting)

    def release(self, calls: Sequence[int]) -> None:
        """The caller has let go of the outputs of these calls."""
        self.released.update(calls)
        for call in calls:
            released_bytes = self._graphs[self._calls[call].graph].released_bytes
            for part in (self.held, self._outputs):
                if call in part:
                    part[call] = max(part[call] - released_bytes, 0)

    def begin(self, call: int) -> int:
        """Leave out what a run of `call` counts itself; the bytes that the call holds."""
        before = self.held.pop(call, 0)
        # Else the caller may hold the outputs for as long as the step goes on.
        self._outputs.pop(call, None)
        # Gradients that this call waits for are among its tangents; those that it adds to are not.
        now = (*self.held, call)
        self._waiting = [one for one in self._waiting if one.to != call and _is_awaited(one, self._calls, now)]
        return before

    def end(self, call: int, kept: int) -> None:
        """The backward of `call` has run, and leaves gradients; `kept` bytes stay for another backward."""
        one, memory = self._calls[call], self._graphs[self._calls[call].graph]
        passed_bytes = sum(passed.size_bytes for passed in one.passed)
        # Outputs and passed gradients are counted on their own: neither ends with the gradients of the parameters.
        gradients = max(memory.left_bytes - memory.output_bytes - passed_bytes, 0)
        # Calls with the same parameters add to one set of gradients, so it counts once; so does the gradient of a leaf.
        of_leaves = min(sum(leaf.size_bytes for leaf in one.leaves), gradients)
        key = (one.graph, one.parameters)
        own_bytes = max(self._gradients.get(key, 0), gradients - of_leaves)
        # Autograd adds to those from before only once all calls with the same parameters have run.
        waits = any((other.graph, other.parameters) == key for other in map(self._calls.__getitem__, self.held))
        self._gradients[key] = own_bytes if waits else max(own_bytes - self._before.get(key, 0), 0)
        self._of_leaves.update((leaf.number, leaf.size_bytes) for leaf in one.leaves)
        # A gradient that no held call awaits goes to operators outside the graphs, which this bound leaves out.
        self._waiting += [passed for passed in one.passed if _is_awaited(passed, self._calls, self.held)]
        if kept:
            self.held[call] = kept
        else:
            self._outputs[call] = memory.output_bytes - (memory.released_bytes if call in self.released else 0)

    def scattered(self, scatter: Scatter[Event], *, with_those_before: bool = False) -> int:
        """The gradients of a group are scattered: of them, this rank's part stays; most bytes alive meanwhile."""
        group = scatter.group
        copied_bytes = self.size_bytes + scatter.beside_bytes + group.scatter_bytes
        whole_bytes = group.gradient_bytes
        for _, call in scatter.of:
            key = (self._calls[call].graph, self._calls[call].parameters)
            # Those from before may stay whole in some of the steps.
            for part in (self._gradients, self._before) if with_those_before else (self._gradients,):
                taken_bytes = min(whole_bytes, part.get(key, 0))
                if taken_bytes:
                    part[key] -= taken_bytes
                    whole_bytes -= taken_bytes
        reduced_bytes = self.size_bytes + scatter.beside_bytes + group.scattering_bytes
        self._scattered[group.number] = group.left_bytes
        return max(copied_bytes, reduced_bytes)


def _also_missing(events: Sequence[Event], seen: Mapping[Event, Seen]) -> Mapping[Event, Seen]:
    """What was seen; for runs that are still to come, what their forward saw, and gradients on their way."""
    if not seen:
        return seen
    found = dict(seen)
    for turn, call in events:
        forward = seen.get((Turn.FORWARD, call))
        if turn in _BACKWARDS and (turn, call) not in seen and forward is not None:
            scatter_bytes = max((group.scatter_bytes for group in forward.own), default=0)
            found[turn, call] = replace(forward, scatter_bytes=max(scatter_bytes, forward.scatter_bytes))
    return found


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
    backwards = [call for turn, call in (*turns, *_missing_backwards(calls, turns)) if turn in _BACKWARDS]
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


def memory_of(graph: TrainingGraph, timeline: MemoryTimeline, plan: Plan) -> GraphMemory:
    """Memory of one graph as simulated in `timeline`, by `plan`."""
    live, boundary = timeline.live_bytes, timeline.boundary
    forward, backward = plan.steps[:boundary], plan.steps[boundary:]
    made = {s for op in forward for s in graph.ops[op].writes}
    # What the backward makes again is not held for it, and what it reads is saved for it, whoever else holds it.
    needed = {s for op in backward for s in (*graph.ops[op].reads, *graph.ops[op].writes)}
    released = [s for s in graph.storages if s.kept and s.id in made and s.id not in needed]
    return GraphMemory(
        forward_bytes=int(live[:boundary].max(initial=0)),
        held_bytes=timeline.saved_bytes,
        backward_bytes=int(live[boundary:].max(initial=0)),
        left_bytes=sum(storage.size_bytes for storage in graph.storages if storage.kept),
        output_bytes=sum(storage.size_bytes for storage in released),
        released_bytes=sum(storage.size_bytes for storage in released),
    )
