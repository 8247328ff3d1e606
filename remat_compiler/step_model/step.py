"""The calls of one training step, in the order in which they ran, and what was seen of memory meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from remat_compiler.step_model.events import Call, CallKey, Event, Leaf, Passed, Sightings, Turn
from remat_compiler.step_model.graph_memory import GraphMemory

G = TypeVar("G")


@dataclass(frozen=True, slots=True)
class HeldCall(Generic[G]):
    """A call that holds what its forward saved.

    Attributes:
        graph: Its graph.
        memory: The graph's memory at the sizes of the call; `None` if that is not known.
    """

    graph: G
    memory: GraphMemory | None


@dataclass(slots=True, eq=False)
class Step(Generic[G]):
    """The calls of one step, which may still go on.

    Attributes:
        graphs: The distinct graphs, in the order of their first calls.
        calls: The calls in order; each names its graph by its position in `graphs`.
        turns: The forwards, backwards and drops of the calls, in order.
        memories: For each call the memory of its graph at the sizes of the call; `None` where that is not known.
        parameters: For each graph, by its position, and set of parameters, by its number: their identities.
        seen: What was seen at its turns.
        aside: Calls of earlier steps that were open when this one ended.
    """

    graphs: list[G] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    turns: list[Event] = field(default_factory=list)
    memories: list[GraphMemory | None] = field(default_factory=list)
    parameters: dict[CallKey, frozenset[int]] = field(default_factory=dict)
    seen: Sightings = field(default_factory=Sightings)
    aside: tuple[HeldCall[G], ...] = ()

    def add(
        self,
        graph: G,
        memory: GraphMemory | None = None,
        parameters: frozenset[int] | None = None,
        passed: tuple[Passed, ...] = (),
        leaves: tuple[Leaf, ...] = (),
    ) -> int:
        """Add a call, and its forward to the turns; return its number.

        Args:
            graph: Its graph.
            memory: See `memories`.
            parameters: The identities of its parameters; `None` if they are not known, and so equal to no others.
            passed: See `Call`.
            leaves: See `Call`.
        """
        call = len(self.calls)
        position = next((i for i, known in enumerate(self.graphs) if known is graph), len(self.graphs))
        if position == len(self.graphs):
            self.graphs.append(graph)
        # Negative numbers are no object's identity.
        identities = frozenset({-1 - call}) if parameters is None else parameters
        # Sets of parameters are numbered for each graph apart, in the order in which it is called with them.
        of_graph = [(number, known) for (one, number), known in self.parameters.items() if one == position]
        number = next((number for number, known in of_graph if known == identities), len(of_graph))
        self.parameters[position, number] = identities
        self.calls.append(Call(position, passed, number, leaves))
        self.turns.append(Event(Turn.FORWARD, call))
        self.memories.append(memory)
        return call

    def key(self, call: int) -> CallKey:
        """The identity of a call: its graph, and its parameters, since one graph may serve several modules."""
        one = self.calls[call]
        return one.graph, one.parameters

    def sharing(self) -> list[G]:
        """The graphs with calls that share a parameter with another call."""
        users = Counter(one for call in range(len(self.calls)) for one in self.parameters[self.key(call)])
        shared = {one for one, times in users.items() if times > 1}
        found = {graph for (graph, _), parameters in self.parameters.items() if not shared.isdisjoint(parameters)}
        return [self.graphs[graph] for graph in sorted(found)]

    def graph_of(self, call: int) -> G:
        """The graph of a call."""
        return self.graphs[self.calls[call].graph]

    def begun(self, calls: int, turns: list[Event], memories: Sequence[GraphMemory | None]) -> Step[G]:
        """A step that began with the same first calls; with other turns and memories."""
        # Not when outputs were let go of: the same graphs may have run for other modules, which hold theirs longer.
        seen = Sightings(self.seen.renumbered({call: call for call in range(calls)}).sharded)
        return Step(list(self.graphs), self.calls[:calls], turns, list(memories), dict(self.parameters), seen)
