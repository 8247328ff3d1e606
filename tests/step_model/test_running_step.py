"""The automaton of a step against a brute-force reading of all that happened, on random programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from remat_compiler.step_model.events import Event, Leaf, Turn
from remat_compiler.step_model.forward import Forward, Numbering, Received
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.running_step import PATIENCE, Patience, RunningStep, ThreadSteps
from remat_compiler.step_model.step import Step
from step_model.whole_log import Asked, Called, Ended, Entry, Found, Log, Part, Reading, logs


def memory_of(call: int) -> GraphMemory:
    """One by which a call of the log is told from others."""
    return GraphMemory(0, call, 0, 0)


@dataclass
class Told:
    """The automaton, told of a log.

    Attributes:
        found: The complete steps, as they were when they were told.
        steps: The same objects, as they are in the end.
        calls: For each call of the log, its step and its number there.
    """

    patience: Patience = field(default_factory=Patience)
    found: list[Found] = field(default_factory=list)
    steps: list[Step[str]] = field(default_factory=list)
    calls: list[tuple[RunningStep[str], int]] = field(default_factory=list)
    entries: int = 0

    def __post_init__(self) -> None:
        self.thread: ThreadSteps[str] = ThreadSteps(self.patience)

    def tell(self, log: list[Entry]) -> Told:
        """Tell of a log, entry by entry."""
        for entry in log:
            self.entries += 1
            if isinstance(entry, Asked):
                self._complete(self.thread.completed())
            elif isinstance(entry, Called):
                running, memory = self.thread.now, memory_of(len(self.calls))
                self.calls.append((running, running.forward(Forward(entry.graph, memory, parameters=entry.parameters))))
            else:
                running, call = self.calls[entry.call]
                ended = running.drop(call) if entry.turn is Turn.DROPPED else None
                over = running.backward(call, kept=entry.turn is Turn.KEPT) if ended is None else ended
                self._complete(running.step if over else None)
        return self

    def _complete(self, step: Step[str] | None) -> None:
        if step is not None:
            self.thread.note_aside(step)
            self.steps.append(step)
            self.found.append(Found(self.entries, numbered(step), frozenset(map(number_of, step.aside))))


def number_of(one: object) -> int:
    """The number of a call in the log."""
    memory = getattr(one, "memory", one)
    assert isinstance(memory, GraphMemory)
    return memory.held_bytes


def numbered(step: Step[str]) -> tuple[tuple[Turn, int], ...]:
    """The turns of a step by the numbers of the log."""
    return tuple((turn, number_of(step.memories[call])) for turn, call in step.turns)


@given(logs(asks=False))
def test_a_step_goes_on_until_no_call_is_open(log: list[Entry]) -> None:
    open_calls, calls, turns, steps = set[int](), 0, list[tuple[Turn, int]](), []
    for entry in log:
        if isinstance(entry, Called):
            open_calls.add(calls)
            turns.append((Turn.FORWARD, calls))
            calls += 1
        elif isinstance(entry, Ended):
            turns.append((entry.turn, entry.call))
            open_calls -= set() if entry.turn is Turn.KEPT else {entry.call}
        if turns and not open_calls:
            steps.append(tuple(turns))
            turns = []
    assert [one.turns for one in Told().tell(log).found] == steps


@given(logs())
def test_steps_are_those_of_the_whole_log(log: list[Entry]) -> None:
    told, read = Told().tell(log), Reading(Log(log))
    assert told.found == read.found
    assert told.patience.steps == read.patience
    now: Part = read.now
    assert numbered(told.thread.now.step) == tuple(now.turns())
    held = {number_of(one) for one in told.thread.now.held_calls}
    assert held == now.open_calls()


@given(logs())
def test_a_step_that_was_told_changes_no_more(log: list[Entry]) -> None:
    told = Told().tell(log)
    assert [numbered(step) for step in told.steps] == [one.turns for one in told.found]


@given(logs())
def test_each_call_is_in_one_step_and_is_named_there_as_it_was_made(log: list[Entry]) -> None:
    told = Told().tell(log)
    made = [entry for entry in log if isinstance(entry, Called)]
    found = [call for step in told.found for turn, call in step.turns if turn is Turn.FORWARD]
    assert len(found) == len(set(found))
    for step in [*told.steps, told.thread.now.step]:
        numbers = [number_of(memory) for memory in step.memories]
        assert numbers == sorted(numbers)
        assert list(dict.fromkeys(made[i].graph for i in numbers)) == step.graphs
        for call, number in enumerate(numbers):
            assert step.graph_of(call) == made[number].graph
            assert step.parameters[step.key(call)] == made[number].parameters
        keys = {(made[i].graph, made[i].parameters) for i in numbers}
        assert len({step.key(call) for call in range(len(numbers))}) == len(keys)


@given(logs(asks=False), st.data())
def test_outputs_are_gone_from_the_first_run_on_that_begins_without_them(log: list[Entry], data: st.DataObject) -> None:
    """Whether the step is told as it is, or as a part of a longer one."""
    thread: ThreadSteps[str] = ThreadSteps(Patience())
    outer = thread.now.forward(Forward("outer"))  # open, so that all else is one step
    running, gone, calls = thread.now, set[int](), 0
    seen: dict[int, Event] = {}

    def begins(event: Event) -> None:
        running.begins(event)
        seen.update((call, event) for call in gone - set(seen))

    for entry in log:
        gone |= data.draw(st.sets(st.integers(1, calls))) if calls else set()
        if isinstance(entry, Called):
            calls += 1
            begins(Event(Turn.FORWARD, calls))
            running.forward(Forward(entry.graph, gone=partial(gone.__contains__, calls)))
        elif isinstance(entry, Ended) and entry.turn is Turn.DROPPED:
            running.drop(entry.call + 1)
        elif isinstance(entry, Ended):
            begins(Event(Turn.BACKWARD, entry.call + 1))
            running.backward(entry.call + 1, kept=entry.turn is Turn.KEPT)
    assert running.step.seen.released == seen
    assert outer in running.open_calls


RECEIVED = st.lists(
    st.builds(Received, st.integers(0, 3), st.integers(1, 9), st.frozensets(st.integers(1, 6), max_size=2)),
    max_size=4,
    unique_by=lambda one: one.argument,
)


@given(st.lists(RECEIVED, max_size=5), st.dictionaries(st.integers(0, 3), st.frozensets(st.integers(4, 9))))
def test_gradients_go_to_the_call_or_the_value_that_an_argument_is(
    calls: list[list[Received]], makers: dict[int, frozenset[int]]
) -> None:
    numbering = Numbering()
    named: list[tuple[frozenset[int], int]] = []
    for received in calls:
        passed = numbering.passed(received, makers)
        told = {one.argument for one in passed}
        for one in passed:
            (addresses,) = [x.addresses for x in received if x.argument == one.argument]
            made_by = [call for call, made in makers.items() if made & addresses]
            assert one.to == next(iter(made_by), None)
            assert (one.value >= 0) == (one.to is None)
            if one.to is None:
                named.append((addresses, one.value))
        assert all(x.argument in told or x.addresses in [y.addresses for y in received] for x in received)
    for (addresses, value), (others, other) in combinations(named, 2):
        # What is not known to be the same memory is another value.
        assert (value == other) == (addresses == others and bool(addresses))


@given(st.lists(st.dictionaries(st.integers(10, 15), st.integers(1, 9), max_size=3), max_size=4), st.integers(0, 4))
def test_leaves_have_one_number_each_also_where_a_step_goes_on_from_a_known_one(
    calls: list[dict[int, int]], known: int
) -> None:
    step: Step[str] = Step()
    first = Numbering()
    for sizes in calls[:known]:
        step.add("f", leaves=first.leaves(sizes))
    taken = {leaf.number for call in step.calls for leaf in call.leaves}
    numbering = Numbering(step.calls)
    found: dict[int, Leaf] = {}
    for sizes in calls[known:]:
        for identity, leaf in zip(sizes, numbering.leaves(sizes)):
            # Another leaf may be in the place of one that is gone.
            assert leaf.number not in taken
            assert found.setdefault(identity, leaf).number == leaf.number
            assert leaf.size_bytes == sizes[identity]
    assert len({leaf.number for leaf in found.values()}) == len(found)


def test_patience_grows_with_what_was_outlived_and_no_further_than_is_useful() -> None:
    patience = Patience()
    patience.was_too_little(1)
    assert patience.steps == PATIENCE
    patience.was_too_little(5)
    assert patience.steps == 10
    patience.was_too_little(1000)
    assert patience.steps == 64
