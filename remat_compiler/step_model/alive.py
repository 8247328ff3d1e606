"""What is alive between the runs of a step: saved values, outputs, gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from remat_compiler.step_model.events import Call, CallKey, Event, Passed
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.handed_on import is_awaited
from remat_compiler.step_model.sharding import Scatter


@dataclass(frozen=True, slots=True)
class EarlierGradients:
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


NONE_BEFORE = EarlierGradients()


class Alive:
    """Bytes alive between the runs of a step."""

    def __init__(self, graphs: Sequence[GraphMemory], calls: Sequence[Call], before: EarlierGradients) -> None:
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
        self._waiting = [one for one in self._waiting if one.to != call and is_awaited(one, self._calls, now)]
        return before

    def hold(self, call: int) -> None:
        """The forward of `call` has run."""
        self.held[call] = self._graphs[self._calls[call].graph].held_bytes

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
        self._waiting += [passed for passed in one.passed if is_awaited(passed, self._calls, self.held)]
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
