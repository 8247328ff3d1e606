"""The space as steps over sets of demanded storages, from the end of the step to its start.

Seen backwards in time, a plan is a walk over sets D: the storages that later steps read and that the walk has not
yet seen made.

    step, last first          D becomes                        bytes alive
    anchor a                  D - writes(a) + reads(a)         base + writes(a) + workspace(a) + new D
    i runs in a gap           D - writes(i) + reads(i)         the same; worth it only where D meets writes(i)

Sets are bit masks.  Each storage whose life is a choice has a bit; so has everything owed or held:

state     the random state that repetitions of an operator replay, from its first execution to its last
owed      a tangent-free operator that still has to run; a pinned one runs once, and only while it is owed
held      a result of a tangent-free operator for the caller: alive until, backwards, its first execution is chosen
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from remat_passes.exact.space import BOUNDARY, Space, Stage

IntArray = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

WORD = 64


@dataclass(frozen=True, slots=True, eq=False)
class DemandSteps:
    """All steps of a space, last first; masks are rows of 64-bit words.

    Attributes:
        stage: Stage of each step.
        op: Operator that may run in the gap; -1 for an anchor, which always runs.
        writes: Bits that the step makes.
        clears: Bits that are gone before the step: those it makes, and the random state that begins there.
        reads: Bits that are needed before the step.
        needs: Held and owed bits that must be set, or else the step cannot read its inputs.
        keeps: Held bits that the step may leave as they are: the execution is then not the first.
        room: Bytes left for other storages while the step runs.
        time_ns: Price of running in the gap.
        loose: Number of leading bits that are loose: a state without one of them is never worse.
        weight: Bytes of each bit.
        start: Bits demanded at the end of the step.
        forbidden: By stage, bits that must not be demanded before it.
        behind: By bit, tangent-free operators that have to run if the bit is demanded (masks over `floating`).
        ahead: By stage, tangent-free operators that have to run before it in any case.
        float_ns: Time of each of `floating`.
    """

    stage: IntArray
    op: IntArray
    writes: Words
    clears: Words
    reads: Words
    needs: Words
    keeps: Words
    room: IntArray
    time_ns: IntArray
    loose: int
    weight: IntArray
    start: Words
    forbidden: Words
    behind: Words
    ahead: Words
    float_ns: IntArray


UNLIMITED = np.iinfo(np.int64).max // 4
"""Room if no capacity binds."""


def demand_steps(space: Space) -> DemandSteps:
    """The steps of `space`."""
    return _Steps(space).build()


@dataclass(frozen=True, slots=True)
class _Row:
    """One step, masks as integers; see `DemandSteps`."""

    stage: int
    op: int
    writes: int
    clears: int
    reads: int
    needs: int
    keeps: int
    room: int
    time_ns: int


class _Steps:
    """Numbers the bits, then writes down one row for each step."""

    def __init__(self, space: Space) -> None:
        self.space, self.index = space, space.index
        self.bits: dict[tuple[str, int], int] = {}
        moved = [v for v, (entry, last) in enumerate(zip(space.entry, space.last)) if 0 <= entry <= last]
        for v in moved:
            if not space.held(v):
                self._new("storage", v)
        for i in sorted(space.runs_until):
            if space.state_bytes(i):
                self._new("state", i)
        # Held and owed bits follow: without one, its operator may no longer be read or run, so fewer is not better.
        self.loose = len(self.bits)
        for v in moved:
            if space.held(v):
                self._new("held", v)
        for i in space.floating:
            # Other floating operators run only if something demands their results, so they owe nothing by themselves.
            if self.index.pinned[i] or i in space.demanded:
                self._new("owed", i)
        self.rows: list[_Row] = []

    def _new(self, kind: str, number: int) -> None:
        self.bits[kind, number] = len(self.bits)

    def _mask(self, kind: str, numbers: Iterable[int]) -> int:
        """Bits of those of `numbers` that have one."""
        return sum(1 << self.bits[kind, n] for n in numbers if (kind, n) in self.bits)

    def build(self) -> DemandSteps:
        """All rows, as arrays."""
        for t in range(len(self.space.stages) - 1, -1, -1):
            self._add_stage(t, self.space.stages[t])
        rows = self.rows
        # At least one word, so that tables have a column even if nothing is to be decided.
        words = (len(self.bits) + WORD - 1) // WORD or 1
        forbidden = [self._forbidden(t) for t in range(len(self.space.stages))]
        floats = (len(self.space.floating) + WORD - 1) // WORD or 1
        behind = self._behind()
        return DemandSteps(
            stage=np.array([row.stage for row in rows], np.int64),
            op=np.array([row.op for row in rows], np.int64),
            writes=_words([row.writes for row in rows], words),
            clears=_words([row.clears for row in rows], words),
            reads=_words([row.reads for row in rows], words),
            needs=_words([row.needs for row in rows], words),
            keeps=_words([row.keeps for row in rows], words),
            room=np.array([row.room for row in rows], np.int64),
            time_ns=np.array([row.time_ns for row in rows], np.int64),
            loose=self.loose,
            weight=np.array([self._weight(kind, n) for kind, n in self.bits], np.int64),
            start=_words([self._start()], words)[0],
            forbidden=_words(forbidden, words),
            behind=_words([self._made_behind(kind, n, behind) for kind, n in self.bits], floats),
            ahead=_words(self._ahead(behind), floats),
            float_ns=np.array([self.space.problem.costs.time_ns[i] for i in self.space.floating], np.int64),
        )

    def _weight(self, kind: str, number: int) -> int:
        if kind == "owed":
            return 0
        return self.space.state_bytes(number) if kind == "state" else self.index.size_bytes[number]

    def _start(self) -> int:
        """At the end everything is held and owed; nothing else is demanded."""
        return sum(1 << bit for (kind, _), bit in self.bits.items() if kind in ("held", "owed"))

    def _forbidden(self, t: int) -> int:
        """Bits that nothing before stage `t` can make, and those that must not cross a boundary just before it."""
        space = self.space
        first = [v for v, entry in enumerate(space.entry) if entry == t and not space.from_anchor[v]]
        mask = self._mask("storage", first) | self._mask("held", first)
        # Before the first step nothing may be held or owed any more.
        if t == 0:
            mask |= sum(1 << bit for (kind, _), bit in self.bits.items() if kind in ("held", "owed"))
        if t > 0 and space.stages[t - 1].anchors[-1] == BOUNDARY:
            mask |= self._mask("storage", (v for v in range(len(space.entry)) if space.unsavable(v)))
        return mask

    def _add_stage(self, t: int, stage: Stage) -> None:
        budget, costs, size = self.space.problem.budget_bytes, self.space.problem.costs, self.index.size_bytes
        for position in range(len(stage.anchors) - 1, -1, -1):
            i = stage.anchors[position]
            # Marks run nothing.
            if i < 0:
                continue
            own = sum(size[v] for v in self.index.writes[i]) + costs.workspace_bytes[i]
            # Of merged anchors only the last one has a capacity.
            limited = stage.anchor_limited and position == len(stage.anchors) - 1
            room = budget - stage.base_bytes - own if limited else UNLIMITED
            writes = self._mask("storage", self.index.writes[i])
            # Backwards, the first execution is where the random state begins.
            clears = writes | self._mask("state", [i])
            self.rows.append(_Row(t, -1, writes, clears, self._reads(i), self._needs(i), 0, room, 0))
        for i in reversed(stage.candidates):
            # A repetition holds the generator's own state as well, to return to.
            own = sum(size[v] for v in self.index.writes[i]) + costs.workspace_bytes[i] + self.space.state_bytes(i)
            room = budget - stage.base_bytes - own if stage.gap_limited else UNLIMITED
            held = self._mask("held", self.index.writes[i])
            owed = self._mask("owed", [i])
            writes = self._mask("storage", self.index.writes[i]) | held | owed
            reads = self._reads(i) | self._mask("state", [i])
            # A pinned operator runs once: after it was chosen, it is owed no more.
            needs = self._needs(i) | (owed if self.index.pinned[i] else 0)
            self.rows.append(_Row(t, i, writes, writes, reads, needs, held, room, costs.time_ns[i]))

    def _reads(self, op: int) -> int:
        return self._mask("storage", self.index.reads[op])

    def _needs(self, op: int) -> int:
        """Held storages among the reads of `op`, and pinned tangent-free operators that make any of its reads."""
        makers = {self.index.producer[v] for v in self.index.reads[op]}
        pinned = [i for i in makers if i >= 0 and self.index.pinned[i]]
        return self._mask("held", self.index.reads[op]) | self._mask("owed", sorted(pinned))

    def _behind(self) -> dict[int, int]:
        """For each tangent-free operator, those that have to run for it, itself included."""
        position = {i: k for k, i in enumerate(self.space.floating)}
        found: dict[int, int] = {}
        # Ascending ids are joint order, so the sets of all makers are complete.
        for i in self.space.floating:
            found[i] = 1 << position[i]
            for v in self.index.reads[i]:
                found[i] |= found.get(self.index.producer[v], 0)
        return found

    def _made_behind(self, kind: str, number: int, behind: dict[int, int]) -> int:
        """Tangent-free operators without which a bit cannot be made."""
        # A state belongs to an operator that an anchor runs.
        if kind == "state":
            return 0
        return behind.get(number if kind == "owed" else self.index.producer[number], 0)

    def _ahead(self, behind: dict[int, int]) -> list[int]:
        """By stage, tangent-free operators on which the anchors of earlier stages depend."""
        found: list[int] = []
        mask = 0
        for stage in self.space.stages:
            found.append(mask)
            for anchor in stage.anchors:
                for v in self.index.reads[anchor] if anchor >= 0 else ():
                    mask |= behind.get(self.index.producer[v], 0)
        return found


def _words(masks: Iterable[int], words: int) -> Words:
    """Masks as rows of `words` words, the lowest bits first."""
    full = (1 << WORD) - 1
    return np.array([[mask >> (WORD * k) & full for k in range(words)] for mask in masks], np.uint64).reshape(-1, words)
