"""Known steps as an automaton, against the list of all that was learnt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from remat_compiler.errors import InfeasibleBudget
from remat_compiler.step_model.events import Event, Turn
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.known_steps import Place, is_known, kept, learn, refuse, until
from remat_compiler.step_model.step import Step
from step_model.whole_log import Called, Ended, Entry, logs

F, B, KEPT = Turn.FORWARD, Turn.BACKWARD, Turn.KEPT


@dataclass(eq=False)
class Graph:
    """One that has places."""

    name: str
    places: dict[Any, Place] = field(default_factory=dict)
    refusals: dict[Any, InfeasibleBudget] = field(default_factory=dict)


Drawn = list[Entry]


def step_of(log: Drawn, graphs: dict[str, Graph]) -> Step[Graph]:
    """All of a log as one step."""
    step: Step[Graph] = Step()
    for entry in log:
        if isinstance(entry, Called):
            step.add(graphs[entry.graph], parameters=entry.parameters)
        elif isinstance(entry, Ended):
            step.turns.append(Event(entry.turn, entry.call))
    return step


def prefixes(log: Drawn) -> list[tuple[str, int]]:
    """For each call, the names of all calls up to it, and how many were open before it."""
    names, open_calls, found = "", 0, []
    for entry in log:
        if isinstance(entry, Called):
            names += entry.graph
            found.append((names, open_calls))
            open_calls += 1
        elif isinstance(entry, Ended) and entry.turn is not KEPT:
            open_calls -= 1
    return found


def new_graphs() -> dict[str, Graph]:
    return {name: Graph(name) for name in "fg"}


def whole(log: Drawn) -> bool:
    """Whether no backward keeps its graph."""
    return all(not isinstance(entry, Ended) or entry.turn is not KEPT for entry in log)


@given(st.lists(logs(asks=False, most=10), max_size=4), logs(asks=False, most=10))
def test_a_step_is_known_if_each_call_followed_the_same_calls_with_as_many_open(
    learnt: list[Drawn], asked: Drawn
) -> None:
    graphs = new_graphs()
    for log in learnt:
        learn(step_of(log, graphs))
    most: dict[str, int] = {}
    for log in learnt:
        for names, open_calls in prefixes(log):
            most[names] = max(most.get(names, 0), open_calls)
    known = all(most.get(names, -1) >= open_calls for names, open_calls in prefixes(asked))
    assert is_known(step_of(asked, graphs)) == (known and whole(asked))
    # To ask changes nothing.
    assert all(is_known(step_of(log, graphs)) for log in learnt if whole(log))


@given(st.lists(logs(asks=False, most=8), max_size=3), logs(asks=False, most=8))
def test_the_first_call_that_no_known_step_makes_is_refused(learnt: list[Drawn], refused: Drawn) -> None:
    graphs = new_graphs()
    for log in learnt:
        learn(step_of(log, graphs))
    refuse(step_of(refused, graphs), InfeasibleBudget(1, 2))
    known = {names for log in learnt for names, _ in prefixes(log)}
    first = next((names for names, _ in prefixes(refused) if names not in known), None)
    found = [graph.name for graph in graphs.values() if graph.refusals]
    assert found == ([] if first is None else [first[-1]])
    assert len({place for graph in graphs.values() for place in graph.places.values()}) == len(known)


def ended(step: Step[Graph]) -> dict[int, Turn]:
    """How each call of a step ended that is over; its turns are checked to be in order."""
    found: dict[int, Turn] = {}
    calls = 0
    for turn, call in step.turns:
        assert (call == calls) if turn is F else (call < calls and call not in found)
        calls += turn is F
        if turn not in (F, KEPT):
            found[call] = turn
    assert calls == len(step.calls) == len(step.memories)
    return found


@given(logs(asks=False, most=14).filter(whole), st.data())
def test_a_known_step_that_has_come_to_a_place_has_the_open_calls_that_are_there(
    log: Drawn, data: st.DataObject
) -> None:
    graphs = new_graphs()
    known = step_of([*log, *(Ended(B, call) for call in not_ended(log))], graphs)
    learn(known)
    if not known.calls:
        return
    last = data.draw(st.integers(0, len(known.calls) - 1))
    place = Place(known, last, 0)
    open_calls = {call: GraphMemory(0, call, 0, 0) for call in data.draw(st.sets(st.integers(0, last)))}
    found = until(place, open_calls)
    assert set(range(last + 1)) - set(ended(found)) == set(open_calls)
    assert found.calls == known.calls[: last + 1]
    assert [found.memories[call] for call in open_calls] == list(open_calls.values())
    # What is over by the latest forward had ended before it, so that it does not count as held beside it.
    begins = found.turns.index((F, last))
    assert all(found.turns.index((turn, call)) < begins for call, turn in ended(found).items() if call != last)


def not_ended(log: Drawn) -> list[int]:
    """The open calls of a log."""
    over = {entry.call for entry in log if isinstance(entry, Ended) and entry.turn is not KEPT}
    calls = sum(isinstance(entry, Called) for entry in log)
    return [call for call in reversed(range(calls)) if call not in over]


@given(logs(asks=False, most=12).filter(whole))
def test_calls_that_keep_their_graphs_run_backward_once_more(log: Drawn) -> None:
    known = step_of([*log, *(Ended(B, call) for call in not_ended(log))], new_graphs())
    found = kept(known)
    backwards = [event for event in known.turns if event.turn is B]
    assert found.turns[len(known.turns) :] == backwards
    assert [(B if turn is KEPT else turn, call) for turn, call in found.turns[: len(known.turns)]] == known.turns
    assert not any(event.turn is B for event in found.turns[: len(known.turns)])
    ended(found)
