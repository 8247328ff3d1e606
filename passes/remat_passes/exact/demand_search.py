"""Search the space by dynamic programming over demanded sets, stage by stage from the end: exact for narrow graphs.

A state is what the rest of the step still demands (`remat_passes.exact.demands`) with the least time spent so far.
Two ways to the same state are one, and a state whose demands contain another's at no lower price is dropped: every
beginning that serves the larger set serves the smaller one, in no more memory.  So the number of states grows with
how much may be demanded at once, not with the length of the graph; alike blocks, in which branch and bound loses
itself, cost nothing extra.  A bound cuts further: every tangent-free operator behind what is demanded has to run.

Where a stage has more states than allowed, the search ends, or goes on with the most promising ones: it then proves
little, but its plan is one that fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.plan import Plan
from remat_passes.exact.demand_layer import FULL, Slots, pass_anchor, run_in_gap, worth_keeping
from remat_passes.exact.demands import UNLIMITED, IntArray, Words, demand_steps
from remat_passes.exact.lift import plan_of
from remat_passes.exact.space import Space

NO_CUTOFF = 1 << 61
PLACES = 4
"""Places in a layer for each state with which to go on: those of a gap are many before they are thinned."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What the search found.

    Attributes:
        plan: A cheapest plan below the cutoff among those it saw, if any.
        added_ns: Its added time.
        complete: Whether it saw everything: `plan` is optimal, or nothing below the cutoff fits.
        bound_ns: Proven lower bound of the added time of plans below the cutoff; the cutoff where there are none.
        states: States of all stages together: the work.
    """

    plan: Plan | None
    added_ns: int | None
    complete: bool
    bound_ns: int
    states: int


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """What led to the states with which the search went on.

    Attributes:
        stage: Stage before which they stand.
        origin: For each state seen, the one that it came from: of this layer where an operator ran, or else of the
            layer behind it, by its place among those that went on.
        made_by: The operator that ran, or -1.
        kept: Which ones went on.
    """

    stage: int
    origin: Slots
    made_by: Slots
    kept: IntArray


@dataclass(frozen=True, slots=True)
class DemandLimits:
    """How much to search.

    Attributes:
        states: States with which to go on from one stage to the next.
        total: States of all stages, after which to give up.
        thins: Whether to go on with the most promising states where there are more, instead of giving up.
        byte_ns: Price of a demanded byte in the choice of the most promising ones.
        free: Whether operators may run in a gap in any order and any number of times, which is more than the space
            allows; else once, in joint order.
    """

    states: int
    total: int
    thins: bool = False
    byte_ns: float = 0.0
    free: bool = False


def search_demands(space: Space, cutoff_ns: int | None, limits: DemandLimits) -> Searched:
    """The cheapest plan of `space`, not merged into windows, with less added time than `cutoff_ns`, if given."""
    return _Search(space, cutoff_ns, limits).run()


class _Search:
    """The layers, from the last to the first."""

    def __init__(self, space: Space, cutoff_ns: int | None, limits: DemandLimits) -> None:
        self.space, self.steps, self.limits = space, demand_steps(space), limits
        self.once = int(self.steps.float_ns.sum())
        self.cutoff = NO_CUTOFF if cutoff_ns is None else cutoff_ns
        self.most = self.cutoff + self.once - 1
        self.complete, self.total, self.bound = True, 0, 0
        self.layers: list[_Layer] = []
        self.keys, self.price = self.steps.start.reshape(1, -1), np.zeros(1, np.int64)
        places = PLACES * limits.states
        self.into = (
            np.empty((places, self.steps.start.shape[0]), np.uint64),
            np.empty(places, np.int64),
            np.empty(places, np.int32),
            np.empty(places, np.int32),
        )
        self.table = np.empty(1 << (2 * places).bit_length(), np.int32)

    def run(self) -> Searched:
        """All stages; see `search_demands`."""
        for stage in range(len(self.space.stages) - 1, -1, -1):
            groups = self._groups(stage)
            for position, rows in enumerate(groups):
                self._pass(stage, rows, position == len(groups) - 1)
                if not len(self.price):
                    bound = self.cutoff if self.complete else self.bound
                    return Searched(None, None, self.complete, bound, self.total)
                if self.total > self.limits.total or not (self.complete or self.limits.thins):
                    return Searched(None, None, False, self.bound, self.total)
        best = int(np.argmin(self.price))
        added = int(self.price[best]) - self.once
        plan = plan_of(self.space, self._executions(best))
        return Searched(plan, added, self.complete, added if self.complete else self.bound, self.total)

    def _groups(self, stage: int) -> list[list[int]]:
        """Rows of the steps of a stage in groups: an anchor, if any, then what may run in the gap before it."""
        groups: list[list[int]] = [[]]
        for row in np.flatnonzero(self.steps.stage == stage).tolist():
            if self.steps.op[row] < 0 and groups[-1]:
                groups.append([])
            groups[-1].append(row)
        return groups

    def _pass(self, stage: int, rows: list[int], last: bool) -> None:
        """The states before a group of steps from those behind it."""
        steps = self.steps
        self.table.fill(-1)
        anchor = rows[:1] if rows and steps.op[rows[0]] < 0 else []
        count = self._pass_anchor(anchor)
        while True:
            before = (count, int(self.into[1][:count].sum()))
            for row in rows[len(anchor) :]:
                found = run_in_gap(
                    self.into, self.table, count, int(steps.op[row]), steps.writes[row], steps.reads[row],
                    steps.needs[row], steps.keeps[row], int(steps.room[row]), int(steps.time_ns[row]), self.most,
                    steps.weight,
                )  # fmt: skip
                self.complete = self.complete and found != FULL
                count = len(self.into[1]) if found == FULL else found
            # Prices only fall, so their sum tells whether anything changed.
            if not self.limits.free or (count, int(self.into[1][:count].sum())) == before:
                break
        self._go_on(stage, count, last)

    def _pass_anchor(self, anchor: list[int]) -> int:
        """The states before an anchor; the same ones where there is none."""
        steps, none = self.steps, np.zeros_like(self.steps.start)
        clears, reads, needs, room = none, none, none, UNLIMITED
        for row in anchor:
            clears, reads, needs, room = steps.clears[row], steps.reads[row], steps.needs[row], int(steps.room[row])
        count = pass_anchor(self.keys, self.price, self.into, self.table, clears, reads, needs, room, steps.weight)
        assert count != FULL, "no more states than before"
        return count

    def _go_on(self, stage: int, count: int, last: bool) -> None:
        """Choose the states with which to go on."""
        steps = self.steps
        keys, price, origin, made_by = self.into
        bound = np.empty(count, np.int64)
        forbidden = steps.forbidden[stage] if last else np.zeros_like(steps.start)
        stays = worth_keeping(
            keys, price, self.table, count, forbidden, self.most, steps.loose, steps.weight, steps.behind,
            steps.ahead[stage], steps.float_ns, bound,
        )  # fmt: skip
        kept = np.flatnonzero(stays)
        if self.complete:
            self.bound = min(self.cutoff, int(bound[kept].min(initial=self.most + 1)) - self.once)
        self.total += len(kept)
        if len(kept) > self.limits.states:
            self.complete = False
            promise = bound[kept] + self.limits.byte_ns * _weights(keys[kept], steps.weight)
            kept = np.sort(kept[np.argsort(promise, kind="stable")[: self.limits.states]])
        self.layers.append(_Layer(stage, origin[:count].copy(), made_by[:count].copy(), kept))
        self.keys, self.price = keys[kept].copy(), price[kept].copy()

    def _executions(self, state: int) -> list[tuple[int, int]]:
        """Stages and operators that lead from a state of the last layer to the end, in the order of time."""
        found: list[tuple[int, int]] = []
        for layer in reversed(self.layers):
            at = int(layer.kept[state])
            while layer.made_by[at] >= 0:
                found.append((layer.stage, int(layer.made_by[at])))
                at = int(layer.origin[at])
            state = int(layer.origin[at])
        return found


def _weights(keys: Words, weight: IntArray) -> IntArray:
    """Bytes of each set."""
    bits = np.unpackbits(keys.view(np.uint8), axis=1, bitorder="little")[:, : len(weight)]
    return bits.astype(np.int64) @ weight
