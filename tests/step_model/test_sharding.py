"""Gathered parameters and scattered gradients around the graphs of a step, against a step that is played through."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remat_compiler.step_model.alive import EarlierGradients
from remat_compiler.step_model.events import Call, Event, Sightings, Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.peak import beside_bytes, whole_step_peak
from remat_compiler.step_model.sharding import FirstStep, Seen, ShardedGroup, first_step

F, B = Turn.FORWARD, Turn.BACKWARD
LAYER = GraphMemory(forward_bytes=30, held_bytes=20, backward_bytes=50, left_bytes=16)
CALLS = [Call(0, parameters=i) for i in range(3)]
TURNS: list[Event] = [(F, 0), (F, 1), (F, 2), (B, 2), (B, 1), (B, 0)]


def group(number: int, *, parameters: int = 16, copied: int = 0, left: int = 8) -> ShardedGroup:
    """Of two ranks; gradients are scattered in the parameters' type, unless `left` says otherwise."""
    return ShardedGroup(number, parameters, copied, parameters, 16, 16, 8, 0 if left == 8 else left, left)


class Played:
    """FSDP2's three blocks, played through as torch does it; notes what is seen, and the peak.

    Args:
        groups: Those of the blocks.
        memory: Of the graph of each.
        accumulated: Whether there are gradients from before.
    """

    def __init__(self, groups: list[ShardedGroup], memory: GraphMemory, *, accumulated: bool = False) -> None:
        self.groups, self.memory, self.accumulated = groups, memory, accumulated
        self.parameters: set[ShardedGroup] = set()
        self.flat: dict[ShardedGroup, int] = {}
        self.scatter: dict[ShardedGroup, int] = {}
        self.whole: set[ShardedGroup] = set()
        self.graphs: dict[object, int] = {("before", i): one.left_bytes for i, one in enumerate(groups) if accumulated}
        self.sharded: dict[Event, Seen] = {}
        self.peak = 0

    def look(self, more: int = 0) -> None:
        held = [sum(part.values()) for part in (self.flat, self.scatter, self.graphs)]
        self.peak = max(self.peak, sum(one.parameter_bytes for one in self.parameters) + sum(held) + more)

    def see(self, event: Event, own: ShardedGroup) -> None:
        parameters = sum(one.parameter_bytes for one in self.parameters)
        flat, scatter = sum(self.flat.values()), sum(self.scatter.values())
        gathered, whole = frozenset(self.parameters), frozenset(self.whole)
        self.sharded[event] = Seen(frozenset({own}), parameters, flat, scatter, gathered, whole)

    def gather(self, one: ShardedGroup) -> None:
        self.flat[one] = one.flat_bytes
        self.look(one.copied_bytes)

    def run(self) -> None:
        for i, one in enumerate(self.groups):
            before = dict(self.flat)
            self.gather(one)
            self.parameters.add(one)
            self.look(one.filling_bytes)  # the flat tensor of the layer before is alive until all is copied out
            for other in before:
                del self.flat[other]
            self.look(self.memory.forward_bytes)
            self.see((F, i), one)
            self.graphs[i] = self.memory.held_bytes
            self.parameters.discard(one)
        self.flat.clear()
        for i, one in reversed(list(enumerate(self.groups))):
            if one not in self.flat:
                self.gather(one)
            self.parameters.add(one)
            self.look(one.filling_bytes)
            del self.flat[one]
            if i:
                self.gather(self.groups[i - 1])
            del self.graphs[i]
            self.look(self.memory.backward_bytes)
            self.see((B, i), one)
            self.scattered(one)

    def scattered(self, one: ShardedGroup) -> None:
        self.graphs[one] = one.gradient_bytes
        self.parameters.discard(one)
        self.scatter = {one: one.scatter_bytes}
        self.look()
        self.graphs[one] = one.output_bytes
        self.look(one.cast_bytes)
        self.graphs[one] = 0 if self.accumulated else one.left_bytes


@pytest.mark.parametrize("parameters", [16, 200])
@pytest.mark.parametrize(("copied", "left"), [(0, 8), (4, 16)])
@pytest.mark.parametrize("backward", [17, 50, 400])
@pytest.mark.parametrize("accumulated", [False, True])
def test_the_peak_is_that_of_the_step_played_through(
    parameters: int, copied: int, left: int, backward: int, accumulated: bool
) -> None:
    groups = [group(i, parameters=parameters, copied=copied, left=left) for i in range(3)]
    memory = GraphMemory(30, 20, backward, 16)
    played = Played(groups, memory, accumulated=accumulated)
    played.run()
    before = EarlierGradients(shards=dict.fromkeys(range(3), left) if accumulated else {})
    predicted = whole_step_peak([memory], CALLS, TURNS, Sightings(played.sharded), before)
    assert predicted == played.peak
    assert predicted > whole_step_peak([memory], CALLS, TURNS)


@pytest.mark.parametrize("filling", [0, 100])
@pytest.mark.parametrize("left", [0, 16])
def test_a_single_rank_fills_its_parameters_without_a_gather(filling: int, left: int) -> None:
    groups = [ShardedGroup(i, 0, 0, 200, 16, 16, 16, 0, left, filling) for i in range(3)]
    played = Played(groups, LAYER)
    played.run()
    assert whole_step_peak([LAYER], CALLS, TURNS, Sightings(played.sharded)) == played.peak


def test_gradients_that_stay_whole_are_scattered_after_the_step() -> None:
    """One group of two graphs: the gradients of both are whole until the end."""
    one = group(0)
    calls, turns = [Call(0), Call(1)], [(F, 0), (F, 1), (B, 1), (B, 0)]
    memories = [GraphMemory(0, 0, 0, 10), GraphMemory(0, 0, 0, 6)]
    seen = Seen(frozenset({one}), 16, 0, 0, frozenset({one}), frozenset())
    whole = Seen(frozenset({one}), 16, 0, 0, frozenset({one}), frozenset({one}))
    sightings = Sightings({(F, 0): seen, (F, 1): seen, (B, 1): seen, (B, 0): whole})
    # Whole gradients of 16 beside the input of the scatter; gathering takes twice 16, too.
    assert whole_step_peak(memories, calls, turns, sightings) == 32
    early = Sightings({**sightings.sharded, (B, 0): seen})
    # Scattered twice: of the 60 bytes there 44 are no gradients, 8 are this rank's, beside 10 new ones and the input.
    assert whole_step_peak([GraphMemory(0, 0, 0, 10), GraphMemory(0, 0, 0, 60)], calls, turns, early) == 78


def test_what_is_gathered_is_beside_each_graph() -> None:
    one = group(0)
    seen = Seen(frozenset({one}), 100, 20, 3, frozenset({one}), frozenset())
    turns = [(F, 0), (B, 0)]
    assert beside_bytes([LAYER], [Call(0)], turns, Sightings({(F, 0): seen, (B, 0): seen})) == (123,)


def test_a_backward_to_come_is_expected_to_find_what_its_forward_found() -> None:
    one = group(0)
    seen = Seen(frozenset({one}), 100, 0, 0, frozenset({one}), frozenset())
    assert whole_step_peak([LAYER], [Call(0)], [(F, 0)], Sightings({(F, 0): seen})) == 100 + 16 + 50


def test_modules_of_the_same_bytes_are_taken_for_copies_before_the_first_step() -> None:
    groups = [group(0), group(1), group(2, parameters=200)]
    now = Seen(frozenset({groups[0]}), 16, 16, 0, frozenset({groups[0]}), frozenset())
    # The largest will be gathered ahead, beside the input of a scatter.
    assert first_step(now, groups) == FirstStep(200 - 16 + 16, 2)
    assert first_step(replace(now, own=frozenset()), groups) is None
