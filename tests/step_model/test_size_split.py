"""What several graphs of changing sizes may take: whatever they take of it, together they stay within the budget."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings

from builders import generators
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.events import Call, Passed, Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.handed_on import handed_on
from remat_compiler.step_model.levels import PlanLevel
from remat_compiler.step_model.peak import whole_step_peak
from remat_compiler.step_model.size_split import GROWTH, GraphChoices, SizeSplit


def random_levels(rng: Random) -> tuple[PlanLevel, ...]:
    """Levels of which each takes no more than the next, and more time."""
    left, held, peak = (rng.randint(1, 2_000) for _ in range(3))
    found: list[PlanLevel] = []
    for i in range(rng.randint(1, 4)):
        held, peak = held + rng.randint(0, 2_000), peak + rng.randint(0, 2_000)
        memory = GraphMemory(held + peak, held, held + peak + left, left)
        found.append(PlanLevel(memory.peak_bytes, 0, memory, 100 * (4 - i)))
    return tuple(found)


def random_split(rng: Random) -> SizeSplit:
    """Graphs of a step, some of fixed sizes, each called once or more, with the backwards in any order."""
    members = []
    for _ in range(rng.randint(1, 4)):
        levels = random_levels(rng)
        power, gradients = rng.choice([1, 2]), levels[0].memory.left_bytes

        def grown(multiple: float, power: int = power, gradients: int = gradients) -> tuple[float, int]:
            return multiple**power, int(gradients * (0.5 + 0.5 * multiple))

        members.append(GraphChoices(levels, rng.choice([None, grown])))
    graphs = [*range(len(members)), *(rng.randrange(len(members)) for _ in range(rng.randint(0, 2)))]
    calls = [Call(graph) for graph in graphs]
    turns = [(Turn.FORWARD, i) for i in range(len(calls))]
    ended = rng.sample(range(len(calls)), rng.randint(0, len(calls)))
    turns += [(rng.choice([Turn.BACKWARD, Turn.DROPPED]), i) for i in ended]
    return SizeSplit(members, calls, turns, rng.randint(1_000, 40_000))


@settings(max_examples=300)
@given(rng=generators())
def test_whatever_graphs_take_of_their_allowances_the_step_fits(rng: Random) -> None:
    split = random_split(rng)
    division = split.divide(needed=rng.randint(-10, 10))
    if division is None:
        return
    taken = []
    for member, level, allowance in zip(split.members, division.levels, division.allowances):
        most = allowance.memory if member.grown is not None else level.memory
        forward, backward = (rng.randint(0, peak) for peak in (most.forward_bytes, most.backward_bytes))
        taken.append(GraphMemory(forward, rng.randint(0, most.held_bytes), backward, rng.randint(0, most.left_bytes)))
        if rng.random() < 0.5:
            taken[-1] = most
    assert split.peak(taken) <= split.limit_bytes


@settings(max_examples=300)
@given(rng=generators())
def test_what_was_planned_keeps_to_its_allowance(rng: Random) -> None:
    split = random_split(rng)
    needed = rng.randint(-10, 10)
    division = split.divide(needed)
    if division is None:
        assert split.most is None or needed > split.most or split.peak(_least(split, needed)) > split.limit_bytes
        return
    assert division.step >= needed
    for member, level, allowance in zip(split.members, division.levels, division.allowances):
        at_step = member.at(division.step)[member.levels.index(level)].memory
        if member.grown is None:
            continue  # its memory is what the others were given room beside
        assert allowance.needed_bytes(at_step) <= allowance.limit_bytes


def _least(split: SizeSplit, step: int) -> list[GraphMemory]:
    return [member.at(step)[0].memory for member in split.members]


def test_graphs_that_need_alike_get_alike_and_nothing_is_left_over() -> None:
    """Two equal graphs whose held bytes grow with the sizes: the first may hold what the second one needs beside."""
    memory = GraphMemory(100, 90, 100, 0)
    member = GraphChoices((PlanLevel(100, 0, memory, 0),), lambda multiple: (multiple, 0))
    split = SizeSplit([member, member], [Call(0), Call(1)], [(Turn.FORWARD, 0), (Turn.FORWARD, 1)], 1_900)
    division = split.divide(0)
    assert division is not None
    first, second = division.allowances
    assert GROWTH**split.most <= 10 < GROWTH ** (split.most + 1)  # type: ignore[operator]
    assert first.held_bytes + second.limit_bytes == 1_900
    assert abs(first.held_bytes - 900) <= 1
    assert first.limit_bytes == 1_900
    assert second.held_bytes == second.limit_bytes


@given(rng=generators())
def test_an_allowance_is_kept_to_exactly_if_what_is_needed_is_within_its_limit(rng: Random) -> None:
    limit, held, left, passed = (rng.randint(0, 50) for _ in range(4))
    allowance = Allowance(limit, held, left, (3,))
    memory = GraphMemory(*(rng.randint(0, 50) for _ in range(4)))
    keeps = memory.peak_bytes <= limit and memory.held_bytes <= held and memory.left_bytes - passed <= left
    assert (allowance.needed_bytes(memory, passed) <= limit) == keeps
    assert allowance.grown_to(memory).needed_bytes(memory) <= allowance.grown_to(memory).limit_bytes


def test_gradients_that_wait_for_a_graph_further_on_are_left_behind_until_then() -> None:
    """The last of three graphs reads the results of both others: one gradient is handed on at once, the other waits."""
    calls = [Call(0), Call(1, (Passed(4, 0, 7),)), Call(2, (Passed(4, 1, 5), Passed(8, 0, 6), Passed(2, None, 9)))]
    turns = [(Turn.FORWARD, i) for i in range(3)]
    found = handed_on(calls, turns)
    assert {graph: [one.argument for one in passed] for graph, passed in found.items()} == {0: [], 1: [7], 2: [5, 9]}


@settings(max_examples=200)
@given(rng=generators())
def test_leaving_out_what_is_handed_on_never_foresees_less(rng: Random) -> None:
    """A chain of graphs, of which each hands gradients on: as many bytes as where the gradients are followed."""
    number = rng.randint(1, 4)
    calls, memories = [], []
    for i in range(number):
        passed = tuple(
            Passed(rng.randint(1, 20), to, k) for k, to in enumerate(rng.sample(range(i), rng.randint(0, i)))
        )
        # Values that no graph made, of which several graphs may read the same.
        passed += tuple(Passed(5 + value, None, 90 + value, value) for value in range(2) if rng.random() < 0.5)
        calls.append(Call(i, passed))
        left = rng.randint(0, 20) + sum(one.size_bytes for one in passed)
        memories.append(GraphMemory(50, rng.randint(0, 50), 50 + left, left))
    turns = [(Turn.FORWARD, i) for i in range(number)]
    without = [
        GraphMemory(m.forward_bytes, m.held_bytes, m.backward_bytes, m.left_bytes - sum(p.size_bytes for p in handed))
        for m, handed in zip(memories, (handed_on(calls, turns)[i] for i in range(number)))
    ]
    followed = whole_step_peak(memories, calls, turns)
    assert whole_step_peak(without, [Call(i) for i in range(number)], turns) >= followed


@settings(max_examples=100)
@given(rng=generators())
def test_the_smallest_peak_is_within_itself_however_memory_grows(rng: Random) -> None:
    """Smaller sizes may be foreseen to take more, as with formulas of which a part is not measured."""
    split = random_split(rng)
    factors: dict[float, float] = {1.0: 1.0}

    def grown(multiple: float) -> tuple[float, int]:
        return factors.setdefault(multiple, rng.uniform(0.2, 5.0)), 0

    members = [one if one.grown is None else GraphChoices(one.levels, grown) for one in split.members]
    calls = [Call(graph) for graph in split._graphs]
    least = SizeSplit(members, calls, split._turns, 0).least_peak
    division = SizeSplit(members, calls, split._turns, least).divide(needed=0)
    assert division is not None
