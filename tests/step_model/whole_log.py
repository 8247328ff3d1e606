"""A log of what happens in one thread, and its steps, found by reading the whole log anew for each of its entries.

Calls are numbered over the whole log, whatever steps they turn out to belong to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from hypothesis import strategies as st

from remat_compiler.step_model.events import Turn
from remat_compiler.step_model.running_step import MOST_PATIENCE, PATIENCE

Turns = tuple[tuple[Turn, int], ...]


@dataclass(frozen=True)
class Asked:
    """A forward is about to run, and it is asked whether a step is complete."""


@dataclass(frozen=True)
class Called:
    """A graph is called with some parameters."""

    graph: str
    parameters: frozenset[int]


@dataclass(frozen=True)
class Ended:
    """The backward of a call has run, or the call was dropped."""

    turn: Turn
    call: int


Entry = Asked | Called | Ended


@dataclass(frozen=True, eq=False)
class Log:
    """All that happened."""

    entries: Sequence[Entry]


@dataclass(frozen=True)
class Found:
    """A complete step.

    Attributes:
        after: How many entries of the log had come.
        turns: Its turns.
        aside: Calls of earlier steps that are open.
    """

    after: int
    turns: Turns
    aside: frozenset[int]


@st.composite
def logs(draw: st.DrawFn, *, asks: bool = True, most: int = 40) -> list[Entry]:
    """Logs of any program: calls, backwards in any order and several for a call, calls that are let go of, or kept."""
    log: list[Entry] = []
    open_calls: list[int] = []
    calls = 0
    for _ in range(draw(st.integers(0, most))):
        what = draw(st.sampled_from(["call", "call", "train", "last", "last", "any"]))
        if what in ("call", "train") or not open_calls:
            if asks and draw(st.sampled_from([True, True, True, False])):
                log.append(Asked())
            log.append(Called(draw(st.sampled_from("ffg")), frozenset({draw(st.sampled_from([1, 1, 2]))})))
            if what == "train":
                log.append(Ended(Turn.BACKWARD, calls))
            else:
                open_calls.append(calls)
            calls += 1
            continue
        call = open_calls[-1] if what == "last" else draw(st.sampled_from(open_calls))
        turn = draw(st.sampled_from([Turn.BACKWARD] * 4 + [Turn.KEPT, Turn.DROPPED]))
        if turn is not Turn.KEPT:
            open_calls.remove(call)
        log.append(Ended(turn, call))
    return log


@dataclass(frozen=True)
class Part:
    """Some entries of a log, from the begin of a step on.

    Attributes:
        log: The whole log.
        first: Where the step begins.
        last: Where the reading ends.
    """

    log: Log
    first: int
    last: int

    @cache  # noqa: B019
    def calls(self) -> dict[int, Called]:
        """The calls that are made in it."""
        numbered = enumerate((i, entry) for i, entry in enumerate(self.log.entries) if isinstance(entry, Called))
        return {call: entry for call, (i, entry) in numbered if self.first <= i < self.last}

    @cache  # noqa: B019
    def turns(self, since: int = 0) -> list[tuple[Turn, int]]:
        """The turns of these calls that come at position `since` of the log, or later."""
        own, found, calls = self.calls(), [], 0
        for i, entry in enumerate(self.log.entries[: self.last]):
            turn = (entry.turn, entry.call) if isinstance(entry, Ended) else (Turn.FORWARD, calls)
            calls += isinstance(entry, Called)
            if i >= since and turn[1] in own and not isinstance(entry, Asked):
                found.append(turn)
        return found

    @cache  # noqa: B019
    def open_calls(self) -> frozenset[int]:
        """Those that hold what their forward saved."""
        return frozenset(self.calls()) - {call for turn, call in self.turns() if turn in (Turn.BACKWARD, Turn.DROPPED)}

    def keeps(self) -> frozenset[int]:
        """Those with a backward that keeps the graph."""
        return frozenset(call for turn, call in self.turns() if turn is Turn.KEPT)

    def since_open(self) -> int:
        """Where the entries begin that come after all turns of open calls, and after the step found before."""
        kept, before = self.open_calls(), self.found_before()
        last = max(i for i in range(self.first, self.last) if set(self.turns(i)) & set(self.turns_of(kept)))
        return max(last + 1, before[-1].last if before else 0)

    def turns_of(self, calls: frozenset[int]) -> list[tuple[Turn, int]]:
        """The turns of some of the calls."""
        return [turn for turn in self.turns() if turn[1] in calls]

    @cache  # noqa: B019
    def trained(self) -> list[Called]:
        """What was called and ran backward while the open calls were open, and nothing happened to these."""
        turns = self.turns(self.since_open())
        return [self.calls()[call] for turn, call in turns if turn is Turn.BACKWARD and (Turn.FORWARD, call) in turns]

    @cache  # noqa: B019
    def found_before(self) -> list[Part]:
        """Earlier questions in a row at which the same calls were open and something had trained beside them."""
        asked = [i for i in range(self.first, self.last) if isinstance(self.log.entries[i], Asked)]
        parts = [part for i in asked if (part := Part(self.log, self.first, i)).open_calls() and part.trained()]
        other = [i for i, part in enumerate(parts) if part.open_calls() != self.open_calls()]
        return parts[1 + max(other, default=-1) :]

    def complete(self, patience: int) -> Turns | None:
        """The turns of the step that is complete at a question; `None` for no step."""
        kept = self.open_calls()
        if not kept:
            return None
        trained = self.trained()
        if not trained:
            return tuple(self.turns()) if kept <= self.keeps() else None
        again = all(call in self.keeps() or self.calls()[call] in trained for call in kept)
        if not again and len(self.found_before()) + 1 < patience:
            return None
        turns = self.turns(self.since_open())
        inside = {call for turn, call in turns if turn is Turn.FORWARD} - kept
        return tuple(turn for turn in turns if turn[1] in inside)


@dataclass
class Reading:
    """What a whole log says.

    Attributes:
        found: The complete steps.
        patience: Steps that open calls may outlive in the end.
        now: The step in the end.
    """

    log: Log
    found: list[Found] = field(default_factory=list)
    patience: int = PATIENCE
    first: int = 0
    _aside: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for last, entry in enumerate(self.log.entries):
            if isinstance(entry, Asked):
                self._ask(Part(self.log, self.first, last))
            elif isinstance(entry, Ended) and entry.call in self._aside:
                self._end_aside(entry)
            elif isinstance(entry, Ended):
                part = Part(self.log, self.first, last + 1)
                if not part.open_calls():
                    self.first = last + 1
                    self.found.append(Found(last + 1, tuple(part.turns()), frozenset(self._aside)))

    def _ask(self, part: Part) -> None:
        turns = part.complete(self.patience)
        if turns is not None:
            outlived = len(part.found_before()) + bool(part.trained())
            self._aside.update(dict.fromkeys(part.open_calls(), outlived))
            self.first = part.last
            self.found.append(Found(part.last + 1, turns, frozenset(self._aside)))

    def _end_aside(self, entry: Ended) -> None:
        if entry.turn is not Turn.KEPT:
            outlived = self._aside.pop(entry.call)
            if entry.turn is Turn.BACKWARD:
                self.patience = max(self.patience, min(2 * outlived, MOST_PATIENCE))

    @property
    def now(self) -> Part:
        """The step in the end."""
        return Part(self.log, self.first, len(self.log.entries))
